"""What the token-level watermarks have in common: they choose tokens as a text is written and score tokens where they look.

Writing needs a model on transformers; detection the tokenizer and the key (SIR: the embedder, too) and never the model. A
p-value is the share of random keys that score as high on the very same tokens, as AliMark's is: right for any text, whatever
it repeats. Where the count has a law of its own, its tail stands beside it in the evidence.
"""

from __future__ import annotations

import secrets
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING, Any, ClassVar, Unpack, overload

from alimark.detection.building import EmbedderIdentity, Statistic, build_detection
from alimark.detection.pipeline import Clock, normalise
from alimark.detection.results import Detection
from alimark.detection.settings import DetectionOptions
from alimark.detection.stats.p_values import RandomKeys, significance_of
from alimark.errors import AlimarkError, KeyFileError, KeyMismatch, LimitError, LLMError, TextError
from alimark.generation.session import Generation
from alimark.schemes.tokens import Ids, TextTokenizer, check_tokenizer, load_tokenizer
from alimark.text.splitting import splitter

if TYPE_CHECKING:
    from alimark.embedding.base import Embedder
    from alimark.generation.api import Prompt
    from alimark.generation.session import GenerationSettings, MarkedSentence, Progress, PromptStyle
    from alimark.keys.fitted import Fitted
    from alimark.keys.key import Key
    from alimark.llm.base import LLM, Sampling
    from alimark.schemes._engines import Engine
    from alimark.schemes._writing import Length, Marker

DEFAULT_TOKENIZER = "smollm2-135m"

_BATCH = 32


class TokenLevel(ABC):
    """Marks and detects under one key. Tokenizer and embedder are loaded on first use; safe to share by threads."""

    scheme: ClassVar[str]
    Parameters: ClassVar[type[Any]]
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    embeds: ClassVar[bool] = False
    candidates: ClassVar[int] = 1
    settings: ClassVar[type[RandomKeys]] = RandomKeys

    def __init__(
        self, key: Key, *, embedder: Embedder | None = None, tokenizer: TextTokenizer | str | None = None
    ) -> None:
        if key.scheme != self.scheme:
            raise KeyMismatch(f"key {key.id} is of the scheme {key.scheme}, not {self.scheme}")
        if embedder is not None:
            key.check(embedder)
        self.key = key
        self.parameters = self.Parameters(**key.parameters)
        self._embedder = embedder
        self._tokenizer = load_tokenizer(tokenizer) if isinstance(tokenizer, str) else tokenizer

    @classmethod
    def check_fitted(cls, parameters: Any, fitted: Fitted | None) -> None:
        if fitted is not None:
            raise KeyFileError(f"{cls.scheme} learns nothing from text")

    @property
    def tokenizer(self) -> TextTokenizer:
        if self._tokenizer is None:
            self._tokenizer = load_tokenizer(self.parameters.tokenizer)
        check_tokenizer(self._tokenizer, self.parameters.vocabulary, self.key.id)
        return self._tokenizer

    @property
    def embedder(self) -> Embedder:
        if self._embedder is None:
            from alimark.embedding.loading import load_embedder

            loaded = load_embedder(self.key.embedder)
            self.key.check(loaded)
            self._embedder = loaded
        return self._embedder

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.key!r})"

    # What a scheme is

    @abstractmethod
    def marker(self, seeds: list[int], llm: Engine) -> Marker:
        """Of one batch of texts."""

    @abstractmethod
    def find(self, ids: Ids) -> Statistic:
        """The statistic of a text's tokens under the key and under random keys."""

    # Writing and looking

    def generate(
        self,
        prompt: str | list[str],
        llm: LLM,
        *,
        sentences: int = 12,
        tokens: int | None = None,
        seed: int | None = None,
        sampling: Sampling | None = None,
        prompt_style: PromptStyle = "continue",
        batch: int | None = None,
        progress: Progress | None = None,
        candidates: int | None = None,
    ) -> Generation | list[Generation]:
        """Writes marked text after a prompt, or after each of several, `batch` of them at a time.

        It has so many sentences or, where that is given, so many tokens. The i-th of several prompts has the seed `seed + i`.
        A token has no candidates: what `candidates` says is passed over, as the other schemes take it.
        """
        from alimark.generation.api import Prompt
        from alimark.generation.session import GenerationSettings
        from alimark.llm.base import Sampling
        from alimark.schemes.base import in_order

        settings = GenerationSettings(
            sentences, self.candidates, sampling or Sampling(), prompt_style=prompt_style, tokens=tokens
        )
        texts = [prompt] if isinstance(prompt, str) else prompt
        prompts = [Prompt(text, None if seed is None else seed + i) for i, text in enumerate(texts)]
        step = None if progress is None else (lambda _, sentence: progress(sentence))
        made = in_order(self.generate_many(prompts, llm, settings, batch=batch, progress=step))
        return made[0] if isinstance(prompt, str) else made

    def generate_many(
        self,
        prompts: Iterable[Prompt],
        llm: LLM,
        settings: GenerationSettings,
        *,
        batch: int | None = None,
        progress: Callable[[int, MarkedSentence], None] | None = None,
    ) -> Iterator[tuple[int, Generation | AlimarkError]]:
        """Yields each text with its prompt's place, a batch of them at a time, or the error that kept it from being written.

        What is written does not depend on the batch, up to the rounding of its logits.
        """
        from alimark.schemes._engines import engine_of

        engine = engine_of(llm)
        size = min(engine.most, _BATCH if batch is None else batch)
        if size < 1:
            raise AlimarkError("batch must be at least 1")
        marks = {self.key.id: self}
        waiting = enumerate(prompts)
        while group := list(islice(waiting, size)):
            jobs = []
            for i, prompt in group:
                own = prompt.key or self.key
                try:
                    mark = marks.setdefault(own.id, type(self)(own, embedder=self._embedder, tokenizer=self.tokenizer))
                    jobs.append(_job(i, prompt, mark, engine, settings))
                except (LLMError, TextError) as error:
                    yield i, error
            if jobs:
                yield from _write(jobs, engine, settings, progress)

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
    ) -> list[Detection]: ...

    def detect(
        self,
        text: str | list[str],
        *,
        settings: RandomKeys | None = None,
        llm: LLM | None = None,
        **options: Unpack[DetectionOptions],
    ) -> Detection | list[Detection]:
        """Looks for the mark in a text or in each of several. Options are the fields of the scheme's settings."""
        from alimark.schemes.base import detect_or_raise

        return detect_or_raise(self, text, settings, {**options}, llm)

    def detect_batch(
        self,
        texts: Sequence[str],
        settings: RandomKeys | None = None,
        *,
        llm: LLM | None = None,
        times: Counter[str] | None = None,
    ) -> list[Detection | AlimarkError]:
        """A result for each text, in order; for a text that cannot be searched, its error."""
        chosen = settings or self.settings()
        answers: list[Detection | AlimarkError] = []
        clock = Clock(Counter() if times is None else times)
        for text in texts:
            try:
                answers.append(self._detection(text, chosen))
            except (TextError, LimitError) as error:
                answers.append(error)
        clock.lap("scoring")
        return answers

    def units(self, texts: Iterable[str], settings: RandomKeys | None = None) -> Iterator[str]:
        """The texts that detection will embed: none, unless the scheme embeds."""
        return iter(())

    def _detection(self, text: str, settings: RandomKeys) -> Detection:
        sentences = splitter(self.key.splitter).units(normalise(text))
        ids = self.tokenizer.ids(normalise(text).strip())
        if not sentences or not len(ids):
            raise TextError("the text is blank; there is nothing to detect in it")
        statistic = self.find(ids)
        evidence = {**statistic.evidence, "tokens": len(ids), "tokenizer": self.tokenizer.fingerprint}
        backend = self.embedder.backend if self.embeds else ""
        return build_detection(
            Detection,
            text,
            sentences,
            replace(statistic, evidence=evidence),
            significance_of(statistic.raw, statistic.null, settings),
            key=self.key,
            embedder=EmbedderIdentity(self.key.embedder, backend, self.key.fingerprint),
            settings=settings,
            tie_label="tie",
        )


@dataclass(frozen=True)
class _Job:
    place: int
    prompt: str
    ids: list[int]
    seed: int
    mark: TokenLevel


def _job(place: int, prompt: Prompt, mark: TokenLevel, engine: Engine, settings: GenerationSettings) -> _Job:
    check_engine(mark, engine)
    ids = engine.prompt(prompt.text, settings.prompt_style == "chat")
    engine.check_room(ids, _length(settings, mark.key).most(settings.sampling))
    seed = secrets.randbits(48) if prompt.seed is None else prompt.seed
    return _Job(place, prompt.text, ids, seed, mark)


def _length(settings: GenerationSettings, key: Key) -> Length:
    from alimark.schemes._writing import Length

    return Length(None if settings.tokens else settings.sentences, settings.tokens, key.splitter)


def check_engine(mark: TokenLevel, engine: Engine) -> None:
    """Raises KeyMismatch where a model has other tokens than the key's detector will look for."""
    if not engine.writes(mark.tokenizer):
        raise KeyMismatch(
            f"key {mark.key.id} was made for the tokenizer of {mark.tokenizer.name}, and {engine.name} has another; make a key "
            "for it: alimark keygen --scheme NAME --set tokenizer=MODEL"
        )


def _write(
    jobs: Sequence[_Job], engine: Engine, settings: GenerationSettings,
    progress: Callable[[int, MarkedSentence], None] | None,
) -> Iterator[tuple[int, Generation]]:  # fmt: skip
    from alimark.generation.session import MarkedSentence
    from alimark.schemes._writing import PerKey, write

    started = time.perf_counter()
    by_mark: dict[int, list[int]] = {}
    for row, job in enumerate(jobs):
        by_mark.setdefault(id(job.mark), []).append(row)
    parts = [(rows, jobs[rows[0]].mark.marker([jobs[row].seed for row in rows], engine)) for rows in by_mark.values()]
    marker: Marker = parts[0][1] if len(parts) == 1 else PerKey(parts, engine.device)
    length = _length(settings, jobs[0].mark.key)
    made = write([job.ids for job in jobs], [job.seed for job in jobs], engine, marker, length, settings.sampling)
    elapsed = time.perf_counter() - started
    for job, written in zip(jobs, made, strict=True):
        units = tuple(splitter(length.splitter).units(written.text))
        if progress is not None and units:
            progress(job.place, MarkedSentence(len(units), units[-1], written.text, 0, 1, len(written.ids)))
        yield (
            job.place,
            Generation(
                prompt=job.prompt, text=written.text, sentences=units, matches=(), block_size=0, key_id=job.mark.key.id,
                scheme=job.mark.scheme, llm=engine.name, settings=settings, seed=job.seed, candidates=1,
                tokens=len(written.ids), waves=1, embedded=0, rejected={}, surviving=len(units), ended=written.ended,
                seconds=elapsed / len(jobs), elapsed=elapsed,
            ),
        )  # fmt: skip
