"""What a rewriting is asked for: how the chat model is put the question, with which settings; and what comes of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from alimark.errors import AlimarkError
from alimark.keys.key import Key
from alimark.llm.base import Message, Sampling

Outcome = Literal["rewritten", "best as it was", "no rewrite fits", "too short", "heading"]
"""What became of a sentence. The last three were left alone."""

WAYS = (
    "Rewrite this sentence in completely different words.",
    "Rewrite this sentence with a different structure and in a different order, starting with another part of it.",
    "Rewrite this sentence in plain, everyday language.",
    "Rewrite this sentence in an elegant, formal style.",
)
"""One instruction for each of several requests: a single one makes a small model say the same again and again."""

_RULES = "Keep all names, numbers and the meaning. Answer with one sentence only."
_FIXED = " Use these words in it: {}."
_CONTEXT = "Here is a passage of a text, for your information only:\n{before} {sentence} {after}"


def turns_for(
    sentence: str, way: str, fixed: Sequence[str] = (), before: str = "", after: str = ""
) -> tuple[Message, ...]:
    """What a model is asked; the sentence is the last paragraph.

    `fixed`: what of it must stay to the letter. `before` and `after`: what the model may know of the text.
    """
    context = _CONTEXT.format(before=before, sentence=sentence, after=after) if before or after else ""
    parts = (context, f"{way} {_RULES}{_FIXED.format(', '.join(fixed)) if fixed else ''}", sentence)
    return (Message("user", "\n\n".join(part for part in parts if part)),)


def _chat_sampling() -> Sampling:
    # Rewrites must differ from each other, and must repeat the names in the prompt, which a penalty would keep them from.
    return Sampling(temperature=1.0, top_p=0.95, repetition_penalty=1.0, max_tokens=160, may_end=True)


@dataclass(frozen=True)
class RewriteSettings:
    """How many rewrites each sentence gets, and how far from it the text may move in meaning.

    Meaning is measured as the cosine of two sentences under the key's embedder.
    """

    candidates: int = 16
    closeness: float = 0.62
    """The least cosine of a rewrite to its sentence."""
    mean_closeness: float = 0.81
    """The least mean over a text's sentences: bits are given up where they cost the most meaning."""
    waves: int = 2
    """In how many rounds the rewrites are asked for. From the second on what carries most so far is rewritten again, which
    finds more bits for as many rewrites; but texts wait for their rounds."""
    context: bool = False
    """Whether the model is shown the sentences around. That helps a large model; a small one mixes them into the rewrite."""
    sampling: Sampling = field(default_factory=_chat_sampling)

    def __post_init__(self) -> None:
        if self.candidates < 1:
            raise AlimarkError("candidates must be at least 1")
        if not 1 <= self.waves <= len(WAYS):
            raise AlimarkError(f"waves must lie between 1 and {len(WAYS)}, which is how many ways there are to ask")
        if not (-1 <= self.closeness <= 1 and -1 <= self.mean_closeness <= 1):
            raise AlimarkError("closeness is a cosine and lies between -1 and 1")

    @property
    def waves_of_ways(self) -> list[list[tuple[int, int]]]:
        """Of each wave the ways to ask, by number, and how many rewrites are asked for in each."""
        shares = list(enumerate(_shares(self.candidates, len(WAYS))))
        sizes = _shares(len(shares), self.waves)
        starts = [sum(sizes[:i]) for i in range(len(sizes))]
        return [shares[start : start + size] for start, size in zip(starts, sizes, strict=True)]

    @property
    def asks_a_wave(self) -> int:
        return len(self.waves_of_ways[0])


def _shares(count: int, parts: int) -> list[int]:
    """`count` in at most `parts` parts that differ by at most one."""
    return [share for i in range(parts) if (share := (count + parts - 1 - i) // parts)]


@dataclass(frozen=True)
class Original:
    """One of many texts: from which seed it is rewritten, and under which key where it is not the run's."""

    text: str
    seed: int | None = None
    key: Key | None = None


@dataclass(frozen=True)
class RewrittenSentence:
    """One sentence before and after; `rewrites` is the number of different ones it could be chosen from."""

    number: int
    before: str
    after: str
    matches_before: int
    matches: int
    cosine: float
    rewrites: int
    outcome: Outcome


@dataclass(frozen=True)
class Rewriting:
    """A text that was marked by rewriting it, how well it carries the key, how far it moved, and what it cost."""

    text: str
    original: str
    rewritten: tuple[RewrittenSentence, ...]
    block_size: int
    key_id: str
    llm: str
    settings: RewriteSettings
    seed: int
    candidates: int
    tokens: int
    embedded: int
    rejected: dict[str, int]
    """Rewrites that could not be chosen, by reason."""
    surviving: int
    """Sentences that splitting the finished text finds again."""
    seconds: float
    """From the text's first request to its end; several texts may have shared that time."""
    limits: tuple[str, ...] = ()
    """What of the settings the model could not honour."""

    @property
    def sentences(self) -> tuple[str, ...]:
        return tuple(one.after for one in self.rewritten)

    @property
    def matches(self) -> tuple[int, ...]:
        """Bits of each sentence's block that the sentence carries now."""
        return tuple(one.matches for one in self.rewritten)

    @property
    def cosines(self) -> tuple[float, ...]:
        """Each sentence's closeness in meaning to what it was."""
        return tuple(one.cosine for one in self.rewritten)

    @property
    def left_alone(self) -> tuple[int, ...]:
        """The numbers of sentences that had no choice."""
        return tuple(one.number for one in self.rewritten if one.outcome not in ("rewritten", "best as it was"))

    def record(self, record_id: str) -> dict[str, Any]:
        """As one line of JSONL."""
        limits = {"limits": list(self.limits)} if self.limits else {}
        return {
            "id": record_id,
            "text": self.text,
            "original": self.original,
            "sentences": list(self.sentences),
            "scheme": "alimark",
            "key_id": self.key_id,
            "matches": list(self.matches),
            "matches_before": [one.matches_before for one in self.rewritten],
            "cosines": [round(cosine, 4) for cosine in self.cosines],
            "outcomes": [one.outcome for one in self.rewritten],
            "settings": asdict(self.settings) | {"llm": self.llm, "block_size": self.block_size} | limits,
            "seed": self.seed,
            "surviving": self.surviving,
            "cost": {
                "candidates": self.candidates,
                "tokens": self.tokens,
                "embedded": self.embedded,
                "rejected": self.rejected,
                "seconds": round(self.seconds, 3),
            },
        }
