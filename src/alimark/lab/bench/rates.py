"""Detection rates: the metrics, their tables, and a summary in a few sentences."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from alimark.lab.bench.cells import (
    OURS,
    PAPER,
    Cell,
    Column,
    Line,
    Names,
    Table,
    counted,
    estimated,
    mark_columns,
    papers,
    percent,
    ranked_places,
    three,
    unranked_note,
    with_misses,
)
from alimark.lab.bench.metrics import PUBLIC_READINGS
from alimark.lab.bench.results import Estimate, Results, Row, WithFailures
from alimark.lab.bench.shape import (
    NO_ATTACK,
    Paper,
    Variant,
    attack_label,
    family,
    group_label,
    grouped,
    statistic_note,
    variant,
    variants,
)


@dataclass(frozen=True)
class Metric:
    key: str
    """As in the paper's values, such as "auroc" or "tpr@0.01"."""
    title: str
    about: str

    def of(self, row: Row) -> Estimate | None:
        return self._of(row)

    def with_failures(self, row: Row) -> Estimate | None:
        """The figure with failed attacks as misses; None if none failed."""
        rates = row.get("with_failures")
        return self._of(rates) if rates else None

    def _of(self, rates: Row | WithFailures) -> Estimate | None:
        kind, _, level = self.key.partition("@")
        if kind == "auroc":
            return rates["auroc"]
        return rates["tpr"].get(level) if kind == "tpr" else rates["tpr_nominal"].get(level)

    def public_reading(self, row: Row) -> float | None:
        """The figure where the paper's public script evaluates what it prints under this name."""
        kind, _, level = self.key.partition("@")
        return row.get("tpr_public", {}).get(level) if kind == "tpr" else None

    def cell(self, row: Row) -> Cell:
        """The figure with its interval and, where attacks failed, the figure with failures as misses."""
        cell, every = estimated(self.of(row)), self.with_failures(row)
        return with_misses(cell, every["value"] if every else None)


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


# --- Tables

_BESIDE = " Figures of the paper are beside ours; small print says where their setting differs. The paper ranks by z."
_TWO_READINGS = (
    " The paper's public script evaluates the ROC curve at false-positive rates of 0.1% and 0.5%, by interpolation, and prints "
    "the results as TPR@1% and TPR@5%. Whether the paper's tables were made with it is not known, so ours are given for both "
    'readings: "ours" as named, "ours at 0.1%" and "ours at 0.5%" as that script evaluates them.'
)


def _public_label(metric: Metric) -> str:
    """The heading of our figures as the public script evaluates them."""
    return f"ours at {100 * PUBLIC_READINGS[metric.key.partition('@')[2]]:g}%"


def _beside_note(shown: Sequence[Metric], rows: Sequence[Row]) -> str:
    two_readings = any(metric.public_reading(row) is not None for metric in shown for row in rows)
    return _BESIDE + (_TWO_READINGS if two_readings else "")


class AttackedTexts(NamedTuple):
    """The number of texts under an attack, of those on which it failed, and of those for which its model gave an answer that
    was not used; None if not recorded."""

    texts: int
    failed: int
    rejected: int | None


def _answers_note(rows: Sequence[Row]) -> str:
    attacked = [row for row in rows if row["attack"] != NO_ATTACK]
    counts = (AttackedTexts(row["texts"] + row["failed"], row["failed"], row.get("retried")) for row in attacked)
    return answers_note(list(zip((row["attack"] for row in attacked), counts)))


def answers_note(counts: Sequence[tuple[str, AttackedTexts]]) -> str:
    """The share of texts on which each attack failed, or for which its model gave an answer that was not used."""
    parts = []
    for attack in dict.fromkeys(attack for attack, _ in counts):
        members = [count for other, count in counts if other == attack]
        texts, failed = sum(count.texts for count in members), sum(count.failed for count in members)
        rejected = [count.rejected for count in members]
        if failed or any(rejected):
            known = [count for count in rejected if count is not None]
            again = f"{percent(sum(known) / texts)}%" if len(known) == len(rejected) else "an unrecorded share"
            parts.append(f"{attack}: {again} with rejected answers, {percent(failed / texts)}% failed")
    if not parts:
        return " No attack failed or rejected an answer."
    return f' Texts by attack: {"; ".join(parts)}. "all" in small print: with failed texts as misses.'


def _ranked(rows: Sequence[Row]) -> str:
    among = variants(rows)
    if len({(other.method, other.detection) for other in among}) < 2:
        return "settings"
    return "methods at the same settings" if any(other.grid for other in among) else "methods"


def _note(metric: Metric, rows: Sequence[Row], beside: bool) -> str:
    texts = sorted({row["texts"] for row in rows})
    count = f"{texts[0]}" if len(texts) == 1 else f"{texts[0]} to {texts[-1]}"
    intervals = f"In percent, with 95% intervals; {count} marked texts per figure."
    note = f"{intervals} {statistic_note(rows)}{_answers_note(rows)}"
    return note + (_beside_note([metric], rows) if beside else "")


def _ranking_set(variant: Variant, among: Sequence[Variant]) -> tuple[tuple[str, str], ...]:
    """Several methods are ranked at the same point of the grid; a single method is ranked over the grid."""
    return variant.grid if len({(other.method, other.detection) for other in among}) > 1 else ()


def overview(results: Results) -> list[Table]:
    """One table for each of the paper's three metrics: a line per variant, a column per attack."""
    rows = results["rows"]
    if len(variants(rows)) < 2:
        return []
    return [_matrix(results, metric) for metric in metrics(rows) if metric in MAIN]


def _matrix(results: Results, metric: Metric) -> Table:
    rows, paper = results["rows"], Paper(results)
    names, groups = Names(rows), grouped(rows)
    attacks = {row["attack"]: row for row in rows}
    beside = {row["attack"] for row in rows if paper.find(row, metric.key)}
    public = any(metric.public_reading(row) is not None for row in rows)
    ours = [OURS, *([_public_label(metric)] if public else [])]
    columns = [*names.columns, *(column for row in attacks.values() for column in _attack_columns(row, beside, ours))]
    lines, sets = [], []
    for group, members in groups.items():
        by_place = {(variant(row), row["attack"]): row for row in members}
        for compared in variants(members):
            cells = names.cells(compared)
            for attack in attacks:
                row = by_place.get((compared, attack))
                cells.append(metric.cell(row) if row else Cell())
                if attack in beside:
                    cells += [_public_cell(metric, row)] if public else []
                    cells.append(papers(paper.find(row, metric.key)) if row else Cell())
            lines.append(Line(cells, group_label(group, groups)))
            sets.append((group, _ranking_set(compared, variants(members))))
    places = ranked_places(lines, columns)
    lines, unranked = mark_columns(lines, sets, places), unranked_note(lines, sets, columns, places)
    title = f"{metric.title}: {metric.about}"
    return Table(title, columns, lines, _note(metric, rows, bool(beside)), "texts", _ranked(rows), unranked)


def _public_cell(metric: Metric, row: Row | None) -> Cell:
    reading = metric.public_reading(row) if row else None
    return Cell() if reading is None else Cell(percent(reading), value=reading)


def _attack_columns(row: Row, beside: set[str], ours: Sequence[str]) -> list[Column]:
    if row["attack"] in beside:
        return [Column(label, attack_label(row["attack"])) for label in (*ours, PAPER)]
    if row["rate"] is None:
        return [Column(attack_label(row["attack"]))]
    return [Column(f"{row['rate']:g}", family(row))]


def details(results: Results) -> list[Table]:
    """Every figure of every row, in one table for each group of texts."""
    groups = grouped(results["rows"])
    alone = len(variants(results["rows"])) < 2
    return [_full(results, members, group_label(group, groups), alone) for group, members in groups.items()]


_COUNTS = {"texts": "texts", "failed": "failed", "negatives": "human scores"}


def _full(results: Results, rows: Sequence[Row], label: str, alone: bool) -> Table:
    """A line per attack or, if several variants are compared, per attack and variant."""
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
    columns, unranked = [*first, *rates, *rest], ""
    if not alone:
        sets = [(row["attack"], _ranking_set(variant(row), variants(rows))) for row in rows]
        places = [i for i in ranked_places(lines, columns) if i < len(first) + len(rates)]
        lines, unranked = mark_columns(lines, sets, places), unranked_note(lines, sets, columns, places)
    title = "Detection by attack" if alone else "All figures by attack"
    return Table(
        f"{title}: {label}" if label else title, columns, lines, note, "attack",
        "" if alone else _ranked(rows), unranked, folded=not alone,
    )  # fmt: skip


_Cells = Callable[[Row], list[Cell]]


def _rates(paper: Paper, rows: Sequence[Row]) -> tuple[list[Column], _Cells, str]:
    every = metrics(rows)
    beside = {metric.key for metric in every if any(paper.find(row, metric.key) for row in rows)}
    public = {metric.key for metric in every if any(metric.public_reading(row) is not None for row in rows)} & beside
    columns = []
    for metric in every:
        ours = [OURS, *([_public_label(metric)] if metric.key in public else [])]
        several = [Column(label, metric.title) for label in (*ours, PAPER)]
        columns += several if metric.key in beside else [Column(metric.title)]

    def cells(row: Row) -> list[Cell]:
        figures = []
        for metric in every:
            figures.append(metric.cell(row))
            figures += [_public_cell(metric, row)] if metric.key in public else []
            figures += [papers(paper.find(row, metric.key))] if metric.key in beside else []
        return figures

    note = (
        "Rates in percent, with 95% intervals. TPR: at the threshold that this share of the human scores reaches; p: at the "
        f"nominal p-value. {statistic_note(rows)} Failed: texts on which the attack failed; rates leave them out, and "
        '"all" in small print counts them as misses. Rejected answers: the share of texts, failed ones included, for which the '
        "attack's model gave an answer that was not used."
    )
    return columns, cells, note + (_beside_note(every, rows) if beside else "")


def _rest(rows: Sequence[Row]) -> tuple[list[Column], _Cells]:
    extras = {title: cell for title, cell in _EXTRAS.items() if any(cell(row).text for row in rows)}
    columns = [Column(title) for title in (*_COUNTS.values(), *extras)]

    def cells(row: Row) -> list[Cell]:
        counts = [counted(row[name]) for name in _COUNTS]  # type: ignore[literal-required]
        return [*counts, *(cell(row) for cell in extras.values())]

    return columns, cells


def _cosine(row: Row) -> Cell:
    return estimated(row["cosine"], three) if row["cosine"] else Cell()


def _delta(row: Row) -> Cell:
    if not row["deltas"] or row["attack"] == NO_ATTACK:
        return Cell()
    mean = float(np.mean(row["deltas"]))
    return Cell(f"{mean:.2f}", f"sd {np.std(row['deltas']):.2f}", mean)


def _retried(row: Row) -> Cell:
    retried = row.get("retried")
    if row["attack"] == NO_ATTACK or not (row["texts"] + row["failed"]):
        return Cell()
    share = None if retried is None else retried / (row["texts"] + row["failed"])
    return Cell("–" if "retried" in row else "") if share is None else Cell(f"{percent(share)}%", value=share)


def _kept(row: Row) -> Cell:
    return counted(row["kept"]) if row.get("kept") else Cell()


_EXTRAS: dict[str, Callable[[Row], Cell]] = {
    "rejected answers": _retried,
    "sentences kept": _kept,
    "similarity of meaning": _cosine,
    "sentences after / before": _delta,
}


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


def _means(rows: Sequence[Row], metric: Metric) -> dict[Variant, Estimate]:
    """The mean of each variant over the groups and attacks that all variants have, the highest first.

    The attacks are on the same texts, so the ends of their intervals are averaged: this is the interval of a mean of rates that
    err in the same direction, and too wide for others.
    """
    rates: dict[Variant, dict[tuple[str, str, str], Estimate]] = {}
    for row in rows:
        if estimate := metric.of(row):
            rates.setdefault(variant(row), {})[row["llm"], row["data"], row["attack"]] = estimate
    shared = sorted(set.intersection(*(set(values) for values in rates.values()))) if rates else []
    means: dict[Variant, Estimate] = {}
    for compared, values in rates.items() if shared else ():
        every = [values[key] for key in shared]
        value, low, high = (float(np.mean([rate[end] for rate in every])) for end in ("value", "low", "high"))
        means[compared] = {"value": value, "low": low, "high": high, "count": sum(rate["count"] for rate in every)}
    return dict(sorted(means.items(), key=lambda item: -item[1]["value"]))


def _clean(rows: Sequence[Row], metric: Metric) -> str:
    means = _means([row for row in rows if row["attack"] == NO_ATTACK], metric)
    if not means:
        return ""
    values = [mean["value"] for mean in means.values()]
    if len(values) == 1:
        return f"{metric.title} without attack: {percent(values[0])}%."
    return f"{metric.title} without attack: {percent(values[-1])}% to {percent(values[0])}%."


def _under_attack(rows: Sequence[Row], metric: Metric) -> str:
    hit = [row for row in rows if row["attack"] != NO_ATTACK]
    means = _means(hit, metric)
    if not means:
        return ""
    if len(means) > 1:
        (first, best), (second, next_best) = list(means.items())[:2]
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
    worst = min((estimate["value"], row["attack"]) for row in hit if (estimate := metric.of(row)))
    [mean] = means.values()
    return f"Under attack {percent(mean['value'])}% on average; least under {worst[1]} ({percent(worst[0])}%)."
