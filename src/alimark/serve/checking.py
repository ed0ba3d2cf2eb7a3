"""Detections for many requests at a time, in threads that all tokens share in turn."""

import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

from alimark.core._util.fair_pool import FairPool
from alimark.core._util.work import TimedFuture
from alimark.core.detection.aligned_results import AlignedDetection
from alimark.core.detection.batching import embed_texts
from alimark.core.detection.preparing import PreparedText, alike, prepare
from alimark.core.detection.results import best_first
from alimark.core.detection.scoring import whole_scoring
from alimark.core.detection.searching import EARLY_STOP, answer, excerpt_length
from alimark.core.detection.settings import DetectionSettings
from alimark.core.detection.stats.p_values import draws_for_keys
from alimark.core.embedding.base import Embedder
from alimark.core.keys.key import Key
from alimark.errors import AlimarkError, KeyFileError, LimitError, MissingExtra, ModelError
from alimark.serve.places import Places

Result = TypeVar("Result")
Answer = list[AlignedDetection]
"""Best first: a single detection where one key was asked for, the best few for many."""

BEST_KEYS = 3
"""The number of keys that an answer names."""
_THREADS, _EACH = 5, 2
"""Texts that are checked at a time, and of these the most of a token: a text is embedded while another one is aligned. Long
texts of two tokens leave a thread to others."""

log = logging.getLogger("alimark.serve")


@dataclass(frozen=True, eq=False)
class Check:
    """A text and the keys to look for."""

    text: str
    keys: tuple[Key, ...]
    settings: DetectionSettings
    max_work: float = math.inf
    """The most seconds of CPU time, where that is less than the checker's."""


@dataclass(frozen=True)
class _Kind:
    """Keys that share a prepared text, with this text and their embedder."""

    keys: list[Key]
    text: PreparedText
    embedder: Embedder


class Checker:
    """Answers checks from any thread, at most `most` at a time. A future can be cancelled at any time.

    `max_work` is the most seconds of CPU time that the alignments of a text may take, as they are estimated.
    """

    def __init__(self, embedder_of: Callable[[Key], Embedder], *, most: int, max_work: float = math.inf) -> None:
        self._embedder_of, self._max_work = embedder_of, max_work
        self._places = Places(most)
        self._pool = FairPool(_THREADS, "alimark-checker", _EACH)

    @property
    def under_way(self) -> int:
        """The number of texts that wait or are checked."""
        return self._places.taken

    def submit(
        self, owner: str, checks: Sequence[Check], finish: Callable[[Check, Answer], Result]
    ) -> list[TimedFuture[Result]]:
        """Queues all checks of an owner, the id of a token, or none of them and raises QueueFull.

        `finish` makes the result of a check from its detections, in the thread that made these.
        """

        def work(check: Check) -> Result:
            return finish(check, self.detect(check))

        return self._places.submit(self._pool, owner, [partial(work, check) for check in checks])

    def detect(self, check: Check) -> Answer:
        """Returns the detections under the best keys. Keys that cannot be used are left out, and the detections say so."""
        kinds, unusable = self._prepared(check)
        settings, tried = self._bounded(check, kinds), len(check.keys)
        best = 1 if tried == 1 else BEST_KEYS
        detections: list[AlignedDetection] = []
        for embedder in {id(kind.embedder): kind.embedder for kind in kinds}.values():
            sharing = [kind for kind in kinds if kind.embedder is embedder]
            embedded = embed_texts((kind.text for kind in sharing), embedder)
            for kind in sharing:
                detections += answer(kind.text, embedded, kind.keys, embedder, settings, best=best, tried=tried)
        if unusable:
            note = "some keys could not be used, so a mark of theirs would not be found; the operator's log says which and why"
            detections = [replace(detection, warnings=(*detection.warnings, note)) for detection in detections]
        return best_first(detections)[:best]

    def _prepared(self, check: Check) -> tuple[list[_Kind], bool]:
        """The text as it is cut for each kind of keys, and whether some keys cannot be used; an error where none can."""
        kinds: list[_Kind] = []
        unusable: AlimarkError | None = None
        for keys in alike(check.keys):
            try:
                embedder = self._embedder_of(keys[0])
                kinds.append(_Kind(keys, prepare(check.text, keys[0], embedder, check.settings), embedder))
            except (KeyFileError, ModelError, MissingExtra) as error:
                unusable = error
                log.warning("keys were set aside", extra={"reason": str(error)})
        if unusable is not None and not kinds:
            raise unusable
        return kinds, unusable is not None

    def _bounded(self, check: Check, kinds: Sequence[_Kind]) -> DetectionSettings:
        """The settings with the random keys that are drawn; raises LimitError where aligning a text would take too long."""
        settings, tried = check.settings, len(check.keys)
        if tried > 1:
            settings = replace(settings, draws=draws_for_keys(settings.draws, tried))
        seconds = sum(detection_seconds(kind.text, kind.keys, settings) for kind in kinds)
        max_work = min(self._max_work, check.max_work)
        if seconds > max_work:
            sentences = max(len(version.sentences) for kind in kinds for version in kind.text.versions)
            keys = f"{tried} keys" if tried > 1 else "one key"
            remedy = "cut the text into parts, name the key" if tried > 1 else "cut the text into parts"
            raise LimitError(
                f"a text of {sentences:,} sentences or clauses, {keys} and that false-positive rate are too much work at a "
                f"time: about {seconds:.0f} s of CPU time, and the limit is {max_work:g} s; {remedy}, or take a larger "
                "rate"
            )
        if seconds > LONG_WORK and settings.stop_after is None:
            settings = replace(settings, stop_after=stop_after(settings, tried))
        return settings

    def close(self) -> None:
        """Answers all texts that wait and ends the threads."""
        self._places.closed = True
        self._pool.finish()


# The CPU time of a detection. Nearly all of it is spent in the alignments of the text with random keys, and that of
# an alignment is proportional to the cells of its table.

LONG_WORK = 1.0
"""CPU seconds above which a text costs so much that the drawing of random keys stops where it shows no mark."""
_HARD, _SOFT, _PAYLOAD, _PASSAGE, _RUN = 10e-9, 45e-9, 100e-9, 10e-9, 12e-9
"""CPU seconds for a cell, measured on a machine of 2026: alignments of hard keys, soft keys and soft keys with payloads, the
search for a passage, and alignments of the pieces of a text that is read by clauses."""
_ROUGH = 0.1
"""P-values above this, corrected for the keys tried, need no precision."""


def detection_seconds(text: PreparedText, keys: Sequence[Key], settings: DetectionSettings) -> float:
    """Estimates the CPU time of one key's detection in a text, with all random keys of the settings.

    Of keys that are searched together the most expensive one counts. With many keys the best few get random keys, but a text is
    marked under one of them: the drawing for the others stops early (`stop_after`).
    """
    shapes = {(key.block_size, key.offsets, key.payload_bits, key.soft): key for key in keys}
    return settings.draws * max(_alignment_seconds(text, key, settings) for key in shapes.values())


def stop_after(settings: DetectionSettings, tried: int) -> int:
    """After how many random keys that score as high the drawing for an expensive text stops.

    Its p-value, corrected for the keys tried, is then well above every false-positive rate that a request may name.

    Example:
        >>> [stop_after(DetectionSettings(draws=draws), tried) for draws, tried in ((1000, 1), (1000, 3), (80_000, 400))]
        [50, 34, 20]
    """
    return min(EARLY_STOP, math.ceil(_ROUGH * settings.draws / tried))


def _alignment_seconds(text: PreparedText, key: Key, settings: DetectionSettings) -> float:
    """The CPU time of a text's alignments with one key."""
    searches = settings.searches(text.longest)
    # A soft key is searched once for all its starts, a hard one for each of them.
    cell = (_PAYLOAD if key.payload_bits else _SOFT) if key.soft else _HARD * key.offsets
    seconds = 0.0
    for version in text.versions:
        count = len(version.sentences)
        if "excerpt" in searches:
            seconds += _PASSAGE * count * excerpt_length(key, settings)
        if "whole" in searches:
            chances = version.units.chances
            length = whole_scoring(key, settings, version.units).length(count)
            seconds += count * length * (cell if chances is None else _RUN * chances.shape[1])
    return seconds
