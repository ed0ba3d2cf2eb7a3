"""The base class of the sentence-level rivals of AliMark: splitting, embedding, significance and the result.

Detection never needs the prompt. A rule that compares a sentence with the previous one cannot mark the first sentence of a
text, so its test counts from the second sentence on.
"""

import math
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache
from typing import ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from alimark.core._util.arrays import Floats
from alimark.core._util.work import Clock
from alimark.core.detection.batching import deduplicate, embed_and_project
from alimark.core.detection.building import EmbedderIdentity, Statistic, build_detection
from alimark.core.detection.preparing import SplitText, check_length, language_warnings, split
from alimark.core.detection.results import Detection
from alimark.core.detection.settings import MAX_SENTENCES
from alimark.core.detection.stats.p_values import RandomKeys, significance_of
from alimark.core.embedding.base import Embedder
from alimark.core.frozen.arithmetic import orthonormal
from alimark.core.frozen.text.normalising import normalise
from alimark.core.generation.selection import Rule, TextOrigin, Weight
from alimark.core.generation.settings import GenerationSettings
from alimark.core.keys.key import Key
from alimark.core.llm.base import LLM
from alimark.core.schemes.base import SentenceWatermark
from alimark.errors import AlimarkError, KeyMismatch

REJECTION_LIMIT = 100  # the most draws for a sentence under rejection sampling
REJECTION_WAVE = 8
"""Draws in a batch. About one in five is accepted: larger batches waste draws, smaller ones leave the engine idle."""


def count_z(count: float, total: int, share: float) -> float:
    """The z-score of a count among `total`, where each is counted with probability `share` in unmarked text."""
    return (count - share * total) / math.sqrt(share * (1 - share) * total) if total else 0.0


class KeyRule(Rule, Protocol):
    """A rule that is made for a key."""

    def __init__(self, key: Key) -> None: ...


class SentenceRival(SentenceWatermark[Detection]):
    """The base class of the rivals. A scheme adds its parameters, its selection rule and its statistic."""

    candidates: ClassVar[int] = REJECTION_LIMIT
    rule: ClassVar[type[KeyRule]]  # the selection rule of one text

    def __init__(self, key: Key, *, embedder: Embedder | None = None) -> None:
        super().__init__(key, embedder=embedder)
        self.see = self.rule(key).see

    @classmethod
    def sentence_rule(cls, key: Key, settings: GenerationSettings, origin: TextOrigin) -> Rule:
        return cls.rule(key)

    @abstractmethod
    def statistic(self, seen: Floats, text: str, sentences: Sequence[str], llm: LLM | None) -> Statistic:
        """The statistic of a text; `seen` has a row for each sentence, as the rule's `see` returns it."""

    def _split(self, text: str) -> SplitText:
        split_text = split(normalise(text), self.key)
        check_length(split_text, MAX_SENTENCES)
        return split_text

    def units(self, texts: Iterable[str], settings: RandomKeys | None = None) -> Iterator[str]:
        for text in texts:
            with suppress(AlimarkError):
                yield from self._split(text).sentences

    def detect_batch(
        self,
        texts: Sequence[str],
        settings: RandomKeys | None = None,
        *,
        llm: LLM | None = None,
        times: Counter[str] | None = None,
    ) -> list[Detection | AlimarkError]:
        chosen = settings or RandomKeys()
        clock = Clock(Counter() if times is None else times)
        split_texts: list[SplitText | AlimarkError] = []
        for text in texts:
            try:
                split_texts.append(self._split(text))
            except AlimarkError as error:
                split_texts.append(error)
        clock.lap("splitting")
        sentences = deduplicate(text.sentences for text in split_texts if isinstance(text, SplitText))
        seen = embed_and_project(sentences, self.embedder, self.see)
        clock.lap("embedding")
        answers: list[Detection | AlimarkError] = []
        for text, split_text in zip(texts, split_texts, strict=True):
            if isinstance(split_text, AlimarkError):
                answers.append(split_text)
            else:
                rows = seen[[sentences[sentence] for sentence in split_text.sentences]]
                answers.append(self._detection(text, split_text.sentences, rows, chosen, llm))
        clock.lap("statistic")
        return answers

    def _detection(
        self, text: str, sentences: list[str], seen: Floats, settings: RandomKeys, llm: LLM | None
    ) -> Detection:
        statistic = self.statistic(seen, text, sentences, llm)
        warnings = (*language_warnings(text, self.embedder), *statistic.warnings)
        return build_detection(
            Detection,
            text,
            sentences,
            replace(statistic, warnings=warnings),
            significance_of(statistic.raw, statistic.null, settings),
            key=self.key,
            embedder=EmbedderIdentity.of(self.embedder),
            settings=settings,
            tie_label="ties",
        )


def too_short() -> Statistic:
    """The statistic of a text that is too short to count anything."""
    return Statistic.of_z(0.0, lambda first, count: np.zeros(count), 1.0, {"counted": 0})


def null_z(
    counts: Callable[[int, slice], Floats], chunk_size: int, total: int, share: float
) -> Callable[[int, int], Floats]:
    """The z-scores of random keys, as `Statistic` asks for them: from number `first` on, `count` of them.

    `counts` gives the counts under the keys of a chunk, of its number and the slice of its keys that are needed; `total` things
    are counted, each with probability `share` in unmarked text.
    """

    def null(first: int, count: int) -> Floats:
        drawn = np.concatenate([counts(chunk, keys) for chunk, keys in in_chunks(first, count, chunk_size)])
        return np.asarray((drawn - share * total) / np.sqrt(share * (1 - share) * total))

    return null


def in_chunks(first: int, count: int, size: int) -> Iterator[tuple[int, slice]]:
    """Divides the random keys `first` to `first + count - 1` into chunks of `size`: yields each chunk's number and the slice of
    it that is needed."""
    for chunk in range(first // size, -(-(first + count) // size)):
        start = chunk * size
        yield chunk, slice(max(first, start) - start, min(first + count, start + size) - start)


def weights(matches: NDArray[np.integer], worths: Floats, met: NDArray[np.bool_]) -> list[Weight]:
    """How well each candidate fits, from the columns of `Weight`."""
    return [Weight(*values) for values in zip(matches.tolist(), worths.tolist(), met.tolist(), strict=True)]


def unit_rows(rows: NDArray[np.floating]) -> Floats:
    """The rows at length 1; a row of zeros stays."""
    wide = rows.astype(np.float64)
    return np.asarray(wide / np.maximum(np.linalg.norm(wide, axis=1, keepdims=True), 1e-12))


@lru_cache(maxsize=1024)
def secret_rows(key: Key, label: str, count: int, dimension: int, noun: str) -> Floats:
    """Random normal vectors of a key, one per row; raises KeyMismatch if the embedder has too few dimensions for so many."""
    if dimension < count:
        raise KeyMismatch(f"{count} {noun} need an embedder with at least as many dimensions, but it has {dimension}")
    rows: Floats = key.normals(label, count, dimension, dimension)
    return rows


@lru_cache(maxsize=1024)
def orthonormal_rows(key: Key, label: str, channels: int, dimension: int) -> Floats:
    """The secret orthonormal directions of a key's channels, one per row."""
    rows: Floats = orthonormal(secret_rows(key, label, channels, dimension, "channels")[None])[0]
    return rows
