"""The answer of a detection in words: found, not found, or too short to tell."""

from __future__ import annotations

from typing import Literal

Answer = Literal["found", "not found", "too short to tell"]
Reason = Literal["p_value_at_most_fpr", "p_value_above_fpr", "text_too_short"]

_REASONS: dict[Answer, Reason] = {
    "found": "p_value_at_most_fpr",
    "not found": "p_value_above_fpr",
    "too short to tell": "text_too_short",
}


class Verdict(str):
    """The answer in words: "found", "not found" or "too short to tell".

    It is a string and compares equal to those words, with typed fields beside them. "not found" never means that a person
    wrote the text: text under another key, by another model, or after a thorough rewrite looks the same.

    Args:
        answer: "found", "not found" or "too short to tell".
        needed: The number of sentences that would be enough to find a mark, where it is known.

    Attributes:
        found: Whether the mark was found.
        reason: "p_value_at_most_fpr", "p_value_above_fpr" or "text_too_short".
        needed: As above.

    Example:
        >>> verdict = Verdict("too short to tell", 6)
        >>> verdict == "too short to tell", verdict.found, verdict.reason, verdict.needed
        (True, False, 'text_too_short', 6)
    """

    found: bool
    reason: Reason
    needed: int | None

    def __new__(cls, answer: Answer, needed: int | None = None) -> Verdict:
        verdict = super().__new__(cls, answer)
        verdict.found = answer == "found"
        verdict.reason = _REASONS[answer]
        verdict.needed = needed
        return verdict
