"""Marked text for many requests at a time, by the scheduler that `alimark generate` uses; rewriting; and other slow work."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from alimark.embed import Embedder
from alimark.generate import Generation, Scheduler, Writing
from alimark.key import Key
from alimark.llm.base import LLM
from alimark.rewrite import RewriteSettings, Rewriting, rewrite
from alimark.serve.checking import QueueFull

Made = TypeVar("Made")

_AT_A_TIME = 2
"""Texts rewritten, and files read or texts attacked, at a time. Those who read a file do not wait for those who rewrite."""


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


class Writers:
    """Texts that are written or rewritten, together at most so many; other slow work beside them."""

    def __init__(
        self, llm: LLM, rewrite_llm: Callable[[], LLM], embedder_of: Callable[[Key], Embedder], *, most: int
    ) -> None:
        self.llm, self._rewrite_llm, self._embedder_of = llm, rewrite_llm, embedder_of
        self._texts, self._others = Places(most), Places(most)
        self._schedulers: dict[str, Scheduler] = {}
        self._making = threading.Lock()
        self._rewriters = ThreadPoolExecutor(_AT_A_TIME, "alimark-rewriter")
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
        def work() -> Rewriting:
            return rewrite(text, key, self._embedder_of(key), self._rewrite_llm(), settings, seed=seed)

        return self._texts.start(1, lambda: [self._rewriters.submit(work)])[0]

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
        for pool in (self._rewriters, self._hands):
            pool.shutdown(wait=False, cancel_futures=True)
