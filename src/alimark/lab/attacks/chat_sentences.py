"""The attack by a chat model that rewrites sentence by sentence, each in a request of its own."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import ClassVar

from alimark.core.frozen.text.splitting import DEFAULT_SPLITTER, Piece, pieces, splitter
from alimark.core.frozen.text.units import clean
from alimark.core.llm.base import LLM, Request
from alimark.core.llm.requests import Answer
from alimark.lab.attacks._chat_requests import ChatModelAttack, Question, ask_until_done, prompt_text
from alimark.lab.attacks.base import Attacked, Target, replace_sentences
from alimark.lab.attacks.checks import sentence_flaw
from alimark.lab.attacks.settings import ChatSentencesSettings


@dataclass
class _Text:
    """A text as its sentences, with a question for each."""

    index: int
    sentences: list[Piece]
    tail: str
    questions: list[Question]
    done: int = 0

    def result(self) -> Attacked:
        # A rewrite with line breaks would become several list items or paragraphs.
        bodies = [" ".join(question.rewrite.split()) or None for question in self.questions]
        rejected = [reason for question in self.questions for reason in question.rejected]
        attacked = replace_sentences(self.sentences, self.tail, bodies, rejected)
        tries, tokens = (sum(counts) for counts in zip(*((q.tries, q.tokens) for q in self.questions), strict=True))
        return replace(attacked, tries=tries, tokens=tokens)


@dataclass
class _Sentence:
    """A sentence of a text that the model is asked about."""

    text: _Text
    question: Question

    def request(self) -> Request:
        return self.question.request()


@dataclass(frozen=True)
class ChatSentences(ChatSentencesSettings, ChatModelAttack):
    """Have a chat model rewrite the text sentence by sentence.

    The model sees one sentence in each request, and nothing of the others. If an
    answer is unusable or does not change the sentence, the model is asked again.
    After --tries the sentence stays as it is; where more than a quarter of the
    sentences stay, the text is recorded as failed.
    """

    name: ClassVar[str] = "chat-sentences"
    engine: LLM | None = field(default=None, repr=False, compare=False)

    def run(self, targets: Iterable[Target]) -> Iterator[tuple[int, Attacked]]:
        empty: list[int] = []

        def fresh() -> Iterator[_Sentence]:
            for index, target in enumerate(targets):
                text = self._split(index, target)
                if not text.sentences:
                    empty.append(index)
                yield from (_Sentence(text, question) for question in text.questions)

        for sentence in ask_until_done(self._model, fresh(), self._sampling, self._is_done):
            text = sentence.text
            text.done += 1
            if text.done == len(text.sentences):
                yield text.index, text.result()
        yield from ((index, Attacked("", "the text holds no sentence")) for index in empty)

    def _split(self, index: int, target: Target) -> _Text:
        sentences, tail = pieces(target.text, splitter(DEFAULT_SPLITTER))
        prompt = prompt_text(self.prompt)
        questions = [
            Question(piece.body, prompt, f"alimark/chat-sentences/{target.seed}/{position}")
            for position, piece in enumerate(sentences)
        ]
        return _Text(index, sentences, tail, questions)

    def _is_done(self, sentence: _Sentence, answer: Answer) -> bool:
        question = sentence.question
        question.read(answer, lambda text: _flaw(text, question.passage))
        return bool(question.rewrite) or question.too_long or question.tries >= self.tries


def _flaw(text: str, original: str) -> str:
    """Why `text` is no rewrite of the sentence. A sentence that did not change would count as rewritten."""
    return sentence_flaw(text, original) or ("unchanged" if clean(text) == clean(original) else "")
