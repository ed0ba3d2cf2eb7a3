"""Made-up results, for tests of reports."""

import random
from collections.abc import Sequence
from typing import Any, cast

import numpy as np

from alimark.lab.bench import paper
from alimark.lab.bench.results import Example, ExampleText, Human, ResultFigure, Results, Row, Where

HOSTILE = '<script>alert("x")</script> & <b>bold</b> | `code` *stars* <img src=http://x.example/a.png>'

WORDS = "the old sailor sold his boat to a young doctor and nobody had expected such a thing in that village".split()


def estimate(value: float, count: int = 80) -> ResultFigure:
    reach = 1.96 * (value * (1 - value) / count + 0.0004) ** 0.5
    return {"value": value, "low": max(0.0, value - reach), "high": min(1.0, value + reach), "count": count}


def share(values: Sequence[float], at_most: float) -> ResultFigure:
    return estimate(sum(value <= at_most for value in values) / len(values), len(values))


class MadeUp:
    """Builds made-up results: methods of different strength under attacks of different strength."""

    def __init__(
        self, *, name: str = "main", title: str = "All methods under attack", seed: int = 3, texts: int = 80
    ) -> None:
        self.chance, self.random = np.random.default_rng(seed), random.Random(seed)
        self.texts = texts
        self.results: Results = {
            "version": 1, "name": name, "title": title, "recipe": 'title = "made up"\nseed = 3\n',
            "made": {"versions": {"alimark": "0.1.0", "python": "3.11.7"}, "machine": {"cores": 2}, "seed": seed,
                     "when": "2026-11-15 09:00", "seconds": {"generate": 812.25}},
            "data": [], "rows": [], "human": [], "cost": [], "quality": [], "runtime": [], "examples": [],
            "paper": [],
        }  # fmt: skip

    def where(self, method: str, data: str, llm: str, grid: dict[str, Any] | None, detection: str) -> Where:
        return {"method": method, "detection": detection, "llm": llm, "data": data, "grid": grid or {}}

    def watermark(
        self,
        method: str,
        strength: float,
        attacks: dict[str, float],
        *,
        data: str = "booksum",
        llm: str = "opt-1.3b",
        grid: dict[str, Any] | None = None,
        detection: str = "",
    ) -> None:
        """Add rows, human texts and cost of a method; an attack reduces the strength to its share."""
        where = self.where(method, data, llm, grid, detection)
        human = self.chance.normal(0, 1, 2 * self.texts).tolist()
        p_values = self.chance.uniform(0, 1, 2 * self.texts).tolist()
        rates = {"0.01": share(p_values, 0.01), "0.05": share(p_values, 0.05)}
        scored = {"statistic": "z", "scores": human, "p_values": p_values, "texts": self.texts, "keys": 2}
        self.results["human"].append(cast(Human, {**where, **scored, "false_positives": rates}))
        for attack, left in {"none": 1.0, **attacks}.items():
            self.results["rows"].append(self.row(where, attack, strength * left, human))
        self.results["cost"].append({**where, "texts": self.texts, "tokens": 9120.4, "seconds": 14.23})

    def row(self, where: Where, attack: str, strength: float, human: Sequence[float]) -> Row:
        name, _, rate = attack.partition(" ")
        failed = 0 if attack == "none" else self.random.choice([0, 0, 2])
        scores = self.chance.normal(strength, 1, self.texts - failed).tolist()
        at = {level: float(np.quantile(human, 1 - float(level))) for level in ("0.01", "0.05")}
        p_values = [min(1.0, float(np.exp(-(max(0.0, score) ** 2) / 2))) for score in scores]
        middle = {"merge": 0.8, "chat": 0.9, "delete": 0.7, "insert": 1.3}.get(name, 1.0)
        return {
            **where, "attack": attack, "attack_name": name, "rate": float(rate) if rate else None, "texts": len(scores),
            "failed": failed, "negatives": len(human),
            "auroc": estimate(float(np.mean(np.greater.outer(scores, human))), len(scores)),
            "tpr": {**{level: estimate(float(np.mean(np.array(scores) > cut)), len(scores)) for level, cut in at.items()},
                    "0.005": estimate(float(np.mean(np.array(scores) > 2.58))), "0.001": None},
            "tpr_nominal": {"0.01": share(p_values, 0.01), "0.05": share(p_values, 0.05)},
            "cosine": None if attack == "none" else estimate(0.87),
            "deltas": [] if attack == "none" else self.chance.normal(middle, 0.12, len(scores)).clip(0.1).tolist(),
            "scores": scores, "p_values": p_values, "statistic": "z",
            "retried": 2 * failed, "kept": 0, "with_failures": None,
        }  # fmt: skip

    def quality(self, method: str, level: float, *, data: str = "booksum", grid: dict[str, Any] | None = None) -> None:
        self.results["quality"].append(
            {
                "method": method, "llm": "opt-1.3b", "data": data, "grid": grid or {}, "oracle": "qwen2.5-coder-1.5b",
                "perplexity": (level * self.chance.lognormal(0, 0.25, 50)).tolist(), "distinct": estimate(0.91),
                "repetition": estimate(0.02), "diversity": None if method == "human" else estimate(0.55),
                "embedder": "stand-in",
            }
        )  # fmt: skip

    def example(self, method: str, attack: str, marked: str | None = None) -> None:
        text = " ".join(self.random.choices(WORDS, k=120)).capitalize() + "."
        attacked = " ".join(self.random.choices(WORDS, k=30))
        prompt = "W. H. R. Rivers was born in Kent."
        texts = {"prompt": prompt, "human": text, "marked": marked or text, "attacked": attacked}
        figures = {
            "human": ["score 0.12", "p = 0.44"],
            "marked": ["score 4.14", "p = 0.000999"],
            "attacked": ["score 1.46"],
        }
        passages = [ExampleText(kind=kind, text=text, figures=figures.get(kind, [])) for kind, text in texts.items()]
        self.results["examples"].append(Example(method=method, attack=attack, texts=passages))


PROBES = {f"{name} {rate:g}": 1 - loss * rate for name, loss in (("delete", 1.6), ("reorder", 0.5))
          for rate in (0.1, 0.5)}  # fmt: skip


def main_results() -> Results:
    made_up = MadeUp()
    for data in ("booksum", "c4"):
        for method, strength in (("SemStamp", 4.0), ("PMark", 4.5), ("AliMark", 5.5)):
            probes = PROBES if data == "booksum" else {}
            made_up.watermark(method, strength, probes | {"pegasus": 0.8, "chat": 0.4}, data=data)
        levels = {"human": 22.0, "unmarked": 12.0, "SemStamp": 14.0, "PMark": 12.5, "AliMark": 13.2}
        for method, level in levels.items():
            made_up.quality(method, level, data=data)
        made_up.results["data"].append({"set": data, "texts": 80, "sentences": 12, "short": 1204, "repeats": 3})
    for detection, slope in (("full", 1.1), ("no restructuring", 0.7)):
        for count in (4, 8, 16, 32, 64, 128):
            seconds = 0.004 * count**slope
            made_up.results["runtime"].append(
                {"method": "AliMark", "detection": detection, "sentences": count, "texts": 1, "seconds": seconds}
            )
    made_up.example("AliMark", "chat")
    made_up.example("PMark", "pegasus", marked=HOSTILE)
    made_up.results["paper"] = paper.values("main")
    return made_up.results


def grid_results() -> Results:
    made_up = MadeUp(name="block size", title="Block size", seed=5)
    for size, strength in ((2, 3.0), (8, 5.2)):
        made_up.watermark("AliMark", strength, {"pegasus": 0.8, "chat": 0.5}, grid={"block_size": size})
        made_up.quality("AliMark", 12 + size / 10, grid={"block_size": size})
    made_up.results["paper"] = paper.values("perplexity")
    return made_up.results


def lone_results() -> Results:
    """Results of one method with rows only."""
    made_up = MadeUp(name="lone", title="AliMark alone", seed=7)
    made_up.watermark("AliMark", 5.0, PROBES)
    made_up.results |= {"human": [], "cost": [], "made": {}, "recipe": ""}
    return made_up.results
