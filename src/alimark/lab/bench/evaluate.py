"""Evaluates the records of a run: rates with their intervals, and the scores behind them."""

import os
import platform
import random
import time
import timeit
import warnings
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import cached_property, partial
from importlib import metadata
from typing import Any

import numpy as np

from alimark.core._util.jsonl import Record
from alimark.core.embedding.base import Embedder
from alimark.core.frozen.text.splitting import DEFAULT_SPLITTER, splitter
from alimark.core.schemes.api import load as load_watermark
from alimark.errors import AlimarkError
from alimark.lab.bench import metrics, paper, quality, results
from alimark.lab.bench.jobs import HUMAN, Cell, Job, TextToScore
from alimark.lab.bench.metrics import Statistic, ranked_by, statistic_of
from alimark.lab.bench.models import diversity_embedder, embedder_for, key_for, secret, settings_for
from alimark.lab.bench.recipe import DetectionRow, OneAttack, attacks
from alimark.lab.bench.recipe_files import load as load_recipe
from alimark.lab.bench.recipe_files import to_toml
from alimark.lab.bench.results import ResultFigure, Results
from alimark.lab.bench.run import Run
from alimark.lab.bench.workspace import Workspace

_LIBRARIES = ("numpy", "numba", "nupunkt", "scipy", "onnxruntime", "torch", "transformers", "xllamacpp")
_NOMINAL = (0.01, 0.05)


def evaluate(run: Run, name: str, *, finished: bool = True) -> Results:
    """The results of a run, kept under the name of its recipe, computed from the records that exist.

    Where not all do (`finished`), the title says so, and what needs models is left out, since they may be missing: the time of
    detection, diversity, and the similarity of attacked texts to the originals.
    """
    records = Records(run)
    title = run.recipe.title if finished else f"{run.recipe.title} (unfinished)"
    evaluated: Results = {
        "version": results.VERSION, "name": name, "title": title, "recipe": to_toml(run.recipe), "made": _made(run),
        "data": _data(run), "rows": [], "human": [], "cost": [], "quality": list(_quality(run, records, finished)),
        "runtime": list(timed_detections(run)) if finished else [], "examples": [],
        "paper": [value for table in run.recipe.paper for value in paper.values(table)],
    }  # fmt: skip
    meaning = run.recipe.meaning if finished else ""
    with run.workspace.kept_vectors(run.models.embedder(meaning)) if meaning else nullcontext() as embedder:
        for cell in run.cells:
            evaluated["cost"] += _cost(cell, records)
            for detection in cell.recipe.detection:
                detector = _Detector(cell, detection, records)
                evaluated["human"] += [detector.human_row()] if detector.human else []
                evaluated["rows"] += detector.rows(embedder)
            evaluated["examples"] += _Detector(cell, cell.recipe.detection[0], records).examples()
    return evaluated


def all_results(workspace: Workspace) -> list[Results]:
    """The results of every recipe that was run in a workspace.

    A recipe whose last run did not end has no results of it on disk: they are computed from the records that exist. It is left
    out if there is no text of it yet and, with a warning, if it cannot be evaluated, for example because its data are gone.
    """
    every = []
    for name in workspace.names():
        try:
            every.append(_results(workspace, name))
        except AlimarkError as error:
            warnings.warn(f"the recipe {name} was left out: {error}", stacklevel=2)
    return [of_recipe for of_recipe in every if of_recipe]


def _results(workspace: Workspace, name: str) -> Results | None:
    """The results of the last run of a recipe; None if it has no text yet."""
    path, recipe = workspace.results(name), workspace.recipe(name)
    known = results.load(path) if path.exists() else None
    if not recipe.exists() or (known and known["recipe"] == recipe.read_text("utf-8")):
        return known
    unfinished = evaluate(Run(load_recipe(recipe, was_run=True), workspace), name, finished=False)
    return unfinished if unfinished["rows"] or unfinished["cost"] else None


# --- Records


@dataclass(frozen=True)
class ScoredText:
    """A marked text, the result of an attack on one, or a human text, with its records."""

    job: Job[TextToScore]
    original: str  # where the text before the attack is; the scored text where there was none
    score: Record
    steps: Sequence[Record] = ()  # the records of all steps of the attack
    number: int = 0  # the number of the prompt or of the human text

    @property
    def failed(self) -> bool:
        return bool(self.score.get("failed"))

    @property
    def rejected(self) -> int:
        """The answers of a model that the attack did not use: blank ones, refusals, or answers of a wrong length."""
        return sum(int(step.get("rejected", 0)) for step in self.steps)


class Records:
    """The records of a run, read once."""

    def __init__(self, run: Run) -> None:
        self.run = run
        written = {job.id for job in run.generate_jobs()}
        attacked = {step.id for job in run.attack_jobs() for step in job.chain}
        self.texts = run.workspace.records("generate", written) | run.workspace.records("attack", attacked)
        self.scores = run.workspace.records("detect", {job.id for job in run.detect_jobs()})
        self.read = run.workspace.records("quality", {job.id for job in run.reading_jobs()})

    def text(self, source: str) -> str:
        """The text of a record or, for a human text, of the source itself; empty if making it failed."""
        if source.startswith(HUMAN):
            return source.removeprefix(HUMAN)
        return str(self.texts.get(source, {}).get("text", ""))

    def scored(self, cell: Cell, detection: DetectionRow, attack: OneAttack | None) -> list[ScoredText]:
        """The scored texts of a watermark under an attack, failed ones included."""
        scored = []
        for number, item in enumerate(cell.items):
            original = self.run.source(cell, item)
            chain = self.run.attack_job(cell, item, attack).chain if attack else []
            job = self.run.detect_job(cell, detection, chain[-1].id if chain else original, item.prompt)
            if job.id in self.scores:
                steps = [self.texts.get(step.id, {}) for step in chain]
                scored.append(ScoredText(job, original, self.scores[job.id], steps, number))
        return scored

    def human(self, cell: Cell, detection: DetectionRow) -> list[ScoredText]:
        """The scored human texts, failed ones included; one text may be scored under several keys."""
        jobs = [(number, job) for number, job in self.run.human_jobs(cell, detection) if job.id in self.scores]
        return [ScoredText(job, job.content.source, self.scores[job.id], number=number) for number, job in jobs]


# --- Detection


class _Detector:
    """The scored texts of a cell under one set of detection options."""

    def __init__(self, cell: Cell, detection: DetectionRow, records: Records) -> None:
        self.cell, self.detection, self.records = cell, detection, records
        self.human = [text for text in records.human(cell, detection) if not text.failed]
        self.marked = [(attack, records.scored(cell, detection, attack)) for attack in cell.conditions]

    @cached_property
    def statistic(self) -> Statistic:
        """What all texts are ranked by."""
        sound = [text.score for _, texts in self.marked for text in texts if not text.failed]
        return ranked_by([*(text.score for text in self.human), *sound], self.cell.recipe.statistic)

    @cached_property
    def negatives(self) -> list[float]:
        """The scores of the human texts."""
        return [statistic_of(text.score, self.statistic) for text in self.human]

    def human_row(self) -> results.Human:
        p_values = [float(text.score["p_value"]) for text in self.human]
        return {
            **_where(self.cell, self.detection), "statistic": self.statistic, "scores": self.negatives,
            "p_values": p_values, "texts": len({text.number for text in self.human}),
            "keys": self.cell.recipe.data.human_keys, "false_positives": _shares(p_values),
        }  # fmt: skip

    def rows(self, embedder: Embedder | None) -> Iterator[results.Row]:
        """A row for each attack with scored texts; without human texts there are no rates, so only if all failed."""
        for attack, texts in self.marked:
            if texts and (self.human or all(text.failed for text in texts)):
                yield self._row(attack, texts, embedder)

    def _row(self, attack: OneAttack | None, texts: Sequence[ScoredText], embedder: Embedder | None) -> results.Row:
        sound = [text for text in texts if not text.failed]
        failed = len(texts) - len(sound)
        scores = [statistic_of(text.score, self.statistic) for text in sound]
        p_values = [float(text.score["p_value"]) for text in sound]
        # A failed attack is a text in which nothing is found: below every other score.
        misses = [min([*scores, *self.negatives], default=0.0) - 1] * failed
        cosines, deltas = self._changes(texts, embedder) if attack else ([], [])
        return {
            **_where(self.cell, self.detection), **self._rates(scores, p_values),
            "with_failures": self._rates([*scores, *misses], [*p_values, *[1.0] * failed]) if failed else None,
            "attack": attack.label if attack else "none", "attack_name": attack.full_name if attack else "none",
            "rate": attack.rate if attack else None, "texts": len(sound), "failed": failed, "negatives": len(self.human),
            "retried": sum(text.rejected > 0 for text in texts),
            "kept": sum(int(step.get("left", 0)) for text in texts for step in text.steps),
            "statistic": self.statistic, "cosine": _mean(cosines) if cosines else None, "deltas": deltas,
            "scores": scores, "p_values": p_values,
        }  # fmt: skip

    def _rates(self, scores: Sequence[float], p_values: Sequence[float]) -> results.Rates:
        """The rates of marked texts; there are none where there are no human texts, or no marked ones."""
        negatives, groups = self.negatives, [text.number for text in self.human]
        both = bool(scores and negatives)
        rates = {
            f"{fpr:g}": metrics.tpr_at(scores, negatives, fpr, groups=groups) if both else None
            for fpr in self.cell.recipe.fpr
        }
        auroc = metrics.auroc_interval(scores, negatives, groups=groups) if both else None
        return {
            "auroc": _estimate(auroc) if auroc else None,
            "tpr": {fpr: _estimate(rate) if rate else None for fpr, rate in rates.items()},
            "tpr_nominal": _shares(p_values),
        }

    def _changes(self, texts: Sequence[ScoredText], embedder: Embedder | None) -> tuple[list[float], list[float]]:
        """Cosine similarities of attacked texts to the originals, and the paper's ratios of sentence counts."""
        pairs = [(self.records.text(text.original), self.records.text(text.job.content.source)) for text in texts]
        pairs = [(before, after) for before, after in pairs if before and after]
        units = splitter(DEFAULT_SPLITTER).units
        deltas = [len(units(after)) / max(1, len(units(before))) for before, after in pairs]
        if embedder is None or not pairs:
            return [], deltas
        first, second = (embedder.embed(list(side)) for side in zip(*pairs, strict=True))
        return [float(cosine) for cosine in np.einsum("ij,ij->i", first, second)], deltas

    def examples(self) -> Iterator[results.Example]:
        """The first texts that were scored, marked and under the recipe's last attack, which is often the hardest."""
        if not attacks(self.cell.recipe):
            return
        attack = attacks(self.cell.recipe)[-1]
        marked = {text.number: text for text in self.records.scored(self.cell, self.detection, None)}
        human = {text.number: text for text in reversed(self.human)}  # under the first of its keys
        attacked = self.records.scored(self.cell, self.detection, attack)
        pairs = [(marked[text.number], text) for text in attacked if not text.failed and text.number in marked]
        for before, after in pairs[: self.cell.recipe.examples]:
            item = self.cell.items[after.number]
            texts = {"prompt": (item.prompt, None), "human": (item.human, human.get(after.number)),
                     "marked": (self.records.text(before.original), before),
                     "attacked": (self.records.text(after.job.content.source), after)}  # fmt: skip
            yield {
                "method": self.cell.watermark.label, "attack": attack.label,
                "texts": [{"kind": kind, "text": text, "figures": self._figures(scored)}
                          for kind, (text, scored) in texts.items()],
            }  # fmt: skip

    def _figures(self, text: ScoredText | None) -> list[str]:
        """The statistic and the p-value of a text, if it was scored."""
        if text is None or text.failed:
            return []
        statistic = "z" if self.statistic == "z" else "score"  # the p-value is shown beside it
        return [f"{statistic} {text.score[statistic]:.2f}", f"p = {text.score['p_value']:.3g}"]


def _where(cell: Cell, detection: DetectionRow | None) -> results.Where:
    return {"method": cell.watermark.label, "detection": detection.label if detection else "",
            "llm": cell.recipe.llm.shown, "data": cell.data.name, "grid": cell.variant.grid}  # fmt: skip


def _estimate(estimate: metrics.Estimate) -> ResultFigure:
    return {"value": estimate.value, "low": estimate.low, "high": estimate.high, "count": estimate.count}


def _mean(values: Sequence[float]) -> ResultFigure:
    """The mean of shares or cosines; the interval is cut to [-1, 1], because that of a single value is unbounded."""
    estimate = _estimate(metrics.mean_interval(values))
    return {**estimate, "low": max(-1.0, estimate["low"]), "high": min(1.0, estimate["high"])}


def _shares(p_values: Sequence[float]) -> dict[str, ResultFigure]:
    """The share of texts at or below each nominal p-value; empty if there are no texts."""
    counts = {level: sum(p <= level for p in p_values) for level in _NOMINAL} if p_values else {}
    return {f"{level:g}": _estimate(metrics.share(count, len(p_values))) for level, count in counts.items()}


# --- Cost, quality, time


def _cost(cell: Cell, records: Records) -> list[results.Cost]:
    texts = [records.texts.get(records.run.source(cell, item), {}) for item in cell.items]
    if not (costs := [record["cost"] for record in texts if "cost" in record]):
        return []
    tokens, seconds = (float(np.mean([cost[name] for cost in costs])) for name in ("tokens", "seconds"))
    return [{**_where(cell, None), "texts": len(costs), "tokens": tokens, "seconds": seconds}]


def _quality(run: Run, records: Records, finished: bool) -> Iterator[results.Quality]:
    done: set[tuple[str, str, str]] = set()
    for cell in run.cells:
        by_kind: dict[str, list[Record]] = {}
        for kind, job in run.quality_jobs(cell):
            record = records.read.get(job.id, {})
            if "perplexity" in record:
                by_kind.setdefault(kind, []).append(record)
        for kind, of_kind in by_kind.items():
            texts = (kind, cell.recipe.llm.shown, cell.data.name)
            if kind in ("human", "unmarked") and texts in done:
                continue  # these texts are the same for every watermark
            done.add(texts)
            yield {
                "method": kind, "llm": cell.recipe.llm.shown, "data": cell.data.name,
                "grid": {} if kind in ("human", "unmarked") else cell.variant.grid,
                "oracle": cell.recipe.quality.oracle, "perplexity": [float(record["perplexity"]) for record in of_kind],
                "distinct": _mean([record["distinct"] for record in of_kind]),
                "repetition": _mean([record["repetition"] for record in of_kind]),
                "diversity": _diversity(run, cell, kind, records) if finished else None,
                "embedder": diversity_embedder(run.recipe),
            }  # fmt: skip


def _diversity(run: Run, cell: Cell, kind: str, records: Records) -> ResultFigure | None:
    """The mean diversity of several answers to one prompt."""
    wanted = cell.recipe.quality
    if not wanted.answers or kind == "human":
        return None
    embedder = run.models.embedder(diversity_embedder(run.recipe))
    diversities = []
    for item in cell.items[: wanted.prompts]:
        jobs = [run.generate_job(cell, item, marked=kind != "unmarked", answer=i) for i in range(wanted.answers)]
        texts = [text for job in jobs if (text := records.text(job.id))]
        if len(texts) > 1:
            diversities.append(quality.diversity(embedder.embed(texts)))
    return _mean(diversities) if diversities else None


def timed_detections(run: Run) -> Iterator[results.Runtime]:
    """Seconds of one detection, embedding included, for each detector and length of text in the first cell of the run.

    The texts are neighbouring sentences of the human texts. Each is detected several times, and its fastest time counts.
    """
    wanted = run.recipe.runtime
    for cell in run.cells[:1] if wanted.sentences else ():
        units = [unit for text in cell.data.human for unit in splitter(DEFAULT_SPLITTER).units(text)]
        for detection in cell.recipe.detection:
            settings = replace(settings_for(cell.watermark, detection), draws=1)
            llm = run.models.llm(detection.llm) if detection.llm else None
            for count in wanted.sentences:
                texts = _neighbours(units, count, wanted.texts)
                key = key_for(cell.watermark, secret(1, texts[0]), run.models)
                mark = load_watermark(key, embedder=embedder_for(cell.watermark, run.models))
                mark.detect_batch(texts[:1], settings, llm=llm)  # the first detection of a length also compiles
                timers = [timeit.Timer(partial(mark.detect_batch, [text], settings, llm=llm)) for text in texts]
                fastest = [min(timer.repeat(wanted.repeats, number=1)) for timer in timers]
                yield {
                    "method": cell.watermark.label, "detection": detection.label, "sentences": count,
                    "texts": len(texts), "seconds": float(np.mean(fastest)),
                }  # fmt: skip


def _neighbours(units: list[str], sentences: int, count: int) -> list[str]:
    """Texts of so many neighbouring units each; the units are repeated where there are too few."""
    units = units * (1 + sentences // len(units))
    places = random.Random(f"runtime/{sentences}")
    starts = [places.randrange(len(units) - sentences + 1) for _ in range(count)]
    return [" ".join(units[start : start + sentences]) for start in starts]


def _data(run: Run) -> list[dict[str, Any]]:
    rows = {}
    for cell in run.cells:
        data, settings = cell.data, cell.recipe.data
        rows[data.name, settings.sentences] = {
            "set": data.name, "texts": len(cell.items), "human texts": min(len(data.human), settings.human_texts),
            "sentences": settings.sentences, "short": data.short, "repeats": data.repeats, "papers": data.papers,
        }  # fmt: skip
    return list(rows.values())


def _made(run: Run) -> dict[str, Any]:
    versions = {"alimark": metadata.version("alimark"), "python": platform.python_version()}
    for library in _LIBRARIES:
        try:
            versions[library] = metadata.version(library)
        except metadata.PackageNotFoundError:
            continue
    machine = {"system": platform.platform(), "processor": _processor(), "cores": os.cpu_count() or 1}
    return {"versions": versions, "machine": machine, "seed": run.recipe.seed, "seconds": run.seconds,
            "when": time.strftime("%Y-%m-%d %H:%M", time.gmtime())}  # fmt: skip


def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            return next(line.partition(":")[2].strip() for line in file if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()
