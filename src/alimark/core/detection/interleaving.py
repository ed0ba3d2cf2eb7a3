"""Further readings of a text in which sentences about something else stand between the others in a regular pattern.

Whether there are such readings depends on how similar the projections of the sentences are, and on no block of a key: random
keys see the same projections, so that a p-value which is multiplied by the number of readings is valid.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from alimark.core._util.arrays import Floats
from alimark.core.detection.aligned_results import Reading
from alimark.core.detection.preparing import PreparedText
from alimark.core.detection.settings import LONG_TEXT
from alimark.core.detection.units import Signals, Units

_STEPS = (2, 3, 4)
"""Every second, third or fourth sentence may belong together."""
_LEAST = 6
"""At least so many sentences belong together."""
_CONTRAST = 3.4
"""They are as much more similar to each other than to those between, in standard deviations of the mean similarity."""


def every_few(projections: Floats) -> NDArray[np.bool_] | None:
    """The sentences at regular places that are similar to each other and not to those between; None where there are none.

    What a sentence has in common with all others is taken away first, so that a general one does not stand out.

    Args:
        projections: The projections of each sentence, a row each.
    """
    count = len(projections)
    if not 2 * _LEAST <= count <= LONG_TEXT:
        return None
    rows = projections / np.maximum(np.linalg.norm(projections, axis=1, keepdims=True), 1e-9)
    similar = rows @ rows.T
    others = 1.0 - np.eye(count)
    means = (similar * others).sum(axis=1) / (count - 2)
    similar = (similar - means[:, None] - means + means.mean() * (count - 2) / (count - 1)) * others
    size = float(similar[others > 0].std()) or 1.0
    best, chosen = _CONTRAST, None
    for step in _STEPS:
        for start in range(step):
            mask = np.arange(count) % step == start
            pairs = mask.sum() * (mask.sum() - 1)
            if mask.sum() >= _LEAST:
                contrast = similar[np.ix_(mask, mask)].sum() / pairs - similar[np.ix_(mask, ~mask)].mean()
                if contrast / size * np.sqrt(pairs / 2) > best:
                    best, chosen = float(contrast / size * np.sqrt(pairs / 2)), mask
    return chosen


def with_interleaved(text: PreparedText, signals: Sequence[Signals]) -> tuple[PreparedText, list[Signals]]:
    """A text and its signals under a soft key, with regular sentences and those between as readings where there are some."""
    whole, last = text.versions[-1], signals[-1]
    # Pieces of a text that is read by clauses are no sentences, and a chat model leaves out what is out of place.
    if text.variants or last.soft is None or last.chances is not None or (mask := every_few(last.soft)) is None:
        return text, list(signals)
    further, added = list(text.further), list(signals)
    names: tuple[Reading, Reading] = ("regular sentences", "sentences between")
    for kept, name in zip((mask, ~mask), names, strict=True):
        valid = last.valid[kept]
        valid[:, 1:] = False  # merged neighbours are no neighbours any more
        sentences = [whole.sentences[place] for place in np.flatnonzero(kept)]
        units = Units([], whole.units.index[kept])
        further.append(replace(whole, sentences=sentences, units=units, reading=name, further=()))
        added.append(Signals(last.packed[kept], valid, last.near_flips, last.soft[kept]))
    return replace(text, further=tuple(further)), added
