"""Two watermarks of a bench recipe on the same prompts: TPR of each, and the difference with a paired interval.

    python benchmarks/paired.py recipes/local/soft.toml work --set data.texts=50 --set llm=transformers:smollm2-135m

Thresholds are the empirical quantiles of the recipe's human texts under fresh keys, each watermark's own. The interval of the
difference comes from resampling prompts and human texts together, 4000 times. Attacks that failed are counted apart: "sound"
leaves a prompt out where the attack failed on either text, "all" counts failures as misses.

With --nominal the threshold is a p-value by random keys, right for every text whatever human texts there are: then none are
resampled, and intervals are narrower.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from alimark.bench.recipe import OneAttack, attacks, load
from alimark.bench.run import Cell, Run
from alimark.bench.workspace import Workspace
from alimark.records import Record

Floats = NDArray[np.float64]
REPEATS = 4000


@dataclass(frozen=True)
class Scored:
    """Of one watermark: scores of human texts, and for each attack the score of each prompt's text, NaN where it failed."""

    label: str
    human: Floats
    p_values: Floats
    """Of the human texts."""
    texts: dict[str, Floats]
    own_p: dict[str, Floats]
    """The p-values of those texts."""


def scored(run: Run, label: str) -> Scored:
    cells = [cell for cell in run.cells if cell.watermark.label == label]
    [detection] = run.recipe.detection
    records = run.workspace.records("detect", {job.id for job in run.detect_jobs()})

    def of(attack: OneAttack | None, name: str) -> Floats:
        return np.array(
            [
                _value(records.get(run.detect_job(cell, detection, _source(run, cell, item, attack), item.prompt).id), name)
                for cell in cells
                for item in cell.items
            ]
        )  # fmt: skip

    own = [records.get(job.id) for cell in cells for _, job in run.human_jobs(cell, detection)]
    human = np.array([_value(record, "score") for record in own])
    if np.isnan(human).any():
        raise SystemExit(
            f"{int(np.isnan(human).sum())} human texts are not scored yet: finish `alimark bench run` first"
        )
    ways = {"none": None} | {attack.label: attack for attack in attacks(run.recipe)}
    every, own_p = ({attack: of(way, name) for attack, way in ways.items()} for name in ("score", "p_value"))
    return Scored(label, human, np.array([float(record["p_value"]) for record in own if record]), every, own_p)


def _source(run: Run, cell: Cell, item: object, attack: OneAttack | None) -> str:
    return run.generate_job(cell, item).id if attack is None else run.attack_job(cell, item, attack).id  # type: ignore[arg-type]


def _value(record: Record | None, name: str) -> float:
    return float(record[name]) if record and name in record else float("nan")


def rate(scores: Floats, human: Floats, fpr: float) -> float:
    """Of the texts that were attacked with success."""
    sound = scores[~np.isnan(scores)]
    return float((sound > np.quantile(human, 1 - fpr, method="higher")).mean())


def difference(one: Scored, two: Scored, attack: str, fpr: float, rng: np.random.Generator) -> tuple[float, float]:
    """The 95% interval of the second's rate less the first's, on prompts that both came through."""
    a, b = one.texts[attack], two.texts[attack]
    sound = ~np.isnan(a) & ~np.isnan(b)
    a, b = a[sound], b[sound]
    found = []
    for _ in range(REPEATS):
        prompts = rng.integers(0, len(a), len(a))
        humans = rng.integers(0, len(one.human), len(one.human))
        found.append(rate(b[prompts], two.human[humans], fpr) - rate(a[prompts], one.human[humans], fpr))
    low, high = np.quantile(found, (0.025, 0.975))
    return float(low), float(high)


def row(one: Scored, two: Scored, attack: str, rng: np.random.Generator) -> str:
    a, b = one.texts[attack], two.texts[attack]
    sound = ~np.isnan(a) & ~np.isnan(b)
    cells = [attack, str(int(sound.sum())), f"{int(np.isnan(a).sum())}, {int(np.isnan(b).sum())}"]
    for fpr in (0.01, 0.05):
        rates = [rate(x[sound], own.human, fpr) for x, own in ((a, one), (b, two))]
        low, high = difference(one, two, attack, fpr, rng)
        cells += [f"{100 * r:.0f}" for r in rates]
        cells += [f"{100 * (rates[1] - rates[0]):+.0f} [{100 * low:+.0f}, {100 * high:+.0f}]"]
    # A comparison with NaN is false: a failed attack counts as a miss.
    missed = [float((x > np.quantile(own.human, 0.99, method="higher")).mean()) for x, own in ((a, one), (b, two))]
    return "| " + " | ".join([*cells, ", ".join(f"{100 * m:.0f}" for m in missed)]) + " |"


def nominal_row(one: Scored, two: Scored, attack: str, rng: np.random.Generator) -> str:
    """The same at p-values of 1% and 5%."""
    a, b = one.own_p[attack], two.own_p[attack]
    sound = ~np.isnan(a) & ~np.isnan(b)
    cells = [attack, str(int(sound.sum()))]
    for level in (0.01, 0.05):
        found = np.stack([a[sound] <= level, b[sound] <= level]).astype(float)
        less = found[1] - found[0]
        means = less[rng.integers(0, len(less), (REPEATS, len(less)))].mean(axis=1)
        low, high = np.quantile(means, (0.025, 0.975))
        cells += [f"{100 * share:.0f}" for share in found.mean(axis=1)]
        cells += [f"{100 * less.mean():+.0f} [{100 * low:+.0f}, {100 * high:+.0f}]"]
    return "| " + " | ".join(cells) + " |"


def draw(path: Path, one: Scored, two: Scored) -> None:
    """A line an attack, from the first watermark's rate to the second's."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    names = list(one.texts)[::-1]
    rates = [[100 * rate(own.texts[name], own.human, 0.01) for name in names] for own in (one, two)]
    figure, axes = plt.subplots(figsize=(7.5, 0.28 * len(names) + 1.2), layout="constrained")
    axes.hlines(range(len(names)), rates[0], rates[1], color="#c8ccd4", linewidth=2, zorder=1)
    for own, found, colour in ((one, rates[0], "#8a94a6"), (two, rates[1], "#0b6e4f")):
        axes.scatter(found, range(len(names)), color=colour, s=34, label=own.label, zorder=2)
    axes.set_yticks(range(len(names)), names)
    axes.set_xlim(0, 103)
    axes.set_xlabel("texts found at a false-positive rate of 1% (%)")
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.grid(axis="x", color="#eceef2", zorder=0)
    axes.legend(loc="lower left", frameon=False)
    figure.savefig(path, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe", type=Path)
    parser.add_argument("workspace", type=Path)
    parser.add_argument("--set", action="append", default=[], dest="overrides", metavar="PATH=VALUE")
    parser.add_argument("--plot", type=Path, help="draw the rates at 1%% as a picture, too")
    parser.add_argument("--nominal", action="store_true", help="thresholds are p-values by random keys")
    args = parser.parse_args()
    run = Run(load(args.recipe, args.overrides), Workspace(args.workspace))
    one, two = (scored(run, watermark.label) for watermark in run.recipe.watermark[:2])
    for own in (one, two):
        found = ", ".join(f"{100 * (own.p_values <= level).mean():.1f}% at p <= {level}" for level in (0.01, 0.05))
        print(f"{own.label}: {len(own.human)} human texts, of which found: {found}")
    names = [f"{own.label} {'p <= ' if args.nominal else 'TPR@'}{x}" for x in ("1%", "5%") for own in (one, two)]
    head = ["attack", "sound", "failed", *names[:2], "difference", *names[2:], "difference", "@1%, all"]
    head = [head[i] for i in (0, 1, 3, 4, 5, 6, 7, 8)] if args.nominal else head
    print("| " + " | ".join(head) + " |\n" + "| --- " * len(head) + "|")
    if args.plot:
        draw(args.plot, one, two)
    rng = np.random.default_rng(1)
    for attack in one.texts:
        if not (np.isnan(one.texts[attack]).all() or np.isnan(two.texts[attack]).all()):
            print((nominal_row if args.nominal else row)(one, two, attack, rng), flush=True)


if __name__ == "__main__":
    main()
