"""EXP (Kuditipudi et al., "Robust Distortion-free Watermarks for Language Models"): exponential minimum sampling.

A secret sequence of `length` vectors of uniform numbers, one for each token of the vocabulary, decides every choice: at place
i the token of least -log(xi[i, token]) / probability is taken, which over random keys is a draw from the model. A text
begins at a random place of the sequence, which begins again at its end. Detection aligns the text with the sequence from each
of its places, at a cost of log(1 - xi) for a token matched and `gap` for one skipped on either side, as edit distance does;
the least cost is compared with what random keys give. The numbers are hashes of (place, token), so that there is no table
of the vocabulary and every device agrees.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from alimark._util.arrays import Floats
from alimark.detection.building import Statistic
from alimark.detection.stats.p_values import RandomKeys
from alimark.parameters.exp import EXPParameters
from alimark.schemes import _prf
from alimark.schemes._exp_kernel import least_costs
from alimark.schemes.kgw import null_secrets
from alimark.schemes.token_level import TokenLevel
from alimark.schemes.tokens import Ids

if TYPE_CHECKING:
    import torch

    from alimark.schemes._token_engines import Engine
    from alimark.schemes._token_sampling import Step

MOST_TOKENS = 1024
"""Of a text that are aligned; the cost grows with their square."""


@dataclass(frozen=True, kw_only=True)
class Permutations(RandomKeys):
    """The random keys behind a p-value, a hundred as in the paper."""

    draws: int = 100


class EXP(TokenLevel):
    """Marks and detects under one key."""

    scheme = "exp"
    Parameters = EXPParameters
    settings: ClassVar[type[RandomKeys]] = Permutations
    parameters: EXPParameters

    @property
    def secret(self) -> _prf.Words:
        secret: _prf.Words = _prf.words(self.key.stream("exp", 16))[0]
        return secret

    def marker(self, seeds: list[int], engine: Engine) -> ExponentialMinimum:
        return ExponentialMinimum(self.secret, self.parameters, starts(seeds, self.parameters.length), engine.device)

    def find(self, ids: Ids) -> Statistic:
        warnings: tuple[str, ...] = ()
        if len(ids) > MOST_TOKENS:
            warnings = (f"of {len(ids):,} tokens the first {MOST_TOKENS:,} were looked at",)
            ids = ids[:MOST_TOKENS]
        parameters = self.parameters
        raw = -float(costs(ids, self.secret[None], parameters.length, parameters.gap)[0])

        def null(first: int, count: int) -> Floats:
            secrets = null_secrets(self.key, "null-exp", first, count)
            return -costs(ids, secrets, parameters.length, parameters.gap)

        return Statistic(raw, None, null, 0.0, {"cost": -raw, "scored": len(ids)}, warnings)


def costs(ids: Ids, secrets: _prf.Words, length: int, gap: float) -> Floats:
    """The least alignment cost over all shifts, under each key."""
    distinct, places = np.unique(ids, return_inverse=True)
    return least_costs(distinct.astype(np.uint64), places, secrets, length, gap).astype(np.float64)


def starts(seeds: list[int], length: int) -> list[int]:
    """Where in the key sequence each text begins."""
    from alimark.schemes._token_sampling import seeded

    drawn = [int(_prf.hashed(seeded(seed), np.array(2**40))) for seed in seeds]  # far from the numbers of tokens
    return [number * length >> 64 for number in drawn]


class ExponentialMinimum:
    """Takes the token of least -log(xi) / probability."""

    def __init__(self, secret: _prf.Words, parameters: EXPParameters, first: list[int], device: Any) -> None:
        import torch

        self._secret, self._length = _prf.on(device, secret), parameters.length
        self._first = torch.tensor(first, device=device)

    def choose(self, step: Step) -> torch.Tensor:
        place = (self._first + step.number) % self._length
        xi = _prf.torch_unit(_prf.torch_hashed(self._secret, place[:, None], step.tokens))
        # The least -log(xi) / p has the largest log(p) - log(-log(xi)).
        best = (step.logs.double() - (-xi.log()).log()).argmax(dim=1, keepdim=True)
        return step.tokens.gather(1, best)[:, 0]

    def keep(self, rows: torch.Tensor) -> None:
        self._first = self._first[rows]
