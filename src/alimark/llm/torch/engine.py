"""Many callers' draws in one running batch: a thread of its own keeps the GPU at it.

A turn of the thread lets new draws in, sets off the next steps, and while the GPU takes them looks at what the steps before
brought: draws whose sentence is over leave their slot to those that wait. So nobody waits for another's long sentence, and the
GPU never waits for Python as long as a turn's work takes less time than its steps.
"""

from __future__ import annotations

import atexit
import threading
import weakref
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from alimark.errors import LLMError
from alimark.llm.torch.static_batch import Shape
from alimark.llm.torch.sequences import Rows, Vocabulary
from alimark.llm.torch.continuous_batch import Slots, Steps
from alimark.llm.base import Draw, Over, Sampling

# Steps between two looks: each look costs Python's time, and each step too many is a token for nothing.
_AHEAD = 8
_ROWS, _CONTEXTS, _TOKENS = 4096, 256, 512
_SIZES = (8, 32, 64, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096)
"""Slots that a step goes over; each number is a graph of its own."""
_IDLE = 5.0  # seconds after which the thread ends


@dataclass(frozen=True, slots=True)
class Part:
    """Some draws of one prompt, given as tokens: a key for each draw's random numbers."""

    prompt: list[int]
    keys: list[int]


@dataclass(eq=False)
class _Job:
    """What one caller waits for."""

    parts: Sequence[Part]
    sampling: Sampling
    over: Over
    future: Future[list[list[Draw]]] = field(default_factory=Future)
    given_up: bool = False

    def __post_init__(self) -> None:
        self.found: list[dict[int, Draw]] = [{} for _ in self.parts]
        self.left = sum(len(part.keys) for part in self.parts)

    def add(self, part: int, number: int, draw: Draw) -> None:
        self.found[part][number] = draw
        self.left -= 1
        if not self.left and not self.future.done():
            self.future.set_result([[some[i] for i in range(len(some))] for some in self.found])


@dataclass(eq=False)
class _Context:
    """A place in memory: whose tokens it holds, and the draws that still need it."""

    place: int
    ids: list[int] = field(default_factory=list)
    draws: int = 0
    used: int = 0

    def common(self, ids: list[int]) -> int:
        """Tokens at the start that need not be read again; the last one is never in memory."""
        n = min(len(self.ids), len(ids)) - 1
        if n < 1 or self.ids[:4] != ids[:4]:
            return 0
        if self.ids[:n] == ids[:n]:
            return n
        differ = np.flatnonzero(np.array(self.ids[:n]) != np.array(ids[:n]))
        return int(differ[0])


@dataclass(frozen=True, slots=True)
class _Draw:
    """One draw of a job, waiting or in a slot."""

    job: _Job
    part: int
    number: int
    context: _Context


@dataclass(eq=False)
class _Flight:
    """Steps that were set off: which draw was where, and in which column its tokens come."""

    steps: Steps
    draws: list[_Draw | None]
    column: NDArray[np.int64]


class Engine:
    """Draws for any number of threads. `rows`: the most draws at a time."""

    def __init__(
        self, model: Any, shape: Shape, vocabulary: Vocabulary, control: torch.Tensor, *, rows: int | None = None
    ) -> None:
        self._model, self._shape, self._vocabulary, self._control = model, shape, vocabulary, control
        self._most_rows = rows or _ROWS
        self._jobs: deque[tuple[_Job, int]] = deque()  # with the number of a part
        self._news = threading.Condition()
        self._thread: threading.Thread | None = None
        self._slots: Slots | None = None
        cuda = shape.device.type == "cuda"
        self._stream = torch.cuda.Stream(shape.device) if cuda else None  # type: ignore[no-untyped-call]
        self._closed = False
        atexit.register(_close, weakref.ref(self))
        self._clear()

    def _clear(self) -> None:
        self._waiting: deque[_Draw] = deque()
        self._draws: list[_Draw | None] = []
        self._texts = np.empty(0, dtype=np.int64)
        self._size = 0
        self._flight: _Flight | None = None
        self._contexts: list[_Context] = []
        self._turn = 0

    def draw(self, parts: Sequence[Part], sampling: Sampling, over: Over) -> list[list[Draw]]:
        """The draws of each part, once all are over."""
        job = _Job(parts, sampling, over)
        if not job.left:
            return [[] for _ in parts]
        with self._news:
            if self._closed:
                raise LLMError("the model was closed")
            self._jobs.extend((job, i) for i in range(len(parts)))
            if self._thread is None:
                self._thread = threading.Thread(target=self._serve, name="alimark-gpu", daemon=True)
                self._thread.start()
            self._news.notify()
        try:
            return job.future.result()
        finally:
            job.given_up = True  # where the caller was interrupted, nobody wants its draws any more

    # The thread

    def _serve(self) -> None:
        with torch.inference_mode(), nullcontext() if self._stream is None else torch.cuda.stream(self._stream):
            while self._something_to_do():
                try:
                    self._take_turn()
                except Exception as error:  # whatever it was, those who wait must hear of it
                    self._fail(error)

    def _something_to_do(self) -> bool:
        with self._news:
            if not self._busy:
                self._news.wait_for(lambda: self._jobs or self._closed, _IDLE)
            if self._closed or not self._busy:
                self._thread = None
                return False
            return True

    def close(self) -> None:
        """Ends the thread: a GPU's library does not outlive one that the interpreter cuts off."""
        with self._news:
            self._closed = True
            thread = self._thread
            self._news.notify()
        if thread is not None:
            thread.join(10)
        self._fail(LLMError("the model was closed"))

    @property
    def _busy(self) -> bool:
        return bool(self._jobs or self._waiting or self._flight or any(self._draws))

    def _fail(self, error: Exception) -> None:
        with self._news:
            jobs = {job for job, _ in self._jobs} | {one.job for one in (*self._waiting, *self._draws) if one}
            self._jobs.clear()
        self._slots = None
        self._clear()
        for job in jobs:
            if not job.future.done():
                job.future.set_exception(error)

    def _take_turn(self) -> None:
        self._let_in()
        if self._slots is None:  # whoever asked has gone
            return
        self._fill()
        before, self._flight = self._flight, self._set_off() if any(self._draws) else None
        if before is not None:
            self._land(before)

    # Contexts come

    def _let_in(self) -> None:
        """Reads the contexts of as many parts as there is room for."""
        some: list[tuple[_Job, int]] = []
        while (first := self._next_job()) and self._make_room(*first) and len(some) < self._free_contexts():
            if len(self._waiting) + sum(len(job.parts[i].keys) for job, i in some) >= self._most_rows:
                break
            with self._news:
                some.append(self._jobs.popleft())
        if some:
            self._read(some)

    def _next_job(self) -> tuple[_Job, int] | None:
        with self._news:
            while self._jobs and self._jobs[0][0].given_up:
                self._jobs.popleft()
            return self._jobs[0] if self._jobs else None

    def _free_contexts(self) -> int:
        return sum(not context.draws for context in self._contexts)

    def _make_room(self, job: _Job, part: int) -> bool:
        """Whether the part fits what is laid out now; where nothing else is under way, it is laid out anew."""
        tokens = max(_TOKENS, 1 << (len(job.parts[part].prompt) - 1).bit_length())
        slots = self._slots
        if slots and slots.sampling == job.sampling and slots.tokens >= tokens:
            return True
        if self._waiting or self._flight or any(self._draws):
            return False
        self._slots = slots = None  # their memory is wanted
        self._lay_out(tokens, job.sampling)
        return True

    def _lay_out(self, tokens: int, sampling: Sampling) -> None:
        self._clear()
        rows, contexts = self._fit(tokens, sampling.max_tokens)
        self._slots = Slots(
            self._model,
            self._shape,
            rows=rows,
            contexts=contexts,
            tokens=tokens,
            sampling=sampling,
            control=self._control,
            stream=self._stream,
            ahead=min(_AHEAD, sampling.max_tokens),
        )
        self._rows = Rows(self._vocabulary, rows, sampling.max_tokens, patient=True)
        self._draws = [None] * rows
        self._texts = np.full(rows, -1, dtype=np.int64)
        self._contexts = [_Context(place) for place in range(contexts)]

    def _fit(self, tokens: int, steps: int) -> tuple[int, int]:
        """Draws and contexts that fit: what they remember, and some tables as wide as the vocabulary for each draw."""
        if self._shape.device.type != "cuda":
            return self._most_rows, _CONTEXTS
        torch.cuda.empty_cache()
        free = 0.4 * torch.cuda.mem_get_info(self._shape.device)[0]
        contexts = max(1, min(_CONTEXTS, int(free / 3 / (tokens * self._shape.bytes_a_token))))
        a_row = (steps + 1) * self._shape.bytes_a_token + 24 * self._vocabulary.size
        fit = int((free - contexts * tokens * self._shape.bytes_a_token) / a_row)
        return max([size for size in _SIZES if size <= min(fit, self._most_rows)], default=_SIZES[0]), contexts

    def _read(self, some: Sequence[tuple[_Job, int]]) -> None:
        assert self._slots is not None
        self._turn += 1
        contexts, known = [], []
        for job, i in some:
            prompt, keys = job.parts[i].prompt, job.parts[i].keys
            context, start = self._place(prompt)
            context.ids, context.draws, context.used = prompt, len(keys), self._turn
            self._waiting.extend(_Draw(job, i, number, context) for number in range(len(keys)))
            contexts.append(context)
            known.append(start)
        self._slots.read([one.place for one in contexts], [one.ids for one in contexts], known)

    def _place(self, prompt: list[int]) -> tuple[_Context, int]:
        """A free place, with as much of the prompt as is in memory anywhere."""
        assert self._slots is not None
        free = [context for context in self._contexts if not context.draws]
        # Those that came in the same turn are not read yet.
        known = [
            (one.common(prompt), not one.draws, -one.place, one) for one in self._contexts if one.used < self._turn
        ]
        start, _, _, best = max(known, default=(0, True, 0, free[0]))
        if start and not best.draws:
            return best, start
        oldest = min(free, key=lambda one: one.used)
        if start:
            self._slots.copy(best.place, oldest.place, start)
        return oldest, start

    # Draws come and go

    def _fill(self) -> None:
        """Gives free slots to draws that wait, and draws in high slots lower ones where that makes the steps cheaper."""
        assert self._slots is not None
        self._drop_given_up()
        live = sum(one is not None for one in self._draws)
        wanted = min(self._slots.rows, live + len(self._waiting))
        self._resize(next(size for size in (*_SIZES, self._slots.rows) if size >= wanted))
        places = [place for place in range(self._size) if self._draws[place] is None][: len(self._waiting)]
        if not places:
            return
        new = [self._waiting.popleft() for _ in places]
        for place, one in zip(places, new, strict=True):
            self._draws[place], self._texts[place] = one, one.context.place
            self._rows.begin(place, one.context.ids, one.job.over)
        keys = [one.job.parts[one.part].keys[one.number] for one in new]
        self._slots.begin(places, [one.context.place for one in new], keys)

    def _drop_given_up(self) -> None:
        if any(one.job.given_up for one in self._waiting):
            for draw in self._waiting:
                draw.context.draws -= draw.job.given_up
            self._waiting = deque(one for one in self._waiting if not one.job.given_up)
        for place, one in enumerate(self._draws):
            if one is not None and one.job.given_up:
                self._leave(place, one)

    def _leave(self, place: int, one: _Draw) -> None:
        self._draws[place], self._texts[place] = None, -1
        one.context.draws -= 1

    def _resize(self, size: int) -> None:
        assert self._slots is not None
        size = min(size, self._slots.rows)
        old = [place for place in range(size, self._size) if self._draws[place] is not None]
        self._size = size
        if not old:
            return
        new = [place for place in range(size) if self._draws[place] is None][: len(old)]
        for source, target in zip(old, new, strict=True):
            self._rows.move(source, target)
            self._draws[target], self._draws[source] = self._draws[source], None
            self._texts[target], self._texts[source] = self._texts[source], -1
            if self._flight is not None:  # its tokens are still to come, in the old column
                self._flight.draws[target], self._flight.draws[source] = self._flight.draws[source], None
                self._flight.column[target] = self._flight.column[source]
        self._slots.move(old, new)

    def _set_off(self) -> _Flight:
        assert self._slots is not None
        steps = self._slots.advance(self._size, self._texts)
        return _Flight(steps, list(self._draws), np.arange(len(self._draws)))

    def _land(self, flight: _Flight) -> None:
        """Looks at the tokens that have come; draws that are over leave."""
        tokens = flight.steps.wait()
        same = [
            place for place, (then, now) in enumerate(zip(flight.draws, self._draws, strict=True))
            if now is not None and then is now
        ]  # fmt: skip
        if not same:
            return
        places = np.array(same)
        for place, draw in self._rows.take(places, tokens[:, flight.column[places]].T).items():
            one = self._draws[place]
            assert one is not None
            self._leave(place, one)
            one.job.add(one.part, one.number, draw)


def _close(engine: weakref.ref[Engine]) -> None:
    if found := engine():
        found.close()
