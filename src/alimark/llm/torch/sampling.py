"""Drawing tokens: a model's logits, the rules of sampling and numbers that depend on seed, draw and step alone."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F

from alimark.llm.base import Sampling

# A draw outside top-p is made again; so many times that one in a million is left, which gets the likeliest token.
_LEFT_OVER = 1e-6
# Below this top-p most draws would be made again, and sorting is the better way.
LEAST_TOP_P = 0.5


def tries_for(top_p: float) -> int:
    """How many numbers a token may take."""
    if top_p < LEAST_TOP_P:
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


def scores(
    logits: torch.Tensor, seen: torch.Tensor, sampling: Sampling, control: torch.Tensor | None = None
) -> torch.Tensor:
    """Of every token, whose softmax is its chance before top-p. `seen`: the ids of each row's context and text.

    Repetition penalty and temperature by the rules of transformers; in which order does not matter.
    """
    found = logits * torch.full((1, 1), 1 / sampling.temperature, device=logits.device)  # and float32 from here on
    penalty = sampling.repetition_penalty
    if penalty != 1:
        old = found.gather(1, seen)
        found.scatter_(1, seen, torch.where(old < 0, old * penalty, old / penalty))
    if control is not None and not sampling.may_end:
        found.index_fill_(1, control, -torch.inf)
    return found


def probabilities(
    logits: torch.Tensor, seen: torch.Tensor, sampling: Sampling, control: torch.Tensor | None = None
) -> torch.Tensor:
    """Of every token, before top-p."""
    return torch.softmax(scores(logits, seen, sampling, control), dim=1)


def choose(chances: torch.Tensor, top_p: float, numbers: torch.Tensor) -> torch.Tensor:
    """One token a row, from the likeliest that together weigh `top_p`.

    A token is drawn from all of them and drawn again while it lies outside, which gives the same law as sorting and is
    much faster: all it takes is the weight of what is likelier than the token drawn.
    """
    if top_p < LEAST_TOP_P:
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
