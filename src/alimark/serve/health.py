"""The readiness check of the service: whether it can write a record and detect a watermark."""

from __future__ import annotations

import asyncio
import time

from alimark.core.detection.settings import DetectionSettings
from alimark.serve.checking import Check, Checker
from alimark.serve.database import Store
from alimark.serve.places import QueueFull
from alimark.serve.records import RecordLog
from alimark.serve.ring import NoKey, Ring

SECONDS = 5.0
"""The time within which each part of the check has to answer: a locked database must not make the check hang."""
_KEPT = 2.0
"""Seconds for which an answer is used again, because anyone may ask without a token."""
_TEXT = "The keeper lit the lamp before dinner. A visitor lost an old map on Friday."
_SETTINGS = DetectionSettings(draws=100)


class Readiness:
    """Checks whether the service can do its work; requests that arrive during a check share its answer."""

    def __init__(self, store: Store, records: RecordLog, ring: Ring, checker: Checker) -> None:
        self._store, self._records, self._ring, self._checker = store, records, ring, checker
        self._checking = asyncio.Lock()
        self._problem, self._answered = "", float("-inf")

    async def problem(self) -> str:
        """Returns what does not work, in words that tell nothing about keys or texts; empty if all works."""
        async with self._checking:
            if time.monotonic() - self._answered >= _KEPT:
                self._problem, self._answered = await self._check(), time.monotonic()
            return self._problem

    async def _check(self) -> str:
        problem = "the database does not accept records"
        try:
            async with asyncio.timeout(SECONDS):
                await asyncio.wrap_future(self._store.submit(self._records.probe))
            problem = "detection does not work"
            async with asyncio.timeout(SECONDS):
                check = Check(_TEXT, (self._ring.detecting("")[0],), _SETTINGS)
                [future] = self._checker.submit("", [check], lambda _, answer: answer)
                await asyncio.wrap_future(future)
        except (QueueFull, NoKey):
            return ""  # the service is busy, or waits for its first key
        except Exception:  # any failure, a timeout as well, means that requests fail
            return problem
        return ""
