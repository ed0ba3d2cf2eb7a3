"""AliMark's detection of many texts under one key or several, from texts to results, as a pipeline of stages.

    text --prepare--> PreparedText                                                  (`preparing`)
    many PreparedText --embed_texts--> EmbeddedTexts                                (`batching`)
    PreparedText, EmbeddedTexts, keys --answer--> the best AlignedDetection         (`searching`)

`detect_batch` runs all of them. The service runs the same stages in threads of its own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from alimark.core._util.progress import with_line
from alimark.core._util.work import Beat, Clock
from alimark.core.detection.aligned_results import AlignedDetection
from alimark.core.detection.batching import embed_texts, signals_of
from alimark.core.detection.interleaving import with_interleaved
from alimark.core.detection.preparing import PreparedText, alike, prepare, prepare_each, with_variants
from alimark.core.detection.scoring import scoring
from alimark.core.detection.searching import answer, score
from alimark.core.detection.settings import DetectionSettings
from alimark.core.detection.stats.p_values import NullScores
from alimark.core.detection.units import restructure
from alimark.core.embedding.base import Embedder, at_precision
from alimark.core.keys.key import Key
from alimark.errors import AlimarkError

if TYPE_CHECKING:
    from alimark.core.llm.base import LLM


def detect_batch(
    texts: Iterable[str | PreparedText],
    keys: Sequence[Key],
    embedder: Embedder,
    settings: DetectionSettings,
    *,
    best: int = 1,
    tried: int | None = None,
    llm: LLM | None = None,
    times: Counter[str] | None = None,
    beat: Beat = lambda: None,
) -> list[list[AlignedDetection] | AlimarkError]:
    """Detects many texts under one key or several, with the units of all texts in one embedding batch.

    The keys are of one group of `alike`, and all random keys are drawn, however many keys there are. P-values are corrected
    for `tried` keys, by default all of `keys`. The seconds of each stage are added to `times`, and `beat` is called before
    every step that a single text can make long. For each text there are the detections under the `best` keys, best first, or
    the error of a text that cannot be searched. Raises KeyMismatch for another embedder, and ModelError where it lacks the
    precision.
    """
    if not keys:
        raise AlimarkError("no keys were given; give at least one")
    if len(alike(keys)) > 1:
        raise AlimarkError(
            "keys of several embedders, splitters or decisions, or with and without payloads, cannot share one "
            "embedding; detect with the keys of each kind separately"
        )
    for key in keys:
        key.check(embedder)
    embedder = at_precision(embedder, settings.precision)
    clock = Clock(Counter() if times is None else times)
    prepared = prepare_each(texts, keys[0], embedder, settings, beat)
    clock.lap("splitting")
    sound = [text for text in prepared if isinstance(text, PreparedText)]
    sound = with_variants(sound, keys[0], embedder, settings, llm)
    if settings.learned:
        clock.lap("restructuring")
    embedded = embed_texts(sound, embedder, keys[0] if len(keys) == 1 else None)
    clock.lap("embedding")

    def detections(text: PreparedText) -> list[AlignedDetection]:
        beat()
        return answer(text, embedded, keys, embedder, settings, best=best, tried=tried)

    answers = map(detections, with_line("detecting", sound))
    results = [text if isinstance(text, AlimarkError) else next(answers) for text in prepared]
    clock.lap("alignment")
    return results


def null_scorers(
    texts: Sequence[str], readings: Sequence[str], key: Key, embedder: Embedder, settings: Sequence[DetectionSettings]
) -> list[NullScores]:
    """For each text a function that scores it under random keys, which are the same for every text.

    Each text has one of its readings and settings of its own, all with the same precision.
    """
    if not texts:
        return []
    key.check(embedder)
    embedder = at_precision(embedder, settings[0].precision)
    versions: list[PreparedText] = []
    for text, reading, chosen in zip(texts, readings, settings, strict=True):
        prepared = prepare(text, key, embedder, chosen)
        readings_of: dict[str, PreparedText] = {version.reading: version for version in reversed(prepared.versions)}
        # Regular sentences and those between are of the last reading that has sentences.
        whole = readings_of.get("undisguised", readings_of["normalised"])
        versions.append(replace(readings_of.get(reading, whole), variants=(), further=()))
    embedded = embed_texts(versions, embedder, key)
    scorers = []
    for version, reading, chosen in zip(versions, readings, settings, strict=True):
        read, signals = with_interleaved(version, embedded.signals(version, key, chosen))
        names = [further.reading for further in read.versions]
        place = names.index(reading) if reading in names else 0
        scorers.append(score(signals[place : place + 1], key, chosen).null_scores)
    return scorers


def warm_up(key: Key, settings: DetectionSettings) -> None:
    """Scores two sentences under a key, so that a thread can load its kernels while another loads the embedder."""
    if settings.search == "auto":
        settings = DetectionSettings()
    units = restructure(["The lamp went out at ten.", "Nobody saw it go out."], scoring(key, settings).limits)
    signals = signals_of(units, np.ones((len(units.texts), key.block_size)), key, settings)
    score([signals], key, settings).null_scores(0, 2)
