"""Delivery of webhook events, by one of the processes that serve a database, in its own threads.

A lease in the database selects the process, which renews it while there is anything to deliver. If it dies, another
process takes over when the lease expires. Each hook has at most one delivery in progress, of the first event after its
position. The position moves after a successful delivery, so a delivery that was in progress when a process died is sent
again. The threads hold no connection while they send, and they store the result in a short transaction.
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
from findings_service import Connection, Missing, Service, known_error, log, select_revision, timestamp

LOOK_PAUSE = 1.0  # seconds between checks for events to deliver
LEASE = 20.0  # seconds; a process with events to deliver acquires or renews it every third of this time
LOCK_PATIENCE = 1.0  # seconds to wait for the write lock, so that a stop is not delayed
THREADS = 8
TURN = 10.0  # seconds for the events of one hook, before the thread is free for another hook
SKIPPED = 10_000  # history entries that a hook skips before its new position is stored
LAST_ATTEMPTS = 2.0  # seconds for deliveries in progress when the service stops
STORE_AGAIN = 1.0  # seconds before another try to store the result of an attempt
# Seconds after each failed attempt except the last.
RETRY_PAUSES = (5.0, 300.0, 1800.0, 7200.0, 18_000.0, 36_000.0, 86_400.0)
GONE = 410
VERDICTS = 16  # cached gate results of finished runs, which several hooks may need


# Database


# Acquires or renews the lease. A lease that ends too far in the future was acquired before a clock was set back; it
# counts as expired.
TAKE_LEASE = """INSERT INTO delivery_lease (id, holder, expires_at) VALUES (1, ?, ?)
    ON CONFLICT (id) DO UPDATE SET holder = excluded.holder, expires_at = excluded.expires_at
    WHERE delivery_lease.holder = excluded.holder OR delivery_lease.expires_at NOT BETWEEN ? AND ?"""
# A next attempt that is further away than the longest pause was stored while the clock was ahead; it is due now.
MAY_BE_DUE = "state = 'on' AND (next_attempt_at IS NULL OR next_attempt_at NOT BETWEEN ? AND ?)"


def advance_cursor(connection: Connection, hook: hooks.Hook, end: int, delivered_at: str | None = None) -> None:
    """Set a hook's position to the history entry `end` and reset its attempts, unless its position has changed."""
    connection.execute(
        """UPDATE webhooks SET history_seq = ?, attempts = 0, next_attempt_at = NULL, last_error = NULL,
               last_delivery_at = COALESCE(?, last_delivery_at)
           WHERE client_id = ? AND id = ? AND history_seq = ?""",
        (end, delivered_at, *hook.key, hook.history_seq),
    )


def record_failure(connection: Connection, hook: hooks.Hook, seq: int, result: sending.DeliveryResult) -> None:
    """Store a failed delivery of the event `seq`: plan a retry, or turn the hook off after 410 or the last try."""
    attempts = hook.attempts + 1 if seq == hook.history_seq + 1 else 1  # else hook.attempts is of another event
    is_over = result.status == GONE or attempts > len(RETRY_PAUSES)
    later = None if is_over else timestamp(ago=-max(RETRY_PAUSES[attempts - 1], result.retry_after))
    state = "off" if is_over else "on"
    changed = connection.execute(
        """UPDATE webhooks SET history_seq = ?, attempts = ?, next_attempt_at = ?, last_error = ?, state = ?
           WHERE client_id = ? AND id = ? AND history_seq = ? AND attempts = ?""",
        (seq - 1, attempts, later, result.error, state, *hook.key, hook.history_seq, hook.attempts),
    )
    if is_over and changed.rowcount:
        client_id, hook_id = hook.key
        log.warning("webhook %s of client %s is off: %s", hook_id, client_id, result.error)


# Delivery


class Deliverer:
    """Background delivery of a serving process, active while it holds the lease: `with Deliverer(service): …`."""

    def __init__(self, service: Service) -> None:
        self._service, self._database = service, service.database
        self._holder = secrets.token_hex(16)
        self._leased_until = self._ask_at = 0.0  # times of time.monotonic
        # By hook and its stored position: the history entry up to which the hook is known to want no event.
        self._looked_at: dict[hooks.HookKey, dict[int, int]] = {}
        self._under_way: dict[hooks.HookKey, Future[None]] = {}
        self._verdict_lock = threading.Lock()
        self._verdict = lru_cache(VERDICTS)(self._select_verdict)
        self._threads = ThreadPoolExecutor(THREADS, "findings-webhook")
        self._stopping, self._ended = threading.Event(), False
        self._looking = threading.Thread(target=self._work, name="findings-webhooks", daemon=True)

    def __enter__(self) -> Self:
        self._looking.start()
        return self

    def stop(self, *_: object) -> None:
        """Stop and release the lease. Deliveries that do not end in `LAST_ATTEMPTS` seconds are sent again later."""
        self._stopping.set()
        if self._looking.is_alive():
            self._looking.join()
        wait(self._under_way.values(), LAST_ATTEMPTS)
        self._ended = True  # remaining threads must not use the database, which is closed after this
        self._threads.shutdown(wait=False, cancel_futures=True)
        if self._leased_until:
            with suppress(Exception), self._database.transaction(patience=LOCK_PATIENCE) as connection:
                connection.execute("DELETE FROM delivery_lease WHERE holder = ?", (self._holder,))  # or it expires

    __exit__ = stop

    def _work(self) -> None:
        while not self._stopping.wait(LOOK_PAUSE):
            try:
                self.look()
            except Exception as error:  # the thread must go on
                self._log_bug(error)

    def _log_bug(self, error: Exception) -> None:
        """Log an exception with its traceback, unless it is a known error, which is temporary or logged elsewhere."""
        if known_error(error) is None:
            log.error("webhook delivery failed", exc_info=error)

    def look(self) -> Iterable[Future[None]]:
        """Start the deliveries that are due, if this process has or gets the lease. Return all that are in progress."""
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
        """Return the history entry up to which a hook is known to want no event: by default, its position."""
        return self._looked_at.get(hook.key, {}).get(hook.history_seq, hook.history_seq)

    def _hold_lease(self) -> bool:
        """Acquire or renew the lease every `LEASE` / 3 seconds, and return whether this process may deliver now."""
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
        """Deliver a hook's events, one after the other, until one fails, none is left, or `TURN` or the lease ends."""
        end = time.monotonic() + TURN
        try:
            while self._may_send() and time.monotonic() < end and self._deliver(key):
                pass
        except Exception as error:
            self._log_bug(error)

    def _deliver(self, key: hooks.HookKey) -> bool:
        """Deliver the next event of a hook. Return whether there may be another one to deliver now."""
        with self._database.reading() as connection:
            hook = hooks.select_hook(connection, *key)
        if hook.shown.state == "off":
            return False
        seq = hook.history_seq + 1
        try:
            seq, event = self._find_next(hook)
            if event is None:  # keep the position in memory; store it after many entries or failed attempts
                self._looked_at[key] = {hook.history_seq: seq}
                if seq - hook.history_seq >= SKIPPED or hook.attempts:
                    self._store(advance_cursor, hook, seq)
                return False
            if not self._may_send():
                return False
            body, private = messages.body_of(event, hook.shown.format), self._service.settings.webhook_private
            result = sending.send(hook.shown.url, hook.secret, event.id, body, private=private)
        except Exception as error:
            if known_error(error):
                raise
            self._log_bug(error)
            result = sending.DeliveryResult(error="failed here")
        if result.error is None:
            self._store(advance_cursor, hook, seq, timestamp())
        else:
            self._store(record_failure, hook, seq, result)
        return result.error is None

    def _find_next(self, hook: hooks.Hook) -> tuple[int, messages.WebhookEvent | None]:
        """Return (seq, event with current content) of the next event that a hook wants, or (last checked seq, None)."""
        base_url, position, goes_on = self._service.settings.base_url, self._looked_to(hook), True
        while goes_on and self._may_send():
            with self._database.snapshot() as connection:
                page = select_events(connection, hook.key[0], position, 1, hook.wanted)
                events = [*page.events]
            for each in events:
                event = messages.webhook_event(each, base_url)
                if self._add_verdict(hook.key[0], event) and messages.reaches(event, hook.shown.min_severity):
                    return int(event.id.rpartition("-")[2]), event
            position, goes_on = page.end, page.goes_on
        return position, None

    def _add_verdict(self, client_id: str, event: messages.WebhookEvent) -> bool:
        """Add gate result and new findings to an event if it is of a finished run. Return false if that was deleted."""
        if event.type != "run.finished" or not event.run:
            return True
        with self._verdict_lock:
            with self._database.reading() as connection:
                key = (client_id, event.run.id, select_revision(connection, client_id))
            try:
                event.gate, event.new_findings = self._verdict(*key)
            except Missing:
                return False
        return True

    def _select_verdict(self, client_id: str, run_id: str, _revision: int) -> Any:
        """Select the gate result and worst new findings of a finished run. `_revision` is only a cache key."""
        with self._database.separate_reader("webhook") as connection:
            return messages.select_verdict(connection, client_id, run_id, self._service.settings.base_url)

    def _store(self, note: Callable[..., object], *given: Any) -> None:
        """Store an attempt's result with `note`, with retries: an event whose delivery is not stored is sent again.

        The transaction is not for a client, so that it and the writes of the client do not wait for each other.
        """
        while not self._ended:
            try:
                with self._database.transaction() as connection:
                    note(connection, *given)
                return
            except Exception as error:
                if known_error(error) is None or self._stopping.wait(STORE_AGAIN):
                    raise
