"""The tables of a report, except those of detection rates, which are in rates.py."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

import numpy as np

from alimark.lab.bench import shape
from alimark.lab.bench.cells import PAPER, Cell, Column, Line, Names, Table, counted, estimated, papers, three
from alimark.lab.bench.results import Estimate, Human, JsonMapping, Quality, Results
from alimark.lab.bench.shape import Paper, group_label, grouped, shown, variant, variants

RowLike = TypeVar("RowLike", bound=JsonMapping)


def _by_group(
    title: str,
    rows: Sequence[RowLike],
    columns: Sequence[Column],
    cells: Callable[[RowLike], list[Cell]],
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
    columns = [Column("texts"), Column("keys"), Column("mean statistic")]
    columns += [Column(f"p ≤ {level}") for level in levels]

    def cells(row: Human) -> list[Cell]:
        mean = float(np.mean(row["scores"])) if row["scores"] else None
        shares = [_false_positives(row["false_positives"].get(level), float(level)) for level in levels]
        average = Cell("–") if mean is None else Cell(f"{mean:.2f}", value=mean)
        return [counted(row["texts"]), counted(row["keys"]), average, *shares]

    note = (
        "Share of human scores at or below each p-value, in percent, with 95% intervals. It should not exceed the p-value. "
        "▲: the whole interval lies above the p-value. Keys: the number of fresh keys that each text was scored under. "
        f"{shape.statistic_note(results['human'])}"
    )
    return _by_group("False positives on human texts", results["human"], columns, cells, note)


def _false_positives(share: Estimate | None, level: float) -> Cell:
    cell = estimated(share)
    return replace(cell, mark="high") if share and share["low"] > level else cell


def quality(results: Results) -> list[Table]:
    rows, paper = shape.quality(results), Paper(results)
    beside = any(paper.find(row, "perplexity") for row in rows)
    diverse = any(row["diversity"] for row in rows)
    over = "perplexity, median" if beside else ""
    columns = [Column("texts"), Column("ours" if beside else "perplexity, median", over)]
    columns += [Column(PAPER, over)] if beside else []
    columns += [Column("mean"), Column("distinct"), Column("repetition")]
    columns += [Column("diversity")] if diverse else []

    def cells(row: Quality) -> list[Cell]:
        figures = [counted(len(row["perplexity"])), _median(row["perplexity"])]
        figures += [papers(paper.find(row, "perplexity"), _tenth)] if beside else []
        mean = float(np.mean(row["perplexity"])) if row["perplexity"] else None
        figures.append(Cell("–") if mean is None else Cell(_tenth(mean), value=mean))
        figures += [estimated(row["distinct"], three), estimated(row["repetition"], three)]
        return figures + ([estimated(row["diversity"], three)] if diverse else [])

    return _by_group("Text quality", rows, columns, cells, _quality_note(rows, diverse))


def _quality_note(rows: Sequence[Quality], diverse: bool) -> str:
    oracles = ", ".join(dict.fromkeys(row["oracle"] for row in rows if row["oracle"]))
    note = (
        f"Perplexity{f' by {oracles}' if oracles else ''}, with the quartiles below the median. Distinct: the share of "
        "different word pairs. Repetition: the share of four-word sequences that occurred before in the text."
    )
    if not diverse:
        return note
    embedders = ", ".join(dict.fromkeys(row["embedder"] for row in rows if row["diversity"] and "embedder" in row))
    by = f", by {embedders}" if embedders else ""
    return f"{note} Diversity: one minus the mean cosine similarity among several answers to one prompt{by}."


def _tenth(value: float) -> str:
    return f"{value:,.1f}"


def _median(values: Sequence[float]) -> Cell:
    """The median with the quartiles below."""
    if not values:
        return Cell("–")
    low, median, high = (float(value) for value in np.quantile(values, (0.25, 0.5, 0.75)))
    return Cell(_tenth(median), f"{_tenth(low)}–{_tenth(high)}", median)


def _plain(value: float) -> str:
    """Three significant digits, without an exponent."""
    digits = 2 if value == 0 else max(0, 2 - int(np.floor(np.log10(abs(value)))))
    return f"{value:,.{min(digits, 9)}f}"


def cost(results: Results) -> list[Table]:
    columns = [Column("texts"), Column("tokens per text"), Column("seconds per text")]
    return _by_group(
        "Cost of writing a marked text",
        results["cost"],
        columns,
        lambda row: [counted(row["texts"]), Cell(f"{row['tokens']:,.0f}", value=row["tokens"]),
                     Cell(_plain(row["seconds"]), value=row["seconds"])],
        "Means. Tokens: all sampled tokens, including those of candidates that were not chosen.",
    )  # fmt: skip


def runtime(results: Results) -> list[Table]:
    rows, paper = results["runtime"], Paper(results)
    if not rows:
        return []
    lengths = sorted({row["sentences"] for row in rows})
    by_place = {(variant(row), row["sentences"]): row for row in rows}
    theirs = {place: paper.find(row, "seconds", {"n": row["sentences"]}) for place, row in by_place.items()}
    beside = {length for (_, length), figure in theirs.items() if figure}
    names = Names(rows)
    columns = [*names.columns]
    for length in lengths:
        over = f"N = {length}"
        columns += [Column("ours", over), Column(PAPER, over)] if length in beside else [Column(over)]
    lines = []
    for compared in variants(rows):
        cells = names.cells(compared)
        for length in lengths:
            row = by_place.get((compared, length))
            cells.append(Cell(_plain(row["seconds"]), value=row["seconds"]) if row else Cell())
            cells += [papers(theirs.get((compared, length)), _plain)] if length in beside else []
        lines.append(Line(cells))
    texts = max(row.get("texts", 1) for row in rows)
    note = "The time includes embedding." + f" Means of {texts} texts." * (texts > 1)
    return [Table("Seconds to detect one text of N sentences", columns, lines, note)]


_DATA = {"set": "data set", "short": "too short, left out", "repeats": "repeats, removed"}


def data(results: Results) -> list[Table]:
    rows = results["data"]
    names = list(dict.fromkeys(name for row in rows for name in row))
    numbers = {name: all(isinstance(row.get(name, 0), int | float) for row in rows) for name in names}
    columns = [Column(_DATA.get(name, name), number=numbers[name]) for name in names]
    lines = [Line([_datum(row.get(name)) for name in names]) for row in rows]
    return [Table("Texts used and left out", columns, lines)] if rows and names else []


def _datum(value: object) -> Cell:
    if isinstance(value, int) and not isinstance(value, bool):
        return counted(value)
    return Cell("" if value is None else shown(value))


def made(results: Results) -> list[Table]:
    """What the run recorded about itself: versions, machine, seed, time."""
    lines = [Line([Cell(name), Cell(_text(value))]) for name, value in results["made"].items()]
    columns = [Column("item", number=False), Column("value", number=False)]
    return [Table("Versions, machine and times", columns, lines)] if lines else []


def _text(value: object) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_text(item)}" for name, item in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(_text(item) for item in value)
    return f"{value:.4g}" if isinstance(value, float) else shown(value)
