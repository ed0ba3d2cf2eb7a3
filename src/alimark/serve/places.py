"""The places of a queue, of which each token gets its share."""

import threading
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, TypeVar

from alimark.core._util.fair_pool import FairPool
from alimark.core._util.work import TimedFuture
from alimark.errors import AlimarkError

AnyFuture = TypeVar("AnyFuture", bound=Future[Any])
Result = TypeVar("Result")


class QueueFull(AlimarkError):
    """Too many texts are waiting; the same request may succeed later."""


class Places:
    """Counts the pieces of work in progress or waiting, and refuses more than a limit.

    While there is room, anybody may take places. An owner that has less than its share may enter a full queue, so that nobody
    is kept out by the many requests of another; the queue then has a few more items than its limit.
    """

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
            mine, owners = self._taken[owner] + count, len(self._taken.keys() | {owner})
            if self.taken + count > self._most and (owners == 1 or mine > self._most // owners):
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

    def submit(self, pool: FairPool, owner: str, works: Sequence[Callable[[], Result]]) -> list[TimedFuture[Result]]:
        """Starts pieces of work in the threads of a pool."""
        return self.start(owner, len(works), lambda: [pool.submit(owner, work) for work in works])

    def _give_back(self, owner: str, count: int) -> None:
        with self._lock:
            self._taken[owner] -= count
            self._taken = +self._taken  # owners without work are forgotten
