"""Signals that an audit keeps from the test of its documents, so that the search for shared text need not embed them again."""

from __future__ import annotations

import heapq
from dataclasses import replace

from alimark.core.detection.preparing import PreparedText
from alimark.core.detection.settings import PASSAGES_FROM
from alimark.core.detection.signals import Signals


class KeptSignals:
    """The signals of the documents with the smallest p-values, which are those that are searched for shared text.

    Args:
        most: The number of documents that are kept, at most. Long texts and texts without full stops are left out.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._of_text: dict[str, dict[str, Signals]] = {}
        self._largest_first: list[tuple[float, str]] = []

    def add(self, text: PreparedText, signals: list[Signals], p_value: float) -> None:
        """Adds the signals of each version of a text. If there are too many texts, drops that with the largest p-value."""
        by_clauses = any(version.units.chances is not None for version in text.versions)
        if text.text in self._of_text or by_clauses or len(text.sentences) >= PASSAGES_FROM:
            return
        # A copy does not hold the kernels' tables, which are much larger than the signals.
        pairs = zip(text.versions, signals, strict=True)
        self._of_text[text.text] = {version.reading: replace(of_version) for version, of_version in pairs}
        heapq.heappush(self._largest_first, (-p_value, text.text))
        if len(self._largest_first) > self._most:
            del self._of_text[heapq.heappop(self._largest_first)[1]]

    def get(self, text: str, reading: str) -> Signals | None:
        """The signals of a text in one of its readings, or None where they were not kept; a single reading has any name."""
        readings = self._of_text.get(text, {})
        return next(iter(readings.values())) if len(readings) == 1 else readings.get(reading)
