"""Numba compilation with a cache in the user's cache folder."""

from __future__ import annotations

import os
import sys
import threading
from collections import deque
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar

import numba
from numba import njit

from alimark.core._util import process
from alimark.core._util.paths import cache_folder
from alimark.core._util.work import stop_if_cancelled

Function = TypeVar("Function", bound=Callable[..., Any])


def _cache_folder() -> str | None:
    """A writable folder for compiled kernels. Without one, returns None, and every process compiles the kernels again."""
    if os.environ.get("NUMBA_CACHE_DIR"):
        return os.environ["NUMBA_CACHE_DIR"]
    try:
        folder: Path = cache_folder() / "kernels"
        folder.mkdir(parents=True, exist_ok=True)
        if os.access(folder, os.W_OK):
            return str(folder)
    except OSError:
        pass
    return None


def _import_without_scipy() -> None:
    """Imports the part of Numba that imports SciPy where it is installed, which takes as long as all the rest of Numba.

    SciPy makes np.convolve and np.correlate faster in compiled code, which no kernel of alimark uses. Programs that use alimark
    as a library are left as they are.
    """
    blas = "scipy.linalg.cython_blas"
    if blas in sys.modules or "numba.np.arraymath" in sys.modules:
        return
    sys.modules[blas] = None  # type: ignore[assignment]  # its import fails at once
    try:
        import_module("numba.np.arraymath")
    finally:
        del sys.modules[blas]


if process.is_command_line:
    _import_without_scipy()

_FOLDER = _cache_folder()
_CELLS = 1e7
"""The work of one launch, in cells of alignment tables: some tenths of a second."""


class _InTurn:
    """A lock that goes to the threads that wait for it in the order in which they came."""

    def __init__(self) -> None:
        self._state = threading.Lock()
        self._held = False
        self._waiting: deque[threading.Lock] = deque()

    def __enter__(self) -> None:
        with self._state:
            if not self._held:
                self._held = True
                return
            turn = threading.Lock()
            turn.acquire()
            self._waiting.append(turn)
        try:
            turn.acquire()
        except BaseException:  # an interrupt: the turn must not be given to a thread that does not wait any more
            with self._state:
                if turn in self._waiting:
                    self._waiting.remove(turn)
                else:
                    self._pass_on()
            raise

    def __exit__(self, *_: object) -> None:
        with self._state:
            self._pass_on()

    def _pass_on(self) -> None:
        if self._waiting:
            self._waiting.popleft().release()
        else:
            self._held = False


_one_at_a_time = _InTurn()  # Numba's plainest threading layer aborts when two threads launch kernels at once


def launch(jobs: int, cells: float, run: Callable[[slice], None]) -> None:
    """Runs a parallel kernel over many jobs, in slices between which the kernels of other threads have their turn.

    So a long text does not hold up short ones in other threads, and work that was cancelled stops.

    Args:
        jobs: The number of jobs.
        cells: The cells of the alignment table of one job, on average.
        run: Launches the kernel for a slice of the jobs.

    Raises:
        CancelledError: The work was cancelled (`alimark.core._util.work`).

    Example:
        >>> launch(5, 1.0, print)
        slice(0, 5, None)
    """
    size = max(2 * numba.config.NUMBA_NUM_THREADS, int(_CELLS / max(cells, 1.0)))
    for start in range(0, jobs, size):
        stop_if_cancelled()
        with _one_at_a_time:
            run(slice(start, min(jobs, start + size)))


def kernel(*, parallel: bool = False) -> Callable[[Function], Function]:
    """`njit` with a cache in the user's cache folder. Numba's global setting is restored at once, for other packages."""

    def compile_later(function: Function) -> Function:
        before = numba.config.CACHE_DIR
        numba.config.CACHE_DIR = _FOLDER or before
        try:
            return njit(cache=_FOLDER is not None, parallel=parallel, nogil=True)(function)  # type: ignore[no-any-return]
        finally:
            numba.config.CACHE_DIR = before

    return compile_later
