"""How texts are scored under keys: the paper's edit distance for hard bits, and a likelihood ratio for soft decisions.

Everything else about detection is the same for both: units, random keys, p-values, passages, many keys.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Self

import numpy as np

from alimark.core._util.arrays import Floats, Ints, Packed
from alimark.core.detection.aligned_results import Payload
from alimark.core.detection.clauses import ByClauses
from alimark.core.detection.settings import DetectionSettings
from alimark.core.detection.stats.p_values import NullScores
from alimark.core.detection.units import Signals, Units, starts_of
from alimark.core.frozen.derivation import run_numbers
from alimark.core.frozen.kernels import hard, payload, soft
from alimark.core.frozen.kernels.types import WHOLE, Best, Limits, Step, ZRule
from alimark.core.frozen.payload_code import PayloadCode
from alimark.core.frozen.projecting import to_bits
from alimark.core.frozen.rules import ALPHA, BETA, BLOCKS, LOCAL, RULES, WEIGHTS, centred_and_scaled, local_costs
from alimark.core.keys.key import Key
from alimark.errors import AlimarkError


@dataclass(frozen=True)
class Score:
    """The score of a text under its key, what is needed to score random keys, and the alignment behind it."""

    raw: float
    null_scores: NullScores
    steps: Sequence[Step]
    variant: int = 0  # which version of the text scored best: an index into `PreparedText.versions`
    payload: Payload | None = None  # the likeliest payload, where the key has payloads


def scoring(key: Key, settings: DetectionSettings) -> Scoring:
    """The scoring of a key's decision, hard or soft, with or without payloads."""
    if not key.soft:
        return Hard(key.block_size, settings, key.offsets)
    return SoftPayload.of(key, settings) if key.payload_bits else Soft.of(key, settings)


def whole_scoring(key: Key, settings: DetectionSettings, text: Units | Signals) -> WholeScoring:
    """The scoring of a whole text, whose sentence ends may not be known."""
    return scoring(key, settings) if text.chances is None else ByClauses.of(key)


def score_table(rule: WholeScoring, signals: Sequence[Signals], blocks: Packed) -> Floats:
    """The score of every text under every key: a row for each text, a column for each key."""
    jobs = np.arange(len(signals) * len(blocks))
    return rule.scores(signals, blocks, jobs // len(blocks), jobs % len(blocks)).reshape(len(signals), len(blocks))


@dataclass(frozen=True)
class Hard:
    """The paper's score: the z-score of the block edit distance, the best over restructurings and prefixes of the key.

    `Soft` and `ByClauses` have the same methods. A job is a pair of a text and a key: an index into `signals` and a row of
    `blocks`.
    """

    m: int
    settings: DetectionSettings
    offsets: int = 1
    """A text starts at one of the first `offsets` blocks; the best score over them is taken, under random keys as well."""

    @property
    def limits(self) -> Limits:
        """The merges and splits that the alignment may use, which decide the units to be embedded."""
        return self.settings.limits

    def _rule(self, sentences: int) -> ZRule:
        return self.settings.rule(self.m, sentences + self.limits.splits)

    def length(self, sentences: int) -> int:
        """How many blocks of a key a text of so many sentences may be aligned with, wherever it begins."""
        return int(self._rule(sentences).most[-1]) + self.offsets - 1

    def signals(self, units: Units, projections: Floats) -> Signals:
        """What the kernels need of a text, from the projections of its units."""
        sentences = projections[units.index[:, 0, WHOLE]]
        packed = to_bits(projections)[units.index]
        return Signals(packed, units.index >= 0, near_flips=int((np.abs(sentences) < 1e-4).sum()))

    def _search(self, signals: Sequence[Signals], blocks: Packed, texts: Ints, keys: Ints) -> Best:
        units = np.concatenate([text.packed for text in signals])
        valid = np.concatenate([text.valid for text in signals])
        rule = self._rule(max(len(text.packed) for text in signals))
        return hard.search(
            units, valid, blocks, self.m, self.limits, rule, starts=starts_of(signals), texts=texts, keys=keys,
            offsets=self.offsets,
        )  # fmt: skip

    def scores(self, signals: Sequence[Signals], blocks: Packed, texts: Ints, keys: Ints) -> Floats:
        """The score of each job."""
        return self._search(signals, blocks, texts, keys).z

    def trace(self, signals: Signals, blocks: Packed) -> list[Step]:
        """The alignment behind the score, or the likeliest one where the score sums over alignments."""
        best = self._search([signals], blocks[None], np.zeros(1, np.int64), np.zeros(1, np.int64))
        merges, splits, used, first = (int(values[0]) for values in best[1:])
        steps = hard.trace(signals.packed, signals.valid, blocks[first : first + used], self.m, merges, splits)
        return [step if step.block < 0 else step._replace(block=step.block + first) for step in steps]

    @property
    def local_unit(self) -> float:
        """What a passage's score is divided by where keys of several block sizes are compared."""
        return self.m

    def local_scores(self, signals: Signals, blocks: Packed) -> Floats:
        """The score of the best passage of a text under each key."""
        return hard.search_local(signals.packed, signals.valid, blocks, self.m, local_costs(self.m))

    def trace_local(self, signals: Signals, blocks: Packed) -> tuple[float, list[Step]]:
        """The score and the alignment of the best passage of a text under one key."""
        return hard.trace_local(signals.packed, signals.valid, blocks, self.m, local_costs(self.m))


@dataclass(frozen=True)
class Soft:
    """The log-likelihood ratio of the text under the key, summed over all alignments of a model of rewriting."""

    first_blocks: Ints = field(default_factory=lambda: soft.FIRST_BLOCK)
    """A text starts at one of these blocks, each as likely."""

    limits = Limits(0, 0, 0)
    local_unit = 1.0

    @classmethod
    def of(cls, key: Key, settings: DetectionSettings) -> Self:
        """The scoring of a soft key."""
        if settings.null != "paper":
            raise AlimarkError("null='reference' is a rule for hard bits; with a soft key use null='paper'")
        if (settings.alpha, settings.beta) != (ALPHA, BETA):
            raise AlimarkError(
                "alpha and beta bound the blocks that hard bits are aligned with; those of a soft key are fixed"
            )
        return cls(key.starts)

    def length(self, sentences: int) -> int:
        return math.ceil(BLOCKS * sentences) + int(self.first_blocks[-1])

    def signals(self, units: Units, projections: Floats) -> Signals:
        """The projections minus their mean over the text, each sentence scaled to a mean square of 1.

        The mean says what the text is about, which the choice of candidates hardly changes.
        """
        rows = units.index[:, 0, WHOLE]
        sentences = projections[rows]
        scaled = centred_and_scaled(projections, sentences.sum(axis=0), len(sentences))
        return Signals(to_bits(scaled)[units.index], units.index >= 0, soft=scaled[rows])

    def scores(self, signals: Sequence[Signals], blocks: Packed, texts: Ints, keys: Ints) -> Floats:
        tables = np.concatenate([text.tables for text in signals])
        lengths = np.array([self.length(len(text.packed)) for text in signals])
        return soft.search_soft(
            tables, blocks, lengths, RULES, starts=starts_of(signals), texts=texts, keys=keys,
            first_blocks=self.first_blocks, weights=WEIGHTS,
        )  # fmt: skip

    def trace(self, signals: Signals, blocks: Packed) -> list[Step]:
        """The likeliest alignment under the first rule, the most general one, whichever rule contributes most."""
        return soft.trace_soft(signals.tables, blocks, RULES[0], self.first_blocks)[1]

    def local_scores(self, signals: Signals, blocks: Packed) -> Floats:
        return soft.search_local_soft(self._local_units(signals), blocks, LOCAL)

    def trace_local(self, signals: Signals, blocks: Packed) -> tuple[float, list[Step]]:
        return soft.trace_local_soft(self._local_units(signals), blocks, LOCAL)

    def _local_units(self, signals: Signals) -> soft.LocalUnits:
        """The sentences, or the pieces of a text that is read by clauses, of which two may make a sentence."""
        tables, joinable = signals.tables, np.ascontiguousarray(signals.valid[:, 1, WHOLE])
        if tables.ndim == 3:
            return soft.LocalUnits(tables, tables, joinable)
        return soft.LocalUnits(np.ascontiguousarray(tables[:, 0]), np.ascontiguousarray(tables[:, 1]), joinable)


_ALL_PAYLOADS_BITS = 8  # up to so many bits every payload is tried
_PAYLOAD_ROUNDS = 3
_SHOWN_PAYLOADS = 5


@dataclass(frozen=True)
class SoftPayload(Soft):
    """The score of keys with payloads: a mark of the key, whatever the payload (`kernels.payload`).

    Blocks are those of the keys without a payload. Marked passages are looked for by the bits that no payload flips.
    """

    code: PayloadCode = field(default_factory=lambda: PayloadCode(1, 64))
    run: tuple[int, ...] = (1,)
    period: int = 0  # the number of sentences after which the runs repeat; 0: never

    @classmethod
    def of(cls, key: Key, settings: DetectionSettings) -> Self:
        period = key.derivation.period if key.follows_conversation else 0
        return cls(Soft.of(key, settings).first_blocks, key.payload_code, key.run, period)

    def search(self, length: int) -> payload.Search:
        """What the kernels need to know of keys with `length` blocks."""
        runs = np.resize(run_numbers(self.run, self.period), length) if self.period else run_numbers(self.run, length)
        count = int(runs.max()) + 1
        share = self.code.constant / self.code.block_size
        return payload.Search(self.code.rows(count), self.code.columns(count), runs, share, self.code.bits)

    def scores(self, signals: Sequence[Signals], blocks: Packed, texts: Ints, keys: Ints) -> Floats:
        lengths = np.array([self.length(len(text.packed)) for text in signals])
        return payload.search_payloads(
            np.concatenate([text.tables for text in signals]), np.concatenate([text.values for text in signals]),
            blocks, lengths, RULES, self.search(int(lengths.max())), starts=starts_of(signals), texts=texts, keys=keys,
            first_blocks=self.first_blocks, weights=WEIGHTS,
        )  # fmt: skip

    def decode(self, signals: Signals, blocks: Packed) -> Payload:
        """The payload of a text; `blocks` are those of the key without a payload.

        The probability of a payload is proportional to its likelihood, summed over all alignments. Payloads that are not tried
        get a likelihood from the evidence along the alignment with the best payload.
        """
        tried, rest = self._tried(signals, blocks)
        payloads = sorted(tried, key=lambda payload: -tried[payload])
        most = tried[payloads[0]]
        whole = np.exp(rest - most) + sum(np.exp(value - most) for value in tried.values())
        shares = [(payload, float(np.exp(tried[payload] - most) / whole)) for payload in payloads[:_SHOWN_PAYLOADS]]
        return Payload(shares[0][0], shares[0][1], self.code.bits, tuple(shares))

    def _tried(self, signals: Signals, blocks: Packed) -> tuple[dict[int, float], float]:
        """The log-likelihood ratios of likely payloads, and an estimate of the sum of all others.

        The first round aligns the text by the constant bits, the next ones by whole blocks as the best payload flips them.
        """
        if self.code.bits <= _ALL_PAYLOADS_BITS:
            return self._likelihoods(signals, blocks, range(self.code.count)), -np.inf
        tried: dict[int, float] = {}
        best: int | None = None
        for _ in range(_PAYLOAD_ROUNDS):
            likely, values, total = payload.likely_payloads(
                signals.tables, signals.values, blocks, RULES, self.search(len(blocks)), self.first_blocks, WEIGHTS, best
            )  # fmt: skip
            tried |= self._likelihoods(signals, blocks, [number for number in likely if number not in tried])
            before, best = best, max(tried, key=lambda number: tried[number])
            if best == before:
                break
        others = np.log(max(1e-300, 1 - np.exp(values - total).sum())) + total
        return tried, float(tried[likely[0]] - values[0] + others)

    def _likelihoods(self, signals: Signals, blocks: Packed, payloads: range | list[int]) -> dict[int, float]:
        """The log-likelihood ratio of a text under the key with each of some payloads."""
        if not payloads:
            return {}
        runs = self.search(len(blocks)).runs
        flips = self.code.flips_of_many(np.array(payloads), int(runs.max()) + 1)
        values = score_table(Soft(self.first_blocks), [signals], blocks ^ flips[:, runs])[0]
        return dict(zip(payloads, values.tolist(), strict=True))

    def _local_units(self, signals: Signals) -> soft.LocalUnits:
        """The lookup tables of the bits that no payload flips, scaled so that worths have a standard deviation of 1."""
        first = (self.code.block_size - self.code.constant) // 8
        tables = signals.tables * math.sqrt(self.code.block_size / self.code.constant)
        tables[:, :first] = 0.0
        return soft.LocalUnits(tables, tables, np.zeros(len(tables), np.bool_))


Scoring = Hard | Soft
WholeScoring = Scoring | ByClauses
