"""The command `copy`: a whole database from a file to PostgreSQL, or back, or from one file or server to another.

The source is read as it is at one moment, while it may be in use. The target is new, and gets all of it or nothing:
what stands there is read again, and compared and audited, before it is kept. Rows go one by one from one end to the
other, so that a database of any size needs little memory. The ends are a file here, and a server in `bulk.py`, which
needs psycopg.

Every table with a client is copied. What is left out has none, and tells of one database alone: when it was backed up.
"""

from __future__ import annotations

import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from hashlib import blake2b
from pathlib import Path
from typing import Any

import click
import msgspec
from msgspec import Struct

import findings_service as heart

try:
    import fcntl
except ImportError:  # on Windows
    fcntl = None  # type: ignore[assignment]

Row = Sequence[Any]
Shifts = Mapping[str, Mapping[str, int]]  # what is added to the seqs of a table, by client

STEP = 1024  # rows between two looks at how far the copy is
CACHE = 128 * 1024  # KiB for a file that is filled


class Table(Struct, frozen=True):
    """A table of the schema. Columns are told by their places.

    `numbers` are the columns that hold a seq, with the table whose seq it is.
    """

    name: str
    columns: Sequence[str]
    types: Sequence[str]
    key: Sequence[int]
    client: int
    numbers: Mapping[int, str]

    def told(self, row: Row) -> str:
        """Return which row this is, for messages."""
        named = [place for place, name in enumerate(self.columns) if name == "id"]
        places = dict.fromkeys([self.client, *(named or self.key)])
        return ", ".join(f"{self.columns[place]} {heart.cut(str(row[place]))!r}" for place in places)


def read_tables() -> list[Table]:
    """Return the tables to copy, in the order of `schema.sql`, in which nothing names a later one."""
    with closing(sqlite3.connect(":memory:")) as fresh:
        fresh.executescript(heart.schema_path().read_text("utf-8"))
        names = fresh.execute("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY rowid").fetchall()
        tables = [read_table(fresh, name) for (name,) in names]
    return [table for table in tables if table is not None]


def read_table(fresh: sqlite3.Connection, name: str) -> Table | None:
    """Return a table of a database with the schema, None for one without clients."""
    found = fresh.execute("SELECT name, type, pk FROM pragma_table_info(?) ORDER BY cid", (name,)).fetchall()
    columns, types, keys = zip(*found, strict=True)
    client = "id" if name == "clients" else "client_id"
    if client not in columns:
        return None
    owners = dict(fresh.execute('SELECT "from", "table" FROM pragma_foreign_key_list(?) WHERE "to" = \'seq\'', (name,)))
    owners |= {"seq": name} if "seq" in columns else {}
    return Table(
        name,
        columns,
        types,
        [place for place, _ in sorted(enumerate(keys), key=lambda key: key[1]) if keys[place]],
        columns.index(client),
        {columns.index(column): owner for column, owner in owners.items()},
    )


# The ends of a copy


class Place(ABC):
    """Where rows are read. `numbers_all` tells that a seq is the only one of its table, among all clients."""

    numbers_all: bool

    def __init__(self, name: str) -> None:
        self.name = name

    @abstractmethod
    def select(self, sql: str) -> list[Row]:
        """Return the rows of a statement, which are few."""

    @abstractmethod
    def rows(self, table: Table) -> Iterator[Row]:
        """Give all rows of a table, each read when it is asked for, by client or by the primary key."""

    def count(self, table: Table) -> int:
        """Return how many rows a table has."""
        return int(self.select(f"SELECT COUNT(*) FROM {table.name}")[0][0])


class Target(Place):
    """Where rows are stored, all or none: until `keep`, nobody sees any."""

    @abstractmethod
    def fill(self, table: Table, rows: Iterable[Row]) -> None:
        """Store all rows of a table."""

    @abstractmethod
    def finish(self, tables: Sequence[Table]) -> None:
        """Make what is wanted once all rows are there: indexes, and what numbers the next rows."""

    @abstractmethod
    def faults(self) -> Iterator[str]:
        """Audit what is there."""

    @abstractmethod
    def keep(self) -> None:
        """Make it durable, and let others see it."""


class FilePlace(Place):
    """A file that is read, over a connection that sees one moment of it."""

    numbers_all = True

    def __init__(self, name: str, connection: heart.SQLiteConnection) -> None:
        super().__init__(name)
        self.connection = connection

    def select(self, sql: str) -> list[Row]:
        """Return the rows of a statement."""
        return list(self.connection.execute(sql))

    def rows(self, table: Table) -> Iterator[Row]:
        """Give all rows of a table.

        :raises heart.DatabaseUnusable: at a text that is none.
        """
        last: Row = ()
        order = ", ".join(table.columns[place] for place in table.key)
        try:
            for row in self.connection.execute(f"SELECT {', '.join(table.columns)} FROM {table.name} ORDER BY {order}"):
                last = row
                yield row
        except sqlite3.OperationalError as error:
            if "decode" not in str(error):
                raise
            where = f"behind the one with {table.told(last)}" if last else "the first one"
            raise heart.DatabaseUnusable(
                f"{self.name}: a row of {table.name} has a text that is not UTF-8, {where}"
            ) from None


class FileTarget(Target, FilePlace):
    """A file that is made, beside its place until all is well."""

    def __init__(self, path: str, partial: str, tables: Sequence[Table]) -> None:
        self.path, self.partial, self.tables = path, partial, tables
        self._script = list(heart.statements_of(heart.schema_path().read_text("utf-8")))
        super().__init__(path, self._connect())

    def _connect(self) -> heart.SQLiteConnection:
        """Open the file. There is no way back in it: what fails is dropped."""
        connection = sqlite3.connect(self.partial, isolation_level=None, factory=heart.SQLiteConnection)
        heart.copy_beside(connection, self.path)
        for setting in ("journal_mode = OFF", "synchronous = OFF", f"cache_size = -{CACHE}"):
            connection.execute(f"PRAGMA {setting}")
        return connection

    def make(self) -> None:
        """Make the tables."""
        self.connection.execute("BEGIN")
        self._run(indexes=False)

    def _run(self, *, indexes: bool) -> None:
        for statement in self._script:
            if ("INDEX IF NOT EXISTS" in statement) == indexes:
                self.connection.execute(statement)

    def fill(self, table: Table, rows: Iterable[Row]) -> None:
        """Store all rows of a table."""
        marks = ", ".join("?" * len(table.columns))
        self.connection.executemany(f"INSERT INTO {table.name} ({', '.join(table.columns)}) VALUES ({marks})", rows)

    def finish(self, tables: Sequence[Table]) -> None:  # noqa: ARG002 - rowids number themselves
        """Make the indexes, and read all of it from the file from now on."""
        self._run(indexes=True)
        self.connection.execute("COMMIT")
        self.close()
        self.connection = self._connect()

    def faults(self) -> Iterator[str]:
        """Audit the file."""
        return heart.faults(self.connection)

    def close(self) -> None:
        """Leave the file."""
        self.connection.close()

    def keep(self) -> None:
        """Let the file take its place."""
        self.close()
        require_new(self.path, self.tables)
        heart.put_in_place(self.partial, self.path)


def require_new(path: str, tables: Sequence[Table]) -> None:
    """Refuse a file that has anything in it. :raises heart.DatabaseUnusable: then."""
    heart.require_replaceable(path)
    if not Path(path).exists():
        return
    settings = heart.Settings(db=path)
    with closing(heart.open_database(settings, read_only=True, create=False)) as connection:
        there = {name for (name,) in connection.execute("SELECT name FROM sqlite_master")}
        present = (table.name for table in tables if table.name in there)
        require_empty(path, (name for name in present if connection.execute(f"SELECT 1 FROM {name}").fetchone()))


def require_empty(name: str, filled: Iterable[str]) -> None:
    """Refuse a database with rows in some tables. :raises heart.DatabaseUnusable: then."""
    if found := list(filled):
        raise heart.DatabaseUnusable(
            f"{name} has data of this service already, in {', '.join(found)}; a copy needs a new database, or an empty"
            " one"
        )


@contextmanager
def file_source(database: heart.SQLiteDatabase) -> Iterator[FilePlace]:
    """Give what is in a file now."""
    with heart.readable_errors(database.name), database.snapshot() as moment:
        yield FilePlace(database.name, moment)


@contextmanager
def file_target(database: heart.SQLiteDatabase, tables: Sequence[Table]) -> Iterator[FileTarget]:
    """Give a new file, of which nothing is left unless it is kept."""
    path = database.settings.db
    require_new(path, tables)
    with heart.new_file(path) as partial, closing(FileTarget(path, partial, tables)) as target:
        target.name = database.name
        target.make()
        yield target


# Seqs. PostgreSQL numbers the rows of each client from 1 on, and SQLite all rows of a table. Where two clients have the
# same seq, those of one are moved as far as it takes, and with them what refers to them; the order stays.


def find_shifts(source: Place, target: Place, tables: Iterable[Table]) -> Shifts:
    """Return how far the seqs of clients have to be moved."""
    if source.numbers_all or not target.numbers_all:
        return {}
    return {
        table.name: shifts_of(
            source.select(f"SELECT client_id, MIN(seq), MAX(seq) FROM {table.name} GROUP BY client_id")
        )
        for table in tables
        if "seq" in table.columns and has_doubles(source, table)
    }


def has_doubles(source: Place, table: Table) -> bool:
    """Tell whether two clients have the same seq."""
    doubles = f"SELECT seq FROM {table.name} GROUP BY seq HAVING COUNT(*) > 1"
    return bool(source.select(f"SELECT COUNT(*) FROM ({doubles} LIMIT 1) AS doubles")[0][0])


def shifts_of(spans: Iterable[Row]) -> dict[str, int]:
    """Return how far clients are moved, by the first and the last seq of each: behind those that come before it."""
    shifts, end = dict[str, int](), 0
    for client, first, last in sorted(spans, key=lambda span: (span[1], span[0])):
        if first <= end:
            shifts[client] = end + 1 - first
        end = max(end, last + shifts.get(client, 0))
    return shifts


def moved(rows: Iterable[Row], table: Table, shifts: Shifts, sign: int = 1) -> Iterable[Row]:
    """Return rows with their seqs moved, or with the sign -1 moved back."""
    places = [(place, shifts[owner]) for place, owner in table.numbers.items() if owner in shifts]
    return moved_rows(rows, table.client, places, sign) if places else rows


def moved_rows(
    rows: Iterable[Row], client: int, places: Sequence[tuple[int, Mapping[str, int]]], sign: int
) -> Iterator[Row]:
    """Give rows with some of their numbers moved, each by what is its client's."""
    for row in rows:
        cells = list(row)
        for place, shifts in places:
            cells[place] += sign * shifts.get(row[client], 0)
        yield tuple(cells)


# What was read, and what stands there


class Tally:
    """How many rows there are of each client, and the sum of their checksums, which no order changes."""

    def __init__(self) -> None:
        self.found: dict[str, tuple[int, int]] = {}

    def seen(self, rows: Iterable[Row], client: int, step: Callable[[int], object]) -> Iterator[Row]:
        """Give rows on, counted. A text and a number are never the same; so neither are two rows that differ."""
        found, encode, number = self.found, msgspec.msgpack.encode, int.from_bytes
        at = 0
        for at, row in enumerate(rows, 1):
            n, total = found.get(row[client], (0, 0))
            found[row[client]] = n + 1, total + number(blake2b(encode(row), digest_size=16).digest(), "little")
            if not at % STEP:
                step(STEP)
            yield row
        step(at % STEP)

    @property
    def count(self) -> int:
        """How many rows there are."""
        return sum(n for n, _ in self.found.values())


def differences(table: Table, read: Tally, stored: Tally) -> Iterator[str]:
    """Tell the clients of whom something else stands there than was read."""
    for client in sorted({*read.found, *stored.found}):
        before, after = read.found.get(client, (0, 0)), stored.found.get(client, (0, 0))
        if before[0] != after[0]:
            yield f"{table.name}: of client {client!r} {before[0]:,} rows were read, and {after[0]:,} are there"
        elif before != after:
            yield f"{table.name}: of client {client!r} {before[0]:,} rows are there, but not all as they were read"


class Steps:
    """Shows how far a copy is: each row is read, and read again where it is stored."""

    def __init__(self, bar: Any, rows: int) -> None:
        self.bar, bar.length = bar, 2 * rows

    def step(self, rows: int) -> None:
        """Go on by some rows."""
        self.bar.update(rows)


def copy_tables(
    source: Place, target: Target, tables: Sequence[Table], shifts: Shifts, steps: Steps
) -> Mapping[str, Tally]:
    """Store all rows of a source in a target, and return what was read."""
    tallies = {table.name: Tally() for table in tables}
    for table in tables:
        rows = tallies[table.name].seen(source.rows(table), table.client, steps.step)
        target.fill(table, moved(rows, table, shifts))
    target.finish(tables)
    return tallies


def verify(target: Target, tables: Sequence[Table], shifts: Shifts, read: Mapping[str, Tally], steps: Steps) -> None:
    """Read what stands in a target. :raises click.ClickException: where that is not what was read, or is unsound."""
    wrong: list[str] = []
    for table in tables:
        stored = Tally()
        for _ in stored.seen(moved(target.rows(table), table, shifts, -1), table.client, steps.step):
            pass
        wrong += differences(table, read[table.name], stored)
    refuse_for(wrong, f"what stands in {target.name} is not what was read")
    wrong += target.faults()
    refuse_for(wrong, "every row was copied as it is, so that what is copied has these faults, too")


def refuse_for(wrong: Sequence[str], cause: str) -> None:
    """Tell what is wrong with a copy. :raises click.ClickException: when anything is."""
    for line in wrong:
        click.echo(line)
    if wrong:
        raise click.ClickException(f"{cause}; the copy was dropped")


# The command


@contextmanager
def source_at(database: heart.Database) -> Iterator[Place]:
    """Give what is in a database now."""
    if isinstance(database, heart.SQLiteDatabase):
        with file_source(database) as place:
            yield place
    else:
        import findings_adapters.postgres.bulk as bulk

        with bulk.server_source(database) as place:
            yield place


@contextmanager
def target_at(database: heart.Database, tables: Sequence[Table]) -> Iterator[Target]:
    """Give a new database, of which nothing is left unless it is kept."""
    if isinstance(database, heart.SQLiteDatabase):
        with file_target(database, tables) as place:
            yield place
    else:
        import findings_adapters.postgres.bulk as bulk

        with bulk.server_target(database, tables) as place:
            yield place


def require_two(source: heart.Database, target: heart.Database) -> None:
    """Refuse a target that belongs to the source. :raises click.ClickException: then."""
    same = source.place == target.place
    if isinstance(source, heart.SQLiteDatabase) and isinstance(target, heart.SQLiteDatabase):
        belongs = {f"{source.place}{suffix}" for suffix in ("", *heart.BESIDE, heart.CHECKPOINTER)}
        same = target.place in belongs
    if same:
        raise click.ClickException(f"{target.name} belongs to what is copied; name another database")


def named(_context: click.Context, option: click.Parameter, value: str) -> str:
    """Refuse a name that is none, as of a variable that was not set."""
    if not value:
        raise click.BadParameter("this names no database", param=option)
    return value


@heart.main.command(
    epilog="Stop the service before, or what is written meanwhile is not in the copy. Nothing is ever written over, and"
    " of a copy that fails nothing is left."
)
@click.option(
    "--from",
    "source",
    required=True,
    metavar="DATABASE",
    callback=named,
    help="What is copied: a file, or a postgresql:// URL.",
)
@click.option(
    "--to",
    "target",
    required=True,
    metavar="DATABASE",
    callback=named,
    help="Where to: a new file, or a URL of a database without data of the service.",
)
def copy(source: str, target: str) -> None:
    """Copy a database to another, also to PostgreSQL and back. The copy is of one moment, and verified."""
    tables = read_tables()
    with heart.interruptible(), heart.opened(source) as old, heart.opened(target, new=True) as new:
        require_two(old, new)
        with ExitStack() as ends:
            place = ends.enter_context(source_at(old))
            copied = ends.enter_context(target_at(new, tables))
            with heart.progress_bar("Copying") as bar:
                shifts = find_shifts(place, copied, tables)
                steps = Steps(bar, sum(place.count(table) for table in tables))
                read = copy_tables(place, copied, tables, shifts, steps)
                verify(copied, tables, shifts, read, steps)
            copied.keep()
    report(new.name, tables, read, shifts)


def report(name: str, tables: Sequence[Table], read: Mapping[str, Tally], shifts: Shifts) -> None:
    """Tell how many rows there are of each table, and that all is well."""
    width = max(len(table.name) for table in tables)
    click.echo(f"{'TABLE':{width}}  {'ROWS':>12}", err=True)
    for table in tables:
        click.echo(f"{table.name:{width}}  {read[table.name].count:12,}", err=True)
    if shifted := [table.name for table in tables if shifts.get(table.name)]:
        click.echo(
            f"Clients had the same numbers in {', '.join(shifted)}; some were moved, in the same order.", err=True
        )
    total = sum(tally.count for tally in read.values())
    click.echo(f"{name}: {total:,} rows, verified.", err=True)
