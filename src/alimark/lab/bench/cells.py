"""The parts of a report's tables: cells, columns and lines, how figures are formatted, and which are marked as the best."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from alimark.lab.bench.results import Estimate, JsonMapping
from alimark.lab.bench.shape import Variant, variants

Mark = Literal["", "best", "second", "high"]


@dataclass(frozen=True)
class Cell:
    text: str = ""
    small: str = ""
    """Small print below the text: an interval, or what a figure of the paper refers to."""
    value: float | None = None
    """The number that the text shows, to sort by."""
    mark: Mark = ""
    method: str = ""
    """The method that the cell names; its colour is shown beside it."""
    interval: tuple[float, float] | None = None
    """The 95% interval of the value, where it has one."""
    every: float | None = None
    """The value with failed texts as misses, where texts failed."""


@dataclass(frozen=True)
class Column:
    label: str
    over: str = ""
    """A heading above several neighbouring columns."""
    number: bool = True


@dataclass(frozen=True)
class Line:
    cells: Sequence[Cell]
    group: str = ""


@dataclass(frozen=True)
class Table:
    title: str
    columns: Sequence[Column]
    lines: Sequence[Line]
    note: str = ""
    grouped_by: str = ""
    """What the groups of lines are, for a heading."""
    ranked: str = ""
    """The things among which the best and the second are marked; empty if they are not."""
    unranked: str = ""
    """A sentence on the columns in which nothing is marked, because intervals overlap; empty if there are none."""
    folded: bool = False


Format = Callable[[float], str]


def percent(share: float) -> str:
    return f"{100 * share:.1f}"


def three(value: float) -> str:
    return f"{value:.3f}"


def estimated(estimate: Estimate | None, written: Format = percent) -> Cell:
    """A figure with its interval below."""
    if estimate is None:
        return Cell("–")
    low, high = estimate["low"], estimate["high"]
    interval = f"{written(low)}–{written(high)}"
    return Cell(written(estimate["value"]), interval, estimate["value"], interval=(low, high))


def with_misses(cell: Cell, every: float | None) -> Cell:
    """The cell with the share of all texts beside it, in which failed ones are misses; None if none failed."""
    if every is None:
        return cell
    return replace(cell, small="; ".join(filter(None, [cell.small, f"all {percent(every)}"])), every=every)


def counted(value: int) -> Cell:
    return Cell(f"{value:,}", value=value)


PAPER = "paper"
"""The heading of columns with the paper's figures."""

OURS = "ours"
"""The heading of the columns beside them."""


def papers(figure: tuple[float, str] | None, written: Format = percent) -> Cell:
    """A figure of the paper, and below it how its setting differs from ours."""
    return Cell(written(figure[0]), figure[1], figure[0]) if figure else Cell()


# --- Columns that name what a line is about


class Names:
    """The columns for the method and, if they differ between lines, its detection options and grid settings."""

    def __init__(self, rows: Iterable[JsonMapping]) -> None:
        self._variants = variants(rows)
        self._detection = any(variant.detection for variant in self._variants)
        self._grid = list(dict.fromkeys(name for variant in self._variants for name, _ in variant.grid))

    @property
    def columns(self) -> list[Column]:
        names = [*self._grid, "method", *(["detection"] if self._detection else [])]
        return [Column(name.replace("_", " "), number=False) for name in names]

    def cells(self, variant: Variant) -> list[Cell]:
        grid = dict(variant.grid)
        detection = [Cell(variant.detection)] if self._detection else []
        return [
            *(Cell(grid.get(name, "")) for name in self._grid),
            Cell(variant.method, method=variant.method),
            *detection,
        ]


# --- Best and second


def marked(cells: Sequence[Cell], sets: Sequence[Hashable]) -> list[Cell]:
    """Mark the best and the second among the cells of each set; equal digits share a rank.

    Nothing is marked where the intervals of neighbouring ranks overlap: there are too few texts to rank.
    """
    result = list(cells)
    for name in dict.fromkeys(sets):
        ranks = _ranks(cells, [i for i, other in enumerate(sets) if other == name])
        if len(ranks) < 2 or _overlap(cells, ranks, 1):
            continue
        marks: list[tuple[Mark, list[int]]] = [("best", ranks[0])]
        if len(ranks) == 2 or not _overlap(cells, ranks, 2):
            marks.append(("second", ranks[1]))
        for mark, places in marks:
            for i in places:
                result[i] = replace(cells[i], mark=mark)
    return result


def too_few_to_rank(cells: Sequence[Cell], sets: Sequence[Hashable]) -> bool:
    """Whether in some set the interval of the best overlaps that of another cell with other digits."""
    for name in dict.fromkeys(sets):
        ranks = _ranks(cells, [i for i, other in enumerate(sets) if other == name])
        if len(ranks) > 1 and _overlap(cells, ranks, 1):
            return True
    return False


def _ranks(cells: Sequence[Cell], places: Sequence[int]) -> list[list[int]]:
    """The places of the cells with a value, the highest first; cells with equal digits are in one list."""
    by_value: dict[float, list[int]] = {}
    for i in places:
        if cells[i].value is not None:
            by_value.setdefault(float(cells[i].text), []).append(i)
    return [by_value[value] for value in sorted(by_value, reverse=True)]


def _overlap(cells: Sequence[Cell], ranks: Sequence[Sequence[int]], count: int) -> bool:
    """Whether an interval of the first ranks overlaps one of the others. The paper's figures have no intervals."""
    upper = [interval for rank in ranks[:count] for i in rank if (interval := cells[i].interval)]
    lower = [interval for rank in ranks[count:] for i in rank if (interval := cells[i].interval)]
    return bool(upper and lower) and min(low for low, _ in upper) <= max(high for _, high in lower)


def mark_columns(lines: Sequence[Line], sets: Sequence[Hashable], columns: Iterable[int]) -> list[Line]:
    """Mark the best and the second in each of these columns; `sets` names the set of each line."""
    rows = [list(line.cells) for line in lines]
    for column in columns:
        for row, cell in zip(rows, marked([row[column] for row in rows], sets)):
            row[column] = cell
    return [Line(row, line.group) for row, line in zip(rows, lines)]


def ranked_places(lines: Sequence[Line], columns: Sequence[Column]) -> list[int]:
    """The columns in which the best is marked: those of the paper's figures, and those whose figures have intervals."""
    places = range(len(columns))
    return [i for i in places if columns[i].label == PAPER or any(line.cells[i].interval for line in lines)]


def unranked_note(
    lines: Sequence[Line], sets: Sequence[Hashable], columns: Sequence[Column], places: Sequence[int]
) -> str:
    """A sentence that names the columns with too few texts to rank; empty if there are none."""
    ranked = [i for i in places if columns[i].label != PAPER]
    unranked = [i for i in ranked if too_few_to_rank([line.cells[i] for line in lines], sets)]
    if not unranked:
        return ""
    names = [columns[i].over if columns[i].label == OURS else f"{columns[i].over} {columns[i].label}" for i in unranked]
    where = "in every column" if len(unranked) == len(ranked) > 1 else ", ".join(name.strip() for name in names)
    return f"Too few texts to rank, since the interval of the best overlaps another: {where}."
