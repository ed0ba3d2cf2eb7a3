"""Derives from a key's secret the secret bytes of every scheme, and the blocks and vectors of AliMark.

Frozen: another label or another order of operations would give each key other blocks and vectors.

Everything comes from SHAKE-256, each use under its own label, and is turned into numbers by operations that IEEE 754 defines
exactly. So a key gives the same numbers on every machine and in every release.
"""

import hashlib
from collections.abc import Sequence
from typing import Literal, NamedTuple, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from alimark.core._util.arrays import Floats, Ints, Packed
from alimark.core.frozen.arithmetic import BYTES_A_NORMAL, normals, orthonormal, pack_bits
from alimark.core.frozen.directions import DirectionTable, directions
from alimark.core.frozen.parameters import AliMarkParameters
from alimark.errors import KeyFileError, KeyMismatch

Law = Literal["uniform", "shuffle"]

_KEYS_A_CHUNK = 1024  # random keys drawn by one hash call


def stream(secret: bytes, label: str, size: int, *index: int) -> bytes:
    """Derives `size` bytes from the secret. Each use has its own label."""
    numbers = b"".join(i.to_bytes(8, "big") for i in index)
    return hashlib.shake_256(secret + b"alimark/1/" + label.encode() + b"\0" + numbers).digest(size)


def normal_rows(secret: bytes, label: str, rows: int, columns: int, *index: int) -> Floats:
    """Secret random rows with approximately normal entries, not of unit length."""
    return normals(stream(secret, label, rows * columns * BYTES_A_NORMAL, *index), rows, columns)


def uniform(secret: bytes, label: str, text: str) -> float:
    """A number in [0, 1) that depends only on the secret and the text."""
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()
    number = int.from_bytes(stream(secret, label, 8, int.from_bytes(digest[:8], "big")), "big")
    return (number >> 11) / 2**53


def public_id(secret: bytes, public: bytes) -> str:
    """The public name of a key, from which the secret cannot be derived; `public` is what its file says openly."""
    return "ak" + hashlib.sha256(public + stream(secret, "commitment", 32)).hexdigest()[:18]


class GivenArrays(NamedTuple):
    """Bits and vectors that were given instead of derived, for experiments. They must be kept secret."""

    bits: NDArray[np.uint8]
    vectors: Floats
    law: Law = "uniform"
    """The distribution of the random keys for p-values: fair coins ("uniform"), or these blocks in random order ("shuffle")."""

    @classmethod
    def checked(cls, bits: ArrayLike, vectors: ArrayLike, law: Law) -> Self:
        """Checks that the bits are a matrix of 0 and 1 and that the vectors fit them; raises KeyFileError if not."""
        rows, axes = np.asarray(bits), np.asarray(vectors, np.float64)
        if rows.ndim != 2 or not len(rows) or not np.isin(rows, (0, 1)).all():
            raise KeyFileError("bits must be a matrix of 0 and 1 with one row for each block")
        if axes.ndim != 2 or len(axes) != rows.shape[1]:
            raise KeyFileError("vectors must have one row for each bit of a block")
        if not np.allclose(axes @ axes.T, np.eye(len(axes)), atol=1e-6):
            raise KeyFileError("vectors must be orthonormal")
        if law not in ("uniform", "shuffle"):
            raise KeyFileError(f"law must be 'uniform' or 'shuffle', not {law!r}")
        return cls(rows.astype(np.uint8), axes, law)

    def __repr__(self) -> str:
        return f"GivenArrays(law={self.law!r})"  # the arrays are secret

    def secret(self) -> bytes:
        """The secret from which the random keys for p-values are drawn, where a key has these arrays."""
        content = self.bits.astype(np.uint8).tobytes() + self.vectors.astype("<f8").tobytes()
        return hashlib.shake_256(b"alimark/1/arrays" + content).digest(32)


def run_numbers(sizes: Sequence[int], count: int) -> Ints:
    """The number of the run that each of the first `count` sentences belongs to; the last of the sizes holds for all others.

    With the sizes 1 and 2 the numbers are 0, 1, 1, 2, 2, 3, 3 ...
    """
    last = max(0, -(-(count - sum(sizes)) // sizes[-1]))
    return np.repeat(np.arange(len(sizes) + last), [*sizes, *[sizes[-1]] * last])[:count]


class Derivation:
    """The secret blocks and vectors of one AliMark key, and the blocks of the random keys that it is compared with."""

    def __init__(
        self,
        secret: bytes,
        parameters: AliMarkParameters,
        fingerprint: str,
        arrays: GivenArrays | None,
        table: DirectionTable | None = None,
    ) -> None:
        self._secret, self.parameters, self.fingerprint, self.arrays = secret, parameters, fingerprint, arrays
        self.table = table
        self._vectors: dict[int, Floats] = {}

    @property
    def law(self) -> Law:
        return "uniform" if self.arrays is None else self.arrays.law

    def run_numbers(self, count: int) -> Ints:
        """The number of the run that each of the first `count` sentences belongs to; the sentences of a run share its bits."""
        if not self.parameters.follows_conversation:
            return run_numbers(self.parameters.run, count)
        return np.resize(run_numbers(self.parameters.run, self.period), count)

    @property
    def period(self) -> int:
        """The number of sentences after which the runs repeat, for a key whose texts follow their conversation."""
        return int(self.run_starts(self.parameters.offsets + 1)[-1])

    @property
    def starts(self) -> Ints:
        """The numbers of the sentences, from 0, that a text may begin with."""
        if self.parameters.follows_conversation:
            return np.arange(self.period)
        return self.run_starts(self.parameters.offsets)

    def run_starts(self, count: int) -> Ints:
        """The number of the sentence, from 0, that each of the first `count` runs begins with."""
        sizes = self.parameters.run
        return np.cumsum([0, *sizes, *[sizes[-1]] * max(0, count - len(sizes))])[:count]

    def start(self, text: str, written: int = 0) -> int:
        """The number of the sentence, from 0, that a text begins with, given its id or the first message of its conversation.

        Where texts follow their conversation, `written` sentences of it come before.
        """
        offsets = self.parameters.offsets
        first = int(self.run_starts(offsets)[int(offsets * uniform(self._secret, "start", text))])
        return (first + written) % self.period if self.parameters.follows_conversation else first

    def blocks(self, count: int) -> Packed:
        """The blocks of the first `count` sentences, each packed into an integer, first bit highest."""
        m = self.parameters.block_size
        if self.arrays is not None:
            return pack_bits(np.resize(self.arrays.bits, (count, m)))
        runs = self.run_numbers(count)
        different = int(runs.max(initial=-1)) + 1
        data = np.frombuffer(stream(self._secret, "bits", -(-different * m // 8)), np.uint8)
        return pack_bits(np.unpackbits(data)[: different * m].reshape(different, m))[runs]

    def null_blocks(self, first: int, count: int, length: int) -> Packed:
        """The blocks of `count` random keys from number `first` on. They are repeatable, and secret like the key."""
        chunks = range(first // _KEYS_A_CHUNK, -(-(first + count) // _KEYS_A_CHUNK))
        draw = self._uniform_chunk if self.law == "uniform" else self._shuffled_chunk
        runs = self.run_numbers(length)
        drawn = np.concatenate([draw(chunk, int(runs.max(initial=-1)) + 1) for chunk in chunks])
        start = first - chunks[0] * _KEYS_A_CHUNK
        return np.ascontiguousarray(drawn[start : start + count][:, runs])

    def _uniform_chunk(self, chunk: int, length: int) -> Packed:
        # One call for each block index, so that longer texts extend the same keys.
        m = self.parameters.block_size
        # Given bits repeat in longer texts, so those of random keys must repeat too.
        distinct = length if self.arrays is None else min(length, len(self.arrays.bits))
        columns = [stream(self._secret, "null", _KEYS_A_CHUNK * m // 8, chunk, j) for j in range(distinct)]
        data = np.frombuffer(b"".join(columns), np.uint8)
        if m in (8, 16, 32, 64):
            packed = data.view(f">u{m // 8}").astype(np.uint64)
        else:
            packed = pack_bits(np.unpackbits(data).reshape(-1, m))
        return np.resize(packed.reshape(distinct, _KEYS_A_CHUNK), (length, _KEYS_A_CHUNK)).T

    def _shuffled_chunk(self, chunk: int, length: int) -> Packed:
        assert self.arrays is not None
        given = pack_bits(self.arrays.bits)
        ranks = np.frombuffer(stream(self._secret, "null-shuffle", _KEYS_A_CHUNK * len(given) * 8, chunk), ">u8")
        order = np.argsort(ranks.reshape(_KEYS_A_CHUNK, len(given)), axis=1, kind="stable")
        repeats = -(-length // len(given))
        return np.tile(given[order], (1, repeats))[:, :length]

    def vectors(self, dimension: int) -> Floats:
        """The secret vectors, one per row: orthonormal, except where soft keys take them from scaled directions."""
        if self.arrays is not None:
            given = self.arrays.vectors
            if given.shape[1] != dimension:
                raise KeyMismatch(
                    f"the key's vectors have {given.shape[1]} dimensions, but the embedder has {dimension}; use the embedder "
                    "that the key names"
                )
            return given
        if dimension not in self._vectors:
            self._vectors[dimension] = many_vectors([self], dimension)[0]
        return self._vectors[dimension]

    def rows(self, dimension: int) -> Floats:
        """The random rows that become the secret vectors once they are made orthonormal."""
        m = self.parameters.block_size
        if m > dimension:
            raise KeyMismatch(
                f"a block of {m} bits needs an embedder with at least as many dimensions, but it has {dimension}; use a "
                "smaller block_size"
            )
        return normal_rows(self._secret, "vectors", m, dimension, dimension)


def many_vectors(keys: Sequence[Derivation], dimension: int) -> Floats:
    """The secret vectors of many keys of one block size, span and embedder, (keys, M, dimension)."""
    if any(key.arrays is not None for key in keys):
        return np.stack([key.vectors(dimension) for key in keys])
    span = keys[0].parameters.span
    if span is None:
        return orthonormal(np.stack([key.rows(dimension) for key in keys]))
    within = orthonormal(np.stack([key.rows(span) for key in keys]))
    if keys[0].table is not None:
        basis = keys[0].table.rows[:span]  # the scale of each direction is part of what was learned
        if basis.shape[1] != dimension:
            raise KeyMismatch(
                f"the key's directions have {basis.shape[1]} dimensions, but the embedder has {dimension}"
            )
    else:
        # The directions are stored with reduced precision, so they are made orthonormal again.
        basis = orthonormal(directions(keys[0].fingerprint, span)[None])[0]
    rotated = np.zeros((len(keys), within.shape[1], dimension))
    for k in range(span):  # a fixed order of summation gives the same bits on every machine
        rotated += within[:, :, k, None] * basis[k]
    return rotated
