"""`alimark keygen`: key files, the public parameters shown, and options that are refused."""

from __future__ import annotations

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
