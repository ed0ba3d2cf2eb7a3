"""The first stages of the detection pipeline: a text is normalised, split into sentences and cut into units.

    text --normalise--> Normalised --split--> SplitText --make_units--> PreparedText

`prepare` runs these three. Nothing is embedded here.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from alimark.core._util.work import Beat
from alimark.core.detection.aligned_results import Reading
from alimark.core.detection.clauses import clause_units
from alimark.core.detection.scoring import scoring
from alimark.core.detection.settings import (
    MAX_EXCERPT_SENTENCES,
    MAX_SENTENCES,
    MAX_SOFT_EXCERPT_SENTENCES,
    DetectionSettings,
)
from alimark.core.detection.units import Units, restructure
from alimark.core.embedding.base import Embedder
from alimark.core.frozen.parameters import AliMarkParameters
from alimark.core.frozen.text.normalising import Normalised, normalise
from alimark.core.frozen.text.splitting import BUILT_IN, splitter
from alimark.core.frozen.text.units import clean
from alimark.core.keys.key import Key
from alimark.core.text.disguises import undisguise
from alimark.core.text.language import looks_english
from alimark.errors import AlimarkError, LimitError, TextError

if TYPE_CHECKING:
    from alimark.core.detection.chat_restructuring import Restructured
    from alimark.core.llm.base import LLM


_NEW_LETTERS = 0.25
"""A text is read without its disguises where so many of its letters then stand in other sentences; a mark outlasts fewer."""
_WORD = re.compile(r"[^\W_]+")


@dataclass(frozen=True)
class SplitText:
    """The sentences of a text."""

    sentences: list[str]
    as_written: list[str]  # the sentences as they stand in the text, before they are cleaned


@dataclass(frozen=True)
class PreparedText:
    """A text cut into units, before anything is embedded."""

    text: str  # the text as it was given: its hash is recorded, and it decides how ties are broken
    sentences: list[str]
    units: Units
    warnings: tuple[str, ...] = ()
    restructured: Restructured | None = None  # the answers of a chat model, where restructuring is learned
    variants: tuple[PreparedText, ...] = ()
    """The chat model's restructurings of the text, prepared in the same way."""
    changes: Mapping[str, int] = field(default_factory=dict)
    """How many changes of each kind the readings make in the text (`alimark.core.text.disguises.KINDS`)."""
    reading: Reading = "normalised"
    further: tuple[PreparedText, ...] = ()
    """Other readings of the text: without its disguises, and by clauses."""
    replaced: bool = False  # whether the restructurings are searched instead of the text, and not beside it

    @property
    def versions(self) -> tuple[PreparedText, ...]:
        """What is searched: the text, its restructurings and its other readings, or the restructurings alone."""
        return self.variants if self.replaced else (self, *self.variants, *self.further)

    @property
    def longest(self) -> int:
        """The number of sentences of the longest version, by which the search is chosen."""
        return max(len(version.sentences) for version in self.versions)

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


def alike(keys: Iterable[Key]) -> list[list[Key]]:
    """Groups of AliMark's keys that read, cut and embed a text in the same way; each key of another scheme is alone.

    What is prepared for one key of a group serves all.
    """
    groups: dict[object, list[Key]] = {}
    for key in keys:
        aligned = isinstance(key.parameters, AliMarkParameters)
        shared = (key.fingerprint, key.splitter, key.soft, key.payload_bits > 0) if aligned else key.id
        groups.setdefault(shared, []).append(key)
    return list(groups.values())


def split(text: Normalised, key: Key) -> SplitText:
    """Cuts a text that was normalised into sentences with the key's splitter; raises TextError where it has none."""
    as_written = splitter(key.splitter).sentences_as_read(text.text)
    sentences = [unit for sentence in as_written if (unit := clean(sentence))]
    if not sentences:
        raise TextError("the text holds no sentence; there is nothing to detect")
    return SplitText(sentences, as_written)


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
    normalised = normalise(text)
    split_text = split(normalised, key)
    _check_searchable(split_text, key, settings)
    units = make_units(split_text, key, settings)
    warnings = language_warnings(normalised.text, embedder)
    prepared = PreparedText(text, split_text.sentences, units, warnings, changes=normalised.changes)
    prepared, split_text = _read_undisguised(prepared, split_text, key, settings)
    # Clauses are scored by whole blocks, which a payload that is not known changes.
    if key.payload_bits or key.splitter not in BUILT_IN:  # a splitter of the user's own may end sentences anywhere
        return prepared
    return _read_by_clauses(prepared, split_text, settings)


def check_searchable(text: str, key: Key, settings: DetectionSettings) -> None:
    """Raises AlimarkError where a text is too long to be searched, or empty, without preparing it further."""
    _check_searchable(split(normalise(text), key), key, settings)


def _check_searchable(split_text: SplitText, key: Key, settings: DetectionSettings) -> None:
    if "excerpt" in settings.searches(len(split_text.sentences)):
        check_length(split_text, MAX_SOFT_EXCERPT_SENTENCES if key.soft else MAX_EXCERPT_SENTENCES)
    else:
        check_length(split_text, MAX_SENTENCES, "cut it into parts, or look for marked passages (--excerpt)")


def _read_undisguised(
    prepared: PreparedText, split_text: SplitText, key: Key, settings: DetectionSettings
) -> tuple[PreparedText, SplitText]:
    """The text with a reading without its disguises, where that gives many other sentences, and the sentences of the last one.

    Whether there is a further reading depends on the text alone, and not on the key. The p-value of a text that is read once
    is therefore valid as it is, and that of a text that is read twice is valid when it is doubled (`searching`).
    """
    plain = undisguise(prepared.text)
    if not plain.changes:
        return prepared, split_text
    with suppress(TextError, LimitError):  # then only the first reading is searched
        other = split(plain, key)
        _check_searchable(other, key, settings)
        if _new_letters(other.sentences, prepared.sentences) >= _NEW_LETTERS:
            units = make_units(other, key, settings)
            prepared = replace(prepared, changes=plain.changes)
            reading = replace(prepared, sentences=other.sentences, units=units, reading="undisguised")
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


def _new_letters(sentences: Iterable[str], others: Iterable[str]) -> float:
    """The share of letters that stand in sentences whose words are not those of one of the others, whatever their signs."""
    known = {" ".join(_WORD.findall(sentence)) for sentence in others}
    words = [" ".join(_WORD.findall(sentence)) for sentence in sentences]
    return sum(len(sentence) for sentence in words if sentence not in known) / max(1, sum(map(len, words)))


def language_warnings(text: str, embedder: Embedder) -> tuple[str, ...]:
    """A warning where the embedder knows only English and the text does not look like English."""
    if embedder.languages != {"en"} or looks_english(text):
        return ()
    name = embedder.name
    return (f"the text does not look like English, the only language that {name} knows: a mark may not be found",)


def prepare_each(
    texts: Iterable[str | PreparedText], key: Key, embedder: Embedder, settings: DetectionSettings, beat: Beat
) -> list[PreparedText | AlimarkError]:
    """`prepare` for many texts: a text that cannot be searched gives its error, and a prepared text stays as it is."""
    prepared: list[PreparedText | AlimarkError] = []
    for text in texts:
        beat()
        try:
            prepared.append(prepare(text, key, embedder, settings) if isinstance(text, str) else text)
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
    from alimark.core.detection.chat_restructuring import restructured

    checked = not settings.replaces_text
    cutter = splitter(key.splitter)
    answers = restructured([text.text for text in texts], llm, settings.variants, cutter, checked=checked)
    complete = []
    for text, answer in zip(texts, answers, strict=True):
        variants = []
        for variant in answer.texts:
            with suppress(LimitError):  # a restructuring with more sentences than can be searched is left out
                variants.append(prepare(variant, key, embedder, settings))
        tried = replace(answer, texts=tuple(variant.text for variant in variants))
        warnings = text.warnings
        if settings.replaces_text and not variants:
            warnings += (
                "the chat model gave no answer that could replace the text, so the text was searched as it is",
            )
        replaced = settings.replaces_text and bool(variants)
        complete.append(
            replace(text, restructured=tried, variants=tuple(variants), warnings=warnings, replaced=replaced)
        )
    return complete


def sentences_suffice(text: PreparedText, settings: DetectionSettings) -> bool:
    """Whether a test of the sentences alone, without merged and split ones, sees the marks that the full test can see.

    It does not where full stops are missing, so that the text is also read by clauses, and where passages are looked for. The
    answer depends on the text, which was prepared for the full test, and not on the key.
    """
    by_clauses = any(version.reading == "by clauses" for version in text.versions)
    return settings.searches(text.longest) == ("whole",) and not by_clauses


def with_units(text: PreparedText, key: Key, settings: DetectionSettings) -> PreparedText:
    """A text whose sentences suffice, with the units of other settings instead of those that it was prepared for."""
    limits = scoring(key, settings).limits
    readings = (replace(reading, units=restructure(reading.sentences, limits)) for reading in text.further)
    return replace(text, units=restructure(text.sentences, limits), further=tuple(readings))
