"""The results of a run as plain data: `evaluate` writes them and `report` reads them.

There is one JSON file for each recipe of a workspace. It also holds the scores behind the figures, so that a report or another
metric can be computed without running anything again.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypedDict

from alimark.core._util.files import write_whole
from alimark.errors import RecordError

VERSION = 1

JsonMapping = Mapping[str, Any]  # a row of any table of results


class ResultFigure(TypedDict):
    """A figure with its interval at 95% and the number of texts behind it."""

    value: float
    low: float
    high: float
    count: int


class Where(TypedDict):
    """What a row refers to. `grid` holds the settings that the recipe varies, such as {"block_size": 8}."""

    method: str
    detection: str  # the label of the detection options; empty if the recipe has only one set of them
    llm: str
    data: str
    grid: dict[str, Any]


class Rates(TypedDict):
    """The detection rates of marked texts; None or absent where there are too few human texts, or no marked ones."""

    auroc: ResultFigure | None
    tpr: dict[str, ResultFigure | None]
    """By false-positive rate, such as "0.01": at the empirical quantile of the human texts."""
    tpr_nominal: dict[str, ResultFigure]  # by p-value: the share of texts with this p-value or a smaller one


class Row(Where, Rates):
    """One method under one attack; the rates leave out texts on which the attack failed."""

    with_failures: Rates | None  # the rates with failed attacks as misses; None if none failed
    attack: str  # "none", or the attack's name with the settings that the recipe varies: "delete 0.3"
    attack_name: str
    rate: float | None
    texts: int  # attacked texts, without those where the attack failed
    failed: int
    negatives: int  # scores of human texts
    retried: int  # texts, failed ones included, for which the attack's model gave an answer that was not used
    kept: int  # sentences that an attack by sentences left as they were
    statistic: str  # what the texts are ranked by: "z", "score" or "p"
    cosine: ResultFigure | None  # cosine similarity of the texts after and before the attack
    deltas: list[float]  # the number of sentences after the attack, divided by the number before
    scores: list[float]  # of the row's statistic
    p_values: list[float]


class Human(Where):
    """The same detector on human texts."""

    statistic: str
    scores: list[float]
    p_values: list[float]
    texts: int
    keys: int  # the number of fresh keys that each text was scored under
    false_positives: dict[str, ResultFigure]


class Cost(Where):
    """Mean tokens and seconds to write a marked text."""

    texts: int
    tokens: float
    seconds: float


class Quality(TypedDict):
    """Perplexity, repetition and diversity of marked, unmarked or human text."""

    method: str  # A watermark's label, "unmarked" or "human"
    llm: str
    data: str
    grid: dict[str, Any]
    oracle: str
    perplexity: list[float]
    distinct: ResultFigure  # the share of different word pairs in a text
    repetition: ResultFigure  # the share of four-word sequences that occurred before in the text
    diversity: ResultFigure | None  # one minus the mean cosine similarity among several answers to one prompt
    embedder: str  # the embedder that measured diversity


class Runtime(TypedDict):
    """Seconds to detect one text, embedding included."""

    method: str
    detection: str
    sentences: int
    texts: int  # the number of texts, over which `seconds` is the mean
    seconds: float


class ExampleText(TypedDict):
    """One text of an example."""

    kind: str  # prompt, human, marked or attacked
    text: str
    figures: list[str]  # score and p-value of the text, if it has them


class Example(TypedDict):
    method: str
    attack: str
    texts: list[ExampleText]


class PaperValue(TypedDict):
    """A figure of the paper, to compare with ours."""

    method: str
    llm: str
    data: str
    attack: str
    metric: str  # "auroc", "tpr@0.01", "tpr@0.05": shares between 0 and 1
    grid: dict[str, Any]
    value: float


class Results(TypedDict):
    version: int
    name: str
    title: str
    recipe: str  # as TOML, with every setting
    made: dict[str, Any]  # versions, machine, seed, when, and seconds of each stage
    data: list[dict[str, Any]]  # for each data set: set, texts, sentences, short (left out), repeats (removed), papers
    rows: list[Row]
    human: list[Human]
    cost: list[Cost]
    quality: list[Quality]
    runtime: list[Runtime]
    examples: list[Example]
    paper: list[PaperValue]


def save(path: Path, results: Results) -> None:
    write_whole(path, json.dumps(results, ensure_ascii=False, allow_nan=False, indent=1).encode("utf-8"))


def load(path: Path) -> Results:
    try:
        results: Results = json.loads(path.read_bytes())
    except ValueError as error:
        raise RecordError(f"{path} holds no results of a run ({error}); run the recipe again") from None
    if not isinstance(results, dict) or results.get("version") != VERSION:
        raise RecordError(f"{path} holds no results that this release can read; run the recipe again")
    return results
