"""Many documents under one key or a ring: batches that fill the embedder, and errors that end nothing but themselves."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

from alimark.detection.many_keys import detect_keys_batch
from alimark.detection.pipeline import Beat, detect_batch
from alimark.detection.results import Detection
from alimark.detection.settings import DetectionSettings
from alimark.detection.stats.p_values import RandomKeys
from alimark.errors import AlimarkError, RecordError, TextError
from alimark.keys.key import Key
from alimark.schemes.api import load
from alimark.schemes.registry import aligns

if TYPE_CHECKING:
    from alimark._util.jsonl import Record
    from alimark.embedding.base import Embedder
    from alimark.llm.base import LLM

BATCH_CHARACTERS = 400_000  # enough units to fill embedding batches, little to lose when interrupted
BATCH_DOCUMENTS = 64
_UNEXPECTED = 20
"""Documents in a row that fail as nobody thought of: then the fault is the program's."""
_NOT_KEPT = ("text", "prompt", "sentences")

Answer = Detection | AlimarkError
Load = Callable[[str], "Embedder"]


@dataclass(frozen=True)
class FirstPass:
    """A cheap look at every document; only those that it finds suspicious are tested in full.

    The documents are taken as they are, since restructured units are most of what is embedded, and held against few random
    keys. A document whose p-value is above `level` keeps it and is done.
    """

    level: float = 0.1
    draws: int = 199

    def __post_init__(self) -> None:
        if not 0 < self.level < 1:
            raise AlimarkError(f"the level of the first pass lies between 0 and 1, not at {self.level}")
        if self.draws + 1 < 1 / self.level:
            raise AlimarkError(f"{self.draws} random keys cannot tell p-values below {self.level:g}; draw more")

    def settings(self, full: DetectionSettings) -> DetectionSettings:
        return replace(full, restructure="none", draws=min(full.draws, self.draws), tail=False)


class Auditor:
    """Answers documents, each with the likeliest of the keys and a p-value corrected for their number.

    `load_embedder` gives the embedder that a key names. `beat` is called before every step that one document can make long.
    """

    def __init__(
        self,
        keys: Sequence[Key],
        settings: RandomKeys,
        load_embedder: Load,
        *,
        llm: LLM | None = None,
        first_pass: FirstPass | None = None,
        beat: Beat = lambda: None,
    ) -> None:
        if not keys:
            raise AlimarkError("no keys were given")
        self.keys = list(keys)
        self.settings = settings
        self.llm = llm
        self.first_pass = first_pass
        self.times: Counter[str] = Counter()
        self.looks: Counter[str] = Counter()
        """Documents that the first pass saw, and those that went on."""
        self._beat = beat
        self._unexpected = 0
        self._embedders: dict[str, Embedder] = {}
        for key in self.keys:
            if key.embedder and key.embedder not in self._embedders:
                self._embedders[key.embedder] = load_embedder(key.embedder)
        self._groups = _groups(self.keys)
        if first_pass and (len(self._groups) > 1 or not aligns(self.keys[0].scheme)):
            raise AlimarkError("a first pass goes with AliMark's keys of one embedder and one decision")

    def answer(self, texts: Sequence[str], draws: int | None = None) -> list[Answer]:
        """One answer a document, in order. `draws`: random keys, where they are not those of the settings."""
        settings = self.settings if draws is None else replace(self.settings, draws=draws)
        if self.first_pass is None or draws is not None:
            return self._careful(texts, settings)
        assert isinstance(settings, DetectionSettings)
        found = self._careful(texts, self.first_pass.settings(settings))
        level = self.first_pass.level
        passed = [i for i, one in enumerate(found) if isinstance(one, Detection) and one.p_value <= level]
        for i, one in zip(passed, self._careful([texts[i] for i in passed], settings), strict=True):
            found[i] = one
        self.looks.update(first=len(texts), full=len(passed))
        return found

    def _careful(self, texts: Sequence[str], settings: RandomKeys) -> list[Answer]:
        """A document that nobody thought of must not end an audit of millions: it is found by asking for each alone."""
        if not texts:
            return []
        try:
            answers = self._answers(texts, settings)
            self._unexpected = 0
            return answers
        except AlimarkError:
            raise
        except Exception as error:
            if len(texts) > 1:
                return [answer for text in texts for answer in self._careful([text], settings)]
            self._unexpected += 1
            said = f"unexpected {type(error).__name__}: {error}"
            if self._unexpected == _UNEXPECTED:
                raise AlimarkError(f"{_UNEXPECTED} documents in a row failed, so it is not they: {said}") from error
            return [TextError(said)]

    def _answers(self, texts: Sequence[str], settings: RandomKeys) -> list[Answer]:
        each = [self._group(group, texts, settings) for group in self._groups]
        return [min(some, key=_rank) for some in zip(*each, strict=True)]

    def _group(self, keys: Sequence[Key], texts: Sequence[str], settings: RandomKeys) -> Sequence[Answer]:
        first, tried = keys[0], len(self.keys)
        if aligns(first.scheme):
            own = settings if isinstance(settings, DetectionSettings) else _widened(settings)
            embedder = self._embedders[first.embedder]
            if len(keys) == 1:
                found = detect_batch(texts, first, embedder, own, llm=self.llm, times=self.times, beat=self._beat)
                return [_corrected(one, tried) for one in found]
            return detect_keys_batch(texts, keys, embedder, own, tried=tried, times=self.times, beat=self._beat)
        self._beat()
        mark = load(first, embedder=self._embedders.get(first.embedder))
        return [_corrected(one, tried) for one in mark.detect_batch(texts, settings, llm=self.llm, times=self.times)]


def _groups(keys: Sequence[Key]) -> list[list[Key]]:
    """Keys that share one embedding and one kind of score; each key of a rival stands alone."""
    groups: dict[Any, list[Key]] = {}
    for key in keys:
        alike = (key.fingerprint, key.splitter, key.soft) if aligns(key.scheme) else key.id
        groups.setdefault(alike, []).append(key)
    return list(groups.values())


def _widened(settings: RandomKeys) -> DetectionSettings:
    return DetectionSettings(**{name: getattr(settings, name) for name in RandomKeys.__dataclass_fields__})


def _corrected(found: Answer, tried: int) -> Answer:
    return found if isinstance(found, AlimarkError) or tried == 1 else found.corrected(tried)


def _rank(answer: Answer) -> tuple[float, float]:
    """Sound answers first, by p-value, then by score."""
    return (2.0, 0.0) if isinstance(answer, AlimarkError) else (answer.p_value, -answer.score)


Document = tuple[str, "Record | RecordError"]
"""An id, and the record or what keeps it from being one."""
Item = TypeVar("Item")


def in_batches(
    items: Iterable[Item], record: Callable[[Item], Record | RecordError], field: str = "text"
) -> Iterator[list[Item]]:
    """Documents in batches of bounded length."""
    batch: list[Item] = []
    size = 0
    for item in items:
        batch.append(item)
        own = record(item)
        size += 0 if isinstance(own, RecordError) else len(str(own.get(field, "")))
        if size >= BATCH_CHARACTERS or len(batch) >= BATCH_DOCUMENTS:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def flaw(record: Record | RecordError, field: str = "text") -> RecordError | None:
    """What keeps a record from being detected, if anything."""
    if isinstance(record, RecordError):
        return record
    if not isinstance(record.get(field), str):
        return RecordError(f"the record has no `{field}`, or one that is not a string")
    return None


def answers(
    records: Sequence[Record | RecordError], auditor: Auditor, field: str = "text", draws: int | None = None
) -> list[Answer]:
    """One for each of a batch, in order; what is no record is answered with its flaw."""
    flaws = [flaw(record, field) for record in records]
    sound = [
        record[field] for record, wrong in zip(records, flaws, strict=True) if not wrong and isinstance(record, dict)
    ]
    found = iter(auditor.answer(sound, draws))
    return [wrong or next(found) for wrong in flaws]


def answer_record(own: str, record: Record | RecordError, answer: Answer, keys: Sequence[Key]) -> Record:
    """The line of a document in the output: what the input said of it, except its text, and the answer."""
    kept = {} if isinstance(record, RecordError) else {k: v for k, v in record.items() if k not in _NOT_KEPT}
    if isinstance(answer, AlimarkError):
        which = {"key_id": keys[0].id} if len(keys) == 1 else {}
        return kept | {"id": own, **which, "failed": True, "error": str(answer)}
    tried = {} if answer.keys_tried == 1 else {"keys_tried": answer.keys_tried}
    return kept | {"id": own, **answer.record(), **tried}
