"""Computes the null tables that ship with the package, and draws them as the paper's figure.

python tools/null_tables.py --write            # the shipped tables, some minutes on two cores
python tools/null_tables.py --figure null.png  # mean and standard deviation of the block edit rate
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from alimark.core.detection.stats.null_tables import monte_carlo, null_table, tabled_lengths

SIZES = (2, 4, 8, 16)
SHIPPED = Path(__file__).parents[1] / "src" / "alimark" / "core" / "detection" / "stats" / "null_tables.json"


def write(pairs: int, longest: int) -> None:
    tables = {}
    for m in SIZES:
        dense = monte_carlo(m, range(1, 201), pairs)
        sparse = monte_carlo(m, tabled_lengths(longest)[200:], 1000)
        tables[m] = {
            "lengths": [*dense.lengths.tolist(), *sparse.lengths.tolist()],
            "mean": [round(x, 6) for x in (*dense.mean, *sparse.mean)],
            "std": [round(x, 6) for x in (*dense.std, *sparse.std)],
        }
        print(f"M={m}: mean {dense.mean[11]:.4f} and std {dense.std[11]:.4f} at 12 sentences")
    made_by = f"tools/null_tables.py --write --pairs {pairs}; 1000 pairs beyond 200 blocks"
    SHIPPED.write_text(json.dumps({"made_by": made_by, "tables": tables}, separators=(",", ":")) + "\n")


def draw(path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.4), layout="constrained")
    for m in SIZES:
        table = null_table(m, 200)
        left.plot(table.lengths[:200], table.mean[:200], label=f"M = {m}")
        right.plot(table.lengths[:200], table.std[:200], label=f"M = {m}")
    for axes, name in ((left, "mean"), (right, "standard deviation")):
        axes.set(xlabel="blocks N'", ylabel=f"block edit rate, {name}")
        axes.grid(alpha=0.3)
    right.legend(frameon=False)
    figure.savefig(path, dpi=150)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="compute the tables and store them in the package")
    parser.add_argument("--pairs", type=int, default=10000, help="pairs at each length (the paper: 1000)")
    parser.add_argument("--longest", type=int, default=2304, help="the tables reach at least this many blocks")
    parser.add_argument("--figure", type=Path, help="draw mean and standard deviation into this file")
    options = parser.parse_args()
    if options.write:
        write(options.pairs, options.longest)
    if options.figure:
        draw(options.figure)


if __name__ == "__main__":
    main()
