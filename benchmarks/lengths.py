"""Marked texts of 200, 400 and 800 tokens, unedited and edited: the shares found at 1% and at 0.1% (docs/article50.md).

    python benchmarks/lengths.py booksum.jsonl.gz work --count 100
    python benchmarks/lengths.py booksum.jsonl.gz work --count 100 --chat transformers:qwen2.5-coder-1.5b
    python benchmarks/lengths.py benchmarks/records/price/standard.jsonl.gz work --lengths 200     # texts that are there

Each prompt (JSONL with `prompt`, and `natural_text` for human texts beside the marked ones) gets a text of the longest
length at the standard strength under a key of its own; shorter texts are its first tokens. Records of keep_records.py
are such texts already. Every text is cut, edited and looked for under its key with 10,000 random keys. The folder keeps
texts and results, and a run goes on where another stopped. Intervals are those of Wilson, 95%. Texts shorter than their
length, and edits that failed, are left out and counted in the last column.
"""

from __future__ import annotations

import argparse
import hashlib
from collections.abc import Collection, Iterator
from pathlib import Path

import numpy as np

from alimark import AliMark, Key, load_embedder, load_llm
from alimark.core._util.jsonl import JsonlWriter, Record, read_jsonl
from alimark.core.embedding.base import Embedder
from alimark.core.generation.api import Ending, GenerationSettings, Scheduler, Session
from alimark.core.generation.settings import candidates_and_steering
from alimark.core.llm.base import LLM, Request, count_tokens
from alimark.core.schemes.registry import rule_for
from alimark.errors import AlimarkError
from alimark.lab.attacks import load_attack
from alimark.lab.attacks.base import Attack
from public_half import share

DRAWS = 10_000
LEVELS = (0.01, 0.001)


def ending(llm: LLM, tokens: int) -> Ending:
    return Ending(max_tokens=tokens, count=lambda text: count_tokens(llm, Request(text, 1, 0)))


def write(prompts: list[Record], llm: LLM, embedder: Embedder, tokens: int, path: Path) -> None:
    """Writes the texts that are not there yet, one after the other."""
    with JsonlWriter(path) as writer:
        for number, record in enumerate(prompts):
            if str(number) in writer.done:
                continue
            prompt, secret = record["prompt"], hashlib.sha256(f"alimark/lengths/{record['prompt']}".encode())
            key = Key.generate(embedder=embedder, secret=secret.digest())
            steerable = AliMark(key, embedder=embedder).steerable(llm)
            candidates, steering = candidates_and_steering("standard", None, None, 64, steerable=steerable)
            settings = GenerationSettings(tokens, candidates, steering=steering)  # the limit in tokens ends it first
            session = Session(prompt, key, settings, rule=rule_for, seed=number, ending=ending(llm, tokens))
            [(_, text)] = Scheduler(llm, embedder, batch=1).run(iter([(number, session)]))
            if isinstance(text, AlimarkError):
                raise text
            human = str(record.get("natural_text", "")).strip()
            writer.write({"id": str(number), "secret": secret.hexdigest(), "text": text.text, "human": human})
            print(f"text {number}: {len(text.sentences)} sentences, {text.seconds:.0f} s, {session.ended}", flush=True)


def cases(texts: list[Record], llm: LLM, lengths: list[int], edits: dict[str, Attack | None]) -> Iterator[Record]:
    """Every text in every length and every edit; `text` is what the cut left, empty where the text is too short."""
    for number, record in enumerate(texts):
        for kind in ("text", "human") if record.get("human") else ("text",):
            for tokens in lengths:
                cut = ending(llm, tokens).cut(record[kind])
                text = record[kind][: cut[0]] if cut else ""
                for edit in edits:
                    yield {"id": f"{number}/{kind}/{tokens}/{edit}", "secret": record["secret"], "text": text}


def detect(every: Iterator[Record], edits: dict[str, Attack | None], embedder: Embedder, path: Path) -> None:
    """Edits each text and writes its p-value; None where it is too short or the edit failed."""
    with JsonlWriter(path) as writer:
        for case in every:
            if case["id"] in writer.done:
                continue
            edit, text, p_value = edits[case["id"].rpartition("/")[2]], case["text"], None
            try:
                text = edit(text) if edit and text else text
                key = Key.generate(embedder=embedder, secret=bytes.fromhex(case["secret"]))
                p_value = AliMark(key, embedder=embedder).detect(text, draws=DRAWS).p_value if text else None
            except AlimarkError as error:
                print(f"{case['id']}: {error}", flush=True)
            writer.write({"id": case["id"], "p_value": p_value})


def report(path: Path, edits: Collection[str]) -> None:
    rows: dict[tuple[bool, int, str], list[float | None]] = {}
    for _, record in read_jsonl(path):
        if isinstance(record, dict):
            _, kind, tokens, edit = record["id"].split("/")
            rows.setdefault((kind == "human", int(tokens), edit), []).append(record["p_value"])
    found = " | ".join(f"found at {level:.1%}" for level in LEVELS)
    print(f"\n| texts | tokens | edit | {found} | texts | left out |\n| --- | ---: | --- | --- | --- | ---: | ---: |")
    for (human, tokens, edit), values in sorted(rows.items(), key=lambda row: row[0][:2]):
        known = np.array([value for value in values if value is not None])
        if len(known) and edit in edits:
            shares = " | ".join(share(known <= level) for level in LEVELS)
            kind = "human" if human else "marked"
            print(f"| {kind} | {tokens} | {edit} | {shares} | {len(known)} | {len(values) - len(known)} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("prompts", type=Path, help="JSONL of prompts, or of records")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--lengths", type=int, nargs="+", default=[200, 400, 800], help="in tokens of the model")
    parser.add_argument("--llm", default="smollm2-135m")
    parser.add_argument("--embedder", default="all-MiniLM-L6-v2")
    parser.add_argument("--chat", help="the model of the chat rewrite, which is left out without one")
    options = parser.parse_args()
    options.folder.mkdir(exist_ok=True)
    llm, embedder = load_llm(options.llm), load_embedder(options.embedder)
    distinct = {record["prompt"]: record for _, record in read_jsonl(options.prompts) if isinstance(record, dict)}
    texts = list(distinct.values())[: options.count]
    if "secret" not in texts[0]:
        path = options.folder / "texts.jsonl"
        write(texts, llm, embedder, max(options.lengths), path)
        texts = [record for _, record in read_jsonl(path) if isinstance(record, dict)][: options.count]
    edits: dict[str, Attack | None] = {
        "unedited": None,
        "delete 0.2": load_attack("delete", rate=0.2),
        "merge 0.3": load_attack("merge", rate=0.3),
        "translation": load_attack("translate"),
    }
    if options.chat:
        edits["chat rewrite"] = load_attack("chat", llm=options.chat)
    results = options.folder / "results.jsonl"
    detect(cases(texts, llm, options.lengths, edits), edits, embedder, results)
    report(results, edits)


if __name__ == "__main__":
    main()
