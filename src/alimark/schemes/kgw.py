"""KGW (Kirchenbauer et al., "A Watermark for Large Language Models"): a bias on a green list of the vocabulary.

The tokens before a token decide which part of the vocabulary is green there, and green tokens are made likelier. Detection
counts the green ones. Here a token is green where the hash of the secret, its context and itself lies in the lowest
`gamma` of all hashes: every device agrees, a detector asks for the tokens it sees and not for whole lists, and colours
are independent, so that the count of unmarked text is binomial, exactly. transformers draws a permutation of the vocabulary
with a generator of the device instead, which differs between devices and, on the CPU, knows no more than 2**32 seeds;
`logits_processor` is its processor with this list in place of that one.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from alimark._util.arrays import Floats
from alimark.detection.building import Statistic
from alimark.parameters.kgw import KGWParameters
from alimark.schemes import _prf
from alimark.schemes.token_level import TokenLevel
from alimark.schemes.tokens import Ids

if TYPE_CHECKING:
    import torch

    from alimark.keys.key import Key
    from alimark.schemes._token_engines import Engine
    from alimark.schemes._token_sampling import Step


class KGW(TokenLevel):
    """Marks and detects under one key."""

    scheme = "kgw"
    Parameters = KGWParameters
    parameters: KGWParameters

    @property
    def secret(self) -> _prf.Words:
        secret: _prf.Words = _prf.words(self.key.stream("kgw", 16))[0]
        return secret

    def marker(self, seeds: list[int], engine: Engine) -> GreenBias:
        return GreenBias(self.secret, self.parameters, engine.device)

    def find(self, ids: Ids) -> Statistic:
        grams = distinct_ngrams(ids, self.parameters.context + 1)
        parameters = self.parameters
        green = int(green_tokens(self.secret, grams, parameters.gamma).sum())
        total = len(grams)
        z = (
            (green - parameters.gamma * total) / math.sqrt(total * parameters.gamma * (1 - parameters.gamma))
            if total
            else 0.0
        )

        def null(first: int, count: int) -> Floats:
            secrets = null_secrets(self.key, "null-kgw", first, count)
            return np.asarray(green_tokens(secrets[:, None], grams, parameters.gamma).sum(axis=1), np.float64)

        evidence = {
            "green": green,
            "scored": total,
            "p_normal": normal_tail(z),
            "p_binomial": binomial_tail(green, total, parameters.gamma),
        }
        return Statistic(float(green), z, null, parameters.gamma**total, evidence)

    def logits_processor(self, vocabulary: int, device: Any = "cpu") -> Any:
        """For `generate` of transformers, and for its WatermarkDetector: put it there as `detector.processor`."""
        return _processor(self.secret, self.parameters, vocabulary, device)


def distinct_ngrams(ids: Ids, n: int) -> Ids:
    """Each run of n tokens once, a row each: what repeats says nothing new."""
    if len(ids) < n:
        return np.empty((0, n), np.int64)
    return np.unique(np.lib.stride_tricks.sliding_window_view(ids, n), axis=0)


def green_tokens(secret: _prf.Words, grams: Ids, gamma: float) -> NDArray[np.bool_]:
    """Whether the last token of each row is green behind the others. `secret`: one, or many, in front of the rows."""
    bits = _prf.hashed(secret, *grams.T)
    return np.asarray(bits < np.uint64(gamma * 2**64))


def null_secrets(key: Key, label: str, first: int, count: int) -> _prf.Words:
    """The words of random keys, number `first` on: repeatable, and unknown without the secret."""
    return np.concatenate([_prf.words(key.stream(label, 16, i)) for i in range(first, first + count)])


def normal_tail(z: float) -> float:
    return 0.5 * math.erfc(z / math.sqrt(2))


def binomial_tail(green: int, total: int, gamma: float) -> float:
    """The chance of so many green tokens or more."""
    logs = [
        math.lgamma(total + 1) - math.lgamma(k + 1) - math.lgamma(total - k + 1)
        + k * math.log(gamma) + (total - k) * math.log1p(-gamma)
        for k in range(green, total + 1)
    ]  # fmt: skip
    return min(1.0, math.fsum(math.exp(log) for log in logs))


class GreenBias:
    """Adds delta to the green tokens of the nucleus. The first tokens of a text, which have no context, stay as they are."""

    def __init__(self, secret: _prf.Words, parameters: KGWParameters, device: Any) -> None:
        self._secret, self._parameters = _prf.on(device, secret), parameters

    def choose(self, step: Step) -> torch.Tensor:
        return step.sampled(self.biased(step))

    def biased(self, step: Step) -> torch.Tensor:
        """The log-probabilities, not made to add up to one again."""
        if step.number < self._parameters.context:
            return step.logs
        context = step.text_ids[:, -self._parameters.context :]
        green = torch_green(self._secret, context, step.tokens, self._parameters.gamma)
        return step.logs + self._parameters.delta * green

    def keep(self, rows: torch.Tensor) -> None:
        pass


def torch_green(secret: torch.Tensor, context: torch.Tensor, tokens: torch.Tensor, gamma: float) -> torch.Tensor:
    """`green_tokens` for many tokens behind each row's context."""
    bits = _prf.torch_hashed(secret, *(place[:, None] for place in context.T), tokens)
    # Signed integers order as unsigned ones do once the highest bit is turned.
    threshold = int(gamma * 2**64) - 2**63
    return (bits ^ -(2**63)) < threshold


def _processor(secret: _prf.Words, parameters: KGWParameters, vocabulary: int, device: Any) -> Any:
    import torch
    from transformers import WatermarkLogitsProcessor

    class HashedGreenList(WatermarkLogitsProcessor):  # type: ignore[misc]
        def _get_greenlist_ids(self, input_seq: torch.Tensor) -> torch.Tensor:
            context = input_seq[None, -parameters.context :]
            every = torch.arange(vocabulary, device=input_seq.device)[None]
            green = torch_green(_prf.on(input_seq.device, secret), context, every, parameters.gamma)
            return green[0].nonzero()[:, 0]

    return HashedGreenList(
        vocabulary, device, greenlist_ratio=parameters.gamma, bias=parameters.delta, context_width=parameters.context
    )
