"""EXP's detection against the plain method: 100 random keys for a text of 200 tokens.

    python benchmarks/exp_detection.py
    python benchmarks/exp_detection.py --plain-keys 100          # the plain method in full: minutes

The plain method is what public code does, without its compiled inner loop: each random key is a table of uniform numbers, one
for each place of the sequence and each token of the vocabulary, drawn with NumPy, and the text is aligned with every shift of
it by edit distance, a cell at a time in Python. It is run for some keys and its time multiplied, which is said; both methods
then align the same text with the same numbers, and their costs are compared.
"""

from __future__ import annotations

import argparse
import math
import time

import numpy as np
from numpy.typing import NDArray

from alimark.lab.rivals import _prf
from alimark.lab.rivals.exp import costs

VOCABULARY = 49_152


def plain_cost(table: NDArray[np.float64], ids: NDArray[np.int64], gap: float = 0.0) -> float:
    """The least cost over all shifts of a key sequence, (places, vocabulary)."""
    length, tokens = len(table), len(ids)
    matched = np.log(1 - table[:, ids]).T.tolist()
    least = math.inf
    for shift in range(length):
        places = [(shift + b) % length for b in range(tokens)]
        above = [gap * b for b in range(tokens + 1)]
        for a in range(tokens):
            cost = matched[a]
            row = [gap * (a + 1)]
            left = row[0]
            for b in range(tokens):
                left = min(above[b] + cost[places[b]], above[b + 1] + gap, left + gap)
                row.append(left)
            above = row
        least = min(least, above[-1])
    return least


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--length", type=int, default=256, help="of the key sequence")
    parser.add_argument("--keys", type=int, default=100, help="random keys, beside the text's own")
    parser.add_argument("--plain-keys", type=int, default=2, help="keys for which the plain method is run")
    options = parser.parse_args()
    random = np.random.default_rng(0)
    ids = random.integers(0, VOCABULARY, options.tokens)
    secrets = _prf.words(random.bytes(16 * (options.keys + 1)))
    costs(ids[:8], secrets[:2], options.length, 0.0)  # compiles, or reads what was compiled
    times = []
    for _ in range(5):
        started = time.perf_counter()
        fast = costs(ids, secrets, options.length, 0.0)
        times.append(time.perf_counter() - started)
    took = float(np.median(times))
    cells = len(secrets) * options.length * options.tokens**2
    print(f"alimark: {options.keys} random keys and the own one, {options.tokens} tokens, sequence of {options.length}: "
          f"{took:.3f} s, median of 5 ({cells / took / 1e9:.2f} thousand million cells a second)", flush=True)  # fmt: skip
    started = time.perf_counter()
    drawn = np.random.default_rng(1)
    for _ in range(options.plain_keys):
        plain_cost(drawn.random((options.length, VOCABULARY)), ids)
    plain = time.perf_counter() - started
    whole = plain / options.plain_keys * (options.keys + 1)
    print(f"plain: {plain:.1f} s for {options.plain_keys} keys, so {whole:.0f} s for {options.keys + 1}")
    print(f"ratio: {whole / took:.0f}")
    every = np.arange(VOCABULARY)
    table = _prf.unit(_prf.hashed(secrets[1], np.arange(options.length)[:, None], every))
    print(f"cost of one key, alimark {fast[1]:.4f}, plain {plain_cost(table, ids):.4f}")


if __name__ == "__main__":
    main()
