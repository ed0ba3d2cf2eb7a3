"""Parsing of draws: the first sentence of a model's continuation, its flaws, and the text it is added to."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from difflib import SequenceMatcher
from typing import Literal

from alimark.core.frozen.text.prose import aside_end, prose_end, prose_start
from alimark.core.frozen.text.splitting import BUILT_IN, Splitter
from alimark.core.llm.base import Draw
from alimark.core.text.continuations import Continuation, Reading, first_end, read, reading_of, word_list, word_sequence
from alimark.core.text.workers import split, workers

Flaw = Literal["", "blank", "repeat", "unfinished", "degenerate", "markup", "code", "resplit"]
"""Why a candidate is rejected.

blank: it has no word. repeat: the text has a sentence with the same words already. unfinished: the token limit cut it off.
degenerate: it repeats a few words. markup: it has broken markup or a control token. code: it opens a code block where other
candidates go on with a sentence. resplit: the splitter finds other boundaries once it is part of the text."""

_MANY = 16  # so many continuations are worth starting worker processes for, whatever the engine
_GUARD_SENTENCES = 2  # a new sentence can only change the boundaries of its neighbours


@dataclass(frozen=True, slots=True)
class Candidate:
    """A parsed draw: `unit` is embedded, `piece` is added to the text and includes the white space before it."""

    unit: str
    piece: str
    flaw: Flaw = ""
    ended: bool = False  # whether the model ended its text behind this sentence, in this draw
    last: Literal["", "model ended", "stop sequence"] = ""
    """Why the text ends with it, if it does: the model stopped without a punctuation mark, or wrote a stop sequence inside the
    sentence. Another draw could not go on behind it."""


class FirstSentence:
    """Tells engines whether the first sentence of a continuation, or the code block it opens, has ended."""

    def __init__(self, cutter: Splitter) -> None:
        self._cutter = cutter

    # Engines batch the continuations of several callers that have the same splitter.
    def __eq__(self, other: object) -> bool:
        return isinstance(other, FirstSentence) and other._cutter.name == self._cutter.name

    def __hash__(self) -> int:
        return hash(self._cutter.name)

    def __call__(self, continuation: str) -> bool:
        return first_end(self._cutter, continuation) > 0

    def readings(self, continuations: Sequence[str]) -> list[Reading | None]:
        """Reads each continuation up to a little beyond its first sentence; None where that has not ended yet."""
        # Threads of a GPU engine ask for this while it samples on, and other threads need this process meanwhile.
        return self._readings([(text, None) for text in continuations], least=1)

    def read(self, draws: Sequence[Draw]) -> list[Draw]:
        """The same draws, each with its reading."""
        unread = [(draw.text, draw.ended) for draw in draws if draw.reading is None]
        if not unread:
            return list(draws)
        readings = iter(self._readings(unread, least=_MANY))
        return [draw if draw.reading else replace(draw, reading=next(readings)) for draw in draws]

    def _readings(self, continuations: Sequence[Continuation], least: int) -> list[Reading | None]:
        """Reads continuations here, or at least `least` of them in worker processes, which know the built-in splitters."""
        if self._cutter.name in BUILT_IN and len(continuations) >= least:
            return workers(self._cutter.name).readings(continuations)
        return [reading_of(self._cutter, *continuation) for continuation in continuations]


class Text:
    """The text written so far after a prompt: its pieces, and the units of its sentences."""

    def __init__(self, cutter: Splitter) -> None:
        self.cutter = cutter
        self.pieces: list[str] = []
        self.units: list[str] = []
        self.in_code = False
        """Whether a code block or another block that holds no prose, as far as is known, is open."""
        self._aside_from: int | None = None  # the piece with which the open block begins
        self._prose_from: int | None = None  # where the prose begins in the open block that is being written
        self._first_joined = 0  # the first piece behind a block, to which no sentence before it is joined
        self._word_sequences: set[str] = set()  # of all sentences, to recognise repeats
        self._tail_cache: tuple[int, list[str]] = (-1, [])
        self._unit_pieces: list[int] = []  # the index of each unit's piece; the pieces between them are code

    def __str__(self) -> str:
        return "".join(self.pieces)

    def candidate(self, draw: Draw, *, may_end: bool = False, stopped: bool = False) -> Candidate:
        """Makes a candidate of a draw: its first sentence as it would stand in this text, and its flaws.

        `may_end` says whether the model may end the text, and `stopped` that the draw was cut off at a stop sequence. Whether
        the sentence keeps its boundaries in the text is a question for `kept_by_splitter`, which takes longer.
        """
        if self._prose_from is not None and (end := prose_end(self._aside, draw.text)) is not None:
            if not draw.text[:end].strip():
                return Candidate("", draw.text, "code")
            draw = Draw(draw.text[:end], draw.tokens, "sentence")
        reading = draw.reading or read(self.cutter, draw.text, draw.ended)
        flaw: Flaw = reading.flaw
        if flaw == "code":
            lines = self._lines_before(draw.text).count("\n")
            return Candidate("", self._break_before(lines) + draw.text.strip("\r\n"), "code")
        if flaw == "blank":
            return Candidate(reading.unit, "", "blank")
        piece = self._break_before(reading.breaks) + reading.line
        if flaw == "unfinished":
            return Candidate(reading.unit, piece + reading.closing, flaw)
        ended = may_end and draw.ended == "model" and reading.last
        last: Literal["", "model ended", "stop sequence"] = ""
        if stopped or (ended and reading.closing):  # nothing is added behind the model's last word
            last = "stop sequence" if stopped else "model ended"
        else:
            piece += reading.closing
        if reading.words in self._word_sequences:
            flaw = "repeat"
        return Candidate(reading.unit, piece, flaw, ended, last)

    def _break_before(self, breaks: int) -> str:
        """What stands between the text and a sentence before which the model wrote so many line breaks."""
        if not self.pieces or self.pieces[-1][-1:].isspace():
            # A table row or an item of a list ends with one line break, and the model may add another.
            return "\n" * bool(breaks and self._ends_line)
        return "\n" * min(breaks, 2) if breaks else " "

    @property
    def _ends_line(self) -> bool:
        return bool(self.pieces) and self.pieces[-1].endswith("\n") and not self.pieces[-1].endswith("\n\n")

    @property
    def in_given_words(self) -> bool:
        """Whether the text goes on in code, in a quotation or in a cell of a table."""
        if self.in_code:
            return True
        last_line = "".join(self.pieces[-1:]).rpartition("\n")[2].lstrip()
        return last_line.startswith((">", "|", '"', "“"))

    def _lines_before(self, continuation: str) -> str:
        """The line breaks before code or another block, as the model wrote them."""
        lead = continuation[: len(continuation) - len(continuation.lstrip())]
        return lead if self._ends_line or "\n" in lead else "\n"

    def kept_by_splitter(self, candidate: Candidate) -> bool:
        """Whether the splitter finds this sentence again in the text, as a detector has to."""
        if self._prose_from is not None:  # in a block, with it the text before has to be prose
            closed = self._aside + candidate.piece + ("\n\n" if "\n" in self._aside else " |")
            if prose_start(closed, self._prose_from) != self._prose_from:
                return False
        recent = self._unit_pieces[-_GUARD_SENTENCES:] or [len(self.pieces)]
        first = max(recent[0], self._first_joined)
        tail = "".join(self.pieces[first:]) + candidate.piece
        return split(self.cutter, tail) == [*self._tail_units(first), candidate.unit]

    def _tail_units(self, first_piece: int) -> list[str]:
        """The units before the next sentence, from a piece on, as a detector finds them."""
        if self._tail_cache[0] != len(self.pieces):
            self._tail_cache = len(self.pieces), split(self.cutter, "".join(self.pieces[first_piece:]))
        return self._tail_cache[1]

    def add(self, candidate: Candidate) -> None:
        self._unit_pieces.append(len(self.pieces))
        self.pieces.append(candidate.piece)
        self.units.append(candidate.unit)
        self._word_sequences.add(word_sequence(candidate.unit))

    @property
    def _aside(self) -> str:
        """The block that is open, as far as it is written."""
        return "" if self._aside_from is None else "".join(self.pieces[self._aside_from :])

    def add_code(self, piece: str) -> None:
        """Adds a code block or a part of it as the model wrote it, up to the prose that begins in it."""
        if self._aside_from is None:
            self._aside_from = len(self.pieces)
        known = len(self._aside)
        whole = self._aside + piece
        end, self._prose_from = aside_end(whole), prose_start(whole, known)
        self.in_code = end is None and self._prose_from is None
        if self._prose_from is not None:
            layout, prose = whole[: self._prose_from], whole[self._prose_from :]
            indentation = len(prose) - len(prose.lstrip(" \t")) if layout.endswith("\n") else 0
            piece = whole[known : self._prose_from + indentation]
        elif end is not None:
            piece, self._aside_from = whole[known:end].rstrip() + "\n", None
        self.pieces += [piece] if piece else []
        self._first_joined = len(self.pieces)

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
            if not word_list(self.units[-1]):  # a list marker or a quotation mark is left of it, which is no sentence
                del self._unit_pieces[-1], self.units[-1]

    @property
    def in_aside(self) -> bool:
        """Whether a block is open, in which `aside_over` tells when to stop sampling."""
        return self._aside_from is not None

    def aside_over(self, continuation: str) -> bool:
        """Whether the open block, or a sentence in it, ends within this continuation, or prose begins in it."""
        before = self._aside
        if self._prose_from is not None:
            end = prose_end(before, continuation)
            if end is None or continuation[:end].strip():
                return end is not None or first_end(self.cutter, continuation) > 0
        return (
            aside_end(before + continuation) is not None or prose_start(before + continuation, len(before)) is not None
        )

    def surviving(self) -> int:
        """How many sentences are found again when the whole text is split."""
        matcher = SequenceMatcher(None, self.cutter.units(str(self)), self.units, autojunk=False)
        return sum(block.size for block in matcher.get_matching_blocks())
