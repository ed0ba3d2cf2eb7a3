"""Answers of a model that an attack did not use: blank ones, refusals, or answers of a wrong length."""

from __future__ import annotations

from collections.abc import Sequence

from alimark.core._util.jsonl import Record


def rejected(record: Record) -> int | None:
    """The answers of a model that an attack did not use.

    Records of earlier releases have the number of tries instead. All but the last failed where one answer is enough; an attack
    by sentences or in rounds needs several.

    Args:
        record: The record of an attacked text.

    Returns:
        Their number; None where the record of an earlier release does not say.

    Example:
        >>> rejected({"rejected": 2, "tries": 3}), rejected({"tries": 3})
        (2, 2)
    """
    if "rejected" in record:
        return int(record["rejected"])
    tries, failed = int(record.get("tries", 1)), int(bool(record.get("failed")))
    attack = record.get("attack", {"name": "", "settings": {}})
    needs_several = attack["name"] == "chat-sentences" or "rounds" in attack["settings"]
    return None if needs_several and tries > 1 else tries - 1 + failed


def texts_with_rejected(chains: Sequence[Sequence[Record]]) -> int | None:
    """The number of attacked texts for which a model gave an answer that was not used.

    Args:
        chains: For each text the records of all steps of the attack on it.

    Returns:
        The number of texts; None where a record does not say.

    Example:
        >>> texts_with_rejected([[{"rejected": 0}, {"rejected": 3}], [{"rejected": 0}]])
        1
    """
    counts = [[rejected(step) for step in steps] for steps in chains]
    return None if any(None in steps for steps in counts) else sum(any(steps) for steps in counts)
