"""Every stage of a detection against a stated rival, in one table (`make bench`).

    python benchmarks/stages.py --turns 5

Alimark and its rival take turns on the same input, and the median turn counts. The ratio is that of the times; that of the CPU
times stands beside it, since a busy machine disturbs it less. Rivals: pysbd splits; sentence-transformers embeds, in float32 on
the same weights; the paper's algorithm aligns, one pass for each restructured candidate, compiled like alimark's; a whole
detection is compared with all of these together, and `alimark detect` in a new process with a process that loads
sentence-transformers and embeds the same units.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

from alimark.core.detection.pipeline import detect_batch
from alimark.core.detection.preparing import prepare
from alimark.core.detection.settings import DetectionSettings
from alimark.core.detection.stats.null_tables import paper_rule
from alimark.core.embedding.base import at_precision
from alimark.core.embedding.loading import load_embedder
from alimark.core.frozen.kernels.hard import search
from alimark.core.frozen.kernels.types import Limits
from alimark.core.frozen.text.splitting import splitter
from alimark.core.keys.key import Key
from detection import M, per_candidate, random_text
from embedding import COLD, sentences

SENTENCES = 26


class Stage(NamedTuple):
    """A stage, what alimark and its rival do for it, and the name of the rival."""

    name: str
    ours: Callable[[], object]
    theirs: Callable[[], object]
    rival: str


def cost(call: Callable[[], object]) -> tuple[float, float]:
    """The seconds and the CPU seconds of a call, those of processes that it starts included."""
    times = time.process_time(), _children()
    started = time.perf_counter()
    call()
    return time.perf_counter() - started, time.process_time() - times[0] + _children() - times[1]


def _children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def splitting(text: str) -> Stage:
    import pysbd

    other = pysbd.Segmenter(language="en", clean=False)
    return Stage("splitting", lambda: splitter("nupunkt").units(text), lambda: other.segment(text), "pysbd")


def embedding(model: str, units: list[str]) -> list[Stage]:
    exact, rival = load_embedder(model, backend="onnx"), load_embedder(model, backend="torch")
    fast = at_precision(exact, "int8")
    name, other = f"embedding {len(units)} units", "sentence-transformers"
    return [
        Stage(f"{name}, float32", lambda: exact.embed(units), lambda: rival.embed(units), other),
        Stage(f"{name}, int8", lambda: fast.embed(units), lambda: rival.embed(units), other),
    ]


def alignment(keys: int) -> Stage:
    rng = np.random.default_rng(0)
    rule = paper_rule(M, SENTENCES + 1)
    units, valid = random_text(rng, SENTENCES)
    blocks = rng.integers(0, 1 << M, (keys, int(rule.most[-1]))).astype(np.uint64)
    limits = Limits.of("single")

    def theirs() -> None:
        for row in blocks:
            per_candidate(units, row, M, tuple(rule))

    def ours() -> object:
        return search(units, valid, blocks, M, limits, rule)

    return Stage(f"alignment with {keys} keys", ours, theirs, "a pass for each candidate")


def detection(model: str, text: str) -> list[Stage]:
    embedder, rival = load_embedder(model, backend="onnx"), load_embedder(model, backend="torch")
    key = Key.generate(embedder=embedder, decision="hard", secret=bytes(32))
    settings = DetectionSettings(draws=999)
    units = prepare(text, key, embedder, settings).unit_texts
    align = alignment(1000)

    def theirs() -> None:
        rival.embed(units)
        align.theirs()

    stages = []
    for precision in ("float32", "int8"):
        ours = partial(detect_batch, [text], [key], at_precision(embedder, precision), settings)
        stages.append(Stage(f"detection, {precision}", ours, theirs, "both of these"))
    return stages


def cold_start(model: str, text: str, folder: Path) -> Stage:
    embedder = load_embedder(model)
    key = Key.generate(embedder=embedder, secret=bytes(32))
    units = prepare(text, key, embedder, DetectionSettings()).unit_texts
    key.save(folder / "key.json")
    (folder / "text.txt").write_text(text)
    command = [sys.executable, "-m", "alimark", "detect", "-k", str(folder / "key.json"), str(folder / "text.txt")]
    loading = [sys.executable, "-c", COLD, model, "torch"]
    return Stage(
        "`alimark detect` in a new process",
        lambda: subprocess.run(command, capture_output=True, check=False),
        lambda: subprocess.run(loading, input="\n".join(units), text=True, capture_output=True, check=True),
        "sentence-transformers, without alignment",
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="all-MiniLM-L6-v2")
    parser.add_argument("--turns", type=int, default=5)
    args = parser.parse_args()
    text = " ".join(sentences(SENTENCES, seed=3))
    units = sentences(4 * SENTENCES, seed=4)
    with tempfile.TemporaryDirectory() as folder:
        stages = [
            splitting(text), *embedding(args.model, units), alignment(1), alignment(1000), *detection(args.model, text),
            cold_start(args.model, text, Path(folder)),
        ]  # fmt: skip
        print(f"{args.model}, texts of {SENTENCES} sentences, {args.turns} turns\n")
        print("| stage | alimark | rival | ratio | of CPU time | the rival |\n| --- | --- | --- | --- | --- | --- |")
        for stage in stages:
            stage.ours(), stage.theirs()  # compiles and loads
            turns = [(*cost(stage.ours), *cost(stage.theirs)) for _ in range(args.turns)]
            ours, our_cpu, theirs, their_cpu = (statistics.median(values) for values in zip(*turns, strict=True))
            print(
                f"| {stage.name} | {1000 * ours:.1f} ms | {1000 * theirs:.1f} ms | {theirs / ours:.1f} | "
                f"{their_cpu / max(our_cpu, 1e-6):.1f} | {stage.rival} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
