"""The parameters of SIR's keys, and checks of the trained network in each key."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from alimark.core.parameters.base import DEFAULT_TOKENIZER, FittedData, SchemeParameters, check_bias
from alimark.errors import KeyFileError

BLOCKS = 2
"""The number of residual blocks of the network."""


@dataclass(frozen=True)
class SIRParameters(SchemeParameters):
    """The parameters of a SIR key."""

    scheme: ClassVar[str] = "sir"
    presets: ClassVar[Mapping[str, Mapping[str, object]]] = {"paper": {}}
    earlier: ClassVar[Mapping[str, object]] = {"bias": "nucleus"}
    embeds: ClassVar[bool] = True

    delta: float = 1.0
    """The number added to or subtracted from the logits."""
    chunk: int = 10
    """The number of tokens that share a bias, which the text before them decides."""
    window: int = 200
    """The number of last tokens of the text so far that are embedded."""
    dimension: int = 300
    """The number of outputs of the network."""
    tokenizer: str = DEFAULT_TOKENIZER
    vocabulary: str = ""
    bias: str = "logits"
    """Where delta is added: "logits", before temperature and top-p, as in the code of the authors and in MarkLLM, or "nucleus",
    after both."""

    def __post_init__(self) -> None:
        if not 0 < self.delta <= 100:
            raise KeyFileError(f"delta must be above 0 and at most 100, not {self.delta}")
        if not 1 <= self.chunk <= self.window <= 4096:
            raise KeyFileError("chunk must be at least 1, and window at least chunk and at most 4096")
        if not 2 <= self.dimension <= 10_000:
            raise KeyFileError(f"dimension must be from 2 to 10000, not {self.dimension}")
        check_bias(self.bias)

    def check_fitted(self, fitted: FittedData | None) -> None:
        """Checks that there is a trained network with this number of outputs; raises KeyFileError if not."""
        if fitted is None:
            raise KeyFileError("SIR needs a trained network; train one: alimark fit sir")
        network_layers(fitted, self.dimension)


Array = NDArray[np.float32]


def network_layers(fitted: FittedData, dimension: int) -> tuple[tuple[Array, Array], ...]:
    """The weight and bias of each layer of a trained network.

    Raises:
        KeyFileError: The data are not a SIR network, or it has another number of outputs.
    """
    names = ["in", *(f"block{i}" for i in range(BLOCKS)), "out"]
    try:
        layers = tuple(
            (fitted.arrays[f"{name}.weight"].astype(np.float32), fitted.arrays[f"{name}.bias"].astype(np.float32))
            for name in names
        )
    except KeyError:
        raise KeyFileError("the learned data are not a SIR network; train one: alimark fit sir") from None
    if fitted.scheme != SIRParameters.scheme or any(w.ndim != 2 or b.shape != w.shape[:1] for w, b in layers):
        raise KeyFileError("the learned data are not a SIR network; train one: alimark fit sir")
    if len(layers[-1][1]) != dimension:
        raise KeyFileError(f"the network has {len(layers[-1][1])} outputs, but the key needs {dimension}")
    return layers
