"""Fixtures for the tests of model weights."""

from collections.abc import Callable
from pathlib import Path

import pytest
from model_fakes import FakeHub, Shelf, add_joined, add_single, add_zipped

from alimark.core.models import fetching, manifest, store


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """ALIMARK_HOME in a folder that does not exist yet."""
    folder = tmp_path / "home"
    monkeypatch.setenv("ALIMARK_HOME", str(folder))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    return folder


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> FakeHub:
    """A model hub without network; set its `answer`."""
    library = pytest.importorskip("huggingface_hub")
    fake = FakeHub()
    monkeypatch.setattr(library, "snapshot_download", fake.snapshot_download)
    return fake


@pytest.fixture
def shelf(tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> Shelf:
    made = Shelf(tmp_path / "index", home)
    made.index.mkdir()
    add_single(made)
    add_joined(made)
    add_zipped(made)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(made.index))
    monkeypatch.setattr(fetching, "CHUNK", 1000)
    monkeypatch.setattr(store, "entries", lambda: manifest.parse(made.manifest))
    return made


@pytest.fixture
def downloads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The wheels that pip is asked for."""
    asked: list[str] = []
    real = fetching._pip_download

    def counted(wheel: manifest.Wheel, home: Path, staging: Path, grown: Callable[[int], None]) -> None:
        asked.append(wheel.filename)
        real(wheel, home, staging, grown)

    monkeypatch.setattr(fetching, "_pip_download", counted)
    return asked
