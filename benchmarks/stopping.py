"""What sampling until another candidate promises too little gains over a fixed number of candidates, at the same cost.

    python benchmarks/stopping.py simulate
    python benchmarks/stopping.py write --human booksum.jsonl.gz --human c4.jsonl.gz --texts 5

`simulate` draws worths from normal distributions, with a spread that differs from sentence to sentence or not, and finds for
each way to form waves the threshold at which the mean number of candidates is the fixed number. The threshold times this
number is nearly the same for all numbers: it is the constant in alimark/core/schemes/_block_rules.py. `write` writes texts
with a language model both ways, under the same keys, and prints what they cost and the mean worth of their sentences.
"""

from __future__ import annotations

import argparse
from itertools import islice

import numpy as np

from alimark.core._util.arrays import Floats
from alimark.core.embedding.loading import load_embedder
from alimark.core.generation.api import GenerationSettings, Prompt, generate_many
from alimark.core.generation.results import Generation
from alimark.core.keys.key import DEFAULT_EMBEDDER, Key
from alimark.core.keys.projection import carried, project, targets
from alimark.core.llm import DEFAULT_LLM, load_llm
from alimark.core.schemes._block_rules import AdaptiveBlockRule, BlockRule, expected_gain
from alimark.core.text.human_text import read_texts

SENTENCES, TEXTS = 12, 600


def simulated(wave: int, most: int, threshold: float, spreads: Floats, seed: int) -> tuple[float, float, float]:
    """The mean number of candidates, of waves, and the mean of the best worths."""
    draws = np.random.default_rng(seed)
    counts, bests, waves = [], [], []
    for text in spreads:
        before: list[float] = []
        for spread in text:
            worths = spread * draws.standard_normal(most)
            count = wave
            while True:
                estimate = float(worths[:count].std())
                gain = expected_gain(float(worths[:count].max() - worths[:count].mean()), estimate)
                if count >= most or gain <= threshold * np.mean([*before, estimate]):
                    break
                count = min(most, count + wave)
            before.append(estimate)
            counts.append(count)
            waves.append(-(-count // wave))
            bests.append(worths[:count].max())
    return float(np.mean(counts)), float(np.mean(waves)), float(np.mean(bests))


def simulate(args: argparse.Namespace) -> None:
    print("| spreads | candidates | wave, most | gain | waves | threshold x candidates |\n" + "| --- " * 6 + "|")
    for difference in (0.0, 0.25):
        spreads = np.exp(difference * np.random.default_rng(0).standard_normal((TEXTS, SENTENCES)))
        for mean in args.candidates:
            fixed = np.random.default_rng(1).standard_normal((TEXTS, SENTENCES, mean)).max(axis=2) * spreads
            for wave, most in (
                (mean // 4, 4 * mean),
                (mean // 2, 4 * mean),
                (mean * 3 // 4, 4 * mean),
                (mean * 3 // 4, 3 * mean),
            ):
                low, high = 1e-2 / mean, 4.0 / mean
                for _ in range(8):
                    threshold = (low * high) ** 0.5
                    count, waves, best = simulated(wave, most, threshold, spreads, seed=2)
                    low, high = (threshold, high) if count > mean else (low, threshold)
                ways = f"{wave}, {most}"
                gain = f"{best / fixed.mean() - 1:+.1%} | {waves:.1f} | {threshold * mean:.2f}"
                print(f"| {'differ' if difference else 'equal'} | {mean} | {ways} | {gain} |", flush=True)


def prompts(paths: list[str], count: int) -> list[str]:
    """The beginnings of the first texts of each file."""
    return [" ".join(text.split()[:30]) for path in paths for text in islice(read_texts(path), count)]


def write(args: argparse.Namespace) -> None:
    embedder, llm = load_embedder(args.embedder), load_llm(args.llm)
    beginnings = prompts(args.human, args.texts)
    print("| way | texts | candidates a sentence | tokens a text | waves a sentence | worth |\n" + "| --- " * 6 + "|")
    for mean in args.candidates:
        settings = GenerationSettings(SENTENCES, mean)
        for name, rule in (("fixed", BlockRule), ("adaptive", AdaptiveBlockRule)):
            generations: list[Generation] = []
            worths: list[float] = []
            for number, beginning in enumerate(beginnings):
                key = Key.generate(embedder=embedder, secret=number.to_bytes(32, "big"))
                for _, generation in generate_many(
                    [Prompt(beginning, number)], key, embedder, llm, settings, rule=rule
                ):
                    if isinstance(generation, Exception):
                        raise generation
                    generations.append(generation)
                    projections = project(embedder.embed(list(generation.sentences)), key)
                    blocks = targets(key, len(projections), 0)
                    worths += [
                        carried(row[None], block, key)[0].worth for row, block in zip(projections, blocks, strict=True)
                    ]
            sentences = sum(len(generation.sentences) for generation in generations)
            candidates, waves = (
                sum(getattr(g, field) for g in generations) / sentences for field in ("candidates", "waves")
            )
            tokens = np.mean([generation.tokens for generation in generations])
            print(
                f"| {name} {mean} | {len(generations)} | {candidates:.1f} | {tokens:,.0f} | {waves:.1f} "
                f"| {np.mean(worths):.3f} +- {np.std(worths) / len(worths) ** 0.5:.3f} |",
                flush=True,
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    simulation = commands.add_parser("simulate")
    simulation.add_argument("--candidates", type=int, nargs="+", default=[16, 64, 256])
    simulation.set_defaults(run=simulate)
    writing = commands.add_parser("write")
    writing.add_argument("--candidates", type=int, nargs="+", default=[64])
    writing.add_argument("--human", action="append", required=True, help="texts whose beginnings are the prompts")
    writing.add_argument("--texts", type=int, default=5, help="of each file")
    writing.add_argument("--llm", default=DEFAULT_LLM)
    writing.add_argument("--embedder", default=DEFAULT_EMBEDDER)
    writing.set_defaults(run=write)
    args = parser.parse_args()
    args.run(args)


if __name__ == "__main__":
    main()
