"""Audits many documents into a JSONL file: one answer per line, resumed where an earlier run stopped."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from alimark.audit.answers import answer_record, final_verdict, in_order
from alimark.audit.auditor import Auditor, Document, answers, in_batches
from alimark.audit.summary import read_answers, summarise
from alimark.audit.templates import MAX_FOUND, MAX_OTHERS, effective_count
from alimark.core._util.jsonl import JsonlWriter, Record, read_jsonl, unique_id
from alimark.core.detection.stats.p_values import RandomKeys, q_values
from alimark.errors import AlimarkError, RecordError

MAX_DRAWS = 1_000_000
"""Random keys drawn for a document, at most."""
STOP_AFTER = 20
"""Drawing stops once so many random keys have scored as high: most documents carry no mark, and few draws show it."""


class Progress(Protocol):
    """What an audit tells while it runs; the command line shows it."""

    def step(self, skipped: int, answered: int) -> None:
        """Called after each batch with the documents that were answered before, and those that were answered now."""


class Silent:
    """Shows no progress."""

    def step(self, skipped: int, answered: int) -> None: ...


@dataclass(frozen=True)
class JsonlDocuments:
    """The documents of a JSONL file, each with an id that no other has; may be read several times.

    A line that is no record is a document, too: its answer is the error. So is a line of more than `limit` bytes.
    """

    source: Path
    field: str = "text"
    limit: int | None = None

    def __iter__(self) -> Iterator[Document]:
        seen: set[str] = set()
        for line, record in read_jsonl(self.source, self.limit):
            named = {"id": f"line-{line}"} if isinstance(record, RecordError) else record
            yield unique_id(named, line, seen, field=self.field), record


def check_rate(fdr: float) -> None:
    """Raises AlimarkError where `fdr` does not lie between 0 and 1."""
    if not 0 < fdr < 1:
        raise AlimarkError(f"a false discovery rate lies between 0 and 1, not at {fdr}")


def enough_draws(settings: RandomKeys, tests: int, fdr: float) -> tuple[RandomKeys, str]:
    """Raises the number of random keys until one marked document among `tests` can be discovered; draws stop early.

    Returns:
        The settings, and a note for the user where the number of random keys reaches its limit, else an empty string.
    """
    wanted = math.ceil(tests / fdr)
    limited = "" if wanted <= MAX_DRAWS else (
        f"{tests:,} tests would take {wanted:,} random keys to discover a single marked document at a false "
        f"discovery rate of {fdr:g}; {MAX_DRAWS:,} are drawn, enough for {math.ceil(wanted / MAX_DRAWS)} or more"
    )  # fmt: skip
    draws = max(settings.draws, min(wanted, MAX_DRAWS))
    return replace(settings, draws=draws, stop_after=settings.stop_after or STOP_AFTER), limited


def audit_documents(
    documents: Iterable[Document],
    auditor: Auditor,
    output: Path,
    *,
    fpr: float,
    fdr: float,
    field: str = "text",
    progress: Progress | None = None,
) -> Record:
    """Appends the answer of every document to a JSONL file and summarises the whole file.

    Documents whose id is in the file already are skipped, so that a run that was stopped can be started again. When all
    are answered, every line gets its `q_value`, `found` and the final `verdict`.

    Args:
        documents: Ids and records; an id must be the same in every run.
        auditor: Holds the keys, the settings and the embedder.
        output: The JSONL file; it is created, or continued where it holds answers under the same keys.
        fpr: The p-value up to which the summary counts a document as found.
        fdr: The false discovery rate of the summary and of `found`.
        field: The field of a record that holds the text.
        progress: Told after each batch how many documents are done.

    Returns:
        The counts of `summarise`, the number of documents that were read, and the time that this run took.

    Raises:
        RecordError: The output holds other lines than answers under these keys.
        AlimarkError: A document has no answer, or more than one, in the output.
    """
    keys, progress = auditor.keys, progress or Silent()
    started, answered = time.perf_counter(), 0
    ids: set[str] = set()
    # With several keys, each document is answered by the likeliest: the file belongs to no single key.
    with JsonlWriter(output, key_id=keys[0].id if len(keys) == 1 else None) as writer:
        for _ in read_answers(output):
            pass  # raises where the file is of an earlier release, before anything is added to it
        for skipped, batch in _batches(_noted(documents, ids), writer.done, field):
            batch_answers = answers([record for _, record in batch], auditor, field)
            for (document_id, record), answer in zip(batch, batch_answers, strict=True):
                writer.write(answer_record(document_id, record, answer, keys, field, fpr))
            answered += len(batch)
            progress.step(skipped, len(batch))
        check_complete(output, ids)
        finish(writer, fdr)
        shared = check_groups(writer, documents, auditor, field, fdr)
    counts = summarise(output, fpr, fdr)
    seconds = time.perf_counter() - started
    return {
        **counts,
        "shared_text": shared,
        "documents_read": len(ids),
        "documents_now": answered,
        "seconds": round(seconds, 2),
        "documents_per_second": round(answered / seconds, 2),
        "time_shares": {name: round(spent / seconds, 3) for name, spent in sorted(auditor.times.items())},
        **first_pass_counts(auditor.tested),
    }


def first_pass_counts(tested: Counter[str]) -> Record:
    """For the summary: the documents of the first pass, and those that went on to the full test; empty where there was none."""
    return {"first_pass": {"documents": tested["first"], "suspicious": tested["full"]}} if tested else {}


def check_complete(output: Path, ids: set[str]) -> None:
    """Checks that every document has exactly one answer in the file.

    Raises:
        AlimarkError: A document has none, or several.
    """
    seen: set[str] = set()
    for record in read_answers(output):
        if str(record["id"]) in seen:
            raise AlimarkError(
                f"{output} holds two answers of the document {record['id']!r}; choose another output file"
            )
        seen.add(str(record["id"]))
    if missing := ids - seen:
        raise AlimarkError(
            f"{len(missing):,} of {len(ids):,} documents have no answer in {output}, among them {min(missing)!r}; start "
            "the same command again"
        )


def finish(writer: JsonlWriter, fdr: float) -> None:
    """Writes the q-value, the flag `found` and the final verdict into every answer of the file."""
    p_values = [float(record["p_value"]) for record in read_answers(writer.path) if not record.get("failed")]
    remaining = iter(q_values(p_values))

    def finished(record: Record) -> Record:
        if record.get("failed"):
            return record
        q_value = float(next(remaining))
        verdict = final_verdict(record, q_value, fdr)
        record.pop("group", None)
        return in_order(record | {"q_value": q_value, "found": verdict == "found", "verdict": verdict})

    writer.rewrite(finished)


def check_groups(
    writer: JsonlWriter, documents: Iterable[Document], auditor: Auditor, field: str, fdr: float
) -> Record:
    """Looks for shared text among the documents that were found, and marks those as undecided that chance can explain.

    Returns:
        For the summary: the documents checked, the number of independent documents that they amount to, their groups, and the
        number of documents that are undecided now.
    """
    candidates = _candidates(writer.path)
    wanted = {record["id"] for records in candidates.values() for record in records}
    texts = {
        document_id: str(record[field])
        for document_id, record in (documents if wanted else ())
        if document_id in wanted and isinstance(record, dict)
    }
    of_document: dict[str, Record] = {}
    groups: list[Record] = []
    checked = unknown = 0
    effective = 0.0
    for key_id, of_key in candidates.items():
        records = [record for record in of_key if record["id"] in texts]
        key_groups = auditor.groups(key_id, [texts[record["id"]] for record in records], records, fdr)
        if key_groups is None:
            unknown += len(records)
            continue
        checked += len(records)
        effective += effective_count(key_groups, len(records))
        for group in key_groups:
            names = [str(records[member]["id"]) for member in group.found]
            of_document |= {records[member]["id"]: group.record() for member in group.undecided}
            groups.append(group.record() | {"undecided": len(group.undecided), "examples": names[:3], "key_id": key_id})
    if of_document:
        writer.rewrite(lambda record: _with_group(record, of_document.get(record["id"])))
    return {
        "checked": checked,
        "not_checked": unknown,
        "effective": round(effective, 1),
        "groups": groups,
        "undecided": len(of_document),
    }


def _candidates(output: Path) -> dict[str, list[Record]]:
    """For each key under which several documents were found: these, and others with small p-values."""
    of_key: dict[str, list[Record]] = {}
    for record in read_answers(output):
        if not record.get("failed"):
            of_key.setdefault(record["key_id"], []).append(record)
    candidates = {}
    for key_id, records in sorted(of_key.items()):
        ordered = sorted(records, key=lambda record: float(record["p_value"]))
        discovered = [record for record in ordered if record["found"]][-MAX_FOUND:]
        if len(discovered) > 1:
            candidates[key_id] = discovered + [record for record in ordered if not record["found"]][:MAX_OTHERS]
    return candidates


def _with_group(record: Record, group: Record | None) -> Record:
    return record if group is None else in_order(record | {"verdict": "undecided", "found": False, "group": group})


def _noted(documents: Iterable[Document], ids: set[str]) -> Iterator[Document]:
    """The documents; their ids are added to a set."""
    for document in documents:
        ids.add(document[0])
        yield document


def _batches(documents: Iterable[Document], done: set[str], field: str) -> Iterator[tuple[int, list[Document]]]:
    """The documents that are not done, in batches, each with the number of those skipped before it."""
    skipped = 0

    def remaining() -> Iterator[Document]:
        nonlocal skipped
        for document in documents:
            if document[0] in done:
                skipped += 1
            else:
                yield document

    for batch in in_batches(remaining(), lambda document: document[1], field):
        yield skipped, batch
        skipped = 0
    yield skipped, []
