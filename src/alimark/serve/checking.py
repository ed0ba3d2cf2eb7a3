"""Detections of many requests at a time: one thread takes all texts that wait and embeds their units in one batch.

Nobody waits for a batch to fill: while one is being embedded, the next gathers by itself.
"""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from alimark.detection import AlignedDetection
from alimark.detector import DetectionSettings, detect_batch, detect_keys, prepare
from alimark.embed import Embedder
from alimark.errors import AlimarkError, LimitError
from alimark.key import Key

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


class Checker:
    """Takes texts from any thread."""

    def __init__(
        self,
        embedder_of: Callable[[Key], Embedder],
        *,
        most: int,
        seen: Callable[[int, int], None] = lambda texts, units: None,
    ) -> None:
        self._embedder_of, self._most, self._seen = embedder_of, most, seen
        self._waiting: deque[tuple[Check, Future[Answer]]] = deque()
        self._wake = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._serve, name="alimark-checker", daemon=True)
        self._thread.start()

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
        self._thread.join()

    def _serve(self) -> None:
        while batch := self._take():
            # Whoever gave up meanwhile is passed over; from here on nobody can.
            batch = [(check, future) for check, future in batch if future.set_running_or_notify_cancel()]
            for group in _by_embedder([check for check, _ in batch]):
                mine = [(check, future) for check, future in batch if check in group]
                answers: Sequence[Answer | Exception]
                try:
                    answers = self._answer([check for check, _ in mine])
                except Exception as error:  # whatever it was, those who wait must hear of it
                    answers = [error] * len(mine)
                for (_, future), answer in zip(mine, answers, strict=True):
                    if isinstance(answer, Exception):
                        future.set_exception(answer)
                    else:
                        future.set_result(answer)

    def _take(self) -> list[tuple[Check, Future[Answer]]]:
        with self._wake:
            self._wake.wait_for(lambda: self._waiting or self._closed)
            batch: list[tuple[Check, Future[Answer]]] = []
            characters = 0
            while self._waiting and len(batch) < BATCH_TEXTS:
                characters += len(self._waiting[0][0].text)
                if batch and characters > BATCH_CHARACTERS:
                    break
                batch.append(self._waiting.popleft())
            return batch

    def _answer(self, checks: Sequence[Check]) -> list[Answer | AlimarkError]:
        embedder = self._embedder_of(checks[0].keys[0])
        units: dict[str, None] = {}
        refused: dict[Check, AlimarkError] = {}
        for check in checks:
            try:
                units |= dict.fromkeys(unit for one in _kinds(check.keys) for unit in _units(check, one[0], embedder))
            except AlimarkError as error:
                refused[check] = error
        known = _Known(embedder, list(units))
        self._seen(len(checks), len(units))
        found = _of_one_key([check for check in checks if check not in refused and check.tried == 1], known)
        for check in checks:
            if check not in refused and check not in found:
                found[check] = _of_many_keys(check, known)
        return [refused.get(check) or found[check] for check in checks]


class _Known:
    """An embedder that has embedded all it will be asked for, in one batch."""

    def __init__(self, embedder: Embedder, texts: list[str]) -> None:
        self.name, self.dimension, self.fingerprint = embedder.name, embedder.dimension, embedder.fingerprint
        self.backend, self.languages = embedder.backend, embedder.languages
        self._place = {text: i for i, text in enumerate(texts)}
        self._vectors = embedder.embed(texts) if texts else np.empty((0, embedder.dimension), np.float32)

    def embed(self, texts: Sequence[str]) -> Vectors:
        return self._vectors[[self._place[text] for text in texts]]


def _by_embedder(checks: Sequence[Check]) -> list[set[Check]]:
    groups: dict[str, set[Check]] = {}
    for check in checks:
        groups.setdefault(check.keys[0].fingerprint, set()).add(check)
    return list(groups.values())


def _kinds(keys: Sequence[Key]) -> list[list[Key]]:
    """Keys that one pass can look for."""
    groups: dict[tuple[str, bool], list[Key]] = {}
    for key in keys:
        groups.setdefault((key.splitter, key.soft), []).append(key)
    return list(groups.values())


def _units(check: Check, key: Key, embedder: Embedder) -> list[str]:
    prepared = prepare(check.text, key, embedder, check.settings)
    count = len(prepared.sentences)
    blocks = check.settings.max_blocks if check.settings.search == "excerpt" else 1.5 * count
    if key.offsets * count * blocks * check.settings.draws * max(1.0, check.tried / 5) > MAX_CELLS:
        raise LimitError(
            f"a text of {count:,} sentences, {check.tried} keys and that false-positive rate are too much work "
            "at a time; cut the text into parts, name the key, or take a larger rate"
        )
    return prepared.unit_texts


def _of_one_key(checks: Sequence[Check], known: _Known) -> dict[Check, Answer | AlimarkError]:
    groups: dict[tuple[Key, DetectionSettings], list[Check]] = {}
    for check in checks:
        groups.setdefault((check.keys[0], check.settings), []).append(check)
    found: dict[Check, Answer | AlimarkError] = {}
    for (key, settings), some in groups.items():
        for check, one in zip(some, detect_batch([check.text for check in some], key, known, settings), strict=True):
            found[check] = one if isinstance(one, AlimarkError) else [one]
    return found


def _of_many_keys(check: Check, known: _Known) -> Answer | AlimarkError:
    """Each kind of key by itself; p-values corrected for the keys of all kinds."""
    total, found = check.tried, []
    for keys in _kinds(check.keys):
        # `detect_keys` draws and corrects for the keys it is given; so many draws resolve the rest.
        wanted = max(check.settings.draws, check.settings.draws * total // 5)
        settings = replace(check.settings, draws=math.ceil(wanted / max(1.0, len(keys) / 5)))
        try:
            some = detect_keys(check.text, keys, known, settings)
        except AlimarkError as error:
            return error
        found += [_corrected(one, total / len(keys), total) for one in some]
    return best_first(found)


def best_first(found: list[AlignedDetection]) -> Answer:
    return sorted(found, key=lambda one: (one.p_value, -one.score))[:3]


def _corrected(one: AlignedDetection, factor: float, total: int) -> AlignedDetection:
    passages = tuple(replace(passage, p_value=min(1.0, factor * passage.p_value)) for passage in one.passages)
    return replace(
        one, p_value=min(1.0, factor * one.p_value), p_randomised=min(1.0, factor * one.p_randomised),
        passages=passages, keys_tried=total,
    )  # fmt: skip
