"""A sheet of panels with one look and one legend, and the plot that it becomes: an SVG that follows the page, and a PNG."""

from __future__ import annotations

import io
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

from alimark.bench.shape import GREYS, Variant

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Colours that nothing else has, so that they are found again in the SVG and given over to the page.
INK, RULE = "#2b2c2d", "#d3d4d5"

_MARKERS = "os^DvPX<>"
_DASHES: tuple[Any, ...] = ("-", (0, (5, 1.6)), (0, (1.3, 1.3)), (0, (6, 1.6, 1.3, 1.6)), (0, (9, 3)), (0, (2, 4)))

_DOTS = 130
"""An inch, of a PNG."""

_STYLE: dict[str, Any] = {
    "axes.titley": 1.0,  # given, it is not looked for: a sixth of the time
    "font.family": ["DejaVu Sans"], "font.size": 9, "axes.titlesize": 9, "axes.labelsize": 9, "legend.fontsize": 9,
    "xtick.labelsize": 8, "ytick.labelsize": 8, "figure.titlesize": 11, "figure.titleweight": "bold",
    "text.color": INK, "axes.edgecolor": INK, "axes.labelcolor": INK, "axes.titlecolor": INK, "xtick.color": INK,
    "ytick.color": INK, "axes.linewidth": 0.7, "xtick.major.width": 0.7, "ytick.major.width": 0.7,
    "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True, "axes.axisbelow": True, "grid.color": RULE,
    "grid.linewidth": 0.6, "lines.linewidth": 1.6, "lines.markersize": 4.5, "legend.frameon": False,
    "figure.facecolor": "none", "axes.facecolor": "none",
    "svg.fonttype": "none",   # text that the page can restyle and a reader can search
    "text.parse_math": False,  # a dollar in a label is a dollar
}  # fmt: skip


@dataclass(frozen=True)
class Plot:
    name: str
    """Of its file; unlike any other of the same recipe."""
    title: str
    caption: str
    svg: str
    png: bytes
    folded: bool = False


@dataclass(frozen=True)
class Looks:
    """How methods are told apart, the same on every plot of a page: colour and marker by method, dashes by what is varied."""

    colours: Mapping[str, str]

    def line(self, own: Variant, among: Sequence[Variant], marker: bool = True) -> dict[str, Any]:
        kin = [one for one in among if one.method == own.method]
        place = list(self.colours).index(own.method) - len(GREYS)
        look = {"color": self.colours[own.method], "linestyle": _DASHES[kin.index(own) % len(_DASHES)]}
        return look | ({"marker": _MARKERS[place % len(_MARKERS)]} if marker else {})


@contextmanager
def style(name: str) -> Iterator[None]:
    """The look of all plots whatever the reader's own settings are; ids that are the same in every run."""
    from matplotlib import style as styles

    with styles.context(["default", _STYLE | {"svg.hashsalt": name}]):
        yield


class Sheet:
    """A title, panels in rows, and one legend for all of them below."""

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
        self.columns = -(-count // -(-count // columns))  # no row much shorter than the others
        self.width = {1: 6.0, 2: 8.0}.get(self.columns, 10.4)
        self.rows = -(-count // self.columns)
        self._legend: dict[str, dict[str, Any]] = {}
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
        """A panel's title, at most two lines."""
        lines = textwrap.wrap(text, max(12, int(self.width / self.columns * 11)))
        axes.set_title("\n".join(lines[:2]) + ("…" if len(lines) > 2 else ""), loc="left")

    def name_axes(self, x: str, y: str = "") -> None:
        """The lowest panel of each column names x; y is the same for all."""
        for axes in self.axes[-self.columns :]:
            axes.set_xlabel(x)
            axes.tick_params(labelbottom=True)  # where axes are shared, only those of the last row have labels
        if y:
            self.figure.supylabel(y, fontsize=9)

    def explain(self, label: str, handle: Any, key: str = "") -> None:
        """An entry of the legend; what differs by `key` only shares one, which shows the first three."""
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
        entries = [tuple(some.values())[:3] for some in self._legend.values()]
        handles: list[Any] = [entry if len(entry) > 1 else entry[0] for entry in entries]
        labels = [f" {label}" for label in self._legend]  # one that begins with _ would be left out
        self.figure.set_figheight(self.figure.get_figheight() + 0.2 * -(-len(labels) // columns))
        look: dict[str, Any] = {"ncols": columns, "handler_map": {tuple: HandlerTuple(ndivide=None, pad=0.2)}}
        self.figure.legend(handles, labels, loc="outside lower center", **look)

    def _save(self) -> tuple[bytes, bytes]:
        """Both from one layout; `savefig` would lay out twice and draw four times, which takes minutes for a long report."""
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
    """An SVG that stands within a page: its ids its own, ink and rules in the page's colours, no style of its own."""
    root = ElementTree.fromstring(svg)
    used = {
        part.partition(")")[0] for one in root.iter() for value in one.attrib.values() for part in value.split("#")[1:]
    }
    for element in root.iter():
        element.tag = element.tag.rpartition("}")[2]
        attributes = {key.rpartition("}")[2]: value for key, value in element.attrib.items()}
        if attributes.get("id") not in used:
            attributes.pop("id", None)
        element.attrib.clear()
        element.attrib.update({key: _own(key, value, name) for key, value in attributes.items()})
    _drop(root, {"metadata", "style"})
    width = float(root.attrib.pop("width").removesuffix("pt")) * 4 / 3
    root.attrib.pop("height")
    root.attrib |= {"role": "img", "aria-label": title, "style": f"--wide: {width:.0f}px"}
    return ElementTree.tostring(root, encoding="unicode")


def _own(key: str, value: str, name: str) -> str:
    if key == "id":
        return f"{name}-{value}"
    if key == "style":
        return value.replace(INK, "currentColor").replace(RULE, "var(--rule)").replace("'DejaVu Sans'", "inherit")
    if key == "d":
        return " ".join(_short(part) for part in value.split())
    return value.replace("#", f"#{name}-") if value.startswith(("#", "url(#")) else value


def _short(number: str) -> str:
    """A hundredth of a point is as good as a millionth, and half the size."""
    try:
        return f"{float(number):.2f}".rstrip("0").rstrip(".")
    except ValueError:
        return number


def _drop(root: ElementTree.Element, tags: set[str]) -> None:
    for parent in list(root.iter()):
        for child in [child for child in parent if child.tag in tags]:
            parent.remove(child)
