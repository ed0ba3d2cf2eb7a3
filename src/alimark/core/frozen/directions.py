"""The directions of an embedding space from which the vectors of soft keys are made.

Frozen: keys name a table of directions by its digest, and their vectors are made of its rows.

The sentences of a text differ most along a few directions, and a paraphrase changes them least there. The directions of the
store's embedders ship with the package; they are public, and the vectors of a key are a secret rotation of them.

- Soft keys use directions learned against paraphrase noise by tools/directions.py (`noise_aware.npz`), or a table that
  `alimark fit directions` learned. A key names its table by a digest, so a table that was released never changes.
- Hard keys with a span use principal components of how sentences differ (`directions.npz`). Its mean is also that of soft keys
  over the whole space.
"""

import hashlib
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

FILE = Path(__file__).with_suffix(".npz")
NOISE_AWARE_FILE = Path(__file__).with_name("noise_aware.npz")
MOST = 64  # number of directions that are kept for each embedder


@cache
def _all(file: Path) -> dict[str, NDArray[np.float16]]:
    with np.load(file, allow_pickle=False) as content:
        return {name: content[name] for name in content.files}


def mean_of(fingerprint: str) -> str:
    """The name under which the files keep the mean embedding of ordinary sentences."""
    return f"{fingerprint}/mean"


# Hard keys with a span


def known(fingerprint: str) -> int:
    """The number of known directions of an embedder; 0 for an unknown one."""
    table = _all(FILE).get(fingerprint)
    return 0 if table is None or table.ndim != 2 else len(table)


def directions(fingerprint: str, count: int) -> NDArray[np.float64]:
    """The first `count` directions, one in each row, in order of how much sentences differ along them."""
    return _all(FILE)[fingerprint][:count].astype(np.float64)


def mean(fingerprint: str) -> NDArray[np.float64] | None:
    """The mean embedding of ordinary sentences; None where it is not known."""
    vector = _all(FILE).get(mean_of(fingerprint))
    return None if vector is None else vector.astype(np.float64)


# Soft keys


@dataclass(frozen=True, eq=False)
class DirectionTable:
    """Directions with their scale, the best first, and the mean that is subtracted from embeddings before projecting."""

    rows: NDArray[np.float64]
    mean: NDArray[np.float64]
    digest: str

    @classmethod
    def of(cls, rows: ArrayLike, mean: ArrayLike) -> Self:
        """A table with its digest, the hash of the numbers as half-precision floats."""
        stored = np.asarray(rows).astype("<f2"), np.asarray(mean).astype("<f2")
        digest = hashlib.sha256(b"".join(part.tobytes() for part in stored)).hexdigest()
        return cls(stored[0].astype(np.float64), stored[1].astype(np.float64), f"sha256:{digest}")


@cache
def noise_aware(fingerprint: str) -> DirectionTable | None:
    """The table of an embedder that ships with the package; None for other embedders."""
    content = _all(NOISE_AWARE_FILE) if NOISE_AWARE_FILE.exists() else {}
    if fingerprint not in content:
        return None
    return DirectionTable.of(content[fingerprint], content[mean_of(fingerprint)])
