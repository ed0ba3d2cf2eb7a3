"""Decodes the payload of a marked text: the likeliest payloads and how certain they are."""

from __future__ import annotations

import numpy as np

from alimark.core._util.arrays import Floats, Packed
from alimark.core.detection.result_parts import Payload
from alimark.core.detection.scoring import SoftPayload
from alimark.core.detection.signals import Signals

_ALL_BITS = 8
"""Up to so many bits every payload is tried."""
_ROUNDS = 3
_SHOWN = 5


def decode(rule: SoftPayload, signals: Signals, blocks: Packed) -> Payload:
    """The payload of a text; `blocks` are those of the key without a payload.

    The probability of a payload is proportional to its likelihood, summed over all alignments. Payloads that are not tried
    get a likelihood from the evidence along the alignment with the best payload.
    """
    tried, rest = _tried(rule, signals, blocks)
    payloads = sorted(tried, key=lambda payload: -tried[payload])
    most = tried[payloads[0]]
    whole = np.exp(rest - most) + sum(np.exp(value - most) for value in tried.values())
    shares = [(payload, float(np.exp(tried[payload] - most) / whole)) for payload in payloads[:_SHOWN]]
    return Payload(shares[0][0], shares[0][1], rule.code.bits, tuple(shares))


def _tried(rule: SoftPayload, signals: Signals, blocks: Packed) -> tuple[dict[int, float], float]:
    """The log-likelihood ratios of likely payloads, and an estimate of the sum of all others.

    The first round aligns the text by the constant bits, the next ones by whole blocks as the best payload so far flips them.
    """
    if rule.code.bits <= _ALL_BITS:
        return _likelihoods(rule, signals, blocks, range(rule.code.count)), -np.inf
    tried: dict[int, float] = {}
    best: int | None = None
    for _ in range(_ROUNDS):
        likely, values, total = rule.likely_payloads(signals, blocks, best)
        tried |= _likelihoods(rule, signals, blocks, [payload for payload in likely if payload not in tried])
        before, best = best, max(tried, key=lambda payload: tried[payload])
        if best == before:
            break
    others = np.log(max(1e-300, 1 - np.exp(values - total).sum())) + total
    return tried, float(tried[likely[0]] - values[0] + others)


def _likelihoods(rule: SoftPayload, signals: Signals, blocks: Packed, payloads: range | list[int]) -> dict[int, float]:
    if not payloads:
        return {}
    runs = rule.search(len(blocks)).runs
    flips = rule.code.flips_of_many(np.array(payloads), int(runs.max()) + 1)
    values: Floats = rule.likelihoods(signals, blocks ^ flips[:, runs])
    return dict(zip(payloads, values.tolist(), strict=True))
