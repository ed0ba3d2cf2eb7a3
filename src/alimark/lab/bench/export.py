"""Writes a table of results as CSV, LaTeX or Markdown, for papers and spreadsheets."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Literal, get_args

from alimark.lab.bench import markdown
from alimark.lab.bench.cells import Cell, Table

Format = Literal["csv", "latex", "markdown"]
FORMATS: tuple[Format, ...] = get_args(Format)

_LATEX = {
    "\\": r"\textbackslash{}", "{": r"\{", "}": r"\}", "%": r"\%", "&": r"\&", "#": r"\#", "_": r"\_", "$": r"\$",
    "^": r"\textasciicircum{}", "~": r"\textasciitilde{}", "≤": r"$\leq$", "–": "--", "·": r"$\cdot$", "▲": r"$\uparrow$",
}  # fmt: skip


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


def to_markdown(table: Table) -> str:
    """The table as Markdown, with its title and its note."""
    return markdown.render_table(table) + "\n"


def to_csv(table: Table) -> str:
    """The table as CSV: shares are numbers between 0 and 1, and an interval has two columns of its own.

    Where texts failed, a column has the figures with these as misses. The last column has the note, which names the statistic.
    """
    by_group = any(line.group for line in table.lines)
    figures = [[line.cells[i] for line in table.lines] for i in range(len(table.columns))]
    intervals = [any(cell.interval for cell in cells) for cells in figures]
    misses = [any(cell.every is not None for cell in cells) for cells in figures]
    names = [f"{column.over} {column.label}".strip() for column in table.columns]
    header = [table.grouped_by or "group"] if by_group else []
    for name, interval, failed in zip(names, intervals, misses, strict=True):
        header += [name, *([f"{name} low", f"{name} high"] if interval else [])]
        header += [f"{name}, failed as misses"] if failed else []
    header += ["note"] if table.note else []
    file = io.StringIO()
    writer = csv.writer(file)
    writer.writerow(map(_safe_cell, header))
    for line in table.lines:
        row: list[str] = [_safe_cell(line.group)] if by_group else []
        for cell, interval, failed in zip(line.cells, intervals, misses, strict=True):
            figure = f"{cell.value:.6g}" if cell.value is not None else _safe_cell(cell.text)
            row += [figure, *([f"{end:.6g}" for end in cell.interval or ()] or ([""] * 2 if interval else []))]
            row += [figure if cell.every is None else f"{cell.every:.6g}"] if failed else []
        row += [_safe_cell(table.note)] if table.note else []
        writer.writerow(row)
    return file.getvalue()


def _safe_cell(text: str) -> str:
    """The text; one that a spreadsheet would take for a formula gets an apostrophe before it."""
    return f"'{text}" if re.match(r"[=+\-@\t\r]", text) else text


def to_latex(table: Table) -> str:
    """The table as LaTeX with booktabs; the best is bold, the second underlined, and intervals are in small print."""
    letters = "".join("r" if column.number else "l" for column in table.columns)
    lines = [r"\begin{table}", r"\centering", rf"\caption{{{_latex(table.title)}}}", rf"\begin{{tabular}}{{{letters}}}"]
    lines += [r"\toprule", *_latex_headings(table), r"\midrule"]
    for place, (group, members) in enumerate(groupby(table.lines, key=lambda line: line.group)):
        if group:
            lines += [r"\midrule"] if place else []
            lines.append(rf"\multicolumn{{{len(table.columns)}}}{{l}}{{\textit{{{_latex(group)}}}}} \\")
        lines += [" & ".join(_latex_cell(cell) for cell in line.cells) + r" \\" for line in members]
    lines += [r"\bottomrule", r"\end{tabular}"]
    if notes := " ".join(note for note in (table.note, table.unranked) if note):
        lines.append(rf"\par\smallskip\footnotesize {_latex(notes)}")
    return "\n".join([*lines, r"\end{table}"]) + "\n"


def _latex_headings(table: Table) -> list[str]:
    upper: list[str] = []
    for over, group in groupby(table.columns, key=lambda column: column.over):
        members = list(group)
        upper += [rf"\multicolumn{{{len(members)}}}{{c}}{{{_latex(over)}}}"] if over else [""] * len(members)
    lower = " & ".join(_latex(column.label) for column in table.columns) + r" \\"
    return [" & ".join(upper) + r" \\", lower] if any(upper) else [lower]


def _latex_cell(cell: Cell) -> str:
    text = _latex(cell.text)
    text = {"best": rf"\textbf{{{text}}}", "second": rf"\underline{{{text}}}", "high": rf"\textbf{{{text}}}"}.get(
        cell.mark, text
    )
    return rf"{text} {{\scriptsize ({_latex(cell.small)})}}" if cell.small else text


def _latex(text: str) -> str:
    """The text on one line, with everything escaped that has a meaning in LaTeX."""
    printable: Sequence[str] = [c if c.isprintable() else " " for c in text]
    return " ".join("".join(_LATEX.get(c, c) for c in printable).split())
