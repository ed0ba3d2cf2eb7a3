"""EXP (Kuditipudi et al., "Robust Distortion-free Watermarks for Language Models"): exponential minimum sampling.

The key sequence has `length` vectors xi of uniform random numbers, one number for each token of the vocabulary. At place i the
token with the smallest -log(xi[i, token]) / probability is taken; over random keys this is a sample from the model. A text
starts at a random place of the sequence, which is cyclic. Detection aligns the text with every cyclic shift of the sequence
as an edit distance does: a matched token costs log(1 - xi), a skipped token or place costs `gap`. The smallest cost is
compared with those of random keys. The numbers xi are hashes of (place, token), so that no table of the vocabulary is needed
and every device computes the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from numba import prange
from numpy.typing import NDArray

from alimark.core._util.arrays import Floats
from alimark.core._util.compiling import kernel
from alimark.core.detection.building import Statistic
from alimark.core.detection.stats.p_values import RandomKeys
from alimark.core.parameters import Presets
from alimark.errors import KeyFileError
from alimark.lab.rivals import _prf
from alimark.lab.rivals._token_sampling import Marker, seeded
from alimark.lab.rivals.token_level import TokenLevel, TokenParameters
from alimark.lab.rivals.tokens import Ids

if TYPE_CHECKING:
    import torch

    from alimark.lab.rivals._token_engines import TokenEngine
    from alimark.lab.rivals._token_sampling import TokenStep

MOST_TOKENS = 1024  # only so many tokens of a text are aligned, since the time grows with their square


@dataclass(frozen=True)
class EXPParameters(TokenParameters):
    """The key sequence of EXP and the cost of a gap in its alignment."""

    scheme = "exp"
    presets: ClassVar[Presets] = {"paper": {}}

    length: int = 256  # the length of the key sequence
    gap: float = 0.0  # the cost of skipping a token or a place of the sequence

    def __post_init__(self) -> None:
        if not 1 <= self.length <= 4096:
            raise KeyFileError(f"length must be from 1 to 4096, not {self.length}")
        if not 0 <= self.gap <= 100:
            raise KeyFileError(f"gap must be from 0 to 100, not {self.gap}")


@dataclass(frozen=True, kw_only=True)
class Permutations(RandomKeys):
    """The settings of EXP's detection: 100 random keys by default, as in the paper."""

    draws: int = 100


class EXP(TokenLevel):
    """Generates and detects text marked by EXP under one key."""

    scheme = "exp"
    Parameters = EXPParameters
    settings: ClassVar[type[RandomKeys]] = Permutations
    parameters: EXPParameters

    def marker(self, seeds: list[int], engine: TokenEngine) -> ExponentialMinimum:
        return ExponentialMinimum(self.secret, self.parameters, starts(seeds, self.parameters.length), engine.device)

    def find(self, ids: Ids) -> Statistic:
        cut_off = (f"of {len(ids):,} tokens the first {MOST_TOKENS:,} were looked at",)
        warnings = cut_off if len(ids) > MOST_TOKENS else ()
        ids, parameters = ids[:MOST_TOKENS], self.parameters
        raw = -float(costs(ids, self.secret[None], parameters.length, parameters.gap)[0])

        def null(first: int, count: int) -> Floats:
            return -costs(ids, self.null_secrets(first, count), parameters.length, parameters.gap)

        return Statistic(raw, None, null, 0.0, {"cost": -raw, "scored": len(ids)}, warnings)

    def strengths(self, ids: Ids) -> Floats:
        """The number of each token at the shift that suits the whole text best."""
        scored, length = ids[:MOST_TOKENS], self.parameters.length
        places = (np.arange(length)[:, None] + np.arange(len(scored))) % length
        xi = _prf.unit(_prf.hashed(self.secret, places, scored[None]))
        best = np.log1p(-xi).sum(axis=1).argmin()
        return np.concatenate([xi[best], np.full(len(ids) - len(scored), np.nan)])


def costs(ids: Ids, secrets: _prf.Words, length: int, gap: float) -> Floats:
    """The smallest alignment cost over all shifts, under each key."""
    distinct, places = np.unique(ids, return_inverse=True)
    return least_costs(distinct.astype(np.uint64), places, secrets, length, gap).astype(np.float64)


def starts(seeds: list[int], length: int) -> list[int]:
    """The place in the key sequence at which each text starts."""
    # No token has the number 2**40, so the hash is used nowhere else.
    return [int(_prf.hashed(seeded(seed), np.array(2**40))) * length >> 64 for seed in seeds]


class ExponentialMinimum(Marker):
    """Takes the token with the smallest -log(xi) / probability."""

    def __init__(self, secret: _prf.Words, parameters: EXPParameters, first: list[int], device: torch.device) -> None:
        import torch

        self._secret, self._length = _prf.on(device, secret), parameters.length
        self._first = torch.tensor(first, device=device)

    def choose(self, step: TokenStep) -> torch.Tensor:
        place = (self._first + step.number) % self._length
        xi = _prf.torch_unit(_prf.torch_hashed(self._secret, place[:, None], step.tokens))
        # -log(xi) / p is smallest where log(p) - log(-log(xi)) is largest.
        best = (step.logs.double() - (-xi.log()).log()).argmax(dim=1, keepdim=True)
        return step.tokens.gather(1, best)[:, 0]

    def keep(self, rows: torch.Tensor) -> None:
        self._first = self._first[rows]


# The alignment cost, compiled: a text against every shift of many key sequences. Shifts are adjacent in memory, so that SIMD
# instructions process several of them at once. The numbers of a key are computed for the tokens of the text only, since a
# table for the whole vocabulary would have millions of entries.

_LANES = 64
_SCALE = 2.0**-53


@kernel(parallel=True)
def least_costs(
    distinct: NDArray[np.uint64], places: NDArray[np.int64], secrets: _prf.Words, length: int, gap: float
) -> NDArray[np.float32]:
    """The smallest cost over all shifts for each key; `distinct[places]` is the text."""
    keys, tokens = len(secrets), len(places)
    totals = np.empty(keys, np.float32)
    for key in prange(keys):
        costs = _costs(distinct, secrets[key, 0], secrets[key, 1], length, tokens)
        least = np.float32(np.inf)
        for start in range(0, length, _LANES):
            least = min(least, _least(costs, places, start, min(_LANES, length - start), np.float32(gap)))  # type: ignore[arg-type]
        totals[key] = least
    return totals


@kernel()
def _costs(
    distinct: NDArray[np.uint64], first: np.uint64, second: np.uint64, length: int, tokens: int
) -> NDArray[np.float32]:
    """log(1 - xi) of each distinct token at each place of the key sequence, which is repeated for `tokens` more places."""
    costs = np.empty((len(distinct), length + tokens), np.float32)
    for i in range(len(distinct)):
        for place in range(length):
            bits = _prf.hashed_pair(first, second, np.uint64(place), distinct[i]) >> np.uint64(11)
            costs[i, place] = np.log1p(-(np.float64(bits) + 0.5) * _SCALE)
        for place in range(length, length + tokens):
            costs[i, place] = costs[i, place - length]
    return costs


@kernel()
def _least(costs: NDArray[np.float32], places: NDArray[np.int64], start: int, lanes: int, gap: np.float32) -> float:
    """The smallest cost among `lanes` shifts from `start` on: the dynamic programme of the edit distance, row by row."""
    tokens = len(places)
    above = np.empty((tokens + 1, lanes), np.float32)
    row = np.empty((tokens + 1, lanes), np.float32)
    for b in range(tokens + 1):
        above[b] = np.float32(b) * gap
    for a in range(tokens):
        cost = costs[places[a]]
        row[0] = np.float32(a + 1) * gap
        for b in range(tokens):
            diagonal, up, left, out = above[b], above[b + 1], row[b], row[b + 1]
            here = cost[start + b : start + b + lanes]
            for lane in range(lanes):
                matched = diagonal[lane] + here[lane]
                skipped = (up[lane] if up[lane] < left[lane] else left[lane]) + gap
                out[lane] = matched if matched < skipped else skipped
        above, row = row, above
    return float(above[tokens].min())
