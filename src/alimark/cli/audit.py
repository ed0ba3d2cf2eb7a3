"""The batch audit: thousands of documents under one key, one line each, resumed where it stopped."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from alimark.cli import show
from alimark.errors import AlimarkError, RecordError

if TYPE_CHECKING:
    from alimark.detection import Detection
    from alimark.detector import DetectionSettings
    from alimark.embed import Embedder
    from alimark.key import Key
    from alimark.records import Record

BATCH_CHARACTERS = 400_000  # enough units to fill embedding batches, little to lose when interrupted
BATCH_DOCUMENTS = 64


def audit(
    key: Key, source: Path, output: Path, settings: DetectionSettings, fpr: float, fdr: float, as_json: bool
) -> None:
    """Appends one answer a document to `output`, then sums up everything that is there."""
    from alimark.records import JsonlWriter, read_jsonl

    embedder = show.load_embedder(key.embedder)
    total = sum(1 for _ in read_jsonl(source))
    times: Counter[str] = Counter()
    started, done = time.perf_counter(), 0
    with JsonlWriter(output) as writer, show.progress() as bar:
        task = bar.add_task("documents", total=total)
        for skipped, batch in _batches(source, writer.done):
            bar.advance(task, skipped)
            for record in _answer(batch, key, embedder, settings, times):
                writer.write(record)
            done += len(batch)
            bar.update(
                task,
                advance=len(batch),
                description=f"documents ({done / (time.perf_counter() - started):.1f}/s)",
            )
    summary = summarise(output, fpr, fdr)
    seconds = time.perf_counter() - started
    summary |= {
        "documents_now": done,
        "seconds": round(seconds, 2),
        "documents_per_second": round(done / seconds, 2),
        "time_shares": {name: round(spent / seconds, 3) for name, spent in sorted(times.items())},
    }
    if as_json:
        show.print_json(summary)
    else:
        _print(summary)


Document = tuple[str, "Record | RecordError"]


def _batches(source: Path, done: set[str]) -> Iterator[tuple[int, list[Document]]]:
    """Documents not done yet, in batches, each with the number of lines passed over before it."""
    from alimark.records import read_jsonl, record_id

    batch: list[Document] = []
    size = skipped = 0
    seen = set(done)
    for line, record in read_jsonl(source):
        own = f"line-{line}" if isinstance(record, RecordError) else record_id(record, field="text")
        if own in seen:
            skipped += 1
            continue
        seen.add(own)
        batch.append((own, record))
        size += 0 if isinstance(record, RecordError) else len(str(record.get("text", "")))
        if size >= BATCH_CHARACTERS or len(batch) >= BATCH_DOCUMENTS:
            yield skipped, batch
            batch, size, skipped = [], 0, 0
    yield skipped, batch


def _answer(
    batch: list[Document], key: Key, embedder: Embedder, settings: DetectionSettings, times: Counter[str]
) -> Iterator[Record]:
    from alimark.detector import detect_batch

    sound = [(own, record) for own, record in batch if not isinstance(record, RecordError)]
    texts = [record["text"] if isinstance(record.get("text"), str) else "" for _, record in sound]
    answers: dict[str, Any] = {own: record for own, record in batch if isinstance(record, RecordError)}
    found = detect_batch(texts, key, embedder, settings, times=times)
    answers |= {own: answer for (own, _), answer in zip(sound, found, strict=True)}
    for own, record in batch:
        answer: Detection | AlimarkError = answers[own]
        kept = (
            {}
            if isinstance(record, RecordError)
            else {k: v for k, v in record.items() if k not in ("text", "prompt", "sentences")}
        )
        if isinstance(answer, AlimarkError):
            yield kept | {"id": own, "key_id": key.id, "failed": True, "error": str(answer)}
        else:
            yield kept | {"id": own, **answer.record()}


def summarise(output: Path, fpr: float, fdr: float) -> dict[str, Any]:
    """Counts over all answers of a file, by p-value and by false discovery rate."""
    from alimark.records import read_jsonl
    from alimark.significance import benjamini_hochberg

    p_values, failed = [], 0
    for _, record in read_jsonl(output):
        if isinstance(record, RecordError) or record.get("failed"):
            failed += 1
        else:
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


def _print(summary: dict[str, Any]) -> None:
    show.stdout().print(
        f"{summary['documents']} documents, {summary['failed']} failed\n"
        f"{summary['found_at_fpr']} with p <= {summary['fpr']:g} "
        f"(about {summary['fpr'] * (summary['documents'] - summary['failed']):.1f} expected were none marked)\n"
        f"{summary['found_at_fdr']} found at a false discovery rate of {summary['fdr']:g} "
        f"(p <= {summary['fdr_threshold']:.3g})\n"
        f"{summary['documents_now']} documents in {summary['seconds']} s, {summary['documents_per_second']} a second; "
        f"share of time: {json.dumps(summary['time_shares'])}"
    )
