"""A stand-in embedder with a second precision, whose vectors are a little different."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from alimark.testing import StandInEmbedder


class RoughEmbedder(StandInEmbedder):
    """Offers int8, which adds noise that depends on the text; `forged` names texts that int8 takes for others."""

    precision = "float32"
    precisions = ("float32", "int8")

    def __init__(self, forged: dict[str, str] | None = None) -> None:
        super().__init__()
        self.forged = forged or {}

    def with_precision(self, precision: str) -> RoughEmbedder:
        other = copy.copy(self)
        other.precision = precision
        return other

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        if self.precision == "float32":
            return super().embed(texts)
        vectors = super().embed([self.forged.get(text, text) for text in texts])
        noise = super().embed([f"noise {text}" for text in texts])
        rough = vectors + np.float32(0.05) * noise
        unit: NDArray[np.float32] = rough / np.linalg.norm(rough, axis=1, keepdims=True)
        return unit
