"""What hostile requests cost the service, and what a well-behaved client waits for beside them.

    python benchmarks/hardening.py
    python benchmarks/hardening.py --items flood

The service runs on stand-in models, with the helpers of the tests. Seconds are wall-clock seconds unless they are called CPU
seconds, so compare runs on an equally busy machine.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent.parent
TEXT = "The axolotl watched the violet lighthouse. It hummed a madrigal until dawn. Nobody answered the axolotl. "

Row = tuple[str, str]


@contextmanager
def process(**settings: Any) -> Iterator[tuple[Any, dict[str, str], int]]:
    """The service in a process of its own: the process, a token for each role, and the port."""
    from services import set_up, start_process

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        tokens = set_up(folder / "data")
        running = start_process(folder / "data", folder / "log", **{"rate": 0, "candidates": 4} | settings)
        try:
            yield running, tokens, int(running.url.rsplit(":", 1)[1])
        finally:
            running.running.kill()
            running.running.wait()


def post(url: str, token: str, **options: Any) -> Any:
    import httpx

    headers = {"authorization": f"Bearer {token}", "content-type": "application/json"}
    return httpx.post(url, headers=headers, timeout=300, trust_env=False, **options)


def memory(pid: int, field: str = "VmRSS") -> int:
    """Megabytes that a process uses."""
    return int(Path(f"/proc/{pid}/status").read_text().split(f"{field}:")[1].split()[0]) // 1024


def cpu_seconds(pid: int) -> float:
    """CPU time that a process has used."""
    user, system = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


class Watch:
    """Asks /healthz all the time and notes the longest answer."""

    def __init__(self, url: str) -> None:
        self.url, self.worst, self.over = url, 0.0, threading.Event()
        self.thread = threading.Thread(target=self._ask, daemon=True)

    def _ask(self) -> None:
        import httpx

        with httpx.Client(timeout=300, trust_env=False) as client:
            while not self.over.is_set():
                started = time.monotonic()
                with suppress(httpx.TransportError):
                    client.get(f"{self.url}/healthz")
                self.worst = max(self.worst, time.monotonic() - started)
                time.sleep(0.05)

    def __enter__(self) -> Watch:
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.over.set()
        self.thread.join(300)


# The items of the list


def event_loop() -> Iterator[Row]:
    with process() as (running, tokens, port):
        made = post(f"{running.url}/v1/keys", tokens["admin"], json={})
        with Watch(running.url) as watch:
            started = time.monotonic()
            for number in range(24):
                body = {"input": TEXT, "fpr": 0.0011 + number / 1000, "keys": [made.json()["id"]]}
                status = post(f"{running.url}/v1/detect", tokens["detect"], json=body).status_code
            yield "24 requests with 24 false-positive rates", f"{time.monotonic() - started:.1f} s, status {status}"
        yield "/healthz meanwhile, worst", f"{watch.worst:.2f} s"
        before = memory(running.running.pid)
        content = b'{"input": [' + b"1," * 2_000_000 + b"1]}"
        with Watch(running.url) as watch:
            started = time.monotonic()
            answer = post(f"{running.url}/v1/detect", tokens["detect"], content=content)
            took = time.monotonic() - started
        grown = memory(running.running.pid, "VmHWM") - before
        yield "4 MB of JSON integers", f"{took:.1f} s, {grown} MB more, status {answer.status_code}"
        yield "/healthz meanwhile, worst", f"{watch.worst:.2f} s"
        size, started = running.log.stat().st_size, time.monotonic()
        while time.monotonic() < started + 10:
            with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
                connection.sendall(b"GET /\x00 nonsense\r\n\r\n")
                connection.recv(100)
        grown_log = 6 * (running.log.stat().st_size - size) / 1e6
        yield "log of malformed requests", f"{grown_log:.2f} MB a minute"
        with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
            connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\nX-Half: ")
            started = time.monotonic()
            try:
                connection.recv(100)
                yield "half-sent headers are held for", f"{time.monotonic() - started:.0f} s"
            except TimeoutError:
                yield "half-sent headers are held for", "more than 30 s"


def starving() -> Iterator[Row]:
    with process() as (running, tokens, _):
        headers = {"authorization": f"Bearer {tokens['admin']}"}
        import httpx

        made = httpx.post(
            f"{running.url}/v1/tokens", json={"roles": ["detect"], "name": "b"}, headers=headers, trust_env=False
        )
        other = made.json()["token"]
        long = json.dumps({"input": [TEXT * 300] * 4, "search": "whole"})
        with ThreadPoolExecutor(4) as greedy:
            for _ in range(4):
                greedy.submit(post, f"{running.url}/v1/detect", tokens["detect"], content=long)
            time.sleep(2)
            started = time.monotonic()
            status = post(f"{running.url}/v1/detect", other, json={"input": TEXT}).status_code
            yield (
                "a short text beside 16 long ones of another token",
                f"{time.monotonic() - started:.1f} s, status {status}",
            )
            running.running.kill()
    with process(max_sentences=100) as (running, tokens, _):
        answer = post(f"{running.url}/v1/rewrite", tokens["generate"], json={"input": "Nobody came here. " * 2001})
        yield "rewriting of 2,001 sentences", f"status {answer.status_code}"
    with process() as (running, tokens, _):
        html = b"<div>" * 200_000
        headers = {"authorization": f"Bearer {tokens['admin']}"}
        made = httpx.post(
            f"{running.url}/v1/tokens", json={"roles": ["detect"], "name": "b"}, headers=headers, trust_env=False
        )
        with ThreadPoolExecutor(8) as greedy:
            for _ in range(8):
                greedy.submit(post, f"{running.url}/v1/extract?kind=html", tokens["detect"], content=html)
            time.sleep(1)
            started = time.monotonic()
            path = f"{running.url}/v1/extract?kind=html"
            status = post(path, made.json()["token"], content=b"<p>One came.</p>").status_code
            yield (
                "a small file beside 8 nested ones of another token",
                f"{time.monotonic() - started:.1f} s, status {status}",
            )
            running.running.kill()


# The flood: what a well-behaved client sees


def flood() -> Iterator[Row]:
    new_process = multiprocessing.get_context("spawn")
    with process() as (running, tokens, port):
        url, token = f"{running.url}/v1/detect", tokens["detect"]
        for _ in range(5):
            post(url, token, json={"input": TEXT})
        quiet = _latencies(url, token, 10, lambda: False)
        before = memory(running.running.pid)
        yield "a detection alone: worst", f"{max(quiet):.2f} s"
        for name, attack in (
            ("300 half-open connections", _half_open),
            ("60 bodies of 4 MiB without a token", _bodies),
            ("bodies of one-byte chunks", _chunks),
        ):
            # In a process of its own: in a thread it would slow down the client that is measured.
            over = new_process.Event()
            attacker = new_process.Process(target=attack, args=(port, token, over), daemon=True)
            attacker.start()
            time.sleep(2)
            seen = _latencies(url, token, 20, over.is_set)
            over.set()
            attacker.join(60)
            yield f"beside {name}: median / worst", f"{sorted(seen)[len(seen) // 2]:.2f} / {max(seen):.2f} s"
        time.sleep(20)
        now, most = memory(running.running.pid), memory(running.running.pid, "VmHWM")
        yield "MB of memory before / most / 20 s after", f"{before} / {most} / {now}"


def _latencies(url: str, token: str, seconds: float, over: Callable[[], bool]) -> list[float]:
    seen: list[float] = []
    until = time.monotonic() + seconds
    while not seen or (time.monotonic() < until and not over()):
        started = time.monotonic()
        with suppress(OSError, Exception):
            post(url, token, json={"input": TEXT})
        seen.append(time.monotonic() - started)
        time.sleep(0.05)
    return seen


def _half_open(port: int, token: str, over: Event) -> None:
    with ExitStack() as stack:
        for _ in range(300):
            connection = stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=30))
            connection.sendall(b"POST /v1/detect HTTP/1.1\r\nHost: a\r\nX-Slow: ")
        over.wait()


def _bodies(port: int, token: str, over: Event) -> None:
    with ThreadPoolExecutor(60) as clients:
        while not over.is_set():
            list(clients.map(_send_body, [port] * 60))


def _send_body(port: int) -> None:
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
        connection.sendall(b"POST /v1/detect HTTP/1.1\r\nHost: a\r\nContent-Length: 4194304\r\n\r\n")
        for _ in range(64):
            connection.sendall(b"a" * 65536)
        connection.recv(100)


def _chunks(port: int, token: str, over: Event) -> None:
    head = f"POST /v1/detect HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {token}\r\nTransfer-Encoding: chunked\r\n\r\n"

    def send(_: int) -> None:
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
            connection.sendall(head.encode())
            while not over.is_set():
                connection.sendall(b"1\r\n[\r\n" * 1000)

    with ThreadPoolExecutor(4) as clients:
        while not over.is_set():
            list(clients.map(send, range(4)))


def refusals() -> Iterator[Row]:
    """What a body without a token costs the service, which unlike seconds does not depend on other programs."""
    with process() as (running, _, port):
        pid, count = running.running.pid, 0
        before, until = cpu_seconds(pid), time.monotonic() + 10
        while time.monotonic() < until:
            _send_body(port)
            count += 1
        yield "CPU time for a body of 4 MiB without a token", f"{1000 * (cpu_seconds(pid) - before) / count:.2f} ms"


def long_texts() -> Iterator[Row]:
    """What long texts leave in the memory of the service."""
    texts = (TEXT * 200, "!?" * 20_000, "؟" * 20_000, " \t" * 20_000 + "a.", "a. " * 10_000)
    with process(timeout=300) as (running, tokens, _):
        pid = running.running.pid
        before = memory(pid)
        for number in range(20):
            body = {"input": [texts[number % 5]] * (1, 4)[number // 5 % 2], "search": ("whole", "auto")[number // 10]}
            post(f"{running.url}/v1/detect", tokens["detect"], json=body)
        time.sleep(5)
        kept = f"{before} / {memory(pid, 'VmHWM')} / {memory(pid)}"
        yield "MB of memory before 20 requests with long texts / most / after", kept


ITEMS = {item.__name__: item for item in (event_loop, starving, flood, refusals, long_texts)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--items", nargs="+", choices=ITEMS, default=list(ITEMS))
    args = parser.parse_args()
    sys.path[:0] = [str(HERE / "tests" / "serve"), str(HERE / "tests")]
    print("| attempt | outcome |\n| --- | --- |", flush=True)
    for name in args.items:
        for attempt, outcome in ITEMS[name]():
            print(f"| {attempt} | {outcome} |", flush=True)


if __name__ == "__main__":
    main()
