"""The answer about one document: its schema, which JSONL and Parquet outputs share, and its verdict."""

from __future__ import annotations

import json
from functools import cache
from typing import TYPE_CHECKING, Any

from alimark.audit.files import arrow
from alimark.core._util.json_types import JsonObject
from alimark.core._util.jsonl import Record
from alimark.core.detection.fields import FIELDS, FieldKind, fields_for, values
from alimark.core.detection.results import Detection
from alimark.core.detection.statements import statement
from alimark.errors import AlimarkError

if TYPE_CHECKING:
    from pyarrow import Schema

SCHEMA: dict[str, FieldKind] = {
    "id": str, "statement": str, "file": str, "place": int, "source": str, "verdict": str, "found": bool, "q_value": float,
    **{field.name: field.kind for field in FIELDS if field in fields_for("audit")},
    "full": bool, "group": JsonObject, "failed": bool, "error": str, "input": JsonObject,
}  # fmt: skip
"""The fields of an answer in order, with their kinds; absent where empty. `file` and `place` say where the document is: the
byte of a JSONL file, the row of a Parquet file, or -1 for a whole file; `source` is what `--by` names; `full` whether it
is of the full test. `q_value` is written when the run ends, and `verdict` and `found` are final then."""
_NOT_KEPT = ("text", "prompt", "sentences")  # fields of the input that may be long, and are not copied


def in_order(row: Record) -> Record:
    """The fields of an answer in the order of the schema."""
    return {name: row[name] for name in SCHEMA if name in row}


def answer_fields(answer: Detection | AlimarkError, fpr: float) -> Record:
    """What an answer says of a document; `fpr` decides its verdict as long as the other documents are unknown."""
    if isinstance(answer, AlimarkError):
        return {"verdict": "failed", "found": False, "failed": True, "error": str(answer)}
    try:
        verdict = str(answer.verdict(fpr))
    except AlimarkError:  # too few random keys were drawn to decide at this rate
        verdict = "undecided"
    return {"verdict": verdict, "found": False, "failed": False, **values(answer, "audit", fpr)}


def tests_made(row: Record) -> int:
    """The number of tests by which the p-value of an answer was multiplied: keys, readings of the text and searches."""
    return int(row["keys_tried"] * row["readings"] * row["searches"])


def with_q_value(row: Record, q_value: float, fdr: float) -> Record:
    """An answer with its final verdict, once the q-values of all documents are known: found where it is at most `fdr`."""
    verdict = row["verdict"]
    if q_value <= fdr:
        verdict = "found"
    elif verdict == "found" or (verdict == "undecided" and row.get("group")):
        verdict = "not found"
    words = row["statement"] if verdict == row["verdict"] else in_words(row, verdict)
    final = {"statement": words, "q_value": q_value, "found": verdict == "found", "verdict": verdict}
    return in_order({name: value for name, value in row.items() if name != "group"} | final)


def in_words(row: Record, verdict: str) -> str:
    """What an answer says of its document with a verdict, in a sentence or two."""
    at_most = row["p_value"] <= least_p_value(row)
    passages = [(passage["first"], passage["last"]) for passage in row.get("passages") or ()]
    return statement(
        verdict, row["p_value"], at_most=at_most, keys_tried=row["keys_tried"], key_id=row["key_id"], passages=passages
    )  # fmt: skip


def least_p_value(row: Record) -> float:
    """The smallest p-value that the random keys behind an answer allow."""
    least: float = min(1.0, tests_made(row) / (row["draws"] + 1))
    return least * (1 + 1e-9)


def kept_input(record: Record, document_id: str, field: str) -> Record:
    """The fields of the document's record under `input`, as far as they can be written as JSON.

    A field of the input that is called as one of the results, such as `failed` or `p_value`, is therefore never read as one.
    """
    kept = {name: value for name, value in record.items() if name not in (*_NOT_KEPT, field)}
    if kept.get("id") == document_id:
        del kept["id"]
    try:
        json.dumps([kept], allow_nan=False)
    except (ValueError, RecursionError):  # numbers such as 1e999, and fields that are nested too deeply
        kept = {"not_kept": "the fields hold numbers or nesting that cannot be written as JSON"}
    return {"input": kept} if kept else {}


# Parquet


@cache
def parquet_schema() -> Schema:
    """The columns of a Parquet file of answers. Objects whose fields are not fixed are JSON texts."""
    pa = arrow()
    scalars = {str: pa.string(), int: pa.int64(), float: pa.float64(), bool: pa.bool_(), JsonObject: pa.string()}

    def column(kind: FieldKind) -> Any:
        if isinstance(kind, dict):
            return pa.struct([(name, column(inner)) for name, inner in kind.items()])
        if isinstance(kind, list):
            return pa.list_(column(kind[0]))
        return pa.list_(pa.string()) if kind == list[str] else scalars[kind]

    return pa.schema([(name, column(kind)) for name, kind in SCHEMA.items()])


_OBJECTS = [name for name, kind in SCHEMA.items() if kind == JsonObject]


def to_parquet(row: Record) -> Record:
    """An answer as a row of a Parquet file: UTF-8 has no halves of surrogate pairs, which are written as escapes."""
    packed = row | {name: json.dumps(row[name]) for name in _OBJECTS if name in row}
    return {
        name: value.encode("utf-8", "backslashreplace").decode() if isinstance(value, str) else value
        for name, value in packed.items()
    }


def from_parquet(row: Record) -> Record:
    """The answer that a row of a Parquet file holds, without what is empty."""
    packed = {name: value for name, value in row.items() if value is not None}
    return packed | {name: json.loads(packed[name]) for name in _OBJECTS if name in packed}
