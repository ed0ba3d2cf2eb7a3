"""Models whose calls a test watches, and language models whose draws it makes itself."""

from collections.abc import Callable, Sequence
from typing import Any

from alimark.core.llm.base import LLM, Draw, Request, Sampling, StopCondition


def watched(model: Any, watch: Callable[[Any], object], method: str = "draw") -> Any:
    """The model, which shows the requests or texts of every call to `watch` first; `watch` may raise an error."""
    real = getattr(model, method)

    def call(asked: Any, *rest: Any) -> Any:
        watch(asked)
        return real(asked, *rest)

    setattr(model, method, call)
    return model


class Told(LLM):
    """Draws what `tell` makes of a request and the number of the draw."""

    name = "told"

    def __init__(self, tell: Callable[[Request, int], Draw]) -> None:
        self.tell = tell

    def draw(self, requests: Sequence[Request], sampling: Sampling, over: StopCondition) -> list[list[Draw]]:
        return [[self.tell(request, request.first + i) for i in range(request.count)] for request in requests]
