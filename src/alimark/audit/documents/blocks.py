"""Joins the parts of a document: paragraphs, and tables row by row."""

import re
from collections.abc import Iterable, Sequence

_LAYOUT_CELL = 200
"""Characters. A cell that is longer holds prose: the table only arranges the page."""
_SPACES = re.compile(r"[ \t\r\f\v]+")
_SOFT_HYPHEN = "\u00ad"


def row_blocks(cells: Sequence[Sequence[str]]) -> list[str]:
    """Returns the blocks of a table row: a line with tabs, or the paragraphs of each cell where a cell holds prose.

    Args:
        cells: The paragraphs of each cell.

    Example:
        >>> row_blocks([["Name"], ["Born"]])
        ['Name\\tBorn']
        >>> row_blocks([["One came.", "Two came."], ["Menu"]])
        ['One came.', 'Two came.', 'Menu']
    """
    if is_layout(cells):
        return [paragraph for cell in cells for paragraph in cell]
    texts = [" ".join(" ".join(cell).split()) for cell in cells]
    return ["\t".join(texts)] if any(texts) else []


def is_layout(cells: Sequence[Sequence[str]]) -> bool:
    """Whether a row of a table only arranges the page: a cell has several paragraphs, or a long one."""
    return any(len(cell) > 1 or len("".join(cell)) > _LAYOUT_CELL for cell in cells)


def tidy(text: str) -> str:
    """Returns a paragraph without surplus blanks and without soft hyphens, which only say where a word may be broken."""
    lines = (_SPACES.sub(" ", line).strip() for line in text.replace(_SOFT_HYPHEN, "").split("\n"))
    return "\n".join(lines).strip()


def join_blocks(blocks: Iterable[str]) -> str:
    """Returns the text of a document, with a blank line between two blocks."""
    return "\n\n".join(block for block in blocks if block.strip())
