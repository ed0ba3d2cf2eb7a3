"""`alimark serve rotate`: new keys for an installation, like the old ones or of the newest version."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

pytest.importorskip("fastapi")

from alimark import AliMark
from alimark.core.frozen.parameters import SOFT_VERSION
from alimark.core.keys.key import Key
from alimark.serve.database import Store
from alimark.serve.ring import Ring
from alimark.testing import StandInEmbedder, StandInLLM
from commands import Run

EMBEDDER = StandInEmbedder()
SECRET = bytes(range(32))


@contextmanager
def ring_in(data: Path) -> Iterator[Ring]:
    data.mkdir(exist_ok=True)
    store = Store(f"sqlite:///{data / 'alimark.db'}")
    try:
        yield Ring(data / "keys", store)
    finally:
        store.close()


def add(data: Path, key: Key, tenant: str = "") -> Key:
    with ring_in(data) as ring:
        ring.add(key, tenant=tenant)
    return key


@pytest.mark.parametrize(
    "old",
    [
        Key.generate(secret=SECRET, embedder=EMBEDDER, decision="hard", splitter="blingfire", offsets=4),
        Key.generate(secret=SECRET, embedder=EMBEDDER, decision="soft", soft_version=1),
    ],
    ids=["hard", "an older version"],
)
def test_an_upgrade_has_the_newest_version_and_finds_the_texts_of_the_old_key(
    run: Run, tmp_path: Path, old: Key
) -> None:
    text = AliMark(old, embedder=EMBEDDER).generate("It was late.", StandInLLM(), sentences=12, seed=1).text
    add(tmp_path, old)
    done = run("serve", "rotate", "--upgrade", "--data", tmp_path)
    assert done.status == 0, done.err
    with ring_in(tmp_path) as ring:
        new = ring.key(done.out.strip())
        assert ring.marking("", "any") == new
        assert ring.detecting("") == [old, new]
    assert (new.decision, new.soft_version) == ("soft", SOFT_VERSION)
    assert (new.embedder, new.splitter, new.follows_conversation) == (old.embedder, old.splitter, True)
    assert new.offsets == (4 if old.offsets == 1 else old.offsets)
    default = Key.generate(embedder=EMBEDDER, decision="soft")
    assert (new.block_size, new.span, new.centre) == (default.block_size, default.span, None)
    assert new.stream("x", 8) != old.stream("x", 8)
    assert f"key {old.id} was replaced by key {new.id}" in done.err
    assert "its texts are still found" in done.err
    change = "decision: hard -> soft" if not old.soft else f"soft_version: 1 -> {SOFT_VERSION}"
    assert change in done.err
    assert "note:" not in done.err
    stored = Key.load(tmp_path / "keys" / f"{old.id}.json")
    assert AliMark(stored, embedder=EMBEDDER).detect(text).verdict() == "found"


def test_a_plain_rotation_names_the_upgrade_where_there_is_one(run: Run, tmp_path: Path) -> None:
    old = add(tmp_path, Key.generate(embedder=EMBEDDER, decision="hard", block_size=5))
    done = run("serve", "rotate", "--data", tmp_path)
    with ring_in(tmp_path) as ring:
        assert ring.key(done.out.strip()).public() == old.public()
    assert "changed: the secret alone" in done.err
    assert "alimark serve rotate --upgrade" in done.err
    assert run("serve", "rotate", "--upgrade", "--data", tmp_path).status == 0
    newest = run("serve", "rotate", "--data", tmp_path)
    assert "--upgrade" not in newest.err
    with ring_in(tmp_path) as ring:
        assert len(ring.all()) == 4
        assert len(ring.in_use()) == 1


def test_all_tenants_are_rotated_and_newest_keys_are_left_alone(run: Run, tmp_path: Path) -> None:
    add(tmp_path, Key.generate(embedder=EMBEDDER, decision="hard"))
    add(tmp_path, Key.generate(embedder=EMBEDDER, decision="hard"), tenant="acme")
    newest = add(tmp_path, Key.generate(embedder=EMBEDDER, decision="soft"), tenant="zeta")
    done = run("serve", "rotate", "--upgrade", "--data", tmp_path)
    assert len(done.out.split()) == 2
    assert f"key {newest.id} is of the newest version and was not replaced" in done.err
    with ring_in(tmp_path) as ring:
        assert {label.tenant for label in ring.in_use()} == {"", "acme", "zeta"}
        assert all(ring.key(label.id).soft for label in ring.in_use())


def test_a_named_key(run: Run, tmp_path: Path) -> None:
    first = add(tmp_path, Key.generate(embedder=EMBEDDER, decision="hard"), tenant="acme")
    second = add(tmp_path, Key.generate(embedder=EMBEDDER, decision="hard"))
    assert len(run("serve", "rotate", first.id, "--data", tmp_path).out.split()) == 1
    with ring_in(tmp_path) as ring:
        assert ring.marking("", "any") == second
        assert ring.marking("acme", "any") != first
    again = run("serve", "rotate", first.id, "--data", tmp_path)
    assert again.status == 2
    assert "was rotated before" in again.err
    assert "there is no key nothing" in run("serve", "rotate", "nothing", "--data", tmp_path).err


def test_an_installation_without_keys(run: Run, tmp_path: Path) -> None:
    done = run("serve", "rotate", "--upgrade", "--data", tmp_path)
    assert done.status == 2
    assert "alimark serve init" in done.err
