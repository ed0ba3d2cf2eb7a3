"""What adapters share that sample a draw in rounds.

A round stops at strings that may end a sentence. Where the sentence is not over there ("Dr. "), the draw is taken up again.
"""

from __future__ import annotations

import hashlib
import re
import string
from collections.abc import Iterator
from dataclasses import dataclass, field

from alimark.llm.base import Draw, Ended
from alimark.text.splitting import STOPS

SHORT_ROUNDS = 3
"""Rounds of a draw that may be cut short; the next takes all tokens that are left, so that a whole answer takes few."""

BROKEN = "\ufffd"
"""What stands for a character of which a token holds only a part."""

COMMON_STOPS = (
    *"。！？",
    *(mark + close + blank for mark in ".!?" for close in ("", '"', "”", ")") for blank in " \n"),
)
"""The likeliest of all stops: vLLM and SGLang look for each of them behind every token."""


def _wary_stops() -> Iterator[str]:
    """The stops, less the likeliest false alarms, since going on after one has its price.

    A full stop and a space count only behind two letters or digits of one kind ("end. ", "NASA. ", "1999. ", but not
    "Dr. ", "U.S. ", "J. ", "1. "), a blank line only behind something. A draw that passes an end unseen merely samples
    on to the next.
    """
    kinds = (string.ascii_lowercase, string.ascii_uppercase, string.digits)
    pairs = [*(a + b for kind in kinds for a in kind for b in kind), *"%)]\"'”’"]
    visible = string.ascii_letters + string.digits + string.punctuation
    for stop in STOPS:
        before = {". ": pairs, "\n\n": visible}.get(stop, [""])
        yield from (some + stop for some in before)


WARY_STOPS = tuple(_wary_stops())

_ANY_STOP = re.compile("|".join(map(re.escape, STOPS)))


@dataclass(slots=True)
class OpenDraw:
    """A draw in progress, of an engine that tells its tokens: these, their text, and how often it was taken up again."""

    prompt: list[int]
    seed: int
    number: int
    ids: list[int] = field(default_factory=list)
    text: str = ""
    rounds: int = 0
    ended: Ended | None = None

    def draw(self) -> Draw:
        assert self.ended is not None
        return Draw(self.text, len(self.ids), self.ended)


def stop_ends(text: str, known: int) -> Iterator[int]:
    """Where stops end that reach beyond the `known` characters."""
    longest = max(map(len, STOPS))
    found = _ANY_STOP.finditer(text, max(0, known - longest))
    return (match.end() for match in found if match.end() > known)


def seed_of(*numbers: int) -> int:
    """A seed of 31 bits: with a draw's place added it fits every server's integers.

    It also stays below 2**32 - 1, which means "any seed" to llama.cpp.
    """
    digest = hashlib.blake2b(repr(numbers).encode(), digest_size=4).digest()
    return int.from_bytes(digest, "big") >> 1
