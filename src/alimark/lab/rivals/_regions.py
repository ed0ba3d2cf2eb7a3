"""Watermarks by regions of the embedding space: the key and the region of the previous sentence decide which are valid."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from alimark.core._util.arrays import Floats
from alimark.core.detection.building import Statistic
from alimark.core.generation.selection import Weight
from alimark.core.keys.key import Key
from alimark.lab.rivals.parameters.semstamp import valid_count
from alimark.lab.rivals.sentence import REJECTION_WAVE, SentenceRival, count_z, in_chunks, too_short

if TYPE_CHECKING:
    from alimark.core.generation.settings import GenerationSettings
    from alimark.core.llm.base import LLM

Mask = NDArray[np.bool_]
Ints = NDArray[np.int64]

_KEYS_A_CHUNK = 1024


class Located(NamedTuple):
    """The region of each sentence, and its distance from the border of that region."""

    regions: Ints
    margins: Floats


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
    def locate(self, seen: Floats) -> Located: ...

    @abstractmethod
    def shortfall(self, seen: Floats, valid: Mask) -> Floats:
        """The distance of each sentence from the nearest valid region."""

    def wave(self, settings: GenerationSettings) -> int:
        return 1 if self._before is None else settings.wave or REJECTION_WAVE

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
    """A z-test on the number of sentences that lie in a region valid after the previous sentence."""

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
            """The z-scores of random keys, which choose other valid regions; the regions themselves stay."""
            parts = []
            for chunk, keys in in_chunks(first, count, _KEYS_A_CHUNK):
                parts.append(sum(rule.null_valid(before, chunk)[keys] @ row for before, row in met.items()))
            counts = np.concatenate(parts)
            return np.asarray((counts - share * steps) / np.sqrt(share * (1 - share) * steps))

        evidence: dict[str, object] = {"counted": steps, "valid": valid, "expected": round(share * steps, 2),
                                    "regions": regions.tolist()}  # fmt: skip
        # A pair of regions that occurs twice is valid twice or not at all, so only distinct pairs lower the p-value.
        return Statistic.of_z(count_z(valid, steps, share), null, share ** int((followed > 0).sum()), evidence)
