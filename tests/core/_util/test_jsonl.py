"""JSONL files that are written line by line: one writer at a time, and only complete lines are kept."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from alimark.core._util.jsonl import JsonlWriter
from alimark.errors import AlimarkError


def test_one_writer_at_a_time(tmp_path: Path) -> None:
    with JsonlWriter(tmp_path / "out.jsonl") as writer:
        writer.write({"id": "a"})
        with pytest.raises(AlimarkError, match="another process"):
            JsonlWriter(tmp_path / "out.jsonl")
    (tmp_path / "out.jsonl").write_text('{"id": "a"}')  # whole but for its line end
    with JsonlWriter(tmp_path / "out.jsonl") as writer:
        assert writer.done == {"a"}
        writer.write({"id": "b"})
    assert (tmp_path / "out.jsonl").read_text() == '{"id": "a"}\n{"id": "b"}\n'
    assert [path.name for path in tmp_path.iterdir()] == ["out.jsonl"]


def test_a_full_disk_keeps_what_is_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "out.jsonl"
    with JsonlWriter(path) as writer:
        writer.write({"id": "a"})
        real = writer._file

        class Full:
            """Takes half of a line, as a full disk does."""

            def __getattr__(self, name: str) -> Any:
                return getattr(real, name)

            def write(self, data: bytes) -> int:
                real.write(data[: len(data) // 2])
                real.flush()
                raise OSError(28, "No space left on device")

        writer._file = Full()  # type: ignore[assignment]
        with pytest.raises(OSError, match="No space"):
            writer.write({"id": "b", "text": "long" * 100})
    assert path.read_text() == '{"id": "a"}\n'
