"""Converts models whose weights are pickled checkpoints (pytorch_model.bin) to safetensors without running code from them.

A checkpoint is a pickle, which can name any function. `torch.load(weights_only=True)` accepts only the names that tensors need.
It runs in a process with limits on time and memory, since a file can be made to exhaust either.

The converted copy of a folder lies in ALIMARK_HOME/converted/DIGEST. The digest depends on the path, size and modification time
of every source file. The folder appears in one rename, when it is complete.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import secrets
import shutil
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from alimark.core._util import process
from alimark.core.models.fetching import build_once
from alimark.core.models.folders import has_safetensors, parts_with_weights, read_modules
from alimark.errors import MissingExtra, ModelError

if TYPE_CHECKING:
    import torch

# Reading takes about one second for each gigabyte, and importing torch a few.
_SECONDS, _SECONDS_PER_GIGABYTE = 60, 60
# torch reserves some gigabytes of addresses by itself; the numbers are in memory up to three times.
_MEMORY = 8 << 30
# The output may be larger than the file, because tied weights are written once for each of their names.
_MAX_GROWTH = 8


def convert(source: Path, target: Path) -> None:
    """Writes the tensors of a checkpoint to a safetensors file, which appears when it is complete.

    The same tensors always give the same bytes.
    """
    size = source.stat().st_size
    if size == 0:
        raise ModelError(f"{source} is empty; download it again")
    if find_spec("torch") is None:
        raise MissingExtra("torch", "transformers")
    part = target.with_name(f".{target.name}.{secrets.token_hex(6)}.part")
    seconds = _SECONDS + _SECONDS_PER_GIGABYTE * (size >> 30)
    try:
        status, output = process.run(__name__, [str(source), str(part), str(seconds)], b"", cpu_seconds=seconds)
        if status == 0 and part.is_file():
            os.replace(part, target)
            return
        reason = output.decode("utf-8", "replace").strip()
        reason = reason or "reading it broke off: it is damaged or needs too much memory"
    except process.TooLong:
        reason = f"reading it took more than {seconds} seconds"
    finally:
        part.unlink(missing_ok=True)
    if reason.startswith("["):  # an error of the system, such as a full disk
        raise OSError(f"{target}: {reason}")
    raise ModelError(
        f"{source} was not converted, because {reason}; use weights in the form of safetensors, or download the file again"
    )


def read(source: Path) -> dict[str, torch.Tensor]:
    """The named tensors of a checkpoint; raises ValueError with the reason where it holds anything else."""
    import torch

    try:
        state = torch.load(source, map_location="cpu", weights_only=True)
    except OSError:
        raise
    except Exception as error:  # torch raises errors of many kinds for damaged and for refused files
        raise ValueError(f"torch refuses it ({_first_line(error)})") from error
    if not isinstance(state, dict) or not state:
        raise ValueError("it holds no named tensors")
    total = 0
    for name, tensor in state.items():
        if not isinstance(name, str) or name == "__metadata__":
            raise ValueError(f"{str(name)[:80]!r} cannot be the name of a tensor")
        if not isinstance(tensor, torch.Tensor) or tensor.layout != torch.strided or tensor.is_quantized:
            raise ValueError(f"its {name[:80]!r} is not a tensor of plain numbers but of type {type(tensor).__name__}")
        total += tensor.numel() * tensor.element_size()
    if total > _MAX_GROWTH * source.stat().st_size:
        raise ValueError("it holds the same numbers under too many names")
    return state


def _first_line(error: Exception) -> str:
    """The line that says what is wrong. torch's own advice, to load the file without protection, is left out."""
    advice = ("Weights only load failed", "Please file an issue", "Check the documentation")
    lines = [line.strip() for line in str(error).splitlines() if line.strip() and not line.strip().startswith(advice)]
    return (lines or [type(error).__name__])[0][:200]


def _main(source: str, target: str, seconds: str) -> int:
    path = Path(source)
    size = path.stat().st_size
    process.limit(int(seconds), _MEMORY + 4 * size, _MAX_GROWTH * size + (1 << 20))
    try:
        from safetensors.torch import save

        state = read(path)
        data = save({name: state[name].detach().contiguous().clone() for name in sorted(state)}, {"format": "pt"})
        with open(target, "xb") as file:
            file.write(data)
            os.fsync(file.fileno())
    except OSError as error:
        sys.stdout.write(f"[{error.errno}] {error.strerror}")
        return 1
    except MemoryError:
        sys.stdout.write("it needs too much memory")
        return 1
    except Exception as error:  # safetensors has an error class of its own, and torch raises RuntimeError
        sys.stdout.write(_first_line(error))
        return 1
    return 0


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


if __name__ == "__main__":
    sys.exit(_main(*sys.argv[1:]))
