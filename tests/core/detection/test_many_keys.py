"""Detection with many keys at once: whose key marked a text."""

from __future__ import annotations

from dataclasses import replace

import pytest

from alimark import AliMark, Key, detect
from alimark.core.detection.many_keys import detect_keys
from alimark.core.detection.settings import DetectionSettings
from alimark.errors import AlimarkError
from alimark.testing import StandInEmbedder
from fixed_texts import EMBEDDER, fixed_key, unmarked


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


def test_an_excerpt_under_many_keys(mark: AliMark, sentences: list[str]) -> None:
    keys = [fixed_key(1), mark.key]
    text = " ".join([*unmarked(12, 3), *sentences])
    assert detect(text, keys, embedder=EMBEDDER, search="excerpt")[0].key_id == mark.key.id


def test_errors(mark: AliMark) -> None:
    with pytest.raises(AlimarkError, match="no keys"):
        detect("Text.", [], embedder=EMBEDDER)
    mixed = [mark.key, Key.generate(embedder=StandInEmbedder(32), decision="hard")]
    with pytest.raises(AlimarkError, match="use the embedder that the key names"):
        detect("Text.", mixed, embedder=EMBEDDER)  # no embedder of that name has 32 dimensions
    with pytest.raises(AlimarkError, match="several embedders"):
        detect_keys("Text.", mixed, EMBEDDER, DetectionSettings())
