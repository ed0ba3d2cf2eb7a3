"""Shortens extremely long words before a sentence splitter sees them.

Frozen: it decides where sentences end in texts with such words.

nupunkt reads the rest of a word again for each punctuation mark in it, so its time is quadratic in the length of a word (a run
of characters without white space), and it keeps words in caches that hold many thousands. No word of a real language reaches
the limits below. Of a longer one the splitter gets what decides where a sentence ends: the beginning, the part around the last
punctuation mark, and the end.
"""

import re
from bisect import bisect_right
from collections.abc import Callable

from alimark.core.frozen.text.prose import Spans

MAX_WORD = 4096  # the longest word that a splitter gets as it stands
MAX_MARKED_WORD = 1024  # the same for a word with more than `MAX_MARKS` punctuation marks
MAX_MARKS = 256

_LONG_WORD = re.compile(rf"\S{{{MAX_MARKED_WORD + 1},}}+")
_MARK = re.compile(r"[.!?…]")
_HEAD, _BEFORE_MARK, _AFTER_MARK = 256, 512, 256


def with_short_words(finder: Callable[[str], Spans]) -> Callable[[str], Spans]:
    """Returns a sentence finder that shortens extremely long words and reports spans of the original text.

    Args:
        finder: Maps a text to the (start, end) spans of its sentences.

    Returns:
        A function of the same kind, which gives the same spans for texts without such words.

    Example:
        >>> find = with_short_words(lambda text: [(0, len(text))])
        >>> find("!" * 5000)
        [(0, 5000)]
    """

    def spans(text: str) -> Spans:
        gaps = _gaps(text)
        if not gaps:
            return finder(text)
        starts = [0, *(end for _, end in gaps)]
        ends = [*(start for start, _ in gaps), len(text)]
        kept = [text[a:b] for a, b in zip(starts, ends, strict=True)]
        places = [0]  # where each kept part begins in the shortened text
        for part in kept:
            places.append(places[-1] + len(part))

        def original(place: int) -> int:
            part = bisect_right(places, place, hi=len(kept)) - 1
            return starts[part] + place - places[part]

        return [(original(a), original(b)) for a, b in finder("".join(kept))]

    return spans


def _gaps(text: str) -> Spans:
    """The parts of long words that are left out."""
    gaps: Spans = []
    for word in _LONG_WORD.finditer(text):
        start, end = word.span()
        marks = [mark.start() for mark in _MARK.finditer(text, start, end)]
        if end - start <= MAX_WORD and len(marks) <= MAX_MARKS:
            continue
        last = marks[-1] if marks else start
        kept = [(start, start + _HEAD), (last - _BEFORE_MARK, last + _AFTER_MARK), (end - _HEAD, end)]
        at = start
        for a, b in sorted(kept):
            if a > at:
                gaps.append((at, a))
            at = max(at, b)
    return gaps
