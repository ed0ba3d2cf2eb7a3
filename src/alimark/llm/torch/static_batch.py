"""Many draws of many contexts in one batch, for the transformers adapter.

A context is read once. Its keys and values are shared by all of its draws, which hold none but those of the tokens they
have sampled themselves: attention is over the context's part and the draw's own part together. A row of the batch is
a draw in progress, and rows leave as their sentences end. What a GPU does instead, where new rows also enter, is in _slots.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray

from alimark.llm.torch.sampling import choose, probabilities, tries_for, uniform_numbers
from alimark.llm.base import Sampling

ATTENTION = "alimark"


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


def install(model: Any) -> None:
    from transformers import AttentionInterface

    AttentionInterface.register(ATTENTION, attend)
    model.set_attn_implementation(ATTENTION)


class Measure:
    """Finds out the shape of a model's keys and values; attends to nothing."""

    def __init__(self) -> None:
        self.shapes: list[tuple[int, int]] = []

    def attend(self, layer: int, query: torch.Tensor, key: torch.Tensor, *_: Any) -> torch.Tensor:
        self.shapes.append((key.shape[1], key.shape[3]))
        return query.transpose(1, 2)


class Reading:
    """Reads contexts' new tokens, behind those read before, into `memory`: keys and values of every context.

    `places`: which of the contexts in memory the rows are, where they are not all of them in order.
    """

    def __init__(self, memory: torch.Tensor, positions: torch.Tensor, places: torch.Tensor | None = None) -> None:
        self.memory, self.positions, self._places = memory, positions, places
        rows = torch.arange(len(positions), device=memory.device) if places is None else places
        self._rows = rows[:, None]
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
        if self._places is not None:
            keys, values = keys[self._places], values[self._places]
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
        self.memory = shape.empty(contexts, tokens)
        self._own = shape.empty(rows, steps)
        device = shape.device
        self._ids = torch.zeros((contexts, tokens), dtype=torch.long, device=device)
        self._sampled = torch.zeros((rows, steps), dtype=torch.long, device=device)
        self._at = torch.arange(max(tokens, steps), device=device)
        self._masks: dict[int | None, torch.Tensor] = {}

    def start(
        self, contexts: Sequence[Sequence[int]], counts: Sequence[int], keys: Sequence[int], logits: torch.Tensor,
        sampling: Sampling, control: torch.Tensor,
    ) -> NDArray[np.int64]:  # fmt: skip
        """Takes `counts[i]` draws of context i, already read into `memory`, and samples each draw's first token."""
        self._sampling, self._control, device = sampling, control, self._shape.device
        self._lengths = torch.tensor([len(ids) for ids in contexts], device=device)
        self._longest = max(map(len, contexts))
        padded = [[*ids, *[ids[0]] * (self._longest - len(ids))] for ids in contexts]
        self._ids[:, : self._longest] = torch.tensor(padded, device=device)
        self._lay_out(torch.tensor(list(keys), device=device), counts)
        self._done = 0
        return self._add(self._sample(logits[self._text]))

    def _lay_out(self, keys: torch.Tensor, counts: Sequence[int]) -> None:
        self._keys, self._counts = keys, list(counts)
        self._live = len(keys)
        self._text = torch.repeat_interleave(torch.tensor(self._counts)).to(self._shape.device)

    def advance(self) -> NDArray[np.int64]:
        """The next token of every row."""
        return self._add(self._sample(self._forward(self._sampled[: self._live, self._done - 1])))

    def _add(self, tokens: torch.Tensor) -> NDArray[np.int64]:
        self._sampled[: self._live, self._done] = tokens
        self._done += 1
        found: NDArray[np.int64] = tokens[:, None].cpu().numpy()
        return found

    def keep(self, rows: Sequence[int], counts: Sequence[int]) -> None:
        """Goes on with these rows alone, `counts[i]` of them of context i."""
        at = torch.tensor(rows, device=self._shape.device)
        n, done = len(rows), self._done
        self._own[:, :, :n, :, :done] = self._own[:, :, at, :, :done]
        self._sampled[:n] = self._sampled[at]
        self._lay_out(self._keys[at], counts)

    def _forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Logits behind each row's last token."""
        self._masks.clear()
        positions = self._lengths[self._text] + self._done - 1
        answer = self._model(tokens[:, None], position_ids=positions[:, None], use_cache=False, memory=self)
        logits: torch.Tensor = answer.logits[:, -1]
        return logits

    def force(self, tokens: torch.Tensor) -> torch.Tensor:
        """As if these had been sampled last: the logits behind them. Then the next step."""
        self._sampled[: self._live, self._done - 1] = tokens
        logits = self._forward(tokens)
        self._done += 1
        return logits

    def _sample(self, logits: torch.Tensor) -> torch.Tensor:
        read, own = self._ids[self._text, : self._longest], self._sampled[: self._live, : self._done]
        chances = probabilities(logits, torch.cat([read, own], dim=1), self._sampling, self._control)
        numbers = uniform_numbers(self._keys, torch.tensor(self._done), tries_for(self._sampling.top_p))
        return choose(chances, self._sampling.top_p, numbers)

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
        mine = self._own[layer, :, :live]
        mine[0, :, :, self._done - 1], mine[1, :, :, self._done - 1] = key[:, :, 0], value[:, :, 0]
        mine, shared = mine[:, :, :, : self._done], self.memory[layer, :, : len(self._counts), :, : self._longest]
        query, hidden = (query * scale).view(live, heads, -1, width), self._hidden(window)
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

    def _hidden(self, window: int | None) -> torch.Tensor:
        """Which tokens a row does not see: (rows, read + own)."""
        if window not in self._masks:
            lengths, own = self._lengths[self._text, None], self._done
            shared = self._at[: self._longest] >= lengths
            mine = torch.zeros((self._live, own), dtype=torch.bool, device=shared.device)
            if window is not None:
                shared = shared | (self._at[: self._longest] <= lengths + own - 1 - window)
                mine = mine | (self._at[:own] <= own - 1 - window)
            self._masks[window] = torch.cat([shared, mine], dim=1)
        return self._masks[window]


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
