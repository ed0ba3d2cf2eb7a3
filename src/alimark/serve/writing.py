"""Generation and rewriting for many requests at a time, by the same scheduler as `alimark generate`; other slow work."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, TypeVar

from alimark.core._util.fair_pool import FairPool, Task, may_enter
from alimark.core._util.work import TimedFuture, Working
from alimark.core.embedding.base import Embedder
from alimark.core.generation.api import Generation, Scheduler, Session
from alimark.core.keys.key import Key
from alimark.core.llm.base import LLM
from alimark.core.rewriting.api import Original, RewriteSettings, Rewriting, rewrite_many
from alimark.serve.checking import QueueFull

Result = TypeVar("Result")
AnyFuture = TypeVar("AnyFuture", bound=Future[Any])

_AT_A_TIME = 3
"""Rewriting runs at a time. No token begins all of them."""
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

    def start(self, owner: str, count: int, begin: Callable[[], list[AnyFuture]]) -> list[AnyFuture]:
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
class _Rewrite:
    """A text to be rewritten, and the future of its result."""

    original: Original
    key: Key
    settings: RewriteSettings
    future: TimedFuture[Rewriting]

    def is_joined_by(self, task: Task) -> bool:
        """Whether a text that waits can be rewritten in the same run: same settings, embedder, splitter and text version."""
        other = task.subject
        assert isinstance(other, _Rewrite)
        kinds = {(key.fingerprint, key.splitter, key.text_version) for key in (self.key, other.key)}
        return len(kinds) == 1 and self.settings == other.settings


class Rewriters:
    """Rewrites waiting texts together, so that the model's batches hold sentences of several texts."""

    def __init__(self, llm: Callable[[], LLM], embedder_of: Callable[[Key], Embedder]) -> None:
        self._llm, self._embedder_of = llm, embedder_of
        self._pool = FairPool(_AT_A_TIME, "alimark-rewriter", max(1, _AT_A_TIME - 1))
        self.close = self._pool.close

    def submit(self, owner: str, job: _Rewrite) -> TimedFuture[Rewriting]:
        """Queues a text and returns its future."""
        return self._pool.submit(owner, lambda: self._rewrite(job), future=job.future, subject=job)

    def _joining(self, first: _Rewrite) -> _Rewrite | None:
        """The next waiting text that can join the run of another; cancelled ones are dropped."""
        while task := self._pool.waiting.take(first.is_joined_by):
            assert isinstance(task.subject, _Rewrite)
            if not task.subject.future.cancelled():
                return task.subject
        return None

    def _rewrite(self, first: _Rewrite) -> Rewriting:
        """Rewrites a text and those that join it; returns the result of the first, which is there as all others are."""
        taken: list[_Rewrite] = []
        with Working([]) as work:

            def originals() -> Iterator[Original]:
                job: _Rewrite | None = first
                while job is not None:  # texts that arrive while the run has room for more join it
                    taken.append(job)
                    work.add(job.future)
                    yield job.original
                    job = None if work.cancelled else self._joining(first)

            try:
                embedder = self._embedder_of(first.key)
                for place, result in rewrite_many(originals(), first.key, embedder, self._llm(), first.settings):
                    taken[place].future.settle(result)
            except Exception as error:  # the callers wait for the futures and have to get any error
                for job in {first, *taken}:
                    job.future.settle(error)
        return first.future.result(timeout=0)


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

    def write(self, sessions: list[Session]) -> list[TimedFuture[Generation]]:
        """Starts texts under one key: all of them or, where there is no room, none."""
        key = sessions[0].key
        assert key is not None, "everything that is served is marked"
        scheduler = self._scheduler(self._embedder_of(key))
        return self._texts.start(
            sessions[0].owner, len(sessions), lambda: [scheduler.submit(session) for session in sessions]
        )

    def rewrite(
        self, text: str, key: Key, seed: int | None, settings: RewriteSettings, owner: str = ""
    ) -> TimedFuture[Rewriting]:
        """Starts the rewriting of a text for an owner, the id of a token. Cancelling the future stops it."""
        future: TimedFuture[Rewriting] = TimedFuture()
        job = _Rewrite(Original(text, seed, key=key, unwanted=future.cancelled), key, settings, future)
        return self._texts.start(owner, 1, lambda: [self._rewriters.submit(owner, job)])[0]

    def run(self, work: Callable[[], Result], owner: str = "") -> TimedFuture[Result]:
        """Starts other work that takes time, such as reading a file or attacking a text."""
        return self._others.start(owner, 1, lambda: [self._others_pool.submit(owner, work)])[0]

    def forward(self, work: Callable[[], Result], owner: str = "") -> TimedFuture[Result]:
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
