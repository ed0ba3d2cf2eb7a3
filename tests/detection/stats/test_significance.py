"""Null tables, p-values by random keys, the fitted tail, false discoveries: against SciPy and direct counts."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from alimark.calibration.rates import binomial_interval
from alimark.detection.stats import null_tables, power
from alimark.detection.stats import p_values as sig
from alimark.errors import AlimarkError

RNG = np.random.default_rng(0)


def from_scores(scores: np.ndarray) -> sig.NullScores:
    return lambda first, count: scores[first : first + count]


class TestPValue:
    def test_counts_ties_against_the_text(self) -> None:
        scores = np.array([0.0, 1.0, 1.0, 2.0, 3.0])
        found = sig.significance(1.0, from_scores(scores), 5)
        assert (found.p_value, found.above, found.ties) == ((1 + 4) / 6, 2, 2)
        assert found.randomised(1.0) == found.p_value
        assert found.randomised(0.5) == (2 + 0.5 * 3) / 6
        assert (found.mean, found.std) == (scores.mean(), scores.std())

    def test_besag_clifford(self) -> None:
        scores = np.zeros(5000)
        scores[[3, 10, 1500, 1600]] = 5
        found = sig.significance(4.0, from_scores(scores), 5000, stop_after=3)
        assert (found.p_value, found.draws, found.stopped_early) == (3 / 1501, 1501, True)
        complete = sig.significance(4.0, from_scores(scores), 5000, stop_after=5)
        assert (complete.p_value, complete.stopped_early) == (5 / 5001, False)

    @pytest.mark.parametrize("stop_after", [None, 10])
    def test_is_uniform_or_larger_under_the_null(self, stop_after: int | None) -> None:
        """The text's own key is one more random key: for continuous scores p is uniform."""
        values = []
        for _ in range(2000):
            scores = RNG.standard_normal(200)
            values.append(sig.significance(scores[-1], from_scores(scores[:-1]), 199, stop_after=stop_after).p_value)
        for level in (0.05, 0.25, 0.5):
            assert stats.binomtest(int(np.sum(np.array(values) <= level)), 2000, level).pvalue > 1e-4

    def test_random_ties_make_discrete_scores_exact(self) -> None:
        plain, broken = [], []
        for _ in range(4000):
            scores = RNG.integers(0, 4, 100).astype(float)
            found = sig.significance(scores[-1], from_scores(scores[:-1]), 99)
            plain.append(found.p_value)
            broken.append(found.randomised(1 - RNG.random()))
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
        found = sig.significance(6.0, from_scores(scores), 20_000, tail=True)
        assert found.tail is not None
        # Errs on the safe side, and says more than 1 / draws.
        assert stats.norm.sf(6.0) < found.tail < found.p_value
        assert sig.significance(0.0, from_scores(scores), 20_000, tail=True).tail is None
        assert sig.tail_estimate(9.0, np.ones(10_000)) is None


@given(st.lists(st.floats(0, 1), max_size=60), st.floats(0.01, 0.5))
@settings(deadline=None)
def test_benjamini_hochberg_is_scipys(p_values: list[float], rate: float) -> None:
    found, threshold = sig.benjamini_hochberg(p_values, rate)
    if not p_values:
        assert (len(found), threshold) == (0, 0.0)
        return
    adjusted = stats.false_discovery_control(p_values, method="bh")
    safe = np.abs(adjusted - rate) > 1e-9  # equal up to rounding may fall either way
    assert np.array_equal(found[safe], (adjusted <= rate)[safe])


class TestNullTables:
    def test_shipped_tables_are_what_the_command_computes(self) -> None:
        table = null_tables.null_table(8, 200)
        again = null_tables.monte_carlo(8, [1, 5, 12, 40], pairs=3000)
        for n, mean, std in zip(again.lengths, again.mean, again.std, strict=True):
            assert table.mean[n - 1] == pytest.approx(mean, abs=4 * std / math.sqrt(1000))
            assert table.std[n - 1] == pytest.approx(std, rel=0.12)
        assert table.std[11] == pytest.approx(0.048, abs=0.002)  # what the method's notes give

    def test_one_sentence_is_binomial(self) -> None:
        """At one block the rate is Binomial(M, 1/2) / M, since a deletion and an insertion cost more than any match."""
        for m in (2, 4, 8, 16):
            table = null_tables.null_table(m, 200)
            assert table.mean[0] == pytest.approx(0.5, abs=0.02)
            assert table.std[0] == pytest.approx(0.5 / math.sqrt(m), rel=0.05)

    def test_other_block_sizes_and_lengths_are_computed_once(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("ALIMARK_HOME", str(tmp_path))
        null_tables.null_table.cache_clear()
        table = null_tables.null_table(5, 100)
        assert table.lengths[-1] >= 100
        stored = list((tmp_path / "null").iterdir())
        assert len(stored) == 1
        stored[0].write_text("{broken")
        null_tables.null_table.cache_clear()
        again = null_tables.null_table(5, 100)
        assert np.array_equal(again.mean, table.mean)
        null_tables.null_table.cache_clear()

    def test_interpolation_keeps_the_tabled_values(self) -> None:
        table = null_tables.null_table(8, 2000)
        mean, std = table.upto(2000)
        assert mean[12] == pytest.approx(table.mean[11])
        assert std[200] == pytest.approx(table.std[199])
        assert np.all(np.diff(std[10:]) < 0.02)

    def test_reference_table(self, tmp_path: Path) -> None:
        path = tmp_path / "table.json"
        path.write_text(json.dumps({"1": {"mean": 0.5, "std": 0.2}, "2": {"mean": 0.4, "std": 0.1}}))
        rule = null_tables.reference_rule(8, 6, table=path)
        assert rule.by_longer
        assert rule.mean[1:5].tolist() == [0.5, 0.4, 0.4, 0.4]
        assert rule.std[1:5].tolist() == [0.2, 0.1, 0.1, 0.1]
        own = null_tables.reference_rule(8, 12)
        # Pooled over all lengths, the deviation at 12 is nearly twice that of length 12 alone.
        assert own.std[12] / null_tables.null_table(8, 200).std[11] == pytest.approx(1.8, abs=0.15)
        path.write_text("[]")
        with pytest.raises(AlimarkError, match="no table"):
            null_tables.read_reference(path)

    def test_prefix_lengths_are_whole_blocks(self) -> None:
        least, most = null_tables.prefix_lengths(13)
        assert (least[13], most[13], least[1], most[1]) == (7, 20, 1, 2)
        with pytest.raises(AlimarkError, match="alpha"):
            null_tables.prefix_lengths(5, alpha=1.2)


def test_sentences_needed() -> None:
    needed = power.sentences_needed(8, 0.01)
    assert needed is not None
    assert 3 <= needed <= 8
    assert power.sentences_needed(8, 0.01, limit=1) is None
    soft = power.sentences_needed(32, 0.01, soft=True)
    assert soft is not None
    assert needed is not None
    assert 1 < soft <= needed
    rarer = power.sentences_needed(8, 1e-6)
    assert rarer is not None
    assert rarer > needed


@pytest.mark.parametrize(("n", "p"), [(500, 0.01), (120, 0.5), (1000, 0.05)])
def test_binomial_interval_is_scipys(n: int, p: float) -> None:
    low, high = binomial_interval(n, p)
    expected = stats.binom.ppf([0.005, 0.995], n, p) / n
    assert (low, high) == pytest.approx(tuple(expected), abs=1e-12)
