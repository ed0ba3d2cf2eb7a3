"""Rewrites ten letters to mark them: whether each is found, whether figures and names are kept, and how far the meaning moved.

    python benchmarks/letters.py --output letters.jsonl                      # ten letters by qwen2.5-coder-1.5b on this CPU
    python benchmarks/letters.py --llm transformers:qwen2.5-coder-1.5b --device cuda --output letters.jsonl
    python benchmarks/letters.py --offsets 16 --output letters.jsonl         # a key with secret starts

The letters are in data/letters.txt. Figures, names and negations are compared by rules of this script, which are coarser than
those of the rewriting and know nothing of them: digits and capitalised words of the whole letter, and words of negation.
Records are written as they come, and a run goes on where another stopped.
"""

from __future__ import annotations

import argparse
import re
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from alimark import AliMark, Key, load_embedder, load_llm
from alimark.core._util.jsonl import JsonlWriter, read_jsonl
from alimark.core.embedding.base import Embedder
from alimark.core.generation.settings import candidates_for
from alimark.core.rewriting.api import Original, RewriteSettings, rewrite_many
from alimark.core.rewriting.results import Rewriting
from alimark.core.rewriting.settings import DEFAULT_REWRITES
from alimark.errors import AlimarkError

LETTERS = Path(__file__).with_name("data") / "letters.txt"
FPR = 0.01
_FIGURE = re.compile(r"\d+(?:[.,:]\d+)*")
_NAME = re.compile(r"(?<=[a-z0-9,;] )[A-Z][a-zà-öø-ÿ]+|(?<=(?:Mr|Ms|Dr) )[A-Z]\w+|(?<=Mrs )[A-Z]\w+")
_NOT = re.compile(r"\b(?:not|no|never|nobody|nothing|cannot|without|except|unless|refuses?)\b|n't\b", re.IGNORECASE)


def letters() -> list[str]:
    """The letters of the file."""
    return [letter.strip() + "\n" for letter in LETTERS.read_text("utf-8").split("\n---\n")]


def kept(record: dict[str, Any]) -> dict[str, bool]:
    """Whether a letter has the same figures, all names, the same lines, and as many negations in each sentence, as before."""
    before, after = str(record["original"]), str(record["text"])
    figures = [Counter(_FIGURE.findall(text)) for text in (before, after)]
    negated = [[bool(_NOT.search(sentence)) for sentence in record[name]] for name in ("sentences_before", "sentences")]
    return {
        "figures": figures[0] == figures[1],
        "names": all(re.search(rf"\b{name}\b", after) for name in set(_NAME.findall(before))),
        "lines": [not line for line in before.splitlines()] == [not line for line in after.splitlines()],
        "negations": negated[0] == negated[1],
    }


def to_record(number: int, rewriting: Rewriting, mark: AliMark) -> dict[str, Any]:
    """The record of a letter, with its p-values before and after."""
    before, after = mark.detect([rewriting.original, rewriting.text])
    more = {"p_value_before": before.p_value, "p_value": after.p_value, "verdict": str(after.verdict(FPR))}
    return rewriting.record(str(number)) | {"sentences_before": [row.before for row in rewriting.rewritten]} | more


def table(records: list[dict[str, Any]]) -> str:
    """A row for each letter, in Markdown."""
    columns = "letter, sentences, rewritten, p before, p, verdict, figures, names, negations, lines, mean cosine, least".split(
        ", "
    )
    rows = [f"| {' | '.join(columns)} |", "| ---: " * len(columns) + "|"]
    for record in records:
        same = {name: "kept" if value else "LOST" for name, value in kept(record).items()}
        rewritten = [
            cosine for cosine, what in zip(record["cosines"], record["outcomes"], strict=True) if what == "rewritten"
        ]
        rows.append(
            f"| {record['id']} | {len(record['sentences'])} | {len(rewritten)} | {record['p_value_before']:.2g} "
            f"| {record['p_value']:.2g} | {record['verdict']} | {same['figures']} | {same['names']} | {same['negations']} "
            f"| {same['lines']} | {np.mean(rewritten or [1.0]):.2f} | {min(rewritten, default=1.0):.2f} |"
        )
    return "\n".join(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--llm", default="qwen2.5-coder-1.5b")
    parser.add_argument("--embedder", default="all-MiniLM-L6-v2")
    parser.add_argument("--device", help="cuda or cpu, for engines that can choose")
    parser.add_argument("--strength", choices=("light", "standard", "strong"))
    parser.add_argument("--candidates", type=int, help="rewrites of each sentence, instead of --strength")
    parser.add_argument("--waves", type=int, default=RewriteSettings().waves)
    parser.add_argument("--count", type=int, default=10, help="letters")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--decision", choices=("hard", "soft"), default="soft")
    parser.add_argument("--offsets", type=int, default=1, help="secret starts of the key")
    parser.add_argument("--output", type=Path, required=True, help="JSONL to append records to")
    options = parser.parse_args()

    embedder = load_embedder(options.embedder)
    count = candidates_for(options.strength, options.candidates, DEFAULT_REWRITES)
    texts = [(i, Original(text, options.seed + i)) for i, text in enumerate(letters()[: options.count], 1)]
    secret = b"benchmarks/letters, 32 bytes in."[:32]
    key = Key.generate(embedder=embedder, secret=secret, decision=options.decision, offsets=options.offsets)
    settings = RewriteSettings(count, waves=options.waves)
    write_records(texts, key, embedder, settings, options)
    report(settings, options)


def write_records(
    texts: list[tuple[int, Original]],
    key: Key,
    embedder: Embedder,
    settings: RewriteSettings,
    options: argparse.Namespace,
) -> None:
    """Rewrites the letters that the output does not have yet."""
    mark = AliMark(key, embedder=embedder)
    with JsonlWriter(options.output, key_id=key.id) as writer:
        todo = [(i, original) for i, original in texts if str(i) not in writer.done]
        if not todo:
            return
        llm = load_llm(options.llm, **({"device": options.device} if options.device else {}))
        for place, result in rewrite_many([original for _, original in todo], key, embedder, llm, settings):
            if isinstance(result, AlimarkError):
                raise result
            record = to_record(todo[place][0], result, mark)
            writer.write(record)
            print(f"letter {record['id']}: p {record['p_value']:.2g}, {record['cost']['seconds']:.0f} s", flush=True)


def report(settings: RewriteSettings, options: argparse.Namespace) -> None:
    """Prints the table, and of each letter the sentence that moved most."""
    lines = [record for _, record in read_jsonl(options.output) if isinstance(record, dict)]
    records = sorted(lines, key=lambda record: int(record["id"]))
    key = f"{options.decision} key, {options.offsets} starts"
    print(f"\n{options.llm}, {settings.candidates} rewrites a sentence, {options.embedder}, {key}\n\n{table(records)}")
    for record in records:
        pairs = zip(record["cosines"], record["sentences_before"], record["sentences"], strict=True)
        cosine, before, after = min(pairs)
        print(f"\nletter {record['id']}, moved most ({cosine:.2f}):\n  {before}\n  {after}")


if __name__ == "__main__":
    main()
