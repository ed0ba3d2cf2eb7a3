"""ASGI middleware of all requests: authentication, rate limits, security headers, error responses, metrics and the log.

It is plain ASGI and not FastAPI's middleware, so that the body of a request without a valid token is never read, and a
streamed response counts as a request in progress until its end. `bodies` reads and bounds the bodies of the others.
"""

import logging
import secrets
import time
from dataclasses import dataclass, field

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from alimark.errors import AlimarkError
from alimark.serve.auth import PUBLIC, Allowance, Token, public_client
from alimark.serve.errors import ApiError, to_api_error
from alimark.serve.service import Service

log = logging.getLogger("alimark.serve")

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
_METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")


@dataclass
class RequestInfo:
    """What the middleware knows about a request; endpoints find it as `request.state.info`."""

    id: str = field(default_factory=lambda: secrets.token_hex(8))
    started: float = field(default_factory=time.perf_counter)
    token: Token | None = None
    counted: list[tuple[Allowance, Token]] = field(default_factory=list)
    body_unread: bool = False
    """Whether the client may still send a body that nobody reads."""
    status: int = 0


class Gate:
    """The middleware. Paths under /v1, and /metrics unless it is open, need a token."""

    def __init__(self, app: ASGIApp, *, service: Service) -> None:
        self._app, self._service = app, service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        has_body = "transfer-encoding" in headers or headers.get("content-length", "0") != "0"
        info = RequestInfo(body_unread=has_body)
        scope.setdefault("state", {})["info"] = info

        async def answer(message: Message) -> None:
            if message["type"] == "http.response.start":
                info.status = message["status"]
                headers = MutableHeaders(scope=message)
                ends = {"connection": "close"} if info.body_unread else {}
                for name, value in {**HEADERS, "x-request-id": info.id, **ends}.items():
                    headers.setdefault(name, value)
            await send(message)

        try:
            if self._needs_token(scope["path"]):
                self._admit(scope, info)
            await self._app(scope, receive, answer)
        except Exception as error:
            failure = _failure(error, info)
            if not info.status:  # otherwise the response has begun, and the client sees that it ends early
                await failure.response(scope, receive, answer)
        finally:
            for allowance, token in info.counted:
                allowance.leave(token)
            self._count(scope, info)

    def _needs_token(self, path: str) -> bool:
        return f"{path}/".startswith("/v1/") or (path == "/metrics" and not self._service.settings.open_metrics)

    def _admit(self, scope: Scope, info: RequestInfo) -> None:
        """Finds the token of a request and counts the request, or raises an ApiError."""
        given = Headers(scope=scope).getlist("authorization")
        if not given and scope["path"] == "/v1/verdict" and self._service.settings.public_detector:
            info.token = public_client((scope["client"] or ("",))[0])
            self._count_in(info, info.token, self._service.clients)
            self._count_in(info, PUBLIC, self._service.public)
            return
        kind, _, secret = (given[0] if len(given) == 1 else "").partition(" ")
        info.token = self._service.tokens.find(secret.strip()) if kind.lower() == "bearer" else None
        if info.token is None:
            raise ApiError(
                401,
                "no_token",
                "The token is missing or unknown. Send a valid one in the header Authorization: Bearer alm_... "
                "The operator makes one with the command `alimark serve token --role generate --role detect`.",
            )
        self._count_in(info, info.token, self._service.allowance)

    def _count_in(self, info: RequestInfo, token: Token, allowance: Allowance) -> None:
        if refusal := allowance.enter(token):
            self._service.metrics.refused.labels("rate").inc()
            raise ApiError(429, "rate_limited", refusal[0], retry_after=refusal[1])
        info.counted.append((allowance, token))

    def _count(self, scope: Scope, info: RequestInfo) -> None:
        """Counts and logs a request by its route; the path is not logged, because clients can put anything into it."""
        route = getattr(scope.get("route"), "path", "none")
        took = time.perf_counter() - info.started
        method = scope["method"] if scope["method"] in _METHODS else "other"
        self._service.metrics.requests.labels(route, method, str(info.status)).inc()
        self._service.metrics.seconds.labels(route).observe(took)
        log.info(
            "request",
            extra={
                "request": info.id, "method": method, "route": route, "status": info.status,
                "ms": round(1000 * took, 1), "token": info.token.id if info.token else "",
            },
        )  # fmt: skip


def _failure(error: Exception, info: RequestInfo) -> ApiError:
    """The error response for an exception; the log has the type and the place of one that was not expected."""
    if isinstance(error, (ApiError, AlimarkError)):
        return to_api_error(error)
    log.error("unexpected error", extra={"request": info.id}, exc_info=error)
    message = f"The server failed unexpectedly. The operator finds the cause in the log by the request id {info.id}."
    return ApiError(500, "internal", message)
