"""What the service has learned from the texts it wrote of late: how fast it writes, and how well sentences fit the key."""

import math
from collections import deque
from statistics import NormalDist

from alimark.core.detection.stats.power import LONGEST_NEEDED, TYPICAL_WORTH, SentencesNeeded, typical_agreement
from alimark.core.generation.api import Generation
from alimark.core.generation.settings import DEFAULT_CANDIDATES, STEERED, STRENGTHS
from alimark.core.keys.key import Key

_TEXTS = 20
"""Texts whose times are remembered."""
_PRIOR = 40
"""As many sentences as the expectation from the strength counts; each sentence that was written counts as one."""
_KEPT = 0.98
"""What counts of earlier texts after another one."""


class Pace:
    """Learns from finished texts. Every method may be called by several threads."""

    def __init__(self) -> None:
        self._seconds: deque[float] = deque(maxlen=_TEXTS)
        self._fits: dict[str, tuple[float, float]] = {}  # by key: agreeing bits and all bits
        self._expected: dict[str, float] = {}

    @property
    def seconds(self) -> float:
        """The seconds of a sentence in the fastest of the last texts; 0 before the first."""
        return min(self._seconds, default=0.0)

    def note(self, key: Key, generation: Generation) -> None:
        """Takes note of a finished text."""
        if not (count := len(generation.matches)):
            return
        self._seconds.append(generation.seconds / count)
        settings = generation.settings
        self._expected[key.id] = expected_agreement(key, settings.candidates, settings.steering)
        agreeing, bits = self._fits.get(key.id, (0.0, 0.0))
        self._fits[key.id] = (_KEPT * agreeing + sum(generation.matches), _KEPT * bits + count * generation.block_size)

    def sentences_needed(self, key: Key, fpr: float) -> int | None:
        """The sentences from which on a mark is found nine times in ten; None where more than 40 would be needed."""
        needed, usual = SentencesNeeded.of(key)(fpr), _agreement(key)
        prior = _PRIOR * key.block_size
        agreeing, bits = self._fits.get(key.id, (0.0, 0.0))
        share = (agreeing + prior * self._expected.get(key.id, usual)) / (bits + prior)
        if needed is None or share <= 0.5:
            return None
        # The evidence of a sentence grows with the square of what its bits agree more than by chance.
        needed = math.ceil(needed * ((usual - 0.5) / (share - 0.5)) ** 2 - 1e-9)
        return needed if needed <= LONGEST_NEEDED else None


def _agreement(key: Key) -> float:
    """The share of a block's bits that agree in text of the standard strength."""
    if key.soft:
        return NormalDist().cdf(TYPICAL_WORTH / math.sqrt(key.block_size))
    return typical_agreement(key.block_size)


def expected_agreement(key: Key, candidates: int, steering: float) -> float:
    """The share of bits that agree with so many candidates, as far as one knows without having seen the model's sentences."""
    alike = next(
        (STRENGTHS[name] for name, steered in STEERED.items() if steered == (candidates, steering)), candidates
    )
    # The expected best of independent candidates; a third of the candidates are (`stats.power`).
    best, usual = (
        NormalDist().inv_cdf((independent - 0.375) / (independent + 0.25))
        for independent in (max(1.2, number * 0.32) for number in (alike, DEFAULT_CANDIDATES))
    )
    return 0.5 + (_agreement(key) - 0.5) * best / usual
