"""Whose key was it: one text against many keys, with the embedding shared.

python benchmarks/many_keys.py --keys 10000
"""

from __future__ import annotations

import argparse
import time

from alimark import AliMark, Key, detect, load_embedder
from alimark.testing import StandInLLM


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keys", type=int, default=10_000)
    parser.add_argument("--embedder", default="all-MiniLM-L6-v2")
    options = parser.parse_args()
    embedder = load_embedder(options.embedder)
    keys = [Key.generate(embedder=embedder, decision="hard") for _ in range(options.keys)]
    owner = keys[options.keys // 3]
    mark = AliMark(owner, embedder=embedder)
    text = mark.generate("A story.", StandInLLM(), sentences=12, candidates=32, seed=1).text
    detect(text, keys[:2], embedder=embedder)  # kernels and weights loaded
    start = time.perf_counter()
    found = detect(text, keys, embedder=embedder)
    spent = time.perf_counter() - start
    print(
        f"{options.keys:,} keys, 12 sentences, {options.embedder}: {spent:.1f} s, {found[0].draws:,} random keys for the best 3"
    )
    print(
        f"right key first: {found[0].key_id == owner.id}, p {found[0].p_value:.2g}; next best p {found[1].p_value:.2g}"
    )
    each = spent / options.keys
    print(f"a key: {each * 1e3:.2f} ms; one detection alone: {alone(text, owner, embedder) * 1e3:.0f} ms")


def alone(text: str, key: Key, embedder: object) -> float:
    start = time.perf_counter()
    detect(text, [key], embedder=embedder)  # type: ignore[arg-type]
    return time.perf_counter() - start


if __name__ == "__main__":
    main()
