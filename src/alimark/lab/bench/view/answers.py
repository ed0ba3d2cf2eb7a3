"""What the page asks for: lists of texts, one text beside its original, its alignment, and tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from threading import Lock

from alimark.core._util.json_types import JsonObject
from alimark.core.detection.aligned_results import AlignedDetection
from alimark.core.schemes.api import load
from alimark.core.schemes.registry import aligns
from alimark.errors import AlimarkError
from alimark.lab.bench import metrics, rates, tables
from alimark.lab.bench.cells import (
    Cell,
    Column,
    Line,
    Table,
    estimated,
    mark_columns,
    ranked_places,
    unranked_note,
    with_misses,
)
from alimark.lab.bench.export import Format, export
from alimark.lab.bench.models import embedder_for, key_for, secret, settings_for
from alimark.lab.bench.results import load as load_results
from alimark.lab.bench.view.entries import FIELDS, Entry, Index
from alimark.lab.bench.view.words import word_diff

PAGE = 50
"""Texts of one page of the list."""

_BEGINNING = 120
"""Characters of a text that the list shows."""


class NotThere(AlimarkError):
    """The page asks for a text or a table that does not exist."""


class Answers:
    """Answers the questions of the page about the texts of a workspace."""

    def __init__(self, index: Index) -> None:
        self.index = index
        self._lock = Lock()
        self._report: dict[str, Table] | None = None
        self._alignments: dict[tuple[int, str], JsonObject] = {}

    def choices(self) -> JsonObject:
        """What the page needs when it opens: the values of the filters and the number of texts."""
        return {
            "fields": self.index.choices(),
            "texts": len(self.index.entries),
            "fpr": self.index.fpr,
            "folder": str(self.index.workspace.folder),
        }

    def listed(self, filters: Mapping[str, str], page: int) -> JsonObject:
        """One page of the texts that a filter chooses, with the beginning of each, and the number of all of them."""
        numbers = self.index.chosen(filters)
        pages = max(1, -(-len(numbers) // PAGE))
        page = min(max(page, 0), pages - 1)
        rows = [self._row(number) for number in numbers[page * PAGE : (page + 1) * PAGE]]
        return {"total": len(numbers), "page": page, "pages": pages, "rows": rows}

    def _row(self, number: int) -> JsonObject:
        entry = self.index.entries[number]
        text = " ".join(self._text(entry)[: 2 * _BEGINNING].split())[:_BEGINNING]
        return {"number": number, "beginning": text, **_figures(entry)}

    def text(self, number: int) -> JsonObject:
        """A text beside the text before the attack, with the words that differ."""
        entry = self._entry(number)
        before = "" if entry.item is None else self.index.records.text(entry.original)
        after = self._text(entry)
        attacked = entry.source != entry.original
        record = self.index.records.record(entry.source) if attacked else {}
        error = entry.error or str(record.get("error", ""))
        return {
            **_figures(entry),
            "number": number,
            "prompt": entry.item.prompt if entry.item else "",
            "original": before,
            "text": after,
            "attacked": attacked,
            "error": error,
            "settings": record.get("attack", {}).get("settings", {}),
            "diff": [list(piece) for piece in word_diff(before, after)] if attacked and after else [],
            "aligns": aligns(entry.cell.watermark.scheme),
        }

    def alignment(self, number: int, which: str) -> JsonObject:
        """The alignment of a text, or of its original, with the blocks of its key; it is not in the records, but computed."""
        entry = self._entry(number)
        if not aligns(entry.cell.watermark.scheme):
            raise NotThere(f"{entry.watermark} does not align sentences with a key; its score is all there is")
        if entry.detection.llm:
            raise NotThere(
                "these detection options ask a chat model to restructure the text, which the page does not repeat"
            )
        text = self.index.records.text(entry.original) if which == "original" else self._text(entry)
        if not text:
            raise NotThere("there is no text to align")
        with self._lock:  # models are loaded once, and one detection at a time uses all cores
            if (number, which) not in self._alignments:
                if len(self._alignments) > 1000:
                    self._alignments.clear()
                self._alignments[number, which] = _align(entry, text, self.index.fpr)
            return self._alignments[number, which]

    # Tables

    def tables(self) -> list[str]:
        """The titles of all tables: that of the filtered texts first, then those of the report."""
        return [_FOUND, *self._report_tables()]

    def table(self, title: str, filters: Mapping[str, str]) -> Table:
        """The table with this title."""
        if title == _FOUND:
            return found_table(self.index, filters)
        if title not in self._report_tables():
            raise NotThere(f"there is no table {title!r}")
        return self._report_tables()[title]

    def exported(self, title: str, filters: Mapping[str, str], form: Format) -> str:
        """The table with this title as CSV, LaTeX or Markdown."""
        return export(self.table(title, filters), form)

    def _report_tables(self) -> dict[str, Table]:
        """The tables of the finished runs; a run that has not ended has no results on disk, and computing them takes long."""
        report: dict[str, Table] = {}
        paths = (self.index.workspace.results(name) for name in self.index.workspace.names())
        for results in [load_results(path) for path in paths if path.exists()] if self._report is None else ():
            for table in (*rates.overview(results), *rates.details(results), *tables.human(results)):
                report[f"{results['name']}: {table.title}"] = table
        if self._report is None:
            self._report = report
        return self._report

    def _entry(self, number: int) -> Entry:
        if not 0 <= number < len(self.index.entries):
            raise NotThere(f"there is no text with the number {number}")
        return self.index.entries[number]

    def _text(self, entry: Entry) -> str:
        return self.index.records.text(entry.source) if entry.item else entry.secret_text


def _figures(entry: Entry) -> JsonObject:
    fields: JsonObject = {field: getattr(entry, field) for field in FIELDS}
    return fields | {"p_value": entry.p_value, "score": entry.score, "sentences": entry.sentences}


def _align(entry: Entry, text: str, fpr: float) -> JsonObject:
    run, watermark = entry.run, entry.cell.watermark
    key = key_for(watermark, secret(entry.cell.recipe.seed, entry.secret_text, entry.number), run.models)
    mark = load(key, embedder=embedder_for(watermark, run.models))
    [answer] = mark.detect_batch([text], settings_for(watermark, entry.detection))
    if isinstance(answer, AlimarkError):
        raise answer
    assert isinstance(answer, AlignedDetection)  # other schemes were refused
    return answer.report(fpr) | {"sentence_chances": [round(chance, 3) for chance in answer.sentence_chances]}


_FOUND = "Texts found"


def found_table(index: Index, filters: Mapping[str, str]) -> Table:
    """The share of the filtered texts in which the mark was found: a line per watermark, a column per attack.

    Args:
        index: The texts.
        filters: Values of the fields; see `Index.chosen`. A filter by verdict is not used, since it would decide the shares.
    """
    wanted = {field: value for field, value in filters.items() if field != "verdict"}
    entries = index.by_watermark_and_attack(index.chosen(wanted))
    watermarks = list(dict.fromkeys(watermark for watermark, _ in entries))
    attacks = list(dict.fromkeys(attack for _, attack in entries))
    columns = [Column("watermark", number=False), *(Column(attack) for attack in attacks)]
    lines = [
        Line([Cell(name), *(_share(entries.get((name, attack), [])) for attack in attacks)]) for name in watermarks
    ]
    title = f"{_FOUND} at a p-value of at most {index.fpr:g}, in percent"
    attacked = rates.answers_note([(attack, _attacked(members)) for (_, attack), members in entries.items()])
    note = f"Shares with 95% intervals; failed texts are left out.{attacked}"
    sets: Sequence[int] = [0] * len(lines)
    human = {i for i, column in enumerate(columns) if column.label == "human text"}  # fewer are better there
    places = [i for i in ranked_places(lines, columns) if i not in human] if len(lines) > 1 else []
    marked, unranked = mark_columns(lines, sets, places), unranked_note(lines, sets, columns, places)
    return Table(title, columns, marked, note, ranked="watermarks" if places else "", unranked=unranked)


def _attacked(entries: Sequence[Entry]) -> rates.AttackedTexts:
    counts = [entry.rejected for entry in entries]
    failed = sum(entry.verdict == "failed" for entry in entries)
    return rates.AttackedTexts(len(entries), failed, None if None in counts else sum(map(bool, counts)))


def _share(entries: Sequence[Entry]) -> Cell:
    """The share of texts found among those that did not fail and, where some failed, among all."""
    scored = sum(entry.verdict != "failed" for entry in entries)
    found = sum(entry.verdict == "found" for entry in entries)
    every = found / len(entries) if scored < len(entries) else None
    if not scored:
        return with_misses(Cell("–"), every)
    share = metrics.share(found, scored)
    cell = estimated({"value": share.value, "low": share.low, "high": share.high, "count": scored})
    return with_misses(replace(cell, small=f"{cell.small}, {scored:,} texts"), every)
