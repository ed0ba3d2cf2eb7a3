"""The base class of token-level watermarks, which choose the tokens of a text and score its tokens in detection.

Generation needs a model whose token probabilities can be read (`_token_engines`). Detection needs the tokenizer and the key,
SIR also its embedder, but never the model. A p-value is the share of random keys that score as high on the same tokens, as
for AliMark, so that it holds for any text, including one that repeats itself. Where the count of unmarked text has a known
distribution, the p-value by that distribution is in the evidence too.
"""

import html
import secrets
import time
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property, partial
from itertools import islice
from typing import ClassVar

import numpy as np

from alimark.core._util.arrays import Floats
from alimark.core._util.json_types import JsonObject
from alimark.core._util.work import Clock
from alimark.core.detection.building import EmbedderIdentity, Statistic, build_detection
from alimark.core.detection.results import Detection
from alimark.core.detection.stats.p_values import RandomKeys, significance_of
from alimark.core.embedding.base import Embedder
from alimark.core.frozen.text.splitting import splitter
from alimark.core.generation.api import Finished, ManyProgress, Prompt
from alimark.core.generation.results import Generation, MarkedSentence
from alimark.core.generation.settings import GenerationSettings
from alimark.core.keys.key import Key
from alimark.core.llm.base import LLM
from alimark.core.parameters import SchemeParameters
from alimark.core.schemes.base import Watermark
from alimark.errors import AlimarkError, KeyMismatch, LimitError, LLMError, TextError
from alimark.lab.rivals import _prf
from alimark.lab.rivals._token_engines import TokenEngine, engine_of
from alimark.lab.rivals._token_sampling import Batch, Marker, PerKey, most_tokens
from alimark.lab.rivals.tokens import Ids, TextTokenizer, load_tokenizer

_BATCH = 32

DEFAULT_TOKENIZER = "smollm2-135m"  # the model whose tokenizer keys use by default


@dataclass(frozen=True)
class TokenParameters(SchemeParameters):
    """The parameters that the keys of all token-level schemes have."""

    tokenizer: str = DEFAULT_TOKENIZER
    vocabulary: str = ""

    def to_json(self) -> JsonObject:
        """The parameters as a key file holds them, those of the tokenizer last."""
        content = super().to_json()
        tokenizer = {name: content.pop(name) for name in ("tokenizer", "vocabulary")}
        return content | tokenizer


@dataclass(frozen=True, kw_only=True, repr=False)
class TokenDetection(Detection):
    """The result of a token-level scheme: a `Detection` that can show its tokens."""

    offered = (*Detection.offered, "tokens")

    compute_tokens: Callable[[], list[tuple[str, float]]] | None = field(default=None, compare=False)
    """Computes `tokens`; None in another process."""

    @cached_property
    def tokens(self) -> tuple[tuple[str, float], ...]:
        """The text of each token, and what `strengths` says of it."""
        return tuple(self.compute_tokens()) if self.compute_tokens else ()

    def __getstate__(self) -> JsonObject:
        return self.__dict__ | {"compute_tokens": None}

    def to_dict(self) -> JsonObject:
        content = asdict(replace(self, compute_tokens=None))
        del content["compute_tokens"]
        return content

    def _repr_html_(self) -> str:
        spans = (
            f'<span style="background:rgba(0,128,0,{max(0.0, strength - 0.5):.2f})" '
            f'title="{strength:.2f}">{html.escape(piece)}</span>'
            for piece, strength in self.tokens
        )
        return f'{super()._repr_html_()}<p style="white-space:pre-wrap">{"".join(spans)}</p>'


class TokenLevel(Watermark[TokenDetection]):
    """The base class of token-level schemes.

    A scheme adds `marker`, which chooses tokens, `find`, its statistic, and `strengths`, what each token adds to it.

    The tokenizer is loaded on first use. Threads may share an instance.
    """

    by_token: ClassVar[bool] = True
    candidates: ClassVar[int] = 1
    parameters: TokenParameters

    def __init__(
        self, key: Key, *, embedder: Embedder | None = None, tokenizer: TextTokenizer | str | None = None
    ) -> None:
        super().__init__(key, embedder=embedder)
        # A scheme declares the class of its parameters, which `key` has checked.
        self.parameters = key.parameters  # type: ignore[assignment]
        self._tokenizer = load_tokenizer(tokenizer) if isinstance(tokenizer, str) else tokenizer

    @property
    def tokenizer(self) -> TextTokenizer:
        """The tokenizer that the key names."""
        if self._tokenizer is None:
            self._tokenizer = load_tokenizer(self.parameters.tokenizer)
        vocabulary = self.parameters.vocabulary
        if vocabulary and self._tokenizer.fingerprint != vocabulary:
            raise KeyMismatch(
                f"key {self.key.id} was made for another tokenizer ({vocabulary[:19]}...) than {self._tokenizer.name} "
                f"({self._tokenizer.fingerprint[:19]}...); use the tokenizer of the model that wrote the text"
            )
        return self._tokenizer

    @property
    def secret(self) -> _prf.Words:
        """The two secret words that the scheme's hashes depend on."""
        secret: _prf.Words = _prf.words(self.key.stream(self.scheme, 16))[0]
        return secret

    def null_secrets(self, first: int, count: int) -> _prf.Words:
        """The secret words of `count` random keys from number `first` on, the same every time."""
        label = f"null-{self.scheme}"
        return np.concatenate([_prf.words(self.key.stream(label, 16, i)) for i in range(first, first + count)])

    @abstractmethod
    def marker(self, seeds: list[int], engine: TokenEngine) -> Marker:
        """Makes the object that chooses the tokens of one batch of texts, given the seed of each."""

    @abstractmethod
    def find(self, ids: Ids) -> Statistic:
        """The statistic of a text's tokens under the key and under random keys."""

    def strengths(self, ids: Ids) -> Floats:
        """How much each token carries: between 0 and 1, about 0.5 by chance, and nan where it is not scored."""
        return np.full(len(ids), np.nan)

    def _tokens(self, text: str, ids: Ids) -> list[tuple[str, float]]:
        return list(zip(self.tokenizer.pieces(text), self.strengths(ids).tolist(), strict=True))

    def generate_many(
        self,
        prompts: Iterable[Prompt],
        llm: LLM,
        settings: GenerationSettings,
        *,
        batch: int | None = None,
        progress: ManyProgress | None = None,
    ) -> Finished:
        """Yields each text, or the error that prevented it, with its prompt's number, a batch at a time.

        A text does not depend on its batch, except for rounding errors of the model's logits.
        """
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
                except (LLMError, TextError, KeyMismatch) as error:
                    yield i, error
            if jobs:
                yield from _write(jobs, engine, settings, progress)

    def detect_batch(
        self,
        texts: Sequence[str],
        settings: RandomKeys | None = None,
        *,
        llm: LLM | None = None,
        times: Counter[str] | None = None,
    ) -> list[TokenDetection | AlimarkError]:
        chosen = settings or self.settings()
        answers: list[TokenDetection | AlimarkError] = []
        clock = Clock(Counter() if times is None else times)
        for text in texts:
            try:
                answers.append(self._detection(text, chosen))
            except (TextError, LimitError) as error:
                answers.append(error)
        clock.lap("scoring")
        return answers

    def units(self, texts: Iterable[str], settings: RandomKeys | None = None) -> Iterator[str]:
        return iter(())  # only SIR embeds

    def _detection(self, text: str, settings: RandomKeys) -> TokenDetection:
        sentences = splitter(self.key.splitter).units(text)
        ids = self.tokenizer.ids(text.strip())
        if not sentences or not len(ids):
            raise TextError("the text is blank; detection needs a text with at least one word")
        statistic = self.find(ids)
        evidence = {**statistic.evidence, "tokens": len(ids), "tokenizer": self.tokenizer.fingerprint}
        backend = self.embedder.backend if self.Parameters.embeds else ""
        return build_detection(
            partial(TokenDetection, compute_tokens=partial(self._tokens, text.strip(), ids)),
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
class _Prompted:
    """A prompt of a batch: its number among all prompts, its tokens, its seed and its watermark."""

    number: int
    prompt: str
    ids: list[int]
    seed: int
    mark: TokenLevel


def _job(number: int, prompt: Prompt, mark: TokenLevel, engine: TokenEngine, settings: GenerationSettings) -> _Prompted:
    if not engine.writes(mark.tokenizer):
        raise KeyMismatch(
            f"key {mark.key.id} was made for the tokenizer of {mark.tokenizer.name}, but {engine.name} has another; make a key "
            "for it: alimark keygen --scheme NAME --set tokenizer=MODEL"
        )
    ids = engine.prompt(prompt.text, settings.prompt_style == "chat", most_tokens(settings))
    seed = secrets.randbits(48) if prompt.seed is None else prompt.seed
    return _Prompted(number, prompt.text, ids, seed, mark)


def _write(
    jobs: Sequence[_Prompted], engine: TokenEngine, settings: GenerationSettings, progress: ManyProgress | None
) -> Finished:
    """Generates one batch of texts."""
    started = time.perf_counter()
    by_mark: dict[int, list[int]] = {}
    for row, job in enumerate(jobs):
        by_mark.setdefault(id(job.mark), []).append(row)
    parts = [(rows, jobs[rows[0]].mark.marker([jobs[row].seed for row in rows], engine)) for rows in by_mark.values()]
    marker: Marker = parts[0][1] if len(parts) == 1 else PerKey(parts, engine.device)
    cut = splitter(jobs[0].mark.key.splitter)
    texts = Batch([job.ids for job in jobs], [job.seed for job in jobs], engine, marker, settings, cut).run()
    elapsed = time.perf_counter() - started
    for job, written in zip(jobs, texts, strict=True):
        units = tuple(cut.units(written.text))
        if progress is not None and units:
            progress(job.number, MarkedSentence(len(units), units[-1], written.text, 0, 1, len(written.ids)))
        generation = Generation(
            prompt=job.prompt, text=written.text, sentences=units, matches=(), block_size=0, key_id=job.mark.key.id,
            scheme=job.mark.scheme, llm=engine.name, settings=settings, seed=job.seed, candidates=1,
            tokens=len(written.ids), waves=1, embedded=0, rejected={}, surviving=len(units), ended=written.ended,
            seconds=elapsed / len(jobs), elapsed=elapsed,
        )  # fmt: skip
        yield job.number, generation
