"""Summarises an audit whose answers lie in a JSONL file."""

from __future__ import annotations

from pathlib import Path
from typing import TypedDict

from alimark._util.jsonl import read_jsonl
from alimark.detection.stats.p_values import benjamini_hochberg
from alimark.errors import RecordError


class AuditSummary(TypedDict):
    """Counts over all documents of an audit, at a p-value and at a false discovery rate."""

    documents: int
    failed: int
    fpr: float
    found_at_fpr: int
    fdr: float
    found_at_fdr: int
    fdr_threshold: float


def summarise(output: Path, fpr: float, fdr: float) -> AuditSummary:
    """Counts the answers of a JSONL file: failures, p-values up to `fpr`, and discoveries at `fdr` (Benjamini-Hochberg)."""
    p_values, failed = [], 0
    for _, record in read_jsonl(output):
        if isinstance(record, RecordError) or record.get("failed"):
            failed += 1
        elif "p_value" in record:
            p_values.append(float(record["p_value"]))
    discovered, threshold = benjamini_hochberg(p_values, fdr)
    return {
        "documents": len(p_values) + failed,
        "failed": failed,
        "fpr": fpr,
        "found_at_fpr": sum(p <= fpr for p in p_values),
        "fdr": fdr,
        "found_at_fdr": int(discovered.sum()),
        "fdr_threshold": threshold,
    }
