"""Marked passages within longer texts: `search="excerpt"`."""

from __future__ import annotations

from typing import Any

import pytest

from alimark import AliMark, detect
from fixed_texts import EMBEDDER, fixed_key, unmarked, written


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


def test_auto_looks_for_passages_where_the_whole_shows_no_mark(mark: AliMark, sentences: list[str]) -> None:
    other = unmarked(160, 3)
    text = " ".join([*other[:100], *sentences, *other[100:]])
    whole, auto = mark.detect(text), mark.detect(text, search="auto")
    excerpt = mark.detect(text, search="excerpt")
    assert whole.p_value > 0.01 >= auto.p_value
    assert auto.searched == ("whole", "excerpt")
    assert auto.p_value == 2 * excerpt.p_value
    assert auto.passages[0].p_value == 2 * excerpt.passages[0].p_value
    assert abs(auto.passages[0].first - 101) <= 3
    assert auto.settings.search == "auto"
    assert auto.record()["searched"] == ["whole", "excerpt"]


def test_auto_on_texts_that_need_one_search(mark: AliMark, sentences: list[str]) -> None:
    text = " ".join(sentences)
    whole, auto = mark.detect(text), mark.detect(text, search="auto")
    assert (auto.p_value, auto.alignment, auto.searched) == (whole.p_value, whole.alignment, ("whole",))
    long = " ".join([*sentences, *unmarked(300, 3)])
    auto, excerpt = mark.detect(long, search="auto"), mark.detect(long, search="excerpt")
    assert auto.searched == ("excerpt",)
    assert (auto.p_value, auto.passages) == (excerpt.p_value, excerpt.passages)


@pytest.mark.parametrize("search", ["excerpt", "auto"])
def test_a_passage_is_found_among_many_keys(mark: AliMark, sentences: list[str], search: Any) -> None:
    other = unmarked(80, 3)
    text = " ".join([*other[:40], *sentences, *other[40:]])
    best, *_ = detect(text, [fixed_key(7), mark.key, fixed_key(8)], embedder=EMBEDDER, search=search)
    assert (best.key_id, best.keys_tried, best.verdict()) == (mark.key.id, 3, "found")
