"""Parts of a model put together, so that a step on a GPU takes fewer kernels; only where that gives the same numbers.

A small model's step is a thousand kernels of a few microseconds each, and most of them add or multiply a little.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F

_CLOSE = 0.01  # relative; sixteen bits round differently in another order


def fuse(model: Any, kernels: Any) -> None:
    """In place. `kernels`: alimark's, or None where there is no Triton."""
    for module in model.modules():
        if type(module).__name__.endswith("RMSNorm"):
            _fuse_norm(module)
        elif _linear(module, "gate_proj", "up_proj", "down_proj") and hasattr(module, "act_fn"):
            _fuse_gates(module, kernels)
        elif kernels and _linear(module, "q_proj", "k_proj", "v_proj", "o_proj") and hasattr(module, "layer_idx"):
            _fuse_attention(module)


def part_attention(model: Any) -> None:
    """Takes back what was done to attention, for models that turn queries and keys in another way."""
    for module in model.modules():
        if hasattr(module, "layer_idx"):
            vars(module).pop("forward", None)


def _linear(module: Any, *names: str) -> bool:
    """Whether these are plain layers that can be joined: all but the last with a bias, or all without."""
    layers = [getattr(module, name, None) for name in names]
    if any(type(layer) is not torch.nn.Linear for layer in layers):
        return False
    return len({layer.bias is None for layer in layers[:-1] if layer is not None}) == 1


def _fuse_norm(module: Any) -> None:
    """A root-mean-square norm in one kernel instead of eight."""
    weight = getattr(module, "weight", None)
    eps = getattr(module, "variance_epsilon", getattr(module, "eps", None))
    if weight is None or not isinstance(eps, float):
        return
    probe = _probe(weight, weight.numel())
    ways = [
        partial(F.rms_norm, normalized_shape=weight.shape, weight=scale.to(weight.dtype), eps=eps)
        for scale in (weight.detach(), 1 + weight.detach().float())  # gemma's are kept less one
    ]
    errors = [_error(way, module, probe) for way in ways]
    if min(errors) <= _CLOSE:  # large weights pass either way, so the nearer one is taken
        module.forward = ways[errors.index(min(errors))]


def _fuse_gates(module: Any, kernels: Any) -> None:
    """One product for gate and way up, and one kernel for what is made of them."""
    weight, bias = _joined(module.gate_proj, module.up_proj)

    def plain(x: torch.Tensor) -> torch.Tensor:
        gate, up = F.linear(x, weight, bias).chunk(2, dim=-1)
        out: torch.Tensor = module.down_proj(module.act_fn(gate) * up)
        return out

    def by_kernel(x: torch.Tensor, gelu: bool) -> torch.Tensor:
        out: torch.Tensor = module.down_proj(kernels.gated(F.linear(x, weight, bias), gelu=gelu))
        return out

    probe = _probe(weight, weight.shape[1])
    ways = [partial(by_kernel, gelu=gelu) for gelu in (False, True)] if kernels and weight.is_cuda else []
    errors = [_error(way, module, probe) for way in ways]
    module.forward = ways[errors.index(min(errors))] if errors and min(errors) <= _CLOSE else plain


def _fuse_attention(module: Any) -> None:
    """One product for query, key and value, which are turned to their positions where they are attended to."""
    if getattr(module, "attn_logit_softcapping", None) is not None or not hasattr(module, "head_dim"):
        return
    own, width = module.forward, module.head_dim
    weight, bias = _joined(module.q_proj, module.k_proj, module.v_proj)
    heads = [getattr(module, name).out_features // width for name in ("q_proj", "k_proj", "v_proj")]
    norms = getattr(module, "q_norm", None), getattr(module, "k_norm", None)
    window = getattr(module, "sliding_window", None)
    scale = getattr(module, "scaling", width**-0.5)

    def forward(hidden_states: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        memory: Any = kwargs.get("memory")
        turn = kwargs.get("position_embeddings")
        if not getattr(memory, "turns", False) or turn is None or turn[0].shape[1:] != (1, width):
            return own(hidden_states, *args, **kwargs)
        together = F.linear(hidden_states, weight, bias).view(len(hidden_states), sum(heads), 1, width)
        query, key, value = torch.split(together, heads, dim=1)
        query, key = (part if norm is None else norm(part) for part, norm in zip((query, key), norms, strict=True))
        cos, sin = turn[0][:, 0], turn[1][:, 0]
        found = memory.attend(module.layer_idx, query, key, value, scale, window, None, (cos, sin))
        return module.o_proj(found.reshape(len(hidden_states), 1, -1)), None

    module.forward = forward


def _joined(*parts: Any) -> tuple[torch.Tensor, torch.Tensor | None]:
    """The weights of several layers in one; the layers keep seeing theirs, without a second copy."""
    weight = torch.cat([part.weight.detach() for part in parts])
    for part, rows in zip(parts, torch.split(weight, [part.out_features for part in parts]), strict=True):
        part.weight = torch.nn.Parameter(rows, requires_grad=False)
    biased = [part.bias for part in parts if part.bias is not None]
    return weight, torch.cat([bias.detach() for bias in biased]) if len(biased) == len(parts) else None


def _probe(like: torch.Tensor, width: int) -> torch.Tensor:
    return torch.linspace(-2, 3, 2 * width, device=like.device).to(like.dtype).view(2, 1, width)


def _error(way: Callable[[torch.Tensor], torch.Tensor], module: Any, probe: torch.Tensor) -> float:
    expected = module(probe).float()
    return float((way(probe).float() - expected).norm() / expected.norm())
