"""The last stage of the detection pipeline: a text is scored under one key or several, and its results are put together.

Signals --score--> Score --significance_of--> Significance --describe--> AlignedDetection

Of many keys, all are scored once on one embedding of the text, and only the best few get random keys.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from alimark.core._util.arrays import Floats, Packed
from alimark.core.detection.aligned_results import AlignedDetection, Passage, aligned_steps
from alimark.core.detection.batching import EmbeddedTexts, parts
from alimark.core.detection.building import EmbedderIdentity, Statistic, build_detection
from alimark.core.detection.interleaving import with_interleaved
from alimark.core.detection.preparing import PreparedText
from alimark.core.detection.results import best_first
from alimark.core.detection.scoring import Score, Scoring, SoftPayload, score_table, scoring, whole_scoring
from alimark.core.detection.sentence_chances import sentence_chances
from alimark.core.detection.settings import LONG_TEXT, DetectionSettings
from alimark.core.detection.stats.p_values import Significance, significance_of
from alimark.core.detection.stats.power import SentencesNeeded
from alimark.core.detection.units import Signals, Units
from alimark.core.embedding.base import Embedder, Vectors
from alimark.core.frozen.kernels.types import Step
from alimark.core.frozen.projecting import projected_on_many
from alimark.core.keys.key import Key

EARLY_STOP = 50  # random keys that score as high after which the drawing for a long text stops
_KEYS_AT_A_TIME = 256
_SOFT_TABLE_VALUES = 4_000_000
"""Table entries scored at a time, 32 MB: soft keys and runs of pieces have a table for every unit and key."""


def excerpt_length(key: Key, settings: DetectionSettings) -> int:
    """The number of the key's blocks in which a passage is looked for."""
    return settings.max_blocks + int(key.starts[-1])


def score(signals: Sequence[Signals], key: Key, settings: DetectionSettings) -> Score:
    """The score of a text, given the signals of each of its versions: of the whole text or of its best passage."""
    return (
        _score_excerpt(signals[0], key, settings)
        if settings.search == "excerpt"
        else _score_whole(signals, key, settings)
    )


def _score_excerpt(signals: Signals, key: Key, settings: DetectionSettings) -> Score:
    rule, length = scoring(key, settings), excerpt_length(key, settings)
    raw, steps = _best_passage(signals, 0, len(signals.packed), key.blocks(length), rule)

    def null_scores(first: int, count: int) -> Floats:
        return rule.local_scores(signals, key.null_blocks(first, count, length))

    return Score(raw, null_scores, steps)


def _score_whole(signals: Sequence[Signals], key: Key, settings: DetectionSettings) -> Score:
    """The best score over the versions of a text. Each random key, too, gets its best score over the same versions."""
    rule = whole_scoring(key, settings, signals[0])
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
        payload = rule.decode(signals[variant], used)
        used = key.carrying(payload.value).blocks(len(used))
    return Score(float(scores[variant]), null_scores, rule.trace(signals[variant], used), variant, payload)


def answer(
    text: PreparedText,
    embedded: EmbeddedTexts,
    keys: Sequence[Key],
    embedder: Embedder,
    settings: DetectionSettings,
    *,
    best: int = 1,
    tried: int | None = None,
) -> list[AlignedDetection]:
    """The detections of a text under the best few of some keys, best first, with p-values corrected for the `tried` keys.

    The keys are of one group of `preparing.alike`. A key's detection is the same whichever other keys are tried. Of many keys
    only those with the best scores get random keys.
    """
    count = len(keys) if tried is None else tried
    detections: dict[int, AlignedDetection] = {}
    for kind in settings.searches(text.longest):
        likeliest = likeliest_keys(text, embedded, keys, replace(settings, search=kind), best)
        for number in (number for number in likeliest if number not in detections):
            signals = embedded.signals(text, keys[number], settings)
            detection = search_in_turn(text, signals, keys[number], embedder, settings)
            detections[number] = detection if count == 1 else detection.corrected(count)
        if min(detection.p_value for detection in detections.values()) <= settings.passage_fpr:
            break  # the keys that would score best in passages are not needed
    return best_first(detections.values())[:best]


def search_in_turn(
    text: PreparedText, signals: Sequence[Signals], key: Key, embedder: Embedder, settings: DetectionSettings
) -> AlignedDetection:
    """The result of a text under one key: of the whole text and then, where the settings say so, of its passages.

    With search="auto" passages are looked for where the whole shows no mark, and the p-value pays for both searches. It stays
    valid although the second is left out where the first succeeds: at any level, each contributes at most half of it.
    """
    searches = settings.searches(text.longest)
    text, signals = with_interleaved(text, signals)
    likeliest: AlignedDetection | None = None
    for kind in searches:
        detection = _search(text, signals, key, embedder, replace(settings, search=kind))
        if settings.search == "auto":
            detection = detection.of_searches(searches, settings)
        if likeliest is None or detection.p_value < likeliest.p_value:
            likeliest = detection
        if likeliest.p_value <= settings.passage_fpr:
            break
    assert likeliest is not None
    return likeliest


def _search(
    text: PreparedText, signals: Sequence[Signals], key: Key, embedder: Embedder, settings: DetectionSettings
) -> AlignedDetection:
    """The result of one search: score, significance, describe.

    Each reading of the text has a p-value of its own; the smallest, times the number of readings, is that of the text.
    """
    if settings.stop_after is None and text.longest > LONG_TEXT:
        settings = replace(settings, stop_after=EARLY_STOP)
    answers: list[tuple[Score, Significance]] = []
    for versions in text.readings:
        scored = score(signals[versions], key, settings)
        significance = significance_of(scored.raw, scored.null_scores, settings)
        answers.append((replace(scored, variant=versions.start + scored.variant), significance))
    scored, significance = _likeliest(answers)
    # The paper's z-score is one of sentences, so that a text that is read by clauses keeps that of its sentences.
    by_sentences = [pair for pair in answers if signals[pair[0].variant].chances is None]
    has_z = by_sentences and not key.soft and settings.search == "whole"
    z = _likeliest(by_sentences)[0].raw if has_z else None
    return describe(text, signals, scored, z, significance.corrected(len(answers)), key, embedder, settings)


def _likeliest(answers: Sequence[tuple[Score, Significance]]) -> tuple[Score, Significance]:
    """The reading with the smallest p-value."""
    return min(answers, key=lambda pair: pair[1].p_value)


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
        alignment=aligned_steps(steps, aligned, marked_key, text.versions[scored.variant].sentences),
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


def likeliest_keys(
    text: PreparedText, embedded: EmbeddedTexts, keys: Sequence[Key], settings: DetectionSettings, best: int
) -> Iterable[int]:
    """The numbers of the `best` keys with the highest scores in each reading, since those of several cannot be compared."""
    if len(keys) <= best:
        return range(len(keys))
    chosen: dict[int, None] = {}
    for versions in text.readings:
        scores = [_score_keys(version.units, embedded, keys, settings) for version in text.versions[versions]]
        chosen |= dict.fromkeys(np.argsort(-np.max(scores, axis=0), kind="stable")[:best].tolist())
    return chosen


def _score_keys(units: Units, embedded: EmbeddedTexts, keys: Sequence[Key], settings: DetectionSettings) -> list[float]:
    """The raw score of each key, computed in batches of keys of the same shape."""
    scores, vectors = [0.0] * len(keys), embedded.vectors[[embedded.units[unit] for unit in units.texts]]
    groups: dict[str, list[int]] = {}
    for number, key in enumerate(keys):
        groups.setdefault(json.dumps(key.parameters.to_json(), sort_keys=True), []).append(number)
    for members in groups.values():
        for batch in parts(members, _batch_size(units, keys[members[0]])):
            batch_scores = _score_batch(units, vectors, [keys[number] for number in batch], settings)
            for number, score in zip(batch, batch_scores, strict=True):
                scores[number] = float(score)
    return scores


def _batch_size(units: Units, key: Key) -> int:
    """The number of keys scored at a time."""
    if not key.soft and units.chances is None:
        return _KEYS_AT_A_TIME
    runs = 1 if units.chances is None else units.chances.shape[1]
    return max(1, _SOFT_TABLE_VALUES // (units.count * runs * key.block_size * 64))


def _score_batch(units: Units, vectors: Vectors, keys: list[Key], settings: DetectionSettings) -> Floats | list[float]:
    """The raw scores of keys that share block size, span and centre."""
    whole = whole_scoring(keys[0], settings, units)
    signals = (
        whole.signals(units, projections)
        for projections in projected_on_many(vectors, [key.derivation for key in keys])
    )
    if settings.search == "excerpt":
        rule, pairs = scoring(keys[0], settings), zip(signals, keys, strict=True)
        local = (rule.local_scores(text, key.blocks(excerpt_length(key, settings))[None])[0] for text, key in pairs)
        return [score / rule.local_unit for score in local]
    jobs = np.arange(len(keys))
    blocks = np.stack([key.derivation.blocks(whole.length(units.count)) for key in keys])
    return whole.scores(list(signals), blocks, jobs, jobs)


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
