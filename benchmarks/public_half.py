"""A public half of a key: what a detector loses that holds 32 of the 64 directions, and what somebody can do who has them.

    python benchmarks/public_half.py --human c4.jsonl.gz --pairs c4-gpt35-bigram.jsonl.gz --vectors vectors
    python benchmarks/public_half.py --vectors vectors --records benchmarks/records/price/standard.jsonl.gz

The first 32 directions of a soft key and their bits are the public half, the others the private half; texts are marked
with all. A half is scored with the shift of a sentence that it can expect: that of all directions, divided by the root
of two. Texts and their paraphrases are those of attacker.py; with --records they are generated texts and
what a chat model made of them.

Columns: the share found at p <= 0.01, with its 95% interval; "called forged" is the share of the texts that the public
half finds and the private half does not. Rows: "forged with the public half" takes, of 64 candidates for each sentence,
the one furthest along the public half of its block; "forged with N collected texts" is the forger of attacker.py, who
has no part of the key; "removed with the public half" takes, of eight rewrites of each sentence, the one furthest
against the public half of its block.
"""

from __future__ import annotations

import argparse
import gzip
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import attacker
from alimark.core._util.arrays import Floats, Ints, Packed
from alimark.core.detection.scoring import Soft, score_table
from alimark.core.detection.units import Signals, Units, starts_of
from alimark.core.embedding.loading import load_embedder
from alimark.core.frozen.kernels import soft
from alimark.core.frozen.kernels.types import WHOLE
from alimark.core.frozen.rules import RULES, WEIGHTS
from alimark.core.frozen.text.splitting import splitter
from alimark.core.keys.key import Key
from alimark.core.keys.projection import project, targets
from alimark.lab.bench.workspace import KeptVectors
from attacker import Marker, Paraphraser, Pool, Vectors
from share_found import wilson

HALF, LEVEL = 32, 0.01


class HalfSoft(Soft):
    """The soft score where a sentence is expected to be shifted by what half of the directions carry."""

    def scores(self, signals: Sequence[Signals], blocks: Packed, texts: Ints, keys: Ints) -> Floats:
        rules = [rule._replace(worth=rule.worth / 2**0.5) for rule in RULES]
        lengths = np.array([self.length(len(text.packed)) for text in signals])
        return soft.search_soft(
            np.concatenate([text.tables for text in signals]), blocks, lengths, rules, starts=starts_of(signals),
            texts=texts, keys=keys, first_blocks=self.first_blocks, weights=WEIGHTS,
        )  # fmt: skip


@dataclass(frozen=True)
class Part:
    """A detector that holds some of a key's directions: their columns, and the bits of a block that are theirs."""

    name: str
    columns: slice
    rule: type[Soft]
    shift: int = 0
    mask: int = 2**64 - 1

    def p_value(self, text: Vectors, key: Key, draws: int) -> float:
        """The p-value of a text, given as the embeddings of its sentences."""
        index = np.full((len(text), 2, 4), -1, np.int64)
        index[:, 0, WHOLE] = np.arange(len(text))
        rule = self.rule(key.starts)
        projections = np.ascontiguousarray(project(text, key)[:, self.columns])
        signals, length = rule.signals(Units([""] * len(text), index), projections), rule.length(len(text))
        blocks = np.concatenate([key.blocks(length)[None], key.null_blocks(0, draws, length)])
        scores = score_table(rule, [signals], blocks >> np.uint64(self.shift) & np.uint64(self.mask))[0]
        return float((scores >= scores[0]).mean())


PARTS = (
    Part("all 64", slice(None), Soft),
    Part("public half", slice(None, HALF), HalfSoft, shift=HALF),
    Part("private half", slice(HALF, None), HalfSoft, mask=2**HALF - 1),
)


def along_public(vectors: Vectors, key: Key, place: int) -> Floats:
    """How far vectors lie along the public half of the block of a text's sentence."""
    along: Floats = project(vectors, key)[:, :HALF] @ targets(key, 1, place)[0, :HALF]
    return along


def simulated(pool: Pool, move: Paraphraser, args: argparse.Namespace) -> Iterator[tuple[str, Key, Vectors]]:
    """What was done to a text, the key and the result."""
    none = attacker.Defence("none")
    for number in range(args.keys):
        rng = np.random.default_rng(number)
        key = none.key(load_embedder(args.embedder), rng.bytes(32))
        marker, size, white = Marker(pool, key, none, 199), attacker.run_size(key), attacker.Whitened.of(pool, key)
        collected = attacker.run_sums([white(marker.write(rng)) for _ in range(max(args.texts))], size)
        known = [(n, attacker.learn(collected[:n], none, size, rng)) for n in args.texts]
        for _ in range(args.tries):
            text = marker.write(rng)
            yield "not marked", key, attacker.unmarked(pool, len(text), rng)
            yield "as written", key, text
            for share in (0, 0.25, 0.5):
                yield f"paraphrased, {100 * share:.0f}% replaced", key, move(text, pool, share, rng)
            drawn = pool.vectors[pool.candidates(rng, len(text))]
            best = [row[along_public(row, key, place).argmax()] for place, row in enumerate(drawn)]
            yield "forged with the public half", key, np.stack(best)
            for count, learned in known:
                blocks = attacker.best_known(learned, collected[:count])
                yield f"forged with {count} collected texts", key, attacker.forged(pool, blocks, white, rng)
            some = attacker.rewrites(text, pool, rng)
            yield "any of eight rewrites", key, some[:, 0]
            worst = [row[along_public(row, key, place).argmin()] for place, row in enumerate(some)]
            yield "removed with the public half", key, np.stack(worst)


def recorded(path: Path, kept: KeptVectors) -> Iterator[tuple[str, Key, Vectors]]:
    """Generated texts and their rewrites, as records hold them, with their keys."""
    cutter = splitter("nupunkt")
    for row in map(json.loads, gzip.decompress(path.read_bytes()).splitlines()):
        key = Key.generate(embedder=kept, secret=bytes.fromhex(row["secret"]))
        for name, text in {"as written": row, **row["attacks"]}.items():
            if "text" in text:
                yield name, key, kept.embed(cutter.units(text["text"]))


def share(hits: NDArray[np.bool_]) -> str:
    low, high = wilson(int(hits.sum()), len(hits)) if len(hits) else (0, 100)
    return f"{100 * hits.mean():.0f} [{low:.0f}, {high:.0f}]" if len(hits) else "-"


def report(rows: Iterator[tuple[str, Key, Vectors]], draws: int) -> None:
    found: dict[str, list[list[bool]]] = {}
    for name, key, text in rows:
        found.setdefault(name, []).append([part.p_value(text, key, draws) <= LEVEL for part in PARTS])
    print(f"| texts | {' | '.join(part.name for part in PARTS)} | called forged | count |\n" + "| --- " * 6 + "|")
    for name, hits in found.items():
        every, public, private = np.array(hits).T
        print(
            f"| {name} | {share(every)} | {share(public)} | {share(private)} | {share(~private[public])} | {len(hits)} |"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--human", type=Path, action="append", default=[], help="JSONL of human texts")
    parser.add_argument("--pairs", type=Path, action="append", default=[], help="JSONL of texts and paraphrases")
    parser.add_argument("--vectors", type=Path, required=True, help="a folder that keeps the embeddings")
    parser.add_argument("--embedder", default="all-MiniLM-L6-v2")
    parser.add_argument("--most", type=int, default=10_000, help="human texts and pairs of each file")
    parser.add_argument("--keys", type=int, default=4)
    parser.add_argument("--tries", type=int, default=25, help="texts of each key")
    parser.add_argument("--texts", type=int, nargs="*", default=[1, 10, 100], help="texts that a forger collected")
    parser.add_argument("--draws", type=int, default=199)
    parser.add_argument("--records", type=Path, help="generated texts of keep_records.py instead")
    args = parser.parse_args()
    args.vectors.mkdir(exist_ok=True)
    with KeptVectors(load_embedder(args.embedder), args.vectors) as kept:
        if args.records:
            report(recorded(args.records, kept), args.draws)
            return
        pool = Pool(attacker.sentences_of(args.human)[: args.most], kept, 400)
        move = Paraphraser(args.pairs, kept, args.most)
    report(simulated(pool, move, args), args.draws)


if __name__ == "__main__":
    main()
