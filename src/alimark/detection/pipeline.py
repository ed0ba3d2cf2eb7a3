"""AliMark's detection, from a text to an `AlignedDetection`, as a pipeline of stages.

    text --normalise--> Normalised --split--> SplitText --make_units--> PreparedText     (`prepare` runs these three)
    many PreparedText --deduplicate--> UniqueUnits --embed--> vectors --project--> Signals of each text
    Signals --score--> Score --significance_of--> Significance --describe--> AlignedDetection

`detect_batch` runs all of them for many texts under one key. Other callers run the same stages and add batching or threads:
`many_keys` (many keys on one embedding), the service's checker (texts of many requests in one batch), `calibration.rates`
(many texts against the same random keys) and the sentence-level schemes (their own projection and statistic).
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import numpy as np
from numpy.typing import NDArray

from alimark._util.arrays import Floats
from alimark.detection.building import EmbedderIdentity, Statistic, build_detection
from alimark.detection.clauses import clause_units
from alimark.detection.excerpts import passages, score_excerpt
from alimark.detection.payloads import decode
from alimark.detection.results import AlignedDetection, Reading, aligned_steps
from alimark.detection.scoring import Score, SoftPayload, score_table, scoring
from alimark.detection.sentence_chances import sentence_chances
from alimark.detection.settings import (
    LONG_TEXT,
    MAX_EXCERPT_SENTENCES,
    MAX_SENTENCES,
    MAX_SOFT_EXCERPT_SENTENCES,
    DetectionSettings,
)
from alimark.detection.signals import Signals
from alimark.detection.stats.p_values import Significance, significance_of
from alimark.detection.stats.power import SentencesNeeded
from alimark.detection.units import Units, restructure
from alimark.embedding.base import Embedder
from alimark.errors import AlimarkError, LimitError, TextError
from alimark.keys.key import Key
from alimark.keys.projection import project
from alimark.text.language import looks_english
from alimark.text.normalising import Normalised
from alimark.text.normalising import normalise as normalise_text
from alimark.text.splitting import splitter
from alimark.text.units import clean

if TYPE_CHECKING:
    from alimark.detection.chat_restructuring import Restructured
    from alimark.llm.base import LLM

Item = TypeVar("Item")
Vectors = NDArray[np.float32]

_UNITS_AT_A_TIME = 8192
_EARLY_STOP = 50


# Stages 1 to 3: one text, before anything is embedded


@dataclass(frozen=True)
class SplitText:
    """A text and its sentences."""

    text: str
    sentences: list[str]
    as_written: list[str]
    """The sentences as they stand in the text, before they are cleaned."""


@dataclass(frozen=True)
class PreparedText:
    """A text cut into units, before anything is embedded."""

    text: str
    """The text as it was given: its hash is recorded, and it decides how ties are broken."""
    sentences: list[str]
    units: Units
    warnings: tuple[str, ...] = ()
    restructured: Restructured | None = None
    """The answers of a chat model, where restructuring is learned."""
    variants: tuple[PreparedText, ...] = ()
    """The chat model's restructurings of the text, prepared in the same way."""
    changes: Mapping[str, int] = field(default_factory=dict)
    """How many changes of each kind normalisation makes in the text (`alimark.text.normalising.KINDS`)."""
    reading: Reading = "as it stands"
    further: tuple[PreparedText, ...] = ()
    """Other readings of the text: after normalisation, where a key of text version 0 reads it both ways, and by clauses."""
    replaced: bool = False
    """Whether the restructurings are searched instead of the text, and not beside it."""

    @property
    def versions(self) -> tuple[PreparedText, ...]:
        """What is searched: the text, its restructurings and its other readings, or the restructurings alone."""
        return self.variants if self.replaced else (self, *self.variants, *self.further)

    @property
    def readings(self) -> list[slice]:
        """The versions of each reading: the text with its restructurings, and each other reading."""
        further = 0 if self.replaced else len(self.further)
        first = len(self.versions) - further
        return [slice(0, first), *(slice(number, number + 1) for number in range(first, first + further))]

    @property
    def unit_texts(self) -> list[str]:
        """The units of all versions of the text."""
        return [unit for version in self.versions for unit in version.units.texts]


def normalise(text: str, key: Key) -> Normalised:
    """The text as it is split: as it stands for keys of text version 0, normalised for those of version 1."""
    return splitter(key.splitter, key.text_version).read(text)


def split(text: str, key: Key, text_version: int | None = None) -> SplitText:
    """Cuts a text that was normalised into sentences with the key's splitter.

    Raises:
        TextError: The text has no sentence.
    """
    cutter = splitter(key.splitter, key.text_version if text_version is None else text_version)
    as_written = cutter.sentences(text)
    sentences = [unit for sentence in as_written if (unit := clean(sentence))]
    if not sentences:
        raise TextError("the text holds no sentence; there is nothing to detect")
    return SplitText(text, sentences, as_written)


def check_length(split_text: SplitText, limit: int, remedy: str = "cut it into parts") -> None:
    """Raises LimitError where a text has more sentences than can be searched."""
    count = len(split_text.sentences)
    if count > limit:
        raise LimitError(f"the text has {count:,} sentences and the limit is {limit:,}; {remedy}")


def make_units(split_text: SplitText, key: Key, settings: DetectionSettings) -> Units:
    """The units that are embedded: sentences and, within the settings' limits, merged neighbours and halves."""
    return restructure(split_text.sentences, scoring(key, settings).limits)


def prepare(text: str, key: Key, embedder: Embedder, settings: DetectionSettings) -> PreparedText:
    """Normalises and splits a text and makes its units; raises AlimarkError where the text is empty or too long."""
    normalised = normalise(text, key)
    split_text = split(normalised.text, key)
    _check_searchable(split_text, key, settings)
    units = make_units(split_text, key, settings)
    warnings = language_warnings(normalised.text, embedder)
    prepared = PreparedText(text, split_text.sentences, units, warnings, changes=normalised.changes)
    if key.text_version:
        prepared = replace(prepared, reading="normalised")
    else:
        prepared, split_text = _read_both_ways(prepared, split_text, key, settings)
    # Clauses are scored by whole blocks, which a payload that is not known changes.
    return prepared if key.payload_bits else _read_by_clauses(prepared, split_text, settings)


def _check_searchable(split_text: SplitText, key: Key, settings: DetectionSettings) -> None:
    if "excerpt" in settings.searches(len(split_text.sentences)):
        check_length(split_text, MAX_SOFT_EXCERPT_SENTENCES if key.soft else MAX_EXCERPT_SENTENCES)
    else:
        check_length(split_text, MAX_SENTENCES, "cut it into parts, or look for marked passages (--excerpt)")


def _read_both_ways(
    prepared: PreparedText, split_text: SplitText, key: Key, settings: DetectionSettings
) -> tuple[PreparedText, SplitText]:
    """The text with its normalised form beside it, where normalisation changes more than white space, and its sentences.

    Whether there is a second reading depends on the text alone, and not on the key. The p-value of a text that is read once
    is therefore valid as it is, and that of a text that is read twice is valid when it is doubled (`detect_signals`).
    """
    normalised = normalise_text(prepared.text)
    if not normalised.changes:
        return prepared, split_text
    prepared = replace(prepared, changes=normalised.changes)
    with suppress(TextError, LimitError):  # then only the text as it stands is searched
        other = split(normalised.text, key, text_version=1)
        _check_searchable(other, key, settings)
        if _same_words(other.sentences, prepared.sentences):
            return prepared, split_text
        reading = replace(
            prepared, sentences=other.sentences, units=make_units(other, key, settings), reading="normalised"
        )
        return replace(prepared, further=(reading,)), other
    return prepared, split_text


def _read_by_clauses(prepared: PreparedText, split_text: SplitText, settings: DetectionSettings) -> PreparedText:
    """The text with its pieces as a further reading, where full stops are missing, replaced or scattered."""
    if settings.search == "excerpt" or settings.restructure == "none":
        return prepared
    if (clauses := clause_units(split_text.as_written)) is None:
        return prepared
    pieces, units = clauses
    reading = replace(prepared, sentences=pieces, units=units, reading="by clauses", further=())
    return replace(prepared, further=(*prepared.further, reading))


def _same_words(sentences: Sequence[str], others: Sequence[str]) -> bool:
    return [sentence.split() for sentence in sentences] == [other.split() for other in others]


def language_warnings(text: str, embedder: Embedder) -> tuple[str, ...]:
    """A warning where the embedder knows only English and the text does not look like English."""
    if embedder.languages != {"en"} or looks_english(text):
        return ()
    name = embedder.name
    return (f"the text does not look like English, the only language that {name} knows: a mark may not be found",)


def prepare_each(
    texts: Iterable[str], key: Key, embedder: Embedder, settings: DetectionSettings, beat: Beat
) -> list[PreparedText | AlimarkError]:
    """`prepare` for many texts: a text that cannot be searched gives its error."""
    prepared: list[PreparedText | AlimarkError] = []
    for text in texts:
        beat()
        try:
            prepared.append(prepare(text, key, embedder, settings))
        except AlimarkError as error:
            prepared.append(error)
    return prepared


def with_variants(
    texts: Sequence[PreparedText], key: Key, embedder: Embedder, settings: DetectionSettings, llm: LLM | None
) -> list[PreparedText]:
    """Adds a chat model's restructurings to each text, where the settings ask for learned restructuring."""
    if not settings.learned:
        return list(texts)
    if llm is None:
        raise AlimarkError("learned restructuring asks a chat model; give one (llm=..., or --llm)")
    from alimark.detection.chat_restructuring import restructured

    checked = not settings.replaces_text
    cutter = splitter(key.splitter, key.text_version)
    answers = restructured([text.text for text in texts], llm, settings.variants, cutter, checked=checked)
    complete = []
    for text, answer in zip(texts, answers, strict=True):
        variants = []
        for variant in answer.texts:
            with suppress(LimitError):  # a restructuring with more sentences than can be searched is left out
                variants.append(prepare(variant, key, embedder, settings))
        tried = replace(answer, texts=tuple(variant.text for variant in variants))
        with_answers = replace(text, restructured=tried, variants=tuple(variants))
        complete.append(_replaced(with_answers) if settings.replaces_text else with_answers)
    return complete


def _replaced(text: PreparedText) -> PreparedText:
    """The text with its restructurings in its place; where there are none, the text itself with a warning."""
    if text.variants:
        return replace(text, replaced=True)
    warning = "the chat model gave no answer that could replace the text, so the text was searched as it is"
    return replace(text, warnings=(*text.warnings, warning))


def units_of(texts: Iterable[str], key: Key, embedder: Embedder, settings: DetectionSettings) -> Iterator[str]:
    """The units that detecting the texts will embed, without those of texts that cannot be searched."""
    for text in texts:
        with suppress(AlimarkError):
            yield from prepare(text, key, embedder, settings).unit_texts


# Stages 4 to 6: the units of many texts in one embedding batch


@dataclass(frozen=True)
class UniqueUnits:
    """Each distinct unit of many texts once, with its row in the embedding batch."""

    row: dict[str, int]

    @property
    def texts(self) -> list[str]:
        return list(self.row)

    def rows(self, units: Iterable[str]) -> list[int]:
        """The rows of some units."""
        return [self.row[unit] for unit in units]


def deduplicate(unit_lists: Iterable[Sequence[str]]) -> UniqueUnits:
    """The distinct units of many texts in the order of their first appearance, so that each is embedded once."""
    distinct = dict.fromkeys(unit for units in unit_lists for unit in units)
    return UniqueUnits({unit: row for row, unit in enumerate(distinct)})


def embed(units: UniqueUnits, embedder: Embedder) -> Vectors:
    """The vector of each unit, (units, dimension)."""
    return embedder.embed(units.texts) if units.row else np.empty((0, embedder.dimension), np.float32)


def embed_and_project(units: UniqueUnits, embedder: Embedder, projection: Callable[[Vectors], Floats]) -> Floats:
    """The projections of each unit, embedded in parts so that the vectors of a long text are never all in memory."""
    if not units.row:
        return np.empty((0, 0))
    return np.concatenate([projection(embedder.embed(part)) for part in parts(units.texts, _UNITS_AT_A_TIME)])


def project_text(
    text: PreparedText, vectors: Sequence[Vectors], key: Key, settings: DetectionSettings
) -> list[Signals]:
    """The signals of each version of a text under a key; `vectors` holds the vectors of each version's units."""
    pairs = zip(text.versions, vectors, strict=True)
    return [signals_of(version.units, project(unit_vectors, key), key, settings) for version, unit_vectors in pairs]


def signals_of(units: Units, projections: Floats, key: Key, settings: DetectionSettings) -> Signals:
    """The signals of the units of one version of a text."""
    return scoring(key, settings, by_clauses=units.chances is not None).signals(units, projections)


# Stages 7 to 9: one text under one key


def score(signals: Sequence[Signals], key: Key, settings: DetectionSettings) -> Score:
    """The score of a text, given the signals of each of its versions: of the whole text or of its best passage."""
    return (
        score_excerpt(signals[0], key, settings)
        if settings.search == "excerpt"
        else score_whole(signals, key, settings)
    )


def score_whole(signals: Sequence[Signals], key: Key, settings: DetectionSettings) -> Score:
    """The best score over the versions of a text. Each random key, too, gets its best score over the same versions."""
    rule = scoring(key, settings, by_clauses=signals[0].chances is not None)
    length = rule.length(max(len(version.packed) for version in signals))
    blocks = key.derivation.blocks(length)  # as no payload changes them: the score is for any payload

    def null_scores(first: int, count: int) -> Floats:
        best: Floats = score_table(rule, signals, key.null_blocks(first, count, length)).max(axis=0)
        return best

    scores = score_table(rule, signals, blocks[None])[:, 0]
    variant = int(np.argmax(scores))
    used = blocks[: rule.length(len(signals[variant].packed))]
    payload = None
    if isinstance(rule, SoftPayload):
        payload = decode(rule, signals[variant], used)
        used = key.carrying(payload.value).blocks(len(used))
    return Score(float(scores[variant]), null_scores, rule.trace(signals[variant], used), variant, payload)


def detect_signals(
    text: PreparedText, signals: Sequence[Signals], key: Key, embedder: Embedder, settings: DetectionSettings
) -> AlignedDetection:
    """All stages after the projection: score, significance, describe.

    Each reading of the text has a p-value of its own; the smallest, times the number of readings, is that of the text.
    """
    if settings.search == "auto":

        def search(chosen: DetectionSettings) -> list[AlignedDetection]:
            return [detect_signals(text, signals, key, embedder, chosen)]

        return search_in_turn(max(len(version.sentences) for version in text.versions), settings, search)[0]
    if settings.stop_after is None and max(len(version.sentences) for version in text.versions) > LONG_TEXT:
        settings = replace(settings, stop_after=_EARLY_STOP)
    answers: list[tuple[Score, Significance]] = []
    for versions in text.readings:
        scored = score(signals[versions], key, settings)
        significance = significance_of(scored.raw, scored.null_scores, settings)
        answers.append((replace(scored, variant=versions.start + scored.variant), significance))
    scored, significance = min(answers, key=lambda answer: answer[1].p_value)
    return describe(text, signals, scored, significance.corrected(len(answers)), key, embedder, settings)


def search_in_turn(
    sentences: int, settings: DetectionSettings, search: Callable[[DetectionSettings], list[AlignedDetection]]
) -> list[AlignedDetection]:
    """Searches a text as a whole and then, where that shows no mark, for passages; the p-values pay for both.

    The p-values stay valid although the second search is left out where the first succeeds: at any level, each of the two
    contributes at most half of it.

    Args:
        sentences: The number of sentences of the text.
        settings: Settings with search="auto".
        search: Searches with the settings that it is given, and returns detections, best first.

    Returns:
        The detections of the better search.
    """
    searches = settings.searches(sentences)
    best: list[AlignedDetection] = []
    for number, kind in enumerate(searches, 1):
        detections = search(replace(settings, search=kind))
        paid = [detection.of_searches(searches, settings) for detection in detections]
        if not best or paid[0].p_value < best[0].p_value:
            best = paid
        if number < len(searches) and best[0].p_value <= settings.passage_fpr:
            break
    return best


def describe(
    text: PreparedText,
    signals: Sequence[Signals],
    scored: Score,
    significance: Significance,
    key: Key,
    embedder: Embedder,
    settings: DetectionSettings,
) -> AlignedDetection:
    """The result: the statistic and its p-value with the alignment, the passages and what the verdict needs."""
    excerpt = settings.search == "excerpt"
    aligned = signals[scored.variant]
    marked_key = key if scored.payload is None else key.carrying(scored.payload.value)
    steps, marked = passages(aligned, scored, significance, key, settings) if excerpt else (scored.steps, ())
    readings = len(text.readings)
    is_further = scored.variant > len(text.versions) - readings
    read = text.versions[scored.variant] if is_further else text
    restructuring = 0 if is_further else scored.variant + text.replaced
    ranges = [(passage.first - 1, passage.last) for passage in marked] if excerpt else [(0, len(aligned.packed))]

    def chances() -> list[float]:
        return list(sentence_chances(aligned, steps, ranges, marked_key, scoring(key, settings)))

    make = partial(
        AlignedDetection,
        decision=key.decision,
        block_size=key.block_size,
        alignment=aligned_steps(steps, aligned.packed, marked_key, text.versions[scored.variant].sentences),
        passages=marked,
        near_flips=aligned.near_flips,
        offsets=key.offsets,
        payload=scored.payload if significance.p_value <= settings.passage_fpr else None,
        normalised=dict(text.changes),
        reading=read.reading,
        readings=readings,
        restructured=text.restructured and replace(text.restructured, best=restructuring),
        sentences_needed=SentencesNeeded.of(key, excerpt=excerpt),
        compute_chances=None if text.variants else chances,
    )
    z = None if excerpt or key.soft or aligned.chances is not None else scored.raw
    statistic = Statistic(scored.raw, z, scored.null_scores, warnings=text.warnings)
    return build_detection(
        make, text.text, read.sentences, statistic, significance,
        key=key, embedder=EmbedderIdentity.of(embedder), settings=settings, tie_label="ties",
    )  # fmt: skip


# The pipeline for many texts under one key


Beat = Callable[[], None]
"""Called before every step that a single text can make long, so that a watchdog can tell slow work from a hang."""


def no_beat() -> None:
    """The default where no watchdog is running: does nothing."""


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
    """Detects many texts under one key, with the units of all of them in one embedding batch.

    Args:
        texts: The texts.
        key: An AliMark key.
        embedder: The embedder that the key names.
        settings: How to search.
        llm: The chat model of learned restructuring.
        times: The seconds of each stage are added to this counter.
        beat: Called before every step that a single text can make long.

    Returns:
        A result for each text, in order; for a text that cannot be searched, its error.

    Raises:
        KeyMismatch: The embedder is not the one that the key names.
    """
    key.check(embedder)
    clock = Clock(Counter() if times is None else times)
    prepared = prepare_each(texts, key, embedder, settings, beat)
    clock.lap("splitting")
    sound = with_variants([text for text in prepared if isinstance(text, PreparedText)], key, embedder, settings, llm)
    if settings.learned:
        clock.lap("restructuring")
    units = deduplicate(text.unit_texts for text in sound)
    projections = embed_and_project(units, embedder, lambda vectors: project(vectors, key))
    clock.lap("embedding")

    def detect(text: PreparedText) -> AlignedDetection:
        beat()
        signals = [
            signals_of(version.units, projections[units.rows(version.units.texts)], key, settings)
            for version in text.versions
        ]
        return detect_signals(text, signals, key, embedder, settings)

    detections = map(detect, sound)
    answers = [text if isinstance(text, AlimarkError) else next(detections) for text in prepared]
    clock.lap("alignment")
    return answers


def random_key_scores(
    text: str, reading: str, key: Key, embedder: Embedder, settings: DetectionSettings, draws: int
) -> Floats:
    """The scores of a text, read in one of its ways, under the first random keys, which are the same for every text."""
    key.check(embedder)
    prepared = prepare(text, key, embedder, settings)
    [read, *_] = [version for version in prepared.versions if version.reading == reading] or [prepared]
    units = deduplicate([read.units.texts])
    projections = embed_and_project(units, embedder, lambda vectors: project(vectors, key))
    signals = scoring(key, settings).signals(read.units, projections[units.rows(read.units.texts)])
    return score([signals], key, settings).null_scores(0, draws)


class Clock:
    """Adds the seconds of each stage to a counter."""

    def __init__(self, times: Counter[str]) -> None:
        self.times, self.last = times, time.perf_counter()

    def skip(self) -> None:
        """Leaves out the time since the last lap, which is counted elsewhere."""
        self.last = time.perf_counter()

    def lap(self, stage: str) -> None:
        """Adds the time since the last lap to a stage."""
        now = time.perf_counter()
        self.times[stage] += now - self.last  # type: ignore[assignment]
        self.last = now


def parts(items: Sequence[Item], size: int) -> Iterator[Sequence[Item]]:
    """The items in runs of at most `size`."""
    return (items[start : start + size] for start in range(0, len(items), size))
