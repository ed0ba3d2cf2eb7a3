"""Answers many documents under one key or several, in batches; a document that fails does not end the audit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, cast

from alimark.audit.answers import tests_made
from alimark.audit.templates import SharedText, search_groups
from alimark.core._util.work import Beat, Clock
from alimark.core.detection.pipeline import detect_batch, null_scorers
from alimark.core.detection.preparing import PreparedText, alike, prepare, sentences_suffice, with_units
from alimark.core.detection.results import Detection
from alimark.core.detection.settings import DetectionSettings
from alimark.core.detection.stats.p_values import RandomKeys
from alimark.core.embedding.base import Precision, precision_of, precisions_of
from alimark.core.keys.key import Key
from alimark.core.schemes.api import load
from alimark.core.schemes.registry import aligns
from alimark.errors import AlimarkError, TextError

if TYPE_CHECKING:
    from alimark.core._util.jsonl import Record
    from alimark.core.embedding.base import Embedder
    from alimark.core.llm.base import LLM

_UNEXPECTED = 20
"""Documents in a row that may fail with an unexpected exception; then the program is at fault, and the audit ends."""

DocumentAnswer = Detection | AlimarkError
Text = str | PreparedText  # a document's text, or what it was prepared to for AliMark's detection
LoadEmbedder = Callable[[str], "Embedder"]


@dataclass(frozen=True)
class FirstPass:
    """A cheap test of every document; only those with a p-value of at most `level` are tested in full.

    A document whose p-value is above `level` keeps that p-value. The p-value of a document stays valid: below `level` it is
    that of the full test, and above it is at least that of the cheap one.

    Args:
        level: The p-value up to which a document goes on to the full test.
        draws: The number of random keys, at most.
        sentences_alone: Leave out merged and split sentences, which are most of what is embedded. Texts with missing full
            stops and long texts, which are searched for passages, keep all their units.
        precision: The precision of the embedder; "auto" is that of the full test.
    """

    level: float = 0.1
    draws: int = 199
    sentences_alone: bool = True
    precision: Precision = "auto"

    def __post_init__(self) -> None:
        if not 0 < self.level < 1:
            raise AlimarkError(f"the level of the first pass must lie between 0 and 1; {self.level} does not")
        if self.draws + 1 < 1 / self.level:
            raise AlimarkError(f"{self.draws} random keys cannot resolve p-values of {self.level:g}; draw more")

    def settings(self, full: DetectionSettings) -> DetectionSettings:
        """The settings of the first pass, made from those of the full test.

        Drawing stops once so many random keys have scored as high that the p-value will be above the level.
        """
        draws = min(full.draws, self.draws)
        cheap = replace(full, draws=draws, tail=False, stop_after=max(1, int(self.level * (draws + 1))))
        if self.sentences_alone:
            cheap = replace(cheap, restructure="none")
        return cheap if self.precision == "auto" else replace(cheap, precision=self.precision)


class Auditor:
    """Tests documents: finds for each the likeliest key, with a p-value corrected for the number of keys.

    `load_embedder` returns the embedder that a key names. `beat` is called before each step that may take long, so that a
    watchdog can tell a slow document from a hanging one.

    Where the settings leave the precision to the audit ("auto") and the embedder has a faster one than float32, every
    document is first tested in the fast one, with all its units or as `first_pass` says. Documents with p-values of at most
    `check_level`, or the level of the first pass, are then tested in full and in float32, so that no document is found by
    fast numbers alone.
    """

    def __init__(
        self, keys: Sequence[Key], settings: RandomKeys, load_embedder: LoadEmbedder, *, llm: LLM | None = None,
        first_pass: FirstPass | None = None, check_level: float = 0.05, beat: Beat = lambda: None,
    ) -> None:  # fmt: skip
        if not keys:
            raise AlimarkError("no keys were given; give at least one")
        self.keys = list(keys)
        self.settings = settings
        self.llm = llm
        self.times: Counter[str] = Counter()
        self.tested: Counter[str] = Counter()
        """Documents that the first pass saw ("first"), and those tested in full ("full")."""
        self._beat = beat
        self._unexpected = 0
        self._embedders: dict[str, Embedder] = {}
        for name in dict.fromkeys(key.embedder for key in self.keys if key.embedder):
            self._embedders[name] = load_embedder(name)
        self._groups = alike(self.keys)
        if first_pass and not can_look_first(self.keys):
            raise AlimarkError("a first pass needs AliMark keys that share one embedder and one decision; leave it out")
        self.first_pass = self._first_pass(first_pass, check_level)

    def _first_pass(self, wanted: FirstPass | None, check_level: float) -> FirstPass | None:
        """The first pass in the embedder's fastest precision, where the settings leave the precision to the audit."""
        settings = self.settings
        if wanted is not None:
            wanted = replace(wanted, level=max(wanted.level, check_level))
        if not isinstance(settings, DetectionSettings) or settings.precision != "auto" or not can_look_first(self.keys):
            return wanted
        if settings.learned and wanted is None:
            return None  # the chat model would be asked twice
        embedder = self._embedders[self.keys[0].embedder]
        fastest = precisions_of(embedder)[-1]
        if fastest == precision_of(embedder):
            return wanted
        self.settings = replace(settings, precision="float32")
        if wanted is None:
            wanted = FirstPass(check_level, settings.draws, sentences_alone=False)
        return replace(wanted, precision=cast(Precision, fastest))

    def in_full(self, answer: Detection) -> bool:
        """Whether an answer is of the full test, not of the first pass."""
        if self.first_pass is None:
            return True
        full, used = DetectionSettings.of(self.settings), DetectionSettings.of(answer.settings)
        # Long texts stop drawing early whatever the settings say, and a hit may be tested again with more random keys.
        return used.draws >= full.draws and replace(used, draws=full.draws, stop_after=full.stop_after) == full

    def answer(self, texts: Sequence[str], draws: int | None = None) -> list[DocumentAnswer]:
        """Returns one answer for each document, in order. `draws` replaces the number of random keys of the settings."""
        settings = self.settings if draws is None else replace(self.settings, draws=draws)
        if self.first_pass is None or draws is not None:
            return self._answer_safely(texts, settings)
        assert isinstance(settings, DetectionSettings)
        prepared = [self._prepared(text, settings) for text in texts]
        answers = self._look(prepared, self.first_pass, settings)
        level = self.first_pass.level
        passed = [i for i, answer in enumerate(answers) if isinstance(answer, Detection) and answer.p_value <= level]
        for i, answer in zip(passed, self._answer_safely([prepared[i] for i in passed], settings), strict=True):
            answers[i] = answer
        self.tested.update(first=len(texts), full=len(passed))
        return answers

    def _prepared(self, text: str, full: DetectionSettings) -> Text:
        """The text, prepared for the full test; as it is where that fails: its test fails in the same way, with an error."""
        self._beat()
        clock, key = Clock(self.times), self.keys[0]
        with suppress(Exception):
            prepared = prepare(text, key, self._embedders[key.embedder], full)
            clock.lap("splitting")
            return prepared
        return text

    def _look(self, texts: Sequence[Text], first_pass: FirstPass, full: DetectionSettings) -> list[DocumentAnswer]:
        """The answers of the first pass."""
        settings = first_pass.settings(full)
        if not first_pass.sentences_alone:
            return self._answer_safely(texts, settings)
        alone = {
            i: text if isinstance(text, str) else with_units(text, self.keys[0], settings)
            for i, text in enumerate(texts)
            if isinstance(text, str) or sentences_suffice(text, full)
        }
        others = {i: text for i, text in enumerate(texts) if i not in alone}
        answers = dict(zip(alone, self._answer_safely(list(alone.values()), settings), strict=True))
        with_all_units = replace(first_pass, sentences_alone=False).settings(full)
        answers |= zip(others, self._answer_safely(list(others.values()), with_all_units), strict=True)
        return [answers[i] for i in range(len(texts))]

    def groups(
        self, key_id: str, texts: Sequence[str], records: Sequence[Record], fdr: float
    ) -> list[SharedText] | None:
        """The groups of documents with shared text, of which several were found under a key.

        None where they cannot be told: under keys of other schemes, and with a chat model.
        """
        [key] = [key for key in self.keys if key.id == key_id]
        settings = DetectionSettings.of(self.settings)
        if not aligns(key.scheme) or settings.learned:
            return None
        if self.first_pass is not None:
            settings = replace(settings, precision=self.first_pass.precision)
        readings = [record.get("normalised", {}).get("reading", "normalised") for record in records]
        searches = ["excerpt" if record.get("passages") else "whole" for record in records]
        chosen = [replace(settings, search=cast(Literal["whole", "excerpt"], search)) for search in searches]
        scorers = null_scorers(texts, readings, key, self._embedders[key.embedder], chosen)
        p_values = [record["p_value"] / tests_made(record) for record in records]
        return search_groups(p_values, [record["found"] for record in records], scorers, fdr)

    def _answer_safely(self, texts: Sequence[Text], settings: RandomKeys) -> list[DocumentAnswer]:
        """Answers a batch; after an unexpected exception, each document alone, so that only the faulty one fails."""
        if not texts:
            return []
        try:
            each = [self._group(group, texts, settings) for group in self._groups]
            self._unexpected = 0
            return [min(some, key=_rank) for some in zip(*each, strict=True)]
        except AlimarkError:
            raise
        except Exception as error:
            if len(texts) > 1:
                return [answer for text in texts for answer in self._answer_safely([text], settings)]
            self._unexpected += 1
            message = f"unexpected {type(error).__name__}: {error}"
            if self._unexpected == _UNEXPECTED:
                raise AlimarkError(
                    f"{_UNEXPECTED} documents in a row failed, so the cause lies outside of the documents: {message}"
                ) from error
            return [TextError(message)]

    def _group(self, keys: Sequence[Key], texts: Sequence[Text], settings: RandomKeys) -> Sequence[DocumentAnswer]:
        first, tried = keys[0], len(self.keys)
        if aligns(first.scheme):
            full = DetectionSettings.of(settings)
            answers = detect_batch(
                texts, keys, self._embedders[first.embedder], full, tried=tried, llm=self.llm, times=self.times,
                beat=self._beat,
            )  # fmt: skip
            return [answer if isinstance(answer, AlimarkError) else answer[0] for answer in answers]
        self._beat()
        mark = load(first, embedder=self._embedders.get(first.embedder))
        plain = [text if isinstance(text, str) else text.text for text in texts]
        batch = mark.detect_batch(plain, settings, llm=self.llm, times=self.times)
        return [answer if isinstance(answer, AlimarkError) else answer.corrected(tried) for answer in batch]


def can_look_first(keys: Sequence[Key]) -> bool:
    """Whether a first pass can test documents under these keys: AliMark's that share embedder and decision."""
    return len(alike(keys)) == 1 and aligns(keys[0].scheme)


def _rank(answer: DocumentAnswer) -> tuple[float, float]:
    """Sort key: detections by p-value, then by score; errors last."""
    return (2.0, 0.0) if isinstance(answer, AlimarkError) else (answer.p_value, -answer.score)
