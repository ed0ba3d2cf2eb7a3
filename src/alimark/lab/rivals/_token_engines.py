"""Engines for token-level watermarks: access to the next-token probabilities of language models.

On transformers the logits are used; prompts are padded on the left and the padding is masked. llama.cpp does not let a
watermark change the logits, but it returns the probabilities of the likeliest tokens after its own penalties, temperature and
top-p. That takes a request for each token, which is fast enough thanks to its KV cache. Other servers return only a few
probabilities and cannot be used.
"""

from __future__ import annotations

import copy
import json
import threading
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary, proxy

from alimark.core.llm._shared import checked_prompt
from alimark.core.llm.base import LLM, Message, OffersNextTokens, OffersTorchModel, Request, Sampling
from alimark.errors import LLMError
from alimark.lab.rivals.tokens import SAMPLE, TextTokenizer, fingerprint_of

if TYPE_CHECKING:
    import torch

# A nucleus seldom holds more tokens. Where it does, all tokens are sorted on transformers, and cut off on llama.cpp.
_LIKELIEST = 1024

_TRIES = 16  # of llama.cpp, until it samples a token that is no part of a character

Bias = Callable[["torch.Tensor"], "torch.Tensor"]
"""From tokens, one row for each text, to the numbers that are added to their logits."""


class TokenEngine(ABC):
    """What a token-level watermark needs of a language model."""

    ends: frozenset[int] = frozenset()  # the tokens with which the model ends a text

    def __init__(
        self, llm: OffersTorchModel | OffersNextTokens, device: torch.device, most: int, room: int | None
    ) -> None:
        self._llm, self.name, self.device = llm, llm.name, device
        self.lock = threading.Lock()  # held while a batch is generated
        self.most = most  # texts in a batch
        self._room = room

    def prompt(self, text: str, chat: bool, tokens: int) -> list[int]:
        """The tokens of a prompt, with `chat` inside the model's chat template, that leaves room for so many `tokens`."""
        # Tokens such as " The" begin with a blank; after a prompt that ends in one the model could not use them.
        messages = (Message("user", text),) if chat else ()
        ids = self._llm.token_ids(Request("" if chat else text.rstrip(" \t"), 1, 0, messages=messages))
        return checked_prompt(ids, tokens, self._room, "load the model with a longer context")

    def text(self, before: Sequence[int], ids: Sequence[int]) -> str:
        """Decodes `ids` as the continuation of `before`."""
        return self._decoded([*before, *ids])[len(self._decoded(before)) :].rstrip("\ufffd")

    @abstractmethod
    def _decoded(self, ids: Sequence[int]) -> str: ...

    @abstractmethod
    def source(self, prompts: Sequence[list[int]], sampling: Sampling) -> TorchSource | NextTokenSource:
        """Starts a batch of texts."""

    @abstractmethod
    def writes(self, tokenizer: TextTokenizer) -> bool:
        """Whether the model has this tokenizer."""


class CausalLM(TokenEngine):
    """The engine of a `Transformers` language model: it has the model's logits.

    The weights are shared with that model; attention is computed by transformers.
    """

    def __init__(self, llm: OffersTorchModel) -> None:
        self.tokenizer, model, self.ends, self.control = llm.torch_model()
        self.model = _plain(model)
        # An engine is kept as long as its model is, and must not keep it itself.
        super().__init__(proxy(llm), model.device, 1024, getattr(model.config, "max_position_embeddings", None))
        self._vocabulary = ""

    def _decoded(self, ids: Sequence[int]) -> str:
        return str(self.tokenizer.decode(list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False))

    def source(self, prompts: Sequence[list[int]], sampling: Sampling) -> TorchSource:
        return TorchSource(self, prompts, sampling)

    def writes(self, tokenizer: TextTokenizer) -> bool:
        fast = getattr(self.tokenizer, "backend_tokenizer", None)
        if fast is None:
            raise LLMError(
                f"{self.name} has no fast tokenizer, which detection needs; use a model with a tokenizer.json"
            )
        self._vocabulary = self._vocabulary or fingerprint_of(json.loads(fast.to_str()))
        return self._vocabulary == tokenizer.fingerprint


class TorchSource:
    """A batch of texts on transformers, with its KV cache."""

    def __init__(self, llm: CausalLM, prompts: Sequence[list[int]], sampling: Sampling) -> None:
        import torch
        from transformers import DynamicCache

        self._llm, self._sampling = llm, sampling
        longest = max(map(len, prompts))
        filled = [[prompt[0]] * (longest - len(prompt)) + prompt for prompt in prompts]
        lengths = torch.tensor([len(prompt) for prompt in prompts], device=llm.device)
        self._ids = torch.tensor(filled, device=llm.device)
        self._mask = (torch.arange(longest, device=llm.device) >= longest - lengths[:, None]).long()
        self._new = self._ids
        self._cache: Any = DynamicCache(config=llm.model.config)

    def candidates(self, bias: Bias | None) -> tuple[torch.Tensor, torch.Tensor]:
        """For each row the tokens of the nucleus, likeliest first, and their log-probabilities, -inf after the last.

        `bias` is added to the logits after the repetition penalty and before temperature and top-p.
        """
        import torch

        places = (self._mask.cumsum(dim=1) - 1).clamp(min=0)[:, -self._new.shape[1] :]
        answer = self._llm.model(
            self._new, attention_mask=self._mask, position_ids=places, past_key_values=self._cache, use_cache=True,
            logits_to_keep=1,
        )  # fmt: skip
        logits = self.penalised(answer.logits[:, -1].float())
        if not self._sampling.may_end:
            logits[:, self._llm.control] = -torch.inf
        if bias is not None:
            logits += bias(torch.arange(logits.shape[1], device=logits.device).expand_as(logits))
        return nucleus(logits / self._sampling.temperature, self._sampling.top_p)

    def penalised(self, logits: torch.Tensor) -> torch.Tensor:
        """Applies the repetition penalty to every token that the prompt or the text has already."""
        import torch

        penalty = self._sampling.repetition_penalty
        if penalty == 1:
            return logits.clone()
        # Prompts are padded with their own first token, which is penalised anyway.
        seen = torch.zeros_like(logits, dtype=torch.bool).scatter_(1, self._ids, True)
        return logits.where(~seen, (logits / penalty).where(logits > 0, logits * penalty))

    def take(self, tokens: torch.Tensor) -> None:
        """Appends the chosen token to each row."""
        import torch

        self._new = tokens[:, None]
        self._ids = torch.cat([self._ids, self._new], dim=1)
        self._mask = torch.cat([self._mask, self._mask.new_ones((len(self._mask), 1))], dim=1)

    def keep(self, rows: torch.Tensor) -> None:
        """Keeps only these rows, because the other texts are finished."""
        self._cache.batch_select_indices(rows)
        self._ids, self._mask, self._new = self._ids[rows], self._mask[rows], self._new[rows]


class NextTokens(TokenEngine):
    """The engine of a language model that is asked token by token, such as one on llama.cpp."""

    _llm: OffersNextTokens

    def __init__(self, llm: OffersNextTokens) -> None:
        import torch

        super().__init__(llm, torch.device("cpu"), llm.parallel, llm.context_tokens)

    def _decoded(self, ids: Sequence[int]) -> str:
        return self._llm.decode(ids)

    def source(self, prompts: Sequence[list[int]], sampling: Sampling) -> NextTokenSource:
        if sampling.may_end:
            raise LLMError(
                "on llama.cpp a token-level watermark cannot let the model end the text; leave `may_end` out"
            )
        return NextTokenSource(self._llm, prompts, sampling)

    def writes(self, tokenizer: TextTokenizer) -> bool:
        return bool(self._llm.encode(SAMPLE) == tokenizer.ids(SAMPLE).tolist())


class NextTokenSource:
    """A batch of texts that are continued token by token. Each row has a slot of the engine, which keeps its KV cache."""

    def __init__(self, llm: OffersNextTokens, prompts: Sequence[list[int]], sampling: Sampling) -> None:
        self._llm, self._sampling = llm, sampling
        self._rows = [(slot, list(prompt)) for slot, prompt in enumerate(prompts)]

    def candidates(self, bias: Bias | None) -> tuple[torch.Tensor, torch.Tensor]:
        import torch

        # The server cannot add a bias, so temperature and top-p, which come after it, are applied here.
        sampling = self._sampling if bias is None else replace(self._sampling, temperature=1.0, top_p=1.0)
        with ThreadPoolExecutor(len(self._rows)) as pool:
            likeliest = list(pool.map(lambda row: self._request(row, sampling), self._rows))
        width = max(map(len, likeliest))
        tokens = torch.tensor([[token for token, _ in row] + [0] * (width - len(row)) for row in likeliest])
        chances = torch.tensor([[chance for _, chance in row] + [0.0] * (width - len(row)) for row in likeliest])
        logs = chances.log()
        if bias is not None:
            places, best = nucleus((logs + bias(tokens)) / self._sampling.temperature, self._sampling.top_p)
            return tokens.gather(1, places), best
        return tokens, logs - logs.logsumexp(dim=1, keepdim=True)

    def _request(self, row: tuple[int, list[int]], sampling: Sampling) -> list[tuple[int, float]]:
        """The likeliest next tokens of a row and their probabilities.

        The server samples a token, too, and gives no probabilities if that is a part of a character, such as of an emoji. It
        is then asked with other seeds; where only such tokens come, their shares are taken for the probabilities.
        """
        slot, ids = row
        sampled: Counter[int] = Counter()
        for seed in range(_TRIES):
            likeliest, tokens = self._llm.next_tokens(ids, sampling, slot=slot, count=_LIKELIEST, seed=seed)
            if likeliest:
                return likeliest
            sampled.update(tokens)
        if not sampled:
            raise LLMError(
                f"{self._llm.name} gives neither probabilities nor tokens; load the model with transformers instead"
            )
        return [(token, count / sampled.total()) for token, count in sampled.most_common()]

    def take(self, tokens: torch.Tensor) -> None:
        for (_, ids), token in zip(self._rows, tokens.tolist(), strict=True):
            ids.append(token)

    def keep(self, rows: torch.Tensor) -> None:
        self._rows = [self._rows[row] for row in rows.tolist()]


_engines = threading.Lock()
_causal: WeakKeyDictionary[OffersTorchModel, CausalLM] = WeakKeyDictionary()


def engine_of(llm: LLM) -> TokenEngine:
    """The engine of a language model; raises LLMError if its token probabilities cannot be read."""
    if isinstance(llm, OffersNextTokens):
        return NextTokens(llm)
    if not isinstance(llm, OffersTorchModel):
        raise LLMError(
            f"{llm.name} does not return token probabilities, which a token-level watermark needs; load the model with "
            "transformers, e.g. `transformers:smollm2-135m`"
        )
    with _engines:
        if llm not in _causal:
            _causal[llm] = CausalLM(llm)
        return _causal[llm]


def _plain(model: Any) -> Any:
    """A copy of the model with transformers' attention. It shares all weights, so it takes hardly any memory."""
    shared = {id(part): part for part in (*model.parameters(), *model.buffers())}
    plain = copy.deepcopy(model, shared)
    for module in plain.modules():
        vars(module).pop("forward", None)  # a replaced `forward` refers to the layer of the original model
    plain.set_attn_implementation("sdpa")
    return plain


def nucleus(logits: torch.Tensor, top_p: float) -> tuple[torch.Tensor, torch.Tensor]:
    """The likeliest tokens that together have `top_p` of the probability, and their normalised log-probabilities."""
    import torch

    logs = torch.log_softmax(logits, dim=1)
    if top_p >= 1:
        every = torch.arange(logs.shape[1], device=logs.device).expand_as(logs)
        return every, logs
    for most in (min(_LIKELIEST, logs.shape[1]), logs.shape[1]):
        best, tokens = logs.topk(most, dim=1)
        before = best.exp().cumsum(dim=1) - best.exp()  # the likeliest is always kept
        kept = before < top_p
        if most == logs.shape[1] or not kept[:, -1].any():
            break
    width = int(kept.sum(dim=1).max())
    best, tokens = best[:, :width].masked_fill(~kept[:, :width], -torch.inf), tokens[:, :width]
    return tokens, best - best.logsumexp(dim=1, keepdim=True)
