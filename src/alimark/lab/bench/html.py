"""Renders a report as one HTML page with Jinja2. Autoescape is on, so no text of the results becomes markup."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from itertools import groupby
from typing import TYPE_CHECKING

from alimark.lab.bench.cells import PAPER, Column, Line, Table
from alimark.lab.bench.shape import example_figures, example_title, passages
from alimark.lab.bench.sheet import Plot

if TYPE_CHECKING:
    from jinja2 import Environment

    from alimark.lab.bench.report import Chapter, Part

_LONG = 420
"""Characters of an example that are shown without unfolding it."""


def page(chapters: Sequence[Chapter], palette: Mapping[str, str]) -> str:
    """The page with one chapter for each recipe; `palette` holds the colour of each method."""
    from markupsafe import Markup

    script = _file("report.js")
    # These two are files of this package and the palette, never text of the results.
    style = Markup(_file("report.css") + _swatches(palette))
    return _environment().get_template("page.html.j2").render(
        chapters=chapters,
        title=chapters[0].title if len(chapters) == 1 else "Watermarks under attack",
        swatches={method: number for number, method in enumerate(palette)},
        style=style,
        script=Markup(script),
        policy=_policy(script),
    )  # fmt: skip


@cache
def _environment() -> Environment:
    from jinja2 import Environment, PackageLoader, StrictUndefined
    from markupsafe import Markup

    environment = Environment(
        loader=PackageLoader("alimark.lab.bench"),
        autoescape=True,
        finalize=_printable,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "kind": _kind, "header_rows": _header_rows, "bodies": _bodies, "column_classes": _column_classes,
        "beginning": _beginning, "svg": lambda plot: Markup(plot.svg),
        "example_title": example_title, "example_figures": example_figures, "passages": passages,
    }  # fmt: skip
    return environment


def _printable(value: object) -> object:
    """Replace control characters in every text that a template shows."""
    if not isinstance(value, str) or hasattr(value, "__html__"):
        return value
    return "".join(c if c.isprintable() or c in "\n\t" else "\ufffd" for c in value)


def _file(name: str) -> str:
    return resources.files("alimark").joinpath("lab", "bench", name).read_text("utf-8")


def _policy(script: str) -> str:
    """A content security policy: the page loads nothing, and runs no script except this one."""
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'; img-src data:"


def _swatches(palette: Mapping[str, str]) -> str:
    return "".join(f".m{i} {{ --own: {colour}; }}\n" for i, colour in enumerate(palette.values()))


def _kind(part: Part) -> str:
    if isinstance(part, Table):
        return "table"
    if isinstance(part, Plot):
        return "plot"
    return "example" if isinstance(part, dict) else "code"


@dataclass(frozen=True)
class _Heading:
    """A heading of a table: of one column at `place`, or of several columns."""

    text: str
    classes: Sequence[str] = ()
    place: int | None = None
    columns: int = 1
    rows: int = 1


def _header_rows(columns: Sequence[Column]) -> list[list[_Heading]]:
    """One row of headings, or two if neighbouring columns share a heading."""
    if not any(column.over for column in columns):
        return [[_Heading(column.label, _column_classes(column), i) for i, column in enumerate(columns)]]
    upper, lower = [], []
    for over, group in groupby(enumerate(columns), key=lambda pair: pair[1].over):
        members = list(group)
        if over:
            upper.append(_Heading(over, columns=len(members)))
            first = members[0][0]
            lower += [
                _Heading(column.label, _column_classes(column) + (["first"] if i == first else []), i)
                for i, column in members
            ]
        else:
            upper += [_Heading(column.label, _column_classes(column), i, rows=2) for i, column in members]
    return [upper, lower]


def _column_classes(column: Column) -> list[str]:
    return (["num"] if column.number else []) + (["paper"] if column.label == PAPER else [])


def _bodies(table: Table) -> Iterator[tuple[str, list[Line]]]:
    """The lines of each group. Each group is a table body of its own, so that sorting keeps groups together."""
    for group, lines in groupby(table.lines, key=lambda line: line.group):
        yield group, list(lines)


def _beginning(text: str) -> str:
    """The beginning of a text that is too long to show unfolded; empty if it is not."""
    if len(text) <= _LONG:
        return ""
    start = text[: _LONG - 60]
    return start.rpartition(" ")[0] or start
