"""The probability of each sentence to carry the mark: high in marked text, low in unmarked text, and right on average."""

import pickle
import re
from typing import Any

import numpy as np
import pytest

from alimark import AliMark, Key
from fixed_texts import EMBEDDER, fixed_key, soft_key, unmarked, written


@pytest.mark.parametrize("key", [fixed_key(0), soft_key(0)], ids=["hard", "soft"])
def test_chances_are_measured_against_random_keys(key: Key) -> None:
    watermark = AliMark(key, embedder=EMBEDDER)
    marked = watermark.detect(" ".join(written(watermark.key)))
    chances = np.array(marked.sentence_chances)
    assert len(chances) == len(marked.sentences)
    assert (chances >= 0.5).mean() > 0.6
    human = np.concatenate([watermark.detect(" ".join(unmarked(12, seed))).sentence_chances for seed in range(5)])
    assert (human >= 0.5).mean() < 0.1
    assert human.mean() < 0.15


def test_stated_probabilities_are_the_shares_of_marked_sentences() -> None:
    stated: list[float] = []
    marked: list[bool] = []
    for number in range(10, 18):
        key, around = soft_key(number), unmarked(24, number)
        text, place = written(key, seed=number), 7 * number % 24
        for passage, rest in (([], around), (text, around), (text[3:9], around), (text, [])):
            whole = " ".join([*rest[:place], *passage, *rest[place:]])
            detection = AliMark(key, embedder=EMBEDDER).detect(whole, draws=20)
            stated += detection.sentence_chances
            marked += [sentence in passage for sentence in detection.sentences]
    for low, high in ((0, 0.2), (0.2, 0.8), (0.8, 1.01)):
        chosen = (np.array(stated) >= low) & (np.array(stated) < high)
        assert chosen.sum() > 30
        assert np.mean(np.array(stated)[chosen]) == pytest.approx(np.mean(np.array(marked)[chosen]), abs=0.15)


def test_a_repeated_sentence_counts_once() -> None:
    text = " ".join(f"{name} sat on the mat in the hall all day." for name in ("Ann", "Ben", "Cat", "Dan") * 3)
    highest = [max(AliMark(soft_key(n), embedder=EMBEDDER).detect(text, draws=20).sentence_chances) for n in range(20)]
    assert np.mean(np.array(highest) >= 0.8) <= 0.1


@pytest.mark.parametrize(("key", "search"), [(soft_key(0), "excerpt"), (fixed_key(0), "auto")], ids=["soft", "hard"])
def test_chances_of_a_passage_and_after_a_journey(key: Key, search: Any) -> None:
    other = unmarked(80, 3)
    text = " ".join([*other[:40], *written(key), *other[40:]])
    detection = AliMark(key, embedder=EMBEDDER).detect(text, search=search)
    assert pickle.loads(pickle.dumps(detection)).sentence_chances == ()  # noqa: S301
    chances = np.array(detection.sentence_chances)
    assert (chances[41:51] > 0.5).mean() > 0.7
    assert chances[41:51].mean() > (0.8 if key.soft else 0.6)
    assert chances[:36].max() == chances[56:].max() == 0
    assert "compute_chances" not in detection.to_dict()


@pytest.mark.parametrize("decision", ["hard", "soft"])
def test_chances_of_a_text_that_is_read_by_clauses_are_not_known(decision: str) -> None:
    text = "An owl sat down. " * 3 + "It was late. <img src=x onerror=alert(1)> Nobody came. " * 6
    key = Key.generate(embedder=EMBEDDER, decision=decision, secret=b"a key of the tests, 32 bytes long"[:32])
    without_stops = re.sub('[.,!?"]', "", " ".join(unmarked(12, 3))).lower()
    for text_read in (text, without_stops):
        detection = AliMark(key, embedder=EMBEDDER).detect(text_read)
        known = detection.reading != "by clauses"
        assert len(detection.sentence_chances) == known * len(detection.sentences)
        assert all(detection.step_chance(step) < 0.5 for step in detection.alignment)
