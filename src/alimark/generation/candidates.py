"""The text so far, and what of a model's continuation may be added to it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from difflib import SequenceMatcher
from typing import Literal

from alimark.llm.base import Draw
from alimark.text.code import before_code, code_end, opens_code
from alimark.text.splitting import BUILT_IN, Splitter
from alimark.text.units import clean, keep_on_one_line, with_full_stop, without_marker
from alimark.text.workers import First, first_sentence, workers

Flaw = Literal["", "blank", "repeat", "unfinished", "degenerate", "markup", "code", "resplit"]
"""Why a candidate is not taken: no word in it; said before; cut off; the same words over and over; broken markup or a
control token; the start of a code block where the text goes on in words; split otherwise once it is part of the text."""

_MANY = 128  # texts that are worth asking other processes for
_GUARD_SENTENCES = 2  # a new sentence changes at most where its neighbours end

_WORD = re.compile(r"\w+")
_CONTROL = re.compile(
    r"<\|[^|<>]{0,40}\|?>|</?s>|\[/?INST\]|<(?:start|end)_of_turn>|<(?:bos|eos|pad|unk)>", re.IGNORECASE
)
_TAG = re.compile(r"<(/?)([a-zA-Z][\w-]*)(?:\s[^<>]*)?(/?)>")
_MARKUP = frozenset("<[`*")
_VOID = frozenset("br hr img input meta link".split())


@dataclass(frozen=True, slots=True)
class Candidate:
    """`unit` is what is embedded; `piece` is what is added to the text, with the layout before it."""

    unit: str
    piece: str
    flaw: Flaw = ""


class FirstSentence:
    """Tells engines when a continuation's first sentence, or the code block it opens, is over."""

    def __init__(self, cutter: Splitter) -> None:
        self._cutter = cutter

    # Texts of several callers are asked about together where they are split alike.
    def __eq__(self, other: object) -> bool:
        return isinstance(other, FirstSentence) and other._cutter.name == self._cutter.name

    def __hash__(self) -> int:
        return hash(self._cutter.name)

    def __call__(self, continuation: str) -> bool:
        if opens_code(continuation):
            return code_end(continuation) is not None
        return self._cutter.first_sentence_over(continuation)

    def ends(self, continuations: Sequence[str]) -> list[int]:
        found = self.spans(continuations)
        return [
            (code_end(text) or 0) if opens_code(text) else end if over else 0
            for text, (_, end, over) in zip(continuations, found, strict=True)
        ]

    def spans(self, texts: Sequence[str]) -> list[First]:
        if self._cutter.name in BUILT_IN and len(texts) >= _MANY:
            return workers(self._cutter.name).first_sentences(texts)
        return [first_sentence(self._cutter, text) for text in texts]


class Text:
    """What has been written after a prompt."""

    def __init__(self, cutter: Splitter) -> None:
        self.cutter = cutter
        self.pieces: list[str] = []
        self.units: list[str] = []
        self.in_code = False
        self._said: set[str] = set()
        self._places: list[int] = []  # of the units' pieces; between them lies code

    def __str__(self) -> str:
        return "".join(self.pieces)

    def candidate(self, draw: Draw, first: First | None = None) -> Candidate:
        """A draw's first sentence. What depends on the text around it is asked of `splits_again`."""
        if opens_code(draw.text):
            return Candidate("", self._break_before("\n\n") + draw.text.strip("\r\n"), "code")
        if "```" in draw.text or "~~~" in draw.text:  # what comes before the code
            draw, first = replace(draw, text=before_code(draw.text)), None
        start, end, over = first or first_sentence(self.cutter, draw.text)
        if start == end:
            return Candidate("", "", "blank")
        sentence = draw.text[start:end]
        unit = clean(sentence)
        if not any(c.isalnum() for c in unit):
            return Candidate(unit, "", "blank")
        piece = self._break_before(draw.text[:start]) + _written(sentence, draw.text[end:])
        if draw.ended == "length" and not over:
            return Candidate(unit, piece, "unfinished")
        return Candidate(unit, piece, self._flaw(unit, sentence))

    def _flaw(self, unit: str, sentence: str) -> Flaw:
        if _said(unit) in self._said:
            return "repeat"
        if broken_markup(sentence):
            return "markup"
        return "degenerate" if degenerate(unit) else ""

    def _break_before(self, blank: str) -> str:
        if not self.pieces or self.pieces[-1][-1:].isspace():
            return ""
        breaks = blank.count("\n")
        return "\n" * min(breaks, 2) if breaks else " "

    def splits_again(self, candidate: Candidate) -> bool:
        """Whether a detector, which sees no boundaries but those it finds, will find this sentence."""
        places = self._places[-_GUARD_SENTENCES:] or [len(self.pieces)]
        tail = "".join(self.pieces[places[0] :]) + candidate.piece
        return self.cutter.units(tail) == [*self.units[-_GUARD_SENTENCES:], candidate.unit]

    def add(self, candidate: Candidate) -> None:
        self._places.append(len(self.pieces))
        self.pieces.append(candidate.piece)
        self.units.append(candidate.unit)
        self._said.add(_said(candidate.unit))

    def add_code(self, piece: str) -> None:
        """A code block, or some of it, as the model writes it: it carries no mark."""
        whole = (self.pieces[-1] if self.in_code else "") + piece
        end = code_end(whole)
        self.pieces[len(self.pieces) - self.in_code :] = [whole if end is None else whole[:end].rstrip() + "\n\n"]
        self.in_code = end is None

    def code_over(self, continuation: str) -> bool:
        return code_end(self.pieces[-1] + continuation) is not None

    def surviving(self) -> int:
        """Sentences that splitting the whole text finds again."""
        matcher = SequenceMatcher(None, self.cutter.units(str(self)), self.units, autojunk=False)
        return sum(block.size for block in matcher.get_matching_blocks())


def _written(sentence: str, rest: str) -> str:
    """What is written of a sentence: on one line, and ended by a mark or, as headings and list items are, by a break."""
    text = keep_on_one_line(sentence)
    if with_full_stop(text) == text:
        return text
    if blank := re.match(r"[ \t\r]*\n[ \t\r]*(\n)?", rest):
        listed = without_marker(text) != text
        return text + ("\n\n" if blank[1] else "\n" if listed else ".")
    return text + "."


def _said(unit: str) -> str:
    """Two sentences with the same words say the same."""
    return " ".join(_WORD.findall(unit.lower())) or unit


def degenerate(unit: str) -> bool:
    """Whether a sentence is one word, or one run of words, over and over, or words that are spelled o u t."""
    words = _WORD.findall(unit.lower())
    if len(words) >= 6 and sum(len(word) == 1 and word.isalpha() for word in words) > 0.6 * len(words):
        return True
    if len(words) < 6:
        return len(words) > 2 and len(set(words)) == 1
    if len(set(words)) > 0.8 * len(words) and len(words) < 20:
        return False  # which is most of them, and soon told
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
