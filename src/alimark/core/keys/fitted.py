"""Data that a scheme learned from text: arrays and a record of their origin, stored in files and inside key files."""

from __future__ import annotations

import base64
import io
import json
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from alimark.core._util.files import write_whole
from alimark.core._util.json_types import JsonObject
from alimark.errors import KeyFileError

LearnedArray = NDArray[np.floating]

_KINDS = ("<f4", "<f8")
_MOST_BYTES = 32 * 2**20
_BAYESIAN = {"beta", "delta", "prior"}
"""The arrays in the file of a Bayesian detector of SynthID-Text, as transformers saves it."""


@dataclass(frozen=True, eq=False)
class Fitted:
    """Arrays that a scheme learned from text.

    `origin` records what they were learned from: the embedder and its fingerprint, the number and hash of the texts.
    """

    scheme: str
    arrays: Mapping[str, LearnedArray]
    origin: Mapping[str, Any]

    def __post_init__(self) -> None:
        for name, array in self.arrays.items():
            if array.dtype.str not in _KINDS or not np.isfinite(array).all():
                raise KeyFileError(f"the learned array {name!r} holds values that are not finite numbers")
        object.__setattr__(self, "arrays", MappingProxyType(dict(self.arrays)))
        object.__setattr__(self, "origin", MappingProxyType(dict(self.origin)))

    def save(self, path: Path | str) -> None:
        """Writes the arrays and, as JSON, their origin: to safetensors if the file is named so, else to .npz without pickle."""
        about = json.dumps({"scheme": self.scheme, "origin": dict(self.origin)}, sort_keys=True)
        if Path(path).suffix == ".safetensors":
            from safetensors.numpy import save

            arrays = {name: np.ascontiguousarray(array) for name, array in self.arrays.items()}
            write_whole(path, save(arrays, {"about": about}))
            return
        content = io.BytesIO()
        np.savez(content, about=np.array(about), **self.arrays)  # type: ignore[arg-type]
        write_whole(path, content.getvalue())

    @classmethod
    def load(cls, path: Path | str) -> Fitted:
        """Reads a file that `save` or, for SynthID-Text, transformers wrote; raises KeyFileError for any other file."""
        path = Path(path)
        if not path.exists():
            raise KeyFileError(f"there is no file {path}; make one: alimark fit SCHEME -o {path}")
        if path.stat().st_size > _MOST_BYTES:
            raise KeyFileError(f"{path} is too large to be a file of learned data")
        if path.suffix == ".safetensors":
            return _safetensors(path)
        try:
            with np.load(io.BytesIO(path.read_bytes()), allow_pickle=False) as content:
                about = json.loads(str(content["about"]))
                arrays = {name: content[name] for name in content.files if name != "about"}
            return cls(str(about["scheme"]), arrays, dict(about["origin"]))
        except (ValueError, KeyError, TypeError, OSError, EOFError, zipfile.BadZipFile):
            raise KeyFileError(f"{path} was not written by `alimark fit`, or is only part of a file") from None

    # Inside a key file

    def public(self) -> JsonObject:
        """The content as a key file holds it."""
        arrays = {
            name: {
                "kind": array.dtype.str,
                "shape": list(array.shape),
                "data": base64.b64encode(np.ascontiguousarray(array).tobytes()).decode(),
            }
            for name, array in self.arrays.items()
        }
        return {"scheme": self.scheme, "origin": dict(self.origin), "arrays": arrays}

    @classmethod
    def parse(cls, content: JsonObject) -> Fitted:
        """Reads the content that `public` returned; raises KeyFileError if a part is missing or malformed."""
        try:
            arrays = {str(name): _array(array) for name, array in content["arrays"].items()}
            return cls(str(content["scheme"]), arrays, dict(content["origin"]))
        except (ValueError, KeyError, TypeError, AttributeError):
            raise KeyFileError("its learned data are malformed; restore it from a copy") from None


def _safetensors(path: Path) -> Fitted:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, "numpy") as file:
            arrays = {name: np.asarray(file.get_tensor(name)) for name in file.keys()}  # noqa: SIM118 - no mapping
            about = json.loads((file.metadata() or {}).get("about", "{}"))
        if not about and {name.rpartition(".")[2] for name in arrays} == _BAYESIAN:
            about = {"scheme": "synthid", "origin": {"file": path.name}}
        return Fitted(str(about["scheme"]), arrays, dict(about["origin"]))
    except (SafetensorError, ValueError, KeyError, TypeError, OSError):
        raise KeyFileError(f"{path} was not written by `alimark fit`, or is only part of a file") from None


def _array(content: JsonObject) -> LearnedArray:
    if content["kind"] not in _KINDS:
        raise ValueError(content["kind"])
    data = base64.b64decode(content["data"], validate=True)
    return np.frombuffer(data, content["kind"]).reshape([int(n) for n in content["shape"]])
