"""False-positive rates on human text: of one key, of a fresh key for each text, and their spread over many keys."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import NormalDist
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from alimark.core._util.arrays import Floats, Ints
from alimark.core._util.files import write_whole
from alimark.core.detection.batching import deduplicate
from alimark.core.detection.preparing import make_units, split
from alimark.core.detection.scoring import score_table, scoring
from alimark.core.detection.settings import DetectionSettings
from alimark.core.detection.stats.p_values import RandomKeys
from alimark.core.detection.units import Units
from alimark.core.embedding.base import Embedder
from alimark.core.frozen.text.normalising import normalise
from alimark.core.keys.key import Key
from alimark.core.keys.projection import project
from alimark.core.schemes.api import load
from alimark.core.text.human_text import cut
from alimark.errors import AlimarkError

if TYPE_CHECKING:
    from alimark.core._util.jsonl import Record

LEVELS = (0.01, 0.05, 0.5)
MAX_LEVEL = 0.05  # larger p-values are no reason to call a mark found, so that their rates decide nothing
MIN_TEXTS = 20  # fewer texts say too little about a rate
_JOBS_AT_A_TIME = 2_000_000  # pairs of a text and a random key whose scores are held in memory at a time

Advance = Callable[[int], None]
StartBar = Callable[[str, int], Advance]
"""Begins a progress bar with a title and a total; returns the function that advances it."""


class Values(NamedTuple):
    """For each text: the p-value, never too small; the same with ties broken at random; the raw score."""

    p: Floats
    p_randomised: Floats
    raw: Floats

    def rates(self) -> dict[str, list[float]]:
        """The shares of texts with small p-values."""
        return {"p": shares(self.p), "p_randomised": shares(self.p_randomised)}


@dataclass(frozen=True)
class Embedded:
    """Human texts with the embeddings of their units, computed once for all keys of AliMark."""

    units: list[Units]
    starts: Ints  # the row where the embeddings of each text begin, and at the end the number of rows
    embeddings: NDArray[np.float32]

    @classmethod
    def of(cls, texts: Sequence[str], key: Key, embedder: Embedder, settings: RandomKeys) -> Embedded:
        """Splits and embeds the texts with the stages of the detection pipeline."""
        settings = DetectionSettings.of(settings)
        units = [make_units(split(normalise(text), key), key, settings) for text in texts]
        unique = deduplicate(text.texts for text in units)
        rows = [[unique[unit] for unit in text.texts] for text in units]
        starts = np.cumsum([0, *(len(text_rows) for text_rows in rows)])
        return cls(units, starts, embedder.embed(list(unique))[[row for text_rows in rows for row in text_rows]])

    def __len__(self) -> int:
        return len(self.units)

    def part(self, chosen: Sequence[int]) -> Embedded:
        """Some of the texts, by number."""
        rows = [np.arange(self.starts[i], self.starts[i + 1]) for i in chosen]
        starts = np.cumsum([0, *(len(row) for row in rows)])
        return Embedded([self.units[i] for i in chosen], starts, self.embeddings[np.concatenate(rows)])

    def mean(self) -> NDArray[np.float32]:
        """The mean embedding of all sentences."""
        whole = [self.starts[i] + text.index[:, 0, 0] for i, text in enumerate(self.units)]
        return np.asarray(self.embeddings[np.concatenate(whole)].mean(axis=0))

    def values(self, key: Key, settings: RandomKeys, seed: int = 0) -> Values:
        """The p-values of all texts under one key, against the same random keys."""
        settings = DetectionSettings.of(settings)
        projections = project(self.embeddings, key)
        rule = scoring(key, settings)
        ranges = zip(self.units, self.starts, self.starts[1:], strict=False)
        signals = [rule.signals(units, projections[start:stop]) for units, start, stop in ranges]
        length = rule.length(max(len(text.packed) for text in signals))
        above, ties = np.zeros(len(signals), np.int64), np.zeros(len(signals), np.int64)
        raw = np.empty(0)
        batch = max(1, _JOBS_AT_A_TIME // len(signals))
        for first in range(0, settings.draws, batch):
            null = key.null_blocks(first, min(batch, settings.draws - first), length)
            # The key itself is scored with the first batch, since every call concatenates the tables of all texts.
            scores = score_table(
                rule, signals, null if first else np.concatenate([key.derivation.blocks(length)[None], null])
            )
            if not first:
                raw, scores = scores[:, 0], scores[:, 1:]
            above += (scores > raw[:, None]).sum(axis=1)
            ties += (scores == raw[:, None]).sum(axis=1)
        u = 1 - np.random.default_rng(seed).random(len(raw))
        return Values((1 + above + ties) / (settings.draws + 1), (above + u * (1 + ties)) / (settings.draws + 1), raw)


@dataclass(frozen=True)
class Detected:
    """Human texts that keys of another scheme detect one by one."""

    texts: Sequence[str]
    embedder: Embedder | None

    def __len__(self) -> int:
        return len(self.texts)

    def part(self, chosen: Sequence[int]) -> Detected:
        """Some of the texts, by number."""
        return Detected([self.texts[i] for i in chosen], self.embedder)

    def values(self, key: Key, settings: RandomKeys, seed: int = 0) -> Values:
        """The p-values of all texts under one key."""
        numbers = []
        for answer in load(key, embedder=self.embedder).detect_batch(self.texts, settings):
            if isinstance(answer, AlimarkError):
                raise answer
            numbers.append((answer.p_value, answer.p_randomised, answer.raw))
        return Values(*map(np.array, zip(*numbers, strict=True)))


HumanTexts = Embedded | Detected


def fresh_keys(texts: HumanTexts, like: Key, settings: RandomKeys, advance: Advance) -> Values:
    """The p-value of each text under a fresh key."""
    parts = []
    for i in range(len(texts)):
        parts.append(texts.part([i]).values(like.like(), settings, seed=i))
        advance(1)
    return Values(*map(np.concatenate, zip(*parts, strict=True)))


def shares(p: Floats) -> list[float]:
    """The share of texts with a p-value of at most each level."""
    return [float((p <= level).mean()) for level in LEVELS]


def z_shares(z: Floats) -> list[float]:
    """The share of texts that would be called found at each level if the paper's z were a standard normal deviate."""
    return [float((z >= NormalDist().inv_cdf(1 - level)).mean()) for level in LEVELS]


def binomial_interval(n: int, p: float, cover: float = 0.99) -> tuple[float, float]:
    """The range in which the observed share of n texts lies with probability at least `cover` if the true rate is p."""
    logs = [
        math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1) + k * math.log(p) + (n - k) * math.log1p(-p)
        for k in range(n + 1)
    ]
    below = np.cumsum(np.exp(logs))
    tail = (1 - cover) / 2
    low = int(np.searchsorted(below, tail, side="right"))
    high = int(np.searchsorted(below, 1 - tail, side="left"))
    return low / n, min(high, n) / n


# Reports


@dataclass(frozen=True)
class Sample:
    """Distinct human texts, cut to one length in sentences."""

    sentences: int
    texts: list[str]
    too_short: int
    repeats: int

    @classmethod
    def of(cls, texts: Sequence[str], sentences: int, splitter: str) -> Sample:
        """Cuts the texts; raises AlimarkError where fewer than 20 are left."""
        kept, short, repeats = cut(list(texts), sentences, splitter)
        if len(kept) < MIN_TEXTS:
            raise AlimarkError(
                f"only {len(kept)} distinct texts have {sentences} sentences; at least {MIN_TEXTS} are needed"
            )
        return cls(sentences, kept, short, repeats)


def calibration_report(
    sample: Sample, texts: HumanTexts, key: Key, start: StartBar, *, draws: int = 999, fresh: bool = False, keys: int = 0,
    centring: bool = False,
) -> Record:  # fmt: skip
    """Measures the rates of a key; returns them and what they mean, ready for JSON.

    Args:
        sample: The texts.
        texts: The same texts, ready for the keys of a scheme; those of AliMark are embedded once for all keys.
        key: The key.
        start: Begins a progress bar.
        draws: Random keys behind each p-value.
        fresh: Also the rates over one fresh key for each text.
        keys: Also the spread of the rates over so many fresh keys.
        centring: The spread once more, with projections centred by a corpus mean; AliMark only.
    """
    settings = RandomKeys(draws=draws)
    values = texts.values(key, settings)
    report: Record = {
        "sentences": sample.sentences,
        "texts": len(sample.texts),
        "too_short": sample.too_short,
        "repeats": sample.repeats,
        "key_id": key.id,
        "levels": list(LEVELS),
        "interval_99": [binomial_interval(len(sample.texts), level) for level in LEVELS],
        "this_key": values.rates(),
    }
    report["conclusion"] = conclusion(report)
    with_z = isinstance(texts, Detected) or not key.soft  # a soft score is not a normal deviate
    if with_z:
        report["z_as_normal"] = z_shares(values.raw)
    if fresh:
        each = fresh_keys(texts, key, settings, start("one key a text", len(texts)))
        report |= {"fresh_keys": each.rates()} | ({"fresh_z_as_normal": z_shares(each.raw)} if with_z else {})
    if keys:
        report["spread"] = _spread(texts, key, settings, start, keys, centring)
    return report


def conclusion(report: Record) -> str:
    """What the rates of a key say: the rows that fail, those that so few texts cannot judge, and what to do.

    Example:
        >>> report = {"levels": [0.01, 0.05], "texts": 300, "this_key": {"p": [0.05, 0.06], "p_randomised": [0.05, 0.06]}}
        >>> report["interval_99"] = [binomial_interval(300, level) for level in report["levels"]]
        >>> conclusion(report).split(". ")[0]
        'Conclusion: do not rely on this key for texts like these'
        >>> report["this_key"] = {"p": [0.01, 0.06], "p_randomised": [0.01, 0.06]}
        >>> conclusion(report).split(". ")[0]
        'Conclusion: nothing speaks against this key, but do not rely on it yet'
    """
    texts, levels, rates = report["texts"], report["levels"], report["this_key"]
    high, low, unjudged = list[str](), list[str](), list[float]()
    for level, share, fair, (least, most) in zip(
        levels, rates["p"], rates["p_randomised"], report["interval_99"], strict=True
    ):
        if share > most:  # p-values are never too small, so that ties can only make a share too low
            high.append(f"{100 * share:.2f}% with p <= {level:g}, where at most {100 * most:.2f}% are expected")
        elif fair < least:
            low.append(f"{100 * fair:.2f}% with p <= {level:g}, where at least {100 * least:.2f}% are expected")
        if texts < texts_needed(level):
            unjudged.append(level)
    if high:
        return (
            f"Conclusion: do not rely on this key for texts like these. Of {texts:,} human texts it finds {'; '.join(high)}. "
            "Make another key (alimark keygen) and calibrate that one. If several keys fail, the texts share a subject or a "
            "template: make a key with --centre, or detect with a stricter --fpr."
        )
    judged = [level for level in levels if level not in unjudged and level <= MAX_LEVEL]
    few = f" {texts:,} texts are too few to judge " + ", ".join(
        f"p <= {level:g} (about {texts_needed(level):,} are needed)" for level in unjudged
    )
    fewer = f" It finds fewer than expected ({'; '.join(low)}), so that its p-values are cautious." if low else ""
    if not judged:
        return f"Conclusion: nothing speaks against this key, but do not rely on it yet.{few}.{fewer}"
    shares = ", ".join(f"p <= {level:g} in {100 * rates['p'][levels.index(level)]:.2f}%" for level in judged)
    relied = f"this key can be relied on for texts like these at p <= {max(judged) if unjudged else min(judged):g}"
    few = f"{few}." if unjudged else ""
    return f"Conclusion: {relied}: of {texts:,} human texts it gives {shares}, as it should.{few}{fewer}"


def texts_needed(level: float) -> int:
    """About how many texts it takes to notice, nine times in ten, that a key finds a mark twice as often as it should.

    Example:
        >>> texts_needed(0.05), texts_needed(0.01)
        (360, 1900)
    """
    wrong = min(2 * level, (1 + level) / 2)
    spread = 2.576 * math.sqrt(level * (1 - level)) + 1.282 * math.sqrt(wrong * (1 - wrong))
    return int(float(f"{(spread / (wrong - level)) ** 2:.2g}"))


def _spread(texts: HumanTexts, key: Key, settings: RandomKeys, start: StartBar, keys: int, centring: bool) -> Record:
    """Statistics of the rates of many fresh keys.

    With centring, on every second text, centred by the mean of the others: every second text and not a half, since the texts
    may come from several files in turn, and the mean of one file alone fits the texts of the others badly.
    """
    changes: dict[str, dict[str, object]] = {"as is": {}}
    if centring and isinstance(texts, Embedded):
        changes["centred"] = {"centre": texts.part(range(0, len(texts), 2)).mean()}
        texts = texts.part(range(1, len(texts), 2))
    spread: Record = {"keys": keys, "texts": len(texts)}
    for name, change in changes.items():
        advance = start(f"{keys} keys, {name}", keys)
        rates = []
        for number in range(keys):
            values = texts.values(key.like(**change), settings, seed=number)  # type: ignore[arg-type]
            rates.append(shares(values.p_randomised))
            advance(1)
        over_keys: dict[str, Callable[..., Floats]] = {"mean": np.mean, "std": np.std, "least": np.min, "most": np.max}
        spread[name] = {
            statistic: [round(x, 4) for x in of(rates, axis=0).tolist()] for statistic, of in over_keys.items()
        }
    return spread


def write_centre(path: Path, embedded: Embedded, embedder: Embedder) -> None:
    """Writes the mean embedding of the texts to a JSON file, for `alimark keygen --centre`."""
    made_for = {"embedder": embedder.name, "fingerprint": embedder.fingerprint}
    content = made_for | {"texts": len(embedded), "mean": embedded.mean().tolist()}
    write_whole(path, json.dumps(content).encode() + b"\n")
