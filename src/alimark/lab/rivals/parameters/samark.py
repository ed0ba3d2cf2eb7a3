"""The parameters of SAMark's keys."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from alimark.core.parameters.base import SchemeParameters
from alimark.errors import KeyFileError

_SIGNS = ("key", "text")


@dataclass(frozen=True)
class SAMarkParameters(SchemeParameters):
    """The parameters of a SAMark key, with the defaults of its public code where that has them.

    A candidate scores the sum of tanh(`slope` x signed cosine) over the `channels`. `signs` says whether the sign of a channel
    belongs to the key or is drawn for each text; the detector then infers it. `similarity` and `overlap` are the limits of the
    hard filter, `diversity` and `novelty` the weights of the soft one. A candidate is drawn with a probability proportional to
    exp(`sharpness` x score).
    """

    scheme: ClassVar[str] = "samark"
    presets: ClassVar[Mapping[str, Mapping[str, object]]] = {"released": {"signs": "text"}}
    embeds: ClassVar[bool] = True

    channels: int = 2
    signs: str = "key"
    slope: float = 30.0
    sharpness: float = 80.0
    similarity: float = 0.85
    overlap: float = 0.5
    diversity: float = 0.3
    novelty: float = 0.15

    def __post_init__(self) -> None:
        if not 1 <= self.channels <= 16:
            raise KeyFileError(f"channels must be from 1 to 16, not {self.channels}")
        if self.signs not in _SIGNS:
            raise KeyFileError(f"signs must be key or text, not {self.signs!r}")
        for name in ("slope", "sharpness"):
            if not 0 < getattr(self, name) <= 1e6:
                raise KeyFileError(f"{name} must be between 0 and a million, not {getattr(self, name):g}")
        for name in ("similarity", "overlap"):
            if not 0 < getattr(self, name) <= 2:
                raise KeyFileError(f"{name} must be above 0 and at most 2, not {getattr(self, name):g}")
        for name in ("diversity", "novelty"):
            if not 0 <= getattr(self, name) <= 100:
                raise KeyFileError(f"{name} must be from 0 to 100, not {getattr(self, name):g}")
