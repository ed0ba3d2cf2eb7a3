"""The tables of detection rates, and a summary of them in a few sentences."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from alimark.lab.bench import shape
from alimark.lab.bench.metrics import PUBLIC_READINGS
from alimark.lab.bench.paper import Paper
from alimark.lab.bench.results import Rates, ResultFigure, Results, Row
from alimark.lab.bench.tables import (
    OURS,
    PAPER,
    Column,
    Line,
    Names,
    Table,
    TableCell,
    estimated,
    number,
    papers,
    percent,
    rank,
    rankable,
    three,
    with_misses,
)


@dataclass(frozen=True)
class Metric:
    key: str  # as in the paper's values, such as "auroc" or "tpr@0.01"
    title: str
    about: str

    def of(self, rates: Rates) -> ResultFigure | None:
        kind, _, level = self.key.partition("@")
        if kind == "auroc":
            return rates["auroc"]
        return rates["tpr"].get(level) if kind == "tpr" else rates["tpr_nominal"].get(level)

    def with_failures(self, row: Row) -> ResultFigure | None:
        """The figure with failed attacks as misses; None if none failed."""
        return self.of(row["with_failures"]) if row["with_failures"] else None

    def public_reading(self, row: Row) -> float | None:
        """The figure where the paper's public script evaluates what it prints under this name."""
        kind, _, level = self.key.partition("@")
        return row["tpr_public"].get(level) if kind == "tpr" else None

    def columns(self, label: str, over: str, beside: bool, public: bool) -> list[Column]:
        """The columns of the figures under one heading: ours, and where the paper has some, both readings and the paper's."""
        if not beside:
            return [Column(label, over)]
        reading = [f"ours at {100 * PUBLIC_READINGS[self.key.partition('@')[2]]:g}%"] if public else []
        return [Column(name, label) for name in (OURS, *reading, PAPER)]

    def cells(self, row: Row, paper: Paper, beside: bool, public: bool) -> list[TableCell]:
        """The figures of a row for these columns, with intervals and, where attacks failed, with failures as misses."""
        every, reading = self.with_failures(row), self.public_reading(row)
        ours = with_misses(estimated(self.of(row)), every["value"] if every else None)
        if not beside:
            return [ours]
        second = [TableCell() if reading is None else TableCell(percent(reading), value=reading)] if public else []
        return [ours, *second, papers(paper.find(row, self.key))]


def _tpr(level: str) -> Metric:
    share = f"{100 * float(level):g}%"
    return Metric(f"tpr@{level}", f"TPR@{share}", f"share of marked texts found at a false-positive rate of {share}")


AUROC = Metric("auroc", "AUROC", "share of pairs in which the marked text scores above the human one")
MAIN = (_tpr("0.01"), _tpr("0.05"), AUROC)


def metrics(rows: Sequence[Row]) -> list[Metric]:
    """The paper's three metrics, then other false-positive rates and nominal p-values; those without any value are left out."""
    levels = sorted({level for row in rows for level in row["tpr"]} - {"0.01", "0.05"}, key=float, reverse=True)
    nominal = sorted({level for row in rows for level in row["tpr_nominal"]}, key=float)
    every = [*MAIN, *map(_tpr, levels)]
    every += [Metric(f"p@{p}", f"p ≤ {p}", f"share of marked texts with a p-value of {p} or less") for p in nominal]
    return [metric for metric in every if any(metric.of(row) or metric.with_failures(row) for row in rows)]


# --- Notes

_BESIDE = " Figures of the paper are beside ours; small print says where their setting differs. The paper ranks by z."
_TWO_READINGS = (
    " The paper's public script evaluates the ROC curve at false-positive rates of 0.1% and 0.5%, by interpolation, and prints "
    "the results as TPR@1% and TPR@5%. Whether the paper's tables were made with it is not known, so ours are given for both "
    'readings: "ours" as named, "ours at 0.1%" and "ours at 0.5%" as that script evaluates them.'
)


def _beside_note(shown: Sequence[Metric], rows: Sequence[Row]) -> str:
    return _BESIDE + (_TWO_READINGS if any(_has_public(metric, rows) for metric in shown) else "")


def _has_public(metric: Metric, rows: Sequence[Row]) -> bool:
    return any(metric.public_reading(row) is not None for row in rows)


def answers_note(counts: Iterable[tuple[str, int, int, int]]) -> str:
    """The share of texts on which each attack failed, or for which its model gave an answer that was not used.

    Args:
        counts: Several of: the attack, its texts with failed ones, the failed ones, those with an answer that was not used.
    """
    sums: dict[str, list[int]] = {}
    for attack, *numbers in counts:
        sums[attack] = [a + b for a, b in zip(sums.get(attack, [0, 0, 0]), numbers, strict=True)]
    parts = [
        f"{attack}: {percent(rejected / texts)}% with rejected answers, {percent(failed / texts)}% failed"
        for attack, (texts, failed, rejected) in sums.items()
        if failed or rejected
    ]
    if not parts:
        return " No attack failed or rejected an answer."
    return f' Texts by attack: {"; ".join(parts)}. "all" in small print: with failed texts as misses.'


def _overview_note(metric: Metric, rows: Sequence[Row], beside: bool) -> str:
    texts = sorted({row["texts"] for row in rows})
    count = f"{texts[0]}" if len(texts) == 1 else f"{texts[0]} to {texts[-1]}"
    attacked = [row for row in rows if row["attack"] != shape.NO_ATTACK]
    counts = ((row["attack"], row["texts"] + row["failed"], row["failed"], row["retried"]) for row in attacked)
    note = f"In percent, with 95% intervals; {count} marked texts per figure. {shape.statistic_note(rows)}"
    return note + answers_note(counts) + (_beside_note([metric], rows) if beside else "")


# --- Tables


def _ranked(rows: Sequence[Row]) -> str:
    among = shape.variants(rows)
    if not _several_methods(among):
        return "settings"
    return "methods at the same settings" if any(other.grid for other in among) else "methods"


def _several_methods(among: Sequence[shape.Variant]) -> bool:
    return len({(other.method, other.detection) for other in among}) > 1


def _ranking_set(compared: shape.Variant, among: Sequence[shape.Variant]) -> tuple[tuple[str, str], ...]:
    """Several methods are ranked at the same point of the grid; a single method is ranked over the grid."""
    return compared.grid if _several_methods(among) else ()


def overview(results: Results) -> list[Table]:
    """One table for each of the paper's three metrics: a line per variant, a column per attack."""
    rows = results["rows"]
    if len(shape.variants(rows)) < 2:
        return []
    return [_matrix(results, metric) for metric in metrics(rows) if metric in MAIN]


def _matrix(results: Results, metric: Metric) -> Table:
    rows, paper = results["rows"], Paper(results)
    names, groups = Names(rows), shape.grouped(rows)
    attacks = {row["attack"]: row for row in rows}
    beside = {row["attack"] for row in rows if paper.find(row, metric.key)}
    public = _has_public(metric, rows)
    columns = [*names.columns]
    for attack, row in attacks.items():
        rate = row["rate"] is not None and attack not in beside
        label, over = (f"{row['rate']:g}", shape.family(row)) if rate else (shape.attack_label(attack), "")
        columns += metric.columns(label, over, attack in beside, public)
    lines, sets = [], []
    for group, members in groups.items():
        by_place = {(shape.variant(row), row["attack"]): row for row in members}
        for compared in shape.variants(members):
            cells = names.cells(compared)
            for attack in attacks:
                if row_of := by_place.get((compared, attack)):
                    cells += metric.cells(row_of, paper, attack in beside, public)
                else:
                    cells += [TableCell()] * len(metric.columns("", "", attack in beside, public))
            lines.append(Line(cells, shape.group_label(group, groups)))
            sets.append((group, _ranking_set(compared, shape.variants(members))))
    note = _overview_note(metric, rows, bool(beside))
    return rank(Table(f"{metric.title}: {metric.about}", columns, lines, note, "texts"), sets, _ranked(rows))


def details(results: Results) -> list[Table]:
    """Every figure of every row, in one table for each group of texts."""
    groups = shape.grouped(results["rows"])
    alone = len(shape.variants(results["rows"])) < 2
    return [
        _full(Paper(results), members, shape.group_label(group, groups), alone) for group, members in groups.items()
    ]


def _full(paper: Paper, rows: Sequence[Row], label: str, alone: bool) -> Table:
    """A line per attack or, if several variants are compared, per attack and variant."""
    order = list(dict.fromkeys(row["attack"] for row in rows))
    rows = sorted(rows, key=lambda row: order.index(row["attack"]))
    names, every = Names(rows), metrics(rows)
    beside = {metric for metric in every if any(paper.find(row, metric.key) for row in rows)}
    shown = [(metric, metric in beside, _has_public(metric, rows)) for metric in every]
    first = [Column("attack", number=False)] if alone else names.columns
    figures = [column for metric, *kinds in shown for column in metric.columns(metric.title, "", *kinds)]
    rest = {title: cell for title, cell in _REST.items() if title in _COUNTS or any(cell(row).text for row in rows)}
    lines = []
    for row in rows:
        attack = shape.attack_label(row["attack"])
        start = [TableCell(attack)] if alone else names.cells(shape.variant(row))
        rates = [cell for metric, *kinds in shown for cell in metric.cells(row, paper, *kinds)]
        lines.append(Line([*start, *rates, *(cell(row) for cell in rest.values())], "" if alone else attack))
    title = "Detection by attack" if alone else "All figures by attack"
    note = _FULL_NOTE.format(statistic=shape.statistic_note(rows)) + (_beside_note(every, rows) if beside else "")
    columns = [*first, *figures, *map(Column, rest)]
    table = Table(f"{title}: {label}" if label else title, columns, lines, note, "attack", folded=not alone)
    if alone:
        return table
    sets = [(row["attack"], _ranking_set(shape.variant(row), shape.variants(rows))) for row in rows]
    return rank(table, sets, _ranked(rows), [i for i in rankable(table) if i < len(first) + len(figures)])


_FULL_NOTE = (
    "Rates in percent, with 95% intervals. TPR: at the threshold that this share of the human scores reaches; p: at the "
    "nominal p-value. {statistic} Failed: texts on which the attack failed; rates leave them out, and "
    '"all" in small print counts them as misses. Rejected answers: the share of texts, failed ones included, for which the '
    "attack's model gave an answer that was not used."
)


def _delta(row: Row) -> TableCell:
    if not row["deltas"] or row["attack"] == shape.NO_ATTACK:
        return TableCell()
    return replace(number(float(np.mean(row["deltas"])), ".2f"), small=f"sd {np.std(row['deltas']):.2f}")


def _retried(row: Row) -> TableCell:
    every = row["texts"] + row["failed"]
    if row["attack"] == shape.NO_ATTACK or not every:
        return TableCell()
    return TableCell(f"{percent(row['retried'] / every)}%", value=row["retried"] / every)


_COUNTS = ("texts", "failed", "human scores")
_REST: dict[str, Callable[[Row], TableCell]] = {
    "texts": lambda row: number(row["texts"]),
    "failed": lambda row: number(row["failed"]),
    "human scores": lambda row: number(row["negatives"]),
    "rejected answers": _retried,
    "sentences kept": lambda row: number(row["kept"]) if row["kept"] else TableCell(),
    "similarity of meaning": lambda row: estimated(row["cosine"], three) if row["cosine"] else TableCell(),
    "sentences after / before": _delta,
}
"""The columns after the rates; those beyond the counts only where a row has something for them."""


# --- Summary


def summary(results: Results) -> str:
    """The detection rates in a few sentences."""
    rows = results["rows"]
    metric = next((metric for metric in metrics(rows) if metric in MAIN), None)
    if metric is None:
        return ""
    where = " and ".join(dict.fromkeys(row["data"] for row in rows if row["data"]))
    llms = " and ".join(dict.fromkeys(row["llm"] for row in rows if row["llm"]))
    start = f"Texts by {llms or 'the LLM'}" + (f" to prompts of {where}" if where else "") + "."
    return " ".join(part for part in (start, _clean(rows, metric), _under_attack(rows, metric)) if part)


def _means(rows: Sequence[Row], metric: Metric) -> dict[shape.Variant, ResultFigure]:
    """The mean of each variant over the groups and attacks that all variants have, the highest first.

    The attacks are on the same texts, so the ends of their intervals are averaged: this is the interval of a mean of rates that
    err in the same direction, and too wide for others.
    """
    rates: dict[shape.Variant, dict[tuple[str, str, str], ResultFigure]] = {}
    for row in rows:
        if estimate := metric.of(row):
            rates.setdefault(shape.variant(row), {})[row["llm"], row["data"], row["attack"]] = estimate
    shared = sorted(set.intersection(*(set(values) for values in rates.values()))) if rates else []
    means: dict[shape.Variant, ResultFigure] = {}
    for compared, values in rates.items() if shared else ():
        every = [values[key] for key in shared]
        value, low, high = (float(np.mean([rate[end] for rate in every])) for end in ("value", "low", "high"))
        means[compared] = {"value": value, "low": low, "high": high, "count": sum(rate["count"] for rate in every)}
    return dict(sorted(means.items(), key=lambda item: -item[1]["value"]))


def _clean(rows: Sequence[Row], metric: Metric) -> str:
    means = [
        mean["value"] for mean in _means([row for row in rows if row["attack"] == shape.NO_ATTACK], metric).values()
    ]
    ends = " to ".join(f"{percent(mean)}%" for mean in dict.fromkeys((means[-1], means[0]))) if means else ""
    return f"{metric.title} without attack: {ends}." if ends else ""


def _under_attack(rows: Sequence[Row], metric: Metric) -> str:
    hit = [row for row in rows if row["attack"] != shape.NO_ATTACK]
    means = list(_means(hit, metric).items())
    if not means:
        return ""
    first, best = means[0]
    if len(means) == 1:
        worst, attack = min((estimate["value"], row["attack"]) for row in hit if (estimate := metric.of(row)))
        return f"Under attack {percent(best['value'])}% on average; least under {attack} ({percent(worst)}%)."
    second, next_best = means[1]
    if best["low"] <= next_best["high"]:
        return (
            f"Under attack, {first.label} ({percent(best['value'])}%) and {second.label} "
            f"({percent(next_best['value'])}%) are found most on average; there are too few texts to rank them, "
            "since their intervals overlap."
        )
    return (
        f"Under attack, {first.label} is found most, on average in {percent(best['value'])}% of the texts; next comes "
        f"{second.label} ({percent(next_best['value'])}%)."
    )
