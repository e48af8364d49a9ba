"""Figures for Prometheus: how the service does, and where the findings of the client that asks stand.

They go out in Prometheus's text format 0.0.4 or 1.0.0, or in OpenMetrics, whichever the request asks for
(https://prometheus.io/docs/instrumenting/exposition_formats/,
https://prometheus.io/docs/specs/om/open_metrics_spec/), under names and in units by its conventions
(https://prometheus.io/docs/practices/naming/), written by the official client
(https://prometheus.github.io/client_python/). Requests and groups of writes are counted as they happen; the rest is
read from the database and its disk when somebody asks.

No label has anything in it that somebody sent: routes are templates, and methods that HTTP does not know are one.
"""

from __future__ import annotations

import hashlib
import math
import mmap
import os
import struct
import tempfile
import threading
import weakref
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from itertools import accumulate, product
from operator import add
from pathlib import Path
from typing import Any

import regex
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.utils import floatToGoString

import findings_service as heart

__all__ = ["HELP", "Metrics", "shared_by"]

REQUESTS = "findings_http_requests"
DURATIONS = "findings_http_request_duration_seconds"
GROUPS = "findings_commit_group_size"
HELP = {
    REQUESTS: "Requests that were answered; route is as the API writes it, - for a path that there is not.",
    DURATIONS: "Seconds from a request's head to its answer.",
    GROUPS: "Requests that shared one COMMIT of `serve`; other servers give each its own.",
    "findings_tasks": "Tasks of the key's client, of the main line and of branches.",
    "findings_runs": "Runs of the key's client, of the main line and of branches.",
    "findings_last_backup_timestamp_seconds": "When the last good `findings-service backup` began; 0 for never.",
    "findings_database_bytes": "Size of the database, without its WAL.",
    "findings_wal_bytes": "Size of the WAL: the last commits, which are folded into the database file.",
    "findings_disk_free_bytes": "Room for the service on the disk that the database file is on.",
    "findings_build": "1, for the version of the service and of the engine that keeps its data.",
}
SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
SIZES = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0)
NO_ROUTE = "-"  # as in the access log
OTHER_METHOD = "other"
FOLDER = "PROMETHEUS_MULTIPROC_DIR"  # by the official client's custom: where the processes of an application meet
# A version in an Accept header by which the client would fail to choose.
UNREADABLE = regex.compile(r"version=(?![0-9]{1,4}(\.[0-9]{1,4})*\s*([;,]|$))")

# A row of figures: what it is of, how many values are in each bucket, their sum, and last whether there is the row.
ROW = struct.Struct("128s16d")
NAME_SIZE = 128
FIRST_CELL, SUM, THERE = NAME_SIZE // 8, 14, 15
MOST_ROWS = 512
SUFFIX = ".figures"

# Whoever counts holds it, and so does whoever forks, so that no child finds it locked for ever.
COUNTING = threading.Lock()
BOOKS: weakref.WeakSet[Book] = weakref.WeakSet()


class Book:
    """What is counted for one database: rows of numbers in memory, which may be that of a file that others read too.

    The official client counts too, and shares its figures between processes. That costs a request more, most of all
    where they are shared: a lock and a packed write for each figure. So here it only writes them down.
    """

    def __init__(self, db: str) -> None:
        """Begin a book. :raises heart.ConfigurationError: where the processes are to meet in no folder."""
        self.folder = os.environ.get(FOLDER, "")
        self._prefix = hashlib.sha256(os.path.realpath(db).encode()).hexdigest()[:16] + "-"
        if self.folder and not os.access(self.folder, os.W_OK | os.X_OK):
            raise heart.ConfigurationError(f"{FOLDER}: {self.folder} is no folder that can be written")
        self.open()
        BOOKS.add(self)

    def open(self) -> None:
        """Begin with no rows, in a new file where others are to read them. Without one, others miss these figures."""
        self._path = ""
        self._use(bytearray(ROW.size * MOST_ROWS))
        if self.folder:
            try:
                self._path = self._share()
            except OSError as error:  # a full disk, say, which is no reason not to serve
                heart.log.warning("the metrics of process %d are its own alone: %s", os.getpid(), error)

    def _share(self) -> str:
        """Have the rows in a file, and return its path. :raises OSError: when there can be none."""
        number, path = tempfile.mkstemp(SUFFIX, self._prefix, self.folder)
        try:
            with os.fdopen(number, "r+b") as file:
                file.write(self._bytes)  # so that a full disk is met here, and not when a page is first touched
                file.flush()
                self._use(mmap.mmap(number, 0))
        except OSError:
            Path(path).unlink(missing_ok=True)
            raise
        return path

    def _use(self, memory: bytearray | mmap.mmap) -> None:
        self._bytes = memoryview(memory)
        self.cells = self._bytes.cast("d")
        self.rows: dict[tuple[object, ...], int] = {}

    def row(self, names: tuple[object, ...]) -> int:
        """Return where the cells of a row begin; those of a further one than there is room for, nobody reads."""
        if names not in self.rows:
            number = min(len(self.rows), MOST_ROWS - 1)
            start = number * ROW.size
            self.rows[names] = start // 8 + FIRST_CELL
            if number < MOST_ROWS - 1:
                name = "\n".join(map(str, names)).encode()[:NAME_SIZE]
                self._bytes[start : start + len(name)] = name
                self.cells[self.rows[names] + THERE] = 1.0
        return self.rows[names]

    def add_up(self) -> dict[tuple[str, ...], list[float]]:
        """Return the cells of all rows by their names, of all processes together."""
        sums: dict[tuple[str, ...], list[float]] = {}
        for text in (bytes(self._bytes), *self._others()):
            for name, *cells in ROW.iter_unpack(text[: len(text) // ROW.size * ROW.size]):
                if not cells[THERE]:
                    break
                names = tuple(name.rstrip(b"\0").decode(errors="replace").split("\n"))
                sums[names] = [*map(add, sums[names], cells)] if names in sums else cells
        return sums

    def _others(self) -> Iterator[bytes]:
        """Give what other processes have counted, also those that have ended."""
        for path in Path(self.folder).glob(f"{self._prefix}*{SUFFIX}") if self.folder else ():
            if str(path) != self._path:
                with suppress(OSError):
                    yield path.read_bytes()


def reopen_books() -> None:
    """Let a child that was forked off count in files of its own."""
    COUNTING.release()
    for book in BOOKS:
        if book.folder:
            book.open()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=COUNTING.acquire, after_in_parent=COUNTING.release, after_in_child=reopen_books)


@contextmanager
def shared_by(workers: int) -> Iterator[None]:
    """Give several workers a folder to meet in: a new one, because figures begin at zero with each start."""
    os.environ.pop(FOLDER, None)
    if workers == 1:
        yield
        return
    with tempfile.TemporaryDirectory(prefix="findings-metrics-", ignore_cleanup_errors=True) as folder:
        os.environ[FOLDER] = folder
        yield


class Metrics:
    """The figures of a service, which counts from now on."""

    def __init__(self, service: heart.Service) -> None:
        self._database = service.database
        self._book = Book(service.settings.db)
        self._book.row((GROUPS,))
        service.listeners.answered.append(self.count_request)
        service.listeners.committed.append(self.count_group)

    def count_request(self, environ: Mapping[str, Any], status: int, _size: int, seconds: float) -> None:
        """Count a request that is answered: a hundred thousand times a minute, so that a look into one table does."""
        noted, method, bucket = environ.get(heart.NOTED), environ["REQUEST_METHOD"], bisect_left(SECONDS, seconds)
        route = noted.route if noted else NO_ROUTE
        with COUNTING:
            book = self._book
            row = book.rows.get((route, method, status))
            if row is None:  # a new one, or of a method that anybody made up
                row = book.row((route, method if method in heart.ANY_METHOD else OTHER_METHOD, status))
            cells = book.cells  # which a new row may have moved
            cells[row + bucket] += 1
            cells[row + SUM] += seconds

    def count_group(self, size: int) -> None:
        """Count a group of writes that is committed."""
        with COUNTING:
            row, cells = self._book.row((GROUPS,)), self._book.cells
            cells[row + bisect_left(SIZES, size)] += 1
            cells[row + SUM] += size

    def exposition(self, client_id: str, accept: str) -> tuple[bytes, str]:
        """Return all figures as a text, with its media type, of the forms that an Accept header asks for.

        :param client_id: whose tasks and runs are counted; clients never see each other's.
        """
        encode, media_type = choose_encoder("" if UNREADABLE.search(accept) else accept)
        with self._database.reading() as connection:
            stored = [*stored_figures(connection, client_id)]
            if "backup" not in self._database.advice:  # else another program makes them, and notes nothing
                stored += last_backup(connection)
        return encode(Collected([*self._counted(), *stored, *self._of_files(), build(self._database)])), media_type

    def _counted(self) -> Iterator[Metric]:
        """Give what was counted: how many requests by status, and how long they took whatever came of them."""
        sums = self._book.add_up()
        groups = sums.pop((GROUPS,), [0.0] * FIRST_CELL)
        requests = CounterMetricFamily(REQUESTS, HELP[REQUESTS], labels=("route", "method", "status"))
        durations: dict[tuple[str, ...], list[float]] = {}
        for labels, cells in sorted(sums.items()):
            requests.add_metric(labels, sum(cells[:SUM]))
            durations[labels[:2]] = [*map(add, durations.get(labels[:2], [0.0] * FIRST_CELL), cells)]
        yield requests
        yield histogram(DURATIONS, ("route", "method"), SECONDS, durations)
        yield histogram(GROUPS, (), SIZES, {(): groups})

    def _of_files(self) -> Iterator[Metric]:
        for name, read in self._database.figures().items():
            yield from gauge(name, read)


def histogram(
    name: str, labels: Sequence[str], bounds: Sequence[float], rows: Mapping[tuple[str, ...], Sequence[float]]
) -> Metric:
    """Return a histogram of rows, whose buckets count what is up to their bound."""
    family = HistogramMetricFamily(name, HELP[name], labels=labels)
    for values, cells in rows.items():
        names = map(floatToGoString, (*bounds, math.inf))
        family.add_metric(values, list(zip(names, accumulate(cells[: len(bounds) + 1]), strict=True)), cells[SUM])
    return family


def gauge(name: str, read: Callable[[], float]) -> Iterator[Metric]:
    """Give one figure, unless it cannot be read."""
    with suppress(OSError):
        yield GaugeMetricFamily(name, HELP[name], value=read())


def stored_figures(connection: heart.Connection, client_id: str) -> Iterator[Metric]:
    """Give what is read from the database: by counters, so that it costs the same whatever is stored."""
    tasks, runs = heart.scope("tasks"), heart.scope("runs")
    counts = Counter[tuple[str, str, int]]()
    for kind, status, severity, _, n in heart.select_counts(connection, client_id, [tasks, runs]):
        counts[kind, status, severity] += n
    by_severity = GaugeMetricFamily("findings_tasks", HELP["findings_tasks"], labels=("status", "severity"))
    for status, (name, rank) in product(heart.TASK_STATUSES, heart.RANKS.items()):
        by_severity.add_metric((status, name), counts[tasks, status, rank])
    by_status = GaugeMetricFamily("findings_runs", HELP["findings_runs"], labels=("status",))
    for status in heart.RUN_STATUSES:
        by_status.add_metric((status,), counts[runs, status, 0])
    yield from (by_severity, by_status)


def last_backup(connection: heart.Connection) -> Iterator[Metric]:
    """Give when the last backup began."""
    made_at = heart.select_last_backup(connection)
    seconds = datetime.fromisoformat(made_at).timestamp() if made_at else 0.0
    yield from gauge("findings_last_backup_timestamp_seconds", lambda: seconds)


def build(database: heart.Database) -> Metric:
    """Return what runs."""
    engine, version = database.engine
    versions = {"version": heart.__version__, engine.lower(): version}
    return InfoMetricFamily("findings_build", HELP["findings_build"], value=versions)


class Collected:
    """Figures as the client wants them, to write them."""

    def __init__(self, metrics: Iterable[Metric]) -> None:
        self._metrics = metrics

    def collect(self) -> Iterable[Metric]:
        """Return the figures."""
        return self._metrics
