"""Human text for calibration: from JSONL files, or, where there is none, the language reference inside every Python."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from alimark._util.jsonl import read_jsonl
from alimark.errors import RecordError
from alimark.text.splitting import splitter

_FIELDS = ("text", "natural_text")


def read_texts(path: Path | str) -> Iterator[str]:
    """The texts of a JSONL file (plain or .gz), under `text` or `natural_text`."""
    for number, record in read_jsonl(path):
        if isinstance(record, RecordError):
            raise record
        text = next((record[name] for name in _FIELDS if isinstance(record.get(name), str)), None)
        if text is None:
            raise RecordError(f"{path}:{number} has none of the fields {', '.join(_FIELDS)}")
        yield text


def language_reference() -> Iterator[str]:
    """The running prose of Python's own manual, in parts of some fifteen sentences.

    Real, human and at hand, though all of one subject.
    """
    from pydoc_data.topics import topics

    part: list[str] = []
    for topic in topics.values():
        for paragraph in topic.split("\n\n"):
            if paragraph[:1].isalpha() and paragraph.rstrip().endswith(".") and "::" not in paragraph:
                part.append(paragraph)
                if sum(map(len, part)) > 2500:  # some fifteen sentences
                    yield "\n\n".join(part)
                    part = []


def cut(texts: Iterator[str] | list[str], sentences: int, splitter_name: str) -> tuple[list[str], int, int]:
    """The first `sentences` sentences of each distinct text; how many were too short, and how many repeats."""
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
