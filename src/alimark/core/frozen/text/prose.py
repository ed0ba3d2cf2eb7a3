"""Decides which parts of a text are prose, for marking and for detection alike.

Frozen: a mark is found only in the sentences that generation marked, so both have to make this decision for ever alike.

Signs of quotations and list items are layout, and the words behind them are prose. In a fence or a formula each paragraph is
judged by its first lines: prose in a fence is prose, and code is not. Of a table those cells are prose that hold a sentence.
What comes later in a text never changes what an earlier part of it is, so that generation can decide before the rest is
written. A text in which nothing is prose is read as it stands, so that no text can hide as a whole.
"""

import re
from collections.abc import Iterator
from itertools import pairwise
from typing import Literal, NamedTuple

from alimark.core.frozen.text.units import CLOSERS, MARKS

Spans = list[tuple[int, int]]  # start and end of each part of a text

_SAMPLE_LINES, _SAMPLE = 3, 400  # a paragraph of a fence is judged by so many lines and so many characters
_LINE = re.compile(r"[^\n]*\n|[^\n]+")
_FENCE = re.compile(r"[ \t]{0,3}(`{3,}|~{3,})")
_FORMULA = re.compile(r"[ \t]*(\$\$|\\\[|\\begin\{)(?:(?<=\{)\w{1,20}\*?\})?")
_CLOSERS = {"$$": "$$", "\\[": "\\]", "\\begin{": "\\end{"}
_TABLE_RULE = re.compile(r"[ \t]*\|?[ \t]*:?-{2,}:?[ \t]*(?:\|[ \t]*:?-{2,}:?[ \t]*)+\|?[ \t]*")
_CELL = re.compile(r"[^|\t\n]+")
_QUOTED = re.compile(r"[ \t]{0,3}>")
_CODE_LINE = re.compile(
    r"[;{}\\]\s*$|^\s*(?:def|class|import|from|return|elif|else:|try:|#include|var|let|const|function|public|private|"
    r"SELECT|INSERT|echo|sudo|pip|git|cd|print)\b.*[({=;:\"']|[=!<>+-]=|\w\(\)|\w\(\w*[,)=]|->|=>|::|&&|\|\||\$\w|</|"
    r"^\s*(?:#|//|/\*|--\s|\"\"\"|<!--)"
)
_WORD = re.compile(r"[^\W\d_]{2,}")
_SENTENCE_OVER = re.compile(rf"[{MARKS}][{re.escape(CLOSERS)}]?\s")
_COMMENT_ENDS = ('"""', "'''", "*/")
_CELL_END = re.compile(r"[|\t\n]")


class Part(NamedTuple):
    """A part of a text that is prose, with its start and end; what surrounds it is layout, code, a formula or a table."""

    kind: Literal["prose", "quotation", "fenced", "cell"]
    start: int
    end: int


class _Enclosure(NamedTuple):
    """A fence or a formula: what closes it, and where its content begins."""

    closer: str
    is_fence: bool
    content: int


def reads_as_prose(text: str) -> bool:
    """Tells whether lines from a fence, a formula or a table are prose.

    Example:
        >>> reads_as_prose("The keeper lit the lamp and went to bed. Nobody saw him."), reads_as_prose("x = f(y);\\nreturn x;")
        (True, False)
    """
    lines = [line for line in text.split("\n") if line.strip()]
    words = len(_WORD.findall(text))
    if words < 5 or 4 * sum(1 for line in lines if _CODE_LINE.search(line[:_SAMPLE])) > len(lines):
        return False
    visible = [c for c in text if not c.isspace()]
    ordinary = sum(c.isalpha() or c in ".,;:!?'\"’“”‘-" for c in visible)
    # In prose words follow each other; in code and formulas signs and numbers stand between them.
    return ordinary >= 0.9 * len(visible) and words >= 3 * len(lines) and 10 * words >= len(visible)


def prose_parts(text: str) -> list[Part]:
    """The parts of a text that are prose: what may carry a mark, and what a detector reads; the whole text where none is.

    Example:
        >>> text = "The keeper slept.\\n\\n| a | b |\\n| 1 | 2 |\\n\\n> The lamp burned on."
        >>> [(part.kind, text[part.start : part.end].strip()) for part in prose_parts(text)]
        [('prose', 'The keeper slept.'), ('quotation', '> The lamp burned on.')]
    """
    if not _may_hold_layout(text):
        return [Part("prose", 0, len(text))] if text else []
    parts: list[Part] = []
    for part in _parts(text):
        if parts and parts[-1].kind == part.kind and parts[-1].end == part.start and part.kind != "cell":
            parts[-1] = parts[-1]._replace(end=part.end)
        else:
            parts.append(part)
    return [part for part in parts if text[part.start : part.end].strip()] or [Part("prose", 0, len(text))]


def _may_hold_layout(text: str) -> bool:
    return any(sign in text for sign in ("```", "~~~", "$$", "\\[", "\\begin{", "|", "\t", ">"))


def _parts(text: str) -> Iterator[Part]:
    """The parts line by line, neighbours of one kind not joined yet."""
    lines = [match.span() for match in _LINE.finditer(text)]
    number = 0
    while number < len(lines):
        start, end = lines[number]
        if enclosure := _enclosure(text, start, end):
            last, content_end = _closed(text, lines, number, enclosure) or (len(lines) - 1, len(text))
            yield from _paragraphs(text, lines[number : last + 1], enclosure.content, content_end)
            number = last + 1
            continue
        if _is_table_row(text[start:end].strip()):
            for cell in _CELL.finditer(text, start, end):
                if _is_sentence(cell[0]):
                    yield Part("cell", *cell.span())
        else:
            yield Part("quotation" if _QUOTED.match(text, start, end) else "prose", start, end)
        number += 1


def _enclosure(text: str, start: int, end: int) -> _Enclosure | None:
    """The fence or formula that a line opens."""
    if fence := _FENCE.match(text, start, end):
        return _Enclosure(fence[1], True, end)
    formula = _FORMULA.match(text, start, end)
    return _Enclosure(_CLOSERS[formula[1]], False, formula.end()) if formula else None


def _closed(text: str, lines: Spans, number: int, enclosure: _Enclosure) -> tuple[int, int] | None:
    """The line that closes a fence or a formula opened in a line, and where its content ends; None while it is open.

    A closing fence is at least as long as the opening one, and alone on its line. A blank line ends a formula, too.
    """
    for later in range(number + enclosure.is_fence, len(lines)):
        start, end = lines[later]
        if enclosure.is_fence:
            fence = _FENCE.match(text, start, end)
            if fence and fence[1].startswith(enclosure.closer) and not text[fence.end() : end].strip():
                return later, start
        elif (closer := text.find(enclosure.closer, max(start, enclosure.content), end)) >= 0:
            return later, closer
        elif not text[start:end].strip():
            return later, start
    return None


def _paragraphs(text: str, lines: Spans, first: int, last: int) -> Iterator[Part]:
    """The paragraphs between two places that are prose."""
    paragraph: Spans = []
    for start, end in [*((max(start, first), min(end, last)) for start, end in lines), (0, 0)]:
        if text[start:end].strip():
            paragraph.append((start, end))
            continue
        if paragraph and reads_as_prose(text[paragraph[0][0] : paragraph[:_SAMPLE_LINES][-1][1]][:_SAMPLE]):
            yield Part("fenced", paragraph[0][0], paragraph[-1][1])
        paragraph = []


def _is_table_row(body: str) -> bool:
    if _TABLE_RULE.fullmatch(body):
        return True
    framed = len(body) > 2 and body.startswith("|") and body.endswith("|")
    return framed or body.count(" | ") >= 2 or body.count("\t") >= 2


def _is_sentence(cell: str) -> bool:
    """Whether a cell of a table holds prose: a long text, or at least three words with a final mark."""
    ended = cell.strip().rstrip(CLOSERS).endswith(tuple(MARKS))
    return reads_as_prose(cell) or (ended and len(_WORD.findall(cell)) >= 3)


# For generation: a continuation of which only the beginning may be known


def aside_opens(text: str) -> bool:
    """Tells whether a continuation begins with a fence, a formula or a table, which carry no mark while they are written.

    They are known by their first characters; a table without a frame when its first line is complete.
    """
    first, newline, _ = text.lstrip("\n\r").partition("\n")
    body = first.strip()
    if _enclosure(first, 0, len(first)) or (body.startswith("|") and len(body) > 1):
        return True
    return bool(newline) and _is_table_row(body) and not any(map(_is_sentence, _CELL.findall(body)))


def aside_end(text: str) -> int | None:
    """The position after the block that opens a continuation, or None while it goes on."""
    lead = len(text) - len(text.lstrip("\n\r"))
    lines = [match.span() for match in _LINE.finditer(text, lead)]
    if not lines:
        return None
    enclosure = _enclosure(text, *lines[0])
    closed = _closed(text, lines, 0, enclosure) if enclosure else lines[0]
    end = lines[closed[0] if enclosure else 0][1] if closed else 0
    return end if end and text[end - 1] == "\n" else None


def prose_start(aside: str, known: int = 0) -> int | None:
    """The position from `known` on at which prose begins in a block that may go on: a paragraph or a cell; None without any.

    It is judged once it has a whole sentence, or all the lines by which paragraphs are judged.

    Example:
        >>> prose_start("```\\nx = f(y);\\n\\nThe keeper slept in his chair. He"), prose_start("```\\nThe keeper slept in")
        (15, None)
    """
    lines = [match.span() for match in _LINE.finditer(aside, len(aside) - len(aside.lstrip("\n\r")))]
    if not lines:
        return None
    if enclosure := _enclosure(aside, *lines[0]):
        last, end = _closed(aside, lines, 0, enclosure) or (len(lines) - 1, len(aside))
        parts = list(_paragraphs(aside, lines[: last + 1], enclosure.content, end))
    else:
        parts = [Part("cell", *cell.span()) for cell in _CELL.finditer(aside, *lines[0]) if _is_sentence(cell[0])]
    for part in parts:
        text = aside[part.start : part.end]
        judged = text.count("\n") >= _SAMPLE_LINES or len(text) >= _SAMPLE or _SENTENCE_OVER.search(text)
        if part.start >= known and (judged or part.end < len(aside)):
            return part.start
    return None


def prose_end(aside: str, continuation: str) -> int | None:
    """The position in a continuation at which the prose of a block ends that goes on in it; None while the prose goes on.

    A cell ends at its border; a paragraph at a blank line, at a line of code, or where its fence, formula or comment is closed.
    """
    line_end = aside.find("\n", len(aside) - len(aside.lstrip("\n\r")))
    enclosure = _enclosure(aside, len(aside) - len(aside.lstrip("\n\r")), line_end if line_end >= 0 else len(aside))
    if enclosure is None:
        border = _CELL_END.search(continuation)
        return border and border.start()
    lead = len(continuation) - len(continuation.lstrip()) if aside.endswith("\n") else 0
    ends = [continuation.find(closer) for closer in (_COMMENT_ENDS if enclosure.is_fence else (enclosure.closer,))]
    for start in [lead] * aside.endswith("\n") + [
        lead + match.end() for match in re.finditer("\n", continuation[lead:])
    ]:
        line, complete, _ = continuation[start:].partition("\n")
        fence = _FENCE.match(line) if enclosure.is_fence else None
        closes = fence and fence[1].startswith(enclosure.closer) and not line[fence.end() :].strip()
        if closes or (complete and not line.strip()) or _CODE_LINE.search(line[:_SAMPLE]):
            ends.append(start)
    return min((end for end in ends if end >= 0), default=None)


def before_aside(text: str) -> str:
    """The part of a continuation before the first line that opens a block which is not prose."""
    if not _may_hold_layout(text):
        return text
    starts = [0, *(match.end() for match in re.finditer("\n", text)), len(text)]
    for start, end in pairwise(dict.fromkeys(starts)):
        if start and aside_opens(text[start:end]):
            return text[:start]
    return text
