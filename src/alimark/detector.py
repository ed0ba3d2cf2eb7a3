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
from alimark.signals import Signals, Units, project, project_many, restructure
from alimark.significance import (
    ALPHA,
    BETA,
    MAX_DRAWS,
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


def _with_others(
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


def _parts(items: Sequence[Item], size: int) -> Iterable[Sequence[Item]]:
    return (items[start : start + size] for start in range(0, len(items), size))


def projections_of(texts: Sequence[str], key: Key, embedder: Embedder) -> NDArray[np.float64]:
    return projections_by(texts, embedder, lambda vectors: project(vectors, key))


def projections_by(
    texts: Sequence[str], embedder: Embedder, see: Callable[[NDArray[np.float32]], Floats]
) -> NDArray[np.float64]:
    """Embedded in parts, so that the vectors of a long text are never all in memory; `see` says what is kept of them."""
    return np.concatenate([see(embedder.embed(part)) for part in _parts(texts, 8192)])


Beat = Callable[[], None]


def _no_beat() -> None:
    """Nobody listens."""


def detect_batch(
    texts: Iterable[str],
    key: Key,
    embedder: Embedder,
    settings: DetectionSettings,
    *,
    llm: LLM | None = None,
    times: Counter[str] | None = None,
    beat: Beat = _no_beat,
) -> list[AlignedDetection | AlimarkError]:
    """One answer a text, in order; a text that cannot be answered gives its error. All units go in one embedding batch.

    `llm`: the chat model of learned restructuring. The seconds spent on each stage are added to `times`. `beat` is called
    before every step that one text alone can make long.
    """
    key.check(embedder)
    clock = Clock(Counter() if times is None else times)
    prepared = _prepare_each(texts, key, embedder, settings, beat)
    clock.lap("splitting")
    sound = _with_others([one for one in prepared if isinstance(one, Prepared)], key, embedder, settings, llm)
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


def _prepare_each(
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


def detect_keys(
    text: str,
    keys: Sequence[Key],
    embedder: Embedder,
    settings: DetectionSettings,
    *,
    best: int = 3,
    llm: LLM | None = None,
) -> list[AlignedDetection]:
    """Whose key it was: the best few of many keys, each p-value corrected for the number of keys tried.

    All keys are scored once on one embedding of the text; random keys, at least 200 for each key tried, are drawn for the
    best few alone. The keys may differ in block size and centre, not in embedder and splitter.
    """
    _check_alike(keys, embedder)
    [prepared] = _with_others([prepare(text, keys[0], embedder, settings)], keys[0], embedder, settings, llm)
    # 200 a key for the usual 1000 draws, and more in proportion where a stricter rate asked for more.
    draws = max(settings.draws, settings.draws * len(keys) // 5)
    settings = replace(settings, draws=min(draws, MAX_DRAWS))
    vectors = [embedder.embed(one.units.texts) for one in prepared.every]
    return best_keys(prepared, vectors, keys, embedder, settings, best)


def detect_keys_batch(
    texts: Iterable[str],
    keys: Sequence[Key],
    embedder: Embedder,
    settings: DetectionSettings,
    *,
    tried: int | None = None,
    times: Counter[str] | None = None,
    beat: Beat = _no_beat,
) -> list[AlignedDetection | AlimarkError]:
    """For each text the likeliest of many keys, p-values corrected for their number; all units go in one embedding batch.

    `tried`: the number of keys, where others than these are tried on the same texts, too. Random keys are as many as the
    settings say, however many keys there are: a corpus asks again where that is too coarse.
    """
    _check_alike(keys, embedder)
    if settings.learned:
        raise AlimarkError("learned restructuring asks about one text at a time; take single or none for many")
    clock = Clock(Counter() if times is None else times)
    prepared = _prepare_each(texts, keys[0], embedder, settings, beat)
    clock.lap("splitting")
    sound = [one for one in prepared if isinstance(one, Prepared)]
    place = {unit: i for i, unit in enumerate(dict.fromkeys(unit for one in sound for unit in one.unit_texts))}
    vectors = embedder.embed(list(place)) if place else np.empty((0, embedder.dimension), np.float32)
    clock.lap("embedding")

    def best(one: Prepared) -> AlignedDetection:
        beat()
        own = vectors[[place[unit] for unit in one.unit_texts]]
        return best_keys(one, [own], keys, embedder, settings, 1, tried)[0]

    answers = [one if isinstance(one, AlimarkError) else best(one) for one in prepared]
    clock.lap("alignment")
    return answers


def _check_alike(keys: Sequence[Key], embedder: Embedder) -> None:
    if not keys:
        raise AlimarkError("no keys were given")
    if len({(key.fingerprint, key.splitter) for key in keys}) > 1:
        raise AlimarkError("keys of several embedders or splitters cannot share one embedding; ask for each apart")
    for key in keys:
        key.check(embedder)
    if len({key.soft for key in keys}) > 1:
        raise AlimarkError("hard and soft keys have scores of different kinds; ask for each kind apart")


def best_keys(
    prepared: Prepared,
    vectors: Sequence[NDArray[np.float32]],
    keys: Sequence[Key],
    embedder: Embedder,
    settings: DetectionSettings,
    best: int,
    tried: int | None = None,
) -> list[AlignedDetection]:
    """The few keys that score highest, each held against random keys."""
    pairs = list(zip(prepared.every, vectors, strict=True))
    scores = np.max([_score_keys(one.units, own, keys, settings) for one, own in pairs], axis=0)
    found = [
        detect_prepared(
            prepared,
            [scoring(keys[k], settings).signals(one.units, project(own, keys[k])) for one, own in pairs],
            keys[k],
            embedder,
            settings,
        )
        for k in sorted(range(len(keys)), key=lambda k: -scores[k])[:best]
    ]
    return sorted((one.corrected(tried or len(keys)) for one in found), key=lambda one: (one.p_value, -one.score))


def _score_keys(
    units: Units, embeddings: NDArray[np.float32], keys: Sequence[Key], settings: DetectionSettings
) -> list[float]:
    """The raw score of each key, in parts of keys that are alike."""
    scores = [0.0] * len(keys)
    groups: dict[tuple[int, int | None, int, int, bytes], list[int]] = {}
    for number, key in enumerate(keys):
        centre = b"" if key.centre is None else key.centre.tobytes()
        groups.setdefault((key.block_size, key.span, key.soft_version, key.offsets, centre), []).append(number)
    for members in groups.values():
        for part in _parts(members, _keys_together(units, keys[members[0]])):
            found = _score_part(units, embeddings, [keys[number] for number in part], settings)
            for number, score in zip(part, found, strict=True):
                scores[number] = float(score)
    return scores


def _keys_together(units: Units, key: Key) -> int:
    """Keys scored in one go: soft ones keep tables of every sentence, of which 64 MB at a time are enough."""
    return max(1, 4_000_000 // (units.count * key.block_size * 64)) if key.soft else 256


def _score_part(
    units: Units, embeddings: NDArray[np.float32], keys: list[Key], settings: DetectionSettings
) -> Floats | list[float]:
    rule = scoring(keys[0], settings)
    every = (rule.signals(units, projections) for projections in project_many(embeddings, keys))
    if settings.search == "excerpt":
        blocks = (key.blocks(settings.max_blocks + key.offsets - 1)[None] for key in keys)
        found = (rule.local_scores(own, block)[0] for own, block in zip(every, blocks, strict=True))
        return [score / rule.local_unit for score in found]
    jobs = np.arange(len(keys))
    return rule.scores(list(every), np.stack([key.blocks(rule.length(units.count)) for key in keys]), jobs, jobs)
