"""The share of texts found under each attack, for every watermark of a bench recipe side by side.

    python benchmarks/share_found.py recipes/local/version3.toml work --set ...

Of each watermark: the share found at p <= 0.01 by random keys among sound rewrites, with its 95% interval (Wilson); the same
with failed attacks as misses; and, where the workspace holds scores of human texts, the share above the empirical 99% quantile
of their scores (TPR@1%), by the recipe's `statistic`. Below the table: the statistic, and how often human texts were found at
p <= 0.01, 0.05 and 0.5, with 99% intervals over texts.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from alimark.bench.jobs import Cell
from alimark.bench.recipe_files import load
from alimark.bench.recipe_points import attacks
from alimark.bench.run import Run
from alimark.bench.statistic import TITLES, Statistic, ranked_by, statistic_of
from alimark.bench.workspace import Workspace

Floats = NDArray[np.float64]
LEVELS = (0.01, 0.05, 0.5)


def wilson(found: int, count: int, z: float = 1.96) -> tuple[float, float]:
    """The interval of a share, in per cent."""
    share, weight = found / count, z * z / count
    middle = (share + weight / 2) / (1 + weight)
    half = z / (1 + weight) * math.sqrt(share * (1 - share) / count + weight / (4 * count))
    return 100 * (middle - half), 100 * (middle + half)


def values(run: Run, ids: list[str], statistic: Statistic) -> tuple[Floats, Floats]:
    """The p-values and the statistic of detections; NaN where there is none."""
    records = run.workspace.records("detect", ids)
    rows = [records.get(one_id, {}) for one_id in ids]
    p_values = np.array([float(row.get("p_value", np.nan)) for row in rows])
    return p_values, np.array([statistic_of(row, statistic) if "p_value" in row else np.nan for row in rows])


def statistic_for(run: Run, cells: list[Cell]) -> Statistic:
    """What a watermark's texts are ranked by: the recipe's statistic, or the score where the scheme has no z."""
    [detection] = run.recipe.detection
    ids = [run.detect_job(cell, detection, run.generate_job(cell, item).id, item.prompt).id
           for cell in cells for item in cell.items]  # fmt: skip
    records = run.workspace.records("detect", ids).values()
    return ranked_by([record for record in records if not record.get("failed")], run.recipe.statistic)


def human(run: Run, cells: list[Cell], statistic: Statistic) -> tuple[Floats, Floats]:
    """The p-values and the statistic of the human texts that were scored, a row for each text."""
    [detection] = run.recipe.detection
    ids = [job.id for cell in cells for _, job in run.human_jobs(cell, detection)]
    p_values, scores = (array.reshape(-1, run.recipe.data.human_keys) for array in values(run, ids, statistic))
    scored = ~np.isnan(scores).any(axis=1)
    return p_values[scored], scores[scored]


def cell_text(p_values: Floats, scores: Floats, threshold: float) -> str:
    sound = ~np.isnan(p_values)
    if not sound.any():
        return "-"
    found, count = int((p_values[sound] <= 0.01).sum()), int(sound.sum())
    low, high = wilson(found, count)
    text = f"{100 * found / count:.0f} [{low:.0f}, {high:.0f}] of {count}; all {100 * found / len(p_values):.0f}"
    return text if np.isnan(threshold) else text + f"; TPR {100 * (scores[sound] > threshold).mean():.0f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe", type=Path)
    parser.add_argument("workspace", type=Path)
    parser.add_argument("--set", action="append", default=[], dest="overrides", metavar="PATH=VALUE")
    args = parser.parse_args()
    run = Run(load(args.recipe, args.overrides), Workspace(args.workspace, part=98))
    [detection] = run.recipe.detection
    labels = [watermark.label for watermark in run.recipe.watermark]
    columns: dict[str, dict[str, str]] = {}
    notes = []
    for label in labels:
        cells = [cell for cell in run.cells if cell.watermark.label == label]
        statistic = statistic_for(run, cells)
        null_p, null_scores = human(run, cells, statistic)
        threshold = float(np.quantile(null_scores, 0.99, method="higher")) if null_scores.size else math.nan
        for attack in (None, *attacks(run.recipe)):
            name = "none" if attack is None else attack.label
            ids = [
                run.detect_job(
                    cell, detection,
                    (run.generate_job(cell, item) if attack is None else run.attack_job(cell, item, attack)).id,
                    item.prompt,
                ).id
                for cell in cells for item in cell.items
            ]  # fmt: skip
            columns.setdefault(name, {})[label] = cell_text(*values(run, ids, statistic), threshold)
        if null_p.size:
            rng = np.random.default_rng(1)
            rows = rng.integers(0, len(null_p), (4000, len(null_p)))
            shares = []
            for level in LEVELS:
                means = (null_p <= level).mean(axis=1)
                low, high = np.quantile(means[rows].mean(axis=1), (0.005, 0.995))
                shares.append(f"{100 * means.mean():.1f}% [{100 * low:.1f}, {100 * high:.1f}] at p <= {level}")
            notes.append(
                f"{label}: ranked by {TITLES[statistic]}; {len(null_p)} human texts, {null_p.size} scores, found: "
                + ", ".join(shares)
            )
    print("| attack | " + " | ".join(labels) + " |\n" + "| --- " * (len(labels) + 1) + "|")
    for name, row in columns.items():
        print(f"| {name} | " + " | ".join(row[label] for label in labels) + " |")
    print("\n" + "\n".join(notes))


if __name__ == "__main__":
    main()
