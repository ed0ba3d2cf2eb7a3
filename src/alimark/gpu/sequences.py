"""The texts of sequences that are being sampled: tokens become text, and ended sentences are detected."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from alimark.core.frozen.text.splitting import STOPS
from alimark.core.llm.base import Draw, DrawEnded, StopCondition, never
from alimark.core.text.continuations import Reading, has_stop, length_with_stop, stops_of

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

# A token without one of these characters cannot end a sentence; a broken character may be part of one of them.
_MARKS = frozenset(stop[0] for stop in STOPS) | {"\ufffd"}

# Tokens behind a mark within which it is seen whether a sentence ended there: a word or two.
_TOKENS_BEHIND_MARK = 8

# Tokens of the prompt that are decoded along with a sequence: a tokenizer may write a first word without its space.
_PROMPT_TOKENS = 8

_MAX_NEW_TOKENS = 64  # of a sequence in one call of `append`


class Vocabulary:
    """The text of each token, and which tokens may end a sentence or end a text.

    ends: token ids that end a text. size: the size of the model's vocabulary, which may exceed the tokenizer's.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, ends: frozenset[int], size: int) -> None:
        self._tokenizer = tokenizer
        self.pieces = self._token_texts(size)
        self.lengths = np.array(list(map(len, self.pieces))) if self.pieces else None
        texts = self.pieces or [self.text([i]) for i in range(len(tokenizer))]
        self.size = size
        self.may_end_sentence, self.is_end = np.zeros(size, dtype=np.bool_), np.zeros(size, dtype=np.bool_)
        self.may_end_sentence[: len(texts)] = [not _MARKS.isdisjoint(text) for text in texts[:size]]
        self.is_end[[end for end in ends if end < size]] = True

    def text(self, ids: list[int]) -> str:
        # The underlying tokenizer is several times faster than the wrapper of transformers.
        underlying = getattr(self._tokenizer, "backend_tokenizer", None)
        text: str = (underlying or self._tokenizer).decode(ids, skip_special_tokens=True)
        return text

    def text_after(self, before: list[int], ids: list[int]) -> str:
        """The text of `ids` behind `before`."""
        return self.text(before + ids)[len(self.text(before)) :]

    def _token_texts(self, size: int) -> list[str] | None:
        """The text that each token adds, or None if a tokenizer's text is not the concatenation of its tokens' texts."""
        ordinary = self._tokenizer("a", add_special_tokens=False)["input_ids"][-1:]
        before = len(self.text(ordinary))
        pieces = [self.text([*ordinary, i])[before:] for i in range(len(self._tokenizer))]
        pieces += ["\ufffd"] * (size - len(pieces))
        sample = self._tokenizer("a cat's, 12.5 (Well-known) words: they don't fit.\n\n – Yes!")["input_ids"]
        text = self.text_after(sample[:1], sample[1:])
        return pieces if "".join(pieces[i] for i in sample[1:]) == text else None


class SequenceTexts:
    """The sequences in a number of slots, each of at most `max_tokens` tokens.

    A sentence's end is looked for once the word behind it has arrived.
    """

    def __init__(self, vocabulary: Vocabulary, slots: int, max_tokens: int) -> None:
        self._vocabulary, self._max_tokens = vocabulary, max_tokens
        self._ids = np.zeros((slots, max_tokens + _MAX_NEW_TOKENS), dtype=np.int64)
        self._length = np.zeros(slots, dtype=np.int64)
        self._since_mark = np.zeros(slots, dtype=np.int64)  # tokens since the last mark
        self._prompt_end: list[list[int]] = [[]] * slots
        self._stop: list[StopCondition] = [never] * slots
        self._stops = np.zeros(slots, dtype=np.bool_)  # whether sentence ends are looked for

    def start(self, slots: Sequence[int], prompts: Sequence[list[int]], stops: Sequence[StopCondition]) -> None:
        """Begin new sequences in slots."""
        for slot, prompt, stop in zip(slots, prompts, stops, strict=True):
            self._prompt_end[slot], self._stop[slot] = prompt[-_PROMPT_TOKENS:], stop
        at = np.asarray(slots)
        self._stops[at] = [stop is not never for stop in stops]
        self._length[at] = 0
        self._since_mark[at] = self._max_tokens + _MAX_NEW_TOKENS

    def move(self, old: int, new: int) -> None:
        """Move a sequence to another slot."""
        for state in (self._ids, self._length, self._since_mark, self._stops):
            state[new] = state[old]
        self._prompt_end[new], self._stop[new] = self._prompt_end[old], self._stop[old]

    def append(self, slots: NDArray[np.int64], tokens: NDArray[np.int64]) -> dict[int, Look]:
        """Append new tokens, a row for each slot; the sequences that may have ended, by slot.

        No more tokens may be appended to a sequence that has ended.
        """
        before, new = self._length[slots], tokens.shape[1]
        self._ids[slots[:, None], before[:, None] + np.arange(new)] = tokens
        self._length[slots] = length = np.minimum(before + new, self._max_tokens)
        ends = self._vocabulary.is_end[tokens] & (before[:, None] + np.arange(new) < length[:, None])
        by_model = np.asarray(ends.any(axis=1))
        near_mark = self._near_mark(slots, tokens, length)
        chosen = near_mark | by_model | (length == self._max_tokens)
        counts = np.where(by_model, before + ends.argmax(axis=1), length)
        columns = (counts[chosen].tolist(), by_model[chosen].tolist(), (near_mark | by_model)[chosen].tolist())
        return {slot: self._look(*values) for slot, *values in zip(slots[chosen].tolist(), *columns, strict=True)}

    def _look(self, tokens: int, by_model: bool, may_be_over: bool) -> Look:
        return Look(tokens, "model" if by_model else "length" if tokens == self._max_tokens else None, may_be_over)

    def _near_mark(
        self, slots: NDArray[np.int64], tokens: NDArray[np.int64], length: NDArray[np.int64]
    ) -> NDArray[np.bool_]:
        """The sequences in which a sentence may be over, because a mark stands near the end."""
        marks = self._vocabulary.may_end_sentence[tokens]
        last = marks[:, ::-1].argmax(axis=1)
        since = np.where(marks.any(axis=1), last, self._since_mark[slots] + tokens.shape[1])
        self._since_mark[slots] = since
        near = (since - tokens.shape[1] < _TOKENS_BEHIND_MARK) & ((since >= 2) | (length == self._max_tokens))
        return np.asarray(self._stops[slots] & near)

    def snapshot(self, slot: int, look: Look) -> Snapshot:
        """The text of a sequence at a look."""
        ids: list[int] = self._ids[slot, : look.tokens].tolist()
        prompt_end, stop = self._prompt_end[slot], self._stop[slot] if look.may_be_over else never
        return Snapshot(self._text(prompt_end, ids), ids, prompt_end, look.last, stop)

    def read(self, snapshots: Sequence[Snapshot]) -> list[Over | None]:
        """Look for the end of the first sentence in texts with the same stop condition; None where it goes on.

        It uses no state that changes, so another thread may call it.
        """
        condition, texts = snapshots[0].stop, [snapshot.text for snapshot in snapshots]
        if not hasattr(condition, "readings"):
            return [_over(condition, text) for text in texts]
        readings: list[Reading | None] = condition.readings(texts)
        return [Over(reading.length, reading) if reading else None for reading in readings]

    def draw(self, snapshot: Snapshot, over: Over | None) -> Draw | None:
        """The draw of a sequence whose first sentence is over, or that has ended; None where it goes on."""
        if over is not None:
            return Draw(snapshot.text[: over.length], self._tokens_of(snapshot, over.length), "sentence", over.reading)
        if snapshot.last is None:
            return None
        # The token that ends a text is counted, too.
        return Draw(snapshot.text, len(snapshot.ids) + (snapshot.last == "model"), snapshot.last)

    def _tokens_of(self, snapshot: Snapshot, characters: int) -> int:
        """How many tokens of a text it takes to write that many characters."""
        ids, most = snapshot.ids, len(snapshot.ids)
        if (lengths := self._vocabulary.lengths) is not None:
            written = lengths[ids].cumsum()
            return min(int(written.searchsorted(characters)) + 1, most)
        low, high = max(0, most - 2 * _TOKENS_BEHIND_MARK), most  # bisect
        while high - low > 1:
            middle = (low + high) // 2
            enough = len(self._text(snapshot.prompt_end, ids[:middle])) >= characters
            low, high = (low, middle) if enough else (middle, high)
        return high

    def _text(self, prompt_end: list[int], ids: list[int]) -> str:
        pieces = self._vocabulary.pieces
        text = "\ufffd" if pieces is None else "".join([pieces[i] for i in ids])
        if "\ufffd" in text:  # a character that several tokens make up
            text = self._vocabulary.text_after(prompt_end, ids)
        # A character of which the last token holds only a part is not text yet.
        return text.rstrip("\ufffd")


class Look(NamedTuple):
    """When a sequence has to be looked at: after how many of its tokens.

    last: why no more tokens follow, None where they do. may_be_over: whether its first sentence may be over.
    """

    tokens: int
    last: DrawEnded | None
    may_be_over: bool


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A sequence's text so far and its tokens.

    prompt_end: the last tokens before it. last: as in `Look`. stop: tells whether the first sentence is over; `never` where
    that is not looked for.
    """

    text: str
    ids: list[int]
    prompt_end: list[int]
    last: DrawEnded | None
    stop: StopCondition

    @property
    def to_read(self) -> bool:
        """Whether the text has to be read: without a stop its first sentence cannot be over."""
        return self.stop is not never and has_stop(self.text)


@dataclass(frozen=True, slots=True)
class Over:
    """How much of a text is kept whose first sentence is over, with the reading of it where there is one."""

    length: int
    reading: Reading | None = None


def _over(condition: StopCondition, text: str) -> Over | None:
    """How much of a text is kept, None where its first sentence goes on."""
    if not condition(text):
        return None
    stops = stops_of(text)
    end = stops[0] if len(stops) == 1 else next((n for n in stops if condition(text[:n])), len(text) + 1)
    return Over(length_with_stop(stops, end - 1))
