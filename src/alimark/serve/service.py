"""Everything that the endpoints share: settings, store, tokens, ring, models, queues."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Future
from typing import Annotated, Any, TypeVar

from fastapi import Depends, Request

from alimark.embedding.base import Embedder
from alimark.embedding.loading import load_embedder
from alimark.errors import AlimarkError
from alimark.keys.key import Key
from alimark.llm import load_llm
from alimark.llm.base import LLM
from alimark.serve.auth import Allowance, Role, Token, Tokens
from alimark.serve.checking import Checker
from alimark.serve.database import Connection, Store
from alimark.serve.gate import Refused
from alimark.serve.metrics import Metrics
from alimark.serve.records import Book, Record
from alimark.serve.ring import Ring
from alimark.serve.settings import Settings
from alimark.serve.writing import Writers

Result = TypeVar("Result")

log = logging.getLogger("alimark.serve")

_REFRESH = 5.0
"""Seconds until a token or a key that another process changed is known here."""
_PRUNE = 3600.0


class Service:
    """Opened with the app and closed with it. `llm` and `embedder` load by name; tests give stand-ins."""

    def __init__(
        self,
        settings: Settings,
        *,
        llm: Callable[[str], LLM] = load_llm,
        embedder: Callable[[str], Embedder] = load_embedder,
    ) -> None:
        self.settings = settings
        self._load_llm, self._load_embedder = llm, embedder
        self._loading, self._loading_llm = threading.Lock(), threading.Lock()
        self._embedders: dict[str, Embedder] = {}
        self._rewrite_llm: LLM | None = None
        self.store = Store(settings.database_url)
        self.tokens = Tokens(self.store)
        self.ring = Ring(settings.keys, self.store)
        self.book = Book(self.store, keep_text=settings.keep_text)
        self.allowance = Allowance(settings.rate, settings.burst, settings.concurrency)
        self.metrics = Metrics()
        self.llm = llm(settings.llm)
        self.checker = Checker(self.embedder_of, most=settings.detect_queue, seen=self.metrics.seen_batch)
        self.writers = Writers(self.llm, self._rewriter, self.embedder_of, most=settings.write_queue)
        self.metrics.watch(
            "alimark_texts_waiting", "Texts that wait for their detection.", lambda: self.checker.waiting
        )
        self.metrics.watch("alimark_texts_under_way", "Texts being written.", lambda: self.writers.under_way)

    def embedder(self, name: str) -> Embedder:
        with self._loading:
            if name not in self._embedders:
                self._embedders[name] = self._load_embedder(name)
            return self._embedders[name]

    def embedder_of(self, key: Key) -> Embedder:
        found = self.embedder(key.embedder)
        key.check(found)
        return found

    def _rewriter(self) -> LLM:
        name = self.settings.rewrite_llm
        if not name or name == self.settings.llm:
            return self.llm
        with self._loading_llm:
            if self._rewrite_llm is None:
                self._rewrite_llm = self._load_llm(name)
            return self._rewrite_llm

    def warm_up(self) -> None:
        """Loads what the first request would wait for."""
        from alimark.detection.kernels.hard import warm_up

        warm_up()
        self.embedder(self.settings.embedder)

    async def keep_up(self) -> None:
        """Reads now and then what other processes changed, and deletes records that are too old."""
        loop, pruned = asyncio.get_running_loop(), float("-inf")
        while True:
            try:
                if self.settings.retention_days and loop.time() - pruned > _PRUNE:
                    await asyncio.to_thread(self.book.prune, self.settings.retention_days)
                    pruned = loop.time()
                await asyncio.sleep(_REFRESH)
                await asyncio.to_thread(self.tokens.reload)
                await asyncio.to_thread(self.ring.reload)
            except AlimarkError:  # of a database that is away for a while; what was known last holds until then
                log.warning("the database does not answer")
                await asyncio.sleep(_REFRESH)

    async def write_down(self, records: Sequence[Record]) -> None:
        """Returns when they are safe: nobody is answered before."""
        await asyncio.shield(asyncio.wrap_future(self.store.submit(self.book.writing(records))))

    async def finish(self, future: Future[Result]) -> Result:
        return await self.in_time(asyncio.wrap_future(future))

    async def in_time(self, work: Awaitable[Result]) -> Result:
        try:
            async with asyncio.timeout(self.settings.timeout):
                return await work
        except TimeoutError:
            raise Refused(
                504,
                "timeout",
                f"this took longer than {self.settings.timeout:g} s; send less at a time",
                retry_after=10,
            ) from None

    async def ask(self, job: Callable[[Connection], Result]) -> Result:
        return await self.finish(self.store.submit(job))

    def check_text(self, text: str, what: str = "a text") -> None:
        if len(text) > self.settings.max_text:
            self.metrics.refused.labels("text").inc()
            raise Refused(413, "text_too_long", f"{what} has at most {self.settings.max_text:,} characters")
        if not text.strip():
            raise Refused(422, "empty", f"{what} must hold at least a word")

    def close(self) -> None:
        self.checker.close()
        self.writers.close()
        self.store.close()


def service_of(request: Request) -> Service:
    found: Service = request.app.state.service
    return found


Serving = Annotated[Service, Depends(service_of)]


def _role(role: Role) -> Any:
    def check(request: Request) -> Token:
        token: Token | None = request.state.passing.token
        if token is None or role not in token.roles:
            raise Refused(403, "wrong_role", f"this needs a token with the role {role}")
        return token

    return Depends(check)


Generates = Annotated[Token, _role("generate")]
Detects = Annotated[Token, _role("detect")]
Administers = Annotated[Token, _role("admin")]
