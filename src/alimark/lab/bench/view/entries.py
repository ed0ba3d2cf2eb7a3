"""The scored texts of a workspace: what they are, and which of them a filter chooses."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal, get_args

from alimark.core._util.jsonl import Record
from alimark.lab.bench.evaluate import Records, conditions, rejected, scored_texts
from alimark.lab.bench.jobs import Cell
from alimark.lab.bench.recipe import Detection
from alimark.lab.bench.recipe_files import load as load_recipe
from alimark.lab.bench.run import Run
from alimark.lab.bench.shape import NO_ATTACK, attack_label, shown
from alimark.lab.bench.workspace import Workspace

Verdict = Literal["found", "not found", "failed"]
VERDICTS: tuple[Verdict, ...] = get_args(Verdict)
"""Found: the p-value is at most the false-positive rate. Failed: the attack or the detection failed."""

HUMAN_TEXT = "human text"
"""Stands in place of an attack where a human text was scored."""

FIELDS = ("recipe", "data", "watermark", "attack", "verdict")
"""What texts can be filtered by."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One scored text: a marked text, the result of an attack on one, or a human text."""

    recipe: str
    run: Run
    records: Records
    cell: Cell
    detection: Detection
    attack: str
    original: str
    """Where the text before the attack is: the id of its record, or "human:" and a text."""
    source: str
    """Where the scored text is; the same as `original` where there was no attack."""
    secret_text: str
    """The text that the key's secret is derived from: a prompt, or a human text."""
    number: int
    score: Record
    """The record of the detection."""
    verdict: Verdict
    rejected: int = 0
    """The answers of a model that the attack did not use."""

    @property
    def data(self) -> str:
        return self.cell.data.name

    @property
    def watermark(self) -> str:
        """The label of the watermark, with the detection options and the settings that the recipe varies."""
        grid = [f"{name.replace('_', ' ')} {shown(value)}" for name, value in self.cell.variant.grid.items()]
        return ", ".join(part for part in (self.cell.watermark.label, self.detection.label, *grid) if part)

    @property
    def text(self) -> str:
        """The scored text; empty if making it failed."""
        return self.records.text(self.source)


@dataclass
class Index:
    """All scored texts of a workspace; a mark counts as found at a p-value of `fpr` or less."""

    workspace: Workspace
    fpr: float = 0.01
    entries: list[Entry] = field(init=False)

    def __post_init__(self) -> None:
        names = [name for name in self.workspace.names() if self.workspace.recipe(name).exists()]
        self.entries = [entry for name in names for entry in self._of_recipe(name)]

    def _of_recipe(self, name: str) -> Iterator[Entry]:
        """The scored texts of a recipe, cell by cell."""
        run = Run(load_recipe(self.workspace.recipe(name)), self.workspace)
        records = Records(run)
        for cell in run.cells:
            for detection in cell.recipe.detection:
                shared = (name, run, records, cell, detection)
                for attack in conditions(cell):
                    label = attack_label(attack.label if attack else NO_ATTACK)
                    for item, score in scored_texts(run, cell, detection, attack, records):
                        original = run.source(cell, item)
                        source = run.attack_job(cell, item, attack).id if attack else original
                        answers = rejected(run, cell, item, attack, records)
                        yield Entry(
                            *shared, label, original, source, item.prompt, 0, score, self._verdict(score), answers
                        )
                for _, job in run.human_jobs(cell, detection):
                    if score := records.scores.get(job.id, {}):
                        _, _, source, secret_text, number = job.content
                        yield Entry(
                            *shared, HUMAN_TEXT, source, source, secret_text, number, score, self._verdict(score)
                        )

    def _verdict(self, score: Record) -> Verdict:
        if score.get("failed"):
            return "failed"
        return "found" if score["p_value"] <= self.fpr else "not found"

    def choices(self) -> dict[str, list[str]]:
        """The different values of each field that texts can be filtered by, in order of appearance."""
        return {field: list(dict.fromkeys(getattr(entry, field) for entry in self.entries)) for field in FIELDS}

    def chosen(self, filters: Mapping[str, str]) -> list[int]:
        """The numbers of the entries with these values; a field that is empty or absent may have any."""
        wanted = {field: filters[field] for field in FIELDS if filters.get(field)}
        every = enumerate(self.entries)
        return [i for i, entry in every if all(getattr(entry, field) == value for field, value in wanted.items())]
