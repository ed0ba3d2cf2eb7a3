"""Reads human text for calibration: from JSONL files, or from the language reference that is part of Python."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from alimark.core._util.jsonl import read_jsonl
from alimark.core.frozen.text.splitting import splitter
from alimark.errors import RecordError

_FIELDS = ("text", "natural_text")


def human_texts(paths: Sequence[Path | str]) -> list[str]:
    """Reads the texts of all JSONL files, or, where no file is given, the language reference of Python."""
    if not paths:
        return list(language_reference())
    return [text for path in paths for text in read_texts(path)]


def read_texts(path: Path | str) -> Iterator[str]:
    """Yields the texts of a JSONL file (plain or .gz), from the field `text` or `natural_text`."""
    for number, record in read_jsonl(path):
        if isinstance(record, RecordError):
            raise record
        text = next((record[name] for name in _FIELDS if isinstance(record.get(name), str)), None)
        if text is None:
            raise RecordError(f"{path}:{number} has none of the fields {', '.join(_FIELDS)}")
        yield text


def language_reference() -> Iterator[str]:
    """Yields the prose of Python's language reference in parts of about fifteen sentences; it is all of one subject."""
    from pydoc_data.topics import topics

    part: list[str] = []
    for topic in topics.values():
        for paragraph in topic.split("\n\n"):
            if paragraph[:1].isalpha() and paragraph.rstrip().endswith(".") and "::" not in paragraph:
                part.append(paragraph)
                if sum(map(len, part)) > 2500:  # about fifteen sentences
                    yield "\n\n".join(part)
                    part = []


def cut(texts: Iterable[str], sentences: int, splitter_name: str) -> tuple[list[str], int, int]:
    """Cuts each text to its first `sentences` sentences; returns the distinct ones, and counts of short and repeated texts."""
    cutter = splitter(splitter_name)
    kept: dict[str, None] = {}
    short = repeats = 0
    for text in texts:
        spans = cutter.spans(text)
        if len(spans) < sentences:
            short += 1
            continue
        part = text[: spans[sentences - 1][1]]
        repeats += part in kept
        kept[part] = None
    return list(kept), short, repeats
