"""Embeddings that a run computes once: attacks leave most sentences as they are, and a new detector asks for the same ones.

    DIR/vectors/v1-FINGERPRINT.bin   a row a unit: 16 bytes of its hash, then the vector

A row is written in one go and read only where it is whole, so a killed run leaves nothing that misleads the next.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from alimark.embedding.base import Embedder

_KEY_BYTES = 16
_FORM = 1
"""Counts up when a release embeds so that vectors differ: older ones are then left alone."""


class KeptVectors:
    """An embedder that remembers, in a folder, what it was asked. `part` tells processes that share the folder apart."""

    def __init__(self, embedder: Embedder, folder: Path, part: int = 0) -> None:
        self._embedder = embedder
        self.name, self.dimension, self.fingerprint = embedder.name, embedder.dimension, embedder.fingerprint
        self.backend, self.languages = embedder.backend, embedder.languages
        self._row = np.dtype([("key", f"V{_KEY_BYTES}"), ("vector", "<f4", (self.dimension,))])
        self._at: dict[bytes, NDArray[np.float32]] = {}
        folder.mkdir(exist_ok=True)
        stem = f"v{_FORM}-{self.fingerprint.rpartition(':')[2][:16]}"
        for path in sorted(folder.glob(f"{stem}*.bin")):
            self._read(path)
        own = folder / (f"{stem}.bin" if part == 0 else f"{stem}-{part}.bin")
        self._file = own.open("ab")
        self._file.truncate(self._file.tell() // self._row.itemsize * self._row.itemsize)

    def _read(self, path: Path) -> None:
        count = path.stat().st_size // self._row.itemsize
        if count:
            self._add(np.memmap(path, self._row, mode="r", shape=(count,)))

    def _add(self, rows: NDArray[Any]) -> None:
        self._at |= zip((key.tobytes() for key in rows["key"]), rows["vector"], strict=True)

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        keys = [hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()[:_KEY_BYTES] for text in texts]
        new = {key: text for key, text in zip(keys, texts, strict=True) if key not in self._at}
        if new:
            rows = np.empty(len(new), self._row)
            rows["key"] = np.frombuffer(b"".join(new), self._row["key"])
            rows["vector"] = self._embedder.embed(list(new.values()))
            self._file.write(rows.tobytes())
            self._file.flush()
            self._add(rows)
        found = np.empty((len(texts), self.dimension), np.float32)
        for i, key in enumerate(keys):
            found[i] = self._at[key]
        return found

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> KeptVectors:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
