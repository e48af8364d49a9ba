"""The engine that the tests run on: SQLite, or PostgreSQL with `FINDINGS_TEST_ENGINE=postgresql`.

Tests name a database by a path. `db_at` returns the `db` setting for it: the path itself, or the URL of a PostgreSQL
database. PostgreSQL databases are emptied and reused, because creating one takes as long as a hundred tests.
Tests read or change a database with `connect_directly`.

All test processes share one PostgreSQL server: that of `FINDINGS_TEST_POSTGRES`, else one that is started and stopped
by the test run.
"""

from __future__ import annotations

import os
import re
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import findings_service
from findings_features import audit
from tests.postgres_server import SERVER_VARIABLE, Databases, find_programs, start_postgres

ENGINE_VARIABLE = "FINDINGS_TEST_ENGINE"
ENGINE = os.environ.get(ENGINE_VARIABLE, "sqlite")
ON_POSTGRES = ENGINE == "postgresql"
NO_DATABASE = "there is no database" if ON_POSTGRES else "there is no file"
SERVER_URL = {"server": os.environ.get(SERVER_VARIABLE, "")}  # read before the tests remove all settings
SINGLE_ROW_TABLES = ("epochs", "schema_version")  # their row is created with the schema
MAX_REUSED_SIZE = 64 * 1024 * 1024  # bytes; emptying a larger database takes longer than creating one

# Changes with every schema change, but not with what VACUUM and ANALYZE write to these tables.
FINGERPRINT = """SELECT md5(string_agg(mark, ',' ORDER BY mark)) FROM (
    SELECT 't' || oid || xmin AS mark FROM pg_class WHERE relnamespace = 'public'::regnamespace
    UNION ALL SELECT 'c' || oid || xmin FROM pg_constraint WHERE connamespace = 'public'::regnamespace
    UNION ALL SELECT 's' || setdatabase || setrole || setconfig::text FROM pg_db_role_setting) AS marks"""
END_SESSIONS = """SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity
    WHERE datname = current_database() AND pid <> pg_backend_pid()"""
TABLES = "SELECT relname FROM pg_class WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace"
SEQUENCES = "SELECT relname FROM pg_class WHERE relkind = 'S' AND relnamespace = 'public'::regnamespace"


# The server


def start_server() -> Callable[[], object]:
    """Start a server for all test processes, and return the function that stops it. It ends with this process."""
    if find_programs() is None:
        pytest.exit(f"{ENGINE_VARIABLE} is {ENGINE}; install PostgreSQL or set {SERVER_VARIABLE}", 1)
    server = start_postgres(max_connections="200")
    SERVER_URL["server"] = os.environ[SERVER_VARIABLE] = server.url
    server.end_with_this_process()
    return server.remove


# Databases


class DatabasePool:
    """PostgreSQL databases of a test process: those in use by path, and free ones."""

    def __init__(self, url: str) -> None:
        self.databases = Databases(url)
        self.urls: dict[Path, str] = {}
        self.ready: list[str] = []  # free ones with the schema and without rows
        self.reusable: dict[str, tuple[Any, str, str]] = {}  # by URL: connection, SQL that empties it, fingerprint

    def acquire(self, *, ready: bool) -> str:
        """Return the URL of a database for a test: without tables unless `ready`, which has the schema."""
        if not ready:
            return self.databases.new()
        return self.ready.pop() if self.ready else self.make()

    def make(self) -> str:
        """Create a reusable database with the schema."""
        import psycopg

        url = self.databases.new()
        findings_service.create_app(db=url).extensions["findings"].database.close()
        connection = psycopg.connect(url, autocommit=True)
        connection.execute("SET session_replication_role = replica")  # disables foreign keys
        lines = [f"DELETE FROM {name}" for (name,) in connection.execute(TABLES) if name not in SINGLE_ROW_TABLES]
        lines.append(f"UPDATE schema_version SET version = {findings_service.SCHEMA_VERSION}")
        lines += [f"SELECT setval('{name}', 1, false)" for (name,) in connection.execute(SEQUENCES)]
        fingerprint = connection.execute(FINGERPRINT).fetchone()[0]
        self.reusable[url] = connection, "; ".join(lines), fingerprint
        return url

    def release(self, url: str) -> None:
        """Release a database: empty it for reuse, or drop it if it is not reusable."""
        if url not in self.reusable:
            self.databases.drop(url)
            return
        connection, empty_statement, fingerprint = self.reusable[url]
        connection.execute(END_SESSIONS)
        size, now = connection.execute(f"SELECT pg_database_size(current_database()), ({FINGERPRINT})").fetchone()
        if now == fingerprint and size < MAX_REUSED_SIZE:
            connection.execute(empty_statement)
            self.ready.append(url)
        else:
            connection.close()
            del self.reusable[url]
            self.databases.drop(url)

    def close(self) -> None:
        for connection, *_ in self.reusable.values():
            connection.close()
        self.databases.close()


@cache
def database_pool() -> DatabasePool:
    """Return the databases of this test process."""
    return DatabasePool(SERVER_URL["server"])


def db_at(path: str | Path, *, ready: bool = False) -> str:
    """Return the `db` setting for a path: the path itself, or the URL of its PostgreSQL database.

    :param ready: whether a new PostgreSQL database may already have the schema.
    """
    if not ON_POSTGRES or "://" in str(path) or str(path).startswith(":"):
        return str(path)
    urls, key = database_pool().urls, Path(path).absolute()
    if key not in urls:
        urls[key] = database_pool().acquire(ready=ready)
    return urls[key]


def name_of(path: str | Path) -> str:
    """Return the name of a database in messages."""
    return findings_service.database_for(findings_service.Settings(db=db_at(path))).name


def missing_message(path: str | Path) -> str:
    """Return the message that a database is missing, "" if it exists."""
    return findings_service.database_for(findings_service.Settings(db=db_at(path))).absence()


def with_databases(arguments: Sequence[str], folder: str | Path = "") -> list[str]:
    """Return a command's arguments, with each `--db` path replaced by its database's setting."""
    if not ON_POSTGRES:
        return [*arguments]
    pairs = zip(("", *arguments), arguments, strict=False)
    return [db_at(Path(folder, word)) if before == "--db" and "://" not in word else word for before, word in pairs]


@pytest.fixture(autouse=True)
def _databases(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Release the databases of a test after it; those of module fixtures are in other folders."""
    yield
    if ON_POSTGRES:
        shared, own = tmp_path_factory.getbasetemp(), tmp_path_factory.getbasetemp() / "test_"
        for path in [*database_pool().urls]:
            if not path.is_relative_to(shared) or str(path).startswith(str(own)):
                database_pool().release(database_pool().urls.pop(path))


# A test's own connection to a database


class PostgresProbe:
    """A test's own connection to PostgreSQL. Statements have `?` for a parameter, as in SQLite."""

    def __init__(self, connection: Any) -> None:
        self.connection = connection

    def execute(self, sql: str, parameters: Sequence[Any] = ()) -> Any:
        """Run a statement and return its cursor."""
        return self.connection.execute(re.sub(r"\?", "%s", sql) if parameters else sql, parameters or None)

    def executemany(self, sql: str, rows: Sequence[Sequence[Any]]) -> None:
        """Run a statement once for each row."""
        self.connection.cursor().executemany(re.sub(r"\?", "%s", sql), rows)


@contextmanager
def connect_directly(db: str | Path) -> Iterator[Any]:
    """Open the test's own connection to a database, in autocommit mode."""
    if not ON_POSTGRES:
        with closing(sqlite3.connect(db, isolation_level=None, timeout=60)) as connection:
            yield connection
        return
    import psycopg

    with psycopg.connect(db_at(db), autocommit=True) as connection:
        yield PostgresProbe(connection)


@contextmanager
def locked(db: str | Path) -> Iterator[None]:
    """Hold the write lock of a database like another process; on PostgreSQL lock the table of clients."""
    lock_clients = "BEGIN; LOCK TABLE clients IN EXCLUSIVE MODE"
    with connect_directly(db) as connection:
        connection.execute(lock_clients if ON_POSTGRES else "BEGIN IMMEDIATE")
        yield
        connection.execute("ROLLBACK")


@contextmanager
def open_store(db: str | Path) -> Iterator[findings_service.Database]:
    """Open a database as the service does, even while a service uses it."""
    database = findings_service.database_for(findings_service.Settings(db=db_at(db)))
    try:
        yield database
    finally:
        database.disconnect()


def integrity_errors_of(db: str | Path) -> list[str]:
    """Return the faults that an audit finds in a database, even while a service uses it."""
    if "://" not in db_at(db):
        kind = findings_service.SQLiteConnection
        with closing(sqlite3.connect(db, isolation_level=None, factory=kind)) as connection:
            return list(audit.integrity_errors(connection))
    with open_store(db) as database, database.snapshot() as connection:
        return list(audit.integrity_errors(connection))


def stored_bytes(db: str | Path) -> bytes:
    """Return the bytes of a database: its rows, or its file with the WAL and journal."""
    if not ON_POSTGRES:
        files = [Path(db).with_name(f"{Path(db).name}{end}") for end in ("", "-wal", "-shm", "-journal")]
        return b"".join(file.read_bytes() for file in files if file.exists())
    with connect_directly(db) as connection:
        tables = [name for (name,) in connection.execute(TABLES)]
        rows = [row for name in tables for (row,) in connection.execute(f"SELECT {name}::text FROM {name}")]
    return "\n".join(rows).encode()


@contextmanager
def statements() -> Iterator[list[str]]:
    """Record the statements that this process sends to its databases."""
    if ON_POSTGRES:
        from findings_adapters.postgres.store import Link as connection_class

        name = "run"
    else:
        connection_class, name = findings_service.SQLiteConnection, "execute"
    recorded, send = list[str](), getattr(connection_class, name)

    def record(connection: Any, text: str, *values: Any) -> Any:
        recorded.append(text)
        return send(connection, text, *values)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(connection_class, name, record)
        yield recorded


# Errors


def busy_error() -> Exception:
    """Return the core's exception for a write that waited too long for a lock."""
    if ON_POSTGRES:
        return findings_service.Busy()
    error = sqlite3.OperationalError("database is locked")
    error.sqlite_errorcode = sqlite3.SQLITE_BUSY
    return error


def full_error() -> Exception:
    """Return the core's exception for a full disk."""
    if ON_POSTGRES:
        return findings_service.StorageFull("its disk is full")
    error = sqlite3.OperationalError("database or disk is full")
    error.sqlite_errorcode = sqlite3.SQLITE_FULL
    return error


def engine_error(message: str) -> Exception:
    """Return the core's exception for any other database error."""
    if not ON_POSTGRES:
        return sqlite3.OperationalError(message)
    from findings_adapters.postgres.store import PostgresError

    return PostgresError(message)


def commit_method() -> tuple[type, str]:
    """Return the class and the name of the method that commits a transaction."""
    if not ON_POSTGRES:
        return findings_service.CounterBuffer, "write"  # called right before COMMIT
    from findings_adapters.postgres.store import PostgresConnection

    return PostgresConnection, "commit"


@contextmanager
def rejecting_inserts(db: str | Path, table: str) -> Iterator[None]:
    with connect_directly(db) as connection:
        if ON_POSTGRES:
            connection.execute(
                """CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'no'; END $$"""
            )
            connection.execute(f"CREATE TRIGGER refused BEFORE INSERT ON {table} EXECUTE FUNCTION refuse()")
        else:
            connection.execute(f"CREATE TRIGGER refused BEFORE INSERT ON {table} BEGIN SELECT RAISE(ABORT, 'no'); END")
        yield
        connection.execute(f"DROP TRIGGER refused ON {table}" if ON_POSTGRES else "DROP TRIGGER refused")
