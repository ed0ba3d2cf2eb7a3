"""`alimark.compare` and `alimark compare`: watermarks and attacks of one's own in one call."""

from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

import alimark
from alimark.errors import AlimarkError
from alimark.lab.bench.evaluate import all_results
from alimark.lab.bench.view.answers import Answers
from alimark.lab.bench.workspace import Workspace
from commands import Run

STAND_INS: dict[str, Any] = {"llm": "stand-in", "embedder": "stand-in", "sentences": 4, "human_texts": 20}


def shout(text: str) -> str:
    return text.upper()


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Any:
    marks: dict[str, Any] = {"ours": "alimark", "<SemStamp>": {"scheme": "semstamp", "generate": {"candidates": 8}}}
    return alimark.compare(
        marks, attacks=["delete 0.5", shout, {"name": "typos"}], prompts=["It was late.", "Morning came.", "A letter."],
        folder=tmp_path_factory.mktemp("compare") / "work", **STAND_INS,
    )  # fmt: skip


def test_every_watermark_meets_every_attack_on_the_same_prompts(compared: Any) -> None:
    rows = {(row["method"], row["attack"]): row for row in compared.results["rows"]}
    assert [attack for method, attack in rows if method == "ours"] == ["none", "delete 0.5", "shout", "typos"]
    assert {row["texts"] for row in rows.values()} == {3}
    assert rows["ours", "none"]["tpr_nominal"]["0.01"]["value"] > 0.5
    table = compared.table
    assert [column.label for column in table.columns] == [
        "method", "no attack", "delete 0.5", "shout", "typos", "human texts", "tokens per text", "seconds per text",
    ]  # fmt: skip
    assert [line[0].text for line in table.lines] == ["ours", "<SemStamp>"]
    assert all(cell.interval for cell in table.lines[0][1:6])


def test_it_is_shown_in_a_notebook_and_on_a_terminal(compared: Any) -> None:
    assert repr(compared).startswith("Comparison(ours, <SemStamp>; ")
    assert "| ours" in str(compared)
    page = compared._repr_html_()
    assert "&lt;SemStamp&gt;" in page
    assert "<SemStamp>" not in page
    assert "data:image/svg+xml" in page
    assert ElementTree.fromstring(compared.plot.svg).tag.endswith("svg")


def test_the_folder_is_one_of_the_bench_even_without_the_function(
    compared: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(alimark.lab.attacks.ATTACKS, "_objects", {})  # as in another process
    assert all_results(Workspace(compared.folder)) == [compared.results]
    assert "shout" in Answers([Workspace(compared.folder)]).choices()["fields"]["attack"]


def test_a_function_that_is_changed_is_run_again(tmp_path: Path) -> None:
    def attack(text: str) -> str:
        return text.lower()

    def broken(text: str) -> Any:
        return None

    broken.__name__ = "attack"
    wanted: dict[str, Any] = {"prompts": ["It was late."], "folder": tmp_path, **STAND_INS}
    [_, row] = alimark.compare(["alimark"], attacks=[attack], **wanted).results["rows"]
    assert (row["texts"], row["failed"]) == (1, 0)
    [_, row] = alimark.compare(["alimark"], attacks=[broken], **wanted).results["rows"]
    assert (row["texts"], row["failed"]) == (0, 1)


@pytest.mark.parametrize(
    ("marks", "settings", "why"),
    [
        (["nosuch"], {}, "nosuch"),
        (["alimark"], {"attacks": ["delete much"]}, "a name with or without a rate"),
        (["alimark"], {"attacks": [7]}, "a function from text to text"),
        (["alimark"], {"attacks": ["nosuch.py:shout"]}, "no function shout"),
        (["alimark"], {"attacks": ["delete 7"]}, "between 0 and 1"),
        (["alimark"], {"prompts": []}, "1 to"),
        (["alimark"], {"speed": 3}, "speed"),
        (["kgw"], {}, "token probabilities"),
    ],
)
def test_mistakes_are_named_before_anything_is_written(
    tmp_path: Path, marks: list[str], settings: dict[str, Any], why: str
) -> None:
    with pytest.raises(AlimarkError, match=why):
        alimark.compare(marks, folder=tmp_path, **{**STAND_INS, "attacks": [], **settings})
    assert not (tmp_path / "records" / "generate.jsonl").exists()


def test_the_verb(command: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text("def shout(text):\n    return text.upper()\n")
    Path("prompts.jsonl").write_text(
        '{"prompt": "It was late.", "natural_text": "One. Two two. Three three. Four four."}\n'
    )
    words = [
        "alimark",
        "semstamp",
        "--attack",
        "delete 0.5",
        "--attack",
        "mine.py:shout",
        "--sentences",
        4,
        "--human",
        1,
    ]
    done = command(
        "compare", *words, "--llm", "stand-in", "--embedder", "stand-in", "--prompts", "prompts.jsonl", "-o", "work"
    )
    assert done.status == 0, done.err
    assert "shout" in done.out
    assert "semstamp" in done.out
    assert Path("work/report.html").is_file()
