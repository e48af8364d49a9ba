"""What the service asks of an engine, of PostgreSQL: connections, transactions, and what a caller is told of errors.

A transaction is READ COMMITTED, and locks the row of its client first: so writers of one client queue behind each
other, numbers are given in the order of commits, and clients never wait for each other. A snapshot is REPEATABLE READ
(https://www.postgresql.org/docs/15/transaction-iso.html). What one of them sends waits for nothing until somebody asks
for rows; what a transaction wrote since goes with its COMMIT.
"""

from __future__ import annotations

import itertools
import math
import struct
import sys
import threading
import time
from collections import Counter
from contextlib import closing, contextmanager, suppress
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote, unquote

import psycopg
from psycopg import conninfo

import findings_service as heart
from findings_adapters.postgres import dialect
from findings_adapters.postgres.link import BIGINT, INT, TEXT, Exhausted, Failure, Link, Pool, Reply

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

OLDEST = 150000  # PostgreSQL 15
POOL_SIZE = 16  # connections of a process: six processes fit below the 100 that a server takes by default
CONNECT_TIME = 5  # seconds, for each host of the URL
STATEMENT_TIME = 30.0  # seconds that one statement may take
IDLE_IN_TRANSACTION = 300.0  # seconds until the server ends one that nobody goes on with; 64 MiB take long to read
SILENCE = 15.0  # seconds beyond those of a statement after which a server that says nothing is given up
LIST_SHARE = 4  # times that what is at work for a list may take on the server; others are served there, too
LOOK_EVERY = 1.0  # seconds between two looks whether it is this process's turn to keep house
ROWS_AT_ONCE = 5000  # that one statement stores: so it is done in a fraction of its time
MANY_ROWS = 500  # whose statement takes a while
BULKY = "task_details"  # in whose rows is what is large
LOCKS = heart.APPLICATION_ID  # the first number of our advisory locks; the second is of the schema
NO_TEXT = "\1"  # stands for U+0000
ARRAYS = {TEXT: ("text", 1009), BIGINT: ("bigint", 1016)}  # the name of a type, and the number of its arrays
HOUSEKEEPING = """SELECT pg_try_advisory_lock($1, hashtext('housekeeping ' || current_schema()))::int"""
NO_TABLE, NO_SCHEMA, NO_RIGHT, READ_ONLY, TIMED_OUT = "42P01", "3F000", "42501", "25006", "57014"
NO_COLUMN, TOO_LONG = "42703", "54000"
# An index has rows of up to 2,704 bytes, after compression (https://www.postgresql.org/docs/15/btree-implementation.html).
TOO_LONG_TOGETHER = "targetUrl, branch and externalId may have some 2,500 bytes of UTF-8 together in this database"
SETTLED = 1.0  # seconds after which a server that took no writes may have come to take some


class PostgresError(Exception):
    """PostgreSQL refused a statement for no reason that a caller could know: a bug of ours."""


class NobodyKnows(heart.Busy):
    """The connection was lost during COMMIT, and nobody knows which way it went."""

    def __init__(self) -> None:
        heart.ServiceError.__init__(
            self,
            "The connection to the database was lost while this was stored, and it may be stored or not. Look, or send"
            " it again with the Idempotency-Key that it had.",
            headers={"Retry-After": "1"},
        )


BUSY = {
    "55P03": "Another writer had this client's data for too long",
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
UNDONE = {
    "40001": "Others wrote at the same time",
    "40P01": "Others wrote at the same time",
    "40003": "The connection to the database was lost",
}


def known_failure(failure: Failure) -> Exception:
    """Return what stands for what PostgreSQL says, outside of COMMIT."""
    if failure.lost:
        return heart.TryAgain("The connection to the database was lost")
    if failure.state in UNDONE:
        return heart.TryAgain(UNDONE[failure.state])
    if failure.stale:
        return heart.TryAgain("The schema was changed")
    if failure.state == TOO_LONG:
        return heart.ValidationFailed([heart.Problem(TOO_LONG_TOGETHER, "")])
    if failure.state in BUSY:
        return heart.Busy(BUSY[failure.state])
    if failure.state in FULL:
        return heart.StorageFull(FULL[failure.state])
    return PostgresError(str(failure))


# Where the database is


class Address(NamedTuple):
    """What a URL says: what libpq is told, how messages call the database, and what is for us alone."""

    conninfo: str
    name: str
    pool_size: int
    prepares: bool

    @classmethod
    def of(cls, url: str, lock_patience: float) -> Address:
        """Return what a URL says. :raises heart.ConfigurationError: where it makes no sense."""
        place, _, query = url.partition("?")
        given = [pair.partition("=")[::2] for pair in query.split("&") if pair]
        ours = {name: unquote(value) for name, value in given if name in ("pool_size", "prepare")}
        theirs = "&".join(f"{name}={value}" for name, value in given if name not in ours)
        user, at, rest = place.partition("://")[2].partition("@")
        try:
            if ("/" in user or "@" in rest) if at else "@" in query:  # which messages would show, as a host or a name
                raise psycopg.ProgrammingError
            told: dict[str, Any] = conninfo.conninfo_to_dict(f"{place}?{theirs}")
        except psycopg.ProgrammingError:  # whose message repeats the password
            raise heart.ConfigurationError(
                "FINDINGS_DB: this is no URL of PostgreSQL, or has a parameter that libpq does not know; one is"
                " postgresql://user:password@host:5432/name, with / @ % ? of a password written as %2F %40 %25 %3F"
            ) from None
        defaults = {
            "application_name": "findings-service",
            "client_encoding": "UTF8",
            "connect_timeout": str(CONNECT_TIME),
            "keepalives_idle": "10",
            "keepalives_interval": "5",
            "keepalives_count": "3",
            "tcp_user_timeout": "25000",
            "target_session_attrs": "read-write" if "," in str(told.get("host", "")) else "any",
        }
        options = f"{session_options(lock_patience)} {told.get('options', '')}".strip()
        return cls(
            conninfo.make_conninfo("", **{**defaults, **told, "options": options}),
            name_of(told),
            whole_number("pool_size", ours.get("pool_size", str(POOL_SIZE))),
            switch("prepare", ours.get("prepare", "on")),
        )


def session_options(lock_patience: float) -> str:
    """Return the settings of a session, which go with the connection. The server, too, notices a peer that is gone."""
    settings = {
        "statement_timeout": f"{STATEMENT_TIME * 1000:.0f}",
        "lock_timeout": f"{max(1.0, lock_patience * 1000):.0f}",
        "idle_in_transaction_session_timeout": f"{IDLE_IN_TRANSACTION * 1000:.0f}",
        "tcp_keepalives_idle": "10",
        "tcp_keepalives_interval": "5",
        "tcp_keepalives_count": "3",
        "client_min_messages": "warning",
        "jit": "off",
        # A plan is kept, and may be from when a table had no rows yet: then, to read it as it lies seems best.
        "enable_seqscan": "off",
    }
    return " ".join(f"-c {name}={value}" for name, value in settings.items())


def name_of(told: Mapping[str, Any]) -> str:
    """Return a URL without what is secret in it."""
    hosts = str(told.get("host") or told.get("hostaddr") or "").split(",")
    ports = str(told.get("port") or "").split(",")
    ports = ports * len(hosts) if len(ports) == 1 else ports
    places = [
        (quote(host, safe="") if host.startswith("/") else f"[{host}]" if ":" in host else host)
        + (f":{port}" if port else "")
        for host, port in itertools.zip_longest(hosts, ports, fillvalue="")
    ]
    user = f"{quote(str(told['user']), safe='')}@" if told.get("user") else ""
    options = f"?options={quote(str(told['options']), safe='')}" if told.get("options") else ""  # that say which schema
    return f"postgresql://{user}{','.join(places)}/{quote(str(told.get('dbname') or ''), safe='')}{options}"


def whole_number(name: str, text: str) -> int:
    """Return a number of a URL. :raises heart.ConfigurationError: where it is none."""
    if not (text.isascii() and text.isdigit() and 1 <= int(text) <= 1000):
        raise heart.ConfigurationError(f"FINDINGS_DB: {name}={heart.cut(text)} must be a whole number from 1 to 1000")
    return int(text)


def switch(name: str, text: str) -> bool:
    """Return whether something is on. :raises heart.ConfigurationError: where the text does not say."""
    if text not in ("on", "off"):
        raise heart.ConfigurationError(f"FINDINGS_DB: {name}={heart.cut(text)} must be on or off")
    return text == "on"


# Values


def dumped(value: Any) -> bytes | None:
    """Return a value as PostgreSQL reads it.

    No text of PostgreSQL's has U+0000. The service refuses it in bodies and queries, so that it is only in the ids and
    names of a path, none of which has what stands for it.
    """
    if isinstance(value, str):
        return (value.replace("\0", NO_TEXT) if "\0" in value else value).encode()
    return None if value is None else b"%d" % value


def type_of(value: Any) -> int:
    """Return the number of a value's type; PostgreSQL finds out that of NULL by where it stands."""
    return TEXT if isinstance(value, str) else 0 if value is None else BIGINT


def array_of(values: Sequence[Any], kind: int) -> bytes:
    """Return an array in PostgreSQL's binary form: as it sends them itself (array_send in its source)."""
    some_null = None in values
    head = struct.pack(">iiIii", 1, some_null, kind, len(values), 1)
    if kind == BIGINT and not some_null:
        return head + struct.pack(">" + "iq" * len(values), *itertools.chain.from_iterable((8, n) for n in values))
    parts, length = [head], struct.Struct(">i").pack
    for value in values:
        if value is None:
            parts.append(b"\xff\xff\xff\xff")
        else:
            data = value.encode() if kind == TEXT else value.to_bytes(8, "big", signed=True)
            parts += (length(len(data)), data)
    return b"".join(parts)


Question = tuple[str, "Sequence[Any]", "Callable[[Any], None]"]  # a statement, its values, and who is told


class PostgresCursor:
    """What a statement has come to, or several of them: they are waited for when somebody asks."""

    __slots__ = ("_bulky", "_connection", "_rows", "replies")

    def __init__(self, connection: PostgresConnection, replies: Sequence[Reply], *, bulky: bool = False) -> None:
        self._connection = connection
        self._bulky = bulky
        self.replies = replies
        self._rows: Iterator[tuple[Any, ...]] | None = None

    def _results(self) -> Iterator[Any]:
        for reply in self.replies:
            yield self._connection.result(reply)

    def _left(self) -> Iterator[tuple[Any, ...]]:
        """Give the rows that are left, all of which are here."""
        if self._rows is None:
            self._rows = iter([row for result in self._results() for row in self._connection.link.rows(result)])
        return self._rows

    @property
    def rowcount(self) -> int:
        """How many rows were changed."""
        return sum(result.command_tuples or 0 for result in self._results())

    def fetchone(self) -> Any:
        """Return the next row, None behind the last."""
        return next(self._left(), None)

    def fetchall(self) -> list[Any]:
        """Return the rows that are left."""
        return list(self._left())

    def __iter__(self) -> Iterator[Any]:
        """Give the rows that are left: bulky ones as they are read, where nobody has asked for anything behind them."""
        if self._rows is None and self._bulky:
            self._rows = self._connection.stream(self.replies[0])
        return self._left()


class PostgresConnection(heart.Connection):
    """A connection to PostgreSQL for as long as somebody reads, or for a transaction.

    `failed` is what has undone the transaction, and `shared` whether there were savepoints in it: it may be that of
    several requests then.
    """

    def __init__(self, database: PostgresDatabase, link: Link, *, read_only: bool = False) -> None:
        self.database = database
        self.link = link
        self.read_only = read_only
        self.failed: Failure | None = None
        self.open = False  # whether a transaction is
        self.shared = False
        self.locked: set[str] = set()  # clients
        self.uses: dict[Any, str] = {}  # that the transaction writes
        self.questions: list[tuple[PostgresCursor, Question]] = []  # that came first, and nobody was told of yet
        self._next_seqs: dict[str, int] = {}

    @property
    def in_transaction(self) -> bool:
        """Whether a transaction is open, and good."""
        return self.open and self.failed is None

    def ending(self) -> Exception:
        """Return what stands for what has ended the transaction."""
        return self._blaming(self.failed) if self.failed is not None else super().ending()

    def _blaming(self, failure: Failure) -> Exception:
        """Return what stands for what undid a transaction: one request may be to blame, and no other of those in it."""
        known = known_failure(failure)
        whose = self.shared and not isinstance(known, heart.Busy | heart.StorageFull)
        return heart.TryAgain("Another request was refused") if whose else known

    # Statements

    def execute(self, sql: str, parameters: Sequence[Any] = (), /) -> PostgresCursor:
        """Send a statement; its rows, and what is wrong with it, come when somebody asks for them, or with COMMIT."""
        values, types = [dumped(value) for value in parameters], [type_of(value) for value in parameters]
        return PostgresCursor(self, [self.send(dialect.translated(sql), values, types)], bulky=BULKY in sql)

    def executemany(self, sql: str, parameters: Iterable[Sequence[Any]], /) -> PostgresCursor:
        """Send a statement for many rows: as one for arrays of their values, where none of them meets another."""
        rows = list(parameters)
        lots = [rows[start : start + ROWS_AT_ONCE] for start in range(0, len(rows), ROWS_AT_ONCE)]
        return PostgresCursor(self, [reply for lot in lots for reply in self._send_rows(sql, lot)])

    def _send_rows(self, sql: str, rows: Sequence[Sequence[Any]]) -> Sequence[Reply]:
        """Send a statement for some rows."""
        many = dialect.for_many(sql) if len(rows) > 1 else None
        if many is None or (many.keys is not None and have_doubles(rows, many.keys)):
            return [reply for row in rows for reply in self.execute(sql, row).replies]
        columns = list(zip(*rows, strict=True))
        kinds = [next((type_of(value) for value in column if value is not None), TEXT) for column in columns]
        single = many.client if many.client is not None and len({*columns[many.client]}) == 1 else None
        text = dialect.with_rows(many.text, tuple(ARRAYS[kind][0] for kind in kinds), single)
        values = [array_of(column, kind) for column, kind in zip(columns, kinds, strict=True)]
        types, formats = [ARRAYS[kind][1] for kind in kinds], [1] * len(values)
        if single is not None:
            values[single], types[single], formats[single] = dumped(columns[single][0]) or b"", TEXT, 0
        reply = self.send(text, values, types, formats)
        if len(rows) >= MANY_ROWS:
            self.link.press()
        return [reply]

    def send(
        self,
        text: str,
        values: Sequence[bytes | None] = (),
        types: Sequence[int] = (),
        formats: Sequence[int] | None = None,
    ) -> Reply:
        """Send a statement in PostgreSQL's own words."""
        if self.failed is not None:
            raise known_failure(self.failed)
        if self.is_late():
            raise TimeoutError
        try:
            return self.link.send(text, values, types, formats)
        except Failure as failure:
            raise self._note(failure) from None

    def result(self, reply: Reply) -> Any:
        """Return what a statement has come to, and wait for it if need be. :raises Exception: what is wrong."""
        if reply.result is None:
            if reply.failure is None:
                self.settle()
            if reply.failure is not None:
                raise known_failure(reply.failure)
        return reply.result

    def stream(self, reply: Reply) -> Iterator[tuple[Any, ...]] | None:
        """Return the rows of a statement, each read when it is asked for; None where all are to be had at once."""
        try:
            rows = self.link.stream(reply)
        except Failure as failure:
            raise self._note(failure) from None
        return None if rows is None else self._streamed(rows)

    def _streamed(self, rows: Iterator[tuple[Any, ...]]) -> Iterator[tuple[Any, ...]]:
        try:
            yield from rows
        except Failure as failure:
            raise self._note(failure) from None

    def settle(self) -> None:
        """Wait for everything that was sent. :raises Exception: what is wrong with the first of it."""
        try:
            self.link.settle()
        except Failure as failure:
            raise self._note(failure) from None
        self.hear()

    def ask_first(self, sql: str, parameters: Sequence[Any], hear: Callable[[Any], None]) -> None:
        """Have `hear` told the row of a statement, or None, before anybody is told what is asked after it."""
        self.questions.append((self.execute(sql, parameters), (sql, parameters, hear)))

    def hear(self) -> None:
        """Tell what was asked first. What is raised there, ends it."""
        while self.questions:
            questions, self.questions = self.questions, []
            for asked, (_, _, hear) in questions:
                hear(asked.fetchone())

    def _note(self, failure: Failure) -> Exception:
        """Note that something failed, and return what stands for it. Connections that are of no more use are closed."""
        if self.open:
            self.failed = self.failed or failure
        if failure.state == READ_ONLY or failure.stale:
            self.link.broken = True
        return known_failure(failure)

    # Transactions

    def begin(self, how: str) -> None:
        """Open a transaction, with the next statement."""
        self.link.separate()
        self.send(f"BEGIN ISOLATION LEVEL {how}")
        self.open = True

    def lock(self, client_id: str, patience: float | None) -> None:
        """Have other writers of a client wait."""
        if client_id in self.locked:
            return
        self.locked.add(client_id)
        if patience:
            self.execute("SELECT set_config('lock_timeout', ?, true)", (f"{max(1.0, patience * 1000):.0f}ms",))
        self.execute(
            f"SELECT 1 FROM clients WHERE id = ? FOR NO KEY UPDATE{'' if patience != 0 else ' NOWAIT'}", (client_id,)
        )

    def commit(self) -> None:
        """Make the transaction durable.

        A warning is one that a synchronous standby was not waited for any more
        (https://www.postgresql.org/docs/15/warm-standby.html#SYNCHRONOUS-REPLICATION).

        :raises NobodyKnows: when the connection was lost meanwhile, or there was a warning.
        """
        if self.failed is not None:
            raise self._blaming(self.failed)
        self.hear()
        warnings, number = self.link.warnings, self.link.sent + 1
        try:
            reply = self.link.send("COMMIT")
            self.link.settle()
        except Failure as failure:
            self._note(failure)
            unknown = failure.lost and not 0 < failure.number < number
            raise NobodyKnows if unknown else self._blaming(failure) from None
        self.open = False
        if reply.result.command_status != b"COMMIT":
            raise PostgresError("a transaction was undone without a word")
        if self.link.warnings != warnings:
            raise NobodyKnows

    def end(self) -> None:
        """Undo what is not committed, and leave the connection to the next one, without waiting for anything."""
        self.undo()
        self.link.patience = STATEMENT_TIME + SILENCE
        if not self.link.broken:
            with suppress(Failure):
                self.link.leave()

    def undo(self) -> None:
        """Undo what is not committed, and wait for nothing."""
        self.forget()
        self.link.drop_stream()
        try:
            if self.open and not self.link.broken:
                self.link.separate()
                self.link.send("ROLLBACK")
        except Failure:
            pass
        finally:
            self.open, self.failed = False, None

    @contextmanager
    def savepoint(self) -> Iterator[None]:
        """Have what is done within stored with the transaction, or undone where it raises anything."""
        self.shared = True
        first = self.send("SAVEPOINT request").number
        try:
            yield
            self.hear()
            self.send("RELEASE SAVEPOINT request")
            self.link.push()
            self.settle_counts()
        except BaseException:
            self.counting.clear()
            self._undo(first)
            raise

    def _undo(self, first: int) -> None:
        """Undo what was sent behind a savepoint; what failed before that stays failed."""
        if self.failed is None:
            try:
                self.link.settle()  # and whoever asked first is told later: that counts for more than what undoes this
            except Failure as failure:
                self._note(failure)
        if self.link.broken or (self.failed is not None and self.failed.number < first):
            return
        self.failed = None
        self.is_late, late = bool, self.is_late
        with suppress(Exception):
            self.send("ROLLBACK TO SAVEPOINT request")
            self.send("RELEASE SAVEPOINT request")
        self.is_late = late

    def forget(self) -> None:
        """Drop what belongs to a transaction, because it ends."""
        super().forget()
        self._next_seqs.clear()

    # What engines do in ways of their own

    def ask(self, sql: str, parameters: Sequence[Any] = ()) -> Callable[[], PostgresCursor]:
        """Run a statement, whose answer comes with others, and return what gives its rows."""
        asked = self.execute(sql, parameters)
        return lambda: asked

    def take_seqs(self, client_id: str, count: int, newest: int) -> range:
        """Return seqs for new tasks of a client, whose other writers wait."""
        first = max(newest + 1, self._next_seqs.get(client_id, 0))
        self._next_seqs[client_id] = first + count
        return range(first, first + count)

    def merged(self, ranges: Sequence[str], order: str) -> str:
        """Return what merges index ranges without doubles, with marks for the limit and the offset at its end."""
        return dialect.merged(list(ranges), order)

    @contextmanager
    def limited(self, seconds: float) -> Iterator[None]:
        """Let what is done within have no more than so many seconds of this process, and some more of the server.

        The server's limit is the transaction's, and holds to its end: to end it sooner would take another answer.

        :raises TimeoutError: when they are over.
        :raises heart.Busy: when half of the server's went by in waiting for a lock, or somebody cancelled a statement.
        """
        began, limit = time.monotonic(), max(2, round(LIST_SHARE * seconds * 1000))
        worked, waited = time.thread_time() + seconds, began + heart.WAITING * seconds
        self.is_late = lambda: time.thread_time() > worked or time.monotonic() > waited
        self.send(
            f"""SELECT set_config('statement_timeout', '{limit}', true),
                set_config('lock_timeout', '{limit // 2}', true)"""
        )
        try:
            yield
        except heart.Busy:
            if self.failed is None or self.failed.state != TIMED_OUT or time.monotonic() < began + limit / 1000:
                raise
            raise TimeoutError from None
        finally:
            self.is_late = bool

    def stamp(self) -> object:
        """Return what tells which transactions are seen (https://www.postgresql.org/docs/15/functions-info.html).

        On a standby it does not say which of them run, and so nothing is like anything before.
        """
        if self.link.server("in_hot_standby") == "on":
            return object()
        return self.execute("SELECT pg_current_snapshot()::text").fetchone()[0]

    def faults(self) -> Iterator[str]:
        """Tell what of the schema is not there, or is otherwise than it should be. What follows has all its time."""
        yield from self.database.schema_faults()
        if self.open:
            self.send("SET LOCAL statement_timeout TO 0")
            self.send("SET LOCAL enable_seqscan TO on")
            self.link.patience = math.inf


def have_doubles(rows: Sequence[Sequence[Any]], keys: Sequence[int]) -> bool:
    """Tell whether rows have the same values in some places."""
    return len({tuple(row[key] for key in keys) for row in rows}) < len(rows)


class PostgresDatabase(heart.Database):
    """A process's connections to a PostgreSQL server, which it may share with many others.

    A thread has one for as long as it reads, or for a transaction.
    """

    concurrent = True
    advice = {  # noqa: RUF012 - as the heart has it
        "backup": "for PostgreSQL say: pg_dump --format=custom --file=findings.dump {name}",
        "restore": "for PostgreSQL say: pg_restore --dbname={name} findings.dump",
        "compact": (
            "PostgreSQL's autovacuum gives the space to what comes next, and where much was removed, this gives it back"
            " to the disk, while requests wait: PGOPTIONS='-c client_min_messages=error' psql --command='VACUUM FULL'"
            " {name}"
        ),
    }

    def __init__(self, settings: heart.Settings) -> None:
        self.address = Address.of(settings.db, settings.busy_timeout)
        self._uses_of_statements: Counter[str] = Counter()
        self._pool = Pool(self._open_link, self.address.pool_size, is_passing)
        self._at_work = threading.local()  # `connection`: the one that this thread has
        self._counting = threading.Lock()  # for `version`
        self._server = ""
        self._reached = self._out = False  # whether it ever was, and whether it was not the last time
        self._house: Link | None = None
        self._housekeeper = False
        self._housing = threading.RLock()  # for these two
        self._looked = -LOOK_EVERY
        super().__init__(settings)

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        """Close the connections of an application that is gone."""
        if hasattr(self, "settings") and not is_finalizing():
            self.disconnect()

    @property
    def name(self) -> str:
        """The URL without its password, as messages have it."""
        return self.address.name

    @property
    def engine(self) -> tuple[str, str]:
        """PostgreSQL, and the server's version, once it is known."""
        return "PostgreSQL", self._server

    @property
    def _current(self) -> PostgresConnection | None:
        return getattr(self._at_work, "connection", None)

    @property
    def transacting(self) -> bool:
        """Whether this thread has a transaction."""
        return self._current is not None and not self._current.read_only

    # Connections

    @contextmanager
    def _connection(self, *, read_only: bool = False) -> Iterator[PostgresConnection]:
        """Give a connection to this thread."""
        outer = self._current
        link = self._take() if read_only else self._take_writer()
        connection = self._at_work.connection = PostgresConnection(self, link, read_only=read_only)
        try:
            yield connection
        finally:
            self._at_work.connection = outer
            self._questions.extend(question for _, question in connection.questions)
            connection.end()
            if link.broken:
                self._pool.losses += 1
            self._pool.give(link)

    def _take(self) -> Link:
        try:
            return self._pool.take(self.settings.busy_timeout)
        except Exhausted:
            message = f"All {self._pool.size} connections to the database are in use"
            raise heart.Busy(message) from None
        except Failure as failure:
            raise known_failure(failure) from None
        except psycopg.OperationalError as error:
            raise self._unreachable(error) from None

    def _take_writer(self) -> Link:
        """Return a connection to a server that takes writes: where it took none, a new one may lead to another."""
        while True:
            link = self._take()
            if link.takes_writes:
                return link
            settled = link.broken = time.monotonic() > link.made + SETTLED
            self._pool.give(link)
            if not settled:
                raise heart.Busy(BUSY[READ_ONLY])

    def _unreachable(self, error: psycopg.OperationalError) -> Exception:
        """Return what a caller is told when there is no connection: at first why, later the log is."""
        cause = in_one_line(error)
        if not self._reached:
            return heart.DatabaseUnusable(f"{self.name} cannot be used: {cause}")
        if not self._out:
            self._out = True
            heart.log.error("%s cannot be reached: %s", self.name, cause)
        return heart.Busy("The database cannot be reached")

    def _open_link(self) -> Link:
        """Return a new connection to a database with the schema.

        :raises psycopg.OperationalError: when there is none now.
        :raises heart.DatabaseUnusable: when the database is none of ours.
        """
        link = self._connect()
        try:
            version = self._greet(link)
            if version != heart.SCHEMA_VERSION:
                self._make_schema(link)
        except BaseException as error:
            link.close()
            raise self._refusal(error) if isinstance(error, Failure) else error from None
        if self._out:
            heart.log.warning("%s is back", self.name)
        self._reached, self._out = True, False
        return link

    def _connect(self) -> Link:
        connection = psycopg.Connection.connect(self.address.conninfo, autocommit=True, prepare_threshold=None)
        uses = self._uses_of_statements if self.address.prepares else None
        link = Link(connection, uses, STATEMENT_TIME + SILENCE)
        self._server = link.server("server_version").partition(" ")[0]
        encoding = link.server("server_encoding")
        if link.version >= OLDEST and encoding == "UTF8":
            return link
        needed = "15 or newer is needed" if link.version < OLDEST else f"its encoding is {encoding}, not UTF8"
        link.close()
        raise heart.DatabaseUnusable(f"{self.name} is PostgreSQL {self._server}; {needed}")

    def _greet(self, link: Link) -> int | None:
        """Return the version of the schema, None where there is none; and have commits as durable as is set."""
        wanted = "off" if self.settings.synchronous in ("NORMAL", "OFF") else "on"
        others = "('off')" if wanted == "on" else "('on', 'remote_write', 'remote_apply', 'local')"
        if "synchronous_commit" not in self.address.conninfo:  # what the URL says counts
            link.send(
                f"""SELECT set_config('synchronous_commit', '{wanted}', false)
                    WHERE current_setting('synchronous_commit') IN {others}"""
            )
            link.separate()
        reply = link.send(f"SELECT version FROM {dialect.VERSION_TABLE} WHERE id = 1")
        try:
            link.settle()
        except Failure as failure:
            if failure.state == NO_TABLE:
                return None
            if failure.state != NO_COLUMN:
                raise
        rows = link.rows(reply.result) if reply.result else []
        if not rows or not isinstance(rows[0][0], int):
            raise heart.DatabaseUnusable(
                f"{self.name} has a table {dialect.VERSION_TABLE} that is none of this service's"
            )
        version = int(rows[0][0])
        heart.require_version(self.name, version)
        return version

    def _refusal(self, failure: Failure) -> Exception:
        """Return what stands for what the server said to a new connection."""
        if failure.lost:
            return psycopg.OperationalError(failure.message)
        if failure.state in (NO_RIGHT, NO_SCHEMA):
            return heart.DatabaseUnusable(
                f"{self.name} cannot be used: {failure.message}; its user needs a schema to create tables in, or"
                " tables of its own there"
            )
        known = known_failure(failure)
        if isinstance(known, PostgresError):
            return heart.DatabaseUnusable(f"{self.name} cannot be used: {failure}")
        return known

    # Reading

    @contextmanager
    def reading(self) -> Iterator[PostgresConnection]:
        """Give a connection to a reader: within a transaction of its own thread the one that sees its changes.

        Each statement sees what was committed before it.
        """
        if self._current is not None:
            yield self._current
            return
        with self._connection(read_only=True) as connection:
            self._ask(connection)
            yield connection

    @contextmanager
    def snapshot(self) -> Iterator[PostgresConnection]:
        """Give a connection to a reader whose statements must all see the same moment."""
        if self._current is not None and self._current.open:
            yield self._current
            return
        if self._current is not None:
            self._current.begin("REPEATABLE READ, READ ONLY")
            try:
                yield self._current
            finally:
                self._current.undo()
            return
        with self._connection(read_only=True) as connection:
            connection.begin("REPEATABLE READ, READ ONLY")
            self._ask(connection)
            yield connection

    # Questions that come first

    def ask_first(self, sql: str, parameters: Sequence[Any], hear: Callable[[Any], None]) -> None:
        """Have `hear` told the row of a statement, or None, before this thread is told what it asks after it.

        It is asked over the connection that this thread has, or gets next.
        """
        if self._current is not None:
            self._current.ask_first(sql, parameters, hear)
        else:
            self._questions.append((sql, parameters, hear))

    @property
    def _questions(self) -> list[Question]:
        """What this thread asks with its next connection: what its last one has not told, too."""
        if not hasattr(self._at_work, "questions"):
            self._at_work.questions = []
        return self._at_work.questions  # type: ignore[no-any-return]

    def _ask(self, connection: PostgresConnection) -> None:
        for question in self._questions:
            connection.ask_first(*question)
        self._questions.clear()

    @contextmanager
    def hearing(self) -> Iterator[None]:
        """Have everybody told what `ask_first` was given within, at its end at the latest.

        What is told there counts for more than another error, but for one of the database, which nobody is asked after.
        """
        try:
            yield
        except (heart.Busy, heart.StorageFull, heart.DatabaseUnusable):
            raise
        except Exception:
            self._hear()
            raise
        else:
            self._hear()
        finally:
            self._questions.clear()
            if self._current is not None:
                self._current.questions.clear()

    def _hear(self) -> None:
        if self._questions or (self._current is not None and self._current.questions):
            with self.reading() as connection:
                connection.hear()

    # Writing

    @contextmanager
    def transaction(self, client_id: str | None = None, patience: float | None = None) -> Iterator[PostgresConnection]:
        """Give a connection that writes: all of its statements are durable when this ends, or none is stored.

        Within a transaction of the same thread, it is a savepoint in that.

        :param client_id: whose rows are written; other writers of the client wait. None for what is no client's.
        :param patience: seconds to wait for them; None for what is set.
        :raises heart.TryAgain: when the server undid it.
        """
        if self._current is not None and not self._current.read_only:
            with self._current.savepoint():
                if client_id is not None:
                    self._current.lock(client_id, patience)
                yield self._current
            return
        with self._connection() as connection:
            connection.begin("READ COMMITTED")
            try:
                if client_id is not None:
                    connection.lock(client_id, patience)
                    self._write_uses_of(connection, client_id)
                self._ask(connection)
                yield connection
                connection.write_counts()
                connection.commit()
            except BaseException:
                with self._noting:  # what could not be written is written another time
                    self.last_uses = {**connection.uses, **self.last_uses}
                raise
            with self._counting:
                self.version += 1

    def _write_uses_of(self, connection: PostgresConnection, client_id: str) -> None:
        """Write when keys and runs of a client were used. Those of others would need their locks."""
        if not self.last_uses:
            return
        with self._noting:
            for key in [key for key in self.last_uses if key[0] == client_id]:
                connection.uses[key] = self.last_uses.pop(key)
        heart.write_last_uses(connection, connection.uses)

    def probe(self) -> None:
        """Ask the server whether it takes writes: one that is in recovery, or read-only, does not."""
        with self.reading() as connection:
            asked = "SELECT (pg_is_in_recovery() OR current_setting('default_transaction_read_only') = 'on')::int"
            if connection.execute(asked).fetchone() != (0,):
                raise heart.Busy(BUSY[READ_ONLY])

    def write_uses(self, patience: float | None = None) -> None:
        """Write what `use_later` remembers, unless there is nothing: client by client."""
        for client_id in sorted({key[0] for key in list(self.last_uses)}):
            with self.transaction(client_id, patience):
                pass

    # Keeping house

    def keeps_house(self) -> bool:
        """Tell whether it is this process's turn to keep house: it has a lock for as long as a connection lasts.

        That connection is beside the pool. When the process ends, or the server has not heard of it for half a minute,
        another one gets the lock.
        """
        with self._housing:
            if time.monotonic() < self._looked + LOOK_EVERY:
                return self._housekeeper
            self._looked = time.monotonic()
            try:
                self._housekeeper = self._try_house()
            except (Failure, psycopg.Error, heart.DatabaseUnusable):
                self._leave_house()
            return self._housekeeper

    def _try_house(self) -> bool:
        """Tell whether the lock is held, and try to take it."""
        if self._house is not None and not self._house.is_there():
            self._leave_house()
        if self._house is None:
            self._house = self._connect()
        if self._housekeeper:
            return True
        reply = self._house.send(HOUSEKEEPING, *values_of(LOCKS))
        self._house.settle()
        self._house.used = time.monotonic()
        return bool(self._house.rows(reply.result)[0][0])

    def _leave_house(self) -> None:
        house, self._house, self._housekeeper = self._house, None, False
        if house is not None:
            house.close()

    def keep_house(self) -> None:
        """Leave it to the server's autovacuum."""

    def figures(self) -> Mapping[str, Callable[[], float]]:
        """Return what gives the bytes of the database."""
        return {"findings_database_bytes": self._size}

    def _size(self) -> float:
        """Return the bytes of the database. :raises OSError: when the server does not say."""
        try:
            with self.reading() as connection:
                return float(connection.execute("SELECT pg_database_size(current_database())").fetchone()[0])
        except (heart.ServiceError, heart.DatabaseUnusable, PostgresError) as error:
            raise OSError(str(error)) from None

    # The schema

    @contextmanager
    def _apart(self) -> Iterator[Link]:
        """Give a connection that is none of the pool's. :raises heart.DatabaseUnusable: where there is none."""
        try:
            with closing(self._connect()) as link:
                yield link
        except psycopg.OperationalError as error:
            raise heart.DatabaseUnusable(f"{self.name} cannot be used: {in_one_line(error)}") from None
        except Failure as failure:
            raise heart.DatabaseUnusable(f"{self.name} cannot be used: {failure}") from None

    def absence(self) -> str:
        """Say that there is no schema, without making one; "" where there is. :raises DatabaseUnusable: if unknown."""
        with self._apart() as link:
            there = self._greet(link) is not None
        return "" if there else f"there is no database of this service at {self.name}"

    def _make_schema(self, link: Link) -> None:
        """Create the schema, or take the steps that lead to it, all of it or nothing, in one process of many."""
        link.send("BEGIN ISOLATION LEVEL READ COMMITTED")
        for name in ("statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout"):
            link.send(f"SET LOCAL {name} = 0")
        link.send("SET LOCAL enable_seqscan = on")
        link.send("SELECT pg_advisory_xact_lock($1, hashtext('schema ' || current_schema()))", *values_of(LOCKS))
        link.settle(math.inf)
        reply = link.send("SELECT to_regclass($1) IS NOT NULL", *values_of(dialect.VERSION_TABLE))
        link.settle()
        known = link.rows(reply.result)[0][0]
        version = self._greet(link) if known else None
        statements = dialect.schema_statements(heart.schema_path().read_text("utf-8"))
        if version is None:
            self._require_empty(link, dialect.tables_of(statements))
            statements = [dialect.MAKE_VERSION_TABLE, *statements]
        else:
            statements = [*dialect.steps_of(heart.MIGRATIONS, version), *statements]
        for statement in statements:
            link.send(statement)
        link.send(
            f"""INSERT INTO {dialect.VERSION_TABLE} (id, version) VALUES (1, $1)
                ON CONFLICT (id) DO UPDATE SET version = excluded.version""",
            *values_of(heart.SCHEMA_VERSION),
        )
        link.settle(math.inf)
        link.send("COMMIT")
        link.settle(math.inf)

    def _require_empty(self, link: Link, tables: Sequence[str]) -> None:
        """Refuse a schema with tables of our names that nobody knows. :raises heart.DatabaseUnusable: then."""
        reply = link.send(
            """SELECT string_agg(relname, ', ' ORDER BY relname), current_schema() FROM pg_class
               WHERE relnamespace = to_regnamespace(current_schema()) AND relname = ANY ($1::text[])""",
            [array_of(tables, TEXT)],
            [ARRAYS[TEXT][1]],
            [1],
        )
        link.settle()
        found, schema = link.rows(reply.result)[0]
        if found:
            raise heart.DatabaseUnusable(
                f"{self.name} has tables of another program in its schema {schema}: {found}; name another database, or"
                " another schema by ?options=-csearch_path%3DNAME"
            )

    def schema_faults(self) -> Iterator[str]:
        """Tell what of the schema is not there, or is otherwise than it should be.

        The server itself says how it would have it, of tables that are there for a transaction. Who asks for that has a
        connection, which may be the only one of the pool's.
        """
        statements = dialect.schema_statements(heart.schema_path().read_text("utf-8"))
        tables = dialect.tables_of(statements)
        with self._apart() as link:
            connection = PostgresConnection(self, link)
            connection.begin("READ COMMITTED")
            found = dict(facts_of(connection, "current_schema()", tables))
            version = connection.execute(f"SELECT version FROM {dialect.VERSION_TABLE} WHERE id = 1").fetchone()
            connection.send("SET LOCAL search_path TO pg_temp")
            for statement in statements:
                connection.send(dialect.in_temporary(statement))
            wanted = dict(facts_of(connection, "pg_my_temp_schema()::regnamespace::text", tables))
        yield from (f"schema: {name} is missing" for name in wanted if name not in found)
        yield from (
            f"schema: {name} is {found[name]}, not {fact}"
            for name, fact in wanted.items()
            if found.get(name, fact) != fact
        )
        if version is None or version[0] != heart.SCHEMA_VERSION:
            yield f"schema version {version and version[0]}, not {heart.SCHEMA_VERSION}"

    # Opening and closing

    def close(self) -> None:
        """Write what is left to write, and close the connections; the next use opens others."""
        if self._pool.is_used:
            with suppress(heart.ServiceError, heart.DatabaseUnusable, PostgresError):
                self.write_uses()
        self.disconnect()

    def disconnect(self) -> None:
        """Close the connections that nobody uses; the next use opens others."""
        self._pool.close()
        with self._housing:
            self._leave_house()
            self._looked = -LOOK_EVERY

    def hold(self) -> None:
        """Wait until nobody uses the connections, and let nobody."""
        self._pool.hold()
        self._housing.acquire()
        self._counting.acquire()
        self._noting.acquire()

    def let_go(self) -> None:
        """Let the connections be used again."""
        self._noting.release()
        self._counting.release()
        self._housing.release()
        self._pool.let_go()


def values_of(*values: str | int) -> tuple[list[bytes | None], list[int]]:
    """Return values as `Link.send` takes them, with their types; a number is of PostgreSQL's int."""
    return [dumped(value) for value in values], [TEXT if isinstance(value, str) else INT for value in values]


def in_one_line(error: Exception) -> str:
    """Return what is wrong with connecting: the reason that libpq gives for the last host, without its question."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    reasons = [line for line in lines if "failed: " in line] or lines
    return reasons[-1].rpartition("connection failed: ")[2] if reasons else type(error).__name__


def is_passing(error: Exception) -> bool:
    """Tell whether a connection that could not be made may be soon."""
    return isinstance(error, psycopg.OperationalError | heart.Busy)


# What a table consists of, as the server writes it, without the schema that it is in.
FACTS = r"""
    SELECT relname || '.' || attname,
        format_type(atttypid, atttypmod) || CASE WHEN attnotnull THEN ' not null' ELSE '' END
        || COALESCE(' collate ' || collname, '') || CASE WHEN attidentity <> '' THEN ' identity' ELSE '' END
        || COALESCE(' default ' || pg_get_expr(adbin, adrelid), '')
    FROM tables JOIN pg_attribute ON attrelid = tables.oid AND attnum > 0 AND NOT attisdropped
        LEFT JOIN pg_attrdef ON adrelid = attrelid AND adnum = attnum
        LEFT JOIN pg_collation ON pg_collation.oid = attcollation
    UNION ALL
    SELECT relname || ' ' || pg_get_constraintdef(pg_constraint.oid),
        CASE WHEN convalidated THEN 'valid' ELSE 'not valid' END
    FROM tables JOIN pg_constraint ON conrelid = tables.oid
    UNION ALL
    SELECT index.relname,
        regexp_replace(pg_get_indexdef(index.oid), ' ON (ONLY )?\S+ ', ' ON ' || tables.relname || ' ')
        || CASE WHEN indisvalid THEN '' ELSE ' invalid' END
    FROM tables JOIN pg_index ON indrelid = tables.oid JOIN pg_class AS index ON index.oid = indexrelid
    WHERE NOT EXISTS (SELECT 1 FROM pg_constraint WHERE conindid = indexrelid AND contype IN ('p', 'u'))"""


def facts_of(connection: PostgresConnection, schema: str, tables: Sequence[str]) -> list[tuple[str, str]]:
    """Return what tables of a schema consist of: columns, constraints and indexes, each with how it is."""
    text = f"""WITH tables AS (
        SELECT oid, relname FROM pg_class WHERE relname = ANY ($1::text[]) AND relnamespace = to_regnamespace({schema}))
        {FACTS}"""
    reply = connection.send(text, [array_of(tables, TEXT)], [ARRAYS[TEXT][1]], [1])
    return [(name, fact) for name, fact in connection.link.rows(connection.result(reply))]
