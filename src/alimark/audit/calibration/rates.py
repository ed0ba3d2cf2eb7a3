"""False-positive rates on human text: of one key, of a fresh key for each text, and their spread over many keys."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from alimark.core._util.arrays import Floats, Ints
from alimark.core.detection.batching import deduplicate
from alimark.core.detection.preparing import make_units, normalise, split
from alimark.core.detection.scoring import score_table, scoring
from alimark.core.detection.settings import DetectionSettings
from alimark.core.detection.stats.p_values import RandomKeys
from alimark.core.detection.units import Units
from alimark.core.embedding.base import Embedder
from alimark.core.keys.key import Key
from alimark.core.keys.projection import project
from alimark.errors import AlimarkError

if TYPE_CHECKING:
    from alimark.core.schemes.watermark import Watermark

LEVELS = (0.01, 0.05, 0.5)
Progress = Callable[[int], None]
_JOBS_AT_A_TIME = 2_000_000
"""Pairs of a text and a random key whose scores are held in memory at a time."""


@dataclass(frozen=True)
class Embedded:
    """Human texts with the embeddings of their units, computed once for all keys."""

    units: list[Units]
    starts: Ints
    """The row where the embeddings of each text begin, and at the end the number of rows."""
    embeddings: NDArray[np.float32]

    @classmethod
    def of(cls, texts: Sequence[str], key: Key, embedder: Embedder, settings: DetectionSettings) -> Embedded:
        """Splits and embeds the texts with the stages of the detection pipeline."""
        units = [make_units(split(normalise(text, key).text, key), key, settings) for text in texts]
        unique = deduplicate(text.texts for text in units)
        rows = [unique.rows(text.texts) for text in units]
        starts = np.cumsum([0, *(len(text_rows) for text_rows in rows)])
        return cls(units, starts, embedder.embed(unique.texts)[[row for text_rows in rows for row in text_rows]])

    def part(self, chosen: Sequence[int]) -> Embedded:
        """Some of the texts, by number."""
        rows = [np.arange(self.starts[i], self.starts[i + 1]) for i in chosen]
        starts = np.cumsum([0, *(len(row) for row in rows)])
        return Embedded([self.units[i] for i in chosen], starts, self.embeddings[np.concatenate(rows)])

    def mean(self) -> NDArray[np.float32]:
        """The mean embedding of all sentences."""
        whole = [self.starts[i] + text.index[:, 0, 0] for i, text in enumerate(self.units)]
        return np.asarray(self.embeddings[np.concatenate(whole)].mean(axis=0))


@dataclass(frozen=True)
class Values:
    """For each text: the p-value, never too small; the same with ties broken at random; the raw score."""

    p: Floats
    p_randomised: Floats
    raw: Floats


def p_values(texts: Embedded, key: Key, settings: DetectionSettings, seed: int = 0) -> Values:
    """The p-values of all texts under one key, against the same random keys."""
    projections = project(texts.embeddings, key)
    rule = scoring(key, settings)
    ranges = zip(texts.units, texts.starts, texts.starts[1:], strict=False)
    signals = [rule.signals(units, projections[start:stop]) for units, start, stop in ranges]
    length = rule.length(max(len(text.packed) for text in signals))
    above, ties = np.zeros(len(signals), np.int64), np.zeros(len(signals), np.int64)
    raw = np.empty(0)
    batch = max(1, _JOBS_AT_A_TIME // len(signals))
    for first in range(0, settings.draws, batch):
        null = key.null_blocks(first, min(batch, settings.draws - first), length)
        # The key itself is scored with the first batch, since every call concatenates the tables of all texts.
        scores = score_table(
            rule, signals, null if first else np.concatenate([key.derivation.blocks(length)[None], null])
        )
        if not first:
            raw, scores = scores[:, 0], scores[:, 1:]
        above += (scores > raw[:, None]).sum(axis=1)
        ties += (scores == raw[:, None]).sum(axis=1)
    u = 1 - np.random.default_rng(seed).random(len(raw))
    return Values((1 + above + ties) / (settings.draws + 1), (above + u * (1 + ties)) / (settings.draws + 1), raw)


def values_of(mark: Watermark, texts: Sequence[str], settings: RandomKeys) -> Values:
    """The p-values of all texts under one key of any scheme."""
    detections = []
    for answer in mark.detect_batch(texts, settings):
        if isinstance(answer, AlimarkError):
            raise answer
        detections.append(answer)
    return Values(
        np.array([detection.p_value for detection in detections]),
        np.array([detection.p_randomised for detection in detections]),
        np.array([detection.raw for detection in detections]),
    )


def fresh_keys(
    texts: Embedded, like: Key, embedder: Embedder, settings: DetectionSettings, progress: Progress
) -> Values:
    """The p-value of each text under a fresh key."""
    parts = []
    for i in range(len(texts.units)):
        key = _fresh(like, embedder, like.centre)
        parts.append(p_values(texts.part([i]), key, settings, seed=i))
        progress(1)
    return Values(*(np.concatenate([getattr(part, name) for part in parts]) for name in ("p", "p_randomised", "raw")))


def _fresh(like: Key, embedder: Embedder, centre: NDArray[np.float32] | None) -> Key:
    like.check(embedder)
    return like.like(centre=centre)


def per_key_rates(
    texts: Embedded,
    like: Key,
    embedder: Embedder,
    settings: DetectionSettings,
    keys: int,
    progress: Progress,
    *,
    centre: NDArray[np.float32] | None = None,
) -> Floats:
    """For each of many fresh keys, the share of texts with a p-value of at most each level: (keys, levels)."""
    rates = []
    for number in range(keys):
        key = _fresh(like, embedder, centre)
        rates.append(shares(p_values(texts, key, settings, seed=number).p_randomised))
        progress(1)
    return np.array(rates)


def shares(p: Floats) -> list[float]:
    """The share of texts with a p-value of at most each level."""
    return [float((p <= level).mean()) for level in LEVELS]


def z_shares(z: Floats) -> list[float]:
    """The share of texts that would be called found at each level if the paper's z were a standard normal deviate."""
    return [float((z >= NormalDist().inv_cdf(1 - level)).mean()) for level in LEVELS]


def binomial_interval(n: int, p: float, cover: float = 0.99) -> tuple[float, float]:
    """The range in which the observed share of n texts lies with probability at least `cover` if the true rate is p."""
    logs = [
        math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1) + k * math.log(p) + (n - k) * math.log1p(-p)
        for k in range(n + 1)
    ]
    below = np.cumsum(np.exp(logs))
    tail = (1 - cover) / 2
    low = int(np.searchsorted(below, tail, side="right"))
    high = int(np.searchsorted(below, 1 - tail, side="left"))
    return low / n, min(high, n) / n
