"""SynthID-Text (Dathathri et al., "Scalable watermarking for identifying large language model outputs"): tournament sampling.

A hash of the secret, a token and the tokens before it gives the token `depth` bits, its g-values. In generation, tokens with
ones win a tournament of `depth` layers; detection computes the mean of the g-values of the text. Hashing, g-values and
tournament are those of the processor of transformers, run over the nucleus instead of the whole vocabulary, since a token of
probability zero never wins. The processor draws its table of bits with a random generator of the device; here the table comes
from the secret, so that every device has the same. Detection uses NumPy only, not torch.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from numpy.typing import NDArray

from alimark.core._util.arrays import Floats
from alimark.core.detection.building import Statistic
from alimark.core.parameters import Presets
from alimark.errors import KeyFileError
from alimark.lab.rivals._token_sampling import Marker
from alimark.lab.rivals.kgw import normal_tail
from alimark.lab.rivals.token_level import TokenLevel, TokenParameters
from alimark.lab.rivals.tokens import Ids

if TYPE_CHECKING:
    import torch
    from transformers import SynthIDTextWatermarkLogitsProcessor

    from alimark.core.keys.fitted import Fitted
    from alimark.lab.rivals._token_engines import TokenEngine
    from alimark.lab.rivals._token_sampling import TokenStep

GValues = NDArray[np.uint8]

_MULTIPLIER = np.uint64(6364136223846793005)
_ONE = np.uint64(1)
_KEYS_AT_A_TIME = 64


@dataclass(frozen=True)
class SynthIDParameters(TokenParameters):
    """The parameters of a SynthID-Text key."""

    scheme = "synthid"
    presets: ClassVar[Presets] = {"paper": {}}

    ngram: int = 5  # the length of the n-grams that decide the g-values of their last token
    depth: int = 30
    """The number of layers of the tournament. Each layer has its own key, and each match has two competitors."""
    history: int = 1024
    """The number of recent contexts that are remembered. A repeated context is neither marked nor scored."""
    table: int = 65536  # the number of bits in the table that g-values are read from
    score: str = "mean"
    """"mean"; "weighted", with more weight on early layers; or "bayesian", by a trained detector."""

    def __post_init__(self) -> None:
        if not 2 <= self.ngram <= 16 or not 1 <= self.depth <= 100 or not 1 <= self.history <= 2**20:
            raise KeyFileError("ngram must be 2 to 16, depth 1 to 100 and history 1 to 1048576")
        if self.table not in [2**n for n in range(8, 25)]:
            raise KeyFileError(f"table must be a power of two from 256 to 16777216, not {self.table}")
        self.check_choice("score", "mean", "weighted", "bayesian")

    def check_fitted(self, fitted: Fitted | None) -> None:
        """Checks that there is a trained detector of this depth for the bayesian score; raises KeyFileError if not."""
        if self.score != "bayesian":
            return
        if fitted is None:
            raise KeyFileError(
                "the bayesian score needs a trained detector; give its safetensors file, as transformers saves it"
            )
        Bayesian.of(fitted, self.depth)


class SynthID(TokenLevel):
    """Generates and detects text marked by SynthID-Text under one key."""

    scheme = "synthid"
    Parameters = SynthIDParameters
    parameters: SynthIDParameters

    @property
    def keys(self) -> NDArray[np.uint64]:
        """The key of each layer; 32 bits each, so that transformers can sum them in 64 bits."""
        return self._words("synthid-keys", self.parameters.depth)

    def _words(self, label: str, count: int, *index: int) -> NDArray[np.uint64]:
        return np.frombuffer(self.key.stream(label, 4 * count, *index), ">u4").astype(np.uint64)

    @property
    def table(self) -> GValues:
        """The table of random bits that g-values are read from."""
        return np.unpackbits(np.frombuffer(self.key.stream("synthid-table", self.parameters.table // 8), np.uint8))

    def marker(self, seeds: list[int], engine: TokenEngine) -> Tournament:
        return Tournament(self.logits_processor(engine.device), self.parameters.history)

    def logits_processor(self, device: torch.device | str = "cpu") -> SynthIDTextWatermarkLogitsProcessor:
        """The processor of transformers with the keys and the table of this key, for `generate` and detectors there."""
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
        evidence: dict[str, object] = {"mean": mean, "scored": len(hashes), "score": parameters.score}
        z = None
        if parameters.score != "bayesian":
            weights = layer_weights(parameters.depth, parameters.score)
            z = (raw - 0.5) / math.sqrt(0.25 * float((weights**2).sum()) / max(1, len(hashes)))
            evidence["p_normal"] = normal_tail(z)
        return Statistic(raw, z, null, 0.5 ** (parameters.depth * len(hashes)), evidence)

    def strengths(self, ids: Ids) -> Floats:
        n = self.parameters.ngram
        values = g_values(ngram_hashes(ids, n), self.keys, self.table).mean(axis=-1)
        values[~fresh_contexts(ids, n, self.parameters.history)] = np.nan
        return np.concatenate([np.full(len(ids) - len(values), np.nan), values])

    def _score(self) -> Callable[[GValues], Floats]:
        """The function from g-values (keys, n-grams, layers) to the score of each key."""
        parameters = self.parameters
        if parameters.score == "bayesian":
            assert self.key.fitted is not None
            return Bayesian.of(self.key.fitted, parameters.depth)
        weights = layer_weights(parameters.depth, parameters.score)
        return lambda values: values.mean(axis=1) @ weights


def layer_weights(depth: int, score: str) -> Floats:
    """The weights of the layers, with sum 1: equal, or for "weighted" falling from 10 to 1 as in the paper."""
    weights = np.linspace(10, 1, depth) if score == "weighted" else np.ones(depth)
    return np.asarray(weights / weights.sum())


def _accumulated(hashes: NDArray[np.uint64], data: NDArray[np.uint64]) -> NDArray[np.uint64]:
    with np.errstate(over="ignore"):
        return (hashes + data) * _MULTIPLIER + _ONE


def ngram_hashes(ids: Ids, n: int) -> NDArray[np.uint64]:
    """The hash of each n-gram."""
    if len(ids) < n:
        return np.empty(0, np.uint64)
    runs = np.lib.stride_tricks.sliding_window_view(ids.astype(np.uint64), n)
    hashes = np.ones(len(runs), np.uint64)
    for place in runs.T:
        hashes = _accumulated(hashes, place)
    return hashes


def g_values(hashes: NDArray[np.uint64], keys: NDArray[np.uint64], table: GValues) -> GValues:
    """The g-values (n-grams, layers); with a first axis of several keys, (keys, n-grams, layers)."""
    places = _accumulated(hashes[:, None], keys)
    return np.asarray(table[places % np.uint64(len(table))])


def fresh_contexts(ids: Ids, n: int, history: int) -> NDArray[np.bool_]:
    """Whether the context of each n-gram, its first n - 1 tokens, is not among the `history` contexts before it."""
    last: dict[tuple[int, ...], int] = {}
    fresh = np.ones(max(0, len(ids) - n + 1), bool)
    for i in range(len(fresh)):
        context = tuple(ids[i : i + n - 1].tolist())
        fresh[i] = i - last.get(context, i - history - 1) > history
        last[context] = i
    return fresh


@dataclass(frozen=True)
class Bayesian:
    """The trained detector of transformers: the log-odds that a text is marked, from its g-values."""

    beta: Floats
    delta: Floats
    prior: float

    @classmethod
    def of(cls, fitted: Fitted, depth: int) -> Bayesian:
        """The detector from learned data; raises KeyFileError if these are not a detector of that depth."""
        parts = {name.rpartition(".")[2]: array for name, array in fitted.arrays.items()}
        try:
            beta, delta = parts["beta"].reshape(depth), parts["delta"].reshape(depth, depth)
            chance = float(np.clip(parts["prior"].reshape(-1)[0], 1e-5, 1 - 1e-5))
        except (KeyError, ValueError, IndexError):
            raise KeyFileError(f"the learned data are not a Bayesian detector of {depth} layers") from None
        # The latent variable of a layer depends only on the layers before it.
        return cls(beta.astype(np.float64), np.tril(delta.astype(np.float64), -1), math.log(chance / (1 - chance)))

    def __call__(self, values: GValues) -> Floats:
        ones = values.astype(np.float64)
        two = 1 / (1 + np.exp(-(ones @ self.delta.T + self.beta)))
        odds = np.log((ones + 0.5) * two + 1 - two)
        return np.asarray(odds.sum(axis=(1, 2)) + self.prior)


class Tournament(Marker):
    """Runs the processor of transformers over the nucleus of each row. The contexts seen so far are kept here, not there."""

    def __init__(self, processor: SynthIDTextWatermarkLogitsProcessor, history: int) -> None:
        self._processor, self._history = processor, history
        self._context: torch.Tensor | None = None
        self._seen: torch.Tensor | None = None

    def choose(self, step: TokenStep) -> torch.Tensor:
        return step.sampled(self.played(step))

    def played(self, step: TokenStep) -> torch.Tensor:
        """The log-probabilities after the tournament, or those before it where the context has occurred before."""
        import torch

        processor = self._processor
        if self._context is None or self._seen is None:
            rows = len(step.tokens)
            self._context = torch.zeros((rows, processor.ngram_len - 1), dtype=torch.long, device=step.tokens.device)
            self._seen = torch.zeros((rows, self._history), dtype=torch.long, device=step.tokens.device)
        else:
            self._context = torch.cat([self._context[:, 1:], step.text_ids[:, -1:]], dim=1)
        hashes, context = processor._compute_keys(self._context, step.tokens)
        marked = processor.update_scores(step.logs, processor.sample_g_values(hashes).to(step.logs.dtype))
        again = (self._seen == context[:, None]).any(dim=1, keepdim=True)
        self._seen = torch.cat([context[:, None], self._seen[:, :-1]], dim=1)
        return torch.where(again, step.logs, marked)

    def keep(self, rows: torch.Tensor) -> None:
        if self._context is not None and self._seen is not None:
            self._context, self._seen = self._context[rows], self._seen[rows]
