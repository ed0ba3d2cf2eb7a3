"""What generation asks of a language model: continuations of a context, each stopped at its first sentence's end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

Over = Callable[[str], bool]
"""Tells from a continuation so far whether its first sentence is certainly over.

One that also has `ends(texts)`, which gives for each text where its sentence ends, or 0 while it is not over, is asked for
many at a time by engines that sample many."""


def never(text: str) -> bool:
    """An `Over` for whole texts: an engine that is given this very function need not look for a sentence's end."""
    return False


Ended = Literal["sentence", "model", "length"]
"""Why sampling stopped: the sentence was over, the model ended the text, or `max_tokens` were spent."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """How tokens are drawn. The defaults are the paper's; the penalty spans prompt and text alike."""

    temperature: float = 0.7
    top_p: float = 0.95
    repetition_penalty: float = 1.15
    max_tokens: int = 128
    may_end: bool = False
    """Whether the model may end its text before it has written the sentences asked for, as chat models like to."""

    def __post_init__(self) -> None:
        if not 0 < self.temperature <= 10:
            raise ValueError(f"temperature must lie in (0, 10], not {self.temperature}")
        if not 0 < self.top_p <= 1:
            raise ValueError(f"top_p must lie in (0, 1], not {self.top_p}")
        if not 0 < self.repetition_penalty <= 10:
            raise ValueError(f"repetition_penalty must lie in (0, 10], not {self.repetition_penalty}")
        if self.max_tokens < 1:
            raise ValueError(f"max_tokens must be at least 1, not {self.max_tokens}")


@dataclass(frozen=True, slots=True)
class Turn:
    """Something said in a chat."""

    role: Literal["system", "user", "assistant"]
    content: str


@dataclass(frozen=True, slots=True)
class Request:
    """`count` draws of what follows `context`.

    With `turns` the model's chat template is laid around them, and `context` is what the assistant has said so far
    in the turn that it is about to go on with: nothing, or a text to be continued.

    Draw number `first + i` is a function of (turns, context, sampling, seed, first + i) as far as the engine is
    deterministic, so that waves of any size give the same draws in the same order.
    """

    context: str
    count: int
    seed: int
    first: int = 0
    turns: tuple[Turn, ...] = ()


@dataclass(frozen=True, slots=True)
class Draw:
    """One continuation: raw text, possibly a little longer than its first sentence, and the tokens sampled for it."""

    text: str
    tokens: int
    ended: Ended


class LLM(Protocol):
    """A language model. Every method may be called by several threads at a time."""

    @property
    def name(self) -> str: ...

    @property
    def callers(self) -> int:
        """How many threads may usefully call `draw` at a time."""
        return 1

    @property
    def together(self) -> int:
        """How many requests one call should hold, where there are so many."""
        return 1

    @property
    def singles(self) -> tuple[int, int]:
        """`callers` and `together` where every request is for one draw, as a chat model's are."""
        return self.callers, self.together

    @property
    def limits(self) -> tuple[str, ...]:
        """What of `Sampling` and `Request` this engine cannot honour, in words for the record of a text."""
        return ()

    def draw(self, requests: Sequence[Request], sampling: Sampling, over: Over) -> list[list[Draw]]:
        """The draws of each request, in draw order. Raises ContextFull where a context leaves no room."""
        ...


@runtime_checkable
class CountsTokens(Protocol):
    """A language model that has its tokenizer here."""

    def count_tokens(self, request: Request) -> int:
        """Tokens that the request is read as, chat template included."""
        ...


def count_tokens(llm: LLM, request: Request) -> int:
    """As the model reads the request, or, where only a server far away could tell, a guess: four bytes a token."""
    if isinstance(llm, CountsTokens):
        return llm.count_tokens(request)
    said = "".join(turn.content for turn in request.turns) + request.context
    return -(-len(said.encode("utf-8", "replace")) // 4)
