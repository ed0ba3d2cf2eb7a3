"""Marked text for many requests at a time, by the scheduler that `alimark generate` uses; rewriting; and other slow work."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TypeVar

from alimark.embedding.base import Embedder
from alimark.errors import AlimarkError
from alimark.generation.api import Generation, Scheduler, Writing
from alimark.keys.key import Key
from alimark.llm.base import LLM
from alimark.rewriting.api import Original, RewriteSettings, Rewriting, rewrite_many
from alimark.serve.checking import QueueFull

Made = TypeVar("Made")

_AT_A_TIME = 2
"""Runs that rewrite, and files read or texts attacked, at a time. Those who read a file do not wait for those who rewrite."""


class Places:
    """Room for so many pieces of work; beyond that nothing is taken."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._lock = threading.Lock()
        self.taken = 0
        self.closed = False

    def start(self, count: int, begin: Callable[[], list[Future[Made]]]) -> list[Future[Made]]:
        """All are begun, or none; each gives its place back when it ends."""
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
    """A text to be rewritten, and who waits for it."""

    original: Original
    key: Key
    settings: RewriteSettings
    future: Future[Rewriting] = field(default_factory=Future)

    def joins(self, other: _Rewrite) -> bool:
        """Whether one run can hold both."""
        mine, theirs = self.key, other.key
        return self.settings == other.settings and (mine.fingerprint, mine.splitter) == (
            theirs.fingerprint,
            theirs.splitter,
        )


class Rewriters:
    """Rewrites of all texts that wait are asked for in one run, which fills the model's batches with sentences of several."""

    def __init__(self, llm: Callable[[], LLM], embedder_of: Callable[[Key], Embedder]) -> None:
        self._llm, self._embedder_of = llm, embedder_of
        self._waiting: deque[_Rewrite] = deque()
        self._lock = threading.Lock()
        self._pool = ThreadPoolExecutor(_AT_A_TIME, "alimark-rewriter")

    def submit(self, asked: _Rewrite) -> Future[Rewriting]:
        with self._lock:
            self._waiting.append(asked)
        self._pool.submit(self._run)
        return asked.future

    def close(self) -> None:
        """What waits is given up."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        with self._lock:
            for one in self._waiting:
                one.future.cancel()
            self._waiting.clear()

    def _next(self, like: _Rewrite | None = None) -> _Rewrite | None:
        """The first that waits, of those that may join; whoever gave up meanwhile is passed over."""
        with self._lock:
            for one in list(self._waiting):
                if like is None or one.joins(like):
                    self._waiting.remove(one)
                    if one.future.set_running_or_notify_cancel():
                        return one
            return None

    def _run(self) -> None:
        first = self._next()
        if first is None:
            return  # another run took it along
        taken: list[_Rewrite] = []

        def originals() -> Iterator[Original]:
            one: _Rewrite | None = first
            while one is not None:  # who comes while the run has room for more is taken along
                taken.append(one)
                yield one.original
                one = self._next(first)

        try:
            embedder = self._embedder_of(first.key)
            for place, made in rewrite_many(originals(), first.key, embedder, self._llm(), first.settings):
                if isinstance(made, AlimarkError):
                    taken[place].future.set_exception(made)
                else:
                    taken[place].future.set_result(made)
        except Exception as error:  # whatever it was, those who wait must hear of it
            for one in {first, *taken}:
                if not one.future.done():
                    one.future.set_exception(error)


class Writers:
    """Texts that are written or rewritten, together at most so many; other slow work beside them."""

    def __init__(
        self, llm: LLM, rewrite_llm: Callable[[], LLM], embedder_of: Callable[[Key], Embedder], *, most: int
    ) -> None:
        self.llm, self._embedder_of = llm, embedder_of
        self._texts, self._others = Places(most), Places(most)
        self._schedulers: dict[str, Scheduler] = {}
        self._making = threading.Lock()
        self._rewriters = Rewriters(rewrite_llm, embedder_of)
        self._hands = ThreadPoolExecutor(_AT_A_TIME, "alimark-hand")

    @property
    def under_way(self) -> int:
        return self._texts.taken

    def write(self, writings: list[Writing]) -> list[Future[Generation]]:
        """All of them are taken, or none. All under one key."""
        key = writings[0].key
        assert key is not None, "everything that is served is marked"
        scheduler = self._scheduler(self._embedder_of(key))
        return self._texts.start(len(writings), lambda: [scheduler.submit(one) for one in writings])

    def rewrite(self, text: str, key: Key, seed: int | None, settings: RewriteSettings) -> Future[Rewriting]:
        asked = _Rewrite(Original(text, seed, key=key), key, settings)
        return self._texts.start(1, lambda: [self._rewriters.submit(asked)])[0]

    def run(self, work: Callable[[], Made]) -> Future[Made]:
        """Anything else that takes a while: reading a file, attacking a text."""
        return self._others.start(1, lambda: [self._hands.submit(work)])[0]

    def _scheduler(self, embedder: Embedder) -> Scheduler:
        with self._making:
            if embedder.fingerprint not in self._schedulers:
                self._schedulers[embedder.fingerprint] = Scheduler(self.llm, embedder)
            return self._schedulers[embedder.fingerprint]

    def close(self) -> None:
        """Requests have been waited for; what is still under way then is given up."""
        self._texts.closed = self._others.closed = True
        for one in self._schedulers.values():
            one.close()
        self._rewriters.close()
        self._hands.shutdown(wait=False, cancel_futures=True)
