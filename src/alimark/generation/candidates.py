"""Parsing of draws: the first sentence of a model's continuation, its flaws, and the text it is added to."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from difflib import SequenceMatcher
from typing import Literal
from unicodedata import category

from alimark.llm.base import Draw
from alimark.text.splitting import BUILT_IN, Splitter
from alimark.text.units import keep_on_one_line, with_full_stop, without_marker
from alimark.text.workers import First, first_sentence, workers

Flaw = Literal["", "blank", "repeat", "unfinished", "degenerate", "markup", "code", "resplit"]
"""Why a candidate is rejected.

blank: it has no word. repeat: the text has a sentence with the same words already. unfinished: the token limit cut it off.
degenerate: it repeats a few words. markup: it has broken markup or a control token. code: it opens a code block where other
candidates go on with a sentence. resplit: the splitter finds other boundaries once it is part of the text."""

_MANY = 128  # fewer texts are split faster in this process than in the worker processes
_GUARD_SENTENCES = 2  # a new sentence can only change the boundaries of its neighbours

_WORD = re.compile(r"\w+")
_CONTROL = re.compile(
    r"<\|[^|<>]{0,40}\|?>|</?s>|\[/?INST\]|<(?:start|end)_of_turn>|<(?:bos|eos|pad|unk)>", re.IGNORECASE
)
_TAG = re.compile(r"<(/?)([a-zA-Z][\w-]*)(?:\s[^<>]*)?(/?)>")
_MARKUP = frozenset("<[`*")
_VOID = frozenset("br hr img input meta link".split())


@dataclass(frozen=True, slots=True)
class Candidate:
    """A parsed draw: `unit` is embedded, `piece` is added to the text and includes the white space before it."""

    unit: str
    piece: str
    flaw: Flaw = ""
    ended: bool = False
    """Whether the model ended its text behind this sentence, in this draw."""
    last: Literal["", "model ended", "stop sequence"] = ""
    """Why the text ends with it, if it does: the model stopped without a punctuation mark, or wrote a stop sequence inside the
    sentence. Another draw could not go on behind it."""


class FirstSentence:
    """Tells engines whether the first sentence of a continuation, or the code block it opens, has ended."""

    def __init__(self, cutter: Splitter) -> None:
        self._cutter = cutter

    # Engines batch the continuations of several callers that have the same splitter.
    def __eq__(self, other: object) -> bool:
        return isinstance(other, FirstSentence) and other._cutter.identity == self._cutter.identity

    def __hash__(self) -> int:
        return hash(self._cutter.identity)

    def __call__(self, continuation: str) -> bool:
        if self._cutter.opens_aside(continuation):
            return self._cutter.aside_end(continuation) is not None
        return self._cutter.first_sentence_over(continuation)

    def ends(self, continuations: Sequence[str]) -> list[int]:
        """Where the first sentence of each continuation ends; 0 where it has not ended yet."""
        spans = self.spans(continuations)
        return [
            (self._cutter.aside_end(text) or 0) if self._cutter.opens_aside(text) else end if over else 0
            for text, (_, end, over) in zip(continuations, spans, strict=True)
        ]

    def spans(self, texts: Sequence[str]) -> list[First]:
        """The span of the first sentence of each text; many texts are split by worker processes."""
        if self._cutter.name in BUILT_IN and len(texts) >= _MANY:
            return workers(*self._cutter.identity).first_sentences(texts)
        return [first_sentence(self._cutter, text) for text in texts]


class Text:
    """The text written so far after a prompt: its pieces, and the units of its sentences."""

    def __init__(self, cutter: Splitter) -> None:
        self.cutter = cutter
        self.pieces: list[str] = []
        self.units: list[str] = []
        self.in_code = False
        self._word_sequences: set[str] = set()  # of all sentences, to recognise repeats
        self._tail_cache: tuple[int, list[str]] = (-1, [])
        self._unit_pieces: list[int] = []  # the index of each unit's piece; the pieces between them are code

    def __str__(self) -> str:
        return "".join(self.pieces)

    def candidate(
        self, draw: Draw, first: First | None = None, *, may_end: bool = False, stopped: bool = False
    ) -> Candidate:
        """Cuts the first sentence out of a draw and looks for flaws.

        `first` is the span of that sentence where it is known already. `may_end` says whether the model may end the text, and
        `stopped` that the draw was cut off at a stop sequence. Whether the sentence keeps its boundaries in the text is a
        question for `kept_by_splitter`, which takes longer.
        """
        if self._opens_aside(draw):
            return Candidate("", self._break_before(self._lines_before(draw.text)) + draw.text.strip("\r\n"), "code")
        if (before := self.cutter.before_aside(draw.text)) != draw.text:  # what comes before the code
            draw, first = replace(draw, text=before), None
        start, end, over = first or first_sentence(self.cutter, draw.text)
        if start == end:
            return Candidate("", "", "blank")
        sentence = draw.text[start:end]
        unit = self.cutter.unit(sentence)
        if not any(c.isalnum() for c in unit):
            return Candidate(unit, "", "blank")
        piece = self._break_before(draw.text[:start]) + _written(sentence, draw.text[end:])
        if draw.ended == "length" and not over:
            return Candidate(unit, piece, "unfinished")
        ended = may_end and draw.ended == "model" and not draw.text[end:].strip()
        line = keep_on_one_line(sentence)
        last: Literal["", "model ended", "stop sequence"] = ""
        if stopped or (ended and with_full_stop(line) != line):
            last = "stop sequence" if stopped else "model ended"
            piece = self._break_before(draw.text[:start]) + line  # nothing is added behind the model's last word
        return Candidate(unit, piece, self._flaw(unit, sentence), ended, last)

    def _opens_aside(self, draw: Draw) -> bool:
        # A line of which the model's end is the end is complete.
        return self.cutter.opens_aside(draw.text + "\n" * (draw.ended == "model"))

    def _flaw(self, unit: str, sentence: str) -> Flaw:
        if _words(unit) in self._word_sequences:
            return "repeat"
        if broken_markup(sentence):
            return "markup"
        return "degenerate" if degenerate(unit) else ""

    def _break_before(self, blank: str) -> str:
        breaks = blank.count("\n")
        if not self.pieces or self.pieces[-1][-1:].isspace():
            # With text version 1 a table row or an item of a list ends with one line break, and the model may add another.
            return "\n" * bool(self.cutter.text_version and breaks and self._ends_line)
        return "\n" * min(breaks, 2) if breaks else " "

    @property
    def _ends_line(self) -> bool:
        return bool(self.pieces) and self.pieces[-1].endswith("\n") and not self.pieces[-1].endswith("\n\n")

    def _lines_before(self, continuation: str) -> str:
        """The line breaks before code or another block: a blank line or, with text version 1, what the model wrote."""
        if not self.cutter.text_version:
            return "\n\n"
        lead = continuation[: len(continuation) - len(continuation.lstrip())]
        return lead if self._ends_line or "\n" in lead else "\n"

    def kept_by_splitter(self, candidate: Candidate) -> bool:
        """Whether the splitter finds this sentence again in the text, as a detector has to."""
        recent = self._unit_pieces[-_GUARD_SENTENCES:] or [len(self.pieces)]
        tail = "".join(self.pieces[recent[0] :]) + candidate.piece
        return self.cutter.units(tail) == [*self._tail_units(recent[0]), candidate.unit]

    def _tail_units(self, first_piece: int) -> list[str]:
        """The units before the next sentence, from a piece on, as a detector finds them.

        With text version 0 they are the chosen sentences. With version 1 a block between them may be read as prose.
        """
        if not self.cutter.text_version:
            return self.units[-_GUARD_SENTENCES:]
        if self._tail_cache[0] != len(self.pieces):
            self._tail_cache = len(self.pieces), self.cutter.units("".join(self.pieces[first_piece:]))
        return self._tail_cache[1]

    def add(self, candidate: Candidate) -> None:
        self._unit_pieces.append(len(self.pieces))
        self.pieces.append(candidate.piece)
        self.units.append(candidate.unit)
        self._word_sequences.add(_words(candidate.unit))

    def add_code(self, piece: str) -> None:
        """Adds a code block or a part of it as the model wrote it. Code carries no mark."""
        whole = (self.pieces[-1] if self.in_code else "") + piece
        end = self.cutter.aside_end(whole)
        gap = "\n" if self.cutter.text_version else "\n\n"
        self.pieces[len(self.pieces) - self.in_code :] = [whole if end is None else whole[:end].rstrip() + gap]
        self.in_code = end is None

    def shorten(self, length: int) -> None:
        """Cuts the text off after so many characters."""
        at = 0
        for number, piece in enumerate(self.pieces):
            if at + len(piece) > length:
                beginning = piece[: length - at].rstrip()
                self.pieces[number:] = [beginning] if beginning else []
                break
            at += len(piece)
        kept = sum(number < len(self.pieces) for number in self._unit_pieces)
        del self._unit_pieces[kept:], self.units[kept:]
        if kept and self._unit_pieces[-1] == len(self.pieces) - 1:
            self.units[-1] = self.cutter.unit(self.pieces[-1])
            if not _word_list(self.units[-1]):  # a list marker or a quotation mark is left of it, which is no sentence
                del self._unit_pieces[-1], self.units[-1]

    def code_over(self, continuation: str) -> bool:
        """Whether the open code block ends within this continuation."""
        return self.cutter.aside_end(self.pieces[-1] + continuation) is not None

    def surviving(self) -> int:
        """How many sentences are found again when the whole text is split."""
        matcher = SequenceMatcher(None, self.cutter.units(str(self)), self.units, autojunk=False)
        return sum(block.size for block in matcher.get_matching_blocks())


def _written(sentence: str, rest: str) -> str:
    """The sentence as it is written: on one line, ended by a full stop or, for headings and list items, by a line break."""
    text = keep_on_one_line(sentence)
    if with_full_stop(text) == text:
        return text
    if blank := re.match(r"[ \t\r]*\n[ \t\r]*(\n)?", rest):
        listed = without_marker(text) != text
        return text + ("\n\n" if blank[1] else "\n" if listed else ".")
    return text + "."


def _words(unit: str) -> str:
    """The words of a sentence without case and punctuation: two sentences with the same words count as a repeat."""
    return " ".join(_word_list(unit)) or unit


def _word_list(unit: str) -> list[str]:
    """The words of a sentence in small letters. Vowel signs, as Hindi has them, belong to a word, but are no letters."""
    if unit.isascii():
        return _WORD.findall(unit.lower())
    letters = (c if c.isalnum() or c == "_" or category(c).startswith("M") else " " for c in unit.lower())
    return "".join(letters).split()


def degenerate(unit: str) -> bool:
    """Whether a sentence repeats one word or one group of words, or consists of single letters."""
    words = _word_list(unit)
    if len(words) >= 6 and sum(len(word) == 1 and word.isalpha() for word in words) > 0.6 * len(words):
        return True
    if len(words) < 6:
        return len(words) > 2 and len(set(words)) == 1
    if len(set(words)) > 0.8 * len(words) and len(words) < 20:
        return False  # most sentences end here, which saves the slower tests below
    if Counter(words).most_common(1)[0][1] > 0.5 * len(words):
        return True
    if any(words[i] == words[i + 1] == words[i + 2] == words[i + 3] for i in range(len(words) - 3)):
        return True
    return len(words) >= 12 and len(set(zip(words, words[1:], words[2:], strict=False))) < 0.5 * (len(words) - 2)


def broken_markup(sentence: str) -> bool:
    """Whether a sentence holds a control token, half a code fence, or tags that do not close."""
    if _MARKUP.isdisjoint(sentence):
        return False
    if _CONTROL.search(sentence) or "```" in sentence or sentence.count("`") % 2 or sentence.count("**") % 2:
        return True
    opened: list[str] = []
    for close, name, alone in _TAG.findall(sentence):
        if close:
            if not opened or opened.pop() != name.lower():
                return True
        elif not alone and name.lower() not in _VOID:
            opened.append(name.lower())
    return bool(opened)
