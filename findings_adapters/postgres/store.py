"""The PostgreSQL engine: connections, transactions, the schema and errors.

A transaction is READ COMMITTED, and first locks the row of its client. So the writers of one client queue, seqs are
assigned in the order of commits, and clients never wait for each other. A snapshot is REPEATABLE READ
(https://www.postgresql.org/docs/15/transaction-iso.html). Both use psycopg's pipeline mode
(https://www.psycopg.org/psycopg3/docs/advanced/pipeline.html): a statement waits for the server only when its rows are
read, and the last writes of a transaction share a round trip with its COMMIT.
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
    Row,
    ServiceError,
    Settings,
    StorageFull,
    Transaction,
    TryAgain,
    UseKey,
    ValidationFailed,
    fill,
    log,
    migrations_from,
    require_version,
    schema_message,
    write_last_uses,
)

STATEMENT_TIME = 30.0  # seconds that one statement may take
ANALYZE_FIRST, ANALYZE_GROWTH = 20_000, 8  # rows stored by a transaction until its first ANALYZE; factor to the next
NO_SCHEMA, NO_RIGHT, READ_ONLY, TIMED_OUT, TOO_LONG = "3F000", "42501", "25006", "57014", "54000"
LOST = ("57P01", "57P02", "57P03", "57P04", "57P05", "25P03", "40003")  # states after which the connection is lost
IN_USE = "55P03"
BUSY = {
    IN_USE: "Another writer kept this client's data locked for too long",
    TIMED_OUT: "The database took too long",
    READ_ONLY: "The database does not accept writes now: it is a standby or read-only",
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
ROLLED_BACK = ("40001", "40P01")  # serialization failure and deadlock, caused by concurrent writes


class PostgresError(Exception):
    """An error of PostgreSQL that no request should cause: a bug of the service."""


class CommitUnknown(Busy):
    """Error for a COMMIT of unknown result: the connection was lost, or the wait for a standby was cancelled."""

    def __init__(self) -> None:
        ServiceError.__init__(
            self,
            "The database did not confirm the commit, so the write may or may not be stored. Read the data to find out,"
            " or send the request again with the same Idempotency-Key.",
        )


def is_lost(error: psycopg.Error) -> bool:
    """Return whether an error means that the connection is lost."""
    return error.sqlstate in LOST or (error.sqlstate is None and isinstance(error, psycopg.OperationalError))


# An index entry has at most 2,704 bytes, compressed (https://www.postgresql.org/docs/15/btree-implementation.html).
TOO_LONG_TOGETHER = "targetUrl, branch and externalId together must be at most about 2,500 bytes of UTF-8 here"


def exception_for(error: psycopg.Error) -> Exception:
    """Return the exception to raise instead of psycopg's error. Its text contains no stored value."""
    state = error.sqlstate or ""
    if is_lost(error):
        return TryAgain("The connection to the database was lost")
    if state in ROLLED_BACK:
        return TryAgain("Concurrent writes conflicted")
    if state == TOO_LONG:
        return ValidationFailed([Problem(TOO_LONG_TOGETHER, "")])
    if state in BUSY:
        return Busy(BUSY[state])
    if state in FULL:
        return StorageFull(FULL[state])
    constraint = f" [{error.diag.constraint_name}]" if error.diag.constraint_name else ""
    return PostgresError(f"{error.diag.message_primary or error}{constraint} ({state})")


def error_text(error: psycopg.Error) -> str:
    """Return an error's reason on one line: the server's message, or libpq's message for the last host."""
    diagnostic = error.diag
    if error.sqlstate == IN_USE:
        return "other sessions are using its tables; stop them"
    if diagnostic.message_primary:
        detail = TOO_LONG_TOGETHER if error.sqlstate == TOO_LONG else diagnostic.message_detail
        if error.sqlstate in (NO_RIGHT, NO_SCHEMA):
            detail = "its user needs a schema in which it may create tables or owns the tables"
        return ": ".join(part.rstrip(".") for part in (diagnostic.message_primary, detail) if part)
    lines = str(error).strip().splitlines() or [type(error).__name__]
    reasons = [line for line in lines if "failed: " in line] or lines[:1]
    return reasons[-1].rpartition("connection failed: ")[2].strip()


# The URL of the database


POOL_SIZE = 16  # connections of a process: six processes fit below the 100 that a server allows by default


class OwnParameters(Struct):
    """Parameters of a URL that the service reads itself and does not pass to libpq."""

    pool_size: Annotated[int, Meta(ge=1, le=1000)] = POOL_SIZE
    prepare: Literal["on", "off"] = "on"


CONNECT_TIME = 5  # seconds, for each host of the URL
IDLE_IN_TRANSACTION = 300.0  # seconds until the server ends an idle transaction; a client may read 64 MiB slowly
SHOWN = ("host", "port", "user", "dbname", "options")  # parameters of a URL that messages may show


class Address(NamedTuple):
    """A parsed URL: libpq's conninfo, the database's name in messages, our own parameters."""

    conninfo: str
    name: str
    ours: OwnParameters

    @classmethod
    def of(cls, url: str, lock_patience: float) -> Address:
        """Parse a URL; `lock_patience` is in seconds. :raises ConfigurationError: if the URL is not valid."""
        base, _, query = url.partition("?")
        user, at, host = base.partition("://")[2].partition("@")
        given = [pair.partition("=")[::2] for pair in query.split("&") if pair]
        for_libpq = [f"{name}={value}" for name, value in given if name not in OwnParameters.__struct_fields__]
        shown = [pair for pair in for_libpq if pair.startswith(SHOWN)]
        try:
            if ("/" in user or "@" in host) if at else "@" in query:  # messages would show part of a password
                raise psycopg.ProgrammingError
            parameters: dict[str, Any] = conninfo.conninfo_to_dict(f"{base}?{'&'.join(for_libpq)}")
        except psycopg.ProgrammingError:  # its message would repeat the password
            raise ConfigurationError(
                "FINDINGS_DB is not a valid PostgreSQL URL, or has a parameter that libpq does not know; use"
                " postgresql://user:password@host:5432/name, with / @ % ? in a password written as %2F %40 %25 %3F"
            ) from None
        try:
            ours = msgspec.convert({name: unquote(value) for name, value in given}, OwnParameters, strict=False)
        except msgspec.ValidationError as error:
            raise ConfigurationError(f"FINDINGS_DB: {error}") from None
        options = (
            f"-c statement_timeout={STATEMENT_TIME * 1000:.0f} -c lock_timeout={max(1.0, lock_patience * 1000):.0f}"
            f" -c idle_in_transaction_session_timeout={IDLE_IN_TRANSACTION * 1000:.0f}"
            # Keepalives let the server detect a dead client, too.
            " -c tcp_keepalives_idle=10 -c tcp_keepalives_interval=5 -c tcp_keepalives_count=3"
            f" -c jit=off {parameters.pop('options', '')}"
        )
        session = "read-write" if "," in str(parameters.get("host", "")) else "any"
        defaults = (
            f"application_name=findings-service client_encoding=UTF8 connect_timeout={CONNECT_TIME} keepalives_idle=10"
            f" keepalives_interval=5 keepalives_count=3 tcp_user_timeout=25000 target_session_attrs={session}"
        )
        name = f"postgresql://{user.partition(':')[0] if at else user}{at}{host}{'?' if shown else ''}{'&'.join(shown)}"
        return cls(conninfo.make_conninfo(defaults, **{**parameters, "options": options}), name, ours)


# Connections


class PostgresCursor(psycopg.RawCursor[Row]):
    """The result of a statement. Reading it waits for the server."""

    @property
    def rowcount(self) -> int:
        """Number of rows that the statement changed. Reading it waits for the server."""
        if pipe := typing.cast(Link, self.connection).pipe:
            pipe.sync()
        return super().rowcount


SILENCE = 15.0  # seconds beyond the time limit of a statement until an unresponsive server is given up
CHECK_AFTER = 10.0  # seconds of idleness after which a connection is checked before use
CHECK_TIME = 3.0  # seconds that the server has to respond to that check


class Link(psycopg.Connection[Row]):
    """A psycopg connection that closes if the server does not respond for `patience` seconds.

    `pipe` is the pipeline of an open transaction. `warnings` counts the server's warnings. `used` is when the
    connection was returned to the pool.
    """

    pipe: psycopg.Pipeline | None = None
    patience = STATEMENT_TIME + SILENCE
    warnings = 0
    used = 0.0

    def note(self, notice: Any) -> None:
        """Count a notice if it is a warning."""
        self.warnings += notice.severity_nonlocalized == "WARNING"

    def run(self, sql: str, *values: Any) -> psycopg.Cursor[Row]:
        """Send a statement in PostgreSQL's dialect, with values for $1, $2 and so on; return its cursor."""
        return self.execute(sql.encode(), values or None)

    def wait(self, gen: Generator[Any, Any, Any], *given: Any, **named: Any) -> Any:
        """Wait for the server; after `patience` seconds without response, close and raise OperationalError."""
        return super().wait(self._with_deadline(gen), *given, **named)

    def _with_deadline(self, gen: Generator[Any, Any, Any]) -> Generator[Any, Any, Any]:
        end, ready = time.monotonic() + self.patience, None
        try:
            while True:
                ready = yield gen.send(ready)
                if not ready and time.monotonic() > end:
                    self.pgconn.finish()
                    raise psycopg.OperationalError(f"the server has not responded for {self.patience:g} s")
        except StopIteration as done:
            return done.value

    def is_alive(self) -> bool:
        """Return whether the connection works, and close it if not.

        The server is asked only if it has sent something unexpected, or after `CHECK_AFTER` idle seconds.
        """
        poll = select.poll()
        poll.register(self.fileno(), select.POLLIN)
        if poll.poll(0) or time.monotonic() > self.used + CHECK_AFTER:
            try:
                self.patience = CHECK_TIME
                ConnectionPool.check_connection(self)
            except psycopg.Error:
                self.close()
            self.patience = STATEMENT_TIME + SILENCE
        return not self.closed


LIST_SHARE = 4  # a list may take this many times its limit on the server, which serves other requests as well
MANY_ROWS = 100  # rows of one `executemany` from which the server has to discard cached plans
ANALYZE = (  # skipped, without a warning, while another transaction runs it
    "SET LOCAL client_min_messages TO error",
    "ANALYZE (SKIP_LOCKED) tasks, task_details, sightings",
    "SET LOCAL client_min_messages TO notice",
)
BULKY_ROWS = 5  # large rows to fetch at once
NUL_SUBSTITUTE = "\1"  # PostgreSQL cannot store U+0000; only ids and names in a path may contain it


class PostgresConnection(Connection):
    """A connection to PostgreSQL for the length of a read or a transaction."""

    def __init__(self, database: PostgresDatabase, link: Link) -> None:
        self.database = database
        self.link = link
        self.transaction = Transaction()
        self._next_seqs: dict[str, int] = {}
        self._streams = itertools.count()
        self._stored, self._analyze_at = 0, ANALYZE_FIRST

    @property
    def in_transaction(self) -> bool:
        """Whether a transaction is open."""
        return self.link.pipe is not None

    # Statements

    def execute(self, sql: str, parameters: Sequence[Any] = (), /) -> Cursor:
        """Translate and send a statement. Reading rows waits for them; errors may be raised as late as at COMMIT."""
        if self.is_late():
            raise TimeoutError
        values = [value.replace("\0", NUL_SUBSTITUTE) if isinstance(value, str) else value for value in parameters]
        return self.link.run(dialect.translated(sql), *values)

    def executemany(self, sql: str, parameters: Iterable[Sequence[Any]], /) -> Cursor:
        """Send a statement once for each row. Before many rows, discard cached plans and, now and then, run ANALYZE.

        A cached plan, also of a foreign key check, that was made for a table of a few rows scans the whole table. The
        server's statistics do not include the rows of an open transaction until it runs ANALYZE
        (https://www.postgresql.org/docs/15/sql-analyze.html).
        """
        rows, cursor = list(parameters), self.link.cursor()
        if len(rows) >= MANY_ROWS:
            self._stored += len(rows)
            if self._stored >= self._analyze_at:
                self._analyze_at = ANALYZE_GROWTH * self._stored
                for statement in ANALYZE:
                    self.link.run(statement)
            self.link.run("DISCARD PLANS")
        cursor.executemany(dialect.translated(sql).encode(), rows)
        return cursor

    def stream(self, sql: str, parameters: Sequence[Any] = (), /) -> Iterator[Row]:
        """Yield a statement's rows from a server-side cursor, a few at a time. This requires a transaction."""
        name = f"rows_{next(self._streams)}"
        self.execute(f"DECLARE {name} NO SCROLL CURSOR FOR {sql}", parameters)
        while rows := self.link.run(f"FETCH {BULKY_ROWS} FROM {name}").fetchall():
            yield from rows

    def commit(self) -> psycopg.Cursor[Any]:
        """Send COMMIT, and return its cursor."""
        return self.link.run("COMMIT")

    # Differences between the engines

    def lock(self, client_id: str, patience: float | None) -> None:
        """Lock a client against other writers until the transaction ends; `patience` is as in `transaction`."""
        if patience:
            self.link.run("SELECT set_config('lock_timeout', $1, true)", f"{max(1.0, patience * 1000):.0f}ms")
        nowait = "" if patience != 0 else " NOWAIT"
        self.link.run(f"SELECT 1 FROM clients WHERE id = $1 FOR NO KEY UPDATE{nowait}", client_id)

    def take_seqs(self, client_id: str, count: int, newest: int) -> range:
        """Return seqs for new tasks of a client that this transaction has locked."""
        first = max(newest + 1, self._next_seqs.get(client_id, 0))
        self._next_seqs[client_id] = first + count
        return range(first, first + count)

    def merged(self, ranges: Sequence[str], order: str, most: int) -> str:
        """Return SQL for the union of index ranges, each limited to `most` rows, so that none is read to its end."""
        return (
            f"SELECT * FROM ({' UNION '.join(f'({each} ORDER BY {order} LIMIT {most})' for each in ranges)}) AS ranges"
        )

    def one_of(self, statement: str) -> str:
        """Return an SQL condition that means `IN (statement)`, in a form that runs the statement only once."""
        return f"= ANY (ARRAY({statement}))"

    @contextmanager
    def limited(self, seconds: float) -> Iterator[None]:
        """Limit the block's processor time in this process, and each statement on the server to a multiple of that.

        The server's limit lasts until the end of the transaction.

        :raises TimeoutError: if a limit is reached.
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
            if time.monotonic() < began + limit / 1000:  # cancelled from outside
                raise
            raise TimeoutError from None

    def integrity_errors(self) -> Iterator[str]:
        """Yield a line for each fault of the schema, then remove the time limits for the rest of the transaction."""
        yield from self.database.schema_faults()
        if self.in_transaction:
            self.link.run("SET LOCAL statement_timeout TO 0")
            self.link.patience = float("inf")


OLDEST = 150000  # PostgreSQL 15
# Seconds for which the pool tries to connect. A request waits as long if no connection is in use, because then the
# server is down. It is less than `HEALTH_TIME`.
RECONNECTING = 1.5
IDLE = 300.0  # seconds of idleness after which a connection is closed
LIFETIME = 3600.0  # seconds; a new connection resolves the host name again, and frees the server's memory
LOCKS = APPLICATION_ID  # first key of our advisory locks; the second is a hash with the schema's name
UNREACHED = "The database cannot be reached, or all connections to it are in use"
INHERITED: list[object] = []  # pools of a parent process, kept so that they are never closed here


class PostgresDatabase(Database):
    """A process's connection pool for a PostgreSQL server, which other processes may use too.

    A thread holds a connection for the length of a read or a transaction.
    """

    advice = {  # noqa: RUF012 - a ClassVar in the base class
        "backup": "for PostgreSQL, run: pg_dump --format=custom --file=findings.dump {name}",
        "compact": (
            "PostgreSQL's autovacuum makes the space reusable. After large deletions, this returns it to the disk while"
            " requests wait: PGOPTIONS='-c client_min_messages=error' psql --command='VACUUM FULL' {name}"
        ),
        "restore": (
            "for an empty PostgreSQL database, run: pg_restore --exit-on-error --no-owner --dbname={name} FILE, and"
            ' then, to invalidate old cursors of the event feed: psql --command="UPDATE epochs SET epoch ='
            ' left(md5(gen_random_uuid()::text), 16)" {name}'
        ),
    }

    def __init__(self, settings: Settings) -> None:
        self.address = Address.of(settings.db, settings.busy_timeout)
        self.threads = self.address.ours.pool_size
        self._pool: ConnectionPool[Link] | None = None
        self._pid = 0  # of the process that opened the pool
        self._reached = False  # whether the server was ever reached
        self._opening = threading.Lock()  # guards the three attributes above
        self._in_use: set[Link] = set()
        self._commits = itertools.count(1)
        self.engine = "PostgreSQL", ""  # the version is set by the first connection
        self._maintenance: Link | None = None  # the connection that holds, or tries to get, the maintenance lock
        super().__init__(settings, self.address.name)

    # Connections

    def _connect(self) -> Link:
        """Open a connection outside of the pool."""
        link = Link.connect(self.address.conninfo, autocommit=True)
        try:
            self._configure(link)
        except BaseException:
            link.close()
            raise
        return link

    def _configure(self, link: Link) -> None:
        """Configure types and prepared statements, and durability unless the URL sets it.

        :raises DatabaseUnusable: if the server cannot be used.
        """
        link.cursor_factory = PostgresCursor
        link.adapters.register_dumper(int, Int8BinaryDumper)
        link.adapters.register_dumper(str, StrBinaryDumper)
        if self.address.ours.prepare == "off":
            link.prepare_threshold = None
        link.add_notice_handler(link.note)
        link.used = time.monotonic()
        durability = "off" if self.settings.synchronous == "NORMAL" else "on"
        if "synchronous_commit" not in self.address.conninfo:
            link.run(
                f"""SELECT set_config('synchronous_commit', '{durability}', false)
                    WHERE 'off' IN ('{durability}', current_setting('synchronous_commit'))"""
            )
        server = (link.info.parameter_status("server_version") or "").partition(" ")[0]
        self.engine = "PostgreSQL", server
        encoding = link.info.parameter_status("server_encoding")
        if link.info.server_version < OLDEST or encoding != "UTF8":
            problem = "15 or newer is needed" if encoding == "UTF8" else f"its encoding is {encoding}, not UTF8"
            raise DatabaseUnusable(f"{self.name} is PostgreSQL {server}; {problem}")

    @contextmanager
    def separate_connection(self) -> Iterator[Link]:
        """Open a connection outside of the pool. :raises DatabaseUnusable: if it fails."""
        try:
            with closing(self._connect()) as link:
                yield link
        except psycopg.Error as error:
            raise DatabaseUnusable(f"{self.name} cannot be used: {error_text(error)}") from None

    def _open_pool(self) -> ConnectionPool[Link]:
        """Return this process's pool. Open it, and create or migrate the schema, if necessary.

        A pool of the parent process is not closed, because its threads do not run here. :raises DatabaseUnusable: if
        the database cannot be used, or this program does not open its version. :raises Busy: if it was usable before.
        """
        with self._opening:
            if self._pool is None or self._pid != os.getpid():
                try:
                    with self.separate_connection() as link:
                        if self.version_at(link) != SCHEMA_VERSION:
                            self._make_schema(link)
                except DatabaseUnusable as error:
                    if not self._reached:
                        raise
                    log.error("%s", error)
                    raise Busy(UNREACHED) from None
                INHERITED.append(self._pool)
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
        """Take a connection from the pool for a block, which is a transaction if `begin`, a BEGIN statement, is set."""
        pool = self._open_pool()
        link = self._take_link(pool)
        connection = PostgresConnection(self, link)
        ended, ending, warnings = None, False, link.warnings
        try:
            if begin:
                with link.pipeline() as link.pipe:
                    link.run(begin)
                    yield connection
                    ending = True
                    ended = link.run("ROLLBACK") if read_only else connection.commit()
            else:
                yield connection
        except psycopg.Error as error:
            if error.sqlstate == READ_ONLY:  # a new connection may reach another server, the primary
                link.close()
            raise CommitUnknown if ending and not read_only and is_lost(error) else exception_for(error) from None
        finally:  # return it to the pool without an open transaction
            link.pipe, link.used, link.patience = None, time.monotonic(), STATEMENT_TIME + SILENCE
            if link.info.transaction_status in (TransactionStatus.INTRANS, TransactionStatus.INERROR):
                with suppress(psycopg.Error):
                    link.rollback()
            self._in_use.discard(link)
            pool.putconn(link)
        if ended and not read_only and ended.statusmessage != "COMMIT":
            raise PostgresError("COMMIT rolled the transaction back without an error")
        if not read_only and link.warnings != warnings:
            # The wait for a synchronous standby was cancelled (https://www.postgresql.org/docs/15/warm-standby.html).
            raise CommitUnknown

    def _take_link(self, pool: ConnectionPool[Link]) -> Link:
        """Return a working connection of the pool. :raises Busy: if none is free, or can be opened, in time."""
        end = time.monotonic() + self.settings.busy_timeout
        while True:
            try:
                link = pool.getconn(min(RECONNECTING, end - time.monotonic()))
            except PoolTimeout:
                if self._in_use and time.monotonic() < end:
                    continue
                raise Busy(UNREACHED) from None
            if link.is_alive():
                self._in_use.add(link)
                return link
            pool.putconn(link)

    # Reading

    def reading(self) -> AbstractContextManager[PostgresConnection]:
        """Open a connection for reading, where each statement sees what was committed before it."""
        return self._connection()

    def snapshot(self) -> AbstractContextManager[PostgresConnection]:
        """Open a connection for reading, where all statements see the same snapshot."""
        return self._connection("BEGIN ISOLATION LEVEL REPEATABLE READ, READ ONLY")

    # Writing

    @contextmanager
    def transaction(self, client_id: str | None = None, patience: float | None = None) -> Iterator[PostgresConnection]:
        """Open a transaction. At its end all of its statements are durable, or none is stored.

        :param client_id: the client whose rows are written, and whose other writers wait; None for rows of no client.
        :param patience: seconds to wait for another writer of the client; None for the limit of the settings.
        :raises TryAgain: if the server rolled it back, or the connection was lost (at COMMIT: CommitUnknown).
        """
        uses: dict[UseKey, str] = {}
        try:
            with self._connection("BEGIN ISOLATION LEVEL READ COMMITTED", read_only=False) as connection:
                if client_id is not None:
                    connection.lock(client_id, patience)
                    with self._uses_lock:  # writing other clients' uses would need their locks
                        own = [key for key in self.last_uses if key[0] == client_id]
                        uses = {key: self.last_uses.pop(key) for key in own}
                    write_last_uses(connection, uses)
                yield connection
                connection.transaction.counters.write(connection)
        except BaseException:
            with self._uses_lock:  # keep them for the next transaction
                self.last_uses = {**uses, **self.last_uses}
            raise
        self.version = next(self._commits)

    def probe(self) -> None:
        """Check that the server accepts writes. :raises Busy: if it is in recovery or read-only."""
        with self.reading() as connection:
            query = "SELECT (pg_is_in_recovery() OR current_setting('default_transaction_read_only') = 'on')::int"
            if connection.link.run(query).fetchone() != (0,):
                raise Busy(BUSY[READ_ONLY])

    # Maintenance

    def owns_maintenance(self) -> bool:
        """Return whether this process holds the maintenance lock, after trying to get it.

        It is an advisory lock of a connection outside of the pool. Another process gets it when this one ends, or after
        the server has received nothing from it for half a minute.
        """
        try:
            self._maintenance = self._maintenance or self._connect()
            query = "SELECT pg_try_advisory_lock($1::int, hashtext('housekeeping ' || current_schema()))"
            return bool(self._maintenance.run(query, LOCKS).fetchall()[0][0])
        except (psycopg.Error, DatabaseUnusable):
            self._release_maintenance()
            return False

    def _release_maintenance(self) -> None:
        link, self._maintenance = self._maintenance, None
        if link is not None:
            link.close()

    def figures(self) -> Mapping[str, Callable[[], float]]:
        """Return a function for each metric of this engine, by name, which reads the metric's value."""
        return {"findings_database_bytes": self._size}

    def _size(self) -> float:
        """Return the size of the database in bytes. :raises OSError: if the server cannot be asked."""
        try:
            with self.reading() as connection:
                return float(connection.link.run("SELECT pg_database_size(current_database())").fetchall()[0][0])
        except (ServiceError, DatabaseUnusable, PostgresError) as error:
            raise OSError(str(error)) from None

    # The schema

    def version_at(self, link: Link) -> int | None:
        """Return the version of the schema, None if there is no schema.

        :raises DatabaseUnusable: if the version table is another program's, or this program does not open the version.
        """
        if not link.run("SELECT 1 WHERE to_regclass($1) IS NOT NULL", dialect.VERSION_TABLE).fetchall():
            return None
        try:
            row = link.run(f"SELECT version FROM {dialect.VERSION_TABLE} WHERE id = 1").fetchone()
        except psycopg.errors.UndefinedColumn:
            row = None
        if row is None or not isinstance(row[0], int):
            raise DatabaseUnusable(f"{self.name} has a table {dialect.VERSION_TABLE} that belongs to another program")
        require_version(self.name, row[0])
        return row[0]

    def absence(self) -> str:
        """Return a message that the schema is missing or outdated, "" if it is current."""
        with self.separate_connection() as link:
            version = self.version_at(link)
        if version is None:
            return f"there is no database of this service at {self.name}"
        return schema_message(self.name, version)

    def _make_schema(self, link: Link) -> None:
        """Create or migrate the schema in one transaction, for which other processes wait."""
        link.patience = float("inf")
        with link.transaction():
            link.run("SET LOCAL statement_timeout = 0; SET LOCAL lock_timeout = 0")
            link.run("SET LOCAL idle_in_transaction_session_timeout = 0")
            self.lock_schema(link)
            version = self.version_at(link)
            steps = migrations_from(self.name, version or 0)
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
        """Take the lock for creating or migrating the schema until the end of the transaction."""
        link.run("SELECT pg_advisory_xact_lock($1::int, hashtext('schema ' || current_schema()))", LOCKS)

    def require_empty(self, link: Link) -> None:
        """Check that no table has the name of one of ours. :raises DatabaseUnusable: if a table has."""
        found, schema = link.run(
            """SELECT string_agg(relname, ', ' ORDER BY relname), current_schema() FROM pg_class
               WHERE relnamespace = to_regnamespace(current_schema()) AND relname = ANY ($1::text[])""",
            dialect.tables_of(dialect.schema_statements()),
        ).fetchall()[0]
        if found:
            raise DatabaseUnusable(
                f"{self.name} has tables of another program in its schema {schema}: {found}; name another database, or"
                " another schema with ?options=-csearch_path%3DNAME"
            )

    def schema_faults(self) -> Iterator[str]:
        """Yield a line for each missing column, constraint and index, and for a version that is not the current one.

        The server describes the expected schema by temporary tables, which are rolled back. They need a connection
        outside of the pool, because the caller may hold the pool's only one.
        """
        statements = dialect.schema_statements()
        tables = dialect.tables_of(statements)
        with self.separate_connection() as link, link.transaction(force_rollback=True):
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
        """Close the pool and the maintenance connection. The next use opens new ones."""
        with self._opening:
            pool, self._pool = self._pool, None
            if pool is not None and self._pid == os.getpid():
                pool.close()
        self._release_maintenance()


# Query for the columns, constraints and indexes of tables, as the server formats them, without the schema's name.
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
