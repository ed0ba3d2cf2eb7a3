"""The parameters of k-SemStamp's keys."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from alimark.core.parameters.base import FittedData, SchemeParameters
from alimark.errors import KeyFileError
from alimark.lab.rivals.parameters.semstamp import valid_count


@dataclass(frozen=True)
class KSemStampParameters(SchemeParameters):
    """The parameters of a k-SemStamp key, with the defaults of its paper. There are as many regions as learned centres."""

    scheme: ClassVar[str] = "k-semstamp"
    presets: ClassVar[Mapping[str, Mapping[str, object]]] = {"paper": {}}
    embeds: ClassVar[bool] = True

    ratio: float = 0.25
    margin: float = 0.01

    def __post_init__(self) -> None:
        if not 0 < self.ratio < 1:
            raise KeyFileError(f"ratio must be between 0 and 1, not {self.ratio:g}")
        if not 0 <= self.margin < 1:
            raise KeyFileError(f"margin, a difference of cosines, must be at least 0 and below 1, not {self.margin:g}")

    def check_fitted(self, fitted: FittedData | None) -> None:
        """Checks that there are learned centres, enough for the ratio; raises KeyFileError if not."""
        if fitted is None:
            raise KeyFileError(
                "k-semstamp needs regions learned from text of the domain; make them: "
                "alimark fit k-semstamp --human texts.jsonl -o regions.npz, and give them (--fitted regions.npz)"
            )
        centres = fitted.arrays.get("centres")
        if centres is None or centres.ndim != 2 or len(centres) < 2:
            raise KeyFileError(
                "the learned data are not a matrix of centres, one per row; learn them again: alimark fit k-semstamp"
            )
        valid_count(self.ratio, len(centres))
