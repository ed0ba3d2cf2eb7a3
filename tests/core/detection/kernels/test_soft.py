"""The kernels for soft decisions against the plain oracle."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import oracle
from alimark.core._util.arrays import Floats
from alimark.core.frozen.kernels.lanes import LANES
from alimark.core.frozen.kernels.runs import RunRule, search_runs, trace_runs
from alimark.core.frozen.kernels.soft import (
    FIRST_BLOCK,
    LocalUnits,
    carried_blocks,
    carrying_chances,
    search_local_soft,
    search_soft,
    trace_local_soft,
    trace_soft,
    worth_tables,
)
from alimark.core.frozen.kernels.types import MATCH, SKIP_BLOCK, LocalCosts, SoftRule
from alimark.core.frozen.rules import RULES, WEIGHTS


def random_blocks(rng: np.random.Generator, keys: int, length: int, m: int) -> tuple[Any, Any]:
    """The blocks of random keys, as signs and packed."""
    bits = rng.integers(0, 2, (keys, length, m))
    powers = [1 << p for p in range(m)][::-1]
    packed = [[sum(p for p, b in zip(powers, row, strict=True) if b) for row in key] for key in bits]
    return (2.0 * bits - 1) / math.sqrt(m), np.array(packed, np.uint64)


class Case:
    """A random text and random keys; half of the worths follow the first key, so that more than chance is aligned."""

    def __init__(self, seed: int, count: int, m: int, length: int, keys: int = 3) -> None:
        rng = np.random.default_rng(seed)
        self.signs, self.blocks = random_blocks(rng, keys, length, m)
        self.units = rng.normal(size=(count, m))
        for i in range(0, min(count, length), 2):
            self.units[i] += 2.0 * self.signs[0, i]
        shares = rng.dirichlet([4, *[1] * 5])
        self.rule = SoftRule(
            rng.uniform(0.5, 2), shares[1], shares[2], rng.uniform(0, 1), shares[3], shares[4], rng.uniform(0.1, 0.9),
            shares[5],
        )  # fmt: skip

    @property
    def wandering(self) -> SoftRule:
        """A rule by which the text may leave the blocks, too."""
        rng = np.random.default_rng(len(self.units))
        usual = 1 - sum(self.rule[1:3]) - sum(self.rule[4:6]) - self.rule.jump
        return self.rule._replace(outside=rng.uniform(), leaving=rng.uniform(0, usual), staying=rng.uniform(),
                                  resumed=rng.uniform())  # fmt: skip

    @property
    def tables(self) -> Any:
        return worth_tables(self.units)

    def worths(self, key: int) -> list[list[float]]:
        worths: list[list[float]] = (self.units @ self.signs[key].T).tolist()
        return worths

    def search(self, *rules: SoftRule, weights: Sequence[float] | None = None, first_blocks: Any = FIRST_BLOCK) -> Any:
        keys = np.arange(len(self.blocks))
        return search_soft(
            self.tables, self.blocks, np.array([self.blocks.shape[1]]), rules or (self.rule,),
            starts=np.array([0, len(self.units)]), texts=np.zeros(len(keys), np.int64), keys=keys,
            weights=weights, first_blocks=first_blocks,
        )  # fmt: skip


cases = st.builds(
    Case, seed=st.integers(0, 2**32), count=st.integers(1, 7), m=st.integers(1, 64), length=st.integers(1, 8)
)


@settings(max_examples=200, deadline=None)
@given(case=cases, seed=st.integers(0, 2**32))
def test_the_score_is_the_mean_of_the_oracles_likelihoods_by_the_weights_of_the_rules(case: Case, seed: int) -> None:
    rules, weights = (case.rule, case.wandering), np.random.default_rng(seed).dirichlet([1, 1])
    plain = np.array([
        [oracle.soft_likelihood(case.worths(key), rule._asdict()) for rule in rules] for key in range(3)
    ])  # fmt: skip
    for scores, likelihoods in (
        (case.search(), plain[:, 0]),
        (case.search(*rules), plain.mean(axis=1)),
        (case.search(*rules, weights=weights.tolist()), plain @ weights),
    ):
        np.testing.assert_allclose(scores, np.log(likelihoods), rtol=1e-9, atol=1e-9)


def test_equal_weights_are_no_weights() -> None:
    case = Case(1, 5, 16, 6)
    rules = (case.rule, case.wandering)
    np.testing.assert_array_equal(case.search(*rules, weights=[0.5, 0.5]), case.search(*rules))
    np.testing.assert_allclose(case.search(*rules, weights=[1.0, 1e-300]), case.search(case.rule), rtol=1e-9)


def test_rules_of_several_worths_are_refused() -> None:
    case = Case(1, 3, 8, 4)
    with pytest.raises(ValueError, match="worth"):
        case.search(case.rule, case.rule._replace(worth=9.0))


@settings(max_examples=100, deadline=None)
@given(case=cases)
def test_the_alignment_shown_is_the_likeliest(case: Case) -> None:
    best, steps = trace_soft(case.tables, case.blocks[0], case.rule)
    plain = oracle.soft_likelihood(case.worths(0), case.rule._asdict(), best=max)
    assert best == pytest.approx(math.log(plain), rel=1e-9, abs=1e-9)
    told = [step.last for step in steps if step.kind != 2]
    assert sorted(set(told)) == list(range(len(case.units)))  # every sentence is told of


@settings(max_examples=50, deadline=None)
@given(
    case=st.builds(
        Case, seed=st.integers(0, 2**32), count=st.integers(1, 6), m=st.integers(1, 64), length=st.integers(1, 9)
    ),
    first_blocks=st.one_of(
        st.integers(1, 6).map(lambda offsets: list(range(offsets))),
        st.lists(st.integers(1, 12), unique=True, max_size=5).map(lambda starts: [0, *sorted(starts)]),
    ),
)
def test_the_soft_score_is_the_oracles_over_all_starts(case: Case, first_blocks: list[int]) -> None:
    """Also over starts with gaps, as of keys whose blocks serve several sentences, and over some beyond the last block."""
    keys, starts = np.arange(3), np.array(first_blocks)
    for rules in ((case.rule,), (case.wandering,), (case.rule, case.wandering)):
        scores = search_soft(
            case.tables, case.blocks, np.array([case.blocks.shape[1]]), rules,
            starts=np.array([0, len(case.units)]), texts=0 * keys, keys=keys, first_blocks=starts,
        )  # fmt: skip
        every = [
            [oracle.soft_likelihood(case.worths(key), rule._asdict(), first_blocks=first_blocks) for rule in rules]
            for key in range(3)
        ]
        np.testing.assert_allclose(scores, np.log(np.mean(every, axis=1)), rtol=1e-9, atol=1e-9)
    chances = case.rule._asdict()
    best, _ = trace_soft(case.tables, case.blocks[0], case.rule, starts)
    likeliest = oracle.soft_likelihood(case.worths(0), chances, best=max, first_blocks=first_blocks)
    assert best == pytest.approx(math.log(likeliest), rel=1e-9, abs=1e-9)


@settings(max_examples=100, deadline=None)
@given(case=cases, seed=st.integers(0, 2**32), joins=st.booleans())
def test_the_local_search_is_the_oracles(case: Case, seed: int, joins: bool) -> None:
    """Of sentences, and of the pieces of a text without full stops, of which two may make a sentence."""
    rng = np.random.default_rng(seed)
    costs = LocalCosts(*rng.uniform(0.1, 1.5, 4))
    pairs, joinable = rng.normal(size=case.units.shape), joins & (rng.random(len(case.units)) < 0.7)
    units = LocalUnits(case.tables, worth_tables(pairs), joinable)
    plain = []
    for key in range(3):
        worths = (pairs @ case.signs[key].T).tolist()
        joined = [row if can else None for row, can in zip(worths, joinable, strict=True)]
        plain.append(oracle.soft_local(case.worths(key), joined, costs))
    np.testing.assert_allclose(search_local_soft(units, case.blocks, costs), plain, atol=1e-9)
    best, steps = trace_local_soft(units, case.blocks[0], costs)
    assert best == pytest.approx(plain[0], abs=1e-9)
    assert bool(steps) == (best > 0)


def test_rounding_does_not_choose_between_equal_alignments() -> None:
    """The blocks of a run are the same, so alignments that skip different ones of them are equally likely."""
    case = Case(5, 9, 32, 12)
    run = case.blocks[0][[0] * 6 + [6] * 6]
    for i in range(9):  # two sentences of the first run were deleted, and one of the second
        case.units[i] = 3 * case.signs[0, 0 if i < 4 else 6] + np.random.default_rng(i).normal(size=32)
    shown = trace_soft(case.tables, run, RULES[0])[1]
    rng = np.random.default_rng(1)
    for _ in range(50):
        rounded = case.tables * (1 + 1e-14 * rng.standard_normal(case.tables.shape))
        assert trace_soft(rounded, run, RULES[0])[1] == shown


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32), texts=st.lists(st.integers(0, 2), min_size=1, max_size=4 * LANES))
def test_jobs_in_any_order_have_the_scores_of_each_job_alone(seed: int, texts: list[int]) -> None:
    cases, lengths = [Case(seed, count, 64, 14, 5) for count in (3, 8, 5)], np.array([6, 14, 9])
    tables, blocks = np.concatenate([case.tables for case in cases]), cases[0].blocks
    keys = np.random.default_rng(seed).integers(0, 5, len(texts))
    together = search_soft(
        tables, blocks, lengths, RULES, starts=np.array([0, 3, 11, 16]), texts=np.array(texts), keys=keys
    )
    alone = [
        search_soft(
            cases[text].tables, blocks[:, : lengths[text]], lengths[[text]], RULES,
            starts=np.array([0, len(cases[text].units)]), texts=np.zeros(1, np.int64), keys=keys[[job]],
        )[0]
        for job, text in enumerate(texts)
    ]  # fmt: skip
    np.testing.assert_array_equal(together, alone)


def test_the_rules_are_probabilities() -> None:
    for rule in RULES:
        assert rule.worth == RULES[0].worth
        assert all(0 <= chance <= 1 for chance in rule[1:])
        assert rule.foreign + rule.replaced + rule.repeated + rule.skipped + rule.jump + rule.leaving < 1
    assert len(WEIGHTS) == len(RULES)
    assert min(WEIGHTS) > 0
    assert sum(WEIGHTS) == pytest.approx(1)


# The probability of carrying a block


def likelihood(worths: Floats, rule: SoftRule) -> float:
    return oracle.soft_likelihood(worths.tolist(), rule._asdict())


@pytest.mark.parametrize("rule", RULES)
def test_the_probability_of_carrying_a_block_is_a_derivative_of_the_likelihood(rule: SoftRule) -> None:
    worths = np.random.default_rng(1).normal(size=(4, 5)) + 1.5 * np.eye(4, 5)
    ratios = np.exp(rule.worth * worths - rule.worth**2 / 2)
    carried = carried_blocks(ratios, np.array(rule), FIRST_BLOCK)
    step = 1e-5
    for i in range(4):
        for j in range(5):
            moved = np.zeros((4, 5))
            moved[i, j] = step
            slope = math.log(likelihood(worths + moved, rule) / likelihood(worths - moved, rule)) / (2 * step)
            assert carried[i, j] == pytest.approx(slope / rule.worth, abs=1e-6)


def test_rules_count_by_their_likelihood() -> None:
    rng = np.random.default_rng(2)
    m, blocks = 16, rng.integers(0, 1 << 16, 10, np.uint64)
    bits = (blocks[:4, None] >> np.arange(m, dtype=np.uint64)[::-1]) & np.uint64(1)
    units = rng.normal(size=(4, m)) + 1.5 * (2.0 * bits - 1) / np.sqrt(m)
    signs = 2.0 * ((blocks[:, None] >> np.arange(m, dtype=np.uint64)[::-1]) & np.uint64(1)) - 1
    worths = units @ signs.T / np.sqrt(m)
    weights = (0.7, 0.3)
    expected, total = np.zeros(4), 0.0
    for rule, weight in zip(RULES[2:4], weights, strict=True):
        ratio = weight * likelihood(worths, rule)
        carried = carried_blocks(np.exp(rule.worth * worths - rule.worth**2 / 2), np.array(rule), FIRST_BLOCK)
        expected += ratio * carried.sum(axis=1)
        total += ratio
    chances = carrying_chances(worth_tables(units), blocks, RULES[2:4], weights, FIRST_BLOCK, np.ones(4))
    assert chances == pytest.approx(expected / total)
    assert ((chances > 0) & (chances < 1)).all()


# Texts whose sentence ends are not known


class RunCase:
    """Random pieces with random sentence ends, and random keys; some runs follow the first key."""

    def __init__(self, seed: int, count: int, m: int, length: int, starts: int) -> None:
        rng = np.random.default_rng(seed)
        self.signs, self.blocks = random_blocks(rng, 2, length, m)
        self.units = rng.normal(size=(count, 3, m))
        self.units[:, 0] += self.signs[0, rng.integers(0, length, count)]
        self.chances = rng.random((count, 3)) * (rng.random((count, 3)) < 0.8)
        self.chances[:, 0] += 0.1
        for i in range(min(2, count)):
            self.chances[i, i + 1 :] = 0
        foreign, replaced, repeated, skipped = rng.dirichlet([4, 1, 1, 1, 1])[1:]
        worth = rng.uniform(0.5, 2)
        further = rng.uniform(0.1, 0.9)
        self.rule = RunRule(worth, -(worth**2) / 2, foreign, replaced, repeated, skipped, further)
        self.first_blocks = np.arange(min(starts, length))

    def search(self) -> Any:
        return search_runs(
            worth_tables(self.units), self.chances, self.blocks, np.array([self.blocks.shape[1]]), self.rule,
            starts=np.array([0, len(self.units)]), texts=np.zeros(2, np.int64), keys=np.arange(2),
            first_blocks=self.first_blocks,
        )  # fmt: skip

    def expected(self, key: int, best: Any = sum) -> float:
        worths = np.einsum("irm,jm->irj", self.units, self.signs[key])
        ratios = np.exp(self.rule.worth * worths + self.rule.log_norm)
        runs = [(last - r, last, r) for last in range(len(self.units)) for r in range(min(3, last + 1))]
        return oracle.runs_likelihood(
            {(first, last): ratios[last, r].tolist() for first, last, r in runs},
            {(first, last): float(self.chances[last, r]) for first, last, r in runs},
            self.rule._asdict(), best, self.first_blocks.tolist(),
        )  # fmt: skip


run_cases = st.builds(
    RunCase, seed=st.integers(0, 2**32), count=st.integers(1, 6), m=st.integers(1, 64), length=st.integers(1, 6),
    starts=st.integers(1, 3),
)  # fmt: skip


@settings(max_examples=40, deadline=None)
@given(run_cases)
def test_the_sum_over_all_sentences_and_alignments(case: RunCase) -> None:
    assert case.search() == pytest.approx([math.log(case.expected(key)) for key in range(2)], abs=1e-9)


@settings(max_examples=40, deadline=None)
@given(run_cases)
def test_the_likeliest_alignment_covers_the_text(case: RunCase) -> None:
    best, steps = trace_runs(
        worth_tables(case.units), case.chances, case.blocks[0], case.rule, case.first_blocks
    )  # fmt: skip
    assert best == pytest.approx(math.log(case.expected(0, max)), abs=1e-9)
    pieces = [i for s in steps if s.kind != SKIP_BLOCK for i in range(s.last - s.merged, s.last + 1)]
    assert pieces == list(range(len(case.units)))
    carried = [step.block for step in steps if step.kind == MATCH]
    assert carried == sorted(carried)
