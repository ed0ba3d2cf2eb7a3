"""Marked passages in long texts without options: whether they are found and placed, the time, and p-values on human text.

    python benchmarks/long_texts.py work/records/generate.jsonl --human booksum.jsonl.gz c4.jsonl.gz

`passage` puts the 12 sentences of each marked text into 1,600 human sentences and searches with search="auto", as `alimark
detect` does by default. `human` searches long human texts, each under a fresh key, and counts p-values up to some levels.
`chances` counts sentences by their probability of carrying the mark. The marked texts are those of the recipe
recipes/local/version3.toml (seed 3), whose keys anyone can compute.
"""

from __future__ import annotations

import argparse
import hashlib
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from alimark import AliMark, Key, load_embedder
from alimark.audit.calibration.rates import LEVELS, binomial_interval
from alimark.audit.corpora.cache import RememberingEmbedder
from alimark.core._util.jsonl import read_jsonl
from alimark.core.frozen.text.splitting import Splitter, splitter
from alimark.core.text.human_text import read_texts
from alimark.lab.bench.models import secret

SEED = 3
STEP = 20
"""Sentences between the beginnings of two long human texts. They overlap, so that less is embedded; each has its key."""
KINDS: dict[str, dict[str, Any]] = {
    "hard": {"decision": "hard"},
    "soft 3": {
        "soft_version": 3,
        "text_version": 0,
        "run": 4,
    },  # as when the records were made, whatever the defaults are
}


def marked(records: Path, mark_of: dict[str, AliMark]) -> Iterator[tuple[str, AliMark, dict[str, Any]]]:
    """The texts of 12 sentences of some kinds of keys: the kind, the watermark that marked the text, and its record."""
    embedder = next(iter(mark_of.values())).embedder
    for _, record in read_jsonl(records):
        if not isinstance(record, dict) or record.get("scheme") != "alimark" or len(record["sentences"]) != 12:
            continue
        for kind in mark_of:
            key = Key.generate(secret=secret(SEED, record["prompt"]), embedder=embedder, **KINDS[kind])
            if key.id == record["key_id"]:
                yield kind, AliMark(key, embedder=embedder), record


def first_of_each(records: Path, mark_of: dict[str, AliMark], count: int) -> Iterator[tuple[str, AliMark, list[str]]]:
    """The sentences of the first `count` texts of each kind of key, in the order of the records."""
    left = dict.fromkeys(mark_of, count)
    for kind, mark, record in marked(records, mark_of):
        if left[kind]:
            left[kind] -= 1
            yield kind, mark, record["sentences"]
        if not any(left.values()):
            return


def human_sentences(files: list[Path], cutter: Splitter, count: int) -> list[str]:
    """The first `count` sentences of human texts, a text from each file in turn; more sentences begin with the same ones."""
    texts = (text for together in zip(*map(read_texts, files), strict=False) for text in together)
    sentences = list(islice((sentence for text in texts for sentence in cutter.units(text)), count))
    if len(sentences) < count:
        raise SystemExit(
            f"the human texts have {len(sentences)} sentences, and {count} are needed; give more with --human"
        )
    return sentences


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("records", type=Path)
    parser.add_argument("--human", type=Path, nargs="+", required=True)
    parser.add_argument("--passages", type=int, default=3, help="marked texts of each kind of key")
    parser.add_argument("--long", type=int, default=1600, help="human sentences around each")
    parser.add_argument("--kinds", nargs="+", default=list(KINDS), choices=list(KINDS))
    parser.add_argument("--texts", type=int, default=200, help="long human texts")
    parser.add_argument("--sentences", type=int, default=120, help="sentences of a long human text")
    args = parser.parse_args()
    embedder = RememberingEmbedder(load_embedder("all-MiniLM-L6-v2"), 512)
    marks = {kind: AliMark(Key.generate(embedder=embedder, **KINDS[kind]), embedder=embedder) for kind in args.kinds}
    cutter = splitter(next(iter(marks.values())).key.splitter)
    # Passages are put into the first sentences and human texts begin with them, whatever is asked of the other.
    sentences = human_sentences(args.human, cutter, max(args.long, (args.texts - 1) * STEP + args.sentences))
    _passages(args, marks, sentences)
    _human(args, marks, sentences)


def _passages(args: argparse.Namespace, marks: dict[str, AliMark], sentences: list[str]) -> None:
    for number, (kind, mark, passage) in enumerate(first_of_each(args.records, marks, args.passages)):
        start = 37 + 211 * number % (args.long - 100)
        around = sentences[: args.long]
        text = " ".join([*around[:start], *passage, *around[start:]])
        began, began_cpu = time.perf_counter(), time.process_time()
        detection = mark.detect(text, search="auto")
        seconds, cpu = time.perf_counter() - began, time.process_time() - began_cpu
        places = ", ".join(f"{place.first}-{place.last}" for place in detection.passages)
        chances = np.array(detection.sentence_chances)
        print(
            f"{kind}: 12 sentences at {start + 1}-{start + 12} of {len(detection.sentences)}: {detection.verdict()}, "
            f"p {detection.p_text}, passages {places or 'none'}, {int((chances >= 0.5).sum())} sentences with 50% or more, "
            f"{seconds:.1f} s ({cpu:.1f} s of CPU time)",
            flush=True,
        )


def _human(args: argparse.Namespace, marks: dict[str, AliMark], sentences: list[str]) -> None:
    for kind, like in marks.items():
        p_values: list[float] = []
        chances: list[float] = []
        for number in range(args.texts):
            secret_bytes = hashlib.sha256(f"alimark/long texts/{number}".encode()).digest()
            mark = AliMark(like.key.like(secret_bytes), embedder=like.embedder)
            first = number * STEP
            text = " ".join(sentences[first : first + args.sentences])
            detection = mark.detect(text, search="auto", stop_after=20)
            p_values.append(detection.p_value)
            if number % 10 == 0:
                chances += mark.detect(" ".join(sentences[first : first + 12])).sentence_chances
        shares = [(level, float((np.array(p_values) <= level).mean())) for level in LEVELS]
        told = "; ".join(
            f"p <= {level:g}: {100 * share:.1f}% (99% interval {100 * low:.1f}-{100 * high:.1f}%)"
            for level, share in shares
            for low, high in [binomial_interval(len(p_values), level)]
        )
        print(f"{kind}: {len(p_values)} human texts of {args.sentences} sentences, a fresh key each: {told}")
        high_chances = np.array(chances)
        print(
            f"{kind}: of {len(chances)} human sentences {100 * (high_chances >= 0.5).mean():.1f}% have a probability of 50% or "
            f"more, {100 * (high_chances >= 0.8).mean():.1f}% of 80% or more"
        )


if __name__ == "__main__":
    main()
