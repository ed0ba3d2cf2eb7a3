"""Kernels of several threads have their turn, and cancelled work stops."""

import subprocess
import sys
import threading
import time
from concurrent.futures import CancelledError

import pytest

from alimark.core._util.compiling import launch
from alimark.core._util.work import TimedFuture, working


def test_slices_cover_all_jobs_once() -> None:
    for cells in (1.0, 1e5, 1e9):
        jobs: list[int] = []
        launch(1000, cells, lambda part: jobs.extend(range(1000)[part]))  # noqa: B023
        assert jobs == list(range(1000))


def test_a_long_launch_lets_others_in() -> None:
    order: list[str] = []

    def work(name: str, jobs: int) -> None:
        def run(part: slice) -> None:
            order.append(name)
            time.sleep(0.01)

        launch(jobs, 1e9, run)

    long = threading.Thread(target=work, args=("long", 400))
    long.start()
    while not order:
        time.sleep(0.001)
    work("short", 1)
    assert order.count("long") < 10
    long.join()


def test_a_cancelled_launch_stops() -> None:
    slices: list[slice] = []

    future: TimedFuture[None] = TimedFuture()
    with working([future]):

        def run(part: slice) -> None:
            slices.append(part)
            future.cancel()

        with pytest.raises(CancelledError):
            launch(1000, 1e9, run)
    assert len(slices) == 1


@pytest.mark.parametrize("is_command_line", [True, False])
def test_the_command_line_compiles_without_importing_scipy(is_command_line: bool) -> None:
    """Numba imports SciPy where it is installed; other programs may need it in compiled code of their own."""
    pytest.importorskip("scipy")
    program = f"""
import sys
from alimark.core._util import process
process.is_command_line = {is_command_line}
import alimark.core._util.compiling
from numba import njit
assert njit(lambda a: a + 1)(2) == 3
print("scipy.linalg" in sys.modules)
import scipy.linalg.cython_blas, numba.np.arraymath
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str(not is_command_line)
