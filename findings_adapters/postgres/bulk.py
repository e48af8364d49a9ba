"""A PostgreSQL server as source or target of a copy, filled in one transaction by COPY.

https://www.postgresql.org/docs/15/populate.html, https://www.postgresql.org/docs/15/sql-copy.html
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

import psycopg

from findings_adapters.postgres import copying, dialect, store
from findings_adapters.postgres.copying import Row, Table
from findings_service import SCHEMA_VERSION, DatabaseUnusable

LOCK_TIME = 10  # seconds to wait for locks that other sessions hold on the tables


@contextmanager
def unlimited_connection(database: store.PostgresDatabase) -> Iterator[store.Link]:
    """Open a connection outside of the pool, without time limits except one of 10 s for locks."""
    with database.separate_connection() as link:
        link.patience = float("inf")
        link.run("SET statement_timeout = 0; SET idle_in_transaction_session_timeout = 0")
        link.run(f"SET lock_timeout = '{LOCK_TIME}s'")
        yield link


class ServerSource(copying.Source):
    """A PostgreSQL database as the source of a copy, read over a connection with an open transaction."""

    def read(self, sql: str) -> Iterator[Row]:
        """Yield the rows of a statement from a server-side cursor."""
        with self.connection.link.cursor("rows") as cursor:
            yield from cursor.execute(sql.encode())


class ServerTarget(ServerSource, copying.Target):
    """A PostgreSQL database as the target of a copy, filled in one transaction that creates a missing schema."""

    def __init__(self, database: store.PostgresDatabase, link: store.Link, tables: Sequence[Table]) -> None:
        super().__init__(database.name, UncommittedConnection(database, link))
        self.statements = dialect.schema_statements()
        self.names = ", ".join(dialect.tables_of(self.statements))
        version, run = database.version_at(link), link.run
        run("BEGIN")
        database.lock_schema(link)
        if version is None:
            database.require_empty(link)
            run(dialect.MAKE_VERSION_TABLE)
            run(f"INSERT INTO {dialect.VERSION_TABLE} (id, version) VALUES (1, $1)", SCHEMA_VERSION)
            self.make(indexes=False)
        else:
            run(f"LOCK TABLE {self.names} IN ACCESS EXCLUSIVE MODE")
            copying.require_empty(self, tables)
            run(f"TRUNCATE {self.names}")  # COPY FREEZE requires it in the same transaction

    def fill(self, table: Table, rows: Iterable[Row]) -> None:
        """Store all rows of a table, frozen, so that a later VACUUM need not visit them."""
        row: Row = ()
        text = f"COPY {table.name} ({', '.join(table.columns)}) FROM STDIN (FREEZE)"
        try:
            with self.connection.link.cursor().copy(text.encode()) as copy:
                for row in rows:
                    copy.write_row(row)
        except psycopg.DataError as error:
            reason = store.error_text(error)
            if not error.sqlstate:  # raised by psycopg itself for a text with U+0000
                reason = f"the one with {table.describe(row)} has U+0000, which PostgreSQL cannot store"
            raise DatabaseUnusable(f"{self.name} does not accept a row of {table.name}: {reason}") from None

    def finish(self) -> None:
        """Create the indexes, begin a new epoch, run ANALYZE, and set each sequence to the last number used."""
        super().finish()
        self.connection.link.run(f"ANALYZE {self.names}")
        for table in dialect.tables_of(each for each in self.statements if " AS IDENTITY" in each):
            used = copying.USED_NUMBERS if table == "history" else table
            self.connection.link.run(
                f"SELECT setval(pg_get_serial_sequence('{table}', 'seq'), NULLIF(MAX(seq), 0)) FROM {used}"
            )


class UncommittedConnection(store.PostgresConnection):
    """A connection in the transaction of a copy, whose schema other connections do not see yet."""

    def integrity_errors(self) -> Iterator[str]:
        """Yield nothing: the check uses another connection, which cannot see this schema."""
        yield from ()


@contextmanager
def server_source(database: store.PostgresDatabase) -> Iterator[ServerSource]:
    """Open a PostgreSQL database as the source of a copy, in one snapshot."""
    with unlimited_connection(database) as link:
        link.run("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        yield ServerSource(database.name, UncommittedConnection(database, link))


@contextmanager
def server_target(database: store.PostgresDatabase, tables: Sequence[Table]) -> Iterator[ServerTarget]:
    """Open a PostgreSQL database without data as the target of a copy. Commit at the end, unless the block fails."""
    with unlimited_connection(database) as link:
        yield ServerTarget(database, link, tables)
        link.run("COMMIT")
