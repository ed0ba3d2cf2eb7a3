"""Writes a table of results as CSV, LaTeX or Markdown, for papers and spreadsheets."""

import csv
import io
import re

from alimark.lab.bench.tables import Table, TableCell

# --- CSV


def to_csv(table: Table) -> str:
    """The table as CSV: shares are numbers between 0 and 1, and an interval has two columns of its own.

    Where texts failed, a column has the figures with these as misses. The last column has the note, which names the statistic.
    """
    columns: list[list[str]] = []
    for i, column in enumerate(table.columns):
        cells, name = [line[i] for line in table.lines], _safe(column.label)
        columns.append([name, *(_figure(cell.value, cell.text) for cell in cells)])
        for place, end in enumerate(("low", "high")) if any(cell.interval for cell in cells) else ():
            columns.append([f"{name} {end}", *(_figure(cell.interval and cell.interval[place]) for cell in cells)])
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
    """The table as LaTeX with booktabs; intervals are in small print."""
    letters = "".join("r" if column.number else "l" for column in table.columns)
    lines = [r"\begin{table}", r"\centering", rf"\caption{{{_latex(table.title)}}}", rf"\begin{{tabular}}{{{letters}}}"]
    lines += [r"\toprule", " & ".join(_latex(column.label) for column in table.columns) + r" \\", r"\midrule"]
    lines += [" & ".join(map(_latex_cell, line)) + r" \\" for line in table.lines]
    lines += [r"\bottomrule", r"\end{tabular}"]
    if table.note:
        lines.append(rf"\par\smallskip\footnotesize {_latex(table.note)}")
    return "\n".join([*lines, r"\end{table}"]) + "\n"


def _latex_cell(cell: TableCell) -> str:
    text = rf"\textbf{{{_latex(cell.text)}}}" if cell.high else _latex(cell.text)
    return rf"{text} {{\scriptsize ({_latex(cell.small)})}}" if cell.small else text


def _latex(text: str) -> str:
    """The text on one line, with everything escaped that has a meaning in LaTeX."""
    return " ".join("".join(_LATEX.get(c, c) if c.isprintable() else " " for c in text).split())


# --- Markdown

_ESCAPED = re.compile(r"([\\`*_\[\]|~$])")


def to_markdown(table: Table) -> str:
    """The table as Markdown, with its title and its note."""
    lines = [
        [in_markdown(column.label) for column in table.columns],
        ["--:" if column.number else ":--" for column in table.columns],
        *(list(map(_markdown_cell, line)) for line in table.lines),
    ]
    rows = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    return "\n\n".join(filter(None, [f"**{in_markdown(table.title)}**", rows, in_markdown(table.note)])) + "\n"


def _markdown_cell(cell: TableCell) -> str:
    text = f"▲ {in_markdown(cell.text)}" if cell.high else in_markdown(cell.text)
    return f"{text} ({in_markdown(cell.small)})" if cell.small else text


def in_markdown(text: str, *, lines: bool = False) -> str:
    """The text with everything escaped that has a meaning in Markdown or HTML; on one line, unless `lines` are kept."""
    text = "".join(c if c.isprintable() or c == "\n" else " " for c in text)
    text = text if lines else " ".join(text.split())
    return _ESCAPED.sub(r"\\\1", text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;"))


FORMATS = {"csv": to_csv, "latex": to_latex, "markdown": to_markdown}
"""The formats by name; LaTeX needs the package booktabs, and Markdown is what the report has."""
