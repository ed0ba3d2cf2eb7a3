"""Safetensors or GGUF weights on PyTorch, through transformers.

The model's own layers run, but attention and sampling are alimark's (see _lanes): all draws of all requests of a call
go through the model together, and a context is read once, also over several calls: what was read of a text's
beginning is kept until the text goes on. A draw's random numbers depend on the seed and the draw's number alone, so
draws do not depend on what else is in the batch, up to the rounding of a batch's logits: in float32 that hardly ever
moves a draw, in bfloat16 (the default on a GPU) it moves some.
"""

from __future__ import annotations

import copy
import hashlib
import io
import os
import shutil
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, redirect_stderr
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from alimark.errors import ContextFull, LLMError, MissingExtra
from alimark.llm.base import Draw, Ended, Over, Request, Sampling, Turn
from alimark.text import STOP, STOPS

if TYPE_CHECKING:
    import torch

    from alimark.llm._lanes import Lanes, Shape

ROWS = 256
"""Draws in one batch on a CPU; more are sampled in turns."""

_ROWS_CUDA = 8192
_CALLERS_CUDA = 2  # one samples while the texts of the other are split and embedded

# Steps between two looks at what was sampled: each look halts the GPU, and each step too many is a token for nothing.
_STEPS_A_LOOK_CUDA = 4

# Below this share of live rows the batch is made smaller, which copies what they hold.
_COMPACT_BELOW = 0.85

# A token without one of these begins no sentence's end; a broken character might be one of them in part.
_MARKS = frozenset(stop[0] for stop in STOPS) | {"\ufffd"}

# Tokens behind a mark in which it is seen whether a sentence ended there: a word or two.
_WORDS_BEHIND = 8

# Tokens of the prompt decoded along with a draw: a tokenizer may write a first word without its space.
_CONTEXT_IDS = 8

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
        self._ends = _end_ids(self._tokenizer, self._model)
        # A model kept from ending its turn would open the next one: no control token is text.
        self._pieces = self._token_texts()
        self._may_end_sentence, self._is_end = self._tables()
        special = self._ends | set(self._tokenizer.all_special_ids)
        control = sorted(token for token in special if token < len(self._is_end))
        self._control = torch.tensor(control, dtype=torch.long, device=self._device)
        self._shape = _prepare(self._model, self._name)
        cuda = self._device.type == "cuda"
        self._rows = rows or (self._rows_that_fit() if cuda else ROWS)
        self._callers = _CALLERS_CUDA if cuda else 1
        self._turns = threading.Semaphore(self._callers)
        self._contexts = _Contexts()
        self._idle: list[Lanes] = []
        self._lock = threading.Lock()

    @property
    def name(self) -> str:
        return self._name

    @property
    def callers(self) -> int:
        return self._callers

    @property
    def together(self) -> int:
        return 32 if self._device.type == "cuda" else 4

    @property
    def singles(self) -> tuple[int, int]:
        # A row for each request: it takes many to fill a GPU, and one call of them fills it.
        return (1, min(256, self._rows)) if self._device.type == "cuda" else (1, self.together)

    @property
    def limits(self) -> tuple[str, ...]:
        return ()

    def __repr__(self) -> str:
        return f"<Transformers {self.name} on {self._device}>"

    def _token_texts(self) -> list[str] | None:
        """What each token adds to a text, or None where a tokenizer's text is more than its tokens' put together."""
        ordinary = self._tokenizer("a", add_special_tokens=False)["input_ids"][-1:]
        before = len(self._text(ordinary))
        pieces = [self._text([*ordinary, i])[before:] for i in range(len(self._tokenizer))]
        beyond = self._model.get_output_embeddings().weight.shape[0] - len(pieces)
        pieces += ["\ufffd"] * beyond  # some models have more rows than their tokenizer has tokens
        sample = self._tokenizer("a cat's, 12.5 (Well-known) words: they don't fit.\n\n – Yes!")["input_ids"]
        return pieces if "".join(pieces[i] for i in sample[1:]) == self._after(sample[:1], sample[1:]) else None

    def _after(self, before: list[int], ids: list[int]) -> str:
        """The text of `ids` behind `before`: a tokenizer may write a first word without its space."""
        return self._text(before + ids)[len(self._text(before)) :]

    def _tables(self) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """Of every token: whether it holds a sign that sentences end with, and whether it ends the text."""
        size = self._model.get_output_embeddings().weight.shape[0]
        texts = self._pieces or [self._text([i]) for i in range(len(self._tokenizer))]
        marks, ends = np.zeros(size, dtype=np.bool_), np.zeros(size, dtype=np.bool_)
        marks[: len(texts)] = [not _MARKS.isdisjoint(text) for text in texts[:size]]
        ends[[end for end in self._ends if end < size]] = True
        return marks, ends

    def _rows_that_fit(self) -> int:
        """Draws for which the GPU has memory: what they remember, and a few tables of the vocabulary's size for each."""
        import torch

        free, _ = torch.cuda.mem_get_info(self._device)
        a_row = 128 * self._shape.bytes_a_token + 24 * len(self._is_end)
        return max(16, min(_ROWS_CUDA, int(0.6 * free / _CALLERS_CUDA / a_row)))

    def draw(self, requests: Sequence[Request], sampling: Sampling, over: Over) -> list[list[Draw]]:
        """The draws of each request, in draw order. Raises ContextFull where a context leaves no room."""
        import torch

        prompts = [self._prompt(request, sampling) for request in requests]
        draws: list[list[Draw]] = [[] for _ in requests]
        with self._turns, torch.inference_mode():
            for parts in _batches(requests, prompts, self._rows):
                for part, found in zip(parts, self._draw(parts, sampling, over), strict=True):
                    draws[part.at] += found
        return draws

    def _prompt(self, request: Request, sampling: Sampling) -> list[int]:
        ids: list[int]
        if request.turns:
            text = self._chat(request.turns) + request.context
            ids = self._tokenizer(text, verbose=False, add_special_tokens=False)["input_ids"]
        else:
            ids = self._tokenizer(request.context, verbose=False)["input_ids"]
        if self._add_bos is not None and ids[:1] != [self._add_bos]:
            ids.insert(0, self._add_bos)
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
        counts = _grid([part.count for part in parts]) if self._device.type == "cuda" else [p.count for p in parts]
        contexts = [part.prompt for part in parts] + [parts[0].prompt] * (len(counts) - len(parts))
        found = self._contexts.starts(contexts)
        room = max(map(len, contexts)) + 1
        lanes = self._lanes(len(counts), sum(counts), room, sampling.max_tokens)
        with _stream_of(lanes):
            logits = self._read(lanes.memory, contexts, found)
            keys = [_key(part.seed, part.first + i) for part, n in zip(parts, counts, strict=False) for i in range(n)]
            keys += [0] * (sum(counts) - len(keys))
            tokens = lanes.start(contexts, counts, keys, logits, sampling, self._control)
            rows = _Rows(self, parts, counts, sampling.max_tokens, over)
            self._run(rows, lanes, tokens)
            self._contexts.keep(contexts[: len(parts)], lanes.memory)
        if lanes.graphs:
            with self._lock:
                self._idle.append(lanes)
        return rows.draws()

    def _run(self, rows: _Rows, lanes: Lanes, tokens: NDArray[np.int64]) -> None:
        """Sample until every row has ended; rows and lanes shrink together."""
        look = _STEPS_A_LOOK_CUDA if lanes.graphs else 1
        while rows.take(tokens):
            if kept := rows.shrink(lanes.graphs):
                lanes.keep(*kept)
            tokens = lanes.advance(min(look, rows.steps - rows.done))

    def _lanes(self, contexts: int, rows: int, tokens: int, steps: int) -> Lanes:
        """Lanes with enough room: on a GPU those of an earlier call, whose recorded graphs still serve."""
        from alimark.llm._lanes import Lanes

        if self._device.type != "cuda":
            return Lanes(self._model, self._shape, contexts, rows, tokens, steps)
        tokens = max(512, _power_of_two(tokens))
        with self._lock:
            for i, lanes in enumerate(self._idle):
                if (lanes.contexts, lanes.steps) == (contexts, steps) and lanes.rows >= rows and lanes.tokens >= tokens:
                    return self._idle.pop(i)
            self._idle.clear()  # their memory is wanted
        return Lanes(self._model, self._shape, contexts, rows, tokens, steps)

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

    def _text(self, ids: list[int]) -> str:
        # Asked of the tokenizer beneath, which is several times faster than asking through transformers.
        beneath = getattr(self._tokenizer, "backend_tokenizer", None)
        text: str = (beneath or self._tokenizer).decode(ids, skip_special_tokens=True)
        return text


def read(model: Any, memory: torch.Tensor, new: Sequence[Sequence[int]], starts: Sequence[int]) -> torch.Tensor:
    """Run the contexts' new tokens, which begin at `starts`, through the model; the logits behind each context.

    Rows are filled up on the left, so that all end together; what fills them up goes to the memory's last place, which
    belongs to no context.
    """
    import torch

    from alimark.llm._lanes import Reading

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


def _power_of_two(n: int) -> int:
    return 1 << (n - 1).bit_length()


def _grid(counts: list[int]) -> list[int]:
    """The same number of rows for each context, and few different numbers of both: each pair is a graph of its own."""
    return [_power_of_two(max(counts))] * _power_of_two(len(counts))


@contextmanager
def _stream_of(lanes: Lanes) -> Iterator[None]:
    import torch

    with nullcontext() if lanes.stream is None else torch.cuda.stream(lanes.stream):
        yield


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


class _Rows:
    """The draws of a batch in progress: their tokens, and which of them have ended. Row i of the lanes is `live[i]`."""

    def __init__(self, llm: Transformers, parts: list[_Part], counts: list[int], steps: int, over: Over) -> None:
        self._llm, self._parts, self._over = llm, parts, over
        self.steps, self.done = steps, 0
        self._context = np.repeat(np.arange(len(counts)), counts)
        self._ids = np.zeros((sum(counts), steps), dtype=np.int64)
        self._known: dict[int, int] = {}  # how much text was looked at
        self._since = np.full(sum(counts), steps)  # tokens since the last mark
        # Where tokens come in batches the next word is there soon, and a look that tries what might follow is saved.
        self._patient = llm._device.type == "cuda"
        self._result: dict[int, Draw] = {}
        self._before = [part.prompt[-_CONTEXT_IDS:] for part in parts]
        self._wanted = [counted for part, n in zip(parts, counts, strict=False) for counted in _first(part.count, n)]
        self._wanted += [False] * (sum(counts) - len(self._wanted))
        self.live = list(range(sum(counts)))

    def take(self, tokens: NDArray[np.int64]) -> bool:
        """Add the new tokens of all live rows; whether any goes on."""
        before, self.done = self.done, self.done + tokens.shape[1]
        self._ids[self.live, before : self.done] = tokens
        rows = [row for row in self._worth_a_look(tokens) if self._wanted[row] and row not in self._result]
        self._judge([self._look(row, before) for row in rows])
        if self.done == self.steps:
            for row in self._going():
                self._end(row, self._read(row, self.steps), self.steps, "length")
        return any(True for _ in self._going())

    def _worth_a_look(self, tokens: NDArray[np.int64]) -> list[int]:
        """The rows that have just ended, or in which a mark stands near the end."""
        live = np.array(self.live)
        marks = self._llm._may_end_sentence[tokens]
        last = marks[:, ::-1].argmax(axis=1)
        since = np.where(marks.any(axis=1), last, self._since[live] + tokens.shape[1])
        self._since[live] = since
        look = since - tokens.shape[1] < _WORDS_BEHIND
        if self._patient and self.done < self.steps:
            look &= since >= 2  # before that the next word is not whole
        look |= self._llm._is_end[tokens].any(axis=1)
        rows: list[int] = live[look].tolist()
        return rows

    def _going(self) -> Iterator[int]:
        return (row for row in self.live if self._wanted[row] and row not in self._result)

    def _look(self, row: int, before: int) -> _Look:
        ended = np.flatnonzero(self._llm._is_end[self._ids[row, before : self.done]])
        most = before + int(ended[0]) if len(ended) else self.done
        text = self._read(row, most)
        ends = [stop.end() for stop in STOP.finditer(text, len(text) - len(text.lstrip()))]
        return _Look(row, text, ends, most, bool(len(ended)))

    def _judge(self, looks: list[_Look]) -> None:
        """End the rows whose sentence is over or whose text has ended; without a stop there is no end."""
        asked = [look for look in looks if look.stops]
        if hasattr(self._over, "ends") and self._patient:
            ends = self._over.ends([look.text for look in asked])
        else:
            ends = [self._sentence_end(look) for look in asked]
        for look, end in zip(asked, ends, strict=True):
            if end:
                # With the blank behind the mark, which tells a heading from a sentence.
                to = next((stop for stop in look.stops if stop > end), max(end, look.stops[-1]))
                self._end(look.row, look.text[:to], self._tokens_of(look.row, to, look.tokens), "sentence")
        for look in looks:
            self._known[look.row] = len(look.text)
            if look.ended and look.row not in self._result:
                self._end(look.row, look.text, look.tokens + 1, "model")

    def _sentence_end(self, look: _Look) -> int:
        text = look.text
        if self._over(text):
            if len(look.stops) == 1:  # then it is plain where
                return look.stops[0] - 1
            return next((n for n in look.stops if self._over(text[:n])), len(text) + 1) - 1
        # A sentence may be over at the mark while the start of the next word, unfinished, would leave it open.
        known = self._known.get(look.row, 0)
        new = [] if self._patient and look.tokens < self.steps else [n for n in look.stops if n > known]
        return next((n for n in new if self._over(text[:n])), 1) - 1

    def _tokens_of(self, row: int, length: int, most: int) -> int:
        """How many of the first `most` tokens it takes to write that much text."""
        if pieces := self._llm._pieces:
            lengths = np.cumsum([len(pieces[i]) for i in self._ids[row, :most].tolist()])
            return min(most, 1 + int(np.searchsorted(lengths, length)))
        low, high = max(0, most - 2 * _WORDS_BEHIND), most
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if len(self._read(row, middle)) >= length else (middle, high)
        return high

    def _read(self, row: int, tokens: int) -> str:
        ids: list[int] = self._ids[row, :tokens].tolist()
        pieces = self._llm._pieces
        text = "\ufffd" if pieces is None else "".join([pieces[i] for i in ids])
        if "\ufffd" in text:  # a character in several tokens
            text = self._llm._after(self._before[self._context[row]], ids)
        # A character cut in two by the last token is no part of the text yet.
        return text.rstrip("\ufffd")

    def _end(self, row: int, text: str, tokens: int, ended: Ended) -> None:
        self._result[row] = Draw(text, tokens, ended)

    def shrink(self, grid: bool) -> tuple[list[int], list[int]] | None:
        """The lanes to keep and their number for each context, where that makes the batch enough smaller."""
        going = set(self._going())
        contexts = self._context[self.live]
        size = int(contexts[-1]) + 1
        counts = np.bincount([self._context[row] for row in going], minlength=size).tolist()
        if grid:
            most = _power_of_two(max(1, *counts))
            if most * size == len(self.live):
                return None
            kept = self._filled_up(going, contexts, [most] * size)
            counts = [most] * size
        elif len(going) >= _COMPACT_BELOW * len(self.live):
            return None
        else:
            kept = [at for at, row in enumerate(self.live) if row in going]
        self.live = [self.live[at] for at in kept]
        return kept, counts

    def _filled_up(self, going: set[int], contexts: NDArray[np.int64], counts: list[int]) -> list[int]:
        """Lanes of the rows that go on, with enough of the ended ones to make the counts up."""
        kept: list[int] = []
        for context, n in enumerate(counts):
            lanes = np.flatnonzero(contexts == context).tolist()
            kept += sorted(lanes, key=lambda at: self.live[at] not in going)[:n]
        return kept

    def draws(self) -> list[list[Draw]]:
        """Of each part."""
        found = iter(self._result[row] for row in sorted(self._result))
        return [[next(found) for _ in range(part.count)] for part in self._parts]


@dataclass(frozen=True, slots=True)
class _Look:
    """A row's text so far, where stops end in it, how many tokens it took, and whether the model ended it there."""

    row: int
    text: str
    stops: list[int]
    tokens: int
    ended: bool


def _first(count: int, of: int) -> list[bool]:
    return [True] * count + [False] * (of - count)


def _prepare(model: Any, name: str) -> Shape:
    """Put alimark's attention in the model's place and see that the model computes what it did before."""
    import torch

    from alimark.llm import _lanes

    ids = [list(range(3, 14)), list(range(5, 12))]
    try:
        with torch.inference_mode():
            expected = [
                model(torch.tensor([one], device=model.device), use_cache=False).logits[0, -1].float() for one in ids
            ]
            _lanes.install(model)
            if model.device.type == "cuda":
                _lanes.fuse(model)
            measure = _lanes.Measure()
            model(torch.tensor([[3]], device=model.device), use_cache=False, memory=measure)
            [(heads, width)] = set(measure.shapes)
            shape = _lanes.Shape(len(measure.shapes), heads, width, model.dtype, model.device)
            found = _self_test(model, shape, ids)
    except (TypeError, ValueError, RuntimeError, AttributeError, KeyError) as error:
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        raise LLMError(f"{name} is built in a way that cannot be sampled here: {reason}") from error
    # Sixteen bits round differently in another order of sums; another way of attending is wrong by as much as the logits.
    bound = 2e-3 if model.dtype == torch.float32 else 0.3
    off = max(float((a - b).norm() / b.norm()) for a, b in zip(found, expected, strict=True))
    if not off <= bound:
        raise LLMError(
            f"{name} attends in a way of its own (its logits differ by {off:.2g}), and sampling it in batches here would be "
            "wrong; serve it with vLLM or another server and use `openai:ADDRESS#MODEL`"
        )
    return shape


def _self_test(model: Any, shape: Shape, ids: list[list[int]]) -> list[torch.Tensor]:
    """The logits behind `ids`, whose last tokens are taken one by one as if they had been sampled."""
    import torch

    from alimark.llm._lanes import Lanes

    own = 3
    contexts = [one[:-own] for one in ids]
    lanes = Lanes(model, shape, len(ids), len(ids), 16, own + 1)
    lanes.graphs = False
    logits = read(model, lanes.memory, contexts, [0] * len(ids))
    nothing = torch.tensor([], dtype=torch.long, device=model.device)
    lanes.start(contexts, [1] * len(ids), [0] * len(ids), logits, Sampling(), nothing)
    for n in range(own):
        logits = lanes.force(torch.tensor([one[n - own] for one in ids], device=model.device))
    return list(logits.float())


def _end_ids(tokenizer: Any, model: Any) -> frozenset[int]:
    configured = model.generation_config.eos_token_id
    ends = configured if isinstance(configured, list) else [configured]
    return frozenset(end for end in (*ends, tokenizer.eos_token_id) if end is not None)


def load(source: str | Path, dtype: torch.dtype) -> tuple[Any, Any]:
    """The tokenizer and the model, on the CPU, of a safetensors folder, a hub id or a GGUF file."""
    if str(source).endswith(".gguf"):
        source = _converted(Path(source))
    return _load(source, {"dtype": dtype})


def _load(source: str | Path, model_options: dict[str, Any], **options: Any) -> tuple[Any, Any]:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    safe = {"trust_remote_code": False, **options}
    with quiet():
        try:
            tokenizer = AutoTokenizer.from_pretrained(str(source), **safe)
            model = AutoModelForCausalLM.from_pretrained(str(source), use_safetensors=True, **safe, **model_options)
        except (OSError, ValueError, KeyError) as error:
            reason = next(iter(str(error).splitlines()), type(error).__name__)
            raise LLMError(f"transformers cannot load {source}: {reason}") from error
    return tokenizer, model


def _converted(path: Path) -> Path:
    """The folder of safetensors made from a GGUF file; transformers takes minutes to read one, so it is done once."""
    from filelock import FileLock

    from alimark.models import store

    if not path.is_file():
        raise LLMError(f"there is no GGUF file at {path}")
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    root = store.home() / "converted"
    folder = root / f"{path.stem}-{digest[:16]}"
    root.mkdir(parents=True, exist_ok=True)
    with FileLock(root / f"{folder.name}.lock"):
        if folder.is_dir():
            return folder
        staging = Path(tempfile.mkdtemp(dir=root, prefix=".staging-"))
        try:
            _convert(path, staging)
            os.replace(staging, folder)
        finally:
            shutil.rmtree(staging, ignore_errors=True)
    return folder


def _convert(path: Path, folder: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    with redirect_stderr(io.StringIO()):  # its progress bar heeds no setting
        # Half precision holds what was made of a few bits a weight, in half the space.
        tokenizer, read = _load(path.parent, {"dtype": torch.float16}, gguf_file=path.name)
    config = copy.deepcopy(read.config)
    if hasattr(config, "quantization_config"):  # the numbers are plain by now, yet it would not be saved with that
        del config.quantization_config
    with quiet():
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float16)
        model.load_state_dict(read.state_dict())
        model.generation_config = read.generation_config
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)


@contextmanager
def quiet() -> Iterator[None]:
    """No progress bars and no advice on stderr."""
    from transformers.utils import logging

    bars, level = logging.is_progress_bar_enabled(), logging.get_verbosity()
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()
