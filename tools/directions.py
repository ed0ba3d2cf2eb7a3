"""Learns the directions that soft keys of an embedder live in, which ship with the package.

    python tools/directions.py noise --embedder all-MiniLM-L6-v2 PAIRS.jsonl.gz ...       # version 3
    python tools/directions.py components --embedder all-MiniLM-L6-v2 TEXTS.jsonl.gz ...  # versions 1 and 2

`noise`: the files hold pairs (`original`, `paraphrase`); each file is one paraphraser, and all count the same. The last
tenth of each file is held out: the printed cosines between held-out sentences and their paraphrases show what was gained over
principal components, by file. `--rank` and `--ridge` try others. `components`: the files hold texts.

A table that was released never changes, since keys name it by its digest: the tool refuses to replace one unless --replace
is given, which is right only before a release.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from alimark.core._util.jsonl import read_jsonl
from alimark.core.embedding.base import Embedder
from alimark.core.embedding.loading import load_embedder
from alimark.core.frozen.directions import FILE, MOST, NOISE_AWARE_FILE, mean_of, noise_aware
from alimark.core.frozen.text.splitting import DEFAULT_SPLITTER, splitter
from alimark.errors import RecordError
from alimark.lab.directions import Statistics, combine, directions_of, table_of

sys.path.append(str(Path(__file__).resolve().parents[1] / "benchmarks"))
from paraphrase_pairs import Pair, aligned, pair_statistics

_LONGEST = 40  # sentences of a text


def pairs_of(path: Path) -> list[Pair]:
    """The sentences of each text with its paraphrase."""
    cut = splitter(DEFAULT_SPLITTER)
    pairs = []
    for _, record in read_jsonl(path):
        if isinstance(record, RecordError):
            raise record
        pair = Pair(cut.units(record["original"])[:_LONGEST], cut.units(record["paraphrase"])[:_LONGEST])
        if len(pair.original) >= 3 and len(pair.paraphrase) >= 2:
            pairs.append(pair)
    return pairs


def mean_cosine(pairs: list[Pair], embedder: Embedder, rows: NDArray[np.float64], mean: NDArray[np.float64]) -> float:
    """The mean cosine of sentences and their paraphrases in the space of `rows`, both less the mean of their text."""
    cosines: list[float] = []
    for pair in pairs:
        original, paraphrase = (embedder.embed(list(part)).astype(np.float64) for part in pair)
        links = aligned(original, paraphrase)
        before, after = ((vectors - mean) @ rows.T for vectors in (original, paraphrase))
        before, after = before - before.mean(axis=0), after - after.mean(axis=0)
        x, y = before[links[:, 0]], after[links[:, 1]]
        norms = np.linalg.norm(x, axis=1) * np.linalg.norm(y, axis=1)
        cosines += ((x * y).sum(axis=1) / np.maximum(norms, 1e-12)).tolist()
    return float(np.mean(cosines))


class KeptVectors:
    """An embedder that embeds a sentence once: several paraphrasers were given the same texts."""

    def __init__(self, embedder: Embedder) -> None:
        self._embedder, self._kept = embedder, dict[str, NDArray[np.float32]]()
        self.name, self.fingerprint, self.dimension = embedder.name, embedder.fingerprint, embedder.dimension
        self.backend, self.languages = embedder.backend, embedder.languages

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        if missing := [text for text in dict.fromkeys(texts) if text not in self._kept]:
            self._kept |= dict(zip(missing, self._embedder.embed(missing), strict=True))
        return np.stack([self._kept[text] for text in texts])


def noise(args: argparse.Namespace) -> None:
    device = {"backend": "torch", "device": args.device} if args.device else {}
    embedder = KeptVectors(load_embedder(args.embedder, **device))
    held_out: dict[str, list[Pair]] = {}
    corpora: list[Statistics] = []
    for path in args.files:
        pairs = pairs_of(path)
        held = max(1, len(pairs) // 10)
        corpora.append(pair_statistics(pairs[:-held], embedder))
        held_out[path.name.partition(".")[0]] = pairs[-held:][: args.held_out]
        print(f"{path.name}: {len(pairs)} pairs, {corpora[-1].noise_count} aligned sentences", flush=True)
    table, ratios = table_of(corpora, args.ridge, args.topic_weight)
    spread, _, _, mean = sums = combine(corpora)
    against = sums.against(args.topic_weight)
    shown = [k for k in (1, 8, 16, 32, 64) if k <= len(ratios)]
    print("spread over noise:", ", ".join(f"{k}: {ratios[k - 1]:.2f}" for k in shown))
    components = np.linalg.eigh(spread)[1][:, ::-1][:, : args.rank].T
    candidates = {"principal components": components, "noise-aware": table.rows[: args.rank]}
    candidates["noise-aware, topics not counted"] = directions_of(spread, sums.noise, args.rank)[0]
    candidates |= {f"noise-aware, {k}": table.rows[:k] for k in (8, 16, 32) if k != args.rank}
    candidates |= {f"ridge {r:g}": directions_of(spread, against, args.rank, r)[0] for r in args.ridges}
    print("| held-out cosines | " + " | ".join(held_out) + " |")
    for name, rows in candidates.items():
        cosines = [mean_cosine(pairs, embedder, rows, mean) for pairs in held_out.values()]
        print(f"| {name} | " + " | ".join(f"{cosine:.3f}" for cosine in cosines) + " |", flush=True)
    if noise_aware(embedder.fingerprint) is not None and not args.replace:
        raise SystemExit("a table of this embedder was released; a released table never changes (--replace)")
    _save(args.output or NOISE_AWARE_FILE, embedder.fingerprint, table.rows, table.mean)
    print(f"{embedder.name}: {table.digest}")


def texts_of(path: Path, count: int, least: int) -> Iterator[list[str]]:
    """The sentences of the first texts that are long enough, repeats left out."""
    cut, seen = splitter(DEFAULT_SPLITTER), set()
    for _, record in read_jsonl(path):
        if isinstance(record, RecordError):
            raise record
        text = next(record[name] for name in ("natural_text", "text", "original") if name in record)
        sentences = cut.units(text)
        if len(sentences) >= least and text not in seen:
            seen.add(text)
            yield sentences
            if len(seen) == count:
                return


def components(args: argparse.Namespace) -> None:
    embedder = load_embedder(args.embedder)
    statistics = Statistics(embedder.dimension)
    texts = [text[: args.sentences] for file in args.files for text in texts_of(file, args.texts, 12)]
    for text in texts:
        statistics.add_text(embedder.embed(text).astype(np.float64))
    weights, vectors = np.linalg.eigh(statistics.spread / statistics.sentences)
    rows = vectors[:, ::-1][:, :MOST].T
    rows *= np.sign(rows.sum(axis=1, keepdims=True))  # either sign is as good; one is chosen
    shares = np.cumsum(weights[::-1]) / weights.sum()
    print(f"{len(texts)} texts, {statistics.sentences} sentences; share of the variance within texts:", end=" ")
    print(", ".join(f"{k}: {shares[k - 1]:.3f}" for k in (8, 16, 32, 64)))
    _save(args.output or FILE, embedder.fingerprint, rows, statistics.total / statistics.sentences)


def _save(path: Path, fingerprint: str, rows: NDArray[np.float64], mean: NDArray[np.float64]) -> None:
    """Adds a table to a file; those of other embedders in it stay."""
    every = dict(np.load(path, allow_pickle=False)) if path.exists() else {}
    every |= {fingerprint: rows.astype("<f2"), mean_of(fingerprint): mean.astype("<f2")}
    np.savez(path, **every)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(required=True)
    for verb, action in (("noise", noise), ("components", components)):
        command = verbs.add_parser(verb)
        command.add_argument("files", nargs="+", type=Path)
        command.add_argument("--embedder", default="all-MiniLM-L6-v2")
        command.add_argument("--output", type=Path, help="another file than the package's")
        command.set_defaults(run=action)
        if verb == "noise":
            command.add_argument("--device", default="", help="cuda for a GPU")
            command.add_argument("--rank", type=int, default=MOST, help="the rank of the cosines that are printed")
            command.add_argument("--ridge", type=float, default=1e-4)
            command.add_argument("--topic-weight", type=float, default=2.0, help="how much the topics of texts count")
            command.add_argument("--ridges", type=float, nargs="*", default=[1e-2, 1.0], help="others to compare")
            command.add_argument(
                "--held-out", type=int, default=60, help="pairs of each file that cosines are taken of"
            )
            command.add_argument("--replace", action="store_true", help="replace a table; only before a release")
        else:
            command.add_argument("--texts", type=int, default=60, help="texts of each file")
            command.add_argument("--sentences", type=int, default=30, help="sentences of a text at most")
    args = parser.parse_args()
    args.run(args)


if __name__ == "__main__":
    main()
