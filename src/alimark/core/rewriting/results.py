"""What a rewriting gives: each sentence before and after, and the finished text with its cost."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Literal

from alimark.core.generation.results import WrittenText
from alimark.core.rewriting.settings import RewriteSettings

if TYPE_CHECKING:
    from alimark.core._util.jsonl import Record

Outcome = Literal["rewritten", "best as it was", "no rewrite fits", "too short", "heading"]
"""What happened to a sentence. The last three were left alone."""


@dataclass(frozen=True)
class RewrittenSentence:
    """One sentence before and after the rewriting.

    Attributes:
        number: The number of the sentence in its text, from 1 on.
        before: The sentence as it was.
        after: The sentence as it is now.
        matches_before: Bits of its block that the sentence carried before, by chance.
        matches: Bits of its block that it carries now.
        cosine: How close it is in meaning to what it was, under the key's embedder.
        rewrites: How many different rewrites it could be chosen from.
        outcome: What happened to it.

    Example:
        >>> sentence = RewrittenSentence(1, "He sold it.", "It was sold by him.", 4, 7, 0.83, 12, "rewritten")
        >>> sentence.matches - sentence.matches_before
        3
    """

    number: int
    before: str
    after: str
    matches_before: int
    matches: int
    cosine: float
    rewrites: int
    outcome: Outcome


@dataclass(frozen=True, kw_only=True, repr=False)
class Rewriting(WrittenText):
    """A text that was marked by rewriting it, how well it carries the key, how far its meaning moved, and what it cost.

    Example:
        >>> from alimark import AliMark, Key
        >>> from alimark.testing import StandInEmbedder, StandInLLM
        >>> embedder = StandInEmbedder()
        >>> mark = AliMark(Key.generate(embedder=embedder, secret=bytes(range(32))), embedder=embedder)
        >>> text = "The old sailor sold his boat to a young doctor. Nobody had expected it of him."
        >>> rewriting = mark.rewrite(text, StandInLLM(), seed=1, candidates=4)
        >>> rewriting.text == text, rewriting.left_alone, rewriting.cosines
        (True, (1, 2), (1.0, 1.0))
        >>> rewriting.record("article-1")["outcomes"]
        ['no rewrite fits', 'no rewrite fits']
    """

    original: str
    rewritten: tuple[RewrittenSentence, ...]
    settings: RewriteSettings

    @property
    def sentences(self) -> tuple[str, ...]:
        """The sentences of the marked text."""
        return tuple(sentence.after for sentence in self.rewritten)

    @property
    def matches(self) -> tuple[int, ...]:
        """Bits of each sentence's block that the sentence carries now."""
        return tuple(sentence.matches for sentence in self.rewritten)

    @property
    def cosines(self) -> tuple[float, ...]:
        """Each sentence's closeness in meaning to what it was."""
        return tuple(sentence.cosine for sentence in self.rewritten)

    @property
    def left_alone(self) -> tuple[int, ...]:
        """The numbers of the sentences for which there was no rewrite to choose."""
        chosen = ("rewritten", "best as it was")
        return tuple(sentence.number for sentence in self.rewritten if sentence.outcome not in chosen)

    def moved_most(self, count: int = 3) -> list[RewrittenSentence]:
        """The rewritten sentences whose meaning moved most, the furthest first: `count` to read before publishing."""
        rewritten = [sentence for sentence in self.rewritten if sentence.outcome == "rewritten"]
        return sorted(rewritten, key=lambda sentence: sentence.cosine)[:count]

    def record(self, record_id: str) -> Record:
        """The rewriting as one record of a JSONL file, with the given `id`."""
        mark = self._payload | {
            "matches": list(self.matches),
            "matches_before": [sentence.matches_before for sentence in self.rewritten],
            "cosines": [round(cosine, 4) for cosine in self.cosines],
            "outcomes": [sentence.outcome for sentence in self.rewritten],
        }
        text = {"text": self.text, "original": self.original, "sentences": list(self.sentences)}
        settings = asdict(self.settings) | {"sampling": self.settings.sampling.to_dict()}
        return self._record(record_id, settings, text, mark, {}, {})
