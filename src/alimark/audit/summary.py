"""Summarises an audit whose answers lie in a JSONL file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TypedDict

from alimark.audit.answers import FIELDS
from alimark.core._util.jsonl import Record, read_jsonl
from alimark.errors import RecordError

_NAMED = 100
"""Documents that the summary names; those with the smallest p-values come first."""


class NamedDocument(TypedDict):
    """A document in which a mark was found."""

    id: str
    p_value: float
    q_value: float
    key_id: str


class AuditSummary(TypedDict):
    """Counts over all documents of an audit, at a p-value and at a false discovery rate."""

    documents: int
    failed: int
    fpr: float
    found_at_fpr: int
    fdr: float
    found_at_fdr: int
    fdr_threshold: float
    found_documents: list[NamedDocument]


def read_answers(output: Path) -> Iterator[Record]:
    """Yields the answers of a file.

    Raises:
        RecordError: A line is not an answer of this release.
    """
    for number, record in read_jsonl(output):
        if isinstance(record, RecordError) or not record.keys() <= set(FIELDS):
            raise RecordError(
                f"{output}:{number} is not an answer of this release; choose another output file, and documents are "
                "answered again"
            )
        yield record


def summarise(output: Path, fpr: float, fdr: float) -> AuditSummary:
    """Counts the answers of a finished JSONL file: failures, p-values up to `fpr`, and documents found at `fdr`."""
    p_values: list[float] = []
    discoveries: list[NamedDocument] = []
    failed = 0
    for record in read_answers(output):
        if record.get("failed"):
            failed += 1
            continue
        p_values.append(float(record["p_value"]))
        if record.get("found"):
            name, key_id = str(record["id"]), str(record["key_id"])
            discoveries.append(NamedDocument(id=name, p_value=p_values[-1], q_value=record["q_value"], key_id=key_id))
    discoveries.sort(key=lambda document: document["p_value"])
    return {
        "documents": len(p_values) + failed,
        "failed": failed,
        "fpr": fpr,
        "found_at_fpr": sum(p <= fpr for p in p_values),
        "fdr": fdr,
        "found_at_fdr": len(discoveries),
        "fdr_threshold": max((document["p_value"] for document in discoveries), default=0.0),
        "found_documents": discoveries[:_NAMED],
    }
