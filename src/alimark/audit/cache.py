"""A cache of embeddings for corpora: most units of web pages are boilerplate that occurs again and again."""

from __future__ import annotations

import copy
import hashlib
from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from alimark.core.embedding.base import Embedder
from alimark.core.embedding.precision import at_precision, precision_of, precisions_of

_BATCH = 512
"""Units between two heartbeats: one or two seconds of work on one core."""


class RememberingEmbedder:
    """An embedder with a least-recently-used cache of `megabytes`; 0 keeps nothing.

    It calls `heartbeat` before each batch, which is `scale` times as large as on a CPU.
    """

    def __init__(
        self, embedder: Embedder, megabytes: int, heartbeat: Callable[[], None] = lambda: None, scale: int = 1
    ) -> None:
        self._embedder, self._heartbeat, self._batch = embedder, heartbeat, scale * _BATCH
        self.name, self.dimension, self.fingerprint = embedder.name, embedder.dimension, embedder.fingerprint
        self.backend, self.languages = embedder.backend, embedder.languages
        self.precision, self.precisions = precision_of(embedder), precisions_of(embedder)
        self._most = (megabytes << 20) // (4 * self.dimension)
        self._kept: OrderedDict[bytes, NDArray[np.float32]] = OrderedDict()
        self.counts: Counter[str] = Counter()

    def with_precision(self, precision: str) -> RememberingEmbedder:
        """The same model in another precision; both share the cache and its limit, but no vectors."""
        other = copy.copy(self)
        other._embedder, other.precision = at_precision(self._embedder, precision), precision
        return other

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """The vectors of the texts; only those that are not in the cache are computed."""
        result = np.empty((len(texts), self.dimension), np.float32)
        new: dict[bytes, list[int]] = {}
        person = self.precision.encode()
        for row, text in enumerate(texts):
            name = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16, person=person).digest()
            if (vector := self._kept.get(name)) is None:
                new.setdefault(name, []).append(row)
            else:
                self._kept.move_to_end(name)
                result[row] = vector
        self.counts.update(asked=len(texts), embedded=len(new))
        # Sorted by length, so that batches need little padding.
        names = sorted(new, key=lambda name: len(texts[new[name][0]]))
        for start in range(0, len(names), self._batch):
            self._heartbeat()
            batch = names[start : start + self._batch]
            vectors = self._embedder.embed([texts[new[name][0]] for name in batch])
            for name, vector in zip(batch, vectors, strict=True):
                result[new[name]] = vector
                if self._most:
                    self._kept[name] = vector.copy()
        while len(self._kept) > self._most:
            self._kept.popitem(last=False)
        return result
