"""The FastAPI app of the service, and the function that runs it."""

import asyncio
import logging
import socket
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from types import FrameType

import uvicorn
from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from fastapi.middleware.cors import CORSMiddleware
from fastapi.responses import FileResponse, HTMLResponse, Response
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.staticfiles import StaticFiles

import alimark
from alimark.core._util import process
from alimark.serve import api, openai, schemas, verdicts
from alimark.serve.docs_page import docs_page
from alimark.serve.errors import ApiError
from alimark.serve.gate import Gate
from alimark.serve.log import set_up_log
from alimark.serve.service import Service

PAGE = Path(__file__).with_name("page")
_ERRORS = {
    400: "The body is not valid JSON.",
    401: "The token is missing or unknown.",
    403: "The token does not have the role that the endpoint needs.",
    404: "The path, the key, the token or the model does not exist.",
    408: "The body did not arrive in time.",
    409: "The keys or tokens are not in a state that allows this, for example because no key is active.",
    411: "A large body has no Content-Length.",
    413: "The body, a text or the number of texts exceeds a limit.",
    415: "The body is not sent as JSON in UTF-8.",
    422: "The request does not match the schema, or a text cannot be processed.",
    429: "A rate limit or a queue limit is reached; the header Retry-After says after how many seconds to try again.",
}
_HTTP_MESSAGES = {
    404: "There is no such path. GET /openapi.json lists all endpoints.",
    405: "The path does not support this method. GET /openapi.json lists all endpoints.",
}
"""Messages for errors of the web framework."""
_REASONS = {"extra_forbidden": "this service does not know it; leave it out"}
_TYPES = ("str", "int", "bool", "float")


def create_app(service: Service) -> FastAPI:
    """Returns the app of a service; the app closes the service when it ends."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        refreshing = asyncio.create_task(service.refresh_forever())
        yield
        refreshing.cancel()
        with suppress(asyncio.CancelledError):
            await refreshing
        await asyncio.to_thread(service.close)

    app = FastAPI(
        title="alimark",
        version=alimark.__version__,
        description=(
            "Writes text with a watermark and detects the watermark in a text. "
            "Requests to /v1 need a token in the header `Authorization: Bearer alm_...`."
        ),
        lifespan=lifespan,
        docs_url=None,  # FastAPI's pages load scripts from other hosts; `docs_page` needs none
        redoc_url=None,
        redirect_slashes=False,
        responses={status: {"model": schemas.Failure, "description": about} for status, about in _ERRORS.items()},
    )
    app.state.service = service
    app.include_router(openai.router)
    app.include_router(api.router)
    app.include_router(verdicts.router)
    app.mount("/page", StaticFiles(directory=PAGE))

    @app.get("/", include_in_schema=False, response_class=FileResponse)
    async def page() -> Path:
        return PAGE / "index.html"

    @app.get("/detector", include_in_schema=False, response_class=FileResponse)
    async def detector() -> Path:
        return PAGE / "detector.html"

    @app.get("/docs", include_in_schema=False, response_class=HTMLResponse)
    async def docs() -> str:
        return docs_page(app.openapi())

    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _http)
    app.add_middleware(Gate, service=service)
    if origins := service.settings.cors_origins:
        methods, headers = ["GET", "POST", "DELETE"], ["authorization", "content-type"]
        app.add_middleware(CORSMiddleware, allow_origins=origins, allow_methods=methods, allow_headers=headers)
    return app


async def _invalid(request: Request, error: Exception) -> Response:
    """Says which field is wrong and why, without the value, which may be a text."""
    assert isinstance(error, RequestValidationError)
    places = [_place(detail["loc"]) for detail in error.errors()]
    where = places[0]
    reasons = [
        _REASONS.get(detail["type"], detail["msg"].removeprefix("Value error, "))
        for detail, place in zip(error.errors(), places, strict=True)
        if place == where
    ]
    field = f"field {where}" if where else "request"
    message = f"The {field} is not valid: {', or: '.join(dict.fromkeys(reasons))}."
    return ApiError(422, "invalid", message, param=where or None).response


def _place(location: Sequence[int | str]) -> str:
    """The name of a field, without the types that it may have, which a schema names in the location of an error."""
    names = [str(part) for part in location[1:] if part not in _TYPES and "[" not in str(part)]
    return ".".join(names)[:200]


async def _http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    answer = ApiError(error.status_code, "http", _HTTP_MESSAGES.get(error.status_code, str(error.detail)))
    answer.headers |= error.headers or {}
    return answer.response


class _Server(uvicorn.Server):
    """A server that after the first signal drains: for some seconds it still accepts requests but is not ready."""

    def __init__(self, config: uvicorn.Config, service: Service, ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._service, self._ready = service, ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._ready()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        seconds = self._service.settings.drain
        if self._service.draining or not seconds:  # a second signal stops at once
            super().handle_exit(sig, frame)
            return
        self._service.draining = True
        logging.getLogger("alimark.serve").info("draining", extra={"seconds": seconds})
        timer = threading.Timer(seconds, super().handle_exit, (sig, frame))
        timer.daemon = True
        timer.start()


def run(service: Service, ready: Callable[[], None] = lambda: None) -> None:
    """Runs the service until SIGTERM or Ctrl-C, and then finishes the accepted requests. Calls `ready` once it listens."""
    settings = service.settings
    set_up_log()
    process.give_back_memory()
    service.warm_up()
    config = uvicorn.Config(
        create_app(service), host=settings.host, port=settings.port, log_config=None, access_log=False,
        http="h11", server_header=False, proxy_headers=settings.public_detector, timeout_keep_alive=30,
        h11_max_incomplete_event_size=64 * 1024,
        timeout_graceful_shutdown=int(settings.shutdown) or 1,
    )  # fmt: skip
    logging.getLogger("alimark.serve").info(
        "serving", extra={"host": settings.host, "port": settings.port, "llm": service.llm.name}
    )
    _Server(config, service, ready).run()
