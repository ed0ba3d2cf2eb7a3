"""Embedding speed: alimark against sentence-transformers, warm and from a cold start, in one run.

    python benchmarks/embedding.py --model all-MiniLM-L6-v2 --texts 500
    python benchmarks/embedding.py --device cuda --human c4.jsonl.gz --texts 40000      # on a GPU, and what detection embeds

All run the same weights on the same texts, alimark in each precision that the device has (docs/generating.md). They take turns,
and the median turn counts, so that other work on the machine falls on all. On a GPU it is also printed where the time goes.
With --human the texts are the units of human documents of twelve sentences: sentences, neighbours joined, halves. On a CPU the
arithmetic is counted, too: how many operations a second each embedder does in the matrix products of its layers, beside a large
product of NumPy, which shows what the cores can do in float32. Int8 instructions (VNNI) do four times as many at the most.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from alimark.core.embedding.base import Embedder, at_precision, precisions_of
from alimark.core.embedding.loading import load_embedder
from alimark.core.frozen.text.splitting import splitter
from alimark.core.keys.key import Key
from alimark.core.schemes.alimark import AliMark
from alimark.core.text.human_text import read_texts

COLD_TEXTS = 47  # what `alimark detect` embeds for a text of twelve sentences
WORDS = """the of and a to in is was for that on with as by at from it an be which are this were had not have
one their first been also after who two its new other when time all there would into more year people city state
world between during under school government number through company system water history group however million
national later before until university public known several family music early while against international life
work being early river building design language century community research local market energy council teacher
political development published including significant approximately characteristics understanding""".split()

COLD = """
import sys, time
start = time.perf_counter()
from alimark.core.embedding.loading import load_embedder
embedder = load_embedder(sys.argv[1], backend=sys.argv[2])
embedder.embed(sys.stdin.read().split("\\n"))
print(time.perf_counter() - start)
"""


def sentences(count: int, seed: int = 1) -> list[str]:
    """Sentences whose lengths spread as those of news text do: 20 words on average, 4 to 60."""
    rng = random.Random(seed)
    lengths = [min(60, max(4, round(rng.lognormvariate(2.85, 0.5)))) for _ in range(count)]
    return [" ".join(rng.choices(WORDS, k=length)).capitalize() + "." for length in lengths]


def units(path: Path, count: int, embedder: Embedder) -> list[str]:
    """What detection embeds of documents of twelve sentences."""
    cut, key, found = splitter("nupunkt"), Key.generate(embedder=embedder, decision="hard"), dict[str, None]()
    for text in read_texts(path):
        passage = cut.units(text)
        documents = [" ".join(passage[at : at + 12]) for at in range(0, len(passage) - 11, 12)]
        found |= dict.fromkeys(AliMark(key, embedder=embedder).units(documents))
        if len(found) >= count:
            break
    return list(found)[:count]


def speed(embed: Callable[[list[str]], Any], texts: list[str]) -> tuple[float, float]:
    """Texts a second, and a CPU second of all threads, which other programs on the machine disturb less."""
    start, cpu = time.perf_counter(), time.process_time()
    embed(texts)
    return len(texts) / (time.perf_counter() - start), len(texts) / (time.process_time() - cpu)


def cold(model: str, backend: str) -> tuple[float, float]:
    """Seconds of a new process, and of its share from the first import on."""
    start = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-c", COLD, model, backend],
        input="\n".join(sentences(COLD_TEXTS, seed=2)),
        capture_output=True,
        text=True,
        check=True,
    )
    return time.perf_counter() - start, float(done.stdout)


def rates(
    embedders: Mapping[str, Callable[[list[str]], Any]], texts: list[str], turns: int
) -> dict[str, tuple[float, float]]:
    """Texts a second and a CPU second of each embedder, the medians of several turns."""
    spent = [{name: speed(embed, texts) for name, embed in embedders.items()} for _ in range(turns)]
    return {
        name: (statistics.median(turn[name][0] for turn in spent), statistics.median(turn[name][1] for turn in spent))
        for name in embedders
    }


def print_rates(
    args: argparse.Namespace, embedders: Mapping[str, Callable[[list[str]], Any]], texts: list[str]
) -> None:
    """Prints the rate of each embedder, its ratio to the last one, and how far its vectors are from those of the first."""
    what = "units" if args.human else "sentences"
    first = next(iter(embedders.values()))(texts[:64])
    print(f"{args.model} on {args.device or 'the CPU'}, {len(texts)} {what}, {args.turns} turns")
    measured = rates(embedders, texts, args.turns)
    *_, rival = measured.values()
    if not args.device:
        print_arithmetic(args, {name: rate for name, (rate, _) in measured.items()}, texts)
    for name, (rate, cpu) in measured.items():
        cosine = float((embedders[name](texts[:64]) * first).sum(axis=1).mean())
        print(
            f"  {name:24} {rate:9.1f} {what}/s, ratio {rate / rival[0]:5.2f}; {cpu:8.1f} a CPU second, ratio "
            f"{cpu / rival[1]:5.2f}; mean cosine with float32 {cosine:.6f}",
            flush=True,
        )


def print_arithmetic(args: argparse.Namespace, texts_a_second: Mapping[str, float], texts: list[str]) -> None:
    """Prints the operations a second in the matrix products of all layers, without padding and attention."""
    from tokenizers import Tokenizer

    from alimark.core.models import store

    folder = store.resolve(args.model)
    config = json.loads((folder / "config.json").read_bytes())
    hidden, wide = config["hidden_size"], config["intermediate_size"]
    a_token = 2 * config["num_hidden_layers"] * (4 * hidden * hidden + 2 * hidden * wide)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_padding()
    tokens = sum(len(encoding.ids) for encoding in tokenizer.encode_batch(texts)) / len(texts)
    rates = {name: rate * tokens * a_token / 1e9 for name, rate in texts_a_second.items()}
    matrix = np.random.default_rng(1).standard_normal((2048, 2048), dtype=np.float32)
    seconds = min(_seconds(lambda: matrix @ matrix) for _ in range(5))
    rates["NumPy, 2048 x 2048, float32"] = 2 * 2048**3 / seconds / 1e9
    print(
        f"  {tokens:.1f} tokens a text; billion operations a second: "
        + ", ".join(f"{name} {rate:.0f}" for name, rate in rates.items())
    )


def _seconds(call: Callable[[], object]) -> float:
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


def on_device(args: argparse.Namespace) -> None:
    from sentence_transformers import SentenceTransformer

    from alimark.core.models import store

    ours = load_embedder(args.model, backend="torch", device=args.device)
    rival = SentenceTransformer(str(store.resolve(args.model)), device=args.device)
    texts = units(args.human, args.texts, ours) if args.human else sentences(args.texts)

    def theirs(some: list[str]) -> Any:
        return rival.encode(some, batch_size=256, normalize_embeddings=True)

    fast = {f"alimark, {precision}": at_precision(ours, precision) for precision in precisions_of(ours)}
    embedders = {name: embedder.embed for name, embedder in fast.items()} | {"sentence-transformers": theirs}
    for embed in embedders.values():
        embed(texts)  # graphs are recorded, kernels chosen
    print_rates(args, embedders, texts)
    for name, embedder in fast.items():
        print_shares(name, embedder, texts)


def print_shares(name: str, embedder: Embedder, texts: list[str]) -> None:
    """Prints where the time of one call goes on a GPU: tokenising, padding, launching, waiting for the GPU, copying."""
    import torch

    from alimark.core.embedding.cuda_graphs import plan_batches

    inner: Any = embedder
    recorded = inner._recorded
    if recorded is None:
        return
    wait: Any = torch.cuda.synchronize if torch.cuda.is_available() else lambda: None
    marks = [time.perf_counter()]

    def lap() -> None:
        marks.append(time.perf_counter())

    with torch.inference_mode():
        rows = [encoding.ids for encoding in inner._tokenizer.encode_batch_fast(texts)]
        lap()
        batches = list(plan_batches(list(map(len, rows)), recorded._longest))
        for shape, numbers in batches:
            recorded._padded([rows[i] for i in numbers], shape)
        lap()
        vectors = recorded(rows)
        lap()
        wait()
        lap()
        vectors.cpu()
        lap()
    spans = [1000 * (after - before) for before, after in zip(marks, marks[1:], strict=False)]
    tokens, padded = sum(map(len, rows)), sum(shape.texts * shape.tokens for shape, _ in batches)
    titles = ("tokenising", "padding alone", "padding and launching", "waiting for the GPU", "copying")
    parts = ", ".join(f"{title} {span:.1f} ms" for title, span in zip(titles, spans, strict=True))
    print(f"  {name}: {parts}; {len(batches)} batches, {tokens:,} tokens, with padding {padded:,}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="all-MiniLM-L6-v2")
    parser.add_argument("--texts", type=int, default=500)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--human", type=Path, help="JSONL of human texts: embed their units")
    parser.add_argument("--device", help="cuda: both on the GPU")
    args = parser.parse_args()
    if args.device:
        on_device(args)
        return
    ours, theirs = load_embedder(args.model, backend="onnx"), load_embedder(args.model, backend="torch")
    texts = units(args.human, args.texts, ours) if args.human else sentences(args.texts)
    embedders = {
        "onnxruntime, float32": ours.embed,
        "onnxruntime, int8": at_precision(ours, "int8").embed,
        "sentence-transformers": theirs.embed,
    }
    print_rates(args, embedders, texts)
    del ours, theirs, embedders
    starts = [(cold(args.model, "onnx"), cold(args.model, "torch")) for _ in range(args.turns)]
    for name, column in zip(("onnxruntime", "sentence-transformers"), zip(*starts, strict=True), strict=True):
        whole, share = (statistics.median(values) for values in zip(*column, strict=True))
        print(f"  cold start, {COLD_TEXTS} sentences, {name:21} {whole:6.2f} s (from the first import {share:.2f} s)")


if __name__ == "__main__":
    main()
