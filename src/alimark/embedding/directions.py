"""The directions of an embedding space that soft keys live in.

Sentences of one text differ much along a few directions, and there a paraphrase keeps more of what a sentence was. Those
of the store's embedders were learned by tools/directions.py from ordinary text and ship with the package. They are public:
a key's own vectors are a secret rotation of them.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

FILE = Path(__file__).with_suffix(".npz")
MOST = 64
"""Directions kept of each embedder."""


@cache
def _all() -> dict[str, NDArray[np.float16]]:
    with np.load(FILE, allow_pickle=False) as content:
        return {fingerprint: content[fingerprint] for fingerprint in content.files}


def mean_of(fingerprint: str) -> str:
    """Under which name the mean of all sentences is kept."""
    return f"{fingerprint}/mean"


def known(fingerprint: str) -> int:
    """How many directions there are of the embedder with this fingerprint."""
    found = _all().get(fingerprint)
    return 0 if found is None or found.ndim != 2 else len(found)


def directions(fingerprint: str, count: int) -> NDArray[np.float64]:
    """The first `count` directions, one a row, the one along which sentences differ most first."""
    return _all()[fingerprint][:count].astype(np.float64)


def mean(fingerprint: str) -> NDArray[np.float64] | None:
    """The mean embedding of ordinary sentences, None where it is not known."""
    found = _all().get(mean_of(fingerprint))
    return None if found is None else found.astype(np.float64)
