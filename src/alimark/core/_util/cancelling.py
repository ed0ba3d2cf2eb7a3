"""Stops work whose result is no longer needed: waiting for something outside the process, and long computations."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError, Future
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

Result = TypeVar("Result")

_current: ContextVar[Cancellation | None] = ContextVar("cancellation", default=None)


class Cancellation:
    """What has to be called when the work of a block is cancelled.

    Example:
        >>> with Cancellation().block() as cancellation:
        ...     when_cancelled(lambda: print("stopped"))
        ...     cancellation.cancel()
        stopped
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._callbacks: list[Callable[[], object]] = []
        self.cancelled = False

    @contextmanager
    def block(self) -> Iterator[Cancellation]:
        """Work inside this block belongs to this cancellation."""
        token = _current.set(self)
        try:
            yield self
        finally:
            _current.reset(token)

    def follow(self, futures: Sequence[Future[Result]]) -> None:
        """Cancels the work once all futures are done, which those of unfinished work are only if they were cancelled."""

        def check(_: object) -> None:
            if all(future.done() for future in futures):
                self.cancel()

        for future in futures:
            future.add_done_callback(check)

    def add(self, callback: Callable[[], object]) -> None:
        """Calls `callback` when the work is cancelled, or at once if it was."""
        with self._lock:
            if not self.cancelled:
                self._callbacks.append(callback)
                return
        callback()

    def cancel(self) -> None:
        """Calls all callbacks, once."""
        with self._lock:
            self.cancelled, callbacks = True, self._callbacks
            self._callbacks = []
        for callback in callbacks:
            callback()


def when_cancelled(callback: Callable[[], object]) -> None:
    """Calls `callback` when the work that this thread does is cancelled; without a `Cancellation` it never is."""
    cancellation = _current.get()
    if cancellation is not None:
        cancellation.add(callback)


def stop_if_cancelled() -> None:
    """Raises `concurrent.futures.CancelledError` if the work that this thread does was cancelled.

    Example:
        >>> with Cancellation().block() as cancellation:
        ...     stop_if_cancelled()
        ...     cancellation.cancel()
        ...     stop_if_cancelled()
        Traceback (most recent call last):
        ...
        concurrent.futures._base.CancelledError: nobody waits for the result any more
    """
    cancellation = _current.get()
    if cancellation is not None and cancellation.cancelled:
        raise CancelledError("nobody waits for the result any more")
