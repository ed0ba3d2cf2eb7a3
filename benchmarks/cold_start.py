"""The start of `alimark detect` from a shell: the code of another checkout against this one, in turns.

    python benchmarks/cold_start.py --before OTHER/src --turns 5

A soft key and a text of twelve sentences. The median of the seconds and of the CPU seconds is printed; a busy machine disturbs
the latter less. `python -X importtime -m alimark detect ...` shows what is imported.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from alimark.embedding.loading import load_embedder
from alimark.keys.key import Key
from embedding import sentences


def cpu_seconds() -> float:
    """The CPU seconds of all processes that were started and have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def start(command: list[str], source: Path) -> tuple[float, float]:
    """The seconds and CPU seconds of a new process with the code of a `src` folder."""
    before, started = cpu_seconds(), time.perf_counter()
    done = subprocess.run(
        command, env=os.environ | {"PYTHONPATH": str(source)}, capture_output=True, text=True, check=False
    )
    if done.returncode > 1:
        raise SystemExit(done.stderr)
    return time.perf_counter() - started, cpu_seconds() - before


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", type=Path, required=True, help="src folder of another checkout")
    parser.add_argument("--model", default="all-MiniLM-L6-v2")
    parser.add_argument("--turns", type=int, default=5)
    args = parser.parse_args()
    sources = {"before": args.before, "after": Path(__file__).resolve().parents[1] / "src"}
    with tempfile.TemporaryDirectory() as folder:
        key, text = Path(folder) / "key.json", Path(folder) / "text.txt"
        Key.generate(embedder=load_embedder(args.model), secret=bytes(32)).save(key)
        text.write_text(" ".join(sentences(12, seed=3)))
        command = [sys.executable, "-m", "alimark", "detect", "-k", str(key), str(text)]
        for source in sources.values():
            start(command, source)  # compiles kernels
        turns = [{name: start(command, source) for name, source in sources.items()} for _ in range(args.turns)]
    for name in sources:
        seconds, cpu = (statistics.median(values) for values in zip(*(turn[name] for turn in turns), strict=True))
        print(f"{name:8} {seconds:6.2f} s, {cpu:5.2f} CPU s")


if __name__ == "__main__":
    main()
