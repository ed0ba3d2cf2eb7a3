"""The probability that a sentence carries the mark.

Under any key, marked or not, the best alignment picks blocks that agree with the sentences by chance, so that agreement alone
says little. There are two ways to allow for this:

- Soft keys: the sum over all alignments (forward-backward algorithm) under a model of a text in which marked passages and
  others take turns. A sentence is judged together with its neighbours, so that a weak mark, as in a rewritten text, adds up
  over a passage.
- Hard keys: each sentence's agreement in the best alignment is divided by the agreement that random keys reach for this very
  sentence with alignments of their own. The result is a likelihood ratio with a mean of 1 for a sentence without a mark. The
  share of marked sentences is estimated from the text itself.
"""

from collections.abc import Sequence

import numpy as np

from alimark.core._util.arrays import Floats, Packed
from alimark.core._util.work import stop_if_cancelled
from alimark.core.detection.scoring import Scoring
from alimark.core.detection.stats.power import typical_agreement
from alimark.core.detection.units import Signals
from alimark.core.frozen.kernels.soft import carrying_chances
from alimark.core.frozen.kernels.types import MATCH, Step
from alimark.core.frozen.rules import RULES, WEIGHTS
from alimark.core.keys.key import Key

_WORTH = 1.6
"""How far a sentence that carries its block is shifted, in standard deviations: between rewritten and unchanged text."""
_OUTSIDE, _LEAVING, _STAYING, _RESUMED = 0.6, 0.06, 0.96, 0.4
"""The probabilities of `SoftRule` for passages without a mark."""
# The rule for texts with such passages is left out, since all rules have them here.
_RULES_WITH_PASSAGES = [
    rule._replace(worth=_WORTH, outside=_OUTSIDE, leaving=_LEAVING, staying=_STAYING, resumed=_RESUMED)
    for rule in RULES
    if not rule.outside
]
_WEIGHTS_WITH_PASSAGES = [weight for rule, weight in zip(RULES, WEIGHTS, strict=True) if not rule.outside]
_RANDOM_KEYS = 200
_STEPS = 100
_UNMARKED = 3.0
"""Sentences without a mark that the estimate of the share begins with: a short text must show more to be called marked."""


def sentence_chances(
    signals: Signals, steps: Sequence[Step], ranges: Sequence[tuple[int, int]], key: Key, rule: Scoring
) -> Floats:
    """The probability of carrying the mark for each sentence of a text; 0 outside of the ranges.

    `ranges` are the parts of the text that were aligned, from a first sentence up to before a last one: the whole, or passages.
    """
    by = chances_by_all_alignments if key.soft else chances_by_one_alignment
    return by(signals, steps, ranges, key, rule)


def chances_by_all_alignments(
    signals: Signals, steps: Sequence[Step], ranges: Sequence[tuple[int, int]], key: Key, rule: Scoring
) -> Floats:
    """`sentence_chances` of soft keys, by the sum over all alignments."""
    chances = np.zeros(len(signals.packed))
    for start, stop in ranges:
        length, starts = rule.length(stop - start), key.starts
        if stop - start < len(signals.packed):  # a passage, which may begin with any block
            first = min(step.block for step in steps if step.kind == MATCH and start <= step.last < stop)
            length, starts = first + length, np.array([first])
        part = signals.part(start, stop)
        counts = 1 / _repetition(part.values, max(key.run))
        chances[start:stop] = carrying_chances(
            part.tables, key.blocks(length), _RULES_WITH_PASSAGES, _WEIGHTS_WITH_PASSAGES, starts, counts
        )
    return chances


def _repetition(sentences: Floats, run: int) -> Floats:
    """How many sentences of a run say the same as each sentence: 1 where it resembles none.

    Sentences that resemble each other agree with a block of any key together or not at all, so that they count as one.
    """
    units = sentences / np.linalg.norm(sentences, axis=1, keepdims=True)
    repetition = np.ones(len(units))
    for distance in range(1, min(run, len(units))):
        shares = np.maximum(0, (units[distance:] * units[:-distance]).sum(axis=1)) ** 2
        repetition[distance:] += shares
        repetition[:-distance] += shares
    return repetition


def chances_by_one_alignment(
    signals: Signals, steps: Sequence[Step], ranges: Sequence[tuple[int, int]], key: Key, rule: Scoring
) -> Floats:
    """`sentence_chances` of hard keys, by the best alignment, compared with those of random keys."""
    chances = np.zeros(len(signals.packed))
    blocks = key.blocks(max((step.block for step in steps), default=-1) + 1)
    agreements = _agreements(signals, steps, blocks, key)
    for start, stop in ranges:
        part = signals.part(start, stop)
        length = rule.length(stop - start)
        nulls = np.empty((_RANDOM_KEYS, stop - start))
        for number, random in enumerate(key.null_blocks(0, _RANDOM_KEYS, length)):
            stop_if_cancelled()
            nulls[number] = _agreements(part, rule.trace(part, random), random, key)
        # How far a sentence that carries its block lies from one that does not, in standard deviations.
        shift = (2 * typical_agreement(key.block_size) - 1) * float(np.sqrt(key.block_size))
        ratios = _ratios(agreements[start:stop], nulls, shift)
        chances[start:stop] = _posteriors(ratios)
    return chances


def _agreements(signals: Signals, steps: Sequence[Step], blocks: Packed, key: Key) -> Floats:
    """The agreement of each sentence with its aligned block, in standard deviations; -inf for a sentence without a block."""
    agreements = np.full(len(signals.packed), -np.inf)
    for step in steps:
        if step.kind != MATCH:
            continue
        unit, block = int(signals.packed[step.last, step.merged, step.cut]), int(blocks[step.block])
        value = (key.block_size - 2 * (unit ^ block).bit_count()) / np.sqrt(key.block_size)
        covered = slice(step.last - step.merged, step.last + 1)
        agreements[covered] = np.maximum(agreements[covered], value)
    return agreements


def _ratios(agreements: Floats, nulls: Floats, shift: float) -> Floats:
    """The likelihood ratio of each sentence; its mean over the key and the random keys, alike in unmarked text, is 1."""
    values, random = np.exp(shift * agreements), np.exp(shift * nulls)
    total = values + random.sum(axis=0)
    ratios: Floats = (len(nulls) + 1) * values / np.maximum(total, 1e-300)
    return ratios


def _posteriors(ratios: Floats) -> Floats:
    """The probability of each sentence, with the share of marked sentences that makes the ratios likeliest (EM)."""
    share = 0.5
    posteriors = np.zeros(len(ratios))
    for _ in range(_STEPS):
        posteriors = share * ratios / (1 - share + share * ratios)
        share = float(posteriors.sum() / (len(ratios) + _UNMARKED))
    return posteriors
