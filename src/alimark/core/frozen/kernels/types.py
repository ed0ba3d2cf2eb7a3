"""The types and codes that the alignment kernels take and return. Importing this module does not load Numba.

Frozen: the codes stand in what the kernels compute.
"""

from __future__ import annotations

from typing import NamedTuple

from alimark.core._util.arrays import Floats, Ints

WHOLE, RIGHT, LEFT = 0, 1, 2
"""How a run of sentences is cut: not at all, at its start (only the right half of its first sentence), at its end (only the
left half of its last). The codes are bits: RIGHT | LEFT is a run that is cut at both ends."""
SEVERAL = RIGHT | LEFT  # the code of a whole sentence that carries several blocks, in alignments of soft keys
MATCH, SKIP_SENTENCE, SKIP_BLOCK = 0, 1, 2  # the kinds of a `Step`


class Limits(NamedTuple):
    """How far a text may be restructured: the most merges, the most splits, and the most of both together."""

    merges: int
    splits: int
    total: int

    @classmethod
    def of(cls, restructure: str | tuple[int, int]) -> Limits:
        """The limits for "none", "single" (one merge or one split, as in the paper) or (merges, splits)."""
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
        """Whether a run with this many merges, cut (1) or not (0) at its start and at its end, is within the limits."""
        splits = starts_inside + ends_inside
        possible = merges > 0 or splits < 2
        return possible and merges <= self.merges and splits <= self.splits and merges + splits <= self.total


class ZRule(NamedTuple):
    """How an edit distance becomes a z-score: null mean and standard deviation by length, and the prefixes tried.

    `mean[n]` and `std[n]` are read at the number of sentences N', or at max(N', L) where `by_longer` is set, L being the
    number of blocks. A text of N' sentences is aligned with prefixes of `least[N']` to `most[N']` blocks.
    """

    mean: Floats
    std: Floats
    by_longer: bool
    least: Ints
    most: Ints


class Best(NamedTuple):
    """The best z of each job and where it was reached: merges, splits, prefix length, first block of the prefix."""

    z: Floats
    merges: Ints
    splits: Ints
    length: Ints
    offset: Ints


class LocalCosts(NamedTuple):
    """Gains and costs of the local search. Of hard bits a match gains theta * M less the bits that differ."""

    theta: float
    skip_sentence: float
    skip_block: float
    restructure: float


class SoftRule(NamedTuple):
    """A model of how a marked text is rewritten: the probability of each move from one sentence to the next.

    A sentence usually carries the block after that of the sentence before it. The fields are the probabilities of
    everything else; the rest is the probability of the usual move. `worth` is how far a unit that carries a block is shifted
    along the block's direction, in standard deviations of a unit that carries nothing.
    """

    worth: float
    foreign: float  # the sentence was inserted: it carries no block, and no block is used up
    replaced: float  # the sentence replaces a block's sentence without carrying the block
    moved: float  # the share of foreign and replaced sentences that carry a block from elsewhere in the text
    repeated: float  # the sentence before was cut in two: this sentence carries the same block
    skipped: float  # the blocks just before the sentence's block were lost
    further: float  # after a lost block, that the next one was lost as well
    jump: float  # the text continues at any block
    outside: float = 0.0
    """The text begins with a passage that carries no blocks, as when a marked text was pasted into another."""
    leaving: float = 0.0  # the sentence begins such a passage
    staying: float = 0.0  # inside such a passage, that the next sentence belongs to it
    resumed: float = 0.0
    """After such a passage, that the text continues where it stopped; otherwise it continues at any block."""


class Step(NamedTuple):
    """A move of an alignment. Sentences and blocks count from 0.

    `kind` is MATCH, SKIP_SENTENCE or SKIP_BLOCK. The unit is the run of sentences that ends with sentence `last`, with
    `merged` merges and cut as the code `cut` says. `block` is -1 where the move concerns no block.
    """

    kind: int
    last: int
    merged: int
    cut: int
    block: int
