"""A PostgreSQL server as one end of a copy: whole tables by COPY, which is three times as fast as INSERT.

The target is filled in one transaction: its foreign keys and indexes are dropped, and made again by what the server
itself said of them when all rows are there, which takes a fraction of the time that they would take row by row.
https://www.postgresql.org/docs/15/populate.html, https://www.postgresql.org/docs/15/sql-copy.html
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import psycopg

import findings_service as heart
from findings_adapters.postgres import copying, dialect, store

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from findings_adapters.postgres.copying import Row, Table

TYPES = {"TEXT": "text", "INTEGER": "int8"}
LOCK_TIME = 10  # seconds to wait for what others do with the tables
MEMORY = "256MB"  # for making an index
# What is dropped and made again: its name, what drops it, and what makes it.
FOREIGN_KEYS = """
    SELECT format('ALTER TABLE %I DROP CONSTRAINT %I', relname, conname),
        format('ALTER TABLE %I ADD CONSTRAINT %I %s', relname, conname, pg_get_constraintdef(pg_constraint.oid))
    FROM pg_constraint JOIN pg_class ON pg_class.oid = conrelid
    WHERE contype = 'f' AND relnamespace = to_regnamespace(current_schema()) AND relname = ANY ($1)
    ORDER BY relname, conname"""
INDEXES = """
    SELECT format('DROP INDEX %I', index.relname), pg_get_indexdef(index.oid)
    FROM pg_index JOIN pg_class ON pg_class.oid = indrelid JOIN pg_class AS index ON index.oid = indexrelid
    WHERE pg_class.relnamespace = to_regnamespace(current_schema()) AND pg_class.relname = ANY ($1)
        AND NOT EXISTS (SELECT 1 FROM pg_constraint WHERE conindid = indexrelid AND contype IN ('p', 'u'))
    ORDER BY pg_class.relname, index.relname"""


@contextmanager
def connected(database: store.PostgresDatabase) -> Iterator[tuple[store.Link, int | None]]:
    """Give a connection of its own, without limits of time, with the version of the schema there."""
    with database.beside() as link:
        version = database.version_at(link)
        link.patience = float("inf")
        for setting in ("statement_timeout = 0", "idle_in_transaction_session_timeout = 0"):
            link.run(f"SET {setting}")
        link.run(f"SET lock_timeout = '{LOCK_TIME}s'")
        yield link, version


class ServerPlace(copying.Place):
    """A server that is read, over a connection with a transaction."""

    numbers_all = False

    def __init__(self, name: str, link: store.Link) -> None:
        super().__init__(name)
        self.link = link

    def select(self, statement: str) -> list[Row]:
        """Return the rows of a statement."""
        return list(self.link.run(statement))

    def rows(self, table: Table) -> Iterator[Row]:
        """Give all rows of a table, by the primary key."""
        order = ", ".join(table.columns[place] for place in table.key)
        text = f"COPY (SELECT {', '.join(table.columns)} FROM {table.name} ORDER BY {order}) TO STDOUT"
        with self.link.cursor().copy(text.encode()) as copy:
            copy.set_types([TYPES[kind] for kind in table.types])
            yield from copy.rows()


class ServerTarget(copying.Target, ServerPlace):
    """A server that is filled, in one transaction."""

    def __init__(self, database: store.PostgresDatabase, link: store.Link) -> None:
        super().__init__(database.name, link)
        self.database = database
        self.statements = dialect.schema_statements(heart.schema_path().read_text("utf-8"))
        self.names = dialect.tables_of(self.statements)
        self._later: list[str] = []
        self._facts: dict[str, str] = {}

    def make(self, version: int | None, tables: Sequence[Table]) -> None:
        """Begin the transaction, with the schema there and empty."""
        run = self.link.run
        run("BEGIN")
        run(f"SET LOCAL maintenance_work_mem = '{MEMORY}'")
        self.database.lock_schema(self.link)
        if version is None:
            self.database.require_empty(self.link, self.names)
            for statement in (dialect.MAKE_VERSION_TABLE, *self.statements):
                run(statement)
            run(f"INSERT INTO {dialect.VERSION_TABLE} (id, version) VALUES (1, $1)", heart.SCHEMA_VERSION)
        else:
            run(f"LOCK TABLE {', '.join(self.names)} IN ACCESS EXCLUSIVE MODE")
            filled = (table.name for table in tables if self.select(f"SELECT 1 FROM {table.name} LIMIT 1"))
            copying.require_empty(self.name, filled)
        self._facts = store.facts_of(self.link, "current_schema()", self.names)
        self._strip([table.name for table in tables])

    def _strip(self, names: list[str]) -> None:
        """Take away what is quicker to make for all rows at once."""
        run = self.link.run
        keys, indexes = (run(statement, names).fetchall() for statement in (FOREIGN_KEYS, INDEXES))
        for drop, _ in (*keys, *indexes):
            run(drop)
        run(f"TRUNCATE {', '.join(names)}")  # without which FREEZE is refused
        self._later = [make for _, make in (*indexes, *keys)]

    def fill(self, table: Table, rows: Iterable[Row]) -> None:
        """Store all rows of a table: as such that all can see, which a VACUUM need not find out."""
        row: Row = ()
        text = f"COPY {table.name} ({', '.join(table.columns)}) FROM STDIN (FREEZE)"
        try:
            with self.link.cursor().copy(text.encode()) as copy:
                for row in rows:
                    copy.write_row(row)
        except psycopg.DataError as error:
            nul = [name for name, value in zip(table.columns, row, strict=False) if "\0" in str(value)]
            if not nul or error.sqlstate:
                raise heart.DatabaseUnusable(
                    f"{self.name} does not take a row of {table.name}: {store.complaint(error)}"
                ) from None
            raise heart.DatabaseUnusable(
                f"{', '.join(nul)} of the row of {table.name} with {table.told(row)} has U+0000, which PostgreSQL"
                " cannot hold"
            ) from None

    def finish(self, tables: Sequence[Table]) -> None:
        """Make the indexes and foreign keys again, and let numbering go on behind the last row."""
        for statement in self._later:
            self.link.run(statement)
        for table in tables:
            self.link.run(f"ANALYZE {table.name}")
        for name in dialect.numbered_by_itself(self.statements):
            self.link.run(dialect.numbering(name))

    def faults(self) -> Iterator[str]:
        """Audit what is there, and whether the schema is as it was."""
        before, after = self._facts, store.facts_of(self.link, "current_schema()", self.names)
        yield from (
            f"schema: {name} is not as it was" for name in {*before, *after} if before.get(name) != after.get(name)
        )
        yield from heart.faults(Unfinished(self.database, self.link, read_only=True))

    def keep(self) -> None:
        """Commit."""
        self.link.run("COMMIT")


class Unfinished(store.PostgresConnection):
    """A connection within the transaction of a copy, whose schema no other connection sees yet."""

    def faults(self) -> Iterator[str]:
        """Leave the schema to whoever made it."""
        yield from ()


@contextmanager
def server_source(database: heart.Database) -> Iterator[ServerPlace]:
    """Give what is in a database now."""
    with connected(ours(database)) as (link, version):
        if version is None:
            raise heart.DatabaseUnusable(ours(database).absence())
        link.run("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        yield ServerPlace(database.name, link)


@contextmanager
def server_target(database: heart.Database, tables: Sequence[Table]) -> Iterator[ServerTarget]:
    """Give a new database, or one with an empty schema, of which nothing is changed unless that is kept."""
    with connected(ours(database)) as (link, version):
        target = ServerTarget(ours(database), link)
        target.make(version, tables)
        yield target


def ours(database: heart.Database) -> store.PostgresDatabase:
    """Return a database as one of this room. :raises heart.DatabaseUnusable: for another."""
    if not isinstance(database, store.PostgresDatabase):
        raise heart.DatabaseUnusable(f"{database.name} is of another engine than SQLite and PostgreSQL")
    return database
