"""The kernels for payloads against plain twins: derivatives of the oracle's likelihood, and enumeration."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import oracle
from alimark.core.detection.scoring import SoftPayload
from alimark.core.detection.units import Signals
from alimark.core.frozen.kernels import payload as kernels
from alimark.core.frozen.payload_code import PayloadCode
from alimark.core.frozen.rules import RULES, WEIGHTS


@given(seed=st.integers(0, 10_000), bits=st.integers(1, 9), free=st.integers(1, 9), wrong=st.integers(0, 3))
@settings(max_examples=40, deadline=None)
def test_the_transform_gives_the_evidence_of_every_payload(seed: int, bits: int, free: int, wrong: int) -> None:
    code, rng = PayloadCode(bits, 32), np.random.default_rng(seed)
    evidence, columns = rng.normal(size=(3, 24)), code.columns(3)
    fixed = max(0, bits - free)
    equations, sums = kernels._fixed_bits(evidence, columns, bits, free, wrong % (1 << fixed))
    values = kernels._payload_evidence(evidence, columns, equations, sums)
    assert len(values) == 1 << min(bits, free)
    payloads = [int(kernels._payload_at(number, equations, sums)) for number in range(len(values))]
    assert len(set(payloads)) == len(payloads)
    for payload, value in zip(payloads, values, strict=True):
        signs = [[1 - 2 * ((int(column) & payload).bit_count() % 2) for column in row] for row in columns]
        assert value == pytest.approx((np.array(signs) * evidence).sum(), abs=1e-3)
    if fixed:  # every payload agrees with the most reliable bit, unless that bit is taken as wrong
        run, place = np.unravel_index(np.abs(evidence).argmax(), evidence.shape)
        flipped = {(int(columns[run, place]) & payload).bit_count() % 2 for payload in payloads}
        assert columns[run, place] == 0 or flipped == {int(evidence[run, place] < 0) ^ wrong % (1 << fixed) & 1}


def text_of(code: PayloadCode, payload: int, count: int, seed: int, worth: float) -> tuple[Signals, np.ndarray]:
    """A text whose sentences lie along the blocks of a random key that carries a payload, and the key's blocks without it."""
    rng = np.random.default_rng(seed)
    runs = np.arange(math.ceil(2.5 * count)) // 4
    blocks = rng.integers(0, 2**code.block_size - 1, runs[-1] + 1, np.uint64, endpoint=True)[runs]
    marked = blocks ^ code.flips(payload, int(runs[-1]) + 1)[runs]
    places = np.arange(code.block_size, dtype=np.uint64)[::-1]
    signs = 2.0 * (marked[:count, None] >> places & np.uint64(1)) - 1
    units = rng.normal(size=(count, code.block_size)) + worth * signs / math.sqrt(code.block_size)
    none = np.zeros((count, 2, 4))
    return Signals(none.astype(np.uint64), none.astype(bool), soft=units), blocks


def rule_of(code: PayloadCode) -> SoftPayload:
    return SoftPayload(code=code, run=(4,))


def test_the_score_is_the_mean_of_the_constant_part_and_the_best_payload() -> None:
    code = PayloadCode(3, 32)
    rule = rule_of(code)
    signals, blocks = text_of(code, 5, 4, 3, 2.5)
    gain = RULES[0].worth

    def likelihood(key_blocks: np.ndarray, width: int) -> float:
        """By the oracle, from the first `width` bits of each block; fewer bits shift a sentence less."""
        places = np.arange(32, dtype=np.uint64)[::-1][:width]
        signs = 2.0 * (key_blocks[:, None] >> places & np.uint64(1)) - 1
        worths = signals.values[:, :width] @ signs.T / math.sqrt(32)
        share = width / 32
        scaled = worths / math.sqrt(share)  # worths with standard deviation 1, shifted by gain * sqrt(share)
        rules = [r._replace(worth=gain * math.sqrt(share)) for r in RULES]
        return math.log(
            sum(w * oracle.soft_likelihood(scaled.tolist(), r._asdict()) for w, r in zip(WEIGHTS, rules, strict=True))
        )

    best = max(range(8), key=lambda payload: likelihood(blocks ^ code.flips(payload, 3)[np.arange(10) // 4], 32))
    whole = likelihood(blocks ^ code.flips(best, 3)[np.arange(10) // 4], 32) - 3 * math.log(2)
    expected = math.log((math.exp(likelihood(blocks, code.constant)) + math.exp(whole)) / 2)
    score = rule.scores([signals], blocks[None], np.zeros(1, np.int64), np.zeros(1, np.int64))
    assert best == 5
    assert score[0] == pytest.approx(expected, rel=1e-9)


def test_the_posterior_of_small_payloads_is_that_of_enumeration() -> None:
    code = PayloadCode(4, 32)
    rule = rule_of(code)
    signals, blocks = text_of(code, 9, 6, 1, 1.2)
    values = np.exp([rule._likelihoods(signals, blocks, [p])[p] for p in range(16)])
    payload = rule.decode(signals, blocks)
    order = np.argsort(-values)
    assert [value for value, _ in payload.likeliest] == order[:5].tolist()
    np.testing.assert_allclose([share for _, share in payload.likeliest], (values / values.sum())[order[:5]])
    assert (payload.value, payload.confidence) == payload.likeliest[0]


@pytest.mark.parametrize(("bits", "count"), [(12, 16), (16, 24), (24, 40)])
def test_payloads_are_decoded_after_sentences_were_dropped(bits: int, count: int) -> None:
    code = PayloadCode(bits, 64)
    rule = rule_of(code)
    sent = 0x5A5A5A & (code.count - 1)
    signals, blocks = text_of(code, sent, count, 2, 2.3)
    kept = np.delete(np.arange(count), [2, 9])
    part = Signals(signals.packed[kept], signals.valid[kept], soft=signals.soft[kept])  # type: ignore[index]
    payload = rule.decode(part, blocks[: rule.length(len(kept))])
    assert (payload.value, payload.confidence > 0.9) == (sent, True)


def test_the_confidence_says_how_often_payloads_are_right() -> None:
    """Where the model of the detector holds, the mean confidence is the share of payloads that are right."""
    code = PayloadCode(12, 32)
    rule = rule_of(code)
    right, confidence = [], []
    for seed in range(60):
        sent = seed * 61 % code.count
        signals, blocks = text_of(code, sent, 12, seed, RULES[0].worth)
        payload = rule.decode(signals, blocks)
        right.append(payload.value == sent)
        confidence.append(payload.confidence)
    assert 0.2 < np.mean(right) < 0.95  # the case is neither hopeless nor certain
    assert np.mean(confidence) == pytest.approx(np.mean(right), abs=0.12)
