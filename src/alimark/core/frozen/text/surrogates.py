"""Half surrogate pairs: JSON can hold one in a text, but UTF-8 cannot, and tokenizers cannot read it."""

from __future__ import annotations

import re

_HALF_PAIR = re.compile("[\ud800-\udfff]")


def without_half_pairs(text: str) -> str:
    """The text with the replacement character in the place of each half surrogate pair.

    Example:
        >>> ascii(without_half_pairs("caf\\ud800"))
        "'caf\\\\ufffd'"
    """
    return _HALF_PAIR.sub("\ufffd", text)
