"""From a text's sentences to its units, and from the units' embeddings to projections and packed bits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from alimark.alignment import LEFT, RIGHT, WHOLE, Floats, Limits, Packed
from alimark.directions import mean
from alimark.errors import ModelError
from alimark.exact import pack_bits
from alimark.key import Key, many_vectors
from alimark.soft import worth_tables
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
    """The bits of every unit, as `Units.index` orders them."""
    valid: NDArray[np.bool_]
    near_flips: int = 0
    """Bits of whole sentences whose projection lies within 1e-4 of zero, where another backend might flip them."""
    soft: Floats | None = None
    """Of soft keys: the projections of each sentence and of each with the one before, (N, 1 or 2, M)."""

    @cached_property
    def tables(self) -> Floats:
        assert self.soft is not None
        return worth_tables(self.soft)

    @property
    def joinable(self) -> NDArray[np.bool_]:
        """Whether a sentence has a unit together with the one before."""
        return np.ascontiguousarray(self.valid[:, 1, WHOLE])

    def part(self, start: int, stop: int) -> Signals:
        """Of some of the sentences; a merge with the sentence before would leave the range."""
        valid = self.valid[start:stop].copy()
        valid[0, 1:] = False
        return Signals(self.packed[start:stop], valid, soft=None if self.soft is None else self.soft[start:stop])


def project(embeddings: NDArray[np.float32], key: Key) -> NDArray[np.float64]:
    """The projections of each embedding on the secret vectors, (n, M)."""
    return _centred(embeddings, key) @ key.vectors(embeddings.shape[1]).T


def _centred(embeddings: NDArray[np.float32], key: Key) -> NDArray[np.float64]:
    wide = embeddings.astype(np.float64)
    if not np.isfinite(wide).all():
        raise ModelError("the embedder gave vectors that hold no numbers; its weights may be damaged")
    centre: NDArray[np.floating] | None = key.centre
    if centre is None and key.soft:
        centre = mean(key.fingerprint)
    return wide if centre is None else wide - centre


def targets(key: Key, count: int, start: int = 0) -> Floats:
    """`count` blocks from number `start` on as directions, +1 for a one and -1 for a zero, each row of length 1."""
    m = np.uint64(key.block_size)
    shifts = np.arange(m, dtype=np.uint64)[::-1]
    signs = (key.blocks(start + count)[start:, None] >> shifts & np.uint64(1)).astype(np.float64) * 2 - 1
    directions: Floats = signs / np.sqrt(float(m))
    return directions


class Carried(NamedTuple):
    """What a unit carries of a block: bits that agree, and what selection goes by."""

    bits: int
    worth: float
    """The bits that agree, or for a soft decision how far the unit lies along the block's direction."""


def carried(projections: Floats, target: Floats, key: Key) -> list[Carried]:
    """Of each unit, a row of projections, and the block whose direction is `target`."""
    bits = ((projections >= 0) == (target > 0)).sum(axis=1)
    worths = projections @ target if key.soft else bits
    return list(map(Carried, bits.tolist(), worths.tolist()))


def to_bits(projections: NDArray[np.float64]) -> Packed:
    """The bits of each row of projections, packed; a projection of zero gives a one."""
    flat = (projections >= 0).reshape(-1, projections.shape[-1])
    return pack_bits(flat.astype(np.uint8)).reshape(projections.shape[:-1])


def project_many(embeddings: NDArray[np.float32], keys: list[Key]) -> Floats:
    """The projections under each of many keys of one block size, span and centre, (keys, n, M)."""
    vectors = many_vectors(keys, embeddings.shape[1])
    found: Floats = np.einsum("ud,kmd->kum", _centred(embeddings, keys[0]), vectors, optimize=True)
    return found
