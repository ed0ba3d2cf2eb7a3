"""Writes signed evidence for `alimark detect --report`."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from alimark.cli import show, texts
from alimark.errors import AlimarkError

if TYPE_CHECKING:
    from alimark.core._util.json_types import JsonObject
    from alimark.core.detection.results import Detection
    from alimark.core.keys.key import Key

Answers = dict[str, "list[Detection] | AlimarkError"]
_SUFFIXES = (".html", ".htm", ".json")


def check(report: Path, names: list[str]) -> None:
    """Raises AlimarkError where the evidence could not be written, before anything is computed."""
    if report.suffix.lower() not in _SUFFIXES:
        raise AlimarkError(f"--report writes .html or .json; {report} has neither suffix")
    if "-" in names:
        texts.read_bytes("-")


def write(report: Path, answers: Answers, keys: list[Key], fpr: float, calibration: Path | None) -> None:
    """Writes signed evidence about all texts that could be searched, and says who signed it."""
    from alimark.audit.evidence.page import render_json, render_page
    from alimark.audit.evidence.signing import SigningKey
    from alimark.audit.evidence.statement import Examined, make_evidence
    from alimark.core._util.files import write_whole

    examined = []
    for name, answer in answers.items():
        if not isinstance(answer, AlimarkError):
            changed = datetime.fromtimestamp(Path(name).stat().st_mtime, UTC)
            examined.append(Examined(Path(name).name, texts.read_bytes(name), answer[0], changed))
    if not examined:
        show.note(f"note: {report} is not written, because no text could be searched")
        return
    measured = None if calibration is None else _calibration(calibration)
    signer = SigningKey.of_installation()
    evidence = json.loads(json.dumps(signer.sign(make_evidence(examined, keys, fpr=fpr, calibration=measured))))
    render = render_json if report.suffix.lower() == ".json" else render_page
    write_whole(report, render(evidence).encode())
    show.note(f"wrote {report}, signed by {signer.fingerprint}; give this fingerprint to those who verify it")


def _calibration(path: Path) -> JsonObject:
    """The first length of a calibration that `alimark calibrate --json` printed."""
    try:
        content = json.loads(path.read_bytes())
        first: JsonObject = content[0] if isinstance(content, list) else content
        complete = {"key_id", "texts", "sentences", "levels", "this_key", "interval_99"} <= first.keys()
    except (ValueError, LookupError, AttributeError):
        complete = False
    if not complete:
        raise AlimarkError(f"{path} is not the output of `alimark calibrate --json`; run it with the same key")
    return first
