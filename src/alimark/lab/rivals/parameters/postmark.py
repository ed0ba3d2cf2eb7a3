"""The parameters of PostMark's keys."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from alimark.core.parameters.base import FittedData, SchemeParameters
from alimark.errors import KeyFileError


@dataclass(frozen=True)
class PostMarkParameters(SchemeParameters):
    """The parameters of a PostMark key, with the defaults of its paper and public code.

    A text gets `ratio` x its number of words: the table gives `pool` times as many, and those closest in meaning to the text
    are taken. A word counts as present where a word of the text has at least the cosine `threshold` with it. `inserter` names
    the chat model that rewrites the text; empty for the model that wrote it. Detection does not need it.
    """

    scheme: ClassVar[str] = "postmark"
    presets: ClassVar[Mapping[str, Mapping[str, object]]] = {"light": {"ratio": 0.06}}
    embeds: ClassVar[bool] = True

    ratio: float = 0.12
    pool: int = 3
    threshold: float = 0.7
    inserter: str = ""

    def __post_init__(self) -> None:
        if not 0 < self.ratio <= 0.5:
            raise KeyFileError(
                f"ratio, the share of words to insert, must be above 0 and at most 0.5, not {self.ratio:g}"
            )
        if not 1 <= self.pool <= 20:
            raise KeyFileError(f"pool must be from 1 to 20, not {self.pool}")
        if not 0 < self.threshold <= 1:
            raise KeyFileError(f"threshold, a cosine, must be above 0 and at most 1, not {self.threshold:g}")

    def check_fitted(self, fitted: FittedData | None) -> None:
        """Checks that there are words and the spread of human texts; raises KeyFileError if not."""
        if fitted is None:
            raise KeyFileError(
                "postmark needs a list of words and the spread of human texts under its embedder; learn them: "
                "alimark fit postmark --human texts.jsonl -o words.npz, and give them (--fitted words.npz)"
            )
        words, arrays = fitted.origin.get("words"), fitted.arrays
        if not isinstance(words, list) or len(words) < 2 or not all(isinstance(word, str) for word in words):
            raise KeyFileError("the learned data have no list of words; learn them again: alimark fit postmark")
        if {"mean", "components"} - set(arrays) or arrays["components"].shape[1:] != arrays["mean"].shape:
            raise KeyFileError("the learned spread of human texts is malformed; learn it again: alimark fit postmark")
