"""Signs evidence with Ed25519 under a key of this installation, and checks such signatures."""

from __future__ import annotations

import base64
import hashlib
import json
import os
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


def signing_key_path() -> Path:
    """The file of this installation's signing key: `ALIMARK_SIGNING_KEY`, or a file in the user's data folder."""
    chosen = os.environ.get(_VARIABLE)
    return Path(chosen).expanduser() if chosen else data_folder() / "signing-key.pem"


def fingerprint(public_key: bytes) -> str:
    """The name of a public key, short enough to be compared by people.

    Example:
        >>> fingerprint(bytes(32))
        'ed25519:66687aadf862bd776c8fc18b8e9f8e20'
    """
    return f"ed25519:{hashlib.sha256(public_key).hexdigest()[:32]}"


def canonical(content: JsonObject) -> bytes:
    """The bytes that are signed: the content as JSON with sorted names, in ASCII."""
    return json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False).encode("ascii")


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
        return fingerprint(self.private.public_key().public_bytes_raw())

    def sign(self, content: JsonObject) -> JsonObject:
        """Returns the content with the signer and a signature over all of it."""
        public = _text(self.private.public_key().public_bytes_raw())
        signer = {"algorithm": "Ed25519", "public_key": public, "fingerprint": self.fingerprint}
        signed = content | {"signer": signer}
        return signed | {"signature": _text(self.private.sign(canonical(signed)))}


def check_signature(signed: JsonObject) -> str | None:
    """The fingerprint of the signer of an object, or None where the signature does not fit the content."""
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    content = {name: value for name, value in signed.items() if name != "signature"}
    try:
        public = base64.b64decode(signed["signer"]["public_key"], validate=True)
        signature = base64.b64decode(signed["signature"], validate=True)
        Ed25519PublicKey.from_public_bytes(public).verify(signature, canonical(content))
        if _text(signature) != signed["signature"]:
            return None  # Base64 has several spellings of the same bytes
    except (InvalidSignature, KeyError, TypeError, ValueError, RecursionError):
        return None
    # The signature covers the text of the public key, so that the fingerprint cannot name another.
    return fingerprint(public) if signed["signer"].get("fingerprint") == fingerprint(public) else None


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")
