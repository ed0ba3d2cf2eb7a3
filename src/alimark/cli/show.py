"""Prints results on stdout (text or JSON), and messages and progress on stderr."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress
    from rich.table import Table


_SECONDS_BETWEEN_LINES = 15.0


def print_json(content: object) -> None:
    """Prints JSON on stdout."""
    sys.stdout.write(json.dumps(content, ensure_ascii=False, indent=2) + "\n")


def note(message: str) -> None:
    """Prints a message on stderr."""
    sys.stderr.write(message + "\n")


def stdout() -> Console:
    """A console that prints on stdout."""
    from rich.console import Console

    # A pipe has no width; without one, rich would break lines of a table at 80 columns.
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=160)


def print_table(table: Table, console: Console | None = None) -> None:
    """Prints a table on stdout; where the terminal is too narrow for its columns, each row as lines of a name and a value."""
    from rich.measure import Measurement

    console = console or stdout()
    needed = Measurement.get(console, console.options.update(width=1000, max_width=1000), table).minimum
    if needed <= console.width:
        console.print(table)
        return
    for cells in zip(*(column.cells for column in table.columns), strict=True):
        for column, cell in zip(table.columns, cells, strict=True):
            console.print(f"{column.header}: {cell}", markup=False, soft_wrap=True)
        console.print()


@contextmanager
def progress(shown: bool = True) -> Iterator[Progress]:
    """A progress bar on stderr with the time left; shown on a terminal only, and not where `shown` is false."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    console = Console(stderr=True)
    with Progress(
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
        TextColumn("left"), TimeRemainingColumn(), console=console, disable=not (shown and console.is_terminal),
    ) as bar:  # fmt: skip
        yield bar


class Task:
    """Work with a bar of progress; where stderr is no terminal, a line of it every few seconds."""

    def __init__(self, bar: Progress, title: str, total: int | None = None, done: int = 0) -> None:
        self._bar, self._started = bar, time.perf_counter()
        self._last_line = self._started
        self._task = bar.add_task(title, total=total, completed=done)

    def rate(self, count: float) -> float:
        """How many of `count` things there were in a second."""
        return count / (time.perf_counter() - self._started)

    def show(self, line: str, done: float | None = None, total: int | None = None, title: str | None = None) -> None:
        """Shows what is done; `line` says it where there is no bar."""
        self._bar.update(self._task, completed=done, total=total, description=title)
        now = time.perf_counter()
        if not sys.stderr.isatty() and now - self._last_line >= _SECONDS_BETWEEN_LINES:
            self._last_line = now
            note(line)
