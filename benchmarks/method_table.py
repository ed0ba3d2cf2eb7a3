"""All watermarks of a bench recipe in one table, a row for each watermark and attack, over all data sets together.

    python benchmarks/method_table.py recipes/local/rivals.toml work --set ...

A watermark's texts are ranked by its own statistic: the z of its paper where it has one, or else the score standardised by
random keys. Columns: sound rewrites; the share of attacked texts, failed ones included, for which the attack's model gave an
answer that was not used; AUROC; TPR at 1% and 5% false positives, at the thresholds of the human texts of the
workspace; TPR at 1% with failed attacks as misses; and the share with p <= 0.01 by random keys. All with 95% intervals.
Below: tokens and seconds a text, and the perplexity where an oracle has read the texts.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from alimark.lab.bench.jobs import Cell
from alimark.lab.bench.metrics import TITLES, Estimate, Statistic, auroc_interval, share, tpr_at
from alimark.lab.bench.recipe import OneAttack, attacks
from alimark.lab.bench.recipe_files import load
from alimark.lab.bench.run import Run
from alimark.lab.bench.workspace import Workspace
from share_found import detection_ids, human, rejected_share, statistic_for, values

Floats = NDArray[np.float64]


def percent(estimate: Estimate | None) -> str:
    if estimate is None:
        return "too few human texts"
    return f"{100 * estimate.value:.0f} [{100 * estimate.low:.0f}, {100 * estimate.high:.0f}]"


def row(run: Run, cells: list[Cell], attack: OneAttack | None, statistic: Statistic, null: Floats) -> str:
    p_values, scores = values(run, detection_ids(run, cells, attack), statistic)
    sound = ~np.isnan(scores)
    if not sound.any() or not null.size:
        return f"{sound.sum()} of {len(sound)} | {rejected_share(run, cells, attack)}" + " | -" * 5
    marked, everything = scores[sound], np.where(sound, scores, -np.inf)
    area = auroc_interval(marked, null.ravel())
    cut = float(np.quantile(null, 0.99, method="higher"))
    with_failures = share(int((everything > cut).sum()), len(everything))
    found = share(int((p_values[sound] <= 0.01).sum()), int(sound.sum()))
    return " | ".join(
        [f"{sound.sum()} of {len(sound)}", rejected_share(run, cells, attack)]
        + [f"{100 * area.value:.1f} [{100 * area.low:.1f}, {100 * area.high:.1f}]"]
        + [percent(tpr_at(marked, null.ravel(), level)) for level in (0.01, 0.05)]
        + [f"{100 * with_failures.value:.0f}", percent(found)]
    )


def cost(run: Run, cells: list[Cell]) -> str:
    """Tokens and seconds a text, and the geometric mean of the perplexities that an oracle gave."""
    ids = [run.generate_job(cell, item).id for cell in cells for item in cell.items]
    records = [record for record in run.workspace.records("generate", ids).values() if "cost" in record]
    readings = [job for job in run.reading_jobs() if job.content[1] in set(ids)] if run.recipe.quality.oracle else []
    read = run.workspace.records("quality", [job.id for job in readings]).values()
    logs = [np.log(record["perplexity"]) for record in read if "perplexity" in record]
    tokens = np.mean([record["cost"]["tokens"] for record in records]) if records else np.nan
    seconds = np.mean([record["cost"].get("seconds", np.nan) for record in records]) if records else np.nan
    perplexity = f"{np.exp(np.mean(logs)):.1f} ({len(logs)})" if logs else "-"
    return f"{tokens:,.0f} | {seconds:.2f} | {perplexity}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe", type=Path)
    parser.add_argument("workspace", type=Path)
    parser.add_argument("--set", action="append", default=[], dest="overrides", metavar="PATH=VALUE")
    args = parser.parse_args()
    run = Run(load(args.recipe, args.overrides), Workspace(args.workspace))
    names = ["none", *(attack.label for attack in attacks(run.recipe))]
    tables: dict[str, list[str]] = {name: [] for name in names}
    notes, costs = [], []
    for watermark in run.recipe.watermark:
        cells = [cell for cell in run.cells if cell.watermark.label == watermark.label]
        statistic = statistic_for(run, cells, "z")
        _, null = human(run, cells, statistic)
        for name, attack in zip(names, (None, *attacks(run.recipe)), strict=True):
            tables[name].append(f"| {watermark.label} | {row(run, cells, attack, statistic, null)} |")
        notes.append(f"{watermark.label}: {TITLES[statistic]}, {null.shape[0]} human texts")
        costs.append(f"| {watermark.label} | {cost(run, cells)} |")
    for name, lines in tables.items():
        print(
            f"\n{name}\n\n| | sound | rejected answers | AUROC | TPR@1% | TPR@5% | TPR@1% of all | p <= 0.01 |\n"
            + "| --- " * 8
            + "|"
        )
        print("\n".join(lines))
    print("\n| | tokens a text | seconds a text | perplexity |\n| --- | --- | --- | --- |\n" + "\n".join(costs))
    print("\n" + "; ".join(notes))


if __name__ == "__main__":
    main()
