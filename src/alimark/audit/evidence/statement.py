"""Puts evidence together: what was found in which document, what that means, what it does not say, and how to repeat it."""

from __future__ import annotations

import hashlib
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import metadata
from typing import TYPE_CHECKING

from alimark.core._util.json_types import JsonObject
from alimark.core.detection.aligned_results import AlignedDetection
from alimark.core.detection.fields import in_words
from alimark.core.detection.results import Detection
from alimark.errors import AlimarkError

if TYPE_CHECKING:
    from alimark.core.keys.key import Key

FORMAT, ANSWER_FORMAT = "alimark evidence", "alimark answer"
"""The formats of what is signed: evidence of the command line, and answers of a service."""
VERSION = 1
DOES_NOT_SAY = (
    "Whoever has the key can forge the mark, and can mark any text. The evidence is as good as the secrecy of the key.",
    "It does not say who wrote, asked for or published the text.",
    "Where the mark was not found, that does not mean that a person wrote the text: text under another key, by another "
    "model, or after a thorough rewrite looks the same.",
    "The p-value is not the probability that the text is unmarked. It is the share of random keys that score as high.",
    "A single sentence proves nothing. Only the text as a whole, or a passage named here, has a p-value.",
)
_SECRET_FREE = "scheme version decision block_size soft_version splitter embedder fingerprint offsets".split()


@dataclass(frozen=True)
class Examined:
    """A document that was searched for a mark, and the result."""

    name: str
    data: bytes  # the bytes of the document, of which the evidence records size and hash
    detection: Detection
    modified: datetime | None = None  # when the document was last changed, as its file system says


def make_evidence(
    documents: Sequence[Examined], keys: Sequence[Key], *, fpr: float = 0.01, calibration: JsonObject | None = None,
    file: str = "EVIDENCE.json",
) -> JsonObject:  # fmt: skip
    """Returns the evidence about documents, ready for JSON and to be signed.

    Args:
        documents: The documents and their detections.
        keys: The keys that were tried; the evidence holds public parameters of those that were named, never a secret.
        fpr: The false-positive rate of the verdicts.
        calibration: The false-positive rates that `alimark calibrate --json` measured for the key.
        file: The file that the evidence will be in, which it says how to verify.

    Raises:
        AlimarkError: The calibration belongs to another key.
    """
    named = {document.detection.key_id for document in documents}
    if calibration is not None and calibration.get("key_id") not in named:
        raise AlimarkError(
            f"the calibration is of key {calibration.get('key_id')}, which is not in this evidence; run `alimark calibrate "
            "--json` with the key of the evidence"
        )
    return {
        "format": FORMAT,
        "version": VERSION,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "alimark": metadata.version("alimark"),
        "false_positive_rate": fpr,
        "keys": [_public(key) for key in keys if key.id in named],
        "texts": [_text_evidence(document, fpr) for document in documents],
        "calibration": calibration,
        "does_not_say": list(DOES_NOT_SAY),
        "how_to_repeat": [
            f"pip install alimark=={metadata.version('alimark')}",
            f"alimark verify {shlex.join([file, *(document.name for document in documents)])} --key KEY.json --signer "
            "FINGERPRINT",
        ],
    }


def _public(key: Key) -> JsonObject:
    """The public parameters of a key, without tables of learned numbers."""
    public = key.public()
    return {"id": key.id} | {name: public[name] for name in _SECRET_FREE if name in public}


def _text_evidence(document: Examined, fpr: float) -> JsonObject:
    detection = document.detection
    caveat, sentences = "", []
    if isinstance(detection, AlignedDetection):
        caveat = detection.caveat(fpr)
        sentences = _sentences(detection) if detection.verdict(fpr).found else []
    return {
        "document": {
            "name": document.name,
            "size": len(document.data),
            "sha256": hashlib.sha256(document.data).hexdigest(),
            "modified": None if document.modified is None else document.modified.isoformat(timespec="seconds"),
        },
        "statement": f"“{document.name}”: {detection.statement(fpr)}",
        "caveats": [caveat] if caveat else [],
        "in_words": list(in_words(detection)),
        "p_value_explained": p_value_explained(detection),
        "p_value_shown": detection.p_text,
        "sentences": sentences,
        "result": detection.report(fpr),
    }


def _sentences(detection: AlignedDetection) -> list[JsonObject]:
    """The sentences with their probabilities of carrying the mark; of passages, two more sentences on either side."""
    chances = detection.sentence_chances
    near = {n for passage in detection.passages for n in range(passage.first - 2, passage.last + 3)}
    each = enumerate(zip(chances, detection.sentences, strict=False), 1)
    return [
        {"number": number, "chance": round(chance, 3), "text": text}
        for number, (chance, text) in each
        if not near or number in near
    ]


def p_value_explained(detection: Detection) -> str:
    """What the p-value counts, in words."""
    high = detection.above + detection.ties
    if not detection.draws:
        text = "The p-value comes from the distribution that the scheme has for unmarked text."
    elif detection.stopped_early:
        text = f"Of {detection.draws:,} random keys {high:,} scored as high on this very text; then drawing ended."
    elif high:
        text = f"Of {detection.draws:,} random keys {high:,} scored as high on this very text as the key did."
    else:
        text = (
            f"Of {detection.draws:,} random keys none scored as high on this very text as the key did, so that the p-value "
            "is an upper bound."
        )
    if isinstance(detection, AlignedDetection) and len(detection.searched) > 1:
        text += " It is multiplied by 2, because both the whole text and its passages were searched."
    if detection.readings > 1:
        text += f" It is multiplied by {detection.readings}, the number of ways in which the text was read."
    if detection.keys_tried > 1:
        text += f" It is multiplied by {detection.keys_tried:,}, the number of keys that were tried."
    return text
