"""The protocol of sentence embedders, and what the backends share.

An embedder maps texts to vectors of unit length. A model is identified by the hash of its upstream weights, and all backends
agree to 1e-4, so that a mark made with one backend is found with another.

An embedder computes in float32, or in a faster precision where it has one. A p-value compares the key with random keys on the
same vectors, so that it is valid for any vectors that do not depend on the key. A fast precision can therefore only cost power:
a mark may be missed, but unmarked text is not found more often.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol, get_args

import numpy as np
from numpy.typing import NDArray

from alimark.errors import AlimarkError, ModelError, TextError

Vectors = NDArray[np.float32]

WINDOW_TEXTS = 8192
"""Texts that are tokenised and sorted by length together: enough to fill batches of equal length, and little memory."""

BATCH_TOKENS = 2048
"""Most tokens of one batch, padding included. It bounds memory; larger batches are no faster."""

BATCH_PADDING = 32
"""Most padding tokens of one batch. A padding token costs as much as a token of text and a batch costs little, so the
sentences, pairs and halves of one text are embedded in several batches instead of being padded to the longest."""

MAX_CHARACTERS = 1 << 18
"""Text after this position is never read. What comes before fills the model's length many times, unless most of it is blank."""

_ENCODE_CHARACTERS = 1 << 20  # the tokenizer keeps about a hundred bytes for each token until a call ends
_LANGUAGES = {"all-MiniLM-L6-v2": frozenset({"en"}), "all-mpnet-base-v2": frozenset({"en"})}


class Embedder(Protocol):
    """A model that maps texts to vectors. Several threads may call `embed` at the same time.

    Any object with these attributes can be used where alimark asks for an embedder.

    Example:
        >>> from alimark.testing import StandInEmbedder
        >>> embedder: Embedder = StandInEmbedder(dimension=64)
        >>> embedder.embed(["A sentence.", "Another one."]).shape
        (2, 64)
    """

    @property
    def name(self) -> str:
        """The name that keys store."""
        ...

    @property
    def dimension(self) -> int:
        """The length of a vector."""
        ...

    @property
    def fingerprint(self) -> str:
        """ "sha256:..." of the upstream weights; keys store it, too."""
        ...

    @property
    def backend(self) -> str:
        """The library that runs the model, for reports."""
        ...

    @property
    def languages(self) -> frozenset[str]:
        """Codes of the languages that the model knows, such as "en"; empty where they are unknown."""
        ...

    def embed(self, texts: Sequence[str]) -> Vectors:
        """One row of unit length for each text, in order: an array of shape (texts, dimension)."""
        ...


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """An embedding model on disk: its files, its name and its fingerprint."""

    folder: Path
    weights: Path
    name: str
    fingerprint: str


class LoadedEmbedder(ABC):
    """Base class of the backends: embeds each distinct text once, keeps the order and bounds memory."""

    backend: str
    dimension: int

    def __init__(self, model: ModelFiles) -> None:
        self._model = model
        self.name, self.fingerprint = model.name, model.fingerprint
        self.languages = _LANGUAGES.get(model.name, frozenset())

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name} {self.fingerprint[:19]}>"

    def embed(self, texts: Sequence[str]) -> Vectors:
        """One row of unit length for each text, in order; raises TextError for anything but a list of strings."""
        if isinstance(texts, str):
            raise TextError("embed takes a list of texts; put the one text into a list")
        for number, text in enumerate(texts):
            if not isinstance(text, str):
                raise TextError(f"text {number} is of type {type(text).__name__}; give text as str")
        distinct = list(dict.fromkeys(texts))
        vectors = np.empty((len(distinct), self.dimension), dtype=np.float32)
        for start in range(0, len(distinct), WINDOW_TEXTS):
            window = slice(start, start + WINDOW_TEXTS)
            self._embed_window(distinct[window], vectors[window])
        if len(distinct) == len(texts):
            return vectors
        row_of = {text: row for row, text in enumerate(distinct)}
        return vectors[[row_of[text] for text in texts]]

    @abstractmethod
    def _embed_window(self, texts: list[str], vectors: Vectors) -> None:
        """Fills a row of `vectors` for each text."""


def cut_text(text: str, reach: int) -> str:
    """Cuts a text to at most `reach` characters, between words where possible, and makes it valid Unicode."""
    if len(text) > reach:
        head = text[:reach]
        words = head.rsplit(None, 1)
        # The last word may continue after the cut; half a word would be another word.
        text = words[0] if len(words) > 1 and not head[-1].isspace() else head
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:  # an unpaired surrogate, which broken JSON can contain
            text = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


def text_parts(texts: list[str]) -> Iterator[list[str]]:
    """Yields the texts in order, in groups of bounded total length."""
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
    """Yields batches of indices of texts of similar length, longest first, so that memory use is highest at the start."""
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


# Precisions

Precision = Literal["auto", "float32", "tf32", "bfloat16", "int8"]
"""int8 is for CPUs, tf32 and bfloat16 are for GPUs. "auto" leaves the choice to the caller: float32 for a single text."""
PRECISIONS: tuple[Precision, ...] = get_args(Precision)


def check_precision(precision: str) -> None:
    """Raises AlimarkError for an unknown precision."""
    if precision not in PRECISIONS:
        raise AlimarkError(f"precision must be {', '.join(PRECISIONS[:-1])} or {PRECISIONS[-1]}, not {precision!r}")


def precision_of(embedder: Embedder) -> str:
    """The precision in which an embedder computes; float32 where it does not say."""
    return str(getattr(embedder, "precision", "float32"))


def precisions_of(embedder: Embedder) -> Sequence[str]:
    """The precisions that an embedder offers, the fastest last."""
    return tuple(getattr(embedder, "precisions", (precision_of(embedder),)))


def at_precision(embedder: Embedder, precision: str) -> Embedder:
    """The same model in another precision; for "auto" the embedder itself. Name and fingerprint stay the same."""
    if precision in ("auto", precision_of(embedder)):
        return embedder
    offered = precisions_of(embedder)
    if precision not in offered:
        raise ModelError(
            f"the embedder {embedder.name} computes in {' or '.join(offered)} here, not in {precision}; use precision auto or "
            f"{offered[0]}"
        )
    other: Embedder = embedder.with_precision(precision)  # type: ignore[attr-defined]  # embedders with several precisions have this method
    return other
