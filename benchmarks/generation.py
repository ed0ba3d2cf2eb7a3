"""Seconds a marked text takes, against the straightforward loop on the same machine.

    python benchmarks/generation.py                                             # 4 prompts on this CPU
    python benchmarks/generation.py --llm transformers:smollm2-135m --device cuda --count 64 --rival generate --rival-count 2

The rival writes `--rival-count` of the same prompts, one at a time: 128 tokens for each of the candidates, of which the
first sentence is kept, all of them embedded. `--rival loop` samples with the same engine, `--rival generate` with
transformers' own generate. Tokens that we count end with the sentence; what the GPU samples beyond it is not counted. The
time is that of all texts, with splitting and embedding, without loading the models. On a GPU all is run twice, from other
seeds: the first time graphs are recorded on the way, the second is what a server that is up gives.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from alimark import AliMark, Key, load_embedder, load_llm
from alimark.core._util.jsonl import read_jsonl
from alimark.core.embedding.base import Embedder
from alimark.core.frozen.projecting import to_bits
from alimark.core.frozen.text.splitting import splitter
from alimark.core.frozen.text.units import clean
from alimark.core.generation.api import Generation, GenerationSettings, Prompt, default_batch, generate_many
from alimark.core.keys.projection import project
from alimark.core.llm.base import LLM, Request, Sampling
from alimark.core.schemes.registry import rule_for

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


Continue = Callable[[str, int, int], list[str]]
"""Continuations of a context: their number and a seed."""


def ours(prompts: Sequence[str], key: Key, embedder: Embedder, llm: LLM, options: argparse.Namespace) -> float:
    """Writes all texts and prints what it took; the seconds of a text."""
    settings = GenerationSettings(options.sentences, options.candidates, steering=options.steering)
    batch = options.batch or min(len(prompts), default_batch(llm))
    started = time.monotonic()
    made = []
    numbered = [Prompt(prompt, options.seed + i) for i, prompt in enumerate(prompts)]
    for _, one in generate_many(numbered, key, embedder, llm, settings, rule=rule_for, batch=batch):
        if not isinstance(one, Generation):
            raise one
        made.append(one)
        print(f"  {len(made)} of {len(prompts)} texts, {time.monotonic() - started:.1f} s", flush=True)
    seconds = time.monotonic() - started
    tokens = sum(one.tokens for one in made)
    found = sum(answer.p_value < 0.01 for answer in AliMark(key, embedder=embedder).detect([one.text for one in made]))
    print(
        f"ours, {batch} texts at a time: {seconds:.1f} s, {seconds / len(made):.3f} s a text, {tokens} tokens, "
        f"{tokens / seconds:,.0f} tokens/s\n"
        f"  {np.mean([m for one in made for m in one.matches]):.2f} of {key.block_size} bits, {found} of {len(made)} found at "
        f"p < 0.01, {sum(one.ended == 'complete' for one in made)} complete, "
        f"{tokens / max(1, sum(one.candidates for one in made)):.1f} tokens a candidate"
    )
    return seconds / len(made)


def models(options: argparse.Namespace) -> tuple[Embedder, LLM, Key]:
    on = {} if options.device is None else {"device": options.device}
    backend: Any = "torch" if options.device == "cuda" else "auto"
    embedder = load_embedder(options.embedder, backend=backend, **({} if backend == "auto" else on))
    llm = load_llm(options.llm, **on, **dict(options.option))
    key = Key.generate(embedder=embedder, decision=options.decision, secret=bytes(range(32)))
    return embedder, llm, key


def straightforward(
    prompt: str, key: Key, embedder: Embedder, go_on: Continue, options: argparse.Namespace
) -> tuple[float, int]:
    """The paper's loop as it stands: sample, split, embed, choose. Seconds, and sentences written."""
    cutter = splitter(key.splitter)
    started = time.perf_counter()
    text, written = "", 0
    for number, block in enumerate(key.blocks(options.rival_sentences or options.sentences).tolist()):
        context = f"{prompt} {text}".rstrip()
        drawn = go_on(context, options.candidates, options.seed + number)
        firsts = [sentences[0] for one in drawn if (sentences := cutter.sentences(one))]
        if not firsts:
            break
        bits = to_bits(project(embedder.embed([clean(sentence) for sentence in firsts]), key)).tolist()
        matches = [key.block_size - (one ^ block).bit_count() for one in bits]
        best = [i for i, count in enumerate(matches) if count == max(matches)]
        text = f"{text} {firsts[random.Random(number).choice(best)]}".strip()
        written += 1
    return time.perf_counter() - started, written


def same_engine(llm: LLM) -> Continue:
    def go_on(context: str, count: int, seed: int) -> list[str]:
        [draws] = llm.draw([Request(context, count, seed)], Sampling(), lambda text: False)
        return [draw.text for draw in draws]

    return go_on


def own_generate(name: str, device: str) -> Continue:
    """transformers' generate, as its documentation shows it, with the paper's settings."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from alimark.core.models import store
    from alimark.core.models.torch_weights import converted

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
            found = model.generate(
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
        texts: list[str] = tokenizer.batch_decode(found[:, ids["input_ids"].shape[1] :], skip_special_tokens=True)
        return texts

    return go_on


def engine_option(text: str) -> tuple[str, Any]:
    name, _, value = text.partition("=")
    return name, json.loads(value)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--llm", default="smollm2-135m")
    parser.add_argument("--embedder", default="all-MiniLM-L6-v2")
    parser.add_argument("--device", help="cuda or cpu, for engines and embedders that can choose")
    parser.add_argument("--option", type=engine_option, action="append", default=[], help="of the engine: NAME=JSON")
    parser.add_argument("--prompts", type=Path, help="JSONL with a `prompt` on each line")
    parser.add_argument("--count", type=int, default=4)
    parser.add_argument("--sentences", type=int, default=12)
    parser.add_argument("--candidates", type=int, default=64)
    parser.add_argument("--batch", type=int, help="texts at a time")
    parser.add_argument(
        "--steering", type=float, default=0.0, help="0 for none; 2.5 with 8 candidates is the default strength"
    )
    parser.add_argument("--decision", choices=("hard", "soft"), default="hard")
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

    embedder, llm, key = models(options)
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
    go_on = same_engine(llm) if options.rival == "loop" else own_generate(options.llm, options.device or "cpu")
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
