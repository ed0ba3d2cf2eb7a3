"""Fenced code blocks: where they begin and end."""

from __future__ import annotations

import re

Spans = list[tuple[int, int]]
"""Start and end of each part of a text."""

_FENCE = re.compile(r"^[ \t]{0,3}(`{3,}|~{3,})", re.MULTILINE)


def opens_code(text: str) -> bool:
    """Whether a text begins with a fenced code block."""
    return text.lstrip().startswith(("```", "~~~"))


def before_code(text: str) -> str:
    """A text up to its first fence."""
    fence = _FENCE.search(text)
    return text[: fence.start()] if fence else text


def code_end(text: str) -> int | None:
    """Behind the fence that closes the first code block of `text`, or None while it is open."""
    opening = _FENCE.search(text)
    if opening is None:
        return None
    # A fence as long as the opening one or longer, alone on its line, and the line must be over.
    closing = re.compile(rf"^[ \t]{{0,3}}{opening[1]}{opening[1][0]}*[ \t]*\n", re.MULTILINE)
    found = closing.search(text, opening.end())
    return found.end() if found else None


def outside_code(text: str) -> Spans:
    """What lies outside of fenced code blocks that are closed; all of it where nothing does.

    An open fence hides no sentence: else one sign at the start of a text would hide it whole from a detector.
    """
    if "```" not in text and "~~~" not in text:
        return [(0, len(text))]
    outside, at = [], 0
    while (opening := _FENCE.search(text, at)) and (length := code_end(text[opening.start() :] + "\n")) is not None:
        outside.append((at, opening.start()))
        at = min(len(text), opening.start() + length)
    outside = [(a, b) for a, b in [*outside, (at, len(text))] if text[a:b].strip()]
    return outside or [(0, len(text))]
