"""What the alignment kernels read of a text: packed bits for hard keys, projections for soft ones."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from alimark.core._util.arrays import Floats, Packed
from alimark.core.frozen.kernels.soft import worth_tables


@dataclass(frozen=True)
class Signals:
    """A text's units as the alignment sees them under one key."""

    packed: Packed
    """The bits of every unit, ordered as `Units.index`."""
    valid: NDArray[np.bool_]
    """Which units exist, in the same order."""
    near_flips: int = 0
    """Bits of whole sentences whose projection lies within 1e-4 of zero, where another backend might flip them."""
    soft: Floats | None = None
    """For soft keys: the projections of each sentence, (N, M)."""
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
