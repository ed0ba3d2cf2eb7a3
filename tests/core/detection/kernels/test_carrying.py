"""The probability of carrying a block against the oracle's likelihood."""

from __future__ import annotations

import math

import numpy as np
import pytest

import oracle
from alimark.core._util.arrays import Floats
from alimark.core.frozen.kernels.soft import carried_blocks, carrying_chances, worth_tables
from alimark.core.frozen.kernels.types import SoftRule
from alimark.core.frozen.soft_rules import RULES

FIRST = np.zeros(1, np.int64)


def likelihood(worths: Floats, rule: SoftRule) -> float:
    return oracle.soft_likelihood(worths.tolist(), rule._asdict())


@pytest.mark.parametrize("rule", RULES)
def test_the_probability_of_carrying_a_block_is_a_derivative_of_the_likelihood(rule: SoftRule) -> None:
    worths = np.random.default_rng(1).normal(size=(4, 5)) + 1.5 * np.eye(4, 5)
    ratios = np.exp(rule.worth * worths - rule.worth**2 / 2)
    carried = carried_blocks(ratios, np.array(rule), FIRST)
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
        carried = carried_blocks(np.exp(rule.worth * worths - rule.worth**2 / 2), np.array(rule), FIRST)
        expected += ratio * carried.sum(axis=1)
        total += ratio
    chances = carrying_chances(worth_tables(units), blocks, RULES[2:4], weights, FIRST, np.ones(4))
    assert chances == pytest.approx(expected / total)
    assert ((chances > 0) & (chances < 1)).all()
