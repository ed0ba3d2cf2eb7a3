"""Measures of text quality: perplexity under an oracle model, repetition, and diversity of several answers."""

import math
import re
from itertools import takewhile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from alimark.errors import MissingExtra

_MOST_TOKENS = 4096
"""The most tokens that are read: the logits of a longer text can need more memory than the model."""

_WORD = re.compile(r"\w+")


class Oracle:
    """A causal language model that computes perplexities: a store name, a folder, a GGUF file or a hub id.

    It computes in float32 on a CPU and in bfloat16 on a GPU, whose rounding changes perplexities slightly. `device` is
    PyTorch's name of a device; by default a GPU if there is one.
    """

    def __init__(self, name: str | Path, device: str = "") -> None:
        try:
            import torch
            import transformers  # noqa: F401
        except ImportError:
            raise MissingExtra("transformers", "transformers") from None
        from alimark.core.llm import known_llm
        from alimark.core.models.torch_weights import load

        known = known_llm(str(name))
        self.name = Path(name).name
        self._device = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
        dtype = torch.bfloat16 if self._device.type == "cuda" else torch.float32
        self._tokenizer, model = load(_weights(name), dtype)
        self._model = model.to(self._device).eval()
        config = model.config.get_text_config()
        self._context = min(_MOST_TOKENS, getattr(config, "max_position_embeddings", None) or _MOST_TOKENS)
        self._front = _front(self._tokenizer, known.add_bos if known else None)

    def __repr__(self) -> str:
        return f"<Oracle {self.name} on {self._device}>"

    def perplexity(self, prompt: str, text: str) -> float:
        """The perplexity of a text after its prompt; nan if there is nothing to score, as in an empty text.

        Prompt and text are joined by a blank, unless the prompt ends in a line break. Tokens of the prompt are not scored.
        Without a prompt, the first token is scored after the model's begin-of-text token, or not at all if the model has none.

        A prompt and text longer than the model's context, or than 4,096 tokens, are read up to there.
        """
        import torch
        from torch.nn.functional import cross_entropy

        ids, first = self._ids(prompt, text)
        ids = ids[: self._context]
        if first >= len(ids):
            return math.nan
        right = torch.tensor(ids[first:], device=self._device)
        left = torch.tensor([ids[:-1]], device=self._device)
        with torch.inference_mode():
            logits = self._model(left, use_cache=False, logits_to_keep=len(right)).logits[0, -len(right) :]
        losses = cross_entropy(logits.float(), right, reduction="none").tolist()
        return math.exp(math.fsum(losses) / len(losses))

    def _ids(self, prompt: str, text: str) -> tuple[list[int], int]:
        """The tokens of prompt and text, and the place of the first token to score."""
        # As in generation, the blank between them belongs to the first token of the text.
        context, text = prompt.rstrip(" \t"), text.strip()
        blank = "" if not context or context[-1].isspace() else " "
        before, whole = self._encoded(context), self._encoded(context + blank + text if text else context)
        shared = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(before, whole, strict=False)))
        front = self._front
        if not context and not front and self._tokenizer.bos_token_id is not None:
            front = [self._tokenizer.bos_token_id]
        return front + whole, max(1, len(front) + shared)

    def _encoded(self, text: str) -> list[int]:
        ids: list[int] = self._tokenizer(text, verbose=False, add_special_tokens=False)["input_ids"]
        return ids


def _weights(name: str | Path) -> Path:
    from alimark.core.models import store

    path = store.resolve(name)
    return path if path.suffix == ".gguf" else store.resolve_weights(name)


def _front(tokenizer: Any, add_bos: int | None) -> list[int]:
    """The tokens at the start of every text: those that the tokenizer adds, or the begin-of-text token that it leaves out."""
    if add_bos is not None:
        return [add_bos]
    known = tokenizer("a", return_special_tokens_mask=True)
    special = zip(known["input_ids"], known["special_tokens_mask"], strict=True)
    return [token for token, _ in takewhile(lambda pair: pair[1], special)]


def distinct(text: str, n: int = 2) -> float:
    """The share of different sequences among all sequences of `n` words in a text, without regard to case; 1 if it has none."""
    sequences = word_sequences(text, n)
    return len(set(sequences)) / len(sequences) if sequences else 1.0


def repetition(text: str, n: int = 4) -> float:
    """The share of sequences of `n` words that occurred before in the text; 0 if it has none."""
    return 1.0 - distinct(text, n)


def diversity(vectors: NDArray[np.float32] | NDArray[np.float64]) -> float:
    """One minus the mean cosine similarity of two different rows; nan for fewer than two rows."""
    rows = np.asarray(vectors, dtype=np.float64)
    if len(rows) < 2:
        return math.nan
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    cosines = (units := rows / np.where(lengths > 0, lengths, 1)) @ units.T
    return float(1 - (cosines.sum() - cosines.trace()) / (len(rows) * (len(rows) - 1)))


def word_sequences(text: str, n: int) -> list[tuple[str, ...]]:
    """The sequences of `n` words in a text, in order."""
    if n < 1:
        raise ValueError(f"n must be at least 1, but {n} was given")
    words = _WORD.findall(text.lower())
    return [tuple(words[i : i + n]) for i in range(len(words) - n + 1)]
