"""A pool of worker processes that read a model's continuations and split texts.

A GPU engine samples faster than one Python process can read. A worker is `python -m alimark.core.text.workers SPLITTER`: it
reads a line of JSON with a task and its items, and writes a line of JSON with an answer for each item. A `multiprocessing` pool
is not used because it would import the caller's main module again.
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
from typing import IO, Any, Literal

from alimark.core._util.process import available_cpus
from alimark.core.frozen.text.splitting import Splitter, splitter
from alimark.core.text.continuations import Continuation, Reading, reading_of

_SHARE = 16  # continuations for one worker: with fewer, asking takes a larger part of the time
_MAX_WORKERS = 8

Task = Literal["read", "split"]
"""What a worker does with each item: reads a continuation, or splits a text into its units."""


class Workers:
    """Reads continuations and splits texts in other processes; threads may share it.

    What a worker that has died was asked for is done in this process.
    """

    def __init__(self, name: str, count: int) -> None:
        self._cutter = splitter(name)
        self._workers = [_Worker(name) for _ in range(count)]
        self._calls = itertools.count()

    def readings(self, continuations: Sequence[Continuation]) -> list[Reading | None]:
        """The reading of each continuation, in order."""
        return [fields and Reading(*fields) for fields in self._answers("read", continuations)]

    def units(self, text: str) -> list[str]:
        """The units of a text, as its splitter finds them."""
        [units] = self._answers("split", [text])
        return list(units)

    def _answers(self, task: Task, items: Sequence[Any]) -> list[Any]:
        chosen = self._choose(max(1, len(items) // _SHARE))
        if not chosen:
            return [_answer_of(self._cutter, task, item) for item in items]
        size = -(-len(items) // len(chosen))
        shares = [items[at : at + size] for at in range(0, len(items), size)]
        answers: list[Any] = []
        with ExitStack() as held:
            for worker, share in zip(chosen, shares, strict=False):
                held.enter_context(worker.asked(task, share))
            for worker, share in zip(chosen, shares, strict=False):
                answer = worker.answer(len(share))
                answers += [_answer_of(self._cutter, task, item) for item in share] if answer is None else answer
        return answers

    def _choose(self, most: int) -> list[_Worker]:
        """Up to `most` workers, other ones in each call, so that small calls of several threads do not wait for each other."""
        alive = [worker for worker in self._workers if worker.alive]
        count = min(most, len(alive))
        first = next(self._calls) * count
        places = {(first + i) % len(alive) for i in range(count)}
        return [alive[place] for place in sorted(places)]  # in one order for all threads: their locks cannot deadlock


class _Worker:
    """One worker process."""

    def __init__(self, name: str) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = subprocess.Popen(
            [sys.executable, "-m", "alimark.core.text.workers", name], stdin=subprocess.PIPE, stdout=subprocess.PIPE
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
    def asked(self, task: Task, items: Sequence[Any]) -> Iterator[None]:
        """Sends a task and its items, and holds the lock until the answer is read.

        After an exception the answer would belong to an earlier question, so the process is stopped.
        """
        with self._lock:
            self._write(json.dumps([task, items]).encode() + b"\n")
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

    def answer(self, count: int) -> list[Any] | None:
        """Reads the answers for `count` items; None where the process has died."""
        if self._process is None or self._process.stdout is None:
            return None
        try:
            answers: list[Any] = json.loads(self._process.stdout.readline() or b"[]")
        except (OSError, ValueError):
            answers = []
        if len(answers) != count:
            self._stop()
            return None
        return answers


def worker_count() -> int:
    """The number of processes of a worker pool; 0 on a machine with fewer than 8 CPUs, which the model needs."""
    cpus = available_cpus()
    return min(_MAX_WORKERS, cpus // 2) if cpus >= 8 else 0


def workers(name: str) -> Workers:
    """The worker pool of a splitter. Of threads that ask together, one starts it."""
    with _starting:
        if name not in _running:
            _running[name] = Workers(name, worker_count())
        return _running[name]


_starting = threading.Lock()
_running: dict[str, Workers] = {}


def split(cutter: Splitter, text: str) -> list[str]:
    """The units of a text: by a worker where the pool of its splitter is running, else in this process."""
    pool = _running.get(cutter.name)
    return pool.units(text) if pool else cutter.units(text)


def _answer_of(cutter: Splitter, task: Task, item: Any) -> Any:
    """The answer of a worker for one item of a task."""
    return cutter.units(item) if task == "split" else reading_of(cutter, *item)


def serve(name: str, lines: IO[bytes], out: IO[bytes]) -> None:
    """Answers one line of JSON with another until the input ends: the main loop of a worker process."""
    cutter = splitter(name)
    for line in lines:
        task, items = json.loads(line)
        out.write(json.dumps([_answer_of(cutter, task, item) for item in items]).encode() + b"\n")
        out.flush()


if __name__ == "__main__":
    with suppress(KeyboardInterrupt, BrokenPipeError):
        serve(sys.argv[1], sys.stdin.buffer, sys.stdout.buffer)
