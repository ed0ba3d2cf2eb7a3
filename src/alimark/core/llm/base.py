"""The protocol of language models: requests for continuations, and the draws that answer them."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from alimark.core._util.json_types import JsonObject
from alimark.core.text import continuations

StopCondition = Callable[[str], bool]
"""Tells from a continuation so far whether its first sentence is certainly over, so that sampling can stop.

A stop condition may also have a method `readings(texts)`, which returns for each text the reading of its first sentence, or
None while that is not over. Engines that sample many sequences at a time call it for several of them, and keep the reading in
the draw. The engine for PyTorch calls a stop condition from several threads at a time."""


def never(text: str) -> bool:
    """A stop condition for whole texts. Engines recognise this very function and then do not look for sentence ends."""
    return False


DrawEnded = continuations.DrawEnded
"""Why sampling stopped: the sentence was over, the model ended the text, or `max_tokens` were sampled."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """How tokens are sampled. The defaults are those of the paper.

    Args:
        temperature: Divides the logits; greater than 0, at most 10.
        top_p: Tokens are sampled from the likeliest ones that together have this probability; greater than 0, at most 1.
        repetition_penalty: Applies to tokens of the prompt and of the text; 1 switches it off.
        max_tokens: The most tokens of one draw.
        may_end: Whether the model may end its text before it has written the sentences that were asked for, which chat
            models often do.
        top_k: Tokens are sampled from so many of the likeliest ones; 0 for all.
        min_p: Tokens are sampled from those with at least this share of the likeliest one's probability; 0 for all.

    Raises:
        ValueError: A value is out of range.

    Example:
        >>> Sampling(temperature=1.0, max_tokens=64)
        Sampling(temperature=1.0, top_p=0.95, repetition_penalty=1.15, max_tokens=64, may_end=False, top_k=0, min_p=0.0)
        >>> Sampling(top_p=0)
        Traceback (most recent call last):
        ValueError: top_p must lie in (0, 1], not 0
    """

    temperature: float = 0.7
    top_p: float = 0.95
    repetition_penalty: float = 1.15
    max_tokens: int = 128
    may_end: bool = False
    top_k: int = 0
    min_p: float = 0.0

    def __post_init__(self) -> None:
        for name, most in (("temperature", 10), ("top_p", 1), ("repetition_penalty", 10)):
            if not 0 < getattr(self, name) <= most:
                raise ValueError(f"{name} must lie in (0, {most}], not {getattr(self, name)}")
        if self.max_tokens < 1:
            raise ValueError(f"max_tokens must be at least 1, not {self.max_tokens}")
        if self.top_k < 0 or not 0 <= self.min_p < 1:
            raise ValueError(f"top_k must be at least 0 and min_p in [0, 1), not {self.top_k} and {self.min_p}")

    def to_dict(self) -> JsonObject:
        """The settings for a record, without `top_k` and `min_p` where they were not asked for."""
        return {name: value for name, value in asdict(self).items() if value or name not in ("top_k", "min_p")}


@dataclass(frozen=True, slots=True)
class Message:
    """A message of a chat."""

    role: Literal["system", "user", "assistant"]
    content: str


TokenBias = NDArray[np.float32]
"""What is added to the score (logit) of each token, by its id; tokens behind the end of the array get nothing."""


@dataclass(frozen=True, slots=True)
class Request:
    """A request for `count` draws, each a continuation of `context`.

    With `messages`, the model's chat template is applied to them, and `context` is the beginning of the assistant's answer:
    empty, or a text that is to be continued.

    Draw number `first + i` is a function of (messages, context, sampling, seed, first + i) as far as the engine is
    deterministic. So the same draws come in the same order, however they are divided into requests.
    """

    context: str
    count: int
    seed: int
    first: int = 0
    messages: tuple[Message, ...] = ()
    bias: TokenBias | None = field(default=None, compare=False, repr=False)
    """Raises or lowers the chances of tokens, in engines that are `TakesBias`. It follows from the key, so it is a secret."""


@dataclass(frozen=True, slots=True)
class Draw:
    """One sampled continuation: its raw text, which may reach a little beyond the first sentence, and its token count."""

    text: str
    tokens: int
    ended: DrawEnded
    reading: continuations.Reading | None = field(default=None, compare=False, repr=False)
    """What the stop condition has read in this text. A draw with another text must be made without it."""


class LLM(Protocol):
    """A language model that samples continuations. Every method may be called by several threads at a time.

    An adapter inherits from this class, or only has the same attributes. It must implement `name` and `draw`.

    Example:
        >>> from alimark import LLM, Sampling, load_llm
        >>> from alimark.core.llm.base import Request, never
        >>> llm: LLM = load_llm("stand-in")
        >>> [draws] = llm.draw([Request("The old map was wrong.", 3, seed=1)], Sampling(max_tokens=5), never)
        >>> [draw.tokens for draw in draws]
        [5, 5, 5]
    """

    @property
    def name(self) -> str:
        """The name of the model, as records hold it."""
        ...

    @property
    def max_concurrency(self) -> int:
        """How many threads should call `draw` at a time, at most."""
        return 1

    @property
    def preferred_batch(self) -> int:
        """How many requests one call of `draw` should hold, if there are as many."""
        return 1

    @property
    def single_draw_batching(self) -> tuple[int, int]:
        """`max_concurrency` and `preferred_batch` for requests of a single draw each, as requests to chat models are."""
        return self.max_concurrency, self.preferred_batch

    @property
    def limits(self) -> tuple[str, ...]:
        """What this engine ignores of `Sampling` and `Request`, in the words that go into the record of a text."""
        return ()

    def draw(self, requests: Sequence[Request], sampling: Sampling, stop: StopCondition, /) -> list[list[Draw]]:
        """Sample the draws of each request.

        Args:
            requests: What is to be continued, and how often.
            sampling: How tokens are sampled.
            stop: Tells when a continuation may be cut off.

        Returns:
            For each request its draws, in the order of their numbers.

        Raises:
            ContextFull: A context leaves no room for `sampling.max_tokens` more tokens.
            LLMError: The model cannot be asked, or cannot answer.
        """
        ...


# What an engine may be able to do beyond sampling is a type. Callers ask for the type, never for an engine's name; an engine
# has an ability by having its methods.


@runtime_checkable
class TakesBias(Protocol):
    """A language model that heeds `Request.bias`; others ignore it."""

    @property
    def bias_stays_here(self) -> bool:
        """Whether a bias stays in this process or goes where the user said that keys may be known."""
        ...

    def encode(self, text: str) -> list[int]:
        """The tokens of a text, without those that the tokenizer puts around a prompt."""
        ...


@runtime_checkable
class ForwardsRequests(Protocol):
    """A language model whose server answers requests of the OpenAI protocol itself."""

    def forward(self, path: str, body: JsonObject) -> JsonObject:
        """Returns the server's own answer to a request at a path behind /v1, such as "chat/completions"; raises LLMError.

        The server's own name of the model replaces the field `model` of the request.
        """
        ...

    def forward_stream(self, path: str, body: JsonObject) -> Iterator[JsonObject]:
        """Yield the events of the server's own streamed answer to a request as they arrive."""
        ...


@runtime_checkable
class CountsTokens(Protocol):
    """A language model whose tokenizer runs in this process."""

    def count_tokens(self, request: Request) -> int:
        """Count the tokens of the request as the model reads it, chat template included."""
        ...


@runtime_checkable
class HasContext(Protocol):
    """A language model that knows the length of its context."""

    context_tokens: int
    """The most tokens of prompt and text together."""


class TorchModel(NamedTuple):
    """A causal language model of transformers with its tokenizer.

    ends: the tokens with which the model ends a text. control: these and all other special tokens, as a tensor.
    """

    tokenizer: Any
    model: Any
    ends: frozenset[int]
    control: Any


@runtime_checkable
class OffersTorchModel(Protocol):
    """A language model whose weights are in this process, so that its logits can be read and changed."""

    @property
    def name(self) -> str: ...

    def torch_model(self) -> TorchModel:
        """The model itself."""
        ...

    def token_ids(self, request: Request) -> list[int]:
        """The tokens of a request as the model reads it, chat template included."""
        ...


@runtime_checkable
class OffersNextTokens(Protocol):
    """A language model that gives the probabilities of the likeliest next tokens, after its own sampling rules."""

    context_tokens: int  # the most tokens of prompt and text together
    parallel: int  # the most texts that can be continued at a time, each in its own slot

    @property
    def name(self) -> str: ...

    def token_ids(self, request: Request) -> list[int]:
        """The tokens of a request as the model reads it, chat template included."""
        ...

    def encode(self, text: str) -> list[int]:
        """The tokens of a text, without those that the tokenizer puts around a prompt."""
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """The text of tokens."""
        ...

    def next_tokens(
        self, ids: Sequence[int], sampling: Sampling, *, slot: int, count: int, seed: int
    ) -> tuple[list[tuple[int, float]], list[int]]:
        """Return the likeliest next tokens with their probabilities, at most `count`, and the token that was sampled.

        There may be no probabilities where the sampled token is a part of a character, such as of an emoji.
        """
        ...


def count_tokens(llm: LLM, request: Request) -> int:
    """Count the tokens of a request; estimated at four bytes a token if the tokenizer is on a server."""
    if isinstance(llm, CountsTokens):
        return llm.count_tokens(request)
    text = "".join(message.content for message in request.messages) + request.context
    return -(-len(text.encode("utf-8", "replace")) // 4)
