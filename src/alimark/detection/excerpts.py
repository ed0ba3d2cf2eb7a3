"""The search for marked passages inside a longer text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from alimark._util.arrays import Floats, Packed
from alimark.detection.kernels.types import Step
from alimark.detection.results import Passage
from alimark.detection.scoring import Scoring, scoring
from alimark.detection.settings import DetectionSettings
from alimark.detection.signals import Signals
from alimark.detection.stats.p_values import Significance, significance
from alimark.keys.key import Key

if TYPE_CHECKING:
    pass


def excerpt(
    signals: Signals, key: Key, settings: DetectionSettings
) -> tuple[float, Significance, list[Step], tuple[Passage, ...]]:
    rule = scoring(key, settings)
    length = settings.max_blocks + key.offsets - 1
    secret = key.blocks(length)
    raw, steps = _best_passage(signals, 0, len(signals.packed), secret, rule)

    def null_scores(first: int, count: int) -> Floats:
        return rule.local_scores(signals, key.null_blocks(first, count, length))

    found = significance(raw, null_scores, settings.draws, stop_after=settings.stop_after, tail=settings.tail)
    passages = []
    rest = []
    if steps and found.p_value <= settings.passage_fpr:
        passages.append(best := Passage.of(raw, found.p_value, steps))
        rest = [(0, best.first - 1), (best.last, len(signals.packed))]
    # Further passages are held against the best that random keys find in the whole text, so the search is paid for.
    while rest and not found.stopped_early:
        start, stop = rest.pop()
        score, more = _best_passage(signals, start, stop, secret, rule)
        p_value = (1 + int((found.scores >= score).sum())) / (found.draws + 1)
        if more and p_value <= settings.passage_fpr:
            passages.append(passage := Passage.of(score, p_value, more))
            steps = steps + more
            rest += [(start, passage.first - 1), (passage.last, stop)]
    steps = sorted(steps, key=lambda step: (step.last, step.block))
    return raw, found, steps, tuple(sorted(passages, key=lambda passage: passage.first))


def _best_passage(signals: Signals, start: int, stop: int, secret: Packed, rule: Scoring) -> tuple[float, list[Step]]:
    if stop <= start:
        return 0.0, []
    score, steps = rule.trace_local(signals.part(start, stop), secret)
    return score, [step._replace(last=step.last + start) for step in steps]
