"""What each defect of the hardening cost before it was mended, and what it costs now: the same attempts on two trees.

    python benchmarks/hardening.py                                     # this tree
    git worktree add --detach /tmp/before 9c5ff19                      # the last commit before the hardening
    python benchmarks/hardening.py --tree /tmp/before
    python benchmarks/hardening.py --items flood                       # the well-behaved client beside a flood

The service runs on stand-in models, with the helpers of that tree's tests. Seconds are wall-clock seconds unless they are
called CPU seconds, so compare runs on an equally busy machine.
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
from functools import partial
from importlib import import_module
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent.parent
TEXT = "The axolotl watched the violet lighthouse. It hummed a madrigal until dawn. Nobody answered the axolotl. "
DAY = 86400.0

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


@contextmanager
def in_this_process(**settings: Any) -> Iterator[Any]:
    from services import serving

    with (
        tempfile.TemporaryDirectory() as name,
        serving(Path(name), **{"rate": 0, "candidates": 4} | settings) as running,
    ):
        yield running


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


def quadratic_text() -> Iterator[Row]:
    from alimark.core.frozen.text.splitting import splitter
    from alimark.core.frozen.text.units import clean

    cutter = splitter()
    cutter.spans(TEXT)
    for name, text in (
        ("!?", "!?" * 10_000),
        ("Arabic question marks", "؟" * 20_000),
        ("blank and tab", " \t" * 10_000),
    ):
        started = time.process_time()
        cutter.spans(f"{text}a.")
        clean(f"{text}a.")
        yield f"1. 20,000 characters of {name}", f"{time.process_time() - started:.2f} CPU s"


def pieces() -> Iterator[Row]:
    from alimark.testing import StandInEmbedder

    with in_this_process(candidates=24) as running:
        label = running.service.ring.create(StandInEmbedder())
        with suppress(AttributeError):
            running.service.ring.activate(label.id)
        found = 0
        for number in range(12):
            text = f"Report {number} on the harbour."
            with running.client("generate") as writer, running.client("detect") as detector:
                for part in range(12):
                    body = {"prompt": text, "sentences": 1, "seed": 100 * number + part}
                    text += " " + writer.post("/v1/completions", json=body).json()["choices"][0]["text"].strip()
                marked = text.split(". ", 1)[1]
                answer = detector.post("/v1/detect", json={"input": marked, "keys": [label.id]}).json()
            found += answer["results"][0]["p_value"] <= 0.01
    yield "2. texts of 12 requests of a sentence found, p <= 0.01", f"{found} of 12"


def event_loop() -> Iterator[Row]:
    with process() as (running, tokens, port):
        made = post(f"{running.url}/v1/keys", tokens["admin"], json={})
        with Watch(running.url) as watch:
            started = time.monotonic()
            for number in range(24):
                body = {"input": TEXT, "fpr": 0.0011 + number / 1000, "keys": [made.json()["id"]]}
                status = post(f"{running.url}/v1/detect", tokens["detect"], json=body).status_code
            yield "3. 24 requests with 24 false-positive rates", f"{time.monotonic() - started:.1f} s, status {status}"
        yield "3. /healthz meanwhile, worst", f"{watch.worst:.2f} s"
        before = memory(running.running.pid)
        content = b'{"input": [' + b"1," * 2_000_000 + b"1]}"
        with Watch(running.url) as watch:
            started = time.monotonic()
            answer = post(f"{running.url}/v1/detect", tokens["detect"], content=content)
            took = time.monotonic() - started
        grown = memory(running.running.pid, "VmHWM") - before
        yield "3. 4 MB of JSON integers", f"{took:.1f} s, {grown} MB more, status {answer.status_code}"
        yield "3. /healthz meanwhile, worst", f"{watch.worst:.2f} s"
        size, started = running.log.stat().st_size, time.monotonic()
        while time.monotonic() < started + 10:
            with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
                connection.sendall(b"GET /\x00 nonsense\r\n\r\n")
                connection.recv(100)
        grown_log = 6 * (running.log.stat().st_size - size) / 1e6
        yield "3. log of malformed requests", f"{grown_log:.2f} MB a minute"
        with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
            connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\nX-Half: ")
            started = time.monotonic()
            try:
                connection.recv(100)
                yield "3. half-sent headers are held for", f"{time.monotonic() - started:.0f} s"
            except TimeoutError:
                yield "3. half-sent headers are held for", "more than 30 s"


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
                "4. a short text beside 16 long ones of another token",
                f"{time.monotonic() - started:.1f} s, status {status}",
            )
            running.running.kill()
    with process(max_sentences=100) as (running, tokens, _):
        answer = post(f"{running.url}/v1/rewrite", tokens["generate"], json={"input": "Nobody came here. " * 2001})
        yield "4. rewriting of 2,001 sentences", f"status {answer.status_code}"
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
                "4. a small file beside 8 nested ones of another token",
                f"{time.monotonic() - started:.1f} s, status {status}",
            )
            running.running.kill()


def upstream() -> Iterator[Row]:
    from alimark.core.llm.openai import OpenAI

    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
    llm = OpenAI(f"http://127.0.0.1:{port}/v1", "m", dialect="openai", backoff=0.0, retries=0)
    with in_this_process(writer=llm) as running, running.client("generate") as client:
        text = client.post("/v1/completions", json={"prompt": "So.", "sentences": 1}).text
    yield "4. the address of the upstream server in an error", "yes" if str(port) in text else "no"


def clock() -> Iterator[Row]:
    from alimark.serve.database import Store
    from alimark.serve.records import RecordLog
    from alimark.serve.ring import Ring
    from alimark.testing import StandInEmbedder

    right, now = time.time, [1_800_000_000.0]
    time.time = lambda: now[0]
    try:
        with tempfile.TemporaryDirectory() as name:
            store = Store(f"sqlite:///{Path(name) / 'alimark.db'}")
            ring = Ring(Path(name) / "keys", store)
            ring.rotate(ring.create(StandInEmbedder()).id, StandInEmbedder())
            now[0] -= 2
            yield "5. keys that detect, 2 s back after a rotation", _outcome(lambda: f"{len(ring.detecting(''))} of 2")
            yield "5. a key that marks then", _outcome(lambda: "yes" if ring.marking("", "m") else "no")
            now[0] += 2
            log = RecordLog(store)
            yield "5. records deleted by a clock ten years ahead, of 10", _outcome(lambda: _pruned(store, log, now))
            store.close()
    finally:
        time.time = right


def _pruned(store: Any, log: Any, now: list[float]) -> str:
    from alimark.serve.auth import Token
    from alimark.serve.records import of_text

    token = Token("tk000000000000", ("generate",), "", "t", now[0])
    for _ in range(10):
        store.do(log.writing([of_text("generate", TEXT, "ak" + "0" * 18, [1], 8, token, llm="m")]))
    now[0] += 3650 * DAY
    try:
        return str(log.prune(30))
    except Exception as error:
        return f"0 ({type(error).__name__})"


def _outcome(work: Callable[[], str]) -> str:
    try:
        return work()
    except Exception as error:
        return f"{type(error).__name__}: {str(error)[:60]}"


def health() -> Iterator[Row]:
    full = "CREATE TRIGGER full BEFORE INSERT ON records BEGIN SELECT RAISE(ABORT, 'the disk is full'); END"
    for name, damage in (("a full disk", full), ("a damaged table", "DROP TABLE records")):
        with in_this_process() as running, running.client("detect") as client:
            running.service.store.do(lambda db, damage=damage: db.execute(damage))
            statuses = [client.get(path).status_code for path in ("/healthz", "/readyz")]
            detect = client.post("/v1/detect", json={"input": TEXT}).status_code
        yield f"6. {name}: /healthz, /readyz, a detection", f"{statuses[0]}, {statuses[1]}, {detect}"


def _read(content: bytes) -> str:
    from alimark.core.keys.key import Key

    Key._decoded(content, "key.json")
    return "accepted"


def key_files() -> Iterator[Row]:
    fuzz: Any = import_module("fuzz")  # tools/fuzz.py of this tree

    yield "7. 5,000 damaged key files: undeclared errors", str(fuzz.fuzz("keys", inputs=5000).crashes)
    from alimark.core.keys.key import Key
    from alimark.testing import StandInEmbedder

    for name, field in (("block_size = true", {"block_size": True}), ("an empty embedder", {"embedder": ""})):
        content = json.loads(Key.generate(embedder=StandInEmbedder(), secret=bytes(32))._encoded())
        content.pop("id", None)
        content |= {key: value for key, value in field.items() if key in content}
        if "parameters" in content:
            content["parameters"] |= {key: value for key, value in field.items() if key in content["parameters"]}
        outcome = _outcome(partial(_read, json.dumps(content).encode()))
        yield f"7. a key file with {name}", outcome.split(":")[0]


def surrogates() -> Iterator[Row]:
    with in_this_process() as running, running.client("detect") as client:
        body = b'{"input": "One \\ud800 came. Two went.", "evidence": true}'
        answer = client.post("/v1/detect", content=body, headers={"content-type": "application/json"})
    yield "8. a lone surrogate with evidence", f"status {answer.status_code}"


def supply_chain() -> Iterator[Row]:
    tree = Path(os.environ["HARDENING_TREE"])
    files = [path for path in (tree / "requirements-dev.txt", tree / "deploy" / "requirements.txt") if path.exists()]
    pins = (tree / "constraints.txt").read_text().splitlines()
    hashed = sum(path.read_text().count("==") for path in files[:1])
    yield "9. pinned packages with hashes", f"{hashed} of {sum('==' in pin for pin in pins)}"
    words = (tree / "deploy" / "alimark.service").read_text() + (tree / "deploy" / "Containerfile").read_text()
    words += (tree / "deploy" / "compose.yaml").read_text() if (tree / "deploy" / "compose.yaml").exists() else ""
    for name, marks in (
        ("not root", ("USER ",)), ("read-only file system", ("read_only: true",)),
        ("limit of memory in unit and compose file", ("MemoryMax", "mem_limit")),
    ):  # fmt: skip
        yield f"9. container: {name}", "yes" if all(mark in words for mark in marks) else "no"
    bill = tree / "deploy" / "sbom.cdx.json"
    count = len(json.loads(bill.read_text())["components"]) if bill.exists() else 0
    yield "9. packages in the bill of materials", str(count)


# The flood: what a well-behaved client sees


def flood() -> Iterator[Row]:
    new_process = multiprocessing.get_context("spawn")
    with process() as (running, tokens, port):
        url, token = f"{running.url}/v1/detect", tokens["detect"]
        for _ in range(5):
            post(url, token, json={"input": TEXT})
        quiet = _latencies(url, token, 10, lambda: False)
        before = memory(running.running.pid)
        yield "10. a detection alone: worst", f"{max(quiet):.2f} s"
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
            yield f"10. beside {name}: median / worst", f"{sorted(seen)[len(seen) // 2]:.2f} / {max(seen):.2f} s"
        time.sleep(20)
        now, most = memory(running.running.pid), memory(running.running.pid, "VmHWM")
        yield "10. MB of memory before / most / 20 s after", f"{before} / {most} / {now}"


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
        yield "10. CPU time for a body of 4 MiB without a token", f"{1000 * (cpu_seconds(pid) - before) / count:.2f} ms"


ITEMS = {
    item.__name__: item
    for item in (
        quadratic_text, pieces, event_loop, starving, upstream, clock, health, key_files, surrogates, supply_chain, flood,
        refusals,
    )
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tree", type=Path, default=HERE, help="the checkout to try")
    parser.add_argument("--items", nargs="+", choices=ITEMS, default=list(ITEMS))
    args = parser.parse_args()
    tree = args.tree.resolve()
    os.environ["HARDENING_TREE"], os.environ["PYTHONPATH"] = str(tree), str(tree / "src")
    sys.path[:0] = [str(tree / "src"), str(tree / "tests" / "serve"), str(tree / "tests"), str(HERE / "tools")]
    print("| attempt | outcome |\n| --- | --- |", flush=True)
    for name in args.items:
        try:
            for attempt, outcome in ITEMS[name]():
                print(f"| {attempt} | {outcome} |", flush=True)
        except Exception as error:
            print(f"| {name} | {type(error).__name__}: {str(error)[:200]} |", flush=True)


if __name__ == "__main__":
    main()
