"""The statistic that texts are ranked by: the method's own z, the standardised score, or the p-value."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Literal

from alimark.core._util.jsonl import Record

Statistic = Literal["score", "z", "p"]

TITLES: dict[str, str] = {
    "z": "the method's own z",
    "score": "the score standardised by random keys",
    "p": "-log10 of the p-value by random keys",
}
"""What each statistic is, for the notes of tables."""


def ranked_by(records: Iterable[Record], wanted: Statistic) -> Statistic:
    """The statistic that all of some detections have: the wanted one, or the score where one of them has no z.

    Human and marked texts that are compared with each other are given together, so that both are ranked by the same.

    Args:
        records: Records of detections.
        wanted: The statistic that the recipe names.

    Returns:
        The statistic to rank these detections by.

    Example:
        >>> ranked_by([{"z": 1.5}, {"z": 0.2}], "z"), ranked_by([{"z": 1.5}, {"z": None}], "z")
        ('z', 'score')
    """
    return "score" if wanted == "z" and any(record.get("z") is None for record in records) else wanted


def statistic_of(record: Record, statistic: Statistic) -> float:
    """The value of the statistic of a detection, higher for a stronger mark.

    Of a p-value it is the negative decimal logarithm. Equal p-values give equal numbers, so that a threshold never divides
    texts that random keys cannot tell apart.

    Args:
        record: The record of a detection that has the statistic.
        statistic: The statistic.

    Returns:
        The number to rank by.

    Example:
        >>> statistic_of({"score": 2.5, "z": 4.0, "p_value": 0.01}, "p")
        2.0
    """
    return -math.log10(float(record["p_value"])) if statistic == "p" else float(record[statistic])
