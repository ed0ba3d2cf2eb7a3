"""How a text reads: its perplexity under an oracle, how much it repeats itself, how different several answers are."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from alimark.errors import MissingExtra

if TYPE_CHECKING:
    import torch

# The most logits at a time, a gigabyte in float32: a long text has more of them than a small model has weights.
_LOGITS = 1 << 28

_WORD = re.compile(r"\w+")


class Oracle:
    """A causal language model that reads texts: a store name, a folder, a GGUF file or a hub id.

    float32 on a CPU, bfloat16 on a GPU, whose rounding moves a perplexity a little. `device` is PyTorch's name of one; a GPU
    is taken where there is one.
    """

    def __init__(self, name: str | Path, device: str = "") -> None:
        try:
            import torch
            import transformers  # noqa: F401
        except ImportError:
            raise MissingExtra("transformers", "transformers") from None
        from alimark.llm import known_llm
        from alimark.llm.torch.weights import load

        known = known_llm(str(name))
        self.name = Path(name).name
        self._device = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
        dtype = torch.bfloat16 if self._device.type == "cuda" else torch.float32
        self._tokenizer, model = load(_weights(name), dtype)
        self._model = model.to(self._device).eval()
        config = model.config.get_text_config()
        self._context: int | None = getattr(config, "max_position_embeddings", None)
        self._most_tokens = max(1, _LOGITS // model.get_output_embeddings().weight.shape[0])
        self._front = _front(self._tokenizer, known.add_bos if known else None)

    def __repr__(self) -> str:
        return f"<Oracle {self.name} on {self._device}>"

    def perplexities(self, pairs: Sequence[tuple[str, str]], *, batch: int = 8) -> list[float]:
        """Of the text of each (prompt, text): how many tokens the model wavers between, on geometric average.

        The text is read as it is written: behind the prompt with a blank between, unless the prompt ends in a line break.
        Tokens of the prompt are not scored. Without a prompt the first token is scored behind the model's begin-of-text
        token, or not at all where the model has none. Where nothing is left to score, as in an empty text, it is nan.

        Prompt and text longer than the model's context are read in windows as long as the context, each half a context
        further than the one before. A token is scored in the first window that reaches it: beyond the first context,
        behind at least half a context.

        `batch`: texts of like length read together; fewer where their logits would fill the memory. It changes results by
        rounding only.
        """
        if batch < 1:
            raise ValueError(f"batch must be at least 1, not {batch}")
        losses: list[list[float]] = [[] for _ in pairs]
        spans: list[_Span] = []
        for text, (prompt, written) in enumerate(pairs):
            ids, first = self._ids(prompt, written)
            spans += (_Span(text, ids[a:b], at - a) for a, at, b in windows(len(ids), first, self._context))
        for group in _groups(spans, batch, self._most_tokens):
            first = min(span.first for span in group)
            for span, found in zip(group, self._losses([span.ids for span in group], first), strict=True):
                losses[span.text] += found[span.first - first : len(span.ids) - first].tolist()
        return [math.exp(math.fsum(one) / len(one)) if one else math.nan for one in losses]

    def _ids(self, prompt: str, text: str) -> tuple[list[int], int]:
        """Of prompt and text, and which is the first to be scored."""
        # As generation has it: the blank belongs to the text's first token.
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

    def _losses(self, rows: Sequence[list[int]], first: int) -> NDArray[np.float64]:
        """Of each row's tokens from `first` on, minus the logarithm of its probability; behind a row's end, anything.

        Rows are filled up on the right, where no token that counts can see it, so that nothing needs to be masked. A row
        with more logits than may be held at a time is read again for each part of them: with keys and values kept it would
        be read once, but models that are not all attention, as Mamba, go wrong there without a word.
        """
        import torch
        from torch.nn.functional import cross_entropy

        longest = max(map(len, rows))
        ids = torch.tensor([row + row[-1:] * (longest - len(row)) for row in rows], device=self._device)
        step = max(1, self._most_tokens // len(rows))
        found: list[torch.Tensor] = []
        with torch.inference_mode():
            for start in range(first, longest, step):
                right = ids[:, start : start + step]
                kept = right.shape[1]
                answer = self._model(ids[:, : start + kept - 1], use_cache=False, logits_to_keep=kept)
                # Row by row, since each takes as much memory again.
                rowwise = zip(answer.logits[:, -kept:], right, strict=True)
                found.append(torch.stack([cross_entropy(row.float(), to, reduction="none") for row, to in rowwise]))
        losses: NDArray[np.float64] = torch.cat(found, dim=1).cpu().numpy().astype(np.float64)
        return losses


@dataclass(frozen=True, slots=True)
class _Span:
    """Tokens of a text that are read at a time, those from `first` on to be scored."""

    text: int
    ids: list[int]
    first: int


def windows(length: int, first: int, context: int | None) -> Iterator[tuple[int, int, int]]:
    """(start, first token to be scored, end) of the windows in which tokens `first` to `length` are read."""
    context = max(2, context or length)
    start = 0
    while first < length:
        end = min(length, start + context)
        if first < end:
            yield start, first, end
            first = end
        start += context // 2


def _groups(spans: Sequence[_Span], most: int, most_tokens: int) -> Iterator[list[_Span]]:
    """Spans of like length, the longest first, so that what does not fit the memory shows at once."""
    group: list[_Span] = []
    for span in sorted(spans, key=lambda span: len(span.ids), reverse=True):
        if group and (len(group) == most or (len(group) + 1) * len(group[0].ids) > most_tokens):
            yield group
            group = []
        group.append(span)
    if group:
        yield group


def _weights(name: str | Path) -> Path:
    from alimark.models import store

    found = store.resolve(name)
    return found if found.suffix == ".gguf" else store.resolve_weights(name)


def _front(tokenizer: Any, add_bos: int | None) -> list[int]:
    """What every text begins with: tokens that the tokenizer puts first, or the one that it forgets."""
    if add_bos is not None:
        return [add_bos]
    known = tokenizer("a", return_special_tokens_mask=True)
    special = zip(known["input_ids"], known["special_tokens_mask"], strict=True)
    return [token for token, _ in takewhile(lambda pair: pair[1], special)]


def distinct(text: str, n: int = 2) -> float:
    """The share of different ones among a text's runs of `n` words; 1 where it has none. Case does not count."""
    runs = _runs(text, n)
    return len(set(runs)) / len(runs) if runs else 1.0


def repetition(text: str, n: int = 4) -> float:
    """The share of a text's runs of `n` words that came before in it; 0 where it has none."""
    return 1.0 - distinct(text, n)


def self_overlap(texts: Sequence[str], n: int = 4) -> float:
    """The share of a text's runs of `n` words that another of the texts has, too, on average over those with any.

    nan where none has any, or where there is but one text.
    """
    runs = [_runs(text, n) for text in texts]
    seen_in: dict[tuple[str, ...], int] = {}
    for one in runs:
        for run in set(one):
            seen_in[run] = seen_in.get(run, 0) + 1
    shares = [sum(seen_in[run] > 1 for run in one) / len(one) for one in runs if one]
    return math.fsum(shares) / len(shares) if shares and len(texts) > 1 else math.nan


def diversity(vectors: NDArray[np.floating[Any]]) -> float:
    """One minus the mean cosine of two rows: of the answers to one prompt. nan where there are not two."""
    rows = np.asarray(vectors, dtype=np.float64)
    count = len(rows)
    if count < 2:
        return math.nan
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    units = rows / np.where(lengths > 0, lengths, 1)
    whole = units.sum(axis=0)
    pairs = whole @ whole - (units * units).sum()
    return float(1 - pairs / (count * (count - 1)))


def _runs(text: str, n: int) -> list[tuple[str, ...]]:
    """Of `n` words each, in order."""
    if n < 1:
        raise ValueError(f"n must be at least 1, not {n}")
    words = _WORD.findall(text.lower())
    return [tuple(words[i : i + n]) for i in range(len(words) - n + 1)]
