"""SemStamp and k-SemStamp (Hou et al., NAACL and ACL 2024): watermarks by regions of the embedding space.

The key and the region of the previous sentence decide which regions are valid. SemStamp divides the space by random
hyperplanes, k-SemStamp by the k-means clusters of domain text.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from alimark.core._util.arrays import Floats, Ints
from alimark.core.detection.building import Statistic
from alimark.core.embedding.base import Embedder
from alimark.core.frozen.arithmetic import halving_sum
from alimark.core.generation.selection import Weight
from alimark.core.generation.settings import GenerationSettings
from alimark.core.keys.fitted import Fitted
from alimark.core.keys.key import Key
from alimark.core.llm.base import LLM
from alimark.core.parameters import Presets, SchemeParameters
from alimark.errors import AlimarkError, KeyFileError, KeyMismatch, MissingExtra
from alimark.lab.learning import Sentences, embedded, sentences_of
from alimark.lab.rivals import sentence


@dataclass(frozen=True)
class SemStampParameters(SchemeParameters):
    """The parameters of a SemStamp key, with the defaults of its paper.

    `ratio` is the share of valid regions, `margin` the least absolute cosine of a sentence with any normal.
    """

    scheme = "semstamp"
    presets: ClassVar[Presets] = {"paper": {"margin": 0.01}}
    embeds = True

    hyperplanes: int = 3
    ratio: float = 0.25
    margin: float = 0.02

    def __post_init__(self) -> None:
        if not 1 <= self.hyperplanes <= 12:
            raise KeyFileError(f"hyperplanes must be from 1 to 12, not {self.hyperplanes}")
        if not 0 <= self.margin < 1:
            raise KeyFileError(f"margin, a cosine, must be at least 0 and below 1, not {self.margin:g}")
        valid_count(self.ratio, 2**self.hyperplanes)


def valid_count(ratio: float, regions: int) -> int:
    """The number of valid regions among all; raises KeyFileError if none or all would be valid."""
    count = round(ratio * regions)
    if not 1 <= count < regions:
        raise KeyFileError(
            f"a valid ratio of {ratio:g} of {regions} regions leaves {count} valid ones; change one of them"
        )
    return count


@dataclass(frozen=True)
class KSemStampParameters(SchemeParameters):
    """The parameters of a k-SemStamp key, with the defaults of its paper. There are as many regions as learned centres."""

    scheme = "k-semstamp"
    presets: ClassVar[Presets] = {"paper": {}}
    embeds = True

    ratio: float = 0.25
    margin: float = 0.01

    def __post_init__(self) -> None:
        if not 0 < self.ratio < 1:
            raise KeyFileError(f"ratio must be between 0 and 1, not {self.ratio:g}")
        if not 0 <= self.margin < 1:
            raise KeyFileError(f"margin, a difference of cosines, must be at least 0 and below 1, not {self.margin:g}")

    def check_fitted(self, fitted: Fitted | None) -> None:
        """Checks that there are learned centres, enough for the ratio; raises KeyFileError if not."""
        if fitted is None:
            raise KeyFileError(
                "k-semstamp needs regions learned from text of the domain; make them: "
                "alimark fit k-semstamp --human texts.jsonl -o regions.npz, and give them (--fitted regions.npz)"
            )
        centres = fitted.arrays.get("centres")
        if centres is None or centres.ndim != 2 or len(centres) < 2:
            raise KeyFileError(
                "the learned data are not a matrix of centres, one per row; learn them again: alimark fit k-semstamp"
            )
        valid_count(self.ratio, len(centres))


Mask = NDArray[np.bool_]

_KEYS_A_CHUNK = 1024


def smallest(numbers: Floats, count: int) -> Mask:
    """Marks the `count` smallest numbers of each row. For random numbers this is a random choice."""
    ranks = np.argsort(np.argsort(numbers, axis=-1, kind="stable"), axis=-1)
    return np.asarray(ranks < count)


class RegionRule(ABC):
    """Accepts a sentence that lies in a valid region, further from its border than the margin.

    The key decides which regions are valid, for each region of the previous sentence. Any first sentence is accepted.
    """

    embeds, stops, strict, size = True, True, True, 1

    def __init__(self, key: Key, regions: int, ratio: float, margin: float) -> None:
        self.key, self.scheme, self.regions, self.margin = key, key.scheme, regions, margin
        self.valid_regions = valid_count(ratio, regions)
        self._before: int | None = None

    @abstractmethod
    def see(self, vectors: NDArray[np.float32]) -> Floats: ...

    @abstractmethod
    def locate(self, seen: Floats) -> tuple[Ints, Floats]:
        """The region of each sentence, and its distance from the border of that region."""

    @abstractmethod
    def shortfall(self, seen: Floats, valid: Mask) -> Floats:
        """The distance of each sentence from the nearest valid region."""

    def wave(self, settings: GenerationSettings) -> int:
        return 1 if self._before is None else settings.wave or sentence.REJECTION_WAVE

    def valid(self, before: int) -> Mask:
        """Whether each region is valid after the region `before`."""
        return smallest(self.key.uniforms(f"{self.scheme}/valid", self.regions, before), self.valid_regions)

    def null_valid(self, before: int, chunk: int) -> Mask:
        """The same for each random key of a chunk, one per row."""
        numbers = self.key.uniforms(f"{self.scheme}/null", _KEYS_A_CHUNK * self.regions, chunk, before)
        return smallest(numbers.reshape(_KEYS_A_CHUNK, self.regions), self.valid_regions)

    def weigh(self, seen: Floats) -> Sequence[Weight]:
        if self._before is None:
            return [Weight(0, 0.0, True)] * len(seen)
        valid = self.valid(self._before)
        regions, margins = self.locate(seen)
        good = valid[regions]
        worths = np.where(good, margins, -self.shortfall(seen, valid))
        met = good & (margins > self.margin)
        return sentence.weights(good.astype(int), worths, met)

    def chose(self, seen: Floats) -> None:
        self._before = int(self.locate(seen[None])[0][0])


class RegionWatermark(sentence.SentenceRival):
    """A z-test on the number of sentences that lie in a region valid after the previous sentence."""

    rule: ClassVar[type[HyperplaneRule | CentreRule]]

    def statistic(self, seen: Floats, text: str, sentences: Sequence[str], llm: LLM | None) -> Statistic:
        if len(seen) < 2:
            return sentence.too_short()
        rule = self.rule(self.key)
        regions = rule.locate(seen)[0]
        steps, share = len(regions) - 1, rule.valid_regions / rule.regions
        followed = np.zeros((rule.regions, rule.regions), np.int64)
        np.add.at(followed, (regions[:-1], regions[1:]), 1)
        met = {int(before): followed[before] for before in np.unique(regions[:-1])}
        valid = sum(int(row[rule.valid(before)].sum()) for before, row in met.items())

        def counts(chunk: int, keys: slice) -> Floats:
            """The counts of random keys, which choose other valid regions; the regions themselves stay."""
            return np.asarray(sum(rule.null_valid(before, chunk)[keys] @ row for before, row in met.items()))

        null = sentence.null_z(counts, _KEYS_A_CHUNK, steps, share)
        evidence: dict[str, object] = {"counted": steps, "valid": valid, "expected": round(share * steps, 2),
                                    "regions": regions.tolist()}  # fmt: skip
        # A pair of regions that occurs twice is valid twice or not at all, so only distinct pairs lower the p-value.
        return Statistic.of_z(sentence.count_z(valid, steps, share), null, share ** int((followed > 0).sum()), evidence)


class HyperplaneRule(RegionRule):
    """Reduces a sentence to its cosines with the normals of the hyperplanes; its region is the pattern of their signs."""

    def __init__(self, key: Key) -> None:
        parameters = key.parameters_as(SemStampParameters)
        super().__init__(key, 2**parameters.hyperplanes, parameters.ratio, parameters.margin)
        self.hyperplanes = parameters.hyperplanes
        self._weights = 2 ** np.arange(parameters.hyperplanes)[::-1]

    def see(self, vectors: NDArray[np.float32]) -> Floats:
        count, dimension = self.hyperplanes, vectors.shape[1]
        # As in the paper the normals of the hyperplanes are independent, not orthogonal.
        rows = sentence.secret_rows(self.key, "semstamp/hyperplanes", count, dimension, "hyperplanes")
        normals = rows / np.sqrt(halving_sum(rows * rows))[:, None]
        return np.asarray(sentence.unit_rows(vectors) @ normals.T)

    def locate(self, seen: Floats) -> tuple[Ints, Floats]:
        return (seen > 0) @ self._weights, np.abs(seen).min(axis=1)

    def shortfall(self, seen: Floats, valid: Mask) -> Floats:
        """The sum of the absolute cosines whose signs differ from those of the nearest valid region."""
        signs = (np.flatnonzero(valid)[:, None] // self._weights) % 2 == 1
        wrong = (seen > 0)[:, None, :] != signs[None]
        return np.asarray((wrong * np.abs(seen)[:, None, :]).sum(axis=2).min(axis=1))


class SemStamp(RegionWatermark):
    """Generates and detects text marked by SemStamp under one key."""

    scheme = "semstamp"
    Parameters = SemStampParameters
    rule = HyperplaneRule


class CentreRule(RegionRule):
    """Reduces a sentence to its cosines with the centres; its region is that of the nearest centre."""

    def __init__(self, key: Key) -> None:
        parameters = key.parameters_as(KSemStampParameters)
        assert key.fitted is not None
        self._centres = key.fitted.arrays["centres"].astype(np.float64)
        super().__init__(key, len(self._centres), parameters.ratio, parameters.margin)

    def see(self, vectors: NDArray[np.float32]) -> Floats:
        if vectors.shape[1] != self._centres.shape[1]:
            raise KeyMismatch(
                f"the key's centres have {self._centres.shape[1]} dimensions, but the embedder has {vectors.shape[1]}; use the "
                "embedder that the key names"
            )
        return sentence.unit_rows(vectors) @ sentence.unit_rows(self._centres).T

    def locate(self, seen: Floats) -> tuple[Ints, Floats]:
        """The nearest centre; the margin is the difference between the cosines of the two nearest ones."""
        ordered = np.sort(seen, axis=1)
        return np.argmax(seen, axis=1), ordered[:, -1] - ordered[:, -2]

    def shortfall(self, seen: Floats, valid: Mask) -> Floats:
        return np.asarray(seen.max(axis=1) - seen[:, valid].max(axis=1))


class KSemStamp(RegionWatermark):
    """Generates and detects text marked by k-SemStamp under one key."""

    scheme = "k-semstamp"
    Parameters = KSemStampParameters
    rule = CentreRule

    fit_libraries = (("sklearn", "lab"),)

    @classmethod
    def check_fit(cls, texts: Iterable[str], *, regions: int = 8, seed: int = 1) -> None:
        """Check the texts and options of `fit`; raises AlimarkError."""
        _corpus(texts, regions)

    @classmethod
    def fit(cls, texts: Iterable[str], embedder: Embedder, *, regions: int = 8, seed: int = 1) -> Fitted:
        """Learns the regions: the k-means centres of normalised sentence embeddings, by scikit-learn."""
        try:
            from sklearn.cluster import KMeans
        except ImportError:
            raise MissingExtra("scikit-learn", "lab") from None
        corpus = _corpus(texts, regions)
        vectors = sentence.unit_rows(embedded(corpus.sentences, embedder))
        learned = KMeans(regions, n_init=10, random_state=seed).fit(vectors)
        centres = sentence.unit_rows(learned.cluster_centers_).astype("<f4")
        sizes = np.bincount(learned.labels_, minlength=regions).tolist()
        origin = corpus.origin(embedder) | {"regions": regions, "seed": seed, "sizes": sizes}
        return Fitted(cls.scheme, {"centres": centres}, origin)


def _corpus(texts: Iterable[str], regions: int) -> Sentences:
    """The sentences to learn from; raises AlimarkError if they are too few."""
    if not 2 <= regions <= 4096:
        raise AlimarkError(f"regions must be from 2 to 4096, not {regions}")
    corpus = sentences_of(texts)
    if len(corpus.sentences) < 10 * regions:
        raise AlimarkError(
            f"{len(corpus.sentences)} sentences are too few for {regions} regions; give at least ten for each"
        )
    return corpus
