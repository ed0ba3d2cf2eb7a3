"""Writes many texts with one model and one embedder, in this thread or in several.

A step of the generation loop samples, parses, embeds, chooses and appends, for several texts together: it asks the model once
for the candidates of all texts that are sampled alike, and the embedder once for all new sentences.

Every thread steps a group of texts through the generation loop. A model that takes several callers gets several threads, so
that the candidates of one group are embedded while those of another are sampled.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from itertools import islice

from alimark.core._util.arrays import Floats
from alimark.core._util.fair_pool import FairQueue
from alimark.core._util.work import TimedFuture, working
from alimark.core.embedding.base import Embedder
from alimark.core.generation.candidates import FirstSentence
from alimark.core.generation.results import Generation
from alimark.core.generation.session import Session
from alimark.core.keys.key import Key
from alimark.core.llm.base import LLM
from alimark.core.llm.requests import answer_each
from alimark.errors import AlimarkError, ContextFull, LLMError

Finished = Iterator[tuple[int, Generation | AlimarkError]]
"""Each text with its number as soon as it is finished, or the error that ended it."""

_Job = tuple[Session, TimedFuture[Generation]]


def check(key: Key | None, embedder: Embedder | None) -> None:
    """Raises an error where a key names an embedder and another one, or none, is given."""
    if key is not None and key.embedder:
        if embedder is None:
            raise AlimarkError("marking needs an embedder; load the one that the key names")
        key.check(embedder)


def default_batch(llm: LLM) -> int:
    """How many texts in progress a model is fastest with."""
    return max(1, llm.max_concurrency * llm.preferred_batch)


_Parsed = tuple[Session, list[str]]  # a session, and the units that it needs embedded


def step(llm: LLM, embedder: Embedder | None, sessions: Sequence[Session]) -> None:
    """One wave of draws for every text; a text whose candidates suffice gets its next sentence."""
    started = time.perf_counter()
    parsed = [pair for group in _sampled_alike(sessions) for pair in _sample(llm, group)]
    for (session, _), seen in zip(parsed, _embed(embedder, parsed), strict=True):
        sentence = session.choose(seen)
        if sentence is not None:
            session.append(sentence)
    seconds = time.perf_counter() - started
    for session in sessions:
        session.seconds += seconds / len(sessions)


def _sample(llm: LLM, group: Sequence[Session]) -> list[_Parsed]:
    """Draws a wave for every text of a group in one call of the model, and cuts the first sentences out of the draws.

    A text without draws ends or fails here.
    """
    text, reader = group[0].text, FirstSentence(group[0].text.cutter)
    over = text.aside_over if text.in_aside else reader
    drawn = answer_each(llm, [session.request(llm) for session in group], group[0].settings.sampling, over)
    if not text.in_aside:  # where the engine has not read the draws, those of all texts are read in one call
        draws = iter(reader.read([draw for answer in drawn if not isinstance(answer, LLMError) for draw in answer]))
        drawn = [answer if isinstance(answer, LLMError) else list(islice(draws, len(answer))) for answer in drawn]
    parsed: list[_Parsed] = []
    for session, answer in zip(group, drawn, strict=True):
        if isinstance(answer, ContextFull):
            session.ended = "context full"
        elif isinstance(answer, LLMError):
            session.error = answer
        else:
            parsed.append((session, session.parse(answer)))
    return parsed


def _embed(embedder: Embedder | None, parsed: Sequence[_Parsed]) -> list[dict[str, Floats]]:
    """Embeds all new units in one call; for each text what its rule keeps of its units."""
    units = list(dict.fromkeys(unit for _, wanted in parsed for unit in wanted))
    if not units:
        return [{} for _ in parsed]
    assert embedder is not None
    vectors = embedder.embed(units)
    rows = {unit: i for i, unit in enumerate(units)}
    return [
        dict(zip(wanted, session.rule.see(vectors[[rows[unit] for unit in wanted]]), strict=True)) if wanted else {}
        for session, wanted in parsed
    ]


def _sampled_alike(sessions: Sequence[Session]) -> list[list[Session]]:
    """Texts that one call of the model can hold: same sampling and splitter; a text in a block is on its own."""
    groups: dict[tuple[object, object], list[Session]] = {}
    for session in sessions:
        kind = id(session) if session.text.in_aside else session.text.cutter.name
        groups.setdefault((session.settings.sampling, kind), []).append(session)
    return list(groups.values())


class Scheduler:
    """Writes texts in groups, as many groups as the model takes callers. A server keeps one scheduler.

    `submit` is for servers: it may be called by any thread and returns a future. `run` writes given texts and yields them.
    """

    def __init__(self, llm: LLM, embedder: Embedder | None, *, batch: int | None = None) -> None:
        self._llm, self._embedder = llm, embedder
        self._batch = batch or default_batch(llm)
        self._groups = max(1, min(self._batch, llm.max_concurrency))
        self._group_size = -(-self._batch // self._groups)
        self._waiting: FairQueue[_Job] = FairQueue(lambda job: job[0].owner)
        self._threads: list[threading.Thread] = []
        self._closed = False
        self._lock = threading.Lock()

    def submit(self, session: Session) -> TimedFuture[Generation]:
        """Starts a text and returns a future. Cancelling the future ends the work after the current step."""
        return self._enqueue(session, start_thread=True)

    def _enqueue(self, session: Session, *, start_thread: bool) -> TimedFuture[Generation]:
        check(session.key, self._embedder)
        future: TimedFuture[Generation] = TimedFuture()
        with self._lock:
            if self._closed:
                raise AlimarkError("the scheduler is closed")
            self._waiting.put((session, future))
            if start_thread and len(self._threads) < self._groups:
                # Daemon threads: an interrupted program does not wait for a model in the middle of a wave.
                thread = threading.Thread(target=self._serve, name="alimark-writer", daemon=True)
                self._threads.append(thread)
                thread.start()
        return future

    def _serve(self) -> None:
        """The work of one thread: steps its group until the scheduler is closed."""
        live: list[_Job] = []
        while self._fill(live, wait=True):
            self._step(live)
            if self._closed:
                for _, future in live:
                    future.cancel()
                return
            self._take_turns(live)

    def _take_turns(self, live: list[_Job]) -> None:
        """Puts a full group behind the texts that wait: every text gets a sentence in turn, and none waits for whole texts."""
        with self._lock:  # after `close` the queue is no longer read
            if len(live) == self._group_size and not self._closed and len(self._waiting):
                for job in live:
                    self._waiting.put(job)
                live.clear()

    def _fill(self, live: list[_Job], *, wait: bool) -> bool:
        """Adds waiting texts to a group; with `wait` an empty group waits for a text. Whether the group has a text."""
        while len(live) < self._group_size and (job := self._waiting.get(block=wait and not live)) is not None:
            if not job[1].cancelled():
                live.append(job)
        return bool(live)

    def _step(self, live: list[_Job]) -> None:
        """One step of the loop for a group; texts that are finished, failed or cancelled leave it."""
        try:
            with working([future for _, future in live]):
                step(self._llm, self._embedder, [session for session, _ in live])
            for session, future in live:
                if session.error is not None:
                    future.settle(session.error)
                elif session.ended and not future.done():
                    future.settle(session.generation(self._llm))
        except Exception as error:  # the callers wait for the futures and have to get any error
            for _, future in live:
                future.settle(error)
        live[:] = [(session, future) for session, future in live if not session.ended and not future.done()]

    def run(self, sessions: Iterator[tuple[int, Session]]) -> Finished:
        """Writes numbered texts and yields each as soon as it is finished.

        A single group is stepped in the calling thread, so that an interruption reaches the model at once.
        """
        inline = self._groups == 1
        finished: queue.SimpleQueue[tuple[int, Future[Generation]]] = queue.SimpleQueue()
        live: list[_Job] = []
        pending = 0
        while True:
            for i, session in islice(sessions, max(0, self._batch - pending)):
                pending += 1
                future = self._enqueue(session, start_thread=not inline)
                future.add_done_callback(lambda future, i=i: finished.put((i, future)))  # type: ignore[misc]
            if not pending:
                return
            while inline and finished.empty():
                if not self._fill(live, wait=False):  # a thread that `submit` started has taken the texts
                    break
                self._step(live)
            i, ended = finished.get()
            pending -= 1
            error = ended.exception()
            if error is not None and not isinstance(error, AlimarkError):
                raise error
            yield i, error if error is not None else ended.result()

    def close(self, wait: float = 10) -> None:
        """Cancels all texts, and waits up to `wait` seconds for the threads to end their current steps."""
        with self._lock:
            self._closed = True
        while job := self._waiting.take():
            job[1].cancel()
        self._waiting.close()
        until = time.monotonic() + wait
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(max(0, until - time.monotonic()))

    def __enter__(self) -> Scheduler:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
