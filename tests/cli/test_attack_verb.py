"""alimark attack: one text, many texts, resuming an interrupted run, and error messages."""

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from alimark.lab.attacks import Attack, attack_class, names
from commands import Run


def text(number: int, count: int = 10) -> str:
    things = ("horse", "letter", "window", "garden", "piano")
    return " ".join(
        f"The mayor of town {number} painted the {things[i % 5]} number {i} in the hall." for i in range(count)
    )


@pytest.fixture
def run(command: Run) -> Run:
    return partial(command, "attack")


@pytest.fixture
def many(tmp_path: Path) -> Path:
    lines = [{"id": i, "text": text(i), "prompt": "Go on.", "scheme": "alimark", "key_id": "ak1"} for i in range(8)]
    (tmp_path / "texts.jsonl").write_text("\n".join(map(json.dumps, lines)) + "\n", "utf-8")
    return tmp_path / "texts.jsonl"


def records(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def test_a_file(run: Run, tmp_path: Path) -> None:
    (tmp_path / "story.txt").write_text(text(1) + "\n", "utf-8")
    status, out, _ = run("delete", "--rate", 0.5, tmp_path / "story.txt", "--seed", 3)
    assert status == 0
    assert out.count(".") == 5
    assert run("delete", "--rate", 0.5, tmp_path / "story.txt", "--seed", 3)[1] == out
    assert run("delete", "--rate", 0.5, tmp_path / "story.txt", "--seed", 4)[1] != out


def test_a_record(run: Run, tmp_path: Path) -> None:
    (tmp_path / "story.txt").write_text(text(1), "utf-8")
    _, out, _ = run("reorder", tmp_path / "story.txt", "--json")
    record = json.loads(out)
    assert record["original"] == text(1)
    assert record["attack"] == {"name": "reorder", "settings": {"rate": 0.3, "preset": ""}}
    assert sorted(record["text"].split()) == sorted(text(1).split())


def test_many_and_again(run: Run, many: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    status, _, err = run("delete", "--input", many, "--output", out)
    assert status == 0
    assert "8 texts attacked, 0 failed (recorded as such), 0 were there already" in err
    first = records(out)
    assert [record["id"] for record in first] == [f"{i}/delete@0.3" for i in range(8)]
    assert all(record["prompt"] == "Go on." and record["key_id"] == "ak1" for record in first)
    assert len({record["seed"] for record in first}) == 8
    out.write_text("".join(out.read_text("utf-8").splitlines(keepends=True)[2:5]), "utf-8")
    _, _, err = run("delete", "--input", many, "--output", out)
    assert "5 texts attacked, 0 failed (recorded as such), 3 were there already" in err
    assert records(out) == first
    status, _, err = run("delete", "--rate", 0.5, "--input", many, "--output", out)  # another attack in the same file
    assert status == 0
    assert len(records(out)) == 16
    status, _, err = run("delete", "--input", many, "--output", out, "--seed", 9)
    assert status == 2
    assert "choose another output file" in err


def test_a_texts_seed_does_not_depend_on_the_others(run: Run, many: Path, tmp_path: Path) -> None:
    run("reorder", "--input", many, "--output", tmp_path / "all.jsonl")
    lines = many.read_text("utf-8").splitlines(keepends=True)
    many.write_text("".join(reversed(lines[3:])), "utf-8")
    run("reorder", "--input", many, "--output", tmp_path / "some.jsonl")
    every = {record["id"]: record for record in records(tmp_path / "all.jsonl")}
    assert all(every[record["id"]] == record for record in records(tmp_path / "some.jsonl"))


def test_what_cannot_be_attacked_is_recorded(run: Run, tmp_path: Path) -> None:
    lines = [{"id": "a", "text": "One sentence only."}, {"id": "b", "text": text(1)}, {"id": "c"}, {"failed": True}]
    (tmp_path / "in.jsonl").write_text("\n".join(map(json.dumps, lines)) + "\n{broken\n", "utf-8")
    status, _, err = run("reorder", "--input", tmp_path / "in.jsonl", "--output", tmp_path / "out.jsonl")
    assert status == 0
    assert "1 texts attacked, 1 failed (recorded as such), 0 were there already, 3 lines passed over" in err
    assert "in.jsonl:3 has no text" in err
    assert "in.jsonl:4 is a failed record" in err
    failed, made = records(tmp_path / "out.jsonl")
    assert failed["failed"] is True
    assert "one sentence" in failed["error"]
    assert failed["original"] == "One sentence only."
    assert "failed" not in made


def test_half_a_surrogate_pair(run: Run, tmp_path: Path) -> None:
    """JSON can hold it, in a text and in an id, and UTF-8 cannot."""
    lines = [{"id": "a\ud800", "text": text(1) + " It was \udfff good."}, {"id": "b", "text": text(2)}]
    (tmp_path / "in.jsonl").write_text("\n".join(map(json.dumps, lines)) + "\n", "utf-8")
    for name in ("delete", "typos", "insert"):
        status, _, err = run(name, "--input", tmp_path / "in.jsonl", "--output", tmp_path / f"{name}.jsonl")
        assert status == 0, err
        first, second = records(tmp_path / f"{name}.jsonl")
        assert first["parent_id"] == "a\ud800"
        assert first["text"]
        assert second["text"]


def test_sentences_of_other_texts(run: Run, many: Path, tmp_path: Path) -> None:
    status, _, err = run("insert", "--input", many, "--output", tmp_path / "out.jsonl")
    assert status == 0, err
    for i, record in enumerate(records(tmp_path / "out.jsonl")):
        assert record["text"].count(f"town {i} ") == 10
        assert record["text"].count("town ") == 13
    human = tmp_path / "human.txt"
    human.write_text(" ".join(f"Nobody ever saw the number {i} again in this place." for i in range(30)), "utf-8")
    files = ("--input", many, "--output", tmp_path / "pasted.jsonl")
    status, _, err = run("copy-paste", *files, "--pool", human, "--runs", 2)
    assert status == 0, err
    assert all(record["text"].count("Nobody") == 7 for record in records(tmp_path / "pasted.jsonl"))


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["delete"], "name a text file"),
        (["delete", "a.txt", "--input", "b"], "name a text file"),
        (["delete", "--input", "b"], "go together"),
        (["delete", "no such file.txt"], "No such file"),
        (["copy-paste", "story.txt"], "--pool"),
        (["insert", "story.txt"], "--pool"),
        (["delete", "story.txt", "--rate", "1.5"], "between 0 and 1"),
        (["delete", "story.txt", "--rate", "much"], "valid number"),
        (["delete", "empty.txt"], "no text"),
        (["truncate", "story.txt", "--rate", "1"], "nothing would be left"),
        (["nosuch"], "nosuch"),
        (["chat", "story.txt", "--llm", "openai:nowhere"], "not the address"),
        (["chat", "story.txt", "--prompt", "Rewrite this"], "{text} in the place of the original"),
        (["chat", "story.txt", "--rounds", "0"], "at least 1"),
        (["chat-sentences", "story.txt", "--tries", "0"], "at least 1"),
    ],
)
def test_mistakes(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], why: str) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "story.txt").write_text(text(1), "utf-8")
    (tmp_path / "empty.txt").write_text(" \n", "utf-8")
    status, out, err = run(*words)
    assert status == 2
    assert why in err
    assert "Traceback" not in err
    assert not out


def test_the_list_and_the_help_teach(run: Run) -> None:
    _, out, _ = run("list")
    assert all(name in out for name in names())
    _, out, _ = run("list", "--json")
    listed = json.loads(out)
    assert list(listed) == names()
    assert listed["dipper"]["settings"]["lexical"] == 60
    _, out, _ = run("--help")
    assert all(name in out for name in names())
    for name in names():
        status, out, _ = run(name, "--help")
        assert status == 0
        assert (attack_class(name).__doc__ or "")[:20] in out
        assert "--seed" in out
    _, out, _ = run("chat", "--help")
    assert "1024]" in out
    assert "qwen2.5-coder-1.5b]" in out
    assert "--no-sample" in run("pegasus", "--help").out


@pytest.mark.parametrize(
    ("words", "setting", "value"),
    [
        (["chat"], "max_tokens", 1024),
        (["chat", "--preset", "paper"], "max_tokens", 512),
        (["chat", "--preset", "paper", "--max-tokens", "1024"], "max_tokens", 1024),
        (["pegasus", "--preset", "paper", "--no-sample"], "sample", False),
        (["dipper", "--tries", "3", "--preset", "paper"], "tries", 3),
    ],
)
def test_an_option_beside_a_preset_wins(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], setting: str, value: object
) -> None:
    made: list[Attack] = []
    monkeypatch.setattr("alimark.cli.attack._attack_text", lambda attack, *_: made.append(attack))
    status, _, err = run(*words, tmp_path / "story.txt")
    assert status == 0, err
    assert getattr(made[0], setting) == value
