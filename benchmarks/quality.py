"""What marking does to the text: perplexity, repetition, diversity, cosine of neighbours; each watermark beside unmarked text.

    python benchmarks/quality.py recipes/local/soft.toml work --set data.texts=50 --set llm=transformers:smollm2-135m \
        --set 'quality={oracle="qwen2.5-coder-1.5b",texts=50,answers=8,prompts=25}'

Of the recipe's watermarks, on the same prompts. Perplexities are ratios of geometric means; everything has a 95% interval from
resampling prompts with all their answers, 4000 times, the same prompts on both sides. Diversity is told of prompts that were
answered several times under one key: one minus the mean cosine of two answers, and the share of an answer's runs of four words
that another answer has, too. "Neighbours" is the mean cosine of neighbouring sentences, which a mark could raise; the human
texts of the same prompts have a row for it. The texts and perplexities are the bench's records.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from alimark.core.frozen.text.splitting import DEFAULT_SPLITTER, splitter
from alimark.lab.bench.data import DataItem
from alimark.lab.bench.jobs import Cell, Job, TextToRead
from alimark.lab.bench.quality import distinct, diversity, repetition, word_sequences
from alimark.lab.bench.recipe_files import load
from alimark.lab.bench.run import Run
from alimark.lab.bench.workspace import Workspace

Floats = NDArray[np.float64]
REPEATS = 4000
UNMARKED = "unmarked"


@dataclass
class Prompted:
    """What one kind of text amounts to on one prompt; NaN where nothing is known."""

    values: dict[str, list[float]] = field(default_factory=dict)

    def of(self, name: str) -> float:
        return float(np.mean(self.values[name])) if self.values.get(name) else float("nan")


Embed = Callable[[Sequence[str]], NDArray[np.float32]]


def answers_of(cell: Cell, number: int) -> range:
    """The answers that the recipe asks for of its prompt with this number."""
    wanted = cell.recipe.quality
    return range(wanted.answers if number < wanted.prompts and wanted.answers else 1)


@dataclass(frozen=True)
class Answer:
    """An answer to a prompt that may be read; `source` and `reading` are the ids of its text and of its perplexity."""

    kind: str
    item: DataItem
    place: tuple[int, int]
    """The answer's number and its prompt's."""
    source: str
    reading: Job[TextToRead]


def answers(run: Run, cell: Cell) -> list[Answer]:
    """Every answer that the recipe asks for, marked and unmarked."""
    found = []
    for number, item in enumerate(cell.items[: cell.recipe.quality.texts]):
        for answer in answers_of(cell, number):
            for kind, marked in ((cell.watermark.label, True), (UNMARKED, False)):
                source = run.generate_job(cell, item, marked=marked, answer=answer).id
                found.append(Answer(kind, item, (answer, number), source, run.reading_job(cell, item, source)))
    return found


def readings(run: Run) -> list[Job[TextToRead]]:
    """All perplexities that the recipe wants, and those of further answers.

    In the order of answers and prompts, all kinds together, human texts last: stopped at any place, what was read is paired.
    """
    if not run.recipe.quality.oracle:
        return []
    jobs = [
        one.reading
        for one in sorted((one for cell in run.cells for one in answers(run, cell)), key=lambda one: one.place)
    ]
    jobs += [job for cell in run.cells for _, job in run.quality_jobs(cell)]
    return list({job.id: job for job in jobs}.values())


def measure(run: Run, embed: Embed | None) -> dict[str, dict[str, Prompted]]:
    """Of each kind of text and each prompt."""
    every = [one for cell in run.cells for one in answers(run, cell)]
    texts = run.texts([one.source for one in every])
    read = run.workspace.records("quality", [one.reading.id for one in every])
    found: dict[str, dict[str, Prompted]] = {}
    answered: dict[tuple[str, str], dict[str, str]] = {}
    for one in every:
        prompt = one.item.prompt
        if not (text := texts.get(one.source)) or one.source in answered.get((one.kind, prompt), {}):
            continue  # unmarked text is the same for every watermark
        answered.setdefault((one.kind, prompt), {})[one.source] = text
        values = found.setdefault(one.kind, {}).setdefault(prompt, Prompted()).values
        values.setdefault("distinct", []).append(distinct(text))
        values.setdefault("repetition", []).append(repetition(text))
        if embed:
            values.setdefault("neighbours", []).append(neighbours(text, embed))
        if "perplexity" in read.get(one.reading.id, {}):
            values.setdefault("log perplexity", []).append(float(np.log(read[one.reading.id]["perplexity"])))
    for (kind, prompt), several in answered.items():
        if len(several) > 1:
            values = found[kind][prompt].values
            values["diversity"] = [diversity(embed(list(several.values())))] if embed else []
            values["overlap"] = [self_overlap(list(several.values()))]
    return found


def self_overlap(texts: Sequence[str], n: int = 4) -> float:
    """The mean share of a text's sequences of `n` words that also occur in another of the texts; NaN if there are none."""
    several = [word_sequences(text, n) for text in texts]
    texts_with = Counter(sequence for sequences in several for sequence in set(sequences))
    shares = [np.mean([texts_with[sequence] > 1 for sequence in sequences]) for sequences in several if sequences]
    return float(np.mean(shares)) if shares and len(texts) > 1 else float("nan")


def neighbours(text: str, embed: Embed) -> float:
    """The mean cosine of neighbouring sentences of a text."""
    vectors = embed(splitter(DEFAULT_SPLITTER).units(text))
    return float((vectors[:-1] * vectors[1:]).sum(axis=1).mean()) if len(vectors) > 1 else float("nan")


def human_neighbours(run: Run, embed: Embed, rng: np.random.Generator) -> str:
    """The mean cosine of neighbouring sentences of the human texts of the recipe's prompts, with its 95% interval."""
    texts = list(dict.fromkeys(item.human for cell in run.cells for item in cell.items))
    mean, low, high = interval(
        np.array([value for text in texts if np.isfinite(value := neighbours(text, embed))]), rng
    )
    return f"{len(texts)} human texts of the same prompts: neighbours {mean:.3f} [{low:.3f}, {high:.3f}]"


def interval(values: Floats, rng: np.random.Generator) -> tuple[float, float, float]:
    """The mean over prompts and its 95% interval."""
    means = values[rng.integers(0, len(values), (REPEATS, len(values)))].mean(axis=1)
    low, high = np.quantile(means, (0.025, 0.975))
    return float(values.mean()), float(low), float(high)


def compared(one: dict[str, Prompted], two: dict[str, Prompted], name: str) -> Floats:
    """The second less the first, for each prompt where both are known."""
    less = [two[prompt].of(name) - one[prompt].of(name) for prompt in one if prompt in two]
    return np.array([value for value in less if np.isfinite(value)])


def report(found: dict[str, dict[str, Prompted]], rng: np.random.Generator) -> None:
    kinds = sorted(found, key=lambda kind: kind != UNMARKED)
    names = ("log perplexity", "distinct", "repetition", "diversity", "overlap", "neighbours")
    print("| | texts | perplexity | distinct word pairs | repeated runs of four | diversity | overlap | neighbours |")
    print("| --- " * 8 + "|")
    for kind in kinds:
        own = found[kind]
        texts = sum(len(one.values["distinct"]) for one in own.values())
        cells = []
        for name in names:
            values = np.array([one.of(name) for one in own.values()])
            values = values[np.isfinite(values)]
            mean = float(values.mean()) if len(values) else float("nan")
            cells.append(f"{np.exp(mean):.1f} ({len(values)})" if name.startswith("log") else f"{mean:.3f}")
        print(f"| {kind} | {texts} on {len(own)} prompts | " + " | ".join(cells) + " |")
    print("\n| | perplexity, ratio | distinct | repeated | diversity | overlap | neighbours |\n" + "| --- " * 7 + "|")
    for one, two in combinations(kinds, 2):
        cells = []
        for name in names:
            less = compared(found[one], found[two], name)
            if not len(less):
                cells.append("-")
                continue
            mean, low, high = interval(less, rng)
            if name.startswith("log"):
                cells.append(f"{np.exp(mean):.3f} [{np.exp(low):.3f}, {np.exp(high):.3f}], {len(less)} prompts")
            else:
                cells.append(f"{mean:+.3f} [{low:+.3f}, {high:+.3f}]")
        print(f"| {two} / {one} | " + " | ".join(cells) + " |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe", type=Path)
    parser.add_argument("workspace", type=Path)
    parser.add_argument("--set", action="append", default=[], dest="overrides", metavar="PATH=VALUE")
    parser.add_argument("--profile", action="append", default=[], dest="profiles", metavar="NAME")
    parser.add_argument(
        "--embedder", default="all-mpnet-base-v2", help="for diversity and neighbours; empty: without these"
    )
    args = parser.parse_args()
    run = Run(load(args.recipe, args.overrides, args.profiles), Workspace(args.workspace))
    embed = run.models.embedder(args.embedder).embed if args.embedder else None
    report(measure(run, embed), np.random.default_rng(1))
    if embed:
        print("\n" + human_neighbours(run, embed, np.random.default_rng(1)))


if __name__ == "__main__":
    main()
