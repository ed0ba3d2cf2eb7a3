"""The tables of a report as cells: their figures with intervals, and the paper's figures beside them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from alimark.lab.bench import shape
from alimark.lab.bench.paper import Paper
from alimark.lab.bench.results import Human, JsonMapping, Quality, Rates, ResultFigure, Results, Row, Runtime
from alimark.lab.bench.shape import RowLike, shown, variant, variants

Format = Callable[[float], str]


@dataclass(frozen=True)
class TableCell:
    text: str = ""
    small: str = ""  # small print below the text: an interval, or what a figure of the paper refers to
    value: float | None = None  # the number that the text shows, to sort by
    high: bool = False  # whether the figure is higher than it should be
    method: str = ""  # the method that the cell names; its colour is shown beside it
    interval: tuple[float, float] | None = None  # the 95% interval of the value, where it has one
    every: float | None = None  # the value with failed texts as misses, where texts failed


@dataclass(frozen=True)
class Column:
    label: str
    number: bool = True
    paper: bool = False  # whether the figures are the paper's


@dataclass(frozen=True)
class Table:
    title: str
    columns: Sequence[Column]
    lines: Sequence[Sequence[TableCell]]
    note: str = ""


# --- Cells


def percent(share: float) -> str:
    return f"{100 * share:.1f}"


def tenth(value: float) -> str:
    return f"{value:,.1f}"


def three(value: float) -> str:
    return f"{value:.3f}"


def estimated(estimate: ResultFigure | None, written: Format = percent, every: ResultFigure | None = None) -> TableCell:
    """A figure with its interval below and, where texts failed, the figure `every` with these as misses."""
    cell = TableCell("–")
    if estimate:
        ends = estimate["low"], estimate["high"]
        cell = TableCell(written(estimate["value"]), "–".join(map(written, ends)), estimate["value"], interval=ends)
    if every:
        small = "; ".join(filter(None, [cell.small, f"all {written(every['value'])}"]))
        cell = replace(cell, small=small, every=every["value"])
    return cell


def number(value: float | None, written: str = ",") -> TableCell:
    """A number in Python's format; a dash for None."""
    return TableCell("–") if value is None else TableCell(f"{value:{written}}", value=value)


def spread(values: Sequence[float]) -> TableCell:
    """The mean, and the standard deviation below it."""
    return (
        replace(number(float(np.mean(values)), ".2f"), small=f"sd {np.std(values):.2f}") if values else TableCell("–")
    )


def papers(figure: tuple[float, str] | None, written: Format = percent) -> TableCell:
    """A figure of the paper, and below it how its setting differs from ours."""
    return TableCell(written(figure[0]), figure[1], figure[0]) if figure else TableCell()


def papers_column(label: str) -> Column:
    """The column of the paper's figures beside ours of this label."""
    return Column(f"{label}, paper", paper=True)


class Names:
    """The columns that say what a line is about: the method and, if lines differ in them, data set, LLM and settings."""

    def __init__(self, rows: Sequence[JsonMapping]) -> None:
        self._varied = [name for name in ("data", "llm") if len({row.get(name, "") for row in rows}) > 1]
        self._grid = list(dict.fromkeys(name for compared in variants(rows) for name, _ in compared.grid))
        self._detection = ["detection"] if any(compared.detection for compared in variants(rows)) else []
        names = [*self._varied, *self._grid, "method", *self._detection]
        self.columns = [Column(_DATA_COLUMNS.get(name, name.replace("_", " ")), number=False) for name in names]

    def cells(self, row: JsonMapping) -> list[TableCell]:
        compared = variant(row)
        before = [
            *(str(row.get(name, "")) for name in self._varied),
            *(dict(compared.grid).get(n, "") for n in self._grid),
        ]
        method = TableCell(compared.method, method=compared.method)
        return [*map(TableCell, before), method, *(TableCell(compared.detection) for _ in self._detection)]


# --- Detection rates, and a summary of them in a few sentences


@dataclass(frozen=True)
class Metric:
    key: str  # as in the paper's values, such as "auroc" or "tpr@0.01"
    title: str

    def of(self, rates: Rates | None) -> ResultFigure | None:
        kind, _, level = self.key.partition("@")
        if rates is None or kind == "auroc":
            return rates and rates["auroc"]
        return rates["tpr"].get(level) if kind == "tpr" else rates["tpr_nominal"].get(level)

    def cell(self, row: Row) -> TableCell:
        """The figure of a row with its interval and, where attacks failed, with failures as misses."""
        return estimated(self.of(row), every=self.of(row["with_failures"]))


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


def details(results: Results) -> list[Table]:
    """Every figure of every row: a line per LLM, data set, attack and variant. No table if there are no rows."""
    if not results["rows"]:
        return []
    paper, attacks = Paper(results), list(dict.fromkeys(row["attack"] for row in results["rows"]))
    groups = shape.grouped(results["rows"]).values()
    rows = [row for group in groups for row in sorted(group, key=lambda row: attacks.index(row["attack"]))]
    names, shown = Names(rows), metrics(rows)
    beside = {metric for metric in shown if any(paper.find(row, metric.key) for row in rows)}
    rest = {title: cell for title, cell in _REST.items() if title in _COUNTS or any(cell(row).text for row in rows)}
    columns = [*names.columns, Column("attack", number=False)]
    for metric in shown:
        columns += [Column(metric.title), *([papers_column(metric.title)] if metric in beside else [])]
    lines = []
    for row in rows:
        cells = [*names.cells(row), TableCell(shape.attack_label(row["attack"]))]
        for metric in shown:
            cells += [metric.cell(row), *([papers(paper.find(row, metric.key))] if metric in beside else [])]
        lines.append([*cells, *(cell(row) for cell in rest.values())])
    note = _NOTE.format(statistic=shape.statistic_note(rows)) + (_BESIDE if beside else "")
    return [Table("Detection by attack", [*columns, *map(Column, rest)], lines, note)]


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
    "sentences after / before": lambda row: spread(row["deltas"]) if row["deltas"] else TableCell(),
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
            listed = ", ".join(f"{percent(mean)}% ({label})" for label, mean in means.items())
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


def comparison(results: Results) -> Table:
    """A line for each variant: the share found under each attack at p <= 0.01, false alarms, cost and perplexity."""
    rows, names = results["rows"], Names(results["rows"])
    attacks = list(dict.fromkeys(row["attack"] for row in rows))
    labels = [*map(shape.attack_label, attacks), "human texts", "tokens per text", "seconds per text"]
    quality = [Column("perplexity")] if results["quality"] else []
    lines = []
    for same in {(row["llm"], row["data"], variant(row)): row for row in rows}.values():
        rates = {
            row["attack"]: (row["with_failures"] or row)["tpr_nominal"].get("0.01") for row in rows if _alike(same, row)
        }
        human = [row["false_positives"].get("0.01") for row in results["human"] if _alike(same, row)]
        cost = [(row["tokens"], row["seconds"]) for row in results["cost"] if _alike(same, row)]
        read = [float(np.median(row["perplexity"])) for row in results["quality"] if _alike(same, row)]
        cells = [estimated(share) for share in [*map(rates.get, attacks), *(human or [None])]]
        cells += [number(value, ",.3g") for value in cost[0]] if cost else [TableCell("–")] * 2
        cells += [number(read[0], ".1f") if read else TableCell("–")] * bool(quality)
        lines.append([*names.cells(same), *cells])
    note = (
        "Texts found at p ≤ 0.01, in percent, with 95% intervals; failed attacks are misses. Human texts: false alarms."
    )
    return Table("Texts found", [*names.columns, *map(Column, labels), *quality], lines, note)


def _alike(row: JsonMapping, other: JsonMapping) -> bool:
    """Whether rows of two tables are about the same variant; tables of texts know no detection options."""
    there = variant(other)
    same = replace(variant(row), detection=there.detection) if not there.detection else variant(row)
    return same == there and all(row[name] == other[name] for name in ("llm", "data"))


# --- The other tables


def described(
    title: str,
    rows: Sequence[RowLike],
    columns: Sequence[Column],
    cells: Callable[[RowLike], list[TableCell]],
    note: str = "",
) -> list[Table]:
    """A table with one line per row; no table if there are no rows."""
    names = Names(rows)
    lines = [[*names.cells(row), *cells(row)] for row in rows]
    return [Table(title, [*names.columns, *columns], lines, note)] if rows else []


def human(results: Results) -> list[Table]:
    levels = sorted({level for row in results["human"] for level in row["false_positives"]}, key=float)
    columns = [Column("texts"), Column("keys"), Column("mean statistic"), *(Column(f"p ≤ {level}") for level in levels)]

    def cells(row: Human) -> list[TableCell]:
        shares = [(row["false_positives"].get(level), float(level)) for level in levels]
        high = [replace(estimated(share), high=share is not None and share["low"] > level) for share, level in shares]
        return [number(row["texts"]), number(row["keys"]), spread(row["scores"]), *high]

    note = (
        "Share of human scores at or below each p-value, in percent, with 95% intervals. It should not exceed the p-value. "
        "▲: the whole interval lies above the p-value. Keys: the number of fresh keys that each text was scored under. "
        f"{shape.statistic_note(results['human'])}"
    )
    return described("False positives on human texts", results["human"], columns, cells, note)


def quality(results: Results) -> list[Table]:
    rows, paper = results["quality"], Paper(results)
    theirs = any(paper.find(row, "perplexity") for row in rows)
    median = "perplexity, median"
    columns = [Column("texts"), Column(median), *([papers_column(median)] if theirs else [])]
    columns += map(Column, ("mean", "distinct", "repetition", "diversity"))

    def cells(row: Quality) -> list[TableCell]:
        low, middle, high = map(float, np.quantile(row["perplexity"], (0.25, 0.5, 0.75)))
        count = len(row["perplexity"])
        return [
            number(count),
            estimated(ResultFigure(value=middle, low=low, high=high, count=count), tenth),
            *([papers(paper.find(row, "perplexity"), tenth)] if theirs else []),
            number(float(np.mean(row["perplexity"])), ",.1f"),
            *(estimated(figure, three) for figure in (row["distinct"], row["repetition"], row["diversity"])),
        ]

    oracles, embedders = (
        ", ".join(dict.fromkeys(names)) or "none"
        for names in ([row["oracle"] for row in rows], [row["embedder"] for row in rows if row["diversity"]])
    )
    note = (
        f"Perplexity by {oracles}, with the quartiles below the median. Distinct: the share of different word pairs. "
        "Repetition: the share of four-word sequences that occurred before in the text. Diversity: one minus the mean cosine "
        f"similarity among several answers to one prompt, by {embedders}."
    )
    return described("Text quality", rows, columns, cells, note)


def _seconds(value: float) -> str:
    """Three significant digits, without an exponent."""
    digits = 2 if value == 0 else max(0, 2 - int(np.floor(np.log10(abs(value)))))
    return f"{value:,.{min(digits, 9)}f}"


def cost(results: Results) -> list[Table]:
    return described(
        "Cost of writing a marked text",
        results["cost"],
        [Column("texts"), Column("tokens per text"), Column("seconds per text")],
        lambda row: [
            number(row["texts"]),
            number(row["tokens"], ",.0f"),
            TableCell(_seconds(row["seconds"]), value=row["seconds"]),
        ],
        "Means. Tokens: all sampled tokens, including those of candidates that were not chosen.",
    )


def runtime(results: Results) -> list[Table]:
    rows, paper = results["runtime"], Paper(results)
    theirs = any(paper.find(row, "seconds", {"n": row["sentences"]}) for row in rows)
    columns = [Column("sentences"), Column("texts"), Column("seconds"), *([papers_column("seconds")] if theirs else [])]

    def cells(row: Runtime) -> list[TableCell]:
        ours = TableCell(_seconds(row["seconds"]), value=row["seconds"])
        figure = paper.find(row, "seconds", {"n": row["sentences"]})
        return [number(row["sentences"]), number(row["texts"]), ours, *([papers(figure, _seconds)] if theirs else [])]

    return described("Seconds to detect one text", rows, columns, cells, "Means; the time includes embedding.")


_DATA_COLUMNS = {
    "set": "data set",
    "data": "data set",
    "llm": "LLM",
    "short": "too short, left out",
    "repeats": "repeats, removed",
    "papers": "texts of the paper",
}


def data(results: Results) -> list[Table]:
    rows = results["data"]
    names = list(dict.fromkeys(name for row in rows for name in row))
    columns = [Column(_DATA_COLUMNS.get(name, name), number=name != "set") for name in names]
    lines = [[number(row[name]) if name != "set" else TableCell(str(row[name])) for name in names] for row in rows]
    return [Table("Texts used and left out", columns, lines)] if rows else []


def made(results: Results) -> list[Table]:
    """What the run recorded about itself: versions, machine, seed, time."""
    lines = [[TableCell(name), TableCell(_text(value))] for name, value in results["made"].items()]
    columns = [Column("item", number=False), Column("value", number=False)]
    return [Table("Versions, machine and times", columns, lines)] if lines else []


def _text(value: object) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_text(item)}" for name, item in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(_text(item) for item in value)
    return f"{value:.4g}" if isinstance(value, float) else shown(value)
