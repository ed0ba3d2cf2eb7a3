"""A line of progress for users of the Python interface: on a terminal and in notebooks, wiped when the work is done."""

import sys
import time
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Self, TypeVar

from alimark.core._util import process

Item = TypeVar("Item")
SECONDS = 0.2  # the least time between two versions of a line
on_command_line = False
"""Whether the command line shows lines, too: the verbs that have no bar of their own."""


def shown() -> bool:
    """Whether progress is shown without being asked for. Most verbs of the command line show their own."""
    return (on_command_line or not process.is_command_line) and (
        "ipykernel" in sys.modules or bool(sys.stderr and sys.stderr.isatty())
    )


class Line:
    """Says on stderr how much of some work is done, and how long the rest may take; a context manager."""

    def __init__(self, title: str, total: int, wanted: bool = True) -> None:
        self.title, self._total, self._shown = title, total, wanted and total > 0 and shown()
        self._started = self._last = time.perf_counter()
        self._width = 0

    def at(self, done: int, total: int | None = None) -> None:
        """Shows that so much is done, of a total that may have changed."""
        self._total = total or self._total
        now = time.perf_counter()
        if self._shown and done and now - self._last >= SECONDS:
            left = (now - self._started) * (self._total - done) / done
            self._write(f"{self.title}: {done:,} of {self._total:,}, about {max(0, left):.0f} s left")
            self._last = now

    def _write(self, line: str) -> None:
        sys.stderr.write(f"\r{line.ljust(self._width)}")
        sys.stderr.flush()
        self._width = len(line)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._width:
            self._write("")
            sys.stderr.write("\r")


def with_line(title: str, items: Sequence[Item]) -> Iterator[Item]:
    """The items one after the other; where there are several, with a line of progress."""
    with Line(title, len(items), wanted=len(items) > 1) as line:
        for done, item in enumerate(items):
            line.at(done)
            yield item
