"""The fields of a result in one table, from which records, the answers of an audit and the service's schema are made.

A new field is an attribute of the result, the code that computes it, and a row here.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_type_hints

from alimark.core._util.json_types import JsonObject
from alimark.core.detection.aligned_results import Passage
from alimark.core.detection.results import Detection

Audience = Literal["record", "audit", "service"]
"""Who sees a field: records of single texts, the answers of an audit, and clients of the service with the role "detect"."""
FieldKind = Any
"""`str`, `int`, `float`, `bool`, `list[str]`, a dictionary of the fields of an object, a list with such a dictionary, or
`JsonObject` for an object whose fields are not fixed."""
_PASSAGE = get_type_hints(Passage)


@dataclass(frozen=True)
class ResultField:
    """A field of a result."""

    name: str  # its name in JSON and in Parquet files
    kind: FieldKind
    about: str  # what it says, for the service's schema
    seen_by: tuple[Audience, ...] = ("record", "audit", "service")
    read: Callable[[Any, float], Any] | None = None
    """Returns its value, given a detection and the false-positive rate of the verdict; by default that of the attribute. A
    field whose value is None or empty is left out, and so is one that detections under other schemes do not have."""
    in_words: Callable[[Any], Iterable[str]] = lambda detection: ()
    """Returns what the command line and evidence say of it beside verdict and p-value, a line each."""


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


def _changes(detection: Any, fpr: float = 0.0) -> list[str]:
    from alimark.core.text.disguises import statements

    return statements(getattr(detection, "normalised", {}))


def _restructured(detection: Any, fpr: float) -> JsonObject | None:
    restructured = getattr(detection, "restructured", None)
    return restructured and asdict(restructured) | {"texts": len(restructured.texts)}


def _payload_in_words(detection: Any) -> Iterator[str]:
    if payload := getattr(detection, "payload", None):
        others = ", ".join(f"{value} ({share:.2g})" for value, share in payload.likeliest[1:3] if share > 0.001)
        next_likely = f"; next: {others}" if others else ""
        yield f"payload {payload.value}, right with probability {payload.confidence:.4g}{next_likely}"


def _normalised_in_words(detection: Any) -> Iterator[str]:
    changes = _changes(detection)
    yield from changes
    if changes or detection.readings > 1:
        best = f" (the best of {detection.readings} readings, for which the p-value pays)"
        yield f"the text was read {detection.reading}{best if detection.readings > 1 else ''}"


def _passages_in_words(detection: Any) -> Iterator[str]:
    for passage in getattr(detection, "passages", ()):
        where = f"sentences {passage.first} to {passage.last}, blocks {passage.first_block} to {passage.last_block}"
        yield f"passage: {where}, p {detection.passage_p_text(passage)}"


def _searched_in_words(detection: Any) -> Iterator[str]:
    searched = getattr(detection, "searched", ())
    if len(searched) > 1:
        yield "the text was searched as a whole and for marked passages; the p-value pays for both"
    elif searched == ("excerpt",):
        yield "the text is long, so it was searched for marked passages"


def _restructured_in_words(detection: Any) -> Iterator[str]:
    if restructured := getattr(detection, "restructured", None):
        dropped = ", ".join(f"{count} {why}" for why, count in restructured.dropped.items())
        best = f"restructuring {restructured.best}" if restructured.best else "the text as it is"
        rejected = f" ({dropped})" if dropped else ""
        yield f"{len(restructured.texts)} restructurings by {restructured.llm} tried{rejected}; best: {best}"


def _near_flips_in_words(detection: Any) -> Iterator[str]:
    if count := getattr(detection, "near_flips", 0):
        bits = "1 bit is" if count == 1 else f"{count} bits are"
        yield f"{bits} so close to a tie that another machine may read it otherwise"


FIELDS = (
    ResultField("statement", str, "The result in a sentence or two for people who have no statistics.", ("audit", "service"),
           read=lambda detection, fpr: detection.statement(fpr)),
    ResultField("verdict", str, '"found", "not found" or "too short to tell".', ("service",),
           read=lambda detection, fpr: str(detection.verdict(fpr))),
    ResultField("key_id", str, "The key, of several the likeliest."),
    ResultField("scheme", str, "The scheme of the key."),
    ResultField("score", float, "The statistic in standard deviations above its mean over random keys."),
    ResultField("z", float, "The z-score of the scheme's paper, where there is one."),
    ResultField("p_value", float, "The p-value, corrected for the number of keys, readings and searches."),
    ResultField("p_text", str, "The p-value for people: with `<=` where it is only an upper bound.", ("service",)),
    ResultField("raw", float, "The scheme's statistic.", ("service",)),
    ResultField("draws", int, "The number of random keys drawn."),
    ResultField("keys_tried", int, "The number of keys tried.", ("audit", "service")),
    ResultField("readings", int, "The number of ways in which the text was read.", ("audit",)),
    ResultField("searches", int, "The number of searches of the text.", ("audit",)),
    ResultField("near_flips", int, "Bits of sentences that rounding on another machine might flip.", ("record", "audit"),
           in_words=_near_flips_in_words),
    ResultField("precision", str, "The precision in which the embedder computed.", ("audit",)),
    ResultField("sentence_count", int, "The number of sentences.", read=lambda detection, fpr: len(detection.sentences)),
    ResultField("sentences_needed", int, "The number of sentences that a mark usually needs to be found.", ("service",),
           read=lambda detection, fpr: detection.verdict(fpr).needed),
    ResultField("text_sha256", str, "The SHA-256 of the text.", ("service",)),
    ResultField("payload", {"value": int, "confidence": float}, "The number that the mark carries, where it is found.",
           read=_payload, in_words=_payload_in_words),
    ResultField("normalised", JsonObject, "What normalisation changed in the text, and how the text was read.",
           read=_normalised, in_words=_normalised_in_words),
    ResultField("changes", list[str], "What normalisation changed in the text, a sentence for each kind.", ("service",),
           read=_changes),
    ResultField("passages", [_PASSAGE], "Marked passages of a longer text.", read=_passages, in_words=_passages_in_words),
    ResultField("searched", list[str], "The searches that the p-value pays for: whole, excerpt or both.",
           read=lambda detection, fpr: list(getattr(detection, "searched", ())), in_words=_searched_in_words),
    ResultField("restructured", JsonObject, "A chat model's restructurings of the text.", ("record", "audit"),
           read=_restructured, in_words=_restructured_in_words),
    ResultField("caveat", str, "What has to be said beside `found` about a text that is short.", ("service",),
           read=lambda detection, fpr: detection.caveat(fpr)),
    ResultField("warnings", list[str], "What may weaken the result.",
           read=lambda detection, fpr: list(detection.warnings)),
)  # fmt: skip
"""All fields, in the order in which they are written."""


def fields_for(audience: Audience) -> Iterator[ResultField]:
    """The fields that an audience sees."""
    return (field for field in FIELDS if audience in field.seen_by)


def values(detection: Detection, audience: Audience, fpr: float = 0.01) -> JsonObject:
    """The fields of a detection that an audience sees, ready for JSON; those that are empty are left out.

    Where the audience sees the verdict, AlimarkError is raised as by `Detection.verdict`.
    """
    content = {
        field.name: field.read(detection, fpr) if field.read else getattr(detection, field.name, None)
        for field in fields_for(audience)
    }
    return {name: value for name, value in content.items() if name == "z" or value not in (None, "", [], {})}


def in_words(detection: Detection) -> Iterator[str]:
    """What is to be said of a detection beside its verdict and p-value, a line each."""
    for field in FIELDS:
        yield from field.in_words(detection)
