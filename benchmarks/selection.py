"""How a soft key might choose among candidates, tried without a language model: what is found after rewriting.

    python benchmarks/selection.py --human booksum.jsonl.gz --human c4.jsonl.gz --vectors vectors

Texts are put together from human sentences as in benchmarks/attacker.py, whose pool this uses; a rewrite moves each sentence's
embedding towards another real sentence until the cosine to what it was falls to a given value. Shares found at p <= 0.01
without restructuring. "worth" is how soft keys choose; "normalised" divides by the length of the candidate's projections, as
the detector will, less what the candidates have in common; "between" divides by the root of that length; "top 4" takes any
of the best four, the mild variant. Two choose with the rest of the text in view: "beam of 4" keeps the four best beginnings and
shares the candidates among them; "whole text" has all candidates of all sentences before it, which no writer has, and exchanges
sentences until what the detector will see of the text gets no better.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

import numpy as np

import attacker
from alimark.core._util.arrays import Floats
from alimark.core.embedding.loading import load_embedder
from alimark.core.frozen.soft_rules import SOFT_VERSIONS
from alimark.core.keys.key import Key
from alimark.core.keys.projection import project, targets
from alimark.lab.bench.vectors import KeptVectors
from attacker import SENTENCES, Ints, Pool, p_values, sentences_of

SHRINK = SOFT_VERSIONS[1].shrink

Choose = Callable[[Floats, Floats, np.random.Generator], int]
Write = Callable[[Ints, Floats, Floats, np.random.Generator], Ints]
"""From each sentence's candidates, all projections and the blocks' directions: the sentences of a text."""


def _divided(power: float) -> Choose:
    def choose(projections: Floats, target: Floats, rng: np.random.Generator) -> int:
        apart = projections - projections.mean(axis=0)
        return int((apart @ target / np.linalg.norm(apart, axis=1) ** power).argmax())

    return choose


def _top(count: int) -> Choose:
    def choose(projections: Floats, target: Floats, rng: np.random.Generator) -> int:
        return int(rng.choice(np.argsort(projections @ target)[-count:]))

    return choose


def one_by_one(choose: Choose) -> Write:
    def write(candidates: Ints, projections: Floats, directions: Floats, rng: np.random.Generator) -> Ints:
        chosen: list[int] = []
        for target, every in zip(directions, candidates, strict=True):
            drawn = every[~np.isin(every, chosen)]
            chosen.append(int(drawn[choose(projections[drawn], target, rng)]))
        return np.array(chosen)

    return write


def beam(width: int) -> Write:
    def write(candidates: Ints, projections: Floats, directions: Floats, rng: np.random.Generator) -> Ints:
        best: list[tuple[float, list[int]]] = [(0.0, [])]
        for target, every in zip(directions, candidates, strict=True):
            shares = np.array_split(rng.permutation(every), len(best))
            longer = [
                (worth + float(projections[one] @ target), [*before, int(one)])
                for (worth, before), share in zip(best, shares, strict=True)
                for one in share[~np.isin(share, before)]
            ]
            best = sorted(longer, reverse=True)[:width]
        return np.array(best[0][1])

    return write


def seen(texts: Floats, directions: Floats) -> Floats:
    """The sum of worths that the detector would find in each of some texts, (..., sentences, M)."""
    centred = texts - texts.sum(axis=-2, keepdims=True) / (texts.shape[-2] + SHRINK)
    scaled = centred / np.sqrt((centred**2).mean(axis=-1, keepdims=True))
    found: Floats = (scaled * directions).sum(axis=(-1, -2))
    return found


def whole_text(candidates: Ints, projections: Floats, directions: Floats, rng: np.random.Generator) -> Ints:
    chosen = one_by_one(_top(1))(candidates, projections, directions, rng)
    worth = -np.inf
    while (now := float(seen(projections[chosen], directions))) > worth:
        worth = now
        for place, every in enumerate(candidates):
            drawn = every[~np.isin(every, np.delete(chosen, place))]
            texts = np.repeat(projections[chosen][None], len(drawn), axis=0)
            texts[:, place] = projections[drawn]
            chosen[place] = drawn[seen(texts, directions).argmax()]
    return chosen


WAYS: dict[str, Write] = {
    "worth": one_by_one(_top(1)),
    "normalised": one_by_one(_divided(1.0)),
    "between": one_by_one(_divided(0.5)),
    "top 4": one_by_one(_top(4)),
    "beam of 4": beam(4),
    "whole text": whole_text,
}


def moved(vectors: attacker.Vectors, pool: Pool, cosine: float, rng: np.random.Generator) -> attacker.Vectors:
    return np.asarray(attacker.rewrites(vectors, pool, rng, 1, cosine)[:, 0])


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
    parser.add_argument("--only", nargs="+", metavar="NAME", choices=list(WAYS), help="of the ways, these")
    args = parser.parse_args()
    embedder = load_embedder(args.embedder)
    with KeptVectors(embedder, args.vectors) as kept:
        pool = Pool(sentences_of(args.human), kept, args.near)
    print("| chosen by | " + " | ".join(f"cosine {one:g}" for one in args.cosines) + " |")
    print("| --- " * (1 + len(args.cosines)) + "|")
    for name, write in ((name, WAYS[name]) for name in args.only or WAYS):
        found: list[list[float]] = [[] for _ in args.cosines]
        for number in range(args.keys):
            rng = np.random.default_rng(number)
            key = Key.generate(decision="soft", embedder=embedder, secret=rng.bytes(32))
            projections = project(pool.vectors, key)
            directions = targets(key, SENTENCES)
            drawn = (pool.candidates(rng) for _ in range(args.texts))
            texts = [pool.vectors[write(candidates, projections, directions, rng)] for candidates in drawn]
            for cell, cosine in zip(found, args.cosines, strict=True):
                cell.extend(p_values([moved(text, pool, cosine, rng) for text in texts], key, args.draws) <= 0.01)
        print(f"| {name} | " + " | ".join(f"{100 * np.mean(cell):.0f}" for cell in found) + " |", flush=True)


if __name__ == "__main__":
    main()
