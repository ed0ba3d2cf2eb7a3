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
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING, Any, ClassVar, Unpack, overload

from alimark.detection.building import EmbedderIdentity, Statistic, build_detection
from alimark.detection.pipeline import Clock, normalise
from alimark.detection.results import Detection
from alimark.detection.settings import DetectionOptions
from alimark.detection.stats.p_values import RandomKeys, significance_of
from alimark.errors import AlimarkError, KeyMismatch, LimitError, LLMError, TextError
from alimark.generation.results import Generation, MarkedSentence
from alimark.generation.settings import GenerationSettings
from alimark.parameters import SchemeParameters
from alimark.schemes.tokens import Ids, TextTokenizer, check_tokenizer, load_tokenizer
from alimark.text.splitting import splitter

if TYPE_CHECKING:
    from alimark.embedding.base import Embedder
    from alimark.generation.api import Finished, ManyProgress, Progress, Prompt, PromptStyle
    from alimark.keys.key import Key
    from alimark.llm.base import LLM, Sampling
    from alimark.schemes._token_engines import Engine
    from alimark.schemes._token_sampling import Length, Marker

_BATCH = 32


class TokenLevel(ABC):
    """Marks and detects under one key. Tokenizer and embedder are loaded on first use; safe to share by threads."""

    scheme: ClassVar[str]
    Parameters: ClassVar[type[SchemeParameters]]
    aligns: ClassVar[bool] = False
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
        self.parameters: Any = key.parameters  # a scheme declares its type
        self._embedder = embedder
        self._tokenizer = load_tokenizer(tokenizer) if isinstance(tokenizer, str) else tokenizer

    @classmethod
    def asks_llm(cls, key: Key) -> bool:
        """Whether detection asks the model that wrote the text: never."""
        return False

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
        """What chooses the tokens of one batch of texts, given the seed of each."""

    @abstractmethod
    def find(self, ids: Ids) -> Statistic:
        """The statistic of a text's tokens under the key and under random keys."""

    # Generation and detection

    @overload
    def generate(self, prompt: str, llm: LLM, *, sentences: int = ..., tokens: int | None = ..., seed: int | None = ...,
                 sampling: Sampling | None = ..., prompt_style: PromptStyle = ..., batch: int | None = ...,
                 progress: Progress | None = ..., candidates: int | None = ...) -> Generation: ...  # fmt: skip

    @overload
    def generate(self, prompt: list[str], llm: LLM, *, sentences: int = ..., tokens: int | None = ...,
                 seed: int | None = ..., sampling: Sampling | None = ..., prompt_style: PromptStyle = ...,
                 batch: int | None = ..., progress: Progress | None = ...,
                 candidates: int | None = ...) -> list[Generation]: ...  # fmt: skip

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
        """Writes marked text after a prompt, or after each of several prompts.

        Args:
            prompt: What to continue or, with `prompt_style="chat"`, to answer; a list for several texts.
            llm: A language model that shows its token probabilities: one on transformers or llama.cpp.
            sentences: How many sentences to write, where `tokens` is not given.
            tokens: How many tokens to write.
            seed: Makes the text repeatable. The i-th of several prompts gets the seed `seed + i`.
            sampling: Temperature, top-p and the like.
            prompt_style: `continue` goes on where the prompt stops, `chat` answers it through the chat template.
            batch: Texts written at a time, for a list.
            progress: Called once for each text, with its last sentence.
            candidates: Ignored; it is here because the sentence-level schemes have it. A token has no candidates.

        Returns:
            The generation, or for a list of prompts the list of generations in the same order.

        Raises:
            AlimarkError: Where the options make no sense, or the model fails or has another tokenizer than the key.
        """
        from alimark.llm.base import Sampling
        from alimark.schemes.base import generate_in_order

        settings = GenerationSettings(
            sentences, self.candidates, sampling or Sampling(), prompt_style=prompt_style, tokens=tokens
        )
        return generate_in_order(self, prompt, llm, settings, seed=seed, batch=batch, progress=progress)

    def generate_many(
        self,
        prompts: Iterable[Prompt],
        llm: LLM,
        settings: GenerationSettings,
        *,
        batch: int | None = None,
        progress: ManyProgress | None = None,
    ) -> Finished:
        """Yields each text with its prompt's number, a batch at a time, or the error that kept it from being written.

        What is written does not depend on the batch, up to the rounding of the model's logits.
        """
        from alimark.schemes._token_engines import engine_of

        engine = engine_of(llm)
        size = min(engine.most, _BATCH if batch is None else batch)
        if size < 1:
            raise AlimarkError("batch must be at least 1")
        marks = {self.key.id: self}
        waiting = enumerate(prompts)
        while group := list(islice(waiting, size)):
            jobs = []
            for i, prompt in group:
                key = prompt.key or self.key
                try:
                    mark = marks.setdefault(key.id, type(self)(key, embedder=self._embedder, tokenizer=self.tokenizer))
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
        backend = self.embedder.backend if self.Parameters.embeds else ""
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
    """A prompt of a batch, with its number among all prompts and its tokens."""

    number: int
    prompt: str
    ids: list[int]
    seed: int
    mark: TokenLevel


def _job(number: int, prompt: Prompt, mark: TokenLevel, engine: Engine, settings: GenerationSettings) -> _Job:
    check_engine(mark, engine)
    ids = engine.prompt(prompt.text, settings.prompt_style == "chat")
    engine.check_room(ids, _length(settings, mark.key).most(settings.sampling))
    seed = secrets.randbits(48) if prompt.seed is None else prompt.seed
    return _Job(number, prompt.text, ids, seed, mark)


def _length(settings: GenerationSettings, key: Key) -> Length:
    from alimark.schemes._token_sampling import Length

    return Length(None if settings.tokens else settings.sentences, settings.tokens, key.splitter)


def check_engine(mark: TokenLevel, engine: Engine) -> None:
    """Raises KeyMismatch where the model's tokenizer is not the one that the key's detector uses."""
    if not engine.writes(mark.tokenizer):
        raise KeyMismatch(
            f"key {mark.key.id} was made for the tokenizer of {mark.tokenizer.name}, and {engine.name} has another; make a key "
            "for it: alimark keygen --scheme NAME --set tokenizer=MODEL"
        )


def _write(
    jobs: Sequence[_Job], engine: Engine, settings: GenerationSettings, progress: ManyProgress | None
) -> Finished:
    """Writes one batch of texts."""
    from alimark.schemes._token_sampling import PerKey, write

    started = time.perf_counter()
    by_mark: dict[int, list[int]] = {}
    for row, job in enumerate(jobs):
        by_mark.setdefault(id(job.mark), []).append(row)
    parts = [(rows, jobs[rows[0]].mark.marker([jobs[row].seed for row in rows], engine)) for rows in by_mark.values()]
    marker: Marker = parts[0][1] if len(parts) == 1 else PerKey(parts, engine.device)
    length = _length(settings, jobs[0].mark.key)
    texts = write([job.ids for job in jobs], [job.seed for job in jobs], engine, marker, length, settings.sampling)
    elapsed = time.perf_counter() - started
    for job, written in zip(jobs, texts, strict=True):
        units = tuple(splitter(length.splitter).units(written.text))
        if progress is not None and units:
            progress(job.number, MarkedSentence(len(units), units[-1], written.text, 0, 1, len(written.ids)))
        generation = Generation(
            prompt=job.prompt, text=written.text, sentences=units, matches=(), block_size=0, key_id=job.mark.key.id,
            scheme=job.mark.scheme, llm=engine.name, settings=settings, seed=job.seed, candidates=1,
            tokens=len(written.ids), waves=1, embedded=0, rejected={}, surviving=len(units), ended=written.ended,
            seconds=elapsed / len(jobs), elapsed=elapsed,
        )  # fmt: skip
        yield job.number, generation
