"""Measures that splitting and cleaning take linear time: the CPU time of ten times as long a run, as a ratio.

    python benchmarks/text_scaling.py [--length 100000]

Linear time gives ratios of about 10, quadratic time about 100. `tests/core/text/test_linear_time.py` checks all Unicode
classes.
"""

from __future__ import annotations

import argparse
import time

from alimark.core.frozen.text.splitting import splitter
from alimark.core.frozen.text.units import clean

RUNS = ("a", " ", "\n", "!", "!?", "…", "。", "؟", "a. ", "! ", "\t\x1f", "```\n", "- a\n")


def seconds(text: str) -> float:
    """The CPU time of splitting and cleaning a text, the better of two runs."""
    times = []
    for _ in range(2):
        start = time.process_time()
        splitter().spans(text)
        clean(text)
        times.append(time.process_time() - start)
    return min(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--length", type=int, default=100_000, help="characters of the shorter run")
    length = parser.parse_args().length
    seconds("Warm up. It loads the splitter.")
    print("| run | seconds | ten times as long | ratio |\n| --- | --- | --- | --- |")
    for run in RUNS:
        short, long = (seconds((run * size)[:size]) for size in (length, 10 * length))
        print(f"| `{run!a}` | {short:.4f} | {long:.4f} | {long / short:.1f} |")


if __name__ == "__main__":
    main()
