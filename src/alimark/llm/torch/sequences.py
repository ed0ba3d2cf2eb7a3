"""Draws in progress as texts: what their tokens say so far, and which of them are over."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from alimark.llm.base import Draw, Over, never
from alimark.text.splitting import STOP, STOPS

# A token without one of these begins no sentence's end; a broken character might be one of them in part.
_MARKS = frozenset(stop[0] for stop in STOPS) | {"\ufffd"}

# Tokens behind a mark in which it is seen whether a sentence ended there: a word or two.
_WORDS_BEHIND = 8

# Tokens of the prompt decoded along with a draw: a tokenizer may write a first word without its space.
_CONTEXT_IDS = 8

_MOST_AT_A_TIME = 64  # tokens of a row that `take` may bring


class Vocabulary:
    """What tokens say, and which of them end a sentence or a text. `size`: the model's, which may exceed the tokenizer's."""

    def __init__(self, tokenizer: Any, ends: frozenset[int], size: int) -> None:
        self._tokenizer = tokenizer
        self.pieces = self._token_texts(size)
        texts = self.pieces or [self.text([i]) for i in range(len(tokenizer))]
        self.size = size
        self.may_end_sentence, self.is_end = np.zeros(size, dtype=np.bool_), np.zeros(size, dtype=np.bool_)
        self.may_end_sentence[: len(texts)] = [not _MARKS.isdisjoint(text) for text in texts[:size]]
        self.is_end[[end for end in ends if end < size]] = True

    def text(self, ids: list[int]) -> str:
        # Asked of the tokenizer beneath, which is several times faster than asking through transformers.
        beneath = getattr(self._tokenizer, "backend_tokenizer", None)
        text: str = (beneath or self._tokenizer).decode(ids, skip_special_tokens=True)
        return text

    def after(self, before: list[int], ids: list[int]) -> str:
        """The text of `ids` behind `before`: a tokenizer may write a first word without its space."""
        return self.text(before + ids)[len(self.text(before)) :]

    def _token_texts(self, size: int) -> list[str] | None:
        """What each token adds to a text, or None where a tokenizer's text is more than its tokens' put together."""
        ordinary = self._tokenizer("a", add_special_tokens=False)["input_ids"][-1:]
        before = len(self.text(ordinary))
        pieces = [self.text([*ordinary, i])[before:] for i in range(len(self._tokenizer))]
        pieces += ["\ufffd"] * (size - len(pieces))  # some models have more rows than their tokenizer has tokens
        sample = self._tokenizer("a cat's, 12.5 (Well-known) words: they don't fit.\n\n – Yes!")["input_ids"]
        return pieces if "".join(pieces[i] for i in sample[1:]) == self.after(sample[:1], sample[1:]) else None


class Rows:
    """The draws at so many places, each of at most `steps` tokens.

    patient: tokens come in batches, so that the next word is there soon, and a look that tries what might follow is saved.
    """

    def __init__(self, vocabulary: Vocabulary, places: int, steps: int, *, patient: bool) -> None:
        self._vocabulary, self._steps, self._patient = vocabulary, steps, patient
        self._ids = np.zeros((places, steps + _MOST_AT_A_TIME), dtype=np.int64)
        self._done = np.zeros(places, dtype=np.int64)
        self._since = np.zeros(places, dtype=np.int64)  # tokens since the last mark
        self._known = np.zeros(places, dtype=np.int64)  # how much text was looked at
        self._before: list[list[int]] = [[]] * places
        self._over: list[Over] = [never] * places
        self._watched = np.zeros(places, dtype=np.bool_)  # whose sentences' ends are looked for

    def begin(self, place: int, prompt: list[int], over: Over) -> None:
        self._before[place], self._over[place] = prompt[-_CONTEXT_IDS:], over
        self._watched[place] = over is not never
        self._done[place] = self._known[place] = 0
        self._since[place] = self._steps + _MOST_AT_A_TIME

    def move(self, old: int, new: int) -> None:
        for kept in (self._ids, self._done, self._since, self._known, self._watched):
            kept[new] = kept[old]
        self._before[new], self._over[new] = self._before[old], self._over[old]

    def take(self, places: NDArray[np.int64], tokens: NDArray[np.int64]) -> dict[int, Draw]:
        """Add the new tokens of these places, a row each; the draws that are over by now, by place."""
        before, new = self._done[places], tokens.shape[1]
        self._ids[places[:, None], before[:, None] + np.arange(new)] = tokens
        self._done[places] = done = np.minimum(before + new, self._steps)
        worth = self._worth_a_look(places, tokens, done)
        looks = [
            self._look(place, start)
            for place, start in zip(places[worth].tolist(), before[worth].tolist(), strict=True)
        ]
        ended = self._judge(looks)
        for place in places[done == self._steps].tolist():
            if place not in ended:
                ended[place] = Draw(self._read(place, self._steps), self._steps, "length")
        return ended

    def _worth_a_look(
        self, places: NDArray[np.int64], tokens: NDArray[np.int64], done: NDArray[np.int64]
    ) -> NDArray[np.bool_]:
        """The rows that have just ended, or in which a mark stands near the end."""
        marks = self._vocabulary.may_end_sentence[tokens]
        last = marks[:, ::-1].argmax(axis=1)
        since = np.where(marks.any(axis=1), last, self._since[places] + tokens.shape[1])
        self._since[places] = since
        look = self._watched[places] & (since - tokens.shape[1] < _WORDS_BEHIND)
        if self._patient:
            look &= (since >= 2) | (done == self._steps)  # before that the next word is not whole
        found: NDArray[np.bool_] = look | self._vocabulary.is_end[tokens].any(axis=1)
        return found

    def _look(self, place: int, before: int) -> _Look:
        done = int(self._done[place])
        ended = np.flatnonzero(self._vocabulary.is_end[self._ids[place, before:done]])
        most = before + int(ended[0]) if len(ended) else done
        text = self._read(place, most)
        ends = [stop.end() for stop in STOP.finditer(text, len(text) - len(text.lstrip()))]
        return _Look(place, text, ends, most, bool(len(ended)))

    def _judge(self, looks: list[_Look]) -> dict[int, Draw]:
        """The draws whose sentence is over or whose text has ended; without a stop there is no end."""
        found: dict[int, Draw] = {}
        asked: dict[Over, list[_Look]] = {}
        for look in looks:
            if look.stops:
                asked.setdefault(self._over[look.place], []).append(look)
        for over, some in asked.items():
            for look, end in zip(some, self._sentence_ends(over, some), strict=True):
                if end:
                    # With the blank behind the mark, which tells a heading from a sentence.
                    to = next((stop for stop in look.stops if stop > end), max(end, look.stops[-1]))
                    found[look.place] = Draw(look.text[:to], self._tokens_of(look.place, to, look.tokens), "sentence")
        for look in looks:
            self._known[look.place] = len(look.text)
            if look.ended and look.place not in found:
                found[look.place] = Draw(look.text, look.tokens + 1, "model")
        return found

    def _sentence_ends(self, over: Over, looks: Sequence[_Look]) -> list[int]:
        if self._patient and hasattr(over, "ends"):
            ends: list[int] = over.ends([look.text for look in looks])
            return ends
        return [self._sentence_end(over, look) for look in looks]

    def _sentence_end(self, over: Over, look: _Look) -> int:
        text = look.text
        if over(text):
            if len(look.stops) == 1:  # then it is plain where
                return look.stops[0] - 1
            return next((n for n in look.stops if over(text[:n])), len(text) + 1) - 1
        # A sentence may be over at the mark while the start of the next word, unfinished, would leave it open.
        known = self._known[look.place]
        new = [] if self._patient and look.tokens < self._steps else [n for n in look.stops if n > known]
        return next((n for n in new if over(text[:n])), 1) - 1

    def _tokens_of(self, place: int, length: int, most: int) -> int:
        """How many of the first `most` tokens it takes to write that much text."""
        if pieces := self._vocabulary.pieces:
            written = 0
            for n, token in enumerate(self._ids[place, :most].tolist(), 1):
                written += len(pieces[token])
                if written >= length:
                    return n
            return most
        low, high = max(0, most - 2 * _WORDS_BEHIND), most
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if len(self._read(place, middle)) >= length else (middle, high)
        return high

    def _read(self, place: int, tokens: int) -> str:
        ids: list[int] = self._ids[place, :tokens].tolist()
        pieces = self._vocabulary.pieces
        text = "\ufffd" if pieces is None else "".join([pieces[i] for i in ids])
        if "\ufffd" in text:  # a character in several tokens
            text = self._vocabulary.after(self._before[place], ids)
        # A character cut in two by the last token is no part of the text yet.
        return text.rstrip("\ufffd")


@dataclass(frozen=True, slots=True)
class _Look:
    """A row's text so far, where stops end in it, how many tokens it took, and whether the model ended it there."""

    place: int
    text: str
    stops: list[int]
    tokens: int
    ended: bool
