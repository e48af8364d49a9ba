"""The engine that the tests run on: SQLite, or PostgreSQL with `FINDINGS_TEST_ENGINE=postgresql`.

Tests name a database by a path. `db_at` returns the setting for it: the path itself, or the URL of a PostgreSQL
database. PostgreSQL databases are emptied and used again, because creating one takes as long as a hundred tests.
A test reads or changes a database with `connect_directly`.

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
from tests.postgres_server import GIVEN, Databases, find_programs, started

CHOICE = "FINDINGS_TEST_ENGINE"
ENGINE = os.environ.get(CHOICE, "sqlite")
ON_POSTGRES = ENGINE == "postgresql"
ABSENT = "there is no database" if ON_POSTGRES else "there is no file"
SERVER_URL = {"server": os.environ.get(GIVEN, "")}  # before the tests drop all settings
KEPT = ("epochs", "schema_version")  # tables of one row, which is made with the schema
LARGE = 64 * 1024 * 1024  # bytes of a database that is not worth to be emptied

# What has changed of the schema since it was made; what VACUUM and ANALYZE note in these tables changes nothing here.
MARK = """SELECT md5(string_agg(mark, ',' ORDER BY mark)) FROM (
    SELECT 't' || oid || xmin AS mark FROM pg_class WHERE relnamespace = 'public'::regnamespace
    UNION ALL SELECT 'c' || oid || xmin FROM pg_constraint WHERE connamespace = 'public'::regnamespace
    UNION ALL SELECT 's' || setdatabase || setrole || setconfig::text FROM pg_db_role_setting) AS marks"""
LEAVE = """SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity
    WHERE datname = current_database() AND pid <> pg_backend_pid()"""
TABLES = "SELECT relname FROM pg_class WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace"
NUMBERS = "SELECT relname FROM pg_class WHERE relkind = 'S' AND relnamespace = 'public'::regnamespace"


# The server


def start_server() -> Callable[[], object]:
    """Start a server for all test processes and return the function that stops it. It ends with this process, too."""
    if find_programs() is None:
        pytest.exit(f"{CHOICE} is {ENGINE}: there is no PostgreSQL here, and {GIVEN} names none", 1)
    server = started(max_connections="200")
    SERVER_URL["server"] = os.environ[GIVEN] = server.url
    server.end_with_this_process()
    return server.remove


# Databases


class DatabasePool:
    """PostgreSQL databases of a test process: used ones by their path, and free ones."""

    def __init__(self, url: str) -> None:
        self.databases = Databases(url)
        self.places: dict[Path, str] = {}
        self.ready: list[str] = []  # with the schema, and without rows
        self.lasting: dict[str, tuple[Any, str, str]] = {}  # a connection, what empties it, and the mark, by URL

    def take(self, *, ready: bool) -> str:
        """Return the URL of a database for a test, empty unless it may be `ready`."""
        if not ready:
            return self.databases.new()
        return self.ready.pop() if self.ready else self.make()

    def make(self) -> str:
        """Create a database with the schema, which can be emptied."""
        import psycopg

        url = self.databases.new()
        findings_service.create_app(db=url).extensions["findings"].database.close()
        connection = psycopg.connect(url, autocommit=True)
        connection.execute("SET session_replication_role = replica")  # each table for itself
        lines = [f"DELETE FROM {name}" for (name,) in connection.execute(TABLES) if name not in KEPT]
        lines.append(f"UPDATE schema_version SET version = {findings_service.SCHEMA_VERSION}")
        lines += [f"SELECT setval('{name}', 1, false)" for (name,) in connection.execute(NUMBERS)]
        mark = connection.execute(MARK).fetchone()[0]
        self.lasting[url] = connection, "; ".join(lines), mark
        return url

    def give(self, url: str) -> None:
        """Empty a database that is not in use any more, or drop it."""
        if url not in self.lasting:
            self.databases.drop(url)
            return
        connection, emptying, mark = self.lasting[url]
        connection.execute(LEAVE)
        size, now = connection.execute(f"SELECT pg_database_size(current_database()), ({MARK})").fetchone()
        if now == mark and size < LARGE:
            connection.execute(emptying)
            self.ready.append(url)
        else:
            connection.close()
            del self.lasting[url]
            self.databases.drop(url)

    def close(self) -> None:
        for connection, *_ in self.lasting.values():
            connection.close()
        self.databases.close()


@cache
def database_pool() -> DatabasePool:
    """Return the databases of this test process."""
    return DatabasePool(SERVER_URL["server"])


def db_at(path: str | Path, *, ready: bool = False) -> str:
    """Return the `db` setting for a path: the path itself, or the URL of its PostgreSQL database.

    :param ready: whether it may have the schema, where it is a new one.
    """
    if not ON_POSTGRES or "://" in str(path) or str(path).startswith(":"):
        return str(path)
    places, key = database_pool().places, Path(path).absolute()
    if key not in places:
        places[key] = database_pool().take(ready=ready)
    return places[key]


def name_of(path: str | Path) -> str:
    """Return the name of a database in messages."""
    return findings_service.database_for(findings_service.Settings(db=db_at(path))).name


def absence_of(path: str | Path) -> str:
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
        for path in [*database_pool().places]:
            if not path.is_relative_to(shared) or str(path).startswith(str(own)):
                database_pool().give(database_pool().places.pop(path))


# A test's own look at a database


class Opened:
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
        yield Opened(connection)


@contextmanager
def locked(db: str | Path) -> Iterator[None]:
    """Hold the write lock of a database, as another process might: in PostgreSQL the locks of all clients."""
    everybody = "BEGIN; LOCK TABLE clients IN EXCLUSIVE MODE"
    with connect_directly(db) as connection:
        connection.execute(everybody if ON_POSTGRES else "BEGIN IMMEDIATE")
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
        from findings_adapters.postgres.store import Link as Kind

        name = "run"
    else:
        Kind, name = findings_service.SQLiteConnection, "execute"
    noted, send = list[str](), getattr(Kind, name)

    def noting(connection: Any, text: str, *values: Any) -> Any:
        noted.append(text)
        return send(connection, text, *values)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Kind, name, noting)
        yield noted


# What goes wrong


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
def refusing_rows(db: str | Path, table: str) -> Iterator[None]:
    """Reject inserts into a table."""
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
