"""Threads that read the texts of sequences while the engine samples on: they look for the end of the first sentence."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from queue import Empty, SimpleQueue
from typing import Generic, TypeVar

from alimark.llm.base import StopCondition
from alimark.llm.torch.sequences import Over, SequenceTexts, Snapshot
from alimark.text.workers import worker_count

_Owner = TypeVar("_Owner")
"""What a text belongs to; its answer comes back with it."""

_TOGETHER = 24  # texts of one call: few enough for all threads to have some, enough to be worth the call


class Readers(Generic[_Owner]):
    """Reads texts in other threads, which leave most of the work to worker processes; one thread asks and takes the answers."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(max(1, worker_count()), "alimark-reader")
        self.forget()

    def forget(self) -> None:
        """Drop all answers, those that are still to come included."""
        self._answers: SimpleQueue[tuple[list[_Owner], Future[list[Over | None]]]] = SimpleQueue()
        self._open_calls = 0

    def read(self, texts: SequenceTexts, snapshots: Sequence[tuple[_Owner, Snapshot]]) -> None:
        """Begin to read texts."""
        by_condition: dict[StopCondition, list[tuple[_Owner, Snapshot]]] = {}
        for owner, snapshot in snapshots:
            by_condition.setdefault(snapshot.stop, []).append((owner, snapshot))
        for group in by_condition.values():
            for first in range(0, len(group), _TOGETHER):
                owners, part = map(list, zip(*group[first : first + _TOGETHER], strict=True))
                future = self._threads.submit(texts.read, part)
                future.add_done_callback(lambda done, owners=owners, to=self._answers: to.put((owners, done)))  # type: ignore[misc]
                self._open_calls += 1

    def answers(self, *, wait: bool) -> Iterator[tuple[_Owner, Over | None]]:
        """The answers that have come; with `wait`, at least those of one call, if any is open."""
        while self._open_calls:
            try:
                owners, done = self._answers.get(block=wait)
            except Empty:
                return
            wait = False
            self._open_calls -= 1
            yield from zip(owners, done.result(), strict=True)

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)
