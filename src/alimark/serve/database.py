"""The database of the service: SQLite by default, PostgreSQL by URL, used by a single worker thread.

The few SQL statements are nearly the same for both databases, so the drivers (`sqlite3`, `psycopg`) are used without an ORM.
One worker thread owns the connection. It runs all jobs that wait in its queue in one transaction, so that many small records
cost one flush to the disk. The future of a job is completed after the commit.
"""

import os
import sqlite3
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

from alimark.core._util.json_types import JsonObject
from alimark.errors import AlimarkError, MissingExtra

Row = JsonObject
"""A row of a table: column names and values."""
SqlValue = str | float | None
Result = TypeVar("Result")

_MAX_JOBS = 500
"""The largest number of jobs in one transaction."""


class DatabaseError(AlimarkError):
    """The database cannot be reached, or this release cannot use it."""


class Connection:
    """A connection to a database, by its driver. Statements mark parameters by `?` and numbered columns by `{serial}`."""

    serial: str
    """The SQL type of a column that numbers the rows."""
    begin: str
    """The statement that begins a transaction."""
    lost: tuple[type[Exception], ...] = ()
    """The errors after which a new connection is opened and the transaction is run again."""
    _driver: Any

    def execute(self, statement: str, parameters: Sequence[SqlValue] = ()) -> list[Row]:
        """Runs a statement and returns its rows."""
        cursor = self._driver.execute(statement, parameters)
        return [dict(row) for row in cursor.fetchall()] if cursor.description else []

    def insert(self, table: str, row: Row) -> None:
        """Adds a row to a table; a row whose id exists already is not changed."""
        places = ", ".join("?" * len(row))
        statement = f"INSERT INTO {table} ({', '.join(row)}) VALUES ({places}) ON CONFLICT (id) DO NOTHING"
        self.execute(statement, tuple(row.values()))

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Commits what is done in this block, or undoes it after an error."""
        self.execute(self.begin)
        try:
            yield
            self.execute("COMMIT")
        except BaseException:
            with suppress(Exception):
                self.execute("ROLLBACK")
            raise

    def lock(self) -> None:
        """Lets no other server go on until the transaction ends, so that servers that start together migrate one by one."""

    def close(self) -> None:
        """Closes the connection."""
        self._driver.close()


class Sqlite(Connection):
    """A connection to an SQLite file, which is created where it does not exist."""

    serial = "INTEGER PRIMARY KEY AUTOINCREMENT"
    begin = "BEGIN IMMEDIATE"  # it takes the lock already

    def __init__(self, path: str) -> None:
        try:
            # The file holds hashes of tokens and, with `keep_text`, texts: only its owner may read it.
            os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
            self._driver = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=30)
            self._driver.row_factory = sqlite3.Row
            self.execute("PRAGMA journal_mode=WAL")
            # NORMAL would survive a killed process; FULL also survives a power cut.
            self.execute("PRAGMA synchronous=FULL")
        except (OSError, sqlite3.Error) as error:
            raise DatabaseError(
                f"cannot open the database {path}: {error}; check that the folder exists and is writable"
            ) from None


class Postgres(Connection):
    """A connection to a PostgreSQL server."""

    serial = "BIGSERIAL PRIMARY KEY"
    begin = "BEGIN"

    def __init__(self, url: str) -> None:
        try:
            import psycopg
            from psycopg.rows import dict_row
        except ImportError:
            raise MissingExtra("psycopg", "postgres") from None
        self.lost = (psycopg.OperationalError, psycopg.InterfaceError)
        try:
            # A server that is gone without a word is noticed after a minute, not after hours.
            network: dict[str, Any] = {
                "connect_timeout": 10,
                "keepalives_idle": 30,
                "keepalives_interval": 10,
                "tcp_user_timeout": 60_000,
            }
            self._driver = psycopg.connect(url, autocommit=True, row_factory=dict_row, **network)
            self.execute("SET synchronous_commit = on")
        except psycopg.Error as error:
            # The message of libpq may repeat the address, which may hold a password.
            raise DatabaseError(
                f"cannot connect to the PostgreSQL database ({type(error).__name__}); check its address, and that it runs"
            ) from None

    def execute(self, statement: str, parameters: Sequence[SqlValue] = ()) -> list[Row]:
        return super().execute(statement.replace("?", "%s"), parameters)

    def lock(self) -> None:
        self.execute("SELECT pg_advisory_xact_lock(7108266)")


def connect(url: str) -> Connection:
    """Opens a connection to the database at `url`."""
    if url.startswith("sqlite:///"):
        path = url.removeprefix("sqlite:///")
        Path(path).parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        return Sqlite(path)
    if url.startswith(("postgresql://", "postgres://")):
        return Postgres(url)
    raise DatabaseError("the database address must be sqlite:///path or postgresql://user@host/name")


# The tables

MIGRATIONS: list[tuple[str, ...]] = [
    (
        """CREATE TABLE tokens (
            id TEXT PRIMARY KEY, hash TEXT NOT NULL UNIQUE, roles TEXT NOT NULL, tenant TEXT NOT NULL,
            name TEXT NOT NULL, created DOUBLE PRECISION NOT NULL, revoked DOUBLE PRECISION)""",
        """CREATE TABLE keys (
            id TEXT PRIMARY KEY, tenant TEXT NOT NULL, model TEXT NOT NULL, starts DOUBLE PRECISION NOT NULL,
            ends DOUBLE PRECISION, successor TEXT, created DOUBLE PRECISION NOT NULL, activated DOUBLE PRECISION,
            number INTEGER NOT NULL DEFAULT 0)""",
        """CREATE TABLE records (
            number {serial}, id TEXT NOT NULL UNIQUE, kind TEXT NOT NULL, at DOUBLE PRECISION NOT NULL,
            who TEXT NOT NULL, tenant TEXT NOT NULL, key_id TEXT NOT NULL, text_sha256 TEXT NOT NULL,
            statistic DOUBLE PRECISION, p_value DOUBLE PRECISION, details TEXT NOT NULL, text TEXT)""",
        "CREATE INDEX records_at ON records (at)",
        "CREATE TABLE clock (seen DOUBLE PRECISION NOT NULL)",
    )
]
"""The statements that bring the tables from each version to the next. Released steps never change; new ones are appended."""


def migrate(connection: Connection) -> None:
    """Brings the tables to this release's version in one transaction."""
    with connection.transaction():
        connection.lock()
        connection.execute("CREATE TABLE IF NOT EXISTS schema_version (version INTEGER NOT NULL)")
        rows = connection.execute("SELECT version FROM schema_version")
        version = rows[0]["version"] if rows else 0
        if version > len(MIGRATIONS):
            raise DatabaseError(
                f"the database has version {version}, but this release supports only {len(MIGRATIONS)}; upgrade alimark"
            )
        for step in MIGRATIONS[version:]:
            for statement in step:
                connection.execute(statement.replace("{serial}", connection.serial))
        connection.execute("DELETE FROM schema_version")
        connection.execute("INSERT INTO schema_version (version) VALUES (?)", (len(MIGRATIONS),))


# The worker thread

Job = Callable[[Connection], Result]


class Store:
    """Runs database jobs that any thread submits; the future of a job is completed after the commit."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._connection = connect(url)
        try:
            migrate(self._connection)
        except BaseException:
            self._connection.close()
            raise
        self._waiting: deque[tuple[Job[Any], Future[Any]]] = deque()
        self._worker = ThreadPoolExecutor(1, "alimark-store")

    def submit(self, job: Job[Result]) -> Future[Result]:
        """Queues a job. It may run again after a failure, so it must have no effect outside the database."""
        future: Future[Result] = Future()
        self._waiting.append((job, future))
        try:
            self._worker.submit(self._run_waiting)
        except RuntimeError:
            raise DatabaseError("the database is closed; the service is shutting down") from None
        return future

    def do(self, job: Job[Result]) -> Result:
        """Runs a job and waits for its result."""
        return self.submit(job).result()

    def close(self) -> None:
        """Finishes all submitted jobs, then closes the connection."""
        self._worker.shutdown()
        self._connection.close()

    def _run_waiting(self) -> None:
        batch = [self._waiting.popleft() for _ in range(min(len(self._waiting), _MAX_JOBS))]
        # Jobs that were cancelled while they waited are skipped; from here on they cannot be cancelled.
        if jobs := [job for job in batch if job[1].set_running_or_notify_cancel()]:
            self._run(jobs)

    def _run(self, jobs: list[tuple[Job[Any], Future[Any]]]) -> None:
        try:
            try:
                results = self._transaction(jobs)
            except self._connection.lost:
                # The rows carry ids and inserts ignore known ids, so repeating a commit that did succeed is harmless.
                with suppress(Exception):
                    self._connection.close()
                self._connection = connect(self._url)
                results = self._transaction(jobs)
        except Exception as error:
            if len(jobs) > 1 and not isinstance(error, DatabaseError):
                for job in jobs:  # alone, so that only those that fail are reported as failed
                    self._run([job])
                return
            # The message of a driver's error may repeat the parameters of the statement.
            message = f"the database did not accept the request ({type(error).__name__}); try again later"
            for _, future in jobs:
                future.set_exception(error if isinstance(error, AlimarkError) else DatabaseError(message))
            return
        for (_, future), result in zip(jobs, results, strict=True):
            future.set_result(result)

    def _transaction(self, jobs: list[tuple[Job[Any], Future[Any]]]) -> list[Any]:
        with self._connection.transaction():
            return [job(self._connection) for job, _ in jobs]
