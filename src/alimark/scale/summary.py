"""What a run over a corpus found: at a p-value, at a false discovery rate, by key, by source; read file by file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from alimark.scale.files import Block, arrow
from alimark.scale.worker import reason, result_path

_SOURCES = 50
"""Named in the summary, those with most found first."""


class Floor(NamedTuple):
    """A document that scores higher than all random keys it was held against."""

    block: str
    file: str
    place: int
    draws: int


def _tables(
    fs: Any, folder: str, blocks: Sequence[Block], columns: list[str]
) -> Iterator[tuple[Block, dict[str, Any]]]:
    for block in blocks:
        with fs.open_input_file(result_path(folder, block)) as file:
            table = arrow().parquet.read_table(file, columns=columns)
        yield block, {name: table.column(name).to_numpy(zero_copy_only=False) for name in columns}


def at_the_floor(fs: Any, folder: str, blocks: Sequence[Block]) -> tuple[int, list[Floor]]:
    """The number of documents tested, and those whose p-value is the least that their random keys allow."""
    tests = 0
    found: list[Floor] = []
    for block, columns in _tables(
        fs, folder, blocks, ["file", "place", "p_value", "draws", "keys_tried", "failed", "full"]
    ):
        sound = ~columns["failed"].astype(bool)
        tests += int(sound.sum())
        for i in np.flatnonzero(sound):
            draws = int(columns["draws"][i])
            least = min(1.0, columns["keys_tried"][i] / (draws + 1))
            if columns["full"][i] and columns["p_value"][i] <= least * (1 + 1e-9):
                found.append(Floor(block.name, str(columns["file"][i]), int(columns["place"][i]), draws))
    return tests, found


def threshold(counts: Counter[float], tests: int, rate: float) -> float:
    """Benjamini and Hochberg's p-value, from how often each small p-value came."""
    best, seen = 0.0, 0
    for p in sorted(counts):
        seen += counts[p]
        if p <= rate * seen / tests:
            best = p
    return best


def summarise(fs: Any, folder: str, blocks: Sequence[Block], fpr: float, fdr: float) -> dict[str, Any]:
    small: Counter[float] = Counter()
    failures: Counter[str] = Counter()
    tests = at_fpr = full = 0
    for _, columns in _tables(fs, folder, blocks, ["p_value", "failed", "error", "full"]):
        failed = columns["failed"].astype(bool)
        failures.update(reason(str(error)) for error in columns["error"][failed])
        p = columns["p_value"][~failed].astype(float)
        tests += len(p)
        full += int(columns["full"][~failed].astype(bool).sum())
        at_fpr += int((p <= fpr).sum())
        small.update(p[p <= fdr].tolist())
    limit = threshold(small, tests, fdr)
    keys: Counter[str] = Counter()
    sources: dict[str, list[int]] = {}
    for _, columns in _tables(fs, folder, blocks, ["p_value", "failed", "key_id", "source"]):
        failed = columns["failed"].astype(bool)
        found = ~failed & (np.where(failed, 1.0, columns["p_value"]).astype(float) <= limit)
        keys.update(map(str, columns["key_id"][found]))
        for source, hit in zip(columns["source"], found, strict=True):
            own = sources.setdefault(str(source), [0, 0])
            own[0] += 1
            own[1] += int(hit)
    named = sorted(sources, key=lambda name: (-sources[name][1], name))[:_SOURCES]
    return {
        "documents": tests + failures.total(),
        "failed": failures.total(),
        "failures": dict(failures.most_common()),
        "tested_in_full": full,
        "fpr": fpr,
        "found_at_fpr": at_fpr,
        "fdr": fdr,
        "found_at_fdr": keys.total(),
        "fdr_threshold": limit,
        "found_by_key": dict(keys.most_common()),
        "sources": len(sources),
        "found_by_source": {name: {"documents": sources[name][0], "found": sources[name][1]} for name in named},
    }
