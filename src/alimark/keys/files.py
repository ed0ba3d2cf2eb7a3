"""The key's file: JSON, readable by its owner alone, written whole or not at all, read with suspicion."""

from __future__ import annotations

import base64
import binascii
import errno
import json
import stat
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from alimark._util.files import write_whole
from alimark.errors import KeyFileError
from alimark.keys.fitted import Fitted
from alimark.keys.key import VERSION, Key, _secret_of
from alimark.schemes.registry import scheme


class Sealed:
    """A key on its way to a process of the same operator: it can be pickled, which a Key refuses, and shows nothing."""

    def __init__(self, key: Key) -> None:
        self.id = key.id
        self._data = _content(key)

    def open(self) -> Key:
        return _parse(self._data, f"key {self.id}")

    def __repr__(self) -> str:
        return f"Sealed({self.id})"


def _content(key: Key) -> bytes:
    content = key.public() | {"id": key.id, "secret": base64.b64encode(key._secret).decode()}
    if key._given_bits is not None and key._given_vectors is not None:
        content["bits"] = key._given_bits.tolist()
        content["vectors"] = base64.b64encode(key._given_vectors.astype("<f8").tobytes()).decode()
    return json.dumps(content, indent=2).encode() + b"\n"


def save(key: Key, path: Path | str, *, overwrite: bool = False) -> None:
    try:
        write_whole(path, _content(key), mode=0o600, overwrite=overwrite)
    except FileExistsError:
        raise KeyFileError(f"{path} exists; a key is not overwritten, choose another name") from None
    except OSError as error:
        reason = "the disk is full" if error.errno == errno.ENOSPC else error.strerror
        raise KeyFileError(f"cannot write {path}: {reason}") from None


def load(path: Path | str) -> Key:
    path = Path(path)
    try:
        if path.stat().st_size > 64 * 2**20:
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
    # The cause is not chained: a parser's message may quote the file.
    return _parse(data, str(path))


def _parse(data: bytes, where: str) -> Key:
    if not data.strip():
        raise KeyFileError(f"{where} is empty; restore it from a copy or make a new key")
    try:
        content = json.loads(data)
    except (ValueError, RecursionError):
        content = None
    if not isinstance(content, dict):
        raise KeyFileError(f"{where} is no key file, or only part of one; restore it from a copy")
    version = content.get("version")
    if isinstance(version, int) and version > VERSION:
        raise KeyFileError(f"{where} has version {version}, newer than this release knows ({VERSION}); upgrade alimark")
    try:
        if version != VERSION:
            raise ValueError
        key = _build(content)
    except KeyFileError as error:
        raise KeyFileError(f"{where}: {error}") from None
    except (KeyError, ValueError, TypeError, AttributeError, binascii.Error):
        raise KeyFileError(f"{where} is no valid key file: a field is missing or malformed") from None
    if content.get("id", key.id) != key.id:
        raise KeyFileError(f"{where} was changed: its id does not belong to its content; restore it from a copy")
    return key


def _build(content: Mapping[str, Any]) -> Key:
    if content["scheme"] != "alimark":
        return _build_rival(content)
    centre = content.get("centre")
    key = Key(
        base64.b64decode(content["secret"], validate=True),
        embedder=str(content["embedder"]),
        fingerprint=str(content["fingerprint"]),
        block_size=content["block_size"],
        decision=content["decision"],
        scheme=content["scheme"],
        splitter=str(content["splitter"]),
        centre=None if centre is None else np.frombuffer(base64.b64decode(centre, validate=True), "<f4"),
        span=content.get("span"),
        soft_version=content.get("soft_version", 1),
        law=content.get("law", "uniform"),
        offsets=content.get("offsets", 1),
    )
    if "bits" in content:
        bits = np.array(content["bits"], np.uint8)
        vectors = np.frombuffer(base64.b64decode(content["vectors"], validate=True), "<f8").reshape(len(bits[0]), -1)
        if bits.shape[1] != key.block_size or _secret_of(bits, vectors) != key._secret:
            raise KeyFileError("its bits or vectors were changed; restore it from a copy")
        key._given_bits, key._given_vectors = bits, vectors
    elif key.law != "uniform":
        raise KeyFileError("a key without given bits has the law 'uniform'")
    return key


def _build_rival(content: Mapping[str, Any]) -> Key:
    scheme(str(content["scheme"]))
    fitted = content.get("fitted")
    if not isinstance(content["parameters"], dict):
        raise ValueError("parameters")
    return Key(
        base64.b64decode(content["secret"], validate=True),
        scheme=str(content["scheme"]),
        embedder=str(content.get("embedder", "")),
        fingerprint=str(content.get("fingerprint", "")),
        splitter=str(content["splitter"]),
        parameters=content["parameters"],
        fitted=None if fitted is None else Fitted.parse(fitted),
    )
