"""What learning from text has in common: the sentences of some texts, their embeddings, and a note of where they come from."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from alimark.errors import AlimarkError
from alimark.text.splitting import DEFAULT_SPLITTER, splitter

if TYPE_CHECKING:
    from alimark.embedding.base import Embedder

_TOGETHER = 8192


@dataclass(frozen=True)
class Sentences:
    """The sentences of all texts in order, and the number of the text that each is from."""

    sentences: list[str]
    texts: list[int]
    digest: str

    def origin(self, embedder: Embedder) -> dict[str, Any]:
        """So that a reader can tell whether what was learned saw the texts that it is tried on."""
        return {
            "embedder": embedder.name,
            "fingerprint": embedder.fingerprint,
            "splitter": DEFAULT_SPLITTER,
            "texts": len(set(self.texts)),
            "sentences": len(self.sentences),
            "texts_sha256": self.digest,
        }


def sentences_of(texts: Iterable[str]) -> Sentences:
    """Of distinct texts: one that is there twice would count twice."""
    cutter, digest = splitter(DEFAULT_SPLITTER), hashlib.sha256()
    sentences: list[str] = []
    numbers: list[int] = []
    for number, text in enumerate(dict.fromkeys(texts)):
        units = cutter.units(text)
        sentences += units
        numbers += [number] * len(units)
        digest.update(hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest())
    if not sentences:
        raise AlimarkError("there is no sentence to learn from")
    return Sentences(sentences, numbers, digest.hexdigest())


def embedded(sentences: list[str], embedder: Embedder) -> NDArray[np.float32]:
    parts = [embedder.embed(sentences[start : start + _TOGETHER]) for start in range(0, len(sentences), _TOGETHER)]
    return np.concatenate(parts)
