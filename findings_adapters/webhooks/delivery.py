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
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from functools import lru_cache
from typing import Any, Self

from findings_adapters.webhooks import hooks, messages, sending
from findings_features.events import select_events
from findings_service import (
    Connection,
    Missing,
    Service,
    known_error,
    log,
    select_revision,
    timestamp,
)

LOOK_PAUSE = 1.0  # seconds between two looks whether there is anything to deliver
LEASE = 20.0  # seconds; whoever has something to deliver asks for it, or renews it, each third of them
LOCK_PATIENCE = 1.0  # seconds to wait for others who write, where a stop must not wait for them
THREADS = 8
TURN = 10.0  # seconds that a hook has, before others that wait have theirs
SKIPPED = 10_000  # entries of the history that nobody wants, before the place behind them is stored
LAST_ATTEMPTS = 2.0  # seconds that there are for what is under way when the service stops
STORE_AGAIN = 1.0  # seconds until it is tried again to store what became of an attempt
# Seconds behind each failed attempt but the last.
RETRY_PAUSES = (5.0, 300.0, 1800.0, 7200.0, 18_000.0, 36_000.0, 86_400.0)
GONE = 410
VERDICTS = 16  # on finished runs that are kept for other hooks


# The store


# Takes the lease, or renews it. One that ends too far from now was taken before somebody set a clock back, and is over,
# too.
TAKE_LEASE = """INSERT INTO delivery_lease (id, holder, expires_at) VALUES (1, ?, ?)
    ON CONFLICT (id) DO UPDATE SET holder = excluded.holder, expires_at = excluded.expires_at
    WHERE delivery_lease.holder = excluded.holder OR delivery_lease.expires_at NOT BETWEEN ? AND ?"""
# An attempt later than the longest pause was noted while the clock was ahead, and is due.
MAY_BE_DUE = "state = 'on' AND (next_attempt_at IS NULL OR next_attempt_at NOT BETWEEN ? AND ?)"


def move_on(connection: Connection, hook: hooks.Hook, end: int, delivered_at: str | None = None) -> None:
    """Have a hook be done with the history up to an entry, unless somebody has moved it meanwhile."""
    connection.execute(
        """UPDATE webhooks SET history_seq = ?, attempts = 0, next_attempt_at = NULL, last_error = NULL,
               last_delivery_at = COALESCE(?, last_delivery_at)
           WHERE client_id = ? AND id = ? AND history_seq = ?""",
        (end, delivered_at, *hook.key, hook.history_seq),
    )


def note_failure(connection: Connection, hook: hooks.Hook, seq: int, outcome: sending.DeliveryResult) -> None:
    """Note that an event was not delivered: a hook stands right before it, to try again later, or is off."""
    attempts = hook.attempts + 1 if seq == hook.history_seq + 1 else 1  # else those were of another, which is gone
    is_over = outcome.status == GONE or attempts > len(RETRY_PAUSES)
    later = None if is_over else timestamp(ago=-max(RETRY_PAUSES[attempts - 1], outcome.asked))
    state = "off" if is_over else "on"
    changed = connection.execute(
        """UPDATE webhooks SET history_seq = ?, attempts = ?, next_attempt_at = ?, last_error = ?, state = ?
           WHERE client_id = ? AND id = ? AND history_seq = ? AND attempts = ?""",
        (seq - 1, attempts, later, outcome.error, state, *hook.key, hook.history_seq, hook.attempts),
    )
    if is_over and changed.rowcount:
        client_id, hook_id = hook.key
        log.warning("webhook %s of client %s is off: %s", hook_id, client_id, outcome.error)


# Delivering


class Deliverer:
    """What delivers for a process that serves, while it has the lease: `with Deliverer(service): …`."""

    def __init__(self, service: Service) -> None:
        self._service, self._database = service, service.database
        self._holder = secrets.token_hex(16)
        self._leased_until = self._ask_at = 0.0  # as time.monotonic has it
        # The entry up to which each hook wanted nothing, by where it stood then.
        self._looked_at: dict[hooks.HookKey, dict[int, int]] = {}
        self._under_way: dict[hooks.HookKey, Future[None]] = {}
        self._judging = threading.Lock()
        self._verdict = lru_cache(VERDICTS)(self._select_verdict)
        self._threads = ThreadPoolExecutor(THREADS, "findings-webhook")
        self._stopping, self._ended = threading.Event(), False
        self._looking = threading.Thread(target=self._work, name="findings-webhooks", daemon=True)

    def __enter__(self) -> Self:
        self._looking.start()
        return self

    def stop(self, *_: object) -> None:
        """End, and give the lease back. What is under way has a moment, and is else sent again another time."""
        self._stopping.set()
        if self._looking.is_alive():
            self._looking.join()
        wait(self._under_way.values(), LAST_ATTEMPTS)
        self._ended = True  # for what is left behind: the database is closed now
        self._threads.shutdown(wait=False, cancel_futures=True)
        if self._leased_until:
            with suppress(Exception), self._database.transaction(patience=LOCK_PATIENCE) as connection:
                connection.execute("DELETE FROM delivery_lease WHERE holder = ?", (self._holder,))  # else it runs out

    __exit__ = stop

    def _work(self) -> None:
        while not self._stopping.wait(LOOK_PAUSE):
            try:
                self.look()
            except Exception as error:  # it must not end by it
                self._tell(error)

    def _tell(self, error: Exception) -> None:
        """Log what is no error of the database's: those pass, or are told of elsewhere."""
        if known_error(error) is None:
            log.error("delivering to webhooks failed", exc_info=error)

    def look(self) -> Iterable[Future[None]]:
        """Have delivered what is due, where it is this process that does. Return what is under way."""
        self._under_way = {key: each for key, each in self._under_way.items() if not each.done()}
        with self._database.reading() as connection:
            now, latest = timestamp(), timestamp(ago=-RETRY_PAUSES[-1])
            waiting = hooks.select_hooks(connection, MAY_BE_DUE, now, latest)
        news = (hook.key for hook in waiting if hook.newest > self._looked_to(hook))
        due = [key for key in news if key not in self._under_way]
        if (due or self._under_way) and self._hold_lease():
            self._under_way |= {key: self._threads.submit(self._serve, key) for key in due}
        return self._under_way.values()

    def _looked_to(self, hook: hooks.Hook) -> int:
        """Return the entry up to which a hook is known to want nothing."""
        return self._looked_at.get(hook.key, {}).get(hook.history_seq, hook.history_seq)

    def _hold_lease(self) -> bool:
        """Tell whether this process may deliver."""
        now = time.monotonic()
        if now >= self._ask_at:
            times = (timestamp(ago=-LEASE), timestamp(), timestamp(ago=-2 * LEASE))
            with self._database.transaction(patience=LOCK_PATIENCE) as connection:
                taken = connection.execute(TAKE_LEASE, (self._holder, *times)).rowcount
                self._leased_until = now + LEASE if taken == 1 else 0.0
            self._ask_at = now + LEASE / 3
        return self._may_send()

    def _may_send(self) -> bool:
        return time.monotonic() < self._leased_until and not self._stopping.is_set()

    def _serve(self, key: hooks.HookKey) -> None:
        """Deliver to a hook what it wants, one event after the other, until that fails or its turn is over."""
        end = time.monotonic() + TURN
        try:
            while self._may_send() and time.monotonic() < end and self._deliver(key):
                pass
        except Exception as error:
            self._tell(error)

    def _deliver(self, key: hooks.HookKey) -> bool:
        """Deliver the next event to a hook. Return whether another may be next."""
        with self._database.reading() as connection:
            hook = hooks.select_hook(connection, *key)
        if hook.shown.state == "off":
            return False
        seq = hook.history_seq + 1
        try:
            seq, told = self._find_next(hook)
            if told is None:  # which is remembered, and stored where the way there was long
                self._looked_at[key] = {hook.history_seq: seq}
                if seq - hook.history_seq >= SKIPPED or hook.attempts:
                    self._store(move_on, hook, seq)
                return False
            if not self._may_send():
                return False
            body, private = messages.body_of(told, hook.shown.format), self._service.settings.webhook_private
            outcome = sending.send(hook.shown.url, hook.secret, told.id, body, private=private)
        except Exception as error:
            if known_error(error):
                raise
            self._tell(error)
            outcome = sending.DeliveryResult(error="failed here")
        if outcome.error is None:
            self._store(move_on, hook, seq, timestamp())
        else:
            self._store(note_failure, hook, seq, outcome)
        return outcome.error is None

    def _find_next(self, hook: hooks.Hook) -> tuple[int, messages.ToldEvent | None]:
        """Return the seq of the next event that a hook wants, and that as it stands now; or how far there is none."""
        base_url, behind, goes_on = self._service.settings.base_url, self._looked_to(hook), True
        while goes_on and self._may_send():
            with self._database.snapshot() as connection:
                page = select_events(connection, hook.key[0], behind, 1, hook.wanted)
                events = [*page.events]
            for event in events:
                told = messages.told_event(event, base_url)
                if self._add_verdict(hook.key[0], told) and messages.reaches(told, hook.shown.min_severity):
                    return int(event.id.rpartition("-")[2]), told
            behind, goes_on = page.end, page.goes_on
        return behind, None

    def _add_verdict(self, client_id: str, told: messages.ToldEvent) -> bool:
        """Add the verdict on a finished run, which all hooks share. Return whether the run is still there."""
        if told.type != "run.finished" or not told.run:
            return True
        with self._judging:
            with self._database.reading() as connection:
                key = (client_id, told.run.id, select_revision(connection, client_id))
            try:
                told.gate, told.new_findings = self._verdict(*key)
            except Missing:
                return False
        return True

    def _select_verdict(self, client_id: str, run_id: str, _revision: int) -> Any:
        """Return the verdict on a finished run at a revision of the client."""
        with self._database.apart("webhook") as connection:
            return messages.select_verdict(connection, client_id, run_id, self._service.settings.base_url)

    def _store(self, note: Callable[..., object], *given: Any) -> None:
        """Store what became of an attempt, until that is possible: what was delivered would be sent again.

        It is no client's transaction, so that neither waits for the client's other writers, nor they for this.
        """
        while not self._ended:
            try:
                with self._database.transaction() as connection:
                    note(connection, *given)
                return
            except Exception as error:
                if known_error(error) is None or self._stopping.wait(STORE_AGAIN):
                    raise
