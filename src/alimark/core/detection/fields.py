"""The fields of a result in one table, from which records, the answers of an audit and the service's schema are made.

A new field is an attribute of the result, the code that computes it, and a row here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal

from alimark.core._util.json_types import JsonObject
from alimark.core.detection.result_parts import Passage
from alimark.core.detection.results import Detection

Audience = Literal["record", "audit", "service"]
"""Who sees a field: records of single texts, the answers of an audit, and clients of the service with the role "detect"."""
Kind = Any
"""`str`, `int`, `float`, `bool`, `list[str]`, a dictionary of the fields of an object, a list with such a dictionary, or
`JsonObject` for an object whose fields are not fixed."""
_PASSAGE = {field.name: {"int": int, "float": float}[str(field.type)] for field in fields(Passage)}


@dataclass(frozen=True)
class ResultField:
    """A field of a result.

    Args:
        name: Its name in JSON and in Parquet files.
        kind: Its type, see `Kind`.
        about: What it says, for the service's schema.
        read: Returns its value, given a detection and the false-positive rate of the verdict. A field whose value is None or
            empty is left out, and so is one that detections under other schemes do not have.
        seen_by: Who sees it.
    """

    name: str
    kind: Kind
    about: str
    read: Callable[[Any, float], Any]
    seen_by: tuple[Audience, ...] = ("record", "audit", "service")


def _attribute(name: str) -> Callable[[Any, float], Any]:
    return lambda detection, fpr: getattr(detection, name, None)


def _plain(name: str, kind: Kind, about: str, *seen_by: Audience) -> ResultField:
    """A field that is an attribute of the detection."""
    return ResultField(name, kind, about, _attribute(name), seen_by or ("record", "audit", "service"))


def _payload(detection: Any, fpr: float) -> JsonObject | None:
    payload = getattr(detection, "payload", None)
    return payload and payload.record()


def _passages(detection: Any, fpr: float) -> list[JsonObject]:
    return [asdict(passage) for passage in getattr(detection, "passages", ())]


def _normalised(detection: Any, fpr: float) -> JsonObject:
    normalised = getattr(detection, "normalised", {})
    if not normalised and detection.readings == 1:
        return {}
    return {**normalised, "reading": detection.reading, "readings": detection.readings}


def _changes(detection: Any, fpr: float) -> list[str]:
    from alimark.core.text.disguises import statements

    return statements(getattr(detection, "normalised", {}))


def _restructured(detection: Any, fpr: float) -> JsonObject | None:
    restructured = getattr(detection, "restructured", None)
    return restructured and asdict(restructured) | {"texts": len(restructured.texts)}


FIELDS = (
    ResultField(
        "verdict",
        str,
        '"found", "not found" or "too short to tell".',
        lambda detection, fpr: str(detection.verdict(fpr)),
        ("service",),
    ),
    _plain("key_id", str, "The key, of several the likeliest."),
    _plain("scheme", str, "The scheme of the key."),
    _plain("score", float, "The statistic in standard deviations above its mean over random keys."),
    _plain("z", float, "The z-score of the scheme's paper, where there is one."),
    _plain("p_value", float, "The p-value, corrected for the number of keys, readings and searches."),
    _plain("p_text", str, "The p-value for people: with `<=` where it is only an upper bound.", "service"),
    _plain("raw", float, "The scheme's statistic.", "service"),
    _plain("draws", int, "The number of random keys drawn."),
    _plain("keys_tried", int, "The number of keys tried.", "audit", "service"),
    _plain("readings", int, "The number of ways in which the text was read.", "audit"),
    _plain("searches", int, "The number of searches of the text.", "audit"),
    _plain("near_flips", int, "Bits of sentences that rounding on another machine might flip.", "record", "audit"),
    _plain("precision", str, "The precision in which the embedder computed.", "audit"),
    ResultField("sentence_count", int, "The number of sentences.", lambda detection, fpr: len(detection.sentences)),
    ResultField(
        "sentences_needed",
        int,
        "The number of sentences that a mark usually needs to be found.",
        lambda detection, fpr: detection.verdict(fpr).needed,
        ("service",),
    ),
    _plain("text_sha256", str, "The SHA-256 of the text.", "service"),
    ResultField(
        "payload", {"value": int, "confidence": float}, "The number that the mark carries, where it is found.", _payload
    ),
    ResultField(
        "normalised", JsonObject, "What normalisation changed in the text, and how the text was read.", _normalised
    ),
    ResultField(
        "changes",
        list[str],
        "What normalisation changed in the text, a sentence for each kind.",
        _changes,
        ("service",),
    ),
    ResultField("passages", [_PASSAGE], "Marked passages of a longer text.", _passages),
    ResultField(
        "searched",
        list[str],
        "The searches that the p-value pays for: whole, excerpt or both.",
        lambda detection, fpr: list(getattr(detection, "searched", ())),
    ),
    ResultField(
        "restructured", JsonObject, "A chat model's restructurings of the text.", _restructured, ("record", "audit")
    ),
    ResultField(
        "caveat",
        str,
        "What has to be said beside `found` about a text that is short.",
        lambda detection, fpr: detection.caveat(fpr),
        ("service",),
    ),
    ResultField("warnings", list[str], "What may weaken the result.", lambda detection, fpr: list(detection.warnings)),
)
"""All fields, in the order in which they are written."""


def fields_for(audience: Audience) -> Iterator[ResultField]:
    """The fields that an audience sees."""
    return (field for field in FIELDS if audience in field.seen_by)


def values(detection: Detection, audience: Audience, fpr: float = 0.01) -> JsonObject:
    """The fields of a detection that an audience sees, ready for JSON; those that are empty are left out.

    Raises:
        AlimarkError: The audience sees the verdict, and too few random keys were drawn to decide at this rate.
    """
    content = {field.name: field.read(detection, fpr) for field in fields_for(audience)}
    return {name: value for name, value in content.items() if name == "z" or value not in (None, "", [], {})}
