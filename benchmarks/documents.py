"""Makes 60 documents of ten kinds that each hold a marked text, reads them, and looks for the mark.

    python benchmarks/marked_texts.py --output marked --prompts prompts.jsonl --count 60
    python benchmarks/documents.py --marked marked --output documents

Reports for each kind how many texts were found at a p-value of 0.01, and how many were read as they were written, up to white
space; the others are listed with the first difference. A document that is in the folder is kept, so that a stopped run goes on.
Needs LibreOffice, pandoc and Chromium; documents that need a program which is not installed are listed as missing (Debian:
apt-get install libreoffice-writer hyphen-en-us pandoc chromium).
"""

from __future__ import annotations

import argparse
import itertools
import sys
import time
from collections import Counter
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from alimark import AlimarkError, Embedder, Key, load_embedder, read_document
from alimark.core._util.jsonl import Record, read_jsonl
from alimark.core.frozen.text.splitting import splitter
from alimark.core.schemes.api import load
from made_documents import MAKERS, Content, make_all

LEVEL = 0.01


@dataclass
class Outcome:
    """What became of a document."""

    name: str
    kind: str
    how: str
    p_value: float = 1.0
    problem: str = ""
    """The first difference from the text that was written, or the error."""
    seconds: float = 0.0


def marked_texts(folder: Path, count: int) -> list[Record]:
    """Returns marked texts, spread over the file; a folder with fewer texts gives some of them several times."""
    records = [
        record for _, record in read_jsonl(folder / "texts.jsonl") if isinstance(record, dict) and record.get("text")
    ]
    if not records:
        raise SystemExit(f"{folder}/texts.jsonl holds no texts; make some with benchmarks/marked_texts.py")
    step = max(1, len(records) // count)
    return list(itertools.islice(itertools.cycle(records[::step]), count))


def paragraphs(text: str) -> list[str]:
    """Cuts a text into paragraphs of up to three sentences."""
    lines = []
    for line in text.splitlines():
        sentences = splitter().sentences(line) if line.strip() else []
        lines += [" ".join(sentences[i : i + 3]) for i in range(0, len(sentences), 3)]
    return [line for line in lines if line]


def check(path: Path, content: Content, record: Record, keys: Path) -> Outcome:
    """Reads a document, compares its text with what was written, and looks for the mark."""
    entry = MAKERS[int(path.stem)]
    outcome = Outcome(path.name, entry.kind, entry.name)
    start = time.perf_counter()
    try:
        text = read_document(path).text
        outcome.seconds = time.perf_counter() - start
        outcome.problem = difference(content.expected, text)
        key = Key.load(keys / f"{record['key_id']}.json")
        outcome.p_value = load(key, embedder=_embedder(key.embedder)).detect(text).p_value
    except AlimarkError as error:
        outcome.problem = str(error)
    return outcome


@cache
def _embedder(name: str) -> Embedder:
    return load_embedder(name)


def difference(expected: str, text: str) -> str:
    """Returns the first place where two texts differ other than in white space; empty where they do not."""
    first, second = "".join(expected.split()), "".join(text.split())
    if first == second:
        return ""
    at = next((i for i, pair in enumerate(zip(first, second)) if pair[0] != pair[1]), min(len(first), len(second)))
    return f"written ...{first[max(0, at - 20) : at + 20]!r}, read ...{second[max(0, at - 20) : at + 20]!r}"


def report(outcomes: list[Outcome], missing: dict[str, str]) -> None:
    """Prints a row for each kind, and what went wrong."""
    kinds = list(dict.fromkeys(entry.kind for entry in MAKERS))
    made, found, same = (
        Counter(outcome.kind for outcome in outcomes if condition(outcome))
        for condition in (lambda _: True, lambda outcome: outcome.p_value <= LEVEL, lambda outcome: not outcome.problem)
    )
    print(f"{'kind':<20} {'documents':>9} {'found':>6} {'identical':>9}")
    for kind in kinds:
        print(f"{kind:<20} {made[kind]:>9} {found[kind]:>6} {same[kind]:>9}")
    print(f"{'all':<20} {made.total():>9} {found.total():>6} {same.total():>9}")
    print(f"reading took {sum(outcome.seconds for outcome in outcomes) / max(1, len(outcomes)):.2f} s a document")
    for outcome in outcomes:
        if outcome.p_value > LEVEL:
            print(f"not found: {outcome.name} ({outcome.kind}, {outcome.how}), p = {outcome.p_value:.3g}")
        if outcome.problem:
            print(f"not identical: {outcome.name} ({outcome.kind}, {outcome.how}): {outcome.problem}")
    for name, why in missing.items():
        print(f"MISSING: {name} ({why})")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--marked", type=Path, required=True, help="folder with texts.jsonl and keys/, of marked_texts.py"
    )
    parser.add_argument("--output", type=Path, required=True, help="folder for the documents")
    options = parser.parse_args()
    records = marked_texts(options.marked, len(MAKERS))
    options.output.mkdir(parents=True, exist_ok=True)
    contents, missing = make_all([paragraphs(str(record["text"])) for record in records], options.output)
    outcomes = [
        check(options.output / name, content, records[int(Path(name).stem)], options.marked / "keys")
        for name, content in contents.items()
    ]
    report(outcomes, missing)
    sys.exit(bool(missing))


if __name__ == "__main__":
    main()
