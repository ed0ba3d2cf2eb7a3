"""k-SemStamp (Hou et al., ACL 2024): SemStamp with the k-means regions of domain text in place of random ones."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from alimark._util.arrays import Floats
from alimark.errors import AlimarkError, KeyFileError, KeyMismatch, MissingExtra
from alimark.keys.fitted import Fitted
from alimark.keys.key import Key
from alimark.schemes._fit import embedded, sentences_of
from alimark.schemes._regions import Located, Mask, RegionRule, RegionWatermark, valid_count

if TYPE_CHECKING:
    from alimark.embedding.base import Embedder


@dataclass(frozen=True)
class Parameters:
    """The paper's; as many regions as were learned, eight by default."""

    ratio: float = 0.25
    margin: float = 0.01

    def __post_init__(self) -> None:
        if not 0 < self.ratio < 1:
            raise KeyFileError(f"ratio lies between 0 and 1, not at {self.ratio:g}")
        if not 0 <= self.margin < 1:
            raise KeyFileError(f"margin is a difference of cosines and lies between 0 and 1, not at {self.margin:g}")


class CentreRule(RegionRule):
    """A sentence is seen as its cosines with the centres; its region is the nearest one's."""

    def __init__(self, key: Key) -> None:
        own = Parameters(**key.parameters)
        assert key.fitted is not None
        self._centres = key.fitted.arrays["centres"].astype(np.float64)
        super().__init__(key, len(self._centres), own.ratio, own.margin)

    def see(self, vectors: NDArray[np.float32]) -> Floats:
        if vectors.shape[1] != self._centres.shape[1]:
            raise KeyMismatch(f"the centres have {self._centres.shape[1]} dimensions, not {vectors.shape[1]}")
        return _unit(vectors.astype(np.float64)) @ _unit(self._centres).T

    def locate(self, seen: Floats) -> Located:
        """The margin is by how much the nearest centre is nearer than the next."""
        ordered = np.sort(seen, axis=1)
        return Located(np.argmax(seen, axis=1), ordered[:, -1] - ordered[:, -2])

    def shortfall(self, seen: Floats, valid: Mask) -> Floats:
        return np.asarray(seen.max(axis=1) - seen[:, valid].max(axis=1))


def _unit(rows: Floats) -> Floats:
    return np.asarray(rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12))


class KSemStamp(RegionWatermark):
    scheme = "k-semstamp"
    Parameters = Parameters
    presets = {"paper": {}}  # noqa: RUF012

    @classmethod
    def rule(cls, key: Key) -> CentreRule:
        return CentreRule(key)

    @classmethod
    def check_fitted(cls, parameters: Any, fitted: Fitted | None) -> None:
        if fitted is None:
            raise KeyFileError(
                "k-semstamp needs regions learned from text of the domain; make them: "
                "alimark fit k-semstamp --human texts.jsonl -o regions.npz, and give them (--fitted regions.npz)"
            )
        centres = fitted.arrays.get("centres")
        if centres is None or centres.ndim != 2 or len(centres) < 2:
            raise KeyFileError("the learned regions are not a table of centres, one a row")
        valid_count(parameters.ratio, len(centres))

    @classmethod
    def fit(cls, texts: Iterable[str], embedder: Embedder, *, regions: int = 8, seed: int = 1) -> Fitted:
        """The k-means centres of the sentences' directions, by scikit-learn."""
        try:
            from sklearn.cluster import KMeans
        except ImportError:
            raise MissingExtra("scikit-learn", "fit") from None
        if not 2 <= regions <= 4096:
            raise AlimarkError(f"regions must lie between 2 and 4096, not at {regions}")
        found = sentences_of(texts)
        if len(found.sentences) < 10 * regions:
            raise AlimarkError(
                f"{len(found.sentences)} sentences are too few for {regions} regions; give at least ten for each"
            )
        vectors = _unit(embedded(found.sentences, embedder).astype(np.float64))
        learned = KMeans(regions, n_init=10, random_state=seed).fit(vectors)
        centres = _unit(learned.cluster_centers_).astype("<f4")
        sizes = np.bincount(learned.labels_, minlength=regions).tolist()
        origin = found.origin(embedder) | {"regions": regions, "seed": seed, "sizes": sizes}
        return Fitted(cls.scheme, {"centres": centres}, origin)
