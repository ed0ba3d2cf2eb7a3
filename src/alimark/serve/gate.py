"""ASGI middleware of all requests: authentication, limits, security headers, error responses, metrics and the log.

It is plain ASGI and not FastAPI's middleware, so that the body of a request without a valid token is never read, and a
streamed response counts as a request in progress until its end.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
import secrets
import time
import traceback
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass, field
from typing import Any

from starlette.responses import JSONResponse

from alimark.core._util.json_types import JsonObject
from alimark.errors import (
    AlimarkError,
    AttackError,
    ContextFull,
    KeyFileError,
    LimitError,
    LLMError,
    ModelError,
    TextError,
)
from alimark.serve.auth import Allowance, Token, Tokens
from alimark.serve.checking import QueueFull
from alimark.serve.database import DatabaseError
from alimark.serve.metrics import Metrics
from alimark.serve.ring import NoKey, UnknownKey
from alimark.serve.settings import Settings

log = logging.getLogger("alimark.serve")

Message = MutableMapping[str, Any]  # the types of the ASGI specification
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "form-action 'none'; frame-ancestors 'none'; base-uri 'none'",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), microphone=(), geolocation=()",
    "cache-control": "no-store",
}


MAX_UNANNOUNCED_BODY = 64 * 1024
"""The largest body without a Content-Length: a server spends time on each chunk, and a client may send single bytes."""
MAX_VALUES = 10_000
"""The most values in a JSON body: the items of its lists and the fields of its objects."""
_JSON_STRING = re.compile(rb'"(?:[^"\\]|\\.)*+"?', re.DOTALL)


class AnyTextResponse(JSONResponse):
    """A JSON response whose texts may contain half a surrogate pair: JSON can write it, as an escape, but UTF-8 cannot."""

    def render(self, content: object) -> bytes:
        try:
            return super().render(content)
        except UnicodeEncodeError:
            return json.dumps(content, allow_nan=False).encode()


class ApiError(Exception):
    """An error response in the format of the OpenAI protocol.

    Args:
        status: The HTTP status.
        code: A short name of the error, for programs.
        message: A sentence that says what is wrong and how to fix it.
        retry_after: Seconds after which the client may try again.
        param: The field of the request that is wrong.
    """

    def __init__(
        self, status: int, code: str, message: str, *, retry_after: int | None = None, param: str | None = None
    ) -> None:
        super().__init__(message)
        self.status, self.code, self.message, self.param = status, code, message, param
        self.headers = {} if retry_after is None else {"retry-after": str(retry_after)}
        if status == 401:
            self.headers["www-authenticate"] = "Bearer"

    @property
    def error(self) -> JsonObject:
        """The content of the field `error`."""
        kind = "server_error" if self.status >= 500 else "invalid_request_error"
        return {"message": self.message, "type": kind, "code": self.code, "param": self.param}

    @property
    def body(self) -> bytes:
        """The body of the response."""
        # Plain ASCII, because messages repeat field names of the client, which may contain lone surrogates.
        return json.dumps({"error": self.error}).encode()


_STATUS: tuple[tuple[type[AlimarkError], int, str], ...] = (
    (QueueFull, 429, "queue_full"),
    (NoKey, 409, "no_key"),
    (UnknownKey, 404, "no_such_key"),
    (DatabaseError, 503, "database"),
    (LimitError, 413, "too_much"),
    (TextError, 422, "text"),
    (AttackError, 422, "attack"),
    (LLMError, 502, "model"),
    (ModelError, 503, "model"),
    (KeyFileError, 409, "key"),
)


def to_api_error(error: AlimarkError) -> ApiError:
    """Returns the error response for an error of the library."""
    message = _sentence(_without_address(error))
    for kind, status, code in _STATUS:
        if isinstance(error, kind):
            return ApiError(status, code, message, retry_after=1 if status in (429, 503) else None)
    return ApiError(422, "invalid", message)


def _without_address(error: AlimarkError) -> str:
    """Returns the message of an error for a client, who must not learn the address of the engine's server."""
    message = str(error)
    if not isinstance(error, LLMError) or "://" not in message:
        return message
    log.warning("the engine failed", extra={"reason": message})
    if isinstance(error, ContextFull):
        return "the text does not fit into the context of the model; send a shorter prompt, or ask for fewer sentences"
    return "the model did not answer as it should; try again later (the operator's log says what is wrong)"


def _sentence(message: str) -> str:
    """Turns an exception's message, which starts in lower case and has no full stop, into a sentence."""
    if message.partition(" ")[0].isalpha():  # not a path, an address or the name of a field
        message = message[0].upper() + message[1:]
    return f"{message}." if message[-1:].isalnum() else message


@dataclass
class RequestInfo:
    """What the middleware knows about a request; endpoints find it as `request.state.info`."""

    id: str = field(default_factory=lambda: secrets.token_hex(8))
    started: float = field(default_factory=time.perf_counter)
    token: Token | None = None
    counted: bool = False
    body_unread: bool = False
    """Whether the client may still send a body that nobody reads."""
    status: int = 0


class Gate:
    """The middleware. Paths under /v1, and /metrics unless it is open, need a token."""

    def __init__(self, app: App, *, settings: Settings, tokens: Tokens, allowance: Allowance, metrics: Metrics) -> None:
        self._app, self._settings, self._tokens = app, settings, tokens
        self._allowance, self._metrics = allowance, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        info = RequestInfo()
        scope.setdefault("state", {})["info"] = info

        async def answer(message: Message) -> None:
            if message["type"] == "http.response.start":
                info.status = message["status"]
                headers = list(message.get("headers", ()))
                present = {name.lower() for name, _ in headers}
                defaults = {**HEADERS, "x-request-id": info.id}
                if info.body_unread:
                    defaults["connection"] = "close"
                headers += [(n.encode(), v.encode()) for n, v in defaults.items() if n.encode() not in present]
                message["headers"] = headers
            await send(message)

        try:
            await self._handle(scope, receive, answer, info)
        except ApiError as error:
            await _send_error(error, answer, info)
        except AlimarkError as error:
            await _send_error(to_api_error(error), answer, info)
        except Exception as error:
            log.error(
                "unexpected error", extra={"request": info.id, "error": type(error).__name__, "at_lines": _lines(error)}
            )
            message = (
                f"The server failed unexpectedly. The operator finds the cause in the log by the request id {info.id}."
            )
            await _send_error(ApiError(500, "internal", message), answer, info)
        finally:
            if info.counted and info.token:
                self._allowance.leave(info.token)
            self._count(scope, info)

    async def _handle(self, scope: Scope, receive: Receive, send: Send, info: RequestInfo) -> None:
        if self._needs_token(scope["path"]):
            info.token = self._authenticate(scope)
            if refusal := self._allowance.enter(info.token):
                self._metrics.refused.labels("rate").inc()
                raise ApiError(429, "rate_limited", refusal.message, retry_after=refusal.retry_after)
            info.counted = True
            body = await self._body(scope, receive)
            if b"json" in dict(scope["headers"]).get(b"content-type", b"json"):
                _check_values(body)
        else:  # these paths take no body, so an unknown client's is not read
            headers = dict(scope["headers"])
            info.body_unread = b"transfer-encoding" in headers or headers.get(b"content-length", b"0") != b"0"
            body = b""
        await self._app(scope, _replay(body, receive), send)

    def _needs_token(self, path: str) -> bool:
        return path.startswith("/v1/") or path == "/v1" or (path == "/metrics" and not self._settings.open_metrics)

    def _authenticate(self, scope: Scope) -> Token:
        given = [value for name, value in scope["headers"] if name == b"authorization"]
        kind, _, secret = (given[0] if len(given) == 1 else b"").decode("latin-1").partition(" ")
        token = self._tokens.find(secret.strip()) if kind.lower() == "bearer" else None
        if token is None:
            raise ApiError(
                401,
                "no_token",
                "The token is missing or unknown. Send a valid one in the header Authorization: Bearer alm_... "
                "The operator makes one with the command `alimark serve token --role generate --role detect`.",
            )
        return token

    async def _body(self, scope: Scope, receive: Receive) -> bytes:
        """Reads the whole body before any other work, so that a slow or endless body costs neither model time nor memory."""
        most = self._settings.max_body
        too_large = ApiError(
            413,
            "body_too_large",
            f"The request body is larger than {most:,} bytes, which is the limit. Send it in parts.",
        )
        headers = dict(scope["headers"])
        announced = headers.get(b"content-length", b"0")
        if not announced.isdigit() or int(announced[:20]) > most:
            self._metrics.refused.labels("body").inc()
            raise too_large
        body, unannounced = bytearray(), b"content-length" not in headers
        try:
            async with asyncio.timeout(self._settings.body_timeout):
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise ApiError(
                            400, "gone", "The connection was closed before the whole body arrived. Send it again."
                        )
                    body += message.get("body", b"")
                    if len(body) > most:
                        self._metrics.refused.labels("body").inc()
                        raise too_large
                    if unannounced and len(body) > MAX_UNANNOUNCED_BODY:
                        self._metrics.refused.labels("body").inc()
                        raise _NO_LENGTH
                    if not message.get("more_body"):
                        return bytes(body)
        except TimeoutError:
            late = f"The body did not arrive within {self._settings.body_timeout:g} s. Send it again, or send less."
            raise ApiError(408, "body_too_slow", late) from None

    def _count(self, scope: Scope, info: RequestInfo) -> None:
        """Counts and logs a request by its route; the path is not logged, because clients can put anything into it."""
        route = getattr(scope.get("route"), "path", "none")
        took = time.perf_counter() - info.started
        self._metrics.requests.labels(route, _method(scope), str(info.status)).inc()
        self._metrics.seconds.labels(route).observe(took)
        log.info(
            "request",
            extra={
                "request": info.id, "method": _method(scope), "route": route, "status": info.status,
                "ms": round(1000 * took, 1), "token": info.token.id if info.token else "",
            },
        )  # fmt: skip


_NO_LENGTH = ApiError(
    411,
    "length_required",
    f"A body of more than {MAX_UNANNOUNCED_BODY:,} bytes needs the header Content-Length. Send it with its length.",
)


def _check_values(body: bytes) -> None:
    """Raises an ApiError for a JSON body with too many values, before anything is parsed or validated."""
    marks = sum(body.count(mark) for mark in (b",", b"[", b"{"))
    if marks > MAX_VALUES:  # most of them may be part of a text
        rest = _JSON_STRING.sub(b"", body)
        marks = sum(rest.count(mark) for mark in (b",", b"[", b"{"))
    if marks > MAX_VALUES:
        message = f"The request has more than {MAX_VALUES:,} values, which is the limit. Send several requests."
        raise ApiError(413, "too_many_values", message)


def _method(scope: Scope) -> str:
    known = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
    return scope["method"] if scope["method"] in known else "other"


def _replay(body: bytes, receive: Receive) -> Receive:
    """Returns a `receive` function that delivers a body which has been read already."""
    delivered = False

    async def receive_again() -> Message:
        nonlocal delivered
        if delivered:
            return await receive()
        delivered = True
        return {"type": "http.request", "body": body, "more_body": False}

    return receive_again


async def _send_error(error: ApiError, send: Send, info: RequestInfo) -> None:
    if info.status:
        return  # the response has begun; the client sees that it ends early
    headers = {"content-type": "application/json", "content-length": str(len(error.body)), **error.headers}
    if error.status in (401, 408, 411, 413):
        headers["connection"] = "close"  # the rest of the body is not read
    raw = [(name.encode(), value.encode()) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": error.status, "headers": raw})
    await send({"type": "http.response.body", "body": error.body})


def _lines(error: BaseException) -> list[str]:
    """Returns the places of a traceback without the message, which may repeat what a client sent."""
    return [f"{frame.filename}:{frame.lineno} {frame.name}" for frame in traceback.extract_tb(error.__traceback__)]


class JsonLines(logging.Formatter):
    """Formats log records as lines of JSON. Exceptions appear by type and place, because messages may contain a text."""

    _standard = frozenset(vars(logging.makeLogRecord({}))) | {"message", "color_message"}

    def format(self, record: logging.LogRecord) -> str:
        content = {"at": round(record.created, 3), "level": record.levelname.lower(), "event": record.getMessage()}
        content |= {name: value for name, value in vars(record).items() if name not in self._standard}
        if record.exc_info and record.exc_info[1]:
            content |= {"error": type(record.exc_info[1]).__name__, "at_lines": _lines(record.exc_info[1])}
        return json.dumps(content, default=str)
