"""How many CPUs this process may use."""

from __future__ import annotations

import os


def available_cpus() -> int:
    """The number of CPUs that the operating system lets this process run on, at least 1."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
