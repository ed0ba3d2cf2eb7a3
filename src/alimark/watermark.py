"""The Watermark protocol, and AliMark, which ties key, embedder, generation and detection together."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, overload

from alimark.detection import Detection
from alimark.detector import DetectionSettings, detect_batch, detect_keys
from alimark.embed import Embedder, load_embedder
from alimark.errors import AlimarkError, KeyFileError
from alimark.key import Key

if TYPE_CHECKING:
    from alimark.generate import Generation, Progress, PromptStyle, Scheduler
    from alimark.llm.base import LLM, Sampling
    from alimark.rewrite import Rewriting

Made = TypeVar("Made")


class Watermark(Protocol):
    """What every scheme offers, AliMark and its rivals alike."""

    @property
    def scheme(self) -> str: ...

    @property
    def key(self) -> Key: ...

    def generate(self, prompt: Any, llm: LLM, *, sentences: int = 12, seed: int | None = None) -> Any: ...

    def detect(self, text: Any) -> Any: ...


@lru_cache(maxsize=4)
def _embedder(name: str) -> Embedder:
    return load_embedder(name)


_loading = threading.Lock()


class AliMark:
    """Marks and detects under one key. The embedder that the key names is loaded on first use; safe to share by threads."""

    scheme = "alimark"

    def __init__(self, key: Key, *, embedder: Embedder | None = None) -> None:
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
        return f"AliMark({self.key!r})"

    @overload
    def generate(self, prompt: str, llm: LLM, *, sentences: int = ..., candidates: int = ..., seed: int | None = ...,
                 sampling: Sampling | None = ..., prompt_style: PromptStyle = ..., batch: int | None = ...,
                 progress: Progress | None = ...) -> Generation: ...  # fmt: skip

    @overload
    def generate(self, prompt: list[str], llm: LLM, *, sentences: int = ..., candidates: int = ...,
                 seed: int | None = ..., sampling: Sampling | None = ..., prompt_style: PromptStyle = ...,
                 batch: int | None = ..., progress: Progress | None = ...) -> list[Generation]: ...  # fmt: skip

    def generate(
        self,
        prompt: str | list[str],
        llm: LLM,
        *,
        sentences: int = 12,
        candidates: int = 64,
        seed: int | None = None,
        sampling: Sampling | None = None,
        prompt_style: PromptStyle = "continue",
        batch: int | None = None,
        progress: Progress | None = None,
    ) -> Generation | list[Generation]:
        """Writes marked text after a prompt, or after each of several, `batch` of them at a time.

        `progress` is called with each sentence as it is chosen. The i-th of several prompts has the seed `seed + i`.
        """
        from alimark.generate import GenerationSettings, Prompt, generate, generate_many
        from alimark.llm.base import Sampling

        settings = GenerationSettings(sentences, candidates, sampling or Sampling(), prompt_style=prompt_style)
        if isinstance(prompt, str):
            return generate(prompt, self.key, self.embedder, llm, settings, seed=seed, progress=progress)
        step = None if progress is None else (lambda _, sentence: progress(sentence))
        prompts = [Prompt(one, None if seed is None else seed + i) for i, one in enumerate(prompt)]
        made = generate_many(prompts, self.key, self.embedder, llm, settings, batch=batch, progress=step)
        return _in_order(made)

    async def agenerate(
        self,
        prompt: str,
        llm: LLM,
        *,
        sentences: int = 12,
        candidates: int = 64,
        seed: int | None = None,
        sampling: Sampling | None = None,
        prompt_style: PromptStyle = "continue",
        progress: Progress | None = None,
    ) -> Generation:
        """`generate` for a server: texts that are awaited at the same time are written together.

        `progress` is called in another thread than the event loop's. Cancelling ends the work on the text.
        """
        import asyncio

        from alimark.generate import GenerationSettings, Writing
        from alimark.llm.base import Sampling

        settings = GenerationSettings(sentences, candidates, sampling or Sampling(), prompt_style=prompt_style)
        scheduler = await asyncio.to_thread(self._scheduler, llm)  # the embedder may have to be loaded
        writing = Writing(prompt, self.key, settings, seed=seed, progress=progress)
        return await asyncio.wrap_future(scheduler.submit(writing))

    def _scheduler(self, llm: LLM) -> Scheduler:
        """One for each model that text was asked of."""
        from alimark.generate import Scheduler

        embedder = self.embedder
        with _loading:
            # A scheduler holds its model, so the model's id stays its own.
            return self._schedulers.setdefault(id(llm), Scheduler(llm, embedder))

    @overload
    def rewrite(self, text: str, llm: LLM, *, seed: int | None = ..., **options: Any) -> Rewriting: ...

    @overload
    def rewrite(self, text: list[str], llm: LLM, *, seed: int | None = ..., **options: Any) -> list[Rewriting]: ...

    def rewrite(
        self, text: str | list[str], llm: LLM, *, seed: int | None = None, **options: Any
    ) -> Rewriting | list[Rewriting]:
        """Marks a text that exists, or each of several, by a chat model's rewrites of its sentences.

        Options are the fields of RewriteSettings. The i-th of several texts has the seed `seed + i`.
        """
        from alimark.rewrite import Original, RewriteSettings, rewrite, rewrite_many

        _check_names("rewriting", options, RewriteSettings)
        settings = RewriteSettings(**options)
        if isinstance(text, str):
            return rewrite(text, self.key, self.embedder, llm, settings, seed=seed)
        originals = [Original(one, None if seed is None else seed + i) for i, one in enumerate(text)]
        return _in_order(rewrite_many(originals, self.key, self.embedder, llm, settings))

    @overload
    def detect(
        self, text: str, *, settings: DetectionSettings | None = ..., llm: LLM | None = ..., **options: Any
    ) -> Detection: ...

    @overload
    def detect(
        self, text: list[str], *, settings: DetectionSettings | None = ..., llm: LLM | None = ..., **options: Any
    ) -> list[Detection]: ...

    def detect(
        self,
        text: str | list[str],
        *,
        settings: DetectionSettings | None = None,
        llm: LLM | None = None,
        **options: Any,
    ) -> Detection | list[Detection]:
        """Looks for the mark in a text or in each of several. Options are the fields of DetectionSettings.

        `llm`: the chat model that learned restructuring asks.
        """
        chosen = _settings(settings, options)
        answers = []
        texts = [text] if isinstance(text, str) else text
        for answer in detect_batch(texts, self.key, self.embedder, chosen, llm=llm):
            if isinstance(answer, AlimarkError):
                raise answer
            answers.append(answer)
        return answers[0] if isinstance(text, str) else answers


def _in_order(made: Iterable[tuple[int, Made | AlimarkError]]) -> list[Made]:
    """All texts by the place of their prompts; the first error is raised."""
    found: dict[int, Made] = {}
    for i, one in made:
        if isinstance(one, AlimarkError):
            raise one
        found[i] = one
    return [found[i] for i in sorted(found)]


def _settings(settings: DetectionSettings | None, options: dict[str, Any]) -> DetectionSettings:
    _check_names("detection", options, DetectionSettings)
    return replace(settings or DetectionSettings(), **options)


def _check_names(what: str, options: dict[str, Any], settings: Any) -> None:
    known = settings.__dataclass_fields__
    if unknown := set(options) - set(known):
        raise AlimarkError(f"unknown {what} option {', '.join(sorted(unknown))}; known: {', '.join(known)}")


def load(key: Key) -> AliMark:
    """The watermark of the scheme that a key names."""
    if key.scheme != "alimark":
        raise KeyFileError(f"scheme {key.scheme!r} is not known to this release")
    return AliMark(key)


def detect(
    text: str,
    keys: Sequence[Key],
    *,
    embedder: Embedder | None = None,
    best: int = 3,
    settings: DetectionSettings | None = None,
    llm: LLM | None = None,
    **options: Any,
) -> list[Detection]:
    """Whose key it was: the best few of `keys`, best first, p-values corrected for the number of keys tried."""
    if not keys:
        raise AlimarkError("no keys were given")
    chosen = _settings(settings, options)
    return detect_keys(text, keys, embedder or AliMark(keys[0]).embedder, chosen, best=best, llm=llm)
