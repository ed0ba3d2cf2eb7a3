"""A future that knows how long it was worked on, so that waiting and working can be told apart."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, InvalidStateError
from contextlib import ExitStack, contextmanager, suppress
from typing import TypeVar

Result = TypeVar("Result")


class TimedFuture(Future[Result]):
    """A future whose `worked` counts the seconds in which a thread worked for it.

    Example:
        >>> future = TimedFuture()
        >>> with working([future]):
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

    @contextmanager
    def working(self) -> Iterator[None]:
        """Counts the time of this block as work."""
        self._since = time.monotonic()
        try:
            yield
        finally:
            self._worked, self._since = self.worked, None

    def settle(self, result: Result | BaseException) -> None:
        """Sets the result or, for an exception, the error, unless the future was cancelled or has one."""
        with suppress(InvalidStateError):
            if isinstance(result, BaseException):
                self.set_exception(result)
            else:
                self.set_result(result)


@contextmanager
def working(futures: Iterable[TimedFuture[Result]]) -> Iterator[None]:
    """Counts the time of this block as work on each of the futures."""
    with ExitStack() as stack:
        for future in futures:
            stack.enter_context(future.working())
        yield
