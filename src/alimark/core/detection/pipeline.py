"""AliMark's detection of many texts under one key, from texts to results, as a pipeline of stages.

    text --normalise--> Normalised --split--> SplitText --make_units--> PreparedText     (`preparing`; `prepare` runs these)
    many PreparedText --deduplicate--> UniqueUnits --embed--> vectors --project--> Signals of each text    (`batching`)
    Signals --score--> Score --significance_of--> Significance --describe--> AlignedDetection    (`searching`)

`detect_batch` runs all of them. Other callers run the same stages and add batching or threads: `many_keys` (many keys on one
embedding), the service's checker (texts of many requests in one batch), `calibration.rates` (many texts against the same
random keys) and the sentence-level schemes (their own projection and statistic).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from alimark.core.detection.aligned_results import AlignedDetection
from alimark.core.detection.batching import deduplicate, embed_and_project, signals_of
from alimark.core.detection.preparing import PreparedText, prepare, prepare_each, with_variants
from alimark.core.detection.searching import detect_signals, score
from alimark.core.detection.settings import DetectionSettings
from alimark.core.detection.signals import Signals
from alimark.core.detection.stats.p_values import NullScores
from alimark.core.detection.timing import Beat, Clock, no_beat
from alimark.core.embedding.base import Embedder
from alimark.core.embedding.precision import at_precision
from alimark.core.keys.key import Key
from alimark.core.keys.projection import project
from alimark.errors import AlimarkError

if TYPE_CHECKING:
    from alimark.core.llm.base import LLM

Keep = Callable[[PreparedText, list[Signals], AlignedDetection], None]


def detect_batch(
    texts: Iterable[str | PreparedText],
    key: Key,
    embedder: Embedder,
    settings: DetectionSettings,
    *,
    llm: LLM | None = None,
    times: Counter[str] | None = None,
    beat: Beat = no_beat,
    keep: Keep | None = None,
) -> list[AlignedDetection | AlimarkError]:
    """Detects many texts under one key, with the units of all of them in one embedding batch.

    Args:
        texts: The texts; those that were prepared for these settings are not prepared again.
        key: An AliMark key.
        embedder: The embedder that the key names.
        settings: How to search.
        llm: The chat model of learned restructuring.
        times: The seconds of each stage are added to this counter.
        beat: Called before every step that a single text can make long.
        keep: Called with each text that was searched, the signals of each of its versions, and its result.

    Returns:
        A result for each text, in order; for a text that cannot be searched, its error.

    Raises:
        KeyMismatch: The embedder is not the one that the key names.
        ModelError: The embedder does not offer the precision of the settings.
    """
    key.check(embedder)
    embedder = at_precision(embedder, settings.precision)
    clock = Clock(Counter() if times is None else times)
    prepared = prepare_each(texts, key, embedder, settings, beat)
    clock.lap("splitting")
    sound = with_variants([text for text in prepared if isinstance(text, PreparedText)], key, embedder, settings, llm)
    if settings.learned:
        clock.lap("restructuring")
    units = deduplicate(text.unit_texts for text in sound)
    projections = embed_and_project(units, embedder, lambda vectors: project(vectors, key))
    clock.lap("embedding")

    def detect(text: PreparedText) -> AlignedDetection:
        beat()
        signals = [
            signals_of(version.units, projections[units.rows(version.units.texts)], key, settings)
            for version in text.versions
        ]
        detection = detect_signals(text, signals, key, embedder, settings)
        if keep is not None:
            keep(text, signals, detection)
        return detection

    detections = map(detect, sound)
    answers = [text if isinstance(text, AlimarkError) else next(detections) for text in prepared]
    clock.lap("alignment")
    return answers


def null_scorers(
    texts: Sequence[str], readings: Sequence[str], key: Key, embedder: Embedder, settings: Sequence[DetectionSettings]
) -> list[NullScores]:
    """For each text a function that scores it under random keys, which are the same for every text.

    Args:
        texts: The texts, which are embedded together.
        readings: Which of its readings each text is scored in.
        key: The key whose random keys are drawn.
        embedder: The embedder that the key names.
        settings: The settings of each text, with the same precision.

    Returns:
        Functions of the number of the first random key and of how many follow.
    """
    if not texts:
        return []
    key.check(embedder)
    embedder = at_precision(embedder, settings[0].precision)
    versions: list[PreparedText] = []
    for text, reading, chosen in zip(texts, readings, settings, strict=True):
        prepared = prepare(text, key, embedder, chosen)
        versions.append(next((one for one in prepared.versions if one.reading == reading), prepared))
    units = deduplicate([version.units.texts for version in versions])
    projections = embed_and_project(units, embedder, lambda vectors: project(vectors, key))
    scorers = []
    for version, chosen in zip(versions, settings, strict=True):
        signals = signals_of(version.units, projections[units.rows(version.units.texts)], key, chosen)
        scorers.append(score([signals], key, chosen).null_scores)
    return scorers
