"""Detection under many keys: all are scored on one embedding of a text, and only the best get random keys.

The stages are those of `pipeline`; this module adds the scoring of keys in batches.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from alimark.core._util.arrays import Floats
from alimark.core.detection.aligned_results import AlignedDetection
from alimark.core.detection.batching import Vectors, deduplicate, embed, parts, project_text
from alimark.core.detection.excerpts import excerpt_length
from alimark.core.detection.preparing import PreparedText, prepare, prepare_each, with_variants
from alimark.core.detection.results import best_first
from alimark.core.detection.scoring import scoring
from alimark.core.detection.searching import detect_signals, search_in_turn
from alimark.core.detection.settings import DetectionSettings
from alimark.core.detection.stats.p_values import draws_for_keys
from alimark.core.detection.timing import Beat, Clock, no_beat
from alimark.core.detection.units import Units
from alimark.core.embedding.base import Embedder
from alimark.core.embedding.precision import at_precision
from alimark.core.keys.key import Key
from alimark.core.keys.projection import project_many
from alimark.errors import AlimarkError

if TYPE_CHECKING:
    from alimark.core.llm.base import LLM

_KEYS_AT_A_TIME = 256
_SOFT_TABLE_VALUES = 4_000_000
"""Table entries scored at a time, 32 MB: soft keys and runs of pieces have a table for every unit and key."""


def detect_keys(
    text: str,
    keys: Sequence[Key],
    embedder: Embedder,
    settings: DetectionSettings,
    *,
    best: int = 3,
    llm: LLM | None = None,
    tried: int | None = None,
) -> list[AlignedDetection]:
    """The best few of many keys on a text, best first, with p-values corrected for the number of keys tried.

    All keys are scored once on one embedding of the text; random keys, at least 200 for each key tried, are drawn for the
    best few alone. The keys may differ in block size and centre, not in embedder, splitter and text version. P-values are
    corrected for `tried` keys, by default the number of `keys`; it is larger where keys of other kinds are tried on the same
    text.
    """
    _check_alike(keys, embedder)
    embedder = at_precision(embedder, settings.precision)
    widest = widest_key(keys, settings)
    [prepared] = with_variants([prepare(text, widest, embedder, settings)], widest, embedder, settings, llm)
    # 200 random keys for each key with the usual 1000 draws, and more in proportion where a stricter rate asked for more.
    settings = replace(settings, draws=draws_for_keys(settings.draws, tried or len(keys)))
    vectors = [embed(deduplicate([version.units.texts]), embedder) for version in prepared.versions]
    return best_keys(prepared, vectors, keys, embedder, settings, best, tried)


def detect_keys_batch(
    texts: Iterable[str | PreparedText],
    keys: Sequence[Key],
    embedder: Embedder,
    settings: DetectionSettings,
    *,
    tried: int | None = None,
    times: Counter[str] | None = None,
    beat: Beat = no_beat,
) -> list[AlignedDetection | AlimarkError]:
    """For each text the best of many keys, with the units of all texts in one embedding batch.

    P-values are corrected for `tried` keys, by default the number of `keys`; it is larger where further keys are tried on the
    same texts elsewhere. The number of random keys is that of the settings, however many keys there are: an audit draws more
    for the documents where that is too coarse. Texts that were prepared for the `widest_key` are not prepared again.
    """
    _check_alike(keys, embedder)
    if settings.learned:
        raise AlimarkError(
            "learned restructuring works on one text at a time; for many texts use restructure='single' or 'none'"
        )
    embedder = at_precision(embedder, settings.precision)
    clock = Clock(Counter() if times is None else times)
    prepared = prepare_each(texts, widest_key(keys, settings), embedder, settings, beat)
    clock.lap("splitting")
    units = deduplicate(text.unit_texts for text in prepared if isinstance(text, PreparedText))
    vectors = embed(units, embedder)
    clock.lap("embedding")

    def best(text: PreparedText) -> AlignedDetection:
        beat()
        rows = [vectors[units.rows(version.units.texts)] for version in text.versions]
        return best_keys(text, rows, keys, embedder, settings, 1, tried)[0]

    answers = [text if isinstance(text, AlimarkError) else best(text) for text in prepared]
    clock.lap("alignment")
    return answers


def _check_alike(keys: Sequence[Key], embedder: Embedder) -> None:
    """Raises AlimarkError where the keys cannot share one embedding and one kind of score."""
    if not keys:
        raise AlimarkError("no keys were given; give at least one")
    if len({key.soft for key in keys}) > 1:
        raise AlimarkError("hard and soft keys have scores of different kinds; detect with each kind separately")
    if len({(key.fingerprint, key.splitter, key.text_version) for key in keys}) > 1:
        raise AlimarkError(
            "keys of several embedders, splitters or text versions cannot share one embedding; detect with the keys of "
            "each separately"
        )
    for key in keys:
        key.check(embedder)


def widest_key(keys: Sequence[Key], settings: DetectionSettings) -> Key:
    """The first of the keys whose alignments use the most units; a text that is prepared for it can be scored under all."""
    return max(keys, key=lambda key: scoring(key, settings).limits)


def best_keys(
    text: PreparedText,
    vectors: Sequence[Vectors],
    keys: Sequence[Key],
    embedder: Embedder,
    settings: DetectionSettings,
    best: int,
    tried: int | None = None,
) -> list[AlignedDetection]:
    """The `best` keys with the highest scores, each with its p-value; `vectors` holds those of each version's units."""
    if settings.search == "auto":

        def search(chosen: DetectionSettings) -> list[AlignedDetection]:
            return best_keys(text, vectors, keys, embedder, chosen, best, tried)

        return search_in_turn(len(text.sentences), settings, search)
    versions = list(zip(text.versions, vectors, strict=True))
    numbers: dict[int, None] = {}
    for reading in text.readings:  # scores of several readings cannot be compared, so each reading has its best keys
        scores = np.max(
            [_score_keys(version.units, part, keys, settings) for version, part in versions[reading]], axis=0
        )
        numbers |= dict.fromkeys(np.argsort(-scores, kind="stable")[:best].tolist())
    detections = (
        detect_signals(text, project_text(text, vectors, key, settings), key, embedder, settings)
        for key in (keys[number] for number in numbers)
    )
    return best_first(detection.corrected(tried or len(keys)) for detection in detections)[:best]


def _score_keys(units: Units, vectors: Vectors, keys: Sequence[Key], settings: DetectionSettings) -> list[float]:
    """The raw score of each key, computed in batches of keys of the same shape."""
    scores = [0.0] * len(keys)
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
    rule = scoring(keys[0], settings, by_clauses=units.chances is not None)
    signals = (rule.signals(units, projections) for projections in project_many(vectors, keys))
    if settings.search == "excerpt":
        pairs = zip(signals, keys, strict=True)
        local = (rule.local_scores(text, key.blocks(excerpt_length(key, settings))[None])[0] for text, key in pairs)
        return [score / rule.local_unit for score in local]
    jobs = np.arange(len(keys))
    blocks = np.stack([key.derivation.blocks(rule.length(units.count)) for key in keys])
    return rule.scores(list(signals), blocks, jobs, jobs)
