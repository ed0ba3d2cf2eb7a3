"""Texts and their paraphrases: which sentences stand for each other, and what directions are learned from them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from alimark.core._util.arrays import Floats
from alimark.core._util.compiling import kernel
from alimark.core.embedding.base import Embedder
from alimark.lab.directions import Statistics
from alimark.lab.learning import embedded

_SINGLE, _DOUBLE = 0.35, 0.4  # the cosine above which matching one sentence, or one with two, beats leaving them out


class Pair(NamedTuple):
    """The sentences of a text and of its paraphrase."""

    original: Sequence[str]
    paraphrase: Sequence[str]


def pair_statistics(pairs: Sequence[Pair], embedder: Embedder) -> Statistics:
    """The statistics of texts and their paraphrases, whose sentences are aligned by their cosines."""
    rows: dict[str, int] = {}
    for pair in pairs:
        for sentence in (*pair.original, *pair.paraphrase):
            rows.setdefault(sentence, len(rows))
    vectors = embedded(list(rows), embedder)
    statistics = Statistics(embedder.dimension)
    seen: set[tuple[str, ...]] = set()
    for pair in pairs:
        original, paraphrase = (vectors[[rows[s] for s in part]].astype(np.float64) for part in pair)
        if tuple(pair.original) not in seen:  # a text with several paraphrases is one text
            seen.add(tuple(pair.original))
            statistics.add_text(original)
        links = aligned(original, paraphrase)
        if len(links):
            statistics.add_noise(original[links[:, 0]] - paraphrase[links[:, 1]])
    return statistics


def aligned(original: Floats, paraphrase: Floats) -> NDArray[np.int64]:
    """The sentences of a text and of its paraphrase that stand for each other one to one, as rows (i, j).

    The alignment with the largest sum of cosines is taken, in order; a sentence may be left out, and one may stand for two,
    which are not returned: their embedding is not that of a sentence.
    """
    cosines = original @ paraphrase.T
    first = _neighbours(original) @ paraphrase.T
    second = original @ _neighbours(paraphrase).T
    moves = np.zeros((len(original) + 1, len(paraphrase) + 1), np.int8)
    _align(cosines, first, second, moves)
    links, i, j = [], len(original), len(paraphrase)
    steps = ((0, 0), (1, 0), (0, 1), (1, 1), (2, 1), (1, 2))
    while i or j:
        down, right = steps[moves[i, j]]
        if down == right == 1:
            links.append((i - 1, j - 1))
        i, j = i - down, j - right
    return np.array(links[::-1], np.int64).reshape(-1, 2)


def _neighbours(vectors: Floats) -> Floats:
    """Approximate embeddings of each sentence together with the next one."""
    sums = vectors[:-1] + vectors[1:]
    return np.asarray(sums / np.maximum(np.linalg.norm(sums, axis=1, keepdims=True), 1e-12))


@kernel()
def _align(cosines: Any, first: Any, second: Any, moves: Any) -> None:
    n, m = cosines.shape
    best = np.zeros((n + 1, m + 1))
    for i in range(n + 1):
        for j in range(m + 1):
            value, move = -1.0, 0
            if i == 0 and j == 0:
                value = 0.0
            if i > 0 and best[i - 1, j] > value:
                value, move = best[i - 1, j], 1
            if j > 0 and best[i, j - 1] > value:
                value, move = best[i, j - 1], 2
            if i > 0 and j > 0 and best[i - 1, j - 1] + cosines[i - 1, j - 1] - _SINGLE > value:
                value, move = best[i - 1, j - 1] + cosines[i - 1, j - 1] - _SINGLE, 3
            if i > 1 and j > 0:
                candidate = best[i - 2, j - 1] + 1.5 * (first[i - 2, j - 1] - _DOUBLE)
                if candidate > value:
                    value, move = candidate, 4
            if i > 0 and j > 1:
                candidate = best[i - 1, j - 2] + 1.5 * (second[i - 1, j - 2] - _DOUBLE)
                if candidate > value:
                    value, move = candidate, 5
            best[i, j], moves[i, j] = value, move
