"""Audits look with the embedder's fastest precision and check what they find in float32."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from alimark import AliMark, Key
from alimark.audit.auditor import Auditor, FirstPass
from alimark.core.detection.preparing import PreparedText, prepare, sentences_suffice, with_units
from alimark.core.detection.results import Detection
from alimark.core.detection.settings import DetectionSettings
from alimark.testing import StandInEmbedder
from fixed_texts import fixed_key, soft_key, unmarked, written
from rough_embedder import RoughEmbedder

KEY = fixed_key(0)
MARKED = written(KEY)
OTHERS = [unmarked(12, seed) for seed in range(3, 11)]
SETTINGS = DetectionSettings(draws=199, stop_after=20)


def answers(embedder: RoughEmbedder, settings: DetectionSettings, first: FirstPass | None = None) -> list[Detection]:
    auditor = Auditor([KEY], settings, lambda _: embedder, first_pass=first)
    results = auditor.answer([" ".join(text) for text in (MARKED, *OTHERS)])
    detections = [result for result in results if isinstance(result, Detection)]
    assert len(detections) == len(results)
    if auditor.first_pass is not None:
        assert [auditor.in_full(detection) for detection in detections].count(True) == auditor.tested["full"]
    return detections


def test_every_hit_is_checked_in_float32() -> None:
    detections = answers(RoughEmbedder(), SETTINGS)
    exact = answers(RoughEmbedder(), DetectionSettings(draws=199, stop_after=20, precision="float32"))
    for detection, other in zip(detections, exact, strict=True):
        assert other.precision == "float32"
        assert detection.p_value > 0.05 or detection.p_value == other.p_value
    assert detections[0].p_value == exact[0].p_value == 1 / 200
    assert sum(detection.precision == "int8" for detection in detections) > 4


def test_a_hit_that_float32_does_not_confirm_is_not_found() -> None:
    forged = dict(zip(OTHERS[0], MARKED, strict=True))  # to int8, an unmarked document looks marked
    embedder = RoughEmbedder(forged)
    text = " ".join(OTHERS[0])
    rough = AliMark(KEY, embedder=embedder).detect(text, precision="int8", restructure="none")
    assert rough.verdict().found
    answer: Any = Auditor([KEY], DetectionSettings(restructure="none"), lambda _: embedder).answer([text])[0]
    assert (answer.precision, answer.verdict().found) == ("float32", False)


def test_a_first_pass_looks_with_the_fast_precision_and_at_sentences_alone() -> None:
    detections = answers(RoughEmbedder(), SETTINGS, FirstPass(0.1))
    exact = answers(RoughEmbedder(), DetectionSettings(draws=199, stop_after=20, precision="float32"))
    assert (detections[0].precision, detections[0].p_value) == ("float32", exact[0].p_value)
    for detection in detections[1:]:
        assert detection.precision == ("float32" if detection.settings.restructure == "single" else "int8")  # type: ignore[attr-defined]


def test_the_user_chooses_the_precision() -> None:
    assert {detection.precision for detection in answers(RoughEmbedder(), SETTINGS)} == {"int8", "float32"}
    for precision in ("int8", "float32"):
        settings = DetectionSettings(draws=199, stop_after=20, precision=precision)
        assert {detection.precision for detection in answers(RoughEmbedder(), settings)} == {precision}
        first = answers(RoughEmbedder(), settings, FirstPass(0.1))
        assert {detection.precision for detection in first} == {precision}


@pytest.mark.parametrize("embedder", [RoughEmbedder(), StandInEmbedder()])
def test_a_first_pass_sees_passages_and_texts_without_full_stops(embedder: StandInEmbedder) -> None:
    """A look at sentences alone would miss both."""
    mark = AliMark(KEY, embedder=embedder)
    passage = " ".join([*unmarked(40, 21), *written(KEY, 24), *unmarked(40, 22)])
    run_together = " ".join(sentence.rstrip(".") for sentence in written(KEY, 24))
    settings = DetectionSettings(search="auto", draws=499)
    auditor = Auditor([KEY], settings, lambda _: embedder, first_pass=FirstPass(0.1))
    texts = [passage, run_together, " ".join(OTHERS[0])]
    answers: list[Any] = list(auditor.answer(texts))
    for text, answer in zip(texts[:2], answers, strict=False):
        full = mark.detect(text, search="auto", draws=499)
        assert full.verdict().found
        assert (answer.p_value, answer.precision) == (full.p_value, "float32")
        assert auditor.in_full(answer)
    plain = DetectionSettings(restructure="none")
    assert not any(mark.detect(text, settings=plain).verdict().found for text in texts[:2])


def test_the_first_pass_of_a_long_text_is_not_the_full_test() -> None:
    settings = DetectionSettings(draws=499)
    auditor = Auditor([KEY], settings, lambda _: StandInEmbedder(), first_pass=FirstPass(0.1))
    text = " ".join(unmarked(310, 1))
    answers: list[Any] = [*auditor.answer([text]), *auditor.answer([text], draws=999)]
    look, more = answers
    assert look.p_value > 0.1
    assert auditor.tested["full"] == 0
    assert not auditor.in_full(look)
    assert auditor.in_full(more)


@pytest.mark.parametrize("first", [FirstPass(0.1), None])
def test_a_document_is_prepared_once(first: FirstPass | None, monkeypatch: pytest.MonkeyPatch) -> None:
    prepared: list[str] = []

    def counted(text: str, *arguments: Any) -> PreparedText:
        prepared.append(text)
        return prepare(text, *arguments)

    for module in ("alimark.audit.auditor", "alimark.core.detection.preparing"):
        monkeypatch.setattr(f"{module}.prepare", counted)
    answers(RoughEmbedder(), SETTINGS, first)
    assert sorted(prepared) == sorted(" ".join(text) for text in (MARKED, *OTHERS))


@pytest.mark.parametrize("key", [KEY, soft_key(1)])
def test_the_units_of_the_first_pass_are_those_of_its_settings(key: Key) -> None:
    full = DetectionSettings(search="auto")
    cheap = FirstPass().settings(full)
    text = " ".join(OTHERS[0]).replace("a", "\u0430")  # text version 0 reads it both ways
    prepared = prepare(text, key, StandInEmbedder(), full)
    assert sentences_suffice(prepared, full)
    derived, direct = with_units(prepared, key, cheap), prepare(text, key, StandInEmbedder(), cheap)
    assert derived.unit_texts == direct.unit_texts
    for one, other in zip(derived.versions, direct.versions, strict=True):
        np.testing.assert_array_equal(one.units.index, other.units.index)
        assert replace(one, units=other.units, further=()) == replace(other, further=())
