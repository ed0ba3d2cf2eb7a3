"""Rotation: the successor of a key has its public parameters and another secret."""

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from services import serving, serving_again, set_up
from stand_ins import stand_in_service

from alimark.core.keys.fitted import Fitted
from alimark.core.keys.key import Key
from alimark.errors import KeyFileError, KeyMismatch
from alimark.serve.ring import Ring
from alimark.testing import StandInEmbedder

SMALL = StandInEmbedder(32)


@pytest.fixture
def ring(tmp_path: Path) -> Iterator[Ring]:
    service = stand_in_service(tmp_path)
    yield service.ring
    service.close()


DIRECTIONS = Fitted(
    "alimark",
    {"directions": np.eye(24, 64, dtype="<f4"), "mean": np.zeros(64, "<f4")},
    {"embedder": "stand-in", "fingerprint": StandInEmbedder().fingerprint},
)


def successor(ring: Ring, key: Key, embedder: str | StandInEmbedder) -> Key:
    ring.add(key)
    return ring.key(ring.rotate(key.id, embedder).id)


@pytest.mark.parametrize(
    "key",
    [
        Key.generate(embedder=StandInEmbedder(), decision="hard", splitter="blingfire"),
        Key.generate(embedder=StandInEmbedder(), decision="hard", block_size=5, centre=np.linspace(0, 1, 64)),
        Key.generate(embedder="all-MiniLM-L6-v2", decision="soft", block_size=16, span=48),
        Key.generate(embedder="all-MiniLM-L6-v2", decision="soft", span=0),
        Key.generate(embedder="all-MiniLM-L6-v2", decision="hard", span=24),
        Key.generate(embedder=StandInEmbedder(), run=[1, 2], offsets=3),
        Key.generate(embedder=StandInEmbedder(), fitted=DIRECTIONS, block_size=16, span=20),
    ],
    ids=["splitter", "centre", "span", "whole space", "span of a hard key", "runs", "learned directions"],
)
def test_nothing_but_the_secret_changes_with_the_same_embedder(ring: Ring, key: Key) -> None:
    embedder = StandInEmbedder() if key.embedder == "stand-in" else key.embedder
    new = successor(ring, key, embedder)
    assert new.public() == key.public()
    assert new != key
    assert new.stream("x", 8) != key.stream("x", 8)


def test_another_embedder_takes_over_what_does_not_depend_on_the_embedder(ring: Ring) -> None:
    key = Key.generate(
        embedder="all-MiniLM-L6-v2", decision="hard", block_size=16, span=24, offsets=3, splitter="blingfire",
        centre=np.zeros(384),
    )  # fmt: skip
    new = successor(ring, key, SMALL)
    new.check(SMALL)
    assert (new.decision, new.block_size, new.offsets) == ("hard", 16, 3)
    assert (new.splitter, new.centre, new.span) == ("blingfire", None, None)
    runs = successor(ring, Key.generate(embedder="all-MiniLM-L6-v2", block_size=16, run=[1, 3]), SMALL)
    assert (runs.run, runs.span, runs.public()["directions"]) == ((1, 3), None, None)
    larger = successor(ring, Key.generate(embedder=SMALL, decision="soft", block_size=16), "all-mpnet-base-v2")
    assert (larger.embedder, larger.block_size, larger.span) == ("all-mpnet-base-v2", 16, 32)


def test_a_key_that_ended_is_read_again_for_its_parameters(ring: Ring, tmp_path: Path) -> None:
    key = Key.generate(embedder=StandInEmbedder(), decision="hard", block_size=5)
    ring.add(key)
    ring.retire(key.id)
    service = stand_in_service(tmp_path)  # another process has never loaded it
    assert service.ring.key(service.ring.rotate(key.id, StandInEmbedder()).id).block_size == 5
    service.close()


def test_an_embedder_with_too_few_dimensions_is_refused(ring: Ring) -> None:
    label = ring.add(Key.generate(embedder=StandInEmbedder(), decision="hard", block_size=40))
    with pytest.raises(KeyMismatch, match="at least as many dimensions"):
        ring.rotate(label.id, SMALL)
    assert ring.all() == [label]


def test_a_key_of_given_arrays_is_not_rotated(ring: Ring) -> None:
    key = Key.from_arrays([[0, 1], [1, 0]], np.eye(2, 64), embedder=StandInEmbedder())
    label = ring.add(key)
    with pytest.raises(KeyFileError, match="given arrays"):
        ring.rotate(key.id, StandInEmbedder())
    assert ring.all() == [label]


def test_the_service_goes_on_after_a_rotation_to_its_embedder(tmp_path: Path) -> None:
    with serving(tmp_path) as running, running.client("admin") as admin, running.client("generate") as writer:
        old = Key.generate(embedder=SMALL, decision="hard", centre=np.full(32, 0.1))
        running.service.ring.add(old)
        new = admin.post(f"/v1/keys/{old.id}/rotate", json={"ends": 4e9}).json()["id"]
        answer = writer.post("/v1/completions", json={"prompt": "So.", "seed": 4})
        assert answer.status_code == 200
        assert answer.json()["alimark"]["key_id"] == new
        with running.client("detect") as reader:
            look = {"input": answer.json()["choices"][0]["text"], "keys": [new]}
            assert reader.post("/v1/detect", json=look).status_code == 200
            arrays = Key.from_arrays([[0, 1]], np.eye(2, 64), embedder=StandInEmbedder())
            running.service.ring.add(arrays)
        refused = admin.post(f"/v1/keys/{arrays.id}/rotate", json={})
        assert refused.status_code == 409
        assert "given arrays" in refused.text


def test_what_is_left_of_a_key_that_was_never_finished_is_removed(
    ring: Ring, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A process that is killed while it writes a key leaves the secret in a hidden file."""
    old, new = (tmp_path / "keys" / f".ak0123456789abcdef0{n}.json.00112233aabb.part" for n in (1, 2))
    for path in (old, new):
        path.write_text("secret")
    os.utime(old, (0, 0))
    with caplog.at_level("WARNING", "alimark.serve"):
        ring.reload()
    assert (old.exists(), new.exists()) == (False, True), "another process may be writing the new one"
    assert [record.__dict__["file"] for record in caplog.records] == [old.name]


def test_a_bad_key_is_set_aside_and_the_others_work(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    tokens = set_up(tmp_path)
    bad, elsewhere = (Key.generate(embedder=SMALL, secret=bytes([n]) * 32) for n in (1, 2))
    service = stand_in_service(tmp_path)
    for key in (bad, elsewhere):  # nobody has the embedder of the second one
        service.ring.add(key)
    service.close()
    path = tmp_path / "keys" / f"{bad.id}.json"
    path.write_text(path.read_text().replace('"version": 1', '"bits": [[999]], "version": 1'))
    with caplog.at_level("WARNING", "alimark.serve"):
        service = stand_in_service(tmp_path)
    assert [record.__dict__["key"] for record in caplog.records] == [bad.id]
    assert bad.id in service.ring.set_aside
    service.close()
    with serving_again(tmp_path, tokens) as running, running.client("detect") as client:
        answer = client.post("/v1/detect", json={"input": "One came. Two went. Three stayed."})
        assert answer.status_code == 200
        [result] = answer.json()["results"]
        assert result["key_id"] == running.key.id
        assert any("some keys could not be used" in warning for warning in result["warnings"])
        named = client.post("/v1/detect", json={"input": "One came.", "keys": [elsewhere.id]})
        assert named.status_code == 409
