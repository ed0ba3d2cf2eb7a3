"""Many draws of many contexts in one batch, for the transformers adapter.

A context is read once. Its keys and values are shared by all of its draws, which hold none but those of the tokens they
have sampled themselves: attention is over the context's part and the draw's own part together. A row of the batch is
a draw in progress, and rows leave as their sentences end.

On a GPU the step from one token to the next, sampling included, is recorded as a CUDA graph and replayed: launching
the thousand small kernels of a small model one by one would take longer than running them. A graph wants the same number
of rows for every context, so there the rows form a grid, and it shrinks by halves.
"""

from __future__ import annotations

import itertools
import math
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray

from alimark.llm.base import Sampling

ATTENTION = "alimark"

# A draw outside top-p is made again; so many times that one in a million is left, which gets the likeliest token.
_LEFT_OVER = 1e-6
# Below this top-p most draws would be made again, and sorting is the better way.
_LEAST_TOP_P = 0.5


_recording = threading.Lock()


@dataclass(frozen=True)
class Shape:
    """Of the keys and values that one token leaves in the model."""

    layers: int
    heads: int
    width: int
    dtype: torch.dtype
    device: torch.device

    def empty(self, rows: int, tokens: int) -> torch.Tensor:
        return torch.zeros((self.layers, 2, rows, self.heads, tokens, self.width), dtype=self.dtype, device=self.device)

    @property
    def bytes_a_token(self) -> int:
        return self.layers * 2 * self.heads * self.width * self.dtype.itemsize


def attend(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    memory: Any,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """What a model calls in place of its own attention; `memory` keeps the new keys and values and knows the old."""
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    return memory.attend(module.layer_idx, query, key, value, scale, sliding_window, softcap), None


def _kernel(width: int) -> Any:
    if width < 16 or width & (width - 1):
        return None
    try:
        from alimark.llm import _kernel
    except ImportError:  # no Triton, which PyTorch for CUDA brings along on most systems
        return None
    return _kernel.attend


def install(model: Any) -> None:
    from transformers import AttentionInterface

    AttentionInterface.register(ATTENTION, attend)
    model.set_attn_implementation(ATTENTION)


def fuse(model: Any) -> None:
    """Root-mean-square norms in one kernel instead of eight, where that gives the same numbers."""
    for module in model.modules():
        weight = getattr(module, "weight", None)
        eps = getattr(module, "variance_epsilon", getattr(module, "eps", None))
        if not type(module).__name__.endswith("RMSNorm") or weight is None or not isinstance(eps, float):
            continue
        probe = torch.linspace(-2, 3, 2 * weight.numel(), device=weight.device).to(weight.dtype).view(2, -1)
        expected = module(probe).float()
        ways = [
            partial(F.rms_norm, normalized_shape=weight.shape, weight=scale.to(weight.dtype), eps=eps)
            for scale in (weight.detach(), 1 + weight.detach().float())  # gemma's are kept less one
        ]
        errors = [float((way(probe).float() - expected).norm() / expected.norm()) for way in ways]
        if min(errors) <= 0.01:  # large weights pass either way, so the nearer one is taken
            module.forward = ways[errors.index(min(errors))]


class Measure:
    """Finds out the shape of a model's keys and values; attends to nothing."""

    def __init__(self) -> None:
        self.shapes: list[tuple[int, int]] = []

    def attend(self, layer: int, query: torch.Tensor, key: torch.Tensor, *_: Any) -> torch.Tensor:
        self.shapes.append((key.shape[1], key.shape[3]))
        return query.transpose(1, 2)


class Reading:
    """Reads the contexts' new tokens, behind those read before, into `memory`: keys and values of every context."""

    def __init__(self, memory: torch.Tensor, positions: torch.Tensor) -> None:
        self.memory, self.positions = memory, positions
        self._rows = torch.arange(len(positions), device=memory.device)[:, None]
        self._at = torch.arange(memory.shape[4], device=memory.device)

    def attend(
        self,
        layer: int,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        scale: float,
        window: int | None,
        softcap: float | None,
    ) -> torch.Tensor:
        keys, values = self.memory[layer]
        keys[self._rows, :, self.positions] = key.transpose(1, 2)
        values[self._rows, :, self.positions] = value.transpose(1, 2)
        visible = self._at <= self.positions[:, :, None]
        if window is not None:
            visible &= self._at > self.positions[:, :, None] - window
        if softcap is None:
            found: torch.Tensor = F.scaled_dot_product_attention(
                query, keys, values, attn_mask=visible[:, None], scale=scale, enable_gqa=query.shape[1] != keys.shape[1]
            )
            return found.transpose(1, 2)
        groups = query.shape[1] // keys.shape[1]
        keys, values = (part.repeat_interleave(groups, dim=1) for part in (keys, values))
        scores = torch.tanh(query @ keys.transpose(2, 3) * (scale / softcap)) * softcap
        weights = scores.masked_fill(~visible[:, None], -torch.inf).softmax(dim=3, dtype=torch.float32)
        found = weights.to(values.dtype) @ values
        return found.transpose(1, 2)


class Lanes:
    """The draws of several contexts, a token at a time.

    contexts and rows: the most of each that will be held. tokens: the longest context. steps: the most tokens a draw.
    """

    def __init__(self, model: Any, shape: Shape, contexts: int, rows: int, tokens: int, steps: int) -> None:
        self._model, self._shape = model, shape
        self.contexts, self.rows, self.tokens, self.steps = contexts, rows, tokens, steps
        self.memory = shape.empty(contexts, tokens)
        self._own = shape.empty(rows, steps)
        device = shape.device
        self._ids = torch.zeros((contexts, tokens), dtype=torch.long, device=device)
        self._sampled = torch.zeros((rows, steps), dtype=torch.long, device=device)
        self._keys = torch.zeros(rows, dtype=torch.long, device=device)
        self._text = torch.zeros(rows, dtype=torch.long, device=device)
        self._lengths = torch.zeros(contexts, dtype=torch.long, device=device)
        self._step = torch.zeros((), dtype=torch.long, device=device)
        self._at = torch.arange(max(tokens, steps), device=device)
        self.graphs = device.type == "cuda"
        self.stream = torch.cuda.Stream(device) if self.graphs else None  # type: ignore[no-untyped-call]
        self._kernel = _kernel(shape.width) if self.graphs else None
        self._ahead = 0  # steps that the graph takes in one go
        self._recorded: dict[Any, torch.cuda.CUDAGraph] = {}
        self._pool: Any = None
        self._masks: dict[int | None, torch.Tensor] = {}

    def start(
        self, contexts: Sequence[Sequence[int]], counts: Sequence[int], keys: Sequence[int], logits: torch.Tensor,
        sampling: Sampling, control: torch.Tensor,
    ) -> NDArray[np.int64]:  # fmt: skip
        """Takes `counts[i]` draws of context i, already read into `memory`, and samples each draw's first token."""
        self._sampling, self._control = sampling, control
        self._counts = list(counts)
        self._lengths.copy_(torch.tensor([len(ids) for ids in contexts] + [1] * (self.contexts - len(contexts))))
        self._longest = max(map(len, contexts))
        padded = [[*ids, *[ids[0]] * (self.tokens - len(ids))] for ids in contexts]
        self._ids[: len(contexts)].copy_(torch.tensor(padded))
        self._lay_out(torch.tensor(list(keys)))
        self._sampled[: self._live] = self._ids[self._text[: self._live], :1]  # a token of the context counts once
        self._step.zero_()
        self._done = 0
        rows = logits[self._text[: self._live]]
        return self._tokens(self._sample(rows), 1)

    def _lay_out(self, keys: torch.Tensor) -> None:
        self._live = sum(self._counts)
        self._keys[: self._live].copy_(keys)
        text = torch.repeat_interleave(torch.arange(len(self._counts)), torch.tensor(self._counts))
        self._text[: self._live].copy_(text)

    def advance(self, steps: int) -> NDArray[np.int64]:
        """The next tokens of every row."""
        if self.graphs:
            self._replay(steps)
            self._done += steps
        for _ in range(0 if self.graphs else steps):
            self._move()
            self._done += 1
        return self._tokens(None, steps)

    def _tokens(self, first: torch.Tensor | None, count: int) -> NDArray[np.int64]:
        if first is not None:
            self._sampled[: self._live, 0] = first
            self._step += 1
            self._done = 1
        found: NDArray[np.int64] = self._sampled[: self._live, self._done - count : self._done].cpu().numpy()
        return found

    def keep(self, rows: Sequence[int], counts: Sequence[int]) -> None:
        """Goes on with these rows alone, `counts[i]` of them of context i."""
        at = torch.tensor(rows, device=self._shape.device)
        n, done = len(rows), self._done
        self._own[:, :, :n, :, :done] = self._own[:, :, at, :, :done]
        self._sampled[:n] = self._sampled[at]
        self._counts = list(counts)
        self._lay_out(self._keys[at])

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Logits behind each row's last token."""
        self._masks.clear()
        positions = self._lengths[self._text[: self._live]] + self._step - 1
        answer = self._model(tokens[:, None], position_ids=positions[:, None], use_cache=False, memory=self)
        logits: torch.Tensor = answer.logits[:, -1]
        return logits

    def force(self, tokens: torch.Tensor) -> torch.Tensor:
        """As if these had been sampled last: the logits behind them. Then the next step."""
        self._sampled[: self._live, self._done - 1] = tokens
        logits = self.forward(tokens)
        self._step += 1
        self._done += 1
        return logits

    def _move(self) -> None:
        before = self._sampled[: self._live].gather(1, (self._step - 1).expand(self._live, 1))[:, 0]
        found = self._sample(self.forward(before))
        self._sampled[: self._live].scatter_(1, self._step.expand(self._live, 1), found[:, None])
        self._step += 1

    def _sample(self, logits: torch.Tensor) -> torch.Tensor:
        live, own, read = self._live, self._own_tokens, self._read_tokens
        seen = torch.cat([self._ids[self._text[:live], :read], self._sampled[:live, :own]], dim=1)
        tries = tries_for(self._sampling.top_p)
        chances = probabilities(logits, seen, self._sampling, self._control)
        return choose(chances, self._sampling.top_p, uniform_numbers(self._keys[:live], self._step, tries))

    @property
    def _own_tokens(self) -> int:
        # A graph looks at somewhat more than there is, and masks what is not there yet.
        if self._kernel:
            return self.steps
        return _rounded(self._done + self._ahead, 32, self.steps) if self.graphs else max(1, self._done)

    @property
    def _read_tokens(self) -> int:
        if self._kernel:
            return self.tokens
        return _rounded(self._longest, 256, self.tokens) if self.graphs else self._longest

    def _replay(self, steps: int) -> None:
        """All steps up to the next look in one go: a thread that feeds a GPU often waits for the interpreter."""
        self._ahead = steps
        key = (tuple(self._counts), steps, self._own_tokens, self._read_tokens, self._sampling)
        if key not in self._recorded:
            self._record(key, steps)
        self._recorded[key].replay()

    def _record(self, key: Any, steps: int) -> None:
        if not self._recorded:
            # Libraries set themselves up at the first step, which a recording does not allow.
            saved = self._sampled.clone(), self._step.clone()
            self._move()
            self._sampled.copy_(saved[0])
            self._step.copy_(saved[1])
        graph = torch.cuda.CUDAGraph()
        with (
            _recording,  # two at a time disturb each other
            torch.cuda.graph(graph, pool=self._pool, stream=self.stream, capture_error_mode="thread_local"),
        ):
            for _ in range(steps):
                self._move()
        self._pool = graph.pool()
        self._recorded[key] = graph

    def attend(
        self,
        layer: int,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        scale: float,
        window: int | None,
        softcap: float | None,
    ) -> torch.Tensor:
        live, heads, width = self._live, self._shape.heads, self._shape.width
        own, read = self._own_tokens, self._read_tokens
        if self._kernel and softcap is None:
            mine, shared = self._own[layer, :, :live], self.memory[layer, :, : len(self._counts)]
            done: torch.Tensor = self._kernel(query, key, value, shared, mine, self._lengths, self._step, scale, window)
            return done
        at = (self._step - 1).expand(1)
        mine = self._own[layer, :, :live]
        mine[0].index_copy_(2, at, key)
        mine[1].index_copy_(2, at, value)
        mine, shared = mine[:, :, :, :own], self.memory[layer, :, : len(self._counts), :, :read]
        query, hidden = (query * scale).view(live, heads, -1, width), self._hidden(window, own, read)
        if len(set(self._counts)) == 1:
            found = _attend_grid(query, shared, mine, hidden, softcap)
        else:
            found = torch.cat(
                [
                    _attend_grid(query[rows], shared[:, i : i + 1], mine[:, rows], hidden[rows], softcap)
                    for i, rows in enumerate(_slices(self._counts))
                    if rows.start < rows.stop
                ]
            )
        return found.reshape(live, 1, -1, width)

    def _hidden(self, window: int | None, own: int, read: int) -> torch.Tensor:
        """Which tokens a row does not see: (rows, read + own)."""
        if window not in self._masks:
            lengths, now = self._lengths[self._text[: self._live], None], self._step - 1
            shared, mine = self._at[:read] >= lengths, (self._at[:own] > now).expand(self._live, own)
            if window is not None:
                shared = shared | (self._at[:read] <= lengths + now - window)
                mine = mine | (self._at[:own] <= now - window)
            self._masks[window] = torch.cat([shared, mine], dim=1)
        return self._masks[window]


def _rounded(n: int, least: int, most: int) -> int:
    """Few different numbers, since each is a graph of its own: the next power of two."""
    return min(most, max(least, 1 << (n - 1).bit_length()))


def _slices(counts: Sequence[int]) -> Iterator[slice]:
    ends = [0, *itertools.accumulate(counts)]
    return (slice(a, b) for a, b in itertools.pairwise(ends))


def _attend_grid(
    query: torch.Tensor, shared: torch.Tensor, own: torch.Tensor, hidden: torch.Tensor, softcap: float | None
) -> torch.Tensor:
    """Attention of the same number of rows for each context: (rows, heads, groups, width).

    All rows of a context look at what they share in one product; what is large is never copied into another order.
    """
    contexts, heads, read, width = shared.shape[1:]
    rows, groups = len(query), query.shape[2]
    n = rows // contexts
    together = query.view(contexts, n, heads, groups, width).transpose(1, 2).reshape(contexts, heads, n * groups, width)
    common = (together @ shared[0].transpose(2, 3)).view(contexts, heads, n, groups, read)
    mine = (query @ own[0].transpose(2, 3)).view(contexts, n, heads, groups, -1).transpose(1, 2)
    scores = torch.cat([common, mine], dim=4)
    if softcap is not None:
        scores = torch.tanh(scores / softcap) * softcap
    weights = scores.masked_fill_(hidden.view(contexts, 1, n, 1, -1), -torch.inf).softmax(dim=4)
    of_common = (weights[..., :read].flatten(2, 3) @ shared[1]).view(contexts, heads, n, groups, width)
    of_mine = weights[..., read:].transpose(1, 2).reshape(rows, heads, groups, -1) @ own[1]
    return of_common.transpose(1, 2).reshape(rows, heads, groups, width) + of_mine


def tries_for(top_p: float) -> int:
    """How many numbers a token may take."""
    if top_p < _LEAST_TOP_P:
        return 1
    return math.ceil(math.log(_LEFT_OVER) / math.log(max(1 - top_p, 1e-3)))


_GOLDEN, _MIX_1, _MIX_2 = (n - 2**64 for n in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))


def uniform_numbers(keys: torch.Tensor, step: torch.Tensor, count: int) -> torch.Tensor:
    """Numbers in [0, 1), `count` a row: SplitMix64 of the row's key at this step, the same on every device."""
    at = step * 64 + torch.arange(1, count + 1, device=keys.device)
    z = keys[:, None] + at * _GOLDEN
    z = (z ^ (z >> 30 & 2**34 - 1)) * _MIX_1
    z = (z ^ (z >> 27 & 2**37 - 1)) * _MIX_2
    z = z ^ (z >> 31 & 2**33 - 1)
    return (z >> 11 & 2**53 - 1).double() * 2.0**-53


def probabilities(
    logits: torch.Tensor, seen: torch.Tensor, sampling: Sampling, control: torch.Tensor | None = None
) -> torch.Tensor:
    """Of every token, before top-p. `seen`: the ids of each row's context and text.

    Repetition penalty and temperature by the rules of transformers; in which order does not matter.
    """
    scores = logits * torch.full((1, 1), 1 / sampling.temperature, device=logits.device)  # and float32 from here on
    penalty = sampling.repetition_penalty
    if penalty != 1:
        old = scores.gather(1, seen)
        scores.scatter_(1, seen, torch.where(old < 0, old * penalty, old / penalty))
    if control is not None and not sampling.may_end:
        scores.index_fill_(1, control, -torch.inf)
    return torch.softmax(scores, dim=1)


def choose(chances: torch.Tensor, top_p: float, numbers: torch.Tensor) -> torch.Tensor:
    """One token a row, from the likeliest that together weigh `top_p`.

    A token is drawn from all of them and drawn again while it lies outside, which gives the same law as sorting and is
    much faster: all it takes is the weight of what is likelier than the token drawn.
    """
    if top_p < _LEAST_TOP_P:
        return _choose_sorted(chances, top_p, numbers[:, :1])
    picks = _invert(chances, numbers)
    chosen, weights = picks[:, 0], chances.gather(1, picks)
    inside = _inside(chances, weights[:, 0], top_p)
    if chances.is_cuda:  # no shape may depend on what was drawn; an eighth of the rows is far more than will fail
        rest = torch.topk((~inside).float(), max(min(64, len(inside)), len(inside) // 8), sorted=False).indices
    else:
        rest = (~inside).nonzero()[:, 0]
        if not len(rest):
            return chosen
    chances, settled, found = chances[rest], inside[rest], chosen[rest]
    for turn in range(1, numbers.shape[1]):
        good = ~settled & _inside(chances, weights[rest, turn], top_p)
        found = torch.where(good, picks[rest, turn], found)
        settled = settled | good
    return chosen.index_copy(0, rest, torch.where(settled, found, chances.argmax(dim=1)))


def _inside(chances: torch.Tensor, weights: torch.Tensor, top_p: float) -> torch.Tensor:
    likelier = torch.where(chances > weights[:, None], chances, 0).sum(dim=1)
    return (likelier < top_p) & (weights > 0)


_BLOCK = 256


def _invert(weights: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
    """Where the running sum of each row reaches `numbers` of its whole: first which block of tokens, then which of them."""
    size = weights.shape[1]
    whole = F.pad(weights, (0, -size % _BLOCK)) if size % _BLOCK else weights
    blocks = whole.view(len(weights), -1, _BLOCK)
    sums = blocks.sum(dim=2)
    running = sums.cumsum(dim=1)
    target = (numbers * running[:, -1:]).to(running.dtype)
    block = torch.searchsorted(running, target, right=True).clamp_(max=running.shape[1] - 1)
    left = target - (running - sums).gather(1, block)
    inner = blocks.gather(1, block[:, :, None].expand(-1, -1, _BLOCK)).cumsum(dim=2)
    token = torch.searchsorted(inner, left[:, :, None], right=True)[:, :, 0].clamp_(max=_BLOCK - 1)
    return (block * _BLOCK + token).clamp_(max=size - 1)


def _choose_sorted(chances: torch.Tensor, top_p: float, numbers: torch.Tensor) -> torch.Tensor:
    weights, ids = chances.sort(dim=1, descending=True)
    above = weights.cumsum(dim=1) - weights
    return ids.gather(1, _invert(weights.masked_fill(above >= top_p, 0), numbers))[:, 0]
