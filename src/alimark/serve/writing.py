"""Generation and rewriting for many requests at a time, by the same scheduler as `alimark generate`; other slow work."""

import threading
from collections.abc import Callable
from typing import TypeVar

from alimark.core._util.fair_pool import FairPool
from alimark.core._util.work import TimedFuture
from alimark.core.embedding.base import Embedder
from alimark.core.generation.api import Generation, Scheduler, Session
from alimark.core.keys.key import Key
from alimark.core.llm.base import LLM
from alimark.core.rewriting.api import Original, RewriteSettings, Rewriting, rewrite_many
from alimark.errors import AlimarkError
from alimark.serve.places import Places

Result = TypeVar("Result")

_THREADS = 3
"""Threads of each pool. No token uses all of them."""


class Writers:
    """Writes and rewrites texts, at most `most` at a time, and runs other slow work beside them."""

    def __init__(
        self, llm: LLM, rewrite_llm: Callable[[], LLM], embedder_of: Callable[[Key], Embedder], *, most: int
    ) -> None:
        self.llm, self._rewrite_llm, self._embedder_of = llm, rewrite_llm, embedder_of
        self._texts, self._others = Places(most), Places(most)
        self._schedulers: dict[str, Scheduler] = {}
        self._making = threading.Lock()
        askers = max(_THREADS, llm.max_concurrency)
        self._asking = FairPool(askers, "alimark-asker", askers - 1)
        self._working = FairPool(_THREADS, "alimark-worker", _THREADS - 1)

    @property
    def under_way(self) -> int:
        """Texts in progress or waiting."""
        return self._texts.taken

    def write(self, sessions: list[Session]) -> list[TimedFuture[Generation]]:
        """Starts texts under one key: all of them or, where there is no room, none."""
        key = sessions[0].key
        assert key is not None, "everything that is served is marked"
        scheduler = self._scheduler(self._embedder_of(key))
        return self._texts.start(sessions[0].owner, len(sessions), lambda: list(map(scheduler.submit, sessions)))

    def rewrite(
        self, text: str, key: Key, seed: int | None, settings: RewriteSettings, owner: str = ""
    ) -> TimedFuture[Rewriting]:
        """Starts the rewriting of a text for an owner, the id of a token. Cancelling the future stops it."""

        def work() -> Rewriting:
            embedder, llm = self._embedder_of(key), self._rewrite_llm()
            [(_, result)] = rewrite_many([Original(text, seed)], key, embedder, llm, settings)
            if isinstance(result, AlimarkError):
                raise result
            return result

        return self.ask(work, owner)

    def ask(self, work: Callable[[], Result], owner: str = "") -> TimedFuture[Result]:
        """Starts other work of a language model; it takes the place of a text."""
        return self._texts.submit(self._asking, owner, [work])[0]

    def run(self, work: Callable[[], Result], owner: str = "") -> TimedFuture[Result]:
        """Starts work that takes time and needs no model, such as reading a file, which then need not wait for one."""
        return self._others.submit(self._working, owner, [work])[0]

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
        self._asking.close()
        self._working.close()
