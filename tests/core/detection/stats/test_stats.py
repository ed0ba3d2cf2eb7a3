"""P-values by random keys and their tail, null tables, and the sentences that a text needs: against SciPy and simulations."""

import json
import math
import pickle
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from alimark.core.detection.stats import null_tables, power
from alimark.core.detection.stats import p_values as sig
from alimark.core.detection.stats.power import SentencesNeeded, sentences_needed, simulate_sentences_needed
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

    def test_other_sizes_and_lengths_are_computed_once(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
        computed = null_tables.reference_rule(8, 12)
        # Pooled over all lengths, the deviation at 12 is nearly twice that of length 12 alone.
        assert computed.std[12] / null_tables.null_table(8, 200).std[11] == pytest.approx(1.8, abs=0.15)
        path.write_text("[]")
        with pytest.raises(AlimarkError, match="is not a table"):
            null_tables.read_reference(path)

    def test_prefix_lengths_are_whole_blocks(self) -> None:
        least, most = null_tables.prefix_lengths(2000)
        assert (least[13], most[13], least[1], most[1]) == (7, 20, 1, 2)
        assert least.tolist() == [max(1, (n + 1) // 2) for n in range(2001)]
        assert most.tolist() == [max(1, (3 * n + 1) // 2) for n in range(2001)]
        with pytest.raises(AlimarkError, match="alpha"):
            null_tables.prefix_lengths(5, alpha=1.2)


# The sentences that a text needs


@pytest.fixture
def simulations(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, float]]:
    """The cases that are simulated during a test."""
    cases = []

    def simulate(block_size: int, fpr: float, _: int) -> int:
        cases.append((block_size, fpr))
        return 9

    monkeypatch.setattr(power, "_simulated", {})
    monkeypatch.setattr(power, "simulate_sentences_needed", simulate)
    return cases


def test_more_sentences_for_rarer_errors_and_fewer_for_soft_keys() -> None:
    rates: Any = sentences_needed(8, 0.01), sentences_needed(8, 1e-6), sentences_needed(32, 0.01, True)
    needed, rarer, soft = rates
    assert 1 < soft <= needed
    assert rarer > needed


def test_the_share_of_agreeing_bits_depends_on_the_block_size() -> None:
    """0.82 was measured for 8 bits. The best of 64 candidates matches nearly all of 2 bits, and not 0.82 of 32."""
    shares = [power.typical_agreement(m) for m in (1, 2, 4, 8, 16, 32, 64)]
    assert shares == sorted(shares, reverse=True)
    assert power.typical_agreement(8) == pytest.approx(0.82, abs=0.001)
    assert power.typical_agreement(2) > 0.99
    assert 0.6 < power.typical_agreement(32) < 0.7
    best_of_twenty = np.random.default_rng(1).binomial(32, 0.5, (20_000, 20)).max(axis=1).mean() / 32
    assert power.typical_agreement(32) == pytest.approx(best_of_twenty, abs=0.005)


def test_two_sentences_are_not_enough_for_any_block_size() -> None:
    assert {sentences_needed(m, 0.01) for m in (2, 4, 8, 16, 32)} <= {3, 4, 5, 6, 7, 8}


def test_beyond_the_longest_text_there_is_no_number() -> None:
    assert simulate_sentences_needed(8, 0.01, longest=1) is None


@pytest.mark.parametrize(
    ("block_size", "fpr"), [(4, 0.05), (8, 0.05), (8, 0.01), (8, 0.001), (2, 0.01), (16, 0.01), (32, 0.01)]
)
def test_tabled_values_are_those_of_the_simulation(block_size: int, fpr: float) -> None:
    assert sentences_needed(block_size, fpr) == simulate_sentences_needed(block_size, fpr)


@pytest.mark.parametrize(("block_size", "fpr"), [(32, 0.05), (32, 0.01)])
def test_tabled_values_of_soft_keys_are_close_to_the_simulation(block_size: int, fpr: float) -> None:
    """One sentence of slack as long as these numbers are not frozen."""
    needed: Any = sentences_needed(block_size, fpr, True)
    assert abs(needed - simulate_sentences_needed(block_size, fpr, True)) <= 1


def test_common_rates_are_not_simulated(simulations: list[tuple[int, float]]) -> None:
    for fpr in (0.05, 0.01, 0.001, 1e-4, 1e-6):
        assert sentences_needed(8, fpr) is not None
        assert sentences_needed(32, fpr, True) is not None
    assert simulations == []


def test_any_other_rate_is_simulated_once_by_all_threads(simulations: list[tuple[int, float]]) -> None:
    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(lambda _: sentences_needed(8, 0.02), range(9))) == [9] * 9
    assert simulations == [(8, 0.02)]


def test_offsets_cost_as_much_as_keys_and_excerpts_half_as_much_again() -> None:
    assert SentencesNeeded(8)(0.01) == sentences_needed(8, 0.01) == 6
    assert SentencesNeeded(8, excerpt=True)(0.01) == 9
    assert SentencesNeeded(8, offsets=10)(0.01) == sentences_needed(8, 0.001)
    same = pickle.loads(pickle.dumps(SentencesNeeded(8)))  # noqa: S301
    assert same == SentencesNeeded(8)
