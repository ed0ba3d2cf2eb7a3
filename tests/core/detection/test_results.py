"""Results: the verdict and its typed fields, and reports; results and settings need no Numba."""

import json
import pickle
import subprocess
import sys
from dataclasses import fields, replace

import pytest

from alimark import AlignedDetection, AliMark, DetectionSettings, Verdict
from alimark.core.detection.settings import DetectionOptions
from alimark.core.detection.stats import power
from alimark.errors import AlimarkError
from fixed_texts import EMBEDDER


@pytest.fixture(scope="module")
def short(mark: AliMark) -> AlignedDetection:
    return mark.detect("The lamp went out.")


def test_a_verdict_is_its_word_with_typed_fields(mark: AliMark, sentences: list[str], short: AlignedDetection) -> None:
    verdict = mark.detect(" ".join(sentences)).verdict()
    assert (verdict, verdict.found, verdict.reason, verdict.needed) == ("found", True, "p_value_at_most_fpr", None)
    verdict = short.verdict()
    assert verdict == "too short to tell"
    assert (verdict.found, verdict.reason, verdict.needed) == (False, "text_too_short", 6)
    long = replace(short, sentences=short.sentences * 20)
    assert (long.verdict(), long.verdict().reason, long.verdict().needed) == ("not found", "p_value_above_fpr", 6)
    assert json.dumps({"verdict": verdict}) == '{"verdict": "too short to tell"}'
    copy = pickle.loads(pickle.dumps(verdict))  # noqa: S301
    assert (copy, copy.found, copy.reason, copy.needed) == (verdict, False, "text_too_short", 6)
    with pytest.raises(KeyError):
        Verdict("perhaps")  # type: ignore[arg-type]


def test_a_result_needs_no_simulation_at_common_rates(short: AlignedDetection, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(power, "simulate_sentences_needed")
    for fpr in (0.05, 0.01):
        assert replace(short).report(fpr)["verdict"] == "too short to tell"


def test_results_go_to_other_processes(short: AlignedDetection) -> None:
    copy = pickle.loads(pickle.dumps(short))  # noqa: S301
    assert copy == short
    assert copy.verdict().needed == 6
    assert "sentences_needed" not in short.to_dict()


def test_options_are_the_fields_of_the_settings(mark: AliMark) -> None:
    assert set(DetectionOptions.__annotations__) == {field.name for field in fields(DetectionSettings)}
    with pytest.raises(AlimarkError, match="unknown detection option alfa; known: draws"):
        mark.detect("Some text.", alfa=1)  # type: ignore[call-overload]


@pytest.mark.parametrize("module", ["settings", "results", "building"])
def test_settings_and_results_load_no_numba(module: str) -> None:
    code = f"import sys, alimark.core.detection.{module}; print('numba' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


@pytest.mark.parametrize("fpr", [0, 1, 2, -1])
def test_rates_lie_between_0_and_1(mark: AliMark, fpr: float) -> None:
    with pytest.raises(AlimarkError, match="between 0 and 1"):
        mark.detect("One text.").verdict(fpr)


def test_stricter_rates(mark: AliMark, sentences: list[str]) -> None:
    with pytest.raises(AlimarkError, match="draws=1000000"):
        mark.detect(" ".join(sentences)).verdict(fpr=1e-5)
    assert mark.detect(" ".join(sentences), draws=200_000).verdict(fpr=1e-5) == "found"


def test_everything_goes_into_json(mark: AliMark, sentences: list[str]) -> None:
    for search_kind in ("whole", "excerpt"):
        detection = mark.detect(" ".join(sentences), search=search_kind)
        report = json.loads(json.dumps(detection.report()))
        expected = {"verdict": "found", "text_sha256": detection.text_sha256, "fingerprint": EMBEDDER.fingerprint}
        assert (expected | {"draws": 1000}).items() <= report.items()
        assert len(report["alignment"]) >= 10
        assert {"alimark", "numpy", "nupunkt"} <= set(report["versions"])
        assert "near_flips" in report


def test_notebook_view_is_escaped(mark: AliMark) -> None:
    shown = mark.detect("A <evil>alert(1)</evil> here. And there.")._repr_html_()
    assert "<evil>" not in shown
    assert "&lt;evil&gt;" in shown
    assert shown.count("<tr") >= 2
