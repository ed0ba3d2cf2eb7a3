"""Marked text for many requests at a time, by the scheduler that `alimark generate` uses; and rewriting."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, TypeVar

from alimark.embed import Embedder
from alimark.generate import Generation, Scheduler, Writing
from alimark.key import Key
from alimark.llm.base import LLM
from alimark.rewrite import RewriteSettings, Rewriting, rewrite
from alimark.serve.checking import QueueFull

Made = TypeVar("Made")

_REWRITERS = 2
"""Texts rewritten at a time; each asks the model for all of its sentences at once."""


class Writers:
    """Texts in progress, counted: beyond `most` nothing is taken. The models are loaded when they are first needed."""

    def __init__(
        self, llm: LLM, rewrite_llm: Callable[[], LLM], embedder_of: Callable[[Key], Embedder], *, most: int
    ) -> None:
        self.llm, self._rewrite_llm, self._embedder_of, self._most = llm, rewrite_llm, embedder_of, most
        self._schedulers: dict[str, Scheduler] = {}
        self._pool = ThreadPoolExecutor(_REWRITERS, "alimark-rewriter")
        self._lock = threading.Lock()
        self._under_way = 0
        self._closed = False

    @property
    def under_way(self) -> int:
        return self._under_way

    @contextmanager
    def _place(self, count: int) -> Iterator[None]:
        """Room for so many texts, given back by `_counted` as they end, or at once where none was started."""
        with self._lock:
            if self._closed:
                raise QueueFull("the service is shutting down")
            if self._under_way + count > self._most:
                raise QueueFull(f"{self._under_way} texts are being written and {self._most} may; try again later")
            self._under_way += count
        try:
            yield
        except BaseException:
            self._done(count)
            raise

    def _done(self, count: int = 1) -> None:
        with self._lock:
            self._under_way -= count

    def _counted(self, future: Future[Made]) -> Future[Made]:
        future.add_done_callback(lambda _: self._done())
        return future

    def write(self, writings: list[Writing]) -> list[Future[Generation]]:
        """All of them are taken, or none. All under one key."""
        key = writings[0].key
        assert key is not None, "everything that is served is marked"
        scheduler = self._scheduler(self._embedder_of(key))
        with self._place(len(writings)):
            futures = [scheduler.submit(one) for one in writings]
        return [self._counted(future) for future in futures]

    def rewrite(self, text: str, key: Key, seed: int | None, settings: RewriteSettings) -> Future[Rewriting]:
        def work() -> Rewriting:
            return rewrite(text, key, self._embedder_of(key), self._rewrite_llm(), settings, seed=seed)

        return self.run(work)

    def run(self, work: Callable[[], Made]) -> Future[Made]:
        """Anything else that takes a while, such as an attack on a text."""
        with self._place(1):
            future = self._pool.submit(work)
        return self._counted(future)

    def _scheduler(self, embedder: Embedder) -> Scheduler:
        with self._lock:
            if embedder.fingerprint not in self._schedulers:
                self._schedulers[embedder.fingerprint] = Scheduler(self.llm, embedder)
            return self._schedulers[embedder.fingerprint]

    def close(self) -> None:
        """Requests have been waited for; what is still under way then is given up."""
        with self._lock:
            self._closed = True
            schedulers: list[Any] = list(self._schedulers.values())
        for one in schedulers:
            one.close()
        self._pool.shutdown(wait=False, cancel_futures=True)
