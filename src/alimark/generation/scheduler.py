"""Serves many texts with one model and one embedder.

A *round* samples a wave for each of some texts in one call of the model and embeds what it brought in one call of the
embedder. A model that takes several callers gets several rounds at a time, so that one group's candidates are embedded while
the other's are sampled.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from itertools import islice
from typing import Any

from alimark._util.arrays import Floats
from alimark.embedding.base import Embedder
from alimark.errors import AlimarkError, ContextFull
from alimark.generation.candidates import FirstSentence
from alimark.generation.session import Generation, Writing
from alimark.keys.key import Key
from alimark.llm.base import LLM, Draw, Request, StopCondition
from alimark.text.workers import First

Drawn = list[Draw] | ContextFull


class Rounds:
    """What a group of texts needs: the model, and the embedder where text is marked."""

    def __init__(self, llm: LLM, embedder: Embedder | None) -> None:
        self.llm, self.embedder = llm, embedder

    def run(self, live: Sequence[Writing]) -> None:
        """One wave for every text."""
        started = time.perf_counter()
        wanted: list[tuple[Writing, list[str]]] = []
        for group, drawn, firsts in self._draws(live):
            for one, draws in zip(group, drawn, strict=True):
                if isinstance(draws, ContextFull):
                    one.ended = "context full"
                else:
                    known = None if firsts is None else list(islice(firsts, len(draws)))
                    wanted.append((one, one.take(draws, known)))
        for (one, _), found in zip(wanted, self._seen(wanted), strict=True):
            one.settle(found)
        took = time.perf_counter() - started
        for one in live:
            one.seconds += took / len(live)

    def _draws(self, live: Sequence[Writing]) -> Iterator[tuple[list[Writing], list[Drawn], Iterator[First] | None]]:
        """Texts that are sampled alike go in one call: those in words, and each one that is in a code block."""
        groups: dict[Any, list[Writing]] = {}
        for one in live:
            own = id(one) if one.text.in_code else one.text.cutter.name
            groups.setdefault((one.settings.sampling, own), []).append(one)
        for group in groups.values():
            requests = [one.request() for one in group]
            if group[0].text.in_code:
                yield group, self._sample(group, requests, group[0].text.code_over), None
                continue
            over = FirstSentence(group[0].text.cutter)
            drawn = self._sample(group, requests, over)
            texts = [draw.text for draws in drawn if not isinstance(draws, ContextFull) for draw in draws]
            yield group, drawn, iter(over.spans(texts))

    def _sample(self, group: Sequence[Writing], requests: Sequence[Request], stop: StopCondition) -> list[Drawn]:
        try:
            draws = self.llm.draw(requests, group[0].settings.sampling, stop)
        except ContextFull as full:
            if len(requests) == 1:
                return [full]
            half = len(requests) // 2  # who it was is found out by asking for fewer
            return [
                *self._sample(group[:half], requests[:half], stop),
                *self._sample(group[half:], requests[half:], stop),
            ]
        for request, found in zip(requests, draws, strict=True):
            if len(found) != request.count:
                raise AlimarkError(
                    f"{self.llm.name} gave {len(found)} continuations where {request.count} were asked for"
                )
        return list(draws)

    def _seen(self, wanted: Sequence[tuple[Writing, list[str]]]) -> list[dict[str, Floats]]:
        """All new units of the round, embedded in one call; texts of several keys may be written together."""
        units = list(dict.fromkeys(unit for _, some in wanted for unit in some))
        if not units:
            return [{} for _ in wanted]
        assert self.embedder is not None
        vectors = self.embedder.embed(units)
        at = {unit: i for i, unit in enumerate(units)}
        found = []
        for one, some in wanted:
            rows = vectors[[at[unit] for unit in some]]
            found.append(dict(zip(some, one.rule.see(rows), strict=True)) if some else {})
        return found


def check(key: Key | None, embedder: Embedder | None) -> None:
    """A key that names an embedder needs that one."""
    if key is not None and key.embedder:
        if embedder is None:
            raise AlimarkError("marking needs an embedder")
        key.check(embedder)


def default_batch(llm: LLM) -> int:
    return max(1, llm.max_concurrency * llm.preferred_batch)


Finished = Iterator[tuple[int, Generation | AlimarkError]]


def in_turn(writings: Iterator[tuple[int, Writing]], rounds: Rounds, batch: int) -> Finished:
    """All in this thread: for a model that takes one caller, and so that an interruption reaches the model at once."""
    live: list[tuple[int, Writing]] = []
    while True:
        live += islice(writings, batch - len(live))
        if not live:
            return
        try:
            rounds.run([one for _, one in live])
        except AlimarkError as error:
            yield from ((i, error) for i, _ in live)
            live = []
        yield from ((i, one.generation(rounds.llm)) for i, one in live if one.ended)
        live = [(i, one) for i, one in live if not one.ended]


class Scheduler:
    """Serves texts from many threads with one model and one embedder; a server holds one of these.

    `submit` gives a future. Texts are served in groups, one thread each: as many groups as the model takes callers.
    """

    def __init__(self, llm: LLM, embedder: Embedder | None, *, batch: int | None = None) -> None:
        self._rounds = Rounds(llm, embedder)
        batch = batch or default_batch(llm)
        self._groups = max(1, min(batch, llm.max_concurrency))
        self._batch = batch
        self._most = -(-batch // self._groups)
        self._waiting: queue.SimpleQueue[tuple[Writing, Future[Generation]] | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._closed = False
        self._lock = threading.Lock()

    def submit(self, writing: Writing) -> Future[Generation]:
        """The text, once it is written. Cancelling the future ends the work on it after the round it is in."""
        check(writing.key, self._rounds.embedder)
        future: Future[Generation] = Future()
        with self._lock:
            if self._closed:
                raise AlimarkError("the scheduler is closed")
            self._waiting.put((writing, future))
            if len(self._threads) < self._groups:
                # Daemons: an interrupted program does not wait for a model that is in the middle of a wave.
                thread = threading.Thread(target=self._serve, name="alimark-writer", daemon=True)
                self._threads.append(thread)
                thread.start()
        return future

    def _serve(self) -> None:
        live: list[tuple[Writing, Future[Generation]]] = []
        while self._take_more(live):
            try:
                self._rounds.run([one for one, _ in live])
                for one, future in live:
                    if one.ended and not future.done():
                        _finish(future, one.generation(self._rounds.llm))
            except Exception as error:  # whatever it was, those who wait must hear of it
                for _, future in live:
                    _fail(future, error)
            live[:] = [(one, future) for one, future in live if not one.ended and not future.done()]
            if self._closed:
                for _, future in live:
                    future.cancel()
                return

    def _take_more(self, live: list[tuple[Writing, Future[Generation]]]) -> bool:
        """Fill the group up; wait only where there is nothing else to do. False once there is no more to come."""
        while len(live) < self._most:
            try:
                found = self._waiting.get(block=not live)
            except queue.Empty:
                break
            if found is None:
                self._waiting.put(None)  # for the other threads, too
                return bool(live)
            if not found[1].cancelled():
                live.append(found)
        return True

    def run(self, writings: Iterator[tuple[int, Writing]]) -> Finished:
        """Keeps all groups busy with these texts; yields them as they are finished."""
        done: queue.SimpleQueue[tuple[int, Future[Generation]]] = queue.SimpleQueue()
        under_way = 0
        while True:
            for i, one in islice(writings, max(0, self._batch - under_way)):
                under_way += 1
                self.submit(one).add_done_callback(lambda future, i=i: done.put((i, future)))  # type: ignore[misc]
            if not under_way:
                return
            i, future = done.get()
            under_way -= 1
            error = future.exception()
            if error is not None and not isinstance(error, AlimarkError):
                raise error
            yield i, error if error is not None else future.result()

    def close(self, wait: float = 10) -> None:
        """Texts in progress are given up, and so are those that wait. Waits some seconds for rounds to come to an end."""
        with self._lock:
            self._closed = True
        with suppress(queue.Empty):
            while found := self._waiting.get_nowait():
                found[1].cancel()
        self._waiting.put(None)
        until = time.monotonic() + wait
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(max(0, until - time.monotonic()))

    def __enter__(self) -> Scheduler:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _finish(future: Future[Generation], made: Generation) -> None:
    with suppress(InvalidStateError):  # given up meanwhile
        future.set_result(made)


def _fail(future: Future[Generation], error: Exception) -> None:
    with suppress(InvalidStateError):
        future.set_exception(error)
