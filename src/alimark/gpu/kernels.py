"""Triton kernels for a decode step: attention, the product in a gated layer, and the choice of a token.

A program of the attention kernel takes the queries of a few sequences of one context, in one head. It applies RoPE to queries
and keys, goes over the context's keys, which the sequences share, with matrix products, then over each sequence's own keys,
with an online softmax, so that no score is written to memory. It reads the lengths of contexts and sequences from GPU memory:
one CUDA graph serves all lengths.
"""

import torch
import triton
import triton.language as tl

QUERIES = 16  # queries of one program of the attention kernel: the fewest that `tl.dot` takes
_OWN_NUMBERS = 8192  # in a block of a sequence's own keys: as many as the registers of a program hold


@triton.jit  # type: ignore[untyped-decorator]
def _with_rope(at, cos, sin, place, mask, d, WIDTH: tl.constexpr):  # type: ignore[no-untyped-def]
    """Vectors at the address `at` with RoPE applied, in float32; the halves of a vector are rotated against each other."""
    straight = tl.load(at + d, mask=mask, other=0.0).to(tl.float32)
    other = tl.load(at + (d + WIDTH // 2) % WIDTH, mask=mask, other=0.0).to(tl.float32)
    other = tl.where(d < WIDTH // 2, -other, other)
    c = tl.load(cos + place + d, mask=mask, other=0.0).to(tl.float32)
    s = tl.load(sin + place + d, mask=mask, other=0.0).to(tl.float32)
    return straight * c + other * s


@triton.jit  # type: ignore[untyped-decorator]
def _attention(  # type: ignore[no-untyped-def]  # noqa: PLR0915
    query, key, value, cos, sin, shared_keys, shared_values, own_keys, own_values, out, blocks, context_of, lengths, steps,
    query_row, query_head, key_row, key_head, value_row, value_head, rope_row, shared_context, shared_head, own_row, own_head,
    scale, window,
    HEADS: tl.constexpr, GROUPS: tl.constexpr, WIDTH: tl.constexpr, WINDOW: tl.constexpr, ROPE: tl.constexpr,
    QUERIES: tl.constexpr, ROWS: tl.constexpr, SHARED: tl.constexpr, OWN: tl.constexpr,
):  # fmt: skip
    block = tl.program_id(0)
    head = tl.program_id(1)
    first_row = tl.load(blocks + block * ROWS)
    if first_row < 0:
        return
    context = tl.load(context_of + first_row)
    length = tl.load(lengths + context).to(tl.int32)
    number = tl.arange(0, QUERIES)
    group = number % GROUPS
    real = number < GROUPS * ROWS
    row = tl.load(blocks + block * ROWS + number // GROUPS, mask=real, other=-1).to(tl.int64)
    real = real & (row >= 0)
    row = tl.where(real, row, 0)
    now = tl.load(steps + row, mask=real, other=0).to(tl.int32)
    d = tl.arange(0, WIDTH)[None, :]
    mask = real[:, None]
    at = query + row[:, None] * query_row + (head * GROUPS + group)[:, None] * query_head
    key_at = key + row[:, None] * key_row + head * key_head
    if ROPE:
        rope = row[:, None] * rope_row
        q = _with_rope(at, cos, sin, rope, mask, d, WIDTH).to(query.dtype.element_ty)
        k = _with_rope(key_at, cos, sin, rope, mask, d, WIDTH).to(query.dtype.element_ty)
    else:
        q = tl.load(at + d, mask=mask, other=0.0)
        k = tl.load(key_at + d, mask=mask, other=0.0)
    v = tl.load(value + row[:, None] * value_row + head * value_head + d, mask=mask, other=0.0)
    own_at = row[:, None] * own_row + head * own_head + d
    keep = mask & (group == 0)[:, None]
    tl.store(own_keys + own_at + now[:, None] * WIDTH, k, mask=keep)
    tl.store(own_values + own_at + now[:, None] * WIDTH, v, mask=keep)

    # A token always attends to itself, so the sums start with it and are never empty.
    wide = q.to(tl.float32)
    most = tl.sum(wide * k.to(tl.float32), axis=1) * scale
    total = tl.full([QUERIES], 1.0, tl.float32)
    attended = v.to(tl.float32)

    first = 0
    if WINDOW:
        first = tl.maximum(0, length + tl.min(tl.where(real, now, 2147483647)) - window + 1) // SHARED * SHARED
    shared = context.to(tl.int64) * shared_context + head * shared_head
    for start in range(first, length, SHARED):
        key_number = start + tl.arange(0, SHARED)
        there = (key_number < length)[:, None]
        keys = tl.load(shared_keys + shared + key_number[:, None] * WIDTH + d, mask=there, other=0.0)
        values = tl.load(shared_values + shared + key_number[:, None] * WIDTH + d, mask=there, other=0.0)
        scores = tl.dot(q, tl.trans(keys), input_precision="ieee") * scale
        seen = (key_number < length)[None, :] & real[:, None]
        if WINDOW:
            seen = seen & (key_number[None, :] > (length + now - window)[:, None])
        scores = tl.where(seen, scores, -float("inf"))
        higher = tl.maximum(most, tl.max(scores, axis=1))
        weights = tl.exp(scores - higher[:, None])
        fade = tl.exp(most - higher)
        total = total * fade + tl.sum(weights, axis=1)
        attended = attended * fade[:, None] + tl.dot(weights.to(values.dtype), values, input_precision="ieee")
        most = higher

    first = 0
    latest = tl.max(tl.where(real, now, 0))
    if WINDOW:
        first = tl.maximum(0, tl.min(tl.where(real, now, 2147483647)) - window + 1) // OWN * OWN
    for start in range(first, latest, OWN):
        key_number = start + tl.arange(0, OWN)
        seen = real[:, None] & (key_number[None, :] < now[:, None])
        if WINDOW:
            seen = seen & (key_number[None, :] > (now - window)[:, None])
        place = (row * own_row)[:, None, None] + head * own_head + key_number[None, :, None] * WIDTH + d[:, None, :]
        keys = tl.load(own_keys + place, mask=seen[:, :, None], other=0.0).to(tl.float32)
        scores = tl.sum(wide[:, None, :] * keys, axis=2) * scale
        scores = tl.where(seen, scores, -float("inf"))
        higher = tl.maximum(most, tl.max(scores, axis=1))
        weights = tl.exp(scores - higher[:, None])
        fade = tl.exp(most - higher)
        total = total * fade + tl.sum(weights, axis=1)
        values = tl.load(own_values + place, mask=seen[:, :, None], other=0.0).to(tl.float32)
        attended = attended * fade[:, None] + tl.sum(weights[:, :, None] * values, axis=1)
        most = higher

    attended = attended / total[:, None]
    to = (row[:, None] * HEADS * GROUPS + (head * GROUPS + group)[:, None]) * WIDTH + d
    tl.store(out + to, attended.to(out.dtype.element_ty), mask=mask)


def attend(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    rope: tuple[torch.Tensor, torch.Tensor] | None,
    shared: torch.Tensor,
    own: torch.Tensor,
    blocks: torch.Tensor,
    context_of: torch.Tensor,
    lengths: torch.Tensor,
    steps: torch.Tensor,
    scale: float,
    window: int | None,
    out: torch.Tensor,
) -> torch.Tensor:
    """Attention of one decode step; key and value are stored in `own`.

    query: (rows, heads * groups, width), a row for each sequence; key, value: (rows, heads, width). rope: cosines and sines of
    each row's position, (rows, width), if RoPE is to be applied. shared: the contexts' KV cache, (2, contexts, heads, tokens,
    width); own: the sequences' KV cache, (2, rows, heads, steps, width). blocks: in each row sequences of one context, filled
    up with -1. context_of: each sequence's context. lengths: tokens of each context in `shared`. steps: each sequence's own
    tokens before this one. out: the result, (rows, heads * groups, width); rows in no block are not written.
    """
    heads, width = shared.shape[2], shared.shape[4]
    groups = query.shape[1] // heads
    cos, sin = rope or (query, query)
    launch = _attention[(len(blocks), heads)]
    launch(
        query, key, value, cos, sin, shared[0], shared[1], own[0], own[1], out, blocks, context_of, lengths, steps,
        query.stride(0), query.stride(1), key.stride(0), key.stride(1), value.stride(0), value.stride(1), cos.stride(0),
        shared.stride(1), shared.stride(2), own.stride(1), own.stride(2), scale, window or 0,
        HEADS=heads, GROUPS=groups, WIDTH=width, WINDOW=window is not None, ROPE=rope is not None, QUERIES=QUERIES,
        ROWS=blocks.shape[1], SHARED=max(16, min(64, 8192 // width)), OWN=max(2, min(8, _OWN_NUMBERS // (QUERIES * width))),
    )  # fmt: skip
    return out


@triton.jit  # type: ignore[untyped-decorator]
def _gated(both, out, size, GELU: tl.constexpr, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = at < size
    gate = tl.load(both + row * 2 * size + at, mask=mask, other=0.0).to(tl.float32)
    up = tl.load(both + row * 2 * size + size + at, mask=mask, other=0.0).to(tl.float32)
    slope = 1.5957691216057308 * (gate + 0.044715 * gate * gate * gate) if GELU else gate
    done = gate / (1 + tl.exp(-slope))
    tl.store(out + row * size + at, (done * up).to(out.dtype.element_ty), mask=mask)


def gated(both: torch.Tensor, *, gelu: bool) -> torch.Tensor:
    """SiLU, or GELU in its tanh form, of the first half of each row, times the second half."""
    size = both.shape[-1] // 2
    out = torch.empty((*both.shape[:-1], size), dtype=both.dtype, device=both.device)
    rows = both.numel() // (2 * size)
    launch = _gated[(rows, triton.cdiv(size, 1024))]
    launch(both, out, size, GELU=gelu, BLOCK=1024)
    return out


@triton.jit  # type: ignore[untyped-decorator]
def _choice(  # type: ignore[no-untyped-def]
    scores, numbers, out, size, row_stride, top_p, TRIES: tl.constexpr, BLOCK: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    scores += row * row_stride
    most = -float("inf")
    answer = 0
    for start in range(0, size, BLOCK):
        x = tl.load(scores + start + at, mask=start + at < size, other=-float("inf"))
        high = tl.max(x, axis=0)
        if high > most:
            most = high
            answer = start + tl.argmax(x, axis=0)
    total = 0.0
    for start in range(0, size, BLOCK):
        total += tl.sum(
            tl.exp(tl.load(scores + start + at, mask=start + at < size, other=-float("inf")) - most), axis=0
        )
    settled = 0
    number = 0
    while (number < TRIES) & (settled == 0):
        target = tl.load(numbers + row * TRIES + number) * total
        start = 0
        before = 0.0
        token = -1
        weight = 0.0
        while (start < size) & (token < 0):
            e = tl.exp(tl.load(scores + start + at, mask=start + at < size, other=-float("inf")) - most)
            behind = before + tl.sum(e, axis=0)
            if behind > target:
                passed = tl.sum((before + tl.cumsum(e, axis=0) <= target).to(tl.int32), axis=0)
                passed = tl.minimum(passed, BLOCK - 1)
                token = start + passed
                weight = tl.sum(tl.where(at == passed, e, 0.0), axis=0)
            before = behind
            start += BLOCK
        likelier = 0.0
        for first in range(0, size, BLOCK):
            e = tl.exp(tl.load(scores + first + at, mask=first + at < size, other=-float("inf")) - most)
            likelier += tl.sum(tl.where(e > weight, e, 0.0), axis=0)
        if (weight > 0) & (likelier < top_p * total):
            answer = token
            settled = 1
        number += 1
    tl.store(out + row, answer)


def choose(scores: torch.Tensor, top_p: float, numbers: torch.Tensor) -> torch.Tensor:
    """Like `sampling.choose`, from scores before their softmax."""
    out = torch.empty(len(scores), dtype=torch.long, device=scores.device)
    launch = _choice[(len(scores),)]
    tries = numbers.float().contiguous()
    launch(
        scores, tries, out, scores.shape[1], scores.stride(0), top_p, TRIES=tries.shape[1], BLOCK=4096, num_warps=8
    )  # fmt: skip
    return out
