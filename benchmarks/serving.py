"""Detections over HTTP from a second process, against the same texts through the library in one batch.

    python benchmarks/serving.py                                 # 5,000 texts of 12 sentences, 32 at a time
    python benchmarks/serving.py --texts 200 --block 200         # small
    python benchmarks/serving.py --embedder stand-in             # what HTTP, queue and records cost by themselves
    python benchmarks/serving.py --texts 32 --llm smollm2-135m   # a start with the language model, which detection needs not

The rival is `detect_batch` in a process of its own, everything loaded and warm. Texts are taken in blocks: the library has a
block in one call, then the service has the same texts, and at the next block the service goes first, so that whatever else
the machine does hits both. Before that the server is killed and started again, from its exec to its first answer; at the end
ten times the queue is sent at once.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import httpx
import numpy as np

from alimark.core.embedding.base import Embedder
from alimark.core.embedding.loading import load_embedder
from alimark.core.keys.key import Key
from alimark.core.llm import load_llm
from alimark.testing import StandInEmbedder, StandInLLM


def texts_of(count: int, length: int) -> list[str]:
    """No sentence twice: a large batch embeds what its texts share once, and would be flattered by it."""
    from detection import sentences  # not at the top: the services of other checkouts are started with this file, too

    all_of_them = sentences(count * length)
    assert len(all_of_them) == count * length
    return [" ".join(all_of_them[start : start + length]) for start in range(0, count * length, length)]


def embedder_of(name: str) -> Embedder:
    return StandInEmbedder() if name == "stand-in" else load_embedder(name)


def llm_of(name: str) -> Any:
    return StandInLLM() if name == "stand-in" else load_llm(name)


def library(name: str, key_file: str, pipe: Any) -> None:
    """Seconds and CPU seconds of each batch that is sent; everything loaded and warm."""
    from alimark.core.detection.pipeline import detect_batch
    from alimark.core.detection.settings import DetectionSettings

    key, embedder = Key.load(key_file), embedder_of(name)
    while texts := pipe.recv():
        started, spent = time.perf_counter(), time.process_time()
        detect_batch(texts, [key], embedder, DetectionSettings())
        pipe.send((time.perf_counter() - started, time.process_time() - spent))


def serve(data: str, port: int, embedder: str, llm: str, queue: int) -> None:
    from alimark.serve.app import run
    from alimark.serve.service import Service
    from alimark.serve.settings import Settings

    settings = Settings(
        data=Path(data), port=port, embedder=embedder, llm=llm, rate=0, concurrency=100_000, detect_queue=queue
    )
    run(Service(settings, llm=llm_of, embedder=embedder_of))


def set_up(data: Path, name: str) -> tuple[str, str, Path]:
    from alimark.serve.auth import Tokens
    from alimark.serve.database import Store
    from alimark.serve.ring import Ring

    store = Store(f"sqlite:///{data / 'alimark.db'}")
    label = Ring(data / "keys", store).create(embedder_of(name), decision="hard")
    _, token = Tokens(store).create(["detect"])
    store.close()
    return label.id, token, data / "keys" / f"{label.id}.json"


def memory(pid: int) -> float:
    """MiB that a process holds."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS")) / 1024


def cpu(pid: int) -> float:
    """Seconds that a process has computed, in all of its threads."""
    spent = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
    return sum(map(int, spent)) / os.sysconf("SC_CLK_TCK")


@dataclass
class Seen:
    """What the clients saw."""

    statuses: Counter[int] = field(default_factory=Counter)
    times: list[float] = field(default_factory=list)

    def __str__(self) -> str:
        p50, p99 = np.percentile(self.times, [50, 99])
        return f"answers {dict(self.statuses)}, time of a request p50 {p50:.2f} s, p99 {p99:.2f} s"


class Clients:
    """So many at a time, each with its next text as soon as it is answered."""

    def __init__(self, url: str, token: str, key: str) -> None:
        self._key = key
        self.client = httpx.AsyncClient(
            base_url=url, headers={"authorization": f"Bearer {token}"}, timeout=3600,
            limits=httpx.Limits(max_connections=None), trust_env=False,
        )  # fmt: skip

    async def ask(self, text: str) -> int:
        return (await self.client.post("/v1/detect", json={"input": text, "keys": [self._key]})).status_code

    async def load(self, texts: list[str], at_once: int, seen: Seen) -> float:
        """The seconds that all of them took."""
        waiting = iter(texts)

        async def one() -> None:
            for text in waiting:
                started = time.perf_counter()
                seen.statuses[await self.ask(text)] += 1
                seen.times.append(time.perf_counter() - started)

        began = time.perf_counter()
        await asyncio.gather(*(one() for _ in range(at_once)))
        return time.perf_counter() - began

    async def flood(self, texts: list[str], count: int) -> Counter[int]:
        many = islice((text for _ in iter(int, 1) for text in texts), count)
        return Counter(await asyncio.gather(*(self.ask(text) for text in many)))

    async def first_answer(self, text: str) -> None:
        until = time.monotonic() + 300
        while time.monotonic() < until:
            with suppress(httpx.TransportError):
                assert await self.ask(text) == 200
                return
            await asyncio.sleep(0.05)
        raise TimeoutError("the server does not answer")


async def compare(given: argparse.Namespace, clients: Clients, rival: Any, texts: list[str], pid: int) -> None:
    """Both sides, block by block; every line holds for all blocks so far."""
    seen, spent = Seen(), {"library": 0.0, "service": 0.0}
    computed = {"library": 0.0, "service": 0.0}

    async def by_library(block: list[str]) -> None:
        rival.send(block)
        while not rival.poll():
            await asyncio.sleep(0.05)
        took, used = rival.recv()
        spent["library"] += took
        computed["library"] += used

    async def by_service(block: list[str]) -> None:
        before = cpu(pid)
        spent["service"] += await clients.load(block, given.at_once, seen)
        computed["service"] += cpu(pid) - before

    await by_library(texts[:4])
    await clients.load(texts[:8], 4, Seen())
    spent, computed = dict.fromkeys(spent, 0.0), dict.fromkeys(computed, 0.0)
    print(f"memory of the server, warm: {memory(pid):.0f} MiB", flush=True)
    for number, start in enumerate(range(0, len(texts), given.block)):
        block = texts[start : start + given.block]
        for side in (by_library, by_service) if number % 2 == 0 else (by_service, by_library):
            await side(block)
        done = start + len(block)
        rates = {side: done / seconds for side, seconds in spent.items()}
        print(
            f"{done:,} texts: library {rates['library']:.2f} texts/s, CPU {computed['library'] / done:.3f} s a text; service "
            f"{rates['service']:.2f} texts/s, CPU {computed['service'] / done:.3f} s; ratio "
            f"{rates['service'] / rates['library']:.2f}; {seen}; memory {memory(pid):.0f} MiB",
            flush=True,
        )


class Server:
    """The service as a program of its own."""

    def __init__(self, given: argparse.Namespace, folder: str) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self._port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{self._port}"
        self._words = [
            sys.executable, __file__, "--embedder", given.embedder, "--llm", given.llm, "--queue", str(given.queue),
            "--serve", folder, str(self._port),
        ]  # fmt: skip

    def start(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen(self._words, stderr=subprocess.DEVNULL)


async def drive(given: argparse.Namespace, server: Server, clients: Clients, rival: Any, texts: list[str]) -> None:
    for what in ("first start", "start after kill -9"):
        began = time.perf_counter()
        running = server.start()
        await clients.first_answer(texts[0])
        print(f"{what}: {time.perf_counter() - began:.1f} s from exec to the first answered detection", flush=True)
        if what == "first start":
            running.kill()
            running.wait()
    try:
        await compare(given, clients, rival, texts, running.pid)
        if given.flood:
            count = 10 * given.queue
            print(f"{count} requests at once, {given.queue} may wait: {dict(await clients.flood(texts, count))}")
            print(f"afterwards: {(await clients.client.get('/healthz')).json()}")
    finally:
        running.terminate()
        running.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--texts", type=int, default=5000)
    parser.add_argument("--sentences", type=int, default=12)
    parser.add_argument("--at-once", type=int, default=32)
    parser.add_argument("--block", type=int, default=500, help="texts of one batch of the library")
    parser.add_argument("--embedder", default="all-MiniLM-L6-v2")
    parser.add_argument("--llm", default="stand-in")
    parser.add_argument("--queue", type=int, default=64)
    parser.add_argument("--flood", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--serve", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.serve:
        serve(given.serve[0], int(given.serve[1]), given.embedder, given.llm, given.queue)
        return
    texts = texts_of(given.texts, given.sentences)
    with tempfile.TemporaryDirectory() as folder:
        key, token, key_file = set_up(Path(folder), given.embedder)
        server = Server(given, folder)
        spawn = multiprocessing.get_context("spawn")
        ours, theirs = spawn.Pipe()
        rival = spawn.Process(target=library, args=(given.embedder, str(key_file), theirs), daemon=True)
        rival.start()
        asyncio.run(drive(given, server, Clients(server.url, token, key), ours, texts))
        ours.send([])
        rival.join()


if __name__ == "__main__":
    main()
