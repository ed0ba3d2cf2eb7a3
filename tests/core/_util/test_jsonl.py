"""JSONL files that are written line by line: one writer at a time, and only complete lines are kept."""

from pathlib import Path

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


def test_a_full_disk_keeps_what_is_whole(tmp_path: Path) -> None:
    resource = pytest.importorskip("resource")
    path = tmp_path / "out.jsonl"
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    with JsonlWriter(path) as writer:
        writer.write({"id": "a"})
        resource.setrlimit(resource.RLIMIT_FSIZE, (200, limits[1]))  # takes a part of the line, as a full disk does
        try:
            with pytest.raises(OSError, match="too large"):
                writer.write({"id": "b", "text": "long" * 60})
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert path.read_text() == '{"id": "a"}\n'
