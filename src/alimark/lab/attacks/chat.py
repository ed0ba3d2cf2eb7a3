"""The attack by a chat model: it rewrites the whole text in one answer, with the paper's prompt or another, once or again."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import ClassVar

from alimark.core.llm.base import LLM, Request
from alimark.core.llm.requests import Answer
from alimark.errors import AttackError
from alimark.lab.attacks._chat_requests import ChatModelAttack, Question, ask_until_done, prompt_text
from alimark.lab.attacks.base import PAPER_PRESET, Attacked, Target, apply_preset, setting
from alimark.lab.attacks.checks import text_flaw
from alimark.lab.attacks.settings import GPT35, ChatSettings


@dataclass
class _Job:
    """A text, and the questions of its rounds so far."""

    index: int
    target: Target
    rounds: list[Question]
    error: str = ""

    @property
    def question(self) -> Question:
        """The question of the current round."""
        return self.rounds[-1]

    def request(self) -> Request:
        return self.question.request()

    def flaw(self, text: str) -> str:
        """Why `text` cannot be the result of this round: it must be a rewrite of what the model saw and of the original."""
        flaw = text_flaw(text, self.question.passage)
        return flaw or (text_flaw(text, self.target.text) if len(self.rounds) > 1 else "")


@dataclass(frozen=True)
class Chat(ChatSettings, ChatModelAttack):
    """Have a chat model rewrite the whole text, with the paper's prompt or yours.

    If an answer is empty, a refusal, a summary, in another language or full of
    tags, the model is asked again. After --tries the text is recorded as failed.

        alimark attack chat --prompt editor text.txt
        alimark attack chat --prompt 'Explain this to a child: {text}' text.txt
        alimark attack chat --rounds 3 --input texts.jsonl --output attacked.jsonl

    With --rounds, each answer is checked against the text that it rewrites and
    against the original, and the error of a failed text names the round.

    With --preset paper, the first answer that is not empty is used as it is.
    """

    name: ClassVar[str] = "chat"
    presets = MappingProxyType({PAPER_PRESET: {"max_tokens": 512, "tries": 5}})
    engine: LLM | None = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        apply_preset(self)
        super().__post_init__()
        if self.rounds < 1:
            raise AttackError(f"rounds must be at least 1, not {self.rounds}")

    def run(self, targets: Iterable[Target]) -> Iterator[tuple[int, Attacked]]:
        empty: list[int] = []

        def fresh() -> Iterator[_Job]:
            for index, target in enumerate(targets):
                if target.text.strip():
                    yield _Job(index, target, [self._question(target.text, f"alimark/chat/{target.seed}")])
                else:  # the model would make up a text
                    empty.append(index)

        for job in ask_until_done(self._model, fresh(), self._sampling, self._is_done):
            yield job.index, self._result(job)
        yield from ((index, Attacked("", "the text holds no sentence")) for index in empty)

    def _question(self, passage: str, seed_name: str) -> Question:
        return Question(passage, prompt_text(self.prompt), seed_name)

    def _is_done(self, job: _Job, answer: Answer) -> bool:
        """Reads an answer; where it passes the checks and is not the last, the next round begins."""
        question = job.question
        question.read(answer, job.flaw, checked=not self.follows_public_code)
        if question.rewrite:
            if len(job.rounds) == self.rounds:
                return True
            seed_name = f"alimark/chat/{job.target.seed}/round {len(job.rounds) + 1}"
            job.rounds.append(self._question(question.rewrite, seed_name))
            return False
        if question.too_long:
            job.error = f"the text {question.flaw}"
        elif question.tries >= self.tries:
            job.error = f"{question.flaw}, after {question.tries} tries"
        return bool(job.error)

    def _result(self, job: _Job) -> Attacked:
        tries, tokens = (sum(counts) for counts in zip(*((q.tries, q.tokens) for q in job.rounds), strict=True))
        several = self.rounds > 1
        rejected = [
            f"round {number}, {reason}" if several else reason
            for number, question in enumerate(job.rounds, 1)
            for reason in question.rejected
        ]
        error = f"round {len(job.rounds)}: {job.error}" if several and job.error else job.error
        return Attacked("" if error else job.question.rewrite, error, tries, tuple(rejected), tokens=tokens)


@dataclass(frozen=True)
class GPT35Turbo(Chat):
    """Have GPT-3.5 rewrite the whole text, as the paper does.

    The API key is read from the environment variable OPENAI_API_KEY.
    """

    name: ClassVar[str] = "gpt-3.5"
    llm: str = setting(GPT35, "The model and the endpoint that serves it.")
