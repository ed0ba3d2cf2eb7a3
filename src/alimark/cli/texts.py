"""Reads texts for the verbs, and makes a text for each line of a JSONL file."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from alimark.cli import show
from alimark.errors import AlimarkError, LLMError, RecordError

if TYPE_CHECKING:
    from rich.progress import Progress

    from alimark.core._util.jsonl import Record
    from alimark.core.generation.api import MarkedSentence
    from alimark.core.keys.key import Key

Result = TypeVar("Result")

_FAULTS = 3  # after so many errors of the model in a row it is at fault, and not the lines


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


class TextRow(NamedTuple):
    """A record that holds a text: its place among all records, its line, and an id that no other record has."""

    number: int
    line: int
    id: str
    record: Record
    key: Key | None = None
    """The key of a line that names a payload; None where the line gets the key of the whole run."""

    def seed(self, first: int | None) -> int | None:
        """The seed of this line. It depends on the line and not on the turn, so that a resumed run gives the same texts."""
        return None if first is None else first + self.number


class TextFile:
    """Reads a JSONL file of texts or prompts; a line whose `field` holds no text is skipped with a warning on stderr.

    `key` is the key of the run, which takes the payload that a line names.
    """

    def __init__(self, source: Path, field: str = "text", key: Key | None = None) -> None:
        self.source, self._field, self._key = source, field, key
        self.order: list[str] = []
        """The ids of all texts, in order, once `rows` was read."""
        self.bad = 0
        """Lines without a text, once `rows` was read."""

    def rows(self) -> Iterator[TextRow]:
        """Yields every record that holds a text."""
        from alimark.core._util.jsonl import read_jsonl, unique_id

        self.order, self.bad = [], 0
        seen: set[str] = set()
        for number, (line, record) in enumerate(read_jsonl(self.source)):
            try:
                content = self._checked(line, record)
                key = self._key_of(line, content)
            except AlimarkError as why:
                show.note(f"warning: {why}; passed over")
                self.bad += 1
                continue
            row_id = unique_id(content, line, seen, field=self._field)
            self.order.append(row_id)
            yield TextRow(number, line, row_id, content, key)

    def texts(self) -> Iterator[str]:
        """Yields the texts alone, without warnings about lines that hold none."""
        from alimark.core._util.jsonl import read_jsonl

        for line, record in read_jsonl(self.source):
            with suppress(RecordError):
                text: str = self._checked(line, record)[self._field]
                yield text

    def _checked(self, line: int, record: Record | RecordError) -> Record:
        if isinstance(record, RecordError):
            raise record
        if self._field == "text" and record.get("failed"):
            raise RecordError(f"{self.source}:{line} is a failed record ({record.get('error', 'no reason given')})")
        text = record.get(self._field)
        if not isinstance(text, str) or not text.strip():
            raise RecordError(f"{self.source}:{line} has no {self._field}")
        return record

    def _key_of(self, line: int, record: Record) -> Key | None:
        payload = record.get("payload")
        if self._key is None or payload is None:
            return None
        try:
            return self._key.carrying(payload)
        except AlimarkError as error:
            raise AlimarkError(f"{self.source}:{line}: {error}") from None


class Bar:
    """Shows how many texts are done, and the tokens of all texts in progress."""

    def __init__(self, bar: Progress, texts: int) -> None:
        self._task = show.Task(bar, "texts", texts)
        self._tokens: dict[int, int] = {}
        self._texts, self._done = texts, 0

    def sentence(self, number: int, sentence: MarkedSentence) -> None:
        """Takes note of a sentence of the text with this number."""
        self._tokens[number] = sentence.tokens
        rate = f"{self._task.rate(sum(self._tokens.values())):,.0f} tokens/s"
        self._task.show(f"{self._done} of {self._texts} texts, {rate}", title=f"texts ({rate})")

    def text(self) -> None:
        """Takes note of a text that is finished or has failed."""
        self._done += 1
        self._task.show(f"{self._done} of {self._texts} texts", self._done)


def make_all(
    file: TextFile,
    output: Path,
    key_id: str | None,
    make: Callable[[Sequence[TextRow], Bar], Iterator[tuple[int, Result | AlimarkError]]],
    record: Callable[[TextRow, Result], Record],
) -> Counter[str]:
    """Makes a text for every line that has none in the output yet, and appends each as soon as it is finished.

    All records of the output must have the key `key_id`. `make` yields the number of a row with its result, or with the error
    that ended it; `record` makes the fields that a result adds to the record of its line. Returns how many texts were written,
    were there already, and failed.
    """
    from alimark.core._util.jsonl import JsonlWriter

    if output.exists() and output.samefile(file.source):
        raise AlimarkError("--output must be another file than --input")
    with JsonlWriter(output, key_id=key_id) as writer:
        rows = [row for row in file.rows() if row.id not in writer.done]
        counts = Counter(written=0, skipped=len(file.order) - len(rows), failed=file.bad)
        faults: list[AlimarkError] = []
        if rows:
            with show.progress() as progress:
                bar = Bar(progress, len(rows))
                for number, result in make(rows, bar):
                    row = rows[number]
                    bar.text()
                    if isinstance(result, AlimarkError):
                        _note_fault(faults, result)
                        show.note(f"warning: {file.source}:{row.line}: {result}; passed over")
                        counts["failed"] += 1
                        continue
                    faults.clear()
                    writer.write(row.record | record(row, result))
                    counts["written"] += 1
        writer.arrange(file.order)
    return counts


def _note_fault(faults: list[AlimarkError], error: AlimarkError) -> None:
    """Raises the error where several errors of the model in a row show that it is at fault; one may end several texts."""
    if isinstance(error, LLMError) and not any(error is fault for fault in faults):
        faults.append(error)
        if len(faults) == _FAULTS:
            raise error
