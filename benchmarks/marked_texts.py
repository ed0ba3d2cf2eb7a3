"""Marks texts with real weights and reports how well: bits carried, tokens spent, texts found.

    python benchmarks/marked_texts.py --output marked                # 20 prompts of different subjects, 64 candidates
    python benchmarks/marked_texts.py --output marked --prompts prompts.jsonl --count 50
    python benchmarks/marked_texts.py --output marked --llm transformers:smollm2-135m --device cuda

Writes marked/texts.jsonl, resumed by id, and one fresh key a text under marked/keys. What sampling would cost without
stopping at the sentence's end (128 tokens for each candidate) is printed beside what it did cost.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import numpy as np

from alimark import AliMark, Key, load_embedder, load_llm
from alimark.core._util.jsonl import JsonlWriter, Record, read_jsonl
from alimark.core.generation.api import GenerationSettings, Prompt, generate_many
from alimark.core.schemes.registry import rule_for
from alimark.errors import AlimarkError

PROMPTS = (
    "The old lighthouse at the edge of the bay had been dark for thirty years.",
    "Scientists have found a new way to store energy from the sun.",
    "The city council met on Tuesday to discuss the new tram line.",
    "My grandmother kept a garden behind the house where she grew up.",
    "In the second half the visiting team changed its tactics.",
    "A good loaf of bread begins with patience.",
    "The central bank raised its interest rate for the third time this year.",
    "When the first settlers reached the valley, they found it full of birds.",
    "Doctors are warning that the flu season may start early.",
    "The novel tells the story of two brothers who leave their village.",
    "Learning to play the violin as an adult is harder than it looks.",
    "The court ruled that the contract had never been valid.",
    "Volcanoes shape the land in ways that are easy to overlook.",
    "Our train stopped in the middle of the bridge without a word of explanation.",
    "The museum will open a new wing devoted to textiles.",
    "Every winter the whales come back to the same quiet bay.",
    "The software update fixed a problem that nobody had noticed.",
    "Teachers across the country are asking for smaller classes.",
    "He opened the letter slowly, as if he already knew what it said.",
    "Growing tomatoes on a balcony needs little more than light and water.",
)


def read_prompts(path: Path | None, count: int) -> list[str]:
    if path is None:
        return list(PROMPTS)[:count]
    records = [record for _, record in read_jsonl(path) if isinstance(record, dict)]
    return list(dict.fromkeys(str(record["prompt"]) for record in records))[:count]


def write(options: argparse.Namespace) -> None:
    """Marks every prompt that is not done yet, each under a key of its own."""
    folder: Path = options.output
    backend: Any = "auto" if options.device is None else "torch"
    embedder = load_embedder(options.embedder, backend=backend, device=options.device)
    llm = load_llm(options.llm) if options.device is None else load_llm(options.llm, device=options.device)
    settings = GenerationSettings(options.sentences, options.candidates, wave=options.wave)
    prompts = read_prompts(options.prompts, options.count)
    with JsonlWriter(folder / "texts.jsonl") as writer:
        left = [number for number in range(len(prompts)) if str(number) not in writer.done]
        shape = {"decision": "hard", "block_size": options.block_size}
        keys = {number: Key.generate(embedder=embedder, **shape) for number in left}
        jobs = [Prompt(prompts[number], options.seed + number, keys[number]) for number in left]
        for i, made in generate_many(jobs, None, embedder, llm, settings, rule=rule_for):
            if isinstance(made, AlimarkError):
                raise made
            number = left[i]
            keys[number].save(folder / "keys" / f"{made.key_id}.json")
            writer.write(made.record(str(number)))
            print(f"{number}: {len(made.sentences)} sentences, {np.mean(made.matches):.2f} bits", flush=True)
        writer.arrange([str(number) for number in range(len(prompts))])


def report(folder: Path, options: argparse.Namespace) -> None:
    records: list[Record] = [record for _, record in read_jsonl(folder / "texts.jsonl") if isinstance(record, dict)]
    matches = [count for record in records for count in record["matches"]]
    sentences = sum(len(record["sentences"]) for record in records)
    tokens = sum(record["cost"]["tokens"] for record in records)
    candidates = sum(record["cost"]["candidates"] for record in records)
    print(f"{len(records)} texts, {sentences} sentences; ended: {sorted({record['ended'] for record in records})}")
    print(f"bits carried a sentence: {np.mean(matches):.3f} of {options.block_size}")
    print(f"sentences that survive splitting again: {sum(record['surviving'] for record in records)} of {sentences}")
    print(
        f"tokens sampled a kept sentence: {tokens / sentences:.0f}, "
        f"with 128 for each of {candidates / sentences:.1f} candidates: {128 * candidates / sentences:.0f}, "
        f"with 128 for each of {options.candidates}: {128 * options.candidates} "
        f"({128 * options.candidates * sentences / tokens:.2f} times fewer)"
    )
    print(f"seconds a text: {np.mean([record['cost']['seconds'] for record in records]):.1f}")
    backend: Any = "auto" if options.device is None else "torch"
    embedder = load_embedder(options.embedder, backend=backend, device=options.device)
    p_values, z = [], []
    for record in records:
        found = AliMark(Key.load(folder / "keys" / f"{record['key_id']}.json"), embedder=embedder).detect(
            record["text"]
        )
        p_values.append(found.p_value)
        z.append(found.raw)
    print(f"found at p < 0.01: {sum(p < 0.01 for p in p_values)} of {len(records)}, largest p {max(p_values):.4g}")
    print(f"z: mean {np.mean(z):.2f}, least {np.min(z):.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, required=True, help="folder for texts and keys")
    parser.add_argument("--prompts", type=Path, help="JSONL with a `prompt` on each line")
    parser.add_argument("--count", type=int, default=20)
    parser.add_argument("--sentences", type=int, default=12)
    parser.add_argument("--candidates", type=int, default=64)
    parser.add_argument("--block-size", type=int, default=8)
    parser.add_argument("--wave", type=int)
    parser.add_argument("--llm", default="smollm2-135m")
    parser.add_argument("--embedder", default="all-MiniLM-L6-v2")
    parser.add_argument("--device", help="cuda: LLM and embedder on the GPU")
    parser.add_argument("--seed", type=int, default=1000)
    options = parser.parse_args()
    (options.output / "keys").mkdir(parents=True, exist_ok=True)
    started = time.perf_counter()
    write(options)
    print(f"generated in {time.perf_counter() - started:.0f} s")
    report(options.output, options)


if __name__ == "__main__":
    main()
