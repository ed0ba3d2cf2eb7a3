"""The parameters of k-SemStamp's keys."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from alimark.errors import KeyFileError
from alimark.parameters.base import FittedData, SchemeParameters
from alimark.parameters.semstamp import valid_count


@dataclass(frozen=True)
class KSemStampParameters(SchemeParameters):
    """The paper's; as many regions as were learned, eight by default."""

    scheme: ClassVar[str] = "k-semstamp"
    presets: ClassVar[Mapping[str, Mapping[str, object]]] = {"paper": {}}
    embeds: ClassVar[bool] = True

    ratio: float = 0.25
    margin: float = 0.01

    def __post_init__(self) -> None:
        if not 0 < self.ratio < 1:
            raise KeyFileError(f"ratio lies between 0 and 1, not at {self.ratio:g}")
        if not 0 <= self.margin < 1:
            raise KeyFileError(f"margin is a difference of cosines and lies between 0 and 1, not at {self.margin:g}")

    def check_fitted(self, fitted: FittedData | None) -> None:
        """Raises KeyFileError where there are no learned centres, or too few for the ratio."""
        if fitted is None:
            raise KeyFileError(
                "k-semstamp needs regions learned from text of the domain; make them: "
                "alimark fit k-semstamp --human texts.jsonl -o regions.npz, and give them (--fitted regions.npz)"
            )
        centres = fitted.arrays.get("centres")
        if centres is None or centres.ndim != 2 or len(centres) < 2:
            raise KeyFileError("the learned regions are not a table of centres, one a row")
        valid_count(self.ratio, len(centres))
