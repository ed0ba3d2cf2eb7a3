"""Regions of the embedding space of which some are valid, by the key and by the region of the sentence before."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from alimark._util.arrays import Floats
from alimark.detection.building import Statistic
from alimark.generation.selection import Weight
from alimark.keys.key import Key
from alimark.parameters.semstamp import valid_count
from alimark.schemes.sentence import REJECTION_WAVE, SentenceRival, count_z, in_chunks, too_short

if TYPE_CHECKING:
    from alimark.generation.settings import GenerationSettings
    from alimark.llm.base import LLM

Mask = NDArray[np.bool_]
Ints = NDArray[np.int64]

_KEYS_A_CHUNK = 1024


class Located(NamedTuple):
    """Where sentences lie: their regions, and by how much each would have to move to leave it."""

    regions: Ints
    margins: Floats


def smallest(numbers: Floats, count: int) -> Mask:
    """Of each row the `count` smallest: a random choice, where the numbers are random."""
    ranks = np.argsort(np.argsort(numbers, axis=-1, kind="stable"), axis=-1)
    return np.asarray(ranks < count)


class RegionRule(ABC):
    """Accept a sentence that lies in a valid region, further from its border than the margin.

    Which regions are valid the key says, anew for each region that the sentence before may lie in. The first sentence is free.
    """

    embeds, stops, strict, size = True, True, True, 1

    def __init__(self, key: Key, regions: int, ratio: float, margin: float) -> None:
        self.key, self.scheme, self.regions, self.margin = key, key.scheme, regions, margin
        self.valid_regions = valid_count(ratio, regions)
        self._before: int | None = None

    @abstractmethod
    def see(self, vectors: NDArray[np.float32]) -> Floats: ...

    @abstractmethod
    def locate(self, seen: Floats) -> Located: ...

    @abstractmethod
    def shortfall(self, seen: Floats, valid: Mask) -> Floats:
        """How far each is from the nearest valid region."""

    def wave(self, settings: GenerationSettings) -> int:
        return 1 if self._before is None else settings.wave or REJECTION_WAVE

    def valid(self, before: int) -> Mask:
        """Of each region whether it is valid behind the region `before`."""
        return smallest(self.key.uniforms(f"{self.scheme}/valid", self.regions, before), self.valid_regions)

    def null_valid(self, before: int, chunk: int) -> Mask:
        """The same under the random keys of a chunk, a row each."""
        numbers = self.key.uniforms(f"{self.scheme}/null", _KEYS_A_CHUNK * self.regions, chunk, before)
        return smallest(numbers.reshape(_KEYS_A_CHUNK, self.regions), self.valid_regions)

    def weigh(self, seen: Floats) -> Sequence[Weight]:
        if self._before is None:
            return [Weight(0, 0.0, True)] * len(seen)
        valid = self.valid(self._before)
        located = self.locate(seen)
        good = valid[located.regions]
        worths = np.where(good, located.margins, -self.shortfall(seen, valid))
        met = good & (located.margins > self.margin)
        return [
            Weight(*values) for values in zip(good.astype(int).tolist(), worths.tolist(), met.tolist(), strict=True)
        ]

    def chose(self, seen: Floats) -> None:
        self._before = int(self.locate(seen[None]).regions[0])


class RegionWatermark(SentenceRival):
    """The z-test on the sentences that lie in a region valid behind the sentence before."""

    @classmethod
    @abstractmethod
    def rule(cls, key: Key) -> RegionRule: ...

    def statistic(self, seen: Floats, text: str, sentences: Sequence[str], llm: LLM | None) -> Statistic:
        if len(seen) < 2:
            return too_short()
        rule = self.rule(self.key)
        regions = rule.locate(seen).regions
        steps, share = len(regions) - 1, rule.valid_regions / rule.regions
        followed = np.zeros((rule.regions, rule.regions), np.int64)
        np.add.at(followed, (regions[:-1], regions[1:]), 1)
        met = {int(before): followed[before] for before in np.unique(regions[:-1])}
        valid = sum(int(row[rule.valid(before)].sum()) for before, row in met.items())

        def null(first: int, count: int) -> Floats:
            """Random keys choose other regions; given where the sentences lie, no other part of the key matters."""
            parts = []
            for chunk, some in in_chunks(first, count, _KEYS_A_CHUNK):
                parts.append(sum(rule.null_valid(before, chunk)[some] @ row for before, row in met.items()))
            counts = np.concatenate(parts)
            return np.asarray((counts - share * steps) / np.sqrt(share * (1 - share) * steps))

        evidence: dict[str, Any] = {"counted": steps, "valid": valid, "expected": round(share * steps, 2),
                                    "regions": regions.tolist()}  # fmt: skip
        # A step that is taken twice is met twice or not at all.
        return Statistic.of_z(count_z(valid, steps, share), null, share ** int((followed > 0).sum()), evidence)
