"""What the sentence-level rivals share: one splitting, one embedding of the sentences, random keys, one form of answer.

None of them is shown the prompt at detection. A rule that looks at the sentence before leaves the first sentence of a text
free, and its test counts from the second on.
"""

from __future__ import annotations

import hashlib
import math
import time
from abc import abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from alimark._util.arrays import Floats
from alimark.detection.pipeline import projections_by
from alimark.detection.results import Detection
from alimark.detection.settings import MAX_SENTENCES
from alimark.detection.stats.p_values import NullScores, RandomKeys, significance
from alimark.errors import AlimarkError, LimitError, TextError
from alimark.generation.rules import Rule
from alimark.keys.key import Key
from alimark.schemes.base import SentenceWatermark
from alimark.text.language import looks_english
from alimark.text.splitting import splitter

if TYPE_CHECKING:
    from alimark.embedding.base import Embedder
    from alimark.llm.base import LLM

REJECTION_LIMIT = 100
REJECTION_WAVE = 8
"""Draws at a time: about one in five is accepted, so more would be thrown away and fewer would keep an engine waiting."""


def count_z(count: float, total: int, share: float) -> float:
    """The z-test of all these papers: a count of `total` against the share of them that chance would give."""
    return (count - share * total) / math.sqrt(share * (1 - share) * total) if total else 0.0


@dataclass(frozen=True)
class Statistic:
    """What a scheme makes of one text: its z, the z of random keys, and what it counted."""

    z: float
    null: NullScores
    p_least: float
    evidence: dict[str, Any]
    warnings: tuple[str, ...] = field(default=())


class SentenceRival(SentenceWatermark[Detection]):
    """A scheme adds its parameters, its rule and its statistic."""

    candidates: ClassVar[int] = REJECTION_LIMIT

    def __init__(self, key: Key, *, embedder: Embedder | None = None) -> None:
        super().__init__(key, embedder=embedder)
        self.see = self.rule(key).see

    @classmethod
    @abstractmethod
    def rule(cls, key: Key) -> Rule:
        """What is asked of a sentence while a text is written."""

    @abstractmethod
    def statistic(self, seen: Floats, text: str, sentences: Sequence[str], llm: LLM | None) -> Statistic:
        """Of the sentences of a text, a row each of what the rule sees."""

    def _sentences(self, text: str) -> list[str]:
        sentences = splitter(self.key.splitter).units(text)
        if not sentences:
            raise TextError("the text holds no sentence; there is nothing to detect")
        if len(sentences) > MAX_SENTENCES:
            raise LimitError(f"the text has {len(sentences):,} sentences and the limit is {MAX_SENTENCES:,}; cut it up")
        return sentences

    def units(self, texts: Iterable[str], settings: Any = None) -> Iterator[str]:
        for text in texts:
            with suppress(AlimarkError):
                yield from self._sentences(text)

    def detect_batch(
        self, texts: Sequence[str], settings: Any = None, *, llm: LLM | None = None, times: Counter[str] | None = None
    ) -> list[Detection | AlimarkError]:
        chosen: RandomKeys = settings or RandomKeys()
        times = Counter() if times is None else times
        started = time.perf_counter()
        split: list[list[str] | AlimarkError] = []
        for text in texts:
            try:
                split.append(self._sentences(text))
            except AlimarkError as error:
                split.append(error)
        times["splitting"] += (now := time.perf_counter()) - started  # type: ignore[assignment]
        units = list(dict.fromkeys(unit for one in split if isinstance(one, list) for unit in one))
        seen = dict(zip(units, projections_by(units, self.embedder, self.see), strict=True)) if units else {}
        times["embedding"] += (after := time.perf_counter()) - now  # type: ignore[assignment]
        answers = [
            one if isinstance(one, AlimarkError) else self._answer(text, one, seen, chosen, llm)
            for text, one in zip(texts, split, strict=True)
        ]
        times["statistic"] += time.perf_counter() - after  # type: ignore[assignment]
        return answers

    def _answer(
        self, text: str, sentences: list[str], seen: dict[str, Floats], settings: RandomKeys, llm: LLM | None
    ) -> Detection:
        found = self.statistic(np.stack([seen[unit] for unit in sentences]), text, sentences, llm)
        drawn = significance(found.z, found.null, settings.draws, stop_after=settings.stop_after, tail=settings.tail)
        embedder = self.embedder
        foreign = () if "en" not in embedder.languages or looks_english(text) else (
            f"the text does not look like English, the only language that {embedder.name} knows: a mark may not be found",
        )  # fmt: skip
        return Detection(
            key_id=self.key.id,
            scheme=self.scheme,
            embedder=embedder.name,
            backend=embedder.backend,
            fingerprint=embedder.fingerprint,
            splitter=self.key.splitter,
            settings=settings,
            text_sha256=hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest(),
            sentences=tuple(sentences),
            raw=found.z,
            score=(found.z - drawn.mean) / drawn.std if drawn.std > 0 else 0.0,
            z=found.z,
            p_value=drawn.p_value,
            p_randomised=drawn.randomised(1 - self.key.uniform("ties", text)),
            p_tail=drawn.tail,
            draws=drawn.draws,
            above=drawn.above,
            ties=drawn.ties,
            stopped_early=drawn.stopped_early,
            warnings=(*foreign, *found.warnings),
            p_least=found.p_least,
            evidence=found.evidence,
        )


def too_short() -> Statistic:
    """A text in which there is nothing to count."""
    return Statistic(0.0, lambda first, count: np.zeros(count), 1.0, {"counted": 0})


def in_chunks(first: int, count: int, size: int) -> Iterator[tuple[int, slice]]:
    """The chunks of `size` random keys that hold the keys `first` to `first + count - 1`, and which of each."""
    for chunk in range(first // size, -(-(first + count) // size)):
        start = chunk * size
        yield chunk, slice(max(first, start) - start, min(first + count, start + size) - start)
