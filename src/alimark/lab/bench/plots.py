"""The plots of a report: each as SVG, which follows the page's colours, and as PNG on white."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from alimark.lab.bench import metrics, shape
from alimark.lab.bench.results import Estimate, Quality, Results, Row
from alimark.lab.bench.shape import (
    GREYS,
    NO_ATTACK,
    Group,
    Variant,
    attack_label,
    family,
    group_label,
    grouped,
    negatives,
    statistics,
    variant,
    variants,
)
from alimark.lab.bench.sheet import INK, Looks, Plot, Sheet, style

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Floats = npt.NDArray[np.float64]

HUMAN = GREYS["human"]


def draw(results: Results, colours: Mapping[str, str], prefix: str) -> dict[str, list[Plot]]:
    """All plots that the results have data for, by the section that they belong to."""
    looks = Looks(colours)
    sections: dict[str, list[Plot]] = {}
    for section, drawers in _SECTIONS.items():
        for drawer in drawers:
            with style(prefix):
                sections.setdefault(section, []).extend(drawer(results, looks, prefix))
    return sections


def _titled(what: str, group: Group, groups: Iterable[Group]) -> str:
    label = group_label(group, groups)
    return f"{what}: {label}" if label else what


def _named(prefix: str, kind: str, number: int) -> str:
    return f"{prefix}-{kind}" + (f"-{number}" if number else "")


def rates(results: Results, looks: Looks, prefix: str) -> Iterator[Plot]:
    """TPR against the rate of the attacks that have one; the rate 0 is no attack."""
    groups = grouped(results["rows"])
    for number, (group, rows) in enumerate(groups.items()):
        families = list(dict.fromkeys(family(row) for row in rows if row["rate"] is not None))
        levels = [level for level in ("0.01", "0.05") if any(row["tpr"].get(level) for row in rows)]
        if not families or not levels:
            continue
        title = _titled("Texts found against the rate of an attack", group, groups)
        sheet = Sheet(_named(prefix, "rates", number), title, len(families) * len(levels), columns=len(families),
                      sharex=True, sharey=True)  # fmt: skip
        panels = iter(sheet.axes)
        for level in levels:
            for name in families:
                _rate_panel(sheet, next(panels), rows, name, level, looks)
        sheet.name_axes("rate of the attack", "marked texts found (%)")
        yield sheet.finish("Bands are 95% intervals; the rate 0 is no attack.")


def _rate_panel(sheet: Sheet, axes: Axes, rows: Sequence[Row], name: str, level: str, looks: Looks) -> None:
    among = variants(rows)
    for compared in among:
        points: dict[float, Estimate] = {}
        for row in rows:
            rate = 0.0 if row["attack"] == NO_ATTACK else row["rate"] if family(row) == name else None
            if variant(row) == compared and rate is not None and (estimate := row["tpr"].get(level)):
                points[rate] = estimate
        x = sorted(points)
        look = looks.line(compared, among)
        (line,) = axes.plot(x, [100 * points[rate]["value"] for rate in x], **look)
        low, high = ([100 * points[rate][end] for rate in x] for end in ("low", "high"))
        axes.fill_between(x, low, high, color=look["color"], alpha=0.15, linewidth=0)
        sheet.explain(compared.label, line)
    axes.set_ylim(-3, 103)
    sheet.head(axes, f"{name}, at {_level(level)} false positives")


def _level(level: str) -> str:
    return f"{100 * float(level):g}%"


def settings(results: Results, looks: Looks, prefix: str) -> Iterator[Plot]:
    """TPR at each point of the recipe's grid, with a panel for each attack."""
    groups = grouped(results["rows"])
    level = next((level for level in ("0.05", "0.01") if any(row["tpr"].get(level) for row in results["rows"])), None)
    for number, (group, rows) in enumerate(groups.items()):
        points = list(dict.fromkeys(other.grid for other in variants(rows) if other.grid))
        if len(points) < 2 or level is None:
            continue
        attacks = list(dict.fromkeys(row["attack"] for row in rows))
        what = " and ".join(name.replace("_", " ") for name, _ in points[0])
        title = _titled(f"Texts found at {_level(level)} false positives, by {what}", group, groups)
        sheet = Sheet(_named(prefix, "grid", number), title, len(attacks), sharex=True, sharey=True)
        for axes, attack in zip(sheet.axes, attacks):
            members = [row for row in rows if row["attack"] == attack]
            _setting_panel(sheet, axes, members, points, level, looks)
            sheet.head(axes, attack_label(attack))
        sheet.name_axes(what, "marked texts found (%)")
        yield sheet.finish("Bars are 95% intervals.")


def _setting_panel(
    sheet: Sheet,
    axes: Axes,
    rows: Sequence[Row],
    points: Sequence[tuple[tuple[str, str], ...]],
    level: str,
    looks: Looks,
) -> None:
    among = list(dict.fromkeys(Variant(other.method, other.detection, ()) for other in variants(rows)))
    for place, compared in enumerate(among):
        by_point = {variant(row).grid: row["tpr"].get(level) for row in rows if _without_grid(row) == compared}
        estimates = [(i, estimate) for i, point in enumerate(points) if (estimate := by_point.get(point))]
        values = 100 * np.array([[e["value"], e["low"], e["high"]] for _, e in estimates]).reshape(-1, 3)
        x = np.array([i for i, _ in estimates]) + 0.06 * (place - (len(among) - 1) / 2)
        reach = np.abs(values[:, 1:] - values[:, :1]).T
        bars = axes.errorbar(x, values[:, 0], yerr=reach, capsize=2, elinewidth=0.9, **looks.line(compared, among))
        sheet.explain(compared.label, bars)
    labels = [", ".join(value for _, value in point) for point in points]
    tilted = max(map(len, labels)) * len(labels) > 24
    axes.set_xticks(range(len(points)), labels, rotation=35 if tilted else 0, ha="right" if tilted else "center")
    axes.set_xlim(-0.4, len(points) - 0.6)
    axes.set_ylim(-3, 103)


def _without_grid(row: Row) -> Variant:
    return Variant(row["method"], row["detection"], ())


def roc(results: Results, looks: Looks, prefix: str) -> Iterator[Plot]:
    """ROC curves with a panel for each attack, with false positives on a logarithmic and then on a linear axis."""
    groups = grouped([row for row in results["rows"] if row["scores"] and negatives(results, row)])
    for number, (group, rows) in enumerate(groups.items()):
        for log in (True, False):
            axis = "logarithmic" if log else "linear"
            title = _titled(f"ROC curves by attack ({axis} axis)", group, groups)
            attacks = list(dict.fromkeys(row["attack"] for row in rows))
            name = _named(prefix, "roc-log" if log else "roc", number)
            sheet = Sheet(name, title, len(attacks), sharex=True, sharey=True)
            for axes, attack in zip(sheet.axes, attacks):
                _roc_panel(sheet, axes, results, [row for row in rows if row["attack"] == attack], looks, log)
                sheet.head(axes, attack_label(attack))
            sheet.name_axes("human texts found (%)", "marked texts found (%)")
            yield sheet.finish("Dotted: chance. Every point is one threshold.", folded=not log)


def _roc_panel(sheet: Sheet, axes: Axes, results: Results, rows: Sequence[Row], looks: Looks, log: bool) -> None:
    among, floor = variants(results["rows"]), 1.0
    for row in rows:
        humans = negatives(results, row)
        false, true = roc_curve(row["scores"], humans)
        least = 0.5 / len(humans)
        floor = min(floor, least)
        look = looks.line(variant(row), among, marker=False)
        (line,) = axes.plot(100 * np.maximum(false, least if log else 0), 100 * true, **look)
        sheet.explain(variant(row).label, line)
    chance = np.geomspace(floor, 1, 60) if log else np.array([0.0, 1.0])
    axes.plot(100 * chance, 100 * chance, color=HUMAN, linestyle=":", linewidth=1)
    if log:
        _log_axis(axes, "x")
    axes.set_ylim(-3, 103)


def roc_curve(marked: Sequence[float], human: Sequence[float]) -> tuple[Floats, Floats]:
    """False-positive and true-positive rates at falling thresholds, reduced to the corners of the curve."""
    curve = metrics.roc(marked, human)
    false, true = curve.fpr, curve.tpr
    inner = np.diff(true[:-1]) * np.diff(false[1:]) != np.diff(true[1:]) * np.diff(false[:-1])
    corners = np.concatenate([[True], inner, [True]])
    return false[corners], true[corners]


def _log_axis(axes: Axes, which: str) -> None:
    """A logarithmic axis with plain numbers as labels; matplotlib's formulas are switched off in `style`."""
    from matplotlib.ticker import FuncFormatter, NullLocator

    for name in which:
        getattr(axes, f"set_{name}scale")("log")
        axis = getattr(axes, f"{name}axis")
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axis.set_minor_locator(NullLocator())


def scores(results: Results, looks: Looks, prefix: str) -> Iterator[Plot]:
    """Histograms of scores with a panel for each variant and attack: human, marked and attacked texts."""
    groups = grouped([row for row in results["rows"] if row["scores"]])
    for number, (group, rows) in enumerate(groups.items()):
        among, panels = variants(rows), []
        for compared in among:
            members = [row for row in rows if variant(row) == compared]
            families = list(dict.fromkeys(family(row) for row in members if row["attack"] != NO_ATTACK))
            clean = [row for row in members if row["attack"] == NO_ATTACK]
            hit = [[row for row in members if family(row) == name] for name in families]
            panels += [(compared, clean, attacked) for attacked in hit or [[]]]
        widest = len(panels) // len(among)
        title = _titled("Scores of human, marked and attacked texts", group, groups)
        name = _named(prefix, "scores", number)
        sheet = Sheet(name, title, len(panels), columns=widest if 2 < widest < 6 else 4, height=1.5)
        for axes, (compared, clean, attacked) in zip(sheet.axes, panels):
            _score_panel(sheet, axes, results, clean, attacked, looks.colours[compared.method])
            about = family(attacked[0]) if attacked else "no attack"
            sheet.head(axes, f"{compared.label}: {about}" if len(among) > 1 else about)
        named = [{"p": "-log10 p"}.get(name, name) for name in statistics(rows)]
        sheet.name_axes(" or ".join(named), "share of texts (%)")
        yield sheet.finish(
            "Filled: before the attack. Lines: after it; with several rates, the lowest is light and the highest dark."
        )


def _score_panel(
    sheet: Sheet, axes: Axes, results: Results, clean: Sequence[Row], attacked: Sequence[Row], colour: str
) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    human = negatives(results, (*clean, *attacked)[0])
    marked = clean[0]["scores"] if clean else []
    edges = _edges(np.concatenate([human, marked, *(row["scores"] for row in attacked)]))
    if human:
        _bars(axes, human, edges, color=HUMAN, alpha=0.55, fill=True)
        sheet.explain("human", Patch(color=HUMAN, alpha=0.55, linewidth=0))
    if marked:
        _bars(axes, marked, edges, color=colour, alpha=0.35, fill=True)
        sheet.explain("marked", Patch(color=colour, alpha=0.35, linewidth=0), colour)
    by_rate = sorted(attacked, key=lambda row: row["rate"] or 0)
    for place in sorted({0, len(by_rate) - 1}) if by_rate else ():
        dark = place == len(by_rate) - 1
        _bars(axes, by_rate[place]["scores"], edges, color=colour, alpha=1 if dark else 0.5, linewidth=1.5)
        sheet.explain("attacked", Line2D([], [], color=colour), colour)


def _edges(values: Floats, bins: int = 24) -> Floats:
    low, high = float(np.min(values)), float(np.max(values))
    return np.linspace(low, high if high > low else low + 1, bins + 1)


def _bars(axes: Axes, values: Sequence[float] | Floats, edges: Floats, **look: Any) -> Any:
    """Draw a histogram in percent of the values."""
    counts, _ = np.histogram(values, edges)
    return axes.stairs(100 * counts / max(1, len(values)), edges, **look)


def deltas(results: Results, looks: Looks, prefix: str) -> Iterator[Plot]:
    """Histograms of the number of sentences after an attack, relative to before."""
    groups = grouped([row for row in results["rows"] if row["deltas"] and row["attack"] != NO_ATTACK])
    edges = np.arange(0.25, 2.06, 0.1)  # 1 in the middle of a bar
    for number, (group, rows) in enumerate(groups.items()):
        attacks = list(dict.fromkeys(row["attack"] for row in rows))
        title = _titled("Sentences after an attack, relative to before", group, groups)
        sheet = Sheet(_named(prefix, "deltas", number), title, len(attacks), height=1.4, sharex=True, sharey=True)
        among = _writers(rows)
        for axes, attack in zip(sheet.axes, attacks):
            for compared in among:
                ratios = [row["deltas"] for row in rows if row["attack"] == attack and _writer(row) == compared]
                if ratios:
                    values, look = np.clip(ratios[0], 0.26, 2.04), looks.line(compared, among, marker=False)
                    if len(among) < 4:  # the fills of more would mix to grey
                        _bars(axes, values, edges, color=look["color"], alpha=0.15, fill=True)
                    sheet.explain(compared.label, _bars(axes, values, edges, linewidth=1.4, **look))
            axes.set_xticks([0.5, 1, 1.5, 2])
            sheet.head(axes, attack_label(attack))
        sheet.name_axes("sentences after / before", "share of texts (%)")
        yield sheet.finish("Values beyond the ends of the axis are counted at its ends.")


def _writer(row: Row) -> Variant:
    """The variant of a row without its detection options, which do not change what an attack does to a text."""
    return Variant(row["method"], "", variant(row).grid)


def _writers(rows: Sequence[Row]) -> list[Variant]:
    return list(dict.fromkeys(_writer(row) for row in rows))


def perplexity(results: Results, looks: Looks, prefix: str) -> Iterator[Plot]:
    """Box plots of perplexity, drawn horizontally so that long names have room."""
    groups = grouped([row for row in shape.quality(results) if row["perplexity"]])
    if not groups:
        return
    most = max(len(rows) for rows in groups.values())
    title = "Perplexity of the texts"
    sheet = Sheet(_named(prefix, "perplexity", 0), title, len(groups), columns=2, height=0.5 + 0.24 * most, sharex=True)
    for axes, (group, rows) in zip(sheet.axes, groups.items()):
        _boxes(axes, rows, looks)
        if label := group_label(group, groups):
            sheet.head(axes, label)
    oracles = ", ".join(dict.fromkeys(row["oracle"] for row in results["quality"] if row["oracle"]))
    sheet.name_axes(f"perplexity by {oracles}" if oracles else "perplexity")
    yield sheet.finish(
        "Box: the middle half of the texts, its line the median; whiskers: all but the outermost 5% on either side."
    )


def _boxes(axes: Axes, rows: Sequence[Quality], looks: Looks) -> None:
    for y, row in enumerate(rows):
        far_low, low, middle, high, far_high = np.quantile(row["perplexity"], (0.05, 0.25, 0.5, 0.75, 0.95))
        axes.plot([far_low, far_high], [y, y], color=INK, linewidth=0.9, marker="|", markersize=6, zorder=2)
        look: dict[str, Any] = {"color": looks.colours[row["method"]], "edgecolor": INK, "linewidth": 0.8, "zorder": 3}
        axes.barh(y, high - low, 0.6, left=low, **look)
        axes.plot([middle, middle], [y - 0.3, y + 0.3], color=INK, linewidth=1.8, solid_capstyle="butt", zorder=4)
    axes.set_yticks(range(len(rows)), ["\n".join(textwrap.wrap(variant(row).label, 24)[:2]) for row in rows])
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.grid(visible=False, axis="y")


def null(results: Results, looks: Looks, prefix: str) -> Iterator[Plot]:
    """Histograms of z of human texts, by block size, in grey because block sizes are not methods."""
    sizes = sorted((size for size, values in results["null"].items() if values), key=lambda size: (len(size), size))
    if not sizes:
        return
    title = "Scores (z) of human texts under random keys, by block size M"
    sheet = Sheet(_named(prefix, "null", 0), title, len(sizes), height=1.6, sharex=True, sharey=True)
    edges = _edges(np.concatenate([results["null"][size] for size in sizes]), 32)
    for axes, size in zip(sheet.axes, sizes):
        values = np.asarray(results["null"][size])
        _bars(axes, values, edges, color=HUMAN, alpha=0.6, fill=True)
        axes.axvline(float(values.mean()), color=INK, linewidth=1)
        sheet.head(axes, f"M = {size}: mean {values.mean():.3f}, sd {values.std():.3f}")
    sheet.name_axes("z", "share of texts (%)")
    yield sheet.finish("Scores by chance alone; marked texts score higher. Line: the mean.")


def runtime(results: Results, looks: Looks, prefix: str) -> Iterator[Plot]:
    """Seconds to detect one text, by its number of sentences."""
    rows = results["runtime"]
    if not rows:
        return
    sheet = Sheet(_named(prefix, "runtime", 0), "Seconds to detect one text, by its number of sentences", 1, height=2.3)
    axes, among = sheet.axes[0], variants(rows)
    for compared in among:
        points = sorted((row["sentences"], row["seconds"]) for row in rows if variant(row) == compared)
        (line,) = axes.plot(*zip(*points), **looks.line(compared, among))
        sheet.explain(compared.label, line)
    _log_axis(axes, "xy")
    lengths = sorted({row["sentences"] for row in rows})
    axes.set_xticks(lengths, [str(length) for length in lengths])
    axes.set(xlabel="sentences N", ylabel="seconds")
    yield sheet.finish("Both axes are logarithmic; the time includes embedding.")


_SECTIONS = {
    "detection": (rates, settings, roc, scores),
    "attacks": (deltas,),
    "human": (null,),
    "quality": (perplexity,),
    "runtime": (runtime,),
}
