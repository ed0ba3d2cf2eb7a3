"""Where the answers of an audit go: one JSONL file, or a folder with a Parquet file for each block of documents.

    OUTPUT/manifest.json            the question: ids of the keys, settings, files
    OUTPUT/results/part-*.parquet   one file per block, with one row per document
    OUTPUT/summary.json             what was found

Both can be continued: the ids in a JSONL file say which documents are answered, and a block is done when its Parquet file
exists. If a run into a folder is killed, the blocks that were being processed are lost.
"""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Callable, Collection, Hashable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from alimark.audit.answers import SCHEMA, from_parquet, parquet_schema, to_parquet
from alimark.audit.files import Block, DocumentFile, arrow, file_system, is_local
from alimark.core._util.files import write_whole
from alimark.core._util.jsonl import JsonlWriter, Record, read_jsonl
from alimark.errors import AlimarkError, RecordError

if TYPE_CHECKING:
    from alimark.audit.worker import Audit

VERSION = 5
_ROWS_PER_WRITE = 4096
WorkBlocks = tuple[Block, ...]  # a unit of work
Write = Callable[[Sequence[Record]], None]
Tell = Callable[[str], None]


class JsonlSink:
    """Appends every answer to a JSONL file as soon as it is known. All documents are one unit of work, with unique ids."""

    def __init__(self, audit: Audit) -> None:
        self._path = Path(audit.output)
        # With several keys, each document is answered by the likeliest: the file belongs to no single key.
        self._writer = JsonlWriter(self._path, key_id=audit.keys[0].id if len(audit.keys) == 1 else None)
        self.answered = self._writer.done
        """The ids of the documents that have an answer."""
        with ExitStack() as stack:
            stack.callback(self.close)
            # Before anything is added: the file has to hold answers of this release, one for each document.
            count = 0
            for count, record in read_jsonl(self._path):
                if isinstance(record, RecordError) or not record.keys() <= SCHEMA.keys() or "file" not in record:
                    raise RecordError(
                        f"{self._path}:{count} is not an answer of this release; choose another output file, and documents are "
                        "answered again"
                    )
            if count != len(self._writer.done):
                raise AlimarkError(f"{self._path} holds two answers of one document; choose another output file")
            stack.pop_all()

    def begin(self, audit: Audit, sources: Sequence[DocumentFile], tell: Tell) -> None:
        """A JSONL file says by itself what it holds."""

    def works(self, blocks: Sequence[Block]) -> list[WorkBlocks]:
        """The blocks in units of work: all blocks are one."""
        return [tuple(blocks)]

    def left(self, works: Sequence[WorkBlocks]) -> list[WorkBlocks]:
        """All units of work: the documents are read again, and those that have an answer are skipped."""
        return list(works)

    def identity(self, row: Record) -> Hashable:
        """What tells a document from all others."""
        return str(row["id"])

    @contextmanager
    def writing(self, work: WorkBlocks) -> Iterator[Write]:
        """Yields a function that takes the answers of a unit of work."""

        def write(rows: Sequence[Record]) -> None:
            for row in rows:
                content = {name: value for name, value in row.items() if value not in (None, "", [], {})}
                self._writer.write({"id": row["id"], **content})

        yield write

    def rows(self, works: Sequence[WorkBlocks], columns: Sequence[str] = ()) -> Iterator[tuple[WorkBlocks, Record]]:
        """The answers, each with its unit of work."""
        with open(self._path, "rb") as file:
            for line in file:
                yield works[0], json.loads(line)

    def rewrite(self, works: Sequence[WorkBlocks], change: Callable[[Record], Record]) -> None:
        """Replaces every answer by what `change` returns for it."""
        self._writer.rewrite(change)

    def close(self, summary: Record | None = None) -> None:
        """Releases the file."""
        self._writer.__exit__(None, None, None)


class ParquetSink:
    """Writes a Parquet file for each block into a folder on any file system. Workers of a cluster make their own."""

    answered: Collection[str] = ()  # no document of a block that is not done has an answer

    def __init__(self, audit: Audit) -> None:
        self._fs, self._folder = file_system(audit.output)
        self._open = ExitStack()

    def begin(self, audit: Audit, sources: Sequence[DocumentFile], tell: Tell) -> None:
        """Makes the folder, or takes up that of an earlier run. A local folder is locked against other runs."""
        self._fs.makedirs(self._folder, exist_ok=True)
        if is_local(self._fs):
            from filelock import FileLock, Timeout

            try:
                self._open.enter_context(FileLock(Path(self._folder) / ".lock", timeout=0))
            except Timeout:
                message = f"another run is writing to {self._folder}; wait for it, or choose another folder"
                raise AlimarkError(message) from None
        try:
            self._check_manifest(_manifest(audit, sources), tell)
            self._fs.makedirs(f"{self._folder}/results", exist_ok=True)
        except BaseException:
            self._open.close()
            raise

    def _check_manifest(self, wanted: Record, tell: Tell) -> None:
        """Writes the manifest of a new folder, or raises an error if the folder belongs to a run with other settings."""
        path, folder = f"{self._folder}/manifest.json", self._folder
        if not self._fs.exists(path):
            if is_local(self._fs) and any(path.name != ".lock" for path in Path(folder).iterdir()):
                raise AlimarkError(f"{folder} holds other files; choose a folder that is empty or does not exist")
            self._write("manifest.json", wanted)
            return
        try:
            before = json.loads(self._fs.cat_file(path))
        except ValueError:
            raise AlimarkError(f"{path} is not the manifest of a run; choose another folder") from None
        for name, value in wanted.items():
            if name != "files" and before.get(name) != value:
                raise AlimarkError(
                    f"{folder} belongs to a run with other settings ({name.replace('_', ' ')}); use the same settings, or "
                    "choose another folder"
                )
        changed = [file for file, size in before["files"].items() if wanted["files"].get(file, size) != size]
        if changed:
            raise AlimarkError(f"{changed[0]} has changed since the first run into {folder}; choose another folder")
        if gone := before["files"].keys() - wanted["files"].keys():
            tell(f"{len(gone)} files of the earlier run are not among the inputs; the summary leaves their results out")
        if new := wanted["files"].keys() - before["files"].keys():
            tell(f"{len(new)} files were not part of the earlier run and are added")
            self._write("manifest.json", wanted | {"files": before["files"] | wanted["files"]})

    def _write(self, name: str, content: Record) -> None:
        path = f"{self._folder}/{name}"
        data = (json.dumps(content, ensure_ascii=False, indent=2) + "\n").encode("utf-8", "surrogatepass")
        if is_local(self._fs):
            write_whole(path, data)
        else:
            self._fs.pipe_file(f"{path}.part", data)
            self._fs.mv(f"{path}.part", path)

    def works(self, blocks: Sequence[Block]) -> list[WorkBlocks]:
        """The blocks in units of work: each is one."""
        return [(block,) for block in blocks]

    def left(self, works: Sequence[WorkBlocks]) -> list[WorkBlocks]:
        """The units of work that are not done; partial files of killed workers are removed."""
        self._fs.invalidate_cache()
        done = set()
        for path in self._fs.find(f"{self._folder}/results"):
            if path.endswith(".part"):
                with suppress(OSError):
                    self._fs.rm_file(path)
            done.add(path.rpartition("/")[2])
        return [work for work in works if self._path(work).rpartition("/")[2] not in done]

    def _path(self, work: WorkBlocks) -> str:
        [block] = work
        return f"{self._folder}/results/part-{block.name}.parquet"

    def identity(self, row: Record) -> Hashable:
        """What tells a document from all others."""
        return row["file"], row["place"]

    @contextmanager
    def writing(self, work: WorkBlocks) -> Iterator[Write]:
        """Yields a function that takes the answers of a unit of work. Its file appears only when it is complete."""
        path = self._path(work)
        folder, _, name = path.rpartition("/")
        # Object stores, too, take an interrupted stream for a complete file, so it is moved into place at the end.
        part = f"{folder}/.{name}.{secrets.token_hex(6)}.part"
        waiting: list[Record] = []
        try:
            with self._fs.open(part, "wb") as file:
                with arrow().parquet.ParquetWriter(file, parquet_schema(), compression="zstd") as writer:

                    def flush() -> None:
                        writer.write_table(arrow().Table.from_pylist(waiting, schema=parquet_schema()))
                        waiting.clear()

                    def write(rows: Sequence[Record]) -> None:
                        waiting.extend(map(to_parquet, rows))
                        if len(waiting) >= _ROWS_PER_WRITE:
                            flush()

                    yield write
                    flush()
                if is_local(self._fs):
                    file.flush()
                    os.fsync(file.fileno())
        except BaseException:
            with suppress(Exception):
                self._fs.rm_file(part)
            raise
        self._fs.mv(part, path)

    def rows(self, works: Sequence[WorkBlocks], columns: Sequence[str] = ()) -> Iterator[tuple[WorkBlocks, Record]]:
        """The answers, each with its unit of work; with `columns`, no other fields are read."""
        for work in works:
            with self._fs.open(self._path(work), "rb") as file:
                table = arrow().parquet.read_table(file, columns=list(columns) or None)
            for row in table.to_pylist():
                yield work, from_parquet(row)

    def rewrite(self, works: Sequence[WorkBlocks], change: Callable[[Record], Record]) -> None:
        """Replaces every answer of some units of work by what `change` returns; files that stay equal are not written."""
        for work in works:
            before = [row for _, row in self.rows([work])]
            after = [change(row) for row in before]
            if after != before:
                with self.writing(work) as write:
                    write(after)

    def close(self, summary: Record | None = None) -> None:
        """Writes the summary of a run that came to its end, and unlocks the folder."""
        if summary is not None:
            self._write("summary.json", summary)
        self._open.close()


Sink = JsonlSink | ParquetSink


def _manifest(audit: Audit, sources: Sequence[DocumentFile]) -> Record:
    how = {"settings": asdict(audit.settings), "first_pass": audit.first_pass and asdict(audit.first_pass)}
    asked = {name: getattr(audit, name) for name in ("text_field", "by", "max_document", "block_bytes")}
    files = {source.path: source.size for source in sources}
    keys = sorted(key.id for key in audit.keys)
    return {"version": VERSION, "keys": keys, **json.loads(json.dumps(how, default=str)), **asked, "files": files}
