"""A chat model rewrites the whole text in one answer, asked in the paper's words."""

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
"""The paper's, word for word."""

_ERRORS_IN_A_ROW = 3  # then the model is gone, and the other texts wait for another run


@dataclass
class _Job:
    place: int
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

    An answer that is empty, a refusal, a summary, in another language or full of
    tags is asked for again; after some tries the text is recorded as failed.
    """

    name: ClassVar[str] = "chat"
    by_model: ClassVar[bool] = True
    engine: LLM | None = field(default=None, repr=False, compare=False)
    """A model that is loaded already, used instead of `llm`."""

    def __post_init__(self) -> None:
        if self.tries < 1:
            raise AttackError("at least one try is needed")
        try:
            self._sampling  # noqa: B018 - says at once what is wrong with the settings
        except ValueError as error:
            raise AttackError(str(error)) from None

    @property
    def models(self) -> tuple[str, ...]:
        return () if self.engine else (self.llm.split(":", 1)[-1],)

    @property
    def _sampling(self) -> Sampling:
        # A penalty would make names and small words rare; the model ends when the text is told.
        return Sampling(self.temperature, self.top_p, 1.0, self.max_tokens, may_end=True)

    @cached_property
    def _model(self) -> LLM:
        from alimark.llm import load_llm

        return self.engine or load_llm(self.llm)

    def run(self, targets: Iterable[Target]) -> Iterator[tuple[int, Attacked]]:
        fresh = (_Job(place, target) for place, target in enumerate(targets))
        again: deque[_Job] = deque()
        in_a_row = 0
        while True:
            asked: dict[int, _Job] = {}
            for number, _, answer in draw_all(
                self._model, _requests(fresh, again, asked), self._sampling, never, single_draws=True
            ):
                job = asked.pop(number)
                in_a_row = in_a_row + 1 if _is_gone(answer) else 0
                if in_a_row == _ERRORS_IN_A_ROW and isinstance(answer, LLMError):
                    raise answer
                if done := self._taken(job, answer):
                    yield job.place, done
                else:
                    again.append(job)
            if not again:
                return

    def _taken(self, job: _Job, answer: Answer) -> Attacked | None:
        """What became of the text, or None where the model is to be asked again."""
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


def _is_gone(answer: Answer) -> bool:
    return isinstance(answer, LLMError) and not isinstance(answer, ContextFull)


def _requests(fresh: Iterator[_Job], again: deque[_Job], asked: dict[int, _Job]) -> Iterator[Request]:
    """Who is to be asked again goes first, so that a text does not wait for all others; `asked` gets their numbers."""
    number = 0
    while job := again.popleft() if again else next(fresh, None):
        asked[number] = job
        number += 1
        yield job.request()


@dataclass(frozen=True)
class GPT35Turbo(Chat):
    """Have GPT-3.5 rewrite the whole text, as the paper does.

    The API key is taken from the environment variable OPENAI_API_KEY.
    """

    name: ClassVar[str] = "gpt-3.5"
    llm: str = setting(GPT35, "The model and the endpoint that serves it.")
