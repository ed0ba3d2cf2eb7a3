"""Choosing the block that a rewritten text begins with, for keys whose texts may begin with several.

A detector tries every start, under random keys as well, and so pays for the search. A generated text has to begin somewhere
before its sentences exist. A rewritten text does not: its sentences and their rewrites are there, so it begins where they
carry most.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from alimark.core._util.arrays import Floats
from alimark.core.keys.key import Key
from alimark.core.keys.projection import targets, worths

_NUMBERS_AT_A_TIME = 1 << 22
"""The most worths that are compared at a time, which bounds the memory for long texts under keys with many starts."""

_EXPONENTS = -10.0, 20.0
"""The weights of the cosine are powers of 2 between these. At the least, the cosine decides only between options of the same
worth; at the greatest it decides alone."""

_BISECTIONS = 12


def best_start(projections: Sequence[Floats], cosines: Sequence[Floats], key: Key, mean_closeness: float) -> int:
    """The block of `key.starts` with which a text carries the strongest mark under a bound on the mean closeness.

    `projections` and `cosines` have for each sentence those of its options, the original and its rewrites. Each start is rated
    by the options that `RewriteSession.choose` would take if all of them were split again as they are.
    """
    starts = key.starts
    if len(starts) == 1:
        return int(starts[0])
    count, most = len(projections), max(map(len, cosines))
    blocks = targets(key, int(starts.max()) + count)
    close = np.zeros((count, most))
    for number, values in enumerate(cosines):
        close[number, : len(values)] = values
    step = max(1, _NUMBERS_AT_A_TIME // close.size)
    totals = []
    for some in (starts[i : i + step] for i in range(0, len(starts), step)):
        table = np.full((len(some), *close.shape), -np.inf)
        for number, options in enumerate(projections):
            table[:, number, : len(options)] = worths(options, blocks[some + number], key).T
        totals.append(_totals(table, close, mean_closeness))
    return int(starts[np.argmax(np.concatenate(totals))])


def _totals(table: Floats, cosines: Floats, bound: float) -> Floats:
    """For each start the sum of the worths of the best options whose mean cosine keeps the bound.

    `table` holds the worths by start, sentence and option, `cosines` the cosines by sentence and option. The weight of the
    cosine is found by bisection for all starts at once, as `RewriteSession.choose` finds it for one.
    """
    rows = np.arange(len(cosines))

    def at(exponents: Floats) -> tuple[Floats, Floats]:
        chosen = (table + 2.0 ** exponents[:, None, None] * cosines).argmax(axis=2)
        return np.take_along_axis(table, chosen[:, :, None], axis=2).sum(axis=(1, 2)), cosines[rows, chosen].mean(
            axis=1
        )

    low, high = (np.full(len(table), exponent) for exponent in _EXPONENTS)
    totals, means = at(low)
    if (means >= bound).all():
        return totals
    high[means >= bound] = low[0]
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        close = at(middle)[1] >= bound
        low, high = np.where(close, low, middle), np.where(close, middle, high)
    return at(high)[0]
