"""Prometheus metrics of the service, and of the tasks, runs and webhooks of the API key's client.

The format is Prometheus's text format 0.0.4 or 1.0.0, or OpenMetrics, depending on the request's Accept header
(https://prometheus.io/docs/instrumenting/exposition_formats/,
https://prometheus.io/docs/specs/om/open_metrics_spec/). Names and units follow its conventions
(https://prometheus.io/docs/practices/naming/). The official client (https://prometheus.github.io/client_python/)
writes the text. Requests and commit groups are counted as they happen; other values are read for each request.

Labels contain no text that a caller sent: routes are templates, and methods unknown to HTTP share one value.
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
    REQUESTS: "Responses by route (the path's template, or - for an unknown path), method and status.",
    DURATIONS: "Seconds from the head of a request to its response.",
    GROUPS: "Requests that shared one COMMIT of `serve` on SQLite.",
    HOOKS: "Webhooks of the key's client by state: on, retrying after a failed delivery, or off.",
    "findings_tasks": "Tasks of the key's client, on the main line and on branches.",
    "findings_runs": "Runs of the key's client, on the main line and on branches.",
    "findings_last_backup_timestamp_seconds": "Start of the last successful `findings-service backup`; 0 if none.",
    "findings_database_bytes": "Size of the database, without its WAL.",
    "findings_wal_bytes": "Size of the WAL, which holds commits until a checkpoint.",
    "findings_disk_free_bytes": "Free space for the service on the disk of the database file.",
    "findings_build": "Always 1; the labels are the versions of the service and of the database engine.",
}
SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
SIZES = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0)
METRICS_FOLDER = "PROMETHEUS_MULTIPROC_DIR"  # prometheus_client's variable: folder of the counts of several processes
OTHER_METHOD = "other"
# A version in an Accept header that prometheus_client cannot parse.
UNREADABLE = regex.compile(r"version=(?![0-9]{1,4}(\.[0-9]{1,4})*\s*([;,]|$))")


def begin_counting(service: Service) -> Any:
    """Count a service's requests and commit groups from now on. Return the collector of the counts.

    It collects this process's counts, or those of all processes if `METRICS_FOLDER` is set in the environment.
    :raises ConfigurationError: if that folder is not writable.
    """
    folder = os.environ.get(METRICS_FOLDER)
    if folder and not os.access(folder, os.W_OK | os.X_OK):
        raise ConfigurationError(f"{METRICS_FOLDER}: {folder} is not a writable folder")
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
    """Yield this service's metrics from a collector, without creation times. :raises Busy: while a worker starts."""
    try:
        counted = [*collector.collect()]
    except struct.error:  # prometheus_client read the incomplete file of a worker that is starting
        raise Busy("A worker is being started") from None
    for metric in counted:
        if metric.name in HELP:
            metric.samples = [each for each in metric.samples if not each.name.endswith("_created")]
            yield metric


def gauge(name: str, values: Mapping[Any, float], labels: Sequence[str] = ()) -> Metric:
    """Return the gauge `name`, with one value for each combination of label values.

    :param values: its values, by the tuple of the values of `labels`.
    """
    metric = GaugeMetricFamily(name, HELP[name], labels=labels)
    for label_values, value in values.items():
        metric.add_metric(label_values, value)
    return metric


def stored_figures(database: Database, connection: Connection, client_id: str) -> Iterator[Metric]:
    """Yield metrics of a client's tasks, runs and webhooks, and of the last backup. No task or run is scanned."""
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
    if "backup" not in database.advice:  # otherwise another program makes backups, and does not record them
        made_at = connection.execute("SELECT made_at FROM backups WHERE id = 1").fetchone()
        seconds = datetime.fromisoformat(made_at[0]).timestamp() if made_at else 0.0
        yield gauge("findings_last_backup_timestamp_seconds", {(): seconds})


def size_figures(database: Database) -> Mapping[str, Callable[[], float]]:
    """Return functions that read sizes in bytes, by metric name: of an SQLite file, or `figures` of another engine."""
    if not isinstance(database, SQLiteDatabase):
        return getattr(database, "figures", dict)()
    return {
        "findings_database_bytes": lambda: Path(database.location).stat().st_size,
        "findings_wal_bytes": database.wal_size,
        "findings_disk_free_bytes": lambda: shutil.disk_usage(Path(database.location).parent).free,
    }


def figures_of(database: Database) -> Iterator[Metric]:
    """Yield metrics of the sizes that can be read now, and of the versions of the service and the database engine."""
    for name, read in size_figures(database).items():
        with suppress(OSError):
            yield gauge(name, {(): read()})
    engine, version = database.engine
    versions = {"version": __version__, engine.lower(): version}
    yield InfoMetricFamily("findings_build", HELP["findings_build"], value=versions)


def start(service: Service) -> None:
    """Start counting the requests of a service, and add the endpoint `/metrics` to it."""
    collector, database = begin_counting(service), service.database

    @operation("GET", "/metrics", "read", {200: str})
    def get_metrics(request: ApiRequest) -> Response:
        """Get Prometheus metrics of the service, and of the tasks, runs and webhooks of the API key's client."""
        accept = request.environ.get("HTTP_ACCEPT", "")
        encode, media_type = choose_encoder("" if UNREADABLE.search(accept) else accept)
        with database.reading() as connection:
            stored = [*stored_figures(database, connection, request.client_id)]
        metrics = [*counted_figures(collector), *stored, *figures_of(database)]
        return make_response(200, encode(SimpleNamespace(collect=lambda: metrics)), media_type)

    service.router.add(get_metrics)


def register() -> None:
    """Register the metrics, which start with each service whose setting `metrics` is on."""
    REGISTRY.observers["metrics"] = start
