"""Decides which parts of a text are prose, for marking and for detection alike (text version 1).

Not prose are fenced code, display math, tables, quotations (lines that begin with ">"), and list items of at most five words
without a final mark. Each kind is decided by its own lines, so that the decision for a part of a text does not depend on
what follows it: generation has to decide before the rest is written. Two exceptions keep a text from hiding as a whole: a
block whose content reads as prose (`reads_as_prose`) is prose, and where most words stand in quotations, tables and lists,
these are prose.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterator
from itertools import pairwise
from typing import Literal, NamedTuple

from alimark.core.frozen.text.code import Spans
from alimark.core.frozen.text.units import CLOSERS, MARKS

Kind = Literal["prose", "code", "math", "table", "quotation", "item"]

_SHORT_ITEM_WORDS = 5
_SAMPLE = 2000  # characters of a formula that are read
_LINE = re.compile(r"[^\n]*\n?")
_FENCE = re.compile(r"[ \t]{0,3}(`{3,}|~{3,})")
_LONGEST_FENCE = 8  # longer fences count as one of this length, which keeps the search for their ends linear
_MATH = {"$$": "$$", "\\[": "\\]", "\\begin{": "\\end{"}
_TABLE_RULE = re.compile(r"[ \t]*\|?[ \t]*:?-{2,}:?[ \t]*(?:\|[ \t]*:?-{2,}:?[ \t]*)+\|?[ \t]*")
_ITEM = re.compile(r"[ \t]*(?:[-*+•‣▪–]|\d{1,3}[.)])[ \t]+(?=\S)")
_QUOTED = re.compile(r"[ \t]{0,3}>")
_CODE_LINE = re.compile(
    r"[;{}\\]\s*$|^\s*(?:def|class|import|from|return|elif|else:|try:|#include|var|let|const|function|public|private|"
    r"SELECT|INSERT|echo|sudo|pip|git|cd|print)\b.*[({=;:\"']|[=!<>+-]=|\w\(\)|\w\(\w*[,)=]|->|=>|::|&&|\|\||\$\w|</"
)
_WORD = re.compile(r"[^\W\d_]{2,}")


class Block(NamedTuple):
    """A run of lines of one kind, with its start and end in the text."""

    kind: Kind
    start: int
    end: int


def reads_as_prose(text: str) -> bool:
    """Tells whether the content of a block is prose, although its markup says that it is code, math or a table.

    Example:
        >>> reads_as_prose("The keeper lit the lamp and went to bed. Nobody saw him."), reads_as_prose("x = f(y);\\nreturn x;")
        (True, False)
    """
    lines = [line for line in text.split("\n") if line.strip()]
    words = len(_WORD.findall(text))
    if words < 5 or 4 * sum(1 for line in lines if _CODE_LINE.search(line[:400])) > len(lines):
        return False
    visible = [c for c in text if not c.isspace()]
    ordinary = sum(c.isalpha() or c in ".,;:!?'\"’“”‘-" for c in visible)
    # In prose words follow each other; in code and formulas signs and numbers stand between them.
    return ordinary >= 0.9 * len(visible) and words >= 3 * len(lines) and 10 * words >= 1.0 * len(visible)


def kind_of_line(line: str) -> Kind:
    """The kind of a complete line that stands outside of code and math."""
    body = line.strip()
    if _QUOTED.match(line) and body != ">":
        return "quotation"
    if _is_table_row(body):
        return "prose" if any(map(_is_sentence, body.strip("|").split("|"))) else "table"
    if (marker := _ITEM.match(line)) and _is_short(line[marker.end() :]):
        return "item"
    return "prose"


def _is_sentence(cell: str) -> bool:
    """Whether a cell of a table holds prose: a long text, or at least three words with a final mark."""
    ended = cell.strip().rstrip(CLOSERS).endswith(tuple(MARKS))
    return reads_as_prose(cell) or (ended and len(_WORD.findall(cell)) >= 3)


def _is_table_row(body: str) -> bool:
    if _TABLE_RULE.fullmatch(body):
        return True
    framed = len(body) > 2 and body.startswith("|") and body.endswith("|")
    return framed or body.count(" | ") >= 2 or body.count("\t") >= 2


def _is_short(item: str) -> bool:
    body = item.strip()
    return len(body.split()) <= _SHORT_ITEM_WORDS and not body.rstrip(CLOSERS).endswith(tuple(MARKS))


def blocks(text: str) -> list[Block]:
    """Divides a text into blocks of whole lines; neighbouring lines of one kind are one block.

    Code and math whose end is missing are prose: otherwise a fence at the start of a text would hide all of it.
    """
    if not _may_hold_asides(text):
        return [Block("prose", 0, len(text))] if text else []
    lines = [match.span() for match in _LINE.finditer(text) if match[0]]
    ends = _FenceEnds(text, lines)
    divided: list[Block] = []
    number = 0
    while number < len(lines):
        start, stop = lines[number]
        kind, last = _block_at(text, lines, number, ends)
        stop = lines[last][1]
        if divided and divided[-1].kind == kind:
            divided[-1] = divided[-1]._replace(end=stop)
        else:
            divided.append(Block(kind, start, stop))
        number = last + 1
    return divided


def _may_hold_asides(text: str) -> bool:
    return any(sign in text for sign in ("```", "~~~", "$$", "\\[", "\\begin{", "|", "\t", ">")) or bool(
        _ITEM.match(text) or re.search(r"\n[ \t]{0,20}(?:[-*+•‣▪–]|\d{1,3}[.)])[ \t]", text)
    )


class _FenceEnds:
    """Where code and math can end. It remembers what is missing, so that nothing is searched for twice."""

    def __init__(self, text: str, lines: Spans) -> None:
        self._text, self._starts = text, [start for start, _ in lines]
        self._closing: dict[tuple[str, int], list[int]] = {}
        self._math: dict[str, int] = {}  # where each closing sign was found last; the length of the text: nowhere
        for number, (start, end) in enumerate(lines):
            fence = _FENCE.match(text, start, end)
            if fence and not text[fence.end() : end].strip():
                for length in range(3, min(len(fence[1]), _LONGEST_FENCE) + 1):
                    self._closing.setdefault((fence[1][0], length), []).append(number)

    def code(self, fence: str, line: int) -> int | None:
        """The line that closes a fence which was opened in `line`; None where there is none."""
        closing = self._closing.get((fence[0], min(len(fence), _LONGEST_FENCE)), [])
        place = bisect_left(closing, line + 1)
        return closing[place] if place < len(closing) else None

    def math(self, closer: str, position: int) -> int | None:
        """The line in which math closes that was opened before `position`; None where it does not close."""
        end = self._math.get(closer, -1)
        if end < position:
            end = self._text.find(closer, position)
            end = self._math[closer] = len(self._text) if end < 0 else end
        return bisect_left(self._starts, end + 1) - 1 if end < len(self._text) else None


def _block_at(text: str, lines: Spans, number: int, ends: _FenceEnds) -> tuple[Kind, int]:
    """The kind of the block that begins in a line, and its last line."""
    start, end = lines[number]
    if (fence := _FENCE.match(text, start, end)) and (last := ends.code(fence[1], number)) is not None:
        return "code", last
    line = text[start:end]
    indent = len(line) - len(line.lstrip())
    for opener, closer in _MATH.items():
        if line.startswith(opener, indent):
            last = ends.math(closer, start + indent + len(opener))
            if last is not None and not reads_as_prose(text[start + indent + len(opener) : lines[last][1]][:_SAMPLE]):
                return "math", last
    return kind_of_line(line), number


def code_spans(text: str) -> Spans:
    """The closed code blocks of a text, without those whose content reads as prose."""
    if "```" not in text and "~~~" not in text:
        return []
    return [(b.start, b.end) for b in blocks(text) if b.kind == "code" and not reads_as_prose(_inside(text, b))]


def _inside(text: str, block: Block) -> str:
    """The lines of a code block without its first and last fence."""
    content = text[block.start : block.end].rstrip("\n").partition("\n")[2]
    return content.rpartition("\n")[0]


def prose_spans(text: str) -> Spans:
    """The parts of a text that are prose: what may carry a mark, and what a detector reads.

    Returns:
        The start and end of each part; the whole text where nothing in it is prose.

    Example:
        >>> text = "The keeper slept.\\n\\n| a | b |\\n| 1 | 2 |\\n\\nThe lamp burned on."
        >>> [text[start:end].strip() for start, end in prose_spans(text)]
        ['The keeper slept.', 'The lamp burned on.']
    """
    divided = blocks(text)
    if len(divided) > 1 and _mostly_hidden(text, divided):
        divided = _merged(
            [Block("prose" if b.kind in ("quotation", "table", "item") else b.kind, b.start, b.end) for b in divided]
        )
    spans = [(b.start, b.end) for b in divided if b.kind == "prose" and text[b.start : b.end].strip()]
    return spans or [(0, len(text))]


def _mostly_hidden(text: str, divided: list[Block]) -> bool:
    words = {"prose": 0, "hidden": 0, "code": 0}
    for block in divided:
        place = "prose" if block.kind == "prose" else "code" if block.kind in ("code", "math") else "hidden"
        words[place] += len(_WORD.findall(text, block.start, block.end))
    return words["hidden"] > words["prose"]


def _merged(divided: list[Block]) -> list[Block]:
    merged: list[Block] = []
    for block in divided:
        if merged and merged[-1].kind == block.kind:
            merged[-1] = merged[-1]._replace(end=block.end)
        else:
            merged.append(block)
    return merged


# For generation: a continuation of which only the beginning may be known


def aside_opens(text: str) -> bool:
    """Tells whether a continuation begins with a block that is not prose.

    A quotation, a table and a formula are known by their first characters, an item of a short list when its line is complete.
    """
    line = text.lstrip("\n\r")
    first, newline, _ = line.partition("\n")
    body = first.lstrip()
    if body.startswith(("```", "~~~", "$$", "\\[", "\\begin{", ">")) or (body.startswith("|") and len(body) > 1):
        return True
    return bool(newline) and kind_of_line(first) != "prose"


def aside_end(text: str) -> int | None:
    """The position after the block that opens a continuation, or None while it goes on."""
    lead = len(text) - len(text.lstrip("\n\r"))
    lines = [match.span() for match in _LINE.finditer(text, lead) if match[0]]
    if not lines:
        return None
    start, end = lines[0]
    if fence := _FENCE.match(text, start, end):
        last = _FenceEnds(text, lines).code(fence[1], 0)
        return lines[last][1] if last is not None and text[lines[last][1] - 1] == "\n" else None
    body = text[start:end].lstrip()
    for opener, closer in _MATH.items():
        if body.startswith(opener):
            close = text.find(closer, text.index(opener, start) + len(opener))
            line_end = text.find("\n", close) if close >= 0 else -1
            return line_end + 1 if line_end >= 0 else None
    return end if text[end - 1] == "\n" else None


def before_aside(text: str) -> str:
    """The part of a continuation before the first line that opens a block which is not prose."""
    if not _may_hold_asides(text):
        return text
    for start, end in _line_spans(text):
        if start and aside_opens(text[start:end]):
            return text[:start]
    return text


def _line_spans(text: str) -> Iterator[tuple[int, int]]:
    starts = [0, *(match.end() for match in re.finditer("\n", text)), len(text)]
    return pairwise(dict.fromkeys(starts))
