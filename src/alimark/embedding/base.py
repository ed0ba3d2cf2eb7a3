"""Texts to unit vectors, by onnxruntime (the default, without torch) or sentence-transformers.

Whatever runs them, a model is known by the hash of its upstream weights, and every backend agrees to 1e-4: a
mark made through one is found through the other.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from alimark.errors import TextError

Vectors = NDArray[np.float32]
Progress = Callable[[int], None]
"""Called with the number of texts done so far."""

WINDOW_TEXTS = 8192
"""Texts tokenised and sorted by length at a time: enough to fill batches of one length, little to hold."""

BATCH_TOKENS = 2048
"""Tokens of one batch, padding included: bounds memory; larger batches are no faster."""

BATCH_PADDING = 32
"""Tokens of padding in one batch. Padding costs what text costs and a batch hardly anything, so that the sentences, pairs and
halves of a single text are better embedded in several batches than padded to the longest pair."""

CHARACTERS_PER_TOKEN = 8
"""A generous first guess of what fills the model's length; a text that turns out emptier is read further."""

MAX_CHARACTERS = 1 << 18
"""What lies beyond is never read, even where blanks or an endless word leave the model's length unfilled."""

_ENCODE_CHARACTERS = 1 << 20  # the tokenizer keeps a hundred bytes a token until a call is over
_LANGUAGES = {"all-MiniLM-L6-v2": frozenset({"en"}), "all-mpnet-base-v2": frozenset({"en"})}


class Embedder(Protocol):
    """What marking and detection ask of an embedder. `embed` may be called by several threads at once."""

    @property
    def name(self) -> str: ...  # as a key stores it

    @property
    def dimension(self) -> int: ...

    @property
    def fingerprint(self) -> str: ...  # "sha256:..." of the upstream weights

    @property
    def backend(self) -> str: ...

    @property
    def languages(self) -> frozenset[str]: ...  # empty: unknown

    def embed(self, texts: Sequence[str]) -> Vectors: ...  # (texts, dimension), each of unit length


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """A model on disk and who it is."""

    folder: Path
    weights: Path
    name: str
    fingerprint: str


class LoadedEmbedder(ABC):
    """What the backends share: who they are, each distinct text embedded once, order kept, memory bounded."""

    backend: str
    dimension: int

    def __init__(self, model: ModelFiles) -> None:
        self._model = model

    @property
    def name(self) -> str:
        return self._model.name

    @property
    def fingerprint(self) -> str:
        return self._model.fingerprint

    @property
    def languages(self) -> frozenset[str]:
        return _LANGUAGES.get(self._model.name, frozenset())

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name} {self.fingerprint[:19]}>"

    def embed(self, texts: Sequence[str], progress: Progress | None = None) -> Vectors:
        """One row of unit length for each text, in order."""
        if isinstance(texts, str):
            raise TextError("embed takes a list of texts; put the one text into a list")
        vectors = np.empty((len(texts), self.dimension), dtype=np.float32)
        first: dict[str, int] = {}
        repeated: list[tuple[int, int]] = []
        for row, text in enumerate(texts):
            if not isinstance(text, str):
                raise TextError(f"text {row} is of type {type(text).__name__}; give text as str")
            if (earlier := first.setdefault(text, row)) != row:
                repeated.append((row, earlier))
        distinct, rows = list(first), np.fromiter(first.values(), dtype=np.intp)
        for start in range(0, len(distinct), WINDOW_TEXTS):
            window = slice(start, start + WINDOW_TEXTS)
            self._embed_window(distinct[window], rows[window], vectors, start, progress)
        for row, earlier in repeated:
            vectors[row] = vectors[earlier]
        if progress and repeated:
            progress(len(texts))
        return vectors

    @abstractmethod
    def _embed_window(
        self, texts: list[str], rows: NDArray[np.intp], vectors: Vectors, done: int, progress: Progress | None
    ) -> None:
        """Fill `vectors[rows]`; `done` texts came before these."""


def cut_text(text: str, reach: int) -> str:
    """At most `reach` characters, ended between words where there is a blank, in valid Unicode."""
    if len(text) > reach:
        head = text[:reach]
        words = head.rsplit(None, 1)
        # The last word may go on behind the cut; half of it would be another word.
        text = words[0] if len(words) > 1 and not head[-1].isspace() else head
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:  # half a surrogate pair, as broken JSON leaves behind
            text = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


def text_parts(texts: list[str]) -> Iterator[list[str]]:
    """The texts in order, in runs of bounded size."""
    part: list[str] = []
    size = 0
    for text in texts:
        if part and size + len(text) > _ENCODE_CHARACTERS:
            yield part
            part, size = [], 0
        part.append(text)
        size += len(text)
    if part:
        yield part


def length_batches(lengths: list[int]) -> Iterator[NDArray[np.intp]]:
    """Indices in batches of like length, longest first so that memory peaks at once."""
    order = np.argsort([-length for length in lengths], kind="stable")
    start, padding = 0, 0
    for place, i in enumerate(order):
        longest = max(1, lengths[order[start]])
        padding += longest - lengths[i]
        if place > start and (padding > BATCH_PADDING or longest * (place - start + 1) > BATCH_TOKENS):
            yield order[start:place]
            start, padding = place, 0
    if len(order):
        yield order[start:]
