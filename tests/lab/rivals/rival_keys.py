"""Keys of every sentence-level rival on the stand-in embedder, learned from Python's manual."""

from collections.abc import Sequence
from functools import lru_cache
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from alimark import Key
from alimark.core.keys.fitted import Fitted
from alimark.core.schemes.registry import scheme
from alimark.core.text.human_text import language_reference
from alimark.testing import StandInEmbedder

EMBEDDER = StandInEmbedder()
RIVALS = ("semstamp", "k-semstamp", "simmark", "pmark")
ALL = (*RIVALS, "samark")
LEARN = ("k-semstamp", "simmark")
PREFIX = ("semstamp", "k-semstamp", "simmark")


@lru_cache(maxsize=1)
def human() -> list[str]:
    return list(islice(language_reference(), 60))


@lru_cache
def learned(name: str, **options: Any) -> Fitted:
    kind: Any = scheme(name)
    found: Fitted = kind.fit(human()[:30], EMBEDDER, **options)
    return found


def key_of(name: str, number: int = 0, *, fitted: Fitted | None = None, **parameters: Any) -> Key:
    """The same in every run."""
    if name in LEARN:
        parameters["fitted"] = fitted or learned(name)
    return Key.generate(scheme=name, embedder=EMBEDDER, secret=number.to_bytes(32, "big"), **parameters)


class Vectors:
    """An embedder whose sentences are the numbers of given rows."""

    name, backend, languages = EMBEDDER.name, "rows", frozenset[str]()
    fingerprint = EMBEDDER.fingerprint

    def __init__(self, rows: NDArray[np.floating]) -> None:
        self.rows, self.dimension = rows.astype(np.float32), rows.shape[1]

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        return self.rows[[int(text.strip(".").rpartition(" ")[2]) for text in texts]]

    @staticmethod
    def text(numbers: Sequence[int]) -> str:
        return " ".join(f"This is number {n}." for n in numbers)


def random_rows(count: int, seed: int, dimension: int = 64) -> NDArray[np.float64]:
    """Sentences of no meaning: directions without preference."""
    rows = np.random.default_rng(seed).normal(size=(count, dimension))
    return np.asarray(rows / np.linalg.norm(rows, axis=1, keepdims=True), np.float32).astype(np.float64)
