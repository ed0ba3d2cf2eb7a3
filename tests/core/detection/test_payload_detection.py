"""Payloads from generation to detection, with the stand-ins."""

from typing import Any

import numpy as np
import pytest

from alimark import AliMark, Key, detect
from alimark.testing import StandInLLM
from fixed_texts import EMBEDDER, unmarked

PAYLOAD = 4711


@pytest.fixture(scope="module")
def mark() -> AliMark:
    key = Key.generate(embedder=EMBEDDER, secret=bytes(range(32)), payload_bits=16)
    return AliMark(key, embedder=EMBEDDER)


@pytest.fixture(scope="module")
def sentences(mark: AliMark) -> list[str]:
    generation = mark.generate("A long story.", StandInLLM(), sentences=24, candidates=64, seed=5, payload=PAYLOAD)
    assert generation.payload == generation.record("a")["payload"] == PAYLOAD
    return list(generation.sentences)


def test_the_payload_is_read_and_recorded(mark: AliMark, sentences: list[str]) -> None:
    detection: Any = mark.detect(" ".join(sentences))
    assert detection.verdict() == "found"
    assert (detection.payload.value, detection.payload.bits, detection.payload.confidence > 0.99) == (PAYLOAD, 16, True)
    assert detection.record()["payload"] == {"value": PAYLOAD, "confidence": detection.payload.confidence}
    assert detection.report()["payload"]["value"] == PAYLOAD
    # The alignment is with the blocks as the payload changes them.
    assert np.mean([step.agreed for step in detection.alignment if step.agreed is not None]) > 18


def test_the_payload_survives_deleted_and_reordered_sentences(mark: AliMark, sentences: list[str]) -> None:
    kept = [sentence for i, sentence in enumerate(sentences) if i not in (1, 6, 7, 15)]
    kept[3], kept[5] = kept[5], kept[3]
    detection: Any = mark.detect(" ".join(kept))
    assert detection.payload.value == PAYLOAD


def test_the_object_that_detects_may_carry_another_payload(mark: AliMark, sentences: list[str]) -> None:
    detection: Any = AliMark(mark.key.carrying(99), embedder=EMBEDDER).detect(" ".join(sentences), draws=99)
    assert detection.payload.value == PAYLOAD


def test_many_keys_give_the_payload_of_the_key_that_is_found(mark: AliMark, sentences: list[str]) -> None:
    keys = [mark.key.like(bytes([number] * 32)) for number in range(2)]
    [best, *_] = detect(" ".join(sentences), [*keys, mark.key], embedder=EMBEDDER)
    assert (best.key_id, best.keys_tried) == (mark.key.id, 3)
    assert best.payload.value == PAYLOAD  # type: ignore[attr-defined]


def test_no_payload_is_reported_where_no_mark_is_found(mark: AliMark) -> None:
    detection = mark.detect(" ".join(unmarked(12, 8)))
    assert (detection.verdict() == "found", detection.payload) == (False, None)
    assert "payload" not in detection.record()
    assert "payload" not in detection.report()
