"""The OpenAI protocol: completions and chat completions, in one response or streamed sentence by sentence.

All text is watermarked. A client chooses the length and the sampling within the operator's limits, but neither the number of
candidates nor whether the text is marked. Options that marked text cannot have (stop words, tools, a temperature of 0) are
rejected, not ignored.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress

from fastapi import APIRouter
from fastapi.responses import JSONResponse, Response, StreamingResponse

from alimark._util.json_types import JsonObject
from alimark.detection.stats.power import SentencesNeeded
from alimark.errors import AlimarkError
from alimark.generation.api import Generation, GenerationSettings, MarkedSentence, Session
from alimark.keys.key import Key
from alimark.llm.base import Message, Request, Sampling, count_tokens
from alimark.schemes.registry import rule_for
from alimark.serve.auth import Token
from alimark.serve.gate import ApiError, to_api_error
from alimark.serve.records import Record, of_text
from alimark.serve.schemas import ChatCompletion, Completion, Mark, ToWrite
from alimark.serve.service import GenerateToken, Service, ServiceOf

router = APIRouter(tags=["writing"])

TOKENS_PER_SENTENCE = 25
"""How `max_tokens` of a request is converted to sentences."""
_FINISH = {
    "complete": "length", "context full": "length", "token limit": "length",
    "model ended": "stop", "model repeats itself": "stop",
}  # fmt: skip
SHORT_FPR = 0.01
"""A text is called too short where its mark would not be found at this false-positive rate nine times in ten."""


@router.get("/v1/models", summary="List the model of this service")
async def models(service: ServiceOf, token: GenerateToken) -> JsonObject:
    return {
        "object": "list",
        "data": [{"id": service.llm.name, "object": "model", "created": 0, "owned_by": "alimark"}],
    }


@router.post("/v1/completions", summary="Continue a prompt; the text is always watermarked")
async def completions(body: Completion, service: ServiceOf, token: GenerateToken) -> Response:
    prompts = [body.prompt] if isinstance(body.prompt, str) else body.prompt
    for prompt in prompts:
        service.check_text(prompt, "prompt")
    return await _respond(_TextRequest(body, service, token, [(prompt, ()) for prompt in prompts], chat=False))


@router.post("/v1/chat/completions", summary="Answer a chat; the text is always watermarked")
async def chat_completions(body: ChatCompletion, service: ServiceOf, token: GenerateToken) -> Response:
    turns = tuple(
        Message("system" if message.role == "developer" else message.role, message.text) for message in body.messages
    )
    service.check_text(turns[-1].content, "last message")
    service.check_text("\n".join(turn.content for turn in turns), "chat")
    return await _respond(_TextRequest(body, service, token, [(turns[-1].content, turns)], chat=True))


async def _respond(texts: _TextRequest) -> Response:
    await texts.start()
    mark = {"x-alimark-key": texts.key.id}
    if texts.body.stream:  # the headers are sent before it is known how long the texts are
        return StreamingResponse(texts.stream(), media_type="text/event-stream", headers=mark)
    content = await texts.plain()
    return JSONResponse(
        content, headers=mark | {"x-alimark-too-short": str(any(content["alimark"]["too_short"])).lower()}
    )


class _TextRequest:
    """The texts of one request, `n` for each prompt, while they are written."""

    def __init__(
        self,
        body: ToWrite,
        service: Service,
        token: Token,
        prompts: Sequence[tuple[str, tuple[Message, ...]]],
        *,
        chat: bool,
    ) -> None:
        self.body, self.service, self.token, self._chat = body, service, token, chat
        if body.model not in ("", service.llm.name):
            message = f"The only model of this service is {service.llm.name}. Use this name, or leave out `model`."
            raise ApiError(404, "model_not_found", message, param="model")
        count, most = len(prompts) * body.n, service.settings.max_texts
        if count > most:
            message = f"The request asks for {count} texts, but the limit is {most}. Send several requests."
            raise ApiError(413, "too_many_texts", message)
        self.key: Key = service.ring.marking(token.tenant, service.llm.name)
        settings = self._settings()
        self._loop = asyncio.get_running_loop()
        self._events: asyncio.Queue[tuple[int, str, int]] = asyncio.Queue()
        seed = secrets.randbits(47) if body.seed is None else body.seed
        self._prompts = prompts
        self._sessions = [
            Session(
                prompt,
                self.key,
                settings,
                rule=rule_for,
                seed=seed + place,
                turns=turns,
                progress=self._progress(place),
            )
            for place, (prompt, turns) in enumerate(pair for pair in prompts for _ in range(body.n))
        ]
        self._matches: list[list[int]] = [[] for _ in range(count)]
        self._sent = [""] * count
        self._id = f"{'chatcmpl' if chat else 'cmpl'}-{secrets.token_hex(12)}"
        self._created = int(time.time())

    def _settings(self) -> GenerationSettings:
        body, limits = self.body, self.service.settings
        sampling = Sampling()
        temperature = sampling.temperature if body.temperature is None else body.temperature
        top_p = sampling.top_p if body.top_p is None else body.top_p
        for name, value, least in (
            ("temperature", temperature, limits.least_temperature), ("top_p", top_p, limits.least_top_p)
        ):  # fmt: skip
            if value < least:
                message = f"With a {name} below {least:g} the text could not be watermarked. Use {least:g} or more."
                raise ApiError(422, "unmarkable", message, param=name)
        tokens = getattr(body, "max_completion_tokens", None) or body.max_tokens
        longest = limits.max_sentences if self._chat else limits.sentences  # an answer ends where the model ends it
        sentences = body.sentences or (-(-tokens // TOKENS_PER_SENTENCE) if tokens else longest)
        if body.sentences and body.sentences > limits.max_sentences:
            message = f"A text may have at most {limits.max_sentences} sentences. Ask for fewer."
            raise ApiError(413, "too_long", message, param="sentences")
        return GenerationSettings(
            min(sentences, limits.max_sentences), limits.candidates,
            # A completion with a number of sentences is written on until it has them.
            Sampling(temperature, top_p, sampling.repetition_penalty, may_end=self._chat or not body.sentences),
            prompt_style="chat" if self._chat else "continue",
        )  # fmt: skip

    def _progress(self, place: int) -> Callable[[MarkedSentence], None]:
        """Returns the callback for new sentences of a text; the thread that writes the text calls it."""

        def report(sentence: MarkedSentence) -> None:
            # White space at the end is sent with the next sentence, because the finished text does not end with it. Code
            # between sentences is part of the text.
            text = str(self._sessions[place].text).rstrip()
            self._matches[place].append(sentence.matches)
            self._notify(place, text, sentence.matches)

        return report

    def _notify(self, place: int, text: str, matches: int) -> None:
        with suppress(RuntimeError):  # the event loop was closed, because the server has stopped
            self._loop.call_soon_threadsafe(self._events.put_nowait, (place, text, matches))

    async def start(self) -> None:
        """Submits the texts to the queue of the writers."""
        self._futures: list[Future[Generation]] = await asyncio.to_thread(self.service.writers.write, self._sessions)
        for place, future in enumerate(self._futures):
            future.add_done_callback(lambda _, place=place: self._notify(place, "", 0))  # type: ignore[misc]

    # In one response

    async def plain(self) -> JsonObject:
        """Waits for all texts and returns the response."""
        waits = [asyncio.wrap_future(future) for future in self._futures]
        try:
            generations = await self.service.in_time(asyncio.gather(*waits))
        finally:
            self._cancel()
        for generation in generations:
            if not generation.text and generation.ended != "model ended":
                message = f"The model wrote no text ({generation.ended}). Change the prompt or the seed."
                raise ApiError(422, "nothing_written", message)
        records = [self._record(generation) for generation in generations]
        await self.service.save(records)
        choices = [self._choice(place, generation) for place, generation in enumerate(generations)]
        usage = await asyncio.to_thread(self._usage)
        mark = await self._mark(generations, records)
        return self._head(chunk=False) | {"choices": choices, "usage": usage, "alimark": mark}

    def _usage(self) -> dict[str, int]:
        """Returns the tokens of prompts and texts by the model's tokenizer; `tokens_sampled` also counts unused candidates."""
        read = written = 0
        for number, (prompt, turns) in enumerate(self._prompts):
            prompt_tokens = count_tokens(self.service.llm, Request("" if turns else prompt, 1, 0, messages=turns))
            read += prompt_tokens
            for session in self._sessions[number * self.body.n : (number + 1) * self.body.n]:
                all_tokens = count_tokens(self.service.llm, Request(session.context, 1, 0, messages=turns))
                written += max(0, all_tokens - prompt_tokens)
        return {"prompt_tokens": read, "completion_tokens": written, "total_tokens": read + written}

    def _choice(self, place: int, generation: Generation) -> JsonObject:
        text = generation.text
        content = {"message": {"role": "assistant", "content": text}} if self._chat else {"text": text}
        return {"index": place, **content, "logprobs": None, "finish_reason": _FINISH[generation.ended]}

    def _head(self, *, chunk: bool) -> JsonObject:
        kind = "text_completion" if not self._chat else "chat.completion.chunk" if chunk else "chat.completion"
        return {"id": self._id, "object": kind, "created": self._created, "model": self.service.llm.name}

    async def _mark(self, generations: Sequence[Generation], records: Sequence[Record]) -> JsonObject:
        # The number is simulated once where no table has it.
        needed = await asyncio.to_thread(SentencesNeeded.of(self.key), SHORT_FPR)
        return Mark(
            key_id=self.key.id,
            record_ids=[record.id for record in records],
            matches=[list(generation.matches) for generation in generations],
            block_size=self.key.block_size,
            tokens_sampled=[generation.tokens for generation in generations],
            too_short=[needed is None or len(generation.sentences) < needed for generation in generations],
            sentences_needed=needed,
        ).model_dump()

    def _record(self, generation: Generation) -> Record:
        self.service.metrics.written.labels("generate").inc()
        return of_text(
            "generate", generation.text, generation.key_id, generation.matches, generation.block_size, self.token,
            llm=generation.llm, ended=generation.ended, request=self._id,
        )  # fmt: skip

    # Streamed

    async def stream(self) -> AsyncIterator[bytes]:
        """Yields each sentence as soon as it is chosen. The last event of a text is sent after its record is committed."""
        open_places = set(range(len(self._futures)))
        until = self._loop.time() + self.service.settings.timeout
        try:
            if self._chat:
                yield self._event([{"index": i, "delta": {"role": "assistant", "content": ""}} for i in open_places])
            while open_places:
                place, text, matches = await asyncio.wait_for(self._events.get(), until - self._loop.time())
                if text and place in open_places:
                    mark = {"key_id": self.key.id, "sentence": {"matches": matches, "block_size": self.key.block_size}}
                    yield self._event([self._delta(place, self._unsent(place, text))], mark)
                elif place in open_places:
                    event = await self._end(place, self._futures[place].result())
                    open_places.discard(place)
                    yield event
            if self.body.stream_options and self.body.stream_options.include_usage:
                yield self._event([], usage=await asyncio.to_thread(self._usage))
            yield b"data: [DONE]\n\n"
        except (AlimarkError, TimeoutError) as error:
            response = to_api_error(error) if isinstance(error, AlimarkError) else self.service.timed_out()
            yield b"data: " + json.dumps({"error": response.error}).encode() + b"\n\n"
        finally:
            self._cancel()
            self._save_partial(open_places)

    async def _end(self, place: int, generation: Generation) -> bytes:
        record = self._record(generation)
        await self.service.save([record])
        last = self._delta(place, self._unsent(place, generation.text)) | {"finish_reason": _FINISH[generation.ended]}
        return self._event([last], await self._mark([generation], [record]))

    def _unsent(self, place: int, text: str) -> str:
        """Returns the part of a text that was not sent yet, and counts it as sent."""
        piece, self._sent[place] = text[len(self._sent[place]) :], text
        return piece

    def _delta(self, place: int, piece: str) -> JsonObject:
        content = {"delta": {"content": piece}} if self._chat else {"text": piece}
        return {"index": place, **content, "logprobs": None, "finish_reason": None}

    def _event(self, choices: Sequence[JsonObject], mark: JsonObject | None = None, **more: object) -> bytes:
        content = self._head(chunk=True) | {"choices": list(choices), "alimark": mark or {"key_id": self.key.id}} | more
        return b"data: " + json.dumps(content).encode() + b"\n\n"

    def _cancel(self) -> None:
        for future in self._futures:
            future.cancel()

    def _save_partial(self, places: set[int]) -> None:
        """Saves records of texts that ended early, because their sent part is marked too. Does not wait for the commit."""
        records = [
            of_text("generate", self._sent[place], self.key.id, self._matches[place], self.key.block_size,
                    self.token, llm=self.service.llm.name, ended="broken off", request=self._id)
            for place in places if self._sent[place]
        ]  # fmt: skip
        with suppress(AlimarkError):  # the database is closed; the client has got an error already
            if records:
                self.service.store.submit(self.service.records.writing(records))
