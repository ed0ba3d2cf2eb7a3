"""An estimate of the CPU time that the detection of a text takes, by which the service refuses or shortens it.

Nearly all of the time is spent in the alignments of the text with random keys, and that of an alignment is proportional to the
cells of its table.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from alimark.core.detection.excerpts import excerpt_length
from alimark.core.detection.preparing import PreparedText
from alimark.core.detection.scoring import scoring
from alimark.core.detection.searching import EARLY_STOP
from alimark.core.detection.settings import DetectionSettings
from alimark.core.keys.key import Key

_HARD, _SOFT, _PAYLOAD, _PASSAGE, _RUN = 10e-9, 45e-9, 100e-9, 10e-9, 12e-9
"""CPU seconds for a cell, measured on a machine of 2026: alignments of hard keys, soft keys and soft keys with payloads, the
search for a passage, and alignments of the pieces of a text that is read by clauses."""
_ROUGH = 0.1
"""P-values above this, corrected for the keys tried, need no precision."""


def detection_seconds(text: PreparedText, keys: Iterable[Key], settings: DetectionSettings) -> float:
    """Estimates the CPU time of one key's detection in a text, with all random keys of the settings.

    With many keys the best few get random keys, but a text is marked under one of them: the drawing for the others stops early
    (`stop_after`).

    Args:
        text: The text as it was cut for these keys.
        keys: Keys that are searched together; the most expensive one counts.
        settings: The settings, with the number of random keys that is drawn.

    Returns:
        Seconds of one core.
    """
    shapes = {(key.block_size, key.soft_version, key.offsets, key.payload_bits, key.soft): key for key in keys}
    return settings.draws * max(_alignment_seconds(text, key, settings) for key in shapes.values())


def stop_after(settings: DetectionSettings, tried: int) -> int:
    """After how many random keys that score as high the drawing for an expensive text stops.

    Its p-value, corrected for the keys tried, is then well above every false-positive rate that a request may name.

    Example:
        >>> [stop_after(DetectionSettings(draws=draws), tried) for draws, tried in ((1000, 1), (1000, 3), (80_000, 400))]
        [50, 34, 20]
    """
    return min(EARLY_STOP, math.ceil(_ROUGH * settings.draws / tried))


def _alignment_seconds(text: PreparedText, key: Key, settings: DetectionSettings) -> float:
    """The CPU time of a text's alignments with one key."""
    counts = [len(version.sentences) for version in text.versions]
    searches = settings.searches(text.longest)
    seconds = 0.0
    for version, count in zip(text.versions, counts, strict=True):
        if "excerpt" in searches:
            seconds += _PASSAGE * count * excerpt_length(key, settings)
        if "whole" in searches:
            chances = version.units.chances
            length = scoring(key, settings, by_clauses=chances is not None).length(count)
            seconds += count * length * (_cell_seconds(key) if chances is None else _RUN * chances.shape[1])
    return seconds


def _cell_seconds(key: Key) -> float:
    if not key.soft:
        return _HARD * key.offsets  # a soft key is searched once for all its starts, a hard one for each of them
    return _PAYLOAD if key.payload_bits else _SOFT
