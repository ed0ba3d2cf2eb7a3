"""An attacker who asks the detector: how often a mark is removed, by the number of questions, and how much of the text is left.

    python benchmarks/queries.py --human booksum.jsonl.gz --vectors vectors

A simulation on embeddings of real sentences, as in benchmarks/attacker.py, with its marked texts and rewrites: a rewrite has a
cosine of 0.85 to the sentence. Detection is the real one, without restructuring. Every attacker changes one sentence, asks, and
keeps the change or takes it back:

- "verdict" is told found or not found (role verdict). It changes sentences in turn until the mark is no longer found, and then
  puts original sentences back as long as that stays so.
- "p-value" and "score" (role detect) keep a change that does not lower p, or that lowers the score.
- "walk" asks nothing: it rewrites random sentences again and again, and keeps what is at least as close to the original as a
  judge of quality asks (--quality, a cosine).

A text counts as removed after n questions if the version that the attacker has by then has p > 0.01, by the detector that he
asks, which gives the same text the same answer. Intervals are 95% (Wilson); "kept" is the mean cosine of the sentences to the
original ones.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from alimark.core._util.arrays import Floats
from alimark.core.embedding.loading import load_embedder
from alimark.lab.bench.workspace import KeptVectors
from attacker import Defence, Detector, Marker, Pool, Vectors, rewrites, sentences_of
from share_found import wilson

QUESTIONS = (1, 3, 10, 30, 100, 300)
LEVEL = 0.01
Texts = NDArray[np.float32]  # (texts, sentences, dimensions)
Attacker = Callable[..., Iterator[Texts]]


def p_of(detector: Detector, texts: Texts) -> Floats:
    return detector.p_values(list(texts))


def score_of(detector: Detector, texts: Texts) -> Floats:
    best, null = detector.scores(list(texts))
    scores: Floats = (best - null.mean(axis=1)) / null.std(axis=1)
    return scores


def changed(texts: Texts, pool: Pool, rng: np.random.Generator, number: int | None = None) -> Texts:
    """Each text with a rewrite of one of its sentences: of the one that is given, or of a random one."""
    new = texts.copy()
    for text in new:
        place = int(rng.integers(len(text))) if number is None else number % len(text)
        text[place] = rewrites(text[place : place + 1], pool, rng, 1)[0, 0]
    return new


def kept(new: Texts, old: Texts, keep: NDArray[np.bool_]) -> Texts:
    return np.where(keep[:, None, None], new, old)


def by_verdict(texts: Texts, detector: Detector, pool: Pool, rng: np.random.Generator) -> Iterator[Texts]:
    current, original, number = texts, texts, 0
    out = np.zeros(len(texts), bool)
    while True:
        tried = kept(original.copy(), changed(current, pool, rng, number), out)
        # Where the mark is gone, an original sentence goes back in the place of its rewrite.
        back = current.copy()
        back[:, number % texts.shape[1]] = original[:, number % texts.shape[1]]
        tried = kept(back, tried, out)
        gone = p_of(detector, tried) > LEVEL
        current = kept(tried, current, ~out | gone)
        out |= gone
        number += 1
        yield current


def by_answer(
    texts: Texts, detector: Detector, pool: Pool, rng: np.random.Generator, ask: Callable[..., Floats], sign: int
) -> Iterator[Texts]:
    current, best = texts, sign * ask(detector, texts)
    while True:
        tried = changed(current, pool, rng)
        answer = sign * ask(detector, tried)
        current, best = kept(tried, current, answer >= best), np.maximum(best, answer)
        yield current


def walk(texts: Texts, detector: Detector, pool: Pool, rng: np.random.Generator, quality: float) -> Iterator[Texts]:
    current = texts
    while True:
        tried = changed(current, pool, rng)
        current = kept(tried, current, ((tried * texts).sum(axis=2) >= quality).all(axis=1))
        yield current


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--human", type=Path, action="append", required=True, help="JSONL of human texts")
    parser.add_argument("--vectors", type=Path, required=True, help="a folder that keeps the embeddings")
    parser.add_argument("--embedder", default="all-MiniLM-L6-v2")
    parser.add_argument("--keys", type=int, default=4)
    parser.add_argument("--texts", type=int, default=25, help="texts under each key")
    parser.add_argument(
        "--quality", type=float, default=0.6, help="the least cosine that the judge of the walk accepts"
    )
    args = parser.parse_args()
    args.vectors.mkdir(exist_ok=True)
    embedder = load_embedder(args.embedder)
    with KeptVectors(embedder, args.vectors) as vectors:
        pool = Pool(sentences_of(args.human), vectors, 400)
    attackers: dict[str, Attacker] = {
        "verdict": by_verdict,
        "p-value": partial(by_answer, ask=p_of, sign=1),
        "score": partial(by_answer, ask=score_of, sign=-1),
        f"walk, quality {args.quality:g}": partial(walk, quality=args.quality),
    }
    gone, cosines = defaultdict[tuple[str, int], list[bool]](list), defaultdict[tuple[str, int], list[float]](list)
    for number in range(args.keys):
        rng = np.random.default_rng(number)
        key = Defence("none").key(embedder, rng.bytes(32))
        marker = Marker(pool, key, Defence("none"), 199)
        texts: Texts = np.stack([marker.write(rng) for _ in range(args.texts)])
        for name, attacker in attackers.items():
            versions = attacker(texts, marker.detector, pool, rng)
            for questions in range(1, QUESTIONS[-1] + 1):
                version: Vectors = next(versions)
                if questions in QUESTIONS:
                    gone[name, questions] += list(p_of(marker.detector, version) > LEVEL)
                    cosines[name, questions].append(float((version * texts).sum(axis=2).mean()))
        print(f"{number + 1} keys", flush=True)
    print(
        f"\n{len(pool.vectors)} sentences; {args.keys * args.texts} texts of 12 sentences. Removed, in percent; kept:\n"
    )
    print("| attacker | " + " | ".join(map(str, QUESTIONS)) + " |\n" + "| --- " * (1 + len(QUESTIONS)) + "|")
    for name in attackers:
        cells = []
        for questions in QUESTIONS:
            hits = gone[name, questions]
            low, high = wilson(sum(hits), len(hits))
            share = f"{100 * np.mean(hits):.0f} [{low:.0f}, {high:.0f}]"
            cells.append(f"{share}, {np.mean(cosines[name, questions]):.2f}")
        print(f"| {name} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
