"""What an attacker learns who collects texts of one key: forgery and removal against the number of texts, by defence.

    python benchmarks/attacker.py --human booksum.jsonl.gz --human c4.jsonl.gz --pairs gpt35.jsonl.gz --vectors vectors
    python benchmarks/attacker.py ... --real recipes/local/soft.toml work --set data.texts=50 --set ...

This is a simulation on embeddings of real sentences. A marked text is made as the generator would make it, except that the 64
candidates of a sentence are not sampled from a language model but drawn from the human sentences nearest in meaning to a
human text. With --real the numbers that decide are printed beside those of really generated texts, and nothing else: how far a
chosen sentence lies along its block's direction, in deviations of an ordinary one, and how far sentences spread in all.
Detection is the true one, without restructuring, because forged texts exist only as embeddings of their sentences.

Defences. Every text has a secret state, one of S:
- "none": S = 1, all texts carry the same blocks.
- "starts S": a text begins with one of the first S runs of the key. The detector adds up the likelihoods of all starts.
- "sub-keys S": a text is marked with one of S keys that are derived from one secret. The detector tries all keys. The
  sub-keys have the same vectors here; given the vectors, the blocks of different keys are independent.
Where the detector tries S sequences of blocks, the p-value of the best is multiplied by S. P-values too small for the
number of random keys come from an exponential tail that is fitted to their scores.

The attacker knows all but the secret: the directions, the length of runs and the defence. He centres and whitens the sentences
that he collected by public text, averages the sentences of each run, and finds blocks and the states of texts by expectation
maximisation. To forge he takes, of 64 candidates for each sentence, the one furthest along the blocks of a collected text: of
the 16 texts whose blocks he knows best, the one whose blocks fit the candidates best. To remove a mark he finds the state of
the marked text, adds the text itself to what he knows of its blocks, and takes of several rewrites of each sentence the one
furthest against its block. The column of 0 texts is an attacker who has only the marked text itself.

With --told the attacker is told which state each collected text is in, which bounds every better search for the states.

Power: the share found of texts whose sentences were moved by the differences between real sentences and their paraphrases
(--pairs), and in which some sentences were also replaced by other sentences on the same subject.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from alimark.core._util.arrays import Floats, Packed
from alimark.core._util.jsonl import read_jsonl
from alimark.core.detection.scoring import score_table, scoring
from alimark.core.detection.settings import DetectionSettings
from alimark.core.detection.units import Units
from alimark.core.embedding.base import Embedder
from alimark.core.embedding.loading import load_embedder
from alimark.core.frozen.directions import directions, mean
from alimark.core.frozen.kernels.types import WHOLE
from alimark.core.frozen.text.splitting import splitter
from alimark.core.keys.key import Key
from alimark.core.keys.projection import project, targets
from alimark.core.text.human_text import read_texts
from alimark.errors import RecordError
from alimark.lab.bench.workspace import KeptVectors
from paraphrase_pairs import aligned

Ints = NDArray[np.int64]
Vectors = NDArray[np.float32]
SENTENCES, CANDIDATES = 12, 64
COSINE = 0.85
"""The cosine of a sentence to its rewrite when a mark is removed."""
RESTARTS, ROUNDS = 3, 20
DIMENSIONS = 128  # that the attacker looks at, where the key may use all: those in which sentences differ most
IMITATED = 16
"""The number of collected texts, those whose blocks are known best, that a forger chooses from for each subject."""
PRIOR = 8.0
"""A block that few sentences carry is shrunk, as if so many more sentences with a projection of 0 carried it."""
TAIL_DRAWS = 999
"""The number of random keys behind a p-value where the detector tries several sequences of blocks."""
SETTINGS = DetectionSettings(restructure="none")


class Pool:
    """Human sentences, and for each human text those nearest to it in meaning."""

    def __init__(self, texts: Sequence[Sequence[str]], embedder: KeptVectors, near: int) -> None:
        sentences = list(dict.fromkeys(sentence for text in texts for sentence in text))
        place = {sentence: i for i, sentence in enumerate(sentences)}
        self.fingerprint = embedder.fingerprint
        self.vectors = embedder.embed(sentences)
        self.texts = [np.array([place[sentence] for sentence in text]) for text in texts]
        centres = np.stack([self.vectors[rows].mean(axis=0) for rows in self.texts])
        self.near = np.argsort(-(centres @ self.vectors.T), axis=1)[:, :near]

    @cached_property
    def spread(self) -> Floats:
        """How sentences differ within texts: the covariance that the attacker whitens by."""
        apart = np.concatenate([self.vectors[rows] - self.vectors[rows].mean(axis=0) for rows in self.texts])
        covariance: Floats = np.cov(apart.astype(np.float64).T)
        return covariance

    def candidates(self, rng: np.random.Generator, count: int = SENTENCES) -> Ints:
        """Candidates for each sentence of a text about a random subject, (sentences, candidates)."""
        near = self.near[rng.integers(len(self.near))]
        drawn = np.stack([rng.choice(len(near), CANDIDATES, replace=False) for _ in range(count)])
        return np.asarray(near[drawn])


# Defences, marking and detection


class Defence(NamedTuple):
    """One of the defences of the module's docstring, with the number S of its secret states."""

    kind: str
    states: int = 1

    @classmethod
    def parse(cls, text: str) -> Defence:
        kind, _, states = text.partition(":")
        return cls(kind, int(states or 1))

    @property
    def label(self) -> str:
        return self.kind if self.kind == "none" else f"{self.kind} {self.states}"

    def key(self, embedder: Embedder, secret: bytes, **fields: object) -> Key:
        offsets = self.states if self.kind == "starts" else 1
        return Key.generate(embedder=embedder, offsets=offsets, secret=secret, **fields)  # type: ignore[arg-type]

    def sequences(self, key: Key, length: int) -> Packed:
        """The sequences of blocks that the detector tries, one per row."""
        if self.kind == "sub-keys":
            keys = (key.like(secret=key.stream("sub-key", 32, number)) for number in range(self.states))
            return np.stack([sub_key.blocks(length) for sub_key in keys])
        return key.blocks(length)[None]

    def routes(self, runs: int) -> Ints:
        """The attacker's model: the numbers of the blocks that each state's runs carry, (states, runs)."""
        step = 1 if self.kind == "starts" else runs
        return step * np.arange(self.states)[:, None] + np.arange(runs)


def run_size(key: Key) -> int:
    [size] = key.run
    return size


class Detector:
    """Detects texts of one key under a defence."""

    def __init__(self, key: Key, defence: Defence, draws: int) -> None:
        self.key, self.defence = key, defence
        self.draws = draws if defence.kind in ("none", "starts") else TAIL_DRAWS
        self.rule = scoring(key, SETTINGS)
        self._blocks: dict[int, tuple[Packed, Packed]] = {}  # of the key and of random keys, by sentences of a text

    def blocks(self, sentences: int) -> tuple[Packed, Packed]:
        if sentences not in self._blocks:
            length = self.rule.length(sentences)
            self._blocks[sentences] = (
                self.defence.sequences(self.key, length),
                self.key.null_blocks(0, self.draws, length),
            )
        return self._blocks[sentences]

    def scores(self, texts: Sequence[Vectors]) -> tuple[Floats, Floats]:
        """The scores of texts of the same number of sentences, as embeddings of these, and those under random keys."""
        sentences = len(texts[0])
        index = np.full((sentences, 2, 4), -1, np.int64)
        index[:, 0, WHOLE] = np.arange(sentences)
        units = Units([""] * sentences, index)
        signals = [self.rule.signals(units, project(text, self.key)) for text in texts]
        blocks, null_blocks = self.blocks(sentences)
        return score_table(self.rule, signals, blocks).max(axis=1), score_table(self.rule, signals, null_blocks)

    def p_values(self, texts: Sequence[Vectors]) -> Floats:
        """The p-values of such texts."""
        blocks, _ = self.blocks(len(texts[0]))
        best, null = self.scores(texts)
        p = (1 + (null >= best[:, None]).sum(axis=1)) / (self.draws + 1)
        if len(blocks) > 1:
            p = np.array([min(*pair) for pair in zip(p, map(tail, best, null), strict=True)])
        p_values: Floats = np.minimum(1.0, len(blocks) * p)
        return p_values


def tail(score: float, null: Floats) -> float:
    """The p-value of a score by an exponential tail fitted to the 50 highest scores of random keys; 1 below them."""
    ordered = np.sort(null)
    threshold, highest = ordered[-51], ordered[-50:]
    scale = float((highest - threshold).mean())
    return 1.0 if score <= threshold else 50 / len(null) * math.exp(-(score - threshold) / scale)


def p_values(texts: Sequence[Vectors], key: Key, draws: int) -> Floats:
    """The p-values of texts under a key without a defence."""
    return Detector(key, Defence("none"), draws).p_values(texts)


class Marker:
    """Writes texts with one key under a defence, and detects them."""

    def __init__(self, pool: Pool, key: Key, defence: Defence, draws: int, sentences: int = SENTENCES) -> None:
        self.pool, self.key, self.defence, self.sentences = pool, key, defence, sentences
        self.projections = project(pool.vectors, key)
        self.detector = Detector(key, defence, draws)
        self.p_values = self.detector.p_values

    def write(self, rng: np.random.Generator) -> Vectors:
        """The embeddings of a new marked text in a random state."""
        return self.write_in(int(rng.integers(self.defence.states)), rng)

    def write_in(self, state: int, rng: np.random.Generator) -> Vectors:
        """The embeddings of a new marked text in a given state."""
        sequences, _ = self.detector.blocks(self.sentences)
        if self.defence.kind == "starts":
            start = int(self.key.starts[state])
            blocks = sequences[0, start : start + self.sentences]
        else:
            blocks = sequences[state, : self.sentences]
        return np.asarray(self.pool.vectors[marked(self.pool, self.key, self.projections, blocks, rng)])


def marked(pool: Pool, key: Key, projections: Floats, blocks: Packed, rng: np.random.Generator) -> Ints:
    """The sentences of a new text that carries these blocks."""
    shifts = np.arange(key.block_size, dtype=np.uint64)[::-1]
    signs = (blocks[:, None] >> shifts & np.uint64(1)).astype(np.float64) * 2 - 1
    chosen: list[int] = []
    for target, every in zip(signs, pool.candidates(rng, len(blocks)), strict=True):
        drawn = every[~np.isin(every, chosen)]
        worth = projections[drawn] @ target if key.soft else ((projections[drawn] >= 0) == (target > 0)).sum(axis=1)
        best = np.flatnonzero(worth == worth.max())
        chosen.append(int(drawn[rng.choice(best)]))
    return np.array(chosen)


# The attacker


@dataclass(frozen=True)
class Whitened:
    """The space in which a sentence of ordinary text spreads alike in all directions."""

    centre: Floats
    matrix: Floats

    @classmethod
    def of(cls, pool: Pool, key: Key) -> Whitened:
        """Of a soft key the directions that its vectors are taken from are public."""
        table = key.derivation.table
        if table is not None:
            basis, centre = table.rows[: key.span], table.mean
        else:
            basis = np.eye(len(pool.spread)) if key.span is None else directions(pool.fingerprint, key.span)
            corpus_mean = mean(pool.fingerprint)
            centre = np.zeros(pool.vectors.shape[1]) if corpus_mean is None else corpus_mean
        inside = basis @ pool.spread @ basis.T
        inside += 0.05 * np.trace(inside) / len(inside) * np.eye(len(inside))
        values, vectors = np.linalg.eigh(inside)
        values, vectors = values[-DIMENSIONS:], vectors[:, -DIMENSIONS:]
        return cls(centre, (vectors / np.sqrt(values)).T @ basis)

    def __call__(self, vectors: Vectors, text: Vectors | None = None) -> Floats:
        """The whitened vectors, less the shrunk mean of the text they belong to."""
        rows = np.asarray(vectors, np.float64) - self.centre
        whole = rows if text is None else np.asarray(text, np.float64) - self.centre
        whitened: Floats = (rows - whole.sum(axis=0) / (len(whole) + 5)) @ self.matrix.T
        return whitened


@dataclass(frozen=True)
class Learned:
    """What the attacker knows of the blocks: the sums of the sentences that carry each, and how many they are."""

    routes: Ints
    total: Floats
    weight: Floats
    size: int
    """Sentences of a run."""

    @property
    def blocks(self) -> Floats:
        blocks: Floats = self.total / (self.weight + PRIOR)[:, None]
        return blocks

    def likelihoods(self, segments: Floats) -> Floats:
        """The log-likelihood ratio of each state against no mark, (segments, states), from sums of runs."""
        blocks = self.blocks
        logs = np.zeros((len(segments), len(self.routes)))
        for place in range(self.routes.shape[1]):
            carried = blocks[self.routes[:, place]]
            logs += segments[:, place] @ carried.T - self.size / 2 * (carried**2).sum(axis=1)
        return logs

    def updated(self, runs: Floats, shares: Floats) -> Learned:
        total, weight = np.zeros_like(self.total), np.zeros_like(self.weight)
        for place in range(self.routes.shape[1]):
            np.add.at(total, self.routes[:, place], shares.T @ runs[:, place])
            np.add.at(weight, self.routes[:, place], self.size * shares.sum(axis=0))
        return Learned(self.routes, total, weight, self.size)

    def of_text(self, runs: Floats, *, collected: bool) -> Floats:
        """The blocks that a text carries in its likeliest state, from the sums of its runs.

        A text that was not collected adds its own sentences; if it looks like no known state, they are all that counts.
        """
        segments = runs.reshape(-1, self.routes.shape[1], runs.shape[1])
        logs = self.likelihoods(segments)
        numbers = self.routes[logs.argmax(axis=1)].ravel()
        total, weight = self.total[numbers], self.weight[numbers]
        if not collected:
            known = np.repeat(logs.max(axis=1) > 0, self.routes.shape[1])
            total, weight = total * known[:, None] + runs, weight * known + self.size
        blocks: Floats = total / (weight + PRIOR)[:, None]
        return blocks


def nothing_learned(runs: int, dimensions: int, size: int) -> Learned:
    return Learned(np.arange(runs)[None], np.zeros((runs, dimensions)), np.zeros(runs), size)


def learn(runs: Floats, defence: Defence, size: int, rng: np.random.Generator) -> Learned:
    """The likeliest blocks after expectation maximisation from several beginnings; `runs` are (texts, runs, d)."""
    routes = defence.routes(runs.shape[1])
    segments = runs.reshape(-1, routes.shape[1], runs.shape[2])
    results = [_maximised(segments, routes, defence.kind == "starts", size, rng) for _ in range(RESTARTS)]
    return max(results, key=lambda result: result[0])[1]


def told_states(runs: Floats, states: Ints, defence: Defence, size: int) -> Learned:
    """What an attacker knows who is told the state of each collected text: the best that any search for states can reach."""
    routes = Defence("sub-keys" if defence.kind == "orders" else defence.kind, defence.states).routes(runs.shape[1])
    empty = Learned(routes, np.zeros((routes.max() + 1, runs.shape[2])), np.zeros(routes.max() + 1), size)
    return empty.updated(runs, np.eye(len(routes))[states])


def _maximised(
    segments: Floats, routes: Ints, overlapping: bool, size: int, rng: np.random.Generator
) -> tuple[float, Learned]:
    """Begins with a text in the middle of the starts, or with a random segment for each state."""
    used = routes if overlapping else routes[: len(segments)]
    state = Learned(used, np.zeros((routes.max() + 1, segments.shape[2])), np.zeros(routes.max() + 1), size)
    if overlapping:
        seeds, states = rng.integers(len(segments), size=1), np.array([len(routes) // 2])
    else:
        seeds, states = rng.permutation(len(segments))[: len(used)], np.arange(len(used))
    for seed, number in zip(seeds, states, strict=True):
        state.total[used[number]] = segments[seed]
        state.weight[used[number]] = size
    score = -math.inf
    for _ in range(ROUNDS if len(routes) > 1 else 1):
        logs = state.likelihoods(segments)
        top = logs.max(axis=1, keepdims=True)
        shares = np.exp(logs - top)
        whole = shares.sum(axis=1, keepdims=True)
        score = float((top + np.log(whole)).sum())
        state = state.updated(segments, shares / whole)
    return score, state


def run_sums(texts: Sequence[Floats], size: int) -> Floats:
    """The sums over the sentences of each run, (texts, runs, d)."""
    stacked = np.stack(texts)
    sums: Floats = stacked.reshape(len(stacked), -1, size, stacked.shape[2]).sum(axis=2)
    return sums


def best_known(learned: Learned, runs: Floats) -> Floats:
    """The blocks of the collected texts whose blocks are known best, (texts, sentences, d)."""
    estimates = np.stack([learned.of_text(text, collected=True) for text in runs[:500]])
    order = np.argsort(-np.linalg.norm(estimates, axis=2).sum(axis=1))[:IMITATED]
    return np.repeat(estimates[order], learned.size, axis=1)


def rewrites(vectors: Vectors, pool: Pool, rng: np.random.Generator, count: int = 8, cosine: float = COSINE) -> Vectors:
    """Several rewrites of each sentence, each moved towards another real sentence, (N, count, d)."""
    others = pool.vectors[pool.candidates(rng, len(vectors))[:, :count]].astype(np.float64)
    sentences = vectors[:, None].astype(np.float64)
    aside = others - (others * sentences).sum(axis=2, keepdims=True) * sentences
    aside /= np.linalg.norm(aside, axis=2, keepdims=True)
    return np.asarray(cosine * sentences + math.sqrt(1 - cosine**2) * aside, np.float32)


def forged(pool: Pool, known: Floats, white: Whitened, rng: np.random.Generator) -> Vectors:
    """A text on another subject: each sentence the candidate furthest along its block, for the state that fits best."""
    drawn = pool.candidates(rng, known.shape[1])
    seen = white(pool.vectors[drawn.ravel()]).reshape(*drawn.shape, -1)
    along = np.einsum("ncd,snd->snc", seen, known, optimize=True)
    best = along[along.max(axis=2).sum(axis=1).argmax()].argmax(axis=1)
    return np.asarray(pool.vectors[drawn[np.arange(len(drawn)), best]])


def removed(vectors: Vectors, some: Vectors, learned: Learned, white: Whitened) -> Vectors:
    """A rewritten text: of `some` rewrites of each sentence the one furthest against its block."""
    [runs] = run_sums([white(vectors)], learned.size)
    against = np.repeat(learned.of_text(runs, collected=False), learned.size, axis=0)
    seen = white(some.reshape(-1, some.shape[2]), vectors).reshape(*some.shape[:2], -1)
    return np.asarray(some[np.arange(len(some)), np.einsum("nrd,nd->nr", seen, against).argmin(axis=1)])


# The experiment

ANY, UNMARKED, WRITTEN = "any rewrite", "not marked", "as written"


def attacks(marker: Marker, args: argparse.Namespace, rng: np.random.Generator) -> Iterator[tuple[str, int, Floats]]:
    """Each attack, the number of texts collected, and the p-values of the results."""
    pool, size = marker.pool, run_size(marker.key)
    white = Whitened.of(pool, marker.key)
    states = [int(rng.integers(marker.defence.states)) for _ in range(max(args.texts))] if args.told else None
    drawn = (
        (marker.write_in(state, rng) for state in states)
        if states
        else (marker.write(rng) for _ in range(max(args.texts)))
    )
    collected = run_sums([white(text) for text in drawn], size)
    fresh = [marker.write(rng) for _ in range(args.tries)]
    some = [rewrites(text, pool, rng, args.rewrites, args.cosine) for text in fresh]
    yield ANY, 0, marker.p_values([sentences[:, 0] for sentences in some])
    nothing = nothing_learned(collected.shape[1], collected.shape[2], size)
    for count in (0, *args.texts):
        learned = nothing
        if count and states:
            learned = told_states(collected[:count], np.array(states[:count]), marker.defence, size)
        elif count:
            learned = learn(collected[:count], marker.defence, size, rng)
        if count:
            known = best_known(learned, collected[:count])
            yield "forged", count, marker.p_values([forged(pool, known, white, rng) for _ in range(args.tries)])
        pairs = zip(fresh, some, strict=True)
        yield "removed", count, marker.p_values([removed(text, choice, learned, white) for text, choice in pairs])


class Paraphraser:
    """Moves embeddings by the differences of real sentences and their paraphrases, and replaces some sentences."""

    def __init__(self, paths: Sequence[Path], embedder: KeptVectors, texts: int) -> None:
        cutter = splitter("nupunkt")
        differences: list[Floats] = []
        cosines: list[Floats] = []
        for path in paths:
            for _, record in list(read_jsonl(path))[:texts]:
                if isinstance(record, RecordError):
                    raise record
                pair = [cutter.units(record[name])[:40] for name in ("original", "paraphrase")]
                if min(map(len, pair)) < 2:
                    continue
                original, paraphrase = (embedder.embed(part).astype(np.float64) for part in pair)
                links = aligned(original, paraphrase)
                differences.append(paraphrase[links[:, 1]] - original[links[:, 0]])
                cosines.append((paraphrase[links[:, 1]] * original[links[:, 0]]).sum(axis=1))
        self.differences = np.concatenate(differences)
        self.cosine = float(np.concatenate(cosines).mean())

    def __call__(self, vectors: Vectors, pool: Pool, replaced: float, rng: np.random.Generator) -> Vectors:
        """A paraphrase of a text, of whose sentences a share is replaced by others on one subject."""
        moved = vectors + self.differences[rng.integers(len(self.differences), size=len(vectors))]
        lost = rng.permutation(len(vectors))[: round(replaced * len(vectors))]
        moved[lost] = pool.vectors[pool.candidates(rng, len(lost))[:, 0]] if len(lost) else moved[lost]
        return np.asarray(moved / np.linalg.norm(moved, axis=1, keepdims=True), np.float32)


def unmarked(pool: Pool, sentences: int, rng: np.random.Generator) -> Vectors:
    """The first sentences of a random human text."""
    texts = [rows for rows in pool.texts if len(rows) >= sentences]
    return np.asarray(pool.vectors[texts[rng.integers(len(texts))][:sentences]])


def shares_found(
    marker: Marker, paraphraser: Paraphraser, args: argparse.Namespace, rng: np.random.Generator
) -> Iterator[tuple[str, Floats]]:
    """The p-values of texts as written, and after paraphrasing with some sentences replaced, deleted or inserted."""
    texts = [marker.write(rng) for _ in range(args.power_texts)]
    yield UNMARKED, marker.p_values([unmarked(marker.pool, marker.sentences, rng) for _ in range(args.power_texts)])
    yield WRITTEN, marker.p_values(texts)
    for share in args.replaced:
        changed = [paraphraser(text, marker.pool, share, rng) for text in texts]
        yield f"paraphrased, {100 * share:.0f}% replaced", marker.p_values(changed)
    for share in args.deleted:
        kept = marker.sentences - round(share * marker.sentences)
        shorter = [paraphraser(text, marker.pool, 0, rng)[np.sort(rng.permutation(len(text))[:kept])] for text in texts]
        yield f"paraphrased, {100 * share:.0f}% deleted", marker.p_values(shorter)
    for share in args.inserted:
        yield (
            f"paraphrased, {100 * share:.0f}% inserted",
            marker.p_values(
                [with_inserted(paraphraser(text, marker.pool, 0, rng), marker.pool, share, rng) for text in texts]
            ),
        )


def with_inserted(vectors: Vectors, pool: Pool, share: float, rng: np.random.Generator) -> Vectors:
    """A text with sentences on one other subject at random places, as a share of its own."""
    count = round(share * len(vectors))
    foreign = pool.vectors[pool.candidates(rng, count)[:, 0]]
    return np.asarray(np.insert(vectors, rng.integers(0, len(vectors) + 1, count), foreign, axis=0))


def print_table(title: str, columns: Sequence[str], rows: dict[str, dict[str, list[float]]]) -> None:
    print(f"\n{title}\n\n| defence | " + " | ".join(columns) + " |\n" + "| --- " * (1 + len(columns)) + "|")
    for label, cells in rows.items():
        values = (f"{100 * np.mean(cells[name]):.0f}" if name in cells else "" for name in columns)
        print(f"| {label} | " + " | ".join(values) + " |", flush=True)


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
    from alimark.lab.bench.models import key_for, secret
    from alimark.lab.bench.recipe_files import load
    from alimark.lab.bench.run import Run
    from alimark.lab.bench.workspace import Workspace

    run = Run(load(args.real[0], args.overrides), Workspace(args.real[1]))
    for watermark in run.recipe.watermark:
        cells = [cell for cell in run.cells if cell.watermark == watermark]
        jobs = [(cell, item) for cell in cells for item in cell.items]
        records = run.workspace.records("generate", [run.generate_job(*job).id for job in jobs])
        keys = [key_for(watermark, secret(cell.recipe.seed, item.prompt), run.models) for cell, item in jobs]
        units = [records[run.generate_job(*job).id]["sentences"] for job in jobs]
        with run.workspace.kept_vectors(run.models.embedder(watermark.key["embedder"])) as kept:
            texts = [kept.embed(sentences) for sentences in units]
        print(f"{watermark.label}, {len(texts)} really generated: {told(texts, keys, pool)}")
        rng = np.random.default_rng(0)
        rows = [marked(pool, key, project(pool.vectors, key), key.blocks(SENTENCES), rng) for key in keys]
        print(f"{watermark.label}, {len(texts)} simulated: {told([pool.vectors[row] for row in rows], keys, pool)}")


def sentences_of(paths: Sequence[Path]) -> list[list[str]]:
    cutter = splitter("nupunkt")
    texts = dict.fromkeys(text for path in paths for text in read_texts(path))
    return [units for text in texts if len(units := cutter.units(text)[:40]) >= SENTENCES]


DEFENCES = [
    "none", *(f"starts:{count}" for count in (4, 16, 64, 256)),
    *(f"sub-keys:{count}" for count in (4, 16, 64, 256, 1024)),
]  # fmt: skip


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--human", type=Path, action="append", required=True, help="JSONL of human texts")
    parser.add_argument("--pairs", type=Path, action="append", default=[], help="JSONL of texts and paraphrases")
    parser.add_argument("--vectors", type=Path, required=True, help="a folder that keeps the embeddings")
    parser.add_argument("--embedder", default="all-MiniLM-L6-v2")
    parser.add_argument("--near", type=int, default=400, help="sentences that candidates of a text are drawn from")
    parser.add_argument("--decision", default="soft", choices=["soft", "hard"])
    parser.add_argument("--run", type=int, help="sentences of a block, instead of what new keys have")
    parser.add_argument("--defences", nargs="+", default=DEFENCES, metavar="KIND:STATES")
    parser.add_argument("--sentences", type=int, default=SENTENCES, help="sentences of each text, at most 40")
    parser.add_argument("--texts", type=int, nargs="*", default=[1, 3, 10, 30, 100, 300, 1000, 3000])
    parser.add_argument("--keys", type=int, default=3)
    parser.add_argument("--told", action="store_true", help="the attacker is told the state of each collected text")
    parser.add_argument("--tries", type=int, default=20, help="texts forged and texts attacked under each key")
    parser.add_argument("--rewrites", type=int, default=8, help="rewrites of a sentence that a remover chooses from")
    parser.add_argument("--cosine", type=float, default=COSINE, help="the cosine of a sentence to its rewrites")
    parser.add_argument("--power-texts", type=int, default=50, help="texts paraphrased under each key")
    parser.add_argument("--pair-texts", type=int, default=150, help="texts of each file of paraphrases")
    parser.add_argument("--replaced", type=float, nargs="*", default=[0.25, 0.5], help="shares of sentences")
    parser.add_argument("--deleted", type=float, nargs="*", default=[], help="shares of sentences")
    parser.add_argument("--inserted", type=float, nargs="*", default=[], help="shares of sentences")
    parser.add_argument("--draws", type=int, default=199, help="random keys where one sequence is tried")
    parser.add_argument("--real", type=Path, nargs=2, metavar=("RECIPE", "WORKSPACE"), help="compare with its texts")
    parser.add_argument("--set", action="append", default=[], dest="overrides", metavar="PATH=VALUE")
    return parser.parse_args()


def main() -> None:
    args = arguments()
    args.vectors.mkdir(exist_ok=True)
    embedder = load_embedder(args.embedder)
    with KeptVectors(embedder, args.vectors) as kept:
        pool = Pool(sentences_of(args.human), kept, args.near)
        paraphraser = Paraphraser(args.pairs, kept, args.pair_texts) if args.pairs else None
    if args.real:
        beside_real(pool, args)
        return
    print(f"{len(pool.vectors)} sentences of {len(pool.texts)} texts; {args.keys} keys, {args.tries} texts each")
    if paraphraser:
        print(f"{len(paraphraser.differences)} paraphrased sentences, mean cosine {paraphraser.cosine:.2f}")
    tables: dict[str, dict[str, dict[str, list[float]]]] = {"forged": {}, "removed": {}, "power": {}}
    for defence in map(Defence.parse, args.defences):
        for table in tables.values():
            table[defence.label] = {}
        for number in range(args.keys):
            rng = np.random.default_rng(number)
            fields = {"decision": args.decision} | ({"run": args.run} if args.run else {})
            key = defence.key(embedder, rng.bytes(32), **fields)
            marker = Marker(pool, key, defence, args.draws, args.sentences)
            for attack, count, p in attacks(marker, args, rng) if args.texts else ():
                kind, column = ("removed", ANY) if attack == ANY else (attack, str(count))
                hits = p <= 0.01 if kind == "forged" else p > 0.01
                tables[kind][defence.label].setdefault(column, []).extend(hits)
            for column, p in shares_found(marker, paraphraser, args, rng) if paraphraser else ():
                tables["power"][defence.label].setdefault(column, []).extend(p <= 0.01)
        for kind, table in tables.items():  # so that a long run can be watched
            cells = {name: round(100 * float(np.mean(hits))) for name, hits in table[defence.label].items()}
            print(f"{defence.label}, {kind}: {cells}", flush=True)
    counts = [str(count) for count in args.texts]
    if args.texts:
        print_table("Forged texts accepted at p <= 0.01, in percent, by texts collected", counts, tables["forged"])
        print_table("Marks removed (p > 0.01), in percent, by texts collected", [ANY, "0", *counts], tables["removed"])
    if paraphraser:
        columns = [UNMARKED, WRITTEN, *(f"paraphrased, {100 * share:.0f}% replaced" for share in args.replaced)]
        columns += [
            f"paraphrased, {100 * share:.0f}% {kind}" for kind in ("deleted", "inserted") for share in vars(args)[kind]
        ]
        print_table("Marked texts found at p <= 0.01, in percent", columns, tables["power"])


if __name__ == "__main__":
    main()
