"""PMark (Huo et al., 2025): secret bits decide whether a sentence lies above or below the median of each channel.

A channel is the cosine with a secret vector. Over random bits both halves of the model's distribution are equally likely, so
the watermark does not change that distribution. The median is estimated by sampling from the model ("sampled"), which
detection must then do too, or taken to be 0 ("prior").
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from alimark.core._util.arrays import Floats
from alimark.core.detection.building import Statistic
from alimark.core.frozen.text.splitting import splitter
from alimark.core.generation.candidates import FirstSentence, Text
from alimark.core.generation.selection import Weight
from alimark.core.generation.settings import GenerationSettings
from alimark.core.keys.key import Key
from alimark.core.llm.base import LLM, Request, Sampling
from alimark.core.llm.requests import answer_each
from alimark.core.parameters import Presets, SchemeParameters
from alimark.errors import ContextFull, KeyFileError, LLMError
from alimark.lab.rivals.sentence import SentenceRival, count_z, null_z, orthonormal_rows, unit_rows, weights

Above = NDArray[np.bool_]

_KEYS_A_CHUNK = 1024


@dataclass(frozen=True)
class PMarkParameters(SchemeParameters):
    """The parameters of a PMark key, with the defaults of its paper.

    `median` is "prior", which takes it to be 0, or "sampled", which estimates it from `samples` draws of the model.
    """

    scheme = "pmark"
    presets: ClassVar[Presets] = {"paper": {"median": "sampled"}}
    embeds = True
    earlier: ClassVar[Mapping[str, object]] = {"estimator": "sample", "decay_from": "threshold"}

    channels: int = 4
    median: str = "prior"
    samples: int = 64
    decay: float = 250.0
    threshold: float = 0.001
    """The distance on the wrong side of the median up to which a sentence counts in full."""
    estimator: str = "harrell-davis"
    """How a median is estimated from samples: "harrell-davis", a weighted mean of all of them, or "sample", their median."""
    decay_from: str = "median"
    """Where the decay of the soft count begins: "median", as in the code of the authors, where the count drops at the
    threshold; or "threshold", where it does not drop."""

    def __post_init__(self) -> None:
        if not 1 <= self.channels <= 16:
            raise KeyFileError(f"channels must be from 1 to 16, not {self.channels}")
        self.check_choice("median", "prior", "sampled")
        if not 2 <= self.samples <= 4096:
            raise KeyFileError(f"samples must be from 2 to 4096, not {self.samples}")
        if not 0 < self.decay <= 1e6 or not 0 <= self.threshold < 1:
            raise KeyFileError("decay must be between 0 and a million, and threshold between 0 and 1")
        self.check_choice("estimator", "harrell-davis", "sample")
        self.check_choice("decay_from", "median", "threshold")


def unpack(data: bytes, *shape: int) -> Above:
    """The bits of the bytes as an array."""
    count = int(np.prod(shape))
    return np.unpackbits(np.frombuffer(data, np.uint8))[:count].reshape(shape).astype(bool)


def soft_counts(
    cosines: Floats, medians: Floats, bits: Above, decay: float, threshold: float, decay_from: str = "median"
) -> Floats:
    """The soft count of each cosine: 1 on the side of the median that the bit names or within `threshold` of it, else less than
    1 by exponential decay with the distance from the median or, with `decay_from="threshold"`, from the threshold."""
    beyond = np.where(bits, medians - cosines, cosines - medians)
    if decay_from == "threshold":
        return np.asarray(np.exp(-decay * np.maximum(beyond - threshold, 0.0)))
    return np.asarray(np.where(beyond <= threshold, 1.0, np.exp(-decay * np.maximum(beyond, 0.0))))


@lru_cache(maxsize=256)
def _harrell_davis_weights(count: int) -> Floats:
    """The weight of each of `count` sorted values: the probabilities that the beta distribution with both parameters equal to
    (count + 1) / 2 gives to equal parts of the interval from 0 to 1."""
    # With x = sin(angle)^2 the density becomes sin(2 angle)^count, which Gauss-Legendre quadrature integrates exactly enough.
    nodes, shares = np.polynomial.legendre.leggauss(32)
    borders = np.arcsin(np.sqrt(np.arange(count + 1) / count))
    middles, halves = (borders[1:] + borders[:-1]) / 2, np.diff(borders) / 2
    angles = middles[:, None] + halves[:, None] * nodes
    weights = halves * (np.sin(2 * angles) ** count @ shares)
    return np.asarray(weights / weights.sum())


def harrell_davis(values: Floats) -> Floats:
    """The Harrell-Davis estimate of the median of each column: a weighted mean of the sorted values.

    It is less noisy than the sample median, which uses only one or two of the values.
    """
    return np.asarray(_harrell_davis_weights(len(values)) @ np.sort(values, axis=0))


def median_of(values: Floats, estimator: str) -> Floats:
    """The median of each column by the estimator that a key names."""
    return harrell_davis(values) if estimator == "harrell-davis" else np.asarray(np.median(values, axis=0))


class ChannelRule:
    """Keeps the candidates on the right side of each channel's median, channel by channel, and takes any that is left.

    Where the median is taken to be 0, sampling stops at the first candidate that is right in every channel: draws are
    independent, so it is distributed like a random one of all that are right.
    """

    scheme, embeds, strict = "pmark", True, True

    def __init__(self, key: Key) -> None:
        parameters = key.parameters_as(PMarkParameters)
        self.key, self.size, self.sampled = key, parameters.channels, parameters.median == "sampled"
        self.stops, self._estimator = not self.sampled, parameters.estimator
        self._done = 0

    def bits(self, first: int, count: int) -> Above:
        """The secret bits of `count` sentences from number `first` on, one sentence per row."""
        size = -(-self.size // 8)
        rows = [unpack(self.key.stream("pmark/bits", size, t), self.size) for t in range(first, first + count)]
        return np.array(rows).reshape(count, self.size)

    def null_bits(self, chunk: int, sentences: int) -> Above:
        """The bits of each random key of a chunk: (keys, sentences, channels)."""
        size = -(-_KEYS_A_CHUNK * self.size // 8)
        # One call for each sentence, so that longer texts extend the same keys.
        columns = [
            unpack(self.key.stream("pmark/null", size, chunk, t), _KEYS_A_CHUNK, self.size) for t in range(sentences)
        ]
        return np.stack(columns, axis=1)

    def see(self, vectors: NDArray[np.float32]) -> Floats:
        channels = orthonormal_rows(self.key, "pmark/channels", self.size, vectors.shape[1])
        return np.asarray(unit_rows(vectors) @ channels.T)

    def wave(self, settings: GenerationSettings) -> int:
        return settings.wave or (settings.candidates if self.sampled else 2**self.size)

    def weigh(self, seen: Floats) -> Sequence[Weight]:
        bits = self.bits(self._done, 1)[0]
        kept = np.ones(len(seen), bool)
        matches = np.zeros(len(seen), np.int64)
        for channel, bit in enumerate(bits):
            values = seen[:, channel]
            median = float(median_of(values[kept], self._estimator)) if self.sampled and kept.any() else 0.0
            right = (values >= median) == bit
            matches += right
            kept &= right
        # Candidates that are right in every channel come first, then those that are right in most.
        return weights(matches, (matches + len(bits) * kept).astype(float), kept)

    def chose(self, seen: Floats) -> None:
        self._done += 1


class PMark(SentenceRival):
    """Generates and detects text marked by PMark under one key."""

    scheme = "pmark"
    candidates = 64
    Parameters = PMarkParameters
    rule = ChannelRule

    @classmethod
    def asks_llm(cls, key: Key) -> bool:
        """Whether the medians are sampled from the model that wrote the text."""
        return key.parameters_as(PMarkParameters).median == "sampled"

    def statistic(self, seen: Floats, text: str, sentences: Sequence[str], llm: LLM | None) -> Statistic:
        parameters, rule = self.key.parameters_as(PMarkParameters), self.rule(self.key)
        medians: Floats = np.zeros(seen.shape)
        warnings: tuple[str, ...] = ()
        if rule.sampled and llm is not None:
            medians = self._medians(sentences, llm, parameters.samples)
        elif rule.sampled:
            warnings = (
                "the key's medians are sampled from the model that wrote the text; without it they are taken to be 0",
            )
        total = seen.size
        decay = (parameters.decay, parameters.threshold, parameters.decay_from)
        # The soft count of each sentence and channel if its bit is 0, and if it is 1.
        either = [soft_counts(seen, medians, np.full(seen.shape, bit), *decay) for bit in (False, True)]

        def counts(bits: Above) -> Floats:
            return np.asarray(np.where(bits, either[1], either[0]).sum(axis=(-2, -1)))

        # Random keys have other bits and the same channels.
        null = null_z(lambda chunk, keys: counts(rule.null_bits(chunk, len(seen))[keys]), _KEYS_A_CHUNK, total, 0.5)
        bits = rule.bits(0, len(seen))
        soft = float(counts(bits))
        right = (seen >= medians) == bits
        evidence: dict[str, object] = {
            "counted": total, "right_side": int(right.sum()), "soft_count": round(soft, 3), "expected": total / 2,
            "channels_of_each": right.sum(axis=1).tolist(), "median": "sampled" if rule.sampled and llm else "prior",
        }  # fmt: skip
        return Statistic.of_z(count_z(soft, total, 0.5), null, 0.5**total, evidence, warnings)

    def _medians(self, sentences: Sequence[str], llm: LLM, samples: int) -> Floats:
        """The median of each channel among samples of the model for each sentence.

        The first sentence has no context and gets 0, as do the sentences after which the model has no room.
        """
        cutter, estimator = splitter(self.key.splitter), self.key.parameters_as(PMarkParameters).estimator
        medians = np.zeros((len(sentences), self.rule(self.key).size))
        requests = [Request(" ".join(sentences[:t]), samples, seed=t) for t in range(1, len(sentences))]
        drawn: list[list[str]] = []
        for answer in answer_each(llm, requests, Sampling(), FirstSentence(cutter)) if requests else []:
            if isinstance(answer, LLMError) and not isinstance(answer, ContextFull):
                raise answer
            draws = [] if isinstance(answer, LLMError) else answer
            drawn.append([candidate.unit for candidate in map(Text(cutter).candidate, draws) if not candidate.flaw])
        units = list(dict.fromkeys(unit for some in drawn for unit in some))
        if not units:
            return medians
        seen = dict(zip(units, self.see(self.embedder.embed(units)), strict=True))
        for t, some in enumerate(drawn, 1):
            if some:
                medians[t] = median_of(np.stack([seen[unit] for unit in some]), estimator)
        return medians
