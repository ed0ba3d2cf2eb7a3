"""Fenced code blocks: where they begin and end."""

from __future__ import annotations

import re

Spans = list[tuple[int, int]]
"""Start and end of each part of a text."""

_FENCE = re.compile(r"^[ \t]{0,3}(`{3,}|~{3,})", re.MULTILINE)
_LINE_END = re.compile(r"[ \t]*+(?:\n|\Z)")


def opens_code(text: str) -> bool:
    """Tells whether a text begins with a fenced code block."""
    return text.lstrip().startswith(("```", "~~~"))


def before_code(text: str) -> str:
    """Returns the part of a text before its first code fence."""
    fence = _FENCE.search(text)
    return text[: fence.start()] if fence else text


def code_end(text: str) -> int | None:
    """Returns the position after the first code block of `text`, or None while its fence is open."""
    opening = _FENCE.search(text)
    return None if opening is None else _closed(text, opening)


def _closed(text: str, opening: re.Match[str], *, at_end: bool = False) -> int | None:
    """Returns the position after the code block that a fence opens; `at_end`: the last line of the text is complete."""
    for fence in _FENCE.finditer(text, opening.end()):
        # The closing fence is at least as long as the opening one, alone on its line, and the line must be complete.
        line_end = _LINE_END.match(text, fence.end()) if fence[1].startswith(opening[1]) else None
        if line_end and (line_end[0].endswith("\n") or at_end):
            return line_end.end()
    return None


def outside_code(text: str) -> Spans:
    """Returns the spans outside of closed code blocks, or the whole text where nothing lies outside.

    An open fence is ignored: otherwise a fence at the start of a text would hide all of it from a detector.
    """
    if "```" not in text and "~~~" not in text:
        return [(0, len(text))]
    outside, at = [], 0
    while (opening := _FENCE.search(text, at)) and (end := _closed(text, opening, at_end=True)) is not None:
        outside.append((at, opening.start()))
        at = end
    outside = [(a, b) for a, b in [*outside, (at, len(text))] if text[a:b].strip()]
    return outside or [(0, len(text))]
