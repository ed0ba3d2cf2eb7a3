"""alimark verify: checks evidence and signed answers; and writes evidence, for `alimark detect --report`."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from alimark.cli import loading, show, texts
from alimark.errors import AlimarkError

if TYPE_CHECKING:
    from alimark.audit.evidence.verification import EvidenceCheck
    from alimark.core._util.json_types import JsonObject
    from alimark.core.detection.results import Detection
    from alimark.core.keys.key import Key

Answers = dict[str, "list[Detection] | AlimarkError"]
_SUFFIXES = (".html", ".htm", ".json")

EvidenceFile = Annotated[Path, typer.Argument(help="The evidence, .json or .html, or the signed answer of a service.")]
Documents = Annotated[list[str] | None, typer.Argument(help="The documents that the evidence is about.")]
Keys = Annotated[
    list[Path] | None,
    typer.Option("-k", "--key", help="Key file or folder; with it, the results are computed again. May be repeated."),
]
Signers = Annotated[
    list[str] | None,
    typer.Option(
        "--signer",
        help="Fingerprint of a signer that you trust, besides this installation, or the address of a service whose keys you "
        "trust. May be repeated.",
    ),
]
Roots = Annotated[
    list[Path] | None,
    typer.Option("--timestamp-root", help="Root certificate (PEM) of an authority of time stamps. May be repeated."),
]


def verify(
    evidence: EvidenceFile, documents: Documents = None, key: Keys = None, signer: Signers = None, timestamp_root: Roots = None
) -> None:  # fmt: skip
    """Check evidence: the signature, the signer, the documents, and the result, which is computed again.

    Name every document of the evidence: one that is missing is a check that
    fails. Without a key, all but the result is checked, and the output says so.

        alimark verify evidence.json letter.txt -k key.json
        alimark verify evidence.html letter.txt --signer tlmAC-2SRzfpQt...
        alimark verify answer.jws letter.txt --signer https://detector.example

    Exit status: 0 every check passed, 1 a check failed, 2 error.
    """
    checks = _checks(evidence, documents or [], key or [], signer or [], timestamp_root or [])
    console = show.stdout()
    for check in checks:
        console.print(f"{'passed' if check.passed else 'FAILED'}: {check.message}", markup=False, soft_wrap=True)
    if not key:
        show.note("The result was not computed again, because no key was given (-k).")
    raise typer.Exit(0 if all(check.passed for check in checks) else 1)


def _checks(
    path: Path, names: list[str], key_paths: list[Path], signers: list[str], roots: list[Path]
) -> list[EvidenceCheck]:
    """All checks in order; the results are computed only where everything before is right."""
    from alimark.audit.evidence.signing import SigningKey, signing_key_path
    from alimark.audit.evidence.timestamping import check_timestamp
    from alimark.audit.evidence.verification import check_documents, check_results, check_signer, read_evidence
    from alimark.audit.remote import signers_of

    if not names:
        raise AlimarkError(
            "name the documents that the evidence is about, e.g.: alimark verify evidence.json letter.txt"
        )
    content, checks = read_evidence(path)
    trusted = [name for signer in signers for name in (signers_of(signer) if "://" in signer else [signer])]
    trusted += [SigningKey.of_installation().fingerprint] if signing_key_path().exists() else []
    checks += check_signer(content, trusted)
    if roots:
        checks.append(check_timestamp(content, roots))
    elif "timestamp" in content:
        show.note("The time stamp was not checked, because no root certificate was given (--timestamp-root).")
    if not all(check.passed for check in checks):
        return checks  # what was changed is not worth more checks
    data = {name: texts.read_bytes(name) for name in names}
    checks += check_documents(content, data)
    if not key_paths or "texts" not in content or not all(check.passed for check in checks):
        return checks
    from alimark.core.keys.key import load_keys

    contents = {name: (data[name], texts.read_text(name)) for name in names}
    return checks + check_results(content, contents, load_keys(key_paths), loading.load_mark)


# Writing evidence


def check_report(report: Path, names: list[str]) -> None:
    """Raises AlimarkError where the evidence could not be written, before anything is computed."""
    if report.suffix.lower() not in _SUFFIXES:
        raise AlimarkError(f"--report writes .html or .json; {report} has neither suffix")
    if "-" in names:
        texts.read_bytes("-")


def write_report(
    report: Path, answers: Answers, keys: list[Key], fpr: float, calibration: Path | None, timestamp: str | None
) -> None:
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
    content = make_evidence(examined, keys, fpr=fpr, calibration=measured, file=report.name)
    evidence = json.loads(json.dumps(signer.sign(content)))
    if timestamp is not None:
        from alimark.audit.evidence.timestamping import stamped

        evidence = stamped(evidence, timestamp)
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
