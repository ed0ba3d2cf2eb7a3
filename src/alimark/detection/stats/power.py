"""How many sentences a marked text needs to be found."""

from __future__ import annotations

import math
import threading
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from alimark._util.arrays import Floats
from alimark.detection.kernels import hard
from alimark.detection.kernels.types import Limits
from alimark.detection.stats.null_tables import paper_rule
from alimark.keys.arithmetic import pack_bits

# How long a text must be

TYPICAL_AGREEMENT = 0.82
"""Share of bits that agree in unattacked text marked with 64 candidates; benchmarks/marked_texts.py measures it."""
TYPICAL_WORTH = 1.9
"""The same for soft keys: how far a sentence lies along its block's direction, in deviations of one that carries nothing."""

_needed_lock = threading.Lock()


@lru_cache(maxsize=32)
def sentences_needed(m: int, fpr: float, *, soft: bool = False, limit: int = 40) -> int | None:
    """The fewest sentences of unattacked marked text that are found nine times in ten at this rate; None beyond `limit`.

    By simulation with random bits under the default search. Rates below 1e-4 (soft: 1e-3) are read off a line in log rate.
    """
    least = 1e-3 if soft else 1e-4  # a soft score takes longer
    if fpr < least:
        base = sentences_needed(m, least, soft=soft, limit=limit)
        return None if base is None else math.ceil(base * math.log(fpr) / math.log(least))
    power = _soft_power if soft else _power
    with _needed_lock:
        for count in range(1, limit + 1):
            if power(m, count, fpr) >= 0.9:
                return count
    return None


_TRIALS = 200


def _random_blocks(rng: np.random.Generator, m: int, *shape: int) -> NDArray[np.uint64]:
    if m < 64:
        return rng.integers(0, 1 << m, shape, np.uint64, endpoint=False)
    return rng.integers(0, 2**64 - 1, shape, np.uint64, endpoint=True)


def _power(m: int, count: int, fpr: float) -> float:
    rng = np.random.default_rng(count)
    limits, rule = Limits.of("single"), paper_rule(m, count + 1)
    length, draws = int(rule.most[-1]), math.ceil(20 / fpr)

    def scores(units: NDArray[np.uint64], blocks: NDArray[np.uint64]) -> Floats:
        flat = units.reshape(-1, 2, 4)
        valid = np.ones(flat.shape, bool)
        valid[::count, 1] = False
        starts = np.arange(0, len(flat) + 1, count)
        jobs = np.arange(len(blocks))
        return hard.search(flat, valid, blocks, m, limits, rule, starts=starts, texts=jobs % len(units), keys=jobs).z

    unmarked, others = _random_blocks(rng, m, 50, count, 2, 4), _random_blocks(rng, m, draws, length)
    threshold = np.quantile(scores(unmarked, others), 1 - fpr, method="higher")
    marked, blocks = _random_blocks(rng, m, _TRIALS, count, 2, 4), _random_blocks(rng, m, _TRIALS, length)
    flips = (rng.random((_TRIALS, count, m)) > TYPICAL_AGREEMENT).astype(np.uint8)
    marked[:, :, 0, 0] = blocks[:, :count] ^ pack_bits(flips.reshape(-1, m)).reshape(_TRIALS, count)
    return float((scores(marked, blocks) > threshold).mean())


def _soft_power(m: int, count: int, fpr: float) -> float:
    from alimark.detection.kernels.soft import search_soft, worth_tables
    from alimark.detection.scoring import SOFT_VERSIONS
    from alimark.keys.key import SOFT_VERSION

    rng = np.random.default_rng(count)
    version = SOFT_VERSIONS[SOFT_VERSION]
    length, draws = math.ceil(version.blocks * count), math.ceil(20 / fpr)

    def scores(units: Floats, blocks: NDArray[np.uint64]) -> Floats:
        flat, jobs = units.reshape(-1, 2, m), np.arange(len(blocks))
        joinable = np.arange(len(flat)) % count > 0
        return search_soft(
            worth_tables(flat), joinable, blocks, np.full(len(units), length), version.rules,
            starts=np.arange(0, len(flat) + 1, count), texts=jobs % len(units), keys=jobs,
        )  # fmt: skip

    unmarked, others = rng.normal(size=(50, count, 2, m)), _random_blocks(rng, m, draws, length)
    threshold = np.quantile(scores(unmarked, others), 1 - fpr, method="higher")
    marked, blocks = rng.normal(size=(_TRIALS, count, 2, m)), _random_blocks(rng, m, _TRIALS, length)
    bits = (blocks[:, :count, None] >> np.arange(m, dtype=np.uint64)[::-1]) & np.uint64(1)
    marked[:, :, 0] += TYPICAL_WORTH * (2.0 * bits - 1) / math.sqrt(m)
    return float((scores(marked, blocks) > threshold).mean())
