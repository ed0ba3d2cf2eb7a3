"""What an attacker learns who collects texts of one key: removal and forgery against the number of texts.

    python benchmarks/attacker.py --human booksum.jsonl.gz --human c4.jsonl.gz --vectors vectors
    python benchmarks/attacker.py ... --real recipes/local/soft.toml work --set data.texts=50 --set ...

A simulation on embeddings of real sentences. A marked text is made as the generator would make it, except that the 64
candidates of a sentence are not sampled from a language model but drawn from the human sentences nearest in meaning to a
human text. With --real the numbers that decide are printed beside those of really generated texts, and nothing else: how far a
chosen sentence lies along its block's direction, in deviations of an ordinary one, and how far sentences spread in all.
Detection is the true one, without restructuring: of a forged text only the sentences have embeddings.

The attacker knows all but the secret. He centres and whitens the sentences that he collected by public text and averages:
"position": sentence n of all texts; "aligned": the texts shifted against each other first, by expectation maximisation over
where each begins. To forge he takes of 64 candidates for each sentence the one furthest along what he found. To remove he
has eight rewrites of each sentence, at a cosine of 0.85 to it, and takes the one furthest against it; one who knows nothing
takes any.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from alimark._util.arrays import Floats
from alimark.bench.vectors import KeptVectors
from alimark.calibration.human_text import read_texts
from alimark.detection.kernels.types import WHOLE
from alimark.detection.scoring import scoring
from alimark.detection.settings import DetectionSettings
from alimark.detection.units import Units
from alimark.embedding.directions import directions, mean
from alimark.embedding.loading import load_embedder
from alimark.keys.key import Key
from alimark.keys.projection import project, targets
from alimark.text.splitting import splitter

Ints = NDArray[np.int64]
Vectors = NDArray[np.float32]
SENTENCES, CANDIDATES, REWRITES, COSINE = 12, 64, 8, 0.85
RESTARTS, ROUNDS = 4, 15
DIMENSIONS = 128  # that the attacker looks at, where the key may use all: those in which sentences differ most
SETTINGS = DetectionSettings(restructure="none")


class Pool:
    """Human sentences, and for each human text those nearest to it in meaning."""

    def __init__(self, texts: Sequence[Sequence[str]], embedder: KeptVectors, near: int) -> None:
        sentences = list(dict.fromkeys(one for text in texts for one in text))
        place = {one: i for i, one in enumerate(sentences)}
        self.fingerprint = embedder.fingerprint
        self.vectors = embedder.embed(sentences)
        self.texts = [np.array([place[one] for one in text]) for text in texts]
        centres = np.stack([self.vectors[rows].mean(axis=0) for rows in self.texts])
        self.near = np.argsort(-(centres @ self.vectors.T), axis=1)[:, :near]

    @cached_property
    def spread(self) -> Floats:
        """How sentences differ within texts: the covariance that the attacker whitens by."""
        apart = np.concatenate([self.vectors[rows] - self.vectors[rows].mean(axis=0) for rows in self.texts])
        found: Floats = np.cov(apart.astype(np.float64).T)
        return found

    def candidates(self, rng: np.random.Generator, count: int = SENTENCES) -> Ints:
        """For each sentence of a text about something."""
        near = self.near[rng.integers(len(self.near))]
        drawn = np.stack([rng.choice(len(near), CANDIDATES, replace=False) for _ in range(count)])
        return np.asarray(near[drawn])


def marked(pool: Pool, key: Key, projections: Floats, start: int, rng: np.random.Generator) -> Ints:
    """The sentences that carry the blocks from `start` on."""
    chosen: list[int] = []
    for target, every in zip(targets(key, SENTENCES, start), pool.candidates(rng), strict=True):
        drawn = every[~np.isin(every, chosen)]
        worth = projections[drawn] @ target if key.soft else ((projections[drawn] >= 0) == (target > 0)).sum(axis=1)
        best = np.flatnonzero(worth == worth.max())
        chosen.append(int(drawn[rng.choice(best)]))
    return np.array(chosen)


def p_values(texts: Sequence[Vectors], key: Key, draws: int) -> Floats:
    """Of texts as embeddings of their sentences."""
    rule = scoring(key, SETTINGS)
    index = np.full((SENTENCES, 2, 4), -1, np.int64)
    index[:, 0, WHOLE] = np.arange(SENTENCES)
    units = Units([""] * SENTENCES, index)
    signals = [rule.signals(units, project(text, key)) for text in texts]
    length = rule.length(SENTENCES)
    blocks = np.concatenate([key.blocks(length)[None], key.null_blocks(0, draws, length)])
    jobs = np.arange(len(texts) * len(blocks))
    scores = rule.scores(signals, blocks, jobs // len(blocks), jobs % len(blocks)).reshape(len(texts), -1)
    found: Floats = (1 + (scores[:, 1:] >= scores[:, :1]).sum(axis=1)) / (draws + 1)
    return found


# The attacker


@dataclass(frozen=True)
class Whitened:
    """The space in which a sentence of ordinary text spreads alike in all directions."""

    centre: Floats
    matrix: Floats

    @classmethod
    def of(cls, pool: Pool, key: Key) -> Whitened:
        """Of a soft key the directions that it lives in are public."""
        basis = np.eye(len(pool.spread)) if key.span is None else directions(pool.fingerprint, key.span)
        inside = basis @ pool.spread @ basis.T
        inside += 0.05 * np.trace(inside) / len(inside) * np.eye(len(inside))
        values, vectors = np.linalg.eigh(inside)
        values, vectors = values[-DIMENSIONS:], vectors[:, -DIMENSIONS:]
        centre = mean(pool.fingerprint)
        own = np.zeros(pool.vectors.shape[1]) if centre is None else centre
        return cls(own, (vectors / np.sqrt(values)).T @ basis)

    def __call__(self, vectors: Vectors, text: Vectors | None = None) -> Floats:
        """Less the text's own mean, shrunk, as the detector has it."""
        rows = np.asarray(vectors, np.float64) - self.centre
        own = rows if text is None else np.asarray(text, np.float64) - self.centre
        found: Floats = (rows - own.sum(axis=0) / (len(own) + 5)) @ self.matrix.T
        return found


def by_position(texts: Floats) -> Floats:
    """What sentence n has in common over texts, (N, d): block n where all begin with the first."""
    found: Floats = texts.mean(axis=0)
    return found


def aligned(texts: Floats, offsets: int, rng: np.random.Generator) -> Floats:
    """The blocks, from a first one on, that explain the texts best if each begins with one of `offsets` of them."""
    best, blocks = -math.inf, np.zeros((offsets + SENTENCES - 1, texts.shape[2]))
    for _ in range(RESTARTS):
        score, found = _maximised(texts, offsets, int(rng.integers(len(texts))))
        if score > best:
            best, blocks = score, found
    return blocks


def _maximised(texts: Floats, offsets: int, seed: int) -> tuple[float, Floats]:
    """From one text, put in the middle, outwards."""
    size = offsets + SENTENCES - 1
    window = np.arange(offsets)[:, None] + np.arange(SENTENCES)
    blocks = np.zeros((size, texts.shape[2]))
    middle = (offsets - 1) // 2
    blocks[middle : middle + SENTENCES] = texts[seed] / 2
    score = -math.inf
    for _ in range(ROUNDS):
        worth = texts @ blocks.T - (blocks**2).sum(axis=1) / 2  # (texts, sentences, blocks)
        each = worth[:, np.arange(SENTENCES), window].sum(axis=2)  # (texts, offsets)
        top = each.max(axis=1, keepdims=True)
        share = np.exp(each - top)
        score = float((top[:, 0] + np.log(share.sum(axis=1))).sum())
        share /= share.sum(axis=1, keepdims=True)
        total, weight = np.zeros_like(blocks), np.zeros(size)
        for j in range(SENTENCES):
            total[j : j + offsets] += share.T @ texts[:, j]
            weight[j : j + offsets] += share.sum(axis=0)
        blocks = total / (weight + 8)[:, None]  # a block that few carry is known badly: shrunk
    return score, blocks


def window_of(blocks: Floats, text: Floats | None) -> Floats:
    """The stretch of blocks that a text carries; without a text the one that is known best."""
    starts = range(len(blocks) - SENTENCES + 1)
    if text is None:
        start = max(starts, key=lambda s: float(np.linalg.norm(blocks[s : s + SENTENCES], axis=1).sum()))
    else:
        start = max(starts, key=lambda s: float((blocks[s : s + SENTENCES] * text).sum()))
    return blocks[start : start + SENTENCES]


def rewrites(vectors: Vectors, pool: Pool, rng: np.random.Generator) -> Vectors:
    """Of each sentence several that lie near it, each moved towards another real sentence, (N, rewrites, d)."""
    others = pool.vectors[pool.candidates(rng, len(vectors))[:, :REWRITES]].astype(np.float64)
    own = vectors[:, None].astype(np.float64)
    aside = others - (others * own).sum(axis=2, keepdims=True) * own
    aside /= np.linalg.norm(aside, axis=2, keepdims=True)
    return np.asarray(COSINE * own + math.sqrt(1 - COSINE**2) * aside, np.float32)


def forged(pool: Pool, blocks: Floats, white: Whitened, rng: np.random.Generator) -> Vectors:
    drawn = pool.candidates(rng)
    everything = pool.vectors[drawn.ravel()]
    seen = white(everything).reshape(*drawn.shape, -1)
    best = np.einsum("ncd,nd->nc", seen, window_of(blocks, None)).argmax(axis=1)
    return np.asarray(pool.vectors[drawn[np.arange(SENTENCES), best]])


def removed(vectors: Vectors, pool: Pool, blocks: Floats | None, white: Whitened, rng: np.random.Generator) -> Vectors:
    some = rewrites(vectors, pool, rng)
    if blocks is None:
        return np.asarray(some[np.arange(SENTENCES), rng.integers(REWRITES, size=SENTENCES)])
    against = window_of(blocks, white(vectors))
    seen = white(some.reshape(-1, some.shape[2]), vectors).reshape(*some.shape[:2], -1)
    return np.asarray(some[np.arange(SENTENCES), np.einsum("nrd,nd->nr", seen, against).argmin(axis=1)])


# The experiment


def attacks(
    pool: Pool, key: Key, args: argparse.Namespace, rng: np.random.Generator
) -> Iterator[tuple[str, int, Floats]]:
    """What was tried, with how many texts, and the p-values of the result."""
    projections = project(pool.vectors, key)
    white = Whitened.of(pool, key)

    def a_text() -> Vectors:
        return np.asarray(pool.vectors[marked(pool, key, projections, int(rng.integers(key.offsets)), rng)])

    collected = [a_text() for _ in range(max(args.texts))]
    seen = np.stack([white(text) for text in collected])
    fresh = [a_text() for _ in range(args.tries)]
    yield "marked", 0, p_values(fresh, key, args.draws)
    yield "removed", 0, p_values([removed(text, pool, None, white, rng) for text in fresh], key, args.draws)
    for count in args.texts:
        ways = {"position": by_position(seen[:count])}
        if key.offsets > 1:
            ways["aligned"] = aligned(seen[:count], key.offsets, rng)
        for way, blocks in ways.items():
            made = [forged(pool, blocks, white, rng) for _ in range(args.tries)]
            yield f"forged, {way}", count, p_values(made, key, args.draws)
            made = [removed(text, pool, blocks, white, rng) for text in fresh]
            yield f"removed, {way}", count, p_values(made, key, args.draws)


def told(texts: Sequence[Vectors], keys: Sequence[Key], pool: Pool) -> str:
    """How far sentences lie along the blocks of their keys, all texts beginning with the first, and how far they spread."""
    shifts: list[float] = []
    bits: list[float] = []
    lengths: list[float] = []
    for text, key in zip(texts, keys, strict=True):
        white = Whitened.of(pool, key)
        seen = white(text)
        ordinary = white(pool.vectors[pool.texts[len(shifts) % len(pool.texts)]])
        along = targets(key, len(text)) @ key.vectors(text.shape[1]) @ np.linalg.pinv(white.matrix)
        along /= np.linalg.norm(along, axis=1, keepdims=True)
        shifts.append((seen * along).sum(axis=1).mean() / (ordinary @ along.T).std())
        bits.append(((project(text, key) >= 0) == (targets(key, len(text)) > 0)).mean())
        lengths.append((seen**2).sum(axis=1).mean())
    return f"shift {np.mean(shifts):.2f}, spread {np.sqrt(np.mean(lengths)):.1f}, bits that agree {np.mean(bits):.3f}"


def beside_real(pool: Pool, args: argparse.Namespace) -> None:
    from alimark.bench.models import key_for, secret
    from alimark.bench.recipe import load
    from alimark.bench.run import Run
    from alimark.bench.workspace import Workspace

    run = Run(load(args.real[0], args.overrides), Workspace(args.real[1], part=99))
    for watermark in run.recipe.watermark:
        cells = [cell for cell in run.cells if cell.watermark == watermark]
        jobs = [(cell, item) for cell in cells for item in cell.items]
        made = run.workspace.records("generate", [run.generate_job(*job).id for job in jobs])
        keys = [key_for(watermark, secret(cell.recipe.seed, item.prompt), run.models) for cell, item in jobs]
        units = [made[run.generate_job(*job).id]["sentences"] for job in jobs]
        with run.workspace.kept_vectors(run.models.embedder(watermark.key["embedder"])) as kept:
            texts = [kept.embed(one) for one in units]
        print(f"{watermark.label}, {len(texts)} really generated: {told(texts, keys, pool)}")
        rng = np.random.default_rng(0)
        rows = [marked(pool, key, project(pool.vectors, key), 0, rng) for key in keys]
        print(f"{watermark.label}, {len(texts)} simulated: {told([pool.vectors[own] for own in rows], keys, pool)}")


def sentences_of(paths: Sequence[Path]) -> list[list[str]]:
    cutter = splitter("nupunkt")
    texts = dict.fromkeys(text for path in paths for text in read_texts(path))
    return [units for text in texts if len(units := cutter.units(text)[:40]) >= SENTENCES]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--human", type=Path, action="append", required=True, help="JSONL of human texts")
    parser.add_argument("--vectors", type=Path, required=True, help="a folder that keeps the embeddings")
    parser.add_argument("--embedder", default="all-MiniLM-L6-v2")
    parser.add_argument(
        "--near", type=int, default=400, help="sentences that the candidates of one text are drawn from"
    )
    parser.add_argument("--texts", type=int, nargs="+", default=[10, 30, 100, 300, 1000])
    parser.add_argument("--offsets", type=int, nargs="+", default=[1, 16, 256])
    parser.add_argument("--decisions", nargs="+", default=["hard", "soft"])
    parser.add_argument("--keys", type=int, default=6)
    parser.add_argument("--tries", type=int, default=40, help="texts forged and texts attacked under each key")
    parser.add_argument("--draws", type=int, default=199)
    parser.add_argument("--real", type=Path, nargs=2, metavar=("RECIPE", "WORKSPACE"), help="compare with its texts")
    parser.add_argument("--set", action="append", default=[], dest="overrides", metavar="PATH=VALUE")
    args = parser.parse_args()
    args.vectors.mkdir(exist_ok=True)
    embedder = load_embedder(args.embedder)
    with KeptVectors(embedder, args.vectors) as kept:
        pool = Pool(sentences_of(args.human), kept, args.near)
    if args.real:
        beside_real(pool, args)
        return
    print(f"{len(pool.vectors)} sentences of {len(pool.texts)} texts; {args.keys} keys, {args.tries} texts each\n")
    columns = "".join(f" {count} |" for count in args.texts)
    print(
        f"| decision | offsets | found at p <= 0.01 of | 0 |{columns}\n| --- | --- | --- | --- |"
        + " --- |" * len(args.texts)
    )
    for decision in args.decisions:
        for offsets in args.offsets:
            found: dict[str, dict[int, list[float]]] = {}
            for number in range(args.keys):
                rng = np.random.default_rng(number)
                key = Key.generate(decision=decision, embedder=embedder, offsets=offsets, secret=rng.bytes(32))
                for what, count, p in attacks(pool, key, args, rng):
                    found.setdefault(what, {}).setdefault(count, []).extend(p <= 0.01)
            for what, by_count in found.items():
                cells = [f"{100 * np.mean(by_count[n]):.0f}" if n in by_count else "" for n in (0, *args.texts)]
                print(f"| {decision} | {offsets} | {what} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
