"""Compiled kernels for payloads: the score of a text under a key whose payload is not known, and the likeliest payloads.

Frozen: what it computes, to the last bit, since payloads are read by it; it may become faster.

Only the first bits of a block are the same for all payloads (`frozen.payload_code`). A text is scored in three steps:

1. Forward pass over these constant bits, with all rules. A backward pass under the likeliest rule says how likely each
   sentence carries each block.
2. The sentences, weighted by these probabilities and multiplied by the signs of their blocks, give a number for every bit of
   every run's block that a payload may flip. A fast Walsh-Hadamard transform turns them into the evidence for every payload. Of
   payloads with more than 12 bits, the most reliable bits of the text first fix all but 12.
3. Forward pass over the whole blocks as the likeliest payload changes them.

The score is the logarithm of the mean of two likelihood ratios: that of the constant bits, and that of the whole blocks divided
by the number of payloads. A random key is scored by the same steps, so that its p-value pays for the search over payloads.
"""

from collections.abc import Sequence
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np
from numba import prange
from numpy.typing import NDArray

from alimark.core._util.arrays import Floats, Ints, Packed
from alimark.core._util.compiling import kernel, launch
from alimark.core.frozen.kernels.soft import _likelihoods, arrays_of, carried_blocks, mean_cells
from alimark.core.frozen.kernels.types import SoftRule

_FREE_IN_SCORES, _FREE = 12, 16
"""The most payload bits over which a transform is taken: fewer in the scores of many random keys than for a payload."""


class Search(NamedTuple):
    """What the search needs to know of the keys: their code and their runs."""

    rows: Packed  # `PayloadCode.rows` of all runs
    columns: NDArray[np.uint32]  # `PayloadCode.columns` of all runs
    runs: Ints  # the run of each block
    share: float  # the share of a block's bits that no payload flips
    bits: int  # the bits of a payload


@kernel()
def _run_ratios(tables: Any, blocks: Any, first_byte: Any, runs: Any, gain: Any, share: Any) -> Any:
    """The likelihood ratio of each sentence and each block, from the bytes of the runs' blocks from `first_byte` on."""
    count, size = tables.shape[0], tables.shape[1]
    ratios, of_run = np.empty((count, len(runs))), np.empty(len(blocks))
    for i in range(count):
        for r in range(len(blocks)):
            worth = 0.0
            for b in range(first_byte, size):
                worth += tables[i, b, (blocks[r] >> np.uint64(8 * b)) & np.uint64(255)]
            of_run[r] = np.exp(gain * worth - gain * gain * share / 2)
        for j in range(len(runs)):
            ratios[i, j] = of_run[runs[j]]
    return ratios


@kernel()
def _all_rules(ratios: Any, rules: Any, log_weights: Any, first_blocks: Any) -> Any:
    """The log-likelihood ratio of a text over all rules, and the number of the likeliest rule."""
    values = _likelihoods(rules, ratios, np.arange(ratios.shape[1]), first_blocks) + log_weights
    most = values.max()
    return most + np.log(np.exp(values - most).mean()), np.argmax(values)


@kernel()
def _evidence(units: Any, blocks: Any, runs: Any, carried: Any, width: Any) -> Any:
    """For each run and each bit that a payload may flip, lowest first: positive where it is as in the block, else negative."""
    m = units.shape[1]
    evidence = np.zeros((len(blocks), width))
    of_run = np.zeros((len(units), len(blocks)))
    for i in range(len(units)):
        for j in range(len(runs)):
            of_run[i, runs[j]] += carried[i, j]
    for r in range(len(blocks)):
        for i in range(len(units)):
            if of_run[i, r] > 1e-3:
                for d in range(width):
                    evidence[r, d] += of_run[i, r] * units[i, m - 1 - d]
        for d in range(width):
            if not (blocks[r] >> np.uint64(d)) & np.uint64(1):
                evidence[r, d] = -evidence[r, d]
    return evidence


@kernel()
def _fixed_bits(evidence: Any, columns: Any, bits: Any, free: Any, wrong: Any) -> Any:
    """The payload bits that the most reliable bits of the text fix, where a payload has more than `free` bits.

    Bits of the text are taken by decreasing reliability as long as the payload bits that flip them are linearly independent,
    and solved for one payload bit each. Those numbered in the bit mask `wrong` are taken with the opposite sign. Returns for
    each fixed payload bit an equation: the payload bits whose sum it decides (0 for a payload bit that is free), and that sum.
    """
    equations, tags = np.zeros(bits, np.uint32), np.zeros(bits, np.uint32)
    decided, count, fixed, width = np.uint32(wrong), 0, max(0, bits - free), evidence.shape[1]
    if fixed:
        for place in np.argsort(-np.abs(evidence).ravel(), kind="mergesort"):
            vector, tag = columns[place // width, place % width], np.uint32(1 << count)
            for p in range(bits - 1, -1, -1):
                if (vector >> np.uint32(p)) & np.uint32(1) and equations[p]:
                    vector, tag = np.uint32(vector ^ equations[p]), np.uint32(tag ^ tags[p])
            if vector:
                top = bits - 1
                while not (vector >> np.uint32(top)) & np.uint32(1):
                    top -= 1
                equations[top], tags[top] = vector, tag
                for q in range(bits):  # no other equation may hold the bit that this one is solved for
                    if q != top and (equations[q] >> np.uint32(top)) & np.uint32(1):
                        equations[q], tags[q] = np.uint32(equations[q] ^ vector), np.uint32(tags[q] ^ tag)
                if evidence[place // width, place % width] < 0:
                    decided = np.uint32(decided ^ np.uint32(1 << count))
                count += 1
                if count == fixed:
                    break
    sums = np.zeros(bits, np.uint32)
    for p in range(bits):
        for k in range(count):
            sums[p] ^= (tags[p] >> np.uint32(k)) & (decided >> np.uint32(k)) & np.uint32(1)
    return equations, sums


@kernel()
def _transform(values: Any) -> None:
    """The Walsh-Hadamard transform along the first axis, in place."""
    step, count = 1, values.shape[0]
    while step < count:
        for first in range(0, count, 2 * step):
            for place in range(first, first + step):
                left, right = values[place], values[place + step]
                for c in range(values.shape[1]):
                    a, b = left[c], right[c]
                    left[c] = a + b
                    right[c] = a - b
        step *= 2


@kernel()
def _payload_evidence(evidence: Any, columns: Any, equations: Any, sums: Any) -> Any:
    """The evidence for every payload that satisfies the equations, by the number that its free bits form.

    A payload flips the bit with column c where it has an odd number of the bits in c. So the evidence for all payloads is the
    Walsh-Hadamard transform of the evidence for all columns.
    """
    bits = len(equations)
    free = 0
    for p in range(bits):
        free += equations[p] == 0
    low = free // 2
    values = np.zeros((1 << (free - low), 1 << low), np.float32)
    for r in range(len(evidence)):
        for d in range(evidence.shape[1]):
            if evidence[r, d] != 0.0:
                vector, flipped, number, place = columns[r, d], np.uint32(0), 0, 0
                for p in range(bits):
                    if equations[p] and (vector >> np.uint32(p)) & np.uint32(1):
                        vector, flipped = np.uint32(vector ^ equations[p]), np.uint32(flipped ^ sums[p])
                for p in range(bits):
                    if equations[p] == 0:
                        number |= int((vector >> np.uint32(p)) & np.uint32(1)) << place
                        place += 1
                values[number >> low, number & ((1 << low) - 1)] += -evidence[r, d] if flipped else evidence[r, d]
    _transform(values)
    turned = values.T.copy()
    _transform(turned)
    return turned.T.copy().ravel()


@kernel()
def _payload_at(number: Any, equations: Any, sums: Any) -> Any:
    """The payload whose free bits form a number."""
    payload, place = np.uint32(0), 0
    for p in range(len(equations)):
        if equations[p] == 0:
            payload |= np.uint32(((number >> place) & 1) << p)
            place += 1
    for p in range(len(equations)):
        if equations[p]:
            value, others = sums[p], np.uint32(equations[p] & payload)
            while others:
                value ^= np.uint32(1)
                others &= np.uint32(others - np.uint32(1))
            payload |= np.uint32(value << np.uint32(p))
    return payload


@kernel()
def _flips(payload: Any, rows: Any, out: Any) -> None:
    """The bits that a payload flips in each run's block."""
    for r in range(len(out)):
        out[r] = np.uint64(0)
        for k in range(rows.shape[1]):
            if (payload >> np.uint32(k)) & np.uint32(1):
                out[r] ^= rows[r, k]


@kernel()
def _score_one(tables: Any, units: Any, blocks: Any, runs: Any, rows: Any, columns: Any, share: Any, bits: Any,
               rules: Any, log_weights: Any, first_blocks: Any) -> Any:  # fmt: skip
    """The score of one text under one key: the constant bits' part, the whole blocks' part, and the likeliest payload."""
    gain, width = rules[0, 0], columns.shape[1]
    ratios = _run_ratios(tables, blocks, width // 8, runs, gain, share)
    constant, rule = _all_rules(ratios, rules, log_weights, first_blocks)
    carried = carried_blocks(ratios, rules[rule], first_blocks)
    evidence = _evidence(units, blocks, runs, carried, width)
    equations, sums = _fixed_bits(evidence, columns, bits, _FREE_IN_SCORES, 0)
    values = _payload_evidence(evidence, columns, equations, sums)
    payload = _payload_at(np.argmax(values), equations, sums)
    flips = np.empty(len(blocks), np.uint64)
    _flips(payload, rows, flips)
    ratios = _run_ratios(tables, blocks ^ flips, 0, runs, gain, 1.0)
    whole, _ = _all_rules(ratios, rules, log_weights, first_blocks)
    return constant, whole, payload


@kernel(parallel=True)
def _payload_jobs(tables: Any, units: Any, starts: Any, texts: Any, keys: Any, blocks: Any, lengths: Any, runs: Any,
                  rows: Any, columns: Any, share: Any, bits: Any, rules: Any, log_weights: Any, first_blocks: Any,
                  out: Any) -> None:  # fmt: skip
    for job in prange(len(texts)):
        a, b = starts[texts[job]], starts[texts[job] + 1]
        own_runs = runs[: lengths[texts[job]]]
        count = own_runs.max() + 1
        of_runs = np.empty(count, np.uint64)
        for j in range(len(own_runs)):
            of_runs[own_runs[j]] = blocks[keys[job], j]
        constant, whole, _ = _score_one(
            tables[a:b], units[a:b], of_runs, own_runs, rows[:count], columns[:count], share, bits, rules, log_weights,
            first_blocks,
        )  # fmt: skip
        whole -= bits * np.log(2.0)
        most = max(constant, whole)
        out[job] = most + np.log((np.exp(constant - most) + np.exp(whole - most)) / 2)


def search_payloads(
    tables: Floats,
    units: Floats,
    blocks: Packed,
    lengths: Ints,
    rules: Sequence[SoftRule],
    search: Search,
    *,
    starts: Ints,
    texts: Ints,
    keys: Ints,
    first_blocks: Ints,
    weights: Sequence[float] | None = None,
) -> Floats:
    """The score of many pairs of a text and a key whose payload is not known; arguments as in `soft.search_soft`.

    `units` holds the projections of the sentences of all texts, and `blocks` those of each key without a payload.
    """
    out = np.empty(len(texts))
    arrays = arrays_of(rules, weights)

    def run(part: slice) -> None:
        _payload_jobs(
            tables, units, starts, texts[part], keys[part], blocks, lengths, search.runs, search.rows, search.columns,
            search.share, search.bits, *arrays, first_blocks, out[part],
        )  # fmt: skip

    launch(len(texts), len(rules) * mean_cells(starts, lengths, texts), run)
    return out


def likely_payloads(
    tables: Floats, units: Floats, blocks: Packed, rules: Sequence[SoftRule], search: Search, first_blocks: Ints,
    weights: Sequence[float] | None = None, payload: int | None = None, most: int = 48,
) -> tuple[list[int], Floats, float]:  # fmt: skip
    """The payloads with the most evidence in one text, at most `most` of them, best first.

    Returns the payloads, their evidence as log-likelihoods up to a common constant, and the logarithm of the sum of the
    likelihoods of all payloads, up to the same constant.

    The alignment comes from the bits that no payload flips, or from the whole blocks where a likely payload is known already.
    """
    arrays = arrays_of(rules, weights)
    of_runs = np.ascontiguousarray(blocks[np.unique(search.runs, return_index=True)[1]])
    width = search.columns.shape[1]
    flips = np.zeros(len(of_runs), np.uint64)
    if payload is not None:
        _flips(np.uint32(payload), search.rows, flips)
    first_byte, share = (width // 8, search.share) if payload is None else (0, 1.0)
    ratios = _run_ratios(tables, of_runs ^ flips, first_byte, search.runs, arrays[0][0, 0], share)
    _, rule = _all_rules(ratios, *arrays, first_blocks)
    carried = carried_blocks(ratios, arrays[0][rule], first_blocks)
    evidence = _evidence(units, of_runs, search.runs, carried, width)
    scale = arrays[0][0, 0] / np.sqrt(units.shape[1])
    payloads: list[int] = []
    likelihoods: list[float] = []
    total = -np.inf
    for wrong in _error_patterns(max(0, search.bits - _FREE)):
        equations, sums = _fixed_bits(evidence, search.columns, search.bits, _FREE, wrong)
        values = scale * _payload_evidence(evidence, search.columns, equations, sums).astype(np.float64)
        best = np.argsort(-values, kind="stable")[:most]
        payloads += [int(_payload_at(number, equations, sums)) for number in best]
        likelihoods += values[best].tolist()
        total = np.logaddexp(total, values.max() + np.log(np.exp(values - values.max()).sum()))
    order = np.argsort(-np.array(likelihoods), kind="stable")[:most]
    return [payloads[place] for place in order], np.array(likelihoods)[order], float(total)


def _error_patterns(count: int) -> list[int]:
    """The bit masks of up to two errors among `count` bits, fewest errors first."""
    single = [1 << place for place in range(count)]
    return [0, *single, *(first | second for first, second in combinations(single, 2))]
