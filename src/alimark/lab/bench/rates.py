"""The table of detection rates, and a summary of it in a few sentences."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from alimark.lab.bench import shape, tables
from alimark.lab.bench.paper import Paper
from alimark.lab.bench.results import Rates, ResultFigure, Results, Row


@dataclass(frozen=True)
class Metric:
    key: str  # as in the paper's values, such as "auroc" or "tpr@0.01"
    title: str

    def of(self, rates: Rates | None) -> ResultFigure | None:
        kind, _, level = self.key.partition("@")
        if rates is None or kind == "auroc":
            return rates and rates["auroc"]
        return rates["tpr"].get(level) if kind == "tpr" else rates["tpr_nominal"].get(level)

    def cell(self, row: Row) -> tables.TableCell:
        """The figure of a row with its interval and, where attacks failed, with failures as misses."""
        return tables.estimated(self.of(row), every=self.of(row["with_failures"]))


def _tpr(level: str) -> Metric:
    return Metric(f"tpr@{level}", f"TPR@{100 * float(level):g}%")


MAIN = (_tpr("0.01"), _tpr("0.05"), Metric("auroc", "AUROC"))


def metrics(rows: Sequence[Row]) -> list[Metric]:
    """The paper's three metrics, then other false-positive rates and nominal p-values; those without any value are left out."""
    levels = sorted({level for row in rows for level in row["tpr"]} - {"0.01", "0.05"}, key=float, reverse=True)
    nominal = sorted({level for row in rows for level in row["tpr_nominal"]}, key=float)
    every = [*MAIN, *map(_tpr, levels), *(Metric(f"p@{level}", f"p ≤ {level}") for level in nominal)]
    return [metric for metric in every if any(metric.of(row) or metric.of(row["with_failures"]) for row in rows)]


_NOTE = (
    "Rates in percent, with 95% intervals. TPR: at the threshold that this share of the human scores reaches; p: at the "
    "nominal p-value. {statistic} Failed: texts on which the attack failed; rates leave them out, and "
    '"all" in small print counts them as misses. Rejected answers: the share of texts, failed ones included, for which the '
    "attack's model gave an answer that was not used."
)
_BESIDE = " Figures of the paper are beside ours; small print says where their setting differs. The paper ranks by z."


def details(results: Results) -> list[tables.Table]:
    """Every figure of every row: a line per LLM, data set, attack and variant. No table if there are no rows."""
    if not results["rows"]:
        return []
    paper, attacks = Paper(results), list(dict.fromkeys(row["attack"] for row in results["rows"]))
    groups = shape.grouped(results["rows"]).values()
    rows = [row for group in groups for row in sorted(group, key=lambda row: attacks.index(row["attack"]))]
    names, shown = tables.Names(rows), metrics(rows)
    beside = {metric for metric in shown if any(paper.find(row, metric.key) for row in rows)}
    rest = {title: cell for title, cell in _REST.items() if title in _COUNTS or any(cell(row).text for row in rows)}
    columns = [*names.columns, tables.Column("attack", number=False)]
    for metric in shown:
        columns += [tables.Column(metric.title), *([tables.papers_column(metric.title)] if metric in beside else [])]
    lines = []
    for row in rows:
        cells = [*names.cells(row), tables.TableCell(shape.attack_label(row["attack"]))]
        for metric in shown:
            cells += [metric.cell(row), *([tables.papers(paper.find(row, metric.key))] if metric in beside else [])]
        lines.append([*cells, *(cell(row) for cell in rest.values())])
    note = _NOTE.format(statistic=shape.statistic_note(rows)) + (_BESIDE if beside else "")
    return [tables.Table("Detection by attack", [*columns, *map(tables.Column, rest)], lines, note)]


def _retried(row: Row) -> tables.TableCell:
    every = row["texts"] + row["failed"]
    if row["attack"] == shape.NO_ATTACK or not every:
        return tables.TableCell()
    return tables.TableCell(f"{tables.percent(row['retried'] / every)}%", value=row["retried"] / every)


_COUNTS = ("texts", "failed", "human scores")
_REST: dict[str, Callable[[Row], tables.TableCell]] = {
    "texts": lambda row: tables.number(row["texts"]),
    "failed": lambda row: tables.number(row["failed"]),
    "human scores": lambda row: tables.number(row["negatives"]),
    "rejected answers": _retried,
    "sentences kept": lambda row: tables.number(row["kept"]) if row["kept"] else tables.TableCell(),
    "similarity of meaning": lambda row: (
        tables.estimated(row["cosine"], tables.three) if row["cosine"] else tables.TableCell()
    ),
    "sentences after / before": lambda row: tables.spread(row["deltas"]) if row["deltas"] else tables.TableCell(),
}
"""The columns after the rates; those beyond the counts only where a row has something for them."""


def summary(results: Results) -> str:
    """The mean detection rates without and under attack, in a few sentences."""
    rows = results["rows"]
    metric = next((metric for metric in metrics(rows) if metric in MAIN), None)
    if metric is None:
        return ""
    where = " and ".join(dict.fromkeys(row["data"] for row in rows if row["data"]))
    llms = " and ".join(dict.fromkeys(row["llm"] for row in rows if row["llm"]))
    sentences = [f"Texts by {llms or 'the LLM'}" + (f" to prompts of {where}" if where else "") + "."]
    for when, attacked in (("without attack", False), ("under attack, on average", True)):
        means = _means([row for row in rows if (row["attack"] != shape.NO_ATTACK) == attacked], metric)
        if means:
            listed = ", ".join(f"{tables.percent(mean)}% ({label})" for label, mean in means.items())
            sentences.append(f"{metric.title} {when}: {listed}.")
    return " ".join(sentences)


def _means(rows: Sequence[Row], metric: Metric) -> dict[str, float]:
    """The mean of each variant over the texts and attacks that all variants have, the highest first."""
    rates: dict[str, dict[tuple[str, str, str], float]] = {}
    for row in rows:
        if figure := metric.of(row):
            rates.setdefault(shape.variant(row).label, {})[row["llm"], row["data"], row["attack"]] = figure["value"]
    shared = set.intersection(*map(set, rates.values())) if rates else set()
    means = {label: float(np.mean([values[at] for at in sorted(shared)])) for label, values in rates.items() if shared}
    return dict(sorted(means.items(), key=lambda item: -item[1]))
