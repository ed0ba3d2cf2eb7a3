"""Reads what the folder of a model holds: its modules, in sentence-transformers form, and which of them have weights."""

import json
from pathlib import Path, PurePosixPath
from typing import Any

from alimark.errors import ModelError

JsonValue = Any  # the content of a JSON file, not checked yet

_WITHOUT_WEIGHTS = ("Pooling", "Normalize", "Dropout")


def read_json(path: Path) -> JsonValue:
    """The content of a JSON file; ModelError where it is missing or malformed."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ModelError(f"{path.parent} holds no {path.name}; fetch the model again") from error
    except (OSError, ValueError) as error:
        raise ModelError(f"{path} cannot be read ({error}); fetch the model again") from error


def read_modules(folder: Path) -> list[tuple[str, Path]]:
    """The types of a model's modules, in order, each with its folder."""
    if not (folder / "modules.json").exists():
        raise ModelError(
            f"{folder} is not a sentence-transformers model: it holds no modules.json; name another folder"
        )
    try:
        modules = [
            (str(module["type"]).rpartition(".")[2], PurePosixPath(module["path"]))
            for module in read_json(folder / "modules.json")
        ]
    except (TypeError, KeyError) as error:
        raise ModelError(f"{folder / 'modules.json'} is malformed; fetch the model again") from error
    if not modules or any(path.is_absolute() or {"..", *"\\:"} & {*path.parts, *str(path)} for _, path in modules):
        raise ModelError(f"{folder / 'modules.json'} names no folders inside the model; fetch the model again")
    return [(kind, folder / path) for kind, path in modules]


def has_safetensors(folder: Path) -> bool:
    """Whether a folder holds weights in the form of safetensors."""
    return any(folder.glob("*.safetensors"))


def parts_with_weights(folder: Path) -> list[Path]:
    """The folders that hold weights of a model: itself or, with modules.json, those of its modules, the encoder first."""
    if not (folder / "modules.json").exists():
        return [folder]
    return [path for kind, path in read_modules(folder) if kind not in _WITHOUT_WEIGHTS]
