"""OpenAI's Responses API for text, in one response or streamed. Responses are not stored, so none can be referred to."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from itertools import count

from fastapi import APIRouter
from fastapi.responses import Response

from alimark.core._util.json_types import JsonObject
from alimark.core.generation.api import Generation
from alimark.errors import AlimarkError
from alimark.serve.bodies import BoundedRoute
from alimark.serve.errors import ApiError
from alimark.serve.openai import respond
from alimark.serve.openai_schemas import CreateResponse
from alimark.serve.service import GenerateToken, ServiceOf
from alimark.serve.texts import FINISH, Texts

router = APIRouter(tags=["writing"], route_class=BoundedRoute)


@router.post(
    "/v1/responses", summary="Answer a conversation in the format of the Responses API; the text is watermarked"
)
async def responses(body: CreateResponse, service: ServiceOf, token: GenerateToken) -> Response:
    return await respond(body, service, token, _finished, _stream)


def _response(texts: Texts, status: str, output: list[JsonObject]) -> JsonObject:
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


async def _finished(texts: Texts, generations: list[Generation], mark: JsonObject) -> JsonObject:
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
    return _response(texts, status, output) | {"incomplete_details": details, "usage": usage, "alimark": mark}


async def _stream(texts: Texts) -> AsyncIterator[bytes]:
    numbers = count()

    def event(kind: str, **content: object) -> bytes:
        data = json.dumps({"type": kind, "sequence_number": next(numbers), **content})
        return f"event: {kind}\ndata: {data}\n\n".encode()

    begun = _response(texts, "in_progress", [])
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
                response = await _finished(texts, [piece.generation], piece.mark)
                yield event("response.output_text.done", text=text, logprobs=[], **place)
                yield event("response.content_part.done", part=_part(text), **place)
                yield event("response.output_item.done", output_index=0, item=response["output"][0])
                yield event(f"response.{response['status']}", response=response)
    except (AlimarkError, ApiError, TimeoutError) as error:
        failure = texts.failure(error)
        yield event("error", code=failure["code"], message=failure["message"], param=None)
    finally:
        texts.close()
