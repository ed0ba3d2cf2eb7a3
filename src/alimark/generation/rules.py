"""What a scheme adds to the loop that writes: how well a candidate meets it, when sampling may stop, which one is taken."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from alimark._util.arrays import Floats
from alimark.keys.key import Key
from alimark.keys.projection import carried, project, targets

if TYPE_CHECKING:
    from alimark.generation.session import GenerationSettings


class Weight(NamedTuple):
    """How well a candidate meets the rule."""

    matches: int
    """What it carries, of `Rule.size`."""
    worth: float
    """What selection goes by: the most is taken, a random one of several."""
    met: bool
    """Whether nothing better need be looked for."""


class Rule(Protocol):
    """The rule of one text under one key. It knows the sentences that were chosen before, never the prompt."""

    scheme: str
    size: int
    """The most that a sentence can match."""
    embeds: bool
    """Whether candidates are to be embedded."""
    stops: bool
    """Whether the first draw that meets the rule is taken, so that no more are sampled; else all are, and the best is."""
    strict: bool
    """Whether a sentence that does not meet the rule is a failure, to be counted and told."""

    def wave(self, settings: GenerationSettings) -> int:
        """Candidates worth sampling together."""
        ...

    def see(self, vectors: NDArray[np.float32]) -> Floats:
        """What the rule keeps of embeddings, a row each."""
        ...

    def weigh(self, seen: Floats) -> Sequence[Weight]:
        """Of all candidates so far for the sentence to come, in draw order; a sentence drawn twice is there twice."""
        ...

    def chose(self, seen: Floats) -> None:
        """The sentence that was taken."""
        ...


def rule_for(key: Key | None, settings: GenerationSettings, own: str = "") -> Rule:
    """The rule of the scheme that a key names; without a key the text is unmarked.

    `own`: what tells the text from all others under the key, so that where it begins is a secret of its own.
    """
    if key is None:
        return Unmarked()
    from alimark.schemes.registry import aligns, sentence_rule

    if aligns(key.scheme):
        return BlockRule(key, settings.sentences, key.start(own))
    return sentence_rule(key)


class Unmarked:
    """Plain text: the first good draw is taken."""

    scheme, size, embeds, stops, strict = "unmarked", 0, False, True, False

    def wave(self, settings: GenerationSettings) -> int:
        return 1

    def see(self, vectors: NDArray[np.float32]) -> Floats:
        return np.empty((len(vectors), 0))

    def weigh(self, seen: Floats) -> Sequence[Weight]:
        return [Weight(0, 0.0, True)] * len(seen)

    def chose(self, seen: Floats) -> None:
        pass


class BlockRule:
    """AliMark's: the sentence whose projections agree best with its block.

    Hard: draws are independent, so the first full match in draw order is distributed like a random one among all full matches;
    without one, a random draw among the best is taken. Soft: there is no full match, and the draw that lies furthest along
    the block's direction is taken.
    """

    scheme, embeds, strict = "alimark", True, False

    def __init__(self, key: Key, sentences: int, start: int = 0) -> None:
        self.key, self.size, self.stops = key, key.block_size, not key.soft
        self._targets = targets(key, sentences, start)
        self._done = 0

    def wave(self, settings: GenerationSettings) -> int:
        if self.key.soft:
            return settings.wave or settings.candidates
        # One draw in 2**M matches in full by chance; a quarter of that many leaves most texts a wave to save.
        return settings.wave or max(16, min(64, 2 ** min(self.size, 10) // 4))

    def see(self, vectors: NDArray[np.float32]) -> Floats:
        return project(vectors, self.key)

    def weigh(self, seen: Floats) -> Sequence[Weight]:
        found = carried(seen, self._targets[self._done], self.key)
        return [Weight(one.bits, one.worth, one.bits == self.size) for one in found]

    def chose(self, seen: Floats) -> None:
        self._done += 1
