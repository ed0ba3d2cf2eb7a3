"""Detection with many keys at once, and of marked passages within longer texts: `search="excerpt"`."""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from alimark import AliMark, Key, detect
from alimark.core.detection.pipeline import detect_batch
from alimark.core.detection.preparing import alike
from alimark.core.detection.settings import DetectionSettings
from alimark.errors import AlimarkError
from alimark.testing import StandInEmbedder
from fixed_texts import EMBEDDER, fixed_key, soft_key, unmarked, written


def test_whose_key_it_was(mark: AliMark, sentences: list[str]) -> None:
    keys = [fixed_key(number) for number in range(1, 41)]
    keys.insert(17, mark.key)
    keys.append(Key.generate(embedder=EMBEDDER, decision="hard", block_size=16, secret=bytes(32)))
    best = detect(" ".join(sentences), keys, embedder=EMBEDDER)
    assert best[0].key_id == mark.key.id
    assert best[0].keys_tried == 42
    assert best[0].p_value == pytest.approx(42 / (42 * 200 + 1))
    assert best[0].p_randomised <= best[0].p_value
    assert best[0].verdict() == "found"
    assert best[1].verdict() != "found"
    assert len(best) == 3


def test_scores_are_those_of_each_key(mark: AliMark, sentences: list[str]) -> None:
    text = " ".join(sentences)
    [detection] = detect(text, [mark.key], embedder=EMBEDDER)
    assert replace(detection, draws=0) == replace(mark.detect(text), draws=0)


def _full_stops_missing(sentences: list[str]) -> str:
    return " ".join(sentence[:-1] + "," for sentence in sentences)


@pytest.mark.parametrize("kind", ["hard", "soft"])
@pytest.mark.parametrize("text", ["long by its clauses alone", "found as a whole beside", "a passage"])
def test_a_second_key_changes_neither_search_nor_score_nor_p_value(kind: str, text: str) -> None:
    """The search follows from the text and the key's own p-value, so that an answer does not depend on the other keys."""
    make = fixed_key if kind == "hard" else soft_key
    keys = [make(number) for number in (0, 1)]
    mark = AliMark(keys[1], embedder=EMBEDDER)
    texts = {
        "long by its clauses alone": lambda: _full_stops_missing(unmarked(70, 3)),
        "found as a whole beside": lambda: " ".join(written(mark.key, 64, candidates=16)),
        "a passage": lambda: " ".join([*unmarked(60, 3), *written(mark.key, candidates=16)]),
    }
    settings = DetectionSettings(search="auto", draws=99)
    for key in keys:
        alone = AliMark(key, embedder=EMBEDDER).detect(texts[text](), settings=settings)
        beside = detect(texts[text](), keys, embedder=EMBEDDER, settings=settings)
        [same] = [detection for detection in beside if detection.key_id == key.id]
        fields = ("searched", "reading", "raw", "score", "z", "readings")
        assert [getattr(same, name) for name in fields] == [getattr(alone, name) for name in fields]
        assert same.p_value == min(1, 2 * alone.p_value)


@pytest.mark.parametrize("make", [fixed_key, soft_key])
def test_passages_are_looked_for_in_clauses_under_more_keys_than_are_returned(make: Callable[[int], Key]) -> None:
    text, settings = _full_stops_missing(unmarked(70, 3)), DetectionSettings(search="auto", draws=99)
    answers = detect(text, [make(number) for number in range(3)], embedder=EMBEDDER, best=2, settings=settings)
    assert [(answer.keys_tried, answer.searches) for answer in answers] == [(3, 2)] * 2


def test_many_texts_under_many_keys(mark: AliMark, sentences: list[str]) -> None:
    """Each text gets its best keys or its error, and the texts of a batch do not change each other's answers."""
    keys = [*(fixed_key(number) for number in range(1, 9)), mark.key]
    texts = [" ".join(sentences), "", " ".join(unmarked(9, 3))]
    times: Counter[str] = Counter()
    settings = DetectionSettings(draws=99)
    found, error, other = detect_batch(texts, keys, EMBEDDER, settings, best=2, tried=20, times=times)
    assert isinstance(error, AlimarkError)
    assert not isinstance(found, AlimarkError) and not isinstance(other, AlimarkError)  # noqa: PT018
    assert (len(found), found[0].key_id, found[0].keys_tried) == (2, mark.key.id, 20)
    assert [found, other] == detect_batch([texts[0], texts[2]], keys, EMBEDDER, settings, best=2, tried=20)
    assert list(times) == ["splitting", "embedding", "alignment"]


def test_keys_are_grouped_by_what_they_can_share() -> None:
    hard, soft = [fixed_key(1), fixed_key(2)], [soft_key(1), soft_key(2, m=64)]
    payload = Key.generate(embedder=EMBEDDER, payload_bits=8)
    other = Key.generate(embedder=StandInEmbedder(32))
    assert alike([*hard, payload, *soft, other]) == [hard, [payload], soft, [other]]


def test_errors(mark: AliMark) -> None:
    with pytest.raises(AlimarkError, match="no keys"):
        detect("Text.", [], embedder=EMBEDDER)
    mixed = [mark.key, Key.generate(embedder=StandInEmbedder(32), decision="hard")]
    with pytest.raises(AlimarkError, match="use the embedder that the key names"):
        detect("Text.", mixed, embedder=EMBEDDER)  # no embedder of that name has 32 dimensions
    for keys in (mixed, [mark.key, soft_key(1)]):
        with pytest.raises(AlimarkError, match="detect with the keys of each"):
            detect_batch(["Text."], keys, EMBEDDER, DetectionSettings())


# Marked passages within longer texts, under one key and under several


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
