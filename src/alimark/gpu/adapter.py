"""The adapter for safetensors or GGUF weights on PyTorch, through transformers.

The model's own layers run, but attention and sampling are alimark's. On a CPU, all draws of a call are one batch
(`static_batch`); on a GPU, the draws of all calls are (`engine`). A context is prefilled once: the keys and values of a text's
beginning stay in a prefix cache until the text goes on. A draw's random numbers depend on the seed and the draw's number alone,
so a draw does not depend on the rest of the batch, except for rounding: in float32 that hardly ever changes a draw, in bfloat16
(the default on a GPU) it changes some.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from alimark.core.llm._shared import as_dicts, checked_prompt, with_bos
from alimark.core.llm.base import Draw, Message, Request, Sampling, StopCondition, TorchModel
from alimark.core.models.torch_weights import load
from alimark.errors import LLMError, MissingExtra
from alimark.gpu.sequences import SequenceTexts, Vocabulary

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from alimark.gpu.engine import Engine
    from alimark.gpu.static_batch import StaticBatch

_BATCH_SIZE = 256  # draws in one batch on a CPU; more are sampled one batch after the other

# Below this share of unfinished sequences the batch is made smaller, which copies their KV cache.
_COMPACT_BELOW = 0.85

_PREFILL_TOKENS = 16_384  # in one run of the model


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
        from alimark.gpu.kv_cache import PrefixCache
        from alimark.gpu.preparation import prepare

        self.name = name or Path(source).stem
        self._device = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
        kind = dtype or ("bfloat16" if self._device.type == "cuda" else "float32")
        self._tokenizer, self._model = load(source, getattr(torch, kind))
        self._model.to(self._device).eval()
        self._add_bos = add_bos
        ends = _end_ids(self._tokenizer, self._model)
        self._vocabulary = Vocabulary(self._tokenizer, ends, self._model.get_output_embeddings().weight.shape[0])
        # A model that must not end its message would begin the next one instead, so no control token is sampled.
        special = ends | set(self._tokenizer.all_special_ids)
        control = sorted(token for token in special if token < self._vocabulary.size)
        self._control = torch.tensor(control, dtype=torch.long, device=self._device)
        self._layout = prepare(self._model, self.name)
        self._batch_size = rows or _BATCH_SIZE
        self._prefixes = PrefixCache()
        self._lock = threading.Lock()
        self._engine: Engine | None = None
        if self._device.type == "cuda":
            from alimark.gpu.engine import Engine

            self._engine = Engine(self._model, self._layout, self._vocabulary, self._control, max_slots=rows)
        # As many threads keep the GPU's slots filled while the texts of others are split and embedded.
        self.max_concurrency, self.preferred_batch = (8, 8) if self._engine else (1, 4)
        # With one sequence a request, it takes many requests to fill a GPU.
        self.single_draw_batching = (2, 128) if self._engine else (1, 4)
        self.limits: tuple[str, ...] = ()

    def torch_model(self) -> TorchModel:
        """The model itself; see `OffersTorchModel`."""
        return TorchModel(self._tokenizer, self._model, self._add_bos)

    def __repr__(self) -> str:
        return f"<Transformers {self.name} on {self._device}>"

    def draw(self, requests: Sequence[Request], sampling: Sampling, stop: StopCondition) -> list[list[Draw]]:
        """Sample the draws of each request; see `LLM.draw`."""
        import torch

        from alimark.gpu.sampling import rng_key

        prompts = [self._prompt(request, sampling) for request in requests]
        keys = [[rng_key(request.seed, request.first + i) for i in range(request.count)] for request in requests]
        if self._engine:
            from alimark.gpu.engine import TokenRequest

            return self._engine.draw([TokenRequest(*pair) for pair in zip(prompts, keys, strict=True)], sampling, stop)
        draws: list[list[Draw]] = [[] for _ in requests]
        with self._lock, torch.inference_mode():
            for parts in _batches(prompts, keys, self._batch_size):
                for part, part_draws in zip(parts, self._draw_batch(parts, sampling, stop), strict=True):
                    draws[part.request] += part_draws
        return draws

    def count_tokens(self, request: Request) -> int:
        """Count the tokens of the request as the model reads it, chat template included."""
        return len(self._ids(request))

    def _ids(self, request: Request) -> list[int]:
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
            self._ids(request), sampling.max_tokens, context_tokens, "use a model with a longer context"
        )

    def _chat(self, messages: Sequence[Message]) -> str:
        if not self._tokenizer.chat_template:
            raise LLMError(f"{self.name} has no chat template; use the prompt style `continue`, or a chat model")
        text: str = self._tokenizer.apply_chat_template(as_dicts(messages), tokenize=False, add_generation_prompt=True)
        return text

    def _draw_batch(self, parts: list[_Part], sampling: Sampling, stop: StopCondition) -> list[list[Draw]]:
        """The draws of requests that fit into one batch."""
        from alimark.gpu.static_batch import StaticBatch

        contexts, counts = [part.prompt for part in parts], [len(part.keys) for part in parts]
        batch = StaticBatch(
            self._model,
            self._layout,
            contexts=len(parts),
            sequences=sum(counts),
            context_tokens=max(map(len, contexts)) + 1,
            max_tokens=sampling.max_tokens,
        )
        logits = self._prefill(batch.context_kv, contexts)
        keys = [key for part in parts for key in part.keys]
        tokens = batch.start(contexts, counts, keys, logits, sampling, self._control)
        texts = SequenceTexts(self._vocabulary, sum(counts), sampling.max_tokens, wait_for_next_word=False)
        context_of = np.repeat(np.arange(len(parts)), counts)
        texts.start(range(sum(counts)), [contexts[i] for i in context_of.tolist()], [stop] * sum(counts))
        by_sequence = _decode(texts, batch, tokens, context_of)
        self._prefixes.store(contexts, batch.context_kv)
        draws = iter(by_sequence[sequence] for sequence in range(sum(counts)))
        return [[next(draws) for _ in range(count)] for count in counts]

    def _prefill(self, kv: torch.Tensor, contexts: list[list[int]]) -> torch.Tensor:
        """Fill the KV cache with the contexts; the logits behind each of them."""
        import torch

        from alimark.gpu.attention import prefill_contexts

        prefixes = self._prefixes.longest_prefixes(contexts)
        for i, prefix in enumerate(prefixes):
            if prefix.kv is not None:
                kv[:, :, i, :, : prefix.length] = prefix.kv[:, :, :, : prefix.length]
        logits: list[torch.Tensor] = []
        rest = [ids[prefix.length :] for ids, prefix in zip(contexts, prefixes, strict=True)]
        size = max(1, _PREFILL_TOKENS // max(map(len, rest)))
        for first in range(0, len(contexts), size):
            part = slice(first, first + size)
            starts = [prefix.length for prefix in prefixes[part]]
            logits.append(prefill_contexts(self._model, kv[:, :, part], rest[part], starts))
        return torch.cat(logits)


@dataclass(frozen=True, slots=True)
class _Part:
    """Draws of one request that are in the same batch: the index of the request, its prompt, and the draws' keys."""

    request: int
    prompt: list[int]
    keys: list[int]


def _batches(prompts: list[list[int]], keys: list[list[int]], size: int) -> Iterator[list[_Part]]:
    """The draws of all requests, in order, in batches of at most `size` draws."""
    draws = [(request, key) for request, request_keys in enumerate(keys) for key in request_keys]
    for first in range(0, len(draws), size):
        by_request = itertools.groupby(draws[first : first + size], key=lambda draw: draw[0])
        yield [_Part(request, prompts[request], [key for _, key in group]) for request, group in by_request]


def _decode(
    texts: SequenceTexts, batch: StaticBatch, tokens: NDArray[np.int64], context_of: NDArray[np.int64]
) -> dict[int, Draw]:
    """Decode until all sequences have ended; the draws by sequence. The batch shrinks as sequences end."""
    sequence_of = np.arange(len(context_of))  # the sequence in each row of the batch
    live = np.ones(len(context_of), dtype=np.bool_)
    draws: dict[int, Draw] = {}
    while True:
        draws |= texts.ended(texts.append(sequence_of[live], tokens[live]))
        live = np.array([sequence not in draws for sequence in sequence_of.tolist()])
        if not live.any():
            return draws
        if live.mean() < _COMPACT_BELOW:
            sequence_of = sequence_of[live]
            counts = np.bincount(context_of[sequence_of], minlength=context_of[-1] + 1)
            batch.keep(np.flatnonzero(live).tolist(), counts.tolist())
            live = np.ones(len(sequence_of), dtype=np.bool_)
        tokens = batch.advance()


def _end_ids(tokenizer: PreTrainedTokenizerBase, model: PreTrainedModel) -> frozenset[int]:
    configured = model.generation_config.eos_token_id
    ends = configured if isinstance(configured, list) else [configured]
    return frozenset(end for end in (*ends, tokenizer.eos_token_id) if end is not None)
