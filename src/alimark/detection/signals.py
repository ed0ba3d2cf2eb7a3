"""From a text's sentences to its units, and from the units' embeddings to projections and packed bits."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from alimark._util.arrays import Floats, Packed
from alimark.detection.kernels.soft import worth_tables
from alimark.detection.kernels.types import WHOLE


@dataclass(frozen=True)
class Signals:
    """What the alignment sees of a text under one key."""

    packed: Packed
    """The bits of every unit, as `Units.index` orders them."""
    valid: NDArray[np.bool_]
    near_flips: int = 0
    """Bits of whole sentences whose projection lies within 1e-4 of zero, where another backend might flip them."""
    soft: Floats | None = None
    """Of soft keys: the projections of each sentence and of each with the one before, (N, 1 or 2, M)."""

    @cached_property
    def tables(self) -> Floats:
        assert self.soft is not None
        return worth_tables(self.soft)

    @property
    def joinable(self) -> NDArray[np.bool_]:
        """Whether a sentence has a unit together with the one before."""
        return np.ascontiguousarray(self.valid[:, 1, WHOLE])

    def part(self, start: int, stop: int) -> Signals:
        """Of some of the sentences; a merge with the sentence before would leave the range."""
        valid = self.valid[start:stop].copy()
        valid[0, 1:] = False
        return Signals(self.packed[start:stop], valid, soft=None if self.soft is None else self.soft[start:stop])
