"""From a text's sentences to its units, and from the units' embeddings to projections and packed bits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from alimark.alignment import LEFT, RIGHT, WHOLE, Limits, Packed
from alimark.key import Key, many_vectors, pack_bits
from alimark.text import halve, merge


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


@dataclass(frozen=True)
class Signals:
    """What the alignment sees of a text under one key."""

    packed: Packed
    valid: NDArray[np.bool_]
    near_flips: int
    """Bits of whole sentences whose projection lies within 1e-4 of zero, where another backend might flip them."""


def project(embeddings: NDArray[np.float32], key: Key) -> NDArray[np.float64]:
    """The projections of each embedding on the secret vectors, (n, M)."""
    return _centred(embeddings, key) @ key.vectors(embeddings.shape[1]).T


def _centred(embeddings: NDArray[np.float32], key: Key) -> NDArray[np.float64]:
    wide = embeddings.astype(np.float64)
    return wide if key.centre is None else wide - key.centre


def to_bits(projections: NDArray[np.float64]) -> Packed:
    """The bits of each row of projections, packed; a projection of zero gives a one."""
    flat = (projections >= 0).reshape(-1, projections.shape[-1])
    return pack_bits(flat.astype(np.uint8)).reshape(projections.shape[:-1])


def extract(units: Units, projections: NDArray[np.float64]) -> Signals:
    """The signals of a text from the projections of its units."""
    sentences = projections[units.index[:, 0, WHOLE]]
    packed = to_bits(projections)[units.index]
    return Signals(packed, units.index >= 0, int((np.abs(sentences) < 1e-4).sum()))


def extract_many(units: Units, embeddings: NDArray[np.float32], keys: list[Key]) -> Packed:
    """The packed units under each of many keys of one block size and one centre, (keys, N, runs, 4)."""
    vectors = many_vectors(keys, embeddings.shape[1])
    bits = to_bits(np.einsum("ud,kmd->kum", _centred(embeddings, keys[0]), vectors, optimize=True))
    return bits[:, units.index]
