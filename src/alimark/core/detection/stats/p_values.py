"""P-values from random keys, and the estimate of their tail."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np

from alimark.core._util.arrays import Floats
from alimark.errors import AlimarkError

DEFAULT_DRAWS = 1000
MAX_DRAWS = 10_000_000


@dataclass(frozen=True, kw_only=True)
class RandomKeys:
    """The random keys behind a p-value: the detection settings that every scheme has."""

    draws: int = DEFAULT_DRAWS  # the number of random keys behind the p-value
    stop_after: int | None = None
    """Stop drawing when so many random keys have scored as high (Besag and Clifford)."""
    tail: bool = False  # also estimate p-values below 1 / draws from a fitted tail

    def __post_init__(self) -> None:
        if self.draws < 1 or (self.stop_after is not None and self.stop_after < 1):
            raise AlimarkError("draws and stop_after must be at least 1")


NullScores = Callable[[int, int], Floats]  # the scores of random keys number `first` to `first + count - 1`


@dataclass(frozen=True)
class Significance:
    """Where the score of a text's key lies among the scores that random keys give to the same text."""

    p_value: float
    draws: int
    above: int  # the number of random keys that scored higher
    ties: int  # the number of random keys that scored the same, which is common with hard bits
    mean: float
    std: float
    stopped_early: bool
    tail: float | None = None
    """An estimate below 1 / draws from a fitted tail, where the settings ask for it; not an upper bound."""
    scores: Floats = field(default_factory=lambda: np.empty(0), repr=False, compare=False)
    searches: int = 1  # the number of searches of which this is the best; the p-values are multiplied by it

    def corrected(self, searches: int) -> Significance:
        """The same as the best of several searches: every p-value is multiplied by their number (Bonferroni)."""
        tail = None if self.tail is None else min(1.0, searches * self.tail)
        return replace(self, p_value=min(1.0, searches * self.p_value), tail=tail, searches=searches)

    def p_value_of(self, raw: float) -> float:
        """The p-value of another score of the same search, such as that of a further passage."""
        return min(1.0, self.searches * (1 + int((self.scores >= raw).sum())) / (self.draws + 1))

    def randomised(self, u: float) -> float:
        """The p-value with ties broken by `u`, uniform on (0, 1].

        For unmarked text it is exactly uniform, whereas `p_value` is never too small and may be too large. Where the drawing
        stopped early, ties are not counted in full, and `p_value` itself is returned.
        """
        if self.stopped_early:
            return self.p_value
        return min(1.0, self.searches * (self.above + u * (self.ties + 1)) / (self.draws + 1))


def draws_for(fpr: float, least: int = DEFAULT_DRAWS) -> int:
    """The number of random keys that resolves a false-positive rate: ten expected above the threshold."""
    if not 0 < fpr < 1:
        raise AlimarkError(f"a false-positive rate lies between 0 and 1, not at {fpr}")
    draws = max(least, math.ceil(10 / fpr))
    if draws > MAX_DRAWS:
        raise AlimarkError(
            f"a false-positive rate of {fpr:g} needs {draws:,} random keys, more than {MAX_DRAWS:,}; "
            "use 1e-6 or more, and the tail estimate below that"
        )
    return draws


def draws_for_keys(draws: int, keys: int) -> int:
    """The number of random keys that resolves a p-value corrected for `keys` keys: a fifth of `draws` for each of them."""
    return min(MAX_DRAWS, max(draws, draws * keys // 5))


def significance_of(raw: float, null_scores: NullScores, settings: RandomKeys) -> Significance:
    """The random-key p-value of the score `raw`.

    With all `draws` it is (1 + number as high) / (draws + 1). With `stop_after` = h the drawing ends at the h-th key that
    scores as high, after n draws, and the p-value is h / n (Besag and Clifford): little work for unmarked texts.
    """
    draws, stop_after, stopped = settings.draws, settings.stop_after, False
    batches: list[Floats] = []
    high = drawn = 0
    while drawn < draws and not stopped:
        batch = null_scores(drawn, min(max(2 * (stop_after or 65536), drawn), 65536, draws - drawn))
        as_high = np.flatnonzero(batch >= raw)
        if stop_after is not None and high + len(as_high) >= stop_after:
            batch, stopped = batch[: as_high[stop_after - high - 1] + 1], True
        high, drawn = high + len(as_high), drawn + len(batch)
        batches.append(batch)
    scores = np.concatenate(batches)
    p_value = (stop_after or 1) / drawn if stopped else (1 + high) / (draws + 1)
    above, ties = int((scores > raw).sum()), int((scores == raw).sum())
    estimate = tail_estimate(raw, scores) if settings.tail and not stopped and above + ties < 10 else None
    estimate = None if estimate is None else min(estimate, p_value)
    return Significance(
        p_value, drawn, above, ties, float(scores.mean()), float(scores.std()), stopped, estimate, scores
    )


def tail_estimate(raw: float, scores: Floats, share: float = 0.01) -> float | None:
    """P(null >= raw) from a generalised Pareto tail fitted to the highest `share` of the scores, at least 50 of them.

    The tail is fitted by probability-weighted moments (Hosking and Wallis 1987). None where too few scores are distinct.
    """
    count = max(50, int(len(scores) * share))
    ordered = np.sort(scores)
    if len(scores) < 4 * count:
        return None
    threshold = ordered[-count - 1]
    excess = ordered[-count:] - threshold
    first = float(excess.mean())
    second = float((excess * (1 - (np.arange(1, count + 1) - 0.35) / count)).mean())
    if first <= 0 or first <= 2 * second:
        return None
    shape = 2 - first / (first - 2 * second)
    scale = 2 * first * second / (first - 2 * second)
    # A negative shape means that scores are bounded, which would call a higher score impossible; an exponential tail
    # gives a larger p-value.
    shape = max(shape, 0.0)
    over = (raw - threshold) / scale
    if over <= 0:
        return None
    beyond = math.exp(-over) if shape < 1e-6 else (1 + shape * over) ** (-1 / shape)
    return count / len(scores) * beyond
