"""`alimark keygen`: key files, the public parameters shown, and options that are refused."""

import json
from pathlib import Path

import pytest

from alimark import Key
from commands import Run


def test_makes_a_key_and_prints_its_id(run: Run, tmp_path: Path) -> None:
    done = run("keygen", "-o", tmp_path / "k.json")
    assert done.status == 0
    assert done.out.strip() == Key.load(tmp_path / "k.json").id
    shown = run("keygen", "-o", tmp_path / "k2.json", "--json", "--block-size", 16)
    public = json.loads(shown.out)
    assert public["block_size"] == 16
    assert "secret" not in public
    assert run("keygen", "-o", tmp_path / "k3.json", "--offsets", 16).status == 0
    assert [Key.load(tmp_path / f"k{n}.json").offsets for n in (2, 3)] == [1, 16]


def test_decisions_are_soft_unless_hard_ones_are_asked_for(run: Run, tmp_path: Path) -> None:
    assert run("keygen", "-o", tmp_path / "soft.json").status == 0
    assert run("keygen", "-o", tmp_path / "hard.json", "--decision", "hard").status == 0
    soft, hard = Key.load(tmp_path / "soft.json"), Key.load(tmp_path / "hard.json")
    assert (soft.decision, soft.block_size) == ("soft", 64)
    assert (hard.decision, hard.block_size) == ("hard", 8)
    refused = run("keygen", "-o", tmp_path / "k.json", "--scheme", "kgw", "--decision", "hard")
    assert "kgw has no parameter decision" in refused.err


def test_says_in_three_lines_what_it_made_and_when_to_choose_otherwise(run: Run, tmp_path: Path) -> None:
    soft = run("keygen", "-o", tmp_path / "soft.json", "--decision", "soft")
    file, kind, otherwise = soft.err.splitlines()
    assert str(tmp_path / "soft.json") in file
    assert soft.out.strip() in file
    assert "secret" in file
    assert "soft decisions;" in kind
    assert "all-MiniLM-L6-v2" in kind
    assert "--decision hard is the scheme of the paper" in otherwise
    hard = run("keygen", "-o", tmp_path / "hard.json", "--decision", "hard").err.splitlines()
    assert len(hard) == 3
    assert "hard decisions, the scheme of the paper" in hard[1]
    assert "--decision soft" in hard[2]
    rival = run("keygen", "-o", tmp_path / "rival.json", "--scheme", "kgw", "--set", "vocabulary=sha256:0").err
    assert "key of kgw, a rival" in rival
    shown = json.loads(run("keygen", "-o", tmp_path / "k.json", "--json", "--decision", "soft").out)
    assert len(shown["notes"]) == 3


def test_says_what_an_embedder_without_directions_costs(run: Run, tmp_path: Path) -> None:
    notes = run("keygen", "-o", tmp_path / "k.json", "--decision", "soft", "--embedder", "stand-in").err.splitlines()
    assert len(notes) == 4
    assert "no directions for stand-in" in notes[3]
    assert "fewer rewritten texts" in notes[3]
    assert "alimark fit directions" in notes[3]
    hard = run("keygen", "-o", tmp_path / "hard.json", "--decision", "hard", "--embedder", "stand-in")
    assert len(hard.err.splitlines()) == 3


@pytest.mark.parametrize(
    "option", ["--block-size=65", "--decision=firm", "--scheme=none", "--splitter=none", "--offsets=0"]
)
def test_wrong_options(run: Run, tmp_path: Path, option: str) -> None:
    done = run("keygen", "-o", tmp_path / "k.json", option)
    assert done.status == 2
    assert done.err.startswith("error: ")
    assert done.err.count("\n") == 1
    assert not (tmp_path / "k.json").exists()


def test_never_overwrites(run: Run, key_file: Path) -> None:
    before = key_file.read_bytes()
    assert run("keygen", "-o", key_file).status == 2
    assert key_file.read_bytes() == before
