"""Steering: a bias on the model's tokens towards sentences that carry the next block.

`word_vectors.npz` says what each of the most frequent words adds to a sentence's projections on the directions of an
embedder's table. It was learned by tools/word_vectors.py from how sentences differ that a model wrote after the same context;
neither a key nor a model's vocabulary is involved. When texts are written, the words become tokens of the model. The score of
each token is raised by how much it moves a sentence along the direction of its block, times a strength. So more of the
candidates lie where the block is, and fewer of them are needed. Keys, detection and the choice among candidates stay as they
are, so all p-values stay valid.

A bias is linear in the secret direction of a block. Who sees many of them can forge the mark, so they stay in this process, or
go to a server that the user has declared trusted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Self
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from alimark.core.keys.projection import table_of
from alimark.core.llm.base import LLM, TakesBias
from alimark.errors import AlimarkError

if TYPE_CHECKING:
    from alimark.core._util.arrays import Floats
    from alimark.core.keys.key import Key
    from alimark.core.llm.base import TokenBias

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
    counts: NDArray[np.float32]  # how frequent each word is, in any unit

    @classmethod
    @cache
    def of(cls, digest: str, file: Path = FILE) -> Self | None:
        """The words of the table with this digest that ship with the package; None for other tables."""
        with np.load(file, allow_pickle=False) as content:
            if f"{digest}/words" not in content:
                return None
            words = content[f"{digest}/words"].tobytes().decode().split("\n")
            rows = (
                content[f"{digest}/rows"].astype(np.float32) * content[f"{digest}/scales"].astype(np.float32)[:, None]
            )
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
    counts: NDArray[np.float32]  # how frequent the words are that begin with each token

    @classmethod
    def of(cls, words: WordVectors, llm: TakesBias) -> Self:
        """The vectors of a model's tokens.

        A word that is one token gives the token its vector. The first token of longer words gets the mean of the words that
        begin with it, by frequency, and each further token an equal part of what then is missing.
        """
        spelled = [" " + word for word in words.words] + [" " + word.capitalize() for word in words.words]
        tokens = _tokens_of(llm, spelled)
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
        return cls(np.where(begun[:, None] > 0, first, rest), begun)

    def bias(self, direction: Floats, strength: float) -> TokenBias:
        """What is added to the score of each token so that sentences move along a direction of the table.

        Words get as much less as the bias makes all of them likelier together: otherwise fewer sentences would end.
        """
        # Not by BLAS, whose threads then wait awake on the cores that an engine needs.
        moved = np.einsum("ij,j->i", self.rows, direction.astype(np.float32))
        bias: TokenBias = np.clip(strength * moved, -MOST, MOST)
        bias[self.counts > 0] -= np.log(np.average(np.exp(bias), weights=self.counts))
        return bias


_KNOWN: WeakKeyDictionary[LLM, dict[str, TokenVectors]] = WeakKeyDictionary()
_lock = Lock()


def steerable(llm: LLM, key: Key) -> bool:
    """Whether a model can be steered towards the blocks of a key, and may be: biases must stay where the key may be known.

    Example:
        >>> from alimark import Key
        >>> from alimark.testing import StandInEmbedder, StandInLLM
        >>> steerable(StandInLLM(), Key.generate(embedder=StandInEmbedder(), secret=bytes(32)))
        False
    """
    table = table_of(key) if key.embedder else None
    return (
        table is not None
        and isinstance(llm, TakesBias)
        and llm.bias_stays_here
        and WordVectors.of(table.digest) is not None
    )


def token_vectors(llm: LLM, key: Key) -> TokenVectors:
    """What steers a model towards the blocks of a key, made once for a model and a table of directions.

    Raises:
        AlimarkError: The model cannot be steered towards this key.
    """
    table = table_of(key)
    words = None if table is None or not steerable(llm, key) else WordVectors.of(table.digest)
    if table is None or words is None:
        raise AlimarkError(
            f"{llm.name} cannot be steered towards this key; leave out the steering and take more candidates"
        )
    assert isinstance(llm, TakesBias)
    with _lock:
        known = _KNOWN.setdefault(llm, {})
        if table.digest not in known:
            known[table.digest] = TokenVectors.of(words, llm)
        return known[table.digest]


def _tokens_of(llm: TakesBias, words: Sequence[str]) -> list[list[int]]:
    """The tokens of each word, all asked for in one call: in every known tokenizer a line break is a token of its own."""
    line_break = llm.encode("a\nb")[-2]
    parts: list[list[int]] = [[]]
    for token in llm.encode("\n".join(words)):
        if token == line_break:
            parts.append([])
        else:
            parts[-1].append(token)
    if len(parts) != len(words) or not all(parts):
        raise AlimarkError(
            "the tokens of this model join words over line breaks, so it cannot be steered; leave out the steering"
        )
    return parts


def _means(
    size: int, tokens: Sequence[int], rows: NDArray[np.float32], weights: NDArray[np.float32]
) -> NDArray[np.float32]:
    """For each token the mean of its rows by weight; 0 for a token that has none."""
    sums, totals = np.zeros((size, rows.shape[1]), np.float32), np.full(size, 1e-9, np.float32)
    np.add.at(sums, np.asarray(tokens, np.int64), rows * weights[:, None])
    np.add.at(totals, np.asarray(tokens, np.int64), weights)
    means: NDArray[np.float32] = sums / totals[:, None]
    return means
