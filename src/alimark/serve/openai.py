"""The OpenAI protocol: models, completions and chat completions, in one response or streamed sentence by sentence.

Text is watermarked. A client chooses the length and the sampling within the operator's limits, but not the number of
candidates. What marked text cannot have (tools, JSON, a temperature of 0) is refused with the reason or, if the operator wants
it so, passed on unmarked with a flag. `responses` has the Responses API.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence

from fastapi import APIRouter
from fastapi.responses import JSONResponse, Response, StreamingResponse

from alimark.core._util.json_types import JsonObject
from alimark.core.generation.api import Generation
from alimark.errors import AlimarkError
from alimark.serve.auth import Token
from alimark.serve.bodies import BoundedRoute
from alimark.serve.errors import ApiError
from alimark.serve.openai_schemas import ChatCompletion, Completion, ToWrite
from alimark.serve.passing_on import begin
from alimark.serve.service import GenerateToken, Service, ServiceOf
from alimark.serve.texts import FINISH, Texts

router = APIRouter(tags=["writing"], route_class=BoundedRoute)


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
    return await _respond(body, service, token)


@router.post("/v1/chat/completions", summary="Answer a chat; the text is watermarked")
async def chat_completions(body: ChatCompletion, service: ServiceOf, token: GenerateToken) -> Response:
    return await _respond(body, service, token)


async def _respond(body: ToWrite, service: Service, token: Token) -> Response:
    texts = await begin(body, service, token)
    if isinstance(texts, Response):
        return texts
    if body.stream:
        events = _stream(texts, body.wants_usage)
        return StreamingResponse(events, media_type="text/event-stream", headers=texts.headers())
    generations, mark = await texts.finished()
    choices = [_choice(texts, place, generation) for place, generation in enumerate(generations)]
    usage_of_texts = await asyncio.to_thread(_usage, texts)
    content = _head(texts, chunk=False) | {"choices": choices, "usage": usage_of_texts, "alimark": mark}
    return JSONResponse(content, headers=texts.headers(mark))


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


async def _stream(texts: Texts, include_usage: bool) -> AsyncIterator[bytes]:
    chat = texts.body.chat

    def event(choices: Sequence[JsonObject], mark: JsonObject | None = None, **more: object) -> bytes:
        content = _head(texts, chunk=True) | {"choices": list(choices), "alimark": mark or {"key_id": texts.key.id}}
        return b"data: " + json.dumps(content | more).encode() + b"\n\n"

    try:
        if chat:
            begin = {"delta": {"role": "assistant", "content": ""}, "logprobs": None, "finish_reason": None}
            yield event([{"index": place, **begin} for place in range(texts.body.count)])
        async for piece in texts.pieces():
            content = {"delta": {"content": piece.text}} if chat else {"text": piece.text}
            finish = None if piece.generation is None else FINISH[piece.generation.ended]
            yield event([{"index": piece.place, **content, "logprobs": None, "finish_reason": finish}], piece.mark)
        if include_usage:
            yield event([], usage=await asyncio.to_thread(_usage, texts))
        yield b"data: [DONE]\n\n"
    except (AlimarkError, ApiError, TimeoutError) as error:
        yield b"data: " + json.dumps({"error": texts.failure(error)}).encode() + b"\n\n"
    finally:
        texts.close()
