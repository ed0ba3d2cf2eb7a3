"""`alimark bench`: the smoke recipe from end to end, and error messages."""

from functools import partial
from pathlib import Path

import huggingface_hub
import pytest

from alimark.errors import AlimarkError
from alimark.lab.bench import results
from commands import Run

ROOT = Path(__file__).parents[2]

STAND_INS = """
title = "Stand-ins"
meaning = "stand-in"
[data]
sets = ["manual"]
texts = 3
sentences = 4
human_texts = 100
[llm]
name = "stand-in"
[[watermark]]
key = { embedder = "stand-in", decision = "hard" }
generate = { candidates = 8 }
[[detection]]
options = { draws = 99 }
[[attack]]
name = "delete"
rate = [0.25, 0.5]
"""


@pytest.fixture
def run(command: Run) -> Run:
    return partial(command, "bench")


@pytest.mark.slow
@pytest.mark.weights
def test_the_smoke_recipe_and_its_report(run: Run, tmp_path: Path) -> None:
    pytest.importorskip("xllamacpp")
    pytest.importorskip("transformers")
    # Sentences have room to end: an unmarked text without sentence ends would be sampled up to its limit.
    smaller = (
        "data.texts=2", "data.sentences=3", "data.human_texts=20", "llm.max_tokens=64", "quality.texts=1",
        "watermark.0.generate.candidates=2",
    )  # fmt: skip
    sets = [word for setting in smaller for word in ("--set", setting)]
    status, out, err = run("run", ROOT / "recipes" / "smoke.toml", "-o", tmp_path, *sets)
    assert status == 0, err
    assert "delete 0.4" in out
    loaded = results.load(tmp_path / "results" / "smoke.json")
    assert len(loaded["rows"]) == 2 * 5
    assert {row["method"] for row in loaded["quality"]} == {"AliMark", "unmarked", "human"}
    assert [row["sentences"] for row in loaded["runtime"]] == [4, 8, 4, 8]
    assert len(loaded["examples"]) == 2
    status, _, err = run("report", tmp_path)
    assert status == 0, err
    page = (tmp_path / "report.html").read_text("utf-8")
    for word in ("Smoke: every stage, small", "AliMark", "delete 0.2", "reorder 0.4", "<img", "smollm2-135m"):
        assert word in page
    assert "| AliMark" in (tmp_path / "report.md").read_text("utf-8")


@pytest.mark.slow
def test_a_run_of_stand_ins_with_overrides(run: Run, tmp_path: Path) -> None:
    (tmp_path / "one.toml").write_text(STAND_INS, "utf-8")
    status, out, err = run("run", tmp_path / "one.toml", "-o", tmp_path / "work", "--set", "data.texts=2")
    assert status == 0, err
    assert "delete 0.5" in out
    assert [row["texts"] for row in results.load(tmp_path / "work" / "results" / "one.json")["rows"]] == [2, 2, 2]


def test_a_dry_run_writes_nothing_and_counts_no_human_texts_as_written(run: Run, tmp_path: Path) -> None:
    human = '[[watermark]]\nlabel = "human text"\nhuman = true\nkey = { embedder = "stand-in" }\n[[detection]]'
    (tmp_path / "one.toml").write_text(STAND_INS.replace("[[detection]]", human), "utf-8")
    status, _, err = run("run", tmp_path / "one.toml", "-o", tmp_path / "none", "--dry-run")
    assert status == 0
    assert "2 cells, at most 3 texts to write and 12 to attack" in err
    assert "everything that a run needs is there" in err
    assert not (tmp_path / "none").exists()


def test_all_that_is_missing_is_listed(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unreachable(*_: object, **__: object) -> None:
        raise OSError("no network in tests")

    monkeypatch.setattr(huggingface_hub.HfApi, "auth_check", unreachable)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", unreachable)
    recipe = ROOT / "recipes" / "paper" / "probing.toml"
    data = ("--set", "data.sets=['manual']", "--set", "data.human_texts=40", "--set", "llm.options={}")
    for words in (["--dry-run"], []):  # a run makes the same check before the first text
        status, _, err = run("run", recipe, "-o", tmp_path / "none", *data, *words)
        assert status == 2
        assert "- language model facebook/opt-1.3b: cannot get" in err
        assert not (tmp_path / "none").exists()
    status, _, err = run("run", recipe, "--dry-run", "--profile", "local")
    assert status == 0, err


def test_a_partial_folder_is_reported(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped(*_: object) -> None:
        raise AlimarkError("stopped")

    (tmp_path / "one.toml").write_text(STAND_INS, "utf-8")
    with monkeypatch.context() as patched:
        patched.setattr("alimark.lab.bench.evaluate.evaluate", stopped)
        status, _, err = run("run", tmp_path / "one.toml", "-o", tmp_path / "work")
        assert status == 2
        assert "stopped" in err
    status, _, err = run("report", tmp_path / "work")
    assert status == 0, err
    page = (tmp_path / "work" / "report.md").read_text("utf-8")
    assert "Stand-ins (unfinished)" in page
    assert "delete 0.5" in page


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["run", "nosuch.toml"], "nosuch.toml"),
        (["run", "one.toml", "--set", "data.sets=['nosuch']"], "no data set is named"),
        (["run", "one.toml", "--set", "attack.0.rate=7"], "between 0 and 1"),
        (["run", "one.toml", "--set", "watermark.generate.candidats=4"], "no setting candidats; it has: candidates,"),
        (["run", "one.toml", "--set", "watermark.generate.candidates=0"], "candidates"),
        (["report", "."], "holds no results"),
    ],
)
def test_mistakes(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], why: str) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "one.toml").write_text(STAND_INS, "utf-8")
    status, _, err = run(*words)
    assert status == 2
    assert why in err
    assert "Traceback" not in err
