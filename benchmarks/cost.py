"""What marking costs: tokens, seconds and strength of light, standard and strong, beside plain generation by the same engine.

    python benchmarks/cost.py --count 2                                                           # llama.cpp on this CPU
    python benchmarks/cost.py --llm transformers:smollm2-135m --device cuda --count 64            # a GPU

All texts of a row are written together, as many at a time as the engine is fastest with. The prompt is prefilled once for all
candidates of a sentence, which share one batch and stop at the end of the sentence. Plain texts have as many tokens as the
marked ones, in one call of the engine. Strength: texts found at p <= 0.01, and the median score. On a GPU every row is run
twice from other seeds; the second run counts, because the first one records graphs.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence

import numpy as np

from alimark import AliMark, Key
from alimark.core.embedding.base import Embedder
from alimark.core.generation.api import Generation, GenerationSettings, Prompt, default_batch, generate_many
from alimark.core.generation.settings import candidates_and_steering
from alimark.core.llm.base import LLM, Request, Sampling, count_tokens, never
from alimark.core.schemes.registry import rule_for
from generation import PROMPTS
from local_service import load_models

COLUMNS = (
    "strength",
    "candidates",
    "steering",
    "tokens a text",
    "sampled a text",
    "s a text",
    "times plain",
    "tokens/s",
    "found",
    "median z",
)


def prompts(count: int, seed: int) -> list[Prompt]:
    """Prompts with a seed each; they are repeated where there are too few."""
    return [Prompt(PROMPTS[i % len(PROMPTS)], seed + i) for i in range(count)]


def marked(
    chosen: tuple[int, float], llm: LLM, embedder: Embedder, key: Key, options: argparse.Namespace, seed: int
) -> tuple[list[Generation], float]:
    """The texts of a row and their seconds."""
    candidates, steering = chosen
    settings = GenerationSettings(options.sentences, candidates, steering=steering)
    wanted, batch = prompts(options.count, seed), min(options.count, options.batch or default_batch(llm))
    started = time.perf_counter()
    results = [text for _, text in generate_many(wanted, key, embedder, llm, settings, rule=rule_for, batch=batch)]
    seconds = time.perf_counter() - started
    return [text for text in results if isinstance(text, Generation)], seconds


def plain(tokens: int, llm: LLM, options: argparse.Namespace, seed: int) -> float:
    """Seconds of the engine for as many unmarked texts of so many tokens."""
    requests = [Request(prompt.text, 1, prompt.seed or 0) for prompt in prompts(options.count, seed)]
    started = time.perf_counter()
    llm.draw(requests, Sampling(max_tokens=tokens), never)
    return time.perf_counter() - started


def written(texts: Sequence[Generation], llm: LLM) -> float:
    """The mean number of tokens of the finished texts."""
    return float(np.mean([count_tokens(llm, Request(text.text, 1, 0)) for text in texts]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--llm", default="smollm2-135m")
    parser.add_argument("--embedder", default="all-MiniLM-L6-v2")
    parser.add_argument("--device", help="cuda or cpu, for engines and embedders that can choose")
    parser.add_argument("--count", type=int, default=4, help="texts of each row")
    parser.add_argument("--sentences", type=int, default=12)
    parser.add_argument("--strengths", default="light,standard,strong")
    parser.add_argument("--unsteered", action="store_true", help="as for a model that cannot be steered")
    parser.add_argument("--batch", type=int, help="texts at a time")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    llm, embedder = load_models(options)
    key = Key.generate(embedder=embedder, secret=b"benchmarks of cost, 32 bytes in."[:32])
    mark = AliMark(key, embedder=embedder)
    print(f"{llm!r}, {embedder.name}, {options.count} texts of {options.sentences} sentences\n")
    print(f"| {' | '.join(COLUMNS)} |\n| --- |{' ---: |' * (len(COLUMNS) - 1)}", flush=True)
    runs = 2 if options.device == "cuda" else 1
    for strength in options.strengths.split(","):
        steerable = mark.steerable(llm) and not options.unsteered
        chosen = candidates_and_steering(strength, None, None, mark.candidates, steerable=steerable)
        for run in range(runs):
            seed = options.seed + 1000 * run
            texts, seconds = marked(chosen, llm, embedder, key, options, seed)
            tokens = written(texts, llm)
            plain_seconds = plain(round(tokens), llm, options, seed)
        sampled, detections = sum(text.tokens for text in texts), mark.detect([text.text for text in texts])
        found = sum(detection.p_value <= 0.01 for detection in detections)
        score = np.median([detection.score for detection in detections])
        print(
            f"| {strength} | {chosen[0]} | {chosen[1]:g} | {tokens:.0f} | {sampled / len(texts):,.0f} "
            f"| {seconds / len(texts):.2f} "
            f"| {seconds / plain_seconds:.1f} | {sampled / seconds:,.0f} | {found} of {len(texts)} | {score:.1f} |\n"
            f"| plain | | | {tokens:.0f} | {tokens:.0f} | {plain_seconds / len(texts):.2f} | 1 "
            f"| {tokens * len(texts) / plain_seconds:,.0f} | | |",
            flush=True,
        )


if __name__ == "__main__":
    main()
