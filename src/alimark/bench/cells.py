"""What the tables of a report are made of: cells, columns and lines, how figures are written, and which are the best."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from alimark.bench.results import Estimate
from alimark.bench.shape import Variant, variants

Mark = Literal["", "best", "second", "high"]


@dataclass(frozen=True)
class Cell:
    text: str = ""
    small: str = ""
    """Small print below: an interval, or what a figure is of."""
    value: float | None = None
    """The number behind the text, to sort by."""
    mark: Mark = ""
    method: str = ""
    """Where the cell names a method, whose colour stands beside it."""


@dataclass(frozen=True)
class Column:
    label: str
    over: str = ""
    """A heading that neighbours share."""
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
    """What the lines' groups are."""
    ranked: str = ""
    """Among what best and second are marked."""
    folded: bool = False


Range = Callable[[float], str]


def percent(share: float) -> str:
    return f"{100 * share:.1f}"


def three(value: float) -> str:
    return f"{value:.3f}"


def estimated(found: Estimate | None, written: Range = percent) -> Cell:
    if found is None:
        return Cell("–")
    return Cell(written(found["value"]), f"{written(found['low'])}–{written(found['high'])}", found["value"])


def counted(value: int) -> Cell:
    return Cell(f"{value:,}", value=value)


PAPER = "paper"
"""The heading of what the paper has in the same place."""


def papers(found: tuple[float, str] | None, written: Range = percent) -> Cell:
    """The paper's figure, and below it what it is of."""
    return Cell(written(found[0]), found[1], found[0]) if found else Cell()


# --- Columns that say what a line is about


class Names:
    """The method, and beside it only what differs: detection options and settings of the grid."""

    def __init__(self, rows: Iterable[Mapping[str, Any]]) -> None:
        self._variants = variants(rows)
        self._detection = any(one.detection for one in self._variants)
        self._grid = list(dict.fromkeys(name for one in self._variants for name, _ in one.grid))

    @property
    def columns(self) -> list[Column]:
        names = [*self._grid, "method", *(["detection"] if self._detection else [])]
        return [Column(name.replace("_", " "), number=False) for name in names]

    def cells(self, own: Variant) -> list[Cell]:
        grid = dict(own.grid)
        detection = [Cell(own.detection)] if self._detection else []
        return [*(Cell(grid.get(name, "")) for name in self._grid), Cell(own.method, method=own.method), *detection]


# --- Best and second


def marked(cells: Sequence[Cell], sets: Sequence[Any]) -> list[Cell]:
    """Best and second among the cells of each set, as far as the digits shown tell them apart."""
    done = list(cells)
    for own in dict.fromkeys(sets):
        places = [i for i, one in enumerate(sets) if one == own and cells[i].value is not None]
        ranks = sorted({float(cells[i].text) for i in places}, reverse=True)
        marks: dict[float, Mark] = dict(zip(ranks, ("best", "second")))
        for i in places if len(ranks) > 1 else ():
            done[i] = replace(cells[i], mark=marks.get(float(cells[i].text), ""))
    return done


def mark_columns(lines: Sequence[Line], sets: Sequence[Any], columns: Iterable[int]) -> list[Line]:
    rows = [list(line.cells) for line in lines]
    for column in columns:
        for row, cell in zip(rows, marked([row[column] for row in rows], sets)):
            row[column] = cell
    return [Line(row, line.group) for row, line in zip(rows, lines)]
