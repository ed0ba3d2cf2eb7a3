"""The kernels for texts whose sentence ends are not known against the plain oracle."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import oracle
from alimark.core.frozen.kernels.runs import RunRule, search_runs, trace_runs
from alimark.core.frozen.kernels.soft import worth_tables
from alimark.core.frozen.kernels.types import MATCH, SKIP_BLOCK


class Case:
    """Random pieces with random sentence ends, and random keys; some runs follow the first key."""

    def __init__(self, seed: int, count: int, m: int, length: int, starts: int) -> None:
        rng = np.random.default_rng(seed)
        bits = rng.integers(0, 2, (2, length, m))
        self.signs = (2.0 * bits - 1) / math.sqrt(m)
        powers = [1 << p for p in range(m)][::-1]
        self.blocks = np.array(
            [[sum(p for p, b in zip(powers, row, strict=True) if b) for row in key] for key in bits], np.uint64
        )
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


cases = st.builds(
    Case, seed=st.integers(0, 2**32), count=st.integers(1, 6), m=st.integers(1, 64), length=st.integers(1, 6),
    starts=st.integers(1, 3),
)  # fmt: skip


@settings(max_examples=40, deadline=None)
@given(cases)
def test_the_sum_over_all_sentences_and_alignments(case: Case) -> None:
    assert case.search() == pytest.approx([math.log(case.expected(key)) for key in range(2)], abs=1e-9)


@settings(max_examples=40, deadline=None)
@given(cases)
def test_the_likeliest_alignment_covers_the_text(case: Case) -> None:
    best, steps = trace_runs(
        worth_tables(case.units), case.chances, case.blocks[0], case.rule, case.first_blocks
    )  # fmt: skip
    assert best == pytest.approx(math.log(case.expected(0, max)), abs=1e-9)
    pieces = [i for s in steps if s.kind != SKIP_BLOCK for i in range(s.last - s.merged, s.last + 1)]
    assert pieces == list(range(len(case.units)))
    carried = [step.block for step in steps if step.kind == MATCH]
    assert carried == sorted(carried)
