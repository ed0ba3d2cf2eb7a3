"""Detection of texts that were disguised or lost their full stops: a further reading, which the p-value pays for."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import pytest

from alimark import AliMark, Key, detect
from alimark.core.detection.batching import embed_texts
from alimark.core.detection.interleaving import every_few
from alimark.core.detection.pipeline import detect_batch, null_scorers
from alimark.core.detection.preparing import PreparedText, prepare
from alimark.core.detection.searching import search_in_turn
from alimark.core.detection.settings import DetectionSettings
from alimark.core.frozen.text.splitting import splitter
from alimark.errors import AlimarkError
from alimark.testing import StandInLLM
from fixed_texts import EMBEDDER

DISGUISES: dict[str, Callable[[str], str]] = {
    "look-alikes": lambda text: text.replace("a", "а").replace("e", "е").replace("o", "о"),
    "HTML": lambda text: "<p>" + "".join(f"&#{ord(c)};" for c in text) + "</p>",
    "invisible": "\u200b".join,
}


def each(change: Callable[[str], str]) -> Callable[[str], str]:
    return lambda text: " ".join(change(sentence) for sentence in splitter().sentences(text))


ENDS: dict[str, Callable[[str], str]] = {
    "commas": each(lambda sentence: sentence[:-1] + ","),
    "nothing": each(lambda sentence: sentence[:-1]),
    "fillers": each(lambda sentence: f"{sentence} Yes."),
}


def key_of(decision: str, number: int = 7) -> Key:
    return Key.generate(embedder=EMBEDDER, secret=bytes([number]) * 32, decision=decision)


def mark_of(decision: str, number: int = 7) -> AliMark:
    return AliMark(key_of(decision, number), embedder=EMBEDDER)


def written(mark: AliMark) -> str:
    return mark.generate("It was late.", StandInLLM(), sentences=16, candidates=32, seed=3).text


@pytest.fixture(scope="module", params=["soft", "hard"])
def marked(request: pytest.FixtureRequest) -> tuple[AliMark, str]:
    mark = mark_of(request.param)
    return mark, written(mark)


@pytest.mark.parametrize("change", [DISGUISES["look-alikes"], ENDS["nothing"]], ids=["disguised", "without stops"])
def test_p_values_of_unmarked_texts_read_twice_are_not_too_small(change: Callable[[str], str]) -> None:
    text = change(mark_of("hard", 99).generate("One.", StandInLLM(5), sentences=8, candidates=1, seed=1).text)
    marks = [mark_of(("soft", "hard")[number % 2], number) for number in range(100, 200)]
    p = np.array([mark.detect(text, draws=99).p_randomised for mark in marks])
    assert all(np.mean(p <= level) <= level + 0.07 for level in (0.02, 0.05, 0.2))


# Disguises


@pytest.mark.parametrize("name", DISGUISES)
def test_a_disguised_text_is_found(marked: tuple[AliMark, str], name: str) -> None:
    mark, text = marked
    plain, disguised = mark.detect(text), mark.detect(DISGUISES[name](text))
    assert plain.verdict() == disguised.verdict() == "found"
    assert (plain.normalised, plain.reading) == ({}, "normalised")
    assert disguised.normalised
    # Layout and characters that are not shown are taken away in the first reading.
    assert (disguised.reading, disguised.readings) == (("undisguised", 2) if "alike" in name else ("normalised", 1))
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
    mark = mark_of("hard")
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


def test_many_keys_read_a_disguised_text_alike() -> None:
    keys = [key_of("hard", 1), key_of("soft", 2), key_of("soft", 3)]
    text = written(AliMark(keys[1], embedder=EMBEDDER))
    answers = detect(DISGUISES["look-alikes"](text), keys, embedder=EMBEDDER)
    assert (answers[0].key_id, answers[0].keys_tried, answers[0].verdict()) == (keys[1].id, 3, "found")
    with pytest.raises(AlimarkError, match="decisions"):
        detect_batch([text], keys, EMBEDDER, DetectionSettings())


# Clauses


def detected(text: str | PreparedText, key: Key, settings: DetectionSettings) -> Any:
    [[detection]] = detect_batch([text], [key], EMBEDDER, settings)  # type: ignore[misc]
    return detection


@pytest.mark.parametrize("name", ENDS)
def test_a_text_without_regular_stops_is_found(marked: tuple[AliMark, str], name: str) -> None:
    mark, text = marked
    detection = mark.detect(ENDS[name](text))
    assert (detection.verdict(), detection.reading, detection.readings) == ("found", "by clauses", 2)
    assert detection.record()["normalised"] == {"reading": "by clauses", "readings": 2}
    carried = [step for step in detection.alignment if step.block is not None and step.sentences]
    assert len(carried) >= 10
    assert mark.detect(text).readings == 1


def test_a_hard_key_gives_every_whole_text_the_z_of_its_sentences(marked: tuple[AliMark, str]) -> None:
    """A bench that ranks by the paper's z must have one for every text, also for those that are found by their clauses."""
    mark, text = marked
    text = ENDS["commas"](text)
    detection = mark.detect(text)
    settings = DetectionSettings(draws=1)
    as_it_stands = replace(prepare(text, mark.key, EMBEDDER, settings), further=())
    by_sentences = detected(as_it_stands, mark.key, settings)
    assert detection.reading == "by clauses"
    assert detection.z == (None if mark.key.soft else by_sentences.raw)
    clauses_alone = prepare(text, mark.key, EMBEDDER, settings).further[-1]
    by_clauses = detected(clauses_alone, mark.key, settings)
    assert by_clauses.z is None


def test_random_keys_score_the_reading_that_was_found(marked: tuple[AliMark, str]) -> None:
    """An audit compares documents by their scores under random keys; these are the scores behind the p-value."""
    mark, text = marked
    text, settings = ENDS["commas"](text), DetectionSettings(draws=99, search="whole")
    detection = detected(text, mark.key, settings)
    assert detection.reading == "by clauses"
    [null_scores] = null_scorers([text], [detection.reading], mark.key, EMBEDDER, [settings])
    scores = null_scores(0, 99)
    assert detection.score == pytest.approx((detection.raw - scores.mean()) / scores.std())


def test_passages_and_sentences_as_they_are_have_no_clauses(marked: tuple[AliMark, str]) -> None:
    mark, text = marked
    for settings in (DetectionSettings(search="excerpt"), DetectionSettings(restructure="none")):
        assert not prepare(ENDS["nothing"](text), mark.key, EMBEDDER, settings).further


# Sentences of others between


def test_regular_sentences_are_those_about_one_thing() -> None:
    random = np.random.default_rng(1)
    rows = random.normal(size=(36, 64))
    assert every_few(rows) is None
    rows[1::3] += random.normal(size=64)
    mask = every_few(rows)
    assert mask is not None
    assert np.flatnonzero(mask).tolist() == list(range(1, 36, 3))


def test_a_mark_is_found_between_sentences_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    mark, settings = mark_of("soft"), DetectionSettings(draws=299)
    others = iter(
        splitter().sentences(
            mark_of("soft", 99).generate("One.", StandInLLM(5), sentences=32, candidates=1, seed=1).text
        )
    )
    text = each(lambda sentence: f"{sentence} {next(others)} {next(others)}")(written(mark))
    # The stand-in embedder knows no subjects.
    monkeypatch.setattr("alimark.core.detection.interleaving.every_few", lambda rows: np.arange(len(rows)) % 3 == 0)
    detection = detected(text, mark.key, settings)
    assert (detection.verdict(), detection.reading, detection.readings) == ("found", "regular sentences", 3)
    assert len(detection.sentences) == 16
    [null_scores] = null_scorers([text], [detection.reading], mark.key, EMBEDDER, [settings])
    scores = null_scores(0, 299)
    assert detection.score == pytest.approx((detection.raw - scores.mean()) / scores.std())
