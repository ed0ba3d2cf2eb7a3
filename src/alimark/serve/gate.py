"""What every request passes: who is it, is it too large or too slow, safe headers, one line of log, no error unanswered.

A plain ASGI layer, so that the body of a stranger's request is not read and a streamed answer counts until its end.
"""

from __future__ import annotations

import asyncio
import json
import logging
import secrets
import time
import traceback
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass, field
from typing import Any

from alimark.errors import AlimarkError, AttackError, KeyFileError, LimitError, LLMError, ModelError, TextError
from alimark.serve.auth import Allowance, Token, Tokens
from alimark.serve.checking import QueueFull
from alimark.serve.database import DatabaseError
from alimark.serve.metrics import Metrics
from alimark.serve.ring import NoKey, UnknownKey
from alimark.serve.settings import Settings

log = logging.getLogger("alimark.serve")

Message = MutableMapping[str, Any]
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


class Refused(Exception):
    """An answer that is an error, in the shape of the OpenAI protocol."""

    def __init__(
        self, status: int, code: str, message: str, *, retry_after: int | None = None, param: str | None = None
    ) -> None:
        super().__init__(message)
        self.status, self.code, self.message, self.param = status, code, message, param
        self.headers = {} if retry_after is None else {"retry-after": str(retry_after)}
        if status == 401:
            self.headers["www-authenticate"] = "Bearer"

    @property
    def error(self) -> dict[str, Any]:
        kind = "server_error" if self.status >= 500 else "invalid_request_error"
        return {"message": self.message, "type": kind, "code": self.code, "param": self.param}

    @property
    def body(self) -> bytes:
        # ASCII: a client's own field names come back in messages, and may hold what is no text.
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


def refusal(error: AlimarkError) -> Refused:
    for kind, status, code in _STATUS:
        if isinstance(error, kind):
            return Refused(status, code, str(error), retry_after=1 if status in (429, 503) else None)
    return Refused(422, "invalid", str(error))


@dataclass
class Passing:
    """One request on its way."""

    id: str = field(default_factory=lambda: secrets.token_hex(8))
    started: float = field(default_factory=time.perf_counter)
    token: Token | None = None
    counted: bool = False
    status: int = 0


class Gate:
    """`open_paths` are answered without a token, and so is everything outside /v1."""

    def __init__(self, app: App, *, settings: Settings, tokens: Tokens, allowance: Allowance, metrics: Metrics) -> None:
        self._app, self._settings, self._tokens = app, settings, tokens
        self._allowance, self._metrics = allowance, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        passing = Passing()
        scope.setdefault("state", {})["passing"] = passing

        async def answer(message: Message) -> None:
            if message["type"] == "http.response.start":
                passing.status = message["status"]
                given = {name.lower() for name, _ in message.get("headers", ())}
                own = {name.encode(): value.encode() for name, value in HEADERS.items()}
                own[b"x-request-id"] = passing.id.encode()
                message["headers"] = [*message.get("headers", ()), *((n, v) for n, v in own.items() if n not in given)]
            await send(message)

        try:
            await self._pass(scope, receive, answer, passing)
        except Refused as refused:
            await _refuse(refused, answer, passing)
        except AlimarkError as error:
            await _refuse(refusal(error), answer, passing)
        except Exception as error:
            log.error("failed", extra={"request": passing.id, "error": type(error).__name__, "at_lines": _lines(error)})
            await _refuse(
                Refused(500, "internal", f"something went wrong here; the log names it as {passing.id}"),
                answer,
                passing,
            )
        finally:
            if passing.counted and passing.token:
                self._allowance.leave(passing.token)
            self._note(scope, passing)

    async def _pass(self, scope: Scope, receive: Receive, send: Send, passing: Passing) -> None:
        if self._guarded(scope["path"]):
            passing.token = self._who(scope)
            if no := self._allowance.enter(passing.token):
                self._metrics.refused.labels("rate").inc()
                raise Refused(429, "rate_limited", no.message, retry_after=no.retry_after)
            passing.counted = True
        body = await self._body(scope, receive)
        await self._app(scope, _replaying(body, receive), send)

    def _guarded(self, path: str) -> bool:
        return path.startswith("/v1/") or path == "/v1" or (path == "/metrics" and not self._settings.open_metrics)

    def _who(self, scope: Scope) -> Token:
        given = [value for name, value in scope["headers"] if name == b"authorization"]
        kind, _, secret = (given[0] if len(given) == 1 else b"").decode("latin-1").partition(" ")
        token = self._tokens.find(secret.strip()) if kind.lower() == "bearer" else None
        if token is None:
            raise Refused(401, "no_token", "send a token that this service knows: Authorization: Bearer alm_...")
        return token

    async def _body(self, scope: Scope, receive: Receive) -> bytes:
        """All of it, before anything is done: a slow or endless one costs neither a model's time nor memory."""
        most = self._settings.max_body
        too_large = Refused(413, "body_too_large", f"a request has at most {most:,} bytes")
        announced = dict(scope["headers"]).get(b"content-length", b"0")
        if not announced.isdigit() or int(announced[:20]) > most:
            self._metrics.refused.labels("body").inc()
            raise too_large
        parts, size = [], 0
        try:
            async with asyncio.timeout(self._settings.body_timeout):
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise Refused(400, "gone", "the request ended early")
                    parts.append(message.get("body", b""))
                    size += len(parts[-1])
                    if size > most:
                        self._metrics.refused.labels("body").inc()
                        raise too_large
                    if not message.get("more_body"):
                        return b"".join(parts)
        except TimeoutError:
            raise Refused(408, "body_too_slow", "the request's body took too long to arrive") from None

    def _note(self, scope: Scope, passing: Passing) -> None:
        """The route and not the path, which is the client's to fill."""
        route = getattr(scope.get("route"), "path", "none")
        took = time.perf_counter() - passing.started
        self._metrics.requests.labels(route, _method(scope), str(passing.status)).inc()
        self._metrics.seconds.labels(route).observe(took)
        log.info(
            "request",
            extra={
                "request": passing.id, "method": _method(scope), "route": route, "status": passing.status,
                "ms": round(1000 * took, 1), "token": passing.token.id if passing.token else "",
            },
        )  # fmt: skip


def _method(scope: Scope) -> str:
    known = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
    return scope["method"] if scope["method"] in known else "other"


def _replaying(body: bytes, receive: Receive) -> Receive:
    given = False

    async def again() -> Message:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return again


async def _refuse(refused: Refused, send: Send, passing: Passing) -> None:
    if passing.status:
        return  # the answer had begun: it ends early, which the client sees
    headers = {"content-type": "application/json", "content-length": str(len(refused.body)), **refused.headers}
    if refused.status in (401, 408, 413):
        headers["connection"] = "close"  # what is left of the body is not read
    raw = [(name.encode(), value.encode()) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": refused.status, "headers": raw})
    await send({"type": "http.response.body", "body": refused.body})


def _lines(error: BaseException) -> list[str]:
    """Where it went wrong, and nothing of what it said: messages may repeat what a client sent."""
    return [f"{frame.filename}:{frame.lineno} {frame.name}" for frame in traceback.extract_tb(error.__traceback__)]


class JsonLines(logging.Formatter):
    """A log of lines of JSON. Exceptions are told by kind and place, for their messages may hold a text."""

    _own = frozenset(vars(logging.makeLogRecord({}))) | {"message", "color_message"}

    def format(self, record: logging.LogRecord) -> str:
        content = {"at": round(record.created, 3), "level": record.levelname.lower(), "event": record.getMessage()}
        content |= {name: value for name, value in vars(record).items() if name not in self._own}
        if record.exc_info and record.exc_info[1]:
            content |= {"error": type(record.exc_info[1]).__name__, "at_lines": _lines(record.exc_info[1])}
        return json.dumps(content, default=str)
