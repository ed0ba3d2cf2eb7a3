"""Generation and rewriting for many requests at a time, by the same scheduler as `alimark generate`; other slow work."""

from __future__ import annotations

import queue
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, InvalidStateError, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from alimark._util.cancelling import Cancellation
from alimark._util.fair_queue import FairQueue, may_enter
from alimark.embedding.base import Embedder
from alimark.generation.api import Generation, Scheduler, Session
from alimark.keys.key import Key
from alimark.llm.base import LLM
from alimark.rewriting.api import Original, RewriteSettings, Rewriting, rewrite_many
from alimark.serve.checking import QueueFull

Result = TypeVar("Result")

_AT_A_TIME = 2
"""Rewriting runs at a time."""
_WORKERS = 3
"""Threads for other work, such as reading a file, which then need not wait for a rewriting. No token uses all of them."""


class Places:
    """Counts the pieces of work in progress or waiting, and refuses more than a limit."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._taken: Counter[str] = Counter()  # by owner
        self.closed = False

    @property
    def taken(self) -> int:
        """The number of places that are taken."""
        return self._taken.total()

    def start(self, owner: str, count: int, begin: Callable[[], list[Future[Result]]]) -> list[Future[Result]]:
        """Starts `count` pieces of work, or none and raises QueueFull. Each gives its place back when it ends."""
        with self._lock:
            if self.closed:
                raise QueueFull("the service is shutting down")
            if not may_enter(self._taken, owner, count, self._most):
                raise QueueFull(f"{self.taken} are in progress or waiting and {self._most} may; try again later")
            self._taken[owner] += count
        try:
            futures = begin()
        except BaseException:
            self._give_back(owner, count)
            raise
        for future in futures:
            future.add_done_callback(lambda _: self._give_back(owner, 1))
        return futures

    def _give_back(self, owner: str, count: int) -> None:
        with self._lock:
            self._taken[owner] -= count
            if not self._taken[owner]:
                del self._taken[owner]


@dataclass(frozen=True, eq=False)
class _Job(Generic[Result]):
    owner: str
    work: Callable[[], Result]
    future: Future[Result]


class FairPool:
    """Threads that do the work of each owner in turn. An owner uses at most `each` of them at a time.

    A future can be cancelled at any time: work that waits is dropped, and work that is under way is told to stop.
    """

    def __init__(self, threads: int, name: str, each: int) -> None:
        self._each = each
        self._waiting: FairQueue[_Job[Any] | None] = FairQueue(lambda job: job.owner if job else "")
        self._running: Counter[str] = Counter()
        for number in range(threads):
            threading.Thread(target=self._serve, name=f"{name}-{number}", daemon=True).start()

    def submit(self, owner: str, work: Callable[[], Result]) -> Future[Result]:
        """Queues a piece of work and returns its future."""
        job = _Job(owner, work, Future())
        self._waiting.put(job)
        return job.future

    def close(self) -> None:
        """Cancels what waits, and ends the threads after the work they have."""
        with suppress(queue.Empty):
            while job := self._waiting.get_nowait():
                job.future.cancel()
        self._waiting.put(None)

    def _accepts(self, job: _Job[Any] | None) -> bool:
        # Called with the lock of the queue held, so the number is counted up before the next thread asks.
        if job is None or self._running[job.owner] >= self._each:
            return job is None
        self._running[job.owner] += 1
        return True

    def _serve(self) -> None:
        while job := self._waiting.get(accepts=self._accepts):
            cancellation = Cancellation()
            cancellation.follow([job.future])
            try:
                if not job.future.cancelled():
                    with cancellation.block():
                        result = job.work()
                    with suppress(InvalidStateError):  # it was cancelled in the meantime
                        job.future.set_result(result)
            except BaseException as error:  # the caller waits for the future and has to get any error
                with suppress(InvalidStateError):
                    job.future.set_exception(error)
            self._running[job.owner] -= 1
            self._waiting.wake()
        self._waiting.put(None)  # the other threads have to see it, too


@dataclass(frozen=True, eq=False)
class _Rewrite:
    """A text to be rewritten, and the future of its result."""

    owner: str
    original: Original
    key: Key
    settings: RewriteSettings
    future: Future[Rewriting]

    def joins(self, other: _Rewrite) -> bool:
        """Whether both can be rewritten in the same run: same settings, embedder, splitter and text version."""
        kinds = {(key.fingerprint, key.splitter, key.text_version) for key in (self.key, other.key)}
        return len(kinds) == 1 and self.settings == other.settings


class Rewriters:
    """Rewrites waiting texts together, so that the model's batches hold sentences of several texts."""

    def __init__(self, llm: Callable[[], LLM], embedder_of: Callable[[Key], Embedder]) -> None:
        self._llm, self._embedder_of = llm, embedder_of
        self._waiting: FairQueue[_Rewrite] = FairQueue(lambda job: job.owner)
        self._pool = ThreadPoolExecutor(_AT_A_TIME, "alimark-rewriter")

    def submit(self, job: _Rewrite) -> Future[Rewriting]:
        """Queues a text and returns its future."""
        self._waiting.put(job)
        self._pool.submit(self._run)
        return job.future

    def close(self) -> None:
        """Cancels the texts that wait."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        while job := self._next():
            job.future.cancel()

    def _next(self, like: _Rewrite | None = None) -> _Rewrite | None:
        """The first waiting text that may join the run of `like`; cancelled ones are dropped."""
        with suppress(queue.Empty):
            while True:
                job = self._waiting.get(block=False, accepts=lambda job: like is None or job.joins(like))
                if not job.future.cancelled():
                    return job
        return None

    def _run(self) -> None:
        first = self._next()
        if first is None:
            return  # another run took it along
        taken: list[_Rewrite] = []
        cancellation = Cancellation()

        def stop_if_unwanted(_: object) -> None:
            if all(job.future.done() for job in taken):
                cancellation.cancel()

        def originals() -> Iterator[Original]:
            job: _Rewrite | None = first
            while job is not None:  # texts that arrive while the run has room for more join it
                taken.append(job)
                job.future.add_done_callback(stop_if_unwanted)
                yield job.original
                job = None if cancellation.cancelled else self._next(first)

        try:
            embedder = self._embedder_of(first.key)
            with cancellation.block():
                for place, result in rewrite_many(originals(), first.key, embedder, self._llm(), first.settings):
                    _settle(taken[place].future, result)
        except Exception as error:  # the callers wait for the futures and have to get any error
            for job in {first, *taken}:
                _settle(job.future, error)


def _settle(future: Future[Result], result: Result | Exception) -> None:
    """Gives a future its result or its error, unless it was cancelled or has one."""
    with suppress(InvalidStateError):
        if isinstance(result, Exception):
            future.set_exception(result)
        else:
            future.set_result(result)


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
        self._others_pool = FairPool(_WORKERS, "alimark-worker", _WORKERS - 1)
        forwarders = max(1, llm.max_concurrency)
        self._forwarding_pool = FairPool(forwarders, "alimark-forwarder", max(1, forwarders - 1))

    @property
    def under_way(self) -> int:
        """Texts in progress or waiting."""
        return self._texts.taken

    def write(self, sessions: list[Session]) -> list[Future[Generation]]:
        """Starts texts under one key: all of them or, where there is no room, none."""
        key = sessions[0].key
        assert key is not None, "everything that is served is marked"
        scheduler = self._scheduler(self._embedder_of(key))
        return self._texts.start(
            sessions[0].owner, len(sessions), lambda: [scheduler.submit(session) for session in sessions]
        )

    def rewrite(
        self, text: str, key: Key, seed: int | None, settings: RewriteSettings, owner: str = ""
    ) -> Future[Rewriting]:
        """Starts the rewriting of a text for an owner, the id of a token. Cancelling the future stops it."""
        future: Future[Rewriting] = Future()
        job = _Rewrite(owner, Original(text, seed, key=key, unwanted=future.cancelled), key, settings, future)
        return self._texts.start(owner, 1, lambda: [self._rewriters.submit(job)])[0]

    def run(self, work: Callable[[], Result], owner: str = "") -> Future[Result]:
        """Starts other work that takes time, such as reading a file or attacking a text."""
        return self._others.start(owner, 1, lambda: [self._others_pool.submit(owner, work)])[0]

    def forward(self, work: Callable[[], Result], owner: str = "") -> Future[Result]:
        """Starts a request that the engine answers by itself; it takes the place of a text."""
        return self._texts.start(owner, 1, lambda: [self._forwarding_pool.submit(owner, work)])[0]

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
        self._others_pool.close()
        self._forwarding_pool.close()
