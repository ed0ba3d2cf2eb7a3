"""How right the probabilities of single sentences are, under soft keys of version 3.

    python benchmarks/sentence_chances.py work/records --human booksum.jsonl.gz c4.jsonl.gz [--skip 0] [--texts 95]

Each marked text of 12 sentences, and its rewrite by a chat model (the attack "chat"), is looked at alone and as a paste among
24 human sentences: the whole text, or 6 sentences of it. There is a human text without a paste as well. Every sentence has a
stated probability of carrying the mark; those of marked and rewritten texts are taken to carry it.

Printed for the sum over all alignments, which version 3 uses, and for the single best alignment, which it used before: the
probabilities stated against the share of sentences that carry the mark (reliability), and the area under the ROC curve of the
sentences. The marked texts are those of the recipe recipes/local/version3.toml (seed 3), whose keys anyone can compute.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from unittest import mock

import numpy as np

from alimark import AliMark, Key, load_embedder
from alimark.audit.corpora.cache import RememberingEmbedder
from alimark.core._util.jsonl import read_jsonl
from alimark.core.detection import searching
from alimark.core.detection.sentence_chances import chances_by_all_alignments, chances_by_one_alignment
from alimark.core.frozen.text.splitting import Splitter, splitter
from alimark.core.text.human_text import read_texts
from alimark.lab.bench.metrics import auroc
from long_texts import KINDS, marked

AROUND, PASTED = 24, 6
BINS = (0.0, 0.1, 0.3, 0.5, 0.7, 0.9, 1.0)
METHODS = {"all alignments": chances_by_all_alignments, "one alignment": chances_by_one_alignment}
Stated = dict[str, dict[str, list[tuple[float, bool]]]]
"""By method and kind of text: the probability of each sentence, and whether it carries the mark."""


def rewrites(records: Path) -> dict[str, str]:
    """The rewrite of each text by a chat model with the paper's prompt, by the id of the text."""
    texts: dict[str, str] = {}
    for _, record in read_jsonl(records):
        if isinstance(record, dict) and not record.get("failed"):
            attack = record.get("attack") or {}
            if attack.get("name") == "chat" and "prompt" not in attack["settings"]:
                texts.setdefault(record["parent_id"], record["text"])
    return texts


def pairs(records: Path, mark: AliMark, cutter: Splitter) -> Iterator[tuple[AliMark, list[str], list[str]]]:
    """Each marked text that was rewritten: its watermark, its sentences and those of the rewrite."""
    rewritten = rewrites(records / "attack.jsonl")
    for _, watermark, record in marked(records / "generate.jsonl", {"soft 3": mark}):
        if record["id"] in rewritten and record["settings"]["candidates"] == 64:
            yield watermark, record["sentences"], cutter.units(rewritten[record["id"]])


def human_texts(files: list[Path], cutter: Splitter) -> Iterator[list[str]]:
    """The first sentences of human texts that are long enough, from all files in turn."""
    for together in zip(*map(read_texts, files), strict=False):
        for text in together:
            sentences = cutter.units(text)
            if len(sentences) >= AROUND:
                yield sentences[:AROUND]


def state(mark: AliMark, around: list[str], place: int, passage: list[str], kind: str, stated: Stated) -> None:
    """Adds the probabilities of the sentences of a document by both methods."""
    text = " ".join([*around[:place], *passage, *around[place:]])
    for name, method in METHODS.items():
        with mock.patch.object(searching, "sentence_chances", method):
            detection = mark.detect(text, draws=100)
            chances = detection.sentence_chances
        # A sentence that was split otherwise in the new text is neither the passage's nor the human text's.
        stated[name].setdefault(kind, []).extend(
            (chance, sentence in passage)
            for sentence, chance in zip(detection.sentences, chances, strict=False)
            if (sentence in passage) != (sentence in around)
        )


def show(name: str, by_kind: dict[str, list[tuple[float, bool]]]) -> None:
    """Prints the reliability over all texts, and the probabilities of each kind of text."""
    values = np.array([pair for pairs_of_kind in by_kind.values() for pair in pairs_of_kind])
    chances, carries = values[:, 0], values[:, 1] == 1
    area, error = auroc(chances[carries], chances[~carries]), ((chances - carries) ** 2).mean()
    print(
        f"\n{name}: area under the ROC curve {area:.3f}, Brier score {error:.3f}; {carries.mean():.0%} of sentences marked\n"
    )
    print("| stated | sentences | mean stated | share that carries the mark |\n| --- | --- | --- | --- |")
    for low, high in zip(BINS[:-1], BINS[1:], strict=True):
        chosen = (chances >= low) & ((chances < high) | (high == 1))
        if chosen.any():
            print(
                f"| {low:.1f}-{high:.1f} | {chosen.sum():,} | {chances[chosen].mean():.2f} | {carries[chosen].mean():.2f} |"
            )
    print("\n| text | AUC | mean inside | mean outside | >= 50% inside | >= 50% outside |\n" + "| --- " * 6 + "|")
    for kind, pairs_of_kind in by_kind.items():
        values = np.array(pairs_of_kind)
        inside, outside = values[values[:, 1] == 1, 0], values[values[:, 1] == 0, 0]
        kind_area = f"{auroc(inside, outside):.3f}" if len(inside) and len(outside) else "-"
        means = [f"{part.mean():.2f}" if len(part) else "-" for part in (inside, outside)]
        shares = [f"{100 * (part >= 0.5).mean():.0f}%" if len(part) else "-" for part in (inside, outside)]
        print(f"| {kind} | {kind_area} | {' | '.join(means)} | {' | '.join(shares)} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("records", type=Path, help="the folder with generate.jsonl and attack.jsonl")
    parser.add_argument("--human", type=Path, nargs="+", required=True)
    parser.add_argument(
        "--skip", type=int, default=0, help="marked texts to skip, such as those that choices were made with"
    )
    parser.add_argument("--texts", type=int, default=95, help="marked texts")
    args = parser.parse_args()
    embedder = RememberingEmbedder(load_embedder("all-MiniLM-L6-v2"), 512)
    like = AliMark(Key.generate(embedder=embedder, **KINDS["soft 3"]), embedder=embedder)
    cutter = splitter(like.key.splitter)
    stated: Stated = {name: {} for name in METHODS}
    around, chooser = human_texts(args.human, cutter), random.Random(1)
    for mark, text, rewrite in islice(pairs(args.records, like, cutter), args.skip, args.skip + args.texts):
        human, place = next(around), chooser.randrange(AROUND + 1)
        state(mark, next(around), 0, [], "human", stated)
        for kind, sentences in (("marked", text), ("rewritten", rewrite)):
            state(mark, [], 0, sentences, kind, stated)
            state(mark, human, place, sentences, f"{kind}, pasted", stated)
            first = chooser.randrange(max(1, len(sentences) - PASTED + 1))
            state(mark, human, place, sentences[first : first + PASTED], f"{PASTED} {kind}, pasted", stated)
    for name, by_kind in stated.items():
        show(name, by_kind)


if __name__ == "__main__":
    main()
