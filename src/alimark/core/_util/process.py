"""This process: what kind of program it is, how many CPUs it may use; and processes with limits, to read untrusted files in."""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Sequence

from alimark.core._util.work import when_cancelled

is_command_line = False
"""Whether it is the command line of alimark, and not a program that uses alimark as a library. The command line sets it."""


def available_cpus() -> int:
    """The number of CPUs that the operating system lets this process run on, at least 1."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # options of mallopt


def give_back_memory() -> None:
    """Has the GNU C library return freed blocks of a megabyte to the system; otherwise each thread keeps up to 64 MB."""
    with contextlib.suppress(AttributeError, OSError, TypeError):  # another C library
        import ctypes

        for option in (_TRIM_THRESHOLD, _MMAP_THRESHOLD):
            ctypes.CDLL(None).mallopt(option, 1 << 20)


# The environment may hold a password of a database or an API key; the process gets neither.
_KEPT_VARIABLES = ("PATH", "PYTHONPATH", "SYSTEMROOT", "LD_LIBRARY_PATH")


class TooLong(Exception):
    """The process did not end within its time."""


def run(module: str, arguments: Sequence[str], data: bytes, *, cpu_seconds: int) -> tuple[int, bytes]:
    """Runs `python -m module` with `data` as its input, and returns its exit status and its output.

    The module calls `limit` before it reads anything. After six times the CPU time that it allows itself, since other work on
    the machine slows it down, the process is ended and TooLong raised.
    """
    command = [sys.executable, "-B", "-P", "-m", module, *arguments]
    environment = {name: os.environ[name] for name in _KEPT_VARIABLES if name in os.environ}
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, env=environment) as process:
        when_cancelled(process.kill)
        try:
            output, _ = process.communicate(data, timeout=6 * cpu_seconds)
        except subprocess.TimeoutExpired:
            raise TooLong from None
        finally:
            process.kill()
    if process.returncode in (-getattr(signal, "SIGXCPU", 0), -getattr(signal, "SIGKILL", 0)):
        raise TooLong
    return process.returncode, output


def limit(cpu_seconds: int, memory: int, file_size: int = 0) -> None:
    """Limits this process: its CPU time, its memory, and the size of the files that it writes, in bytes."""
    with contextlib.suppress(ImportError):  # Windows has no such limits; the time limit of the parent holds everywhere
        import resource

        resource.setrlimit(resource.RLIMIT_CPU, (cpu_seconds, cpu_seconds + 1))
        resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
        resource.setrlimit(resource.RLIMIT_FSIZE, (file_size, file_size))
