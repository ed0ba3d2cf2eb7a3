"""Leaves sentences out of a text without damage to its code blocks and paragraphs."""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet

from alimark.core.frozen.text.splitting import Piece, join


def join_without(sentences: Sequence[Piece], tail: str, left_out: AbstractSet[int]) -> str:
    """The text without some sentences. Code blocks and paragraph breaks stay; list markers go with their sentences.

    Args:
        sentences: The sentences of the text.
        tail: What stands after the last sentence.
        left_out: The indices of the sentences that are left out.

    Returns:
        The text.

    Example:
        >>> join_without([Piece("- ", "It rose."), Piece("\\n- ", "It fell."), Piece("\\n\\n", "So it goes.")], "", {1})
        '- It rose.\\n\\nSo it goes.'
    """
    result: list[Piece] = []
    code: list[str] = []  # what stood before sentences that are left out, and is not in the result yet
    blank = ""
    for i, piece in enumerate(sentences):
        new_code, new_blank, marker = _lead_parts(piece.lead)
        code.append(new_code)
        blank = new_blank if new_code or new_blank.count("\n") >= blank.count("\n") else blank
        if i not in left_out:
            lead = "".join(code) + blank + marker
            result.append(Piece(lead if result else lead.lstrip(), piece.body))
            code, blank = [], ""
    return join(result, "".join(code) + tail)


def _lead_parts(lead: str) -> tuple[str, str, str]:
    """What precedes a sentence, in three parts: code blocks, white space, and the marker of a list item or heading."""
    fence = max(lead.rfind("```"), lead.rfind("~~~"))
    end = lead.find("\n", fence) if fence >= 0 else 0
    code, rest = lead[:end], lead[end:]
    marker = rest.lstrip()
    return code, rest[: len(rest) - len(marker)], marker
