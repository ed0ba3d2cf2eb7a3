"""The `Watermark` protocol: the interface of every scheme."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, ClassVar, Protocol, Unpack, overload

from alimark.core.detection.results import Detection
from alimark.core.detection.settings import DetectionOptions
from alimark.core.detection.stats.p_values import RandomKeys
from alimark.core.embedding.base import Embedder
from alimark.core.keys.key import Key
from alimark.core.parameters import SchemeParameters
from alimark.errors import AlimarkError

if TYPE_CHECKING:
    from alimark.core.generation.api import (
        Finished,
        GenerateOptions,
        Generation,
        GenerationSettings,
        ManyProgress,
        Prompt,
    )
    from alimark.core.llm.base import LLM


class Watermark(Protocol):
    """The interface of every scheme: it generates marked text and detects the mark in a text.

    `alimark.load` returns the watermark of a key. Schemes that learn from text also have a class method `fit`. They may declare
    what it needs, so that it is known before a run: `fit_libraries` names optional libraries, each with the extra that installs
    it, and the class method `check_fit` takes the texts and options of `fit` and raises an AlimarkError where they do not do.

    Example:
        >>> import alimark
        >>> from alimark.testing import StandInEmbedder, StandInLLM
        >>> embedder = StandInEmbedder()
        >>> key = alimark.Key.generate(embedder=embedder, secret=bytes(range(32)))
        >>> mark: alimark.Watermark = alimark.load(key, embedder=embedder)
        >>> generation = mark.generate("It was late.", StandInLLM(), sentences=12, candidates=16, seed=1)
        >>> mark.detect(generation.text).p_value < 0.01
        True
    """

    scheme: ClassVar[str]
    """The scheme's name in key files and records."""
    Parameters: ClassVar[type[SchemeParameters]]
    """The parameters of its keys."""
    aligns: ClassVar[bool]
    """Whether detection aligns sentences with the blocks of the key, as AliMark's does. Such a scheme has AliMark's key
    parameters, takes DetectionSettings, returns AlignedDetection and can search many keys at once."""
    candidates: ClassVar[int]
    """How many candidates are sampled for a sentence by default."""
    settings: ClassVar[type[RandomKeys]]
    """The class of its detection settings."""

    def __init__(self, key: Key, *, embedder: Embedder | None = None) -> None: ...

    @classmethod
    def asks_llm(cls, key: Key) -> bool:
        """Whether detection under a key asks the model that wrote the text."""
        ...

    @property
    def key(self) -> Key:
        """The key that the watermark was made with."""
        ...

    @overload
    def generate(self, prompt: str, llm: LLM, **options: Unpack[GenerateOptions]) -> Generation: ...

    @overload
    def generate(self, prompt: list[str], llm: LLM, **options: Unpack[GenerateOptions]) -> list[Generation]: ...

    def generate_many(
        self,
        prompts: Iterable[Prompt],
        llm: LLM,
        settings: GenerationSettings,
        *,
        batch: int | None = None,
        progress: ManyProgress | None = None,
    ) -> Finished:
        """Yields each text with its prompt's number as soon as it is finished. A prompt may name another key of the scheme."""
        ...

    @overload
    def detect(
        self,
        text: str,
        *,
        settings: RandomKeys | None = ...,
        llm: LLM | None = ...,
        **options: Unpack[DetectionOptions],
    ) -> Detection: ...

    @overload
    def detect(
        self,
        text: list[str],
        *,
        settings: RandomKeys | None = ...,
        llm: LLM | None = ...,
        **options: Unpack[DetectionOptions],
    ) -> Sequence[Detection]: ...

    def detect(
        self,
        text: str | list[str],
        *,
        settings: RandomKeys | None = None,
        llm: LLM | None = None,
        **options: Unpack[DetectionOptions],
    ) -> Detection | Sequence[Detection]:
        """Detects the mark in a text, or in each of a list of texts."""
        ...

    def detect_batch(
        self,
        texts: Sequence[str],
        settings: RandomKeys | None = None,
        *,
        llm: LLM | None = None,
        times: Counter[str] | None = None,
    ) -> Sequence[Detection | AlimarkError]:
        """A result for each text, in order; for a text that cannot be searched, its error."""
        ...

    def units(self, texts: Iterable[str], settings: RandomKeys | None = None) -> Iterator[str]:
        """The texts that detection embeds, so that a caller can embed them beforehand."""
        ...
