"""The tables of a report, as cells: what a page and a Markdown file both show."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeVar

import numpy as np

from alimark.bench import shape
from alimark.bench.results import Estimate, Human, Quality, Results, Row
from alimark.bench.shape import (
    NO_ATTACK,
    Paper,
    Variant,
    attack_label,
    family,
    group_label,
    grouped,
    shown,
    variant,
    variants,
)

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


def _three(value: float) -> str:
    return f"{value:.3f}"


def _plain(value: float) -> str:
    """Three digits that count, without an exponent."""
    digits = 2 if value == 0 else max(0, 2 - int(np.floor(np.log10(abs(value)))))
    return f"{value:,.{min(digits, 9)}f}"


def _estimate(found: Estimate | None, written: Range = percent) -> Cell:
    if found is None:
        return Cell("–")
    return Cell(written(found["value"]), f"{written(found['low'])}–{written(found['high'])}", found["value"])


def _count(value: int) -> Cell:
    return Cell(f"{value:,}", value=value)


# --- Which rates, and how they are called


@dataclass(frozen=True)
class Metric:
    key: str
    """As in the paper's values: "auroc", "tpr@0.01"."""
    title: str
    about: str

    def of(self, row: Row) -> Estimate | None:
        kind, _, level = self.key.partition("@")
        if kind == "auroc":
            return row["auroc"]
        return row["tpr"].get(level) if kind == "tpr" else row["tpr_nominal"].get(level)


def _tpr(level: str) -> Metric:
    share = f"{100 * float(level):g}%"
    return Metric(f"tpr@{level}", f"TPR@{share}", f"marked texts found where {share} of the human texts are found, too")


AUROC = Metric("auroc", "AUROC", "how often a marked text scores above a human one")
MAIN = (_tpr("0.01"), _tpr("0.05"), AUROC)


def metrics(rows: Sequence[Row]) -> list[Metric]:
    """The paper's three, then other false-positive rates and nominal p-values; those that no row has are left out."""
    levels = sorted({level for row in rows for level in row["tpr"]} - {"0.01", "0.05"}, key=float, reverse=True)
    nominal = sorted({level for row in rows for level in row["tpr_nominal"]}, key=float)
    every = [*MAIN, *map(_tpr, levels)]
    every += [Metric(f"p@{p}", f"p ≤ {p}", f"marked texts with a p-value of {p} or less") for p in nominal]
    return [metric for metric in every if any(metric.of(row) for row in rows)]


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


def _rivals(own: Variant, among: Sequence[Variant]) -> tuple[tuple[str, str], ...]:
    """Methods are compared at the same point of the grid; one method alone, over the grid."""
    return own.grid if len({(one.method, one.detection) for one in among}) > 1 else ()


def _mark_columns(lines: Sequence[Line], sets: Sequence[Any], columns: Iterable[int]) -> list[Line]:
    rows = [list(line.cells) for line in lines]
    for column in columns:
        for row, cell in zip(rows, marked([row[column] for row in rows], sets)):
            row[column] = cell
    return [Line(row, line.group) for row, line in zip(rows, lines)]


# --- Detection


def _beside(found: tuple[float, str] | None, written: Range = percent) -> Cell:
    return Cell(written(found[0]), found[1], found[0]) if found else Cell()


_BESIDE = " The paper's figures stand beside ours, and below them what they are of where it is not the same."


def _ranked(rows: Sequence[Row]) -> str:
    among = variants(rows)
    if len({(one.method, one.detection) for one in among}) < 2:
        return "settings"
    return "methods at the same settings" if any(one.grid for one in among) else "methods"


def _note(rows: Sequence[Row], beside: bool) -> str:
    texts = sorted({row["texts"] for row in rows})
    count = f"{texts[0]}" if len(texts) == 1 else f"{texts[0]} to {texts[-1]}"
    return f"In percent, with intervals at 95%; {count} marked texts a figure.{_BESIDE if beside else ''}"


def overview(results: Results) -> list[Table]:
    """Of the paper's three rates a table each: what is compared down, the attacks across."""
    rows = results["rows"]
    if len(variants(rows)) < 2:
        return []
    return [_matrix(results, metric) for metric in metrics(rows) if metric in MAIN]


def _matrix(results: Results, metric: Metric) -> Table:
    rows, paper = results["rows"], Paper(results)
    names, groups = Names(rows), grouped(rows)
    attacks = {row["attack"]: row for row in rows}
    beside = {row["attack"] for row in rows if paper.find(row, metric.key)}
    columns = [*names.columns, *(column for row in attacks.values() for column in _attack_columns(row, beside))]
    lines, sets = [], []
    for own, members in groups.items():
        at = {(variant(row), row["attack"]): row for row in members}
        for one in variants(members):
            cells = names.cells(one)
            for attack in attacks:
                row = at.get((one, attack))
                cells.append(_estimate(metric.of(row)) if row else Cell())
                if attack in beside:
                    cells.append(_beside(paper.find(row, metric.key)) if row else Cell())
            lines.append(Line(cells, group_label(own, groups)))
            sets.append((own, _rivals(one, variants(members))))
    lines = _mark_columns(lines, sets, range(len(names.columns), len(columns)))
    title = f"{metric.title}: {metric.about}"
    return Table(title, columns, lines, _note(rows, bool(beside)), "texts", _ranked(rows))


PAPER = "paper"


def _attack_columns(row: Row, beside: set[str]) -> list[Column]:
    if row["attack"] in beside:
        return [Column("ours", attack_label(row["attack"])), Column(PAPER, attack_label(row["attack"]))]
    if row["rate"] is None:
        return [Column(attack_label(row["attack"]))]
    return [Column(f"{row['rate']:g}", family(row))]


def details(results: Results) -> list[Table]:
    """Every figure of every row, a table for each group of texts."""
    groups = grouped(results["rows"])
    alone = len(variants(results["rows"])) < 2
    return [_full(results, members, group_label(own, groups), alone) for own, members in groups.items()]


_COUNTS = {"texts": "texts", "failed": "failed", "negatives": "human scores"}


def _full(results: Results, rows: Sequence[Row], label: str, alone: bool) -> Table:
    """Attacks down; where several variants are compared, these within each attack."""
    order = list(dict.fromkeys(row["attack"] for row in rows))
    rows = sorted(rows, key=lambda row: order.index(row["attack"]))
    names = Names(rows)
    first = [Column("attack", number=False)] if alone else names.columns
    rates, rate_cells, note = _rates(Paper(results), rows)
    rest, rest_cells = _rest(rows)
    lines = []
    for row in rows:
        attack = attack_label(row["attack"])
        start = [Cell(attack)] if alone else names.cells(variant(row))
        lines.append(Line([*start, *rate_cells(row), *rest_cells(row)], "" if alone else attack))
    if not alone:
        sets = [(row["attack"], _rivals(variant(row), variants(rows))) for row in rows]
        lines = _mark_columns(lines, sets, range(len(first), len(first) + len(rates)))
    title = "Detection by attack" if alone else "Every figure, attack by attack"
    return Table(
        f"{title}: {label}" if label else title, [*first, *rates, *rest], lines, note, "attack",
        "" if alone else _ranked(rows), folded=not alone,
    )  # fmt: skip


_Cells = Callable[[Row], list[Cell]]


def _rates(paper: Paper, rows: Sequence[Row]) -> tuple[list[Column], _Cells, str]:
    every = metrics(rows)
    beside = {metric.key for metric in every if any(paper.find(row, metric.key) for row in rows)}
    columns = []
    for metric in every:
        pair = [Column("ours", metric.title), Column(PAPER, metric.title)]
        columns += pair if metric.key in beside else [Column(metric.title)]

    def cells(row: Row) -> list[Cell]:
        found = []
        for metric in every:
            found.append(_estimate(metric.of(row)))
            found += [_beside(paper.find(row, metric.key))] if metric.key in beside else []
        return found

    note = (
        "Rates in percent, with intervals at 95%. TPR: at the score that this share of the human scores reaches; p: at the "
        "nominal p-value. Failed: texts that the attack gave up or spoilt, counted in no rate."
    )
    return columns, cells, note + (_BESIDE if beside else "")


def _rest(rows: Sequence[Row]) -> tuple[list[Column], _Cells]:
    extras = {title: cell for title, cell in _EXTRAS.items() if any(cell(row).text for row in rows)}
    columns = [Column(title) for title in (*_COUNTS.values(), *extras)]

    def cells(row: Row) -> list[Cell]:
        counts = [_count(row[name]) for name in _COUNTS]  # type: ignore[literal-required]
        return [*counts, *(cell(row) for cell in extras.values())]

    return columns, cells


def _cosine(row: Row) -> Cell:
    return _estimate(row["cosine"], _three) if row["cosine"] else Cell()


def _delta(row: Row) -> Cell:
    if not row["deltas"] or row["attack"] == NO_ATTACK:
        return Cell()
    mean = float(np.mean(row["deltas"]))
    return Cell(f"{mean:.2f}", f"sd {np.std(row['deltas']):.2f}", mean)


_EXTRAS: dict[str, Callable[[Row], Cell]] = {"meaning kept": _cosine, "sentences after / before": _delta}


# --- The other tables


Where = TypeVar("Where", bound=Mapping[str, Any])


def _by_group(
    title: str,
    rows: Sequence[Where],
    columns: Sequence[Column],
    cells: Callable[[Where], list[Cell]],
    note: str = "",
) -> list[Table]:
    """A line a row, under the group of texts that it is about; no table without rows."""
    names, groups = Names(rows), grouped(rows)
    lines = [
        Line([*names.cells(variant(row)), *cells(row)], group_label(own, groups))
        for own, members in groups.items()
        for row in members
    ]
    return [Table(title, [*names.columns, *columns], lines, note, "texts")] if rows else []


def human(results: Results) -> list[Table]:
    levels = sorted({level for row in results["human"] for level in row["false_positives"]}, key=float)
    columns = [Column("texts"), Column("keys"), Column("mean score")]
    columns += [Column(f"p ≤ {level}") for level in levels]

    def cells(row: Human) -> list[Cell]:
        mean = float(np.mean(row["scores"])) if row["scores"] else None
        found = [_false(row["false_positives"].get(level), float(level)) for level in levels]
        average = Cell("–") if mean is None else Cell(f"{mean:.2f}", value=mean)
        return [_count(row["texts"]), _count(row["keys"]), average, *found]

    note = (
        "Share of human scores at or below each p-value, in percent, with intervals at 95%: an honest p-value is reached as "
        "often as it says. ▲: the whole interval lies above it. Keys: fresh keys that each text was scored under."
    )
    return _by_group("Human texts taken for marked ones", results["human"], columns, cells, note)


def _false(found: Estimate | None, level: float) -> Cell:
    cell = _estimate(found)
    return replace(cell, mark="high") if found and found["low"] > level else cell


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
        found = [_count(len(row["perplexity"])), _middle(row["perplexity"])]
        found += [_beside(paper.find(row, "perplexity"), _tenth)] if beside else []
        mean = float(np.mean(row["perplexity"])) if row["perplexity"] else None
        found.append(Cell("–") if mean is None else Cell(_tenth(mean), value=mean))
        found += [_estimate(row["distinct"], _three), _estimate(row["repetition"], _three)]
        return found + ([_estimate(row["diversity"], _three)] if diverse else [])

    return _by_group("How the texts read", rows, columns, cells, _quality_note(rows, diverse))


def _quality_note(rows: Sequence[Quality], diverse: bool) -> str:
    oracles = ", ".join(dict.fromkeys(row["oracle"] for row in rows if row["oracle"]))
    note = (
        f"Perplexity{f' by {oracles}' if oracles else ''}, below the median its quartiles. Distinct: the share of different "
        "word pairs. Repetition: the share of four-word runs that came before in the text."
    )
    return note + (" Diversity: one minus the mean cosine among several answers to one prompt." if diverse else "")


def _tenth(value: float) -> str:
    return f"{value:,.1f}"


def _middle(values: Sequence[float]) -> Cell:
    if not values:
        return Cell("–")
    low, middle, high = (float(one) for one in np.quantile(values, (0.25, 0.5, 0.75)))
    return Cell(_tenth(middle), f"{_tenth(low)}–{_tenth(high)}", middle)


def cost(results: Results) -> list[Table]:
    columns = [Column("texts"), Column("tokens a text"), Column("seconds a text")]
    return _by_group(
        "What a marked text took to write",
        results["cost"],
        columns,
        lambda row: [_count(row["texts"]), Cell(f"{row['tokens']:,.0f}", value=row["tokens"]),
                     Cell(_plain(row["seconds"]), value=row["seconds"])],
        "Means. Tokens: all that were sampled, those of candidates not taken included.",
    )  # fmt: skip


def runtime(results: Results) -> list[Table]:
    rows, paper = results["runtime"], Paper(results)
    if not rows:
        return []
    lengths = sorted({row["sentences"] for row in rows})
    found = {(variant(row), row["sentences"]): row for row in rows}
    theirs = {where: paper.find(row, "seconds", {"n": row["sentences"]}) for where, row in found.items()}
    beside = {length for (_, length), figure in theirs.items() if figure}
    names = Names(rows)
    columns = [*names.columns]
    for length in lengths:
        over = f"N = {length}"
        columns += [Column("ours", over), Column(PAPER, over)] if length in beside else [Column(over)]
    lines = []
    for one in variants(rows):
        cells = names.cells(one)
        for length in lengths:
            row = found.get((one, length))
            cells.append(Cell(_plain(row["seconds"]), value=row["seconds"]) if row else Cell())
            cells += [_beside(theirs.get((one, length)), _plain)] if length in beside else []
        lines.append(Line(cells))
    return [Table("Seconds to detect one text of N sentences", columns, lines, "Embedding included.")]


_DATA = {"set": "data set", "short": "too short, left out", "repeats": "repeats, removed"}


def data(results: Results) -> list[Table]:
    rows = results["data"]
    names = list(dict.fromkeys(name for row in rows for name in row))
    numbers = {name: all(isinstance(row.get(name, 0), int | float) for row in rows) for name in names}
    columns = [Column(_DATA.get(name, name), number=numbers[name]) for name in names]
    lines = [Line([_datum(row.get(name)) for name in names]) for row in rows]
    return [Table("Texts that were used, and those that were not", columns, lines)] if rows and names else []


def _datum(value: Any) -> Cell:
    if isinstance(value, int) and not isinstance(value, bool):
        return _count(value)
    return Cell("" if value is None else shown(value))


def made(results: Results) -> list[Table]:
    """Versions, machine, seeds: whatever the run wrote down."""
    lines = [Line([Cell(name), Cell(_told(value))]) for name, value in results["made"].items()]
    columns = [Column("what", number=False), Column("as it was", number=False)]
    return [Table("What made this", columns, lines)] if lines else []


def _told(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_told(one)}" for name, one in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(_told(one) for one in value)
    return f"{value:.4g}" if isinstance(value, float) else shown(value)


# --- In a sentence


def summary(results: Results) -> str:
    """What a hurried reader takes along."""
    rows = results["rows"]
    at = next((metric for metric in metrics(rows) if metric in MAIN), None)
    if at is None:
        return ""
    where = " and ".join(dict.fromkeys(row["data"] for row in rows if row["data"]))
    llms = " and ".join(dict.fromkeys(row["llm"] for row in rows if row["llm"]))
    start = f"Texts by {llms or 'the LLM'}" + (f" to prompts of {where}" if where else "") + "."
    return " ".join(part for part in (start, _clean(rows, at), _under_attack(rows, at)) if part)


def _means(rows: Sequence[Row], metric: Metric) -> dict[Variant, float]:
    """Highest first, over those groups and attacks that every variant has."""
    found: dict[Variant, dict[Any, float]] = {}
    for row in rows:
        if estimate := metric.of(row):
            found.setdefault(variant(row), {})[row["llm"], row["data"], row["attack"]] = estimate["value"]
    shared = set.intersection(*(set(values) for values in found.values())) if found else set()
    means = {one: float(np.mean([values[key] for key in sorted(shared)])) for one, values in found.items() if shared}
    return dict(sorted(means.items(), key=lambda item: -item[1]))


def _clean(rows: Sequence[Row], metric: Metric) -> str:
    means = _means([row for row in rows if row["attack"] == NO_ATTACK], metric)
    if not means:
        return ""
    values = list(means.values())
    if len(values) == 1:
        return f"{metric.title} without attack: {percent(values[0])}%."
    return f"{metric.title} without attack: {percent(values[-1])}% to {percent(values[0])}%."


def _under_attack(rows: Sequence[Row], metric: Metric) -> str:
    hit = [row for row in rows if row["attack"] != NO_ATTACK]
    means = _means(hit, metric)
    if not means:
        return ""
    if len(means) > 1:
        (first, high), (second, next_high) = list(means.items())[:2]
        return (
            f"Under attack, {first.label} is found most, on average in {percent(high)}% of the texts; next comes "
            f"{second.label} ({percent(next_high)}%)."
        )
    worst = min((estimate["value"], row["attack"]) for row in hit if (estimate := metric.of(row)))
    return f"Under attack {percent(*means.values())}% on average; least under {worst[1]} ({percent(worst[0])}%)."
