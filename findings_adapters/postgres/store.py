"""What the service asks of an engine, of PostgreSQL: connections, transactions, and what a caller is told of errors.

A transaction is READ COMMITTED, and locks the row of its client first: so writers of one client queue behind each
other, numbers are given in the order of commits, and clients never wait for each other. A snapshot is REPEATABLE READ
(https://www.postgresql.org/docs/15/transaction-iso.html). Both go through psycopg's pipeline mode
(https://www.psycopg.org/psycopg3/docs/advanced/pipeline.html): what is sent waits for nothing until somebody asks for
rows, and what a transaction wrote since goes with its COMMIT.
"""

from __future__ import annotations

import itertools
import os
import select
import threading
import time
import typing
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from typing import Annotated, Any, Literal, NamedTuple
from urllib.parse import unquote

import msgspec
import psycopg
from msgspec import Meta, Struct
from psycopg import conninfo
from psycopg.pq import TransactionStatus
from psycopg.types.numeric import Int8BinaryDumper
from psycopg.types.string import StrBinaryDumper
from psycopg_pool import ConnectionPool, PoolTimeout

from findings_adapters.postgres import dialect
from findings_service import (
    APPLICATION_ID,
    SCHEMA_VERSION,
    Busy,
    ConfigurationError,
    Connection,
    Cursor,
    Database,
    DatabaseUnusable,
    Problem,
    ServiceError,
    Settings,
    StorageFull,
    Transaction,
    TryAgain,
    UseKey,
    ValidationFailed,
    fill,
    log,
    require_version,
    steps_from,
    unready,
    write_last_uses,
)

STATEMENT_TIME = 30.0  # seconds that one statement may take
COUNTED_FIRST, COUNTED_AGAIN = 20_000, 8  # rows of a transaction, and times as many, behind which they are counted
NO_SCHEMA, NO_RIGHT, READ_ONLY, TIMED_OUT, TOO_LONG = "3F000", "42501", "25006", "57014", "54000"
LOST = ("57P01", "57P02", "57P03", "57P04", "57P05", "25P03", "40003")  # the server ends the connection
IN_USE = "55P03"
BUSY = {
    IN_USE: "Another writer had this client's data for too long",
    TIMED_OUT: "The database took too long",
    READ_ONLY: "The database takes no writes now: it is a standby, or read-only",
    "53200": "The database is out of memory",
    "53300": "The database has too many connections",
    "53400": "The database is at one of its limits",
}
FULL = {
    "53100": "its disk is full",
    "58030": "reading or writing failed, or its disk or a quota is full",
    "XX001": "it is damaged",
    "XX002": "it is damaged",
}
UNDONE = ("40001", "40P01")  # by the server, because of what others wrote


class PostgresError(Exception):
    """PostgreSQL refused a statement for no reason that a caller could know: a bug of ours."""


class NobodyKnows(Busy):
    """The connection was lost during COMMIT, and nobody knows which way it went."""

    def __init__(self) -> None:
        ServiceError.__init__(
            self,
            "The connection to the database was lost while this was stored, and it may be stored or not. Look, or send"
            " it again with the Idempotency-Key that it had.",
        )


def is_lost(error: psycopg.Error) -> bool:
    """Tell whether an error says that a connection is gone."""
    return error.sqlstate in LOST or (error.sqlstate is None and isinstance(error, psycopg.OperationalError))


# An index has rows of up to 2,704 bytes, after compression (https://www.postgresql.org/docs/15/btree-implementation.html).
TOO_LONG_TOGETHER = "targetUrl, branch and externalId may have some 2,500 bytes of UTF-8 together in this database"


def known_failure(error: psycopg.Error) -> Exception:
    """Return what stands for what PostgreSQL says. No value that it repeats is in that."""
    state = error.sqlstate or ""
    if is_lost(error):
        return TryAgain("The connection to the database was lost")
    if state in UNDONE:
        return TryAgain("Others wrote at the same time")
    if state == TOO_LONG:
        return ValidationFailed([Problem(TOO_LONG_TOGETHER, "")])
    if state in BUSY:
        return Busy(BUSY[state])
    if state in FULL:
        return StorageFull(FULL[state])
    constraint = f" [{error.diag.constraint_name}]" if error.diag.constraint_name else ""
    return PostgresError(f"{error.diag.message_primary or error}{constraint} ({state})")


def complaint(error: psycopg.Error) -> str:
    """Return what is wrong in one line: what the server says, or the reason that libpq gives for the last host."""
    said = error.diag
    if error.sqlstate == IN_USE:
        return "others are using its tables; stop them"
    if said.message_primary:
        more = TOO_LONG_TOGETHER if error.sqlstate == TOO_LONG else said.message_detail
        if error.sqlstate in (NO_RIGHT, NO_SCHEMA):
            more = "its user needs a schema to create tables in, or tables of its own there"
        return ": ".join(part.rstrip(".") for part in (said.message_primary, more) if part)
    lines = str(error).strip().splitlines() or [type(error).__name__]
    reasons = [line for line in lines if "failed: " in line] or lines[:1]
    return reasons[-1].rpartition("connection failed: ")[2].strip()


# Where the database is


POOL_SIZE = 16  # connections of a process: six processes fit below the 100 that a server takes by default


class Ours(Struct):
    """The parameters of a URL that are for us alone."""

    pool_size: Annotated[int, Meta(ge=1, le=1000)] = POOL_SIZE
    prepare: Literal["on", "off"] = "on"


CONNECT_TIME = 5  # seconds, for each host of the URL
IDLE_IN_TRANSACTION = 300.0  # seconds until the server ends one that nobody goes on with; 64 MiB take long to read
SHOWN = ("host", "port", "user", "dbname", "options")  # parameters of a URL that messages may show


class Address(NamedTuple):
    """What a URL says: what libpq is told, how messages call the database, and what is for us alone."""

    conninfo: str
    name: str
    ours: Ours

    @classmethod
    def of(cls, url: str, lock_patience: float) -> Address:
        """Parse a URL. :raises ConfigurationError: if it is not valid."""
        place, _, query = url.partition("?")
        user, at, rest = place.partition("://")[2].partition("@")
        given = [pair.partition("=")[::2] for pair in query.split("&") if pair]
        theirs = [f"{name}={value}" for name, value in given if name not in Ours.__struct_fields__]
        shown = [pair for pair in theirs if pair.startswith(SHOWN)]
        try:
            if ("/" in user or "@" in rest) if at else "@" in query:  # which messages would show, as a host or a name
                raise psycopg.ProgrammingError
            told: dict[str, Any] = conninfo.conninfo_to_dict(f"{place}?{'&'.join(theirs)}")
        except psycopg.ProgrammingError:  # whose message repeats the password
            raise ConfigurationError(
                "FINDINGS_DB: this is no URL of PostgreSQL, or has a parameter that libpq does not know; one is"
                " postgresql://user:password@host:5432/name, with / @ % ? of a password written as %2F %40 %25 %3F"
            ) from None
        try:
            ours = msgspec.convert({name: unquote(value) for name, value in given}, Ours, strict=False)
        except msgspec.ValidationError as error:
            raise ConfigurationError(f"FINDINGS_DB: {error}") from None
        options = (
            f"-c statement_timeout={STATEMENT_TIME * 1000:.0f} -c lock_timeout={max(1.0, lock_patience * 1000):.0f}"
            f" -c idle_in_transaction_session_timeout={IDLE_IN_TRANSACTION * 1000:.0f}"
            # The server, too, notices a peer that is gone.
            " -c tcp_keepalives_idle=10 -c tcp_keepalives_interval=5 -c tcp_keepalives_count=3"
            f" -c jit=off {told.pop('options', '')}"
        )
        wanted = "read-write" if "," in str(told.get("host", "")) else "any"
        defaults = (
            f"application_name=findings-service client_encoding=UTF8 connect_timeout={CONNECT_TIME} keepalives_idle=10"
            f" keepalives_interval=5 keepalives_count=3 tcp_user_timeout=25000 target_session_attrs={wanted}"
        )
        name = f"postgresql://{user.partition(':')[0] if at else user}{at}{rest}{'?' if shown else ''}{'&'.join(shown)}"
        return cls(conninfo.make_conninfo(defaults, **{**told, "options": options}), name, ours)


# Connections


class PostgresCursor(psycopg.RawCursor[tuple[Any, ...]]):
    """What a statement has come to, once somebody asks."""

    @property
    def rowcount(self) -> int:
        """How many rows were changed."""
        if pipe := typing.cast(Link, self.connection).pipe:
            pipe.sync()
        return super().rowcount


SILENCE = 15.0  # seconds beyond those of a statement after which a server that says nothing is given up
LOOK_AFTER = 10.0  # seconds that a connection was idle, after which the server is asked whether it is there
LOOKING = 3.0  # seconds that it has to answer


class Link(psycopg.Connection[tuple[Any, ...]]):
    """A connection of psycopg's, over which a server that says nothing is given up.

    `pipe` is there within a transaction; `warnings` is how many the server gave, and `used` when the connection was
    given back.
    """

    pipe: psycopg.Pipeline | None = None
    patience = STATEMENT_TIME + SILENCE
    warnings = 0
    used = 0.0

    def note(self, notice: Any) -> None:
        """Count the server's warnings."""
        self.warnings += notice.severity_nonlocalized == "WARNING"

    def run(self, sql: str, *values: Any) -> psycopg.Cursor[tuple[Any, ...]]:
        """Run a statement in PostgreSQL's own words."""
        return self.execute(sql.encode(), values or None)

    def wait(self, gen: Generator[Any, Any, Any], *given: Any, **named: Any) -> Any:
        """Wait for the server. :raises psycopg.OperationalError: when it says nothing for too long."""
        return super().wait(self._given_up(gen), *given, **named)

    def _given_up(self, gen: Generator[Any, Any, Any]) -> Generator[Any, Any, Any]:
        end, ready = time.monotonic() + self.patience, None
        try:
            while True:
                ready = yield gen.send(ready)
                if not ready and time.monotonic() > end:
                    self.pgconn.finish()
                    raise psycopg.OperationalError(f"the server has said nothing for {self.patience:g} s")
        except StopIteration as done:
            return done.value

    def is_there(self) -> bool:
        """Tell whether the server is: it is asked where it has said something by itself, and after a while without use.

        A connection that is gone is closed.
        """
        poll = select.poll()
        poll.register(self.fileno(), select.POLLIN)
        if poll.poll(0) or time.monotonic() > self.used + LOOK_AFTER:
            try:
                self.patience = LOOKING
                ConnectionPool.check_connection(self)
            except psycopg.Error:
                self.close()
            self.patience = STATEMENT_TIME + SILENCE
        return not self.closed


LIST_SHARE = 4  # times that what is at work for a list may take on the server; others are served there, too
MANY_ROWS = 100  # that are stored at once, before which the server plans anew
COUNTING = (  # but by one transaction of several, for as long as that takes; others are not warned
    "SET LOCAL client_min_messages TO error",
    "ANALYZE (SKIP_LOCKED) tasks, task_details, sightings",
    "SET LOCAL client_min_messages TO notice",
)
BULKY_ROWS = 5  # rows of what is large that are read at once
NO_TEXT = "\1"  # stands for U+0000, which no text of PostgreSQL's has: only ids and names of a path may


class PostgresConnection(Connection):
    """A connection to PostgreSQL for as long as somebody reads, or for a transaction."""

    def __init__(self, database: PostgresDatabase, link: Link) -> None:
        self.database = database
        self.link = link
        self.transaction = Transaction()
        self._next_seqs: dict[str, int] = {}
        self._streams = itertools.count()
        self._stored, self._counted_at = 0, COUNTED_FIRST

    @property
    def in_transaction(self) -> bool:
        """Whether there is a transaction."""
        return self.link.pipe is not None

    # Statements

    def execute(self, sql: str, parameters: Sequence[Any] = (), /) -> Cursor:
        """Send a statement; its rows, and what is wrong with it, come when somebody asks for them, or with COMMIT."""
        if self.is_late():
            raise TimeoutError
        values = [value.replace("\0", NO_TEXT) if isinstance(value, str) else value for value in parameters]
        return self.link.run(dialect.translated(sql), *values)

    def executemany(self, sql: str, parameters: Iterable[Sequence[Any]], /) -> Cursor:
        """Send a statement for many rows.

        A server keeps plans, those of foreign keys among them, and may have made them when a table had a few rows: then
        to read all of it seemed best, which it is not for each of many more. Nor does it count what a transaction has
        stored so far, unless that says so (https://www.postgresql.org/docs/15/sql-analyze.html).
        """
        rows, cursor = list(parameters), self.link.cursor()
        if len(rows) >= MANY_ROWS:
            self._stored += len(rows)
            if self._stored >= self._counted_at:
                self._counted_at = COUNTED_AGAIN * self._stored
                for statement in COUNTING:
                    self.link.run(statement)
            self.link.run("DISCARD PLANS")
        cursor.executemany(dialect.translated(sql).encode(), rows)
        return cursor

    def stream(self, sql: str, parameters: Sequence[Any] = (), /) -> Iterator[tuple[Any, ...]]:
        """Give the rows of a statement within a transaction, a few at a time. The others stay with the server."""
        name = f"rows_{next(self._streams)}"
        self.execute(f"DECLARE {name} NO SCROLL CURSOR FOR {sql}", parameters)
        while rows := self.link.run(f"FETCH {BULKY_ROWS} FROM {name}").fetchall():
            yield from rows

    def commit(self) -> psycopg.Cursor[Any]:
        """Have the transaction made durable."""
        return self.link.run("COMMIT")

    # What engines do in ways of their own

    def lock(self, client_id: str, patience: float | None) -> None:
        """Have other writers of a client wait."""
        if patience:
            self.link.run("SELECT set_config('lock_timeout', $1, true)", f"{max(1.0, patience * 1000):.0f}ms")
        nowait = "" if patience != 0 else " NOWAIT"
        self.link.run(f"SELECT 1 FROM clients WHERE id = $1 FOR NO KEY UPDATE{nowait}", client_id)

    def take_seqs(self, client_id: str, count: int, newest: int) -> range:
        """Return seqs for new tasks of a client, whose other writers wait."""
        first = max(newest + 1, self._next_seqs.get(client_id, 0))
        self._next_seqs[client_id] = first + count
        return range(first, first + count)

    def merged(self, ranges: Sequence[str], order: str, most: int) -> str:
        """Return what merges index ranges without doubles. `UNION` alone would read all of them to their ends."""
        return (
            f"SELECT * FROM ({' UNION '.join(f'({each} ORDER BY {order} LIMIT {most})' for each in ranges)}) AS ranges"
        )

    def one_of(self, statement: str) -> str:
        """Return the condition of being what a statement gives: as a set, it might be made anew for each row."""
        return f"= ANY (ARRAY({statement}))"

    @contextmanager
    def limited(self, seconds: float) -> Iterator[None]:
        """Let what is done within have no more than so many seconds of this process, and some more of the server.

        The server's limit is the transaction's, and holds to its end.

        :raises TimeoutError: when they are over.
        """
        began, limit = time.monotonic(), max(2, round(LIST_SHARE * seconds * 1000))
        self.link.run(
            f"""SELECT set_config('statement_timeout', '{limit}', true),
                set_config('lock_timeout', '{limit // 2}', true)"""
        )
        try:
            with super().limited(seconds):
                yield
        except psycopg.errors.QueryCanceled:
            if time.monotonic() < began + limit / 1000:  # somebody else has cancelled it
                raise
            raise TimeoutError from None

    def integrity_errors(self) -> Iterator[str]:
        """Tell what of the schema is not there. What follows has all its time."""
        yield from self.database.schema_faults()
        if self.in_transaction:
            self.link.run("SET LOCAL statement_timeout TO 0")
            self.link.patience = float("inf")


OLDEST = 150000  # PostgreSQL 15
# Seconds for which the pool tries to connect, and a request waits for that where no connection is in use: then the
# server is down. They are fewer than `HEALTH_TIME`.
RECONNECTING = 1.5
IDLE = 300.0  # seconds after which a connection that nobody needed is closed
LIFETIME = 3600.0  # seconds; a new connection finds a server that was added behind a name, and gives memory back
LOCKS = APPLICATION_ID  # the first number of our advisory locks; the second is of the schema
UNREACHED = "The database cannot be reached, or all connections to it are in use"
ABANDONED: list[object] = []  # what a parent has open, which is never closed here


class PostgresDatabase(Database):
    """A process's connections to a PostgreSQL server, which it may share with many others.

    A thread has one for as long as it reads, or for a transaction.
    """

    advice = {  # noqa: RUF012 - as the core has it
        "backup": "for PostgreSQL say: pg_dump --format=custom --file=findings.dump {name}",
        "compact": (
            "PostgreSQL's autovacuum gives the space to what comes next, and where much was removed, this gives it back"
            " to the disk, while requests wait: PGOPTIONS='-c client_min_messages=error' psql --command='VACUUM FULL'"
            " {name}"
        ),
        "restore": (
            "into an empty one of PostgreSQL: pg_restore --exit-on-error --no-owner --dbname={name} FILE, and then, as"
            ' places in the feed of events are of another one: psql --command="UPDATE epochs SET epoch ='
            ' left(md5(gen_random_uuid()::text), 16)" {name}'
        ),
    }

    def __init__(self, settings: Settings) -> None:
        self.address = Address.of(settings.db, settings.busy_timeout)
        self.threads = self.address.ours.pool_size
        self._pool: ConnectionPool[Link] | None = None
        self._pid = 0  # of the process that the pool is of
        self._reached = False  # whether it ever was
        self._opening = threading.Lock()  # for these three
        self._in_use: set[Link] = set()
        self._commits = itertools.count(1)
        self.engine = "PostgreSQL", ""  # its version is known behind the first connection
        self._maintenance: Link | None = None  # the connection that has the lock of the maintenance, if any has
        super().__init__(settings, self.address.name)

    # Connections

    def _connect(self) -> Link:
        """Return a connection that is none of the pool's."""
        link = Link.connect(self.address.conninfo, autocommit=True)
        try:
            self._configure(link)
        except BaseException:
            link.close()
            raise
        return link

    def _configure(self, link: Link) -> None:
        """Configure a new connection: types, time limits and durability, unless the URL sets that.

        :raises DatabaseUnusable: if the server cannot be used.
        """
        link.cursor_factory = PostgresCursor
        link.adapters.register_dumper(int, Int8BinaryDumper)
        link.adapters.register_dumper(str, StrBinaryDumper)
        if self.address.ours.prepare == "off":
            link.prepare_threshold = None
        link.add_notice_handler(link.note)
        link.used = time.monotonic()
        wanted = "off" if self.settings.synchronous == "NORMAL" else "on"
        if "synchronous_commit" not in self.address.conninfo:
            link.run(
                f"""SELECT set_config('synchronous_commit', '{wanted}', false)
                    WHERE 'off' IN ('{wanted}', current_setting('synchronous_commit'))"""
            )
        server = (link.info.parameter_status("server_version") or "").partition(" ")[0]
        self.engine = "PostgreSQL", server
        encoding = link.info.parameter_status("server_encoding")
        if link.info.server_version < OLDEST or encoding != "UTF8":
            needed = "15 or newer is needed" if encoding == "UTF8" else f"its encoding is {encoding}, not UTF8"
            raise DatabaseUnusable(f"{self.name} is PostgreSQL {server}; {needed}")

    @contextmanager
    def beside(self) -> Iterator[Link]:
        """Open a connection beside the pool. :raises DatabaseUnusable: if it cannot be opened."""
        try:
            with closing(self._connect()) as link:
                yield link
        except psycopg.Error as error:
            raise DatabaseUnusable(f"{self.name} cannot be used: {complaint(error)}") from None

    def _opened(self) -> ConnectionPool[Link]:
        """Return the pool of this process, with the schema there. A parent's is left alone: its threads are not here.

        :raises DatabaseUnusable: when there is no database, or one of another version.
        """
        with self._opening:
            if self._pool is None or self._pid != os.getpid():
                try:
                    with self.beside() as link:
                        if self.version_at(link) != SCHEMA_VERSION:
                            self._make_schema(link)
                except DatabaseUnusable as error:
                    if not self._reached:
                        raise
                    log.error("%s", error)
                    raise Busy(UNREACHED) from None
                ABANDONED.append(self._pool)
                self._pool = ConnectionPool(
                    self.address.conninfo,
                    connection_class=Link,
                    kwargs={"autocommit": True},
                    min_size=0,
                    max_size=self.threads,
                    configure=self._configure,
                    max_idle=IDLE,
                    max_lifetime=LIFETIME,
                    reconnect_timeout=RECONNECTING,
                    open=True,
                )
                self._pid, self._reached = os.getpid(), True
            return self._pool

    @contextmanager
    def _connection(self, begin: str = "", *, read_only: bool = True) -> Iterator[PostgresConnection]:
        """Give a connection: within a transaction, where `begin` says of which kind."""
        pool = self._opened()
        link = self._take(pool)
        connection = PostgresConnection(self, link)
        told, ending, warnings = None, False, link.warnings
        try:
            if begin:
                with link.pipeline() as link.pipe:
                    link.run(begin)
                    yield connection
                    ending = True
                    told = link.run("ROLLBACK") if read_only else connection.commit()
            else:
                yield connection
        except psycopg.Error as error:
            if error.sqlstate == READ_ONLY:  # another connection may lead to another server
                link.close()
            raise NobodyKnows if ending and not read_only and is_lost(error) else known_failure(error) from None
        finally:  # it is given back with nothing under way
            link.pipe, link.used, link.patience = None, time.monotonic(), STATEMENT_TIME + SILENCE
            if link.info.transaction_status in (TransactionStatus.INTRANS, TransactionStatus.INERROR):
                with suppress(psycopg.Error):
                    link.rollback()
            self._in_use.discard(link)
            pool.putconn(link)
        if told and not read_only and told.statusmessage != "COMMIT":
            raise PostgresError("a transaction was undone without a word")
        if not read_only and link.warnings != warnings:
            # A synchronous standby was not waited for (https://www.postgresql.org/docs/15/warm-standby.html).
            raise NobodyKnows

    def _take(self, pool: ConnectionPool[Link]) -> Link:
        """Return a connection that is there. :raises Busy: when none is in time."""
        end = time.monotonic() + self.settings.busy_timeout
        while True:
            try:
                link = pool.getconn(min(RECONNECTING, end - time.monotonic()))
            except PoolTimeout:
                if self._in_use and time.monotonic() < end:
                    continue
                raise Busy(UNREACHED) from None
            if link.is_there():
                self._in_use.add(link)
                return link
            pool.putconn(link)

    # Reading

    def reading(self) -> AbstractContextManager[PostgresConnection]:
        """Give a connection to a reader: each statement sees what was committed before it."""
        return self._connection()

    def snapshot(self) -> AbstractContextManager[PostgresConnection]:
        """Give a connection to a reader whose statements must all see the same moment."""
        return self._connection("BEGIN ISOLATION LEVEL REPEATABLE READ, READ ONLY")

    # Writing

    @contextmanager
    def transaction(self, client_id: str | None = None, patience: float | None = None) -> Iterator[PostgresConnection]:
        """Give a connection that writes: all of its statements are durable when this ends, or none is stored.

        :param client_id: whose rows are written; other writers of the client wait. None for what is no client's.
        :param patience: seconds to wait for them; None for what is set.
        :raises TryAgain: when the server undid it.
        """
        uses: dict[UseKey, str] = {}
        try:
            with self._connection("BEGIN ISOLATION LEVEL READ COMMITTED", read_only=False) as connection:
                if client_id is not None:
                    connection.lock(client_id, patience)
                    with self._uses_lock:  # to write those of others would need their locks
                        own = [key for key in self.last_uses if key[0] == client_id]
                        uses = {key: self.last_uses.pop(key) for key in own}
                    write_last_uses(connection, uses)
                yield connection
                connection.transaction.counters.write(connection)
        except BaseException:
            with self._uses_lock:  # what could not be written is written another time
                self.last_uses = {**uses, **self.last_uses}
            raise
        self.version = next(self._commits)

    def probe(self) -> None:
        """Ask the server whether it takes writes: one that is in recovery, or read-only, does not."""
        with self.reading() as connection:
            asked = "SELECT (pg_is_in_recovery() OR current_setting('default_transaction_read_only') = 'on')::int"
            if connection.link.run(asked).fetchone() != (0,):
                raise Busy(BUSY[READ_ONLY])

    # Maintenance

    def owns_maintenance(self) -> bool:
        """Tell whether the maintenance is this process's: it has a lock for as long as a connection lasts.

        That connection is beside the pool. When the process ends, or the server has not heard of it for half a minute,
        another one gets the lock.
        """
        try:
            self._maintenance = self._maintenance or self._connect()
            asked = "SELECT pg_try_advisory_lock($1::int, hashtext('housekeeping ' || current_schema()))"
            return bool(self._maintenance.run(asked, LOCKS).fetchall()[0][0])
        except (psycopg.Error, DatabaseUnusable):
            self._give_back_maintenance()
            return False

    def _give_back_maintenance(self) -> None:
        held, self._maintenance = self._maintenance, None
        if held is not None:
            held.close()

    def figures(self) -> Mapping[str, Callable[[], float]]:
        """Return what gives the bytes of the database."""
        return {"findings_database_bytes": self._size}

    def _size(self) -> float:
        """Return the bytes of the database. :raises OSError: when the server does not say."""
        try:
            with self.reading() as connection:
                return float(connection.link.run("SELECT pg_database_size(current_database())").fetchall()[0][0])
        except (ServiceError, DatabaseUnusable, PostgresError) as error:
            raise OSError(str(error)) from None

    # The schema

    def version_at(self, link: Link) -> int | None:
        """Return the version of the schema, None where there is none.

        :raises DatabaseUnusable: when it is none of ours, or one that this program does not open.
        """
        if not link.run("SELECT 1 WHERE to_regclass($1) IS NOT NULL", dialect.VERSION_TABLE).fetchall():
            return None
        try:
            row = link.run(f"SELECT version FROM {dialect.VERSION_TABLE} WHERE id = 1").fetchone()
        except psycopg.errors.UndefinedColumn:
            row = None
        if row is None or not isinstance(row[0], int):
            raise DatabaseUnusable(f"{self.name} has a table {dialect.VERSION_TABLE} that is none of this service's")
        require_version(self.name, row[0])
        return row[0]

    def absence(self) -> str:
        """Say that there is no database with our schema; "" where there is."""
        with self.beside() as link:
            version = self.version_at(link)
        if version is None:
            return f"there is no database of this service at {self.name}"
        return unready(self.name, version)

    def _make_schema(self, link: Link) -> None:
        """Create the schema, or take the steps that lead to it, all of it or nothing, in one process of many."""
        link.patience = float("inf")
        with link.transaction():
            link.run("SET LOCAL statement_timeout = 0; SET LOCAL lock_timeout = 0")
            link.run("SET LOCAL idle_in_transaction_session_timeout = 0")
            self.lock_schema(link)
            version = self.version_at(link)
            steps = steps_from(self.name, version or 0)
            if version is None:
                self.require_empty(link)
            before = [dialect.MAKE_VERSION_TABLE] if version is None else dialect.steps_of(version)
            for statement in (*before, *dialect.schema_statements()):
                link.run(statement)
            fill(PostgresConnection(self, link), steps)
            link.run(
                f"""INSERT INTO {dialect.VERSION_TABLE} (id, version) VALUES (1, $1)
                    ON CONFLICT (id) DO UPDATE SET version = excluded.version""",
                SCHEMA_VERSION,
            )

    def lock_schema(self, link: Link) -> None:
        """Have others who make a schema wait until the transaction ends."""
        link.run("SELECT pg_advisory_xact_lock($1::int, hashtext('schema ' || current_schema()))", LOCKS)

    def require_empty(self, link: Link) -> None:
        """Check that a schema has no tables of our names. :raises DatabaseUnusable: if it has any."""
        found, schema = link.run(
            """SELECT string_agg(relname, ', ' ORDER BY relname), current_schema() FROM pg_class
               WHERE relnamespace = to_regnamespace(current_schema()) AND relname = ANY ($1::text[])""",
            dialect.tables_of(dialect.schema_statements()),
        ).fetchall()[0]
        if found:
            raise DatabaseUnusable(
                f"{self.name} has tables of another program in its schema {schema}: {found}; name another database, or"
                " another schema by ?options=-csearch_path%3DNAME"
            )

    def schema_faults(self) -> Iterator[str]:
        """Tell what of the schema is not there.

        The server itself says how it would have it, of tables that are there for a transaction. Who asks for that has a
        connection, which may be the only one of the pool's.
        """
        statements = dialect.schema_statements()
        tables = dialect.tables_of(statements)
        with self.beside() as link, link.transaction(force_rollback=True):
            found = link.run(FACTS.format(schema="current_schema()"), tables).fetchall()
            version = self.version_at(link)
            link.run("SET LOCAL search_path TO pg_temp")
            for statement in statements:
                link.run(statement.replace("CREATE TABLE IF NOT EXISTS", "CREATE TEMPORARY TABLE", 1))
            wanted = link.run(FACTS.format(schema="pg_my_temp_schema()::regnamespace::text"), tables).fetchall()
        yield from (f"schema: {fact} is missing" for (fact,) in sorted({*wanted} - {*found}))
        if version != SCHEMA_VERSION:
            yield f"schema version {version}, not {SCHEMA_VERSION}"

    # Opening and closing

    def disconnect(self) -> None:
        """Close the connections that nobody uses; the next use opens others."""
        with self._opening:
            pool, self._pool = self._pool, None
            if pool is not None and self._pid == os.getpid():
                pool.close()
        self._give_back_maintenance()


# What tables consist of, as the server writes it, without the schema that they are in.
FACTS = """
    WITH tables AS (
        SELECT oid, relname FROM pg_class WHERE relname = ANY ($1::text[]) AND relnamespace = to_regnamespace({schema}))
    SELECT format('%s.%s %s%s', relname, attname, format_type(atttypid, NULL),
        CASE WHEN attnotnull THEN ' not null' END)
    FROM tables JOIN pg_attribute ON attrelid = tables.oid AND attnum > 0 AND NOT attisdropped
    UNION SELECT relname || ' ' || pg_get_constraintdef(pg_constraint.oid)
    FROM tables JOIN pg_constraint ON conrelid = tables.oid
    UNION SELECT indexes.relname FROM tables JOIN pg_index ON indrelid = tables.oid AND indisvalid
        JOIN pg_class AS indexes ON indexes.oid = indexrelid"""
