"""Soft decisions: marking and detecting with the stand-ins."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import oracle
from alimark import AliMark, Key, detect
from alimark.core.generation.api import GenerationSettings
from alimark.core.keys.projection import project, targets
from alimark.errors import AlimarkError, LimitError, ModelError
from alimark.testing import StandInEmbedder, StandInLLM
from fixed_texts import EMBEDDER, soft_key, written
from single_text import generate


@pytest.fixture(scope="module")
def mark() -> AliMark:
    return AliMark(soft_key(0), embedder=EMBEDDER)


@pytest.fixture(scope="module")
def sentences(mark: AliMark) -> list[str]:
    return written(mark.key)


def test_the_furthest_candidate_is_chosen(mark: AliMark) -> None:
    llm, seen = StandInLLM(), []
    draw = llm.draw

    def recorded(*args: Any) -> Any:
        seen.append(draw(*args))
        return seen[-1]

    llm.draw = recorded  # type: ignore[method-assign, assignment]
    generation = generate("A long story.", mark.key, EMBEDDER, llm, GenerationSettings(1, 64), seed=3)
    waves = [answers for [answers] in seen]
    assert (len(waves), sum(map(len, waves))) == (generation.waves, generation.candidates)
    drawn = list(dict.fromkeys(candidate.text.strip() for wave in waves for candidate in wave))
    worths = project(EMBEDDER.embed(drawn), mark.key) @ targets(mark.key, 1)[0]
    order = [drawn[i] for i in np.argsort(-worths)]
    assert order[0].startswith(generation.sentences[0])


def test_the_mark_is_found_and_not_without_the_key(mark: AliMark, sentences: list[str]) -> None:
    detection = mark.detect(" ".join(sentences))
    assert detection.verdict() == "found"
    assert detection.p_value <= 0.002
    assert detection.z is None
    assert AliMark(soft_key(1), embedder=EMBEDDER).detect(" ".join(sentences)).p_value > 0.01
    kinds = [(step.kind, step.sentences, step.block) for step in detection.alignment]
    assert sum(kind == ("match", (i,), i) for i, kind in enumerate(kinds, 1)) >= 10


def test_whose_key_it_was(sentences: list[str]) -> None:
    best = detect(" ".join(sentences), [soft_key(number) for number in range(20)], embedder=EMBEDDER)
    assert best[0].key_id == soft_key(0).id
    assert best[0].keys_tried == 20
    hard = Key.generate(embedder=EMBEDDER, decision="hard", secret=bytes(32))
    mixed = detect(" ".join(sentences), [hard, soft_key(0)], embedder=EMBEDDER)
    assert (mixed[0].key_id, mixed[0].keys_tried) == (soft_key(0).id, 2)


def test_a_passage_is_found_in_other_text(mark: AliMark, sentences: list[str]) -> None:
    text = " ".join([*written(None, 10, seed=31), *sentences, *written(None, 10, seed=32)])
    detection = mark.detect(text, search="excerpt")
    assert len(detection.passages) == 1
    assert abs(detection.passages[0].first - 11) + abs(detection.passages[0].last - 22) <= 4
    assert not mark.detect(" ".join(written(None, 30, seed=33)), search="excerpt").passages
    with pytest.raises(LimitError, match="20,000"):
        mark.detect("Yes it is so. " * 20_001, search="excerpt")


def test_without_restructuring_units_are_sentences(mark: AliMark, sentences: list[str]) -> None:
    detection = mark.detect(" ".join(sentences), restructure="none")
    assert detection.verdict() == "found"
    assert {step.kind for step in detection.alignment} <= {"match", "skip-sentence", "skip-block"}


def test_vectors_without_numbers_are_refused(mark: AliMark) -> None:
    class Broken(StandInEmbedder):
        def embed(self, texts: Any) -> Any:
            return super().embed(texts) * np.float32("nan")

    with pytest.raises(ModelError, match="infinite or NaN"):
        AliMark(mark.key, embedder=Broken()).detect("One sentence. And two.")


def test_the_public_codes_rule_is_refused(mark: AliMark) -> None:
    with pytest.raises(AlimarkError, match="hard bits"):
        mark.detect("One sentence. And two.", null="reference")


def test_many_keys_of_a_long_text_are_scored_in_parts(sentences: list[str]) -> None:
    text = " ".join(sentences * 8)
    keys = [soft_key(number) for number in range(30)]
    best = detect(text, keys, embedder=EMBEDDER, best=30, search="excerpt", draws=99)
    alone = {key.id: AliMark(key, embedder=EMBEDDER).detect(text, search="excerpt", draws=99).raw for key in keys[:3]}
    assert {detection.key_id: detection.raw for detection in best if detection.key_id in alone} == pytest.approx(alone)


@pytest.mark.parametrize("parameters", [{}, {"run": (2, 3), "offsets": 5}, {"starts": "conversation"}])
def test_the_reference_program_gives_the_score(parameters: dict[str, Any]) -> None:
    """The program that docs/soft.md shows, with every constant."""
    key = Key.generate(embedder=EMBEDDER, secret=bytes(range(32)), **parameters)
    for sentences in (written(key), written(None, 9)):
        detection = AliMark(key, embedder=EMBEDDER).detect(" ".join(sentences), draws=9)
        length = math.ceil(oracle.BLOCKS_PER_SENTENCE * len(sentences)) + int(key.starts[-1])
        signs = np.sqrt(key.block_size) * targets(key, length)
        score = oracle.soft_score(project(EMBEDDER.embed(list(detection.sentences)), key), signs, key.starts.tolist())
        assert detection.raw == pytest.approx(score, rel=1e-9)
