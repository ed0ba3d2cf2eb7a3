"""Whose key it was: many keys on one embedding of a text, random keys for the likeliest alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from alimark._util.arrays import Floats
from alimark.detection.pipeline import (
    Beat,
    Clock,
    Prepared,
    detect_prepared,
    no_beat,
    parts,
    prepare,
    prepare_each,
    with_others,
)
from alimark.detection.results import AlignedDetection
from alimark.detection.scoring import scoring
from alimark.detection.settings import DetectionSettings
from alimark.detection.stats.p_values import MAX_DRAWS
from alimark.detection.units import Units
from alimark.embedding.base import Embedder
from alimark.errors import AlimarkError
from alimark.keys.key import Key
from alimark.keys.projection import project, project_many

if TYPE_CHECKING:
    from alimark.llm.base import LLM


def detect_keys(
    text: str,
    keys: Sequence[Key],
    embedder: Embedder,
    settings: DetectionSettings,
    *,
    best: int = 3,
    llm: LLM | None = None,
) -> list[AlignedDetection]:
    """Whose key it was: the best few of many keys, each p-value corrected for the number of keys tried.

    All keys are scored once on one embedding of the text; random keys, at least 200 for each key tried, are drawn for the
    best few alone. The keys may differ in block size and centre, not in embedder and splitter.
    """
    _check_alike(keys, embedder)
    [prepared] = with_others([prepare(text, keys[0], embedder, settings)], keys[0], embedder, settings, llm)
    # 200 a key for the usual 1000 draws, and more in proportion where a stricter rate asked for more.
    draws = max(settings.draws, settings.draws * len(keys) // 5)
    settings = replace(settings, draws=min(draws, MAX_DRAWS))
    vectors = [embedder.embed(one.units.texts) for one in prepared.every]
    return best_keys(prepared, vectors, keys, embedder, settings, best)


def detect_keys_batch(
    texts: Iterable[str],
    keys: Sequence[Key],
    embedder: Embedder,
    settings: DetectionSettings,
    *,
    tried: int | None = None,
    times: Counter[str] | None = None,
    beat: Beat = no_beat,
) -> list[AlignedDetection | AlimarkError]:
    """For each text the likeliest of many keys, p-values corrected for their number; all units go in one embedding batch.

    `tried`: the number of keys, where others than these are tried on the same texts, too. Random keys are as many as the
    settings say, however many keys there are: a corpus asks again where that is too coarse.
    """
    _check_alike(keys, embedder)
    if settings.learned:
        raise AlimarkError("learned restructuring asks about one text at a time; take single or none for many")
    clock = Clock(Counter() if times is None else times)
    prepared = prepare_each(texts, keys[0], embedder, settings, beat)
    clock.lap("splitting")
    sound = [one for one in prepared if isinstance(one, Prepared)]
    place = {unit: i for i, unit in enumerate(dict.fromkeys(unit for one in sound for unit in one.unit_texts))}
    vectors = embedder.embed(list(place)) if place else np.empty((0, embedder.dimension), np.float32)
    clock.lap("embedding")

    def best(one: Prepared) -> AlignedDetection:
        beat()
        own = vectors[[place[unit] for unit in one.unit_texts]]
        return best_keys(one, [own], keys, embedder, settings, 1, tried)[0]

    answers = [one if isinstance(one, AlimarkError) else best(one) for one in prepared]
    clock.lap("alignment")
    return answers


def _check_alike(keys: Sequence[Key], embedder: Embedder) -> None:
    if not keys:
        raise AlimarkError("no keys were given")
    if len({(key.fingerprint, key.splitter) for key in keys}) > 1:
        raise AlimarkError("keys of several embedders or splitters cannot share one embedding; ask for each apart")
    for key in keys:
        key.check(embedder)
    if len({key.soft for key in keys}) > 1:
        raise AlimarkError("hard and soft keys have scores of different kinds; ask for each kind apart")


def best_keys(
    prepared: Prepared,
    vectors: Sequence[NDArray[np.float32]],
    keys: Sequence[Key],
    embedder: Embedder,
    settings: DetectionSettings,
    best: int,
    tried: int | None = None,
) -> list[AlignedDetection]:
    """The few keys that score highest, each held against random keys."""
    pairs = list(zip(prepared.every, vectors, strict=True))
    scores = np.max([_score_keys(one.units, own, keys, settings) for one, own in pairs], axis=0)
    found = [
        detect_prepared(
            prepared,
            [scoring(keys[k], settings).signals(one.units, project(own, keys[k])) for one, own in pairs],
            keys[k],
            embedder,
            settings,
        )
        for k in sorted(range(len(keys)), key=lambda k: -scores[k])[:best]
    ]
    return sorted((one.corrected(tried or len(keys)) for one in found), key=lambda one: (one.p_value, -one.score))


def _score_keys(
    units: Units, embeddings: NDArray[np.float32], keys: Sequence[Key], settings: DetectionSettings
) -> list[float]:
    """The raw score of each key, in parts of keys that are alike."""
    scores = [0.0] * len(keys)
    groups: dict[tuple[int, int | None, int, int, bytes], list[int]] = {}
    for number, key in enumerate(keys):
        centre = b"" if key.centre is None else key.centre.tobytes()
        groups.setdefault((key.block_size, key.span, key.soft_version, key.offsets, centre), []).append(number)
    for members in groups.values():
        for part in parts(members, _keys_together(units, keys[members[0]])):
            found = _score_part(units, embeddings, [keys[number] for number in part], settings)
            for number, score in zip(part, found, strict=True):
                scores[number] = float(score)
    return scores


def _keys_together(units: Units, key: Key) -> int:
    """Keys scored in one go: soft ones keep tables of every sentence, of which 64 MB at a time are enough."""
    return max(1, 4_000_000 // (units.count * key.block_size * 64)) if key.soft else 256


def _score_part(
    units: Units, embeddings: NDArray[np.float32], keys: list[Key], settings: DetectionSettings
) -> Floats | list[float]:
    rule = scoring(keys[0], settings)
    every = (rule.signals(units, projections) for projections in project_many(embeddings, keys))
    if settings.search == "excerpt":
        blocks = (key.blocks(settings.max_blocks + key.offsets - 1)[None] for key in keys)
        found = (rule.local_scores(own, block)[0] for own, block in zip(every, blocks, strict=True))
        return [score / rule.local_unit for score in found]
    jobs = np.arange(len(keys))
    return rule.scores(list(every), np.stack([key.blocks(rule.length(units.count)) for key in keys]), jobs, jobs)
