"""JSONL files: records are read one by one and appended whole, and a run that was killed can be resumed.

Everything that is written has the same record: `id, prompt, text, sentences, scheme, key_id, settings, seed, cost, parent_id,
attack, failed, error, input` (absent where empty). Every verb reads it and adds to it. `input` holds the fields of a record
that another program wrote; they are never read as results.
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import json
import os
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, cast

from alimark.core._util.files import regular, replacing
from alimark.errors import RecordError

Record = dict[str, Any]


def read_jsonl(path: Path | str, limit: int | None = None) -> Iterator[tuple[int, Record | RecordError]]:
    """Yields line numbers and records; for a line that is not a record, the error that says why, and reading goes on.

    A file that cannot be read to its end, such as a damaged .gz file, gives an error as its last record. A line longer than
    `limit` bytes gives an error and is not held in memory.
    """
    number = 0
    with (gzip.open if str(path).endswith(".gz") else open)(regular(path), "rb") as file:
        try:
            for number, line in enumerate(lines(cast(BinaryIO, file), limit), 1):
                if isinstance(line, int):
                    assert limit is not None
                    yield number, too_long(line, limit)
                elif line.strip():
                    yield number, parse_record(line, f"{path}:{number}")
        except (OSError, EOFError, zlib.error) as error:
            yield number + 1, unreadable(str(path), f"beyond line {number}", error)


def unreadable(path: str, where: str, error: Exception | str) -> RecordError:
    """The error of a file that cannot be read to its end."""
    why = str(error).splitlines()[0] if str(error) else type(error).__name__
    return RecordError(f"{path} cannot be read {where} ({why}); is the file complete?")


def lines(file: BinaryIO, limit: int | None) -> Iterator[bytes | int]:
    """The lines of a file; of a line longer than the limit, its length."""
    if limit is None:
        yield from file
        return
    while line := file.readline(limit + 1):
        if len(line) <= limit or line.endswith(b"\n"):
            yield line
            continue
        length = len(line)
        while not line.endswith(b"\n") and (line := file.readline(1 << 20)):
            length += len(line)
        yield length


def too_long(length: int, limit: int) -> RecordError:
    """The error of a document that is longer than the limit in bytes."""
    return RecordError(
        f"the document has {length:,} bytes and the limit is {limit:,}; shorten it, or raise --max-document"
    )


def parse_record(line: bytes, where: str) -> Record | RecordError:
    """Parses one line; returns the error where it is not a JSON object. `where` names the line in the message."""
    try:
        record = json.loads(line, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        return RecordError(f"{where} is not JSON ({error})")
    if not isinstance(record, dict):
        return RecordError(f"{where} is not a JSON object")
    return record


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not valid JSON")


def record_id(record: Record, *, field: str) -> str:
    """The record's id, or where it has none a hash of a field, so that a run over the same input resumes."""
    if "id" in record:
        return str(record["id"])
    return "h" + hashlib.sha256(str(record.get(field)).encode("utf-8", "replace")).hexdigest()[:16]


def unique_id(record: Record, line: int, seen: set[str], *, field: str) -> str:
    """The record's id, with its line number where an earlier record has the same id, so that no record is skipped."""
    name = record_id(record, field=field)
    while name in seen:  # more than once where another record is called so already
        name = f"{name}#{line}"
    seen.add(name)
    return name


def _encoded(record: Record) -> bytes:
    """The record as JSON in UTF-8; half a surrogate pair, which UTF-8 does not have, is written as an escape."""
    try:
        return json.dumps(record, ensure_ascii=False, allow_nan=False).encode()
    except UnicodeEncodeError:
        return json.dumps(record, allow_nan=False).encode()


class JsonlWriter:
    """Appends records, one whole line at a time; `done` holds the ids that an earlier run wrote.

    Only one process writes a file at a time. Every line of the file must be a record with an id, under the same key.
    """

    def __init__(self, path: Path | str, *, key_id: str | None = None) -> None:
        self.path = regular(path)
        self.done: set[str] = set()
        if self.path.suffix == ".gz":
            raise RecordError(f"{self.path}: records are appended to plain files; choose a name without .gz")
        from filelock import FileLock, Timeout  # it imports asyncio, which a cold detection can do without

        self._lock = FileLock(self.path.with_name(f".{self.path.name}.lock"), timeout=0)
        try:
            self._lock.acquire()
        except Timeout:
            raise RecordError(f"another process is writing {self.path}; wait for it, or choose another file") from None
        try:
            self._file: BinaryIO = open(self.path, "a+b")  # noqa: SIM115 - closed by __exit__
            self._take_up(key_id)
        except BaseException:
            self._release()
            raise

    def _take_up(self, key_id: str | None) -> None:
        """Reads the records of an earlier run. Nothing is changed before every whole line has been read as a record."""
        self._file.seek(0)
        whole, last = 0, b""
        for line in self._file:
            if not line.endswith(b"\n"):
                last = line
                break
            self._know(parse_record(line, str(self.path)), key_id)
            whole += len(line)
        if not last:
            return
        record = parse_record(last, str(self.path))
        if isinstance(record, dict):
            self._know(record, key_id)
            self._append(b"\n")  # only the end of the line is missing
        elif last.startswith(b"{"):
            self._file.truncate(whole)  # a process killed while writing leaves at most one such line
        else:
            self._know(record, key_id)

    def _know(self, record: Record | RecordError, key_id: str | None) -> None:
        if isinstance(record, RecordError) or "id" not in record:
            raise RecordError(f"{self.path} holds lines that are not records of alimark; choose another output file")
        if key_id is not None and record.get("key_id", key_id) != key_id:
            raise RecordError(
                f"{self.path} was written under key {record['key_id']}, not {key_id}; choose another output file"
            )
        self.done.add(str(record["id"]))

    def _release(self) -> None:
        if hasattr(self, "_file"):
            with contextlib.suppress(OSError):
                self._file.close()
        self._lock.release()
        with contextlib.suppress(OSError):
            Path(self._lock.lock_file).unlink()

    def write(self, record: Record) -> None:
        """Appends a record; where the disk is full, the file is left as it was."""
        self._append(_encoded(record) + b"\n")
        self.done.add(str(record["id"]))

    def _append(self, line: bytes) -> None:
        """Adds to the file without a buffer, which would write the rest of a line that did not fit when the file is closed."""
        descriptor = self._file.fileno()
        start = os.fstat(descriptor).st_size
        try:
            while line:
                line = line[os.write(descriptor, line) :]
        except OSError as error:
            # A full disk may have taken a part of the line; the next run must not find it.
            with contextlib.suppress(OSError):
                os.ftruncate(descriptor, start)
            raise OSError(error.errno, error.strerror, str(self.path)) from None

    def arrange(self, order: Sequence[str]) -> None:
        """Sorts the records with these ids into this order, behind all others, by writing a copy that replaces the file."""
        place = {name: i for i, name in enumerate(order)}
        lines: list[tuple[int, int, int]] = []
        start = self._file.seek(0)
        for line in self._file:
            lines.append((place.get(str(json.loads(line)["id"]), -1), start, len(line)))
            start += len(line)
        if (wanted := sorted(lines, key=lambda line: line[0])) == lines:
            return
        with self._replacing() as file:
            for _, start, length in wanted:
                self._file.seek(start)
                file.write(self._file.read(length))

    def rewrite(self, change: Callable[[Record], Record]) -> None:
        """Replaces every record by what `change` returns for it, by writing a copy that replaces the file."""
        with self._replacing() as file:
            self._file.seek(0)
            for line in self._file:
                file.write(_encoded(change(json.loads(line))) + b"\n")

    @contextlib.contextmanager
    def _replacing(self) -> Iterator[BinaryIO]:
        with replacing(self.path) as file:
            yield file
        self._file.close()
        self._file = open(self.path, "a+b")  # noqa: SIM115

    def __enter__(self) -> JsonlWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with contextlib.suppress(OSError):
            os.fsync(self._file.fileno())
        self._release()
