"""BERT and MPNet sentence encoders in plain torch operations, for GPUs.

The same computation as the ONNX graph (`onnx_graph`), from the same weights. Nothing on the way needs the CPU, so that it can
be recorded as a CUDA graph; the implementation of MPNet in transformers computes its position buckets on the CPU.
Multiplications run in float32, in tf32 (float32 with 10 bits of mantissa inside) or in bfloat16; everything else is float32.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch.nn import functional

from alimark.core.embedding.onnx_graph import (
    LAYER_NAMES,
    MPNET_PADDING,
    EncoderWeights,
    GraphRecipe,
    open_weights,
    position_buckets,
)

GpuPrecision = Literal["float32", "tf32", "bfloat16"]


class _Linear(NamedTuple):
    weight: torch.Tensor
    bias: torch.Tensor


class _Norm(NamedTuple):
    scale: torch.Tensor
    shift: torch.Tensor


class _Layer(NamedTuple):
    qkv: _Linear
    out: _Linear
    attention_norm: _Norm
    wide: _Linear
    narrow: _Linear
    norm: _Norm


class TorchEncoder:
    """Maps token ids and a mask, both (texts, tokens), to vectors of unit length, (texts, dimension).

    Raises UnknownArchitecture where the tensors are not those of the architecture.
    """

    def __init__(
        self, recipe: GraphRecipe, safetensors: Path, device: torch.device, precision: GpuPrecision = "float32"
    ) -> None:
        self._recipe, self._device, self._precision = recipe, device, precision
        self._type = torch.bfloat16 if precision == "bfloat16" else torch.float32
        with open_weights(safetensors) as weights:
            self._words = self._tensor(weights["embeddings.word_embeddings.weight"])
            self._positions = self._tensor(weights["embeddings.position_embeddings.weight"])
            if recipe.architecture == "bert":
                # A text is one segment, so the vector of the segment is added to all position vectors here.
                self._positions += self._tensor(weights["embeddings.token_type_embeddings.weight"])[0]
            else:
                self._bias = self._position_bias(weights)
            self._norm = self._read_norm(weights, "embeddings.LayerNorm")
            self._layers = [self._read_layer(weights, number) for number in range(recipe.layers)]

    def __call__(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """The vectors, in float32 on the device. Every text needs at least one token in the mask."""
        with _tf32(self._precision == "tf32"):
            hidden = self._embedded(ids)
            attended = self._attention_mask(mask)
            for layer in self._layers:
                hidden = self._run_layer(layer, hidden, attended)
            return functional.normalize(self._pooled(hidden, mask), dim=1)

    def _tensor(self, array: np.ndarray[tuple[int, ...], np.dtype[np.float32]]) -> torch.Tensor:
        return torch.from_numpy(np.array(array, dtype=np.float32)).to(self._device)

    def _read_norm(self, weights: EncoderWeights, name: str) -> _Norm:
        return _Norm(self._tensor(weights[f"{name}.weight"]), self._tensor(weights[f"{name}.bias"]))

    def _read_linear(self, weights: EncoderWeights, *names: str) -> _Linear:
        weight, bias = weights.linear(*names)
        return _Linear(self._tensor(weight.T).to(self._type).contiguous(), self._tensor(bias).to(self._type))

    def _read_layer(self, weights: EncoderWeights, number: int) -> _Layer:
        stem = f"encoder.layer.{number}."
        names = LAYER_NAMES[self._recipe.architecture]
        return _Layer(
            self._read_linear(weights, *(stem + name for name in names.qkv)),
            self._read_linear(weights, stem + names.out),
            self._read_norm(weights, stem + names.norm),
            self._read_linear(weights, f"{stem}intermediate.dense"),
            self._read_linear(weights, f"{stem}output.dense"),
            self._read_norm(weights, f"{stem}output.LayerNorm"),
        )

    def _position_bias(self, weights: EncoderWeights) -> torch.Tensor:
        """MPNet's bias for all pairs of positions, (heads, tokens, tokens)."""
        table = weights["encoder.relative_attention_bias.weight"]
        places = np.arange(self._recipe.max_tokens)
        buckets = position_buckets(places[None, :] - places[:, None], len(table))
        return self._tensor(table[buckets].transpose(2, 0, 1)).to(self._type)

    def _embedded(self, ids: torch.Tensor) -> torch.Tensor:
        if self._recipe.architecture == "bert":
            places = self._positions[: ids.shape[1]]
        else:  # a padding token that is written in a text ("<pad>") has no position: the other tokens are counted
            real = (ids != MPNET_PADDING).long()
            places = self._positions[real.cumsum(dim=1) * real + MPNET_PADDING]
        return self._normed(self._words[ids] + places, self._norm)

    def _attention_mask(self, mask: torch.Tensor) -> torch.Tensor:
        """What is added to the attention scores: minus infinity for padding, and MPNet's position bias."""
        hidden = torch.zeros(mask.shape, dtype=self._type, device=self._device)
        hidden = hidden.masked_fill(mask == 0, float("-inf"))[:, None, None, :]
        if self._recipe.architecture == "bert":
            return hidden.expand(-1, 1, mask.shape[1], -1)
        return hidden + self._bias[None, :, : mask.shape[1], : mask.shape[1]]

    def _run_layer(self, layer: _Layer, hidden: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        texts, tokens, size = hidden.shape
        qkv = functional.linear(hidden.to(self._type), *layer.qkv)
        query, key, value = qkv.view(texts, tokens, 3, self._recipe.heads, -1).permute(2, 0, 3, 1, 4)
        heads = functional.scaled_dot_product_attention(query, key, value, attn_mask=mask)
        joined = functional.linear(heads.transpose(1, 2).reshape(texts, tokens, size), *layer.out)
        hidden = self._normed(hidden + joined.float(), layer.attention_norm)
        wide = functional.gelu(functional.linear(hidden.to(self._type), *layer.wide))
        return self._normed(hidden + functional.linear(wide, *layer.narrow).float(), layer.norm)

    def _normed(self, hidden: torch.Tensor, norm: _Norm) -> torch.Tensor:
        return functional.layer_norm(hidden, hidden.shape[-1:], norm.scale, norm.shift, self._recipe.epsilon)

    def _pooled(self, hidden: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        if self._recipe.pooling == "cls":
            return hidden[:, 0]
        weights = mask.float()[:, :, None]
        return (hidden * weights).sum(dim=1) / weights.sum(dim=1).clamp(min=1e-9)


@contextmanager
def _tf32(enabled: bool) -> Iterator[None]:
    """Lets float32 multiplications use tf32, or forbids it; the setting of the process is restored."""
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = enabled
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before
