"""Prompts and human texts: the paper's three data sets by name, any JSONL file, and a corpus that comes with Python.

The prompt is the first sentence of a text and the human text is the rest, unless a record has both (`prompt` and
`natural_text`). Human texts are cut to the requested number of sentences. Repeated texts are removed, and shorter ones are left
out and counted, or repeated.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from alimark.core._util.jsonl import read_jsonl
from alimark.core.frozen.text.splitting import DEFAULT_SPLITTER, Splitter, splitter
from alimark.core.text.human_text import language_reference
from alimark.errors import AlimarkError, MissingExtra, RecordError

HUB: dict[str, tuple[str, str, str, str]] = {
    # repository, configuration, split, field
    "booksum": ("kmfoda/booksum", "default", "test", "summary_text"),
    "c4": ("allenai/c4", "realnewslike", "validation", "text"),
    "nq": ("sentence-transformers/natural-questions", "pair", "train", "answer"),
}
"""Where the paper's data sets are on the Hugging Face Hub. For booksum the paper's texts are the summaries, and for nq the
question is the prompt."""

MANUAL = "manual"  # the prose of Python's language reference, which needs neither a file nor a network


@dataclass(frozen=True)
class DataItem:
    prompt: str
    human: str  # cut to the requested number of sentences


@dataclass
class DataSet:
    """The texts of a data set, and how many were left out."""

    name: str
    items: list[DataItem] = field(default_factory=list)
    short: int = 0
    repeats: int = 0

    @property
    def human(self) -> list[str]:
        return [item.human for item in self.items]


def load(name: str, sentences: int, *, short: str = "drop", most: int | None = None, skip: int = 0) -> DataSet:
    """The first `most` usable texts of a data set after the first `skip`; "repeat" as `short` repeats short texts."""
    cutter = splitter(DEFAULT_SPLITTER)
    data, seen, usable = DataSet(label(name)), set(), 0
    for given, whole in _texts(name, sentences, cutter):
        prompt, text = given, whole
        if not given:  # the first sentence is the prompt
            if len(spans := cutter.spans(whole)) < 2:
                continue
            prompt, text = whole[slice(*spans[0])], whole[spans[1][0] :]
        if text in seen or prompt in seen:
            data.repeats += 1
            continue
        seen |= {text, prompt}
        cut = _cut(text, sentences, cutter, short)
        if not cut:
            data.short += 1
            continue
        usable += 1
        if usable > skip:
            data.items.append(DataItem(prompt, cut))
        if most is not None and len(data.items) == most:
            break
    if not data.items:
        raise AlimarkError(
            f"{name} holds no text of {sentences} sentences ({data.short} are shorter, {data.repeats} are repeats); "
            "set data.sentences to fewer"
        )
    return data


def label(name: str) -> str:
    """The name of a data set in tables; of a file, its name without folder and suffixes."""
    return name if name in HUB or name == MANUAL else Path(name).name.partition(".")[0]


def _cut(text: str, sentences: int, cutter: Splitter, short: str) -> str:
    spans = cutter.spans(text)
    if len(spans) >= sentences:
        return text[: spans[sentences - 1][1]]
    if short == "repeat" and spans:
        # Each copy is a paragraph of its own: a text need not end with a full stop, and a sentence never crosses paragraphs.
        times = -(-sentences // len(spans))
        return _cut("\n\n".join([text.strip()] * times), sentences, cutter, "drop")
    return ""


def _texts(name: str, sentences: int, cutter: Splitter) -> Iterator[tuple[str, str]]:
    """The prompts and texts of a data set; the prompt is empty where the data have none."""
    if name == MANUAL:
        # The corpus is small, so each of its texts is cut into as many parts as it has sentences for.
        for text in language_reference():
            spans, size = cutter.spans(text), sentences + 1
            for start in range(0, len(spans) - size + 1, size):
                yield "", text[spans[start][0] : spans[start + size - 1][1]]
    elif Path(name).exists():
        for number, record in read_jsonl(name):
            if isinstance(record, RecordError):
                raise record
            fields = [field for field in ("natural_text", "text") if isinstance(record.get(field), str)]
            if not fields:
                raise RecordError(f"{name}:{number} has neither `natural_text` nor `text`")
            prompt = record.get("prompt")
            yield prompt.strip() if isinstance(prompt, str) else "", record[fields[0]]
    elif name in HUB:
        yield from _from_hub(name)
    else:
        raise AlimarkError(
            f"no data set is named {name!r}, and there is no such file; data sets are {', '.join([*HUB, MANUAL])}"
        )


def _from_hub(name: str) -> Iterator[tuple[str, str]]:
    try:
        from datasets import load_dataset
    except ImportError:
        raise MissingExtra("datasets") from None
    repository, configuration, split, column = HUB[name]
    try:
        rows: Any = load_dataset(repository, configuration, split=split, streaming=True)
        for row in rows:
            yield str(row.get("query") or row.get("question") or ""), str(row[column])
    except OSError as error:
        raise AlimarkError(
            f"the data set {name} cannot be loaded from the Hugging Face Hub ({error}); give a JSONL file with `prompt` and "
            "`natural_text` instead"
        ) from None
