"""The texts of sequences that are being sampled: tokens become text, and ended sentences are detected."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from alimark.llm.base import Draw, StopCondition, never
from alimark.text.continuations import Reading, has_stop, length_with_stop, stops_of
from alimark.text.splitting import STOPS

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

    wait_for_next_word: tokens arrive in blocks, so a sentence's end is looked for once the word behind it has arrived.
    Otherwise it is also looked for at the mark itself, before the next word is complete.
    """

    def __init__(self, vocabulary: Vocabulary, slots: int, max_tokens: int, *, wait_for_next_word: bool) -> None:
        self._vocabulary, self._max_tokens, self._wait_for_next_word = vocabulary, max_tokens, wait_for_next_word
        self._ids = np.zeros((slots, max_tokens + _MAX_NEW_TOKENS), dtype=np.int64)
        self._length = np.zeros(slots, dtype=np.int64)
        self._since_mark = np.zeros(slots, dtype=np.int64)  # tokens since the last mark
        self._checked = np.zeros(slots, dtype=np.int64)  # characters in which a sentence's end was looked for
        self._prompt_end: list[list[int]] = [[]] * slots
        self._stop: list[StopCondition] = [never] * slots
        self._stops = np.zeros(slots, dtype=np.bool_)  # whether sentence ends are looked for

    def start(self, slot: int, prompt: list[int], stop: StopCondition) -> None:
        """Begin a new sequence in a slot."""
        self._prompt_end[slot], self._stop[slot] = prompt[-_PROMPT_TOKENS:], stop
        self._stops[slot] = stop is not never
        self._length[slot] = self._checked[slot] = 0
        self._since_mark[slot] = self._max_tokens + _MAX_NEW_TOKENS

    def move(self, old: int, new: int) -> None:
        """Move a sequence to another slot."""
        for state in (self._ids, self._length, self._since_mark, self._checked, self._stops):
            state[new] = state[old]
        self._prompt_end[new], self._stop[new] = self._prompt_end[old], self._stop[old]

    def append(self, slots: NDArray[np.int64], tokens: NDArray[np.int64]) -> dict[int, Draw]:
        """Append new tokens, a row for each slot; the draws that have ended by now, by slot."""
        before, new = self._length[slots], tokens.shape[1]
        self._ids[slots[:, None], before[:, None] + np.arange(new)] = tokens
        self._length[slots] = length = np.minimum(before + new, self._max_tokens)
        check = self._may_have_ended(slots, tokens, length)
        snapshots = self._snapshots(slots[check], tokens[check], before[check], length[check])
        ended = self._ended(snapshots)
        for slot in slots[length == self._max_tokens].tolist():
            if slot not in ended:
                ended[slot] = Draw(self._text(slot, self._max_tokens), self._max_tokens, "length")
        return ended

    def _may_have_ended(
        self, slots: NDArray[np.int64], tokens: NDArray[np.int64], length: NDArray[np.int64]
    ) -> NDArray[np.bool_]:
        """The sequences whose model has ended the text, or in which a mark stands near the end."""
        marks = self._vocabulary.may_end_sentence[tokens]
        last = marks[:, ::-1].argmax(axis=1)
        since = np.where(marks.any(axis=1), last, self._since_mark[slots] + tokens.shape[1])
        self._since_mark[slots] = since
        check = self._stops[slots] & (since - tokens.shape[1] < _TOKENS_BEHIND_MARK)
        if self._wait_for_next_word:
            check &= (since >= 2) | (length == self._max_tokens)
        result: NDArray[np.bool_] = check | self._vocabulary.is_end[tokens].any(axis=1)
        return result

    def _snapshots(
        self,
        slots: NDArray[np.int64],
        tokens: NDArray[np.int64],
        before: NDArray[np.int64],
        length: NDArray[np.int64],
    ) -> list[_Snapshot]:
        """The texts of sequences that had `before` tokens and now have `length`, each up to where its model has ended it."""
        ends = self._vocabulary.is_end[tokens] & (before[:, None] + np.arange(tokens.shape[1]) < length[:, None])
        ended = np.asarray(ends.any(axis=1))
        counts = np.where(ended, before + ends.argmax(axis=1), length)
        return [
            _Snapshot(slot, self._text(slot, count), count, model_ended)
            for slot, count, model_ended in zip(slots.tolist(), counts.tolist(), ended.tolist(), strict=True)
        ]

    def _ended(self, snapshots: list[_Snapshot]) -> dict[int, Draw]:
        """The draws whose sentence is over or whose model has ended the text, by slot."""
        draws: dict[int, Draw] = {}
        by_condition: dict[StopCondition, list[_Snapshot]] = {}
        for snapshot in snapshots:
            if has_stop(snapshot.text):  # without a stop no sentence can be over
                by_condition.setdefault(self._stop[snapshot.slot], []).append(snapshot)
        for condition, group in by_condition.items():
            for snapshot, (length, reading) in zip(group, self._lengths(condition, group), strict=True):
                if length:
                    tokens = self._tokens_of(snapshot.slot, length, snapshot.tokens)
                    draws[snapshot.slot] = Draw(snapshot.text[:length], tokens, "sentence", reading)
        for snapshot in snapshots:
            self._checked[snapshot.slot] = len(snapshot.text)
            if snapshot.ended and snapshot.slot not in draws:
                draws[snapshot.slot] = Draw(snapshot.text, snapshot.tokens + 1, "model")
        return draws

    def _lengths(self, condition: StopCondition, snapshots: Sequence[_Snapshot]) -> list[tuple[int, Reading | None]]:
        """How much of each text is kept, 0 where its first sentence goes on; with the reading of it where there is one."""
        if self._wait_for_next_word and hasattr(condition, "readings"):
            readings: list[Reading | None] = condition.readings([snapshot.text for snapshot in snapshots])
            return [(reading.length, reading) if reading else (0, None) for reading in readings]
        return [(self._length_if_over(condition, snapshot), None) for snapshot in snapshots]

    def _length_if_over(self, condition: StopCondition, snapshot: _Snapshot) -> int:
        stops = stops_of(snapshot.text)
        end = self._sentence_end(condition, snapshot, stops)
        return length_with_stop(stops, end) if end else 0

    def _sentence_end(self, condition: StopCondition, snapshot: _Snapshot, stops: list[int]) -> int:
        """Where the first sentence ends in the text, or 0."""
        text = snapshot.text
        if condition(text):
            if len(stops) == 1:
                return stops[0] - 1
            return next((n for n in stops if condition(text[:n])), len(text) + 1) - 1
        # A sentence may be over at the mark, and no longer be so with the unfinished beginning of the next word.
        checked = self._checked[snapshot.slot]
        wait = self._wait_for_next_word and snapshot.tokens < self._max_tokens
        new = [] if wait else [n for n in stops if n > checked]
        return next((n for n in new if condition(text[:n])), 1) - 1

    def _tokens_of(self, slot: int, characters: int, most: int) -> int:
        """How many of the first `most` tokens it takes to write that many characters."""
        if (lengths := self._vocabulary.lengths) is not None:
            written = lengths[self._ids[slot, :most]].cumsum()
            return min(int(written.searchsorted(characters)) + 1, most)
        low, high = max(0, most - 2 * _TOKENS_BEHIND_MARK), most  # bisect
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if len(self._text(slot, middle)) >= characters else (middle, high)
        return high

    def _text(self, slot: int, tokens: int) -> str:
        ids: list[int] = self._ids[slot, :tokens].tolist()
        pieces = self._vocabulary.pieces
        text = "\ufffd" if pieces is None else "".join([pieces[i] for i in ids])
        if "\ufffd" in text:  # a character that several tokens make up
            text = self._vocabulary.text_after(self._prompt_end[slot], ids)
        # A character of which the last token holds only a part is not text yet.
        return text.rstrip("\ufffd")


@dataclass(frozen=True, slots=True)
class _Snapshot:
    """A sequence's text so far, its number of tokens, and whether the model has ended it there."""

    slot: int
    text: str
    tokens: int
    ended: bool
