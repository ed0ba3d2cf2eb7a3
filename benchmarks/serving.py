"""Detections over HTTP from a second process, against the same texts through the library in one batch.

    python benchmarks/serving.py                                      # 5,000 texts of 12 sentences, 32 at a time
    python benchmarks/serving.py --texts 200 --reference 200          # small
    python benchmarks/serving.py --embedder stand-in                  # what HTTP, queue and records cost by themselves

The rival is `detect_batch` on the first `--reference` texts in one call, in a process of its own, before and after. The
server's model is a stand-in: nothing is written here. At the end ten times the queue is sent at once.
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
from itertools import islice
from pathlib import Path
from typing import Any

import httpx
import numpy as np

from alimark.embed import Embedder, load_embedder
from alimark.key import Key
from alimark.testing import StandInEmbedder, StandInLLM
from detection import sentences


def texts_of(count: int, length: int) -> list[str]:
    """No sentence twice: a large batch embeds what its texts share once, and would be flattered by it."""
    all_of_them = sentences(count * length)
    assert len(all_of_them) == count * length
    return [" ".join(all_of_them[start : start + length]) for start in range(0, count * length, length)]


def embedder_of(name: str) -> Embedder:
    return StandInEmbedder() if name == "stand-in" else load_embedder(name)


def library(name: str, key_file: str, texts: list[str], out: Any) -> None:
    """Texts a second and CPU seconds a text, everything loaded and warm."""
    from alimark.detector import DetectionSettings, detect_batch

    key, embedder = Key.load(key_file), embedder_of(name)
    detect_batch(texts[:4], key, embedder, DetectionSettings())
    started, spent = time.perf_counter(), time.process_time()
    detect_batch(texts, key, embedder, DetectionSettings())
    out.put((len(texts) / (time.perf_counter() - started), (time.process_time() - spent) / len(texts)))


def serve(data: str, port: int, name: str, queue: int) -> None:
    from alimark.serve.app import run
    from alimark.serve.service import Service
    from alimark.serve.settings import Settings

    settings = Settings(data=Path(data), port=port, embedder=name, rate=0, concurrency=100_000, detect_queue=queue)
    run(Service(settings, llm=lambda _: StandInLLM(), embedder=embedder_of))


def set_up(data: Path, name: str) -> tuple[str, str, Path]:
    from alimark.serve.auth import Tokens
    from alimark.serve.database import Store
    from alimark.serve.ring import Ring

    store = Store(f"sqlite:///{data / 'alimark.db'}")
    label = Ring(data / "keys", store).create(embedder_of(name))
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


async def load(
    client: httpx.AsyncClient, texts: list[str], key: str, at_once: int, pid: int
) -> tuple[Counter[int], Any, Any]:
    statuses: Counter[int] = Counter()
    times: list[float] = []
    held: list[float] = []
    waiting = iter(texts)

    async def one() -> None:
        for text in waiting:
            started = time.perf_counter()
            answer = await client.post("/v1/detect", json={"input": text, "keys": [key]})
            times.append(time.perf_counter() - started)
            statuses[answer.status_code] += 1
            if len(times) % max(1, len(texts) // 10) == 0:
                held.append(memory(pid))

    await asyncio.gather(*(one() for _ in range(at_once)))
    return statuses, np.array(times), held


async def flood(client: httpx.AsyncClient, texts: list[str], key: str, count: int) -> Counter[int]:
    async def one(text: str) -> int:
        return (await client.post("/v1/detect", json={"input": text, "keys": [key]})).status_code

    many = islice((text for _ in iter(int, 1) for text in texts), count)
    return Counter(await asyncio.gather(*(one(text) for text in many)))


async def drive(given: argparse.Namespace, url: str, token: str, key: str, texts: list[str], pid: int) -> float:
    limits = httpx.Limits(max_connections=None)
    headers = {"authorization": f"Bearer {token}"}
    async with httpx.AsyncClient(base_url=url, headers=headers, timeout=3600, limits=limits, trust_env=False) as client:
        until = time.monotonic() + 120
        while time.monotonic() < until:
            try:
                await client.get("/healthz")
                break
            except httpx.TransportError:
                await asyncio.sleep(0.2)
        await load(client, texts[:8], key, 4, pid)
        started, before = time.perf_counter(), cpu(pid)
        statuses, times, held = await load(client, texts, key, given.at_once, pid)
        rate, spent = len(texts) / (time.perf_counter() - started), (cpu(pid) - before) / len(texts)
        print(f"CPU of the server: {spent:.4f} s a text")
        p50, p99 = np.percentile(times, [50, 99])
        print(f"service: {len(texts):,} texts, {given.at_once} at a time, answers {dict(statuses)}, {rate:.2f} texts/s")
        print(f"time of a request: p50 {p50:.3f} s, p99 {p99:.3f} s")
        print("memory of the server (MiB), at each tenth: " + " ".join(f"{one:.0f}" for one in held))
        if given.flood:
            count = 10 * given.queue
            print(f"{count} requests at once, {given.queue} may wait: {dict(await flood(client, texts, key, count))}")
            print(f"afterwards: {(await client.get('/healthz')).json()}")
        return rate


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--texts", type=int, default=5000)
    parser.add_argument("--sentences", type=int, default=12)
    parser.add_argument("--at-once", type=int, default=32)
    parser.add_argument("--reference", type=int, default=None, help="texts of the rival; all, by default")
    parser.add_argument("--embedder", default="all-MiniLM-L6-v2")
    parser.add_argument("--queue", type=int, default=64)
    parser.add_argument("--flood", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--serve", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.serve:
        serve(given.serve[0], int(given.serve[1]), given.embedder, given.queue)
        return
    texts = texts_of(given.texts, given.sentences)
    with tempfile.TemporaryDirectory() as folder, socket.socket() as free:
        key, token, key_file = set_up(Path(folder), given.embedder)
        spawn = multiprocessing.get_context("spawn")
        out = spawn.SimpleQueue()
        measured = []

        def measure() -> None:
            some = texts[: given.reference or len(texts)]
            rival = spawn.Process(target=library, args=(given.embedder, str(key_file), some, out))
            rival.start()
            rate, spent = out.get()
            measured.append(rate)
            rival.join()
            print(f"library, one batch of {len(some):,} texts: {rate:.2f} texts/s, CPU {spent:.4f} s a text")

        measure()
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        free.close()
        words = ["--embedder", given.embedder, "--queue", str(given.queue), "--serve", folder, str(port)]
        with subprocess.Popen([sys.executable, __file__, *words], stderr=subprocess.DEVNULL) as server:
            try:
                rate = asyncio.run(drive(given, f"http://127.0.0.1:{port}", token, key, texts, server.pid))
            finally:
                server.terminate()
        measure()
        print(f"ratio to the library: {rate / np.mean(measured):.2f}")


if __name__ == "__main__":
    main()
