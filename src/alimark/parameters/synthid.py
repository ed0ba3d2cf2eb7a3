"""The parameters of SynthID-Text's keys, and the trained detector that some of them hold."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from alimark.errors import KeyFileError
from alimark.parameters.base import DEFAULT_TOKENIZER, FittedData, SchemeParameters

_SCORES = ("mean", "weighted", "bayesian")


@dataclass(frozen=True)
class SynthIDParameters(SchemeParameters):
    """The tournament of SynthID-Text and how its g-values are scored."""

    scheme: ClassVar[str] = "synthid"
    presets: ClassVar[Mapping[str, Mapping[str, object]]] = {"paper": {}}

    ngram: int = 5
    """Tokens that the g-values of the last of them depend on."""
    depth: int = 30
    """Layers of the tournament, each with a key of its own; every match has two leaves."""
    history: int = 1024
    """Contexts that are remembered: one that comes again is neither marked nor scored."""
    table: int = 65536
    """Bits that g-values are taken from."""
    score: str = "mean"
    """Or weighted, early layers more; or bayesian, by a trained detector."""
    tokenizer: str = DEFAULT_TOKENIZER
    vocabulary: str = ""

    def __post_init__(self) -> None:
        if not 2 <= self.ngram <= 16 or not 1 <= self.depth <= 100 or not 1 <= self.history <= 2**20:
            raise KeyFileError("ngram must be 2 to 16, depth 1 to 100 and history 1 to 1048576")
        if self.table not in [2**n for n in range(8, 25)]:
            raise KeyFileError(f"table must be a power of two from 256 to 16777216, not {self.table}")
        if self.score not in _SCORES:
            raise KeyFileError(f"score must be one of {', '.join(_SCORES)}, not {self.score!r}")

    def check_fitted(self, fitted: FittedData | None) -> None:
        """Raises KeyFileError where the bayesian score has no trained detector of this depth."""
        if self.score != "bayesian":
            return
        if fitted is None:
            raise KeyFileError(
                "the bayesian score needs a trained detector: a safetensors file, as transformers saves it"
            )
        detector_arrays(fitted, self.depth)


Array = NDArray[np.floating]


def detector_arrays(fitted: FittedData, depth: int) -> tuple[Array, Array, float]:
    """beta, delta and the prior probability of transformers' trained detector.

    Raises:
        KeyFileError: The data are no such detector of that many layers.
    """
    parts = {name.rpartition(".")[2]: array for name, array in fitted.arrays.items()}
    try:
        beta, delta, prior = parts["beta"], parts["delta"], parts["prior"]
        chance = float(np.clip(prior.reshape(-1)[0], 1e-5, 1 - 1e-5))
        return beta.reshape(depth), delta.reshape(depth, depth), chance
    except (KeyError, ValueError, IndexError):
        raise KeyFileError(f"this is no Bayesian detector of {depth} layers") from None
