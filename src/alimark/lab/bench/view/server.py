"""Serves the page on this machine only: the records of a run may hold texts that nobody else should read.

The server listens on the loopback address. Everything lies under a random path, so that other users of the machine and pages
in the same browser cannot read it, and a request that names another host is refused (DNS rebinding).
"""

import hmac
import json
import secrets
from collections.abc import Callable, Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import resources
from urllib.parse import parse_qs, urlsplit

from alimark.core._util.json_types import JsonObject
from alimark.errors import AlimarkError
from alimark.lab.bench.export import FORMATS
from alimark.lab.bench.tables import Table
from alimark.lab.bench.view.answers import Answers, NotThere

_PAGES = {
    # The drawing of alignments and the colours are those of the service's page.
    "": ("lab/bench/view/page/index.html", "text/html; charset=utf-8"),
    "view.js": ("lab/bench/view/page/view.js", "text/javascript; charset=utf-8"),
    "view.css": ("lab/bench/view/page/view.css", "text/css; charset=utf-8"),
    "show.js": ("serve/page/show.js", "text/javascript; charset=utf-8"),
    "style.css": ("serve/page/style.css", "text/css; charset=utf-8"),
    "icon.svg": ("serve/page/icon.svg", "image/svg+xml"),
}
_ENDINGS = {"csv": "csv", "latex": "tex", "markdown": "md"}
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'",
    "Cache-Control": "no-store",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Cross-Origin-Resource-Policy": "same-origin",
}

Query = Mapping[str, str]


class ViewServer(ThreadingHTTPServer):
    """An HTTP server on the loopback address for the records of some runs."""

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
        address = urlsplit(self.path)
        _, token, *rest = f"{address.path}/".split("/", 2)
        path, port = "".join(rest).rstrip("/"), self.server.server_port
        query = {name: values[-1] for name, values in parse_qs(address.query, keep_blank_values=True).items()}
        wrong_address = {"error": "Open the page under the address that the command printed."}
        if self.headers.get("Host") not in (f"127.0.0.1:{port}", f"localhost:{port}"):
            self._send_json(wrong_address, HTTPStatus.FORBIDDEN)
        elif not hmac.compare_digest(token.encode(), self.server.token.encode()):
            self._send_json(wrong_address, HTTPStatus.NOT_FOUND)
        else:
            try:
                self._answer(path, query)
            except NotThere as error:
                self._send_json({"error": str(error)}, HTTPStatus.NOT_FOUND)
            except (AlimarkError, ValueError) as error:
                self._send_json({"error": str(error)}, HTTPStatus.BAD_REQUEST)

    def _answer(self, path: str, query: Query) -> None:
        answers = self.server.answers
        if path in _PAGES:
            file, kind = _PAGES[path]
            self._send(resources.files("alimark").joinpath(file).read_bytes(), kind)
        elif path == "export":
            if (form := query.get("format", "")) not in FORMATS:
                raise ValueError(f"the format of a table is one of {', '.join(FORMATS)}")
            content = FORMATS[form](answers.table(query.get("title", ""))).encode("utf-8", "replace")
            self._send(content, "text/plain; charset=utf-8", name=f"table.{_ENDINGS[form]}")
        elif path in _QUESTIONS:
            if path == "choices":
                answers.refresh()
            elif "state" in query and _number(query, "state") != answers.state:
                raise NotThere("the records have changed, so the list is read again; choose the text again")
            self._send_json(_QUESTIONS[path](answers, query))
        else:
            raise NotThere(f"there is nothing at {path}")

    def _send_json(self, content: JsonObject, status: HTTPStatus = HTTPStatus.OK) -> None:
        # ASCII, because texts may hold half a surrogate pair, which UTF-8 does not have.
        self._send(json.dumps(content, allow_nan=False).encode("ascii"), "application/json", status)

    def _send(self, content: bytes, kind: str, status: HTTPStatus = HTTPStatus.OK, *, name: str = "") -> None:
        """Send a response; `name` is the name under which the browser saves the content, empty if it shows it."""
        saved = {"Content-Disposition": f'attachment; filename="{name}"'} if name else {}
        self.send_response(status)
        for header, value in (_HEADERS | saved | {"Content-Type": kind, "Content-Length": str(len(content))}).items():
            self.send_header(header, value)
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:
        """Requests are not logged: their addresses hold the random path."""


def _number(query: Query, name: str) -> int:
    try:
        return int(query.get(name, "0"))
    except ValueError:
        raise ValueError(f"{name} is not a whole number") from None


def _shown(table: Table) -> JsonObject:
    return {
        "title": table.title,
        "note": table.note,
        "columns": [column.label for column in table.columns],
        "rows": [[[cell.text, cell.small] for cell in line] for line in table.lines],
    }


_QUESTIONS: dict[str, Callable[[Answers, Query], JsonObject]] = {
    "choices": lambda answers, query: answers.choices(),
    "texts": lambda answers, query: answers.listed(query, _number(query, "page")),
    "text": lambda answers, query: answers.text(_number(query, "number")),
    "alignment": lambda answers, query: answers.alignment(_number(query, "number"), query.get("which", "")),
    "tables": lambda answers, query: {"titles": list(answers.tables)},
    "table": lambda answers, query: _shown(answers.table(query.get("title", ""))),
}
