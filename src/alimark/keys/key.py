"""The key: one 256-bit secret, from which endless secret bits and orthonormal secret vectors follow.

Everything is drawn from SHAKE-256 under one label each and turned into numbers by operations that IEEE 754 fixes to the
last bit, so a key means the same on every machine and in every release. Whoever can detect can forge: the
detector needs the whole secret.
"""

from __future__ import annotations

import base64
import hashlib
import json
import secrets
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, NoReturn, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from alimark.embedding.directions import directions, known
from alimark.errors import KeyFileError, KeyMismatch
from alimark.keys.arithmetic import BYTES_A_NORMAL, Blocks, normals, orthonormal, pack_bits, uniforms
from alimark.keys.fitted import Fitted
from alimark.text.splitting import DEFAULT_SPLITTER

if TYPE_CHECKING:
    from alimark.embedding.base import Embedder

Law = Literal["uniform", "shuffle"]

VERSION = 1
SOFT_VERSION = 2
"""Of how soft decisions are made and found, the newest; alimark.detection.scoring keeps them all."""
SOFT_BLOCK_SIZE, SOFT_SPAN = 32, 32
DEFAULT_EMBEDDER = "all-MiniLM-L6-v2"
MAX_BLOCK_SIZE = 64
MAX_OFFSETS = 1024
_KEYS_A_CHUNK = 1024  # null keys drawn by one hash call


class Named(Protocol):
    @property
    def name(self) -> str: ...
    @property
    def fingerprint(self) -> str: ...
    @property
    def dimension(self) -> int: ...


class Key:
    """A secret and the public parameters that marking and detecting must share.

    A key of AliMark has a block size, a decision and what goes with them; one of a rival has `parameters`, read-only, and
    `fitted` where its scheme learns from text.
    """

    __slots__ = (
        "_given_bits",
        "_given_vectors",
        "_secret",
        "_vectors",
        "block_size",
        "centre",
        "decision",
        "embedder",
        "fingerprint",
        "fitted",
        "law",
        "offsets",
        "parameters",
        "scheme",
        "soft_version",
        "span",
        "splitter",
    )  # fmt: skip

    def __init__(
        self,
        secret: bytes,
        *,
        embedder: str = "",
        fingerprint: str = "",
        block_size: int = 8,
        decision: str = "hard",
        scheme: str = "alimark",
        splitter: str = DEFAULT_SPLITTER,
        centre: NDArray[np.float32] | None = None,
        span: int | None = None,
        soft_version: int = SOFT_VERSION,
        law: Law = "uniform",
        offsets: int = 1,
        parameters: Mapping[str, Any] | None = None,
        fitted: Fitted | None = None,
    ) -> None:
        if len(secret) != 32:
            raise KeyFileError("a secret has 32 bytes")
        self._secret = secret
        self.scheme = scheme
        self.embedder = embedder
        self.fingerprint = fingerprint
        self.splitter = splitter
        self.fitted = fitted
        self.parameters: Mapping[str, Any] = MappingProxyType({})
        if scheme == "alimark":
            _check(embedder, fingerprint, block_size, decision, centre, span, soft_version)
            if type(offsets) is not int or not 1 <= offsets <= MAX_OFFSETS:
                raise KeyFileError(f"offsets must be a whole number from 1 to {MAX_OFFSETS}, not {offsets!r}")
            if parameters or fitted is not None:
                raise KeyFileError("an AliMark key has no parameters of another scheme and nothing learned from text")
        else:
            self.parameters = MappingProxyType(_rival(scheme, embedder, fingerprint, parameters or {}, fitted))
            block_size, decision, centre, span, offsets = 0, "", None, None, 1
        self.soft_version = soft_version if decision == "soft" else 1  # hard keys have no versions to differ by
        self.span = span
        self.decision = decision
        self.block_size = block_size
        self.centre = centre
        self.law: Law = law
        self.offsets = offsets
        self._vectors: dict[int, NDArray[np.float64]] = {}
        self._given_bits: NDArray[np.uint8] | None = None
        self._given_vectors: NDArray[np.float64] | None = None

    # Making keys

    @classmethod
    def generate(
        cls,
        *,
        scheme: str = "alimark",
        decision: str = "hard",
        block_size: int | None = None,
        embedder: str | Embedder | None = None,
        splitter: str = DEFAULT_SPLITTER,
        centre: ArrayLike | None = None,
        span: int | None = None,
        offsets: int = 1,
        soft_version: int = SOFT_VERSION,
        preset: str | None = None,
        fitted: Fitted | None = None,
        secret: bytes | None = None,
        **parameters: Any,
    ) -> Key:
        """A fresh key. `centre` is a corpus mean of the embedder, subtracted from every embedding on both sides.

        `span`: the number of directions of the embedding space that the vectors are taken from, those along which the sentences
        of a text differ most. By default soft keys take as many as fit them best, and hard ones, as the paper, the whole space;
        0 asks for that. `offsets`: the number of blocks that a text may begin with, in secret (docs/security.md).
        `soft_version`: an older way to find soft decisions, for experiments (docs/soft.md). These belong to AliMark. A
        rival has `parameters` of its own, the defaults of its own paper, or with `preset="paper"` those that AliMark's ran it
        with, and `fitted`, what it learned from text, where it learns. `secret` is for experiments that are to be repeated;
        elsewhere it is drawn.
        """
        secret = secrets.token_bytes(32) if secret is None else secret
        if scheme == "alimark":
            if preset is not None or parameters:
                named = ", ".join(["preset"] * (preset is not None) + sorted(parameters))
                raise KeyFileError(
                    f"an AliMark key has no {named}; its parameters are block_size, decision, centre, span and offsets"
                )
            name, fingerprint = _identify(embedder or DEFAULT_EMBEDDER)
            m, span = shape_of(decision, fingerprint, block_size, span)
            return cls(
                secret,
                embedder=name,
                fingerprint=fingerprint,
                block_size=m,
                decision=decision,
                splitter=splitter,
                centre=None if centre is None else np.asarray(centre, np.float32),
                span=span,
                offsets=offsets,
                soft_version=soft_version,
                fitted=fitted,
            )
        given = (decision, block_size, span, offsets, soft_version)
        if given != ("hard", None, None, 1, SOFT_VERSION) or centre is not None:
            raise KeyFileError(
                f"decision, block_size, centre, span and offsets are AliMark's; {scheme} has parameters of its own"
            )
        from alimark.schemes.registry import parameters as complete
        from alimark.schemes.registry import scheme as known_scheme

        embeds = known_scheme(scheme).embeds
        name, fingerprint = _identify(embedder or DEFAULT_EMBEDDER) if embeds else ("", "")
        whole = complete(scheme, parameters, preset)
        return cls(
            secret,
            scheme=scheme,
            embedder=name,
            fingerprint=fingerprint,
            splitter=splitter,
            parameters=whole,
            fitted=fitted,
        )

    @classmethod
    def from_arrays(
        cls,
        bits: ArrayLike,
        vectors: ArrayLike,
        *,
        embedder: str | Embedder = DEFAULT_EMBEDDER,
        splitter: str = DEFAULT_SPLITTER,
        law: Law = "uniform",
    ) -> Key:
        """A key with given secret bits, one row a block, and given secret vectors, for experiments.

        The rows repeat when a text needs more. `law` says how such bits come about, since p-values compare with
        keys of the same law: "uniform" for fair coins, "shuffle" for a random order of just these blocks.
        """
        rows, directions = np.asarray(bits), np.asarray(vectors, np.float64)
        if rows.ndim != 2 or not len(rows) or not np.isin(rows, (0, 1)).all():
            raise KeyFileError("bits must be a table of 0 and 1, one row a block")
        if directions.ndim != 2 or len(directions) != rows.shape[1]:
            raise KeyFileError("vectors must have one row for each bit of a block")
        if not np.allclose(directions @ directions.T, np.eye(len(directions)), atol=1e-6):
            raise KeyFileError("vectors must be orthonormal")
        if law not in ("uniform", "shuffle"):
            raise KeyFileError(f"law must be 'uniform' or 'shuffle', not {law!r}")
        name, fingerprint = _identify(embedder)
        secret = _secret_of(rows, directions)
        key = cls(
            secret,
            embedder=name,
            fingerprint=fingerprint,
            block_size=rows.shape[1],
            splitter=splitter,
            law=law,
        )
        key._given_bits, key._given_vectors = rows.astype(np.uint8), directions
        return key

    # What follows from the secret

    def stream(self, label: str, size: int, *index: int) -> bytes:
        """Secret bytes, endless and the same on every machine; each use has a label of its own."""
        numbers = b"".join(i.to_bytes(8, "big") for i in index)
        return hashlib.shake_256(self._secret + b"alimark/1/" + label.encode() + b"\0" + numbers).digest(size)

    def normals(self, label: str, rows: int, columns: int, *index: int) -> NDArray[np.float64]:
        """Secret random rows of a normal look, of no particular length."""
        return normals(self.stream(label, rows * columns * BYTES_A_NORMAL, *index), rows, columns)

    def uniforms(self, label: str, count: int, *index: int) -> NDArray[np.float64]:
        """Secret numbers in [0, 1)."""
        return uniforms(self.stream(label, 8 * count, *index))

    def blocks(self, count: int) -> Blocks:
        """The first `count` blocks of the secret bits, each packed into an integer, first bit highest."""
        m = self.block_size
        if self._given_bits is not None:
            rows = np.resize(self._given_bits, (count, m))
            return pack_bits(rows)
        data = np.frombuffer(self.stream("bits", -(-count * m // 8)), np.uint8)
        return pack_bits(np.unpackbits(data)[: count * m].reshape(count, m))

    def null_blocks(self, first: int, count: int, length: int) -> Blocks:
        """The blocks of `count` random keys, from number `first` on: repeatable, and unknown without the secret."""
        chunks = range(first // _KEYS_A_CHUNK, -(-(first + count) // _KEYS_A_CHUNK))
        draw = self._uniform_chunk if self.law == "uniform" else self._shuffled_chunk
        drawn = np.concatenate([draw(chunk, length) for chunk in chunks])
        start = first - chunks[0] * _KEYS_A_CHUNK
        return np.ascontiguousarray(drawn[start : start + count])

    def _uniform_chunk(self, chunk: int, length: int) -> Blocks:
        # One call for each block index, so that longer texts extend the same keys.
        m = self.block_size
        # Given bits repeat, and so must those of keys that are to follow the same law.
        own = length if self._given_bits is None else min(length, len(self._given_bits))
        columns = [self.stream("null", _KEYS_A_CHUNK * m // 8, chunk, j) for j in range(own)]
        data = np.frombuffer(b"".join(columns), np.uint8)
        if m in (8, 16, 32, 64):
            packed = data.view(f">u{m // 8}").astype(np.uint64)
        else:
            packed = pack_bits(np.unpackbits(data).reshape(-1, m))
        return np.resize(packed.reshape(own, _KEYS_A_CHUNK), (length, _KEYS_A_CHUNK)).T

    def _shuffled_chunk(self, chunk: int, length: int) -> Blocks:
        assert self._given_bits is not None
        given = pack_bits(self._given_bits)
        ranks = np.frombuffer(self.stream("null-shuffle", _KEYS_A_CHUNK * len(given) * 8, chunk), ">u8")
        order = np.argsort(ranks.reshape(_KEYS_A_CHUNK, len(given)), axis=1, kind="stable")
        repeats = -(-length // len(given))
        return np.tile(given[order], (1, repeats))[:, :length]

    def uniform(self, label: str, text: str) -> float:
        """A number in [0, 1) that depends on the secret and the text alone, for breaking ties."""
        digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()
        number = int.from_bytes(self.stream(label, 8, int.from_bytes(digest[:8], "big")), "big")
        return (number >> 11) / 2**53

    def start(self, text: str) -> int:
        """The block, from 0, that a text begins with: one of `offsets`, by the secret and what tells the text from others."""
        return int(self.offsets * self.uniform("start", text))

    def vectors(self, dimension: int) -> NDArray[np.float64]:
        """The M orthonormal secret vectors, one a row."""
        if self._given_vectors is not None:
            if self._given_vectors.shape[1] != dimension:
                raise KeyMismatch(f"the key's vectors have {self._given_vectors.shape[1]} dimensions, not {dimension}")
            return self._given_vectors
        if dimension not in self._vectors:
            self._vectors[dimension] = many_vectors([self], dimension)[0]
        return self._vectors[dimension]

    def _directions(self, dimension: int) -> NDArray[np.float64]:
        if self.block_size > dimension:
            raise KeyMismatch(f"{self.block_size} orthonormal vectors do not fit into {dimension} dimensions")
        return self.normals("vectors", self.block_size, dimension, dimension)

    # Who it is

    @property
    def soft(self) -> bool:
        """Whether sentences are chosen and found by how far they lie along a block's direction, not by bits."""
        return self.decision == "soft"

    def public(self) -> dict[str, Any]:
        """The parameters that may be shown."""
        if self.scheme != "alimark":
            return self._public_of_rival()
        public = {
            "version": VERSION,
            "scheme": self.scheme,
            "decision": self.decision,
            "block_size": self.block_size,
            "embedder": self.embedder,
            "fingerprint": self.fingerprint,
            "splitter": self.splitter,
        }
        if self.soft:
            public["soft_version"] = self.soft_version
        if self.span is not None:
            public["span"] = self.span
        if self.centre is not None:
            public["centre"] = base64.b64encode(self.centre.astype("<f4").tobytes()).decode()
        if self.law != "uniform":
            public["law"] = self.law
        if self.offsets != 1:
            public["offsets"] = self.offsets
        return public

    def _public_of_rival(self) -> dict[str, Any]:
        public: dict[str, Any] = {"version": VERSION, "scheme": self.scheme, "parameters": dict(self.parameters)}
        if self.embedder:
            public |= {"embedder": self.embedder, "fingerprint": self.fingerprint}
        public["splitter"] = self.splitter
        if self.fitted is not None:
            public["fitted"] = self.fitted.public()
        return public

    @property
    def id(self) -> str:
        """A name for the key that tells nothing of the secret."""
        commitment = self.stream("commitment", 32)
        public = json.dumps(self.public(), sort_keys=True).encode()
        return "ak" + hashlib.sha256(public + commitment).hexdigest()[:18]

    def __repr__(self) -> str:
        own = f"{self.decision} M={self.block_size} " if self.scheme == "alimark" else ""
        return f"<Key {self.id} {self.scheme} {own}{self.embedder}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Key) and self.id == other.id

    def __hash__(self) -> int:
        return hash(self.id)

    def __reduce__(self) -> NoReturn:
        raise TypeError("a Key is not pickled, since that would write its secret; use Key.save")

    def check(self, embedder: Named) -> None:
        """Raises KeyMismatch where `embedder` is not the one this key was made for."""
        if self.embedder and embedder.fingerprint != self.fingerprint:
            raise KeyMismatch(
                f"key {self.id} was made for embedder {self.embedder} ({self.fingerprint[:19]}...), "
                f"not {embedder.name} ({embedder.fingerprint[:19]}...); use the embedder that the key names"
            )
        if self.centre is not None and len(self.centre) != embedder.dimension:
            raise KeyMismatch(f"the key's centre has {len(self.centre)} dimensions, not {embedder.dimension}")

    # Its file

    def save(self, path: Path | str, *, overwrite: bool = False) -> None:
        """Writes the key, whole or not at all, readable by its owner alone."""
        from alimark.keys.files import save

        save(self, path, overwrite=overwrite)

    @classmethod
    def load(cls, path: Path | str) -> Key:
        """Reads a key file; warns where others than its owner can read it."""
        from alimark.keys.files import load

        return load(path)


def _check(
    embedder: str,
    fingerprint: str,
    block_size: int,
    decision: str,
    centre: NDArray[np.float32] | None,
    span: int | None,
    soft_version: int,
) -> None:
    """What an AliMark key can be."""
    if decision not in ("hard", "soft"):
        raise KeyFileError(f"decision {decision!r} is not known to this release; known: hard, soft")
    if not isinstance(block_size, int) or not 1 <= block_size <= MAX_BLOCK_SIZE:
        raise KeyFileError(f"block_size must be a whole number from 1 to {MAX_BLOCK_SIZE}, not {block_size!r}")
    if centre is not None and (centre.ndim != 1 or not np.isfinite(centre).all()):
        raise KeyFileError("centre must be one finite number for each dimension of the embedder")
    if span is not None and not (type(span) is int and block_size <= span <= known(fingerprint)):
        raise KeyFileError(
            f"span must be a number of directions from block_size ({block_size}) to those known of {embedder} "
            f"({known(fingerprint)}), not {span!r}"
        )
    if type(soft_version) is not int or not 1 <= soft_version <= SOFT_VERSION:
        raise KeyFileError(f"soft decisions of version {soft_version!r} are not known to this release; upgrade alimark")


def _rival(
    scheme: str, embedder: str, fingerprint: str, given: Mapping[str, Any], fitted: Fitted | None
) -> dict[str, Any]:
    """The parameters of a rival's key, all of them, as its scheme has checked them."""
    from alimark.schemes.registry import parameters
    from alimark.schemes.registry import scheme as known_scheme

    whole = parameters(scheme, given)
    kind = known_scheme(scheme)
    if kind.embeds != bool(embedder):
        raise KeyFileError(f"a {scheme} key names {'an' if kind.embeds else 'no'} embedder")
    if fitted is not None and fitted.scheme != scheme:
        raise KeyFileError(f"what was learned for {fitted.scheme} is of no use to {scheme}")
    if fitted is not None and embedder and fitted.origin.get("fingerprint") != fingerprint:
        raise KeyFileError(
            f"what was learned from text was learned with the embedder {fitted.origin.get('embedder')}, not {embedder}"
        )
    kind.check_fitted(kind.Parameters(**whole), fitted)
    return whole


def _secret_of(bits: NDArray[np.uint8], vectors: NDArray[np.float64]) -> bytes:
    """The stream that null keys of a key made from arrays come from."""
    content = bits.astype(np.uint8).tobytes() + vectors.astype("<f8").tobytes()
    return hashlib.shake_256(b"alimark/1/arrays" + content).digest(32)


def _identify(embedder: str | Embedder) -> tuple[str, str]:
    """Name and fingerprint; for a model of the store from its manifest, without loading or fetching it."""
    if not isinstance(embedder, str):
        return embedder.name, embedder.fingerprint
    from alimark.models import store

    if embedder in store.names():
        return embedder, "sha256:" + store.entry(embedder).weights.sha256
    from alimark.embedding.loading import load_embedder

    loaded = load_embedder(embedder)
    return loaded.name, loaded.fingerprint


def shape_of(
    decision: str, fingerprint: str, block_size: int | None = None, span: int | None = None
) -> tuple[int, int | None]:
    """The block size and the span of a key, where they are not given those that fit its decision and its embedder.

    A span of 0 asks for the whole space, which is what None means to a key.
    """
    if decision != "soft" or span == 0:
        default = SOFT_BLOCK_SIZE if decision == "soft" else 8
        return default if block_size is None else block_size, span or None
    m = SOFT_BLOCK_SIZE if block_size is None else block_size
    if span is None and isinstance(m, int) and max(m, SOFT_SPAN) <= known(fingerprint):
        span = max(m, SOFT_SPAN)
    return m, span


def many_vectors(keys: list[Key], dimension: int) -> NDArray[np.float64]:
    """The secret vectors of many keys of one block size, span and embedder, (keys, M, dimension)."""
    if any(key._given_vectors is not None for key in keys):
        return np.stack([key.vectors(dimension) for key in keys])
    span = keys[0].span
    if span is None:
        return orthonormal(np.stack([key._directions(dimension) for key in keys]))
    within = orthonormal(np.stack([key._directions(span) for key in keys]))
    # What ships has few digits, and so is made orthonormal again.
    basis = orthonormal(directions(keys[0].fingerprint, span)[None])[0]
    rotated = np.zeros((len(keys), within.shape[1], dimension))
    for k in range(span):  # in a fixed order, as everything here
        rotated += within[:, :, k, None] * basis[k]
    return rotated
