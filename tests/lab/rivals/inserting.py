"""A stand-in for a chat model that inserts words into a text, and faults of real ones."""

from __future__ import annotations

import re
from collections.abc import Sequence

from alimark.core.llm.base import Draw, Request, Sampling, StopCondition
from alimark.testing import StandInLLM


class Inserter(StandInLLM):
    """Writes random sentences and, where it is asked to insert words, adds them to the sentences in turn.

    Args:
        answers: Answers to give to the first requests instead; "..." stands for the right one.
        always: An answer to give to all requests for an insertion.
    """

    def __init__(self, *answers: str, always: str = "", name: str = "inserter") -> None:
        super().__init__(name=name)
        self._answers, self._always = list(answers), always
        self.asked: list[str] = []

    def draw(self, requests: Sequence[Request], sampling: Sampling, stop: StopCondition) -> list[list[Draw]]:
        if not any("\n\nWords: " in message.content for request in requests for message in request.messages):
            return super().draw(requests, sampling, stop)
        return [[self._inserted(request)] for request in requests]

    def _inserted(self, request: Request) -> Draw:
        content = request.messages[-1].content
        self.asked.append(content)
        answer = self._always or (self._answers.pop(0) if self._answers else "...")
        if answer == "...":
            text, words = re.split(r"\n\nWords: ", content.partition("\n\nText: ")[2])
            answer = with_words(text, words.split(", "))
        return Draw(answer, len(answer.split()), "model")


def with_words(text: str, words: Sequence[str]) -> str:
    """The text with the words put behind its commas, or before its last full stop."""
    parts = text.split(" ")
    step = max(1, len(parts) // (len(words) + 1))
    for number, word in enumerate(words):
        place = min(len(parts) - 1, (number + 1) * (step + 1) - 1)
        parts.insert(place, word)
    return " ".join(parts)
