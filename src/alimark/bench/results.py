"""What a run found out, as plain data: what `evaluate` writes and `report` reads.

One JSON file for each recipe of a workspace. Scores are kept, not only what was computed from them, so that a report can be
drawn again, and another metric tried, without running anything again.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, TypedDict

from alimark._util.files import write_whole
from alimark.errors import RecordError

VERSION = 1


class Estimate(TypedDict):
    """A figure with its interval at 95% and the number of texts behind it."""

    value: float
    low: float
    high: float
    count: int


class Where(TypedDict):
    """What a row is about. `grid` holds the settings that the recipe varies, such as {"block_size": 8}."""

    method: str
    detection: str
    """Which detection options; empty where the recipe has one set of them."""
    llm: str
    data: str
    grid: dict[str, Any]


class Row(Where):
    """One method under one attack."""

    attack: str
    """"none", or the attack with what the recipe varies of it: "delete 0.3"."""
    attack_name: str
    rate: float | None
    texts: int
    """Attacked, those that failed not counted."""
    failed: int
    negatives: int
    auroc: Estimate
    tpr: dict[str, Estimate | None]
    """By false-positive rate, "0.01": at the empirical quantile of the human texts; None where these are too few."""
    tpr_nominal: dict[str, Estimate]
    """By p-value: the share of texts at or below it."""
    cosine: Estimate | None
    """Meaning kept under attack: of the whole texts."""
    deltas: list[float]
    """Sentences after the attack / before."""
    scores: list[float]
    p_values: list[float]


class Human(Where):
    """The same detector on human texts."""

    scores: list[float]
    p_values: list[float]
    texts: int
    keys: int
    """Fresh keys that each text was scored under."""
    false_positives: dict[str, Estimate]


class Cost(Where):
    """What a marked text took to write."""

    texts: int
    tokens: float
    seconds: float


class Quality(TypedDict):
    """How marked, unmarked and human text read."""

    method: str
    """A watermark's label, "unmarked" or "human"."""
    llm: str
    data: str
    grid: dict[str, Any]
    oracle: str
    perplexity: list[float]
    distinct: Estimate
    """The share of different word pairs in a text."""
    repetition: Estimate
    """The share of four-word runs that came before in the text."""
    diversity: Estimate | None
    """One minus the mean cosine among several answers to one prompt."""


class Runtime(TypedDict):
    """Seconds that one text's detection takes, embedding included."""

    method: str
    detection: str
    sentences: int
    seconds: float


class Example(TypedDict):
    method: str
    attack: str
    prompt: str
    human: str
    marked: str
    attacked: str
    scores: dict[str, float]
    """Of human, marked and attacked."""
    p_values: dict[str, float]


class PaperValue(TypedDict):
    """A figure of the paper that stands beside ours."""

    method: str
    llm: str
    data: str
    attack: str
    metric: str
    """"auroc", "tpr@0.01", "tpr@0.05": shares between 0 and 1."""
    grid: dict[str, Any]
    value: float


class Results(TypedDict):
    version: int
    name: str
    title: str
    recipe: str
    """As TOML, every setting resolved."""
    made: dict[str, Any]
    """Versions, machine, seed, when, and seconds of each stage."""
    data: list[dict[str, Any]]
    """Of each data set: set, texts, sentences, short (left out), repeats (removed)."""
    rows: list[Row]
    human: list[Human]
    cost: list[Cost]
    quality: list[Quality]
    runtime: list[Runtime]
    null: dict[str, list[float]]
    """By block size: the paper's z of human texts under keys that did not write them."""
    examples: list[Example]
    paper: list[PaperValue]


def save(path: Path, results: Results) -> None:
    write_whole(path, json.dumps(results, ensure_ascii=False, allow_nan=False, indent=1).encode("utf-8"))


def load(path: Path) -> Results:
    try:
        found: Results = json.loads(path.read_bytes())
    except ValueError as error:
        raise RecordError(f"{path} holds no results of a run ({error})") from None
    if not isinstance(found, dict) or found.get("version") != VERSION:
        raise RecordError(f"{path} holds no results that this release can read; run the recipe again")
    return found
