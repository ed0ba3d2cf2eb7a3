"""The plots of a report as SVG."""

from __future__ import annotations

import io
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from alimark.lab.bench import metrics, shape
from alimark.lab.bench.results import ResultFigure, Results, Row

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_MARKERS = "os^DvPX<>"
_DASHES: tuple[Any, ...] = ("-", (0, (5, 1.6)), (0, (1.3, 1.3)), (0, (6, 1.6, 1.3, 1.6)), (0, (9, 3)), (0, (2, 4)))

Style = dict[str, Any]  # options of matplotlib, by name

_STYLE: Style = {
    "font.family": ["DejaVu Sans"], "font.size": 9, "axes.titlesize": 9, "axes.labelsize": 9, "legend.fontsize": 9,
    "xtick.labelsize": 8, "ytick.labelsize": 8, "figure.titlesize": 11, "figure.titleweight": "bold",
    "axes.linewidth": 0.7, "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True, "axes.axisbelow": True,
    "grid.color": "#d3d4d5", "grid.linewidth": 0.6, "lines.linewidth": 1.6, "lines.markersize": 4.5, "legend.frameon": False,
    "svg.fonttype": "none",   # real text, which a reader can search
    "text.parse_math": False,  # a dollar sign in a label does not start a formula
}  # fmt: skip


@dataclass(frozen=True)
class Plot:
    name: str  # the name of the file, different for each plot of a page
    title: str
    caption: str
    svg: bytes


def draw(results: Results, colours: Mapping[str, str], prefix: str) -> dict[str, list[Plot]]:
    """All plots that the results have data for, by section; their names begin with `prefix`."""
    from matplotlib import style

    page = _Page(results, colours, prefix)
    # Independent of the user's settings, with ids that are the same in every run.
    with style.context(["default", _STYLE | {"svg.hashsalt": prefix}]):
        return {
            section: [plot for drawer in drawers for plot in drawer(page)] for section, drawers in _SECTIONS.items()
        }


class Sheet:
    """A figure with a title, panels in rows, and one legend for all of them below."""

    def __init__(self, name: str, title: str, count: int, *, columns: int = 4, height: float = 2.0) -> None:
        from matplotlib.figure import Figure

        self.name, self.title = name, title
        self.columns = -(-count // -(-count // columns))  # as many columns as give rows of about equal length
        self.width, stretch = {1: (6.0, 1.4), 2: (8.0, 1.2)}.get(self.columns, (10.4, 1.0))
        rows, lines = -(-count // self.columns), textwrap.wrap(title, int(self.width * 9.2))
        size = self.width, rows * (height * stretch + 0.35) + 0.25 * len(lines) + 0.35
        self.figure = Figure(figsize=size, layout="constrained")
        grid = self.figure.subplots(rows, self.columns, squeeze=False, sharex=True, sharey=True)
        self.axes: list[Axes] = list(grid.flat)[:count]
        for spare in list(grid.flat)[count:]:
            spare.remove()
        self.figure.suptitle("\n".join(lines), x=0.01, ha="left")
        self.legend: dict[str, Any] = {}  # the line of each label

    def head(self, axes: Axes, text: str) -> None:
        """Set the title of a panel, in at most two lines."""
        lines = textwrap.wrap(text, max(12, int(self.width / self.columns * 11)))
        axes.set_title("\n".join(lines[:2]) + ("…" if len(lines) > 2 else ""), loc="left")

    def finish(self, x: str, y: str, caption: str) -> Plot:
        """Label the x axis of the lowest panel in each column and all y axes, and save the figure."""
        for axes in self.axes[-self.columns :]:
            axes.set_xlabel(x)
            axes.tick_params(labelbottom=True)  # matplotlib labels only the last row if axes are shared
        self.figure.supylabel(y, fontsize=9)
        if self.legend:
            labels = [f" {label}" for label in self.legend]  # matplotlib leaves out labels that begin with _
            columns = max(1, min(len(labels), int(self.width * 12 / (max(map(len, labels)) + 6))))
            self.figure.set_figheight(self.figure.get_figheight() + 0.2 * -(-len(labels) // columns))
            self.figure.legend(list(self.legend.values()), labels, loc="outside lower center", ncols=columns)
        file = io.BytesIO()
        self.figure.savefig(file, format="svg", metadata={"Date": None, "Creator": None})
        return Plot(self.name, self.title, caption, file.getvalue())


@dataclass(frozen=True)
class _Page:
    """What is drawn: the results of a recipe, and how methods look on all plots of the page."""

    results: Results
    colours: Mapping[str, str]
    prefix: str

    def sheet(self, kind: str, number: int, title: str, group: str, count: int, **look: Any) -> Sheet:
        """A sheet with so many panels for the group of texts with this number."""
        name = f"{self.prefix}-{kind}" + (f"-{number}" if number else "")
        return Sheet(name, f"{title}: {group}" if group else title, count, **look)

    def line(self, compared: shape.Variant, among: Sequence[shape.Variant], marker: bool = True) -> Style:
        """Matplotlib's options for a line: a colour and a marker for each method, dashes for its variants."""
        of_method = [other for other in among if other.method == compared.method]
        place = list(self.colours).index(compared.method)
        dashes = _DASHES[of_method.index(compared) % len(_DASHES)]
        look = {"color": self.colours[compared.method], "linestyle": dashes}
        return look | ({"marker": _MARKERS[place % len(_MARKERS)]} if marker else {})

    def curve(
        self, sheet: Sheet, axes: Axes, compared: shape.Variant, among: Sequence[shape.Variant],
        points: Mapping[float, ResultFigure | None],
    ) -> None:  # fmt: skip
        """Draw figures with their intervals, in percent; those that are None are left out."""
        x = sorted(at for at, figure in points.items() if figure)
        figures = [figure for at in x if (figure := points[at])]
        value, low, high = (100 * np.array([figure[end] for figure in figures]) for end in ("value", "low", "high"))
        reach = np.abs([value - low, high - value])
        bars = axes.errorbar(x, value, yerr=reach, capsize=2, elinewidth=0.9, **self.line(compared, among))
        sheet.legend.setdefault(compared.label, bars)
        axes.set_ylim(-3, 103)

    def by_attack(
        self, rows: Sequence[Row], kind: str, what: str, height: float = 2.0
    ) -> Iterator[tuple[Sheet, list[Row], list[tuple[Axes, list[Row]]]]]:
        """For each group of texts a sheet with a panel for each attack, all rows of the group, and those of each panel."""
        for number, (group, members) in enumerate(shape.grouped(rows).items()):
            attacks = list(dict.fromkeys(row["attack"] for row in members))
            sheet = self.sheet(kind, number, what, group, len(attacks), height=height)
            for axes, attack in zip(sheet.axes, attacks, strict=True):
                sheet.head(axes, shape.attack_label(attack))
            panels = [[row for row in members if row["attack"] == attack] for attack in attacks]
            yield sheet, members, list(zip(sheet.axes, panels, strict=True))


def _level(level: str) -> str:
    return f"{100 * float(level):g}%"


_FOUND = "marked texts found (%)"


def _rates(page: _Page) -> Iterator[Plot]:
    """TPR against the rate of the attacks that have one; the rate 0 is no attack."""
    for number, (group, rows) in enumerate(shape.grouped(page.results["rows"]).items()):
        families = list(dict.fromkeys(shape.family(row) for row in rows if row["rate"] is not None))
        levels = [level for level in ("0.01", "0.05") if any(row["tpr"].get(level) for row in rows)]
        if not families or not levels:
            continue
        panels = [(level, name) for level in levels for name in families]
        title = "Texts found against the rate of an attack"
        sheet = page.sheet("rates", number, title, group, len(panels), columns=len(families))
        for axes, (level, name) in zip(sheet.axes, panels, strict=True):
            for compared in shape.variants(rows):
                points = {
                    row["rate"] or 0.0: row["tpr"].get(level)
                    for row in rows
                    if shape.variant(row) == compared
                    and (row["attack"] == shape.NO_ATTACK or (row["rate"] is not None and shape.family(row) == name))
                }
                page.curve(sheet, axes, compared, shape.variants(rows), points)
            sheet.head(axes, f"{name}, at {_level(level)} false positives")
        yield sheet.finish("rate of the attack", _FOUND, "Bars are 95% intervals; the rate 0 is no attack.")


def _settings(page: _Page) -> Iterator[Plot]:
    """TPR at each point of the recipe's grid, with a panel for each attack."""
    rows = [row for row in page.results["rows"] if row["grid"]]
    level = next((level for level in ("0.05", "0.01") if any(row["tpr"].get(level) for row in rows)), None)
    points = list(dict.fromkeys(other.grid for other in shape.variants(rows)))
    if len(points) < 2 or level is None:
        return
    what = " and ".join(name.replace("_", " ") for name, _ in points[0])
    labels = [", ".join(value for _, value in point) for point in points]
    tilted: Style = {"rotation": 35, "ha": "right"} if max(map(len, labels)) * len(labels) > 24 else {}
    title = f"Texts found at {_level(level)} false positives, by {what}"
    for sheet, members, panels in page.by_attack(rows, "grid", title):
        among = list(dict.fromkeys(_without_grid(row) for row in members))
        for axes, of_attack in panels:
            for place, compared in enumerate(among):
                beside = 0.06 * (place - (len(among) - 1) / 2)
                page.curve(sheet, axes, compared, among, {
                    points.index(shape.variant(row).grid) + beside: row["tpr"].get(level)
                    for row in of_attack if _without_grid(row) == compared
                })  # fmt: skip
            axes.set_xticks(range(len(points)), labels, **tilted)
            axes.set_xlim(-0.4, len(points) - 0.6)
        yield sheet.finish(what, _FOUND, "Bars are 95% intervals.")


def _found(page: _Page) -> Iterator[Plot]:
    """The share of texts with a p-value of at most 0.01, by attack; it needs no human texts."""
    for number, (group, rows) in enumerate(shape.grouped(page.results["rows"]).items()):
        attacks, among = list(dict.fromkeys(row["attack"] for row in rows)), shape.variants(rows)
        sheet = page.sheet("found", number, "Texts found at p ≤ 0.01, by attack", group, 1)
        for place, compared in enumerate(among):
            beside = 0.06 * (place - (len(among) - 1) / 2)
            points = {
                attacks.index(row["attack"]) + beside: (row["with_failures"] or row)["tpr_nominal"].get("0.01")
                for row in rows if shape.variant(row) == compared
            }  # fmt: skip
            page.curve(sheet, sheet.axes[0], compared, among, points)
        sheet.axes[0].set_xticks(range(len(attacks)), map(shape.attack_label, attacks), rotation=20, ha="right")
        yield sheet.finish("", _FOUND, "Bars are 95% intervals; a failed attack counts as a miss.")


def _without_grid(row: Row) -> shape.Variant:
    return shape.Variant(row["method"], row["detection"], ())


def _roc(page: _Page) -> Iterator[Plot]:
    """ROC curves with a panel for each attack; false positives are on a logarithmic axis."""
    from matplotlib.ticker import FuncFormatter, NullLocator

    rows = [row for row in page.results["rows"] if row["scores"] and shape.negatives(page.results, row)]
    among = shape.variants(page.results["rows"])
    for sheet, _, panels in page.by_attack(rows, "roc", "ROC curves by attack"):
        for axes, of_attack in panels:
            floor = 1.0
            for row in of_attack:
                humans = shape.negatives(page.results, row)
                least = 0.5 / len(humans)
                floor = min(floor, least)
                false, true = metrics.roc(row["scores"], humans)
                look = page.line(shape.variant(row), among, marker=False)
                (line,) = axes.plot(100 * np.maximum(false, least), 100 * true, **look)
                sheet.legend.setdefault(shape.variant(row).label, line)
            chance = np.geomspace(floor, 1, 60)
            axes.plot(100 * chance, 100 * chance, color=shape.GREY, linestyle=":", linewidth=1)
            axes.set_xscale("log")
            axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))  # formulas are switched off
            axes.xaxis.set_minor_locator(NullLocator())
            axes.set_ylim(-3, 103)
        yield sheet.finish("human texts found (%)", _FOUND, "Dotted: chance. Every point is one threshold.")


def _deltas(page: _Page) -> Iterator[Plot]:
    """Histograms of the number of sentences after an attack, relative to before."""
    rows = [row for row in page.results["rows"] if row["deltas"] and row["attack"] != shape.NO_ATTACK]
    edges = np.arange(0.25, 2.06, 0.1)  # 1 in the middle of a bar
    for sheet, members, panels in page.by_attack(
        rows, "deltas", "Sentences after an attack, relative to before", height=1.4
    ):
        among = list(dict.fromkeys(map(_writer, members)))
        for axes, of_attack in panels:
            for compared, row in {_writer(row): row for row in reversed(of_attack)}.items():
                look = page.line(compared, among, marker=False)
                counts, _ = np.histogram(np.clip(row["deltas"], 0.26, 2.04), edges)
                bars = axes.stairs(100 * counts / len(row["deltas"]), edges, linewidth=1.4, **look)
                sheet.legend.setdefault(compared.label, bars)
            axes.set_xticks([0.5, 1, 1.5, 2])
        caption = "Values beyond the ends of the axis are counted at its ends."
        yield sheet.finish("sentences after / before", "share of texts (%)", caption)


def _writer(row: Row) -> shape.Variant:
    """The variant of a row without its detection options, which do not change what an attack does to a text."""
    return shape.Variant(row["method"], "", shape.variant(row).grid)


_SECTIONS = {"found": (_found,), "detection": (_rates, _settings, _roc), "attacks": (_deltas,)}
