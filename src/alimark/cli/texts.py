"""The texts of a JSONL file, for the verbs that make new texts of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from alimark.cli import show
from alimark.errors import RecordError

if TYPE_CHECKING:
    from alimark._util.jsonl import Record


class Row(NamedTuple):
    """A record that holds a text: its place among all lines, and an id that no other has."""

    number: int
    id: str
    record: Record


class TextFile:
    """Reads a file of records; a line without a text is said to be passed over, once."""

    def __init__(self, source: Path) -> None:
        self.source = source
        self.order: list[str] = []
        """The ids of all texts, in order, once `rows` was read."""
        self.bad = 0

    def rows(self) -> Iterator[Row]:
        from alimark._util.jsonl import read_jsonl, unique_id

        self.order, self.bad = [], 0
        seen: set[str] = set()
        for number, (line, record) in enumerate(read_jsonl(self.source)):
            if why := self._fault(line, record):
                show.note(f"warning: {why}; passed over")
                self.bad += 1
            elif isinstance(record, dict):
                own = unique_id(record, line, seen, field="text")
                self.order.append(own)
                yield Row(number, own, record)

    def texts(self) -> Iterator[str]:
        """The texts alone, with no word about lines that hold none."""
        from alimark._util.jsonl import read_jsonl

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
