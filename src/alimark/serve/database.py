"""A database of one thread: SQLite by default, PostgreSQL by URL.

Few statements are needed and both databases take them nearly alike, so there is no library between: sqlite3 of Python, and
psycopg where PostgreSQL is asked for. All work goes through one thread that owns the connection. What waits there is done
in one transaction, so that many small records cost one flush to the disk; whoever waits is answered after the commit.
"""

from __future__ import annotations

import os
import queue
import sqlite3
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol, TypeVar

from alimark.errors import AlimarkError, MissingExtra

Row = dict[str, Any]
Result = TypeVar("Result")

_TOGETHER = 500
"""Jobs of one transaction at most."""


class DatabaseError(AlimarkError):
    """The database cannot be reached, or cannot be used by this release."""


class Connection(Protocol):
    """What both databases offer. Parameters are `?`, numbered columns `{serial}`."""

    serial: str
    lost: tuple[type[Exception], ...]

    def execute(self, statement: str, parameters: Sequence[Any] = ()) -> list[Row]: ...
    def begin(self) -> None: ...
    def lock(self) -> None: ...
    def close(self) -> None: ...


class Sqlite:
    serial = "INTEGER PRIMARY KEY AUTOINCREMENT"
    lost: tuple[type[Exception], ...] = ()

    def __init__(self, path: str) -> None:
        try:
            # The tokens' hashes and, where it is asked for, texts: nobody's but the owner's.
            os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
            self._connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=30)
            self._connection.row_factory = sqlite3.Row
            self.execute("PRAGMA journal_mode=WAL")
            # NORMAL would survive a killed process; FULL also survives a power cut.
            self.execute("PRAGMA synchronous=FULL")
        except (OSError, sqlite3.Error) as error:
            raise DatabaseError(f"cannot open the database {path}: {error}") from None

    def execute(self, statement: str, parameters: Sequence[Any] = ()) -> list[Row]:
        return [dict(row) for row in self._connection.execute(statement, parameters).fetchall()]

    def begin(self) -> None:
        self.execute("BEGIN IMMEDIATE")

    def lock(self) -> None:
        """BEGIN IMMEDIATE has done it."""

    def close(self) -> None:
        self._connection.close()


class Postgres:
    serial = "BIGSERIAL PRIMARY KEY"

    def __init__(self, url: str) -> None:
        try:
            import psycopg
            from psycopg.rows import dict_row
        except ImportError:
            raise MissingExtra("psycopg", "postgres") from None
        self.lost: tuple[type[Exception], ...] = (psycopg.OperationalError, psycopg.InterfaceError)
        try:
            self._connection = psycopg.connect(url, autocommit=True, row_factory=dict_row, connect_timeout=10)
            self.execute("SET synchronous_commit = on")
        except psycopg.Error as error:
            # The address may hold a password, and libpq may repeat it.
            raise DatabaseError(f"cannot reach the PostgreSQL database ({type(error).__name__})") from None

    def execute(self, statement: str, parameters: Sequence[Any] = ()) -> list[Row]:
        cursor = self._connection.execute(statement.replace("?", "%s"), parameters)
        return [dict(row) for row in cursor.fetchall()] if cursor.description else []

    def begin(self) -> None:
        self.execute("BEGIN")

    def lock(self) -> None:
        """Several servers that start at once take their turns."""
        self.execute("SELECT pg_advisory_xact_lock(7108266)")

    def close(self) -> None:
        self._connection.close()


def connect(url: str) -> Connection:
    if url.startswith("sqlite:///"):
        path = url.removeprefix("sqlite:///")
        Path(path).parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        return Sqlite(path)
    if url.startswith(("postgresql://", "postgres://")):
        return Postgres(url)
    raise DatabaseError("a database is sqlite:///path or postgresql://user@host/name")


# The tables

MIGRATIONS: list[tuple[str, ...]] = [
    (
        """CREATE TABLE tokens (
            id TEXT PRIMARY KEY, hash TEXT NOT NULL UNIQUE, roles TEXT NOT NULL, tenant TEXT NOT NULL,
            name TEXT NOT NULL, created DOUBLE PRECISION NOT NULL, revoked DOUBLE PRECISION)""",
        """CREATE TABLE keys (
            id TEXT PRIMARY KEY, tenant TEXT NOT NULL, model TEXT NOT NULL, starts DOUBLE PRECISION NOT NULL,
            ends DOUBLE PRECISION, successor TEXT, created DOUBLE PRECISION NOT NULL)""",
        """CREATE TABLE records (
            number {serial}, id TEXT NOT NULL UNIQUE, kind TEXT NOT NULL, at DOUBLE PRECISION NOT NULL,
            who TEXT NOT NULL, tenant TEXT NOT NULL, key_id TEXT NOT NULL, text_sha256 TEXT NOT NULL,
            statistic DOUBLE PRECISION, p_value DOUBLE PRECISION, details TEXT NOT NULL, text TEXT)""",
        "CREATE INDEX records_at ON records (at)",
    ),
]
"""What brings the tables from each version to the next. Written once, never changed: what follows is appended."""


def migrate(connection: Connection) -> None:
    """To this release's version, all steps or none; a database of a later release is left alone."""
    connection.begin()
    try:
        connection.lock()
        connection.execute("CREATE TABLE IF NOT EXISTS schema_version (version INTEGER NOT NULL)")
        rows = connection.execute("SELECT version FROM schema_version")
        version = rows[0]["version"] if rows else 0
        if version > len(MIGRATIONS):
            raise DatabaseError(
                f"the database is of version {version} and this release knows {len(MIGRATIONS)}; upgrade alimark"
            )
        for step in MIGRATIONS[version:]:
            for statement in step:
                connection.execute(statement.replace("{serial}", connection.serial))
        if version < len(MIGRATIONS):
            connection.execute("DELETE FROM schema_version")
            connection.execute("INSERT INTO schema_version (version) VALUES (?)", (len(MIGRATIONS),))
        connection.execute("COMMIT")
    except BaseException:
        with suppress(Exception):
            connection.execute("ROLLBACK")
        raise


# The thread

Job = Callable[[Connection], Result]


class Store:
    """Takes jobs from any thread; a job's future is done when what it wrote is safe."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._connection = connect(url)
        try:
            migrate(self._connection)
        except BaseException:
            self._connection.close()
            raise
        self._jobs: queue.SimpleQueue[tuple[Job[Any], Future[Any]] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._serve, name="alimark-store", daemon=True)
        self._closed = False
        self._lock = threading.Lock()
        self._thread.start()

    def submit(self, job: Job[Result]) -> Future[Result]:
        """A job may be run again after a failure, so it must not do anything but ask the database."""
        future: Future[Result] = Future()
        with self._lock:
            if self._closed:
                raise DatabaseError("the database is closed")
            self._jobs.put((job, future))
        return future

    def do(self, job: Job[Result]) -> Result:
        return self.submit(job).result()

    def close(self) -> None:
        """What was submitted is done first."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            self._jobs.put(None)
        self._thread.join()
        self._connection.close()

    def _serve(self) -> None:
        last = False
        while not last:
            some = [self._jobs.get()]
            with suppress(queue.Empty):
                while len(some) < _TOGETHER:
                    some.append(self._jobs.get_nowait())
            last = None in some
            # Whoever gave up meanwhile is passed over; from here on nobody can.
            self._run([one for one in some if one is not None and one[1].set_running_or_notify_cancel()])

    def _run(self, jobs: list[tuple[Job[Any], Future[Any]]]) -> None:
        if not jobs:
            return
        try:
            results = self._transaction([job for job, _ in jobs])
        except Exception as error:
            if len(jobs) == 1:
                jobs[0][1].set_exception(_told(error))
            else:  # whose fault it was shows when each is alone
                for one in jobs:
                    self._run([one])
            return
        for (_, future), result in zip(jobs, results, strict=True):
            future.set_result(result)

    def _transaction(self, jobs: list[Job[Any]]) -> list[Any]:
        try:
            return self._once(jobs)
        except self._connection.lost:
            # Inserts name their own ids, so a commit that had gone through is not done twice.
            with suppress(Exception):
                self._connection.close()
            self._connection = connect(self._url)
            return self._once(jobs)

    def _once(self, jobs: list[Job[Any]]) -> list[Any]:
        self._connection.begin()
        try:
            results = [job(self._connection) for job in jobs]
            self._connection.execute("COMMIT")
        except BaseException:
            with suppress(Exception):
                self._connection.execute("ROLLBACK")
            raise
        return results


def _told(error: Exception) -> AlimarkError:
    # What a database says of a statement may repeat its parameters.
    if isinstance(error, AlimarkError):
        return error
    return DatabaseError(f"the database did not take it ({type(error).__name__}); try again later")
