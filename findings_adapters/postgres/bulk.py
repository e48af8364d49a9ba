"""A PostgreSQL server as one end of a copy. It is filled in one transaction, whole tables by COPY.

https://www.postgresql.org/docs/15/populate.html, https://www.postgresql.org/docs/15/sql-copy.html
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

import psycopg

from findings_adapters.postgres import copying, dialect, store
from findings_adapters.postgres.copying import Row, Table
from findings_service import SCHEMA_VERSION, DatabaseUnusable

LOCK_TIME = 10  # seconds to wait for what others do with the tables


@contextmanager
def connected(database: store.PostgresDatabase) -> Iterator[store.Link]:
    """Open a separate connection without time limits."""
    with database.beside() as link:
        link.patience = float("inf")
        link.run("SET statement_timeout = 0; SET idle_in_transaction_session_timeout = 0")
        link.run(f"SET lock_timeout = '{LOCK_TIME}s'")
        yield link


class ServerPlace(copying.Source):
    """A server that is read, over a connection with a transaction."""

    def read(self, sql: str) -> Iterator[Row]:
        """Give the rows of a statement; those that were not asked for yet stay with the server."""
        with self.connection.link.cursor("rows") as cursor:
            yield from cursor.execute(sql.encode())


class ServerTarget(ServerPlace, copying.Target):
    """A server that is filled in one transaction, with the schema there and empty."""

    def __init__(self, database: store.PostgresDatabase, link: store.Link, tables: Sequence[Table]) -> None:
        super().__init__(database.name, Unfinished(database, link))
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
            run(f"TRUNCATE {self.names}")  # without which FREEZE is refused

    def fill(self, table: Table, rows: Iterable[Row]) -> None:
        """Store all rows of a table: as such that all can see, which a VACUUM need not find out."""
        row: Row = ()
        text = f"COPY {table.name} ({', '.join(table.columns)}) FROM STDIN (FREEZE)"
        try:
            with self.connection.link.cursor().copy(text.encode()) as copy:
                for row in rows:
                    copy.write_row(row)
        except psycopg.DataError as error:
            said = store.complaint(error)
            if not error.sqlstate:  # psycopg's own, of a text with U+0000
                said = f"U+0000 in the one with {table.told(row)}, which PostgreSQL cannot hold"
            raise DatabaseUnusable(f"{self.name} does not take a row of {table.name}: {said}") from None

    def finish(self) -> None:
        """Make the indexes, and let numbering go on behind the last row."""
        super().finish()
        self.connection.link.run(f"ANALYZE {self.names}")
        for table in dialect.tables_of(each for each in self.statements if " AS IDENTITY" in each):
            used = copying.USED_NUMBERS if table == "history" else table
            self.connection.link.run(
                f"SELECT setval(pg_get_serial_sequence('{table}', 'seq'), NULLIF(MAX(seq), 0)) FROM {used}"
            )


class Unfinished(store.PostgresConnection):
    """A connection within the transaction of a copy, whose schema no other connection sees yet."""

    def integrity_errors(self) -> Iterator[str]:
        """Leave the schema to whoever made it."""
        yield from ()


@contextmanager
def server_source(database: store.PostgresDatabase) -> Iterator[ServerPlace]:
    """Give what is in a database now."""
    with connected(database) as link:
        link.run("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        yield ServerPlace(database.name, Unfinished(database, link))


@contextmanager
def server_target(database: store.PostgresDatabase, tables: Sequence[Table]) -> Iterator[ServerTarget]:
    """Open a new database, or an empty schema of one, and commit everything at the end unless the block fails."""
    with connected(database) as link:
        yield ServerTarget(database, link, tables)
        link.run("COMMIT")
