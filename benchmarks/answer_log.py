"""A log of marked answers beside the mark: which rewritten texts it finds in addition, and what 10^6 answers take.

    python benchmarks/answer_log.py --human c4.jsonl.gz --pairs c4-gpt35-bigram.jsonl.gz --vectors vectors
    python benchmarks/answer_log.py --vectors vectors --records benchmarks/records/price/standard.jsonl.gz

The log keeps, of each answer, the 64 projections of each sentence, less their mean, of unit length, in int8. A text is
compared with every answer: the sum of the cosines above 0.3 along the best monotone alignment of their sentences; the
best answer counts. Its p-value comes from unmarked texts on the same topic against the same log. Texts are simulated as
in attacker.py, of sentences near in meaning to one human text, which is the topic; the log has `--same` further answers
on it, under other keys. These share some sentences word for word, which makes the null harder than it is outside.
"Both": the mark or the log at half the level.
"""

from __future__ import annotations

import argparse
import copy
import gzip
import json
import time
from pathlib import Path

import numpy as np

import attacker
from alimark.core._util.arrays import Floats
from alimark.core.embedding.loading import load_embedder
from alimark.core.frozen.text.splitting import splitter
from alimark.core.keys.key import Key
from alimark.core.keys.projection import project
from alimark.lab.bench.workspace import KeptVectors
from attacker import Paraphraser, Pool, Vectors
from public_half import LEVEL, share

COSINE = 0.3


def entry(text: Vectors, key: Key) -> Floats:
    """The sentences of a text as the log keeps them."""
    projections = project(text, key)
    rows = projections - projections.mean(axis=0)
    kept: Floats = np.round(127 * rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.int8) / 127.0
    return kept


def best_scores(queries: Floats, log: Floats) -> Floats:
    """The score of the best answer of a log, for each query: (queries, sentences, 64) and (answers, sentences, 64)."""
    cosines = np.einsum("qid,ajd->ijqa", queries, log, optimize=True) - COSINE
    row = np.zeros((log.shape[1] + 1, len(queries), len(log)))
    for gains in cosines:
        new = np.zeros_like(row)
        for j, gain in enumerate(gains):
            new[j + 1] = np.maximum(np.maximum(row[j] + gain, row[j + 1]), new[j])
        row = new
    scores: Floats = row[-1].max(axis=1)
    return scores


def hits_of(
    pool: Pool, move: Paraphraser, key: Key, rng: np.random.Generator, args: argparse.Namespace
) -> dict[str, list[bool]]:
    """For each kind of text on a topic whether the mark finds it, the log does, and one of them does at half the level."""
    on_topic = copy.copy(pool)
    on_topic.near = pool.near[[rng.integers(len(pool.near))]]
    projections = project(pool.vectors, key)

    def marked(key: Key) -> Vectors:
        rows = attacker.marked(on_topic, key, projections, key.blocks(attacker.SENTENCES), rng)
        return np.asarray(pool.vectors[rows])

    def unmarked() -> Vectors:
        return move(pool.vectors[on_topic.candidates(rng)[:, 0]], pool, 0, rng)

    text = marked(key)
    log = np.stack(
        [entry(answer, key) for answer in (text, *(marked(key.like(rng.bytes(32))) for _ in range(args.same)))]
    )
    null = best_scores(np.stack([entry(unmarked(), key) for _ in range(args.null)]), log)
    queries = {"not marked": unmarked(), "as written": text}
    queries |= {f"paraphrased, {lost:.0%} replaced": move(text, pool, lost, rng) for lost in (0, 0.25, 0.5)}
    hits = {}
    for name, query in queries.items():
        mark = float(attacker.p_values([query], key, args.null)[0])
        logged = (1 + (null >= best_scores(entry(query, key)[None], log)[0]).sum()) / (len(null) + 1)
        hits[name] = [mark <= LEVEL, bool(logged <= LEVEL), min(mark, logged) <= LEVEL / 2]
    return hits


def recorded(path: Path, kept: KeptVectors) -> str:
    """Generated texts after a rewrite by a chat model: whether the mark and the log find them. The null is of other topics."""
    cutter, key = (
        splitter("nupunkt"),
        Key.generate(embedder=kept, secret=bytes(32)),
    )  # a rotation, which changes no cosine

    def padded(text: str) -> Floats:
        rows = entry(kept.embed(cutter.units(text)[:40]), key)
        return np.concatenate([rows, np.zeros((40 - len(rows), rows.shape[1]))])

    rows = [row for row in map(json.loads, gzip.decompress(path.read_bytes()).splitlines()) if "chat" in row["attacks"]]
    rows = [row for row in rows if "p_value" in row["attacks"]["chat"]]
    queries = np.stack([padded(row["attacks"]["chat"]["text"]) for row in rows])
    scores = np.stack([best_scores(queries, padded(row["text"])[None]) for row in rows], axis=1)
    mark = np.array([row["attacks"]["chat"]["p_value"] <= LEVEL for row in rows])
    logged = np.diag(scores) > scores[~np.eye(len(rows), dtype=bool)].max()
    return (
        f"{len(rows)} rewrites: found by the mark {share(mark)}; nearer to their own answer than any is to another "
        f"{share(logged)}; one of the two {share(mark | logged)}"
    )


def cost(answers: int) -> None:
    """Prints bytes and seconds of a text of 12 sentences against a log of random entries, of which the best 100 are aligned."""
    log = np.random.default_rng(0).integers(-127, 128, (answers, attacker.SENTENCES, 64), np.int8)
    query, started, most = log[0] / 127.0, time.process_time(), []
    for part in np.array_split(log, max(1, answers // 10_000)):
        cosines = part.reshape(-1, 64).astype(np.float32) @ query.T.astype(np.float32)
        most.append(cosines.reshape(len(part), attacker.SENTENCES, -1).max(axis=2).sum(axis=1))
    best_scores(query[None], log[np.argsort(-np.concatenate(most))[:100]] / 127.0)
    print(f"{answers:,} answers: {log.nbytes:,} bytes, {time.process_time() - started:.2f} s of CPU time for a text")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--human", type=Path, action="append", default=[], help="JSONL of human texts")
    parser.add_argument("--pairs", type=Path, action="append", default=[], help="JSONL of texts and paraphrases")
    parser.add_argument("--vectors", type=Path, required=True, help="a folder that keeps the embeddings")
    parser.add_argument("--embedder", default="all-MiniLM-L6-v2")
    parser.add_argument("--most", type=int, default=10_000, help="human texts and pairs of each file")
    parser.add_argument("--topics", type=int, default=100)
    parser.add_argument("--same", type=int, default=100, help="further answers on each topic in the log")
    parser.add_argument("--null", type=int, default=399, help="random keys, and unmarked texts on the topic")
    parser.add_argument("--answers", type=int, default=1_000_000, help="for bytes and time")
    parser.add_argument("--records", type=Path, help="generated texts of keep_records.py instead")
    args = parser.parse_args()
    embedder = load_embedder(args.embedder)
    with KeptVectors(embedder, args.vectors) as kept:
        if args.records:
            print(recorded(args.records, kept))
            return
        pool = Pool(attacker.sentences_of(args.human)[: args.most], kept, 400)
        move = Paraphraser(args.pairs, kept, args.most)
    cost(args.answers)
    found: dict[str, list[list[bool]]] = {}
    for number in range(args.topics):
        rng = np.random.default_rng(number)
        key = Key.generate(embedder=embedder, secret=rng.bytes(32))
        for name, hits in hits_of(pool, move, key, rng, args).items():
            found.setdefault(name, []).append(hits)
    print("| texts | the mark alone | the log alone | both |\n| --- | --- | --- | --- |")
    for name, every in found.items():
        print(f"| {name} | {' | '.join(share(column) for column in np.array(every).T)} |")


if __name__ == "__main__":
    main()
