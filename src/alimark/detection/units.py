"""The units of a text: its sentences, merged neighbours and halves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from alimark.detection.kernels.types import LEFT, RIGHT, WHOLE, Limits
from alimark.text.units import halve, merge


@dataclass(frozen=True)
class Units:
    """The distinct unit texts that restructuring can make of some sentences.

    `index[i, m, q]` is the unit of the run i-m..i with the code q of `alignment`, -1 where there is none.
    """

    texts: list[str]
    index: NDArray[np.int64]

    @property
    def count(self) -> int:
        return len(self.index)


def restructure(sentences: Sequence[str], limits: Limits) -> Units:
    """All units within `limits`; up to 4N - 1 of them for the paper's single step."""
    halves = [halve(sentence) if limits.splits else None for sentence in sentences]
    index = np.full((len(sentences), max(2, limits.merges + 1), 4), -1, np.int64)
    texts: dict[str, int] = {}
    for i in range(len(sentences)):
        for m in range(min(i, limits.merges) + 1):
            for q in (WHOLE, RIGHT, LEFT, RIGHT | LEFT):
                if limits.allow(m, q & 1, q >> 1):
                    text = _run(sentences, halves, i - m, i, q)
                    if text is not None:
                        index[i, m, q] = texts.setdefault(text, len(texts))
    return Units(list(texts), index)


def _run(
    sentences: Sequence[str], halves: Sequence[tuple[str, str] | None], first: int, last: int, q: int
) -> str | None:
    """The text of a run of sentences, or None where a half it needs does not exist."""
    parts = list(sentences[first : last + 1])
    for wanted, at, side in ((q & RIGHT, 0, 1), (q & LEFT, -1, 0)):
        if wanted:
            half = halves[first if at == 0 else last]
            if half is None:
                return None
            parts[at] = half[side]
    return merge(parts)
