"""alimark verify: checks evidence that `alimark detect --report` wrote."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from alimark.cli import loading, show, texts
from alimark.errors import AlimarkError

if TYPE_CHECKING:
    from alimark.audit.evidence.verification import EvidenceCheck

EvidenceFile = Annotated[Path, typer.Argument(help="The evidence, .json or .html.")]
Documents = Annotated[list[str] | None, typer.Argument(help="The documents that the evidence is about.")]
Keys = Annotated[
    list[Path] | None,
    typer.Option("-k", "--key", help="Key file or folder; with it, the results are computed again. May be repeated."),
]
Signers = Annotated[
    list[str] | None,
    typer.Option(
        "--signer", help="Fingerprint of a signer that you trust, besides this installation. May be repeated."
    ),
]


def verify(evidence: EvidenceFile, documents: Documents = None, key: Keys = None, signer: Signers = None) -> None:
    """Check evidence: the signature, the signer, the documents, and the result, which is computed again.

    Without a key, all but the result is checked, and the output says so.

        alimark verify evidence.json letter.txt -k key.json
        alimark verify evidence.html letter.txt --signer ed25519:5f1c...

    Exit status: 0 every check passed, 1 a check failed, 2 error.
    """
    checks = _checks(evidence, documents or [], key or [], signer or [])
    console = show.stdout()
    for check in checks:
        console.print(f"{'passed' if check.passed else 'FAILED'}: {check.message}", markup=False, soft_wrap=True)
    if not key:
        show.note("The result was not computed again, because no key was given (-k).")
    raise typer.Exit(0 if all(check.passed for check in checks) else 1)


def _checks(path: Path, names: list[str], key_paths: list[Path], signers: list[str]) -> list[EvidenceCheck]:
    """All checks in order; the results are computed only where everything before is right."""
    from alimark.audit.evidence.signing import SigningKey, signing_key_path
    from alimark.audit.evidence.verification import check_documents, check_results, check_signer, read_evidence

    if not names:
        raise AlimarkError(
            "name the documents that the evidence is about, e.g.: alimark verify evidence.json letter.txt"
        )
    content, checks = read_evidence(path)
    trusted = [*signers, *([SigningKey.of_installation().fingerprint] if signing_key_path().exists() else [])]
    checks += check_signer(content, trusted)
    if not all(check.passed for check in checks):
        return checks  # what was changed is not worth more checks
    data = {name: texts.read_bytes(name) for name in names}
    checks += check_documents(content, data)
    if not key_paths or not all(check.passed for check in checks):
        return checks
    from alimark.core.keys.folder import load_keys

    contents = {name: (data[name], texts.read_text(name)) for name in names}
    return checks + check_results(content, contents, load_keys(key_paths), loading.load_mark)
