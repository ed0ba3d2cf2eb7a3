"""The scored texts of some workspaces, and what the page asks about them: lists, one text, its alignment, and tables."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from functools import lru_cache
from pathlib import Path
from threading import Lock

from alimark.core._util.json_types import JsonObject
from alimark.core.detection.aligned_results import AlignedDetection
from alimark.core.schemes.api import load
from alimark.core.schemes.registry import aligns
from alimark.errors import AlimarkError
from alimark.lab.bench import tables
from alimark.lab.bench.evaluate import Records, ScoredText
from alimark.lab.bench.jobs import Cell
from alimark.lab.bench.models import embedder_for, key_for, secret, settings_for
from alimark.lab.bench.recipe_files import load as load_recipe
from alimark.lab.bench.results import load as load_results
from alimark.lab.bench.run import Run
from alimark.lab.bench.shape import NO_ATTACK, attack_label, shown
from alimark.lab.bench.tables import Table
from alimark.lab.bench.workspace import Workspace

HUMAN_TEXT = "human text"  # stands in place of an attack where a human text was scored

FIELDS = ("run", "recipe", "data", "watermark", "attack", "verdict")  # what texts can be filtered by


@dataclass(frozen=True, slots=True)
class ListedText:
    """One scored text and where it belongs."""

    run: str
    recipe: str
    records: Records
    attack: str
    scored: ScoredText
    verdict: str  # found: the p-value is at most the false-positive rate; failed: the attack or the detection failed

    @property
    def cell(self) -> Cell:
        return self.scored.job.content.cell

    @property
    def prompt(self) -> str:
        """The prompt that the text goes on from; empty for a human text."""
        return "" if self.attack == HUMAN_TEXT else self.scored.job.content.secret_text

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


# --- Answers

PAGE = 50  # texts of one page of the list

_BEGINNING = 120  # characters of a text that the list shows


class NotThere(AlimarkError):
    """The page asks for a text or a table that does not exist."""


class Answers:
    """Answers the questions of the page about the scored texts of some workspaces, which runs may still be filling.

    A mark counts as found at a p-value of `fpr` or less.
    """

    def __init__(self, workspaces: Sequence[Workspace], fpr: float = 0.01) -> None:
        self._workspaces, self._fpr = workspaces, fpr
        self._lock = Lock()
        self.entries: list[ListedText] = []
        self.tables: dict[str, Table] = {}
        self._files: dict[str, tuple[int, int]] = {}
        self.state = 0
        """How often the records were read; the numbers of texts hold for one reading."""
        self.refresh()

    def refresh(self) -> None:
        """Reads the records and the results of the runs again where a file has changed."""
        with self._lock:
            parts = ("recipes/*.toml", "records/*.jsonl", "results/*.json")
            every = [path for space in self._workspaces for part in parts for path in space.folder.glob(part)]
            files = {str(path): (status.st_mtime_ns, status.st_size) for path in every for status in [path.stat()]}
            if files == self._files:
                return
            self._files, self.state = files, self.state + 1
            self.entries = [entry for space in self._workspaces for entry in self._of_workspace(space)]
            self.tables = dict(self._tables())
            self._alignment = lru_cache(1000)(self._align)

    def _of_workspace(self, space: Workspace) -> Iterator[ListedText]:
        """The scored texts of a workspace, cell by cell."""
        for name in space.names():
            if space.recipe(name).exists():
                yield from self._of_recipe(space, name)

    def _of_recipe(self, space: Workspace, name: str) -> Iterator[ListedText]:
        run = Run(load_recipe(space.recipe(name), was_run=True), space)
        records = Records(run)
        for cell in run.cells:
            for detection in cell.recipe.detection:
                every = [
                    (attack_label(attack.label if attack else NO_ATTACK), records.scored(cell, detection, attack))
                    for attack in cell.conditions
                ]
                for attack, texts in [*every, (HUMAN_TEXT, records.human(cell, detection))]:
                    for scored in texts:
                        verdict = "failed"
                        if not scored.failed:
                            verdict = "found" if scored.score["p_value"] <= self._fpr else "not found"
                        yield ListedText(str(space.folder), name, records, attack, scored, verdict)

    def choices(self) -> JsonObject:
        """What the page needs when it opens: the values of the filters and the number of texts."""
        values = {field: list(dict.fromkeys(getattr(entry, field) for entry in self.entries)) for field in FIELDS}
        folders = ", ".join(str(space.folder) for space in self._workspaces)
        return {"fields": values, "texts": len(self.entries), "fpr": self._fpr, "folder": folders, "state": self.state}

    def chosen(self, filters: Mapping[str, str]) -> list[int]:
        """The numbers of the entries with these values; a field that is empty or absent may have any."""
        wanted = {field: filters[field] for field in FIELDS if filters.get(field)}
        every = enumerate(self.entries)
        return [i for i, entry in every if all(getattr(entry, field) == value for field, value in wanted.items())]

    def listed(self, filters: Mapping[str, str], page: int) -> JsonObject:
        """One page of the texts that a filter chooses, with the beginning of each, and the number of all of them."""
        numbers = self.chosen(filters)
        pages = max(1, -(-len(numbers) // PAGE))
        page = min(max(page, 0), pages - 1)
        rows = []
        for number in numbers[page * PAGE : (page + 1) * PAGE]:
            entry = self.entries[number]
            beginning = " ".join(entry.text[: 2 * _BEGINNING].split())[:_BEGINNING]
            rows.append({"number": number, "beginning": beginning, **_figures(entry)})
        return {"state": self.state, "total": len(numbers), "page": page, "pages": pages, "rows": rows}

    def text(self, number: int) -> JsonObject:
        """A text beside the text before the attack, with the words that differ, and the others from its prompt and attack."""
        entry = self._entry(number)
        before, after = "" if entry.attack == HUMAN_TEXT else entry.original, entry.text
        same = (entry.data, entry.prompt, entry.attack)
        others = [
            {"number": i, "run": other.run, "watermark": other.watermark}
            for i, other in enumerate(self.entries)
            if i != number and entry.prompt and (other.data, other.prompt, other.attack) == same
        ]
        attacked, step = bool(entry.scored.steps), entry.scored.steps[-1] if entry.scored.steps else {}
        return {
            **_figures(entry),
            "number": number,
            "prompt": entry.prompt,
            "others": others,
            "original": before,
            "text": after,
            "attacked": attacked,
            "error": str(entry.scored.score.get("error", "") or step.get("error", "")),
            "settings": step.get("attack", {}).get("settings", {}),
            "diff": word_diff(before, after) if attacked and after else [],
            "aligns": aligns(entry.cell.watermark.scheme),
        }

    def alignment(self, number: int, which: str) -> JsonObject:
        """The alignment of a text, or of its original, with the blocks of its key; it is not in the records, but computed."""
        entry = self._entry(number)
        if not aligns(entry.cell.watermark.scheme):
            raise NotThere(f"{entry.watermark} does not align sentences with a key; its score is all there is")
        if entry.scored.job.content.detection.llm:
            raise NotThere(
                "these detection options ask a chat model to restructure the text, which the page does not repeat"
            )
        with self._lock:  # models are loaded once, and one detection at a time uses all cores
            return self._alignment(number, which == "original")

    def _align(self, number: int, original: bool) -> JsonObject:
        entry = self.entries[number]
        text = entry.original if original else entry.text
        if not text:
            raise NotThere("there is no text to align")
        cell, detection, _, secret_text, fresh = entry.scored.job.content
        models = entry.records.run.models
        key = key_for(cell.watermark, secret(cell.recipe.seed, secret_text, fresh), models)
        mark = load(key, embedder=embedder_for(cell.watermark, models))
        [answer] = mark.detect_batch([text], settings_for(cell.watermark, detection))
        if isinstance(answer, AlimarkError):
            raise answer
        assert isinstance(answer, AlignedDetection)  # other schemes were refused
        chances = [round(chance, 3) for chance in answer.sentence_chances]
        return answer.report(self._fpr) | {"sentence_chances": chances}

    def _tables(self) -> Iterator[tuple[str, Table]]:
        """The tables of the finished runs; a run that has not ended has no results on disk, and computing them takes long."""
        for space in self._workspaces:
            where = f"{space.folder}, " if len(self._workspaces) > 1 else ""
            for path in filter(Path.exists, map(space.results, space.names())):
                results = load_results(path)
                for table in (*tables.details(results), *tables.human(results)):
                    yield f"{where}{results['name']}: {table.title}", table

    def table(self, title: str) -> Table:
        """The table with this title."""
        if title not in self.tables:
            raise NotThere(f"there is no table {title!r}")
        return self.tables[title]

    def _entry(self, number: int) -> ListedText:
        if not 0 <= number < len(self.entries):
            raise NotThere(f"there is no text with the number {number}")
        return self.entries[number]


def _figures(entry: ListedText) -> JsonObject:
    fields: JsonObject = {field: getattr(entry, field) for field in FIELDS}
    return fields | {name: entry.scored.score.get(name) for name in ("p_value", "score", "sentences")}


# Chinese and Japanese have no spaces between words, so each of their characters counts as a word.
_WORD = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff]|\w+|[^\w\s]|\s+")
_LONG = 5_000
"""Words from which on frequent words are not used to find equal passages: comparing all of them takes quadratic time."""


def word_diff(before: str, after: str) -> list[tuple[str, str]]:
    """The passages of two texts: those of the kinds same and removed make up the first, same and added the second."""
    first, second = _WORD.findall(before), _WORD.findall(after)
    matcher = SequenceMatcher(None, first, second, autojunk=max(len(first), len(second)) > _LONG)
    passages: list[tuple[str, str]] = []
    for kind, start, stop, other_start, other_stop in matcher.get_opcodes():
        removed, added = "".join(first[start:stop]), "".join(second[other_start:other_stop])
        pieces = [("same", removed)] if kind == "equal" else [("removed", removed), ("added", added)]
        passages += [(name, words) for name, words in pieces if words]
    return passages
