"""Throws damaged input at everything that reads what others wrote, and reports crashes and hangs.

    python tools/fuzz.py --seconds 600                      # all targets, ten minutes each (`make fuzz`)
    python tools/fuzz.py --seconds 60 --targets keys http

A target reads an input and may refuse it with a declared error (a subclass of AlimarkError, or a status below 500 other than
those of the upstream). Anything else is a crash, and more than ten seconds of CPU time are a hang; both end with the status 1,
and the input is saved in the corpus, which lies in tests/fuzz/corpus and is run first. `make test` runs the corpus and a few
hundred mutations with a fixed seed.
"""

from __future__ import annotations

import argparse
import asyncio
import faulthandler
import hashlib
import json
import random
import shutil
import sys
import tempfile
import time
import traceback
import unicodedata
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from alimark.errors import AlimarkError

CORPUS = Path(__file__).parent.parent / "tests" / "fuzz" / "corpus"
HANG_SECONDS = 10.0
"""CPU time of one input."""
LARGEST = 100_000
"""Bytes of an input."""

Target = Callable[[bytes], None]
ODD: list[Any] = [
    None, True, -1, 0, 10**400, 2**63, 1e308, float("nan"), float("inf"), "", " ", "x", "\ud800", [], [1], [[999]], {},
    {"a": 1}, "A" * 44, "." * 999, "\x00", "/etc/passwd", "http://127.0.0.1:1/", "ak0123456789abcdef01", [[]] * 99,
    "é" * 999, 0.01,
]  # fmt: skip
TOKENS = [
    b"\x00", b"\xff", b"\xfe\xff", b"\xed\xa0\x80", b"\\ud800", b"1e999", b"NaN", b"-0", b"true", b"null", b'"', b"'",
    b"{", b"}", b"[", b"]", b"[[", b"]]", b"<", b">", b"<!DOCTYPE", b"&amp;", b"\r\n", b"\n", b"\n\n", b"```", b"%", b"#", b"=",
    b",", b".", b"!?",
    b"\xe2\x80\xae", b"\xef\xbb\xbf", b"\xe3\x80\x82", b"\xd8\x9f", b"e.g. ", b"Dr. ", b"{\\rtf1", b"%PDF-1.7", b"PK\x03\x04",
]  # fmt: skip


# The targets. Each is made in a folder of its own, and gives back a function that reads one input.


@contextmanager
def keys(folder: Path) -> Iterator[Target]:
    from alimark.core.keys.key import Key

    def read(data: bytes) -> None:
        content = _json(data)
        if isinstance(content, dict) and len(data) % 4:  # most changes are refused by the id that the file stores
            content.pop("id", None)
            data = json.dumps(content).encode()
        key = Key._decoded(data, "key.json")
        repr(key).encode()
        if key.scheme == "alimark":
            key.blocks(3)
            key.vectors(64)

    yield read


@contextmanager
def jsonl(folder: Path) -> Iterator[Target]:
    from alimark.core._util.jsonl import JsonlWriter, read_jsonl

    path, out = folder / "in.jsonl", folder / "out.jsonl"

    def read(data: bytes) -> None:
        path.write_bytes(data)
        records = [record for _, record in read_jsonl(path) if isinstance(record, dict)]
        shutil.copy(path, out)
        with JsonlWriter(out) as writer:  # goes on behind whatever the file holds
            for number, record in enumerate(records):
                writer.write(record | {"id": f"new {number}"})

    yield read


@contextmanager
def recipes(folder: Path) -> Iterator[Target]:
    from alimark.lab.bench.recipe_files import load

    path = folder / "recipe.toml"

    def read(data: bytes) -> None:
        path.write_bytes(data)
        load(path)

    yield read


@contextmanager
def documents(folder: Path) -> Iterator[Target]:
    from alimark.audit.documents.kinds import KINDS
    from alimark.audit.documents.reading import read_document

    def read(data: bytes) -> None:
        """The first line of an input is the kind that a client declares."""
        kind, _, content = data.partition(b"\n")
        name = kind.decode("ascii", "replace")
        read_document(content, kind=name if name in KINDS else None, max_characters=LARGEST)

    yield read


@contextmanager
def parquet(folder: Path) -> Iterator[Target]:
    from alimark.audit.files import find, plan, read

    path = folder / "in.parquet"

    def read_all(data: bytes) -> None:
        path.write_bytes(data)
        files, sources, _ = find([str(path)])
        count = 0
        for block in plan(files, sources):
            for document in read(files, block, ["text", "id"], LARGEST):
                document.text("text")
                count += 1
                if count > LARGEST:
                    raise AssertionError("more rows than bytes")

    yield read_all


@contextmanager
def texts(folder: Path) -> Iterator[Target]:
    from alimark import AliMark, Key
    from alimark.core.text.language import looks_english
    from alimark.lab.attacks import load_attack
    from alimark.testing import StandInEmbedder

    embedder = StandInEmbedder()
    marks = [
        AliMark(Key.generate(embedder=embedder, secret=bytes(32), **parameters), embedder=embedder)  # type: ignore[arg-type]
        for parameters in ({}, {"decision": "hard"}, {"starts": "conversation"})
    ]
    attacks = [load_attack(name, rate=0.5) for name in ("delete", "merge", "split", "reorder")]
    for mark in marks:  # compiles the kernels, which is not the work of an input
        for text in ("One came. Two went. ", "one came and two went but nobody saw what they did there "):
            mark.detect(text * 9, draws=19)
            mark.detect(text * 9, draws=19, search="excerpt")

    def read(data: bytes) -> None:
        text = data.decode("utf-8", "surrogateescape" if len(data) % 2 else "replace")[:5000]
        looks_english(text)
        marks[len(text) % 3].detect(text, draws=19, search="excerpt" if len(text) % 5 == 0 else "whole").report()
        attacks[len(text) % 4](text, 1)

    yield read


@contextmanager
def http(folder: Path) -> Iterator[Target]:
    import httpx

    from alimark.serve.app import create_app
    from alimark.serve.service import Service
    from alimark.serve.settings import Settings
    from alimark.testing import StandInEmbedder, StandInLLM

    settings = Settings(
        data=folder, candidates=4, embedder="stand-in", llm="stand-in", rate=0, max_sentences=12, max_work=4
    )
    service = Service(settings, llm=lambda _: StandInLLM(), embedder=lambda _: StandInEmbedder())
    service.ring.create(StandInEmbedder())
    _, secret = service.tokens.create(["generate", "detect", "admin"], name="fuzzer")
    transport = httpx.ASGITransport(app=create_app(service), raise_app_exceptions=False)
    headers = {"authorization": f"Bearer {secret}", "content-type": "application/json"}
    client = httpx.AsyncClient(transport=transport, base_url="http://fuzz", headers=headers, timeout=600)
    loop = asyncio.new_event_loop()

    def read(data: bytes) -> None:
        """The first line of an input is a method and a path, and the rest is the body."""
        line, _, body = data.partition(b"\n")
        method, _, path = line.decode("utf-8", "replace").strip().partition(" ")
        try:
            request = client.build_request(method or "POST", f"/{path.lstrip('/')}", content=body)
        except (httpx.InvalidURL, ValueError):
            raise AlimarkError("not an address") from None
        answer = loop.run_until_complete(client.send(request))
        if answer.status_code in (500, 502, 504):
            raise AssertionError(f"status {answer.status_code}: {answer.text[:300]}")
        if answer.status_code >= 400:
            raise AlimarkError(f"status {answer.status_code}")

    try:
        yield read
    finally:
        loop.run_until_complete(client.aclose())
        loop.close()
        service.close()


@contextmanager
def service(folder: Path) -> Iterator[Target]:
    """The service in a process of its own, over sockets. An input is the seed of what is sent on one connection."""
    import fuzz_service

    seeds, worst, connections = seeds_of("http"), 0.0, 0
    with fuzz_service.attacked_service(seeds) as attacked:

        def read(data: bytes) -> None:
            nonlocal worst, connections
            chance = random.Random(data)
            sent, whole = fuzz_service.request(attacked, chance, lambda body: _damaged(body, seeds, chance))
            statuses = attacked.send(sent, whole=whole)
            if wrong := {500, 502, 504} & set(statuses):
                raise AssertionError(f"status {wrong}: {sent[:1000]!r}")
            connections += 1
            if connections % 50 == 0 and (slow := attacked.watchdog.worst()) > worst:
                worst = slow
                if worst > HANG_SECONDS:
                    raise AssertionError(f"the watchdog waited for {worst} s, in one of the last 50 connections")
            if max(statuses, default=400) >= 400:
                raise AlimarkError("refused")

        yield read
        worst = max(worst, attacked.watchdog.worst())
        print(f"service: worst answer of /healthz {worst:.3f} s; {attacked.memory()} MB of memory", file=sys.stderr)


TARGETS = {target.__name__: target for target in (keys, jsonl, recipes, documents, parquet, http, texts, service)}


# Inputs


def mutated(data: bytes, seeds: list[bytes], chance: random.Random) -> bytes:
    """A damaged copy of an input: as JSON where it is JSON, and as bytes."""
    if chance.random() < 0.5:
        head, newline, body = data.partition(b"\n") if chance.random() < 0.7 else (b"", b"", data)
        content = _json(body)
        if content is not None:
            data = head + newline + json.dumps(_changed(content, chance)).encode()
            if chance.random() < 0.7:
                return data[:LARGEST]
    for _ in range(chance.choice((1, 1, 2, 4, 8))):
        data = _damaged(data, seeds, chance)
    return data[:LARGEST]


def _json(data: bytes) -> Any:
    """The value of some JSON; None where it is none."""
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return None


def _changed(content: Any, chance: random.Random) -> Any:
    """JSON with one value replaced, removed, doubled or renamed."""
    way = chance.random()
    if isinstance(content, dict) and content and chance.random() < 0.8:
        name = chance.choice(list(content))
        if way < 0.15:
            return {other: value for other, value in content.items() if other != name}
        return content | ({f"{name}x": content[name]} if way < 0.25 else {name: _changed(content[name], chance)})
    if isinstance(content, list) and content and chance.random() < 0.8:
        place = chance.randrange(len(content))
        copies = 0 if way < 0.2 else chance.choice((2, 3, 300)) if way < 0.4 else 1
        changed = _changed(content[place], chance) if copies == 1 else content[place]
        return [*content[:place], *[changed] * copies, *content[place + 1 :]]
    return chance.choice(ODD)


def _damaged(data: bytes, seeds: list[bytes], chance: random.Random) -> bytes:
    start = chance.randrange(len(data) + 1)
    end = min(len(data), start + chance.choice((0, 1, 2, 8, 64, 1000)))
    part = data[start:end]
    way = chance.randrange(8)
    if way == 0:
        middle = bytes(chance.randrange(256) for _ in part)
    elif way == 1:
        middle = b""
    elif way == 2:
        middle = part * chance.choice((2, 3, 50))
    elif way in (3, 4):
        middle = chance.choice(TOKENS) * chance.choice((1, 1, 2, 500))
    elif way == 5:
        middle = chance.choice(seeds)[start:][:2000]
    elif way == 6:
        middle = "".join(_character(chance) for _ in range(chance.choice((1, 3, 30)))).encode("utf-8", "surrogatepass")
    else:
        middle = bytes([byte ^ 1 << chance.randrange(8) for byte in part])
    return data[:start] + middle + data[end:]


def _character(chance: random.Random) -> str:
    """A character of any category, also half a surrogate pair."""
    while True:
        character = chr(chance.choice((chance.randrange(0x250), chance.randrange(0x3000), chance.randrange(0x110000))))
        if unicodedata.category(character) != "Cn":
            return character


def seeds_of(target: str) -> list[bytes]:
    """The corpus of a target."""
    return [path.read_bytes() for path in sorted((CORPUS / target).glob("*"))] or [b""]


# The run


@dataclass
class Result:
    """What came of the inputs of one target."""

    inputs: int = 0
    refused: int = 0
    crashes: int = 0
    hangs: int = 0
    slowest: float = 0.0
    """CPU seconds of the slowest input."""
    report: str = ""


def attempt(read: Target, data: bytes, result: Result) -> bool:
    """Reads one input and counts the outcome; whether it was neither a crash nor a hang."""
    faulthandler.dump_traceback_later(300, exit=True)  # a loop that Python cannot interrupt
    started = time.process_time()
    sound = True
    try:
        read(data)
    except AlimarkError:
        result.refused += 1
    except Exception:
        result.crashes += 1
        result.report += f"{traceback.format_exc()}\n{data[:300]!r}\n"
        sound = False
    finally:
        faulthandler.cancel_dump_traceback_later()
    took = time.process_time() - started
    result.inputs += 1
    result.slowest = max(result.slowest, took)
    if took > HANG_SECONDS:
        result.hangs += 1
        result.report += f"{took:.1f} s: {data[:300]!r}\n"
        sound = False
    return sound


def fuzz(target: str, *, seconds: float = 0.0, inputs: int = 0, seed: int = 0, save: bool = False) -> Result:
    """Runs the corpus of a target and then mutations of it, for some seconds or for a number of inputs."""
    result, seeds, chance = Result(), seeds_of(target), random.Random(f"{seed}/{target}")
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        read = stack.enter_context(TARGETS[target](folder))
        for data in seeds if seconds else ():
            attempt(read, data, Result())  # compiles and loads what the targets use, which is not the work of an input
        for data in seeds:
            attempt(read, data, result)
        until = time.monotonic() + seconds
        while (inputs and result.inputs < inputs) or (seconds and time.monotonic() < until):
            data = chance.randbytes(8) if target == "service" else mutated(chance.choice(seeds), seeds, chance)
            if (
                not attempt(read, data, result) and save and target != "service"
            ):  # its seeds mean something else tomorrow
                name = hashlib.sha256(data).hexdigest()[:16]
                (CORPUS / target / f"found-{name}").write_bytes(data)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=600.0, help="time for each target")
    parser.add_argument("--targets", nargs="+", choices=TARGETS, default=list(TARGETS))
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    args = parser.parse_args()
    print(f"seed {args.seed}\n\n| target | inputs | refused | crashes | hangs | slowest input, CPU s |")
    print("| --- " * 6 + "|", flush=True)
    failed = False
    for target in args.targets:
        result = fuzz(target, seconds=args.seconds, seed=args.seed, save=True)
        print(
            f"| {target} | {result.inputs:,} | {result.refused:,} | {result.crashes} | {result.hangs} | "
            f"{result.slowest:.2f} |", flush=True,
        )  # fmt: skip
        print(result.report[:20_000], file=sys.stderr)
        failed |= bool(result.crashes or result.hangs)
    sys.exit(failed)


if __name__ == "__main__":
    main()
