"""Prompts and human texts: the paper's three sets by name, any JSONL, and a corpus that every Python brings along.

The prompt is the first sentence and the human text what follows, unless a record tells both (`prompt` and `natural_text`).
The human text is cut to the number of sentences asked for; repeats are removed, and shorter ones left out and counted.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from alimark._util.jsonl import Record, read_jsonl
from alimark.calibration.human_text import language_reference
from alimark.errors import AlimarkError, MissingExtra, RecordError
from alimark.text.splitting import DEFAULT_SPLITTER, Splitter, splitter

HUB: dict[str, tuple[str, str, str, str]] = {
    # repository, configuration, split, field
    "booksum": ("kmfoda/booksum", "default", "test", "chapter"),
    "c4": ("allenai/c4", "realnewslike", "validation", "text"),
    "nq": ("sentence-transformers/natural-questions", "pair", "train", "answer"),
}
"""Where the paper's sets lie on the hub. For nq the question is the prompt."""

MANUAL = "manual"
"""The prose of Python's own language reference, which needs neither a file nor a network."""


@dataclass(frozen=True)
class Item:
    prompt: str
    human: str
    """Cut to the sentences asked for; empty where it was too short."""


@dataclass
class DataSet:
    """What is left of a set, and what was left out."""

    name: str
    items: list[Item] = field(default_factory=list)
    short: int = 0
    repeats: int = 0

    @property
    def human(self) -> list[str]:
        return [item.human for item in self.items]


def load(name: str, sentences: int, *, human: str = "drop", most: int | None = None, skip: int = 0) -> DataSet:
    """The first `most` items of a set, behind the first `skip` that are sound."""
    cutter = splitter(DEFAULT_SPLITTER)
    found, seen, passed = DataSet(label(name)), set(), 0
    for prompt, text in _pairs(name, sentences, cutter):
        if text in seen or prompt in seen:
            found.repeats += 1
            continue
        seen |= {text, prompt}
        cut = _cut(text, sentences, cutter, human)
        if not cut:
            found.short += 1
            continue
        passed += 1
        if passed > skip:
            found.items.append(Item(prompt, cut))
        if most is not None and len(found.items) == most:
            break
    if not found.items:
        raise AlimarkError(
            f"{name} holds no text of {sentences} sentences ({found.short} are shorter, {found.repeats} repeats)"
        )
    return found


def label(name: str) -> str:
    """A set's name in tables: a file's without its folder and endings."""
    return name if name in HUB or name == MANUAL else Path(name).name.partition(".")[0]


def _cut(text: str, sentences: int, cutter: Splitter, human: str) -> str:
    spans = cutter.spans(text)
    if len(spans) >= sentences:
        return text[: spans[sentences - 1][1]]
    if human == "repeat" and spans:
        whole = text.strip()
        times = -(-sentences // len(spans))
        return _cut(" ".join([whole] * times), sentences, cutter, "drop")
    return ""


def _pairs(name: str, sentences: int, cutter: Splitter) -> Iterator[tuple[str, str]]:
    if name == MANUAL:
        # It is small, so that every sentence of it is made use of.
        parts = (part for text in language_reference() for part in _in_parts(text, sentences + 1, cutter))
        yield from (pair for part in parts if (pair := _halved(part, cutter)))
    elif name in HUB and not Path(name).exists():
        yield from _from_hub(name, cutter)
    elif not Path(name).exists():
        raise AlimarkError(
            f"no data set is named {name!r}, and no such file exists; known: {', '.join([*HUB, MANUAL])}"
        )
    else:
        for number, record in read_jsonl(name):
            if isinstance(record, RecordError):
                raise record
            yield from _pair(record, f"{name}:{number}", cutter)


def _pair(record: Record, where: str, cutter: Splitter) -> Iterator[tuple[str, str]]:
    text = next((record[name] for name in ("natural_text", "text") if isinstance(record.get(name), str)), None)
    if text is None:
        raise RecordError(f"{where} has neither `natural_text` nor `text`")
    prompt = record.get("prompt")
    if isinstance(prompt, str) and prompt.strip():
        yield prompt.strip(), text
    elif pair := _halved(text, cutter):
        yield pair


def _in_parts(text: str, size: int, cutter: Splitter) -> Iterator[str]:
    spans = cutter.spans(text)
    for start in range(0, len(spans) - size + 1, size):
        yield text[spans[start][0] : spans[start + size - 1][1]]


def _halved(text: str, cutter: Splitter) -> tuple[str, str] | None:
    """A text as its first sentence and the rest."""
    spans = cutter.spans(text)
    return (text[spans[0][0] : spans[0][1]], text[spans[1][0] :]) if len(spans) > 1 else None


def _from_hub(name: str, cutter: Splitter) -> Iterator[tuple[str, str]]:
    try:
        from datasets import load_dataset
    except ImportError:
        raise MissingExtra("datasets", "hub") from None
    repository, configuration, split, column = HUB[name]
    try:
        rows: Any = load_dataset(repository, configuration, split=split, streaming=True)
        for row in rows:
            question = row.get("query") or row.get("question")
            if question:
                yield str(question), str(row[column])
            elif pair := _halved(str(row[column]), cutter):
                yield pair
    except OSError as error:
        raise AlimarkError(
            f"the data set {name} cannot be had from the hub ({error}); give a JSONL file with `prompt` and `natural_text`"
        ) from None
