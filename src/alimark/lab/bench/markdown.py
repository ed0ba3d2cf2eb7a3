"""Renders a report as Markdown, with the same tables; plots are separate files."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from alimark.lab.bench.cells import Cell, Table
from alimark.lab.bench.results import Example
from alimark.lab.bench.shape import example_figures, example_title, passages
from alimark.lab.bench.sheet import Plot

if TYPE_CHECKING:
    from alimark.lab.bench.report import Chapter, Code, Part

PLOTS = "plots"
"""The folder of the plots, in the folder of the report."""

_ESCAPED = re.compile(r"([\\`*_\[\]|~$])")
_LINE_START = re.compile(r"^(\s*\d*)([#+=.)-])", re.MULTILINE)


def page(chapters: Sequence[Chapter]) -> str:
    several = len(chapters) > 1
    blocks = ["# Watermarks under attack"] if several or not chapters else []
    blocks += ["\n".join(f"- [{_text(chapter.title)}](#{chapter.slug})" for chapter in chapters)] if several else []
    for chapter in chapters:
        level = "##" if several else "#"
        blocks += [f'<a id="{chapter.slug}"></a>'] if several else []
        blocks += [f"{level} {_text(chapter.title)}", *([_text(chapter.summary)] if chapter.summary else [])]
        for section in chapter.sections:
            blocks += [f"{level}# {_text(section.title)}", *(_part(part) for part in section.parts)]
    return "\n\n".join(blocks) + "\n"


def _text(text: str) -> str:
    """The text on one line, with everything escaped that has a meaning in Markdown or HTML."""
    return _escape(" ".join(text.split()))


def _escape(text: str) -> str:
    text = "".join(c if c.isprintable() or c == "\n" else " " for c in text)
    return _ESCAPED.sub(r"\\\1", text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;"))


def _part(part: Part) -> str:
    if isinstance(part, Table):
        return render_table(part)
    if isinstance(part, Plot):
        return f"![{_text(part.title)}]({PLOTS}/{part.name}.png)\n\n{_text(part.caption)}"
    return _example(part) if isinstance(part, dict) else _code(part)


def render_table(table: Table) -> str:
    by_group = any(line.group for line in table.lines)
    names = [f"{column.over} {column.label}".strip() for column in table.columns]
    rules = ["--:" if column.number else ":--" for column in table.columns]
    rows = [[_cell(cell) for cell in line.cells] for line in table.lines]
    if by_group:
        names, rules = [table.grouped_by, *names], [":--", *rules]
        rows = [[_text(line.group), *row] for line, row in zip(table.lines, rows)]
    lines = [_row([_text(name) for name in names]), _row(rules), *(_row(row) for row in rows)]
    note = _text(table.note)
    if table.ranked:
        note = f"{note} Best **bold**, second _in italics_, among {_text(table.ranked)}.".strip()
    note = f"{note} {_text(table.unranked)}".strip()
    return "\n\n".join(part for part in (f"**{_text(table.title)}**", "\n".join(lines), note) if part)


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _cell(cell: Cell) -> str:
    text = _text(cell.text)
    text = {"best": f"**{text}**", "second": f"_{text}_", "high": f"▲ {text}"}.get(cell.mark, text)
    return f"{text} ({_text(cell.small)})" if cell.small else text


def _code(code: Code) -> str:
    fence = "`" * (2 + max((len(run) for run in re.findall(r"`+", code.text)), default=1))
    return f"**{_text(code.title)}**\n\n{fence}toml\n{code.text.rstrip()}\n{fence}"


def _example(example: Example) -> str:
    parts = [f"**{_text(example_title(example))}**"]
    for kind, text in passages(example):
        figures = ", ".join(example_figures(example, kind))
        parts.append(f"{kind} ({figures}):\n\n{_quote(text)}" if figures else f"{kind}:\n\n{_quote(text)}")
    return "\n\n".join(parts)


def _quote(text: str) -> str:
    """The text as a quotation; characters that would start a heading, a list or a rule are escaped."""
    lines = (_LINE_START.sub(r"\1\\\2", line.strip()) for line in _escape(text).splitlines())
    return "\n".join(f"> {line}" for line in lines)
