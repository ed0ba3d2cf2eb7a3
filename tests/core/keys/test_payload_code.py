"""Payloads of keys: the code, keys that carry a payload, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from alimark import Key
from alimark.core.frozen.payload_code import PayloadCode
from alimark.core.keys.key import Sealed
from alimark.errors import AlimarkError, KeyFileError
from alimark.testing import StandInEmbedder

EMBEDDER = StandInEmbedder()
SECRET = bytes(range(32))


def key_of(**parameters: Any) -> Key:
    return Key.generate(embedder=EMBEDDER, secret=SECRET, **parameters)


@pytest.mark.parametrize(("bits", "block_size"), [(1, 32), (8, 64), (16, 32), (24, 64)])
def test_the_code_is_linear_and_leaves_the_constant_bits_alone(bits: int, block_size: int) -> None:
    code = PayloadCode(bits, block_size)
    width = block_size - code.constant
    first, second = (code.count * 5 // 7, code.count // 3)
    np.testing.assert_array_equal(code.flips(first, 6) ^ code.flips(second, 6), code.flips(first ^ second, 6))
    assert not code.flips(0, 6).any()
    assert all(int(flips) >> width == 0 for flips in code.flips(code.count - 1, 6))
    np.testing.assert_array_equal(code.flips_of_many(np.array([first, 0]), 6)[0], code.flips(first, 6))
    np.testing.assert_array_equal(code.rows(2), code.rows(9)[:2])  # a longer text extends the same code
    columns = code.columns(3)
    for run, place in ((0, 0), (2, width - 1)):
        assert int(code.flips(first, 3)[run]) >> place & 1 == (int(columns[run, place]) & first).bit_count() % 2


def test_the_code_never_changes() -> None:
    assert [hex(int(flips)) for flips in PayloadCode(16, 64).flips(4711, 2)] == ["0x65622efbd1", "0x66eb801a8d"]


def test_a_key_that_carries_a_payload_is_the_same_key_with_other_blocks(tmp_path: Path) -> None:
    key = key_of(payload_bits=16)
    carrying = key.carrying(4711)
    assert (key.payload, carrying.payload, carrying.id) == (0, 4711, key.id)
    flips = key.payload_code.flips(4711, 2)
    np.testing.assert_array_equal(carrying.blocks(12), key.blocks(12) ^ np.repeat(flips, 6))
    np.testing.assert_array_equal(carrying.null_blocks(0, 3, 12), key.null_blocks(0, 3, 12))
    carrying.save(tmp_path / "key.json")
    assert (Key.load(tmp_path / "key.json").payload_bits, Key.load(tmp_path / "key.json").payload) == (16, 0)
    assert Sealed(carrying).open().payload == 4711
    assert key.carrying(None) is key
    assert carrying.derivation is key.derivation  # which takes long, and a payload does not change the vectors


def test_keys_without_payloads_keep_their_blocks_and_refuse_a_payload() -> None:
    plain = key_of()
    assert (plain.payload_bits, plain.payload) == (0, None)
    np.testing.assert_array_equal(plain.blocks(9), key_of(payload_bits=8).blocks(9))
    with pytest.raises(AlimarkError, match="has no payloads; make a key that has: alimark keygen --payload-bits"):
        plain.carrying(1)
    rival = Key.generate(scheme="pmark", embedder=EMBEDDER, secret=SECRET)
    assert (rival.payload_bits, rival.payload) == (0, None)


@pytest.mark.parametrize("payload", [-1, 256, 1.0, "7", True])
def test_a_payload_that_does_not_fit_is_refused(payload: int) -> None:
    with pytest.raises(AlimarkError, match="a payload of 8 bits is a whole number from 0 to 255"):
        key_of(payload_bits=8).carrying(payload)


def test_payloads_need_soft_decisions_and_a_block_of_whole_bytes() -> None:
    with pytest.raises(KeyFileError, match="soft decisions"):
        key_of(decision="hard", payload_bits=8)
    with pytest.raises(KeyFileError, match="a block_size of 32 or 64, not 16"):
        key_of(block_size=16, payload_bits=8)
