"""The sentences that a text needs: tabled values are those of the simulation, and each case is simulated once."""

from __future__ import annotations

import pickle
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from alimark.core.detection.stats import power
from alimark.core.detection.stats.power import SentencesNeeded, sentences_needed, simulate_sentences_needed


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
