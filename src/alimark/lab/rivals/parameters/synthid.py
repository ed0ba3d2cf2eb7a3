"""The parameters of SynthID-Text's keys, and checks of the trained detector in some keys."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from alimark.core.parameters.base import DEFAULT_TOKENIZER, FittedData, SchemeParameters
from alimark.errors import KeyFileError

_SCORES = ("mean", "weighted", "bayesian")


@dataclass(frozen=True)
class SynthIDParameters(SchemeParameters):
    """The parameters of a SynthID-Text key."""

    scheme: ClassVar[str] = "synthid"
    presets: ClassVar[Mapping[str, Mapping[str, object]]] = {"paper": {}}

    ngram: int = 5
    """The length of the n-grams that decide the g-values of their last token."""
    depth: int = 30
    """The number of layers of the tournament. Each layer has its own key, and each match has two competitors."""
    history: int = 1024
    """The number of recent contexts that are remembered. A repeated context is neither marked nor scored."""
    table: int = 65536
    """The number of bits in the table that g-values are read from."""
    score: str = "mean"
    """"mean"; "weighted", with more weight on early layers; or "bayesian", by a trained detector."""
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
        """Checks that there is a trained detector of this depth for the bayesian score; raises KeyFileError if not."""
        if self.score != "bayesian":
            return
        if fitted is None:
            raise KeyFileError(
                "the bayesian score needs a trained detector; give its safetensors file, as transformers saves it"
            )
        detector_arrays(fitted, self.depth)


Array = NDArray[np.floating]


def detector_arrays(fitted: FittedData, depth: int) -> tuple[Array, Array, float]:
    """beta, delta and the prior probability of transformers' trained detector.

    Raises:
        KeyFileError: The data are not a detector of that depth.
    """
    parts = {name.rpartition(".")[2]: array for name, array in fitted.arrays.items()}
    try:
        beta, delta, prior = parts["beta"], parts["delta"], parts["prior"]
        chance = float(np.clip(prior.reshape(-1)[0], 1e-5, 1 - 1e-5))
        return beta.reshape(depth), delta.reshape(depth, depth), chance
    except (KeyError, ValueError, IndexError):
        raise KeyFileError(f"the learned data are not a Bayesian detector of {depth} layers") from None
