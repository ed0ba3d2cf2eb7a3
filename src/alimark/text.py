"""Sentences: where they end, what of them is embedded, how two become one and one becomes two.

A *unit* is the cleaned text of a sentence, a merged pair or a half: the thing that is embedded, at generation
and at detection alike. Splitting never loses a character: the pieces, joined, are the text again up to white space.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import cache
from typing import NamedTuple

from alimark.errors import AlimarkError, MissingExtra

Spans = list[tuple[int, int]]
Finder = Callable[[str], Spans]

DEFAULT_SPLITTER = "nupunkt"

_MARKS = ".!?…。！？｡؟۔।"
_CLOSERS = "\"'”’»)]"
_STRAIGHT = str.maketrans({**dict.fromkeys("“”„‟", '"'), **dict.fromkeys("‘’‚‛", "'")})
# Control characters carry no meaning to an embedder, and a tokenizer may stop at a NUL.
_NO_CONTROL = dict.fromkeys((*range(9), *range(14, 28), 127))

STOPS: tuple[str, ...] = (
    "\n\n",
    *"。！？｡",
    *(mark + close + blank for mark in ".!?…؟۔।" for close in ("", *_CLOSERS) for blank in " \n"),
)
"""Every sentence end contains one of these, so an engine need look no further than these for a place to stop.

A mark behind two closing signs is not listed: there an engine merely samples on to the next end.
"""

STOP = re.compile(rf"\n\n|[。！？｡]|[.!?…؟۔।][{re.escape(_CLOSERS)}]?[ \n]")
"""Any of them."""

_LINE_BREAKS = re.compile(r"\s*[\n\r\v\f\x1c-\x1e\x85\u2028\u2029]\s*")
_BLANK_LINE = re.compile(r"\n[ \t\r]*\n\s*")
_LIST_LINE = re.compile(r"\n[ \t]*(?=(?:[-*•‣▪–]|\d{1,3}[.)]|#{1,6})[ \t]+\S)")
_WIDE_END = re.compile(rf"[。！？｡]+[{re.escape(_CLOSERS)}」』）]*\s*|[؟۔।]+[{re.escape(_CLOSERS)}]*\s+")
# A list's or a heading's sign, which is layout and no part of what is said.
_MARKER = re.compile(r"(?:(?:[-*•‣▪–]|\d{1,3}[.)]|#{1,6}|>)[ \t]+)+(?=\S)")
_FENCE = re.compile(r"^[ \t]{0,3}(`{3,}|~{3,})", re.MULTILINE)
_WORD_THEN_MORE = re.compile(r"\w\W")

# Continuations that an undecided splitter would answer differently: after "etc." a capital starts a sentence and a
# small letter does not. Where all of them give the same cut, no continuation moves it.
_PROBES = (
    "The thing was here. ",
    "and so it was here. ",
    "12 of them were here. ",
    '"Well," he said. ',
    "Inc. was here. ",
)


def _nupunkt() -> Finder:
    import nupunkt

    spans: Finder = nupunkt.sent_spans
    return spans


def _blingfire() -> Finder:
    try:
        import blingfire
    except ImportError:
        raise MissingExtra("blingfire", "splitters") from None

    def spans(text: str) -> Spans:
        return [(int(a), int(b)) for a, b in blingfire.text_to_sentences_and_offsets(text)[1]]

    return spans


def _pysbd() -> Finder:
    try:
        import pysbd
    except ImportError:
        raise MissingExtra("pysbd", "splitters") from None
    segmenter = pysbd.Segmenter(language="en", clean=False, char_span=True)

    def spans(text: str) -> Spans:
        return [(s.start, s.end) for s in segmenter.segment(text)]

    return spans


_FINDERS: dict[str, Callable[[], Finder]] = {"nupunkt": _nupunkt, "blingfire": _blingfire, "pysbd": _pysbd}


BUILT_IN = frozenset(_FINDERS)
"""Splitters that every process knows."""


def register_splitter(name: str, finder: Finder) -> None:
    """Makes `finder`, which maps a text to (start, end) spans, available to keys under `name`."""
    if name in _FINDERS:
        raise AlimarkError(f"a splitter named {name!r} exists already; choose another name")
    _FINDERS[name] = lambda: finder


class Splitter:
    """Cuts a text into sentences.

    To what the named library finds it adds the ends that all of them miss: blank lines, list items and headings on
    their own lines, and the full stops of scripts that write no space behind one. A piece without a letter or digit
    belongs to its neighbour.
    """

    def __init__(self, name: str, finder: Finder) -> None:
        self.name = name
        self._finder = finder

    def spans(self, text: str) -> Spans:
        """The sentences of `text` as (start, end), without the white space around them. Code blocks hold none."""
        words = _outside_code(text)
        if words == [(0, len(text))]:
            return self._spans(text)
        return [(a + start, b + start) for start, end in words for a, b in self._spans(text[start:end])]

    def _spans(self, text: str) -> Spans:
        # Nothing but the places where a piece starts is taken from the library: gaps in its spans lose no text.
        starts = {0, *(start for start, _ in self._finder(text))}
        if "\n" in text:
            for pattern in (_BLANK_LINE, _LIST_LINE):
                starts.update(match.end() for match in pattern.finditer(text))
        if not text.isascii():
            starts.update(match.end() for match in _WIDE_END.finditer(text))
        starts.discard(len(text))
        cuts = [*sorted(starts), len(text)]
        pieces = (_strip(text, a, b) for a, b in zip(cuts, cuts[1:], strict=False))
        return _join_wordless(text, [piece for piece in pieces if piece[0] < piece[1]])

    def sentences(self, text: str) -> list[str]:
        return [text[a:b] for a, b in self.spans(text)]

    def units(self, text: str) -> list[str]:
        """The cleaned sentences of `text`."""
        return [unit for a, b in self.spans(text) if (unit := clean(text[a:b]))]

    def first_sentence_over(self, text: str, spans: Spans | None = None) -> bool:
        """Whether no continuation of `text`, whose spans may be known already, can change its first sentence."""
        spans = self.spans(text) if spans is None else spans
        if len(spans) > 1:
            # The word behind the end decides; it must be whole.
            return _WORD_THEN_MORE.search(text, spans[1][0]) is not None
        if not spans or (not text[spans[0][1] :] and text[-1] not in "。！？｡"):
            return False
        end = spans[0][1]
        return all(self.spans(text + probe)[0][1] == end for probe in _PROBES)


@cache
def splitter(name: str = DEFAULT_SPLITTER) -> Splitter:
    """The splitter that a key names."""
    if name not in _FINDERS:
        raise AlimarkError(f"no splitter is named {name!r}; known: {', '.join(sorted(_FINDERS))}")
    return Splitter(name, _FINDERS[name]())


class Piece(NamedTuple):
    """A sentence in its text: what stands before it since the last one, layout, list signs and code, and the sentence."""

    lead: str
    body: str


def pieces(text: str, cutter: Splitter) -> tuple[list[Piece], str]:
    """The sentences of a text with what stands before each, and what stands behind the last. `join` undoes it."""
    found, at = [], 0
    for a, b in cutter.spans(text):
        body = without_marker(text[a:b])
        if not clean(body):
            continue  # a detector passes over it, too
        start = b - len(body)
        found.append(Piece(text[at:start], body))
        at = b
    return found, text[at:]


def join(found: Iterable[Piece], tail: str = "") -> str:
    return "".join(lead + body for lead, body in found) + tail


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


def _outside_code(text: str) -> Spans:
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


def _strip(text: str, start: int, end: int) -> tuple[int, int]:
    while start < end and text[start].isspace():
        start += 1
    while start < end and text[end - 1].isspace():
        end -= 1
    return start, end


def _join_wordless(text: str, pieces: Spans) -> Spans:
    joined: Spans = []
    start = None  # of a list number such as "2.", which goes with what follows it
    for a, b in pieces:
        if not any(c.isalpha() for c in text[a:b]) and len(pieces) > 1:
            if any(c.isdigit() for c in text[a:b]):
                start = a if start is None else start
                continue
            if joined and start is None:
                joined[-1] = (joined[-1][0], b)
                continue
            start = a if start is None else start
            continue
        joined.append((a if start is None else start, b))
        start = None
    if start is not None:  # nothing followed
        end = pieces[-1][1]
        if joined:
            joined[-1] = (joined[-1][0], end)
        else:
            joined.append((start, end))
    return joined


def clean(sentence: str) -> str:
    """The unit's text: on one line, without a list's sign, with straight quotes and a final mark; empty for a blank."""
    text = without_marker(keep_on_one_line(sentence))
    text = text if text.isascii() else text.translate(_STRAIGHT)
    return with_full_stop(text) if text else ""


def without_marker(sentence: str) -> str:
    """A list item or a heading without its sign."""
    return _MARKER.sub("", sentence, count=1) if _MARKER.match(sentence) else sentence


def keep_on_one_line(sentence: str) -> str:
    if sentence.isprintable():  # no break and no control character in it
        return sentence.strip()
    return _LINE_BREAKS.sub(" ", sentence).translate(_NO_CONTROL).strip()


def with_full_stop(text: str) -> str:
    return text if text.rstrip(_CLOSERS)[-1:] in tuple(_MARKS) else text + "."


def merge(units: Iterable[str]) -> str:
    """Neighbours read as one sentence."""
    return " ".join(units)


def halve(unit: str) -> tuple[str, str] | None:
    """The unit cut at the space nearest its middle character, or None where it stays whole."""
    if len(unit) < 10:
        return None
    middle = len(unit) // 2
    left, right = unit.rfind(" ", 0, middle), unit.find(" ", middle)
    if left < 0 and right < 0:
        return None
    at = right if left < 0 or (right >= 0 and right - middle <= middle - left) else left
    first, second = unit[:at].rstrip(), unit[at:].lstrip()
    return (with_full_stop(first), second) if first and second else None


# The commonest words of English running text; about half of any such text consists of them.
COMMON = frozenset(
    "the of and to a in is was that it for on as with he be at by i this had not are but from or have an they which "
    "one you were her all she there would their we him been has when who will no if out so up what its about into than "
    "them can only other time new some could these two may then do first any my now such like our over me even most "
    "after also did many off before must well back through years much where your way down should because long those "
    "see said".split()
)
WORDS = re.compile(r"[^\W\d_]+")


def looks_english(text: str) -> bool:
    """False where a text of some length is clearly not English; short texts get the benefit of the doubt."""
    sample = text[:20000]
    letters = [c for c in sample if c.isalpha()]
    if len(letters) >= 20 and sum(c <= "\u024f" for c in letters) < 0.7 * len(letters):
        return False
    words = [word.lower() for word in WORDS.findall(sample)]
    return len(words) < 20 or sum(word in COMMON for word in words) >= 0.15 * len(words)
