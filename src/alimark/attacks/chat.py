"""The attack by a chat model: it rewrites the whole text in one answer, with the paper's prompt."""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar

from alimark.attacks.base import Attack, Attacked, Target, setting
from alimark.attacks.checks import text_flaw, without_preface
from alimark.attacks.settings import GPT35, ChatSettings
from alimark.errors import AttackError, ContextFull, LLMError
from alimark.llm.base import LLM, Message, Request, Sampling, never
from alimark.llm.chat import Answer, draw_all

SYSTEM = "You are a helpful assistant to rewrite text."
PROMPT = """\
Please rewrite the following text, avoiding the use of the same words or phrases as the original text as much as possible. \
You are able to merge or split sentences, but must preserve the original meaning:

{text}"""
"""The prompt of the paper, word for word."""

_MAX_ERRORS_IN_A_ROW = 3  # then the model is not reachable, and the run ends with the error


@dataclass
class _Job:
    """A text, and what the model answered so far."""

    index: int
    target: Target
    tries: int = 0
    tokens: int = 0
    rejected: list[str] = field(default_factory=list)

    def request(self) -> Request:
        digest = hashlib.sha256(f"alimark/chat/{self.target.seed}/{self.tries}".encode()).digest()
        messages = (Message("system", SYSTEM), Message("user", PROMPT.format(text=self.target.text.strip())))
        return Request("", 1, int.from_bytes(digest[:6], "big"), messages=messages)

    def failed(self, error: str) -> Attacked:
        return Attacked("", error, self.tries, tuple(self.rejected), tokens=self.tokens)


@dataclass(frozen=True)
class Chat(ChatSettings, Attack):
    """Have a chat model rewrite the whole text, with the paper's prompt.

    If an answer is empty, a refusal, a summary, in another language or full of
    tags, the model is asked again. After --tries the text is recorded as failed.
    """

    name: ClassVar[str] = "chat"
    by_model: ClassVar[bool] = True
    engine: LLM | None = field(default=None, repr=False, compare=False)
    """A loaded model, which is used instead of `llm`."""

    def __post_init__(self) -> None:
        if self.tries < 1:
            raise AttackError(f"tries must be at least 1, not {self.tries}")
        try:
            self._sampling  # noqa: B018 - raises ValueError where a setting is wrong
        except ValueError as error:
            raise AttackError(str(error)) from None

    @property
    def models(self) -> tuple[str, ...]:
        return () if self.engine else (self.llm.split(":", 1)[-1],)

    @property
    def _sampling(self) -> Sampling:
        # No repetition penalty, which would make names and function words rare. The model decides when the text ends.
        return Sampling(self.temperature, self.top_p, 1.0, self.max_tokens, may_end=True)

    @cached_property
    def _model(self) -> LLM:
        from alimark.llm import load_llm

        return self.engine or load_llm(self.llm)

    def run(self, targets: Iterable[Target]) -> Iterator[tuple[int, Attacked]]:
        fresh = (_Job(index, target) for index, target in enumerate(targets))
        again: deque[_Job] = deque()
        errors_in_a_row = 0
        while True:
            asked: dict[int, _Job] = {}
            for number, _, answer in draw_all(
                self._model, _requests(fresh, again, asked), self._sampling, never, single_draws=True
            ):
                job = asked.pop(number)
                errors_in_a_row = errors_in_a_row + 1 if _is_engine_error(answer) else 0
                if errors_in_a_row == _MAX_ERRORS_IN_A_ROW and isinstance(answer, LLMError):
                    raise answer
                if result := self._result(job, answer):
                    yield job.index, result
                else:
                    again.append(job)
            if not again:
                return

    def _result(self, job: _Job, answer: Answer) -> Attacked | None:
        """The result for the text, or None where the model must be asked again."""
        job.tries += 1
        if isinstance(answer, ContextFull):
            return job.failed("the text does not fit the model's context")
        if isinstance(answer, LLMError):
            flaw, text = str(answer), ""
        else:
            [draw] = answer
            job.tokens += draw.tokens
            text = without_preface(draw.text)
            flaw = text_flaw(text, job.target.text) or ("unfinished" if draw.ended == "length" else "")
        if not flaw:
            return Attacked(text, "", job.tries, tuple(job.rejected), tokens=job.tokens)
        job.rejected.append(f"{flaw}: {text[:80]}" if text else flaw)
        return job.failed(f"{flaw}, after {job.tries} tries") if job.tries >= self.tries else None


def _is_engine_error(answer: Answer) -> bool:
    return isinstance(answer, LLMError) and not isinstance(answer, ContextFull)


def _requests(fresh: Iterator[_Job], again: deque[_Job], asked: dict[int, _Job]) -> Iterator[Request]:
    """The requests, numbered in `asked`. Texts to ask for again come first, so that they do not wait for all the others."""
    number = 0
    while job := again.popleft() if again else next(fresh, None):
        asked[number] = job
        number += 1
        yield job.request()


@dataclass(frozen=True)
class GPT35Turbo(Chat):
    """Have GPT-3.5 rewrite the whole text, as the paper does.

    The API key is read from the environment variable OPENAI_API_KEY.
    """

    name: ClassVar[str] = "gpt-3.5"
    llm: str = setting(GPT35, "The model and the endpoint that serves it.")
