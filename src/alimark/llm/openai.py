"""A language model behind an OpenAI-style address: vLLM, SGLang, llama.cpp's server, OpenAI itself and their like.

What a server calls itself chooses the dialect (see _dialects.py) that it is spoken to in. A draw takes rounds: each asks for
what follows the text so far, until its sentence is over.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any, Self

from alimark.errors import LLMError
from alimark.llm._dialects import V1, Api, Dialect, DialectName, Job, LlamaCpp, Open, Piece
from alimark.llm._http import Http, Refused, all_of, checked, key_for, need, short
from alimark.llm._rounds import seed_of, stop_ends
from alimark.llm.base import LLM, Draw, Over, Request, Sampling

_OWNERS: dict[str, DialectName] = {"vllm": "vllm", "sglang": "sglang", "llamacpp": "llama.cpp"}


class OpenAI(LLM):
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
        self._dialect: Dialect = (
            LlamaCpp(self._http, api, context) if chosen == "llama.cpp" else V1(self._http, self._model, api, chosen)
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
        return self._http.run(all_of(self._draw(Job(request, sampling, over)) for request in requests))

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

    async def _draw(self, job: Job) -> list[Draw]:
        opened = [Open(job.request.first + i) for i in range(job.request.count)]
        if opened:
            job.prompt = await self._dialect.prompt(job.request)
            await self._begin(job, opened)
        return [one.draw() for one in opened]

    async def _begin(self, job: Job, opened: list[Open], most: int | None = None) -> None:
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

    async def _finish(self, job: Job, one: Open, piece: Piece) -> None:
        await self._take(job, one, piece)
        while one.ended is None:
            one.rounds += 1
            [piece] = await self._round(job, one, 1)
            await self._take(job, one, piece)

    async def _round(self, job: Job, one: Open, n: int) -> list[Piece]:
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

    async def _take(self, job: Job, one: Open, piece: Piece) -> None:
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
