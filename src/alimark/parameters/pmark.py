"""The parameters of PMark's keys."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from alimark.errors import KeyFileError
from alimark.parameters.base import SchemeParameters

_MEDIANS = ("prior", "sampled")


@dataclass(frozen=True)
class PMarkParameters(SchemeParameters):
    """The paper's. `median`: "prior", which is 0, or "sampled" among `samples` draws of the model."""

    scheme: ClassVar[str] = "pmark"
    presets: ClassVar[Mapping[str, Mapping[str, object]]] = {"paper": {"median": "sampled"}}
    embeds: ClassVar[bool] = True

    channels: int = 4
    median: str = "prior"
    samples: int = 64
    decay: float = 250.0
    threshold: float = 0.001

    def __post_init__(self) -> None:
        if not 1 <= self.channels <= 16:
            raise KeyFileError(f"channels must lie between 1 and 16, not at {self.channels}")
        if self.median not in _MEDIANS:
            raise KeyFileError(f"median must be prior or sampled, not {self.median!r}")
        if not 2 <= self.samples <= 4096:
            raise KeyFileError(f"samples must lie between 2 and 4096, not at {self.samples}")
        if not 0 < self.decay <= 1e6 or not 0 <= self.threshold < 1:
            raise KeyFileError("decay must lie between 0 and a million, and threshold between 0 and 1")
