"""A connection to PostgreSQL at the level of its protocol, and the pool of a process's connections.

All of a connection's statements go through libpq's pipeline mode (https://www.postgresql.org/docs/15/libpq-pipeline-mode.html),
by psycopg's own wrapper of libpq (https://www.psycopg.org/psycopg3/docs/api/pq.html): what is sent waits for no answer
until somebody asks for one, and a transaction takes a third of the processor that psycopg's own pipelines take.

The pool is our own, and not psycopg_pool's, for two reasons. A connection comes back to it while the end of its last
transaction is still on its way, which saves a round trip of every read; psycopg_pool closes one that is not idle. And
who finds none free opens one in its own thread: so there are no threads that a fork would lose, the first request after
an outage finds the server, and what the server says against another connection is what the caller is told.
"""

from __future__ import annotations

import math
import os
import select
import threading
import time
from collections import Counter, deque
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg import pq
from psycopg.adapt import Transformer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

TEXT, BIGINT, INT = 25, 20, 23  # PostgreSQL's numbers of these types
PREPARE_AFTER = 2  # times that a statement was run in this process
MOST_PREPARED = 200  # statements of a connection, each of which takes the server some 50 KB
LONGEST_PREPARED = 4000  # characters: what is longer is hardly ever asked for again, and takes much more
MOST_VALUES = 24  # of a statement that is planned once for all: for long lists, it matters which values they have
MOST_COUNTED = 4000  # statements
LOOK_AFTER = 10.0  # seconds that a connection was idle, after which the server is asked whether it is there
LOOKING = 3.0  # seconds that it has to answer
IDLE = 300.0  # seconds after which a connection that nobody needed is closed
LIFETIME = 3600.0  # seconds; a new connection finds a server that was added behind a name, and gives memory back
OUTAGE = 2.0  # seconds from the beginning of an outage on in which requests wait for its end
PAUSE = 0.05  # seconds between two attempts to connect
COMMAND_DONE = (pq.ExecStatus.COMMAND_OK, pq.ExecStatus.TUPLES_OK)
NO_STATEMENT, NOT_SUPPORTED = "26000", "0A000"
CHUNK = 4  # rows that are read at once where they are streamed
HAS_CHUNKS = pq.version() >= 170000
DROPPING = 0.005  # seconds that the rest of rows that are streamed may take
LOST_STATES = ("57P01", "57P02", "57P03", "57P04", "57P05", "25P03")  # the server ends the connection


class Failure(Exception):
    """What PostgreSQL says against a statement, or what became of the connection.

    `state` is its SQLSTATE (https://www.postgresql.org/docs/15/errcodes-appendix.html), "" where it said nothing.
    `lost` tells whether the connection is gone, `stale` whether a prepared statement is, and `number` is that of the
    statement, 0 where it is not known.
    """

    def __init__(
        self, message: str, state: str = "", *, lost: bool = False, stale: bool = False, number: int = 0
    ) -> None:
        super().__init__(f"{message} ({state})" if state else message)
        self.message = message
        self.state = state
        self.lost = lost
        self.stale = stale
        self.number = number


class Exhausted(Exception):
    """No connection became free in time."""


def failure_of(result: Any, number: int) -> Failure:
    """Return what the result of a statement says, without the values that its details may name."""
    field = pq.DiagnosticField
    state = text_of(result.error_field(field.SQLSTATE))
    message = text_of(result.error_field(field.MESSAGE_PRIMARY)) or text_of(result.error_message).strip()
    if constraint := text_of(result.error_field(field.CONSTRAINT_NAME)):
        message = f"{message} [{constraint}]"
    severity = text_of(result.error_field(field.SEVERITY_NONLOCALIZED))
    lost = severity in ("FATAL", "PANIC") or not state or state in LOST_STATES
    place = text_of(result.error_field(field.SOURCE_FUNCTION))
    stale = state == NO_STATEMENT or (state == NOT_SUPPORTED and place == "RevalidateCachedQuery")
    return Failure(message, state, lost=lost, stale=stale, number=number if state else 0)


def text_of(data: bytes | None) -> str:
    """Return a text of libpq's."""
    return (data or b"").decode(errors="replace")


class Reply:
    """What the server will say to a statement: a result, or what is wrong."""

    __slots__ = ("failure", "number", "result", "statement")

    def __init__(self, number: int, statement: str = "") -> None:
        self.number = number
        self.statement = statement  # that is being prepared
        self.result: Any = None
        self.failure: Failure | None = None


SYNC = Reply(-1)  # stands where the pipeline is synchronised


class Link:
    """A connection in pipeline mode. One thread at a time uses it.

    `sent` counts the statements, and numbers them. `warnings` is how many the server gave.
    """

    def __init__(self, connection: psycopg.Connection[Any], uses: Counter[str] | None, patience: float) -> None:
        """Take an idle connection.

        :param uses: how often statements were run in this process, None where none may be prepared.
        :param patience: seconds without a word of the server after which it is given up.
        """
        self.connection = connection
        self.uses = uses
        self.patience = patience
        self.pid = os.getpid()
        self.made = self.used = time.monotonic()
        self.sent = 0
        self.warnings = 0
        self.broken = False
        self._stream: Stream | None = None
        self._owed = 0  # up to which statement nobody wants the answers any more
        self._pgconn: Any = connection.pgconn
        self._pgconn.nonblocking = 1
        self._pgconn.enter_pipeline_mode()
        self._pending: deque[Reply] = deque()
        self._prepared: dict[str, bytes] = {}
        self._transformer = Transformer(connection)
        self._poll = select.poll()
        self._socket = self._pgconn.socket
        connection.add_notice_handler(self._note)

    def _note(self, notice: Any) -> None:
        """Hear what the server says besides: a warning, or that it ends the connection while nobody uses it."""
        self.warnings += notice.severity_nonlocalized == "WARNING"
        self.broken = self.broken or notice.severity_nonlocalized in ("FATAL", "PANIC")

    def server(self, name: str) -> str:
        """Return a setting that the server told when the connection was made."""
        return text_of(self._pgconn.parameter_status(name.encode()))

    @property
    def takes_writes(self) -> bool:
        """Whether the server took writes when it was last heard of."""
        return "on" not in (self.server("in_hot_standby"), self.server("default_transaction_read_only"))

    @property
    def version(self) -> int:
        """The server's version: 150004 is 15.4."""
        return int(self._pgconn.server_version)

    # Sending

    def send(
        self,
        text: str,
        values: Sequence[bytes | None] = (),
        types: Sequence[int] = (),
        formats: Sequence[int] | None = None,
    ) -> Reply:
        """Send a statement, and return where its answer will be.

        :param formats: 1 for values in PostgreSQL's binary form; all are texts where this is None.
        :raises Failure: where the connection is gone.
        """
        self.sent += 1
        reply = Reply(self.sent)
        try:
            if name := self._prepared.get(text) or self._prepare(text, types):
                self._pgconn.send_query_prepared(name, values, formats)
            else:
                self._pgconn.send_query_params(text.encode(), values, types, formats)
        except psycopg.OperationalError as error:
            raise self._gone(str(error)) from None
        self._pending.append(reply)
        return reply

    def _prepare(self, text: str, types: Sequence[int]) -> bytes | None:
        """Have a statement planned once for all, if it is often run. The server is told so with its first use."""
        if self.uses is None or len(text) > LONGEST_PREPARED or len(types) > MOST_VALUES:
            return None
        if len(self.uses) > MOST_COUNTED:
            self.uses.clear()
        self.uses[text] += 1
        if self.uses[text] < PREPARE_AFTER or len(self._prepared) >= MOST_PREPARED:
            return None
        name = b"s%d" % self.sent
        self._pgconn.send_prepare(name, text.encode(), param_types=types)
        self._prepared[text] = name
        self._pending.append(Reply(self.sent, text))
        return name

    # Receiving

    def settle(self, patience: float | None = None) -> None:
        """Wait for the answers to all that was sent.

        :param patience: seconds without a word of the server after which it is given up; None for the usual.
        :raises Failure: the first thing that is wrong. What was sent behind it came to nothing.
        """
        if not self._pending:
            return
        self.separate()
        if self._stream is not None:
            self._stream.take_rest()
        self._settle(None, self.patience if patience is None else patience)

    def _settle(self, last: Reply | None, patience: float) -> None:
        """Wait for the answers to all that was sent before a statement."""
        self.broken = True  # where this is interrupted
        failure = self._collect(last, patience)
        if failure is not None:
            self._collect(None, patience)
        self.broken = False
        if failure is not None:
            raise failure

    def leave(self) -> None:
        """Send what is left, and wait for nothing. The answers come to whoever uses the connection next, unheard."""
        self._owed = self.sent
        if self._pending and self._pending[-1] is not SYNC:
            self._synchronise()
            try:
                self._flush(self.patience)
            except psycopg.OperationalError as error:
                raise self._gone(str(error)) from None

    def push(self) -> None:
        """Have the server begin with what was sent, as far as that can be had without waiting."""
        with suppress(psycopg.OperationalError):  # which is told to whoever waits
            self._pgconn.flush()

    def press(self) -> None:
        """Have the server say at once what becomes of what was sent; else it may be silent for long, and given up."""
        with suppress(psycopg.OperationalError):  # which is told to whoever waits
            self._pgconn.send_flush_request()

    def separate(self) -> None:
        """Have the server do what is sent from here on whatever becomes of what was sent before."""
        if self._pending and self._pending[-1] is not SYNC:
            self._synchronise()

    def _synchronise(self) -> None:
        try:
            self._pgconn.pipeline_sync()
        except psycopg.OperationalError as error:
            raise self._gone(str(error)) from None
        self._pending.append(SYNC)

    def _collect(self, last: Reply | None, patience: float) -> Failure | None:
        """Take in all answers, or those before one. Return the first thing that is wrong."""
        first: Failure | None = None
        pending = self._pending
        try:
            self._flush(patience)
            while pending and pending[0] is not last:
                reply, result = pending[0], self._next(patience)
                if reply is not SYNC:
                    first = self._take(reply, result, first)
                    self._next(patience)  # None: the end of its results
                pending.popleft()
        except psycopg.OperationalError as error:
            raise self._gone(str(error), first) from None
        return first

    def _take(self, reply: Reply, result: Any, first: Failure | None) -> Failure | None:
        """Note what became of a statement. :raises Failure: where the connection has ended."""
        if result is not None and result.status in COMMAND_DONE:
            reply.result = result
            return first
        self._prepared.pop(reply.statement, None)
        if result is not None and result.status == pq.ExecStatus.PIPELINE_ABORTED:
            reply.failure = first or Failure("a statement before it failed")
            return first
        found = (
            failure_of(result, reply.number) if result is not None else Failure("the server said nothing", lost=True)
        )
        if found.lost:
            raise self._gone(found.message, found)
        reply.failure = found
        return first or (found if reply.number > self._owed else None)

    def _flush(self, patience: float) -> None:
        while self._pgconn.flush():
            if self._wait(select.POLLIN | select.POLLOUT, patience) & ~select.POLLOUT:
                self._pgconn.consume_input()

    def _next(self, patience: float) -> Any:
        while self._pgconn.is_busy():
            self._wait(select.POLLIN, patience)
            self._pgconn.consume_input()
        return self._pgconn.get_result()

    def _wait(self, events: int, patience: float) -> int:
        """Wait until the socket may be read or written."""
        self._poll.register(self._socket, events)
        found = self._poll.poll(None if patience == math.inf else patience * 1000)
        if not found:
            raise psycopg.OperationalError(f"the server has said nothing for {patience:g} s")
        return found[0][1]

    def _gone(self, message: str, failure: Failure | None = None) -> Failure:
        """Give the connection up, and return why."""
        self.broken = True
        first_line = message.strip().partition("\n")[0] or "the connection was closed"
        said = failure or Failure("")
        lost = Failure(first_line, said.state, lost=True, number=said.number)
        for reply in self._pending:
            if reply is not SYNC and reply.result is None and reply.failure is None:
                reply.failure = lost
        self._pending.clear()
        return lost

    def stream(self, reply: Reply) -> Iterator[tuple[Any, ...]] | None:
        """Return the rows of the statement that was sent last, which are read as they are asked for; None if they came.

        What waits stays with the server, so that a few bulky rows are not all in memory because somebody wants one.

        :raises Failure: what is wrong with the statements before. The rows raise it for their own.
        """
        if not HAS_CHUNKS or not self._pending or self._pending[-1] is not reply or self._stream is not None:
            return None
        self.separate()
        self._settle(reply, self.patience)
        self._pgconn.set_chunked_rows_mode(CHUNK)
        self._stream = Stream(self, reply)
        return self._stream

    def next_chunk(self, reply: Reply, patience: float) -> list[tuple[Any, ...]]:
        """Return some of the rows that are streamed, none behind the last. :raises Failure: what is wrong."""
        self.broken = True
        try:
            result = self._next(patience)
            if result is not None and result.status == pq.ExecStatus.TUPLES_CHUNK:
                self.broken = False
                return self.rows(result)
            failure = self._take(reply, result, None)
            self._next(patience)
        except psycopg.OperationalError as error:
            raise self._gone(str(error)) from None
        self._stream = None
        self._pending.popleft()
        self.broken = False
        if failure is not None:
            with suppress(Failure):
                self._settle(None, patience)
            raise failure
        return []

    def drop_stream(self) -> None:
        """Leave the rest of the rows that are streamed; where that is more than a little, so is the connection."""
        with suppress(Failure):
            end = time.monotonic() + DROPPING
            while self._stream is not None and time.monotonic() < end:
                self._stream.drop(end - time.monotonic())
        self.broken = self.broken or self._stream is not None

    def rows(self, result: Any) -> list[tuple[Any, ...]]:
        """Return the rows of a result."""
        transformer: Any = self._transformer
        transformer.set_pgresult(result)
        return list(transformer.load_rows(0, result.ntuples, tuple))

    # Being there

    def is_there(self) -> bool:
        """Tell whether the connection is good, by what has arrived; after a while without use the server is asked."""
        if not self.broken:
            try:
                self._poll.register(self._socket, select.POLLIN)
                while self._poll.poll(0):
                    self._pgconn.consume_input()
                self._pgconn.is_busy()  # has it read
                self.broken = self.broken or self._pgconn.status != pq.ConnStatus.OK
                if not self.broken and time.monotonic() > self.used + LOOK_AFTER:
                    self._synchronise()
                    self.settle(LOOKING)
            except (Failure, psycopg.OperationalError):
                self.broken = True
        return not self.broken

    def close(self) -> None:
        """End the connection. In a child of the process that made it, its parent's is left alone."""
        self.broken = True
        if self.pid == os.getpid():
            self.connection.close()
        else:
            ABANDONED.append(self)
            with open(os.devnull, "rb+", buffering=0) as nowhere:  # noqa: PTH123 - a device
                os.dup2(nowhere.fileno(), self._socket)


ABANDONED: list[Link] = []  # connections of a parent, which are never ended here


class Stream:
    """The rows of a statement, each read when it is asked for."""

    def __init__(self, link: Link, reply: Reply) -> None:
        self._link = link
        self._reply = reply
        self._rows: deque[tuple[Any, ...]] = deque()
        self._over = False

    def __iter__(self) -> Stream:
        return self

    def __next__(self) -> tuple[Any, ...]:
        if not self._rows and not self._over:
            self._fetch(self._link.patience)
        if not self._rows:
            raise StopIteration
        return self._rows.popleft()

    def _fetch(self, patience: float) -> None:
        """Take some more. :raises Failure: what is wrong."""
        self._over = True  # where this raises
        found = self._link.next_chunk(self._reply, patience)
        self._rows += found
        self._over = not found

    def take_rest(self) -> None:
        """Take what is left, because something else is to be asked for. :raises Failure: what is wrong."""
        while not self._over:
            self._fetch(self._link.patience)

    def drop(self, patience: float) -> None:
        """Take some more, for nobody."""
        self._rows.clear()
        self._fetch(patience)


class Pool:
    """The connections of a process: as many as are needed at once, up to a size."""

    def __init__(self, connect: Callable[[], Link], size: int, is_passing: Callable[[Exception], bool]) -> None:
        """Make an empty pool.

        :param is_passing: tells of what is raised by `connect` whether it may work soon.
        """
        self.size = size
        self.losses = 0  # times that connections were found gone
        self._connect = connect
        self._is_passing = is_passing
        self._free: list[Link] = []  # the one that was used last at its end
        self._users: dict[int, int] = {}  # connections in use, by thread
        self._making = 0  # of those, how many are not there yet
        lock = threading.RLock()
        self._changed = threading.Condition(lock)
        self._emptied = threading.Condition(lock)  # so that who waits for that takes no news from the others
        self._out_since: float | None = None

    def take(self, patience: float) -> Link:
        """Return a connection that is there.

        :raises Exhausted: when none becomes free in time.
        :raises Exception: what `connect` does.
        """
        end = time.monotonic() + patience
        while True:
            link = self._take_free(end)
            if link is None:
                link = self._make(end)
            elif not link.is_there():
                self.losses += 1
                self.give(link)
                continue
            if link is not None:
                return link

    def _take_free(self, end: float) -> Link | None:
        """Return a free connection, None where one may be made."""
        with self._changed:
            if not self._changed.wait_for(self._has_room, end - time.monotonic()):
                raise Exhausted
            thread = threading.get_ident()
            self._users[thread] = self._users.get(thread, 0) + 1
            return self._free.pop() if self._free else None

    def _has_room(self) -> bool:
        return bool(self._free) or sum(self._users.values()) < self.size

    def _make(self, end: float) -> Link | None:
        """Make a connection. None where that failed, and is to be tried again.

        At the beginning of an outage it is tried for a moment, and while others have connections, one of which may
        come back, for as long as the caller waits.
        """
        with self._changed:
            self._making += 1
        try:
            link = self._connect()
        except BaseException as error:
            now = time.monotonic()
            began = self._out_since = self._out_since or now
            others = self._count_out(making=True)
            if not isinstance(error, Exception) or not self._is_passing(error):
                raise
            if now + PAUSE > (end if others else min(end, began + OUTAGE)):
                raise
            with self._changed:
                self._changed.wait(PAUSE)
            return None
        self._out_since = None
        with self._changed:
            self._making -= 1
        return link

    def _count_out(self, *, making: bool = False) -> int:
        """Count a connection less for this thread. Return how many are in use."""
        with self._changed:
            thread = threading.get_ident()
            self._making -= making
            self._users[thread] -= 1
            if not self._users[thread]:
                del self._users[thread]
            self._changed.notify()
            self._emptied.notify()
            return sum(self._users.values()) - self._making

    def give(self, link: Link) -> None:
        """Take a connection back, which is closed where it is of no more use."""
        now = link.used = time.monotonic()
        good = not link.broken and link.pid == os.getpid() and now < link.made + LIFETIME
        old: list[Link] = [] if good else [link]
        with self._changed:
            if good:
                self._free.append(link)
            while self._free and (link.broken or self._free[0].used < now - IDLE):
                old.append(self._free.pop(0))  # with a lost one all: there may be another server by now
            self._count_out()
        for each in old:
            each.close()

    def close(self) -> None:
        """Close the connections that nobody uses."""
        with self._changed:
            free, self._free = self._free, []
        for link in free:
            link.close()

    @property
    def is_used(self) -> bool:
        """Whether there is a connection."""
        return bool(self._free or self._users)

    def hold(self) -> None:
        """Wait until no other thread uses a connection, and let none."""
        self._changed.acquire()
        while self._users.keys() - {threading.get_ident()}:
            self._emptied.wait()

    def let_go(self) -> None:
        """Let connections be used again."""
        self._changed.release()
