"""Keys from files and folders."""

from __future__ import annotations

from pathlib import Path

import pytest

from alimark import Key
from alimark.core.keys.folder import load_keys
from alimark.errors import AlimarkError


def test_files_and_folders_in_order(tmp_path: Path) -> None:
    folder = tmp_path / "keys"
    folder.mkdir()
    paths = [folder / "b.json", folder / "a.json", tmp_path / "c.json"]
    for path in paths:
        Key.generate().save(path)
    (folder / "notes.txt").write_text("no key")
    keys = load_keys([paths[2], str(folder)])
    assert [key.id for key in keys] == [Key.load(path).id for path in (paths[2], paths[1], paths[0])]


def test_a_folder_without_keys(tmp_path: Path) -> None:
    with pytest.raises(AlimarkError, match="no key file"):
        load_keys([tmp_path])
