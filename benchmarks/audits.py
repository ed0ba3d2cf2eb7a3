"""An audit of documents of 26 sentences: the time and the verdicts of every document tested in full against the default.

    python benchmarks/audits.py make corpus --human booksum.jsonl.gz c4.jsonl.gz --documents 2000 --marked 40
    python benchmarks/audits.py compare corpus --turns 3                    # --before OTHER/src: the code of another checkout
    python benchmarks/audits.py memory corpus                               # resident memory over the run, in fifths

`make`: a document is sentences of one or more human texts in a row; a marked one is 26 sentences, each the best of 64 human
ones for its block of a soft key. `compare` audits the same file in turns: in full and in float32, as releases before the first
pass did (or with the code of `--before`), and by default. The sum of the CPU seconds counts as well as the time, since other
programs may run on the same cores. Verdicts that differ are listed.
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

SENTENCES = 26
IN_FULL = ("--first-pass", "1", "--precision", "float32")
SECRET = b"benchmarks/audits.py".ljust(32)


def human_sentences(paths: Sequence[Path]) -> list[str]:
    """The sentences of human texts of ordinary length, in the order in which they stand."""
    cutter = splitter("nupunkt")
    texts = [text for path in paths for text in dict.fromkeys(read_texts(path))]
    random.Random(1).shuffle(texts)
    return [unit for text in texts for unit in cutter.units(text) if 20 <= len(unit) <= 200]


def marked_documents(key: Key, sentences: Sequence[str], count: int, pool: int = 2000) -> Iterator[str]:
    """Documents whose sentences are each the best of 64 for their block of the key."""
    rng = np.random.default_rng(1)
    some = [sentences[i] for i in rng.choice(len(sentences), min(pool, len(sentences)), replace=False)]
    projections = project(load_embedder(key.embedder).embed(some), key)
    for _ in range(count):
        chosen: list[int] = []
        for target in targets(key, SENTENCES):
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
    marked = list(marked_documents(key, sentences, args.marked))
    chance = random.Random(2)
    places = dict(zip(chance.sample(range(args.documents), args.marked), marked, strict=True))
    with (args.corpus / "docs.jsonl").open("w") as file:
        for number in range(args.documents):
            start = chance.randrange(len(sentences) - args.sentences)
            text = places.get(number) or " ".join(sentences[start : start + args.sentences])
            file.write(json.dumps({"id": f"doc-{number:06}", "text": text}) + "\n")
    (args.corpus / "marked.json").write_text(json.dumps([f"doc-{number:06}" for number in sorted(places)]))
    print(
        f"{args.documents:,} documents of {args.sentences} sentences, {args.marked} of {SENTENCES} sentences and marked"
    )


class Turn(NamedTuple):
    """One audit: its seconds, its CPU seconds, and the answer of each document."""

    seconds: float
    cpu: float
    answers: dict[str, dict[str, Any]]


def audit(corpus: Path, options: Sequence[str], source: Path | None) -> Turn:
    output = corpus / "answers.jsonl"
    output.unlink(missing_ok=True)
    environment = os.environ | ({"PYTHONPATH": str(source)} if source else {})
    command = [sys.executable, "-m", "alimark", "audit", "-k", str(corpus / "key.json"), str(corpus / "docs.jsonl"),
               "-o", str(output), "--json", *options]  # fmt: skip
    before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL)
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
        print(
            f"ratio of {unit}: {statistics.median(ratios):.2f} (turns: {', '.join(f'{ratio:.2f}' for ratio in ratios)})"
        )
    old, new = turns["before"][0].answers, turns["after"][0].answers
    changed = [document for document in old if old[document]["verdict"] != new[document]["verdict"]]
    print(f"verdicts that differ: {len(changed)} of {len(old)}")
    for document in changed:
        kinds = [f"{answers[document]['verdict']} (p {answers[document]['p_value']:.3g})" for answers in (old, new)]
        print(f"  {document}{' (marked)' if document in marked else ''}: {' -> '.join(kinds)}")


def memory(args: argparse.Namespace) -> None:
    output = args.corpus / "memory.jsonl"
    output.unlink(missing_ok=True)
    documents = sum(1 for _ in (args.corpus / "docs.jsonl").open())
    command = [sys.executable, "-m", "alimark", "audit", "-k", str(args.corpus / "key.json"),
               str(args.corpus / "docs.jsonl"), "-o", str(output), *args.more]  # fmt: skip
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    peaks = [0.0] * 5
    while process.poll() is None:
        time.sleep(1)
        done = sum(1 for _ in output.open()) if output.exists() else 0
        try:
            pages = int(Path(f"/proc/{process.pid}/statm").read_text().split()[1])
        except OSError:
            break
        fifth = min(4, 5 * done // documents)
        peaks[fifth] = max(peaks[fifth], pages * resource.getpagesize() / 2**20)
    process.wait()
    print(f"{documents:,} documents; resident memory, highest in each fifth: "
          + ", ".join(f"{peak:.0f}" for peak in peaks) + " MiB")  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(required=True)
    makes = verbs.add_parser("make")
    makes.add_argument("corpus", type=Path)
    makes.add_argument("--human", type=Path, nargs="+", required=True, help="JSONL of human texts")
    makes.add_argument("--documents", type=int, default=2000)
    makes.add_argument("--marked", type=int, default=40)
    makes.add_argument("--sentences", type=int, default=SENTENCES, help="of a document that is not marked")
    makes.add_argument("--model", default="all-MiniLM-L6-v2")
    makes.set_defaults(run=make)
    compares = verbs.add_parser("compare")
    compares.add_argument("--turns", type=int, default=3)
    compares.add_argument(
        "--before", type=Path, help="src folder of another checkout, instead of the options of a full test"
    )
    compares.set_defaults(run=compare)
    memories = verbs.add_parser("memory")
    memories.set_defaults(run=memory)
    for verb in (compares, memories):
        verb.add_argument("corpus", type=Path)
        verb.add_argument("--more", nargs=argparse.REMAINDER, default=[], help="further options of the default audit")
    args = parser.parse_args()
    args.run(args)


if __name__ == "__main__":
    main()
