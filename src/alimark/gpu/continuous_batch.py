"""Continuous batching: sequences enter and leave one running batch.

Every sequence has a slot, whatever its context and length, so a slot whose sentence has ended can be given to the next sequence
while the others go on. On a GPU, decode steps, sampling included, are recorded as CUDA graphs and replayed: launching the
hundreds of small kernels of a small model one by one would take longer than running them.

A context is prefilled except for its last token, which is the first token of each sequence's own cache. So starting a
sequence takes no run of the model. On a CPU everything is computed step by step with plain matrix products; tests compare the
two.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import ModuleType
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

from alimark.core.embedding.cuda_graphs import record
from alimark.core.llm.base import Sampling, TokenBias
from alimark.gpu.attention import AttentionCall, KVLayout, capped, pad_left, pad_right, prefill
from alimark.gpu.sampling import MIN_REJECTION_TOP_P, biased, choose, scores, tries_for, uniform_numbers

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_PREFILL_CONTEXTS = 8  # at a time
_PREFILL_TOKENS = 512  # of each context at a time
_BLOCK_SLOTS = 32  # in a block of slots with one context, where no kernel sets how many it takes

PrefillInput = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
"""Token ids, their positions, and the indices of the contexts."""


def load_kernels(width: int) -> ModuleType | None:
    """The module of Triton kernels, or None if Triton is not installed or heads of this width do not fit the kernels."""
    if width < 16 or width & (width - 1):
        return None
    try:
        from alimark.gpu import kernels
    except ImportError:
        return None
    return kernels


class ContinuousBatch:
    """Sequences in slots, which continue prefilled contexts. It is the model's KV cache for decode steps.

    slots: the most sequences at a time. contexts: the most contexts. context_tokens: more than the longest context has.
    steps_per_call: decode steps that one call of `advance` launches. biased_tokens: the size of the vocabulary, if contexts
    may have a bias by token, else 0.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        layout: KVLayout,
        *,
        slots: int,
        contexts: int,
        context_tokens: int,
        sampling: Sampling,
        control: torch.Tensor,
        stream: torch.cuda.Stream | None,
        steps_per_call: int,
        biased_tokens: int = 0,
    ) -> None:
        self._model, self._layout, self._control, self._stream = model, layout, control, stream
        self.slots, self.contexts, self.context_tokens = slots, contexts, context_tokens
        self.sampling, self.steps_per_call = sampling, steps_per_call
        self._cuda = layout.device.type == "cuda"
        self._kernels = load_kernels(layout.width) if self._cuda else None
        self._per_block = max(1, self._kernels.QUERIES // layout.groups) if self._kernels else _BLOCK_SLOTS
        self._biases: torch.Tensor | None = None
        if biased_tokens:
            self._biases = torch.zeros((contexts, biased_tokens), dtype=torch.float32, device=layout.device)
        self._allocate()
        self._live = slots
        self._masks: dict[int | None, torch.Tensor] = {}  # of the present step, by the window
        self._decode_graphs: dict[int, torch.cuda.CUDAGraph] = {}  # by the number of slots
        self._prefill_graphs: dict[int, tuple[torch.cuda.CUDAGraph, PrefillInput]] = {}  # by the number of tokens
        self._latest_graph: torch.cuda.CUDAGraph | None = None

    def _allocate(self) -> None:
        slots, contexts, max_tokens = self.slots, self.contexts, self.sampling.max_tokens
        self.context_kv = self._layout.allocate(contexts, self.context_tokens)
        # A sequence that has ended may run on until its tokens are looked at, but never beyond its cache.
        self._own_kv = self._layout.allocate(slots, max_tokens + 1)
        self._context_ids = self._integers(contexts, self.context_tokens)
        self._context_lengths = self._integers(contexts)
        self._sampled = self._integers(slots, max_tokens + 2)
        self._keys, self._context_of, self._step = (self._integers(slots) for _ in range(3))
        self._new_tokens = self._integers(self.steps_per_call, slots)
        self._positions = torch.arange(max(self.context_tokens, max_tokens + 1), device=self._layout.device)
        self._blocks = self._integers(slots // self._per_block + contexts, self._per_block).int()
        output_size = (slots, self._layout.heads * self._layout.groups, self._layout.width)
        self._output = torch.zeros(output_size, dtype=self._layout.dtype, device=self._layout.device)

    def _integers(self, *size: int) -> torch.Tensor:
        return torch.zeros(size, dtype=torch.long, device=self._layout.device)

    def _upload(self, values: Sequence[int] | Sequence[Sequence[int]]) -> torch.Tensor:
        """To the GPU from pinned memory, so that this thread does not wait for the steps that are running there."""
        host = torch.tensor(values, dtype=torch.long)
        return host.pin_memory().to(self._layout.device, non_blocking=True) if self._cuda else host

    def prefill(self, places: Sequence[int], contexts: Sequence[Sequence[int]], cached: Sequence[int]) -> None:
        """Prefill contexts, whose first `cached[i]` tokens are in the cache already, at the indices `places`."""
        padded = self._upload(pad_right(contexts))
        at = self._upload(list(places))
        self._context_ids[at] = padded[:, :1]
        self._context_ids[at, : padded.shape[1]] = padded
        self._context_lengths[at] = self._upload([len(ids) - 1 for ids in contexts])
        rest = [list(ids[start:-1]) for ids, start in zip(contexts, cached, strict=True)]
        starts = list(cached)
        while unfinished := [i for i, ids in enumerate(rest) if ids]:
            for first in range(0, len(unfinished), _PREFILL_CONTEXTS):
                part = unfinished[first : first + _PREFILL_CONTEXTS]
                self._prefill_part(
                    [places[i] for i in part], [rest[i][:_PREFILL_TOKENS] for i in part], [starts[i] for i in part]
                )
            starts = [start + len(ids[:_PREFILL_TOKENS]) for ids, start in zip(rest, starts, strict=True)]
            rest = [ids[_PREFILL_TOKENS:] for ids in rest]

    def _prefill_part(self, places: list[int], tokens: list[list[int]], starts: list[int]) -> None:
        longest, missing = max(map(len, tokens)), 0
        if self._cuda:  # fill up to a shape for which there is a CUDA graph
            longest, missing = max(16, 1 << (longest - 1).bit_length()), _PREFILL_CONTEXTS - len(tokens)
        padding_position = self.context_tokens - 1
        ids, positions = pad_left(tokens, starts, longest, padding_position)
        ids += [[tokens[0][0]] * longest] * missing
        positions += [[padding_position] * longest] * missing
        given = (self._upload(ids), self._upload(positions), self._upload(places + places[:1] * missing))
        if not self._cuda:
            prefill(self._model, self.context_kv, *given)
            return
        if longest not in self._prefill_graphs:
            self._prefill_graphs[longest] = self._record_prefill(given)
        graph, inputs = self._prefill_graphs[longest]
        for kept, new in zip(inputs, given, strict=True):
            kept.copy_(new)
        graph.replay()

    def _record_prefill(self, given: PrefillInput) -> tuple[torch.cuda.CUDAGraph, PrefillInput]:
        inputs = (given[0].clone(), given[1].clone(), given[2].clone())

        def work() -> None:
            prefill(self._model, self.context_kv, *inputs)

        work()  # libraries initialise themselves the first time, which a recording does not allow
        return self._record(work), inputs

    @property
    def biased(self) -> bool:
        """Whether contexts may have a bias by token."""
        return self._biases is not None

    def set_bias(self, place: int, bias: TokenBias | None) -> None:
        """Set the bias of the draws of the context at this index."""
        assert self._biases is not None
        row = self._biases[place].zero_()
        if bias is not None:
            size = min(len(bias), len(row))
            row[:size].copy_(torch.from_numpy(bias[:size]))

    def start(self, slots: Sequence[int], contexts: Sequence[int], keys: Sequence[int]) -> None:
        """Start sequences of prefilled contexts. `keys`: of each sequence's random numbers."""
        at, context_of = self._upload(list(slots)), self._upload(list(contexts))
        ids = self._context_ids[context_of]
        self._sampled[at] = ids[:, :1]
        self._sampled[at, 0] = ids.gather(1, self._context_lengths[context_of][:, None])[:, 0]
        self._context_of[at], self._keys[at] = context_of, self._upload(list(keys))
        self._step[at] = 0

    def move(self, old: Sequence[int], new: Sequence[int]) -> None:
        """Move sequences to other slots."""
        source, target = self._upload(list(old)), self._upload(list(new))
        self._own_kv[:, :, target] = self._own_kv[:, :, source]
        for state in (self._sampled, self._keys, self._context_of, self._step):
            state[target] = state[source]

    def advance(self, size: int, context_of: NDArray[np.int64]) -> PendingTokens:
        """Launch the next decode steps of the first `size` slots. `context_of`: the context of each slot, -1 for none."""
        self.arrange(size, context_of)
        if not self._cuda:
            self._decode_steps()
        else:
            if size not in self._decode_graphs:
                self._decode_graphs[size] = self._record_decode()
            self._decode_graphs[size].replay()
        return PendingTokens(self._new_tokens[:, :size], self._stream)

    def arrange(self, size: int, context_of: NDArray[np.int64]) -> None:
        """Set which slots the next steps go over, and group them by context for attention."""
        self._live = size
        table = attention_blocks(context_of[:size], self._per_block, self._block_count)
        if self._cuda:
            self._blocks[: len(table)].copy_(torch.from_numpy(table).pin_memory(), non_blocking=True)
        else:
            self._blocks = torch.from_numpy(table[table[:, 0] >= 0])

    @property
    def _block_count(self) -> int:
        return self._live // self._per_block + min(self.contexts, self._live)

    def _record_decode(self) -> torch.cuda.CUDAGraph:
        if not self._decode_graphs:
            # Libraries initialise themselves at the first step, which a recording does not allow.
            saved = self._sampled.clone(), self._step.clone()
            self._decode_step(0)
            self._sampled.copy_(saved[0])
            self._step.copy_(saved[1])
        return self._record(self._decode_steps)

    def _record(self, work: Callable[[], None]) -> torch.cuda.CUDAGraph:
        self._latest_graph = record(work, self._stream, self._latest_graph)
        return self._latest_graph

    def _decode_steps(self) -> None:
        for number in range(self.steps_per_call):
            self._decode_step(number)

    def _decode_step(self, number: int) -> None:
        tokens = self._sample(self.logits())
        self._new_tokens[number, : self._live] = tokens
        self.append(tokens)

    def logits(self) -> torch.Tensor:
        """The logits behind the last token of each sequence."""
        self._masks.clear()
        step = self._step[: self._live]
        tokens = self._sampled[: self._live].gather(1, step[:, None])[:, 0]
        positions = self._context_lengths[self._context_of[: self._live]] + step
        output = self._model(tokens[:, None], position_ids=positions[:, None], use_cache=False, kv_cache=self)
        logits: torch.Tensor = output.logits[:, -1]
        return logits

    def append(self, tokens: torch.Tensor) -> None:
        """Append one token to each sequence."""
        step = self._step[: self._live]
        self._sampled[: self._live].scatter_(1, step[:, None] + 1, tokens[:, None])
        step.add_(1).clamp_(max=self.sampling.max_tokens)

    def _sample(self, logits: torch.Tensor) -> torch.Tensor:
        live, top_p = self._live, self.sampling.top_p
        # Positions that were not sampled yet hold a token of the context, which the penalty counts once.
        seen = torch.cat([self._context_ids[self._context_of[:live]], self._sampled[:live]], dim=1)
        numbers = uniform_numbers(self._keys[:live], self._step[:live, None], tries_for(top_p))
        token_scores = scores(logits, seen, self.sampling, self._control)
        if self._biases is not None:
            token_scores = biased(token_scores, self._biases, self._context_of[:live], self.sampling)
            top_p = 1.0
        if self._kernels and top_p >= MIN_REJECTION_TOP_P:
            tokens: torch.Tensor = self._kernels.choose(token_scores, top_p, numbers)
            return tokens
        return choose(torch.softmax(token_scores, dim=1), top_p, numbers)

    @property
    def applies_rope(self) -> bool:
        """Whether `attend` applies RoPE to queries and keys if it is given cosines and sines."""
        return self._kernels is not None

    def attend(self, call: AttentionCall) -> torch.Tensor:
        if not self._kernels or call.softcap is not None:
            return self._attend_without_kernels(call)
        attended: torch.Tensor = self._kernels.attend(
            call.query[:, :, 0], call.key[:, :, 0], call.value[:, :, 0], call.rope,
            self.context_kv[call.layer], self._own_kv[call.layer], self._blocks[: self._block_count],
            self._context_of, self._context_lengths, self._step, call.scale, call.window, self._output[: self._live],
        )  # fmt: skip
        return attended[:, None]

    def _attend_without_kernels(self, call: AttentionCall) -> torch.Tensor:
        live, heads, groups, width = self._live, self._layout.heads, self._layout.groups, self._layout.width
        tokens, steps = self._lengths_attended()
        own_kv = self._own_kv[call.layer, :, :live]
        slots, step = torch.arange(live, device=self._layout.device), self._step[:live]
        own_kv[0][slots, :, step], own_kv[1][slots, :, step] = call.key[:, :, 0], call.value[:, :, 0]
        own_keys, own_values = own_kv[:, :, :, :steps]
        # Slots in a block share the keys and values of their context; -1, which fills up a block, stands for the last slot.
        blocks = self._blocks[: self._block_count].long()
        keys, values = self.context_kv[call.layer][:, self._context_of[blocks[:, 0]], :, :tokens]
        place = torch.zeros(live + 1, dtype=torch.long, device=blocks.device)
        place[blocks.flatten()] = torch.arange(blocks.numel(), device=blocks.device)
        place = place[:live]  # of each slot in the blocks

        def times(rows: torch.Tensor, shared: torch.Tensor) -> torch.Tensor:
            """The product of each slot's rows, (slots, heads, groups, ...), with what its block shares."""
            product = rows[blocks].transpose(1, 2).flatten(2, 3) @ shared
            by_slot = product.view(len(blocks), heads, -1, groups, shared.shape[3]).transpose(1, 2)
            return by_slot.flatten(0, 1)[place]

        query = call.query.view(live, heads, groups, width) * call.scale
        parts = [times(query, keys.transpose(2, 3)), query @ own_keys.transpose(2, 3)]
        attention = capped(torch.cat(parts, dim=3), call.softcap)
        weights = attention.masked_fill_(self._hidden(call.window, tokens, steps), -torch.inf).softmax(dim=3)
        attended: torch.Tensor = times(weights[..., :tokens], values) + weights[..., tokens:] @ own_values
        return attended.reshape(live, 1, -1, width)

    def _lengths_attended(self) -> tuple[int, int]:
        """How many tokens of contexts and of sequences attention goes over. A CUDA graph needs one number for all lengths."""
        if self._cuda:
            return self.context_tokens, self.sampling.max_tokens + 1
        lengths = self._context_lengths[self._context_of[: self._live]]
        return int(lengths.max()), int(self._step[: self._live].max()) + 1

    def _hidden(self, window: int | None, tokens: int, steps: int) -> torch.Tensor:
        """The positions that each slot does not see, computed once a step for all layers with this window."""
        if window not in self._masks:
            context, own = self._positions[:tokens], self._positions[:steps]
            lengths, step = self._context_lengths[self._context_of[: self._live], None], self._step[: self._live, None]
            hidden = torch.cat([context >= lengths, own > step], dim=1)
            if window is not None:
                hidden |= torch.cat([context <= lengths + step - window, own <= step - window], dim=1)
            self._masks[window] = hidden[:, None, None]
        return self._masks[window]


def attention_blocks(context_of: NDArray[np.int64], per: int, count: int) -> NDArray[np.int32]:
    """Group slots by context, `per` to a row of a table of `count` rows, filled up with -1.

    context_of: the context of each slot, -1 for none.
    """
    table = np.full((count, per), -1, dtype=np.int32)
    slots = np.flatnonzero(context_of >= 0)
    if not len(slots):
        return table
    order = slots[np.argsort(context_of[slots], kind="stable")]
    ordered = context_of[order]
    starts = np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]])
    sizes = np.diff(np.r_[starts, len(ordered)])
    within = np.arange(len(ordered)) - np.repeat(starts, sizes)
    rows_of = -(-sizes // per)
    first = np.cumsum(rows_of) - rows_of
    table[np.repeat(first, sizes) + within // per, within % per] = order
    return table


class PendingTokens:
    """Tokens that are being copied from the GPU: (steps, slots)."""

    def __init__(self, tokens: torch.Tensor, stream: torch.cuda.Stream | None) -> None:
        self._event: torch.cuda.Event | None = None
        if stream is None:
            self._host = tokens.clone()
        else:
            self._host = torch.empty(tokens.shape, dtype=tokens.dtype, pin_memory=True)
            self._host.copy_(tokens, non_blocking=True)
            self._event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._event.record(stream)

    def wait(self) -> NDArray[np.int64]:
        if self._event is not None:
            self._event.synchronize()
        tokens: NDArray[np.int64] = self._host.numpy()
        return tokens
