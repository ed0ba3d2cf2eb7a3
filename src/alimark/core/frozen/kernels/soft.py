"""Compiled kernels for soft decisions: the likelihood of a text under a key, the likeliest alignment, local search.

A text is an array of its units' projections: `units[i, 0]` of sentence i, `units[i, 1]` of sentences i-1 and i together where
`joinable[i]`. The kernels read them from lookup tables (see `worth_tables`), computed once for a text and used for every key.
A unit's worth for a block has mean 0 and standard deviation 1 over random blocks.

The score is the logarithm of a likelihood ratio under a small model of rewriting, summed over all alignments: sentences are
dropped, inserted, moved, split and merged with the probabilities of a `SoftRule`, or of one of several, each as likely. How
good the model is decides how often marks are found; the false-positive rate is kept by random keys whatever the model says.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numba import prange
from numpy.typing import NDArray

from alimark.core._util.arrays import Floats, Ints, Packed
from alimark.core._util.compiling import kernel, launch
from alimark.core.frozen.kernels.lanes import LANES, _exp, _read, _write
from alimark.core.frozen.kernels.types import (
    MATCH,
    SEVERAL,
    SKIP_BLOCK,
    SKIP_SENTENCE,
    WHOLE,
    LocalCosts,
    SoftRule,
    Step,
)

FIRST_BLOCK = np.zeros(1, np.int64)
"""The blocks that a text may begin with where a key has no secret starts: the first one alone."""


def worth_tables(units: Floats) -> Floats:
    """For each unit and each byte of a block, the worth of all 256 values of that byte: (..., bytes, 256).

    A unit's worth for a block is the product of its projections with the block as +1 and -1, over the root of M. It is a sum
    over the block's bytes, so that each of many blocks costs a few additions.
    """
    m = units.shape[-1]
    size = -(-m // 8)
    signs = (np.arange(256)[:, None] >> np.arange(8)) & 1
    from_last = np.zeros((*units.shape[:-1], 8 * size))
    from_last[..., :m] = units[..., ::-1]  # the last bit of a block is its lowest
    tables: Floats = from_last.reshape(*units.shape[:-1], size, 8) @ (2.0 * signs.T - 1) / np.sqrt(m)
    return tables


@kernel()
def _worths(tables: Any, blocks: Any, out: Any) -> None:
    """out[i, r, j]: the worth of each unit for each block."""
    count, runs, size = tables.shape[0], tables.shape[1], tables.shape[2]
    for i in range(count):
        for r in range(runs):
            for j in range(len(blocks)):
                worth = 0.0
                for b in range(size):
                    worth += tables[i, r, b, (blocks[j] >> np.uint64(8 * b)) & np.uint64(255)]
                out[i, r, j] = worth


_TWO, _THREE = 1 / np.sqrt(2), 1 / np.sqrt(3)


@kernel()
def _forward(worths: Any, joinable: Any, rule: Any, likelier: Any, sums: Any, columns: Any, first_blocks: Any) -> Any:  # noqa: PLR0915
    """The log-likelihood ratio under one rule, a number or lanes.

    `sums[i]` is the sum of sentence i's `likelier` over all blocks; the other arguments are those of `_likelihoods`.
    """
    gain, foreign, replaced, moved = rule[0], rule[1], rule[2], rule[3]
    repeated, skipped, further, two, three = rule[4], rule[5], rule[6], rule[7], rule[8]
    joined, jump, outside, leaving, staying, resumed = rule[9], rule[10], rule[11], rule[12], rule[13], rule[14]
    count, size, lanes = len(likelier), len(columns), likelier.shape[2:]
    usual = 1 - foreign - replaced - repeated - skipped - two - three - joined - jump - leaving
    log_norm = -gain * gain / 2
    wanders = outside + leaving > 0
    # in_mark[j], divided by `last`: the probability that block j was the last one carried, or that none was yet and block
    # j + 1 comes first. outside_mark[j]: the same inside a passage without blocks. before[j]: in_mark[j] a sentence ago.
    shape = (size + 1, *lanes)
    in_mark, outside_mark, before = np.zeros(shape), np.zeros(shape), np.zeros(shape)
    starts = 0
    for j in first_blocks:
        starts += j < size
    for j in first_blocks[:starts]:
        _write(in_mark, j, (1 - outside) / starts)
        _write(outside_mark, j, outside / starts)
    wholes = np.empty((count, *lanes))
    zero = _read(np.zeros((1, *lanes)), 0)
    last, outside_share = zero + 1.0, zero + outside
    for i in range(count):
        ratios, alone, both = likelier[i], worths[i, 0], worths[i, worths.shape[1] - 1]
        joins = i > 0 and joined > 0 and joinable[i]
        unmarked_ratio = 1 - moved + moved * _read(sums, i) / size
        anywhere = ((1 - outside_share) * jump + outside_share * (1 - staying) * (1 - resumed)) / size
        whole = after_gap = outside_share = zero
        left = left_2 = left_3 = outside_left = before_left = zero  # of one block before j, and of two and three
        for j in range(size + 1):
            here = _read(in_mark, j) / last
            value = (here * foreign + left * replaced) * unmarked_ratio
            if j > 0:
                carries = left * usual + here * repeated + after_gap * skipped + anywhere
                if wanders:
                    carries = carries + outside_left * (1 - staying) * resumed
                value = value + carries * _read(ratios, columns[j - 1])
                if j > 1 and two > 0:
                    two_worths = _read(alone, columns[j - 2]) + _read(alone, columns[j - 1])
                    value = value + left_2 * two * _exp(gain * two_worths * _TWO + log_norm)
                if j > 2 and three > 0:
                    three_worths = _read(alone, columns[j - 3]) + _read(alone, columns[j - 2])
                    three_worths = three_worths + _read(alone, columns[j - 1])
                    value = value + left_3 * three * _exp(gain * three_worths * _THREE + log_norm)
                if joins:
                    value = value + before_left / last * joined * _exp(gain * _read(both, columns[j - 1]) + log_norm)
                after_gap = further * after_gap + (1 - further) * left
            _write(in_mark, j, value)
            whole = whole + value
            if wanders:
                outside_left = _read(outside_mark, j) / last
                outside_here = outside_left * staying + here * leaving
                _write(outside_mark, j, outside_here)
                outside_share = outside_share + outside_here
            if joined > 0:
                before_left = _read(before, j)
                _write(before, j, here)
            left, left_2, left_3 = here, left, left_2
        whole = whole + outside_share
        outside_share = outside_share / whole
        _write(wholes, i, whole)
        last = whole
    logs = np.log(wholes)
    total = zero
    for i in range(count):
        total = total + _read(logs, i)
    return total


@kernel()
def _likelihoods(worths: Any, joinable: Any, rules: Any, likelier: Any, columns: Any, first_blocks: Any) -> Any:
    """The log-likelihood ratio of a text that carries these blocks under each rule, summed over all rewritings.

    `columns[j]` is the number of block j among the distinct blocks. Of distinct block c, `likelier[i, c]` is the likelihood
    ratio of sentence i if it carries the block, and `worths[i, r, c]` are the worths of its units. Both may have `LANES` keys
    on a further axis, and so has the result then. The text began with one of `first_blocks`, each as likely; those beyond the
    given blocks do not count.
    """
    count, lanes = len(likelier), likelier.shape[2:]
    sums, values = np.empty((count, *lanes)), np.empty((len(rules), *lanes))
    for i in range(count):
        ratios = likelier[i]
        total = _read(ratios, columns[0])
        for j in range(1, len(columns)):
            total = total + _read(ratios, columns[j])
        _write(sums, i, total)
    for k in range(len(rules)):
        _write(values, k, _forward(worths, joinable, rules[k], likelier, sums, columns, first_blocks))
    return values


@kernel()
def _mixed(values: Any, log_weights: Any) -> Any:
    """The log-likelihood ratio over all rules, given that under each."""
    ratios = values + log_weights
    most = ratios.max()
    return most + np.log(np.exp(ratios - most).mean())


@kernel()
def _distinct(blocks: Any, keys: Any, length: Any, width: Any) -> Any:
    """For `width` keys side by side: the number of each block among the distinct blocks, and these, (distinct, width).

    Equal blocks that follow each other under all keys, as in a run, are one. Where there are fewer keys, the last repeats.
    """
    columns, distinct = np.zeros(length, np.int64), np.empty((length, width), np.uint64)
    for j in range(length):
        differs = False
        for k in range(width):
            key = keys[min(k, len(keys) - 1)]
            differs |= j > 0 and blocks[key, j] != blocks[key, j - 1]
        columns[j] = columns[max(j - 1, 0)] + differs
        for k in range(width):
            distinct[columns[j], k] = blocks[keys[min(k, len(keys) - 1)], j]
    return columns, distinct[: columns[length - 1] + 1]


@kernel()
def _score_keys(tables: Any, joinable: Any, blocks: Any, keys: Any, length: Any, rules: Any, log_weights: Any,
                first_blocks: Any, out: Any) -> None:  # fmt: skip
    """The score of one text under each of some keys, of which there are at most `LANES`."""
    width = 1 if len(keys) == 1 else LANES
    columns, distinct = _distinct(blocks, keys, length, width)
    worths = np.empty((len(tables), tables.shape[1], len(distinct), width))
    for k in range(width):
        _worths(tables, distinct[:, k], worths[..., k])
    gain = rules[0, 0]
    likelier = np.exp(gain * worths[:, 0] - gain * gain / 2)
    if width == 1:
        alone, ratios = worths.reshape(worths.shape[:3]), likelier.reshape(likelier.shape[:2])
        values = _likelihoods(alone, joinable, rules, ratios, columns, first_blocks).reshape((len(rules), 1))
    else:
        values = _likelihoods(worths, joinable, rules, likelier, columns, first_blocks)
    for k in range(len(keys)):
        out[k] = _mixed(values[:, k], log_weights)


@kernel(parallel=True)
def _soft_jobs(tables: Any, joinable: Any, starts: Any, texts: Any, keys: Any, cuts: Any, blocks: Any, lengths: Any,
               rules: Any, log_weights: Any, first_blocks: Any, out: Any) -> None:  # fmt: skip
    """Scores jobs in chunks from one of the `cuts` to the next. A chunk is one job, or up to `LANES` jobs of the same text."""
    for chunk in prange(len(cuts) - 1):
        jobs, text = slice(cuts[chunk], cuts[chunk + 1]), texts[cuts[chunk]]
        sentences = slice(starts[text], starts[text + 1])
        _score_keys(tables[sentences], joinable[sentences], blocks, keys[jobs], lengths[text], rules, log_weights,
                    first_blocks, out[jobs])  # fmt: skip


@kernel()
def _cuts(texts: Any) -> Any:
    """Where jobs are cut into chunks of up to `LANES` jobs in a row of the same text; the last cut is the number of jobs."""
    cuts, count = np.empty(len(texts) + 1, np.int64), 0
    for job in range(len(texts)):
        if job == 0 or texts[job] != texts[job - 1] or job - cuts[count - 1] == LANES:
            cuts[count] = job
            count += 1
    cuts[count] = len(texts)
    return cuts[: count + 1]


def search_soft(
    tables: Floats,
    joinable: NDArray[np.bool_],
    blocks: Packed,
    lengths: Ints,
    rules: Sequence[SoftRule],
    *,
    starts: Ints,
    texts: Ints,
    keys: Ints,
    first_blocks: Ints = FIRST_BLOCK,
    weights: Sequence[float] | None = None,
) -> Floats:
    """The log-likelihood ratio of many pairs of a text and a key, in parallel, with jobs as in `hard.search`.

    Text t is aligned with the first `lengths[t]` blocks of a key and begins with any of `first_blocks`. The rules, which have
    the same `worth`, are as likely as their `weights` say, by default all the same.
    """
    if len({rule.worth for rule in rules}) != 1:
        raise ValueError("the rules of one search share one worth")
    out = np.empty(len(texts))
    # The kernel takes the mean over the rules, so a weight of one over their number leaves a rule as it is.
    log_weights = np.zeros(len(rules)) if weights is None else np.log(np.array(weights) * len(rules))
    table, cuts = np.array(rules), _cuts(texts)

    def run(part: slice) -> None:
        _soft_jobs(
            tables,
            joinable,
            starts,
            texts,
            keys,
            cuts[part.start : part.stop + 1],
            blocks,
            lengths,
            table,
            log_weights,
            first_blocks,
            out,
        )

    launch(len(cuts) - 1, LANES * len(rules) * mean_cells(starts, lengths, texts), run)
    return out


def mean_cells(starts: Ints, lengths: Ints, texts: Ints) -> float:
    """The cells of the alignment table of a job, on average: sentences times blocks."""
    return float((np.diff(starts) * lengths)[texts].mean()) if len(texts) else 0.0


_FOREIGN, _REPLACED, _CARRIES, _HOLDS, _JOINED = range(5)
_EQUAL = 1e-9
"""Logarithms of likelihoods that differ by less are taken for equal. The blocks of a run are the same, so alignments that skip
different ones of them are equally likely, and rounding, which differs between CPUs, must not choose between them."""


@kernel()
def _likelier(value: Any, origin: Any, than: Any, other: Any) -> Any:
    """Whether a move is taken instead of another: it is likelier or, if they are equal, it skips its blocks later."""
    return value > than + _EQUAL or (value > than - _EQUAL and origin < other)


@kernel()
def _likeliest(worths: Any, joinable: Any, rule: Any, first_blocks: Any, moves: Any, origins: Any) -> Any:  # noqa: PLR0912, PLR0915
    """Fills in the likeliest moves of all alignments.

    `moves[i, j]` is the last move of the likeliest alignment of the first i sentences that ends with block j, and
    `origins[i, j]` is the block with which that alignment ended before this move.
    """
    gain, foreign, replaced, moved, repeated, skipped, further, two, three, joined, jump = rule
    count, size = worths.shape[0], worths.shape[2]
    usual = 1 - foreign - replaced - repeated - skipped - two - three - joined - jump
    less = -gain * gain / 2
    none = -1e300
    best = np.full((count + 1, size + 1), none)
    starts = 0
    for j in first_blocks:
        starts += j < size
    for j in first_blocks[:starts]:
        best[0, j] = -np.log(starts)
    to_foreign, to_replaced, to_usual = np.log(foreign), np.log(replaced), np.log(usual)
    to_repeated, to_jump = np.log(repeated), np.log(jump / size)
    for i in range(1, count + 1):
        mean = 0.0
        for j in range(size):
            mean += np.exp(gain * worths[i - 1, 0, j] + less)
        other = np.log(1 - moved + moved * mean / size)
        top = 0
        for j in range(size + 1):
            if best[i - 1, j] > best[i - 1, top] + _EQUAL:
                top = j
        lost, lost_from = none, 0  # the best value after at least one lost block
        for j in range(size + 1):
            value, move, origin = best[i - 1, j] + to_foreign + other, _FOREIGN, j
            if j > 1:
                lost += np.log(further)
                fresh = best[i - 1, j - 2] + np.log(1 - further)
                if fresh > lost + _EQUAL:
                    lost, lost_from = fresh, j - 2
            if j > 0:
                candidate = best[i - 1, j - 1] + to_replaced + other
                if _likelier(candidate, j - 1, value, origin):
                    value, move, origin = candidate, _REPLACED, j - 1
                worth = gain * worths[i - 1, 0, j - 1] + less
                for way in range(4):
                    if way == 0:
                        candidate, source = best[i - 1, j - 1] + to_usual, j - 1
                    elif way == 1:
                        candidate, source = best[i - 1, j] + to_repeated, j
                    elif way == 2:
                        candidate, source = lost + np.log(skipped), lost_from
                    else:
                        candidate, source = best[i - 1, top] + to_jump, top
                    if _likelier(candidate + worth, source, value, origin):
                        value, move, origin = candidate + worth, _CARRIES, source
                for held in range(2, 4):
                    chance = two if held == 2 else three
                    if j >= held and chance > 0:
                        both = 0.0
                        for k in range(held):
                            both += worths[i - 1, 0, j - 1 - k]
                        candidate = best[i - 1, j - held] + np.log(chance) + gain * both / np.sqrt(held) + less
                        if _likelier(candidate, j - held, value, origin):
                            value, move, origin = candidate, _HOLDS, j - held
                if i > 1 and joined > 0 and joinable[i - 1]:
                    candidate = best[i - 2, j - 1] + np.log(joined) + gain * worths[i - 1, 1, j - 1] + less
                    if _likelier(candidate, j - 1, value, origin):
                        value, move, origin = candidate, _JOINED, j - 1
            best[i, j], moves[i, j], origins[i, j] = value, move, origin
    end = 0
    for j in range(size + 1):
        if best[count, j] > best[count, end] + _EQUAL:
            end = j
    return end, best[count, end]


def trace_soft(
    tables: Floats, joinable: NDArray[np.bool_], blocks: Packed, rule: SoftRule, first_blocks: Ints = FIRST_BLOCK
) -> tuple[float, list[Step]]:
    """The likeliest alignment under one rule: the logarithm of its part of the likelihood, and its steps.

    It is shown to people; the score sums over all alignments and all rules. The rule's passages without blocks are ignored.
    """
    worths = np.empty((len(tables), tables.shape[1], len(blocks)))
    _worths(tables, blocks, worths)
    shape = (len(tables) + 1, len(blocks) + 1)
    moves, origins = np.zeros(shape, np.int8), np.zeros(shape, np.int32)
    j, best = _likeliest(worths, joinable, tuple(rule[:11]), first_blocks, moves, origins)
    steps: list[Step] = []
    i = len(tables)
    while i:
        move, origin = int(moves[i, j]), int(origins[i, j])
        if move in (_FOREIGN, _REPLACED):
            steps.append(Step(SKIP_SENTENCE, i - 1, 0, WHOLE, -1))
            lost = range(j - 1, origin - 1, -1)
        elif move == _HOLDS:
            steps += [Step(MATCH, i - 1, 0, SEVERAL, block) for block in range(j - 1, origin - 1, -1)]
            lost = range(0)
        else:
            steps.append(Step(MATCH, i - 1, int(move == _JOINED), WHOLE, j - 1))
            lost = range(j - 2, origin - 1, -1)
        steps += [Step(SKIP_BLOCK, i - 1, 0, WHOLE, block) for block in lost]
        i, j = i - (2 if move == _JOINED else 1), origin
    return float(best), steps[::-1]


@kernel()
def _local_soft_one(worths: Any, joinable: Any, costs: Any, table: Any) -> Any:
    """The best local sum of worths, each less `theta`, and where it ends; as `_local_one` for hard bits."""
    theta, skip_sentence, skip_block, restructure = costs
    count, size, kept = worths.shape[0], worths.shape[2], len(table)
    best, best_i, best_j = 0.0, 0, 0
    table[0, :] = 0.0
    for i in range(1, count + 1):
        row, up = table[i % kept], table[(i - 1) % kept]
        row[0] = 0.0
        for j in range(1, size + 1):
            value = max(0.0, up[j - 1] + worths[i - 1, 0, j - 1] - theta)
            value = max(value, up[j] - skip_sentence, row[j - 1] - skip_block)
            if i > 1 and joinable[i - 1]:
                value = max(value, table[(i - 2) % kept][j - 1] + worths[i - 1, 1, j - 1] - theta - restructure)
            if j > 1:
                both = (worths[i - 1, 0, j - 2] + worths[i - 1, 0, j - 1]) * _TWO
                value = max(value, up[j - 2] + both - theta - restructure)
            row[j] = value
            if value > best:
                best, best_i, best_j = value, i, j
    return best, best_i, best_j


@kernel(parallel=True)
def _local_soft_jobs(tables: Any, joinable: Any, blocks: Any, costs: Any, out: Any) -> None:
    for key in prange(len(blocks)):
        worths = np.empty((len(tables), tables.shape[1], blocks.shape[1]))
        _worths(tables, blocks[key], worths)
        best, _, _ = _local_soft_one(worths, joinable, costs, np.empty((3, blocks.shape[1] + 1)))
        out[key] = best


def search_local_soft(tables: Floats, joinable: NDArray[np.bool_], blocks: Packed, costs: LocalCosts) -> Floats:
    """For each key the best local sum."""
    out = np.empty(len(blocks))
    cells = len(tables) * blocks.shape[1]
    launch(len(blocks), cells, lambda part: _local_soft_jobs(tables, joinable, blocks[part], tuple(costs), out[part]))
    return out


def trace_local_soft(
    tables: Floats, joinable: NDArray[np.bool_], blocks: Packed, costs: LocalCosts
) -> tuple[float, list[Step]]:
    """The best local sum under a key, and the steps of its alignment in order."""
    worths = np.empty((len(tables), tables.shape[1], len(blocks)))
    _worths(tables, blocks, worths)
    table = np.empty((len(tables) + 1, len(blocks) + 1))
    best, i, j = _local_soft_one(worths, joinable, tuple(costs), table)
    steps: list[Step] = []
    while i and j and table[i, j] > 0:
        here, gains = table[i, j], worths[i - 1]
        if here == table[i - 1, j - 1] + gains[0, j - 1] - costs.theta:
            steps.append(Step(MATCH, i - 1, 0, WHOLE, j - 1))
            i, j = i - 1, j - 1
        elif (
            i > 1
            and joinable[i - 1]
            and (here == table[i - 2, j - 1] + gains[1, j - 1] - costs.theta - costs.restructure)
        ):
            steps.append(Step(MATCH, i - 1, 1, WHOLE, j - 1))
            i, j = i - 2, j - 1
        elif here == table[i - 1, j] - costs.skip_sentence:
            steps.append(Step(SKIP_SENTENCE, i - 1, 0, WHOLE, -1))
            i -= 1
        elif here == table[i, j - 1] - costs.skip_block:
            steps.append(Step(SKIP_BLOCK, i - 1, 0, WHOLE, j - 1))
            j -= 1
        else:
            steps += [Step(MATCH, i - 1, 0, SEVERAL, j - 1), Step(MATCH, i - 1, 0, SEVERAL, j - 2)]
            i, j = i - 1, j - 2
    return float(best), steps[::-1]
