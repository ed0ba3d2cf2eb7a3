"""What a detection can be asked for."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypedDict

from alimark.detection.kernels.types import Limits, Rule
from alimark.detection.stats.null_tables import ALPHA, BETA, paper_rule, reference_rule
from alimark.detection.stats.p_values import RandomKeys
from alimark.errors import AlimarkError

MAX_SENTENCES = 2000
MAX_EXCERPT_SENTENCES = 200_000
MAX_SOFT_EXCERPT_SENTENCES = 20_000
"""Fewer, since a soft detector keeps tables of every sentence."""
LONG_TEXT = 300
"""Beyond so many sentences the drawing of random keys stops early, since each costs N times L."""


class RandomKeysOptions(TypedDict, total=False):
    """The fields of `RandomKeys` as keyword arguments: the options that every scheme's detection has."""

    draws: int
    stop_after: int | None
    tail: bool


class DetectionOptions(RandomKeysOptions, total=False):
    """The fields of `DetectionSettings` as keyword arguments of `detect`."""

    restructure: str | tuple[int, int]
    variants: int
    alpha: float
    beta: float
    null: Literal["paper", "reference"]
    null_file: Path | None
    search: Literal["whole", "excerpt"]
    passage_fpr: float
    max_blocks: int


@dataclass(frozen=True)
class DetectionSettings(RandomKeys):
    """How AliMark searches a text. The defaults are the paper's."""

    restructure: str | tuple[int, int] = "single"
    """"none", "single" (one merge or one split), or at most (merges, splits) together; "learned": the text and what a chat
    model makes of it; "learned+single": each of those with one merge or one split."""
    variants: int = 4
    """Restructurings asked of the chat model, where restructuring is learned."""
    alpha: float = ALPHA
    beta: float = BETA
    null: Literal["paper", "reference"] = "paper"
    """Where z takes its mean and deviation from: the paper's rule or the public code's."""
    null_file: Path | None = None
    """A table in the public code's form, for null="reference"."""
    search: Literal["whole", "excerpt"] = "whole"
    """Align the whole text, or look for a marked passage anywhere in it."""
    passage_fpr: float = 0.01
    """Passages with a p-value above this are not named."""
    max_blocks: int = 100
    """An excerpt is looked for in so many blocks of the key: the length of the longest text ever marked. Those that a text may
    begin with, where the key has offsets, come on top."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if min(self.max_blocks, self.variants) < 1:
            raise AlimarkError("max_blocks and variants must be at least 1")
        if self.null not in ("paper", "reference"):
            raise AlimarkError(f"null must be 'paper' or 'reference', not {self.null!r}")
        if self.null_file is not None and self.null != "reference":
            raise AlimarkError("a table of the public code's form goes with null='reference'")
        if self.search not in ("whole", "excerpt"):
            raise AlimarkError(f"search must be 'whole' or 'excerpt', not {self.search!r}")
        if self.learned and self.search == "excerpt":
            raise AlimarkError("a chat model restructures whole texts; it does not go with the search for excerpts")
        try:
            _ = self.limits
        except (ValueError, TypeError) as error:
            more = " (or 'learned', or 'learned+single')" if isinstance(self.restructure, str) else ""
            raise AlimarkError(f"{error}{more}") from None

    @property
    def learned(self) -> bool:
        """Whether a chat model is asked."""
        return self.restructure in ("learned", "learned+single")

    @property
    def limits(self) -> Limits:
        if self.learned:
            return Limits.of("none" if self.restructure == "learned" else "single")
        limits = Limits.of(self.restructure)
        # The local search knows the moves of a single step, as often as they are needed.
        return Limits.of("single") if self.search == "excerpt" else limits

    def rule(self, m: int, longest: int) -> Rule:
        if self.null == "paper":
            return paper_rule(m, longest, self.alpha, self.beta)
        return reference_rule(m, longest, self.alpha, self.beta, self.null_file)
