"""Audits measured: a made corpus, the default audit against the full one, and a run on Ray with its memory and discoveries.

    python benchmarks/audits.py make corpus --human booksum.jsonl.gz c4.jsonl.gz --documents 2000 --marked 40
    python benchmarks/audits.py compare corpus --turns 3                    # --before OTHER/src: the code of another checkout
    python benchmarks/audits.py run corpus found --engine ray               # documents a second, discoveries, memory

`make`: an unmarked document is sentences that stood together in human texts; a marked one is as many sentences, each the best
of 64 human ones for its block of a soft key. `compare` audits the same file in turns: every document tested in full and in
float32 (or with the code of `--before`), and by default. The sum of the CPU seconds counts as well as the time, since other
programs may run on the same cores. Verdicts that differ are listed. What follows the folders of `run` goes to `alimark audit`;
memory is that of the driver and of Ray's workers.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from alimark.core.embedding.loading import load_embedder
from alimark.core.frozen.text.splitting import splitter
from alimark.core.keys.key import Key
from alimark.core.keys.projection import carried, project, targets
from alimark.core.text.human_text import read_texts

IN_FULL = ("--first-pass", "1", "--precision", "float32")
SECRET = b"benchmarks/audits.py".ljust(32)


def human_sentences(paths: Sequence[Path]) -> list[str]:
    """The sentences of human texts of ordinary length, in the order in which they stand."""
    cutter = splitter("nupunkt")
    texts = [text for path in paths for text in dict.fromkeys(read_texts(path))]
    random.Random(1).shuffle(texts)
    return [unit for text in texts for unit in cutter.units(text) if 20 <= len(unit) <= 200]


def marked_documents(key: Key, sentences: Sequence[str], count: int, length: int, pool: int = 2000) -> Iterator[str]:
    """Documents whose sentences are each the best of 64 for their block of the key."""
    rng = np.random.default_rng(1)
    some = [sentences[i] for i in rng.choice(len(sentences), min(pool, len(sentences)), replace=False)]
    projections = project(load_embedder(key.embedder).embed(some), key)
    for _ in range(count):
        chosen: list[int] = []
        for target in targets(key, length):
            candidates = rng.choice(len(some), 64, replace=False)
            worth = np.array([unit.worth for unit in carried(projections[candidates], target, key)])
            worth[np.isin(candidates, chosen)] = -np.inf
            chosen.append(int(candidates[int(np.argmax(worth))]))
        yield " ".join(some[i] for i in chosen)


def make(args: argparse.Namespace) -> None:
    args.corpus.mkdir(parents=True)
    key = Key.generate(embedder=load_embedder(args.model), secret=SECRET)
    key.save(args.corpus / "key.json")
    sentences = human_sentences(args.human)
    marked = list(marked_documents(key, sentences, args.marked, args.sentences))
    chance = random.Random(2)
    places = dict(zip(chance.sample(range(args.documents), args.marked), marked, strict=True))
    with (args.corpus / "docs.jsonl").open("w") as file:
        for number in range(args.documents):
            start = chance.randrange(len(sentences) - args.sentences)
            text = places.get(number) or " ".join(sentences[start : start + args.sentences])
            file.write(json.dumps({"id": f"doc-{number:07}", "text": text}) + "\n")
    (args.corpus / "marked.json").write_text(json.dumps([f"doc-{number:07}" for number in sorted(places)]))
    print(f"{args.documents:,} documents of {args.sentences} sentences, {args.marked} of them marked")


def command(corpus: Path, output: Path, options: Sequence[str]) -> list[str]:
    files = [str(corpus / "docs.jsonl"), "-o", str(output)]
    return [sys.executable, "-m", "alimark", "audit", "-k", str(corpus / "key.json"), *files, "--json", *options]


class Turn(NamedTuple):
    """One audit: its seconds, its CPU seconds, and the answer of each document."""

    seconds: float
    cpu: float
    answers: dict[str, dict[str, Any]]


def audit(corpus: Path, options: Sequence[str], source: Path | None) -> Turn:
    output = corpus / "answers.jsonl"
    output.unlink(missing_ok=True)
    environment = os.environ | ({"PYTHONPATH": str(source)} if source else {})
    before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(command(corpus, output, options), env=environment, check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    answers = [json.loads(line) for line in output.read_text().splitlines()]
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Turn(time.perf_counter() - started, cpu, {answer["id"]: answer for answer in answers})


def compare(args: argparse.Namespace) -> None:
    marked = set(json.loads((args.corpus / "marked.json").read_text()))
    turns: dict[str, list[Turn]] = {"before": [], "after": []}
    for _ in range(args.turns):
        turns["before"].append(audit(args.corpus, () if args.before else IN_FULL, args.before))
        turns["after"].append(audit(args.corpus, args.more, None))
    print("| audit | seconds, median | CPU seconds, median | found | of them marked |\n| --- | --- | --- | --- | --- |")
    for name, some in turns.items():
        hits = {document for document, answer in some[0].answers.items() if answer["found"]}
        seconds, cpu = (statistics.median(values) for values in zip(*(turn[:2] for turn in some), strict=True))
        print(f"| {name} | {seconds:.1f} | {cpu:.1f} | {len(hits)} | {len(hits & marked)} of {len(marked)} |")
    pairs = list(zip(turns["before"], turns["after"], strict=True))
    for unit, ratios in (
        ("time", [old.seconds / new.seconds for old, new in pairs]),
        ("CPU time", [old.cpu / new.cpu for old, new in pairs]),
    ):
        each = ", ".join(f"{ratio:.2f}" for ratio in ratios)
        print(f"ratio of {unit}: {statistics.median(ratios):.2f} (turns: {each})")
    old, new = turns["before"][0].answers, turns["after"][0].answers
    changed = [document for document in old if old[document]["verdict"] != new[document]["verdict"]]
    print(f"verdicts that differ: {len(changed)} of {len(old)}")
    for document in changed:
        kinds = [f"{answers[document]['verdict']} (p {answers[document]['p_value']:.3g})" for answers in (old, new)]
        print(f"  {document}{' (marked)' if document in marked else ''}: {' -> '.join(kinds)}")


class Memory(threading.Thread):
    """The resident memory of a process and of Ray's workers, every second, in MiB."""

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self.pid, self.seen, self.over = pid, list[float](), threading.Event()

    def run(self) -> None:
        while not self.over.wait(1):
            total = 0
            for status in Path("/proc").glob("[0-9]*/statm"):
                try:
                    if b"ray::" in (status.parent / "cmdline").read_bytes() or int(status.parent.name) == self.pid:
                        total += int(status.read_text().split()[1]) * resource.getpagesize()
                except OSError:  # the process has ended
                    continue
            self.seen.append(total / 2**20)


def run(args: argparse.Namespace) -> None:
    process = subprocess.Popen(command(args.corpus, args.output, args.more), stdout=subprocess.PIPE)
    memory, started = Memory(process.pid), time.perf_counter()
    memory.start()
    printed, _ = process.communicate()
    seconds = time.perf_counter() - started
    memory.over.set()
    if process.returncode:
        raise SystemExit(process.returncode)
    summary = json.loads(printed)
    print(json.dumps({name: value for name, value in summary.items() if name != "found_by_source"}, indent=1))
    print(f"{summary['documents'] / seconds:.1f} documents a second, the start of the programs included")
    parts = np.array_split(np.array(memory.seen or [0.0]), min(5, max(1, len(memory.seen))))
    print("memory by fifths of the run, MiB: " + ", ".join(f"{part.max():.0f}" for part in parts))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(required=True)
    makes = verbs.add_parser("make")
    makes.add_argument("corpus", type=Path)
    makes.add_argument("--human", type=Path, nargs="+", required=True, help="JSONL of human texts")
    makes.add_argument("--documents", type=int, default=2000)
    makes.add_argument("--marked", type=int, default=40)
    makes.add_argument("--sentences", type=int, default=26, help="of a document")
    makes.add_argument("--model", default="all-MiniLM-L6-v2")
    makes.set_defaults(run=make)
    compares = verbs.add_parser("compare")
    compares.add_argument("--turns", type=int, default=3)
    compares.add_argument("--before", type=Path, help="src folder of another checkout, instead of the full test")
    compares.add_argument("corpus", type=Path)
    compares.set_defaults(run=compare)
    runs = verbs.add_parser("run")
    runs.add_argument("corpus", type=Path)
    runs.add_argument("output", type=Path)
    runs.set_defaults(run=run)
    args, more = parser.parse_known_args()
    args.more = more
    args.run(args)


if __name__ == "__main__":
    main()
