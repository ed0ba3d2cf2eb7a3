"""This process: what kind of program it is, and how many CPUs it may use."""

from __future__ import annotations

import os

is_command_line = False
"""Whether it is the command line of alimark, and not a program that uses alimark as a library. The command line sets it."""


def available_cpus() -> int:
    """The number of CPUs that the operating system lets this process run on, at least 1."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
