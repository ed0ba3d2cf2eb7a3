"""The requests that each kind of OpenAI-compatible server is sent ("dialects").

The server's own name for itself (`owned_by` in its list of models) chooses the dialect:

vllm, sglang: extra fields carry the repetition penalty, keep the model from ending its text and continue an unfinished
    assistant message. Draws stop at strings that may end a sentence. A draw that stopped too early ("Dr. ") continues from its
    text without the trailing blank, since that blank belongs to a token that is sampled again. With `ignore_eos`, these servers
    sometimes still sample an end token and write on behind it.
llama.cpp: its own protocol at the root of the address, since its OpenAI endpoints return neither the string that stopped a draw
    nor the number of tokens of each draw. Draws continue from their exact tokens. They are reproducible only while the server
    computes the same way: prompts in its cache and other requests in its batch change its logits a little. Behind a proxy that
    forwards only /v1, use dialect="openai".
openai: all other servers. They do not return the string that stopped a draw, so no stop strings are sent. A continuation is
    requested in steps of a few tokens until its sentence is over, each from the text so far, which the server tokenises again.
    A chat cannot continue an unfinished message: it is asked for a whole answer, or instructed in words to continue a text.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from alimark.core.llm._http import Http, MalformedAnswer, Refused, required
from alimark.core.llm._shared import (
    COMMON_STOPS,
    PRECISE_STOPS,
    REPLACEMENT,
    SHORT_ROUNDS,
    PartialDraw,
    as_dicts,
    bias_pairs,
    biased,
    llama_cpp_body,
)
from alimark.core.llm.base import Request, Sampling, StopCondition
from alimark.core.text.language import without_half_pairs
from alimark.errors import ContextFull, LLMError

Api = Literal["auto", "completions", "chat"]
DialectName = Literal["openai", "vllm", "sglang", "llama.cpp"]

_STEP = 32  # tokens: enough for most English sentences

_CLOSING = ("", *".,;:!?…)]}”’")
_WHOLE_CONTEXT = 65_536

_CONTINUE = (
    "Continue the text below exactly where it stops, in the same style. "
    "Write only what comes next: repeat none of it, and add no comment.\n\n"
)
_GO_ON = "Go on exactly where your last message stops. Write only what comes next, without repeating any of it."


@dataclass(slots=True)
class Query:
    """A request to the model, its sampling, and the prompt as the dialect sends it."""

    request: Request
    sampling: Sampling
    stop: StopCondition
    prompt: str = ""


@dataclass(frozen=True, slots=True)
class Round:
    """The result of one round; `stop` is the string it stopped at, which is not part of the text."""

    text: str
    tokens: int
    ended: Literal["stop", "model", "length"]
    stop: str = ""
    ids: tuple[int, ...] = ()
    estimated: bool = False


@dataclass(frozen=True, slots=True)
class Call:
    """An HTTP request of a round, and the function that parses its answer."""

    url: str
    body: dict[str, Any]
    read: Callable[[Any], list[Round]]


class V1:
    """OpenAI's endpoints; for vLLM and SGLang also the extra fields that both of them have.

    `per_request` is the most draws of one request.
    """

    def __init__(self, http: Http, model: str, api: Api, name: DialectName) -> None:
        self._http = http
        self._model = model
        self._api = api
        self._extended = name != "openai"
        self._stop_field = {"vllm": "stop_reason", "sglang": "matched_stop"}.get(name, "")
        self._chat_only = api == "chat"
        self._limit_field = "max_tokens"
        # vLLM adds a draw's index to the seed; SGLang uses seeds only if configured to, and then all draws are the same.
        self._seeded = name == "vllm"
        self.per_request = 1 if name == "sglang" else 16

    @property
    def limits(self) -> tuple[str, ...]:
        """What the server ignores, as `LLM.limits`."""
        conditions = (
            (not self._extended, "no repetition penalty, top-k or min-p"),
            (not self._extended, "the model may end its text at any time"),
            (not self._extended, "an unfinished turn is continued on request, in words"),
            (self._chat_only, "a text is continued on request, in words"),
            (not self._seeded, "seeds count only as far as the server heeds them"),
        )
        return tuple(limit for holds, limit in conditions if holds)

    @property
    def takes_bias(self) -> bool:
        """Whether the server tells its tokens, and takes a bias for any number of them."""
        return self._extended

    async def encode(self, text: str) -> list[int]:
        """The tokens of a text."""
        body = {"model": self._model, "prompt": text, "add_special_tokens": False}
        url = self._http.base.removesuffix("/v1") + "/tokenize"
        return await self._http.ask("POST", url, body, _tokens_of)

    async def prompt(self, request: Request) -> str:
        """The prompt of a request, computed once before its first round."""
        return request.context

    def can_continue(self, query: Query) -> bool:
        """Whether a draw can be continued in a further round."""
        return self._extended or not self._uses_chat(query.request)

    def _uses_chat(self, request: Request) -> bool:
        return bool(request.messages) or self._chat_only

    def call(self, query: Query, draw: PartialDraw, n: int, seed: int) -> Call:
        """The request that samples `n` continuations of a draw."""
        sampling, is_chat = query.sampling, self._uses_chat(query.request)
        tokens = sampling.max_tokens - draw.tokens
        short, pairs = draw.rounds < SHORT_ROUNDS, bias_pairs(query.request)
        if short and self.can_continue(query) and not self._extended:
            tokens = min(tokens, _STEP)
        body = {
            "model": self._model,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "seed": seed,
            self._limit_field if is_chat else "max_tokens": tokens,
            **({"n": n} if n > 1 else {}),  # some servers refuse the field, whatever its value
            **(self._extras(sampling, draw, short) if self._extended else {}),
            **({"logit_bias": {str(token): value for token, value in pairs.items()}} if pairs else {}),
            **(self._messages(query.request, draw) if is_chat else {"prompt": query.request.context + draw.text}),
        }
        instructed = is_chat and bool(query.request.context) and not (self._extended and query.request.messages)
        before = query.request.context if instructed and not draw.text else None

        def read(answer: Any) -> list[Round]:
            return self._read(answer, tokens, before)

        return Call(f"{self._http.base}/{'chat/' if is_chat else ''}completions", body, read)

    def _extras(self, sampling: Sampling, draw: PartialDraw, short: bool) -> dict[str, Any]:
        return {
            "repetition_penalty": sampling.repetition_penalty,
            # A model's configuration may have others, so they are sent at their defaults, too.
            "top_k": sampling.top_k or -1,
            "min_p": sampling.min_p,
            "ignore_eos": not sampling.may_end,
            # The token that is sampled again was not an end; otherwise the model could end its text there with two chances.
            "min_tokens": 1 if draw.rounds else 0,
            "stop": list(COMMON_STOPS) if short else [],
        }

    def _messages(self, request: Request, draw: PartialDraw) -> dict[str, Any]:
        messages = _messages(request)
        answer = request.context + draw.text if request.messages else draw.text.lstrip()
        body: dict[str, Any] = {"messages": messages}
        if self._extended:
            body["chat_template_kwargs"] = _NO_THINKING
        if answer:
            messages.append({"role": "assistant", "content": answer})
            if self._extended:
                body |= {"continue_final_message": True, "add_generation_prompt": False}
            else:
                messages.append({"role": "user", "content": _GO_ON})
        return body

    def adapt(self, refusal: Refused, call: Call) -> bool:
        """Adapts to the server after it refused a call; whether the call should be built and sent again."""
        is_chat = "messages" in call.body
        if not is_chat and self._api == "auto" and refusal.status in (404, 405):
            self._chat_only = True
            return True
        if is_chat and "max_tokens" in call.body and "max_completion_tokens" in str(refusal):
            self._limit_field = "max_completion_tokens"
            return True
        return False

    async def text_to_continue(self, draw: PartialDraw, text: str, result: Round) -> str:
        """The text from which the next round continues a draw."""
        return text.rstrip() if result.stop else text.rstrip(REPLACEMENT)

    def _read(self, answer: Any, asked: int, before: str | None) -> list[Round]:
        choices = sorted(required(answer, "choices", list), key=lambda choice: required(choice, "index", int))
        if not choices:
            raise MalformedAnswer("it holds no choices")
        texts = [_text_of(choice) for choice in choices]
        ends = [self._end_of(choice) for choice in choices]
        counts = _token_counts(answer, texts, [end == "length" for end, _ in ends], asked)
        return [
            Round(_joined(before, text), count, end, stop, estimated=estimated)
            for text, (end, stop), (count, estimated) in zip(texts, ends, counts, strict=True)
        ]

    def _end_of(self, choice: Any) -> tuple[Literal["stop", "model", "length"], str]:
        if choice.get("finish_reason") == "length":
            return "length", ""
        stop = choice.get(self._stop_field)
        return ("stop", stop) if isinstance(stop, str) and stop in COMMON_STOPS else ("model", "")


class LlamaCppServer:
    """The own protocol of llama.cpp's server; the methods are those of `V1`."""

    per_request, takes_bias = 16, True

    def __init__(self, http: Http, api: Api, context: int | None) -> None:
        self._http = http
        self._chat_only = api == "chat"
        self._root = http.base.removesuffix("/v1")
        self._context = context or _WHOLE_CONTEXT

    @property
    def limits(self) -> tuple[str, ...]:
        return ("a text is continued on request, in words",) if self._chat_only else ()

    async def prompt(self, request: Request) -> str:
        if not request.messages and not self._chat_only:
            return request.context
        body = {"messages": _messages(request), "chat_template_kwargs": _NO_THINKING}
        template = await self._ask("/apply-template", body, "prompt")
        return template + request.context if request.messages else template

    async def encode(self, text: str) -> list[int]:
        body = {"content": text, "add_special": False}
        return await self._http.ask("POST", self._root + "/tokenize", body, _tokens_of)

    async def _ask(self, path: str, body: dict[str, Any], key: str) -> str:
        return await self._http.ask("POST", self._root + path, body, lambda answer: required(answer, key, str))

    def can_continue(self, query: Query) -> bool:
        return True

    def adapt(self, refusal: Refused, call: Call) -> bool:
        if refusal.status == 404:
            raise LLMError(
                f"llama.cpp answers at {self._http.base} but not at {call.url}; load the model with dialect='openai'"
            ) from None
        return False

    def call(self, query: Query, draw: PartialDraw, n: int, seed: int) -> Call:
        sampling = query.sampling
        tokens = sampling.max_tokens - draw.tokens
        stop = PRECISE_STOPS if draw.rounds < SHORT_ROUNDS else ()
        body = llama_cpp_body(sampling, tokens=tokens, seed=seed, context=self._context, stop=stop) | {
            "prompt": [query.prompt, *draw.ids] if draw.ids else query.prompt,
            "response_fields": ["index", "content", "tokens", "stop_type", "stopping_word", "truncated"],
            **({"n": n} if n > 1 else {}),
            **biased(query.request),
        }
        instructed = self._chat_only and not query.request.messages and not draw.text
        before = query.request.context if instructed else None

        def read(answer: Any) -> list[Round]:
            answers = answer if isinstance(answer, list) else [answer]
            answers = sorted(answers, key=lambda choice: required(choice, "index", int))
            if not answers:
                raise MalformedAnswer("it holds no draws")
            return [self._round(choice, tokens, before) for choice in answers]

        return Call(f"{self._root}/completion", body, read)

    def _round(self, answer: Any, asked: int, before: str | None) -> Round:
        text, ids = required(answer, "content", str), tuple(_tokens_of(answer))
        end, stop = required(answer, "stop_type", str), required(answer, "stopping_word", str)
        if end == "limit" and len(ids) < asked and answer.get("truncated"):
            raise ContextFull("prompt and text have filled the server's context; write fewer sentences")
        kinds: dict[str, Literal["stop", "model", "length"]] = {"eos": "model", "word": "stop"}
        return Round(_joined(before, text), max(1, len(ids)), kinds.get(end, "length"), stop, ids)

    async def text_to_continue(self, draw: PartialDraw, text: str, result: Round) -> str:
        if not result.stop and REPLACEMENT not in text[-1:]:
            return text
        # The last token may reach beyond the stop string, and may hold only a part of a character.
        whole = (await self._ask("/detokenize", {"tokens": draw.ids}, "content")).rstrip(REPLACEMENT)
        text = text.rstrip(REPLACEMENT)
        lead = len(text) - len(text.lstrip())
        # Control tokens are only in `whole`, and the space that joins a chat's answer to the context is only in `text`.
        return text[:lead] + whole.lstrip() if whole.lstrip().startswith(text.lstrip()) else text


Dialect = V1 | LlamaCppServer  # how one kind of server is asked

_NO_THINKING = {"enable_thinking": False}
"""Only the answer itself is marked. Chat templates without a thinking mode ignore this."""


def _messages(request: Request) -> list[dict[str, str]]:
    """The messages of the request, or an instruction to continue its context, for a model that only chats."""
    if request.messages:
        return as_dicts(request.messages)
    return [{"role": "user", "content": _CONTINUE + request.context}]


def _tokens_of(answer: Any) -> list[int]:
    tokens = required(answer, "tokens", list)
    if not all(type(token) is int for token in tokens):
        raise MalformedAnswer("its tokens are not numbers")
    return list(tokens)


def _joined(before: str | None, text: str) -> str:
    """The answer of a model that was instructed to continue `before`, without a repetition of it and with a joining space."""
    if before is None:
        return text
    repeated = before.strip()
    text = text.lstrip().removeprefix(repeated).lstrip() if repeated else text
    return text if before[-1:].isspace() or text[:1] in _CLOSING else f" {text}"


def _text_of(choice: Any) -> str:
    if "message" in choice:
        message = required(choice, "message", dict)
        # An answer that is only thinking, or a refusal, has no content.
        text = "" if message.get("content", "") is None else required(message, "content", str)
    else:
        text = required(choice, "text", str)
    return without_half_pairs(text)


def _token_counts(answer: Any, texts: list[str], cut: list[bool], asked: int) -> list[tuple[int, bool]]:
    """The number of tokens of each choice, and whether it is an estimate.

    Servers return only the sum: a choice that was cut off has as many as were asked for, the others share the rest by length.
    """
    usage = answer.get("usage")
    reported = usage.get("completion_tokens") if isinstance(usage, dict) else None
    total = reported if isinstance(reported, int) else 0
    if total > 0 and len(texts) == 1:
        return [(min(asked, total), False)]
    rest = total - asked * sum(cut)
    shared = sum(len(text) + 1 for text, whole in zip(texts, cut, strict=True) if not whole)
    size = sum(len(text.encode()) for text, whole in zip(texts, cut, strict=True) if not whole)
    # More than eight letters a token cannot be right: llama.cpp returns only the first choice's tokens.
    estimated = rest < len(texts) - sum(cut) or 8 * rest < size
    counts = []
    for text, whole in zip(texts, cut, strict=True):
        count = asked if whole else round(len(text.encode()) / 4 if estimated else rest * (len(text) + 1) / shared)
        counts.append((max(1, min(asked, count)), estimated))
    return counts
