"""How well a detector separates marked from human texts, each figure with an interval; a higher score means marked.

The intervals of rates weigh texts at random (the Bayesian bootstrap) and add to each sample one unseen text that is as good or
as bad as a text can be. For a share of hits that is exactly Clopper and Pearson's interval, so it stays honest at 0 and 100%,
where resampling the texts that were seen gives an interval of no width.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.random import Generator
from numpy.typing import ArrayLike, NDArray

from alimark._util.arrays import Floats

LEVEL = 0.95
DRAWS = 2000
TAIL = 10
"""Negatives that the scale of the tail is read off, at least."""


@dataclass(frozen=True)
class Estimate:
    """A figure with its interval, of `count` texts and, where human texts set a threshold, of `negatives` scores of those."""

    value: float
    low: float
    high: float
    count: int
    negatives: int | None = None
    threshold: float | None = None
    """A text is called marked where its score is at least this."""
    level: float = LEVEL


@dataclass(frozen=True)
class Roc:
    """Rates of false and true positives at falling thresholds, the first of which nothing reaches."""

    fpr: Floats
    tpr: Floats
    thresholds: Floats


def roc(marked: ArrayLike, human: ArrayLike) -> Roc:
    positive, negative = np.sort(_finite(marked, "marked scores")), np.sort(_finite(human, "human scores"))
    thresholds = np.concatenate([[np.inf], np.unique(np.concatenate([positive, negative]))[::-1]])
    fpr, tpr = (1 - np.searchsorted(scores, thresholds) / len(scores) for scores in (negative, positive))
    return Roc(fpr, tpr, thresholds)


def auroc(marked: ArrayLike, human: ArrayLike) -> float:
    """The share of pairs in which the marked text scores higher, ties counted half."""
    positive, negative = _finite(marked, "marked scores"), np.sort(_finite(human, "human scores"))
    below = np.searchsorted(negative, positive, "left") + np.searchsorted(negative, positive, "right")
    return float(below.sum() / (2 * len(positive) * len(negative)))


def auroc_interval(
    marked: ArrayLike,
    human: ArrayLike,
    *,
    level: float = LEVEL,
    groups: Sequence[Hashable] | None = None,
    seed: int = 0,
    draws: int = DRAWS,
) -> Estimate:
    """The AUROC; `groups` name the text of each human score where one text is scored under several keys.

    The unseen text joins the smaller sample, of k texts. Where all marked texts score above all human ones, the lower end is
    then that of k successes in k trials, which holds for any scores: k pairs of different texts are all in order with
    probability AUROC^k. DeLong's variance is 0 there.
    """
    positive, negative = _finite(marked, "marked scores"), _finite(human, "human scores")
    tail, texts = _tail(level), _texts(groups, len(negative))
    order = np.argsort(negative)
    below = [np.searchsorted(negative[order], positive, side) for side in ("left", "right")]
    rng, areas = np.random.default_rng(seed), []
    for size in _chunks(draws, len(positive) + len(negative)):
        cumulated = _cumulated(rng, size, texts[order])
        share = (cumulated[:, below[0]] + cumulated[:, below[1]]) / (2 * cumulated[:, -1:])
        weights = rng.exponential(size=(size, len(positive)))
        areas.append((weights * share).sum(1) / weights.sum(1))
    area = np.concatenate(areas)
    seen = rng.beta(min(len(positive), int(texts.max()) + 1), 1, draws)
    value = auroc(positive, negative)
    low, high = np.quantile(area * seen, tail), np.quantile(1 - (1 - area) * seen, 1 - tail)
    return _estimate(value, low, high, len(positive), level, negatives=len(negative))


# True positives where human texts set the threshold


def negatives_needed(fpr: float) -> int:
    """The fewest human scores that a rate of false positives is read off: one expected above it, and five below 0.5%."""
    if not 0 < fpr < 1:
        raise ValueError(f"a false-positive rate lies between 0 and 1, not at {fpr}")
    return math.ceil((1 if fpr >= 0.005 else 5) / fpr - 1e-9)


def tpr_at(
    marked: ArrayLike,
    human: ArrayLike,
    fpr: float,
    *,
    level: float = LEVEL,
    groups: Sequence[Hashable] | None = None,
    seed: int = 0,
    draws: int = DRAWS,
) -> Estimate | None:
    """The greatest TPR of any threshold that at most a share `fpr` of the human scores reach; None where these are too few.

    The interval is for the TPR at the threshold that a share `fpr` of all such human texts would reach. The one in use is an
    order statistic, and its true rate varies much: at 1% of 200 texts, two lie above it and its rate lies anywhere between 0.3
    and 3.6%. Clopper and Pearson's interval at that one threshold then covers a third of the time (500 marked texts), a plain
    bootstrap of both samples 88%, and hardly ever where nearly all texts are found. So each draw weighs the human texts, the
    unseen one above all others for the lower end and below them for the upper end; this is the exact (Beta) law of the rates
    at order statistics, whatever the scores are and however they tie. The hits at that draw's threshold then get Clopper and
    Pearson's Beta draw. In simulations 95% intervals cover 95 to 100% of the time, and some 93% at worst: many marked texts,
    200 human ones, scores in coarse steps.

    Where the unseen text alone weighs more than `fpr`, as it often does below 3.7 / fpr texts, the threshold lies above all
    scores, and no distribution-free bound exists. There the tail is taken to fall exponentially, on a scale drawn from what
    the highest scores allow; that held for tails as heavy as Student's t with 3 degrees of freedom.

    `groups` name the text of each human score where one text is scored under several keys: whole texts are weighed then.
    """
    positive, negative = np.sort(_finite(marked, "marked scores")), _finite(human, "human scores")
    tail, texts = _tail(level), _texts(groups, len(negative))
    if len(negative) < negatives_needed(fpr):
        return None
    rng, count = np.random.default_rng(seed), len(positive)
    upper, lower = _cuts([negative], texts, fpr, rng, draws)[0]
    cut = _cut(negative, fpr)
    few, many, hits = (count - np.searchsorted(positive, at, "right") for at in (upper, lower, cut))
    low, _ = _dirichlet(rng, few, count - few + 1)
    high, _ = _dirichlet(rng, many + 1, count - many)
    ends = np.quantile(low, tail), np.quantile(high, 1 - tail)
    threshold = float(np.nextafter(cut, np.inf))
    return _estimate(float(hits / count), *ends, count, level, negatives=len(negative), threshold=threshold)


def paired_tpr_difference(
    scores_a: ArrayLike,
    scores_b: ArrayLike,
    human_a: ArrayLike,
    human_b: ArrayLike,
    fpr: float,
    *,
    level: float = LEVEL,
    groups: Sequence[Hashable] | None = None,
    seed: int = 0,
    draws: int = DRAWS,
) -> Estimate | None:
    """The TPR of detector b less that of detector a on the same marked and the same human texts, each at its own threshold.

    As `tpr_at`, with the same weights of the texts for both. The unseen marked text is found by a alone for the lower end and
    by b alone for the upper end. The unseen human text lies above all others for both detectors or below them for both, and
    the interval spans the two: on top for the one and at the bottom for the other, it would be twice as wide and cover always.
    """
    a, b = _finite(scores_a, "marked scores of a"), _finite(scores_b, "marked scores of b")
    human = [_finite(human_a, "human scores of a"), _finite(human_b, "human scores of b")]
    if len(a) != len(b) or len(human[0]) != len(human[1]):
        raise ValueError("two detectors are compared on the same texts: as many scores of the one as of the other")
    tail, texts = _tail(level), _texts(groups, len(human[0]))
    if len(human[0]) < negatives_needed(fpr):
        return None
    rng, count = np.random.default_rng(seed), len(a)
    (upper_a, lower_a), (upper_b, lower_b) = _cuts(human, texts, fpr, rng, draws)
    low: list[float] = []
    high: list[float] = []
    for cuts_a, cuts_b in ((upper_a, upper_b), (lower_a, lower_b)):
        only_a, only_b = _discordant(a, b, cuts_a, cuts_b)
        rest = count - only_a - only_b
        for more_a, more_b, ends, at in ((1, 0, low, tail), (0, 1, high, 1 - tail)):
            share_a, share_b = _dirichlet(rng, only_a + more_a, only_b + more_b, rest)
            ends.append(float(np.quantile(share_b - share_a, at)))
    value = float((b > _cut(human[1], fpr)).mean() - (a > _cut(human[0], fpr)).mean())
    return _estimate(value, min(low), max(high), count, level, negatives=len(human[0]))


def _cut(human: Floats, fpr: float) -> float:
    """The highest score that a threshold must exceed so that at most a share `fpr` of `human` reach it."""
    allowed = math.floor(fpr * len(human) + 1e-9)
    return float(np.sort(human)[len(human) - 1 - allowed])


def _cuts(
    columns: Sequence[Floats], texts: NDArray[np.intp], fpr: float, rng: Generator, draws: int
) -> list[tuple[Floats, Floats]]:
    """For the scores of each detector what a threshold must exceed in each draw: unseen text on top, and at the bottom."""
    orders = [np.argsort(-scores, kind="stable") for scores in columns]
    alike = [_alike(texts[order], fpr) for order in orders]
    found: list[list[tuple[Floats, Floats]]] = [[] for _ in columns]
    for size in _chunks(draws, len(texts)):
        weights = rng.exponential(size=(size, int(texts.max()) + 1))
        extra, gap = rng.exponential(size=(2, size))
        slack = TAIL / rng.standard_gamma(TAIL, size)
        for scores, order, repeats, cuts in zip(columns, orders, alike, found, strict=True):
            ordered = scores[order]
            reached = np.cumsum(weights[:, texts[order]], axis=1)
            unseen = repeats * extra
            limit = fpr * (reached[:, -1] + unseen)
            above = (reached <= (limit - unseen)[:, None]).sum(1)
            below = np.minimum((reached <= limit[:, None]).sum(1), len(ordered) - 1)
            beyond = _scale(ordered, repeats) * slack * (np.log(np.maximum(unseen / limit, 1)) + gap)
            cuts.append((np.where(unseen > limit, ordered[0] + beyond, ordered[above]), ordered[below]))
    return [(np.concatenate([up for up, _ in cuts]), np.concatenate([down for _, down in cuts])) for cuts in found]


def _alike(texts: NDArray[np.intp], fpr: float) -> float:
    """How many scores of one text count as one, by how often those near the threshold are of the same text."""
    top = min(len(texts), max(TAIL, math.ceil(4 * fpr * len(texts))))
    each = np.bincount(texts[:top])
    size = (np.bincount(texts) ** 2).sum() / len(texts)
    return float(max(1.0, (each**2).sum() / top - (size - 1) * top / len(texts)))


def _scale(ordered: Floats, repeats: float) -> float:
    """The mean excess of the highest scores, which is the scale of an exponential tail; infinite where they are all equal."""
    top = min(len(ordered) - 1, math.ceil(max(TAIL * repeats, len(ordered) / 20)))
    return float((ordered[:top] - ordered[top]).mean()) or math.inf


def _discordant(a: Floats, b: Floats, cuts_a: Floats, cuts_b: Floats) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """For each pair of cuts how many texts only the one detector finds, and how many only the other."""
    only_a, only_b, start = [], [], 0
    for size in _chunks(len(cuts_a), len(a)):
        here = slice(start, start + size)
        found_a, found_b = a > cuts_a[here, None], b > cuts_b[here, None]
        only_a.append((found_a & ~found_b).sum(1))
        only_b.append((found_b & ~found_a).sum(1))
        start += size
    return np.concatenate(only_a), np.concatenate(only_b)


def _dirichlet(rng: Generator, *counts: NDArray[np.int64]) -> tuple[Floats, Floats]:
    """The first two shares of a Dirichlet draw for each column of counts; a count of 0 has no share."""
    parts = np.array([rng.standard_gamma(count) for count in counts])
    parts /= parts.sum(0)
    return parts[0], parts[1]


# Shares, means and their ratios


def share(successes: int, count: int, level: float = LEVEL) -> Estimate:
    """A share of independent trials with Clopper and Pearson's interval, as of texts below a nominal p-value."""
    from scipy.special import betaincinv

    if not 0 <= successes <= count or count < 1:
        raise ValueError(f"{successes} of {count} is no share")
    tail = _tail(level)
    low = float(betaincinv(successes, count - successes + 1, tail)) if successes else 0.0
    high = float(betaincinv(successes + 1, count - successes, 1 - tail)) if successes < count else 1.0
    return _estimate(successes / count, low, high, count, level)


def mean_interval(values: ArrayLike, *, level: float = LEVEL, seed: int = 0, draws: int = DRAWS) -> Estimate:
    """The mean with a BCa interval, widened as Student's t is for few values; unbounded for a single value.

    Below ten values it covers less than it says, and none tells more than its values: equal ones give an interval of no width.
    """
    x = _finite(values, "values")
    (means,) = _resampled([x], np.random.default_rng(seed), draws)
    return _bca(float(x.mean()), means, (x - x.mean()) / len(x), len(x), level)


def ratio_of_means_interval(
    a: ArrayLike, b: ArrayLike, *, paired: bool = True, level: float = LEVEL, seed: int = 0, draws: int = DRAWS
) -> Estimate:
    """mean(a) / mean(b) with an interval as of `mean_interval`; paired where a[i] and b[i] are of the same text."""
    x, y = _finite(a, "numerators"), _finite(b, "denominators")
    if (y <= 0).any():
        raise ValueError("denominators must be positive")
    if paired and len(x) != len(y):
        raise ValueError(f"paired values need partners: {len(x)} numerators, {len(y)} denominators")
    rng, ratio, unit = np.random.default_rng(seed), float(x.mean() / y.mean()), y.mean()
    if paired:
        over, under = _resampled([x, y], rng, draws)
        influence = (x - ratio * y) / unit / len(x)
    else:
        (over,), (under,) = _resampled([x], rng, draws), _resampled([y], rng, draws)
        influence = np.concatenate([(x - x.mean()) / len(x), -ratio * (y - unit) / len(y)]) / unit
    return _bca(ratio, over / under, influence, min(len(x), len(y)), level)


def _resampled(columns: Sequence[Floats], rng: Generator, draws: int) -> Floats:
    """The means of each column over the same resampled rows, one for each draw."""
    means = []
    for size in _chunks(draws, len(columns[0])):
        rows = rng.integers(0, len(columns[0]), (size, len(columns[0])))
        means.append([column[rows].mean(1) for column in columns])
    return np.concatenate(means, axis=1)


def _bca(value: float, resampled: Floats, influence: Floats, count: int, level: float) -> Estimate:
    """Efron's bias-corrected and accelerated interval at Hesterberg's level for few values."""
    from scipy.special import stdtrit

    tail = _tail(level)
    if count < 2:
        return _estimate(value, -np.inf, np.inf, count, level)
    normal, half = NormalDist(), 0.5 / len(resampled)
    below = (resampled < value).mean() + (resampled == value).mean() / 2
    bias = normal.inv_cdf(min(max(float(below), half), 1 - half))
    spread = float((influence**2).sum())
    skew = float((influence**3).sum()) / (6 * spread**1.5) if spread else 0.0
    wide = -float(stdtrit(count - 1, tail)) * math.sqrt(count / (count - 1))
    at = [normal.cdf(bias + z / max(1 - skew * z, 1e-9)) for z in (bias - wide, bias + wide)]
    low, high = np.quantile(resampled, at)
    return _estimate(value, low, high, count, level)


# What all of them need


def _finite(values: ArrayLike, name: str) -> Floats:
    found = np.asarray(values, float)
    if found.ndim != 1 or not len(found):
        raise ValueError(f"{name}: a list of at least one number is needed, not one of shape {found.shape}")
    bad = np.flatnonzero(~np.isfinite(found))
    if len(bad):
        raise ValueError(f"{name}: number {bad[0]} is {found[bad[0]]}; leave failed texts out and report how many")
    return found


def _tail(level: float) -> float:
    if not 0 < level < 1:
        raise ValueError(f"the level of an interval lies between 0 and 1, not at {level}")
    return (1 - level) / 2


def _texts(groups: Sequence[Hashable] | None, count: int) -> NDArray[np.intp]:
    """The text of each score, numbered from 0."""
    if groups is None:
        return np.arange(count)
    if len(groups) != count:
        raise ValueError(f"{count} human scores need as many groups, not {len(groups)}")
    numbers: dict[Hashable, int] = {}
    return np.array([numbers.setdefault(group, len(numbers)) for group in groups])


def _chunks(draws: int, width: int) -> Iterator[int]:
    """Sizes that add up to `draws`, each so small that a row of `width` numbers a draw stays within some megabytes."""
    step = max(1, 500_000 // width)
    for start in range(0, draws, step):
        yield min(step, draws - start)


def _cumulated(rng: Generator, size: int, texts: NDArray[np.intp]) -> Floats:
    """Running sums, from 0, of random weights of texts over their scores."""
    weights = rng.exponential(size=(size, int(texts.max()) + 1))[:, texts]
    return np.concatenate([np.zeros((size, 1)), np.cumsum(weights, axis=1)], axis=1)


def _estimate(
    value: float,
    low: float,
    high: float,
    count: int,
    level: float,
    *,
    negatives: int | None = None,
    threshold: float | None = None,
) -> Estimate:
    """An interval always holds its value, whatever rounding and random draws do."""
    ends = min(float(low), value), max(float(high), value)
    return Estimate(value, *ends, count, negatives, threshold, level)
