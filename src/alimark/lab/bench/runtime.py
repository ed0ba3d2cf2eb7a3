"""Times detections of texts of several lengths, as the paper does."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from dataclasses import replace

from alimark.core.detection.stats.p_values import RandomKeys
from alimark.core.frozen.text.splitting import DEFAULT_SPLITTER, splitter
from alimark.core.llm.base import LLM
from alimark.core.schemes.api import load
from alimark.core.schemes.watermark import Watermark
from alimark.lab.bench.models import embedder_for, key_for, secret, settings_for
from alimark.lab.bench.recipe import RuntimeSettings
from alimark.lab.bench.results import Runtime
from alimark.lab.bench.run import Run


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
                texts = _texts(units, count, wanted.texts)
                key = key_for(cell.watermark, secret(1, texts[0]), run.models)
                mark = load(key, embedder=embedder_for(cell.watermark, run.models))
                yield {
                    "method": cell.watermark.label, "detection": detection.label, "sentences": count, "texts": len(texts),
                    "seconds": _mean_seconds(mark, texts, settings, llm, wanted),
                }  # fmt: skip


def _texts(units: list[str], sentences: int, count: int) -> list[str]:
    """Texts of so many neighbouring units each; the units are repeated where there are too few."""
    units = units * (1 + sentences // len(units))
    places = random.Random(f"runtime/{sentences}")
    starts = [places.randrange(len(units) - sentences + 1) for _ in range(count)]
    return [" ".join(units[start : start + sentences]) for start in starts]


def _mean_seconds(
    mark: Watermark, texts: list[str], settings: RandomKeys, llm: LLM | None, wanted: RuntimeSettings
) -> float:
    mark.detect_batch(texts[:1], settings, llm=llm)  # the first detection of a length also compiles
    total = 0.0
    for text in texts:
        times = []
        for _ in range(wanted.repeats):
            started = time.perf_counter()
            mark.detect_batch([text], settings, llm=llm)
            times.append(time.perf_counter() - started)
        total += min(times)
    return total / len(texts)
