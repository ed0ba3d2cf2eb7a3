"""Sums up the results of a corpus: documents found at a p-value and at a false discovery rate, by key and by source.

Result files are read one after the other, so that the results need not fit into memory.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from alimark.audit.answers import final_verdict
from alimark.audit.corpora.files import Block, arrow
from alimark.audit.corpora.worker import WholeParquet, reason, result_path
from alimark.core._util.arrays import Floats
from alimark.core._util.jsonl import Record

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem

_NAMED = 100
"""The number of documents in the summary in which a mark was found; those with the smallest p-values come first."""
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
        fs,
        folder,
        blocks,
        ["file", "place", "p_value", "draws", "keys_tried", "readings", "searches", "failed", "full"],
    ):
        sound = ~columns["failed"].astype(bool)
        tests += int(sound.sum())
        for i in np.flatnonzero(sound):
            draws = int(columns["draws"][i])
            tests_made = columns["keys_tried"][i] * columns["readings"][i] * columns["searches"][i]
            least = min(1.0, tests_made / (draws + 1))
            if columns["full"][i] and columns["p_value"][i] <= least * (1 + 1e-9):
                floor.append(Floor(block.name, str(columns["file"][i]), int(columns["place"][i]), draws))
    return tests, floor


def finish(fs: FileSystem, folder: str, blocks: Sequence[Block], fdr: float) -> None:
    """Writes the q-value, the flag `found` and the final verdict into every row; files that have them are left as they are."""
    counts: Counter[float] = Counter()
    for _, columns in _tables(fs, folder, blocks, ["p_value", "failed"]):
        p = columns["p_value"][~columns["failed"].astype(bool)].astype(float)
        counts.update(_rounded(p, fdr).tolist())
    q_of = q_values_of(counts)
    for block in blocks:
        path = result_path(folder, block)
        with fs.open_input_file(path) as file:
            before: list[Record] = arrow().parquet.read_table(file).to_pylist()
        after = [_finished(row, q_of, fdr) for row in before]
        if after != before:
            with WholeParquet(fs, path) as whole:
                whole.write(after)


def _finished(row: Record, q_of: dict[float, float], fdr: float) -> Record:
    if row["failed"]:
        return row
    q_value = q_of[float(_rounded(np.array([row["p_value"]]), fdr)[0])]
    verdict = final_verdict(row, q_value, fdr)
    return row | {"q_value": q_value, "found": verdict == "found", "verdict": verdict}


def _rounded(p: Floats, fdr: float) -> Floats:
    """The p-values; those above the rate, which decide nothing, are rounded up to three digits, so that few are distinct."""
    return np.where(p > fdr, np.ceil(p * 1000) / 1000, p)


def q_values_of(counts: Counter[float]) -> dict[float, float]:
    """The q-value of each p-value (Benjamini and Hochberg), from the number of documents that have it."""
    tests = seen = counts.total()
    q_of: dict[float, float] = {}
    least = 1.0
    for p in sorted(counts, reverse=True):
        least = min(least, p * tests / seen)
        q_of[p] = least
        seen -= counts[p]
    return q_of


def summarise(fs: FileSystem, folder: str, blocks: Sequence[Block], fpr: float, fdr: float) -> Record:
    """The summary of all finished results: documents with a p-value up to `fpr`, and those found at the rate `fdr`."""
    failures: Counter[str] = Counter()
    keys: Counter[str] = Counter()
    sources: dict[str, list[int]] = {}
    named_documents: list[Record] = []
    tests = at_fpr = full = 0
    limit = 0.0
    names = ["id", "file", "p_value", "q_value", "failed", "error", "full", "found", "key_id", "source"]
    for _, columns in _tables(fs, folder, blocks, names):
        failed = columns["failed"].astype(bool)
        failures.update(reason(str(error)) for error in columns["error"][failed])
        p = columns["p_value"][~failed].astype(float)
        tests += len(p)
        full += int(columns["full"][~failed].astype(bool).sum())
        at_fpr += int((p <= fpr).sum())
        discovered = columns["found"].astype(bool)
        limit = max(limit, *columns["p_value"][discovered].astype(float), 0.0)
        keys.update(map(str, columns["key_id"][discovered]))
        for i in np.flatnonzero(discovered):
            document: Record = {name: str(columns[name][i]) for name in ("id", "file", "key_id")}
            named_documents.append(document | {name: float(columns[name][i]) for name in ("p_value", "q_value")})
        named_documents = sorted(named_documents, key=lambda document: document["p_value"])[:_NAMED]
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
        "found_documents": named_documents,
        "found_by_key": dict(keys.most_common()),
        "sources": len(sources),
        "found_by_source": {name: {"documents": sources[name][0], "found": sources[name][1]} for name in named},
    }
