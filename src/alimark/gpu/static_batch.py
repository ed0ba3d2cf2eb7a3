"""The sequences of one call in one batch, for the CPU: all start together, and each leaves as its sentence ends.

The batch of the GPU, which new sequences also enter, is in `continuous_batch`.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

from alimark.core.llm.base import Sampling
from alimark.gpu.attention import AttentionCall, capped, decode_logits, hidden_positions, pad_right
from alimark.gpu.kv_cache import KVLayout
from alimark.gpu.sampling import choose, probabilities, tries_for, uniform_numbers

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class StaticBatch:
    """Sequences that continue several contexts, sampled one token at a time. It is the model's KV cache.

    contexts, sequences: the most of each. context_tokens: the longest context. max_tokens: the most tokens of a sequence.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        layout: KVLayout,
        *,
        contexts: int,
        sequences: int,
        context_tokens: int,
        max_tokens: int,
    ) -> None:
        self._model, self._layout = model, layout
        self.context_kv = layout.allocate(contexts, context_tokens)
        self._own_kv = layout.allocate(sequences, max_tokens)
        device = layout.device
        self._context_ids = torch.zeros((contexts, context_tokens), dtype=torch.long, device=device)
        self._sampled = torch.zeros((sequences, max_tokens), dtype=torch.long, device=device)
        self._positions = torch.arange(max(context_tokens, max_tokens), device=device)
        self._masks: dict[int | None, torch.Tensor] = {}

    def start(
        self,
        contexts: Sequence[Sequence[int]],
        counts: Sequence[int],
        keys: Sequence[int],
        logits: torch.Tensor,
        sampling: Sampling,
        control: torch.Tensor,
    ) -> NDArray[np.int64]:
        """Start `counts[i]` sequences of context i, which is prefilled; the first token of each.

        keys: of each sequence's random numbers. logits: of each context's last token. control: tokens that are never sampled
        unless the model may end its text.
        """
        self._sampling, self._control, device = sampling, control, self._layout.device
        self._lengths = torch.tensor([len(ids) for ids in contexts], device=device)
        self._longest = max(map(len, contexts))
        self._context_ids[:, : self._longest] = torch.tensor(pad_right(contexts), device=device)
        self._arrange(torch.tensor(list(keys), device=device), counts)
        self._done = 0
        return self._append(self._sample(logits[self._context_of]))

    def _arrange(self, keys: torch.Tensor, counts: Sequence[int]) -> None:
        self._keys, self._counts = keys, list(counts)
        self._live = len(keys)
        self._context_of = torch.repeat_interleave(torch.tensor(self._counts)).to(self._layout.device)

    def advance(self) -> NDArray[np.int64]:
        """One decode step: the next token of every sequence."""
        return self._append(self._sample(self._logits(self._sampled[: self._live, self._done - 1])))

    def _append(self, tokens: torch.Tensor) -> NDArray[np.int64]:
        self._sampled[: self._live, self._done] = tokens
        self._done += 1
        column: NDArray[np.int64] = tokens[:, None].cpu().numpy()
        return column

    def keep(self, sequences: Sequence[int], counts: Sequence[int]) -> None:
        """Drop all sequences but these, of which `counts[i]` continue context i."""
        at = torch.tensor(sequences, device=self._layout.device)
        n, done = len(sequences), self._done
        self._own_kv[:, :, :n, :, :done] = self._own_kv[:, :, at, :, :done]
        self._sampled[:n] = self._sampled[at]
        self._arrange(self._keys[at], counts)

    def _logits(self, tokens: torch.Tensor) -> torch.Tensor:
        self._masks.clear()
        positions = self._lengths[self._context_of] + self._done - 1
        return decode_logits(self._model, tokens, positions, self)

    def force(self, tokens: torch.Tensor) -> torch.Tensor:
        """Replace the last sampled tokens by these; the logits behind them. Used to check a model."""
        self._sampled[: self._live, self._done - 1] = tokens
        logits = self._logits(tokens)
        self._done += 1
        return logits

    def _sample(self, logits: torch.Tensor) -> torch.Tensor:
        context, own = (
            self._context_ids[self._context_of, : self._longest],
            self._sampled[: self._live, : self._done],
        )
        chances = probabilities(logits, torch.cat([context, own], dim=1), self._sampling, self._control)
        numbers = uniform_numbers(self._keys, torch.tensor(self._done), tries_for(self._sampling.top_p))
        return choose(chances, self._sampling.top_p, numbers)

    def attend(self, call: AttentionCall) -> torch.Tensor:
        live, heads, width = self._live, self._layout.heads, self._layout.width
        own_kv = self._own_kv[call.layer, :, :live]
        own_kv[0, :, :, self._done - 1], own_kv[1, :, :, self._done - 1] = call.key[:, :, 0], call.value[:, :, 0]
        own_kv = own_kv[:, :, :, : self._done]
        shared = self.context_kv[call.layer, :, : len(self._counts), :, : self._longest]
        query, hidden = (call.query * call.scale).view(live, heads, -1, width), self._hidden(call.window)
        if len(set(self._counts)) == 1:
            output = _attend_grid(query, shared, own_kv, hidden, call.softcap)
        else:
            output = torch.cat(
                [
                    _attend_grid(query[rows], shared[:, i : i + 1], own_kv[:, rows], hidden[rows], call.softcap)
                    for i, rows in enumerate(_slices(self._counts))
                    if rows.start < rows.stop
                ]
            )
        return output.reshape(live, 1, -1, width)

    def _hidden(self, window: int | None) -> torch.Tensor:
        """The mask of a decode step, computed once for all layers with this window."""
        if window not in self._masks:
            lengths = self._lengths[self._context_of, None]
            own_positions = self._positions[: self._done]
            steps = torch.full_like(lengths, self._done - 1)
            self._masks[window] = hidden_positions(
                self._positions[: self._longest], own_positions, lengths, steps, window
            )
        return self._masks[window]


def _slices(counts: Sequence[int]) -> Iterator[slice]:
    ends = [0, *itertools.accumulate(counts)]
    return (slice(a, b) for a, b in itertools.pairwise(ends))


def _attend_grid(
    query: torch.Tensor, shared: torch.Tensor, own: torch.Tensor, hidden: torch.Tensor, softcap: float | None
) -> torch.Tensor:
    """Attention of the same number of sequences for each context: (sequences, heads, groups, width).

    All sequences of a context attend to its keys in one matrix product; large tensors are never copied into another order.
    """
    contexts, heads, tokens, width = shared.shape[1:]
    sequences, groups = len(query), query.shape[2]
    n = sequences // contexts
    by_context = query.view(contexts, n, heads, groups, width).transpose(1, 2)
    by_context = by_context.reshape(contexts, heads, n * groups, width)
    shared_scores = (by_context @ shared[0].transpose(2, 3)).view(contexts, heads, n, groups, tokens)
    own_scores = (query @ own[0].transpose(2, 3)).view(contexts, n, heads, groups, -1).transpose(1, 2)
    scores = capped(torch.cat([shared_scores, own_scores], dim=4), softcap)
    weights = scores.masked_fill_(hidden.view(contexts, 1, n, 1, -1), -torch.inf).softmax(dim=4)
    shared_part = (weights[..., :tokens].flatten(2, 3) @ shared[1]).view(contexts, heads, n, groups, width)
    own_part = weights[..., tokens:].transpose(1, 2).reshape(sequences, heads, groups, -1) @ own[1]
    return shared_part.transpose(1, 2).reshape(sequences, heads, groups, width) + own_part
