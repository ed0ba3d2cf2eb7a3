"""How the paper's public code writes the sentences that Pegasus and Parrot answer with."""

from __future__ import annotations

import re
from string import punctuation

_REPEATED_MARK = re.compile(rf"([{re.escape(punctuation.replace('.', ''))}])\1+")


def well_formed(sentence: str, *, full_stop: bool = False) -> str:
    """A paraphrase with a capital letter at its start, a capital "I", and without repeated punctuation marks.

    Args:
        sentence: The paraphrase.
        full_stop: Whether a full stop is added where there is no mark at the end.

    Returns:
        The sentence; empty where the paraphrase is.

    Example:
        >>> well_formed("so i went home,, and  slept", full_stop=True)
        'So I went home, and slept.'
    """
    text = " ".join(sentence.split())
    text = (text[:1].upper() + text[1:]).replace(" i ", " I ")
    if full_stop and text and text[-1] not in "!.?":
        text += "."
    return _REPEATED_MARK.sub(r"\1", text)
