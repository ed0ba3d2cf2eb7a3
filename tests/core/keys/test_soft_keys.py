"""Keys for soft decisions: their files, their vectors and the span of directions that they lie in."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from alimark import Key
from alimark.core.frozen import directions
from alimark.core.keys.key import SOFT_VERSION
from alimark.core.keys.projection import carried, project, targets
from alimark.core.models import store
from alimark.errors import KeyFileError
from fixed_texts import EMBEDDER, soft_key


def test_a_soft_key_is_as_it_was_saved(tmp_path: Path) -> None:
    key = Key.generate(decision="soft")
    assert (key.block_size, key.span, key.soft_version) == (64, 64, SOFT_VERSION)
    key.save(tmp_path / "key.json")
    again = Key.load(tmp_path / "key.json")
    assert (again, again.span, again.soft) == (key, 64, True)
    assert np.array_equal(again.vectors(384), key.vectors(384))
    content = json.loads((tmp_path / "key.json").read_text())
    (tmp_path / "key.json").write_text(json.dumps(content | {"soft_version": 99}))
    with pytest.raises(KeyFileError, match="upgrade"):
        Key.load(tmp_path / "key.json")


def test_vectors_lie_in_the_directions_of_their_embedder() -> None:
    fingerprint = "sha256:" + store.entry("all-MiniLM-L6-v2").weights.sha256
    key = Key.generate(secret=bytes(32), decision="soft", soft_version=2, block_size=16, span=24)
    assert key.fingerprint == fingerprint
    vectors = key.vectors(384)
    np.testing.assert_allclose(vectors @ vectors.T, np.eye(16), atol=1e-12)
    basis = np.linalg.qr(directions.directions(fingerprint, 24).T)[0]
    np.testing.assert_allclose(np.linalg.norm(vectors @ basis, axis=1), 1, atol=1e-12)
    # The same in every release: a text marked today is found by it.
    assert vectors[0, :3] == pytest.approx(PINNED, abs=1e-12)


PINNED = [-0.05325479686007179, 0.056260087496271524, -0.014375107306856547]


@pytest.mark.parametrize(("span", "m"), [(8, 16), (65, 16), (-1, 16)])
def test_a_span_that_does_not_fit_is_refused(span: int, m: int) -> None:
    with pytest.raises(KeyFileError, match="span"):
        Key.generate(decision="soft", block_size=m, span=span)


def test_the_whole_space_can_be_asked_for() -> None:
    assert Key.generate(decision="soft", span=0).span is None
    assert Key.generate(decision="soft", span=0).block_size == 32


def test_an_embedder_without_directions_is_used_whole() -> None:
    key = Key.generate(decision="soft", embedder=EMBEDDER)
    assert key.span is None
    with pytest.raises(KeyFileError, match="span"):
        Key.generate(decision="soft", embedder=EMBEDDER, span=32)


def test_hard_keys_have_no_version_to_differ_by(tmp_path: Path) -> None:
    key = Key.generate(embedder=EMBEDDER, decision="hard", secret=bytes(32))
    key.save(tmp_path / "key.json")
    assert Key.load(tmp_path / "key.json").soft_version == key.soft_version
    assert Key.generate(decision="soft", soft_version=1, embedder=EMBEDDER).soft_version == 1
    with pytest.raises(KeyFileError, match="kgw has no parameter soft_version"):
        Key.generate(scheme="kgw", soft_version=1)


def test_worth_is_the_projection_along_the_block() -> None:
    key = soft_key(0)
    rows = project(EMBEDDER.embed(["One sentence.", "Another one."]), key)
    target = targets(key, 3)[2]
    assert np.linalg.norm(target) == pytest.approx(1)
    soft = carried(rows, target, key)
    after_a_rewrite = np.sqrt((rows**2).mean(axis=1) + 0.5)
    assert [sentence.worth for sentence in soft] == pytest.approx((rows @ target / after_a_rewrite).tolist())
    assert [sentence.bits for sentence in soft] == ((rows >= 0) == (target > 0)).sum(axis=1).tolist()
