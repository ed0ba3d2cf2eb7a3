"""Fused layers: norms, gated layers and attention projections that take fewer GPU kernels and give the same numbers.

A decode step of a small model is a thousand kernels of a few microseconds each, most of them small sums and products.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F

from alimark.gpu.attention import AttentionCall

_MAX_ERROR = 0.01  # relative: 16-bit numbers round differently in another order of operations


def fuse(model: torch.nn.Module, kernels: object | None) -> None:
    """Fuse the layers of a model in place. `kernels`: the module of Triton kernels, or None without Triton."""
    for module in model.modules():
        if type(module).__name__.endswith("RMSNorm"):
            _fuse_norm(module)
        elif _are_linear(module, "gate_proj", "up_proj", "down_proj") and hasattr(module, "act_fn"):
            _fuse_gates(module, kernels)
        elif kernels and _are_linear(module, "q_proj", "k_proj", "v_proj", "o_proj") and hasattr(module, "layer_idx"):
            _fuse_attention(module)


def restore_attention(model: torch.nn.Module) -> None:
    """Undo the fusion of attention, for models that apply RoPE in another way."""
    for module in model.modules():
        if hasattr(module, "layer_idx"):
            vars(module).pop("forward", None)


def _are_linear(module: Any, *names: str) -> bool:
    """Whether these are linear layers that can be concatenated: all but the last have a bias, or none of them has."""
    layers = [getattr(module, name, None) for name in names]
    if any(type(layer) is not torch.nn.Linear for layer in layers):
        return False
    return len({layer.bias is None for layer in layers[:-1] if layer is not None}) == 1


def _fuse_norm(module: Any) -> None:
    """An RMS norm in one kernel instead of eight."""
    weight = getattr(module, "weight", None)
    eps = getattr(module, "variance_epsilon", getattr(module, "eps", None))
    if weight is None or not isinstance(eps, float):
        return
    probe = _probe(weight, weight.numel())
    variants = [
        partial(F.rms_norm, normalized_shape=weight.shape, weight=scale.to(weight.dtype), eps=eps)
        for scale in (weight.detach(), 1 + weight.detach().float())  # gemma stores its weights less one
    ]
    errors = [_error(variant, module, probe) for variant in variants]
    if min(errors) <= _MAX_ERROR:  # with large weights both are close enough: take the closer one
        module.forward = variants[errors.index(min(errors))]


def _fuse_gates(module: Any, kernels: Any) -> None:
    """One matrix product for `gate_proj` and `up_proj`, and one kernel for the activation and the product."""
    weight, bias = _concatenated(module.gate_proj, module.up_proj)

    def plain(x: torch.Tensor) -> torch.Tensor:
        gate, up = F.linear(x, weight, bias).chunk(2, dim=-1)
        out: torch.Tensor = module.down_proj(module.act_fn(gate) * up)
        return out

    def by_kernel(x: torch.Tensor, gelu: bool) -> torch.Tensor:
        out: torch.Tensor = module.down_proj(kernels.gated(F.linear(x, weight, bias), gelu=gelu))
        return out

    probe = _probe(weight, weight.shape[1])
    variants = [partial(by_kernel, gelu=gelu) for gelu in (False, True)] if kernels and weight.is_cuda else []
    errors = [_error(variant, module, probe) for variant in variants]
    module.forward = variants[errors.index(min(errors))] if errors and min(errors) <= _MAX_ERROR else plain


def _fuse_attention(module: Any) -> None:
    """One matrix product for query, key and value; RoPE is applied in the attention kernel."""
    if getattr(module, "attn_logit_softcapping", None) is not None or not hasattr(module, "head_dim"):
        return
    unfused, width = module.forward, module.head_dim
    weight, bias = _concatenated(module.q_proj, module.k_proj, module.v_proj)
    heads = [getattr(module, name).out_features // width for name in ("q_proj", "k_proj", "v_proj")]
    norms = getattr(module, "q_norm", None), getattr(module, "k_norm", None)
    window = getattr(module, "sliding_window", None)
    scale = getattr(module, "scaling", width**-0.5)

    def forward(hidden_states: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        kv_cache: Any = kwargs.get("kv_cache")
        rope = kwargs.get("position_embeddings")
        if not getattr(kv_cache, "applies_rope", False) or rope is None or rope[0].shape[1:] != (1, width):
            return unfused(hidden_states, *args, **kwargs)
        projected = F.linear(hidden_states, weight, bias).view(len(hidden_states), sum(heads), 1, width)
        query, key, value = torch.split(projected, heads, dim=1)
        query, key = (part if norm is None else norm(part) for part, norm in zip((query, key), norms, strict=True))
        cos, sin = rope[0][:, 0], rope[1][:, 0]
        call = AttentionCall(module.layer_idx, query, key, value, scale, window, rope=(cos, sin))
        attended = kv_cache.attend(call)
        return module.o_proj(attended.reshape(len(hidden_states), 1, -1)), None

    module.forward = forward


def _concatenated(*parts: Any) -> tuple[torch.Tensor, torch.Tensor | None]:
    """The weights and biases of several layers concatenated; the layers' own weights become views of them."""
    weight = torch.cat([part.weight.detach() for part in parts])
    for part, rows in zip(parts, torch.split(weight, [part.out_features for part in parts]), strict=True):
        part.weight = torch.nn.Parameter(rows, requires_grad=False)
    biased = [part.bias for part in parts if part.bias is not None]
    return weight, torch.cat([bias.detach() for bias in biased]) if len(biased) == len(parts) else None


def _probe(like: torch.Tensor, width: int) -> torch.Tensor:
    return torch.linspace(-2, 3, 2 * width, device=like.device).to(like.dtype).view(2, 1, width)


def _error(variant: Callable[[torch.Tensor], torch.Tensor], module: Any, probe: torch.Tensor) -> float:
    expected = module(probe).float()
    return float((variant(probe).float() - expected).norm() / expected.norm())
