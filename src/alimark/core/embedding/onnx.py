"""Sentence embeddings by onnxruntime on the CPU, without torch."""

from __future__ import annotations

import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from alimark.core._util.paths import cache_folder
from alimark.core._util.process import available_cpus
from alimark.core._util.progress import Line
from alimark.core.embedding import onnx_graph
from alimark.core.embedding.base import (
    MAX_CHARACTERS,
    LoadedEmbedder,
    ModelFiles,
    Vectors,
    cut_text,
    length_batches,
    text_parts,
)
from alimark.errors import ModelError

_MANY = 1000
"""So many texts or more are embedded with a line of progress."""


class OnnxEmbedder(LoadedEmbedder):
    """Runs the ONNX graph that alimark writes from the weights, on the CPU.

    In int8 the inputs of a multiplication are rounded for a whole batch, so that the vector of a text depends a little on the
    texts beside it.
    """

    backend = "onnx"
    precisions = onnx_graph.PRECISIONS

    def __init__(
        self, model: ModelFiles, threads: int | None = None, precision: onnx_graph.GraphPrecision = "float32"
    ) -> None:
        super().__init__(model)
        self.precision = precision
        self._threads = threads
        self._others: dict[str, OnnxEmbedder] = {precision: self}
        self._loading = threading.Lock()
        recipe = onnx_graph.read_recipe(model.folder)
        self.dimension = recipe.hidden
        self._padding = recipe.padding
        self._session = _open_session(model, recipe, threads, precision)
        self._tokenizer = _open_tokenizer(model.weights.parent, recipe.max_tokens)

    def with_precision(self, precision: onnx_graph.GraphPrecision) -> OnnxEmbedder:
        """The same model in another precision, which is loaded when it is first asked for."""
        with self._loading:
            if precision not in self._others:
                other = OnnxEmbedder(self._model, self._threads, precision)
                other._others, other._loading = self._others, self._loading
                self._others[precision] = other
            return self._others[precision]

    def _embed_window(self, texts: list[str], vectors: Vectors) -> None:
        tokens = self._encode([cut_text(text, MAX_CHARACTERS) for text in texts])
        done = 0
        with Line("embedding", len(texts), wanted=len(texts) >= _MANY) as line:
            for batch in length_batches([len(ids) for ids in tokens]):
                vectors[batch] = self._run([tokens[i] for i in batch])
                line.at(done := done + len(batch))

    def _encode(self, texts: list[str]) -> list[NDArray[np.int32]]:
        return [
            np.array(encoding.ids, dtype=np.int32)
            for part in text_parts(texts)
            for encoding in self._tokenizer.encode_batch_fast(part)
        ]

    def _run(self, tokens: list[NDArray[np.int32]]) -> Vectors:
        length = max(1, *map(len, tokens))  # a tokenizer without special tokens returns no token for ""
        ids = np.full((len(tokens), length), self._padding, dtype=np.int32)
        mask = np.zeros_like(ids)
        for row, text_ids in enumerate(tokens):
            ids[row, : len(text_ids)] = text_ids
            mask[row, : len(text_ids)] = 1
        vectors: Vectors = self._session.run(["vectors"], {"ids": ids, "mask": mask})[0]
        return vectors


def _open_session(
    model: ModelFiles, recipe: onnx_graph.GraphRecipe, threads: int | None, precision: onnx_graph.GraphPrecision
) -> Any:
    """Opens the cached graph, and writes it first where it is missing or broken."""
    prefix = model.fingerprint.removeprefix("sha256:")[:16]
    form = "" if precision == "float32" else f"-{precision}"
    folder = cache_folder() / "onnx" / f"{prefix}-{recipe.digest}-v{onnx_graph.VERSION}{form}"
    path = folder / onnx_graph.GRAPH_FILE
    if path.exists():
        with suppress(Exception):  # onnxruntime's errors have no common base; a new graph is written whatever is wrong
            return _session(path, threads)
    try:
        onnx_graph.write_graph(recipe, model.weights, folder, precision)
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
    # The default of onnxruntime counts all CPUs of the machine, not those that this process may use.
    options.intra_op_num_threads = available_cpus() if threads is None else threads
    # The graph is already written in the form that an optimiser would produce.
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    # Threads that spin while they wait take CPU time from other processes.
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
    # The file has its own length limit (128 tokens for the store's models), which upstream overrides, too.
    tokenizer.no_padding()
    tokenizer.enable_truncation(max_tokens)
    return tokenizer
