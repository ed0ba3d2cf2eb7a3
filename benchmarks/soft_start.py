"""Soft decisions beside the untuned setting that they started from, each on texts marked under it, on the same prompts.

    python benchmarks/soft_start.py recipes/local/soft.toml work --set data.texts=50 --set 'watermark=[
        {label="start", key={decision="soft", block_size=32, span=0, embedder="all-MiniLM-L6-v2"}, generate={candidates=64}},
        {label="soft", key={decision="soft", block_size=32, span=32, embedder="all-MiniLM-L6-v2"}, generate={candidates=64}}]'

The first watermark is scored by the starting point of benchmarks/soft_rules.py, the second as its version has it. Shares found
at a p-value by random keys, which needs no human text, and their difference with a 95% interval from resampling prompts 4000
times. A prompt is left out where the attack failed on either text.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path

import numpy as np

from alimark.core._util.arrays import Floats
from alimark.core.detection.scoring import Soft
from alimark.core.frozen.soft_rules import SOFT_VERSIONS
from alimark.core.keys.key import SOFT_VERSION
from alimark.lab.bench.recipe_files import load
from alimark.lab.bench.run import Run
from alimark.lab.bench.workspace import Workspace
from soft_rules import SINGLE, Score, Text, by, starting_point, texts_of

REPEATS = 4000


def p_value(text: Text, score: Score, draws: int) -> float:
    length = math.ceil(2 * text.units.count)
    blocks = np.concatenate([text.key.blocks(length)[None], text.key.null_blocks(0, draws, length)])
    scores = score(text, blocks)
    return float((1 + (scores[1:] >= scores[0]).sum()) / (draws + 1))


def difference(found: Floats, rng: np.random.Generator) -> str:
    """Of paired zeros and ones, (prompts, 2)."""
    less = found[:, 1] - found[:, 0]
    means = less[rng.integers(0, len(less), (REPEATS, len(less)))].mean(axis=1)
    low, high = np.quantile(means, (0.025, 0.975))
    return f"{100 * less.mean():+.0f} [{100 * low:+.0f}, {100 * high:+.0f}]"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe", type=Path)
    parser.add_argument("workspace", type=Path)
    parser.add_argument("--set", action="append", default=[], dest="overrides", metavar="PATH=VALUE")
    parser.add_argument("--draws", type=int, default=999)
    args = parser.parse_args()
    run = Run(load(args.recipe, args.overrides), Workspace(args.workspace, part=99))
    one, two = run.recipe.watermark[:2]
    now = Soft(SOFT_VERSIONS[SOFT_VERSION], restructure=True)
    found: list[dict[tuple[str, str], float]] = []
    for watermark, score, limits in ((one, starting_point, SINGLE), (two, by(now), now.limits)):
        texts = texts_of(run, watermark, limits)
        found.append({(text.attack, text.prompt): p_value(text, score, args.draws) for text in texts})
    head = ["attack", "sound", *(f"{w.label} p <= {x}" for x in (0.01, 0.05) for w in (one, two))]
    head[4:4], head[8:] = ["difference"], ["difference"]
    print("| " + " | ".join(head) + " |\n" + "| --- " * len(head) + "|")
    rng = np.random.default_rng(1)
    for attack in dict.fromkeys(attack for attack, _ in found[0]):
        both = [pair for pair in found[0] if pair[0] == attack and pair in found[1]]
        cells = [attack, str(len(both))]
        for level in (0.01, 0.05):
            hits = np.array([[own[pair] <= level for own in found] for pair in both], float)
            cells += [f"{100 * share:.0f}" for share in hits.mean(axis=0)] + [difference(hits, rng)]
        print("| " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
