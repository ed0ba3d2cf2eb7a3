"""Shared parts of the adapters that sample a draw in several requests ("rounds") to an engine.

A round stops at a string that may end a sentence. If the sentence is not over there ("Dr. "), another round continues the draw.
"""

from __future__ import annotations

import hashlib
import re
import string
from collections.abc import Iterator
from dataclasses import dataclass, field

from alimark.core.frozen.text.splitting import STOPS
from alimark.core.llm.base import Draw, Ended

SHORT_ROUNDS = 3
"""Rounds of a draw that stop early. The round after them samples all tokens that are left, so that long answers take few."""

REPLACEMENT = "\ufffd"
"""Unicode's replacement character: it stands for a character of which the last token holds only a part."""

COMMON_STOPS = (
    *"。！？",
    *(mark + close + blank for mark in ".!?" for close in ("", '"', "”", ")") for blank in " \n"),
)
"""The most frequent stops. There are few of them, because vLLM and SGLang look for each of them after every token."""


def _precise_stops() -> Iterator[str]:
    """The stops without the most frequent false alarms, each of which costs a further round.

    A full stop and a space count only behind two letters or digits of one kind ("end. ", "NASA. ", "1999. ", but not
    "Dr. ", "U.S. ", "J. ", "1. "), and a blank line only behind a visible character. A draw that misses an end samples on to
    the next one.
    """
    kinds = (string.ascii_lowercase, string.ascii_uppercase, string.digits)
    pairs = [*(a + b for kind in kinds for a in kind for b in kind), *"%)]\"'”’"]
    visible = string.ascii_letters + string.digits + string.punctuation
    for stop in STOPS:
        before = {". ": pairs, "\n\n": visible}.get(stop, [""])
        yield from (prefix + stop for prefix in before)


PRECISE_STOPS = tuple(_precise_stops())

_ANY_STOP = re.compile("|".join(map(re.escape, STOPS)))


@dataclass(slots=True)
class PartialDraw:
    """A draw in progress, of an engine that returns token ids: the ids, their text, and the number of further rounds."""

    prompt: list[int]
    seed: int
    number: int
    ids: list[int] = field(default_factory=list)
    text: str = ""
    rounds: int = 0
    ended: Ended | None = None

    def finished(self) -> Draw:
        assert self.ended is not None
        return Draw(self.text, len(self.ids), self.ended)


def stop_ends(text: str, known: int) -> Iterator[int]:
    """The positions at which stops end behind the first `known` characters."""
    longest = max(map(len, STOPS))
    matches = _ANY_STOP.finditer(text, max(0, known - longest))
    return (match.end() for match in matches if match.end() > known)


def seed_of(*numbers: int) -> int:
    """A seed of 31 bits, so that with a draw's index added it fits the integers of every server.

    It also stays below 2**32 - 1, which llama.cpp takes for "a random seed".
    """
    digest = hashlib.blake2b(repr(numbers).encode(), digest_size=4).digest()
    return int.from_bytes(digest, "big") >> 1
