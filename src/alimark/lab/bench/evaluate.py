"""Evaluates the records of a run: rates with their intervals, and the scores behind them."""

from __future__ import annotations

import os
import platform
import random
import time
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from importlib import metadata
from typing import Any

import numpy as np

from alimark.core._util.jsonl import Record
from alimark.core.frozen.text.splitting import DEFAULT_SPLITTER, splitter
from alimark.core.schemes.api import load as load_watermark
from alimark.core.schemes.registry import aligns
from alimark.errors import AlimarkError
from alimark.lab.bench import metrics, paper
from alimark.lab.bench.data import Item
from alimark.lab.bench.jobs import HUMAN, Cell
from alimark.lab.bench.metrics import Statistic, ranked_by, statistic_of
from alimark.lab.bench.models import diversity_embedder, embedder_for, key_for, secret, settings_for
from alimark.lab.bench.recipe import Detection, OneAttack, attacks
from alimark.lab.bench.recipe_files import load as load_recipe
from alimark.lab.bench.recipe_files import to_toml
from alimark.lab.bench.results import (
    Cost,
    Estimate,
    Example,
    Human,
    Quality,
    Results,
    Row,
    Runtime,
    Where,
    WithFailures,
)
from alimark.lab.bench.results import load as load_results
from alimark.lab.bench.run import Run
from alimark.lab.bench.workspace import Workspace

_LIBRARIES = ("numpy", "numba", "nupunkt", "scipy", "onnxruntime", "torch", "transformers", "xllamacpp")
_NOMINAL = (0.01, 0.05)


def evaluate(run: Run, name: str, *, finished: bool = True) -> Results:
    """The results of a run, computed from the records that exist.

    Args:
        run: The run.
        name: The name of the recipe, under which the results are kept.
        finished: Whether all records exist. If not, the title says so, and neither detection is timed nor diversity measured,
            since the models may be missing.
    """
    records = Records(run)
    title = run.recipe.title if finished else f"{run.recipe.title} (unfinished)"
    results: Results = {
        "version": 1, "name": name, "title": title, "recipe": to_toml(run.recipe), "made": _made(run),
        "data": _data(run), "rows": [], "human": [], "cost": [], "quality": list(_quality(run, records, finished)),
        "runtime": list(timed_detections(run)) if finished else [], "null": {}, "examples": [],
        "paper": [value for table in run.recipe.paper for value in paper.values(table)],
    }  # fmt: skip
    for cell in run.cells:
        results["cost"] += _cost(run, cell, records)
        for detection in cell.recipe.detection:
            human = _human(run, cell, detection, records)
            results["human"] += [human.human] if human.scores else []
            results["rows"] += _rows(run, cell, detection, records, human)
        results["examples"] += _examples(run, cell, records)
        _null(run, cell, records, results["null"])
    return results


def all_results(workspace: Workspace) -> list[Results]:
    """The results of every recipe that was run in a workspace.

    A recipe whose last run did not end has no results of it on disk: they are computed from the records that exist. It is left
    out if there is no text of it yet and, with a warning, if it cannot be evaluated, for example because its data are gone.
    """
    every = []
    for name in workspace.names():
        try:
            results = _results(workspace, name)
        except AlimarkError as error:
            warnings.warn(f"the recipe {name} was left out: {error}", stacklevel=2)
            continue
        every += [results] if results else []
    return every


def _results(workspace: Workspace, name: str) -> Results | None:
    """The results of the last run of a recipe; None if it has no text yet."""
    path, recipe = workspace.results(name), workspace.recipe(name)
    results = load_results(path) if path.exists() else None
    if not recipe.exists() or (results and results["recipe"] == recipe.read_text("utf-8")):
        return results
    results = evaluate(Run(load_recipe(recipe), workspace), name, finished=False)
    return results if results["rows"] or results["cost"] else None


class Records:
    """The records of a run, read once."""

    def __init__(self, run: Run) -> None:
        written = {job.id for job in run.generate_jobs()}
        attacked = {step.id for job in run.attack_jobs() for step in job.chain}
        self.texts = run.workspace.records("generate", written) | run.workspace.records("attack", attacked)
        self.scores = run.workspace.records("detect", {job.id for job in run.detect_jobs()})
        read = {job.id for job in run.reading_jobs()}
        self.read = run.workspace.records("quality", read) if read else {}
        compared = {job.id for job in run.meaning_jobs()}
        self.meaning = run.workspace.records("meaning", compared) if compared else {}

    def text(self, source: str) -> str:
        """The text of a record or, for a human text, of the source itself."""
        if source.startswith(HUMAN):
            return source.removeprefix(HUMAN)
        return str(self.texts.get(source, {}).get("text", ""))


def _where(cell: Cell, detection: Detection | None) -> Where:
    return {"method": cell.watermark.label, "detection": detection.label if detection else "",
            "llm": _llm(cell), "data": cell.data.name, "grid": cell.variant.grid}  # fmt: skip


def _llm(cell: Cell) -> str:
    return cell.recipe.llm.label or cell.recipe.llm.name


def _estimate(estimate: metrics.Estimate) -> Estimate:
    return {"value": estimate.value, "low": estimate.low, "high": estimate.high, "count": estimate.count}


def _mean(values: Sequence[float]) -> Estimate:
    """The mean of shares or cosines; the interval is cut to [-1, 1], because that of a single value is unbounded."""
    estimate = _estimate(metrics.mean_interval(values))
    return {**estimate, "low": max(-1.0, estimate["low"]), "high": min(1.0, estimate["high"])}


def _shares(p_values: Sequence[float]) -> dict[str, Estimate]:
    """The share of texts at or below each nominal p-value; empty if there are no texts."""
    if not p_values:
        return {}
    return {
        f"{level:g}": _estimate(metrics.share(sum(p <= level for p in p_values), len(p_values))) for level in _NOMINAL
    }


@dataclass(frozen=True)
class _Negatives:
    """The scores of human texts, and for each score the number of its text: a text may be scored under several keys.

    There are no rates where there are no human texts, or no marked ones.
    """

    human: Human
    groups: list[int]
    statistic: Statistic

    @property
    def scores(self) -> list[float]:
        return self.human["scores"]

    def rates(self, scores: Sequence[float], levels: Sequence[float]) -> dict[str, Estimate | None]:
        """The TPR of marked texts at each false-positive rate."""
        rates: dict[str, Estimate | None] = {}
        for fpr in levels:
            both = scores and self.scores
            rate = metrics.tpr_at(scores, self.scores, fpr, groups=self.groups) if both else None
            rates[f"{fpr:g}"] = None if rate is None else _estimate(rate)
        return rates

    def auroc(self, scores: Sequence[float]) -> Estimate | None:
        if not scores or not self.scores:
            return None
        return _estimate(metrics.auroc_interval(scores, self.scores, groups=self.groups))

    def public_readings(self, scores: Sequence[float]) -> dict[str, float]:
        """The TPR where the paper's public script evaluates it, by the rate that the script names."""
        if not scores or not self.scores:
            return {}
        return {
            named: metrics.tpr_interpolated(scores, self.scores, fpr) for named, fpr in metrics.PUBLIC_READINGS.items()
        }


def _human(run: Run, cell: Cell, detection: Detection, records: Records) -> _Negatives:
    rows = [
        (number, records.scores[job.id]) for number, job in run.human_jobs(cell, detection) if job.id in records.scores
    ]
    rows = [(number, record) for number, record in rows if not record.get("failed")]
    p_values = [float(record["p_value"]) for _, record in rows]
    marked = [scored for attack in conditions(cell) for scored in scored_texts(run, cell, detection, attack, records)]
    sound = [record for _, record in marked if not record.get("failed")]
    statistic = ranked_by([*(record for _, record in rows), *sound], cell.recipe.statistic)
    human: Human = {
        **_where(cell, detection), "statistic": statistic,
        "scores": [statistic_of(record, statistic) for _, record in rows], "p_values": p_values,
        "texts": len({number for number, _ in rows}), "keys": cell.recipe.data.human_keys,
        "false_positives": _shares(p_values),
    }  # fmt: skip
    return _Negatives(human, [number for number, _ in rows], statistic)


def _rows(run: Run, cell: Cell, detection: Detection, records: Records, human: _Negatives) -> Iterator[Row]:
    for attack in conditions(cell):
        scored = scored_texts(run, cell, detection, attack, records)
        if scored and (human.scores or all(record.get("failed") for _, record in scored)):
            yield _row(run, cell, detection, attack, scored, human, records)


def conditions(cell: Cell) -> list[OneAttack | None]:
    """The attacks under which texts are scored; None: without an attack."""
    return [*([None] if cell.recipe.clean else []), *attacks(cell.recipe)]


def scored_texts(
    run: Run, cell: Cell, detection: Detection, attack: OneAttack | None, records: Records
) -> list[tuple[Item, Record]]:
    """The detections of a method's marked texts under an attack, failed ones included, each with its prompt."""
    sources = [
        run.source(cell, item) if attack is None else run.attack_job(cell, item, attack).id for item in cell.items
    ]
    jobs = [
        run.detect_job(cell, detection, source, item.prompt) for source, item in zip(sources, cell.items, strict=True)
    ]
    return [
        (item, records.scores[job.id]) for item, job in zip(cell.items, jobs, strict=True) if job.id in records.scores
    ]


def _row(
    run: Run,
    cell: Cell,
    detection: Detection,
    attack: OneAttack | None,
    scored: Sequence[tuple[Item, Record]],
    human: _Negatives,
    records: Records,
) -> Row:
    sound = [record for _, record in scored if not record.get("failed")]
    failed = len(scored) - len(sound)
    scores = [statistic_of(record, human.statistic) for record in sound]
    p_values = [float(record["p_value"]) for record in sound]
    cosines, deltas = _change(run, cell, attack, records)
    kept = [step.get("left", 0) for item, _ in scored for step in _steps(run, cell, item, attack, records)]
    return {
        **_where(cell, detection),
        "attack": attack.label if attack else "none",
        "attack_name": attack.full_name if attack else "none",
        "rate": attack.rate if attack else None,
        "texts": len(sound),
        "failed": failed,
        "negatives": len(human.scores),
        "auroc": human.auroc(scores),
        "tpr": human.rates(scores, cell.recipe.fpr),
        "tpr_public": human.public_readings(scores),
        "tpr_nominal": _shares(p_values),
        "with_failures": _with_failures(scores, p_values, failed, human, cell.recipe.fpr),
        "retried": sum(rejected(run, cell, item, attack, records) > 0 for item, _ in scored),
        "kept": sum(kept),
        "statistic": human.statistic,
        "cosine": _mean(cosines) if cosines else None,
        "deltas": deltas,
        "scores": scores,
        "p_values": p_values,
    }


def _with_failures(
    scores: Sequence[float], p_values: Sequence[float], failed: int, human: _Negatives, levels: Sequence[float]
) -> WithFailures | None:
    """The rates with failed attacks as texts in which nothing is found: below every other score."""
    if not failed:
        return None
    lowest = min([*scores, *human.scores], default=0.0) - 1
    every = [*scores, *[lowest] * failed]
    return {
        "auroc": human.auroc(every),
        "tpr": human.rates(every, levels),
        "tpr_nominal": _shares([*p_values, *[1.0] * failed]),
    }


def rejected(run: Run, cell: Cell, item: Item, attack: OneAttack | None, records: Records) -> int:
    """The answers of a model that an attack did not use: blank ones, refusals, or answers of a wrong length."""
    return sum(int(step.get("rejected", 0)) for step in _steps(run, cell, item, attack, records))


def _steps(run: Run, cell: Cell, item: Item, attack: OneAttack | None, records: Records) -> list[Record]:
    """The records of all steps of an attack on a text."""
    return [records.texts.get(job.id, {}) for job in run.attack_job(cell, item, attack).chain] if attack else []


def _change(run: Run, cell: Cell, attack: OneAttack | None, records: Records) -> tuple[list[float], list[float]]:
    """Cosine similarities of attacked texts to the originals, and the paper's ratios of sentence counts."""
    cosines, deltas = [], []
    cutter = splitter(DEFAULT_SPLITTER)
    for item in cell.items if attack else ():
        assert attack is not None
        parent, attacked = run.source(cell, item), run.attack_job(cell, item, attack).id
        similarity = records.meaning.get(run.meaning_job(parent, attacked).id, {})
        if "cosine" in similarity:
            cosines.append(float(similarity["cosine"]))
        if (before := records.text(parent)) and (after := records.text(attacked)):
            deltas.append(len(cutter.units(after)) / max(1, len(cutter.units(before))))
    return cosines, deltas


def _cost(run: Run, cell: Cell, records: Records) -> list[Cost]:
    texts = [records.texts.get(run.source(cell, item), {}) for item in cell.items]
    costs = [record["cost"] for record in texts if "cost" in record]
    if not costs:
        return []
    tokens, seconds = (float(np.mean([cost[name] for cost in costs])) for name in ("tokens", "seconds"))
    return [{**_where(cell, None), "texts": len(costs), "tokens": tokens, "seconds": seconds}]


def _quality(run: Run, records: Records, finished: bool) -> Iterator[Quality]:
    done: set[tuple[str, str, str]] = set()
    for cell in run.cells:
        by_kind: dict[str, list[Record]] = {}
        for kind, _, job in run.quality_jobs(cell):
            record = records.read.get(job.id, {})
            if "perplexity" in record:
                by_kind.setdefault(kind, []).append(record)
        for kind, of_kind in by_kind.items():
            texts = (kind, _llm(cell), cell.data.name)
            if kind in ("human", "unmarked") and texts in done:
                continue  # these texts are the same for every watermark
            done.add(texts)
            yield {
                "method": kind, "llm": _llm(cell), "data": cell.data.name, "grid": cell.variant.grid,
                "oracle": cell.recipe.quality.oracle, "perplexity": [float(record["perplexity"]) for record in of_kind],
                "distinct": _mean([record["distinct"] for record in of_kind]),
                "repetition": _mean([record["repetition"] for record in of_kind]),
                "diversity": _diversity(run, cell, kind, records) if finished else None,
                "embedder": diversity_embedder(run.recipe),
            }  # fmt: skip


def _diversity(run: Run, cell: Cell, kind: str, records: Records) -> Estimate | None:
    """The mean diversity of several answers to one prompt."""
    from alimark.lab.bench.quality import diversity

    wanted = cell.recipe.quality
    if not wanted.answers or kind == "human":
        return None
    embedder = run.models.embedder(diversity_embedder(run.recipe))
    diversities = []
    for item in cell.items[: wanted.prompts]:
        jobs = [run.generate_job(cell, item, marked=kind != "unmarked", answer=i) for i in range(wanted.answers)]
        texts = [text for job in jobs if (text := records.text(job.id))]
        if len(texts) > 1:
            diversities.append(diversity(embedder.embed(texts)))
    return _mean(diversities) if diversities else None


def timed_detections(run: Run) -> Iterator[Runtime]:
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
                fastest = []
                for text in texts:
                    times = []
                    for _ in range(wanted.repeats):
                        started = time.perf_counter()
                        mark.detect_batch([text], settings, llm=llm)
                        times.append(time.perf_counter() - started)
                    fastest.append(min(times))
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


def _null(run: Run, cell: Cell, records: Records, null: dict[str, list[float]]) -> None:
    """Add the z of human texts under random keys to `null`, by block size."""
    for detection in cell.recipe.detection[:1] if aligns(cell.watermark.scheme) else ():
        scores = [records.scores.get(job.id, {}) for _, job in run.human_jobs(cell, detection)]
        values = [float(record["z"]) for record in scores if record.get("z") is not None]
        if values:
            null.setdefault(str(cell.watermark.parameters()["block_size"]), []).extend(values)


def _examples(run: Run, cell: Cell, records: Records) -> Iterator[Example]:
    """The first texts with scores at every stage, under the last attack of the recipe, which is often the hardest."""
    if not attacks(cell.recipe):
        return
    attack, detection = attacks(cell.recipe)[-1], cell.recipe.detection[0]
    left = cell.recipe.examples
    human_jobs = dict(reversed(list(run.human_jobs(cell, detection))))
    wanted: Statistic = "z" if cell.recipe.statistic == "z" else "score"  # the p-value is shown beside it
    for number, item in enumerate(cell.items):
        parent, attacked = run.source(cell, item), run.attack_job(cell, item, attack).id
        jobs = {"marked": run.detect_job(cell, detection, parent, item.prompt),
                "attacked": run.detect_job(cell, detection, attacked, item.prompt)}  # fmt: skip
        if number in human_jobs:
            jobs["human"] = human_jobs[number]
        scores = {kind: records.scores.get(job.id, {}) for kind, job in jobs.items()}
        if left == 0 or not all("score" in record for record in scores.values()):
            continue
        left -= 1
        statistic = ranked_by(scores.values(), wanted)
        yield {
            "method": cell.watermark.label, "attack": attack.label, "prompt": item.prompt, "human": item.human,
            "marked": records.text(parent), "attacked": records.text(attacked),
            "statistic": statistic,
            "scores": {kind: statistic_of(record, statistic) for kind, record in scores.items()},
            "p_values": {kind: float(record["p_value"]) for kind, record in scores.items()},
        }  # fmt: skip


def _data(run: Run) -> list[dict[str, Any]]:
    rows = {}
    for cell in run.cells:
        data = cell.data
        rows[data.name, cell.recipe.data.sentences] = {
            "set": data.name, "texts": len(cell.items), "human texts": min(len(data.human), cell.recipe.data.human_texts),
            "sentences": cell.recipe.data.sentences, "short": data.short, "repeats": data.repeats,
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
