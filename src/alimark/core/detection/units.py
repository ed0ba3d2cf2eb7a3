"""The units of a text, which are what is embedded: its sentences, merged neighbours and halves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from alimark.core._util.arrays import Floats, Ints
from alimark.core.frozen.kernels.types import LEFT, RIGHT, WHOLE, Limits
from alimark.core.frozen.text.units import halve, merge


@dataclass(frozen=True)
class Units:
    """The distinct texts that restructuring can make of some sentences.

    `index[i, m, q]` is the row in `texts` of the run of sentences i-m..i that is cut as the code q says (see
    `kernels.types`), or -1 where there is no such unit.
    """

    texts: list[str]
    index: Ints
    chances: Floats | None = None
    """Where sentence ends are not known: the probability that each run of pieces is a sentence (`detection.clauses`)."""

    @property
    def count(self) -> int:
        """The number of sentences."""
        return len(self.index)


def restructure(sentences: Sequence[str], limits: Limits) -> Units:
    """All units within the limits; up to 4N - 1 of N sentences for the paper's single step."""
    halves = [halve(sentence) if limits.splits else None for sentence in sentences]
    index = np.full((len(sentences), max(2, limits.merges + 1), 4), -1, np.int64)
    texts: dict[str, int] = {}
    for last in range(len(sentences)):
        for merges in range(min(last, limits.merges) + 1):
            for cut in (WHOLE, RIGHT, LEFT, RIGHT | LEFT):
                if limits.allow(merges, cut & 1, cut >> 1):
                    text = _run_text(sentences, halves, last - merges, last, cut)
                    if text is not None:
                        index[last, merges, cut] = texts.setdefault(text, len(texts))
    return Units(list(texts), index)


def _run_text(
    sentences: Sequence[str], halves: Sequence[tuple[str, str] | None], first: int, last: int, cut: int
) -> str | None:
    """The text of a run of sentences, or None where a sentence to be cut cannot be halved."""
    parts = list(sentences[first : last + 1])
    for is_cut, place, side in ((cut & RIGHT, 0, 1), (cut & LEFT, -1, 0)):
        if is_cut:
            half = halves[first if place == 0 else last]
            if half is None:
                return None
            parts[place] = half[side]
    return merge(parts)
