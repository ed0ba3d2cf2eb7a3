"""The OpenAI protocol: completions and chat, plain and streamed sentence by sentence. Everything is marked.

A client chooses how much is written and how it is sampled, within the operator's bounds; not whether it is marked, nor by
how many candidates. What marked text cannot have (stop words, tools, a temperature of 0) is refused, not passed over.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from typing import Any

from fastapi import APIRouter
from fastapi.responses import JSONResponse, Response, StreamingResponse

from alimark.errors import AlimarkError
from alimark.generation.api import Generation, GenerationSettings, MarkedSentence, Writing
from alimark.keys.key import Key
from alimark.llm.base import Message, Request, Sampling, count_tokens
from alimark.serve.auth import Token
from alimark.serve.gate import Refused, refusal
from alimark.serve.records import Record, of_text
from alimark.serve.schemas import ChatCompletion, Completion, Mark, ToWrite
from alimark.serve.service import Generates, Service, Serving

router = APIRouter(tags=["writing"])

TOKENS_A_SENTENCE = 25
_FINISH = {"complete": "length", "context full": "length", "model ended": "stop", "model repeats itself": "stop"}


@router.get("/v1/models", summary="The model that writes here")
async def models(service: Serving, token: Generates) -> dict[str, Any]:
    return {
        "object": "list",
        "data": [{"id": service.llm.name, "object": "model", "created": 0, "owned_by": "alimark"}],
    }


@router.post("/v1/completions", summary="Go on where a prompt stops; always marked")
async def completions(asked: Completion, service: Serving, token: Generates) -> Response:
    prompts = [asked.prompt] if isinstance(asked.prompt, str) else asked.prompt
    for prompt in prompts:
        service.check_text(prompt, "a prompt")
    return await _answer(_Texts(asked, service, token, [(prompt, ()) for prompt in prompts], chat=False))


@router.post("/v1/chat/completions", summary="Answer a chat; always marked")
async def chat_completions(asked: ChatCompletion, service: Serving, token: Generates) -> Response:
    turns = tuple(
        Message("system" if message.role == "developer" else message.role, message.text) for message in asked.messages
    )
    service.check_text(turns[-1].content, "the last message")
    service.check_text("\n".join(turn.content for turn in turns), "a chat")
    return await _answer(_Texts(asked, service, token, [(turns[-1].content, turns)], chat=True))


async def _answer(texts: _Texts) -> Response:
    await texts.start()
    mark = {"x-alimark-key": texts.key.id}
    if texts.asked.stream:
        return StreamingResponse(texts.stream(), media_type="text/event-stream", headers=mark)
    return JSONResponse(await texts.plain(), headers=mark)


class _Texts:
    """The texts of one request: its prompts, n of each."""

    def __init__(
        self,
        asked: ToWrite,
        service: Service,
        token: Token,
        prompts: Sequence[tuple[str, tuple[Message, ...]]],
        *,
        chat: bool,
    ) -> None:
        self.asked, self.service, self.token, self._chat = asked, service, token, chat
        if asked.model not in ("", service.llm.name):
            raise Refused(404, "model_not_found", f"the model here is {service.llm.name}", param="model")
        count = len(prompts) * asked.n
        if count > service.settings.max_texts:
            raise Refused(413, "too_many_texts", f"a request is for at most {service.settings.max_texts} texts")
        self.key: Key = service.ring.marking(token.tenant, service.llm.name)
        settings = self._settings()
        self._loop = asyncio.get_running_loop()
        self._news: asyncio.Queue[tuple[int, str, int]] = asyncio.Queue()
        seed = secrets.randbits(47) if asked.seed is None else asked.seed
        self._prompts = prompts
        self._writings = [
            Writing(prompt, self.key, settings, seed=seed + place, turns=turns, progress=self._teller(place))
            for place, (prompt, turns) in enumerate(one for one in prompts for _ in range(asked.n))
        ]
        self._matches: list[list[int]] = [[] for _ in range(count)]
        self._sent = [""] * count
        self._id = f"{'chatcmpl' if chat else 'cmpl'}-{secrets.token_hex(12)}"
        self._created = int(time.time())

    def _settings(self) -> GenerationSettings:
        asked, bounds = self.asked, self.service.settings
        sampling = Sampling(may_end=self._chat)
        temperature = sampling.temperature if asked.temperature is None else asked.temperature
        top_p = sampling.top_p if asked.top_p is None else asked.top_p
        for name, value, least in (
            ("temperature", temperature, bounds.least_temperature), ("top_p", top_p, bounds.least_top_p)
        ):  # fmt: skip
            if value < least:
                raise Refused(
                    422, "unmarkable", f"with a {name} below {least:g} there is no choice to mark", param=name
                )
        tokens = getattr(asked, "max_completion_tokens", None) or asked.max_tokens
        sentences = asked.sentences or (-(-tokens // TOKENS_A_SENTENCE) if tokens else bounds.sentences)
        if asked.sentences and asked.sentences > bounds.max_sentences:
            raise Refused(413, "too_long", f"a text has at most {bounds.max_sentences} sentences", param="sentences")
        return GenerationSettings(
            min(sentences, bounds.max_sentences), bounds.candidates,
            Sampling(temperature, top_p, sampling.repetition_penalty, may_end=self._chat),
            prompt_style="chat" if self._chat else "continue",
        )  # fmt: skip

    def _teller(self, place: int) -> Callable[[MarkedSentence], None]:
        """Called in the thread that writes, which alone may look at the text in progress."""

        def tell(sentence: MarkedSentence) -> None:
            # White space at the end waits for what follows, for it may be the end. Code between sentences comes along.
            text = str(self._writings[place].text).rstrip()
            self._matches[place].append(sentence.matches)
            self._wake(place, text, sentence.matches)

        return tell

    def _wake(self, place: int, text: str, matches: int) -> None:
        with suppress(RuntimeError):  # the server is gone
            self._loop.call_soon_threadsafe(self._news.put_nowait, (place, text, matches))

    async def start(self) -> None:
        self._futures: list[Future[Generation]] = await asyncio.to_thread(self.service.writers.write, self._writings)
        for place, future in enumerate(self._futures):
            future.add_done_callback(lambda _, place=place: self._wake(place, "", 0))  # type: ignore[misc]

    # Plain

    async def plain(self) -> dict[str, Any]:
        waits = [asyncio.wrap_future(future) for future in self._futures]
        try:
            made = await self.service.in_time(asyncio.gather(*waits))
        finally:
            self._give_up()
        for one in made:
            if not one.text:
                raise Refused(422, "nothing_written", f"the model wrote nothing here ({one.ended})")
        records = [self._record(one) for one in made]
        await self.service.write_down(records)
        choices = [self._choice(place, one) for place, one in enumerate(made)]
        usage = await asyncio.to_thread(self._usage)
        return self._head(chunk=False) | {"choices": choices, "usage": usage, "alimark": self._mark(made, records)}

    def _usage(self) -> dict[str, int]:
        """Tokens of the prompts and of the texts, as the model cuts them. What was sampled besides is told with the mark."""
        read = written = 0
        for number, (prompt, turns) in enumerate(self._prompts):
            own = count_tokens(self.service.llm, Request("" if turns else prompt, 1, 0, messages=turns))
            read += own
            for one in self._writings[number * self.asked.n : (number + 1) * self.asked.n]:
                whole = count_tokens(self.service.llm, Request(one.context, 1, 0, messages=turns))
                written += max(0, whole - own)
        return {"prompt_tokens": read, "completion_tokens": written, "total_tokens": read + written}

    def _choice(self, place: int, made: Generation) -> dict[str, Any]:
        said = {"message": {"role": "assistant", "content": made.text}} if self._chat else {"text": made.text}
        return {"index": place, **said, "logprobs": None, "finish_reason": _FINISH[made.ended]}

    def _head(self, *, chunk: bool) -> dict[str, Any]:
        kind = "text_completion" if not self._chat else "chat.completion.chunk" if chunk else "chat.completion"
        return {"id": self._id, "object": kind, "created": self._created, "model": self.service.llm.name}

    def _mark(self, made: Sequence[Generation], records: Sequence[Record]) -> dict[str, Any]:
        return Mark(
            key_id=self.key.id, record_ids=[one.id for one in records], matches=[list(one.matches) for one in made],
            block_size=self.key.block_size, tokens_sampled=[one.tokens for one in made],
        ).model_dump()  # fmt: skip

    def _record(self, made: Generation) -> Record:
        self.service.metrics.written.labels("generate").inc()
        return of_text(
            "generate", made.text, made.key_id, made.matches, made.block_size, self.token.id, self.token.tenant,
            llm=made.llm, ended=made.ended, request=self._id,
        )  # fmt: skip

    # Streamed

    async def stream(self) -> AsyncIterator[bytes]:
        """Each sentence as it is chosen. The end of a text is sent when its record is safe."""
        open_places = set(range(len(self._futures)))
        until = self._loop.time() + self.service.settings.timeout
        try:
            if self._chat:
                yield self._event([{"index": i, "delta": {"role": "assistant", "content": ""}} for i in open_places])
            while open_places:
                place, text, matches = await asyncio.wait_for(self._news.get(), until - self._loop.time())
                if text and place in open_places:
                    carried = {"matches": matches, "block_size": self.key.block_size}
                    mark = {"key_id": self.key.id, "sentence": carried}
                    yield self._event([self._delta(place, self._fresh(place, text))], mark)
                elif place in open_places:
                    made = self._futures[place].result()
                    event = await self._end(place, made)
                    open_places.discard(place)
                    yield event
            if self.asked.stream_options and self.asked.stream_options.include_usage:
                yield self._event([], usage=await asyncio.to_thread(self._usage))
            yield b"data: [DONE]\n\n"
        except (AlimarkError, TimeoutError) as error:
            told = refusal(error) if isinstance(error, AlimarkError) else Refused(504, "timeout", "this took too long")
            yield b"data: " + json.dumps({"error": told.error}).encode() + b"\n\n"
        finally:
            self._give_up()
            self._keep_partial(open_places)

    async def _end(self, place: int, made: Generation) -> bytes:
        record = self._record(made)
        await self.service.write_down([record])
        last = self._delta(place, self._fresh(place, made.text)) | {"finish_reason": _FINISH[made.ended]}
        return self._event([last], self._mark([made], [record]))

    def _fresh(self, place: int, text: str) -> str:
        """What of a text was not sent yet."""
        piece, self._sent[place] = text[len(self._sent[place]) :], text
        return piece

    def _delta(self, place: int, piece: str) -> dict[str, Any]:
        said = {"delta": {"content": piece}} if self._chat else {"text": piece}
        return {"index": place, **said, "logprobs": None, "finish_reason": None}

    def _event(self, choices: Sequence[dict[str, Any]], mark: dict[str, Any] | None = None, **more: Any) -> bytes:
        content = self._head(chunk=True) | {"choices": list(choices), "alimark": mark or {"key_id": self.key.id}} | more
        return b"data: " + json.dumps(content).encode() + b"\n\n"

    def _give_up(self) -> None:
        for future in self._futures:
            future.cancel()

    def _keep_partial(self, places: set[int]) -> None:
        """Of texts that ended early, what was sent: it is marked, too. Nobody waits for it any more."""
        records = [
            of_text("generate", self._sent[place], self.key.id, self._matches[place], self.key.block_size,
                    self.token.id, self.token.tenant, llm=self.service.llm.name, ended="broken off", request=self._id)
            for place in places if self._sent[place]
        ]  # fmt: skip
        with suppress(AlimarkError):  # a database that takes no more, which the reader was told
            if records:
                self.service.store.submit(self.service.book.writing(records))
