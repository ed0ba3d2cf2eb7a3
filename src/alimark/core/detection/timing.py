"""The seconds of each stage, and heartbeats for a watchdog."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable

Beat = Callable[[], None]
"""Called before every step that a single text can make long, so that a watchdog can tell slow work from a hang."""


class Clock:
    """Adds the seconds of each stage to a counter."""

    def __init__(self, times: Counter[str]) -> None:
        self.times, self.last = times, time.perf_counter()

    def skip(self) -> None:
        """Leaves out the time since the last lap, which is counted elsewhere."""
        self.last = time.perf_counter()

    def lap(self, stage: str) -> None:
        """Adds the time since the last lap to a stage."""
        now = time.perf_counter()
        self.times[stage] += now - self.last  # type: ignore[assignment]
        self.last = now
