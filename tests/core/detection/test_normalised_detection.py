"""Detection of disguised texts: a further reading without the disguise, which the p-value pays for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import pytest

from alimark import AliMark, Key, detect
from alimark.core.detection.batching import embed_texts
from alimark.core.detection.pipeline import detect_batch
from alimark.core.detection.preparing import prepare
from alimark.core.detection.searching import search_in_turn
from alimark.core.detection.settings import DetectionSettings
from alimark.errors import AlimarkError
from alimark.testing import StandInEmbedder, StandInLLM

EMBEDDER = StandInEmbedder()
SHAPES: dict[str, dict[str, Any]] = {
    "soft": {"decision": "soft"},
    "hard": {"decision": "hard"},
}


def key_of(shape: str, number: int = 7) -> Key:
    return Key.generate(embedder=EMBEDDER, secret=bytes([number]) * 32, **SHAPES[shape])


@pytest.fixture(scope="module", params=list(SHAPES))
def marked(request: pytest.FixtureRequest) -> tuple[AliMark, str]:
    mark = AliMark(key_of(request.param), embedder=EMBEDDER)
    return mark, mark.generate("It was late.", StandInLLM(), sentences=14, candidates=32, seed=3).text


DISGUISES: dict[str, Callable[[str], str]] = {
    "look-alikes": lambda text: text.replace("a", "а").replace("e", "е").replace("o", "о"),
    "HTML": lambda text: "<p>" + "".join(f"&#{ord(c)};" for c in text) + "</p>",
    "invisible": "\u200b".join,
}


@pytest.mark.parametrize("name", DISGUISES)
def test_a_disguised_text_is_found(marked: tuple[AliMark, str], name: str) -> None:
    mark, text = marked
    plain, disguised = mark.detect(text), mark.detect(DISGUISES[name](text))
    assert plain.verdict() == disguised.verdict() == "found"
    assert (plain.normalised, plain.reading) == ({}, "normalised")
    assert disguised.normalised
    # Layout and characters that are not shown are taken away in the first reading.
    assert (disguised.reading, disguised.readings) == (
        ("undisguised", 2) if name == "look-alikes" else ("normalised", 1)
    )
    assert disguised.sentences == plain.sentences
    assert disguised.raw == plain.raw
    assert disguised.record()["normalised"] == {
        **disguised.normalised, "reading": disguised.reading, "readings": disguised.readings,
    }  # fmt: skip
    assert disguised.report()["reading"] == disguised.reading


def test_few_disguised_words_are_no_further_reading(marked: tuple[AliMark, str]) -> None:
    """Each reading costs power, and a mark outlasts some changed words."""
    mark, text = marked
    sentence = mark.detect(text).sentences[3]
    answer = mark.detect(text.replace(sentence, DISGUISES["look-alikes"](sentence)))
    assert (answer.readings, answer.reading) == (1, "normalised")


def test_an_ordinary_text_is_read_once(marked: tuple[AliMark, str]) -> None:
    mark, text = marked
    prepared = prepare(text, mark.key, EMBEDDER, DetectionSettings())
    assert prepared.versions == (prepared,)
    assert "normalised" not in mark.detect(text).record()


@pytest.mark.parametrize("search", ["whole", "excerpt"])
def test_the_smaller_p_value_of_both_readings_is_doubled(search: Literal["whole", "excerpt"]) -> None:
    mark = AliMark(key_of("hard"), embedder=EMBEDDER)
    text = "<b>The mayor</b> sold the bridge.The team found a letter. A stranger hid the piano at home. " * 2
    settings = DetectionSettings(search=search, draws=99)
    prepared = prepare(text, mark.key, EMBEDDER, settings)
    assert [version.reading for version in prepared.versions] == ["normalised", "undisguised"]
    signals = embed_texts([prepared], EMBEDDER).signals(prepared, mark.key, settings)
    alone = [
        search_in_turn(replace(version, further=()), [part], mark.key, EMBEDDER, settings)
        for version, part in zip(prepared.versions, signals, strict=True)
    ]
    better = min(alone, key=lambda detection: detection.p_value)
    both = mark.detect(text, settings=settings)
    assert (both.p_value, both.raw, both.reading) == (min(1, 2 * better.p_value), better.raw, better.reading)
    assert (both.p_randomised, both.readings) == (min(1, 2 * better.p_randomised), 2)


def test_p_values_of_unmarked_texts_read_both_ways_are_not_too_small() -> None:
    llm = StandInLLM(5)
    text = AliMark(key_of("hard", 99), embedder=EMBEDDER).generate("One.", llm, sentences=8, candidates=1, seed=1).text
    disguised = DISGUISES["look-alikes"](text)
    p = [
        AliMark(key_of("hard", number), embedder=EMBEDDER).detect(disguised, draws=199).p_randomised
        for number in range(100, 200)
    ]
    assert all(np.mean(np.array(p) <= level) <= level + 0.07 for level in (0.02, 0.05, 0.2))


def test_many_keys_read_a_disguised_text_alike() -> None:
    keys = [key_of("hard", 1), key_of("soft", 2), key_of("soft", 3)]
    mark = AliMark(keys[1], embedder=EMBEDDER)
    text = mark.generate("It was late.", StandInLLM(), sentences=14, candidates=32, seed=3).text
    answers = detect(DISGUISES["look-alikes"](text), keys, embedder=EMBEDDER)
    assert (answers[0].key_id, answers[0].keys_tried, answers[0].verdict()) == (keys[1].id, 3, "found")
    with pytest.raises(AlimarkError, match="decisions"):
        detect_batch([text], keys, EMBEDDER, DetectionSettings())


def test_a_batch_under_many_keys_reads_both_ways() -> None:
    keys = [key_of("hard", number) for number in (1, 2)]
    mark = AliMark(keys[1], embedder=EMBEDDER)
    text = mark.generate("It was late.", StandInLLM(), sentences=14, candidates=32, seed=3).text
    [[plain], [disguised]] = (
        answer
        for answer in detect_batch([text, DISGUISES["look-alikes"](text)], keys, EMBEDDER, DetectionSettings(), tried=2)
        if not isinstance(answer, AlimarkError)
    )
    assert plain.key_id == disguised.key_id == keys[1].id
    assert disguised.raw == plain.raw
