"""How each kind of server behind an OpenAI-style address is spoken to.

What a server calls itself chooses the dialect it is spoken to in:

vllm, sglang: their own fields carry the repetition penalty, keep the model from ending its text and let it go on with
    an unfinished turn. Draws stop at strings that may end a sentence. A draw stopped too early ("Dr. ") goes on from
    its text without the blank at its end, for that blank belongs to a token that is drawn again. Kept from ending, these
    servers sample an end token now and then all the same and write on behind it.
llama.cpp: its own protocol at the root of the address, since its OpenAI endpoints tell neither which string stopped a
    draw nor how many tokens each draw took. Draws go on from their exact tokens. They repeat only while the server
    computes alike: what it keeps of earlier prompts, and what runs beside a draw, moves its logits a little. Behind a
    proxy that lets only /v1 through, ask for dialect="openai".
openai: everybody else. No server of this kind says which string stopped it, so none is sent. A continuation is asked
    for in steps of some tokens until its sentence is over, each from the text so far, which the server cuts into tokens
    anew. A chat cannot go on with an unfinished turn: it is asked for a whole answer, and in words to continue a text.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from alimark.errors import ContextFull, LLMError
from alimark.llm._http import Http, Misshapen, Refused, need
from alimark.llm._rounds import BROKEN, COMMON_STOPS, SHORT_ROUNDS, WARY_STOPS
from alimark.llm.base import Draw, Ended, Over, Request, Sampling

Api = Literal["auto", "completions", "chat"]
DialectName = Literal["openai", "vllm", "sglang", "llama.cpp"]

# What most English sentences need.
_STEP = 32

_HALVES = re.compile("[\ud800-\udfff]")  # of a character that JSON writes in two parts
_CLOSING = ("", *".,;:!?…)]}”’")
_WHOLE_CONTEXT = 65_536

_CONTINUE = (
    "Continue the text below exactly where it stops, in the same style. "
    "Write only what comes next: repeat none of it, and add no comment.\n\n"
)
_GO_ON = "Go on exactly where your last message stops. Write only what comes next, without repeating any of it."


@dataclass(slots=True)
class Job:
    request: Request
    sampling: Sampling
    over: Over
    prompt: str = ""


@dataclass(slots=True)
class Open:
    """A draw in progress: its text, its tokens where the server tells them, and how often it was taken up again."""

    number: int
    text: str = ""
    tokens: int = 0
    ids: list[int] = field(default_factory=list)
    rounds: int = 0
    ended: Ended | None = None

    def draw(self) -> Draw:
        assert self.ended is not None
        return Draw(self.text, self.tokens, self.ended)


@dataclass(frozen=True, slots=True)
class Piece:
    """What one round adds to a draw; `stop` is the string it stopped at, which the server leaves out of the text."""

    text: str
    tokens: int
    ended: Literal["stop", "model", "length"]
    stop: str = ""
    ids: tuple[int, ...] = ()
    estimated: bool = False


@dataclass(frozen=True, slots=True)
class Call:
    url: str
    body: dict[str, Any]
    read: Callable[[Any], list[Piece]]


class Dialect(Protocol):
    per_request: int

    @property
    def limits(self) -> tuple[str, ...]: ...

    async def prompt(self, request: Request) -> str:
        """What is to be found out about a request before its first round."""
        ...

    def call(self, job: Job, one: Open, n: int, seed: int) -> Call: ...

    def adapt(self, refusal: Refused, call: Call) -> bool:
        """Whether a refused call shall be made again, in another way."""
        ...

    async def seam(self, one: Open, said: str, piece: Piece) -> str:
        """The text that a draw goes on from."""
        ...

    def goes_on(self, job: Job) -> bool:
        """Whether a draw can be taken up again."""
        ...


class V1:
    """OpenAI's endpoints, with the fields that vLLM and SGLang have in common where `extended`."""

    def __init__(self, http: Http, model: str, api: Api, name: DialectName) -> None:
        self._http = http
        self._model = model
        self._api = api
        self._extended = name != "openai"
        self._stop_field = {"vllm": "stop_reason", "sglang": "matched_stop"}.get(name, "")
        self._chat_only = api == "chat"
        self._limit_field = "max_tokens"
        # vLLM adds a draw's place to the seed; SGLang heeds seeds only if told to, and then draws all alike.
        self._seeded = name == "vllm"
        self.per_request = 1 if name == "sglang" else 16

    @property
    def limits(self) -> tuple[str, ...]:
        every = (
            (not self._extended, "no repetition penalty"),
            (not self._extended, "the model may end its text at any time"),
            (not self._extended, "an unfinished turn is continued on request, in words"),
            (self._chat_only, "a text is continued on request, in words"),
            (not self._seeded, "seeds count only as far as the server heeds them"),
        )
        return tuple(limit for holds, limit in every if holds)

    async def prompt(self, request: Request) -> str:
        return request.context

    def goes_on(self, job: Job) -> bool:
        return self._extended or not self._chats(job.request)

    def _chats(self, request: Request) -> bool:
        return bool(request.turns) or self._chat_only

    def call(self, job: Job, one: Open, n: int, seed: int) -> Call:
        sampling, chats = job.sampling, self._chats(job.request)
        tokens = sampling.max_tokens - one.tokens
        short = one.rounds < SHORT_ROUNDS
        if short and self.goes_on(job) and not self._extended:
            tokens = min(tokens, _STEP)
        body = {
            "model": self._model,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "seed": seed,
            self._limit_field if chats else "max_tokens": tokens,
            **({"n": n} if n > 1 else {}),  # some refuse the field, whatever its value
            **(self._extras(sampling, one, short) if self._extended else {}),
            **(self._messages(job.request, one) if chats else {"prompt": job.request.context + one.text}),
        }
        worded = chats and bool(job.request.context) and not (self._extended and job.request.turns)
        before = job.request.context if worded and not one.text else None

        def read(answer: Any) -> list[Piece]:
            return self._read(answer, tokens, before)

        return Call(f"{self._http.base}/{'chat/' if chats else ''}completions", body, read)

    def _extras(self, sampling: Sampling, one: Open, short: bool) -> dict[str, Any]:
        return {
            "repetition_penalty": sampling.repetition_penalty,
            # Said although they are the servers' own defaults: a model's configuration may have others.
            "top_k": -1,
            "min_p": 0.0,
            "ignore_eos": not sampling.may_end,
            # The token drawn again was no end; without this the model would have two chances to end its text there.
            "min_tokens": 1 if one.rounds else 0,
            "stop": list(COMMON_STOPS) if short else [],
        }

    def _messages(self, request: Request, one: Open) -> dict[str, Any]:
        messages = _messages(request)
        said = request.context + one.text if request.turns else one.text.lstrip()
        body: dict[str, Any] = {"messages": messages}
        if self._extended:
            body["chat_template_kwargs"] = _NO_THOUGHTS
        if said:
            messages.append({"role": "assistant", "content": said})
            if self._extended:
                body |= {"continue_final_message": True, "add_generation_prompt": False}
            else:
                messages.append({"role": "user", "content": _GO_ON})
        return body

    def adapt(self, refusal: Refused, call: Call) -> bool:
        chats = "messages" in call.body
        if not chats and self._api == "auto" and refusal.status in (404, 405):
            self._chat_only = True
            return True
        if chats and "max_tokens" in call.body and "max_completion_tokens" in str(refusal):
            self._limit_field = "max_completion_tokens"
            return True
        return False

    async def seam(self, one: Open, said: str, piece: Piece) -> str:
        return said.rstrip() if piece.stop else said.rstrip(BROKEN)

    def _read(self, answer: Any, asked: int, before: str | None) -> list[Piece]:
        choices = sorted(need(answer, "choices", list), key=lambda choice: need(choice, "index", int))
        if not choices:
            raise Misshapen("it holds no choices")
        texts = [_text_of(choice) for choice in choices]
        ends = [self._end_of(choice) for choice in choices]
        counts = _token_counts(answer, texts, [end == "length" for end, _ in ends], asked)
        return [
            Piece(_joined(before, text), count, end, stop, estimated=guessed)
            for text, (end, stop), (count, guessed) in zip(texts, ends, counts, strict=True)
        ]

    def _end_of(self, choice: Any) -> tuple[Literal["stop", "model", "length"], str]:
        if choice.get("finish_reason") == "length":
            return "length", ""
        stop = choice.get(self._stop_field)
        return ("stop", stop) if isinstance(stop, str) and stop in COMMON_STOPS else ("model", "")


class LlamaCpp:
    """The protocol of llama.cpp's server."""

    per_request = 16

    def __init__(self, http: Http, api: Api, context: int | None) -> None:
        self._http = http
        self._chat_only = api == "chat"
        self._root = http.base.removesuffix("/v1")
        self._context = context or _WHOLE_CONTEXT

    @property
    def limits(self) -> tuple[str, ...]:
        return ("a text is continued on request, in words",) if self._chat_only else ()

    async def prompt(self, request: Request) -> str:
        if not request.turns and not self._chat_only:
            return request.context
        body = {"messages": _messages(request), "chat_template_kwargs": _NO_THOUGHTS}
        opened = await self._ask("/apply-template", body, "prompt")
        return opened + request.context if request.turns else opened

    async def _ask(self, path: str, body: dict[str, Any], key: str) -> str:
        return await self._http.ask("POST", self._root + path, body, lambda answer: need(answer, key, str))

    def goes_on(self, job: Job) -> bool:
        return True

    def adapt(self, refusal: Refused, call: Call) -> bool:
        if refusal.status == 404:
            raise LLMError(
                f"llama.cpp answers at {self._http.base} but not at {call.url}; load the model with dialect='openai'"
            ) from None
        return False

    def call(self, job: Job, one: Open, n: int, seed: int) -> Call:
        sampling = job.sampling
        tokens = sampling.max_tokens - one.tokens
        body = {
            "prompt": [job.prompt, *one.ids] if one.ids else job.prompt,
            "n_predict": tokens,
            "seed": seed,
            # The whole chain, in this order; the server's other samplers are left out.
            "samplers": ["penalties", "temperature", "top_p"],
            "repeat_penalty": sampling.repetition_penalty,
            "repeat_last_n": self._context,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "top_k": 0,
            "min_p": 0.0,
            "ignore_eos": not sampling.may_end,
            "stop": WARY_STOPS if one.rounds < SHORT_ROUNDS else [],
            "return_tokens": True,
            "response_fields": ["index", "content", "tokens", "stop_type", "stopping_word", "truncated"],
            **({"n": n} if n > 1 else {}),
        }
        worded = self._chat_only and not job.request.turns and not one.text
        before = job.request.context if worded else None

        def read(answer: Any) -> list[Piece]:
            answers = answer if isinstance(answer, list) else [answer]
            answers = sorted(answers, key=lambda each: need(each, "index", int))
            if not answers:
                raise Misshapen("it holds no draws")
            return [self._piece(each, tokens, before) for each in answers]

        return Call(f"{self._root}/completion", body, read)

    def _piece(self, answer: Any, asked: int, before: str | None) -> Piece:
        text, ids = need(answer, "content", str), tuple(need(answer, "tokens", list))
        if not all(type(token) is int for token in ids):
            raise Misshapen("its tokens are no numbers")
        end, stop = need(answer, "stop_type", str), need(answer, "stopping_word", str)
        if end == "limit" and len(ids) < asked and answer.get("truncated"):
            raise ContextFull("prompt and text have filled the server's context; write fewer sentences")
        kinds: dict[str, Literal["stop", "model", "length"]] = {"eos": "model", "word": "stop"}
        return Piece(_joined(before, text), max(1, len(ids)), kinds.get(end, "length"), stop, ids)

    async def seam(self, one: Open, said: str, piece: Piece) -> str:
        if not piece.stop and BROKEN not in said[-1:]:
            return said
        # The last token may reach beyond the stop, and a character cut in two is no part of the text yet.
        whole = (await self._ask("/detokenize", {"tokens": one.ids}, "content")).rstrip(BROKEN)
        said = said.rstrip(BROKEN)
        lead = len(said) - len(said.lstrip())
        # Control tokens, and the space that joins an answer in words to its text, are only in one of them.
        return said[:lead] + whole.lstrip() if whole.lstrip().startswith(said.lstrip()) else said


_NO_THOUGHTS = {"enable_thinking": False}
"""What is marked is the answer itself. Templates that know no thoughts ignore it."""


def _messages(request: Request) -> list[dict[str, str]]:
    """The turns; or, to a model that only chats, the wish to have a text continued."""
    if request.turns:
        return [{"role": turn.role, "content": turn.content} for turn in request.turns]
    return [{"role": "user", "content": _CONTINUE + request.context}]


def _joined(before: str | None, text: str) -> str:
    """What a model that was asked in words wrote, fit to stand behind the text it was given."""
    if before is None:
        return text
    said = before.strip()
    text = text.lstrip().removeprefix(said).lstrip() if said else text
    return text if before[-1:].isspace() or text[:1] in _CLOSING else f" {text}"


def _text_of(choice: Any) -> str:
    if "message" in choice:
        message = need(choice, "message", dict)
        # Nothing but thoughts, or a refusal: said without content.
        text = "" if message.get("content", "") is None else need(message, "content", str)
    else:
        text = need(choice, "text", str)
    return _HALVES.sub(BROKEN, text)


def _token_counts(answer: Any, texts: list[str], cut: list[bool], asked: int) -> list[tuple[int, bool]]:
    """Each choice's tokens, and whether they are a guess.

    Servers tell the sum alone: a choice that was cut off has all that was asked for, the others share the rest by length.
    """
    usage = answer.get("usage")
    said = usage.get("completion_tokens") if isinstance(usage, dict) else None
    total = said if isinstance(said, int) else 0
    if total > 0 and len(texts) == 1:
        return [(min(asked, total), False)]
    rest = total - asked * sum(cut)
    shared = sum(len(text) + 1 for text, whole in zip(texts, cut, strict=True) if not whole)
    size = sum(len(text.encode()) for text, whole in zip(texts, cut, strict=True) if not whole)
    # Eight letters a token are too many for a sum: llama.cpp tells the first choice's tokens only.
    guessed = rest < len(texts) - sum(cut) or 8 * rest < size
    counts = []
    for text, whole in zip(texts, cut, strict=True):
        count = asked if whole else round(len(text.encode()) / 4 if guessed else rest * (len(text) + 1) / shared)
        counts.append((max(1, min(asked, count)), guessed))
    return counts
