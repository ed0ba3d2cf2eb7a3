"""`alimark keygen`: key files, the public parameters shown, and options that are refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from alimark import Key
from alimark.keys.key import SOFT_VERSION
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
    assert (soft.decision, soft.block_size, soft.soft_version) == ("soft", 32, SOFT_VERSION)
    assert (hard.decision, hard.block_size) == ("hard", 8)
    refused = run("keygen", "-o", tmp_path / "k.json", "--scheme", "kgw", "--decision", "hard")
    assert "kgw has no parameter decision" in refused.err


@pytest.mark.parametrize(
    "options",
    [
        ["--block-size", "65"],
        ["--decision", "firm"],
        ["--scheme", "none"],
        ["--splitter", "none"],
        ["--offsets", "0"],
    ],
)
def test_wrong_options(run: Run, tmp_path: Path, options: list[str]) -> None:
    done = run("keygen", "-o", tmp_path / "k.json", *options)
    assert done.status == 2
    assert done.err.startswith("error: ")
    assert done.err.count("\n") == 1
    assert not (tmp_path / "k.json").exists()


def test_never_overwrites(run: Run, key_file: Path) -> None:
    before = key_file.read_bytes()
    assert run("keygen", "-o", key_file).status == 2
    assert key_file.read_bytes() == before
