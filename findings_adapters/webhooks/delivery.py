"""Who delivers to webhooks, and when: one process of all that serve a database, in threads of its own.

Which one it is says a lease in the database, which it renews for as long as there is anything to deliver; where it
dies, another one takes over once that has run out. Each hook has one delivery under way at most, of the first event
behind its place, and its place moves once that has succeeded: what was under way when a process died is sent again. The
threads hold no connection while they send, and what they store is a short transaction.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from functools import partial
from typing import Any

from msgspec import Struct

import findings_service as heart
from findings_adapters.webhooks import hooks, messages, sending
from findings_features.events import Event, select_events

LOOK_PAUSE = 1.0  # seconds between two looks whether there is anything to deliver
LEASE = 30.0  # seconds; it is renewed in the last two thirds of them
THREADS = 8
TURN = 10.0  # seconds that a hook has, before others that wait have theirs
AT_ONCE = 100  # events that are read at once while none of them is wanted
SKIPPED = 10_000  # entries of the history that nobody wants, before the place behind them is stored
LAST_ATTEMPTS = 2.0  # seconds that there are for what is under way when the service stops
STORE_AGAIN = 1.0  # seconds until it is tried again to store what became of an attempt
RESTING = 10.0  # seconds until a hook is tried again where the service itself failed
RETRY_PAUSES = (
    5.0,
    300.0,
    1800.0,
    7200.0,
    18_000.0,
    36_000.0,
    86_400.0,
)  # seconds behind each failed attempt but the last
GONE = 410

HookKey = tuple[str, str]  # a client's id and a hook's


class Place(Struct, frozen=True):
    """How far the history was looked at for a hook that stood at `behind`, and wanted nothing up to `end`."""

    behind: int
    end: int


class Found(Struct, frozen=True):
    """The next event for a hook, None where there is none; `seq` is its entry's, else the last that was looked at."""

    seq: int
    told: messages.ToldEvent | None = None


# The lease


def take_lease(connection: heart.Connection, holder: str) -> bool:
    """Take the lease, or renew it. Return whether it is ours."""
    written = connection.execute(
        """INSERT INTO delivery_lease (id, holder, expires_at) VALUES (1, ?, ?)
           ON CONFLICT (id) DO UPDATE SET holder = excluded.holder, expires_at = excluded.expires_at
           WHERE delivery_lease.holder = excluded.holder OR delivery_lease.expires_at < ?""",
        (holder, heart.timestamp(ago=-LEASE), heart.timestamp()),
    )
    return written.rowcount == 1


def lease_of(connection: heart.Connection) -> tuple[str, str]:
    """Return who has the lease, and until when; two empty texts where nobody has."""
    row = connection.execute("SELECT holder, expires_at FROM delivery_lease WHERE id = 1").fetchone()
    return (row[0], row[1]) if row else ("", "")


# The store


def select_waiting(connection: heart.Connection, now: str) -> list[tuple[hooks.Hook, int]]:
    """Return the hooks of all clients that may have something delivered now, each with its client's last entry."""
    rows = connection.execute(
        f"""SELECT {hooks.HOOK_COLUMNS}, (
                SELECT MAX(seq) FROM history WHERE history.client_id = webhooks.client_id) AS newest
            FROM webhooks WHERE state = 'on' AND (next_attempt_at IS NULL OR next_attempt_at <= ?)""",
        (now,),
    )
    return [(hooks.Hook(*row), newest or 0) for *row, newest in rows]


def update_hook(connection: heart.Connection, hook: hooks.Hook, **columns: str | int | None) -> bool:
    """Change a hook, unless somebody else has meanwhile. Return whether it is changed."""
    assigned = ", ".join(f"{name} = ?" for name in columns)
    changed = connection.execute(
        f"""UPDATE webhooks SET {assigned}
            WHERE client_id = ? AND id = ? AND history_seq = ? AND attempts = ? AND state = 'on'""",
        (*columns.values(), hook.client_id, hook.id, hook.behind, hook.attempts),
    )
    return changed.rowcount == 1


NOTHING_FAILED: dict[str, Any] = {"attempts": 0, "next_attempt_at": None, "last_error": None}


def note_success(connection: heart.Connection, hook: hooks.Hook, seq: int) -> None:
    """Note that an event is delivered, and that a hook is done with it."""
    update_hook(connection, hook, history_seq=seq, last_delivery_at=heart.timestamp(), **NOTHING_FAILED)


def note_failure(connection: heart.Connection, hook: hooks.Hook, seq: int, outcome: sending.Outcome) -> None:
    """Note that an event was not delivered: a hook stands right before it, to try again later, or is off."""
    attempts = hook.attempts + 1 if seq == hook.behind + 1 else 1  # else those were of another, which is gone
    is_over = outcome.status == GONE or attempts > len(RETRY_PAUSES)
    later = None if is_over else heart.timestamp(ago=-max(RETRY_PAUSES[attempts - 1], outcome.asked))
    state, error = "off" if is_over else "on", outcome.error
    columns = {"history_seq": seq - 1, "attempts": attempts, "next_attempt_at": later, "last_error": error}
    if update_hook(connection, hook, **columns, state=state) and is_over:
        heart.log.warning("webhook %s of client %s is off: %s", hook.id, hook.client_id, error)


# What is next


def verdict_on(
    database: heart.Database, hook: hooks.Hook, told: messages.ToldEvent, base_url: str
) -> messages.ToldEvent | None:
    """Return an event with all that it tells; None where a hook does not want it, or its run is gone."""
    if told.type == "run.finished":
        try:
            with database.apart() as connection:
                messages.add_verdict(connection, hook.client_id, told, base_url)
        except heart.Missing:
            return None
    return told if messages.reaches(told, hook.min_severity) else None


def seq_of(event: Event) -> int:
    """Return the seq of an event's entry in the history."""
    return int(event.id.rpartition("-")[2])


def find_next(database: heart.Database, hook: hooks.Hook, behind: int, base_url: str) -> Found:
    """Return the next event behind a place that a hook wants, as it stands now."""
    limit, goes_on = 1, True
    while goes_on:
        with database.snapshot() as connection:
            page = select_events(connection, hook.client_id, behind, limit, hook.wanted)
            events = [*page.events]
        for event in events:
            if told := verdict_on(database, hook, messages.told_event(event, base_url), base_url):
                return Found(seq_of(event), told)
        behind, goes_on, limit = page.end, page.goes_on, min(4 * limit, AT_ONCE)
    return Found(behind)


# Delivering


class Deliverer:
    """What delivers for a process that serves, while it has the lease."""

    def __init__(self, service: heart.Service) -> None:
        self._service, self._database = service, service.database
        self._holder = secrets.token_hex(16)
        self._leased_until = 0.0  # as time.monotonic has it
        self._places: dict[HookKey, Place] = {}
        self._resting: dict[HookKey, float] = {}
        self._under_way: dict[HookKey, Future[None]] = {}
        self._threads = ThreadPoolExecutor(THREADS, "findings-webhook")
        self._stopping, self._ended = threading.Event(), False
        self._looking: threading.Thread | None = None

    def start(self) -> None:
        """Begin to look for what is to be delivered."""
        self._looking = threading.Thread(target=self._work, name="findings-webhooks", daemon=True)
        self._looking.start()

    def stop(self) -> None:
        """End, and give the lease back. What is under way has a moment, and is else sent again another time."""
        self._stopping.set()
        if self._looking:
            self._looking.join()
        wait(self._under_way.values(), LAST_ATTEMPTS)
        self._ended = True  # for what is left behind: the database is closed now
        self._threads.shutdown(wait=False, cancel_futures=True)
        if self._leased_until:
            self._give_back()

    def _give_back(self) -> None:
        try:
            with self._database.transaction() as connection:
                connection.execute("DELETE FROM delivery_lease WHERE holder = ?", (self._holder,))
        except Exception as error:
            heart.log.warning("the lease of webhook deliveries is left to run out: %s", error)

    def _work(self) -> None:
        while not self._stopping.wait(LOOK_PAUSE):
            try:
                self.look()
            except Exception as error:  # it must not end by it
                self._tell(error)

    def _tell(self, error: Exception) -> None:
        """Log what is no error of the database's: those pass, or are told of elsewhere."""
        if heart.known_error(error) is None:
            heart.log.error("delivering to webhooks failed", exc_info=error)

    def look(self) -> Iterable[Future[None]]:
        """Have delivered what is due, where it is this process that does. Return what is under way."""
        self._under_way = {key: each for key, each in self._under_way.items() if not each.done()}
        due = self._due()
        if (due or self._under_way) and self._hold_lease():
            self._under_way |= {key: self._threads.submit(self._serve, key) for key in due}
        return self._under_way.values()

    def _due(self) -> list[HookKey]:
        """Return the hooks that something has happened for, in the order in which they were served last."""
        with self._database.reading() as connection:
            waiting = select_waiting(connection, heart.timestamp())
        due = []
        for hook, newest in waiting:
            key = hook.client_id, hook.id
            is_free = key not in self._under_way and self._resting.get(key, 0.0) <= time.monotonic()
            if is_free and newest > self._looked_to(hook):
                due.append(key)
        return due

    def _looked_to(self, hook: hooks.Hook) -> int:
        """Return the entry up to which a hook is known to want nothing."""
        place = self._places.get((hook.client_id, hook.id))
        return place.end if place and place.behind == hook.behind else hook.behind

    def _hold_lease(self) -> bool:
        """Tell whether this process may deliver, which it takes or renews the right to where it can."""
        began = time.monotonic()
        if began < self._leased_until - LEASE * 2 / 3:
            return True
        with self._database.reading() as connection:
            holder, expires_at = lease_of(connection)
        if holder != self._holder and expires_at >= heart.timestamp():
            return False
        with self._database.transaction() as connection:
            self._leased_until = began + LEASE if take_lease(connection, self._holder) else 0.0
        return self._may_send()

    def _may_send(self) -> bool:
        return time.monotonic() < self._leased_until and not self._stopping.is_set()

    def _serve(self, key: HookKey) -> None:
        """Deliver to a hook what it wants, one event after the other, until that fails or its turn is over."""
        end = time.monotonic() + TURN
        try:
            while self._may_send() and time.monotonic() < end and self._deliver(*key):
                pass
        except Exception as error:
            self._resting[key] = time.monotonic() + RESTING
            self._tell(error)

    def _deliver(self, client_id: str, hook_id: str) -> bool:
        """Deliver the next event to a hook. Return whether another may be next."""
        with self._database.reading() as connection:
            hook = hooks.find_hook(connection, client_id, hook_id)
        if hook is None or hook.state == "off":
            return False
        settings = self._service.settings
        found = find_next(self._database, hook, self._looked_to(hook), settings.base_url)
        if found.told is None:
            self._pass_over(hook, found.seq)
            return False
        body = messages.body_of(found.told, hook.format)
        outcome = sending.send(hook.url, hook.secret, found.told.id, body, private=settings.webhook_private)
        for listener in self._service.listeners.delivered:
            listener(outcome.error is None)
        if outcome.error is None:
            self._store(partial(note_success, hook=hook, seq=found.seq))
        else:
            self._store(partial(note_failure, hook=hook, seq=found.seq, outcome=outcome))
        return outcome.error is None

    def _pass_over(self, hook: hooks.Hook, end: int) -> None:
        """Remember that a hook wants nothing up to an entry, and store that where the way there was long."""
        self._places[hook.client_id, hook.id] = Place(hook.behind, end)
        if end - hook.behind >= SKIPPED or hook.attempts:
            self._store(partial(update_hook, hook=hook, history_seq=end, **NOTHING_FAILED))

    def _store(self, note: Callable[[heart.Connection], object]) -> None:
        """Store what became of an attempt, until that is possible: what was delivered would be sent again.

        It is no client's transaction, so that neither waits for the client's other writers, nor they for this.
        """
        while not self._ended:
            try:
                with self._database.transaction() as connection:
                    note(connection)
                return
            except Exception as error:
                if heart.known_error(error) is None or self._stopping.wait(STORE_AGAIN):
                    raise


@contextmanager
def delivering(service: heart.Service) -> Iterator[None]:
    """Deliver to webhooks for as long as a server serves."""
    deliverer = Deliverer(service)
    deliverer.start()
    try:
        yield
    finally:
        deliverer.stop()
