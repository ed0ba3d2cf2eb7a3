"""The tables of a report as cells: their figures with intervals, the paper's figures, and which are marked as the best."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeVar

import numpy as np

from alimark.lab.bench import shape
from alimark.lab.bench.paper import Paper
from alimark.lab.bench.results import Human, JsonMapping, Quality, ResultFigure, Results
from alimark.lab.bench.shape import Variant, group_label, grouped, shown, variant, variants

Mark = Literal["", "best", "second", "high"]
Format = Callable[[float], str]
RowLike = TypeVar("RowLike", bound=JsonMapping)

OURS, PAPER = "ours", "paper"
"""The headings of columns with the paper's figures and of those beside them."""


@dataclass(frozen=True)
class TableCell:
    text: str = ""
    small: str = ""  # small print below the text: an interval, or what a figure of the paper refers to
    value: float | None = None  # the number that the text shows, to sort by
    mark: Mark = ""
    method: str = ""  # the method that the cell names; its colour is shown beside it
    interval: tuple[float, float] | None = None  # the 95% interval of the value, where it has one
    every: float | None = None  # the value with failed texts as misses, where texts failed


@dataclass(frozen=True)
class Column:
    label: str
    over: str = ""  # A heading above several neighbouring columns
    number: bool = True

    @property
    def name(self) -> str:
        """Both headings on one line."""
        return f"{self.over} {self.label}".strip()


@dataclass(frozen=True)
class Line:
    cells: Sequence[TableCell]
    group: str = ""


@dataclass(frozen=True)
class Table:
    title: str
    columns: Sequence[Column]
    lines: Sequence[Line]
    note: str = ""
    grouped_by: str = ""  # what the groups of lines are, for a heading
    ranked: str = ""  # the things among which the best and the second are marked; empty if they are not
    unranked: str = ""
    """A sentence on the columns in which nothing is marked, because intervals overlap; empty if there are none."""
    folded: bool = False


# --- Cells


def percent(share: float) -> str:
    return f"{100 * share:.1f}"


def three(value: float) -> str:
    return f"{value:.3f}"


def estimated(estimate: ResultFigure | None, written: Format = percent) -> TableCell:
    """A figure with its interval below."""
    if estimate is None:
        return TableCell("–")
    low, high = estimate["low"], estimate["high"]
    return TableCell(
        written(estimate["value"]), f"{written(low)}–{written(high)}", estimate["value"], interval=(low, high)
    )


def with_misses(cell: TableCell, every: float | None) -> TableCell:
    """The cell with the share of all texts beside it, in which failed ones are misses; None if none failed."""
    if every is None:
        return cell
    return replace(cell, small="; ".join(filter(None, [cell.small, f"all {percent(every)}"])), every=every)


def number(value: float | None, written: str = ",") -> TableCell:
    """A number in Python's format; a dash for None."""
    return TableCell("–") if value is None else TableCell(f"{value:{written}}", value=value)


def papers(figure: tuple[float, str] | None, written: Format = percent) -> TableCell:
    """A figure of the paper, and below it how its setting differs from ours."""
    return TableCell(written(figure[0]), figure[1], figure[0]) if figure else TableCell()


class Names:
    """The columns for the method and, if they differ between lines, its detection options and grid settings."""

    def __init__(self, rows: Iterable[JsonMapping]) -> None:
        every = variants(rows)
        self._detection = any(compared.detection for compared in every)
        self._grid = list(dict.fromkeys(name for compared in every for name, _ in compared.grid))
        names = [*self._grid, "method", *(["detection"] if self._detection else [])]
        self.columns = [Column(name.replace("_", " "), number=False) for name in names]

    def cells(self, compared: Variant) -> list[TableCell]:
        settings = [TableCell(dict(compared.grid).get(name, "")) for name in self._grid]
        detection = [TableCell(compared.detection)] if self._detection else []
        return [*settings, TableCell(compared.method, method=compared.method), *detection]


# --- Best and second


def rank(table: Table, sets: Sequence[Hashable], among: str, columns: Iterable[int] = ()) -> Table:
    """The table with the best and the second marked in each column among the lines of each set; equal digits share a rank.

    Nothing is marked where the intervals of neighbouring ranks overlap: there are too few texts to rank. The table then names
    the columns. Figures of the paper have no intervals.

    Args:
        table: The table.
        sets: The set of each line.
        among: The things that are ranked, for the note.
        columns: The columns, by default those of the paper's figures and those whose figures have intervals.
    """
    places = list(columns) or rankable(table)
    rows, unranked = [list(line.cells) for line in table.lines], []
    for place in places:
        marks, settled = ranks([row[place] for row in rows], sets)
        for row, mark in zip(rows, marks, strict=True):
            row[place] = replace(row[place], mark=mark)
        unranked += [] if settled else [place]
    lines = [Line(row, line.group) for row, line in zip(rows, table.lines, strict=True)]
    return replace(table, lines=lines, ranked=among, unranked=_unranked(table.columns, places, unranked))


def rankable(table: Table) -> list[int]:
    """The columns in which the best is marked: those of the paper's figures, and those whose figures have intervals."""
    named = enumerate(table.columns)
    return [i for i, column in named if column.label == PAPER or any(line.cells[i].interval for line in table.lines)]


def ranks(cells: Sequence[TableCell], sets: Sequence[Hashable]) -> tuple[list[Mark], bool]:
    """The marks of the cells of a column, and whether the best of every set is settled."""
    marks: list[Mark] = [""] * len(cells)
    settled = True
    for name in dict.fromkeys(sets):
        by_value: dict[float, list[int]] = {}
        for i, cell in enumerate(cells):
            if sets[i] == name and cell.value is not None:
                by_value.setdefault(float(cell.text), []).append(i)
        places = [by_value[value] for value in sorted(by_value, reverse=True)]
        if len(places) < 2:
            continue
        if _overlap(cells, places, 1):
            settled = False
            continue
        second = [] if len(places) > 2 and _overlap(cells, places, 2) else places[1]
        marks = ["best" if i in places[0] else "second" if i in second else mark for i, mark in enumerate(marks)]
    return marks, settled


def _overlap(cells: Sequence[TableCell], places: Sequence[Sequence[int]], count: int) -> bool:
    """Whether an interval of the first ranks overlaps one of the others."""
    upper = [interval for rank in places[:count] for i in rank if (interval := cells[i].interval)]
    lower = [interval for rank in places[count:] for i in rank if (interval := cells[i].interval)]
    return bool(upper and lower) and min(low for low, _ in upper) <= max(high for _, high in lower)


def _unranked(columns: Sequence[Column], places: Sequence[int], unranked: Sequence[int]) -> str:
    """A sentence that names the columns with too few texts to rank; empty if there are none."""
    if not unranked:
        return ""
    names = [columns[i].over if columns[i].label == OURS else columns[i].name for i in unranked]
    every = len(unranked) == sum(columns[i].label != PAPER for i in places) > 1
    where = "in every column" if every else ", ".join(names)
    return f"Too few texts to rank, since the interval of the best overlaps another: {where}."


# --- The tables except those of detection rates, which are in rates.py


def by_group(
    title: str,
    rows: Sequence[RowLike],
    columns: Sequence[Column],
    cells: Callable[[RowLike], list[TableCell]],
    note: str = "",
) -> list[Table]:
    """A table with one line per row, grouped by LLM and data set; no table if there are no rows."""
    names, groups = Names(rows), grouped(rows)
    lines = [
        Line([*names.cells(variant(row)), *cells(row)], group_label(group, groups))
        for group, members in groups.items()
        for row in members
    ]
    return [Table(title, [*names.columns, *columns], lines, note, "texts")] if rows else []


def human(results: Results) -> list[Table]:
    levels = sorted({level for row in results["human"] for level in row["false_positives"]}, key=float)
    columns = [Column("texts"), Column("keys"), Column("mean statistic"), *(Column(f"p ≤ {level}") for level in levels)]

    def cells(row: Human) -> list[TableCell]:
        mean = float(np.mean(row["scores"])) if row["scores"] else None
        shares = [_false_positives(row["false_positives"].get(level), float(level)) for level in levels]
        return [number(row["texts"]), number(row["keys"]), number(mean, ".2f"), *shares]

    note = (
        "Share of human scores at or below each p-value, in percent, with 95% intervals. It should not exceed the p-value. "
        "▲: the whole interval lies above the p-value. Keys: the number of fresh keys that each text was scored under. "
        f"{shape.statistic_note(results['human'])}"
    )
    return by_group("False positives on human texts", results["human"], columns, cells, note)


def _false_positives(share: ResultFigure | None, level: float) -> TableCell:
    cell = estimated(share)
    return replace(cell, mark="high") if share and share["low"] > level else cell


def quality(results: Results) -> list[Table]:
    rows, paper = shape.quality(results), Paper(results)
    beside = any(paper.find(row, "perplexity") for row in rows)
    diverse = any(row["diversity"] for row in rows)
    median = "perplexity, median"
    columns = [Column("texts"), *([Column(OURS, median), Column(PAPER, median)] if beside else [Column(median)])]
    columns += [Column(name) for name in ("mean", "distinct", "repetition", *(["diversity"] if diverse else []))]

    def cells(row: Quality) -> list[TableCell]:
        values = row["perplexity"]
        figures = [number(len(values)), _median(values)]
        figures += [papers(paper.find(row, "perplexity"), _tenth)] if beside else []
        figures.append(number(float(np.mean(values)) if values else None, ",.1f"))
        figures += [estimated(row["distinct"], three), estimated(row["repetition"], three)]
        return figures + ([estimated(row["diversity"], three)] if diverse else [])

    return by_group("Text quality", rows, columns, cells, _quality_note(rows, diverse))


def _quality_note(rows: Sequence[Quality], diverse: bool) -> str:
    oracles = ", ".join(dict.fromkeys(row["oracle"] for row in rows if row["oracle"]))
    embedders = ", ".join(dict.fromkeys(row["embedder"] for row in rows if row["diversity"]))
    note = (
        f"Perplexity{f' by {oracles}' if oracles else ''}, with the quartiles below the median. Distinct: the share of "
        "different word pairs. Repetition: the share of four-word sequences that occurred before in the text."
    )
    if not diverse:
        return note
    return (
        f"{note} Diversity: one minus the mean cosine similarity among several answers to one prompt, by {embedders}."
    )


def _tenth(value: float) -> str:
    return f"{value:,.1f}"


def _median(values: Sequence[float]) -> TableCell:
    """The median with the quartiles below."""
    if not values:
        return TableCell("–")
    low, median, high = (float(value) for value in np.quantile(values, (0.25, 0.5, 0.75)))
    return TableCell(_tenth(median), f"{_tenth(low)}–{_tenth(high)}", median)


def _plain(value: float) -> str:
    """Three significant digits, without an exponent."""
    digits = 2 if value == 0 else max(0, 2 - int(np.floor(np.log10(abs(value)))))
    return f"{value:,.{min(digits, 9)}f}"


def cost(results: Results) -> list[Table]:
    return by_group(
        "Cost of writing a marked text",
        results["cost"],
        [Column("texts"), Column("tokens per text"), Column("seconds per text")],
        lambda row: [
            number(row["texts"]),
            number(row["tokens"], ",.0f"),
            TableCell(_plain(row["seconds"]), value=row["seconds"]),
        ],
        "Means. Tokens: all sampled tokens, including those of candidates that were not chosen.",
    )  # fmt: skip


def runtime(results: Results) -> list[Table]:
    rows, paper = results["runtime"], Paper(results)
    if not rows:
        return []
    by_place = {(variant(row), row["sentences"]): row for row in rows}
    theirs = {place: paper.find(row, "seconds", {"n": row["sentences"]}) for place, row in by_place.items()}
    beside = {length for (_, length), figure in theirs.items() if figure}
    names, lengths = Names(rows), sorted({row["sentences"] for row in rows})
    columns = [*names.columns]
    for length in lengths:
        over = f"N = {length}"
        columns += [Column(OURS, over), Column(PAPER, over)] if length in beside else [Column(over)]
    lines = []
    for compared in variants(rows):
        cells = names.cells(compared)
        for length in lengths:
            row = by_place.get((compared, length))
            cells.append(TableCell(_plain(row["seconds"]), value=row["seconds"]) if row else TableCell())
            cells += [papers(theirs.get((compared, length)), _plain)] if length in beside else []
        lines.append(Line(cells))
    texts = max(row["texts"] for row in rows)
    note = "The time includes embedding." + f" Means of {texts} texts." * (texts > 1)
    return [Table("Seconds to detect one text of N sentences", columns, lines, note)]


_DATA = {"set": "data set", "short": "too short, left out", "repeats": "repeats, removed"}


def data(results: Results) -> list[Table]:
    rows = results["data"]
    names = list(dict.fromkeys(name for row in rows for name in row))
    columns = [Column(_DATA.get(name, name), number=name != "set") for name in names]
    lines = [
        Line([number(row[name]) if name != "set" else TableCell(str(row[name])) for name in names]) for row in rows
    ]
    return [Table("Texts used and left out", columns, lines)] if rows else []


def made(results: Results) -> list[Table]:
    """What the run recorded about itself: versions, machine, seed, time."""
    lines = [Line([TableCell(name), TableCell(_text(value))]) for name, value in results["made"].items()]
    columns = [Column("item", number=False), Column("value", number=False)]
    return [Table("Versions, machine and times", columns, lines)] if lines else []


def _text(value: object) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_text(item)}" for name, item in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(_text(item) for item in value)
    return f"{value:.4g}" if isinstance(value, float) else shown(value)
