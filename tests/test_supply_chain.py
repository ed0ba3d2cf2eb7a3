"""Every pinned requirement has hashes, and the files that name them agree."""

from __future__ import annotations

import json
from pathlib import Path

import lock


def test_the_locked_files_agree_with_the_pins() -> None:
    assert lock.problems() == []
    names, hashes = lock.locked(lock.SERVICE)
    assert {"fastapi", "uvicorn", "numpy", "psycopg"} <= set(names)
    assert all(hashes.values())
    assert len(json.loads(lock.BILL.read_text("utf-8"))["components"]) == len(names)


def test_the_container_installs_with_hashes_and_runs_without_rights() -> None:
    deploy = Path(lock.SERVICE).parent
    container = (deploy / "Containerfile").read_text("utf-8")
    assert "--require-hashes -r requirements.txt" in container
    assert "USER alimark" in container
    compose, unit = (deploy / "compose.yaml").read_text("utf-8"), (deploy / "alimark.service").read_text("utf-8")
    for limit in ("read_only: true", "mem_limit", "pids_limit", "nofile", "cap_drop: [ALL]"):
        assert limit in compose
    for limit in ("MemoryMax=", "TasksMax=", "LimitNOFILE=", "NoNewPrivileges=yes", "ProtectSystem=strict"):
        assert limit in unit
