"""Texts to unit vectors, by onnxruntime (the default, without torch) or sentence-transformers.

Whatever runs them, a model is known by the hash of its upstream weights, and every backend agrees to 1e-4: a
mark made through one is found through the other.
"""

from __future__ import annotations

import copy
import hashlib
import json
import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from alimark import _graph
from alimark.errors import MissingExtra, ModelError, TextError

Vectors = NDArray[np.float32]
Progress = Callable[[int], None]
"""Called with the number of texts done so far."""

WINDOW_TEXTS = 8192
"""Texts tokenised and sorted by length at a time: enough to fill batches of one length, little to hold."""

BATCH_TOKENS = 2048
"""Tokens of one batch, padding included: bounds memory; larger batches are no faster."""

BATCH_PADDING = 32
"""Tokens of padding in one batch. Padding costs what text costs and a batch hardly anything, so that the sentences, pairs and
halves of a single text are better embedded in several batches than padded to the longest pair."""

CHARACTERS_PER_TOKEN = 8
"""A generous first guess of what fills the model's length; a text that turns out emptier is read further."""

MAX_CHARACTERS = 1 << 18
"""What lies beyond is never read, even where blanks or an endless word leave the model's length unfilled."""

_ENCODE_CHARACTERS = 1 << 20  # the tokenizer keeps a hundred bytes a token until a call is over
_LANGUAGES = {"all-MiniLM-L6-v2": frozenset({"en"}), "all-mpnet-base-v2": frozenset({"en"})}


class Embedder(Protocol):
    """What marking and detection ask of an embedder. `embed` may be called by several threads at once."""

    @property
    def name(self) -> str: ...  # as a key stores it

    @property
    def dimension(self) -> int: ...

    @property
    def fingerprint(self) -> str: ...  # "sha256:..." of the upstream weights

    @property
    def backend(self) -> str: ...

    @property
    def languages(self) -> frozenset[str]: ...  # empty: unknown

    def embed(self, texts: Sequence[str]) -> Vectors: ...  # (texts, dimension), each of unit length


@dataclass(frozen=True, slots=True)
class _Model:
    """A model on disk and who it is."""

    folder: Path
    weights: Path
    name: str
    fingerprint: str


class LoadedEmbedder(ABC):
    """What the backends share: who they are, each distinct text embedded once, order kept, memory bounded."""

    backend: str
    dimension: int

    def __init__(self, model: _Model) -> None:
        self._model = model

    @property
    def name(self) -> str:
        return self._model.name

    @property
    def fingerprint(self) -> str:
        return self._model.fingerprint

    @property
    def languages(self) -> frozenset[str]:
        return _LANGUAGES.get(self._model.name, frozenset())

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name} {self.fingerprint[:19]}>"

    def embed(self, texts: Sequence[str], progress: Progress | None = None) -> Vectors:
        """One row of unit length for each text, in order."""
        if isinstance(texts, str):
            raise TextError("embed takes a list of texts; put the one text into a list")
        vectors = np.empty((len(texts), self.dimension), dtype=np.float32)
        first: dict[str, int] = {}
        repeated: list[tuple[int, int]] = []
        for row, text in enumerate(texts):
            if not isinstance(text, str):
                raise TextError(f"text {row} is of type {type(text).__name__}; give text as str")
            if (earlier := first.setdefault(text, row)) != row:
                repeated.append((row, earlier))
        distinct, rows = list(first), np.fromiter(first.values(), dtype=np.intp)
        for start in range(0, len(distinct), WINDOW_TEXTS):
            window = slice(start, start + WINDOW_TEXTS)
            self._embed_window(distinct[window], rows[window], vectors, start, progress)
        for row, earlier in repeated:
            vectors[row] = vectors[earlier]
        if progress and repeated:
            progress(len(texts))
        return vectors

    @abstractmethod
    def _embed_window(
        self, texts: list[str], rows: NDArray[np.intp], vectors: Vectors, done: int, progress: Progress | None
    ) -> None:
        """Fill `vectors[rows]`; `done` texts came before these."""


class OnnxEmbedder(LoadedEmbedder):
    """The graph that alimark writes from the weights, run on the CPU."""

    backend = "onnx"

    def __init__(self, model: _Model, threads: int | None = None) -> None:
        super().__init__(model)
        recipe = _graph.read_recipe(model.folder)
        self.dimension = recipe.hidden
        self._max_tokens = recipe.max_tokens
        self._padding = recipe.padding
        self._session = _open_session(model, recipe, threads)
        self._tokenizer = _open_tokenizer(model.weights.parent, recipe.max_tokens)

    def _embed_window(
        self, texts: list[str], rows: NDArray[np.intp], vectors: Vectors, done: int, progress: Progress | None
    ) -> None:
        tokens = self._tokenise(texts)
        for batch in _batches([len(ids) for ids in tokens]):
            vectors[rows[batch]] = self._run([tokens[i] for i in batch])
            done += len(batch)
            if progress:
                progress(done)

    def _tokenise(self, texts: list[str]) -> list[NDArray[np.int32]]:
        """Token ids as if whole texts had been read, without reading whole texts."""
        reach = CHARACTERS_PER_TOKEN * self._max_tokens
        tokens = self._encode([_cut(text, reach) for text in texts])
        while reach < MAX_CHARACTERS:
            # A cut text that did not fill the model's length has more to give.
            unfilled = [i for i, text in enumerate(texts) if len(text) > reach and len(tokens[i]) < self._max_tokens]
            if not unfilled:
                break
            reach = min(4 * reach, MAX_CHARACTERS)
            for i, ids in zip(unfilled, self._encode([_cut(texts[i], reach) for i in unfilled]), strict=True):
                tokens[i] = ids
        return tokens

    def _encode(self, texts: list[str]) -> list[NDArray[np.int32]]:
        return [
            np.array(encoding.ids, dtype=np.int32)
            for part in _parts(texts)
            for encoding in self._tokenizer.encode_batch_fast(part)
        ]

    def _run(self, tokens: list[NDArray[np.int32]]) -> Vectors:
        length = max(1, *map(len, tokens))  # a tokenizer without special tokens makes nothing of ""
        ids = np.full((len(tokens), length), self._padding, dtype=np.int32)
        mask = np.zeros_like(ids)
        for row, text_ids in enumerate(tokens):
            ids[row, : len(text_ids)] = text_ids
            mask[row, : len(text_ids)] = 1
        vectors: Vectors = self._session.run(["vectors"], {"ids": ids, "mask": mask})[0]
        return vectors


class TorchEmbedder(LoadedEmbedder):
    """sentence-transformers, always in float32; on the CPU unless `device` says otherwise."""

    backend = "sentence-transformers"

    def __init__(self, model: _Model, device: str | None = None) -> None:
        super().__init__(model)
        _refuse_pickles(model.folder)
        try:
            from sentence_transformers import SentenceTransformer
        except ImportError:
            raise MissingExtra("sentence-transformers", "sentence-transformers") from None
        try:
            with _no_progress_bar():
                encoder = SentenceTransformer(
                    str(model.folder),
                    device=device or "cpu",
                    local_files_only=True,
                    trust_remote_code=False,
                    model_kwargs={"use_safetensors": True},
                )
            # Some files state half precision, which costs agreement and, on some CPUs, the process.
            self._encoder = encoder.float()
        except Exception as error:
            raise ModelError(f"sentence-transformers cannot load {model.folder}: {error}") from error
        # A copy of the tokenizer beneath: transformers' own changes its settings at each call.
        self._tokenizer = copy.deepcopy(self._encoder.tokenizer.backend_tokenizer)
        self._tokenizer.no_padding()
        self._tokenizer.enable_truncation(self._encoder.max_seq_length)
        self._padding = self._encoder.tokenizer.pad_token_id or 0
        self._lock = threading.Lock()
        # A GPU is kept waiting by small batches, and by the padding of large ones; a CPU gains nothing from them.
        on: Any = self._encoder.device
        self._batch, self._window = (32, 512) if on.type == "cpu" else (256, 4096)
        self._recorded: Any = None
        if on.type == "cuda":
            from alimark._recording import RecordedEncoder

            longest = int(self._encoder.max_seq_length or 512)
            self._recorded = RecordedEncoder(self._forward, on, self._padding, longest)
        self.dimension = int(self._encode([""]).shape[1])

    def _embed_window(
        self, texts: list[str], rows: NDArray[np.intp], vectors: Vectors, done: int, progress: Progress | None
    ) -> None:
        order = np.argsort([-len(text) for text in texts], kind="stable")
        for start in range(0, len(order), self._window):
            batch = order[start : start + self._window]
            vectors[rows[batch]] = self._encode([_cut(texts[i], MAX_CHARACTERS) for i in batch])
            done += len(batch)
            if progress:
                progress(done)

    def _encode(self, texts: list[str]) -> Vectors:
        """As the encoder's own `encode`, which spends more time on the way to the tokenizer than in it."""
        import torch

        with self._lock:
            rows = [encoding.ids for encoding in self._tokenizer.encode_batch(texts)]
        with torch.inference_mode():
            batches = [rows[start : start + self._batch] for start in range(0, len(rows), self._batch)]
            vectors: Vectors = torch.cat([self._forwarded(batch) for batch in batches]).numpy()
        return vectors

    def _forwarded(self, batch: list[list[int]]) -> Any:
        if self._recorded is not None:
            from alimark._recording import NotRecordable

            try:
                return self._recorded(batch)
            except NotRecordable:  # MPNet, for one, finds its position buckets on the CPU; seen at the first text
                self._recorded = None
        return self._plainly(batch)

    def _plainly(self, batch: list[list[int]]) -> Any:
        import torch

        longest = max(map(len, batch))
        ids = np.full((len(batch), longest), self._padding, dtype=np.int64)
        mask = np.zeros_like(ids)
        for i, row in enumerate(batch):
            ids[i, : len(row)], mask[i, : len(row)] = row, 1
        return self._forward(*(torch.from_numpy(part).to(self._encoder.device) for part in (ids, mask))).cpu()

    def _forward(self, ids: Any, mask: Any) -> Any:
        import torch

        answer = self._encoder({"input_ids": ids, "attention_mask": mask})
        return torch.nn.functional.normalize(answer["sentence_embedding"], dim=1)


def load_embedder(
    name: str,
    *,
    backend: Literal["auto", "onnx", "torch"] = "auto",
    device: str | None = None,
    threads: int | None = None,
) -> LoadedEmbedder:
    """An embedder by store name, folder or hub id.

    "auto" is onnxruntime on the CPU where alimark can write the model's graph, else sentence-transformers; a
    device other than "cpu" asks for the latter. `threads`: of onnxruntime, by default as many as this process has cores.
    """
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


def _find(name: str) -> _Model:
    from alimark.models import store

    folder = store.resolve(name)
    if not folder.is_dir():
        raise ModelError(f"{name} is not an embedder: {folder} is no folder in sentence-transformers form")
    modules = _graph.read_modules(folder)
    weights = (modules[0][1] if modules else folder) / "model.safetensors"
    if not weights.is_file():
        raise ModelError(f"{folder} holds no model.safetensors, the only form of weights alimark loads")
    digest = _hash_once(weights, store.home() / "fingerprints")
    # The same weights have the same name however they were asked for, so that a key finds them elsewhere.
    known = (entry.name for entry in store.entries().values() if entry.weights.sha256 == digest)
    return _Model(folder, weights, next(known, name), f"sha256:{digest}")


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


def _open_session(model: _Model, recipe: _graph.Recipe, threads: int | None) -> Any:
    """A session on the cached graph, which is written first where it is missing or broken."""
    from alimark.models import store

    prefix = model.fingerprint.removeprefix("sha256:")[:16]
    folder = store.home() / "onnx" / f"{prefix}-{recipe.digest}-v{_graph.VERSION}"
    path = folder / _graph.GRAPH_FILE
    if path.exists():
        with suppress(Exception):  # onnxruntime's errors share no base; whatever is wrong, a new graph is the cure
            return _session(path, threads)
    try:
        _graph.write_graph(recipe, model.weights, folder)
    except OSError as error:
        raise ModelError(f"cannot write the graph of {model.name}: {error}; set ALIMARK_HOME elsewhere") from error
    try:
        return _session(path, threads)
    except Exception as error:
        raise ModelError(f"onnxruntime cannot run {path}: {error}; delete {folder} and try again") from error


def _session(path: Path, threads: int | None) -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    # Stated, because the default counts the machine's cores and not those this process may use.
    own = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 0
    options.intra_op_num_threads = own if threads is None else threads
    # The graph is written as an optimiser would leave it.
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    # Waiting threads that spin take the cores from whoever else runs here.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def _open_tokenizer(folder: Path, max_tokens: int) -> Any:
    from tokenizers import Tokenizer

    path = folder / "tokenizer.json"
    if not path.is_file():
        raise ModelError(f"{folder} holds no tokenizer.json; fetch the model again")
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises bare Exception
        raise ModelError(f"{path} cannot be read ({error}); fetch the model again") from error
    # The file carries settings of its own (128 tokens for the store's models), which upstream overrides too.
    tokenizer.no_padding()
    tokenizer.enable_truncation(max_tokens)
    return tokenizer


@contextmanager
def _no_progress_bar() -> Iterator[None]:
    """transformers draws one while it loads weights, whoever calls it."""
    from transformers.utils import logging

    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


def _refuse_pickles(folder: Path) -> None:
    """A pickle can run code; sentence-transformers falls back on one where safetensors are missing."""
    for _, module in _graph.read_modules(folder):
        if not (module / "model.safetensors").exists():
            pickles = [file for suffix in ("bin", "pt", "pkl") for file in module.glob(f"*.{suffix}")]
            if pickles:
                raise ModelError(f"{pickles[0]} is a pickle, which can run code; convert it to safetensors")


def _cut(text: str, reach: int) -> str:
    """At most `reach` characters, ended between words where there is a blank, in valid Unicode."""
    if len(text) > reach:
        head = text[:reach]
        words = head.rsplit(None, 1)
        # The last word may go on behind the cut; half of it would be another word.
        text = words[0] if len(words) > 1 and not head[-1].isspace() else head
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:  # half a surrogate pair, as broken JSON leaves behind
            text = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


def _parts(texts: list[str]) -> Iterator[list[str]]:
    """The texts in order, in runs of bounded size."""
    part: list[str] = []
    size = 0
    for text in texts:
        if part and size + len(text) > _ENCODE_CHARACTERS:
            yield part
            part, size = [], 0
        part.append(text)
        size += len(text)
    if part:
        yield part


def _batches(lengths: list[int]) -> Iterator[NDArray[np.intp]]:
    """Indices in batches of like length, longest first so that memory peaks at once."""
    order = np.argsort([-length for length in lengths], kind="stable")
    start, padding = 0, 0
    for place, i in enumerate(order):
        longest = max(1, lengths[order[start]])
        padding += longest - lengths[i]
        if place > start and (padding > BATCH_PADDING or longest * (place - start + 1) > BATCH_TOKENS):
            yield order[start:place]
            start, padding = place, 0
    if len(order):
        yield order[start:]
