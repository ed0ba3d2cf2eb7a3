"""benchmarks/evasion.py with stand-in models."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import evasion


def test_disguised_texts_are_found_by_the_further_reading(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = ["none", "HTML entities", "Cyrillic look-alikes", "reversed"]
    options = ["--output", str(tmp_path), "--stand-in", "--texts", "2", "--only", *names]
    monkeypatch.setattr("sys.argv", ["evasion.py", *options])
    evasion.main()
    results = json.loads((tmp_path / "results.json").read_text())
    assert {name: results[f"hard/{name}"]["after"] for name in names} == dict(zip(names, (2, 2, 2, 0), strict=True))
    assert [results[f"hard/{name}"]["before"] for name in names] == [2, 2, 0, 0]


@pytest.mark.parametrize("name", evasion.TRANSFORMATIONS)
def test_every_transformation_but_one_changes_the_text(name: str) -> None:
    text = 'The old lamp went out. "Nobody saw it," the keeper said. Then the wind rose over the bay.'
    assert (evasion.TRANSFORMATIONS[name](text) == text) == (name == "none")
