"""Serves the page on this machine only: the records of a run may hold texts that nobody else should read.

The server listens on the loopback address. Everything lies under a random path, so that other users of the machine and pages
in the same browser cannot read it, and a request that names another host is refused (DNS rebinding).
"""

from __future__ import annotations

import hmac
import json
import secrets
from collections.abc import Callable, Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import resources
from typing import NamedTuple
from urllib.parse import parse_qs, urlsplit

from alimark.core._util.json_types import JsonObject
from alimark.errors import AlimarkError
from alimark.lab.bench.cells import Table
from alimark.lab.bench.export import FORMATS, Format
from alimark.lab.bench.view.answers import Answers, NotThere

_POLICY = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'"
_PAGES = {
    # The drawing of alignments and the colours are those of the service's page.
    "": ("lab/bench/view/page/index.html", "text/html; charset=utf-8"),
    "view.js": ("lab/bench/view/page/view.js", "text/javascript; charset=utf-8"),
    "view.css": ("lab/bench/view/page/view.css", "text/css; charset=utf-8"),
    "show.js": ("serve/page/show.js", "text/javascript; charset=utf-8"),
    "style.css": ("serve/page/style.css", "text/css; charset=utf-8"),
    "icon.svg": ("serve/page/icon.svg", "image/svg+xml"),
}
_ENDINGS: dict[Format, tuple[str, str]] = {
    "csv": ("csv", "text/csv; charset=utf-8"),
    "latex": ("tex", "text/plain; charset=utf-8"),
    "markdown": ("md", "text/markdown; charset=utf-8"),
}

Query = Mapping[str, str]


class Response(NamedTuple):
    """What is sent for a request."""

    content: bytes
    kind: str
    name: str = ""
    """The name under which the browser saves the content; empty if it shows it."""


class ViewServer(ThreadingHTTPServer):
    """An HTTP server on the loopback address for one workspace.

    Args:
        answers: Answers the questions of the page.
        port: The port; 0 for a free one.
    """

    daemon_threads = True

    def __init__(self, answers: Answers, port: int = 0) -> None:
        self.answers, self.token = answers, secrets.token_urlsafe(16)
        super().__init__(("127.0.0.1", port), _Handler)

    @property
    def url(self) -> str:
        """The address of the page, with the random path."""
        return f"http://127.0.0.1:{self.server_port}/{self.token}/"

    def handle_error(self, request: object, client_address: object) -> None:
        """A browser that closes a connection early is no error to show."""


class _Handler(BaseHTTPRequestHandler):
    server: ViewServer
    protocol_version = "HTTP/1.1"
    timeout = 60

    def do_GET(self) -> None:
        """Answers with a file of the page, an answer as JSON, or a table as a file."""
        port = self.server.server_port
        if self.headers.get("Host") not in (f"127.0.0.1:{port}", f"localhost:{port}"):
            self._send(HTTPStatus.FORBIDDEN, _message("Open the page under the address that the command printed."))
            return
        address = urlsplit(self.path)
        _, token, *rest = f"{address.path}/".split("/", 2)
        if not hmac.compare_digest(token.encode(), self.server.token.encode()):
            self._send(HTTPStatus.NOT_FOUND, _message("Open the page under the address that the command printed."))
            return
        query = {name: values[-1] for name, values in parse_qs(address.query, keep_blank_values=True).items()}
        try:
            self._send(HTTPStatus.OK, self._response("".join(rest).rstrip("/"), query))
        except NotThere as error:
            self._send(HTTPStatus.NOT_FOUND, _message(str(error)))
        except (AlimarkError, ValueError) as error:
            self._send(HTTPStatus.BAD_REQUEST, _message(str(error)))

    def _response(self, path: str, query: Query) -> Response:
        if path in _PAGES:
            file, kind = _PAGES[path]
            return Response(resources.files("alimark").joinpath(file).read_bytes(), kind)
        if path not in _QUESTIONS:
            raise NotThere(f"there is nothing at {path}")
        return _QUESTIONS[path](self.server.answers, query)

    def _send(self, status: HTTPStatus, response: Response) -> None:
        self.send_response(status)
        self.send_header("Content-Type", response.kind)
        self.send_header("Content-Length", str(len(response.content)))
        self.send_header("Content-Security-Policy", _POLICY)
        self.send_header("Cache-Control", "no-store")
        self.send_header("Referrer-Policy", "no-referrer")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Cross-Origin-Resource-Policy", "same-origin")
        if response.name:
            self.send_header("Content-Disposition", f'attachment; filename="{response.name}"')
        self.end_headers()
        self.wfile.write(response.content)

    def log_message(self, format: str, *args: object) -> None:
        """Requests are not logged: their addresses hold the random path."""


def _json(content: JsonObject) -> Response:
    # ASCII, because texts may hold half a surrogate pair, which UTF-8 does not have.
    return Response(json.dumps(content, allow_nan=False).encode("ascii"), "application/json")


def _message(text: str) -> Response:
    return _json({"error": text})


def _number(query: Query, name: str) -> int:
    try:
        return int(query.get(name, "0"))
    except ValueError:
        raise ValueError(f"{name} is not a whole number") from None


def _shown(table: Table) -> JsonObject:
    return {
        "title": table.title,
        "notes": [note for note in (table.note, table.unranked) if note],
        "columns": [f"{column.over} {column.label}".strip() for column in table.columns],
        "rows": [
            {"group": line.group, "cells": [[cell.text, cell.small, cell.mark] for cell in line.cells]}
            for line in table.lines
        ],
    }


def _file(answers: Answers, query: Query) -> Response:
    form = next((form for form in FORMATS if form == query.get("format")), None)
    if form is None:
        raise ValueError(f"the format of a table is one of {', '.join(FORMATS)}")
    ending, kind = _ENDINGS[form]
    content = answers.exported(query.get("title", ""), query, form)
    return Response(content.encode("utf-8", "replace"), kind, f"table.{ending}")


_QUESTIONS: dict[str, Callable[[Answers, Query], Response]] = {
    "choices": lambda answers, query: _json(answers.choices()),
    "texts": lambda answers, query: _json(answers.listed(query, _number(query, "page"))),
    "text": lambda answers, query: _json(answers.text(_number(query, "number"))),
    "alignment": lambda answers, query: _json(answers.alignment(_number(query, "number"), query.get("which", ""))),
    "tables": lambda answers, query: _json({"titles": answers.tables()}),
    "table": lambda answers, query: _json(_shown(answers.table(query.get("title", ""), query))),
    "export": _file,
}
