"""Time to write a marked text, compared with a straightforward loop on the same machine.

    python benchmarks/generation.py                                             # 4 prompts on this CPU
    python benchmarks/generation.py --llm transformers:smollm2-135m --device cuda --count 64 --rival generate --rival-count 2

The rival writes texts for `--rival-count` of the same prompts, one at a time: it samples 128 tokens for each candidate, keeps
the first sentence, and embeds all of them. `--rival loop` samples with the same engine, `--rival generate` with the `generate`
method of transformers. Only tokens up to the sentence's end are counted, not what the GPU samples beyond it. The time is that
of all texts, with splitting and embedding, without loading the models. On a GPU everything is run twice, with other seeds: in
the first run CUDA graphs are recorded, the second shows the speed of a server that is warm.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from alimark import AliMark, Key, load_embedder, load_llm
from alimark.embedding.base import Embedder
from alimark.generation.api import Generation, GenerationSettings, Prompt, default_batch, generate_many
from alimark.keys.projection import project, to_bits
from alimark.llm.base import LLM, Request, Sampling
from alimark.text.splitting import splitter
from alimark.text.units import clean
from marked_texts import read_prompts

Continue = Callable[[str, int, int], list[str]]
"""Samples continuations of a context, given their number and a seed."""


def ours(prompts: Sequence[str], key: Key, embedder: Embedder, llm: LLM, options: argparse.Namespace) -> float:
    settings = GenerationSettings(options.sentences, options.candidates)
    batch = options.batch or min(len(prompts), default_batch(llm))
    started = time.perf_counter()
    generations: list[Generation] = []
    numbered = [Prompt(prompt, options.seed + i) for i, prompt in enumerate(prompts)]
    for _, outcome in generate_many(numbered, key, embedder, llm, settings, batch=batch):
        if not isinstance(outcome, Generation):
            raise outcome
        generations.append(outcome)
        print(f"  {len(generations)} of {len(prompts)} texts, {time.perf_counter() - started:.1f} s", flush=True)
    seconds = time.perf_counter() - started
    count = len(generations)
    tokens = sum(generation.tokens for generation in generations)
    detections = AliMark(key, embedder=embedder).detect([generation.text for generation in generations])
    detected = sum(detection.p_value < 0.01 for detection in detections)
    matches = np.mean([bits for generation in generations for bits in generation.matches])
    complete = sum(generation.ended == "complete" for generation in generations)
    candidates = max(1, sum(generation.candidates for generation in generations))
    print(
        f"ours, {batch} texts at a time: {seconds:.1f} s, {seconds / count:.3f} s a text, {tokens} tokens, "
        f"{tokens / seconds:,.0f} tokens/s\n"
        f"  {matches:.2f} of {key.block_size} bits, {detected} of {count} found at p < 0.01, {complete} complete, "
        f"{tokens / candidates:.1f} tokens a candidate"
    )
    return seconds / count


def straightforward(
    prompt: str, key: Key, embedder: Embedder, go_on: Continue, options: argparse.Namespace
) -> tuple[float, int]:
    """The paper's loop: sample, split, embed, choose. Returns the seconds and the number of sentences written."""
    cutter = splitter(key.splitter)
    started = time.perf_counter()
    text, written = "", 0
    for number, block in enumerate(key.blocks(options.rival_sentences or options.sentences).tolist()):
        context = f"{prompt} {text}".rstrip()
        drawn = go_on(context, options.candidates, options.seed + number)
        firsts = [sentences[0] for continuation in drawn if (sentences := cutter.sentences(continuation))]
        if not firsts:
            break
        bits = to_bits(project(embedder.embed([clean(sentence) for sentence in firsts]), key)).tolist()
        matches = [key.block_size - (candidate ^ block).bit_count() for candidate in bits]
        best = [i for i, count in enumerate(matches) if count == max(matches)]
        text = f"{text} {firsts[random.Random(number).choice(best)]}".strip()
        written += 1
    return time.perf_counter() - started, written


def same_engine(llm: LLM) -> Continue:
    def go_on(context: str, count: int, seed: int) -> list[str]:
        [draws] = llm.draw([Request(context, count, seed)], Sampling(), lambda text: False)
        return [draw.text for draw in draws]

    return go_on


def transformers_generate(name: str, device: str) -> Continue:
    """The `generate` method of transformers, as its documentation shows it, with the paper's settings."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from alimark.llm.torch.weights import converted
    from alimark.models import store

    path = store.resolve(name.removeprefix("transformers:"))
    folder = converted(path) if path.suffix == ".gguf" else path
    tokenizer: Any = AutoTokenizer.from_pretrained(folder)
    kind = torch.bfloat16 if device == "cuda" else torch.float32
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=kind).to(device).eval()
    sampling = Sampling()

    def go_on(context: str, count: int, seed: int) -> list[str]:
        torch.manual_seed(seed)
        ids = tokenizer(context, return_tensors="pt").to(device)
        with torch.inference_mode():
            output = model.generate(
                **ids,
                do_sample=True,
                temperature=sampling.temperature,
                top_p=sampling.top_p,
                top_k=0,
                repetition_penalty=sampling.repetition_penalty,
                max_new_tokens=sampling.max_tokens,
                num_return_sequences=count,
                pad_token_id=tokenizer.eos_token_id,
            )
        texts: list[str] = tokenizer.batch_decode(output[:, ids["input_ids"].shape[1] :], skip_special_tokens=True)
        return texts

    return go_on


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--llm", default="smollm2-135m")
    parser.add_argument("--embedder", default="all-MiniLM-L6-v2")
    parser.add_argument("--device", help="cuda or cpu, for engines and embedders that can choose")
    parser.add_argument("--prompts", type=Path, help="JSONL with a `prompt` on each line")
    parser.add_argument("--count", type=int, default=4)
    parser.add_argument("--sentences", type=int, default=12)
    parser.add_argument("--candidates", type=int, default=64)
    parser.add_argument("--batch", type=int, help="texts at a time")
    parser.add_argument("--rival", choices=("loop", "generate", "none"), default="loop")
    parser.add_argument("--rival-count", type=int, default=1)
    parser.add_argument(
        "--rival-sentences",
        type=int,
        help="fewer for the rival, whose time is then scaled: a lower bound, since later ones take longer",
    )
    parser.add_argument("--once", action="store_true", help="on a GPU: only the run in which graphs are recorded")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()

    on = {} if options.device is None else {"device": options.device}
    backend: Any = "torch" if options.device == "cuda" else "auto"
    embedder = load_embedder(options.embedder, backend=backend, **({} if backend == "auto" else on))
    llm = load_llm(options.llm, **on)
    key = Key(bytes(range(32)), embedder=embedder.name, fingerprint=embedder.fingerprint)
    prompts = read_prompts(options.prompts, options.count)
    print(f"{llm!r}, {embedder.name}; {len(prompts)} prompts, {options.sentences} sentences, Q={options.candidates}")
    if options.device == "cuda" and not options.once:
        print("first run, in which the GPU's graphs are recorded:")
        ours(prompts, key, embedder, llm, options)
        options.seed += 1000
        print("second run:")
    mine = ours(prompts, key, embedder, llm, options)
    if options.rival == "none":
        return
    go_on = same_engine(llm) if options.rival == "loop" else transformers_generate(options.llm, options.device or "cpu")
    took = []
    for prompt in prompts[: options.rival_count]:
        seconds, written = straightforward(prompt, key, embedder, go_on, options)
        took.append(seconds * options.sentences / max(1, written))
        print(f"rival ({options.rival}): {seconds:.1f} s for {written} sentences", flush=True)
    print(
        f"rival: {np.mean(took):.1f} s a text of {options.sentences} sentences; "
        f"ours takes {np.mean(took) / mine:.1f} times less"
    )


if __name__ == "__main__":
    main()
