"""The parameters of PMark's keys."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from alimark.core.parameters.base import SchemeParameters
from alimark.errors import KeyFileError

_MEDIANS = ("prior", "sampled")
_ESTIMATORS = ("harrell-davis", "sample")
_DECAYS = ("median", "threshold")


@dataclass(frozen=True)
class PMarkParameters(SchemeParameters):
    """The parameters of a PMark key, with the defaults of its paper.

    `median` is "prior", which takes it to be 0, or "sampled", which estimates it from `samples` draws of the model.
    """

    scheme: ClassVar[str] = "pmark"
    presets: ClassVar[Mapping[str, Mapping[str, object]]] = {"paper": {"median": "sampled"}}
    embeds: ClassVar[bool] = True
    earlier: ClassVar[Mapping[str, object]] = {"estimator": "sample", "decay_from": "threshold"}

    channels: int = 4
    median: str = "prior"
    samples: int = 64
    decay: float = 250.0
    threshold: float = 0.001
    """The distance on the wrong side of the median up to which a sentence counts in full."""
    estimator: str = "harrell-davis"
    """How a median is estimated from samples: "harrell-davis", a weighted mean of all of them, or "sample", their median."""
    decay_from: str = "median"
    """Where the decay of the soft count begins: "median", as in the code of the authors, where the count drops at the
    threshold; or "threshold", where it does not drop."""

    def __post_init__(self) -> None:
        if not 1 <= self.channels <= 16:
            raise KeyFileError(f"channels must be from 1 to 16, not {self.channels}")
        if self.median not in _MEDIANS:
            raise KeyFileError(f"median must be prior or sampled, not {self.median!r}")
        if not 2 <= self.samples <= 4096:
            raise KeyFileError(f"samples must be from 2 to 4096, not {self.samples}")
        if not 0 < self.decay <= 1e6 or not 0 <= self.threshold < 1:
            raise KeyFileError("decay must be between 0 and a million, and threshold between 0 and 1")
        if self.estimator not in _ESTIMATORS:
            raise KeyFileError(f"estimator must be harrell-davis or sample, not {self.estimator!r}")
        if self.decay_from not in _DECAYS:
            raise KeyFileError(f"decay_from must be median or threshold, not {self.decay_from!r}")
