"""Every example in a docstring of the package runs and prints what it says."""

import doctest
from importlib import import_module
from pathlib import Path

import pytest

import alimark

SOURCE = Path(alimark.__file__).parent


def modules_with_examples() -> list[str]:
    """The modules whose source holds a doctest prompt."""
    files = [path for path in sorted(SOURCE.rglob("*.py")) if ">>> " in path.read_text(encoding="utf-8")]
    parts = [path.relative_to(SOURCE.parent).with_suffix("").parts for path in files]
    return [".".join(part[:-1] if part[-1] == "__init__" else part) for part in parts]


@pytest.mark.parametrize("name", modules_with_examples())
def test_examples_of_a_module_run(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # an example may write files
    module = import_module(name)
    results = doctest.testmod(module, optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    assert results.attempted > 0
    assert results.failed == 0
