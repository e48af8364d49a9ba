"""The writer thread: it commits writes in groups with one fsync, and runs the maintenance."""

from __future__ import annotations

import asyncio
import os
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from msgspec import Struct

from findings_features.streams import write_unlocked
from findings_service import (
    Busy,
    Connection,
    Database,
    Listeners,
    PendingWrite,
    Response,
    StorageFull,
    apply_writes,
    as_service_error,
    due_slices,
    is_busy,
    known_error,
    log,
    problem_response,
    timestamp,
)

EXIT_DELAY = 0.5  # seconds for writing the reason of an exit to standard error


def critical_thread(work: Callable[[], object], name: str) -> threading.Thread:
    """Return a thread, not yet started, that ends the process at once if `work` raises.

    If the process ran on without it, requests would wait forever. No acknowledged write is lost by the exit.
    """

    def guarded() -> None:
        try:
            work()
        except BaseException:
            threading.Timer(EXIT_DELAY, os._exit, (1,)).start()  # in case standard error is a full pipe
            write_unlocked(f"the thread {name} failed, so the process exits\n{traceback.format_exc()}")
            os._exit(1)

    return threading.Thread(target=guarded, name=name, daemon=True)


class Write(Struct, eq=False):
    """A queued write, its response (`answer`) once there is one, and the future through which the caller gets it."""

    pending: PendingWrite
    future: asyncio.Future[Response]
    answer: Any = None


MAINTENANCE_PAUSE = 2.0  # seconds between two rounds of maintenance
PRUNE_INTERVAL = 600.0  # seconds between two searches for runs that finished more than FINDINGS_KEEP ago
WARNING_INTERVAL = 86_400.0  # seconds between two warnings that a client's old runs are not removed
SLICE_PAUSE = 0.05  # seconds between two steps that fail or remove runs, in which requests are served


def maintenance_steps(database: Database) -> Iterator[float]:
    """Run the maintenance step by step, forever. Yield the seconds to wait after each step.

    A round stores the last uses of keys and runs, fails idle runs, and runs the engine's maintenance. In one of several
    processes, it also deletes runs that finished more than FINDINGS_KEEP ago. With an engine that has threads, it waits
    for locks, so that a client that writes all the time cannot block it. The writer thread of SQLite does not wait.
    """
    settings, patience = database.settings, None if database.threads else 0
    if settings.keep:
        import findings_features.deletion as deletion
    removal: Iterator[object] | None = None  # the removal of runs that is in progress
    next_search = 0.0
    warned: dict[str, float] = {}  # time of the next warning by client

    def refuse(client_id: str) -> None:
        if time.monotonic() >= warned.get(client_id, 0.0):
            warned[client_id] = time.monotonic() + WARNING_INTERVAL
            log.warning(
                "FINDINGS_KEEP would remove more than half of the finished runs of client %r, so it removes none. If"
                " the system clock is right, prune all clients: findings-service prune --finished-before %.0fs --yes",
                client_id,
                settings.keep,
            )

    while True:
        next_round = time.monotonic() + MAINTENANCE_PAUSE
        try:
            database.write_uses(patience)
            is_ours = database.owns_maintenance()
            if is_ours or not database.threads:
                for _ in due_slices(database, settings.run_timeout, patience):
                    yield SLICE_PAUSE
            database.run_maintenance()
            if not database.trusts_clock():
                removal = None
            elif settings.keep and is_ours and time.monotonic() >= next_search:
                removal = removal or deletion.prune_slices(database, timestamp(ago=settings.keep), patience, refuse)
            while removal and time.monotonic() < next_round:
                if next(removal, None) is None:
                    removal, next_search = None, time.monotonic() + PRUNE_INTERVAL
                yield SLICE_PAUSE
        except GeneratorExit:
            raise
        except BaseException as error:  # must not end the thread, which may be the writer thread
            if known_error(error) is None:
                log.error("the maintenance failed", exc_info=error)
            if not is_busy(error):
                next_search = time.monotonic() + PRUNE_INTERVAL
            removal = None
        yield max(0.0, next_round - time.monotonic())


TRANSACTION_ENDED = "writing failed, or the disk is full"


@contextmanager
def savepoint(connection: Connection) -> Iterator[None]:
    """Undo the writes of the block if it raises. :raises StorageFull: if the engine has ended the transaction."""
    if not connection.in_transaction:  # SAVEPOINT would begin a new one
        raise StorageFull(TRANSACTION_ENDED)
    connection.execute("SAVEPOINT request")
    before = connection.transaction.counters.changes.copy()
    try:
        yield
        connection.execute("RELEASE request")
    except BaseException:
        connection.transaction.counters.changes = before
        if connection.in_transaction:
            connection.execute("ROLLBACK TO request")
            connection.execute("RELEASE request")
        raise


GATHERING = 0.1  # wait before a group, as a share of the time of the last COMMIT
MOST_TOGETHER = 50  # maximum number of writes in a joint write
GROUP_TIME = 0.05  # seconds after which a group is committed even if more writes are queued
SHORTEST_WAIT = 0.25  # seconds that a write may be queued if `busy_timeout` is shorter


class CommitScheduler:
    """The writer thread of a database with one writer. It also runs the maintenance.

    Queued writes share a transaction as a commit group, in the order of arrival; some are applied as a joint write.
    They share one fsync and get their responses after the COMMIT. If the COMMIT fails, every write of the group has
    failed. Writes that arrive during a COMMIT form the next group. Each write has a savepoint, except the first: if
    that one fails, the transaction holds no other write, and is rolled back.
    """

    def __init__(self, database: Database, listeners: Listeners) -> None:
        self.database, self._listeners = database, listeners
        self._waiting: deque[Write] = deque()
        self._maintenance = maintenance_steps(database)
        self._next_step = time.monotonic() + MAINTENANCE_PAUSE
        self._gathering = 0.0  # seconds to wait before a group, because callers of the last one may write again at once
        self._stopping = False
        self._wakeup = threading.Event()
        self._thread = critical_thread(self._work, "findings-writer")

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Commit the queued writes, and end the thread."""
        self._stopping = True
        self._wakeup.set()
        self._thread.join()

    async def commit(self, pending: PendingWrite) -> Response:
        """Queue a write. Return its response once it is durable, or a 503 if it was queued for too long."""
        loop = asyncio.get_running_loop()
        write = Write(pending, loop.create_future())
        self._waiting.append(write)
        loop.call_soon(self._wakeup.set)  # after the requests that arrived together with this one
        patience = max(SHORTEST_WAIT, self.database.settings.busy_timeout)
        timer = loop.call_later(patience, self._give_up, write)
        try:
            return await write.future
        finally:
            timer.cancel()

    def _give_up(self, write: Write) -> None:
        with suppress(ValueError):  # the writer thread may take it at the same time
            self._waiting.remove(write)
            write.answer = problem_response(Busy("Writes of other requests or processes took too long"))
            self._settle([write])

    def _work(self) -> None:
        while self._waiting or not self._stopping:
            if not self._waiting:
                self._wakeup.wait(max(0.0, self._next_step - time.monotonic()))
                self._wakeup.clear()
            if self._waiting:
                time.sleep(self._gathering)
                self._commit_group()
            if time.monotonic() >= self._next_step:
                self._next_step = time.monotonic() + next(self._maintenance)

    def _commit_group(self, alone: Sequence[Write] = ()) -> None:
        """Apply queued writes for up to `GROUP_TIME`, commit them, and deliver their responses.

        :param alone: writes to apply before, each alone, because their joint write failed as the first of a group. If
            the database is busy now, they may have been queued for twice the time limit.
        """
        group = [*alone]
        try:
            with self.database.transaction() as connection:
                for write in alone:
                    self._apply_in_savepoint([write], connection)
                end = time.monotonic() + GROUP_TIME
                while connection.in_transaction and time.monotonic() < end and (taken := self._take()):
                    apply = self._apply_in_savepoint if group else self._apply
                    group += taken
                    apply(taken, connection)
                if not connection.in_transaction:
                    raise StorageFull(TRANSACTION_ENDED)
                committing = time.monotonic()
            self._gathering = (time.monotonic() - committing) * GATHERING if len(group) > 1 else 0
        except BaseException as error:
            self._gathering = 0
            if len(group) > 1 and group[0].answer is None and not alone:  # the first write, a joint one, failed
                self._commit_group(group)
                return
            if not group and (self._stopping or not is_busy(error)):  # otherwise each write times out by itself
                with suppress(IndexError):
                    while True:
                        group.append(self._waiting.popleft())
            for write in group:
                write.answer = problem_response(as_service_error(error, write.pending.request.environ))
        else:
            try:
                for listener in self._listeners.committed:
                    listener(len(group))
            except BaseException as error:  # the responses must be sent all the same
                log.error("a commit listener failed", exc_info=error)
        if group:
            self._settle(group)

    def _take(self) -> list[Write]:
        """Remove and return the next write, if there is one, and the following ones for a joint write with it."""
        taken, findings = list[Write](), set[str]()
        with suppress(IndexError, ValueError):  # the queue is empty, or the following write has just timed out
            taken.append(self._waiting.popleft())
            while len(taken) < MOST_TOGETHER and (part := taken[-1].pending.part):
                findings.add(part.finding or "")  # reports without an external id are different findings
                following = self._waiting[0]
                one, other, further = taken[0].pending.request, following.pending.request, following.pending.part
                if further is None or further.store is not part.store or further.finding in findings:
                    break
                if one.sender_and_run != other.sender_and_run:
                    break
                self._waiting.remove(following)
                taken.append(following)
        return taken

    def _apply(self, writes: Sequence[Write], connection: Connection) -> None:
        responses = apply_writes([write.pending for write in writes], connection)
        for write, response in zip(writes, responses, strict=True):
            write.answer = response

    def _apply_in_savepoint(self, writes: Sequence[Write], connection: Connection) -> None:
        """Apply writes together. If that fails, apply each alone, because the reason may be one of them."""
        try:
            with savepoint(connection):
                self._apply(writes, connection)
        except BaseException as error:
            if len(writes) == 1:
                writes[0].answer = problem_response(as_service_error(error, writes[0].pending.request.environ))
                return
            for write in writes:
                self._apply_in_savepoint([write], connection)

    def _settle(self, writes: Sequence[Write]) -> None:
        """Deliver the writes' responses on the event loop. Futures of disconnected callers are done already."""

        def settle() -> None:
            for write in writes:
                if not write.future.done():
                    write.future.set_result(write.answer)

        with suppress(RuntimeError):  # the loop is closed, so no request waits any more
            writes[0].future.get_loop().call_soon_threadsafe(settle)
