"""Keys: the same on every machine and in every release, written completely or not at all, and silent about their secret."""

import base64
import copy
import errno
import hashlib
import json
import os
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from alimark import Key
from alimark.core.frozen.derivation import many_vectors
from alimark.core.frozen.parameters import AliMarkParameters
from alimark.errors import KeyFileError, KeyMismatch
from alimark.lab.rivals.pmark import PMarkParameters
from alimark.testing import StandInEmbedder

SECRET = bytes(range(32))


def known(block_size: int) -> Key:
    parameters = AliMarkParameters(decision="hard", block_size=block_size)
    return Key(SECRET, parameters=parameters, embedder="e", fingerprint="sha256:00")


def fresh(**options: object) -> Key:
    return Key.generate(embedder=StandInEmbedder(), **options)  # type: ignore[arg-type]


class TestKnownAnswers:
    """Never change these: a key made today must mean the same in every later release."""

    def test_bits(self) -> None:
        assert known(8).blocks(12).tolist() == [9, 86, 71, 101, 25, 142, 212, 185, 214, 32, 182, 246]
        assert known(5).blocks(6).tolist() == [1, 5, 11, 4, 14, 25]

    def test_null_keys(self) -> None:
        expected = [[159, 54, 53], [49, 171, 164], [179, 166, 71], [191, 237, 107]]
        assert known(8).null_blocks(1022, 4, 3).tolist() == expected
        assert known(5).null_blocks(0, 2, 3).tolist() == [[5, 18, 30], [1, 1, 21]]

    def test_vectors(self) -> None:
        vectors = known(8).vectors(384)
        assert vectors[0, 0].hex() == "0x1.1843ecf7e7165p-5"
        assert vectors[7, -1].hex() == "-0x1.6c5b5682ac494p-5"
        digest = hashlib.sha256(vectors.astype("<f8").tobytes()).hexdigest()
        assert digest == "b09b6852b6389debe17bbd2b167f994ac00348e28b7b260c5587c237636bcff1"
        small = hashlib.sha256(known(5).vectors(64).astype("<f8").tobytes()).hexdigest()
        assert small == "8827e47f57924bbeed7ac93df9c355be94cdc2a4e846942a3fa1a71f15d31edf"

    def test_id_and_ties(self) -> None:
        assert known(8).id == "ak37d6a0a6d927201230"
        assert known(5).uniform("ties", "text").hex() == "0x1.6d924d842f230p-2"


@pytest.mark.parametrize("m", [1, 3, 8, 16, 33, 64])
def test_bits_are_one_stream_cut_into_blocks(m: int) -> None:
    bits = "".join(f"{block:0{m}b}" for block in known(m).blocks(20).tolist())
    assert bits[:20] == "".join(f"{block:08b}" for block in known(8).blocks(3).tolist())[:20]
    assert known(m).blocks(7).tolist() == known(m).blocks(20).tolist()[:7]


@pytest.mark.parametrize(("m", "dimension"), [(1, 1), (8, 384), (64, 64), (32, 768)])
def test_vectors_are_orthonormal(m: int, dimension: int) -> None:
    vectors = known(m).vectors(dimension)
    assert np.abs(vectors @ vectors.T - np.eye(m)).max() < 1e-12


def test_vectors_of_many_keys_are_those_of_each() -> None:
    keys = [fresh(decision="hard") for _ in range(5)]
    together = many_vectors([key.derivation for key in keys], 64)
    assert all(np.array_equal(together[i], key.vectors(64)) for i, key in enumerate(keys))
    with pytest.raises(KeyMismatch, match="at least as many dimensions"):
        known(64).vectors(32)


def test_null_keys_extend_in_number_and_length() -> None:
    key = fresh(decision="hard", block_size=5)
    assert np.array_equal(key.null_blocks(500, 1000, 7), key.null_blocks(0, 2100, 12)[500:1500, :7])
    uniform = fresh(decision="hard").null_blocks(0, 20_000, 2) / 255
    assert abs(uniform.mean() - 0.5) < 0.01


def test_from_arrays_and_its_null_law() -> None:
    bits = np.array([[int(b) for b in f"{v:03b}"] for v in (3, 1, 4, 0, 5, 2, 7, 6)])
    key = Key.from_arrays(bits, np.eye(3, 10), embedder=StandInEmbedder(), law="shuffle")
    assert repr(key._content.arrays) == "GivenArrays(law='shuffle')"  # given bits are a secret, too
    assert key.blocks(10).tolist() == [3, 1, 4, 0, 5, 2, 7, 6, 3, 1]
    null = key.null_blocks(0, 50, 12)
    assert all(sorted(row[:8].tolist()) == list(range(8)) for row in null)
    assert np.array_equal(null[:, 8:], null[:, :4])
    assert len({tuple(row) for row in null}) > 45
    with pytest.raises(KeyMismatch, match="10 dimensions"):
        key.vectors(11)
    for wrong in (np.full((2, 3), 2), np.zeros((0, 3)), np.zeros(3)):
        with pytest.raises(KeyFileError, match="matrix of 0 and 1"):
            Key.from_arrays(wrong, np.eye(3, 10), embedder=StandInEmbedder())
    with pytest.raises(KeyFileError, match="orthonormal"):
        Key.from_arrays(bits, np.ones((3, 10)), embedder=StandInEmbedder())


def test_decisions_are_soft_by_default() -> None:
    key = Key.generate(secret=SECRET)
    assert (key.decision, key.block_size, key.span) == ("soft", 64, 64)
    assert Key.generate(secret=SECRET, decision="soft") == key
    assert Key(SECRET, embedder=key.embedder, fingerprint=key.fingerprint) == key
    assert AliMarkParameters().soft
    hard = Key.generate(decision="hard")
    assert (hard.decision, hard.block_size, hard.span) == ("hard", 8, None)
    assert (hard.offsets, hard.start("a"), hard.start("b")) == (1, 0, 0)
    assert not Key.from_arrays([[0, 1], [1, 1]], np.eye(2, 64), embedder=StandInEmbedder()).soft


class TestLike:
    @pytest.mark.parametrize(
        "key",
        [
            fresh(decision="hard", block_size=5, offsets=3, splitter="pysbd", centre=np.linspace(0, 1, 64)),
            fresh(decision="soft", run=1),
            Key.generate(decision="soft", span=40),
            Key.generate(scheme="kgw", gamma=0.25),
            fresh(scheme="pmark", channels=3),
        ],
    )
    def test_a_like_key_differs_in_its_secret_alone(self, key: Key) -> None:
        other, again = key.like(), key.like(key._secret)
        assert other.public() == key.public()
        assert other != key
        assert again == key

    def test_parameters_may_differ(self) -> None:
        key = fresh(decision="hard", block_size=5)
        assert key.like(offsets=4).public() == key.public() | {"offsets": 4}
        with pytest.raises(KeyFileError, match="alimark has no parameter gamma"):
            key.like(gamma=0.5)
        with pytest.raises(KeyFileError, match="offsets must be"):
            key.like(offsets=0)

    def test_given_arrays_are_not_taken_over(self) -> None:
        key = Key.from_arrays([[0, 1], [1, 1]], np.eye(2, 64), embedder=StandInEmbedder(), law="shuffle")
        other = key.like()
        assert key.from_given_arrays
        assert not other.from_given_arrays
        assert (other.block_size, other.law) == (2, "uniform")


def test_what_is_alimarks_is_refused_to_other_schemes() -> None:
    key = fresh(scheme="pmark")
    for name in ("block_size", "decision", "soft", "span", "centre", "offsets", "law"):
        with pytest.raises(KeyMismatch, match="is of the scheme pmark"):
            getattr(key, name)
    with pytest.raises(KeyMismatch, match="is of the scheme pmark"):
        key.blocks(3)
    with pytest.raises(KeyMismatch, match="of the scheme pmark, not alimark"):
        key.parameters_as(AliMarkParameters)
    assert key.parameters_as(PMarkParameters).channels == 4
    assert not key.from_given_arrays


class TestFile:
    def test_round_trip(self, tmp_path: Path) -> None:
        centre = np.linspace(0, 1, 64)
        given = Key.from_arrays([[0, 1]], np.eye(2, 64), embedder=StandInEmbedder())
        for key in (fresh(), fresh(centre=centre), given):
            path = tmp_path / f"{key.id}.json"
            key.save(path)
            loaded = Key.load(path)
            assert loaded == key
            assert path.stat().st_mode & 0o777 == 0o600
            assert np.array_equal(loaded.blocks(9), key.blocks(9))
            assert np.array_equal(loaded.vectors(64), key.vectors(64))

    def test_is_not_overwritten(self, tmp_path: Path) -> None:
        path = tmp_path / "key.json"
        fresh().save(path)
        before = path.read_bytes()
        with pytest.raises(KeyFileError, match="exists"):
            fresh().save(path)
        assert path.read_bytes() == before

    def test_a_full_disk_leaves_nothing(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def full(descriptor: int) -> None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        monkeypatch.setattr(os, "fsync", full)
        with pytest.raises(KeyFileError, match="disk is full"):
            fresh().save(tmp_path / "key.json")
        assert list(tmp_path.iterdir()) == []

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            (lambda text: "", "empty"),
            (lambda text: text[: len(text) // 2], "part of one"),
            (lambda text: "[1, 2]", "not a key file"),
            (lambda text: "[" * 100_000, "not a key file"),
            (lambda text: text.replace('"version": 1', '"version": 2'), "upgrade alimark"),
            (lambda text: text.replace('"version": 1', '"version": "x"'), "missing or malformed"),
            (lambda text: text.replace('"block_size": 8', '"block_size": 9'), "was changed"),
            (lambda text: text.replace('"block_size": 8', '"block_size": 900'), "from 1 to 64"),
            (lambda text: text.replace('"block_size": 8', '"block_size": "8"'), "from 1 to 64"),
            (lambda text: text.replace('"secret"', '"other"'), "missing or malformed"),
            (lambda text: text.replace('"secret"', '"bits": [[300]], "secret"'), "missing or malformed"),
            (lambda text: text.replace('"alimark"', '"other"'), "not known to this release"),
            (lambda text: text.replace('"hard"', '"firm"'), "not known to this release"),
            (lambda text: text.replace('"hard"', '"soft"'), "soft decisions of version 1, .* make a new key"),
            (lambda text: text.replace('"hard"', '"soft", "soft_version": [1]'), "soft decisions of version"),
            (lambda text: text.replace('"hard"', '"soft", "soft_version": 3'), "was changed"),
            (lambda text: text.replace('"version"', '"span": true, "version"'), "was changed"),
        ],
    )
    def test_bad_files_are_told(self, tmp_path: Path, change: object, message: str) -> None:
        path = tmp_path / "key.json"
        key = fresh(decision="hard")
        key.save(path)
        path.write_text(change(path.read_text()))  # type: ignore[operator]
        path.chmod(0o600)
        with pytest.raises(KeyFileError, match=message) as told:
            Key.load(path)
        assert_silent(key, str(told.value), repr(told.value.__context__), repr(told.value.__cause__))

    def test_array_keys_are_checked(self, tmp_path: Path) -> None:
        path = tmp_path / "key.json"
        Key.from_arrays([[0, 1], [1, 1]], np.eye(2, 64), embedder=StandInEmbedder()).save(path)
        good = json.loads(path.read_text())
        for change in ({"bits": good["bits"][::-1]}, {"bits": [[0], [1]]}, {"vectors": None}):
            path.write_text(json.dumps(good | change))
            with pytest.raises(KeyFileError):
                Key.load(path)

    @pytest.mark.parametrize("centre", [[1.0, float("nan")], [[1.0]], [float("inf")]])
    def test_centres_are_checked(self, centre: object) -> None:
        with pytest.raises(KeyFileError, match="finite"):
            fresh(centre=centre)
        with pytest.raises(KeyMismatch, match="centre has 3"):
            fresh(centre=[1.0, 2.0, 3.0]).check(StandInEmbedder())

    def test_missing_file(self, tmp_path: Path) -> None:
        with pytest.raises(KeyFileError, match="alimark keygen"):
            Key.load(tmp_path / "none.json")
        with pytest.raises(KeyFileError, match="cannot read"):
            Key.load(tmp_path)

    def test_warns_where_others_can_read(self, tmp_path: Path) -> None:
        path = tmp_path / "key.json"
        fresh().save(path)
        path.chmod(0o644)
        with pytest.warns(UserWarning, match="chmod 600"):
            Key.load(path)


def assert_silent(key: Key, *texts: str) -> None:
    shown = {base64.b64encode(key._secret).decode(), key._secret.hex(), repr(key._secret)[2:-1]}
    for text in texts:
        assert not any(secret in text for secret in shown)


def test_nothing_shows_the_secret() -> None:
    key = fresh()
    assert_silent(key, repr(key), str(key), key.id, json.dumps(key.public()))
    with pytest.raises(TypeError, match="cannot be pickled"):
        pickle.dumps(key)
    with pytest.raises(TypeError, match="cannot be pickled"):
        copy.deepcopy(key)


def test_another_embedder_is_an_error() -> None:
    with pytest.raises(KeyMismatch, match="use the embedder that the key names"):
        fresh().check(StandInEmbedder(dimension=32))
    fresh().check(StandInEmbedder())


def test_store_embedders_need_no_download() -> None:
    key = Key.generate(embedder="all-mpnet-base-v2")
    assert key.fingerprint == "sha256:78c0197b6159d92658e319bc1d72e4c73a9a03dd03815e70e555c5ef05615658"


def test_reading_a_key_loads_neither_the_detector_nor_its_kernels(tmp_path: Path) -> None:
    Key.generate(embedder=StandInEmbedder()).save(tmp_path / "key.json")
    code = f"import sys, alimark; alimark.Key.load({str(tmp_path / 'key.json')!r}); print('numba' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
