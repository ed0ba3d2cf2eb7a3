"""The parameters of EXP's keys."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from alimark.core.parameters.base import DEFAULT_TOKENIZER, SchemeParameters
from alimark.errors import KeyFileError


@dataclass(frozen=True)
class EXPParameters(SchemeParameters):
    """The key sequence of EXP and the cost of a gap in its alignment."""

    scheme: ClassVar[str] = "exp"
    presets: ClassVar[Mapping[str, Mapping[str, object]]] = {"paper": {"length": 420}}

    length: int = 256
    """The length of the key sequence."""
    gap: float = 0.0
    """The cost of skipping a token or a place of the sequence."""
    tokenizer: str = DEFAULT_TOKENIZER
    vocabulary: str = ""

    def __post_init__(self) -> None:
        if not 1 <= self.length <= 4096:
            raise KeyFileError(f"length must be from 1 to 4096, not {self.length}")
        if not 0 <= self.gap <= 100:
            raise KeyFileError(f"gap must be from 0 to 100, not {self.gap}")
