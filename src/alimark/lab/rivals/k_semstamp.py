"""k-SemStamp (Hou et al., ACL 2024): SemStamp with k-means clusters of domain text as regions, not random ones."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from alimark.core._util.arrays import Floats
from alimark.core.keys.fitted import Fitted
from alimark.core.keys.key import Key
from alimark.core.schemes._fit import Sentences, embedded, sentences_of
from alimark.errors import AlimarkError, KeyMismatch, MissingExtra
from alimark.lab.rivals._regions import Located, Mask, RegionRule, RegionWatermark
from alimark.lab.rivals.parameters.k_semstamp import KSemStampParameters

if TYPE_CHECKING:
    from alimark.core.embedding.base import Embedder


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
        return _unit(vectors.astype(np.float64)) @ _unit(self._centres).T

    def locate(self, seen: Floats) -> Located:
        """The nearest centre; the margin is the difference between the cosines of the two nearest ones."""
        ordered = np.sort(seen, axis=1)
        return Located(np.argmax(seen, axis=1), ordered[:, -1] - ordered[:, -2])

    def shortfall(self, seen: Floats, valid: Mask) -> Floats:
        return np.asarray(seen.max(axis=1) - seen[:, valid].max(axis=1))


def _unit(rows: Floats) -> Floats:
    return np.asarray(rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12))


class KSemStamp(RegionWatermark):
    """Generates and detects text marked by k-SemStamp under one key."""

    scheme = "k-semstamp"
    Parameters = KSemStampParameters

    @classmethod
    def rule(cls, key: Key) -> CentreRule:
        return CentreRule(key)

    fit_libraries = (("sklearn", "fit"),)

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
            raise MissingExtra("scikit-learn", "fit") from None
        corpus = _corpus(texts, regions)
        vectors = _unit(embedded(corpus.sentences, embedder).astype(np.float64))
        learned = KMeans(regions, n_init=10, random_state=seed).fit(vectors)
        centres = _unit(learned.cluster_centers_).astype("<f4")
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
