"""The types that alignment kernels take and return; importing them does not load Numba."""

from __future__ import annotations

from typing import NamedTuple

from alimark._util.arrays import Floats, Ints

WHOLE, RIGHT, LEFT = 0, 1, 2  # the codes q; a run may be cut at both ends
MATCH, SKIP_SENTENCE, SKIP_BLOCK = 0, 1, 2


class Limits(NamedTuple):
    """How far a text may be restructured: at most so many merges, so many splits, and so many of both together."""

    merges: int
    splits: int
    total: int

    @classmethod
    def of(cls, restructure: str | tuple[int, int]) -> Limits:
        """From "none", "single" (one merge or one split, the paper's) or (merges, splits)."""
        if restructure == "none":
            return cls(0, 0, 0)
        if restructure == "single":
            return cls(1, 1, 1)
        if isinstance(restructure, str):
            raise ValueError(f"restructure must be 'none', 'single' or (merges, splits), not {restructure!r}")
        merges, splits = restructure
        if not (0 <= merges <= 8 and 0 <= splits <= 8):
            raise ValueError("at most 8 merges and 8 splits are searched")
        return cls(merges, splits, merges + splits)

    def allow(self, merges: int, starts_inside: int, ends_inside: int) -> bool:
        """Whether a run with so many merges, cut inside at its start or end, can occur."""
        splits = starts_inside + ends_inside
        possible = merges > 0 or splits < 2
        return possible and merges <= self.merges and splits <= self.splits and merges + splits <= self.total


class Rule(NamedTuple):
    """How a distance becomes a z-score: null mean and standard deviation by length, and the prefixes tried.

    `mean[n]` and `std[n]` are read at N', or at max(N', L) where `by_longer` is set; a text of N' sentences meets
    the prefixes of `least[N']` to `most[N']` blocks.
    """

    mean: Floats
    std: Floats
    by_longer: bool
    least: Ints
    most: Ints


class Best(NamedTuple):
    """The best z of each job and what gave it: merges, splits, prefix length, and the block that the prefix begins with."""

    z: Floats
    merges: Ints
    splits: Ints
    length: Ints
    offset: Ints


class LocalCosts(NamedTuple):
    """Worth and costs of the local search, in bits: a match is worth theta * M less the bits that differ."""

    theta: float
    skip_sentence: float
    skip_block: float
    restructure: float


class Step(NamedTuple):
    """One move of an alignment. `kind` is MATCH, SKIP_SENTENCE or SKIP_BLOCK; the unit is the run that ends in sentence
    `last` (from 0) with `merged` merges and the code `cut`; `block` counts from 0, -1 for none."""

    kind: int
    last: int
    merged: int
    cut: int
    block: int
