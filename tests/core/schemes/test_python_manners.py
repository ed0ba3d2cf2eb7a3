"""What the Python interface says to a user who passes something else, and how results look in a session."""

import io
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import alimark
from alimark import AliMark, Key
from alimark.core._util import process, progress
from alimark.testing import StandInEmbedder, StandInLLM

TEXT = "The lamp went out. Nobody saw it."
wrong: Any = alimark  # without types, as in a session


@pytest.fixture
def mark() -> AliMark:
    return AliMark(Key.generate(embedder=StandInEmbedder(), secret=bytes(range(32))), embedder=StandInEmbedder())


@pytest.mark.parametrize(
    ("call", "why"),
    [
        (lambda mark: mark.detect(None), "a text is a string, not NoneType"),
        (lambda mark: mark.detect([TEXT, 7]), "a text is a string, not int"),
        (lambda mark: mark.detect(b"text"), "alimark.read_document"),
        (lambda mark: mark.detect(Path("text.txt")), "alimark.read_document"),
        (lambda mark: mark.detect(mark.detect(TEXT)), "a text is a string, not AlignedDetection"),
        (lambda mark: wrong.detect(None, [mark.key]), "a text is a string, not NoneType"),
        (lambda mark: wrong.detect(TEXT, "key.json"), "alimark.Key.load"),
        (lambda mark: wrong.detect(TEXT, ["key.json"]), "alimark.Key.load"),
        (lambda mark: wrong.load("key.json"), "alimark.Key.load"),
        (lambda mark: wrong.AliMark("key.json"), "alimark.Key.load"),
        (lambda mark: wrong.AliMark(mark.key, embedder=7), "an embedder is"),
        (lambda mark: mark.generate(None, StandInLLM()), "a prompt is a string, not NoneType"),
        (lambda mark: mark.generate("It was late.", None), "a language model is"),
        (lambda mark: mark.rewrite(None, StandInLLM()), "a text is a string, not NoneType"),
        (lambda mark: mark.rewrite(TEXT, 7), "a language model is"),
        (lambda mark: mark.detect(TEXT, restructure="learned", llm=7), "a language model is"),
    ],
)
def test_what_is_of_a_wrong_type_is_named_with_what_to_pass(
    mark: AliMark, call: Callable[[Any], object], why: str
) -> None:
    with pytest.raises(alimark.AlimarkError, match=why):
        call(mark)


def test_the_name_of_a_model_does_wherever_a_model_does(mark: AliMark) -> None:
    by_name = AliMark(mark.key, embedder="stand-in")
    wanted = mark.generate("It was late.", StandInLLM(), sentences=2, candidates=4, seed=1)
    assert by_name.generate("It was late.", "stand-in", sentences=2, candidates=4, seed=1).text == wanted.text
    assert alimark.load(mark.key, embedder="stand-in").detect(TEXT).p_value == mark.detect(TEXT).p_value
    [best] = alimark.detect(TEXT, mark.key, embedder="stand-in")
    assert best.key_id == mark.key.id
    assert by_name.rewrite(TEXT, "stand-in", seed=1, candidates=4).original == TEXT
    with pytest.raises(alimark.AlimarkError, match="no such model"):
        mark.generate("It was late.", "no such model")


def test_results_are_one_line_in_a_session(mark: AliMark) -> None:
    generation = mark.generate("It was late.", StandInLLM(), sentences=3, candidates=4, seed=1)
    results = {
        repr(mark.detect(TEXT)): "AlignedDetection(p ",
        repr(alimark.load(Key.generate(scheme="pmark", embedder=StandInEmbedder()), embedder="stand-in").detect(TEXT)):
            "Detection(p ",
        repr(generation): "Generation('",
        repr(mark.rewrite(TEXT, StandInLLM(), seed=1, candidates=4)): "Rewriting('The lamp went out.",
    }  # fmt: skip
    for shown, start in results.items():
        assert shown.startswith(start)
        assert len(shown) <= 120
        assert mark.key.id in shown or "scheme pmark" in shown
        assert "\n" not in shown


def test_a_result_offers_few_names_and_the_rest_under_one(mark: AliMark) -> None:
    detection = mark.detect(TEXT)
    names = [name for name in dir(detection) if not name.startswith("_")]
    assert {"p_value", "score", "verdict", "sentences", "alignment", "payload", "details"} <= set(names)
    assert len(names) <= 19
    assert detection.details["draws"] == detection.draws
    assert not set(names) & set(detection.details)
    every = {name for name in vars(detection) if not callable(getattr(detection, name))}
    assert every - {"settings", "sentence_chances", "compute_chances"} <= set(names) | set(detection.details)


def test_progress_is_shown_on_a_terminal_only_and_wiped_at_the_end(
    mark: AliMark, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    def written(screen: io.StringIO, **options: Any) -> str:
        monkeypatch.setattr(sys, "stderr", screen)
        mark.generate(["It was late.", "Morning came."], StandInLLM(), sentences=3, candidates=4, seed=1, **options)
        mark.detect([TEXT, TEXT])
        mark.rewrite([TEXT], StandInLLM(), seed=1, candidates=4)
        return screen.getvalue()

    monkeypatch.setattr(process, "is_command_line", False)  # a test of the command line may have set it
    monkeypatch.setattr(progress, "SECONDS", 0.0)
    shown = written(Terminal())
    assert "writing: 6 of 6" in shown
    assert "detecting: 1 of 2" in shown
    assert "rewriting: 2 of 2" in shown
    assert shown.endswith("\r")
    assert "\rwriting" not in written(Terminal(), progress=lambda sentence: None)
    assert written(io.StringIO()) == ""
    monkeypatch.setitem(sys.modules, "ipykernel", sys)  # as in a notebook
    assert "writing: 6 of 6" in written(io.StringIO())
