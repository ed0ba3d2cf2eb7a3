"""The probability of each sentence to carry the mark: high in marked text, low in unmarked text, under hard and soft keys."""

from __future__ import annotations

import pickle
import re

import numpy as np
import pytest

from alimark import AliMark, Key
from fixed_texts import EMBEDDER, fixed_key, soft_key, unmarked, written


@pytest.mark.parametrize("mark", [fixed_key(0), soft_key(0), soft_key(0, version=2)], ids=["hard", "soft-3", "soft-2"])
def test_chances_are_measured_against_random_keys(mark: object) -> None:
    watermark = AliMark(mark, embedder=EMBEDDER)  # type: ignore[arg-type]
    marked = watermark.detect(" ".join(written(watermark.key)))
    chances = np.array(marked.sentence_chances)
    assert len(chances) == len(marked.sentences)
    assert (chances >= 0.5).mean() > 0.6
    human = np.concatenate([watermark.detect(" ".join(unmarked(12, seed))).sentence_chances for seed in range(5)])
    assert (human >= 0.5).mean() < 0.1
    assert human.mean() < 0.15


def test_chances_of_a_passage_and_after_a_journey() -> None:
    mark = AliMark(fixed_key(0), embedder=EMBEDDER)
    other = unmarked(80, 3)
    detection = mark.detect(" ".join([*other[:40], *written(mark.key), *other[40:]]), search="auto")
    assert pickle.loads(pickle.dumps(detection)).sentence_chances == ()  # noqa: S301
    chances = np.array(detection.sentence_chances)
    assert (chances[41:51] > 0.5).mean() > 0.7
    assert chances[:38].max() == chances[55:].max() == 0
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
