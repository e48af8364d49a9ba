"""Measures the service through its real front door, against floors of its own that run beside it.

    python bench.py             # 10,000 and 1,000,000 stored tasks, in about ten minutes
    python bench.py --quick     # a little of everything, to see that it works
    python bench.py --only reads --only writes

Machines differ and are noisy, so that a figure alone says little. Every row is therefore a ratio of two things
measured in turns, A B A B …, in the same run on the same machine; the ratio that counts is the median of the
rounds. The servers are real processes on 127.0.0.1, the client is one more process on raw sockets that verifies
the status of every answer, and all files are in a temporary directory.
"""

from __future__ import annotations

import argparse
import asyncio
import http.client
import importlib.util
import itertools
import json
import multiprocessing
import os
import platform
import random
import re
import selectors
import shutil
import socket
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict, dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import flask

import findings_service as fs

SERVICE = Path(fs.__file__).resolve()
HOST = "127.0.0.1"
PATIENCE = 60.0  # seconds after which a server or a client that says nothing has failed
CONNECTIONS = 16
BATCH = 1000
SMALL = 10_000
CLIENT, PROJECT_TYPE, TARGETS = "default", "bench", 50
MEMORY_LIMIT = 150.0  # MB


# ---------------------------------------------------------------------------
# Tasks and requests
# ---------------------------------------------------------------------------

EXTENSION_SCHEMA = {
    "type": "object",
    "required": ["wcag", "impact"],
    "properties": {
        "wcag": {"type": "string", "pattern": r"^\d\.\d{1,2}\.\d{1,2}$"},
        "impact": {"enum": ["minor", "moderate", "serious", "critical"]},
        "selector": {"type": "string", "maxLength": 500},
        "confidence": {"type": "number", "minimum": 0, "maximum": 1},
    },
}
IMPACTS = ("minor", "moderate", "serious", "critical")
STATUSES = (*("open",) * 7, "in_progress", "resolved", "dismissed")


def make_task(number: int) -> dict[str, Any]:
    """Return one finding, about 940 bytes of JSON; its external id is scattered like a fingerprint."""
    mixed = zlib.crc32(number.to_bytes(8, "big"))
    return {
        "title": f"Form field {number} has no accessible name",
        "severity": fs.SEVERITIES[mixed % 5],
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


def batch_body(first: int, count: int) -> bytes:
    """Return the body that submits `count` findings, numbered from `first`."""
    tasks = [make_task(number) for number in range(first, first + count)]
    return json.dumps({"tasks": tasks}, separators=(",", ":")).encode()


def target_of(number: int) -> str:
    """Return the site that a run examined."""
    return f"https://site-{number % TARGETS}.example/"


def request(key: str, method: str, path: str, body: bytes = b"") -> bytes:
    """Return a request as it crosses the network."""
    lines = [f"{method} {path} HTTP/1.1", f"Host: {HOST}"]
    if key:
        lines.append(f"Authorization: Bearer {key}")
    if body:
        lines += ["Content-Type: application/json", f"Content-Length: {len(body)}"]
    return "\r\n".join([*lines, "", ""]).encode() + body


# ---------------------------------------------------------------------------
# Load: one process, a few connections, one loop
# ---------------------------------------------------------------------------

LENGTH = re.compile(rb"\r\ncontent-length: (\d+)", re.IGNORECASE)


@dataclass(frozen=True)
class Job:
    """Requests to send: each of them once, or over and over for some seconds."""

    port: int
    requests: Sequence[bytes]
    status: int
    connections: int = CONNECTIONS
    seconds: float | None = None


@dataclass(frozen=True)
class Outcome:
    """How many answers came in how many seconds, and the last one's body."""

    count: int
    seconds: float
    last: bytes

    @property
    def rate(self) -> float:
        """Answers per second."""
        return self.count / self.seconds


class Line:
    """One connection with one request under way."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection((HOST, port), PATIENCE)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket.settimeout(None)
        self.received = b""

    def answer(self) -> tuple[int, bytes] | None:
        """Read on, and return status and body once the answer is whole."""
        data = self.socket.recv(1 << 18)
        if not data:
            raise ConnectionError("the server closed a connection")
        self.received += data
        head, blank, body = self.received.partition(b"\r\n\r\n")
        length = LENGTH.search(head)
        if not blank or length is None or len(body) < int(length[1]):
            return None
        self.received = b""
        return int(head[9:12]), body


def run_job(job: Job) -> Outcome:
    """Send a job's requests and return what came of it. :raises ValueError: for an answer of another status."""
    waiting = iter(job.requests) if job.seconds is None else itertools.cycle(job.requests)
    lines = [Line(job.port) for _ in range(job.connections)]
    count, body = 0, b""
    with selectors.DefaultSelector() as selector:
        begun = time.perf_counter()
        end = float("inf") if job.seconds is None else begun + job.seconds
        busy = 0
        for line, sent in zip(lines, waiting, strict=False):
            selector.register(line.socket, selectors.EVENT_READ, line)
            line.socket.sendall(sent)
            busy += 1
        while busy:
            events = selector.select(PATIENCE)
            if not events:
                raise TimeoutError(f"no answer for {PATIENCE:g} s")
            for key, _ in events:
                line = key.data
                answer = line.answer()
                if answer is None:
                    continue
                status, body = answer
                if status != job.status:
                    raise ValueError(f"status {status} instead of {job.status}: {body[:500]!r}")
                count += 1
                following = next(waiting, None) if time.perf_counter() < end else None
                if following is None:
                    busy -= 1
                else:
                    line.socket.sendall(following)
        seconds = time.perf_counter() - begun
    for line in lines:
        line.socket.close()
    return Outcome(count, seconds, body)


def run_jobs(pipe: Connection) -> None:
    """Run jobs until None comes; an exception is an outcome too."""
    while (job := pipe.recv()) is not None:
        try:
            pipe.send(run_job(job))
        except Exception as error:  # told where it can be read
            pipe.send(error)


class Load:
    """The client's process."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe

    def run(self, job: Job) -> Outcome:
        """Have a job run. :raises Exception: what stopped it."""
        self._pipe.send(job)
        outcome = self._pipe.recv()
        if isinstance(outcome, Exception):
            raise outcome
        return Outcome(outcome.count, outcome.seconds, outcome.last)


@contextmanager
def load_process() -> Iterator[Load]:
    """Start the client, and end it."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=run_jobs, args=(theirs,))
    process.start()
    try:
        yield Load(ours)
        ours.send(None)
        process.join(PATIENCE)
    finally:
        process.kill()
        process.join()


# ---------------------------------------------------------------------------
# Servers: the service, and a hello world behind the same front door
# ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Server:
    """A running server."""

    port: int
    process_id: int

    def memory(self) -> float:
        """Return its resident memory in MB."""
        status = Path(f"/proc/{self.process_id}/status")
        if status.exists():
            return int(re.findall(r"VmRSS:\s+(\d+)", status.read_text())[0]) / 1024
        command = ["ps", "-o", "rss=", "-p", str(self.process_id)]
        return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout) / 1024


def service_command(db: Path, port: int) -> list[str]:
    """Return the command that serves a database."""
    return [sys.executable, str(SERVICE), "serve", "--db", str(db), "--host", HOST, "--port", str(port)]


def clean_environment() -> dict[str, str]:
    """Return the environment without settings of the service."""
    return {name: value for name, value in os.environ.items() if not name.startswith("FINDINGS_")}


def answers(port: int, path: str) -> bool:
    """Tell whether a server answers 200 at a path."""
    try:
        with closing(http.client.HTTPConnection(HOST, port, timeout=PATIENCE)) as connection:
            connection.request("GET", path)
            return connection.getresponse().status == 200
    except OSError:
        return False


def wait_for(port: int, path: str, alive: Callable[[], bool]) -> None:
    """Wait until a server answers. :raises RuntimeError: when it ended, or says nothing for too long."""
    end = time.monotonic() + PATIENCE
    while not answers(port, path):
        if not alive() or time.monotonic() > end:
            raise RuntimeError("a server did not start")
        time.sleep(0.001)


@contextmanager
def service(db: Path) -> Iterator[Server]:
    """Serve a database with the service's own command."""
    port = fs.free_port(HOST, 0)
    with subprocess.Popen(service_command(db, port), stderr=subprocess.DEVNULL, env=clean_environment()) as process:
        try:
            wait_for(port, "/healthz", lambda: process.poll() is None)
            yield Server(port, process.pid)
        finally:
            process.terminate()


def serve_hello(port: int) -> None:
    """Serve the least that a Flask application can do."""
    app = flask.Flask("hello")
    app.add_url_rule("/", "hello", lambda: "Hello, world!")
    asyncio.run(fs.serve_until_stopped(fs.FrontDoor(app, fs.Settings()), HOST, port, ""))


@contextmanager
def hello() -> Iterator[Server]:
    """Serve a hello world."""
    port = fs.free_port(HOST, 0)
    process = multiprocessing.get_context("spawn").Process(target=serve_hello, args=(port,))
    process.start()
    try:
        wait_for(port, "/", process.is_alive)
        yield Server(port, process.pid or 0)
    finally:
        process.terminate()
        process.join()


# ---------------------------------------------------------------------------
# Databases
# ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Stored:
    """A database with tasks in it, and a key that opens them."""

    path: Path
    rows: int
    key: str

    def read(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        """Return the rows of a query."""
        with closing(sqlite3.connect(f"file:{self.path}?mode=ro", uri=True)) as connection:
            return connection.execute(statement, values).fetchall()

    def task_paths(self, count: int) -> list[str]:
        """Return the paths of tasks from all over the file."""
        seqs = random.Random(1).sample(range(1, self.rows + 1), min(count, self.rows))
        marks = ", ".join("?" * len(seqs))
        rows = self.read(f"SELECT id FROM tasks WHERE seq IN ({marks})", *seqs)
        return random.Random(2).sample([f"/api/v1/tasks/{row[0]}" for row in rows], len(rows))

    def copy(self, name: str) -> Stored:
        """Return a copy. Nobody may have the database open."""
        return Stored(Path(shutil.copy(self.path, self.path.with_name(name))), self.rows, self.key)


def filled(path: Path, rows: int) -> Stored:
    """Make a database with that many tasks, reported by runs of 1,000, through the module's own functions.

    Only the durability of the filling is less than the service's.
    """
    settings = fs.Settings(db=str(path), synchronous="NORMAL")
    database = fs.Database(settings)
    with database.transaction() as connection:
        key = fs.insert_key(connection, "bench", CLIENT, "full")
        schema = json.dumps(EXTENSION_SCHEMA)
        fs.insert_project_type(connection, CLIENT, PROJECT_TYPE, PROJECT_TYPE, "", schema)
    who = fs.Principal("", CLIENT, "bench", "full")
    for number, first in enumerate(range(0, rows, BATCH)):
        reports = fs.parse_submission(batch_body(first, min(BATCH, rows - first)), settings).reports
        with database.transaction() as connection:
            run = fs.insert_run(connection, CLIENT, PROJECT_TYPE, target_of(number), "{}")
            fs.submit_reports(connection, who, run, reports)
            fs.finish_run(connection, who, run, "completed", None, False)
    with database.reading() as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    database.close()
    return Stored(path, rows, key)


def start_run(server: Server, key: str, number: int) -> str:
    """Start a run and return its id."""
    body = json.dumps({"projectType": PROJECT_TYPE, "targetUrl": target_of(number)})
    headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
    with closing(http.client.HTTPConnection(HOST, server.port, timeout=PATIENCE)) as connection:
        connection.request("POST", "/api/v1/runs", body, headers)
        return str(json.load(connection.getresponse())["id"])


# ---------------------------------------------------------------------------
# Floors: SQLite alone
# ---------------------------------------------------------------------------


def durable(path: Path) -> sqlite3.Connection:
    """Open a database in which every commit is as durable as the service's."""
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    return connection


class OneRow:
    """A copy of the service's database, in which one row of `tasks` at a time is written and committed."""

    def __init__(self, stored: Stored) -> None:
        self.rows = stored.rows
        self.connection = durable(stored.copy("one-row.db").path)

    def rate(self, statement: str, values: Sequence[tuple[Any, ...]]) -> float:
        """Return how many transactions of one statement are durable in a second."""
        begun = time.perf_counter()
        for each in values:
            self.connection.execute("BEGIN IMMEDIATE")
            self.connection.execute(statement, each)
            self.connection.execute("COMMIT")
        return len(values) / (time.perf_counter() - begun)

    def insert_rate(self, count: int) -> float:
        """Return how many rows a second are stored."""
        new = [(random.randbytes(8).hex(), task_id, fs.timestamp()) for task_id in fs.new_ids(count)]
        return self.rate(
            f"""INSERT INTO tasks (client_id, project_type, target_url, run_id, last_run_id, title, severity, status,
                    external_id, id, created_at, updated_at, last_seen_at)
                VALUES ('{CLIENT}', '{PROJECT_TYPE}', '{target_of(0)}', '{new[0][1]}', '{new[0][1]}',
                    '{make_task(0)["title"]}', 4, 'open', ?1, ?2, ?3, ?3, ?3)""",
            new,
        )

    def update_rate(self, count: int) -> float:
        """Return how many rows a second get another status."""
        seqs = random.choices(range(1, self.rows + 1), k=count)
        values = [(fs.TASK_STATUSES[place // 100 % 4], fs.timestamp(), seq) for place, seq in enumerate(seqs)]
        return self.rate("UPDATE tasks SET status = ?, updated_at = ? WHERE seq = ?", values)


def table_rows(stored: Stored, table: str, key: str, behind: int) -> list[tuple[Any, ...]]:
    """Return the rows of a table that belong to tasks behind a seq, in the order of the tasks."""
    return stored.read(f"SELECT * FROM {table} WHERE {key} > ? ORDER BY {key}", behind)


def counter_rows(stored: Stored, first: int, last: int) -> list[tuple[Any, ...]]:
    """Return by how much the tasks of a batch move the counters."""
    sorts = Counter(
        stored.read(
            """SELECT project_type, target_url, status, severity, external_id IS NOT NULL FROM tasks
               WHERE seq BETWEEN ? AND ?""",
            first,
            last,
        )
    )
    changes: Counter[tuple[Any, ...]] = Counter()
    for (project_type, target, *sort), n in sorts.items():
        for scope in fs.scopes("tasks", project_type, target):
            changes[CLIENT, scope, *sort] += n
    return [(*counter, n) for counter, n in changes.items()]


COUNT = """INSERT INTO counters VALUES (?, ?, ?, ?, ?, ?)
    ON CONFLICT (client_id, scope, status, severity, identified) DO UPDATE SET n = counters.n + excluded.n"""
TABLES = {"tasks": "seq"} | dict.fromkeys(("task_details", "task_cells", "sightings", "history"), "task_seq")


class SameRows:
    """A copy of the service's database, into which the rows that the service stored are written again."""

    def __init__(self, stored: Stored, name: str) -> None:
        self.connection = durable(stored.copy(name).path)
        self.behind = stored.rows

    def rate(self, source: Stored, batches: int) -> float:
        """Write the newest batches of the service, and return how many tasks a second that were."""
        tables = {table: table_rows(source, table, key, self.behind) for table, key in TABLES.items()}
        steps: list[tuple[str, list[tuple[Any, ...]]]] = []
        for batch in range(batches):
            place = batch * BATCH
            steps.append(("BEGIN", []))
            for table, rows in tables.items():
                part = rows[place : place + BATCH]
                steps.append((f"INSERT INTO {table} VALUES ({', '.join('?' * len(part[0]))})", part))
            first = self.behind + place + 1
            steps += [(COUNT, counter_rows(source, first, first + BATCH - 1)), ("COMMIT", [])]
        begun = time.perf_counter()
        for statement, part in steps:
            if part:
                self.connection.executemany(statement, part)
            else:
                self.connection.execute(statement)
        seconds = time.perf_counter() - begun
        self.behind += batches * BATCH
        return batches * BATCH / seconds


# ---------------------------------------------------------------------------
# Rounds and rows
# ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Row:
    """One line of the table."""

    part: str
    name: str
    measured: float
    floor: float
    unit: str
    ratio: float
    to_reach: float
    at_least: bool
    reached: bool = field(init=False)

    def __post_init__(self) -> None:
        good = self.ratio >= self.to_reach if self.at_least else self.ratio <= self.to_reach
        object.__setattr__(self, "reached", good)


def row_of(part: str, name: str, unit: str, pairs: Sequence[tuple[float, float]], to_reach: float, least: bool) -> Row:
    """Return the row of some rounds, each the floor's figure and ours."""
    ratio = statistics.median(measured / floor for floor, measured in pairs)
    floor, measured = (statistics.median(figures) for figures in zip(*pairs, strict=True))
    return Row(part, name, measured, floor, unit, ratio, to_reach, least)


@dataclass(frozen=True)
class Plan:
    """How much to do."""

    rows: int = 1_000_000
    small: int = SMALL
    rounds: int = 7
    seconds: float = 0.6
    writes: int = 2000
    batches: int = 5
    submissions: int = 8

    def timed(self, load: Load, server: Server, requests: Sequence[bytes]) -> float:
        """Return the rate at which a server answers requests, over and over."""
        return load.run(Job(server.port, requests, 200, seconds=self.seconds)).rate


@dataclass(frozen=True)
class Bench:
    """What all parts of the benchmark share."""

    plan: Plan
    load: Load
    folder: Path
    small: Stored


# ---------------------------------------------------------------------------
# Parts
# ---------------------------------------------------------------------------


def measure_reads(bench: Bench) -> Iterator[Row]:
    """Compare reading with a hello world."""
    plan, stored = bench.plan, bench.small.copy("reads.db")
    run_id = stored.read("SELECT id FROM runs ORDER BY seq LIMIT 1")[0][0]
    works = {
        "GET one task, 16 connections": (
            [request(stored.key, "GET", path) for path in stored.task_paths(1000)],
            0.60,
        ),
        "GET the list of 50, 16 connections": ([request(stored.key, "GET", "/api/v1/tasks")], 0.35),
        "GET a run with its summary, 16 connections": ([request(stored.key, "GET", f"/api/v1/runs/{run_id}")], 0.35),
    }
    greeting = [request("", "GET", "/")]
    with hello() as floor, service(stored.path) as server:
        for name, (requests, to_reach) in works.items():
            plan.timed(bench.load, floor, greeting)
            plan.timed(bench.load, server, requests)
            pairs = [
                (plan.timed(bench.load, floor, greeting), plan.timed(bench.load, server, requests))
                for _ in range(plan.rounds)
            ]
            yield row_of("reads", name, "/s", pairs, to_reach, True)


class Triage:
    """PATCH requests for ever, each giving a task another status than the one it has."""

    def __init__(self, stored: Stored) -> None:
        steps = itertools.product(("in_progress", "dismissed", "resolved"), stored.task_paths(1000))
        self._requests = itertools.cycle(
            [request(stored.key, "PATCH", path, json.dumps({"status": status}).encode()) for status, path in steps]
        )

    def next(self, count: int) -> list[bytes]:
        """Return the next requests."""
        return list(itertools.islice(self._requests, count))


def measure_writes(bench: Bench) -> Iterator[Row]:
    """Compare single durable writes with SQLite's."""
    plan, stored = bench.plan, bench.small.copy("writes.db")
    floor, triage = OneRow(bench.small), Triage(stored)
    with service(stored.path) as server:

        def patch_rate() -> float:
            return bench.load.run(Job(server.port, triage.next(plan.writes), 200)).rate

        path = f"/api/v1/runs/{start_run(server, stored.key, 0)}/tasks"
        numbers = itertools.count(stored.rows)

        def post_rate() -> float:
            tasks = [make_task(number) for number in itertools.islice(numbers, plan.writes)]
            requests = [request(stored.key, "POST", path, json.dumps(task).encode()) for task in tasks]
            return bench.load.run(Job(server.port, requests, 201)).rate

        patch_rate()
        pairs = [(floor.update_rate(plan.writes), patch_rate()) for _ in range(plan.rounds)]
        yield row_of("writes", "PATCH a status, 16 connections, durable", "/s", pairs, 0.60, True)
        post_rate()
        pairs = [(floor.insert_rate(plan.writes), post_rate()) for _ in range(plan.rounds)]
        yield row_of("writes", "POST one task, 16 connections, durable", "/s", pairs, 0.50, True)


def submit(bench: Bench, server: Server, key: str, run_number: int, bodies: Sequence[bytes], status: int) -> Outcome:
    """Submit batches to a new run, one after the other."""
    path = f"/api/v1/runs/{start_run(server, key, run_number)}/tasks"
    requests = [request(key, "POST", path, body) for body in bodies]
    return bench.load.run(Job(server.port, requests, status, connections=1))


def measure_batches(bench: Bench) -> Iterator[Row]:
    """Compare batches with the same rows written by SQLite alone, and known findings with new ones."""
    plan, stored = bench.plan, bench.small.copy("batches.db")
    floor = SameRows(bench.small, "same-rows.db")
    first, new, again = stored.rows, list[tuple[float, float]](), list[tuple[float, float]]()
    with service(stored.path) as server:
        for number in range(plan.rounds + 1):
            bodies = [batch_body(first + batch * BATCH, BATCH) for batch in range(plan.batches)]
            created = submit(bench, server, stored.key, number, bodies, 201).rate * BATCH
            seen = submit(bench, server, stored.key, number, bodies, 200)
            if json.loads(seen.last)["unchanged"] != BATCH:
                raise ValueError("known findings were not unchanged")
            new.append((floor.rate(stored, plan.batches), created))
            again.append((created, seen.rate * BATCH))
            first += plan.batches * BATCH
    fast = importlib.util.find_spec("jsonschema_rs") is not None
    name = f"POST batches of 1,000 new tasks, {'with' if fast else 'without'} jsonschema-rs"
    yield row_of("batches", name, " tasks/s", new[1:], 0.55 if fast else 0.30, True)
    yield row_of("batches", "POST the same 1,000 again, against new ones", " tasks/s", again[1:], 1.5, True)


def start_seconds(stored: Stored) -> float:
    """Return how long the service takes from its command to its first 200."""
    port, begun = fs.free_port(HOST, 0), time.perf_counter()
    command = service_command(stored.path, port)
    with subprocess.Popen(command, stderr=subprocess.DEVNULL, env=clean_environment()) as process:
        try:
            wait_for(port, "/healthz", lambda: process.poll() is None)
            return time.perf_counter() - begun
        finally:
            process.terminate()


def import_seconds() -> float:
    """Return how long Python takes to import Flask."""
    begun = time.perf_counter()
    subprocess.run([sys.executable, "-c", "import flask"], check=True)
    return time.perf_counter() - begun


def measure_start(bench: Bench) -> Iterator[Row]:
    """Compare starting with importing Flask."""
    stored = bench.small.copy("start.db")
    import_seconds(), start_seconds(stored)
    pairs = [(import_seconds() * 1000, start_seconds(stored) * 1000) for _ in range(bench.plan.rounds)]
    yield row_of("start", "start to the first 200 from /healthz", " ms", pairs, 3.0, False)


def flat_reads(stored: Stored) -> Mapping[str, list[bytes]]:
    """Return the reads that must cost the same whatever is stored."""
    deep = stored.read("SELECT id FROM tasks WHERE seq <= ? ORDER BY seq DESC LIMIT 1000", stored.rows // 10)[::50]
    run_id = stored.read("SELECT id FROM runs ORDER BY seq LIMIT 1 OFFSET ?", stored.rows // BATCH // 2)[0][0]
    many_runs = ",".join([*(row[0] for row in stored.read("SELECT id FROM runs LIMIT 2")), *map(str, range(998))])
    many_types = ",".join(["bench", *(f"type-{number}" for number in range(999))])
    external_id = stored.read("SELECT external_id FROM tasks WHERE seq = ?", stored.rows // 2)[0][0]
    paths = {
        "list, page 1": ["/api/v1/tasks"],
        "list, one status": ["/api/v1/tasks?status=open"],
        "list, one severity": ["/api/v1/tasks?severity=critical"],
        "list, by severity": ["/api/v1/tasks?sort=severity"],
        "list, 1,000 runs, of which two are known": [f"/api/v1/tasks?runId={many_runs}"],
        "list, 1,000 project types": [f"/api/v1/tasks?projectType={many_types}&status=open"],
        "list, one externalId": [f"/api/v1/tasks?externalId={external_id}"],
        "list, next links behind 9 tenths": [f"/api/v1/tasks?limit=50&after={row[0]}" for row in deep],
        "a run with its summary": [f"/api/v1/runs/{run_id}"],
        "one task": stored.task_paths(1000),
    }
    return {name: [request(stored.key, "GET", path) for path in group] for name, group in paths.items()}


def measure_flatness(bench: Bench) -> Iterator[Row]:
    """Compare requests to many stored tasks with the same requests to few."""
    plan = bench.plan
    big, small = filled(bench.folder / "big.db", plan.rows), bench.small.copy("flat.db")
    size = big.path.stat().st_size / plan.rows
    with service(small.path) as few, service(big.path) as many:
        yield file_row(bench, big, many, size)
        reads = {name: (flat_reads(small)[name], requests) for name, requests in flat_reads(big).items()}
        for name, (at_small, at_big) in reads.items():
            pairs = []
            for _ in range(plan.rounds + 1):
                pair = (plan.timed(bench.load, few, at_small), plan.timed(bench.load, many, at_big))
                pairs.append((1000 / pair[0], 1000 / pair[1]))
            yield flat_row(plan, name, pairs[1:])
        yield from flat_writes(bench, (small, few), (big, many))
        bodies = [batch_body(plan.rows * 2 + place * BATCH, BATCH) for place in range(plan.batches)]
        submit(bench, many, big.key, 0, bodies, 201)
        yield memory_row(plan, many.memory())


def file_row(bench: Bench, stored: Stored, server: Server, size: float) -> Row:
    """Compare the size of the file with the JSON that it holds."""
    jobs = [Job(server.port, [request(stored.key, "GET", path)], 200, connections=1) for path in stored.task_paths(200)]
    length = statistics.mean(len(bench.load.run(job).last) for job in jobs)
    return Row("flatness", "file per task, against its JSON", size, length, " bytes", size / length, 1.6, False)


def memory_row(plan: Plan, used: float) -> Row:
    """Compare the memory of the service, after all that it has served, with what it may take."""
    name = f"resident memory at {plan.rows:,}, against {MEMORY_LIMIT:g} MB"
    return Row("flatness", name, used, MEMORY_LIMIT, " MB", used / MEMORY_LIMIT, 1.0, False)


def flat_row(plan: Plan, name: str, pairs: Sequence[tuple[float, float]]) -> Row:
    """Return the row of one request at two sizes, in milliseconds."""
    return row_of("flatness", f"{plan.rows:,} against {plan.small:,}: {name}", " ms", pairs, 1.25, False)


def flat_writes(bench: Bench, few: tuple[Stored, Server], many: tuple[Stored, Server]) -> Iterator[Row]:
    """Compare writes at two sizes."""
    plan = bench.plan
    places = [(stored, server, Triage(stored), itertools.count(stored.rows, 200)) for stored, server in (few, many)]
    pairs: dict[str, list[tuple[float, ...]]] = {"submit 200 tasks": [], "PATCH a status": []}
    for number in range(plan.rounds + 1):
        submitted, patched = [], []
        for stored, server, triage, numbers in places:
            bodies = [batch_body(first, 200) for first in itertools.islice(numbers, plan.submissions)]
            submitted.append(1000 / submit(bench, server, stored.key, number, bodies, 201).rate)
            patched.append(1000 / bench.load.run(Job(server.port, triage.next(plan.writes // 2), 200)).rate)
        pairs["submit 200 tasks"].append(tuple(submitted))
        pairs["PATCH a status"].append(tuple(patched))
    for name, figures in pairs.items():
        yield flat_row(plan, name, [(figure[0], figure[1]) for figure in figures[1:]])


PARTS: Mapping[str, Callable[[Bench], Iterator[Row]]] = {
    "reads": measure_reads,
    "writes": measure_writes,
    "batches": measure_batches,
    "start": measure_start,
    "flatness": measure_flatness,
}


# ---------------------------------------------------------------------------
# Command line
# ---------------------------------------------------------------------------


def figure(value: float, unit: str) -> str:
    """Return a figure as people read it."""
    return f"{value:,.{0 if value >= 100 else 2}f}{unit}"


def line_of(row: Row) -> str:
    """Return a row as a line of the table."""
    goal = f"{'>=' if row.at_least else '<='} {row.to_reach:.2f}"
    figures = f"{figure(row.measured, row.unit):>16} {figure(row.floor, row.unit):>16}"
    return f"{row.name:<56} {figures} {row.ratio:>7.2f}  {goal:<8} {'ok' if row.reached else 'MISSED'}"


def machine() -> dict[str, Any]:
    """Return where this was measured."""
    return {
        "service": fs.__version__,
        "python": platform.python_version(),
        "sqlite": sqlite3.sqlite_version,
        "system": f"{platform.system()} {platform.machine()}",
        "processors": os.cpu_count(),
    }


def arguments() -> argparse.Namespace:
    """Return what the command line asks for."""
    parser = argparse.ArgumentParser(description="Measure the service against its own floors.")
    parser.add_argument("--rows", type=int, help="stored tasks of the big database (default 1,000,000)")
    parser.add_argument("--quick", action="store_true", help="a little of everything, to see that it works")
    parser.add_argument("--json", action="store_true", help="print JSON instead of the table")
    parser.add_argument("--only", action="append", choices=list(PARTS), help="measure this part; may be repeated")
    return parser.parse_args()


def plan_of(given: argparse.Namespace) -> Plan:
    """Return how much to do."""
    if given.quick:
        return Plan(given.rows or 20_000, 2000, rounds=3, seconds=0.1, writes=200, batches=1, submissions=2)
    return Plan(given.rows or Plan.rows)


def main() -> None:
    """Measure, and print every row as soon as it is there. A missed target is told, and is no error."""
    given = arguments()
    plan, rows = plan_of(given), []
    if not given.json:
        print(", ".join(f"{name} {value}" for name, value in machine().items()))
        print(f"{'work':<56} {'measured':>16} {'floor':>16} {'ratio':>7}  to reach")
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="findings-bench-")))
        load = stack.enter_context(load_process())
        bench = Bench(plan, load, folder, filled(folder / "small.db", plan.small))
        for part in given.only or PARTS:
            for row in PARTS[part](bench):
                rows.append(row)
                if not given.json:
                    print(line_of(row), flush=True)
    if given.json:
        print(json.dumps({"machine": machine(), "rows": [asdict(row) for row in rows]}, indent=2))


if __name__ == "__main__":
    main()
