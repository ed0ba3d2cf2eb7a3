"""The two rules by which a detector scores: the paper's edit distance of hard bits, and the likelihood of soft decisions.

Everything around them is the same: units, random keys, p-values, passages, many keys.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from alimark._util.arrays import Floats, Packed
from alimark.detection.kernels import hard, soft
from alimark.detection.kernels.types import WHOLE, Best, Limits, LocalCosts, Rule, Step
from alimark.detection.signals import Signals
from alimark.detection.stats.null_tables import ALPHA, BETA
from alimark.detection.units import Units
from alimark.errors import AlimarkError
from alimark.keys.key import Key
from alimark.keys.projection import to_bits

if TYPE_CHECKING:
    from alimark.detection.settings import DetectionSettings

Jobs = NDArray[np.int64]


class Scoring(Protocol):
    """How texts are scored under keys of one block size. A job is a text, by its number, and a key, by its row of blocks."""

    @property
    def limits(self) -> Limits:
        """The units that are wanted."""
        ...

    def length(self, sentences: int) -> int:
        """How many blocks of a key a text of so many sentences may meet, wherever it begins."""
        ...

    def signals(self, units: Units, projections: Floats) -> Signals: ...

    def scores(self, signals: Sequence[Signals], blocks: Packed, texts: Jobs, keys: Jobs) -> Floats: ...

    def trace(self, signals: Signals, blocks: Packed) -> list[Step]:
        """The alignment behind the score, or the likeliest one of them."""
        ...

    def local_scores(self, signals: Signals, blocks: Packed) -> Floats:
        """The best passage of one text under each key."""
        ...

    def trace_local(self, signals: Signals, blocks: Packed) -> tuple[float, list[Step]]: ...

    @property
    def local_unit(self) -> float:
        """What a passage's score is divided by where keys of several block sizes are compared."""
        ...


def scoring(key: Key, settings: DetectionSettings) -> Scoring:
    """The rule that a key asks for."""
    return Soft.of(key, settings) if key.soft else Hard(key.block_size, settings, key.offsets)


def _starts(signals: Sequence[Signals]) -> Jobs:
    return np.cumsum([0, *(len(one.packed) for one in signals)])


@dataclass(frozen=True)
class Hard:
    """The paper's: the block edit distance of the text's bits as a z-score, the best over restructurings and prefixes."""

    m: int
    settings: DetectionSettings
    offsets: int = 1
    """The blocks that a text may begin with; the best score over all of them is taken, under random keys as well."""

    @property
    def limits(self) -> Limits:
        return self.settings.limits

    def _rule(self, sentences: int) -> Rule:
        return self.settings.rule(self.m, sentences + self.limits.splits)

    def length(self, sentences: int) -> int:
        return int(self._rule(sentences).most[-1]) + self.offsets - 1

    def signals(self, units: Units, projections: Floats) -> Signals:
        sentences = projections[units.index[:, 0, WHOLE]]
        packed = to_bits(projections)[units.index]
        return Signals(packed, units.index >= 0, near_flips=int((np.abs(sentences) < 1e-4).sum()))

    def _search(self, signals: Sequence[Signals], blocks: Packed, texts: Jobs, keys: Jobs) -> Best:
        units, valid = np.concatenate([one.packed for one in signals]), np.concatenate([one.valid for one in signals])
        rule = self._rule(max(len(one.packed) for one in signals))
        return hard.search(
            units, valid, blocks, self.m, self.limits, rule, starts=_starts(signals), texts=texts, keys=keys,
            offsets=self.offsets,
        )  # fmt: skip

    def scores(self, signals: Sequence[Signals], blocks: Packed, texts: Jobs, keys: Jobs) -> Floats:
        return self._search(signals, blocks, texts, keys).z

    def trace(self, signals: Signals, blocks: Packed) -> list[Step]:
        own = self._search([signals], blocks[None], np.zeros(1, np.int64), np.zeros(1, np.int64))
        merges, splits, used, first = (int(one[0]) for one in own[1:])
        steps = hard.trace(signals.packed, signals.valid, blocks[first : first + used], self.m, merges, splits)
        return [step if step.block < 0 else step._replace(block=step.block + first) for step in steps]

    @property
    def local_unit(self) -> float:
        return self.m

    @property
    def _costs(self) -> LocalCosts:
        """In proportion to the block; benchmarks/excerpts.py tries others beside these."""
        return LocalCosts(0.35, 0.3 * self.m, 0.3 * self.m, 0.375 * self.m)

    def local_scores(self, signals: Signals, blocks: Packed) -> Floats:
        return hard.search_local(signals.packed, signals.valid, blocks, self.m, self._costs)[0]

    def trace_local(self, signals: Signals, blocks: Packed) -> tuple[float, list[Step]]:
        return hard.trace_local(signals.packed, signals.valid, blocks, self.m, self._costs)


class SoftVersion(NamedTuple):
    """What a soft key fixes for all time: a text marked today is to be found by every later release."""

    rules: tuple[soft.SoftRule, ...]
    """What may have become of a text, each as likely; by the first, the likeliest alignment is shown."""
    shrink: float
    """The text's own mean is taken for that of so many more sentences, which are like any: the shorter, the less it counts."""
    blocks: float
    """Blocks that a text may meet, for each of its sentences."""
    local: LocalCosts


_ANYTHING = soft.SoftRule(
    worth=1.3, foreign=0.12, replaced=0.1, moved=0.8, repeated=0.05, skipped=0.1, further=0.6,
    two=0.06, three=0.02, joined=0.04, jump=0.02,
)  # fmt: skip
_LITTLE = soft.SoftRule(
    worth=1.3, foreign=0.03, replaced=0.03, moved=0.3, repeated=0.03, skipped=0.03, further=0.6,
    two=0.0, three=0.0, joined=0.0, jump=0.01,
)  # fmt: skip
_DELETED = _LITTLE._replace(skipped=0.4)
_REORDERED = _LITTLE._replace(replaced=0.5, moved=0.95)
_PASTED = _LITTLE._replace(outside=0.6, leaving=0.1, staying=0.85, resumed=0.05)

_VERSION_1 = SoftVersion(
    rules=(_ANYTHING,),
    shrink=5.0,
    blocks=2.0,
    local=LocalCosts(theta=1.0, skip_sentence=1.0, skip_block=1.0, restructure=1.2),
)
SOFT_VERSIONS = {1: _VERSION_1, 2: _VERSION_1._replace(rules=(_ANYTHING, _DELETED, _REORDERED, _PASTED))}
"""docs/soft.md tells how these came about, and what else was tried."""


@dataclass(frozen=True)
class Soft:
    """How much likelier the text is under the key, summed over all that may have become of a marked text."""

    version: SoftVersion
    restructure: bool
    offsets: int = 1
    """The blocks that a text may begin with, each as likely."""

    @classmethod
    def of(cls, key: Key, settings: DetectionSettings) -> Soft:
        if settings.null != "paper":
            raise AlimarkError("the public code's rule is one for hard bits; a soft key has none of its kind")
        if (settings.alpha, settings.beta) != (ALPHA, BETA):
            raise AlimarkError(
                "alpha and beta bound the blocks that hard bits are aligned with; for a soft key its version fixes them"
            )
        return cls(SOFT_VERSIONS[key.soft_version], settings.limits.total > 0, key.offsets)

    @property
    def limits(self) -> Limits:
        return Limits(1, 0, 1) if self.restructure else Limits(0, 0, 0)

    local_unit = 1.0

    @cached_property
    def _rules(self) -> tuple[soft.SoftRule, ...]:
        rules = self.version.rules
        return rules if self.restructure else tuple(rule.without_restructuring() for rule in rules)

    def length(self, sentences: int) -> int:
        return math.ceil(self.version.blocks * sentences) + self.offsets - 1

    def signals(self, units: Units, projections: Floats) -> Signals:
        """Units less the text's own mean, which no candidate could change, each of mean square 1."""
        sentences = projections[units.index[:, 0, WHOLE]]
        centred = projections - sentences.sum(axis=0) / (len(sentences) + self.version.shrink)
        scaled = centred / np.maximum(np.sqrt((centred**2).mean(axis=1, keepdims=True)), 1e-12)
        return Signals(to_bits(scaled)[units.index], units.index >= 0, soft=scaled[units.index[:, :2, WHOLE]])

    def scores(self, signals: Sequence[Signals], blocks: Packed, texts: Jobs, keys: Jobs) -> Floats:
        tables = np.concatenate([one.tables for one in signals])
        joinable = np.concatenate([one.joinable for one in signals])
        lengths = np.array([self.length(len(one.packed)) for one in signals])
        return soft.search_soft(
            tables, joinable, blocks, lengths, self._rules, starts=_starts(signals), texts=texts, keys=keys,
            offsets=self.offsets,
        )  # fmt: skip

    def trace(self, signals: Signals, blocks: Packed) -> list[Step]:
        """The likeliest alignment under the first rule, the one for anything, whichever rule the score owes most to."""
        return soft.trace_soft(signals.tables, signals.joinable, blocks, self._rules[0], self.offsets)[1]

    def local_scores(self, signals: Signals, blocks: Packed) -> Floats:
        return soft.search_local_soft(signals.tables, signals.joinable, blocks, self.version.local)

    def trace_local(self, signals: Signals, blocks: Packed) -> tuple[float, list[Step]]:
        return soft.trace_local_soft(signals.tables, signals.joinable, blocks, self.version.local)
