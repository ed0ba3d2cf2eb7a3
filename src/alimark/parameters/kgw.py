"""The parameters of KGW's keys."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from alimark.errors import KeyFileError
from alimark.parameters.base import DEFAULT_TOKENIZER, SchemeParameters


@dataclass(frozen=True)
class KGWParameters(SchemeParameters):
    """How KGW divides the vocabulary and by how much it prefers the green part."""

    scheme: ClassVar[str] = "kgw"
    presets: ClassVar[Mapping[str, Mapping[str, object]]] = {"paper": {}, "transformers": {"gamma": 0.25}}

    gamma: float = 0.5
    """The share of the vocabulary that is green."""
    delta: float = 2.0
    """What is added to the logits of green tokens, behind temperature and top-p as in transformers."""
    context: int = 1
    """Tokens that decide what is green behind them."""
    tokenizer: str = DEFAULT_TOKENIZER
    vocabulary: str = ""

    def __post_init__(self) -> None:
        if not 0 < self.gamma < 1:
            raise KeyFileError(f"gamma must lie between 0 and 1, not {self.gamma}")
        if not 0 < self.delta <= 100:
            raise KeyFileError(f"delta must be above 0 and at most 100, not {self.delta}")
        if not 1 <= self.context <= 16:
            raise KeyFileError(f"context must be 1 to 16 tokens, not {self.context}")
