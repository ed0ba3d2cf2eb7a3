"""The parameters of SimMark's keys."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from alimark.errors import KeyFileError
from alimark.parameters.base import FittedData, SchemeParameters

DISTANCES = ("cosine", "euclidean")


@dataclass(frozen=True)
class SimMarkParameters(SchemeParameters):
    """The parameters of a SimMark key.

    `lower` and `upper` are the interval, by default the learned one. `decay` is the rate at which the soft count decays outside
    the interval.
    """

    scheme: ClassVar[str] = "simmark"
    # From the public code, for news; they suit the embedder instructor-large and few others.
    presets: ClassVar[Mapping[str, Mapping[str, object]]] = {"paper": {"lower": 0.68, "upper": 0.76}}
    embeds: ClassVar[bool] = True

    lower: float | None = None
    upper: float | None = None
    decay: float = 250.0

    def __post_init__(self) -> None:
        for name in ("lower", "upper"):
            value = getattr(self, name)
            if value is not None and (type(value) not in (int, float) or not -1 <= value <= 2):
                raise KeyFileError(f"{name} must be a similarity or a distance, not {value!r}")
        if (self.lower is None) != (self.upper is None):
            raise KeyFileError("lower and upper must be given together, or not at all")
        if self.lower is not None and self.upper is not None and self.lower >= self.upper:
            raise KeyFileError(f"an interval from {self.lower:g} to {self.upper:g} is empty")
        if not 0 < self.decay <= 1e6:
            raise KeyFileError(f"decay must be between 0 and a million, not {self.decay:g}")

    def check_fitted(self, fitted: FittedData | None) -> None:
        """Checks that there are a learned interval and similarities of human sentences; raises KeyFileError if not."""
        if fitted is None:
            raise KeyFileError(
                "simmark needs the similarities of human sentences under its embedder; measure them: "
                "alimark fit simmark --human texts.jsonl -o interval.npz, and give them (--fitted interval.npz)"
            )
        arrays = fitted.arrays
        if fitted.origin.get("distance") not in DISTANCES or {"interval", "similarities"} - set(arrays):
            raise KeyFileError(
                "the learned data have no interval or no similarities of human sentences; learn them again: alimark fit simmark"
            )
        if arrays["interval"].shape != (2,) or arrays["similarities"].ndim != 1 or not len(arrays["similarities"]):
            raise KeyFileError("the learned interval is malformed; restore the file, or learn it again")
        if "components" in arrays and ("mean" not in arrays or arrays["components"].ndim != 2):
            raise KeyFileError("the learned components are malformed; restore the file, or learn them again")
