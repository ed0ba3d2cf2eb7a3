"""Helpers for schemes that learn from text: the sentences of texts, their embeddings, and a record of their origin."""

import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from inspect import signature
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from alimark.core._util.json_types import JsonObject
from alimark.core.embedding.base import Embedder
from alimark.core.frozen.text.splitting import DEFAULT_SPLITTER, splitter
from alimark.core.keys.fitted import Fitted
from alimark.errors import AlimarkError

T = TypeVar("T")

_BATCH = 8192


def check_options(scheme: str, learn: Callable[..., Fitted], options: Iterable[str]) -> None:
    """Raises AlimarkError where the function by which a scheme learns has no option of one of these names."""
    known = [item.name for item in signature(learn).parameters.values() if item.kind == item.KEYWORD_ONLY]
    if unknown := ", ".join(sorted(set(options) - set(known))):
        raise AlimarkError(f"{scheme} has no option {unknown} of learning; it has: {', '.join(known)}")


def called(scheme: str, function: Callable[..., T], options: Mapping[str, object], *arguments: object) -> T:
    """What a function of a scheme returns that learns or checks; raises AlimarkError where an option has a wrong value."""
    try:
        return function(*arguments, **options)
    except (TypeError, ValueError) as error:
        raise AlimarkError(f"{scheme} cannot learn with these options: {error}") from None


@dataclass(frozen=True)
class Sentences:
    """The sentences of all texts in order, the number of the text that each is from, and a hash of the texts."""

    sentences: list[str]
    texts: list[int]
    digest: str

    def origin(self, embedder: Embedder) -> JsonObject:
        """The record of the training data, which shows whether a test text was among it."""
        return {
            "embedder": embedder.name,
            "fingerprint": embedder.fingerprint,
            "splitter": DEFAULT_SPLITTER,
            "texts": len(set(self.texts)),
            "sentences": len(self.sentences),
            "texts_sha256": self.digest,
        }


def sentences_of(texts: Iterable[str]) -> Sentences:
    """Splits texts into sentences; raises AlimarkError where there is none. A text that is given twice is used once."""
    cutter, digest = splitter(DEFAULT_SPLITTER), hashlib.sha256()
    sentences: list[str] = []
    numbers: list[int] = []
    for number, text in enumerate(dict.fromkeys(texts)):
        units = cutter.units(text)
        sentences += units
        numbers += [number] * len(units)
        digest.update(hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest())
    if not sentences:
        raise AlimarkError("the texts have no sentence to learn from; give other texts")
    return Sentences(sentences, numbers, digest.hexdigest())


def embedded(sentences: list[str], embedder: Embedder) -> NDArray[np.float32]:
    """The embeddings of the sentences, computed in batches."""
    parts = [embedder.embed(sentences[start : start + _BATCH]) for start in range(0, len(sentences), _BATCH)]
    return np.concatenate(parts)
