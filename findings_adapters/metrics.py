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

import os
import shutil
import struct
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import prometheus_client
import regex
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.multiprocess import MultiProcessCollector

from findings_features.cells import select_cells
from findings_service import (
    ANY_METHOD,
    RANKS,
    REGISTRY,
    RUN_STATUSES,
    TASK_STATUSES,
    ApiRequest,
    Busy,
    ConfigurationError,
    Connection,
    Database,
    Filter,
    Response,
    Service,
    SQLiteDatabase,
    __version__,
    make_response,
    operation,
)

REQUESTS = "findings_http_requests"
DURATIONS = "findings_http_request_duration_seconds"
GROUPS = "findings_commit_group_size"
HOOKS = "findings_webhooks"
HELP = {
    REQUESTS: "Requests that were answered; route is as the API writes it, - for a path that there is not.",
    DURATIONS: "Seconds from a request's head to its answer.",
    GROUPS: "Requests that shared one COMMIT of `serve` on SQLite.",
    HOOKS: "Webhooks of the key's client: on, retrying what has failed, or off.",
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
METRICS_FOLDER = "PROMETHEUS_MULTIPROC_DIR"  # the official client's: where several processes count
OTHER_METHOD = "other"
# A version in an Accept header by which the client would fail to choose.
UNREADABLE = regex.compile(r"version=(?![0-9]{1,4}(\.[0-9]{1,4})*\s*([;,]|$))")


def begin_counting(service: Service) -> Any:
    """Register counters of what a service does, and return their collector: over several processes from files.

    :raises ConfigurationError: where the processes are to meet in no folder.
    """
    folder = os.environ.get(METRICS_FOLDER)
    if folder and not os.access(folder, os.W_OK | os.X_OK):
        raise ConfigurationError(f"{METRICS_FOLDER}: {folder} is no folder that can be written")
    registry = prometheus_client.CollectorRegistry()
    requests = prometheus_client.Counter(REQUESTS, HELP[REQUESTS], ("route", "method", "status"), registry=registry)
    durations = prometheus_client.Histogram(
        DURATIONS, HELP[DURATIONS], ("route", "method"), registry=registry, buckets=SECONDS
    )
    groups = prometheus_client.Histogram(GROUPS, HELP[GROUPS], registry=registry, buckets=SIZES)

    def count_request(request: ApiRequest, status: int, _size: int, seconds: float) -> None:
        labels = (request.route, request.method if request.method in ANY_METHOD else OTHER_METHOD)
        requests.labels(*labels, status).inc()
        durations.labels(*labels).observe(seconds)

    service.listeners.answered.append(count_request)
    service.listeners.committed.append(groups.observe)
    if folder:
        return MultiProcessCollector(None)  # type: ignore[no-untyped-call]
    return registry


def counted_figures(collector: Any) -> Iterator[Metric]:
    """Yield the counts, without their creation times and without those of an embedding application."""
    try:
        counted = [*collector.collect()]
    except struct.error:  # by the client, of the file of a worker that is about to begin
        raise Busy("A worker is being started") from None
    for metric in counted:
        if metric.name in HELP:
            metric.samples = [each for each in metric.samples if not each.name.endswith("_created")]
            yield metric


def gauge(name: str, values: Mapping[Any, float], labels: Sequence[str] = ()) -> Metric:
    """Return a figure.

    :param values: its values by what its labels say, each a tuple of texts.
    """
    metric = GaugeMetricFamily(name, HELP[name], labels=labels)
    for words, value in values.items():
        metric.add_metric(words, value)
    return metric


def stored_figures(database: Database, connection: Connection, client_id: str) -> Iterator[Metric]:
    """Give what is read from the database: by counters, so that it costs the same whatever is stored."""
    counts = Counter[tuple[str, str, int]]()
    for kind in ("tasks", "runs"):
        for (_, _, status, severity), n in select_cells(connection, client_id, kind, Filter()).items():
            counts[kind, status, severity] += n
    tasks = {(status, name): counts["tasks", status, rank] for status in TASK_STATUSES for name, rank in RANKS.items()}
    yield gauge("findings_tasks", tasks, ("status", "severity"))
    yield gauge("findings_runs", {(status,): counts["runs", status, 0] for status in RUN_STATUSES}, ("status",))
    states = dict.fromkeys(("on", "retrying", "off"), 0)
    states |= connection.execute(
        """SELECT CASE WHEN state = 'on' AND attempts > 0 THEN 'retrying' ELSE state END, COUNT(*)
           FROM webhooks WHERE client_id = ? GROUP BY 1""",
        (client_id,),
    ).fetchall()
    yield gauge(HOOKS, {(state,): n for state, n in states.items()}, ("state",))
    if "backup" not in database.advice:  # else another program makes them, and notes nothing
        made_at = connection.execute("SELECT made_at FROM backups WHERE id = 1").fetchone()
        seconds = datetime.fromisoformat(made_at[0]).timestamp() if made_at else 0.0
        yield gauge("findings_last_backup_timestamp_seconds", {(): seconds})


def size_figures(database: Database) -> Mapping[str, Callable[[], float]]:
    """Return functions that read the bytes of a database, by the names of metrics; engines may have their own."""
    if not isinstance(database, SQLiteDatabase):
        return getattr(database, "figures", dict)()
    return {
        "findings_database_bytes": lambda: Path(database.location).stat().st_size,
        "findings_wal_bytes": database.wal_size,
        "findings_disk_free_bytes": lambda: shutil.disk_usage(Path(database.location).parent).free,
    }


def figures_of(database: Database) -> Iterator[Metric]:
    """Yield the figures that are read from the disk, if they can be read, and what runs."""
    for name, read in size_figures(database).items():
        with suppress(OSError):
            yield gauge(name, {(): read()})
    engine, version = database.engine
    versions = {"version": __version__, engine.lower(): version}
    yield InfoMetricFamily("findings_build", HELP["findings_build"], value=versions)


def start(service: Service) -> None:
    """Have a service count, and answer with its figures."""
    collector, database = begin_counting(service), service.database

    @operation("GET", "/metrics", "read", {200: str})
    def get_metrics(request: ApiRequest) -> Response:
        """Get figures for Prometheus: of the service, and of the tasks and runs of the key's own client."""
        accept = request.environ.get("HTTP_ACCEPT", "")
        encode, media_type = choose_encoder("" if UNREADABLE.search(accept) else accept)
        with database.reading() as connection:
            stored = [*stored_figures(database, connection, request.client_id)]
        figures = [*counted_figures(collector), *stored, *figures_of(database)]
        return make_response(200, encode(SimpleNamespace(collect=lambda: figures)), media_type)

    service.router.add(get_metrics)


def register() -> None:
    """Let services count."""
    REGISTRY.observers["metrics"] = start
