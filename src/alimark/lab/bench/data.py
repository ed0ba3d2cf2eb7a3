"""Prompts and human texts: data sets by name, such as those of the paper, any JSONL file, and a corpus that comes with Python.

The prompt is the first sentence of a text and the human text is the rest, unless a record has both (`prompt` and
`natural_text`). Human texts are cut to the requested number of sentences. Repeated texts are removed, and shorter ones are left
out and counted, or repeated.
"""

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from itertools import islice
from pathlib import Path
from typing import Any
from urllib.request import urlopen

from alimark.core._util.jsonl import read_jsonl
from alimark.core.frozen.text.splitting import DEFAULT_SPLITTER, Splitter, splitter
from alimark.core.text.human_text import language_reference
from alimark.errors import AlimarkError, MissingExtra, RecordError

_PMARK = "https://raw.githubusercontent.com/imethanlee/PMark/b495294dc144014ee5ce7e47942e91065e12109d/data"

PMARK = {name: f"{_PMARK}/{folder}/data-00000-of-00001.arrow" for name, folder in
         (("booksum", "booksum-train-500"), ("c4", "c4-val-500"))}  # fmt: skip
"""The paper's texts, which the repository of PMark holds as Arrow files with a column `text`."""

HUB: dict[str, tuple[str, dict[str, str], str]] = {
    # what `load_dataset` takes, and the field of the text
    "nq": ("sentence-transformers/natural-questions", {"name": "pair"}, "answer"),
    "booksum-test": ("kmfoda/booksum", {"split": "test"}, "summary_text"),
    "c4-train": ("allenai/c4", {"name": "realnewslike"}, "text"),
}
"""Data sets on the model hub. The paper's texts of nq are nowhere public: these are others. The paper used none of the last
two, so schemes can learn from them."""

_GIVE_FILE = "give a JSONL file with `prompt` and `natural_text` instead"
_MOST_BYTES = 100_000_000
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
    papers: int = 0  # how many of the texts are the paper's, by their hashes

    @property
    def human(self) -> list[str]:
        return [item.human for item in self.items]


def load(name: str, sentences: int, *, short: str = "drop", most: int | None = None, skip: int = 0) -> DataSet:
    """The first `most` usable texts of a data set after the first `skip`; "repeat" as `short` repeats short texts."""
    cutter = splitter(DEFAULT_SPLITTER)
    data, seen, usable = DataSet(label(name)), set(), 0
    for prompt, text in pairs(name, sentences, cutter):
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
            data.papers += _prompt_length(prompt + text) is not None
        if most is not None and len(data.items) == most:
            break
    if not data.items:
        raise AlimarkError(
            f"{name} holds no text of {sentences} sentences ({data.short} are shorter, {data.repeats} are repeats); "
            "set data.sentences to fewer"
        )
    return data


def pairs(name: str, sentences: int, cutter: Splitter) -> Iterator[tuple[str, str]]:
    """The prompts and texts of a data set; where it has no prompts, that of the paper or else the first sentence is one."""
    for prompt, text in _texts(name, sentences, cutter):
        if prompt:
            yield prompt, text
        elif (length := _prompt_length(text)) is not None:
            end = _place(text, length)
            yield text[:end].strip(), text[end:].strip()
        elif len(spans := cutter.spans(text)) >= 2:
            yield text[slice(*spans[0])], text[spans[1][0] :]


def label(name: str) -> str:
    """The name of a data set in tables; of a file, its name without folder and suffixes."""
    return name if name in (*PMARK, *HUB, MANUAL) else Path(name).name.partition(".")[0]


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
    elif name in PMARK:
        yield from _from_pmark(name)
    else:
        raise AlimarkError(
            f"no data set is named {name!r}, and there is no such file; data sets are {', '.join([*PMARK, *HUB, MANUAL])}"
        )


def _from_hub(name: str) -> Iterator[tuple[str, str]]:
    try:
        from datasets import load_dataset
    except ImportError:
        raise MissingExtra("datasets") from None
    source, options, column = HUB[name]
    try:
        rows: Any = load_dataset(source, **{"split": "train", **options}, streaming=True)
        for row in rows:
            yield str(row.get("query") or row.get("question") or ""), str(row[column])
    except OSError as error:
        raise AlimarkError(
            f"the data set {name} cannot be loaded from the Hugging Face Hub ({error}); {_GIVE_FILE}"
        ) from None


def _from_pmark(name: str) -> Iterator[tuple[str, str]]:
    try:
        import pyarrow
    except ImportError:
        raise MissingExtra("pyarrow") from None
    try:
        with urlopen(PMARK[name], timeout=60) as answer:
            content = answer.read(_MOST_BYTES)
        texts = pyarrow.ipc.open_stream(content).read_all()["text"].to_pylist()
    except (OSError, pyarrow.ArrowException, KeyError) as error:
        raise AlimarkError(f"{PMARK[name]} cannot be read ({error}); {_GIVE_FILE}") from None
    if [text_hash(str(text)) for text in texts if text_hash(str(text)) not in paper_texts()[name]] or not texts:
        raise AlimarkError(f"{PMARK[name]} does not hold the texts of the paper; {_GIVE_FILE}")
    yield from (("", text) for text in texts)


# --- The paper's texts, by their hashes


def text_hash(text: str) -> str:
    """The hash of a prompt and its text, joined, without white space."""
    return hashlib.sha256("".join(text.split()).encode("utf-8", "surrogatepass")).hexdigest()[:12]


@cache
def paper_texts() -> dict[str, dict[str, int]]:
    """For each data set the hashes of the paper's texts, and the number of characters of each prompt without white space."""
    content = resources.files("alimark").joinpath("lab", "bench", "paper_texts.json").read_text("utf-8")
    pairs = {name: (entry.split(":") for entry in entries.split()) for name, entries in json.loads(content).items()}
    return {name: {text: int(length) for text, length in entries} for name, entries in pairs.items()}


def _prompt_length(text: str) -> int | None:
    """The length of the prompt of one of the paper's texts; None for another text."""
    content = text_hash(text)
    return next((texts[content] for texts in paper_texts().values() if content in texts), None)


def _place(text: str, count: int) -> int:
    """Where the first `count` characters of a text end, not counting white space."""
    places = (place for place, character in enumerate(text, 1) if not character.isspace())
    return next(islice(places, count - 1, None))
