"""What a rewriting is asked for: how a chat model is asked, how many rewrites, and how far the meaning may move."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypedDict

from alimark.core.keys.key import Key
from alimark.core.llm.base import Message, Sampling
from alimark.errors import AlimarkError

WAYS = (
    "Rewrite this sentence in completely different words.",
    "Rewrite this sentence with a different structure and in a different order, starting with another part of it.",
    "Rewrite this sentence in plain, everyday language.",
    "Rewrite this sentence in an elegant, formal style.",
)
"""Instructions for several requests. With a single one a small model repeats its answers."""

DEFAULT_REWRITES = 16
"""Rewrites of each sentence where no number is asked for. A generated sentence has more candidates; a rewrite costs more,
because a chat model reads the request before it answers."""

_RULES = "Keep all names, numbers and the meaning. Answer with one sentence only."
_FIXED = " Use these words in it: {}."
_CONTEXT = "Here is a passage of a text, for your information only:\n{before} {sentence} {after}"


def turns_for(
    sentence: str, way: str, fixed: Sequence[str] = (), before: str = "", after: str = ""
) -> tuple[Message, ...]:
    """The question to a chat model; the sentence is its last paragraph.

    `fixed`: words that must not change. `before` and `after`: the text around the sentence, where the model is shown it.
    """
    context = _CONTEXT.format(before=before, sentence=sentence, after=after) if before or after else ""
    parts = (context, f"{way} {_RULES}{_FIXED.format(', '.join(fixed)) if fixed else ''}", sentence)
    return (Message("user", "\n\n".join(part for part in parts if part)),)


# No repetition penalty: rewrites must repeat the names in the prompt. A high temperature makes them differ.
_SAMPLING = Sampling(temperature=1.0, top_p=0.95, repetition_penalty=1.0, max_tokens=160, may_end=True)


@dataclass(frozen=True)
class RewriteSettings:
    """How many rewrites each sentence gets, and how far the text may move in meaning.

    Closeness in meaning is the cosine of two sentences under the key's embedder.

    Example:
        >>> RewriteSettings(candidates=32, mean_closeness=0.85).waves
        2
        >>> RewriteSettings(closeness=2)
        Traceback (most recent call last):
        ...
        alimark.errors.AlimarkError: closeness is a cosine and lies between -1 and 1
    """

    candidates: int = DEFAULT_REWRITES
    """Rewrites of each sentence."""
    closeness: float = 0.62
    """The least cosine of a rewrite to its sentence."""
    mean_closeness: float = 0.81
    """The least mean cosine over all sentences of a text. Bits are given up where they cost the most meaning."""
    waves: int = 2
    """The number of rounds in which rewrites are requested. From the second round on the best rewrite so far is rewritten
    again. That finds more bits with as many rewrites, but every round takes a request's time."""
    context: bool = False
    """Whether the model is shown the sentences around. This helps a large model; a small one mixes them into the rewrite."""
    sampling: Sampling = _SAMPLING

    def __post_init__(self) -> None:
        if self.candidates < 1:
            raise AlimarkError("candidates must be at least 1")
        if not 1 <= self.waves <= len(WAYS):
            raise AlimarkError(
                f"waves must lie between 1 and {len(WAYS)}, the number of prompts that ask for a rewrite"
            )
        if not (-1 <= self.closeness <= 1 and -1 <= self.mean_closeness <= 1):
            raise AlimarkError("closeness is a cosine and lies between -1 and 1")

    @property
    def waves_of_ways(self) -> list[list[tuple[int, int]]]:
        """For each wave the instructions to use, by number, and how many rewrites are requested with each."""
        shares = list(enumerate(_shares(self.candidates, len(WAYS))))
        sizes = _shares(len(shares), self.waves)
        starts = [sum(sizes[:i]) for i in range(len(sizes))]
        return [shares[start : start + size] for start, size in zip(starts, sizes, strict=True)]

    @property
    def asks_a_wave(self) -> int:
        """Requests for each sentence in the first wave."""
        return len(self.waves_of_ways[0])


class RewriteOptions(TypedDict, total=False):
    """The fields of `RewriteSettings` as keyword arguments of `AliMark.rewrite`."""

    candidates: int
    closeness: float
    mean_closeness: float
    waves: int
    context: bool
    sampling: Sampling


def _shares(count: int, parts: int) -> list[int]:
    """Divides `count` into at most `parts` numbers that differ by at most one."""
    return [share for i in range(parts) if (share := (count + parts - 1 - i) // parts)]


@dataclass(frozen=True)
class Original:
    """One of several texts to rewrite, with its seed, and with its key where that is not the key of the whole run."""

    text: str
    seed: int | None = None
    key: Key | None = None
