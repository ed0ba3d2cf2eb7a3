"""Every kernel for hard bits against the plain oracle, on random texts, secrets and limits, and the public code's scores."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import oracle
from alimark.core.detection.stats.null_tables import prefix_lengths, reference_rule
from alimark.core.frozen.kernels import hard as alignment
from alimark.core.frozen.kernels.hard import search
from alimark.core.frozen.kernels.types import (
    LEFT,
    MATCH,
    RIGHT,
    SKIP_BLOCK,
    SKIP_SENTENCE,
    WHOLE,
    Limits,
    LocalCosts,
    Step,
    ZRule,
)

CASES = 600


class Case:
    """A random text and secret, for the kernels (packed) and for the oracle (tuples of bits)."""

    def __init__(self, seed: int, count: int, m: int, limits: Limits, keys: int = 2, blocks: int | None = None) -> None:
        rng = np.random.default_rng(seed)
        self.count, self.m, self.limits = count, m, limits
        self.splittable = rng.random(count) < 0.8
        depth = max(2, limits.merges + 1)
        self.units = np.zeros((count, depth, 4), np.uint64)
        self.valid = np.zeros((count, depth, 4), bool)
        self.bits: dict[oracle.Run, oracle.Bits] = {}
        length = blocks or max(1, math.ceil(2.0 * (count + limits.splits)))
        # Half of the secrets follow the text, so that matches and not only chance are aligned.
        self.blocks = rng.integers(0, 2, (keys, length, m))
        for i in range(count):
            for k in range(min(i, limits.merges) + 1):
                for s in (0, 1):
                    for e in (0, 1):
                        self._unit(rng, i, k, s, e)
        self.packed = self._pack(self.blocks)

    def _unit(self, rng: np.random.Generator, i: int, k: int, s: int, e: int) -> None:
        cuts = (not s or self.splittable[i - k]) and (not e or self.splittable[i])
        if not cuts or not self.limits.allow(k, s, e):
            return
        drawn = rng.integers(0, 2, self.m)
        near = self.blocks[0, min(i, self.blocks.shape[1] - 1)]
        drawn = np.where(rng.random(self.m) < 0.6, near, drawn)
        self.bits[(i - k, i, bool(s), bool(e))] = tuple(int(b) for b in drawn)
        self.units[i, k, s + 2 * e] = self._pack(drawn[None])[0]
        self.valid[i, k, s + 2 * e] = True

    @staticmethod
    def _pack(bits: np.ndarray) -> np.ndarray:
        powers = [1 << p for p in range(bits.shape[-1])][::-1]
        flat = [sum(p for p, b in zip(powers, row, strict=True) if b) for row in bits.reshape(-1, bits.shape[-1])]
        return np.array(flat, np.uint64).reshape(bits.shape[:-1])

    def secret(self, key: int) -> list[oracle.Bits]:
        return [tuple(int(b) for b in row) for row in self.blocks[key]]


def a_rule(seed: int, alpha: float, beta: float, by_longer: bool, upto: int = 60) -> ZRule:
    rng = np.random.default_rng(seed)
    return ZRule(
        0.5 - 0.1 * rng.random(2 * upto),
        0.03 + 0.1 * rng.random(2 * upto),
        by_longer,
        *prefix_lengths(upto, alpha, beta),
    )


LIMITS = st.one_of(
    st.sampled_from(["none", "single"]).map(Limits.of), st.tuples(st.integers(0, 2), st.integers(0, 2)).map(Limits.of)
)


@settings(max_examples=CASES, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    count=st.integers(1, 6),
    m=st.integers(1, 64),
    limits=LIMITS,
    alpha=st.floats(0.1, 1.0),
    beta=st.floats(1.0, 1.9),
    by_longer=st.booleans(),
)
def test_search_is_the_oracle(
    seed: int, count: int, m: int, limits: Limits, alpha: float, beta: float, by_longer: bool
) -> None:
    case = Case(seed, count, m, limits, keys=4)
    rule = a_rule(seed, alpha, beta, by_longer)
    result = alignment.search(case.units, case.valid, case.packed, m, limits, rule)
    for key in range(4):
        expected = oracle.score(
            count, case.bits, case.splittable.tolist(), case.secret(key), m,
            mean=dict(enumerate(rule.mean)), std=dict(enumerate(rule.std)), alpha=alpha, beta=beta,
            merges=limits.merges, splits=limits.splits, total=limits.total, by_longer=by_longer,
        )  # fmt: skip
        assert result.z[key] == expected


@settings(max_examples=100, deadline=None)
@given(hundredths=st.integers(1, 400), count=st.integers(0, 100))
@example(28, 25)  # in floating point each of these products is a little more than the whole number
@example(7, 100)
@example(112, 25)
@example(110, 50)
def test_prefix_lengths_are_the_oracles(hundredths: int, count: int) -> None:
    share = hundredths / 100
    least, most = prefix_lengths(count, min(share, 1), max(share, 1))
    assert (least if share < 1 else most)[count] == oracle.prefix_length(share, count)


def test_search_is_the_oracle_where_floating_point_would_try_another_block() -> None:
    """The text follows the secret from its fifth block to its 29th, and 1.12 times 25 sentences are 28 blocks."""
    limits, m = Limits.of("none"), 8
    case = Case(3, 25, m, limits, keys=1, blocks=29)
    for i in range(25):
        case.bits[(i, i, False, False)] = case.secret(0)[i + 4]
        case.units[i, 0, WHOLE] = case.packed[0, i + 4]
    rule = a_rule(3, 0.28, 1.12, False)
    result = alignment.search(case.units, case.valid, case.packed, m, limits, rule)
    expected = oracle.score(
        25, case.bits, case.splittable.tolist(), case.secret(0), m, mean=dict(enumerate(rule.mean)),
        std=dict(enumerate(rule.std)), alpha=0.28, beta=1.12, merges=0, splits=0, total=0,
    )  # fmt: skip
    assert result.length[0] == 28
    assert result.z[0] == expected


@settings(max_examples=100, deadline=None)
@given(seed=st.integers(0, 2**32), m=st.integers(1, 64), count=st.integers(1, 9), length=st.integers(1, 12))
def test_edit_distance_is_algorithm_3(seed: int, m: int, count: int, length: int) -> None:
    case = Case(seed, count, m, Limits.of("none"), blocks=length)
    sentences = [case.bits[(i, i, False, False)] for i in range(count)]
    distances = alignment.edit_distances(case.units[None, :, 0, 0], case.packed[:1], m)
    assert distances[0] == oracle.block_edit_distance(sentences, case.secret(0), m)


@settings(max_examples=150, deadline=None)
@given(seed=st.integers(0, 2**32), count=st.integers(1, 9), m=st.integers(1, 64), length=st.integers(1, 12))
def test_local_search_is_the_oracle(seed: int, count: int, m: int, length: int) -> None:
    case = Case(seed, count, m, Limits.of("single"), blocks=length)
    costs = LocalCosts(0.25, 0.5, 0.75, 0.5)  # exact in binary, so that sums compare exactly
    scores = alignment.search_local(case.units, case.valid, case.packed, m, costs)
    for key in range(2):
        best = oracle.local_score(count, case.bits, case.splittable.tolist(), case.secret(key), m, **costs._asdict())
        assert scores[key] == best
        assert alignment.trace_local(case.units, case.valid, case.packed[key], m, costs)[0] == best


def test_batches_of_texts_equal_texts_one_by_one() -> None:
    limits, rule = Limits.of("single"), a_rule(3, 0.5, 1.5, False)
    cases = [Case(seed, count, 8, limits, keys=3, blocks=30) for seed, count in enumerate((1, 5, 12, 2))]
    starts = np.cumsum([0, *(case.count for case in cases)])
    texts, keys = np.repeat(np.arange(4), 3), np.arange(12)
    together = alignment.search(
        np.concatenate([case.units for case in cases]), np.concatenate([case.valid for case in cases]),
        np.concatenate([case.packed for case in cases]), 8, limits, rule, starts=starts, texts=texts, keys=keys,
    )  # fmt: skip
    alone = [alignment.search(case.units, case.valid, case.packed, 8, limits, rule).z for case in cases]
    assert np.array_equal(together.z, np.concatenate(alone))


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


def replay(case: Case, steps: list[Step], key: int) -> tuple[int, int, int]:
    """The cost of an alignment read off its steps, and the merges and splits it holds."""
    cost = merges = splits = 0
    position, block = (0, False), 0
    for step in steps:
        if step.kind == SKIP_BLOCK:
            assert step.block == block
            cost, block = cost + case.m, block + 1
            continue
        first, inside = step.last - step.merged, bool(step.cut & RIGHT)
        assert (first, inside) == position, "units must follow each other without gap or overlap"
        ends_inside = bool(step.cut & LEFT)
        position = (step.last, True) if ends_inside else (step.last + 1, False)
        merges, splits = merges + step.merged, splits + ends_inside
        if step.kind == MATCH:
            assert step.block == block
            run = case.bits[(first, step.last, inside, ends_inside)]
            cost, block = cost + oracle.hamming(run, case.secret(key)[block]), block + 1
        else:
            assert step.kind == SKIP_SENTENCE
            cost += case.m
    assert position == (case.count, False)
    return cost, merges, splits


@settings(max_examples=150, deadline=None)
@given(seed=st.integers(0, 2**32), count=st.integers(1, 7), m=st.integers(1, 16), limits=LIMITS)
def test_traceback_costs_what_the_search_found(seed: int, count: int, m: int, limits: Limits) -> None:
    case, rule = Case(seed, count, m, limits, keys=1), a_rule(seed, 0.5, 1.5, False)
    result = alignment.search(case.units, case.valid, case.packed, m, limits, rule)
    u, v, length = int(result.merges[0]), int(result.splits[0]), int(result.length[0])
    steps = alignment.trace(case.units, case.valid, case.packed[0, :length], m, u, v)
    cost, merges, splits = replay(case, steps, 0)
    n = count - u + v
    assert (merges, splits) == (u, v)
    assert result.z[0] == (rule.mean[n] - cost / (m * max(n, length))) / rule.std[n]


@settings(max_examples=100, deadline=None)
@given(seed=st.integers(0, 2**32), count=st.integers(1, 12), m=st.integers(1, 16))
def test_local_traceback_adds_up(seed: int, count: int, m: int) -> None:
    case, costs = Case(seed, count, m, Limits.of("single"), keys=1), LocalCosts(0.25, 0.5, 0.75, 0.5)
    best, steps = alignment.trace_local(case.units, case.valid, case.packed[0], m, costs)
    total = 0.0
    for step in steps:
        if step.kind != MATCH:
            total -= costs.skip_block if step.kind == SKIP_BLOCK else costs.skip_sentence
            continue
        run = (step.last - step.merged, step.last, bool(step.cut & RIGHT), bool(step.cut & LEFT))
        total += costs.theta * m - oracle.hamming(case.bits[run], case.secret(0)[step.block])
        total -= costs.restructure * (step.merged + (step.cut == LEFT))
    assert total == best


def test_limits_are_named_or_numbers() -> None:
    assert Limits.of("single") == (1, 1, 1)
    assert Limits.of((2, 1)) == (2, 1, 3)
    for wrong in ("both", (-1, 0), (0, 9)):
        with pytest.raises(ValueError, match="merges"):
            Limits.of(wrong)


# Three cases that the public code scored, and the head of its table: (sentences, merged, left, right, splittable, secret),
# with its score and its score without restructuring. tools/reference_cases.py runs all of a file.
PUBLIC_CASES = [
    (([38], [], [146], [63], True, [54, 225]), 2.1500548490376077, 2.1500548490376077),
    (([145], [], [122], [163], False, [121, 74]), 0.007143039365573295, 0.007143039365573295),
    (
        ([197, 238, 245], [140, 164], [192, 212, 52], [239, 115, 90], True, [66, 43, 192, 212, 59, 102]),
        1.2617559206199331,
        0.015957279422158358,
    ),
]


PUBLIC_MEAN = [0.50125, 0.50365625, 0.5021875, 0.502859375, 0.5031825, 0.503280555555555]


PUBLIC_STD = [0.1749955356573412, 0.15097440995392983, 0.137084771290162, 0.1261015481677512, 0.11778823317422549,
              0.11154305110238107]  # fmt: skip


@pytest.mark.parametrize(("case", "score", "without"), PUBLIC_CASES)
def test_public_code_scores(case: Any, score: float, without: float, tmp_path: Path) -> None:
    table = {n + 1: {"mean": m, "std": s} for n, (m, s) in enumerate(zip(PUBLIC_MEAN, PUBLIC_STD, strict=True))}
    (tmp_path / "table.json").write_text(json.dumps(table))
    sentences, merged, left, right, splittable, secret = case
    count = len(sentences)
    units, valid = np.zeros((count, 2, 4), np.uint64), np.zeros((count, 2, 4), bool)
    units[:, 0, WHOLE], units[1:, 1, WHOLE], units[:, 0, LEFT], units[:, 0, RIGHT] = sentences, merged, left, right
    valid[:, 0, WHOLE] = valid[1:, 1, WHOLE] = True
    valid[:, 0, LEFT] = valid[:, 0, RIGHT] = splittable
    rule = reference_rule(8, count + 1, table=tmp_path / "table.json")
    blocks = np.resize(np.array(secret, np.uint64), int(rule.most[-1]))[None]
    for restructure_by, expected in (("single", score), ("none", without)):
        result = search(units, valid, blocks, 8, Limits.of(restructure_by), rule)
        assert result.z[0] == pytest.approx(expected, abs=1e-9)
