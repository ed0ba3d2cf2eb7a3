"""The key: a 256-bit secret and the public parameters of a scheme, which generation and detection must share.

Anyone who can detect the mark can also forge it, since the detector needs the whole secret.
"""

from __future__ import annotations

import json
import secrets
import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from alimark.core._util.arrays import Floats, Ints, Packed
from alimark.core._util.json_types import JsonObject
from alimark.core.frozen import derivation
from alimark.core.frozen.arithmetic import uniforms
from alimark.core.frozen.derivation import Derivation, GivenArrays, Law
from alimark.core.frozen.parameters import AliMarkParameters
from alimark.core.frozen.payload_code import PayloadCode
from alimark.core.frozen.text.splitting import DEFAULT_SPLITTER
from alimark.core.keys import files
from alimark.core.keys.files import KeyContent
from alimark.core.keys.fitted import Fitted
from alimark.core.parameters import SchemeParameters, parameters_class
from alimark.errors import AlimarkError, KeyFileError, KeyMismatch

if TYPE_CHECKING:
    from alimark.core.embedding.base import Embedder

DEFAULT_EMBEDDER = "all-MiniLM-L6-v2"
Parameters = TypeVar("Parameters", bound=SchemeParameters)


class Key:
    """A secret and the public parameters that generation and detection must share.

    Keys are made by `Key.generate`, `Key.like`, `Key.from_arrays` and `Key.load`; two keys are equal where their ids are.
    The properties `block_size`, `decision`, `soft`, `span`, `centre`, `law`, `run`, `starts` and `offsets` and
    the methods `blocks`, `null_blocks`, `vectors` and `start` belong to AliMark and raise KeyMismatch for a key of another
    scheme, whose parameters are in `parameters`.

    Args:
        secret: 32 secret bytes.
        parameters: The typed parameters of a scheme; by default those of AliMark with soft decisions.
        embedder: The name of the sentence embedder, empty for schemes that need none.
        fingerprint: The hash of the embedder's weights.
        splitter: The name of the sentence splitter.
        fitted: The data that the scheme learned from text, for schemes that learn.
        arrays: Given bits and vectors of AliMark, as `Key.from_arrays` makes them.

    Raises:
        KeyFileError: The secret has another length, or the parts do not fit each other.

    Example:
        >>> from alimark.testing import StandInEmbedder
        >>> key = Key(bytes(32), embedder="stand-in", fingerprint=StandInEmbedder().fingerprint)
        >>> key
        <Key ak... alimark soft M=32 stand-in>
    """

    __slots__ = ("_content", "_derivation", "_payload")

    def __init__(
        self,
        secret: bytes,
        *,
        parameters: SchemeParameters | None = None,
        embedder: str = "",
        fingerprint: str = "",
        splitter: str = DEFAULT_SPLITTER,
        fitted: Fitted | None = None,
        arrays: GivenArrays | None = None,
    ) -> None:
        if len(secret) != 32:
            raise KeyFileError(f"a secret must have 32 bytes, not {len(secret)}")
        chosen = AliMarkParameters.of({}, fingerprint=fingerprint) if parameters is None else parameters
        chosen.check(embedder, fingerprint, fitted)
        self._content = KeyContent(secret, chosen, embedder, fingerprint, splitter, fitted, arrays)
        self._derivation = (
            Derivation(secret, chosen, fingerprint, arrays, chosen.table(fingerprint, fitted))
            if isinstance(chosen, AliMarkParameters)
            else None
        )
        self._payload = 0

    @classmethod
    def _of(cls, content: KeyContent) -> Key:
        return cls(**vars(content))

    # Making keys

    @classmethod
    def generate(
        cls,
        *,
        scheme: str = "alimark",
        embedder: str | Embedder | None = None,
        splitter: str = DEFAULT_SPLITTER,
        preset: str | None = None,
        fitted: Fitted | None = None,
        secret: bytes | None = None,
        **parameters: object,
    ) -> Key:
        """Makes a key with a new random secret.

        Args:
            scheme: The name of the watermark.
            embedder: The sentence embedder or its name, for schemes that need one.
            splitter: The name of the sentence splitter.
            preset: A named set of parameters; "paper" is what the AliMark paper ran a rival with.
            fitted: The data that the scheme learned from text, for schemes that learn.
            secret: 32 bytes, for repeatable experiments; by default a random secret is drawn.
            **parameters: Parameters of the scheme. Those of a rival that are not given have the defaults of its paper. AliMark
                has `decision` ("soft", the default, or "hard", the scheme of the paper), `block_size` (64 for soft keys whose
                embedder has a table of directions, 32 for other soft keys, 8 for hard ones), `span` (the number of
                directions of the embedding space that the secret vectors are taken from; soft keys take as many as fit them
                best, and 0 asks for the whole space), `offsets` (a text starts at one of the first `offsets` blocks, and
                which one is secret; docs/security.md), `starts` ("conversation": a text starts where its conversation has
                got to, so that texts asked for in pieces are one sequence; the default is "text"), `centre` (a corpus mean
                of the embedder, which is subtracted from every embedding), and `payload_bits` (8, 16 or 24: texts carry a
                number of so many bits; docs/payload.md). Those of the rivals are in docs/rivals.md.

        Raises:
            KeyFileError: The scheme is not known, or does not take these parameters.

        Example:
            >>> from alimark.testing import StandInEmbedder
            >>> key = Key.generate(embedder=StandInEmbedder(), block_size=16)
            >>> key.block_size, key.decision
            (16, 'soft')
            >>> Key.generate(scheme="pmark", embedder=StandInEmbedder(), channels=2).parameters.channels
            2
        """
        specification = parameters_class(scheme)
        name, fingerprint = _identify(embedder or DEFAULT_EMBEDDER) if specification.embeds else ("", "")
        return cls(
            secrets.token_bytes(32) if secret is None else secret,
            parameters=specification.of(parameters, preset=preset, fingerprint=fingerprint, fitted=fitted),
            embedder=name,
            fingerprint=fingerprint,
            splitter=splitter,
            fitted=fitted,
        )

    def like(self, secret: bytes | None = None, **changes: object) -> Key:
        """Makes a key with the same parameters, embedder, splitter and learned data, and another secret.

        Given bits and vectors are a secret, too: of a key made by `Key.from_arrays` the new key has the block size alone, and
        its bits and vectors follow from the new secret.

        Args:
            secret: The 32 bytes of the new key; drawn at random where they are not given.
            **changes: Parameters that are to differ.

        Raises:
            KeyFileError: A parameter is not known, or does not fit.

        Example:
            >>> from alimark.testing import StandInEmbedder
            >>> key = Key.generate(embedder=StandInEmbedder(), decision="soft", offsets=4)
            >>> other = key.like()
            >>> other == key, other.decision, other.offsets
            (False, 'soft', 4)
        """
        self.parameters.check_names(changes)
        return self._of(
            replace(
                self._content,
                secret=secrets.token_bytes(32) if secret is None else secret,
                parameters=replace(self.parameters, **changes),
                arrays=None,
            )
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
        """Makes an AliMark key of hard decisions with given secret bits and vectors, for experiments.

        Args:
            bits: A table of 0 and 1, one row per block. The rows repeat when a text needs more.
            vectors: Orthonormal rows, one for each bit of a block.
            embedder: The sentence embedder or its name.
            splitter: The name of the sentence splitter.
            law: The distribution that random keys are drawn from for p-values: "uniform" for fair coins, "shuffle" for a
                random order of these blocks.

        Raises:
            KeyFileError: The arrays have the wrong shape or values.

        Example:
            >>> from alimark.testing import StandInEmbedder
            >>> key = Key.from_arrays([[0, 1], [1, 1]], np.eye(2, 64), embedder=StandInEmbedder())
            >>> key.blocks(3).tolist()
            [1, 3, 1]
        """
        arrays = GivenArrays.checked(bits, vectors, law)
        name, fingerprint = _identify(embedder)
        return cls(
            arrays.secret(),
            parameters=AliMarkParameters(decision="hard", block_size=arrays.bits.shape[1]),
            embedder=name,
            fingerprint=fingerprint,
            splitter=splitter,
            arrays=arrays,
        )

    # The public parts

    @property
    def scheme(self) -> str:
        """The name of the watermark."""
        return self._content.parameters.scheme

    @property
    def parameters(self) -> SchemeParameters:
        """The parameters of the scheme, a frozen dataclass."""
        return self._content.parameters

    def parameters_as(self, kind: type[Parameters]) -> Parameters:
        """The parameters, typed as those of a given scheme; raises KeyMismatch for a key of another scheme."""
        parameters = self.parameters
        if not isinstance(parameters, kind):
            raise KeyMismatch(f"key {self.id} is of the scheme {self.scheme}, not {kind.scheme}")
        return parameters

    @property
    def embedder(self) -> str:
        """The name of the sentence embedder, empty where the scheme needs none."""
        return self._content.embedder

    @property
    def fingerprint(self) -> str:
        """The hash of the embedder's weights."""
        return self._content.fingerprint

    @property
    def splitter(self) -> str:
        """The name of the sentence splitter."""
        return self._content.splitter

    @property
    def fitted(self) -> Fitted | None:
        """The data that the scheme learned from text."""
        return self._content.fitted

    def public(self) -> JsonObject:
        """The parts that are not secret, as the key file holds them."""
        return self._content.public()

    @property
    def id(self) -> str:
        """The public name of the key, from which the secret cannot be derived."""
        return _id_of(self._content)

    def __repr__(self) -> str:
        shape = f"{self.decision} M={self.block_size} " if self._derivation is not None else ""
        return f"<Key {self.id} {self.scheme} {shape}{self.embedder}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Key) and self.id == other.id

    def __hash__(self) -> int:
        return hash(self.id)

    def __reduce__(self) -> NoReturn:
        raise TypeError("a Key cannot be pickled, since that would write its secret; use Key.save")

    def check(self, embedder: Embedder) -> None:
        """Checks that an embedder is the one this key was made for; raises KeyMismatch if not."""
        if self.embedder and embedder.fingerprint != self.fingerprint:
            raise KeyMismatch(
                f"key {self.id} was made for embedder {self.embedder} ({self.fingerprint[:19]}...), "
                f"not {embedder.name} ({embedder.fingerprint[:19]}...); use the embedder that the key names"
            )
        self.parameters.check_dimension(embedder.dimension)

    # Numbers derived from the secret, for every scheme

    @property
    def _secret(self) -> bytes:
        return self._content.secret

    def stream(self, label: str, size: int, *index: int) -> bytes:
        """Derives `size` bytes from the secret. Each use has its own label."""
        return derivation.stream(self._secret, label, size, *index)

    def normals(self, label: str, rows: int, columns: int, *index: int) -> Floats:
        """Secret random rows with approximately normal entries, not of unit length."""
        return derivation.normal_rows(self._secret, label, rows, columns, *index)

    def uniforms(self, label: str, count: int, *index: int) -> Floats:
        """Secret numbers in [0, 1)."""
        return uniforms(self.stream(label, 8 * count, *index))

    def uniform(self, label: str, text: str) -> float:
        """A number in [0, 1) that depends only on the secret and the text, for breaking ties."""
        return derivation.uniform(self._secret, label, text)

    # For AliMark only

    @property
    def derivation(self) -> Derivation:
        """The blocks and vectors of an AliMark key; raises KeyMismatch for a key of another scheme."""
        if self._derivation is None:
            raise KeyMismatch(
                f"key {self.id} is of the scheme {self.scheme}, not alimark, and has no blocks or vectors"
            )
        return self._derivation

    @property
    def decision(self) -> str:
        """AliMark's: "hard" or "soft"."""
        return self.derivation.parameters.decision

    @property
    def soft(self) -> bool:
        """AliMark's: whether sentences are chosen and detected by their projections, not by bits."""
        return self.derivation.parameters.soft

    @property
    def block_size(self) -> int:
        """AliMark's: secret bits for each sentence."""
        return self.derivation.parameters.block_size

    @property
    def span(self) -> int | None:
        """AliMark's: the number of directions that the vectors are taken from, None for the whole space."""
        return self.derivation.parameters.span

    @property
    def centre(self) -> NDArray[np.float32] | None:
        """AliMark's: a corpus mean that is subtracted from every embedding."""
        return self.derivation.parameters.centre

    @property
    def offsets(self) -> int:
        """AliMark's: a text starts at one of so many blocks; which one is secret."""
        return self.derivation.parameters.offsets

    @property
    def law(self) -> Law:
        """AliMark's: the distribution of the random keys for p-values."""
        return self.derivation.law

    @property
    def from_given_arrays(self) -> bool:
        """Whether the key was made by `Key.from_arrays`."""
        return self._content.arrays is not None

    def blocks(self, count: int) -> Packed:
        """AliMark's: the first `count` blocks of the secret bits, each packed into an integer, first bit highest.

        Those of a key that carries a payload are changed by it.
        """
        blocks = self.derivation.blocks(count)
        if not self._payload or not count:
            return blocks
        runs = self.derivation.run_numbers(count)
        return blocks ^ self.payload_code.flips(self._payload, int(runs.max()) + 1)[runs]

    @property
    def payload_bits(self) -> int:
        """AliMark's: the bits of the payloads that texts under the key carry; 0 for a key without payloads."""
        return self._derivation.parameters.payload_bits if self._derivation is not None else 0

    @property
    def payload(self) -> int | None:
        """AliMark's: the payload that texts under this key object carry; None for a key without payloads."""
        return self._payload if self.payload_bits else None

    @property
    def payload_code(self) -> PayloadCode:
        """AliMark's: the code by which payloads change the blocks."""
        return PayloadCode(self.payload_bits, self.block_size)

    def carrying(self, payload: int | None) -> Key:
        """Returns the same key for texts that carry a payload; its file and its id do not change.

        Args:
            payload: A number of `payload_bits` bits; None leaves the key as it is.

        Raises:
            AlimarkError: The key has no payloads, or the number is too large.

        Example:
            >>> from alimark.testing import StandInEmbedder
            >>> key = Key.generate(embedder=StandInEmbedder(), payload_bits=16)
            >>> key.carrying(4711).payload, key.carrying(4711) == key
            (4711, True)
        """
        if payload is None:
            return self
        if not self.payload_bits:
            raise AlimarkError(f"key {self.id} has no payloads; make a key that has: alimark keygen --payload-bits 16")
        self.payload_code.check(payload)
        key = Key.__new__(Key)
        key._content, key._derivation, key._payload = self._content, self._derivation, payload
        return key

    def null_blocks(self, first: int, count: int, length: int) -> Packed:
        """AliMark's: the blocks of `count` random keys from number `first` on, the same every time."""
        return self.derivation.null_blocks(first, count, length)

    def vectors(self, dimension: int) -> Floats:
        """AliMark's: the secret vectors, one per row."""
        return self.derivation.vectors(dimension)

    def start(self, text: str, written: int = 0) -> int:
        """AliMark's: the number of the block, from 0, that a text starts with.

        Args:
            text: An id of the text or, where texts follow their conversation, the first message of that.
            written: The number of sentences that the conversation has already, where texts follow it.
        """
        return self.derivation.start(text, written)

    @property
    def starts(self) -> Ints:
        """AliMark's: the numbers of the blocks that a text may start with.

        They are where the first `offsets` runs begin or, where texts follow their conversation, all blocks until they repeat.
        """
        return self.derivation.starts

    @property
    def follows_conversation(self) -> bool:
        """AliMark's: whether a text starts where its conversation has got to (`starts="conversation"`)."""
        return self.derivation.parameters.follows_conversation

    @property
    def run(self) -> tuple[int, ...]:
        """AliMark's: how many neighbouring sentences share each block; the last number holds for all further blocks."""
        return self.derivation.parameters.run

    # The key file

    def save(self, path: Path | str, *, overwrite: bool = False) -> None:
        """Writes the key file atomically, readable only by its owner.

        Args:
            path: The file.
            overwrite: Whether to replace an existing file.

        Raises:
            KeyFileError: The file exists, or cannot be written.
        """
        files.write(path, self._encoded(), overwrite=overwrite)

    @classmethod
    def load(cls, path: Path | str) -> Key:
        """Reads a key file. Issues a warning if other users can read it.

        Args:
            path: The file, written by this or an earlier release.

        Raises:
            KeyFileError: The file cannot be read, is not a key file, or was changed.

        Example:
            >>> from alimark.testing import StandInEmbedder
            >>> key = Key.generate(embedder=StandInEmbedder())
            >>> key.save("stored.json")
            >>> Key.load("stored.json") == key
            True
        """
        return cls._decoded(files.read(path), str(path))

    def _encoded(self) -> bytes:
        return self._content.encode(self.id)

    @classmethod
    def _decoded(cls, data: bytes, where: str) -> Key:
        content, stated = files.decode(data, where)
        if stated not in (
            None,
            _id_of(content),
        ):  # first: a hash that was changed would seem to be one of a later release
            raise KeyFileError(f"{where} was changed: its id does not match its content; restore it from a copy")
        try:
            return cls._of(content)
        except KeyFileError as error:
            raise KeyFileError(f"{where}: {error}") from None


def _id_of(content: files.KeyContent) -> str:
    return derivation.public_id(content.secret, json.dumps(content.public(), sort_keys=True).encode())


class Sealed:
    """A key that can be pickled, to send it to another process of the same operator. Its repr does not show the secret."""

    def __init__(self, key: Key) -> None:
        self.id = key.id
        self._data = key._encoded()
        self._payload = key.payload

    def open(self) -> Key:
        """The key."""
        return Key._decoded(self._data, f"key {self.id}").carrying(self._payload)

    def __repr__(self) -> str:
        return f"Sealed({self.id})"


def _identify(embedder: str | Embedder) -> tuple[str, str]:
    """The name and fingerprint of an embedder. For a model of the store they come from the manifest, without loading it."""
    if not isinstance(embedder, str):
        return embedder.name, embedder.fingerprint
    from alimark.core.models import store

    if embedder in store.names():
        return embedder, "sha256:" + store.entry(embedder).weights.sha256
    from alimark.core.embedding.loading import load_embedder

    loaded = load_embedder(embedder)
    return loaded.name, loaded.fingerprint


def load_keys(paths: Sequence[Path | str]) -> list[Key]:
    """Loads key files, and all key files (*.json) of folders in the order of their names.

    A file of a folder that is not a valid key is left out with a warning, so that the other keys can be used. Raises
    AlimarkError if there is no key file at all, and KeyFileError for a file that is named itself, or for folders without a
    valid one.
    """
    keys: list[Key] = []
    bad: list[KeyFileError] = []
    for path in map(Path, paths):
        if not path.is_dir():
            keys.append(Key.load(path))
            continue
        for file in sorted(path.glob("*.json")):
            try:
                keys.append(Key.load(file))
            except KeyFileError as error:
                bad.append(error)
                warnings.warn(f"a key was left out: {error}", stacklevel=2)
    if bad and not keys:
        raise bad[0]
    if not keys:
        raise AlimarkError(
            f"there is no key file (*.json) in {', '.join(map(str, paths))}; make a key: alimark keygen -o key.json"
        )
    return keys
