"""For tests of embedders: a home for what they write, and no warnings of torch and transformers of their own future."""

from pathlib import Path

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.parent == Path(__file__).parent:
            for category in ("DeprecationWarning", "FutureWarning"):
                item.add_marker(pytest.mark.filterwarnings(f"ignore::{category}"))


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Path:
    folder = tmp_path / "home"
    if not request.node.get_closest_marker("weights"):
        monkeypatch.setenv("ALIMARK_HOME", str(folder))
    return folder
