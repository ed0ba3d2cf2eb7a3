"""False-positive rates on human text: of one key, of one fresh key a text, and their spread over many keys."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from alimark._util.arrays import Floats, Packed
from alimark.detection.scoring import scoring
from alimark.detection.settings import DetectionSettings
from alimark.detection.stats.p_values import RandomKeys
from alimark.detection.units import Units, restructure
from alimark.embedding.base import Embedder
from alimark.errors import AlimarkError
from alimark.keys.key import Key
from alimark.keys.projection import project
from alimark.text.splitting import splitter

if TYPE_CHECKING:
    from alimark.schemes.base import Watermark

LEVELS = (0.01, 0.05, 0.5)
Progress = Callable[[int], None]


@dataclass(frozen=True)
class Embedded:
    """Human texts of equal length with the embeddings of their units, computed once for all keys."""

    units: list[Units]
    starts: NDArray[np.int64]
    """Where the embeddings of each text begin."""
    embeddings: NDArray[np.float32]

    @classmethod
    def of(cls, texts: Sequence[str], key: Key, embedder: Embedder, settings: DetectionSettings) -> Embedded:
        cutter, limits = splitter(key.splitter), scoring(key, settings).limits
        units = [restructure(cutter.units(text), limits) for text in texts]
        starts = np.cumsum([0, *(len(one.texts) for one in units)])
        return cls(units, starts, embedder.embed([unit for one in units for unit in one.texts]))

    def part(self, chosen: Sequence[int]) -> Embedded:
        rows = [np.arange(self.starts[i], self.starts[i + 1]) for i in chosen]
        starts = np.cumsum([0, *(len(row) for row in rows)])
        return Embedded([self.units[i] for i in chosen], starts, self.embeddings[np.concatenate(rows)])

    def mean(self) -> NDArray[np.float32]:
        """The corpus mean of whole sentences: what all texts share, whoever wrote them."""
        whole = [self.starts[i] + one.index[:, 0, 0] for i, one in enumerate(self.units)]
        return np.asarray(self.embeddings[np.concatenate(whole)].mean(axis=0))


@dataclass(frozen=True)
class Values:
    """For each text: the p-value, never too small; the same with ties broken at random; the score itself."""

    p: Floats
    p_randomised: Floats
    raw: Floats


def p_values(texts: Embedded, key: Key, settings: DetectionSettings, seed: int = 0) -> Values:
    """All texts under one key, against the same random keys."""
    projections = project(texts.embeddings, key)
    rule = scoring(key, settings)
    signals = [
        rule.signals(one, projections[a:b])
        for one, a, b in zip(texts.units, texts.starts, texts.starts[1:], strict=False)
    ]
    length = rule.length(max(len(one.packed) for one in signals))

    def score(blocks: Packed) -> Floats:
        """Texts by keys."""
        jobs = np.arange(len(signals) * len(blocks))
        return rule.scores(signals, blocks, jobs // len(blocks), jobs % len(blocks)).reshape(len(signals), -1)

    above, ties = np.zeros(len(signals), np.int64), np.zeros(len(signals), np.int64)
    raw = np.empty(0)
    some = max(1, 2_000_000 // len(signals))  # jobs held at a time
    for first in range(0, settings.draws, some):
        null = key.null_blocks(first, min(some, settings.draws - first), length)
        # The key itself in the first go: what a soft rule keeps of all texts is put together once for every call.
        scores = score(null if first else np.concatenate([key.blocks(length)[None], null]))
        if not first:
            raw, scores = scores[:, 0], scores[:, 1:]
        above += (scores > raw[:, None]).sum(axis=1)
        ties += (scores == raw[:, None]).sum(axis=1)
    u = 1 - np.random.default_rng(seed).random(len(raw))
    return Values((1 + above + ties) / (settings.draws + 1), (above + u * (1 + ties)) / (settings.draws + 1), raw)


def another(key: Key) -> Key:
    """A rival's key with the same parameters and another secret."""
    return key.like()


def values_of(mark: Watermark, texts: Sequence[str], settings: RandomKeys) -> Values:
    """All texts under one key of any scheme."""
    found = []
    for answer in mark.detect_batch(texts, settings):
        if isinstance(answer, AlimarkError):
            raise answer
        found.append(answer)
    p, randomised, raw = (
        np.array([getattr(one, name) for one in found]) for name in ("p_value", "p_randomised", "raw")
    )
    return Values(p, randomised, raw)


def fresh_keys(
    texts: Embedded, like: Key, embedder: Embedder, settings: DetectionSettings, progress: Progress
) -> Values:
    """Each text under a key of its own."""
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
    """For each of many fresh keys, the share of texts with p at most each level: (keys, levels)."""
    rates = []
    for number in range(keys):
        key = _fresh(like, embedder, centre)
        rates.append(shares(p_values(texts, key, settings, seed=number).p_randomised))
        progress(1)
    return np.array(rates)


def shares(p: Floats) -> list[float]:
    return [float((p <= level).mean()) for level in LEVELS]


def z_shares(z: Floats) -> list[float]:
    """How many texts a reader of the paper's z as a normal deviate would call found at each level."""
    return [float((z >= NormalDist().inv_cdf(1 - level)).mean()) for level in LEVELS]


def binomial_interval(n: int, p: float, cover: float = 0.99) -> tuple[float, float]:
    """The shares between which a sound rate p falls in n texts with probability at least `cover`, equal tails."""
    logs = [
        math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1) + k * math.log(p) + (n - k) * math.log1p(-p)
        for k in range(n + 1)
    ]
    below = np.cumsum(np.exp(logs))
    tail = (1 - cover) / 2
    low = int(np.searchsorted(below, tail, side="right"))
    high = int(np.searchsorted(below, 1 - tail, side="left"))
    return low / n, min(high, n) / n
