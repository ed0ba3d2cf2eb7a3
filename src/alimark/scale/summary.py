"""Sums up the results of a corpus: documents found at a p-value and at a false discovery rate, by key and by source.

Result files are read one after the other, so that the results need not fit into memory.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from alimark._util.jsonl import Record
from alimark.scale.files import Block, arrow
from alimark.scale.worker import reason, result_path

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem

_SOURCES = 50
"""The number of sources in the summary; those with the most documents found come first."""


class Floor(NamedTuple):
    """A document that scored higher than all of its random keys: its p-value is the smallest that they allow."""

    block: str
    file: str
    place: int
    draws: int


def _tables(fs: FileSystem, folder: str, blocks: Sequence[Block], columns: list[str]) -> Iterator[tuple[Block, Record]]:
    """The columns of each block's results as arrays."""
    for block in blocks:
        with fs.open_input_file(result_path(folder, block)) as file:
            table = arrow().parquet.read_table(file, columns=columns)
        yield block, {name: table.column(name).to_numpy(zero_copy_only=False) for name in columns}


def at_the_floor(fs: FileSystem, folder: str, blocks: Sequence[Block]) -> tuple[int, list[Floor]]:
    """The number of documents tested, and those whose p-value is the smallest that their random keys allow."""
    tests = 0
    floor: list[Floor] = []
    for block, columns in _tables(
        fs, folder, blocks, ["file", "place", "p_value", "draws", "keys_tried", "readings", "failed", "full"]
    ):
        sound = ~columns["failed"].astype(bool)
        tests += int(sound.sum())
        for i in np.flatnonzero(sound):
            draws = int(columns["draws"][i])
            least = min(1.0, columns["keys_tried"][i] * columns["readings"][i] / (draws + 1))
            if columns["full"][i] and columns["p_value"][i] <= least * (1 + 1e-9):
                floor.append(Floor(block.name, str(columns["file"][i]), int(columns["place"][i]), draws))
    return tests, floor


def threshold(counts: Counter[float], tests: int, rate: float) -> float:
    """The largest p-value that counts as a discovery (Benjamini-Hochberg), from the counts of the small p-values."""
    best, seen = 0.0, 0
    for p in sorted(counts):
        seen += counts[p]
        if p <= rate * seen / tests:
            best = p
    return best


def summarise(fs: FileSystem, folder: str, blocks: Sequence[Block], fpr: float, fdr: float) -> Record:
    """The summary of all results: documents found at a p-value of `fpr` and at a false discovery rate of `fdr`."""
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
        discovered = ~failed & (np.where(failed, 1.0, columns["p_value"]).astype(float) <= limit)
        keys.update(map(str, columns["key_id"][discovered]))
        for source, hit in zip(columns["source"], discovered, strict=True):
            counts = sources.setdefault(str(source), [0, 0])
            counts[0] += 1
            counts[1] += int(hit)
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
