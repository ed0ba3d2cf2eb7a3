"""What branching could gain: the first half of sentences is sampled, the best halves are kept, and each gets several endings.

    python benchmarks/branching.py

A simulation: a sentence's worth is normal, the sum of what its first half and its ending decide. The first half decides a share
of the variance, and what predicts it correlates with it. Printed is how far the best candidate lies above the mean, in standard
deviations: of so many whole sentences, and by the best branching at the same cost in tokens.
"""

from __future__ import annotations

from itertools import product

import numpy as np

REPEATS = 4000


def best_of(candidates: int, rng: np.random.Generator) -> float:
    """The best of whole sentences."""
    return float(rng.standard_normal((REPEATS, candidates)).max(axis=1).mean())


def branched(first: int, kept: int, endings: int, share: float, correlation: float, rng: np.random.Generator) -> float:
    """The best sentence where the likeliest of the first halves are kept and each gets so many endings."""
    halves = rng.standard_normal((REPEATS, first))
    noise = rng.standard_normal(halves.shape)
    predicted = correlation * halves + np.sqrt(1 - correlation**2) * noise
    chosen = np.take_along_axis(halves, np.argsort(-predicted, axis=1)[:, :kept], axis=1)
    rest = rng.standard_normal((REPEATS, kept, endings))
    return float((np.sqrt(share) * chosen[:, :, None] + np.sqrt(1 - share) * rest).max(axis=(1, 2)).mean())


def main() -> None:
    rng = np.random.default_rng(1)
    print("| candidates | share of the first half | correlation | whole | branched | halves, kept, endings of each |")
    print("| --- " * 6 + "|")
    for candidates, share, correlation in product((4, 8, 24, 64), (0.25, 0.5), (0.3, 0.5, 0.7)):
        options = []
        for first, kept in product((candidates // 2, candidates, candidates * 3 // 2), (1, 2, 4, 8)):
            endings = (2 * candidates - first) // kept
            if kept <= first and endings:
                options.append((branched(first, kept, endings, share, correlation, rng), (first, kept, endings)))
        worth, (first, kept, endings) = max(options)
        whole = best_of(candidates, rng)
        print(
            f"| {candidates} | {share} | {correlation} | {whole:.2f} | {worth:.2f} | {first}, {kept}, {endings} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
