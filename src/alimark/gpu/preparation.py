"""Preparation of a transformers model: attention is replaced, layers are fused, and the result is checked."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from alimark.core.llm.base import Sampling
from alimark.errors import LLMError
from alimark.gpu import attention, fused_layers
from alimark.gpu.attention import KVLayout
from alimark.gpu.continuous_batch import ContinuousBatch, load_kernels

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_MAX_ERRORS = {4: 2e-3, 2: 0.05}
"""By the bytes of a number. 16-bit numbers round differently in another order of sums, on meaningless tokens by much; the
difference between the model's own two implementations of attention shows by how much. If attention is computed wrongly, the
error is as large as the logits."""

_DECODED = 3  # tokens at the end of a test sequence that are decoded one by one; the others are prefilled


def prepare(model: PreTrainedModel, name: str) -> KVLayout:
    """Replace the model's attention, fuse layers on a GPU, and check the logits; raises LLMError if they change."""
    ids = [list(range(3, 14)), list(range(5, 12))]
    try:
        with torch.inference_mode():
            expected = _own_logits(model, ids)
            model.set_attn_implementation("eager")
            max_error = max(_MAX_ERRORS[model.dtype.itemsize], 3 * _error(_own_logits(model, ids), expected))
            attention.install(model)
            layout = _layout(model)
            if model.device.type == "cuda":
                fused_layers.fuse(model, load_kernels(layout.width))
                if _error(_batch_logits(model, layout, ids), expected) > max_error:
                    fused_layers.restore_attention(model)
            logits = _batch_logits(model, layout, ids)
    except (TypeError, ValueError, RuntimeError, AttributeError, KeyError) as error:
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        raise LLMError(f"{name} is built in a way that cannot be sampled here: {reason}") from error
    difference = _error(logits, expected)
    if not difference <= max_error:
        raise LLMError(
            f"{name} computes attention in its own way (its logits differ by {difference:.2g}), so sampling it in batches here "
            "would be wrong; serve it with vLLM or another server and use `openai:ADDRESS#MODEL`"
        )
    return layout


def _layout(model: PreTrainedModel) -> KVLayout:
    probe = attention.LayoutProbe()
    model(torch.tensor([[3]], device=model.device), use_cache=False, kv_cache=probe)
    [(heads, groups, width)] = set(probe.shapes)
    return KVLayout(len(probe.shapes), heads, groups, width, model.dtype, model.device)


def _own_logits(model: PreTrainedModel, ids: list[list[int]]) -> list[torch.Tensor]:
    """The logits behind each sequence, by the model's own attention."""
    return [
        model(torch.tensor([sequence], device=model.device), use_cache=False).logits[0, -1].float() for sequence in ids
    ]


def _error(logits: list[torch.Tensor], expected: list[torch.Tensor]) -> float:
    return max(float((a - b).norm() / b.norm()) for a, b in zip(logits, expected, strict=True))


def _batch_logits(model: PreTrainedModel, layout: KVLayout, ids: list[list[int]]) -> list[torch.Tensor]:
    """The logits behind each sequence, by the batch in which they are sampled."""
    places = list(range(len(ids)))
    batch = ContinuousBatch(
        model,
        layout,
        slots=len(ids),
        contexts=len(ids),
        context_tokens=16,
        sampling=Sampling(max_tokens=_DECODED + 1),
        control=torch.tensor([], dtype=torch.long, device=model.device),
        stream=None,
        steps_per_call=1,
    )
    batch.prefill(places, [sequence[:-_DECODED] for sequence in ids], [0] * len(ids))
    batch.start(places, places, places)
    batch.arrange(len(ids), np.array(places))
    logits = batch.logits()
    for n in range(-_DECODED, 0):
        batch.append(torch.tensor([sequence[n] for sequence in ids], device=model.device))
        logits = batch.logits()
    return list(logits.float())
