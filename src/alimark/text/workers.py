"""A pool of worker processes that find the first sentence of many texts.

A GPU engine samples faster than one Python process can split. A worker is `python -m alimark.text.workers SPLITTER VERSION`:
it reads a line of JSON with texts and writes a line of JSON with answers. A `multiprocessing` pool is not used because it would
import the caller's main module again.
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
"""Start and end of the first sentence, and whether it is complete; (0, 0, False) for a text without a sentence."""

_MIN_TEXTS_PER_WORKER = 64  # below this, sending the texts takes longer than splitting them here
_MAX_WORKERS = 6


def first_sentence(cutter: Splitter, text: str) -> First:
    """Finds the first sentence of a text and whether more text could still change its end."""
    spans = cutter.spans(text)
    return (*spans[0], cutter.first_sentence_over(text, spans)) if spans else (0, 0, False)


class Workers:
    """Finds the first sentences of many texts in parallel; threads may share it.

    Texts of a worker that has died are split in this process.
    """

    def __init__(self, name: str, count: int, text_version: int = 0) -> None:
        self._cutter = splitter(name, text_version)
        self._workers = [_Worker(name, text_version) for _ in range(count)]

    def first_sentences(self, texts: Sequence[str]) -> list[First]:
        """The first sentence of each text, in order."""
        alive = [worker for worker in self._workers if worker.alive][: len(texts) // _MIN_TEXTS_PER_WORKER]
        if len(alive) < 2:
            return [first_sentence(self._cutter, text) for text in texts]
        size = -(-len(texts) // len(alive))
        shares = [texts[at : at + size] for at in range(0, len(texts), size)]
        firsts: list[First] = []
        with ExitStack() as held:
            for worker, share in zip(alive, shares, strict=False):
                held.enter_context(worker.asked(share))
            for worker, share in zip(alive, shares, strict=False):
                answer = worker.answer(len(share))
                firsts += [first_sentence(self._cutter, text) for text in share] if answer is None else answer
        return firsts


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
    def asked(self, texts: Sequence[str]) -> Iterator[None]:
        """Sends texts and holds the lock until the answer is read.

        After an exception the answer would belong to an earlier question, so the process is stopped.
        """
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
        """Reads the answer for `count` texts; None where the process has died."""
        if self._process is None or self._process.stdout is None:
            return None
        try:
            line = self._process.stdout.readline() or b"[]"
            firsts = [(start, end, complete) for start, end, complete in json.loads(line)]
        except (OSError, ValueError):
            firsts = []
        if len(firsts) != count:
            self._stop()
            return None
        return firsts


@cache
def workers(name: str, text_version: int = 0) -> Workers:
    """The worker pool of a splitter; without processes on a machine with fewer than 8 CPUs, which the model needs."""
    cpus = available_cpus()
    return Workers(name, min(_MAX_WORKERS, cpus // 2) if cpus >= 8 else 0, text_version)


def serve(name: str, text_version: int, lines: IO[bytes], out: IO[bytes]) -> None:
    """Answers one line of JSON with another until the input ends: the main loop of a worker process."""
    cutter = splitter(name, text_version)
    for line in lines:
        answers = [first_sentence(cutter, text) for text in json.loads(line)]
        out.write(json.dumps(answers).encode() + b"\n")
        out.flush()


if __name__ == "__main__":
    with suppress(KeyboardInterrupt, BrokenPipeError):
        serve(sys.argv[1], int(sys.argv[2]), sys.stdin.buffer, sys.stdout.buffer)
