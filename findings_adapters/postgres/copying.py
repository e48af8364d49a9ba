"""Copying a whole database from a file to PostgreSQL, or back, or from one file or server to another.

The source is read as it is at one moment, while it may be in use. The target is new, and gets all of it or nothing:
what stands there is read again, and compared and audited, before it is kept. Rows go one by one from one end to the
other, so that a database of any size needs little memory. The ends are a file here, and a server in `bulk.py`.

Every table with a client is copied. What is left out has none, and tells of one database alone: when it was backed up.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from hashlib import blake2b
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

import findings_features.audit as audit
import findings_features.backup as backup
import findings_features.migrations as migrations
from findings_features.streams import progress_bar
from findings_service import (
    DatabaseUnusable,
    Settings,
    SQLiteConnection,
    SQLiteDatabase,
    begin_epoch,
    open_database,
    readable_errors,
    schema_path,
    statements_of,
    truncate,
)

Row = Sequence[Any]
Shifts = Mapping[str, Mapping[str, int]]  # what is added to the seqs of a table, by client


class Table(Struct, frozen=True):
    """A table of the schema. Columns are told by their places.

    `numbers` are the columns that hold a seq, with the table whose seq it is.
    """

    name: str
    columns: Sequence[str]
    key: Sequence[str]
    client: int
    numbers: Mapping[int, str]

    def told(self, row: Row) -> str:
        """Return which row this is, for messages."""
        cells = dict(zip(self.columns, row, strict=True))
        names = dict.fromkeys([self.columns[self.client], *(["id"] if "id" in cells else self.key)])
        return ", ".join(f"{name} {truncate(str(cells[name]))!r}" for name in names)


OWNERS = {  # the tables that seqs of these names are of
    "run_seq": "runs",
    "branch_seq": "branches",
    "task_seq": "tasks",
    "history_seq": "history",
    "answer_seq": "idempotent_answers",
}


def read_tables() -> list[Table]:
    """Return the tables to copy, in the order of `schema.sql`, in which nothing names a later one."""
    with closing(sqlite3.connect(":memory:")) as fresh:
        fresh.executescript(schema_path().read_text("utf-8"))
        names = fresh.execute(
            """SELECT name FROM sqlite_master AS tables WHERE type = 'table' AND (name = 'clients' OR EXISTS (
                   SELECT 1 FROM pragma_table_info(tables.name) WHERE name = 'client_id')) ORDER BY rowid"""
        )
        tables = list[Table]()
        for (name,) in names.fetchall():
            found = fresh.execute("SELECT name, pk FROM pragma_table_info(?) ORDER BY cid", (name,)).fetchall()
            columns = [column for column, _ in found]
            key = [column for place, column in sorted((place, column) for column, place in found) if place]
            client = "id" if name == "clients" else "client_id"
            owners = OWNERS | {"seq": name}
            numbers = {place: owners[column] for place, column in enumerate(columns) if column in owners}
            tables.append(Table(name, columns, key, columns.index(client), numbers))
        return tables


# The ends of a copy


class Source:
    """Where rows are read, over a connection that sees one moment."""

    def __init__(self, name: str, connection: Any) -> None:
        self.name, self.connection = name, connection

    def read(self, sql: str) -> Iterator[Row]:
        """Give the rows of a statement, each read when it is asked for."""
        return map(tuple, self.connection.execute(sql))  # a cursor would be closed with who reads it

    def rows(self, table: Table) -> Iterator[Row]:
        """Yield all rows of a table. :raises DatabaseUnusable: if a text is not valid UTF-8."""
        try:
            yield from self.read(f"SELECT {', '.join(table.columns)} FROM {table.name} ORDER BY {', '.join(table.key)}")
        except sqlite3.OperationalError as error:
            if "decode" not in str(error):
                raise
            raise DatabaseUnusable(f"{self.name}: a row of {table.name} has a text that is not UTF-8") from None


class Target(Source):
    """The target of a copy, whose rows other connections see only once it is committed."""

    statements: Sequence[str]  # that make the schema

    def make(self, *, indexes: bool) -> None:
        """Make the tables, or the indexes, which are quicker to make when all rows are there."""
        for statement in self.statements:
            if ("INDEX IF NOT EXISTS" in statement) == indexes:
                self.connection.execute(statement)

    def fill(self, table: Table, rows: Iterable[Row]) -> None:
        """Store all rows of a table."""
        marks = ", ".join("?" * len(table.columns))
        self.connection.executemany(f"INSERT INTO {table.name} ({', '.join(table.columns)}) VALUES ({marks})", rows)

    def finish(self) -> None:
        """Make what is wanted once all rows are there."""
        self.make(indexes=True)
        begin_epoch(self.connection)


# Numbers of the history that are not given again: a webhook's place may be after the last entry that is left.
USED_NUMBERS = "(SELECT seq FROM history UNION ALL SELECT history_seq FROM webhooks) AS used"
CACHE = 128 * 1024  # KiB for a file that is filled


class FileTarget(Target):
    """A file that is made, beside its place until all is well."""

    statements = tuple(statements_of(schema_path().read_text("utf-8")))

    def __init__(self, name: str, path: str, partial: str) -> None:
        self.path, self.partial = path, partial
        super().__init__(name, self._connect())
        self.connection.execute("BEGIN")
        self.make(indexes=False)

    def _connect(self) -> SQLiteConnection:
        """Open the file. There is no way back in it: what fails is dropped."""
        connection = sqlite3.connect(self.partial, isolation_level=None, factory=SQLiteConnection)
        backup.copy_beside(connection, self.path)
        connection.executescript(f"PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF; PRAGMA cache_size = -{CACHE}")
        return connection

    def finish(self) -> None:
        """Make the indexes, and read all of it from the file from now on."""
        super().finish()
        self.connection.execute("DELETE FROM sqlite_sequence WHERE name = 'history'")
        self.connection.execute(
            f"INSERT INTO sqlite_sequence SELECT 'history', COALESCE(MAX(seq), 0) FROM {USED_NUMBERS}"
        )
        self.connection.execute("COMMIT")
        self.connection.close()
        self.connection = self._connect()


def require_new(path: str, tables: Sequence[Table]) -> None:
    """Refuse a file that has anything in it. :raises DatabaseUnusable: then."""
    backup.require_replaceable(path)
    if not Path(path).exists():
        return
    with closing(open_database(Settings(db=path), read_only=True)) as connection:
        there = {name for (name,) in connection.execute("SELECT name FROM sqlite_master")}
        require_empty(Source(path, connection), [table for table in tables if table.name in there])


def require_empty(place: Source, tables: Iterable[Table]) -> None:
    """Refuse a database with rows in some tables. :raises DatabaseUnusable: then."""
    if found := [table.name for table in tables if list(place.read(f"SELECT 1 FROM {table.name} LIMIT 1"))]:
        raise DatabaseUnusable(
            f"{place.name} has data of this service already, in {', '.join(found)}; a copy needs a new database, or an"
            " empty one"
        )


@contextmanager
def file_source(database: SQLiteDatabase) -> Iterator[Source]:
    """Give what is in a file now."""
    with readable_errors(database.name), database.snapshot() as moment:
        yield Source(database.name, moment)


@contextmanager
def file_target(database: SQLiteDatabase, tables: Sequence[Table]) -> Iterator[FileTarget]:
    """Open a new file, which is moved to its place at the end, or removed if the block fails."""
    path = database.settings.db
    require_new(path, tables)
    with backup.new_file(path) as partial:
        target = FileTarget(database.name, path, partial)
        try:
            yield target
        finally:
            target.connection.close()
        require_new(path, tables)
        backup.put_in_place(partial, path)


# Seqs. PostgreSQL numbers the rows of each client from 1 on, and SQLite all rows of a table. Where two clients have the
# same seq, those of one are moved as far as it takes, and with them what refers to them; the order stays.


def find_shifts(source: Source, tables: Iterable[Table]) -> Shifts:
    """Return how far the seqs of clients have to be moved for no two to have the same."""
    return {
        table.name: shifts_of(source.read(f"SELECT client_id, MIN(seq), MAX(seq) FROM {table.name} GROUP BY client_id"))
        for table in tables
        if "seq" in table.columns
        and list(source.read(f"SELECT 1 WHERE (SELECT COUNT(*) > COUNT(DISTINCT seq) FROM {table.name})"))
    }


def shifts_of(spans: Iterable[Row]) -> dict[str, int]:
    """Return how far clients are moved, by the first and the last seq of each: behind those that come before it."""
    shifts, end = dict[str, int](), 0
    for client, first, last in sorted(spans, key=lambda span: (span[1], span[0])):
        if first <= end:
            shifts[client] = end + 1 - first
        end = max(end, last + shifts.get(client, 0))
    return shifts


def moved(rows: Iterable[Row], table: Table, shifts: Shifts, sign: int = 1) -> Iterator[Row]:
    """Give rows with their seqs moved, or with the sign -1 moved back."""
    places = [(place, shifts[owner]) for place, owner in table.numbers.items() if owner in shifts]
    for row in rows:
        cells = list(row)
        for place, by_client in places:
            if cells[place] is not None:
                cells[place] += sign * by_client.get(row[table.client], 0)
        yield cells


# What was read, and what stands there


class Tally:
    """How many rows a table has, and the sum of their checksums, which no order changes."""

    count = checksum = 0

    def seen(self, rows: Iterable[Row]) -> Iterator[Row]:
        """Give rows on, counted. A text and a number are never the same; so neither are two rows that differ."""
        for row in rows:
            self.count += 1
            digest = blake2b(msgspec.msgpack.encode(row), digest_size=16).digest()
            self.checksum += int.from_bytes(digest, "little")
            yield row


def copy_tables(source: Source, target: Target, tables: Sequence[Table], shifts: Shifts) -> Mapping[str, int]:
    """Store all rows of a source in a target, and return how many each table has.

    :raises click.ClickException: where not that stands there which was read, or it is unsound.
    """
    read = {table.name: Tally() for table in tables}
    wrong: list[str] = []
    with progress_bar("Copying", 2 * len(tables)) as bar:
        for table in tables:
            target.fill(table, moved(read[table.name].seen(source.rows(table)), table, shifts))
            bar.update(1)
        for (version,) in source.read("SELECT unicode_version FROM folding"):
            migrations.note_folding(target.connection, version)
        target.finish()
        for table in tables:
            was, stored = read[table.name], Tally()
            for _ in stored.seen(moved(target.rows(table), table, shifts, -1)):
                pass
            if was.count != stored.count:
                wrong.append(f"{table.name}: {was.count:,} rows were read, and {stored.count:,} are there")
            elif was.checksum != stored.checksum:
                wrong.append(f"{table.name}: {was.count:,} rows are there, but not all as they were read")
            bar.update(1)
        audit.refuse_for(wrong, f"what stands in {target.name} is not what was read; the copy was dropped")
        audit.refuse_for(
            list(audit.integrity_errors(target.connection)),
            "every row was copied as it is, so that the copy has these faults, too; the copy was dropped",
        )
    return {name: tally.count for name, tally in read.items()}
