"""Embeddings that are computed once and kept on disk: attacked texts and other detectors need mostly the same ones.

    DIR/vectors/v1-FINGERPRINT.bin   one row per unit: 16 bytes of its hash, then the vector

Only complete rows are read, so a run that was killed in the middle of a row does no harm.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from alimark.core.embedding.base import Embedder
from alimark.core.embedding.precision import precision_of

_KEY_BYTES = 16
_FORM = 1
"""Increase this number when a release changes the vectors: older files are then not used."""


class KeptVectors:
    """An embedder that keeps its vectors in a folder. Processes that share the folder each have their own `part`."""

    def __init__(self, embedder: Embedder, folder: Path, part: int = 0) -> None:
        self._embedder = embedder
        self.name, self.dimension, self.fingerprint = embedder.name, embedder.dimension, embedder.fingerprint
        self.backend, self.languages = embedder.backend, embedder.languages
        self._row = np.dtype([("key", f"V{_KEY_BYTES}"), ("vector", "<f4", (self.dimension,))])
        self._at: dict[bytes, NDArray[np.float32]] = {}
        folder.mkdir(exist_ok=True)
        self.precision = precision_of(embedder)
        form = "" if self.precision == "float32" else f"{self.precision}-"
        stem = f"{form}v{_FORM}-{self.fingerprint.rpartition(':')[2][:16]}"
        for path in sorted(folder.glob(f"{stem}*.bin")):
            self._read(path)
        self._file = (folder / (f"{stem}.bin" if part == 0 else f"{stem}-{part}.bin")).open("ab")
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
        vectors = np.empty((len(texts), self.dimension), np.float32)
        for i, key in enumerate(keys):
            vectors[i] = self._at[key]
        return vectors

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> KeptVectors:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
