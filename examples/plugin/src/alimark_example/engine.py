"""An engine: a language model that puts sentences together from phrases."""

from collections.abc import Sequence
from random import Random

import alimark
from alimark.core.llm.base import Draw, Request, Sampling, StopCondition

_WHO = ("The keeper", "A gull", "The old boat", "My sister", "Nobody", "The captain", "A traveller", "The wind")
_DID = ("watched", "remembered", "crossed", "followed", "left", "described", "missed", "reached")
_WHAT = ("the grey water", "the harbour", "a distant light", "the last village", "every bridge", "the stony path")
_STYLES = {"calm": ".", "excited": "!"}


class Phrases(alimark.LLM):
    """A language model of phrases; "phrases:calm" and "phrases:excited" are its models."""

    def __init__(self, model: str = "calm") -> None:
        if model not in _STYLES:
            raise alimark.AlimarkError(f"the engine phrases has no model {model!r}; known: {', '.join(_STYLES)}")
        self._model, self._end = model, _STYLES[model]

    @property
    def name(self) -> str:
        """The name of the model, as records hold it."""
        return f"phrases:{self._model}"

    def draw(self, requests: Sequence[Request], sampling: Sampling, stop: StopCondition, /) -> list[list[Draw]]:
        """Returns the draws of each request: a sentence each, chosen by context, seed and number alone."""
        return [[self._draw(request, request.first + i) for i in range(request.count)] for request in requests]

    def _draw(self, request: Request, number: int) -> Draw:
        random = Random(f"{request.seed} {number} {request.messages} {request.context}")
        clauses = [f"{random.choice(_WHO)} {random.choice(_DID)} {random.choice(_WHAT)}" for _ in range(2)]
        blank = "" if request.context[-1:].isspace() else " "
        # The beginning of the next sentence shows that this one is complete.
        return Draw(f"{blank}{clauses[0]}, and {clauses[1].lower()}{self._end} Then it", 12, "sentence")
