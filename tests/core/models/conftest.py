"""Fixtures for the tests of model weights."""

from __future__ import annotations

from pathlib import Path

import pytest
from model_fakes import FakeHub


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """ALIMARK_HOME in a folder that does not exist yet."""
    folder = tmp_path / "home"
    monkeypatch.setenv("ALIMARK_HOME", str(folder))
    return folder


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> FakeHub:
    """A model hub without network; set its `answer`."""
    library = pytest.importorskip("huggingface_hub")
    fake = FakeHub()
    monkeypatch.setattr(library, "snapshot_download", fake.snapshot_download)
    return fake
