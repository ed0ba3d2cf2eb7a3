"""The OpenAI protocol: models, completions, chat completions and the Responses API, in one answer or sentence by sentence.

Text is watermarked. A client chooses the length and the sampling within the operator's limits, but not the number of
candidates. Calls of tools and JSON pass through as the engine makes them; the answer then says in its field `alimark` and in
the header `X-Alimark-Marked` that it is not marked. What else marked text cannot have is refused with the reason or, where the
setting `unmarkable` says so, passed on, too. Nothing is stored, so no request can refer to an earlier response.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from itertools import count

from fastapi import APIRouter
from fastapi.responses import JSONResponse, Response, StreamingResponse

from alimark.core._util.json_types import JsonObject
from alimark.core._util.work import stop_if_cancelled
from alimark.core.generation.api import Generation
from alimark.core.llm.base import ForwardsRequests
from alimark.core.text.continuations import word_list
from alimark.errors import AlimarkError
from alimark.serve.auth import Token
from alimark.serve.bodies import BoundedRoute
from alimark.serve.errors import AnyTextResponse, ApiError, to_api_error
from alimark.serve.openai_schemas import CALLS, ChatCompletion, Completion, CreateResponse, Mark, ToWrite
from alimark.serve.service import GenerateToken, Service, ServiceOf
from alimark.serve.texts import FINISH, Texts

router = APIRouter(tags=["writing"], route_class=BoundedRoute)
_OWN_FIELDS = {"sentences", "payload"}
"""Fields that only this service knows."""
_DONE = b"data: [DONE]\n\n"


@router.get("/v1/models", summary="List the model of this service")
async def models(service: ServiceOf, token: GenerateToken) -> JsonObject:
    return {"object": "list", "data": [_model(service)]}


@router.get("/v1/models/{name:path}", summary="Show the model of this service")
async def model(name: str, service: ServiceOf, token: GenerateToken) -> JsonObject:
    service.check_model(name)
    return _model(service)


def _model(service: Service) -> JsonObject:
    return {"id": service.llm.name, "object": "model", "created": 0, "owned_by": "alimark"}


@router.post("/v1/completions", summary="Continue a prompt; the text is watermarked")
async def completions(body: Completion, service: ServiceOf, token: GenerateToken) -> Response:
    return await respond(body, service, token, _whole, _stream)


@router.post("/v1/chat/completions", summary="Answer a chat; the text is watermarked")
async def chat_completions(body: ChatCompletion, service: ServiceOf, token: GenerateToken) -> Response:
    return await respond(body, service, token, _whole, _stream)


Whole = Callable[[Texts, list[Generation], JsonObject], Awaitable[JsonObject]]
"""Makes the content of a response from the finished texts and their field `alimark`."""
Events = Callable[[Texts], AsyncIterator[bytes]]
"""Yields the events of a streamed response."""


async def respond(body: ToWrite, service: Service, token: Token, whole: Whole, events: Events) -> Response:
    """Writes the texts of a request; returns the engine's own answer to one that marked text cannot fulfil."""
    service.check_model(body.model)
    if (answer := await _unmarked_answer(body, service, token)) is not None:
        return answer
    texts = Texts(body, service, token)
    await texts.start()
    if body.stream:
        return StreamingResponse(events(texts), media_type="text/event-stream", headers=texts.headers())
    generations, mark = await texts.finished()
    # Responses repeat their instructions, which may hold any text.
    return AnyTextResponse(await whole(texts, generations, mark), headers=texts.headers(mark))


async def _whole(texts: Texts, generations: list[Generation], mark: JsonObject) -> JsonObject:
    choices = [_choice(texts, place, generation) for place, generation in enumerate(generations)]
    usage = await asyncio.to_thread(_usage, texts)
    return _head(texts, chunk=False) | {"choices": choices, "usage": usage, "alimark": mark}


def _usage(texts: Texts) -> dict[str, int]:
    read, written = texts.usage()
    return {"prompt_tokens": read, "completion_tokens": written, "total_tokens": read + written}


def _head(texts: Texts, *, chunk: bool) -> JsonObject:
    chat = texts.body.chat
    kind = "text_completion" if not chat else "chat.completion.chunk" if chunk else "chat.completion"
    return {"id": texts.id, "object": kind, "created": texts.created, "model": texts.service.llm.name}


def _choice(texts: Texts, place: int, generation: Generation) -> JsonObject:
    text = generation.text
    message = {"role": "assistant", "content": text, "refusal": None}
    content = {"message": message} if texts.body.chat else {"text": text}
    return {"index": place, **content, "logprobs": None, "finish_reason": FINISH[generation.ended]}


async def _stream(texts: Texts) -> AsyncIterator[bytes]:
    chat = texts.body.chat

    def event(choices: list[JsonObject], mark: JsonObject | None = None, **more: object) -> bytes:
        mark = mark or {"key_id": texts.key.id}
        return _event(_head(texts, chunk=True) | {"choices": choices, "alimark": mark} | more)

    try:
        if chat:
            start = {"delta": {"role": "assistant", "content": ""}, "logprobs": None, "finish_reason": None}
            yield event([{"index": place, **start} for place in range(texts.body.count)])
        async for piece in texts.pieces():
            content = {"delta": {"content": piece.text}} if chat else {"text": piece.text}
            finish = None if piece.generation is None else FINISH[piece.generation.ended]
            yield event([{"index": piece.place, **content, "logprobs": None, "finish_reason": finish}], piece.mark)
        if texts.body.wants_usage:
            yield event([], usage=await asyncio.to_thread(_usage, texts))
        yield _DONE
    except (AlimarkError, ApiError, TimeoutError) as error:
        yield _event({"error": texts.failure(error)})
    finally:
        texts.close()


def _event(content: JsonObject) -> bytes:
    kind = f"event: {content['type']}\n" if "type" in content else ""
    return f"{kind}data: {json.dumps(content)}\n\n".encode()


# Answers that the engine makes by itself, which are not marked


async def _unmarked_answer(body: ToWrite, service: Service, token: Token) -> Response | None:
    """Returns the engine's own answer where the request asks for JSON, a call of a tool or what marked text cannot have."""
    refused, structured = body.unmarkable(), body.structured()
    problem, setting = refused or structured, service.settings.unmarkable
    if problem is None:
        return None
    name, reason = problem
    if setting == "refuse" or (refused and setting != "pass-on") or not isinstance(service.llm, ForwardsRequests):
        message = f"Marked text cannot have what the field {name} asks for: {reason}. Leave the field out."
        raise ApiError(422, "unmarkable", message, param=name)
    passing = _PassingOn(service.llm, body, service, token, f"{name}: {reason}")
    headers = {"x-alimark-marked": "false"}
    if refused is None and reason == CALLS:
        answer = await passing.answer()
        if not _calls(answer):  # prose, which the service writes itself so that it is marked
            return None
        if not body.stream:
            return JSONResponse(passing.finished(answer), headers=headers)
        return StreamingResponse(passing.as_events(answer), media_type="text/event-stream", headers=headers)
    if body.stream:
        return StreamingResponse(passing.events(), media_type="text/event-stream", headers=headers)
    return JSONResponse(passing.finished(await passing.answer()), headers=headers)


def _calls(answer: JsonObject) -> bool:
    """Whether an answer of an engine calls a tool."""
    messages = [choice.get("message", {}) for choice in answer.get("choices", [])]
    items = [item.get("type") for item in answer.get("output", [])]
    return "function_call" in items or any(each.get("tool_calls") or each.get("function_call") for each in messages)


class _PassingOn:
    """A request that the engine answers by itself."""

    def __init__(self, llm: ForwardsRequests, body: ToWrite, service: Service, token: Token, reason: str) -> None:
        self._llm, self._body, self._service, self._token = llm, body, service, token
        self._mark = Mark(marked=False, reason=reason, key_id="").model_dump()
        self._sent = body.model_dump(exclude_unset=True, exclude=_OWN_FIELDS | {"stream", "stream_options"})

    async def answer(self) -> JsonObject:
        """Returns the whole answer."""
        llm, path, sent = self._llm, self._body.path, self._sent
        return await self._service.result(self._service.writers.ask(lambda: llm.forward(path, sent), self._token.id))

    def finished(self, answer: JsonObject) -> JsonObject:
        """Returns the answer as it is sent, and counts it."""
        texts = [choice.get("text") or choice.get("message", {}).get("content") for choice in answer.get("choices", [])]
        self._mark["words"] = [len(word_list(text or "")) for text in texts]
        self._mark["words_marked"] = [0] * len(texts)
        self._count(" ".join(filter(None, texts)))
        return self._named(answer)

    def _named(self, answer: JsonObject) -> JsonObject:
        # An engine may name its model by a path.
        return answer | {"model": self._service.llm.name, "alimark": self._mark}

    def _count(self, text: str) -> None:
        self._service.metrics.unmarked.inc()
        self._service.metrics.words.labels(self._token.tenant).inc(len(word_list(text)))

    async def as_events(self, answer: JsonObject) -> AsyncIterator[bytes]:
        """Yields a whole answer that calls tools as a stream."""
        answer = self.finished(answer)
        if self._body.path == "responses":
            yield _event({"type": "response.completed", "sequence_number": 0, "response": answer})
            return
        head = {name: answer.get(name) for name in ("id", "created", "model", "alimark")}
        head |= {"object": "chat.completion.chunk"}
        for choice in answer["choices"]:
            message = dict(choice["message"])
            if calls := message.get("tool_calls"):
                message["tool_calls"] = [call | {"index": number} for number, call in enumerate(calls)]
            content = {name: value for name, value in choice.items() if name != "message"}
            yield _event(head | {"choices": [content | {"delta": message}]})
        if self._body.wants_usage and answer.get("usage"):
            yield _event(head | {"choices": [], "usage": answer["usage"]})
        yield _DONE

    async def events(self) -> AsyncIterator[bytes]:
        """Yields the events of a streamed answer as the engine makes them."""
        llm, body, loop = self._llm, self._body, asyncio.get_running_loop()
        arrived: asyncio.Queue[JsonObject | None] = asyncio.Queue()
        options = {"stream_options": {"include_usage": True}} if body.wants_usage else {}

        def pass_on(event: JsonObject | None) -> None:
            with suppress(RuntimeError):  # the event loop was closed, because the server has stopped
                loop.call_soon_threadsafe(arrived.put_nowait, event)

        def work() -> None:
            for event in llm.forward_stream(body.path, self._sent | options):
                stop_if_cancelled()
                pass_on(event)

        future = self._service.writers.ask(work, self._token.id)
        future.add_done_callback(lambda _: pass_on(None))
        text, until = "", loop.time() + self._service.settings.timeout
        try:
            while (event := await asyncio.wait_for(arrived.get(), until - loop.time())) is not None:
                text += "".join(_text_in(choice) for choice in event.get("choices", []))
                yield _event(event | {"alimark": self._mark} if "type" in event else self._named(event))
            future.result()
            if body.path != "responses":
                yield _DONE
        except (AlimarkError, TimeoutError) as error:
            failed = self._service.timed_out([future]) if isinstance(error, TimeoutError) else to_api_error(error)
            yield _event({"error": failed.error})
        finally:
            future.cancel()
            self._count(text)


def _text_in(choice: JsonObject) -> str:
    return str(choice.get("text") or (choice.get("delta") or {}).get("content") or "")


# The Responses API


@router.post(
    "/v1/responses", summary="Answer a conversation in the format of the Responses API; the text is watermarked"
)
async def responses(body: CreateResponse, service: ServiceOf, token: GenerateToken) -> Response:
    return await respond(body, service, token, _response, _response_events)


def _content(texts: Texts, status: str, output: list[JsonObject]) -> JsonObject:
    body, sampling = texts.body, texts.sampling
    assert isinstance(body, CreateResponse)
    return {
        "id": texts.id, "object": "response", "created_at": texts.created, "status": status, "error": None,
        "incomplete_details": None, "instructions": body.instructions, "max_output_tokens": body.max_output_tokens,
        "model": texts.service.llm.name, "output": output, "parallel_tool_calls": True, "previous_response_id": None,
        "reasoning": {"effort": None, "summary": None}, "store": False, "temperature": sampling.temperature,
        "text": {"format": {"type": "text"}}, "tool_choice": "auto", "tools": [], "top_p": sampling.top_p,
        "truncation": "disabled", "usage": None, "user": body.user, "metadata": body.metadata or {},
        "alimark": {"key_id": texts.key.id},
    }  # fmt: skip


def _message(texts: Texts, status: str, content: list[JsonObject]) -> JsonObject:
    name = f"msg_{texts.id.removeprefix('resp_')}"
    return {"id": name, "type": "message", "status": status, "role": "assistant", "content": content}


def _part(text: str) -> JsonObject:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


async def _response(texts: Texts, generations: list[Generation], mark: JsonObject) -> JsonObject:
    """Returns the whole response."""
    [generation] = generations
    read, written = await asyncio.to_thread(texts.usage)
    complete = FINISH[generation.ended] == "stop"
    status = "completed" if complete else "incomplete"
    usage = {
        "input_tokens": read, "input_tokens_details": {"cached_tokens": 0},
        "output_tokens": written, "output_tokens_details": {"reasoning_tokens": 0}, "total_tokens": read + written,
    }  # fmt: skip
    details = None if complete else {"reason": "max_output_tokens"}
    output = [_message(texts, status, [_part(generation.text)])]
    return _content(texts, status, output) | {"incomplete_details": details, "usage": usage, "alimark": mark}


async def _response_events(texts: Texts) -> AsyncIterator[bytes]:
    numbers = count()

    def event(kind: str, **content: object) -> bytes:
        return _event({"type": kind, "sequence_number": next(numbers), **content})

    begun = _content(texts, "in_progress", [])
    item = _message(texts, "in_progress", [])
    place = {"item_id": item["id"], "output_index": 0, "content_index": 0}
    try:
        yield event("response.created", response=begun)
        yield event("response.in_progress", response=begun)
        yield event("response.output_item.added", output_index=0, item=item)
        yield event("response.content_part.added", part=_part(""), **place)
        async for piece in texts.pieces():
            if piece.text:
                yield event("response.output_text.delta", delta=piece.text, logprobs=[], alimark=piece.mark, **place)
            if piece.generation is not None:
                text = piece.generation.text
                response = await _response(texts, [piece.generation], piece.mark)
                yield event("response.output_text.done", text=text, logprobs=[], **place)
                yield event("response.content_part.done", part=_part(text), **place)
                yield event("response.output_item.done", output_index=0, item=response["output"][0])
                yield event(f"response.{response['status']}", response=response)
    except (AlimarkError, ApiError, TimeoutError) as error:
        failure = texts.failure(error)
        yield event("error", code=failure["code"], message=failure["message"], param=None)
    finally:
        texts.close()
