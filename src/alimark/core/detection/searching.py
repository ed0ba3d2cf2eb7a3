"""The last stages of the detection pipeline: one text is scored under one key, and its result is put together.

Signals --score--> Score --significance_of--> Significance --describe--> AlignedDetection
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from alimark.core._util.arrays import Floats
from alimark.core.detection.aligned_results import AlignedDetection
from alimark.core.detection.building import EmbedderIdentity, Statistic, build_detection
from alimark.core.detection.excerpts import passages, score_excerpt
from alimark.core.detection.payloads import decode
from alimark.core.detection.preparing import PreparedText
from alimark.core.detection.result_parts import aligned_steps
from alimark.core.detection.scoring import Score, SoftPayload, score_table, scoring
from alimark.core.detection.sentence_chances import sentence_chances
from alimark.core.detection.settings import LONG_TEXT, DetectionSettings
from alimark.core.detection.signals import Signals
from alimark.core.detection.stats.p_values import Significance, significance_of
from alimark.core.detection.stats.power import SentencesNeeded
from alimark.core.embedding.base import Embedder
from alimark.core.keys.key import Key

EARLY_STOP = 50
"""Random keys that score as high after which the drawing for a long text stops."""


def score(signals: Sequence[Signals], key: Key, settings: DetectionSettings) -> Score:
    """The score of a text, given the signals of each of its versions: of the whole text or of its best passage."""
    return (
        score_excerpt(signals[0], key, settings)
        if settings.search == "excerpt"
        else score_whole(signals, key, settings)
    )


def score_whole(signals: Sequence[Signals], key: Key, settings: DetectionSettings) -> Score:
    """The best score over the versions of a text. Each random key, too, gets its best score over the same versions."""
    rule = scoring(key, settings, by_clauses=signals[0].chances is not None)
    length = rule.length(max(len(version.packed) for version in signals))
    blocks = key.derivation.blocks(length)  # as no payload changes them: the score is for any payload

    def null_scores(first: int, count: int) -> Floats:
        best: Floats = score_table(rule, signals, key.null_blocks(first, count, length)).max(axis=0)
        return best

    scores = score_table(rule, signals, blocks[None])[:, 0]
    variant = int(np.argmax(scores))
    used = blocks[: rule.length(len(signals[variant].packed))]
    payload = None
    if isinstance(rule, SoftPayload):
        payload = decode(rule, signals[variant], used)
        used = key.carrying(payload.value).blocks(len(used))
    return Score(float(scores[variant]), null_scores, rule.trace(signals[variant], used), variant, payload)


def detect_signals(
    text: PreparedText, signals: Sequence[Signals], key: Key, embedder: Embedder, settings: DetectionSettings
) -> AlignedDetection:
    """All stages after the projection: score, significance, describe.

    Each reading of the text has a p-value of its own; the smallest, times the number of readings, is that of the text.
    """
    if settings.search == "auto":

        def search(chosen: DetectionSettings) -> list[AlignedDetection]:
            return [detect_signals(text, signals, key, embedder, chosen)]

        return search_in_turn(max(len(version.sentences) for version in text.versions), settings, search)[0]
    if settings.stop_after is None and max(len(version.sentences) for version in text.versions) > LONG_TEXT:
        settings = replace(settings, stop_after=EARLY_STOP)
    answers: list[tuple[Score, Significance]] = []
    for versions in text.readings:
        scored = score(signals[versions], key, settings)
        significance = significance_of(scored.raw, scored.null_scores, settings)
        answers.append((replace(scored, variant=versions.start + scored.variant), significance))
    scored, significance = _likeliest(answers)
    # The paper's z-score is one of sentences, so that a text that is read by clauses keeps that of its sentences.
    by_sentences = [answer for answer in answers if signals[answer[0].variant].chances is None]
    has_z = by_sentences and not key.soft and settings.search == "whole"
    z = _likeliest(by_sentences)[0].raw if has_z else None
    return describe(text, signals, scored, z, significance.corrected(len(answers)), key, embedder, settings)


def _likeliest(answers: Sequence[tuple[Score, Significance]]) -> tuple[Score, Significance]:
    """The reading with the smallest p-value."""
    return min(answers, key=lambda answer: answer[1].p_value)


def search_in_turn(
    sentences: int, settings: DetectionSettings, search: Callable[[DetectionSettings], list[AlignedDetection]]
) -> list[AlignedDetection]:
    """Searches a text as a whole and then, where that shows no mark, for passages; the p-values pay for both.

    The p-values stay valid although the second search is left out where the first succeeds: at any level, each of the two
    contributes at most half of it.

    Args:
        sentences: The number of sentences of the text.
        settings: Settings with search="auto".
        search: Searches with the settings that it is given, and returns detections, best first.

    Returns:
        The detections of the better search.
    """
    searches = settings.searches(sentences)
    best: list[AlignedDetection] = []
    for number, kind in enumerate(searches, 1):
        detections = search(replace(settings, search=kind))
        paid = [detection.of_searches(searches, settings) for detection in detections]
        if not best or paid[0].p_value < best[0].p_value:
            best = paid
        if number < len(searches) and best[0].p_value <= settings.passage_fpr:
            break
    return best


def describe(
    text: PreparedText,
    signals: Sequence[Signals],
    scored: Score,
    z: float | None,
    significance: Significance,
    key: Key,
    embedder: Embedder,
    settings: DetectionSettings,
) -> AlignedDetection:
    """The result: the statistic and its p-value with the alignment, the passages and what the verdict needs."""
    excerpt = settings.search == "excerpt"
    aligned = signals[scored.variant]
    marked_key = key if scored.payload is None else key.carrying(scored.payload.value)
    steps, marked = passages(aligned, scored, significance, key, settings) if excerpt else (scored.steps, ())
    readings = len(text.readings)
    is_further = scored.variant > len(text.versions) - readings
    read = text.versions[scored.variant] if is_further else text
    restructuring = 0 if is_further else scored.variant + text.replaced
    ranges = [(passage.first - 1, passage.last) for passage in marked] if excerpt else [(0, len(aligned.packed))]

    def chances() -> list[float]:
        return list(sentence_chances(aligned, steps, ranges, marked_key, scoring(key, settings)))

    make = partial(
        AlignedDetection,
        decision=key.decision,
        block_size=key.block_size,
        alignment=aligned_steps(steps, aligned.packed, marked_key, text.versions[scored.variant].sentences),
        passages=marked,
        near_flips=aligned.near_flips,
        offsets=key.offsets,
        payload=scored.payload if significance.p_value <= settings.passage_fpr else None,
        normalised=dict(text.changes),
        reading=read.reading,
        readings=readings,
        restructured=text.restructured and replace(text.restructured, best=restructuring),
        sentences_needed=SentencesNeeded.of(key, excerpt=excerpt),
        # Pieces of a text that is read by clauses share runs, so that their agreements are not one of each sentence.
        compute_chances=None if text.variants or aligned.chances is not None else chances,
    )
    statistic = Statistic(scored.raw, z, scored.null_scores, warnings=text.warnings)
    return build_detection(
        make, text.text, read.sentences, statistic, significance,
        key=key, embedder=EmbedderIdentity.of(embedder), settings=settings, tie_label="ties",
    )  # fmt: skip
