"""AliMark's selection rules: which candidate becomes the next sentence, and how many are sampled."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from alimark.core._util.arrays import Floats
from alimark.core.generation.selection import Weight
from alimark.core.keys.key import Key
from alimark.core.keys.projection import carried, in_table, project, targets

if TYPE_CHECKING:
    from alimark.core.generation.selection import TextOrigin
    from alimark.core.generation.settings import GenerationSettings

# With this threshold sentences get the mean number of candidates that was asked for, whatever the number (found by simulation).
_GAIN_THRESHOLD = 0.52
_MOST = 3  # times the mean number of candidates
_LEAST_MEAN = 32


class BlockRule:
    """AliMark's selection rule: takes the sentence whose projections agree best with its block.

    Hard keys: the first candidate that matches all bits is taken, or else a random one of those that match the most. Since
    draws are independent, the first full match is distributed like a random one of all full matches. Soft keys: all
    candidates are sampled, and the one with the largest projection on the block's direction is taken. `AdaptiveBlockRule`
    decides how many that are.
    """

    embeds, strict = True, False

    def __init__(self, key: Key, settings: GenerationSettings, origin: TextOrigin) -> None:
        """`origin` decides which block the first sentence gets."""
        self.key, self.scheme, self.size, self.stops = key, key.scheme, key.block_size, not key.soft
        self._sentences, self._origin = settings.sentences, origin
        self._done = 0

    @cached_property
    def _targets(self) -> Floats:
        # The prompt may have to be split, so the threads that write do it when the first sentence is chosen.
        origin = self._origin
        follows = self.key.follows_conversation
        start = self.key.start(origin.first_message, origin.written) if follows else self.key.start(origin.id)
        return targets(self.key, self._sentences, start)

    def wave(self, settings: GenerationSettings) -> int:
        if self.key.soft:
            return settings.wave or settings.candidates
        # One draw in 2**M is a full match by chance. With waves of a quarter of that, sampling can stop early.
        return settings.wave or max(16, min(64, 2 ** min(self.size, 10) // 4))

    def see(self, vectors: NDArray[np.float32]) -> Floats:
        return project(vectors, self.key)

    def weigh(self, seen: Floats) -> Sequence[Weight]:
        carries = carried(seen, self._targets[self._done], self.key)
        return [Weight(carry.bits, carry.worth, carry.bits == self.size) for carry in carries]

    def chose(self, seen: Floats) -> None:
        self._done += 1

    def direction(self) -> Floats:
        """The direction of the next sentence's block, in the coordinates of the table of the key's embedder."""
        return in_table(self.key, self._targets[self._done])


class AdaptiveBlockRule(BlockRule):
    """The rule of soft keys and many candidates: samples until another candidate promises too little.

    Candidates are sampled in waves of three quarters of the mean number. After a wave the worths of the candidates so far,
    taken to be normal, give the expected gain of one more candidate over the best. Sampling ends where this gain is below a
    threshold, which is the same for all sentences of a text, so that candidates go where they raise the mark most. The
    threshold is proportional to the mean spread of the candidates' worths in this text, which depends on the model. What a
    sentence may take beyond the mean number is what earlier sentences of the text have left, and once that number more.
    """

    def __init__(self, key: Key, settings: GenerationSettings, origin: TextOrigin) -> None:
        super().__init__(key, settings, origin)
        self._threshold = _GAIN_THRESHOLD / settings.candidates
        self._least = settings.candidates // 4  # a third of a wave: from fewer worths their spread is not known well
        self._spreads: list[float] = []  # of the candidates' worths, for each sentence so far
        self._spread = 0.0

    @staticmethod
    def pays(key: Key, settings: GenerationSettings) -> bool:
        """Whether texts of these settings are chosen so. From few candidates the spread of their worths is not known well."""
        return key.soft and settings.candidates >= _LEAST_MEAN

    def wave(self, settings: GenerationSettings) -> int:
        return settings.wave or settings.candidates * 3 // 4

    def most(self, settings: GenerationSettings, spent: int) -> int:
        mean = settings.candidates
        # Where worths have shorter tails than a normal distribution, the gain is overestimated: each sentence took the most.
        return min(_MOST * mean, max(mean, mean * (self._done + 2) - spent))

    def enough(self, worths: Sequence[float]) -> bool:
        if len(worths) < self._least:
            return False
        self._spread = float(np.std(worths))
        above = max(worths) - float(np.mean(worths))
        return expected_gain(above, self._spread) <= self._threshold * float(np.mean([*self._spreads, self._spread]))

    def chose(self, seen: Floats) -> None:
        super().chose(seen)
        if self._spread:  # it is not estimated for a first sentence of few candidates
            self._spreads.append(self._spread)


def expected_gain(above: float, spread: float) -> float:
    """How much another draw of a normal distribution is expected to exceed the best draw so far; a draw below it counts as 0.

    The best draw lies `above` the mean of the distribution, whose standard deviation is `spread`.
    """
    if spread <= 0:
        return 0.0
    z = above / spread
    return spread * (math.exp(-z * z / 2) / math.sqrt(2 * math.pi) - z * math.erfc(z / math.sqrt(2)) / 2)
