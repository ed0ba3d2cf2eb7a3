"""How a soft key might choose among candidates, tried without a language model: what is found after rewriting.

    python benchmarks/selection.py --human booksum.jsonl.gz --human c4.jsonl.gz --vectors vectors

Texts are put together from human sentences as in benchmarks/attacker.py, whose pool this uses; a rewrite moves each sentence's
embedding towards another real sentence until the cosine to what it was falls to a given value. Shares found at p <= 0.01
without restructuring. "worth" is how soft keys choose; "normalised" divides by the length of the candidate's projections, as
the detector will, less what the candidates have in common; "between" divides by the root of that length; "top 4" takes any
of the best four, the mild variant.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

import numpy as np

import attacker
from alimark.alignment import Floats
from alimark.bench.vectors import KeptVectors
from alimark.embed import load_embedder
from alimark.key import Key
from alimark.signals import project, targets
from attacker import SENTENCES, Ints, Pool, p_values, sentences_of

Choose = Callable[[Floats, Floats, np.random.Generator], int]


def _divided(power: float) -> Choose:
    def choose(projections: Floats, target: Floats, rng: np.random.Generator) -> int:
        apart = projections - projections.mean(axis=0)
        return int((apart @ target / np.linalg.norm(apart, axis=1) ** power).argmax())

    return choose


def _top(count: int) -> Choose:
    def choose(projections: Floats, target: Floats, rng: np.random.Generator) -> int:
        return int(rng.choice(np.argsort(projections @ target)[-count:]))

    return choose


WAYS: dict[str, Choose] = {
    "worth": _top(1),
    "normalised": _divided(1.0),
    "between": _divided(0.5),
    "top 4": _top(4),
}


def written(pool: Pool, key: Key, projections: Floats, choose: Choose, rng: np.random.Generator) -> Ints:
    chosen: list[int] = []
    for target, every in zip(targets(key, SENTENCES), pool.candidates(rng), strict=True):
        drawn = every[~np.isin(every, chosen)]
        chosen.append(int(drawn[choose(projections[drawn], target, rng)]))
    return np.array(chosen)


def moved(vectors: attacker.Vectors, pool: Pool, cosine: float, rng: np.random.Generator) -> attacker.Vectors:
    attacker.COSINE = cosine
    return np.asarray(attacker.rewrites(vectors, pool, rng)[:, 0])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--human", type=Path, action="append", required=True, help="JSONL of human texts")
    parser.add_argument("--vectors", type=Path, required=True, help="a folder that keeps the embeddings")
    parser.add_argument("--embedder", default="all-MiniLM-L6-v2")
    parser.add_argument("--near", type=int, default=400)
    parser.add_argument("--cosines", type=float, nargs="+", default=[0.6, 0.5, 0.4, 0.3])
    parser.add_argument("--keys", type=int, default=8)
    parser.add_argument("--texts", type=int, default=40, help="under each key")
    parser.add_argument("--draws", type=int, default=199)
    args = parser.parse_args()
    embedder = load_embedder(args.embedder)
    with KeptVectors(embedder, args.vectors) as kept:
        pool = Pool(sentences_of(args.human), kept, args.near)
    print("| chosen by | " + " | ".join(f"cosine {one:g}" for one in args.cosines) + " |")
    print("| --- " * (1 + len(args.cosines)) + "|")
    for name, choose in WAYS.items():
        found: list[list[float]] = [[] for _ in args.cosines]
        for number in range(args.keys):
            rng = np.random.default_rng(number)
            key = Key.generate(decision="soft", embedder=embedder, secret=rng.bytes(32))
            projections = project(pool.vectors, key)
            texts = [pool.vectors[written(pool, key, projections, choose, rng)] for _ in range(args.texts)]
            for cell, cosine in zip(found, args.cosines, strict=True):
                cell.extend(p_values([moved(text, pool, cosine, rng) for text in texts], key, args.draws) <= 0.01)
        print(f"| {name} | " + " | ".join(f"{100 * np.mean(cell):.0f}" for cell in found) + " |", flush=True)


if __name__ == "__main__":
    main()
