"""The app, and how it is run."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import uvicorn
from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from fastapi.middleware.cors import CORSMiddleware
from fastapi.responses import FileResponse, Response
from starlette.exceptions import HTTPException
from starlette.requests import Request

import alimark
from alimark.serve import api, openai, schemas
from alimark.serve.gate import Gate, JsonLines, Refused
from alimark.serve.service import Service

PAGE = Path(__file__).with_name("page")
_TYPES = {".html": "text/html; charset=utf-8", ".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8",
          ".svg": "image/svg+xml"}  # fmt: skip
_ERRORS = {
    400: "No JSON.", 401: "No token that is known.", 403: "A token without the role.", 404: "There is none.",
    408: "Too slow.", 409: "Not in this state.", 413: "Too large.", 422: "Not as described, or a text that has no answer.",
    429: "Too much at a time; Retry-After says when.",
}  # fmt: skip


def create_app(service: Service) -> FastAPI:
    """An app around a service, which it closes at its end."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        keeping_up = asyncio.create_task(service.keep_up())
        yield
        keeping_up.cancel()
        with suppress(asyncio.CancelledError):
            await keeping_up
        await asyncio.to_thread(service.close)

    app = FastAPI(
        title="alimark",
        version=alimark.__version__,
        description="Marks what an LLM writes, and finds the mark again. Send a token: `Authorization: Bearer alm_...`.",
        lifespan=lifespan,
        docs_url=None,  # those pages load scripts from other hosts
        redoc_url=None,
        redirect_slashes=False,
        responses={status: {"model": schemas.Failure, "description": about} for status, about in _ERRORS.items()},
    )
    app.state.service = service
    app.include_router(openai.router)
    app.include_router(api.router)
    _add_page(app)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _http)
    app.add_middleware(
        Gate, settings=service.settings, tokens=service.tokens, allowance=service.allowance, metrics=service.metrics
    )
    if service.settings.cors_origins:
        app.add_middleware(
            CORSMiddleware, allow_origins=list(service.settings.cors_origins), allow_methods=["GET", "POST", "DELETE"],
            allow_headers=["authorization", "content-type"],
        )  # fmt: skip
    return app


def _add_page(app: FastAPI) -> None:
    """The files of the page, each by its name: nothing else of the disk can be asked for."""
    for file in sorted(PAGE.iterdir()):
        if file.suffix in _TYPES:
            path = "/" if file.name == "index.html" else f"/page/{file.name}"

            def send(file: Path = file) -> Response:
                return FileResponse(file, media_type=_TYPES[file.suffix])

            app.add_api_route(path, send, methods=["GET"], include_in_schema=False, response_class=FileResponse)


def _answer(refused: Refused) -> Response:
    return Response(refused.body, refused.status, refused.headers, "application/json")


async def _invalid(request: Request, error: Exception) -> Response:
    """What is wrong, and where; not what was sent, which may be a text."""
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"][1:])[:200]
    more = f" (and {len(error.errors()) - 1} more)" if len(error.errors()) > 1 else ""
    return _answer(Refused(422, "invalid", f"{where or 'the request'}: {first['msg']}{more}", param=where or None))


async def _http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    refused = Refused(error.status_code, "http", str(error.detail))
    refused.headers |= error.headers or {}
    return _answer(refused)


def set_up_log(level: int = logging.INFO) -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines())
    for name, least in (("alimark.serve", level), ("uvicorn", max(level, logging.WARNING))):
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [handler], False
        logger.setLevel(least)


def run(service: Service) -> None:
    """Serves until told to stop; what was accepted by then is finished."""
    settings = service.settings
    set_up_log()
    service.warm_up()
    config = uvicorn.Config(
        create_app(service), host=settings.host, port=settings.port, log_config=None, access_log=False,
        server_header=False, proxy_headers=False, timeout_keep_alive=30, h11_max_incomplete_event_size=64 * 1024,
        timeout_graceful_shutdown=int(settings.shutdown) or 1,
    )  # fmt: skip
    logging.getLogger("alimark.serve").info(
        "serving", extra={"host": settings.host, "port": settings.port, "llm": service.llm.name}
    )
    uvicorn.Server(config).run()
