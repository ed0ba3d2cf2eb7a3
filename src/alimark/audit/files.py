"""Finds the files of a corpus on any file system, cuts them into blocks, and reads documents in bounded memory.

Files are cut without reading them. The name of a block is a hash of what it covers, so that the same input always gives the
same blocks.
"""

from __future__ import annotations

import bz2
import fnmatch
import gzip
import hashlib
import io
import json
import os
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path, PurePosixPath
from types import ModuleType
from typing import TYPE_CHECKING, Any, BinaryIO, Literal, cast

from fsspec.implementations.local import LocalFileSystem

from alimark.audit.documents.kinds import ENDINGS, kind_of_name
from alimark.audit.documents.reading import MAX_BYTES, read_document
from alimark.core._util.files import is_special, regular
from alimark.core._util.jsonl import Record, lines, parse_record, too_long, unreadable
from alimark.errors import AlimarkError, MissingExtra, RecordError

if TYPE_CHECKING:
    from pyarrow import RecordBatch

FileSystem = Any  # a file system of fsspec, which has no types

FileKind = Literal["parquet", "jsonl", "text"]
BLOCK_BYTES = 2 << 20
"""About a thousand documents: minutes of work for a core, so that little is lost when a worker dies."""
MAX_DOCUMENT = 8 << 20
"""Bytes. A longer document is skipped and recorded as failed."""
_FILES_PER_BLOCK = 256
_FEW_FILES, _FEW_BYTES = 100, 256 << 10
"""An audit of so many files of one document each, and so many bytes of others, is small."""
_KINDS: dict[str, FileKind] = {".parquet": "parquet", ".pq": "parquet", ".jsonl": "jsonl", ".ndjson": "jsonl"}
_KINDS |= dict.fromkeys(ENDINGS, "text")
_NAMED = 100  # so many files that are passed over are named; of more, the number is told
_WEB = ("http:", "https:", "ftp:", "ftps:")
_PACKED = {".gz": "gzip", ".zst": "zstd", ".bz2": "bz2", ".lz4": "lz4"}


@dataclass(frozen=True)
class DocumentFile:
    """A file of the corpus."""

    path: str
    size: int
    kind: FileKind
    packed: str
    """The compression, if any. A compressed file can only be read from its beginning and is therefore one block."""


@dataclass(frozen=True)
class Block:
    """Documents that a worker processes together: bytes of a JSONL file, rows of a Parquet file, or whole files."""

    kind: FileKind
    paths: tuple[str, ...]
    start: int
    stop: int  # -1 is the end of the file
    size: int
    packed: str = ""

    @property
    def name(self) -> str:
        content = json.dumps(asdict(self), sort_keys=True).encode()
        return hashlib.sha256(content).hexdigest()[:20]


@dataclass(frozen=True)
class CorpusDocument:
    """A document with its place in the corpus, or the error that keeps it from being read."""

    file: str
    place: int  # the byte in a JSONL file or the row of a Parquet file; -1 is the whole file
    record: Record | RecordError
    id: str = ""  # its id in the audit

    def text(self, field: str) -> str | RecordError:
        """The text in a field of the record, or the error that says why there is none."""
        if isinstance(self.record, RecordError):
            return self.record
        if isinstance(text := self.record.get(field), str):
            return text
        return RecordError(f"the record has no `{field}`, or one that is not a string")


def arrow() -> ModuleType:
    """The pyarrow library."""
    try:
        import pyarrow.parquet
    except ImportError:
        raise MissingExtra("pyarrow", "ray") from None
    library: ModuleType = pyarrow
    return library


def file_system(location: str) -> tuple[FileSystem, str]:
    """The file system of a path or address (pyarrow's where it knows the address, else fsspec's), and the path on it."""
    if "://" not in location or location.startswith("file://"):
        path = Path(location.removeprefix("file://")).expanduser().absolute()
        return LocalFileSystem(), Path(os.path.normpath(path)).as_posix()
    if location.lower().startswith(_WEB):
        raise AlimarkError(
            f"{_bare(location)} is a web address, and alimark does not download pages; save them as files first"
        )
    try:
        from fsspec.implementations.arrow import ArrowFSWrapper
        from pyarrow.fs import FileSystem as ArrowFileSystem

        opened, path = ArrowFileSystem.from_uri(location)
        return ArrowFSWrapper(opened), path
    except Exception as first:  # an address scheme that this build of pyarrow does not know, or no pyarrow
        try:
            from fsspec.core import url_to_fs

            other: tuple[FileSystem, str] = url_to_fs(location)
        except Exception as error:
            raise AlimarkError(f"{_bare(location)} cannot be opened: {first}; fsspec: {error}") from None
        return other


def is_local(fs: FileSystem) -> bool:
    """Whether a file system is that of this machine."""
    return isinstance(fs, LocalFileSystem)


def _bare(location: str) -> str:
    """An address without its user name and password."""
    scheme, sign, rest = location.partition("://")
    return f"{scheme}://{rest.rpartition('@')[2]}" if sign else location


def find(locations: Sequence[str]) -> tuple[FileSystem, list[DocumentFile], list[str]]:
    """The file system of the inputs, their files (of folders, patterns and names), and the names of files of unknown kind."""
    if not locations:
        raise AlimarkError("name at least one file or folder of documents")
    fs, _ = file_system(locations[0])
    sources: dict[str, DocumentFile] = {}
    passed_over: list[str] = []
    for location in locations:
        location_fs, path = file_system(location)
        if type(location_fs) is not type(fs):
            raise AlimarkError("all inputs must be on one file system; audit the others separately, or copy them")
        expanded, of_unknown_kind = _expand(location_fs, path, _bare(location))
        passed_over += of_unknown_kind
        sources |= {source.path: source for source in expanded}
    if not sources:
        raise AlimarkError(
            f"no documents in {', '.join(map(_bare, locations))}; known file types are .parquet, .jsonl and .ndjson (also "
            f"with .gz, .zst, .bz2 or .lz4), {', '.join(ENDINGS)}"
        )
    return fs, [sources[path] for path in sorted(sources)], sorted(passed_over)


def is_small(locations: Sequence[str], output: str) -> bool:
    """Whether an audit into a JSONL file is of few local documents, so that each can be tested as if it were alone."""
    if not output or is_folder(output) or not locations or any("://" in location for location in locations):
        return False
    _, sources, _ = find(locations)
    return len(sources) <= _FEW_FILES and sum(file.size for file in sources if file.kind != "text") <= _FEW_BYTES


def is_folder(output: str) -> bool:
    """Whether an output stands for a folder of Parquet files, not for a JSONL file."""
    return "://" in output or output.endswith(("/", "\\")) or Path(output).is_dir() or not Path(output).suffix


def passed_over_message(names: Sequence[str]) -> str:
    """What to tell about files that are not read because their kind is not known."""
    count = "1 file of unknown kind is" if len(names) == 1 else f"{len(names):,} files of unknown kind are"
    more = f" and {len(names) - _NAMED:,} more" if len(names) > _NAMED else ""
    return f"{count} skipped: {', '.join(names[:_NAMED])}{more}"


def _expand(fs: FileSystem, path: str, shown: str) -> tuple[list[DocumentFile], list[str]]:
    """The files of a folder, pattern or name, and the names of files of unknown kind."""
    first_sign = min((path.index(sign) for sign in "*?[" if sign in path), default=None)
    if first_sign is not None and fs.exists(path):
        first_sign = None  # a file with such a name
    base = path if first_sign is None else path[:first_sign].rpartition("/")[0]
    try:
        top = fs.info(base)
    except FileNotFoundError:
        raise AlimarkError(f"{shown} does not exist; check the path") from None
    if top["type"] != "directory":
        return [_named(fs, top)], []
    inside = fs.find(base, detail=True).values()
    if first_sign is not None:
        return [_named(fs, info) for info in inside if fnmatch.fnmatch(info["name"], path)], []
    known: list[DocumentFile] = []
    unknown: list[str] = []
    for info in inside:
        if any(part[:1] in "._" for part in PurePosixPath(info["name"][len(base) :]).parts[1:]):
            continue
        if (kind := _kind(info["name"])) and not (is_local(fs) and is_special(info["name"])):
            known.append(DocumentFile(info["name"], info["size"], *kind))
        else:
            unknown.append(info["name"])
    return known, unknown


def _named(fs: FileSystem, info: dict[str, Any]) -> DocumentFile:
    """A file that the user named. Without a known suffix it is JSONL where its first line begins as an object does."""
    path, size = info["name"], info["size"]
    if is_local(fs):
        regular(path)
    if kind := _kind(path):
        return DocumentFile(path, size, *kind)
    with fs.open(path, "rb") as file:
        return DocumentFile(path, size, "jsonl" if file.read(64).lstrip()[:1] == b"{" else "text", "")


def _kind(path: str) -> tuple[FileKind, str] | None:
    """The kind and the compression of a file, from its suffixes; None if they are unknown."""
    suffixes = PurePosixPath(path).suffixes
    if not suffixes:
        return None
    packed = _PACKED.get(suffixes[-1], "")
    kind = _KINDS.get(suffixes[-2 if packed and len(suffixes) > 1 else -1].lower())
    return kind and (kind, packed if kind == "jsonl" else "")


# Blocks


def plan(fs: FileSystem, sources: Iterable[DocumentFile], block_bytes: int = BLOCK_BYTES) -> Iterator[Block]:
    """The blocks in the order of the files. Only the footers of Parquet files are read."""
    paths: tuple[str, ...] = ()
    size = 0
    for source in sources:
        if source.kind == "text":
            paths, size = (*paths, source.path), size + source.size
            if len(paths) >= _FILES_PER_BLOCK or size >= block_bytes:
                yield Block("text", paths, 0, -1, size)
                paths, size = (), 0
        elif source.kind == "parquet":
            yield from _parquet_blocks(fs, source, block_bytes)
        elif source.packed:
            yield Block("jsonl", (source.path,), 0, -1, source.size, source.packed)
        else:
            for start in range(0, source.size, block_bytes):
                stop = min(start + block_bytes, source.size)
                yield Block("jsonl", (source.path,), start, stop, stop - start)
    if paths:
        yield Block("text", paths, 0, -1, size)


def _parquet_blocks(fs: FileSystem, source: DocumentFile, block_bytes: int) -> Iterator[Block]:
    try:
        with _opened(fs, source.path) as file:
            rows = int(arrow().parquet.ParquetFile(file).metadata.num_rows)
    except (OSError, ValueError):
        rows = 0  # the worker that reads the block records the error
    each = max(1, rows * block_bytes // max(1, 3 * source.size))  # compressed text takes about a third of its size
    for start in range(0, max(1, rows), each):
        stop = min(start + each, rows) if rows else -1
        yield Block("parquet", (source.path,), start, stop, source.size * (max(1, stop - start)) // max(1, rows))


# Reading


def read(fs: FileSystem, block: Block, columns: Sequence[str], limit: int = MAX_DOCUMENT) -> Iterator[CorpusDocument]:
    """The documents of a block, of Parquet files with these columns only.

    A document longer than `limit` bytes is not held in memory.
    """
    reader = {"parquet": _read_parquet, "jsonl": _read_jsonl, "text": _read_texts}[block.kind]
    return reader(fs, block, columns, limit)


def _read_jsonl(fs: FileSystem, block: Block, _: Sequence[str], limit: int) -> Iterator[CorpusDocument]:
    [path] = block.paths
    offset = block.start
    try:
        with _opened(fs, path, block.packed) as file:
            following = lines(file, limit)
            if block.start:
                # A line belongs to the block that holds its first byte.
                file.seek(block.start - 1)
                offset += _length(next(following, b"\n")) - 1
            while block.stop < 0 or offset < block.stop:
                if (line := next(following, None)) is None:
                    return
                if isinstance(line, int):
                    yield CorpusDocument(path, offset, too_long(line, limit))
                elif line.strip():
                    yield CorpusDocument(path, offset, parse_record(line, f"{path}, byte {offset}"))
                offset += _length(line)
    except (OSError, EOFError, ValueError, zlib.error) as error:  # a damaged .gz file is read up to the damage
        yield CorpusDocument(path, offset, unreadable(path, f"beyond byte {offset}", error))


def _length(line: bytes | int) -> int:
    return line if isinstance(line, int) else len(line)


def _opened(fs: FileSystem, path: str, packed: str = "") -> BinaryIO:
    """The content of a file, unpacked: by Python where it can, else by pyarrow."""
    inner = getattr(fs, "fs", None)  # pyarrow's file system, whose own files are read by lines much faster
    file = fs.open(path, "rb") if inner is None else io.BufferedReader(inner.open_input_file(path), 1 << 20)
    if packed == "gzip":
        return cast(BinaryIO, gzip.GzipFile(fileobj=file))
    if packed == "bz2":
        return cast(BinaryIO, bz2.BZ2File(file))
    if packed:
        return io.BufferedReader(arrow().input_stream(file, compression=packed), 1 << 20)
    return cast(BinaryIO, file)


def _read_parquet(fs: FileSystem, block: Block, columns: Sequence[str], limit: int) -> Iterator[CorpusDocument]:
    """The documents of a block; the rows behind a damaged page of a row group are one document that failed.

    They are not counted one by one, because a file may claim to hold any number of rows.
    """
    [path] = block.paths
    errors = (OSError, ValueError, arrow().ArrowException)
    first = 0
    with ExitStack() as stack:
        try:
            opened = arrow().parquet.ParquetFile(stack.enter_context(_opened(fs, path)))
            wanted = [name for name in columns if name in opened.schema_arrow.names]
        except errors as error:
            message = f"{path} cannot be read as Parquet ({str(error).splitlines()[0]})"
            yield CorpusDocument(path, -1, RecordError(message))
            return
        for group in range(opened.num_row_groups):
            row, first = first, first + opened.metadata.row_group(group).num_rows
            stop = first if block.stop < 0 else min(first, block.stop)
            if stop <= block.start or row >= stop:
                continue
            why: Exception | str = "it has fewer rows than it says"
            try:
                # One row at a time: rows may be long, and what the file says of their length may be wrong.
                for batch in opened.iter_batches(1, row_groups=[group], columns=wanted):
                    if block.start <= row < stop:
                        yield CorpusDocument(path, row, _row(batch, path, row, limit))
                    row += 1
            except errors as error:
                why = error
            if (row := max(row, block.start)) < stop:
                yield CorpusDocument(path, row, unreadable(path, f"from row {row} to row {stop - 1}", why))


def _row(batch: RecordBatch, path: str, row: int, limit: int) -> Record | RecordError:
    """The row of a batch as a record; an error where a value is not valid, such as text that is not UTF-8."""
    try:
        [record] = batch.to_pylist()
    except (ValueError, OverflowError, arrow().ArrowException) as error:
        return unreadable(path, f"at row {row}", error)
    longest = max((len(value) for value in record.values() if isinstance(value, str)), default=0)
    return too_long(longest, limit) if longest > limit else record


def _read_texts(fs: FileSystem, block: Block, columns: Sequence[str], limit: int) -> Iterator[CorpusDocument]:
    for path in block.paths:
        kind = kind_of_name(path)
        most = MAX_BYTES if kind not in (None, "txt", "md") else limit  # pictures may make up most of a document
        try:
            with fs.open(path, "rb") as file:
                data = file.read(most + 1)
            if len(data) > most:
                yield CorpusDocument(path, -1, too_long(fs.size(path), most))
                continue
            text = read_document(data, kind=kind, max_characters=limit).text
        except (OSError, AlimarkError) as error:
            yield CorpusDocument(path, -1, RecordError(f"{path} cannot be read: {error}"))
        else:
            yield CorpusDocument(path, -1, {"id": path, columns[0]: text})
