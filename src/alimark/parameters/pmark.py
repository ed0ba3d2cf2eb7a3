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
    """The parameters of a PMark key, with the defaults of its paper.

    `median` is "prior", which takes it to be 0, or "sampled", which estimates it from `samples` draws of the model.
    """

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
            raise KeyFileError(f"channels must be from 1 to 16, not {self.channels}")
        if self.median not in _MEDIANS:
            raise KeyFileError(f"median must be prior or sampled, not {self.median!r}")
        if not 2 <= self.samples <= 4096:
            raise KeyFileError(f"samples must be from 2 to 4096, not {self.samples}")
        if not 0 < self.decay <= 1e6 or not 0 <= self.threshold < 1:
            raise KeyFileError("decay must be between 0 and a million, and threshold between 0 and 1")
