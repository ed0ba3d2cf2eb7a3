"""The record of one document in an audit's output. It has a fixed schema; the fields of the input are kept apart."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

from alimark.core._util.jsonl import Record
from alimark.core.detection.results import Detection
from alimark.core.keys.key import Key
from alimark.errors import AlimarkError, RecordError

if TYPE_CHECKING:
    from alimark.audit.auditor import Answer

FIELDS = (
    "id", "verdict", "found", "p_value", "q_value", "key_id", "scheme", "score", "z", "draws", "keys_tried", "near_flips",
    "precision", "sentence_count", "passages", "payload", "restructured", "searched", "normalised", "group", "warnings",
    "failed", "error", "input",
)  # fmt: skip
"""The fields of a record, in order; absent where empty. `verdict`, `found` and `q_value` are written when the run ends."""
_NOT_KEPT = ("text", "prompt", "sentences")
"""Fields of the input that may be long, and are not copied."""


def answer_record(
    document_id: str,
    record: Record | RecordError,
    answer: Answer,
    keys: Sequence[Key],
    field: str = "text",
    fpr: float = 0.01,
) -> Record:
    """Returns the record of a document: the answer, and under `input` the fields of the document's record.

    A field of the input that is called as one of the results, such as `failed` or `p_value`, is therefore never read as one.

    Args:
        document_id: The id of the document, which no other document has.
        record: The document's record, or the error of reading it.
        answer: The detection, or the error that prevented it.
        keys: The keys of the audit.
        field: The field of the record that holds the text, which is not copied.
        fpr: The false-positive rate of the verdict, as long as the other documents are unknown.

    Returns:
        A record with the fields of `FIELDS`.
    """
    if isinstance(answer, AlimarkError):
        key = {"key_id": keys[0].id} if len(keys) == 1 else {}
        content = {"verdict": "failed", "found": False, **key, "failed": True, "error": str(answer)}
    else:
        tried = {} if answer.keys_tried == 1 else {"keys_tried": answer.keys_tried}
        precision = {"precision": answer.precision} if answer.precision else {}
        content = {"verdict": verdict_of(answer, fpr), **answer.record(), **tried, **precision}
    kept = {} if isinstance(record, RecordError) else _kept(record, document_id, field)
    return in_order(content | {"id": document_id, **kept})


def in_order(record: Record) -> Record:
    """The fields of a record in the order of `FIELDS`."""
    return {name: record[name] for name in FIELDS if name in record}


def tests_made(record: Record) -> int:
    """The number of tests by which the p-value of an answer was multiplied: keys, readings of the text and searches."""
    readings = record.get("normalised", {}).get("readings", 1)
    return int(record.get("keys_tried", 1) * readings * max(1, len(record.get("searched", ()))))


def verdict_of(answer: Detection, fpr: float) -> str:
    """The verdict in words; "undecided" where too few random keys were drawn to decide at this rate."""
    try:
        return str(answer.verdict(fpr))
    except AlimarkError:
        return "undecided"


def final_verdict(record: Record, q_value: float, fdr: float) -> str:
    """The verdict of a record once the q-values of all documents are known: found where the q-value is at most `fdr`."""
    if q_value <= fdr:
        return "found"
    before = str(record.get("verdict"))
    if before == "too short to tell" or (before == "undecided" and not record.get("group")):
        return before
    return "not found"


def _kept(record: Record, document_id: str, field: str) -> Record:
    """The fields of the input under `input`, as far as they can be written as JSON."""
    fields = {name: value for name, value in record.items() if name not in (*_NOT_KEPT, field)}
    if fields.get("id") == document_id:
        del fields["id"]
    try:
        json.dumps([fields], allow_nan=False)
    except (ValueError, RecursionError):  # numbers such as 1e999, and fields that are nested too deeply
        fields = {"not_kept": "the fields hold numbers or nesting that cannot be written as JSON"}
    return {"input": fields} if fields else {}
