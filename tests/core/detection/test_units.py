"""Merges and halves of sentences, the units that are embedded."""

from __future__ import annotations

from alimark.core.detection.units import restructure
from alimark.core.frozen.kernels.types import LEFT, RIGHT, WHOLE, Limits


def test_restructurings_are_all_embedded() -> None:
    units = ["One two three four.", "Five six seven eight.", "Nine."]
    single = restructure(units, Limits.of("single"))
    assert single.count == 3
    assert len(single.texts) == 3 + 2 + 4  # 4N - 1 less the two halves that "Nine." has not
    assert single.texts[single.index[1, 1, WHOLE]] == "One two three four. Five six seven eight."
    assert single.texts[single.index[0, 0, LEFT]] == "One two."
    assert single.texts[single.index[0, 0, RIGHT]] == "three four."
    multi = restructure(units, Limits.of((1, 1)))
    assert multi.texts[multi.index[1, 1, RIGHT]] == "three four. Five six seven eight."
    assert multi.texts[multi.index[1, 1, LEFT]] == "One two three four. Five six."
    assert multi.index[1, 1, LEFT | RIGHT] == -1  # takes two splits
    assert restructure(units, Limits.of((1, 2))).index[1, 1, LEFT | RIGHT] >= 0
