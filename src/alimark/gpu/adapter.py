"""The adapter for safetensors or GGUF weights on PyTorch, through transformers.

The model's own layers run, but attention and sampling are alimark's. The draws of all calls are one batch (`engine`). A context
is prefilled once: the keys and values of a text's beginning stay in the batch until the text goes on. A draw's random numbers
depend on the seed and the draw's number alone, so a draw does not depend on the rest of the batch, except for rounding: in
float32 that hardly ever changes a draw, in bfloat16 (the default on a GPU) it changes some.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from alimark.core.llm._shared import as_dicts, checked_prompt, with_bos
from alimark.core.llm.base import Draw, Message, Request, Sampling, StopCondition, TorchModel
from alimark.core.models.torch_weights import load
from alimark.errors import LLMError, MissingExtra
from alimark.gpu.sequences import Vocabulary

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


class Transformers:
    """A causal language model from a safetensors folder, a hub id or a GGUF file. Safe to share by threads.

    Neither pickled weights nor code that comes with a model is ever loaded.

    Args:
        source: The folder, hub id or file.
        device: A PyTorch device; default, "cuda" if there is a GPU, else "cpu".
        name: The model's name in records; default, the last part of `source`.
        dtype: The name of a PyTorch type; default, "bfloat16" on a GPU, else "float32".
        add_bos: A token id to put in front of prompts if the tokenizer does not do so itself.
        rows: The most draws that are sampled at a time.

    Raises:
        MissingExtra: PyTorch or transformers is not installed.
        LLMError: The weights cannot be loaded, or the model cannot be sampled in batches.
    """

    def __init__(
        self,
        source: str | Path,
        *,
        device: str | None = None,
        name: str | None = None,
        dtype: str | None = None,
        add_bos: int | None = None,
        rows: int | None = None,
    ) -> None:
        try:
            import torch
            import transformers  # noqa: F401
        except ImportError:
            raise MissingExtra("transformers", "transformers") from None
        from alimark.gpu.engine import Engine
        from alimark.gpu.preparation import prepare

        self.name = name or Path(source).stem
        self._device = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
        kind = dtype or ("bfloat16" if self._device.type == "cuda" else "float32")
        self._tokenizer, self._model = load(source, getattr(torch, kind))
        self._model.to(self._device).eval()
        self._add_bos = add_bos
        self._ends = _end_ids(self._tokenizer, self._model)
        self._vocabulary = Vocabulary(self._tokenizer, self._ends, self._model.get_output_embeddings().weight.shape[0])
        # A model that must not end its message would begin the next one instead, so no control token is sampled.
        special = self._ends | set(self._tokenizer.all_special_ids)
        control = sorted(token for token in special if token < self._vocabulary.size)
        self._control = torch.tensor(control, dtype=torch.long, device=self._device)
        self._layout = prepare(self._model, self.name)
        self._engine = Engine(self._model, self._layout, self._vocabulary, self._control, max_slots=rows)
        # As many threads keep the GPU's slots filled while the texts of others are split and embedded.
        self.max_concurrency, self.preferred_batch = (8, 8) if self._device.type == "cuda" else (1, 4)
        # With one sequence a request, it takes many requests to fill a GPU.
        self.single_draw_batching = (2, 128) if self._device.type == "cuda" else (1, 4)
        self.limits: tuple[str, ...] = ()
        self.bias_stays_here = True

    def torch_model(self) -> TorchModel:
        """The model itself; see `OffersTorchModel`."""
        return TorchModel(self._tokenizer, self._model, self._ends, self._control)

    def __repr__(self) -> str:
        return f"<Transformers {self.name} on {self._device}>"

    def draw(self, requests: Sequence[Request], sampling: Sampling, stop: StopCondition) -> list[list[Draw]]:
        """Sample the draws of each request; see `LLM.draw`."""
        from alimark.gpu.engine import TokenRequest
        from alimark.gpu.sampling import rng_key

        asked = [
            TokenRequest(
                self._prompt(request, sampling),
                [rng_key(request.seed, request.first + i) for i in range(request.count)],
                request.bias,
            )
            for request in requests
        ]
        return self._engine.draw(asked, sampling, stop)

    def encode(self, text: str) -> list[int]:
        """The tokens of a text; see `TakesBias`."""
        ids: list[int] = self._tokenizer(text, verbose=False, add_special_tokens=False)["input_ids"]
        return ids

    def count_tokens(self, request: Request) -> int:
        """Count the tokens of the request as the model reads it, chat template included."""
        return len(self.token_ids(request))

    def token_ids(self, request: Request) -> list[int]:
        """The tokens of the request as the model reads it, chat template included."""
        ids: list[int]
        if request.messages:
            text = self._chat(request.messages) + request.context
            ids = self._tokenizer(text, verbose=False, add_special_tokens=False)["input_ids"]
        else:
            ids = self._tokenizer(request.context, verbose=False)["input_ids"]
        return with_bos(ids, self._add_bos)

    def _prompt(self, request: Request, sampling: Sampling) -> list[int]:
        context_tokens = getattr(self._model.config, "max_position_embeddings", None)
        return checked_prompt(
            self.token_ids(request), sampling.max_tokens, context_tokens, "use a model with a longer context"
        )

    def _chat(self, messages: Sequence[Message]) -> str:
        if not self._tokenizer.chat_template:
            raise LLMError(f"{self.name} has no chat template; use the prompt style `continue`, or a chat model")
        text: str = self._tokenizer.apply_chat_template(as_dicts(messages), tokenize=False, add_generation_prompt=True)
        return text


def _end_ids(tokenizer: PreTrainedTokenizerBase, model: PreTrainedModel) -> frozenset[int]:
    configured = model.generation_config.eos_token_id
    ends = configured if isinstance(configured, list) else [configured]
    return frozenset(end for end in (*ends, tokenizer.eos_token_id) if end is not None)
