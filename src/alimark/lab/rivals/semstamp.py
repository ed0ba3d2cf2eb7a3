"""SemStamp (Hou et al., NAACL 2024): random hyperplanes divide the embedding space into regions."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from alimark.core._util.arrays import Floats
from alimark.core.frozen.arithmetic import halving_sum
from alimark.core.keys.key import Key
from alimark.errors import KeyMismatch
from alimark.lab.rivals._regions import Located, Mask, RegionRule, RegionWatermark
from alimark.lab.rivals.parameters.semstamp import SemStampParameters


class HyperplaneRule(RegionRule):
    """Reduces a sentence to its cosines with the normals of the hyperplanes; its region is the pattern of their signs."""

    def __init__(self, key: Key) -> None:
        parameters = key.parameters_as(SemStampParameters)
        super().__init__(key, 2**parameters.hyperplanes, parameters.ratio, parameters.margin)
        self.hyperplanes = parameters.hyperplanes
        self._weights = 2 ** np.arange(parameters.hyperplanes)[::-1]
        self._normals: dict[int, Floats] = {}

    def normals(self, dimension: int) -> Floats:
        """The unit normals of the hyperplanes, one per row. As in the paper they are independent, not orthogonal."""
        if dimension < self.hyperplanes:
            raise KeyMismatch(
                f"{self.hyperplanes} hyperplanes need an embedder with at least as many dimensions, but it has {dimension}"
            )
        if dimension not in self._normals:
            rows = self.key.normals("semstamp/hyperplanes", self.hyperplanes, dimension, dimension)
            self._normals[dimension] = rows / np.sqrt(halving_sum(rows * rows))[:, None]
        return self._normals[dimension]

    def see(self, vectors: NDArray[np.float32]) -> Floats:
        wide = vectors.astype(np.float64)
        lengths = np.linalg.norm(wide, axis=1, keepdims=True)
        return np.asarray((wide / np.maximum(lengths, 1e-12)) @ self.normals(vectors.shape[1]).T)

    def locate(self, seen: Floats) -> Located:
        return Located((seen > 0) @ self._weights, np.abs(seen).min(axis=1))

    def shortfall(self, seen: Floats, valid: Mask) -> Floats:
        """The sum of the absolute cosines whose signs differ from those of the nearest valid region."""
        signs = (np.flatnonzero(valid)[:, None] // self._weights) % 2 == 1
        wrong = (seen > 0)[:, None, :] != signs[None]
        return np.asarray((wrong * np.abs(seen)[:, None, :]).sum(axis=2).min(axis=1))


class SemStamp(RegionWatermark):
    """Generates and detects text marked by SemStamp under one key."""

    scheme = "semstamp"
    Parameters = SemStampParameters

    @classmethod
    def rule(cls, key: Key) -> HyperplaneRule:
        return HyperplaneRule(key)
