"""Finds an embedder by name, folder or hub id and loads it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Literal

from alimark.core._util.files import write_whole
from alimark.core._util.paths import cache_folder
from alimark.core._util.registry import Registry
from alimark.core.embedding import onnx_graph
from alimark.core.embedding.base import (
    Embedder,
    ModelFiles,
    Precision,
    Vectors,
    at_precision,
    check_precision,
    precision_of,
    precisions_of,
)
from alimark.core.embedding.onnx import OnnxEmbedder
from alimark.core.embedding.sentence_transformers import TorchEmbedder
from alimark.core.models.folders import read_modules
from alimark.errors import ModelError, TextError

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
    precision: Precision = "auto",
) -> Embedder:
    """Loads an embedder.

    Args:
        name: A name from `alimark models list`, a folder in sentence-transformers form, a hub id, or a name that an installed
            package adds by an entry point of the group `alimark.embedders`. `NAME#INSTRUCTION` puts an instruction before
            each text, as models such as INSTRUCTOR want it.
        backend: "onnx" runs onnxruntime on the CPU, "torch" runs sentence-transformers. "auto" takes "onnx" on the CPU where
            alimark can write the graph of the model, else "torch".
        device: A torch device such as "cuda"; the CPU by default.
        threads: Threads of onnxruntime; by default as many as the CPUs of this process.
        precision: "float32", which is "auto" here, or a faster one: "int8" for onnxruntime on CPUs, "tf32" or "bfloat16" for
            torch on GPUs.

    Returns:
        An embedder that threads may share.

    Raises:
        ModelError: The model cannot be found, read or trusted, or the backend cannot run it in the precision.
        MissingExtra: The library of the backend is not installed.

    Example:
        >>> load_embedder("stand-in").dimension
        64
    """
    check_precision(precision)
    return at_precision(_load(name, backend, device, threads), precision)


def _load(name: str, backend: Literal["auto", "onnx", "torch"], device: str | None, threads: int | None) -> Embedder:
    base, prefix = split_prefix(name)
    if _registered(base):
        registered = EMBEDDERS.make(base, lambda load: load(), attributes=("name", "dimension", "fingerprint", "embed"))
        return PrefixedEmbedder(registered, prefix) if prefix else registered
    if backend not in ("auto", "onnx", "torch"):
        raise ValueError(f"backend must be auto, onnx or torch, not {backend!r}")
    on_cpu = device in (None, "cpu")
    if backend == "onnx" and not on_cpu:
        raise ModelError(f'the ONNX embedder runs on the CPU; for device {device!r} use backend="torch"')
    model = load_model_files(base)
    if backend == "torch" or not on_cpu:
        loaded: Embedder = TorchEmbedder(model, device, prefix)
    else:
        try:
            if prefix and not onnx_graph.pools_prefix(model.folder, model.name):
                raise onnx_graph.UnknownArchitecture("the graph cannot leave an instruction out of the mean")
            loaded = OnnxEmbedder(model, threads)
        except onnx_graph.UnknownArchitecture as error:
            if backend == "onnx":
                raise onnx_graph.UnknownArchitecture(f'{name}: {error}; use backend="torch"') from error
            loaded = TorchEmbedder(model, None, prefix)
    return PrefixedEmbedder(loaded, prefix) if prefix else loaded


class PrefixedEmbedder:
    """Puts an instruction and a blank before each text. Name and fingerprint depend on the instruction, as the vectors do."""

    def __init__(self, embedder: Embedder, prefix: str) -> None:
        self._embedder, self._prefix = embedder, prefix
        self.name, self.backend = f"{embedder.name}#{prefix}", embedder.backend
        self.dimension, self.languages = embedder.dimension, embedder.languages
        self.precision, self.precisions = precision_of(embedder), precisions_of(embedder)
        identity = f"{embedder.fingerprint}\0{prefix}".encode("utf-8", "surrogatepass")
        self.fingerprint = f"sha256:{hashlib.sha256(identity).hexdigest()}"

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name} {self.fingerprint[:19]}>"

    def with_precision(self, precision: str) -> PrefixedEmbedder:
        return PrefixedEmbedder(at_precision(self._embedder, precision), self._prefix)

    def embed(self, texts: Sequence[str]) -> Vectors:
        if isinstance(texts, str):
            raise TextError("embed takes a list of texts; put the one text into a list")
        return self._embedder.embed([f"{self._prefix} {text}" for text in texts])


def split_prefix(name: str) -> tuple[str, str]:
    """Divides the name of an embedder, `NAME` or `NAME#INSTRUCTION`, into the model and the instruction or ""."""
    base, sign, prefix = name.partition("#")
    if not sign or Path(name).expanduser().exists():
        return name, ""
    if not prefix.strip():
        raise ModelError(f"{name!r} has no instruction after the #; write NAME#INSTRUCTION, or the name alone")
    return base, prefix.strip()


def check_embedder(name: str) -> None:
    """Checks that an embedder of a name as for `load_embedder` can be found, without loading it or downloading weights."""
    from alimark.core.models import store

    model, _ = split_prefix(name)
    if not _registered(model):
        store.check(model)


def _registered(name: str) -> bool:
    """Whether the registry has an embedder of that name. Names of the store and paths go first and are not looked up."""
    from alimark.core.models import store

    return name not in store.names() and not Path(name).is_dir() and name in EMBEDDERS


def load_model_files(name: str) -> ModelFiles:
    """Finds the files of an embedding model by name, folder or hub id, and downloads them where necessary."""
    from alimark.core.models import store

    folder = store.resolve(name)
    if not folder.is_dir():
        raise ModelError(
            f"{name} is not an embedder: {folder} is not a folder in sentence-transformers form; `alimark models list` shows "
            "the embedders of the store"
        )
    read_modules(folder)  # an embedder, not a language model
    folder = store.resolve_weights(name)
    parts = [path for _, path in read_modules(folder) if (path / "model.safetensors").is_file()]
    if parts[:1] != [path for _, path in read_modules(folder)[:1]]:
        raise ModelError(
            f"{folder} holds no model.safetensors, the only weight format that alimark loads; convert its weights to it"
        )
    digest, *others = [_hash_once(path / "model.safetensors", cache_folder() / "fingerprints") for path in parts]
    if others:  # weights of further modules, such as Dense layers, change the vectors as well
        digest = hashlib.sha256("".join([digest, *others]).encode()).hexdigest()
    # The same weights get the same name whichever way they were named, so that a key finds them on another machine.
    known = (entry.name for entry in store.entries().values() if entry.weights.sha256 == digest)
    return ModelFiles(folder, parts[0] / "model.safetensors", next(known, name), f"sha256:{digest}")


def _hash_once(path: Path, records: Path) -> str:
    """The sha256 of a file, kept in a record that is valid while path, size and modification time stay the same."""
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
    with suppress(OSError):  # a cache that cannot be written only costs time
        records.mkdir(parents=True, exist_ok=True)
        write_whole(record, json.dumps(identity | {"sha256": digest}).encode())
    return digest
