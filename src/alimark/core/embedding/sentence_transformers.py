"""Sentence embeddings by sentence-transformers, on CPU or GPU."""

from __future__ import annotations

import copy
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from alimark.core.embedding import onnx_graph
from alimark.core.embedding.base import MAX_CHARACTERS, LoadedEmbedder, ModelFiles, Vectors, cut_text
from alimark.core.models.folders import read_modules
from alimark.core.models.torch_weights import quiet
from alimark.errors import MissingExtra, ModelError

if TYPE_CHECKING:
    from alimark.core.embedding.torch_encoder import GpuPrecision


class TorchEmbedder(LoadedEmbedder):
    """Runs sentence-transformers in float32, on the CPU unless `device` names another.

    On a GPU, BERT and MPNet encoders run as alimark's own `TorchEncoder`, in float32 or faster.
    """

    backend = "sentence-transformers"
    precision: GpuPrecision = "float32"

    def __init__(self, model: ModelFiles, device: str | None = None, prefix: str = "") -> None:
        """`prefix` is the instruction that begins every text, for models that leave its tokens out of the mean."""
        super().__init__(model)
        _refuse_pickles(model.folder)
        try:
            from sentence_transformers import SentenceTransformer
        except ImportError:
            raise MissingExtra("sentence-transformers", "transformers") from None
        try:
            with quiet():
                encoder = SentenceTransformer(
                    str(model.folder),
                    device=device or "cpu",
                    local_files_only=True,
                    trust_remote_code=False,
                    model_kwargs={"use_safetensors": True},
                )
            # Some files ask for half precision, which changes the vectors and crashes on some CPUs.
            self._encoder = encoder.float()
        except Exception as error:
            raise ModelError(f"sentence-transformers cannot load {model.folder}: {error}") from error
        # A copy of the fast tokenizer, because transformers changes the settings of its own at each call.
        self._tokenizer = copy.deepcopy(self._encoder.tokenizer.backend_tokenizer)
        self._tokenizer.no_padding()
        self._tokenizer.enable_truncation(self._encoder.max_seq_length)
        self._padding = self._encoder.tokenizer.pad_token_id or 0
        self._prefix_tokens = 0
        if prefix and not onnx_graph.pools_prefix(model.folder, model.name):
            self._encoder.set_pooling_include_prompt(False)
            self._prefix_tokens = self._leading_tokens(prefix)
        self._lock = threading.Lock()
        # A GPU needs large batches of similar length; a CPU gains nothing from them.
        target: Any = self._encoder.device
        self._batch, self._window = (32, 512) if target.type == "cpu" else (256, 4096)
        self._recorded: Any = None
        if target.type == "cuda" and not self._prefix_tokens:
            self._recorded = self._record(target)
        self._others: dict[str, TorchEmbedder] = {self.precision: self}
        self.dimension = int(self._started([""]).shape[1])

    @property
    def precisions(self) -> tuple[str, ...]:
        """The precisions that it offers, the fastest last: more than float32 on a GPU, where the architecture is known."""
        return ("float32", "tf32", "bfloat16") if self._recorded is not None and self._recipe() else ("float32",)

    def with_precision(self, precision: GpuPrecision) -> TorchEmbedder:
        """The same model in another precision, on the same device."""
        with self._lock:
            if precision not in self._others:
                other = copy.copy(self)
                other.precision = precision
                other._recorded = other._record(self._encoder.device)
                self._others[precision] = other
            return self._others[precision]

    def _recipe(self) -> onnx_graph.GraphRecipe | None:
        """The configuration of the encoder, or None where `TorchEncoder` does not know the architecture."""
        try:
            return onnx_graph.read_recipe(self._model.folder)
        except onnx_graph.UnknownArchitecture:
            return None

    def _record(self, device: Any) -> Any:
        """The encoder as CUDA graphs."""
        from alimark.core.embedding.cuda_graphs import RecordedEncoder
        from alimark.core.embedding.torch_encoder import TorchEncoder

        if (recipe := self._recipe()) is None:
            return RecordedEncoder(self._forward, device, self._padding, int(self._encoder.max_seq_length or 512))
        encoder = TorchEncoder(recipe, self._model.weights, device, self.precision)
        return RecordedEncoder(encoder, device, recipe.padding, recipe.max_tokens)

    def _embed_window(self, texts: list[str], vectors: Vectors) -> None:
        order = np.argsort([-len(text) for text in texts], kind="stable")
        # A GPU works on a window while the next one is tokenised; its vectors are fetched after that.
        earlier: tuple[NDArray[np.intp], Any] | None = None
        for start in range(0, len(order), self._window):
            window = order[start : start + self._window]
            started = self._started([cut_text(texts[i], MAX_CHARACTERS) for i in window])
            if earlier:
                vectors[earlier[0]] = earlier[1].cpu().numpy()
            earlier = window, started
        if earlier:
            vectors[earlier[0]] = earlier[1].cpu().numpy()

    def _started(self, texts: list[str]) -> Any:
        """The vectors on the device, which may still be computing them."""
        import torch

        # Threads may share the tokenizer: it is a copy whose settings never change.
        rows = [encoding.ids for encoding in self._tokenizer.encode_batch_fast(texts)]
        with torch.inference_mode():
            return self._forwarded(rows)

    def _forwarded(self, rows: list[list[int]]) -> Any:
        """Vectors of texts as token ids: by recorded CUDA graphs where there are any."""
        import torch

        if self._recorded is not None:
            from alimark.core.embedding.cuda_graphs import NotRecordable

            try:
                return self._recorded(rows)
            except NotRecordable:  # the encoder needs the CPU on the way; the first text shows it
                self._recorded = None
        batches = [rows[start : start + self._batch] for start in range(0, len(rows), self._batch)]
        return torch.cat([self._without_graph(batch) for batch in batches])

    def _without_graph(self, batch: list[list[int]]) -> Any:
        import torch

        longest = max(map(len, batch))
        ids = np.full((len(batch), longest), self._padding, dtype=np.int64)
        mask = np.zeros_like(ids)
        for i, row in enumerate(batch):
            ids[i, : len(row)], mask[i, : len(row)] = row, 1
        return self._forward(*(torch.from_numpy(part).to(self._encoder.device) for part in (ids, mask)))

    def _leading_tokens(self, prefix: str) -> int:
        """The number of tokens of an instruction with those before it, but without those that end a text."""
        ids = self._tokenizer.encode(prefix).ids
        special = set(self._encoder.tokenizer.all_special_ids)
        return len(ids) - int(bool(ids) and ids[-1] in special)

    def _forward(self, ids: Any, mask: Any) -> Any:
        import torch

        features = {"input_ids": ids, "attention_mask": mask}
        if self._prefix_tokens:
            features["prompt_length"] = self._prefix_tokens
        answer = self._encoder(features)
        return torch.nn.functional.normalize(answer["sentence_embedding"], dim=1)


def _refuse_pickles(folder: Path) -> None:
    """Raises ModelError for a folder with pickled weights, which sentence-transformers would load and which can run code."""
    for _, module in read_modules(folder):
        if not (module / "model.safetensors").exists():
            pickles = [file for suffix in ("bin", "pt", "pkl") for file in module.glob(f"*.{suffix}")]
            if pickles:
                raise ModelError(f"{pickles[0]} is a pickle, which can run code; convert it to safetensors")
