"""The interface of every scheme, `Watermark`: it generates marked text and detects the mark in a text."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from functools import lru_cache
from os import PathLike
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Unpack, overload

from alimark.core._util.progress import Line
from alimark.core.detection.results import Detection
from alimark.core.detection.settings import DetectionOptions
from alimark.core.detection.stats.p_values import RandomKeys
from alimark.core.embedding.base import Embedder
from alimark.core.embedding.loading import load_embedder
from alimark.core.generation.settings import (
    DEFAULT_CANDIDATES,
    GenerateOptions,
    GenerationSettings,
    Prompt,
    candidates_and_steering,
)
from alimark.core.keys.key import Key
from alimark.core.llm import as_llm
from alimark.core.llm.base import Sampling
from alimark.core.parameters import SchemeParameters
from alimark.errors import AlimarkError, KeyFileError, KeyMismatch, ModelError, TextError

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    from alimark.core.generation.api import Finished, Generation, ManyProgress, MarkedSentence, Progress, Scheduler
    from alimark.core.generation.selection import Rule, TextOrigin
    from alimark.core.llm import SomeLLM
    from alimark.core.llm.base import LLM

    # `Watermark` alone stands for a watermark with any detection.
    SomeDetection_co = TypeVar("SomeDetection_co", bound=Detection, default=Detection, covariant=True)
else:
    from typing import TypeVar

    SomeDetection_co = TypeVar("SomeDetection_co", covariant=True)

Result = TypeVar("Result")


_load_embedder = lru_cache(maxsize=4)(load_embedder)
_loading = threading.Lock()


class DetectOptions(DetectionOptions, total=False):
    """The options of `detect`, which `Watermark.detect` explains."""

    settings: RandomKeys | None
    llm: SomeLLM | None


class Watermark(ABC, Generic[SomeDetection_co]):
    """The interface of every scheme: it generates marked text and detects the mark in a text.

    `alimark.load` returns the watermark of a key. The embedder that the key names is loaded on first use. Threads may share an
    instance. Schemes that learn from text also have a class method `fit`. They may declare what it needs, so that it is known
    before a run: `fit_libraries` names optional libraries, each with the extra that installs it, and the class method
    `check_fit` takes the texts and options of `fit` and raises an AlimarkError where they do not do.

    Args:
        key: A key of the scheme.
        embedder: The embedder that the key names, or its name.

    Raises:
        KeyMismatch: The key is of another scheme, or names another embedder.

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
    aligns: ClassVar[bool] = False
    """Whether detection aligns sentences with the blocks of the key, as AliMark's does. Such a scheme has AliMark's key
    parameters, takes DetectionSettings, returns AlignedDetection and can search many keys at once."""
    by_token: ClassVar[bool] = False
    """Whether the mark is in single tokens: a length in tokens may be asked for, and the model does not end its text unless it
    is asked to, because not every engine lets it."""
    candidates: ClassVar[int]
    """How many candidates are sampled for a sentence by default."""
    settings: ClassVar[type[RandomKeys]] = RandomKeys
    """The class of its detection settings."""

    def __init__(self, key: Key, *, embedder: Embedder | str | None = None) -> None:
        if check_key(key).scheme != self.scheme:
            raise KeyMismatch(
                f"key {key.id} is of the scheme {key.scheme}, not {self.scheme}; alimark.load returns its watermark"
            )
        if isinstance(embedder, str):
            embedder = _load_embedder(embedder)
        if embedder is not None:
            if not hasattr(embedder, "embed"):
                kind = type(embedder).__name__
                raise ModelError(f"an embedder is what alimark.load_embedder returns, or its name, not {kind}")
            key.check(embedder)
        self.key = key
        self._embedder = embedder

    @classmethod
    def asks_llm(cls, key: Key) -> bool:
        """Whether detection under a key asks the model that wrote the text."""
        return False

    @property
    def embedder(self) -> Embedder:
        """The embedder that the key names."""
        if self._embedder is None:
            with _loading:
                loaded = _load_embedder(self.key.embedder)
            self.key.check(loaded)
            self._embedder = loaded
        return self._embedder

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.key!r})"

    @overload
    def generate(self, prompt: str, llm: SomeLLM, **options: Unpack[GenerateOptions]) -> Generation: ...

    @overload
    def generate(self, prompt: list[str], llm: SomeLLM, **options: Unpack[GenerateOptions]) -> list[Generation]: ...

    def generate(
        self, prompt: str | list[str], llm: SomeLLM, **options: Unpack[GenerateOptions]
    ) -> Generation | list[Generation]:
        """Generates marked text after a prompt, or after each of several prompts. A single text is written in this thread.

        Args:
            prompt: What to continue or, with `prompt_style="chat"`, to answer; a list for several texts.
            llm: The language model, as `alimark.load_llm` returns it, or its name.

        Keyword Args:
            sentences: How many sentences to write, by default 12; the most, where the model may end its text.
            tokens: How many tokens to write instead, for schemes that mark tokens.
            candidates: How many candidates are sampled for a sentence (`GenerationSettings`); by default that of the scheme.
                Schemes that mark tokens sample a text once.
            strength: `light`, `standard` (the default) or `strong`: a name for candidates and steering, instead of both.
            steering: How strongly the model is steered towards the key (docs/soft.md); 0 with `candidates` alone.
            seed: Makes the text repeatable. The i-th of several prompts gets the seed `seed + i`.
            sampling: Temperature, top-p and the like, and whether the model may end its text (`may_end`). By default it may
                with `prompt_style="chat"`, unless the scheme marks tokens; texts then end where the model ends them.
            prompt_style: `continue`, the default, goes on where the prompt stops, `chat` answers it through the chat template.
            batch: The number of texts generated at a time, for a list; by default the number that suits the model best.
            progress: Called with each sentence that is chosen, by schemes that mark tokens with the last. By default a line
                shows how far the work is, on a terminal and in notebooks; False shows nothing.
            payload: The number that the mark carries, for a key with payloads (docs/payload.md); by default that of the key.

        Returns:
            The generation, or for a list of prompts the list of generations in the same order.

        Raises:
            AlimarkError: The options are invalid, or the model or the embedder fails.

        Example:
            >>> from alimark import AliMark, Key
            >>> from alimark.testing import StandInEmbedder, StandInLLM
            >>> embedder = StandInEmbedder()
            >>> key = Key.generate(embedder=embedder, secret=bytes(range(32)))
            >>> mark = AliMark(key, embedder=embedder)
            >>> generation = mark.generate("It was late.", StandInLLM(), sentences=3, candidates=8, seed=1)
            >>> len(generation.sentences)
            3
            >>> two = mark.generate(["It was late.", "Morning came."], StandInLLM(), sentences=2, candidates=8, seed=1)
            >>> [generation.seed for generation in two]
            [1, 2]
        """
        texts, llm = texts_of(prompt, "prompt"), as_llm(llm)
        settings = self._generation_settings(options, llm)
        seed, payload, progress = options.get("seed"), options.get("payload"), options.get("progress")
        key = None if payload is None else self.key.carrying(payload)
        prompts = [Prompt(text, None if seed is None else seed + i, key) for i, text in enumerate(texts)]
        batch = 1 if isinstance(prompt, str) else options.get("batch")
        with Line("writing", settings.sentences * len(texts), wanted=progress is None) as line:
            step = progress_step(line, progress or None)
            generations = in_order(self.generate_many(prompts, llm, settings, batch=batch, progress=step))
        return generations[0] if isinstance(prompt, str) else generations

    def steerable(self, llm: LLM) -> bool:
        """Whether texts under the key are steered by default: those of soft keys, by models that can be steered."""
        return False

    def _generation_settings(self, options: GenerateOptions, llm: LLM) -> GenerationSettings:
        check_names("generation", options, GenerateOptions.__annotations__)
        style, tokens = options.get("prompt_style", "continue"), options.get("tokens")
        if tokens is not None and not self.by_token:
            raise AlimarkError(
                f"the length of a text marked by {self.scheme} is a number of sentences; give `sentences`"
            )
        count, steering = candidates_and_steering(
            options.get("strength"), options.get("candidates"), options.get("steering"), self.candidates,
            steerable=self.steerable(llm),
        )  # fmt: skip
        sampling = options.get("sampling") or Sampling(may_end=style == "chat" and not self.by_token)
        return GenerationSettings(
            options.get("sentences", 12), count, sampling, prompt_style=style, tokens=tokens, steering=steering
        )

    @abstractmethod
    def generate_many(
        self,
        prompts: Iterable[Prompt],
        llm: LLM,
        settings: GenerationSettings,
        *,
        batch: int | None = None,
        progress: ManyProgress | None = None,
    ) -> Finished:
        """Yields each text with its prompt's number as soon as it is finished, or the error that ended it.

        A prompt may name another key of the scheme.
        """

    @overload
    def detect(self, text: str, **options: Unpack[DetectOptions]) -> SomeDetection_co: ...

    @overload
    def detect(self, text: list[str], **options: Unpack[DetectOptions]) -> list[SomeDetection_co]: ...

    def detect(
        self,
        text: str | list[str],
        *,
        settings: RandomKeys | None = None,
        llm: SomeLLM | None = None,
        **options: Unpack[DetectionOptions],
    ) -> SomeDetection_co | list[SomeDetection_co]:
        """Detects the mark in a text, or in each of a list of texts.

        Args:
            text: The text; a list for several texts, whose units are embedded in one batch.
            settings: How to search; by default the scheme's default settings.
            llm: The model that detection asks: a chat model for AliMark's learned restructuring, and for PMark with sampled
                medians the model that wrote the text; or its name.
            options: Fields of the scheme's settings that replace those of `settings`.

        Returns:
            The detection, or for a list of texts the list of detections in the same order.

        Raises:
            AlimarkError: An option is unknown to the scheme, or a text is empty or too long.
        """
        chosen = detection_settings(self.scheme, self.settings, settings, {**options})
        detections: list[SomeDetection_co] = []
        for answer in self.detect_batch(texts_of(text), chosen, llm=None if llm is None else as_llm(llm)):
            if isinstance(answer, AlimarkError):
                raise answer
            detections.append(answer)
        return detections[0] if isinstance(text, str) else detections

    @abstractmethod
    def detect_batch(
        self,
        texts: Sequence[str],
        settings: RandomKeys | None = None,
        *,
        llm: LLM | None = None,
        times: Counter[str] | None = None,
    ) -> list[SomeDetection_co | AlimarkError]:
        """A result for each text, in order; for a text that cannot be searched, its error."""

    @abstractmethod
    def units(self, texts: Iterable[str], settings: RandomKeys | None = None) -> Iterator[str]:
        """The texts that detection embeds, so that a caller can embed them beforehand."""


class SentenceWatermark(Watermark[SomeDetection_co]):
    """The base class of sentence-level schemes. A scheme adds its selection rule and its detection."""

    candidates: ClassVar[int] = DEFAULT_CANDIDATES

    def __init__(self, key: Key, *, embedder: Embedder | str | None = None) -> None:
        super().__init__(key, embedder=embedder)
        self._schedulers: dict[int, Scheduler] = {}

    @classmethod
    @abstractmethod
    def sentence_rule(cls, key: Key, settings: GenerationSettings, origin: TextOrigin) -> Rule:
        """Makes the selection rule of one text; `origin` is what it continues, with an id that no other text of the key has."""

    def generate_many(
        self,
        prompts: Iterable[Prompt],
        llm: LLM,
        settings: GenerationSettings,
        *,
        batch: int | None = None,
        progress: ManyProgress | None = None,
    ) -> Finished:
        from alimark.core.generation.api import generate_many

        return generate_many(
            prompts, self.key, self.embedder, llm, settings, rule=self.sentence_rule, batch=batch, progress=progress
        )

    async def agenerate(self, prompt: str, llm: SomeLLM, **options: Unpack[GenerateOptions]) -> Generation:
        """Generates a text like `generate`, for servers: texts that are awaited at the same time share batches.

        Cancelling the task stops the generation. The options are those of `generate`, and so are the errors and the text of a
        seed; `progress` is not called in the thread of the event loop.
        """
        import asyncio

        from alimark.core.generation.session import Session

        [text], llm = texts_of(prompt, "prompt"), await asyncio.to_thread(as_llm, llm)
        settings, key = self._generation_settings(options, llm), self.key.carrying(options.get("payload"))
        scheduler = await asyncio.to_thread(self._scheduler, llm)  # the embedder may have to be loaded
        progress = options.get("progress") or None
        session = Session(text, key, settings, rule=self.sentence_rule, seed=options.get("seed"), progress=progress)
        return await asyncio.wrap_future(scheduler.submit(session))

    def _scheduler(self, llm: LLM) -> Scheduler:
        """The scheduler of a language model, made on first use."""
        from alimark.core.generation.scheduler import Scheduler

        embedder = self.embedder
        with _loading:
            # A scheduler refers to its model, so no other object can get the model's id.
            return self._schedulers.setdefault(id(llm), Scheduler(llm, embedder))


def progress_step(line: Line, progress: Progress | None) -> ManyProgress:
    """What is called with each sentence of several texts: it moves the line, and calls `progress`."""
    written: dict[int, int] = {}

    def step(number: int, sentence: MarkedSentence) -> None:
        written[number] = sentence.number
        line.at(sum(written.values()))
        if progress:
            progress(sentence)

    return step


def texts_of(given: object, what: str = "text") -> list[str]:
    """The texts of an argument that is a text or a list of texts; raises TextError for anything else."""
    texts: list[Any] = list(given) if isinstance(given, list | tuple) else [given]
    for text in texts:
        if not isinstance(text, str):
            kind = type(text).__name__
            advice = ""
            if isinstance(text, bytes | PathLike):
                advice = "; alimark.read_document(...).text reads a file"
            elif hasattr(text, "text"):
                advice = f"; a {kind} has it as its attribute `text`"
            raise TextError(f"a {what} is a string, not {kind}: pass a string or a list of strings{advice}")
    return texts


def check_key(key: object) -> Key:
    """The key itself; raises KeyFileError where it is something else, such as the path of a key file."""
    if not isinstance(key, Key):
        raise KeyFileError(
            f"a key is an alimark.Key, not {type(key).__name__}; alimark.Key.load(path) reads a key file"
        )
    return key


def in_order(results: Iterable[tuple[int, Result | AlimarkError]]) -> list[Result]:
    """The results in the order of their numbers; raises the first error."""
    by_number: dict[int, Result] = {}
    for number, result in results:
        if isinstance(result, AlimarkError):
            raise result
        by_number[number] = result
    return [by_number[number] for number in sorted(by_number)]


def detection_settings(
    scheme: str, settings_class: type[RandomKeys], settings: RandomKeys | None, options: Mapping[str, object]
) -> RandomKeys:
    """The detection settings of a scheme with some of their fields changed."""
    if settings is not None and not isinstance(settings, settings_class):
        raise AlimarkError(
            f"detection of {scheme} takes settings of the class {settings_class.__name__}, not {type(settings).__name__}"
        )
    check_names("detection", options, [field.name for field in fields(settings_class)])
    return replace(settings or settings_class(), **options)  # type: ignore[arg-type]


def check_names(what: str, options: Mapping[str, object], known: Iterable[str]) -> None:
    """Checks that every option is known; raises AlimarkError if not."""
    if unknown := set(options) - set(known):
        raise AlimarkError(f"unknown {what} option {', '.join(sorted(unknown))}; known: {', '.join(known)}")
