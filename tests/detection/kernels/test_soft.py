"""The kernels for soft decisions against the plain oracle."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import oracle
from alimark.detection.kernels.soft import (
    search_local_soft,
    search_soft,
    trace_local_soft,
    trace_soft,
    worth_tables,
)
from alimark.detection.kernels.types import MATCH, SEVERAL, LocalCosts, SoftRule
from alimark.detection.soft_versions import SOFT_VERSIONS, SoftVersion

RULES = SOFT_VERSIONS[2].rules


class Case:
    """A random text and random keys; half of the worths follow the first key, so that more than chance is aligned."""

    def __init__(self, seed: int, count: int, m: int, length: int, keys: int = 3) -> None:
        rng = np.random.default_rng(seed)
        bits = rng.integers(0, 2, (keys, length, m))
        self.signs = (2.0 * bits - 1) / math.sqrt(m)
        powers = [1 << p for p in range(m)][::-1]
        self.blocks = np.array(
            [[sum(p for p, b in zip(powers, row, strict=True) if b) for row in key] for key in bits], np.uint64
        )
        self.units = rng.normal(size=(count, 2, m))
        for i in range(min(count, length)):
            self.units[i, rng.integers(0, 2)] += 2.0 * self.signs[0, i]
        self.joinable = rng.random(count) < 0.7
        self.joinable[0] = False
        shares = rng.dirichlet([4, *[1] * 8])
        self.rule = SoftRule(
            rng.uniform(0.5, 2), shares[1], shares[2], rng.uniform(0, 1), shares[3], shares[4], rng.uniform(0.1, 0.9),
            *shares[5:9],
        )  # fmt: skip

    @property
    def wandering(self) -> SoftRule:
        """A rule by which the text may leave the blocks, too."""
        rng = np.random.default_rng(len(self.units))
        usual = 1 - sum(self.rule[1:3]) - sum(self.rule[4:6]) - sum(self.rule[7:11])
        return self.rule._replace(outside=rng.uniform(), leaving=rng.uniform(0, usual), staying=rng.uniform(),
                                  resumed=rng.uniform())  # fmt: skip

    @property
    def tables(self) -> Any:
        return worth_tables(self.units)

    def worths(self, key: int) -> tuple[list[list[float]], list[list[float] | None]]:
        worths = np.einsum("irm,jm->rij", self.units, self.signs[key])
        joined = [row if can else None for row, can in zip(worths[1].tolist(), self.joinable, strict=True)]
        return worths[0].tolist(), joined

    def search(self, *rules: SoftRule, weights: Sequence[float] | None = None) -> Any:
        keys = np.arange(len(self.blocks))
        return search_soft(
            self.tables, self.joinable, self.blocks, np.array([self.blocks.shape[1]]), rules or (self.rule,),
            starts=np.array([0, len(self.units)]), texts=np.zeros(len(keys), np.int64), keys=keys,
            weights=weights,
        )  # fmt: skip


cases = st.builds(
    Case, seed=st.integers(0, 2**32), count=st.integers(1, 7), m=st.integers(1, 64), length=st.integers(1, 8)
)


@settings(max_examples=150, deadline=None)
@given(case=cases)
def test_the_score_is_the_oracles_likelihood(case: Case) -> None:
    plain = [math.log(oracle.soft_likelihood(*case.worths(key), case.rule._asdict())) for key in range(3)]
    np.testing.assert_allclose(case.search(), plain, rtol=1e-9, atol=1e-9)
    without = case.rule.without_restructuring()
    plain = [math.log(oracle.soft_likelihood(*case.worths(key), without._asdict())) for key in range(3)]
    np.testing.assert_allclose(case.search(without), plain, rtol=1e-9, atol=1e-9)


@settings(max_examples=80, deadline=None)
@given(case=cases)
def test_the_score_of_several_rules_is_their_mean_likelihood(case: Case) -> None:
    rules = (case.rule, case.wandering, case.rule.without_restructuring())
    plain = [
        math.log(sum(oracle.soft_likelihood(*case.worths(key), rule._asdict()) for rule in rules) / 3)
        for key in range(3)
    ]
    np.testing.assert_allclose(case.search(*rules), plain, rtol=1e-9, atol=1e-9)


@settings(max_examples=60, deadline=None)
@given(case=cases, seed=st.integers(0, 2**32))
def test_rules_count_as_their_weights_say(case: Case, seed: int) -> None:
    rules = (case.rule, case.wandering, case.rule.without_restructuring())
    weights = np.random.default_rng(seed).dirichlet([1, 1, 1])
    plain = [
        math.log(
            sum(
                weight * oracle.soft_likelihood(*case.worths(key), rule._asdict())
                for rule, weight in zip(rules, weights, strict=True)
            )
        )
        for key in range(3)
    ]
    np.testing.assert_allclose(case.search(*rules, weights=weights.tolist()), plain, rtol=1e-9, atol=1e-9)


def test_equal_weights_are_no_weights() -> None:
    case = Case(1, 5, 16, 6)
    rules = (case.rule, case.wandering)
    np.testing.assert_array_equal(case.search(*rules, weights=[0.5, 0.5]), case.search(*rules))
    np.testing.assert_allclose(case.search(*rules, weights=[1.0, 1e-300]), case.search(case.rule), rtol=1e-9)


def test_a_text_without_merged_sentences_has_one_unit_for_each() -> None:
    """As of a version that merges nothing: the kernels do not read the units of two sentences that are not there."""
    case = Case(4, 6, 32, 9)
    case.joinable[:] = False
    both, costs = case.search(), LocalCosts(1.0, 1.0, 1.0, 1.2)
    local = search_local_soft(case.tables, case.joinable, case.blocks, costs)
    shown = trace_soft(case.tables, case.joinable, case.blocks[0], case.rule)
    case.units = case.units[:, :1]
    np.testing.assert_array_equal(case.search(), both)
    np.testing.assert_array_equal(search_local_soft(case.tables, case.joinable, case.blocks, costs), local)
    assert trace_soft(case.tables, case.joinable, case.blocks[0], case.rule) == shown


@pytest.mark.parametrize("version", SOFT_VERSIONS.values(), ids=SOFT_VERSIONS)
def test_the_rules_of_every_version_are_probabilities(version: SoftVersion) -> None:
    for rule in version.rules:
        assert rule.worth == version.rules[0].worth
        assert all(0 <= chance <= 1 for chance in rule[1:])
        assert rule.foreign + rule.replaced + rule.repeated + rule.skipped + sum(rule[7:11]) + rule.leaving < 1
        assert version.restructures or rule == rule.without_restructuring()
    if version.weights is not None:
        assert len(version.weights) == len(version.rules)
        assert min(version.weights) > 0
        assert sum(version.weights) == pytest.approx(1)


def test_rules_of_several_worths_are_refused() -> None:
    case = Case(1, 3, 8, 4)
    with pytest.raises(ValueError, match="worth"):
        case.search(case.rule, case.rule._replace(worth=9.0))


@settings(max_examples=100, deadline=None)
@given(case=cases)
def test_the_alignment_shown_is_the_likeliest(case: Case) -> None:
    best, steps = trace_soft(case.tables, case.joinable, case.blocks[0], case.rule)
    plain = oracle.soft_likelihood(*case.worths(0), case.rule._asdict(), best=max)
    assert best == pytest.approx(math.log(plain), rel=1e-9, abs=1e-9)
    told = [step.last - back for step in steps for back in range(step.merged + 1) if step.kind != 2]
    assert sorted(set(told)) == list(range(len(case.units)))  # every sentence is told of


@settings(max_examples=100, deadline=None)
@given(case=cases, seed=st.integers(0, 2**32))
def test_the_local_search_is_the_oracles(case: Case, seed: int) -> None:
    costs = LocalCosts(*np.random.default_rng(seed).uniform(0.1, 1.5, 4))
    plain = [oracle.soft_local(*case.worths(key), costs) for key in range(3)]
    np.testing.assert_allclose(search_local_soft(case.tables, case.joinable, case.blocks, costs), plain, atol=1e-9)
    best, steps = trace_local_soft(case.tables, case.joinable, case.blocks[0], costs)
    assert best == pytest.approx(plain[0], abs=1e-9)
    assert bool(steps) == (best > 0)


def test_rounding_does_not_choose_between_equal_alignments() -> None:
    """The blocks of a run are the same, so alignments that skip different ones of them are equally likely."""
    case = Case(5, 9, 32, 12)
    run = case.blocks[0][[0] * 6 + [6] * 6]
    for i in range(9):  # two sentences of the first run were deleted, and one of the second
        case.units[i, 0] = 3 * case.signs[0, 0 if i < 4 else 6] + np.random.default_rng(i).normal(size=32)
    shown = trace_soft(case.tables, case.joinable, run, SOFT_VERSIONS[3].rules[0])[1]
    rng = np.random.default_rng(1)
    for _ in range(50):
        rounded = case.tables * (1 + 1e-14 * rng.standard_normal(case.tables.shape))
        assert trace_soft(rounded, case.joinable, run, SOFT_VERSIONS[3].rules[0])[1] == shown


def test_lengths_and_texts_are_kept_apart() -> None:
    first, second = Case(1, 5, 32, 8), Case(2, 7, 32, 8)
    together = search_soft(
        np.concatenate([first.tables, second.tables]), np.concatenate([first.joinable, second.joinable]), second.blocks,
        np.array([6, 8]), RULES, starts=np.array([0, 5, 12]), texts=np.array([1, 0]), keys=np.array([2, 1]),
    )  # fmt: skip
    alone = [
        search_soft(
            case.tables, case.joinable, second.blocks[:, :length], np.array([length]), RULES,
            starts=np.array([0, len(case.units)]), texts=np.zeros(1, np.int64), keys=np.array([key]),
        )[0]
        for case, length, key in ((second, 8, 2), (first, 6, 1))
    ]  # fmt: skip
    np.testing.assert_allclose(together, alone, rtol=1e-12)


def test_one_sentence_that_holds_two_blocks_is_told_as_a_split() -> None:
    case = Case(3, 4, 32, 5)
    case.units[:, 0] = np.random.default_rng(0).normal(size=(4, 32))
    for i, blocks in enumerate(([0], [1, 2], [3], [4])):
        case.units[i, 0] += 4 * sum(case.signs[0, block] for block in blocks)
    _, steps = trace_soft(case.tables, case.joinable, case.blocks[0], RULES[0])
    held = [step.block for step in steps if step.kind == MATCH and step.cut == SEVERAL]
    assert held == [1, 2]
