"""Finds an embedder by name, folder or hub id and loads it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Literal

from alimark._util.paths import cache_folder
from alimark._util.registry import Registry
from alimark.embedding import onnx_graph as _graph
from alimark.embedding.base import Embedder, ModelFiles
from alimark.embedding.onnx import OnnxEmbedder
from alimark.embedding.sentence_transformers import TorchEmbedder
from alimark.errors import ModelError

EMBEDDERS: Registry[Callable[[], Embedder]] = Registry(
    "embedder",
    "alimark.embedders",
    {"stand-in": "alimark.testing:StandInEmbedder"},  # needs no weights, for trying things out
    error=ModelError,
)
"""Embedders that are not files of weights: functions without arguments that return an embedder."""


def load_embedder(
    name: str,
    *,
    backend: Literal["auto", "onnx", "torch"] = "auto",
    device: str | None = None,
    threads: int | None = None,
) -> Embedder:
    """Loads an embedder.

    Args:
        name: A name of the store, a name that an installed package adds (entry points of the group `alimark.embedders`),
            a folder in sentence-transformers form, or a hub id.
        backend: "onnx" is onnxruntime on the CPU, "torch" is sentence-transformers. "auto" is onnxruntime where alimark can
            write the model's ONNX graph and no other device is asked for, else sentence-transformers.
        device: The device of sentence-transformers, such as "cuda".
        threads: The threads of onnxruntime; by default as many as this process has cores.

    Returns:
        The embedder.

    Raises:
        ModelError: The model cannot be found, fetched or loaded.

    Example:
        >>> load_embedder("stand-in").dimension
        64
    """
    if _registered(name):
        return EMBEDDERS.get(name)()
    if backend not in ("auto", "onnx", "torch"):
        raise ValueError(f"backend must be auto, onnx or torch, not {backend!r}")
    on_cpu = device in (None, "cpu")
    if backend == "onnx" and not on_cpu:
        raise ModelError(f'the ONNX embedder runs on the CPU; for device {device!r} take backend="torch"')
    model = _find(name)
    if backend == "torch" or not on_cpu:
        return TorchEmbedder(model, device)
    try:
        return OnnxEmbedder(model, threads)
    except _graph.UnknownArchitecture as error:
        if backend == "onnx":
            raise _graph.UnknownArchitecture(f'{name}: {error}; take backend="torch"') from error
        return TorchEmbedder(model)


def _registered(name: str) -> bool:
    """Whether the registry has an embedder of that name. Names of the store and paths go first and are not looked up."""
    from alimark.models import store

    return name not in store.names() and not Path(name).is_dir() and name in EMBEDDERS


def _find(name: str) -> ModelFiles:
    from alimark.models import store

    folder = store.resolve(name)
    if not folder.is_dir():
        raise ModelError(f"{name} is not an embedder: {folder} is no folder in sentence-transformers form")
    modules = _graph.read_modules(folder)
    weights = (modules[0][1] if modules else folder) / "model.safetensors"
    if not weights.is_file():
        raise ModelError(f"{folder} holds no model.safetensors, the only form of weights alimark loads")
    digest = _hash_once(weights, cache_folder() / "fingerprints")
    # The same weights have the same name however they were asked for, so that a key finds them elsewhere.
    known = (entry.name for entry in store.entries().values() if entry.weights.sha256 == digest)
    return ModelFiles(folder, weights, next(known, name), f"sha256:{digest}")


def _hash_once(path: Path, records: Path) -> str:
    """The file's sha256, read from a record while place, size and time of change stay the same."""
    place, state = str(path.resolve()), path.stat()
    identity = {"path": place, "size": state.st_size, "mtime_ns": state.st_mtime_ns}
    record = records / f"{hashlib.sha256(place.encode(errors='surrogateescape')).hexdigest()[:16]}.json"
    with suppress(OSError, ValueError, AttributeError):
        stored = json.loads(record.read_text(encoding="utf-8"))
        digest = stored.pop("sha256", None)
        if stored == identity and isinstance(digest, str):
            return digest
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    with suppress(OSError):  # a store that cannot be written costs time only
        records.mkdir(parents=True, exist_ok=True)
        with _graph.replacing(record) as sink:
            sink.write(json.dumps(identity | {"sha256": digest}).encode())
    return digest
