"""Evidence: signed, rendered as a page, and verified; verification fails on any changed byte, another key or document."""

import base64
import json
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from time_stamps import authority, certificate

from alimark import AliMark
from alimark.audit.evidence.page import embedded_evidence, render_json, render_page
from alimark.audit.evidence.signing import SigningKey, check_signature, fingerprint, fingerprint_of_jwk, read_jws
from alimark.audit.evidence.statement import Examined, make_evidence
from alimark.audit.evidence.timestamping import check_timestamp, stamped
from alimark.audit.evidence.verification import (
    EvidenceCheck,
    check_documents,
    check_results,
    check_signer,
    read_evidence,
)
from alimark.core._util.json_types import JsonObject
from alimark.errors import AlimarkError, RecordError
from fixed_texts import EMBEDDER, fixed_key, unmarked, written
from rough_embedder import RoughEmbedder

MARK = AliMark(fixed_key(0), embedder=EMBEDDER)
MARKED = " ".join(written(MARK.key))
OTHER = " ".join(unmarked(12, 3))


@pytest.fixture(scope="module")
def signer(tmp_path_factory: pytest.TempPathFactory) -> SigningKey:
    return SigningKey.of_installation(tmp_path_factory.mktemp("keys") / "signing-key.pem")


@pytest.fixture(scope="module")
def evidence(signer: SigningKey) -> JsonObject:
    texts = {"<b>marked</b>.txt": MARKED, "other.txt": OTHER}
    examined = [Examined(name, text.encode(), MARK.detect(text)) for name, text in texts.items()]
    signed: JsonObject = json.loads(json.dumps(signer.sign(make_evidence(examined, [MARK.key]))))
    return signed


def passed(checks: list[EvidenceCheck]) -> list[bool]:
    return [check.passed for check in checks]


def test_the_statement_and_what_it_does_not_say(evidence: JsonObject) -> None:
    first, second = evidence["texts"]
    assert first["statement"] == f"“<b>marked</b>.txt”: {first['result']['statement']}"
    assert "is in the text. By chance a text would look like this at most once in 1,000." in first["statement"]
    assert "none scored as high" in first["p_value_explained"]
    assert "not found:" in second["statement"]
    assert "does not mean that a person wrote" in second["statement"]
    assert any("can forge" in sentence for sentence in evidence["does_not_say"])
    assert MARK.key.id == evidence["keys"][0]["id"]
    assert first["document"]["size"] == len(MARKED)
    page = render_page(evidence)
    assert "<b>marked" not in page
    assert embedded_evidence(page) == evidence
    assert "Not measured" in page


def test_a_signature_fits_only_what_was_signed(signer: SigningKey, evidence: JsonObject) -> None:
    assert check_signature(evidence) == signer.fingerprint
    assert passed(check_signer(evidence, [signer.fingerprint])) == [True, True]
    assert passed(check_signer(evidence, [])) == [True, False]
    assert passed(check_signer(evidence | {"date": "2026"}, [signer.fingerprint])) == [False]
    assert check_signature(evidence | {"version": True}) is None, "not the same, although Python takes it for 1"
    assert check_signature(evidence | {"jws": evidence["jws"] + "="}) is None
    assert check_signature({}) is None


@pytest.mark.filterwarnings("ignore:EdDSA is deprecated")
def test_another_library_reads_what_was_signed(signer: SigningKey, evidence: JsonObject) -> None:
    jwk, jws = pytest.importorskip("joserfc.jwk"), pytest.importorskip("joserfc.jws")
    key = jwk.OKPKey.import_key(signer.jwk)
    content = jws.deserialize_compact(evidence["jws"], key, algorithms=["EdDSA"]).payload
    assert json.loads(content)["texts"] == evidence["texts"]
    assert key.thumbprint() == signer.fingerprint
    place = len(evidence["jws"]) // 2
    changed = evidence["jws"][:place] + ("A" if evidence["jws"][place] != "A" else "B") + evidence["jws"][place + 1 :]
    with pytest.raises(pytest.importorskip("joserfc.errors").BadSignatureError):
        jws.deserialize_compact(changed, key, algorithms=["EdDSA"])


def test_keys_of_low_order_are_refused(signer: SigningKey) -> None:
    """Under the neutral element as the key, the neutral element and zero are a signature of everything."""
    neutral = (1).to_bytes(32, "little")
    public = {"kty": "OKP", "crv": "Ed25519", "x": base64url(neutral)}
    parts = [
        {"alg": "EdDSA", "jwk": public, "kid": fingerprint(neutral)},
        {"signer": {"fingerprint": fingerprint(neutral)}},
    ]
    signed = ".".join(base64url(json.dumps(part).encode()) for part in parts)
    forged = f"{signed}.{base64url(neutral + bytes(32))}"
    Ed25519PublicKey.from_public_bytes(neutral).verify(neutral + bytes(32), signed.encode())  # the library takes it
    assert read_jws(forged) is None
    assert read_jws(signer.sign({})["jws"]) is not None
    for order_8 in (
        "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac037a",
        "ec" + 30 * "ff" + "7f",
        64 * "0",
    ):
        with pytest.raises(ValueError, match="no public key"):
            fingerprint_of_jwk(public | {"x": base64url(bytes.fromhex(order_8))})


def base64url(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def test_a_time_stamp_of_a_local_authority(tmp_path: Path, signer: SigningKey) -> None:
    pytest.importorskip("rfc3161_client")
    with authority(tmp_path) as (address, root):
        signed = stamped(signer.sign({"a": 1}), address)
        assert check_signature(signed) == signer.fingerprint
        assert passed([check_timestamp(signed, [root])]) == [True]
        other = signer.sign({"a": 2}) | {"timestamp": signed["timestamp"]}
        assert passed([check_timestamp(other, [root]), check_timestamp(signer.sign({}), [root])]) == [False, False]
        stranger = tmp_path / "stranger"
        stranger.mkdir()
        assert passed([check_timestamp(signed, [certificate(stranger)])]) == [False]
    with pytest.raises(AlimarkError, match="gave no time stamp"):
        stamped(signed, address)


@pytest.mark.parametrize("suffix", [".json", ".html"])
def test_every_changed_byte_is_noticed(tmp_path: Path, signer: SigningKey, evidence: JsonObject, suffix: str) -> None:
    """Bytes all over the file; each is replaced by another letter, or by a blank."""
    whole = (render_json if suffix == ".json" else render_page)(evidence).encode()
    path = tmp_path / f"evidence{suffix}"
    path.write_bytes(whole)
    content, checks = read_evidence(path)
    assert passed(checks + check_signer(content, [signer.fingerprint])) == [True, True, True]
    for place in range(0, len(whole), len(whole) // 150):
        changed = bytearray(whole)
        changed[place] = ord(" ") if changed[place] != ord(" ") else ord("x")
        path.write_bytes(changed)
        try:
            content, checks = read_evidence(path)
        except RecordError:
            continue
        assert not all(passed(checks + check_signer(content, [signer.fingerprint]))), place


def test_another_document_or_key(evidence: JsonObject) -> None:
    data = {"letter.txt": MARKED.encode(), "changed.txt": MARKED.encode() + b"x"}
    checks = check_documents(evidence, data)
    assert passed(checks) == [True, False, False]
    assert "“other.txt”, which the evidence is about, was not checked" in checks[2].message
    assert passed(check_documents(evidence, {"letter.txt": MARKED.encode(), "o.txt": OTHER.encode()})) == [True, True]
    documents = {"letter.txt": (MARKED.encode(), MARKED), "other.txt": (OTHER.encode(), OTHER)}
    checks = check_results(evidence, documents, [MARK.key], lambda _: MARK)
    assert passed(checks) == [True, True]
    assert "computed again under key" in checks[0].message
    [wrong, _] = check_results(evidence, documents, [fixed_key(1)], lambda _: MARK)
    assert not wrong.passed
    assert MARK.key.id in wrong.message


def test_a_result_that_is_not_what_the_key_gives(evidence: JsonObject) -> None:
    forged = json.loads(json.dumps(evidence))
    forged["texts"][1]["result"] |= {"p_value": 0.001, "verdict": "found"}
    [check] = check_results(forged, {"other.txt": (OTHER.encode(), OTHER)}, [MARK.key], lambda _: MARK)
    assert not check.passed
    assert "the evidence says found" in check.message


def test_the_signing_key_is_kept_and_private(tmp_path: Path) -> None:
    path = tmp_path / "new" / "signing-key.pem"
    assert SigningKey.of_installation(path).fingerprint == SigningKey.of_installation(path).fingerprint
    assert path.stat().st_mode & 0o077 == 0
    path.write_text("nothing")
    with pytest.raises(AlimarkError, match="no Ed25519 key"):
        SigningKey.of_installation(path)


def test_a_calibration_of_another_key_is_refused() -> None:
    examined = [Examined("a.txt", MARKED.encode(), MARK.detect(MARKED))]
    measured = {
        "key_id": MARK.key.id, "texts": 100, "sentences": 12, "levels": [0.01], "interval_99": [[0.0, 0.04]],
        "this_key": {"p": [0.01]},
    }  # fmt: skip
    content = make_evidence(examined, [MARK.key], calibration=measured)
    assert "100 human texts" in render_page(content | {"signer": {"fingerprint": "x"}})
    with pytest.raises(AlimarkError, match="not in this evidence"):
        make_evidence(examined, [MARK.key], calibration=measured | {"key_id": "ak0"})


def test_verification_uses_the_recorded_precision(signer: SigningKey) -> None:
    """Without it, the scores differ so much that the result is another."""
    forged = dict(zip(unmarked(12, 3), written(MARK.key), strict=True))
    mark = AliMark(MARK.key, embedder=RoughEmbedder(forged))
    detection = mark.detect(OTHER, precision="int8", restructure="none")
    signed = signer.sign(make_evidence([Examined("other.txt", OTHER.encode(), detection)], [MARK.key]))
    evidence: JsonObject = json.loads(json.dumps(signed))
    documents = {"other.txt": (OTHER.encode(), OTHER)}
    assert passed(check_results(evidence, documents, [MARK.key], lambda _: mark)) == [True]
    evidence["texts"][0]["result"]["precision"] = "float32"
    assert passed(check_results(evidence, documents, [MARK.key], lambda _: mark)) == [False]
