"""The units of a text, which are what is embedded, and what the alignment kernels read of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from alimark.core._util.arrays import Floats, Ints, Packed
from alimark.core.frozen.kernels.soft import worth_tables
from alimark.core.frozen.kernels.types import LEFT, RIGHT, WHOLE, Limits
from alimark.core.frozen.text.units import halve, merge


@dataclass(frozen=True)
class Units:
    """The distinct texts that restructuring can make of some sentences.

    `index[i, m, q]` is the row in `texts` of the run of sentences i-m..i that is cut as the code q says (see
    `kernels.types`), or -1 where there is no such unit.
    """

    texts: list[str]
    index: Ints
    chances: Floats | None = None
    """Where sentence ends are not known: the probability that each run of pieces is a sentence (`detection.clauses`)."""

    @property
    def count(self) -> int:
        """The number of sentences."""
        return len(self.index)


def restructure(sentences: Sequence[str], limits: Limits) -> Units:
    """All units within the limits; up to 4N - 1 of N sentences for the paper's single step."""
    halves = [halve(sentence) if limits.splits else None for sentence in sentences]
    index = np.full((len(sentences), max(2, limits.merges + 1), 4), -1, np.int64)
    texts: dict[str, int] = {}
    cuts = (WHOLE, RIGHT, LEFT, RIGHT | LEFT)
    shapes = [(m, cut) for m in range(limits.merges + 1) for cut in cuts if limits.allow(m, cut & 1, cut >> 1)]
    for last in range(len(sentences)):
        for merges, cut in shapes:
            text = _run_text(sentences, halves, last - merges, last, cut) if merges <= last else None
            if text is not None:
                index[last, merges, cut] = texts.setdefault(text, len(texts))
    return Units(list(texts), index)


def _run_text(
    sentences: Sequence[str], halves: Sequence[tuple[str, str] | None], first: int, last: int, cut: int
) -> str | None:
    """The text of a run of sentences, or None where a sentence to be cut cannot be halved."""
    parts = list(sentences[first : last + 1])
    for is_cut, place, side in ((cut & RIGHT, 0, 1), (cut & LEFT, -1, 0)):
        if is_cut:
            half = halves[first if place == 0 else last]
            if half is None:
                return None
            parts[place] = half[side]
    return merge(parts)


@dataclass(frozen=True)
class Signals:
    """A text's units as the alignment sees them under one key."""

    packed: Packed  # the bits of every unit, ordered as `Units.index`
    valid: NDArray[np.bool_]  # which units exist, in the same order
    near_flips: int = 0
    """Bits of whole sentences whose projection lies within 1e-4 of zero, where another backend might flip them."""
    soft: Floats | None = None  # for soft keys: the projections of each sentence, (N, M)
    chances: Floats | None = None
    """As `Units.chances`; then `soft` holds the values of every run of pieces, (N, runs, M), for hard keys as well."""

    @property
    def values(self) -> Floats:
        """The projections of a text under a soft key."""
        assert self.soft is not None
        return self.soft

    @cached_property
    def tables(self) -> Floats:
        """The kernels' lookup tables for soft keys and for runs of pieces, computed on first use."""
        return worth_tables(self.values)

    def part(self, start: int, stop: int) -> Signals:
        """The signals of a range of sentences; its first sentence cannot be merged with the one before the range."""
        valid = self.valid[start:stop].copy()
        valid[0, 1:] = False
        return Signals(self.packed[start:stop], valid, soft=None if self.soft is None else self.soft[start:stop])


def starts_of(signals: Sequence[Signals]) -> Ints:
    """Where each text's sentences begin in the concatenation of all texts."""
    return np.cumsum([0, *(len(text.packed) for text in signals)])
