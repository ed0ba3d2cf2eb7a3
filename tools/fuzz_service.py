"""Attacks a service in a process of its own over sockets, while a watchdog in another one asks /healthz all the while.

A request is made of a method and a path, headers (also several of one name), an encoding, a way of sending (with its length,
with a wrong one, in chunks) and a shape of the body, and several may follow each other on one connection. Bodies are those of
the corpus, random ones that fit or miss the service's description (schemathesis), and the shapes below. `fuzz.py` runs this.
"""

from __future__ import annotations

import gzip
import json
import random
import re
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

ANSWER_SECONDS = 40.0
"""The time after which a whole request without an answer counts as a hang; the service's own limit is shorter."""
SETTINGS = {
    "candidates": 2, "sentences": 2, "max_sentences": 3, "rate": 0, "body_timeout": 3, "timeout": 30, "max_work": 4,
}  # fmt: skip
TYPES = [
    "application/json", "application/json", "application/json", "application/JSON", "Application/Json; charset=UTF-8",
    "application/x+JSON", "application/json; charset=utf-16", "application/json;", "application/json, text/plain",
    "text/plain", "multipart/form-data; boundary=a", "application/x-www-form-urlencoded", "application/octet-stream",
    "", "a" * 9000, "é/json",
]  # fmt: skip
ODD_HEADERS = [
    "Content-Encoding: gzip", "Content-Encoding: br", "Expect: 100-continue", "Connection: close", "Connection: upgrade",
    "Upgrade: websocket", "Upgrade: h2c", "Transfer-Encoding: gzip, chunked", "Transfer-Encoding: identity",
    "X: " + "a" * 60_000, "Host: b", "Content-Length: +5", "Content-Length: 5, 6", "Range: bytes=0-", "Origin: http://a",
    "Accept-Encoding: gzip", "Authorization: Basic YTpi", "X-HTTP-Method-Override: DELETE", " folded",
    "Content-Type : application/json", "Trailer: a",
]  # fmt: skip
_MANY = 2_000_000


def _field(name: str, value: str) -> str:
    """A body whose other fields are right, so that this one is looked at."""
    return f'{{"input": "One came.", "prompt": "So.", "messages": [], "{name}": {value}}}'


SHAPES: list[Callable[[], str]] = [
    lambda: _field("stop", "[" + ",".join("1" * _MANY) + "]"),
    lambda: _field("stop", "[" + ",".join(["1"] * 9_000) + "]"),
    lambda: _field("input", "[" + ",".join("1" * 9_000) + "]"),
    lambda: _field("metadata", "{" + ",".join(f'"f{number}": 1' for number in range(9_000)) + "}"),
    lambda: _field("a", "[" * _MANY),
    lambda: _field("a", "[" * 99 + "]" * 99),
    lambda: _field("a", '{"a":' * 50_000 + "1" + "}" * 50_000),
    lambda: _field("seed", "9" * _MANY),
    lambda: _field("temperature", "0." + "9" * _MANY),
    lambda: _field("temperature", "1e" + "9" * 1000),
    lambda: _field("a", '""' * _MANY),
    lambda: _field("prompt", '"' + "\\u0041" * 600_000 + '"'),
    lambda: _field("input", '"' + '\\"' * 1_900_000 + '"'),
    lambda: _field("input", '"' + "\\\\" * 90_000 + '"'),
    lambda: _field("input", '"' + "\\ud800" * 90_000 + '"'),
    lambda: "{" + '"prompt": "a",' * 4_000 + '"prompt": "b"}',
    lambda: _field("metadata", "{" + ",".join(f'"f{number}": {"9" * 4000}' for number in range(900)) + "}"),
    lambda: " " * 4_000_000 + "{}",
    lambda: "\\" * 4_000_000,
    lambda: '"' * 4_000_001,
    lambda: _field("input", json.dumps(["One came. Two went. "] * 70)),
    lambda: _field("input", json.dumps("!? " * 60_000)),
    lambda: _field("messages", json.dumps([{"role": "user", "content": [{"type": "text", "text": "a"}] * 400}] * 8)),
    lambda: "NaN",
    lambda: "",
]
"""Bodies that are made to cost time or memory; up to 4 MiB of them are sent."""
ENCODINGS = [
    "utf-8",
    "utf-8",
    "utf-8",
    "utf-8",
    "utf-8-sig",
    "utf-16",
    "utf-16-le",
    "utf-32",
    "latin-1",
    "utf-7",
    "gzip",
]
PATHS = [
    "POST /v1/completions", "POST /v1/chat/completions", "POST /v1/responses", "POST /v1/detect", "POST /v1/rewrite",
    "POST /v1/attack", "POST /v1/extract?kind=html", "POST /v1/keys", "POST /v1/tokens", "GET /v1/records", "GET /healthz",
    "PUT /v1/detect", "POST //v1/detect", "POST /v1/detect/", "POST /V1/detect", "POST /v1/%64etect", "GET /v1/models/%00",
    "POST http://other/v1/detect", "GET /page/../../serve/app.py", "GET /page/..%2f..%2fapp.py", "OPTIONS *", "GET /metrics",
]  # fmt: skip


@dataclass
class Watchdog:
    """Asks /healthz four times a second in a process of its own, on a new connection each time."""

    process: subprocess.Popen[str]

    def worst(self) -> float:
        """Returns the seconds of the slowest answer since it was asked last; infinity where one did not come."""
        assert self.process.stdin
        assert self.process.stdout
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return float(self.process.stdout.readline())


@dataclass
class Attacked:
    """A running service that is attacked: its address, its tokens, and bodies that its description asks for."""

    port: int
    tokens: dict[str, str]
    watchdog: Watchdog
    pid: int
    bodies: list[tuple[str, bytes]] = field(default_factory=list)

    def send(self, data: bytes, *, whole: int) -> list[int]:
        """Sends the bytes on one connection and returns the statuses of the answers, of which `whole` have to come."""
        answer = b""
        with socket.create_connection(("127.0.0.1", self.port), timeout=10) as connection:
            with suppress(OSError):  # the service may answer and close before it was sent everything
                connection.sendall(data)
            until = time.monotonic() + (ANSWER_SECONDS if whole else 1)
            while time.monotonic() < until and (not whole or len(_statuses(answer)) < whole):
                if answer and not whole:
                    until = min(until, time.monotonic() + 0.1)
                connection.settimeout(max(0.01, until - time.monotonic()))
                try:
                    part = connection.recv(1 << 20)
                except OSError:
                    break
                if not part:
                    return _statuses(answer)
                answer += part
        if whole and len(_statuses(answer)) < whole and time.monotonic() >= until:
            raise TimeoutError(f"no answer within {ANSWER_SECONDS:g} s: {data[:1000]!r}")
        return _statuses(answer)

    def warm_up(self) -> None:
        """Makes the service compile what it has not compiled yet, which may take longer than a request may."""
        body = b'{"input": "One came. Two went."}'
        head = f"POST /v1/detect HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {self.tokens['user']}\r\n"
        head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        while self.send(head.encode() + body, whole=1) != [200]:
            time.sleep(1)

    def memory(self) -> int:
        """Returns the megabytes of memory that the service has had at most."""
        return int(Path(f"/proc/{self.pid}/status").read_text().split("VmHWM:")[1].split()[0]) // 1024


def _statuses(answer: bytes) -> list[int]:
    return [int(status) for status in re.findall(rb"HTTP/1\.1 ([2-5]\d\d) ", answer)]


def request(attacked: Attacked, chance: random.Random, damaged: Callable[[bytes], bytes]) -> tuple[bytes, int]:
    """Makes the bytes of a connection, and says how many answers have to come at least; 0 where none has to."""
    copies = chance.choice((1,) * 8 + (2, 20))
    data, sound = _one(attacked, chance, damaged)
    data *= copies
    if chance.random() < 0.2:
        return damaged(data), 0
    # After an error the service closes the connection and leaves the requests behind it.
    return data, int(sound)


def _one(attacked: Attacked, chance: random.Random, damaged: Callable[[bytes], bytes]) -> tuple[bytes, bool]:
    path, body = chance.choice(attacked.bodies) if chance.random() < 0.7 else (chance.choice(PATHS), b"{}")
    way = chance.random()
    if way < 0.3:
        body = chance.choice(SHAPES)().encode()
    elif way < 0.6:
        body = damaged(body)
    encoding = chance.choice(ENCODINGS)
    if encoding == "gzip":
        body = gzip.compress(body, 1)
    elif encoding != "utf-8" and len(body) < 1_000_000:
        body = body.decode(errors="replace").encode(encoding, "replace")
    body = body[: 4 << 20] + b" " * (chance.random() < 0.02) * (4 << 20)
    roles = ["admin"] if chance.random() < 0.05 else ["user"] * 9 + ["nobody"]
    head = [f"{path} HTTP/1.1", "Host: a"]
    head += [f"Authorization: Bearer {attacked.tokens[chance.choice(roles)]}"] * chance.choice((1,) * 20 + (2,))
    head += [f"Content-Type: {chance.choice(TYPES)}" for _ in range(chance.choice((1, 1, 1, 1, 0, 2, 3)))]
    odd = chance.choice((0, 0, 0, 1, 2, 5))
    head += [chance.choice(ODD_HEADERS) for _ in range(odd)]
    sending = chance.random()
    if sending < 0.2:
        size = chance.choice((1, 7, 1000, 100_000)) if len(body) < 20_000 else 100_000
        pieces = [body[start : start + size] for start in range(0, len(body), size)]
        body = b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"
        head += ["Transfer-Encoding: chunked"]
    if sending > 0.15:  # some have both
        length = len(body) if sending < 0.9 else chance.choice((0, 1, len(body) + 9, 10**20, -1))
        head += [f"Content-Length: {length}"] * chance.choice((1,) * 9 + (2,))
    headers = head[1:]
    chance.shuffle(headers)
    sound = not odd and 0.2 <= sending < 0.9
    return "\r\n".join([head[0], *headers]).encode("latin-1", "replace") + b"\r\n\r\n" + body, sound


def described(port: int) -> list[tuple[str, bytes]]:
    """Random bodies that the service's own description allows, or nearly allows, with method and path."""
    import warnings

    import schemathesis
    from hypothesis import HealthCheck, Phase, given, settings
    from hypothesis import seed as seeded
    from hypothesis.errors import Unsatisfiable

    found: list[tuple[str, bytes]] = []
    schema: Any = schemathesis.openapi.from_url(f"http://127.0.0.1:{port}/openapi.json")
    for result in schema.get_all_operations():
        operation = result.ok()
        for mode in (schemathesis.GenerationMode.POSITIVE, schemathesis.GenerationMode.NEGATIVE):

            @seeded(0)
            @given(operation.as_strategy(generation_mode=mode))
            @settings(
                max_examples=10, deadline=None, database=None, suppress_health_check=list(HealthCheck), phases=[Phase.generate]
            )  # fmt: skip
            def keep(case: Any) -> None:
                with suppress(TypeError, ValueError, UnicodeError):
                    body = b"" if case.body is None else json.dumps(case.body).encode()
                    path = quote(case.formatted_path, "/%")
                    found.append((f"{case.method.upper()} {path}", body))

            with warnings.catch_warnings(), suppress(Unsatisfiable):
                warnings.simplefilter("ignore")
                keep()
    # These attacks load models.
    return [(path, body.replace(b"translate", b"delete").replace(b"synonyms", b"delete")) for path, body in found]


@contextmanager
def attacked_service(corpus: list[bytes]) -> Iterator[Attacked]:
    """Runs a service on stand-in models with a watchdog beside it; it gets the bodies of the corpus as well."""
    tests = Path(__file__).parent.parent / "tests"
    sys.path[:0] = [str(tests / "serve"), str(tests)]
    from services import set_up, start_process
    from stand_ins import stand_in_service

    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "data"
        set_up(data)
        service = stand_in_service(data)
        tokens = {"user": ["generate", "detect"], "admin": ["admin"]}
        secrets = {name: service.tokens.create(roles)[1] for name, roles in tokens.items()} | {"nobody": "alm_x"}
        service.close()
        served = start_process(data, Path(folder) / "log", **SETTINGS)
        watching = subprocess.Popen(
            [sys.executable, __file__, served.url], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        try:
            port = int(served.url.rpartition(":")[2])
            attacked = Attacked(port, secrets, Watchdog(watching), served.running.pid, described(port))
            attacked.bodies += [(line.decode(), body) for line, _, body in (data.partition(b"\n") for data in corpus)]
            attacked.warm_up()
            yield attacked
        finally:
            for line in served.log.read_text(errors="replace").splitlines():
                if "unexpected" in line:
                    print(line[:3000], file=sys.stderr)
            for process in (watching, served.running):
                process.kill()
                process.wait()


def _watch(url: str) -> None:
    """Asks /healthz until standard input ends, and prints the slowest answer for each line of it."""
    import selectors
    from http.client import HTTPConnection

    worst, host = 0.0, url.removeprefix("http://")
    selector = selectors.DefaultSelector()
    selector.register(sys.stdin, selectors.EVENT_READ)
    while True:
        started = time.monotonic()
        connection = HTTPConnection(host, timeout=60)
        try:
            connection.request("GET", "/healthz")
            lives = connection.getresponse().status == 200
        except OSError:
            lives = False
        connection.close()
        worst = max(worst, time.monotonic() - started if lives else float("inf"))
        if selector.select(0.25):
            if not sys.stdin.readline():
                return
            print(worst, flush=True)
            worst = 0.0


if __name__ == "__main__":
    _watch(sys.argv[1])
