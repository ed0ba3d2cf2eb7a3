"""Detection of texts whose full stops are missing, replaced or scattered."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from alimark import AliMark, Key, detect
from alimark.core.detection.aligned_results import AlignedDetection
from alimark.core.detection.pipeline import detect_batch, null_scorers
from alimark.core.detection.preparing import PreparedText, prepare
from alimark.core.detection.settings import DetectionSettings
from alimark.core.frozen.text.splitting import splitter
from alimark.errors import AlimarkError
from alimark.testing import StandInEmbedder, StandInLLM

EMBEDDER = StandInEmbedder()
ENDS: dict[str, Callable[[list[str]], str]] = {
    "commas": lambda sentences: " ".join(sentence[:-1] + "," for sentence in sentences),
    "nothing": lambda sentences: " ".join(sentence[:-1] for sentence in sentences),
    "fillers": lambda sentences: " ".join(f"{sentence} Yes." for sentence in sentences),
}


def key_of(decision: str, number: int = 7) -> Key:
    return Key.generate(embedder=EMBEDDER, secret=bytes([number]) * 32, decision=decision)


def detected(text: str | PreparedText, key: Key, settings: DetectionSettings) -> list[AlignedDetection]:
    [answer] = detect_batch([text], [key], EMBEDDER, settings)
    assert not isinstance(answer, AlimarkError)
    return answer


@pytest.fixture(scope="module", params=["soft", "hard"])
def marked(request: pytest.FixtureRequest) -> tuple[AliMark, list[str]]:
    mark = AliMark(key_of(request.param), embedder=EMBEDDER)
    text = mark.generate("It was late.", StandInLLM(), sentences=16, candidates=32, seed=3).text
    return mark, splitter().sentences(text)


@pytest.mark.parametrize("name", ENDS)
def test_a_text_without_regular_stops_is_found(marked: tuple[AliMark, list[str]], name: str) -> None:
    mark, sentences = marked
    detection = mark.detect(ENDS[name](sentences))
    assert (detection.verdict(), detection.reading, detection.readings) == ("found", "by clauses", 2)
    assert detection.record()["normalised"] == {"reading": "by clauses", "readings": 2}
    carried = [step for step in detection.alignment if step.block is not None and step.sentences]
    assert len(carried) >= 10
    assert mark.detect(" ".join(sentences)).readings == 1


def test_a_hard_key_gives_every_whole_text_the_z_of_its_sentences(marked: tuple[AliMark, list[str]]) -> None:
    """A bench that ranks by the paper's z must have one for every text, also for those that are found by their clauses."""
    mark, sentences = marked
    text = ENDS["commas"](sentences)
    detection = mark.detect(text)
    settings = DetectionSettings(draws=1)
    as_it_stands = replace(prepare(text, mark.key, EMBEDDER, settings), further=())
    [by_sentences] = detected(as_it_stands, mark.key, settings)
    assert detection.reading == "by clauses"
    assert detection.z == (None if mark.key.soft else by_sentences.raw)
    clauses_alone = prepare(text, mark.key, EMBEDDER, settings).further[-1]
    [by_clauses] = detected(clauses_alone, mark.key, settings)
    assert by_clauses.z is None


def test_random_keys_score_the_reading_that_was_found(marked: tuple[AliMark, list[str]]) -> None:
    """An audit compares documents by their scores under random keys; these are the scores behind the p-value."""
    mark, sentences = marked
    text, settings = ENDS["commas"](sentences), DetectionSettings(draws=99, search="whole")
    [detection] = detected(text, mark.key, settings)
    assert detection.reading == "by clauses"
    [null_scores] = null_scorers([text], [detection.reading], mark.key, EMBEDDER, [settings])
    scores = null_scores(0, 99)
    assert detection.score == pytest.approx((detection.raw - scores.mean()) / scores.std())


def test_it_is_found_among_many_keys(marked: tuple[AliMark, list[str]]) -> None:
    mark, sentences = marked
    keys = [key_of(mark.key.decision, number) for number in (5, 6, 7)]
    best = detect(ENDS["commas"](sentences), keys, embedder=EMBEDDER)[0]
    assert (best.key_id, best.verdict()) == (mark.key.id, "found")


def test_passages_and_sentences_as_they_are_have_no_clauses(marked: tuple[AliMark, list[str]]) -> None:
    mark, sentences = marked
    for settings in (DetectionSettings(search="excerpt"), DetectionSettings(restructure="none")):
        assert not prepare(ENDS["nothing"](sentences), mark.key, EMBEDDER, settings).further


def test_p_values_of_unmarked_texts_without_stops_are_not_too_small() -> None:
    mark = AliMark(key_of("hard", 99), embedder=EMBEDDER)
    text = mark.generate("One.", StandInLLM(5), sentences=8, candidates=1, seed=1).text
    text = ENDS["nothing"](splitter().sentences(text))
    p = np.array([
        AliMark(key_of(("soft", "hard")[number % 2], number), embedder=EMBEDDER).detect(text, draws=99).p_randomised
        for number in range(100, 200)
    ])  # fmt: skip
    assert all(np.mean(p <= level) <= level + 0.07 for level in (0.02, 0.05, 0.2))
