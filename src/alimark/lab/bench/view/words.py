"""Compares two texts word by word."""

from __future__ import annotations

import re
from difflib import SequenceMatcher
from typing import Literal, NamedTuple

Kind = Literal["same", "removed", "added"]

# Chinese and Japanese have no spaces between words, so each of their characters counts as a word.
_WORD = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff]|\w+|[^\w\s]|\s+")
_LONG = 5_000
"""Words from which on frequent words are not used to find equal passages: comparing all of them takes quadratic time."""


class Piece(NamedTuple):
    """A passage that both texts have, or only the first (removed) or only the second (added)."""

    kind: Kind
    text: str


def word_diff(before: str, after: str) -> list[Piece]:
    """The passages that two texts share, and those that only one of them has.

    Args:
        before: The first text.
        after: The second text.

    Returns:
        The pieces in order. Those of the kinds same and removed make up the first text, same and added the second.

    Example:
        >>> [tuple(piece) for piece in word_diff("the old door", "the red door")]
        [('same', 'the '), ('removed', 'old'), ('added', 'red'), ('same', ' door')]
    """
    first, second = _WORD.findall(before), _WORD.findall(after)
    matcher = SequenceMatcher(None, first, second, autojunk=max(len(first), len(second)) > _LONG)
    pieces = []
    for kind, start, stop, other_start, other_stop in matcher.get_opcodes():
        if kind == "equal":
            pieces.append(Piece("same", "".join(first[start:stop])))
            continue
        if stop > start:
            pieces.append(Piece("removed", "".join(first[start:stop])))
        if other_stop > other_start:
            pieces.append(Piece("added", "".join(second[other_start:other_stop])))
    return pieces
