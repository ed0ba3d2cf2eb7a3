"""The alignment cost of EXP, compiled: a text against every shift of many key sequences.

Shifts are adjacent in memory, so that SIMD instructions process several of them at once. The numbers of a key are computed
for the tokens of the text only, since a table for the whole vocabulary would have millions of entries.
"""

from __future__ import annotations

import numpy as np
from numba import prange
from numpy.typing import NDArray

from alimark.core._util.compiling import kernel
from alimark.lab.rivals._prf import Words, hashed_pair

_LANES = 64
_SCALE = 2.0**-53


@kernel(parallel=True)
def least_costs(
    distinct: NDArray[np.uint64], places: NDArray[np.int64], secrets: Words, length: int, gap: float
) -> NDArray[np.float32]:
    """The smallest cost over all shifts for each key; `distinct[places]` is the text."""
    keys, tokens = len(secrets), len(places)
    totals = np.empty(keys, np.float32)
    for key in prange(keys):
        costs = _costs(distinct, secrets[key, 0], secrets[key, 1], length, tokens)
        least = np.float32(np.inf)
        for start in range(0, length, _LANES):
            least = min(least, _least(costs, places, start, min(_LANES, length - start), np.float32(gap)))  # type: ignore[arg-type]
        totals[key] = least
    return totals


@kernel()
def _costs(
    distinct: NDArray[np.uint64], first: np.uint64, second: np.uint64, length: int, tokens: int
) -> NDArray[np.float32]:
    """log(1 - xi) of each distinct token at each place of the key sequence, which is repeated for `tokens` more places."""
    costs = np.empty((len(distinct), length + tokens), np.float32)
    for i in range(len(distinct)):
        for place in range(length):
            bits = hashed_pair(first, second, np.uint64(place), distinct[i]) >> np.uint64(11)
            costs[i, place] = np.log1p(-(np.float64(bits) + 0.5) * _SCALE)
        for place in range(length, length + tokens):
            costs[i, place] = costs[i, place - length]
    return costs


@kernel()
def _least(costs: NDArray[np.float32], places: NDArray[np.int64], start: int, lanes: int, gap: np.float32) -> float:
    """The smallest cost among `lanes` shifts from `start` on: the dynamic programme of the edit distance, row by row."""
    tokens = len(places)
    above = np.empty((tokens + 1, lanes), np.float32)
    row = np.empty((tokens + 1, lanes), np.float32)
    for b in range(tokens + 1):
        above[b] = np.float32(b) * gap
    for a in range(tokens):
        cost = costs[places[a]]
        row[0] = np.float32(a + 1) * gap
        for b in range(tokens):
            diagonal, up, left, out = above[b], above[b + 1], row[b], row[b + 1]
            here = cost[start + b : start + b + lanes]
            for lane in range(lanes):
                matched = diagonal[lane] + here[lane]
                skipped = (up[lane] if up[lane] < left[lane] else left[lane]) + gap
                out[lane] = matched if matched < skipped else skipped
        above, row = row, above
    return float(above[tokens].min())
