"""Marked passages hidden in human text: how many are found, how well their ends are placed, and how many false ones.

    python benchmarks/excerpts.py --marked marked --human human.jsonl

`--marked` is the folder that benchmarks/marked_texts.py wrote (texts of 12 sentences, one key each); `--human` is
JSONL with human texts (`text` or `natural_text`). Each marked text is put at a random place into 40 sentences of one or
more human texts.
"""

from __future__ import annotations

import argparse
import random
from pathlib import Path

import numpy as np

from alimark import AliMark, Key, load_embedder
from alimark.core._util.jsonl import read_jsonl
from alimark.core.frozen.text.splitting import splitter
from alimark.core.text.human_text import read_texts

HOST = 40
LEVEL = 0.01


def hosts(paths: list[Path], count: int, rng: random.Random) -> list[list[str]]:
    """Forty human sentences each: of one text where it is long enough, else of several."""
    texts = list(dict.fromkeys(text for path in paths for text in read_texts(path)))
    rng.shuffle(texts)
    found: list[list[str]] = []
    rest: list[str] = []
    for text in texts:
        rest += splitter().units(text)
        if len(rest) >= HOST:
            found.append(rest[:HOST])
            rest = []
        if len(found) == count:
            break
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--marked", type=Path, required=True)
    parser.add_argument("--human", type=Path, required=True, action="append")
    parser.add_argument("--count", type=int, default=50)
    parser.add_argument("--embedder", default="all-MiniLM-L6-v2")
    options = parser.parse_args()
    records = [record for _, record in read_jsonl(options.marked / "texts.jsonl") if isinstance(record, dict)]
    records = [record for record in records if len(record["sentences"]) == 12][: options.count]
    rng = random.Random(0)
    human = hosts(options.human, 2 * len(records), rng)
    embedder = load_embedder(options.embedder)
    found, errors, false = 0, [], 0
    for number, record in enumerate(records):
        mark = AliMark(Key.load(options.marked / "keys" / f"{record['key_id']}.json"), embedder=embedder)
        at = rng.randrange(HOST + 1)
        host = human[number]
        text = " ".join([*host[:at], *record["sentences"], *host[at:]])
        answer, plain = mark.detect([text, " ".join(human[len(records) + number])], search="excerpt")
        if answer.p_value < LEVEL:
            found += 1
            best = max(answer.passages, key=lambda passage: passage.score)
            errors.append(abs(best.first - (at + 1)) + abs(best.last - (at + 12)))
        false += sum(passage.p_value < LEVEL for passage in plain.passages)
    print(f"{len(records)} passages of 12 marked sentences, each in {HOST} human ones, {options.embedder}")
    print(f"found at p < {LEVEL}: {found}")
    print(f"|start error| + |end error| of those found, in sentences: mean {np.mean(errors):.2f}, most {max(errors)}")
    rate = false / len(records)
    print(
        f"false passages at p < {LEVEL} in {len(records)} human texts of {HOST} sentences: {false} ({rate:.3f} a text)"
    )


if __name__ == "__main__":
    main()
