"""The parameters of KGW's keys."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from alimark.errors import KeyFileError
from alimark.parameters.base import DEFAULT_TOKENIZER, SchemeParameters


@dataclass(frozen=True)
class KGWParameters(SchemeParameters):
    """The parameters of a KGW key."""

    scheme: ClassVar[str] = "kgw"
    presets: ClassVar[Mapping[str, Mapping[str, object]]] = {"paper": {}, "transformers": {"gamma": 0.25}}

    gamma: float = 0.5
    """The share of the vocabulary that is green."""
    delta: float = 2.0
    """The number added to the logits of green tokens, after temperature and top-p as in transformers."""
    context: int = 1
    """The number of previous tokens that decide which tokens are green."""
    tokenizer: str = DEFAULT_TOKENIZER
    vocabulary: str = ""

    def __post_init__(self) -> None:
        if not 0 < self.gamma < 1:
            raise KeyFileError(f"gamma must be between 0 and 1, not {self.gamma}")
        if not 0 < self.delta <= 100:
            raise KeyFileError(f"delta must be above 0 and at most 100, not {self.delta}")
        if not 1 <= self.context <= 16:
            raise KeyFileError(f"context must be from 1 to 16 tokens, not {self.context}")
