"""Alignment alone: one layered pass against the paper's one pass a candidate, and many random keys.

    python benchmarks/alignment.py

The rival runs the same compiled inner loop (the block edit distance to all prefixes in one table, as the paper's
appendix suggests), once for each of the 2N restructured candidates. Both give the same score; the run checks it.
"""

from __future__ import annotations

import argparse
import math
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from alimark.core._util.arrays import Packed
from alimark.core._util.compiling import kernel
from alimark.core.detection.stats.null_tables import paper_rule
from alimark.core.frozen.kernels.hard import _best_z, _edit_row, search
from alimark.core.frozen.kernels.soft import search_soft, worth_tables
from alimark.core.frozen.kernels.types import LEFT, RIGHT, WHOLE, Limits, Rule
from alimark.core.frozen.soft_rules import SOFT_VERSIONS, SoftVersion

M = 8


@kernel()
def per_candidate(units: Any, blocks: Any, m: Any, rule: Any) -> Any:
    """Algorithm 2 candidate by candidate, everything compiled."""
    mean, std, by_longer, least, most = rule
    count = len(units)
    row = np.empty(len(blocks) + 1, np.int32)
    candidate = np.empty(count + 1, np.uint64)
    best = -np.inf
    for c in range(2 * count):  # the text, N - 1 merges, N splits
        size = 0
        for i in range(count):
            if 0 < c < count and i == c:
                candidate[size - 1] = units[i, 1, 0]
            elif c >= count and i == c - count:
                candidate[size], candidate[size + 1] = units[i, 0, 2], units[i, 0, 1]
                size += 2
            else:
                candidate[size] = units[i, 0, 0]
                size += 1
        _edit_row(candidate[:size], blocks[: most[size]], np.int32(m), row)
        z, _ = _best_z(row, size, m, mean, std, by_longer, least, most)
        best = max(best, z)
    return best


def timed(call: Callable[[], object], repeats: int) -> float:
    """The median of several runs: the machine may be busy."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return float(np.median(times))


def random_text(rng: np.random.Generator, count: int) -> tuple[Packed, NDArray[np.bool_]]:
    units = rng.integers(0, 1 << M, (count, 2, 4)).astype(np.uint64)
    valid = np.zeros(units.shape, bool)
    valid[:, 0, [WHOLE, LEFT, RIGHT]] = True
    valid[1:, 1, WHOLE] = True
    return units, valid


def compare(repeats: int) -> None:
    rng = np.random.default_rng(0)
    limits = Limits.of("single")
    print(f"{'N':>4} {'one pass':>12} {'per candidate':>14} {'times faster':>13}   M={M}, median of {repeats}")
    ours: dict[int, float] = {}
    for count in (4, 8, 16, 32, 64, 128, 256):
        rule: Rule = paper_rule(M, count + 1)
        units, valid = random_text(rng, count)
        blocks = rng.integers(0, 1 << M, (1, int(rule.most[-1]))).astype(np.uint64)
        same = search(units, valid, blocks, M, limits, rule).z[0] == per_candidate(units, blocks[0], M, tuple(rule))
        assert same, "the two must agree to the last bit"
        fast = timed(lambda: search(units, valid, blocks, M, limits, rule), repeats)  # noqa: B023
        slow = timed(lambda: per_candidate(units, blocks[0], M, tuple(rule)), max(5, repeats // 10))  # noqa: B023
        ours[count] = fast
        print(f"{count:>4} {fast * 1e3:>9.3f} ms {slow * 1e3:>11.3f} ms {slow / fast:>12.1f}x")
    print(f"growth from N=64 to 256: N^{math.log(ours[256] / ours[64]) / math.log(4):.2f}")


def many_keys(repeats: int) -> None:
    rng = np.random.default_rng(1)
    units, valid = random_text(rng, 12)
    for name in ("none", "single", (1, 1), (2, 2)):
        limits = Limits.of(name)
        deep = np.zeros((12, max(2, limits.merges + 1), 4), np.uint64)
        deep[:, :2] = units
        there = np.zeros(deep.shape, bool)
        there[:, :2] = valid
        wide = paper_rule(M, 12 + max(1, limits.splits))
        more = rng.integers(0, 1 << M, (10_000, int(wide.most[-1]))).astype(np.uint64)
        search(deep, there, more, M, limits, wide)
        spent = timed(lambda: search(deep, there, more, M, limits, wide), repeats)  # noqa: B023
        print(f"10,000 random keys, 12 sentences, restructure {name}: {spent:.4f} s")


def soft_keys(repeats: int) -> None:
    """The soft detector's part for one text: tables, and the likelihood under 1,000 random keys, version beside version."""
    rng = np.random.default_rng(2)
    for count in (12, 26, 128):
        units, joinable, jobs = rng.normal(size=(count, 2, 32)), np.arange(count) > 0, np.arange(1000)

        def score(version: SoftVersion) -> object:
            length = blocks.shape[1]  # noqa: B023
            return search_soft(
                worth_tables(units), joinable, blocks, np.array([length]), version.rules,  # noqa: B023
                starts=np.array([0, count]), texts=0 * jobs, keys=jobs, weights=version.weights,  # noqa: B023
            )  # fmt: skip

        spent: dict[int, list[float]] = {number: [] for number in SOFT_VERSIONS}
        for again in range(1 + max(1, repeats * 12 // count)):  # in turns, so that a busy machine slows all of them
            for number, version in SOFT_VERSIONS.items():
                blocks = rng.integers(0, 1 << 32, (1000, math.ceil(version.blocks * count))).astype(np.uint64)
                taken = timed(lambda: score(version), 1)  # noqa: B023
                spent[number] += [taken] if again else []  # the first call compiles
        for number, times in spent.items():
            ratio = np.median(times) / np.median(spent[2])
            print(
                f"soft, version {number}, 1,000 random keys, {count} sentences, M=32: {np.median(times):.4f} s, "
                f"{ratio:.2f} of version 2 (least {min(times):.4f} s)"
            )


FIRST_CALL = """
import time
start = time.perf_counter()
import numpy as np
from alimark.core.frozen.kernels.hard import search
from alimark.core.frozen.kernels.types import Limits
from alimark.core.detection.stats.null_tables import paper_rule
rule = paper_rule(8, 13)
search(np.zeros((12, 2, 4), np.uint64), np.ones((12, 2, 4), bool), np.ones((1000, 20), np.uint64), 8, Limits.of("single"), rule)
print(time.perf_counter() - start)
"""


def first_call() -> None:
    """Imports, cached kernels and 1000 keys in a new process."""
    times = [
        float(subprocess.run([sys.executable, "-c", FIRST_CALL], capture_output=True, text=True, check=True).stdout)
        for _ in range(5)
    ]
    print(f"first call in a new process, imports included: {np.median(times):.2f} s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=50)
    options = parser.parse_args()
    compare(options.repeats)
    many_keys(max(3, options.repeats // 10))
    soft_keys(options.repeats)
    first_call()


if __name__ == "__main__":
    main()
