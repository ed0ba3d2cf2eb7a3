"""Requests to a chat model that rewrites texts or sentences: prompts, seeds, checks, and asking again."""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol, TypeVar

from alimark.core.frozen.text.surrogates import without_half_pairs
from alimark.core.llm.base import LLM, Message, Request, Sampling, never
from alimark.core.llm.requests import Answer, draw_all
from alimark.errors import AttackError, ContextFull, LLMError
from alimark.lab.attacks.base import Attack
from alimark.lab.attacks.checks import without_preface
from alimark.lab.attacks.settings import CHAT_PROMPTS, CHAT_SYSTEM

_MAX_ERRORS_IN_A_ROW = 3  # then the model is not reachable, and the run ends with the error
_PLACE = "{text}"


def prompt_text(prompt: str) -> str:
    """The instruction to the model.

    Args:
        prompt: A name of `CHAT_PROMPTS`, or an instruction with `{text}` in the place of the original.

    Returns:
        The instruction, with `{text}` in it.

    Raises:
        AttackError: The prompt is no name, and `{text}` is not in it.

    Example:
        >>> prompt_text("Say it in other words: {text}")
        'Say it in other words: {text}'
    """
    text = CHAT_PROMPTS.get(prompt, prompt)
    if _PLACE not in text:
        raise AttackError(
            f"the prompt must be {', '.join(CHAT_PROMPTS)}, or a text with {_PLACE} in the place of the original; "
            f"{prompt!r} is neither"
        )
    return text


@dataclass
class Question:
    """A passage that the model is asked to rewrite, and its answers so far.

    Attributes:
        passage: The text or sentence to rewrite.
        prompt: The instruction, with `{text}` in the place of the passage.
        seed_name: What the seeds of the draws are derived from, together with the number of the try.
        tries: The number of answers so far.
        tokens: The tokens of all answers.
        rejected: For each answer that was not used: the reason, a colon, and the start of the answer.
        rewrite: The answer that passed the checks, empty as long as there is none.
        flaw: Why the last answer was not used.
        too_long: Whether the passage does not fit the model's context, so that asking again does not help.
    """

    passage: str
    prompt: str
    seed_name: str
    tries: int = 0
    tokens: int = 0
    rejected: list[str] = field(default_factory=list)
    rewrite: str = ""
    flaw: str = ""
    too_long: bool = False

    def request(self) -> Request:
        """The request for the next try."""
        digest = hashlib.sha256(f"{self.seed_name}/{self.tries}".encode()).digest()
        content = without_half_pairs(self.prompt.replace(_PLACE, self.passage.strip()))
        messages = (Message("system", CHAT_SYSTEM), Message("user", content))
        return Request("", 1, int.from_bytes(digest[:6], "big"), messages=messages)

    def read(self, answer: Answer, flaw_of: Callable[[str], str], *, checked: bool = True) -> None:
        """Reads an answer: it becomes the `rewrite`, or `rejected` has one more where `flaw_of` gives a reason.

        Where answers are not `checked`, any text is the rewrite, unfinished or not, with all that stands around it.
        """
        self.tries += 1
        if isinstance(answer, ContextFull):
            self.too_long, self.flaw = True, "does not fit the model's context"
            return
        text = ""
        if isinstance(answer, LLMError):
            self.flaw = str(answer)
        else:
            [draw] = answer
            self.tokens += draw.tokens
            text = without_preface(draw.text) if checked else draw.text.strip()
            if checked:
                self.flaw = flaw_of(text) or ("unfinished" if draw.ended == "length" else "")
            else:
                self.flaw = "" if text else "empty"
        if self.flaw:
            self.rejected.append(f"{self.flaw}: {text[:80]}" if text else self.flaw)
        else:
            self.rewrite = text


class ChatModelAttack(Attack):
    """Base class of attacks by a chat model: loads the model, and checks the settings that all of them have."""

    by_model = True
    llm: str
    temperature: float
    top_p: float
    max_tokens: int
    tries: int
    prompt: str
    engine: LLM | None
    """A loaded model, which is used instead of `llm`."""

    def __post_init__(self) -> None:
        if self.tries < 1:
            raise AttackError(f"tries must be at least 1, not {self.tries}")
        prompt_text(self.prompt)
        try:
            self._sampling  # noqa: B018 - raises ValueError where a setting is wrong
        except ValueError as error:
            raise AttackError(str(error)) from None

    @property
    def models(self) -> tuple[str, ...]:
        return tuple(llm.split(":", 1)[-1] for llm in self.llms)

    @property
    def llms(self) -> tuple[str, ...]:
        return () if self.engine else (self.llm,)

    @property
    def _sampling(self) -> Sampling:
        # No repetition penalty, which would make names and function words rare. The model decides when the text ends.
        return Sampling(self.temperature, self.top_p, 1.0, self.max_tokens, may_end=True)

    @cached_property
    def _model(self) -> LLM:
        from alimark.core.llm import load_llm

        return self.engine or load_llm(self.llm)


class _Job(Protocol):
    """Something that a model is asked about, perhaps several times."""

    def request(self) -> Request: ...


AnyJob = TypeVar("AnyJob", bound=_Job)


def ask_until_done(
    llm: LLM, fresh: Iterator[AnyJob], sampling: Sampling, is_done: Callable[[AnyJob, Answer], bool]
) -> Iterator[AnyJob]:
    """Asks the model about each job until it is done; requests of many jobs share the batches of the engine.

    Args:
        llm: The model.
        fresh: The jobs. They are read one after the other, as the model needs them.
        sampling: How tokens are sampled.
        is_done: Gives an answer to a job. Where the result is False, the model is asked again with the job's next request.

    Yields:
        The jobs, in the order in which they are done.

    Raises:
        LLMError: The model gave several errors in a row, so that it cannot be reached.
    """
    again: deque[AnyJob] = deque()
    errors_in_a_row = 0
    while True:
        asked: dict[int, AnyJob] = {}
        for number, _, answer in draw_all(llm, _requests(fresh, again, asked), sampling, never, single_draws=True):
            job = asked.pop(number)
            errors_in_a_row = errors_in_a_row + 1 if _is_engine_error(answer) else 0
            if errors_in_a_row == _MAX_ERRORS_IN_A_ROW and isinstance(answer, LLMError):
                raise answer
            if is_done(job, answer):
                yield job
            else:
                again.append(job)
        if not again:
            return


def _is_engine_error(answer: Answer) -> bool:
    return isinstance(answer, LLMError) and not isinstance(answer, ContextFull)


def _requests(fresh: Iterator[AnyJob], again: deque[AnyJob], asked: dict[int, AnyJob]) -> Iterator[Request]:
    """The requests, numbered in `asked`. Jobs to ask about again come first, so that they do not wait for all the others."""
    number = 0
    while job := again.popleft() if again else next(fresh, None):
        asked[number] = job
        number += 1
        yield job.request()
