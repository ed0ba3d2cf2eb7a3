"""Time stamps of evidence by an authority (RFC 3161): that the signed evidence existed at a time."""

import base64
import urllib.request
from collections.abc import Sequence
from pathlib import Path

from alimark.audit.evidence.verification import EvidenceCheck
from alimark.core._util.json_types import JsonObject
from alimark.errors import AlimarkError, MissingExtra

_SECONDS, _MOST_BYTES = 30.0, 2**20


def stamped(signed: JsonObject, address: str) -> JsonObject:
    """Returns signed evidence with `timestamp`: the answer of the authority at an address, which sees only a hash.

    Raises:
        AlimarkError: The authority does not answer with a time stamp.
    """
    try:
        from rfc3161_client import TimestampRequestBuilder, decode_timestamp_response
    except ImportError:
        raise MissingExtra("rfc3161-client", "documents") from None

    query = TimestampRequestBuilder().data(signed["jws"].encode()).build()
    try:
        request = urllib.request.Request(address, query.as_bytes(), {"Content-Type": "application/timestamp-query"})
        with urllib.request.urlopen(request, timeout=_SECONDS) as answer:
            stamp: bytes = answer.read(_MOST_BYTES)
        response = decode_timestamp_response(stamp)
        if (
            response.tst_info.nonce != query.nonce
            or response.tst_info.message_imprint.message != query.message_imprint.message
        ):
            raise ValueError("its answer is a time stamp of something else")
    except (OSError, ValueError) as error:
        raise AlimarkError(
            f"{address} gave no time stamp ({error}); leave out --timestamp, or name another authority"
        ) from None
    return signed | {"timestamp": base64.b64encode(stamp).decode()}


def check_timestamp(signed: JsonObject, roots: Sequence[Path]) -> EvidenceCheck:
    """Checks that evidence has a time stamp of an authority whose certificate is under one of some root certificates (PEM)."""
    try:
        from cryptography.x509 import load_pem_x509_certificate
        from rfc3161_client import VerificationError, VerifierBuilder, decode_timestamp_response
    except ImportError:
        raise MissingExtra("rfc3161-client", "documents") from None

    try:
        response = decode_timestamp_response(base64.b64decode(signed["timestamp"], validate=True))
        at = response.tst_info.gen_time.isoformat(timespec="seconds")
        certificates = [load_pem_x509_certificate(path.read_bytes()) for path in roots]
        VerifierBuilder(roots=certificates).build().verify_message(response, signed["jws"].encode())
    except (VerificationError, KeyError, TypeError, ValueError) as error:
        return EvidenceCheck(False, f"The evidence has no time stamp that fits it and these certificates ({error}).")
    return EvidenceCheck(True, f"The evidence existed on {at}, as the authority of the time stamp says.")
