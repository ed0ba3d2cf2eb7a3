"""A worker reads a block, tests its documents in batches with the auditor, and writes one Parquet file of results."""

from __future__ import annotations

import faulthandler
import os
import re
import secrets
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from types import TracebackType
from typing import TYPE_CHECKING, NamedTuple

from alimark.audit.answers import verdict_of
from alimark.audit.auditor import Answer, Auditor, FirstPass, answers, in_batches
from alimark.audit.corpora.cache import RememberingEmbedder
from alimark.audit.corpora.files import MAX_DOCUMENT, Block, Document, arrow, file_system, read
from alimark.core._util.jsonl import Record, record_id
from alimark.core.detection.settings import PASSAGES_FROM
from alimark.core.detection.stats.p_values import RandomKeys
from alimark.core.detection.timing import Clock
from alimark.core.embedding.loading import load_embedder
from alimark.core.keys.sealed import Sealed
from alimark.errors import AlimarkError, RecordError, TextError

if TYPE_CHECKING:
    from pyarrow import Schema
    from pyarrow.fs import FileSystem

_ROWS_PER_WRITE = 4096
_SENTENCES = tuple(f"The lamp in house {number} went out at ten." for number in range(PASSAGES_FROM))
_SAMPLES = (" ".join(_SENTENCES[:12]), " ".join(_SENTENCES), " ".join(_SENTENCES[:12]).replace(".", ""))
"""Texts that need all kernels of an audit: one that is aligned as a whole, one that is searched for passages too, and one
without full stops."""


@dataclass(frozen=True)
class Task:
    """The settings of a run. They are sent to every worker, including the secrets of the keys."""

    keys: tuple[Sealed, ...]
    settings: RandomKeys
    input: str
    """Any location on the file system of the documents."""
    output: str
    text_field: str = "text"
    by: str = ""
    """The field of a record that names its source; if empty, the source is the file."""
    max_document: int = MAX_DOCUMENT
    time_limit: float = 120.0
    """The most seconds between two heartbeats of a worker, that is, for a single step of a document."""
    cache: int = 256
    """Megabytes of embeddings to keep in memory."""
    first_pass: FirstPass | None = None
    check_level: float = 0.05
    """The p-value up to which an answer in a fast precision is checked in float32."""
    device: str | None = None
    fpr: float = 0.01
    """The false-positive rate of the verdict, until the q-values of all documents decide it."""

    @property
    def batch_scale(self) -> int:
        """How many times as large batches are as on a CPU."""
        return 1 if self.device in (None, "cpu") else 16


@dataclass(frozen=True)
class Work:
    """A block to process, and what is known from earlier attempts.

    careful: batches in which a worker died; their documents are tested one by one. poison: documents, by batch and number in
    the batch, that were alone when a worker died, twice; they are recorded as failed. deepen: the number of random keys for
    the documents in `only`, whose new results replace those in the block's file.
    """

    block: Block
    careful: frozenset[int] = frozenset()
    poison: frozenset[tuple[int, int]] = frozenset()
    deepen: int = 0
    only: frozenset[tuple[str, int]] = frozenset()


class Begun(NamedTuple):
    """Sent before each step: the batch, the document if they are tested one by one (or -1), and the documents done so far."""

    batch: int
    document: int
    done: int


@dataclass
class Report:
    """The counts and times of one or more blocks."""

    documents: int = 0
    failed: Counter[str] = field(default_factory=Counter)
    times: Counter[str] = field(default_factory=Counter)
    tested: Counter[str] = field(default_factory=Counter)
    """Documents in the first pass, and those that went on to the full test."""
    units: Counter[str] = field(default_factory=Counter)
    """Units that were asked for, and those that were embedded."""

    def count(self, rows: Sequence[Record]) -> None:
        self.documents += len(rows)
        self.failed.update(reason(row["error"]) for row in rows if row["failed"])

    def add(self, other: Report) -> None:
        self.documents += other.documents
        for name in ("failed", "times", "tested", "units"):
            getattr(self, name).update(getattr(other, name))


def _storable(text: str) -> str:
    """The text with halves of surrogate pairs written as escapes: Parquet holds UTF-8, which has none."""
    return text.encode("utf-8", "backslashreplace").decode()


def reason(error: str) -> str:
    """An error message without file names and numbers, so that equal errors can be counted."""
    return re.sub(r"[\d,]*\d", "N", re.sub(r"^\S+(, byte \d+)? (?=is not|cannot)", "it ", error))[:80]


@cache
def schema() -> Schema:
    """The columns of a result file."""
    pa = arrow()
    return pa.schema([
        ("id", pa.string()), ("file", pa.string()), ("place", pa.int64()), ("source", pa.string()), ("key_id", pa.string()),
        ("scheme", pa.string()), ("score", pa.float64()), ("z", pa.float64()), ("p_value", pa.float64()), ("draws", pa.int64()),
        ("keys_tried", pa.int32()), ("readings", pa.int32()), ("searches", pa.int32()),
        ("near_flips", pa.int32()), ("sentence_count", pa.int32()),
        ("full", pa.bool_()), ("precision", pa.string()),
        ("passages", pa.list_(pa.struct([
            ("first", pa.int32()), ("last", pa.int32()), ("first_block", pa.int32()), ("last_block", pa.int32()),
            ("score", pa.float64()), ("p_value", pa.float64()),
        ]))),
        ("payload", pa.struct([("value", pa.int64()), ("confidence", pa.float64())])),
        ("warnings", pa.list_(pa.string())), ("failed", pa.bool_()), ("error", pa.string()),
        ("verdict", pa.string()), ("found", pa.bool_()), ("q_value", pa.float64()),
    ])  # fmt: skip


class Worker:
    """Holds the embedders and processes blocks, one at a time.

    It may use `threads` cores, by default all. If it is `guarded`, it ends its process when a document takes too long; what it
    loads and compiles before the first document is not limited.
    """

    def __init__(self, task: Task, *, threads: int | None = None, guarded: bool = False) -> None:
        self._task, self._guarded = task, False
        self._input, _ = file_system(task.input)
        self._output, self._folder = file_system(task.output)
        self._embedders: list[RememberingEmbedder] = []

        def load(name: str) -> RememberingEmbedder:
            embedder = load_embedder(name, device=task.device, threads=threads)
            self._embedders.append(RememberingEmbedder(embedder, task.cache, self._heartbeat, task.batch_scale))
            return self._embedders[-1]

        self._auditor = Auditor(
            [key.open() for key in task.keys], task.settings, load, first_pass=task.first_pass, check_level=task.check_level,
            beat=self._heartbeat,
        )  # fmt: skip
        if guarded:
            self._warm_up()
            self._guarded = True

    def _warm_up(self) -> None:
        """Test some texts without a time limit, so that models are loaded and kernels compiled before the first document.

        On a busy machine that can take longer than a document may, and the document would be recorded as failed.
        """
        self._auditor.answer(_SAMPLES)
        if self._auditor.first_pass:
            self._auditor.answer(_SAMPLES, self._task.settings.draws)  # in full

    def _heartbeat(self) -> None:
        """Start the time limit of the next step. `faulthandler` ends the process even if C code hangs."""
        if self._guarded:
            faulthandler.dump_traceback_later(self._task.time_limit, exit=True)

    def work(self, work: Work) -> Iterator[Begun | Report]:
        """Process a block: send a message before each step and a report when the block's file is complete."""
        report = Report()
        clock = Clock(report.times)
        self._start_counting()
        replaced: dict[tuple[str, int], Record] = {}
        path = result_path(self._folder, work.block)
        try:
            with WholeParquet(self._output, path) as file:
                for number, batch in enumerate(self._batches(work)):
                    clock.lap("reading")
                    alone = number in work.careful
                    for at, documents in enumerate([[document] for document in batch] if alone else [batch]):
                        yield Begun(number, at if alone else -1, report.documents)
                        clock.skip()
                        rows = self._rows(documents, work, poison=(number, at) in work.poison)
                        faulthandler.cancel_dump_traceback_later()  # reading and writing files is not limited
                        clock.skip()
                        report.count(rows)
                        if work.deepen:
                            replaced |= {(row["file"], row["place"]): row for row in rows}
                        else:
                            file.write(rows)
                        clock.lap("writing")
                if work.deepen:
                    file.write([replaced.get((row["file"], row["place"]), row) for row in self._written(path)])
        finally:
            faulthandler.cancel_dump_traceback_later()
        clock.lap("writing")
        yield self._counted(report)

    def _batches(self, work: Work) -> Iterator[list[Document]]:
        task = self._task
        columns = [task.text_field, "id", *([task.by] if task.by else [])]
        documents = read(self._input, work.block, columns, task.max_document)
        if work.deepen:
            documents = (document for document in documents if (document.file, document.place) in work.only)
        return in_batches(documents, lambda document: document.record, task.text_field, task.batch_scale)

    def _rows(self, batch: Sequence[Document], work: Work, *, poison: bool) -> list[Record]:
        """One row of results for each document."""
        if poison:
            limit = self._task.time_limit
            error = TextError(
                f"two workers ended while they tested this document alone: it took more than {limit:g} s, or too much memory"
            )
            return [self._row(document, error) for document in batch]
        records = [document.record for document in batch]
        results = answers(records, self._auditor, self._task.text_field, work.deepen or None)
        return [self._row(document, answer) for document, answer in zip(batch, results, strict=True)]

    def _row(self, document: Document, answer: Answer) -> Record:
        record = {} if isinstance(document.record, RecordError) else document.record
        name = record_id(record, field=self._task.text_field) if record else f"{document.file}@{document.place}"
        source = str(record.get(self._task.by) or document.file) if self._task.by else document.file
        row = {
            "id": _storable(name), "file": document.file, "place": document.place, "source": _storable(source),
            "failed": isinstance(answer, AlimarkError),
        }  # fmt: skip
        if isinstance(answer, AlimarkError):
            return row | {"error": _storable(str(answer)), "verdict": "failed", "found": False}
        fields = answer.record() | {
            "keys_tried": answer.keys_tried, "readings": answer.readings, "searches": answer.searches,
            "full": self._auditor.in_full(answer), "precision": answer.precision,
            "verdict": verdict_of(answer, self._task.fpr),
        }  # fmt: skip
        return row | {name: fields[name] for name in schema().names if name in fields}

    def _written(self, path: str) -> list[Record]:
        with self._output.open_input_file(path) as file:
            rows: list[Record] = arrow().parquet.read_table(file).to_pylist()
        return rows

    def _start_counting(self) -> None:
        self._auditor.times.clear()
        self._auditor.tested.clear()
        for embedder in self._embedders:
            embedder.counts.clear()

    def _counted(self, report: Report) -> Report:
        report.times.update(self._auditor.times)
        report.tested.update(self._auditor.tested)
        for embedder in self._embedders:
            report.units.update(embedder.counts)
        return report


def result_path(folder: str, block: Block) -> str:
    return f"{folder}/results/part-{block.name}.parquet"


class WholeParquet:
    """Writes a Parquet file that appears only when it is complete, and replaces an existing one."""

    def __init__(self, fs: FileSystem, path: str) -> None:
        self._fs, self._path = fs, path
        folder, _, name = path.rpartition("/")
        # Object stores, too, take an interrupted stream for a complete file, so it is moved into place at the end.
        self._part = f"{folder}/.{name}.{secrets.token_hex(6)}.part"
        self._rows: list[Record] = []

    def __enter__(self) -> WholeParquet:
        self._file = self._fs.open_output_stream(self._part)
        self._writer = arrow().parquet.ParquetWriter(self._file, schema(), compression="zstd")
        return self

    def write(self, rows: Iterable[Record]) -> None:
        self._rows += rows
        if len(self._rows) >= _ROWS_PER_WRITE:
            self._flush()

    def _flush(self) -> None:
        if self._rows:
            self._writer.write_table(arrow().Table.from_pylist(self._rows, schema=schema()))
            self._rows = []

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            with suppress(Exception):
                self._file.close()
                self._fs.delete_file(self._part)
            return
        self._flush()
        self._writer.close()
        self._file.close()
        if self._fs.type_name == "local":
            descriptor = os.open(self._part, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
        self._fs.move(self._part, self._path)
