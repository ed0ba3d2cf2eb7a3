"""Detections for many requests at a time, with the stages of the detection pipeline in threads of their own.

The embedding thread takes all texts that wait, cuts them into units and embeds these in one batch; the alignment threads score
what was embedded and answer. No thread waits for a batch to fill: while one batch is being embedded, the next one gathers.
While it embeds a text longer than a batch, a second thread embeds the short texts of others. A token uses one alignment thread
at a time. So nobody waits for the whole of somebody else's long text.
"""

from __future__ import annotations

import math
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from alimark.core._util.fair_pool import FairPool, FairQueue, may_enter
from alimark.core._util.work import TimedFuture, Working
from alimark.core.detection.aligned_results import AlignedDetection
from alimark.core.detection.batching import EmbeddedTexts, embed_texts
from alimark.core.detection.preparing import PreparedText, alike, prepare
from alimark.core.detection.results import best_first
from alimark.core.detection.searching import answer
from alimark.core.detection.settings import DetectionSettings
from alimark.core.detection.stats.p_values import draws_for_keys
from alimark.core.embedding.base import Embedder
from alimark.core.keys.key import Key
from alimark.errors import AlimarkError, LimitError
from alimark.serve.work import detection_seconds, stop_after

BATCH_TEXTS = 64
BATCH_CHARACTERS = 50_000
"""The most characters of one batch: a long text gets a batch nearly to itself, so that few short ones wait for it."""
BEST_KEYS = 3
"""The number of keys that an answer names."""
LONG_WORK = 1.0
"""CPU seconds above which a text costs so much that the drawing of random keys stops where it shows no mark."""
_ALIGNERS = 3
"""Alignment threads. Each uses all cores: there are several so that tokens share them."""


class QueueFull(AlimarkError):
    """Too many texts are waiting; the same request may succeed later."""


@dataclass(frozen=True, eq=False)
class Check:
    """A text and the keys to look for, all of one embedder."""

    text: str
    keys: tuple[Key, ...]
    settings: DetectionSettings
    tried: int = 1
    """The number of keys that the request tries on this text. A request has one check for each embedder."""
    owner: str = ""
    """The id of the token that asks. The texts of tokens are taken in turn."""


Answer = list[AlignedDetection]
"""Best first: a single detection where one key was asked for, the best few for many."""

Asked = tuple[Check, TimedFuture[Answer]]


class Checker:
    """Answers checks from any thread. A future can be cancelled at any time: what is under way stops soon."""

    def __init__(
        self,
        embedder_of: Callable[[Key], Embedder],
        *,
        max_waiting: int,
        max_work: float = math.inf,
        on_batch: Callable[[int, int], None] = lambda texts, units: None,
    ) -> None:
        """`on_batch` is called with the numbers of texts and units of each batch.

        A text whose alignments are estimated to take more than `max_work` seconds of CPU time is refused.
        """
        self._embedder_of, self._max_waiting, self._on_batch = embedder_of, max_waiting, on_batch
        self._max_work = max_work
        self._waiting: FairQueue[Asked] = FairQueue(lambda asked: asked[0].owner)
        self._places: Counter[str] = Counter()  # the texts that wait, by owner
        self._wake = threading.Condition()
        self._closed = False
        self._last_batch = 0
        self._embedding_long = self._embedding_over = False
        self._embedders = [_thread("embedding", self._embed_all), _thread("embedding-short", self._embed_short)]
        self._aligners = FairPool(_ALIGNERS, "alimark-aligning", 1, on_taken=self._batch_is_due)

    @property
    def waiting(self) -> int:
        """The number of texts that wait."""
        return len(self._waiting)

    def submit(self, checks: Sequence[Check]) -> list[TimedFuture[Answer]]:
        """Queues all checks, or none of them and raises QueueFull."""
        futures: list[TimedFuture[Answer]] = [TimedFuture() for _ in checks]
        with self._wake:
            if self._closed:
                raise QueueFull("the service is shutting down")
            owner = checks[0].owner if checks else ""
            if not may_enter(self._places, owner, len(checks), self._max_waiting):
                raise QueueFull(f"{len(self._waiting)} texts are waiting and {self._max_waiting} may; try again later")
            self._places[owner] += len(checks)
            for asked in zip(checks, futures, strict=True):
                self._waiting.put(asked)
            self._wake.notify_all()
        return futures

    def close(self) -> None:
        """Answers all texts that wait and ends the threads."""
        with self._wake:
            self._closed = True
            self._wake.notify_all()
        for thread in self._embedders:
            thread.join()
        self._aligners.finish()

    def _embed_all(self) -> None:
        while asked := self._take():
            self._embed_batch(asked)
            with self._wake:
                self._embedding_long = False
        with self._wake:
            self._embedding_over = True
            self._wake.notify_all()

    def _embed_short(self) -> None:
        """Embeds texts that fit into a batch while the other thread is busy with one that does not."""
        while asked := self._take_short():
            self._embed_batch(asked)

    def _embed_batch(self, asked: Sequence[Asked]) -> None:
        wanted = [check for check in asked if not check[1].cancelled()]
        for group in _by_embedder(wanted):
            with Working([future for _, future in group]):
                batch = self._embed(group)
            if batch:
                self._last_batch = len(batch.checks)
                for check in batch.checks:  # each is answered at once, so that its client can send the next one early
                    self._aligners.submit(check.check.owner, partial(_answer, check, batch), future=check.future)

    def _batch_is_due(self) -> None:
        with self._wake:
            self._wake.notify_all()

    def _may_embed(self) -> bool:
        """Whether the next batch is due.

        The texts that wait make larger batches, so at most one batch is ahead of the alignment threads, unless a token waits
        that has no text in it.
        """
        if not len(self._waiting):
            return self._closed
        embedded = self._aligners.waiting
        return len(embedded) <= self._last_batch or not self._waiting.owners() <= embedded.owners()

    def _take(self) -> list[Asked]:
        """The next texts of the queue, waiting for the first; empty when the checker is closed."""
        with self._wake:
            self._wake.wait_for(self._may_embed)
            batch = self._next_batch(None)
            self._embedding_long = any(len(check.text) > BATCH_CHARACTERS for check, _ in batch)
            if self._embedding_long:
                self._wake.notify_all()
            return batch

    def _take_short(self) -> list[Asked]:
        """The next short texts, waiting until the other thread embeds a long one; empty when the checker is closed."""
        with self._wake:
            while True:
                if self._embedding_over:
                    return []
                if self._embedding_long and self._may_embed() and (batch := self._next_batch(BATCH_CHARACTERS)):
                    return batch
                self._wake.wait()

    def _next_batch(self, longest: int | None) -> list[Asked]:
        """Takes texts from the queue as long as they fit into a batch; the first may be longer unless `longest` is given."""
        batch: list[Asked] = []
        room = BATCH_CHARACTERS
        while len(batch) < BATCH_TEXTS and room > 0:
            asked = self._waiting.take(partial(_fits, room=room if batch else longest))
            if asked is None:
                break
            room -= len(asked[0].text)
            self._places[asked[0].owner] -= 1
            batch.append(asked)
        self._places = +self._places  # owners without a text are forgotten
        return batch

    def _embed(self, group: Sequence[Asked]) -> _Batch | None:
        """Splits the texts of a group and embeds all their units. A text that cannot be searched gets its error."""
        checks: list[_PreparedCheck] = []
        try:
            embedder = self._embedder_of(group[0][0].keys[0])
            for check, future in group:
                try:
                    checks.append(_prepared_check(check, future, embedder, self._max_work))
                except AlimarkError as error:
                    future.settle(error)
            embedded = embed_texts((kind.text for check in checks for kind in check.kinds), embedder)
            self._on_batch(len(group), len(embedded.units.row))
            return _Batch(checks, embedder, embedded)
        except Exception as error:  # any error must reach the requests that wait
            for _, future in group:
                future.settle(error)
            return None


def _thread(name: str, work: Callable[[], None]) -> threading.Thread:
    thread = threading.Thread(target=work, name=f"alimark-{name}", daemon=True)
    thread.start()
    return thread


@dataclass(frozen=True)
class _KeysOfAKind:
    """Keys that can be searched together, and the text as it is cut for them."""

    keys: list[Key]
    text: PreparedText


@dataclass(frozen=True)
class _PreparedCheck:
    check: Check
    future: TimedFuture[Answer]
    kinds: list[_KeysOfAKind]
    settings: DetectionSettings
    """The settings of the check with the random keys that are drawn for it."""


@dataclass(frozen=True)
class _Batch:
    """Checks and the vectors of all their units."""

    checks: list[_PreparedCheck]
    embedder: Embedder
    embedded: EmbeddedTexts


def _fits(asked: Asked, room: int | None) -> bool:
    """Whether a text has no more characters than are left of a batch; a longer one gets a batch to itself."""
    return room is None or len(asked[0].text) <= room


def _by_embedder(asked: Sequence[Asked]) -> list[list[Asked]]:
    groups: dict[str, list[Asked]] = {}
    for check, future in asked:
        groups.setdefault(check.keys[0].fingerprint, []).append((check, future))
    return list(groups.values())


def _prepared_check(check: Check, future: TimedFuture[Answer], embedder: Embedder, max_work: float) -> _PreparedCheck:
    """The check with its text cut into units; raises LimitError where aligning it would take too long."""
    settings = check.settings
    kinds = [_KeysOfAKind(keys, prepare(check.text, keys[0], embedder, settings)) for keys in alike(check.keys)]
    if check.tried > 1:
        settings = replace(settings, draws=draws_for_keys(settings.draws, check.tried))
    seconds = sum(detection_seconds(kind.text, kind.keys, settings) for kind in kinds)
    if seconds > max_work:
        raise _too_much_work(check, kinds, seconds, max_work)
    if seconds > LONG_WORK and settings.stop_after is None:
        settings = replace(settings, stop_after=stop_after(settings, check.tried))
    return _PreparedCheck(check, future, kinds, settings)


def _too_much_work(check: Check, kinds: Sequence[_KeysOfAKind], seconds: float, most: float) -> LimitError:
    sentences = max(len(version.sentences) for kind in kinds for version in kind.text.versions)
    keys = f"{check.tried} keys" if check.tried > 1 else "one key"
    remedy = "cut the text into parts, name the key" if check.tried > 1 else "cut the text into parts"
    return LimitError(
        f"a text of {sentences:,} sentences or clauses, {keys} and that false-positive rate are too much work at a time: about "
        f"{seconds:.0f} s of CPU time, and the limit is {most:g} s; {remedy}, or take a larger rate"
    )


def _answer(prepared: _PreparedCheck, batch: _Batch) -> Answer:
    """Searches each kind of keys by itself; p-values are corrected for the keys of all kinds."""
    tried, best = prepared.check.tried, 1 if prepared.check.tried == 1 else BEST_KEYS
    detections: list[AlignedDetection] = []
    for kind in prepared.kinds:
        detections += answer(
            kind.text, batch.embedded, kind.keys, batch.embedder, prepared.settings, best=best, tried=tried
        )
    return best_first(detections)[:best]
