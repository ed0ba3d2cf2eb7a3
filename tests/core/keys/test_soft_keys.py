"""Keys for soft decisions: their files, runs of sentences that share a block, learned directions, and payloads."""

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from alimark import Key
from alimark.core.frozen import directions
from alimark.core.frozen.arithmetic import orthonormal
from alimark.core.frozen.derivation import many_vectors
from alimark.core.frozen.directions import noise_aware
from alimark.core.frozen.parameters import DEFAULT_RUN, SOFT_FIELDS
from alimark.core.frozen.payload_code import PayloadCode
from alimark.core.keys.key import Sealed
from alimark.core.keys.projection import carried, project, targets
from alimark.core.models import store
from alimark.errors import AlimarkError, KeyFileError, KeyMismatch
from fixed_texts import EMBEDDER, soft_key

SECRET = bytes(range(32))


def key_of(**parameters: Any) -> Key:
    return Key.generate(**{"embedder": EMBEDDER, "secret": SECRET, **parameters})


def shipped(**parameters: Any) -> Key:
    """A key of an embedder whose table of directions ships with the package; the embedder itself is not loaded."""
    return Key.generate(**{"secret": SECRET, **parameters})


def changed(folder: Path, key: Key, **fields: object) -> Path:
    """The file of a key with other values in some fields; one that is `...` is taken out."""
    path = folder / "key.json"
    path.unlink(missing_ok=True)
    key.save(path)
    content = json.loads(path.read_text()) | fields
    path.write_text(json.dumps({name: value for name, value in content.items() if value is not ...}))
    return path


# The key file


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"soft_version": 99}, "upgrade"),
        ({"soft_version": True}, "upgrade"),
        ({"soft_version": 2}, "make a new key"),
        ({"soft_version": 1}, "make a new key"),
        ({"soft_version": ...}, r"key\.json: it has soft decisions of version 1, .* alimark keygen"),
        (
            {"directions": "sha256:" + "0" * 64, "id": ...},  # of a later release
            r"directions sha256:000000000000\.\.\. are not known .* upgrade alimark",
        ),
        ({"directions": "sha256:" + "0" * 64}, "was changed"),
        ({"fingerprint": "sha256:" + "0" * 64}, "was changed"),
        ({"directions": False}, "directions must be"),
        ({"directions": None, "id": ...}, "both a span and a table of directions, or neither"),
        ({"span": None, "id": ...}, "both a span and a table of directions, or neither"),
        ({"run": [5]}, "id"),
    ],
)
def test_a_changed_file_is_refused_with_advice(tmp_path: Path, fields: dict[str, object], words: str) -> None:
    with pytest.raises(KeyFileError, match=words):
        Key.load(changed(tmp_path, shipped(), **fields))


def test_vectors_of_a_hard_key_with_a_span_lie_in_the_directions_of_their_embedder() -> None:
    fingerprint = "sha256:" + store.entry("all-MiniLM-L6-v2").weights.sha256
    key = Key.generate(secret=bytes(32), decision="hard", block_size=16, span=24)
    assert key.fingerprint == fingerprint
    vectors = key.vectors(384)
    np.testing.assert_allclose(vectors @ vectors.T, np.eye(16), atol=1e-12)
    basis = np.linalg.qr(directions.directions(fingerprint, 24).T)[0]
    np.testing.assert_allclose(np.linalg.norm(vectors @ basis, axis=1), 1, atol=1e-12)
    # The same in every release: a text marked today is found by it.
    pinned = [-0.05325479686007179, 0.056260087496271524, -0.014375107306856547]
    assert vectors[0, :3] == pytest.approx(pinned, abs=1e-12)


@pytest.mark.parametrize(("span", "m"), [(8, 16), (65, 16), (-1, 16)])
def test_a_span_that_does_not_fit_is_refused(span: int, m: int) -> None:
    with pytest.raises(KeyFileError, match="span"):
        Key.generate(decision="soft", block_size=m, span=span)


def test_worth_is_the_projection_along_the_block() -> None:
    key = soft_key(0)
    rows = project(EMBEDDER.embed(["One sentence.", "Another one."]), key)
    target = targets(key, 3)[2]
    assert np.linalg.norm(target) == pytest.approx(1)
    soft = carried(rows, target, key)
    after_a_rewrite = np.sqrt((rows**2).mean(axis=1) + 0.5)
    assert [sentence.worth for sentence in soft] == pytest.approx((rows @ target / after_a_rewrite).tolist())
    assert [sentence.bits for sentence in soft] == ((rows >= 0) == (target > 0)).sum(axis=1).tolist()


def test_the_default_key_has_the_table_of_its_embedder() -> None:
    key = shipped()
    table: Any = noise_aware("sha256:" + store.entry("all-MiniLM-L6-v2").weights.sha256)
    assert (key.run, key.span) == (DEFAULT_RUN, 64)
    public = key.public()
    assert {name: public[name] for name in SOFT_FIELDS} == {
        "run": list(DEFAULT_RUN), "directions": table.digest, "text_version": 1, "starts": "text", "payload_bits": 0,
    }  # fmt: skip


def test_the_file_of_a_soft_key_names_every_field_and_that_of_a_hard_key_none(tmp_path: Path) -> None:
    for key in (shipped(), key_of(), key_of(run=[1, 2, 4], offsets=8)):
        path = changed(tmp_path, key)
        assert set(SOFT_FIELDS) <= set(json.loads(path.read_text()))
        again = Key.load(path)
        assert (again, again.run, again.public()) == (key, key.run, key.public())
        np.testing.assert_array_equal(again.blocks(9), key.blocks(9))
    hard = key_of(decision="hard")
    assert not set(SOFT_FIELDS) & set(hard.public())
    assert hard.run == (1,)


def test_every_field_is_part_of_the_id() -> None:
    assert len({key_of(run=run).id for run in (1, 2, (1, 2), (2, 1))}) == 4


@pytest.mark.parametrize(("given_run", "run"), [(3, (3,)), ([3], (3,)), ((1, 2, 4), (1, 2, 4)), ([1, 1, 2], (1, 1, 2))])
def test_a_run_is_a_number_or_a_schedule(tmp_path: Path, given_run: object, run: tuple[int, ...]) -> None:
    key = key_of(run=given_run)
    assert key.run == run
    path = changed(tmp_path, key)
    assert json.loads(path.read_text())["run"] == list(run)
    if isinstance(given_run, int):  # as a number in the file it means the same key
        assert Key.load(changed(tmp_path, key, run=given_run)) == key


@pytest.mark.parametrize("run", [0, -1, 65, True, "4", 2.0, None, [], [4, 0], [4, "2"], [[4]]])
def test_a_run_that_is_none_is_refused(run: object) -> None:
    with pytest.raises(KeyFileError, match="run must be one or more whole numbers from 1 to 64"):
        key_of(run=run)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("text_version", 2), ("text_version", True), ("text_version", "0"), ("text_version", None),
        ("starts", "prompt"), ("starts", 0), ("payload_bits", 25), ("payload_bits", False),
    ],
)  # fmt: skip
def test_values_of_later_releases_are_refused_with_advice(tmp_path: Path, field: str, value: object) -> None:
    with pytest.raises(KeyFileError, match=rf"key\.json: {field} .* is not known to this release; upgrade alimark"):
        Key.load(changed(tmp_path, key_of(), **{field: value}))
    with pytest.raises(KeyFileError, match="upgrade alimark"):
        key_of(**{field: value})


@pytest.mark.parametrize("field", [{"run": 4}, {"directions": "sha256:0"}])
def test_hard_keys_do_not_take_the_fields(field: dict[str, Any]) -> None:
    with pytest.raises(KeyFileError, match="parameters of soft decisions"):
        key_of(decision="hard", **field)
    with pytest.raises(KeyFileError, match="alimark has no parameter soft_version"):
        key_of(soft_version=2)


def test_the_whole_space_has_no_table() -> None:
    for key in (shipped(span=0), key_of()):
        assert (key.span, key.public()["directions"], key.block_size) == (None, None, 32)
    with pytest.raises(KeyFileError, match="span"):
        key_of(span=32)


# Runs

runs = st.one_of(st.integers(1, 64).map(lambda size: (size,)), st.lists(st.integers(1, 9), min_size=1).map(tuple))


def plain_run_numbers(run: tuple[int, ...], count: int) -> list[int]:
    """The number of each sentence's run, counted one sentence at a time."""
    numbers: list[int] = []
    number = 0
    while len(numbers) < count:
        numbers += [number] * run[min(number, len(run) - 1)]
        number += 1
    return numbers[:count]


@given(run=runs, count=st.integers(0, 60))
def test_run_numbers_and_starts_follow_the_schedule(run: tuple[int, ...], count: int) -> None:
    derivation = key_of(run=run).derivation
    numbers = plain_run_numbers(run, count)
    assert derivation.run_numbers(count).tolist() == numbers
    starts = [i for i in range(count) if i == 0 or numbers[i] != numbers[i - 1]]
    assert derivation.run_starts(len(starts)).tolist() == starts


@given(run=runs, count=st.integers(1, 40), longer=st.integers(0, 40))
def test_the_sentences_of_a_run_share_a_block(run: tuple[int, ...], count: int, longer: int) -> None:
    key, single = key_of(run=run), key_of(run=1)
    numbers = plain_run_numbers(run, count)
    blocks = key.blocks(count)
    assert blocks.tolist() == single.blocks(numbers[-1] + 1)[numbers].tolist()  # runs change no bits, but who has them
    assert len(set(blocks.tolist())) == numbers[-1] + 1
    assert key.blocks(count + longer)[:count].tolist() == blocks.tolist()
    null = key.null_blocks(1020, 9, count)
    assert null.shape == (9, count)
    assert null.tolist() == single.null_blocks(1020, 9, numbers[-1] + 1)[:, numbers].tolist()
    assert key.null_blocks(1020, 9, count + longer)[:, :count].tolist() == null.tolist()
    assert len({tuple(row) for row in null.tolist()}) == 9


@given(run=runs, offsets=st.integers(1, 40))
def test_a_text_starts_where_a_run_does(run: tuple[int, ...], offsets: int) -> None:
    key = key_of(run=run, offsets=offsets)
    assert key.starts.tolist() == key.derivation.run_starts(offsets).tolist()
    assert {key.start(f"text {number}") for number in range(30)} <= set(key.starts.tolist())
    if offsets == 1:
        assert key.starts.tolist() == [0]


def test_every_start_is_taken_by_some_text() -> None:
    key = key_of(run=[1, 2, 4], offsets=6)
    assert key.starts.tolist() == [0, 1, 3, 7, 11, 15]
    assert {key.start(str(number)) for number in range(200)} == {0, 1, 3, 7, 11, 15}


def test_a_key_that_follows_conversations_repeats_its_runs_and_starts_anywhere() -> None:
    key, plain = key_of(starts="conversation"), key_of()
    assert (key.offsets, key.follows_conversation, key.starts.tolist()) == (4, True, list(range(24)))
    assert key.blocks(40).tolist() == np.resize(plain.blocks(24), 40).tolist()
    assert key.null_blocks(1020, 9, 40).tolist() == np.tile(plain.null_blocks(1020, 9, 24), (1, 2))[:, :40].tolist()
    assert {key.start(f"question {number}") for number in range(60)} == {0, 6, 12, 18}
    first = key.start("a question")
    assert [key.start("a question", written) for written in range(40)] == [(first + n) % 24 for n in range(40)]
    assert Key._of(key._content).public()["starts"] == "conversation"
    uneven = key_of(starts="conversation", run=[1, 2], offsets=3)
    assert uneven.starts.tolist() == [0, 1, 2, 3, 4]
    assert uneven.blocks(12).tolist() == np.resize(key_of(run=[1, 2]).blocks(5), 12).tolist()


@pytest.mark.parametrize("parameters", [{"offsets": 1}, {"decision": "hard"}])
def test_some_keys_cannot_follow_a_conversation(parameters: dict[str, Any]) -> None:
    with pytest.raises(KeyFileError, match=r"offsets|soft decisions"):
        key_of(starts="conversation", **parameters)


def test_selection_aims_at_the_block_of_the_run() -> None:
    key = key_of(run=[2, 3], offsets=3)
    directions = targets(key, 12)
    assert [i for i in range(1, 12) if not np.array_equal(directions[i], directions[i - 1])] == [2, 5, 8, 11]
    np.testing.assert_array_equal(targets(key, 4, start=5), directions[5:9])


# Vectors


@pytest.mark.parametrize(("block_size", "span"), [(32, 32), (16, 24), (8, 64)])
def test_vectors_are_a_secret_rotation_of_the_scaled_directions(block_size: int, span: int) -> None:
    key = shipped(block_size=block_size, span=span)
    table: Any = noise_aware(key.fingerprint)
    rotation = orthonormal(key.normals("vectors", block_size, span, span)[None])[0]
    np.testing.assert_allclose(rotation @ rotation.T, np.eye(block_size), atol=1e-12)
    np.testing.assert_allclose(key.vectors(384), rotation @ table.rows[:span], atol=1e-9)
    products = key.vectors(384) @ key.vectors(384).T
    assert not np.allclose(products, np.diag(np.diag(products)), atol=1e-3)  # not made orthonormal
    other = shipped(block_size=block_size, span=span, secret=bytes(32))
    assert not np.allclose(other.vectors(384), key.vectors(384))
    together = many_vectors([other.derivation, key.derivation], 384)
    np.testing.assert_array_equal(together, [other.vectors(384), key.vectors(384)])


def test_projections_are_taken_from_the_mean_of_the_table() -> None:
    key = shipped()
    table: Any = noise_aware(key.fingerprint)
    rows = np.random.default_rng(1).normal(size=(3, 384)).astype(np.float32)
    np.testing.assert_allclose(project(rows, key), (rows - table.mean) @ key.vectors(384).T, atol=1e-9)


def test_an_embedder_of_other_dimensions_is_refused() -> None:
    with pytest.raises(KeyMismatch, match="384 dimensions, but the embedder has 64"):
        shipped().vectors(64)


# The directions that are shipped


def test_what_ships_is_never_changed() -> None:
    """Keys rest on these numbers; new ones are for a new version, under names of their own."""
    with np.load(directions.FILE) as content:
        digests = {name[7:15] + name[71:]: hashlib.sha256(rows.tobytes()).hexdigest() for name, rows in content.items()}
    assert {name: digest[:16] for name, digest in digests.items()} == {
        "53aa5117": "de8fbc8ef0db5fd9", "53aa5117/mean": "96a0c7e377f1bdc9",
        "78c0197b": "d14bf1f9c4bffa62", "78c0197b/mean": "88d0b034cccc4405",
    }  # fmt: skip


# Selection


def test_a_candidate_along_the_direction_is_preferred_to_one_that_is_far_out() -> None:
    key = key_of()
    target = targets(key, 1)[0]
    side = np.roll(target, 1) * np.where(np.arange(len(target)) % 2, 1, -1)
    side -= (side @ target) * target
    scale = np.sqrt(len(target))
    aligned, far_out = scale * target, scale * (1.2 * target + 3 * side / np.linalg.norm(side))
    first, second = (carry.worth for carry in carried(np.stack([aligned, far_out]), target, key))
    assert first > second


# Payloads: the code, keys that carry a payload, and what is refused


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
