"""What each part of the soft detector is worth: the same marked texts scored by variants of the rule.

    python benchmarks/soft_rules.py recipes/local/soft.toml work --set data.texts=40 --set llm=transformers:smollm2-135m

Shares of texts with p <= 0.01 / p <= 0.05 by random keys, which need no human text. The recipe's soft watermarks are scored one
by one; attacks that failed are left out. Meant for prompts that no test uses. "starting point" is the best
alignment of raw worths, with halves for split sentences, costs 0.5 for a skipped sentence and 1.5 for all else.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from alimark.core._util.arrays import Floats
from alimark.core._util.compiling import kernel
from alimark.core.detection.scoring import Soft
from alimark.core.detection.units import Units, restructure
from alimark.core.frozen.kernels.soft import trace_soft
from alimark.core.frozen.kernels.types import LEFT, RIGHT, WHOLE, Limits, SoftRule
from alimark.core.frozen.soft_rules import SOFT_VERSIONS
from alimark.core.frozen.text.splitting import splitter
from alimark.core.keys.key import Key
from alimark.core.keys.projection import project
from alimark.lab.bench.models import key_for, secret
from alimark.lab.bench.recipe import Watermark
from alimark.lab.bench.recipe_files import load
from alimark.lab.bench.recipe_points import attacks
from alimark.lab.bench.run import Run
from alimark.lab.bench.workspace import Workspace

FIRST = SOFT_VERSIONS[1]
[RULE] = FIRST.rules


@dataclass(frozen=True)
class Text:
    prompt: str
    attack: str
    key: Key
    units: Units
    vectors: Any


SINGLE = Limits.of("single")


def texts_of(run: Run, watermark: Watermark, limits: Limits = SINGLE) -> Iterator[Text]:
    """Every text of a watermark that its attack left, with the embeddings of its units."""
    jobs = []
    for cell in run.cells:
        if cell.watermark is watermark or cell.watermark == watermark:
            for item in cell.items:
                key = key_for(watermark, secret(cell.recipe.seed, item.prompt), run.models)
                jobs.append((item.prompt, "none", run.generate_job(cell, item).id, key))
                jobs += [
                    (item.prompt, one.label, run.attack_job(cell, item, one).id, key) for one in attacks(cell.recipe)
                ]
    texts = run.texts([source for _, _, source, _ in jobs])
    embedder = run.models.embedder(watermark.key["embedder"])
    with run.workspace.kept_vectors(embedder) as vectors:
        for prompt, attack, source, key in jobs:
            if texts.get(source):
                units = restructure(splitter(key.splitter).units(texts[source]), limits)
                yield Text(prompt, attack, key, units, vectors.embed(units.texts))


Score = Callable[[Text, Any], Floats]
"""Of a text under each row of blocks."""


def by(rule: Soft) -> Score:
    def score(text: Text, blocks: Any) -> Floats:
        signals = rule.signals(text.units, project(text.vectors, text.key))
        jobs = np.arange(len(blocks))
        return rule.scores([signals], blocks[:, : rule.length(text.units.count)], 0 * jobs, jobs)

    return score


def likeliest(text: Text, blocks: Any) -> Floats:
    rule = Soft(FIRST, restructure=True)
    signals = rule.signals(text.units, project(text.vectors, text.key))
    rows = blocks[:, : rule.length(text.units.count)]
    return np.array([trace_soft(signals.tables, signals.joinable, row, RULE)[0] for row in rows])


@kernel()
def _align(worths: Any, valid: Any, least: int) -> Any:
    """Of units whole, joined, left and right; the costs of the starting point."""
    count, size = worths.shape[1], worths.shape[2]
    table = np.full((count + 1, size + 1), -1e18)
    table[0, 0] = 0.0
    for i in range(count + 1):
        for j in range(size + 1):
            best = table[i, j]
            if i > 0:
                best = max(best, table[i - 1, j] - 0.5)
            if j > 0:
                best = max(best, table[i, j - 1] - 1.5)
            if i > 0 and j > 0:
                best = max(best, table[i - 1, j - 1] + worths[0, i - 1, j - 1])
            if i > 1 and j > 0 and valid[i - 1, 0]:
                best = max(best, table[i - 2, j - 1] + worths[1, i - 1, j - 1] - 1.5)
            if i > 0 and j > 1 and valid[i - 1, 1]:
                best = max(best, table[i - 1, j - 2] + worths[2, i - 1, j - 2] + worths[3, i - 1, j - 1] - 1.5)
            table[i, j] = best
    return table[count, least:].max()


def starting_point(text: Text, blocks: Any) -> Floats:
    plain = text.vectors @ text.key.vectors(text.vectors.shape[1]).T
    centred = plain - plain[text.units.index[:, 0, WHOLE]].mean(axis=0)
    centred /= np.sqrt((centred**2).mean(axis=1, keepdims=True))
    index, m = text.units.index, text.key.block_size
    units = np.stack([centred[index[:, *at]] for at in ((0, WHOLE), (1, WHOLE), (0, LEFT), (0, RIGHT))])
    valid = np.stack([index[:, 1, WHOLE] >= 0, index[:, 0, LEFT] >= 0], axis=1)
    size, least = math.ceil(1.5 * text.units.count), max(1, math.ceil(0.5 * text.units.count))
    signs = (blocks[:, :size, None] >> np.arange(m, dtype=np.uint64)[::-1] & np.uint64(1)) * 2.0 - 1
    worths = np.einsum("uim,kjm->kuij", units, signs / math.sqrt(m), optimize=True)
    return np.array([_align(one, valid, least) for one in worths])


def ruled(*rules: SoftRule) -> Score:
    """By any of these, each as likely as the others."""
    return by(Soft(FIRST._replace(rules=rules), restructure=True))


_, DELETED, REORDERED, ONE_RUN = SOFT_VERSIONS[2].rules


def variants() -> dict[str, Score]:
    def changed(**rule: float) -> Score:
        return ruled(RULE._replace(**rule))

    def version(**settings: Any) -> Score:
        return by(Soft(FIRST._replace(**settings), restructure=True))

    return {
        "starting point": starting_point,
        "version 1": ruled(RULE),
        "the likeliest alignment alone": likeliest,
        "no restructuring": by(Soft(FIRST, restructure=False)),
        "1.5 blocks a sentence": version(blocks=1.5),
        "2.5 blocks a sentence": version(blocks=2.5),
        "the text's mean in full": version(shrink=0.0),
        "the corpus mean alone": version(shrink=1e9),
        "nothing moved": changed(moved=0.0),
        "few replaced": changed(replaced=0.01),
        "worth 0.9": changed(worth=0.9),
        "worth 1.8": changed(worth=1.8),
        "skips twice as likely": changed(skipped=0.2),
        "stretches outside": changed(outside=0.3, leaving=0.05, staying=0.85, resumed=0.3),
        "deleted": ruled(DELETED),
        "reordered": ruled(REORDERED),
        "one run": ruled(ONE_RUN),
        "version 1, reordered, one run": ruled(RULE, REORDERED, ONE_RUN),
        "version 2": by(Soft(SOFT_VERSIONS[2], restructure=True)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe", type=Path)
    parser.add_argument("workspace", type=Path)
    parser.add_argument("--set", action="append", default=[], dest="overrides", metavar="PATH=VALUE")
    parser.add_argument("--draws", type=int, default=300)
    parser.add_argument("--only", nargs="+", metavar="NAME", help="of the variants, these")
    args = parser.parse_args()
    run = Run(load(args.recipe, args.overrides), Workspace(args.workspace, part=99))
    for watermark in (one for one in run.recipe.watermark if one.soft):
        texts = list(texts_of(run, watermark))
        names = list(dict.fromkeys(text.attack for text in texts))
        print(f"\n{watermark.label}: {len(texts)} texts\n\n| | " + " | ".join(names) + " |")
        print("| --- " * (len(names) + 1) + "|")
        for name, score in ((one, variants()[one]) for one in args.only or variants()):
            found: dict[str, list[float]] = {attack: [] for attack in names}
            for text in texts:
                length = math.ceil(2.5 * text.units.count)
                blocks = np.concatenate([text.key.blocks(length)[None], text.key.null_blocks(0, args.draws, length)])
                scores = score(text, blocks)
                found[text.attack].append((1 + (scores[1:] >= scores[0]).sum()) / (args.draws + 1))
            shares = ([100 * np.mean(np.array(p) <= level) for level in (0.01, 0.05)] for p in found.values())
            cells = (f"{one:.0f} / {five:.0f}" for one, five in shares)
            print(f"| {name} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
