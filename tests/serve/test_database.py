"""Migrations, records with their export and deletion, and settings."""

import json
import sqlite3
import stat
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from alimark.errors import AlimarkError
from alimark.serve import database
from alimark.serve.auth import sha256
from alimark.serve.database import Connection, DatabaseError, Store
from alimark.serve.records import Record, RecordLog
from alimark.serve.settings import Settings, read_settings


def record(text: str, **changes: object) -> Record:
    fields = {"kind": "detect", "who": "tk1", "tenant": "", "key_id": "ak1", "text_sha256": sha256(text), "statistic": 1.5,
              "p_value": 0.01, "details": {"draws": 1000}, "text": text}  # fmt: skip
    return Record(**fields | changes)  # type: ignore[arg-type]


def exported(log: RecordLog) -> list[dict[str, object]]:
    return [json.loads(line) for lines in log.export() for line in lines.splitlines()]


def exercise(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Writes, exports and prunes records and migrates the tables, in the same way on both databases."""
    store = Store(url)
    log, keeping = RecordLog(store), RecordLog(store, keep_text=True)
    first = record("One came.")
    store.do(log.writing([first, record("Two went.", at=time.time() - 3 * 86400)]))
    store.do(keeping.writing([record("Three\0 stayed \ud800.", id="kept")]))
    store.do(log.writing([first]))  # a second time changes nothing
    rows = exported(log)
    assert [row.get("text") for row in rows] == [None, None, "Three\ufffd stayed ?."]
    assert rows[0]["p_value"] == 0.01
    assert rows[0]["details"] == {"draws": 1000}
    assert log.prune(2) == 1
    assert len(exported(log)) == 2
    with pytest.raises(DatabaseError) as raised:
        store.do(lambda db: db.execute("SELECT secret_thing FROM nowhere"))
    assert "secret_thing" not in str(raised.value)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda i: store.do(log.writing([record(f"Text {i}.")])), range(1500)))
    assert len(exported(log)) == 1502
    store.close()
    with pytest.raises(DatabaseError):
        store.submit(lambda db: None)
    _migrate(url, monkeypatch)


def _migrate(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Adds a column, as a later release would: a failed migration changes nothing, a successful one keeps the records."""
    step = (
        "ALTER TABLE records ADD COLUMN language TEXT NOT NULL DEFAULT 'en'",
        "CREATE INDEX by_key ON records (key_id)",
    )
    wrong = (step[0], "ALTER TABLE nowhere ADD COLUMN x TEXT")
    monkeypatch.setattr(database, "MIGRATIONS", [*database.MIGRATIONS, wrong])
    with pytest.raises(Exception, match="nowhere"):
        Store(url)
    monkeypatch.setattr(database, "MIGRATIONS", [*database.MIGRATIONS[:-1], step])
    with ThreadPoolExecutor(4) as pool:  # several servers that start at once
        for store in pool.map(lambda _: Store(url), range(4)):
            [row] = store.do(lambda db: db.execute("SELECT COUNT(*) AS n FROM records WHERE language = 'en'"))
            assert row["n"] == 1502
            store.close()
    monkeypatch.setattr(database, "MIGRATIONS", database.MIGRATIONS[:1])
    with pytest.raises(DatabaseError, match="upgrade alimark"):
        Store(url)


def test_sqlite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    exercise(f"sqlite:///{tmp_path / 'new' / 'a.db'}", monkeypatch)
    assert stat.S_IMODE((tmp_path / "new" / "a.db").stat().st_mode) == 0o600
    with sqlite3.connect(tmp_path / "new" / "a.db") as other:
        assert other.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    other.close()


@pytest.mark.postgres
def test_postgresql(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # The server closes a connection; the next job opens a new one.
    store = Store(postgres_url)
    [row] = store.do(lambda db: db.execute("SELECT pg_backend_pid() AS pid"))
    other = Store(postgres_url)
    other.do(lambda db: db.execute("SELECT pg_terminate_backend(?)", (row["pid"],)))
    time.sleep(0.2)
    assert store.do(lambda db: db.execute("SELECT 1 AS number")) == [{"number": 1}]
    store.close()
    other.close()
    exercise(postgres_url, monkeypatch)


def test_an_unreachable_postgresql_does_not_show_its_password() -> None:
    pytest.importorskip("psycopg")
    with pytest.raises(DatabaseError) as raised:
        Store("postgresql://me:hunter2@127.0.0.1:1/none")
    assert "hunter2" not in str(raised.value)


def test_jobs_that_wait_are_one_transaction(tmp_path: Path) -> None:
    store = Store(f"sqlite:///{tmp_path / 'a.db'}")
    go, begun = threading.Event(), threading.Event()

    def hold(db: Connection) -> None:
        begun.set()
        go.wait(10)

    first = store.submit(hold)
    begun.wait(10)
    seen: list[int] = []
    jobs = [store.submit(lambda db: seen.append(db.execute("SELECT total_changes() AS n")[0]["n"])) for _ in range(3)]
    bad = store.submit(lambda db: db.execute("NO SQL"))
    go.set()
    first.result(10)
    with pytest.raises(DatabaseError):
        bad.result(10)
    for job in jobs:
        job.result(10)
    assert len(seen) == 6, "run together with the bad one, then each alone"
    store.close()


def test_odd_addresses() -> None:
    for url in ("mysql://x", "", "alimark.db"):
        with pytest.raises(DatabaseError):
            Store(url)


def test_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "serve.toml"
    file.write_text('port = 9\nrate = 3\ncors_origins = ["https://a.example"]\n')
    read = read_settings(file, {"port": 10}, default_data=tmp_path)
    assert (read.port, read.rate, read.cors_origins, read.host) == (10, 3.0, ["https://a.example"], "127.0.0.1")
    monkeypatch.setenv("ALIMARK_DATABASE_URL", "postgresql://somewhere")
    assert read.database_url == "postgresql://somewhere"
    for wrong in ("prt = 9", 'port = "9"', "port = true", "port = -1", "write_queue = 0", "rate = inf", "port = [",
                  "least_temperature = 0", "least_top_p = 0.0"):  # fmt: skip
        file.write_text(wrong)
        with pytest.raises(AlimarkError):
            read_settings(file, {}, default_data=tmp_path)
    assert Settings(data=tmp_path).keys == tmp_path / "keys"
    assert "hunter2" not in repr(Settings(data=tmp_path, database="postgresql://me:hunter2@somewhere/none"))
