"""Loads keys from files and from folders of key files."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path

from alimark.core.keys.key import Key
from alimark.errors import AlimarkError, KeyFileError


def load_keys(paths: Sequence[Path | str]) -> list[Key]:
    """Loads key files, and all key files (*.json) of folders in the order of their names.

    A file of a folder that is not a valid key is left out with a warning, so that the other keys can be used. Raises
    AlimarkError if there is no key file at all, and KeyFileError for a file that is named itself, or for folders without a
    valid one.
    """
    keys: list[Key] = []
    bad: list[KeyFileError] = []
    for path in map(Path, paths):
        if not path.is_dir():
            keys.append(Key.load(path))
            continue
        for file in sorted(path.glob("*.json")):
            try:
                keys.append(Key.load(file))
            except KeyFileError as error:
                bad.append(error)
                warnings.warn(f"a key was left out: {error}", stacklevel=2)
    if bad and not keys:
        raise bad[0]
    if not keys:
        raise AlimarkError(
            f"there is no key file (*.json) in {', '.join(map(str, paths))}; make a key: alimark keygen -o key.json"
        )
    return keys
