"""The middle stages of the detection pipeline: the units of many texts are embedded in one batch and projected.

many PreparedText --embed_texts--> EmbeddedTexts --signals--> Signals of each text under a key
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from alimark.core._util.arrays import Floats
from alimark.core.detection.preparing import PreparedText
from alimark.core.detection.scoring import whole_scoring
from alimark.core.detection.settings import DetectionSettings
from alimark.core.detection.units import Signals, Units
from alimark.core.embedding.base import Embedder, Vectors
from alimark.core.keys.key import Key
from alimark.core.keys.projection import project

Item = TypeVar("Item")

_UNITS_AT_A_TIME = 8192


def deduplicate(unit_lists: Iterable[Sequence[str]]) -> dict[str, int]:
    """Each distinct unit of many texts once, in the order of appearance, with its row in the embedding batch."""
    distinct = dict.fromkeys(unit for units in unit_lists for unit in units)
    return {unit: row for row, unit in enumerate(distinct)}


def embed_and_project(units: Iterable[str], embedder: Embedder, projection: Callable[[Vectors], Floats]) -> Floats:
    """The projections of each unit, embedded in parts so that the vectors of a long text are never all in memory."""
    embedded = [projection(embedder.embed(part)) for part in parts(list(units), _UNITS_AT_A_TIME)]
    return np.concatenate(embedded) if embedded else np.empty((0, 0))


@dataclass(frozen=True)
class EmbeddedTexts:
    """The vectors of all units of some texts or, under a single key, their projections."""

    units: dict[str, int]  # the row of each unit
    vectors: Vectors
    projections: Floats | None = None

    def signals(self, text: PreparedText, key: Key, settings: DetectionSettings) -> list[Signals]:
        """The signals of each version of a text under a key."""
        units = deduplicate([text.unit_texts])
        rows = [self.units[unit] for unit in units]
        projections = project(self.vectors[rows], key) if self.projections is None else self.projections[rows]
        return [
            signals_of(version.units, projections[[units[unit] for unit in version.units.texts]], key, settings)
            for version in text.versions
        ]


def embed_texts(texts: Iterable[PreparedText], embedder: Embedder, key: Key | None = None) -> EmbeddedTexts:
    """Embeds the units of many texts in one batch.

    Where the texts are searched under a single `key`, vectors, which long texts have many of, are not kept.
    """
    units = deduplicate(text.unit_texts for text in texts)
    none = np.empty((0, embedder.dimension), np.float32)
    if key is not None:
        return EmbeddedTexts(units, none, embed_and_project(units, embedder, lambda vectors: project(vectors, key)))
    return EmbeddedTexts(units, embedder.embed(list(units)) if units else none)


def signals_of(units: Units, projections: Floats, key: Key, settings: DetectionSettings) -> Signals:
    """The signals of the units of one version of a text."""
    return whole_scoring(key, settings, units).signals(units, projections)


def parts(items: Sequence[Item], size: int) -> Iterator[Sequence[Item]]:
    """The items in runs of at most `size`."""
    return (items[start : start + size] for start in range(0, len(items), size))
