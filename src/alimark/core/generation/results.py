"""What a generation gives: each sentence as it is chosen, and the finished text with its cost."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from alimark.core.generation.settings import Ended, GenerationSettings

if TYPE_CHECKING:
    from alimark.core._util.jsonl import Record


@dataclass(frozen=True)
class MarkedSentence:
    """A sentence that was just chosen, as `progress` is called with it.

    Example:
        >>> from alimark import AliMark, Key
        >>> from alimark.testing import StandInEmbedder, StandInLLM
        >>> embedder = StandInEmbedder()
        >>> key = Key.generate(embedder=embedder, secret=bytes(range(32)))
        >>> pieces = []
        >>> generation = AliMark(key, embedder=embedder).generate(
        ...     "It was late.", StandInLLM(), sentences=2, candidates=4, seed=1,
        ...     progress=lambda sentence: pieces.append(sentence.piece),
        ... )
        >>> "".join(pieces) == generation.text
        True
    """

    number: int
    """The number of the sentence in its text, from 1 on."""
    unit: str
    """The sentence as it is embedded, on one line and cleaned."""
    piece: str
    """What was added to the text since the sentence before: the sentence, and the white space and code before it."""
    matches: int
    """How much of the mark it carries, as in `Generation.matches`."""
    candidates: int
    tokens: int
    """Candidates and tokens sampled so far, for all sentences."""


Progress = Callable[[MarkedSentence], None]


@dataclass(frozen=True, kw_only=True, repr=False)
class WrittenText:
    """What generated and rewritten texts have in common: the text, its key, and what it cost."""

    text: str
    block_size: int  # the most that a sentence can match
    key_id: str
    scheme: str
    llm: str
    seed: int
    candidates: int  # candidates, or rewrites, sampled over all sentences
    tokens: int  # tokens sampled, over all candidates
    embedded: int
    """Candidates embedded. Flawed candidates are not embedded, and a sentence that is drawn twice is embedded once."""
    rejected: dict[str, int]  # candidates that could not be chosen, by reason
    surviving: int  # sentences that are found again when the finished text is split
    seconds: float
    """This text's share of the time spent on the texts that were written with it; of a rewriting, the time to its end."""
    limits: tuple[str, ...] = ()  # settings that the model could not follow, in words
    payload: int | None = None  # the number that the mark carries; None where the key has no payloads

    def __repr__(self) -> str:
        """One line; the fields are in `vars(result)`."""
        start = " ".join(self.text[:80].split())
        key = f"key {self.key_id}" if self.key_id else "unmarked"
        return f"{type(self).__name__}({start[:40] + '...'!r}, {len(self.text):,} characters, {key}, {self.tokens:,} tokens)"

    @property
    def _payload(self) -> Record:
        return {} if self.payload is None else {"payload": self.payload}

    def _record(
        self, record_id: str, settings: Record, text: Record, mark: Record, end: Record, cost: Record
    ) -> Record:
        """The record of a text: the common fields, and the given ones of its text, its mark, its end and its cost."""
        limits = {"limits": list(self.limits)} if self.limits else {}
        return {
            "id": record_id,
            **text,
            "scheme": self.scheme,
            **({"key_id": self.key_id} if self.key_id else {}),
            **mark,
            "settings": settings | {"llm": self.llm, "block_size": self.block_size} | limits,
            "seed": self.seed,
            "surviving": self.surviving,
            **end,
            "cost": {
                "candidates": self.candidates,
                "tokens": self.tokens,
                **cost,
                "embedded": self.embedded,
                "rejected": self.rejected,
                "seconds": round(self.seconds, 3),
            },
        }


@dataclass(frozen=True, kw_only=True, repr=False)
class Generation(WrittenText):
    """A text, how well it carries the key, and what it cost. Unmarked text has no key and no matches.

    Example:
        >>> from alimark import AliMark, Key
        >>> from alimark.testing import StandInEmbedder, StandInLLM
        >>> embedder = StandInEmbedder()
        >>> key = Key.generate(embedder=embedder, secret=bytes(range(32)))
        >>> mark = AliMark(key, embedder=embedder)
        >>> generation = mark.generate("It was late.", StandInLLM(), sentences=3, candidates=8, seed=1)
        >>> generation.ended, len(generation.sentences), generation.candidates
        ('complete', 3, 24)
        >>> max(generation.matches) <= generation.block_size
        True
        >>> sorted(generation.record("story-1"))[:5]
        ['cost', 'ended', 'id', 'key_id', 'matches']
    """

    prompt: str
    sentences: tuple[str, ...]
    matches: tuple[int, ...]
    """How much each sentence carries: bits of its block (AliMark), channels (PMark, SAMark), or 1 where it meets the rule."""
    settings: GenerationSettings
    waves: int
    """Requests to the model."""
    ended: Ended
    elapsed: float
    """Seconds from the text's first request to its end."""
    unmet: int | None = None
    """Sentences for which no candidate met the rule, so that the best was taken. None where the rule does not require it."""

    @property
    def marked(self) -> bool:
        """Whether the text was written under a key."""
        return bool(self.key_id)

    def record(self, record_id: str) -> Record:
        """The generation as one record of a JSONL file, with the given `id`."""
        matches = {"matches": list(self.matches)} if self.marked else {}
        unmet = {} if self.unmet is None else {"unmet": self.unmet}
        text = {"prompt": self.prompt, "text": self.text, "sentences": list(self.sentences)}
        mark = matches | unmet | self._payload
        end = {"ended": self.ended}
        record = self._record(record_id, self.settings.to_dict(), text, mark, end, {"waves": self.waves})
        record["cost"]["elapsed"] = round(self.elapsed, 3)
        return record
