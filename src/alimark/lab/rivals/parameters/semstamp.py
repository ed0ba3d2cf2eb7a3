"""The parameters of SemStamp's keys."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from alimark.core.parameters.base import SchemeParameters
from alimark.errors import KeyFileError


@dataclass(frozen=True)
class SemStampParameters(SchemeParameters):
    """The parameters of a SemStamp key, with the defaults of its paper.

    `ratio` is the share of valid regions, `margin` the least absolute cosine of a sentence with any normal.
    """

    scheme: ClassVar[str] = "semstamp"
    presets: ClassVar[Mapping[str, Mapping[str, object]]] = {"paper": {"margin": 0.01}}
    embeds: ClassVar[bool] = True

    hyperplanes: int = 3
    ratio: float = 0.25
    margin: float = 0.02

    def __post_init__(self) -> None:
        if not 1 <= self.hyperplanes <= 12:
            raise KeyFileError(f"hyperplanes must be from 1 to 12, not {self.hyperplanes}")
        if not 0 <= self.margin < 1:
            raise KeyFileError(f"margin, a cosine, must be at least 0 and below 1, not {self.margin:g}")
        valid_count(self.ratio, 2**self.hyperplanes)


def valid_count(ratio: float, regions: int) -> int:
    """The number of valid regions among all.

    Raises:
        KeyFileError: No region or all regions would be valid.
    """
    count = round(ratio * regions)
    if not 1 <= count < regions:
        raise KeyFileError(
            f"a valid ratio of {ratio:g} of {regions} regions leaves {count} valid ones; change one of them"
        )
    return count
