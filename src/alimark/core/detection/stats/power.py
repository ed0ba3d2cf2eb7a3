"""How many sentences a marked text needs so that its mark is found: a table for common rates, a simulation for others."""

from __future__ import annotations

import math
import threading
from dataclasses import dataclass

import numpy as np

from alimark.core._util.arrays import Floats, Packed
from alimark.core.detection.stats.null_tables import paper_rule
from alimark.core.frozen.arithmetic import pack_bits
from alimark.core.frozen.derivation import run_numbers
from alimark.core.frozen.kernels import hard, soft
from alimark.core.frozen.kernels.types import Limits
from alimark.core.frozen.parameters import DEFAULT_RUN
from alimark.core.frozen.rules import BLOCKS, RULES, WEIGHTS
from alimark.core.keys.key import Key

INDEPENDENT_CANDIDATES = 20.64
"""As many independent candidates carry as much as 64 real ones, which resemble each other: 0.82 of 8 bits agree in unattacked
text."""
TYPICAL_WORTH = 1.9
"""The same for soft keys: the shift of a sentence along its block's direction, in standard deviations of unmarked ones."""
LONGEST_NEEDED = 40  # texts of more sentences are not simulated

_TRIALS = 200
_FULL_POWER = 0.9
_LEAST_HARD_RATE, _LEAST_SOFT_RATE = 1e-4, 1e-3
"""The least false-positive rate that is simulated, for hard and for soft keys, whose scores take longer."""

_TABLED: dict[bool, dict[int, dict[float, int]]] = {
    False: {
        2: {0.05: 3, 0.01: 4, 0.001: 6, 1e-4: 8},
        4: {0.05: 3, 0.01: 4, 0.001: 7, 1e-4: 7},
        8: {0.05: 4, 0.01: 6, 0.001: 7, 1e-4: 10},
        16: {0.05: 3, 0.01: 6, 0.001: 7, 1e-4: 9},
        32: {0.05: 4, 0.01: 6, 0.001: 7, 1e-4: 10},
    },
    True: {
        8: {0.05: 3, 0.0125: 4, 0.01: 4, 0.0025: 5, 0.001: 6},
        16: {0.05: 3, 0.0125: 4, 0.01: 4, 0.0025: 5, 0.001: 5},
        32: {0.05: 3, 0.0125: 5, 0.01: 5, 0.0025: 5, 0.001: 6},
        64: {0.05: 3, 0.0125: 5, 0.01: 4, 0.0025: 5, 0.001: 6},
    },
}
"""Results of `simulate_sentences_needed` for hard keys (False) and soft keys (True) of common block sizes, by rate.

Rates of a quarter of the usual ones are for keys with four starts."""

_simulated: dict[tuple[int, float, bool], int | None] = {}
_simulating = threading.Lock()


@dataclass(frozen=True)
class SentencesNeeded:
    """The number of sentences that a text needs under one key and one kind of search; call it with a false-positive rate.

    The pipeline puts it into every result, so that `AlignedDetection.verdict` can tell "not found" from "too short to tell"
    at any rate. Results look the number up here and hold no simulation themselves.
    """

    block_size: int
    soft: bool = False
    offsets: int = 1
    excerpt: bool = False
    share: float = 1.0  # the share of a block's bits that are known whatever the payload

    @classmethod
    def of(cls, key: Key, *, excerpt: bool = False) -> SentencesNeeded:
        """The number for a key of AliMark."""
        share = key.payload_code.constant / key.block_size if key.payload_bits else 1.0
        return cls(key.block_size, key.soft, key.offsets, excerpt, share)

    def __call__(self, fpr: float) -> int | None:
        """The fewest sentences that are enough; None where no text of up to `LONGEST_NEEDED` sentences is."""
        # At worst the blocks that a text may begin with cost as much as that many keys.
        needed = sentences_needed(self.block_size, fpr / self.offsets, self.soft)
        if needed is not None and self.excerpt:
            needed = math.ceil(1.5 * needed)  # the wider search costs about that much
        # The evidence of a sentence is proportional to the bits that are known; that of payloads comes on top.
        return None if needed is None else math.ceil(needed / self.share)


def sentences_needed(block_size: int, fpr: float, soft: bool = False) -> int | None:
    """The fewest sentences of unattacked marked text that are found nine times in ten at a false-positive rate.

    Common cases are tabled. Any other is simulated once in a process, by the thread that asks first. Rates below 1e-4 (soft
    keys: 1e-3) are extrapolated along a line in the logarithm of the rate. None where more than `LONGEST_NEEDED` are needed.
    """
    least = _LEAST_SOFT_RATE if soft else _LEAST_HARD_RATE
    if fpr < least:
        base = sentences_needed(block_size, least, soft)
        return None if base is None else math.ceil(base * math.log(fpr) / math.log(least))
    tabled = _TABLED[soft].get(block_size, {}).get(fpr)
    if tabled is not None:
        return tabled
    case = (block_size, fpr, soft)
    if case not in _simulated:
        with _simulating:
            if case not in _simulated:  # another thread may have simulated it in the meantime
                _simulated[case] = simulate_sentences_needed(block_size, fpr, soft)
    return _simulated[case]


def simulate_sentences_needed(
    block_size: int, fpr: float, soft: bool = False, *, longest: int = LONGEST_NEEDED
) -> int | None:
    """The same number by simulation with random bits under the default search; takes up to some seconds."""

    def power(count: int) -> float:
        return (_soft_power if soft else _hard_power)(block_size, count, fpr)

    return next((count for count in range(1, longest + 1) if power(count) >= _FULL_POWER), None)


def typical_agreement(block_size: int) -> float:
    """The share of a block's bits that agree in unattacked text marked with 64 candidates.

    It is the mean share of the best of `INDEPENDENT_CANDIDATES` sentences with random bits: large for few bits, small for many.
    """
    ways = np.array([math.comb(block_size, matches) for matches in range(block_size + 1)], float)
    # At least k of the bits match in the best candidate, unless fewer match in all of them.
    fewer = np.cumsum(ways / 2.0**block_size)[:-1]
    return float((1 - fewer**INDEPENDENT_CANDIDATES).sum() / block_size)


def _random_blocks(rng: np.random.Generator, m: int, *shape: int) -> Packed:
    if m < 64:
        return rng.integers(0, 1 << m, shape, np.uint64, endpoint=False)
    return rng.integers(0, 2**64 - 1, shape, np.uint64, endpoint=True)


def _hard_power(m: int, count: int, fpr: float) -> float:
    """The share of marked texts of `count` sentences whose score is above the threshold for `fpr`."""
    rng = np.random.default_rng(count)
    limits, rule = Limits.of("single"), paper_rule(m, count + 1)
    length, draws = int(rule.most[-1]), math.ceil(20 / fpr)

    def scores(units: Packed, blocks: Packed) -> Floats:
        flat = units.reshape(-1, 2, 4)
        valid = np.ones(flat.shape, bool)
        valid[::count, 1] = False
        starts = np.arange(0, len(flat) + 1, count)
        jobs = np.arange(len(blocks))
        return hard.search(flat, valid, blocks, m, limits, rule, starts=starts, texts=jobs % len(units), keys=jobs).z

    unmarked, others = _random_blocks(rng, m, 50, count, 2, 4), _random_blocks(rng, m, draws, length)
    threshold = np.quantile(scores(unmarked, others), 1 - fpr, method="higher")
    marked, blocks = _random_blocks(rng, m, _TRIALS, count, 2, 4), _random_blocks(rng, m, _TRIALS, length)
    flips = (rng.random((_TRIALS, count, m)) > typical_agreement(m)).astype(np.uint8)
    marked[:, :, 0, 0] = blocks[:, :count] ^ pack_bits(flips.reshape(-1, m)).reshape(_TRIALS, count)
    return float((scores(marked, blocks) > threshold).mean())


def _soft_power(m: int, count: int, fpr: float) -> float:
    """The same for soft keys with the default runs."""
    rng = np.random.default_rng(count)
    length, draws = math.ceil(BLOCKS * count), math.ceil(20 / fpr)

    def scores(units: Floats, blocks: Packed) -> Floats:
        flat, jobs = units.reshape(-1, m), np.arange(len(blocks))
        return soft.search_soft(
            soft.worth_tables(flat), blocks, np.full(len(units), length), RULES,
            starts=np.arange(0, len(flat) + 1, count), texts=jobs % len(units), keys=jobs, weights=WEIGHTS,
        )  # fmt: skip

    runs = run_numbers(DEFAULT_RUN, length)
    # Every second row is left out: the numbers are those that the tabled values were simulated with.
    unmarked, others = rng.normal(size=(50, count, 2, m))[:, :, 0], _random_blocks(rng, m, draws, length)[:, runs]
    threshold = np.quantile(scores(unmarked, others), 1 - fpr, method="higher")
    marked, blocks = rng.normal(size=(_TRIALS, count, 2, m))[:, :, 0], _random_blocks(rng, m, _TRIALS, length)[:, runs]
    bits = (blocks[:, :count, None] >> np.arange(m, dtype=np.uint64)[::-1]) & np.uint64(1)
    marked += TYPICAL_WORTH * (2.0 * bits - 1) / math.sqrt(m)
    return float((scores(marked, blocks) > threshold).mean())
