"""The health endpoints: the process lives, and it can do its work."""

import sqlite3
import time
from pathlib import Path

import pytest
from services import Running, serving

pytest.importorskip("fastapi")

from alimark.serve import service


@pytest.fixture(autouse=True)
def no_old_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "_HEALTH_KEPT", 0.0)


def statuses(running: Running) -> tuple[int, int, int]:
    with running.client("detect") as client:
        return (
            client.get("/healthz").status_code,
            client.get("/readyz").status_code,
            client.post("/v1/detect", json={"input": "One came. Two went."}).status_code,
        )


def test_ready_also_without_a_key(tmp_path: Path) -> None:
    """An administrator has to be able to create the first key."""
    with serving(tmp_path) as running:
        assert statuses(running) == (200, 200, 200)
        with running.client("admin") as admin:
            assert admin.get("/v1/records").text.count("\n") == 1, "the check leaves no record"
            admin.post(f"/v1/keys/{running.key.id}/retire", json={})
            assert admin.get("/readyz").status_code == 200


@pytest.mark.parametrize(
    "damage",
    [
        "CREATE TRIGGER full BEFORE INSERT ON records BEGIN SELECT RAISE(ABORT, 'the disk is full'); END",
        "DROP TABLE records",
    ],
    ids=["full disk", "damaged table"],
)
def test_not_ready_if_records_cannot_be_written(tmp_path: Path, damage: str) -> None:
    with serving(tmp_path) as running:
        running.service.store.do(lambda db: db.execute(damage))
        assert statuses(running) == (200, 503, 503)
        with running.client(None) as client:
            assert client.get("/readyz").json() == {"status": "the database does not accept records"}


def test_not_ready_if_detection_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(tmp_path) as running:

        def broken(*_: object) -> None:
            raise RuntimeError("no weights")

        monkeypatch.setattr(running.service.checker, "_embedder_of", broken)
        with running.client(None) as client:
            assert client.get("/readyz").json() == {"status": "detection does not work"}


def test_a_lock_does_not_make_it_hang(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "HEALTH_SECONDS", 0.3)
    with serving(tmp_path) as running, running.client(None) as client:
        other = sqlite3.connect(tmp_path / "alimark.db", isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        started = time.monotonic()
        assert client.get("/readyz").status_code == 503
        assert client.get("/healthz").status_code == 503
        assert time.monotonic() - started < 5
        other.execute("ROLLBACK")
        other.close()
        until = time.monotonic() + 10
        while client.get("/readyz").status_code != 200 and time.monotonic() < until:
            time.sleep(0.1)
        assert client.get("/readyz").status_code == 200
