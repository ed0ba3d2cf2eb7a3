"""How well a detector separates marked from human texts: AUROC, TPR and means with their confidence intervals.

A higher score means that a text is more likely to be marked. The intervals of rates come from the Bayesian bootstrap, which
gives the texts random weights. To each sample we add one unseen text with the best or the worst possible score. For a share of
hits this is exactly the Clopper-Pearson interval. It therefore has the right coverage at 0% and 100% as well, where a plain
bootstrap gives an interval of width zero.
"""

import math
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.random import Generator
from numpy.typing import ArrayLike, NDArray

from alimark.core._util.arrays import Floats
from alimark.core._util.jsonl import Record

LEVEL = 0.95
_TAIL = (1 - LEVEL) / 2
DRAWS = 2000
TAIL = 10  # the fewest human scores from which the scale of the tail is estimated


Statistic = Literal["score", "z", "p"]

TITLES: dict[str, str] = {
    "z": "the method's own z",
    "score": "the score standardised by random keys",
    "p": "-log10 of the p-value by random keys",
}
"""What each statistic is, for the notes of tables."""


def ranked_by(records: Iterable[Record], wanted: Statistic) -> Statistic:
    """The statistic that all of some detections have: the wanted one, or the score where one of them has no z.

    Human and marked texts that are compared with each other are given together, so that both are ranked by the same.
    """
    return "score" if wanted == "z" and any(record.get("z") is None for record in records) else wanted


def statistic_of(record: Record, statistic: Statistic) -> float:
    """The value of the statistic of a detection, higher for a stronger mark.

    Of a p-value it is the negative decimal logarithm. Equal p-values give equal numbers, so that a threshold never divides
    texts that random keys cannot tell apart.
    """
    return -math.log10(float(record["p_value"])) if statistic == "p" else float(record[statistic])


@dataclass(frozen=True)
class Estimate:
    """A figure of `count` texts with its interval."""

    value: float
    low: float
    high: float
    count: int


def roc(marked: ArrayLike, human: ArrayLike) -> tuple[Floats, Floats]:
    """False-positive and true-positive rates at falling thresholds: the corners of the ROC curve."""
    from sklearn.metrics import roc_curve

    positive, negative = _finite(marked, "marked scores"), _finite(human, "human scores")
    false, true, _ = roc_curve(np.repeat([1, 0], [len(positive), len(negative)]), np.concatenate([positive, negative]))
    return false, true


def auroc(marked: ArrayLike, human: ArrayLike) -> float:
    """The share of pairs in which the marked text scores higher than the human one; ties count half."""
    positive, negative = _finite(marked, "marked scores"), np.sort(_finite(human, "human scores"))
    below = np.searchsorted(negative, positive, "left") + np.searchsorted(negative, positive, "right")
    return float(below.sum() / (2 * len(positive) * len(negative)))


def auroc_interval(
    marked: ArrayLike, human: ArrayLike, *, groups: Sequence[Hashable] | None = None, draws: int = DRAWS
) -> Estimate:
    """The AUROC with its interval; `groups` names the text of each human score if texts are scored under several keys.

    The unseen text is added to the smaller sample, of k texts. If all marked texts score above all human ones, the lower end
    is that of k successes in k trials. This bound holds for any scores, because k pairs of different texts are all in order
    with probability AUROC^k. (DeLong's variance is 0 in this case.)
    """
    positive, negative = _finite(marked, "marked scores"), _finite(human, "human scores")
    texts = _texts(groups, len(negative))
    order = np.argsort(negative)
    below = [np.searchsorted(negative[order], positive, side) for side in ("left", "right")]
    rng, areas = np.random.default_rng(0), []
    for size in _chunks(draws, len(positive) + len(negative)):
        cumulated = _cumulated(rng, size, texts[order])
        share = (cumulated[:, below[0]] + cumulated[:, below[1]]) / (2 * cumulated[:, -1:])
        weights = rng.exponential(size=(size, len(positive)))
        areas.append((weights * share).sum(1) / weights.sum(1))
    area = np.concatenate(areas)
    seen = rng.beta(min(len(positive), int(texts.max()) + 1), 1, draws)
    value = auroc(positive, negative)
    low, high = np.quantile(area * seen, _TAIL), np.quantile(1 - (1 - area) * seen, 1 - _TAIL)
    return _estimate(value, low, high, len(positive))


# TPR at a threshold that human texts set


def negatives_needed(fpr: float) -> int:
    """The fewest human scores for a false-positive rate: we expect one score above the threshold, or five below 0.5%."""
    if not 0 < fpr < 1:
        raise ValueError(f"a false-positive rate lies between 0 and 1, but {fpr} was given")
    return math.ceil((1 if fpr >= 0.005 else 5) / fpr - 1e-9)


def tpr_at(
    marked: ArrayLike, human: ArrayLike, fpr: float, *, groups: Sequence[Hashable] | None = None, draws: int = DRAWS
) -> Estimate | None:
    """The TPR at the lowest threshold that at most a share `fpr` of the human scores reach; None if these are too few.

    The interval is for the TPR at the threshold that a share `fpr` of all such human texts would reach. The threshold in use is
    an order statistic, and its true false-positive rate varies much: at 1% of 200 texts, two texts lie above it and the true
    rate is between 0.3 and 3.6%. The Clopper-Pearson interval at this threshold alone covers the truth a third of the time (500
    marked texts), and a plain bootstrap of both samples 88% of the time, or hardly ever if nearly all texts are found.
    Therefore each draw gives the human texts random weights, with the unseen text above all others for the lower end and below
    all others for the upper end. This is the exact (Beta) distribution of the rates at order statistics, for any scores and
    any ties. The hits at the threshold of this draw then get the Beta draw of Clopper and Pearson. In simulations, 95%
    intervals cover 95 to 100% of the time, and about 93% in the worst case: many marked texts, 200 human texts, scores in
    coarse steps.

    If the unseen text alone weighs more than `fpr`, as it often does with fewer than 3.7 / fpr texts, the threshold lies above
    all scores, and there is no distribution-free bound. We then assume an exponential tail, with a scale drawn from the highest
    scores. In simulations this held for tails as heavy as Student's t with 3 degrees of freedom.

    `groups` names the text of each human score if texts are scored under several keys: all scores of a text then get the same
    weight.
    """
    positive, negative = np.sort(_finite(marked, "marked scores")), _finite(human, "human scores")
    texts = _texts(groups, len(negative))
    if len(negative) < negatives_needed(fpr):
        return None
    rng, count = np.random.default_rng(0), len(positive)
    upper, lower = _cuts(negative, texts, fpr, rng, draws)
    cut = _cut(negative, fpr)
    few, many, hits = (count - np.searchsorted(positive, at, "right") for at in (upper, lower, cut))
    low, high = _beta(rng, few, count - few + 1), _beta(rng, many + 1, count - many)
    ends = np.quantile(low, _TAIL), np.quantile(high, 1 - _TAIL)
    return _estimate(float(hits / count), *ends, count)


def _cut(human: Floats, fpr: float) -> float:
    """The score that a threshold must exceed so that at most a share `fpr` of the human scores reach it."""
    allowed = math.floor(fpr * len(human) + 1e-9)
    return float(np.sort(human)[len(human) - 1 - allowed])


def _cuts(scores: Floats, texts: NDArray[np.intp], fpr: float, rng: Generator, draws: int) -> tuple[Floats, Floats]:
    """For each draw the score that a threshold must exceed, with the unseen text above and with it below all others."""
    order = np.argsort(-scores, kind="stable")
    ordered, repeats = scores[order], _alike(texts[order], fpr)
    upper, lower = [], []
    for size in _chunks(draws, len(texts)):
        weights = rng.exponential(size=(size, int(texts.max()) + 1))
        extra, gap = rng.exponential(size=(2, size))
        slack = TAIL / rng.standard_gamma(TAIL, size)
        reached = np.cumsum(weights[:, texts[order]], axis=1)
        unseen = repeats * extra
        limit = fpr * (reached[:, -1] + unseen)
        above = (reached <= (limit - unseen)[:, None]).sum(1)
        below = np.minimum((reached <= limit[:, None]).sum(1), len(ordered) - 1)
        beyond = _scale(ordered, repeats) * slack * (np.log(np.maximum(unseen / limit, 1)) + gap)
        upper.append(np.where(unseen > limit, ordered[0] + beyond, ordered[above]))
        lower.append(ordered[below])
    return np.concatenate(upper), np.concatenate(lower)


def _alike(texts: NDArray[np.intp], fpr: float) -> float:
    """How many scores of a text count as one, estimated from how often scores near the threshold share a text."""
    top = min(len(texts), max(TAIL, math.ceil(4 * fpr * len(texts))))
    each = np.bincount(texts[:top])
    size = (np.bincount(texts) ** 2).sum() / len(texts)
    return float(max(1.0, (each**2).sum() / top - (size - 1) * top / len(texts)))


def _scale(ordered: Floats, repeats: float) -> float:
    """The mean excess of the highest scores, which is the scale of an exponential tail; infinite if they are all equal."""
    top = min(len(ordered) - 1, math.ceil(max(TAIL * repeats, len(ordered) / 20)))
    return float((ordered[:top] - ordered[top]).mean()) or math.inf


def _beta(rng: Generator, successes: NDArray[np.int64], failures: NDArray[np.int64]) -> Floats:
    """One draw of the Beta distribution for each pair of counts; zero successes give 0, zero failures give 1."""
    success, failure = rng.standard_gamma(successes), rng.standard_gamma(failures)
    shares: Floats = success / (success + failure)
    return shares


# Shares and means


def share(successes: int, count: int) -> Estimate:
    """A share of independent trials with its Clopper-Pearson interval."""
    from scipy.stats import binomtest

    interval = binomtest(successes, count).proportion_ci(LEVEL)
    return _estimate(successes / count, interval.low, interval.high, count)


def mean_interval(values: ArrayLike) -> Estimate:
    """The mean with Student's t interval; unbounded for a single value."""
    from scipy.special import stdtrit

    numbers = _finite(values, "values")
    value, count = float(numbers.mean()), len(numbers)
    if count < 2:
        return _estimate(value, -math.inf, math.inf, count)
    reach = -float(stdtrit(count - 1, _TAIL)) * float(numbers.std(ddof=1)) / math.sqrt(count)
    return _estimate(value, value - reach, value + reach, count)


# Shared helpers


def _finite(values: ArrayLike, name: str) -> Floats:
    numbers = np.asarray(values, float)
    if numbers.ndim != 1 or not len(numbers):
        raise ValueError(f"{name}: a list of at least one number is needed, but the shape is {numbers.shape}")
    bad = np.flatnonzero(~np.isfinite(numbers))
    if len(bad):
        raise ValueError(f"{name}: number {bad[0]} is {numbers[bad[0]]}; leave failed texts out and report how many")
    return numbers


def _texts(groups: Sequence[Hashable] | None, count: int) -> NDArray[np.intp]:
    """The text of each score, numbered from 0."""
    if groups is None:
        return np.arange(count)
    if len(groups) != count:
        raise ValueError(f"{count} human scores need as many groups, not {len(groups)}")
    numbers: dict[Hashable, int] = {}
    return np.array([numbers.setdefault(group, len(numbers)) for group in groups])


def _chunks(draws: int, width: int) -> Iterator[int]:
    """Batch sizes that add up to `draws`, small enough that `width` numbers per draw take a few megabytes."""
    step = max(1, 500_000 // width)
    for start in range(0, draws, step):
        yield min(step, draws - start)


def _cumulated(rng: Generator, size: int, texts: NDArray[np.intp]) -> Floats:
    """Cumulative sums, starting at 0, of the random weight of each score's text."""
    weights = rng.exponential(size=(size, int(texts.max()) + 1))[:, texts]
    return np.concatenate([np.zeros((size, 1)), np.cumsum(weights, axis=1)], axis=1)


def _estimate(value: float, low: float, high: float, count: int) -> Estimate:
    """Build an estimate; the interval is widened if rounding or random draws left its value outside."""
    return Estimate(value, min(float(low), value), max(float(high), value), count)
