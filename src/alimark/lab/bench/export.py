"""Writes a table of results as CSV, LaTeX or Markdown, for papers and spreadsheets."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable
from itertools import groupby
from typing import Literal, get_args

from alimark.lab.bench.tables import Table, TableCell

Format = Literal["csv", "latex", "markdown"]
FORMATS: tuple[Format, ...] = get_args(Format)


def export(table: Table, form: Format) -> str:
    """The table as text in a format.

    Args:
        table: The table.
        form: "csv" has a column for each figure, columns for the ends of its interval and for the figure with failed texts as
            misses, and the note in the last one; "latex" is a `table` that needs the
            package booktabs; "markdown" is what the report has.

    Returns:
        The text of a file.
    """
    writers: dict[Format, Callable[[Table], str]] = {"csv": to_csv, "latex": to_latex, "markdown": to_markdown}
    return writers[form](table)


# --- CSV


def to_csv(table: Table) -> str:
    """The table as CSV: shares are numbers between 0 and 1, and an interval has two columns of its own.

    Where texts failed, a column has the figures with these as misses. The last column has the note, which names the statistic.
    """
    columns: list[list[str]] = []
    if any(line.group for line in table.lines):
        columns.append([_safe(table.grouped_by or "group"), *(_safe(line.group) for line in table.lines)])
    for i, column in enumerate(table.columns):
        cells, name = [line.cells[i] for line in table.lines], _safe(column.name)
        columns.append([name, *(_figure(cell.value, cell.text) for cell in cells)])
        if any(cell.interval for cell in cells):
            for place, end in enumerate(("low", "high")):
                ends = (cell.interval[place] if cell.interval else None for cell in cells)
                columns.append([f"{name} {end}", *map(_figure, ends)])
        if any(cell.every is not None for cell in cells):
            with_failed = (cell.value if cell.every is None else cell.every for cell in cells)
            columns.append([f"{name}, failed as misses", *map(_figure, with_failed)])
    if table.note:
        columns.append(["note", *[_safe(table.note)] * len(table.lines)])
    file = io.StringIO()
    csv.writer(file).writerows(zip(*columns, strict=True))
    return file.getvalue()


def _figure(value: float | None, text: str = "") -> str:
    return _safe(text) if value is None else f"{value:.6g}"


def _safe(text: str) -> str:
    """The text; one that a spreadsheet would take for a formula gets an apostrophe before it."""
    return f"'{text}" if re.match(r"[=+\-@\t\r]", text) else text


# --- LaTeX

_LATEX = {
    "\\": r"\textbackslash{}", "{": r"\{", "}": r"\}", "%": r"\%", "&": r"\&", "#": r"\#", "_": r"\_", "$": r"\$",
    "^": r"\textasciicircum{}", "~": r"\textasciitilde{}", "≤": r"$\leq$", "–": "--", "·": r"$\cdot$", "▲": r"$\uparrow$",
}  # fmt: skip


def to_latex(table: Table) -> str:
    """The table as LaTeX with booktabs; the best is bold, the second underlined, and intervals are in small print."""
    letters = "".join("r" if column.number else "l" for column in table.columns)
    lines = [r"\begin{table}", r"\centering", rf"\caption{{{_latex(table.title)}}}", rf"\begin{{tabular}}{{{letters}}}"]
    upper: list[str] = []
    for over, members in groupby(table.columns, key=lambda column: column.over):
        width = len(list(members))
        upper += [rf"\multicolumn{{{width}}}{{c}}{{{_latex(over)}}}"] if over else [""] * width
    lines += [r"\toprule", *([" & ".join(upper) + r" \\"] if any(upper) else [])]
    lines += [" & ".join(_latex(column.label) for column in table.columns) + r" \\", r"\midrule"]
    for place, (group, of_group) in enumerate(groupby(table.lines, key=lambda line: line.group)):
        if group:
            lines += [r"\midrule"] if place else []
            lines.append(rf"\multicolumn{{{len(table.columns)}}}{{l}}{{\textit{{{_latex(group)}}}}} \\")
        lines += [" & ".join(_latex_cell(cell) for cell in line.cells) + r" \\" for line in of_group]
    lines += [r"\bottomrule", r"\end{tabular}"]
    if notes := " ".join(note for note in (table.note, table.unranked) if note):
        lines.append(rf"\par\smallskip\footnotesize {_latex(notes)}")
    return "\n".join([*lines, r"\end{table}"]) + "\n"


def _latex_cell(cell: TableCell) -> str:
    command = {"best": "textbf", "second": "underline", "high": "textbf"}.get(cell.mark)
    text = rf"\{command}{{{_latex(cell.text)}}}" if command else _latex(cell.text)
    return rf"{text} {{\scriptsize ({_latex(cell.small)})}}" if cell.small else text


def _latex(text: str) -> str:
    """The text on one line, with everything escaped that has a meaning in LaTeX."""
    return " ".join("".join(_LATEX.get(c, c) if c.isprintable() else " " for c in text).split())


# --- Markdown

_ESCAPED = re.compile(r"([\\`*_\[\]|~$])")


def to_markdown(table: Table) -> str:
    """The table as Markdown, with its title and its note."""
    by_group = any(line.group for line in table.lines)
    lines = [
        [*([table.grouped_by] if by_group else []), *(column.name for column in table.columns)],
        [*([":--"] if by_group else []), *("--:" if column.number else ":--" for column in table.columns)],
    ]
    lines[0] = [in_markdown(name) for name in lines[0]]
    for line in table.lines:
        lines.append([*([in_markdown(line.group)] if by_group else []), *map(_markdown_cell, line.cells)])
    ranked = f"Best **bold**, second _in italics_, among {in_markdown(table.ranked)}." if table.ranked else ""
    note = " ".join(part for part in (in_markdown(table.note), ranked, in_markdown(table.unranked)) if part)
    rows = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    return "\n\n".join(part for part in (f"**{in_markdown(table.title)}**", rows, note) if part) + "\n"


def _markdown_cell(cell: TableCell) -> str:
    text = in_markdown(cell.text)
    text = {"best": f"**{text}**", "second": f"_{text}_", "high": f"▲ {text}"}.get(cell.mark, text)
    return f"{text} ({in_markdown(cell.small)})" if cell.small else text


def in_markdown(text: str, *, lines: bool = False) -> str:
    """The text with everything escaped that has a meaning in Markdown or HTML; on one line, unless `lines` are kept."""
    text = "".join(c if c.isprintable() or c == "\n" else " " for c in text)
    text = text if lines else " ".join(text.split())
    return _ESCAPED.sub(r"\\\1", text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;"))
