"""The adapter for models on OpenAI-compatible servers: vLLM, SGLang, llama.cpp's server, OpenAI and others.

The kind of server chooses the dialect of its requests (see `_dialects`). A draw takes one or more rounds: each requests what
follows the text so far, until the sentence is over.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import Any, Self

from alimark.core._util.json_types import JsonObject
from alimark.core.llm._dialects import V1, Api, Dialect, DialectName, LlamaCppServer, Query, Round
from alimark.core.llm._http import Http, MalformedAnswer, Refused, all_of, api_key, parse_address, required, short
from alimark.core.llm._shared import PartialDraw, seed_of
from alimark.core.llm.base import LLM, Draw, Request, Sampling, StopCondition
from alimark.errors import LLMError

_OWNERS: dict[str, DialectName] = {"vllm": "vllm", "sglang": "sglang", "llamacpp": "llama.cpp"}


class OpenAI(LLM):
    """A model on a server. Threads share its connections; requests beyond `concurrency` wait.

    The API key is read from the environment variable ALIMARK_API_KEY, or else OPENAI_API_KEY.

    Args:
        base_url: The server's address, such as http://localhost:8000/v1.
        model: The model's name on the server; required only if the server has several models.
        name: The model's name in records; default, the last part of `model`.
        api: "completions", "chat", or "auto": chat if a request has messages or the server has no completions.
        dialect: The kind of server; default, as its list of models says.
        concurrency: The most HTTP requests at a time.
        timeout: Seconds until a whole answer must have arrived.
        retries: Further tries after a temporary fault.
        backoff: Seconds before the first further try; the wait doubles with each try.
        per_request: The most draws in one HTTP request; reduced if the server returns fewer.
        trusted: Whether the server may learn the keys that texts are marked with. Its model is then steered, if it is vLLM,
            SGLang or llama.cpp: a bias by token, which such a server may log, tells the secret direction of a block.

    Raises:
        MissingExtra: httpx is not installed.
        LLMError: An option or the address is invalid, or the server cannot be reached or does not know the model.
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
        trusted: bool = False,
    ) -> None:
        if min(concurrency, 1 if per_request is None else per_request) < 1 or timeout <= 0 or min(retries, backoff) < 0:
            raise LLMError("concurrency, per_request and timeout must be positive, retries and backoff not negative")
        if api not in ("auto", "completions", "chat") or dialect not in (None, "openai", *_OWNERS.values()):
            raise LLMError(
                f"api={api!r} or dialect={dialect!r} is unknown; api is auto, completions or chat, and dialect is one of "
                f"{', '.join(['openai', *_OWNERS.values()])}"
            )
        address = parse_address(base_url)
        self._concurrency = concurrency
        self._http = Http(address, api_key(address), concurrency, timeout, retries, backoff)
        try:
            served = _Served(model, dialect) if model and dialect else self._http.run(self._find(model))
        except BaseException:
            self.close()
            raise
        self._model, chosen = served.model, dialect or served.dialect
        self._name = name or PurePosixPath(self._model).name or self._model
        self._dialect: Dialect = (
            LlamaCppServer(self._http, api, served.context)
            if chosen == "llama.cpp"
            else V1(self._http, self._model, api, chosen)
        )
        self._api = api
        self.bias_stays_here = trusted and self._dialect.takes_bias
        self._per_request = per_request or self._dialect.per_request
        self._estimated = False

    @property
    def name(self) -> str:
        return self._name

    @property
    def max_concurrency(self) -> int:
        return self._concurrency

    @property
    def limits(self) -> tuple[str, ...]:
        """What this server ignores, as far as its answers have shown by now."""
        estimated = ("the server does not tell how many tokens it sampled; they are estimated from the text",)
        return (*self._dialect.limits, *(estimated if self._estimated else ()))

    def __repr__(self) -> str:
        return f"<OpenAI {self.name} at {self._http.base}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close all connections. Draws under way in other threads fail."""
        self._http.close()

    def draw(self, requests: Sequence[Request], sampling: Sampling, stop: StopCondition) -> list[list[Draw]]:
        """Sample the draws of each request; see `LLM.draw`."""
        for request in requests:
            if request.messages and self._api == "completions":
                raise LLMError(
                    "a request has chat messages, which completions cannot express; load the model with api='auto'"
                )
            if not request.messages and not request.context:
                raise LLMError("the context is empty; give the model a prompt to continue")
        if not self.bias_stays_here:  # nobody may learn a key by a mistake of the caller
            requests = [replace(request, bias=None) for request in requests]
        return self._http.run(all_of(self._draw(Query(request, sampling, stop)) for request in requests))

    def encode(self, text: str) -> list[int]:
        """The tokens of a text; see `TakesBias`."""
        return self._http.run(self._dialect.encode(text))

    def forward(self, path: str, body: JsonObject) -> JsonObject:
        """Return the server's own answer to a request; see `ForwardsRequests.forward`."""
        sent = body | {"model": self._model}

        def read(answer: Any) -> JsonObject:
            if not isinstance(answer, dict):
                raise MalformedAnswer("it is not a JSON object")
            return answer

        return self._http.run(self._http.ask("POST", f"{self._http.base}/{path}", sent, read))

    def forward_stream(self, path: str, body: JsonObject) -> Iterator[JsonObject]:
        """Yield the events of the server's own answer; see `ForwardsRequests.forward_stream`."""
        return self._http.events(f"{self._http.base}/{path}", body | {"model": self._model, "stream": True})

    async def _find(self, model: str | None) -> _Served:
        """The model and its dialect from the server's list of models."""
        url = f"{self._http.base}/models"
        try:
            served = await self._http.ask("GET", url, None, _read_models, tries=2)
        except Refused:
            served = []  # the server may have no list
        if model:
            # A name that is not on the list may be an alias; all models of a server have the same dialect.
            known = next((entry for entry in served if entry.model == model), served[0] if served else None)
            return _Served(model, known.dialect, known.context) if known else _Served(model)
        if len(served) == 1:
            return served[0]
        if not served:
            raise LLMError(f"{url} names no model; check the address (most end in /v1), or add #model to it")
        names = ", ".join(entry.model for entry in served)
        raise LLMError(f"{self._http.base} has several models; add one to the address behind a #: {short(names)}")

    async def _draw(self, query: Query) -> list[Draw]:
        draws = [PartialDraw(query.request.first + i) for i in range(query.request.count)]
        if draws:
            query.prompt = await self._dialect.prompt(query.request)
            await self._sample(query, draws)
        return [draw.finished() for draw in draws]

    async def _sample(self, query: Query, draws: list[PartialDraw], most: int | None = None) -> None:
        """Sample draws with consecutive numbers from beginning to end, at most `most` in one HTTP request."""
        size = min(most or self._per_request, self._per_request)
        if len(draws) > size:
            await all_of(self._sample(query, draws[at : at + size], most) for at in range(0, len(draws), size))
            return
        try:
            results = await self._round(query, draws[0], len(draws))
        except Refused:
            if len(draws) == 1:
                raise
            results = []
        if not results:  # the server may accept fewer draws in one request
            await self._sample(query, draws, len(draws) // 2)
            return
        accepted = len(results) if len(results) < len(draws) else size
        self._per_request = min(self._per_request, accepted)
        begun, others = draws[: len(results)], draws[len(results) :]
        rest = [self._sample(query, others)] if others else []
        await all_of([*(self._finish(query, draw, result) for draw, result in zip(begun, results, strict=True)), *rest])

    async def _finish(self, query: Query, draw: PartialDraw, result: Round) -> None:
        await self._extend(query, draw, result)
        while draw.ended is None:
            draw.rounds += 1
            [result] = await self._round(query, draw, 1)
            await self._extend(query, draw, result)

    async def _round(self, query: Query, draw: PartialDraw, n: int) -> list[Round]:
        """Sample `n` continuations of the draw as it is; the server may return fewer."""
        base = (seed_of(query.request.seed) + draw.number) % 2**31  # servers add a draw's index among the n
        seed = seed_of(query.request.seed, draw.number, draw.rounds) if draw.rounds else base
        while True:
            call = self._dialect.call(query, draw, n, seed)
            try:
                results = await self._http.ask("POST", call.url, call.body, call.read)
                break
            except Refused as refusal:
                if not self._dialect.adapt(refusal, call):
                    raise
        self._estimated = self._estimated or any(result.estimated for result in results)
        return results[:n]

    async def _extend(self, query: Query, draw: PartialDraw, result: Round) -> None:
        """Add the result of a round to the draw and set `ended` if it has ended."""
        text = draw.text + result.text + result.stop
        draw.tokens += result.tokens
        draw.ids += result.ids
        if draw.stopped(text, query.stop):
            return
        if result.ended == "model":
            draw.text, draw.ended = text, "model"
            return
        draw.text = await self._dialect.text_to_continue(draw, text, result)
        if draw.tokens >= query.sampling.max_tokens or not self._dialect.can_continue(query):
            draw.ended = "length"


@dataclass(frozen=True, slots=True)
class _Served:
    """A model in the server's list of models."""

    model: str
    dialect: DialectName = "openai"
    context: int | None = None


def _read_models(answer: Any) -> list[_Served]:
    served = []
    for entry in required(answer, "data", list):
        model, meta = required(entry, "id", str), entry.get("meta")
        context = meta.get("n_ctx") if isinstance(meta, dict) else None
        dialect = _OWNERS.get(str(entry.get("owned_by")), "openai")
        served.append(_Served(model, dialect, context if type(context) is int else None))
    return served
