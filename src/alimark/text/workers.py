"""Splitting in other processes, for engines that sample faster than one Python can split.

A worker is `python -m alimark.text.workers SPLITTER`: a line of JSON with texts comes in, a line of JSON with answers goes out.
It is no multiprocessing pool, because that would import the caller's main module again.
"""

from __future__ import annotations

import atexit
import json
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from typing import IO

from alimark._util.cpu import available_cpus
from alimark.text.splitting import Splitter, splitter

First = tuple[int, int, bool]
"""The first sentence's span, and whether it is certainly over; (0, 0, False) where there is none."""

_FEW = 64  # fewer texts than this for each process are not worth the way there
_MOST = 6


def first_sentence(cutter: Splitter, text: str) -> First:
    spans = cutter.spans(text)
    return (*spans[0], cutter.first_sentence_over(text, spans)) if spans else (0, 0, False)


class Workers:
    """First sentences of many texts at a time. Safe to share by threads; a process that dies is done without."""

    def __init__(self, name: str, count: int) -> None:
        self._cutter = splitter(name)
        self._workers = [_Worker(name) for _ in range(count)]

    def first_sentences(self, texts: Sequence[str]) -> list[First]:
        alive = [worker for worker in self._workers if worker.alive][: len(texts) // _FEW]
        if len(alive) < 2:
            return [first_sentence(self._cutter, text) for text in texts]
        size = -(-len(texts) // len(alive))
        shares = [texts[at : at + size] for at in range(0, len(texts), size)]
        found: list[First] = []
        with ExitStack() as held:
            for worker, share in zip(alive, shares, strict=False):
                held.enter_context(worker.asked(share))
            for worker, share in zip(alive, shares, strict=False):
                got = worker.answer(len(share))
                found += [first_sentence(self._cutter, text) for text in share] if got is None else got
        return found


class _Worker:
    """One process."""

    def __init__(self, name: str) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = subprocess.Popen(
            [sys.executable, "-m", "alimark.text.workers", name], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        atexit.register(self._stop)

    @property
    def alive(self) -> bool:
        return self._process is not None

    def _stop(self) -> None:
        if self._process is not None:
            process, self._process = self._process, None
            process.kill()
            with suppress(OSError, ValueError):
                process.communicate()

    @contextmanager
    def asked(self, texts: Sequence[str]) -> Iterator[None]:
        """Nobody else asks until the answer was taken. After an interruption it answers no question, and is given up."""
        with self._lock:
            self._write(json.dumps(texts).encode() + b"\n")
            try:
                yield
            except BaseException:
                self._stop()
                raise

    def _write(self, line: bytes) -> None:
        try:
            if self._process is not None and self._process.stdin is not None:
                self._process.stdin.write(line)
                self._process.stdin.flush()
        except OSError:
            self._stop()

    def answer(self, count: int) -> list[First] | None:
        if self._process is None or self._process.stdout is None:
            return None
        try:
            found = [(start, end, over) for start, end, over in json.loads(self._process.stdout.readline() or b"[]")]
        except (OSError, ValueError):
            found = []
        if len(found) != count:
            self._stop()
            return None
        return found


@cache
def workers(name: str) -> Workers:
    """The workers of a splitter: none on a small machine, where the model needs the cores."""
    cores = available_cpus()
    return Workers(name, min(_MOST, cores // 2) if cores >= 8 else 0)


def serve(name: str, lines: IO[bytes], out: IO[bytes]) -> None:
    cutter = splitter(name)
    for line in lines:
        answers = [first_sentence(cutter, text) for text in json.loads(line)]
        out.write(json.dumps(answers).encode() + b"\n")
        out.flush()


if __name__ == "__main__":
    with suppress(KeyboardInterrupt, BrokenPipeError):
        serve(sys.argv[1], sys.stdin.buffer, sys.stdout.buffer)
