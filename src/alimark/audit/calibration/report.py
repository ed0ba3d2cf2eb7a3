"""Reports false-positive rates on human text: of a key, of a fresh key for each text, and their spread over many keys."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from alimark.audit.calibration import rates
from alimark.audit.calibration.rates import LEVELS, Embedded, Values
from alimark.core._util.files import write_whole
from alimark.core.detection.settings import DetectionSettings
from alimark.core.detection.stats.p_values import RandomKeys
from alimark.core.schemes.api import load
from alimark.core.text.human_text import cut
from alimark.errors import AlimarkError

if TYPE_CHECKING:
    from alimark.core._util.arrays import Floats
    from alimark.core._util.jsonl import Record
    from alimark.core.embedding.base import Embedder
    from alimark.core.keys.key import Key
    from alimark.core.schemes.watermark import Watermark

MAX_LEVEL = 0.05
"""Larger p-values are no reason to call a mark found, so that their rates decide nothing."""
MIN_TEXTS = 20
"""Fewer texts say too little about a rate."""

Start = Callable[[str, int], Callable[[int], None]]
"""Begins a progress bar with a title and a total; returns the function that advances it."""


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


@dataclass(frozen=True)
class CalibrationOptions:
    """What to measure beside the rates of the key."""

    draws: int = 999
    """Random keys behind each p-value."""
    fresh: bool = False
    """Also the rates over one fresh key for each text."""
    keys: int = 0
    """Also the spread of the rates over so many fresh keys."""
    centring: bool = False
    """The spread once more, with projections centred by a corpus mean; AliMark only."""


def alimark_report(
    sample: Sample, embedded: Embedded, key: Key, embedder: Embedder, options: CalibrationOptions, start: Start
) -> Record:
    """Measures the rates of an AliMark key on texts that are embedded once for all keys."""
    settings = DetectionSettings(draws=options.draws)
    # A soft score is not a normal deviate.
    report = _report(sample, key, rates.p_values(embedded, key, settings), with_z=not key.soft)
    if options.fresh:
        step = start("one key a text", len(sample.texts))
        report |= _fresh(rates.fresh_keys(embedded, key, embedder, settings, step), with_z=not key.soft)
    if options.keys:
        report["spread"] = _alimark_spread(embedded, key, embedder, options, start)
    return report


def scheme_report(sample: Sample, mark: Watermark, options: CalibrationOptions) -> Record:
    """Measures the rates of a key of any scheme, by detecting every text."""
    key, settings = mark.key, RandomKeys(draws=options.draws)
    embedder = getattr(mark, "embedder", None)

    def fresh_values(texts: Sequence[str]) -> Values:
        return rates.values_of(load(key.like(), embedder=embedder), texts, settings)

    report = _report(sample, key, rates.values_of(mark, sample.texts, settings), with_z=True)
    if options.fresh:
        report |= _fresh(_joined([fresh_values([text]) for text in sample.texts]), with_z=True)
    if options.keys:
        key_rates = [rates.shares(fresh_values(sample.texts).p_randomised) for _ in range(options.keys)]
        spread = _statistics(np.array(key_rates))
        report["spread"] = {"keys": options.keys, "texts": len(sample.texts), "as is": spread}
    return report


def write_centre(path: Path, embedded: Embedded, embedder: Embedder) -> None:
    """Writes the mean embedding of the texts to a JSON file, for `alimark keygen --centre`."""
    content = {
        "embedder": embedder.name,
        "fingerprint": embedder.fingerprint,
        "texts": len(embedded.units),
        "mean": [float(x) for x in embedded.mean()],
    }
    write_whole(path, json.dumps(content).encode() + b"\n")


def _report(sample: Sample, key: Key, values: Values, *, with_z: bool) -> Record:
    report: Record = {
        "sentences": sample.sentences,
        "texts": len(sample.texts),
        "too_short": sample.too_short,
        "repeats": sample.repeats,
        "key_id": key.id,
        "levels": list(LEVELS),
        "interval_99": [rates.binomial_interval(len(sample.texts), level) for level in LEVELS],
        "this_key": _shares(values),
    }
    report["conclusion"] = conclusion(report)
    return report | ({"z_as_normal": rates.z_shares(values.raw)} if with_z else {})


def conclusion(report: Record) -> str:
    """What the rates of a key mean for its user, in words.

    Args:
        report: A report with `levels`, `this_key` and `interval_99`.

    Returns:
        Whether the key finds a mark in human text more often than its p-values say, and what to do then.

    Example:
        >>> report = {"levels": [0.01], "this_key": {"p": [0.05]}, "interval_99": [(0.0, 0.03)], "texts": 300}
        >>> conclusion(report).split(":")[1]
        ' this key finds a mark in human text more often than its p-values say'
    """
    rows = list(zip(report["levels"], report["this_key"]["p"], report["interval_99"], strict=True))
    wrong = [(level, share, high) for level, share, (_, high) in rows if level <= MAX_LEVEL and share > high]
    if not wrong:
        level, share, (_, high) = rows[0]
        return (
            f"Conclusion: the p-values of this key can be relied on for texts like these. At p <= {level:g} it finds a mark in "
            f"{100 * share:.2f}% of {report['texts']:,} human texts, and up to {100 * high:.2f}% would be no surprise."
        )
    level, share, high = wrong[0]
    return (
        f"Conclusion: this key finds a mark in human text more often than its p-values say: at p <= {level:g} in "
        f"{100 * share:.2f}% of {report['texts']:,} texts, where at most {100 * high:.2f}% would be expected. The texts may "
        "share a subject or a template. Use a stricter --fpr, make a key with --centre, or calibrate on other texts."
    )


def _fresh(values: Values, *, with_z: bool) -> Record:
    z = {"fresh_z_as_normal": rates.z_shares(values.raw)} if with_z else {}
    return {"fresh_keys": _shares(values), **z}


def _shares(values: Values) -> dict[str, list[float]]:
    return {"p": rates.shares(values.p), "p_randomised": rates.shares(values.p_randomised)}


def _joined(parts: Iterable[Values]) -> Values:
    columns = zip(*((part.p, part.p_randomised, part.raw) for part in parts), strict=True)
    return Values(*map(np.concatenate, columns))


def _alimark_spread(
    embedded: Embedded, key: Key, embedder: Embedder, options: CalibrationOptions, start: Start
) -> Record:
    """Per-key rates on every second text; the mean that centres them comes from the other texts.

    Every second text and not a half, since the texts may come from several files in turn: the mean of one file alone
    fits the texts of the others badly.
    """
    settings = DetectionSettings(draws=options.draws)
    test = embedded.part(range(1, len(embedded.units), 2))
    centres = {"as is": key.centre}
    if options.centring:
        centres["centred"] = embedded.part(range(0, len(embedded.units), 2)).mean()
    spread: Record = {"keys": options.keys, "texts": len(test.units)}
    for name, centre in centres.items():
        step = start(f"{options.keys} keys, {name}", options.keys)
        key_rates = rates.per_key_rates(test, key, embedder, settings, options.keys, step, centre=centre)
        spread[name] = _statistics(key_rates)
    return spread


def _statistics(key_rates: Floats) -> dict[str, list[float]]:
    """Mean, standard deviation and extremes over keys, of an array (keys, levels)."""
    statistics = {
        "mean": key_rates.mean(axis=0),
        "std": key_rates.std(axis=0),
        "least": key_rates.min(axis=0),
        "most": key_rates.max(axis=0),
    }
    return {name: [round(float(x), 4) for x in values] for name, values in statistics.items()}
