"""The Watermark protocol; what all sentence-level schemes share; AliMark, which ties key, embedder, loop and detector."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Protocol, TypeVar, Unpack, overload

from alimark.detection.results import Detection
from alimark.detection.settings import DetectionOptions
from alimark.detection.stats.p_values import RandomKeys
from alimark.embedding.base import Embedder
from alimark.embedding.loading import load_embedder
from alimark.errors import AlimarkError, KeyFileError
from alimark.keys.key import Key

if TYPE_CHECKING:
    from alimark.generation.api import (
        Generation,
        GenerationSettings,
        MarkedSentence,
        Progress,
        Prompt,
        PromptStyle,
        Scheduler,
    )
    from alimark.llm.base import LLM, Sampling


Made = TypeVar("Made")
Found = TypeVar("Found", bound=Detection)
Found_co = TypeVar("Found_co", bound=Detection, covariant=True)
Progresses = Callable[[int, "MarkedSentence"], None]


class Watermark(Protocol):
    """What every scheme offers, AliMark and its rivals alike. Those that learn from text also have `fit`."""

    scheme: ClassVar[str]
    candidates: ClassVar[int]
    """Draws for each sentence, at most, where nothing else is asked for."""
    settings: ClassVar[type[RandomKeys]]
    """The class of the settings of its detection."""

    @property
    def key(self) -> Key: ...

    def generate(self, prompt: Any, llm: LLM, *args: Any, **options: Any) -> Any:
        """A Generation, or of a list of prompts a list; `sentences`, `seed` and `sampling` are options of all."""
        ...

    def generate_many(
        self,
        prompts: Iterable[Prompt],
        llm: LLM,
        settings: GenerationSettings,
        *,
        batch: int | None = None,
        progress: Progresses | None = None,
    ) -> Iterator[tuple[int, Generation | AlimarkError]]:
        """Each text with its prompt's place as soon as it is finished; a prompt may have a key of its own, of the scheme."""
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
        """Looks for the mark in a text, or in each of a list of texts."""
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
        """The texts that detection will embed."""
        ...


@lru_cache(maxsize=4)
def _embedder(name: str) -> Embedder:
    return load_embedder(name)


_loading = threading.Lock()


class SentenceWatermark(ABC, Generic[Found]):
    """What all that mark sentence by sentence share. A scheme adds its key, its rule and how it detects.

    The embedder that the key names is loaded on first use; safe to share by threads.
    """

    scheme: ClassVar[str]
    candidates: ClassVar[int] = 64
    settings: ClassVar[type[RandomKeys]] = RandomKeys

    def __init__(self, key: Key, *, embedder: Embedder | None = None) -> None:
        if key.scheme != self.scheme:
            raise KeyFileError(
                f"key {key.id} is of {key.scheme}, not of {self.scheme}; alimark.load gives its watermark"
            )
        if embedder is not None:
            key.check(embedder)
        self.key = key
        self._given = embedder
        self._schedulers: dict[int, Scheduler] = {}

    @property
    def embedder(self) -> Embedder:
        if self._given is None:
            with _loading:
                loaded = _embedder(self.key.embedder)
            self.key.check(loaded)
            self._given = loaded
        return self._given

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.key!r})"

    @overload
    def generate(self, prompt: str, llm: LLM, *, sentences: int = ..., candidates: int | None = ..., seed: int | None = ...,
                 sampling: Sampling | None = ..., prompt_style: PromptStyle = ..., batch: int | None = ...,
                 progress: Progress | None = ...) -> Generation: ...  # fmt: skip

    @overload
    def generate(self, prompt: list[str], llm: LLM, *, sentences: int = ..., candidates: int | None = ...,
                 seed: int | None = ..., sampling: Sampling | None = ..., prompt_style: PromptStyle = ...,
                 batch: int | None = ..., progress: Progress | None = ...) -> list[Generation]: ...  # fmt: skip

    def generate(
        self,
        prompt: str | list[str],
        llm: LLM,
        *,
        sentences: int = 12,
        candidates: int | None = None,
        seed: int | None = None,
        sampling: Sampling | None = None,
        prompt_style: PromptStyle = "continue",
        batch: int | None = None,
        progress: Progress | None = None,
    ) -> Generation | list[Generation]:
        """Writes marked text after a prompt, or after each of several, `batch` of them at a time.

        `candidates`: draws for each sentence, at most; the scheme's own number by default. `progress` is called with each
        sentence as it is chosen. The i-th of several prompts has the seed `seed + i`.
        """
        from alimark.generation.api import Prompt, generate

        settings = self._generation_settings(sentences, candidates, sampling, prompt_style)
        if isinstance(prompt, str):
            return generate(prompt, self.key, self.embedder, llm, settings, seed=seed, progress=progress)
        step = None if progress is None else (lambda _, sentence: progress(sentence))
        prompts = [Prompt(one, None if seed is None else seed + i) for i, one in enumerate(prompt)]
        return in_order(self.generate_many(prompts, llm, settings, batch=batch, progress=step))

    def generate_many(
        self,
        prompts: Iterable[Prompt],
        llm: LLM,
        settings: GenerationSettings,
        *,
        batch: int | None = None,
        progress: Progresses | None = None,
    ) -> Iterator[tuple[int, Generation | AlimarkError]]:
        """Yields each text with its prompt's place as soon as it is finished, or the error that ended it."""
        from alimark.generation.api import generate_many

        return generate_many(prompts, self.key, self.embedder, llm, settings, batch=batch, progress=progress)

    def _generation_settings(
        self, sentences: int, candidates: int | None, sampling: Sampling | None, prompt_style: PromptStyle
    ) -> GenerationSettings:
        from alimark.generation.api import GenerationSettings
        from alimark.llm.base import Sampling

        count = self.candidates if candidates is None else candidates
        return GenerationSettings(sentences, count, sampling or Sampling(), prompt_style=prompt_style)

    async def agenerate(
        self,
        prompt: str,
        llm: LLM,
        *,
        sentences: int = 12,
        candidates: int | None = None,
        seed: int | None = None,
        sampling: Sampling | None = None,
        prompt_style: PromptStyle = "continue",
        progress: Progress | None = None,
    ) -> Generation:
        """`generate` for a server: texts that are awaited at the same time are written together.

        `progress` is called in another thread than the event loop's. Cancelling ends the work on the text.
        """
        import asyncio

        from alimark.generation.api import Writing

        settings = self._generation_settings(sentences, candidates, sampling, prompt_style)
        scheduler = await asyncio.to_thread(self._scheduler, llm)  # the embedder may have to be loaded
        writing = Writing(prompt, self.key, settings, seed=seed, progress=progress)
        return await asyncio.wrap_future(scheduler.submit(writing))

    def _scheduler(self, llm: LLM) -> Scheduler:
        """One for each model that text was asked of."""
        from alimark.generation.api import Scheduler

        embedder = self.embedder
        with _loading:
            # A scheduler holds its model, so the model's id stays its own.
            return self._schedulers.setdefault(id(llm), Scheduler(llm, embedder))

    @overload
    def detect(
        self,
        text: str,
        *,
        settings: RandomKeys | None = ...,
        llm: LLM | None = ...,
        **options: Unpack[DetectionOptions],
    ) -> Found: ...

    @overload
    def detect(
        self,
        text: list[str],
        *,
        settings: RandomKeys | None = ...,
        llm: LLM | None = ...,
        **options: Unpack[DetectionOptions],
    ) -> list[Found]: ...

    def detect(
        self,
        text: str | list[str],
        *,
        settings: RandomKeys | None = None,
        llm: LLM | None = None,
        **options: Unpack[DetectionOptions],
    ) -> Found | list[Found]:
        """Looks for the mark in a text, or in each of a list of texts.

        Args:
            text: The text; a list for several texts, whose units are embedded in one batch.
            settings: How to search; by default the scheme's default settings.
            llm: The chat model that AliMark's learned restructuring asks.
            options: Fields of the scheme's settings that replace those of `settings`.

        Returns:
            The detection, or for a list of texts the list of detections in the same order.

        Raises:
            AlimarkError: An option is unknown to the scheme, or a text is empty or too long.

        Example:
            >>> from alimark import AliMark, Key
            >>> from alimark.testing import StandInEmbedder, StandInLLM
            >>> embedder = StandInEmbedder()
            >>> mark = AliMark(Key.generate(embedder=embedder, secret=bytes(range(32))), embedder=embedder)
            >>> generation = mark.generate("It was late.", StandInLLM(), sentences=12, candidates=64, seed=1)
            >>> detection = mark.detect(generation.text, draws=2000)
            >>> detection.verdict() == "found", detection.draws
            (True, 2000)
        """
        return detect_or_raise(self, text, settings, {**options}, llm)

    @abstractmethod
    def detect_batch(
        self,
        texts: Sequence[str],
        settings: RandomKeys | None = None,
        *,
        llm: LLM | None = None,
        times: Counter[str] | None = None,
    ) -> list[Found | AlimarkError]:
        """A result for each text, in order; for a text that cannot be searched, its error."""

    @abstractmethod
    def units(self, texts: Iterable[str], settings: RandomKeys | None = None) -> Iterator[str]:
        """The texts that detection will embed."""


def in_order(made: Iterable[tuple[int, Made | AlimarkError]]) -> list[Made]:
    """All texts by the place of their prompts; the first error is raised."""
    found: dict[int, Made] = {}
    for i, one in made:
        if isinstance(one, AlimarkError):
            raise one
        found[i] = one
    return [found[i] for i in sorted(found)]


class Detector(Protocol[Found_co]):
    """The part of a watermark that detects."""

    scheme: ClassVar[str]
    settings: ClassVar[type[RandomKeys]]

    def detect_batch(
        self, texts: Sequence[str], settings: RandomKeys | None = None, *, llm: LLM | None = None
    ) -> Sequence[Found_co | AlimarkError]:
        """A result for each text, in order; for a text that cannot be searched, its error."""
        ...


def detect_or_raise(
    mark: Detector[Found],
    text: str | list[str],
    settings: RandomKeys | None,
    options: Mapping[str, object],
    llm: LLM | None,
) -> Found | list[Found]:
    """`detect_batch` for `detect`: a single result for a single text, and the first error is raised."""
    chosen = detection_settings(mark, settings, options)
    detections: list[Found] = []
    for answer in mark.detect_batch([text] if isinstance(text, str) else text, chosen, llm=llm):
        if isinstance(answer, AlimarkError):
            raise answer
        detections.append(answer)
    return detections[0] if isinstance(text, str) else detections


def detection_settings(
    mark: Detector[Detection], settings: RandomKeys | None = None, options: Mapping[str, object] | None = None
) -> RandomKeys:
    """The scheme's settings with some of their fields changed."""
    kind, options = type(mark).settings, options or {}
    if settings is not None and not isinstance(settings, kind):
        raise AlimarkError(f"{mark.scheme} takes {kind.__name__}, not {type(settings).__name__}")
    check_names("detection", options, kind)
    return replace(settings or kind(), **options)  # type: ignore[arg-type]


def check_names(what: str, options: Mapping[str, object], settings: type) -> None:
    """Raises AlimarkError where an option is no field of the settings' class."""
    known = [field.name for field in fields(settings)]
    if unknown := set(options) - set(known):
        raise AlimarkError(f"unknown {what} option {', '.join(sorted(unknown))}; known: {', '.join(known)}")
