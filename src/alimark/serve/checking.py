"""Detections of many requests at a time: one thread takes all texts that wait and embeds their units in one batch, another
aligns what was embedded and answers.

Nobody waits for a batch to fill: while one is being embedded, the next gathers by itself.
"""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from alimark.detection.many_keys import best_keys
from alimark.detection.pipeline import Prepared, detect_prepared, prepare
from alimark.detection.results import AlignedDetection
from alimark.detection.scoring import scoring
from alimark.detection.settings import DetectionSettings
from alimark.detection.stats.p_values import MAX_DRAWS
from alimark.embedding.base import Embedder
from alimark.errors import AlimarkError, LimitError
from alimark.keys.key import Key
from alimark.keys.projection import project

BATCH_TEXTS = 64
BATCH_CHARACTERS = 200_000
"""Of the texts of one batch: a long text is nearly alone, so that short ones do not wait for it together."""
MAX_CELLS = 2e10
"""Work on one text: sentences times blocks times random keys; some tens of seconds on a small machine."""

Vectors = NDArray[np.float32]


class QueueFull(AlimarkError):
    """Too much is waiting; the same request may be taken later."""


@dataclass(frozen=True, eq=False)
class Check:
    """One text, and the keys to look for: all of one embedder."""

    text: str
    keys: tuple[Key, ...]
    settings: DetectionSettings
    tried: int = 1
    """Keys that are tried on this text in all, those of other checks included."""


Answer = list[AlignedDetection]
"""Best first: one of one key, the best few of many."""

Asked = tuple[Check, Future[Answer]]


class Checker:
    """Takes texts from any thread. One thread cuts and embeds, another aligns, so that the embedder is kept busy."""

    def __init__(
        self,
        embedder_of: Callable[[Key], Embedder],
        *,
        most: int,
        seen: Callable[[int, int], None] = lambda texts, units: None,
    ) -> None:
        self._embedder_of, self._most, self._seen = embedder_of, most, seen
        self._waiting: deque[Asked] = deque()
        self._wake = threading.Condition()
        self._closed = False
        # One batch ahead of the aligner and no more: what waits in the queue is counted, and makes larger batches.
        self._embedded: queue.Queue[_Batch | None] = queue.Queue(1)
        self._threads = [
            threading.Thread(target=work, name=f"alimark-{name}", daemon=True)
            for name, work in (("embedding", self._embed_all), ("aligning", self._align_all))
        ]
        for thread in self._threads:
            thread.start()

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def submit(self, checks: Sequence[Check]) -> list[Future[Answer]]:
        """All of them are taken, or none."""
        futures: list[Future[Answer]] = [Future() for _ in checks]
        with self._wake:
            if self._closed:
                raise QueueFull("the service is shutting down")
            if len(self._waiting) + len(checks) > self._most:
                raise QueueFull(f"{len(self._waiting)} texts are waiting and {self._most} may; try again later")
            self._waiting.extend(zip(checks, futures, strict=True))
            self._wake.notify()
        return futures

    def close(self) -> None:
        """What waits is answered first."""
        with self._wake:
            self._closed = True
            self._wake.notify()
        for thread in self._threads:
            thread.join()

    def _embed_all(self) -> None:
        while batch := self._take():
            # Whoever gave up meanwhile is passed over; from here on nobody can.
            for group in _by_embedder([one for one in batch if one[1].set_running_or_notify_cancel()]):
                if done := self._embed(group):
                    self._embedded.put(done)
        self._embedded.put(None)

    def _align_all(self) -> None:
        while batch := self._embedded.get():
            for cut in batch.cuts:  # each is answered at once, so that its client's next text is there early
                try:
                    cut.future.set_result(_answer(cut, batch))
                except Exception as error:  # whatever it was, those who wait must hear of it
                    cut.future.set_exception(error)

    def _take(self) -> list[Asked]:
        with self._wake:
            self._wake.wait_for(lambda: self._waiting or self._closed)
            batch: list[Asked] = []
            characters = 0
            while self._waiting and len(batch) < BATCH_TEXTS:
                characters += len(self._waiting[0][0].text)
                if batch and characters > BATCH_CHARACTERS:
                    break
                batch.append(self._waiting.popleft())
            return batch

    def _embed(self, group: Sequence[Asked]) -> _Batch | None:
        """All units of some texts in one go. Who cannot be answered is told so and left out."""
        cuts: list[_Cut] = []
        try:
            embedder = self._embedder_of(group[0][0].keys[0])
            for check, future in group:
                try:
                    cuts.append(_cut(check, future, embedder))
                except AlimarkError as error:
                    future.set_exception(error)
            units = list(dict.fromkeys(unit for cut in cuts for one in cut.kinds for unit in one.text.unit_texts))
            self._seen(len(group), len(units))
            vectors = embedder.embed(units) if units else np.empty((0, embedder.dimension), np.float32)
            return _Batch(cuts, embedder, {unit: i for i, unit in enumerate(units)}, vectors)
        except Exception as error:  # whatever it was, those who wait must hear of it
            for _, future in group:
                if not future.done():
                    future.set_exception(error)
            return None


@dataclass(frozen=True)
class _Kind:
    """Keys that one pass can look for, and the text as they cut it."""

    keys: list[Key]
    text: Prepared


@dataclass(frozen=True)
class _Cut:
    check: Check
    future: Future[Answer]
    kinds: list[_Kind]


@dataclass(frozen=True)
class _Batch:
    """Texts and the vectors of all their units."""

    cuts: list[_Cut]
    embedder: Embedder
    place: dict[str, int]
    vectors: Vectors

    def of(self, text: Prepared) -> Vectors:
        return self.vectors[[self.place[unit] for unit in text.unit_texts]]


def _by_embedder(asked: Sequence[Asked]) -> list[list[Asked]]:
    groups: dict[str, list[Asked]] = {}
    for one in asked:
        groups.setdefault(one[0].keys[0].fingerprint, []).append(one)
    return list(groups.values())


def _cut(check: Check, future: Future[Answer], embedder: Embedder) -> _Cut:
    groups: dict[tuple[str, bool], list[Key]] = {}
    for key in check.keys:
        groups.setdefault((key.splitter, key.soft), []).append(key)
    return _Cut(check, future, [_Kind(keys, _prepared(check, keys[0], embedder)) for keys in groups.values()])


def _prepared(check: Check, key: Key, embedder: Embedder) -> Prepared:
    prepared = prepare(check.text, key, embedder, check.settings)
    count = len(prepared.sentences)
    blocks = check.settings.max_blocks if check.settings.search == "excerpt" else 1.5 * count
    if key.offsets * count * blocks * check.settings.draws * max(1.0, check.tried / 5) > MAX_CELLS:
        raise LimitError(
            f"a text of {count:,} sentences, {check.tried} keys and that false-positive rate are too much work "
            "at a time; cut the text into parts, name the key, or take a larger rate"
        )
    return prepared


def _answer(cut: _Cut, batch: _Batch) -> Answer:
    """Each kind of key by itself; p-values corrected for the keys of all kinds."""
    check, found = cut.check, []
    if check.tried == 1:
        [kind], [key] = cut.kinds, cut.kinds[0].keys
        signals = scoring(key, check.settings).signals(kind.text.units, project(batch.of(kind.text), key))
        return [detect_prepared(kind.text, [signals], key, batch.embedder, check.settings)]
    # As many random keys as resolve a p-value that is corrected for all keys, as for many keys of one kind.
    wanted = min(MAX_DRAWS, max(check.settings.draws, check.settings.draws * check.tried // 5))
    settings = replace(check.settings, draws=wanted)
    for kind in cut.kinds:
        found += best_keys(kind.text, [batch.of(kind.text)], kind.keys, batch.embedder, settings, 3, check.tried)
    return best_first(found)


def best_first(found: list[AlignedDetection]) -> Answer:
    return sorted(found, key=lambda one: (one.p_value, -one.score))[:3]
