"""The beginning of a request for text; what marked text cannot fulfil is refused with the reason, or passed on unmarked.

The setting `unmarkable` chooses. An answer that was passed on says so in its field `alimark` and in the header
`X-Alimark-Marked`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

from fastapi.responses import JSONResponse, Response, StreamingResponse

from alimark.core._util.json_types import JsonObject
from alimark.core.llm.base import ForwardsRequests
from alimark.serve.auth import Token
from alimark.serve.errors import ApiError
from alimark.serve.openai_schemas import Mark, ToWrite
from alimark.serve.service import Service
from alimark.serve.texts import Texts

_OWN_FIELDS = {"sentences", "payload"}
"""Fields that only this service knows."""


async def begin(body: ToWrite, service: Service, token: Token) -> Texts | Response:
    """Starts the texts of a request; returns the engine's own answer to one that marked text cannot fulfil.

    Raises:
        ApiError: The request cannot be fulfilled, and the operator does not let such requests pass.
    """
    service.check_model(body.model)
    if (answer := await _unmarked_answer(body, service, token.id)) is not None:
        return answer
    texts = Texts(body, service, token)
    await texts.start()
    return texts


async def _unmarked_answer(body: ToWrite, service: Service, owner: str) -> Response | None:
    problem = body.unmarkable() or _too_predictable(body, service)
    if problem is None:
        return None
    name, reason = problem
    if service.settings.unmarkable == "refuse":
        message = f"Marked text cannot have what the field {name} asks for: {reason}. Leave the field out."
        raise ApiError(422, "unmarkable", message, param=name)
    if body.stream and body.path == "responses":
        message = "A response that is passed on unmarked cannot be streamed. Leave out the field stream."
        raise ApiError(422, "unmarkable", message, param="stream")
    sent = body.model_dump(exclude_unset=True, exclude=_OWN_FIELDS | {"stream", "stream_options"})
    llm = service.llm
    assert isinstance(llm, ForwardsRequests), "checked when the service was made"
    answer: JsonObject = await service.result(service.writers.ask(lambda: llm.forward(body.path, sent), owner))
    service.metrics.unmarked.inc()
    mark = Mark(marked=False, reason=f"{name}: {reason}", key_id="").model_dump()
    headers = {"x-alimark-marked": "false"}
    if body.stream:
        events = _events(answer, mark, include_usage=body.wants_usage)
        return StreamingResponse(events, media_type="text/event-stream", headers=headers)
    return JSONResponse(answer | {"alimark": mark}, headers=headers)


def _too_predictable(body: ToWrite, service: Service) -> tuple[str, str] | None:
    """Returns the field by which all candidates would be alike, and the reason."""
    limits = service.settings
    for name, value, least in (
        ("temperature", body.temperature, limits.least_temperature), ("top_p", body.top_p, limits.least_top_p)
    ):  # fmt: skip
        if value is not None and value < least:
            return name, f"with a {name} below {least:g} all candidates would be alike; use {least:g} or more"
    return None


def _events(answer: JsonObject, mark: JsonObject, *, include_usage: bool) -> Iterator[bytes]:
    """Yields a whole answer as a stream of one event for each choice and, where it is asked for, one for the usage."""
    head = {name: answer.get(name) for name in ("id", "created", "model")} | {"alimark": mark}
    chat = answer.get("object") == "chat.completion"
    head["object"] = "chat.completion.chunk" if chat else "text_completion"
    for choice in answer.get("choices", []):
        content = dict(choice)
        if "message" in content:
            message = dict(content.pop("message"))
            calls = message.get("tool_calls") or []
            if calls:
                message["tool_calls"] = [call | {"index": number} for number, call in enumerate(calls)]
            content["delta"] = message
        yield b"data: " + json.dumps(head | {"choices": [content]}).encode() + b"\n\n"
    if include_usage and answer.get("usage"):
        yield b"data: " + json.dumps(head | {"choices": [], "usage": answer["usage"]}).encode() + b"\n\n"
    yield b"data: [DONE]\n\n"
