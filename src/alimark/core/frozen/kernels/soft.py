"""Compiled kernels for soft decisions: the likelihood of a text under a key, the likeliest alignment, local search.

Frozen: what it computes, to the last bit, since scores of marked texts rest on it; it may become faster.

A text is an array of its sentences' projections. The kernels read them from lookup tables (see `worth_tables`), computed once
for a text and used for every key. A sentence's worth for a block has mean 0 and standard deviation 1 over random blocks.

The score is the logarithm of a likelihood ratio under a small model of rewriting, summed over all alignments: sentences are
dropped, inserted, moved and split with the probabilities of one of several `SoftRule`s. How good the model is decides how
often marks are found; the false-positive rate is kept by random keys whatever the model says.

The forward and backward pass together say how probably each sentence carries each block, given the whole text.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numba import prange
from numpy.typing import NDArray

from alimark.core._util.arrays import Floats, Ints, Packed
from alimark.core._util.compiling import kernel, launch
from alimark.core.frozen.kernels.lanes import LANES, _read, _write
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
    """out[i, j]: the worth of each sentence for each block."""
    count, size = tables.shape[0], tables.shape[1]
    for i in range(count):
        for j in range(len(blocks)):
            worth = 0.0
            for b in range(size):
                worth += tables[i, b, (blocks[j] >> np.uint64(8 * b)) & np.uint64(255)]
            out[i, j] = worth


_TWO = 1 / np.sqrt(2)


@kernel()
def _forward(rule: Any, likelier: Any, sums: Any, columns: Any, first_blocks: Any) -> Any:
    """The log-likelihood ratio under one rule, a number or lanes.

    `sums[i]` is the sum of sentence i's `likelier` over all blocks; the other arguments are those of `_likelihoods`.
    """
    foreign, replaced, moved, repeated, skipped, further = rule[1], rule[2], rule[3], rule[4], rule[5], rule[6]
    jump, outside, leaving, staying, resumed = rule[7], rule[8], rule[9], rule[10], rule[11]
    count, size, lanes = len(likelier), len(columns), likelier.shape[2:]
    usual = 1 - foreign - replaced - repeated - skipped - jump - leaving
    wanders = outside + leaving > 0
    # in_mark[j], divided by `last`: the probability that block j was the last one carried, or that none was yet and block
    # j + 1 comes first. outside_mark[j]: the same inside a passage without blocks.
    in_mark, outside_mark = np.zeros((size + 1, *lanes)), np.zeros((size + 1, *lanes))
    starts = np.sum(first_blocks < size)
    for j in first_blocks[:starts]:
        _write(in_mark, j, (1 - outside) / starts)
        _write(outside_mark, j, outside / starts)
    wholes = np.empty((count, *lanes))
    zero = _read(np.zeros((1, *lanes)), 0)
    last, outside_share = zero + 1.0, zero + outside
    for i in range(count):
        ratios = likelier[i]
        unmarked_ratio = 1 - moved + moved * _read(sums, i) / size
        anywhere = ((1 - outside_share) * jump + outside_share * (1 - staying) * (1 - resumed)) / size
        whole = after_gap = outside_share = zero
        left = outside_left = zero  # of one block before j
        for j in range(size + 1):
            here = _read(in_mark, j) / last
            value = (here * foreign + left * replaced) * unmarked_ratio
            if j > 0:
                carries = left * usual + here * repeated + after_gap * skipped + anywhere
                if wanders:
                    carries = carries + outside_left * (1 - staying) * resumed
                value = value + carries * _read(ratios, columns[j - 1])
                after_gap = further * after_gap + (1 - further) * left
            _write(in_mark, j, value)
            whole = whole + value
            if wanders:
                outside_left = _read(outside_mark, j) / last
                outside_here = outside_left * staying + here * leaving
                _write(outside_mark, j, outside_here)
                outside_share = outside_share + outside_here
            left = here
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
def _likelihoods(rules: Any, likelier: Any, columns: Any, first_blocks: Any) -> Any:
    """The log-likelihood ratio of a text that carries these blocks under each rule, summed over all rewritings.

    `columns[j]` is the number of block j among the distinct blocks, and `likelier[i, c]` is the likelihood ratio of sentence i
    if it carries distinct block c. It may have `LANES` keys on a further axis, and so has the result then. The text began with
    one of `first_blocks`, each as likely; those beyond the given blocks do not count.
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
        _write(values, k, _forward(rules[k], likelier, sums, columns, first_blocks))
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
def _score_keys(tables: Any, blocks: Any, keys: Any, length: Any, rules: Any, log_weights: Any, first_blocks: Any,
                out: Any) -> None:  # fmt: skip
    """The score of one text under each of some keys, of which there are at most `LANES`."""
    width = 1 if len(keys) == 1 else LANES
    columns, distinct = _distinct(blocks, keys, length, width)
    worths = np.empty((len(tables), len(distinct), width))
    for k in range(width):
        _worths(tables, distinct[:, k], worths[..., k])
    gain = rules[0, 0]
    likelier = np.exp(gain * worths - gain * gain / 2)
    if width == 1:
        ratios = likelier.reshape(likelier.shape[:2])
        values = _likelihoods(rules, ratios, columns, first_blocks).reshape((len(rules), 1))
    else:
        values = _likelihoods(rules, likelier, columns, first_blocks)
    for k in range(len(keys)):
        out[k] = _mixed(values[:, k], log_weights)


@kernel(parallel=True)
def _soft_jobs(tables: Any, starts: Any, texts: Any, keys: Any, cuts: Any, blocks: Any, lengths: Any, rules: Any,
               log_weights: Any, first_blocks: Any, out: Any) -> None:  # fmt: skip
    """Scores jobs in chunks from one of the `cuts` to the next. A chunk is one job, or up to `LANES` jobs of the same text."""
    for chunk in prange(len(cuts) - 1):
        jobs, text = slice(cuts[chunk], cuts[chunk + 1]), texts[cuts[chunk]]
        _score_keys(tables[starts[text]:starts[text + 1]], blocks, keys[jobs], lengths[text], rules, log_weights,
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
    out, (table, log_weights), cuts = np.empty(len(texts)), arrays_of(rules, weights), _cuts(texts)

    def run(part: slice) -> None:
        _soft_jobs(
            tables, starts, texts, keys, cuts[part.start : part.stop + 1], blocks, lengths, table, log_weights, first_blocks,
            out,
        )  # fmt: skip

    launch(len(cuts) - 1, LANES * len(rules) * mean_cells(starts, lengths, texts), run)
    return out


def arrays_of(rules: Sequence[SoftRule], weights: Sequence[float] | None) -> tuple[Floats, Floats]:
    """The rules and the logarithms of their weights as the kernels take them.

    The kernels take the mean over the rules, so a weight of one over their number leaves a rule as it is.
    """
    return np.array(rules), np.zeros(len(rules)) if weights is None else np.log(np.array(weights) * len(rules))


def mean_cells(starts: Ints, lengths: Ints, texts: Ints) -> float:
    """The cells of the alignment table of a job, on average: sentences times blocks."""
    return float((np.diff(starts) * lengths)[texts].mean()) if len(texts) else 0.0


_FOREIGN, _REPLACED, _CARRIES = range(3)
_EQUAL = 1e-9
"""Logarithms of likelihoods that differ by less are taken for equal. The blocks of a run are the same, so alignments that skip
different ones of them are equally likely, and rounding, which differs between CPUs, must not choose between them."""


@kernel()
def _likelier(value: Any, origin: Any, than: Any, other: Any) -> Any:
    """Whether a move is taken instead of another: it is likelier or, if they are equal, it skips its blocks later."""
    return value > than + _EQUAL or (value > than - _EQUAL and origin < other)


@kernel()
def _likeliest(worths: Any, rule: Any, first_blocks: Any, moves: Any, origins: Any) -> Any:  # noqa: PLR0912
    """Fills in the likeliest moves of all alignments.

    `moves[i, j]` is the last move of the likeliest alignment of the first i sentences that ends with block j, and
    `origins[i, j]` is the block with which that alignment ended before this move.
    """
    gain, foreign, replaced, moved, repeated, skipped, further, jump = rule
    count, size = worths.shape
    usual = 1 - foreign - replaced - repeated - skipped - jump
    less = -gain * gain / 2
    none = -1e300
    best = np.full((count + 1, size + 1), none)
    starts = np.sum(first_blocks < size)
    for j in first_blocks[:starts]:
        best[0, j] = -np.log(starts)
    to_foreign, to_replaced, to_usual = np.log(foreign), np.log(replaced), np.log(usual)
    to_repeated, to_jump = np.log(repeated), np.log(jump / size)
    for i in range(1, count + 1):
        mean = 0.0
        for j in range(size):
            mean += np.exp(gain * worths[i - 1, j] + less)
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
                worth = gain * worths[i - 1, j - 1] + less
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
            best[i, j], moves[i, j], origins[i, j] = value, move, origin
    end = 0
    for j in range(size + 1):
        if best[count, j] > best[count, end] + _EQUAL:
            end = j
    return end, best[count, end]


def trace_soft(
    tables: Floats, blocks: Packed, rule: SoftRule, first_blocks: Ints = FIRST_BLOCK
) -> tuple[float, list[Step]]:
    """The likeliest alignment under one rule: the logarithm of its part of the likelihood, and its steps.

    It is shown to people; the score sums over all alignments and all rules. The rule's passages without blocks are ignored.
    """
    worths = np.empty((len(tables), len(blocks)))
    _worths(tables, blocks, worths)
    shape = (len(tables) + 1, len(blocks) + 1)
    moves, origins = np.zeros(shape, np.int8), np.zeros(shape, np.int32)
    j, best = _likeliest(worths, tuple(rule[:8]), first_blocks, moves, origins)
    steps: list[Step] = []
    for i in range(len(tables), 0, -1):
        carries, origin = moves[i, j] == _CARRIES, int(origins[i, j])
        steps.append(Step(MATCH if carries else SKIP_SENTENCE, i - 1, 0, WHOLE, j - 1 if carries else -1))
        lost = range(j - 1 - carries, origin - 1, -1)
        steps += [Step(SKIP_BLOCK, i - 1, 0, WHOLE, block) for block in lost]
        j = origin
    return float(best), steps[::-1]


@kernel()
def _states(ratios: Any, rule: Any, first_blocks: Any) -> Any:
    """The scaled states of the forward pass before each sentence: inside the mark, and in a passage without blocks."""
    foreign, replaced, moved, repeated, skipped, further = rule[1], rule[2], rule[3], rule[4], rule[5], rule[6]
    jump, outside, leaving, staying, resumed = rule[7], rule[8], rule[9], rule[10], rule[11]
    count, size = ratios.shape
    usual = 1 - foreign - replaced - repeated - skipped - jump - leaving
    inside, out = np.zeros((count + 1, size + 1)), np.zeros((count + 1, size + 1))
    starts = np.sum(first_blocks < size)
    for j in first_blocks[:starts]:
        inside[0, j], out[0, j] = (1 - outside) / starts, outside / starts
    for i in range(count):
        unmarked = 1 - moved + moved * ratios[i].mean()
        anywhere = (inside[i].sum() * jump + out[i].sum() * (1 - staying) * (1 - resumed)) / size
        gap = whole = 0.0
        for j in range(size + 1):
            value = inside[i, j] * foreign * unmarked
            if j > 1:
                gap = further * gap + (1 - further) * inside[i, j - 2]
            if j > 0:
                carries = inside[i, j - 1] * usual + inside[i, j] * repeated + gap * skipped + anywhere
                carries += out[i, j - 1] * (1 - staying) * resumed
                value += inside[i, j - 1] * replaced * unmarked + carries * ratios[i, j - 1]
            inside[i + 1, j] = value
            out[i + 1, j] = out[i, j] * staying + inside[i, j] * leaving
            whole += value + out[i + 1, j]
        inside[i + 1] /= whole
        out[i + 1] /= whole
    return inside, out


@kernel()
def carried_blocks(ratios: Any, rule: Any, first_blocks: Any) -> Any:
    """The probability that each sentence carries each block, given the whole text (forward and backward pass)."""
    foreign, replaced, moved, repeated, skipped, further = rule[1], rule[2], rule[3], rule[4], rule[5], rule[6]
    jump, leaving, staying, resumed = rule[7], rule[9], rule[10], rule[11]
    count, size = ratios.shape
    usual = 1 - foreign - replaced - repeated - skipped - jump - leaving
    inside, out = _states(ratios, rule, first_blocks)
    carried = np.empty((count, size))
    later, later_out = np.ones(size + 1), np.ones(size + 1)  # likelihood of what follows, up to a factor
    through_gap, now, now_out = np.zeros(size + 3), np.empty(size + 1), np.empty(size + 1)
    for i in range(count - 1, -1, -1):
        a, o, ratio = inside[i], out[i], ratios[i]
        unmarked = 1 - moved + moved * ratio.mean()
        anywhere = (a.sum() * jump + o.sum() * (1 - staying) * (1 - resumed)) / size
        gap = whole = elsewhere = to_any = 0.0
        for j in range(size + 1):
            free = a[j] * foreign * later[j]
            if j > 1:
                gap = further * gap + (1 - further) * a[j - 2]
            if j > 0:
                free += a[j - 1] * replaced * later[j]
                carries = a[j - 1] * usual + a[j] * repeated + gap * skipped + anywhere
                carries += o[j - 1] * (1 - staying) * resumed
                carried[i, j - 1] = carries * ratio[j - 1] * later[j]
                whole += carried[i, j - 1]
                to_any += ratio[j - 1] * later[j] / size
            elsewhere += free
            whole += free * unmarked + (o[j] * staying + a[j] * leaving) * later_out[j]
        for j in range(size):
            carried[i, j] = (carried[i, j] + elsewhere * moved * ratio[j] / size) / whole
        for j in range(size, 1, -1):
            through_gap[j] = ratio[j - 1] * later[j] + further * through_gap[j + 1]
        scale = 0.0
        for j in range(size + 1):
            now[j] = foreign * unmarked * later[j] + leaving * later_out[j] + jump * to_any
            now_out[j] = staying * later_out[j] + (1 - staying) * (1 - resumed) * to_any
            if j > 0:
                now[j] += repeated * ratio[j - 1] * later[j]
            if j < size:
                now[j] += (replaced * unmarked + usual * ratio[j]) * later[j + 1]
                now_out[j] += (1 - staying) * resumed * ratio[j] * later[j + 1]
            if j + 2 <= size:
                now[j] += skipped * (1 - further) * through_gap[j + 2]
            scale += now[j]
        for j in range(size + 1):
            later[j], later_out[j] = now[j] / scale, now_out[j] / scale
    return carried


def carrying_chances(
    tables: Floats,
    blocks: Packed,
    rules: Sequence[SoftRule],
    weights: Sequence[float],
    first_blocks: Ints,
    counts: Floats,
) -> Floats:
    """The probability that each sentence carries any block, over all alignments under all rules.

    `counts` says how much the evidence of each sentence counts: 1, or less where it repeats that of others.
    """
    worths = np.empty((len(tables), len(blocks)))
    _worths(tables, blocks, worths)
    columns = np.arange(len(blocks))
    logs, chances = np.empty(len(rules)), np.empty((len(rules), len(tables)))
    for k, rule in enumerate(rules):
        table, ratios = np.array(rule), np.exp(counts[:, None] * (rule.worth * worths - rule.worth**2 / 2))
        logs[k] = np.log(weights[k]) + _likelihoods(table[None], ratios, columns, first_blocks)[0]
        chances[k] = carried_blocks(ratios, table, first_blocks).sum(axis=1)
    shares = np.exp(logs - logs.max())
    mixture: Floats = shares @ chances / shares.sum()
    return mixture


@kernel()
def _local_soft_one(worths: Any, pairs: Any, joinable: Any, costs: Any, table: Any) -> Any:
    """The best local sum of worths, each less `theta`, and where it ends; as `_local_one` for hard bits."""
    theta, skip_sentence, skip_block, restructure = costs
    count, size, kept = worths.shape[0], worths.shape[1], len(table)
    best, best_i, best_j = 0.0, 0, 0
    table[0, :] = 0.0
    for i in range(1, count + 1):
        row, up = table[i % kept], table[(i - 1) % kept]
        row[0] = 0.0
        for j in range(1, size + 1):
            value = max(0.0, up[j - 1] + worths[i - 1, j - 1] - theta)
            value = max(value, up[j] - skip_sentence, row[j - 1] - skip_block)
            if i > 1 and joinable[i - 1]:
                value = max(value, table[(i - 2) % kept][j - 1] + pairs[i - 1, j - 1] - theta - restructure)
            if j > 1:
                both = (worths[i - 1, j - 2] + worths[i - 1, j - 1]) * _TWO
                value = max(value, up[j - 2] + both - theta - restructure)
            row[j] = value
            if value > best:
                best, best_i, best_j = value, i, j
    return best, best_i, best_j


@kernel()
def _local_worths(tables: Any, pair_tables: Any, joinable: Any, blocks: Any) -> Any:
    """The worths of each unit for each block, and those of each with the one before it."""
    worths = np.empty((len(tables), len(blocks)))
    _worths(tables, blocks, worths)
    if not joinable.any():
        return worths, worths
    pairs = np.empty(worths.shape)
    _worths(pair_tables, blocks, pairs)
    return worths, pairs


@kernel(parallel=True)
def _local_soft_jobs(tables: Any, pair_tables: Any, joinable: Any, blocks: Any, costs: Any, out: Any) -> None:
    for key in prange(len(blocks)):
        worths, pairs = _local_worths(tables, pair_tables, joinable, blocks[key])
        best, _, _ = _local_soft_one(worths, pairs, joinable, costs, np.empty((3, blocks.shape[1] + 1)))
        out[key] = best


class LocalUnits(NamedTuple):
    """What the local search reads of a text: its sentences or, where sentence ends are not known, its pieces."""

    tables: Floats  # the lookup tables of each unit (`worth_tables`)
    pair_tables: Floats  # those of each unit with the one before it, where `joinable`
    joinable: NDArray[np.bool_]


def search_local_soft(units: LocalUnits, blocks: Packed, costs: LocalCosts) -> Floats:
    """For each key the best local sum."""
    out = np.empty(len(blocks))
    cells = len(units.tables) * blocks.shape[1]
    launch(len(blocks), cells, lambda part: _local_soft_jobs(*units, blocks[part], tuple(costs), out[part]))
    return out


def trace_local_soft(units: LocalUnits, blocks: Packed, costs: LocalCosts) -> tuple[float, list[Step]]:
    """The best local sum under a key, and the steps of its alignment in order."""
    worths, pairs = _local_worths(*units, blocks)
    table = np.empty((len(worths) + 1, len(blocks) + 1))
    best, i, j = _local_soft_one(worths, pairs, units.joinable, tuple(costs), table)
    steps: list[Step] = []
    while i and j and table[i, j] > 0:
        here = table[i, j]
        pair = table[i - 2, j - 1] + pairs[i - 1, j - 1] - costs.theta - costs.restructure
        if here == table[i - 1, j - 1] + worths[i - 1, j - 1] - costs.theta:
            steps.append(Step(MATCH, i - 1, 0, WHOLE, j - 1))
            i, j = i - 1, j - 1
        elif i > 1 and units.joinable[i - 1] and here == pair:
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
