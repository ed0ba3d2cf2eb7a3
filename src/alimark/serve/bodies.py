"""The body of a request: read and parsed once, within limits on its time, bytes, values and depth.

FastAPI takes the value that was parsed here and never parses by itself, so nothing is parsed that was not counted before,
whatever headers and encoding a client sends.
"""

import asyncio
import json
import re
from collections.abc import Callable, Coroutine

from fastapi import Request, Response
from fastapi.routing import APIRoute
from starlette.requests import ClientDisconnect

from alimark.serve.errors import ApiError

MAX_UNANNOUNCED_BODY = 64 * 1024
"""The largest body without a Content-Length: a server spends time on each chunk, and a client may send single bytes."""
MAX_VALUES = 10_000
"""The most values in a JSON body: the items of its lists and the fields of its objects."""
MAX_DEPTH = 100
"""How deep lists and objects of a JSON body may be nested."""
_LARGE = 64 * 1024
"""Bytes above which a body is parsed in a thread, so that the event loop can answer others meanwhile."""
_JSON_TYPE = re.compile(r'application/json\s*(?:;\s*charset="?utf-8"?\s*)?', re.IGNORECASE)
_TOKEN = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?|[][{},]', re.DOTALL)


class BoundedRoute(APIRoute):
    """A route that gets its requests with a body that was read and, where it takes JSON, parsed."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[None, None, Response]]:
        handle, takes_json = super().get_route_handler(), self.body_field is not None

        async def handle_bounded(request: Request) -> Response:
            body = await _read(request)
            if not takes_json or not body:
                return await handle(_ReadRequest(request, body, None))
            types = request.headers.getlist("content-type")
            if len(types) != 1 or not _JSON_TYPE.fullmatch(types[0].strip()):
                message = "The body must be JSON in UTF-8. Send it with one header Content-Type: application/json."
                raise ApiError(415, "content_type", message)
            value = await asyncio.to_thread(parse, body) if len(body) > _LARGE else parse(body)
            return await handle(_ReadRequest(request, body, value))

        return handle_bounded


class _ReadRequest(Request):
    """A request whose body was read and parsed already."""

    def __init__(self, request: Request, body: bytes, value: object) -> None:
        super().__init__(request.scope, request.receive)
        self._bytes, self._value = body, value

    async def body(self) -> bytes:
        return self._bytes

    async def json(self) -> object:
        return self._value


async def _read(request: Request) -> bytes:
    """Reads the whole body, so that a slow or endless one costs neither model time nor memory."""
    service = request.app.state.service
    most, seconds = service.settings.max_body, service.settings.body_timeout
    announced = request.headers.get("content-length")
    limit = min(most, MAX_UNANNOUNCED_BODY) if announced is None else most
    body = bytearray()
    try:
        if announced is not None and int(announced[:20]) > most:
            raise _too_large(limit, most)
        async with asyncio.timeout(seconds):
            async for chunk in request.stream():
                body += chunk
                if len(body) > limit:
                    raise _too_large(limit, most)
    except ApiError:
        service.metrics.refused.labels("body").inc()
        raise
    except TimeoutError:
        message = f"The body did not arrive within {seconds:g} s. Send it again, or send less."
        raise ApiError(408, "body_too_slow", message) from None
    except ClientDisconnect:
        message = "The connection was closed before the whole body arrived. Send it again."
        raise ApiError(400, "gone", message) from None
    request.state.info.body_unread = False
    return bytes(body)


def _too_large(limit: int, most: int) -> ApiError:
    if limit < most:
        message = f"A body of more than {limit:,} bytes needs the header Content-Length. Send it with its length."
        return ApiError(411, "length_required", message)
    message = f"The request body is larger than {most:,} bytes, which is the limit. Send it in parts."
    return ApiError(413, "body_too_large", message)


def parse(body: bytes) -> object:
    """Parses JSON in UTF-8; raises an ApiError where it has too many values, is nested too deeply or is no JSON."""
    _count(body)
    try:
        return json.loads(body.decode())
    except json.JSONDecodeError as error:
        message = f"The body is not valid JSON (see character {error.pos}). Send a JSON object."
        raise ApiError(422, "invalid", message) from None
    except ValueError:  # not UTF-8, or a number of thousands of digits
        raise ApiError(400, "http", "The body is not valid JSON in UTF-8. Send a JSON object.") from None


def _count(body: bytes) -> None:
    """Raises an ApiError for a body with too many values. Stops at the first one too many, so its time is bounded, too."""
    values = depth = 0
    for number, token in enumerate(_TOKEN.finditer(body)):
        mark = body[token.start()]
        values += mark in b"[{,"
        depth += (mark in b"[{") - (mark in b"]}")
        # A value has at most two strings, its name and itself, and one closing bracket: what has more is no JSON.
        if values > MAX_VALUES or number > 5 * MAX_VALUES or depth > MAX_DEPTH:
            break
    else:
        return
    message = (
        f"The request has more than {MAX_VALUES:,} values, or lists nested deeper than {MAX_DEPTH}, which are the limits. "
        "Send several requests."
    )
    raise ApiError(413, "too_many_values", message)
