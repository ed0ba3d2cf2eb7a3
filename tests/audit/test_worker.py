"""The time limit of a worker's documents."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from corpora import plain_texts, rows, write

pytest.importorskip("pyarrow")


def test_what_a_worker_loads_does_not_count_against_its_first_document(tmp_path: Path) -> None:
    """A cold worker on a busy machine takes long to compile its kernels; the document that came first is not to blame."""
    source = write(tmp_path / "docs.jsonl", plain_texts(3))
    words: list[str | Path] = [sys.executable, Path(__file__).with_name("slow_start.py"), source, tmp_path / "out"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert [row["failed"] for row in rows(tmp_path / "out")] == [False] * 3
