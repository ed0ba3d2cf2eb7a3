"""Text written token by token in batches, with a watermark choosing the tokens.

The model runs on transformers. Prompts are filled up on the left and what fills them up is masked; a marker sees the
text's own tokens and never the prompt's or the filling, and every random number is a hash of the text's own seed and
the step, so that a text does not depend on the batch it is written in, up to the rounding of a batch's logits.
"""

from __future__ import annotations

import copy
import hashlib
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol

import numpy as np

from alimark.baselines import _prf
from alimark.errors import ContextFull, LLMError
from alimark.llm.base import LLM, Sampling
from alimark.text import DEFAULT_SPLITTER, Splitter, splitter

if TYPE_CHECKING:
    import torch

Ended = Literal["complete", "model ended", "token limit"]

_LIKELIEST = 1024  # a nucleus seldom holds more tokens; where it does, all are sorted
_STEPS_A_LOOK = 8  # splitting at every token would take longer than sampling
_COMPACT_BELOW = 0.75
_PROMPT_TOKENS = 8192  # read in one go
_CONTEXT_IDS = 8  # decoded along with a text: a tokenizer may write a first word without its space


@dataclass(frozen=True)
class Step:
    """What a marker chooses from: of each row the tokens of the nucleus, likeliest first, and their log-probabilities,
    -inf behind the last; the row's own tokens so far; a uniform number for each row."""

    tokens: torch.Tensor
    logs: torch.Tensor
    own: torch.Tensor
    uniform: torch.Tensor

    @property
    def number(self) -> int:
        return self.own.shape[1]

    def sampled(self, logs: torch.Tensor) -> torch.Tensor:
        """A token of each row by these log-probabilities, which need not add up to one."""
        import torch

        sums = torch.softmax(logs.double(), dim=1).cumsum(dim=1)
        at = (sums < self.uniform[:, None] * sums[:, -1:]).sum(dim=1, keepdim=True)
        return self.tokens.gather(1, at.clamp(max=logs.shape[1] - 1))[:, 0]


class Marker(Protocol):
    """The part of a watermark that chooses tokens, for one batch of texts: made anew for each."""

    def choose(self, step: Step) -> torch.Tensor:
        """A token for each row."""
        ...

    def keep(self, rows: torch.Tensor) -> None:
        """From now on the batch has these of its rows."""
        ...


class Unmarked:
    """Chooses by the model's probabilities alone, to compare with."""

    def choose(self, step: Step) -> torch.Tensor:
        return step.sampled(step.logs)

    def keep(self, rows: torch.Tensor) -> None:
        pass


class PerKey:
    """Texts under several keys in one batch: each key's rows go to its own marker."""

    def __init__(self, parts: Sequence[tuple[list[int], Marker]], device: Any) -> None:
        import torch

        self._parts = [(torch.tensor(rows, device=device), marker) for rows, marker in parts]

    def choose(self, step: Step) -> torch.Tensor:
        chosen = step.tokens[:, 0].clone()
        for rows, marker in self._parts:
            part = Step(step.tokens[rows], step.logs[rows], step.own[rows], step.uniform[rows])
            chosen[rows] = marker.choose(part)
        return chosen

    def keep(self, rows: torch.Tensor) -> None:
        import torch

        left = []
        for own, marker in self._parts:
            # Where each kept row was among this marker's own, and where it is now.
            was = (own[:, None] == rows[None, :]).nonzero()
            if len(was):
                marker.keep(was[:, 0])
                left.append((was[:, 1], marker))
        self._parts = left
        assert sum(len(own) for own, _ in left) == len(torch.unique(rows))


@dataclass(frozen=True)
class Length:
    """How much is written: so many sentences, or so many tokens."""

    sentences: int | None = 12
    tokens: int | None = None
    splitter: str = DEFAULT_SPLITTER

    def most(self, sampling: Sampling) -> int:
        if self.tokens is not None:
            return self.tokens
        assert self.sentences is not None
        return self.sentences * sampling.max_tokens


@dataclass(frozen=True)
class Written:
    text: str
    ids: tuple[int, ...]
    """The sampled tokens, of which the text may have been cut behind its last sentence."""
    ended: Ended
    seconds: float


class CausalLM:
    """A model that gives its logits: the tokenizer and the weights of a `Transformers` language model.

    Its layers are shared, attention is transformers' own.
    """

    def __init__(self, tokenizer: Any, model: Any, *, name: str, add_bos: int | None = None) -> None:
        import torch

        self.tokenizer, self.model, self.name = tokenizer, model, name
        self._add_bos = add_bos
        self.device = model.device
        ends = model.generation_config.eos_token_id
        ends = ends if isinstance(ends, list) else [ends]
        size = model.get_output_embeddings().weight.shape[0]
        self.ends = frozenset(end for end in (*ends, tokenizer.eos_token_id) if end is not None)
        special = self.ends | set(tokenizer.all_special_ids)
        self.control = torch.tensor(sorted(i for i in special if i < size), dtype=torch.long, device=self.device)
        self.lock = threading.Lock()

    def prompt(self, text: str, chat: bool) -> list[int]:
        if chat:
            if not self.tokenizer.chat_template:
                raise LLMError(f"{self.name} has no chat template; use the prompt style `continue`, or a chat model")
            turns = [{"role": "user", "content": text}]
            laid_out = self.tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)
            ids: list[int] = self.tokenizer(laid_out, verbose=False, add_special_tokens=False)["input_ids"]
        else:
            # A token of its own for a last blank would keep the model from its usual " The".
            ids = self.tokenizer(text.rstrip(" \t"), verbose=False)["input_ids"]
        if self._add_bos is not None and ids[:1] != [self._add_bos]:
            ids.insert(0, self._add_bos)
        if not ids:
            raise LLMError("the context is empty; give the model a prompt to continue")
        return ids

    def check_room(self, ids: Sequence[int], tokens: int) -> None:
        most = getattr(self.model.config, "max_position_embeddings", None)
        if most is not None and len(ids) + tokens > most:
            raise ContextFull(
                f"{len(ids)} tokens of prompt leave no room for {tokens} more in the {most} that this model takes; write "
                "less, or use a model with a longer context"
            )

    def text(self, before: Sequence[int], ids: Sequence[int]) -> str:
        """The text of `ids` behind `before`."""
        head = self._decoded(before)
        return self._decoded([*before, *ids])[len(head) :].rstrip("\ufffd")

    def _decoded(self, ids: Sequence[int]) -> str:
        return str(self.tokenizer.decode(list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False))


_made = threading.Lock()


def causal(llm: LLM) -> CausalLM:
    """What a token-level watermark needs of a language model, which only those on transformers can give."""
    if isinstance(llm, CausalLM):
        return llm
    from alimark.llm.transformers import Transformers

    if not isinstance(llm, Transformers):
        raise LLMError(
            f"{llm.name} runs on an engine that does not show its logits, which a token-level watermark works on; load "
            "the model with transformers, e.g. `transformers:smollm2-135m`"
        )
    with _made:
        found: CausalLM | None = getattr(llm, "_causal", None)
        if found is None:
            found = CausalLM(llm._tokenizer, _plain(llm._model), name=llm.name, add_bos=llm._add_bos)
            llm._causal = found  # type: ignore[attr-defined]
    return found


def _plain(model: Any) -> Any:
    """The same layers and the very same weights with transformers' attention: a copy that takes next to no memory."""
    shared = {id(part): part for part in (*model.parameters(), *model.buffers())}
    plain = copy.deepcopy(model, shared)
    for module in plain.modules():
        vars(module).pop("forward", None)  # what alimark put in a layer's place speaks of the layer it was put into
    plain.set_attn_implementation("sdpa")
    return plain


def seeded(seed: int) -> _prf.Words:
    """The words behind a text's random numbers."""
    drawn: _prf.Words = _prf.words(hashlib.blake2b(f"alimark/tokens/{seed}".encode(), digest_size=16).digest())[0]
    return drawn


def write(
    prompts: Sequence[list[int]],
    seeds: Sequence[int],
    llm: CausalLM,
    marker: Marker,
    length: Length,
    sampling: Sampling,
) -> list[Written]:
    """A text behind each prompt, all in one batch."""
    import torch

    steps = length.most(sampling)
    for prompt in prompts:
        llm.check_room(prompt, steps)
    with llm.lock, torch.inference_mode():
        return _Batch(prompts, seeds, llm, marker, length, sampling, steps).run()


class _Batch:
    """Row i of the tensors is text `live[i]`."""

    def __init__(
        self, prompts: Sequence[list[int]], seeds: Sequence[int], llm: CausalLM, marker: Marker, length: Length,
        sampling: Sampling, steps: int,
    ) -> None:  # fmt: skip
        import torch

        self._llm, self._marker, self._length, self._sampling, self._steps = llm, marker, length, sampling, steps
        self._prompts = prompts
        self._cut: Splitter = splitter(length.splitter)
        self._written: dict[int, Written] = {}
        self._started = time.perf_counter()
        device = llm.device
        longest = max(map(len, prompts))
        filled = [[prompt[0]] * (longest - len(prompt)) + prompt for prompt in prompts]
        self._ids = torch.tensor(filled, device=device)
        lengths = torch.tensor([len(prompt) for prompt in prompts], device=device)
        self._mask = (torch.arange(longest, device=device) >= longest - lengths[:, None]).long()
        self._own = torch.zeros((len(prompts), 0), dtype=torch.long, device=device)
        self._words = _prf.on(device, np.stack([seeded(seed) for seed in seeds]))
        self.live = list(range(len(prompts)))

    def run(self) -> list[Written]:
        from transformers import DynamicCache

        cache = DynamicCache(config=self._llm.model.config)
        logits = self._forward(self._ids, cache)
        while True:
            tokens = self._marker.choose(self._step(logits))
            self._take(tokens)
            if not (going := self._going()):
                return [self._written[i] for i in sorted(self._written)]
            if len(going) < _COMPACT_BELOW * len(self.live):
                self._compact(going, cache)
            logits = self._forward(self._own[:, -1:], cache)

    def _forward(self, ids: torch.Tensor, cache: Any) -> torch.Tensor:
        """The logits behind each row."""
        places = (self._mask.cumsum(dim=1) - 1).clamp(min=0)[:, -ids.shape[1] :]
        answer = self._llm.model(
            ids, attention_mask=self._mask, position_ids=places, past_key_values=cache, use_cache=True, logits_to_keep=1
        )
        logits: torch.Tensor = answer.logits[:, -1].float()
        return logits

    def _step(self, logits: torch.Tensor) -> Step:
        import torch

        logits = self._penalised(logits)
        if not self._sampling.may_end:
            logits[:, self._llm.control] = -torch.inf
        tokens, logs = nucleus(logits / self._sampling.temperature, self._sampling.top_p)
        number = torch.full((len(logits),), self._own.shape[1], device=logits.device)
        uniform = _prf.torch_unit(_prf.torch_hashed(self._words, number))
        return Step(tokens, logs, self._own, uniform)

    def _penalised(self, logits: torch.Tensor) -> torch.Tensor:
        """A token that prompt or text hold already is made less likely, once."""
        import torch

        penalty = self._sampling.repetition_penalty
        if penalty == 1:
            return logits.clone()
        # What fills a prompt up is its own first token, which is penalised anyway.
        seen = torch.zeros_like(logits, dtype=torch.bool).scatter_(1, self._ids, True).scatter_(1, self._own, True)
        return logits.where(~seen, (logits / penalty).where(logits > 0, logits * penalty))

    def _take(self, tokens: torch.Tensor) -> None:
        import torch

        self._own = torch.cat([self._own, tokens[:, None]], dim=1)
        self._mask = torch.cat([self._mask, self._mask.new_ones((len(self._mask), 1))], dim=1)
        done = self._own.shape[1]
        ended = [token in self._llm.ends for token in tokens.tolist()]
        look = self._length.tokens is None and (done % _STEPS_A_LOOK == 0 or done == self._steps)
        for row, text in enumerate(self.live):
            if text in self._written:
                continue
            if ended[row]:
                self._end(text, self._own[row, :-1].tolist(), "model ended")
            elif look:
                self._look(row, text)
            if done == self._steps and text not in self._written:
                self._end(text, self._own[row].tolist(), "complete" if self._length.tokens else "token limit")

    def _look(self, row: int, text: int) -> None:
        """Ends a text whose last sentence is certainly over: the one behind it has begun."""
        wanted = self._length.sentences
        assert wanted is not None
        ids = self._own[row].tolist()
        found = self._llm.text(self._prompts[text][-_CONTEXT_IDS:], ids)
        spans = self._cut.spans(found)
        if len(spans) > wanted and spans[wanted][1] - spans[wanted][0] >= 2:
            self._end(text, ids, "complete", found[: spans[wanted - 1][1]])

    def _end(self, text: int, ids: list[int], ended: Ended, found: str | None = None) -> None:
        if found is None:
            found = self._llm.text(self._prompts[text][-_CONTEXT_IDS:], ids)
        seconds = (time.perf_counter() - self._started) / len(self._prompts)
        self._written[text] = Written(found.strip(), tuple(ids), ended, seconds)

    def _going(self) -> list[int]:
        return [row for row, text in enumerate(self.live) if text not in self._written]

    def _compact(self, going: list[int], cache: Any) -> None:
        import torch

        rows = torch.tensor(going, device=self._ids.device)
        cache.batch_select_indices(rows)
        self._ids, self._mask, self._own = self._ids[rows], self._mask[rows], self._own[rows]
        self._words = self._words[rows]
        self._marker.keep(rows)
        self.live = [self.live[row] for row in going]


def nucleus(logits: torch.Tensor, top_p: float) -> tuple[torch.Tensor, torch.Tensor]:
    """The fewest likeliest tokens that hold `top_p` of the probability, likeliest first, and their log-probabilities."""
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
