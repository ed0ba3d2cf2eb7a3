"""How often each row of `alimark demo` is right, over many runs with fresh keys.

    python benchmarks/demo_runs.py --runs 50
    python benchmarks/demo_runs.py --runs 5 --sentences 12 --candidates 8 16 32

Calls the functions of the demo itself in one process, so that models are loaded once. A row is right if the mark is found where
it is, and not found where it is not: in the human text and under another key, one run in a hundred is wrong by the
false-positive rate. A text that could not be translated counts as wrong. Seconds are those of one run with its models loaded;
CPU seconds depend less on what else the machine does. In brackets stands the p-value that comes closest to a wrong answer.
"""

from __future__ import annotations

import argparse
import time

from alimark.cli import demo
from alimark.core.embedding.loading import load_embedder
from alimark.core.keys.key import DEFAULT_EMBEDDER
from alimark.core.llm import DEFAULT_LLM, load_llm


def cell(rows: list[demo.Row]) -> str:
    """How many detections are right, and the p-value that comes closest to a wrong one."""
    if not rows:
        return "0"
    p_values = [row.detection.p_value for row in rows]
    return f"{sum(row.right for row in rows)} ({max(p_values) if rows[0].marked else min(p_values):.3f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=50)
    parser.add_argument("--sentences", type=int, default=demo.SENTENCES)
    parser.add_argument("--candidates", type=int, nargs="+", default=[demo.CANDIDATES])
    parser.add_argument("--llm", default=DEFAULT_LLM)
    parser.add_argument("--prompt", default=demo.PROMPT)
    parser.add_argument(
        "--seed", type=int, default=7, help="of the sampling, as in the demo; the key is new in every run"
    )
    args = parser.parse_args()
    embedder, llm = load_embedder(DEFAULT_EMBEDDER), load_llm(args.llm)
    names = ["marked", demo.CHANGED, demo.TRANSLATED, demo.HUMAN_ROW, demo.OTHER_KEY]
    print("| candidates | runs | " + " | ".join(names) + " | seconds | CPU seconds |\n" + "| --- " * 9 + "|")
    for candidates in args.candidates:
        rows: dict[str, list[demo.Row]] = {name: [] for name in names}
        started, processor = time.perf_counter(), time.process_time()
        for _ in range(args.runs):
            mark, other = demo.fresh_mark(embedder), demo.fresh_mark(embedder)
            generation = demo.marked_text(mark, llm, args.prompt, candidates, args.seed, args.sentences)
            for row in demo.detect_all(mark, other, generation):
                rows[row.name].append(row)
        seconds, cpu = time.perf_counter() - started, time.process_time() - processor
        counts = " | ".join(cell(rows[name]) for name in names)
        print(
            f"| {candidates} | {args.runs} | {counts} | {seconds / args.runs:.1f} | {cpu / args.runs:.1f} |", flush=True
        )


if __name__ == "__main__":
    main()
