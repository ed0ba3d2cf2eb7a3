"""Safetensors or GGUF weights on PyTorch, through transformers.

The model's own layers run, but attention and sampling are alimark's: all draws of all requests of a call go through the
model together (see _lanes), on a GPU also those of other calls (see _engine), and a context is read once, also over several
calls: what was read of a text's beginning is kept until the text goes on. A draw's random numbers depend on the seed and
the draw's number alone, so draws do not depend on what else is in the batch, up to the rounding of a batch's logits: in
float32 that hardly ever moves a draw, in bfloat16 (the default on a GPU) it moves some.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from alimark.errors import ContextFull, LLMError, MissingExtra
from alimark.llm.torch.sequences import Rows, Vocabulary
from alimark.llm.torch.weights import load
from alimark.llm.base import Draw, Over, Request, Sampling, Turn

if TYPE_CHECKING:
    import torch

    from alimark.llm.torch.engine import Engine
    from alimark.llm.torch.static_batch import Lanes, Shape

ROWS = 256
"""Draws in one batch on a CPU; more are sampled in turns."""

# So many callers at a time keep the GPU's slots filled while others' texts are split and embedded.
_CALLERS_CUDA, _TOGETHER_CUDA = 8, 8

# Below this share of live rows the batch is made smaller, which copies what they hold.
_COMPACT_BELOW = 0.85

_READ_TOKENS = 16_384  # in one go
_KEPT_CONTEXTS = 512
_KEPT_BYTES = 4 << 30


class Transformers:
    """A causal language model from a safetensors folder, a hub id or a GGUF file. Safe to share by threads.

    Neither pickled weights nor code that comes with a model is ever loaded.
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
        self._name = name or Path(source).stem
        self._device = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
        kind = dtype or ("bfloat16" if self._device.type == "cuda" else "float32")
        self._tokenizer, self._model = load(source, getattr(torch, kind))
        self._model.to(self._device).eval()
        self._add_bos = add_bos
        ends = _end_ids(self._tokenizer, self._model)
        self._vocabulary = Vocabulary(self._tokenizer, ends, self._model.get_output_embeddings().weight.shape[0])
        # A model kept from ending its turn would open the next one: no control token is text.
        special = ends | set(self._tokenizer.all_special_ids)
        control = sorted(token for token in special if token < self._vocabulary.size)
        self._control = torch.tensor(control, dtype=torch.long, device=self._device)
        self._shape = _prepare(self._model, self._name)
        self._rows = rows or ROWS
        self._contexts = _Contexts()
        self._turn = threading.Lock()
        self._engine: Engine | None = None
        if self._device.type == "cuda":
            from alimark.llm.torch.engine import Engine

            self._engine = Engine(self._model, self._shape, self._vocabulary, self._control, rows=rows)

    @property
    def name(self) -> str:
        return self._name

    @property
    def callers(self) -> int:
        return _CALLERS_CUDA if self._engine else 1

    @property
    def together(self) -> int:
        return _TOGETHER_CUDA if self._engine else 4

    @property
    def singles(self) -> tuple[int, int]:
        # A row for each request: it takes many to fill a GPU.
        return (2, 128) if self._engine else (1, self.together)

    @property
    def limits(self) -> tuple[str, ...]:
        return ()

    def __repr__(self) -> str:
        return f"<Transformers {self.name} on {self._device}>"

    def draw(self, requests: Sequence[Request], sampling: Sampling, over: Over) -> list[list[Draw]]:
        """The draws of each request, in draw order. Raises ContextFull where a context leaves no room."""
        import torch

        prompts = [self._prompt(request, sampling) for request in requests]
        if self._engine:
            from alimark.llm.torch.engine import Part

            return self._engine.draw(
                [
                    Part(prompt, [_key(request.seed, request.first + i) for i in range(request.count)])
                    for prompt, request in zip(prompts, requests, strict=True)
                ],
                sampling,
                over,
            )
        draws: list[list[Draw]] = [[] for _ in requests]
        with self._turn, torch.inference_mode():
            for parts in _batches(requests, prompts, self._rows):
                for part, found in zip(parts, self._draw(parts, sampling, over), strict=True):
                    draws[part.at] += found
        return draws

    def count_tokens(self, request: Request) -> int:
        """Tokens that the request is read as, chat template included."""
        return len(self._ids(request))

    def _ids(self, request: Request) -> list[int]:
        ids: list[int]
        if request.turns:
            text = self._chat(request.turns) + request.context
            ids = self._tokenizer(text, verbose=False, add_special_tokens=False)["input_ids"]
        else:
            ids = self._tokenizer(request.context, verbose=False)["input_ids"]
        if self._add_bos is not None and ids[:1] != [self._add_bos]:
            ids.insert(0, self._add_bos)
        return ids

    def _prompt(self, request: Request, sampling: Sampling) -> list[int]:
        ids = self._ids(request)
        if not ids:
            raise LLMError("the context is empty; give the model a prompt to continue")
        most = getattr(self._model.config, "max_position_embeddings", None)
        if most is not None and len(ids) + sampling.max_tokens > most:
            raise ContextFull(
                f"{len(ids)} tokens of context leave no room for {sampling.max_tokens} more in the {most} "
                "that this model takes; write fewer sentences, or use a model with a longer context"
            )
        return ids

    def _chat(self, turns: Sequence[Turn]) -> str:
        if not self._tokenizer.chat_template:
            raise LLMError(f"{self.name} has no chat template; use the prompt style `continue`, or a chat model")
        messages = [{"role": turn.role, "content": turn.content} for turn in turns]
        text: str = self._tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        return text

    def _draw(self, parts: list[_Part], sampling: Sampling, over: Over) -> list[list[Draw]]:
        """All draws of a batch that fits."""
        from alimark.llm.torch.static_batch import Lanes

        contexts, counts = [part.prompt for part in parts], [part.count for part in parts]
        room = max(map(len, contexts)) + 1
        lanes = Lanes(self._model, self._shape, len(parts), sum(counts), room, sampling.max_tokens)
        logits = self._read(lanes.memory, contexts, self._contexts.starts(contexts))
        keys = [_key(part.seed, part.first + i) for part in parts for i in range(part.count)]
        tokens = lanes.start(contexts, counts, keys, logits, sampling, self._control)
        rows = Rows(self._vocabulary, sum(counts), sampling.max_tokens, patient=False)
        of = np.repeat(np.arange(len(parts)), counts)
        for place, part in enumerate(of.tolist()):
            rows.begin(place, contexts[part], over)
        found = _sample(rows, lanes, tokens, of)
        self._contexts.keep(contexts, lanes.memory)
        draws = iter(found[place] for place in range(sum(counts)))
        return [[next(draws) for _ in range(count)] for count in counts]

    def _read(self, memory: torch.Tensor, contexts: list[list[int]], found: list[_Start]) -> torch.Tensor:
        """Fill `memory` with the contexts' keys and values; the logits behind each."""
        import torch

        for i, start in enumerate(found):
            if start.length:
                memory[:, :, i, :, : start.length] = start.memory[:, :, :, : start.length]
        logits: list[torch.Tensor] = []
        new = [ids[start.length :] for ids, start in zip(contexts, found, strict=True)]
        at = 0
        while at < len(contexts):
            n = max(1, _READ_TOKENS // max(map(len, new)))
            part = slice(at, at + n)
            logits.append(read(self._model, memory[:, :, part], new[part], [start.length for start in found[part]]))
            at += n
        return torch.cat(logits)


def read(model: Any, memory: torch.Tensor, new: Sequence[Sequence[int]], starts: Sequence[int]) -> torch.Tensor:
    """Run the contexts' new tokens, which begin at `starts`, through the model; the logits behind each context.

    Rows are filled up on the left, so that all end together; what fills them up goes to the memory's last place, which
    belongs to no context.
    """
    import torch

    from alimark.llm.torch.static_batch import Reading

    longest, trash = max(map(len, new)), memory.shape[4] - 1
    ids, places = [], []
    for tokens, start in zip(new, starts, strict=True):
        gap = longest - len(tokens)
        ids.append([tokens[0]] * gap + list(tokens))
        places.append([trash] * gap + list(range(start, start + len(tokens))))
    at = torch.tensor(places, device=memory.device)
    answer = model(
        torch.tensor(ids, device=memory.device),
        position_ids=at.masked_fill(at == trash, 0),
        use_cache=False,
        logits_to_keep=1,
        memory=Reading(memory, at),
    )
    logits: torch.Tensor = answer.logits[:, -1]
    return logits


@dataclass(frozen=True, slots=True)
class _Part:
    """Draws `first` to `first + count` of the request at place `at`."""

    at: int
    prompt: list[int]
    seed: int
    first: int
    count: int


def _batches(requests: Sequence[Request], prompts: list[list[int]], most: int) -> Iterator[list[_Part]]:
    """The requests, in order, in batches of at most `most` draws."""
    batch: list[_Part] = []
    room = most
    for at, (request, prompt) in enumerate(zip(requests, prompts, strict=True)):
        done = 0
        while done < request.count:
            n = min(room, request.count - done)
            batch.append(_Part(at, prompt, request.seed, request.first + done, n))
            done, room = done + n, room - n
            if not room:
                yield batch
                batch, room = [], most
    if batch:
        yield batch


def _sample(rows: Rows, lanes: Lanes, tokens: NDArray[np.int64], of: NDArray[np.int64]) -> dict[int, Draw]:
    """Every row's draw, by its number; rows and lanes shrink together. `of`: each row's context."""
    lane = np.arange(len(of))  # the row in each lane
    going = np.ones(len(of), dtype=np.bool_)
    found: dict[int, Draw] = {}
    while True:
        found |= rows.take(lane[going], tokens[going])
        going = np.array([row not in found for row in lane.tolist()])
        if not going.any():
            return found
        if going.mean() < _COMPACT_BELOW:
            lane = lane[going]
            lanes.keep(np.flatnonzero(going).tolist(), np.bincount(of[lane], minlength=of[-1] + 1).tolist())
            going = np.ones(len(lane), dtype=np.bool_)
        tokens = lanes.advance()


def _key(seed: int, number: int) -> int:
    """Of a draw's random numbers."""
    digest = hashlib.blake2b(f"{seed} {number}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big", signed=True)


@dataclass(frozen=True, slots=True)
class _Start:
    """How much of a context was read before, and what the model remembers of it."""

    length: int = 0
    memory: Any = None


class _Contexts:
    """What the model remembers of contexts it has read, the latest ones."""

    def __init__(self) -> None:
        self._kept: dict[tuple[int, ...], torch.Tensor] = {}
        self._lock = threading.Lock()

    def starts(self, contexts: Sequence[Sequence[int]]) -> list[_Start]:
        with self._lock:
            kept = [(np.array(ids), memory) for ids, memory in self._kept.items()]
        return [self._longest(np.array(context), kept) for context in contexts]

    def _longest(self, context: NDArray[np.int64], kept: list[tuple[NDArray[np.int64], Any]]) -> _Start:
        best = _Start()
        for ids, memory in kept:
            n = min(len(ids), len(context) - 1)  # the last token is always read: its logits are wanted
            if n <= best.length or ids[0] != context[0]:
                continue
            differ = np.flatnonzero(ids[:n] != context[:n])
            if (length := int(differ[0]) if len(differ) else n) > best.length:
                best = _Start(length, memory)
        return best

    def keep(self, contexts: Sequence[Sequence[int]], memory: torch.Tensor) -> None:
        with self._lock:
            for i, context in enumerate(contexts):
                ids = tuple(context)
                self._kept.pop(ids, None)
                self._kept[ids] = memory[:, :, i, :, : len(ids)].clone()
            size = sum(part.nbytes for part in self._kept.values())
            while self._kept and (len(self._kept) > _KEPT_CONTEXTS or size > _KEPT_BYTES):
                size -= self._kept.pop(next(iter(self._kept))).nbytes


def _prepare(model: Any, name: str) -> Shape:
    """Put alimark's attention in the model's place and see that the model computes what it did before."""
    import torch

    from alimark.llm.torch import continuous_batch as _slots
    from alimark.llm.torch import fused_layers as _fusing
    from alimark.llm.torch import static_batch as _lanes

    ids = [list(range(3, 14)), list(range(5, 12))]
    try:
        with torch.inference_mode():
            expected = _logits(model, ids)
            model.set_attn_implementation("eager")
            bound = max(_BOUNDS[model.dtype.itemsize], 3 * _off(_logits(model, ids), expected))
            _lanes.install(model)
            measure = _lanes.Measure()
            model(torch.tensor([[3]], device=model.device), use_cache=False, memory=measure)
            [(heads, width)] = set(measure.shapes)
            shape = _lanes.Shape(len(measure.shapes), heads, width, model.dtype, model.device)
            if model.device.type == "cuda":
                _fusing.fuse(model, _slots.kernels(width))
                if _off(_slots_test(model, shape, ids), expected) > bound:
                    _fusing.part_attention(model)
                found = _slots_test(model, shape, ids)
            else:
                found = _lanes_test(model, shape, ids)
    except (TypeError, ValueError, RuntimeError, AttributeError, KeyError) as error:
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        raise LLMError(f"{name} is built in a way that cannot be sampled here: {reason}") from error
    off = _off(found, expected)
    if not off <= bound:
        raise LLMError(
            f"{name} attends in a way of its own (its logits differ by {off:.2g}), and sampling it in batches here would be "
            "wrong; serve it with vLLM or another server and use `openai:ADDRESS#MODEL`"
        )
    return shape


_BOUNDS = {4: 2e-3, 2: 0.05}
"""By the bytes of a number. Sixteen bits round differently in another order of sums, on tokens without sense by much: the
model's own two ways of attending tell by how much. Another way of attending is wrong by as much as the logits."""


def _logits(model: Any, ids: list[list[int]]) -> list[torch.Tensor]:
    """As the model gives them by itself."""
    import torch

    return [model(torch.tensor([one], device=model.device), use_cache=False).logits[0, -1].float() for one in ids]


def _off(found: list[torch.Tensor], expected: list[torch.Tensor]) -> float:
    return max(float((a - b).norm() / b.norm()) for a, b in zip(found, expected, strict=True))


_OWN = 3  # tokens at the end that the tests take one by one, as if they had been sampled


def _lanes_test(model: Any, shape: Shape, ids: list[list[int]]) -> list[torch.Tensor]:
    """The logits behind `ids`."""
    import torch

    from alimark.llm.torch.static_batch import Lanes

    contexts = [one[:-_OWN] for one in ids]
    lanes = Lanes(model, shape, len(ids), len(ids), 16, _OWN + 1)
    logits = read(model, lanes.memory, contexts, [0] * len(ids))
    nothing = torch.tensor([], dtype=torch.long, device=model.device)
    lanes.start(contexts, [1] * len(ids), [0] * len(ids), logits, Sampling(), nothing)
    for n in range(_OWN):
        logits = lanes.force(torch.tensor([one[n - _OWN] for one in ids], device=model.device))
    return list(logits.float())


def _slots_test(model: Any, shape: Shape, ids: list[list[int]]) -> list[torch.Tensor]:
    """The same, as a GPU does it."""
    import torch

    from alimark.llm.torch.continuous_batch import Slots

    nothing, places = torch.tensor([], dtype=torch.long, device=model.device), list(range(len(ids)))
    sampling = Sampling(max_tokens=_OWN + 1)
    slots = Slots(
        model,
        shape,
        rows=len(ids),
        contexts=len(ids),
        tokens=16,
        sampling=sampling,
        control=nothing,
        stream=None,
        ahead=1,
    )
    slots.read(places, [one[:-_OWN] for one in ids], [0] * len(ids))
    slots.begin(places, places, places)
    slots.lay_out(len(ids), np.array(places))
    logits = slots.logits()
    for n in range(_OWN):
        slots.write(torch.tensor([one[n - _OWN] for one in ids], device=model.device))
        logits = slots.logits()
    return list(logits.float())


def _end_ids(tokenizer: Any, model: Any) -> frozenset[int]:
    configured = model.generation_config.eos_token_id
    ends = configured if isinstance(configured, list) else [configured]
    return frozenset(end for end in (*ends, tokenizer.eos_token_id) if end is not None)
