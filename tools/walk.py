"""Counts how often the walk of one text through `detect` crosses from one room of the source into another.

python tools/walk.py                                     rooms crossed, most often first
PYTHONPATH=/path/to/another/src python tools/walk.py     the same for another version of the source
"""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from types import FrameType

import alimark
from alimark.testing import StandInEmbedder, StandInLLM

ROOT = Path(alimark.__file__).parent


def room_of(frame: FrameType | None) -> str | None:
    """The folder below alimark, or below alimark/core; None outside of the source and for its module `testing`."""
    if frame is None or not frame.f_code.co_filename.startswith(f"{ROOT}/"):
        return None
    parts = Path(frame.f_code.co_filename).relative_to(ROOT).parts
    if len(parts) < 2:
        return None
    return parts[1] if parts[0] == "core" and len(parts) > 2 else parts[0]


def crossings() -> Counter[tuple[str, str]]:
    """The calls from each room to another during one detection of a warm detector."""
    embedder = StandInEmbedder()
    key = alimark.Key.generate(embedder=embedder, secret=bytes(range(32)))
    mark = alimark.AliMark(key, embedder=embedder)
    text = mark.generate("It was late.", StandInLLM(), sentences=12, candidates=8, seed=1).text
    mark.detect(text)
    counts: Counter[tuple[str, str]] = Counter()

    def profile(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and (to := room_of(frame)):
            came_from = room_of(frame.f_back)
            if came_from and came_from != to:
                counts[came_from, to] += 1

    sys.setprofile(profile)
    try:
        mark.detect(text)
    finally:
        sys.setprofile(None)
    return counts


def main() -> None:
    counts = crossings()
    for (came_from, to), count in counts.most_common():
        print(f"{count:4}  {came_from} -> {to}")
    print(f"{counts.total():4}  in all")


if __name__ == "__main__":
    main()
