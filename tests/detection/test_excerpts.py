"""Marked passages within longer texts: `search="excerpt"`."""

from __future__ import annotations

import pytest

from alimark import AliMark
from fixed_texts import unmarked, written


def test_a_marked_passage_in_other_text(mark: AliMark, sentences: list[str]) -> None:
    other = unmarked(30, 3)
    text = " ".join([*other[:11], *sentences, *other[11:]])
    detection = mark.detect(text, search="excerpt")
    assert detection.p_value <= 0.01
    assert detection.z is None
    [passage] = [passage for passage in detection.passages if passage.p_value <= 0.01]
    assert abs(passage.first - 12) + abs(passage.last - 23) <= 4
    assert passage.last_block - passage.first_block == pytest.approx(11, abs=3)


def test_the_middle_of_a_marked_text(mark: AliMark) -> None:
    detection = mark.detect(" ".join(written(mark.key, 30)[14:]), search="excerpt")
    assert detection.verdict() == "found"
    assert detection.passages[0].first_block >= 14


def test_two_passages(mark: AliMark, sentences: list[str]) -> None:
    other = unmarked(40, 4)
    detection = mark.detect(" ".join([*sentences, *other, *written(mark.key, seed=9)]), search="excerpt")
    assert len([passage for passage in detection.passages if passage.p_value <= 0.01]) == 2


def test_nothing_in_unmarked_text(mark: AliMark) -> None:
    detection = mark.detect(" ".join(unmarked(30, 8)), search="excerpt")
    assert detection.p_value > 0.001
    assert all(passage.p_value <= 0.01 for passage in detection.passages)
