"""Starts a PostgreSQL server for a test and removes it afterwards."""

import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from services import free_port


@contextmanager
def postgres() -> Iterator[str]:
    """Yields the address of a new server; skips the test where PostgreSQL is not installed."""
    pytest.importorskip("psycopg")
    folders = sorted(Path("/usr/lib/postgresql").glob("*/bin")) if Path("/usr/lib/postgresql").is_dir() else []
    if not folders:
        pytest.skip("no PostgreSQL server on this machine (Debian: apt install postgresql)")
    user: dict[str, Any] = {}
    if os.geteuid() == 0:  # PostgreSQL refuses to run as root
        entry = pwd.getpwnam("postgres")
        user = {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": []}
    home = Path(tempfile.mkdtemp(prefix="alimark-pg-"))
    if user:
        os.chown(home, user["user"], user["group"])
    port = free_port()

    def call(program: str, *words: str) -> None:
        command = [str(folders[-1] / program), "-D", str(home / "data"), *words]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=home, **user)

    try:
        call("initdb", "-A", "trust", "-U", "alimark", "-E", "UTF8", "--no-sync")
        options = f"-p {port} -k {home} -c listen_addresses=127.0.0.1 -c shared_buffers=16MB"
        call("pg_ctl", "-w", "-t", "60", "-l", str(home / "log"), "-o", options, "start")
        try:
            yield f"postgresql://alimark@127.0.0.1:{port}/postgres"
        finally:
            call("pg_ctl", "-w", "-m", "immediate", "stop")
    finally:
        shutil.rmtree(home, ignore_errors=True)
