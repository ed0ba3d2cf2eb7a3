"""Reads and writes key files: JSON that only its owner can read, written atomically and checked when it is read."""

import base64
import errno
import json
import stat
import warnings
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from alimark.core._util.files import regular, write_whole
from alimark.core._util.json_types import JsonObject
from alimark.core.frozen.derivation import GivenArrays, Law
from alimark.core.frozen.parameters import AliMarkParameters
from alimark.core.keys.fitted import Fitted
from alimark.core.parameters import SchemeParameters, parameters_class
from alimark.errors import KeyFileError

VERSION = 1  # the version of the file format
_MAX_BYTES = 64 * 2**20


@dataclass(frozen=True, repr=False)  # nothing that is printed shows the secret
class KeyContent:
    """The content of a key."""

    secret: bytes
    parameters: SchemeParameters
    embedder: str
    fingerprint: str
    splitter: str
    fitted: Fitted | None
    arrays: GivenArrays | None

    def public(self) -> JsonObject:
        """The fields that are not secret. The id of a key is a hash of them, so they must never change."""
        scheme, parameters = self.parameters.scheme, self.parameters.to_json()
        public: JsonObject = {"version": VERSION, "scheme": scheme}
        embedder = {"embedder": self.embedder, "fingerprint": self.fingerprint}
        if scheme == "alimark":
            # This format is older than the other schemes: AliMark's parameters are top-level fields, two of them at the start.
            first = {name: parameters.pop(name) for name in ("decision", "block_size")}
            public |= first | embedder | {"splitter": self.splitter}
            offsets = {"offsets": parameters.pop("offsets")} if "offsets" in parameters else {}
            law = {} if self.arrays is None or self.arrays.law == "uniform" else {"law": self.arrays.law}
            return public | parameters | law | offsets | self._fitted()
        public["parameters"] = parameters
        public |= embedder if self.embedder else {}
        public["splitter"] = self.splitter
        return public | self._fitted()

    def _fitted(self) -> JsonObject:
        return {} if self.fitted is None else {"fitted": self.fitted.public()}

    def encode(self, key_id: str) -> bytes:
        """The content of the key file."""
        content = self.public() | {"id": key_id, "secret": base64.b64encode(self.secret).decode()}
        if self.arrays is not None:
            content["bits"] = self.arrays.bits.tolist()
            content["vectors"] = base64.b64encode(self.arrays.vectors.astype("<f8").tobytes()).decode()
        return json.dumps(content, indent=2).encode() + b"\n"


def write(path: Path | str, data: bytes, *, overwrite: bool = False) -> None:
    """Writes a key file that only its owner can read; raises KeyFileError where it exists or cannot be written."""
    try:
        write_whole(path, data, mode=0o600, overwrite=overwrite)
    except FileExistsError:
        raise KeyFileError(f"{path} exists; a key is not overwritten, choose another name") from None
    except OSError as error:
        reason = "the disk is full" if error.errno == errno.ENOSPC else error.strerror
        raise KeyFileError(f"cannot write {path}: {reason}") from None


def read(path: Path | str) -> bytes:
    """Reads the bytes of a key file, or raises KeyFileError. Issues a warning if other users can read it."""
    path = regular(path, KeyFileError)
    try:
        if path.stat().st_size > _MAX_BYTES:
            raise KeyFileError(f"{path} is too large for a key file")
        data = path.read_bytes()
        mode = path.stat().st_mode
    except FileNotFoundError:
        raise KeyFileError(
            f"there is no key file {path}; check the path, or make a new key: alimark keygen -o {path}"
        ) from None
    except OSError as error:
        raise KeyFileError(f"cannot read the key file {path}: {error.strerror}") from None
    if stat.S_IMODE(mode) & 0o077:
        warnings.warn(f"others can read the key file {path}; run: chmod 600 {path}", stacklevel=3)
    return data


def decode(data: bytes, where: str) -> tuple[KeyContent, str | None]:
    """The content of a key file and the id that it states, or a KeyFileError. `where` names the file in messages."""
    if not data.strip():
        raise KeyFileError(f"{where} is empty; restore it from a copy or make a new key")
    try:
        fields = json.loads(data)
    except (ValueError, RecursionError):
        fields = None
    # The causes of the errors below are not chained: the message of a parser may quote the file.
    if not isinstance(fields, dict):
        raise KeyFileError(f"{where} is not a key file, or only part of one; restore it from a copy")
    version = fields.get("version")
    if type(version) is int and version > VERSION:
        raise KeyFileError(f"{where} has version {version}, newer than this release knows ({VERSION}); upgrade alimark")
    try:
        if type(version) is not int or version != VERSION:  # JSON's true is equal to 1
            raise ValueError(version)
        return _content(fields), _text(fields, "id") if "id" in fields else None
    except KeyFileError as error:
        raise KeyFileError(f"{where}: {error}") from None
    except (KeyError, ValueError, TypeError, AttributeError, IndexError, OverflowError):
        raise KeyFileError(
            f"{where} is not a valid key file: a field is missing or malformed; restore it from a copy"
        ) from None


def _content(fields: JsonObject) -> KeyContent:
    scheme, fitted = _text(fields, "scheme"), fields.get("fitted")
    specification = parameters_class(scheme)
    parameters: SchemeParameters
    if scheme == "alimark":
        parameters = AliMarkParameters.parse(fields)
        embedder, fingerprint = _text(fields, "embedder"), _text(fields, "fingerprint")
    else:
        if not isinstance(fields["parameters"], dict):
            raise ValueError("parameters")
        parameters = specification.parse(fields["parameters"])
        embedder, fingerprint = (_text({name: "", **fields}, name) for name in ("embedder", "fingerprint"))
    secret = base64.b64decode(fields["secret"], validate=True)
    return KeyContent(
        secret=secret,
        parameters=parameters,
        embedder=embedder,
        fingerprint=fingerprint,
        splitter=_text(fields, "splitter"),
        fitted=None if fitted is None else Fitted.parse(fitted),
        arrays=_arrays(fields, parameters, secret) if isinstance(parameters, AliMarkParameters) else None,
    )


def _text(fields: JsonObject, name: str) -> str:
    """A field that must be a string of valid Unicode; raises KeyFileError if it is not."""
    value = fields[name]
    if not isinstance(value, str):
        raise KeyFileError(f"{name} must be a text; restore the file from a copy")
    value.encode()  # raises ValueError for half a surrogate pair, which no name has
    return value


def _arrays(fields: JsonObject, parameters: AliMarkParameters, secret: bytes) -> GivenArrays | None:
    law: Law = fields.get("law", "uniform")
    if "bits" not in fields:
        if law != "uniform":
            raise KeyFileError("a key without given bits must have the law 'uniform'")
        return None
    bits = np.array(fields["bits"], np.uint8)
    vectors = np.frombuffer(base64.b64decode(fields["vectors"], validate=True), "<f8").reshape(len(bits[0]), -1)
    arrays = GivenArrays(bits, vectors, law)
    if law not in ("uniform", "shuffle") or bits.shape[1] != parameters.block_size or arrays.secret() != secret:
        raise KeyFileError("its bits or vectors were changed; restore it from a copy")
    return arrays
