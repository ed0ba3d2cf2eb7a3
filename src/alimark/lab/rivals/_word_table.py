"""PostMark's secret table, which maps a text to words, and what of it is learned from human text.

Every word of a public list has a secret point. A text gets the words whose points are closest to its own point and, among
these, the words closest to it in meaning.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from alimark.core._util.arrays import Floats
from alimark.core.embedding.base import Embedder
from alimark.core.keys.key import Key
from alimark.core.text.language import COMMON
from alimark.errors import AlimarkError
from alimark.lab.rivals.parameters.postmark import PostMarkParameters

Indices = NDArray[np.intp]
Mask = NDArray[np.bool_]

KEYS_A_CHUNK = 256
_DEVIATION = 65535.0
"""The standard deviation of the numbers of `Key.normals`: each is the sum of twelve uniform numbers below 65536."""
_MOST_FREQUENT = 0.1
"""Words in more than this share of the texts are left out: they occur in unmarked text, too."""
_LEAST_TEXTS = 2
_CONTENT_WORD = re.compile(r"(?<![\w'’-])[a-z]{3,}(?![\w'’-])")
_FUNCTION_WORDS = COMMON | frozenset(
    "above across again against ago ain almost along already although always among another anyone anything are aren around "
    "away became become becomes being below beneath beside besides between beyond both cannot couldn despite didn does doesn "
    "doing done don during each either else enough ever every everyone everything except far few for get gets getting goes "
    "going gone got hadn has hasn haven having here hers herself himself his however instead isn itself just later least less "
    "let made make makes making maybe mere might mightn mine more moreover much mustn myself near nearly neither never "
    "nevertheless nobody none nor nothing often once onto others otherwise ought ours ourselves own per perhaps quite rather "
    "really same shall shan shouldn since somebody someone something sometimes somewhat soon still sure than that the "
    "theirs themselves then thence thereby therefore thing things though three throughout thus together too toward towards "
    "twice under unless unlike until upon usually very via wasn were weren whatever whenever whereas wherever whether while "
    "whoever whole whom whose why within without won wouldn yes yet your yours yourself yourselves".split()
)
_ENDINGS = ("s", "es", "ed", "d", "ing", "ly", "er", "est")


class TextPoint(NamedTuple):
    """Where a text lies: its unit vector, its distinct words with their unit vectors, and its number of words."""

    vector: Floats
    words: Sequence[str]
    word_vectors: Floats
    length: int


def unit_rows(vectors: NDArray[np.floating]) -> Floats:
    """The rows with length 1, in double precision."""
    wide = vectors.astype(np.float64)
    return np.asarray(wide / np.maximum(np.linalg.norm(wide, axis=-1, keepdims=True), 1e-12))


_VECTORS: dict[tuple[str, str, tuple[str, ...]], Floats] = {}


def _word_vectors(embedder: Embedder, words: tuple[str, ...]) -> Floats:
    """The unit vectors of a list of words. Those of the last list are kept, since the keys of a run share theirs."""
    name = embedder.fingerprint, embedder.backend, words
    vectors = _VECTORS.get(name)  # another thread may clear the table after this line
    if vectors is None:
        vectors = unit_rows(embedder.embed(list(words)))
        _VECTORS.clear()
        _VECTORS[name] = vectors
    return vectors


class WordTable:
    """The table of one key."""

    def __init__(self, key: Key, embedder: Embedder) -> None:
        assert key.fitted is not None
        self.key, self.parameters, self._embedder = key, key.parameters_as(PostMarkParameters), embedder
        self.words = tuple(str(word) for word in key.fitted.origin["words"])
        self._mean = key.fitted.arrays["mean"].astype(np.float64)
        self._components = key.fitted.arrays["components"].astype(np.float64)

    @cached_property
    def _points(self) -> Floats:
        """The secret point of each word: random, where an excerpt of a human text could lie."""
        numbers = self.key.normals("postmark/points", len(self.words), len(self._components)) / _DEVIATION
        return unit_rows(self._mean + numbers @ self._components)

    def sizes(self, length: int) -> tuple[int, int]:
        """How many words the table gives to a text of `length` words, and how many of these are wanted."""
        wanted = min(len(self.words), max(1, int(self.parameters.ratio * length)))
        return min(len(self.words), self.parameters.pool * wanted), wanted

    def closeness(self, point: TextPoint) -> Floats:
        """The cosine of each word of the list with the text."""
        return np.asarray(_word_vectors(self._embedder, self.words) @ point.vector)

    def present(self, point: TextPoint) -> Mask:
        """Whether each word of the list occurs in the text, or a word of the text is as close as the threshold."""
        cosines = _word_vectors(self._embedder, self.words) @ point.word_vectors.T
        known = set(point.words)
        return np.asarray(
            (cosines.max(axis=1, initial=-1.0) >= self.parameters.threshold)
            | np.array([word in known for word in self.words])
        )

    def chosen(self, point: TextPoint) -> Indices:
        """The numbers of the words of a text."""
        pool, wanted = self.sizes(point.length)
        nearest = np.argsort(-(self._points @ point.vector), kind="stable")[:pool]
        closest = np.argsort(-self.closeness(point)[nearest], kind="stable")[:wanted]
        return np.asarray(nearest[closest])

    def null_shares(self, chunk: int, sizes: tuple[int, int], present: Mask, closeness: Floats) -> Floats:
        """The share of words present under each random key of a chunk.

        The points of all words have the same distribution. So the words that another key's table gives to this text are any
        words of the list with the same probability, and the points themselves need not be drawn.
        """
        pool, wanted = sizes
        numbers = self.key.uniforms("postmark/null", KEYS_A_CHUNK * len(self.words), chunk)
        nearest = np.argpartition(numbers.reshape(KEYS_A_CHUNK, -1), pool - 1, axis=1)[:, :pool]
        closest = np.argpartition(-closeness[nearest], wanted - 1, axis=1)[:, :wanted]
        return np.asarray(present[np.take_along_axis(nearest, closest, axis=1)].mean(axis=1))


def frequent_words(texts: Iterable[str], most: int) -> list[str]:
    """The content words that most texts have, in alphabetical order.

    Function words, the most frequent words and inflected forms of another word of the texts are left out.

    Args:
        texts: Human texts.
        most: The greatest number of words.

    Raises:
        AlimarkError: The texts have fewer than 50 such words.
    """
    sets = [set(_CONTENT_WORD.findall(text)) for text in texts]
    counts = Counter(word for words in sets for word in words)
    usable = [
        word
        for word, count in counts.items()
        if _LEAST_TEXTS <= count <= max(_LEAST_TEXTS, _MOST_FREQUENT * len(sets))
        and word not in _FUNCTION_WORDS
        and not _is_inflected(word, counts)
    ]
    if len(usable) < 50:
        raise AlimarkError(f"the texts have {len(usable)} words that several of them share; give more texts")
    return sorted(sorted(usable, key=lambda word: (-counts[word], word))[:most])


def _is_inflected(word: str, known: Counter[str]) -> bool:
    """Whether a word is another word of the texts with an ending, such as "walks", "making" or "stopped"."""
    for ending in _ENDINGS:
        stem = word.removesuffix(ending)
        if stem == word or len(stem) < 3:
            continue
        stems = [stem, stem + "e", stem[:-1] + "y" if stem.endswith("i") else ""]
        if stem[-1] == stem[-2]:
            stems.append(stem[:-1])
        if any(candidate in known for candidate in stems):
            return True
    return False
