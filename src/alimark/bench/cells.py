"""The parts of a report's tables: cells, columns and lines, how figures are formatted, and which are marked as the best."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from alimark.bench.results import Estimate, JsonMapping
from alimark.bench.shape import Variant, variants

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
    interval = f"{written(estimate['low'])}–{written(estimate['high'])}"
    return Cell(written(estimate["value"]), interval, estimate["value"])


def counted(value: int) -> Cell:
    return Cell(f"{value:,}", value=value)


PAPER = "paper"
"""The heading of columns with the paper's figures."""


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
    """Mark the best and the second among the cells of each set; equal digits share a rank."""
    result = list(cells)
    for name in dict.fromkeys(sets):
        places = [i for i, other in enumerate(sets) if other == name and cells[i].value is not None]
        ranks = sorted({float(cells[i].text) for i in places}, reverse=True)
        marks: dict[float, Mark] = dict(zip(ranks, ("best", "second")))
        for i in places if len(ranks) > 1 else ():
            result[i] = replace(cells[i], mark=marks.get(float(cells[i].text), ""))
    return result


def mark_columns(lines: Sequence[Line], sets: Sequence[Hashable], columns: Iterable[int]) -> list[Line]:
    """Mark the best and the second in each of these columns; `sets` names the set of each line."""
    rows = [list(line.cells) for line in lines]
    for column in columns:
        for row, cell in zip(rows, marked([row[column] for row in rows], sets)):
            row[column] = cell
    return [Line(row, line.group) for row, line in zip(rows, lines)]
