"""The search for marked passages inside a longer text."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from alimark._util.arrays import Floats, Packed
from alimark.detection.kernels.types import Step
from alimark.detection.results import Passage
from alimark.detection.scoring import Score, Scoring, scoring
from alimark.detection.settings import DetectionSettings
from alimark.detection.signals import Signals
from alimark.detection.stats.p_values import Significance
from alimark.keys.key import Key


def excerpt_length(key: Key, settings: DetectionSettings) -> int:
    """The number of the key's blocks in which a passage is looked for."""
    return settings.max_blocks + int(key.starts[-1])


def score_excerpt(signals: Sequence[Signals], key: Key, settings: DetectionSettings) -> Score:
    """The score of the best passage anywhere in any version of the text. Random keys search the same versions."""
    rule, length = scoring(key, settings), excerpt_length(key, settings)
    blocks = key.blocks(length)
    best = [_best_passage(version, 0, len(version.packed), blocks, rule) for version in signals]
    variant = max(range(len(best)), key=lambda number: best[number][0])

    def null_scores(first: int, count: int) -> Floats:
        null = key.null_blocks(first, count, length)
        scores: Floats = np.max([rule.local_scores(version, null) for version in signals], axis=0)
        return scores

    return Score(best[variant][0], null_scores, best[variant][1], variant)


def passages(
    signals: Signals, score: Score, significance: Significance, key: Key, settings: DetectionSettings
) -> tuple[list[Step], tuple[Passage, ...]]:
    """All significant passages in the order of the text, and the alignment of all of them.

    The best passage comes with the score. Further ones are looked for on both sides of each passage. Their scores are
    compared with the best passage that each random key finds in the whole text, so that the p-value pays for the search.
    """
    rule, blocks = scoring(key, settings), key.blocks(excerpt_length(key, settings))
    steps = score.steps
    significant: list[Passage] = []
    ranges: list[tuple[int, int]] = []
    if steps and significance.p_value <= settings.passage_fpr:
        best = Passage.of(score.raw, significance.p_value, steps)
        significant.append(best)
        ranges = [(0, best.first - 1), (best.last, len(signals.packed))]
    while ranges and not significance.stopped_early:
        start, stop = ranges.pop()
        raw, more_steps = _best_passage(signals, start, stop, blocks, rule)
        p_value = (1 + int((significance.scores >= raw).sum())) / (significance.draws + 1)
        if more_steps and p_value <= settings.passage_fpr:
            passage = Passage.of(raw, p_value, more_steps)
            significant.append(passage)
            steps = [*steps, *more_steps]
            ranges += [(start, passage.first - 1), (passage.last, stop)]
    in_order = sorted(steps, key=lambda step: (step.last, step.block))
    return in_order, tuple(sorted(significant, key=lambda passage: passage.first))


def _best_passage(
    signals: Signals, start: int, stop: int, blocks: Packed, rule: Scoring
) -> tuple[float, Sequence[Step]]:
    """The best passage among the sentences start..stop-1; its steps count sentences from the start of the text."""
    if stop <= start:
        return 0.0, []
    raw, steps = rule.trace_local(signals.part(start, stop), blocks)
    return raw, [step._replace(last=step.last + start) for step in steps]
