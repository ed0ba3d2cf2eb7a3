"""Corpora as files: found on any file system, cut into blocks without reading them, read within bounds.

A block is named by what it covers, so that the same input gives the same blocks wherever and whenever it is planned.
"""

from __future__ import annotations

import fnmatch
import hashlib
import io
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, Literal

from alimark._util.jsonl import Record, parse_record
from alimark.errors import AlimarkError, MissingExtra, RecordError

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem

Kind = Literal["parquet", "jsonl", "text"]
BLOCK_BYTES = 2 << 20
"""Some thousand documents: minutes of work for a core, little to lose when a worker dies."""
MAX_DOCUMENT = 8 << 20
"""Bytes. A longer document is recorded and passed over."""
_FILES_TOGETHER = 256
_KINDS: dict[str, Kind] = {
    ".parquet": "parquet", ".pq": "parquet", ".jsonl": "jsonl", ".ndjson": "jsonl", ".txt": "text",
    ".text": "text", ".md": "text",
}  # fmt: skip
_PACKED = {".gz": "gzip", ".zst": "zstd", ".bz2": "bz2", ".lz4": "lz4"}


@dataclass(frozen=True)
class Source:
    """A file of the corpus."""

    path: str
    size: int
    kind: Kind
    packed: str = ""
    """How it is compressed, if it is: then it can be read from its beginning alone, and is one block."""


@dataclass(frozen=True)
class Block:
    """Documents that are done together: bytes of a JSONL file, rows of a Parquet file, or whole text files."""

    kind: Kind
    paths: tuple[str, ...]
    start: int
    stop: int
    """-1: to the end."""
    size: int
    packed: str = ""

    @property
    def name(self) -> str:
        content = json.dumps(asdict(self), sort_keys=True).encode()
        return hashlib.sha256(content).hexdigest()[:20]


@dataclass(frozen=True)
class Document:
    """Where a document stands and what it says, or why it cannot be read."""

    file: str
    place: int
    """Byte of a JSONL file, row of a Parquet file; -1: the file as a whole."""
    record: Record | RecordError


def arrow() -> Any:
    try:
        import pyarrow
        import pyarrow.fs
        import pyarrow.parquet
    except ImportError:
        raise MissingExtra("pyarrow", "ray") from None
    return pyarrow


def file_system(location: str) -> tuple[FileSystem, str]:
    """The file system of a path or address, and the path on it: pyarrow's own, or one of fsspec's."""
    fs = arrow().fs
    if "://" not in location:
        return fs.LocalFileSystem(), str(PurePosixPath(_absolute(location)))
    try:
        found: tuple[FileSystem, str] = fs.FileSystem.from_uri(location)
    except Exception as first:  # an unknown scheme, or one that this build of pyarrow lacks
        try:
            from fsspec.core import url_to_fs

            other, path = url_to_fs(location)
        except Exception as error:
            raise AlimarkError(f"{_bare(location)} cannot be opened: {first}; fsspec: {error}") from None
        return fs.PyFileSystem(fs.FSSpecHandler(other)), path
    return found


def _absolute(location: str) -> str:
    from pathlib import Path

    return Path(location).expanduser().absolute().as_posix()


def _bare(location: str) -> str:
    """An address without what may be a password in it."""
    scheme, sign, rest = location.partition("://")
    return f"{scheme}://{rest.rpartition('@')[2]}" if sign else location


def find(locations: Sequence[str]) -> tuple[FileSystem, list[Source], int]:
    """All files behind folders, patterns and names, on one file system, and how many were of no known kind."""
    if not locations:
        raise AlimarkError("name at least one file or folder of documents")
    fs, _ = file_system(locations[0])
    sources: dict[str, Source] = {}
    unknown = 0
    for location in locations:
        own, path = file_system(location)
        if own.type_name != fs.type_name:
            raise AlimarkError("all inputs lie on one file system; run the others apart, or copy them")
        found, other = _expand(own, path, _bare(location))
        unknown += other
        sources |= {source.path: source for source in found}
    if not sources:
        raise AlimarkError(
            f"no documents in {', '.join(map(_bare, locations))}; known are .parquet, .jsonl and .ndjson (also .gz, .zst, "
            ".bz2, .lz4) and .txt, .md"
        )
    return fs, [sources[path] for path in sorted(sources)], unknown


def _expand(fs: FileSystem, path: str, said: str) -> tuple[list[Source], int]:
    kinds = arrow().fs
    pattern = path if any(sign in path for sign in "*?[") else ""
    base = (
        path
        if not pattern
        else pattern[: min(pattern.index(sign) for sign in "*?[" if sign in pattern)].rpartition("/")[0]
    )
    [top] = fs.get_file_info([base])
    if top.type == kinds.FileType.NotFound:
        raise AlimarkError(f"{said} does not exist")
    if top.type == kinds.FileType.File:
        return [_source(top.path, top.size, "text")], 0
    inside = [one for one in fs.get_file_info(kinds.FileSelector(base, recursive=True)) if one.is_file]
    if pattern:
        return [_source(one.path, one.size, "text") for one in inside if fnmatch.fnmatch(one.path, pattern)], 0
    seen = [
        one for one in inside if not any(part[:1] in "._" for part in PurePosixPath(one.path[len(base) :]).parts[1:])
    ]
    known = [_source(one.path, one.size, None) for one in seen]
    return [one for one in known if one], sum(one is None for one in known)


def _source(path: str, size: int, otherwise: Kind | None) -> Any:
    suffixes = PurePosixPath(path).suffixes
    packed = _PACKED.get(suffixes[-1], "") if suffixes else ""
    kind = (
        _KINDS.get(suffixes[-2 if packed and len(suffixes) > 1 else -1].lower(), otherwise) if suffixes else otherwise
    )
    return Source(path, size, kind, packed if kind == "jsonl" else "") if kind else None


# Blocks


def plan(fs: FileSystem, sources: Iterable[Source], block_bytes: int = BLOCK_BYTES) -> Iterator[Block]:
    """Blocks in the order of the files. Of Parquet files the footers are read, of others nothing."""
    together: list[Source] = []
    for source in sources:
        if source.kind == "text":
            together.append(source)
            if len(together) >= _FILES_TOGETHER or sum(one.size for one in together) >= block_bytes:
                yield _texts(together)
                together = []
        elif source.kind == "parquet":
            yield from _rows(fs, source, block_bytes)
        elif source.packed:
            yield Block("jsonl", (source.path,), 0, -1, source.size, source.packed)
        else:
            for start in range(0, source.size, block_bytes):
                stop = min(start + block_bytes, source.size)
                yield Block("jsonl", (source.path,), start, stop, stop - start)
    if together:
        yield _texts(together)


def _texts(sources: Sequence[Source]) -> Block:
    return Block("text", tuple(one.path for one in sources), 0, -1, sum(one.size for one in sources))


def _rows(fs: FileSystem, source: Source, block_bytes: int) -> Iterator[Block]:
    try:
        with fs.open_input_file(source.path) as file:
            rows = int(arrow().parquet.ParquetFile(file).metadata.num_rows)
    except (OSError, ValueError):
        rows = 0  # whoever reads the block says what is wrong
    each = max(1, rows * block_bytes // max(1, 3 * source.size))  # text is stored in about a third of its size
    for start in range(0, max(1, rows), each):
        stop = min(start + each, rows) if rows else -1
        yield Block("parquet", (source.path,), start, stop, source.size * (max(1, stop - start)) // max(1, rows))


# Reading


def read(fs: FileSystem, block: Block, columns: Sequence[str], limit: int = MAX_DOCUMENT) -> Iterator[Document]:
    """The documents of a block; of Parquet only these columns. Nothing longer than `limit` bytes is taken into memory."""
    reader = {"parquet": _read_parquet, "jsonl": _read_jsonl, "text": _read_texts}[block.kind]
    return reader(fs, block, columns, limit)


def _too_long(length: int, limit: int) -> RecordError:
    return RecordError(f"the document has {length:,} bytes and the limit is {limit:,}; cut it, or raise --max-document")


def _read_jsonl(fs: FileSystem, block: Block, _: Sequence[str], limit: int) -> Iterator[Document]:
    [path] = block.paths
    with _opened(fs, path, block.packed) as file:
        offset = block.start
        if block.start:
            # A line belongs to the block that holds its first byte.
            file.seek(block.start - 1)
            offset += _rest_of_line(file) - 1
        while block.stop < 0 or offset < block.stop:
            line = file.readline(limit + 1)
            if not line:
                return
            length = len(line)
            if length > limit and not line.endswith(b"\n"):
                length += _rest_of_line(file)
                yield Document(path, offset, _too_long(length, limit))
            elif line.strip():
                yield Document(path, offset, parse_record(line, f"{path}, byte {offset}"))
            offset += length


def _rest_of_line(file: io.BufferedReader) -> int:
    """Passes over the line; its length from here."""
    length = 0
    while part := file.readline(1 << 20):
        length += len(part)
        if part.endswith(b"\n"):
            break
    return length


def _opened(fs: FileSystem, path: str, packed: str) -> io.BufferedReader:
    file = fs.open_input_file(path) if not packed else fs.open_input_stream(path, compression=packed)
    return io.BufferedReader(file, 1 << 20)


def _read_parquet(fs: FileSystem, block: Block, columns: Sequence[str], limit: int) -> Iterator[Document]:
    [path] = block.paths
    try:
        yield from _read_rows(fs, path, block, columns, limit)
    except (arrow().ArrowInvalid, arrow().ArrowNotImplementedError) as error:
        yield Document(path, -1, RecordError(f"{path} cannot be read as Parquet ({str(error).splitlines()[0]})"))


def _read_rows(fs: FileSystem, path: str, block: Block, columns: Sequence[str], limit: int) -> Iterator[Document]:
    with fs.open_input_file(path) as file:
        opened = arrow().parquet.ParquetFile(file)
        wanted = [name for name in columns if name in opened.schema_arrow.names]
        groups: list[int] = []
        first = row = 0
        for number in range(opened.num_row_groups):
            rows = opened.metadata.row_group(number).num_rows
            if row + rows > block.start and (block.stop < 0 or row < block.stop):
                first = first if groups else row
                groups.append(number)
            row += rows
        row = first
        for batch in opened.iter_batches(64, row_groups=groups, columns=wanted):
            if block.stop >= 0 and row >= block.stop:
                return
            for at, record in enumerate(batch.to_pylist(), row) if row + len(batch) > block.start else ():
                if block.start <= at and (block.stop < 0 or at < block.stop):
                    yield Document(path, at, _bounded(record, limit))
            row += len(batch)


def _bounded(record: Record, limit: int) -> Record | RecordError:
    longest = max((len(value) for value in record.values() if isinstance(value, str)), default=0)
    return _too_long(longest, limit) if longest > limit else record


def _read_texts(fs: FileSystem, block: Block, columns: Sequence[str], limit: int) -> Iterator[Document]:
    for path in block.paths:
        [info] = fs.get_file_info([path])
        if info.size is not None and info.size > limit:
            yield Document(path, -1, _too_long(info.size, limit))
            continue
        try:
            with fs.open_input_stream(path, compression=None) as file:
                text = file.read().decode("utf-8-sig")
        except UnicodeDecodeError as error:
            yield Document(
                path, -1, RecordError(f"{path} is not UTF-8 (byte {error.start}); convert it, e.g. with iconv")
            )
        except OSError as error:
            yield Document(path, -1, RecordError(f"{path} cannot be read ({error})"))
        else:
            yield Document(path, -1, {"id": path, columns[0]: text})
