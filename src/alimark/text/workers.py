"""A pool of worker processes that read many continuations of a model.

A GPU engine samples faster than one Python process can read. A worker is `python -m alimark.text.workers SPLITTER VERSION`:
it reads a line of JSON with continuations and writes a line of JSON with readings. A `multiprocessing` pool is not used
because it would import the caller's main module again.
"""

from __future__ import annotations

import atexit
import itertools
import json
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from typing import IO

from alimark._util.cpu import available_cpus
from alimark.text.continuations import Continuation, Reading, reading_of
from alimark.text.splitting import splitter

_MIN_SHARE = 16  # with fewer continuations a worker, sending them takes longer than reading them here
_MAX_WORKERS = 8


class Workers:
    """Reads many continuations in parallel; threads may share it.

    Continuations of a worker that has died are read in this process.
    """

    def __init__(self, name: str, count: int, text_version: int = 0) -> None:
        self._cutter = splitter(name, text_version)
        self._workers = [_Worker(name, text_version) for _ in range(count)]
        self._calls = itertools.count()

    def readings(self, continuations: Sequence[Continuation]) -> list[Reading | None]:
        """The reading of each continuation, in order."""
        chosen = self._choose(len(continuations) // _MIN_SHARE)
        if not chosen:
            return self._read_here(continuations)
        size = -(-len(continuations) // len(chosen))
        shares = [continuations[at : at + size] for at in range(0, len(continuations), size)]
        readings: list[Reading | None] = []
        with ExitStack() as held:
            for worker, share in zip(chosen, shares, strict=False):
                held.enter_context(worker.asked(share))
            for worker, share in zip(chosen, shares, strict=False):
                answer = worker.answer(len(share))
                readings += self._read_here(share) if answer is None else answer
        return readings

    def _choose(self, most: int) -> list[_Worker]:
        """Up to `most` workers, other ones in each call, so that small calls of several threads do not wait for each other."""
        alive = [worker for worker in self._workers if worker.alive]
        count = min(most, len(alive))
        first = next(self._calls) * count
        places = {(first + i) % len(alive) for i in range(count)}
        return [alive[place] for place in sorted(places)]  # in one order for all threads: their locks cannot deadlock

    def _read_here(self, continuations: Sequence[Continuation]) -> list[Reading | None]:
        return [reading_of(self._cutter, *continuation) for continuation in continuations]


class _Worker:
    """One worker process."""

    def __init__(self, name: str, text_version: int) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = subprocess.Popen(
            [sys.executable, "-m", "alimark.text.workers", name, str(text_version)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
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
    def asked(self, continuations: Sequence[Continuation]) -> Iterator[None]:
        """Sends continuations and holds the lock until the answer is read.

        After an exception the answer would belong to an earlier question, so the process is stopped.
        """
        with self._lock:
            self._write(json.dumps(continuations).encode() + b"\n")
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

    def answer(self, count: int) -> list[Reading | None] | None:
        """Reads the answer for `count` continuations; None where the process has died."""
        if self._process is None or self._process.stdout is None:
            return None
        try:
            line = self._process.stdout.readline() or b"[]"
            readings = [fields and Reading(*fields) for fields in json.loads(line)]
        except (OSError, ValueError):
            readings = []
        if len(readings) != count:
            self._stop()
            return None
        return readings


@cache
def workers(name: str, text_version: int = 0) -> Workers:
    """The worker pool of a splitter; without processes on a machine with fewer than 8 CPUs, which the model needs."""
    cpus = available_cpus()
    return Workers(name, min(_MAX_WORKERS, cpus // 2) if cpus >= 8 else 0, text_version)


def serve(name: str, text_version: int, lines: IO[bytes], out: IO[bytes]) -> None:
    """Answers one line of JSON with another until the input ends: the main loop of a worker process."""
    cutter = splitter(name, text_version)
    for line in lines:
        readings = [reading_of(cutter, *continuation) for continuation in json.loads(line)]
        out.write(json.dumps(readings).encode() + b"\n")
        out.flush()


if __name__ == "__main__":
    with suppress(KeyboardInterrupt, BrokenPipeError):
        serve(sys.argv[1], int(sys.argv[2]), sys.stdin.buffer, sys.stdout.buffer)
