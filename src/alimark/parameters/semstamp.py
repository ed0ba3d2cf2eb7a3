"""The parameters of SemStamp's keys."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from alimark.errors import KeyFileError
from alimark.parameters.base import SchemeParameters


@dataclass(frozen=True)
class SemStampParameters(SchemeParameters):
    """The paper's: three hyperplanes, a quarter of the regions valid, a cosine of 0.02 between a sentence and any plane."""

    scheme: ClassVar[str] = "semstamp"
    presets: ClassVar[Mapping[str, Mapping[str, object]]] = {"paper": {"margin": 0.01}}
    embeds: ClassVar[bool] = True

    hyperplanes: int = 3
    ratio: float = 0.25
    margin: float = 0.02

    def __post_init__(self) -> None:
        if not 1 <= self.hyperplanes <= 12:
            raise KeyFileError(f"hyperplanes must lie between 1 and 12, not at {self.hyperplanes}")
        if not 0 <= self.margin < 1:
            raise KeyFileError(f"margin is a cosine and lies between 0 and 1, not at {self.margin:g}")
        valid_count(self.ratio, 2**self.hyperplanes)


def valid_count(ratio: float, regions: int) -> int:
    """The number of valid regions among all.

    Raises:
        KeyFileError: None or all would be valid.
    """
    count = round(ratio * regions)
    if not 1 <= count < regions:
        raise KeyFileError(
            f"a valid ratio of {ratio:g} of {regions} regions leaves {count} valid ones; change one of them"
        )
    return count
