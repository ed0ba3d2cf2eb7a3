"""Learns what words add to a sentence's projections, by which models are steered; the table ships with the package.

    python tools/word_vectors.py write --llm transformers:smollm2-135m --output sentences.jsonl.gz PROMPTS.jsonl.gz ...
    python tools/word_vectors.py learn --embedder all-MiniLM-L6-v2 sentences.jsonl.gz            # prints what it would gain
    python tools/word_vectors.py learn --embedder all-MiniLM-L6-v2 sentences.jsonl.gz --write

`write`: a model continues the prompts sentence by sentence, with many candidates for each sentence; each line of the output
holds the candidates of one context. `--leave-out FIRST:LAST` leaves out these lines of every file, such as those that
something is measured on.

`learn`: of the candidates of one context, the differences of their projections are regressed on the differences of their
counts of words. The ridge draws each word towards the embedder's view of the word alone. A tenth of the contexts is held out:
printed is the correlation of predicted and true projections among candidates of one context, on random directions.
"""

from __future__ import annotations

import argparse
import gzip
import json
import random
import re
from collections import Counter
from collections.abc import Sequence
from itertools import islice
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix

from alimark.core._util.jsonl import read_jsonl
from alimark.core.embedding.base import Embedder
from alimark.core.embedding.loading import load_embedder
from alimark.core.frozen.directions import DirectionTable, noise_aware
from alimark.core.frozen.text.splitting import DEFAULT_SPLITTER, splitter
from alimark.core.generation.candidates import FirstSentence, Text
from alimark.core.generation.steering import FILE, WordVectors
from alimark.core.llm import load_llm
from alimark.core.llm.base import Request, Sampling
from alimark.errors import RecordError

Floats = NDArray[np.float64]
WORD = re.compile(r"[a-z]+")
TYPICAL, SOFTER = 20, 6
"""A word moves the embedding of a longer sentence less: by (TYPICAL + SOFTER) / (words + SOFTER)."""


def prompts_of(paths: Sequence[Path], left_out: range) -> list[str]:
    """The prompts of all files."""
    prompts = []
    for path in paths:
        for number, (_, record) in enumerate(read_jsonl(path)):
            if isinstance(record, RecordError):
                raise record
            if number not in left_out:
                prompts.append(str(record["prompt"]))
    return prompts


def write(args: argparse.Namespace) -> None:
    """Writes the candidates of contexts, a line for each."""
    llm = load_llm(args.llm)
    cut = splitter(DEFAULT_SPLITTER)
    reader, choose = FirstSentence(cut), random.Random(args.seed)
    texts = [(prompt, Text(cut)) for prompt in prompts_of(args.files, args.leave_out)]
    with gzip.open(args.output, "wt", encoding="utf-8") as output:
        for place in range(args.places):
            requests = [
                Request(f"{prompt} {text}".rstrip(), args.candidates, args.seed + place * len(texts) + number)
                for number, (prompt, text) in enumerate(texts)
            ]
            for (_, text), draws in zip(texts, llm.draw(requests, Sampling(), reader), strict=True):
                usable = [candidate for candidate in map(text.candidate, reader.read(draws)) if not candidate.flaw]
                if len(usable) > args.candidates // 2:
                    output.write(json.dumps([candidate.unit for candidate in usable]) + "\n")
                if usable:
                    text.add(choose.choice(usable))
            print(f"{place + 1} of {args.places} places", flush=True)


class Sentences:
    """Sentences by context: their counts of words and their projections, as differences from the mean of the context."""

    def __init__(self, contexts: Sequence[Sequence[str]], words: Sequence[str], projections: Floats) -> None:
        number_of = {word: number for number, word in enumerate(words)}
        owners = np.repeat(np.arange(len(contexts)), [len(context) for context in contexts])
        rows, columns, values = [], [], []
        for row, sentence in enumerate(sentence for context in contexts for sentence in context):
            found_words = WORD.findall(sentence.lower())
            for word in found_words:
                if word in number_of:
                    rows.append(row)
                    columns.append(number_of[word])
                    values.append((TYPICAL + SOFTER) / (len(found_words) + SOFTER))
        self.counts = csr_matrix((values, (rows, columns)), (len(owners), len(words)))
        members = csr_matrix((np.ones(len(owners)), (owners, np.arange(len(owners)))), (len(contexts), len(owners)))
        sizes = np.asarray(members.sum(axis=1))
        self._owners, self._members = owners, members
        self._means = csr_matrix((members @ self.counts).multiply(1 / sizes))
        self.projections = projections - (members @ projections / sizes)[owners]

    def predicted(self, vectors: Floats) -> Floats:
        """The predicted projections, as differences from the mean of the context."""
        return np.asarray(self.counts @ vectors - (self._means @ vectors)[self._owners])

    def backwards(self, errors: Floats) -> Floats:
        """The transposed of `predicted`."""
        return np.asarray(self.counts.T @ errors - self._means.T @ (self._members @ errors))

    def correlation(self, vectors: Floats) -> float:
        """Of predicted and true projections within contexts, the mean over random directions."""
        directions = np.random.default_rng(1).standard_normal((vectors.shape[1], 200))
        directions /= np.linalg.norm(directions, axis=0)
        guess, truth = self.predicted(vectors) @ directions, self.projections @ directions
        return float(((guess * truth).sum(axis=0) / np.sqrt((guess**2).sum(axis=0) * (truth**2).sum(axis=0))).mean())


def ridge(data: Sentences, prior: Floats, weight: float, steps: int) -> Floats:
    """The vectors with the least squared error plus `weight` times their squared distance from the prior."""
    change = np.zeros_like(prior)
    rest = data.backwards(data.projections - data.predicted(prior))
    step, size = rest.copy(), (rest**2).sum(axis=0)
    for _ in range(steps):  # conjugate gradients, for all directions at a time
        product = data.backwards(data.predicted(step)) + weight * step
        length = size / (step * product).sum(axis=0)
        change += length * step
        rest -= length * product
        size, before = (rest**2).sum(axis=0), size
        step = rest + size / before * step
    return prior + change


def projected(embedder: Embedder, table: DirectionTable, sentences: Sequence[str]) -> Floats:
    """The projections of sentences on the directions of a table."""
    vectors = [embedder.embed(sentences[first : first + 4096]) for first in range(0, len(sentences), 4096)]
    return (np.concatenate(vectors).astype(np.float64) - table.mean) @ table.rows.T


def learn(args: argparse.Namespace) -> None:
    """Fits the vectors, prints how well they predict, and writes them on request."""
    embedder = load_embedder(args.embedder, **({"backend": "torch", "device": args.device} if args.device else {}))
    table = noise_aware(embedder.fingerprint)
    if table is None:
        raise SystemExit(f"{args.embedder} has no table of directions; make one with tools/directions.py")
    with gzip.open(args.sentences, "rt", encoding="utf-8") as lines:
        contexts = [json.loads(line) for line in islice(lines, args.contexts)]
    sentences = [sentence for context in contexts for sentence in context]
    counted = Counter(word for sentence in sentences for word in WORD.findall(sentence.lower()))
    words = [word for word, count in counted.most_common(args.words) if count >= 3]
    projections = projected(embedder, table, sentences)
    alone = projected(embedder, table, words)
    held_out = len(contexts) // 10
    split = sum(map(len, contexts[:-held_out]))
    training = Sentences(contexts[:-held_out], words, projections[:split])
    test = Sentences(contexts[-held_out:], words, projections[split:])
    spread = float(np.sqrt((training.projections**2).mean()))
    print(
        f"{len(contexts)} contexts, {len(sentences)} sentences, {len(words)} words; spread within contexts {spread:.4f}"
    )

    def prior_of(data: Sentences) -> Floats:
        guess = data.predicted(alone)
        return alone * float((guess * data.projections).sum() / (guess**2).sum())

    print(f"the embedder's view of words: correlation {test.correlation(prior_of(training)):.3f}")
    best = 0.0, 0.0
    for weight in args.ridges:
        gained = test.correlation(ridge(training, prior_of(training), weight, args.steps))
        print(f"ridge {weight:g}: correlation {gained:.3f}", flush=True)
        best = max(best, (gained, weight))
    if args.write:
        everything = Sentences(contexts, words, projections)
        rows = ridge(everything, prior_of(everything), best[1], args.steps) / spread
        counts = np.array([counted[word] for word in words], np.float32)
        learned = WordVectors(tuple(words), rows.astype(np.float32), counts)
        kept = dict(np.load(FILE, allow_pickle=False)) if FILE.exists() else {}
        np.savez_compressed(FILE, **kept | learned.arrays(table.digest))
        print(f"ridge {best[1]:g}: written, {FILE.stat().st_size} bytes")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(dest="verb", required=True)
    writing = verbs.add_parser("write", help="write candidates of contexts")
    writing.add_argument("files", nargs="+", type=Path, help="JSONL with the field `prompt`")
    writing.add_argument("--llm", default="smollm2-135m")
    writing.add_argument("--output", type=Path, required=True)
    writing.add_argument("--places", type=int, default=4, help="sentences that each text goes on")
    writing.add_argument("--candidates", type=int, default=40, help="candidates for each sentence")
    writing.add_argument(
        "--leave-out", type=lambda text: range(*map(int, text.split(":"))), default=range(0), metavar="FIRST:LAST"
    )
    writing.add_argument("--seed", type=int, default=1)
    learning = verbs.add_parser("learn", help="learn the vectors of words from what `write` wrote")
    learning.add_argument("sentences", type=Path)
    learning.add_argument("--embedder", default="all-MiniLM-L6-v2")
    learning.add_argument("--device", default="", help="a PyTorch device that embeds; default, onnxruntime on the CPU")
    learning.add_argument("--contexts", type=int, default=None, help="read only so many")
    learning.add_argument(
        "--words", type=int, default=14_000, help="the most words that are kept, the most frequent first"
    )
    learning.add_argument("--ridges", type=float, nargs="+", default=[3, 10, 30, 100])
    learning.add_argument("--steps", type=int, default=60, help="steps of the solver")
    learning.add_argument("--write", action="store_true", help="write the table that ships with the package")
    args = parser.parse_args()
    (write if args.verb == "write" else learn)(args)


if __name__ == "__main__":
    main()
