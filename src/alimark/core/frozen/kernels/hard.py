"""Compiled kernels for hard bits: block edit distance, search over restructurings, local search, and their tracebacks.

Frozen: what it computes, to the last bit, since scores of marked texts rest on it; it may become faster.

A text is an array of its units' packed bits: `units[i, m, q]` are the bits of the run of sentences i-m..i, where the code q
says whether the run starts in the middle of its first sentence (1) or ends in the middle of its last (2). So `units[i, 0, 0]`
is sentence i, `units[i, 1, 0]` the merge of i-1 and i, `units[i, 0, 2]` the left and `units[i, 0, 1]` the right half of i.
`valid` has the same shape and says which of them exist.

All kernels of hard bits are in this one file, because Numba's cache notices changes only in the file of the function itself.
The functions below the kernels are their typed interface.
"""

from typing import Any

import numpy as np
from numba import prange
from numpy.typing import NDArray

from alimark.core._util.arrays import Floats, Ints, Packed
from alimark.core._util.compiling import kernel, launch
from alimark.core.frozen.kernels.types import (
    LEFT,
    MATCH,
    RIGHT,
    SKIP_BLOCK,
    SKIP_SENTENCE,
    WHOLE,
    Best,
    Limits,
    LocalCosts,
    Step,
    ZRule,
)

_FAR = 1 << 28


@kernel()
def _popcount(x: Any) -> Any:
    # The usual bit tricks; LLVM recognises them and emits one instruction.
    x = x - ((x >> np.uint64(1)) & np.uint64(0x5555555555555555))
    x = (x & np.uint64(0x3333333333333333)) + ((x >> np.uint64(2)) & np.uint64(0x3333333333333333))
    x = (x + (x >> np.uint64(4))) & np.uint64(0x0F0F0F0F0F0F0F0F)
    return np.int32((x * np.uint64(0x0101010101010101)) >> np.uint64(56))


@kernel()
def _edit_row(sentences: Any, blocks: Any, m: Any, row: Any) -> None:
    """The last row of the block edit distance (the paper's algorithm 3): row[j] is the distance to the first j blocks."""
    size = len(blocks)
    for j in range(size + 1):
        row[j] = j * m
    for i in range(len(sentences)):
        diagonal = row[0]
        row[0] = (i + 1) * m
        for j in range(1, size + 1):
            best = diagonal + _popcount(sentences[i] ^ blocks[j - 1])
            diagonal = row[j]
            best = min(best, diagonal + m, row[j - 1] + m)
            row[j] = best


@kernel()
def _single_rows(units: Any, valid: Any, blocks: Any, m: Any, rows: Any) -> None:
    """The last rows without restructuring (rows[0]), with one merge (rows[1]) and with one split (rows[2])."""
    count, size = len(units), len(blocks)
    m = np.int32(m)
    f, g, h = rows[0], rows[1], rows[2]
    f1, f2, x = rows[3], rows[4], rows[5]  # F one and two sentences ago, X of this sentence
    g1, h1 = rows[6], rows[7]
    for j in range(size + 1):
        f[j] = j * m
        g[j] = h[j] = f1[j] = _FAR
    for i in range(count):
        for j in range(size + 1):
            f2[j], f1[j], g1[j], h1[j] = f1[j], f[j], g[j], h[j]
        whole, right, left = units[i, 0, WHOLE], units[i, 0, RIGHT], units[i, 0, LEFT]
        merged = units[i, 1, WHOLE] if i > 0 else whole
        far = np.int32(0 if valid[i, 0, LEFT] else _FAR)
        f_left, g_left, h_left = f1[0] + m, min(g1[0], f2[0]) + m, h1[0] + m
        x_left = f1[0] + m + far
        h_left = min(h_left, x_left + m)
        f[0], g[0], h[0], x[0] = f_left, g_left, h_left, x_left
        for j in range(1, size + 1):
            block = blocks[j - 1]
            distance = _popcount(whole ^ block)
            x_now = min(min(f1[j] + m, f1[j - 1] + _popcount(left ^ block)) + far, x_left + m)
            g_now = min(g1[j], f2[j], g_left) + m
            g_now = min(g_now, g1[j - 1] + distance, f2[j - 1] + _popcount(merged ^ block))
            h_now = min(h1[j], h_left, x_now) + m
            h_now = min(h_now, h1[j - 1] + distance, x_left + _popcount(right ^ block))
            f_now = min(min(f1[j], f_left) + m, f1[j - 1] + distance)
            f[j], g[j], h[j], x[j] = f_now, g_now, h_now, x_now
            f_left, g_left, h_left, x_left = f_now, g_now, h_now, x_now


@kernel()
def _layered_rows(units: Any, valid: Any, blocks: Any, m: Any, limits: Any, table: Any) -> None:
    """Every layer of at most `limits` merges and splits, into table[t, u, v, i mod R, j].

    t is 0 where i whole sentences are used up and 1 in the middle of the i-th; u merges and v splits are used. R rows are
    kept: merges + 2 are enough for the last row, and N + 1 keep all of them for a traceback.
    """
    merges, splits, total = limits
    count, size, kept = len(units), len(blocks), table.shape[3]
    table[:] = _FAR
    for j in range(size + 1):
        table[0, 0, 0, 0, j] = j * m
    for i in range(1, count + 1):
        for t in (1, 0):  # a right half continues from the middle of this very sentence
            for u in range(merges + 1):
                for v in range(splits + 1):
                    row = table[t, u, v, i % kept]
                    row[:] = _FAR
                    if u + v > total or v < t:
                        continue
                    for k in range(min(u, i - 1) + 1):
                        for s in range(2):
                            q = s + 2 * t
                            if k >= units.shape[1] or not valid[i - 1, k, q]:
                                continue
                            before = table[s, u - k, v - t, (i - k - 1 + s) % kept]
                            unit = units[i - 1, k, q]
                            row[0] = min(row[0], before[0] + m)
                            for j in range(1, size + 1):
                                row[j] = min(row[j], before[j] + m, before[j - 1] + _popcount(unit ^ blocks[j - 1]))
                    for j in range(1, size + 1):
                        row[j] = min(row[j], row[j - 1] + m)


@kernel()
def _best_z(row: Any, length: Any, m: Any, mean: Any, std: Any, by_longer: Any, least: Any, most: Any) -> Any:
    """The best z of one last row, and the prefix that gave it."""
    best, at = -np.inf, 0
    for j in range(least[length], most[length] + 1):
        longer = max(length, j)
        n = longer if by_longer else length
        z = (mean[n] - row[j] / (m * longer)) / std[n]
        if z > best:
            best, at = z, j
    return best, at


@kernel()
def _score_one(units: Any, valid: Any, blocks: Any, m: Any, limits: Any, rule: Any, out: Any) -> None:
    """Sets out to the best z, the merges and splits of its layer, and its prefix length."""
    merges, splits, total = limits
    mean, std, by_longer, least, most = rule
    count = len(units)
    out[0] = -np.inf
    size = most[min(count + splits, len(most) - 1)]
    if total <= 1 and merges <= 1 and splits <= 1:
        rows = np.empty((8, size + 1), np.int32)
        single = total == 1
        if single:
            _single_rows(units, valid, blocks[:size], m, rows)
        else:
            _edit_row(units[:, 0, WHOLE], blocks[:size], np.int32(m), rows[0])
        for layer in range(3 if single else 1):
            u, v = int(layer == 1), int(layer == 2)
            if u > merges or v > splits or (u and count < 2):
                continue
            z, at = _best_z(rows[layer], count - u + v, m, mean, std, by_longer, least, most)
            if z > out[0] and rows[layer, at] < _FAR:
                out[0], out[1], out[2], out[3] = z, u, v, at
        return
    table = np.empty((2, merges + 1, splits + 1, merges + 2, size + 1), np.int32)
    _layered_rows(units, valid, blocks[:size], np.int32(m), limits, table)
    for u in range(min(merges, count - 1) + 1):
        for v in range(splits + 1):
            row = table[0, u, v, count % (merges + 2)]
            if u + v > total or row[0] >= _FAR:
                continue
            z, at = _best_z(row, count - u + v, m, mean, std, by_longer, least, most)
            if z > out[0]:
                out[0], out[1], out[2], out[3] = z, u, v, at


@kernel()
def _score_offsets(units: Any, valid: Any, blocks: Any, m: Any, limits: Any, rule: Any, offsets: Any, out: Any) -> None:
    """The same for a text that begins with any of the first `offsets` blocks; out[4] is the block that gave the best z."""
    out[4] = 0
    _score_one(units, valid, blocks, m, limits, rule, out)
    if offsets > 1:
        shifted = np.empty(4)
        for offset in range(1, offsets):
            _score_one(units, valid, blocks[offset:], m, limits, rule, shifted)
            if shifted[0] > out[0]:
                out[0], out[1], out[2], out[3], out[4] = shifted[0], shifted[1], shifted[2], shifted[3], offset


@kernel(parallel=True)
def _score_jobs(units: Any, valid: Any, starts: Any, texts: Any, keys: Any, blocks: Any, m: Any, limits: Any,
                rule: Any, offsets: Any, out: Any) -> None:  # fmt: skip
    for job in prange(len(texts)):
        a, b = starts[texts[job]], starts[texts[job] + 1]
        _score_offsets(units[a:b], valid[a:b], blocks[keys[job]], m, limits, rule, offsets, out[job])


@kernel()
def _local_one(units: Any, valid: Any, blocks: Any, m: Any, costs: Any, table: Any) -> Any:
    """The best local sum and where it ends; with R = N + 1 rows, table[i mod R, j] holds what a traceback needs."""
    theta, skip_sentence, skip_block, restructure = costs
    count, size, kept = len(units), len(blocks), len(table)
    best, best_i, best_j = 0.0, 0, 0
    table[0, :] = 0.0
    gain = theta * m
    for i in range(1, count + 1):
        row, up = table[i % kept], table[(i - 1) % kept]
        merged = i > 1 and valid[i - 1, 1, WHOLE]
        halves = valid[i - 1, 0, LEFT]
        row[0] = 0.0
        for j in range(1, size + 1):
            block = blocks[j - 1]
            value = max(0.0, up[j - 1] + gain - _popcount(units[i - 1, 0, WHOLE] ^ block))
            value = max(value, up[j] - skip_sentence, row[j - 1] - skip_block)
            if merged:
                two_up = table[(i - 2) % kept]
                value = max(value, two_up[j - 1] + gain - _popcount(units[i - 1, 1, WHOLE] ^ block) - restructure)
            if halves and j > 1:
                apart = _popcount(units[i - 1, 0, LEFT] ^ blocks[j - 2]) + _popcount(units[i - 1, 0, RIGHT] ^ block)
                value = max(value, up[j - 2] + 2 * gain - apart - restructure)
            row[j] = value
            if value > best:
                best, best_i, best_j = value, i, j
    return best, best_i, best_j


@kernel(parallel=True)
def _local_jobs(units: Any, valid: Any, blocks: Any, m: Any, costs: Any, out: Any) -> None:
    for key in prange(len(blocks)):
        table = np.empty((3, blocks.shape[1] + 1), np.float64)
        out[key] = _local_one(units, valid, blocks[key], m, costs, table)[0]


@kernel(parallel=True)
def _edit_distances(left: Any, right: Any, m: Any, out: Any) -> None:
    for pair in prange(len(left)):
        row = np.empty(right.shape[1] + 1, np.int32)
        _edit_row(left[pair], right[pair], np.int32(m), row)
        out[pair] = row[-1]


def edit_distances(left: Packed, right: Packed, m: int) -> NDArray[np.int32]:
    """The block edit distance of each row of `left` to the same row of `right`."""
    out = np.empty(len(left), np.int32)
    launch(
        len(left), left.shape[1] * right.shape[1], lambda part: _edit_distances(left[part], right[part], m, out[part])
    )
    return out


def search(
    units: Packed,
    valid: NDArray[np.bool_],
    blocks: Packed,
    m: int,
    limits: Limits,
    rule: ZRule,
    *,
    starts: Ints | None = None,
    texts: Ints | None = None,
    keys: Ints | None = None,
    offsets: int = 1,
) -> Best:
    """Algorithm 2 for many pairs of a text and a key, in parallel.

    Job k aligns text t = `texts[k]`, whose units are `units[starts[t]:starts[t + 1]]`, with the key `blocks[keys[k]]`. Without
    them, one text is aligned with every key. A text may begin with any of the first `offsets` blocks; the best is taken.
    """
    if starts is None:
        starts = np.array([0, len(units)])
    if texts is None or keys is None:
        texts, keys = np.zeros(len(blocks), np.int64), np.arange(len(blocks))
    out = np.empty((len(texts), 5))
    if len(texts) == 1:  # starting threads costs more than scoring a single text
        a, b = starts[texts[0]], starts[texts[0] + 1]
        _score_offsets(units[a:b], valid[a:b], blocks[keys[0]], m, tuple(limits), tuple(rule), offsets, out[0])
    else:
        rules = tuple(limits), tuple(rule)
        cells = float(np.diff(starts)[texts].mean()) * blocks.shape[1] * offsets if len(texts) else 0.0
        launch(
            len(texts),
            cells,
            lambda part: _score_jobs(
                units, valid, starts, texts[part], keys[part], blocks, m, *rules, offsets, out[part]
            ),
        )
    whole = out[:, 1:].astype(np.int64)
    return Best(out[:, 0].copy(), whole[:, 0], whole[:, 1], whole[:, 2], whole[:, 3])


def search_local(units: Packed, valid: NDArray[np.bool_], blocks: Packed, m: int, costs: LocalCosts) -> Floats:
    """For each key the best local sum."""
    out = np.empty(len(blocks))
    cells = len(units) * blocks.shape[1]
    launch(len(blocks), cells, lambda part: _local_jobs(units, valid, blocks[part], m, tuple(costs), out[part]))
    return out


def trace(units: Packed, valid: NDArray[np.bool_], blocks: Packed, m: int, merges: int, splits: int) -> list[Step]:
    """The steps of a best alignment with all of `blocks`, in order. Of moves with the same cost a match comes first."""
    count, size = len(units), len(blocks)
    table = np.empty((2, merges + 1, splits + 1, count + 1, size + 1), np.int32)
    _layered_rows(units, valid, blocks, np.int32(m), (merges, splits, merges + splits), table)
    steps: list[Step] = []
    t, u, v, i, j = 0, merges, splits, count, size
    while i or j or t:
        step, (t, u, v, i, j) = _move(units, valid, blocks, m, table, (t, u, v, i, j))
        steps.append(step)
    return steps[::-1]


def _move(
    units: Packed, valid: NDArray[np.bool_], blocks: Packed, m: int, table: NDArray[np.int32], state: tuple[int, ...]
) -> tuple[Step, tuple[int, int, int, int, int]]:
    """The last step into `state`, and the state it came from."""
    t, u, v, i, j = state
    cost = table[t, u, v, i, j]
    if i == 0:
        return Step(SKIP_BLOCK, 0, 0, WHOLE, j - 1), (t, u, v, i, j - 1)
    runs = [
        (k, s) for k in range(min(u, i - 1) + 1) for s in (0, 1) if k < units.shape[1] and valid[i - 1, k, s + 2 * t]
    ]
    for k, s in runs if j else []:
        before = (s, u - k, v - t, i - k - 1 + s, j - 1)
        if cost == table[before] + _popcount(units[i - 1, k, s + 2 * t] ^ blocks[j - 1]):
            return Step(MATCH, i - 1, k, s + 2 * t, j - 1), before
    for k, s in runs:
        before = (s, u - k, v - t, i - k - 1 + s, j)
        if cost == table[before] + m:
            return Step(SKIP_SENTENCE, i - 1, k, s + 2 * t, -1), before
    return Step(SKIP_BLOCK, i - 1, 0, WHOLE, j - 1), (t, u, v, i, j - 1)


def trace_local(
    units: Packed, valid: NDArray[np.bool_], blocks: Packed, m: int, costs: LocalCosts
) -> tuple[float, list[Step]]:
    """The best local sum under a key, and the steps of its alignment in order."""
    table = np.empty((len(units) + 1, len(blocks) + 1))
    best, i, j = _local_one(units, valid, blocks, m, tuple(costs), table)
    gain = costs.theta * m

    def bits(k: int, q: int, block: int) -> int:
        return int(_popcount(units[i - 1, k, q] ^ blocks[block]))

    steps: list[Step] = []
    while i and j and table[i, j] > 0:
        here = table[i, j]
        if here == table[i - 1, j - 1] + gain - bits(0, WHOLE, j - 1):
            steps.append(Step(MATCH, i - 1, 0, WHOLE, j - 1))
            i, j = i - 1, j - 1
        elif (
            i > 1
            and valid[i - 1, 1, WHOLE]
            and (here == table[i - 2, j - 1] + gain - bits(1, WHOLE, j - 1) - costs.restructure)
        ):
            steps.append(Step(MATCH, i - 1, 1, WHOLE, j - 1))
            i, j = i - 2, j - 1
        elif (
            j > 1
            and valid[i - 1, 0, LEFT]
            and (
                here
                == table[i - 1, j - 2] + 2 * gain - (bits(0, LEFT, j - 2) + bits(0, RIGHT, j - 1)) - costs.restructure
            )
        ):
            steps += [Step(MATCH, i - 1, 0, RIGHT, j - 1), Step(MATCH, i - 1, 0, LEFT, j - 2)]
            i, j = i - 1, j - 2
        elif here == table[i - 1, j] - costs.skip_sentence:
            steps.append(Step(SKIP_SENTENCE, i - 1, 0, WHOLE, -1))
            i -= 1
        else:
            steps.append(Step(SKIP_BLOCK, i - 1, 0, WHOLE, j - 1))
            j -= 1
    return float(best), steps[::-1]
