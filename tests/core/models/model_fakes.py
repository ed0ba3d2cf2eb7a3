"""A hostile pickle and a model hub without network."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any


class MakesFolder:
    """Makes a folder beside ALIMARK_HOME when it is unpickled."""

    @staticmethod
    def folder() -> Path:
        return Path(os.environ["ALIMARK_HOME"] + "-evil")

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.folder()),)


class FakeHub:
    """Answers downloads of the repository org/model with a local folder, and keeps the patterns of the files asked for."""

    def __init__(self) -> None:
        self.asked: list[list[str]] = []
        self.answer: Callable[[list[str]], Path]

    def snapshot_download(self, repo: str, *, allow_patterns: list[str], local_files_only: bool) -> str:
        assert (repo, local_files_only) == ("org/model", False)
        self.asked.append(allow_patterns)
        return str(self.answer(allow_patterns))
