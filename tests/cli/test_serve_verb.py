"""`alimark serve`: tokens, imported and rotated keys, and records that are exported and deleted."""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

pytest.importorskip("fastapi")

from alimark import AliMark
from alimark.cli.main import app
from alimark.core.keys.key import Key
from alimark.errors import AlimarkError
from alimark.serve.auth import sha256
from alimark.serve.database import Store
from alimark.serve.records import Record, RecordLog
from alimark.serve.ring import Ring
from alimark.testing import StandInEmbedder, StandInLLM
from commands import Run

EMBEDDER = StandInEmbedder()


def alimark(*words: str) -> Result:
    return CliRunner().invoke(app, ["serve", *words])


def test_the_operators_commands(tmp_path: Path) -> None:
    data = tmp_path / "data"
    key = Key.generate(embedder=StandInEmbedder())
    key.save(tmp_path / "key.json")
    assert isinstance(alimark("--data", str(data), "--llm", "nothing-of-the-kind").exception, AlimarkError)
    token = alimark("token", "--role", "detect", "--role", "generate", "--data", str(data))
    assert token.stdout.startswith("alm_"), token.stderr
    assert token.stdout.strip() not in (data / "alimark.db").read_bytes().decode("latin-1")
    assert isinstance(alimark("token", "--role", "king", "--data", str(data)).exception, AlimarkError)
    taken = alimark("import", str(tmp_path / "key.json"), "--tenant", "acme", "--data", str(data))
    assert taken.stdout.strip() == key.id
    assert Key.load(data / "keys" / f"{key.id}.json") == key
    assert "already" in str(alimark("import", str(tmp_path / "key.json"), "--data", str(data)).exception)
    Key.generate(scheme="semstamp", embedder=StandInEmbedder()).save(tmp_path / "rival.json")
    refused = alimark("import", str(tmp_path / "rival.json"), "--data", str(data)).exception
    assert "alimark keys, not semstamp" in str(refused)
    assert "options follow the command" in str(alimark("--port", "9", "export").exception)
    fields = ("detect", "tk1", "", key.id, sha256("A text."), 1.5)
    store = Store(f"sqlite:///{data / 'alimark.db'}")
    store.do(RecordLog(store).writing([Record(*fields, at=1.0), Record(*fields)]))
    store.close()
    assert len(alimark("export", "--data", str(data)).stdout.splitlines()) == 2
    assert alimark("prune", "--days", "1", "--data", str(data)).stdout == "1 records deleted\n"


def test_keys_lie_in_the_data_folder_and_those_in_the_cache_folder_are_moved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever clears a cache must not lose a secret."""
    monkeypatch.delenv("ALIMARK_HOME", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "share"))
    old, new = tmp_path / "cache" / "alimark" / "serve", tmp_path / "share" / "alimark" / "serve"
    key = Key.generate(embedder=StandInEmbedder())
    key.save(tmp_path / "key.json")
    assert alimark("import", str(tmp_path / "key.json"), "--data", str(old)).exit_code == 0
    running = Store(f"sqlite:///{old / 'alimark.db'}")
    assert "stop it" in str(alimark("token", "--role", "detect").exception)
    assert old.exists()
    assert not new.exists()
    running.close()
    moved = alimark("token", "--role", "detect")
    assert str(old) in moved.stderr
    assert str(new) in moved.stderr
    assert not old.exists()
    assert Key.load(new / "keys" / f"{key.id}.json") == key
    assert str(old) not in alimark("token", "--role", "detect").stderr
    with closing(Store(f"sqlite:///{new / 'alimark.db'}")) as store:
        assert [row["id"] for row in store.do(lambda db: db.execute("SELECT id FROM keys"))] == [key.id]


# New keys for an installation, like the old ones


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


def test_a_new_key_has_another_secret_and_texts_of_the_old_one_are_found(run: Run, tmp_path: Path) -> None:
    old = Key.generate(secret=bytes(range(32)), embedder=EMBEDDER, decision="hard", splitter="blingfire", offsets=4)
    text = AliMark(old, embedder=EMBEDDER).generate("It was late.", StandInLLM(), sentences=12, seed=1).text
    add(tmp_path, old)
    done = run("serve", "rotate", "--data", tmp_path)
    assert done.status == 0, done.err
    with ring_in(tmp_path) as ring:
        new = ring.key(done.out.strip())
        assert ring.marking("", "any") == new
        assert ring.detecting("") == [old, new]
    assert new.public() == old.public()
    assert new.stream("x", 8) != old.stream("x", 8)
    assert f"key {old.id} was replaced by key {new.id}" in done.err
    stored = Key.load(tmp_path / "keys" / f"{old.id}.json")
    assert AliMark(stored, embedder=EMBEDDER).detect(text).verdict() == "found"


def test_all_tenants_are_rotated(run: Run, tmp_path: Path) -> None:
    add(tmp_path, Key.generate(embedder=EMBEDDER, decision="hard"))
    add(tmp_path, Key.generate(embedder=EMBEDDER), tenant="acme")
    done = run("serve", "rotate", "--data", tmp_path)
    assert len(done.out.split()) == 2
    with ring_in(tmp_path) as ring:
        assert [label.tenant for label in ring.in_use()] == ["", "acme"]
        assert [label.id for label in ring.in_use()] == done.out.split()


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
    without_keys = run("serve", "rotate", "--data", tmp_path / "none")
    assert (without_keys.status, "alimark serve init" in without_keys.err) == (2, True)
