"""SAMark (Huo et al., arXiv 2605.25796): every sentence is drawn towards the same secret directions, whatever its position.

A channel is the cosine with a secret direction, times a sign. A candidate scores the sum of tanh(slope x signed cosine) over
the channels, plus a reward for being unlike the sentences before it. Since neither the directions nor the signs depend on
the step or on neighbours, the statistic does not change when sentences change places. It uses the cosines as they are:
centring them by the text's own mean would remove the mark.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from alimark.core._util.arrays import Floats
from alimark.core.detection.building import Statistic
from alimark.core.frozen.arithmetic import orthonormal
from alimark.core.generation.selection import TextOrigin, Weight
from alimark.core.generation.settings import GenerationSettings
from alimark.core.keys.key import Key
from alimark.core.llm.base import LLM
from alimark.core.parameters import Presets, SchemeParameters
from alimark.errors import KeyFileError
from alimark.lab.rivals.sentence import SentenceRival, in_chunks, orthonormal_rows, too_short, unit_rows, weights

_KEYS_A_CHUNK = 256
_NGRAM = 4
_LEAST_SPREAD = 1e-6


@dataclass(frozen=True)
class SAMarkParameters(SchemeParameters):
    """The parameters of a SAMark key, with the defaults of its public code where that has them.

    A candidate scores the sum of tanh(`slope` x signed cosine) over the `channels`. `signs` says whether the sign of a channel
    belongs to the key or is drawn for each text; the detector then infers it. `similarity` and `overlap` are the limits of the
    hard filter, `diversity` and `novelty` the weights of the soft one. A candidate is drawn with a probability proportional to
    exp(`sharpness` x score).
    """

    scheme = "samark"
    presets: ClassVar[Presets] = {"released": {"signs": "text"}}
    embeds = True

    channels: int = 2
    signs: str = "key"
    slope: float = 30.0
    sharpness: float = 80.0
    similarity: float = 0.85
    overlap: float = 0.5
    diversity: float = 0.3
    novelty: float = 0.15

    def __post_init__(self) -> None:
        if not 1 <= self.channels <= 16:
            raise KeyFileError(f"channels must be from 1 to 16, not {self.channels}")
        self.check_choice("signs", "key", "text")
        for name, most in (("slope", 1_000_000), ("sharpness", 1_000_000), ("similarity", 2), ("overlap", 2)):
            if not 0 < self[name] <= most:
                raise KeyFileError(f"{name} must be above 0 and at most {most}, not {self[name]:g}")
        for name in ("diversity", "novelty"):
            if not 0 <= self[name] <= 100:
                raise KeyFileError(f"{name} must be from 0 to 100, not {self[name]:g}")


class AnchorRule:
    """Draws a candidate by its score among those that match the most channels and do not repeat the text so far.

    What the rule sees of a sentence are its cosines with the directions, followed by its unit vector.
    """

    scheme, embeds, stops, strict = "samark", True, False, True

    def __init__(self, key: Key, text_id: str = "") -> None:
        self.key, self.parameters = key, key.parameters_as(SAMarkParameters)
        self.size = self.parameters.channels
        self._text_number = int.from_bytes(hashlib.sha256(text_id.encode("utf-8", "surrogatepass")).digest()[:8], "big")
        self._chosen: list[Floats] = []
        self._words: list[str] = []

    @property
    def signs(self) -> Floats:
        """The sign of each channel, 1 or -1: the key's, or those of this text."""
        index = () if self.parameters.signs == "key" else (self._text_number,)
        return np.where(self.key.uniforms("samark/signs", self.size, *index) < 0.5, -1.0, 1.0)

    def directions(self, dimension: int) -> Floats:
        """The orthonormal directions of the channels, one per row."""
        return orthonormal_rows(self.key, "samark/directions", self.size, dimension)

    def see(self, vectors: NDArray[np.float32]) -> Floats:
        wide = unit_rows(vectors)
        return np.hstack([wide @ self.directions(vectors.shape[1]).T, wide])

    def wave(self, settings: GenerationSettings) -> int:
        return settings.wave or settings.candidates

    def weigh(self, seen: Floats) -> Sequence[Weight]:
        return self.weigh_texts(seen, [""] * len(seen))

    def weigh_texts(self, seen: Floats, units: Sequence[str]) -> Sequence[Weight]:
        parameters = self.parameters
        signed = seen[:, : self.size] * self.signs
        scores = np.tanh(parameters.slope * signed).sum(axis=1) + parameters.novelty * self._novelty(units)
        closest = self._closest(seen[:, self.size :])
        if self._chosen:
            scores = scores + parameters.diversity * (1 - closest)
        kept = np.ones(len(seen), bool)
        for passes in (self._overlaps(units) < parameters.overlap, closest < parameters.similarity):
            kept = kept & passes if (kept & passes).any() else kept  # a filter that nothing passes is left out
        matches = (signed > 0).sum(axis=1)
        # A sample from a softmax is the largest of the scores after Gumbel noise. A candidate that is filtered out or that
        # matches fewer channels comes after all others: scores and noise are far below 100.
        uniforms = self.key.uniforms("samark/draws", len(seen), self._text_number, len(self._chosen))
        noise = -np.log(-np.log(np.maximum(uniforms, 1e-300))) / parameters.sharpness
        worths = scores + noise + 100.0 * matches - 10_000.0 * ~kept
        met = kept & (matches == self.size)
        return weights(matches, worths, met)

    def _closest(self, vectors: Floats) -> Floats:
        """The cosine of each candidate with the most similar sentence so far; -1 where there is none."""
        if not self._chosen:
            return np.full(len(vectors), -1.0)
        return np.asarray((vectors @ np.array(self._chosen).T).max(axis=1))

    def _overlaps(self, units: Sequence[str]) -> Floats:
        """The share of each candidate's sequences of four words that are in the text so far."""
        known = _ngrams(self._words)
        ngrams = [_ngrams(unit.lower().split()) for unit in units]
        return np.array([len(grams & known) / len(grams) if grams else 0.0 for grams in ngrams])

    def _novelty(self, units: Sequence[str]) -> Floats:
        """The share of each candidate's distinct words that are not in the text so far."""
        known = set(self._words)
        words = [set(unit.lower().split()) for unit in units]
        return np.array([len(distinct - known) / len(distinct) if distinct else 0.0 for distinct in words])

    def chose(self, seen: Floats) -> None:
        self._chosen.append(seen[self.size :])

    def chose_text(self, seen: Floats, unit: str) -> None:
        self.chose(seen)
        self._words += unit.lower().split()


def _ngrams(words: Sequence[str]) -> set[tuple[str, ...]]:
    return {tuple(words[i : i + _NGRAM]) for i in range(len(words) - _NGRAM + 1)}


def scores_of(cosines: Floats, signs: Floats | None, slope: float) -> tuple[Floats, Floats]:
    """The z-score of the signed cosines in `cosines`, (..., sentences, channels), and the mean of their tanh.

    Where the signs are not known, each channel gets the sign of the sum of its cosines. The z-score is the mean of
    tanh(slope x signed cosine) over sentences and channels, in units of its standard error.
    """
    if signs is None:
        signs = np.where(cosines.sum(axis=-2, keepdims=True) < 0, -1.0, 1.0)
    values = np.tanh(slope * cosines * signs)
    count = values.shape[-2] * values.shape[-1]
    mean = values.mean(axis=(-2, -1))
    spread = np.maximum(values.std(axis=(-2, -1), ddof=1), _LEAST_SPREAD)
    return np.asarray(mean * np.sqrt(count) / spread), np.asarray(mean)


class SAMark(SentenceRival):
    """Generates and detects text marked by SAMark under one key."""

    scheme = "samark"
    candidates = 64
    Parameters = SAMarkParameters
    rule = AnchorRule

    @classmethod
    def sentence_rule(cls, key: Key, settings: GenerationSettings, origin: TextOrigin) -> AnchorRule:
        return AnchorRule(key, origin.id)

    def statistic(self, seen: Floats, text: str, sentences: Sequence[str], llm: LLM | None) -> Statistic:
        if len(seen) < 2:
            return too_short()
        rule, parameters = self.rule(self.key), self.key.parameters_as(SAMarkParameters)
        cosines, vectors = seen[:, : rule.size], seen[:, rule.size :]
        dimension = vectors.shape[1]
        signs = rule.signs if parameters.signs == "key" else None
        z, mean = scores_of(cosines, signs, parameters.slope)

        def null(first: int, count: int) -> Floats:
            """The z-scores of random keys, which have other directions. A direction is as likely as its opposite."""
            parts = []
            for chunk, keys in in_chunks(first, count, _KEYS_A_CHUNK):
                rows = self.key.normals("samark/null", _KEYS_A_CHUNK * rule.size, dimension, chunk, dimension)
                directions = orthonormal(rows.reshape(_KEYS_A_CHUNK, rule.size, dimension))[keys]
                parts.append(scores_of(vectors @ directions.transpose(0, 2, 1), signs, parameters.slope)[0])
            return np.concatenate(parts)

        used = np.where(cosines.sum(axis=0) < 0, -1.0, 1.0) if signs is None else signs
        aligned = (cosines * used > 0).sum(axis=1)
        evidence: dict[str, object] = {
            "counted": cosines.size, "mean_score": round(float(mean), 4), "aligned": int(aligned.sum()),
            "channels_of_each": aligned.tolist(), "signs": "the key's" if signs is not None else "inferred",
        }  # fmt: skip
        return Statistic.of_z(float(z), null, 0.0, evidence)
