"""What a run's records amount to: rates with their intervals, and the scores behind them."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from importlib import metadata
from typing import Any

import numpy as np

from alimark._util.jsonl import Record
from alimark.bench import metrics, paper
from alimark.bench.recipe import Detection, OneAttack, attacks, to_toml
from alimark.bench.results import Cost, Estimate, Example, Human, Quality, Results, Row, Runtime, Where
from alimark.bench.run import Cell, Run, embedder_for, key_for, secret, settings_for
from alimark.keys.key import DEFAULT_EMBEDDER
from alimark.schemes.api import load
from alimark.schemes.registry import aligns
from alimark.text.splitting import DEFAULT_SPLITTER, splitter

_LIBRARIES = ("numpy", "numba", "nupunkt", "scipy", "onnxruntime", "torch", "transformers", "xllamacpp")
_NOMINAL = (0.01, 0.05)


def evaluate(run: Run, name: str) -> Results:
    """All that can be said from the records that are there."""
    seen = _Seen(run)
    found: Results = {
        "version": 1, "name": name, "title": run.recipe.title, "recipe": to_toml(run.recipe), "made": _made(run),
        "data": _data(run), "rows": [], "human": [], "cost": [], "quality": list(_quality(run, seen)),
        "runtime": list(_runtime(run)), "null": {}, "examples": [],
        "paper": [value for table in run.recipe.paper for value in paper.values(table)],
    }  # fmt: skip
    for cell in run.cells:
        found["cost"] += _cost(run, cell, seen)
        for detection in cell.recipe.detection:
            human = _human(run, cell, detection, seen)
            if human is None:
                continue
            found["human"].append(human[0])
            found["rows"] += _rows(run, cell, detection, seen, human)
        found["examples"] += _examples(run, cell, seen)
        _null(run, cell, seen, found["null"])
    return found


class _Seen:
    """The records of a run, read once."""

    def __init__(self, run: Run) -> None:
        written = {run.generate_job(cell, item).id for cell in run.cells for item in cell.items}
        written |= {job.id for cell in run.cells for job in run.quality_generate_jobs(cell)}
        hit = {
            run.attack_job(cell, item, attack).id
            for cell in run.cells
            for attack in attacks(cell.recipe)
            for item in cell.items
        }
        self.texts = run.workspace.records("generate", written) | run.workspace.records("attack", hit)
        self.scores = run.workspace.records("detect", {job.id for job in run.detect_jobs()})
        read = {job.id for cell in run.cells for _, _, job in run.quality_jobs(cell)}
        self.read = run.workspace.records("quality", read) if read else {}
        pairs = {
            run.meaning_job(run.generate_job(cell, item).id, run.attack_job(cell, item, attack).id).id
            for cell in run.cells
            for attack in attacks(cell.recipe)
            for item in cell.items
        }
        self.meaning = run.workspace.records("meaning", pairs) if run.recipe.meaning else {}

    def text(self, own: str) -> str:
        return str(self.texts.get(own, {}).get("text", ""))


def _where(cell: Cell, detection: Detection | None) -> Where:
    return {"method": cell.watermark.label, "detection": detection.label if detection else "",
            "llm": _llm(cell), "data": cell.data.name, "grid": cell.variant.grid}  # fmt: skip


def _llm(cell: Cell) -> str:
    return cell.recipe.llm.label or cell.recipe.llm.name


def _estimate(found: metrics.Estimate) -> Estimate:
    return {"value": float(found.value), "low": float(found.low), "high": float(found.high), "count": int(found.count)}


def _mean(values: Sequence[float]) -> Estimate:
    """Of shares and cosines: one value alone says nothing of the mean but that it is one of these."""
    found = _estimate(metrics.mean_interval(values))
    return {**found, "low": max(-1.0, found["low"]), "high": min(1.0, found["high"])}


def _shares(p_values: Sequence[float]) -> dict[str, Estimate]:
    """How many texts lie at or below each nominal p-value."""
    return {f"{p:g}": _estimate(metrics.share(sum(one <= p for one in p_values), len(p_values))) for p in _NOMINAL}


_Negatives = tuple[Human, list[int]]
"""Scores of human texts, and of each the number of its text: one text may have been scored under several keys."""


def _human(run: Run, cell: Cell, detection: Detection, seen: _Seen) -> _Negatives | None:
    rows = [(number, seen.scores[job.id]) for number, job in run.human_jobs(cell, detection) if job.id in seen.scores]
    rows = [(number, record) for number, record in rows if not record.get("failed")]
    if not rows:
        return None
    p_values = [float(record["p_value"]) for _, record in rows]
    human: Human = {
        **_where(cell, detection), "scores": [float(record["score"]) for _, record in rows], "p_values": p_values,
        "texts": len({number for number, _ in rows}), "keys": cell.recipe.data.human_keys,
        "false_positives": _shares(p_values),
    }  # fmt: skip
    return human, [number for number, _ in rows]


def _rows(run: Run, cell: Cell, detection: Detection, seen: _Seen, human: _Negatives) -> Iterator[Row]:
    every: list[OneAttack | None] = [*([None] if cell.recipe.clean else []), *attacks(cell.recipe)]
    for attack in every:
        owns = [
            run.generate_job(cell, item).id if attack is None else run.attack_job(cell, item, attack).id
            for item in cell.items
        ]
        jobs = [run.detect_job(cell, detection, own, item.prompt) for own, item in zip(owns, cell.items, strict=True)]
        scored = [seen.scores[job.id] for job in jobs if job.id in seen.scores]
        sound = [record for record in scored if not record.get("failed")]
        if sound:
            yield _row(run, cell, detection, attack, sound, len(scored) - len(sound), human, seen)


def _row(
    run: Run,
    cell: Cell,
    detection: Detection,
    attack: OneAttack | None,
    sound: Sequence[Record],
    failed: int,
    human: _Negatives,
    seen: _Seen,
) -> Row:
    scores = [float(record["score"]) for record in sound]
    p_values = [float(record["p_value"]) for record in sound]
    negatives, groups = human[0]["scores"], human[1]
    rates: dict[str, Estimate | None] = {}
    for fpr in cell.recipe.fpr:
        found = metrics.tpr_at(scores, negatives, fpr, groups=groups)
        rates[f"{fpr:g}"] = None if found is None else _estimate(found)
    cosines, deltas = _change(run, cell, attack, seen)
    return {
        **_where(cell, detection),
        "attack": attack.label if attack else "none",
        "attack_name": attack.name if attack else "none",
        "rate": attack.rate if attack else None,
        "texts": len(sound),
        "failed": failed,
        "negatives": len(negatives),
        "auroc": _estimate(metrics.auroc_interval(scores, negatives, groups=groups)),
        "tpr": rates,
        "tpr_nominal": _shares(p_values),
        "cosine": _mean(cosines) if cosines else None,
        "deltas": deltas,
        "scores": scores,
        "p_values": p_values,
    }


def _change(run: Run, cell: Cell, attack: OneAttack | None, seen: _Seen) -> tuple[list[float], list[float]]:
    """How close in meaning attacked texts are to what they were, and the paper's ratio of sentence counts."""
    cosines, deltas = [], []
    cutter = splitter(DEFAULT_SPLITTER)
    for item in cell.items if attack else ():
        assert attack is not None
        parent, own = run.generate_job(cell, item).id, run.attack_job(cell, item, attack).id
        meant = seen.meaning.get(run.meaning_job(parent, own).id, {})
        if "cosine" in meant:
            cosines.append(float(meant["cosine"]))
        if (before := seen.text(parent)) and (after := seen.text(own)):
            deltas.append(len(cutter.units(after)) / max(1, len(cutter.units(before))))
    return cosines, deltas


def _cost(run: Run, cell: Cell, seen: _Seen) -> list[Cost]:
    records = [seen.texts.get(run.generate_job(cell, item).id, {}) for item in cell.items]
    costs = [record["cost"] for record in records if "cost" in record]
    if not costs:
        return []
    tokens, seconds = (float(np.mean([cost[name] for cost in costs])) for name in ("tokens", "seconds"))
    return [{**_where(cell, None), "texts": len(costs), "tokens": tokens, "seconds": seconds}]


def _quality(run: Run, seen: _Seen) -> Iterator[Quality]:
    told: set[tuple[str, str, str]] = set()
    for cell in run.cells:
        by_kind: dict[str, list[Record]] = {}
        for kind, _, job in run.quality_jobs(cell):
            record = seen.read.get(job.id, {})
            if "perplexity" in record:
                by_kind.setdefault(kind, []).append(record)
        for kind, records in by_kind.items():
            which = (kind, _llm(cell), cell.data.name)
            if kind in ("human", "unmarked") and which in told:
                continue  # the same for every watermark
            told.add(which)
            yield {
                "method": kind, "llm": _llm(cell), "data": cell.data.name, "grid": cell.variant.grid,
                "oracle": cell.recipe.quality.oracle, "perplexity": [float(one["perplexity"]) for one in records],
                "distinct": _mean([one["distinct"] for one in records]),
                "repetition": _mean([one["repetition"] for one in records]),
                "diversity": _diversity(run, cell, kind, seen),
            }  # fmt: skip


def _diversity(run: Run, cell: Cell, kind: str, seen: _Seen) -> Estimate | None:
    """Among several answers to one prompt, over prompts."""
    from alimark.bench.quality import diversity

    wanted = cell.recipe.quality
    if not wanted.answers or kind == "human":
        return None
    embedder = embedder_for(cell.watermark, run.models) or run.models.embedder(DEFAULT_EMBEDDER)
    found = []
    for item in cell.items[: wanted.prompts]:
        jobs = [run.generate_job(cell, item, marked=kind != "unmarked", answer=i) for i in range(wanted.answers)]
        texts = [text for job in jobs if (text := seen.text(job.id))]
        if len(texts) > 1:
            found.append(diversity(embedder.embed(texts)))
    return _mean(found) if found else None


def _runtime(run: Run) -> Iterator[Runtime]:
    """Seconds of one detection, embedding included, at several lengths of text; the best of some repeats."""
    wanted = run.recipe.runtime
    for cell in run.cells[:1] if wanted.sentences else ():
        cutter = splitter(DEFAULT_SPLITTER)
        units = [unit for text in cell.data.human for unit in cutter.units(text)]
        for detection in cell.recipe.detection:
            settings = replace(settings_for(cell.watermark, detection), draws=1)
            llm = run.models.llm(detection.llm) if detection.llm else None
            for count in wanted.sentences:
                text = " ".join((units * (1 + count // len(units)))[:count])
                key = key_for(cell.watermark, secret(1, text), run.models)
                mark = load(key, embedder=embedder_for(cell.watermark, run.models))
                times = []
                for _ in range(wanted.repeats + 1):  # the first compiles
                    started = time.perf_counter()
                    mark.detect_batch([text], settings, llm=llm)
                    times.append(time.perf_counter() - started)
                yield {"method": cell.watermark.label, "detection": detection.label, "sentences": count,
                       "seconds": min(times[1:])}  # fmt: skip


def _null(run: Run, cell: Cell, seen: _Seen, null: dict[str, list[float]]) -> None:
    """The statistic of human texts under keys that did not write them, by block size."""
    for detection in cell.recipe.detection[:1] if aligns(cell.watermark.scheme) else ():
        records = [seen.scores.get(job.id, {}) for _, job in run.human_jobs(cell, detection)]
        values = [float(record["z"]) for record in records if record.get("z") is not None]
        if values:
            null.setdefault(str(cell.watermark.key.get("block_size", 8)), []).extend(values)


def _examples(run: Run, cell: Cell, seen: _Seen) -> Iterator[Example]:
    """The first texts that went all the way, under the last attack of the recipe, which is often the hardest."""
    if not attacks(cell.recipe):
        return
    attack, detection = attacks(cell.recipe)[-1], cell.recipe.detection[0]
    left = cell.recipe.examples
    human_jobs = dict(reversed(list(run.human_jobs(cell, detection))))
    for number, item in enumerate(cell.items):
        parent, own = run.generate_job(cell, item).id, run.attack_job(cell, item, attack).id
        jobs = {"marked": run.detect_job(cell, detection, parent, item.prompt),
                "attacked": run.detect_job(cell, detection, own, item.prompt)}  # fmt: skip
        if number in human_jobs:
            jobs["human"] = human_jobs[number]
        records = {kind: seen.scores.get(job.id, {}) for kind, job in jobs.items()}
        if left == 0 or not all("score" in record for record in records.values()):
            continue
        left -= 1
        yield {
            "method": cell.watermark.label, "attack": attack.label, "prompt": item.prompt, "human": item.human,
            "marked": seen.text(parent), "attacked": seen.text(own),
            "scores": {kind: float(record["score"]) for kind, record in records.items()},
            "p_values": {kind: float(record["p_value"]) for kind, record in records.items()},
        }  # fmt: skip


def _data(run: Run) -> list[dict[str, Any]]:
    rows = {}
    for cell in run.cells:
        found = cell.data
        rows[found.name, cell.recipe.data.sentences] = {
            "set": found.name, "texts": len(cell.items), "human texts": len(found.human),
            "sentences": cell.recipe.data.sentences, "short": found.short, "repeats": found.repeats,
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
