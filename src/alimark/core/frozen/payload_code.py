"""The code by which a payload, a short message inside the mark, changes the secret blocks of a key.

Frozen: another code would give marked texts another payload.

A run of sentences shares a block of secret bits. The first bits of every block never change: they are what detection and
alignment rest on. The other bits are flipped where the payload's code word for the run says so. The code words of a payload
are a random linear code: each bit of the payload that is set flips a fixed random half of these bits, another half in every
run, so that any few runs of a text are enough to tell payloads apart. The code is public; the blocks are secret.
"""

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from alimark.core._util.arrays import Ints, Packed
from alimark.core.frozen.derivation import stream
from alimark.errors import AlimarkError


class PayloadCode:
    """The code of all payloads of a given number of bits."""

    def __init__(self, bits: int, block_size: int) -> None:
        self.bits, self.block_size = bits, block_size
        self.constant = 3 * block_size // 64 * 8
        """The number of bits at the start of each block that no payload flips: three eighths, in whole bytes. More of them
        would help detection, fewer would help to tell payloads apart (docs/payload.md)."""

    @property
    def count(self) -> int:
        """The number of payloads."""
        return 1 << self.bits

    def check(self, payload: int) -> None:
        """Checks that a payload fits; raises AlimarkError if not."""
        if type(payload) is not int or not 0 <= payload < self.count:
            raise AlimarkError(
                f"a payload of {self.bits} bits is a whole number from 0 to {self.count - 1}, not {payload!r}"
            )

    def rows(self, runs: int) -> NDArray[np.uint64]:
        """For each run and each bit of a payload, lowest first, the bits of the block that it flips, (runs, bits)."""
        return _rows(self.bits, self.block_size - self.constant, runs)

    def columns(self, runs: int) -> NDArray[np.uint32]:
        """For each run and each bit that may be flipped, lowest first, the payload bits that flip it, (runs, M - constant)."""
        places = np.arange(self.block_size - self.constant, dtype=np.uint64)
        flipped = (self.rows(runs)[:, None, :] >> places[:, None] & np.uint64(1)).astype(np.uint32)
        columns: NDArray[np.uint32] = (flipped << np.arange(self.bits, dtype=np.uint32)).sum(axis=2, dtype=np.uint32)
        return columns

    def flips(self, payload: int, runs: int) -> Packed:
        """The bits that a payload flips in the block of each of the first `runs` runs, packed like blocks."""
        chosen = [bit for bit in range(self.bits) if payload >> bit & 1]
        flips: Packed = np.bitwise_xor.reduce(self.rows(runs)[:, chosen], axis=1)
        return flips

    def flips_of_many(self, payloads: Ints, runs: int) -> Packed:
        """`flips` of each of many payloads, (payloads, runs)."""
        flips = np.zeros((len(payloads), runs), np.uint64)
        for bit, row in enumerate(self.rows(runs).T):
            flips[(payloads >> bit & 1).astype(bool)] ^= row
        return flips


@lru_cache(maxsize=64)
def _rows(bits: int, width: int, runs: int) -> NDArray[np.uint64]:
    """A call for each run, so that longer texts extend the same code."""
    data = b"".join(stream(b"", "payload code", 8 * bits, bits, width, run) for run in range(runs))
    return np.frombuffer(data, ">u8").astype(np.uint64).reshape(runs, bits) >> np.uint64(64 - width)
