"""The parameters of SimMark's keys."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar, Self

from alimark.core.parameters.base import FittedData, SchemeParameters
from alimark.errors import KeyFileError

DISTANCES = ("cosine", "euclidean")

PUBLISHED_MODEL = "instructor-large"
PUBLISHED_INTERVALS: Mapping[tuple[str, str, int], tuple[float, float]] = MappingProxyType({
    ("Represent the sentence for cosine similarity:", "cosine", 0): (0.68, 0.76),
    ("Represent the sentence for euclidean distance:", "euclidean", 0): (0.4, 0.55),
    ("Represent the sentence for PCA:", "euclidean", 16): (0.28, 0.36),
})  # fmt: skip
"""The intervals of the authors' code, by the instruction before each sentence, the distance and the number of principal
components. They belong to the embedder hkunlp/instructor-large with that instruction, and to no other."""


@dataclass(frozen=True)
class SimMarkParameters(SchemeParameters):
    """The parameters of a SimMark key.

    `lower` and `upper` are the interval, by default the learned one. `decay` is the rate at which the soft count decays outside
    the interval. The preset "paper" has the published interval if the data were learned with the embedder and the instruction
    that it was published for, and else the learned one.
    """

    scheme: ClassVar[str] = "simmark"
    presets: ClassVar[Mapping[str, Mapping[str, object]]] = {"paper": {}}
    embeds: ClassVar[bool] = True

    lower: float | None = None
    upper: float | None = None
    decay: float = 250.0

    @classmethod
    def of(
        cls,
        given: Mapping[str, object],
        *,
        preset: str | None = None,
        fingerprint: str = "",
        fitted: FittedData | None = None,
    ) -> Self:
        """Makes the parameters; with the preset "paper" the published interval is taken where it belongs."""
        wanted = dict(given)
        if preset == "paper" and not {"lower", "upper"} & set(wanted):
            interval = published_interval(fitted)
            wanted |= {} if interval is None else {"lower": interval[0], "upper": interval[1]}
        return super().of(wanted, preset=preset, fingerprint=fingerprint, fitted=fitted)

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


def published_interval(fitted: FittedData | None) -> tuple[float, float] | None:
    """The interval that was published for the embedder, the distance and the components of learned data; None for others."""
    if fitted is None:
        return None
    model, _, prefix = str(fitted.origin.get("embedder", "")).partition("#")
    if model.rpartition("/")[2] != PUBLISHED_MODEL:
        return None
    distance, components = fitted.origin.get("distance"), fitted.origin.get("components")
    return PUBLISHED_INTERVALS.get((prefix, str(distance), components if isinstance(components, int) else -1))
