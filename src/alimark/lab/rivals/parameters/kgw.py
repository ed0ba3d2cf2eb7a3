"""The parameters of KGW's keys."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from alimark.core.parameters.base import DEFAULT_TOKENIZER, SchemeParameters, check_bias
from alimark.errors import KeyFileError


@dataclass(frozen=True)
class KGWParameters(SchemeParameters):
    """The parameters of a KGW key."""

    scheme: ClassVar[str] = "kgw"
    presets: ClassVar[Mapping[str, Mapping[str, object]]] = {
        "paper": {},
        "transformers": {"gamma": 0.25, "bias": "nucleus"},
    }
    earlier: ClassVar[Mapping[str, object]] = {"bias": "nucleus"}

    gamma: float = 0.5
    """The share of the vocabulary that is green."""
    delta: float = 2.0
    """The number added to the logits of green tokens."""
    context: int = 1
    """The number of previous tokens that decide which tokens are green."""
    tokenizer: str = DEFAULT_TOKENIZER
    vocabulary: str = ""
    bias: str = "logits"
    """Where delta is added: "logits", before temperature and top-p, as in the code of the authors and in MarkLLM, or "nucleus",
    after both, as WatermarkingConfig of transformers does."""

    def __post_init__(self) -> None:
        if not 0 < self.gamma < 1:
            raise KeyFileError(f"gamma must be between 0 and 1, not {self.gamma}")
        if not 0 < self.delta <= 100:
            raise KeyFileError(f"delta must be above 0 and at most 100, not {self.delta}")
        if not 1 <= self.context <= 16:
            raise KeyFileError(f"context must be from 1 to 16 tokens, not {self.context}")
        check_bias(self.bias)
