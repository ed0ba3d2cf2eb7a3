"""An embedder with an instruction before each text."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from alimark.core.embedding.base import Embedder, Vectors
from alimark.core.embedding.precision import at_precision, precision_of, precisions_of
from alimark.errors import TextError


class PrefixedEmbedder:
    """Puts an instruction and a blank before each text. Name and fingerprint depend on the instruction, as the vectors do.

    Example:
        >>> from alimark.testing import StandInEmbedder
        >>> PrefixedEmbedder(StandInEmbedder(), "Represent the sentence:").name
        'stand-in#Represent the sentence:'
    """

    def __init__(self, embedder: Embedder, prefix: str) -> None:
        self._embedder, self._prefix = embedder, prefix
        self.name, self.backend = f"{embedder.name}#{prefix}", embedder.backend
        self.dimension, self.languages = embedder.dimension, embedder.languages
        self.precision, self.precisions = precision_of(embedder), precisions_of(embedder)
        identity = f"{embedder.fingerprint}\0{prefix}".encode("utf-8", "surrogatepass")
        self.fingerprint = f"sha256:{hashlib.sha256(identity).hexdigest()}"

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name} {self.fingerprint[:19]}>"

    def with_precision(self, precision: str) -> PrefixedEmbedder:
        """The same model and instruction in another precision."""
        return PrefixedEmbedder(at_precision(self._embedder, precision), self._prefix)

    def embed(self, texts: Sequence[str]) -> Vectors:
        """One row of unit length for each text, in order."""
        if isinstance(texts, str):
            raise TextError("embed takes a list of texts; put the one text into a list")
        return self._embedder.embed([f"{self._prefix} {text}" for text in texts])
