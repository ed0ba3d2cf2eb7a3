"""Reads texts for the verbs: a document, standard input, or the records of a JSONL file."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from alimark.cli import show
from alimark.errors import AlimarkError, RecordError

if TYPE_CHECKING:
    from alimark.core._util.jsonl import Record


def read_text(name: str) -> str:
    """Reads the text of a document, or standard input where the name is `-`; prints what was left out or guessed."""
    from alimark.audit.documents.reading import MAX_BYTES, read_document

    document = read_document(sys.stdin.buffer.read(MAX_BYTES + 1) if name == "-" else name)
    for note in document.notes:
        show.note(f"note: {name}: {note}")
    return document.text


def read_bytes(name: str) -> bytes:
    """The bytes of a file; raises AlimarkError for standard input, which can be read only once."""
    if name == "-":
        raise AlimarkError("evidence is about files, since standard input can be read only once; name a file")
    return Path(name).read_bytes()


class Row(NamedTuple):
    """A record that holds a text: its place among all lines, and an id that no other record has."""

    number: int
    id: str
    record: Record


class TextFile:
    """Reads a JSONL file of texts; a line without a text is skipped with a warning on stderr."""

    def __init__(self, source: Path) -> None:
        self.source = source
        self.order: list[str] = []
        """The ids of all texts, in order, once `rows` was read."""
        self.bad = 0
        """Lines without a text, once `rows` was read."""

    def rows(self) -> Iterator[Row]:
        """Yields every record that holds a text."""
        from alimark.core._util.jsonl import read_jsonl, unique_id

        self.order, self.bad = [], 0
        seen: set[str] = set()
        for number, (line, record) in enumerate(read_jsonl(self.source)):
            if why := self._fault(line, record):
                show.note(f"warning: {why}; passed over")
                self.bad += 1
            elif isinstance(record, dict):
                row_id = unique_id(record, line, seen, field="text")
                self.order.append(row_id)
                yield Row(number, row_id, record)

    def texts(self) -> Iterator[str]:
        """Yields the texts alone, without warnings about lines that hold none."""
        from alimark.core._util.jsonl import read_jsonl

        for line, record in read_jsonl(self.source):
            if isinstance(record, dict) and not self._fault(line, record):
                yield record["text"]

    def _fault(self, line: int, record: Record | RecordError) -> str:
        if isinstance(record, RecordError):
            return str(record)
        if record.get("failed"):
            return f"{self.source}:{line} is a failed record ({record.get('error', 'no reason given')})"
        text = record.get("text")
        return "" if isinstance(text, str) and text.strip() else f"{self.source}:{line} has no text"
