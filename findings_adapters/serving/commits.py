"""The one thread that writes, and does the maintenance: writes that wait share a transaction, and so an fsync."""

from __future__ import annotations

import asyncio
import os
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
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
    as_service_error,
    idle_slices,
    is_busy,
    known_error,
    log,
    problem_response,
    timestamp,
)

LAST_WORDS = 0.5  # seconds that there are to say why a process ends


def needed_thread(work: Callable[[], object], name: str) -> threading.Thread:
    """Return a thread without which the process is of no use: where its work fails, that ends, and at once.

    Half of a service would keep its clients waiting for ever. Nothing that was acknowledged is lost by it.
    """

    def guarded() -> None:
        try:
            work()
        except BaseException:
            threading.Timer(LAST_WORDS, os._exit, (1,)).start()  # perhaps nobody reads them
            write_unlocked(f"the thread {name} failed, and so the process ends\n{traceback.format_exc()}")
            os._exit(1)

    return threading.Thread(target=guarded, name=name, daemon=True)


class Write(Struct, eq=False):
    """A write that waits for its transaction."""

    pending: PendingWrite
    future: asyncio.Future[Response]
    answer: Any = None


MAINTENANCE_PAUSE = 2.0  # seconds between two turns of it
FORGETTING = 600.0  # seconds between two searches for runs that are too old
WARNED_FOR = 86_400.0  # seconds between two warnings that a client's runs are not forgotten
SLICE_PAUSE = 0.05  # seconds between two steps of failing or forgetting runs, for the requests


def maintenance_steps(database: Database) -> Iterator[float]:
    """Do the maintenance for ever, one step at a time; each gives the seconds until the next.

    The runs that nobody uses any more are failed, the engine gets what it wants done, and then, by one process of
    several, the runs that are older than the settings keep are forgotten. Where the thread has nothing else to do
    it waits for locks: a client that always writes would keep it from all others.
    """
    settings, patience = database.settings, None if database.threads else 0
    if settings.keep:
        import findings_features.deletion as deletion
    old: Iterator[object] | None = None  # the search for old runs that is under way
    next_search = 0.0
    warned: dict[str, float] = {}  # clients, each with the time of its next warning

    def refuse(client_id: str) -> None:
        if time.monotonic() >= warned.get(client_id, 0.0):
            warned[client_id] = time.monotonic() + WARNED_FOR
            log.warning(
                "FINDINGS_KEEP would remove more than half of the finished runs of client %r, so none are removed. If"
                " the system clock is right, run: findings-service prune --finished-before %.0fs --yes",
                client_id,
                settings.keep,
            )

    while True:
        again = time.monotonic() + MAINTENANCE_PAUSE
        try:
            database.write_uses(patience)
            is_ours = database.owns_maintenance()
            if is_ours or not database.threads:
                for _ in idle_slices(database, settings.run_timeout, patience):
                    yield SLICE_PAUSE
            database.run_maintenance()
            if not database.trusts_clock():
                old = None
            elif settings.keep and is_ours and time.monotonic() >= next_search:
                old = old or deletion.prune_slices(database, timestamp(ago=settings.keep), patience, refuse)
            while old and time.monotonic() < again:
                if next(old, None) is None:
                    old, next_search = None, time.monotonic() + FORGETTING
                yield SLICE_PAUSE
        except GeneratorExit:
            raise
        except BaseException as error:  # a thread of its own, or the one that writes, must not end by it
            if known_error(error) is None:
                log.error("the maintenance failed", exc_info=error)
            if not is_busy(error):
                next_search = time.monotonic() + FORGETTING
            old = None
        yield max(0.0, again - time.monotonic())


TRANSACTION_ENDED = "writing failed, or the disk is full"


def apply_in_group(pending: PendingWrite, connection: Connection) -> Response:
    """Store a write wholly, or not at all, in the transaction of its group.

    :raises StorageFull: when there is no transaction any more.
    """
    if not connection.in_transaction:  # or the savepoint would be one
        raise StorageFull(TRANSACTION_ENDED)
    connection.execute("SAVEPOINT request")
    before = connection.transaction.counters.changes.copy()
    try:
        answer = pending.apply(connection)
        connection.execute("RELEASE request")
    except BaseException:
        connection.transaction.counters.changes = before
        if connection.in_transaction:
            connection.execute("ROLLBACK TO request")
            connection.execute("RELEASE request")
        raise
    return answer


GATHERING = 0.1  # of the time that a COMMIT takes
GROUP_TIME = 0.05  # seconds after which a group of writes is committed, whoever else waits
SHORTEST_WAIT = 0.25  # seconds in the queue before a write is refused, where the settings allow no waiting at all


class CommitScheduler:
    """The one thread that writes, and does the maintenance, where a database has one writer.

    The writes that wait share a transaction, in the order in which they came, each in a savepoint. All share one fsync,
    and are answered when the COMMIT is through; when it fails, all of them have failed. The next group gathers
    meanwhile.
    """

    def __init__(self, database: Database, listeners: Listeners) -> None:
        self.database, self._listeners = database, listeners
        self._waiting: deque[Write] = deque()
        self._maintenance = maintenance_steps(database)
        self._next_step = time.monotonic() + MAINTENANCE_PAUSE
        self._gathering = 0.0  # seconds until a group begins: those of the last one are about to write again
        self._stopping = False
        self._bell = threading.Event()
        self._thread = needed_thread(self._work, "findings-writer")

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Finish what waits, and end the thread."""
        self._stopping = True
        self._bell.set()
        self._thread.join()

    async def commit(self, pending: PendingWrite) -> Response:
        """Return the answer to a write once it is durable or refused, which it is after `busy_timeout` in the queue."""
        loop = asyncio.get_running_loop()
        write = Write(pending, loop.create_future())
        self._waiting.append(write)
        loop.call_soon(self._bell.set)  # behind the requests that came together with this one
        patience = max(SHORTEST_WAIT, self.database.settings.busy_timeout)
        answered, _ = await asyncio.wait([write.future], timeout=patience)
        if not answered:
            with suppress(ValueError):  # the writer thread may take it at the same time
                self._waiting.remove(write)
                return problem_response(Busy("Other requests, or another process, write for too long"))
        return await write.future

    def _work(self) -> None:
        while self._waiting or not self._stopping:
            if not self._waiting:
                self._bell.wait(max(0.0, self._next_step - time.monotonic()))
                self._bell.clear()
            if self._waiting:
                time.sleep(self._gathering)
                self._commit_group()
            if time.monotonic() >= self._next_step:
                self._next_step = time.monotonic() + next(self._maintenance)

    def _commit_group(self) -> None:
        """Run writes until they are all done or their time is over, commit, and have them answered."""
        group: list[Write] = []
        try:
            with self.database.transaction() as connection:
                end = time.monotonic() + GROUP_TIME
                with suppress(IndexError):  # those in the queue may expire
                    while connection.in_transaction and time.monotonic() < end:
                        group.append(write := self._waiting.popleft())
                        write.answer = write.pending.request.attempt(apply_in_group, write.pending, connection)
                if not connection.in_transaction:
                    raise StorageFull(TRANSACTION_ENDED)
                committing = time.monotonic()
            self._gathering = (time.monotonic() - committing) * GATHERING if len(group) > 1 else 0
        except BaseException as error:
            if not group and (self._stopping or not is_busy(error)):  # else each of them expires by itself
                with suppress(IndexError):
                    while True:
                        group.append(self._waiting.popleft())
            for write in group:
                write.answer = problem_response(as_service_error(error, write.pending.request.environ))
        else:
            try:
                for listener in self._listeners.committed:
                    listener(len(group))
            except BaseException as error:  # what they do with that is no reason to leave anybody waiting
                log.error("counting a group failed", exc_info=error)
        if group:
            self._settle(group)

    def _settle(self, writes: Sequence[Write]) -> None:
        """Have the event loop give requests their answers, unless their clients have gone."""

        def settle() -> None:
            for write in writes:
                if not write.future.done():
                    write.future.set_result(write.answer)

        with suppress(RuntimeError):  # the loop has ended, and with it whoever waited
            writes[0].future.get_loop().call_soon_threadsafe(settle)
