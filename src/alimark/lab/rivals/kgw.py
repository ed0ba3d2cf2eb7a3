"""KGW (Kirchenbauer et al., "A Watermark for Large Language Models"): adds a bias to a green list of the vocabulary.

The tokens before a token decide which part of the vocabulary is green at its place, and green tokens are made more likely.
Detection counts the green tokens. Here a token is green if the hash of the secret, its context and itself lies in the lowest
`gamma` of all hashes. So every device computes the same list, detection computes only the colours of the tokens of the text,
and colours are independent, so that the count in unmarked text is exactly binomial. transformers instead draws a permutation
of the vocabulary with a random generator of the device, which differs between devices and has only 2**32 seeds on the CPU.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from numpy.typing import NDArray

from alimark.core._util.arrays import Floats
from alimark.core.detection.building import Statistic
from alimark.core.parameters import Presets
from alimark.errors import KeyFileError
from alimark.lab.rivals import _prf
from alimark.lab.rivals._token_sampling import AddedBias
from alimark.lab.rivals.token_level import TokenLevel, TokenParameters
from alimark.lab.rivals.tokens import Ids

if TYPE_CHECKING:
    import torch

    from alimark.lab.rivals._token_engines import Bias, TokenEngine


@dataclass(frozen=True)
class KGWParameters(TokenParameters):
    """The parameters of a KGW key."""

    scheme = "kgw"
    presets: ClassVar[Presets] = {"paper": {}, "transformers": {"gamma": 0.25, "bias": "nucleus"}}
    earlier: ClassVar[Mapping[str, object]] = {"bias": "nucleus"}

    gamma: float = 0.5  # the share of the vocabulary that is green
    delta: float = 2.0  # the number added to the logits of green tokens
    context: int = 1
    """The number of previous tokens that decide which are green; with 0 (Unigram) the same ones are green everywhere."""
    bias: str = "logits"
    """Where delta is added: "logits", before temperature and top-p, as in the code of the authors and in MarkLLM, or "nucleus",
    after both, as WatermarkingConfig of transformers does."""

    def __post_init__(self) -> None:
        if not 0 < self.gamma < 1:
            raise KeyFileError(f"gamma must be between 0 and 1, not {self.gamma}")
        if not 0 < self.delta <= 100:
            raise KeyFileError(f"delta must be above 0 and at most 100, not {self.delta}")
        if not 0 <= self.context <= 16:
            raise KeyFileError(f"context must be from 0 to 16 tokens, not {self.context}")
        self.check_choice("bias", "logits", "nucleus")


class KGW(TokenLevel):
    """Generates and detects text marked by KGW under one key."""

    scheme = "kgw"
    Parameters = KGWParameters
    parameters: KGWParameters

    def marker(self, seeds: list[int], engine: TokenEngine) -> GreenBias:
        return GreenBias(self.secret, self.parameters, engine.device)

    def find(self, ids: Ids) -> Statistic:
        grams = distinct_ngrams(ids, self.parameters.context + 1)
        gamma = self.parameters.gamma
        green, total = int(green_tokens(self.secret, grams, gamma).sum()), len(grams)
        z = (green - gamma * total) / math.sqrt(total * gamma * (1 - gamma)) if total else 0.0

        def null(first: int, count: int) -> Floats:
            secrets = self.null_secrets(first, count)
            return np.asarray(green_tokens(secrets[:, None], grams, gamma).sum(axis=1), np.float64)

        tails = {"p_normal": normal_tail(z), "p_binomial": binomial_tail(green, total, gamma)}
        return Statistic(float(green), z, null, gamma**total, {"green": green, "scored": total, **tails})

    def strengths(self, ids: Ids) -> Floats:
        context = self.parameters.context
        grams = np.lib.stride_tricks.sliding_window_view(ids, context + 1) if len(ids) > context else ids[:0, None]
        green = green_tokens(self.secret, grams, self.parameters.gamma)
        return np.concatenate([np.full(len(ids) - len(grams), np.nan), green])


def distinct_ngrams(ids: Ids, n: int) -> Ids:
    """The distinct n-grams of the tokens, one per row. A repeated n-gram adds no evidence, so it is counted once."""
    if len(ids) < n:
        return np.empty((0, n), np.int64)
    return np.unique(np.lib.stride_tricks.sliding_window_view(ids, n), axis=0)


def green_tokens(secret: _prf.Words, grams: Ids, gamma: float) -> NDArray[np.bool_]:
    """Whether the last token of each n-gram is green after the others. Several secrets stand in a first axis of `secret`."""
    bits = _prf.hashed(secret, *grams.T)
    return np.asarray(bits < np.uint64(gamma * 2**64))


def normal_tail(z: float) -> float:
    """The probability that a standard normal number is at least z."""
    return 0.5 * math.erfc(z / math.sqrt(2))


def binomial_tail(green: int, total: int, gamma: float) -> float:
    """The probability of at least `green` green tokens among `total` in unmarked text."""
    logs = [
        math.lgamma(total + 1) - math.lgamma(k + 1) - math.lgamma(total - k + 1)
        + k * math.log(gamma) + (total - k) * math.log1p(-gamma)
        for k in range(green, total + 1)
    ]  # fmt: skip
    return min(1.0, math.fsum(math.exp(log) for log in logs))


class GreenBias(AddedBias):
    """Adds delta to the logits of green tokens. The first tokens of a text have too little context and are not biased."""

    def __init__(self, secret: _prf.Words, parameters: KGWParameters, device: torch.device | str) -> None:
        super().__init__(parameters.bias)
        self._secret, self._parameters = _prf.on(device, secret), parameters

    def added(self, text_ids: torch.Tensor) -> Bias | None:
        parameters = self._parameters
        if text_ids.shape[1] < parameters.context:
            return None
        context = text_ids[:, text_ids.shape[1] - parameters.context :]
        return lambda tokens: parameters.delta * torch_green(self._secret, context, tokens, parameters.gamma)


def torch_green(secret: torch.Tensor, context: torch.Tensor, tokens: torch.Tensor, gamma: float) -> torch.Tensor:
    """`green_tokens` on torch, for many tokens after the context of each row."""
    bits = _prf.torch_hashed(secret, *(place[:, None] for place in context.T), tokens)
    # With the highest bit flipped, signed integers have the order of unsigned ones.
    threshold = int(gamma * 2**64) - 2**63
    return (bits ^ -(2**63)) < threshold
