"""Attacks by a chat model: it rewrites the whole text in one answer, once or again, or sentence by sentence."""

from __future__ import annotations

from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import ClassVar

from alimark.core.frozen.text.splitting import DEFAULT_SPLITTER, Piece, pieces, splitter
from alimark.core.frozen.text.units import clean
from alimark.core.llm.base import LLM, Message, Request, Sampling, never
from alimark.core.llm.requests import Answer, draw_all
from alimark.core.text.language import without_half_pairs
from alimark.errors import AttackError, ContextFull, LLMError
from alimark.lab.attacks import base
from alimark.lab.attacks.checks import sentence_flaw, text_flaw, without_preface

CHAT_SYSTEM = "You are a helpful assistant to rewrite text."
"""The system message of the paper. All prompts are sent with it."""

CHAT_PROMPTS = {
    "paper": (
        "Please rewrite the following text, avoiding the use of the same words or phrases as the original text as much as "
        "possible. You are able to merge or split sentences, but must preserve the original meaning:\n\n{text}"
    ),
    "plain": "Paraphrase this text in your own words:\n\n{text}",
    "editor": (
        "I wrote the passage below, and it does not read well yet. Please edit it as an experienced editor would: rephrase "
        "every sentence of the passage, vary how sentences begin and how long they are, and leave out no fact. Reply with the "
        "edited passage only.\n\n{text}"
    ),
    "formal": (
        "Rewrite this passage in a formal, written style, as in an encyclopedia. Keep all of its content and about its "
        "length.\n\n{text}"
    ),
    "sentence": (
        "Please rewrite the following sentence, avoiding the use of the same words or phrases as the original sentence as "
        "much as possible, but preserve the original meaning:\n\n{text}"
    ),
}
"""Instructions to a chat model by name. `paper` is the paper's prompt for GPT-3.5, word for word; `sentence` is the same for a
single sentence. The others differ from it in style, to show how much the attack depends on its words."""


def _prompt_setting(name: str) -> str:
    return base.setting(
        name,
        f"The instruction to the model: {', '.join(CHAT_PROMPTS)}, or any text with {{text}} in the place of the original.",
    )


_MAX_ERRORS_IN_A_ROW = 3  # then the model is not reachable, and the run ends with the error
_PLACE = "{text}"


def prompt_text(prompt: str) -> str:
    """The instruction of that name, or the text itself; raises AttackError where `{text}` is not in it."""
    text = CHAT_PROMPTS.get(prompt, prompt)
    if _PLACE not in text:
        raise AttackError(
            f"the prompt must be {', '.join(CHAT_PROMPTS)}, or a text with {_PLACE} in the place of the original; "
            f"{prompt!r} is neither"
        )
    return text


@dataclass
class _Text:
    """A text, and what the model is asked to rewrite: the whole of it, or each of its sentences."""

    index: int
    target: base.Target
    sentences: list[Piece] = field(default_factory=list)
    tail: str = ""
    questions: list[Question] = field(default_factory=list)
    done: int = 0


@dataclass
class Question:
    """A passage that the model is asked to rewrite, and its answers so far."""

    text: _Text = field(repr=False)
    passage: str  # from the second round on the rewrite of the round before
    prompt: str
    seed_name: str  # the seeds of the draws follow from it, the round and the number of the try
    round: int = 1
    tries: int = 0  # in this round
    answers: int = 0  # in all rounds
    tokens: int = 0  # of all answers
    rejected: list[tuple[int, str]] = field(
        default_factory=list
    )  # with the round of each answer, the reason and its start
    rewrite: str = ""  # the answer that passed the checks
    flaw: str = ""  # why the last answer was not used
    too_long: bool = False  # for the model's context, so that asking again does not help

    def request(self) -> Request:
        """The request for the next try."""
        name = self.seed_name if self.round == 1 else f"{self.seed_name}/round {self.round}"
        content = without_half_pairs(self.prompt.replace(_PLACE, self.passage.strip()))
        messages = (Message("system", CHAT_SYSTEM), Message("user", content))
        return Request("", 1, base.hashed_seed(f"{name}/{self.tries}"), messages=messages)

    def read(self, answer: Answer, flaw_of: Callable[[str], str], *, checked: bool = True) -> None:
        """Reads an answer: it becomes the `rewrite`, or `rejected` has one more where `flaw_of` gives a reason.

        Where answers are not `checked`, any text is the rewrite, unfinished or not, with all that stands around it.
        """
        self.tries += 1
        self.answers += 1
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
            self.rejected.append((self.round, f"{self.flaw}: {text[:80]}" if text else self.flaw))
        else:
            self.rewrite = text


@dataclass(frozen=True)
class _ChatModelAttack(base.Attack):
    """The part that attacks by a chat model share: the model, and the checks of settings."""

    by_model = True

    llm: str = base.setting(
        "qwen2.5-coder-1.5b",
        "A chat model: a name of `alimark models list`, a path, a hub id, or openai:http://host:port/v1#model.",
    )
    temperature: float = base.setting(1.0, "Sampling temperature.")
    top_p: float = base.top_p_setting(1.0)
    max_tokens: int = base.max_tokens_setting(1024, "of an answer")
    tries: int = base.setting(
        4, "How often a text is generated, in each round, before the attack on it counts as failed."
    )
    prompt: str = _prompt_setting("paper")
    engine: LLM | None = field(default=None, repr=False, compare=False, kw_only=True)
    """A loaded model, which is used instead of `llm`."""

    def __post_init__(self) -> None:
        if self.tries < 1:
            raise AttackError(f"tries must be at least 1, not {self.tries}")
        prompt_text(self.prompt)
        try:
            self._sampling  # noqa: B018 - raises ValueError where a setting is wrong
        except ValueError as error:
            raise AttackError(str(error)) from None

    @abstractmethod
    def _split(self, index: int, target: base.Target) -> _Text:
        """The text with its questions; none where it holds nothing to rewrite, because the model would make up a text."""

    @abstractmethod
    def _flaw(self, text: str, question: Question) -> str:
        """Why `text` cannot be the answer; empty where it can."""

    @abstractmethod
    def _result(self, text: _Text) -> base.Attacked:
        """What the answers to all questions give."""

    def run(self, targets: Iterable[base.Target]) -> Iterator[tuple[int, base.Attacked]]:
        empty: list[int] = []

        def fresh() -> Iterator[Question]:
            for index, target in enumerate(targets):
                text = self._split(index, target)
                if not text.questions:
                    empty.append(index)
                yield from text.questions

        for question in ask_until_done(self._model, fresh(), self._sampling, self._is_done):
            text = question.text
            text.done += 1
            if text.done == len(text.questions):
                yield text.index, self._result(text)
        yield from ((index, base.Attacked("", "the text holds no sentence")) for index in empty)

    def _is_done(self, question: Question, answer: Answer) -> bool:
        question.read(answer, lambda text: self._flaw(text, question), checked=not self.follows_public_code)
        return bool(question.rewrite) or question.too_long or question.tries >= self.tries

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


def ask_until_done(
    llm: LLM, fresh: Iterator[Question], sampling: Sampling, is_done: Callable[[Question, Answer], bool]
) -> Iterator[Question]:
    """Asks the model each question until it is done, and yields it; many questions share the batches of the engine.

    `fresh` is read as the model needs questions. `is_done` gives an answer to a question and says whether it is done. Raises
    the error of the model where it gave several in a row, so that it cannot be reached.
    """
    again: deque[Question] = deque()
    errors_in_a_row = 0
    while True:
        asked: dict[int, Question] = {}
        for number, _, answer in draw_all(llm, _requests(fresh, again, asked), sampling, never, single_draws=True):
            question = asked.pop(number)
            failed = isinstance(answer, LLMError) and not isinstance(answer, ContextFull)
            errors_in_a_row = errors_in_a_row + 1 if failed else 0
            if errors_in_a_row == _MAX_ERRORS_IN_A_ROW and isinstance(answer, LLMError):
                raise answer
            if is_done(question, answer):
                yield question
            else:
                again.append(question)
        if not again:
            return


def _requests(fresh: Iterator[Question], again: deque[Question], asked: dict[int, Question]) -> Iterator[Request]:
    """The requests, numbered in `asked`. Those to ask again come first, so that they do not wait for all the others."""
    number = 0
    while question := again.popleft() if again else next(fresh, None):
        asked[number] = question
        number += 1
        yield question.request()


@dataclass(frozen=True)
class Chat(_ChatModelAttack):
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
    presets: ClassVar[Mapping[str, Mapping[str, object]]] = {"paper": {"max_tokens": 512, "tries": 5}}
    rounds: int = base.setting(
        1, "How often the text is rewritten; from the second round on, the model rewrites its own answer."
    )
    preset: str = base.preset_setting()

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.rounds < 1:
            raise AttackError(f"rounds must be at least 1, not {self.rounds}")

    def _split(self, index: int, target: base.Target) -> _Text:
        text = _Text(index, target)
        if target.text.strip():
            seed_name = f"alimark/chat/{target.seed}"
            text.questions.append(Question(text, target.text, prompt_text(self.prompt), seed_name))
        return text

    def _flaw(self, text: str, question: Question) -> str:
        """Why `text` cannot be the result of this round: it must be a rewrite of what the model saw and of the original."""
        flaw = text_flaw(text, question.passage)
        return flaw or (text_flaw(text, question.text.target.text) if question.round > 1 else "")

    def _is_done(self, question: Question, answer: Answer) -> bool:
        done = super()._is_done(question, answer)
        if question.rewrite and question.round < self.rounds:
            question.passage, question.rewrite, question.tries = question.rewrite, "", 0
            question.round += 1
            return False
        return done

    def _result(self, text: _Text) -> base.Attacked:
        [question] = text.questions
        error, several = "", self.rounds > 1
        if not question.rewrite:
            tries = f"{question.flaw}, after {question.tries} tries"
            error = f"the text {question.flaw}" if question.too_long else tries
            error = f"round {question.round}: {error}" if several else error
        rejected = tuple(f"round {number}, {reason}" if several else reason for number, reason in question.rejected)
        return base.Attacked(question.rewrite, error, question.answers, rejected, tokens=question.tokens)


@dataclass(frozen=True)
class GPT35Turbo(Chat):
    """Have GPT-3.5 rewrite the whole text, as the paper does.

    The API key is read from the environment variable OPENAI_API_KEY.
    """

    name: ClassVar[str] = "gpt-3.5"
    llm: str = base.setting(
        "openai:https://api.openai.com/v1#gpt-3.5-turbo", "The model and the endpoint that serves it."
    )


@dataclass(frozen=True)
class ChatSentences(_ChatModelAttack):
    """Have a chat model rewrite the text sentence by sentence.

    The model sees one sentence in each request, and nothing of the others. If an
    answer is unusable or does not change the sentence, the model is asked again.
    After --tries the sentence stays as it is; where more than a quarter of the
    sentences stay, the text is recorded as failed.
    """

    name: ClassVar[str] = "chat-sentences"
    max_tokens: int = base.max_tokens_setting(256, "of a sentence")
    tries: int = base.setting(4, "How often a sentence is generated before it stays as it is.")
    prompt: str = _prompt_setting("sentence")

    def _split(self, index: int, target: base.Target) -> _Text:
        text = _Text(index, target, *pieces(target.text, splitter(DEFAULT_SPLITTER)))
        for position, piece in enumerate(text.sentences):
            seed_name = f"alimark/chat-sentences/{target.seed}/{position}"
            text.questions.append(Question(text, piece.body, prompt_text(self.prompt), seed_name))
        return text

    def _flaw(self, text: str, question: Question) -> str:
        """Why `text` is no rewrite of the sentence. A sentence that did not change would count as rewritten."""
        flaw = sentence_flaw(text, question.passage)
        return flaw or ("unchanged" if clean(text) == clean(question.passage) else "")

    def _result(self, text: _Text) -> base.Attacked:
        # A rewrite with line breaks would become several list items or paragraphs.
        bodies = [" ".join(question.rewrite.split()) or None for question in text.questions]
        rejected = [reason for question in text.questions for _, reason in question.rejected]
        tries, tokens = (sum(counts) for counts in zip(*((q.answers, q.tokens) for q in text.questions), strict=True))
        return replace(base.replace_sentences(text.sentences, text.tail, bodies, rejected), tries=tries, tokens=tokens)
