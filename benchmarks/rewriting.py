"""Marks human texts by rewriting them, and tells what was found and what it cost in meaning.

    python benchmarks/rewriting.py --human human.jsonl --output rewritten.jsonl
    python benchmarks/rewriting.py --human human.jsonl --llm openai:http://localhost:8000/v1 --count 100
    python benchmarks/rewriting.py --human human.jsonl --waves 1 --save-rewrites rewrites.jsonl
    python benchmarks/rewriting.py --human human.jsonl --rewrites rewrites.jsonl --compare 20    # keys of many kinds
    python benchmarks/rewriting.py --pairs c4-*.jsonl.gz --sentences 11 --candidates 4 --count 24 --compare 2     # no model

Every text is cut to its first sentences and gets a key of its own, the same in every run. With --output the records are
written as they come, and a run goes on where another stopped; the summary is over all of them. Cosines are those of the
key's embedder between a sentence and what became of it. saved_rewrites.py explains --save-rewrites, --rewrites and --compare.
"""

from __future__ import annotations

import argparse
import hashlib
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

import saved_rewrites
from alimark import AliMark, Key, load_embedder
from alimark.core._util.jsonl import JsonlWriter, read_jsonl
from alimark.core.embedding.base import Embedder
from alimark.core.frozen.text.splitting import DEFAULT_SPLITTER
from alimark.core.llm.base import LLM
from alimark.core.rewriting.api import rewrite_many
from alimark.core.rewriting.results import Rewriting
from alimark.core.rewriting.settings import Original, RewriteSettings
from alimark.core.text.human_text import cut, read_texts
from alimark.errors import AlimarkError

Record = dict[str, Any]


def key_for(number: int, embedder: Embedder, parameters: dict[str, Any]) -> Key:
    secret = hashlib.sha256(f"benchmarks/rewriting/{number}".encode()).digest()
    return Key.generate(embedder=embedder, secret=secret, **parameters)


def measured(number: int, made: Rewriting, key: Key, embedder: Embedder) -> Record:
    before, after = AliMark(key, embedder=embedder).detect([made.original, made.text])
    return made.record(str(number)) | {"p_before": before.p_value, "p_after": after.p_value}


def line(record: Record) -> str:
    bits = [sum(record[name]) for name in ("matches_before", "matches")]
    count = len(record["sentences"])
    left = sum(outcome not in ("rewritten", "best as it was") for outcome in record["outcomes"])
    return (
        f"text {record['id']}: bits {bits[0] / count:.2f} -> {bits[1] / count:.2f} of {record['settings']['block_size']}, "
        f"cosine {np.mean(record['cosines']):.3f} mean, {min(record['cosines']):.3f} least, {left} of {count} left alone, "
        f"p {record['p_before']:.3g} -> {record['p_after']:.3g}, {record['cost']['tokens']} tokens, "
        f"{record['cost']['seconds']:.0f} s"
    )


def summary(records: Sequence[Record]) -> str:
    cosines = [cosine for record in records for cosine in record["cosines"]]
    means = [float(np.mean(record["cosines"])) for record in records]
    outcomes = [outcome for record in records for outcome in record["outcomes"]]
    shares = {name: outcomes.count(name) for name in dict.fromkeys(outcomes)}
    rejected: dict[str, int] = {}
    for record in records:
        for why, count in record["cost"]["rejected"].items():
            rejected[why] = rejected.get(why, 0) + count
    drawn = sum(record["cost"]["candidates"] for record in records)
    return (
        f"{sum(record['p_after'] < 0.01 for record in records)} of {len(records)} found at p < 0.01 "
        f"({sum(record['p_before'] < 0.01 for record in records)} before)\n"
        f"cosine: {np.mean(cosines):.3f} mean, {min(means):.3f} least mean of a text, {min(cosines):.3f} least\n"
        f"sentences: {shares}\nof {drawn} rewrites rejected: {dict(sorted(rejected.items(), key=lambda item: -item[1]))}"
    )


def parsed() -> argparse.Namespace:
    """The options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--human", type=Path, help="JSONL of human texts")
    parser.add_argument("--pairs", type=Path, nargs="+", help="up to 4 files of paraphrases, used instead of a model")
    parser.add_argument("--count", type=int, default=10)
    parser.add_argument("--skip", type=int, default=0, help="texts passed over at the start")
    parser.add_argument("--sentences", type=int, default=12)
    parser.add_argument("--llm", default="qwen2.5-coder-1.5b")
    parser.add_argument("--embedder", default="all-MiniLM-L6-v2")
    defaults = RewriteSettings()
    parser.add_argument("--candidates", type=int, default=defaults.candidates)
    parser.add_argument("--closeness", type=float, default=defaults.closeness)
    parser.add_argument("--mean-closeness", type=float, default=defaults.mean_closeness)
    parser.add_argument("--waves", type=int, default=defaults.waves)
    parser.add_argument("--temperature", type=float, default=defaults.sampling.temperature)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--output", type=Path, help="JSONL to append records to")
    parser.add_argument("--show", action="store_true", help="print every sentence before and after")
    saved_rewrites.add_options(parser, decision="hard")
    options = saved_rewrites.parsed(parser)
    if (options.human is None) == (options.pairs is None):
        parser.error("name the texts with --human or --pairs")
    return options


def main() -> None:
    options, defaults = parsed(), RewriteSettings()
    pairs = saved_rewrites.PairsLLM(options.pairs, options.sentences) if options.pairs else None
    texts = pairs.texts if pairs else cut(read_texts(options.human), options.sentences, DEFAULT_SPLITTER)[0]
    chosen = list(islice(enumerate(texts), options.skip, options.skip + options.count))
    sampling = replace(defaults.sampling, temperature=options.temperature)
    settings = RewriteSettings(
        options.candidates, options.closeness, options.mean_closeness, options.waves, sampling=sampling
    )
    embedder, started = load_embedder(options.embedder), time.perf_counter()
    if options.compare:
        llm: LLM = pairs or saved_rewrites.SavedLLM(options.rewrites)
        originals = [Original(text, options.seed + number) for number, text in chosen]
        saved_rewrites.compare(originals, llm, embedder, settings, options)
        return
    keys = {number: key_for(number, embedder, saved_rewrites.key_parameters(options)) for number, _ in chosen}
    records: dict[str, Record] = {}
    with ExitStack() as stack:
        writer = stack.enter_context(JsonlWriter(options.output)) if options.output else None
        if writer:
            records = {
                str(record["id"]): record for _, record in read_jsonl(options.output) if isinstance(record, dict)
            }
        todo = [(number, text) for number, text in chosen if str(number) not in records]
        originals = [Original(text, options.seed + number, keys[number]) for number, text in todo]
        if originals:
            llm = pairs or saved_rewrites.load_model(options)
            print(
                f"{llm.name}, {embedder.name}; {len(originals)} texts, {options.candidates} rewrites a sentence",
                flush=True,
            )
            started = time.perf_counter()
            for place, made in rewrite_many(originals, keys[todo[0][0]], embedder, llm, settings):
                if isinstance(made, AlimarkError):
                    raise made
                number = todo[place][0]
                record = records[str(number)] = measured(number, made, keys[number], embedder)
                if writer:
                    writer.write(record)
                print(line(record), flush=True)
                for one in made.rewritten if options.show else ():
                    print(
                        f"  {one.matches_before} -> {one.matches}, {one.cosine:.2f}, {one.rewrites} fit, {one.outcome}\n"
                        f"    {one.before}\n    {one.after}"
                    )
    print(summary([records[str(number)] for number, _ in chosen]))
    print(f"{time.perf_counter() - started:.0f} s in this run")


if __name__ == "__main__":
    main()
