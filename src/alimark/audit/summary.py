"""Sums up an audit: q-values, documents found at a p-value and at a false discovery rate, by key and by source, shared text.

Answers are read one after the other, so that they need not fit into memory.
"""

import math
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from heapq import nsmallest

from alimark.audit.answers import in_order, in_words, least_p_value, with_q_value
from alimark.audit.auditor import Auditor
from alimark.audit.sinks import Sink, WorkBlocks
from alimark.audit.templates import MAX_FOUND, MAX_OTHERS, effective_count
from alimark.audit.worker import Audit, documents_of, reason
from alimark.core._util.jsonl import Record
from alimark.core.detection.statements import counted

_NAMED = 100
"""The number of documents in the summary in which a mark was found; those with the smallest p-values come first."""
_SOURCES = 50  # the number of sources in the summary; those with the most documents found come first


def finish(sink: Sink, works: Sequence[WorkBlocks], fdr: float) -> None:
    """Writes the q-value, the flag `found` and the final verdict into every answer."""
    rows = sink.rows(works, ["p_value", "failed"])
    counts = Counter(_rounded(row["p_value"], fdr) for _, row in rows if not row["failed"])
    q_of = q_values_of(counts)

    def finished(row: Record) -> Record:
        return row if row["failed"] else with_q_value(row, q_of[_rounded(row["p_value"], fdr)], fdr)

    sink.rewrite(works, finished)


def _rounded(p: float, fdr: float) -> float:
    """A p-value; above the rate, where it decides nothing, it is rounded up to three digits, so that few are distinct."""
    return math.ceil(p * 1000) / 1000 if p > fdr else p


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


# Shared text

UNDECIDED = (
    "The document shares so much text with {:,} others that chance marks all of them or none. Check documents with text of "
    "their own, or the part of this one that the others do not have."
)


def check_groups(sink: Sink, works: Sequence[WorkBlocks], audit: Audit, auditor: Callable[[], Auditor]) -> Record:
    """Looks for shared text among the documents that were found, and marks those as undecided that chance can explain.

    Returns:
        For the summary: the documents checked, the number of independent documents that they amount to, their groups, and the
        number of documents that are undecided now.
    """
    candidates = _candidates(sink, works)
    texts = _texts(sink, audit, candidates)
    of_document: dict[Hashable, Record] = {}
    touched: set[WorkBlocks] = set()
    groups: list[Record] = []
    checked = unknown = 0
    effective = 0.0
    for key_id, of_key in candidates.items():
        known = [(work, row) for work, row in of_key if sink.identity(row) in texts]
        rows = [row for _, row in known]
        key_groups = auditor().groups(key_id, [texts[sink.identity(row)] for row in rows], rows, audit.fdr)
        if key_groups is None:
            unknown += len(rows)
            continue
        checked += len(rows)
        effective += effective_count(key_groups, len(rows))
        for group in key_groups:
            names = [str(rows[member]["id"]) for member in group.found]
            of_document |= {sink.identity(rows[member]): group.record() for member in group.undecided}
            touched |= {known[member][0] for member in group.undecided}
            groups.append(group.record() | {"undecided": len(group.undecided), "examples": names[:3], "key_id": key_id})

    def marked(row: Record) -> Record:
        group = of_document.get(sink.identity(row))
        if group is None:
            return row
        words = f"{in_words(row, 'undecided')} {UNDECIDED.format(group['documents'] - 1)}"
        return in_order(row | {"statement": words, "verdict": "undecided", "found": False, "group": group})

    if touched:
        sink.rewrite(list(touched), marked)
    counts = {"checked": checked, "not_checked": unknown, "effective": round(effective, 1)}
    return {**counts, "groups": groups, "undecided": len(of_document)}


_OF_CANDIDATES = (
    "id", "file", "place", "p_value", "found", "failed", "key_id", "keys_tried", "readings", "searches", "normalised",
    "passages",
)  # fmt: skip
Candidate = tuple[WorkBlocks, Record]


def _candidates(sink: Sink, works: Sequence[WorkBlocks]) -> dict[str, list[Candidate]]:
    """For each key under which several documents were found: these, and others with small p-values."""
    discovered, others = dict[str, list[Candidate]](), dict[str, list[Candidate]]()
    for work, row in sink.rows(works, _OF_CANDIDATES):
        if row["failed"]:
            continue
        kept, most, sign = (discovered, MAX_FOUND, -1) if row["found"] else (others, MAX_OTHERS, 1)
        of_key = kept.setdefault(row["key_id"], [])
        of_key.append((work, row))
        if len(of_key) >= 3 * most:
            of_key[:] = _smallest(of_key, most, sign)
    return {
        key_id: _smallest(found, MAX_FOUND, -1)[::-1] + _smallest(others.get(key_id, []), MAX_OTHERS, 1)
        for key_id, found in sorted(discovered.items())
        if len(found) > 1
    }


def _smallest(candidates: list[Candidate], most: int, sign: int) -> list[Candidate]:
    """The candidates with the smallest p-values; with a sign of -1, those with the largest."""
    return nsmallest(most, candidates, key=lambda candidate: sign * float(candidate[1]["p_value"]))


def _texts(sink: Sink, audit: Audit, candidates: dict[str, list[Candidate]]) -> dict[Hashable, str]:
    """The texts of the candidates, which are read again."""
    pairs = [pair for of_key in candidates.values() for pair in of_key]
    wanted = {sink.identity(row) for _, row in pairs}
    texts: dict[Hashable, str] = {}
    for work in dict.fromkeys(work for work, _ in pairs):
        for document in documents_of(audit, sink, work):
            identity = sink.identity({"id": document.id, "file": document.file, "place": document.place})
            text = document.text(audit.text_field)
            if identity in wanted and isinstance(text, str):
                texts[identity] = text
    return texts


# Counts


def summarise(sink: Sink, works: Sequence[WorkBlocks], fpr: float, fdr: float) -> Record:
    """The counts of all answers: documents with a p-value up to `fpr`, and those found at the rate `fdr`."""
    failures, keys, verdicts = Counter[str](), Counter[str](), Counter[str]()
    sources: dict[str, list[int]] = {}
    discoveries: list[Record] = []
    failed: list[Record] = []
    tests = at_fpr = full = 0
    limit = 0.0
    names = ["id", "file", "p_value", "q_value", "failed", "error", "full", "found", "key_id", "source", "verdict"]
    names += ["draws", "keys_tried", "readings", "searches"]
    for _, row in sink.rows(works, names):
        counts = sources.setdefault(row.get("source") or row["file"], [0, 0])
        counts[0] += 1
        verdicts[row["verdict"]] += 1
        if row["failed"]:
            failures[reason(row["error"])] += 1
            failed += [{name: row[name] for name in ("id", "file", "error")}] if len(failed) < _NAMED else []
            continue
        tests += 1
        full += row["full"]
        at_fpr += row["p_value"] <= fpr
        if row["found"]:
            counts[1] += 1
            keys[row["key_id"]] += 1
            limit = max(limit, row["p_value"])
            discovery = {name: row[name] for name in ("id", "file", "p_value", "q_value", "key_id")}
            discoveries.append(discovery | {"at_most": row["p_value"] <= least_p_value(row)})
            if len(discoveries) >= 2 * _NAMED:
                discoveries = _best(discoveries)
    named = sorted(sources, key=lambda name: (-sources[name][1], name))[:_SOURCES]
    return {
        "statement": _statement(verdicts, tests, fdr),
        "documents": tests + failures.total(),
        "verdicts": dict(verdicts.most_common()),
        "failed": failures.total(),
        "failures": dict(failures.most_common()),
        "failed_documents": failed,
        "tested_in_full": full,
        "fpr": fpr,
        "found_at_fpr": at_fpr,
        "fdr": fdr,
        "found_at_fdr": keys.total(),
        "fdr_threshold": limit,
        "found_documents": _best(discoveries),
        "found_by_key": dict(keys.most_common()),
        "sources": len(sources),
        "found_by_source": {name: {"documents": sources[name][0], "found": sources[name][1]} for name in named},
    }


def _statement(verdicts: Counter[str], tests: int, fdr: float) -> str:
    """What an audit says, in sentences for people who have no statistics."""
    found, tested = verdicts["found"], f"the {tests:,} documents" if tests != 1 else "the document"
    if found and tests == 1:
        text = "The mark is in the document."
    elif found:
        text = f"The mark is in {found:,} of {tested}. Of those named, at most {100 * fdr:g}% are expected to be wrong."
    else:
        text = f"The mark was not found in {tested}. That does not mean that people wrote {'them' if tests != 1 else 'it'}."
    if short := verdicts["too short to tell"]:
        text += f" {short:,} {'is' if short == 1 else 'are'} too short to tell."
    if undecided := verdicts["undecided"]:
        text += f" {undecided:,} {'is' if undecided == 1 else 'are'} undecided: chance could explain what was seen."
    if failed := verdicts["failed"]:
        text += f" {counted(failed, 'document')} could not be tested."
    return text


def _best(discoveries: list[Record]) -> list[Record]:
    return nsmallest(_NAMED, discoveries, key=lambda document: float(document["p_value"]))
