"""The search over all starts of a text, for hard and soft bits, against the oracles."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_hard import Case, a_rule
from test_soft import Case as SoftCase

import oracle
from alimark.core.frozen.kernels import hard as alignment
from alimark.core.frozen.kernels.soft import search_soft, trace_soft
from alimark.core.frozen.kernels.types import Limits


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32), count=st.integers(1, 5), m=st.integers(1, 64), offsets=st.integers(1, 6))
def test_hard_bits_are_searched_from_every_block_on(seed: int, count: int, m: int, offsets: int) -> None:
    limits, rule = Limits.of("single"), a_rule(seed, 0.5, 1.5, False)
    case = Case(seed, count, m, limits, keys=3, blocks=12 + offsets)
    result = alignment.search(case.units, case.valid, case.packed, m, limits, rule, offsets=offsets)
    for key in range(3):
        every = [
            oracle.score(
                count, case.bits, case.splittable.tolist(), case.secret(key)[start:], m,
                mean=dict(enumerate(rule.mean)), std=dict(enumerate(rule.std)),
            )
            for start in range(offsets)
        ]  # fmt: skip
        assert result.z[key] == max(every)
        assert every[result.offset[key]] == max(every)
        alone = alignment.search(case.units, case.valid, case.packed[key][None], m, limits, rule, offsets=offsets)
        assert (alone.z[0], alone.offset[0]) == (result.z[key], result.offset[key])


@settings(max_examples=50, deadline=None)
@given(
    case=st.builds(
        SoftCase, seed=st.integers(0, 2**32), count=st.integers(1, 6), m=st.integers(1, 64), length=st.integers(1, 9)
    ),
    first_blocks=st.one_of(
        st.integers(1, 6).map(lambda offsets: list(range(offsets))),
        st.lists(st.integers(1, 12), unique=True, max_size=5).map(lambda starts: [0, *sorted(starts)]),
    ),
)
def test_the_soft_score_is_the_oracles_over_all_starts(case: SoftCase, first_blocks: list[int]) -> None:
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
