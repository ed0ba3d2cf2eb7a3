"""PMark (Huo et al., 2025): secret bits decide whether a sentence lies above or below the median of each channel.

A channel is the cosine with a secret vector. Over random bits both halves of the model's distribution are equally likely, so
the watermark does not change that distribution. The median is estimated by sampling from the model ("sampled"), which
detection must then do too, or taken to be 0 ("prior").
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from alimark.core._util.arrays import Floats
from alimark.core.detection.building import Statistic
from alimark.core.frozen.arithmetic import orthonormal
from alimark.core.frozen.text.splitting import splitter
from alimark.core.generation.candidates import FirstSentence, Text
from alimark.core.generation.selection import Weight
from alimark.core.keys.key import Key
from alimark.core.llm.base import Draw, Request, Sampling
from alimark.errors import ContextFull, KeyMismatch
from alimark.lab.rivals.parameters.pmark import PMarkParameters
from alimark.lab.rivals.sentence import SentenceRival, count_z, in_chunks

if TYPE_CHECKING:
    from alimark.core.generation.settings import GenerationSettings
    from alimark.core.llm.base import LLM

Bits = NDArray[np.bool_]

_KEYS_A_CHUNK = 1024


def unpack(data: bytes, *shape: int) -> Bits:
    """The bits of the bytes as an array."""
    count = int(np.prod(shape))
    return np.unpackbits(np.frombuffer(data, np.uint8))[:count].reshape(shape).astype(bool)


def soft_counts(
    cosines: Floats, medians: Floats, bits: Bits, decay: float, threshold: float, *, decay_from: str = "median"
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

    Args:
        values: The samples, one per row.

    Returns:
        The estimate for each column, or a single number if `values` has one dimension.

    Example:
        >>> float(harrell_davis(np.array([1.0, 2.0, 3.0])))
        2.0
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
        self._vectors: dict[int, Floats] = {}
        self._done = 0

    def bits(self, first: int, count: int) -> Bits:
        """The secret bits of `count` sentences from number `first` on, one sentence per row."""
        rows = [
            unpack(self.key.stream("pmark/bits", -(-self.size // 8), t), self.size) for t in range(first, first + count)
        ]
        return np.array(rows).reshape(count, self.size)

    def null_bits(self, chunk: int, sentences: int) -> Bits:
        """The bits of each random key of a chunk: (keys, sentences, channels)."""
        size = -(-_KEYS_A_CHUNK * self.size // 8)
        # One call for each sentence, so that longer texts extend the same keys.
        columns = [
            unpack(self.key.stream("pmark/null", size, chunk, t), _KEYS_A_CHUNK, self.size) for t in range(sentences)
        ]
        return np.stack(columns, axis=1)

    def vectors(self, dimension: int) -> Floats:
        """The orthonormal vectors of the channels, one per row."""
        if dimension < self.size:
            raise KeyMismatch(
                f"{self.size} channels need an embedder with at least as many dimensions, but it has {dimension}"
            )
        if dimension not in self._vectors:
            rows = self.key.normals("pmark/channels", self.size, dimension, dimension)
            self._vectors[dimension] = orthonormal(rows[None])[0]
        return self._vectors[dimension]

    def see(self, vectors: NDArray[np.float32]) -> Floats:
        wide = vectors.astype(np.float64)
        wide = wide / np.maximum(np.linalg.norm(wide, axis=1, keepdims=True), 1e-12)
        return np.asarray(wide @ self.vectors(vectors.shape[1]).T)

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
        worths = (
            matches + len(bits) * kept
        )  # candidates that are right in every channel come first, then those that are right in most
        return [
            Weight(*values)
            for values in zip(matches.tolist(), worths.astype(float).tolist(), kept.tolist(), strict=True)
        ]

    def chose(self, seen: Floats) -> None:
        self._done += 1


class PMark(SentenceRival):
    """Generates and detects text marked by PMark under one key."""

    scheme = "pmark"
    candidates = 64
    Parameters = PMarkParameters

    @classmethod
    def rule(cls, key: Key) -> ChannelRule:
        return ChannelRule(key)

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
        # The soft count of each sentence and channel if its bit is 0, and if it is 1.
        either = np.stack([
            soft_counts(
                seen, medians, np.full(seen.shape, bit), parameters.decay, parameters.threshold,
                decay_from=parameters.decay_from,
            )
            for bit in (False, True)
        ])  # fmt: skip

        def counts(bits: Bits) -> Floats:
            return np.asarray(np.where(bits, either[1], either[0]).sum(axis=(-2, -1)))

        def null(first: int, count: int) -> Floats:
            """The z-scores of random keys, which have other bits and the same channels."""
            parts = [
                counts(rule.null_bits(chunk, len(seen))[keys]) for chunk, keys in in_chunks(first, count, _KEYS_A_CHUNK)
            ]
            return np.asarray((np.concatenate(parts) - total / 2) / np.sqrt(total / 4))

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
        drawn = [
            [candidate.unit for candidate in map(Text(cutter).candidate, draws) if not candidate.flaw]
            for draws in _drawn_while_room(requests, llm, FirstSentence(cutter))
        ]
        units = list(dict.fromkeys(unit for some in drawn for unit in some))
        if not units:
            return medians
        seen = dict(zip(units, self.see(self.embedder.embed(units)), strict=True))
        for t, some in enumerate(drawn, 1):
            if some:
                medians[t] = median_of(np.stack([seen[unit] for unit in some]), estimator)
        return medians


def _drawn_while_room(requests: Sequence[Request], llm: LLM, over: FirstSentence) -> list[list[Draw]]:
    """The draws of the first requests, up to the one whose context leaves the model no room; contexts grow.

    All requests are drawn in one call, since a model draws for many contexts in hardly more time than for one. If one has no
    room, the call is repeated for halves.
    """
    try:
        return llm.draw(requests, Sampling(), over) if requests else []
    except ContextFull:
        if len(requests) == 1:
            return []
    half = len(requests) // 2
    drawn = _drawn_while_room(requests[:half], llm, over)
    return drawn if len(drawn) < half else drawn + _drawn_while_room(requests[half:], llm, over)
