"""The scored texts of a workspace: what they are, where their records lie in the files, and which of them a filter chooses.

Texts stay in the files. Of each scored text only a few numbers and references are held in memory, so that a workspace of
100,000 records can be browsed.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple, get_args

from alimark.core._util.jsonl import Record, parse_record
from alimark.errors import AlimarkError
from alimark.lab.bench.data import Item
from alimark.lab.bench.jobs import HUMAN, Cell
from alimark.lab.bench.recipe import Detection
from alimark.lab.bench.recipe_files import load as load_recipe
from alimark.lab.bench.recipe_points import OneAttack, attacks
from alimark.lab.bench.rejections import rejected
from alimark.lab.bench.run import Run
from alimark.lab.bench.shape import attack_label, shown
from alimark.lab.bench.workspace import Stage, Workspace

Verdict = Literal["found", "not found", "failed"]
VERDICTS: tuple[Verdict, ...] = get_args(Verdict)
"""Found: the p-value is at most the false-positive rate. Failed: the attack or the detection failed."""

HUMAN_TEXT = "human text"
"""Stands in place of an attack where a human text was scored."""

FIELDS = ("recipe", "data", "watermark", "attack", "verdict")
"""What texts can be filtered by."""

_ID = re.compile(rb'\{"id": "([0-9a-f]{24})"')


@dataclass(frozen=True, slots=True)
class Entry:
    """One scored text: a marked text, the result of an attack on one, or a human text."""

    run: Run
    recipe: str
    cell: Cell
    detection: Detection
    watermark: str
    """The label of the watermark, with the settings that the recipe varies and the detection options."""
    attack: str
    verdict: Verdict
    p_value: float | None
    score: float | None
    sentences: int | None
    error: str
    original: str
    """The id of the record of the text before the attack; empty for a human text."""
    source: str
    """The id of the record of the scored text; the same as `original` where there was no attack."""
    item: Item | None
    """Prompt and human text; None for a human text, which is `secret_text`."""
    secret_text: str
    number: int
    rejected: int | None = 0
    """The answers of a model that the attack did not use; None if a record does not say."""

    @property
    def data(self) -> str:
        return self.cell.data.name


class _Scores(NamedTuple):
    """What an entry needs of a detection's record."""

    p_value: float | None
    score: float | None
    sentences: int | None
    error: str
    failed: bool


class Records:
    """Reads single records of generated and attacked texts by their ids."""

    def __init__(self, workspace: Workspace) -> None:
        self._places: dict[str, tuple[Path, int]] = {}
        stages: tuple[Stage, ...] = ("generate", "attack")
        for stage in stages:
            for path in workspace.files(stage):
                self._places |= {record_id: (path, offset) for record_id, offset in _offsets(path)}

    def __contains__(self, record_id: str) -> bool:
        return record_id in self._places

    def record(self, record_id: str) -> Record:
        """Returns the record with this id, or an empty dictionary if no record has it."""
        if record_id not in self._places:
            return {}
        path, offset = self._places[record_id]
        with open(path, "rb") as file:
            file.seek(offset)
            record = parse_record(file.readline(), f"{path} at byte {offset}")
        return {} if isinstance(record, AlimarkError) else record

    def text(self, source: str) -> str:
        """The text of a record; empty if it does not exist or making it failed."""
        if source.startswith(HUMAN):
            return source.removeprefix(HUMAN)
        return str(self.record(source).get("text", ""))


def _offsets(path: Path) -> Iterator[tuple[str, int]]:
    """The id of each record of a file, and where its line begins."""
    offset = 0
    with open(path, "rb") as file:
        for line in file:
            start, offset = offset, offset + len(line)
            if not line.endswith(b"\n"):
                return  # a run is writing this line
            if match := _ID.match(line):
                yield match[1].decode(), start
            elif not isinstance(record := parse_record(line, str(path)), AlimarkError) and "id" in record:
                yield str(record["id"]), start


class Index:
    """All scored texts of a workspace."""

    def __init__(self, workspace: Workspace, fpr: float = 0.01) -> None:
        self.workspace, self.fpr = workspace, fpr
        self.records = Records(workspace)
        scores, rejections = dict(_scores(workspace)), dict(_rejections(workspace))
        self.entries: list[Entry] = []
        for name in workspace.names():
            path = workspace.recipe(name)
            if path.exists():
                self.entries += _entries(name, Run(load_recipe(path), workspace), scores, rejections, fpr)

    def choices(self) -> dict[str, list[str]]:
        """The different values of each field that texts can be filtered by, in order of appearance."""
        return {field: list(dict.fromkeys(getattr(entry, field) for entry in self.entries)) for field in FIELDS}

    def chosen(self, filters: Mapping[str, str]) -> list[int]:
        """The numbers of the entries with these values; a field that is empty or absent may have any."""
        wanted = [(field, filters[field]) for field in FIELDS if filters.get(field)]
        return [
            number
            for number, entry in enumerate(self.entries)
            if all(getattr(entry, field) == value for field, value in wanted)
        ]

    def by_watermark_and_attack(self, numbers: Iterable[int]) -> dict[tuple[str, str], list[Entry]]:
        """These entries, by watermark and attack."""
        entries: dict[tuple[str, str], list[Entry]] = defaultdict(list)
        for number in numbers:
            entry = self.entries[number]
            entries[entry.watermark, entry.attack].append(entry)
        return dict(entries)


def _scores(workspace: Workspace) -> Iterator[tuple[str, _Scores]]:
    for path in workspace.files("detect"):
        with open(path, "rb") as file:
            for line in file:
                record = parse_record(line, str(path))
                if isinstance(record, AlimarkError) or "id" not in record:
                    continue
                failed = bool(record.get("failed"))
                yield (
                    str(record["id"]),
                    _Scores(
                        record.get("p_value"),
                        record.get("score"),
                        record.get("sentences"),
                        str(record.get("error", "")),
                        failed,
                    ),
                )


def _rejections(workspace: Workspace) -> Iterator[tuple[str, int | None]]:
    """For each attacked text the number of answers that the attack did not use."""
    for path in workspace.files("attack"):
        with open(path, "rb") as file:
            for line in file:
                record = parse_record(line, str(path))
                if not isinstance(record, AlimarkError) and "id" in record:
                    yield str(record["id"]), rejected(record)


def _entries(
    name: str, run: Run, scores: Mapping[str, _Scores], rejections: Mapping[str, int | None], fpr: float
) -> Iterator[Entry]:
    """The scored texts of a recipe, cell by cell."""
    for cell in run.cells:
        for detection in cell.recipe.detection:
            for item in cell.items:
                yield from _item_entries(name, run, cell, detection, item, scores, rejections, fpr)
            for number, job in run.human_jobs(cell, detection):
                if answer := scores.get(job.id):
                    content = job.content
                    yield Entry(
                        run, name, cell, detection, _watermark(cell, detection), HUMAN_TEXT, *_numbers(answer, fpr),
                        "", "", None, cell.data.human[number], content.number,
                    )  # fmt: skip


def _item_entries(
    name: str,
    run: Run,
    cell: Cell,
    detection: Detection,
    item: Item,
    scores: Mapping[str, _Scores],
    rejections: Mapping[str, int | None],
    fpr: float,
) -> Iterator[Entry]:
    """The marked text of a prompt, without an attack and under each attack."""
    original = run.source(cell, item)
    every: list[OneAttack | None] = [*([None] if cell.recipe.clean else []), *attacks(cell.recipe)]
    for attack in every:
        steps = [job.id for job in run.attack_job(cell, item, attack).chain] if attack else []
        source = steps[-1] if steps else original
        if answer := scores.get(run.detect_job(cell, detection, source, item.prompt).id):
            yield Entry(
                run, name, cell, detection, _watermark(cell, detection), attack_label(attack.label if attack else "none"),
                *_numbers(answer, fpr), original, source, item, item.prompt, 0,
                _sum([rejections.get(step, 0) for step in steps]),
            )  # fmt: skip


def _sum(counts: Sequence[int | None]) -> int | None:
    known = [count for count in counts if count is not None]
    return sum(known) if len(known) == len(counts) else None


def _numbers(answer: _Scores, fpr: float) -> tuple[Verdict, float | None, float | None, int | None, str]:
    if answer.failed or answer.p_value is None:
        return "failed", None, None, None, answer.error
    verdict: Verdict = "found" if answer.p_value <= fpr else "not found"
    return verdict, answer.p_value, answer.score, answer.sentences, ""


def _watermark(cell: Cell, detection: Detection) -> str:
    grid = [f"{name.replace('_', ' ')} {shown(value)}" for name, value in cell.variant.grid.items()]
    several: Sequence[str] = [part for part in (cell.watermark.label, detection.label, *grid) if part]
    return ", ".join(several)
