"""Loads the compiled kernels of a detection before they are needed."""

from __future__ import annotations

import numpy as np

from alimark.core.detection.batching import signals_of
from alimark.core.detection.scoring import scoring
from alimark.core.detection.searching import score
from alimark.core.detection.settings import DetectionSettings
from alimark.core.detection.units import restructure
from alimark.core.keys.key import Key


def warm_up(key: Key, settings: DetectionSettings) -> None:
    """Scores two sentences under a key, so that a thread can load its kernels while another loads the embedder.

    Args:
        key: An AliMark key.
        settings: The settings of the detection; passages have kernels of their own.
    """
    if settings.search == "auto":
        settings = DetectionSettings()
    units = restructure(["The lamp went out at ten.", "Nobody saw it go out."], scoring(key, settings).limits)
    signals = signals_of(units, np.ones((len(units.texts), key.block_size)), key, settings)
    score([signals], key, settings).null_scores(0, 2)
