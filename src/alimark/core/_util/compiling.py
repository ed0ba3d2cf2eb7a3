"""Numba compilation with a cache in the user's cache folder."""

import os
import sys
import threading
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
_CELLS = 1e7  # the work of one launch, in cells of alignment tables: some tenths of a second


_one_at_a_time = threading.Lock()  # Numba's plainest threading layer aborts when two threads launch kernels at once
_next = threading.Lock()  # held while waiting for the other lock, so that a thread which comes back does not overtake


def launch(jobs: int, cells: float, run: Callable[[slice], None]) -> None:
    """Runs a parallel kernel over many jobs, in slices between which the kernels of other threads have their turn.

    So a long text does not hold up short ones in other threads, and work that was cancelled stops with a CancelledError.
    `cells`: of the alignment table of one job, on average.
    """
    size = max(2 * numba.config.NUMBA_NUM_THREADS, int(_CELLS / max(cells, 1.0)))
    for start in range(0, jobs, size):
        stop_if_cancelled()
        with _next:
            _one_at_a_time.acquire()
        try:
            run(slice(start, min(jobs, start + size)))
        finally:
            _one_at_a_time.release()


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
