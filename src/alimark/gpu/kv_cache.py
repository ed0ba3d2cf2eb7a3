"""KV caches: the layout of a model's keys and values, and a cache of prefixes that were computed before."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

_MAX_CONTEXTS = 512
_MAX_BYTES = 4 << 30


@dataclass(frozen=True)
class KVLayout:
    """The shape of the keys and values that a model computes for one token. `heads`: heads of keys and values."""

    layers: int
    heads: int
    width: int
    dtype: torch.dtype
    device: torch.device

    def allocate(self, sequences: int, tokens: int) -> torch.Tensor:
        """A cache of zeros: (layers, 2, sequences, heads, tokens, width); index 0 of the second axis holds the keys."""
        size = (self.layers, 2, sequences, self.heads, tokens, self.width)
        return torch.zeros(size, dtype=self.dtype, device=self.device)

    @property
    def bytes_per_token(self) -> int:
        return self.layers * 2 * self.heads * self.width * self.dtype.itemsize


@dataclass(frozen=True, slots=True)
class Prefix:
    """The first `length` tokens of a context, and a cache that holds their keys and values."""

    length: int = 0
    kv: torch.Tensor | None = None


class PrefixCache:
    """Keys and values of the contexts that were prefilled last. Safe to share by threads."""

    def __init__(self) -> None:
        self._entries: dict[tuple[int, ...], torch.Tensor] = {}  # oldest first
        self._lock = threading.Lock()

    def longest_prefixes(self, contexts: Sequence[Sequence[int]]) -> list[Prefix]:
        """For each context, its longest prefix that is cached, without its last token: that token's logits are needed."""
        with self._lock:
            entries = [(np.array(ids), kv) for ids, kv in self._entries.items()]
        return [_longest_prefix(np.array(context), entries) for context in contexts]

    def store(self, contexts: Sequence[Sequence[int]], kv: torch.Tensor) -> None:
        """Copy the keys and values of the contexts, of which the i-th is sequence i of `kv`."""
        with self._lock:
            for i, context in enumerate(contexts):
                ids = tuple(context)
                self._entries.pop(ids, None)
                self._entries[ids] = kv[:, :, i, :, : len(ids)].clone()
            size = sum(entry.nbytes for entry in self._entries.values())
            while self._entries and (len(self._entries) > _MAX_CONTEXTS or size > _MAX_BYTES):
                size -= self._entries.pop(next(iter(self._entries))).nbytes


def _longest_prefix(context: NDArray[np.int64], entries: list[tuple[NDArray[np.int64], torch.Tensor]]) -> Prefix:
    best = Prefix()
    for ids, kv in entries:
        n = min(len(ids), len(context) - 1)
        if n <= best.length or ids[0] != context[0]:
            continue
        differing = np.flatnonzero(ids[:n] != context[:n])
        if (length := int(differing[0]) if len(differing) else n) > best.length:
            best = Prefix(length, kv)
    return best
