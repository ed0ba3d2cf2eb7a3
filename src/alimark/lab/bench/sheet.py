"""A figure of several panels with one legend, saved as an SVG that takes the page's colours, and as a PNG."""

from __future__ import annotations

import io
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

from alimark.lab.bench.shape import GREYS, Variant

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Colours that are used for nothing else, so that they can be replaced in the SVG by the page's colours.
INK, RULE = "#2b2c2d", "#d3d4d5"

_MARKERS = "os^DvPX<>"
_DASHES: tuple[Any, ...] = ("-", (0, (5, 1.6)), (0, (1.3, 1.3)), (0, (6, 1.6, 1.3, 1.6)), (0, (9, 3)), (0, (2, 4)))

_DOTS = 130
"""Dots per inch of a PNG."""

Style = dict[str, Any]
"""Options of matplotlib, by name."""

_STYLE: Style = {
    "axes.titley": 1.0,  # a fixed position; finding it automatically takes a sixth of the drawing time
    "font.family": ["DejaVu Sans"], "font.size": 9, "axes.titlesize": 9, "axes.labelsize": 9, "legend.fontsize": 9,
    "xtick.labelsize": 8, "ytick.labelsize": 8, "figure.titlesize": 11, "figure.titleweight": "bold",
    "text.color": INK, "axes.edgecolor": INK, "axes.labelcolor": INK, "axes.titlecolor": INK, "xtick.color": INK,
    "ytick.color": INK, "axes.linewidth": 0.7, "xtick.major.width": 0.7, "ytick.major.width": 0.7,
    "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True, "axes.axisbelow": True, "grid.color": RULE,
    "grid.linewidth": 0.6, "lines.linewidth": 1.6, "lines.markersize": 4.5, "legend.frameon": False,
    "figure.facecolor": "none", "axes.facecolor": "none",
    "svg.fonttype": "none",   # real text, which the page can restyle and a reader can search
    "text.parse_math": False,  # a dollar sign in a label does not start a formula
}  # fmt: skip


@dataclass(frozen=True)
class Plot:
    name: str
    """The name of the file, different for each plot of a page."""
    title: str
    caption: str
    svg: str
    png: bytes
    folded: bool = False


@dataclass(frozen=True)
class Looks:
    """How methods look on all plots of a page: a colour and a marker for each method, dashes for its variants."""

    colours: Mapping[str, str]

    def line(self, variant: Variant, among: Sequence[Variant], marker: bool = True) -> Style:
        """Matplotlib's options for the line of a variant."""
        of_method = [other for other in among if other.method == variant.method]
        place = list(self.colours).index(variant.method) - len(GREYS)
        dashes = _DASHES[of_method.index(variant) % len(_DASHES)]
        look = {"color": self.colours[variant.method], "linestyle": dashes}
        return look | ({"marker": _MARKERS[place % len(_MARKERS)]} if marker else {})


@contextmanager
def style(name: str) -> Iterator[None]:
    """The style of all plots, independent of the user's settings, with ids that are the same in every run."""
    from matplotlib import style as styles

    with styles.context(["default", _STYLE | {"svg.hashsalt": name}]):
        yield


class Sheet:
    """A figure with a title, panels in rows, and one legend for all of them below."""

    def __init__(
        self,
        name: str,
        title: str,
        count: int,
        *,
        columns: int = 4,
        height: float = 2.0,
        sharex: bool | str = False,
        sharey: bool | str = False,
    ) -> None:
        from matplotlib.figure import Figure

        self.name, self.title = name, title
        self.columns = -(-count // -(-count // columns))  # as many columns as give rows of about equal length
        self.width = {1: 6.0, 2: 8.0}.get(self.columns, 10.4)
        self.rows = -(-count // self.columns)
        self._legend: dict[str, dict[str, object]] = {}
        panel = height * {1: 1.4, 2: 1.2}.get(self.columns, 1.0)
        lines = textwrap.wrap(title, int(self.width * 9.2))
        self.figure: Figure = Figure(figsize=(self.width, self.rows * (panel + 0.35) + 0.25 * len(lines) + 0.35))
        self.figure.set_layout_engine("constrained", h_pad=0.07, w_pad=0.06)
        grid = self.figure.subplots(self.rows, self.columns, squeeze=False, sharex=sharex, sharey=sharey)  # type: ignore[arg-type]
        self.axes: list[Axes] = list(grid.flat)
        for spare in self.axes[count:]:
            spare.remove()
        self.axes = self.axes[:count]
        self.figure.suptitle("\n".join(lines), x=0.01, ha="left")

    def head(self, axes: Axes, text: str) -> None:
        """Set the title of a panel, in at most two lines."""
        lines = textwrap.wrap(text, max(12, int(self.width / self.columns * 11)))
        axes.set_title("\n".join(lines[:2]) + ("…" if len(lines) > 2 else ""), loc="left")

    def name_axes(self, x: str, y: str = "") -> None:
        """Label the x axis of the lowest panel in each column; `y` is one label for all panels."""
        for axes in self.axes[-self.columns :]:
            axes.set_xlabel(x)
            axes.tick_params(labelbottom=True)  # matplotlib labels only the last row if axes are shared
        if y:
            self.figure.supylabel(y, fontsize=9)

    def explain(self, label: str, handle: object, key: str = "") -> None:
        """Add an entry to the legend; handles with the same label and different keys share one entry, which shows three."""
        self._legend.setdefault(label, {}).setdefault(key, handle)

    def finish(self, caption: str, *, folded: bool = False) -> Plot:
        if self._legend:
            self._explain_all()
        svg, png = self._save()
        return Plot(self.name, self.title, caption, inline(svg, self.title, self.name), png, folded)

    def _explain_all(self) -> None:
        from matplotlib.legend_handler import HandlerTuple

        widest = max(len(label) for label in self._legend)
        columns = max(1, min(len(self._legend), int(self.width * 12 / (widest + 7))))
        entries = [tuple(handles.values())[:3] for handles in self._legend.values()]
        drawn: list[Any] = [entry if len(entry) > 1 else entry[0] for entry in entries]
        labels = [f" {label}" for label in self._legend]  # matplotlib leaves out labels that begin with _
        self.figure.set_figheight(self.figure.get_figheight() + 0.2 * -(-len(labels) // columns))
        look: Style = {"ncols": columns, "handler_map": {tuple: HandlerTuple(ndivide=None, pad=0.2)}}
        self.figure.legend(drawn, labels, loc="outside lower center", **look)

    def _save(self) -> tuple[bytes, bytes]:
        """The SVG and the PNG from one layout; `savefig` would compute the layout twice and draw four times, which is slow."""
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.backends.backend_svg import FigureCanvasSVG

        vector, pixels = io.StringIO(), io.BytesIO()
        drawn: Any = FigureCanvasSVG(self.figure)  # whose methods have no types
        self.figure.set_dpi(72)
        drawn.print_svg(vector, metadata={"Date": None, "Creator": None})
        self.figure.set_layout_engine("none")
        self.figure.set_dpi(_DOTS)
        self.figure.set_facecolor("white")
        drawn = FigureCanvasAgg(self.figure)
        drawn.print_png(pixels, metadata={"Software": None})
        return vector.getvalue().encode(), pixels.getvalue()


def inline(svg: bytes, title: str, name: str) -> str:
    """The SVG as an element of a page: with unique ids, with the page's colours, and without a style sheet."""
    root = ElementTree.fromstring(svg)
    values = (value for element in root.iter() for value in element.attrib.values())
    used = {part.partition(")")[0] for value in values for part in value.split("#")[1:]}
    for element in root.iter():
        element.tag = element.tag.rpartition("}")[2]
        attributes = {key.rpartition("}")[2]: value for key, value in element.attrib.items()}
        if attributes.get("id") not in used:
            attributes.pop("id", None)
        element.attrib.clear()
        element.attrib.update({key: _attribute(key, value, name) for key, value in attributes.items()})
    _drop(root, {"metadata", "style"})
    width = float(root.attrib.pop("width").removesuffix("pt")) * 4 / 3
    root.attrib.pop("height")
    root.attrib |= {"role": "img", "aria-label": title, "style": f"--wide: {width:.0f}px"}
    return ElementTree.tostring(root, encoding="unicode")


def _attribute(key: str, value: str, name: str) -> str:
    if key == "id":
        return f"{name}-{value}"
    if key == "style":
        return value.replace(INK, "currentColor").replace(RULE, "var(--rule)").replace("'DejaVu Sans'", "inherit")
    if key == "d":
        return " ".join(_short(part) for part in value.split())
    return value.replace("#", f"#{name}-") if value.startswith(("#", "url(#")) else value


def _short(number: str) -> str:
    """A coordinate with two decimals: hundredths of a point are exact enough and take half the space."""
    try:
        return f"{float(number):.2f}".rstrip("0").rstrip(".")
    except ValueError:
        return number


def _drop(root: ElementTree.Element, tags: set[str]) -> None:
    for parent in list(root.iter()):
        for child in [child for child in parent if child.tag in tags]:
            parent.remove(child)
