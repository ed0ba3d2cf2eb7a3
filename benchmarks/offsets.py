"""What a secret start costs: texts of a bench recipe, found by detectors that allow for more and more starts.

    python benchmarks/offsets.py recipes/local/soft.toml work --set data.texts=50 --set llm=transformers:smollm2-135m

The texts begin with their key's first block, which is one start among as many as the detector allows for; no start is easier to
find than another, except that blocks before the first are none. Shares found at p <= 0.01 / p <= 0.05 by random keys, and
milliseconds that a text takes with 1000 of them. Attacks that failed are left out. With --best a soft score is the best over
starts, each scored apart, instead of the sum over them. With --tried also the shares found by a detector that tries so many
keys, each with one start, and multiplies the p-value by their number; small p-values come from a fitted exponential tail.
With --repeating also the shares under keys that follow conversations: they have so many runs, which repeat, and a text may
begin anywhere. --shuffle adds the sentences of each text in random order: about what somebody gets who asks for each sentence
by a prompt of its own.
"""

from __future__ import annotations

import argparse
import random
import time
from pathlib import Path

import numpy as np

from alimark.core._util.arrays import Floats
from alimark.core.detection.scoring import Hard, Scoring, Soft, scoring
from alimark.core.detection.settings import DetectionSettings
from alimark.core.detection.units import restructure
from alimark.core.frozen.kernels.types import Limits
from alimark.core.keys.key import Key
from alimark.core.keys.projection import project
from alimark.lab.bench.recipe_files import load
from alimark.lab.bench.run import Run
from alimark.lab.bench.workspace import Workspace
from attacker import TAIL_DRAWS, tail
from soft_rules import Text, texts_of

SETTINGS = DetectionSettings()


def with_offsets(key: Key, offsets: int) -> Scoring:
    rule = scoring(key, SETTINGS)
    if isinstance(rule, Soft):
        return Soft(rule.version, rule.restructure, key.like(offsets=offsets).starts)
    assert isinstance(rule, Hard)
    return Hard(rule.m, rule.settings, offsets)


def scores(text: Text, offsets: int, draws: int, best: bool) -> Floats:
    """Of the key itself, and of random ones."""
    rule = with_offsets(text.key, offsets)
    signals = rule.signals(text.units, project(text.vectors, text.key))
    length = rule.length(text.units.count)
    blocks = np.concatenate([text.key.blocks(length)[None], text.key.null_blocks(0, draws, length)])
    jobs = np.arange(len(blocks))
    if not best:
        return rule.scores([signals], blocks, 0 * jobs, jobs)
    alone, size = with_offsets(text.key, 1), length - offsets + 1
    windows = (np.ascontiguousarray(blocks[:, start : start + size]) for start in range(offsets))
    found: Floats = np.max([alone.scores([signals], window, 0 * jobs, jobs) for window in windows], axis=0)
    return found


def repeating_scores(text: Text, runs: int, draws: int) -> Floats:
    """The same under keys with so many runs, which repeat. The text begins at the first, which is as good as any other."""
    rule = scoring(text.key, SETTINGS)
    assert isinstance(rule, Soft)
    period = int(text.key.derivation.run_starts(runs + 1)[-1])
    rule = Soft(rule.version, rule.restructure, np.arange(period))
    signals = rule.signals(text.units, project(text.vectors, text.key))
    places = np.arange(rule.length(text.units.count)) % period
    blocks = np.concatenate([text.key.blocks(period)[None], text.key.null_blocks(0, draws, period)])
    jobs = np.arange(len(blocks))
    return rule.scores([signals], np.ascontiguousarray(blocks[:, places]), 0 * jobs, jobs)


def shuffled(text: Text, number: int) -> Text:
    """The sentences of a text in random order."""
    order = list(range(text.units.count))
    random.Random(number).shuffle(order)
    units = restructure([text.units.texts[i] for i in order], Limits.of("none"))
    return Text(text.prompt, "shuffled", text.key, units, text.vectors[order])


def row(texts: list[Text], scored: list[Floats], tried: int) -> str:
    """The shares found at p <= 0.01 / p <= 0.05 for each attack, with p-values multiplied by the number of keys tried."""
    found: dict[str, list[float]] = {text.attack: [] for text in texts}
    for text, (score, *null) in zip(texts, scored, strict=True):
        p = (1 + sum(other >= score for other in null)) / (len(null) + 1)
        if tried > 1:
            p = tried * min(p, tail(score, np.array(null)))
        found[text.attack].append(p)
    shares = ([100 * np.mean(np.array(p) <= level) for level in (0.01, 0.05)] for p in found.values())
    return " | ".join(f"{low:.0f} / {high:.0f}" for low, high in shares)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe", type=Path)
    parser.add_argument("workspace", type=Path)
    parser.add_argument("--set", action="append", default=[], dest="overrides", metavar="PATH=VALUE")
    parser.add_argument("--offsets", type=int, nargs="+", default=[1, 16, 64, 256, 1024])
    parser.add_argument("--draws", type=int, default=299)
    parser.add_argument("--tried", type=int, nargs="*", default=[], help="also one start and so many keys tried")
    parser.add_argument("--repeating", type=int, nargs="*", default=[], help="also keys with so many runs that repeat")
    parser.add_argument("--shuffle", action="store_true", help="also texts whose sentences are shuffled; needs --whole")
    parser.add_argument("--whole", action="store_true", help="embed sentences only, which is enough for version-3 keys")
    parser.add_argument("--best", action="store_true", help="the best over starts, each scored apart")
    args = parser.parse_args()
    run = Run(load(args.recipe, args.overrides), Workspace(args.workspace, part=99))
    for number, watermark in enumerate(run.recipe.watermark):
        texts = list(texts_of(run, watermark, Limits.of("none" if args.whole else "single")))
        if args.shuffle:
            texts += [shuffled(text, place) for place, text in enumerate(texts) if text.attack == "none"]
        if not number:
            names = list(dict.fromkeys(text.attack for text in texts))
            print(
                "| decision | detector | " + " | ".join(names) + " | ms a text |\n" + "| --- " * (len(names) + 3) + "|"
            )
        for offsets in args.offsets:
            scores(texts[0], offsets, 999, args.best)
            started = time.perf_counter()
            for text in texts[:3]:
                scores(text, offsets, 999, args.best)
            took = (time.perf_counter() - started) / 3
            cells = row(texts, [scores(text, offsets, args.draws, args.best) for text in texts], 1)
            print(f"| {watermark.label} | {offsets} starts | {cells} | {1000 * took:.0f} |", flush=True)
        for runs in args.repeating:
            cells = row(texts, [repeating_scores(text, runs, args.draws) for text in texts], 1)
            print(f"| {watermark.label} | {runs} runs that repeat | {cells} | |", flush=True)
        scored = [scores(text, 1, TAIL_DRAWS, args.best) for text in texts] if args.tried else []
        for tried in args.tried:
            print(f"| {watermark.label} | {tried} keys | {row(texts, scored, tried)} | |", flush=True)


if __name__ == "__main__":
    main()
