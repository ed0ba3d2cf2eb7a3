"""`alimark rewrite` with a stand-in for the chat model: one text and many, resumed by id, and error messages."""

import inspect
import json
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import alimark.core.embedding.loading
import alimark.core.llm
from alimark.cli import loading
from alimark.cli import rewrite as verb
from alimark.core.generation.settings import STRENGTHS
from alimark.core.rewriting.settings import WAYS, RewriteSettings
from alimark.errors import LLMError
from commands import Run
from rewriters import KEY, PAGE, STORY, Rewriter, marked


@pytest.fixture
def models(stand_in_models: None, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Holds the chat model that commands load; a test may replace it."""
    loaded = SimpleNamespace(llm=Rewriter())
    monkeypatch.setattr(alimark.core.llm, "load_llm", lambda name, **_: loaded.llm)
    monkeypatch.setattr(loading, "fetch_models", lambda *_: None)
    return loaded


@pytest.fixture
def run(command: Run, models: Any, tmp_path: Path) -> Run:
    """Runs `alimark rewrite` with the key."""
    KEY.save(tmp_path / "key.json")
    (tmp_path / "story.txt").write_text(STORY + "\n", "utf-8")
    return partial(command, "rewrite", "-k", tmp_path / "key.json")


def test_a_file(run: Run, tmp_path: Path) -> None:
    status, out, err = run(tmp_path / "story.txt", "--seed", 1)
    assert status == 0
    assert out == marked().text + "\n"
    assert err.startswith("12 sentences, ")
    for word in ("of 8 bits each", "on average", "at least", "0 left alone", " rewrites, ", "tokens", "seed 1"):
        assert word in err
    assert "detected: found, p 0.0" in err
    assert "keygen" not in err
    moved = marked().moved_most()
    assert [sentence.cosine for sentence in moved] == sorted(marked().cosines)[:3]
    for sentence in moved:
        lines = f"  {sentence.number} (cosine {sentence.cosine:.2f})", sentence.before, sentence.after
        assert "\n    ".join(lines) + "\n" in err


def test_standard_input_and_json(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with open(tmp_path / "story.txt") as file:
        monkeypatch.setattr(sys, "stdin", file)
        status, out, _ = run("-", "--seed", 1, "--json", "--candidates", 8, "--closeness", 0.7)
    record = json.loads(out)
    assert status == 0
    assert (record["original"], record["scheme"], record["key_id"]) == (STORY + "\n", "alimark", KEY.id)
    assert {"candidates": 8, "closeness": 0.7, "llm": "rewriter"}.items() <= record["settings"].items()
    assert len(record["matches"]) == len(record["cosines"]) == len(record["sentences"]) == 12
    assert record["cost"]["candidates"] == 96
    assert record["detection"]["p_value"] < 0.05 < record["detection"]["p_value_before"]


def test_many_texts_resume(run: Run, models: Any, tmp_path: Path) -> None:
    source, output = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    lines = [{"id": "a", "text": STORY, "topic": "sea"}, {"id": "b", "text": PAGE}, {"id": "c", "prompt": "no text"}]
    source.write_text("".join(json.dumps(line) + "\n" for line in lines) + "no json\n", "utf-8")
    first = tmp_path / "first.jsonl"
    first.write_text(json.dumps(lines[0]) + "\n", "utf-8")
    assert run("--input", first, "--output", output, "--seed", 1)[0] == 0
    asked = len(models.llm.asked)
    status, out, err = run("--input", source, "--output", output, "--seed", 1, "--json")
    assert status == 0
    assert json.loads(out) == {"written": 1, "found": 0, "skipped": 1, "failed": 2}
    assert err.count("passed over") == 2
    assert len(models.llm.asked) - asked == 6 * len(WAYS)  # of the second text alone
    records = [json.loads(line) for line in output.read_text("utf-8").splitlines()]
    assert [record["id"] for record in records] == ["a", "b"]
    assert records[0]["topic"] == "sea"
    assert [record["detection"]["verdict"] for record in records] == ["found", "not found"]
    assert records[0]["text"] == marked(seed=1).text
    assert records[1]["text"] == marked(text=PAGE, seed=2).text


def test_a_run_ends_where_the_model_is_gone(run: Run, models: Any, tmp_path: Path) -> None:
    source, output = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text("".join(json.dumps({"id": i, "text": STORY}) + "\n" for i in range(9)), "utf-8")
    models.llm = Rewriter(fails=lambda _: LLMError("no route to host"))
    status, _, err = run("--input", source, "--output", output)
    assert status == 2
    assert err.count("passed over") == 2
    assert err.splitlines()[-1] == "error: no route to host"
    models.llm = Rewriter()
    assert run("--input", source, "--output", output)[0] == 0
    assert len(output.read_text("utf-8").splitlines()) == 9


def test_says_when_most_stays(run: Run, models: Any, tmp_path: Path) -> None:
    models.llm = Rewriter(lambda s, _: "I'm sorry, but I can't help with that.")
    status, out, err = run(tmp_path / "story.txt")
    assert status == 0
    assert out == STORY + "\n"
    assert "12 left alone" in err
    assert "detected: not found" in err
    assert "--strength strong" in err
    assert "alimark keygen --offsets 16" in err
    assert "moved most" not in err
    assert "refusal 192" in err


def test_errors(run: Run, tmp_path: Path) -> None:
    (tmp_path / "empty.txt").write_text(" \n")
    story = tmp_path / "story.txt"
    for words, why in (
        ((), "name a text file"),
        ((story, "--input", story), "name a text file"),
        (("--input", story), "go together"),
        ((tmp_path / "empty.txt",), "contains no text"),
        ((tmp_path / "none.txt",), "none.txt"),
        ((story, "--closeness", 2), "closeness"),
        ((story, "--candidates", 0), "candidates"),
        (("--input", story, "--output", story), "another file"),
    ):
        status, out, err = run(*words)
        assert (status, out) == (2, "")
        assert err.startswith("error: ")
        assert why in err
        assert err.count("\n") == 1


def test_the_defaults_shown_are_those_of_the_library(run: Run) -> None:
    shown = inspect.signature(verb.rewrite).parameters
    settings = RewriteSettings()
    words = " ".join(run("--help").out.replace("│", " ").split())
    assert f"[default: ({settings.candidates}, as for light)]" in words  # no number is given where a strength is
    assert STRENGTHS["light"] == settings.candidates
    for name in ("closeness", "mean_closeness"):
        assert shown[name].default == getattr(settings, name)
