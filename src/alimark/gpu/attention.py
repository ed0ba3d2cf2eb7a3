"""Attention over alimark's KV caches, in place of a transformers model's own attention, and the prefill of contexts.

A context is prefilled once. Its keys and values are shared by all sequences that continue it; each sequence has a cache of its
own for the tokens that it has sampled. Attention goes over the context's part and the sequence's own part.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np
import torch
import torch.nn.functional as F

if TYPE_CHECKING:
    from transformers import PreTrainedModel

ATTENTION = "alimark"  # the name under which `attention_forward` is registered with transformers


@dataclass(frozen=True)
class KVLayout:
    """The shape of the keys and values that a model computes for one token.

    heads: heads of keys and values. groups: query heads for each of them.
    """

    layers: int
    heads: int
    groups: int
    width: int
    dtype: torch.dtype
    device: torch.device

    def allocate(self, sequences: int, tokens: int) -> torch.Tensor:
        """A cache of zeros: (layers, 2, sequences, heads, tokens, width); index 0 of the second axis holds the keys."""
        size = (self.layers, 2, sequences, self.heads, tokens, self.width)
        if self.device.type != "cpu":
            return torch.zeros(size, dtype=self.dtype, device=self.device)
        # Zeros of NumPy take memory only where they are used, which is a small part of a cache.
        count = sequences * tokens * self.bytes_per_token
        return torch.from_numpy(np.zeros(count, dtype=np.uint8)).view(self.dtype).view(size)

    @property
    def bytes_per_token(self) -> int:
        return self.layers * 2 * self.heads * self.width * self.dtype.itemsize


@dataclass(frozen=True, slots=True)
class AttentionCall:
    """The arguments of attention in one layer.

    query: (sequences, query heads, tokens, width); key, value: (sequences, heads, tokens, width), of the new tokens. window:
    the tokens that a sliding window spans. softcap: the bound of the scores. rope: cosines and sines of each sequence's
    position, (sequences, width), if RoPE is still to be applied to query and key.
    """

    layer: int
    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    scale: float
    window: int | None = None
    softcap: float | None = None
    rope: tuple[torch.Tensor, torch.Tensor] | None = None


class KVCache(Protocol):
    """What a model's layers are given as `kv_cache`: it stores new keys and values and attends over all of them."""

    def attend(self, call: AttentionCall) -> torch.Tensor:
        """The output of attention: (sequences, tokens, query heads, width)."""
        ...


def attention_forward(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    kv_cache: KVCache,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    **_: object,
) -> tuple[torch.Tensor, None]:
    """The function that a transformers model calls in place of its own attention."""
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    layer: int = module.layer_idx  # type: ignore[assignment]
    return kv_cache.attend(AttentionCall(layer, query, key, value, scale, sliding_window, softcap)), None


def install(model: PreTrainedModel) -> None:
    """Make the model call `attention_forward`; from then on it must be given `kv_cache`."""
    from transformers import AttentionInterface

    AttentionInterface.register(ATTENTION, attention_forward)
    model.set_attn_implementation(ATTENTION)


class LayoutProbe:
    """A KV cache that stores nothing and records each layer's heads, query heads for each of them, and width."""

    def __init__(self) -> None:
        self.shapes: list[tuple[int, int, int]] = []

    def attend(self, call: AttentionCall) -> torch.Tensor:
        heads, width = call.key.shape[1], call.key.shape[3]
        self.shapes.append((heads, call.query.shape[1] // heads, width))
        return call.query.transpose(1, 2)


class PrefillCache:
    """A KV cache for the prefill: new tokens of contexts go to given positions of `kv`, behind those that are there already.

    contexts: the sequences of `kv` that are prefilled.
    """

    def __init__(self, kv: torch.Tensor, positions: torch.Tensor, contexts: torch.Tensor) -> None:
        self._kv, self._positions, self._contexts = kv, positions, contexts
        self._all_positions = torch.arange(kv.shape[4], device=kv.device)

    def attend(self, call: AttentionCall) -> torch.Tensor:
        keys, values = self._kv[call.layer]
        keys[self._contexts[:, None], :, self._positions] = call.key.transpose(1, 2)
        values[self._contexts[:, None], :, self._positions] = call.value.transpose(1, 2)
        keys, values = keys[self._contexts], values[self._contexts]
        visible = self._all_positions <= self._positions[:, :, None]
        if call.window is not None:
            visible &= self._all_positions > self._positions[:, :, None] - call.window
        query, groups = call.query, call.query.shape[1] // keys.shape[1]
        if call.softcap is None:
            output: torch.Tensor = F.scaled_dot_product_attention(
                query, keys, values, attn_mask=visible[:, None], scale=call.scale, enable_gqa=groups > 1
            )
            return output.transpose(1, 2)
        keys, values = (part.repeat_interleave(groups, dim=1) for part in (keys, values))
        scores = capped(query @ keys.transpose(2, 3) * call.scale, call.softcap)
        weights = scores.masked_fill(~visible[:, None], -torch.inf).softmax(dim=3, dtype=torch.float32)
        output = weights.to(values.dtype) @ values
        return output.transpose(1, 2)


def prefill(
    model: PreTrainedModel, kv: torch.Tensor, ids: torch.Tensor, positions: torch.Tensor, contexts: torch.Tensor
) -> None:
    """Run tokens through the model and store their keys and values at `positions` of `kv`.

    The last position of `kv` belongs to no context: padding goes there.
    """
    at = positions.masked_fill(positions == kv.shape[4] - 1, 0)
    cache = PrefillCache(kv, positions, contexts)
    model(ids, position_ids=at, use_cache=False, logits_to_keep=1, kv_cache=cache)


def pad_left(
    tokens: Sequence[Sequence[int]], starts: Sequence[int], width: int, padding_position: int
) -> tuple[list[list[int]], list[list[int]]]:
    """Token ids and positions, padded on the left to `width`, so that all contexts end in the last column."""
    ids = [[part[0]] * (width - len(part)) + list(part) for part in tokens]
    positions = [
        [padding_position] * (width - len(part)) + list(range(start, start + len(part)))
        for part, start in zip(tokens, starts, strict=True)
    ]
    return ids, positions


def pad_right(contexts: Sequence[Sequence[int]]) -> list[list[int]]:
    """Token ids padded with the first token, for the repetition penalty, which counts a token of the context once."""
    width = max(map(len, contexts))
    return [[*ids, *[ids[0]] * (width - len(ids))] for ids in contexts]


def capped(scores: torch.Tensor, softcap: float | None) -> torch.Tensor:
    """The scores within the bound that some models set them."""
    return scores if softcap is None else torch.tanh(scores / softcap) * softcap
