"""The layout of the keys and values that a model computes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch


@dataclass(frozen=True)
class KVLayout:
    """The shape of the keys and values that a model computes for one token.

    heads: heads of keys and values. groups: query heads for each of them.
    """

    layers: int
    heads: int
    groups: int
    width: int
    dtype: torch.dtype
    device: torch.device

    def allocate(self, sequences: int, tokens: int) -> torch.Tensor:
        """A cache of zeros: (layers, 2, sequences, heads, tokens, width); index 0 of the second axis holds the keys."""
        size = (self.layers, 2, sequences, self.heads, tokens, self.width)
        if self.device.type != "cpu":
            return torch.zeros(size, dtype=self.dtype, device=self.device)
        # Zeros of NumPy take memory only where they are used, which is a small part of a cache.
        count = sequences * tokens * self.bytes_per_token
        return torch.from_numpy(np.zeros(count, dtype=np.uint8)).view(self.dtype).view(size)

    @property
    def bytes_per_token(self) -> int:
        return self.layers * 2 * self.heads * self.width * self.dtype.itemsize
