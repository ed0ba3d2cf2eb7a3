"""What a generation is asked for: the prompt, where it ends, and how many candidates each sentence gets."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Literal, TypedDict

from alimark.core.keys.key import Key
from alimark.core.llm.base import Sampling
from alimark.errors import AlimarkError

if TYPE_CHECKING:
    from alimark.core._util.jsonl import Record
    from alimark.core.generation.results import Progress

Ended = Literal[
    "complete", "model ended", "model repeats itself", "context full", "token limit", "stop sequence", "time limit"
]
"""Why a text has the length it has."""
PromptStyle = Literal["continue", "chat"]
"""`continue`: the text goes on where the prompt stops. `chat`: the text is a chat model's answer to the prompt."""

DEFAULT_CANDIDATES = 64
"""Candidates for each sentence of AliMark where no number is asked for, as in its paper."""
Strength = Literal["light", "standard", "strong"]
STRENGTHS: Mapping[str, int] = {"light": 16, "standard": DEFAULT_CANDIDATES, "strong": 256}
"""Candidates for each sentence, by the name of a strength. Tokens grow in proportion to candidates; docs/soft.md shows how
the share of texts found grows with them."""
MOST_STEERING = 30.0
STEERED: Mapping[str, tuple[int, float]] = {"light": (4, 2.5), "standard": (8, 2.5), "strong": (24, 2.5)}
"""Candidates and steering by the name of a strength, for models that can be steered towards soft keys (docs/soft.md)."""
_MAX_SENTENCES = 10_000
_MAX_TOKENS = 1_000_000


def candidates_for(strength: str | None, candidates: int | None, default: int = DEFAULT_CANDIDATES) -> int:
    """Returns the number of candidates that a strength names, or the number itself, or the default where neither is given.

    Example:
        >>> candidates_for("strong", None), candidates_for(None, 32), candidates_for(None, None)
        (256, 32, 64)
        >>> candidates_for("strong", 32)
        Traceback (most recent call last):
        ...
        alimark.errors.AlimarkError: give either a strength or a number of candidates, not both; strong means 256 candidates
    """
    if strength is None:
        return default if candidates is None else candidates
    if strength not in STRENGTHS:
        raise AlimarkError(
            f"strength is {', '.join(STRENGTHS)}, not {strength!r}; give any other number with the option `candidates`"
        )
    if candidates is not None:
        raise AlimarkError(
            f"give either a strength or a number of candidates, not both; {strength} means {STRENGTHS[strength]} candidates"
        )
    return STRENGTHS[strength]


def candidates_and_steering(
    strength: str | None, candidates: int | None, steering: float | None, default: int, *, steerable: bool
) -> tuple[int, float]:
    """Returns the number of candidates and the steering that were asked for; without a word, those of the standard strength.

    Args:
        default: The candidates of the scheme for a model that is not steered.
        steerable: Whether the model can be steered towards the key.

    Example:
        >>> candidates_and_steering(None, None, None, 64, steerable=True)
        (8, 2.5)
        >>> candidates_and_steering(None, None, None, 64, steerable=False)
        (64, 0.0)
        >>> candidates_and_steering(None, 32, None, 64, steerable=True)
        (32, 0.0)
    """
    if steering and not steerable:
        raise AlimarkError(
            "this model cannot be steered towards this key; leave out the steering, and more candidates give the same strength"
        )
    if steering is not None and strength is not None:
        raise AlimarkError("give either a strength or candidates and steering; a strength stands for both")
    if candidates is not None or steering is not None or not steerable:
        return candidates_for(strength, candidates, STEERED["standard"][0] if steering else default), steering or 0.0
    candidates_for(strength, None)  # raises an error for an unknown strength
    return STEERED[strength or "standard"]


@dataclass(frozen=True)
class Prompt:
    """One of several prompts, with its seed, and with its key where that is not the key of the whole run."""

    text: str
    seed: int | None = None
    key: Key | None = None


@dataclass(frozen=True)
class Ending:
    """The stop sequences, the token limit and the time limit of a text.

    Args:
        stops: The text ends before the first of these strings and holds none of them.
        max_tokens: The most tokens of the text.
        count: Counts the tokens of a text; needed with `max_tokens`.
        until: When the text ends at the latest, with the sentence that is being written then, by `time.monotonic`.

    Example:
        >>> ending = Ending(stops=("END",), max_tokens=4, count=lambda text: len(text.split()))
        >>> ending.cut("One two. END three.")
        (9, 'stop sequence')
        >>> ending.cut("One two three four five.")
        (19, 'token limit')
        >>> ending.sendable("One two. E")
        'One two. '
    """

    stops: tuple[str, ...] = ()
    max_tokens: int | None = None
    count: Callable[[str], int] = len
    until: float = math.inf

    def stop_in(self, text: str, start: int = 0) -> int | None:
        """Returns the position of the first stop sequence that ends behind `start`; it may begin before."""
        places = (text.find(stop, max(0, start - len(stop) + 1)) for stop in self.stops)
        return min((place for place in places if place >= 0), default=None)

    def cut(self, text: str) -> tuple[int, Ended] | None:
        """Returns the length that a text must be cut to and the reason, or None where it may go on."""
        place = self.stop_in(text)
        whole = text if place is None else text[:place]
        if self.max_tokens is not None and (tokens := self.count(whole)) >= self.max_tokens:
            length = len(whole) if tokens == self.max_tokens else self._longest(whole, self.max_tokens)
            if length < len(whole) or place is None:
                return length, "token limit"
        return None if place is None else (place, "stop sequence")

    def _longest(self, text: str, most: int) -> int:
        """Returns the length of the longest beginning of a text that has at most so many tokens."""
        fits, over = 0, len(text)
        while over - fits > 1:
            middle = (fits + over) // 2
            if self.count(text[:middle]) <= most:
                fits = middle
            else:
                over = middle
        return fits

    def sendable(self, text: str) -> str:
        """Returns a text without what may turn out to be the beginning of a stop sequence at its end."""
        held = (size for stop in self.stops for size in range(1, len(stop)) if text.endswith(stop[:size]))
        return text[: len(text) - max(held, default=0)]


@dataclass(frozen=True)
class GenerationSettings:
    """How much is written and how many candidates each sentence gets. The defaults are those of the AliMark paper."""

    sentences: int = 12
    candidates: int = DEFAULT_CANDIDATES
    """How many candidates are sampled for a sentence: the most or, for soft keys and 32 candidates or more, the
    mean. Those keys sample three quarters as many where the best is good already, and up to three times as many elsewhere."""
    sampling: Sampling = field(default_factory=Sampling)
    wave: int | None = None
    """Candidates that are sampled together. Sampling stops at the wave in which a candidate meets the scheme's rule in full.
    By default the rule chooses: small waves where a full match is likely, all candidates at once where it is rare, because an
    engine is fastest with many at once. A soft decision has no full match."""
    prompt_style: PromptStyle = "continue"
    tokens: int | None = None  # the length in tokens instead of sentences, for schemes that mark tokens
    first_candidates: int | None = None
    """Candidates for the first sentence of a text, where a reader waits for it. Soft keys spend what is left of
    its share on the later sentences. By default the first sentence gets as many as the others."""
    steering: float = 0.0
    """How strongly the model is steered towards the key's blocks (docs/soft.md); 0 leaves it as it is."""

    def __post_init__(self) -> None:
        if not 1 <= self.sentences <= _MAX_SENTENCES:
            raise AlimarkError(f"sentences must lie between 1 and {_MAX_SENTENCES}, not {self.sentences}")
        if any(number is not None and number < 1 for number in (self.candidates, self.first_candidates, self.wave)):
            raise AlimarkError("candidates, first_candidates and wave must be at least 1")
        if not 0 <= self.steering <= MOST_STEERING:
            raise AlimarkError(f"steering must lie between 0 and {MOST_STEERING}, not {self.steering}")
        if self.tokens is not None and not 1 <= self.tokens <= _MAX_TOKENS:
            raise AlimarkError(f"tokens must lie between 1 and {_MAX_TOKENS}, not {self.tokens}")
        if self.prompt_style not in ("continue", "chat"):
            raise AlimarkError(f"prompt style must be `continue` or `chat`, not {self.prompt_style!r}")

    def to_dict(self) -> Record:
        """The settings for a record, without `tokens`, `steering` and others where they were not asked for."""
        content = asdict(self) | {"sampling": self.sampling.to_dict()}
        return {name: value for name, value in content.items()
                if value or name not in ("tokens", "first_candidates", "steering")}  # fmt: skip


class GenerateOptions(TypedDict, total=False):
    """The options of `generate`, which `Watermark.generate` explains."""

    sentences: int
    tokens: int | None
    candidates: int | None
    strength: Strength | None
    steering: float | None
    seed: int | None
    sampling: Sampling | None
    prompt_style: PromptStyle
    batch: int | None
    progress: Progress | Literal[False] | None
    payload: int | None
