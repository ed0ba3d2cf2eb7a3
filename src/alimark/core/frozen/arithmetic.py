"""Arithmetic with bit-identical results on every machine: packed bits, random numbers, orthonormal vectors.

Frozen: the numbers that keys derive are made with it, so every result has to stay the same to the last bit.

BLAS and LAPACK sum in an order that differs between machines, and what is derived from a key must not depend on it.
"""

import numpy as np
from numpy.typing import NDArray

from alimark.core._util.arrays import Packed

BYTES_A_NORMAL = 24


def pack_bits(bits: NDArray[np.uint8]) -> Packed:
    """Packs each row of bits into an integer, the first bit highest."""
    packed = np.zeros(len(bits), np.uint64)
    for column in bits.T:
        packed = (packed << np.uint64(1)) | column.astype(np.uint64)
    return packed


def normals(data: bytes, rows: int, columns: int) -> NDArray[np.float64]:
    """Approximately normal random integers: each the sum of twelve uniform ones, exact in float64."""
    numbers = np.frombuffer(data, ">u2").reshape(rows, columns, 12)
    return np.asarray(numbers.sum(axis=2, dtype=np.int64) - 6 * 65535, np.float64)


def uniforms(data: bytes) -> NDArray[np.float64]:
    """Numbers in [0, 1), each from eight bytes."""
    return np.asarray((np.frombuffer(data, ">u8") >> np.uint64(11)).astype(np.float64) / 2**53)


def orthonormal(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    """Makes the rows of each matrix orthonormal by Gram-Schmidt in a fixed order of operations, each row projected twice."""
    done = np.empty_like(rows)
    for m in range(rows.shape[1]):
        row = rows[:, m]
        for _ in range(2 if m else 0):
            for earlier in range(m):
                row = row - halving_sum(row * done[:, earlier])[:, None] * done[:, earlier]
        done[:, m] = row / np.sqrt(halving_sum(row * row))[:, None]
    return done


def halving_sum(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Sums along the last axis by adding the second half to the first until one number is left."""
    width = 1 << (values.shape[-1] - 1).bit_length()
    if width != values.shape[-1]:
        values = np.concatenate([values, np.zeros((*values.shape[:-1], width - values.shape[-1]))], axis=-1)
    while width > 1:
        width //= 2
        values = values[..., :width] + values[..., width:]
    return np.asarray(values[..., 0])
