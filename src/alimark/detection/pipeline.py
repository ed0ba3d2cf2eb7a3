"""From a text to a Detection: split, embed the units once, align with the key and with random keys."""

from __future__ import annotations

import hashlib
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeVar

import numpy as np
from numpy.typing import NDArray

from alimark._util.arrays import Floats, Packed
from alimark.detection.excerpts import excerpt
from alimark.detection.kernels.types import Step
from alimark.detection.results import AlignedDetection, describe
from alimark.detection.scoring import scoring
from alimark.detection.settings import (
    LONG_TEXT,
    MAX_EXCERPT_SENTENCES,
    MAX_SENTENCES,
    MAX_SOFT_EXCERPT_SENTENCES,
    DetectionSettings,
)
from alimark.detection.signals import Signals
from alimark.detection.stats.p_values import Significance, significance
from alimark.detection.units import Units, restructure
from alimark.embedding.base import Embedder
from alimark.errors import AlimarkError, LimitError, TextError
from alimark.keys.key import Key
from alimark.keys.projection import project
from alimark.text.language import looks_english
from alimark.text.splitting import splitter

if TYPE_CHECKING:
    from alimark.detection.chat_restructuring import Restructured
    from alimark.llm.base import LLM


Item = TypeVar("Item")


@dataclass(frozen=True)
class Prepared:
    """A text cut into units, before anything is embedded."""

    text: str
    units: Units
    sentences: list[str]
    warnings: tuple[str, ...]
    restructured: Restructured | None = None
    others: tuple[Prepared, ...] = ()
    """The text as a chat model restructured it."""

    @property
    def every(self) -> tuple[Prepared, ...]:
        """The text and what was made of it."""
        return (self, *self.others)

    @property
    def unit_texts(self) -> list[str]:
        return [unit for one in self.every for unit in one.units.texts]


def prepare(text: str, key: Key, embedder: Embedder, settings: DetectionSettings) -> Prepared:
    """Splits and restructures; raises where the text holds nothing or too much. A chat model is not asked."""
    sentences = splitter(key.splitter).units(text)
    if not sentences:
        raise TextError("the text holds no sentence; there is nothing to detect")
    excerpt = settings.search == "excerpt"
    limit = MAX_SENTENCES if not excerpt else MAX_SOFT_EXCERPT_SENTENCES if key.soft else MAX_EXCERPT_SENTENCES
    if len(sentences) > limit:
        way = "cut it into parts" if excerpt else "cut it into parts, or look for marked passages (--excerpt)"
        raise LimitError(f"the text has {len(sentences):,} sentences and the limit is {limit:,}; {way}")
    warnings = () if "en" not in embedder.languages or looks_english(text) else (
        f"the text does not look like English, the only language that {embedder.name} knows: a mark may not be found",
    )  # fmt: skip
    return Prepared(text, restructure(sentences, scoring(key, settings).limits), sentences, warnings)


def units_of(texts: Iterable[str], key: Key, embedder: Embedder, settings: DetectionSettings) -> Iterator[str]:
    """The units that detecting the texts will embed; those of texts that cannot be answered are left out."""
    for text in texts:
        with suppress(AlimarkError):
            yield from prepare(text, key, embedder, settings).unit_texts


def with_others(
    prepared: Sequence[Prepared], key: Key, embedder: Embedder, settings: DetectionSettings, llm: LLM | None
) -> list[Prepared]:
    """The texts with what a chat model makes of them, where that is asked for."""
    if not settings.learned:
        return list(prepared)
    if llm is None:
        raise AlimarkError("learned restructuring asks a chat model; give one (llm=..., or --llm)")
    from alimark.detection.chat_restructuring import restructured

    found = restructured([one.text for one in prepared], llm, settings.variants, splitter(key.splitter))
    full = []
    for one, made in zip(prepared, found, strict=True):
        others = []
        for text in made.texts:
            with suppress(LimitError):  # cut into more sentences than can be searched
                others.append(prepare(text, key, embedder, settings))
        tried = replace(made, texts=tuple(other.text for other in others))
        full.append(replace(one, restructured=tried, others=tuple(others)))
    return full


def parts(items: Sequence[Item], size: int) -> Iterable[Sequence[Item]]:
    return (items[start : start + size] for start in range(0, len(items), size))


def projections_of(texts: Sequence[str], key: Key, embedder: Embedder) -> NDArray[np.float64]:
    return projections_by(texts, embedder, lambda vectors: project(vectors, key))


def projections_by(
    texts: Sequence[str], embedder: Embedder, see: Callable[[NDArray[np.float32]], Floats]
) -> NDArray[np.float64]:
    """Embedded in parts, so that the vectors of a long text are never all in memory; `see` says what is kept of them."""
    return np.concatenate([see(embedder.embed(part)) for part in parts(texts, 8192)])


Beat = Callable[[], None]


def no_beat() -> None:
    """Nobody listens."""


def detect_batch(
    texts: Iterable[str],
    key: Key,
    embedder: Embedder,
    settings: DetectionSettings,
    *,
    llm: LLM | None = None,
    times: Counter[str] | None = None,
    beat: Beat = no_beat,
) -> list[AlignedDetection | AlimarkError]:
    """One answer a text, in order; a text that cannot be answered gives its error. All units go in one embedding batch.

    `llm`: the chat model of learned restructuring. The seconds spent on each stage are added to `times`. `beat` is called
    before every step that one text alone can make long.
    """
    key.check(embedder)
    clock = Clock(Counter() if times is None else times)
    prepared = prepare_each(texts, key, embedder, settings, beat)
    clock.lap("splitting")
    sound = with_others([one for one in prepared if isinstance(one, Prepared)], key, embedder, settings, llm)
    if settings.learned:
        clock.lap("restructuring")
    place = {unit: i for i, unit in enumerate(dict.fromkeys(unit for one in sound for unit in one.unit_texts))}
    projections = projections_of(list(place), key, embedder) if place else np.empty((0, key.block_size))
    clock.lap("embedding")
    rule = scoring(key, settings)

    def aligned(one: Prepared) -> AlignedDetection:
        beat()
        seen = [rule.signals(each.units, projections[[place[unit] for unit in each.units.texts]]) for each in one.every]
        return detect_prepared(one, seen, key, embedder, settings)

    found = map(aligned, sound)
    answers = [one if isinstance(one, AlimarkError) else next(found) for one in prepared]
    clock.lap("alignment")
    return answers


def prepare_each(
    texts: Iterable[str], key: Key, embedder: Embedder, settings: DetectionSettings, beat: Beat
) -> list[Prepared | AlimarkError]:
    prepared: list[Prepared | AlimarkError] = []
    for text in texts:
        beat()
        try:
            prepared.append(prepare(text, key, embedder, settings))
        except AlimarkError as error:
            prepared.append(error)
    return prepared


class Clock:
    """Adds the seconds of each stage to `times`."""

    def __init__(self, times: Counter[str]) -> None:
        self.times, self.last = times, time.perf_counter()

    def skip(self) -> None:
        """What passed since the last lap is counted elsewhere."""
        self.last = time.perf_counter()

    def lap(self, stage: str) -> None:
        now = time.perf_counter()
        self.times[stage] += now - self.last  # type: ignore[assignment]
        self.last = now


def detect_prepared(
    prepared: Prepared, signals: Sequence[Signals], key: Key, embedder: Embedder, settings: DetectionSettings
) -> AlignedDetection:
    """The alignment part: everything after the embedding. `signals`: of the text and of each of its others."""
    if settings.stop_after is None and len(prepared.sentences) > LONG_TEXT:
        settings = replace(settings, stop_after=50)
    if settings.search == "excerpt":
        raw, found, aligned, passages = excerpt(signals[0], key, settings)
        best = 0
    else:
        raw, found, aligned, best = _whole(signals, key, settings)
        passages = ()
    return AlignedDetection(
        key_id=key.id,
        scheme=key.scheme,
        decision=key.decision,
        block_size=key.block_size,
        embedder=embedder.name,
        backend=embedder.backend,
        fingerprint=embedder.fingerprint,
        splitter=key.splitter,
        settings=settings,
        text_sha256=hashlib.sha256(prepared.text.encode("utf-8", "surrogatepass")).hexdigest(),
        sentences=tuple(prepared.sentences),
        raw=raw,
        score=(raw - found.mean) / found.std if found.std > 0 else 0.0,
        z=raw if settings.search == "whole" and not key.soft else None,
        p_value=found.p_value,
        p_randomised=found.randomised(1 - key.uniform("ties", prepared.text)),
        p_tail=found.tail,
        draws=found.draws,
        above=found.above,
        ties=found.ties,
        stopped_early=found.stopped_early,
        alignment=describe(aligned, signals[best].packed, key, prepared.every[best].sentences),
        passages=passages,
        near_flips=signals[best].near_flips,
        warnings=prepared.warnings,
        offsets=key.offsets,
        restructured=prepared.restructured and replace(prepared.restructured, best=best),
    )


def _whole(
    signals: Sequence[Signals], key: Key, settings: DetectionSettings
) -> tuple[float, Significance, list[Step], int]:
    """The best score over the text and its others, held against the best that each random key gets over the same."""
    rule = scoring(key, settings)
    length = rule.length(max(len(one.packed) for one in signals))
    secret = key.blocks(length)

    def scores(blocks: Packed) -> Floats:
        """Of every text, a row each, under every key."""
        texts, keys = np.repeat(np.arange(len(signals)), len(blocks)), np.tile(np.arange(len(blocks)), len(signals))
        return rule.scores(signals, blocks, texts, keys).reshape(len(signals), len(blocks))

    def null_scores(first: int, count: int) -> Floats:
        best: Floats = scores(key.null_blocks(first, count, length)).max(axis=0)
        return best

    own = scores(secret[None])[:, 0]
    best = int(np.argmax(own))
    raw = float(own[best])
    found = significance(raw, null_scores, settings.draws, stop_after=settings.stop_after, tail=settings.tail)
    steps = rule.trace(signals[best], secret[: rule.length(len(signals[best].packed))])
    return raw, found, steps, best
