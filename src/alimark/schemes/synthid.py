"""SynthID-Text (Dathathri et al., "Scalable watermarking for identifying large language model outputs"): tournaments.

The tokens before a token, the token itself and the secret give `depth` bits, its g-values; where text is written, tokens
with ones win a tournament of `depth` layers, and detection takes the mean of the g-values it sees. Hashing, g-values and
tournament are those of transformers' processor, run over the nucleus instead of the whole vocabulary: a token of probability
zero never wins. Its table of bits, which it draws with a generator of the device, is made from the secret instead, so that
every device has the same. Detection is NumPy: it needs no torch.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from alimark._util.arrays import Floats
from alimark.detection.building import Statistic
from alimark.parameters.synthid import SynthIDParameters, detector_arrays
from alimark.schemes.kgw import normal_tail
from alimark.schemes.token_level import TokenLevel
from alimark.schemes.tokens import Ids

if TYPE_CHECKING:
    import torch

    from alimark.keys.fitted import Fitted
    from alimark.schemes._token_engines import Engine
    from alimark.schemes._token_sampling import Step

Bits = NDArray[np.uint8]

_MULTIPLIER = np.uint64(6364136223846793005)
_ONE = np.uint64(1)
_KEYS_AT_A_TIME = 64


class SynthID(TokenLevel):
    """Marks and detects under one key."""

    scheme = "synthid"
    Parameters = SynthIDParameters
    parameters: SynthIDParameters

    @property
    def keys(self) -> NDArray[np.uint64]:
        """Of each layer; half of the 64 bits, so that transformers can sum them."""
        return self._words("synthid-keys", self.parameters.depth)

    def _words(self, label: str, count: int, *index: int) -> NDArray[np.uint64]:
        return np.frombuffer(self.key.stream(label, 4 * count, *index), ">u4").astype(np.uint64)

    @property
    def table(self) -> Bits:
        return np.unpackbits(np.frombuffer(self.key.stream("synthid-table", self.parameters.table // 8), np.uint8))

    def marker(self, seeds: list[int], engine: Engine) -> Tournament:
        return Tournament(self.logits_processor(engine.device), self.parameters.history)

    def logits_processor(self, device: Any = "cpu") -> Any:
        """transformers' own, with these keys and this table, for its `generate` and its detectors."""
        import torch
        from transformers import SynthIDTextWatermarkLogitsProcessor

        parameters = self.parameters
        processor = SynthIDTextWatermarkLogitsProcessor(
            ngram_len=parameters.ngram, keys=self.keys.astype(np.int64).tolist(), sampling_table_size=parameters.table,
            sampling_table_seed=0, context_history_size=parameters.history, device=torch.device(device),
        )  # fmt: skip
        processor.sampling_table = torch.from_numpy(self.table.astype(np.int64)).to(device)
        return processor

    def find(self, ids: Ids) -> Statistic:
        parameters = self.parameters
        hashes = ngram_hashes(ids, parameters.ngram)[fresh_contexts(ids, parameters.ngram, parameters.history)]
        table = self.table
        score = self._score()
        values = g_values(hashes, self.keys, table)
        raw = float(score(values[None])[0]) if len(hashes) else 0.0

        def null(first: int, count: int) -> Floats:
            if not len(hashes):
                return np.zeros(count)
            scores = []
            for start in range(first, first + count, _KEYS_AT_A_TIME):
                stop = min(first + count, start + _KEYS_AT_A_TIME)
                keys = np.stack([self._words("null-synthid", parameters.depth, i) for i in range(start, stop)])
                scores.append(score(g_values(hashes, keys[:, None], table)))
            return np.concatenate(scores)

        mean = float(values.mean()) if len(hashes) else 0.5
        evidence: dict[str, Any] = {"mean": mean, "scored": len(hashes), "score": parameters.score}
        z = None
        if parameters.score != "bayesian":
            weights = layer_weights(parameters.depth, parameters.score)
            z = (raw - 0.5) / math.sqrt(0.25 * float((weights**2).sum()) / max(1, len(hashes)))
            evidence["p_normal"] = normal_tail(z)
        return Statistic(raw, z, null, 0.5 ** (parameters.depth * len(hashes)), evidence)

    def _score(self) -> Any:
        """From g-values (keys, n-grams, layers) to a number for each key."""
        parameters = self.parameters
        if parameters.score == "bayesian":
            assert self.key.fitted is not None
            return Bayesian.of(self.key.fitted, parameters.depth)
        weights = layer_weights(parameters.depth, parameters.score)
        return lambda values: values.mean(axis=1) @ weights


def layer_weights(depth: int, score: str) -> Floats:
    """Of the layers, adding up to one: all alike, or from ten to one, as in the paper."""
    weights = np.linspace(10, 1, depth) if score == "weighted" else np.ones(depth)
    return np.asarray(weights / weights.sum())


def _accumulated(hashes: NDArray[np.uint64], data: NDArray[np.uint64]) -> NDArray[np.uint64]:
    with np.errstate(over="ignore"):
        return (hashes + data) * _MULTIPLIER + _ONE


def ngram_hashes(ids: Ids, n: int) -> NDArray[np.uint64]:
    """Of each run of n tokens."""
    if len(ids) < n:
        return np.empty(0, np.uint64)
    runs = np.lib.stride_tricks.sliding_window_view(ids.astype(np.uint64), n)
    hashes = np.ones(len(runs), np.uint64)
    for place in runs.T:
        hashes = _accumulated(hashes, place)
    return hashes


def g_values(hashes: NDArray[np.uint64], keys: NDArray[np.uint64], table: Bits) -> Bits:
    """(n-grams, layers) of bits; keys with a first axis of their own give one such table each."""
    places = _accumulated(hashes[:, None], keys)
    return np.asarray(table[places % np.uint64(len(table))])


def fresh_contexts(ids: Ids, n: int, history: int) -> NDArray[np.bool_]:
    """Of each run of n tokens whether its first n - 1 stood nowhere among the `history` contexts before."""
    last: dict[tuple[int, ...], int] = {}
    fresh = np.ones(max(0, len(ids) - n + 1), bool)
    for i in range(len(fresh)):
        context = tuple(ids[i : i + n - 1].tolist())
        fresh[i] = i - last.get(context, i - history - 1) > history
        last[context] = i
    return fresh


@dataclass(frozen=True)
class Bayesian:
    """transformers' trained detector: the log-odds that a text is marked, from its g-values."""

    beta: Floats
    delta: Floats
    prior: float

    @classmethod
    def of(cls, fitted: Fitted, depth: int) -> Bayesian:
        beta, delta, chance = detector_arrays(fitted, depth)
        # A layer's latent depends on the layers before it alone.
        return cls(beta.astype(np.float64), np.tril(delta.astype(np.float64), -1), math.log(chance / (1 - chance)))

    def __call__(self, values: Bits) -> Floats:
        ones = values.astype(np.float64)
        two = 1 / (1 + np.exp(-(ones @ self.delta.T + self.beta)))
        odds = np.log((ones + 0.5) * two + 1 - two)
        return np.asarray(odds.sum(axis=(1, 2)) + self.prior)


class Tournament:
    """transformers' processor over the nucleus of each row; its state is this batch's own."""

    def __init__(self, processor: Any, history: int) -> None:
        self._processor, self._history = processor, history
        self._context: Any = None
        self._seen: Any = None

    def choose(self, step: Step) -> torch.Tensor:
        return step.sampled(self.played(step))

    def played(self, step: Step) -> torch.Tensor:
        """The log-probabilities behind the tournament; those before it where the context came before."""
        import torch

        ours = self._processor
        if self._context is None:
            rows = len(step.tokens)
            self._context = torch.zeros((rows, ours.ngram_len - 1), dtype=torch.long, device=step.tokens.device)
            self._seen = torch.zeros((rows, self._history), dtype=torch.long, device=step.tokens.device)
        else:
            self._context = torch.cat([self._context[:, 1:], step.text_ids[:, -1:]], dim=1)
        hashes, context = ours._compute_keys(self._context, step.tokens)
        marked = ours.update_scores(step.logs, ours.sample_g_values(hashes).to(step.logs.dtype))
        again = (self._seen == context[:, None]).any(dim=1, keepdim=True)
        self._seen = torch.cat([context[:, None], self._seen[:, :-1]], dim=1)
        return torch.where(again, step.logs, marked)

    def keep(self, rows: torch.Tensor) -> None:
        if self._context is not None:
            self._context, self._seen = self._context[rows], self._seen[rows]
