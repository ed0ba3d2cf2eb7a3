"""The GPU engine: draws of all calling threads in one continuous batch, driven by one background thread.

An iteration of the thread admits new sequences, launches the next decode steps, and while the GPU computes them looks at the
tokens of the steps before: sequences whose sentence is over free their slot. So no caller waits for another's long sentence,
and the GPU does not wait for Python as long as an iteration's Python work takes less time than its decode steps.
"""

from __future__ import annotations

import atexit
import sys
import threading
import weakref
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

from alimark.errors import LLMError
from alimark.llm.base import Draw, Sampling, StopCondition
from alimark.llm.torch.continuous_batch import ContinuousBatch, PendingTokens
from alimark.llm.torch.kv_cache import KVLayout
from alimark.llm.torch.sequences import SequenceTexts, Vocabulary

if TYPE_CHECKING:
    from transformers import PreTrainedModel

# Decode steps between two looks at the tokens: a look costs Python time, and a step beyond a sentence's end is wasted.
_STEPS_PER_CALL = 8
_MAX_SLOTS, _MAX_CONTEXTS, _MIN_CONTEXT_TOKENS = 4096, 256, 512
_BATCH_SIZES = (8, 32, 64, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096)
"""Numbers of slots that a decode step goes over; each has its own CUDA graph."""
_IDLE_SECONDS = 5.0  # after which the thread ends
_SWITCH_SECONDS = 0.0001


@dataclass(frozen=True, slots=True)
class TokenRequest:
    """A prompt as token ids, and for each draw of it the key of its random numbers."""

    prompt: list[int]
    keys: list[int]


@dataclass(eq=False)
class _Call:
    """One call of `Engine.draw`, whose caller waits for the future."""

    requests: Sequence[TokenRequest]
    sampling: Sampling
    stop: StopCondition
    future: Future[list[list[Draw]]] = field(default_factory=Future)
    cancelled: bool = False

    def __post_init__(self) -> None:
        self.draws: list[dict[int, Draw]] = [{} for _ in self.requests]
        self.missing = sum(len(request.keys) for request in self.requests)

    def add(self, request: int, number: int, draw: Draw) -> None:
        self.draws[request][number] = draw
        self.missing -= 1
        if not self.missing and not self.future.done():
            self.future.set_result([[draws[i] for i in range(len(draws))] for draws in self.draws])


@dataclass(eq=False)
class _Context:
    """A place for a context in the KV cache: the tokens it holds, and how many sequences still use it."""

    place: int
    ids: list[int] = field(default_factory=list)
    users: int = 0
    last_used: int = 0

    def common_prefix(self, ids: list[int]) -> int:
        """How many tokens at the start are in the cache already; the last token of a context never is."""
        n = min(len(self.ids), len(ids)) - 1
        if n < 1 or self.ids[:4] != ids[:4]:
            return 0
        if self.ids[:n] == ids[:n]:
            return n
        differing = np.flatnonzero(np.array(self.ids[:n]) != np.array(ids[:n]))
        return int(differing[0])


@dataclass(frozen=True, slots=True)
class _Sequence:
    """One draw of a call, waiting or in a slot."""

    call: _Call
    request: int
    number: int
    context: _Context

    @property
    def key(self) -> int:
        return self.call.requests[self.request].keys[self.number]


@dataclass(eq=False)
class _LaunchedSteps:
    """Decode steps that were launched: the sequence in each slot, and the column in which its tokens will arrive."""

    tokens: PendingTokens
    sequences: list[_Sequence | None]
    column: NDArray[np.int64]


class Engine:
    """Draws for any number of threads.

    control: special tokens, which are masked while the model must not end its text. max_slots: the most sequences at a time.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        layout: KVLayout,
        vocabulary: Vocabulary,
        control: torch.Tensor,
        *,
        max_slots: int | None = None,
    ) -> None:
        self._model, self._layout, self._vocabulary, self._control = model, layout, vocabulary, control
        self._max_slots = max_slots or _MAX_SLOTS
        self._queue: deque[tuple[_Call, int]] = deque()  # with the index of a request
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._batch: ContinuousBatch | None = None
        cuda = layout.device.type == "cuda"
        self._stream = torch.cuda.Stream(layout.device) if cuda else None  # type: ignore[no-untyped-call]
        self._closed = False
        atexit.register(_close, weakref.ref(self))
        self._reset()

    def _reset(self) -> None:
        self._waiting: deque[_Sequence] = deque()
        self._slots: list[_Sequence | None] = []
        self._context_of = np.empty(0, dtype=np.int64)  # of each slot, -1 for none
        self._size = 0
        self._launched: _LaunchedSteps | None = None
        self._contexts: list[_Context] = []
        self._iteration = 0

    def draw(self, requests: Sequence[TokenRequest], sampling: Sampling, stop: StopCondition) -> list[list[Draw]]:
        """Sample the draws of each request and wait until all of them have ended."""
        call = _Call(requests, sampling, stop)
        if not call.missing:
            return [[] for _ in requests]
        with self._changed:
            if self._closed:
                raise LLMError("the model was closed; load it again")
            self._queue.extend((call, i) for i in range(len(requests)))
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="alimark-gpu", daemon=True)
                self._thread.start()
            self._changed.notify()
        try:
            return call.future.result()
        finally:
            call.cancelled = True  # after an interruption, its draws are no longer needed

    def close(self) -> None:
        """End the thread. CUDA must not be in use when the interpreter exits."""
        with self._changed:
            self._closed = True
            thread = self._thread
            self._changed.notify()
        if thread is not None:
            thread.join(10)
        self._fail(LLMError("the model was closed; load it again"))

    # The rest runs in the background thread.

    def _run(self) -> None:
        stream = nullcontext() if self._stream is None else torch.cuda.stream(self._stream)
        with torch.inference_mode(), stream, _short_switch_interval():
            while self._wait_for_work():
                try:
                    self._iterate()
                except Exception as error:  # every caller that waits must be told, whatever the error is
                    self._fail(error)

    def _wait_for_work(self) -> bool:
        with self._changed:
            if not self._busy:
                self._changed.wait_for(lambda: self._queue or self._closed, _IDLE_SECONDS)
            if self._closed or not self._busy:
                self._thread = None
                return False
            return True

    @property
    def _sampling_now(self) -> bool:
        return bool(self._waiting or self._launched or any(self._slots[: self._size]))

    @property
    def _busy(self) -> bool:
        return bool(self._queue or self._sampling_now)

    def _fail(self, error: Exception) -> None:
        with self._changed:
            sequences = [sequence for sequence in (*self._waiting, *self._slots) if sequence]
            calls = {call for call, _ in self._queue} | {sequence.call for sequence in sequences}
            self._queue.clear()
        self._batch = None
        self._reset()
        for call in calls:
            if not call.future.done():
                call.future.set_exception(error)

    def _iterate(self) -> None:
        self._admit()
        if self._batch is None:  # all calls in the queue were cancelled
            return
        self._fill_slots()
        before, self._launched = self._launched, self._launch() if any(self._slots[: self._size]) else None
        if before is not None:
            self._collect(before)

    def _admit(self) -> None:
        """Prefill the contexts of as many requests as there is room for."""
        admitted: list[tuple[_Call, int]] = []
        while first := self._next_request():
            if not self._fits(*first):
                if admitted or self._sampling_now:
                    break  # its batch is allocated once those before it have ended
                self._allocate(_context_tokens(*first), first[0].sampling)
            if len(admitted) >= self._free_contexts():
                break
            if len(self._waiting) + sum(len(call.requests[i].keys) for call, i in admitted) >= self._max_slots:
                break
            with self._changed:
                admitted.append(self._queue.popleft())
        if admitted:
            self._prefill(admitted)

    def _next_request(self) -> tuple[_Call, int] | None:
        with self._changed:
            while self._queue and self._queue[0][0].cancelled:
                self._queue.popleft()
            return self._queue[0] if self._queue else None

    def _free_contexts(self) -> int:
        return sum(not context.users for context in self._contexts)

    def _fits(self, call: _Call, request: int) -> bool:
        """Whether the request can be sampled in the batch as it is."""
        batch = self._batch
        return batch is not None and (
            batch.sampling == call.sampling and batch.context_tokens >= _context_tokens(call, request)
        )

    def _allocate(self, context_tokens: int, sampling: Sampling) -> None:
        self._batch = None  # frees its memory for the new one
        self._reset()
        slots, contexts = self._capacity(context_tokens, sampling.max_tokens)
        self._batch = ContinuousBatch(
            self._model,
            self._layout,
            slots=slots,
            contexts=contexts,
            context_tokens=context_tokens,
            sampling=sampling,
            control=self._control,
            stream=self._stream,
            steps_per_call=min(_STEPS_PER_CALL, sampling.max_tokens),
        )
        self._texts = SequenceTexts(self._vocabulary, slots, sampling.max_tokens, wait_for_next_word=True)
        self._slots = [None] * slots
        self._context_of = np.full(slots, -1, dtype=np.int64)
        self._contexts = [_Context(place) for place in range(contexts)]

    def _capacity(self, context_tokens: int, max_tokens: int) -> tuple[int, int]:
        """Slots and contexts that fit into GPU memory: KV caches, and 24 bytes a slot for each token of the vocabulary."""
        if self._layout.device.type != "cuda":
            return self._max_slots, _MAX_CONTEXTS
        torch.cuda.empty_cache()
        free = 0.4 * torch.cuda.mem_get_info(self._layout.device)[0]
        context_bytes = context_tokens * self._layout.bytes_per_token
        contexts = max(1, min(_MAX_CONTEXTS, int(free / 3 / context_bytes)))
        slot_bytes = (max_tokens + 1) * self._layout.bytes_per_token + 24 * self._vocabulary.size
        most = min(int((free - contexts * context_bytes) / slot_bytes), self._max_slots)
        return max([size for size in _BATCH_SIZES if size <= most], default=_BATCH_SIZES[0]), contexts

    def _prefill(self, admitted: Sequence[tuple[_Call, int]]) -> None:
        assert self._batch is not None
        self._iteration += 1
        contexts, cached = [], []
        for call, i in admitted:
            request = call.requests[i]
            context, prefix = self._choose_context(request.prompt)
            context.ids, context.users, context.last_used = request.prompt, len(request.keys), self._iteration
            self._waiting.extend(_Sequence(call, i, number, context) for number in range(len(request.keys)))
            contexts.append(context)
            cached.append(prefix)
        self._batch.prefill([context.place for context in contexts], [context.ids for context in contexts], cached)

    def _choose_context(self, prompt: list[int]) -> tuple[_Context, int]:
        """A free context, and how many tokens of the prompt its cache holds, copied from another context if that has more."""
        assert self._batch is not None
        free = [context for context in self._contexts if not context.users]
        # Contexts that were admitted in this iteration are not prefilled yet.
        candidates = [
            (context.common_prefix(prompt), not context.users, -context.place, context)
            for context in self._contexts
            if context.last_used < self._iteration
        ]
        prefix, _, _, best = max(candidates, default=(0, True, 0, free[0]))
        if prefix and not best.users:
            return best, prefix
        oldest = min(free, key=lambda context: context.last_used)
        if prefix:
            self._batch.copy_prefix(best.place, oldest.place, prefix)
        return oldest, prefix

    def _fill_slots(self) -> None:
        """Give free slots to waiting sequences, and move sequences to lower slots if a smaller batch is then enough."""
        assert self._batch is not None
        self._drop_cancelled()
        live = self._size - self._slots[: self._size].count(None)
        needed = min(self._batch.slots, live + len(self._waiting))
        self._resize(next(size for size in (*_BATCH_SIZES, self._batch.slots) if size >= needed))
        free = [slot for slot in range(self._size) if self._slots[slot] is None][: len(self._waiting)]
        if not free:
            return
        new = [self._waiting.popleft() for _ in free]
        for slot, sequence in zip(free, new, strict=True):
            self._slots[slot], self._context_of[slot] = sequence, sequence.context.place
            self._texts.start(slot, sequence.context.ids, sequence.call.stop)
        self._batch.start(free, [sequence.context.place for sequence in new], [sequence.key for sequence in new])

    def _drop_cancelled(self) -> None:
        if any(sequence.call.cancelled for sequence in self._waiting):
            for sequence in self._waiting:
                sequence.context.users -= sequence.call.cancelled
            self._waiting = deque(sequence for sequence in self._waiting if not sequence.call.cancelled)
        for slot, running in enumerate(self._slots[: self._size]):
            if running is not None and running.call.cancelled:
                self._release(slot, running)

    def _release(self, slot: int, sequence: _Sequence) -> None:
        self._slots[slot], self._context_of[slot] = None, -1
        sequence.context.users -= 1

    def _resize(self, size: int) -> None:
        assert self._batch is not None
        size = min(size, self._batch.slots)
        old = [slot for slot in range(size, self._size) if self._slots[slot] is not None]
        self._size = size
        if not old:
            return
        new = [slot for slot in range(size) if self._slots[slot] is None][: len(old)]
        for source, target in zip(old, new, strict=True):
            self._texts.move(source, target)
            self._slots[target], self._slots[source] = self._slots[source], None
            self._context_of[target], self._context_of[source] = self._context_of[source], -1
            if self._launched is not None:  # its tokens will arrive in the old column
                sequences, column = self._launched.sequences, self._launched.column
                sequences[target], sequences[source] = sequences[source], None
                column[target] = column[source]
        self._batch.move(old, new)

    def _launch(self) -> _LaunchedSteps:
        assert self._batch is not None
        tokens = self._batch.advance(self._size, self._context_of)
        return _LaunchedSteps(tokens, self._slots[: self._size], np.arange(self._size))

    def _collect(self, launched: _LaunchedSteps) -> None:
        """Wait for the tokens of launched steps; sequences that have ended free their slots."""
        tokens = launched.tokens.wait()
        same = [
            slot for slot, (then, now) in enumerate(zip(launched.sequences, self._slots, strict=False))
            if now is not None and then is now
        ]  # fmt: skip
        if not same:
            return
        slots = np.array(same)
        for slot, draw in self._texts.append(slots, tokens[:, launched.column[slots]].T).items():
            sequence = self._slots[slot]
            assert sequence is not None
            self._release(slot, sequence)
            sequence.call.add(sequence.request, sequence.number, draw)


@contextmanager
def _short_switch_interval() -> Iterator[None]:
    """Lets threads switch sooner. Every CUDA call of the engine's thread gives the interpreter away, and by default it would
    get it back from a busy thread after 5 ms, as long as several decode steps take."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(min(before, _SWITCH_SECONDS))
    try:
        yield
    finally:
        sys.setswitchinterval(before)


def _context_tokens(call: _Call, request: int) -> int:
    """The room in a context that a request needs: a power of two, so that few sizes occur."""
    return max(_MIN_CONTEXT_TOKENS, 1 << (len(call.requests[request].prompt) - 1).bit_length())


def _close(reference: weakref.ref[Engine]) -> None:
    if engine := reference():
        engine.close()
