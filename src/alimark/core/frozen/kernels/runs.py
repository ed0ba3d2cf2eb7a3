"""Compiled kernels for texts whose sentence ends are not known: the likelihood of a text under a key, summed over them.

Frozen: what it computes, to the last bit, since scores of texts read by clauses rest on it; it may become faster.

A text is an array of pieces. `chances[i, r]` is the probability that a sentence which begins with piece i - r ends with piece
i, and 0 where there is no such unit; `tables[i, r]` are the lookup tables of that unit (`soft.worth_tables`). The sum runs over
all ways to make sentences of the pieces and over all alignments of these with the blocks.
"""

from typing import Any, NamedTuple

import numpy as np
from numba import prange

from alimark.core._util.arrays import Floats, Ints, Packed
from alimark.core._util.compiling import kernel, launch
from alimark.core.frozen.kernels.soft import mean_cells
from alimark.core.frozen.kernels.types import MATCH, SKIP_BLOCK, SKIP_SENTENCE, WHOLE, Step


class RunRule(NamedTuple):
    """What becomes of the sentences: the fields of `SoftRule` of the same names. `log_norm` makes the likelihood ratio of a
    random block 1 on average."""

    worth: float
    log_norm: float
    foreign: float = 0.05
    replaced: float = 0.01
    repeated: float = 0.04
    skipped: float = 0.04
    further: float = 0.4


@kernel()
def _likelier(tables: Any, chances: Any, blocks: Any, rule: Any, out: Any) -> None:
    """out[i, r, j]: the likelihood ratio of each unit if it carries block j."""
    count, runs, size = tables.shape[0], tables.shape[1], tables.shape[2]
    for i in range(count):
        for r in range(runs):
            if chances[i, r] > 0:
                for j in range(len(blocks)):
                    worth = 0.0
                    for b in range(size):
                        worth += tables[i, r, b, (blocks[j] >> np.uint64(8 * b)) & np.uint64(255)]
                    out[i, r, j] = np.exp(rule[0] * worth + rule[1])


@kernel()
def _forward_runs(likelier: Any, chances: Any, rule: Any, first_blocks: Any) -> Any:
    """The log-likelihood ratio of a text that carries these blocks, summed over sentence ends and alignments."""
    foreign, replaced, repeated, skipped, further = rule[2:]
    usual = 1 - foreign - replaced - repeated - skipped
    count, runs, size = likelier.shape
    # ended[i, j] * exp(scale[i]): the probability that a sentence ended before piece i, block j being the last one carried
    ended, scale, now = np.zeros((count + 1, size + 1)), np.zeros(count + 1), np.zeros(size + 1)
    starts = np.sum(first_blocks < size)
    for j in first_blocks[:starts]:
        ended[0, j] = 1 / starts
    for i in range(count):
        now[:] = 0
        for r in range(min(i + 1, runs)):
            if chances[i, r] > 0:
                chance = chances[i, r] * np.exp(scale[i - r] - scale[i])
                before, after_gap = ended[i - r], 0.0
                now[0] += chance * before[0] * foreign
                for j in range(1, size + 1):
                    if j > 1:
                        after_gap = further * after_gap + (1 - further) * before[j - 2]
                    carries = before[j - 1] * usual + before[j] * repeated + after_gap * skipped
                    unmarked = before[j] * foreign + before[j - 1] * replaced
                    now[j] += chance * (unmarked + carries * likelier[i, r, j - 1])
        whole = now.sum()
        scale[i + 1] = scale[i]
        if whole > 0:
            ended[i + 1] = now / whole
            scale[i + 1] += np.log(whole)
    return scale[count]


@kernel(parallel=True)
def _run_jobs(tables: Any, chances: Any, starts: Any, texts: Any, keys: Any, blocks: Any, lengths: Any, rule: Any,
              first_blocks: Any, out: Any) -> None:  # fmt: skip
    for job in prange(len(texts)):
        a, b = starts[texts[job]], starts[texts[job] + 1]
        key_blocks = blocks[keys[job], : lengths[texts[job]]]
        likelier = np.zeros((b - a, tables.shape[1], len(key_blocks)))
        _likelier(tables[a:b], chances[a:b], key_blocks, rule, likelier)
        out[job] = _forward_runs(likelier, chances[a:b], rule, first_blocks)


def search_runs(
    tables: Floats, chances: Floats, blocks: Packed, lengths: Ints, rule: RunRule,
    *, starts: Ints, texts: Ints, keys: Ints, first_blocks: Ints,
) -> Floats:  # fmt: skip
    """The log-likelihood ratio of many pairs of a text and a key, in parallel, with jobs as in `hard.search`."""
    out = np.empty(len(texts))

    def run(part: slice) -> None:
        _run_jobs(
            tables, chances, starts, texts[part], keys[part], blocks, lengths, tuple(rule), first_blocks, out[part]
        )

    launch(len(texts), tables.shape[1] * mean_cells(starts, lengths, texts), run)
    return out


_FOREIGN, _REPLACED, _CARRIES = range(3)


@kernel()
def _likeliest_runs(likelier: Any, chances: Any, rule: Any, first_blocks: Any, moves: Any, origins: Any) -> Any:  # noqa: PLR0912
    """Fills in the last move of the likeliest alignment that ends before piece i with block j, its run and its origin."""
    foreign, replaced, repeated, skipped, further = rule[2:]
    usual = 1 - foreign - replaced - repeated - skipped
    count, runs, size = likelier.shape
    best = np.full((count + 1, size + 1), -1e300)
    starts = np.sum(first_blocks < size)
    for j in first_blocks[:starts]:
        best[0, j] = -np.log(starts)
    for i in range(count):
        for r in range(min(i + 1, runs)):
            if chances[i, r] > 0:
                before, chance = best[i - r], np.log(chances[i, r])
                lost, lost_from = -1e300, 0  # the best value after at least one lost block
                for j in range(size + 1):
                    value, move, origin = before[j] + np.log(foreign), _FOREIGN, j
                    if j > 1:
                        lost += np.log(further)
                        if before[j - 2] + np.log(1 - further) > lost:
                            lost, lost_from = before[j - 2] + np.log(1 - further), j - 2
                    if j > 0:
                        if before[j - 1] + np.log(replaced) > value:
                            value, move, origin = before[j - 1] + np.log(replaced), _REPLACED, j - 1
                        ratio = np.log(likelier[i, r, j - 1])
                        if before[j - 1] + np.log(usual) + ratio > value:
                            value, move, origin = before[j - 1] + np.log(usual) + ratio, _CARRIES, j - 1
                        if before[j] + np.log(repeated) + ratio > value:
                            value, move, origin = before[j] + np.log(repeated) + ratio, _CARRIES, j
                        if lost + np.log(skipped) + ratio > value:
                            value, move, origin = lost + np.log(skipped) + ratio, _CARRIES, lost_from
                    if chance + value > best[i + 1, j]:
                        best[i + 1, j] = chance + value
                        moves[i + 1, j], origins[i + 1, j] = move * runs + r, origin
    return int(np.argmax(best[count])), best[count].max()


def trace_runs(
    tables: Floats, chances: Floats, blocks: Packed, rule: RunRule, first_blocks: Ints
) -> tuple[float, list[Step]]:
    """The likeliest alignment, to be shown to people: the logarithm of its part of the likelihood, and its steps."""
    runs = chances.shape[1]
    likelier = np.zeros((len(tables), runs, len(blocks)))
    _likelier(tables, chances, blocks, tuple(rule), likelier)
    shape = (len(tables) + 1, len(blocks) + 1)
    moves, origins = np.zeros(shape, np.int32), np.zeros(shape, np.int32)
    j, best = _likeliest_runs(likelier, chances, tuple(rule), first_blocks, moves, origins)
    steps: list[Step] = []
    i = len(tables)
    while i:
        (move, merged), origin = divmod(int(moves[i, j]), runs), int(origins[i, j])
        carries = move == _CARRIES
        steps.append(Step(MATCH if carries else SKIP_SENTENCE, i - 1, merged, WHOLE, j - 1 if carries else -1))
        lost = range(j - 1 - carries, origin - 1, -1)
        steps += [Step(SKIP_BLOCK, i - 1, 0, WHOLE, block) for block in lost]
        i, j = i - 1 - merged, origin
    return float(best), steps[::-1]
