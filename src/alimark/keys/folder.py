"""Loads keys from files and from folders of key files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from alimark.errors import AlimarkError
from alimark.keys.key import Key


def load_keys(paths: Sequence[Path | str]) -> list[Key]:
    """Loads key files, and all key files (*.json) of folders in the order of their names.

    Raises:
        AlimarkError: There is no key file at all.
        KeyFileError: A file cannot be read, or is not a key file.
    """
    files: list[Path] = []
    for path in map(Path, paths):
        files += sorted(path.glob("*.json")) if path.is_dir() else [path]
    if not files:
        raise AlimarkError(
            f"there is no key file (*.json) in {', '.join(map(str, paths))}; make a key: alimark keygen -o key.json"
        )
    return [Key.load(file) for file in files]
