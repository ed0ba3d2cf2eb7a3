"""Threads that read the texts of sequences while the engine samples on: they look for the end of the first sentence."""

import threading
import weakref
from collections.abc import Iterator, Sequence
from queue import Empty, SimpleQueue
from typing import Generic, TypeVar

from alimark.core.llm.base import StopCondition
from alimark.core.text.workers import worker_count
from alimark.gpu.sequences import Over, SequenceTexts, Snapshot

Owner = TypeVar("Owner")  # what a text belongs to, which comes back with its answer
_Asked = list[tuple[Owner, Snapshot]]
_Answer = tuple[_Asked[Owner], list[Over | None] | Exception]
_Question = tuple[SequenceTexts, _Asked[Owner], SimpleQueue[_Answer[Owner]]]
"""Texts to read, and where the answer goes."""

_TOGETHER = 24  # texts of one call: few enough for all threads to have some, enough to be worth the call


class Readers(Generic[Owner]):
    """Reads texts in other threads, while one thread asks and takes the answers.

    Where there are worker processes, they do most of the reading. The threads are daemons: a pool of `concurrent.futures` would
    refuse work once the main thread has ended, and the end of the program would wait for it.
    """

    def __init__(self) -> None:
        self._questions: SimpleQueue[_Question[Owner] | None] = SimpleQueue()
        self._threads: list[threading.Thread] = []
        self.close = weakref.finalize(self, _end, self._questions, self._threads)
        """Ends the threads after what they are reading, which also happens once the object is no longer used."""
        self.forget()

    def forget(self) -> None:
        """Drop all answers, those that are still to come included."""
        self._answers: SimpleQueue[_Answer[Owner]] = SimpleQueue()
        self.open_calls = 0

    def read(self, texts: SequenceTexts, snapshots: Sequence[tuple[Owner, Snapshot]]) -> None:
        """Begin to read texts."""
        by_condition: dict[StopCondition, _Asked[Owner]] = {}
        for owner, snapshot in snapshots:
            by_condition.setdefault(snapshot.stop, []).append((owner, snapshot))
        for group in by_condition.values():
            for first in range(0, len(group), _TOGETHER):
                self._questions.put((texts, group[first : first + _TOGETHER], self._answers))
                self.open_calls += 1
        if snapshots and not self._threads:
            for _ in range(max(1, worker_count())):
                thread = threading.Thread(target=_answer, args=(self._questions,), name="alimark-reader", daemon=True)
                self._threads.append(thread)
                thread.start()

    def answers(self, *, wait: bool) -> Iterator[tuple[Owner, Over | None]]:
        """The answers that have come; with `wait`, at least those of one call, if any is open."""
        while self.open_calls:
            try:
                asked, found = self._answers.get(block=wait)
            except Empty:
                return
            wait = False
            self.open_calls -= 1
            if isinstance(found, Exception):
                raise found
            yield from zip([owner for owner, _ in asked], found, strict=True)


def _end(questions: SimpleQueue[_Question[Owner] | None], threads: Sequence[threading.Thread]) -> None:
    for _ in threads:
        questions.put(None)


def _answer(questions: SimpleQueue[_Question[Owner] | None]) -> None:
    """The work of one thread."""
    while (question := questions.get()) is not None:
        texts, asked, answers = question
        try:
            answers.put((asked, texts.read([snapshot for _, snapshot in asked])))
        except Exception as error:  # a stop condition may raise anything; the engine tells its callers
            answers.put((asked, error))
