"""Answers to 100 chat prompts, marked by the service and unmarked by the same engine, side by side.

    python benchmarks/chat_prompts.py --output chat.jsonl                                  # all prompts on this CPU
    python benchmarks/chat_prompts.py --output chat.jsonl --count 3 --candidates 16        # three prompts of each class
    python benchmarks/chat_prompts.py --output chat.jsonl --llm transformers:qwen2.5-coder-1.5b --device cuda

The prompts (data/chat_prompts.tsv) are short questions, lists, requests for code, letters and stories; with `--prompts form`
they ask for 13 forms of answers, such as quotations, fences, tables and endless sentences (data/form_prompts.tsv).
Lengths and finish reasons are compared (two-sample Kolmogorov-Smirnov test; 95% interval of the mean of the paired
differences); whether code fences close and blocks of Python parse; the share of marked answers that is found at a
false-positive rate of 1%, by length and by what the service says of them; and how many of their words are marked. Answers are
saved as they come, and a run goes on where another stopped.
"""

from __future__ import annotations

import argparse
import ast
import re
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from alimark import AliMark
from alimark.core._util.jsonl import JsonlWriter, read_jsonl
from alimark.core.llm.base import Message, Request, Sampling, never
from local_service import Running, add_options, running_service

PROMPTS = Path(__file__).with_name("data")
FPR = 0.01
LENGTHS = ((1, 2), (3, 5), (6, 9), (10, 19), (20, 10_000))
_FENCE = re.compile(r"^[ \t]{0,3}(?:`{3,}|~{3,})", re.MULTILINE)
_PYTHON = re.compile(r"^```(?:python|py)[^\n]*\n(.*?)^```", re.MULTILINE | re.DOTALL | re.IGNORECASE)
Answer = dict[str, Any]


def prompts(name: str, count: int | None) -> list[tuple[str, str, str]]:
    """Returns the id, the class and the text of each prompt of a file; `count` prompts of each class."""
    lines = [line.split("\t", 1) for line in (PROMPTS / f"{name}_prompts.tsv").read_text("utf-8").splitlines()]
    numbered: list[tuple[str, str, str]] = []
    for kind in dict.fromkeys(kind for kind, _ in lines):
        of_kind = [text for other, text in lines if other == kind]
        numbered += [(f"{kind}-{i}", kind, text) for i, text in enumerate(of_kind[:count], 1)]
    return numbered


def marked(running: Running, text: str, seed: int, max_tokens: int) -> Answer:
    """Returns the service's answer to a prompt."""
    body = {"messages": [{"role": "user", "content": text}], "seed": seed, "max_tokens": max_tokens}
    response = running.client.post("/v1/chat/completions", json=body)
    response.raise_for_status()
    answer = response.json()
    [choice] = answer["choices"]
    return {
        "text": choice["message"]["content"], "finish": choice["finish_reason"], "tokens": answer["usage"]["completion_tokens"],
        "sampled": answer["alimark"]["tokens_sampled"][0], "sentences": len(answer["alimark"]["matches"][0]),
        "p_value": answer["alimark"]["p_value"][0],
    } | {name: answer["alimark"][name][0] for name in ("too_short", "found", "words", "words_marked")} | {
        "needed": answer["alimark"]["sentences_needed"]
    }  # fmt: skip


def plain(running: Running, text: str, seed: int, max_tokens: int) -> Answer:
    """Returns the engine's own answer to a prompt, sampled alike."""
    request = Request("", 1, seed, messages=(Message("user", text),))
    [[draw]] = running.llm.draw([request], Sampling(repetition_penalty=1.0, max_tokens=max_tokens, may_end=True), never)
    finish = "length" if draw.ended == "length" else "stop"
    return {"text": draw.text.strip(), "finish": finish, "tokens": draw.tokens, "sampled": draw.tokens}


def write(running: Running, options: argparse.Namespace) -> None:
    """Writes the answers that are not there yet, several at a time."""
    with JsonlWriter(options.output) as writer:
        jobs = [
            (f"{name}/{way.__name__}", kind, text, way)
            for name, kind, text in prompts(options.prompts, options.count)
            for way in ((marked,) if options.only_marked else (marked, plain))
            if f"{name}/{way.__name__}" not in writer.done
        ]

        def answer(number: int) -> Answer:
            record_id, kind, text, way = jobs[number]
            started = time.perf_counter()
            content = way(running, text, options.seed + number, options.max_tokens)
            return (
                {"id": record_id, "class": kind, "way": way.__name__, "prompt": text}
                | content
                | {"seconds": round(time.perf_counter() - started, 3)}
            )

        with ThreadPoolExecutor(options.users) as pool:
            for place, record in enumerate(pool.map(answer, range(len(jobs))), 1):
                writer.write(record)
                print(
                    f"{place} of {len(jobs)}: {record['id']}, {record['tokens']} tokens, {record['seconds']:.1f} s",
                    flush=True,
                )


def detect(running: Running, records: Sequence[Answer]) -> None:
    """Adds the p-value to each answer; the service has said that of its own."""
    mark, others = AliMark(running.key, embedder=running.embedder), [one for one in records if "p_value" not in one]
    texts = [record["text"] or "Nothing." for record in others]
    for record, detection in zip(others, mark.detect(texts) if texts else [], strict=True):
        record["p_value"] = detection.p_value


def report(records: Sequence[Answer], longest: int) -> Iterator[str]:
    """The tables, in Markdown. Lengths are counted up to `longest` tokens, and an answer that has as many has not ended."""
    by_way = {
        way: {record["id"].split("/")[0]: record for record in records if record["way"] == way}
        for way in ("marked", "plain")
    }
    both = [name for name in by_way["marked"] if name in by_way["plain"]]
    yield "| class | prompts | tokens marked | tokens plain | difference, 95% interval | KS p | `stop` marked | `stop` plain |"
    yield "| --- |" + " ---: |" * 7
    for kind in [*dict.fromkeys(by_way["marked"][name]["class"] for name in both), *(["all"] if both else [])]:
        names = [name for name in both if kind in ("all", by_way["marked"][name]["class"])]
        ours, theirs = ([by_way[way][name] for name in names] for way in ("marked", "plain"))
        yield _lengths(kind, ours, theirs, longest)
    yield "\n| | marked | plain |\n| --- | ---: | ---: |"
    shares = {way: code_shares([record["text"] for record in answers.values()]) for way, answers in by_way.items()}
    for name in shares["marked"]:
        yield f"| {name} | {shares['marked'][name]} | {shares['plain'][name]} |"
    yield f"\n| sentences | marked answers | found at p <= {FPR:g} | plain answers found |\n| ---: | ---: | ---: | ---: |"
    total, false = (sum(record["p_value"] <= FPR for record in by_way[way].values()) for way in ("marked", "plain"))
    for least, most in LENGTHS:
        answers = [record for record in by_way["marked"].values() if least <= record["sentences"] <= most]
        span = f"{least} to {most}" if most < 1000 else f"{least} or more"
        yield f"| {span} | {len(answers)} | {sum(record['p_value'] <= FPR for record in answers)} | |"
    yield f"| all | {len(by_way['marked'])} | {total} | {false} |"
    yield from labels(list(by_way["marked"].values()))


def labels(answers: Sequence[Answer]) -> Iterator[str]:
    """Tables of what the service says of its answers: the label `too_short`, and the words that are marked."""
    long_enough = [one for one in answers if one["needed"] is not None and one["sentences"] >= one["needed"]]
    kinds = {
        "sentences_needed or more": long_enough,
        "`too_short` false": [one for one in answers if not one["too_short"]],
        "`too_short` true": [one for one in answers if one["too_short"]],
    }
    yield "\n| label | answers | found |\n| --- | ---: | ---: |"
    yield from (
        f"| {kind} | {len(group)} | {sum(one['found'] or 0 for one in group)} |" for kind, group in kinds.items()
    )
    yield "\n| class | answers | found | words | marked |\n| --- | ---: | ---: | ---: | ---: |"
    for kind in [*dict.fromkeys(one["class"] for one in answers), "all"]:
        group = [one for one in answers if kind in ("all", one["class"])]
        words, marked_words = (sum(one[name] for one in group) for name in ("words", "words_marked"))
        is_found = sum(one["found"] or 0 for one in group)
        yield f"| {kind} | {len(group)} | {is_found} | {words} | {marked_words / max(1, words):.0%} |"


def _lengths(kind: str, ours: Sequence[Answer], theirs: Sequence[Answer], longest: int) -> str:
    from scipy.stats import ks_2samp

    lengths = [np.array([min(longest, record["tokens"]) for record in side], float) for side in (ours, theirs)]
    difference = lengths[0] - lengths[1]
    error = 1.96 * difference.std(ddof=1) / np.sqrt(len(difference)) if len(difference) > 1 else float("nan")
    stops = [
        sum(record["finish"] == "stop" and record["tokens"] < longest for record in side) for side in (ours, theirs)
    ]
    mean = difference.mean()
    return (
        f"| {kind} | {len(ours)} | {lengths[0].mean():.0f} | {lengths[1].mean():.0f} | {mean:+.0f} [{mean - error:+.0f}, "
        f"{mean + error:+.0f}] | {ks_2samp(*lengths).pvalue:.2f} | {stops[0]} | {stops[1]} |"
    )


def code_shares(texts: Sequence[str]) -> dict[str, str]:
    """How many texts with code fences close all of them, and how many blocks of Python parse.

    Example:
        >>> code_shares(["```python\\nx = 1\\n```", "```\\nopen"])
        {'texts with fences that all close': '1 of 2', 'Python blocks that parse': '1 of 1'}
    """
    fenced = [text for text in texts if _FENCE.search(text)]
    closed = sum(len(_FENCE.findall(text)) % 2 == 0 for text in fenced)
    blocks = [block for text in texts for block in _PYTHON.findall(text)]
    parse = sum(_parses(block) for block in blocks)
    return {
        "texts with fences that all close": f"{closed} of {len(fenced)}",
        "Python blocks that parse": f"{parse} of {len(blocks)}",
    }


def _parses(code: str) -> bool:
    try:
        ast.parse(code)
    except (SyntaxError, ValueError):
        return False
    return True


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser)
    parser.add_argument("--output", type=Path, required=True, help="JSONL to append answers to")
    parser.add_argument(
        "--prompts", choices=("chat", "form"), default="chat", help="form: 13 forms of answers, 5 texts each"
    )
    parser.add_argument("--only-marked", action="store_true", help="no unmarked answers beside them")
    parser.add_argument("--count", type=int, help="prompts of each class; default, all 20")
    parser.add_argument("--max-tokens", type=int, default=400)
    parser.add_argument("--up-to", type=int, default=10**9, help="lengths are counted up to so many tokens")
    parser.add_argument("--users", type=int, default=4, help="requests at a time")
    options = parser.parse_args()
    with running_service(options) as running:
        write(running, options)
        records = [record for _, record in read_jsonl(options.output) if isinstance(record, dict)]
        detect(running, records)
    print(f"\n{options.llm}, {options.strength or options.candidates}, at most {options.max_tokens} tokens\n")
    print("\n".join(report(records, options.up_to)))


if __name__ == "__main__":
    main()
