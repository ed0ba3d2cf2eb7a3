"""Sampling of tokens: scores from logits, and choices by random numbers that depend on seed, draw and step alone."""

import hashlib
import math

import torch
import torch.nn.functional as F

from alimark.core.llm.base import Sampling

# A token outside top-p is rejected and sampled again, so often that one in a million is left, which gets the likeliest token.
_REJECTED_SHARE = 1e-6
MIN_REJECTION_TOP_P = 0.5  # below this top-p most tokens would be rejected, and sorting is faster


def rng_key(seed: int, number: int) -> int:
    """The key of a draw's random numbers, a signed 64-bit integer."""
    digest = hashlib.blake2b(f"{seed} {number}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big", signed=True)


def tries_for(top_p: float) -> int:
    """How many random numbers one token may take."""
    if top_p < MIN_REJECTION_TOP_P:
        return 1
    return math.ceil(math.log(_REJECTED_SHARE) / math.log(max(1 - top_p, 1e-3)))


_NUCLEUS = 1024  # so many of the likeliest tokens are looked at for top-p where there is a bias


def biased(
    token_scores: torch.Tensor, biases: torch.Tensor, context_of: torch.Tensor, sampling: Sampling
) -> torch.Tensor:
    """Scores of the tokens in top-p with the bias of their context added; all others are never sampled.

    A bias inside top-p cannot make a token possible that the model itself would not write. biases: a row for each context.
    """
    weights, ids = torch.softmax(token_scores, dim=1).topk(min(_NUCLEUS, token_scores.shape[1]), dim=1)
    inside = weights.cumsum(dim=1) - weights < sampling.top_p
    values = token_scores.gather(1, ids) + biases[context_of[:, None], ids] / sampling.temperature
    return torch.full_like(token_scores, -torch.inf).scatter_(1, ids, values.masked_fill(~inside, -torch.inf))


_GOLDEN, _MIX_1, _MIX_2 = (n - 2**64 for n in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))


def uniform_numbers(keys: torch.Tensor, step: torch.Tensor, count: int) -> torch.Tensor:
    """`count` numbers in [0, 1) for each key: SplitMix64 of the key at this step, the same on every device."""
    at = step * 64 + torch.arange(1, count + 1, device=keys.device)
    z = keys[:, None] + at * _GOLDEN
    z = (z ^ (z >> 30 & 2**34 - 1)) * _MIX_1
    z = (z ^ (z >> 27 & 2**37 - 1)) * _MIX_2
    z = z ^ (z >> 31 & 2**33 - 1)
    return (z >> 11 & 2**53 - 1).double() * 2.0**-53


def scores(
    logits: torch.Tensor, seen: torch.Tensor, sampling: Sampling, control: torch.Tensor | None = None
) -> torch.Tensor:
    """Scores of every token, whose softmax is the token's probability before top-p.

    Repetition penalty and temperature work as in transformers; their order does not matter. seen: the token ids of each
    sequence's context and text. control: tokens that are never sampled unless the model may end its text.
    """
    # The temperature is a float32 tensor, so that the scores are float32 from here on.
    token_scores = logits * torch.full((1, 1), 1 / sampling.temperature, device=logits.device)
    penalty = sampling.repetition_penalty
    if penalty != 1:
        old = token_scores.gather(1, seen)
        token_scores.scatter_(1, seen, torch.where(old < 0, old * penalty, old / penalty))
    if control is not None and not sampling.may_end:
        token_scores.index_fill_(1, control, -torch.inf)
    if sampling.top_k:
        least = token_scores.topk(min(sampling.top_k, token_scores.shape[1]), dim=1).values[:, -1:]
        token_scores.masked_fill_(token_scores < least, -torch.inf)
    if sampling.min_p:
        least = token_scores.max(dim=1, keepdim=True).values + math.log(sampling.min_p)
        token_scores.masked_fill_(token_scores < least, -torch.inf)
    return token_scores


def choose(chances: torch.Tensor, top_p: float, numbers: torch.Tensor) -> torch.Tensor:
    """Sample one token for each row from the likeliest tokens that together have the probability `top_p`.

    Rejection sampling: a token is sampled from all of them, and again while it lies outside top-p. The distribution is the same
    as with sorting, and it is much faster: it only takes the sum of what is likelier than the token.
    """
    if top_p < MIN_REJECTION_TOP_P:
        return _choose_sorted(chances, top_p, numbers[:, :1])
    picks = _invert(chances, numbers)
    chosen, weights = picks[:, 0], chances.gather(1, picks)
    inside = _inside(chances, weights[:, 0], top_p)
    if chances.is_cuda:
        # A CUDA graph allows no shape that depends on data. An eighth of the rows is more than will fail.
        rest = torch.topk((~inside).float(), max(min(64, len(inside)), len(inside) // 8), sorted=False).indices
    else:
        rest = (~inside).nonzero()[:, 0]
        if not len(rest):
            return chosen
    chances, settled, tokens = chances[rest], inside[rest], chosen[rest]
    for number in range(1, numbers.shape[1]):
        good = ~settled & _inside(chances, weights[rest, number], top_p)
        tokens = torch.where(good, picks[rest, number], tokens)
        settled = settled | good
    return chosen.index_copy(0, rest, torch.where(settled, tokens, chances.argmax(dim=1)))


def _inside(chances: torch.Tensor, weights: torch.Tensor, top_p: float) -> torch.Tensor:
    """Whether tokens of these weights lie in top-p."""
    likelier = torch.where(chances > weights[:, None], chances, 0).sum(dim=1)
    return (likelier < top_p) & (weights > 0)


_BLOCK = 256


def _invert(weights: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
    """Where the running sum of each row reaches `numbers` times its total: first the block of tokens, then the token."""
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
