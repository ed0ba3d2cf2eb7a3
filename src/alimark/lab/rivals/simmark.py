"""SimMark (Dabiriaghdam and Wang, EMNLP 2025): the similarity of a sentence to the previous one lies in an interval.

The scheme has no secret: all keys with the same interval mark and detect the same texts. So a p-value cannot come from random
keys. It is the share of random sequences of as many pairs of neighbouring human sentences, drawn from the text that the
interval was learned from, with a count at least as high.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from types import MappingProxyType
from typing import ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from alimark.core._util.arrays import Floats
from alimark.core.detection.building import Statistic
from alimark.core.embedding.base import Embedder
from alimark.core.generation.selection import Weight
from alimark.core.generation.settings import GenerationSettings
from alimark.core.keys.fitted import Fitted
from alimark.core.keys.key import Key
from alimark.core.llm.base import LLM
from alimark.core.parameters import Presets, SchemeParameters
from alimark.errors import AlimarkError, KeyFileError, KeyMismatch, MissingExtra
from alimark.lab.learning import Sentences, embedded, sentences_of
from alimark.lab.rivals.sentence import REJECTION_WAVE, SentenceRival, count_z, null_z, too_short, unit_rows

Vectors = NDArray[np.floating]

_SEQUENCES_A_CHUNK = 1024
_QUANTILES = 2001
MOST_COMPONENTS = 512
DISTANCES = ("cosine", "euclidean")

PUBLISHED_MODEL = "instructor-large"
PUBLISHED_INTERVALS: Mapping[tuple[str, str, int], tuple[float, float]] = MappingProxyType({
    ("Represent the sentence for cosine similarity:", "cosine", 0): (0.68, 0.76),
    ("Represent the sentence for euclidean distance:", "euclidean", 0): (0.4, 0.55),
    ("Represent the sentence for PCA:", "euclidean", 16): (0.28, 0.36),
})  # fmt: skip
"""The intervals of the authors' code, by the instruction before each sentence, the distance and the number of principal
components. They belong to the embedder hkunlp/instructor-large with that instruction, and to no other."""


@dataclass(frozen=True)
class SimMarkParameters(SchemeParameters):
    """The parameters of a SimMark key.

    `lower` and `upper` are the interval, by default the learned one. `decay` is the rate at which the soft count decays outside
    the interval. The preset "paper" has the published interval if the data were learned with the embedder and the instruction
    that it was published for, and else the learned one.
    """

    scheme = "simmark"
    presets: ClassVar[Presets] = {"paper": {}}
    embeds = True

    lower: float | None = None
    upper: float | None = None
    decay: float = 250.0

    @classmethod
    def of(
        cls,
        given: Mapping[str, object],
        *,
        preset: str | None = None,
        fingerprint: str = "",
        fitted: Fitted | None = None,
    ) -> Self:
        """Makes the parameters; with the preset "paper" the published interval is taken where it belongs."""
        wanted = dict(given)
        if preset == "paper" and not {"lower", "upper"} & set(wanted):
            interval = published_interval(fitted)
            wanted |= {} if interval is None else {"lower": interval[0], "upper": interval[1]}
        return super().of(wanted, preset=preset, fingerprint=fingerprint, fitted=fitted)

    def __post_init__(self) -> None:
        for name in ("lower", "upper"):
            value = getattr(self, name)
            if value is not None and (type(value) not in (int, float) or not -1 <= value <= 2):
                raise KeyFileError(f"{name} must be a similarity or a distance, not {value!r}")
        if (self.lower is None) != (self.upper is None):
            raise KeyFileError("lower and upper must be given together, or not at all")
        if self.lower is not None and self.upper is not None and self.lower >= self.upper:
            raise KeyFileError(f"an interval from {self.lower:g} to {self.upper:g} is empty")
        if not 0 < self.decay <= 1e6:
            raise KeyFileError(f"decay must be between 0 and a million, not {self.decay:g}")

    def check_fitted(self, fitted: Fitted | None) -> None:
        """Checks that there are a learned interval and similarities of human sentences; raises KeyFileError if not."""
        if fitted is None:
            raise KeyFileError(
                "simmark needs the similarities of human sentences under its embedder; measure them: "
                "alimark fit simmark --human texts.jsonl -o interval.npz, and give them (--fitted interval.npz)"
            )
        arrays, empty = fitted.arrays, np.empty(0)
        interval, similarities = arrays.get("interval", empty), arrays.get("similarities", empty)
        whole = interval.shape == (2,) and similarities.ndim == 1 and len(similarities)
        reducible = "components" not in arrays or ("mean" in arrays and arrays["components"].ndim == 2)
        if fitted.origin.get("distance") not in DISTANCES or not whole or not reducible:
            raise KeyFileError(
                "the learned data are no interval and similarities of human sentences; learn them again: alimark fit simmark"
            )


def published_interval(fitted: Fitted | None) -> tuple[float, float] | None:
    """The interval that was published for the embedder, the distance and the components of learned data; None for others."""
    if fitted is None:
        return None
    model, _, prefix = str(fitted.origin.get("embedder", "")).partition("#")
    if model.rpartition("/")[2] != PUBLISHED_MODEL:
        return None
    distance, components = fitted.origin.get("distance"), fitted.origin.get("components")
    return PUBLISHED_INTERVALS.get((prefix, str(distance), components if isinstance(components, int) else -1))


class Measure:
    """The similarity of two sentences: the cosine or the Euclidean distance of embeddings or of their principal components."""

    def __init__(self, distance: str, mean: Vectors | None, components: Vectors | None) -> None:
        self.distance, self._mean, self._components = distance, mean, components

    def see(self, vectors: NDArray[np.float32]) -> Floats:
        """Normalises embeddings and reduces them to principal components where these were learned."""
        wide = unit_rows(vectors)
        if self._components is None or self._mean is None:
            return wide
        if self._components.shape[1] != wide.shape[1]:
            raise KeyMismatch(
                f"the key's components have {self._components.shape[1]} dimensions, but the embedder has {wide.shape[1]}; use "
                "the embedder that the key names"
            )
        return np.asarray((wide - self._mean) @ self._components.T.astype(np.float64))

    def between(self, rows: Floats, others: Floats) -> Floats:
        """The similarity of each row to the row of `others` at the same place."""
        if self.distance == "euclidean":
            return np.asarray(np.linalg.norm(rows - others, axis=-1))
        lengths = np.linalg.norm(rows, axis=-1) * np.linalg.norm(others, axis=-1)
        return np.asarray((rows * others).sum(axis=-1) / np.maximum(lengths, 1e-12))


def outside(values: Floats, lower: float, upper: float) -> Floats:
    """The distance of each value from the interval; 0 inside it."""
    return np.maximum(np.maximum(lower - values, values - upper), 0.0)


def soft_counts(values: Floats, lower: float, upper: float, decay: float) -> Floats:
    """The soft count of the paper: 1 inside the interval, outside it an exponential decay with the distance."""
    return np.asarray(np.exp(-decay * outside(values, lower, upper)))


class IntervalRule:
    """Accepts a sentence whose similarity to the previous one lies in the interval, and any first sentence."""

    scheme, embeds, stops, strict, size = "simmark", True, True, True, 1

    def __init__(self, key: Key) -> None:
        parameters = key.parameters_as(SimMarkParameters)
        assert key.fitted is not None
        arrays, self.decay = key.fitted.arrays, parameters.decay
        self.measure = Measure(str(key.fitted.origin["distance"]), arrays.get("mean"), arrays.get("components"))
        self.human = arrays["similarities"].astype(np.float64)
        learned = arrays["interval"]
        self.lower = float(learned[0]) if parameters.lower is None else parameters.lower
        self.upper = float(learned[1]) if parameters.upper is None else parameters.upper
        self._before: Floats | None = None

    @property
    def share(self) -> float:
        """The share of human pairs in the interval, kept away from 0 and 1 so that the variance of the count is not 0."""
        within = float(((self.human >= self.lower) & (self.human <= self.upper)).mean())
        return min(max(within, 1 / len(self.human)), 1 - 1 / len(self.human))

    def see(self, vectors: NDArray[np.float32]) -> Floats:
        return self.measure.see(vectors)

    def wave(self, settings: GenerationSettings) -> int:
        return 1 if self._before is None else settings.wave or REJECTION_WAVE

    def weigh(self, seen: Floats) -> Sequence[Weight]:
        if self._before is None:
            return [Weight(0, 0.0, True)] * len(seen)
        away = outside(self.measure.between(seen, self._before[None]), self.lower, self.upper)
        return [Weight(int(distance == 0), -distance, distance == 0) for distance in away.tolist()]

    def chose(self, seen: Floats) -> None:
        self._before = seen


class SimMark(SentenceRival):
    """Generates and detects text marked by SimMark under one key."""

    scheme = "simmark"
    Parameters = SimMarkParameters
    rule = IntervalRule

    def statistic(self, seen: Floats, text: str, sentences: Sequence[str], llm: LLM | None) -> Statistic:
        if len(seen) < 2:
            return too_short()
        rule = self.rule(self.key)
        steps, share = len(seen) - 1, rule.share
        similarities = rule.measure.between(seen[1:], seen[:-1])
        counts = soft_counts(similarities, rule.lower, rule.upper, rule.decay)
        human = soft_counts(rule.human, rule.lower, rule.upper, rule.decay)

        def null_counts(chunk: int, rows: slice) -> Floats:
            drawn = self.key.uniforms("simmark/null", _SEQUENCES_A_CHUNK * steps, chunk, steps)
            picked = (drawn * len(human)).astype(np.int64).reshape(_SEQUENCES_A_CHUNK, steps)[rows]
            return np.asarray(human[picked].sum(axis=1))

        null = null_z(null_counts, _SEQUENCES_A_CHUNK, steps, share)
        evidence: dict[str, object] = {
            "counted": steps, "in_interval": int((counts == 1).sum()), "soft_count": round(float(counts.sum()), 3),
            "expected": round(share * steps, 2), "interval": [round(rule.lower, 4), round(rule.upper, 4)],
            "similarities": [round(float(value), 4) for value in similarities],
            "null": "pairs of human sentences, no random keys",
        }  # fmt: skip
        return Statistic.of_z(count_z(float(counts.sum()), steps, share), null, share**steps, evidence)

    @classmethod
    def check_fit(
        cls, texts: Iterable[str], *, distance: str = "cosine", components: int = 0,
        closeness: tuple[float, float] = (0.5, 0.7),
    ) -> None:  # fmt: skip
        """Check the texts and options of `fit`; raises AlimarkError."""
        _corpus(texts, distance, closeness)
        if components and find_spec("sklearn") is None:
            raise MissingExtra("scikit-learn", "lab")

    @classmethod
    def fit(
        cls, texts: Iterable[str], embedder: Embedder, *, distance: str = "cosine", components: int = 0,
        closeness: tuple[float, float] = (0.5, 0.7),
    ) -> Fitted:  # fmt: skip
        """Learns the interval: between two quantiles of the similarity of neighbouring sentences in human text.

        The paper chooses an interval by eye that contains few human pairs and that the model can still reach. The default here
        contains a fifth of the human pairs, just above the median, which a small model can reach after most sentences. The
        texts need at least 100 pairs. `components` is the number of principal components that embeddings are reduced to, with
        0 for no reduction. Of `closeness`, the two quantiles, 1 is the closest pair.
        """
        low, high = closeness
        corpus, neighbours = _corpus(texts, distance, closeness)
        vectors = embedded(corpus.sentences, embedder)
        principal = _principal(vectors, components) if components else {}
        measure = Measure(distance, principal.get("mean"), principal.get("components"))
        seen = measure.see(vectors)
        values = measure.between(seen[neighbours + 1], seen[neighbours])
        shares = (low, high) if distance == "cosine" else (1 - high, 1 - low)
        arrays: dict[str, Vectors] = {
            "interval": np.quantile(values, shares).astype("<f8"),
            "similarities": np.quantile(values, (np.arange(_QUANTILES) + 0.5) / _QUANTILES).astype("<f8"),
            **principal,
        }
        origin = corpus.origin(embedder) | {
            "pairs": len(neighbours), "distance": distance, "components": components, "closeness": [low, high],
            "interval": [round(value, 4) for value in arrays["interval"].tolist()],
        }  # fmt: skip
        return Fitted(cls.scheme, arrays, origin)


def _corpus(texts: Iterable[str], distance: str, closeness: tuple[float, float]) -> tuple[Sentences, NDArray[np.intp]]:
    """The sentences to learn from, and the places of those that another one of the same text follows; raises AlimarkError."""
    low, high = closeness
    if distance not in DISTANCES:
        raise AlimarkError(f"distance must be cosine or euclidean, not {distance!r}")
    if not 0 <= low < high <= 1:
        raise AlimarkError(
            f"closeness must be two increasing numbers from 0 to 1, such as 0.5 and 0.7, not {low:g} and {high:g}"
        )
    corpus = sentences_of(texts)
    numbers = np.array(corpus.texts)
    neighbours = np.flatnonzero(numbers[1:] == numbers[:-1])
    if len(neighbours) < 100:
        raise AlimarkError(f"{len(neighbours)} pairs of sentences are too few to learn from; give at least 100")
    return corpus, neighbours


def _principal(vectors: NDArray[np.float32], components: int) -> dict[str, Vectors]:
    """The mean and the first principal components of normalised sentence embeddings, by scikit-learn."""
    try:
        from sklearn.decomposition import PCA
    except ImportError:
        raise MissingExtra("scikit-learn", "lab") from None
    if not 1 <= components <= min(MOST_COMPONENTS, *vectors.shape):
        raise AlimarkError(f"{components} components cannot be learned from {len(vectors)} sentences of this embedder")
    learned = PCA(components, svd_solver="full").fit(unit_rows(vectors))
    return {"mean": learned.mean_.astype("<f4"), "components": learned.components_.astype("<f4")}
