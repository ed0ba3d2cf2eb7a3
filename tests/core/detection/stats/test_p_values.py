"""P-values by random keys, the fitted tail and false discoveries: against SciPy and direct counts."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from alimark.core.detection.stats import p_values as sig
from alimark.errors import AlimarkError

RNG = np.random.default_rng(0)


def from_scores(scores: np.ndarray) -> sig.NullScores:
    return lambda first, count: scores[first : first + count]


class TestPValue:
    def test_counts_ties_against_the_text(self) -> None:
        scores = np.array([0.0, 1.0, 1.0, 2.0, 3.0])
        result = sig.significance_of(1.0, from_scores(scores), sig.RandomKeys(draws=5))
        assert (result.p_value, result.above, result.ties) == ((1 + 4) / 6, 2, 2)
        assert result.randomised(1.0) == result.p_value
        assert result.randomised(0.5) == (2 + 0.5 * 3) / 6
        assert (result.mean, result.std) == (scores.mean(), scores.std())

    def test_besag_clifford(self) -> None:
        scores = np.zeros(5000)
        scores[[3, 10, 1500, 1600]] = 5
        result = sig.significance_of(4.0, from_scores(scores), sig.RandomKeys(draws=5000, stop_after=3))
        assert (result.p_value, result.draws, result.stopped_early) == (3 / 1501, 1501, True)
        complete = sig.significance_of(4.0, from_scores(scores), sig.RandomKeys(draws=5000, stop_after=5))
        assert (complete.p_value, complete.stopped_early) == (5 / 5001, False)

    @pytest.mark.parametrize("stop_after", [None, 10])
    def test_is_uniform_or_larger_under_the_null(self, stop_after: int | None) -> None:
        """The text's own key is one more random key: for continuous scores p is uniform."""
        values = []
        for _ in range(2000):
            scores = RNG.standard_normal(200)
            values.append(
                sig.significance_of(
                    scores[-1], from_scores(scores[:-1]), sig.RandomKeys(draws=199, stop_after=stop_after)
                ).p_value
            )
        for level in (0.05, 0.25, 0.5):
            assert stats.binomtest(int(np.sum(np.array(values) <= level)), 2000, level).pvalue > 1e-4

    def test_random_ties_make_discrete_scores_exact(self) -> None:
        plain, broken = [], []
        for _ in range(4000):
            scores = RNG.integers(0, 4, 100).astype(float)
            result = sig.significance_of(scores[-1], from_scores(scores[:-1]), sig.RandomKeys(draws=99))
            plain.append(result.p_value)
            broken.append(result.randomised(1 - RNG.random()))
        assert stats.kstest(broken, "uniform").pvalue > 1e-3
        assert np.mean(np.array(plain) <= 0.5) <= 0.5

    def test_draws_follow_the_rate(self) -> None:
        assert sig.draws_for(0.01) == 1000
        assert sig.draws_for(1e-4) == 100_000
        for wrong in (0, 1, -1, 1e-9):
            with pytest.raises(AlimarkError):
                sig.draws_for(wrong)

    def test_tail_against_the_normal(self) -> None:
        scores = np.random.default_rng(5).standard_normal(20_000)
        result = sig.significance_of(6.0, from_scores(scores), sig.RandomKeys(draws=20_000, tail=True))
        assert result.tail is not None
        # Errs on the safe side, and says more than 1 / draws.
        assert stats.norm.sf(6.0) < result.tail < result.p_value
        assert sig.significance_of(0.0, from_scores(scores), sig.RandomKeys(draws=20_000, tail=True)).tail is None
        assert sig.tail_estimate(9.0, np.ones(10_000)) is None
