"""A server on loopback with the answers that a test gives it, for the HTTP adapter and the commands that use it."""

import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from alimark.core.llm.base import Request, Sampling
from alimark.testing import StandInLLM

KEY = "sk-do-not-tell-1234567890"


@dataclass(frozen=True)
class Reply:
    body: Any = None
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    announced: int | None = None
    """The Content-Length, if it shall be a lie."""


FAULTS = {
    "broken off": Reply(b'{"choices": [', announced=9999),
    "busy": Reply({"error": "slow down"}, 429, {"Retry-After": "1"}),
    "failing": Reply({"error": "oops"}, 500),
    "rubbish": Reply(b"<html>not me</html>"),
    "no choices": Reply({"choices": []}),
    "another shape": Reply({"choices": "none"}),
}
"""What a run must outlive if it passes."""


@dataclass
class Seen:
    path: str
    headers: dict[str, str]
    body: dict[str, Any]


Answer = Callable[[Seen], Reply]


class Fake:
    """A server on loopback that answers as told and remembers what it was asked."""

    def __init__(self) -> None:
        self.seen: list[Seen] = []
        self.models: Any = {"data": [{"id": "some/model", "owned_by": "somebody"}]}
        self.answer: Answer = lambda seen: Reply({}, 500)
        self.raw: Callable[[BaseHTTPRequestHandler], object] | None = None
        fake = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self._send(fake.models if isinstance(fake.models, Reply) else Reply(fake.models))

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                fake.seen.append(Seen(self.path, {k.lower(): v for k, v in self.headers.items()}, body))
                if fake.raw:
                    fake.raw(self)
                else:
                    self._send(fake.answer(fake.seen[-1]))

            def _send(self, reply: Reply) -> None:
                body = reply.body if isinstance(reply.body, bytes) else json.dumps(reply.body).encode()
                self.send_response(reply.status)
                self.send_header("Content-Length", str(len(body) if reply.announced is None else reply.announced))
                for name, value in reply.headers.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._server.handle_error = lambda *_: None  # type: ignore[method-assign]  # clients hang up on purpose
        self.url = f"http://127.0.0.1:{self._server.server_port}/v1"
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


def completions(seen: Seen) -> Reply:
    """Answers completions and chats with text of the stand-in model, as an ordinary server does."""
    chats = "messages" in seen.body
    context = str(seen.body["messages"]) if chats else seen.body["prompt"]
    request = Request(context, seen.body.get("n", 1), seen.body.get("seed", 0))
    [draws] = StandInLLM().draw([request], Sampling(), lambda text: text.rstrip().endswith((".", "!", "?", '"')))
    choices = []
    for i, draw in enumerate(draws):
        text = f"{draw.text.rstrip()} Then more"
        content = {"message": {"role": "assistant", "content": text}} if chats else {"text": text}
        choices.append({"index": i, **content, "finish_reason": "length"})
    return Reply({"choices": choices, "usage": {"completion_tokens": 9 * len(choices)}})


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[Fake]:
    monkeypatch.setenv("ALIMARK_API_KEY", KEY)
    server = Fake()
    yield server
    server.close()


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Waits between tries, written down and not waited."""
    waited: list[float] = []

    async def pause(seconds: float) -> None:
        waited.append(seconds)

    monkeypatch.setattr("alimark.core.llm._http._pause", pause)
    return waited
