"""A PostgreSQL server as one end of a copy: whole tables by COPY, which is three times as fast as INSERT.

The target is filled in one transaction: its foreign keys and indexes are dropped, and made again by what the server
itself said of them when all rows are there, which takes a fraction of the time that they would take row by row.
https://www.postgresql.org/docs/15/populate.html, https://www.postgresql.org/docs/15/sql-copy.html
"""

from __future__ import annotations

import math
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import psycopg

import findings_service as heart
from findings_adapters.postgres import copying, dialect, store
from findings_adapters.postgres.link import Failure, Link

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from findings_adapters.postgres.copying import Row, Table

TYPES = {"TEXT": "text", "INTEGER": "int8"}
IN_USE = "55P03"
LOCK_TIME = 10  # seconds to wait for what others do with the tables
MEMORY = "256MB"  # for making an index
# What is dropped and made again: its name, what drops it, and what makes it.
FOREIGN_KEYS = """
    SELECT format('ALTER TABLE %%I DROP CONSTRAINT %%I', relname, conname),
        format('ALTER TABLE %%I ADD CONSTRAINT %%I %%s', relname, conname, pg_get_constraintdef(pg_constraint.oid))
    FROM pg_constraint JOIN pg_class ON pg_class.oid = conrelid
    WHERE contype = 'f' AND relnamespace = to_regnamespace(current_schema()) AND relname = ANY (%s)
    ORDER BY relname, conname"""
INDEXES = """
    SELECT format('DROP INDEX %%I', index.relname), pg_get_indexdef(index.oid)
    FROM pg_index JOIN pg_class ON pg_class.oid = indrelid JOIN pg_class AS index ON index.oid = indexrelid
    WHERE pg_class.relnamespace = to_regnamespace(current_schema()) AND pg_class.relname = ANY (%s)
        AND NOT EXISTS (SELECT 1 FROM pg_constraint WHERE conindid = indexrelid AND contype IN ('p', 'u'))
    ORDER BY pg_class.relname, index.relname"""


def complaint(error: psycopg.Error) -> str:
    """Return what the server says against something, in one line."""
    said = error.diag
    if error.sqlstate == IN_USE:
        return "others are using its tables; stop them"
    long = store.TOO_LONG_TOGETHER if error.sqlstate == store.TOO_LONG else ""
    parts = [said.message_primary or str(error).strip().partition("\n")[0], said.message_detail, long]
    return ": ".join(part.rstrip(".") for part in parts if part)


@contextmanager
def readable(name: str) -> Iterator[None]:
    """Turn what psycopg raises into an error that a command shows. :raises heart.DatabaseUnusable: then."""
    try:
        yield
    except Failure as failure:
        raise heart.DatabaseUnusable(f"{name} cannot be used: {failure}") from None
    except psycopg.Error as error:
        raise heart.DatabaseUnusable(f"{name} cannot be used: {complaint(error)}") from None


@contextmanager
def connected(database: store.PostgresDatabase) -> Iterator[tuple[psycopg.Connection[Any], int | None]]:
    """Give a connection of its own, without limits of time, with the version of the schema there."""
    with readable(database.name):
        link = database._connect()
        connection = link.connection
        try:
            version = database._greet(link)
            leave_pipeline(link)
            for setting in ("statement_timeout = 0", "idle_in_transaction_session_timeout = 0", "enable_seqscan = on"):
                connection.execute(f"SET {setting}")
            connection.execute(f"SET lock_timeout = '{LOCK_TIME}s'")
            yield connection, version
        finally:
            connection.close()


def leave_pipeline(link: Link) -> None:
    """Let a connection be used as psycopg does."""
    link.settle()
    pgconn: Any = link.connection.pgconn
    pgconn.exit_pipeline_mode()
    pgconn.nonblocking = 0


class ServerPlace(copying.Place):
    """A server that is read, over a connection with a transaction."""

    numbers_all = False

    def __init__(self, name: str, connection: psycopg.Connection[Any]) -> None:
        super().__init__(name)
        self.connection = connection

    def select(self, statement: str) -> list[Row]:
        """Return the rows of a statement."""
        return list(self.connection.execute(statement.encode()))

    def rows(self, table: Table) -> Iterator[Row]:
        """Give all rows of a table, by the primary key."""
        order = ", ".join(table.columns[place] for place in table.key)
        text = f"COPY (SELECT {', '.join(table.columns)} FROM {table.name} ORDER BY {order}) TO STDOUT"
        with self.connection.cursor().copy(text.encode()) as copy:
            copy.set_types([TYPES[kind] for kind in table.types])
            yield from copy.rows()


class ServerTarget(copying.Target, ServerPlace):
    """A server that is filled, in one transaction."""

    def __init__(self, database: store.PostgresDatabase, connection: psycopg.Connection[Any]) -> None:
        super().__init__(database.name, connection)
        self.database = database
        self.statements = dialect.schema_statements(heart.schema_path().read_text("utf-8"))
        self.names = dialect.tables_of(self.statements)
        self._later: list[str] = []
        self._facts: list[tuple[str, str]] = []

    def make(self, version: int | None, tables: Sequence[Table]) -> None:
        """Begin the transaction, with the schema there and empty."""
        run = self.connection.execute
        run("BEGIN")
        run(f"SET LOCAL maintenance_work_mem = '{MEMORY}'")
        run("SELECT pg_advisory_xact_lock(%s, hashtext('schema ' || current_schema()))", (store.LOCKS,))
        if version is None:
            with self._linked() as connection:
                self.database._require_empty(connection.link, self.names)
            for statement in (dialect.MAKE_VERSION_TABLE, *self.statements):
                run(statement.encode())
            run(f"INSERT INTO {dialect.VERSION_TABLE} (id, version) VALUES (1, %s)".encode(), (heart.SCHEMA_VERSION,))
        else:
            heart.require_version(self.name, version)
            run(f"LOCK TABLE {', '.join(self.names)} IN ACCESS EXCLUSIVE MODE".encode())
            filled = (table.name for table in tables if self.select(f"SELECT 1 FROM {table.name} LIMIT 1"))
            copying.require_empty(self.name, filled)
        self._facts = self._look()
        self._strip([table.name for table in tables])

    def _strip(self, names: list[str]) -> None:
        """Take away what is quicker to make for all rows at once."""
        run = self.connection.execute
        keys, indexes = (run(statement, (names,)).fetchall() for statement in (FOREIGN_KEYS, INDEXES))
        for drop, _ in (*keys, *indexes):
            run(drop)
        run(f"TRUNCATE {', '.join(names)}".encode())  # without which FREEZE is refused
        self._later = [make for _, make in (*indexes, *keys)]

    def fill(self, table: Table, rows: Iterable[Row]) -> None:
        """Store all rows of a table: as such that all can see, which a VACUUM need not find out."""
        row: Row = ()
        text = f"COPY {table.name} ({', '.join(table.columns)}) FROM STDIN (FREEZE)"
        try:
            with self.connection.cursor().copy(text.encode()) as copy:
                for row in rows:
                    copy.write_row(row)
        except psycopg.DataError as error:
            nul = [name for name, value in zip(table.columns, row, strict=False) if "\0" in str(value)]
            if not nul or error.sqlstate:
                raise heart.DatabaseUnusable(
                    f"{self.name} does not take a row of {table.name}: {complaint(error)}"
                ) from None
            raise heart.DatabaseUnusable(
                f"{', '.join(nul)} of the row of {table.name} with {table.told(row)} has U+0000, which PostgreSQL"
                " cannot hold"
            ) from None

    def finish(self, tables: Sequence[Table]) -> None:
        """Make the indexes and foreign keys again, and let numbering go on behind the last row."""
        for statement in self._later:
            self.connection.execute(statement.encode())
        for table in tables:
            self.connection.execute(f"ANALYZE {table.name}".encode())
        for name in dialect.numbered_by_itself(self.statements):
            self.connection.execute(dialect.numbering(name).encode())

    def faults(self) -> Iterator[str]:
        """Audit what is there, and whether the schema is as it was."""
        before, after = dict(self._facts), dict(self._look())
        yield from (
            f"schema: {name} is not as it was" for name in {*before, *after} if before.get(name) != after.get(name)
        )
        with self._linked() as connection:
            yield from heart.faults(connection)

    def _look(self) -> list[tuple[str, str]]:
        with self._linked() as connection:
            return store.facts_of(connection, "current_schema()", self.names)

    @contextmanager
    def _linked(self) -> Iterator[Unfinished]:
        """Give the connection as the room has connections, within the transaction."""
        link = Link(self.connection, None, math.inf)
        try:
            yield Unfinished(self.database, link)
        finally:
            if not link.broken:
                leave_pipeline(link)

    def keep(self) -> None:
        """Commit."""
        with self._linked() as connection:
            connection.open = True
            connection.commit()


class Unfinished(store.PostgresConnection):
    """A connection within the transaction of a copy, whose schema no other connection sees yet."""

    def faults(self) -> Iterator[str]:
        """Leave the schema to whoever made it."""
        yield from ()


@contextmanager
def server_source(database: heart.Database) -> Iterator[ServerPlace]:
    """Give what is in a database now."""
    with connected(ours(database)) as (connection, version):
        heart.require_version(database.name, version or 0)
        connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        yield ServerPlace(database.name, connection)


@contextmanager
def server_target(database: heart.Database, tables: Sequence[Table]) -> Iterator[ServerTarget]:
    """Give a new database, or one with an empty schema, of which nothing is changed unless that is kept."""
    with connected(ours(database)) as (connection, version):
        target = ServerTarget(ours(database), connection)
        target.make(version, tables)
        yield target


def ours(database: heart.Database) -> store.PostgresDatabase:
    """Return a database as one of this room. :raises heart.DatabaseUnusable: for another."""
    if not isinstance(database, store.PostgresDatabase):
        raise heart.DatabaseUnusable(f"{database.name} is of another engine than SQLite and PostgreSQL")
    return database
