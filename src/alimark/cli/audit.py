"""The batch audit: thousands of documents under one key, one line each, resumed where it stopped."""

from __future__ import annotations

import json
import math
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from alimark.cli import show
from alimark.errors import AlimarkError, RecordError, TextError

if TYPE_CHECKING:
    from alimark.detection import Detection
    from alimark.key import Key
    from alimark.llm.base import LLM
    from alimark.records import Record
    from alimark.significance import RandomKeys
    from alimark.watermark import Watermark

BATCH_CHARACTERS = 400_000  # enough units to fill embedding batches, little to lose when interrupted
BATCH_DOCUMENTS = 64
MOST_DRAWS = 1_000_000
_NOT_KEPT = ("text", "prompt", "sentences")


def audit(
    key: Key,
    source: Path,
    output: Path,
    settings: RandomKeys,
    fpr: float,
    fdr: float,
    as_json: bool,
    llm_name: str | None = None,
) -> None:
    """Appends one answer a document to `output`, then sums up everything that is there."""
    from alimark.records import JsonlWriter, read_jsonl

    if not 0 < fdr < 1:
        raise AlimarkError(f"a false discovery rate lies between 0 and 1, not at {fdr}")
    if output.exists() and output.samefile(source):
        raise AlimarkError("--output must be another file than --input")
    total = sum(1 for _ in read_jsonl(source))
    settings = _for_many(settings, total, fdr)
    mark = show.load_mark(key)
    llm = None if llm_name is None else show.load_llm(llm_name)
    times: Counter[str] = Counter()
    started, done = time.perf_counter(), 0
    with JsonlWriter(output, key_id=key.id) as writer, show.progress() as bar:
        task = bar.add_task("documents", total=total)
        ticker = show.Ticker()
        for skipped, batch in _batches(source, writer.done):
            bar.advance(task, skipped)
            for record in _answer(batch, mark, settings, times, llm):
                writer.write(record)
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
        "time_shares": {name: round(spent / seconds, 3) for name, spent in sorted(times.items())},
    }
    if as_json:
        show.print_json(summary)
    else:
        _print(summary)


def _for_many(settings: RandomKeys, documents: int, fdr: float) -> RandomKeys:
    """Enough random keys that one marked document among all can be discovered, and early stopping to pay for them."""
    wanted = math.ceil(documents / fdr)
    if wanted > MOST_DRAWS:
        show.note(
            f"note: {documents:,} documents would take {wanted:,} random keys to discover a single marked one at a false "
            f"discovery rate of {fdr:g}; {MOST_DRAWS:,} are drawn, enough for {math.ceil(wanted / MOST_DRAWS)} or more"
        )
    draws = max(settings.draws, min(wanted, MOST_DRAWS))
    return replace(settings, draws=draws, stop_after=settings.stop_after or 20)


Document = tuple[str, "Record | RecordError"]


def _batches(source: Path, done: set[str]) -> Iterator[tuple[int, list[Document]]]:
    """Documents not done yet, in batches, each with the number of lines passed over before it."""
    from alimark.records import read_jsonl, unique_id

    batch: list[Document] = []
    size = skipped = 0
    seen: set[str] = set()
    for line, record in read_jsonl(source):
        sound = {"id": f"line-{line}"} if isinstance(record, RecordError) else record
        own = unique_id(sound, line, seen, field="text")
        if own in done:
            skipped += 1
            continue
        batch.append((own, record))
        size += 0 if isinstance(record, RecordError) else len(str(record.get("text", "")))
        if size >= BATCH_CHARACTERS or len(batch) >= BATCH_DOCUMENTS:
            yield skipped, batch
            batch, size, skipped = [], 0, 0
    yield skipped, batch


def _answer(
    batch: list[Document],
    mark: Watermark,
    settings: RandomKeys,
    times: Counter[str],
    llm: LLM | None,
) -> Iterator[Record]:
    sound = [
        (own, record["text"]) for own, record in batch if not isinstance(record, RecordError) and not _flaw(record)
    ]
    answers: dict[str, Detection | AlimarkError] = {own: flaw for own, record in batch if (flaw := _flaw(record))}
    found = _detect([text for _, text in sound], mark, settings, times, llm)
    answers |= dict(zip((own for own, _ in sound), found, strict=True))
    for own, record in batch:
        answer = answers[own]
        kept = {} if isinstance(record, RecordError) else {k: v for k, v in record.items() if k not in _NOT_KEPT}
        if isinstance(answer, AlimarkError):
            yield kept | {"id": own, "key_id": mark.key.id, "failed": True, "error": str(answer)}
        else:
            yield kept | {"id": own, **answer.record()}


def _flaw(record: Record | RecordError) -> RecordError | None:
    """What keeps a line from being detected, if anything."""
    if isinstance(record, RecordError):
        return record
    if not isinstance(record.get("text"), str):
        return RecordError("the record has no `text`, or one that is not a string")
    return None


def _detect(
    texts: list[str],
    mark: Watermark,
    settings: RandomKeys,
    times: Counter[str],
    llm: LLM | None,
) -> list[Detection | AlimarkError]:
    try:
        return list(mark.detect_batch(texts, settings, llm=llm, times=times))
    except AlimarkError:
        raise
    except Exception as error:  # one document that nobody thought of must not end an audit of millions
        if len(texts) == 1:
            return [TextError(f"unexpected {type(error).__name__}: {error}")]
        return [answer for text in texts for answer in _detect([text], mark, settings, times, llm)]


def summarise(output: Path, fpr: float, fdr: float) -> dict[str, Any]:
    """Counts over all answers of a file, by p-value and by false discovery rate."""
    from alimark.records import read_jsonl
    from alimark.significance import benjamini_hochberg

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
