"""Futures that know how long they were worked on, and the end of work that nobody waits for any more."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from concurrent.futures import CancelledError, Future, InvalidStateError
from contextlib import suppress
from contextvars import ContextVar, Token
from typing import Any, TypeVar

Result = TypeVar("Result")

_current: ContextVar[Working | None] = ContextVar("working", default=None)


class TimedFuture(Future[Result]):
    """A future whose `worked` counts the seconds in which a thread worked for it, so that waiting can be told apart.

    Example:
        >>> future = TimedFuture()
        >>> with Working([future]):
        ...     time.sleep(0.01)
        >>> future.worked >= 0.01
        True
    """

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


class Working:
    """A block of work for some futures: its time counts for each of them, and it is cancelled once all of them are done.

    Futures of unfinished work are all done only if they were cancelled.

    Example:
        >>> future = TimedFuture()
        >>> with Working([future]):
        ...     when_cancelled(lambda: print("stopped"))
        ...     future.cancel()
        stopped
        True
    """

    def __init__(self, futures: Iterable[TimedFuture[Any]]) -> None:
        self._futures = tuple(futures)
        self._token: Token[Working | None] | None = None

    def __enter__(self) -> Working:
        self._token = _current.set(self)
        for future in self._futures:
            future._since = time.monotonic()
        return self

    def __exit__(self, *_: object) -> None:
        assert self._token is not None
        _current.reset(self._token)
        for future in self._futures:
            future._worked, future._since = future.worked, None

    @property
    def cancelled(self) -> bool:
        """Whether nobody waits for the work any more."""
        return all(future.done() for future in self._futures)

    def when_cancelled(self, callback: Callable[[], object]) -> None:
        """Calls `callback` when the work is cancelled, or at once if it was; it may be called more than once."""

        def check(_: object) -> None:
            if self.cancelled:
                callback()

        for future in self._futures:
            future.add_done_callback(check)


def when_cancelled(callback: Callable[[], object]) -> None:
    """Calls `callback` when the work that this thread does is cancelled; outside of `Working` it never is."""
    work = _current.get()
    if work is not None:
        work.when_cancelled(callback)


def stop_if_cancelled() -> None:
    """Raises `concurrent.futures.CancelledError` if the work that this thread does was cancelled.

    Example:
        >>> future = TimedFuture()
        >>> with Working([future]):
        ...     stop_if_cancelled()
        ...     _ = future.cancel()
        ...     stop_if_cancelled()
        Traceback (most recent call last):
        ...
        concurrent.futures._base.CancelledError: nobody waits for the result any more
    """
    work = _current.get()
    if work is not None and work.cancelled:
        raise CancelledError("nobody waits for the result any more")
