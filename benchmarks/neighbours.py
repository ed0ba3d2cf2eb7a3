"""The mean cosine of neighbouring sentences: of marked texts of a bench recipe, of unmarked ones, and of human texts.

    python benchmarks/neighbours.py recipes/local/version3.toml work --set ... --embedder all-MiniLM-L6-v2 all-mpnet-base-v2

A mark that pulls neighbouring sentences in one direction could show here. Means over texts with 95% intervals; human texts by
data set, with the range that the middle 90% of single texts lie in.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from alimark.core.embedding.base import Embedder
from alimark.core.embedding.loading import load_embedder
from alimark.core.frozen.text.splitting import DEFAULT_SPLITTER, splitter
from alimark.lab.bench.recipe_files import load
from alimark.lab.bench.run import Run
from alimark.lab.bench.workspace import Workspace


def cosines(texts: list[str], embedder: Embedder) -> list[float]:
    """Of each text the mean cosine of its neighbouring sentences."""
    cut = splitter(DEFAULT_SPLITTER)
    units = [cut.units(text) for text in texts]
    vectors = embedder.embed([unit for some in units for unit in some])
    parts = np.split(vectors, np.cumsum([len(some) for some in units])[:-1])
    return [float((part[:-1] * part[1:]).sum(axis=1).mean()) for part in parts if len(part) > 1]


def line(name: str, means: list[float]) -> str:
    rng = np.random.default_rng(1)
    drawn = np.array(means)[rng.integers(0, len(means), (4000, len(means)))].mean(axis=1)
    low, high = np.quantile(drawn, (0.025, 0.975))
    least, most = np.quantile(means, (0.05, 0.95))
    return f"| {name} | {len(means)} | {np.mean(means):.3f} [{low:.3f}, {high:.3f}] | {least:.2f} to {most:.2f} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe", type=Path)
    parser.add_argument("workspace", type=Path)
    parser.add_argument("--set", action="append", default=[], dest="overrides", metavar="PATH=VALUE")
    parser.add_argument("--embedder", nargs="+", default=["all-MiniLM-L6-v2"])
    args = parser.parse_args()
    run = Run(load(args.recipe, args.overrides), Workspace(args.workspace, part=97))
    groups: dict[str, list[str]] = {}
    for cell in run.cells:
        groups.setdefault(f"human, {cell.data.name}", [item.human for item in cell.items])
        for label, marked in ((cell.watermark.label, True), ("unmarked", False)):
            ids = [run.generate_job(cell, item, marked=marked).id for item in cell.items]
            texts = [text for text in run.texts(ids).values() if text]
            if marked or f"unmarked, {cell.data.name}" not in groups:
                groups[f"{label}, {cell.data.name}"] = texts
    for name in args.embedder:
        print(f"\n{name}\n\n| texts | number | mean cosine | of single texts |\n| --- | --- | --- | --- |")
        embedder = load_embedder(name)
        for group, texts in groups.items():
            if texts:
                print(line(group, cosines(texts, embedder)), flush=True)


if __name__ == "__main__":
    main()
