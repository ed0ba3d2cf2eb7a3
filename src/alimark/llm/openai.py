"""A language model behind an OpenAI-style address: vLLM, SGLang, llama.cpp's server, OpenAI itself and their like.

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

import hashlib
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any, Literal, Protocol, Self

from alimark.errors import ContextFull, LLMError
from alimark.llm._http import Http, Misshapen, Refused, all_of, checked, key_for, need, short
from alimark.llm.base import Draw, Ended, Over, Request, Sampling
from alimark.llm.llama_cpp import WARY_STOPS
from alimark.text import STOPS

Api = Literal["auto", "completions", "chat"]
DialectName = Literal["openai", "vllm", "sglang", "llama.cpp"]

COMMON_STOPS = (
    *"。！？",
    *(mark + close + blank for mark in ".!?" for close in ("", '"', "”", ")") for blank in " \n"),
)
"""The likeliest of all stops: vLLM and SGLang look for each of them behind every token."""

# Rounds of a draw that may be cut short; the next takes all tokens that are left, so that a whole answer takes few.
_SHORT_ROUNDS = 3
# What most English sentences need.
_STEP = 32

_OWNERS: dict[str, DialectName] = {"vllm": "vllm", "sglang": "sglang", "llamacpp": "llama.cpp"}
_ANY_STOP = re.compile("|".join(map(re.escape, STOPS)))
_BROKEN = "\ufffd"
_HALVES = re.compile("[\ud800-\udfff]")  # of a character that JSON writes in two parts
_CLOSING = ("", *".,;:!?…)]}”’")
_WHOLE_CONTEXT = 65_536

_CONTINUE = (
    "Continue the text below exactly where it stops, in the same style. "
    "Write only what comes next: repeat none of it, and add no comment.\n\n"
)
_GO_ON = "Go on exactly where your last message stops. Write only what comes next, without repeating any of it."


class OpenAI:
    """A model on a server. Threads share its connections; requests beyond `concurrency` wait.

    model: needed only where the server has several.
    api: "auto" asks for completions, or for chat where a request has turns or the server knows nothing else.
    dialect: default, found out from the server's list of models.
    timeout: seconds for one whole answer. retries: further tries after a fault, `backoff` seconds apart at first.
    per_request: the most draws asked for at a time; less where the server turns out to give less.
    """

    def __init__(
        self,
        base_url: str,
        model: str | None = None,
        *,
        name: str | None = None,
        api: Api = "auto",
        dialect: DialectName | None = None,
        concurrency: int = 16,
        timeout: float = 300.0,
        retries: int = 5,
        backoff: float = 0.5,
        per_request: int | None = None,
    ) -> None:
        if min(concurrency, 1 if per_request is None else per_request) < 1 or timeout <= 0 or min(retries, backoff) < 0:
            raise LLMError("concurrency, per_request and timeout must be positive, retries and backoff not negative")
        if api not in ("auto", "completions", "chat") or dialect not in (None, "openai", *_OWNERS.values()):
            raise LLMError(f"api={api!r} or dialect={dialect!r} is unknown")
        address = checked(base_url)
        self._callers = concurrency
        self._http = Http(address, key_for(address), concurrency, timeout, retries, backoff)
        try:
            served = None if model and dialect else self._http.run(self._find(model))
        except BaseException:
            self.close()
            raise
        self._model = model or (served.model if served else "")
        self._name = name or PurePosixPath(self._model).name or self._model
        chosen = dialect or (served.dialect if served else "openai")
        context = served.context if served else None
        self._dialect: _Dialect = (
            _LlamaCpp(self._http, api, context) if chosen == "llama.cpp" else _V1(self._http, self._model, api, chosen)
        )
        self._api = api
        self._per_request = per_request or self._dialect.per_request
        self._estimated = False

    @property
    def name(self) -> str:
        return self._name

    @property
    def callers(self) -> int:
        return self._callers

    @property
    def together(self) -> int:
        return 1

    @property
    def singles(self) -> tuple[int, int]:
        return self.callers, self.together

    @property
    def limits(self) -> tuple[str, ...]:
        """What this server cannot do, as far as its answers have shown by now."""
        guessed = ("the server does not tell how many tokens it sampled; they are estimated from the text",)
        return (*self._dialect.limits, *(guessed if self._estimated else ()))

    def __repr__(self) -> str:
        return f"<OpenAI {self.name} at {self._http.base}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Hang up. Draws under way in other threads fail."""
        self._http.close()

    def draw(self, requests: Sequence[Request], sampling: Sampling, over: Over) -> list[list[Draw]]:
        """The draws of each request, in draw order. Raises ContextFull where a context leaves no room."""
        for request in requests:
            if request.turns and self._api == "completions":
                raise LLMError("a request has turns, which completions cannot express; load the model with api='auto'")
            if not request.turns and not request.context:
                raise LLMError("the context is empty; give the model a prompt to continue")
        return self._http.run(all_of(self._draw(_Job(request, sampling, over)) for request in requests))

    async def _find(self, model: str | None) -> _Served:
        url = f"{self._http.base}/models"
        try:
            served = await self._http.ask("GET", url, None, _read_models, tries=2)
        except Refused:
            served = []  # a server may keep no list
        if model:
            # A name that is not on the list may be an alias; whoever serves it serves the others, too.
            known = next((one for one in served if one.model == model), served[0] if served else None)
            return _Served(model, known.dialect, known.context) if known else _Served(model)
        if len(served) == 1:
            return served[0]
        if not served:
            raise LLMError(f"{url} names no model; check the address (most end in /v1), or add #model to it")
        names = ", ".join(one.model for one in served)
        raise LLMError(f"{self._http.base} has several models; add one to the address behind a #: {short(names)}")

    async def _draw(self, job: _Job) -> list[Draw]:
        opened = [_Open(job.request.first + i) for i in range(job.request.count)]
        if opened:
            job.prompt = await self._dialect.prompt(job.request)
            await self._begin(job, opened)
        return [one.draw() for one in opened]

    async def _begin(self, job: _Job, opened: list[_Open], most: int | None = None) -> None:
        """Draws with neighbouring numbers, from their first token to their end, `most` in a request."""
        size = min(most or self._per_request, self._per_request)
        if len(opened) > size:
            await all_of(self._begin(job, opened[at : at + size], most) for at in range(0, len(opened), size))
            return
        try:
            pieces = await self._round(job, opened[0], len(opened))
        except Refused:
            if len(opened) == 1:
                raise
            pieces = []
        if not pieces:  # perhaps for asking so many at a time; if so, a success will show
            await self._begin(job, opened, len(opened) // 2)
            return
        given = len(pieces) if len(pieces) < len(opened) else size
        self._per_request = min(self._per_request, given)
        begun, others = opened[: len(pieces)], opened[len(pieces) :]
        rest = [self._begin(job, others)] if others else []
        await all_of([*(self._finish(job, one, piece) for one, piece in zip(begun, pieces, strict=True)), *rest])

    async def _finish(self, job: _Job, one: _Open, piece: _Piece) -> None:
        await self._take(job, one, piece)
        while one.ended is None:
            one.rounds += 1
            [piece] = await self._round(job, one, 1)
            await self._take(job, one, piece)

    async def _round(self, job: _Job, one: _Open, n: int) -> list[_Piece]:
        """What follows `one` as it stands, drawn n times, or less often if the server thinks so."""
        base = (seed_of(job.request.seed) + one.number) % 2**31  # servers add a draw's place among the n
        seed = seed_of(job.request.seed, one.number, one.rounds) if one.rounds else base
        while True:
            call = self._dialect.call(job, one, n, seed)
            try:
                pieces = await self._http.ask("POST", call.url, call.body, call.read)
                break
            except Refused as refusal:
                if not self._dialect.adapt(refusal, call):
                    raise
        self._estimated = self._estimated or any(piece.estimated for piece in pieces)
        return pieces[:n]

    async def _take(self, job: _Job, one: _Open, piece: _Piece) -> None:
        """Add what was sampled to the draw and see whether it has ended."""
        known, said = len(one.text), one.text + piece.text + piece.stop
        one.tokens += piece.tokens
        one.ids += piece.ids
        for end in (*stop_ends(said, known), len(said)):
            if job.over(said[:end]):
                one.text, one.ended = said[:end], "sentence"
                return
        if piece.ended == "model":
            one.text, one.ended = said, "model"
            return
        one.text = await self._dialect.seam(one, said, piece)
        if one.tokens >= job.sampling.max_tokens or not self._dialect.goes_on(job):
            one.ended = "length"


@dataclass(frozen=True, slots=True)
class _Served:
    """A model on the server's list."""

    model: str
    dialect: DialectName = "openai"
    context: int | None = None


@dataclass(slots=True)
class _Job:
    request: Request
    sampling: Sampling
    over: Over
    prompt: str = ""


@dataclass(slots=True)
class _Open:
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
class _Piece:
    """What one round adds to a draw; `stop` is the string it stopped at, which the server leaves out of the text."""

    text: str
    tokens: int
    ended: Literal["stop", "model", "length"]
    stop: str = ""
    ids: tuple[int, ...] = ()
    estimated: bool = False


@dataclass(frozen=True, slots=True)
class _Call:
    url: str
    body: dict[str, Any]
    read: Callable[[Any], list[_Piece]]


class _Dialect(Protocol):
    per_request: int

    @property
    def limits(self) -> tuple[str, ...]: ...

    async def prompt(self, request: Request) -> str:
        """What is to be found out about a request before its first round."""
        ...

    def call(self, job: _Job, one: _Open, n: int, seed: int) -> _Call: ...

    def adapt(self, refusal: Refused, call: _Call) -> bool:
        """Whether a refused call shall be made again, in another way."""
        ...

    async def seam(self, one: _Open, said: str, piece: _Piece) -> str:
        """The text that a draw goes on from."""
        ...

    def goes_on(self, job: _Job) -> bool:
        """Whether a draw can be taken up again."""
        ...


class _V1:
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

    def goes_on(self, job: _Job) -> bool:
        return self._extended or not self._chats(job.request)

    def _chats(self, request: Request) -> bool:
        return bool(request.turns) or self._chat_only

    def call(self, job: _Job, one: _Open, n: int, seed: int) -> _Call:
        sampling, chats = job.sampling, self._chats(job.request)
        tokens = sampling.max_tokens - one.tokens
        short = one.rounds < _SHORT_ROUNDS
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

        def read(answer: Any) -> list[_Piece]:
            return self._read(answer, tokens, before)

        return _Call(f"{self._http.base}/{'chat/' if chats else ''}completions", body, read)

    def _extras(self, sampling: Sampling, one: _Open, short: bool) -> dict[str, Any]:
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

    def _messages(self, request: Request, one: _Open) -> dict[str, Any]:
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

    def adapt(self, refusal: Refused, call: _Call) -> bool:
        chats = "messages" in call.body
        if not chats and self._api == "auto" and refusal.status in (404, 405):
            self._chat_only = True
            return True
        if chats and "max_tokens" in call.body and "max_completion_tokens" in str(refusal):
            self._limit_field = "max_completion_tokens"
            return True
        return False

    async def seam(self, one: _Open, said: str, piece: _Piece) -> str:
        return said.rstrip() if piece.stop else said.rstrip(_BROKEN)

    def _read(self, answer: Any, asked: int, before: str | None) -> list[_Piece]:
        choices = sorted(need(answer, "choices", list), key=lambda choice: need(choice, "index", int))
        if not choices:
            raise Misshapen("it holds no choices")
        texts = [_text_of(choice) for choice in choices]
        ends = [self._end_of(choice) for choice in choices]
        counts = _token_counts(answer, texts, [end == "length" for end, _ in ends], asked)
        return [
            _Piece(_joined(before, text), count, end, stop, estimated=guessed)
            for text, (end, stop), (count, guessed) in zip(texts, ends, counts, strict=True)
        ]

    def _end_of(self, choice: Any) -> tuple[Literal["stop", "model", "length"], str]:
        if choice.get("finish_reason") == "length":
            return "length", ""
        stop = choice.get(self._stop_field)
        return ("stop", stop) if isinstance(stop, str) and stop in COMMON_STOPS else ("model", "")


class _LlamaCpp:
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

    def goes_on(self, job: _Job) -> bool:
        return True

    def adapt(self, refusal: Refused, call: _Call) -> bool:
        if refusal.status == 404:
            raise LLMError(
                f"llama.cpp answers at {self._http.base} but not at {call.url}; load the model with dialect='openai'"
            ) from None
        return False

    def call(self, job: _Job, one: _Open, n: int, seed: int) -> _Call:
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
            "stop": WARY_STOPS if one.rounds < _SHORT_ROUNDS else [],
            "return_tokens": True,
            "response_fields": ["index", "content", "tokens", "stop_type", "stopping_word", "truncated"],
            **({"n": n} if n > 1 else {}),
        }
        worded = self._chat_only and not job.request.turns and not one.text
        before = job.request.context if worded else None

        def read(answer: Any) -> list[_Piece]:
            answers = answer if isinstance(answer, list) else [answer]
            answers = sorted(answers, key=lambda each: need(each, "index", int))
            if not answers:
                raise Misshapen("it holds no draws")
            return [self._piece(each, tokens, before) for each in answers]

        return _Call(f"{self._root}/completion", body, read)

    def _piece(self, answer: Any, asked: int, before: str | None) -> _Piece:
        text, ids = need(answer, "content", str), tuple(need(answer, "tokens", list))
        if not all(type(token) is int for token in ids):
            raise Misshapen("its tokens are no numbers")
        end, stop = need(answer, "stop_type", str), need(answer, "stopping_word", str)
        if end == "limit" and len(ids) < asked and answer.get("truncated"):
            raise ContextFull("prompt and text have filled the server's context; write fewer sentences")
        kinds: dict[str, Literal["stop", "model", "length"]] = {"eos": "model", "word": "stop"}
        return _Piece(_joined(before, text), max(1, len(ids)), kinds.get(end, "length"), stop, ids)

    async def seam(self, one: _Open, said: str, piece: _Piece) -> str:
        if not piece.stop and _BROKEN not in said[-1:]:
            return said
        # The last token may reach beyond the stop, and a character cut in two is no part of the text yet.
        whole = (await self._ask("/detokenize", {"tokens": one.ids}, "content")).rstrip(_BROKEN)
        said = said.rstrip(_BROKEN)
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


def stop_ends(text: str, known: int) -> Iterator[int]:
    """Where stops end that reach beyond the `known` characters."""
    longest = max(map(len, STOPS))
    found = _ANY_STOP.finditer(text, max(0, known - longest))
    return (match.end() for match in found if match.end() > known)


def seed_of(*numbers: int) -> int:
    """A seed of 31 bits: with a draw's place added it fits every server's integers."""
    digest = hashlib.blake2b(repr(numbers).encode(), digest_size=4).digest()
    return int.from_bytes(digest, "big") >> 1


def _text_of(choice: Any) -> str:
    if "message" in choice:
        message = need(choice, "message", dict)
        # Nothing but thoughts, or a refusal: said without content.
        text = "" if message.get("content", "") is None else need(message, "content", str)
    else:
        text = need(choice, "text", str)
    return _HALVES.sub(_BROKEN, text)


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


def _read_models(answer: Any) -> list[_Served]:
    served = []
    for entry in need(answer, "data", list):
        owner, meta = entry.get("owned_by") if isinstance(entry, dict) else None, {}
        if isinstance(entry, dict) and isinstance(entry.get("meta"), dict):
            meta = entry["meta"]
        context = meta.get("n_ctx")
        dialect = _OWNERS.get(owner, "openai") if isinstance(owner, str) else "openai"
        served.append(_Served(need(entry, "id", str), dialect, context if type(context) is int else None))
    return served
