"""Attention of many draws, on a GPU, in one kernel: what _lanes does in a dozen, in half the time.

A program takes sixteen queries of one context and one head. It goes over the context's keys, which they share, with matrix
products, then over each draw's own, and keeps running sums, so that no score is ever written. It reads how long context
and draw are from memory: one recorded graph serves all lengths.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

_QUERIES = 16  # the fewest that a matrix product takes
_OWN_NUMBERS = 8192  # of a block of own keys: as much as the registers of a program hold


@triton.jit  # type: ignore[untyped-decorator]
def _kernel(  # type: ignore[no-untyped-def]  # noqa: PLR0915
    query, key, value, shared_keys, shared_values, own_keys, own_values, out, lengths, step,
    query_row, query_head, key_row, key_head, value_row, value_head, shared_context, shared_head, own_row, own_head,
    rows, scale, window,
    HEADS: tl.constexpr, GROUPS: tl.constexpr, WIDTH: tl.constexpr, WINDOW: tl.constexpr,
    QUERIES: tl.constexpr, SHARED: tl.constexpr, OWN: tl.constexpr,
):  # fmt: skip
    context = tl.program_id(1) // HEADS
    head = tl.program_id(1) % HEADS
    number = tl.program_id(0) * QUERIES + tl.arange(0, QUERIES)
    group = number % GROUPS
    real = number // GROUPS < rows
    row = (context * rows + number // GROUPS).to(tl.int64)
    d = tl.arange(0, WIDTH)
    length = tl.load(lengths + context).to(tl.int32)
    now = tl.load(step).to(tl.int32) - 1
    mask = real[:, None]
    q = tl.load(
        query + row[:, None] * query_row + (head * GROUPS + group)[:, None] * query_head + d, mask=mask, other=0.0
    )
    k = tl.load(key + row[:, None] * key_row + head * key_head + d, mask=mask, other=0.0)
    v = tl.load(value + row[:, None] * value_row + head * value_head + d, mask=mask, other=0.0)
    own = row[:, None] * own_row + head * own_head + d
    keep = mask & (group == 0)[:, None]
    tl.store(own_keys + own + now * WIDTH, k, mask=keep)
    tl.store(own_values + own + now * WIDTH, v, mask=keep)

    # The token itself is always seen, so the sums start with it and are never empty.
    wide = q.to(tl.float32)
    most = tl.sum(wide * k.to(tl.float32), axis=1) * scale
    total = tl.full([QUERIES], 1.0, tl.float32)
    found = v.to(tl.float32)

    first = 0
    if WINDOW:
        first = tl.maximum(0, length + now - window + 1) // SHARED * SHARED
    shared = context.to(tl.int64) * shared_context + head * shared_head
    for start in range(first, length, SHARED):
        at = start + tl.arange(0, SHARED)
        there = (at < length)[:, None]
        keys = tl.load(shared_keys + shared + at[:, None] * WIDTH + d, mask=there, other=0.0)
        values = tl.load(shared_values + shared + at[:, None] * WIDTH + d, mask=there, other=0.0)
        scores = tl.dot(q, tl.trans(keys), input_precision="ieee") * scale
        seen = at < length
        if WINDOW:
            seen = seen & (at > length + now - window)
        scores = tl.where(seen[None, :], scores, -float("inf"))
        higher = tl.maximum(most, tl.max(scores, axis=1))
        weights = tl.exp(scores - higher[:, None])
        fade = tl.exp(most - higher)
        total = total * fade + tl.sum(weights, axis=1)
        found = found * fade[:, None] + tl.dot(weights.to(values.dtype), values, input_precision="ieee")
        most = higher

    first = 0
    if WINDOW:
        first = tl.maximum(0, now - window + 1) // OWN * OWN
    for start in range(first, now, OWN):
        at = start + tl.arange(0, OWN)
        there = real[:, None, None] & (at < now)[None, :, None]
        place = row[:, None, None] * own_row + head * own_head + at[None, :, None] * WIDTH + d[None, None, :]
        keys = tl.load(own_keys + place, mask=there, other=0.0).to(tl.float32)
        scores = tl.sum(wide[:, None, :] * keys, axis=2) * scale
        seen = at < now
        if WINDOW:
            seen = seen & (at > now - window)
        scores = tl.where(seen[None, :], scores, -float("inf"))
        higher = tl.maximum(most, tl.max(scores, axis=1))
        weights = tl.exp(scores - higher[:, None])
        fade = tl.exp(most - higher)
        total = total * fade + tl.sum(weights, axis=1)
        values = tl.load(own_values + place, mask=there, other=0.0).to(tl.float32)
        found = found * fade[:, None] + tl.sum(weights[:, :, None] * values, axis=1)
        most = higher

    found = found / total[:, None]
    to = (row[:, None] * HEADS * GROUPS + (head * GROUPS + group)[:, None]) * WIDTH + d
    tl.store(out + to, found.to(out.dtype.element_ty), mask=mask)


def attend(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    shared: torch.Tensor,
    own: torch.Tensor,
    lengths: torch.Tensor,
    step: torch.Tensor,
    scale: float,
    window: int | None,
) -> torch.Tensor:
    """query: (rows, heads * groups, 1, width); key, value: (rows, heads, 1, width), which are added to `own`.

    shared: (2, contexts, heads, tokens, width); own: (2, rows, heads, steps, width). The last two orders are kept together in
    memory. Of every context there are as many rows as of any other.
    """
    contexts, heads, width = shared.shape[1], shared.shape[2], shared.shape[4]
    rows, groups = query.shape[0], query.shape[1] // heads
    out = torch.empty((rows, 1, heads * groups, width), dtype=query.dtype, device=query.device)
    grid = (triton.cdiv(rows // contexts * groups, _QUERIES), contexts * heads)
    launch: Any = _kernel[grid]
    launch(
        query, key, value, shared[0], shared[1], own[0], own[1], out, lengths, step,
        query.stride(0), query.stride(1), key.stride(0), key.stride(1), value.stride(0), value.stride(1),
        shared.stride(1), shared.stride(2), own.stride(1), own.stride(2),
        rows // contexts, scale, window or 0,
        HEADS=heads, GROUPS=groups, WIDTH=width, WINDOW=window is not None,
        QUERIES=_QUERIES, SHARED=max(16, min(64, 8192 // width)), OWN=max(2, min(8, _OWN_NUMBERS // (_QUERIES * width))),
    )  # fmt: skip
    return out
