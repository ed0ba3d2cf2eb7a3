"""Numba compilation with a cache in the user's cache folder."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import numba
from numba import njit

from alimark._util.paths import cache_folder

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


_FOLDER = _cache_folder()
one_at_a_time = threading.Lock()  # Numba's plainest threading layer aborts when two threads launch kernels at once


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
