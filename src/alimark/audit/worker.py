"""A worker answers the documents of some blocks in batches, with the auditor, and hands the answers to the sink."""

from __future__ import annotations

import copy
import faulthandler
import hashlib
import re
from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from alimark.audit.answers import answer_fields, in_order, kept_input
from alimark.audit.auditor import Auditor, DocumentAnswer, FirstPass
from alimark.audit.files import BLOCK_BYTES, MAX_DOCUMENT, CorpusDocument, file_system, read
from alimark.audit.sinks import JsonlSink, ParquetSink, Sink, WorkBlocks
from alimark.core._util.jsonl import Record, record_id, unique_id
from alimark.core._util.work import Clock
from alimark.core.detection.settings import PASSAGES_FROM, DetectionSettings
from alimark.core.detection.stats.p_values import RandomKeys, draws_for_keys
from alimark.core.embedding.base import Embedder, at_precision, precision_of, precisions_of
from alimark.core.embedding.loading import load_embedder
from alimark.core.keys.key import Sealed
from alimark.errors import AlimarkError, TextError

if TYPE_CHECKING:
    from alimark.core.keys.key import Key
    from alimark.core.llm.base import LLM

FIRST_DRAWS = 9_999
"""Random keys per document in the first round, with early stopping; more follow for documents that none of them matches."""
STOP_AFTER = 20  # a document's test ends early when so many random keys score as high as its key
BATCH_CHARACTERS = 400_000  # enough units to fill embedding batches, little to lose when interrupted
BATCH_DOCUMENTS = 64
_UNITS = 512  # units between two heartbeats: one or two seconds of work on one core
_SENTENCES = tuple(f"The lamp in house {number} went out at ten." for number in range(PASSAGES_FROM))
_SAMPLES = (" ".join(_SENTENCES[:12]), " ".join(_SENTENCES), " ".join(_SENTENCES[:12]).replace(".", ""))
"""Texts that need all kernels of an audit: one that is aligned as a whole, one that is searched for passages too, and one
without full stops."""


@dataclass(frozen=True)
class Audit:
    """One audit: keys, documents, output and settings. It is sent to every worker, including the secrets of the keys.

    Args:
        keys: The keys, of which the likeliest answers for each document.
        inputs: Files, folders, patterns and addresses of documents, all on one file system.
        output: Where answers go: NAME.jsonl, or a folder or address for Parquet files.
        settings: The settings of the full test.
        fpr: The false-positive rate of the verdict, until the q-values of all documents decide it.
        fdr: The false discovery rate.
        first_pass: A cheap test of every document; only those that pass are tested in full.
        text_field: The field or column that holds the text.
        by: The field that names the source of a document, for the summary; if empty, its file does.
        block_bytes: The size of a block, the unit of work of a worker.
        max_document: Longer documents, in bytes, are recorded as failed.
        time_limit: The most seconds of a single step of a document on a cluster.
        cache: Megabytes of embeddings that a worker keeps.
        device: Where workers embed, e.g. "cuda"; by default the CPU.
    """

    keys: tuple[Sealed, ...]
    inputs: tuple[str, ...]
    output: str
    settings: RandomKeys
    fpr: float = 0.01
    fdr: float = 0.05
    first_pass: FirstPass | None = None
    text_field: str = "text"
    by: str = ""
    block_bytes: int = BLOCK_BYTES
    max_document: int = MAX_DOCUMENT
    time_limit: float = 120.0
    cache: int = 256
    device: str | None = None

    def __post_init__(self) -> None:
        if not 0 < self.fdr < 1:
            raise AlimarkError(f"a false discovery rate lies between 0 and 1, not at {self.fdr}")
        if self.block_bytes < 1:
            raise AlimarkError(f"a block has at least one byte, but {self.block_bytes} was given")

    @classmethod
    def of(
        cls, keys: Sequence[Key], inputs: Sequence[str], output: str, settings: RandomKeys, draws: int | None = None
    ) -> Audit:  # fmt: skip
        """An audit whose tests stop early, so that many random keys cost little; `draws` is the number that the user chose."""
        settings = replace(
            settings, draws=max(draws or FIRST_DRAWS, settings.draws), stop_after=settings.stop_after or STOP_AFTER
        )
        return cls(tuple(map(Sealed, keys)), tuple(inputs), output, settings)

    @classmethod
    def as_detect(cls, keys: Sequence[Key], inputs: Sequence[str], output: str, settings: RandomKeys) -> Audit:
        """An audit of few documents, which tests each as `alimark detect` does, so that both give the same p-value."""
        if isinstance(settings, DetectionSettings) and settings.precision == "auto":
            settings = replace(settings, precision="float32")  # not first in a faster one
        settings = replace(settings, draws=draws_for_keys(settings.draws, len(keys)))
        return cls(tuple(map(Sealed, keys)), tuple(inputs), output, settings)


@dataclass(frozen=True)
class Work:
    """Blocks to process, and what is known from earlier attempts.

    careful: batches in which a worker died; their documents are tested one by one. poison: documents, by batch and number in
    the batch, that were alone when a worker died, twice; they are recorded as failed. deepen: the number of random keys for
    the documents in `only`, whose new answers replace those of before.
    """

    blocks: WorkBlocks
    careful: frozenset[int] = frozenset()
    poison: frozenset[tuple[int, int]] = frozenset()
    deepen: int = 0
    only: frozenset[Hashable] = frozenset()


class Begun(NamedTuple):
    """Sent before each step: the batch, the document if they are tested one by one (or -1), and what is done so far."""

    batch: int
    document: int
    done: int
    share: float  # about the share of the work that is done


@dataclass
class Report:
    """The counts and times of some work."""

    documents: int = 0
    skipped: int = 0  # documents that an earlier run answered
    times: Counter[str] = field(default_factory=Counter)
    tested: Counter[str] = field(default_factory=Counter)
    """Documents in the first pass, and those that went on to the full test."""
    units: Counter[str] = field(default_factory=Counter)
    """Units that were asked for, and those that were embedded."""

    def add(self, other: Report) -> None:
        self.documents += other.documents
        self.skipped += other.skipped
        for name in ("times", "tested", "units"):
            getattr(self, name).update(getattr(other, name))


def reason(error: str) -> str:
    """An error message without file names and numbers, so that equal errors can be counted."""
    return re.sub(r"[\d,]*\d", "N", re.sub(r"^\S+(, byte \d+)? (?=is not|cannot)", "it ", error))[:80]


def documents_of(audit: Audit, sink: Sink, blocks: WorkBlocks) -> Iterator[CorpusDocument]:
    """The documents of some blocks; in a JSONL output each with an id that no other has."""
    fs, _ = file_system(audit.inputs[0])
    columns = [audit.text_field, "id", *([audit.by] if audit.by else [])]
    documents = (document for block in blocks for document in read(fs, block, columns, audit.max_document))
    seen: set[str] = set()
    for number, document in enumerate(documents, 1):
        record = document.record if isinstance(document.record, dict) else {}
        place = f"@{document.place}" if document.place >= 0 else ""
        named = record or {"id": f"{document.file}{place}"}
        if isinstance(sink, JsonlSink):
            yield replace(document, id=unique_id(named, number, seen, field=audit.text_field))
        else:
            yield replace(document, id=record_id(named, field=audit.text_field))


def _place(document: CorpusDocument) -> Record:
    """The fields of an answer that say which document it is about."""
    return {"id": document.id, "file": document.file, "place": document.place}


class RememberingEmbedder:
    """An embedder with a least-recently-used cache of `megabytes`; 0 keeps nothing. Most units of web pages are boilerplate.

    It calls `heartbeat` before each batch, which is `scale` times as large as on a CPU.
    """

    def __init__(
        self, embedder: Embedder, megabytes: int, heartbeat: Callable[[], None] = lambda: None, scale: int = 1
    ) -> None:
        self._embedder, self._heartbeat, self._batch = embedder, heartbeat, scale * _UNITS
        self.name, self.dimension, self.fingerprint = embedder.name, embedder.dimension, embedder.fingerprint
        self.backend, self.languages = embedder.backend, embedder.languages
        self.precision, self.precisions = precision_of(embedder), precisions_of(embedder)
        self._most = (megabytes << 20) // (4 * self.dimension)
        self._kept: OrderedDict[bytes, NDArray[np.float32]] = OrderedDict()
        self.counts: Counter[str] = Counter()

    def with_precision(self, precision: str) -> RememberingEmbedder:
        """The same model in another precision; both share the cache and its limit, but no vectors."""
        other = copy.copy(self)
        other._embedder, other.precision = at_precision(self._embedder, precision), precision
        return other

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """The vectors of the texts; only those that are not in the cache are computed."""
        result = np.empty((len(texts), self.dimension), np.float32)
        new: dict[bytes, list[int]] = {}
        person = self.precision.encode()
        for row, text in enumerate(texts):
            name = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16, person=person).digest()
            if (vector := self._kept.get(name)) is None:
                new.setdefault(name, []).append(row)
            else:
                self._kept.move_to_end(name)
                result[row] = vector
        self.counts.update(asked=len(texts), embedded=len(new))
        # Sorted by length, so that batches need little padding.
        names = sorted(new, key=lambda name: len(texts[new[name][0]]))
        for start in range(0, len(names), self._batch):
            self._heartbeat()
            batch = names[start : start + self._batch]
            vectors = self._embedder.embed([texts[new[name][0]] for name in batch])
            for name, vector in zip(batch, vectors, strict=True):
                result[new[name]] = vector
                if self._most:
                    self._kept[name] = vector.copy()
        while len(self._kept) > self._most:
            self._kept.popitem(last=False)
        return result


class Worker:
    """Holds the embedders and does one piece of work at a time.

    It may use `threads` cores, by default all. If it is `guarded`, it ends its process when a document takes too long; what it
    loads and compiles before the first document is not limited.
    """

    def __init__(
        self, audit: Audit, sink: Sink | None = None, llm: LLM | None = None, *, threads: int | None = None,
        guarded: bool = False,
    ) -> None:  # fmt: skip
        self._audit, self._guarded = audit, False
        self._sink = sink or ParquetSink(audit)
        self._batch_scale = 1 if audit.device in (None, "cpu") else 16  # a GPU is only busy with more texts than a CPU
        self._embedders: list[RememberingEmbedder] = []

        def load(name: str) -> RememberingEmbedder:
            embedder = load_embedder(name, device=audit.device, threads=threads)
            self._embedders.append(RememberingEmbedder(embedder, audit.cache, self._heartbeat, self._batch_scale))
            return self._embedders[-1]

        self.auditor = Auditor(
            [key.open() for key in audit.keys], audit.settings, load, llm=llm, first_pass=audit.first_pass,
            check_level=max(audit.fpr, audit.fdr), beat=self._heartbeat,
        )  # fmt: skip
        if guarded:
            # On a busy machine, loading models and compiling kernels can take longer than a document may.
            self.auditor.answer(_SAMPLES)
            if self.auditor.first_pass:
                self.auditor.answer(_SAMPLES, audit.settings.draws)  # in full
            self._guarded = True

    def _heartbeat(self) -> None:
        """Start the time limit of the next step. `faulthandler` ends the process even if C code hangs."""
        if self._guarded:
            faulthandler.dump_traceback_later(self._audit.time_limit, exit=True)

    def work(self, work: Work) -> Iterator[Begun | Report]:
        """Answers the documents of some blocks: sends a message before each step, and a report when all is written."""
        report = Report()
        clock = Clock(report.times)
        self.auditor.times, self.auditor.tested = report.times, report.tested
        for embedder in self._embedders:
            embedder.counts = report.units
        again: dict[Hashable, Record] = {}
        size, characters = max(1, sum(block.size for block in work.blocks)), 0
        with ExitStack() as stack:
            stack.callback(faulthandler.cancel_dump_traceback_later)
            write = None if work.deepen else stack.enter_context(self._sink.writing(work.blocks))
            for number, batch in enumerate(self._batches(work, report)):
                clock.lap("reading")
                alone = number in work.careful
                for at, documents in enumerate([[document] for document in batch] if alone else [batch]):
                    yield Begun(number, at if alone else -1, report.documents, min(1.0, characters / size))
                    clock.skip()
                    rows = self._rows(documents, work, poison=(number, at) in work.poison)
                    faulthandler.cancel_dump_traceback_later()  # reading and writing files is not limited
                    clock.skip()
                    report.documents += len(rows)
                    if write is None:
                        again |= {self._sink.identity(row): row for row in rows}
                    else:
                        write(rows)
                    clock.lap("writing")
                characters += sum(self._length(document) for document in batch)
        if work.deepen:
            self._sink.rewrite([work.blocks], lambda row: again.get(self._sink.identity(row), row))
        clock.lap("writing")
        yield report

    def _batches(self, work: Work, report: Report) -> Iterator[list[CorpusDocument]]:
        """The documents in batches, bounded by the number of documents and by the characters of their texts."""
        batch: list[CorpusDocument] = []
        size = 0
        for document in documents_of(self._audit, self._sink, work.blocks):
            if work.deepen:
                if self._sink.identity(_place(document)) not in work.only:
                    continue
            elif document.id in self._sink.answered:
                report.skipped += 1
                continue
            batch.append(document)
            size += self._length(document)
            if size >= self._batch_scale * BATCH_CHARACTERS or len(batch) >= self._batch_scale * BATCH_DOCUMENTS:
                yield batch
                batch, size = [], 0
        if batch:
            yield batch

    def _length(self, document: CorpusDocument) -> int:
        text = document.text(self._audit.text_field)
        return len(text) if isinstance(text, str) else 0

    def _rows(self, batch: Sequence[CorpusDocument], work: Work, *, poison: bool) -> list[Record]:
        """The answer of each document; a record without a text is answered with its error."""
        if poison:
            error = TextError(
                f"two workers ended while they tested this document alone: it took more than {self._audit.time_limit:g} s, or "
                "too much memory"
            )
            return [self._row(document, error) for document in batch]
        texts = [document.text(self._audit.text_field) for document in batch]
        answers = iter(self.auditor.answer([text for text in texts if isinstance(text, str)], work.deepen or None))
        return [
            self._row(document, next(answers) if isinstance(text, str) else text)
            for document, text in zip(batch, texts, strict=True)
        ]

    def _row(self, document: CorpusDocument, answer: DocumentAnswer) -> Record:
        row = _place(document) | answer_fields(answer, self._audit.fpr)
        if not isinstance(answer, AlimarkError):
            row["full"] = self.auditor.in_full(answer)
        if isinstance(document.record, dict):
            if source := document.record.get(self._audit.by):
                row["source"] = str(source)
            if isinstance(self._sink, JsonlSink):
                row |= kept_input(document.record, document.id, self._audit.text_field)
        return in_order(row)
