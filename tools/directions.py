"""Learns the directions that soft keys of an embedder live in, which ship with the package.

python tools/directions.py --embedder all-MiniLM-L6-v2 --texts 60 booksum.jsonl.gz c4.jsonl.gz ...

The sentences of one text differ along few directions much and along most a little. Paraphrasing moves a sentence about
as far along all of them, so along the first few more of the mark is left. The directions are the leading principal
components of how sentences differ from the mean of their text. The mean of all sentences is kept beside them.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from alimark._util.jsonl import read_jsonl
from alimark.embedding.directions import FILE, MOST, mean_of
from alimark.embedding.loading import load_embedder
from alimark.errors import RecordError
from alimark.text.splitting import DEFAULT_SPLITTER, splitter


def texts_of(path: Path, count: int, least: int) -> Iterator[list[str]]:
    """The sentences of the first texts that are long enough, repeats left out."""
    cutter, seen = splitter(DEFAULT_SPLITTER), set()
    for _, record in read_jsonl(path):
        if isinstance(record, RecordError):
            raise record
        text = next(record[name] for name in ("natural_text", "text", "original") if name in record)
        sentences = cutter.units(text)
        if len(sentences) >= least and text not in seen:
            seen.add(text)
            yield sentences
            if len(seen) == count:
                return


def within(embeddings: NDArray[np.float32], sizes: list[int]) -> NDArray[np.float64]:
    """Each sentence less the mean of its text."""
    parts = np.split(embeddings.astype(np.float64), np.cumsum(sizes)[:-1])
    return np.concatenate([part - part.mean(axis=0) for part in parts])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path, help="JSONL with `natural_text`, `text` or `original`")
    parser.add_argument("--embedder", default="all-MiniLM-L6-v2")
    parser.add_argument("--texts", type=int, default=60, help="texts of each file")
    parser.add_argument("--sentences", type=int, default=30, help="sentences of a text at most")
    parser.add_argument("--output", type=Path, default=FILE, help="those of other embedders in it stay")
    args = parser.parse_args()
    embedder = load_embedder(args.embedder)
    texts = [one[: args.sentences] for file in args.files for one in texts_of(file, args.texts, 12)]
    embeddings = embedder.embed([sentence for text in texts for sentence in text])
    differences = within(embeddings, [len(text) for text in texts])
    mean = embeddings.mean(axis=0, dtype=np.float64)
    weights, vectors = np.linalg.eigh(differences.T @ differences / len(differences))
    directions = vectors[:, ::-1][:, :MOST].T
    directions *= np.sign(directions.sum(axis=1, keepdims=True))  # either sign is as good; one is chosen
    shares = np.cumsum(weights[::-1]) / weights.sum()
    print(f"{len(texts)} texts, {len(differences)} sentences; share of the variance within texts:", end=" ")
    print(", ".join(f"{k}: {shares[k - 1]:.3f}" for k in (8, 16, 32, 64)))
    every = dict(np.load(args.output, allow_pickle=False)) if args.output.exists() else {}
    every |= {embedder.fingerprint: directions.astype("<f2"), mean_of(embedder.fingerprint): mean.astype("<f2")}
    np.savez(args.output, **every)


if __name__ == "__main__":
    main()
