"""The share of texts found under each attack, for every watermark of a bench recipe side by side.

    python benchmarks/share_found.py recipes/local/soft.toml work --set ...

Of each watermark: the share found at p <= 0.01 by random keys among sound rewrites, with its 95% interval (Wilson); the same
with failed attacks as misses; the share of attacked texts, failed ones included, for which the attack's model gave an answer
that was not used; and, where the workspace holds scores of human texts, the share above the empirical 99% quantile of their
scores (TPR@1%), by the recipe's `statistic`. Of watermarks with a payload also the share of payloads that are right, of all
texts. Of the second watermark and all further ones the difference to the first in points, among prompts whose rewrites under
both are sound, with a 95% interval from resampling prompts. Below the table: the statistic, and how often human texts were
found at p <= 0.01, 0.05 and 0.5, with 99% intervals over texts.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from alimark.lab.bench.jobs import Cell
from alimark.lab.bench.metrics import TITLES, Statistic, ranked_by, statistic_of
from alimark.lab.bench.models import key_for, secret
from alimark.lab.bench.recipe import OneAttack, attacks
from alimark.lab.bench.recipe_files import load
from alimark.lab.bench.run import Run
from alimark.lab.bench.workspace import Workspace

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


def detection_ids(run: Run, cells: list[Cell], attack: OneAttack | None) -> list[str]:
    """The ids of the detections of a watermark's texts under an attack."""
    [detection] = run.recipe.detection
    return [
        run.detect_job(
            cell,
            detection,
            run.source(cell, item) if attack is None else run.attack_job(cell, item, attack).id,
            item.prompt,
        ).id
        for cell in cells
        for item in cell.items
    ]


def human_ids(run: Run, cells: list[Cell]) -> list[str]:
    """The ids of the detections of human texts."""
    [detection] = run.recipe.detection
    return [job.id for cell in cells for _, job in run.human_jobs(cell, detection)]


def rejected_share(run: Run, cells: list[Cell], attack: OneAttack | None) -> str:
    """The share of attacked texts, failed ones included, for which the attack's model gave an answer that was not used."""
    if attack is None:
        return "-"
    jobs = [run.attack_job(cell, item, attack).chain for cell in cells for item in cell.items]
    records = run.workspace.records("attack", [step.id for chain in jobs for step in chain])
    chains = [[records[step.id] for step in chain] for chain in jobs if all(step.id in records for step in chain)]
    count = sum(any(step["rejected"] for step in steps) for steps in chains)
    return f"{100 * count / len(chains):.0f}%" if chains else "-"


def statistic_for(run: Run, cells: list[Cell], wanted: Statistic) -> Statistic:
    """What a watermark's texts are ranked by: the wanted statistic, or the score where one of its texts has no z."""
    ids = [one_id for attack in (None, *attacks(run.recipe)) for one_id in detection_ids(run, cells, attack)]
    records = run.workspace.records("detect", [*ids, *human_ids(run, cells)]).values()
    return ranked_by([record for record in records if not record.get("failed")], wanted)


def human(run: Run, cells: list[Cell], statistic: Statistic) -> tuple[Floats, Floats]:
    """The p-values and the statistic of the human texts that were scored, a row for each text."""
    both = values(run, human_ids(run, cells), statistic)
    p_values, scores = (array.reshape(-1, run.recipe.data.human_keys) for array in both)
    scored = ~np.isnan(scores).any(axis=1)
    return p_values[scored], scores[scored]


def difference(first: Floats, second: Floats) -> str:
    """The difference of the shares found, in points, among prompts where both are known; "" where there are none."""
    both = ~(np.isnan(first) | np.isnan(second))
    if not both.any():
        return ""
    less = (second[both] <= 0.01).astype(float) - (first[both] <= 0.01)
    rows = np.random.default_rng(1).integers(0, len(less), (4000, len(less)))
    low, high = np.quantile(less[rows].mean(axis=1), (0.025, 0.975))
    return f"; {100 * less.mean():+.0f} [{100 * low:+.0f}, {100 * high:+.0f}]"


def payloads_right(run: Run, cells: list[Cell], attack: OneAttack | None) -> str:
    """The share of texts whose payload is read right; "" of watermarks without payloads."""
    carried = [
        key_for(cell.watermark, secret(cell.recipe.seed, item.prompt), run.models).payload
        for cell in cells
        for item in cell.items
    ]
    if not any(payload is not None for payload in carried):
        return ""
    ids = detection_ids(run, cells, attack)
    records = run.workspace.records("detect", ids)
    right = sum(
        (records.get(job, {}).get("payload") or {}).get("value") == payload
        for job, payload in zip(ids, carried, strict=True)
    )
    low, high = wilson(right, len(ids))
    return f"; payload {100 * right / len(ids):.0f} [{low:.0f}, {high:.0f}]"


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
    run = Run(load(args.recipe, args.overrides), Workspace(args.workspace))
    labels = [watermark.label for watermark in run.recipe.watermark]
    columns: dict[str, dict[str, str]] = {}
    notes = []
    first: dict[str, Floats] = {}
    for label in labels:
        cells = [cell for cell in run.cells if cell.watermark.label == label]
        statistic = statistic_for(run, cells, run.recipe.statistic)
        null_p, null_scores = human(run, cells, statistic)
        threshold = float(np.quantile(null_scores, 0.99, method="higher")) if null_scores.size else math.nan
        for attack in (None, *attacks(run.recipe)):
            name = "none" if attack is None else attack.label
            p_values, scores = values(run, detection_ids(run, cells, attack), statistic)
            text = cell_text(p_values, scores, threshold) + payloads_right(run, cells, attack)
            text += difference(first[name], p_values) if name in first else ""
            first.setdefault(name, p_values)
            rejected = f"; rejected {rejected_share(run, cells, attack)}" if attack else ""
            columns.setdefault(name, {})[label] = text + rejected
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
