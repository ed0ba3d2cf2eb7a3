"""Detection in texts whose full stops are missing, replaced or scattered: sentences are made of pieces by the alignment.

The pieces and the probabilities of the sentence ends come from `alimark.core.text.clauses` and depend on the text alone. The
score is a likelihood ratio summed over all sentence ends and all alignments, for hard bits as for soft decisions. Random keys
get the same sum, so that the p-value pays for the freedom.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from alimark.core._util.arrays import Floats, Ints, Packed
from alimark.core.detection.units import Signals, Units, starts_of
from alimark.core.frozen.kernels import runs
from alimark.core.frozen.kernels.runs import RunRule
from alimark.core.frozen.kernels.types import WHOLE, Limits, Step
from alimark.core.frozen.projecting import to_bits
from alimark.core.frozen.rules import BLOCKS, CLAUSE_AGREEMENT, CLAUSE_BLOCKS, RULES, centred_and_scaled
from alimark.core.keys.key import Key
from alimark.core.text.clauses import LONGEST_RUN, clauses_of


def clause_units(sentences: Sequence[str]) -> tuple[list[str], Units] | None:
    """The pieces of a text with irregular full stops and the units that runs of them make; None for a regular text.

    `sentences` are those of the text as they stand in it, before they are cleaned.
    """
    clauses = clauses_of(sentences)
    if clauses is None:
        return None
    texts: dict[str, int] = {}
    index = np.full((len(clauses.spans), LONGEST_RUN, 4), -1, np.int64)
    chances = np.zeros((len(clauses.spans), LONGEST_RUN))
    for first, last, chance in clauses.runs():
        index[last, last - first, WHOLE] = texts.setdefault(clauses.unit(first, last), len(texts))
        chances[last, last - first] = chance
    return clauses.pieces, Units(list(texts), index, chances)


@dataclass(frozen=True)
class ByClauses:
    """The log-likelihood ratio of a text, summed over all ways to make sentences of its pieces and over all alignments."""

    rule: RunRule
    blocks: float
    first_blocks: Ints
    soft: bool

    limits = Limits(0, 0, 0)  # units come from `clause_units`

    @classmethod
    def of(cls, key: Key) -> ByClauses:
        """The scoring of a key of either decision."""
        if key.soft:
            worth = RULES[0].worth
            return cls(RunRule(worth, -(worth**2) / 2), BLOCKS, key.starts, soft=True)
        root = math.sqrt(key.block_size)
        worth = root * math.atanh(2 * CLAUSE_AGREEMENT - 1)
        rule = RunRule(worth, -key.block_size * math.log(math.cosh(worth / root)))
        return cls(rule, CLAUSE_BLOCKS, key.starts, soft=False)

    def length(self, sentences: int) -> int:
        """The number of blocks for so many pieces, of which a sentence usually has two or more."""
        return math.ceil(self.blocks * sentences / 2) + int(self.first_blocks[-1])

    def signals(self, units: Units, projections: Floats) -> Signals:
        """The signs of the projections for hard keys; for soft ones the projections, centred and scaled as those of sentences.

        The mean is that over the sentences that are expected.
        """
        assert units.chances is not None
        valid = units.index >= 0
        packed = to_bits(projections)[units.index]
        values = np.where(projections > 0, 1.0, -1.0)
        if self.soft:
            weights = np.zeros(len(projections))
            np.add.at(weights, units.index[..., WHOLE][valid[..., WHOLE]], _expected(units.chances)[valid[..., WHOLE]])
            values = centred_and_scaled(projections, weights @ projections, weights.sum())
            packed = to_bits(values)[units.index]
        return Signals(packed, valid, soft=values[units.index[..., WHOLE]], chances=units.chances)

    def scores(self, signals: Sequence[Signals], blocks: Packed, texts: Ints, keys: Ints) -> Floats:
        lengths = np.array([self.length(len(text.packed)) for text in signals])
        return runs.search_runs(
            np.concatenate([text.tables for text in signals]), np.concatenate([_chances(text) for text in signals]),
            blocks, lengths, self.rule, starts=starts_of(signals), texts=texts, keys=keys,
            first_blocks=self.first_blocks,
        )  # fmt: skip

    def trace(self, signals: Signals, blocks: Packed) -> list[Step]:
        return runs.trace_runs(signals.tables, _chances(signals), blocks, self.rule, self.first_blocks)[1]


def _chances(signals: Signals) -> Floats:
    assert signals.chances is not None
    return signals.chances


def _expected(chances: Floats) -> Floats:
    """The probability that each run of pieces is a sentence: that one ends before it, times its own probability."""
    count, longest = chances.shape
    starts = np.zeros(count + 1)
    starts[0] = 1.0
    expected = np.zeros_like(chances)
    for last in range(count):
        for merged in range(min(last + 1, longest)):
            expected[last, merged] = starts[last - merged] * chances[last, merged]
        starts[last + 1] = expected[last].sum()
    return expected
