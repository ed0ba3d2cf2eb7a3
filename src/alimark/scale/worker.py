"""What is done with a block: read it, answer its documents in batches, write one Parquet file of answers."""

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
from typing import Any, NamedTuple

from alimark._util.jsonl import record_id
from alimark.audit.auditor import Answer, Auditor, FirstPass, answers, in_batches
from alimark.detection.pipeline import Clock
from alimark.detection.stats.p_values import RandomKeys
from alimark.embedding.loading import load_embedder
from alimark.errors import AlimarkError, RecordError, TextError
from alimark.keys.key import Sealed
from alimark.scale.cache import RememberingEmbedder
from alimark.scale.files import MAX_DOCUMENT, Block, Document, arrow, file_system, read

_ROWS_TOGETHER = 4096
_WARMING = "The door was open. Nobody came in, and it was late. The lamp went out. Somebody wrote a letter."


@dataclass(frozen=True)
class Task:
    """What every worker of a run must know. It travels to them, secrets and all."""

    keys: tuple[Sealed, ...]
    settings: RandomKeys
    input: str
    """Anything on the file system of the documents."""
    output: str
    text_field: str = "text"
    by: str = ""
    """The field of a record that names its source; without one, the file does."""
    max_document: int = MAX_DOCUMENT
    time_limit: float = 120.0
    """Seconds that one step of one document may take."""
    cache: int = 256
    """Megabytes of vectors kept."""
    first_pass: FirstPass | None = None
    device: str | None = None


@dataclass(frozen=True)
class Work:
    """A block, and what is known of earlier tries.

    careful: batches in which a worker died, whose documents are then taken one by one. poison: documents, as batch and number,
    with which workers died alone, twice; they are recorded as failed. deepen: random keys for the documents at `only`, whose
    answers then replace those in the block's file.
    """

    block: Block
    careful: frozenset[int] = frozenset()
    poison: frozenset[tuple[int, int]] = frozenset()
    deepen: int = 0
    only: frozenset[tuple[str, int]] = frozenset()


class Begun(NamedTuple):
    """Told before each step: which batch, which of its documents where they are taken one by one, and the documents done."""

    batch: int
    document: int
    done: int


@dataclass
class Report:
    """What a block came to."""

    documents: int = 0
    failed: Counter[str] = field(default_factory=Counter)
    times: Counter[str] = field(default_factory=Counter)
    looks: Counter[str] = field(default_factory=Counter)
    units: Counter[str] = field(default_factory=Counter)

    def count(self, rows: Sequence[dict[str, Any]]) -> None:
        self.documents += len(rows)
        self.failed.update(reason(row["error"]) for row in rows if row["failed"])

    def add(self, other: Report) -> None:
        self.documents += other.documents
        for name in ("failed", "times", "looks", "units"):
            getattr(self, name).update(getattr(other, name))


def reason(error: str) -> str:
    """An error without what differs from document to document: names, numbers."""
    return re.sub(r"[\d,]*\d", "N", re.sub(r"^\S+(, byte \d+)? (?=is not|cannot)", "it ", error))[:80]


@cache
def schema() -> Any:
    pa = arrow()
    return pa.schema([
        ("id", pa.string()), ("file", pa.string()), ("place", pa.int64()), ("source", pa.string()), ("key_id", pa.string()),
        ("scheme", pa.string()), ("score", pa.float64()), ("z", pa.float64()), ("p_value", pa.float64()), ("draws", pa.int64()),
        ("keys_tried", pa.int32()), ("near_flips", pa.int32()), ("sentence_count", pa.int32()), ("full", pa.bool_()),
        ("passages", pa.list_(pa.struct([
            ("first", pa.int32()), ("last", pa.int32()), ("first_block", pa.int32()), ("last_block", pa.int32()),
            ("score", pa.float64()), ("p_value", pa.float64()),
        ]))),
        ("warnings", pa.list_(pa.string())), ("failed", pa.bool_()), ("error", pa.string()),
    ])  # fmt: skip


class Worker:
    """Holds the embedder and works through blocks, one at a time. `guarded`: a document that takes too long ends the process.

    `threads`: cores that it may use, by default all that the process has.
    """

    def __init__(self, task: Task, *, threads: int | None = None, guarded: bool = False) -> None:
        self._task, self._guarded = task, guarded
        self._input, _ = file_system(task.input)
        self._output, self._folder = file_system(task.output)
        self._embedders: list[RememberingEmbedder] = []

        def load(name: str) -> RememberingEmbedder:
            own = load_embedder(name, device=task.device, threads=threads)
            self._embedders.append(RememberingEmbedder(own, task.cache, self._beat))
            return self._embedders[-1]

        self._auditor = Auditor(
            [key.open() for key in task.keys], task.settings, load, first_pass=task.first_pass, beat=self._beat
        )

    def _beat(self) -> None:
        """Whoever takes longer until the next beat is ended from outside Python: it may be C code that hangs."""
        if self._guarded:
            faulthandler.dump_traceback_later(self._task.time_limit, exit=True)

    def work(self, work: Work) -> Iterator[Begun | Report]:
        """Says what it begins, and at the end what came of it; the block's file is there by then."""
        report = Report()
        clock = Clock(report.times)
        self._start_counting()
        made: dict[tuple[str, int], dict[str, Any]] = {}
        path = result_path(self._folder, work.block)
        try:
            with _Whole(self._output, path) as file:
                for number, batch in enumerate(self._batches(work)):
                    clock.lap("reading")
                    alone = number in work.careful
                    for at, some in enumerate([[one] for one in batch] if alone else [batch]):
                        yield Begun(number, at if alone else -1, report.documents)
                        clock.skip()
                        rows = self._rows(some, work, poison=(number, at) in work.poison)
                        faulthandler.cancel_dump_traceback_later()  # slow files are no document's fault
                        clock.skip()
                        report.count(rows)
                        if work.deepen:
                            made |= {(row["file"], row["place"]): row for row in rows}
                        else:
                            file.write(rows)
                        clock.lap("writing")
                if work.deepen:
                    file.write([made.get((row["file"], row["place"]), row) for row in self._written(path)])
        finally:
            faulthandler.cancel_dump_traceback_later()
        clock.lap("writing")
        yield self._counted(report)

    def _batches(self, work: Work) -> Iterator[list[Document]]:
        task = self._task
        columns = [task.text_field, "id", *([task.by] if task.by else [])]
        documents = read(self._input, work.block, columns, task.max_document)
        if work.deepen:
            documents = (one for one in documents if (one.file, one.place) in work.only)
        return in_batches(documents, lambda one: one.record, task.text_field)

    def _rows(self, batch: Sequence[Document], work: Work, *, poison: bool) -> list[dict[str, Any]]:
        if poison:
            why = f"a worker ended with this document alone, twice: after {self._task.time_limit:g} s, or for want of memory"
            return [self._row(one, TextError(why)) for one in batch]
        found = answers([one.record for one in batch], self._auditor, self._task.text_field, work.deepen or None)
        return [self._row(one, answer) for one, answer in zip(batch, found, strict=True)]

    def _row(self, document: Document, answer: Answer) -> dict[str, Any]:
        record = {} if isinstance(document.record, RecordError) else document.record
        own = record_id(record, field=self._task.text_field) if record else f"{document.file}@{document.place}"
        row = {
            "id": own, "file": document.file, "place": document.place,
            "source": str(record.get(self._task.by) or document.file) if self._task.by else document.file,
            "failed": isinstance(answer, AlimarkError),
        }  # fmt: skip
        if isinstance(answer, AlimarkError):
            return row | {"error": str(answer)}
        seen = answer.record() | {"keys_tried": answer.keys_tried, "full": self._in_full(answer)}
        return row | {name: seen[name] for name in schema().names if name in seen}

    def _in_full(self, answer: Answer) -> bool:
        first = self._task.first_pass
        return first is None or getattr(answer, "settings", None) != first.settings(self._task.settings)  # type: ignore[arg-type]

    def _written(self, path: str) -> list[dict[str, Any]]:
        with self._output.open_input_file(path) as file:
            rows: list[dict[str, Any]] = arrow().parquet.read_table(file).to_pylist()
        return rows

    def _start_counting(self) -> None:
        self._auditor.times.clear()
        self._auditor.looks.clear()
        for embedder in self._embedders:
            embedder.counts.clear()

    def _counted(self, report: Report) -> Report:
        report.times.update(self._auditor.times)
        report.looks.update(self._auditor.looks)
        for embedder in self._embedders:
            report.units.update(embedder.counts)
        return report


def result_path(folder: str, block: Block) -> str:
    return f"{folder}/results/part-{block.name}.parquet"


class _Whole:
    """A Parquet file that is there whole or not at all, and replaces one that was there."""

    def __init__(self, fs: Any, path: str) -> None:
        self._fs, self._path = fs, path
        folder, _, name = path.rpartition("/")
        # Moved into place when it is whole, on object stores, too: they take a stream that was broken off for a whole one.
        self._part = f"{folder}/.{name}.{secrets.token_hex(6)}.part"
        self._rows: list[dict[str, Any]] = []

    def __enter__(self) -> _Whole:
        self._file = self._fs.open_output_stream(self._part)
        self._writer = arrow().parquet.ParquetWriter(self._file, schema(), compression="zstd")
        return self

    def write(self, rows: Iterable[dict[str, Any]]) -> None:
        self._rows += rows
        if len(self._rows) >= _ROWS_TOGETHER:
            self._flush()

    def _flush(self) -> None:
        if self._rows:
            self._writer.write_table(arrow().Table.from_pylist(self._rows, schema=schema()))
            self._rows = []

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
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
