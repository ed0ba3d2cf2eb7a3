"""Rates and their intervals: against scikit-learn, SciPy, direct counts, and texts drawn where the truth is known."""

import math
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from sklearn.metrics import roc_auc_score

from alimark.lab.bench import metrics
from alimark.lab.bench.metrics import Estimate

tpr_at: Any = metrics.tpr_at  # which gives None where there are too few human texts

TIED = st.lists(st.integers(-4, 4).map(lambda x: x / 3), min_size=1, max_size=40)
ANY = st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=20)


def coverage(truth: float, estimates: Iterable[Estimate | None]) -> tuple[float, float]:
    """The share of intervals that hold the truth, and their mean width."""
    intervals = [(estimate.low, estimate.high) for estimate in estimates if estimate is not None]
    low, high = np.array(intervals).T
    return float(((low <= truth) & (truth <= high)).mean()), float((high - low).mean())


class TestRoc:
    @given(TIED | ANY, TIED | ANY)
    @settings(deadline=None)
    def test_auroc_equals_scikit_learn(self, marked: list[float], human: list[float]) -> None:
        truth, scores = np.repeat([1, 0], [len(marked), len(human)]), np.array(marked + human)
        assert metrics.auroc(marked, human) == pytest.approx(roc_auc_score(truth, scores), abs=1e-12)

    def test_counts(self) -> None:
        false, true = metrics.roc([3, 1], [2, 1, 0, 0])
        assert (false.tolist(), true.tolist()) == ([0, 0, 0.25, 0.5, 1], [0, 0.5, 0.5, 1, 1])
        assert metrics.auroc([3, 1], [2, 1, 0, 0]) == (4 + 2.5) / 8


class TestAurocInterval:
    @pytest.mark.parametrize(("marked", "human"), [(40, 300), (300, 40)])
    def test_all_in_order(self, marked: int, human: int) -> None:
        estimate = metrics.auroc_interval(np.arange(marked) + 1e6, np.arange(human), draws=20_000)
        assert (estimate.value, estimate.high, estimate.count) == (1, 1, marked)
        assert estimate.low == pytest.approx(metrics.share(40, 40).low, abs=0.005)

    @pytest.mark.parametrize("truth", [0.6, 0.9, 0.99, 0.9995])
    def test_covers(self, truth: float) -> None:
        rng = np.random.default_rng(1)
        marked = rng.normal(stats.norm.ppf(truth) * math.sqrt(2), 1, (200, 50))
        human = rng.normal(0, 1, (200, 100))
        pairs = zip(marked, human, strict=True)
        share, width = coverage(truth, (metrics.auroc_interval(x, y, draws=300) for x, y in pairs))
        assert share >= 0.93
        assert width <= 0.22

    def test_copies_of_a_text_add_nothing(self) -> None:
        rng = np.random.default_rng(2)
        marked, human = rng.normal(1, 1, 300), rng.normal(0, 1, 30)
        once = metrics.auroc_interval(marked, human)
        copied = metrics.auroc_interval(marked, np.repeat(human, 10), groups=np.repeat(np.arange(30), 10).tolist())
        naive = metrics.auroc_interval(marked, np.repeat(human, 10))
        assert (copied.low, copied.high) == pytest.approx((once.low, once.high), abs=0.01)
        assert naive.high - naive.low < 0.6 * (copied.high - copied.low)


class TestTprAt:
    @given(
        TIED,
        st.lists(st.integers(-4, 4).map(lambda x: x / 3), min_size=20, max_size=40),
        st.sampled_from([0.05, 0.1, 0.3]),
    )
    @settings(deadline=None)
    def test_is_the_best_threshold(self, marked: list[float], human: list[float], fpr: float) -> None:
        estimate = tpr_at(marked, human, fpr, draws=50)
        x, y = np.array(marked), np.array(human)
        every = [t for t in {*marked, *human, math.inf} if (y >= t).sum() <= fpr * len(y) + 1e-9]
        assert estimate.value == max((x >= t).mean() for t in every)
        assert 0 <= estimate.low <= estimate.value <= estimate.high <= 1

    def test_counts(self) -> None:
        estimate = tpr_at([97, 98, 98.5, 99, 99.5], np.arange(100), 0.01)
        assert (estimate.value, estimate.count) == (3 / 5, 5)

    @pytest.mark.parametrize(("fpr", "needed"), [(0.05, 20), (0.01, 100), (0.005, 200), (0.001, 5000), (1e-4, 50_000)])
    def test_needs_negatives(self, fpr: float, needed: int) -> None:
        assert metrics.negatives_needed(fpr) == needed
        human = np.random.default_rng(0).normal(size=needed)
        assert tpr_at([1, 2], human[1:], fpr, draws=10) is None
        assert tpr_at([1, 2], human, fpr, draws=10) is not None

    @pytest.mark.parametrize("truth", [0.03, 0.3, 0.7, 0.95, 0.999])
    @pytest.mark.parametrize(("marked", "human", "widest"), [(50, 200, 0.75), (500, 200, 0.65), (100, 500, 0.5)])
    def test_covers(self, truth: float, marked: int, human: int, widest: float) -> None:
        rng = np.random.default_rng(3)
        mean = stats.norm.isf(0.01) - stats.norm.isf(truth)
        scores, null = rng.normal(mean, 1, (120, marked)), rng.normal(0, 1, (120, human))
        share, width = coverage(truth, (tpr_at(x, y, 0.01, draws=300) for x, y in zip(scores, null, strict=True)))
        assert share >= 0.93
        assert width <= widest

    def test_covers_where_scores_tie_and_tails_are_heavy(self) -> None:
        rng = np.random.default_rng(15)
        steps = np.floor(2 * rng.normal(0, 1, (120, 200)))
        at = next(t for t in range(20) if stats.norm.sf(t / 2) <= 0.01)
        marked = np.floor(2 * rng.normal(at / 2, 1, (120, 300)))
        heavy, shifted = rng.standard_t(3, (120, 200)), rng.normal(stats.t.isf(0.01, 3), 1, (120, 300))
        for scores, null in ((marked, steps), (shifted, heavy)):
            pairs = zip(scores, null, strict=True)
            share, _ = coverage(0.5, (tpr_at(x, y, 0.01, draws=300) for x, y in pairs))
            assert share >= 0.92

    def test_equal_negatives_say_nothing_of_the_tail(self) -> None:
        few, many = (tpr_at([1.0] * 50, [0.0] * count, 0.01) for count in (200, 800))
        assert (few.low, few.value, few.high) == (0, 1, 1)
        assert many.low == pytest.approx(metrics.share(50, 50).low, abs=0.01)

    def test_is_clopper_pearson_where_the_threshold_is_known(self) -> None:
        human = np.linspace(0, 1, 200)
        for hits in (0, 3, 40):
            estimate = tpr_at([2.0] * hits + [-2.0] * (40 - hits), human, 0.5, draws=5000)
            exact = metrics.share(hits, 40)
            wanted = (exact.low, exact.value, exact.high)
            assert (estimate.low, estimate.value, estimate.high) == pytest.approx(wanted, abs=0.012)

    def test_groups(self) -> None:
        rng = np.random.default_rng(6)
        marked, human = rng.normal(2.5, 1, 400), rng.normal(0, 1, 400)
        names = [f"text {i}" for i in range(400)]
        once = tpr_at(marked, human, 0.01)
        each = tpr_at(marked, human, 0.01, groups=names)
        copied = tpr_at(marked, np.tile(human, 10), 0.01, groups=names * 10)
        naive = tpr_at(marked, np.tile(human, 10), 0.01)
        for interval in (each, copied):
            assert (interval.low, interval.high) == pytest.approx((once.low, once.high), abs=0.06)
        assert naive.high - naive.low < 0.75 * (copied.high - copied.low)

    @pytest.mark.parametrize("alike", [0.0, 0.6])
    def test_covers_with_several_keys_a_text(self, alike: float) -> None:
        rng = np.random.default_rng(7)
        groups = np.repeat(np.arange(60), 10).tolist()
        shared = rng.normal(size=(120, 60)).repeat(10, axis=1)
        null = math.sqrt(alike) * shared + math.sqrt(1 - alike) * rng.normal(size=(120, 600))
        scores = rng.normal(stats.norm.isf(0.01) - stats.norm.isf(0.7), 1, (120, 200))
        pairs = zip(scores, null, strict=True)
        share, width = coverage(0.7, (tpr_at(x, y, 0.01, groups=groups, draws=300) for x, y in pairs))
        assert share >= 0.92
        assert width <= 0.65


class TestSharesAndMeans:
    def test_share_is_clopper_pearson(self) -> None:
        estimate = metrics.share(3, 10)
        expected = stats.beta.ppf(0.025, 3, 8), stats.beta.ppf(0.975, 4, 7)
        assert (estimate.low, estimate.high) == pytest.approx(expected, abs=1e-9)
        assert (estimate.value, estimate.count) == (0.3, 10)

    @pytest.mark.parametrize("count", [20, 100])
    def test_mean_covers(self, count: int) -> None:
        values = np.random.default_rng(11).lognormal(0, 0.5, (400, count))
        share, width = coverage(math.exp(0.125), (metrics.mean_interval(x) for x in values))
        assert share >= 0.91
        assert width <= 3 / math.sqrt(count)

    def test_mean_is_students_t(self) -> None:
        values = np.random.default_rng(12).exponential(size=50)
        estimate = metrics.mean_interval(values)
        theirs = stats.ttest_1samp(values, 0).confidence_interval(0.95)
        assert (estimate.low, estimate.value, estimate.high) == pytest.approx((theirs.low, values.mean(), theirs.high))

    def test_one_value_and_equal_values(self) -> None:
        single = metrics.mean_interval([3.0])
        assert (single.low, single.value, single.high) == (-math.inf, 3, math.inf)
        same = metrics.mean_interval([3.0] * 9)
        assert (same.low, same.value, same.high) == (3, 3, 3)


GOOD, HUMAN = [1.0, 2.0], np.arange(100.0)


@pytest.mark.parametrize("bad", [[], [1.0, math.nan], [math.inf], [[1.0, 2.0]]])
@pytest.mark.parametrize(
    "call",
    [
        lambda bad: metrics.roc(bad, HUMAN),
        lambda bad: metrics.roc(GOOD, bad),
        lambda bad: metrics.auroc(bad, HUMAN),
        lambda bad: metrics.auroc_interval(GOOD, bad),
        lambda bad: tpr_at(bad, HUMAN, 0.01),
        lambda bad: tpr_at(GOOD, bad, 0.01),
        metrics.mean_interval,
    ],
)
def test_what_is_no_list_of_numbers(call: Callable[[object], object], bad: object) -> None:
    with pytest.raises(ValueError, match=r"a list of at least one number|number \d is (nan|inf)"):
        call(bad)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: tpr_at(GOOD, HUMAN, 0.0), "false-positive rate"),
        (lambda: tpr_at(GOOD, HUMAN, 0.01, groups=[1, 2]), "as many groups"),
        (lambda: metrics.share(3, 2), "must not be greater"),
        (lambda: metrics.share(0, 0), "not less than 1"),
    ],
)
def test_what_cannot_be(call: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()
