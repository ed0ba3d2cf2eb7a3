"""From a text to a Detection: split, embed the units once, align with the key and with random keys."""

from __future__ import annotations

import hashlib
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from alimark import alignment
from alimark.alignment import Floats, Limits, Packed, Rule
from alimark.detection import AlignedDetection, Passage, describe
from alimark.embed import Embedder
from alimark.errors import AlimarkError, LimitError, TextError
from alimark.key import Key
from alimark.scoring import Scoring, scoring
from alimark.signals import Signals, Units, project, restructure
from alimark.significance import (
    ALPHA,
    BETA,
    RandomKeys,
    Significance,
    paper_rule,
    reference_rule,
    significance,
)  # fmt: skip
from alimark.text import looks_english, splitter

if TYPE_CHECKING:
    from alimark.learned import Restructured
    from alimark.llm.base import LLM

Item = TypeVar("Item")

MAX_SENTENCES = 2000
MAX_EXCERPT_SENTENCES = 200_000
MAX_SOFT_EXCERPT_SENTENCES = 20_000
"""Fewer, since a soft detector keeps tables of every sentence."""
LONG_TEXT = 300
"""Beyond so many sentences the drawing of random keys stops early, since each costs N times L."""


@dataclass(frozen=True)
class DetectionSettings(RandomKeys):
    """How AliMark searches a text. The defaults are the paper's."""

    restructure: str | tuple[int, int] = "single"
    """"none", "single" (one merge or one split), or at most (merges, splits) together; "learned": the text and what a chat
    model makes of it; "learned+single": each of those with one merge or one split."""
    variants: int = 4
    """Restructurings asked of the chat model, where restructuring is learned."""
    alpha: float = ALPHA
    beta: float = BETA
    null: Literal["paper", "reference"] = "paper"
    """Where z takes its mean and deviation from: the paper's rule or the public code's."""
    null_file: Path | None = None
    """A table in the public code's form, for null="reference"."""
    search: Literal["whole", "excerpt"] = "whole"
    """Align the whole text, or look for a marked passage anywhere in it."""
    passage_fpr: float = 0.01
    """Passages with a p-value above this are not named."""
    max_blocks: int = 100
    """An excerpt is looked for in so many blocks of the key: the length of the longest text ever marked. Those that a text may
    begin with, where the key has offsets, come on top."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if min(self.max_blocks, self.variants) < 1:
            raise AlimarkError("max_blocks and variants must be at least 1")
        if self.null not in ("paper", "reference"):
            raise AlimarkError(f"null must be 'paper' or 'reference', not {self.null!r}")
        if self.null_file is not None and self.null != "reference":
            raise AlimarkError("a table of the public code's form goes with null='reference'")
        if self.search not in ("whole", "excerpt"):
            raise AlimarkError(f"search must be 'whole' or 'excerpt', not {self.search!r}")
        if self.learned and self.search == "excerpt":
            raise AlimarkError("a chat model restructures whole texts; it does not go with the search for excerpts")
        try:
            _ = self.limits
        except (ValueError, TypeError) as error:
            more = " (or 'learned', or 'learned+single')" if isinstance(self.restructure, str) else ""
            raise AlimarkError(f"{error}{more}") from None

    @property
    def learned(self) -> bool:
        """Whether a chat model is asked."""
        return self.restructure in ("learned", "learned+single")

    @property
    def limits(self) -> Limits:
        if self.learned:
            return Limits.of("none" if self.restructure == "learned" else "single")
        limits = Limits.of(self.restructure)
        # The local search knows the moves of a single step, as often as they are needed.
        return Limits.of("single") if self.search == "excerpt" else limits

    def rule(self, m: int, longest: int) -> Rule:
        if self.null == "paper":
            return paper_rule(m, longest, self.alpha, self.beta)
        return reference_rule(m, longest, self.alpha, self.beta, self.null_file)


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
    from alimark.learned import restructured

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
        raw, found, aligned, passages = _excerpt(signals[0], key, settings)
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
) -> tuple[float, Significance, list[alignment.Step], int]:
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


def _excerpt(
    signals: Signals, key: Key, settings: DetectionSettings
) -> tuple[float, Significance, list[alignment.Step], tuple[Passage, ...]]:
    rule = scoring(key, settings)
    length = settings.max_blocks + key.offsets - 1
    secret = key.blocks(length)
    raw, steps = _best_passage(signals, 0, len(signals.packed), secret, rule)

    def null_scores(first: int, count: int) -> Floats:
        return rule.local_scores(signals, key.null_blocks(first, count, length))

    found = significance(raw, null_scores, settings.draws, stop_after=settings.stop_after, tail=settings.tail)
    passages = []
    rest = []
    if steps and found.p_value <= settings.passage_fpr:
        passages.append(best := Passage.of(raw, found.p_value, steps))
        rest = [(0, best.first - 1), (best.last, len(signals.packed))]
    # Further passages are held against the best that random keys find in the whole text, so the search is paid for.
    while rest and not found.stopped_early:
        start, stop = rest.pop()
        score, more = _best_passage(signals, start, stop, secret, rule)
        p_value = (1 + int((found.scores >= score).sum())) / (found.draws + 1)
        if more and p_value <= settings.passage_fpr:
            passages.append(passage := Passage.of(score, p_value, more))
            steps = steps + more
            rest += [(start, passage.first - 1), (passage.last, stop)]
    steps = sorted(steps, key=lambda step: (step.last, step.block))
    return raw, found, steps, tuple(sorted(passages, key=lambda passage: passage.first))


def _best_passage(
    signals: Signals, start: int, stop: int, secret: Packed, rule: Scoring
) -> tuple[float, list[alignment.Step]]:
    if stop <= start:
        return 0.0, []
    score, steps = rule.trace_local(signals.part(start, stop), secret)
    return score, [step._replace(last=step.last + start) for step in steps]
