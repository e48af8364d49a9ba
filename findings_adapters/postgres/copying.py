"""Copying of whole databases between files and PostgreSQL servers.

The source is read in one snapshot, and may be in use. The target is new and receives all rows or none: before the
copy is committed, its rows are read back, compared with the source and audited. Rows are streamed one by one, so that
a database of any size needs little memory. Sources and targets are files here, and servers in `bulk.py`.

Every table of client data is copied. Other tables describe a single database, such as its last backup, and are not.
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
Shifts = Mapping[str, Mapping[str, int]]  # numbers to add to the seqs of a table: by table, then by client


class Table(Struct, frozen=True):
    """A table of the schema.

    `client` is the index of the column with the client's id. `numbers` maps indexes of seq columns to the seqs' tables.
    """

    name: str
    columns: Sequence[str]
    key: Sequence[str]
    client: int
    numbers: Mapping[int, str]

    def describe(self, row: Row) -> str:
        """Return the client and the key of a row, for messages."""
        cells = dict(zip(self.columns, row, strict=True))
        names = dict.fromkeys([self.columns[self.client], *(["id"] if "id" in cells else self.key)])
        return ", ".join(f"{name} {truncate(str(cells[name]))!r}" for name in names)


OWNERS = {  # columns that hold the seq of another table's row, with that table
    "run_seq": "runs",
    "branch_seq": "branches",
    "task_seq": "tasks",
    "history_seq": "history",
    "answer_seq": "idempotent_answers",
}


def read_tables() -> list[Table]:
    """Return the tables to copy, in an order in which foreign keys refer to earlier tables."""
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
            key = [column for number, column in sorted((number, column) for column, number in found) if number]
            client = "id" if name == "clients" else "client_id"
            owners = OWNERS | {"seq": name}
            numbers = {index: owners[column] for index, column in enumerate(columns) if column in owners}
            tables.append(Table(name, columns, key, columns.index(client), numbers))
        return tables


# Sources and targets


class Source:
    """The source of a copy: a database whose rows are read over a connection with one snapshot."""

    def __init__(self, name: str, connection: Any) -> None:
        self.name, self.connection = name, connection

    def read(self, sql: str) -> Iterator[Row]:
        """Return an iterator over the rows of a statement, which reads each row on demand."""
        return map(tuple, self.connection.execute(sql))  # not a cursor: `yield from` would close it with its generator

    def rows(self, table: Table) -> Iterator[Row]:
        """Yield all rows of a table in the order of its key. :raises DatabaseUnusable: if a text is not UTF-8."""
        try:
            yield from self.read(f"SELECT {', '.join(table.columns)} FROM {table.name} ORDER BY {', '.join(table.key)}")
        except sqlite3.OperationalError as error:
            if "decode" not in str(error):
                raise
            raise DatabaseUnusable(f"{self.name}: a row of {table.name} has a text that is not valid UTF-8") from None


class Target(Source):
    """The target of a copy, whose rows are invisible to other connections until it is committed."""

    statements: Sequence[str]  # that create the schema

    def make(self, *, indexes: bool) -> None:
        """Create the tables, or the indexes if `indexes`, which is faster once all rows are stored."""
        for statement in self.statements:
            if ("INDEX IF NOT EXISTS" in statement) == indexes:
                self.connection.execute(statement)

    def fill(self, table: Table, rows: Iterable[Row]) -> None:
        """Store all rows of a table."""
        values = ", ".join("?" * len(table.columns))
        self.connection.executemany(f"INSERT INTO {table.name} ({', '.join(table.columns)}) VALUES ({values})", rows)

    def finish(self) -> None:
        """Create the indexes, and begin a new epoch, after all rows are stored."""
        self.make(indexes=True)
        begin_epoch(self.connection)


# Numbers of the history that must not be used again: a webhook's cursor may be after the last remaining entry.
USED_NUMBERS = "(SELECT seq FROM history UNION ALL SELECT history_seq FROM webhooks) AS used"
CACHE = 128 * 1024  # KiB of SQLite's page cache while a file is filled


class FileTarget(Target):
    """A new file as the target of a copy. It has a temporary name, `partial`, until the copy has succeeded."""

    statements = tuple(statements_of(schema_path().read_text("utf-8")))

    def __init__(self, name: str, path: str, partial: str) -> None:
        self.path, self.partial = path, partial
        super().__init__(name, self._connect())
        self.connection.execute("BEGIN")
        self.make(indexes=False)

    def _connect(self) -> SQLiteConnection:
        """Open the temporary file without a rollback journal: a failed copy is removed as a whole."""
        connection = sqlite3.connect(self.partial, isolation_level=None, factory=SQLiteConnection)
        backup.copy_beside(connection, self.path)
        connection.executescript(f"PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF; PRAGMA cache_size = -{CACHE}")
        return connection

    def finish(self) -> None:
        """Create the indexes, commit, and reopen the file, so that the audit reads it from there."""
        super().finish()
        self.connection.execute("DELETE FROM sqlite_sequence WHERE name = 'history'")
        self.connection.execute(
            f"INSERT INTO sqlite_sequence SELECT 'history', COALESCE(MAX(seq), 0) FROM {USED_NUMBERS}"
        )
        self.connection.execute("COMMIT")
        self.connection.close()
        self.connection = self._connect()


def require_new(path: str, tables: Sequence[Table]) -> None:
    """Require that a path has no file, or one without rows of this service. :raises DatabaseUnusable: otherwise."""
    backup.require_replaceable(path)
    if not Path(path).exists():
        return
    with closing(open_database(Settings(db=path), read_only=True)) as connection:
        existing = {name for (name,) in connection.execute("SELECT name FROM sqlite_master")}
        require_empty(Source(path, connection), [table for table in tables if table.name in existing])


def require_empty(database: Source, tables: Iterable[Table]) -> None:
    """Require that tables have no rows. :raises DatabaseUnusable: if one has any."""
    if found := [table.name for table in tables if list(database.read(f"SELECT 1 FROM {table.name} LIMIT 1"))]:
        raise DatabaseUnusable(
            f"{database.name} already has data of this service, in {', '.join(found)}; name a new or empty database as"
            " the target"
        )


@contextmanager
def file_source(database: SQLiteDatabase) -> Iterator[Source]:
    """Open a database file as the source of a copy, in one snapshot."""
    with readable_errors(database.name), database.snapshot() as connection:
        yield Source(database.name, connection)


@contextmanager
def file_target(database: SQLiteDatabase, tables: Sequence[Table]) -> Iterator[FileTarget]:
    """Open a new file as the target of a copy. Move it to its path at the end; remove it if the block fails."""
    path = database.settings.db
    require_new(path, tables)
    with backup.new_file(path) as partial:
        target = FileTarget(database.name, path, partial)
        try:
            yield target
        finally:
            target.connection.close()
        require_new(path, tables)
        backup.move_checked(partial, path)


# Sequence numbers. PostgreSQL numbers the rows of each client from 1, SQLite all rows of a table. If two clients have
# the same seq in a copy to a file, one client's seqs and all references to them are shifted. Their order stays.


def find_shifts(source: Source, tables: Iterable[Table]) -> Shifts:
    """Return the numbers to add to the seqs of clients, so that no seq occurs twice in a table; by table and client."""
    return {
        table.name: shifts_of(source.read(f"SELECT client_id, MIN(seq), MAX(seq) FROM {table.name} GROUP BY client_id"))
        for table in tables
        if "seq" in table.columns
        and list(source.read(f"SELECT 1 WHERE (SELECT COUNT(*) > COUNT(DISTINCT seq) FROM {table.name})"))
    }


def shifts_of(spans: Iterable[Row]) -> dict[str, int]:
    """Return the numbers to add to the seqs of clients that overlap; `spans` has client, first seq and last seq."""
    shifts, end = dict[str, int](), 0
    for client, first, last in sorted(spans, key=lambda span: (span[1], span[0])):
        if first <= end:
            shifts[client] = end + 1 - first
        end = max(end, last + shifts.get(client, 0))
    return shifts


def moved(rows: Iterable[Row], table: Table, shifts: Shifts, sign: int = 1) -> Iterator[Row]:
    """Yield rows of a table with shifted seqs and references to seqs; shift back if `sign` is -1."""
    columns = [(index, shifts[owner]) for index, owner in table.numbers.items() if owner in shifts]
    for row in rows:
        cells = list(row)
        for index, by_client in columns:
            if cells[index] is not None:
                cells[index] += sign * by_client.get(row[table.client], 0)
        yield cells


# Copying and verifying


class Tally:
    """The number of rows of a table, and the sum of their checksums, which does not depend on their order."""

    count = checksum = 0

    def seen(self, rows: Iterable[Row]) -> Iterator[Row]:
        """Yield rows, and add each to the tally. Its checksum is of MessagePack, in which 1 and "1" differ."""
        for row in rows:
            self.count += 1
            digest = blake2b(msgspec.msgpack.encode(row), digest_size=16).digest()
            self.checksum += int.from_bytes(digest, "little")
            yield row


def copy_tables(source: Source, target: Target, tables: Sequence[Table], shifts: Shifts) -> Mapping[str, int]:
    """Copy all rows of a source to a target, and return the number of rows of each table.

    :raises click.ClickException: if the target differs from the source, or fails the audit.
    """
    read = {table.name: Tally() for table in tables}
    differences: list[str] = []
    with progress_bar("Copying", 2 * len(tables)) as bar:
        for table in tables:
            target.fill(table, moved(read[table.name].seen(source.rows(table)), table, shifts))
            bar.update(1)
        for (version,) in source.read("SELECT unicode_version FROM folding"):
            migrations.note_folding(target.connection, version)
        target.finish()
        for table in tables:
            expected, stored = read[table.name], Tally()
            for _ in stored.seen(moved(target.rows(table), table, shifts, -1)):
                pass
            if expected.count != stored.count:
                differences.append(f"{table.name}: {expected.count:,} rows were read, but {stored.count:,} were stored")
            elif expected.checksum != stored.checksum:
                differences.append(f"{table.name}: {expected.count:,} rows were stored, but not all as they were read")
            bar.update(1)
        audit.raise_for_faults(differences, f"the rows in {target.name} differ from the source; the copy was dropped")
        audit.raise_for_faults(
            list(audit.integrity_errors(target.connection)),
            "the source has these faults, because every row was copied unchanged; the copy was dropped",
        )
    return {name: tally.count for name, tally in read.items()}
