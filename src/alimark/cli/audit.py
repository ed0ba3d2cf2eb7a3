"""The batch audit: thousands of documents, one line each, resumed where it stopped."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from alimark.cli import show
from alimark.errors import AlimarkError, RecordError

if TYPE_CHECKING:
    from alimark.audit.auditor import Document
    from alimark.detection.stats.p_values import RandomKeys
    from alimark.keys.key import Key

MOST_DRAWS = 1_000_000


def audit(
    keys: list[Key],
    source: Path,
    output: Path,
    settings: RandomKeys,
    fpr: float,
    fdr: float,
    as_json: bool,
    llm_name: str | None = None,
) -> None:
    """Appends one answer a document to `output`, then sums up everything that is there."""
    from alimark._util.jsonl import JsonlWriter, read_jsonl
    from alimark.audit.auditor import Auditor, answer_record, answers

    if not 0 < fdr < 1:
        raise AlimarkError(f"a false discovery rate lies between 0 and 1, not at {fdr}")
    if output.exists() and output.samefile(source):
        raise AlimarkError("--output must be another file than --input")
    total = sum(1 for _ in read_jsonl(source))
    settings = _for_many(settings, total * len(keys), fdr)
    llm = None if llm_name is None else show.load_llm(llm_name)
    auditor = Auditor(keys, settings, show.load_embedder, llm=llm)
    started, done = time.perf_counter(), 0
    ring = None if len(keys) > 1 else keys[0].id
    with JsonlWriter(output, key_id=ring) as writer, show.progress() as bar:
        task = bar.add_task("documents", total=total)
        ticker = show.Ticker()
        for skipped, batch in _batches(source, writer.done):
            bar.advance(task, skipped)
            found = answers([record for _, record in batch], auditor)
            for (own, record), answer in zip(batch, found, strict=True):
                writer.write(answer_record(own, record, answer, keys))
            done += len(batch)
            rate = done / (time.perf_counter() - started)
            bar.update(task, advance=len(batch), description=f"documents ({rate:.1f}/s)")
            ticker.tick(f"{done} of {total} documents, {rate:.1f} a second")
    summary = summarise(output, fpr, fdr)
    seconds = time.perf_counter() - started
    summary |= {
        "documents_now": done,
        "seconds": round(seconds, 2),
        "documents_per_second": round(done / seconds, 2),
        "time_shares": {name: round(spent / seconds, 3) for name, spent in sorted(auditor.times.items())},
    }
    if as_json:
        show.print_json(summary)
    else:
        _print(summary)


def _for_many(settings: RandomKeys, tests: int, fdr: float) -> RandomKeys:
    """Enough random keys that one marked document among all can be discovered, and early stopping to pay for them."""
    wanted = math.ceil(tests / fdr)
    if wanted > MOST_DRAWS:
        show.note(
            f"note: {tests:,} tests would take {wanted:,} random keys to discover a single marked document at a false "
            f"discovery rate of {fdr:g}; {MOST_DRAWS:,} are drawn, enough for {math.ceil(wanted / MOST_DRAWS)} or more"
        )
    draws = max(settings.draws, min(wanted, MOST_DRAWS))
    return replace(settings, draws=draws, stop_after=settings.stop_after or 20)


def _batches(source: Path, done: set[str]) -> Iterator[tuple[int, list[Document]]]:
    """Documents not done yet, in batches, each with the number of lines passed over before it."""
    from alimark._util.jsonl import read_jsonl, unique_id
    from alimark.audit.auditor import in_batches

    skipped = 0
    seen: set[str] = set()

    def open_ones() -> Iterator[Document]:
        nonlocal skipped
        for line, record in read_jsonl(source):
            sound = {"id": f"line-{line}"} if isinstance(record, RecordError) else record
            own = unique_id(sound, line, seen, field="text")
            if own in done:
                skipped += 1
            else:
                yield own, record

    for batch in in_batches(open_ones(), lambda document: document[1]):
        yield skipped, batch
        skipped = 0
    yield skipped, []


def summarise(output: Path, fpr: float, fdr: float) -> dict[str, Any]:
    """Counts over all answers of a file, by p-value and by false discovery rate."""
    from alimark._util.jsonl import read_jsonl
    from alimark.detection.stats.p_values import benjamini_hochberg

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


def _print(summary: dict[str, Any]) -> None:
    at = f"(p <= {summary['fdr_threshold']:.3g})" if summary["found_at_fdr"] else ""
    show.stdout().print(
        f"{summary['documents']} documents, {summary['failed']} failed\n"
        f"{summary['found_at_fpr']} with p <= {summary['fpr']:g} "
        f"(about {summary['fpr'] * (summary['documents'] - summary['failed']):.1f} expected were none marked)\n"
        f"{summary['found_at_fdr']} found at a false discovery rate of {summary['fdr']:g} "
        f"{at}\n"
        f"{summary['documents_now']} documents in {summary['seconds']} s, {summary['documents_per_second']} a second; "
        f"share of time: {json.dumps(summary['time_shares'])}"
    )
