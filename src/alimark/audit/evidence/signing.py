"""Signs evidence and the answers of a service as JWS (RFC 7515, Ed25519), and checks such signatures."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from alimark.core._util.files import write_whole
from alimark.core._util.json_types import JsonObject
from alimark.core._util.paths import data_folder
from alimark.errors import AlimarkError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

_VARIABLE = "ALIMARK_SIGNING_KEY"
SIGNED = "application/jose"
"""The media type of a compact JWS: with it in `Accept`, a service signs its answers."""
DISCOVERY, KEYS = "/.well-known/alimark", "/.well-known/alimark/jwks.json"
"""The paths under which a service says what it is, and lists the public keys of its signatures."""
_COMPACT = re.compile(r"[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+")
_PRIME = 2**255 - 19
_CURVE = -121665 * pow(121666, -1, _PRIME)
"""The prime and the constant d of the curve of Ed25519 (RFC 8032, section 5.1)."""


def signing_key_path(folder: Path | None = None) -> Path:
    """The file of this installation's signing key: `ALIMARK_SIGNING_KEY`, or a file in `folder` (the user's data folder)."""
    chosen = os.environ.get(_VARIABLE)
    return Path(chosen).expanduser() if chosen else (folder or data_folder()) / "signing-key.pem"


def fingerprint(public_key: bytes) -> str:
    """The name of a public key, its JWK thumbprint (RFC 7638), short enough to be compared by people.

    Example:
        >>> fingerprint(bytes(32))
        'ogRZbCR5KTrPFCAfuYmCMwj0w7Yuk3Lr6YWQWfpkbf0'
    """
    # The thumbprint is defined over these very bytes: the required members, sorted, without blanks.
    members = json.dumps(_jwk(public_key), sort_keys=True, separators=(",", ":")).encode()
    return _text(hashlib.sha256(members).digest())


def fingerprint_of_jwk(key: JsonObject) -> str:
    """The name of the public key in a JSON Web Key; raises ValueError or LookupError where it is none of Ed25519."""
    public = base64.urlsafe_b64decode(key["x"] + "=")
    if len(public) != 32 or _is_low_order(public) or any(key[name] != value for name, value in _jwk(public).items()):
        raise ValueError("that is no public key of Ed25519")
    return fingerprint(public)


def _jwk(public_key: bytes) -> dict[str, str]:
    return {"kty": "OKP", "crv": "Ed25519", "x": _text(public_key)}


def _text(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _payload(content: JsonObject) -> bytes:
    return json.dumps(content, allow_nan=False).encode("ascii")


@dataclass(frozen=True)
class SigningKey:
    """The private key of this installation."""

    private: Ed25519PrivateKey

    @classmethod
    def of_installation(cls, path: Path | None = None) -> SigningKey:
        """Loads the key of this installation; the first call makes it, readable only by its owner.

        Raises:
            AlimarkError: The file holds no Ed25519 key in PEM format without a password.
        """
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

        path = path or signing_key_path()
        if not path.exists():
            pem = Ed25519PrivateKey.generate().private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
            path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(path, pem, mode=0o600, overwrite=False)
        try:
            private = serialization.load_pem_private_key(path.read_bytes(), None)
        except (ValueError, TypeError):
            private = None
        if not isinstance(private, Ed25519PrivateKey):
            raise AlimarkError(
                f"{path} holds no Ed25519 key in PEM format without a password; move it away, and a new key is made, or "
                f"name another file in {_VARIABLE}"
            )
        return cls(private)

    @property
    def fingerprint(self) -> str:
        """The name of the public key, which others compare."""
        return fingerprint(self._public)

    @property
    def jwk(self) -> dict[str, str]:
        """The public key as a JSON Web Key, as `/.well-known/alimark/jwks.json` lists it."""
        return _jwk(self._public) | {"kid": self.fingerprint, "use": "sig", "alg": "EdDSA"}

    @property
    def _public(self) -> bytes:
        return self.private.public_key().public_bytes_raw()

    def sign(self, content: JsonObject) -> JsonObject:
        """Returns the content with its signer and with `jws`: a compact JWS whose payload is all of it, as JSON."""
        import jwt

        signed = content | {"signer": {"algorithm": "EdDSA", "fingerprint": self.fingerprint}}
        header = {"typ": "JOSE", "kid": self.fingerprint, "jwk": _jwk(self._public)}
        return signed | {"jws": jwt.PyJWS().encode(_payload(signed), self.private, "EdDSA", header)}


def read_jws(jws: str) -> JsonObject | None:
    """What `SigningKey.sign` returned, from its compact JWS alone; None where the signature does not fit.

    The key comes with the JWS, so that the signature says nothing before its fingerprint is compared with a known one.
    """
    import jwt
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    try:
        if not _COMPACT.fullmatch(jws):
            return None  # the library accepts padding, and so several spellings of the same bytes
        header = jwt.get_unverified_header(jws)
        signer = fingerprint_of_jwk(header["jwk"])
        key = Ed25519PublicKey.from_public_bytes(base64.urlsafe_b64decode(header["jwk"]["x"] + "="))
        content = json.loads(jwt.PyJWS().decode(jws, key, ["EdDSA"]))
        # The page shows the signer that the content names.
        named = content["signer"]["fingerprint"] == signer == header["kid"]
        return content | {"jws": jws} if named else None
    except (jwt.PyJWTError, AttributeError, LookupError, TypeError, ValueError, RecursionError):
        return None


def check_signature(signed: JsonObject) -> str | None:
    """The fingerprint of who signed what `SigningKey.sign` returned, or None where the signature does not fit the content."""
    content = {name: value for name, value in signed.items() if name != "timestamp"}
    verified = read_jws(content["jws"]) if isinstance(content.get("jws"), str) else None
    # The bytes are compared, because Python takes 1, 1.0 and true for equal.
    if verified is None or _payload(verified) != _payload(content):
        return None
    return str(verified["signer"]["fingerprint"])


def _is_low_order(public_key: bytes) -> bool:
    """Whether a public key has an order of at most 8: signatures that fit it, and any content, can be made without a secret."""
    y = (int.from_bytes(public_key, "little") & (2**255 - 1)) % _PRIME
    # The ordinates of the points of order 1, 2 and 4 are 1, -1 and 0; those of order 8 solve the last factor.
    return y * (y**2 - 1) * (_CURVE * y**4 + 2 * y**2 - 1) % _PRIME == 0
