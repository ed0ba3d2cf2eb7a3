"""What a cheap first pass loses: marked texts of a bench recipe that the full test finds and a first look would have dropped.

    python benchmarks/first_pass.py recipes/local/soft.toml work --set data.texts=50 --set llm=transformers:smollm2-135m \
        --human booksum.jsonl.gz c4.jsonl.gz

Two first looks, each with 199 random keys: the text as it is, without restructured units (`alimark detect --first-pass`), and
the text as it is through a sketch of the embedder: a table with a vector for every token, fitted to the embedder's own
vectors of human sentences by least squares, whose mean stands for the sentence. A look lets through texts with p at most the
level: that share of all unmarked text, by what a p-value is. Printed for each attack: the share that the full test finds at
p <= 0.01 (999 random keys), and of those the share that each look drops.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load_file
from scipy.sparse import csr_matrix
from tokenizers import Tokenizer

from alimark.core.detection.scoring import scoring
from alimark.core.detection.settings import DetectionSettings
from alimark.core.detection.units import Units, restructure
from alimark.core.frozen.kernels.types import WHOLE, Limits
from alimark.core.frozen.text.splitting import splitter
from alimark.core.keys.projection import project
from alimark.core.models import store
from alimark.core.text.human_text import read_texts
from alimark.lab.bench.recipe_files import load
from alimark.lab.bench.run import Run
from alimark.lab.bench.workspace import Workspace
from soft_rules import Text, texts_of

FULL, PLAIN = DetectionSettings(), DetectionSettings(restructure="none")
LEVELS = (0.05, 0.1, 0.2, 0.3)
Matrix = NDArray[np.float32]


class Sketch:
    """An embedder's vectors guessed from the tokens alone, in any order."""

    def __init__(self, name: str) -> None:
        folder = store.resolve(name)
        self._tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self._tokenizer.no_padding()
        weights = load_file(next(folder.rglob("model.safetensors")))
        self._words = next(value for key, value in weights.items() if key.endswith("word_embeddings.weight")).astype(
            np.float32
        )

    def fit(self, sentences: Sequence[str], vectors: Matrix, ridge: float = 1.0, rounds: int = 30) -> None:
        counts = self._counts(sentences)
        seen = np.asarray((counts > 0).sum(axis=0)).ravel()
        self._weights = np.log((1 + len(sentences)) / (1 + seen)).astype(np.float32)
        bags = self._bags(counts)
        # The model's own word vectors turned as a whole, then each word moved a little: a rare one stays where it was.
        words = bags @ self._words
        turn = np.linalg.solve(words.T @ words + 0.1 * np.eye(words.shape[1]), words.T @ vectors)
        self._table = (self._words @ turn + _moved(bags, vectors - words @ turn, ridge, rounds)).astype(np.float32)

    def _counts(self, sentences: Sequence[str]) -> Any:
        encoded = [one.ids[1:-1] for one in self._tokenizer.encode_batch_fast(list(sentences))]
        starts = np.cumsum([0, *map(len, encoded)])
        ids = np.array([token for one in encoded for token in one])
        return csr_matrix((np.ones(len(ids), np.float32), ids, starts), (len(encoded), len(self._words)))

    def _bags(self, counts: Any) -> Any:
        counts.sum_duplicates()
        weighted = counts.multiply(self._weights).tocsr()
        lengths = np.maximum(np.asarray(weighted.sum(axis=1)).ravel(), 1e-6)
        return weighted.multiply((1 / lengths)[:, None]).tocsr().astype(np.float32)

    def embed(self, sentences: Sequence[str]) -> Matrix:
        vectors: Matrix = self._bags(self._counts(sentences)) @ self._table
        unit: Matrix = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-6)
        return unit


def _moved(bags: Any, rest: Matrix, ridge: float, rounds: int) -> Matrix:
    """Least squares with a penalty, by conjugate gradients, all columns at a time."""
    found = np.zeros((bags.shape[1], rest.shape[1]), np.float32)
    left = bags.T @ rest
    step = left.copy()
    size = (left**2).sum(axis=0)
    for _ in range(rounds):
        seen = bags.T @ (bags @ step) + ridge * 1e-2 * step
        far = size / np.maximum((step * seen).sum(axis=0), 1e-12)
        found += far * step
        left -= far * seen
        size, before = (left**2).sum(axis=0), size
        step = left + size / np.maximum(before, 1e-12) * step
    return found


def p_value(text: Text, units: Units, vectors: Any, settings: DetectionSettings, draws: int) -> float:
    rule = scoring(text.key, settings)
    signals = rule.signals(units, project(vectors, text.key))
    length = rule.length(units.count)
    blocks = np.concatenate([text.key.blocks(length)[None], text.key.null_blocks(0, draws, length)])
    jobs = np.arange(len(blocks))
    found = rule.scores([signals], blocks, 0 * jobs, jobs)
    return (1 + int((found[1:] >= found[0]).sum())) / (draws + 1)


def looks(text: Text, sketch: Sketch) -> tuple[float, float, float]:
    """The p-values of the full test, of the plain look and of the sketched one."""
    sentences = [text.units.texts[i] for i in text.units.index[:, 0, WHOLE]]
    plain = restructure(sentences, Limits.of("none"))
    at = {unit: i for i, unit in enumerate(text.units.texts)}
    own = text.vectors[[at[unit] for unit in plain.texts]]
    return (
        p_value(text, text.units, text.vectors, FULL, 999),
        p_value(text, plain, own, PLAIN, 199),
        p_value(text, plain, sketch.embed(plain.texts), PLAIN, 199),
    )


def human_sentences(paths: Sequence[str], most: int) -> Iterator[str]:
    cutter = splitter("nupunkt")
    seen = dict.fromkeys(one for path in paths for text in read_texts(path) for one in cutter.units(text))
    yield from list(seen)[:most]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe", type=Path)
    parser.add_argument("workspace", type=Path)
    parser.add_argument("--set", action="append", default=[], dest="overrides", metavar="PATH=VALUE")
    parser.add_argument("--human", nargs="+", required=True, help="JSONL of human texts, for the sketch")
    parser.add_argument("--sentences", type=int, default=20_000, help="of them that the sketch is fitted to, at most")
    args = parser.parse_args()
    run = Run(load(args.recipe, args.overrides), Workspace(args.workspace, part=98))
    name = str(run.recipe.watermark[0].key["embedder"])
    human = list(human_sentences(args.human, args.sentences))
    with run.workspace.kept_vectors(run.models.embedder(name)) as kept:
        vectors = kept.embed(human)
    sketch = Sketch(name)
    sketch.fit(human, vectors)
    started = time.perf_counter()
    sketch.embed(human)
    rate = len(human) / (time.perf_counter() - started)
    print(f"sketch of {name}: fitted to {len(human):,} human sentences, {rate:,.0f} sentences a second\n")
    titles = [f"{look} drops at {level:g}" for look in ("plain", "sketch") for level in LEVELS]
    print("| | attack | texts | full test finds | " + " | ".join(titles) + " |\n" + "| --- " * (4 + len(titles)) + "|")
    for watermark in run.recipe.watermark:
        found: dict[str, list[tuple[float, float, float]]] = {}
        units, cosines = np.zeros(2), []
        for text in texts_of(run, watermark):
            found.setdefault(text.attack, []).append(looks(text, sketch))
            whole = text.units.index[:, 0, WHOLE]
            units += len(set(whole.tolist())), len(text.units.texts)
            if text.attack == "none":
                own = sketch.embed([text.units.texts[i] for i in whole])
                cosines.append(float((own * text.vectors[whole]).sum(axis=1).mean()))
        for attack, each in found.items():
            p = np.array(each)
            hit = p[:, 0] <= 0.01
            drops = [
                f"{100 * np.mean(p[hit, look] > level):.0f}%" if hit.any() else "-"
                for look in (1, 2)
                for level in LEVELS
            ]
            print(
                f"| {watermark.label} | {attack} | {len(p)} | {100 * hit.mean():.0f}% | " + " | ".join(drops) + " |",
                flush=True,
            )
        print(f"\n{watermark.label}: the plain look embeds {units[0] / units[1]:.0%} of the units, the sketch none; "
              f"mean cosine of sketch and embedder on marked sentences {np.mean(cosines):.3f}\n")  # fmt: skip


if __name__ == "__main__":
    main()
