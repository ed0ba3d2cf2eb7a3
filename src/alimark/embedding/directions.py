"""The directions of an embedding space from which the vectors of soft keys are made.

The sentences of a text differ most along a few directions, and a paraphrase changes them least there. The directions of the
store's embedders were learned by tools/directions.py from ordinary text and ship with the package. They are public: the
vectors of a key are a secret rotation of them.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

FILE = Path(__file__).with_suffix(".npz")
MOST = 64
"""Number of directions that are kept for each embedder."""


@cache
def _all() -> dict[str, NDArray[np.float16]]:
    with np.load(FILE, allow_pickle=False) as content:
        return {fingerprint: content[fingerprint] for fingerprint in content.files}


def mean_of(fingerprint: str) -> str:
    """The name under which the file keeps the mean embedding of ordinary sentences."""
    return f"{fingerprint}/mean"


def known(fingerprint: str) -> int:
    """The number of known directions of an embedder; 0 for an unknown one."""
    table = _all().get(fingerprint)
    return 0 if table is None or table.ndim != 2 else len(table)


def directions(fingerprint: str, count: int) -> NDArray[np.float64]:
    """The first `count` directions, one in each row, in order of how much sentences differ along them."""
    return _all()[fingerprint][:count].astype(np.float64)


def mean(fingerprint: str) -> NDArray[np.float64] | None:
    """The mean embedding of ordinary sentences; None where it is not known."""
    vector = _all().get(mean_of(fingerprint))
    return None if vector is None else vector.astype(np.float64)
