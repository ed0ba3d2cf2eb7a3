"""Draws that come and go in one running batch, for the transformers adapter on a GPU.

Every draw in progress has a slot of its own, whatever its context and however far it is, so a slot whose sentence has ended
can be given to the next draw while the others go on. The step from one token to the next, sampling included, is recorded
as a CUDA graph and replayed: launching the hundreds of small kernels of a small model one by one would take longer than
running them.

A context but for its last token is read into `memory`; the last token is each draw's own first, so that starting a draw takes
nothing but its numbers. Without a GPU everything is done with plain products, step by step: that is the twin for tests.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from alimark._util.cuda_graphs import record
from alimark.llm.torch.static_batch import Reading, Shape
from alimark.llm.torch.sampling import LEAST_TOP_P, choose, scores, tries_for, uniform_numbers
from alimark.llm.base import Sampling

_READERS = 8  # contexts read at a time
_READ_MOST = 512  # tokens of each

Given = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
"""What a reading is given: tokens, their positions, and the contexts' places in memory."""


def kernels(width: int) -> Any:
    """The module of GPU kernels, or None where there is no Triton, which PyTorch for CUDA brings along on most systems."""
    if width < 16 or width & (width - 1):
        return None
    try:
        from alimark.llm.torch import kernels as _kernel
    except ImportError:
        return None
    return _kernel


class Slots:
    """`rows` draws of at most `steps` tokens each, of `contexts` contexts of less than `tokens` tokens."""

    def __init__(
        self,
        model: Any,
        shape: Shape,
        *,
        rows: int,
        contexts: int,
        tokens: int,
        sampling: Sampling,
        control: torch.Tensor,
        stream: torch.cuda.Stream | None,
        ahead: int,
    ) -> None:
        self._model, self._shape, self.sampling, self._control = model, shape, sampling, control
        self.rows, self.contexts, self.tokens, self.steps, self.ahead = (
            rows,
            contexts,
            tokens,
            sampling.max_tokens,
            ahead,
        )
        device = shape.device
        self._cuda = device.type == "cuda"
        self._stream = stream
        self._kernels = kernels(shape.width) if self._cuda else None
        self.memory = shape.empty(contexts, tokens)
        # A draw that has ended may run on until somebody looks, but never beyond its room.
        self._own = shape.empty(rows, self.steps + 1)
        self._ids = self._whole(contexts, tokens)
        self._sampled = self._whole(rows, self.steps + 2)
        self._keys, self._texts, self._step = (self._whole(rows) for _ in range(3))
        self._lengths = self._whole(contexts)
        self._latest = self._whole(ahead, rows)
        self._at = torch.arange(max(tokens, self.steps + 1), device=device)
        self._blocks: torch.Tensor | None = None
        self._out: torch.Tensor | None = None
        self._live = rows
        self._recorded: dict[int, torch.cuda.CUDAGraph] = {}  # by the number of slots
        self._readers: dict[int, tuple[torch.cuda.CUDAGraph, Given]] = {}  # by the number of tokens
        self._pool: Any = None

    def _whole(self, *size: int) -> torch.Tensor:
        """Whole numbers."""
        return torch.zeros(size, dtype=torch.long, device=self._shape.device)

    # Contexts and draws come

    def read(self, places: Sequence[int], contexts: Sequence[Sequence[int]], known: Sequence[int]) -> None:
        """Read contexts, of which the first `known[i]` tokens are in memory already, into their places."""
        width = max(map(len, contexts))
        padded = [[*ids, *[ids[0]] * (width - len(ids))] for ids in contexts]  # a token of the context counts once
        at, ids = self._upload(list(places)), self._upload(padded)
        self._ids[at] = ids[:, :1]
        self._ids[at, :width] = ids
        self._lengths[at] = self._upload([len(one) - 1 for one in contexts])
        new = [list(one[start:-1]) for one, start in zip(contexts, known, strict=True)]
        starts = list(known)
        while some := [i for i, one in enumerate(new) if one]:
            for first in range(0, len(some), _READERS):
                part = some[first : first + _READERS]
                self._run([places[i] for i in part], [new[i][:_READ_MOST] for i in part], [starts[i] for i in part])
            starts = [start + len(one[:_READ_MOST]) for one, start in zip(new, starts, strict=True)]
            new = [one[_READ_MOST:] for one in new]

    def _run(self, places: list[int], new: list[list[int]], starts: list[int]) -> None:
        """Rows are filled up on the left; what fills them up goes to the memory's last place, which belongs to no context."""
        longest, trash = max(map(len, new)), self.tokens - 1
        rows = len(new)
        if self._cuda:  # shapes of which there is a recording
            longest, rows = max(16, 1 << (longest - 1).bit_length()), _READERS
        ids = [[one[0]] * (longest - len(one)) + one for one in new]
        at = [
            [trash] * (longest - len(one)) + list(range(start, start + len(one)))
            for one, start in zip(new, starts, strict=True)
        ]
        ids += [[new[0][0]] * longest] * (rows - len(new))
        at += [[trash] * longest] * (rows - len(new))
        given = (self._upload(ids), self._upload(at), self._upload(places + places[:1] * (rows - len(new))))
        if not self._cuda:
            self._look_at(*given)
            return
        if longest not in self._readers:
            self._readers[longest] = self._record_reader(given)
        reader, mine = self._readers[longest]
        for kept, one in zip(mine, given, strict=True):
            kept.copy_(one)
        reader.replay()

    def _look_at(self, ids: torch.Tensor, at: torch.Tensor, places: torch.Tensor) -> None:
        reading = Reading(self.memory, at, places)
        at = at.masked_fill(at == self.tokens - 1, 0)
        self._model(ids, position_ids=at, use_cache=False, logits_to_keep=1, memory=reading)

    def _record_reader(self, given: Given) -> tuple[torch.cuda.CUDAGraph, Given]:
        """Of a shape; launching a reading's kernels one by one keeps Python, and with it everybody, from other work."""
        mine = (given[0].clone(), given[1].clone(), given[2].clone())
        self._look_at(*mine)  # libraries set themselves up the first time
        return self._graph(lambda: self._look_at(*mine)), mine

    def copy(self, source: int, target: int, tokens: int) -> None:
        """The first tokens of a context at another place, too."""
        self.memory[:, :, target, :, :tokens] = self.memory[:, :, source, :, :tokens]

    def begin(self, rows: Sequence[int], contexts: Sequence[int], keys: Sequence[int]) -> None:
        """New draws, each of a context that was read."""
        at, texts = self._upload(list(rows)), self._upload(list(contexts))
        ids = self._ids[texts]
        self._sampled[at] = ids[:, :1]
        self._sampled[at, 0] = ids.gather(1, self._lengths[texts][:, None])[:, 0]
        self._texts[at], self._keys[at] = texts, self._upload(list(keys))
        self._step[at] = 0

    def move(self, old: Sequence[int], new: Sequence[int]) -> None:
        """Draws to other slots."""
        source, target = self._upload(list(old)), self._upload(list(new))
        self._own[:, :, target] = self._own[:, :, source]
        for kept in (self._sampled, self._keys, self._texts, self._step):
            kept[target] = kept[source]

    def _upload(self, values: Any) -> torch.Tensor:
        """From pinned memory, so that nobody waits for the steps that the GPU is at."""
        host = torch.tensor(values, dtype=torch.long)
        return host.pin_memory().to(self._shape.device, non_blocking=True) if self._cuda else host

    # Steps

    def advance(self, size: int, texts: NDArray[np.int64]) -> Steps:
        """Sets off the next `ahead` steps of the first `size` slots. `texts`: the context of each slot, -1 for none."""
        self.lay_out(size, texts)
        if not self._cuda:
            for number in range(self.ahead):
                self._move(number)
        else:
            if size not in self._recorded:
                self._record(size)
            self._recorded[size].replay()
        return Steps(self._latest[:, :size], self._stream)

    def lay_out(self, size: int, texts: NDArray[np.int64]) -> None:
        """Which draws there are, and which of them an attention program takes: a few of one context."""
        self._live = size
        if not self._kernels:
            return
        if self._blocks is None:
            groups = self._groups()
            per = max(1, self._kernels.QUERIES // groups)
            device = self._shape.device
            self._blocks = torch.full((self.rows // per + self.contexts, per), -1, dtype=torch.int32, device=device)
            room = (self.rows, self._shape.heads * groups, self._shape.width)
            self._out = torch.zeros(room, dtype=self._shape.dtype, device=device)
        table = blocks(texts[:size], self._blocks.shape[1], self._block_count(size))
        self._blocks[: len(table)].copy_(torch.from_numpy(table).pin_memory(), non_blocking=True)

    def _groups(self) -> int:
        groups: int = self._model.config.get_text_config().num_attention_heads // self._shape.heads
        return groups

    def _block_count(self, size: int) -> int:
        assert self._blocks is not None
        return size // self._blocks.shape[1] + min(self.contexts, size)

    def _record(self, size: int) -> None:
        if not self._recorded:
            # Libraries set themselves up at the first step, which a recording does not allow.
            saved = self._sampled.clone(), self._step.clone()
            self._move(0)
            self._sampled.copy_(saved[0])
            self._step.copy_(saved[1])

        def steps() -> None:
            for number in range(self.ahead):
                self._move(number)

        self._recorded[size] = self._graph(steps)

    def _graph(self, work: Callable[[], None]) -> torch.cuda.CUDAGraph:
        graph = record(work, self._stream, self._pool)
        self._pool = graph.pool()
        return graph

    def _move(self, number: int) -> None:
        live = self._live
        found = self._sample(self.logits())
        self._latest[number, :live] = found
        self.write(found)

    def logits(self) -> torch.Tensor:
        """Behind the last token of each draw."""
        step = self._step[: self._live]
        tokens = self._sampled[: self._live].gather(1, step[:, None])
        positions = (self._lengths[self._texts[: self._live]] + step)[:, None]
        answer = self._model(tokens, position_ids=positions, use_cache=False, memory=self)
        logits: torch.Tensor = answer.logits[:, -1]
        return logits

    def write(self, tokens: torch.Tensor) -> None:
        """The next token of each draw."""
        step = self._step[: self._live]
        self._sampled[: self._live].scatter_(1, step[:, None] + 1, tokens[:, None])
        step.add_(1).clamp_(max=self.steps)

    def _sample(self, logits: torch.Tensor) -> torch.Tensor:
        live, top_p = self._live, self.sampling.top_p
        # What was not sampled yet is filled with a token of the context, which counts once.
        seen = torch.cat([self._ids[self._texts[:live]], self._sampled[:live]], dim=1)
        numbers = uniform_numbers(self._keys[:live], self._step[:live, None], tries_for(top_p))
        found = scores(logits, seen, self.sampling, self._control)
        if self._kernels and top_p >= LEAST_TOP_P:
            chosen: torch.Tensor = self._kernels.choose(found, top_p, numbers)
            return chosen
        return choose(torch.softmax(found, dim=1), top_p, numbers)

    # Attention

    @property
    def turns(self) -> bool:
        """Whether queries and keys may be left to be turned to their positions here."""
        return self._kernels is not None

    def attend(
        self,
        layer: int,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        scale: float,
        window: int | None,
        softcap: float | None,
        turn: tuple[torch.Tensor, torch.Tensor] | None = None,
    ) -> torch.Tensor:
        """query: (rows, heads * groups, 1, width); key, value: (rows, heads, 1, width)."""
        if self._kernels and softcap is None and self._blocks is not None and self._out is not None:
            live, mine, shared = self._live, self._own[layer], self.memory[layer]
            count = self._block_count(live)
            found: torch.Tensor = self._kernels.attend(
                query[:, :, 0], key[:, :, 0], value[:, :, 0], turn, shared, mine,
                self._blocks[:count], self._texts, self._lengths, self._step, scale, window, self._out[:live],
            )  # fmt: skip
            return found[:, None]
        return self._attend_plainly(layer, query, key, value, scale, window, softcap)

    def _attend_plainly(
        self,
        layer: int,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        scale: float,
        window: int | None,
        softcap: float | None,
    ) -> torch.Tensor:
        live, heads, width = self._live, self._shape.heads, self._shape.width
        rows, step, texts = self._at_rows(live), self._step[:live], self._texts[:live]
        mine = self._own[layer, :, :live]
        mine[0][rows, :, step], mine[1][rows, :, step] = key[:, :, 0], value[:, :, 0]
        keys, values = (torch.cat([self.memory[layer, i, texts], mine[i]], dim=2) for i in (0, 1))
        scores = (query.view(live, heads, -1, width) * scale) @ keys.transpose(2, 3)
        if softcap is not None:
            scores = torch.tanh(scores / softcap) * softcap
        lengths, now = self._lengths[texts][:, None], step[:, None]
        own = self._at[: self.steps + 1]
        shared = self._at[: self.tokens]
        hidden = [shared >= lengths, own > now]
        if window is not None:
            hidden = [hidden[0] | (shared <= lengths + now - window), hidden[1] | (own <= now - window)]
        weights = scores.masked_fill_(torch.cat(hidden, dim=1)[:, None, None], -torch.inf).softmax(dim=3)
        return (weights @ values).reshape(live, 1, -1, width)

    def _at_rows(self, live: int) -> torch.Tensor:
        return torch.arange(live, device=self._shape.device)


def blocks(texts: NDArray[np.int64], per: int, count: int) -> NDArray[np.int32]:
    """Slots by context, `per` to a row of `count`, filled up with -1. `texts`: the context of each slot, -1 for none."""
    table = np.full((count, per), -1, dtype=np.int32)
    slots = np.flatnonzero(texts >= 0)
    if not len(slots):
        return table
    order = slots[np.argsort(texts[slots], kind="stable")]
    ordered = texts[order]
    starts = np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]])
    sizes = np.diff(np.r_[starts, len(ordered)])
    within = np.arange(len(ordered)) - np.repeat(starts, sizes)
    rows_of = -(-sizes // per)
    first = np.cumsum(rows_of) - rows_of
    table[np.repeat(first, sizes) + within // per, within % per] = order
    return table


class Steps:
    """Tokens on their way from the GPU: (steps, slots)."""

    def __init__(self, latest: torch.Tensor, stream: torch.cuda.Stream | None) -> None:
        self._event: torch.cuda.Event | None = None
        if stream is None:
            self._host = latest.clone()
        else:
            self._host = torch.empty(latest.shape, dtype=latest.dtype, pin_memory=True)
            self._host.copy_(latest, non_blocking=True)
            self._event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._event.record(stream)

    def wait(self) -> NDArray[np.int64]:
        if self._event is not None:
            self._event.synchronize()
        found: NDArray[np.int64] = self._host.numpy()
        return found
