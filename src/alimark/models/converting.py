"""A model's folder as safetensors: where its weights are pickled checkpoints, a copy in the store that has them converted.

ALIMARK_HOME/converted/DIGEST/    of the place, size and time of every file the copy is made of; it appears in one rename
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from pathlib import Path

from alimark.errors import ModelError
from alimark.models.checkpoint import convert
from alimark.models.fetching import install, locked, staged

_WHOLE, _INDEX = "pytorch_model.bin", "pytorch_model.bin.index.json"
_SHARD = re.compile(r"pytorch_model[A-Za-z0-9_.-]*\.bin")

# What else transformers reads of a folder.
_BESIDE = frozenset({".json", ".txt", ".model", ".spm"})


def has_safetensors(folder: Path) -> bool:
    return any(folder.glob("*.safetensors"))


def as_safetensors(folder: Path, home: Path) -> Path:
    """`folder` itself where it holds safetensors, else the store's copy of it, which is made if it is not there."""
    if has_safetensors(folder):
        return folder
    checkpoints = _checkpoints(folder)
    beside = [path for path in sorted(folder.iterdir()) if path.suffix in _BESIDE and path.is_file()]
    name = _digest([*checkpoints, *beside])
    target = home / "converted" / name
    try:
        if not target.is_dir():
            _make(checkpoints, beside, target, home)
    except OSError as error:
        raise ModelError(
            f"cannot write the weights of {folder} as safetensors under {home} ({error}); "
            f"free some space, or set ALIMARK_HOME to a folder you can write"
        ) from error
    return target


def _checkpoints(folder: Path) -> list[Path]:
    found = [folder / _WHOLE]
    if not found[0].is_file() and (folder / _INDEX).is_file():
        found = [folder / name for name in sorted(set(_weight_map(folder / _INDEX).values()))]
    if not found or not all(path.is_file() for path in found):
        raise ModelError(
            f"{folder} holds neither safetensors nor all of {_WHOLE}; take a folder with a model's weights"
        )
    return found


def _weight_map(index: Path) -> dict[str, str]:
    """Which file each tensor is in."""
    try:
        found = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
    except (ValueError, TypeError, KeyError, RecursionError):
        found = None
    if not isinstance(found, dict) or not all(isinstance(n, str) and _SHARD.fullmatch(n) for n in found.values()):
        raise ModelError(f"{index} does not tell which files hold the weights; get it again")
    return found


def _digest(paths: list[Path]) -> str:
    states = [(str(path.resolve()), path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in paths]
    return hashlib.sha256(json.dumps(states).encode()).hexdigest()[:32]


def _make(checkpoints: list[Path], beside: list[Path], target: Path, home: Path) -> None:
    work = f"converted-{target.name}"
    with locked(home, work):
        if target.is_dir():  # whoever held the lock before did the work
            return
        with staged(home, work) as staging:
            ready = staging / "ready"
            ready.mkdir()
            for path in checkpoints:
                convert(path, ready / _renamed(path.name))
            for path in beside:
                if path.name == _INDEX:
                    _write_index(path, ready)
                else:
                    shutil.copyfile(path, ready / path.name)
            install(ready, target, staging)


def _renamed(name: str) -> str:
    return f"{name.removeprefix('pytorch_').removesuffix('.bin')}.safetensors"


def _write_index(index: Path, ready: Path) -> None:
    weights = {tensor: _renamed(name) for tensor, name in _weight_map(index).items()}
    if not all((ready / name).is_file() for name in weights.values()):
        return  # it lies beside a checkpoint that holds everything
    said = json.dumps({"metadata": {}, "weight_map": weights}, indent=2, sort_keys=True)
    (ready / "model.safetensors.index.json").write_text(said + "\n", encoding="utf-8")
