"""A keyed hash from integer coordinates to 64 bits, which gives the same numbers on every device.

The random generators of torch give other numbers on a GPU than on a CPU, and generators may change between releases. Here a
number is computed from two secret words and some coordinates by additions, multiplications and shifts modulo 2**64: the
finaliser of splitmix64, once for each coordinate and once more at the end. The words come from the key's SHAKE-256 stream.
The hash is not cryptographically secure: an attacker who can query many of its values may recover the secret words.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from alimark.core._util.compiling import kernel

if TYPE_CHECKING:
    import torch

Words = NDArray[np.uint64]  # two secret words, or rows of two

GOLDEN, FIRST, SECOND = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
_GOLDEN, _FIRST, _SECOND = (np.uint64(number) for number in (GOLDEN, FIRST, SECOND))
_27, _30, _31 = np.uint64(27), np.uint64(30), np.uint64(31)
_11, _SCALE = np.uint64(11), 2.0**-53


def words(data: bytes) -> Words:
    """Rows of two secret words, each row from sixteen bytes."""
    return np.frombuffer(data, ">u8").astype(np.uint64).reshape(-1, 2)


def mix(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The finaliser of splitmix64."""
    x = (x ^ (x >> _30)) * _FIRST
    x = (x ^ (x >> _27)) * _SECOND
    return x ^ (x >> _31)


def hashed(secret: Words, *coordinates: NDArray[np.integer]) -> NDArray[np.uint64]:
    """The 64-bit hash of the coordinates, which are non-negative integers in arrays that broadcast together.

    The last axis of `secret` has the two words; its other axes broadcast with the coordinates.
    """
    bits = secret[..., 0]
    with np.errstate(over="ignore"):
        for place in coordinates:
            bits = mix(bits + (place.astype(np.uint64) + np.uint64(1)) * _GOLDEN)
        return mix(bits ^ secret[..., 1])


def unit(bits: NDArray[np.uint64]) -> NDArray[np.float64]:
    """Converts hashes to numbers strictly between 0 and 1."""
    return np.asarray(((bits >> _11).astype(np.float64) + 0.5) * _SCALE)


_mixed: Callable[[Any], Any] = kernel()(mix)


@kernel()
def hashed_pair(first: np.uint64, second: np.uint64, a: np.uint64, b: np.uint64) -> np.uint64:
    """`hashed` of two coordinates, for Numba kernels."""
    bits = _mixed(first + (a + np.uint64(1)) * _GOLDEN)
    bits = _mixed(bits + (b + np.uint64(1)) * _GOLDEN)
    return np.uint64(_mixed(bits ^ second))


# The same on torch, which has only signed 64-bit integers: additions and multiplications wrap in the same way, and shifts are
# masked to be logical.


def on(device: torch.device | str, secret: Words) -> torch.Tensor:
    """The secret words as a tensor on a device."""
    import torch

    return torch.from_numpy(secret.view(np.int64).copy()).to(device)


def torch_hashed(secret: torch.Tensor, *coordinates: torch.Tensor) -> torch.Tensor:
    """`hashed` on torch: the same bits, as signed integers."""
    bits = secret[..., 0]
    for place in coordinates:
        bits = _torch_mix(bits + (place + 1) * _signed(GOLDEN))
    return _torch_mix(bits ^ secret[..., 1])


def torch_unit(bits: torch.Tensor) -> torch.Tensor:
    """`unit` on torch."""
    import torch

    return (_shifted(bits, 11).to(torch.float64) + 0.5) * _SCALE


def _torch_mix(x: torch.Tensor) -> torch.Tensor:
    x = (x ^ _shifted(x, 30)) * _signed(FIRST)
    x = (x ^ _shifted(x, 27)) * _signed(SECOND)
    return x ^ _shifted(x, 31)


def _shifted(x: torch.Tensor, by: int) -> torch.Tensor:
    return (x >> by) & ((1 << (64 - by)) - 1)


def _signed(number: int) -> int:
    return number - (1 << 64) if number >> 63 else number
