"""Generation and rewriting for many requests at a time, by the same scheduler as `alimark generate`; other slow work."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TypeVar

from alimark.embedding.base import Embedder
from alimark.errors import AlimarkError
from alimark.generation.api import Generation, Scheduler, Session
from alimark.keys.key import Key
from alimark.llm.base import LLM
from alimark.rewriting.api import Original, RewriteSettings, Rewriting, rewrite_many
from alimark.serve.checking import QueueFull

Result = TypeVar("Result")

_AT_A_TIME = 2
"""Rewriting runs at a time, and as many other pieces of work, so that reading a file does not wait for a rewriting."""


class Places:
    """Counts the pieces of work in progress or waiting, and refuses more than a limit."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._lock = threading.Lock()
        self.taken = 0
        self.closed = False

    def start(self, count: int, begin: Callable[[], list[Future[Result]]]) -> list[Future[Result]]:
        """Starts `count` pieces of work, or none and raises QueueFull. Each gives its place back when it ends."""
        with self._lock:
            if self.closed:
                raise QueueFull("the service is shutting down")
            if self.taken + count > self._most:
                raise QueueFull(f"{self.taken} are in progress or waiting and {self._most} may; try again later")
            self.taken += count
        try:
            futures = begin()
        except BaseException:
            self._give_back(count)
            raise
        for future in futures:
            future.add_done_callback(lambda _: self._give_back(1))
        return futures

    def _give_back(self, count: int) -> None:
        with self._lock:
            self.taken -= count


@dataclass(frozen=True, eq=False)
class _Rewrite:
    """A text to be rewritten, and the future of its result."""

    original: Original
    key: Key
    settings: RewriteSettings
    future: Future[Rewriting] = field(default_factory=Future)

    def joins(self, other: _Rewrite) -> bool:
        """Whether both can be rewritten in the same run: same settings, embedder, splitter and text version."""
        kinds = {(key.fingerprint, key.splitter, key.text_version) for key in (self.key, other.key)}
        return len(kinds) == 1 and self.settings == other.settings


class Rewriters:
    """Rewrites waiting texts together, so that the model's batches hold sentences of several texts."""

    def __init__(self, llm: Callable[[], LLM], embedder_of: Callable[[Key], Embedder]) -> None:
        self._llm, self._embedder_of = llm, embedder_of
        self._waiting: deque[_Rewrite] = deque()
        self._lock = threading.Lock()
        self._pool = ThreadPoolExecutor(_AT_A_TIME, "alimark-rewriter")

    def submit(self, job: _Rewrite) -> Future[Rewriting]:
        """Queues a text and returns its future."""
        with self._lock:
            self._waiting.append(job)
        self._pool.submit(self._run)
        return job.future

    def close(self) -> None:
        """Cancels the texts that wait."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        with self._lock:
            for job in self._waiting:
                job.future.cancel()
            self._waiting.clear()

    def _next(self, like: _Rewrite | None = None) -> _Rewrite | None:
        """The first waiting text that may join the run of `like`; cancelled ones are dropped."""
        with self._lock:
            for job in list(self._waiting):
                if like is None or job.joins(like):
                    self._waiting.remove(job)
                    if job.future.set_running_or_notify_cancel():
                        return job
            return None

    def _run(self) -> None:
        first = self._next()
        if first is None:
            return  # another run took it along
        taken: list[_Rewrite] = []

        def originals() -> Iterator[Original]:
            job: _Rewrite | None = first
            while job is not None:  # texts that arrive while the run has room for more join it
                taken.append(job)
                yield job.original
                job = self._next(first)

        try:
            embedder = self._embedder_of(first.key)
            for place, result in rewrite_many(originals(), first.key, embedder, self._llm(), first.settings):
                if isinstance(result, AlimarkError):
                    taken[place].future.set_exception(result)
                else:
                    taken[place].future.set_result(result)
        except Exception as error:  # the callers wait for the futures and have to get any error
            for job in {first, *taken}:
                if not job.future.done():
                    job.future.set_exception(error)


class Writers:
    """Writes and rewrites texts, at most `most` at a time, and runs other slow work beside them."""

    def __init__(
        self, llm: LLM, rewrite_llm: Callable[[], LLM], embedder_of: Callable[[Key], Embedder], *, most: int
    ) -> None:
        self.llm, self._embedder_of = llm, embedder_of
        self._texts, self._others = Places(most), Places(most)
        self._schedulers: dict[str, Scheduler] = {}
        self._making = threading.Lock()
        self._rewriters = Rewriters(rewrite_llm, embedder_of)
        self._others_pool = ThreadPoolExecutor(_AT_A_TIME, "alimark-worker")
        self._forwarding_pool = ThreadPoolExecutor(max(1, llm.max_concurrency), "alimark-forwarder")

    @property
    def under_way(self) -> int:
        """Texts in progress or waiting."""
        return self._texts.taken

    def write(self, sessions: list[Session]) -> list[Future[Generation]]:
        """Starts texts under one key: all of them or, where there is no room, none."""
        key = sessions[0].key
        assert key is not None, "everything that is served is marked"
        scheduler = self._scheduler(self._embedder_of(key))
        return self._texts.start(len(sessions), lambda: [scheduler.submit(session) for session in sessions])

    def rewrite(self, text: str, key: Key, seed: int | None, settings: RewriteSettings) -> Future[Rewriting]:
        """Starts the rewriting of a text."""
        job = _Rewrite(Original(text, seed, key=key), key, settings)
        return self._texts.start(1, lambda: [self._rewriters.submit(job)])[0]

    def run(self, work: Callable[[], Result]) -> Future[Result]:
        """Starts other work that takes time, such as reading a file or attacking a text."""
        return self._others.start(1, lambda: [self._others_pool.submit(work)])[0]

    def forward(self, work: Callable[[], Result]) -> Future[Result]:
        """Starts a request that the engine answers by itself; it takes the place of a text."""
        return self._texts.start(1, lambda: [self._forwarding_pool.submit(work)])[0]

    def _scheduler(self, embedder: Embedder) -> Scheduler:
        with self._making:
            if embedder.fingerprint not in self._schedulers:
                self._schedulers[embedder.fingerprint] = Scheduler(self.llm, embedder)
            return self._schedulers[embedder.fingerprint]

    def close(self) -> None:
        """Cancels what is still in progress or waiting."""
        self._texts.closed = self._others.closed = True
        for scheduler in self._schedulers.values():
            scheduler.close()
        self._rewriters.close()
        self._others_pool.shutdown(wait=False, cancel_futures=True)
        self._forwarding_pool.shutdown(wait=False, cancel_futures=True)
