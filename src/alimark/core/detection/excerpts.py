"""The search for marked passages inside a longer text."""

from __future__ import annotations

from collections.abc import Sequence

from alimark.core._util.arrays import Floats, Packed
from alimark.core.detection.result_parts import Passage
from alimark.core.detection.scoring import Score, Scoring, scoring
from alimark.core.detection.settings import DetectionSettings
from alimark.core.detection.signals import Signals
from alimark.core.detection.stats.p_values import Significance
from alimark.core.frozen.kernels.types import Step
from alimark.core.keys.key import Key


def excerpt_length(key: Key, settings: DetectionSettings) -> int:
    """The number of the key's blocks in which a passage is looked for."""
    return settings.max_blocks + int(key.starts[-1])


def score_excerpt(signals: Signals, key: Key, settings: DetectionSettings) -> Score:
    """The score of the best passage anywhere in the text."""
    rule, length = scoring(key, settings), excerpt_length(key, settings)
    raw, steps = _best_passage(signals, 0, len(signals.packed), key.blocks(length), rule)

    def null_scores(first: int, count: int) -> Floats:
        return rule.local_scores(signals, key.null_blocks(first, count, length))

    return Score(raw, null_scores, steps)


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
        p_value = significance.p_value_of(raw)
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
