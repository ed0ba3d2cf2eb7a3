"""Converts folders of models whose weights are pickled checkpoints to safetensors.

The converted copy lies in ALIMARK_HOME/converted/DIGEST. The digest depends on the path, size and modification time of every
source file. The folder appears in one rename, when it is complete.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from pathlib import Path

from alimark.core.models.checkpoint import convert
from alimark.core.models.fetching import build_once
from alimark.core.models.folders import has_safetensors, parts_with_weights, read_modules
from alimark.errors import ModelError

_WHOLE, _INDEX = "pytorch_model.bin", "pytorch_model.bin.index.json"
_SHARD = re.compile(r"pytorch_model[A-Za-z0-9_.-]*\.bin")

# Types of other files that transformers reads.
_OTHER_FILES = frozenset({".json", ".txt", ".model", ".spm", ".safetensors"})


def as_safetensors(folder: Path, home: Path) -> Path:
    """The folder of a model where it holds safetensors, otherwise the converted copy in the store, made if necessary."""
    first, *further = parts_with_weights(folder)
    # A further module that has no checkpoint may be of a kind that needs no weights.
    parts = [first, *(part for part in further if any(part.glob("pytorch_model*")))]
    pickled = [part for part in parts if not has_safetensors(part)]
    if not pickled:
        return folder
    checkpoints = [path for part in pickled for path in _checkpoints(part)]
    modules = [path for _, path in read_modules(folder)] if (folder / "modules.json").exists() else []
    others = [path for part in dict.fromkeys([folder, *modules]) for path in _other_files(part)]
    try:
        return build_once(
            home, _digest([*checkpoints, *others]), lambda ready: _convert(folder, checkpoints, others, ready)
        )
    except OSError as error:
        raise ModelError(
            f"cannot write the weights of {folder} as safetensors under {home} ({error}); "
            f"free some space, or set ALIMARK_HOME to a folder that you can write to"
        ) from error


def _other_files(folder: Path) -> list[Path]:
    """What lies beside checkpoints, and the safetensors of modules that have no checkpoint."""
    return [path for path in sorted(folder.glob("*")) if path.suffix in _OTHER_FILES and path.is_file()]


def _checkpoints(folder: Path) -> list[Path]:
    """The checkpoint of a model, or the files that it is divided into."""
    paths = [folder / _WHOLE]
    if not paths[0].is_file() and (folder / _INDEX).is_file():
        paths = [folder / name for name in sorted(set(_weight_map(folder / _INDEX).values()))]
    if not paths or not all(path.is_file() for path in paths):
        raise ModelError(
            f"{folder} holds neither safetensors (model.safetensors) nor a complete {_WHOLE}; "
            "use a folder with the weights of a model"
        )
    return paths


def _weight_map(index: Path) -> dict[str, str]:
    """The file that each tensor is in."""
    try:
        files = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
    except (ValueError, TypeError, KeyError, RecursionError):
        files = None
    if not isinstance(files, dict) or not all(isinstance(n, str) and _SHARD.fullmatch(n) for n in files.values()):
        raise ModelError(f"{index} does not say which files hold the weights; download it again")
    return files


def _digest(paths: list[Path]) -> str:
    states = [(str(path.resolve()), path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in paths]
    return hashlib.sha256(json.dumps(states).encode()).hexdigest()[:32]


def _convert(folder: Path, checkpoints: list[Path], others: list[Path], ready: Path) -> None:
    def placed(path: Path) -> Path:
        place: Path = ready / path.parent.relative_to(folder)
        place.mkdir(exist_ok=True, parents=True)
        return place

    for path in checkpoints:
        convert(path, placed(path) / _renamed(path.name))
    for path in others:
        if path.name == _INDEX:
            _write_index(path, placed(path))
        else:
            shutil.copyfile(path, placed(path) / path.name)


def _renamed(name: str) -> str:
    return f"{name.removeprefix('pytorch_').removesuffix('.bin')}.safetensors"


def _write_index(index: Path, ready: Path) -> None:
    weights = {tensor: _renamed(name) for tensor, name in _weight_map(index).items()}
    if not all((ready / name).is_file() for name in weights.values()):
        return  # the index of shards that were not used, because there is a complete checkpoint
    content = json.dumps({"metadata": {}, "weight_map": weights}, indent=2, sort_keys=True)
    (ready / "model.safetensors.index.json").write_text(content + "\n", encoding="utf-8")
