"""Language models whose requests a test watches, or whose draws it makes itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from alimark.core.llm.base import LLM, Draw, Request, Sampling, StopCondition


def watched(llm: Any, watch: Callable[[Sequence[Request]], object]) -> Any:
    """The model, which shows the requests of every call to `watch` before it draws; `watch` may raise an error."""
    draw = llm.draw

    def call(requests: Sequence[Request], *rest: Any) -> Any:
        watch(requests)
        return draw(requests, *rest)

    llm.draw = call
    return llm


class Told(LLM):
    """Draws what `tell` makes of a request and the number of the draw."""

    name = "told"

    def __init__(self, tell: Callable[[Request, int], Draw]) -> None:
        self.tell = tell

    def draw(self, requests: Sequence[Request], sampling: Sampling, over: StopCondition) -> list[list[Draw]]:
        return [[self.tell(request, request.first + i) for i in range(request.count)] for request in requests]
