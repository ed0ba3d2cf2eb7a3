"""The engine: draws of all calling threads in one continuous batch, driven by one background thread.

An iteration of the thread admits new sequences, launches the next decode steps, and while the GPU computes them takes the
tokens of the steps before. Texts in which a sentence may be over are read by other threads (and their worker processes), whose
answers a later iteration takes: sequences whose sentence is over free their slot. So no caller waits for another's long
sentence, and the GPU waits neither for reading nor for Python, as long as an iteration's Python work takes less time than its
decode steps. A sequence goes on while it is read, and what it samples meanwhile is thrown away if its sentence was over.

On a CPU, where every token costs more than reading it, an iteration launches one step, and waits for its texts to be read.
"""

from __future__ import annotations

import atexit
import sys
import threading
import weakref
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

from alimark.core.llm.base import Draw, Sampling, StopCondition, TokenBias
from alimark.errors import LLMError
from alimark.gpu.attention import KVLayout
from alimark.gpu.continuous_batch import ContinuousBatch, PendingTokens
from alimark.gpu.readers import Readers
from alimark.gpu.sequences import Look, Over, SequenceTexts, Snapshot, Vocabulary

if TYPE_CHECKING:
    from transformers import PreTrainedModel

# Decode steps between two looks at the tokens: a look costs Python time, and a step beyond a sentence's end is wasted.
_STEPS_PER_CALL = 4
_MAX_SLOTS, _MAX_CONTEXTS, _MIN_CONTEXT_TOKENS = 4096, 256, 512
_CPU_SLOTS, _CPU_BYTES = 256, 8 << 30  # bytes of KV caches, which take memory only where they are filled
_BATCH_SIZES = (8, 32, 64, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096)
"""Numbers of slots that a decode step goes over; each has its own CUDA graph."""
_IDLE_SECONDS = 5.0  # after which the thread ends
_SWITCH_SECONDS = 0.0001


@dataclass(frozen=True, slots=True)
class TokenRequest:
    """A prompt as token ids, for each draw of it the key of its random numbers, and the bias of all of them."""

    prompt: list[int]
    keys: list[int]
    bias: TokenBias | None = None


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
        self.biased = any(request.bias is not None for request in self.requests)

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


@dataclass(eq=False, slots=True)
class _Sequence:
    """One draw of a call, waiting or in a slot (-1: in none).

    reading: its text that is being read. looks: the points at which its text has still to be read, the oldest first. An end is
    taken where the first look shows it, so that a draw does not depend on how long reading takes.
    """

    call: _Call
    request: int
    number: int
    context: _Context
    slot: int = -1
    reading: Snapshot | None = None
    looks: deque[Look] = field(default_factory=deque)

    @property
    def key(self) -> int:
        return self.call.requests[self.request].keys[self.number]


@dataclass(eq=False)
class _LaunchedSteps:
    """Decode steps that were launched: the serial number of each slot's sequence, and the column of its tokens."""

    tokens: PendingTokens
    serials: NDArray[np.int64]
    column: NDArray[np.int64]


class Engine:
    """Draws for any number of threads.

    control: special tokens, which are masked while the model must not end its text. max_slots: the most sequences at a time.
    ahead: whether the next steps are launched before the tokens of those before are taken; default, on a GPU.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        layout: KVLayout,
        vocabulary: Vocabulary,
        control: torch.Tensor,
        *,
        max_slots: int | None = None,
        ahead: bool | None = None,
    ) -> None:
        self._model, self._layout, self._vocabulary, self._control = model, layout, vocabulary, control
        self._cuda = layout.device.type == "cuda"
        self._ahead = self._cuda if ahead is None else ahead
        self._max_slots = max_slots or (_MAX_SLOTS if self._cuda else _CPU_SLOTS)
        self._queue: deque[tuple[_Call, int]] = deque()  # with the index of a request
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._batch: ContinuousBatch | None = None
        self._stream = torch.cuda.Stream(layout.device) if self._cuda else None  # type: ignore[no-untyped-call]
        self._closed = False
        self._cancelled_some = False
        self._readers: Readers[_Sequence] = Readers()
        atexit.register(_close, weakref.ref(self))
        self._reset()

    def _reset(self) -> None:
        self._waiting: deque[_Sequence] = deque()
        self._slots: list[_Sequence | None] = []
        self._context_of = np.empty(0, dtype=np.int64)  # of each slot, -1 for none
        self._serials = np.empty(0, dtype=np.int64)  # of each slot's sequence, -1 for none
        self._unfinished = np.empty(0, dtype=np.bool_)  # whether a slot's sequence needs more tokens
        self._next_serial = 0
        self._readers.forget()
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
            if call.missing:
                self._cancelled_some = True

    def close(self) -> None:
        """End the thread. CUDA must not be in use when the interpreter exits."""
        with self._changed:
            self._closed = True
            thread = self._thread
            self._changed.notify()
        if thread is not None:
            thread.join(10)
        self._readers.close()
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
        return bool(self._waiting or self._launched or (self._serials >= 0).any())

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
        before, self._launched = self._launched, self._launch() if self._unfinished.any() else None
        if not self._ahead:
            before, self._launched = self._launched, None
        if before is not None:
            self._collect(before)
        self._take_answers(wait=before is None and self._launched is None)
        while self._readers.open_calls and not self._ahead:
            self._take_answers(wait=True)

    def _admit(self) -> None:
        """Prefill the contexts of as many requests as there is room for."""
        admitted: list[tuple[_Call, int]] = []
        while first := self._next_request():
            if not self._fits(*first):
                if admitted or self._sampling_now:
                    break  # its batch is allocated once those before it have ended
                self._allocate(_context_tokens(*first), first[0])
            if len(admitted) >= sum(not context.users for context in self._contexts):
                break
            if len(self._waiting) + sum(len(call.requests[i].keys) for call, i in admitted) >= self._max_slots:
                break
            with self._changed:
                admitted.append(self._queue.popleft())
        try:
            self._prefill(admitted)
        except BaseException:
            with self._changed:  # their callers have to be told of the error, too
                self._queue.extendleft(reversed(admitted))
            raise

    def _next_request(self) -> tuple[_Call, int] | None:
        with self._changed:
            while self._queue and self._queue[0][0].cancelled:
                self._queue.popleft()
            return self._queue[0] if self._queue else None

    def _fits(self, call: _Call, request: int) -> bool:
        """Whether the request can be sampled in the batch as it is."""
        batch = self._batch
        return batch is not None and (
            batch.sampling == call.sampling
            and batch.context_tokens >= _context_tokens(call, request)
            and batch.biased == call.biased
        )

    def _allocate(self, context_tokens: int, call: _Call) -> None:
        sampling = call.sampling
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
            steps_per_call=min(_STEPS_PER_CALL, sampling.max_tokens) if self._ahead else 1,
            biased_tokens=self._vocabulary.size if call.biased else 0,
        )
        self._texts = SequenceTexts(self._vocabulary, slots, sampling.max_tokens)
        self._slots = [None] * slots
        self._context_of, self._serials = np.full((2, slots), -1, dtype=np.int64)
        self._unfinished = np.zeros(slots, dtype=np.bool_)
        self._contexts = [_Context(place) for place in range(contexts)]

    def _capacity(self, context_tokens: int, max_tokens: int) -> tuple[int, int]:
        """Slots and contexts that fit into memory: KV caches, and 24 bytes a slot for each token of the vocabulary."""
        free: float = _CPU_BYTES
        if self._cuda:
            torch.cuda.empty_cache()
            free = 0.4 * torch.cuda.mem_get_info(self._layout.device)[0]
        context_bytes = context_tokens * self._layout.bytes_per_token
        contexts = max(1, min(_MAX_CONTEXTS, int(free / 3 / context_bytes)))
        slot_bytes = (max_tokens + 1) * self._layout.bytes_per_token + 24 * self._vocabulary.size
        most = min(int((free - contexts * context_bytes) / slot_bytes), self._max_slots)
        if not self._cuda:
            return max(1, most), contexts
        return max([size for size in _BATCH_SIZES if size <= most], default=_BATCH_SIZES[0]), contexts

    def _prefill(self, admitted: Sequence[tuple[_Call, int]]) -> None:
        if not admitted:
            return
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
            if self._batch.biased:
                self._batch.set_bias(context.place, request.bias)
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
            kept = self._batch.context_kv
            kept[:, :, oldest.place, :, :prefix] = kept[:, :, best.place, :, :prefix]
        return oldest, prefix

    def _fill_slots(self) -> None:
        """Give free slots to waiting sequences, and move sequences to lower slots if a smaller batch is then enough."""
        assert self._batch is not None
        self._drop_cancelled()
        live = int((self._serials[: self._size] >= 0).sum())
        needed = min(self._batch.slots, live + len(self._waiting))
        sizes = _BATCH_SIZES if self._ahead else (needed,)
        self._resize(next(size for size in (*sizes, self._batch.slots) if size >= needed))
        free = self._free_slots(len(self._waiting))
        if not free:
            return
        new = [self._waiting.popleft() for _ in free]
        for slot, sequence in zip(free, new, strict=True):
            self._slots[slot], sequence.slot = sequence, slot
        contexts = [sequence.context for sequence in new]
        places = [context.place for context in contexts]
        self._context_of[free], self._unfinished[free] = places, True
        self._serials[free] = np.arange(self._next_serial, self._next_serial + len(free))
        self._next_serial += len(free)
        self._texts.start(free, [context.ids for context in contexts], [sequence.call.stop for sequence in new])
        self._batch.start(free, places, [sequence.key for sequence in new])

    def _free_slots(self, most: int) -> list[int]:
        free: list[int] = np.flatnonzero(self._serials[: self._size] < 0)[:most].tolist()
        return free

    def _drop_cancelled(self) -> None:
        if not self._cancelled_some:
            return
        self._cancelled_some = False
        for sequence in self._waiting:
            sequence.context.users -= sequence.call.cancelled
        self._waiting = deque(sequence for sequence in self._waiting if not sequence.call.cancelled)
        for running in self._slots[: self._size]:
            if running is not None and running.call.cancelled:
                self._release(running)

    def _release(self, sequence: _Sequence) -> None:
        slot, sequence.slot = sequence.slot, -1
        self._slots[slot], self._context_of[slot], self._serials[slot], self._unfinished[slot] = None, -1, -1, False
        sequence.context.users -= 1

    def _resize(self, size: int) -> None:
        assert self._batch is not None
        size = min(size, self._batch.slots)
        old = [slot for slot in range(size, self._size) if self._slots[slot] is not None]
        self._size = size
        if not old:
            return
        new = self._free_slots(len(old))
        for source, target in zip(old, new, strict=True):
            self._texts.move(source, target)
            sequence = self._slots[source]
            assert sequence is not None
            self._slots[target], self._slots[source], sequence.slot = sequence, None, target
        for numbers in (self._context_of, self._serials):
            numbers[new], numbers[old] = numbers[old], -1
        self._unfinished[new], self._unfinished[old] = self._unfinished[old], False
        if self._launched is not None:  # their tokens will arrive in the old columns
            serials, column = self._launched.serials, self._launched.column
            serials[new], serials[old], column[new] = serials[old], -1, column[old]
        self._batch.move(old, new)

    def _launch(self) -> _LaunchedSteps:
        assert self._batch is not None
        tokens = self._batch.advance(self._size, self._context_of)
        return _LaunchedSteps(tokens, self._serials[: self._size].copy(), np.arange(self._size))

    def _collect(self, launched: _LaunchedSteps) -> None:
        """Wait for the tokens of launched steps, and have texts read in which a sentence may be over."""
        tokens = launched.tokens.wait()
        size = len(launched.serials)
        slots = np.flatnonzero((launched.serials == self._serials[:size]) & self._unfinished[:size])
        if not len(slots):
            return
        new: list[_Sequence] = []
        for slot, look in self._texts.append(slots, tokens[:, launched.column[slots]].T).items():
            sequence = self._slots[slot]
            assert sequence is not None
            self._unfinished[slot] = look.last is None
            sequence.looks.append(look)
            if sequence.reading is None:
                new.append(sequence)
        self._read(new)

    def _read(self, sequences: Iterable[_Sequence]) -> None:
        """Have the next text of each sequence read that has to be."""
        asked: list[tuple[_Sequence, Snapshot]] = []
        for sequence in sequences:
            while sequence.looks and sequence.slot >= 0 and sequence.reading is None:
                snapshot = self._texts.snapshot(sequence.slot, sequence.looks.popleft())
                if snapshot.to_read:
                    sequence.reading = snapshot
                    asked.append((sequence, snapshot))
                else:
                    self._take(sequence, snapshot, None)
        self._readers.read(self._texts, asked)

    def _take_answers(self, *, wait: bool) -> None:
        """Take what the readers have found, and have the sequences that go on read again."""
        read: list[_Sequence] = []
        for sequence, over in self._readers.answers(wait=wait):
            snapshot, sequence.reading = sequence.reading, None
            assert snapshot is not None
            if sequence.slot >= 0:  # else it was cancelled meanwhile
                self._take(sequence, snapshot, over)
                read.append(sequence)
        self._read(read)

    def _take(self, sequence: _Sequence, snapshot: Snapshot, over: Over | None) -> None:
        """Take note of what a text shows; a draw that has ended frees its slot."""
        if (draw := self._texts.draw(snapshot, over)) is not None:
            self._release(sequence)
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
