"""Compiled kernels that say how probably each sentence carries each block, given the whole text (forward-backward algorithm).

They know texts whose sentences are taken as they are: rules in which no sentence is joined to another or holds several blocks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from alimark.core._util.arrays import Floats, Ints, Packed
from alimark.core._util.compiling import kernel
from alimark.core.frozen.kernels.soft import _likelihoods, _worths
from alimark.core.frozen.kernels.types import SoftRule


@kernel()
def _states(ratios: Any, rule: Any, first_blocks: Any) -> Any:
    """The scaled states of the forward pass before each sentence: inside the mark, and in a passage without blocks."""
    foreign, replaced, moved, repeated, skipped, further = rule[1], rule[2], rule[3], rule[4], rule[5], rule[6]
    jump, outside, leaving, staying, resumed = rule[10], rule[11], rule[12], rule[13], rule[14]
    count, size = ratios.shape
    usual = 1 - foreign - replaced - repeated - skipped - jump - leaving
    inside, out = np.zeros((count + 1, size + 1)), np.zeros((count + 1, size + 1))
    starts = 0
    for j in first_blocks:
        starts += j < size
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
    jump, leaving, staying, resumed = rule[10], rule[12], rule[13], rule[14]
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

    Args:
        tables: The text's lookup tables (`soft.worth_tables`).
        blocks: The blocks that the text is aligned with.
        rules: Models of rewriting without joined sentences and without sentences that hold several blocks.
        weights: How likely each rule is before the text is seen.
        first_blocks: The blocks that the text may begin with, each as likely.
        counts: How much the evidence of each sentence counts: 1, or less where it repeats that of others.

    Returns:
        A probability for each sentence.
    """
    worths = np.empty((len(tables), tables.shape[1], len(blocks)))
    _worths(tables, blocks, worths)
    joinable, columns = np.zeros(len(tables), np.bool_), np.arange(len(blocks))
    logs, chances = np.empty(len(rules)), np.empty((len(rules), len(tables)))
    for k, rule in enumerate(rules):
        evidence, table = rule.worth * worths[:, 0] - rule.worth**2 / 2, np.array(rule)
        ratios = np.exp(counts[:, None] * evidence)
        logs[k] = np.log(weights[k]) + _likelihoods(worths, joinable, table[None], ratios, columns, first_blocks)[0]
        chances[k] = carried_blocks(ratios, table, first_blocks).sum(axis=1)
    shares = np.exp(logs - logs.max())
    mixture: Floats = shares @ chances / shares.sum()
    return mixture
