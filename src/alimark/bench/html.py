"""A report as one HTML page. Every text goes through `_text`, so none of it becomes markup."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping, Sequence
from html import escape
from importlib import resources
from itertools import groupby
from typing import TYPE_CHECKING

from alimark.bench.cells import PAPER, Cell, Column, Table
from alimark.bench.results import Example
from alimark.bench.shape import attack_label
from alimark.bench.sheet import Plot

if TYPE_CHECKING:
    from alimark.bench.report import Chapter, Code, Part, Section

_LONG = 420
"""Characters of an example that are shown unfolded."""


def page(chapters: Sequence[Chapter], palette: Mapping[str, str]) -> str:
    title = chapters[0].title if len(chapters) == 1 else "Watermarks under attack"
    style, script = _file("report.css") + _swatches(palette), _file("report.js")
    several = len(chapters) > 1
    body = [f"<h1>{_text(title)}</h1>"] if several or not chapters else []
    body += [_contents(chapters)] if several else []
    body += [_chapter(chapter, palette, several) for chapter in chapters]
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_policy(script)}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f"<title>{_text(title)}</title>\n<style>\n{style}</style>\n</head>\n<body>\n<main>\n"
        + "\n".join(body)
        + f"\n</main>\n<script>{script}</script>\n</body>\n</html>\n"
    )


def _file(name: str) -> str:
    return resources.files("alimark").joinpath("bench", name).read_text("utf-8")


def _policy(script: str) -> str:
    """Nothing is loaded from anywhere, and no script runs but the page's own."""
    own = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{own}'; img-src data:"


def _swatches(palette: Mapping[str, str]) -> str:
    return "".join(f".m{i} {{ --own: {colour}; }}\n" for i, colour in enumerate(palette.values()))


def _text(text: str) -> str:
    return escape("".join(c if c.isprintable() or c in "\n\t" else "\ufffd" for c in text))


def _contents(chapters: Sequence[Chapter]) -> str:
    lines = [
        f'<li><a href="#{chapter.slug}">{_text(chapter.title)}</a> {_sections(chapter.sections)}</li>'
        for chapter in chapters
    ]
    return "\n".join(['<nav aria-label="Contents"><ol>', *lines, "</ol></nav>"])


def _sections(sections: Sequence[Section]) -> str:
    links = " ".join(f'<a href="#{section.slug}">{_text(section.title)}</a>' for section in sections)
    return f'<span class="sections">{links}</span>'


def _chapter(chapter: Chapter, palette: Mapping[str, str], several: bool) -> str:
    level = 2 if several else 1
    parts = [f'<article id="{chapter.slug}">', f"<h{level}>{_text(chapter.title)}</h{level}>"]
    parts += [f'<p class="summary">{_text(chapter.summary)}</p>'] if chapter.summary else []
    parts += [] if several else [f'<nav aria-label="Sections">{_sections(chapter.sections)}</nav>']
    for section in chapter.sections:
        parts.append(f'<section id="{section.slug}"><h{level + 1}>{_text(section.title)}</h{level + 1}>')
        parts += [_part(part, palette) for part in section.parts]
        parts.append("</section>")
    return "\n".join([*parts, "</article>"])


def _part(part: Part, palette: Mapping[str, str]) -> str:
    if isinstance(part, Table):
        return _table(part, palette)
    if isinstance(part, Plot):
        return _plot(part)
    return _example(part, palette) if isinstance(part, dict) else _code(part)


def _folded(title: str, content: str) -> str:
    return f'<details class="fold"><summary>{_text(title)}</summary>\n{content}\n</details>'


def _plot(plot: Plot) -> str:
    drawn = f'<figure class="plot"><div class="scroll">{plot.svg}</div><figcaption>{_text(plot.caption)}</figcaption></figure>'
    return _folded(plot.title, drawn) if plot.folded else drawn


def _code(code: Code) -> str:
    return _folded(code.title, f"<pre>{_text(code.text)}</pre>")


# --- Tables


def _table(table: Table, palette: Mapping[str, str]) -> str:
    notes = [table.note] + ([f"Best bold, second underlined, among {table.ranked}."] if table.ranked else [])
    note = " ".join(part for part in notes if part)
    caption = "" if table.folded else f"<strong>{_text(table.title)}</strong>"
    below = f"<figcaption>{_text(note)}</figcaption>" if note else ""
    rows = "\n".join(_bodies(table, palette))
    drawn = (
        f'<figure class="table">{caption}<div class="scroll"><table aria-label="{_text(table.title)}">\n'
        f"<thead>{_head(table.columns)}</thead>\n{rows}\n</table></div>{below}</figure>"
    )
    return _folded(table.title, drawn) if table.folded else drawn


def _head(columns: Sequence[Column]) -> str:
    """One row of headings, or two where neighbours share one."""
    if not any(column.over for column in columns):
        return f"<tr>{''.join(_heading(i, column) for i, column in enumerate(columns))}</tr>"
    upper, lower = [], []
    for over, members in groupby(enumerate(columns), key=lambda pair: pair[1].over):
        own = list(members)
        if over:
            upper.append(f'<th colspan="{len(own)}" scope="colgroup" class="over">{_text(over)}</th>')
            lower += [_heading(i, column, first=i == own[0][0]) for i, column in own]
        else:
            upper += [_heading(i, column, rows=2) for i, column in own]
    return f"<tr>{''.join(upper)}</tr><tr>{''.join(lower)}</tr>"


def _heading(place: int, column: Column, *, rows: int = 1, first: bool = False) -> str:
    kinds = _kinds(column) + (["first"] if first else [])
    span = f' rowspan="{rows}"' if rows > 1 else ""
    return f'<th scope="col" data-column="{place}"{_class(kinds)}{span}>{_text(column.label)}</th>'


def _kinds(column: Column) -> list[str]:
    return (["num"] if column.number else []) + (["paper"] if column.label == PAPER else [])


def _class(kinds: Sequence[str]) -> str:
    return f' class="{" ".join(kinds)}"' if kinds else ""


def _bodies(table: Table, palette: Mapping[str, str]) -> list[str]:
    """A body for each group of lines, so that sorting keeps groups together."""
    bodies = []
    for group, members in groupby(table.lines, key=lambda line: line.group):
        rows = [
            f'<tr class="group"><th colspan="{len(table.columns)}" scope="rowgroup"><span>{_text(group)}</span></th></tr>'
        ]
        rows = rows if group else []
        for line in members:
            cells = "".join(
                _cell(cell, column, palette) for cell, column in zip(line.cells, table.columns, strict=True)
            )
            rows.append(f"<tr>{cells}</tr>")
        bodies.append("<tbody>\n" + "\n".join(rows) + "\n</tbody>")
    return bodies


_TAGS = {"best": "b", "second": "u"}


def _cell(cell: Cell, column: Column, palette: Mapping[str, str]) -> str:
    text = _text(cell.text)
    if tag := _TAGS.get(cell.mark):
        text = f"<{tag}>{text}</{tag}>"
    if cell.mark == "high":
        text = f'<span class="high">▲ {text}</span>'
    if cell.method in palette:
        text = f'<span class="method m{list(palette).index(cell.method)}">{text}</span>'
    small = f"<small>{_text(cell.small)}</small>" if cell.small else ""
    sort = "" if cell.value is None else f' data-value="{cell.value:.6g}"'
    return f"<td{_class(_kinds(column))}{sort}>{text}{small}</td>"


# --- Examples


def _example(example: Example, palette: Mapping[str, str]) -> str:
    hit = example["attacked"] and example["attack"]
    title = _text(example["method"]) + (f" under {_text(attack_label(example['attack']))}" if hit else "")
    if example["method"] in palette:
        title = f'<span class="method m{list(palette).index(example["method"])}">{title}</span>'
    told = {
        "prompt": example["prompt"],
        "human": example["human"],
        "marked": example["marked"],
        "attacked": example["attacked"],
    }
    rows = [_passage(example, kind, text) for kind, text in told.items() if text]
    start = f'<table class="example"><caption>{title}</caption><tbody>'
    return "\n".join([start, *rows, "</tbody></table>"])


def _passage(example: Example, kind: str, text: str) -> str:
    figures = ""
    if kind in example["scores"]:
        figures += f"<small>score {example['scores'][kind]:.2f}</small>"
    if kind in example["p_values"]:
        figures += f"<small>p = {example['p_values'][kind]:.3g}</small>"
    return f'<tr><th scope="row">{kind}{figures}</th><td>{_fold_text(text)}</td></tr>'


def _fold_text(text: str) -> str:
    if len(text) <= _LONG:
        return f"<p>{_text(text)}</p>"
    start = text[: _LONG - 60].rpartition(" ")[0] or text[: _LONG - 60]
    return f'<details><summary><span class="start">{_text(start)} …</span></summary><p>{_text(text)}</p></details>'
