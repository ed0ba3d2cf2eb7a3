"""Verifies evidence: the signature, the signer, the documents, and the results, which are computed again under the key."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING

from alimark.audit.evidence.page import embedded_evidence, render_json, render_page
from alimark.audit.evidence.signing import check_signature, read_jws
from alimark.audit.evidence.statement import ANSWER_FORMAT, FORMAT, VERSION
from alimark.core._util.json_types import JsonObject
from alimark.core.detection.settings import DetectionSettings
from alimark.core.detection.stats.p_values import RandomKeys
from alimark.core.schemes.registry import aligns
from alimark.errors import AlimarkError, RecordError

if TYPE_CHECKING:
    from alimark.core.keys.key import Key
    from alimark.core.schemes.base import Watermark

_SAME_P = 0.1
"""Two p-values are the same where they differ by at most this share; machines round the last digits of scores differently."""


@dataclass(frozen=True)
class EvidenceCheck:
    """One check of a verification."""

    passed: bool
    message: str


def read_evidence(path: Path) -> tuple[JsonObject, list[EvidenceCheck]]:
    """Reads evidence from a .json file or a page, or the signed answer of a service.

    Returns:
        The evidence, and the check that the file, and so what the page shows, is what its signed content gives.

    Raises:
        RecordError: The file holds no evidence.
    """
    try:
        text = path.read_bytes().decode("utf-8")
        if answer := read_jws(text.strip()):
            return answer, [EvidenceCheck(*_answer_in_words(answer))]
        page = path.suffix.lower() in (".html", ".htm")
        evidence = embedded_evidence(text) if page else json.loads(text)
    except (ValueError, RecursionError) as error:
        raise RecordError(f"{path} cannot be read as evidence ({error})") from None
    if not isinstance(evidence, dict) or evidence.get("format") != FORMAT:
        raise RecordError(f"{path} holds no evidence of alimark; name a file that `alimark detect --report` wrote")
    if evidence.get("version") != VERSION:
        raise RecordError(f"{path} is evidence of version {evidence.get('version')}; update alimark")
    render = render_page if page else render_json
    try:
        same = render(evidence) == text
    except (AttributeError, KeyError, TypeError, ValueError):
        same = False
    changed = f"The file was changed after it was signed, or a release other than {evidence.get('alimark')} made it."
    return evidence, [EvidenceCheck(same, "The file is byte by byte what was signed." if same else changed)]


def _answer_in_words(answer: JsonObject) -> tuple[bool, str]:
    """What a service's answer says, and whether the signed content is such an answer."""
    try:
        results = (
            [answer["verdict"]] if "verdict" in answer else [text.get("verdict", "error") for text in answer["results"]]
        )
        rate = answer.get("false_positive_rate", answer.get("fpr"))
        what = f"At a false-positive rate of {rate:g}, {answer['service']} answered on {answer['date']}: {', '.join(results)}."
        return answer["format"] == ANSWER_FORMAT, what
    except (KeyError, TypeError, ValueError, AttributeError):
        return False, "What was signed is not the answer of a detector."


def check_signer(evidence: JsonObject, trusted: Sequence[str]) -> list[EvidenceCheck]:
    """Checks the signature, and that one of the trusted fingerprints signed."""
    signer = check_signature(evidence)
    if signer is None:
        return [EvidenceCheck(False, "The signature does not fit the evidence: it was changed after it was signed.")]
    unknown = (
        ", which is neither this installation nor a signer that you named; ask the signer for the fingerprint by another way, "
        "and give it with --signer"
    )
    known = signer in trusted
    by = EvidenceCheck(known, f"It was signed by {signer}{'' if known else unknown}.")
    return [EvidenceCheck(True, "The signature fits the evidence."), by]


def check_documents(evidence: JsonObject, documents: Mapping[str, bytes]) -> list[EvidenceCheck]:
    """Checks that the documents are those of the evidence, byte by byte, and that none is missing; names do not matter.

    Of a service's answer the documents are texts in UTF-8, where white space at both ends does not count.
    """
    if evidence["format"] == ANSWER_FORMAT:
        results = evidence.get("results", [evidence])
        recorded = {result.get("text_sha256"): f"text {number}" for number, result in enumerate(results, 1)}
        documents = {
            name: data if hashlib.sha256(data).hexdigest() in recorded else data.strip()
            for name, data in documents.items()
        }
    else:
        recorded = {text["document"]["sha256"]: text["document"]["name"] for text in evidence["texts"]}
    checks = []
    missing = dict(recorded)
    for name, data in documents.items():
        known = missing.pop(digest := hashlib.sha256(data).hexdigest(), None) is not None or digest in recorded
        message = f"{name} is {'a document' if known else 'none of the documents'} of the evidence, byte by byte."
        checks.append(EvidenceCheck(known, message))
    absent = "was not checked, because its file was not named or is another one; name the file as well"
    return checks + [
        EvidenceCheck(False, f"“{name}”, which the evidence is about, {absent}.") for name in missing.values()
    ]


def check_results(
    evidence: JsonObject, documents: Mapping[str, tuple[bytes, str]], keys: Sequence[Key], load: Callable[[Key], Watermark]
) -> list[EvidenceCheck]:  # fmt: skip
    """Computes the result of each document again and compares it with that of the evidence, whose signature was checked.

    `documents` are the bytes and the text of each document, by name.
    """
    of_hash = {hashlib.sha256(data).hexdigest(): (name, text) for name, (data, text) in documents.items()}
    of_id = {key.id: key for key in keys}
    checks = []
    for entry in evidence["texts"]:
        result = entry["result"]
        if entry["document"]["sha256"] not in of_hash:
            continue
        name, text = of_hash[entry["document"]["sha256"]]
        key = of_id.get(result["key_id"])
        if key is None:
            message = f"{name}: the evidence is of key {result['key_id']}, not of {', '.join(of_id)}."
            checks.append(EvidenceCheck(False, message))
            continue
        checks.append(_compare(name, result, text, load(key), evidence["false_positive_rate"]))
    return checks


def _compare(name: str, result: JsonObject, text: str, mark: Watermark, fpr: float) -> EvidenceCheck:
    if result.get("restructured"):
        return EvidenceCheck(
            False, f"{name}: a chat model took part in the search, so that it cannot be repeated exactly."
        )
    try:
        recorded = {**result["settings"], "precision": result.get("precision") or "auto"}
        [answer] = mark.detect_batch([text], _settings(recorded, mark.key.scheme))
        if isinstance(answer, AlimarkError):
            raise answer
        if result["keys_tried"] > 1:
            answer = answer.corrected(result["keys_tried"])
        verdict = str(answer.verdict(fpr))
    except AlimarkError as error:
        return EvidenceCheck(False, f"{name}: the result cannot be computed again: {error}")
    same_text = answer.text_sha256 == result["text_sha256"] and list(answer.sentences) == list(result["sentences"])
    tests = answer.keys_tried * answer.readings * answer.searches
    few = 3 * tests / (result["draws"] + 1) if result["draws"] else 0.0
    same_p = abs(answer.p_value - result["p_value"]) <= max(few, _SAME_P * result["p_value"])
    again = f"{name}: computed again under key {answer.key_id}: {verdict}, p {answer.p_text}"
    if same_text and verdict == result["verdict"] and same_p:
        return EvidenceCheck(True, f"{again}.")
    return EvidenceCheck(False, f"{again}; the evidence says {result['verdict']}, p {result['p_value']:.3g}.")


def _settings(recorded: JsonObject, scheme: str) -> RandomKeys:
    """The settings as the evidence records them."""
    kind = DetectionSettings if aligns(scheme) else RandomKeys
    known = {field.name for field in fields(kind)}
    values = {name: value for name, value in recorded.items() if name in known}
    if isinstance(values.get("restructure"), list):
        values["restructure"] = tuple(values["restructure"])
    if values.get("null_file"):
        values["null_file"] = Path(values["null_file"])
    try:
        return kind(**values)
    except TypeError as error:
        raise AlimarkError(f"the settings of the evidence are not known to this release ({error})") from None
