"""Mixed traffic of well-behaved and hostile clients on one service, which is killed every few minutes.

    python benchmarks/soak.py --minutes 20                                  # SQLite
    python benchmarks/soak.py --minutes 20 --postgres                       # a PostgreSQL server of its own

The service runs on stand-in models on loopback. Well-behaved clients (tokens of their own) detect, write, stream, rewrite and
send files; the first minute has them alone. Hostile clients then hold half-open connections, send bodies without a token,
single bytes, long and broken bodies, documents that take long, and break off streams. The table says what the well-behaved saw:
a failure is any answer other than 200, 429 or 503 with Retry-After, or a broken connection while the service was not being
killed. At the end every record that was acknowledged must be there. Memory and descriptors are those of the service.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import httpx

SERVE_TESTS = Path(__file__).parent.parent / "tests" / "serve"
sys.path[:0] = [str(SERVE_TESTS), str(SERVE_TESTS.parent)]  # the service on stand-in models belongs to the tests

from databases import postgres  # noqa: E402
from services import free_port, set_up  # noqa: E402

QUIET_SECONDS = 60.0
TIMEOUT = 30.0
"""Seconds that the service may take for a request; a well-behaved client waits for twice as long."""
TEXT = "The axolotl watched the violet lighthouse. It hummed a madrigal until dawn. Nobody answered the axolotl. "


class Server:
    """The service in a process of its own, which can be killed and started again on the same port."""

    def __init__(self, data: Path, database: str) -> None:
        self.data, self.database, self.port = data, database, free_port()
        self.up = threading.Event()
        self.kills = 0
        self.used: list[tuple[int, int]] = []  # kB of memory and descriptors, of this life of the process
        self.lives: list[list[tuple[int, int]]] = []

    def start(self) -> None:
        words = {"candidates": 4, "rate": 0, "write_queue": 32, "timeout": TIMEOUT, "database": self.database}
        given = [f"{name}={value if name == 'database' else json.dumps(value)}" for name, value in words.items()]
        with (self.data.parent / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, str(SERVE_TESTS / "stand_ins.py"), str(self.data), str(self.port), *given],
                stdout=log, stderr=log, process_group=0,
            )  # fmt: skip
        until = time.monotonic() + 300
        with httpx.Client(trust_env=False) as client:
            while time.monotonic() < until:
                with suppress(httpx.TransportError):
                    if client.get(f"{self.url}/healthz", timeout=5).status_code == 200:
                        break
                time.sleep(0.1)
        self.used = []
        self.lives.append(self.used)
        self.up.set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def kill(self) -> None:
        self.up.clear()
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        self.kills += 1

    def measure(self) -> None:
        with suppress(OSError):
            status = Path(f"/proc/{self.process.pid}/status").read_text()
            memory = int(status.split("VmRSS:")[1].split()[0])
            self.used.append((memory, len(os.listdir(f"/proc/{self.process.pid}/fd"))))


class WellBehaved:
    """A client that keeps to the rules, and writes down what it was told."""

    def __init__(self, server: Server, tokens: dict[str, str]) -> None:
        self.server, self.tokens = server, tokens
        self.answers: Counter[str] = Counter()
        self.failures: list[str] = []
        self.acknowledged: list[str] = []
        self.latencies: list[tuple[float, float]] = []  # when, and how long

    def run(self, over: threading.Event, seed: int) -> None:
        chance = random.Random(seed)
        work = [self._detect, self._write, self._stream, self._rewrite, self._extract]
        with httpx.Client(base_url=self.server.url, timeout=2 * TIMEOUT, trust_env=False) as client:
            while not over.is_set():
                self.server.up.wait(1)
                life, started = self.server.kills, time.monotonic()
                try:
                    chance.choice(work)(client, chance)
                except httpx.TransportError as error:
                    if self.server.up.is_set() and self.server.kills == life:
                        self.failures.append(f"{type(error).__name__} while the service was up")
                    self.server.up.wait(60)
                    continue
                self.latencies.append((started, time.monotonic() - started))
                time.sleep(0.05)

    def _post(self, client: httpx.Client, path: str, role: str, **body: object) -> str:
        sent = {"content": body["content"]} if "content" in body else {"json": body}
        answer = client.post(path, headers={"authorization": f"Bearer {self.tokens[role]}"}, **sent)
        self.answers[str(answer.status_code)] += 1
        if answer.status_code in (429, 503) and "retry-after" in answer.headers:
            time.sleep(min(2.0, float(answer.headers["retry-after"])))
            return ""
        if answer.status_code != 200:
            self.failures.append(f"{path}: {answer.status_code} {answer.text[:200]}")
            return ""
        return answer.text

    def _detect(self, client: httpx.Client, chance: random.Random) -> None:
        if answer := self._post(client, "/v1/detect", "detect", input=[TEXT] * chance.randint(1, 3)):
            self.acknowledged += [result["record_id"] for result in json.loads(answer)["results"]]

    def _write(self, client: httpx.Client, chance: random.Random) -> None:
        if answer := self._post(client, "/v1/completions", "generate", prompt="It was late.", sentences=2):
            self.acknowledged += json.loads(answer)["alimark"]["record_ids"]

    def _stream(self, client: httpx.Client, chance: random.Random) -> None:
        messages = [{"role": "user", "content": "Why?"}]
        answer = self._post(
            client,
            "/v1/chat/completions",
            "generate",
            messages=messages,
            sentences=2,
            stream=True,
            seed=chance.randrange(99),
        )
        if answer and "[DONE]" not in answer:
            self.failures.append(f"a stream broke off: {answer[-200:]}")
        for line in answer.splitlines():
            if line.startswith("data: {"):
                self.acknowledged += json.loads(line.removeprefix("data: "))["alimark"].get("record_ids", [])

    def _rewrite(self, client: httpx.Client, chance: random.Random) -> None:
        if answer := self._post(client, "/v1/rewrite", "generate", input=TEXT, candidates=4):
            self.acknowledged.append(json.loads(answer)["record_id"])

    def _extract(self, client: httpx.Client, chance: random.Random) -> None:
        self._post(client, "/v1/extract?kind=html", "detect", content=b"<p>One came.</p>")


class Hostile:
    """Clients that try to make the service slow, large or wrong; everything they do is bounded."""

    def __init__(self, server: Server, tokens: dict[str, str], connections: int) -> None:
        self.server, self.tokens, self.connections = server, tokens, connections
        self.done: Counter[str] = Counter()

    def run(self, over: threading.Event, seed: int) -> None:
        chance = random.Random(seed)
        ways = [
            self._half_open,
            self._no_token,
            self._single_bytes,
            self._long,
            self._broken,
            self._file,
            self._break_off,
        ]
        while not over.is_set():
            self.server.up.wait(1)
            way = chance.choice(ways)
            with suppress(httpx.TransportError, OSError):
                way(chance)
            self.done[way.__name__.strip("_")] += 1

    def _socket(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.server.port), timeout=5)

    def _half_open(self, chance: random.Random) -> None:
        with ExitStack() as stack:
            for _ in range(self.connections):
                stack.enter_context(self._socket()).sendall(b"POST /v1/detect HTTP/1.1\r\nHost: a\r\nX-Slow: ")
            time.sleep(5)

    def _no_token(self, chance: random.Random) -> None:
        for _ in range(10):
            with self._socket() as connection:
                connection.sendall(b"POST /v1/detect HTTP/1.1\r\nHost: a\r\nContent-Length: 4194304\r\n\r\n")
                with suppress(OSError):
                    for _ in range(64):
                        connection.sendall(b"a" * 65536)

    def _single_bytes(self, chance: random.Random) -> None:
        head = f"POST /v1/detect HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {self.tokens['detect']}\r\n"
        with self._socket() as connection:
            connection.sendall(f"{head}Transfer-Encoding: chunked\r\n\r\n".encode())
            for _ in range(2000):
                connection.sendall(b"1\r\n[\r\n")

    def _post(self, path: str, role: str, content: bytes) -> None:
        headers = {"authorization": f"Bearer {self.tokens[role]}", "content-type": "application/json"}
        httpx.post(f"{self.server.url}{path}", content=content, headers=headers, timeout=40, trust_env=False)

    def _long(self, chance: random.Random) -> None:
        text = chance.choice((TEXT * 200, "!?" * 20_000, "؟" * 20_000, " \t" * 20_000 + "a.", "a. " * 10_000))
        search = chance.choice(("whole", "auto", "excerpt"))
        body = json.dumps({"input": [text] * chance.choice((1, 4)), "search": search}).encode()
        self._post("/v1/detect", "detect", body)
        self._post("/v1/rewrite", "generate", json.dumps({"input": TEXT * 30, "candidates": 64}).encode())

    def _broken(self, chance: random.Random) -> None:
        bodies = [
            b"[" * 100_000,
            b'{"input": [' + b"1," * 100_000,
            b'{"input": "\\ud800"}',
            b"\xff" * 1000,
            b'{"fpr": 1e999}',
        ]
        for body in bodies:
            self._post(chance.choice(("/v1/detect", "/v1/completions", "/v1/chat/completions")), "detect", body)
            self._post("/v1/completions", "generate", body)

    def _file(self, chance: random.Random) -> None:
        files = {"html": b"<div>" * 100_000, "pdf": b"%PDF-1.7" + b"[" * 100_000, "docx": b"PK\x03\x04" * 999}
        for kind, content in files.items():
            self._post(f"/v1/extract?kind={kind}", "detect", content)

    def _break_off(self, chance: random.Random) -> None:
        body = json.dumps({"prompt": "So.", "sentences": 100, "stream": True}).encode()
        head = f"POST /v1/completions HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {self.tokens['generate']}\r\n"
        for _ in range(8):
            with self._socket() as connection:
                connection.sendall(
                    f"{head}Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body
                )
                connection.recv(100)


@contextmanager
def threads(count: int, work: Callable[[threading.Event, int], None]) -> Iterator[None]:
    over = threading.Event()
    running = [threading.Thread(target=work, args=(over, number), daemon=True) for number in range(count)]
    for thread in running:
        thread.start()
    yield
    over.set()
    for thread in running:
        thread.join(90)


def soak(server: Server, clients: WellBehaved, hostile: Hostile, seconds: float, kill_every: float) -> float:
    """Runs the traffic; returns the time at which the hostile clients began."""
    with threads(3, clients.run):
        begun = time.monotonic()
        while time.monotonic() < begun + QUIET_SECONDS:
            time.sleep(5)
            server.measure()
        attacked = time.monotonic()
        with threads(4, hostile.run):
            next_kill = attacked + kill_every
            while time.monotonic() < attacked + seconds:
                time.sleep(5)
                server.measure()
                if time.monotonic() > next_kill:
                    server.kill()
                    server.start()
                    next_kill = time.monotonic() + kill_every
        time.sleep(40)  # what was half open is closed by now
        server.measure()
    return attacked


def report(server: Server, clients: WellBehaved, hostile: Hostile, attacked: float, lost: set[str]) -> None:
    def shown(latencies: list[float]) -> str:
        ordered = sorted(latencies) or [0.0]
        return f"{statistics.median(ordered):.2f} / {ordered[int(0.99 * (len(ordered) - 1))]:.2f} / {ordered[-1]:.2f}"

    quiet = [took for when, took in clients.latencies if when < attacked]
    busy = [took for when, took in clients.latencies if when >= attacked]
    print("| | |\n| --- | --- |")
    print(f"| well-behaved requests, by status | {dict(clients.answers)} |")
    print(f"| failures of well-behaved requests | {len(clients.failures)} |")
    print(f"| seconds a request, alone: median / 99% / worst | {shown(quiet)} ({len(quiet)}) |")
    print(f"| beside hostile clients | {shown(busy)} ({len(busy)}) |")
    print(f"| hostile actions | {dict(hostile.done)} |")
    print(f"| kill -9 | {server.kills} |")
    print(f"| records acknowledged / lost | {len(clients.acknowledged)} / {len(lost)} |")
    for number, used in enumerate(server.lives):
        if used:
            memory, files = [kilobytes // 1024 for kilobytes, _ in used], [count for _, count in used]
            print(
                f"| life {number + 1}: MB of memory, first / most / last | {memory[0]} / {max(memory)} / {memory[-1]} |"
            )
            print(f"| life {number + 1}: descriptors, first / most / last | {files[0]} / {max(files)} / {files[-1]} |")
    for failure in clients.failures[:20]:
        print(f"failure: {failure}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=20.0)
    parser.add_argument("--kill-every", type=float, default=240.0, help="seconds")
    parser.add_argument("--connections", type=int, default=75, help="half-open connections of each of four clients")
    parser.add_argument("--postgres", action="store_true", help="PostgreSQL instead of SQLite")
    args = parser.parse_args()
    with ExitStack() as stack:
        data = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "data"
        data.mkdir()
        database = stack.enter_context(postgres()) if args.postgres else f"sqlite:///{data / 'alimark.db'}"
        tokens = set_up(data, database=database)
        server = Server(data, database)
        server.start()
        tokens_of_hostile = _more_tokens(server, tokens["admin"])
        clients, hostile = WellBehaved(server, tokens), Hostile(server, tokens_of_hostile, args.connections)
        try:
            attacked = soak(server, clients, hostile, 60 * args.minutes - QUIET_SECONDS, args.kill_every)
            headers = {"authorization": f"Bearer {tokens['admin']}"}
            kept = httpx.get(f"{server.url}/v1/records", headers=headers, timeout=120, trust_env=False).text
            lost = set(clients.acknowledged) - {json.loads(line)["id"] for line in kept.splitlines()}
            report(server, clients, hostile, attacked, lost)
        finally:
            server.process.terminate()
            server.process.wait(60)
    sys.exit(bool(lost or clients.failures))


def _more_tokens(server: Server, admin: str) -> dict[str, str]:
    """Tokens of the hostile clients, one for each role that they use."""
    headers = {"authorization": f"Bearer {admin}"}
    with httpx.Client(base_url=server.url, headers=headers, trust_env=False, timeout=60) as client:
        answers = [
            client.post("/v1/tokens", json={"roles": [role], "name": "hostile"}) for role in ("detect", "generate")
        ]
    secrets = [str(answer.raise_for_status().json()["token"]) for answer in answers]
    return {"detect": secrets[0], "generate": secrets[1]}


if __name__ == "__main__":
    main()
