"""Two watermarks of a bench recipe on the same prompts: TPR of each, and the difference with a paired interval.

    python benchmarks/paired.py recipes/local/soft.toml work --set data.texts=50 --set llm=transformers:smollm2-135m

Texts are ranked by the recipe's `statistic`, which the first lines of the output name (`--set statistic=z` is the paper's z,
where a watermark has one). Thresholds are the empirical quantiles of the human texts of the recipe under fresh keys, each its
own. The interval of the difference comes from resampling prompts and human texts together, 4000 times; with `data.human_keys` a
human text counts under several keys, and is resampled with all of them. Attacks that failed are counted apart: "sound" leaves a
prompt out where the attack failed on either text, "all" counts failures as misses.

With --answers N up to N texts of a prompt are compared, as far as both watermarks have them in the workspace (the answers that
`quality.answers` asks for), and with --times N each is attacked N times; what the bench did not do is attacked and scored here
first. All texts count the same, and a prompt is resampled with all of its texts.

With --nominal the threshold is a p-value by random keys, right for every text whatever human texts there are: then none are
resampled, and intervals are narrower.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from alimark.lab.bench.data import Item
from alimark.lab.bench.jobs import Cell, Job
from alimark.lab.bench.recipe_files import load
from alimark.lab.bench.recipe_points import OneAttack, attacks
from alimark.lab.bench.run import Run
from alimark.lab.bench.statistic import TITLES, Statistic, ranked_by, statistic_of
from alimark.lab.bench.workspace import Workspace

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
REPEATS = 4000


class Text(NamedTuple):
    """An answer to a prompt; the prompt's number among those of all data sets."""

    data: str
    item: Item
    prompt: int
    answer: int
    again: int
    """How often the answer was attacked before."""


@dataclass(frozen=True)
class Scored:
    """Of one watermark: scores of human texts, and for each attack the score of each text, NaN where it failed."""

    label: str
    human: Floats
    """A row for each human text, a column for each key that it was scored under."""
    p_values: Floats
    """Of the human texts."""
    texts: dict[str, Floats]
    own_p: dict[str, Floats]
    """The p-values of those texts."""
    prompts: Ints
    """To which prompt each text belongs."""
    statistic: Statistic = "score"


def texts_of(run: Run, answers: int, times: int = 1) -> list[Text]:
    """The first answers to every prompt, and further ones that every watermark has."""
    if run.recipe.grid:
        raise SystemExit("a recipe with a grid holds several tables: set one value of each")
    ids: dict[Text, list[str]] = {}
    prompts: dict[tuple[str, str], int] = {}
    for cell in run.cells:
        for item in cell.items:
            prompt = prompts.setdefault((cell.data.name, item.prompt), len(prompts))
            for answer in range(answers):
                own = run.generate_job(cell, item, answer=answer).id
                for again in range(times):
                    ids.setdefault(Text(cell.data.name, item, prompt, answer, again), []).append(own)
    there = run.workspace.records("generate", [one for some in ids.values() for one in some])
    return [text for text, some in ids.items() if not text.answer or all(one in there for one in some)]


def source(run: Run, cell: Cell, text: Text, attack: OneAttack | None) -> Job[object]:
    """What makes the text that is scored."""
    if attack is None:
        return run.generate_job(cell, text.item, answer=text.answer)
    return run.attack_job(cell, text.item, attack, text.answer, text.again)


def complete(run: Run, texts: list[Text]) -> None:
    """Attacks and scores what a run of the recipe leaves alone."""
    further = [
        (cell, text)
        for cell in run.cells
        for text in texts
        if text.data == cell.data.name and (text.answer or text.again)
    ]
    attacked = [
        run.attack_job(cell, text.item, attack, text.answer, text.again)
        for cell, text in further
        for attack in attacks(run.recipe)
    ]
    run.attack(attacked)
    [detection] = run.recipe.detection
    scores = [
        run.detect_job(cell, detection, source(run, cell, text, attack).id, text.item.prompt)
        for cell, text in further
        for attack in (None, *attacks(run.recipe))
    ]
    run.detect(scores)


def scored(run: Run, label: str, texts: list[Text]) -> Scored:
    cells = {cell.data.name: cell for cell in run.cells if cell.watermark.label == label}
    [detection] = run.recipe.detection
    ways = {"none": None} | {attack.label: attack for attack in attacks(run.recipe)}
    own = [job.id for cell in cells.values() for _, job in run.human_jobs(cell, detection)]
    jobs = {
        name: [
            run.detect_job(
                cells[text.data], detection, source(run, cells[text.data], text, way).id, text.item.prompt
            ).id
            for text in texts
        ]
        for name, way in ways.items()
    }
    records = run.workspace.records("detect", {*own, *(one for some in jobs.values() for one in some)})

    statistic = ranked_by([record for record in records.values() if not record.get("failed")], run.recipe.statistic)

    def ranks(ids: list[str]) -> Floats:
        sound = [records.get(one, {"failed": True}) for one in ids]
        return np.array([np.nan if record.get("failed") else statistic_of(record, statistic) for record in sound])

    def p_values(ids: list[str]) -> Floats:
        return np.array([float(records.get(one, {}).get("p_value", np.nan)) for one in ids])

    human = ranks(own).reshape(-1, run.recipe.data.human_keys)
    if np.isnan(human).any():
        raise SystemExit(
            f"{int(np.isnan(human).sum())} human texts are not scored yet: finish `alimark bench run` first"
        )
    every, own_p = ({way: values(ids) for way, ids in jobs.items()} for values in (ranks, p_values))
    return Scored(label, human, p_values(own), every, own_p, np.array([text.prompt for text in texts]), statistic)


def rate(scores: Floats, human: Floats, fpr: float, times: Floats | None = None) -> float:
    """Of texts that were attacked with success, each of which may count several times."""
    return float(np.average(scores > np.quantile(human, 1 - fpr, method="higher"), weights=times))


def difference(one: Scored, two: Scored, attack: str, fpr: float, rng: np.random.Generator) -> tuple[float, float]:
    """The 95% interval of the second's rate less the first's, on texts that both came through."""
    a, b = one.texts[attack], two.texts[attack]
    sound = ~np.isnan(a) & ~np.isnan(b)
    a, b = a[sound], b[sound]
    names, prompts = np.unique(one.prompts[sound], return_inverse=True)
    found: list[float] = []
    while len(found) < REPEATS:
        times = np.bincount(rng.integers(0, len(names), len(names)), minlength=len(names))[prompts].astype(float)
        humans = rng.integers(0, len(one.human), len(one.human))
        found.append(rate(b, two.human[humans], fpr, times) - rate(a, one.human[humans], fpr, times))
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
        names, prompts = np.unique(one.prompts[sound], return_inverse=True)
        sums, counts = np.bincount(prompts, less), np.bincount(prompts)
        drawn = rng.integers(0, len(names), (REPEATS, len(names)))
        means = sums[drawn].sum(axis=1) / counts[drawn].sum(axis=1)
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
    sound = {name: ~np.isnan(one.texts[name]) & ~np.isnan(two.texts[name]) for name in names}
    rates = [[100 * rate(own.texts[name][sound[name]], own.human, 0.01) for name in names] for own in (one, two)]
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
    parser.add_argument("--answers", type=int, default=1, help="texts of a prompt, as far as there are so many")
    parser.add_argument("--times", type=int, default=1, help="how often each text is attacked")
    args = parser.parse_args()
    run = Run(load(args.recipe, args.overrides), Workspace(args.workspace))
    texts = texts_of(run, args.answers, args.times)
    complete(run, texts)
    one, two = (scored(run, watermark.label, texts) for watermark in run.recipe.watermark[:2])
    for own in (one, two):
        found = ", ".join(f"{100 * (own.p_values <= level).mean():.1f}% at p <= {level}" for level in (0.01, 0.05))
        scores = f"{len(own.human)} human texts, {own.human.size} scores"
        print(f"{own.label}: ranked by {TITLES[own.statistic]}; {scores}, of which found: {found}")
    print(f"{len(texts)} texts of each on {len(set(one.prompts.tolist()))} prompts\n")
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
