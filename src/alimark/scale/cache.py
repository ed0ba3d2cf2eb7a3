"""Boilerplate is most of the web: a unit that was embedded lately is not embedded again."""

from __future__ import annotations

import hashlib
from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from alimark.embedding.base import Embedder

_TOGETHER = 512
"""Units between two beats: a second or two of work on a core."""


class RememberingEmbedder:
    """An embedder that keeps the vectors it gave last, `megabytes` of them; 0: none."""

    def __init__(self, embedder: Embedder, megabytes: int, beat: Callable[[], None] = lambda: None) -> None:
        self._embedder, self._beat = embedder, beat
        self.name, self.dimension, self.fingerprint = embedder.name, embedder.dimension, embedder.fingerprint
        self.backend, self.languages = embedder.backend, embedder.languages
        self._most = (megabytes << 20) // (4 * self.dimension)
        self._kept: OrderedDict[bytes, NDArray[np.float32]] = OrderedDict()
        self.counts: Counter[str] = Counter()

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        found = np.empty((len(texts), self.dimension), np.float32)
        new: dict[bytes, list[int]] = {}
        for row, text in enumerate(texts):
            name = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()
            if (vector := self._kept.get(name)) is None:
                new.setdefault(name, []).append(row)
            else:
                self._kept.move_to_end(name)
                found[row] = vector
        self.counts.update(asked=len(texts), embedded=len(new))
        # By length, so that no batch is padded with what another could have held.
        names = sorted(new, key=lambda name: len(texts[new[name][0]]))
        for start in range(0, len(names), _TOGETHER):
            self._beat()
            some = names[start : start + _TOGETHER]
            vectors = self._embedder.embed([texts[new[name][0]] for name in some])
            for name, vector in zip(some, vectors, strict=True):
                found[new[name]] = vector
                if self._most:
                    self._kept[name] = vector.copy()
        while len(self._kept) > self._most:
            self._kept.popitem(last=False)
        return found
