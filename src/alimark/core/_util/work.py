"""Work: futures that know how long they were worked on, cancelled work, and the seconds of stages."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import CancelledError, Future, InvalidStateError
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import Any, TypeVar

Result = TypeVar("Result")

_current: ContextVar[tuple[TimedFuture[Any], ...]] = ContextVar("working", default=())
"""The futures that this thread works for."""


class TimedFuture(Future[Result]):
    """A future whose `worked` counts the seconds in which a thread worked for it, so that waiting can be told apart."""

    def __init__(self) -> None:
        super().__init__()
        self._worked = 0.0
        self._since: float | None = None

    @property
    def worked(self) -> float:
        """The seconds of work so far."""
        since = self._since
        return self._worked + (0.0 if since is None else time.monotonic() - since)

    def settle(self, result: Result | BaseException) -> None:
        """Sets the result or, for an exception, the error, unless the future was cancelled or has one."""
        with suppress(InvalidStateError):
            if isinstance(result, BaseException):
                self.set_exception(result)
            else:
                self.set_result(result)


@contextmanager
def working(futures: Iterable[TimedFuture[Any]]) -> Iterator[None]:
    """A block of work for some futures: its time counts for each of them, and it is cancelled once all of them are done.

    Futures of unfinished work are all done only if they were cancelled.
    """
    served = tuple(futures)
    token = _current.set(served)
    for future in served:
        future._since = time.monotonic()
    try:
        yield
    finally:
        _current.reset(token)
        for future in served:
            future._worked, future._since = future.worked, None


def when_cancelled(callback: Callable[[], object]) -> None:
    """Calls `callback`, perhaps more than once, when the work that this thread does is cancelled, or at once if it was.

    Outside of `working` it never is.
    """
    futures = _current.get()

    def check(_: object) -> None:
        if all(future.done() for future in futures):
            callback()

    for future in futures:
        future.add_done_callback(check)


def stop_if_cancelled() -> None:
    """Raises `concurrent.futures.CancelledError` if the work that this thread does was cancelled."""
    futures = _current.get()
    if futures and all(future.done() for future in futures):
        raise CancelledError("the work was cancelled")


Beat = Callable[[], None]
"""Called before every step that a single text can make long, so that a watchdog can tell slow work from a hang."""


class Clock:
    """Adds the seconds of each stage to a counter."""

    def __init__(self, times: Counter[str]) -> None:
        self.times, self.last = times, time.perf_counter()

    def skip(self) -> None:
        """Leaves out the time since the last lap, which is counted elsewhere."""
        self.last = time.perf_counter()

    def lap(self, stage: str) -> None:
        """Adds the time since the last lap to a stage."""
        now = time.perf_counter()
        self.times[stage] += now - self.last  # type: ignore[assignment]
        self.last = now
