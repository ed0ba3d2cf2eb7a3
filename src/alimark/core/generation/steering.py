"""Steering: a bias on the model's tokens towards sentences that carry the next block.

Of a few words one knows what they add to a sentence's embedding: `word_vectors.npz` holds it for the directions of an embedder's
table. It was learned by tools/word_vectors.py from how the sentences differ that a model wrote after the same context; no key and
no model's vocabulary is involved. When texts are written, the words become tokens of the model's vocabulary, and each
token's score is raised by how much it moves a sentence along the block's direction, times a strength. So more of the
candidates lie where the block is, and fewer of them are needed. Keys, detection and the choice among candidates stay as
they are, so all p-values stay valid.

A bias is linear in the secret direction of a block. Who sees many of them can forge the mark, so they stay in this process, or
go to a server that the user has declared trusted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Self

import numpy as np
from numpy.typing import NDArray

from alimark.core.keys.projection import table_of
from alimark.core.llm.base import TakesBias

if TYPE_CHECKING:
    from alimark.core._util.arrays import Floats
    from alimark.core.keys.key import Key
    from alimark.core.llm.base import LLM, TokenBias

FILE = Path(__file__).with_name("word_vectors.npz")
MOST = 2.0
"""No token's score is changed by more, so that the likeliest token of a text that must go on keeps its chance."""


@dataclass(frozen=True, eq=False)
class WordVectors:
    """What words add to a sentence's projections on a table of directions: a row for each word, the most frequent first.

    A row is in standard deviations of the projections of sentences that a model writes after one context.
    """

    words: tuple[str, ...]
    rows: NDArray[np.float32]
    counts: NDArray[np.float32]
    """How frequent each word is, in any unit."""

    @classmethod
    @cache
    def of(cls, digest: str, file: Path = FILE) -> Self | None:
        """The words of the table with this digest that ship with the package; None for other tables."""
        with np.load(file, allow_pickle=False) as content:
            if f"{digest}/words" not in content:
                return None
            words = content[f"{digest}/words"].tobytes().decode().split("\n")
            rows = content[f"{digest}/rows"].astype(np.float32) * content[f"{digest}/scales"].astype(np.float32)[:, None]
            return cls(tuple(words), rows, content[f"{digest}/counts"].astype(np.float32))

    def arrays(self, digest: str) -> dict[str, NDArray[np.generic]]:
        """The arrays that `of` reads, for `numpy.savez_compressed`: rows of 8-bit numbers with a scale each."""
        scales = np.maximum(np.abs(self.rows).max(axis=1), 1e-6) / 127
        return {
            f"{digest}/words": np.frombuffer("\n".join(self.words).encode(), np.uint8),
            f"{digest}/rows": np.rint(self.rows / scales[:, None]).astype(np.int8),
            f"{digest}/scales": scales.astype(np.float16),
            f"{digest}/counts": self.counts.astype(np.float32),
        }


@dataclass(frozen=True, eq=False)
class TokenVectors:
    """What each token of a model's vocabulary adds to a sentence's projections: a row for each token."""

    rows: NDArray[np.float32]
    counts: NDArray[np.float32]
    """How frequent the words are that begin with each token."""
    limit: int | None = None
    """The most tokens that can have a bias."""

    @classmethod
    def of(cls, words: WordVectors, llm: TakesBias) -> Self | None:
        """The vectors of a model's tokens; None if words cannot be told apart in its tokens.

        A word that is one token gives the token its vector. The first token of longer words gets the mean of the words that
        begin with it, by frequency, and each further token an equal part of what then is missing.
        """
        spelled = [" " + word for word in words.words] + [" " + word.capitalize() for word in words.words]
        tokens = _tokens_of(llm, spelled)
        if tokens is None:
            return None
        size = 1 + max(token for ids in tokens for token in ids)
        rows, counts = np.tile(words.rows, (2, 1)), np.tile(words.counts, 2)
        first = _means(size, [ids[0] for ids in tokens], rows, counts)
        longer = [number for number, ids in enumerate(tokens) if len(ids) > 1]
        owners = [number for number in longer for _ in tokens[number][1:]]
        missing = rows - first[[ids[0] for ids in tokens]]
        shares = np.array([len(tokens[number]) - 1 for number in owners])[:, None]
        further = [token for number in longer for token in tokens[number][1:]]
        rest = _means(size, further, missing[owners] / shares, counts[owners])
        begun = np.zeros(size, np.float32)
        np.add.at(begun, [ids[0] for ids in tokens], counts)
        return cls(np.where(begun[:, None] > 0, first, rest), begun, llm.bias_limit)

    def bias(self, direction: Floats, strength: float) -> TokenBias:
        """What is added to the score of each token so that sentences move along a direction of the table.

        Words get as much less as the bias makes all of them likelier together: otherwise fewer sentences would end.
        """
        bias = np.clip(strength * (self.rows @ direction.astype(np.float32)), -MOST, MOST)
        bias[self.counts > 0] -= np.log(np.average(np.exp(bias), weights=self.counts))
        if self.limit is not None and self.limit < len(bias):
            bias[np.argpartition(-np.abs(bias), self.limit)[self.limit :]] = 0
        return bias


class Steering:
    """What steers one model towards the blocks of keys; the vectors of its tokens are made once for each table of directions.

    Example:
        >>> from alimark import Key
        >>> from alimark.testing import StandInEmbedder, StandInLLM
        >>> steering = Steering(StandInLLM())
        >>> steering.vectors(Key.generate(embedder=StandInEmbedder(), secret=bytes(32))) is None
        True
    """

    def __init__(self, llm: LLM) -> None:
        self._llm = llm
        self._vectors: dict[str, TokenVectors | None] = {}

    def vectors(self, key: Key) -> TokenVectors | None:
        """The vectors for a key; None where the model cannot be steered towards its blocks, or must not be."""
        table = table_of(key)
        if table is None or not isinstance(self._llm, TakesBias) or not self._llm.bias_stays_here:
            return None
        if table.digest not in self._vectors:
            words = WordVectors.of(table.digest)
            self._vectors[table.digest] = None if words is None else TokenVectors.of(words, self._llm)
        return self._vectors[table.digest]


def _tokens_of(llm: TakesBias, words: Sequence[str]) -> list[list[int]] | None:
    """The tokens of each word, all asked for in one call; None if line breaks do not stand as tokens of their own."""
    line_break = llm.encode("a\nb")[1:-1]
    if len(line_break) != 1:
        return None
    parts: list[list[int]] = [[]]
    for token in llm.encode("\n".join(words)):
        if token == line_break[0]:
            parts.append([])
        else:
            parts[-1].append(token)
    return parts if len(parts) == len(words) and all(parts) else None


def _means(
    size: int, tokens: Sequence[int], rows: NDArray[np.float32], weights: NDArray[np.float32]
) -> NDArray[np.float32]:
    """For each token the mean of its rows by weight; 0 for a token that has none."""
    sums, totals = np.zeros((size, rows.shape[1]), np.float32), np.full(size, 1e-9, np.float32)
    np.add.at(sums, np.asarray(tokens, np.int64), rows * weights[:, None])
    np.add.at(totals, np.asarray(tokens, np.int64), weights)
    means: NDArray[np.float32] = sums / totals[:, None]
    return means
