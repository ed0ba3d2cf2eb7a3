"""The settings of a detection."""

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Literal, Self, TypedDict

from alimark.core.detection.stats.null_tables import paper_rule, reference_rule
from alimark.core.detection.stats.p_values import RandomKeys
from alimark.core.embedding.base import Precision, check_precision
from alimark.core.frozen.kernels.types import Limits, ZRule
from alimark.core.frozen.rules import ALPHA, BETA
from alimark.errors import AlimarkError

MAX_SENTENCES = 2000
MAX_EXCERPT_SENTENCES = 200_000
MAX_SOFT_EXCERPT_SENTENCES = 20_000
"""Lower than for hard bits, since a soft detector keeps tables for every sentence."""
PASSAGES_FROM = 61
"""With search="auto", texts of at least this many sentences are searched for marked passages where the whole shows no mark."""
LONG_TEXT = 300
"""With more sentences than this, fewer random keys are drawn (`stop_after`), since each costs sentences times blocks."""


class DetectionOptions(TypedDict, total=False):
    """The fields of `DetectionSettings` as keyword arguments of `detect`; other schemes have the first three."""

    draws: int
    stop_after: int | None
    tail: bool
    restructure: str | tuple[int, int]
    variants: int
    alpha: float
    beta: float
    null: Literal["paper", "reference"]
    null_file: Path | None
    search: Literal["whole", "excerpt", "auto"]
    passage_fpr: float
    max_blocks: int
    precision: Precision


@dataclass(frozen=True)
class DetectionSettings(RandomKeys):
    """How AliMark searches a text. The defaults are those of the paper.

    Args:
        restructure: How sentences may be merged and split before they are aligned with the key: "none"; "single" (one merge
            or one split); (merges, splits), at most so many of each; "learned", the text and a chat model's restructurings
            of it; "learned+single", each of those with one merge or one split; or "learned-only", the chat model's answers
            in the place of the text, which the paper's figures for learned restructuring imply (with variants=1).
        variants: The number of restructurings that the chat model is asked for where restructuring is learned.
        alpha: A text of N sentences is aligned with at least alpha * N blocks. Hard keys only.
        beta: A text of N sentences is aligned with at most beta * N blocks. Hard keys only.
        null: Where the z-score takes its mean and standard deviation from: "paper", the paper's rule, or "reference", the
            rule of the paper's public code.
        null_file: A table in the format of the public code; for null="reference" only.
        search: "whole" aligns the whole text; "excerpt" looks for marked passages anywhere in it; "auto" aligns the whole
            text and, where that shows no mark in more than 60 sentences, looks for passages, with a p-value that pays for
            both. Only texts of up to 300 sentences are aligned as a whole then: longer ones are searched for passages
            alone. "auto" looks for passages with restructure="single" only.
        passage_fpr: Passages with a p-value above this are not reported, and neither is the payload of a text.
        max_blocks: The blocks of the key in which an excerpt is looked for: the number of sentences of the longest marked
            text. The blocks that a text may begin with (a key with offsets) come on top.
        precision: The precision of the embedder: "float32", or a faster one that it offers ("int8" on CPUs). "auto" takes the
            embedder as it was loaded, which is float32 unless told otherwise (docs/generating.md).
        draws: The number of random keys behind the p-value.
        stop_after: Stop drawing when so many random keys have scored as high as the text's key (Besag and Clifford).
        tail: Also estimate p-values below 1 / draws from a fitted tail.

    Raises:
        AlimarkError: A field has a value that is not allowed, or two fields contradict each other.

    Example:
        >>> settings = DetectionSettings(restructure="none", draws=10_000)
        >>> settings.search
        'whole'
        >>> DetectionSettings(search="everywhere")
        Traceback (most recent call last):
        ...
        alimark.errors.AlimarkError: search must be 'whole', 'excerpt' or 'auto', not 'everywhere'
    """

    restructure: str | tuple[int, int] = "single"
    variants: int = 4
    alpha: float = ALPHA
    beta: float = BETA
    null: Literal["paper", "reference"] = "paper"
    null_file: Path | None = None
    search: Literal["whole", "excerpt", "auto"] = "whole"
    passage_fpr: float = 0.01
    max_blocks: int = 100
    precision: Precision = "auto"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_precision(self.precision)
        if min(self.max_blocks, self.variants) < 1:
            raise AlimarkError("max_blocks and variants must be at least 1")
        if self.null not in ("paper", "reference"):
            raise AlimarkError(f"null must be 'paper' or 'reference', not {self.null!r}")
        if self.null_file is not None and self.null != "reference":
            raise AlimarkError("null_file, a table in the public code's format, needs null='reference'")
        if self.search not in ("whole", "excerpt", "auto"):
            raise AlimarkError(f"search must be 'whole', 'excerpt' or 'auto', not {self.search!r}")
        if self.learned and self.search == "excerpt":
            raise AlimarkError(
                "a chat model restructures whole texts, so learned restructuring cannot be combined with the search for "
                "excerpts; use restructure='single'"
            )
        try:
            _ = self.limits
        except (ValueError, TypeError) as error:
            more = " (or 'learned', 'learned+single' or 'learned-only')" if isinstance(self.restructure, str) else ""
            raise AlimarkError(f"{error}{more}") from None

    @classmethod
    def of(cls, settings: RandomKeys | None) -> Self:
        """These settings; the defaults for None; and AliMark's defaults with the random keys of another scheme's settings."""
        if settings is None:
            return cls()
        if isinstance(settings, cls):
            return settings
        return cls(**{field.name: getattr(settings, field.name) for field in fields(RandomKeys)})

    @property
    def learned(self) -> bool:
        """Whether a chat model restructures the text."""
        return self.restructure in ("learned", "learned+single", "learned-only")

    @property
    def replaces_text(self) -> bool:
        """Whether a chat model's answers are searched instead of the text, and not beside it."""
        return self.restructure == "learned-only"

    @property
    def limits(self) -> Limits:
        """How many merges and splits the alignment may use."""
        if self.learned:
            return Limits.of("single" if self.restructure == "learned+single" else "none")
        limits = Limits.of(self.restructure)
        # The local search knows the moves of a single step, and uses them as often as it needs.
        return Limits.of("single") if self.search == "excerpt" else limits

    def searches(self, sentences: int) -> tuple[Literal["whole", "excerpt"], ...]:
        """The searches of a text of so many sentences, in turn; the second where the first shows no mark."""
        if self.search != "auto":
            return (self.search,)
        if sentences < PASSAGES_FROM or self.restructure != "single":
            return ("whole",)
        return ("whole", "excerpt") if sentences <= LONG_TEXT else ("excerpt",)

    def rule(self, block_size: int, longest: int) -> ZRule:
        """How edit distances of texts of up to `longest` sentences become z-scores."""
        if self.null == "paper":
            return paper_rule(block_size, longest, self.alpha, self.beta)
        return reference_rule(block_size, longest, self.alpha, self.beta, self.null_file)
