"""The scored texts of a workspace: what they are, and which of them a filter chooses."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

from alimark.lab.bench.evaluate import Records, ScoredText
from alimark.lab.bench.jobs import Cell
from alimark.lab.bench.recipe_files import load as load_recipe
from alimark.lab.bench.run import Run
from alimark.lab.bench.shape import NO_ATTACK, attack_label, shown
from alimark.lab.bench.workspace import Workspace

Verdict = Literal["found", "not found", "failed"]
"""Found: the p-value is at most the false-positive rate. Failed: the attack or the detection failed."""

HUMAN_TEXT = "human text"  # stands in place of an attack where a human text was scored

FIELDS = ("recipe", "data", "watermark", "attack", "verdict")  # what texts can be filtered by


@dataclass(frozen=True, slots=True)
class ListedText:
    """One scored text and where it belongs."""

    recipe: str
    records: Records
    attack: str
    scored: ScoredText
    verdict: Verdict

    @property
    def cell(self) -> Cell:
        return self.scored.job.content.cell

    @property
    def data(self) -> str:
        return self.cell.data.name

    @property
    def watermark(self) -> str:
        """The label of the watermark, with the detection options and the settings that the recipe varies."""
        grid = [f"{name.replace('_', ' ')} {shown(value)}" for name, value in self.cell.variant.grid.items()]
        return ", ".join(filter(None, (self.cell.watermark.label, self.scored.job.content.detection.label, *grid)))

    @property
    def text(self) -> str:
        """The scored text; empty if making it failed."""
        return self.records.text(self.scored.job.content.source)

    @property
    def original(self) -> str:
        """The text before the attack."""
        return self.records.text(self.scored.original)


@dataclass
class Index:
    """All scored texts of a workspace; a mark counts as found at a p-value of `fpr` or less."""

    workspace: Workspace
    fpr: float = 0.01
    entries: list[ListedText] = field(init=False)

    def __post_init__(self) -> None:
        names = [name for name in self.workspace.names() if self.workspace.recipe(name).exists()]
        self.entries = [entry for name in names for entry in self._of_recipe(name)]

    def _of_recipe(self, name: str) -> Iterator[ListedText]:
        """The scored texts of a recipe, cell by cell."""
        run = Run(load_recipe(self.workspace.recipe(name)), self.workspace)
        records = Records(run)
        for cell in run.cells:
            for detection in cell.recipe.detection:
                every = [
                    (attack_label(attack.label if attack else NO_ATTACK), records.scored(cell, detection, attack))
                    for attack in cell.conditions
                ]
                for attack, texts in [*every, (HUMAN_TEXT, records.human(cell, detection))]:
                    for scored in texts:
                        hit = not scored.failed and scored.score["p_value"] <= self.fpr
                        verdict: Verdict = "failed" if scored.failed else "found" if hit else "not found"
                        yield ListedText(name, records, attack, scored, verdict)

    def choices(self) -> dict[str, list[str]]:
        """The different values of each field that texts can be filtered by, in order of appearance."""
        return {field: list(dict.fromkeys(getattr(entry, field) for entry in self.entries)) for field in FIELDS}

    def chosen(self, filters: Mapping[str, str]) -> list[int]:
        """The numbers of the entries with these values; a field that is empty or absent may have any."""
        wanted = {field: filters[field] for field in FIELDS if filters.get(field)}
        every = enumerate(self.entries)
        return [i for i, entry in every if all(getattr(entry, field) == value for field, value in wanted.items())]
