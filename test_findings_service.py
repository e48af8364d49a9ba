"""What the service promises, test by test, in the order of its module: requests first, the command line last.

Most tests talk to the application in this process; those that need a server start a real one on a free port.
Every answer that the in-process client gets is also held against the service's own OpenAPI document.
"""

from __future__ import annotations

import asyncio
import atexit
import errno
import fcntl
import gzip
import hashlib
import http.client
import importlib
import importlib.metadata
import importlib.util
import inspect
import io
import itertools
import json
import os
import pty
import random
import re
import resource
import secrets
import shlex
import shutil
import signal
import socket
import sqlite3
import stat
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import threading
import time
import tomllib
import tracemalloc
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from functools import cache, partial, reduce
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import click
import click.testing
import flask
import flask.json.provider
import jsonschema
import jsonschema_rs
import msgspec
import openapi_spec_validator
import pytest
import regex
from flask.testing import FlaskClient
from werkzeug.datastructures import Headers
from werkzeug.routing import Rule

import findings_service
from findings_adapters.serving import commits, rsgi
from findings_features import audit, backup, brief, deletion, exports, openapi, search
from findings_service import (
    LARGE_WAL,
    Busy,
    DatabaseUnusable,
    Settings,
    TryAgain,
    create_app,
    create_blueprint,
)
from tests import postgres_server
from tests.engines import (
    ON_POSTGRES,
    absence_of,
    db_at,
    engine_error,
    faults_of,
    full_error,
    held_in,
    locked,
    look_into,
    placed,
    refusing_rows,
    statements,
    what_commits,
)
from tests.postgres_server import postgres  # noqa: F401 - a fixture

HERE = Path(__file__).resolve().parent
MODULE = HERE / "findings_service.py"
# Not the file itself, which Python would compile anew for each of hundreds of processes.
PROGRAM = (sys.executable, "-m", "findings_service")
API = "/api/v1"
findings_service.load_parts()
OPERATIONS = [*findings_service.REGISTRY.operations.values()]
UNKNOWN_ID = "01900000-0000-7000-8000-000000000000"
TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")
UUID7 = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")
KEY = re.compile(r"fts_[A-Za-z0-9_-]{43}")
SEVERITIES = ("critical", "high", "medium", "low", "info")
STATUSES = ("open", "in_progress", "resolved", "dismissed")
KIB = 1024
IMAGE = "data:image/png;base64,"
TITLES = {
    400: "Bad Request",
    401: "Unauthorized",
    403: "Forbidden",
    404: "Not Found",
    405: "Method Not Allowed",
    409: "Conflict",
    412: "Precondition Failed",
    413: "Content Too Large",
    415: "Unsupported Media Type",
    422: "Unprocessable Content",
    500: "Internal Server Error",
    503: "Service Unavailable",
}
RUN_FIELDS = {
    *("id", "projectType", "targetUrl", "branch", "metadata", "status", "statusReason"),
    *("createdAt", "updatedAt", "finishedAt", "submitted"),
}
HEAD_FIELDS = {
    *("id", "runId", "lastRunId", "projectType", "targetUrl", "branch", "externalId", "title", "severity", "status"),
    *("reason", "assignee", "createdAt", "updatedAt", "lastSeenAt", "timesSeen"),
}
BULK_FIELDS = {"description", "evidence", "remediation", "successCriteria", "extensions"}
TYPE_FIELDS = {"id", "name", "label", "description", "createdAt"}
WCAG_SCHEMA = {
    "type": "object",
    "properties": {"wcag": {"type": "string", "pattern": r"^\d\.\d\.\d$"}, "pages": {"items": {"type": "integer"}}},
    "required": ["wcag"],
    "additionalProperties": False,
}


# ---------------------------------------------------------------------------
# Helpers and fixtures
# ---------------------------------------------------------------------------


def sqlite_cases(**named: Any) -> list[Any]:
    """Return the rows of a parametrized table that are about SQLite itself."""
    return [pytest.param(*row.values, id=row.id, marks=pytest.mark.sqlite) for row in cases(**named)]


def cases(**named: Any) -> list[Any]:
    """Return the rows of a parametrized table, each with its name."""
    return [pytest.param(*(row if isinstance(row, tuple) else (row,)), id=name) for name, row in named.items()]


def task(**fields: Any) -> dict[str, Any]:
    """Return a task to submit; a field that is `...` is left out."""
    whole = {"title": "Image without alt text", "severity": "high"} | fields
    return {name: value for name, value in whole.items() if value is not ...}


def nested(levels: int) -> Any:
    """Return an object with that many levels."""
    value: Any = {}
    for _ in range(levels - 1):
        value = {"a": value}
    return value


def assert_problem(response: Any, status: int, code: str, pointer: str | None = None) -> dict[str, Any]:
    """Check an error's shape (RFC 9457), and that one problem is at `pointer`, or about a parameter of that name."""
    problem = response.json
    assert (response.status_code, problem.get("code")) == (status, code), problem
    assert response.content_type == "application/problem+json"
    assert (problem["type"], problem["title"], problem["status"]) == ("about:blank", TITLES[status], status)
    assert problem["detail"]
    for error in problem.get("errors", ()):
        assert error["detail"]
        assert ("pointer" in error) != ("parameter" in error)
    if pointer is not None:
        places = [error.get("pointer", error.get("parameter")) for error in problem.get("errors", ())]
        assert pointer in places, problem
    return dict(problem)


@cache
def validator_of(method: str, path: str, status: int, content_type: str) -> Any:
    """Return what checks an answer against the OpenAPI document."""
    document = openapi.document_of(*OPERATIONS)
    responses = document["paths"][path][method.lower()]["responses"]
    assert str(status) in responses, f"{method} {path} does not document {status}"
    if not content_type:
        assert "content" not in responses[str(status)], f"{method} {path} documents a body of {status}"
        return jsonschema_rs.Draft202012Validator({"const": None})
    schema = responses[str(status)]["content"][content_type]["schema"]
    return jsonschema_rs.Draft202012Validator({**schema, "components": document["components"]})


def assert_documented(response: Any) -> None:
    """Check that OpenAPI tells of this answer: its status and, unless it is long, its body."""
    method, path = response.request.method, response.request.path
    for operation in OPERATIONS:
        parts = findings_service.path_parts(operation.path.split("/"), path.split("/"))
        if operation.method == method and parts is not None:
            media_type = (response.content_type or "").partition(";")[0]
            validator = validator_of(method, operation.path, response.status_code, media_type)
            other_forms = {**findings_service.REGISTRY.list_exports, **brief.EXPORTS}
            if media_type not in other_forms and len(response.data) < 10_000:
                validator.validate(response.json if response.data else None)


class Client(FlaskClient):
    """A test client that sends a key with every request."""

    key = ""

    def open(self, *args: Any, **kwargs: Any) -> Any:
        headers = Headers(kwargs.pop("headers", None))
        if self.key:
            headers.setdefault("Authorization", f"Bearer {self.key}")
        response = super().open(*args, headers=headers, **kwargs)
        assert_documented(response)
        return response

    def send(self, method: str, path: str, body: bytes | str) -> Any:
        """Send a body as it is, said to be JSON."""
        return self.open(path, method=method, data=body, content_type="application/json")

    def register(self, name: str, schema: Any = None) -> dict[str, Any]:
        """Register a project type."""
        response = self.post(f"{API}/project-types", json={"name": name, "extensionSchema": schema})
        assert response.status_code in (200, 201), response.json
        return response.json

    def start(self, project_type: str = "web", **fields: Any) -> str:
        """Start a run and return its id."""
        response = self.post(f"{API}/runs", json={"projectType": project_type, **fields})
        assert response.status_code == 201, response.json
        return response.json["id"]

    def finish(self, run_id: str, status: str = "completed", **fields: Any) -> dict[str, Any]:
        """Finish a run."""
        response = self.patch(f"{API}/runs/{run_id}", json={"status": status, **fields})
        assert response.status_code == 200, response.json
        return response.json

    def submit(self, run_id: str, *tasks: dict[str, Any]) -> dict[str, Any]:
        """Submit a batch and return what it did."""
        response = self.post(f"{API}/runs/{run_id}/tasks", json={"tasks": tasks})
        assert response.status_code in (200, 201), response.json
        return response.json

    def add(self, run_id: str, **fields: Any) -> str:
        """Submit one task and return its id."""
        return self.submit(run_id, task(**fields))["tasks"][0]["id"]

    def triage(self, task_id: str, status: str | None = None, **fields: Any) -> dict[str, Any]:
        """Give a task a status, or make another decision about it."""
        response = self.patch(f"{API}/tasks/{task_id}", json={"status": status, **fields})
        assert response.status_code == 200, response.json
        return response.json

    def read(self, path: str, **query: Any) -> Any:
        """Get a path below the API's and return the JSON."""
        response = self.get(path if path.startswith("/") else f"{API}/{path}", query_string=query or None)
        assert response.status_code == 200, response.json
        return response.json

    def remove(self, path: str) -> None:
        """Delete what is at a path below the API's."""
        response = self.delete(f"{API}/{path}")
        assert (response.status_code, response.data) == (204, b""), response.json

    def history(self, task_id: str) -> list[dict[str, Any]]:
        """Return what happened to a task."""
        return self.read(f"tasks/{task_id}/history")["history"]

    def walk(self, path: str, **query: Any) -> Iterator[dict[str, Any]]:
        """Give every page of a list, by its next links."""
        page = self.read(path, **query)
        yield page
        while page["next"]:
            page = self.read(page["next"])
            yield page


def database_of(app: flask.Flask) -> Any:
    """Return the database of an application."""
    return app.extensions["findings"].database


def reader_of(app: flask.Flask) -> Any:
    """Return the one connection with which an application reads a file."""
    with database_of(app).reading() as connection:
        return connection


def rows_of(app: flask.Flask, sql: str) -> list[Any]:
    """Return what an application reads from its database."""
    with database_of(app).reading() as connection:
        return connection.execute(sql).fetchall()


def writer_of(app: flask.Flask) -> Any:
    """Return the one connection with which an application writes a file."""
    with database_of(app).maintaining() as connection:
        return connection


READ_ONLY = "busy" if ON_POSTGRES else "storage_full"  # what a database that takes no writes is called


@contextmanager
def read_only(app: flask.Flask) -> Iterator[None]:
    """Let the database of an application take no writes."""
    database = database_of(app)
    if not ON_POSTGRES:
        writer_of(app).execute("PRAGMA query_only = ON")
        yield
        writer_of(app).execute("PRAGMA query_only = OFF")
        return
    change = f"ALTER DATABASE {database.settings.db.rpartition('/')[2]}"
    with look_into(database.settings.db) as connection:
        for what in ("SET default_transaction_read_only = on", "RESET default_transaction_read_only"):
            connection.execute(f"BEGIN; SET TRANSACTION READ WRITE; {change} {what}; COMMIT")
            database.disconnect()
            if what.startswith("SET"):
                yield


def make_key(app: flask.Flask, name: str = "tests", client: str = "default", level: str = "full") -> str:
    """Make a key, as the command line does."""
    with database_of(app).transaction() as connection:
        return findings_service.insert_key(connection, name, client, level)


def client_of(app: flask.Flask, level: str = "full", client: str = "default", name: str = "tests") -> Client:
    """Return a client with a key of its own."""
    app.test_client_class = Client
    client_with_key = app.test_client()
    assert isinstance(client_with_key, Client)
    client_with_key.key = make_key(app, name, client, level)
    return client_with_key


@pytest.fixture(autouse=True)
def _no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("FINDINGS_")]:
        monkeypatch.delenv(name)


@pytest.fixture(scope="session", autouse=True)
def _url_builders() -> Iterator[None]:
    """Let werkzeug compile what builds URLs once for each rule: that is most of what making an application costs."""
    built: dict[tuple[str, str, bool], Any] = {}
    build = Rule._compile_builder

    def kept(rule: Rule, append_unknown: bool = True) -> Any:
        named = (str(rule), repr(rule.defaults), append_unknown)
        if named not in built:
            built[named] = build(rule, append_unknown)
        return built[named]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Rule, "_compile_builder", kept)
        yield


@pytest.fixture(scope="session")
def new_database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database that nothing was stored in: copying it takes a fraction of making one for each of the tests."""
    db = tmp_path_factory.mktemp("new") / "findings.db"
    database_of(create_app(db=str(db))).close()
    return db


@pytest.fixture
def make_app(tmp_path: Path, new_database: Path) -> Iterator[Callable[..., flask.Flask]]:
    """Make applications with settings, on one file and without waiting for the disk unless those say otherwise."""
    made = []

    def make(**settings: Any) -> flask.Flask:
        db = tmp_path / "findings.db"
        if not ON_POSTGRES and not db.exists():
            shutil.copyfile(new_database, db)
        read = Settings.read(**{**settings, "db": db_at(settings.get("db", db), ready=True)})
        hasty = {} if "synchronous" in settings else {"synchronous": "OFF"}  # only a power cut would tell
        made.append(create_app(msgspec.structs.replace(read, **hasty)))
        return made[-1]

    yield make
    for app in made:
        database_of(app).close()


@pytest.fixture
def app(make_app: Callable[..., flask.Flask]) -> flask.Flask:
    return make_app()


@pytest.fixture
def client(app: flask.Flask) -> Client:
    return client_of(app)


@pytest.fixture
def run(client: Client) -> str:
    """The id of a running run, of a project type without a schema."""
    client.register("web")
    return client.start("web", targetUrl="https://example.com/")


@dataclass(frozen=True)
class Answer:
    """What a real server answered."""

    status_code: int
    headers: http.client.HTTPMessage
    data: bytes

    @property
    def content_type(self) -> str | None:
        return self.headers["Content-Type"]

    @property
    def json(self) -> Any:
        return json.loads(self.data)


@dataclass
class Server:
    """A real process that serves."""

    process: subprocess.Popen[bytes] | Forked
    db: Path
    said: str
    log: Path

    @property
    def port(self) -> int:
        found = re.search(r"http://127\.0\.0\.1:(\d+)", self.said)
        assert found
        return int(found[1])

    @property
    def key(self) -> str:
        return KEY.findall(self.said)[0]

    def heard(self) -> str:
        """Return all that it has said so far."""
        return self.log.read_text("utf-8")

    def request(self, method: str, path: str, body: Any = None, key: str = "", **headers: str) -> Answer:
        """Send one request, with the first key unless another is given."""
        sent = {"Authorization": f"Bearer {key or self.key}", "Content-Type": "application/json"} | headers
        raw = json.dumps(body) if isinstance(body, dict) else body
        with closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)) as connection:
            with suppress(BrokenPipeError, ConnectionResetError):  # a large body may be refused early
                connection.request(method, path, raw, sent, encode_chunked="Transfer-Encoding" in headers)
            response = connection.getresponse()
            return Answer(response.status, response.headers, response.read())

    def start_run(self, schema: Any = None) -> str:
        """Start a run of a project type and return its id."""
        self.request("POST", f"{API}/project-types", {"name": "web", "extensionSchema": schema})
        return self.request("POST", f"{API}/runs", {"projectType": "web"}).json["id"]

    def head_of(self, path: str, length: int) -> bytes:
        """Return the head of a POST request, to be written to a socket."""
        lines = (f"POST {path} HTTP/1.1", "Host: localhost", f"Authorization: Bearer {self.key}")
        return "\r\n".join((*lines, "Content-Type: application/json", f"Content-Length: {length}\r\n\r\n")).encode()

    def stop(self, how: signal.Signals = signal.SIGTERM) -> int:
        """Stop the process and return its exit code."""
        if self.process.poll() is None:
            self.process.send_signal(how)
        try:
            return self.process.wait(15)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return self.process.wait(15)


def memory_of(server: Server) -> float:
    """Return the resident memory of a server, in MiB."""
    pages = int(Path(f"/proc/{server.process.pid}/statm").read_text().split()[1])
    return pages * resource.getpagesize() / KIB / KIB


SURROUNDINGS = re.compile(r"CI$|CI_|GITHUB_|GITLAB_|FINDINGS_|NO_COLOR|COLUMNS|TERM$")


def environment(**more: str) -> dict[str, str]:
    """Return the environment of a command: ours, without settings of the service but for the given ones.

    What would be printed otherwise elsewhere is left out too: a terminal's width and colours, and the variables by
    which a CI platform tells where a job runs, which these tests may be part of. A service is one process, unless a
    test is about more, so that it knows what the request before left it with.
    """
    ours = {name: value for name, value in os.environ.items() if not SURROUNDINGS.match(name)}
    return ours | {"FINDINGS_WORKERS": "1"} | more


def heed_signals() -> None:
    """Heed the signals that end a process; these tests may run in the background, under nohup."""
    for each in (signal.SIGINT, signal.SIGHUP):
        signal.signal(each, signal.SIG_DFL)


# Starting Python and importing the module takes a third of a second, which hundreds of processes would each spend anew.
# So one process does it, and forks into each command and server: those run all that comes after, to the end of their
# interpreter. What is told to Python itself, and what the pages do, starts from nothing.
FORKER = """
import gc, json, os, sys
import findings_service

gc.freeze()  # so that a process that ends does not look through all that it began with
for line in sys.stdin:
    order = json.loads(line)
    if "pid" in order:
        ended, status = os.waitpid(order["pid"], os.WNOHANG)
        answer = os.waitstatus_to_exitcode(status) if ended else None
    elif not (answer := os.fork()):
        break
    print(json.dumps(answer), flush=True)
else:
    sys.exit()
for number, name in enumerate((os.devnull, *order["sinks"])):
    os.dup2(os.open(name, os.O_RDWR | os.O_APPEND), number)
os.chdir(order["cwd"])
os.environ.clear()
os.environ.update(order["env"])
sys.argv[1:] = order["arguments"]
exec(order["program"], {"__name__": "__main__"})
"""
IMPORTING = "import findings_service"
DRIVER = "import findings_adapters.postgres.store\n" if ON_POSTGRES else ""  # which takes as long again
OF_PYTHON = ("PYTHON", "LD_", "LC_", "LANG", "TZ")  # variables that a process reads as it starts, and not again


def forkable(line: Sequence[str], env: dict[str, str]) -> str:
    """Return the program of a line that begins with importing the module, and so may be forked; empty for others."""
    if any(name.startswith(OF_PYTHON) for name in env):
        return ""
    if line[: len(PROGRAM)] == [*PROGRAM]:
        return f"{IMPORTING}; findings_service.main()"
    return line[2] if line[1] == "-c" and line[2].startswith(IMPORTING) else ""


@cache
def forker() -> tuple[subprocess.Popen[str], threading.Lock]:
    """Start, once, the process that forks, and return it with the lock of who speaks to it."""
    line = [sys.executable, "-c", DRIVER + FORKER]
    process = subprocess.Popen(
        line,
        cwd=HERE,
        env=environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=heed_signals,
    )
    atexit.register(process.communicate)  # which closes its input: that ends it
    return process, threading.Lock()


class Forked:
    """A process that was forked to run a program, in files; what tests ask of a Popen it has too."""

    def __init__(self, program: str, line: Sequence[str], sinks: Sequence[str], **how: Any) -> None:
        self.returncode: int | None = None
        self.pid = self.ask(program=program, arguments=line[3:], sinks=sinks, **how)

    def ask(self, **order: Any) -> Any:
        """Send an order to the process that forks, and return its answer."""
        process, speaking = forker()
        with speaking:
            process.stdin.write(f"{json.dumps(order)}\n")
            process.stdin.flush()
            return json.loads(process.stdout.readline())

    def poll(self) -> int | None:
        """Return its exit code if it has ended."""
        if self.returncode is None:
            self.returncode = self.ask(pid=self.pid)
        return self.returncode

    def wait(self, timeout: float) -> int:
        """Wait until it has ended and return its exit code."""
        deadline = time.monotonic() + timeout
        while (code := self.poll()) is None:
            if time.monotonic() > deadline:
                raise subprocess.TimeoutExpired("findings-service", timeout)
            time.sleep(0.005)
        return code

    def send_signal(self, how: signal.Signals) -> None:
        """Send it a signal."""
        if self.poll() is None:
            os.kill(self.pid, how)

    def kill(self) -> None:
        """Kill it."""
        self.send_signal(signal.SIGKILL)


def command(*arguments: str, program: Sequence[str] = PROGRAM, **env: str) -> subprocess.CompletedProcess[str]:
    """Run a command of the service to its end."""
    line = [*program, *placed(arguments)]
    env |= {"FINDINGS_DB": db_at(env["FINDINGS_DB"])} if "FINDINGS_DB" in env else {}
    if not (text := forkable(line, env)):
        return subprocess.run(
            line, cwd=HERE, capture_output=True, text=True, env=environment(**env), timeout=30, check=False
        )
    with tempfile.NamedTemporaryFile("r") as out, tempfile.NamedTemporaryFile("r") as err:
        process = Forked(text, line, (out.name, err.name), cwd=str(HERE), env=environment(**env))
        try:
            return subprocess.CompletedProcess(line, process.wait(30), out.read(), err.read())
        finally:
            process.kill()


def program_with(**constants: float) -> tuple[str, ...]:
    """Return the program with other constants of its module, for a test to wait for less."""
    changes = "; ".join(f"findings_service.{name} = {value}" for name, value in constants.items())
    return (sys.executable, "-c", f"{IMPORTING}; {changes}; findings_service.main()")


def start_process(line: list[str], db: Path, until: str, cwd: Path = HERE, **env: str) -> Server:
    """Start a server and return when it has said what `until` matches."""
    line, log = placed(line, cwd), db.with_name(f"{db.name}-{time.monotonic_ns()}.log")
    env |= {"FINDINGS_DB": db_at(env["FINDINGS_DB"])} if "FINDINGS_DB" in env else {}
    with log.open("wb") as sink:
        if program := forkable(line, env):
            process: Any = Forked(program, line, (str(log), str(log)), cwd=str(cwd), env=environment(**env))
        else:
            process = subprocess.Popen(line, stderr=sink, stdout=sink, cwd=cwd, env=environment(**env))
    deadline = time.monotonic() + 20
    while not re.search(until, said := log.read_text("utf-8")):
        if process.poll() is not None or time.monotonic() > deadline:
            process.kill()
            process.wait(15)
            pytest.fail(f"the server did not start: {said}")
        time.sleep(0.02)
    return Server(process, db, said, log)


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[..., Server]]:
    """Start servers, on one file unless FINDINGS_DB says otherwise, and stop them in the end."""
    started = []

    def start(*options: str, until: str = r"curl .*\n", program: Sequence[str] = PROGRAM, **env: str) -> Server:
        db = Path(env.pop("FINDINGS_DB", str(tmp_path / "served.db")))
        line = [*program, "serve", "--port", "0", "--db", db_at(db, ready=True), *options]
        started.append(start_process(line, db, until, **env))
        return started[-1]

    yield start
    for server in started:
        server.stop()


@pytest.fixture
def server(serve: Callable[..., Server]) -> Server:
    return serve()


# ---------------------------------------------------------------------------
# Conventions
# ---------------------------------------------------------------------------

STRINGS = (
    "plain",
    "  spaces stay  ",
    "e\u0301 is not \u00e9",
    "\U0001f600 \U0010ffff",
    "\ufffe \uffff \ufdd0",
    "\ufeffmark \u2028 \u2029 \u200f",
    "\x01\x1f\x7f\t\n\r",
    '\\u0000 " / \\',
    "<script>&amp;</script>",
)


@pytest.mark.parametrize("escaped", [True, False], ids=["escaped", "plain"])
@pytest.mark.parametrize("text", STRINGS)
def test_strings_come_back_exactly_as_sent(client: Client, run: str, text: str, escaped: bool) -> None:
    sent = task(title=text, description=text, externalId=text, evidence=[{"label": text}], extensions={text: [text]})
    body = json.dumps(sent, ensure_ascii=escaped).encode()
    task_id = client.send("POST", f"{API}/runs/{run}/tasks", body).json["tasks"][0]["id"]
    stored = client.read(f"tasks/{task_id}")
    assert {name: stored[name] for name in ("title", "description", "externalId")} == dict.fromkeys(
        ("title", "description", "externalId"), text
    )
    assert (stored["evidence"][0]["label"], stored["extensions"]) == (text, {text: [text]})
    assert client.read("tasks", externalId=text)["total"] == 1


def test_answers_are_utf8_json(client: Client, run: str) -> None:
    client.add(run, title="für 😀")
    response = client.get(f"{API}/tasks")
    assert response.content_type == "application/json"
    assert "für 😀".encode() in response.data


def test_times_are_utc_with_milliseconds(client: Client, run: str) -> None:
    stored = client.read(f"tasks/{client.add(run)}")
    finished = client.finish(run)
    times = [stored[name] for name in ("createdAt", "updatedAt", "lastSeenAt")]
    times += [finished[name] for name in ("createdAt", "updatedAt", "finishedAt")]
    times += [client.history(stored["id"])[0]["at"], client.read("project-types/web")["createdAt"]]
    assert all(TIME.fullmatch(text) for text in times), times


def test_ids_are_uuid7_and_sort_by_creation(client: Client, run: str) -> None:
    ids = [item["id"] for item in client.submit(run, *[task()] * 50)["tasks"]] + [client.add(run), client.add(run)]
    assert ids == sorted(set(ids))
    assert all(UUID7.fullmatch(text) for text in (*ids, run, client.read("project-types/web")["id"]))
    assert len({text[-12:] for text in ids}) == len(ids)


UNKNOWN_FIELDS = cases(
    run_start=("POST", "runs", {"projectType": "web", "sevrity": 1}, "/sevrity"),
    run_start_read_only=("POST", "runs", {"projectType": "web", "createdAt": "x"}, "/createdAt"),
    run_start_status=("POST", "runs", {"projectType": "web", "status": "running"}, "/status"),
    run_update=("PATCH", "runs/RUN", {"status": "completed", "metadata": {}}, "/metadata"),
    task=("POST", "runs/RUN/tasks", task(sevrity="high"), "/sevrity"),
    odd_name=("POST", "runs/RUN/tasks", task(**{"it's 'title'": 2}), "/it's 'title'"),
    task_id=("POST", "runs/RUN/tasks", task(id="x"), "/id"),
    task_in_batch=("POST", "runs/RUN/tasks", {"tasks": [task(), task(runId="x")]}, "/tasks/1/runId"),
    batch=("POST", "runs/RUN/tasks", {"tasks": [task()], "dryRun": True}, "/dryRun"),
    evidence=("POST", "runs/RUN/tasks", task(evidence=[{"label": "x", "lable": "y"}]), "/evidence/0/lable"),
    remediation=("POST", "runs/RUN/tasks", task(remediation=[{"instruction": "x", "n": 1}]), "/remediation/0/n"),
    criterion=(
        "POST",
        "runs/RUN/tasks",
        task(successCriteria=[{"description": "x", "a/b~": 1}]),
        "/successCriteria/0/a~1b~0",
    ),
    task_update=("PATCH", "tasks/TASK", {"status": "open", "title": "x"}, "/title"),
    tasks_update=("PATCH", "tasks", {"ids": ["x"], "status": "open", "title": "x"}, "/title"),
    project_type=("POST", "project-types", {"name": "a", "schema": {}}, "/schema"),
    project_type_id=("POST", "project-types", {"name": "a", "id": "x"}, "/id"),
    project_type_update=("PUT", "project-types/web", {"createdAt": "x"}, "/createdAt"),
)


@pytest.mark.parametrize(("method", "path"), [(each.method, each.path) for each in OPERATIONS])
def test_unknown_query_parameters_are_refused_by_name(client: Client, run: str, method: str, path: str) -> None:
    path = path.format(run_id=run, task_id=client.add(run), name="web")
    body = {} if method != "GET" else None
    response = client.open(path, method=method, json=body, query_string={"stauts": "open"})
    assert_problem(response, 400, "invalid_parameter", "stauts")


def test_a_whole_number_may_be_written_with_a_point(client: Client, run: str) -> None:
    task_id = client.add(run, remediation=[{"step": 2.0, "instruction": "b"}, {"step": 1e0, "instruction": "a"}])
    response = client.get(f"{API}/tasks/{task_id}")
    assert b'"step":1,' in response.data
    assert [step["step"] for step in response.json["remediation"]] == [1, 2]


def test_null_means_left_out_in_a_task(client: Client, run: str) -> None:
    names = ("status", "externalId", "description", "evidence", "remediation", "successCriteria", "extensions")
    bare, nulls = client.add(run), client.add(run, **dict.fromkeys(names))
    ours = {"id", "createdAt", "updatedAt", "lastSeenAt"}
    one, other = ({k: v for k, v in client.read(f"tasks/{i}").items() if k not in ours} for i in (bare, nulls))
    assert one == other
    assert [one[name] for name in names] == ["open", None, None, [], [], [], {}]


def test_null_means_left_out_in_the_parts_of_a_task(client: Client, run: str) -> None:
    parts = {
        "evidence": [{"type": None, "label": "x", "url": None, "content": None}],
        "remediation": [{"step": None, "instruction": "x"}],
        "successCriteria": [{"description": "x", "automatable": None}],
    }
    stored = client.read(f"tasks/{client.add(run, **parts)}")
    assert stored["evidence"][0]["label"] == "x"
    assert stored["remediation"] == [{"step": 1, "instruction": "x"}]
    assert stored["successCriteria"] == [{"description": "x", "automatable": False}]


def test_null_means_left_out_in_runs_project_types_and_updates(client: Client, run: str) -> None:
    for nulls in ({}, {"targetUrl": None, "metadata": None}):
        started = client.post(f"{API}/runs", json={"projectType": "web", **nulls}).json
        assert (started["targetUrl"], started["metadata"]) == (None, {})
    assert client.finish(run, statusReason=None, resolveMissing=None)["statusReason"] is None
    body = {"name": "nulls", "label": None, "description": None, "extensionSchema": None}
    for each in ({"name": "nulls"}, body):
        made = client.post(f"{API}/project-types", json=each).json
        assert (made["label"], made["description"], made["extensionSchema"]) == ("nulls", "", None)
    assert client.put(f"{API}/project-types/nulls", json=body | {"name": None}).status_code == 200
    assert client.triage(client.add(started["id"]), "open", comment=None)["status"] == "open"


REQUIRED = cases(
    run=("POST", "runs", {}, "/projectType"),
    run_null=("POST", "runs", {"projectType": None}, "/projectType"),
    run_update=("PATCH", "runs/RUN", {}, "/status"),
    run_update_null=("PATCH", "runs/RUN", {"status": None}, "/status"),
    task_update=("PATCH", "tasks/TASK", {}, ""),
    task_update_null=("PATCH", "tasks/TASK", dict.fromkeys(("status", "comment", "reason", "assignee")), ""),
    tasks_update=("PATCH", "tasks", {"status": "open"}, "/ids"),
    tasks_update_null=("PATCH", "tasks", {"status": "open", "ids": None}, "/ids"),
    project_type=("POST", "project-types", {"label": "x"}, "/name"),
    project_type_null=("POST", "project-types", {"name": None}, "/name"),
)


NULS = cases(
    metadata=("POST", "runs", {"projectType": "web", "metadata": {"a": ["\0"]}}, "/metadata/a/0"),
    project_type_of_run=("POST", "runs", {"projectType": "w\0"}, "/projectType"),
    status_reason=("PATCH", "runs/RUN", {"status": "failed", "statusReason": "a\0b"}, "/statusReason"),
    title=("POST", "runs/RUN/tasks", task(title="a\0b"), "/title"),
    external_id=("POST", "runs/RUN/tasks", task(externalId="\0"), "/externalId"),
    description=("POST", "runs/RUN/tasks", {"tasks": [task(), task(description="\0")]}, "/tasks/1/description"),
    evidence_type=("POST", "runs/RUN/tasks", task(evidence=[{"type": "\0", "label": "x"}]), "/evidence/0/type"),
    evidence_label=("POST", "runs/RUN/tasks", task(evidence=[{"label": "\0"}]), "/evidence/0/label"),
    content=("POST", "runs/RUN/tasks", task(evidence=[{"content": "\0"}]), "/evidence/0/content"),
    instruction=("POST", "runs/RUN/tasks", task(remediation=[{"instruction": "\0"}]), "/remediation/0/instruction"),
    criterion=(
        "POST",
        "runs/RUN/tasks",
        task(successCriteria=[{"description": "\0"}]),
        "/successCriteria/0/description",
    ),
    extensions=("POST", "runs/RUN/tasks", task(extensions={"a": {"b": "\0"}}), "/extensions/a/b"),
    member_name=("POST", "runs/RUN/tasks", task(extensions={"a\0b": 1}), "/extensions/a\0b"),
    comment=("PATCH", "tasks/TASK", {"status": "open", "comment": "\0"}, "/comment"),
    assignee=("PATCH", "tasks/TASK", {"assignee": "a\0b"}, "/assignee"),
    id=("PATCH", "tasks", {"ids": ["x", "\0"], "status": "open"}, "/ids/1"),
    label=("POST", "project-types", {"name": "a", "label": "\0"}, "/label"),
    type_description=("PUT", "project-types/web", {"description": "\0"}, "/description"),
)


@pytest.mark.parametrize(("method", "path", "body", "pointer"), [*UNKNOWN_FIELDS, *REQUIRED, *NULS])
def test_what_is_unknown_missing_or_has_nul_is_refused_where_it_stands(
    client: Client, run: str, method: str, path: str, body: Any, pointer: str
) -> None:
    path = path.replace("RUN", run).replace("TASK", client.add(run))
    assert_problem(client.open(f"{API}/{path}", method=method, json=body), 422, "validation_failed", pointer)


def test_nul_may_stand_in_an_extension_schema(client: Client) -> None:
    schema = {"properties": {"a": {"enum": ["\0"]}}}
    assert client.register("nul", schema)["extensionSchema"] == schema
    assert client.put(f"{API}/project-types/nul", json={"extensionSchema": schema}).status_code == 200


def test_of_doubled_keys_the_last_counts(client: Client) -> None:
    client.register("wcag", WCAG_SCHEMA)
    path = f"{API}/runs/{client.start('wcag')}/tasks"
    body = '{"title": "first", "severity": "low", "title": "last", "extensions": {"wcag": "%s", "wcag": "%s"}}'
    task_id = client.send("POST", path, body % ("bad", "1.1.1")).json["tasks"][0]["id"]
    stored = client.read(f"tasks/{task_id}")
    assert (stored["title"], stored["extensions"]) == ("last", {"wcag": "1.1.1"})
    assert_problem(client.send("POST", path, body % ("1.1.1", "bad")), 422, "validation_failed", "/extensions/wcag")


OTHERS = cases(
    get_run=("GET", "runs/RUN", None),
    patch_run=("PATCH", "runs/RUN", {"status": "completed"}),
    post_tasks=("POST", "runs/RUN/tasks", task()),
    get_task=("GET", "tasks/TASK", None),
    patch_task=("PATCH", "tasks/TASK", {"status": "open"}),
    get_history=("GET", "tasks/TASK/history", None),
    get_project_type=("GET", "project-types/web", None),
    put_project_type=("PUT", "project-types/web", {}),
    missing_from=("GET", "tasks?missingFrom=RUN", None),
)


@pytest.mark.parametrize(("method", "path", "body"), OTHERS)
def test_another_clients_id_is_answered_like_an_unknown_one(
    app: flask.Flask, client: Client, run: str, method: str, path: str, body: Any
) -> None:
    ids = {"RUN": run, "TASK": client.add(run), "web": "web"}
    name = next(name for name in ids if name in path)
    stranger = client_of(app, client="other")
    theirs, unknown = (
        stranger.open(f"{API}/{path.replace(name, value)}", method=method, json=body)
        for value in (ids[name], "no-such-thing")
    )
    assert_problem(theirs, 404, "not_found")
    assert theirs.text.replace(ids[name], "no-such-thing") == unknown.text
    assert list(theirs.headers.keys()) == list(unknown.headers.keys())


def test_lists_show_nothing_of_another_client(app: flask.Flask, client: Client, run: str) -> None:
    client.add(run, externalId="x")
    stranger = client_of(app, client="other")
    assert stranger.read("project-types") == {"projectTypes": []}
    for path, query in [("runs", {}), ("tasks", {}), ("tasks", {"runId": run}), ("tasks", {"externalId": "x"})]:
        assert stranger.read(path, **query)["total"] == 0


def test_the_order_of_checks_for_a_submission(make_app: Callable[..., flask.Flask]) -> None:
    app = make_app(max_body="1000")
    agent, reader = client_of(app, "agent"), client_of(app, "read")
    agent.register("web")
    finished = agent.start()
    agent.finish(finished)
    nowhere, here = f"{API}/runs/{UNKNOWN_ID}/tasks", f"{API}/runs/{finished}/tasks"
    json_type, bad = "application/json", '{"sevrity": 1}'
    nobody = app.test_client()
    steps = [
        (nobody.post(f"{API}/rums?x=1", data="x" * 2000), 404, "not_found"),
        (nobody.delete(f"{nowhere}?x=1", data="x" * 2000), 405, "method_not_allowed"),
        (nobody.post(f"{nowhere}?x=1", data="x" * 2000, headers={"Authorization": "Bearer no"}), 401, "unauthorized"),
        (reader.post(f"{nowhere}?x=1", data="x" * 2000), 403, "forbidden"),
        (agent.post(f"{nowhere}?x=1", data="x" * 2000), 413, "body_too_large"),
        (agent.post(f"{nowhere}?x=1", data="x"), 415, "unsupported_media_type"),
        (agent.post(f"{nowhere}?x=1", data="x", content_type=json_type), 400, "malformed_json"),
        (agent.post(f"{nowhere}?x=1", data=bad, content_type=json_type), 400, "invalid_parameter"),
        (agent.post(nowhere, data=bad, content_type=json_type), 404, "not_found"),
        (agent.post(here, data=bad, content_type=json_type), 422, "validation_failed"),
        (agent.post(here, json=task()), 409, "run_finished"),
    ]
    for response, status, code in steps:
        assert_problem(response, status, code)


LATER_CHECKS = cases(
    patch_run=("PATCH", f"{API}/runs/{UNKNOWN_ID}", "read"),
    patch_task=("PATCH", f"{API}/tasks/{UNKNOWN_ID}", "agent"),
    put_project_type=("PUT", f"{API}/project-types/unknown", "agent"),
)


@pytest.mark.parametrize(("method", "path", "level"), LATER_CHECKS)
def test_the_order_of_checks_for_an_update(
    app: flask.Flask, client: Client, method: str, path: str, level: str
) -> None:
    steps = [
        (client_of(app, level).open(f"{path}?x=1", method=method, data="x"), 403, "forbidden"),
        (client.open(f"{path}?x=1", method=method, data="x"), 415, "unsupported_media_type"),
        (client.send(method, f"{path}?x=1", "x"), 400, "malformed_json"),
        (client.send(method, f"{path}?x=1", '{"sevrity": 1}'), 400, "invalid_parameter"),
        (client.send(method, path, '{"sevrity": 1}'), 404, "not_found"),
        (client.send(method, path, '{"comment": "\\u0000", "extensionSchema": {"type": "strnig"}}'), 404, "not_found"),
    ]
    for response, status, code in steps:
        assert_problem(response, status, code)


def test_a_bad_update_of_a_finished_run_is_422_before_409(client: Client, run: str) -> None:
    client.finish(run)
    response = client.patch(f"{API}/runs/{run}", json={"status": "failed", "resolveMissing": True})
    assert_problem(response, 422, "validation_failed", "/resolveMissing")


# ---------------------------------------------------------------------------
# Errors
# ---------------------------------------------------------------------------

MALFORMED = cases(
    empty=b"",
    blank=b"  ",
    truncated=b'{"a": ',
    single_quotes=b"{'a': 1}",
    nan=b'{"a": NaN}',
    infinity=b'{"a": -Infinity}',
    too_large_a_number=b'{"a": 1e999}',
    lone_surrogate=b'{"a": "\\ud800"}',
    lone_surrogate_in_a_name=b'{"\\udc00": 1}',
    byte_order_mark=b'\xef\xbb\xbf{"a": 1}',
    trailing_text=b'{"a": 1} x',
    two_values=b"{} {}",
    trailing_comma=b'{"a": 1,}',
    leading_zero=b'{"a": 01}',
    comment=b'{"a": 1 /* one */}',
    bad_utf8=b'{"a": "\xff"}',
    encoded_surrogate=b'{"a": "\xed\xa0\x80"}',
    utf16='{"a": 1}'.encode("utf-16"),
    raw_control_character=b'{"a": "\n"}',
    levels=b"[" * 101 + b"]" * 101,
    many_levels=b"[" * 100_000 + b"]" * 100_000,
    unclosed_levels=b"[" * 100_000,
)
PATHS_WITH_BODIES = [("POST", "runs"), ("POST", "project-types"), ("PATCH", "runs/x"), ("POST", "runs/x/tasks")]


@pytest.mark.parametrize("body", MALFORMED)
def test_what_is_not_one_json_value_is_malformed(client: Client, body: bytes) -> None:
    for method, path in [*PATHS_WITH_BODIES, ("PATCH", "tasks/x"), ("PUT", "project-types/x")]:
        assert_problem(client.send(method, f"{API}/{path}", body), 400, "malformed_json")


NESTED_IN = cases(
    metadata=("POST", "runs", '{"projectType": "web", "metadata": %s}'),
    extensions=("POST", "runs/RUN/tasks", '{"title": "x", "severity": "low", "extensions": %s}'),
    batch=("POST", "runs/RUN/tasks", '{"tasks": [{"title": "x", "severity": "low", "extensions": %s}]}'),
    bad_batch=("POST", "runs/RUN/tasks", '{"tasks": [{"severity": 1}, {"title": "x", "extensions": %s}]}'),
    schema=("POST", "project-types", '{"name": "a", "extensionSchema": %s}'),
    schema_update=("PUT", "project-types/web", '{"extensionSchema": %s}'),
    unknown_field=("POST", "runs", '{"projectType": "web", "unknown": %s}'),
)
BROKEN_VALUES = cases(
    nan=b'{"a": NaN}',
    too_large_a_number=b'{"a": 1e999}',
    lone_surrogate=b'{"a": "\\ud83d"}',
    bad_utf8=b'{"a": "\xff"}',
    levels=b'{"a":' * 110 + b"1" + b"}" * 110,
    leading_zero=b'{"a": -01}',
    bad_escape=b'{"a": "\\x"}',
)


@pytest.mark.parametrize("value", BROKEN_VALUES)
@pytest.mark.parametrize(("method", "path", "body"), NESTED_IN)
def test_a_free_form_value_must_be_json_too(
    client: Client, run: str, method: str, path: str, body: str, value: bytes
) -> None:
    raw = body.encode().replace(b"%s", value)
    assert_problem(client.send(method, f"{API}/{path.replace('RUN', run)}", raw), 400, "malformed_json")


LEVELS_LEFT = cases(
    metadata=("runs", lambda deep: {"projectType": "web", "metadata": deep}, 99),
    extensions=("runs/RUN/tasks", lambda deep: task(extensions=deep), 99),
    batch=("runs/RUN/tasks", lambda deep: {"tasks": [task(extensions=deep)]}, 97),
    schema=("project-types", lambda deep: {"name": "deep", "extensionSchema": deep}, 99),
)


@pytest.mark.parametrize(("path", "body", "levels"), LEVELS_LEFT)
def test_a_body_may_have_a_hundred_levels(
    client: Client, run: str, path: str, body: Callable[[Any], Any], levels: int
) -> None:
    path = f"{API}/{path.replace('RUN', run)}"
    assert client.post(path, json=body(nested(levels))).status_code == 201
    assert_problem(client.post(path, json=body(nested(levels + 1))), 400, "malformed_json")


def test_brackets_in_strings_are_no_levels(client: Client, run: str) -> None:
    text = '[{"\\' * 200
    assert client.read(f"tasks/{client.add(run, title=text[:500], description=text)}")["description"] == text


@pytest.mark.parametrize("body", ["[]", '"text"', "1", "true", "null"])
def test_a_body_that_is_no_object_is_refused(client: Client, run: str, body: str) -> None:
    for method, path in [("POST", "runs"), ("POST", f"runs/{run}/tasks"), ("POST", "project-types")]:
        assert_problem(client.send(method, f"{API}/{path}", body), 422, "validation_failed")


def test_a_body_shorter_than_its_content_length_is_malformed(client: Client, run: str) -> None:
    body = json.dumps({"tasks": [task()]}).encode()
    response = client.post(
        f"{API}/runs/{run}/tasks",
        data=body,
        content_type="application/json",
        environ_overrides={"CONTENT_LENGTH": str(len(body) + 1)},
    )
    assert_problem(response, 400, "malformed_json")


MEDIA = cases(
    none=({}, 415),
    text=({"Content-Type": "text/plain"}, 415),
    form=({"Content-Type": "application/x-www-form-urlencoded"}, 415),
    problem_json=({"Content-Type": "application/problem+json"}, 415),
    gzip=({"Content-Type": "application/json", "Content-Encoding": "gzip"}, 415),
    unknown_encoding=({"Content-Type": "application/json", "Content-Encoding": "aws-chunked"}, 415),
    parameters=({"Content-Type": "application/json; charset=utf-8"}, 201),
    capitals=({"Content-Type": "Application/JSON"}, 201),
)


@pytest.mark.parametrize(("headers", "status"), MEDIA)
def test_a_body_must_be_declared_as_json(client: Client, run: str, headers: dict[str, str], status: int) -> None:
    response = client.post(f"{API}/runs/{run}/tasks", data=json.dumps(task()), headers=headers)
    assert response.status_code == status
    if status == 415:
        assert_problem(response, 415, "unsupported_media_type")


@pytest.mark.parametrize("path", ["/api", API, f"{API}/", f"{API}/task", f"{API}/tasks/", "/api/v2/tasks", "/é"])
def test_unknown_paths_are_problems_too(app: flask.Flask, client: Client, path: str) -> None:
    for method in ("GET", "POST", "DELETE", "OPTIONS"):
        assert_problem(client.open(path, method=method), 404, "not_found")
        assert_problem(app.test_client().open(path, method=method), 404, "not_found")


@pytest.mark.parametrize("task_id", ["x", UNKNOWN_ID, "%00", "%FF", "é", "a" * 5000])
def test_unknown_ids_are_not_found(client: Client, task_id: str) -> None:
    assert_problem(client.get(f"{API}/tasks/{task_id}"), 404, "not_found")
    assert_problem(client.get(f"{API}/runs/{task_id}"), 404, "not_found")
    assert_problem(client.get(f"{API}/project-types/{task_id}"), 404, "not_found")


@pytest.mark.parametrize("path", sorted({each.path for each in OPERATIONS}))
def test_other_methods_are_refused_with_those_allowed(client: Client, path: str) -> None:
    known = {each.method for each in OPERATIONS if each.path == path}
    for method in {"GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE"} - known:
        response = client.open(path, method=method)
        assert_problem(response, 405, "method_not_allowed")
        allowed = {name.strip() for name in response.headers["Allow"].split(",")}
        assert allowed - {"HEAD"} == known
        assert ("HEAD" in allowed) == ("GET" in known)


@pytest.mark.parametrize(
    ("level", "more"), [("read", ("", "")), ("agent", ("", ", POST")), ("full", (", PATCH", ", POST"))]
)
def test_a_list_says_which_methods_a_key_has_there(app: flask.Flask, level: str, more: tuple[str, str]) -> None:
    client = client_of(app, level=level)
    allowed = [client.get(f"{API}/{path}").headers["Allow"] for path in ("tasks", "runs")]
    assert allowed == [f"GET, HEAD{each}" for each in more]


def test_the_routes_and_their_levels_are_the_contracts() -> None:
    routes = {(each.level, f"{each.method} {each.path.removeprefix(API)}") for each in OPERATIONS}
    assert {level: {route for needed, route in routes if needed == level} for level, _ in routes} == {
        None: {"GET /openapi.json", "GET /healthz"},
        "read": {
            *("GET /runs", "GET /runs/{run_id}", "GET /runs/{run_id}/gate", "GET /overview", "GET /brief"),
            *("GET /tasks", "GET /tasks/{task_id}", "GET /tasks/{task_id}/history"),
            *("GET /project-types", "GET /project-types/{name}"),
        },
        "agent": {"POST /runs", "PATCH /runs/{run_id}", "POST /runs/{run_id}/tasks", "POST /project-types"},
        "full": {
            *("PATCH /tasks", "PATCH /tasks/{task_id}", "PUT /project-types/{name}"),
            *("DELETE /runs/{run_id}", "DELETE /tasks/{task_id}", "DELETE /project-types/{name}"),
        },
    }


def test_a_hundred_problems_are_listed_and_all_counted(client: Client, run: str) -> None:
    bad = [task(severity="hgh")] * 150
    response = client.post(f"{API}/runs/{run}/tasks", json={"tasks": [task(), *bad]})
    problem = assert_problem(response, 422, "validation_failed", "/tasks/1/severity")
    assert (len(problem["errors"]), problem["errors"][0]["value"]) == (100, "hgh")
    assert re.search(r"\b150\b", problem["detail"])


def test_a_task_with_many_problems_does_not_crowd_out_others(client: Client) -> None:
    client.register("strict", {"properties": {f"p{n}": {"type": "integer"} for n in range(10)}})
    run = client.start("strict")
    bad = task(extensions={f"p{n}": "text" for n in range(10)})
    response = client.post(f"{API}/runs/{run}/tasks", json={"tasks": [bad] * 40})
    problem = assert_problem(response, 422, "validation_failed")
    assert len(problem["errors"]) <= 100
    assert {int(error["pointer"].split("/")[2]) for error in problem["errors"]} == set(range(40))


def problems_of(response: Any) -> dict[str, str]:
    """Return what a refusal says, by pointer, and check that it says nothing twice."""
    errors = assert_problem(response, 422, "validation_failed")["errors"]
    assert max(Counter((error["pointer"], error["detail"]) for error in errors).values()) == 1, errors
    return {error["pointer"]: error["detail"] for error in errors}


FAULTY_TASK = {
    "title": "x" * 501,
    "severity": "hgh",
    "sevrity": "high",
    "description": "é" * 40_000,
    "externalId": 7,
    "evidence": [{"label": "x", "url": "javascript:alert(1)"}, {"labl": "x"}, {}, "x"],
    "remediation": [{"instruction": "a", "step": 2}, {"step": 1.5}, {"instruction": "b", "step": 2}],
    "successCriteria": [{"automatable": "yes"}],
    "extensions": {"wcag": "1.1", "pages": ["one"]},
}
FAULTS = {
    "/title": "'xxx",
    "/severity": "must be one of: critical, high, medium, low, info",
    "/sevrity": "Additional properties are not allowed ('sevrity' was unexpected); known: title, severity,",
    "/description": "must be at most 64 KiB of UTF-8",
    "/externalId": "7 is not of type 'string'",
    "/evidence/0/url": "must not be a javascript: URL",
    "/evidence/1": "must have a label, a url or a content",
    "/evidence/1/labl": "Additional properties are not allowed ('labl' was unexpected)",
    "/evidence/2": "must have a label, a url or a content",
    "/evidence/3": "'x' is not of type 'object'",
    "/remediation/1/instruction": "'instruction' is a required property",
    "/remediation/1/step": "1.5 is not a multiple of 1",
    "/remediation/2/step": "step 2 is there already; steps must differ",
    "/successCriteria/0/description": "'description' is a required property",
    "/successCriteria/0/automatable": "'yes' is not of type 'boolean'",
    "/extensions/wcag": "'1.1' does not match",
    "/extensions/pages/0": "'one' is not of type 'integer'",
}


@pytest.mark.parametrize("form", ["single", "batch"])
def test_every_problem_of_every_task_is_told_at_once(client: Client, form: str) -> None:
    client.register("wcag", WCAG_SCHEMA)
    path, prefix = f"{API}/runs/{client.start('wcag')}/tasks", "/tasks/1" if form == "batch" else ""
    good = task(extensions={"wcag": "1.1.1"})
    body = {"tasks": [good, FAULTY_TASK, good, task()]} if form == "batch" else FAULTY_TASK
    told = problems_of(client.post(path, json=body))
    assert told.pop("/tasks/3/extensions/wcag", None) == ("'wcag' is a required property" if form == "batch" else None)
    assert set(told) == {prefix + pointer for pointer in FAULTS}
    assert all(told[prefix + pointer].startswith(words) for pointer, words in FAULTS.items()), told
    assert client.read("tasks")["total"] == 0


def test_a_message_tells_what_is_asked_for_however_long_the_value_is(client: Client, run: str) -> None:
    fields = {"title": "y" * 501, "externalId": "z" * 5000, "remediation": [{"instruction": "x"}] * 101}
    told = problems_of(client.post(f"{API}/runs/{run}/tasks", json=task(**fields)))
    assert told["/title"].endswith("y… is too long (maxLength is 500)")
    assert told["/externalId"].endswith("is too long (maxLength is 256)")
    assert told["/remediation"].endswith("is too long (maxItems is 100)")
    assert all(len(detail) <= 200 for detail in told.values())


def test_every_problem_of_a_run_and_of_a_project_type_is_told_at_once(client: Client, run: str) -> None:
    body = {"targetUrl": "example.com\0", "metadata": [], "x": "\0"}
    places = {"/projectType", "/targetUrl", "/metadata", "/x"}
    assert set(problems_of(client.post(f"{API}/runs", json=body))) == places
    body = {"name": "-", "label": 1, "description": "x" * 10_001}
    assert set(problems_of(client.post(f"{API}/project-types", json=body))) == {"/name", "/label", "/description"}
    schema = {"properties": {"a": {"pattern": "("}, "b": {"type": "no"}, "c": {"$ref": "#/no"}, "d": {"maxLength": -1}}}
    told = problems_of(client.post(f"{API}/project-types", json={"name": "-", "extensionSchema": schema}))
    places = ("a/pattern", "b/type", "c/$ref", "d/maxLength")
    assert set(told) == {"/name", *(f"/extensionSchema/properties/{place}" for place in places)}
    told = problems_of(client.post(f"{API}/runs", json={"metadata": {"a": "x" * 64 * KIB}}))
    assert set(told) == {"/projectType", "/metadata"}
    told = problems_of(client.patch(f"{API}/runs/{run}", json={"status": "failed", "resolveMissing": True, "x": 1}))
    assert told["/resolveMissing"] == "goes with the status completed only"
    assert set(told) == {"/resolveMissing", "/x"}


def test_what_is_wrong_around_the_tasks_is_told_with_what_is_wrong_in_them(client: Client, run: str) -> None:
    path = f"{API}/runs/{run}/tasks"
    assert set(problems_of(client.post(path, json={"tasks": [task(), {}], "task": 1}))) == {
        *("/task", "/tasks/1/title", "/tasks/1/severity")
    }
    assert set(problems_of(client.post(path, json={"tasks": {"a": 1}, "run": 1}))) == {"/tasks", "/run"}


GOOD, BAD = task(), task(evidence=[{"label": 1, "url": "x"}])


@pytest.mark.parametrize("looks", [0, 1, 2, 3, 10, 30])
@pytest.mark.parametrize("body", cases(single=BAD, last={"tasks": [GOOD] * 3 + [BAD]}, first={"tasks": [BAD, GOOD]}))
def test_what_takes_too_long_to_be_told_is_refused_all_the_same(
    client: Client, run: str, monkeypatch: pytest.MonkeyPatch, body: Any, looks: int
) -> None:
    left = itertools.count(looks, -1)

    def tick() -> None:
        if next(left) <= 0:
            raise findings_service.OutOfTime

    monkeypatch.setattr(findings_service, "tick", tick)
    response = client.post(f"{API}/runs/{run}/tasks", json=body)
    monkeypatch.undo()
    problem = assert_problem(response, 422, "validation_failed")
    assert problem["detail"].startswith("At least ") == any(not error["pointer"] for error in problem["errors"])
    assert client.read("tasks")["total"] == 0


def test_no_problem_is_told_twice_or_of_a_value_that_nobody_sent(client: Client, run: str) -> None:
    path = f"{API}/runs/{run}/tasks"
    body = json.dumps(task(description="x" * 70_000, remediation=[{"instruction": "x", "step": 1}, {"instruction": 1}]))
    response = client.send("POST", path, body.replace('"step": 1', '"step": ' + "9" * 4301))
    assert_problem(response, 422, "validation_failed")
    told = problems_of(response)
    assert len(told) == 3
    assert told["/remediation/0/step"] == "has a number with too many digits"
    response = client.post(f"{API}/runs", json={"projectType": "web", "targetUrl": "http://a\0b"})
    assert problems_of(response) == {"/targetUrl": "must not contain U+0000"}


MUCH_AMISS = cases(
    evidence=("runs/RUN/tasks", task(evidence=[{"url": "j"}] * 70_000)),
    urls=("runs/RUN/tasks", task(evidence=[{"url": "javascript:"}] * 70_000)),
    steps=("runs/RUN/tasks", task(remediation=[{"step": 1}] * 70_000)),
    members=("runs/RUN/tasks", task(**{f"m{n}": 1 for n in range(200_000)})),
    around=("runs/RUN/tasks", {"tasks": [task()], **{f"m{n}": 1 for n in range(200_000)}}),
    run=("runs", {f"m{n}": 1 for n in range(200_000)}),
    nul=("runs/RUN/tasks", task(extensions={f"\0{n}": 1 for n in range(10_000)})),
    nul_strings=("runs/RUN/tasks", task(extensions={"a": ["\0"] * 20_000})),
    unwanted=("runs/STRICT/tasks", {"tasks": [task(extensions={f"n{n}": 1 for n in range(22_000)})] * 6}),
)


@pytest.mark.parametrize(("path", "body"), MUCH_AMISS)
def test_of_much_that_is_amiss_the_first_hundred_are_told_soon(client: Client, run: str, path: str, body: Any) -> None:
    client.register("strict", {"additionalProperties": False})
    path = path.replace("RUN", run).replace("STRICT", client.start("strict"))
    began = time.thread_time()
    problem = assert_problem(client.post(f"{API}/{path}", json=body), 422, "validation_failed")
    assert time.thread_time() - began < 1.5 * slowness()
    assert len(problem["errors"]) == 100
    assert re.match("[16]00 problems in", problem["detail"])  # of each task, more are not even looked for


MANY = b"[" + b"[]," * 2_000_000 + b"[]]"
MANY_VALUES = cases(
    metadata=("runs", b'{"projectType":"web","metadata":{"a":%s}}', 422),
    unknown=("runs", b'{"projectType":"web","x":%s}', 422),
    strings=("runs", b'{"x":[' + b'"",' * 3_000_000 + b'""]}', 422),
    escaped_strings=("runs", b'{"x":[' + rb'"\\",' * 3_000_000 + b'""]}', 422),
    schema=("project-types", b'{"name":"x","extensionSchema":{"enum":%s}}', 422),
    extensions=("runs/RUN/tasks", b'{"title":"x","severity":"low","extensions":{"a":%s}}', 422),
    evidence=("runs/RUN/tasks", b'{"title":"x","severity":"low","evidence":%s}', 422),
    objects=("runs/RUN/tasks", b'{"title":"x","severity":"low","evidence":[' + b"{}," * 3_000_000 + b"{}]}", 422),
    tasks=("runs/RUN/tasks", b'{"tasks":%s}', 422),
    endless_string=("runs", b"[" * 101 + b'"' + b'\\"' * 100_000, 400),
    unclosed=("runs", b'{"projectType":"web","metadata":{"a":[' + b"0," * 400_000, 400),
    deep=("runs", b'{"projectType":"web","metadata":{"a":' + b"[" * 400_000, 400),
)


@pytest.mark.parametrize(("path", "body", "status"), MANY_VALUES)
def test_millions_of_values_are_refused_soon_and_in_little_memory(
    client: Client, run: str, path: str, body: bytes, status: int
) -> None:
    body = body.replace(b"%s", MANY)
    tracemalloc.start()
    try:
        response = client.send("POST", f"{API}/{path.replace('RUN', run)}", body)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert_problem(response, status, "validation_failed" if status == 422 else "malformed_json")
    assert peak < 60 * KIB * KIB


LONG = "y" * 5000
LONG_TEXTS = cases(
    value=("POST", "runs/RUN/tasks", task(severity=LONG), 422),
    field_name=("POST", "runs/RUN/tasks", task(**{LONG: 1}), 422),
    url=("POST", "runs/RUN/tasks", task(evidence=[{"url": LONG}]), 422),
    project_type=("POST", "runs", {"projectType": LONG[:100]}, 422),
    target_url=("POST", "runs", {"projectType": "web", "targetUrl": LONG}, 422),
    run_id=("GET", f"runs/{LONG}", None, 404),
    path=("GET", LONG, None, 404),
    parameter=("GET", f"tasks?{LONG}=1", None, 400),
    parameter_value=("GET", f"tasks?status={LONG}", None, 400),
    cursor=("GET", f"tasks?after={LONG}", None, 400),
    schema_type=("POST", "project-types", {"name": "a", "extensionSchema": {"type": LONG}}, 422),
    schema_ref=("POST", "project-types", {"name": "a", "extensionSchema": {"$ref": f"#/{LONG}"}}, 422),
    schema_draft=("POST", "project-types", {"name": "a", "extensionSchema": {"$schema": LONG}}, 422),
    schema_pattern=("POST", "project-types", {"name": "a", "extensionSchema": {"pattern": f"({LONG[:1000]}"}}, 422),
    type_name=("POST", "project-types", {"name": LONG}, 422),
    extension_value=("POST", "runs/STRICT/tasks", task(extensions={"wcag": LONG}), 422),
    extension_name=("POST", "runs/STRICT/tasks", task(extensions={"wcag": "1.1.1", LONG: 1}), 422),
    nul_name=("POST", "runs/RUN/tasks", task(extensions={LONG + "\0": 1}), 422),
)


@pytest.mark.parametrize(("method", "path", "body", "status"), LONG_TEXTS)
def test_repeated_text_is_cut_at_200_characters(
    client: Client, run: str, method: str, path: str, body: Any, status: int
) -> None:
    client.register("wcag", WCAG_SCHEMA)
    path = path.replace("RUN", run).replace("STRICT", client.start("wcag"))
    response = client.open(f"{API}/{path}", method=method, json=body)
    assert response.status_code == status
    assert "y" * 201 not in response.text


def test_a_bug_is_logged_and_never_shown(
    client: Client, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: Any) -> None:
        raise RuntimeError("secret detail")

    monkeypatch.setattr(findings_service, "select_project_types", broken)
    response = client.get(f"{API}/project-types")
    assert_problem(response, 500, "internal_error")
    assert "secret" not in response.text
    assert "secret detail" in caplog.text
    assert "Traceback" in caplog.text


def test_a_path_forges_no_line_of_the_log(
    client: Client, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(findings_service, "select_task", lambda *_: 1 / 0)
    assert_problem(client.get(f"{API}/tasks/x%0Aforged%0Dline"), 500, "internal_error")
    assert [record.getMessage().splitlines() for record in caplog.records] == [
        [rf"bug in 'GET' '{API}/tasks/x\nforged\rline'"]
    ]


def test_a_write_waits_for_the_lock(make_app: Callable[..., flask.Flask], tmp_path: Path) -> None:
    client = client_of(make_app(busy_timeout="5"))
    client.register("web")
    with ThreadPoolExecutor(1) as pool:
        with locked(tmp_path / "findings.db"):
            waiting = pool.submit(client.post, f"{API}/runs", json={"projectType": "web"})
            time.sleep(0.15)
            assert not waiting.done()
        assert waiting.result(4).status_code == 201


# ---------------------------------------------------------------------------
# Lists
# ---------------------------------------------------------------------------

TYPES = ("web", "cli", "docs")
TARGETS = (None, "https://example.com/", "https://example.com/shop?q=a,b")
LINES = (None, None, "a", "b,c")


@dataclass(frozen=True)
class Survey:
    """A service with many findings, and what its lists must show: the recount by hand."""

    app: flask.Flask
    client: Client
    runs: list[dict[str, Any]]
    tasks: list[dict[str, Any]]
    reported: dict[str, set[str]]

    def run(self, run_id: str) -> dict[str, Any] | None:
        """Return a run, or None for an unknown id."""
        return next((run for run in self.runs if run["id"] == run_id), None)

    def expected_runs(self, query: dict[str, Any]) -> list[str]:
        """Return the ids that a list of runs must have, in order."""
        found = [run for run in self.runs if all(matches(run, name, value) for name, value in query.items())]
        return [run["id"] for run in reversed(found)]

    def is_missing_from(self, item: dict[str, Any], run_id: str) -> bool:
        """Tell whether a task is one that a run did not report, though it might have."""
        run = self.run(run_id)
        surface = ("projectType", "targetUrl")
        return bool(
            run
            and item["externalId"]
            and item["status"] in ("open", "in_progress")
            and all(item[name] == run[name] for name in surface)
            and item["id"] not in self.reported[run_id]
            and (not item["branch"] or (run["branch"] and self.is_known_to(item, run["branch"])))
        )

    def is_known_to(self, item: dict[str, Any], branch: str) -> bool:
        """Tell whether a run of a branch has reported a task."""
        return any(run["branch"] == branch and item["id"] in self.reported[run["id"]] for run in self.runs)

    def accepts(self, item: dict[str, Any], name: str, value: Any) -> bool:
        """Tell whether a filter lets a task through."""
        if name == "branch":
            return any(self.is_known_to(item, branch) for branch in value)
        if name == "runId":
            return any(item["id"] in self.reported.get(run_id, ()) for run_id in value.split(","))
        if name == "missingFrom":
            return self.is_missing_from(item, value)
        if name in ("createdSince", "createdBefore"):
            return (item["createdAt"] >= value) is (name == "createdSince")
        if name == "q":
            return all(word in f"{item['title']}\n{item['externalId'] or ''}".lower() for word in value.lower().split())
        return name == "sort" or matches(item, name, value)

    def expected_tasks(self, query: dict[str, Any]) -> list[str]:
        """Return the ids that a list of tasks must have, in order."""
        found = [item for item in self.tasks if all(self.accepts(item, *pair) for pair in query.items())]
        found.sort(key=lambda item: item["id"], reverse=query.get("sort") != "createdAt")
        if query.get("sort") == "severity":
            found.sort(key=lambda item: SEVERITIES.index(item["severity"]))
        return [item["id"] for item in found]


def matches(item: dict[str, Any], name: str, value: Any) -> bool:
    """Tell whether a run or task has one of a filter's values."""
    if name == "mainLine":
        return (item["branch"] is None) is (value == "true")
    if name == "branch":
        return item["branch"] in value
    if name == "assigned":
        return (item["assignee"] is not None) is (value == "true")
    exact = name in ("targetUrl", "externalId", "assignee")
    return item[name] == value if exact else item[name] in value.split(",")


def random_task(dice: random.Random) -> dict[str, Any]:
    """Return a task as an agent might report it."""
    fields: dict[str, Any] = {"title": f"Finding {dice.random()}", "severity": dice.choice(SEVERITIES)}
    if dice.random() < 0.6:
        fields["externalId"] = f"f-{dice.randrange(12)}"
    if dice.random() < 0.4:
        fields["status"] = dice.choice(STATUSES)
    return fields


def surveyed(app: flask.Flask, seed: int) -> Survey:
    """Fill a service at random, and recount by reading every run and task by its id."""
    dice, client, reported = random.Random(seed), client_of(app), {}
    stranger = client_of(app, client="stranger")
    for owner, rounds in ((client, 24), (stranger, 2)):
        for name in TYPES:
            owner.register(name)
        for number in range(rounds):
            fields = {"targetUrl": TARGETS[number // 3 % 3], "branch": dice.choice(LINES)}
            run = owner.start(TYPES[number % 3] if number < 9 else dice.choice(TYPES), **fields)
            done = [owner.submit(run, *[random_task(dice) for _ in range(7)]) for _ in range(2)]
            ids = {item["id"] for batch in done for item in batch["tasks"]}
            if owner is client:
                reported[run] = ids
            for task_id in dice.sample(sorted(ids), 3):
                owner.triage(task_id, dice.choice(STATUSES), assignee=dice.choice((None, "", "Ada", "a,b")))
            if dice.random() < 0.6:
                owner.finish(run, dice.choice(("completed", "failed")))
    ids = sorted({task_id for run_ids in reported.values() for task_id in run_ids})
    tasks = [client.read(f"tasks/{task_id}") for task_id in ids]
    return Survey(app, client, [client.read(f"runs/{run}") for run in reported], tasks, reported)


@pytest.fixture(scope="module")
def survey(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Survey]:
    app = create_app(Settings(db=db_at(tmp_path_factory.mktemp("survey") / "findings.db", ready=True)))
    yield surveyed(app, seed=1)
    database_of(app).close()


def every_combination(options: dict[str, tuple[Any, ...]]) -> list[dict[str, Any]]:
    """Return a query for each combination of options; None leaves a parameter out."""
    return [
        {name: value for name, value in zip(options, values, strict=True) if value is not None}
        for values in itertools.product(*options.values())
    ]


def some_combinations(options: dict[str, tuple[Any, ...]], dice: random.Random, count: int) -> list[dict[str, Any]]:
    """Return queries for some combinations of options, in which half of the parameters are left out."""
    return [
        {name: dice.choice(values[1:]) for name, values in options.items() if dice.random() < 0.5} for _ in range(count)
    ]


def task_options(survey: Survey) -> dict[str, tuple[Any, ...]]:
    """Return values to try for each parameter of a list of tasks."""
    first, second, third = (survey.runs[place]["id"] for place in (3, 4, 12))
    branch = next(run["id"] for run in reversed(survey.runs) if run["branch"] == "a")
    all_runs = ",".join(run["id"] for run in survey.runs)
    times = [survey.tasks[len(survey.tasks) * eighths // 8]["createdAt"] for eighths in (2, 5, 4, 7)]
    return {
        "status": (None, "open", "in_progress,open", "dismissed,resolved,dismissed"),
        "severity": (None, "high", "info,critical"),
        "runId": (None, first, UNKNOWN_ID, f"{UNKNOWN_ID},{third}", f"{first},{second}", all_runs),
        "projectType": (None, "web", "unknown", "cli,web"),
        "targetUrl": (None, TARGETS[1]),
        "externalId": (None, "f-3"),
        "missingFrom": (None, third, branch),
        "mainLine": (None, "true", "false"),
        "branch": (None, ["a"], ["unknown"], ["b,c", "a"]),
        "assignee": (None, "Ada"),
        "assigned": (None, "true", "false"),
        "createdSince": (None, *times[:2]),
        "createdBefore": (None, *times[2:]),
        "q": (None, "FIND 3", "f-3"),
        "sort": (None, "createdAt", "severity"),
    }


def task_queries(survey: Survey, seed: int, count: int) -> list[dict[str, Any]]:
    """Return queries of tasks to try: all filters, in combinations."""
    return some_combinations(task_options(survey), random.Random(seed), count)


def run_queries() -> list[dict[str, Any]]:
    """Return the queries of runs to try."""
    return every_combination(
        {
            "projectType": (None, "web", "cli,web", "unknown", "web,web"),
            "status": (None, "running", "completed,failed"),
            "targetUrl": (None, TARGETS[1], TARGETS[2], "https://example.com"),
            "mainLine": (None, "true", "false"),
            "branch": (None, ["a"], ["b,c", "a"], ["unknown"], ["b"]),
        }
    )


@pytest.mark.parametrize("ranges", [2, findings_service.MOST_RANGES], ids=["in_lots", "in_one_statement"])
def test_every_combination_of_task_filters_finds_and_counts_the_right_tasks(
    survey: Survey, monkeypatch: pytest.MonkeyPatch, ranges: int
) -> None:
    monkeypatch.setattr("findings_service.MOST_RANGES", ranges)
    found_something = 0
    for number, query in enumerate(task_queries(survey, ranges, 1500)):
        page = survey.client.read("tasks", limit=200, **query)
        expected = survey.expected_tasks(query)
        assert ([item["id"] for item in page["tasks"]], page["total"]) == (expected[:200], len(expected)), query
        found_something += bool(expected)
        if number % 10 == 0:
            walked = [item["id"] for page in survey.client.walk("tasks", limit=4, **query) for item in page["tasks"]]
            assert walked == expected, query
            jumped = survey.client.read("tasks", limit=4, page=2, **query)
            assert [item["id"] for item in jumped["tasks"]] == expected[4:8], query
            assert bool(jumped["next"]) == (len(expected) > 8)
    assert found_something > 50


@pytest.mark.parametrize(
    "name",
    [
        *("status", "severity", "runId", "projectType", "targetUrl", "externalId", "missingFrom", "mainLine", "branch"),
        *("assignee", "assigned", "createdSince", "createdBefore", "q"),
    ],
)
def test_each_task_filter_alone_finds_and_counts_the_right_tasks(survey: Survey, name: str) -> None:
    times = [*{item["createdAt"] for item in survey.tasks}, "2099-01-01"]
    values = {
        **{field: sorted({str(item[field]) for item in survey.tasks if item[field]}) for field in HEAD_FIELDS},
        **{field: [run["id"] for run in survey.runs] for field in ("runId", "missingFrom")},
        "mainLine": ["true", "false"],
        "branch": [["a"], ["b,c"], ["a", "b,c"]],
        "assigned": ["true", "false"],
        "createdSince": times,
        "createdBefore": times,
        "q": ["finding 77", "1", "77", "F-1 f-11", "none", "0. finding 5"],
    }[name]
    for value, sort in itertools.product(values, ("-createdAt", "createdAt", "severity")):
        query = {name: value, "sort": sort}
        page = survey.client.read("tasks", limit=200, **query)
        expected = survey.expected_tasks(query)
        assert ([item["id"] for item in page["tasks"]], page["total"]) == (expected[:200], len(expected)), query


def test_every_combination_of_run_filters_finds_and_counts_the_right_runs(survey: Survey) -> None:
    for query in run_queries():
        page = survey.client.read("runs", limit=200, **query)
        expected = survey.expected_runs(query)
        assert ([item["id"] for item in page["runs"]], page["total"]) == (expected, len(expected)), query


def traced_selects(survey: Survey, path: str, queries: list[dict[str, Any]]) -> dict[str, str]:
    """Return the statements that lists run, by their shape without values."""
    traced: list[str] = []
    connection = reader_of(survey.app)
    connection.set_trace_callback(traced.append)
    try:
        for query in queries:
            page = survey.client.get(f"{API}/{path}", query_string={"limit": 1, **query}).json
            if page.get("next"):
                survey.client.get(page["next"])
    finally:
        connection.set_trace_callback(None)
    selects = [statement for statement in traced if statement.lstrip().startswith(("SELECT", "WITH"))]
    return {re.sub(r"'[^']*'|\b\d+\b", "?", statement): statement for statement in selects}


def scanned_tables(connection: sqlite3.Connection, statement: str) -> list[str]:
    """Return the steps of a plan that read a whole table, or all that a client has where few are wanted, or sort."""
    tables = {row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    named = re.findall(r"(?:FROM|JOIN)\s+(\w+)(?:\s+AS\s+(\w+))?", statement)
    real = tables | {alias for table, alias in named if table in tables}
    steps = [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {statement}")]
    found = [step for step in steps if step.startswith("SCAN") and step.split()[1] in real]
    if re.search(r" AND (?!(\w+\.)?seq\b)", statement):
        found += [step for step in steps if re.search(r"\(client_id=\?( AND (seq|rowid)[<>]\?)*\)$", step)]
    return found + [step for step in steps if "TEMP B-TREE" in step and "count(DISTINCT)" not in step]


@pytest.mark.sqlite
def test_what_stays_quick_at_a_million_neither_scans_a_table_nor_sorts(survey: Survey) -> None:
    options = task_options(survey)
    fields = ("status", "severity", "projectType", "targetUrl", "mainLine", "branch")
    plain = {name: options[name] for name in (*fields, "sort")}
    queries = some_combinations(plain, random.Random(5), 1000)
    queries.append({"runId": options["runId"][1]})
    runs = [query for query in run_queries() if not {"projectType", "targetUrl"} <= query.keys()]
    connection = reader_of(survey.app)
    # What branches reported has no order by severity of its own, nor what is of one of several types at one target.
    plain_queries = [
        query
        for query in queries
        if len({"branch", "sort"} & query.keys()) < 2 and len({"branch", "projectType", "targetUrl"} & query.keys()) < 2
    ]
    for path, asked in (("tasks", plain_queries), ("runs", runs)):
        for statement in traced_selects(survey, path, asked).values():
            assert not scanned_tables(connection, statement), statement


def submit_surfaces(client: Client, count: int) -> list[str]:
    """Report one external id, and a task without, in runs of that many types and targets, and return the runs."""
    who, runs = findings_service.Principal("", "default", "tests", "full"), []
    reports = findings_service.parse_submission(
        json.dumps({"tasks": [task(externalId="same"), task()]}).encode(), Settings()
    ).reports
    with database_of(client.application).transaction() as connection:
        for number in range(count):
            name, target = f"type-{number}", f"https://example.com/{number % 7}"
            findings_service.insert_project_type(connection, "default", name, name, "", None)
            run = findings_service.insert_run(connection, "default", name, target, "{}")
            findings_service.submit_reports(connection, who, run, reports)
            runs.append(run.id)
    return runs


def test_long_lists_of_values_are_few_statements_and_short_ones(client: Client) -> None:
    runs, dice = submit_surfaces(client, 60), random.Random(5)
    client.read("tasks")  # opens the connection
    with statements() as traced:
        for _ in range(150):
            query = {
                "projectType": ",".join(
                    f"type-{number}" for number in dice.sample(range(1000), dice.randrange(1, 999))
                ),
                "runId": ",".join(dice.sample(runs, dice.randrange(1, 60))),
                "status": ",".join(dice.sample(STATUSES, dice.randrange(1, 4))),
                "missingFrom": dice.choice(runs),
            }
            for name in dice.sample(sorted(query), 2):
                del query[name]
            client.read("tasks", **query)
    selects = {each for each in traced if each.lstrip(" (\n").startswith(("SELECT", "WITH"))}
    assert 20 < len(selects) <= 80
    assert max(map(len, selects)) < 25_000


def test_a_thousand_runs_of_a_thousand_types_are_no_error(client: Client) -> None:
    many_runs = ",".join([*submit_surfaces(client, 700), *(f"run-{number}" for number in range(300))])
    many_types = ",".join(f"type-{number}" for number in range(1000))
    for sort, target in itertools.product(("-createdAt", "severity"), (None, "https://example.com/1")):
        query = {"sort": sort, "limit": 200, "status": ",".join(STATUSES), "projectType": many_types}
        query |= {"targetUrl": target} if target else {}
        for more in ({}, {"runId": many_runs}):
            page = client.read("tasks", **query, **more)
            assert (page["total"], len(page["tasks"])) == (200 if target else 1400, 200)


TESTER = findings_service.Principal("", "default", "tests", "full")


def reports_of(*tasks: dict[str, Any]) -> Any:
    """Return tasks as the store takes them."""
    return findings_service.parse_submission(json.dumps({"tasks": tasks}).encode(), Settings()).reports


def run_of(connection: Any, *tasks: dict[str, Any]) -> Any:
    """Report tasks in a run of its own."""
    run = findings_service.insert_run(connection, "default", "web", "", "{}")
    findings_service.submit_reports(connection, TESTER, run, reports_of(*tasks))
    findings_service.finish_run(connection, TESTER, run, "completed", None, False)
    return findings_service.select_run_key(connection, "default", run.id)


def work_of(connection: Any, action: Callable[[], object]) -> int:
    """Return how many steps of SQLite's machine an action takes."""
    steps = itertools.count()
    connection.set_progress_handler(lambda: next(steps) < 0, 1)
    try:
        action()
    finally:
        connection.set_progress_handler(None, 0)
    return next(steps)


def list_all(connection: Any, **query: Any) -> None:
    asked = findings_service.TaskQuery(**query)
    wanted = findings_service.read_task_filter(connection, "default", asked)
    assert len(list(findings_service.select_tasks(connection, "default", wanted, asked, None)[0])) < 3


def report_both(connection: Any, severity: str) -> None:
    run_of(connection, *(task(externalId=name, severity=severity) for name in ("seen", "often")))


def resolve_both(connection: Any) -> None:
    run = findings_service.insert_run(connection, "default", "web", "", "{}")
    findings_service.finish_run(connection, TESTER, run, "completed", None, True)


def dismiss_both(connection: Any) -> None:
    update = findings_service.TaskUpdate(status="dismissed")
    states = findings_service.select_task_rows(connection, "default", findings_service.BY_SEQ, "[1, 2]")
    findings_service.triage_tasks(connection, TESTER, states, update)


@pytest.mark.sqlite
@pytest.mark.parametrize(
    "act",
    cases(
        triage=lambda connection, *_: dismiss_both(connection),
        another_severity=lambda connection, *_: report_both(connection, "low"),
        resolve_missing=lambda connection, *_: resolve_both(connection),
        listing_what_a_run_reported=lambda connection, run, _: list_all(connection, external_id="seen", run_id=[run]),
        listing_what_runs_reported=lambda connection, *runs: list_all(connection, severity=["low"], run_id=runs),
        listing_what_is_missing=lambda connection, run, _: list_all(connection, external_id="seen", missing_from=run),
    ),
)
def test_a_finding_costs_the_same_however_many_runs_have_seen_it(
    make_app: Callable[..., flask.Flask], tmp_path: Path, act: Callable[..., object]
) -> None:
    work = []
    for times in (5, 300):
        database = database_of(make_app(db=db_at(tmp_path / f"{times}.db")))
        with database.transaction() as connection:
            findings_service.insert_client(connection, "default")
            findings_service.insert_project_type(connection, "default", "web", "", "", None)
            tasks = (task(externalId="seen"), task(externalId="often"), task(externalId="low", severity="low"))
            runs = [run_of(connection, *tasks).id for _ in range(times)]
        with database.transaction() as connection:
            work.append(work_of(connection, lambda: [act(connection, *runs[-2:]), connection.write_counts()]))  # noqa: B023
    assert work[1] <= 1.05 * work[0]


@pytest.fixture
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no list have any time."""
    monkeypatch.setattr("findings_service.LIST_TIME", -1)
    monkeypatch.setattr("findings_service.CLOCK_STEPS", 1)


@pytest.mark.usefixtures("hurried")
def test_a_list_that_takes_too_long_is_refused_and_tells_what_would_help(client: Client, run: str) -> None:
    task_id = client.add(run, externalId="x")
    for path in ("tasks", "tasks?page=3", "tasks?externalId=x", "tasks?q=image", "runs", f"tasks/{task_id}/history"):
        problem = assert_problem(client.get(f"{API}/{path}"), 400, "invalid_parameter", "query string")
        assert "fewer values" in problem["detail"]
    client.finish(run)
    assert client.read(f"tasks/{task_id}")["status"] == "open"


def test_time_that_a_list_only_waits_counts_a_tenth(app: flask.Flask) -> None:
    connection = reader_of(app)
    with connection.limited(0.02):
        time.sleep(0.03)
        assert not connection.is_late()
        time.sleep(0.2)
        assert connection.is_late()
    assert not connection.is_late()


def test_a_list_and_its_total_are_of_one_moment(
    app: flask.Flask, client: Client, run: str, make_app: Callable[..., flask.Flask], monkeypatch: pytest.MonkeyPatch
) -> None:
    client.add(run)
    other, select_cells = client_of(make_app(), name="other"), findings_service.select_cells

    def slow(*arguments: Any) -> Any:
        cells = select_cells(*arguments)
        other.add(run)
        return cells

    monkeypatch.setattr("findings_service.select_cells", slow)
    page = client.read("tasks")
    assert (page["total"], len(page["tasks"])) == (1, 1)
    monkeypatch.undo()
    assert client.read("tasks")["total"] == 2


@pytest.mark.parametrize("sort", ["-createdAt", "createdAt", "severity"])
@pytest.mark.parametrize("filters", [{}, {"status": "open,resolved"}], ids=["all", "merged"])
def test_a_page_ends_early_where_it_would_be_too_large(
    client: Client, run: str, monkeypatch: pytest.MonkeyPatch, sort: str, filters: dict[str, str]
) -> None:
    sizes = (10, 3000, 10, 10, 9000, 10, 10, 2000, 2000, 10)
    tasks = [task(severity=SEVERITIES[n % 3], description="x" * size) for n, size in enumerate(sizes)]
    client.submit(run, *tasks)
    whole = client.read("tasks", view="full", sort=sort, limit=200, **filters)["tasks"]
    monkeypatch.setattr("findings_service.PAGE_SIZE", 5000)
    pages = list(client.walk("tasks", view="full", sort=sort, **filters))
    assert [item for page in pages for item in page["tasks"]] == whole
    assert 3 < len(pages) < 9
    assert all(len(json.dumps(page["tasks"])) < 5600 or len(page["tasks"]) == 1 for page in pages)
    assert {page["total"] for page in pages} == {10}
    assert len(client.read("tasks", sort=sort)["tasks"]) == 10


def prune_old(client: Client) -> None:
    """Remove old runs."""
    assert prune(database_of(client.application).settings.db)[0]


def fail_what_is_idle(client: Client) -> None:
    """Fail all running runs, as the clock does."""
    time.sleep(0.01)
    assert list(findings_service.idle_slices(database_of(client.application), 0.001))


WRITES = cases(
    start=lambda client, *_: client.start(),
    submit=lambda client, run, _: client.submit(run, task()),
    report_again=lambda client, run, _: client.submit(run, task(externalId="x")),
    see_again=lambda client, *_: client.add(client.start(targetUrl="https://example.com/"), externalId="x"),
    finish=lambda client, run, _: client.finish(run),
    triage=lambda client, _, found: client.triage(found, "dismissed"),
    assign=lambda client, _, found: client.triage(found, assignee="kim"),
    triage_several=lambda client, _, found: client.patch(f"{API}/tasks", json={"ids": [found], "status": "resolved"}),
    delete_task=lambda client, _, found: client.remove(f"tasks/{found}"),
    delete_run=lambda client, run, _: client.remove(f"runs/{run}"),
    register=lambda client, *_: client.register("new"),
    replace_type=lambda client, *_: client.put(f"{API}/project-types/web", json={"label": "new"}),
    delete_type=lambda client, *_: client.remove("project-types/unused"),
    prune=lambda client, run, _: [client.finish(run), finish_ago(client.application, 91, run), prune_old(client)],
    idle=lambda client, *_: fail_what_is_idle(client),
)


@pytest.mark.parametrize("write", WRITES)
def test_an_etag_of_a_list_holds_until_the_client_writes(
    app: flask.Flask, client: Client, run: str, write: Callable[[Client, str, str], object]
) -> None:
    found, stranger = client.add(run, externalId="x"), client_of(app, client="other")
    client.register("unused")
    paths = [f"{API}/{path}" for path in ("tasks", "tasks?view=full", "runs", "overview")]
    before = [client.get(path) for path in paths]
    tags = [{"If-None-Match": response.headers["ETag"]} for response in before]
    stranger.register("web")
    assert client.post(f"{API}/runs", json={"projectType": "none"}).status_code == 422
    for path, tag, first in zip(paths, tags, before, strict=True):
        again = client.get(path, headers=tag)
        assert (again.status_code, again.data, again.headers["ETag"]) == (304, b"", tag["If-None-Match"])
        assert client.get(path).data == first.data
    write(client, run, found)
    for path, tag in zip(paths, tags, strict=True):
        again = client.get(path, headers=tag)
        assert again.status_code == 200
        assert again.headers["ETag"] != tag["If-None-Match"]


@pytest.mark.parametrize(
    ("had", "status"),
    cases(
        none=('"x"', 200),
        weak=("W/{}", 304),
        strong=("{}", 304),
        one_of_several=('"x", W/{}', 304),
        any=(" * ", 304),
        broken=("{", 200),
        long=(f"a{' ' * 9000}b", 200),
    ),
)
@pytest.mark.parametrize("head", [False, True])
def test_a_list_is_left_out_where_the_caller_has_it(
    client: Client, run: str, had: str, status: int, head: bool
) -> None:
    tag = client.get(f"{API}/runs").headers["ETag"].removeprefix("W/")
    response = (client.head if head else client.get)(f"{API}/runs", headers={"If-None-Match": had.replace("{}", tag)})
    assert (response.status_code, response.headers["ETag"]) == (status, f"W/{tag}")


def test_an_overview_of_yesterday_is_not_todays(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    tag = client.get(f"{API}/overview").headers["ETag"]
    at_day(monkeypatch, -1)
    assert client.get(f"{API}/overview", headers={"If-None-Match": tag}).status_code == 200


def test_what_follows_a_restored_backup_has_other_etags_than_what_followed_it_before(app: flask.Flask) -> None:
    stamps = set()
    for _ in range(2):
        with suppress(ZeroDivisionError), database_of(app).transaction("default") as connection:
            findings_service.raise_stamp(connection, "default")
            stamps.add(findings_service.select_stamp(connection, "default"))
            1 / 0  # noqa: B018
    assert len(stamps) == 2


def test_a_list_that_is_kept_is_its_clients_and_its_level_s(app: flask.Flask, client: Client, run: str) -> None:
    client.add(run)
    stranger, reader = client_of(app, client="other"), client_of(app, "read", name="reader")
    for _ in range(2):
        assert client.read("tasks")["total"] == 1
        assert stranger.read("tasks")["total"] == 0
        allowed = [each.get(f"{API}/tasks").headers["Allow"] for each in (client, reader)]
        assert allowed == ["GET, HEAD, PATCH", "GET, HEAD"]


def test_the_next_link_of_a_kept_list_has_the_prefix_that_was_asked_at(client: Client, run: str) -> None:
    for _ in range(2):
        client.add(run)
    for prefix in ("", "/a", "/b"):
        link = client.get(f"{API}/tasks?limit=1", environ_overrides={"SCRIPT_NAME": prefix}).json["next"]
        assert link.startswith(f"{prefix}{API}/tasks?")


def test_a_page_of_runs_ends_early_too(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    client.register("web")
    runs = [client.start(metadata={"a": "x" * 3000}) for _ in range(5)]
    monkeypatch.setattr("findings_service.PAGE_SIZE", 8000)
    pages = list(client.walk("runs"))
    assert [len(page["runs"]) for page in pages] == [2, 2, 1]
    assert [item["id"] for page in pages for item in page["runs"]] == runs[::-1]


def test_a_page_of_screenshots_takes_little_memory(client: Client, run: str) -> None:
    evidence = [{"content": "x" * 250_000}] * 16
    for _ in range(12):
        client.submit(run, *[task(evidence=evidence)] * 3)
    tracemalloc.start()
    try:
        answer = client.get(f"{API}/tasks?view=full&limit=200")
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert 12 * 2**20 < len(answer.data) <= 16 * 2**20
    assert len(answer.json["tasks"]) == 4
    assert peak < 5 * 16 * 2**20


@pytest.mark.parametrize(
    ("query", "count", "goes_on"),
    cases(
        default=({}, 50, True),
        most=({"limit": 200}, 200, True),
        last=({"limit": 1, "page": 201}, 1, False),
        just_full=({"limit": 67, "page": 3}, 67, False),
        beyond_the_end=({"page": 999_999}, 0, False),
    ),
)
def test_a_list_has_its_page_limit_total_and_next(
    client: Client, run: str, query: dict[str, int], count: int, goes_on: bool
) -> None:
    client.submit(run, *[task()] * 201)
    page = client.read("tasks", **query)
    assert page == {"page": 1, "limit": 50, "total": 201, "tasks": page["tasks"], "next": page["next"], **query}
    assert (len(page["tasks"]), page["next"] is not None) == (count, goes_on)
    if goes_on:
        assert page["next"].startswith(f"{API}/tasks?")
        following = client.read(page["next"])
        assert (following["page"], following["limit"], following["total"]) == (None, page["limit"], 201)


def test_a_list_of_runs_has_its_page_limit_total_and_next(client: Client, run: str) -> None:
    runs = [run, *[client.start() for _ in range(2)]]
    first, second = client.walk("runs", limit=2)
    assert set(first) == {"runs", "page", "limit", "total", "next"}
    assert [item["id"] for item in first["runs"] + second["runs"]] == runs[::-1]
    assert (first["page"], second["page"], second["total"], second["next"]) == (1, None, 3, None)
    assert all(set(item) == RUN_FIELDS for item in first["runs"])


def test_next_keeps_the_filters_the_limit_the_sort_and_the_view(client: Client, run: str) -> None:
    client.submit(run, *[task(status="open"), task(status="in_progress"), task(status="resolved")] * 3)
    query = {"status": "open,in_progress", "sort": "severity", "view": "full", "targetUrl": "https://example.com/"}
    pages = list(client.walk("tasks", limit=4, **query))
    assert [len(page["tasks"]) for page in pages] == [4, 2]
    assert {item["status"] for page in pages for item in page["tasks"]} == {"open", "in_progress"}
    assert all(set(item) == HEAD_FIELDS | BULK_FIELDS for page in pages for item in page["tasks"])


@pytest.mark.parametrize("sort", ["-createdAt", "createdAt", "severity"])
def test_a_walk_sees_every_row_once_while_others_write(client: Client, run: str, sort: str) -> None:
    before = {item["id"] for item in client.submit(run, *[task(severity=s) for s in SEVERITIES * 5])["tasks"]}
    seen: list[str] = []
    for number, page in enumerate(client.walk("tasks", limit=4, sort=sort, status="open")):
        seen += [item["id"] for item in page["tasks"]]
        for item in page["tasks"]:
            client.triage(item["id"], "resolved")  # and so it leaves the list
        if number < 5:
            client.submit(run, *[task(severity=s) for s in SEVERITIES])
    assert len(seen) == len(set(seen))
    assert before <= set(seen)


# Of each the last parameter is wrong.
BAD_PARAMETERS = (
    *("tasks?page=0", "tasks?page=-1", "tasks?page=1.0", "tasks?page=1e0", "tasks?page=%2B1", "tasks?page=%D9%A3"),
    *("tasks?page=%201", "tasks?page=1_0", "tasks?page=", f"tasks?page={10**30}", "runs?page=last"),
    "runs?page=1&page=2",
    *("tasks?limit=0", "tasks?limit=201", "runs?limit=201", "runs?limit=-1", "runs?limit="),
    "tasks?limit=1&limit=1",
    *("tasks?status=", "tasks?status", "tasks?status=open,", "tasks?status=open,,resolved", "tasks?status=opened"),
    *("tasks?status=Open", "tasks?status=running", "runs?status=open", "tasks?status=open,%20resolved"),
    *("tasks?status=open&status=", "tasks?" + "&".join(["status=open"] * 1001)),
    *("tasks?targetUrl=a&targetUrl=a", "runs?targetUrl=a&targetUrl=b", "tasks?targetUrl="),
    *("tasks?externalId=a&externalId=b", "tasks?externalId="),
    *("tasks?missingFrom=a&missingFrom=a", "tasks?missingFrom="),
    *("tasks?sort=severity&sort=severity", "tasks?sort=title", "tasks?sort=", "runs?sort=createdAt"),
    *("tasks?view=full&view=full", "tasks?view=all", "tasks?severity=hgh", "tasks?severity="),
    *("tasks?runId=", "runs?projectType="),
    *("tasks?mainLine=yes", "runs?mainLine=1", "tasks?mainLine=True", "runs?mainLine="),
    *("tasks?mainLine=true&mainLine=true", "tasks?mainLine=true,false"),
    *("tasks?assignee=", "tasks?assignee=a&assignee=a", "tasks?assigned=no", "tasks?assigned=true,false"),
    *("tasks?createdSince=", "tasks?createdSince=2026-11-21&createdSince=2026-11-21"),
    *("tasks?createdSince=yesterday", "tasks?createdSince=1700000000", "tasks?createdSince=2026-02-30"),
    *("tasks?createdSince=2026-11-21T24:00Z", "tasks?createdSince=2026-11-21T00:00+01:00"),
    *("tasks?createdSince=2026-11-21Z", "runs?createdSince=2026-11-21"),
    *("tasks?createdBefore=2026-11-21T10:00.5Z", "tasks?createdBefore=2026-11-2%D9%A1"),
    *("tasks?createdBefore=0001-01-01T00:00%2B01:00", "tasks?createdBefore=9999-12-31T23:59:59.9999Z"),
    *("tasks?q=", "tasks?q=%20%1F%E2%80%83", "tasks?q=%CC%81%20%CC%88", "tasks?q=a&q=b", "tasks?q=a%00"),
    *("runs?q=a", f"tasks?missingFrom={UNKNOWN_ID}&q=%20"),
    *("tasks?branch=", "runs?branch=a&branch=", "runs?branch=%00", "tasks?" + "&".join(["branch=a"] * 101)),
    "tasks?Status=open",
    *("tasks?after=", "tasks?after=garbage", "runs?after=%00", f"tasks?after={UNKNOWN_ID[:-1]}"),
    *(f"tasks?after={UNKNOWN_ID}&after={UNKNOWN_ID}", f"tasks?sort=severity&after={UNKNOWN_ID}"),
    *("runs/RUN/gate?failOn=hgh", "runs/RUN/gate?failOn=", "runs/RUN/gate?failOn=low&failOn=high"),
    *("runs/RUN/gate?only=old", "runs/RUN/gate?baseline=", "runs/RUN/gate?page=1"),
    *("overview?days=0", "overview?days=366", "overview?days=x", "overview?branch=", "overview?branch=a&branch=b"),
    "overview?status=open",
    *("brief?projectType=", "brief?projectType=web&projectType=app", "brief?projectType=web&targetUrl="),
    *("brief?projectType=web&branch=", "brief?projectType=web&limit=0", "brief?projectType=web&limit=201"),
    "brief?projectType=web&status=open",
    *("tasks/TASK/history?limit=0", "tasks/TASK/history?limit=1001", "tasks/TASK/history?limit=x"),
    *("tasks/TASK/history?after=", "tasks/TASK/history?after=-1", "tasks/TASK/history?after=x"),
    "tasks/TASK/history?page=1",
)


SEVERAL_VALUES = cases(
    commas="status=open,resolved",
    repeated="status=open&status=resolved",
    both="status=open,resolved&status=open",
    apart="status=open&limit=50&status=resolved",
    many="&".join(["status=open"] * 999 + ["status=resolved"]),
)


@pytest.mark.parametrize("query", SEVERAL_VALUES)
def test_a_filter_takes_several_values_by_commas_and_by_repeating(client: Client, run: str, query: str) -> None:
    for status in STATUSES:
        client.submit(run, task(status=status), task(status=status))
    page = client.get(f"{API}/tasks?{query}").json
    assert (page["total"], {each["status"] for each in page["tasks"]}) == (4, {"open", "resolved"})
    shorter = client.get(f"{API}/tasks?{query.replace('limit=50', 'limit=3')}{'' if 'limit' in query else '&limit=3'}")
    assert len(client.get(shorter.json["next"]).json["tasks"]) == 1


@pytest.mark.parametrize("name", ["a", "a,b", ",", " a b", "type:x target:y", "ü/#?&=%", "branches"])
def test_a_branch_is_asked_for_exactly_by_its_name(client: Client, run: str, name: str) -> None:
    for each in (name, "other"):
        client.add(client.start(branch=each))
        client.add(client.start(branch=f"{each} "))
    for path in ("runs", "tasks"):
        page = client.read(path, branch=name)
        assert ([each["branch"] for each in page[path]], page["total"]) == ([name], 1)
        first = client.read(path, branch=["other", name], limit=1)
        assert [each["branch"] for each in first[path]] == ["other"]
        assert [each["branch"] for each in client.read(first["next"])[path]] == [name]


def test_a_branch_of_too_many_targets_is_asked_for_with_one(
    client: Client, run: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(4):
        client.add(client.start("web", targetUrl=f"https://example.com/{number}", branch="dev"), title=str(number))
    monkeypatch.setattr(findings_service, "MOST_REPORTERS", 3)
    problem = assert_problem(client.get(f"{API}/tasks?branch=dev"), 400, "invalid_parameter", "branch")
    assert "name one of those" in problem["detail"]
    assert client.read("tasks", branch="dev", targetUrl="https://example.com/2")["total"] == 1
    assert client.read("runs", branch="dev")["total"] == 4


@pytest.mark.parametrize("asked", BAD_PARAMETERS, ids=lambda asked: asked[:50])
def test_bad_parameters_are_refused_by_name(client: Client, run: str, asked: str) -> None:
    path = asked.replace("RUN", run).replace("TASK", client.add(run))
    name = re.findall(r"[?&](\w+)", asked)[-1]
    assert_problem(client.get(f"{API}/{path}"), 400, "invalid_parameter", name)


@pytest.mark.parametrize("query", cases(thousands="&".join(["status=open"] * 5001), no_utf8="externalId=%FF"))
def test_a_query_that_cannot_be_read_is_refused(client: Client, query: str) -> None:
    assert_problem(client.get(f"{API}/tasks?{query}"), 400, "invalid_parameter", "query string")


@pytest.fixture
def dated(app: flask.Flask, client: Client, run: str) -> list[str]:
    """Tasks that were created on four days, one of them in a known millisecond."""
    days = [
        "2026-11-19T23:59:59.999Z",
        "2026-11-20T00:00:00.000Z",
        "2026-11-20T12:30:15.123Z",
        "2026-11-21T00:00:00.000Z",
    ]
    ids = [client.add(run, title=day) for day in days]
    with database_of(app).transaction() as connection:
        for day in days:
            connection.execute("UPDATE tasks SET created_at = ? WHERE title = ?", (day, day))
    return ids


DATES = cases(
    day=("createdSince=2026-11-20", [1, 2, 3]),
    day_before=("createdBefore=2026-11-20", [0]),
    one_day=("createdSince=2026-11-20&createdBefore=2026-11-21", [1, 2]),
    minute=("createdSince=2026-11-20T00:00", [1, 2, 3]),
    small_letters=("createdSince=2026-11-20t00:00:00z", [1, 2, 3]),
    zone=("createdSince=2026-11-20T13:30:15.123%2B01:00", [2, 3]),
    zone_without_a_colon=("createdBefore=2026-11-19T19:00:00-0500", [0]),
    millisecond=("createdSince=2026-11-20T12:30:15.123Z", [2, 3]),
    before_a_millisecond=("createdBefore=2026-11-20T12:30:15.123Z", [0, 1]),
    finer=("createdSince=2026-11-20T12:30:15.123001Z", [3]),
    before_a_finer_one=("createdBefore=2026-11-20T12:30:15.123001Z", [0, 1, 2]),
    trailing_noughts=("createdSince=2026-11-20T12:30:15.123000Z", [2, 3]),
    fewer_digits=("createdSince=2026-11-20T12:30:15,1", [2, 3]),
    finer_than_a_second=("createdBefore=2026-11-19T23:59:59.9999", [0]),
    nothing_between=("createdSince=2026-11-21&createdBefore=2026-11-20", []),
    all_of_it=("createdSince=0001-01-01&createdBefore=9999-12-31", [0, 1, 2, 3]),
    none_of_it=("createdSince=2026-11-22", []),
)


@pytest.mark.parametrize(("query", "places"), DATES)
def test_tasks_are_found_by_when_they_were_created(client: Client, dated: list[str], query: str, places: Any) -> None:
    for more in ("", "status=open&", "severity=high&limit=2&"):
        page = client.get(f"{API}/tasks?sort=createdAt&{more}{query}").json
        assert page["total"] == len(places)
        assert [each["id"] for each in page["tasks"]] == [dated[place] for place in places][: page["limit"]]


def test_the_times_of_one_clients_tasks_are_no_other_ones_matter(app: flask.Flask, client: Client, run: str) -> None:
    client.add(run)
    with database_of(app).transaction() as connection:
        connection.execute("UPDATE tasks SET created_at = '2999-01-01T00:00:00.000Z'")
    other = client_of(app, client="other")
    other.register("web")
    task_id = other.add(other.start())
    assert other.read(f"tasks/{task_id}")["createdAt"] < "2999" < client.read("tasks")["tasks"][0]["createdAt"]
    assert client.read("tasks", createdSince="2998-01-01")["total"] == 1
    assert other.read("tasks", createdSince="2998-01-01")["total"] == 0
    assert client.read(f"tasks/{client.add(run)}")["createdAt"] == "2999-01-01T00:00:00.000Z"
    assert faults_of(Path(database_of(app).settings.db)) == []


def test_a_clock_that_is_set_back_leaves_tasks_in_order(
    app: flask.Flask, client: Client, run: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = client.read(f"tasks/{client.add(run)}")["createdAt"]
    now = time.time_ns()
    monkeypatch.setattr(findings_service.time, "time_ns", lambda: now - 3600 * 10**9)
    ids = [client.add(run) for _ in range(3)]
    assert [client.read(f"tasks/{task_id}")["createdAt"] for task_id in ids] == [first] * 3
    assert client.read("tasks", createdSince=first)["total"] == 4
    assert faults_of(database_of(app).settings.db) == []


def test_next_links_work_for_queries_in_raw_utf8(client: Client) -> None:
    client.register("web")
    run = client.start(targetUrl="https://example.com/ü?a=b+c%20d")
    client.submit(run, task(), task())
    for query in (
        "targetUrl=https://example.com/ü?a=b%2Bc%2520d",
        "targetUrl=https%3A//example.com/%C3%BC?a=b%2Bc%2520d",
    ):
        environ = {"QUERY_STRING": f"{query}&limit=1".encode().decode("latin-1")}
        page = client.get(f"{API}/tasks", environ_overrides=environ).json
        assert page["next"].isascii()
        assert [len(client.read(page["next"])["tasks"]), page["total"]] == [1, 2]


def test_an_unknown_run_filters_everything_away_but_is_not_found_as_missing_from(client: Client, run: str) -> None:
    client.add(run, externalId="x")
    page = client.read("tasks", runId=UNKNOWN_ID)
    assert (page["tasks"], page["total"], page["next"]) == ([], 0, None)
    assert client.read("tasks", runId=f"x,{run}")["total"] == 1
    assert_problem(client.get(f"{API}/tasks?missingFrom={UNKNOWN_ID}"), 404, "not_found")


def test_target_and_external_id_are_matched_exactly(client: Client, run: str) -> None:
    client.add(run, externalId="a,b")
    client.add(run, externalId="a")
    assert client.read("tasks", externalId="a,b")["total"] == 1
    assert client.read("tasks", externalId="A")["total"] == 0
    assert client.read("tasks", targetUrl="https://example.com/")["total"] == 2
    assert client.read("tasks", targetUrl="https://example.com")["total"] == 0


def test_list_items_leave_the_bulk_out_unless_asked_for(client: Client, run: str) -> None:
    bulk = {"description": "d", "evidence": [{"label": "x"}], "extensions": {"a": 1}}
    task_id = client.add(run, **bulk)
    assert set(client.read("tasks")["tasks"][0]) == HEAD_FIELDS
    assert client.read("tasks", view="full")["tasks"][0] == client.read(f"tasks/{task_id}")


# ---------------------------------------------------------------------------
# Search
# ---------------------------------------------------------------------------


def searched(client: Client, q: str, **query: Any) -> list[str]:
    """Return the titles of the tasks that a search finds, newest first, of which the total tells the number."""
    page = client.read("tasks", q=q, limit=200, **query)
    assert page["total"] == len(page["tasks"])
    return [item["title"] for item in page["tasks"]]


SIGNS = [
    *"aAbß1%_*\\'\"-^[.\u0301\u05d0\u0130\u0131\ufb01\u03a3\u03c2\u03c3\u1e9e\u00e9\u00c5\u0915\u0941\u200f\U0001f469",
    " ",
    " ",
    "\n",
    "\x1f",
    "\u3000",
    "AB",
]


def plain(text: str) -> str:
    """Return a text without case and accents."""
    apart = unicodedata.normalize("NFD", text.casefold())
    return "".join(sign for sign in apart if not unicodedata.combining(sign))


def random_text(dice: random.Random, length: int) -> str:
    return "x" + "".join(dice.choices(SIGNS, k=dice.randrange(length)))


def holds(item: dict[str, Any], q: str) -> bool:
    """Tell whether every word of a search stands in one of a task's texts."""
    texts = [item["title"], item["externalId"] or "", *(each["label"] for each in item["evidence"])]
    return all(any(plain(word) in plain(text) for text in texts) for word in q.split())


def labelled(dice: random.Random) -> dict[str, Any]:
    """Return a task with hostile texts, of few findings."""
    labels = [{"label": random_text(dice, 6)} for _ in range(dice.randrange(3))]
    external_id = f"{random_text(dice, 2)}{dice.randrange(90)}" if dice.random() < 0.5 else ...
    return task(title=random_text(dice, 12), externalId=external_id, evidence=labels, severity=dice.choice(SEVERITIES))


@pytest.mark.parametrize("seed", range(3))
def test_a_search_finds_what_reading_every_task_finds(app: flask.Flask, client: Client, seed: int) -> None:
    dice, stranger = random.Random(seed), client_of(app, client="stranger")
    for owner in (client, stranger):
        owner.register("web")
    for branch in (None, "topic", None):
        runs = [(owner, owner.start("web", branch=branch)) for owner in (client, client, stranger)]
        for _ in range(12):
            owner, run = dice.choice(runs)
            owner.submit(run, *(labelled(dice) for _ in range(dice.choice((1, 2, 40)))))
    tasks = [item for page in client.walk("tasks", view="full", limit=200) for item in page["tasks"]]
    for _ in range(150):
        words = dice.choice(list(filter(None, random_text(dice, 5).split())))
        text = dice.choice((words[1:] or words, words, dice.choice(tasks)["title"], f"x {dice.randrange(9)}"))
        if not plain("".join(text.split())):
            continue
        walked = [item["id"] for page in client.walk("tasks", q=text, limit=30) for item in page["tasks"]]
        assert walked == [item["id"] for item in tasks if holds(item, text)], text
    with database_of(app).reading() as connection:
        assert list(audit.integrity_errors(connection)) == []


@pytest.mark.parametrize(
    ("title", "q", "found"),
    cases(
        part_of_a_word=("Unlabelled field", "LABEL", True),
        words_in_any_order=("Unlabelled field", "field unlab", True),
        one_word_is_missing=("Unlabelled field", "field form", False),
        across_words=("Form field", "mfi", False),
        dotted_capital_i=("\u0130stanbul", "istanbul", True),
        sharp_s=("Straße", "STRASSE", True),
        ligature=("\ufb01le", "file", True),
        final_sigma=("\u03bf\u03b4\u03cc\u03c2", "\u039f\u0394\u039f\u03a3", True),
        accent_asked_for=("resume", "résumé", True),
        accent_stored_apart=("re\u0301sume\u0301", "resume", True),
        kelvin_sign=("3 \u212a", "k", True),
        another_letter=("Łódź", "lodz", False),
        whole_syllable=("\uac01", "\u1100\u1161\u11a8", True),
        part_of_a_syllable=("\uac01", "\uac00", False),
        percent=("100 % wrong", "%", True),
        percent_is_itself=("100 wrong", "100%", False),
        underscore_is_itself=("a-b", "a_b", False),
        star_is_itself=("ab", "a*", False),
        quotes=('say "hi"', '"hi"', True),
        pattern_is_itself=("abc", "[a-c]", False),
        white_space_is_all_alike=("one\ntwo\x1fthree", "two\u2003one three", True),
    ),
)
def test_a_search_is_for_words_whatever_their_case_and_accents(
    client: Client, run: str, title: str, q: str, found: bool
) -> None:
    client.submit(run, task(title=title), task(title=title), task(title="Something else"))
    assert searched(client, q) == ([title] * 2 if found else [])


def test_external_ids_and_labels_are_searched_and_nothing_else_is(client: Client, run: str) -> None:
    evidence = [{"label": "src/app.py:12", "content": "secret"}, {"type": "log", "url": "https://cdn.example/x"}]
    client.add(run, title="One", externalId="CWE-79/a", evidence=evidence, description="described")
    assert searched(client, "cwe-79 one APP.PY:1") == ["One"]
    for word in ("secret", "cdn.example", "described", "log", "high", "web", "src/app.py:12cwe", "onecwe"):
        assert searched(client, word) == []


def test_a_search_follows_what_is_reported_again(client: Client) -> None:
    client.register("web")
    branch, main = client.start(branch="topic"), client.start()
    client.add(branch, externalId="1", title="Found here", evidence=[{"label": "old"}])
    client.add(branch, externalId="1", title="Found here", evidence=[{"label": "new"}])
    assert (searched(client, "old"), searched(client, "here new 1")) == ([], ["Found here"])
    client.add(main, externalId="1", title="Taken over")
    assert (searched(client, "here"), searched(client, "new"), searched(client, "taken 1")) == ([], [], ["Taken over"])
    client.add(branch, externalId="1", title="Not heard")
    assert (searched(client, "heard"), searched(client, "taken")) == ([], ["Taken over"])
    client.remove(f"tasks/{client.read('tasks')['tasks'][0]['id']}")
    assert (searched(client, "taken"), rows_of(client.application, "SELECT words FROM task_words")) == ([], [])


def test_a_task_without_any_words_is_found_by_none(app: flask.Flask, client: Client, run: str) -> None:
    client.submit(run, task(title="\u0301", externalId="\u0308"), task(title="Old"))
    assert (searched(client, "old"), searched(client, "old", externalId="\u0308")) == (["Old"], [])
    with database_of(app).reading() as connection:
        assert list(audit.integrity_errors(connection)) == []


def test_a_search_may_have_as_many_words_as_a_title(client: Client, run: str) -> None:
    words = [f"word{number}" for number in range(search.MOST_WORDS)]
    labels = [{"label": " ".join(words[lot : lot + 50])} for lot in range(0, len(words), 50)]
    client.submit(run, task(title="Few", evidence=labels[:1]), task(title="Many", evidence=labels))
    assert searched(client, " ".join(words)) == ["Many"]
    assert searched(client, "w" * 10_000) == []
    assert searched(client, "word1 " * 1600) == ["Many", "Few"]
    too_many = client.get(f"{API}/tasks", query_string={"q": " ".join([*words, "more"])})
    assert_problem(too_many, 400, "invalid_parameter", "q")


# ---------------------------------------------------------------------------
# Keys and clients
# ---------------------------------------------------------------------------

NO_KEYS = cases(
    none=None,
    empty="",
    scheme_alone="Bearer",
    blank="Bearer  ",
    basic="Basic Zm9vOmJhcg==",
    key_alone="KEY",
    unknown="Bearer fts_" + "x" * 43,
    other_prefix="Bearer abc",
    not_ascii="Bearer fts_\xe9",
    cut_short="Bearer KEY-1",
    too_long="Bearer KEYx",
    quoted='Bearer "KEY"',
    two="Bearer KEY KEY",
)


@pytest.mark.parametrize("header", NO_KEYS)
def test_a_bad_key_is_unauthorized(app: flask.Flask, header: str | None) -> None:
    key = make_key(app)
    value = None if header is None else header.replace("KEY-1", key[:-1]).replace("KEY", key)
    headers = {} if value is None else {"Authorization": value}
    response = app.test_client().get(f"{API}/tasks", headers=headers)
    assert_problem(response, 401, "unauthorized")
    assert response.headers["WWW-Authenticate"].startswith("Bearer")


def test_an_expired_key_is_unauthorized(app: flask.Flask) -> None:
    client = app.test_client()
    for expires, status in (("2001-01-01T00:00:00.000Z", 401), ("2999-01-01T00:00:00.000Z", 200)):
        with database_of(app).transaction() as connection:
            key = findings_service.insert_key(connection, "x", "default", "full", expires)
        response = client.get(f"{API}/tasks", headers={"Authorization": f"Bearer {key}"})
        assert response.status_code == status


def test_only_the_hash_of_a_key_is_stored(app: flask.Flask, tmp_path: Path) -> None:
    key = make_key(app)
    assert KEY.fullmatch(key)
    database_of(app).close()
    stored = held_in(tmp_path / "findings.db")
    assert key.encode() not in stored
    assert hashlib.sha256(key.encode()).hexdigest().encode() in stored


def test_the_key_of_the_environment_is_a_full_key_of_default(
    make_app: Callable[..., flask.Flask], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FINDINGS_API_KEY", "from-the-environment")
    app = make_app()
    client = client_of(app)
    client.register("web")
    task_id = client.add(client.start())
    client.key = "from-the-environment"
    assert client.triage(task_id, "dismissed")["status"] == "dismissed"
    client.key = "from-the-environment2"
    assert_problem(client.get(f"{API}/tasks"), 401, "unauthorized")


def test_the_last_use_of_a_key_is_remembered(app: flask.Flask, client: Client) -> None:
    reader = client_of(app, "read", name="reader")
    reader.read("tasks")
    client.register("web")
    rows = rows_of(app, "SELECT name, last_used_at FROM api_keys")
    assert all(TIME.fullmatch(last_used_at) for _, last_used_at in rows), rows


# ---------------------------------------------------------------------------
# Runs
# ---------------------------------------------------------------------------

NOTHING_SUBMITTED = {"created": 0, "updated": 0, "reopened": 0, "unchanged": 0, "resolved": 0}


def test_starting_a_run_answers_the_whole_run(client: Client) -> None:
    client.register("web")
    body = {"projectType": "web", "targetUrl": "https://example.com/", "metadata": {"commit": "abc"}}
    response = client.post(f"{API}/runs", json=body)
    run = response.json
    assert response.status_code == 201
    assert response.headers["Location"] == f"{API}/runs/{run['id']}"
    assert set(run) >= RUN_FIELDS
    assert {name: run[name] for name in body} == body
    assert (run["status"], run["statusReason"], run["finishedAt"]) == ("running", None, None)
    assert (run["submitted"], run["createdAt"]) == (NOTHING_SUBMITTED, run["updatedAt"])
    assert client.get(response.headers["Location"]).json == {
        **run,
        "summary": client.read(f"runs/{run['id']}")["summary"],
    }


def test_an_unknown_project_type_is_refused_with_the_known_ones(app: flask.Flask, client: Client) -> None:
    client_of(app, client="other").register("theirs")
    client.register("web")
    client.register("cli")
    for name in ("wbe", "theirs", "WEB", ""):
        problem = assert_problem(
            client.post(f"{API}/runs", json={"projectType": name}), 422, "unknown_project_type", "/projectType"
        )
        assert "web" in problem["detail"]
        assert "cli" in problem["detail"]
        assert f"POST {API}/project-types" in problem["detail"]
        assert "theirs" not in problem["detail"].replace("'theirs'", "")


METADATA = (
    '{"z": 1, "a": {"10": 1.0, "9": 1e2}}',
    '{"big": 123456789012345678901234567890, "small": 0.1000, "minus": -0.0}',
    '{ "spaces" :  [ 1 ,2 ] }',
    '{"escaped": "\\u00e9\\/\\ud83d\\ude00", "plain": "é/😀"}',
    '{"": {}, "a~/b": null}',
    '{"n": %s, "f": 0.12345678901234567890123456789}' % ("9" * 400),
)


@pytest.mark.parametrize("text", METADATA, ids=range(len(METADATA)))
def test_metadata_extensions_and_schemas_come_back_exactly_as_sent(client: Client, run: str, text: str) -> None:
    raw = text.encode()
    started = client.send("POST", f"{API}/runs", b'{"projectType": "web", "metadata": %s}' % raw)
    body = b'{"title": "x", "severity": "low", "extensions": %s}' % raw
    submitted = client.send("POST", f"{API}/runs/{run}/tasks", body)
    task_id = submitted.json["tasks"][0]["id"]
    registered = client.send("POST", f"{API}/project-types", b'{"name": "a", "extensionSchema": %s}' % raw)
    for response in (started, client.get(f"{API}/runs"), client.get(f"{API}/tasks/{task_id}"), registered):
        assert raw in response.data
    assert raw in client.get(f"{API}/tasks?view=full").data


RUN_REJECTIONS = cases(
    type_number={"projectType": 1},
    target_number={"targetUrl": 1},
    target_empty={"targetUrl": ""},
    target_relative={"targetUrl": "/shop"},
    target_without_scheme={"targetUrl": "example.com"},
    target_without_host={"targetUrl": "https://"},
    target_path_only={"targetUrl": "https:///shop"},
    target_one_slash={"targetUrl": "https:/example.com"},
    target_ftp={"targetUrl": "ftp://example.com/"},
    target_javascript={"targetUrl": "javascript:alert(1)"},
    target_file={"targetUrl": "file:///etc"},
    target_long={"targetUrl": "https://example.com/" + "x" * 2029},
    metadata_list={"metadata": []},
    metadata_text={"metadata": "x"},
    metadata_number={"metadata": 1},
    metadata_large={"metadata": {"a": "x" * (64 * KIB - 7)}},
    metadata_large_in_bytes={"metadata": {"a": "é" * (32 * KIB)}},
    branch_empty={"branch": ""},
    branch_long={"branch": "x" * 256},
    branch_number={"branch": 1},
    branch_tab={"branch": "a\tb"},
    branch_newline_at_the_end={"branch": "main\n"},
    branch_delete={"branch": "\x7f"},
    branch_next_line={"branch": "a\x85"},
)


@pytest.mark.parametrize("change", RUN_REJECTIONS)
def test_a_bad_run_is_refused(client: Client, run: str, change: dict[str, Any]) -> None:
    body = json.dumps({"projectType": "web"} | change, ensure_ascii=False).encode()
    assert_problem(client.send("POST", f"{API}/runs", body), 422, "validation_failed", f"/{[*change][-1]}")
    assert client.read("runs")["total"] == 1


RUN_BOUNDS = cases(
    target_long={"targetUrl": "https://example.com/" + "x" * 2028},
    target_http={"targetUrl": "http://localhost:8080"},
    target_capitals={"targetUrl": "HTTPS://Example.com/A?b=c#d"},
    target_ipv6={"targetUrl": "http://[::1]:80/"},
    target_repository={"targetUrl": "https://git.example.com/a/b.git"},
    metadata_large={"metadata": {"a": "x" * (64 * KIB - 8)}},
    metadata_large_in_bytes={"metadata": {"a": "é" * (32 * KIB - 4)}},
    branch_long={"branch": "é" * 255},
    branch_of_anything={"branch": " refs/pull/1,2 type:x\u00a0\u2028\U0001f600 branches"},
)


@pytest.mark.parametrize("change", RUN_BOUNDS)
def test_a_run_at_the_bounds_is_taken(client: Client, run: str, change: dict[str, Any]) -> None:
    body = json.dumps({"projectType": "web"} | change, ensure_ascii=False).encode()
    response = client.send("POST", f"{API}/runs", body)
    assert response.status_code == 201
    assert {name: response.json[name] for name in change} == change


def test_white_space_does_not_count_in_the_size_of_metadata(client: Client, run: str) -> None:
    body = b'{"projectType": "web", "metadata": {"a": 1%s}}' % (b" " * 70_000)
    assert client.send("POST", f"{API}/runs", body).status_code == 201


@pytest.mark.parametrize("status", ["completed", "failed"])
def test_finishing_a_run_keeps_how_and_when_it_ended(client: Client, run: str, status: str) -> None:
    time.sleep(0.002)
    finished = client.finish(run, status, statusReason="é" * 1000)
    assert (finished["status"], finished["statusReason"]) == (status, "é" * 1000)
    assert finished["createdAt"] < finished["finishedAt"] == finished["updatedAt"]
    stored = client.read(f"runs/{run}")
    assert {name: stored[name] for name in RUN_FIELDS} == {name: finished[name] for name in RUN_FIELDS}


def test_finishing_the_same_way_again_changes_nothing(client: Client, run: str) -> None:
    first = client.start(targetUrl="https://example.com/")
    task_id = client.add(first, externalId="old")
    before = client.finish(run, statusReason="first")
    time.sleep(0.002)
    again = client.finish(run, statusReason="second", resolveMissing=True)
    assert {name: again[name] for name in RUN_FIELDS} == {name: before[name] for name in RUN_FIELDS}
    assert client.read(f"tasks/{task_id}")["status"] == "open"


@pytest.mark.parametrize(("first", "second"), [("completed", "failed"), ("failed", "completed")])
def test_a_finished_run_stays_finished(client: Client, run: str, first: str, second: str) -> None:
    client.finish(run, first)
    assert_problem(client.patch(f"{API}/runs/{run}", json={"status": second}), 409, "run_finished")
    assert_problem(client.post(f"{API}/runs/{run}/tasks", json=task()), 409, "run_finished")
    assert client.read(f"runs/{run}")["status"] == first
    assert client.read("tasks")["total"] == 0


RUN_UPDATE_REJECTIONS = cases(
    running={"status": "running"},
    unknown={"status": "done"},
    number={"status": 1},
    reason_long={"status": "failed", "statusReason": "x" * 1001},
    reason_number={"status": "failed", "statusReason": 1},
    resolve_text={"status": "completed", "resolveMissing": "yes"},
    resolve_number={"status": "completed", "resolveMissing": 1},
    resolve_failed={"status": "failed", "resolveMissing": True},
)


@pytest.mark.parametrize("body", RUN_UPDATE_REJECTIONS)
def test_a_bad_end_of_a_run_is_refused(client: Client, run: str, body: dict[str, Any]) -> None:
    refused = client.patch(f"{API}/runs/{run}", json=body)
    assert_problem(refused, 422, "validation_failed", f"/{[*body][-1]}")
    assert client.read(f"runs/{run}")["status"] == "running"


def test_a_run_counts_what_was_submitted_to_it(client: Client, run: str) -> None:
    client.submit(run, task(externalId="a"), task(externalId="b"), task(), task(externalId="b", title="wins"))
    client.submit(run, task(externalId="a"), task(externalId="b", title="changed"))
    second = client.start(targetUrl="https://example.com/")
    client.triage(client.add(second, externalId="a"), "resolved")
    client.submit(second, task(externalId="a"), task(externalId="c"))
    assert client.read(f"runs/{run}")["submitted"] == NOTHING_SUBMITTED | {"created": 3, "unchanged": 1, "updated": 1}
    expected = NOTHING_SUBMITTED | {"created": 1, "unchanged": 1, "reopened": 1}
    assert client.read(f"runs/{second}")["submitted"] == expected


def test_a_summary_has_every_severity_and_status(client: Client, run: str) -> None:
    nothing = {"total": 0, "bySeverity": dict.fromkeys(SEVERITIES, 0), "byStatus": dict.fromkeys(STATUSES, 0)}
    assert client.read(f"runs/{run}")["summary"] == nothing
    client.submit(run, task(severity="critical"), task(severity="low", status="in_progress"), task(severity="low"))
    summary = client.read(f"runs/{run}")["summary"]
    assert summary["total"] == 3
    assert summary["bySeverity"] == dict.fromkeys(SEVERITIES, 0) | {"critical": 1, "low": 2}
    assert summary["byStatus"] == dict.fromkeys(STATUSES, 0) | {"open": 2, "in_progress": 1}


def prune_two(client: Client, run: str) -> None:
    """Remove the first two tasks that a run reports."""
    with database_of(client.application).transaction() as connection:
        key = findings_service.select_run_key(connection, "default", run)
        deletion.prune_slice(connection, "default", key, 2)


CHANGES = cases(
    triage=lambda client, _: client.triage(client.read("tasks", externalId="a")["tasks"][0]["id"], "dismissed"),
    another_report=lambda client, run: client.submit(run, task(externalId="a", severity="low"), task()),
    report_by_another_run=lambda client, _: client.add(
        client.start(targetUrl="https://example.com/"), externalId="a", severity="info"
    ),
    resolve_missing=lambda client, _: client.finish(
        client.start(targetUrl="https://example.com/"), resolveMissing=True
    ),
    reopening=lambda client, _: [
        CHANGES_BY_NAME["resolve_missing"](client, _),
        client.add(client.start(targetUrl="https://example.com/"), externalId="b"),
    ],
    prune=lambda client, run: [client.finish(run), prune_two(client, run)],
)
CHANGES_BY_NAME = {case.id: case.values[0] for case in CHANGES}


@pytest.mark.parametrize("change", CHANGES)
def test_a_summary_is_a_recount_after_each_change(client: Client, run: str, change: Callable[..., object]) -> None:
    client.submit(run, *(task(externalId=name, severity=each) for each, name in zip(SEVERITIES, "abcde", strict=True)))
    before = client.read(f"runs/{run}")["summary"]
    change(client, run)
    assert client.read(f"runs/{run}")["summary"] != before
    assert_summary_is_a_recount(client, run, created=change is not CHANGES_BY_NAME["prune"])
    assert faults_of(database_of(client.application).settings.db) == []


def test_resolve_missing_resolves_what_the_run_did_not_report(client: Client, run: str) -> None:
    names = ("reported", "missing", "in-progress", "dismissed", "resolved")
    ids = {name: client.add(run, externalId=name) for name in names}
    for name, status in (("in-progress", "in_progress"), ("dismissed", "dismissed"), ("resolved", "resolved")):
        client.triage(ids[name], status)
    ids["no-external-id"] = client.add(run)
    second = client.start(targetUrl="https://example.com/")
    client.add(second, externalId="reported")
    assert client.finish(second, resolveMissing=True)["submitted"]["resolved"] == 2
    statuses = {name: client.read(f"tasks/{task_id}")["status"] for name, task_id in ids.items()}
    assert statuses == {
        "reported": "open",
        "missing": "resolved",
        "in-progress": "resolved",
        "dismissed": "dismissed",
        "resolved": "resolved",
        "no-external-id": "open",
    }
    entry = client.history(ids["in-progress"])[-1]
    assert (entry["event"], entry["from"], entry["to"], entry["runId"]) == ("status", "in_progress", "resolved", second)
    assert len(client.history(ids["resolved"])) == 2


def test_resolve_missing_leaves_other_types_targets_and_clients_alone(app: flask.Flask, client: Client) -> None:
    stranger = client_of(app, client="other")
    for owner in (client, stranger):
        owner.register("web")
        owner.register("cli")
    others = [
        (client, client.add(client.start("cli"), externalId="x")),
        (client, client.add(client.start("web", targetUrl="https://example.com/"), externalId="x")),
        (stranger, stranger.add(stranger.start("web"), externalId="x")),
    ]
    ours = client.add(client.start("web"), externalId="x")
    client.finish(client.start("web"), resolveMissing=True)
    assert client.read(f"tasks/{ours}")["status"] == "resolved"
    assert {owner.read(f"tasks/{task_id}")["status"] for owner, task_id in others} == {"open"}


@pytest.mark.sqlite
def test_a_run_may_end_in_one_group_with_the_triage_of_what_it_did_not_report(
    client: Client, run: str, group: Group
) -> None:
    client.add(run, externalId="gone", status="open")
    task_id = client.add(run, externalId="kept", status="in_progress")
    second = client.start(targetUrl="https://example.com/")
    client.add(second, externalId="kept", status="in_progress")
    (status, _), (_, ended) = group.ask(
        group.environ("PATCH", f"{API}/tasks/{task_id}", {"status": "dismissed"}),
        group.environ("PATCH", f"{API}/runs/{second}", {"status": "completed", "resolveMissing": True}),
    )
    assert (status, ended["submitted"]["resolved"]) == (200, 1)
    assert client.read("tasks", missingFrom=second)["total"] == 0


@pytest.mark.parametrize("branch", [None, "a"])
def test_missing_is_what_the_line_of_a_run_knows_and_it_did_not_report(
    client: Client, run: str, branch: str | None
) -> None:
    client.submit(run, task(externalId="main"), task(externalId="both"))
    for each, names in (("a", ("both", "of a", "of a and b")), ("b", ("of b", "of a and b"))):
        start_on(client, each, *names)
    last = start_on(client, branch, "both")
    expected = ["main"] if branch is None else ["of a and b", "of a", "main"]
    page = client.read("tasks", missingFrom=last)
    assert ([each["externalId"] for each in page["tasks"]], page["total"]) == (expected, len(expected))
    first = client.read("tasks", missingFrom=last, limit=1, sort="createdAt")
    assert [each["externalId"] for each in first["tasks"]] == ["main"]
    left = client.read("tasks", missingFrom=last, mainLine="false")
    assert ([each["externalId"] for each in left["tasks"]], left["total"]) == (expected[:-1], len(expected) - 1)


def resolved(client: Client) -> set[str]:
    """Return the external ids of what is resolved."""
    return {each["externalId"] for each in client.read("tasks", status="resolved")["tasks"]}


def test_a_branch_resolves_only_what_it_reported_first(client: Client, run: str) -> None:
    client.add(run, externalId="main")
    for branch, names in (
        ("a", ("of a", "of a and b", "kept")),
        ("b", ("of a and b", "of b and a")),
        ("a", ("of b and a",)),
    ):
        start_on(client, branch, *names)
    last = start_on(client, "a", "kept")
    assert client.finish(last, resolveMissing=True)["submitted"]["resolved"] == 2
    assert resolved(client) == {"of a", "of a and b"}
    assert client.finish(client.start(targetUrl="https://example.com/", branch="b"), resolveMissing=True)
    assert resolved(client) == {"of a", "of a and b", "of b and a"}


def assert_timed_out(run: dict[str, Any]) -> None:
    """Check that a run was failed because nobody used it."""
    assert (run["status"], run["statusReason"]) == ("failed", "timeout")
    assert TIME.fullmatch(run["finishedAt"])


def test_an_idle_run_fails_by_the_clock_also_while_others_write_without_pause(serve: Callable[..., Server]) -> None:
    server = serve(program=program_with(HOUSEKEEPING=0.2), FINDINGS_RUN_TIMEOUT="0.5s")
    idle, busy, deadline = server.start_run(), server.start_run(), time.monotonic() + 10

    def failed() -> bool:
        assert time.monotonic() < deadline
        return "failed" in [each["status"] for each in server.request("GET", f"{API}/runs").json["runs"]]

    def write() -> None:
        while not failed():
            assert server.request("POST", f"{API}/runs/{busy}/tasks", task()).status_code == 201

    with ThreadPoolExecutor(3) as pool:
        for writing in [pool.submit(write) for _ in range(3)]:
            writing.result()
    assert_timed_out(server.request("GET", f"{API}/runs/{idle}").json)


@pytest.mark.sqlite
def test_the_log_is_truncated_behind_a_deletion_once_nobody_reads_what_is_in_it(
    make_app: Callable[..., flask.Flask], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("findings_adapters.serving.commits.MAINTENANCE_PAUSE", 0.1)
    app = make_app(run_timeout="0.1")
    client, database = client_of(app), database_of(app)
    client.register("web")
    client.start()
    with closing(sqlite3.connect(tmp_path / "findings.db", isolation_level=None)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT COUNT(*) FROM runs").fetchone()
        with database.transaction() as connection:
            connection.deletes = True
        writes = commits.CommitScheduler(database, findings_service.Listeners())
        for _ in range(9):
            time.sleep(0.03)
            next(writes._maintenance)
        assert database.wal_size() > 0
        assert rows_of(app, "SELECT status FROM runs") == [("failed",)]
    for _ in range(3):
        next(writes._maintenance)
    assert database.wal_size() == 0


class Panic(BaseException):
    """What a library written in Rust raises."""


def fail(*_: Any, **__: Any) -> NoReturn:
    raise Panic("assertion failed")


def program_that_fails(*functions: str) -> tuple[str, ...]:
    """Return the program with functions that raise what is no `Exception`."""
    patched = "".join(f"{name} = fail\n" for name in functions)
    source = f"{inspect.getsource(Panic)}\n{inspect.getsource(fail)}"
    serving = "from findings_adapters.serving import commits, processes"
    begin = f"from typing import *\n{IMPORTING}\n{serving}\n{source}\n{patched}\nfindings_service.main()"
    return (sys.executable, "-c", begin)


@pytest.mark.sqlite
@pytest.mark.parametrize(
    ("thread", "function"),
    cases(
        writer=("findings-writer", "commits.CommitScheduler._commit_group"),
        log=("findings-log", "processes.LineWriter._work"),
    ),
)
def test_a_thread_that_others_need_ends_the_process_where_it_fails(
    serve: Callable[..., Server], thread: str, function: str
) -> None:
    server = serve(
        until=f"{LISTENING}|process ends",
        program=program_that_fails(function),
        FINDINGS_LOG="text",
        FINDINGS_API_KEY=SECRET,
    )
    if re.search(LISTENING, server.said):  # the line of the first request may have been one too many
        with suppress(OSError, http.client.HTTPException):
            server.request("POST", f"{API}/project-types", {"name": "web"}, key=SECRET)
    assert server.process.wait(5) == 1
    assert f"the thread {thread} failed, and so the process ends" in server.heard()


def test_a_server_goes_on_behind_what_no_exception_is(serve: Callable[..., Server]) -> None:
    server = serve(program=program_that_fails("findings_service.insert_run", "findings_service.select_task"))
    server.request("POST", f"{API}/project-types", {"name": "web"})
    for _ in range(3):
        assert_problem(server.request("POST", f"{API}/runs", {"projectType": "web"}), 500, "internal_error")
        assert_problem(server.request("GET", f"{API}/tasks/x"), 500, "internal_error")
        assert server.request("POST", f"{API}/project-types", {"name": "web"}).status_code == 200
    assert server.request("GET", "/healthz").status_code == 200
    assert server.stop() == 0


def test_house_is_kept_on_behind_what_no_exception_is(app: flask.Flask, monkeypatch: pytest.MonkeyPatch) -> None:
    house, kept = commits.maintenance_steps(database_of(app)), []
    with monkeypatch.context() as patched:
        patched.setattr(database_of(app), "run_maintenance", fail)
        next(house)
    monkeypatch.setattr(database_of(app), "run_maintenance", lambda: kept.append(1))
    next(house)
    assert kept == [1]


def test_an_idle_run_fails_at_start_up(make_app: Callable[..., flask.Flask]) -> None:
    client = client_of(make_app())
    client.register("web")
    idle = client.start()
    time.sleep(0.15)
    assert_timed_out(client_of(make_app(run_timeout="0.1")).read(f"runs/{idle}"))


def test_who_starts_a_run_fails_idle_ones_of_its_own_client(make_app: Callable[..., flask.Flask]) -> None:
    app = make_app(run_timeout="0.1")
    client, other = client_of(app), client_of(app, client="other")
    for each in (client, other):
        each.register("web")
    idle, _ = client.start(), other.start()
    time.sleep(1.1)  # idle runs are looked for once a second at most
    fresh = client.start()
    assert [item["id"] for item in client.read("runs", status="running")["runs"]] == [fresh]
    assert_timed_out(client.read(f"runs/{idle}"))
    assert_problem(client.post(f"{API}/runs/{idle}/tasks", json=task()), 409, "run_finished")
    assert other.read("runs", status="failed")["total"] == 0
    other.start()
    assert other.read("runs", status="failed")["total"] == 1


@pytest.mark.sqlite
def test_the_search_for_idle_runs_reads_no_other_ones(app: flask.Flask, client: Client) -> None:
    client.register("web")
    work = []
    for times in (3, 300):
        with database_of(app).transaction() as connection:
            for _ in range(times):
                findings_service.insert_run(connection, "default", "web", "", "{}")
            work.append(work_of(connection, lambda: findings_service.fail_idle_runs(connection, "default", 60)))
    assert work[0] == work[1]


@pytest.mark.sqlite
def test_starting_a_run_reads_its_own_project_type_alone(app: flask.Flask, client: Client) -> None:
    client.register("web")
    client.start()  # as the next ones do, that begin behind one
    work = []
    for times in (3, 300):
        with database_of(app).transaction() as connection:
            for number in range(times):
                findings_service.insert_project_type(connection, "default", f"{times}-{number}", "", "", None)
            start = partial(findings_service.insert_run, connection, "default", "web", "", "{}")
            work.append(work_of(connection, start))
    assert work[0] == work[1]


USES = cases(
    submitting=lambda client, run: client.add(run),
    submitting_the_same=lambda client, run: client.submit(run, task(externalId="x")),
    submitting_nothing=lambda client, run: client.submit(run),
    reading=lambda client, run: client.read(f"runs/{run}"),
)


@pytest.mark.parametrize("use", USES)
def test_a_request_keeps_a_run_alive(
    make_app: Callable[..., flask.Flask], monkeypatch: pytest.MonkeyPatch, use: Callable[..., Any]
) -> None:
    monkeypatch.setattr("findings_service.IDLE_SEARCH", 0)
    client = client_of(make_app(run_timeout="0.4"))
    client.register("web")
    run = client.start()
    for _ in range(3):
        time.sleep(0.2)
        use(client, run)
    client.start()
    assert client.read(f"runs/{run}")["status"] == "running"


# ---------------------------------------------------------------------------
# Tasks
# ---------------------------------------------------------------------------

WHOLE_TASK = {
    "externalId": "img-alt-1",
    "title": "Image without alt text",
    "severity": "high",
    "status": "in_progress",
    "description": "The logo has none.",
    "evidence": [
        {"type": "screenshot", "label": "Home page", "url": "https://example.com/home.png"},
        {"type": "code", "label": "Line 3", "content": "<img>"},
    ],
    "remediation": [{"step": 1, "instruction": "Write one."}, {"step": 2, "instruction": "Look again."}],
    "successCriteria": [{"description": "It has one.", "automatable": True}],
    "extensions": {"wcag": "1.1.1"},
}


def test_a_task_comes_back_whole(client: Client, run: str) -> None:
    stored = client.read(f"tasks/{client.submit(run, WHOLE_TASK)['tasks'][0]['id']}")
    assert set(stored) == HEAD_FIELDS | BULK_FIELDS
    evidence = [{k: v for k, v in item.items() if v is not None} for item in stored["evidence"]]
    assert {name: stored[name] for name in WHOLE_TASK} | {"evidence": evidence} == WHOLE_TASK
    assert (stored["runId"], stored["lastRunId"], stored["timesSeen"]) == (run, run, 1)
    assert (stored["projectType"], stored["targetUrl"]) == ("web", "https://example.com/")
    assert stored["createdAt"] == stored["updatedAt"] == stored["lastSeenAt"]


def test_a_bare_task_and_a_batch_are_answered_alike(client: Client, run: str) -> None:
    bare = client.post(f"{API}/runs/{run}/tasks", json=task(externalId="a"))
    batch = client.post(f"{API}/runs/{run}/tasks", json={"tasks": [task(externalId="b")]})
    for response, name in ((bare, "a"), (batch, "b")):
        assert response.status_code == 201
        item = {"status": "open", "externalId": name, "result": "created"}
        assert response.json["tasks"] == [{"id": response.json["tasks"][0]["id"], **item}]
        assert {k: v for k, v in response.json.items() if k != "tasks"} == {
            "created": 1,
            "updated": 0,
            "reopened": 0,
            "unchanged": 0,
        }


def test_a_submission_tells_what_became_of_each_task_in_the_order_sent(client: Client, run: str) -> None:
    same, changed, fixed = (client.add(run, externalId=name) for name in ("same", "changed", "fixed"))
    client.triage(fixed, "resolved")
    tasks = [task(externalId="fixed"), task(), task(externalId="changed", title="x"), task(externalId="same"), task()]
    done = client.submit(run, *tasks)
    assert [item["result"] for item in done["tasks"]] == ["reopened", "created", "updated", "unchanged", "created"]
    assert [item["externalId"] for item in done["tasks"]] == ["fixed", None, "changed", "same", None]
    assert [done["tasks"][place]["id"] for place in (0, 2, 3)] == [fixed, changed, same]
    assert [done[name] for name in ("created", "updated", "reopened", "unchanged")] == [2, 1, 1, 1]
    assert {item["status"] for item in done["tasks"]} == {"open"}


def test_a_submission_that_creates_nothing_is_200(client: Client, run: str) -> None:
    path = f"{API}/runs/{run}/tasks"
    assert client.post(path, json=task(externalId="a")).status_code == 201
    assert client.post(path, json=task(externalId="a")).status_code == 200
    assert client.post(path, json=task(externalId="a", title="new")).status_code == 200
    assert client.post(path, json={"tasks": [task(externalId="a"), task(externalId="b")]}).status_code == 201


def other_run_in_its_place(client: Client, run: str) -> str:
    """Prune a run, and start another one that takes its seq."""
    database = database_of(client.application)
    with database.transaction() as connection:
        key = findings_service.select_run_key(connection, "default", run)
        deletion.prune_slice(connection, "default", key)
        new = findings_service.insert_run(connection, "default", "web", "", "{}")
    assert new.seq == key.seq or ON_POSTGRES  # which gives no number twice
    return new.id


@pytest.mark.parametrize(
    ("meanwhile", "status", "code"),
    cases(
        pruned=(other_run_in_its_place, 404, "not_found"),
        finished=(Client.finish, 409, "run_finished"),
    ),
)
def test_a_run_that_goes_while_its_tasks_are_checked_gets_none(
    client: Client,
    run: str,
    monkeypatch: pytest.MonkeyPatch,
    meanwhile: Callable[[Client, str], object],
    status: int,
    code: str,
) -> None:
    select_run_and_schema, at_work = findings_service.select_run_and_schema, client_of(client.application, name="other")

    def interrupted(*arguments: Any) -> Any:
        found = select_run_and_schema(*arguments)
        meanwhile(at_work, run)
        return found

    monkeypatch.setattr("findings_service.select_run_and_schema", interrupted)
    assert_problem(client.post(f"{API}/runs/{run}/tasks", json=task()), status, code)
    assert client.read("tasks")["total"] == 0
    assert faults_of(database_of(client.application).settings.db) == []


def test_one_bad_task_stores_nothing_of_the_batch(client: Client, run: str) -> None:
    task_id = client.add(run, externalId="known")
    batch = {"tasks": [task(), task(externalId="known", title="changed"), task(title=...)]}
    assert_problem(client.post(f"{API}/runs/{run}/tasks", json=batch), 422, "validation_failed", "/tasks/2/title")
    assert client.read("tasks")["total"] == 1
    assert client.read(f"tasks/{task_id}")["title"] == task()["title"]
    assert client.read(f"runs/{run}")["submitted"] == NOTHING_SUBMITTED | {"created": 1}


TASK_REJECTIONS = cases(
    title_missing=({"title": ...}, "/title"),
    title_null=({"title": None}, "/title"),
    title_empty=({"title": ""}, "/title"),
    title_blank=({"title": " \t\n\u2003"}, "/title"),
    title_long=({"title": "x" * 501}, "/title"),
    severity_missing=({"severity": ...}, "/severity"),
    severity_unknown=({"severity": "hgh"}, "/severity"),
    severity_capital=({"severity": "High"}, "/severity"),
    status_unknown=({"status": "closed"}, "/status"),
    status_empty=({"status": ""}, "/status"),
    external_id_empty=({"externalId": ""}, "/externalId"),
    external_id_long=({"externalId": "x" * 257}, "/externalId"),
    external_id_number=({"externalId": 7}, "/externalId"),
    description_large=({"description": "x" * (64 * KIB + 1)}, "/description"),
    description_large_in_bytes=({"description": "é" * (32 * KIB) + "x"}, "/description"),
    evidence_object=({"evidence": {"label": "x"}}, "/evidence"),
    evidence_many=({"evidence": [{"label": "x"}] * 101}, "/evidence"),
    evidence_text=({"evidence": ["x"]}, "/evidence/0"),
    evidence_null=({"evidence": [None]}, "/evidence/0"),
    evidence_empty=({"evidence": [{"label": "x"}, {}]}, "/evidence/1"),
    evidence_type_only=({"evidence": [{"type": "code"}]}, "/evidence/0"),
    evidence_nulls=({"evidence": [{"label": None, "url": None, "content": None}]}, "/evidence/0"),
    evidence_type_long=({"evidence": [{"type": "x" * 65, "label": "x"}]}, "/evidence/0/type"),
    evidence_label_long=({"evidence": [{"label": "x" * 501}]}, "/evidence/0/label"),
    evidence_content_large=({"evidence": [{"content": "x" * (256 * KIB + 1)}]}, "/evidence/0/content"),
    evidence_content_bytes=({"evidence": [{"content": "é" * (128 * KIB) + "x"}]}, "/evidence/0/content"),
    url_relative=({"evidence": [{"url": "/home.png"}]}, "/evidence/0/url"),
    url_without_scheme=({"evidence": [{"url": "//example.com/home.png"}]}, "/evidence/0/url"),
    url_empty=({"evidence": [{"url": ""}]}, "/evidence/0/url"),
    url_scheme_only=({"evidence": [{"url": "https:"}]}, "/evidence/0/url"),
    url_long=({"evidence": [{"url": "https://example.com/" + "x" * 2029}]}, "/evidence/0/url"),
    url_javascript=({"evidence": [{"url": "javascript:alert(1)"}]}, "/evidence/0/url"),
    url_javascript_capitals=({"evidence": [{"url": "JavaScript:alert(1)"}]}, "/evidence/0/url"),
    url_javascript_space=({"evidence": [{"url": " javascript:alert(1)"}]}, "/evidence/0/url"),
    url_javascript_control=({"evidence": [{"url": "\x01javascript:alert(1)"}]}, "/evidence/0/url"),
    url_javascript_tab=({"evidence": [{"url": "java\tscript:alert(1)"}]}, "/evidence/0/url"),
    url_javascript_newline=({"evidence": [{"url": "javascript\n:alert(1)"}]}, "/evidence/0/url"),
    url_vbscript=({"evidence": [{"url": "VBScript:x"}]}, "/evidence/0/url"),
    url_data_html=({"evidence": [{"url": "data:text/html,<b>"}]}, "/evidence/0/url"),
    url_data_plain=({"evidence": [{"url": "data:,x"}]}, "/evidence/0/url"),
    url_data_capitals=({"evidence": [{"url": "DATA:text/html,<b>"}]}, "/evidence/0/url"),
    url_data_large=({"evidence": [{"url": IMAGE.ljust(256 * KIB + 1, "A")}]}, "/evidence/0/url"),
    remediation_many=({"remediation": [{"instruction": "x"}] * 101}, "/remediation"),
    instruction_missing=({"remediation": [{"step": 1}]}, "/remediation/0/instruction"),
    step_zero=({"remediation": [{"step": 0, "instruction": "x"}]}, "/remediation/0/step"),
    step_negative=({"remediation": [{"step": -1, "instruction": "x"}]}, "/remediation/0/step"),
    step_large=({"remediation": [{"step": 10_001, "instruction": "x"}]}, "/remediation/0/step"),
    step_fraction=({"remediation": [{"step": 1.5, "instruction": "x"}]}, "/remediation/0/step"),
    step_text=({"remediation": [{"step": "1", "instruction": "x"}]}, "/remediation/0/step"),
    step_true=({"remediation": [{"step": True, "instruction": "x"}]}, "/remediation/0/step"),
    step_huge=({"remediation": [{"step": 10**400, "instruction": "x"}]}, "/remediation/0/step"),
    steps_equal=({"remediation": [{"step": 3, "instruction": "x"}] * 2}, "/remediation/1/step"),
    step_of_another_place=(
        {"remediation": [{"step": 2, "instruction": "x"}, {"instruction": "y"}]},
        "/remediation/1/step",
    ),
    criteria_many=({"successCriteria": [{"description": "x"}] * 101}, "/successCriteria"),
    criterion_missing=({"successCriteria": [{"automatable": True}]}, "/successCriteria/0/description"),
    automatable_text=(
        {"successCriteria": [{"description": "x", "automatable": "yes"}]},
        "/successCriteria/0/automatable",
    ),
    automatable_number=(
        {"successCriteria": [{"description": "x", "automatable": 1}]},
        "/successCriteria/0/automatable",
    ),
    extensions_list=({"extensions": []}, "/extensions"),
    extensions_large=({"extensions": {"a": "x" * (256 * KIB - 7)}}, "/extensions"),
    extensions_bytes=({"extensions": {"a": "é" * (128 * KIB)}}, "/extensions"),
)


@pytest.mark.parametrize(("change", "pointer"), TASK_REJECTIONS)
def test_a_bad_task_is_refused(client: Client, run: str, change: dict[str, Any], pointer: str) -> None:
    bad = task(**change)
    for body, prefix in ((bad, ""), ({"tasks": [task(), bad]}, "/tasks/1")):
        raw = json.dumps(body, ensure_ascii=False).encode()
        response = client.send("POST", f"{API}/runs/{run}/tasks", raw)
        assert_problem(response, 422, "validation_failed", prefix + pointer)
    assert client.read("tasks")["total"] == 0


TASK_BOUNDS = cases(
    title_short={"title": "x"},
    title_long={"title": "😀" * 500},
    external_id_long={"externalId": "😀" * 256},
    description_empty={"description": ""},
    description_large={"description": "x" * (64 * KIB)},
    description_large_in_bytes={"description": "é" * (32 * KIB)},
    evidence_many={"evidence": [{"label": "x"}] * 100},
    evidence_label_only={"evidence": [{"label": "x" * 500}]},
    evidence_type_unknown={"evidence": [{"type": "x" * 64, "label": "x"}]},
    evidence_content_large={"evidence": [{"content": "x" * (256 * KIB)}]},
    evidence_content_bytes={"evidence": [{"content": "é" * (128 * KIB)}]},
    url_long={"evidence": [{"url": "https://example.com/" + "x" * 2028}]},
    url_other_schemes={"evidence": [{"url": url} for url in ("file:///a.log", "ftp://h/x", "s3://b/k", "mailto:a@b")]},
    url_data_large={"evidence": [{"url": IMAGE.ljust(256 * KIB, "A")}]},
    url_data_svg={"evidence": [{"url": "data:image/svg+xml,%3Csvg/%3E"}]},
    remediation_many={"remediation": [{"step": n + 1, "instruction": "x"} for n in range(100)]},
    step_large={"remediation": [{"step": 1, "instruction": "x"}, {"step": 10_000, "instruction": "y"}]},
    criteria_many={"successCriteria": [{"description": "x", "automatable": False}] * 100},
    extensions_large={"extensions": {"a": "x" * (256 * KIB - 8)}},
    extensions_bytes={"extensions": {"a": "é" * (128 * KIB - 4)}},
)


@pytest.mark.parametrize("change", TASK_BOUNDS)
def test_a_task_at_the_bounds_is_taken(client: Client, run: str, change: dict[str, Any]) -> None:
    response = client.send("POST", f"{API}/runs/{run}/tasks", json.dumps(task(**change), ensure_ascii=False).encode())
    assert response.status_code == 201, response.json
    stored = client.read(f"tasks/{response.json['tasks'][0]['id']}")
    stored["evidence"] = [{k: v for k, v in item.items() if v is not None} for item in stored["evidence"]]
    assert {name: stored[name] for name in change} == change


BATCH_REJECTIONS = cases(
    many=({"tasks": [{"title": "x", "severity": "low"}] * 1001}, "/tasks"),
    object=({"tasks": {}}, "/tasks"),
    text=({"tasks": "x"}, "/tasks"),
    null_task=({"tasks": [None]}, "/tasks/0"),
    text_task=({"tasks": ["x"]}, "/tasks/0"),
    neither=({}, "/title"),
)


@pytest.mark.parametrize(("body", "pointer"), BATCH_REJECTIONS)
def test_a_bad_batch_is_refused(client: Client, run: str, body: dict[str, Any], pointer: str) -> None:
    assert_problem(client.post(f"{API}/runs/{run}/tasks", json=body), 422, "validation_failed", pointer)


@pytest.mark.parametrize("schema", [None, WCAG_SCHEMA])
def test_an_empty_batch_is_no_error(client: Client, schema: Any) -> None:
    run = client.start(client.register("web", schema)["name"], targetUrl="https://example.com/")
    response = client.post(f"{API}/runs/{run}/tasks", json={"tasks": []}, headers={"Idempotency-Key": "clean"})
    zeros = dict.fromkeys(("created", "updated", "reopened", "unchanged"), 0)
    assert (response.status_code, response.json) == (200, {**zeros, "tasks": []})
    assert client.read(f"runs/{run}")["submitted"] == {**zeros, "resolved": 0}
    assert client.finish(run, resolveMissing=True)["summary"]["total"] == 0
    assert_problem(client.post(f"{API}/runs/{run}/tasks", json={"tasks": []}), 409, "run_finished")


def test_a_batch_may_have_a_thousand_tasks(client: Client, run: str) -> None:
    done = client.submit(run, *[task(externalId=f"f-{n}" if n % 2 else None) for n in range(1000)])
    ids = [item["id"] for item in done["tasks"]]
    assert (done["created"], ids) == (1000, sorted(set(ids)))


def test_steps_are_kept_in_their_order_and_numbered_by_place(client: Client, run: str) -> None:
    texts = ["first", "second", "third"]
    placed = client.add(run, remediation=[{"instruction": text} for text in texts])
    numbered = client.add(run, remediation=[{"step": 9 - n, "instruction": text} for n, text in enumerate(texts)])
    assert client.read(f"tasks/{placed}")["remediation"] == [
        {"step": n, "instruction": text} for n, text in enumerate(texts, 1)
    ]
    assert [step["instruction"] for step in client.read(f"tasks/{numbered}")["remediation"]] == texts[::-1]


def test_an_external_id_is_one_finding_for_a_type_and_target(app: flask.Flask, client: Client) -> None:
    stranger = client_of(app, client="other")
    for owner in (client, stranger):
        owner.register("web")
        owner.register("cli")
    surfaces = [("web", None), ("web", "https://example.com/"), ("web", "https://example.com"), ("cli", None)]
    runs = [(client, client.start(name, targetUrl=target)) for name, target in surfaces] + [
        (stranger, stranger.start("web"))
    ]
    ids = [owner.add(run, externalId="x") for owner, run in runs]
    assert len(set(ids)) == 5
    again = [(client, client.start(name, targetUrl=target)) for name, target in surfaces]
    assert [owner.add(run, externalId="x") for owner, run in again] == ids[:4]


def test_identity_is_the_external_id_alone(client: Client, run: str) -> None:
    assert client.add(run, externalId="x", title="One") == client.add(run, externalId="x", title="Other")
    assert client.add(run, title="Same") != client.add(run, title="Same")
    spellings = ["a", "A", "a ", "\u00e9", "e\u0301"]
    assert len({client.add(run, externalId=text) for text in spellings}) == len(spellings)


def test_a_newer_report_replaces_the_agents_fields(client: Client, run: str) -> None:
    task_id = client.submit(run, WHOLE_TASK)["tasks"][0]["id"]
    client.add(run, externalId="img-alt-1", title="Reworded", severity="low")
    stored = client.read(f"tasks/{task_id}")
    assert (stored["title"], stored["severity"], stored["status"]) == ("Reworded", "low", "in_progress")
    assert [stored[name] for name in sorted(BULK_FIELDS)] == [None, [], {}, [], []]


REPORTED_AGAIN = [
    *[
        (stored, said, stored, "unchanged")
        for stored in ("open", "in_progress", "dismissed")
        for said in (..., *STATUSES)
    ],
    *[("resolved", said, "open", "reopened") for said in (..., "open", "in_progress")],
    *[("resolved", said, "resolved", "unchanged") for said in ("resolved", "dismissed")],
]


@pytest.mark.parametrize(("stored", "said", "status", "result"), REPORTED_AGAIN)
def test_a_report_keeps_peoples_triage_and_reopens_what_was_fixed(
    client: Client, run: str, stored: str, said: Any, status: str, result: str
) -> None:
    task_id = client.add(run, externalId="x")
    client.triage(task_id, stored)
    done = client.submit(run, task(externalId="x", status=said))
    assert done["tasks"] == [{"id": task_id, "status": status, "externalId": "x", "result": result}]
    assert client.read(f"tasks/{task_id}")["status"] == status


CHANGES = cases(
    title={"title": "Other"},
    severity={"severity": "low"},
    description={"description": "other"},
    description_left_out={"description": None},
    evidence={"evidence": [{"label": "x"}]},
    remediation={"remediation": [{"instruction": "x"}]},
    successCriteria={"successCriteria": []},
    extensions={"extensions": {"a": 1.0, "b": [1, 2]}},
    extensions_order_of_items={"extensions": {"a": 1, "b": [2, 1]}},
)
FULL_REPORT = {
    "externalId": "x",
    "description": "text",
    "evidence": [{"label": "y", "type": "log"}],
    "remediation": [{"step": 1, "instruction": "do"}],
    "successCriteria": [{"description": "z"}],
    "extensions": {"a": 1, "b": [1, 2]},
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_report_names_what_it_changed(client: Client, run: str, change: dict[str, Any]) -> None:
    task_id = client.add(run, **FULL_REPORT)
    time.sleep(0.002)
    assert client.submit(run, task(**FULL_REPORT | change))["updated"] == 1
    entry = client.history(task_id)[-1]
    assert (entry["event"], entry["changed"], entry["from"], entry["to"]) == ("reported", list(change), None, None)
    stored = client.read(f"tasks/{task_id}")
    assert stored["createdAt"] < stored["updatedAt"] == entry["at"]


def test_key_order_and_white_space_change_nothing(client: Client, run: str) -> None:
    task_id = client.add(run, **FULL_REPORT)
    before = client.read(f"tasks/{task_id}")
    body = {"severity": "high", "title": task()["title"], **FULL_REPORT, "extensions": {"b": [1, 2], "a": 1}}
    body["evidence"] = [{"type": "log", "url": None, "label": "y"}]
    body["successCriteria"] = [{"automatable": False, "description": "z"}]
    body["remediation"] = [{"instruction": "do"}]
    response = client.send("POST", f"{API}/runs/{run}/tasks", json.dumps(body, indent=3))
    assert response.json["unchanged"] == 1
    assert client.read(f"tasks/{task_id}") == before
    assert len(client.history(task_id)) == 1


@pytest.mark.parametrize(("before", "after"), [*itertools.permutations([..., None, {}], 2)])
def test_empty_extensions_are_the_same_as_none(client: Client, run: str, before: Any, after: Any) -> None:
    client.add(run, externalId="x", extensions=before, evidence=... if before is ... else [])
    again = task(externalId="x", extensions=after, evidence=... if after is ... else [])
    assert client.submit(run, again)["unchanged"] == 1
    assert client.submit(run, again | {"extensions": {"a": 1}})["updated"] == 1


def test_a_run_that_reports_a_task_again_moves_its_last_seen_once(client: Client, run: str) -> None:
    task_id = client.add(run, externalId="x")
    first = client.read(f"tasks/{task_id}")
    second = client.start(targetUrl="https://example.com/")
    seen = []
    for run_id in (run, second, second, run):
        time.sleep(0.002)
        client.add(run_id, externalId="x")
        seen.append(client.read(f"tasks/{task_id}"))
    assert seen[0] == first
    assert seen[1] == seen[2] == seen[3]
    assert (seen[1]["runId"], seen[1]["lastRunId"], seen[1]["timesSeen"]) == (run, second, 2)
    assert seen[1]["lastSeenAt"] > first["lastSeenAt"]
    assert seen[1]["updatedAt"] == first["updatedAt"]


@pytest.mark.parametrize("at_once", [2, findings_service.REPORTS_AT_ONCE])
def test_of_one_external_id_twice_in_a_batch_the_last_wins(
    client: Client, run: str, monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    monkeypatch.setattr(findings_service, "REPORTS_AT_ONCE", at_once)
    tasks = [task(externalId="x", title="first"), task(), task(), task(externalId="x", title="last")]
    done = client.submit(run, *tasks)
    assert (done["created"], len(done["tasks"]), done["tasks"][0]) == (3, 4, done["tasks"][3])
    assert len({item["id"] for item in done["tasks"]}) == client.read("tasks", runId=run)["total"] == 3
    stored = client.read(f"tasks/{done['tasks'][0]['id']}")
    assert (stored["title"], stored["timesSeen"]) == ("last", 1)
    again = client.submit(run, task(externalId="x", title="new"), task(externalId="x", title="last"))
    assert (again["unchanged"], again["updated"]) == (1, 0)
    assert [item["result"] for item in again["tasks"]] == ["unchanged"] * 2


SEEN = ("lastRunId", "lastSeenAt", "timesSeen")


def start_on(client: Client, branch: str | None, *names: str) -> str:
    """Start a run of a branch, or of the main line, of the one target, and report findings."""
    run = client.start(targetUrl="https://example.com/", branch=branch)
    client.submit(run, *(task(externalId=name) for name in names))
    return run


@pytest.mark.parametrize("status", STATUSES)
def test_a_branch_leaves_what_the_main_line_knows_as_it_is(client: Client, run: str, status: str) -> None:
    task_id = client.add(run, externalId="x")
    client.triage(task_id, status)
    before, entries = client.read(f"tasks/{task_id}"), client.history(task_id)
    branch = client.start(targetUrl="https://example.com/", branch="a")
    time.sleep(0.002)
    for _ in range(2):
        done = client.submit(branch, task(externalId="x", title="Reworded", severity="low", status="dismissed"))
        assert (done["unchanged"], done["tasks"][0]["result"], done["tasks"][0]["status"]) == (1, "unchanged", status)
    assert (client.read(f"tasks/{task_id}"), client.history(task_id)) == (before, entries)
    whole = client.read(f"runs/{branch}")
    assert (whole["submitted"]["unchanged"], whole["summary"]["total"]) == (2, 1)
    assert [each["id"] for each in client.read("tasks", runId=branch)["tasks"]] == [task_id]


@pytest.mark.parametrize(
    ("status", "report", "result", "after"),
    cases(
        the_same=("open", {}, "updated", "open"),
        reworded=("in_progress", {"title": "Reworded"}, "updated", "in_progress"),
        resolved=("resolved", {}, "reopened", "open"),
        resolved_still=("resolved", {"status": "resolved"}, "updated", "resolved"),
        dismissed=("dismissed", {"severity": "low"}, "updated", "dismissed"),
    ),
)
def test_the_main_line_takes_over_what_a_branch_found(
    client: Client, run: str, status: str, report: dict[str, Any], result: str, after: str
) -> None:
    start_on(client, "a", "x")
    task_id = client.read("tasks")["tasks"][0]["id"]
    before = client.triage(task_id, status)
    time.sleep(0.002)
    assert client.submit(run, task(externalId="x", **report))["tasks"][0]["result"] == result
    found, entry = client.read(f"tasks/{task_id}"), client.history(task_id)[-1]
    assert (found["branch"], found["status"], found["lastRunId"], found["timesSeen"]) == (None, after, run, 2)
    assert (found["runId"], found["updatedAt"] > before["updatedAt"]) == (before["runId"], True)
    assert (entry["event"], entry["runId"]) == ("reported", run)
    assert entry["changed"] == [*({*report} - {"status"}), "branch"]
    assert client.submit(run, task(externalId="x", **report))["unchanged"] == 1


def test_branches_of_other_targets_types_and_clients_are_others(app: flask.Flask, client: Client, run: str) -> None:
    stranger = client_of(app, client="other")
    client.register("cli")
    stranger.register("web")
    places = [(client, "web", "https://example.com/"), (client, "cli", "https://example.com/")]
    places += [(client, "web", "https://example.com/b"), (stranger, "web", "https://example.com/")]
    for owner, name, target in places:
        owner.submit(owner.start(name, targetUrl=target, branch="a"), task(externalId="x"))
    client.add(run, externalId="x")
    listed = [*client.read("tasks")["tasks"], *stranger.read("tasks")["tasks"]]
    assert [each["branch"] for each in listed] == ["a", "a", None, "a"]


@pytest.mark.parametrize(("before", "after"), list(itertools.product(STATUSES, STATUSES)))
def test_every_move_between_statuses_is_allowed(client: Client, run: str, before: str, after: str) -> None:
    task_id = client.add(run, status=before)
    updated = client.triage(task_id, after)
    assert updated["status"] == after
    assert updated == client.read(f"tasks/{task_id}")
    assert len(client.history(task_id)) == (1 if before == after else 2)


def entries_of(client: Client, task_id: str) -> list[dict[str, Any]]:
    """Return what happened to a task since it was created, without what is null or the same in all of it."""
    left_out = ("at", "by", "runId", "changed")
    return [
        {name: value for name, value in entry.items() if value is not None and name not in left_out}
        for entry in client.history(task_id)[1:]
    ]


def test_triage_is_kept_with_who_did_it_and_why(app: flask.Flask, client: Client, run: str) -> None:
    task_id = client.add(run, externalId="x")
    person = client_of(app, name="Ada")
    time.sleep(0.002)
    updated = person.triage(task_id, "dismissed", comment="é" * 4000, reason="false_positive")
    assert (updated["status"], updated["reason"]) == ("dismissed", "false_positive")
    entry = client.history(task_id)[-1]
    assert TIME.fullmatch(entry.pop("at"))
    assert entry == {
        "event": "status",
        "by": "Ada",
        "runId": None,
        "from": "open",
        "to": "dismissed",
        "reason": "false_positive",
        "assignee": None,
        "comment": "é" * 4000,
        "changed": [],
    }
    assert updated["createdAt"] == updated["lastSeenAt"] < updated["updatedAt"]


DECISIONS = cases(
    move=({"status": "open"}, ("open", None), [{"event": "status", "from": "dismissed", "to": "open"}]),
    move_to_a_reason=(
        {"status": "resolved", "reason": "fixed", "comment": "c"},
        ("resolved", "fixed"),
        [{"event": "status", "from": "dismissed", "to": "resolved", "reason": "fixed", "comment": "c"}],
    ),
    move_without_a_reason=(
        {"status": "resolved"},
        ("resolved", None),
        [{"event": "status", "from": "dismissed", "to": "resolved"}],
    ),
    reason_alone=(
        {"reason": "wont_fix", "comment": "c"},
        ("dismissed", "wont_fix"),
        [{"event": "status", "from": "dismissed", "to": "dismissed", "reason": "wont_fix", "comment": "c"}],
    ),
    same_status_with_another_reason=(
        {"status": "dismissed", "reason": "wont_fix"},
        ("dismissed", "wont_fix"),
        [{"event": "status", "from": "dismissed", "to": "dismissed", "reason": "wont_fix"}],
    ),
    same_status=({"status": "dismissed"}, ("dismissed", "duplicate"), []),
    same_reason=({"reason": "duplicate"}, ("dismissed", "duplicate"), []),
    same_with_a_comment=(
        {"status": "dismissed", "reason": "duplicate", "comment": "c"},
        ("dismissed", "duplicate"),
        [{"event": "comment", "comment": "c"}],
    ),
    comment_alone=({"comment": "c"}, ("dismissed", "duplicate"), [{"event": "comment", "comment": "c"}]),
    all_of_it=(
        {"status": "resolved", "reason": "fixed", "assignee": "Ada", "comment": "c"},
        ("resolved", "fixed"),
        [
            {"event": "status", "from": "dismissed", "to": "resolved", "reason": "fixed", "comment": "c"},
            {"event": "assigned", "assignee": "Ada"},
        ],
    ),
    assigned_with_a_comment=(
        {"assignee": "Ada", "comment": "c"},
        ("dismissed", "duplicate"),
        [{"event": "assigned", "assignee": "Ada"}, {"event": "comment", "comment": "c"}],
    ),
)


@pytest.mark.parametrize(("decision", "state", "entries"), DECISIONS)
def test_a_decision_has_an_entry_for_each_thing_that_it_changed(
    client: Client, run: str, decision: Any, state: Any, entries: Any
) -> None:
    task_id = client.add(run)
    before = client.triage(task_id, "dismissed", reason="duplicate")
    time.sleep(0.002)
    after = client.triage(task_id, **decision)
    assert ((after["status"], after["reason"]), after["assignee"]) == (state, decision.get("assignee"))
    assert entries_of(client, task_id)[1:] == entries
    assert (after["updatedAt"] > before["updatedAt"]) == any(each["event"] != "comment" for each in entries)


def test_a_task_is_assigned_to_one_or_nobody(client: Client, run: str) -> None:
    task_id = client.add(run)
    assert client.triage(task_id, assignee="")["assignee"] is None
    for name in ("Ada", "Ada", "é" * 200, " a, b "):
        assert client.triage(task_id, assignee=name)["assignee"] == name
        assert client.read("tasks")["tasks"][0]["assignee"] == name
    assert client.triage(task_id, "resolved", assignee=None)["assignee"] == " a, b "
    assert client.triage(task_id, assignee="")["assignee"] is None
    assert [entry["assignee"] for entry in client.history(task_id) if entry["event"] == "assigned"][-1] is None
    assert [entry["event"] for entry in client.history(task_id)][1:] == [*["assigned"] * 3, "status", "assigned"]


def test_what_is_reported_again_keeps_who_sees_to_it_and_its_reason_until_it_reopens(client: Client, run: str) -> None:
    ids = [client.add(run, externalId=name) for name in "ab"]
    client.triage(ids[0], "dismissed", reason="accepted_risk", assignee="Ada")
    client.triage(ids[1], "resolved", reason="fixed", assignee="Bob")
    client.submit(client.start(targetUrl="https://example.com/"), *(task(externalId=n, title="New") for n in "ab"))
    fields = ("status", "reason", "assignee")
    states = [tuple(client.read(f"tasks/{task_id}")[name] for name in fields) for task_id in ids]
    assert states == [("dismissed", "accepted_risk", "Ada"), ("open", None, "Bob")]
    client.finish(client.start(targetUrl="https://example.com/"), resolveMissing=True)
    assert client.read(f"tasks/{ids[1]}")["reason"] is None
    assert entries_of(client, ids[1])[-1] == {"event": "status", "from": "open", "to": "resolved"}


TASK_UPDATE_REJECTIONS = cases(
    unknown=({"status": "closed"}, "/status"),
    number=({"status": 1}, "/status"),
    comment_long=({"status": "open", "comment": "x" * 4001}, "/comment"),
    comment_number=({"status": "open", "comment": 1}, "/comment"),
    severity=({"status": "open", "severity": "low"}, "/severity"),
    title=({"title": "x"}, None),
    extensions=({"status": "open", "extensions": {}}, "/extensions"),
    reason_unknown=({"status": "resolved", "reason": "bored"}, "/reason"),
    reason_of_an_open_one=({"status": "open", "reason": "fixed"}, "/reason"),
    reason_of_one_in_progress=({"status": "in_progress", "reason": "fixed", "comment": "x"}, "/reason"),
    reason_and_a_long_comment=({"status": "open", "reason": "fixed", "comment": "x" * 4001}, "/reason"),
    reason_where_the_task_is_open=({"reason": "fixed"}, "/reason"),
    nothing_but_an_unknown_field=({"assigne": "Ada"}, ""),
    assignee_long=({"assignee": "x" * 201}, "/assignee"),
    assignee_blank=({"assignee": " \t"}, "/assignee"),
    assignee_number=({"assignee": 1}, "/assignee"),
)


@pytest.mark.parametrize(("body", "pointer"), TASK_UPDATE_REJECTIONS)
def test_a_bad_update_of_a_task_is_refused(client: Client, run: str, body: dict[str, Any], pointer: str | None) -> None:
    task_id = client.add(run)
    before = client.read(f"tasks/{task_id}")
    assert_problem(client.patch(f"{API}/tasks/{task_id}", json=body), 422, "validation_failed", pointer)
    assert client.read(f"tasks/{task_id}") == before


def triage_all(client: Client, *ids: str, **decision: Any) -> Any:
    """Make a decision about several tasks, and return the answer."""
    return client.patch(f"{API}/tasks", json={"ids": ids, **decision})


def test_several_tasks_are_triaged_in_the_order_sent(client: Client, run: str) -> None:
    ids = [client.add(run, status=status) for status in ("open", "dismissed", "resolved")][::-1]
    before = client.read(f"tasks/{ids[1]}")
    done = triage_all(client, *ids, status="dismissed").json
    tasks = [{"id": task_id, "status": "dismissed"} for task_id in ids]
    assert done == {"updated": 2, "unchanged": 1, "tasks": tasks}
    assert client.read(f"tasks/{ids[1]}") == before
    assert [len(client.history(task_id)) for task_id in ids] == [2, 1, 2]
    done = triage_all(client, *ids, reason="wont_fix", assignee="Ada", comment="Old.").json
    assert done == {"updated": 3, "unchanged": 0, "tasks": tasks}
    assert {client.read(f"tasks/{task_id}")["reason"] for task_id in ids} == {"wont_fix"}
    assert triage_all(client, *ids, comment="Very old.").json == done
    assert entries_of(client, ids[0])[-1] == {"event": "comment", "comment": "Very old."}


SEVERAL_REJECTIONS = cases(
    none=({"ids": []}, ["/ids"]),
    too_many=({"ids": ["x"] * 1001}, ["/ids"]),
    no_list=({"ids": "OPEN"}, ["/ids"]),
    number=({"ids": ["OPEN", 1]}, ["/ids/1"]),
    unknown=({"ids": ["x", "OPEN", UNKNOWN_ID, "y" * 300]}, ["/ids/0", "/ids/2", "/ids/3"]),
    doubled=({"ids": ["OPEN", "DONE", "OPEN", "OPEN"]}, ["/ids/2", "/ids/3"]),
    anothers=({"ids": ["OPEN", "THEIRS"]}, ["/ids/1"]),
    no_decision=({"ids": ["OPEN", "x"], "status": None}, ["", "/ids/1"]),
    reason_of_an_open_status=({"ids": ["DONE"], "reason": "fixed"}, ["/reason"]),
    reason_that_fits_some=({"ids": ["DONE", "OPEN", "x"], "status": None, "reason": "fixed"}, ["/ids/1", "/ids/2"]),
)


@pytest.mark.parametrize(("body", "pointers"), SEVERAL_REJECTIONS)
def test_a_decision_about_several_tasks_is_stored_for_all_or_none(
    app: flask.Flask, client: Client, run: str, body: dict[str, Any], pointers: list[str]
) -> None:
    stranger = client_of(app, client="other")
    stranger.register("web")
    ids = {
        "OPEN": client.add(run),
        "DONE": client.add(run, status="resolved"),
        "THEIRS": stranger.add(stranger.start()),
    }
    named = [ids.get(each, each) for each in body["ids"]] if isinstance(body["ids"], list) else ids["OPEN"]
    before = [client.read(f"tasks/{ids[name]}") for name in ("OPEN", "DONE")]
    response = client.patch(f"{API}/tasks", json={"status": "in_progress", **body, "ids": named})
    problem = assert_problem(response, 422, "validation_failed", pointers[0])
    assert [each["pointer"] for each in problem["errors"]] == pointers
    assert [client.read(f"tasks/{ids[name]}") for name in ("OPEN", "DONE")] == before


def test_a_thousand_tasks_are_triaged_at_once(client: Client, run: str) -> None:
    ids = [each["id"] for each in client.submit(run, *[task()] * 1000)["tasks"]]
    began = time.perf_counter()
    done = triage_all(client, *ids, status="dismissed", reason="duplicate", assignee="Ada", comment="x").json
    assert time.perf_counter() - began < 1
    assert (done["updated"], done["unchanged"], [each["id"] for each in done["tasks"]]) == (1000, 0, ids)
    assert client.read("tasks", status="dismissed")["total"] == 1000
    assert client.read(f"runs/{run}")["summary"]["byStatus"]["dismissed"] == 1000


def test_a_task_has_an_etag_that_changes_with_it(client: Client, run: str) -> None:
    task_id = client.add(run, externalId="x")
    path = f"{API}/tasks/{task_id}"
    first = client.get(path).headers["ETag"]
    assert re.fullmatch('"[0-9a-f]{32}"', first)
    assert client.get(path).headers["ETag"] == client.head(path).headers["ETag"] == first
    assert client.patch(path, json={"comment": "It stays what it is."}).headers["ETag"] == first
    changed = client.patch(path, json={"assignee": "Ada"})
    assert changed.headers["ETag"] == client.get(path).headers["ETag"] != first
    client.add(client.start(targetUrl="https://example.com/"), externalId="x")
    assert client.get(path).headers["ETag"] not in (first, changed.headers["ETag"])


EXPECTATIONS = cases(
    same=("{}", 200),
    any=(" * ", 200),
    one_of_a_list=('"a", {} ,W/"b"', 200),
    empty_parts=(', ,{},"",', 200),
    several_headers=(("{}", '"a"'), 200),
    another=('"a"', 412),
    others=('"a", "b,*"', 412),
    weak=("W/{}", 412),
    nothing=("", 400),
    commas=(", ,", 400),
    bare=("a", 412),
    open=('"a', 400),
    any_in_a_list=('*, "a"', 412),
    no_comma=('"a" "b"', 400),
)


@pytest.mark.parametrize(("header", "status"), EXPECTATIONS)
def test_a_change_may_depend_on_what_the_task_was(client: Client, run: str, header: Any, status: int) -> None:
    path = f"{API}/tasks/{client.add(run)}"
    before = client.get(path)
    values = [header] if isinstance(header, str) else header
    given = Headers([("If-Match", value.replace("{}", before.headers["ETag"])) for value in values])
    response = client.patch(path, json={"status": "resolved"}, headers=given)
    assert response.status_code == status
    if status != 200:
        code, place = ("changed_meanwhile", None) if status == 412 else ("invalid_parameter", "If-Match")
        assert_problem(response, status, code, place)
    assert (client.get(path).json == before.json) == (status != 200)


def test_of_two_that_have_seen_the_same_only_one_changes_it(client: Client, run: str) -> None:
    path = f"{API}/tasks/{client.add(run)}"
    seen = {"If-Match": client.get(path).headers["ETag"]}
    assert client.patch(path, json={"status": "dismissed"}, headers=seen).status_code == 200
    later = client.patch(path, json={"status": "resolved"}, headers=seen)
    assert_problem(later, 412, "changed_meanwhile")
    assert_problem(
        client.patch(path, json={"reason": "fixed", "status": "open"}, headers=seen), 422, "validation_failed"
    )
    assert_problem(client.patch(f"{API}/tasks/x", json={"status": "open"}, headers=seen), 404, "not_found")
    assert client.get(path).json["status"] == "dismissed"


@pytest.mark.parametrize("path", ["tasks", "tasks/{}", "runs/{run}", "overview"])
@pytest.mark.parametrize("value", ["", "a", '"a"'])
def test_a_read_depends_on_nothing_that_its_task_was(client: Client, run: str, path: str, value: str) -> None:
    path = f"{API}/{path.format(client.add(run), run=run)}"
    assert client.get(path, headers={"If-Match": value}).json == client.get(path).json


def test_what_has_no_etag_cannot_depend_on_one(client: Client, run: str) -> None:
    task_id, given = client.add(run), {"If-Match": "*"}
    answers = [client.patch(f"{API}/{path}", json={}, headers=given) for path in ("tasks", f"runs/{run}")]
    paths = (f"tasks/{task_id}", f"runs/{run}", "project-types/web")
    answers += [client.delete(f"{API}/{path}", headers=given) for path in paths]
    for answer in answers:
        assert_problem(answer, 400, "invalid_parameter", "If-Match")
    assert totals(client) == [1, 1, 1]


def test_history_tells_all_that_happened_oldest_first(app: flask.Flask, client: Client, run: str) -> None:
    agent = client_of(app, "agent", name="agent")
    task_id = agent.add(run, externalId="x")
    client.triage(task_id, "resolved")
    second = agent.start(targetUrl="https://example.com/")
    agent.add(second, externalId="x", title="Reworded")
    agent.add(second, externalId="x", title="Reworded")
    fields = ("event", "by", "runId", "from", "to", "changed")
    assert [tuple(entry[name] for name in fields) for entry in client.history(task_id)] == [
        ("created", "agent", run, None, "open", []),
        ("status", "tests", None, "open", "resolved", []),
        ("reported", "agent", second, "resolved", "open", ["title"]),
    ]
    assert set(client.history(task_id)[0]) == {*fields, "at", "reason", "assignee", "comment"}


def test_a_history_is_read_in_parts(client: Client, run: str, monkeypatch: pytest.MonkeyPatch) -> None:
    task_id = client.add(run)
    for number in range(7):
        client.triage(task_id, "open", comment=f"{number}" * 1000)
    whole = client.read(f"tasks/{task_id}/history")
    assert (len(whole["history"]), whole["next"]) == (8, None)
    pages = list(client.walk(f"tasks/{task_id}/history", limit=3))
    assert [len(page["history"]) for page in pages] == [3, 3, 2]
    assert [entry for page in pages for entry in page["history"]] == whole["history"]
    assert client.read(f"tasks/{task_id}/history?limit=1000&after=999999") == {"history": [], "next": None}
    monkeypatch.setattr("findings_service.PAGE_SIZE", 2600)
    pages = list(client.walk(f"tasks/{task_id}/history"))
    assert [len(page["history"]) for page in pages] == [3, 2, 2, 1]
    assert [entry for page in pages for entry in page["history"]] == whole["history"]


def assert_summary_is_a_recount(client: Client, run: str, *, created: bool = True) -> None:
    """Check a run's summary and missing tasks against the tasks themselves."""
    tasks = [item for page in client.walk("tasks", limit=200, runId=run) for item in page["tasks"]]
    whole = client.read(f"runs/{run}")
    severities, statuses = (Counter(item[name] for item in tasks) for name in ("severity", "status"))
    assert whole["summary"] == {
        "total": len(tasks),
        "bySeverity": {name: severities[name] for name in SEVERITIES},
        "byStatus": {name: statuses[name] for name in STATUSES},
    }
    missing = [item for page in client.walk("tasks", limit=200, missingFrom=run) for item in page["tasks"]]
    assert client.read("tasks", missingFrom=run, limit=1)["total"] == len(missing)
    for name in STATUSES:
        assert client.read("tasks", runId=run, status=name, limit=1)["total"] == statuses[name]
    if created:
        assert whole["submitted"]["created"] == sum(item["runId"] == run for item in tasks)


DAY_EVENTS = ("created", "reopened", "resolved", "dismissed")


@dataclass
class Finding:
    """What a finding should be, and who has reported it."""

    name: str | None
    branch: str | None
    title: str
    status: str = "open"
    runs: dict[str, bool] = field(default_factory=dict)  # and whether their reports count
    branches: set[str] = field(default_factory=set)
    seen: int = 0
    first: str = ""
    last: str = ""
    events: list[str] = field(default_factory=lambda: ["created"])

    def move(self, status: str) -> None:
        """Give it a status, and note what that counts as."""
        if status != self.status and status in ("resolved", "dismissed"):
            self.events.append(status)
        elif status != self.status and self.status in ("resolved", "dismissed"):
            self.events.append("reopened")
        self.status = status


@dataclass
class Ledger:
    """What the findings of a target should be after each report: the rules of branches in plain words."""

    findings: dict[str, Finding] = field(default_factory=dict)
    branches: dict[str, str | None] = field(default_factory=dict)  # of runs

    def named(self, name: str | None) -> Finding | None:
        """Return the finding with an external id."""
        return next((each for each in self.findings.values() if name and each.name == name), None)

    def report(self, run: str, name: str | None, title: str) -> tuple[Finding, str]:
        """Have a run report a finding, and return it and what that did."""
        finding, branch = self.named(name), self.branches[run]
        before = finding and (finding.title, finding.branch)
        result = "created" if finding is None else "unchanged"
        finding = finding or Finding(name, branch, title, first=run)
        counts = branch is None or finding.branch is not None
        if branch is None or finding.branch is not None:
            finding.seen, finding.last = (
                (finding.seen, finding.last) if run in finding.runs else (finding.seen + 1, run)
            )
            finding.branch, finding.title = finding.branch and branch and finding.branch, title
            if before and before != (finding.title, finding.branch):
                result = "updated"
            if finding.status == "resolved":
                finding.move("open")
                result = "reopened"
        finding.runs.setdefault(run, counts)
        finding.branches |= {branch} if branch else set()
        return finding, result

    def missing(self, run: str) -> dict[str, Finding]:
        """Return what the line of a run knows, and it did not report."""
        branch = self.branches[run]
        return {
            task_id: each
            for task_id, each in self.findings.items()
            if each.name and each.status in ("open", "in_progress") and run not in each.runs
            if each.branch is None or branch in each.branches
        }

    def forget(self, run: str) -> None:
        """Remove a run, and what only it has reported."""
        for each in self.findings.values():
            each.runs.pop(run, None)
        self.findings = {task_id: each for task_id, each in self.findings.items() if each.runs}
        del self.branches[run]

    def delete(self, run: str) -> None:
        """Remove a run as if it had never been, as far as those tell that are left."""
        line = self.branches[run]
        touched = {key: each for key, each in self.findings.items() if run in each.runs}
        counted = {key: each.runs[run] for key, each in touched.items()}
        self.forget(run)
        for key, each in touched.items():
            if key in self.findings:
                each.seen = max(1, each.seen - counted[key])
                self.without(each, line)

    def without(self, finding: Finding, line: str | None) -> None:
        """Work out again what a finding is once a run of a line, which reported it, is deleted."""
        reporters = [run for run in self.branches if run in finding.runs]
        counting = [run for run in reporters if finding.runs[run]] or reporters
        finding.first = finding.first if finding.first in self.branches else counting[0]
        finding.last = finding.last if finding.last in self.branches else counting[-1]
        lines = {self.branches[run] for run in reporters}
        finding.branches -= {line} - lines
        if finding.branch == line and None not in lines:
            finding.branch = self.branches[finding.first]


def assert_is_as_in(ledger: Ledger, client: Client, run: str, dice: random.Random) -> None:
    """Check tasks, the totals of lists and the audit against what should be."""
    stored = client.read("tasks", limit=200)["tasks"]
    fields = ("externalId", "branch", "title", "status", "timesSeen", "runId", "lastRunId")
    assert {each["id"]: tuple(each[name] for name in fields) for each in stored} == {
        task_id: (each.name, each.branch, each.title, each.status, each.seen, each.first, each.last)
        for task_id, each in ledger.findings.items()
    }
    assert_overview_is_as_in(ledger, client)
    assert_brief_is_as_in(ledger, client, dice.choice((None, "a", "b")), dice.choice((2, 50)))
    status, branch = dice.choice(STATUSES), dice.choice(("a", "b"))
    for query, right in (
        ({"missingFrom": run}, set(ledger.missing(run))),
        ({"mainLine": "true"}, {key for key, each in ledger.findings.items() if each.branch is None}),
        ({"mainLine": "false"}, {key for key, each in ledger.findings.items() if each.branch}),
        ({"branch": branch}, {key for key, each in ledger.findings.items() if branch in each.branches}),
        ({"runId": run}, {key for key, each in ledger.findings.items() if run in each.runs}),
    ):
        for more in ({}, {"status": status}):
            page = client.read("tasks", limit=200, **query, **more)
            wanted = {key for key in right if not more or ledger.findings[key].status == status}
            assert ({each["id"] for each in page["tasks"]}, page["total"]) == (wanted, len(wanted)), query
    assert faults_of(database_of(client.application).settings.db) == []


def assert_overview_is_as_in(ledger: Ledger, client: Client) -> None:
    """Check what the overview tells of the main line, and of a branch."""
    for query, right in (
        ({}, [each for each in ledger.findings.values() if each.branch is None]),
        ({"branch": "a"}, [each for each in ledger.findings.values() if "a" in each.branches]),
    ):
        told = client.read("overview", days=1, **query)
        events = Counter(event for each in right for event in each.events)
        assert {name: told["days"][0][name] for name in DAY_EVENTS} == {name: events[name] for name in DAY_EVENTS}
        assert told["bySeverity"]["high"] == {
            status: sum(each.status == status for each in right) for status in STATUSES
        }


def assert_brief_is_as_in(ledger: Ledger, client: Client, branch: str | None, limit: int) -> None:
    """Check what a brief of the main line, or of a branch too, tells, and in which order."""
    query = {"projectType": "web", "limit": limit} | ({"branch": branch} if branch else {})
    told = client.read("brief", **query)
    right = {key: each for key, each in ledger.findings.items() if each.branch is None or branch in each.branches}
    statuses = Counter(each.status for each in right.values())
    assert told["summary"]["byStatus"] == {status: statuses[status] for status in STATUSES}
    listed = [key for key, each in right.items() if each.name and each.status != "resolved"]
    seen = {each["id"]: (each["lastSeenAt"], each["id"]) for each in client.read("tasks", limit=200)["tasks"]}
    in_order = [ledger.findings[key].name for key in sorted(listed, key=seen.__getitem__, reverse=True)]
    names = [each["externalId"] for each in told["tasks"]]
    assert names == in_order[:limit]
    assert (len(names), told["omitted"]) == (min(limit, len(listed)), max(0, len(listed) - limit))


@pytest.mark.parametrize("seed", range(6))
def test_branches_keep_their_rules_whatever_comes(app: flask.Flask, client: Client, seed: int) -> None:
    dice, ledger, running = random.Random(seed), Ledger(), list[str]()
    client.register("web")
    path = database_of(app).settings.db
    for _ in range(60):
        action = dice.choice(
            ("start", "submit", "submit", "submit", "triage", "finish", "finish", "prune", "delete", "forget")
        )
        if action == "start" or not running:
            branch = dice.choice((None, None, "a", "b"))
            running.append(client.start(branch=branch))
            ledger.branches[running[-1]] = branch
        elif action == "submit":
            run = dice.choice(running)
            names = [dice.choice((None, *"uvwxyz")) for _ in range(dice.randrange(4))]
            reports = [(name, dice.choice(("One", "Two"))) for name in dict.fromkeys(names)]
            done = client.submit(run, *(task(externalId=name, title=title) for name, title in reports))
            for item, report in zip(done["tasks"], reports, strict=True):
                finding, result = ledger.report(run, *report)
                ledger.findings[item["id"]] = finding
                assert (item["result"], item["status"]) == (result, finding.status)
        elif action == "triage" and ledger.findings:
            task_id, status = dice.choice(list(ledger.findings)), dice.choice(STATUSES)
            ledger.findings[task_id].move(status)
            assert client.triage(task_id, status)["status"] == status
        elif action == "finish":
            run = running.pop(dice.randrange(len(running)))
            missing = ledger.missing(run).values() if (resolve := dice.random() < 0.7) else ()
            gone = [each for each in missing if each.branch == ledger.branches[run]]
            assert client.finish(run, resolveMissing=resolve)["submitted"]["resolved"] == len(gone)
            for each in gone:
                each.move("resolved")
        elif action == "delete":
            ledger.delete(run := dice.choice(list(ledger.branches)))
            running = [each for each in running if each != run]
            client.remove(f"runs/{run}")
        elif action == "forget" and ledger.findings:
            del ledger.findings[task_id := dice.choice(list(ledger.findings))]
            client.remove(f"tasks/{task_id}")
        elif old := [each for each in ledger.branches if each not in running]:
            finish_ago(app, 91, run := dice.choice(old))
            ledger.forget(run)
            prune(path)
        if not ledger.branches:
            running = [client.start()]
            ledger.branches[running[0]] = None
        assert_is_as_in(ledger, client, dice.choice(list(ledger.branches)), dice)


# ---------------------------------------------------------------------------
# The gate
# ---------------------------------------------------------------------------


def gate(client: Client, run: str, **query: str) -> Any:
    """Return the verdict on a run."""
    return client.read(f"runs/{run}/gate", **query)


def finished(client: Client, branch: str | None, **severities: str) -> str:
    """Report findings, each by its name with a severity, in a run of its own that is completed."""
    run = client.start(targetUrl="https://example.com/", branch=branch)
    client.submit(run, *(task(externalId=name, severity=severity) for name, severity in severities.items()))
    client.finish(run)
    return run


def numbers(verdict: dict[str, Any]) -> tuple[int, ...]:
    """Return what a verdict counts: reported, offenders, the four that are ignored, missing."""
    assert verdict["reported"] == verdict["offendersTotal"] + sum(verdict["ignored"].values())
    return (verdict["reported"], verdict["offendersTotal"], *verdict["ignored"].values(), verdict["missing"])


def test_a_pull_request_fails_for_what_is_new_and_severe_alone(client: Client, run: str) -> None:
    night = finished(client, None, known="critical", fixed="low")
    for _ in range(2):  # the same again gets the same verdict
        pull = finished(client, "a", known="critical", bad="high", worse="critical", minor="medium")
        verdict = gate(client, pull)
        assert [each["externalId"] for each in verdict.pop("offenders")] == ["worse", "bad"]
        assert verdict == {
            "pass": False,
            "reason": "2 new findings of severity high or higher.",
            "runId": pull,
            "baseline": night,
            "failOn": "high",
            "only": "new",
            "reported": 4,
            "offendersTotal": 2,
            "ignored": {"dismissed": 0, "resolved": 0, "belowBar": 1, "known": 1},
            "missing": 1,
        }


@pytest.mark.parametrize(
    ("query", "expected"),
    cases(
        high=({}, (5, 1, 1, 1, 1, 1, 1)),
        critical=({"failOn": "critical"}, (5, 0, 1, 1, 2, 1, 1)),
        info=({"failOn": "info"}, (5, 2, 1, 1, 0, 1, 1)),
        everything=({"only": "all"}, (5, 2, 1, 1, 1, 0, 1)),
        nothing=({"failOn": "none"}, (5, 0, 1, 1, 3, 0, 1)),
    ),
)
@pytest.mark.parametrize("branch", [None, "a"])
def test_each_finding_is_counted_once_at_the_first_that_fits(
    client: Client, run: str, branch: str | None, query: dict[str, str], expected: tuple[int, ...]
) -> None:
    finished(client, branch, dismissed="critical", resolved="low")
    baseline = finished(client, branch, known="critical", fixed="low")
    last = finished(client, branch, known="critical", new="high", small="low", dismissed="critical", resolved="low")
    for name in ("dismissed", "resolved"):
        client.triage(client.read("tasks", externalId=name)["tasks"][0]["id"], name)
    verdict = gate(client, last, baseline=baseline, **query)
    if branch:  # where nothing counts as resolved, but by its severity
        reported, offenders, dismissed, resolved, below, *rest = expected
        info = query.get("failOn") == "info"
        expected = (reported, offenders + info, dismissed, 0, below + resolved - info, *rest)
    assert numbers(verdict) == expected
    assert verdict["pass"] is (verdict["offendersTotal"] == 0)
    assert len(verdict["offenders"]) == verdict["offendersTotal"]


def test_without_a_baseline_everything_is_new(client: Client, run: str) -> None:
    other = client.start()
    client.add(other, externalId="x")
    client.finish(other)
    client.finish(client.start(targetUrl="https://example.com/"), "failed")
    verdict = gate(client, finished(client, "a", x="high"))
    assert (verdict["baseline"], numbers(verdict)) == (None, (1, 1, 0, 0, 0, 0, 0))
    assert verdict["reason"] == (
        "1 new finding of severity high or higher; all count as new, as there is no baseline: "
        "the main line's first completed run makes one."
    )


def test_the_baseline_is_the_main_lines_last_completed_run_before(client: Client, run: str) -> None:
    first, _, second = finished(client, None), finished(client, "b"), finished(client, None)
    client.finish(client.start(targetUrl="https://example.com/"), "failed")
    client.start(targetUrl="https://example.com/")
    pull = finished(client, "a")
    third = finished(client, None)
    assert [gate(client, each)["baseline"] for each in (first, second, pull, third)] == [None, first, second, second]
    assert gate(client, pull, baseline=third)["baseline"] == third


def test_a_baseline_that_cannot_be_compared_with_is_refused(app: flask.Flask, client: Client, run: str) -> None:
    pull, failed = finished(client, "a"), client.start(targetUrl="https://example.com/")
    client.finish(failed, "failed")
    client.register("cli")
    others = [client.start(), client.start("cli", targetUrl="https://example.com/")]
    for each in others:
        client.finish(each)
    for unfit in (pull, run, failed, *others):
        refused = client.get(f"{API}/runs/{pull}/gate?baseline={unfit}")
        assert_problem(refused, 400, "invalid_parameter", "baseline")
    stranger = client_of(app, client="other")
    stranger.register("web")
    theirs = finished(stranger, None)
    for unknown in (theirs, UNKNOWN_ID):
        assert_problem(client.get(f"{API}/runs/{pull}/gate?baseline={unknown}"), 404, "not_found")
    assert_problem(stranger.get(f"{API}/runs/{pull}/gate"), 404, "not_found")


def test_a_run_that_is_not_completed_never_passes(client: Client, run: str) -> None:
    for status in ("running", "failed"):
        for query in ({}, {"failOn": "none"}):
            verdict = gate(client, run, **query)
            assert (verdict["pass"], status in verdict["reason"]) == (False, True)
        client.finish(run, "failed")


def test_the_worst_fifty_offenders_are_listed_newest_first_within(client: Client, run: str) -> None:
    finished(client, None, **dict.fromkeys((f"old-{number}" for number in range(30)), "high"))
    names = [*(f"old-{number}" for number in range(30)), *(f"new-{number}" for number in range(40))]
    severities = {name: "critical" if name[-1] in "13579" else "high" for name in names}
    verdict = gate(client, finished(client, "a", **severities), only="all")
    listed = [each["externalId"] for each in verdict["offenders"]]
    # What the main line has is as the main line has it.
    worst = [name for name in reversed(names) if severities[name] == "critical" and name.startswith("new")]
    rest = [name for name in reversed(names) if name not in worst]
    assert (listed, verdict["offendersTotal"]) == ([*worst, *rest][:50], 70)
    assert len(gate(client, verdict["runId"])["offenders"]) == 40


def test_a_verdict_is_a_recount_whatever_was_reported(survey: Survey) -> None:
    for run in survey.runs:
        before = [
            each["id"]
            for each in survey.runs[: survey.runs.index(run)]
            if (each["projectType"], each["targetUrl"]) == (run["projectType"], run["targetUrl"])
            and (each["branch"], each["status"]) == (None, "completed")
        ]
        known = survey.reported[before[-1]] if before else set()
        for bar in range(len(SEVERITIES)):
            verdict = gate(survey.client, run["id"], failOn=SEVERITIES[bar])
            standing = ("open", "in_progress", "resolved") if run["branch"] else ("open", "in_progress")
            offenders = [
                item["id"]
                for item in survey.tasks
                if item["id"] in survey.reported[run["id"]] - known
                and item["status"] in standing
                and SEVERITIES.index(item["severity"]) <= bar
            ]
            assert verdict["baseline"] == (before[-1] if before else None)
            assert sorted(each["id"] for each in verdict["offenders"]) == offenders
            assert numbers(verdict)[:2] == (len(survey.reported[run["id"]]), len(offenders))


# ---------------------------------------------------------------------------
# The overview
# ---------------------------------------------------------------------------


TIMESTAMP = findings_service.timestamp


def at_day(monkeypatch: pytest.MonkeyPatch, days: int) -> str:
    """Let it be some days ago for what follows, and return the date."""
    monkeypatch.setattr(findings_service, "timestamp", lambda ago=0.0: TIMESTAMP(ago + days * 86_400))
    return TIMESTAMP(days * 86_400)[:10]


def standing(told: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    """Return where types or targets stand, without the names of the fields."""
    return [tuple(each.values()) for each in told]


def test_an_overview_tells_where_the_main_line_stands(client: Client, run: str) -> None:
    client.register("app")
    bare, branch = client.start("app"), start_on(client, "a", "y")
    fixed = client.add(run, severity="low", externalId="x")
    client.submit(run, task(severity="critical"), task(severity="critical", status="in_progress"))
    client.submit(bare, task(severity="critical"), task(severity="critical"))
    client.submit(branch, task(externalId="x"))
    client.triage(fixed, "resolved")
    nothing = dict.fromkeys(STATUSES, 0)
    told = client.read("overview")
    assert told["total"] == 5
    assert told["bySeverity"] == dict.fromkeys(SEVERITIES, nothing) | {
        "critical": nothing | {"open": 3, "in_progress": 1},
        "low": nothing | {"resolved": 1},
    }
    assert standing(told["byProjectType"]) == [("app", 2, 2), ("web", 3, 1)]
    assert standing(told["byTarget"]) == [(None, 2, 2), ("https://example.com/", 3, 1)]


@pytest.mark.parametrize(
    ("query", "total", "types", "targets", "created"),
    cases(
        type=({"projectType": "web"}, 3, [("web", 3, 3)], [(TARGETS[1], 2, 2), (TARGETS[2], 1, 1)], 3),
        target=({"targetUrl": TARGETS[1]}, 3, [("web", 2, 2), ("app", 1, 1)], [(TARGETS[1], 3, 3)], 3),
        both=({"projectType": "app", "targetUrl": TARGETS[1]}, 1, [("app", 1, 1)], [(TARGETS[1], 1, 1)], 1),
        nothing=({"projectType": "none"}, 0, [], [], 0),
        branch=({"branch": "a"}, 2, [("app", 2, 2)], [(TARGETS[1], 2, 2)], 2),
        branch_and_type=({"branch": "a", "projectType": "web"}, 0, [], [], 0),
        no_branch=({"branch": "b"}, 0, [], [], 0),
    ),
)
def test_an_overview_is_of_what_it_is_asked_for(
    client: Client, query: dict[str, str], total: int, types: list[Any], targets: list[Any], created: int
) -> None:
    for name in ("web", "app"):
        client.register(name)
    client.submit(client.start(targetUrl=TARGETS[1]), task(), task(externalId="x"))
    client.submit(client.start(targetUrl=TARGETS[2]), task())
    client.submit(client.start("app", targetUrl=TARGETS[1]), task(externalId="x"))
    client.submit(client.start("app", targetUrl=TARGETS[1], branch="a"), task(externalId="x"), task(externalId="y"))
    told = client.read("overview", **query)
    assert (told["total"], standing(told["byProjectType"]), standing(told["byTarget"])) == (total, types, targets)
    assert told["days"][-1]["created"] == created


def test_the_days_of_an_overview_count_what_happened_on_them(
    app: flask.Flask, client: Client, run: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = at_day(monkeypatch, 2)
    fixed, wrong = client.add(run, externalId="x"), client.add(run, status="dismissed")
    client.triage(fixed, "in_progress")
    taken = client.submit(start_on(client, "a"), task(externalId="y"))["tasks"][0]["id"]
    client.triage(taken, "dismissed")
    middle = at_day(monkeypatch, 1)
    client.triage(fixed, "resolved")
    client.triage(wrong, "resolved")
    last = at_day(monkeypatch, 0)
    client.submit(run, task(externalId="x"), task(externalId="y", title="Taken over"))
    told = client.read("overview", days=4)["days"]
    assert [standing([each])[0] for each in told[1:]] == [(first, 3, 0, 0, 1), (middle, 0, 0, 2, 0), (last, 0, 1, 0, 0)]
    assert set(standing(told[:1])[0][1:]) == {0}
    client.remove(f"tasks/{fixed}")
    told = client.read("overview", days=3)["days"]
    assert [standing([each])[0] for each in told] == [(first, 2, 0, 0, 1), (middle, 0, 0, 1, 0), (last, 0, 0, 0, 0)]
    assert faults_of(database_of(app).settings.db) == []


# ---------------------------------------------------------------------------
# The brief
# ---------------------------------------------------------------------------


def briefed(client: Client, **query: Any) -> list[str]:
    """Return the external ids of a brief."""
    return [each["externalId"] for each in client.read("brief", projectType="web", **query)["tasks"]]


def test_a_brief_tells_all_that_the_contract_names_in_its_order(client: Client) -> None:
    schema = {"minProperties": 0, "type": "object"}
    client.register("web", schema)
    run = client.start(targetUrl=TARGETS[1])
    noted = client.add(run, externalId="a", severity="low", title="Contrast")
    client.submit(run, task(), task(externalId="b", status="resolved"))
    client.triage(noted, "dismissed", reason="accepted_risk", comment="The brand's colour")
    told = client.read("brief", projectType="web", targetUrl=TARGETS[1])
    severities = dict.fromkeys(SEVERITIES, 0) | {"high": 2, "low": 1}
    statuses = {"open": 1, "in_progress": 0, "resolved": 1, "dismissed": 1}
    finding = {"externalId": "a", "title": "Contrast", "severity": "low", "status": "dismissed"}
    right = {
        "projectType": "web",
        "targetUrl": TARGETS[1],
        "branch": None,
        "summary": {"total": 3, "bySeverity": severities, "byStatus": statuses},
        "extensionSchema": schema,
        "tasks": [{**finding, "reason": "accepted_risk", "lastComment": "The brand's colour"}],
        "omitted": 0,
    }
    assert json.dumps(told) == json.dumps(right)  # the order of the members, too


def test_a_brief_begins_with_the_worst_and_then_with_what_was_seen_last(client: Client, run: str) -> None:
    named = {severity: [f"{severity}-{number}" for number in range(3)] for severity in ("low", "critical", "high")}
    for severity, names in named.items():
        client.submit(run, *(task(externalId=name, severity=severity) for name in names))
    later = client.start(targetUrl="https://example.com/")
    client.submit(later, task(externalId="critical-0", severity="critical"), task(externalId="high-1"))
    right = ["critical-0", "critical-2", "critical-1", "high-1", "high-2", "high-0", "low-2", "low-1", "low-0"]
    for limit in (1, 4, 9, 50):
        told = client.read("brief", projectType="web", targetUrl="https://example.com/", limit=limit)
        assert [each["externalId"] for each in told["tasks"]] == right[:limit]
        assert told["omitted"] == max(0, 9 - limit)


def test_a_brief_is_of_what_the_main_line_and_the_branch_know(client: Client, run: str) -> None:
    client.add(run, externalId="main")
    client.submit(start_on(client, "a"), task(externalId="a's"), task(externalId="both's"), task(externalId="main"))
    client.submit(start_on(client, "b"), task(externalId="both's"), task(externalId="b's"), task())
    client.add(start_on(client, "c"), externalId="c's")
    for branch, right in (("a", {"main", "a's", "both's"}), ("b", {"main", "both's", "b's"}), ("none", {"main"})):
        assert {*briefed(client, targetUrl="https://example.com/", branch=branch)} == right
    assert briefed(client, targetUrl="https://example.com/") == ["main"]
    told = client.read("brief", projectType="web", targetUrl="https://example.com/", branch="b", limit=1)
    assert (told["branch"], told["summary"]["total"], told["omitted"]) == ("b", 4, 2)


def test_a_brief_is_of_one_type_and_one_target(client: Client) -> None:
    for name in ("web", "app"):
        client.register(name)
        for target in (None, TARGETS[1], TARGETS[2]):
            client.add(client.start(name, targetUrl=target), externalId=f"{name} {target}")
    assert briefed(client) == ["web None"]
    assert briefed(client, targetUrl=TARGETS[2]) == [f"web {TARGETS[2]}"]
    assert briefed(client, targetUrl=f"{TARGETS[2]}x") == []


def test_the_last_comment_of_a_brief_is_the_last_that_anybody_wrote(client: Client, run: str) -> None:
    for name, decisions in {
        "none": [],
        "one": [{"comment": "First"}],
        "moved_without": [{"status": "dismissed", "comment": "Not ours"}, {"status": "open"}, {"assignee": "kim"}],
        "moved_with": [{"comment": "First"}, {"status": "in_progress", "comment": "Mine"}],
    }.items():
        found = client.add(run, externalId=name)
        for decision in decisions:
            client.triage(found, **decision)
    told = client.read("brief", projectType="web", targetUrl="https://example.com/")["tasks"]
    assert {each["externalId"]: each["lastComment"] for each in told} == {
        "none": None,
        "one": "First",
        "moved_without": "Not ours",
        "moved_with": "Mine",
    }


def test_a_brief_of_an_unregistered_type_says_which_there_are(app: flask.Flask, client: Client) -> None:
    client.register("web")
    assert_problem(client.get(f"{API}/brief"), 400, "invalid_parameter", "projectType")
    problem = assert_problem(client.get(f"{API}/brief?projectType=wbe"), 422, "unknown_project_type", "projectType")
    assert "Registered: web." in problem["detail"]
    stranger = client_of(app, client="other")
    problem = assert_problem(stranger.get(f"{API}/brief?projectType=web"), 422, "unknown_project_type", "projectType")
    assert "Registered: none yet." in problem["detail"]


def test_no_client_is_briefed_of_what_another_one_knows(app: flask.Flask, client: Client, run: str) -> None:
    client.submit(run, task(externalId="a"), task())
    client.add(start_on(client, "b"), externalId="b")
    stranger = client_of(app, client="other")
    stranger.register("web")
    for branch in ({}, {"branch": "b"}):
        told = stranger.read("brief", projectType="web", targetUrl="https://example.com/", **branch)
        assert (told["tasks"], told["summary"]["total"], told["omitted"]) == ([], 0, 0)


@pytest.mark.parametrize(
    ("there", "accept", "other"),
    cases(
        wanted=(True, "text/markdown", True),
        wanted_more=(True, "application/json;q=0.9, text/markdown;variant=CommonMark", True),
        wanted_less=(True, "text/markdown;q=0.5, */*", False),
        absent=(False, "text/markdown", False),
    ),
)
def test_a_brief_goes_out_in_the_form_that_is_wanted_most(
    client: Client, there: bool, accept: str, other: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(brief.EXPORTS, "text/markdown")
    if there:
        brief.add("text/markdown", lambda _, about: about.label.encode())
    client.register("web")
    response = client.get(f"{API}/brief?projectType=web", headers={"Accept": accept})
    assert response.content_type == ("text/markdown; charset=utf-8" if other else "application/json")
    assert response.data == b"web" if other else response.json["projectType"] == "web"


# ---------------------------------------------------------------------------
# Extensions
# ---------------------------------------------------------------------------


def judge(client: Client, schema: Any, extensions: Any = ...) -> Any:
    """Register a schema under a name of its own and submit one task with extensions."""
    name = f"type-{time.monotonic_ns()}"
    client.register(name, schema)
    return client.post(f"{API}/runs/{client.start(name)}/tasks", json=task(extensions=extensions))


EXTENSION_FAULTS = cases(
    pattern=({"wcag": "1.1"}, "/extensions/wcag"),
    type=({"wcag": 1}, "/extensions/wcag"),
    required=({}, "/extensions/wcag"),
    left_out=(..., "/extensions/wcag"),
    null=(None, "/extensions/wcag"),
    unwanted=({"wcag": "1.1.1", "a/b~": 1}, "/extensions/a~1b~0"),
    item=({"wcag": "1.1.1", "pages": [1, "2"]}, "/extensions/pages/1"),
)


@pytest.mark.parametrize(("extensions", "pointer"), EXTENSION_FAULTS)
def test_extensions_that_break_the_schema_are_refused(client: Client, extensions: Any, pointer: str) -> None:
    assert_problem(judge(client, WCAG_SCHEMA, extensions), 422, "validation_failed", pointer)
    assert client.read("tasks")["total"] == 0


def test_extensions_that_keep_the_schema_are_taken(client: Client) -> None:
    response = judge(client, WCAG_SCHEMA, {"wcag": "1.1.1", "pages": [1, 2.0]})
    stored = client.read(f"tasks/{response.json['tasks'][0]['id']}")
    assert stored["extensions"] == {"wcag": "1.1.1", "pages": [1, 2.0]}


NULLABLE = cases(
    inside=({"anyOf": [{"properties": {"a": {"type": "null"}}}, {"type": "null"}]}, {"a": 5}, {"a": None}),
    twice=({"anyOf": [{"type": "null"}, {"type": "null"}]}, 5, None),
    either=({"anyOf": [{"type": "integer"}, {"type": "null"}]}, "x", 5),
    null=({"anyOf": [{"type": "null"}, {"minLength": 2}]}, "x", None),
    three=({"anyOf": [{"type": "integer"}, {"type": "boolean"}, {"type": "null"}]}, "x", None),
    false=(False, "x" * 300, ...),
)


@pytest.mark.parametrize(("rule", "bad", "good"), NULLABLE)
def test_a_choice_with_null_is_judged_as_the_standard_has_it(client: Client, rule: Any, bad: Any, good: Any) -> None:
    told = problems_of(judge(client, in_a(rule), {"a": bad}))
    assert all(pointer.startswith("/extensions") and "cannot be judged" not in told[pointer] for pointer in told)
    assert judge(client, in_a(rule), {} if good is ... else {"a": good}).status_code == 201


def test_without_a_schema_any_extensions_are_taken(client: Client) -> None:
    assert judge(client, None, {"anything": [None, {"goes": True}]}).status_code == 201
    assert judge(client, {}, {"anything": [None, {"goes": True}]}).status_code == 201
    assert judge(client, WCAG_SCHEMA | {"required": []}).status_code == 201


JSON_SCHEMA = "json-schema.org"
DRAFTS = cases(
    by_default=(None, {"prefixItems": [{"type": "string"}]}, ["x"], [1]),
    draft_2020_12=(f"https://{JSON_SCHEMA}/draft/2020-12/schema", {"prefixItems": [{"type": "string"}]}, ["x"], [1]),
    draft_2019_09=(f"https://{JSON_SCHEMA}/draft/2019-09/schema", {"items": [{"type": "string"}]}, ["x"], [1]),
    draft_7=(f"http://{JSON_SCHEMA}/draft-07/schema#", {"if": {"type": "string"}, "then": {"minLength": 2}}, "xy", "x"),
    draft_7_without_fragment=(f"http://{JSON_SCHEMA}/draft-07/schema", {"items": [{"type": "string"}]}, ["x"], [1]),
    draft_6=(f"http://{JSON_SCHEMA}/draft-06/schema#", {"const": 1}, 1, 2),
    draft_4=(f"http://{JSON_SCHEMA}/draft-04/schema#", {"minimum": 1, "exclusiveMinimum": True}, 2, 1),
    draft_3=(f"http://{JSON_SCHEMA}/draft-03/schema#", {"divisibleBy": 3}, 9, 10),
)


@pytest.mark.parametrize(("draft", "rule", "good", "bad"), DRAFTS)
def test_a_schema_is_judged_by_its_draft(client: Client, draft: str | None, rule: Any, good: Any, bad: Any) -> None:
    schema = {"properties": {"a": rule}} | ({"$schema": draft} if draft else {})
    assert judge(client, schema, {"a": good}).status_code == 201
    problem = assert_problem(judge(client, schema, {"a": bad}), 422, "validation_failed")
    assert problem["errors"][0]["pointer"].startswith("/extensions/a")


def in_a(rule: Any) -> dict[str, Any]:
    """Return a schema with a rule for the member `a`."""
    return {"properties": {"a": rule}}


SCHEMA_FAULTS = cases(
    list=([], ""),
    boolean=(True, ""),
    text=("x", ""),
    number=(1, ""),
    large=({"description": "x" * KIB * KIB}, ""),
    type=({"type": "strnig"}, "/type"),
    nested=(in_a({"minLength": -1}), "/properties/a/minLength"),
    in_a_list=({"allOf": [{}, {"required": "a"}]}, "/allOf/1/required"),
    in_definitions=({"$defs": {"a/b": {"type": 1}}}, "/$defs/a~1b/type"),
    pattern=(in_a({"pattern": "("}), "/properties/a/pattern"),
    pattern_in_definitions=({"$defs": {"x": {"pattern": "[z-a]"}}}, "/$defs/x/pattern"),
    pattern_of_names=({"patternProperties": {"(": {}}}, "/patternProperties/("),
    pattern_behind_a_reference=({"custom": {"x": {"pattern": "*"}}, "$ref": "#/custom/x"}, "/$ref/pattern"),
    draft=({"$schema": "https://example.com/schema"}, "/$schema"),
    draft_number=({"$schema": 7}, "/$schema"),
    id=({"$id": 1}, "/$id"),
    id_of_old=({"$schema": f"http://{JSON_SCHEMA}/draft-04/schema#", "id": 1}, "/id"),
    id_below=(in_a({"$id": 1}), "/properties/a/$id"),
    id_behind_a_reference=({"$ref": "#/custom", "custom": in_a({"$id": 1})}, "/$ref/properties/a"),
    id_that_is_no_url=({"$id": "http://a.example/"} | in_a({"$id": "http://["}), "/properties/a"),
    reference_lost=(in_a({"$ref": "#/$defs/nope"}), "/properties/a/$ref"),
    reference_anchor=(in_a({"$ref": "#nope"}), "/properties/a/$ref"),
    reference_http=(in_a({"$ref": "http://127.0.0.1:9/x.json"}), "/properties/a/$ref"),
    reference_file=(in_a({"$ref": "file:///etc/passwd"}), "/properties/a/$ref"),
    reference_relative=(in_a({"$ref": "other.json#/a"}), "/properties/a/$ref"),
    reference_under_an_id=({"$id": "http://127.0.0.1:9/", "not": {"$ref": "x.json"}}, "/not/$ref"),
    reference_in_then=({"if": {}, "then": {"items": {"$ref": "x.json"}}}, "/then/items/$ref"),
    reference_dynamic=(in_a({"$dynamicRef": "http://127.0.0.1:9/#x"}), "/properties/a/$dynamicRef"),
    reference_draft_7=(
        {"$schema": f"http://{JSON_SCHEMA}/draft-07/schema#", "items": [{}, {"$ref": "#/definitions/no"}]},
        "/items/1/$ref",
    ),
)


@pytest.mark.parametrize(("schema", "pointer"), SCHEMA_FAULTS)
def test_a_faulty_schema_is_refused_where_it_is_wrong(client: Client, schema: Any, pointer: str) -> None:
    client.register("web")
    for method, path, body in (("POST", "project-types", {"name": "a"}), ("PUT", "project-types/web", {})):
        response = client.open(f"{API}/{path}", method=method, json=body | {"extensionSchema": schema})
        assert_problem(response, 422, "validation_failed", f"/extensionSchema{pointer}")
    assert client.get(f"{API}/project-types/a").status_code == 404


LOCAL_REFERENCES = cases(
    definitions={"$defs": {"n": {"type": "integer"}}, "properties": {"a": {"$ref": "#/$defs/n"}}},
    anchor={"$defs": {"n": {"$anchor": "n", "type": "integer"}}, "properties": {"a": {"$ref": "#n"}}},
    id={"$defs": {"n": {"$id": "urn:x:n", "type": "integer"}}, "properties": {"a": {"$ref": "urn:x:n"}}},
    relative_id={
        "$id": "https://example.com/root.json",
        "$defs": {"n": {"$id": "n.json", "type": "integer"}},
        "properties": {"a": {"$ref": "n.json"}},
    },
    dynamic={
        "$defs": {"n": {"$dynamicAnchor": "n", "type": "integer"}},
        "properties": {"a": {"$dynamicRef": "#n"}},
    },
    escaped={"$defs": {"a/b~c d": {"type": "integer"}}, "properties": {"a": {"$ref": "#/$defs/a~1b~0c%20d"}}},
    recursive={"properties": {"a": {"type": "integer"}, "next": {"$ref": "#"}}},
)


@pytest.mark.parametrize("schema", LOCAL_REFERENCES)
def test_references_inside_a_schema_are_followed(client: Client, schema: Any) -> None:
    assert judge(client, schema, {"a": 1, "next": {"next": {}}}).status_code == 201
    assert_problem(judge(client, schema, {"a": "x"}), 422, "validation_failed", "/extensions/a")


PATTERNS = cases(
    property=(r"^\p{Lu}\p{Ll}+$", "Élan", "élan"),
    script=(r"^\p{Script=Greek}+$", "αβγ", "abc"),
    long_name=(r"^\p{Letter}+$", "äß", "1"),
    unanchored=("b", "abc", "ac"),
    look_around=(r"^(?!.*--)[a-z-]+$", "a-b", "a--b"),
)


@pytest.mark.parametrize(("pattern", "good", "bad"), PATTERNS)
def test_patterns_know_unicode_properties(client: Client, pattern: str, good: str, bad: str) -> None:
    for schema, wrap in ((in_a({"pattern": pattern}), str), (in_a({"items": {"pattern": pattern}}), lambda s: [s])):
        assert judge(client, schema, {"a": wrap(good)}).status_code == 201
        assert judge(client, schema, {"a": wrap(bad)}).status_code == 422


def test_format_is_an_annotation(client: Client) -> None:
    assert judge(client, in_a({"format": "email"}), {"a": "no address"}).status_code == 201


def doubling(levels: int, **more: Any) -> dict[str, Any]:
    """Return a schema whose references double at each level."""
    definitions: dict[str, Any] = {
        f"d{n}": {"allOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 2, **more} for n in range(levels)
    }
    return {"$defs": definitions | {f"d{levels}": {"type": "object"}}, "$ref": "#/$defs/d0"}


ENDLESS = {"a": "a" * 60 + "!"}
TIMED_OUT = cases(
    pattern=(in_a({"pattern": "^(a|a)*$"}), ENDLESS),
    pattern_of_names=({"patternProperties": {"^(a|aa)+$": {}}}, {"a" * 60 + "!": 1}),
    doubling=(doubling(30), {}),
    doubling_with_nested_draft=(doubling(30, **{"$schema": f"https://{JSON_SCHEMA}/draft/2020-12/schema"}), {}),
    draft_3=({"$schema": f"http://{JSON_SCHEMA}/draft-03/schema#", **in_a({"pattern": "^(a|aa)+$"})}, ENDLESS),
    negation=({"not": {"$ref": "#/$defs/d0"}, "$defs": doubling(30)["$defs"]}, {}),
    unevaluated=(doubling(30) | {"unevaluatedProperties": False}, {"a": 1}),
)


@pytest.mark.parametrize(("schema", "extensions"), TIMED_OUT)
def test_a_check_that_takes_too_long_is_given_up(client: Client, schema: Any, extensions: Any) -> None:
    began = time.thread_time()
    response = judge(client, schema, extensions)
    assert_problem(response, 422, "extension_check_timeout", "/extensions")
    assert time.thread_time() - began < 1
    assert client.read("tasks")["total"] == 0


DRAFT_2019 = {"$schema": f"https://{JSON_SCHEMA}/draft/2019-09/schema"}
DRAFT_3 = {"$schema": f"http://{JSON_SCHEMA}/draft-03/schema#"}
AGAIN = {"$ref": "#"}
ENDLESS_SCHEMAS = cases(
    negation={"not": AGAIN},
    condition={"if": AGAIN, "then": False},
    all_of={"allOf": [AGAIN]},
    any_of={"anyOf": [AGAIN, AGAIN]},
    nullable={"anyOf": [AGAIN, {"type": "null"}]},
    one_of={"oneOf": [AGAIN]},
    one_of_twelve={"allOf": [reduce(lambda schema, _: {"oneOf": [schema]}, range(12), AGAIN)]},
    dynamic={"$dynamicAnchor": "x", "$dynamicRef": "#x"},
    recursive={**DRAFT_2019, "$recursiveAnchor": True, "$recursiveRef": "#"},
    dependent={"dependentSchemas": {"a": AGAIN}},
    names={"propertyNames": {"not": {"$ref": "#/propertyNames"}}},
    mutual={"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"},
    unevaluated={"unevaluatedProperties": False, "if": AGAIN},
    unevaluated_items=in_a({"unevaluatedItems": False, "contains": True, "oneOf": [{"$ref": "#/properties/a"}]}),
    bases={"$id": "http://a.example/x", "$defs": {"b": {"$id": "y", "$ref": "x"}}, "$ref": "y"},
    extends={**DRAFT_3, "extends": AGAIN},
    disallow={**DRAFT_3, "disallow": [AGAIN]},
    type={**DRAFT_3, "type": [AGAIN]},
)


def at_depth(frames: int, function: Callable[[], Any]) -> Any:
    """Call a function with so many more frames on the stack."""
    return at_depth(frames - 1, function) if frames else function()


@pytest.mark.parametrize("schema", ENDLESS_SCHEMAS)
def test_a_schema_without_an_end_is_told_of_long_before_the_interpreter_ends_it(schema: Any, capfd: Any) -> None:
    told = "the project type's schema is nested too deeply, or refers to itself without an end"
    text = json.dumps(schema)
    for extensions in ({"a": [1]}, {"a": [], **nested(98)}):
        task = [(json.dumps(extensions), "/extensions")]
        for frames in (0, 100, 400, 700, 800):
            (problem,) = at_depth(frames, partial(findings_service.check_extensions, text, task, 10.0))
            assert (problem.detail, problem.pointer) == (told, "/extensions")
    assert capfd.readouterr().err == ""  # where a panic would be


def test_a_value_of_nearly_a_hundred_levels_is_judged_to_its_end(client: Client) -> None:
    schema = in_a({"anyOf": [AGAIN, {"type": "string"}]}) | {"additionalProperties": False}
    assert judge(client, schema, nested(95)).status_code == 201
    pointer = "/extensions" + "/a" * 60 + "/b"
    schema = in_a({"anyOf": [AGAIN, {"type": "null"}]}) | {"additionalProperties": False}
    deep: Any = {"b": 1}
    for _ in range(60):
        deep = {"a": deep}
    assert_problem(judge(client, schema, deep), 422, "validation_failed", pointer)


@pytest.mark.parametrize("choice", ["anyOf", "oneOf"])
def test_a_choice_keeps_nothing_of_what_does_not_fit(choice: str) -> None:
    schema = json.dumps(in_a({choice: [{"maxLength": number} for number in range(300)]}))
    extensions = json.dumps({"a": "x" * 200_000})
    tracemalloc.start()
    try:
        (problem,) = findings_service.check_extensions(schema, [(extensions, "")], 20.0)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert "not valid under any" in problem.detail
    assert peak < 5_000_000  # one message has 200 kB


@pytest.mark.parametrize("error", [Panic, MemoryError, ZeroDivisionError])
def test_whatever_is_raised_in_judging_is_the_requests_own(
    client: Client, error: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    client.register("web", in_a({"not": {"pattern": "b"}}))
    run = client.start()
    monkeypatch.setattr(findings_service, "matches", lambda *_: (_ for _ in ()).throw(error("panicked")))
    told = problems_of(client.post(f"{API}/runs/{run}/tasks", json=task(extensions={"a": "x"})))
    assert told == {"/extensions": "the project type's schema cannot be judged by: panicked"}
    monkeypatch.setattr(findings_service, "draft_of", lambda *_: (_ for _ in ()).throw(error("panicked")))
    told = problems_of(client.post(f"{API}/project-types", json={"name": "b", "extensionSchema": {}}))
    assert told == {"/extensionSchema": "the schema cannot be judged by: panicked"}


NAMED = cases(
    required=({"required": ["a'b"]}, {}, ["/a'b"]),
    empty_name=({"required": [""]}, {}, ["/"]),
    dependent=({"dependentRequired": {"a": ["b", "c"]}}, {"a": 1}, ["/b", "/c"]),
    dependencies=(
        {"$schema": f"http://{JSON_SCHEMA}/draft-07/schema#", "dependencies": {"a": ["b"]}},
        {"a": 1},
        ["/b"],
    ),
    dependency_of_draft_3=({**DRAFT_3, "dependencies": {"a": "b"}}, {"a": 1}, ["/b"]),
    required_of_draft_3=({**DRAFT_3, **in_a({"required": True})}, {}, ["/a"]),
    unwanted=({"additionalProperties": False}, {"'\"": 1, "b, c": 2}, ["/'\"", "/b, c"]),
    unwanted_beside_patterns=(
        {"additionalProperties": False, "patternProperties": {"^a": {}}},
        {"a1": 1, "b": 1, "c": 1},
        ["/b", "/c"],
    ),
    unevaluated=({"anyOf": [in_a({})], "unevaluatedProperties": False}, {"a": 1, "b'": 1}, ["/b'"]),
    unevaluated_by_a_rule=({"unevaluatedProperties": {"type": "string"}}, {"a": 1, "b": "x"}, ["/a"]),
    unevaluated_items=(
        in_a({"prefixItems": [{}], "unevaluatedItems": {"type": "string"}}),
        {"a": [1, "x", 2]},
        ["/a/2"],
    ),
)


@pytest.mark.parametrize(("schema", "extensions", "pointers"), NAMED)
def test_a_fault_is_told_at_the_members_that_it_is_about(
    client: Client, schema: Any, extensions: Any, pointers: list[str]
) -> None:
    problem = assert_problem(judge(client, schema, extensions), 422, "validation_failed")
    assert [error["pointer"] for error in problem["errors"]] == [f"/extensions{pointer}" for pointer in pointers]


def any_schema(random_source: random.Random, draft: int, depth: int = 0) -> Any:
    """Return a schema of any sort that all drafts from one on have; half of them are such as two validators judge."""
    choose = random_source.choice
    parts: list[dict[str, Any]] = [
        {"type": choose(["string", "number", "integer", "object", "array", ["null", "boolean"]])},
        {"enum": random_source.sample([None, True, False, "a", "ab", "é"], 3)},
        {"pattern": choose(["^a", "b$", r"^\d\.\d$", "^[A-Za-z0-9._-]{1,3}$", "^(a|b)+$", "^.{2,4}$", "[^a-c]"])},
        {choose(["minLength", "maxItems", "minItems", "minimum", "maximum"]): choose([0, 1, 3])},
        *([{"required": [choose(["a", "b"])]}, {"maxProperties": 1}] if draft >= 4 else []),
    ]
    below = depth < 3
    one, two = (any_schema(random_source, draft, depth + 1) if below else {} for _ in range(2))
    parts += [{"properties": {"a": one}}, {"items": one}, {"properties": {"a": two}, "additionalProperties": False}]
    parts += [{choose(["allOf", "anyOf"]): [one, two]}] if draft >= 4 else []
    if choose([True, False]):
        parts += [{"enum": [1, 0, [1], {"a": 1}, 1.5]}, {"uniqueItems": True}, {"pattern": r"^\w+$"}]
        parts += [{"patternProperties": {"^b": one}, "additionalProperties": two}]
        parts += [{"dependentRequired": {"a": ["b"]}} if draft >= 2019 else {"dependencies": {"a": ["b"]}}]
        parts += [{"type": ["string", one]}, {"disallow": [one]}, {"extends": [one, two]}] if draft == 3 else []
        parts += [{"oneOf": [one, two]}, {"not": one}] if draft >= 4 else []
        parts += [{"contains": one}, {"propertyNames": one}, {"const": choose([1, True, [True]])}] if draft >= 6 else []
        parts += [{"if": one, "then": two}, {"if": one, "else": two}] if draft >= 7 else []
        if draft == 2020:
            parts += [{choose(["anyOf", "oneOf"]): [one, two], "unevaluatedProperties": False}]
            parts += [{"allOf": [one], "unevaluatedItems": False}, {"prefixItems": [one], "unevaluatedItems": two}]
            parts += [{"dependentSchemas": {"a": one}, "unevaluatedProperties": two}]
    return {name: value for part in random_source.sample(parts, 2) for name, value in part.items()}


ANY_VALUES = [
    *(
        None,
        True,
        False,
        0,
        1,
        -1,
        1.0,
        1.5,
        -0.0,
        2**53,
        2**64,
        10**30,
        1e300,
        "",
        "a",
        "ab",
        "abc\n",
        "1.2",
        "٣",
        "é",
    ),
    *("😀" * 3, "a b", [], [1], [1, 1.0, True], ["a"] * 5, ["a", True, 1], {}, {"a": 1}, {"a": "x", "b": [1]}),
    *({"a": "b", "b": 1}, {"b": "ab", "c": [1]}, {"é": {}}),
]


@pytest.mark.parametrize("draft", [2020, 2019, 7, 6, 4, 3])
def test_extensions_are_judged_as_jsonschema_judges_them(draft: int) -> None:
    random_source, verdicts = random.Random(draft), Counter[tuple[bool, bool]]()
    number = {2020: "202012", 2019: "201909"}.get(draft, draft)
    stock = getattr(jsonschema, f"Draft{number}Validator")
    named = {"$schema": stock.ID_OF(stock.META_SCHEMA)}
    for _ in range(500):
        schema = named | any_schema(random_source, draft)
        ours, quick = findings_service.make_validators(json.dumps(schema))
        for value in ANY_VALUES:
            verdict = ours.is_valid(value)
            assert verdict == stock(schema).is_valid(value), (schema, value)
            verdicts[verdict, quick(value, 1)] += 1
            assert verdict or not quick(value, 1), (schema, value)
    assert min(verdicts[True, False], verdicts[False, False]) > 1000
    assert verdicts[True, True] > 1000 or draft <= 4 or importlib.util.find_spec("jsonschema_rs") is None


HOSTILE_SCHEMAS = cases(
    repetition=in_a({"pattern": "((a{200}){100}){100}"}),
    repetitions={"patternProperties": {f"(a{{1000}}){{{500 + n}}}": {} for n in range(8)}},
    doubling=doubling(40),
    references={"$defs": {f"d{n}": {"allOf": [{"$ref": f"#/$defs/d{m}"} for m in range(100)]} for n in range(100)}},
    wide={"properties": {f"p{n}": {"pattern": f"^{n}$"} for n in range(20_000)}},
    required={"required": [f"p{n}" for n in range(20_000)]},
    deep_pattern=in_a({"pattern": "(" * 900 + ")" * 900}),
)


@pytest.mark.parametrize("schema", HOSTILE_SCHEMAS)
def test_registering_a_hostile_schema_takes_bounded_time(client: Client, schema: Any) -> None:
    began = time.monotonic()
    response = client.post(f"{API}/project-types", json={"name": "a", "extensionSchema": schema})
    assert response.status_code in (201, 422)
    assert time.monotonic() - began < 2.5


def test_the_time_of_a_request_is_shared_by_its_tasks(make_app: Callable[..., flask.Flask]) -> None:
    client = client_of(make_app(schema_timeout="0.4"))
    client.register("slow", in_a({"pattern": "^(a|aa)+$"}))
    run = client.start("slow")
    tasks = [task(extensions={"a": "a" * 22 + "!"})] * 200
    began = time.monotonic()
    response = client.post(f"{API}/runs/{run}/tasks", json={"tasks": tasks})
    assert_problem(response, 422, "extension_check_timeout")
    assert time.monotonic() - began < 1.2


def quick_size(schema: Any, value: Any) -> int:
    """Return of how many characters extensions may be that are accepted quickly, 0 where none are."""
    pytest.importorskip("jsonschema_rs")
    _, accepts = findings_service.make_validators(json.dumps(schema, separators=(",", ":")))
    return next((size for size in range(20_000, 0, -1) if accepts(value, size)), 0)


@pytest.mark.parametrize(
    "schema",
    cases(
        reference={"$ref": "#/$defs/a", "$defs": {"a": True}},
        negation={"not": {"pattern": r"^\d$"}},
        one_of={"oneOf": [{}, {"type": "array"}]},
        unicode_class={"pattern": r"^\w+$"},
        look_behind={"pattern": "(?<=a)b"},
        possessive={"pattern": "a++"},
        unique={"uniqueItems": True},
        unknown={"x-unit": 1},
        old_draft={"$schema": "http://json-schema.org/draft-04/schema#"},
        below={"properties": {"a": {"items": {"not": {}}}}},
        numbers={"items": {"enum": [None, [1]]}},
        repetition={"pattern": "^.{0,2000}$"},
        many_patterns={"items": {"anyOf": [{"pattern": f"^[a-z]{{{n}}}$"} for n in range(1, 60)]}},
        large={"enum": [None, "x" * 9000]},
    ),
)
def test_a_schema_that_two_validators_may_read_differently_has_one_judge(schema: Any) -> None:
    assert quick_size(schema, None) == 0 < quick_size({"enum": [None]}, None)


def any_of(rule: Any, times: int) -> dict[str, Any]:
    """Return a schema that takes every item, after it has held it against a rule so many times."""
    return {"items": {"anyOf": [*[rule] * times, True]}}


QUICK_WORK = cases(
    enumerations=(any_of({"enum": [None, *map(str, range(100))]}, 3), "-"),
    floats=(any_of({"maximum": -0.5}, 300), 0.5),
    large_floats=(any_of({"maximum": -9}, 100), 1e300),
    required=(any_of({"required": ["a"]}, 100), {"b": 1}),
    patterns=(any_of({"pattern": "^a.?$"}, 50), "x"),
    wide_pattern=(any_of({"pattern": "^(.?){450}x$"}, 1), "😀" * 20),
)


@pytest.mark.parametrize(("schema", "item"), QUICK_WORK)
def test_the_quick_judge_is_never_given_more_than_takes_milliseconds(schema: Any, item: Any) -> None:
    _, accepts = findings_service.make_validators(json.dumps(schema, separators=(",", ":")))
    size = len(json.dumps(item, ensure_ascii=False, separators=(",", ":"))) + 1
    value, took = [item] * (quick_size(schema, [item]) // size), []
    for _ in range(3):
        began = time.thread_time()
        assert accepts(value, size * len(value))
        took.append(time.thread_time() - began)
    assert min(took) < 0.02


@pytest.mark.parametrize("error", [ImportError, Panic])
def test_without_jsonschema_rs_extensions_are_judged_alike(
    client: Client, monkeypatch: pytest.MonkeyPatch, error: type[BaseException]
) -> None:
    failing = SimpleNamespace(validator_for=lambda *_, **__: (_ for _ in ()).throw(error("panicked")))
    monkeypatch.setitem(sys.modules, "jsonschema_rs", failing)
    schema = {**WCAG_SCHEMA, "title": f"judged by jsonschema alone: {error}"}
    client.register("web", schema)
    run = client.start()
    answer = client.post(f"{API}/runs/{run}/tasks", json=task(extensions={"wcag": "one"}))
    assert problems_of(answer).keys() == {"/extensions/wcag"}
    assert client.post(f"{API}/runs/{run}/tasks", json=task(extensions={"wcag": "1.1.1"})).status_code == 201


def test_the_patterns_that_are_kept_have_bounded_weight(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = dict[str, Any]()
    monkeypatch.setattr(findings_service, "PATTERNS_KEPT", kept)
    patterns = [f"^a{{{number}}}$" for number in range(9000, 9010)]
    with ThreadPoolExecutor(4) as pool:
        assert not any(pool.map(findings_service.matches, patterns * 2, ["b"] * 20))
    assert 0 < sum(cost for _, cost in kept.values()) <= 30_000 + 3 * 9100  # what four threads add at the same time


def test_what_is_kept_of_patterns_keeps_little_of_what_they_searched() -> None:
    code = """
import resource, findings_service as heart
def peak(): return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
before = peak()
for number in range(20):
    for pattern in ("^((((((((((a))))))))))*$", "^(?:a{1,3}){2,}?$", "^(a)(((((a)))))*\\\\1$"):
        try:
            with heart.TimeLimit(0.25):
                heart.matches(f"{pattern}|x{{{number + 1}}}", "a" * 250_000)
        except heart.OutOfTime:
            pass
print(peak() - before)
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=HERE, capture_output=True, text=True, check=True)
    assert int(done.stdout) < 400  # a third of what they would keep


@pytest.mark.parametrize(
    ("pattern", "groups"),
    cases(
        named=("(?P<n>a)(?<m>b)", 0),
        in_a_set=(r"[(](a)[]()]", 0),
        escaped=(r"\((a)\)", 0),
        look_around=("(?<=a)(b)(?!c)", 0),
        referred=(r"(a)\1", 1),
        referred_by_name=("(?P<n>a)(?P=n)", 1),
        condition=("(a)?(?(1)b|c)", 1),
    ),
)
def test_groups_are_noted_only_where_a_pattern_refers_to_them(pattern: str, groups: int) -> None:
    compiled = findings_service.compile_pattern(pattern)
    assert compiled.groups == groups
    for text in ("ab", "aa", "(a)", "(a]", "b", "c", "aab", "abc"):
        assert bool(compiled.search(text)) == bool(regex.search(pattern, text))


def test_nothing_of_a_clients_pattern_stays_in_the_regex_package() -> None:
    regex.purge()
    tracemalloc.start()
    try:
        for number in range(1200):
            findings_service.compile_pattern(f"(?#{'😀' * 950}){number}")
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < 2_500_000  # the texts alone are four and a half


@pytest.mark.parametrize(
    "pattern",
    [
        "(?R)?a",
        "(a)(?1)",
        "(?P<a>b)(?&a)",
        "((a{1000}){1000}){1000}",
        "(?x)( a{1000} # (\n ){1000}",
        "(?:a{500}){500}",
        "(a{400}(b{300}){300}){2}",
        "a" * 2001,
    ],
)
def test_a_pattern_that_takes_long_to_compile_is_refused(client: Client, pattern: str) -> None:
    body = {"name": "x", "extensionSchema": {"properties": {"a": {"pattern": pattern}}}}
    started = time.monotonic()
    response = client.post(f"{API}/project-types", json=body)
    assert time.monotonic() - started < 1
    assert_problem(response, 422, "validation_failed", "/extensionSchema/properties/a/pattern")


PROJECT = tomllib.loads((HERE / "pyproject.toml").read_text("utf-8"))["project"]
WANTED_JSONSCHEMA = next(line for line in PROJECT["dependencies"] if line.startswith("jsonschema>"))
OLDEST_JSONSCHEMA = WANTED_JSONSCHEMA.partition(",")[0].replace(">=", "==")
EXTENSION_TESTS = (
    *("test_extensions_that", "judged_by_its_draft", "schema_is_refused_where", "references_inside", "unicode"),
    *("too_long_is_given_up", "without_an_end", "members_that_it_is_about"),
)


@pytest.mark.parametrize("wanted", [OLDEST_JSONSCHEMA, WANTED_JSONSCHEMA])
def test_either_end_of_what_jsonschema_may_be_serves(tmp_path: Path, wanted: str) -> None:
    """The newest is mostly the one that all tests here run with."""
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
    fetching = [*pip, "--target", str(tmp_path), wanted]
    fetched = subprocess.run(fetching, capture_output=True, text=True, timeout=60, check=False)
    if fetched.returncode != 0:
        pytest.skip(f"pip does not get {wanted}: {fetched.stderr}")
    if (tmp_path / f"jsonschema-{importlib.metadata.version('jsonschema')}.dist-info").exists():
        return
    line = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-n", "0", "test_findings_service.py"]
    line += ["-k", " or ".join(EXTENSION_TESTS)]
    env = environment(PYTHONPATH=str(tmp_path))
    done = subprocess.run(line, cwd=HERE, env=env, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout


# ---------------------------------------------------------------------------
# Project types
# ---------------------------------------------------------------------------

DEFINITION = {"name": "web-a11y", "label": "Web", "description": "Sites.", "extensionSchema": WCAG_SCHEMA}


def test_registering_a_project_type_answers_the_whole_type(client: Client) -> None:
    response = client.post(f"{API}/project-types", json=DEFINITION)
    made = response.json
    assert response.status_code == 201
    assert set(made) == TYPE_FIELDS | {"extensionSchema"}
    assert {name: made[name] for name in DEFINITION} == DEFINITION
    assert response.headers["Location"] == f"{API}/project-types/web-a11y"
    assert client.read("project-types/web-a11y") == made


def test_the_same_definition_again_changes_nothing(client: Client) -> None:
    first = client.post(f"{API}/project-types", json=DEFINITION).json
    shuffled = json.dumps(dict(reversed(DEFINITION.items())), sort_keys=True, indent=2)
    again = client.send("POST", f"{API}/project-types", shuffled)
    assert (again.status_code, again.json) == (200, first)
    client.register("bare")
    bare = {"name": "bare", "label": "bare", "description": "", "extensionSchema": None}
    assert client.post(f"{API}/project-types", json=bare).status_code == 200


@pytest.mark.parametrize(
    "change", cases(label={"label": "x"}, description={"description": ""}, schema={"extensionSchema": {}})
)
def test_another_definition_under_a_name_is_a_conflict(client: Client, change: dict[str, Any]) -> None:
    first = client.post(f"{API}/project-types", json=DEFINITION).json
    assert_problem(client.post(f"{API}/project-types", json=DEFINITION | change), 409, "project_type_exists")
    assert client.read("project-types/web-a11y") == first


def test_names_are_unique_for_each_client_only(app: flask.Flask, client: Client) -> None:
    stranger = client_of(app, client="other")
    ours, theirs = client.register("web"), stranger.register("web", WCAG_SCHEMA)
    assert ours["id"] != theirs["id"]
    assert client.read("project-types/web")["extensionSchema"] is None
    assert client.submit(client.start(), task())["created"] == 1


def test_project_types_are_listed_by_name_without_schemas(client: Client) -> None:
    names = [f"t{n:03}" for n in range(120)]
    for name in random.Random(5).sample(names, len(names)):
        client.register(name, WCAG_SCHEMA)
    listed = client.read("project-types")
    assert set(listed) == {"projectTypes"}
    assert [item["name"] for item in listed["projectTypes"]] == names
    assert all(set(item) == TYPE_FIELDS for item in listed["projectTypes"])
    assert_problem(client.get(f"{API}/project-types?page=1"), 400, "invalid_parameter", "page")


TYPE_REJECTIONS = cases(
    name_empty={"name": ""},
    name_long={"name": "x" * 101},
    name_dot_first={"name": ".web"},
    name_dash_first={"name": "-web"},
    name_space={"name": "a b"},
    name_slash={"name": "a/b"},
    name_comma={"name": "a,b"},
    name_umlaut={"name": "ä"},
    name_newline={"name": "web\n"},
    name_arabic_digit={"name": "a٣"},
    name_number={"name": 1},
    label_long={"label": "x" * 201},
    label_number={"label": 1},
    description_long={"description": "x" * 10_001},
    description_list={"description": []},
)


@pytest.mark.parametrize("change", TYPE_REJECTIONS)
def test_a_bad_project_type_is_refused(client: Client, run: str, change: dict[str, Any]) -> None:
    for method, path, body in (("POST", "project-types", {"name": "new"}), ("PUT", "project-types/web", {})):
        response = client.open(f"{API}/{path}", method=method, json=body | change)
        assert_problem(response, 422, "validation_failed", f"/{[*change][-1]}")


@pytest.mark.parametrize("name", ["a", "9", "A.b_c-d", "x" * 100])
def test_a_project_type_at_the_bounds_is_taken(client: Client, name: str) -> None:
    body = {"name": name, "label": "é" * 200, "description": "é" * 10_000}
    response = client.post(f"{API}/project-types", json=body)
    assert response.status_code == 201
    assert {field: client.read(f"project-types/{name}")[field] for field in body} == body
    assert client.read("runs", projectType=name)["total"] == 0


def test_a_client_has_room_for_so_many_project_types(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("findings_service.MOST_PROJECT_TYPES", 2)
    for name in ("a", "b", "a"):
        client.register(name)
    problem = assert_problem(client.post(f"{API}/project-types", json={"name": "c"}), 422, "validation_failed", "/name")
    assert "2" in problem["errors"][0]["detail"]
    assert client.put(f"{API}/project-types/b", json={"label": "B"}).status_code == 200
    client_of(client.application, client="other").register("c")


def test_labels_and_descriptions_of_a_client_have_room_together(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("findings_service.PROJECT_TYPES_TEXT", 100)
    path = f"{API}/project-types"
    assert client.post(path, json={"name": "a", "label": "é", "description": "é" * 19}).status_code == 201
    for method, body in (
        (client.post, {"name": "b", "description": "x" * 60}),
        (client.post, {"name": "b", "description": '"' * 30}),
        (client.put, {"description": "x" * 100}),
    ):
        target = path if method == client.post else f"{path}/a"
        assert_problem(method(target, json=body), 422, "validation_failed", "/description")
    assert client.post(path, json={"name": "b", "description": "x" * 59}).status_code == 201
    assert client.put(f"{path}/b", json={"description": "x" * 59}).status_code == 200


def test_replacing_a_project_type_takes_defaults_for_what_is_left_out(client: Client) -> None:
    first = client.post(f"{API}/project-types", json=DEFINITION).json
    replaced = client.put(f"{API}/project-types/web-a11y", json={"description": "New.", "name": "web-a11y"}).json
    assert replaced == first | {"label": "web-a11y", "description": "New.", "extensionSchema": None}
    assert client.read("project-types/web-a11y") == replaced
    whole = client.put(f"{API}/project-types/web-a11y", json={k: v for k, v in DEFINITION.items() if k != "name"}).json
    assert whole == first


def test_replacing_needs_the_same_name_and_a_known_one(client: Client) -> None:
    client.register("web")
    response = client.put(f"{API}/project-types/web", json={"name": "cli"})
    assert_problem(response, 422, "validation_failed", "/name")
    assert_problem(client.put(f"{API}/project-types/cli", json={"name": "cli"}), 404, "not_found")


def test_a_new_schema_judges_new_tasks_but_not_stored_ones(client: Client, run: str) -> None:
    task_id = client.add(run, extensions={"wcag": 1})
    assert client.put(f"{API}/project-types/web", json={"extensionSchema": WCAG_SCHEMA}).status_code == 200
    assert client.read(f"tasks/{task_id}")["extensions"] == {"wcag": 1}
    assert client.triage(task_id, "dismissed")["extensions"] == {"wcag": 1}
    response = client.post(f"{API}/runs/{run}/tasks", json=task(extensions={"wcag": 1}))
    assert_problem(response, 422, "validation_failed", "/extensions/wcag")


# ---------------------------------------------------------------------------
# Limits and settings
# ---------------------------------------------------------------------------


def test_the_default_limits_are_the_documented_ones() -> None:
    settings = Settings.read()
    assert (settings.max_body, settings.max_batch) == (16 * 1024 * KIB, 1000)
    assert (settings.busy_timeout, settings.run_timeout, settings.schema_timeout) == (10, 24 * 3600, 2)


SETTINGS = cases(
    max_body=("FINDINGS_MAX_BODY", "1000", "max_body", 1000),
    max_batch=("FINDINGS_MAX_BATCH", "3", "max_batch", 3),
    busy_timeout=("FINDINGS_BUSY_TIMEOUT", "2.5", "busy_timeout", 2.5),
    seconds=("FINDINGS_SCHEMA_TIMEOUT", "4s", "schema_timeout", 4),
    minutes=("FINDINGS_RUN_TIMEOUT", "5m", "run_timeout", 300),
    hours=("FINDINGS_RUN_TIMEOUT", "2h", "run_timeout", 7200),
    days=("FINDINGS_RUN_TIMEOUT", "7d", "run_timeout", 7 * 86400),
    bytes=("FINDINGS_CACHE", "1048576", "cache", 1024 * KIB),
    kibibytes=("FINDINGS_CACHE", "2048k", "cache", 2048 * KIB),
    mebibytes=("FINDINGS_CACHE", "256M", "cache", 256 * 1024 * KIB),
    gibibytes=("FINDINGS_CACHE", "1g", "cache", 1024 * 1024 * KIB),
    file=("FINDINGS_DB", "/x/y.db", "db", "/x/y.db"),
)


@pytest.mark.parametrize(("variable", "text", "name", "value"), SETTINGS)
def test_settings_come_from_the_environment(
    monkeypatch: pytest.MonkeyPatch, variable: str, text: str, name: str, value: Any
) -> None:
    monkeypatch.setenv(variable, text)
    assert getattr(Settings.read(), name) == value


BAD_SETTINGS = cases(
    body_word=("FINDINGS_MAX_BODY", "big"),
    body_zero=("FINDINGS_MAX_BODY", "0"),
    batch_fraction=("FINDINGS_MAX_BATCH", "1.5"),
    duration_unit=("FINDINGS_RUN_TIMEOUT", "3w"),
    duration_negative=("FINDINGS_BUSY_TIMEOUT", "-1"),
    base_url_scheme=("FINDINGS_BASE_URL", "tools.example/findings"),
    base_url_query=("FINDINGS_BASE_URL", "https://tools.example/?a=b"),
    log_word=("FINDINGS_LOG", "yes"),
    cache_word=("FINDINGS_CACHE", "big"),
    cache_small=("FINDINGS_CACHE", "1023k"),
    cache_unit=("FINDINGS_CACHE", "1t"),
    cache_of_no_machine=("FINDINGS_CACHE", "99999999g"),
    duration_endless=("FINDINGS_SCHEMA_TIMEOUT", "inf"),
)


@pytest.mark.parametrize(("variable", "text"), BAD_SETTINGS)
def test_a_bad_setting_stops_the_start_with_one_line(tmp_path: Path, variable: str, text: str) -> None:
    done = command("serve", "--db", str(tmp_path / "x.db"), "--port", "0", **{variable: text})
    assert done.returncode == 1
    assert variable in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_body_over_the_limit_is_too_large(make_app: Callable[..., flask.Flask]) -> None:
    client = client_of(make_app(max_body="1000"))
    client.register("web")
    run = client.start()
    body = json.dumps(task(description=""))
    exact = json.dumps(task(description="x" * (1000 - len(body))))
    assert client.send("POST", f"{API}/runs/{run}/tasks", exact).status_code == 201
    assert_problem(client.send("POST", f"{API}/runs/{run}/tasks", exact + " "), 413, "body_too_large")
    assert client.read("tasks")["total"] == 1


def test_a_batch_over_the_limit_is_refused(make_app: Callable[..., flask.Flask]) -> None:
    client = client_of(make_app(max_batch="2"))
    client.register("web")
    run = client.start()
    assert client.submit(run, task(), task())["created"] == 2
    response = client.post(f"{API}/runs/{run}/tasks", json={"tasks": [task()] * 3})
    assert_problem(response, 422, "validation_failed", "/tasks")


@pytest.mark.sqlite
def test_commits_are_durable_by_default(tmp_path: Path) -> None:
    app = create_app(db=db_at(tmp_path / "default.db"))
    for connection in (writer_of(app), reader_of(app)):
        assert connection.execute("PRAGMA synchronous").fetchone() == (2,)
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        assert connection.execute("PRAGMA fullfsync").fetchone() == (1,)
        assert connection.execute("PRAGMA checkpoint_fullfsync").fetchone() == (1,)
    database_of(app).close()


@pytest.mark.parametrize(("method", "path", "status"), [("POST", "/nowhere", 404), ("PUT", f"{API}/runs", 405)])
def test_what_is_refused_anyway_does_not_wait_for_a_lock(server: Server, method: str, path: str, status: int) -> None:
    with locked(server.db):
        started = time.monotonic()
        assert server.request(method, path, "{}").status_code == status
        assert server.request("POST", f"{API}/runs", "{}", key="x").status_code == 401
        assert time.monotonic() - started < 2


# ---------------------------------------------------------------------------
# Other forms than JSON
# ---------------------------------------------------------------------------


def add_form(form: exports.ListFormat, patch: pytest.MonkeyPatch) -> None:
    """Have lists go out in a form until the patch is undone."""
    patch.setitem(findings_service.REGISTRY.list_exports, form.media_type, None)
    exports.add(form)


def written_lines(tasks: Iterator[exports.ListedTask]) -> Iterator[bytes]:
    """Write a list of tasks as lines of its titles and comments, the way a room writes one."""
    for listed in tasks:
        yield f"{listed.task.title} {listed.comment or ''}".rstrip().encode() + b"\n"


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch) -> str:
    """The media type of another form of lists, of which a few tasks are read at once."""
    form = exports.ListFormat(media_type="text/lines", write=written_lines)
    add_form(form, monkeypatch)
    monkeypatch.setattr(exports, "EXPORT_LOT", 3)
    monkeypatch.setattr(findings_service, "DOCUMENT_PIECE", 1)
    return form.media_type


def exported(client: Client, query: str = "", accept: str = "text/lines", **how: Any) -> Any:
    """Return a list of tasks in another form, which OpenAPI does not tell of."""
    headers = {"Authorization": f"Bearer {client.key}", "Accept": accept}
    return FlaskClient(client.application, flask.Response).get(f"{API}/tasks{query}", headers=headers, **how)


def query_behind(response: Any) -> str:
    """Return the query of the link to what follows a list, empty where nothing does."""
    return str(response.headers.get("Link", "")).partition(f"<{API}/tasks")[2].removesuffix('>; rel="next"')


ACCEPTED = cases(
    it=("text/lines", True),
    it_rather=("application/json;q=0.9, text/lines", True),
    it_with_parameters=("text/lines; charset=utf-8", True),
    json_rather=("text/lines;q=0.5, application/json", False),
    json_with_parameters_rather=("text/lines;q=0.5, application/json; charset=utf-8", False),
    anything=("*/*", False),
    it_or_anything=("text/lines, */*;q=0.1", True),
    a_browser=("text/html, application/xhtml+xml, */*;q=0.8", False),
    nothing_fits=("image/png", False),
    refused=("text/lines;q=0", False),
    no_header=("", False),
    no_sense=("text/lines;q=x;;,,;", False),
)


@pytest.mark.usefixtures("lines")
@pytest.mark.parametrize(("accept", "other"), ACCEPTED)
def test_a_list_goes_out_in_the_form_that_is_wanted_most(client: Client, run: str, accept: str, other: bool) -> None:
    client.add(run, title="One")
    response = exported(client, accept=accept)
    assert response.status_code == 200
    assert response.content_type == ("text/lines" if other else "application/json")
    assert response.data.startswith(b"One\n" if other else b'{"page"')


@pytest.mark.usefixtures("lines")
def test_a_list_in_another_form_has_everything_that_the_filters_leave(client: Client, run: str) -> None:
    client.submit(run, *(task(title=f"T{n:02}", severity=SEVERITIES[n % 5]) for n in range(25)))
    assert exported(client).data.split() == [b"T%02d" % n for n in reversed(range(25))]
    assert exported(client, "?severity=low&sort=createdAt").data.split() == [b"T03", b"T08", b"T13", b"T18", b"T23"]
    by_severity = exported(client, "?sort=severity").data.split()
    assert by_severity[:6] == [b"T20", b"T15", b"T10", b"T05", b"T00", b"T21"]
    assert exported(client, "?status=dismissed").data == b""
    assert "Link" not in exported(client, "?limit=25").headers


@pytest.mark.usefixtures("lines")
@pytest.mark.parametrize("query", ["sort=-createdAt", "sort=createdAt", "sort=severity&status=open,resolved"])
def test_a_long_list_in_another_form_goes_on_behind_its_link(client: Client, run: str, query: str) -> None:
    client.submit(run, *(task(title=f"T{n:02}", severity=SEVERITIES[n % 5]) for n in range(25)))
    found, link = [], f"?{query}&limit=7"
    for _ in range(4):
        response = exported(client, link)
        found.append(response.data.split())
        link = query_behind(response)
    assert link == ""
    assert [len(each) for each in found] == [7, 7, 7, 4]
    assert list(itertools.chain(*found)) == exported(client, f"?{query}").data.split()


REFUSED_EXPORTS = cases(
    page=("page=1", "page"),
    view=("view=full", "view"),
    too_many=("limit=100001", "limit"),
    none=("limit=0", "limit"),
    unknown=("sevrity=low", "sevrity"),
    far_behind=("after=x", "after"),
)


@pytest.mark.usefixtures("lines")
@pytest.mark.parametrize(("query", "parameter"), REFUSED_EXPORTS)
def test_a_list_in_another_form_refuses(client: Client, query: str, parameter: str) -> None:
    assert_problem(exported(client, f"?{query}"), 400, "invalid_parameter", parameter)


@pytest.mark.usefixtures("lines")
def test_what_was_said_of_a_dismissed_task_goes_out_with_it(client: Client, run: str) -> None:
    first, second, third = (client.add(run, title=f"T{n}") for n in range(3))
    client.triage(first, "dismissed", comment="No.")
    client.triage(first, "open", comment="Perhaps.")
    client.triage(first, "dismissed", comment="Never.")
    client.triage(second, "dismissed")
    client.triage(third, "resolved", comment="Mended.")
    assert exported(client).data == b"T2\nT1\nT0 Never.\n"


@pytest.mark.usefixtures("lines")
def test_a_list_in_another_form_is_of_one_moment(client: Client, run: str, monkeypatch: pytest.MonkeyPatch) -> None:
    client.submit(run, *(task(title=f"T{n:02}", externalId=str(n)) for n in range(20)))
    select, written = exports.select_listed, itertools.count()

    def select_and_write(*given: Any) -> Any:
        listed = select(*given)
        client.submit(run, task(title=f"new {next(written)}"), task(title="changed", externalId="9"))
        return listed

    monkeypatch.setattr(exports, "select_listed", select_and_write)
    assert exported(client, "?limit=15").data.split() == [b"T%02d" % n for n in range(19, 4, -1)]
    assert next(written) == 5


@pytest.mark.usefixtures("lines")
@pytest.mark.parametrize("sort", ["-createdAt", "createdAt", "severity"])
def test_a_walk_has_every_task_once_where_two_servers_clocks_differ(
    app: flask.Flask, client: Client, run: str, sort: str
) -> None:
    tasks = client.submit(run, *(task(title=f"T{n}") for n in range(6)))["tasks"]
    early, late = tasks[1]["id"], tasks[4]["id"]
    with database_of(app).transaction() as connection:
        for old, new in ((early, "x"), (late, early), ("x", late)):
            connection.execute("UPDATE tasks SET id = ? WHERE client_id = 'default' AND id = ?", (new, old))
    found, link = [], f"?sort={sort}&limit=3"
    while link:
        response = exported(client, link)
        found += response.data.split()
        link = query_behind(response)
    newest_first = [b"T5", b"T4", b"T3", b"T2", b"T1", b"T0"]
    assert found == (newest_first[::-1] if sort == "createdAt" else newest_first)


def made_by_two_servers(monkeypatch: pytest.MonkeyPatch, make: Callable[[], str]) -> list[str]:
    """Return the ids of eight things that two servers make in turn, of which the clock of the second one is slow."""
    makers, now = [findings_service.IdMaker(), findings_service.IdMaker()], time.time_ns
    ids = []
    for turn in range(8):
        with monkeypatch.context() as patched:
            patched.setattr(findings_service, "new_ids", makers[turn % 2])
            patched.setattr(findings_service.time, "time_ns", lambda late=turn % 2: now() - late * 50_000_000)
            ids.append(make())
    return ids


@pytest.mark.usefixtures("lines")
@pytest.mark.parametrize("sort", ["-createdAt", "createdAt", "severity"])
def test_a_walk_goes_on_behind_a_deleted_task_where_two_servers_clocks_differ(
    client: Client, run: str, sort: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = made_by_two_servers(monkeypatch, lambda: client.add(run))
    assert sorted(ids) == ids
    walked = ids if sort == "createdAt" else ids[::-1]
    page = client.read("tasks", sort=sort, limit=3)
    link = query_behind(exported(client, f"?sort={sort}&limit=3"))
    assert [each["id"] for each in page["tasks"]] == walked[:3]
    assert client.delete(f"{API}/tasks/{walked[2]}").status_code == 204
    assert [each["id"] for each in client.read(page["next"])["tasks"]] == walked[3:6]
    assert exported(client, link.replace("limit=3", "limit=9")).data.count(b"\n") == 5


def test_a_walk_goes_on_behind_a_deleted_run_where_two_servers_clocks_differ(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.register("web")
    walked = made_by_two_servers(monkeypatch, client.start)[::-1]
    page = client.read("runs", limit=3)
    assert [each["id"] for each in page["runs"]] == walked[:3]
    assert client.delete(f"{API}/runs/{walked[2]}").status_code == 204
    assert [each["id"] for each in client.read(page["next"])["runs"]] == walked[3:6]


def test_a_list_of_the_default_length_goes_out_behind_what_was_just_submitted(
    client: Client, run: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    form = exports.ListFormat(media_type="text/lines", write=written_lines, whole=True)
    add_form(form, monkeypatch)
    for first in range(0, 10_001, 1000):
        client.submit(run, *(task(title=f"T{n}") for n in range(first, min(first + 1000, 10_001))))
    answer = exported(client)
    assert answer.status_code == 200
    assert answer.data.split() == [b"T%d" % n for n in range(10_000, 0, -1)]
    assert "Link" in answer.headers


def breaks(tasks: Iterator[exports.ListedTask]) -> Iterator[bytes]:
    """Write a task, and fail."""
    yield next(tasks).task.title.encode()
    raise engine_error("disk I/O error")


def test_a_list_in_another_form_is_whole_or_an_error(
    client: Client, run: str, lines: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.submit(run, *(task(title=f"T{n}") for n in range(20)))
    form = exports.ListFormat(media_type=lines, write=breaks)
    for _ in range(exports.MOST_DOCUMENTS + 1):
        with monkeypatch.context() as patched:
            add_form(form, patched)
            assert_problem(exported(client), 500, "internal_error")
    monkeypatch.setattr(exports, "DOCUMENT_SIZE", 10)
    assert_problem(exported(client), 400, "invalid_parameter", "limit")
    assert exported(client, "?limit=2").data == b"T19\nT18\n"


def test_a_list_for_which_the_disk_has_no_room_is_an_error(
    client: Client, run: str, lines: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.add(run)

    def full(*_: Any) -> NoReturn:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    file = SimpleNamespace(write=len, flush=full, close=full)
    with monkeypatch.context() as patched:
        patched.setattr(tempfile, "TemporaryFile", lambda **_: file)
        for _ in range(exports.MOST_DOCUMENTS + 1):
            assert_storage_problem(exported(client, accept=lines), "storage_full")
    assert exported(client, accept=lines).status_code == 200


LINES_PROGRAM = (
    "import findings_service as fs; from findings_features import exports;"
    " exports.add(exports.ListFormat(media_type='text/lines',"
    " whole=True, write=lambda tasks: (fs.msgspec.json.encode(each.task) + b'\\n' for each in tasks))); fs.main()"
)


@pytest.fixture
def lister(tmp_path: Path) -> Iterator[Server]:
    """A server with 5,000 tasks, twenty megabytes, that can list them in lines."""
    line = [sys.executable, "-c", LINES_PROGRAM, "serve", "--db", str(tmp_path / "x.db"), "--port", "0"]
    server = start_process(line, tmp_path / "x.db", "TASKS_URL|api/v1/tasks", FINDINGS_LOG="json")
    run = server.start_run()
    for first in range(0, 5000, 1000):
        tasks = [task(title=f"T{n}", description="x" * 4000) for n in range(first, first + 1000)]
        server.request("POST", f"{API}/runs/{run}/tasks", {"tasks": tasks})
    yield server
    assert server.stop() == 0


def listed_bytes(server: Server, lists: int) -> list[int]:
    """Return how many bytes of so many lists a server says that it sent, once it does."""
    deadline = time.monotonic() + 10
    while True:
        sizes = [json.loads(each)["bytes"] for each in server.heard().splitlines() if '"/api/v1/tasks"' in each]
        if len(sizes) >= lists or time.monotonic() > deadline:
            return sizes
        time.sleep(0.01)


def test_a_real_server_sends_a_long_list_whole_in_little_memory(lister: Server) -> None:
    first = lister.request("GET", f"{API}/tasks?limit=1", Accept="text/lines")  # what it loads for that stays
    before = memory_of(lister)
    answer = lister.request("GET", f"{API}/tasks", Accept="text/lines")
    assert answer.headers["Content-Length"] == str(len(answer.data))
    assert [json.loads(each)["title"] for each in answer.data.splitlines()] == [f"T{n}" for n in range(4999, -1, -1)]
    assert memory_of(lister) < before + Settings().cache / findings_service.READERS_SHARE / KIB**2 + 12
    assert lister.request("HEAD", f"{API}/tasks", Accept="text/lines").data == b""
    assert listed_bytes(lister, 3) == [len(first.data), len(answer.data), 0]


@contextmanager
def asked_for(server: Server, room: int = 4 * KIB) -> Iterator[socket.socket]:
    """Give a connection that has asked for a list in lines, and takes as many bytes as it has room for."""
    head = (f"GET {API}/tasks HTTP/1.1", "Host: x", f"Authorization: Bearer {server.key}", "Accept: text/lines", "", "")
    with socket.create_connection(("127.0.0.1", server.port), 10) as slow:
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, room)
        slow.sendall("\r\n".join(head).encode())
        yield slow


def test_lists_wait_for_clients_that_take_their_time_at_no_cost_and_only_for_some(
    lister: Server, tmp_path: Path
) -> None:
    lister.request("GET", f"{API}/tasks", Accept="text/lines")
    before, names = memory_of(lister), {path.name for path in tmp_path.iterdir()}
    with ExitStack() as stack:
        for _ in range(exports.MOST_DOCUMENTS):
            slow = stack.enter_context(asked_for(lister))
            assert slow.recv(12) == b"HTTP/1.1 200"
        assert len(listed_bytes(lister, 1)) == 1
        assert memory_of(lister) < before + 12
        assert {path.name for path in tmp_path.iterdir()} == names  # so a kill leaves nothing either
        refused = lister.request("GET", f"{API}/tasks", Accept="text/lines")
        assert_problem(refused, 503, "busy")
        assert refused.headers["Retry-After"] == "1"
        assert lister.request("GET", f"{API}/tasks").status_code == 200
    deadline = time.monotonic() + 10
    while (again := lister.request("GET", f"{API}/tasks", Accept="text/lines")).status_code == 503:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    whole, *broken_off = [size for size in listed_bytes(lister, 6) if size > 10_000]
    assert len(again.data) == whole > max(broken_off[:4])
    assert "Traceback" not in lister.heard()


def test_clients_that_ask_for_lists_and_go_leave_nothing_behind(lister: Server, tmp_path: Path) -> None:
    names = {path.name for path in tmp_path.iterdir()}

    def ask_and_go(times: int) -> None:
        for _ in range(times):
            with asked_for(lister):
                time.sleep(0.01)

    ask_and_go(10)  # so that what several at once need is there before
    before = memory_of(lister)
    ask_and_go(60)
    deadline = time.monotonic() + 20
    while lister.request("GET", f"{API}/tasks", Accept="text/lines").status_code != 200:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert {path.name for path in tmp_path.iterdir()} == names
    assert memory_of(lister) < before + 20
    files = Path(f"/proc/{lister.process.pid}/fd")
    assert len(list(files.iterdir())) < 60


def test_a_client_that_takes_nothing_of_a_list_is_cut_off(tmp_path: Path) -> None:
    program = LINES_PROGRAM.replace(
        "fs.main()", "from findings_adapters.serving import rsgi; rsgi.UNTAKEN = 0.5; fs.main()"
    )
    line = [sys.executable, "-c", program, "serve", "--db", str(tmp_path / "x.db"), "--port", "0"]
    server = start_process(line, tmp_path / "x.db", "TASKS_URL|api/v1/tasks", FINDINGS_LOG="json")
    run = server.start_run()
    batch = {"tasks": [task(description="x" * 16_000) for _ in range(800)]}
    assert server.request("POST", f"{API}/runs/{run}/tasks", batch).status_code == 201
    with asked_for(server, KIB * KIB) as slow:
        (sent,) = listed_bytes(server, 1)
        took = 0
        while taken := slow.recv(1 << 20):
            took += len(taken)
    assert sent < 800 * 16_000
    assert took < sent + 1000
    assert server.stop() == 0


def read_lines(text: bytes, settings: Settings) -> findings_service.Parsed:
    """Read a submission of lines, each a title, the way a room reads one."""
    parsed = findings_service.Parsed()
    for title in text.decode().split("\n"):
        parsed.reports.append(findings_service.NewTask(None, None, title.strip(), 3, None, None, None, None, None))
    return parsed


@pytest.fixture
def taken_lines(monkeypatch: pytest.MonkeyPatch) -> str:
    """The media type of another form of submissions, which has its own limit."""
    form = findings_service.SubmissionFormat(parse=read_lines, limit=lambda settings: settings.max_sarif)
    monkeypatch.setitem(findings_service.REGISTRY.submission_formats, "text/lines", form)
    return "text/lines"


def send_lines(client: Client, path: str, text: str, media_type: str = "text/lines; charset=utf-8") -> Any:
    """Send a body of lines."""
    return client.post(path, data=text, content_type=media_type)


def test_a_submission_in_another_form_is_answered_like_a_batch(client: Client, run: str, taken_lines: str) -> None:
    answer = send_lines(client, f"{API}/runs/{run}/tasks", "One\nTwo").json
    assert (answer["created"], [each["result"] for each in answer["tasks"]]) == (2, ["created", "created"])
    assert send_lines(client, f"{API}/runs/{run}/tasks", "Three", "Text/Lines").status_code == 201
    assert {each["title"] for each in client.read("tasks")["tasks"]} == {"One", "Two", "Three"}


@pytest.mark.usefixtures("taken_lines")
def test_another_form_has_its_own_limit_and_only_where_it_is_read(make_app: Callable[..., flask.Flask]) -> None:
    client = client_of(make_app(max_body="1000", max_sarif="5000"))
    client.register("web")
    submit = f"{API}/runs/{client.start()}/tasks"
    assert send_lines(client, submit, "x" * 400 + " " * 4600).status_code == 201
    assert_problem(send_lines(client, submit, "x" * 5001), 413, "body_too_large")
    assert_problem(client.send("POST", submit, " " * 1001), 413, "body_too_large")
    assert_problem(send_lines(client, f"{API}/runs", "x" * 900), 415, "unsupported_media_type")
    assert_problem(send_lines(client, f"{API}/runs", "x" * 1001), 413, "body_too_large")
    refused = assert_problem(send_lines(client, submit, "x", "text/plain"), 415, "unsupported_media_type")
    assert "application/json" in refused["detail"]
    assert "text/lines" in refused["detail"]


def test_a_command_in_the_same_process_says_who_it_is(app: flask.Flask, client: Client, run: str) -> None:
    who = findings_service.Principal("local", "default", "scan", "agent")

    def ask(method: str, path: str, **fields: Any) -> findings_service.Answer:
        environ = {"REQUEST_METHOD": method, "PATH_INFO": path, "CONTENT_TYPE": "application/json"}
        call = findings_service.Call(app.extensions["findings"], environ, path, who)
        return call.respond(lambda _: findings_service.Body(json.dumps(fields).encode()))

    answer = ask("POST", f"{API}/runs/{run}/tasks", **task())
    assert answer.status == 201
    assert client.history(json.loads(answer.body)["tasks"][0]["id"])[0]["by"] == "scan"
    assert ask("PUT", f"{API}/project-types/web").status == 403


# ---------------------------------------------------------------------------
# Health and OpenAPI
# ---------------------------------------------------------------------------


def test_health_needs_no_key_and_tells_the_versions(app: flask.Flask) -> None:
    response = app.test_client().get("/healthz")
    assert (response.status_code, response.json["status"]) == (200, "ok")
    name, version = database_of(app).engine
    assert response.json[name.lower()] == version
    assert response.json["version"] == findings_service.__version__


def test_health_is_looked_at_once_a_second_and_the_last_answer_counts_in_between(
    app: flask.Flask, monkeypatch: pytest.MonkeyPatch
) -> None:
    probed = list[int]()
    monkeypatch.setattr(type(database_of(app)), "probe", lambda _: probed.append(1))
    for kept, looks in ((-1, 3), (1, 4)):
        with monkeypatch.context() as patched:
            patched.setattr(findings_service, "HEALTH_KEPT", kept)
            assert [app.test_client().get("/healthz").status_code for _ in range(3)] == [200] * 3
        assert len(probed) == looks


@pytest.mark.sqlite
def test_health_stores_nothing(server: Server) -> None:
    server.start_run()
    time.sleep(0.1)
    before = contents_of(server.db.parent)
    for _ in range(3):
        assert server.request("GET", "/healthz", key="fts_none").status_code == 200
        time.sleep(0.6)
    assert contents_of(server.db.parent) == before


@pytest.mark.sqlite
def test_health_is_told_within_its_time_while_the_writing_thread_hangs(serve: Callable[..., Server]) -> None:
    server = serve()
    time.sleep(1.1)
    with locked(server.db):
        began = time.monotonic()
        with ThreadPoolExecutor(30) as pool:
            answers = list(pool.map(lambda _: server.request("GET", "/healthz"), range(30)))
        assert time.monotonic() - began < 3
    assert {answer.status_code for answer in answers} == {503}
    assert server.request("GET", f"{API}/tasks").status_code == 200


@pytest.fixture
def document(app: flask.Flask) -> dict[str, Any]:
    """The OpenAPI document, as anybody gets it."""
    response = app.test_client().get(f"{API}/openapi.json")
    assert (response.status_code, response.content_type) == (200, "application/json")
    return response.json


def test_the_openapi_document_is_valid(document: dict[str, Any]) -> None:
    assert document["openapi"].startswith("3.1.")
    assert document["info"]["version"] == findings_service.__version__
    openapi_spec_validator.validate(document)


def test_every_route_is_in_openapi(document: dict[str, Any]) -> None:
    described = {(method.upper(), path) for path, methods in document["paths"].items() for method in methods}
    assert described == {(each.method, each.path) for each in OPERATIONS}


OWN_STATUSES = {
    "PATCH /api/v1/runs/{run_id}": 409,
    "POST /api/v1/runs/{run_id}/tasks": 409,
    "GET /api/v1/tasks": 404,
    "PATCH /api/v1/tasks/{task_id}": 412,
    "POST /api/v1/project-types": 409,
    "DELETE /api/v1/project-types/{name}": 409,
    "GET /api/v1/brief": 422,
}


@pytest.mark.parametrize("each", [pytest.param(each, id=f"{each.method} {each.path}") for each in OPERATIONS])
def test_every_status_of_a_route_is_in_openapi(document: dict[str, Any], each: Any) -> None:
    responses = document["paths"][each.path][each.method.lower()]["responses"]
    statuses = {400, 500, OWN_STATUSES.get(f"{each.method} {each.path}", 500)}
    statuses |= ({401, 503} if each.level else set()) | ({403} if each.level not in (None, "read") else set())
    statuses |= ({404} if "{" in each.path else set()) | ({413, 415, 422} if each.body is not None else set())
    assert {str(status) for status in statuses} <= set(responses)
    assert {"200", "201", "204"} & set(responses)
    for status in {"204", "304", "414", "431"} & {*responses}:  # the last two are the HTTP server's
        assert "content" not in responses.pop(status)
    for status, response in responses.items():
        kind = "application/json" if int(status) < 300 else "application/problem+json"
        forms = {
            f"{API}/tasks": findings_service.REGISTRY.list_exports,
            f"{API}/brief": brief.EXPORTS,
        }
        others = forms.get(each.path, {}) if (each.method, status) == ("GET", "200") else ()
        assert set(response["content"]) == {kind, *others}


CODES = (
    *("malformed_json", "invalid_parameter", "unauthorized", "forbidden", "not_found"),
    *(
        "run_finished",
        "project_type_exists",
        "changed_meanwhile",
        "body_too_large",
        "unsupported_media_type",
        "validation_failed",
    ),
    *("unknown_project_type", "extension_check_timeout", "busy", "storage_full", "internal_error"),
)


@pytest.mark.parametrize("code", CODES)
def test_every_error_code_is_in_openapi(document: dict[str, Any], code: str) -> None:
    assert f"`{code}`" in json.dumps(document["paths"])


def test_openapi_names_the_key_and_what_needs_none(document: dict[str, Any]) -> None:
    assert document["components"]["securitySchemes"]["key"]["scheme"] == "bearer"
    open_to_all = {
        path
        for path, methods in document["paths"].items()
        for each in methods.values()
        if each.get("security", document["security"]) == []
    }
    assert open_to_all == {"/healthz", f"{API}/openapi.json"}


def test_every_parameter_is_described(document: dict[str, Any]) -> None:
    parameters = [
        each for methods in document["paths"].values() for one in methods.values() for each in one["parameters"]
    ]
    assert {each["in"] for each in parameters} == {"path", "query", "header"}
    assert [each["name"] for each in parameters if not each.get("description")] == []


TOO_MUCH = cases(
    path=(f"/{'a' * 66_000}", {}, 414),
    query=(f"{API}/tasks?q={'a' * 66_000}", {}, 414),
    headers=(f"{API}/tasks", {f"X-{number}": "a" for number in range(100)}, 431),
    header=(f"{API}/tasks", {"X-Long": "a" * 600_000}, 431),
)


@pytest.mark.parametrize(("path", "headers", "status"), TOO_MUCH)
def test_what_the_http_server_refuses_is_described(
    server: Server, document: dict[str, Any], path: str, headers: dict[str, str], status: int
) -> None:
    answer = server.request("GET", path, **headers)
    assert (answer.status_code, answer.data) == (status, b"")
    assert all(str(status) in each["responses"] for methods in document["paths"].values() for each in methods.values())


SENT = cases(
    run=("RunStart", {"projectType": "web", "metadata": {"a": [1]}}, {"projectType": "web", "sevrity": 1}),
    task=("TaskReport", WHOLE_TASK, task(severity="hgh")),
    step=("RemediationStep", {"instruction": "x", "step": 1.0}, {"instruction": "x", "step": 1.5}),
    batch=("TaskBatch", {"tasks": [task()]}, {"tasks": [{}]}),
    empty_batch=("TaskBatch", {"tasks": []}, {"tasks": None}),
    evidence=("Evidence", {"label": "x", "url": None}, {"type": "code", "content": None}),
    triage=("TaskUpdate", {"status": "open"}, {"status": "closed"}),
    triage_of_nothing=("TaskUpdate", {"assignee": ""}, {"assignee": None, "comment": None}),
    triage_with_a_reason=("TaskUpdate", {"reason": "fixed"}, {"reason": "fixed", "status": "open"}),
    triage_of_several=("TasksUpdate", {"ids": ["x"], "comment": "x"}, {"ids": ["x"]}),
    triage_of_none=("TasksUpdate", {"ids": ["x"], "reason": None, "status": "open"}, {"ids": [], "status": "open"}),
    type=("ProjectTypeDefinition", DEFINITION, {"name": "-"}),
)


@pytest.mark.parametrize(("model", "good", "bad"), SENT)
def test_the_schemas_of_openapi_judge_like_the_service(
    document: dict[str, Any], model: str, good: Any, bad: Any
) -> None:
    schema = {"$ref": f"#/components/schemas/{model}", "components": document["components"]}
    validator = jsonschema.Draft202012Validator(schema)
    assert validator.is_valid(good)
    assert not validator.is_valid(bad)


def generate(document: dict[str, Any], folder: Path, *line: str) -> None:
    """Run a generator of clients over a document, and check that it has nothing to complain of."""
    (folder / "openapi.json").write_text(json.dumps(document), "utf-8")
    (folder / "config.json").write_text('{"post_hooks": []}', "utf-8")
    python = [sys.executable, "-W", "error", "-m"]
    done = subprocess.run([*python, *line], cwd=folder, env=environment(), capture_output=True, text=True, check=False)
    said = done.stdout + done.stderr
    assert (done.returncode, re.search("(?i)warning|unable|fail", said)) == (0, None), said


def test_a_generated_client_takes_a_night_through(
    server: Server, document: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = ("--path", "openapi.json", "--meta", "none", "--output-path", "night_client", "--config", "config.json")
    generate(document, tmp_path, "openapi_python_client", "generate", *options)
    monkeypatch.syspath_prepend(str(tmp_path))
    models, client = importlib.import_module("night_client.models"), importlib.import_module("night_client")
    url = f"http://127.0.0.1:{server.port}"

    def call(operation: str, *arguments: Any, **named: Any) -> Any:
        with client.AuthenticatedClient(base_url=url, token=server.key) as api:
            return importlib.import_module(f"night_client.api.{operation}").sync(*arguments, client=api, **named)

    schema = models.ProjectTypeDefinitionExtensionSchemaType0.from_dict(WCAG_SCHEMA)
    definition = models.ProjectTypeDefinition(name="web", label=None, extension_schema=schema)
    assert call("project_types.post_project_types", body=definition).extension_schema.to_dict() == WCAG_SCHEMA
    metadata = models.RunStartMetadataType0.from_dict({"commit": {"parents": ["a", None, 1.5]}})
    run = call(
        "runs.post_runs",
        body=models.RunStart(project_type="web", target_url="https://example.com/", metadata=metadata),
        idempotency_key="night",
    )
    assert (run.status, run.metadata.to_dict()) == (models.RunStatus.RUNNING, metadata.to_dict())
    reports = [
        models.TaskReport(
            title=f"Finding {severity}",
            severity=severity,
            external_id=f"finding-{severity}",
            evidence=[models.Evidence(type_="code", content="<img>")],
            remediation=[models.RemediationStep(instruction="Say what it shows")],
            success_criteria=[models.SuccessCriterion(description="It has a text", automatable=True)],
            extensions=models.TaskReportExtensionsType0.from_dict({"wcag": "1.1.1"}),
        )
        for severity in models.Severity
    ]
    submission = call("runs.post_tasks", run.id, body=models.TaskBatch(tasks=reports))
    assert (submission.created, submission.tasks[0].result) == (5, models.TaskResultResult.CREATED)
    assert call("runs.post_tasks", run.id, body=reports[0]).unchanged == 1
    severe, statuses = [models.Severity.CRITICAL, models.Severity.HIGH], list(models.TaskStatus)
    wanted = {"status": statuses, "severity": severe, "run_id": [run.id, UNKNOWN_ID]}
    assert {each.name: each.value for each in models.GetTasksSort} == {
        "NEWEST_FIRST": "-createdAt",
        "OLDEST_FIRST": "createdAt",
        "SEVERITY": "severity",
    }
    heads = call("tasks.get_tasks", **wanted, sort=models.GetTasksSort.SEVERITY)
    assert [each.severity for each in heads.tasks] == severe
    whole = call("tasks.get_tasks", **wanted, view=models.GetTasksView.FULL)
    assert isinstance(whole, models.FullTaskPage)
    assert whole.tasks[0].extensions.to_dict() == {"wcag": "1.1.1"}
    triage = models.TaskUpdate(status=models.TaskStatus.DISMISSED, comment="Meant so")
    assert call("tasks.patch_task", heads.tasks[0].id, body=triage).status == models.TaskStatus.DISMISSED
    history = call("tasks.get_task_history", heads.tasks[0].id).history
    assert [(each.from_, each.to) for each in history][-1] == (models.TaskStatus.OPEN, models.TaskStatus.DISMISSED)
    end = models.RunUpdate(status=models.RunUpdateStatus.COMPLETED, resolve_missing=True)
    assert call("runs.patch_run", run.id, body=end).status == models.RunStatus.COMPLETED
    assert call("runs.get_run", run.id).summary.by_status.dismissed == 1
    listed = call("runs.get_runs", status=[models.RunStatus.COMPLETED, models.RunStatus.FAILED], project_type=["web"])
    assert [each.id for each in listed.runs] == [run.id]
    refused = call("runs.post_tasks", run.id, body=models.TaskBatch(tasks=[]))
    assert (refused.status, refused.code) == (409, "run_finished")
    assert call("tasks.get_task", UNKNOWN_ID).code == "not_found"


# ---------------------------------------------------------------------------
# Documents and metadata
# ---------------------------------------------------------------------------

# README.md and docs/ are run, each page from top to bottom in one shell and a folder of its own:
#
# - a `bash` block is run as it stands, and so is a `python` block that does not begin with the name of a file;
# - in a `console` block the lines after `$ ` are run, and print what stands below them;
# - a `json` or `text` block is what the run block above it printed: of `json` the last line, white space aside;
# - a block that begins with a comment of a path alone is put there; /etc, /opt and /var lie in the page's folder.
#
# What a page does with a database that `EXAMPLE_DATABASE` matches it does with one of its own, where there can be one.
#
# A page of docs/ that says `$url` begins where the README's first two blocks end: with a server, `api` and `url`.
# `REPRINT=1 python -m pytest -n 0 -k prints_what_it_says` writes into the pages what is printed now.

PAGES = (HERE / "README.md", *sorted((HERE / "docs").glob("*.md")))
FENCED = re.compile(r"^(```+)(\w+)\n(.*?)^\1$", re.DOTALL | re.MULTILINE)
NAMED_FILE = re.compile(r"(?:#!.*\n)?# ([\w./-]*(?:\.\w+|/Caddyfile))\n")
PRINTED = re.compile(r"^\$ ((?:.*\\\n)*.*\n)((?:(?!\$ ).*\n)*)", re.MULTILINE)
SERVES = re.compile(r"(?:findings-service serve|^(?:gunicorn|waitress-serve|uwsgi) .*)\n\Z")
VARYING = (
    (UUID7.pattern, "ID"),
    (TIME.pattern, "TIME"),
    (KEY.pattern, "KEY"),
    (r"\d{4}-\d\d-\d\d(?:T\d{6}Z)?(?=\.db|\.dump)", "DATE"),
    (r"[\d,]+ bytes(?: before, [\d,]+ now)?", "0 bytes"),
    (r"(Service|SQLite|version) \d+\.\d+\.\d+", r"\1 0.0.0"),
    (r"PostgreSQL \d+\.\d+", "PostgreSQL 0.0"),
    (r'"(ms|bytes|sqlite|version)": ?("?)[\d.]+', r'"\1":\g<2>0'),
)
# .ci/run runs the first two; the third takes minutes; and the databases that a page's reader makes are there.
NOT_RUN = ("pytest", "bench.py", "failover.py", "CREATE DATABASE")
SERVERS = ("gunicorn", "waitress-serve", "uwsgi")  # run where they are installed
EXAMPLE_DATABASE = re.compile(r"postgresql://findings@db\.example\.com/\w+")
OF_POSTGRES = re.compile(rf"{EXAMPLE_DATABASE.pattern}|\$FINDINGS_DB|^psql|^pg_", re.MULTILINE)
PUTS = "mkdir -p $(dirname "  # begins what puts a file where its block says
PROGRAMS = {  # of a virtual environment that a reader makes
    "pip": "",  # it would fetch what is installed here; another test installs the service
    "python": 'exec "$PYTHON" "$@"',
    "findings-service": 'exec "$PYTHON" -m findings_service "$@"',
}
# Functions in place of programs that a test cannot run, or must not.
STAND_INS = r"""
python3() {  # making the virtual environment takes long; another test does it
    [ "$2" = venv ] || "$PYTHON" "$@"
}
sudo() {  # what it would be needed for lies in the page's folder
    "$@"
}
halt() {
    local tries=0
    while [ -n "$server" ] && kill -0 -- -$server 2>/dev/null; do
        [ $((tries++ % 100)) -ne 0 ] || kill -- -$server 2>/dev/null  # again: uWSGI loses what comes while it starts
        sleep 0.05
    done
    server=
}
in_background() {  # a server, for which a reader opens another terminal
    halt
    : >"$said"
    eval "$1" </dev/null >"$said" 2>&1 &
    server=$!
    until { [ -s "$said" ] && (: <>/dev/tcp/127.0.0.1/$FINDINGS_PORT); } 2>/dev/null; do
        kill -0 $server 2>/dev/null || break
        sleep 0.05
    done
    sleep 0.1
    eval "$(grep 'export FINDINGS_KEY=' "$said")"  # a reader pastes it
    kill -0 $server
}
systemctl() {  # there is no systemd where tests run: this does what the unit says
    local unit=/etc/systemd/system/${!#}
    case " $* " in *" stop "* | *" restart "*) halt ;; esac
    case " $* " in *" start "* | *" restart "* | *" --now "*) start_unit "${unit%.service}.service" ;; esac
}
start_unit() {
    [ -f "$1" ] || return 0
    local settings=$(cat "$1" "$1".d/*.conf 2>/dev/null | sed -n 's/^Environment=/export /p')
    local line="$settings"$'\n'"exec $(cat "$1" "$1".d/*.conf 2>/dev/null | sed -n 's/^ExecStart=//p' | tail -n 1)"
    if grep -q ^Type=oneshot "$1"; then bash -c "$line" >>"$said" 2>&1; else in_background "$line"; fi
}
journalctl() {  # all that the server has said
    cat "$said"
}
said=$PWD/said
set -m  # a process group for each server
trap 'halt; kill $(jobs -p) 2>/dev/null' EXIT
"""
BANDIT_OF_THE_PAGES = """
import json

levels = ["HIGH"] + ["MEDIUM"] * 3 + ["LOW"] * 9
print(json.dumps({"results": [
    {"test_id": f"B{100 + n}", "filename": "./app.py", "line_number": n, "code": f"{n} call({n})",
     "issue_text": "Unsafe", "issue_severity": level, "issue_confidence": "HIGH", "issue_cwe": {}, "more_info": ""}
    for n, level in enumerate(levels, start=1)
]}))
"""


@dataclass(frozen=True)
class Step:
    """What a page tells its reader to do; `printed` is what that prints, None where the page does not say."""

    page: Path
    line: int
    command: str
    head: str = ""  # what stands before `printed`
    printed: str | None = None

    def __str__(self) -> str:
        return f"{self.page.name}:{self.line}"

    @property
    def is_json(self) -> bool:
        return self.head == "```json\n"

    @property
    def needs(self) -> str:
        """The server that it starts or uses and that is not installed here, if any."""
        if OF_POSTGRES.search(self.command) and not self.command.startswith(PUTS):
            return "" if has_postgres() else "PostgreSQL"
        program = self.command.split()[0]
        return program if program in SERVERS and not shutil.which(program, path=search_path()) else ""

    @property
    def is_run(self) -> bool:
        """Whether the shell of its page runs it."""
        return not self.needs and not any(words in self.command for words in NOT_RUN)


def search_path() -> str:
    """Return the PATH of a page's shell: what is installed beside this Python comes first."""
    return f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"


def blocks_of(page: Path) -> Iterator[tuple[int, str, str]]:
    """Give the fenced blocks of a page: line, language and text."""
    text = page.read_text("utf-8")
    for block in FENCED.finditer(text):
        yield text.count("\n", 0, block.start()) + 1, block[2], block[3]


def steps_of(page: Path) -> list[Step]:
    """Return what a page tells its reader to do, in order."""
    steps: list[Step] = []
    for line, kind, text in blocks_of(page):
        if kind in ("json", "text"):
            assert steps, f"{page.name}:{line} shows what nothing prints"
            assert steps[-1].printed is None, f"{page.name}:{line} shows what nothing prints"
            steps[-1] = replace(steps[-1], line=line, head=f"```{kind}\n", printed=text)
        elif kind == "console":
            places = ((line + 1 + text.count("\n", 0, found.start()), found) for found in PRINTED.finditer(text))
            steps += [Step(page, place, found[1], f"$ {found[1]}", found[2]) for place, found in places]
        elif named := NAMED_FILE.match(text):
            steps.append(Step(page, line, f"{PUTS}{named[1]})\ncat >{named[1]} <<'END'\n{text}END\n"))
        else:
            assert kind in ("bash", "python"), f"{page.name}:{line} is {kind} without the name of a file"
            steps.append(Step(page, line, text if kind == "bash" else f"\"$PYTHON\" - <<'END'\n{text}END\n"))
    return steps


STEPS = [step for page in PAGES for step in steps_of(page)]


def start_of(page: Path) -> list[Step]:
    """Return what a reader of a page has done before it."""
    return steps_of(PAGES[0])[:2] if page != PAGES[0] and "$url" in page.read_text("utf-8") else []


def set_scene(home: Path) -> None:
    """Put into a page's folder what its reader has: the checkout, and a virtual environment here and in /opt."""
    (home / ".venv" / "bin").mkdir(parents=True)
    for name, line in PROGRAMS.items():
        program = home / ".venv" / "bin" / name
        here = f'export PYTHON={shlex.quote(sys.executable)} PYTHONPATH="${{PYTHONPATH:-{HERE}}}"'  # a bare environment
        program.write_text(f"#!/bin/bash\n{here}\n{line}\n", "utf-8")
        program.chmod(0o755)
    (home / ".venv" / "lib" / "python3.11" / "site-packages" / "flask").mkdir(parents=True)
    for folder in ("opt/findings-service", "var/lib/private/findings-service", "stand-ins"):
        (home / folder).mkdir(parents=True)
    (home / "var" / "lib" / "findings-service").symlink_to("private/findings-service")  # as systemd's DynamicUser does
    (home / "opt" / "findings-service" / ".venv").symlink_to(home / ".venv")
    (home / "examples").symlink_to(HERE / "examples")
    (home / "stand-ins" / "bandit.py").write_text(BANDIT_OF_THE_PAGES, "utf-8")


def script_of(steps: Sequence[Step], mark: str) -> str:
    """Return what the shell of a page is given: its steps, each closed by its exit code and a mark."""
    script = STAND_INS
    for step in steps:
        command = step.command if step.is_run else ":\n"
        if SERVES.search(command):
            command = f'in_background {shlex.quote(command)} && cat "$said"\n'
        script += f"{{\n{command}}} 2>&1\nprintf '\\n%s {mark}\\n' $?\n"
    return script


def has_postgres() -> bool:
    """Tell whether there is a PostgreSQL server, or one can be started."""
    there = os.environ.get(postgres_server.GIVEN) or postgres_server.find_programs()
    return bool(there) and importlib.util.find_spec("psycopg") is not None


def play(page: Path, home: Path, databases: Mapping[str, str]) -> dict[Step, tuple[int, str]]:
    """Do what a page tells its reader to do, and return the exit code of each step and what it printed."""
    set_scene(home)
    before, steps = start_of(page), steps_of(page)
    with socket.socket() as free, socket.socket() as other:
        for each in (free, other):
            each.bind(("127.0.0.1", 0))
        port, second = (str(each.getsockname()[1]) for each in (free, other))
    script = re.sub(r"(?<![\w./}])/(?=(?:etc|opt|var)/)", f"{home}/", script_of([*before, *steps], "-- done --"))
    for example, database in databases.items():
        script = script.replace(example, database)
    script = script.replace("127.0.0.1:8000", f"127.0.0.1:{port}").replace("127.0.0.1:8001", f"127.0.0.1:{second}")
    (home / "script").write_text(script, "utf-8")
    env = {
        "FINDINGS_PORT": port,
        "PATH": search_path(),
        "PYTHON": sys.executable,
        "HOME": str(home),
    }
    if before or page == PAGES[0]:  # agents are told by this where the service is
        env["FINDINGS_URL"] = f"http://127.0.0.1:{port}"
    done = subprocess.run(
        ["bash", "script"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        cwd=home,
        env=environment(PYTHONPATH=f"{home}/stand-ins:{HERE}", **env),
        timeout=120,
        check=False,
    )
    said = done.stdout.replace(f"127.0.0.1:{port}", "127.0.0.1:8000").replace(f"127.0.0.1:{second}", "127.0.0.1:8001")
    for example, database in databases.items():
        said = said.replace(database, example)
    said = re.sub(rf"{re.escape(str(home))}/(?=(?:etc|opt|var)/)", "/", said).replace(
        str(home), "/home/you/findings-service"
    )
    parts = re.findall(r"(.*?)\n(\d+) -- done --\n", said, re.DOTALL)[len(before) :]
    assert len(parts) == len(steps), f"{said}{done.stderr}"
    return {step: (int(code), printed) for step, (printed, code) in zip(steps, parts, strict=True)}


@pytest.fixture(scope="module")
def played(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[Callable[[Path], dict[Step, tuple[int, str]]]]:
    """Do what a page says once a step of it is asked for, and what the next one says meanwhile."""

    def databases_of(page: Path) -> dict[str, str]:
        examples = {*EXAMPLE_DATABASE.findall(page.read_text("utf-8"))} if has_postgres() else set()
        return {example: request.getfixturevalue("postgres").new() for example in examples}

    with ThreadPoolExecutor(2) as pool:
        begun = cache(
            lambda page: pool.submit(play, page, tmp_path_factory.mktemp(page.stem).resolve(), databases_of(page))
        )

        def result(page: Path) -> dict[Step, tuple[int, str]]:
            doing = [begun(each) for each in PAGES[PAGES.index(page) :][:2]]
            return doing[0].result()

        yield result


def settled(step: Step, text: str) -> Any:
    """Return what a step prints without what differs each time."""
    for varying, instead in VARYING:
        text = re.sub(varying, instead, text)
    if step.is_json:
        return json.loads(text, object_pairs_hook=list)
    return [line.rstrip() for line in text.strip("\n").splitlines()]


def laid_out(value: Any) -> str:
    """Return JSON as a page shows it, in lines."""
    lines = [""]
    for piece in json.dumps(value, ensure_ascii=False, separators=(",\t", ": ")).split("\t"):
        if len(lines[-1]) + len(piece) > 115:
            lines.append("")
        lines[-1] += f" {piece}"
    return "\n".join(lines)[1:] + "\n"


def reprint(step: Step, printed: str) -> None:
    """Write into a page what a step printed now."""
    text = laid_out(json.loads(printed)) if step.is_json else printed and f"{printed.strip(chr(10))}\n"
    page = step.page.read_text("utf-8")
    assert step.head + str(step.printed) in page
    step.page.write_text(page.replace(step.head + str(step.printed), step.head + text, 1), "utf-8")


@pytest.mark.skipif(not shutil.which("curl"), reason="the pages talk to the service with curl")
@pytest.mark.parametrize("step", [step for step in STEPS if step.is_run or step.needs], ids=str)
def test_a_page_prints_what_it_says(step: Step, played: Callable[[Path], dict[Step, tuple[int, str]]]) -> None:
    if step.needs:
        pytest.skip(f"{step.needs} is not installed here")
    code, printed = played(step.page)[step]
    if step.printed is None:
        assert (code, "about:blank" in printed) == (0, False), printed
        return
    last = printed.strip("\n").rpartition("\n")[2] if step.is_json else printed
    if os.environ.get("REPRINT") and settled(step, last) != settled(step, step.printed):
        reprint(step, last)
        return
    assert settled(step, last) == settled(step, step.printed)


CHECKERS = {  # of configuration for other programs, in a folder that holds all of a page; ROOT is that folder
    "ini": "systemd-analyze verify --man=no ROOT/etc/systemd/system/*.service ROOT/etc/systemd/system/*.timer",
    "nginx": "nginx -t -p ROOT -c ROOT/whole.conf",
    "caddy": "caddy adapt --adapter caddyfile --config ROOT/etc/caddy/Caddyfile",
    "haproxy": "haproxy -c -f ROOT/etc/haproxy/haproxy.cfg",
}


@pytest.mark.parametrize("kind", CHECKERS)
def test_a_configuration_is_what_its_program_takes(kind: str, tmp_path: Path) -> None:
    program, *arguments = CHECKERS[kind].replace("ROOT", str(tmp_path)).split()
    if not shutil.which(program):
        pytest.skip(f"{program} is not installed here")
    for page in PAGES:
        for _, language, text in blocks_of(page):
            if language == kind and (named := NAMED_FILE.match(text)):
                place = tmp_path / named[1].lstrip("/")
                place.parent.mkdir(parents=True, exist_ok=True)
                place.write_text(re.sub(r"(?<==)/opt/\S+", "/bin/true", text), "utf-8")
    places = "pid nginx.pid; error_log stderr; events {} http { access_log off; server { include etc/nginx/*/*; } }"
    (tmp_path / "whole.conf").write_text(places, "utf-8")
    line = f"{program} {' '.join(arguments)}"
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 0, done.stderr
    assert kind != "ini" or not done.stderr


def page_named(name: str) -> str:
    """Return the text of a page."""
    return (HERE / name).read_text("utf-8")


def table_rows(name: str) -> list[str]:
    """Return the lines of the tables of a page."""
    return [line for line in page_named(name).splitlines() if line.startswith("|")]


@pytest.mark.parametrize(("method", "path"), [*((each.method, each.path) for each in OPERATIONS), ("GET", "/metrics")])
@pytest.mark.parametrize("page", ["README.md", "docs/api.md"])
def test_every_route_is_in_the_readme_and_the_reference(page: str, method: str, path: str) -> None:
    assert f"`{method} {path}`" in page_named(page)


def commands(group: click.Command, prefix: str = "findings-service") -> Iterator[tuple[str, click.Command]]:
    """Give every command of the command line with its name."""
    if not isinstance(group, click.Group):
        yield prefix, group
        return
    for name in group.list_commands(click.Context(group)):
        yield from commands(group.commands[name], f"{prefix} {name}")


COMMANDS = list(commands(findings_service.main))


@pytest.mark.parametrize("name", [name for name, _ in COMMANDS])
def test_every_command_is_in_the_handbook(name: str) -> None:
    assert f"| `{name.removeprefix('findings-service ')}" in "\n".join(table_rows("docs/operations.md"))


def settings_variables() -> list[str]:
    """Return the names of all environment variables that the service reads."""
    options = [option for _, each in COMMANDS for option in each.params]
    named = {str(option.envvar) for option in options if getattr(option, "envvar", None)}
    return sorted(named | {f"FINDINGS_{name.upper()}" for name in Settings.PARSERS})


@pytest.mark.parametrize("name", settings_variables())
def test_every_setting_is_in_the_handbook(name: str) -> None:
    assert any(f"`{name}`" in row for row in table_rows("docs/operations.md"))


@pytest.mark.parametrize("code", CODES)
def test_every_error_code_is_in_the_reference(code: str) -> None:
    assert any(row.startswith("| ") and f"`{code}`" in row for row in table_rows("docs/api.md"))


def fields_of_the_api() -> list[str]:
    """Return the names of all fields and parameters that the API takes or answers."""
    models = [model for model in vars(findings_service).values() if isinstance(model, type)]
    bases = (
        findings_service.Model,
        findings_service.Request,
        findings_service.Problem,
        findings_service.ProblemDetails,
    )
    fields = [each for model in models if issubclass(model, bases) for each in msgspec.structs.fields(model)]
    return sorted({each.encode_name for each in fields})


@pytest.mark.parametrize("name", fields_of_the_api())
def test_every_field_is_in_the_reference(name: str) -> None:
    assert any(f"`{name}`" in row for row in table_rows("docs/api.md"))


def test_every_promise_names_the_test_behind_it() -> None:
    named = {name for row in table_rows("docs/operations.md") for name in re.findall(r"`(test_\w+)`", row)}
    assert len(named) > 20
    tests = "".join(file.read_text("utf-8") for file in (Path(__file__), *HERE.glob("tests/test_*.py")))
    assert named <= set(re.findall(r"(?m)^def (test_\w+)", tests))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_leads_somewhere(page: Path) -> None:
    for link in re.findall(r"\]\((?!https?:)([^)]+)\)", page.read_text("utf-8")):
        path, _, anchor = link.partition("#")
        target = page if not path else (page.parent / path).resolve()
        assert target.exists(), link
        titles = re.findall(r"(?m)^#+ (.+)$", target.read_text("utf-8")) if anchor else []
        assert not anchor or anchor in [re.sub(r"[^\w -]", "", title).lower().replace(" ", "-") for title in titles]


def test_every_setting_says_what_it_is_and_can_be_read() -> None:
    assert list(Settings.PARSERS) == list(Settings.__struct_fields__)
    assert all(meaning.endswith(".") for meaning in Settings.descriptions().values())


def test_the_limits_of_the_contract_can_be_set() -> None:
    limits = {f"FINDINGS_{name}" for name in ("MAX_BODY", "MAX_BATCH", "BUSY_TIMEOUT", "RUN_TIMEOUT", "SCHEMA_TIMEOUT")}
    around = {"FINDINGS_DB", "FINDINGS_HOST", "FINDINGS_PORT", "FINDINGS_WORKERS", "FINDINGS_API_KEY"}
    assert limits | around <= set(settings_variables())


def test_the_script_metadata_equals_the_projects() -> None:
    block = re.search(r"(?m)^# /// script$\s(?P<content>(^#(| .*)$\s)+)^# ///$", MODULE.read_text("utf-8"))
    assert block
    script = tomllib.loads("".join(line[2:] for line in block["content"].splitlines(keepends=True)))
    assert script["requires-python"] == PROJECT["requires-python"]
    assert sorted(script["dependencies"]) == sorted(PROJECT["dependencies"])


# ---------------------------------------------------------------------------
# Embedding
# ---------------------------------------------------------------------------


class HostJSON(flask.json.provider.DefaultJSONProvider):
    """What a host application might use for its own answers."""

    mimetype = "application/vnd.host+json"


@pytest.fixture
def host(tmp_path: Path) -> Iterator[flask.Flask]:
    """An application with pages of its own, and the service under /findings."""
    app = flask.Flask("host")
    app.json = HostJSON(app)
    app.config.update(MAX_CONTENT_LENGTH=123_456_789, HOST_SETTING="host")
    for status in (404, 405, 500):
        app.register_error_handler(status, lambda _, status=status: (f"host's {status}", status))
    app.add_url_rule("/page", "page", lambda: {"host": True}, methods=["GET"])
    app.add_url_rule("/broken", "broken", lambda: 1 // 0)
    blueprint = create_blueprint(Settings(db=db_at(tmp_path / "embedded.db")))
    app.register_blueprint(blueprint, url_prefix="/findings")
    app.extensions["findings"] = blueprint.service
    yield app
    blueprint.service.database.close()


@pytest.fixture
def guest(host: flask.Flask) -> FlaskClient:
    """A client of the host application, with a full key of the service."""
    client = host.test_client()
    client.environ_base["HTTP_AUTHORIZATION"] = f"Bearer {make_key(host)}"
    return client


def test_an_embedding_application_keeps_its_own_pages(host: flask.Flask, guest: FlaskClient) -> None:
    host.config["PROPAGATE_EXCEPTIONS"] = False
    answers = [guest.get("/nothing"), guest.post("/page"), guest.get("/broken")]
    assert [(each.status_code, each.text) for each in answers] == [
        (404, "host's 404"),
        (405, "host's 405"),
        (500, "host's 500"),
    ]
    assert guest.get("/page").content_type == "application/vnd.host+json"


def test_an_embedding_application_keeps_its_configuration(tmp_path: Path) -> None:
    app = flask.Flask("host")
    provider = app.json = HostJSON(app)
    before, handlers = dict(app.config), str(app.error_handler_spec[None])
    blueprint = create_blueprint(Settings(db=db_at(tmp_path / "embedded.db")))
    app.register_blueprint(blueprint, url_prefix="/findings")
    blueprint.service.database.close()
    assert (dict(app.config), str(app.error_handler_spec[None])) == (before, handlers)
    assert app.json is provider


def test_the_errors_of_an_embedded_service_are_its_own(guest: FlaskClient, monkeypatch: pytest.MonkeyPatch) -> None:
    assert_problem(guest.get("/findings/api/v1/nothing"), 404, "not_found")
    assert_problem(guest.delete("/findings/api/v1/tasks"), 405, "method_not_allowed")
    assert_problem(guest.get("/findings/api/v1/tasks/x"), 404, "not_found")
    assert_problem(
        guest.post("/findings/api/v1/runs", data="x", content_type="application/json"), 400, "malformed_json"
    )
    assert_problem(guest.get("/findings/api/v1/tasks", headers={"Authorization": ""}), 401, "unauthorized")
    monkeypatch.setattr(findings_service, "select_project_types", lambda *_: 1 // 0)
    assert_problem(guest.get("/findings/api/v1/project-types"), 500, "internal_error")


def fill(client: FlaskClient, prefix: str) -> Any:
    """Start a run with three tasks, and return the answers to its type and start."""
    made = client.post(f"{prefix}/project-types", json={"name": "web"})
    started = client.post(f"{prefix}/runs", json={"projectType": "web"})
    client.post(f"{prefix}/runs/{started.json['id']}/tasks", json={"tasks": [task()] * 3})
    return made, started


LINKS = cases(
    alone=("", "", "", ""),
    blueprint=("", "/inner", "", "/inner"),
    mounted=("", "", "/tools", "/tools"),
    both=("", "/inner", "/tools", "/tools/inner"),
    base_url=("https://tools.example/x", "", "", "/x"),
    base_url_with_a_slash=("http://tools.example:8080/x/", "", "", "/x"),
    base_url_of_a_blueprint=("https://tools.example", "/inner", "/tools", ""),
)


@pytest.mark.parametrize(("base_url", "prefix", "mount", "start"), LINKS)
def test_links_begin_with_the_base_url_or_where_the_service_is_mounted(
    tmp_path: Path, base_url: str, prefix: str, mount: str, start: str
) -> None:
    app = flask.Flask("host")
    blueprint = create_blueprint(Settings.read(db=db_at(tmp_path / "x.db"), base_url=base_url or None))
    app.register_blueprint(blueprint, url_prefix=prefix or None)
    app.extensions["findings"] = blueprint.service
    within = app.wsgi_app
    app.wsgi_app = lambda environ, start: within(environ | {"SCRIPT_NAME": mount}, start)
    guest = app.test_client()
    guest.environ_base["HTTP_AUTHORIZATION"] = f"Bearer {make_key(app)}"
    made, started = fill(guest, f"{prefix}{API}")
    assert made.headers["Location"] == f"{start}{API}/project-types/web"
    assert started.headers["Location"] == f"{start}{API}/runs/{started.json['id']}"
    link = guest.get(f"{prefix}{API}/tasks?limit=2").json["next"]
    assert link.startswith(f"{start}{API}/tasks?")
    assert len(guest.get(f"{prefix}{link.removeprefix(start)}").json["tasks"]) == 1
    if base_url:
        assert guest.get(f"{prefix}{API}/openapi.json").json["servers"] == [{"url": base_url.rstrip("/")}]
    blueprint.service.database.close()


def test_an_embedded_service_is_healthy_and_describes_itself(guest: FlaskClient) -> None:
    assert guest.get("/findings/healthz").json["status"] == "ok"
    assert guest.get("/findings/api/v1/openapi.json").json["openapi"].startswith("3.1")


def test_two_services_in_one_application_do_not_meet(tmp_path: Path) -> None:
    app = flask.Flask("host")
    blueprints = {name: create_blueprint(Settings(db=db_at(tmp_path / f"{name}.db")), name) for name in ("one", "two")}
    for name, blueprint in blueprints.items():
        app.register_blueprint(blueprint, url_prefix=f"/{name}")
    clients = {}
    for name, blueprint in blueprints.items():
        app.extensions["findings"] = blueprint.service
        clients[name] = app.test_client()
        clients[name].environ_base["HTTP_AUTHORIZATION"] = f"Bearer {make_key(app)}"
    fill(clients["one"], "/one/api/v1")
    assert clients["one"].get("/one/api/v1/tasks").json["total"] == 3
    assert clients["two"].get("/two/api/v1/tasks").json["total"] == 0
    assert_problem(clients["one"].get("/two/api/v1/tasks"), 401, "unauthorized")
    for blueprint in blueprints.values():
        blueprint.service.database.close()


def test_settings_are_given_whole_or_by_name(tmp_path: Path) -> None:
    with pytest.raises(findings_service.ConfigurationError, match="not both: max_body"):
        create_app(Settings(db=db_at(tmp_path / "x.db")), max_body="1")


def test_an_application_that_nobody_closed_ends_in_silence_with_its_interpreter(tmp_path: Path) -> None:
    program = (
        "import sys; from findings_service import create_app; app = create_app(db=sys.argv[1]);"
        "assert [app.test_client().get(path).status_code for path in ('/healthz', '/api/v1/tasks')] == [200, 401];"
        "app.extensions['findings'].database.reading().__enter__()"
    )
    line = [sys.executable, "-c", program, db_at(tmp_path / "x.db")]
    done = subprocess.run(line, cwd=HERE, env=environment(), capture_output=True, text=True, timeout=30, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert not (tmp_path / "x.db-wal").exists()


def test_a_key_that_is_not_given_is_no_key(tmp_path: Path) -> None:
    app = create_app(db=db_at(tmp_path / "x.db"), api_key=None)
    assert app.test_client().get(f"{API}/tasks", headers={"Authorization": "Bearer None"}).status_code == 401
    database_of(app).close()


FORKING = """
import os, subprocess, sys
from findings_service import create_app

def register(name):
    headers = {"Authorization": "Bearer a-key-of-the-environment"}
    return app.test_client().post("/api/v1/project-types", json={"name": name}, headers=headers).status_code

app = create_app(db=sys.argv[1], api_key="a-key-of-the-environment")
if os.fork() == 0:
    first = register("web")
    subprocess.run([sys.executable, "findings_service.py", "check", "--db", sys.argv[1]], check=True)
    os._exit(0 if (first, register("later")) == (201, 201) else 1)
sys.exit(os.waitstatus_to_exitcode(os.wait()[1]))
"""


def test_what_a_forked_worker_acknowledged_is_there(tmp_path: Path) -> None:
    line = [sys.executable, "-c", FORKING, db_at(tmp_path / "x.db")]
    done = subprocess.run(line, cwd=HERE, env=environment(), capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 0, done.stderr
    with look_into(tmp_path / "x.db") as connection:
        names = connection.execute("SELECT name FROM project_types ORDER BY name").fetchall()
    assert names == [("later",), ("web",)]


FORKING_WITH_ALL_OPEN = """
import os, signal, sys, threading
from findings_service import create_app

def register(name):
    headers = {"Authorization": "Bearer a-key-of-the-environment"}
    answers = [app.test_client().get("/api/v1/project-types", headers=headers),
        app.test_client().post("/api/v1/project-types", json={"name": name}, headers=headers)]
    return [answer.status_code for answer in answers]

def write():
    with database.transaction():
        writing.set()
        done.wait()

app = create_app(db=sys.argv[1], api_key="a-key-of-the-environment")
assert register("before") == [200, 201]
database, writing, done = app.extensions["findings"].database, threading.Event(), threading.Event()
threading.Thread(target=write).start()
writing.wait()
if os.fork() == 0:
    signal.alarm(5)
    refused = register("child")
    database.close()
    os._exit(0 if refused == [503] * 2 else 1)
assert os.wait()[1] == 0
done.set()
assert register("parent") == [200, 201]
"""


@pytest.mark.sqlite
def test_a_fork_with_a_database_open_hangs_nobody_and_costs_the_parent_nothing(tmp_path: Path) -> None:
    line = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", FORKING_WITH_ALL_OPEN, db_at(tmp_path / "x.db")]
    done = subprocess.run(line, cwd=HERE, env=environment(), capture_output=True, text=True, timeout=10, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert faults_of(tmp_path / "x.db") == []


@pytest.mark.parametrize("reading", ["get_data", "get_json"])
def test_a_host_may_read_the_body_before_us(host: flask.Flask, guest: FlaskClient, reading: str) -> None:
    host.before_request(lambda: getattr(flask.request, reading)() and None)
    assert guest.post("/findings/api/v1/project-types", json={"name": "web"}).status_code == 201


class HostError(Exception):
    """What a host application raises."""


@pytest.mark.parametrize(
    ("raised", "status"), cases(error=(HostError(), 418), abort=(403, 403), not_found=(404, 404), too_large=(413, 413))
)
def test_what_a_host_raises_on_our_routes_goes_to_its_own_handlers(
    host: flask.Flask, guest: FlaskClient, raised: Any, status: int
) -> None:
    def refuse() -> None:
        if isinstance(raised, Exception):
            raise raised
        flask.abort(raised)

    host.before_request(refuse)
    for kind in (403, 413, HostError):
        host.register_error_handler(kind, lambda _: ("host's own", status))
    answer = guest.get("/findings/api/v1/tasks")
    assert answer.status_code == status
    assert answer.text.startswith("host's ")


def test_a_host_may_change_the_body_of_an_answer(host: flask.Flask, guest: FlaskClient) -> None:
    def compress(response: flask.Response) -> flask.Response:
        response.set_data(gzip.compress(response.get_data()))
        response.headers["Content-Encoding"] = "gzip"
        return response

    host.after_request(compress)
    answer = guest.get("/findings/api/v1/openapi.json")
    assert int(answer.headers["Content-Length"]) == len(answer.data)
    assert json.loads(gzip.decompress(answer.data))["openapi"].startswith("3.1")


# ---------------------------------------------------------------------------
# Command line and server
# ---------------------------------------------------------------------------


def test_the_first_start_prints_a_key_once_with_a_request_to_try(serve: Callable[..., Server]) -> None:
    first = serve()
    assert KEY.findall(first.said) == [first.key]
    assert re.search(rf"curl .*http://127\.0\.0\.1:{first.port}{API}/", first.said)
    assert first.request("PUT", f"{API}/project-types/x", {}).status_code == 404
    assert first.stop() == 0
    second = serve(until=r"http://127\.0\.0\.1:\d+")
    assert not KEY.search(second.said)
    assert second.request("GET", f"{API}/tasks", key=first.key).status_code == 200


@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_start_that_fails_makes_no_key(serve: Callable[..., Server], tmp_path: Path, workers: str) -> None:
    blind = "findings_service.free_port = lambda host, port: port"  # another program is faster
    program = (sys.executable, "-c", f"{IMPORTING}; {blind}; findings_service.main()")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        line = ("serve", "--port", str(listener.getsockname()[1]), "--workers", workers)
        done = command(*line, "--db", str(tmp_path / "served.db"), program=program)
    assert (done.returncode, KEY.search(done.stderr)) == (1, None)
    assert serve().request("GET", f"{API}/tasks").status_code == 200


def is_listening(port: int) -> bool:
    with socket.socket() as probe:
        return not probe.connect_ex(("127.0.0.1", port))


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="the system does not tell what is open")
def test_nothing_takes_the_number_of_a_closed_standard_stream() -> None:
    look = "print(*(os.readlink(f'/proc/self/fd/{number}') for number in (0, 2)))"
    program = f"{IMPORTING}, click, os; look = click.Command('look', callback=lambda: {look})"
    program += "; findings_service.main.add_command(look); findings_service.main(['look'])"
    line = ["bash", "-c", 'exec "$@" <&- 2>&-', "bash", sys.executable, "-c", program]
    done = subprocess.run(line, cwd=HERE, env=environment(), stdout=subprocess.PIPE, text=True, check=False, timeout=30)
    assert done.stdout == "/dev/null /dev/null\n"


@pytest.mark.parametrize("errors", ["2>&-", "2>/dev/full"])
def test_a_start_makes_no_key_that_nobody_sees(serve: Callable[..., Server], tmp_path: Path, errors: str) -> None:
    db, port = str(tmp_path / "served.db"), findings_service.free_port("127.0.0.1", 0)
    line = ["bash", "-c", f'exec "$@" {errors}', "bash", *PROGRAM, "serve", "--port", str(port), "--db", db]
    with subprocess.Popen(line, cwd=HERE, env=environment()) as blind:
        try:
            deadline = time.monotonic() + 30
            while not is_listening(port):
                assert time.monotonic() < deadline
                time.sleep(0.05)
            time.sleep(0.5)  # in which it says that it answers
            assert "first" not in invoke("keys", "list", "--db", db).stdout
        finally:
            blind.terminate()
    assert blind.returncode == 0
    assert KEY.search(serve().said)


def test_keys_create_prints_the_key_alone_on_stdout(tmp_path: Path) -> None:
    done = command("keys", "create", "ci", "--new", "--expires", "90d", FINDINGS_DB=str(tmp_path / "x.db"))
    assert done.returncode == 0
    assert re.fullmatch(KEY.pattern + "\n", done.stdout)
    for told in ("Client 'default' is new", "level agent", db_at(tmp_path / "x.db")):
        assert told in done.stderr
    assert not KEY.search(done.stderr)


UNHEARD = cases(
    a_list_on_a_full_disk=("keys list >/dev/full", 1),
    a_list_that_nobody_reads=("keys list >&3", 0),
    errors_on_a_full_disk=("check 2>/dev/full", 0),
    errors_that_nobody_reads=("keys revoke nobody 2>&3", 1),
    usage=("keys none 2>/dev/full", 2),
    help=("--help >/dev/full", 1),
    a_new_key=("keys create lost >/dev/full", 1),
    a_new_key_on_a_closed_output=("keys create lost >&-", 1),
    a_backup_without_errors=("backup $FINDINGS_DB.copy 2>&-", 1 if ON_POSTGRES else 0),
    a_dry_run_that_nobody_reads=("prune --finished-before 1d --dry-run >&3", 0),
)


@pytest.mark.parametrize(("words", "code"), UNHEARD)
def test_where_nobody_listens_a_command_keeps_its_exit_code(
    app: flask.Flask, tmp_path: Path, words: str, code: int
) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    env = environment(PYTHONUNBUFFERED="", FINDINGS_DB=db_at(tmp_path / "findings.db"))  # what is left is written last
    line = ["bash", "-c", f'exec 3>&{writer}; exec "$@" {words}', "bash", *PROGRAM]
    done = subprocess.run(line, cwd=HERE, capture_output=True, text=True, env=env, pass_fds=[writer], check=False)
    os.close(writer)
    assert (done.returncode, "Traceback" in done.stderr) == (code, False), done.stderr
    assert "lost" not in invoke("keys", "list", "--db", str(tmp_path / "findings.db")).stdout


def test_keys_create_makes_no_database_unless_told_to(tmp_path: Path) -> None:
    done = invoke("keys", "create", "ci", "--db", str(tmp_path / "x.db"))
    assert (done.exit_code, done.stdout, len(done.stderr.splitlines())) == (1, "", 1)
    assert "--new" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_the_name_of_a_live_key_is_unique_in_its_client(app: flask.Flask, tmp_path: Path) -> None:
    def create(*options: str) -> int:
        return invoke("keys", "create", "ci", *options, "--db", str(tmp_path / "findings.db")).exit_code

    assert [create(), create(), create("--client", "other")] == [0, 1, 0]
    assert invoke("keys", "revoke", "ci", "--db", str(tmp_path / "findings.db")).exit_code == 0
    assert [create("--expires", "0.01s"), time.sleep(0.02), create()] == [0, None, 0]


def test_a_key_is_revoked_by_its_name_or_id(app: flask.Flask, tmp_path: Path) -> None:
    db = ("--db", str(tmp_path / "findings.db"))
    for client in ("default", "other"):
        invoke("keys", "create", "ci", "--client", client, *db)
    assert invoke("keys", "revoke", "ci", "--client", "other", *db).exit_code == 0
    listed = invoke("keys", "list", *db).stdout.splitlines()
    assert [line.split()[1] for line in listed if line.endswith("-")] == ["default"]
    key_id = next(line.split()[0] for line in listed if line.endswith("-"))
    assert invoke("keys", "revoke", key_id, "--client", "other", *db).exit_code == 0
    for name in ("ci", key_id, "nope"):
        done = invoke("keys", "revoke", name, *db)
        assert (done.exit_code, len(done.stderr.splitlines())) == (1, 1)
        assert f"no live key {name!r}" in done.stderr


def test_a_name_that_two_keys_have_is_not_revoked(app: flask.Flask, tmp_path: Path) -> None:
    for _ in range(2):
        make_key(app, "twin")
    done = invoke("keys", "revoke", "twin", "--db", str(tmp_path / "findings.db"))
    assert (done.exit_code, "2 live keys 'twin'" in done.stderr) == (1, True)


def test_keys_work_and_are_revoked_beside_a_running_server(server: Server) -> None:
    db = ("--db", str(server.db))
    key = command("keys", "create", "ci", "--client", "other", "--level", "read", *db).stdout.strip()
    assert server.request("GET", f"{API}/tasks", key=key).json["total"] == 0
    assert_problem(server.request("POST", f"{API}/runs", {}, key=key), 403, "forbidden")
    listed = command("keys", "list", *db).stdout
    assert key not in listed
    line = next(line for line in listed.splitlines() if " ci " in line)
    assert "other" in line
    assert "read" in line
    assert command("keys", "revoke", line.split()[0], *db).returncode == 0
    assert_problem(server.request("GET", f"{API}/tasks", key=key), 401, "unauthorized")
    assert server.request("GET", f"{API}/tasks").status_code == 200


BAD_COMMANDS = cases(
    surrogate=(("keys", "create", "\udcff", "--new"), 2),
    surrogate_client=(("keys", "create", "x", "--client", "\udcff", "--new"), 2),
    surrogate_revoked=(("keys", "revoke", "\udcff"), 2),
    unprintable=(("keys", "create", "a\u202eb", "--new"), 2),
    level=(("keys", "create", "x", "--level", "root"), 2),
    duration=(("keys", "create", "x", "--expires", "soon"), 2),
    expired=(("keys", "create", "x", "--expires", "0"), 2),
    expired_long_ago=(("keys", "create", "x", "--expires", "-90d"), 2),
    unknown_key=(("keys", "revoke", "nope"), 1),
    port=(("serve", "--port", "99999"), 2),
    unknown_command=(("sing",), 2),
)


@pytest.mark.parametrize(("arguments", "code"), BAD_COMMANDS)
def test_a_bad_command_says_so_and_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], code: int
) -> None:
    monkeypatch.setenv("FINDINGS_DB", db_at(tmp_path / "x.db"))
    done = invoke(*arguments)
    assert (done.exit_code, done.stdout, "Error" in done.stderr) == (code, "", True)


BAD_VARIABLES = cases(
    port=("FINDINGS_PORT", "web"),
    port_too_high=("FINDINGS_PORT", "99999"),
    host=("FINDINGS_HOST", "no such host"),
    workers=("FINDINGS_WORKERS", "0"),
    db=("FINDINGS_DB", ":memory:"),
    key=("FINDINGS_API_KEY", "guessable"),
    keep=("FINDINGS_KEEP", "59m"),
    synchronous=("FINDINGS_SYNCHRONOUS", "OFF"),
)


@pytest.mark.parametrize(("variable", "text"), BAD_VARIABLES)
def test_a_bad_variable_is_called_by_its_name(tmp_path: Path, variable: str, text: str) -> None:
    env = {"FINDINGS_DB": db_at(tmp_path / "x.db"), "FINDINGS_PORT": "0", variable: text}
    done = command("serve", **env)
    assert (done.returncode, "Traceback" in done.stderr) in ((1, False), (2, False))
    assert variable in done.stderr.splitlines()[-1]


def test_help_names_every_variable_and_cuts_nothing_off() -> None:
    told = " ".join(invoke("serve", "--help").stdout.split())
    for variable, meaning in Settings.descriptions().items():
        assert variable in told
        assert meaning in told
    told += invoke("scan", "--help").stdout
    for variable in settings_variables():
        assert variable in told
    for name, each in COMMANDS:
        words = name.split()[1:]
        assert ("--from" if name.endswith(" copy") else "FINDINGS_DB") in invoke(*words, "--help").stdout
        listed = " ".join(invoke(*words[:-1], "--help").stdout.split())
        assert " ".join(each.help.split()).partition(".")[0] in listed


@pytest.mark.sqlite
def test_the_database_is_its_owners_alone(server: Server) -> None:
    server.start_run()
    files = [server.db.with_name(f"served.db{suffix}") for suffix in ("", "-wal", "-shm")]
    assert [stat.S_IMODE(path.stat().st_mode) for path in files] == [0o600] * 3


def test_a_port_in_use_is_one_line_and_exit_code_1(server: Server, tmp_path: Path) -> None:
    done = command("serve", "--port", str(server.port), "--db", str(tmp_path / "other.db"))
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1
    assert str(server.port) in done.stderr
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        assert command("serve", "--port", str(port), "--db", str(tmp_path / "other.db")).returncode == 1


def test_options_come_from_the_environment_too(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    line = [sys.executable, str(MODULE), "serve"]
    env = {"FINDINGS_HOST": "127.0.0.1", "FINDINGS_PORT": str(port), "FINDINGS_DB": db_at(tmp_path / "e.db")}
    server = start_process(line, tmp_path / "e.db", "curl", cwd=tmp_path, **env)
    try:
        assert server.port == port
        assert server.request("GET", f"{API}/runs").status_code == 200
    finally:
        server.stop()


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT])
def test_a_stop_finishes_the_request_under_way(server: Server, how: signal.Signals) -> None:
    run = server.start_run(in_a({"pattern": "^(a|aa)+$"}))
    with ThreadPoolExecutor(1) as pool:
        body = task(extensions=ENDLESS)
        under_way = pool.submit(server.request, "POST", f"{API}/runs/{run}/tasks", body)
        time.sleep(0.15)
        assert not under_way.done()
        assert server.stop(how) == 0
        assert_problem(under_way.result(5), 422, "extension_check_timeout")


def test_a_stop_waits_for_a_body_that_is_still_coming(server: Server) -> None:
    run, body = server.start_run(), json.dumps(task()).encode()
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as connection:
        connection.sendall(server.head_of(f"{API}/runs/{run}/tasks", len(body)) + body[:10])
        time.sleep(0.1)
        server.process.send_signal(signal.SIGTERM)
        time.sleep(0.2)
        connection.sendall(body[10:])
        assert b"201 Created" in connection.recv(65536)
    assert server.stop() == 0


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT])
def test_a_stop_is_told_again_and_again(server: Server, how: signal.Signals) -> None:
    server.start_run()
    deadline = time.monotonic() + 15
    while server.process.poll() is None and time.monotonic() < deadline:
        for _ in range(200):
            with suppress(ProcessLookupError):
                os.kill(server.process.pid, how)
    assert server.process.returncode == 0


def raise_file_limit(wanted: int) -> int:
    """Let this process have so many files open, or as many as the system lets it, and return how many."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    allowed = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, allowed), hard))
    return allowed


async def converse(port: int, requests: Iterator[bytes], answers: list[bytes], halves: list[bytes]) -> None:
    """Send requests over one connection until the server closes it, and note the bodies of its answers."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    with suppress(ConnectionError):
        try:
            for request in requests:
                writer.write(request)
                head = await reader.readuntil(b"\r\n\r\n")
                assert head.startswith(b"HTTP/1.1 20")
                head += await reader.readexactly(length := int(head.lower().split(b"content-length: ")[1].split()[0]))
                answers.append(head[-length:])
        except asyncio.IncompleteReadError as error:
            halves += [error.partial] if error.partial else []
    writer.close()


@pytest.mark.parametrize(
    ("query", "accept"), cases(page=("limit=200&view=full", "application/json"), stream=("", "application/sarif+json"))
)
def test_an_answer_that_nobody_takes_does_not_keep_a_server_from_stopping(
    tmp_path: Path, query: str, accept: str
) -> None:
    hurried = "from findings_adapters.serving import processes; processes.LEAVING = 0.5; processes.heart.main()"
    line = [sys.executable, "-c", hurried, "serve", "--port", "0", "--db", str(tmp_path / "x.db")]
    server = start_process(line, tmp_path / "x.db", r"curl .*\n")
    path, bulky = f"{API}/runs/{server.start_run()}/tasks", task(description="x" * 60_000)
    assert server.request("POST", path, {"tasks": [bulky] * 150}).status_code == 201
    with socket.create_connection(("127.0.0.1", server.port)) as stalled:
        stalled.sendall(raw_request(server, "GET", f"{API}/tasks?{query}", b"", f"Accept: {accept}"))
        assert stalled.recv(100).startswith(b"HTTP/1.1 200 ")
        assert server.stop() == 0
        with suppress(ConnectionResetError):
            taken = b"".join(iter(partial(stalled.recv, 1 << 20), b""))
            assert not taken.endswith((b"}", b"0\r\n\r\n"))


# asyncio's own event loop: a signal's byte finds no room in its pipe when that is full of wake-ups.
WITHOUT_UVLOOP = f"{IMPORTING}, sys; sys.modules['uvloop'] = None; findings_service.main()"


@pytest.mark.parametrize("how", cases(term=signal.SIGTERM, int=signal.SIGINT, term_again=signal.SIGTERM))
def test_a_stop_at_a_thousand_busy_connections_ends_and_loses_nothing(tmp_path: Path, how: signal.Signals) -> None:
    line = [sys.executable, "-c", WITHOUT_UVLOOP, "serve", "--port", "0", "--db", str(tmp_path / "busy.db")]
    server = start_process(line, tmp_path / "busy.db", r"curl .*\n")
    path, body = f"{API}/runs/{server.start_run()}/tasks", json.dumps(task()).encode()
    read, write = raw_request(server, "GET", f"{API}/runs"), raw_request(server, "POST", path, body)
    requests = [each.replace(b"Connection: close\r\n", b"") for each in (write, *[read] * 9)]
    answers, halves, count = list[bytes](), list[bytes](), raise_file_limit(1200) - 200

    async def stop() -> None:
        for _ in range(200):  # until it is busy, on a slow machine too
            await asyncio.sleep(0.05)
            if sum(each.startswith(b'{"created":') for each in list(answers)) > 10:
                break
        await asyncio.sleep(0.3)
        server.process.send_signal(how)

    async def stop_while_busy() -> None:
        loop = asyncio.get_running_loop()
        talks = [converse(server.port, itertools.cycle(requests[n % 10 :]), answers, halves) for n in range(count)]
        await asyncio.gather(*talks, stop(), loop.run_in_executor(None, partial(server.process.wait, 30)))

    try:
        asyncio.run(stop_while_busy())
    finally:
        server.stop(signal.SIGKILL)
    assert (server.process.returncode, halves) == (0, [])
    stored = [item["id"] for each in answers if each.startswith(b'{"created":') for item in json.loads(each)["tasks"]]
    with look_into(server.db) as connection:
        assert set(stored) <= {task_id for (task_id,) in connection.execute("SELECT id FROM tasks")}
    assert len(stored) > 10


def test_a_restart_keeps_everything(serve: Callable[..., Server]) -> None:
    server = serve()
    run, key = server.start_run(), server.key
    submitted = server.request("POST", f"{API}/runs/{run}/tasks", {"tasks": [task(externalId="a"), task()]}).json
    paths = [f"{API}/runs/{run}", f"{API}/tasks?view=full", f"{API}/tasks/{submitted['tasks'][0]['id']}/history"]
    before = [server.request("GET", path).json for path in [*paths, f"{API}/project-types/web"]]
    began = time.monotonic()
    assert server.stop() == 0
    assert time.monotonic() - began < 2
    again = serve(until=r"http://127\.0\.0\.1:\d+")
    assert [again.request("GET", path, key=key).json for path in [*paths, f"{API}/project-types/web"]] == before


def test_many_writers_are_all_answered_right(server: Server) -> None:
    run = server.start_run(WCAG_SCHEMA)

    def write(number: int) -> list[tuple[Any, ...]]:
        answers = []
        for turn in range(12):
            name = f"{number}-{turn}"
            body = task(externalId=name, extensions={"wcag": "1.1.1" if turn % 4 else "bad"})
            answer = server.request("POST", f"{API}/runs/{run}/tasks", body)
            names = [item["externalId"] for item in answer.json.get("tasks", ())]
            answers.append((turn, answer.status_code, names == [name]))
        return answers

    with ThreadPoolExecutor(16) as pool:
        answers = [answer for part in pool.map(write, range(16)) for answer in part]
    assert all((status, right) == ((201, True) if turn % 4 else (422, False)) for turn, status, right in answers)
    summary = server.request("GET", f"{API}/runs/{run}").json
    assert summary["summary"]["total"] == summary["submitted"]["created"] == 16 * 9
    assert server.request("GET", f"{API}/tasks?limit=1").json["total"] == 16 * 9


def test_a_hostile_check_holds_nobody_else_up(serve: Callable[..., Server]) -> None:
    server = serve(FINDINGS_SCHEMA_TIMEOUT="12s")  # a second and a half for one task
    run = server.start_run(in_a({"pattern": "^(a|aa)+$"}))
    with ThreadPoolExecutor(1) as pool:
        hostile = pool.submit(server.request, "POST", f"{API}/runs/{run}/tasks", task(extensions=ENDLESS))
        waits = []
        while not hostile.done():
            began = time.monotonic()
            assert server.request("GET", "/healthz").status_code == 200
            waits.append(time.monotonic() - began)
    assert_problem(hostile.result(), 422, "extension_check_timeout", "/extensions")
    assert max(waits) < 0.7


def test_a_server_waits_for_the_lock_and_then_is_busy(serve: Callable[..., Server]) -> None:
    server = serve(FINDINGS_BUSY_TIMEOUT="0.5")
    server.start_run()
    with ThreadPoolExecutor(3) as pool:
        with locked(server.db):
            waiting = [pool.submit(server.request, "POST", f"{API}/runs", {"projectType": "web"}) for _ in range(2)]
            time.sleep(0.2)
            assert server.request("GET", f"{API}/runs").json["total"] == 1
            assert not any(each.done() for each in waiting)
        assert [each.result(5).status_code for each in waiting] == [201, 201]
        with locked(server.db):
            answer = pool.submit(server.request, "POST", f"{API}/runs", {"projectType": "web"}).result(5)
    assert_problem(answer, 503, "busy")
    assert server.request("GET", f"{API}/runs").json["total"] == 3


def test_a_slow_body_holds_nobody_up(server: Server) -> None:
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as connection:
        connection.sendall(server.head_of(f"{API}/runs", 100) + b"{")
        began = time.monotonic()
        assert server.request("GET", f"{API}/runs").status_code == 200
        assert time.monotonic() - began < 1


def test_a_server_refuses_a_body_that_ends_early(server: Server) -> None:
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as connection:
        connection.sendall(server.head_of(f"{API}/project-types", 100) + b'{"name": "web"}')
        connection.shutdown(socket.SHUT_WR)
        answer = connection.recv(65536)
    assert b"400 Bad Request" in answer
    assert b"malformed_json" in answer
    assert server.request("GET", f"{API}/project-types").json == {"projectTypes": []}


def test_a_server_takes_chunked_bodies_up_to_the_limit(serve: Callable[..., Server]) -> None:
    server = serve(FINDINGS_MAX_BODY="1000")
    run, chunked = server.start_run(), {"Transfer-Encoding": "chunked"}
    whole = json.dumps(task()).encode()
    answer = server.request("POST", f"{API}/runs/{run}/tasks", iter([whole[:20], whole[20:]]), **chunked)
    assert answer.status_code == 201
    large = json.dumps(task(description="x" * 1000)).encode()
    answer = server.request("POST", f"{API}/runs/{run}/tasks", iter([large[:600], large[600:]]), **chunked)
    assert_problem(answer, 413, "body_too_large")
    assert_problem(server.request("POST", f"{API}/runs/{run}/tasks", large), 413, "body_too_large")


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="only Linux tells the memory of a process")
@pytest.mark.parametrize("known", [False, True], ids=["without_a_key", "with_a_key"])
def test_bodies_on_their_way_take_bounded_memory(server: Server, known: bool) -> None:
    run, key = server.start_run(), server.key if known else "fts_no"
    head = server.head_of(f"{API}/runs/{run}/tasks", 16 * KIB * KIB).replace(server.key.encode(), key.encode())
    before, peak = memory_of(server), 0.0
    with ExitStack() as opened:
        connections = [
            opened.enter_context(socket.create_connection(("127.0.0.1", server.port), 10)) for _ in range(40)
        ]
        for connection in connections:
            connection.setblocking(False)
            with suppress(OSError):  # a server that has refused it may have closed it
                connection.send(head)
        for turn in range(60):
            for connection in connections:
                with suppress(OSError):
                    connection.send(b" " * 512 * KIB)
            peak = max(peak, memory_of(server))
            if turn % 20 == 0:
                assert server.request("GET", f"{API}/runs").status_code == 200
    assert peak - before < 160
    assert server.request("POST", f"{API}/runs", {"projectType": "web"}).status_code == 201


def test_large_bodies_that_come_slowly_hold_up_no_other_client_and_no_smaller_body(
    besieged: Server, hostile_key: str
) -> None:
    other = command("keys", "create", "other", "--client", "hostile", "--db", str(besieged.db)).stdout.strip()
    head = besieged.head_of(f"{API}/runs", 16 * KIB * KIB)
    heads = [head.replace(besieged.key.encode(), key.encode()) + b"{" for key in (hostile_key, other)]
    with half_open(besieged, 20, heads[0]), half_open(besieged, 20, heads[1]):
        for key, size in ((besieged.key, 2 * KIB * KIB), (besieged.key, 100 * KIB), (hostile_key, 100 * KIB)):
            began = time.monotonic()
            body = b'{"name": "web"' + b" " * size + b"}"
            assert besieged.request("POST", f"{API}/project-types", body, key).status_code in (200, 201)
            assert time.monotonic() - began < 2


def test_large_bodies_beyond_what_is_held_of_all_and_of_each_client_are_busy() -> None:
    budget = rsgi.BodyBudget(100)
    with budget.holding("a") as hold, budget.holding("a") as more, budget.holding("b") as other:
        hold(30)
        more(20)
        with pytest.raises(Busy), budget.holding("a") as too_many:
            too_many(1)
        other(50)
        with pytest.raises(Busy), budget.holding("c") as too_many:
            too_many(1)
    with budget.holding("c") as hold:
        hold(50)


def test_a_header_that_is_no_ascii_is_not_left_out(server: Server) -> None:
    server.start_run()
    body = b'{"projectType": "web"}'
    for line, status in (("Idempotency-Key: é", 400), ("Content-Encoding: é", 415)):
        assert status_of(speak(server, raw_request(server, "POST", f"{API}/runs", body, line))) == status
    assert server.request("GET", f"{API}/runs").json["total"] == 1


@pytest.mark.parametrize("workers", ["1", "2"])
def test_the_end_of_a_terminal_ends_a_service_as_a_stop_does(serve: Callable[..., Server], workers: str) -> None:
    server = serve("--workers", workers)
    assert server.stop(signal.SIGHUP) == 0
    assert not server.db.with_name("served.db-wal").exists() or ON_POSTGRES


def test_a_service_that_is_to_outlive_its_terminal_does(serve: Callable[..., Server]) -> None:
    program = (
        "import os, signal, sys; signal.signal(signal.SIGHUP, signal.SIG_IGN); os.execv(sys.argv[1], sys.argv[1:])"
    )
    server = serve(program=(sys.executable, "-c", program, *PROGRAM))
    server.process.send_signal(signal.SIGHUP)
    time.sleep(0.3)
    assert server.request("GET", f"{API}/tasks").status_code == 200
    assert server.stop() == 0


@pytest.mark.parametrize("length", [10**18, 2**63 - 1, 2**63])
def test_a_body_that_is_said_to_be_huge_is_refused_at_once(server: Server, length: int) -> None:
    head, began = server.head_of(f"{API}/runs", length), time.monotonic()
    assert status_of(speak(server, head + b"{}")) == 413
    assert time.monotonic() - began < 5


def test_a_header_with_an_underscore_is_not_the_one_with_a_hyphen(server: Server) -> None:
    for _ in range(2):
        server.request("POST", f"{API}/project-types", {"name": "web"})
        sent = server.request("POST", f"{API}/runs", {"projectType": "web"}, Idempotency_Key="k")
        assert sent.status_code == 201
    assert server.request("GET", f"{API}/runs").json["total"] == 2


def cpu_seconds(server: Server) -> float:
    """Return the processor time that a server has used."""
    fields = Path(f"/proc/{server.process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="only Linux tells a process's time")
def test_more_connections_than_open_files_do_not_spin(tmp_path: Path) -> None:
    line = ["sh", "-c", 'ulimit -n 64 && exec "$@"', "sh", *PROGRAM, "serve", "--port", "0"]
    small = start_process([*line, "--db", str(tmp_path / "small.db")], tmp_path / "small.db", "curl")
    try:
        with ExitStack() as opened:
            for _ in range(120):
                opened.enter_context(socket.create_connection(("127.0.0.1", small.port), 10))
            began, used = time.monotonic(), cpu_seconds(small)
            time.sleep(1)
            assert cpu_seconds(small) - used < 0.5 * (time.monotonic() - began)
        assert small.request("GET", f"{API}/tasks").status_code == 200
    finally:
        small.stop()


@pytest.mark.sqlite
def test_of_what_takes_long_a_client_has_one_under_way_and_others_come_between(server: Server) -> None:
    run = server.start_run(in_a({"pattern": "^(a|aa)+$"}))
    other = command("keys", "create", "other", "--client", "other", "--db", str(server.db)).stdout.strip()
    schemes = ("Bearer", "bearer", "BEARER", "bEARER")

    def submit(scheme: str) -> int:
        headers = {"Authorization": f"{scheme} {server.key}"}
        return server.request("POST", f"{API}/runs/{run}/tasks", task(extensions=ENDLESS), **headers).status_code

    began = time.monotonic()
    with ThreadPoolExecutor(4) as pool:
        answers = [pool.submit(submit, scheme) for scheme in schemes]
        time.sleep(0.1)
        assert server.request("POST", f"{API}/project-types", {"name": "web"}, key=other).status_code == 201
        assert not any(each.done() for each in answers[1:])
        assert {each.result() for each in answers} == {422}
    assert time.monotonic() - began > 3 * 0.25  # an eighth of two seconds each, or little less, one after the other


@pytest.mark.parametrize("started", [1, 7])
def test_a_stop_while_workers_are_starting_is_no_failure(tmp_path: Path, started: int) -> None:
    line = [*PROGRAM, "serve", "--port", "0", "--workers", "8", "--db", str(tmp_path / "starting.db")]
    process = subprocess.Popen(
        line, cwd=HERE, stderr=subprocess.PIPE, text=True, env=environment(FINDINGS_API_KEY=SECRET)
    )
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    while len(children.read_text("ascii").split()) < started:
        assert process.poll() is None
    process.terminate()
    said = process.communicate(timeout=15)[1]
    assert (process.returncode, "Traceback" in said) == (0, False), said


@pytest.mark.sqlite
def test_a_stop_waits_only_once_for_a_program_that_has_the_file_locked(serve: Callable[..., Server]) -> None:
    server = serve("--workers", "3", FINDINGS_BUSY_TIMEOUT="3s")
    key = command("keys", "create", "used", "--db", str(server.db)).stdout.strip()
    with locked(server.db):
        for _ in range(30):  # each over a connection of its own, which any process may have
            assert server.request("GET", f"{API}/tasks", key=key).status_code == 200
        began = time.monotonic()
        assert server.stop() == 0
        assert time.monotonic() - began < 5.5


NOT_UNIX = """
import os, signal, sys
sys.modules.update(dict.fromkeys(("fcntl", "grp", "pwd", "resource", "termios", "uvloop")))
for module, names in (
    (os, ("chown", "fchown", "fork", "forkpty", "geteuid", "getuid", "register_at_fork", "wait")),
    (signal, ("SIGHUP", "SIGKILL", "pthread_kill", "set_wakeup_fd", "setitimer", "siginterrupt")),
):
    for name in names:
        delattr(module, name)
import findings_service
headers = {"Authorization": "Bearer a-key-of-the-environment"}
app = findings_service.create_app(db=sys.argv.pop(), api_key="a-key-of-the-environment")
client = app.test_client()
assert client.post("/api/v1/project-types", json={"name": "web"}, headers=headers).status_code == 201
assert client.get("/api/v1/project-types/web", headers=headers).status_code == 200
app.extensions["findings"].database.close()
findings_service.main(["serve"])
"""


def test_on_windows_the_application_works_and_serve_says_where_it_runs(tmp_path: Path) -> None:
    line = [sys.executable, "-c", NOT_UNIX, db_at(tmp_path / "x.db")]
    done = subprocess.run(line, cwd=HERE, env=environment(), capture_output=True, text=True, timeout=30, check=False)
    assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (1, "", 1), done.stderr
    assert "`serve` runs on Linux and macOS; on Windows" in done.stderr


# ---------------------------------------------------------------------------
# What was acknowledged stays
# ---------------------------------------------------------------------------

LISTENING = r"http://127\.0\.0\.1:\d+"
SECRET = "a-key-of-the-environment"


def submit_until_killed(server: Server, run: str, batches: Iterator[tuple[str, int]], kept: dict[str, bool]) -> None:
    """Submit batches until the server is gone, and note which of them it answered with 2xx."""
    headers = {"Authorization": f"Bearer {SECRET}", "Content-Type": "application/json"}
    with (
        suppress(OSError, http.client.HTTPException),
        closing(http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)) as connection,
    ):
        for name, size in batches:
            kept[name] = False
            tasks = [task(externalId=f"{name}.{size}.{number}") for number in range(size)]
            connection.request("POST", f"{API}/runs/{run}/tasks", json.dumps({"tasks": tasks}), headers)
            kept[name] = connection.getresponse().read().startswith(b'{"created":')


def assert_batches_are_whole(db: Path, kept: dict[str, bool]) -> None:
    """Check that a database holds each batch that was acknowledged, and no part of any."""
    with look_into(db) as connection:
        found: dict[str, list[int]] = {}
        for (external_id,) in connection.execute("SELECT external_id FROM tasks"):
            name, size, _ = external_id.split(".")
            found.setdefault(name, []).append(int(size))
    assert faults_of(db) == []
    assert all(len(sizes) == sizes[0] for sizes in found.values())
    assert {name for name, acknowledged in kept.items() if acknowledged} <= set(found)


def test_what_was_acknowledged_survives_every_kill_and_batches_stay_whole(serve: Callable[..., Server]) -> None:
    dice, kept = random.Random(7), dict[str, bool]()
    server = serve(until=LISTENING, FINDINGS_API_KEY=SECRET)
    server.request("POST", f"{API}/project-types", {"name": "web"}, key=SECRET)
    run = server.request("POST", f"{API}/runs", {"projectType": "web"}, key=SECRET).json["id"]
    for kill in range(12):
        load = [((f"{kill}-{one}-{n}", 1 + n * 7 % 20) for n in range(10_000)) for one in range(4)]
        with ThreadPoolExecutor(4) as pool:
            for batches in load:
                pool.submit(submit_until_killed, server, run, batches, kept)
            began, enough = time.monotonic(), sum(kept.values()) + dice.randint(0, 25)
            while sum([*kept.values()]) < enough and time.monotonic() < began + 20:
                time.sleep(0.001)
            time.sleep(dice.uniform(0, 0.25))
            assert server.stop(signal.SIGKILL) == -signal.SIGKILL
        server = serve(until=LISTENING, FINDINGS_API_KEY=SECRET)
        assert_batches_are_whole(server.db, kept)
    assert sum(kept.values()) > 100
    assert command("check", "--db", str(server.db)).returncode == 0


# ---------------------------------------------------------------------------
# The audit
# ---------------------------------------------------------------------------


def invoke(*arguments: str) -> click.testing.Result:
    """Run a command of the service in this process. An exception that it did not catch fails the test."""
    return click.testing.CliRunner().invoke(findings_service.main, placed(arguments), catch_exceptions=False)


@pytest.fixture
def aged(app: flask.Flask, client: Client, tmp_path: Path) -> Path:
    """A closed database with two runs, two of a branch, four tasks and some history."""
    client.register("web")
    first, second = (client.start("web", targetUrl=f"https://example.com/{name}") for name in "ab")
    ids = [item["id"] for item in client.submit(first, task(externalId="x"), task(severity="low"))["tasks"]]
    client.add(second, externalId="x", status="dismissed")
    client.triage(ids[1], "resolved", comment="Done")
    client.finish(first)
    client.add(client.start("web", targetUrl="https://example.com/b", branch="topic"), externalId="y")
    client.add(client.start("web", targetUrl="https://example.com/b", branch="topic"), externalId="x")
    database_of(app).close()
    return tmp_path / "findings.db"


def damage_index(connection: sqlite3.Connection, name: str) -> None:
    """Change an entry of an index in the file, as a bad disk would."""
    page = connection.execute("SELECT rootpage FROM sqlite_master WHERE name = ?", (name,)).fetchone()[0]
    size = connection.execute("PRAGMA page_size").fetchone()[0]
    path = Path(connection.execute("PRAGMA database_list").fetchone()[2])
    whole = bytearray(path.read_bytes())
    start = (page - 1) * size
    whole[start : start + size] = whole[start : start + size].replace(b"dismissed", b"dismissee")
    path.write_bytes(whole)


UNCHECKED = "SET session_replication_role = replica" if ON_POSTGRES else "PRAGMA ignore_check_constraints = ON"
LAST = "(SELECT MAX(seq) FROM tasks)"
PLANTED_IN_A_FILE = sqlite_cases(
    integrity=(partial(damage_index, name="tasks_by_status"), "integrity: "),
    constraint=("UPDATE tasks SET severity = 9 WHERE seq = 1", "integrity: CHECK constraint failed"),
    foreign_key=(
        "UPDATE history SET task_seq = 99 WHERE seq = 1",
        "foreign key: row 1 of history has no parent in tasks",
    ),
)
PLANTED = cases(
    index=("DROP INDEX tasks_by_status", "schema: tasks_by_status is missing"),
    counter=("UPDATE counters SET n = n + 1 WHERE scope = 'tasks' AND status = 'resolved'", "says 2, but there are 1"),
    reported=("UPDATE runs SET reported = 3 WHERE seq = 2", "says that it reports another number of tasks"),
    changes_below_nothing=("UPDATE counters SET n = -1 WHERE scope = 'changes'", "is below nothing"),
    counter_of_runs=(
        "UPDATE counters SET n = 0 WHERE scope = 'runs' AND status = 'running'",
        "runs, running, severity 0",
    ),
    counter_missing=(
        "DELETE FROM counters WHERE scope = 'runs' AND status = 'completed'",
        "is missing, but there are 1",
    ),
    counter_of_nothing=(
        "INSERT INTO counters VALUES ('default', 'tasks type:none', 'open', 4, 2)",
        "tasks type:none, open, severity 4 says 2, but there are 0",
    ),
    other_target=(
        f"UPDATE tasks SET target_url = '' WHERE seq = {LAST}",
        "reported by a run of another project",
    ),
    other_type=("UPDATE tasks SET project_type = 'none' WHERE seq = 1", "reported by a run of another project"),
    no_sighting=(f"DELETE FROM sightings WHERE task_seq = {LAST}", "is reported by no run"),
    sighting_too_many=("INSERT INTO sightings VALUES ('default', 2, 1, 1)", "was seen by more runs than it says"),
    no_branch=("DELETE FROM branches", "is of a branch that is not there"),
    branch_knows=("UPDATE branches SET reported = 3", "branch topic says that it knows another number of tasks"),
    branch_of_nothing=(
        "INSERT INTO branches VALUES (9, 'default', 'old', 'web', '', 0)",
        "branch old has no run and knows no task",
    ),
    branch_elsewhere=("UPDATE branches SET target_url = ''", "is known to a branch of another project"),
    forgotten=(
        "DELETE FROM branch_sightings WHERE task_seq = 3",
        "is reported by a run of a branch that does not know it",
    ),
    of_another_branch=("UPDATE tasks SET branch = 'other' WHERE seq = 4", "is of a branch that does not know it"),
    not_taken_over=("UPDATE tasks SET branch = 'topic' WHERE seq = 3", "is of a branch, though the main line knows it"),
    not_counted=(
        "UPDATE sightings SET counted = 0 WHERE run_seq = 1 AND task_seq = 1",
        "has a report of the main line that does not count",
    ),
    counter_of_branches=(
        "UPDATE counters SET n = 5 WHERE scope = 'tasks type:web branches'",
        "tasks type:web branches, open, severity 4 says 5, but there are 1",
    ),
    counter_of_a_branch=(
        "DELETE FROM counters WHERE scope = 'runs branch:topic'",
        "runs branch:topic, running, severity 0 is missing, but there are 2",
    ),
    other_words=("UPDATE task_words SET words = replace(words, 'image', 'picture')", "by other words than it has"),
    no_words=("DELETE FROM task_words", "is searched by other words than it has"),
    no_details=("DELETE FROM task_details WHERE task_seq = 1", "has no details"),
    other_status=(
        "UPDATE history SET to_status = 'open' WHERE comment = 'Done'",
        "has another status than its history",
    ),
    order_of_creation=(
        "UPDATE tasks SET created_at = '2026-01-01' WHERE seq = 3",
        "was created before one that came earlier",
    ),
    other_reason=(
        "UPDATE history SET reason = 'fixed' WHERE comment = 'Done'",
        "has another reason than its history",
    ),
    other_assignee=("UPDATE tasks SET assignee = 'Ada' WHERE seq = 1", "has another assignee than its history"),
    no_history=("DELETE FROM history WHERE task_seq = 1", "has another status than its history"),
    older_schema=(
        "UPDATE schema_version SET version = 7" if ON_POSTGRES else "PRAGMA user_version = 7",
        "has schema version 7, older than any",
    ),
)


@pytest.mark.parametrize(("fault", "told"), [*PLANTED_IN_A_FILE, *PLANTED])
def test_check_tells_each_fault_and_fails(aged: Path, fault: Any, told: str) -> None:
    assert invoke("check", "--db", str(aged)).exit_code == 0
    with look_into(aged) as connection:
        if callable(fault):
            fault(connection)
        else:
            connection.execute(UNCHECKED)
            connection.execute(fault)
    done = invoke("check", "--db", str(aged))
    assert done.exit_code == 1
    assert told in done.output
    assert done.stderr.startswith("Error: ")


@pytest.mark.sqlite
@pytest.mark.parametrize("statement", audit.INTEGRITY_CHECKS.values())
def test_an_audit_looks_up_each_row_without_reading_all_that_a_client_has(app: flask.Flask, statement: str) -> None:
    steps = [row[3] for row in reader_of(app).execute(f"EXPLAIN QUERY PLAN {statement}")]
    assert [step for step in steps if step.endswith("(client_id=?)")] == []


def test_check_tells_of_a_sound_database_and_its_versions(app: flask.Flask, aged: Path) -> None:
    done = invoke("check", "--db", str(aged))
    assert (done.exit_code, done.stdout) == (0, "")
    assert "is sound" in done.stderr
    engine = " ".join(database_of(app).engine)
    assert f"schema version {findings_service.SCHEMA_VERSION}, {engine}" in done.stderr


@pytest.mark.sqlite
def test_check_of_a_file_damaged_beyond_reading_is_one_line(aged: Path) -> None:
    whole = bytearray(aged.read_bytes())
    whole[8192:] = b"\xff" * (len(whole) - 8192)
    aged.write_bytes(whole)
    done = invoke("check", "--db", str(aged))
    assert done.exit_code == 1
    assert len(done.stderr.splitlines()) == 1


def test_check_reads_a_database_that_is_being_written(server: Server) -> None:
    run = server.start_run()
    with ThreadPoolExecutor(2) as pool:
        writes = [
            pool.submit(server.request, "POST", f"{API}/runs/{run}/tasks", {"tasks": [task()] * 50}) for _ in range(40)
        ]
        assert [invoke("check", "--db", str(server.db)).exit_code for _ in range(5)] == [0] * 5
    assert {write.result().status_code for write in writes} == {201}


# ---------------------------------------------------------------------------
# Repeated requests
# ---------------------------------------------------------------------------

POSTS = cases(
    run=("runs", {"projectType": "web"}),
    one_task=("runs/RUN/tasks", task()),
    batch=("runs/RUN/tasks", {"tasks": [task(externalId="a"), task()]}),
    project_type=("project-types", {"name": "new"}),
    known_project_type=("project-types", {"name": "web"}),
)


def post(client: Client, path: str, body: Any, key: str = "k") -> Any:
    """Send a POST with an Idempotency-Key."""
    text = body if isinstance(body, str) else json.dumps(body)
    headers = {"Idempotency-Key": key, "Content-Type": "application/json"}
    return client.post(f"{API}/{path}", data=text, headers=headers)


def totals(client: Client) -> list[int]:
    """Return how many runs, tasks and project types there are."""
    counts = [client.read(path, limit=1)["total"] for path in ("runs", "tasks")]
    return [*counts, len(client.read("project-types")["projectTypes"])]


def kept_answers(app: flask.Flask) -> int:
    """Return how many answers are kept."""
    return rows_of(app, "SELECT COUNT(*) FROM idempotent_answers")[0][0]


@pytest.mark.parametrize(("path", "body"), POSTS)
def test_a_repeated_post_gets_its_answer_again_and_stores_nothing(
    client: Client, run: str, path: str, body: Any
) -> None:
    first = post(client, path.replace("RUN", run), body)
    stored = totals(client)
    again = post(client, path.replace("RUN", run), body)
    assert first.status_code in (200, 201)
    assert (again.status_code, again.data, again.content_type) == (first.status_code, first.data, first.content_type)
    assert again.headers.get("Location") == first.headers.get("Location")
    assert totals(client) == stored


@pytest.mark.parametrize(("path", "body"), POSTS)
def test_another_body_under_the_same_idempotency_key_is_a_conflict(
    client: Client, run: str, path: str, body: Any
) -> None:
    post(client, path.replace("RUN", run), body)
    stored = totals(client)
    for other in (json.dumps(body) + " ", json.dumps(body, indent=1)):
        assert_problem(post(client, path.replace("RUN", run), other), 409, "idempotency_conflict")
    assert totals(client) == stored
    assert post(client, path.replace("RUN", run), body, "another").status_code in (200, 201)


def test_a_refused_request_may_be_mended_under_its_idempotency_key(client: Client, run: str) -> None:
    path = f"runs/{run}/tasks"
    assert_problem(post(client, path, task(severity="hgh")), 422, "validation_failed")
    assert_problem(post(client, "runs", {"projectType": "new"}), 422, "unknown_project_type")
    client.register("new")
    assert post(client, path, task()).status_code == 201
    assert post(client, "runs", {"projectType": "new"}).status_code == 201


@pytest.mark.parametrize(("length", "status"), [(0, 400), (1, 201), (255, 201), (256, 400), (5000, 400)])
def test_an_idempotency_key_has_one_to_255_characters(client: Client, run: str, length: int, status: int) -> None:
    for _ in range(2):
        assert post(client, "runs", {"projectType": "web"}, "k" * length).status_code == status
    assert totals(client) == [1 + (status == 201), 0, 1]


def test_an_idempotency_key_holds_for_one_api_key_and_path(app: flask.Flask, client: Client, run: str) -> None:
    colleague, other = client_of(app), client.start("web")
    answers = [post(each, f"runs/{run_id}/tasks", task()) for each in (client, colleague) for run_id in (run, other)]
    assert [answer.status_code for answer in answers] == [201] * 4
    assert len({answer.json["tasks"][0]["id"] for answer in answers}) == 4
    assert kept_answers(app) == 4


def test_an_idempotency_key_holds_for_the_whole_path(tmp_path: Path) -> None:
    host, settings = flask.Flask("host"), findings_service.Settings.read(db=db_at(tmp_path / "one.db"), api_key=SECRET)
    blueprints = [create_blueprint(settings, name) for name in ("one", "two")]
    for blueprint in blueprints:
        host.register_blueprint(blueprint, url_prefix=f"/{blueprint.name}")
    headers = {"Authorization": f"Bearer {SECRET}", "Idempotency-Key": "k"}
    bodies = [{"name": "web"}, {"name": "web", "label": "web"}]
    answers = [
        host.test_client().post(f"/{name}{API}/project-types", json=body, headers=headers)
        for name, body in zip(("one", "two"), bodies, strict=True)
    ]
    for blueprint in blueprints:
        blueprint.service.database.close()
    assert [answer.status_code for answer in answers] == [201, 200]


def test_a_decision_sent_again_under_its_key_is_made_once(client: Client, run: str) -> None:
    one, two = client.add(run), client.add(run)
    match = {"If-Match": client.get(f"{API}/tasks/{one}").headers["ETag"]}
    about_one = {"status": "dismissed", "reason": "false_positive", "comment": "Seen."}
    about_both = {"ids": [one, two], "comment": "Both."}
    for path, body, more in ((f"{API}/tasks/{one}", about_one, match), (f"{API}/tasks", about_both, {})):
        headers = {"Idempotency-Key": "k", **more}
        first, again = (client.patch(path, json=body, headers=headers) for _ in range(2))
        assert first.status_code == 200
        assert (again.status_code, again.data) == (200, first.data)
        assert again.headers.get("ETag") == first.headers.get("ETag")
        other = client.patch(path, json=body | {"comment": "Other."}, headers=headers)
        assert_problem(other, 409, "idempotency_conflict")
    comments = [entry["comment"] for entry in client.read(f"tasks/{one}/history")["history"] if entry["comment"]]
    assert comments == ["Seen.", "Both."]


def test_what_has_no_idempotency_key_takes_no_notice_of_one(app: flask.Flask, client: Client, run: str) -> None:
    for status in ("completed", "failed"):
        answer = client.patch(f"{API}/runs/{run}", json={"status": status}, headers={"Idempotency-Key": "k"})
    assert_problem(answer, 409, "run_finished")
    assert kept_answers(app) == 0


def age_answers(app: flask.Flask, seconds: float) -> None:
    """Make the kept answers look that old."""
    with database_of(app).transaction() as connection:
        connection.execute("UPDATE idempotent_answers SET created_at = ?", (findings_service.timestamp(ago=seconds),))


def test_an_answer_is_kept_for_a_day_and_then_dropped_in_passing(app: flask.Flask, client: Client, run: str) -> None:
    first = post(client, "runs", {"projectType": "web"}).json["id"]
    age_answers(app, 24 * 3600 - 60)
    assert post(client, "runs", {"projectType": "web"}).json["id"] == first
    age_answers(app, 24 * 3600 + 1)
    assert post(client, "runs", {"projectType": "web", "metadata": {}}).json["id"] != first
    post(client, "project-types", {"name": "new"}, "other")
    age_answers(app, 24 * 3600 + 1)
    post(client, "runs", {"projectType": "web"}, "third")
    assert kept_answers(app) == 1


def test_an_answer_and_its_data_are_stored_together_or_not_at_all(
    app: flask.Flask, client: Client, run: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*_: Any) -> None:
        raise full_error()

    with monkeypatch.context() as patched:
        patched.setattr(*what_commits(), failing)
        assert_problem(post(client, f"runs/{run}/tasks", task()), 503, "storage_full")
    assert (totals(client), kept_answers(app)) == ([1, 0, 1], 0)
    with refusing_rows(database_of(app).settings.db, "idempotent_answers"):
        assert_problem(post(client, f"runs/{run}/tasks", task()), 500, "internal_error")
        assert (totals(client), kept_answers(app)) == ([1, 0, 1], 0)
    assert post(client, f"runs/{run}/tasks", task()).status_code == 201
    assert faults_of(database_of(app).settings.db) == []


def test_a_submission_is_answered_again_when_its_run_is_finished(client: Client, run: str) -> None:
    first = post(client, f"runs/{run}/tasks", task())
    client.finish(run)
    assert post(client, f"runs/{run}/tasks", task()).data == first.data
    assert_problem(post(client, f"runs/{run}/tasks", task(), "new"), 409, "run_finished")


def test_a_submission_is_answered_again_when_its_schema_was_replaced(client: Client, run: str) -> None:
    first = post(client, f"runs/{run}/tasks", task())
    client.put(f"{API}/project-types/web", json={"extensionSchema": {"required": ["rule"]}})
    assert post(client, f"runs/{run}/tasks", task()).data == first.data
    assert_problem(post(client, f"runs/{run}/tasks", task(), "new"), 422, "validation_failed")


def test_the_same_request_in_two_threads_creates_once(
    app: flask.Flask, client: Client, run: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    read_object, both = findings_service.read_object, threading.Barrier(2)

    def read_together(*arguments: Any) -> Any:
        both.wait(5)  # neither found a stored answer before, and neither has stored one yet
        return read_object(*arguments)

    monkeypatch.setattr(findings_service, "read_object", read_together)
    with ThreadPoolExecutor(2) as pool:
        answers = list(pool.map(lambda _: post(client, "runs", {"projectType": "web"}), range(2)))
    assert [answer.status_code for answer in answers] == [201, 201]
    assert answers[0].data == answers[1].data
    assert totals(client) == [2, 0, 1]


def test_threads_that_read_the_same_models_first_do_not_learn_them_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    at_work, most = [], []
    make = msgspec.json.Decoder

    def slow(model: Any) -> Any:
        at_work.append(model)
        most.append(len(at_work))
        time.sleep(0.01)
        at_work.pop()
        return make(model)

    monkeypatch.setattr(msgspec.json, "Decoder", slow)
    models = [list[int], dict[str, float], tuple[int, str, int]]  # that nobody has asked for
    with ThreadPoolExecutor(6) as pool:
        assert {type(each) for each in pool.map(findings_service.decoder, models * 2)} == {make}
    assert set(most) == {1}


@pytest.mark.parametrize("workers", [1, 2])
def test_the_same_request_many_times_at_once_creates_once(serve: Callable[..., Server], workers: int) -> None:
    server = serve("--workers", str(workers))
    run, headers = server.start_run(), {"Idempotency-Key": "k"}
    with ThreadPoolExecutor(8) as pool:
        answers = list(
            pool.map(
                lambda _: server.request("POST", f"{API}/runs/{run}/tasks", {"tasks": [task()] * 20}, **headers),
                range(24),
            )
        )
    assert len({(answer.status_code, answer.data) for answer in answers}) == 1
    assert server.request("GET", f"{API}/tasks").json["total"] == 20


# ---------------------------------------------------------------------------
# Storage that fails
# ---------------------------------------------------------------------------


def assert_storage_problem(answer: Any, code: str) -> None:
    """Check an answer that says why nothing was stored and when to come back."""
    assert_problem(answer, 503, code)
    assert int(answer.headers["Retry-After"]) > 0


BULKY = {"tasks": [task(description="x" * 5000)] * 10}


def assert_full_and_then_mended(server: Server, mend: Callable[[], object]) -> None:
    """Fill the storage of a server; check what it does then, and that it goes on once the cause is gone."""
    path = f"{API}/runs/{server.start_run()}"
    answers = [server.request("POST", f"{path}/tasks", BULKY)]
    while answers[-1].status_code == 201 and len(answers) < 100:
        answers.append(server.request("POST", f"{path}/tasks", BULKY))
    stored = 10 * (len(answers) - 1)
    for answer in (answers[-1], server.request("POST", f"{path}/tasks", BULKY)):
        assert_storage_problem(answer, "storage_full")
    assert server.request("GET", f"{API}/tasks?view=full").json["total"] == stored > 0
    assert server.request("GET", path).json["submitted"]["created"] == stored
    mend()
    assert server.request("POST", f"{path}/tasks", BULKY).status_code == 201
    assert server.request("GET", f"{API}/tasks").json["total"] == stored + 10
    assert faults_of(server.db) == []


@pytest.mark.sqlite
def test_a_file_that_may_not_grow_is_told_and_forgotten_once_it_may(server: Server) -> None:
    process = server.process.pid
    before = resource.prlimit(process, resource.RLIMIT_FSIZE)
    resource.prlimit(process, resource.RLIMIT_FSIZE, (400_000, before[1]))
    assert_full_and_then_mended(server, lambda: resource.prlimit(process, resource.RLIMIT_FSIZE, before))


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own with a megabyte."""
    (tmp_path / "disk").mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(tmp_path / "disk")]
    if not shutil.which("mount") or subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        pytest.skip("only root can mount a file system")
    yield tmp_path / "disk"
    subprocess.run(["umount", "--lazy", str(tmp_path / "disk")], check=True)


@pytest.mark.sqlite
def test_a_full_disk_is_told_and_forgotten_once_there_is_room(serve: Callable[..., Server], small_disk: Path) -> None:
    ballast = small_disk / "ballast"
    ballast.write_bytes(bytes(400_000))
    server = serve(FINDINGS_DB=str(small_disk / "full.db"))
    assert_full_and_then_mended(server, ballast.unlink)
    assert server.stop() == 0


@pytest.mark.sqlite
def test_a_start_on_a_full_disk_is_one_line(small_disk: Path) -> None:
    (small_disk / "ballast").write_bytes(bytes(1024 * 1024))
    done = command("serve", "--port", "0", "--db", str(small_disk / "new.db"))
    assert (done.returncode, len(done.stderr.splitlines())) == (1, 1), done.stderr
    assert "full" in done.stderr


def test_a_lock_of_another_process_leaves_reads_alone_and_stores_nothing(serve: Callable[..., Server]) -> None:
    server = serve(FINDINGS_BUSY_TIMEOUT="0.1", program=program_with(HEALTH_KEPT=0))
    run = server.start_run()
    with locked(server.db):
        for path, body in (
            ("runs", {"projectType": "web"}),
            (f"runs/{run}/tasks", task()),
            ("project-types", {"name": "b"}),
        ):
            assert_storage_problem(server.request("POST", f"{API}/{path}", body), "busy")
        if not ON_POSTGRES:  # where no lock keeps everybody from writing
            assert_storage_problem(server.request("GET", "/healthz"), "busy")
        assert server.request("GET", f"{API}/runs/{run}").json["summary"]["total"] == 0
        assert server.request("GET", f"{API}/tasks").json["total"] == 0
    assert server.request("POST", f"{API}/runs/{run}/tasks", task()).status_code == 201
    assert server.request("GET", f"{API}/tasks").json["total"] == 1


def test_a_database_that_became_read_only_is_told_and_read(app: flask.Flask, client: Client, run: str) -> None:
    with read_only(app):
        assert_storage_problem(client.post(f"{API}/runs/{run}/tasks", json=task()), READ_ONLY)
        assert_storage_problem(client.get("/healthz"), READ_ONLY)
        assert client.read("tasks")["total"] == 0
    assert client.post(f"{API}/runs/{run}/tasks", json=task()).status_code == 201


def refused_everywhere(ask: Callable[..., Any]) -> None:
    """Check that reads, writes and the health check all say that the storage cannot be used."""
    for method, path, body in (
        ("GET", f"{API}/tasks", None),
        ("POST", f"{API}/runs", {"projectType": "web"}),
        ("GET", "/healthz", None),
    ):
        assert_storage_problem(ask(method, path, body), "storage_full")


def took_away(db: Path) -> None:
    """Move a database's file, with what lies beside it."""
    for suffix in ("", "-wal", "-shm"):
        db.with_name(f"{db.name}{suffix}").rename(db.with_name(f"moved.db{suffix}"))


def put_back(db: Path) -> None:
    """Move it back."""
    for moved in db.parent.glob("moved.db*"):
        moved.rename(moved.with_name(moved.name.replace("moved.db", db.name)))


def contents_of(folder: Path) -> dict[str, bytes]:
    """Return what the databases of a folder hold, and what lies beside them, but for what tells who reads."""
    return {path.name: path.read_bytes() for path in folder.glob("*.db*") if not path.name.endswith(("-shm", ".log"))}


@pytest.mark.sqlite
@pytest.mark.parametrize("workers", [1, 2])
def test_a_file_that_was_moved_is_refused_until_a_restart_and_nothing_is_touched(
    serve: Callable[..., Server], workers: int
) -> None:
    server = serve("--workers", str(workers), program=program_with(HOUSEKEEPING=0.1, HEALTH_KEPT=0))
    path = f"{API}/runs/{server.start_run()}/tasks"
    for _ in range(5):
        assert server.request("POST", path, task()).status_code == 201
    took_away(server.db)
    before = contents_of(server.db.parent)
    for _ in range(4 * workers):
        refused_everywhere(server.request)
    assert contents_of(server.db.parent) == before
    log, deadline = next(server.db.parent.glob("*.log")), time.monotonic() + 10
    while log.read_text("utf-8").count("every request is refused") < workers:  # each process has seen it
        assert time.monotonic() < deadline
        time.sleep(0.05)
    put_back(server.db)
    refused_everywhere(server.request)
    assert server.stop() == 0
    heard = server.heard()
    assert (heard.count("every request is refused until a restart"), "Traceback" in heard) == (workers, False)
    again = serve(until=LISTENING)
    assert again.request("GET", f"{API}/tasks", key=server.key).json["total"] == 5
    assert faults_of(server.db) == []


@pytest.mark.sqlite
@pytest.mark.parametrize("workers", [1, 2])
def test_what_another_service_writes_where_a_file_was_moved_away_outlives_its_kill(
    serve: Callable[..., Server], workers: int
) -> None:
    first = serve("--workers", str(workers), program=program_with(HOUSEKEEPING=0.1, HEALTH_KEPT=0))
    first.start_run()
    took_away(first.db)
    second = serve()
    path = f"{API}/runs/{second.start_run()}/tasks"
    for _ in range(6):
        assert second.request("POST", path, task()).status_code == 201
        refused_everywhere(first.request)
    assert first.stop() == 0
    second.stop(signal.SIGKILL)
    with look_into(second.db) as connection:
        assert connection.execute("SELECT COUNT(*) FROM tasks").fetchone() == (6,)
    assert faults_of(second.db) == []
    assert faults_of(second.db.with_name("moved.db")) == []


@pytest.mark.sqlite
def test_an_embedded_service_refuses_a_file_that_was_moved_until_it_is_made_anew(
    client: Client, run: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    client.add(run)
    took_away(tmp_path / "findings.db")
    for _ in range(2):
        refused_everywhere(lambda method, path, body: client.open(path, method=method, json=body))
        database_of(client.application).close()
        put_back(tmp_path / "findings.db")
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    again = create_app(db=str(tmp_path / "findings.db")).test_client()
    listed = again.get(f"{API}/tasks", headers={"Authorization": f"Bearer {client.key}"})
    assert listed.json["total"] == 1


@pytest.mark.sqlite
def test_a_write_under_way_goes_to_the_file_that_was_open(client: Client, run: str, tmp_path: Path) -> None:
    database = database_of(client.application)
    with database.transaction() as connection:
        connection.execute("INSERT INTO clients (id, created_at) VALUES ('last', '')")
        took_away(tmp_path / "findings.db")
    assert_storage_problem(client.get(f"{API}/tasks"), "storage_full")
    with closing(sqlite3.connect(tmp_path / "moved.db")) as moved:
        assert moved.execute("SELECT COUNT(*) FROM clients WHERE id = 'last'").fetchone() == (1,)


@pytest.mark.sqlite
def test_a_database_is_found_again_wherever_the_process_goes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    app = create_app(db="here.db")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert app.test_client().get("/healthz").status_code == 200
    database_of(app).close()
    assert list((tmp_path / "elsewhere").iterdir()) == []


@pytest.mark.sqlite
def test_what_belongs_to_a_database_stands_beside_the_file_that_a_link_leads_to(
    tmp_path: Path, new_database: Path
) -> None:
    (there := tmp_path / "there").mkdir()
    shutil.copyfile(new_database, there / "x.db")
    (tmp_path / "link.db").symlink_to(there / "x.db")
    app = create_app(db=db_at(tmp_path / "link.db"))
    make_key(app)
    assert sorted(each.name for each in there.iterdir()) == [
        f"x.db{end}" for end in ("", "-checkpointer", "-shm", "-wal")
    ]
    assert database_of(app).wal_size() > 0
    database_of(app).close()
    assert {each.name for each in tmp_path.iterdir()} == {"there", "link.db"}


@pytest.mark.sqlite
def test_a_damaged_page_is_told_and_not_called_a_bug(aged: Path, make_app: Callable[..., flask.Flask]) -> None:
    app = make_app()
    client = client_of(app)
    connection = writer_of(app)
    page = connection.execute("SELECT rootpage FROM sqlite_master WHERE name = 'tasks'").fetchone()[0]
    database_of(app).close()
    with aged.open("r+b") as file:
        file.seek((page - 1) * 4096)
        file.write(b"\xff" * 4096)
    assert_storage_problem(client.get(f"{API}/tasks"), "storage_full")


def database_of_version(version: int, path: Path) -> None:
    """Make a database of another version of the schema."""
    database_of(create_app(db=str(path))).close()
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(f"PRAGMA user_version = {version}")


def others_database(path: Path) -> None:
    """Make another program's SQLite database."""
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE theirs (a)")


UNUSABLE = cases(
    text=(lambda path: path.write_text("Not a database. " * 1000, "utf-8"), "not a database"),
    short_text=(lambda path: path.write_text("Hi.", "utf-8"), "not a database"),
    others=(others_database, "another program's SQLite database"),
    folder=(lambda path: path.mkdir(), "cannot be"),
    nowhere=(lambda path: path.symlink_to(path.parent / "no" / "such.db"), "cannot be"),
    itself=(lambda path: path.symlink_to(path), "cannot be"),
    newer=(partial(database_of_version, 99), "has schema version 99, newer than this program's"),
    older=(partial(database_of_version, 7), "has schema version 7, older than any that this program opens; keep it"),
)
COMMAND_LINES = ("check", "backup copy.db", "prune --finished-before 1d", "compact", "keys create x", "keys list")


def files_in(folder: Path) -> dict[str, bytes]:
    """Return what is in the files of a folder."""
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


@pytest.mark.sqlite
@pytest.mark.parametrize(("make", "told"), UNUSABLE)
def test_a_start_on_a_file_that_cannot_be_used_is_one_line(
    tmp_path: Path, make: Callable[[Path], object], told: str
) -> None:
    make(tmp_path / "bad.db")
    before = files_in(tmp_path)
    done = command("serve", "--port", "0", "--db", str(tmp_path / "bad.db"))
    assert (done.returncode, len(done.stderr.splitlines())) == (1, 1), done.stderr
    assert db_at(tmp_path / "bad.db") in done.stderr
    assert told in done.stderr
    assert files_in(tmp_path) == before


@pytest.mark.sqlite
@pytest.mark.parametrize(
    ("make", "told", "line"),
    [
        (*each.values, line)
        for each in UNUSABLE
        for line in COMMAND_LINES
        if not (each.id in ("newer", "older") and line.startswith("backup"))
    ],
)
def test_a_command_on_a_file_that_cannot_be_used_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make: Callable[[Path], object], told: str, line: str
) -> None:
    monkeypatch.chdir(tmp_path)
    make(tmp_path / "bad.db")
    before = files_in(tmp_path)
    done = invoke(*line.split(), "--db", "bad.db")
    assert (done.exit_code, done.stdout, len(done.stderr.splitlines())) == (1, "", 1), done.output
    assert "bad.db" in done.stderr
    assert told in done.stderr or "there is no file" in done.stderr
    assert files_in(tmp_path) == before


def test_a_start_beside_a_lock_waits_and_then_is_one_line(tmp_path: Path, aged: Path) -> None:
    with locked(aged):
        done = command("serve", "--port", "0", "--db", str(aged), FINDINGS_BUSY_TIMEOUT="0.3")
    assert (done.returncode, len(done.stderr.splitlines())) == (1, 1), done.stderr
    assert ("too long" if ON_POSTGRES else "locked") in done.stderr


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that every user reaches, unlike pytest's own."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    yield folder
    folder.chmod(0o755)
    shutil.rmtree(folder)


def as_nobody(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a command as a user who owns nothing; root is one before it has read the checkout, and imported it all."""
    program = (
        f"{IMPORTING}, encodings.idna, importlib.metadata, jsonschema, os, findings_adapters.serving.processes\n"
        "findings_service.load_parts(); findings_service.main.list_commands(None)\n"
        "os.geteuid() or os.setuid(65534); findings_service.main()"
    )
    return command(*arguments, program=(sys.executable, "-c", program))


@pytest.mark.sqlite
def test_a_read_only_file_is_one_line_and_left_alone(aged: Path, open_folder: Path) -> None:
    path = Path(shutil.copy(aged, open_folder / "read-only.db"))
    before = path.read_bytes()
    path.chmod(0o444)
    open_folder.chmod(0o555)
    done = as_nobody("serve", "--port", "0", "--db", str(path))
    assert (done.returncode, len(done.stderr.splitlines())) == (1, 1), done.stderr
    assert str(path) in done.stderr
    assert path.read_bytes() == before


@pytest.mark.sqlite
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make files that are another's")
@pytest.mark.parametrize("line", ["serve --port 0", "keys create x --new", "compact"])
@pytest.mark.parametrize(
    ("file_mode", "folder_mode", "right"),
    cases(
        file=(0o400, 0o777, "may not read {0}/x.db"),
        read_only_file=(0o444, 0o777, "may not write {0}/x.db"),
        folder=(0o666, 0o555, "may not write in {0}"),
    ),
)
def test_who_may_not_use_which_file_is_told(
    aged: Path, open_folder: Path, line: str, file_mode: int, folder_mode: int, right: str
) -> None:
    path = Path(shutil.copy(aged, open_folder / "x.db"))
    path.chmod(file_mode)
    open_folder.chmod(folder_mode)
    done = as_nobody(*line.format(open_folder).split(), "--db", str(path))
    assert (done.returncode, len(done.stderr.splitlines())) == (1, 1), done.stderr
    assert f"this user {right.format(open_folder)}" in done.stderr


@pytest.mark.sqlite
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make files that are another's")
def test_a_new_database_or_a_backup_where_one_may_not_write_is_told(aged: Path, open_folder: Path) -> None:
    (open_folder / "mine").mkdir(mode=0o755)
    done = as_nobody("serve", "--port", "0", "--db", str(open_folder / "mine" / "x.db"))
    assert f"this user may not write in {open_folder / 'mine'}" in done.stderr
    open_folder.chmod(0o777)
    path = Path(shutil.copy(aged, open_folder / "x.db"))
    path.chmod(0o666)
    done = as_nobody("backup", str(open_folder / "mine" / "copy.db"), "--db", str(path))
    assert (done.returncode, len(done.stderr.splitlines())) == (1, 1), done.stderr
    assert f"this user may not write in {open_folder / 'mine'}" in done.stderr


# ---------------------------------------------------------------------------
# Reads beside writes
# ---------------------------------------------------------------------------


def elsewhere(work: Callable[[], Any]) -> Any:
    """Return what something returns in another thread."""
    pool = ThreadPoolExecutor(1)
    try:
        return pool.submit(work).result(5)
    finally:
        pool.shutdown(wait=False)  # it may wait for what the caller holds


@pytest.mark.sqlite
def test_a_read_waits_for_no_transaction_and_sees_the_last_commit(app: flask.Flask, client: Client, run: str) -> None:
    task_id = client.add(run, title="before")

    def title() -> str:
        return client.read(f"tasks/{task_id}")["title"]

    with database_of(app).transaction() as connection:
        connection.execute("UPDATE tasks SET title = 'behind' WHERE client_id = 'default'")
        assert elsewhere(title) == title() == "before"
    assert elsewhere(title) == title() == "behind"


@pytest.mark.parametrize("absent", ["click", "flask", "jsonschema", "msgspec", "werkzeug"])
def test_a_package_that_is_not_there_is_one_line_at_the_start(tmp_path: Path, absent: str) -> None:
    program = (
        "import runpy, sys; name, sys.argv = sys.argv[1], sys.argv[2:]; sys.modules[name] = None;"
        "runpy.run_path(sys.argv[0], run_name='__main__')"
    )
    line = [sys.executable, "-c", program, absent, str(HERE / "findings_service.py"), "--help"]
    done = subprocess.run(
        line, cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=30, check=False
    )
    assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (1, "", 1)
    assert done.stderr.startswith(f"The package {absent} is not installed. ")
    assert "pip install ." in done.stderr


def reads_beside(server: Server, write: Callable[..., Answer], *arguments: Any) -> int:
    """Return how many reads of another client are answered while a write is under way."""
    reads = 0
    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(write, *arguments)
        while not writing.done():
            assert server.request("GET", f"{API}/runs").status_code == 200
            reads += not writing.done()
    assert writing.result().status_code in (200, 201)
    return reads


def test_reads_are_answered_while_batches_are_stored_and_thousands_are_resolved(server: Server) -> None:
    run, second = server.start_run(), server.start_run()
    batches = [json.dumps({"tasks": [task(externalId=f"{batch}.{n}") for n in range(1000)]}) for batch in range(5)]
    beside = [reads_beside(server, server.request, "POST", f"{API}/runs/{run}/tasks", batch) for batch in batches]
    assert sum(beside) > 40, beside  # waiting for writes, it would be three beside each
    end = {"status": "completed", "resolveMissing": True}
    assert reads_beside(server, server.request, "PATCH", f"{API}/runs/{second}", end) > 10
    assert server.request("GET", f"{API}/tasks?status=resolved&limit=1").json["total"] == 5000


def test_who_has_an_answer_reads_what_was_written_over_any_connection(server: Server) -> None:
    def write_and_read(_: int) -> int:
        path, seen = f"{API}/runs/{server.start_run()}", 0
        for n in range(1, 21):
            submitted = server.request("POST", f"{path}/tasks", {"tasks": [task(), task()]}).json["tasks"]
            link = f"{API}/tasks?limit=1&runId={path.rpartition('/')[2]}"
            listed = []
            while link and len(listed) < 2:
                page = server.request("GET", link).json
                listed, link = [*listed, *page["tasks"]], page["next"]
            assert [item["id"] for item in reversed(listed)] == [item["id"] for item in submitted]
            assert server.request("PATCH", f"{API}/tasks/{listed[0]['id']}", {"status": "dismissed"}).status_code == 200
            assert server.request("GET", f"{API}/tasks/{listed[0]['id']}").json["status"] == "dismissed"
            seen += server.request("GET", path).json["summary"]["total"] == 2 * n
        return seen

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(write_and_read, range(4))) == [20] * 4


SYNC = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

static int sync_file(const char *name, int file) {
    if (access(getenv("SLOW_WHILE"), F_OK) == 0) usleep(300000);
    if (access(getenv("BROKEN_WHILE"), F_OK) == 0) { errno = EIO; return -1; }
    return ((int (*)(int)) dlsym(RTLD_NEXT, name))(file);
}

int fsync(int file) { return sync_file("fsync", file); }
int fdatasync(int file) { return sync_file("fdatasync", file); }
"""


@pytest.fixture
def on_a_disk(tmp_path: Path, serve: Callable[..., Server]) -> Iterator[Server]:
    """A server whose every fsync takes 0.3 seconds more while there is a file `slow`, and fails while one `broken`."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if sys.platform != "linux" or compiler is None:
        pytest.skip("it takes Linux and a C compiler to make fsync slower")
    (tmp_path / "sync.c").write_text(SYNC)
    library = str(tmp_path / "sync.so")
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, str(tmp_path / "sync.c"), "-ldl"], check=True)
    yield serve(LD_PRELOAD=library, SLOW_WHILE=str(tmp_path / "slow"), BROKEN_WHILE=str(tmp_path / "broken"))
    (tmp_path / "slow").unlink(missing_ok=True)


@pytest.mark.sqlite
def test_reads_are_answered_while_a_slow_disk_stores_a_write(on_a_disk: Server, tmp_path: Path) -> None:
    path = f"{API}/runs/{on_a_disk.start_run()}/tasks"
    (tmp_path / "slow").touch()
    assert reads_beside(on_a_disk, on_a_disk.request, "POST", path, task()) > 10


@pytest.mark.sqlite
def test_writes_that_come_while_a_slow_disk_is_at_work_share_its_next_turn(on_a_disk: Server, tmp_path: Path) -> None:
    path = f"{API}/runs/{on_a_disk.start_run()}/tasks"
    (tmp_path / "slow").touch()
    began = time.monotonic()
    with ThreadPoolExecutor(10) as pool:
        answers = list(pool.map(lambda _: on_a_disk.request("POST", path, task()).status_code, range(10)))
    assert answers == [201] * 10
    assert time.monotonic() - began < 1.5  # ten turns would take 3 seconds


@pytest.mark.sqlite
def test_what_the_disk_did_not_take_is_not_acknowledged(on_a_disk: Server, tmp_path: Path) -> None:
    path = f"{API}/runs/{on_a_disk.start_run()}/tasks"
    (tmp_path / "broken").touch()
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda _: on_a_disk.request("POST", path, task()), range(8)))
    for answer in answers:
        assert_storage_problem(answer, "storage_full")
    assert on_a_disk.request("GET", f"{API}/tasks").json["total"] == 0
    (tmp_path / "broken").unlink()
    assert on_a_disk.request("POST", path, task()).status_code == 201
    assert on_a_disk.request("GET", f"{API}/tasks").json["total"] == 1
    assert on_a_disk.stop() == 0
    assert faults_of(on_a_disk.db) == []


def crash(_: object) -> NoReturn:
    raise ValueError("no route of ours does that")


def test_whatever_goes_wrong_in_or_beside_a_group_it_is_answered_and_others_come(
    app: flask.Flask, caplog: pytest.LogCaptureFixture
) -> None:
    listeners = findings_service.Listeners()
    listeners.committed.append(lambda _: 1 // 0)
    environ = {"REQUEST_METHOD": "POST"}
    call = findings_service.Call(app.extensions["findings"], environ, "/", TESTER)

    async def write() -> list[int]:
        writes = commits.CommitScheduler(database_of(app), listeners)
        writes.start()
        try:
            stores = [findings_service.PendingWrite(call, store) for store in (crash, lambda _: None) * 2]
            return [(await asyncio.wait_for(writes.commit(each), 5)).status for each in stores]
        finally:
            writes.stop()

    assert asyncio.run(write()) == [500, 204] * 2
    assert "no route of ours" in caplog.text
    assert "ZeroDivisionError" in caplog.text


class Group:
    """Requests that a service answers in one transaction, as the front door has it do."""

    def __init__(self, app: flask.Flask, key: str) -> None:
        self.service = app.extensions["findings"]
        self.writes = commits.CommitScheduler(self.service.database, self.service.listeners)
        self._key = key

    def environ(self, method: str, path: str, body: Any = None, **headers: str) -> dict[str, Any]:
        """Return a request as the front door has it."""
        given = {f"HTTP_{name.upper()}": value for name, value in headers.items()}
        environ = {
            "REQUEST_METHOD": method,
            "PATH_INFO": path,
            "QUERY_STRING": "",
            "CONTENT_TYPE": "application/json",
            "HTTP_AUTHORIZATION": f"Bearer {self._key}",
            **given,
        }
        return environ | {"body": b"" if body is None else json.dumps(body).encode()}

    def ask(self, *requests: dict[str, Any]) -> list[tuple[int, Any]]:
        """Return status and JSON of each answer."""
        calls = [findings_service.Call(self.service, environ, environ["PATH_INFO"]) for environ in requests]
        given = [call.begin(findings_service.Body(call.environ["body"])) for call in calls]
        pairs = zip(calls, given, strict=True)
        given = [call.finish(each) if isinstance(each, findings_service.Deferred) else each for call, each in pairs]
        writes = [waiting(each) for each in given if isinstance(each, findings_service.PendingWrite)]
        self.writes._waiting.extend(writes)
        self.writes._settle = lambda _: None
        while self.writes._waiting:
            self.writes._commit_group()
        stored = (write.answer for write in writes)
        answers = [each if isinstance(each, findings_service.Answer) else next(stored) for each in given]
        return [(each.status, json.loads(each.body) if each.body else None) for each in answers]


def waiting(pending: findings_service.PendingWrite, seconds: float = 60.0) -> commits.Write:
    """Return a write that waits to be committed."""
    return commits.Write(pending, None, time.monotonic() + seconds)


@pytest.fixture
def unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Groups of writes end with the last one that waits, also on a machine that is busy with something else."""
    monkeypatch.setattr(commits, "GROUP_TIME", 60)


@pytest.fixture
def group(app: flask.Flask, client: Client, unhurried: None) -> Group:
    return Group(app, client.key)


@pytest.mark.sqlite
def test_submissions_of_one_finding_in_a_group_are_one_task_and_the_last_has_the_last_word(
    client: Client, run: str, group: Group
) -> None:
    titles = ("first", "second", "third")
    bodies = [task(externalId="same", title=title) for title in titles]
    answers = group.ask(*(group.environ("POST", f"{API}/runs/{run}/tasks", body) for body in bodies))
    assert [(status, each["tasks"][0]["result"]) for status, each in answers] == [
        (201, "created"),
        (200, "updated"),
        (200, "updated"),
    ]
    (stored,) = client.read("tasks")["tasks"]
    assert (stored["title"], stored["timesSeen"]) == ("third", 1)


@pytest.mark.sqlite
@pytest.mark.parametrize("key", [None, "k"])
def test_a_run_that_ends_in_the_middle_of_a_group_has_what_came_before(
    client: Client, run: str, group: Group, key: str | None
) -> None:
    path, headers = f"{API}/runs/{run}", {"Idempotency_Key": key} if key else {}
    requests = [group.environ("POST", f"{path}/tasks", task(externalId=name)) for name in "ab"]
    requests.append(group.environ("POST", f"{path}/tasks", task(externalId="b", title="newer"), **headers))
    requests.append(group.environ("POST", f"{path}/tasks", task(severity="worst")))
    requests.append(group.environ("POST", f"{API}/runs/nowhere/tasks", task()))
    requests.append(group.environ("PATCH", path, {"status": "completed"}))
    requests.append(group.environ("POST", f"{path}/tasks", task(externalId="c")))
    assert [status for status, _ in group.ask(*requests)] == [201, 201, 200, 422, 404, 200, 409]
    assert [(item["externalId"], item["title"]) for item in client.read("tasks", sort="createdAt")["tasks"]] == [
        ("a", task()["title"]),
        ("b", "newer"),
    ]
    assert client.read(f"runs/{run}")["summary"]["total"] == 2


@pytest.mark.sqlite
def test_triage_in_a_group_comes_before_what_is_asked_for_behind_it(client: Client, run: str, group: Group) -> None:
    ids = [client.add(run) for _ in range(2)]
    one = f"{API}/tasks/{ids[0]}"
    answers = group.ask(
        group.environ("PATCH", one, {"status": "in_progress"}),
        group.environ("PATCH", f"{API}/tasks", {"ids": ids, "status": "dismissed"}),
        group.environ("PATCH", one, {"comment": "so be it"}),
        group.environ("DELETE", one),
    )
    assert [status for status, _ in answers] == [200, 200, 200, 204]
    assert [answers[0][1]["status"], answers[2][1]["status"]] == ["in_progress", "dismissed"]
    assert [item["id"] for item in client.read("tasks")["tasks"]] == ids[1:]


@pytest.mark.sqlite
def test_one_write_that_fails_leaves_the_others_of_its_group_alone(
    client: Client, run: str, group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    insert = findings_service.insert_history

    def failing(connection: Any, entries: Any) -> None:
        insert(connection, entries := list(entries))
        (title,) = connection.execute("SELECT title FROM tasks WHERE seq = ?", (entries[0][1],)).fetchone()
        if title == "bad":
            raise sqlite3.IntegrityError("made up")

    monkeypatch.setattr(findings_service, "insert_history", failing)
    path = f"{API}/runs/{run}/tasks"
    titles = ("one", "two", "bad", "three")
    answers = group.ask(*(group.environ("POST", path, task(title=title)) for title in titles))
    assert [status for status, _ in answers] == [201, 201, 500, 201]
    assert {item["title"] for item in client.read("tasks")["tasks"]} == {"one", "two", "three"}
    assert client.read(f"runs/{run}")["submitted"]["created"] == 3


@pytest.mark.sqlite
def test_a_transaction_that_the_disk_ended_is_not_begun_again_by_the_next_write_of_its_group(
    app: flask.Flask, client: Client, run: str, group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ending(connection: Any, *_: Any) -> NoReturn:
        connection.execute("ROLLBACK")
        raise full_error()

    monkeypatch.setattr(findings_service, "insert_history", ending)
    path = f"{API}/runs/{run}/tasks"
    answers = group.ask(*(group.environ("POST", path, task()) for _ in range(3)))
    assert [status for status, _ in answers] == [503] * 3
    assert not writer_of(app).in_transaction
    assert client.read("tasks")["total"] == 0


def test_what_a_database_undid_is_done_again_behind_any_wsgi_server(
    app: flask.Flask, client: Client, run: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def undo_first(*given: Any) -> None:
        commits.append(given)
        if len(commits) == 1:
            raise TryAgain
        commit(*given)

    headers, commits = {"Idempotency-Key": "one"}, list[Any]()
    kind, name = what_commits()
    commit = getattr(kind, name)
    monkeypatch.setattr(kind, name, undo_first)
    answered = client.post(f"{API}/runs/{run}/tasks", json=task(title="Émile"), headers=headers)
    assert answered.status_code == 201
    assert len(commits) == 2
    assert [task["title"] for task in client.read("tasks")["tasks"]] == ["Émile"]
    assert client.post(f"{API}/runs/{run}/tasks", json=task(title="Émile"), headers=headers).json == answered.json
    assert client.read("overview")["total"] == 1


def test_a_client_that_goes_while_its_write_waits_harms_nobody(server: Server) -> None:
    path, body = f"{API}/runs/{server.start_run()}/tasks", json.dumps(task()).encode()
    with locked(server.db):
        for _ in range(5):
            with socket.create_connection(("127.0.0.1", server.port), timeout=10) as connection:
                connection.sendall(server.head_of(path, len(body)) + body)
                time.sleep(0.03)
    assert server.request("POST", path, task()).status_code == 201
    deadline = time.monotonic() + 10
    while (total := server.request("GET", f"{API}/tasks").json["total"]) != 6:  # PostgreSQL stores several at once
        assert time.monotonic() < deadline, total
    assert "Traceback" not in server.heard()


# ---------------------------------------------------------------------------
# Several processes on one file
# ---------------------------------------------------------------------------


def insist(server: Server, path: str, body: Any) -> int:
    """Send a request again until it is not answered with busy, and return its status."""
    while (answer := server.request("POST", path, body)).status_code == 503:
        assert_storage_problem(answer, "busy")
    return answer.status_code


def test_two_workers_lose_and_double_nothing_while_keys_are_made(serve: Callable[..., Server]) -> None:
    server = serve("--workers", "2")
    run, db = server.start_run(), ("--db", str(server.db))
    batches = [{"tasks": [task(externalId=f"{n // 2}.{i}", title=f"{n}") for i in range(5)]} for n in range(200)]
    with ThreadPoolExecutor(12) as pool:
        keys = [pool.submit(command, "keys", "create", f"key {n}", *db) for n in range(4)]
        statuses = list(pool.map(lambda body: insist(server, f"{API}/runs/{run}/tasks", body), batches))
    assert (statuses.count(201), statuses.count(200)) == (100, 100)
    assert {server.request("GET", f"{API}/runs", key=key.result().stdout.strip()).status_code for key in keys} == {200}
    with look_into(server.db) as connection:
        found = connection.execute("SELECT external_id FROM tasks ORDER BY external_id").fetchall()
    assert found == sorted((f"{n}.{i}",) for n in range(100) for i in range(5))
    assert server.request("GET", f"{API}/runs/{run}").json["submitted"] | {"unchanged": 0, "updated": 0} == {
        "created": 500,
        "updated": 0,
        "reopened": 0,
        "unchanged": 0,
        "resolved": 0,
    }
    assert faults_of(server.db) == []


KEEPING_HOUSE = """
import sys
from findings_service import Settings, SQLiteDatabase

database = SQLiteDatabase(Settings(db=sys.argv[1]))
for _ in sys.stdin:
    with database.transaction() as connection:
        connection.execute("INSERT OR REPLACE INTO clients VALUES ('x', '')")
    database.run_maintenance()
    with database.reading() as reader, database.maintaining() as writer, database.apart() as apart:
        print([each.execute("PRAGMA wal_autocheckpoint").fetchone()[0] for each in (writer, reader, apart)], flush=True)
"""


@pytest.mark.sqlite
def test_one_process_checkpoints_and_another_takes_over(tmp_path: Path) -> None:
    line, pipes = [sys.executable, "-c", KEEPING_HOUSE, db_at(tmp_path / "x.db")], {"stdin": -1, "stdout": -1}
    first, second = (subprocess.Popen(line, cwd=HERE, bufsize=0, **pipes) for _ in range(2))

    def step(process: subprocess.Popen[bytes]) -> Any:
        process.stdin.write(b"\n")
        return json.loads(process.stdout.readline())

    try:
        for _ in range(3):
            assert step(first) == [findings_service.CHECKPOINT_PAGES, 0, 0]
            assert (tmp_path / "x.db-wal").stat().st_size == 0  # of what the other one wrote
            assert step(second) == [0, 0, 0]
            assert (tmp_path / "x.db-wal").stat().st_size > 0
        first.kill()
        first.wait()
        assert step(second) == [findings_service.CHECKPOINT_PAGES, 0, 0]
    finally:
        for each in (first, second):
            each.kill()
            each.communicate()
    assert faults_of(tmp_path / "x.db") == []


@pytest.mark.sqlite
def test_no_command_checkpoints_beside_a_service(serve: Callable[..., Server]) -> None:
    server = serve(program=program_with(HOUSEKEEPING=60))
    server.start_run()
    wal = server.db.with_name("served.db-wal")
    before, file = wal.stat().st_size, server.db.read_bytes()
    lines = ("keys create one", "keys list", "keys revoke one", "check", "prune --finished-before 1d")
    for line in lines:
        assert invoke(*line.split(), "--db", str(server.db)).exit_code == 0
    assert wal.stat().st_size > before > 0
    assert server.db.read_bytes() == file


@pytest.mark.sqlite
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make files that are another's")
def test_root_leaves_the_lock_to_the_databases_owner(aged: Path) -> None:
    aged.with_name("findings.db-checkpointer").unlink()
    os.chown(aged, 65534, 65534)
    database_of(create_app(db=str(aged)))
    lock = aged.with_name("findings.db-checkpointer").stat()
    assert (lock.st_uid, lock.st_gid, stat.S_IMODE(lock.st_mode)) == (65534, 65534, 0o600)


@pytest.mark.sqlite
@pytest.mark.parametrize(
    ("number", "held"), cases(no_locks=(errno.ENOLCK, True), taken=(errno.EWOULDBLOCK, False), windows=(None, True))
)
def test_a_system_without_locks_checkpoints_in_each_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int | None, held: bool
) -> None:
    def refuse(*_: Any) -> NoReturn:
        raise OSError(number, "")

    monkeypatch.setattr("fcntl.flock", refuse)
    if number is None:
        monkeypatch.setattr(findings_service, "fcntl", None)
    checkpointer = findings_service.Checkpointer(str(tmp_path / "x.db"))
    assert checkpointer.try_take() == held
    checkpointer.give_back()


def children_of(process_id: int) -> list[int]:
    """Return the processes that a process has begun."""
    return [int(child) for child in Path(f"/proc/{process_id}/task/{process_id}/children").read_text("ascii").split()]


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="only Linux tells a process's children")
@pytest.mark.parametrize("number", [0, 1, 2])
def test_all_workers_stop_when_one_dies(serve: Callable[..., Server], number: int) -> None:
    server = serve("--workers", "2")
    processes = [server.process.pid, *children_of(server.process.pid)]
    assert len(processes) == 3
    os.kill(processes[number], signal.SIGKILL)
    assert server.process.wait(10) == (1 if number else -signal.SIGKILL)
    assert not number or "a worker died, and so all were stopped" in server.heard()
    deadline = time.monotonic() + 10
    while left := [process for process in processes if is_running(process)]:
        assert time.monotonic() < deadline, left


def is_running(process_id: int) -> bool:
    """Tell whether a process has not ended; one that nobody has waited for has."""
    try:
        return Path(f"/proc/{process_id}/stat").read_text("ascii").rpartition(") ")[2][0] != "Z"
    except OSError:
        return False


# ---------------------------------------------------------------------------
# Hostile schemas
# ---------------------------------------------------------------------------

WAIT = 1.5  # seconds that a hostile request may take on a machine that is not slow: one, and some for the other tests
USUAL = 0.03  # seconds that what `slowness` counts takes there


@pytest.fixture(scope="module")
def besieged(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A real server that hostile clients share with others; bodies must arrive in half a second."""
    db = tmp_path_factory.mktemp("besieged") / "besieged.db"
    line = [*PROGRAM, "serve", "--port", "0", "--db", str(db)]
    server = start_process(line, db, r"curl .*\n", FINDINGS_BODY_TIMEOUT="0.5")
    try:
        server.start_run()
        yield server
        assert server.process.poll() is None
    finally:
        code = server.stop()
    assert code == 0


@pytest.fixture(scope="module")
def hostile_key(besieged: Server) -> str:
    return command("keys", "create", "hostile", "--client", "hostile", "--db", str(besieged.db)).stdout.strip()


def slowness() -> float:
    """Return how many times as long as usual the processor takes now, at least 1, whatever else it has to do."""
    began, total = time.thread_time(), 0
    for number in range(1_000_000):
        total += number
    return max(1.0, (time.thread_time() - began) / USUAL)


@contextmanager
def another_client(server: Server, bound: float) -> Iterator[None]:
    """Let another client read all the while, and check that it is always answered, each time within `bound` seconds."""
    waits, done = list[float](), threading.Event()

    def read() -> None:
        while not waits or not done.wait(0.02):
            began = time.monotonic()
            assert server.request("GET", f"{API}/runs").json["total"] >= 1
            waits.append(time.monotonic() - began)

    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(read)
        try:
            yield
        finally:
            done.set()
        reading.result()
    assert max(waits) < bound or max(waits) < bound * slowness()


def in_time(server: Server, path: str, body: Any, key: str) -> Answer:
    """Send a POST, and check that it is answered in bounded time."""
    began = time.monotonic()
    answer = server.request("POST", f"{API}/{path}", body, key)
    took = time.monotonic() - began
    assert took < WAIT or took < WAIT * slowness()
    return answer


def judged(server: Server, key: str, schema: Any, extensions: Any) -> Answer:
    """Register a schema and submit extensions, in bounded time each, and return the last answer."""
    name = f"hostile-{time.monotonic_ns()}"
    answer = in_time(server, "project-types", {"name": name, "extensionSchema": schema}, key)
    if answer.status_code != 201:
        return answer
    run = in_time(server, "runs", {"projectType": name}, key).json["id"]
    return in_time(server, f"runs/{run}/tasks", task(extensions=extensions), key)


NEWEST = "https://json-schema.org/draft/2020-12/schema"
DRAFT_7 = "http://json-schema.org/draft-07/schema#"
REGEX = {"pattern": "^(a|aa)+$"}
NAMES = {"patternProperties": {"^(a|aa)+$": {}}}
LONG_NAME = {"a" * 60 + "!": 1}
MERSENNE = 2**61 - 1  # whole multiples of it have the same hash
HOSTILE = cases(
    regex=(in_a(REGEX), ENDLESS),
    regex_with_lookbehind=(in_a({"pattern": "(?<=(a|aa)+)(a|aa)+$"}), ENDLESS),
    regex_of_unevaluated_names=(NAMES | {"unevaluatedProperties": False}, LONG_NAME),
    regex_of_additional_names=(NAMES | {"additionalProperties": False}, LONG_NAME),
    regex_under_the_same_draft=(in_a({"$schema": NEWEST} | REGEX), ENDLESS),
    regex_under_another_draft=(in_a({"$schema": DRAFT_7} | REGEX), ENDLESS),
    regex_behind_a_reference=({"$ref": "#/x/y", "x": {"y": {"$schema": NEWEST} | in_a(REGEX)}}, ENDLESS),
    unique_numbers=(in_a({"uniqueItems": True}), {"a": [*range(20_000), 0]}),
    unique_lists=(in_a({"uniqueItems": True}), {"a": [[n, {}] for n in [*range(20_000), 0]]}),
    unique_hashes=(in_a({"uniqueItems": True}), {"a": [n * MERSENNE for n in range(10_000)]}),
    all_of_bomb_with_items=(doubling(30) | in_a({"$ref": "#/$defs/d0", "unevaluatedItems": False}), {"a": [1]}),
    recursion=({"$ref": "#"}, {}),
    recursion_that_branches=({"anyOf": [{"$ref": "#"}, {"$ref": "#"}]}, {}),
    chain_of_references=(
        {"$defs": {f"d{n}": {"$ref": f"#/$defs/d{n + 1}"} for n in range(9_999)}, "$ref": "#/$defs/d0"},
        {},
    ),
    enumeration=({"properties": {"a": {"items": {"enum": list(range(100_000))}}}}, {"a": [-1] * 10_000}),
    enumeration_of_lists=(in_a({"items": {"enum": [[[n]] for n in range(20_000)]}}), {"a": [[[-1]]] * 5_000}),
    unevaluated_items=(
        in_a({"prefixItems": [{}], "unevaluatedItems": {"type": "integer"}}),
        {"a": [*range(30_000), "x"]},
    ),
    unevaluated_contains=(
        in_a({"contains": {"multipleOf": 2}, "unevaluatedItems": {"multipleOf": 3}}),
        {"a": list(range(30_000))},
    ),
    unwanted_properties=({"additionalProperties": False}, {f"property-{n}": 0 for n in range(12_000)}),
    required_properties=({"required": [f"property-{n}" for n in range(100_000)]}, {}),
    huge_multiple=(in_a({"multipleOf": 0.1}), {"a": 10**400}),
    huge_divisor=(in_a({"multipleOf": 10**400}), {"a": 1.5}),
    any_of=({"anyOf": [{"required": [f"p{n}"]} for n in range(50_000)]}, {}),
    any_of_long_values=({"anyOf": [{"type": "string"}] * 50_000}, {"a": "x" * 200_000}),
    one_of=({"oneOf": [{"minProperties": 1}] * 50_000}, {"a": 1}),
    joined_patterns=(
        {"additionalProperties": False, "patternProperties": {f"^p{n}(a{{90}}){{90}}$": {} for n in range(100)}},
        {f"p{n}": n for n in range(20_000)},
    ),
    evaluated=(
        {"patternProperties": {f"^p{n}$": {} for n in range(200)}, "unevaluatedProperties": False},
        {f"p{n}": n for n in range(4000)},
    ),
)


@pytest.mark.parametrize(("schema", "extensions"), HOSTILE)
def test_a_hostile_schema_costs_its_own_client_only(
    besieged: Server, hostile_key: str, schema: Any, extensions: Any
) -> None:
    with another_client(besieged, 1.0):
        answer = judged(besieged, hostile_key, schema, extensions)
    assert answer.status_code == 422, answer.data


def test_one_clients_hostile_checks_do_not_time_anothers_out(serve: Callable[..., Server]) -> None:
    server = serve(FINDINGS_SCHEMA_TIMEOUT="8s")  # a second for one task, of which a slow one needs a tenth
    key = command("keys", "create", "hostile", "--db", str(server.db)).stdout.strip()
    path = f"{API}/runs/{server.start_run(in_a(REGEX))}/tasks"
    length, took = 16, 0.0
    while took < 0.04:
        length, began = length + 1, time.monotonic()
        regex.search(REGEX["pattern"], "a" * length + "!")
        took = time.monotonic() - began
    slow, codes = task(extensions={"a": "a" * length + "!"}), set()
    with ThreadPoolExecutor(1) as pool:
        hostile = pool.submit(lambda: [server.request("POST", path, task(extensions=ENDLESS), key) for _ in range(2)])
        while not hostile.done():
            codes.add(server.request("POST", path, slow).json["code"])
    assert {answer.json["code"] for answer in hostile.result()} == {"extension_check_timeout"}
    assert codes == {"validation_failed"}


NUMBERS = {"items": {"anyOf": [{"const": number} for number in range(561)]}}
FLOATS = {"items": {"anyOf": [*[{"maximum": -0.5}] * 300, True]}}  # jsonschema-rs accepts it, where it is here
QUICK_CHECKS = cases(last=(NUMBERS, [560] * 2000, 100), first=(NUMBERS, [0] * 90, 100), quick=(FLOATS, [0.5] * 8, 400))


@pytest.mark.parametrize(("rule", "value", "count"), QUICK_CHECKS)
def test_many_quick_checks_cost_their_own_client_only(
    besieged: Server, hostile_key: str, rule: Any, value: Any, count: int
) -> None:
    body = {"name": f"product-{time.monotonic_ns()}", "extensionSchema": in_a(rule)}
    for _ in range(10):  # a busy machine may need longer for it than it may take
        made = besieged.request("POST", f"{API}/project-types", body, hostile_key)
        if made.status_code == 201:
            break
        assert made.json["code"] == "extension_check_timeout"
    assert made.status_code == 201
    run = besieged.request("POST", f"{API}/runs", {"projectType": body["name"]}, hostile_key).json["id"]
    with another_client(besieged, 1.0):
        batch = {"tasks": [task(extensions={"a": value})] * count}
        besieged.request("POST", f"{API}/runs/{run}/tasks", batch, hostile_key)


MUCH = cases(
    no_place=("runs", b'{"projectType": "web", "metadata": {"a": [' + b'"\\u0000",' * 400_000 + b'""]}}'),
    short_searches=("runs/RUN/tasks", b'{"evidence": [' + b'{"label": ""},' * 160_000 + b"{}]}"),
)


@pytest.mark.parametrize(("path", "body"), MUCH)
def test_much_that_is_wrong_costs_its_own_client_only(
    besieged: Server, hostile_key: str, path: str, body: bytes
) -> None:
    besieged.request("POST", f"{API}/project-types", {"name": "web"}, hostile_key)
    run = besieged.request("POST", f"{API}/runs", {"projectType": "web"}, hostile_key).json["id"]
    with another_client(besieged, 1.0):
        answer = besieged.request("POST", f"{API}/{path.replace('RUN', run)}", body, hostile_key)
    assert_problem(answer, 422, "validation_failed")


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="the memory of a process is read from /proc")
def test_hundreds_of_heavy_patterns_do_not_stay_in_memory(server: Server) -> None:
    def register(number: int) -> None:
        schema = in_a({"pattern": f"[a-z0-9]{{4000}}{number}"})
        body = {"name": f"heavy-{number}", "extensionSchema": schema}
        assert server.request("POST", f"{API}/project-types", body).status_code == 201
        run = server.request("POST", f"{API}/runs", {"projectType": body["name"]}).json["id"]
        answer = server.request("POST", f"{API}/runs/{run}/tasks", task(extensions={"a": "x"}))
        assert_problem(answer, 422, "validation_failed", "/extensions/a")

    for number in range(20):
        register(number)
    before = memory_of(server)
    for number in range(20, 270):
        register(number)
    assert memory_of(server) - before < 30


@pytest.mark.parametrize("text", ['{"not":', '{"properties":{"a":', "[", '{"allOf":[{},'])
def test_a_schema_ten_thousand_levels_deep_is_refused(besieged: Server, hostile_key: str, text: str) -> None:
    ends = "".join("]" if bracket == "[" else "}" for bracket in reversed(re.findall(r"[\[{](?!\})", text)))
    schema = text * 10_000 + "{}" + ends * 10_000
    with another_client(besieged, 1.0):
        answer = in_time(besieged, "project-types", f'{{"name": "deep", "extensionSchema": {schema}}}', hostile_key)
    assert_problem(answer, 400, "malformed_json")


def references_to(base: str) -> list[dict[str, Any]]:
    """Return schemas that would have somebody fetch what is at `base`."""
    older = {"$schema": DRAFT_7}
    return [
        {"$ref": f"{base}/schema"},
        {"$ref": f"{base}/schema#/$defs/a"},
        {"$dynamicRef": f"{base}/schema#a"},
        {"$schema": f"{base}/draft"},
        {"$id": f"{base}/", "$ref": "other"},
        {"$id": f"{base}/", "properties": {"a": {"items": {"$ref": "other#/x"}}}},
        in_a({"$schema": f"{base}/draft"}),
        {"$ref": "#/x", "x": {"$ref": f"{base}/schema"}},
        older | {"$ref": f"{base}/schema"},
        older | {"definitions": {"a": {"$id": f"{base}/a", "$ref": "b"}}, "$ref": "#/definitions/a"},
        {"$schema": "http://json-schema.org/draft-04/schema#", "id": f"{base}/", "$ref": "other"},
        {"$schema": "http://json-schema.org/draft-03/schema#", "extends": {"$ref": f"{base}/schema"}},
        {"$schema": "https://json-schema.org/draft/2019-09/schema", "$recursiveRef": f"{base}/schema"},
    ]


def test_nothing_is_ever_connected_to_or_read(client: Client, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")  # whoever opens it to read waits for ever
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(0.2)
        remote = f"http://127.0.0.1:{listener.getsockname()[1]}"
        for schema in references_to(remote) + references_to(f"file://{tmp_path}/pipe"):
            body = {"name": "remote", "extensionSchema": schema}
            assert_problem(client.post(f"{API}/project-types", json=body), 422, "validation_failed")
        client.register("web", {"$id": f"{remote}/root", "$ref": "#/$defs/a", "$defs": {"a": {"$comment": remote}}})
        urls = {"url": f"{remote}/image.png"}
        client.add(
            client.start("web", targetUrl=remote), evidence=[urls, {"type": "screenshot"} | urls], extensions=urls
        )
        client.read("tasks", view="full")
        with pytest.raises(TimeoutError):
            listener.accept()


# ---------------------------------------------------------------------------
# Hostile HTTP
# ---------------------------------------------------------------------------


def speak(server: Server, text: bytes, *, ends: bool = False) -> bytes:
    """Send bytes and return all that comes back until the server closes; with `ends` it knows that nothing follows."""
    heard = bytearray()
    with socket.create_connection(("127.0.0.1", server.port), timeout=20) as connection:
        with suppress(BrokenPipeError, ConnectionResetError):
            connection.sendall(text)
        with suppress(ConnectionResetError):
            if ends and not heard:
                with suppress(OSError):  # closed already
                    connection.shutdown(socket.SHUT_WR)
            while part := connection.recv(65536):
                heard += part
    return bytes(heard)


def raw_request(server: Server, method: str, path: bytes | str, body: bytes = b"", *headers: str) -> bytes:
    """Return the bytes of a request that closes the connection, with its length unless `headers` has one."""
    lines = ["Host: localhost", "Connection: close", f"Authorization: Bearer {server.key}", *headers]
    if body:
        lines.append("Content-Type: application/json")
        if not any(header.startswith(("Content-Length", "Transfer-Encoding")) for header in headers):
            lines.append(f"Content-Length: {len(body)}")
    start = path.encode() if isinstance(path, str) else path
    return method.encode() + b" " + start + b" HTTP/1.1\r\n" + "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def status_of(heard: bytes) -> int:
    """Return the status of an answer, 0 where the connection was closed without one."""
    return int(heard.split(b" ", 2)[1]) if heard.startswith(b"HTTP/1.1 ") else 0


def assert_refused(heard: bytes) -> None:
    """Check that a request was refused: in our form, or with the HTTP server's bare answer, or by hanging up."""
    assert status_of(heard) in (0, *range(400, 500)), heard[:300]
    assert b"application/problem+json" in heard or len(heard) < 300


@pytest.fixture(scope="module")
def slow_headers(besieged: Server) -> Iterator[socket.socket]:
    """A connection whose request never gets on."""
    with socket.create_connection(("127.0.0.1", besieged.port), timeout=15) as connection:
        connection.sendall(b"GET /api/v1/tasks HTTP/1.1\r\nHost: loc")
        yield connection


@contextmanager
def half_open(server: Server, count: int, text: bytes) -> Iterator[list[socket.socket]]:
    """Keep connections open that have sent a part of a request."""
    connections = [socket.create_connection(("127.0.0.1", server.port), timeout=10) for _ in range(count)]
    try:
        for connection in connections:
            connection.sendall(text)
        yield connections
    finally:
        for connection in connections:
            connection.close()


@pytest.fixture(scope="module")
def stopping(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Future[tuple[int, float]]]:
    """A server that is told to stop while connections hang: how it ended, and after how many seconds."""
    db = tmp_path_factory.mktemp("stopping") / "stopping.db"
    line = [*PROGRAM, "serve", "--port", "0", "--db", str(db)]
    server = start_process(line, db, r"curl .*\n", FINDINGS_BODY_TIMEOUT="3")

    def stop() -> tuple[int, float]:
        began = time.monotonic()
        return server.stop(), time.monotonic() - began

    with (
        half_open(server, 20, b""),
        half_open(server, 20, b"GET /api/v1/tasks HTTP/1.1\r\nHost: loc"),
        half_open(server, 20, server.head_of(f"{API}/runs", 1000) + b"{"),
        half_open(server, 20, b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"),
        half_open(server, 20, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"),
        ThreadPoolExecutor(1) as pool,
    ):
        time.sleep(0.2)
        stopped = pool.submit(stop)
        yield stopped
        stopped.result()


def test_half_open_connections_hold_nobody_up(besieged: Server, slow_headers: Any, stopping: Any) -> None:
    with (
        half_open(besieged, 300, b""),
        half_open(besieged, 150, b"POST /api/v1/runs HTTP/1.1\r\nHost: x\r\nContent-"),
        half_open(besieged, 50, besieged.head_of(f"{API}/runs", 100) + b"{"),
        another_client(besieged, 2.0),
    ):
        for _ in range(20):
            assert besieged.request("POST", f"{API}/runs", {"projectType": "web"}).status_code == 201


def test_a_slow_body_is_given_up(besieged: Server) -> None:
    with half_open(besieged, 20, besieged.head_of(f"{API}/runs", 100) + b"{") as connections:
        with another_client(besieged, 2.0), suppress(OSError):
            for _ in range(15):
                time.sleep(0.05)
                connections[0].sendall(b" ")
        for connection in connections:
            assert b"malformed_json" in connection.recv(65536)


BOTH_LENGTHS = cases(
    chunked_last=("Content-Length: 5", "Transfer-Encoding: chunked"),
    chunked_first=("Transfer-Encoding: chunked", "Content-Length: 62"),
)


@pytest.mark.parametrize("headers", [pytest.param(case.values, id=case.id) for case in BOTH_LENGTHS])
def test_a_request_with_both_lengths_is_one_request(besieged: Server, headers: tuple[str, ...]) -> None:
    hidden = raw_request(besieged, "POST", f"{API}/project-types", b'{"name": "smuggled"}')
    for body in (b"14\r\n" + b'{"name": "twofold"} ' + b"\r\n0\r\n\r\n", b"0\r\n\r\n"):
        heard = speak(besieged, raw_request(besieged, "POST", f"{API}/project-types", body, *headers) + hidden)
        assert heard.count(b"HTTP/1.1 ") <= 1
        assert status_of(heard) in (0, 200, 201, 400)
    assert besieged.request("GET", f"{API}/project-types/smuggled").status_code == 404


NEW_TYPE = b'{"name": "smuggled"}'
CUT = b'{"name": "smuggled" '
LIES = cases(
    too_short=(NEW_TYPE, "Content-Length: 5"),
    too_long=(NEW_TYPE, "Content-Length: 500"),
    negative=(NEW_TYPE, "Content-Length: -1"),
    no_number=(NEW_TYPE, "Content-Length: all"),
    signed=(NEW_TYPE, "Content-Length: +20"),
    enormous=(NEW_TYPE, f"Content-Length: {10**30}"),
    over_the_limit=(NEW_TYPE, f"Content-Length: {10**9}"),
    two_different=(NEW_TYPE, "Content-Length: 20", "Content-Length: 5"),
    unknown_coding=(NEW_TYPE, "Transfer-Encoding: gzip"),
    coded_twice=(b"14\r\n" + NEW_TYPE + b"\r\n0\r\n\r\n", "Transfer-Encoding: chunked, identity"),
    bad_chunks=(b"zz\r\n" + NEW_TYPE + b"\r\n0\r\n\r\n", "Transfer-Encoding: chunked"),
    unending_chunks=(b"14\r\n" + CUT + b"\r\n", "Transfer-Encoding: chunked"),
    cut_chunk=(b"ff\r\n" + CUT, "Transfer-Encoding: chunked"),
    enormous_chunk=(b"f" * 30 + b"\r\n" + CUT, "Transfer-Encoding: chunked"),
)


@pytest.mark.parametrize("ends", [False, True], ids=["open", "ended"])
@pytest.mark.parametrize("row", [pytest.param(case.values, id=case.id) for case in LIES])
def test_a_lie_about_the_length_is_refused_and_stores_nothing(besieged: Server, row: Any, ends: bool) -> None:
    body, *headers = row
    with another_client(besieged, 2.0):
        heard = speak(besieged, raw_request(besieged, "POST", f"{API}/project-types", body, *headers), ends=ends)
    assert_refused(heard)
    assert besieged.request("GET", f"{API}/project-types/smuggled").status_code == 404


def test_an_oversized_chunked_body_is_refused_before_its_end(server: Server) -> None:
    server.start_run()
    chunk = b"100000\r\n" + b" " * 0x100000 + b"\r\n"
    text = raw_request(server, "POST", f"{API}/project-types", NEW_TYPE, "Transfer-Encoding: chunked")
    with (
        another_client(server, 2.0),
        socket.create_connection(("127.0.0.1", server.port), timeout=5) as connection,
    ):
        connection.sendall(text.removesuffix(NEW_TYPE))
        with suppress(OSError):
            for _ in range(17):
                connection.sendall(chunk)
        assert b" 413 " in connection.recv(65536)


STRANGE = cases(
    no_path=b"GET\r\n\r\n",
    other_version=b"GET / HTTP/9.9\r\n\r\n",
    no_host=b"GET /api/v1/tasks HTTP/1.1\r\nConnection: close\r\n\r\n",
    no_colon=b"GET / HTTP/1.1\r\nHost: x\r\nnonsense\r\n\r\n",
    nul=b"GET / HTTP/1.1\r\nHost: x\r\nA: \0\r\n\r\n",
    long_header=b"GET / HTTP/1.1\r\nHost: x\r\nA: " + b"x" * 2_000_000 + b"\r\n\r\n",
    long_path=b"GET /" + b"x" * 2_000_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n",
    many_headers=b"GET / HTTP/1.1\r\n" + b"".join(b"A%d: 1\r\n" % n for n in range(10_000)) + b"\r\n",
    chunked_1_0=b"POST /api/v1/runs HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
    proxy=b"GET http://other.example/api/v1/tasks HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
    options=b"OPTIONS * HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
    connect=b"CONNECT other.example:80 HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
    brew=b"BREW /api/v1/tasks HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
    key_no_utf8=b"GET /api/v1/tasks HTTP/1.1\r\nAuthorization: Bearer \xff\xfe\r\nConnection: close\r\n\r\n",
    tls=bytes.fromhex("16030100c8010000c40303") + bytes(range(200)),
    http_2=b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(range(100, 200)),
    noise=random.Random(1).randbytes(5000),
)


@pytest.mark.parametrize("text", STRANGE)
def test_what_is_no_request_of_ours_is_refused(besieged: Server, text: bytes) -> None:
    with another_client(besieged, 2.0):
        assert_refused(speak(besieged, text))


STRANGE_HEADERS = cases(
    no_utf8="Cookie: \xff\xfe\r\nAccept: \xff\r\nX-Forwarded-For: \xff\r\nIf-None-Match: \xff",
    spoofed="Script-Name: /evil\r\nPath-Info: /x\r\nWsgi.Input: 1\r\nQuery-String: a=b\r\nX-HTTP-Method-Override: PUT",
    conditional="Range: bytes=0-1\r\nIf-Match: *\r\nIf-Modified-Since: Sat, 21 Nov 2026 00:00:00 GMT",
    expectation="Expect: 100-continue",
    strange_expectation="Expect: a miracle",
)


@pytest.mark.parametrize("headers", STRANGE_HEADERS)
def test_strange_headers_change_nothing(besieged: Server, headers: str) -> None:
    plain, strange = (raw_request(besieged, "GET", f"{API}/project-types", b"", *more) for more in ((), (headers,)))
    heard = [speak(besieged, text) for text in (plain, strange.decode().encode("latin-1"))]
    assert [status_of(each) for each in heard] == [200, 200]
    assert heard[0].split(b"\r\n\r\n")[1] == heard[1].split(b"\r\n\r\n")[-1]


NO_JSON = cases(
    no_utf8=b'{"x": "\xff\xfe"}',
    overlong=b'{"x": "\xc0\x80"}',
    raw_surrogate=b'{"x": "\xed\xa0\x80"}',
    escaped_surrogate=b'{"x": "\\ud800"}',
    surrogate_in_a_name=b'{"\\udfff": 1}',
    raw_nul=b'{"x": "\0"}',
    mark=b'\xef\xbb\xbf{"x": 1}',
    utf_16='{"x": 1}'.encode("utf-16"),
    deep_lists=b"[" * 100_000 + b"]" * 100_000,
    deep_objects=b'{"x":' * 100_000 + b"1" + b"}" * 100_000,
    deep_and_open=b'{"x":[' * 100_000,
    brackets=b"]" * 100_000,
    text_after=b"{} {}",
    not_a_number=b'{"x": NaN}',
    not_a_number_behind_digits=b'{"title": ' + b"9" * 4301 + b', "x": NaN}',
    huge_exponent=b'{"x": 1e999}',
    surrogate_behind_digits=b'{"title": ' + b"9" * 5000 + b', "x": "\\ud800"}',
    huge_exponent_behind_digits=b'{"title": ' + b"9" * 5000 + b', "x": 1e999}',
    exponent_of_many_digits=b'{"title": ' + b"9" * 5000 + b', "x": 1e' + b"9" * 5000 + b"}",
    cut=b'{"x": "',
)
NO_OBJECT = cases(
    list=b"[]",
    null=b"null",
    true=b"true",
    number=b"1",
    text=b'"x"',
    nul=b'"\\u0000"',
    long_list=b"[" + b"0," * 99_999 + b"0]",
)
BODIED = [pytest.param(each, id=f"{each.method} {each.path}") for each in OPERATIONS if each.body is not None]


def send_to(server: Server, each: Any, body: bytes) -> Answer:
    """Send a body to an operation, about things that are there."""
    run = server.request("POST", f"{API}/runs", {"projectType": "web"}).json["id"]
    task_id = server.request("POST", f"{API}/runs/{run}/tasks", task()).json["tasks"][0]["id"]
    return server.request(each.method, each.path.format(run_id=run, task_id=task_id, name="web"), body)


@pytest.mark.parametrize("each", BODIED)
@pytest.mark.parametrize("body", NO_JSON)
def test_what_is_no_json_is_refused_everywhere(besieged: Server, each: Any, body: bytes) -> None:
    began = time.monotonic()
    assert_problem(send_to(besieged, each, body), 400, "malformed_json")
    assert time.monotonic() - began < 2


@pytest.mark.parametrize("each", BODIED)
@pytest.mark.parametrize("body", NO_OBJECT)
def test_what_is_no_object_is_refused_everywhere(besieged: Server, each: Any, body: bytes) -> None:
    assert_problem(send_to(besieged, each, body), 422, "validation_failed", "")


DIGITS = "7" * 5000
NUMBERED = cases(
    title=("POST", "runs/RUN/tasks", '{"title": NUMBER, "severity": "low"}'),
    severity=("POST", "runs/RUN/tasks", '{"title": "x", "severity": NUMBER}'),
    step=(
        "POST",
        "runs/RUN/tasks",
        '{"title": "x", "severity": "low", "remediation": [{"instruction": "x", "step": NUMBER}]}',
    ),
    automatable=(
        "POST",
        "runs/RUN/tasks",
        '{"title": "x", "severity": "low", "successCriteria": [{"automatable": NUMBER}]}',
    ),
    extensions=("POST", "runs/RUN/tasks", '{"title": "x", "severity": "low", "extensions": {"a": [NUMBER]}}'),
    unknown=("POST", "runs/RUN/tasks", '{"title": "x", "severity": "low", "a": NUMBER}'),
    tasks=("POST", "runs/RUN/tasks", '{"tasks": NUMBER}'),
    in_a_batch=(
        "POST",
        "runs/RUN/tasks",
        '{"tasks": [{"title": "x", "severity": "low", "extensions": {"a": NUMBER}}]}',
    ),
    metadata=("POST", "runs", '{"projectType": "web", "metadata": {"a": NUMBER}}'),
    target=("POST", "runs", '{"projectType": "web", "targetUrl": NUMBER}'),
    status=("PATCH", "runs/RUN", '{"status": NUMBER}'),
    schema=(
        "POST",
        "project-types",
        '{"name": "numbered", "extensionSchema": {"properties": {"a": {"maximum": NUMBER}}}}',
    ),
    length=("POST", "project-types", '{"name": "numbered", "extensionSchema": {"maxItems": NUMBER}}'),
)


@pytest.mark.parametrize(("method", "path", "body"), NUMBERED)
def test_a_number_of_five_thousand_digits_breaks_nothing(besieged: Server, method: str, path: str, body: str) -> None:
    run = besieged.request("POST", f"{API}/runs", {"projectType": "web"}).json["id"]
    for number in (DIGITS, f"-{DIGITS}", f"{DIGITS}.5", f"0.{DIGITS}", f"1e-{DIGITS}", f"1e{DIGITS}"):
        answer = besieged.request(method, f"{API}/{path.replace('RUN', run)}", body.replace("NUMBER", number))
        assert answer.status_code in (200, 201, 400, 409, 422), answer.data
        assert besieged.request("GET", f"{API}/tasks?view=full&runId={run}").status_code == 200
        assert besieged.request("GET", f"{API}/runs/{run}").status_code == 200


NASTY = (
    *(
        "%00",
        "%ff",
        "%ed%a0%80",
        "%",
        "%zz",
        "%2F",
        "%2e%2e",
        "..",
        "../..",
        ".",
        ";",
        "%3F",
        "%23",
        "%0d%0aX:%201",
        "%25",
    ),
    *(
        "x" * 5000,
        "%F0%9F%98%80",
        "{run_id}",
        "'%20OR%20''='",
        "-1",
        "NaN",
        "٣".encode().decode("latin-1"),
        "\xff",
        DIGITS,
    ),
    *("a,b", ",", "a=b", "a&b=c", "%26", "[]", "*", "|", "\\", '"', "<", "~", "%u0000", "+", "null"),
)


@pytest.mark.parametrize(
    "each", [pytest.param(each, id=f"{each.method} {each.path}") for each in OPERATIONS if "{" in each.path]
)
def test_an_id_may_be_anything(besieged: Server, each: Any) -> None:
    for nasty in NASTY:
        path = re.sub(r"\{\w+\}", lambda _, nasty=nasty: nasty, each.path).encode("latin-1")
        heard = speak(besieged, raw_request(besieged, each.method, path, b"" if each.body is None else b"{}"))
        assert_refused(heard)
        assert status_of(heard) in (400, 404), (path[:200], heard[:300])


@pytest.mark.parametrize("path", ["runs", "tasks", "project-types", f"tasks/{UNKNOWN_ID}", "openapi.json"])
def test_a_parameter_may_be_anything(besieged: Server, path: str) -> None:
    names = (
        "page",
        "limit",
        "after",
        "status",
        "severity",
        "runId",
        "projectType",
        "targetUrl",
        "missingFrom",
        "mainLine",
        "branch",
        "assignee",
        "assigned",
        "createdSince",
        "sort",
        "x",
    )
    for nasty in NASTY:
        for query in [f"{name}={nasty}" for name in names] + [nasty]:
            text = f"{API}/{path}?{query}".encode("latin-1")
            assert status_of(speak(besieged, raw_request(besieged, "GET", text))) in (200, 400, 404), text[:200]


def test_a_request_whose_headers_never_end_is_given_up(besieged: Server, slow_headers: socket.socket) -> None:
    with suppress(ConnectionResetError):
        assert not slow_headers.recv(1) or slow_headers.recv(65536)


def test_a_stop_waits_for_half_open_connections_but_not_for_long(stopping: Future[tuple[int, float]]) -> None:
    code, seconds = stopping.result(20)
    assert code == 0
    assert seconds < 13


@pytest.mark.parametrize("headers", [["Content-Length: 20000"], ["Transfer-Encoding: chunked"]])
def test_a_read_that_announces_a_body_holds_nobody_up_beside_a_lock(server: Server, headers: list[str]) -> None:
    server.start_run()
    with locked(server.db), socket.create_connection(("127.0.0.1", server.port), timeout=5) as connection:
        connection.sendall("\r\n".join(["GET /healthz HTTP/1.1", "Host: x", *headers, "\r\n"]).encode())
        time.sleep(0.1)
        began = time.monotonic()
        assert server.request("GET", f"{API}/runs").status_code == 200
        assert time.monotonic() - began < 1


BEFORE_THE_BODY = cases(
    path=("POST", "/nowhere", {}, 404),
    method=("PUT", f"{API}/runs", {}, 405),
    key=("POST", f"{API}/runs", {"Authorization": "Bearer fts_no"}, 401),
    level=("PUT", f"{API}/project-types/web", {}, 403),
    size=("POST", f"{API}/runs", {"Content-Length": str(17 * KIB * KIB)}, 413),
    chunked=("POST", f"{API}/runs", {"Transfer-Encoding": "chunked", "Authorization": "Bearer fts_no"}, 401),
    kind=("POST", f"{API}/runs", {"Content-Type": "text/plain"}, 415),
    encoding=("POST", f"{API}/runs", {"Content-Encoding": "gzip"}, 415),
)


@pytest.mark.parametrize(("method", "path", "headers", "status"), BEFORE_THE_BODY)
def test_what_can_be_judged_before_a_large_body_is(
    besieged: Server, hostile_key: str, method: str, path: str, headers: dict[str, str], status: int
) -> None:
    sent = {"Host": "x", "Authorization": f"Bearer {hostile_key}", "Content-Type": "application/json"} | headers
    if "Transfer-Encoding" not in sent:
        sent.setdefault("Content-Length", "1000000")
    lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in sent.items())]
    with socket.create_connection(("127.0.0.1", besieged.port), timeout=5) as connection:
        connection.sendall("\r\n".join([*lines, "\r\n"]).encode())
        heard = connection.recv(65536)  # although none of the body was sent
    assert status_of(heard) == status
    assert b"connection: close" in heard.lower()


# ---------------------------------------------------------------------------
# Fuzzing from the description
# ---------------------------------------------------------------------------


def without_long_texts(description: Any) -> Any:
    """Leave the bounds of the longest texts and lists out of a description: making some at them takes a minute.

    A list of more than a thousand values may also be a URL that is too long for any server, which is then the answer.
    """
    if isinstance(description, list):
        return [without_long_texts(item) for item in description]
    if not isinstance(description, dict):
        return description
    kept = {name: without_long_texts(value) for name, value in description.items()}
    bounds = {"maxLength": 5000, "maxItems": 1000}
    return {
        name: value for name, value in kept.items() if not isinstance(value, int) or value < bounds.get(name, value + 1)
    }


def without_nul(value: Any) -> Any:
    """Leave U+0000 out of what is free-form: its description says so in words alone."""
    return json.loads(re.sub(r"(?<!\\)((?:\\\\)*)\\u0000", r"\1", json.dumps(value)))


class Fitting:
    """Puts what exists, and what goes together, into good requests: a description cannot know of it."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.run, self.ended = server.start_run(), server.start_run()
        self.task = self.add(self.run)

    def add(self, run: str) -> str:
        """Return a new task."""
        return self.server.request("POST", f"{API}/runs/{run}/tasks", task()).json["tasks"][0]["id"]

    def ids_for(self, method: str) -> dict[str, str]:
        """Name what a method takes: PATCH ends another run than POST needs, and what DELETE takes is there for that."""
        if method != "DELETE":
            return {"run_id": self.ended if method == "PATCH" else self.run, "task_id": self.task, "name": "web"}
        self.server.request("POST", f"{API}/project-types", {"name": "unused"})
        run = self.server.start_run()
        return {"run_id": run, "task_id": self.add(run), "name": "unused"}

    def fit_path_and_query(self, case: Any) -> None:
        """Name a run, task or project type that exists."""
        ids = self.ids_for(case.method)
        case.query |= {"projectType": "web"} if case.path.endswith("brief") else {}
        case.path_parameters = {name: ids[name] for name in case.path_parameters or {}}
        if "after" in (case.query or {}):
            place = self.run if case.path.endswith("runs") else self.task
            case.query["after"] = f"high.{place}" if case.query.get("sort") == "severity" else place
            case.query.pop("page", None)

    def fit_body(self, method: str, body: dict[str, Any]) -> None:
        """Name a project type and tasks that exist, and mend what breaks a rule between several fields.

        A request that was not fitted may have deleted what it had met in an answer.
        """
        body |= {"ids": [self.add(self.server.start_run())]} if "ids" in body else {}
        body |= {"status": "resolved"} if body.get("reason") else {}
        body |= {"projectType": "web"} if "projectType" in body else {}
        body |= {"extensionSchema": {"properties": {"a": {}}}} if body.get("extensionSchema") else {}
        body |= {"metadata": without_nul(body["metadata"])} if body.get("metadata") else {}
        if method == "PUT" or body.get("status") == "failed":
            body.pop("name", None)
            body.pop("resolveMissing", None)
        for each in (body, *body.get("tasks", ())):
            each |= {"extensions": without_nul(each["extensions"])} if each.get("extensions") else {}
            for place, step in enumerate(each.get("remediation") or (), start=1):
                step["step"] = place


@pytest.fixture
def _fitting(server: Server) -> Iterator[None]:
    import schemathesis  # which takes a second, of each process that collects these tests, were it above

    fitting = Fitting(server)

    @schemathesis.hook
    def before_call(context: Any, case: Any, kwargs: Any) -> None:
        if case.meta.generation.mode.is_positive:
            fitting.fit_path_and_query(case)
            (case.headers or {}).pop("If-Match", None)
            if case.media_type == "application/sarif+json":  # a description of that fills books
                case.body = {"version": "2.1.0", "runs": [{"tool": {"driver": {"name": "x"}}, "results": []}]}
            elif isinstance(case.body, dict):
                fitting.fit_body(case.method, case.body)

    yield
    schemathesis.hooks.unregister(before_call)


@pytest.mark.usefixtures("_fitting")
def test_every_request_is_answered_as_the_description_says(server: Server) -> None:
    import schemathesis.engine.events

    document = without_long_texts(server.request("GET", f"{API}/openapi.json").json)
    settings = {
        "base-url": f"http://127.0.0.1:{server.port}",
        "headers": {"Authorization": f"Bearer {server.key}"},
        "seed": 1,
        "generation": {"max-examples": 10, "deterministic": True, "database": "none"},
        "phases": {"stateful": {"enabled": False}},
    }
    config = schemathesis.Config.from_dict(settings)
    faults, asked = [], 0
    for event in schemathesis.engine.from_schema(schemathesis.openapi.from_dict(document, config=config)).execute():
        assert not isinstance(event, (schemathesis.engine.events.FatalError, schemathesis.engine.events.NonFatalError))
        for checks in event.recorder.checks.values() if hasattr(event, "recorder") else ():
            asked += 1
            faults += [each.failure_info for each in checks if each.failure_info]
    assert not faults, "\n\n".join(f"{each.failure}\n{each.code_sample}" for each in faults)
    assert asked > 500


# ---------------------------------------------------------------------------
# Access
# ---------------------------------------------------------------------------

BODIES = {
    ("POST", "/api/v1/runs"): {"projectType": "web"},
    ("PATCH", "/api/v1/runs/{run_id}"): {"status": "completed"},
    ("POST", "/api/v1/runs/{run_id}/tasks"): task(),
    ("PATCH", "/api/v1/tasks/{task_id}"): {"status": "open"},
    ("PATCH", "/api/v1/tasks"): {"status": "open"},
    ("POST", "/api/v1/project-types"): {"name": "another"},
    ("PUT", "/api/v1/project-types/{name}"): {},
}
REFUSED_HOLDERS = ("nobody", "malformed", "unknown", "expired", "revoked")
HOLDERS = (*REFUSED_HOLDERS, *findings_service.LEVELS, "stranger")


def key_of(app: flask.Flask, holder: str) -> str:
    """Return the key that somebody sends."""
    level = holder if holder in findings_service.LEVELS else "full"
    key = make_key(app, holder, "other" if holder == "stranger" else "default", level)
    column = {"expired": "expires_at", "revoked": "revoked_at"}.get(holder)
    if column:
        with database_of(app).transaction() as connection:
            connection.execute(f"UPDATE api_keys SET {column} = created_at WHERE name = ?", (holder,))
    return {"nobody": "", "malformed": key[:-1], "unknown": f"fts_{'x' * 43}"}.get(holder, key)


@pytest.mark.parametrize("holder", HOLDERS)
@pytest.mark.parametrize("each", [pytest.param(each, id=f"{each.method} {each.path}") for each in OPERATIONS])
def test_every_route_is_open_to_whom_it_says(
    app: flask.Flask, client: Client, run: str, each: Any, holder: str
) -> None:
    client.register("unused")
    task_id, name = client.add(run, title="A secret"), "unused" if each.method == "DELETE" else "web"
    path = each.path.format(run_id=run, task_id=task_id, name=name)
    body = BODIES[each.method, each.path] if each.body is not None else None
    body = {"ids": [task_id], **body} if body and each is findings_service.patch_tasks else body
    asking = client_of(app)
    asking.key = key_of(app, holder)
    query = {"projectType": "web"} if each.query is brief.BriefQuery else None
    response = asking.open(path, method=each.method, json=body, query_string=query)
    if each.level is None:
        assert response.status_code == 200
    elif holder in REFUSED_HOLDERS:
        assert_problem(response, 401, "unauthorized")
    elif holder == "stranger":
        assert response.status_code in (404, 422) or "{" not in each.path
        assert "secret" not in response.text
        assert run in path or run not in response.text
    elif findings_service.LEVELS.index(holder) < findings_service.LEVELS.index(each.level):
        assert_problem(response, 403, "forbidden")
    else:
        assert response.status_code in (200, 201, 204)


METRICS = SimpleNamespace(method="GET", path="/metrics", level="read")  # which a service adds that has figures
FORMS = ("*/*", "text/csv", "application/sarif+json", "text/markdown")


@pytest.mark.parametrize("grouped", [False, True])
@pytest.mark.parametrize(
    "each", [pytest.param(each, id=f"{each.method} {each.path}") for each in (*OPERATIONS, METRICS) if each.level]
)
def test_a_key_that_was_good_until_now_opens_nothing_any_more(
    make_app: Callable[..., flask.Flask], each: Any, grouped: bool
) -> None:
    app = make_app(metrics="1")
    asking, other = client_of(app), client_of(app, name="other")
    asking.register("web")
    run = asking.start()
    path = each.path.format(run_id=run, task_id=asking.add(run), name="web")
    database = database_of(app)
    asking.read("tasks")
    with database.transaction("default") as connection:
        connection.execute("UPDATE api_keys SET revoked_at = created_at WHERE name = ?", ("tests",))
    bodies: list[Any] = [None, {"json": BODIES.get((each.method, each.path))}, {"data": "{"}, {"data": "{}"}]
    headers: list[dict[str, str]] = [{"Accept": form} for form in FORMS]
    headers += [
        {"Content-Type": "text/plain"},
        {"If-Match": "?"},
        {"Idempotency-Key": "x" * 256},
        {"Idempotency-Key": "1"},
    ]
    for place, body, header in itertools.product((path, f"{path}?limit=no", f"{path}x"), bodies, headers):
        given = {"content_type": findings_service.JSON_TYPE, **(body or {})}
        with database.transaction("default") if grouped else nullcontext():
            response = asking.open(place, method=each.method, headers=header, **given)
        assert response.status_code in ((401,) if place != f"{path}x" else (401, 404, 405)), (place, given, header)
        assert "errors" not in response.json
    assert other.read("tasks")["total"] == 1
    assert (other.read("runs")["total"], other.read(f"runs/{run}")["status"]) == (1, "running")


def test_a_key_is_in_no_log_no_error_and_no_link(server: Server) -> None:
    server.start_run()
    second = command("keys", "create", "second", "--db", str(server.db)).stdout.strip()
    for number in range(2):
        server.request("POST", f"{API}/runs", {"projectType": "web"}, key=second, **{"Idempotency-Key": f"{number}"})
    answers = [
        server.request(method, path, body, **headers)
        for method, path, body in (
            ("GET", f"{API}/runs?limit=1", None),
            ("POST", f"{API}/runs", "{"),
            ("GET", "/healthz", None),
        )
        for key in (server.key, second)
        for headers in (
            {"Authorization": f"Bearer {key}"},
            {"Authorization": f"Bearer {key}x"},
            {"Authorization": f"Basic {key}"},
            {"Authorization": key},
            {"X-Api-Key": key},
            {"Content-Type": key},
        )
    ]
    with look_into(server.db) as connection:
        connection.execute("DROP TABLE idempotent_answers")
    again = server.request("POST", f"{API}/runs", {"projectType": "web"}, key=second, **{"Idempotency-Key": "3"})
    answers.append(again)
    assert answers[-1].status_code == 500
    assert server.stop() == 0
    log = "".join(path.read_text("utf-8") for path in server.db.parent.glob("*.log"))
    assert "Traceback" in log
    assert (log.count(server.key), second in log) == (1, False)
    told = b"".join(answer.data + str(answer.headers).encode() for answer in answers)
    assert not KEY.search(told.decode())


LOGGED_FIELDS = ["time", "method", "route", "status", "ms", "bytes", "client", "key", "runId"]


def use_for_a_log(server: Server) -> str:
    """Send a few requests, of which one line each is to be logged, and return the run's id."""
    run = server.start_run()
    secret = task(title="a-secret-title", externalId="a-secret-id")
    server.request("POST", f"{API}/runs/{run}/tasks", secret, **{"Idempotency-Key": "a-secret-retry"})
    server.request("GET", f"{API}/tasks?externalId=a-secret-id")
    server.request("GET", f"{API}/tasks", key="fts_a-secret-key")
    server.request("GET", f"{API}/runs/%0Aforged%0D")
    server.request("GET", "/nowhere%0Aforged")
    server.request("PUT", f"{API}/runs/{run}", b"{}")
    server.request("POST", f"{API}/runs", b" " * 100_000, key="fts_a-secret-key")
    time.sleep(0.1)  # a line is written behind its answer
    return run


def test_the_access_log_has_a_json_line_for_each_request(serve: Callable[..., Server]) -> None:
    server = serve(FINDINGS_LOG="json")
    run = use_for_a_log(server)
    lines = [json.loads(line) for line in server.heard().splitlines() if line.startswith("{")][-8:]
    assert all(list(line) == LOGGED_FIELDS for line in lines)
    assert [
        tuple(line[name] for name in ("method", "route", "status", "client", "key", "runId")) for line in lines
    ] == [
        ("POST", f"{API}/runs", 201, "default", "first", run),
        ("POST", f"{API}/runs/{{run_id}}/tasks", 201, "default", "first", run),
        ("GET", f"{API}/tasks", 200, "default", "first", None),
        ("GET", f"{API}/tasks", 401, None, None, None),
        ("GET", f"{API}/runs/{{run_id}}", 404, "default", "first", None),
        ("GET", "-", 404, None, None, None),
        ("PUT", f"{API}/runs/{{run_id}}", 405, None, None, None),
        ("POST", f"{API}/runs", 401, None, None, None),
    ]
    assert all(TIME.fullmatch(line["time"]) and line["ms"] > 0 and line["bytes"] > 0 for line in lines)
    assert not any(word in str(lines) for word in ("secret", "forged", server.key))


def test_nobody_waits_for_who_does_not_read_the_access_log(tmp_path: Path) -> None:
    db, program = tmp_path / "x.db", program_with(WAITING_LINES=100)
    line = placed([*program, "serve", "--port", "0", "--db", db_at(db, ready=True)], HERE)
    asked, logged = environment(FINDINGS_LOG="text", FINDINGS_API_KEY=SECRET), 0
    with (
        subprocess.Popen(line, stderr=subprocess.PIPE, text=True, env=asked, cwd=HERE) as process,
        ExitStack() as stack,
    ):
        stack.callback(process.kill)
        assert process.stderr is not None
        port = next(int(found[1]) for each in process.stderr if (found := re.search(r":(\d+), data", each)))
        with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=10)) as connection:
            for _ in range(2500):
                connection.request("GET", "/nowhere")
                assert connection.getresponse().read()
        process.terminate()
        for each in process.stderr:
            dropped = re.match(r"(\d+) lines of the access log were dropped", each)
            logged += int(dropped[1]) if dropped else "GET - 404" in each
        assert process.wait(10) == 0
    assert logged == 2500


@pytest.mark.sqlite
def test_a_service_names_a_file_whose_name_is_no_utf8(serve: Callable[..., Server], tmp_path: Path) -> None:
    server = serve(FINDINGS_DB=os.fsdecode(bytes(tmp_path) + b"/x\xff.db"))
    assert server.request("GET", f"{API}/tasks").status_code == 200


@pytest.mark.sqlite
@pytest.mark.parametrize("fails", [False, True], ids=["moved", "failed"])
def test_a_service_whose_words_nobody_reads_says_them_to_nobody(tmp_path: Path, fails: bool) -> None:
    program = program_that_fails("commits.CommitScheduler._commit_group") if fails else PROGRAM
    line = [*program, "serve", "--port", "0", "--db", str(tmp_path / "x.db")]
    reader, writer = os.pipe()
    with (
        subprocess.Popen(line, stderr=writer, env=environment(FINDINGS_API_KEY=SECRET), cwd=HERE) as process,
        ExitStack() as stack,
    ):
        stack.callback(process.kill)
        for end in (reader, writer):
            stack.callback(os.close, end)
        said = b""
        while not (found := re.search(rb":(\d+), data", said)):
            said += os.read(reader, 4096)
        os.write(writer, b"x" * fcntl.fcntl(writer, fcntl.F_GETPIPE_SZ))  # all that the pipe takes
        if not fails:
            (tmp_path / "x.db").rename(tmp_path / "moved.db")
        with closing(http.client.HTTPConnection("127.0.0.1", int(found[1]), timeout=5)) as connection:
            headers = {"Authorization": f"Bearer {SECRET}", "Content-Type": "application/json"}
            with suppress(http.client.RemoteDisconnected, ConnectionResetError):
                connection.request("POST", f"{API}/project-types", '{"name": "web"}', headers)
                assert connection.getresponse().status == 503
        if not fails:
            process.terminate()
        assert process.wait(5) == int(fails)


def test_the_access_log_has_a_text_line_for_each_request_and_is_off_by_default(serve: Callable[..., Server]) -> None:
    server = serve(FINDINGS_LOG="text")
    use_for_a_log(server)
    said = server.heard()
    shape = rf"{TIME.pattern} GET {API}/tasks 200 [\d.]+ \d+ default first -"
    assert any(re.fullmatch(shape, line) for line in said.splitlines()), said
    assert not any(word in said.replace(server.key, "") for word in ("secret", "forged"))
    quiet = serve(FINDINGS_DB=str(server.db.with_name("quiet.db")))
    use_for_a_log(quiet)
    assert quiet.heard() == quiet.said


def test_a_log_that_nobody_hears_stops_nothing_and_quotes_what_is_no_word(
    make_app: Callable[..., flask.Flask], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    client = client_of(make_app(log="text"), name="a name")
    client.read("tasks")
    assert capsys.readouterr().err.endswith(' default "a name" -\n')
    monkeypatch.setattr(sys, "stderr", (closed := io.StringIO()))
    closed.close()
    client.read("tasks")


@pytest.mark.parametrize(("host", "warns"), [("127.0.0.1", False), ("localhost", False), ("0.0.0.0", True)])
def test_listening_beyond_this_machine_is_warned_of(serve: Callable[..., Server], host: str, warns: bool) -> None:
    server = serve("--host", host)
    assert ("Warning" in server.said) == warns
    assert ("TLS" in server.said) == warns


# ---------------------------------------------------------------------------
# Growing old
# ---------------------------------------------------------------------------


def content_of(db: Path) -> list[list[Any]]:
    """Return everything that a database holds, but for its keys, kept answers and health."""
    tables = ("clients", "project_types", "runs", "tasks", "task_details", "sightings", "history", "counters")
    with look_into(db) as connection:
        return [sorted(connection.execute(f"SELECT * FROM {table}"), key=repr) for table in tables]


@pytest.mark.sqlite
def test_a_backup_is_one_moment_of_a_database_that_is_written(server: Server, tmp_path: Path) -> None:
    path, copy = f"{API}/runs/{server.start_run()}/tasks", tmp_path / "copy.db"
    for _ in range(4):
        server.request("POST", path, {"tasks": [task(description="x" * 60_000)] * 25})
    done = threading.Event()

    def write() -> int:
        batches = 0
        while not done.is_set():
            batches += server.request("POST", path, {"tasks": [task()] * 7}).status_code == 201
        return batches

    with ThreadPoolExecutor(3) as pool:
        writing = [pool.submit(write) for _ in range(3)]
        time.sleep(0.1)
        before = server.request("GET", f"{API}/tasks?limit=1").json["total"]
        backed_up = command("backup", str(copy), "--db", str(server.db))
        done.set()
    after = server.request("GET", f"{API}/tasks?limit=1").json["total"]
    assert (backed_up.returncode, "verified" in backed_up.stderr) == (0, True)
    with closing(sqlite3.connect(copy)) as connection:
        held = connection.execute("SELECT COUNT(*) FROM tasks").fetchone()[0]
    assert 100 < before <= held < after == 100 + 7 * sum(each.result() for each in writing)
    assert (held - 100) % 7 == 0
    assert faults_of(copy) == []
    assert copy.stat().st_mode & 0o777 == 0o600


@pytest.mark.sqlite
def test_a_backup_is_restored_as_the_handbook_says(serve: Callable[..., Server], tmp_path: Path) -> None:
    server = serve()
    path = f"{API}/runs/{server.start_run()}/tasks"
    server.request("POST", path, task(title="Before"))
    assert command("backup", str(tmp_path / "copy.db"), "--db", str(server.db)).returncode == 0
    server.request("POST", path, task(title="After"))
    server.stop(signal.SIGKILL)
    for suffix in ("-wal", "-shm"):
        server.db.with_name(server.db.name + suffix).unlink()
    shutil.copy(tmp_path / "copy.db", server.db)
    again = serve(until=LISTENING)
    tasks = again.request("GET", f"{API}/tasks", key=server.key).json["tasks"]
    assert [each["title"] for each in tasks] == ["Before"]
    assert again.request("POST", path, task(), key=server.key).status_code == 201
    assert faults_of(server.db) == []


@pytest.mark.sqlite
def test_a_damaged_database_gives_no_backup(aged: Path, tmp_path: Path) -> None:
    with closing(sqlite3.connect(aged)) as connection:
        damage_index(connection, "tasks_by_status")
    done = invoke("backup", str(tmp_path / "copy.db"), "--db", str(aged))
    assert (done.exit_code, len(done.stderr.splitlines())) == (1, 1)
    assert "damaged" in done.stderr
    assert [path.name for path in tmp_path.glob("copy.db*")] == []


@pytest.mark.sqlite
@pytest.mark.parametrize("name", ["findings.db-shm", "findings.db-wal", "findings.db-checkpointer", "findings.db"])
def test_a_backup_takes_no_place_of_what_belongs_to_the_database(aged: Path, name: str) -> None:
    result = invoke("backup", str(aged.with_name(name)), "--replace", "--db", str(aged))
    assert result.exit_code == 1
    assert "belongs to" in result.output


@pytest.mark.sqlite
def test_a_backup_replaces_an_older_one_only_when_told_to(aged: Path, tmp_path: Path) -> None:
    copy, empty = tmp_path / "new" / "folder" / "copy.db", tmp_path / "empty.db"
    empty.touch(0o644)
    assert invoke("backup", str(copy), "--db", str(aged)).exit_code == 0
    assert stat.S_IMODE(copy.parent.stat().st_mode) == 0o700
    before = copy.stat()
    assert invoke("backup", str(copy), "--db", str(aged)).exit_code == 1
    assert copy.stat() == before
    for each in (copy, empty):
        assert invoke("backup", str(each), "--replace", "--db", str(aged)).exit_code == 0
        assert content_of(each) == content_of(aged)
        assert stat.S_IMODE(each.stat().st_mode) == 0o600
    assert copy.stat().st_ino != before.st_ino


@pytest.mark.sqlite
@pytest.mark.parametrize(
    "make",
    cases(
        fifo=os.mkfifo,
        device=lambda path: os.mknod(path, 0o600 | stat.S_IFCHR, os.makedev(1, 3)),
        link=lambda path: path.symlink_to("/dev/null"),
        text=lambda path: path.write_text("Theirs."),
        database=others_database,
    ),
)
def test_a_backup_replaces_nothing_but_what_a_backup_may_be(aged: Path, tmp_path: Path, make: Any) -> None:
    copy = tmp_path / "theirs"
    try:
        make(copy)
    except PermissionError:
        pytest.skip("only root makes devices")
    before = copy.lstat()
    done = invoke("backup", str(copy), "--replace", "--db", str(aged))
    assert (done.exit_code, len(done.stderr.splitlines()), copy.lstat()) == (1, 1, before)
    assert "was left as it is" in done.stderr
    assert list(tmp_path.glob("*.partial")) == []


@pytest.mark.sqlite
def test_a_backup_is_on_the_disk_before_it_is_told_of(
    aged: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced = list[str]()
    monkeypatch.setattr(backup, "flush", synced.append)
    assert invoke("backup", str(tmp_path / "copy.db"), "--db", str(aged)).exit_code == 0
    assert synced[0].endswith(".partial")
    assert synced[1:] == [str(tmp_path)]


def die_with_a_wal(db: Path) -> None:
    """Write to a database as a process that dies before anything of it is in the file, but all in the WAL."""
    program = (
        "import os, sqlite3, sys; db = sqlite3.connect(sys.argv[1], isolation_level=None);"
        "db.execute('PRAGMA journal_mode = WAL'); db.execute('PRAGMA wal_autocheckpoint = 0');"
        "db.execute('CREATE TABLE waste (a)'); db.execute('INSERT INTO waste VALUES (zeroblob(500000))'); os._exit(0)"
    )
    subprocess.run([sys.executable, "-c", program, str(db)], check=True)
    assert db.with_name(f"{db.name}-wal").stat().st_size > 500_000


@pytest.mark.sqlite
def test_a_backup_takes_no_place_beside_what_a_crash_left(aged: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy.db"
    die_with_a_wal(copy)
    before = {path: path.read_bytes() for path in tmp_path.glob("copy.db*")}
    done = invoke("backup", str(copy), "--replace", "--db", str(aged))
    assert (done.exit_code, len(done.stderr.splitlines())) == (1, 1)
    assert "findings-service check" in done.stderr
    assert {path: path.read_bytes() for path in tmp_path.glob("copy.db*")} == before


@pytest.mark.sqlite
@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP"])
def test_a_backup_that_is_told_to_stop_leaves_nothing(aged: Path, tmp_path: Path, name: str) -> None:
    # Not one long sleep: a signal that arrives just before it would be looked at when it ends.
    slow = (
        "findings_service.SQLiteConnection.integrity_errors = lambda _: [time.sleep(0.05) for _ in range(1200)] and ()"
    )
    program = [sys.executable, "-c", f"import time, findings_service; {slow}; findings_service.main()"]
    line = [*program, "backup", str(tmp_path / "copy.db"), "--db", str(aged)]
    with subprocess.Popen(line, cwd=HERE, env=environment(), preexec_fn=heed_signals) as process:
        deadline = time.monotonic() + 20
        while not list(tmp_path.glob("copy.db*.partial")) and time.monotonic() < deadline:
            time.sleep(0.02)
        assert list(tmp_path.glob("copy.db*.partial"))
        process.send_signal(signal.Signals[name])
        assert process.wait(15) == 1
    assert list(tmp_path.glob("copy.db*")) == []


def test_a_second_signal_does_not_end_what_undoes_what_was_begun() -> None:
    program = f"""if True:
        {IMPORTING}, os, signal, time
        from findings_features import backup
        with backup.interruptible():
            try:
                os.kill(os.getpid(), signal.SIGTERM)
                time.sleep(9)
            finally:
                for number in (signal.SIGTERM, signal.SIGHUP):
                    os.kill(os.getpid(), number)
                print("undone")
    """
    line, options = [sys.executable, "-c", program], {"cwd": HERE, "env": environment(), "preexec_fn": heed_signals}
    done = subprocess.run(line, **options, capture_output=True, text=True, check=False, timeout=30)
    assert (done.stdout, done.stderr.splitlines()[-1]) == ("undone\n", "KeyboardInterrupt")


@pytest.mark.sqlite
def test_a_backup_replaces_no_database_that_another_process_has_open(
    aged: Path, serve: Callable[..., Server], tmp_path: Path
) -> None:
    server = serve()
    run = server.start_run()
    done = invoke("backup", str(server.db), "--replace", "--db", str(aged))
    assert (done.exit_code, len(done.stderr.splitlines())) == (1, 1)
    assert f"{server.db} is open in another process" in done.stderr
    assert server.request("POST", f"{API}/runs/{run}/tasks", task()).status_code == 201
    assert not list(tmp_path.glob("*.partial*"))
    server.stop()
    assert invoke("backup", str(server.db), "--replace", "--db", str(aged)).exit_code == 0
    assert content_of(server.db) == content_of(aged)


def heard_on_a_terminal(*arguments: str) -> str:
    """Run a command whose standard error is a terminal, and return what shows there."""
    ours, theirs = pty.openpty()
    heard = b""
    line = [*PROGRAM, *placed(arguments)]
    with subprocess.Popen(line, cwd=HERE, stdout=subprocess.DEVNULL, stderr=theirs, env=environment()) as process:
        os.close(theirs)
        with suppress(OSError):  # Linux says so when the other end is closed
            while part := os.read(ours, 4096):
                heard += part
        os.close(ours)
    assert process.returncode == 0
    return heard.decode()


@pytest.mark.sqlite
def test_a_backup_shows_its_progress_on_a_terminal_only(client: Client, run: str, tmp_path: Path) -> None:
    for _ in range(5):
        client.submit(run, *[task(description="x" * 60_000)] * 25)
    db = ("--db", str(tmp_path / "findings.db"))
    shown = [
        int(number) for number in re.findall(r"(\d+)%", heard_on_a_terminal("backup", str(tmp_path / "one.db"), *db))
    ]
    assert shown == sorted(shown)
    assert len(shown) > 1
    assert shown[-1] == 100
    assert "%" not in command("backup", str(tmp_path / "two.db"), *db).stderr


@pytest.mark.sqlite
def test_every_unique_index_and_reference_has_the_client(app: flask.Flask) -> None:
    with database_of(app).reading() as connection:
        tables = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        unique, references = dict[Any, set[str]](), dict[Any, set[str]]()
        for table in tables:
            for name, column in connection.execute(
                f"""SELECT list.name, info.name FROM pragma_index_list('{table}') AS list
                    JOIN pragma_index_info(list.name) AS info WHERE list."unique" """
            ):
                unique.setdefault((table, name), set()).add(column)
            for number, column in connection.execute(f"""SELECT id, "from" FROM pragma_foreign_key_list('{table}')"""):
                references.setdefault((table, number), set()).add(column)
    assert [table for (table, _), columns in unique.items() if "client_id" not in columns] == ["clients"]
    assert [table for (table, _), columns in references.items() if "client_id" not in columns] == []


@pytest.mark.sqlite
@pytest.mark.parametrize("version", [7, 99])
def test_a_backup_of_another_version_is_a_copy_of_it(tmp_path: Path, version: int) -> None:
    database_of_version(version, tmp_path / "x.db")
    before = content_of(tmp_path / "x.db")
    done = invoke("backup", str(tmp_path / "copy.db"), "--db", str(tmp_path / "x.db"))
    assert (done.exit_code, len(done.stderr.splitlines())) == (0, 1), done.output
    assert content_of(tmp_path / "copy.db") == content_of(tmp_path / "x.db") == before


def test_what_the_system_does_not_allow_is_one_line_also_without_a_file() -> None:
    with pytest.raises(click.ClickException, match="Permission denied"), findings_service.readable_errors("x.db"):
        raise PermissionError(errno.EACCES, "Permission denied")


@pytest.mark.sqlite
def test_a_backup_of_no_file_says_so(tmp_path: Path) -> None:
    done = invoke("backup", str(tmp_path / "copy.db"), "--db", str(tmp_path / "none.db"))
    assert (done.exit_code, done.stderr) == (1, f"Error: there is no file {tmp_path / 'none.db'}\n")
    assert [*tmp_path.iterdir()] == []


@pytest.mark.sqlite
def test_what_makes_no_database_makes_none_of_an_empty_file(tmp_path: Path) -> None:
    (tmp_path / "empty.db").touch()
    for line in COMMAND_LINES:
        done = invoke(*line.split(), "--db", str(tmp_path / "empty.db"))
        assert (done.exit_code, "is empty" in done.stderr) == (1, True), done.output
    assert files_in(tmp_path) == {"empty.db": b""}


@pytest.mark.sqlite
def test_a_step_to_a_newer_schema_is_taken_once_and_whole_or_not_at_all(
    aged: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, last, newer = content_of(aged), findings_service.SCHEMA_VERSION, tmp_path / "schema.sql"
    script = findings_service.schema_path().read_text("utf-8")
    newer.write_text(script.replace(f"user_version = {last}", f"user_version = {last + 1}"), "utf-8")
    monkeypatch.setattr("findings_service.schema_path", lambda: newer)
    monkeypatch.setattr("findings_service.SCHEMA_VERSION", last + 1)
    step = "ALTER TABLE runs ADD COLUMN colour TEXT NOT NULL DEFAULT 'red';\n"
    monkeypatch.setitem(findings_service.MIGRATIONS, last + 1, f"{step}SELECT nonsense;")
    told = f"has schema version {last}; `findings-service serve` brings it to {last + 1}"
    for line in ("check", "keys list", "prune --finished-before 1d"):
        assert told in invoke(*line.split(), "--db", str(aged)).stderr
    with pytest.raises(findings_service.DatabaseUnusable):
        create_app(db=str(aged))
    assert content_of(aged) == before
    monkeypatch.setitem(findings_service.MIGRATIONS, last + 1, step)
    with ThreadPoolExecutor(4) as pool:
        for opened in [pool.submit(findings_service.open_database, Settings(db=str(aged))) for _ in range(4)]:
            opened.result().close()
    assert {run[-1] for run in content_of(aged)[2]} == {"red"}
    assert faults_of(aged) == []


@pytest.mark.sqlite
def test_the_wal_shrinks_again_after_a_long_read(server: Server) -> None:
    path, wal = f"{API}/runs/{server.start_run()}/tasks", server.db.with_name("served.db-wal")
    batch = {"tasks": [task(evidence=[{"content": "x" * 200_000}])] * 10}
    with closing(sqlite3.connect(server.db, isolation_level=None)) as reader:
        reader.execute("BEGIN")
        assert reader.execute("SELECT COUNT(*) FROM tasks").fetchone() == (0,)
        for _ in range(40):
            assert server.request("POST", path, batch).status_code == 201
        assert wal.stat().st_size > LARGE_WAL
        assert reader.execute("SELECT COUNT(*) FROM tasks").fetchone() == (0,)
        reader.execute("COMMIT")
    deadline = time.monotonic() + 12
    while wal.stat().st_size > LARGE_WAL and time.monotonic() < deadline:
        assert server.request("POST", path, task()).status_code == 201
        time.sleep(0.05)
    assert wal.stat().st_size <= LARGE_WAL


@pytest.mark.sqlite
def test_the_wal_stays_small_under_steady_writes(server: Server) -> None:
    path, wal = f"{API}/runs/{server.start_run()}/tasks", server.db.with_name("served.db-wal")
    batch = {"tasks": [task(evidence=[{"content": "x" * 100_000}])] * 10}
    sizes = []
    for _ in range(80):
        assert server.request("POST", path, batch).status_code == 201
        sizes.append(wal.stat().st_size)
    assert max(sizes) < LARGE_WAL


def finish_ago(app: flask.Flask, days: int, *runs: str) -> None:
    """Make runs look as if they had finished that long ago."""
    with database_of(app).transaction() as connection:
        at = findings_service.timestamp(ago=days * 86_400)
        connection.executemany("UPDATE runs SET finished_at = ? WHERE id = ?", [(at, run) for run in runs])


def prune(path: str | Path, *options: str) -> list[int]:
    """Prune what finished before 90 days, and return the numbers of runs and tasks that it tells."""
    done = invoke("prune", "--finished-before", "90d", *options, "--db", str(path))
    assert done.exit_code == 0
    return [int(number) for number in re.findall(r"(\d+) (?:runs|tasks)", done.stdout)]


def test_prune_removes_old_runs_and_what_only_they_report(app: flask.Flask, client: Client, tmp_path: Path) -> None:
    client.register("web")
    old, older, young, running = (client.start(targetUrl="https://example.com/") for _ in range(4))
    for run, names in ((old, "abx"), (older, "bcx"), (young, "cd"), (running, "ad")):
        client.submit(run, *[task(externalId=name) for name in names], task())
    client.triage(client.read("tasks", externalId="x")["tasks"][0]["id"], "dismissed")
    for run in (old, older, young):
        client.finish(run)
    finish_ago(app, 91, old, older)
    finish_ago(app, 89, young)
    before = content_of(tmp_path / "findings.db")
    assert prune(tmp_path / "findings.db", "--dry-run") == [2, 4]
    assert content_of(tmp_path / "findings.db") == before
    assert prune(tmp_path / "findings.db") == [2, 4]
    left = client.read("tasks")
    assert sorted(each["externalId"] or "" for each in left["tasks"]) == ["", "", "a", "c", "d"]
    assert left["total"] == 5
    assert {each["id"] for each in client.read("runs")["runs"]} == {young, running}
    assert prune(tmp_path / "findings.db") == [0, 0]
    assert client.submit(running, task(externalId="b"))["created"] == 1
    assert faults_of(tmp_path / "findings.db") == []


def test_prune_leaves_the_runs_of_other_clients_and_the_young_alone(app: flask.Flask, client: Client, run: str) -> None:
    stranger = client_of(app, client="other")
    stranger.register("web")
    theirs = stranger.start("web", targetUrl="https://example.com/")
    for each, run_id in ((client, run), (stranger, theirs)):
        each.submit(run_id, task(externalId="a"), task())
        each.finish(run_id)
    finish_ago(app, 100, theirs)
    path = database_of(app).settings.db
    assert prune(path) == [1, 2]
    assert (client.read("tasks")["total"], stranger.read("tasks")["total"]) == (2, 0)
    assert (client.read(f"runs/{run}")["summary"]["total"], stranger.read("runs")["total"]) == (2, 0)
    assert faults_of(path) == []


def test_a_branch_goes_with_its_last_run_and_task(app: flask.Flask, client: Client, run: str) -> None:
    def branches() -> list[Any]:
        return rows_of(app, "SELECT name, reported FROM branches ORDER BY name")

    path = database_of(app).settings.db
    first, second, third = start_on(client, "a", "x", "y"), start_on(client, "a"), start_on(client, "b", "x")
    client.submit(run, task(externalId="x"))
    for old, left in (
        (first, [("a", 1), ("b", 1)]),
        (second, [("a", 1), ("b", 1)]),
        (third, [("a", 1), ("b", 1)]),
        (run, []),
    ):
        client.finish(old)
        finish_ago(app, 91, old)
        prune(path)
        assert branches() == left
        assert faults_of(path) == []
    assert client.read("tasks", branch="a")["total"] == 0


def test_a_run_goes_in_slices_between_which_all_is_sound(app: flask.Flask, client: Client, run: str) -> None:
    path = database_of(app).settings.db
    shared = client.start(targetUrl="https://example.com/")
    for run_id, names in ((run, "abcd"), (shared, "bd")):
        client.submit(run_id, *[task(externalId=name) for name in names], task())
    client.finish(run)
    removed, gone = [], False
    while not gone:
        with database_of(app).transaction() as connection:
            key = findings_service.RunKey(1, "web", "https://example.com/", 5, run, "completed", "")
            tasks, gone = deletion.prune_slice(connection, "default", key, 2)
        removed.append(tasks)
        assert faults_of(path) == []
        assert client.read("tasks")["total"] == 6 - sum(removed)
    assert removed == [1, 1, 1]
    assert [each["id"] for each in client.read("runs")["runs"]] == [shared]
    assert client.read("tasks", runId=shared)["total"] == 3
    with database_of(app).transaction() as connection:
        assert deletion.prune_slice(connection, "default", key) == (0, True)


def test_prune_goes_beside_a_server_that_is_writing(server: Server) -> None:
    runs = [server.start_run() for _ in range(20)]
    for run in runs:
        server.request("POST", f"{API}/runs/{run}/tasks", {"tasks": [task(externalId=run), task(externalId="all")]})
        server.request("PATCH", f"{API}/runs/{run}", {"status": "completed"})
    path = f"{API}/runs/{server.start_run()}/tasks"
    with look_into(server.db) as connection:
        connection.execute("UPDATE runs SET finished_at = '2020-01-01T00:00:00.000Z' WHERE status = 'completed'")
    with ThreadPoolExecutor(4) as pool:
        writes = [pool.submit(server.request, "POST", path, task(externalId=str(n))) for n in range(100)]
        assert prune(server.db) == [20, 21]
    assert {write.result().status_code for write in writes} == {201}
    assert server.request("GET", f"{API}/tasks").json["total"] == 100
    assert faults_of(server.db) == []


def fill_and_prune(server: Server) -> int:
    """Leave a server with a megabyte of nothing in its file, and one run; return the size of the file."""
    old, kept = server.start_run(), server.start_run()
    server.request("POST", f"{API}/runs/{kept}/tasks", task(title="Kept"))
    for _ in range(5):
        server.request("POST", f"{API}/runs/{old}/tasks", {"tasks": [task(description="x" * 60_000)] * 5})
    server.request("PATCH", f"{API}/runs/{old}", {"status": "completed"})
    with look_into(server.db) as connection:
        connection.execute("UPDATE runs SET finished_at = '2020-01-01T00:00:00.000Z' WHERE status = 'completed'")
    assert "compact" in invoke("prune", "--finished-before", "90d", "--db", str(server.db)).stderr
    with closing(sqlite3.connect(server.db)) as connection:
        connection.execute("PRAGMA wal_checkpoint")
    return server.db.stat().st_size


@pytest.mark.sqlite
def test_compact_gives_the_space_back_when_the_server_has_stopped(serve: Callable[..., Server]) -> None:
    server = serve()
    before = fill_and_prune(server)
    server.stop()
    done = invoke("compact", "--db", str(server.db))
    after = server.db.stat().st_size
    assert done.exit_code == 0
    assert f"{before:,} bytes before, {after:,} now. It is sound." in done.stderr
    assert after < 300_000 < 1_000_000 < before
    with closing(sqlite3.connect(server.db)) as connection:
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    again = serve(until=LISTENING)
    assert [each["title"] for each in again.request("GET", f"{API}/tasks", key=server.key).json["tasks"]] == ["Kept"]


@pytest.mark.sqlite
def test_compact_gives_the_space_back_while_a_server_is_writing(server: Server) -> None:
    before = fill_and_prune(server)
    path, done = f"{API}/runs/{server.start_run()}/tasks", threading.Event()

    def write() -> Counter[int]:
        statuses = Counter[int]()
        while not done.is_set():
            statuses[server.request("POST", path, task()).status_code] += 1
        return statuses

    with ThreadPoolExecutor(2) as pool:
        writing = [pool.submit(write) for _ in range(2)]
        compacted = command("compact", "--db", str(server.db))
        done.set()
    assert compacted.returncode == 0, compacted.stderr
    while server.db.stat().st_size >= before:  # until the server's next turn
        time.sleep(0.1)
    assert {status for each in writing for status in each.result()} == {201}
    assert server.request("GET", f"{API}/tasks").json["total"] == 1 + sum(each.result()[201] for each in writing)
    assert faults_of(server.db) == []


@pytest.mark.sqlite
def test_compact_waits_for_a_writer(aged: Path) -> None:
    with ThreadPoolExecutor(1) as pool:
        with locked(aged):
            compacting = pool.submit(invoke, "compact", "--db", str(aged))
            time.sleep(0.5)
            assert not compacting.done()
        assert compacting.result().exit_code == 0


@pytest.mark.sqlite
def test_compact_audits_what_it_made(aged: Path) -> None:
    with closing(sqlite3.connect(aged, isolation_level=None)) as connection:
        connection.execute("UPDATE counters SET n = n + 1")
    done = invoke("compact", "--db", str(aged))
    assert (done.exit_code, "counter: " in done.stdout) == (1, True)


def test_a_server_forgets_by_the_clock_what_it_is_not_to_keep(serve: Callable[..., Server]) -> None:
    server = serve()
    young, running, old = (server.start_run() for _ in range(3))  # when the last has gone, so would the others have
    for run, names in ((old, "ab"), (young, "bc"), (running, "d")):
        server.request("POST", f"{API}/runs/{run}/tasks", {"tasks": [task(externalId=name) for name in names]})
    for run, hours in ((old, 3), (young, 1)):
        server.request("PATCH", f"{API}/runs/{run}", {"status": "completed"})
        with look_into(server.db) as connection:
            at = findings_service.timestamp(ago=hours * 3600)
            connection.execute("UPDATE runs SET finished_at = ?, created_at = ? WHERE id = ?", (at, at, run))
    server.stop()
    quick = program_with(HOUSEKEEPING=0.2)
    again = serve("--workers", "2", until=LISTENING, program=quick, FINDINGS_KEEP="2h")
    deadline = time.monotonic() + 10
    while again.request("GET", f"{API}/runs/{old}", key=server.key).status_code == 200 and time.monotonic() < deadline:
        time.sleep(0.05)
    assert again.request("GET", f"{API}/runs", key=server.key).json["total"] == 2
    left = again.request("GET", f"{API}/tasks", key=server.key).json["tasks"]
    assert sorted(each["externalId"] for each in left) == ["b", "c", "d"]
    assert faults_of(again.db) == []


def test_forgetting_holds_nobody_up(serve: Callable[..., Server]) -> None:
    server = serve()
    with look_into(server.db) as connection:
        connection.execute("INSERT INTO project_types VALUES ('default', 'web', 'x', '', '', NULL, '')")
        connection.executemany(
            """INSERT INTO runs (client_id, id, project_type, status, created_at, updated_at, last_used_at, finished_at)
               VALUES ('default', ?, 'web', 'completed', '', '', '', ?)""",
            [(str(n), "2020" if n % 100 == 0 else "2099") for n in range(1500)],
        )
        connection.execute("INSERT INTO counters VALUES ('default', 'runs', 'completed', 0, 1500)")
    server.stop()
    again = serve(until=LISTENING, program=program_with(HOUSEKEEPING=0.2), FINDINGS_KEEP="1h")
    waits, started = [], time.monotonic()
    while again.request("GET", f"{API}/runs?limit=1", key=server.key).json["total"] > 1485:
        began = time.monotonic()
        assert began < started + 20
        assert again.request("GET", "/healthz", key=server.key).status_code == 200
        waits.append(time.monotonic() - began)
    assert time.monotonic() - started > 0.35  # half of what 14 pauses take; some are before anybody could ask
    assert max(waits) < 1


def test_two_prunes_at_once_count_right(client: Client, app: flask.Flask, tmp_path: Path) -> None:
    client.register("web")
    runs = [client.start() for _ in range(40)]
    for number, run in enumerate(runs):
        client.add(run, externalId=str(number))
        client.finish(run)
    finish_ago(app, 100, *runs)
    line = ("prune", "--finished-before", "90d", "--db", str(tmp_path / "findings.db"))
    with ThreadPoolExecutor() as pool:
        assert [each.returncode for each in pool.map(lambda _: command(*line), range(2))] == [0, 0]
    assert faults_of(tmp_path / "findings.db") == []
    assert (client.read("tasks")["total"], client.read("runs")["total"]) == (0, 0)


@pytest.mark.parametrize("line", COMMAND_LINES)
def test_a_command_makes_no_database_of_its_own(tmp_path: Path, line: str) -> None:
    done = invoke(*line.split(), "--db", str(tmp_path / "none.db"))
    assert (done.exit_code, done.stderr.count("\n"), list(tmp_path.iterdir())) == (1, 1, [])


# ---------------------------------------------------------------------------
# Deleting
# ---------------------------------------------------------------------------


def test_a_deleted_task_is_gone_from_every_answer(app: flask.Flask, client: Client, run: str) -> None:
    branch, later = start_on(client, "a", "x"), start_on(client, None)
    task_id, other = client.add(run, externalId="x"), client.add(run, externalId="y")
    client.finish(run)
    client.remove(f"tasks/{task_id}")
    for path in (f"tasks/{task_id}", f"tasks/{task_id}/history"):
        assert_problem(client.get(f"{API}/{path}"), 404, "not_found")
    for query in ({}, {"runId": run}, {"branch": "a"}, {"missingFrom": later}, {"externalId": "x"}):
        page = client.read("tasks", **query)
        assert page["total"] == len(page["tasks"]) == ("branch" not in query and "externalId" not in query)
        assert task_id not in {each["id"] for each in page["tasks"]}
    whole = client.read(f"runs/{run}")
    assert (whole["summary"]["total"], whole["submitted"]["created"]) == (1, 1)
    assert gate(client, run)["reported"] == 1
    assert gate(client, branch)["reported"] == 0
    client.remove(f"tasks/{other}")
    assert client.read("overview")["total"] == 0
    assert faults_of(database_of(app).settings.db) == []


@pytest.mark.parametrize("finish", [True, False], ids=["finished", "running"])
def test_a_deleted_run_takes_along_what_only_it_reports(
    app: flask.Flask, client: Client, run: str, finish: bool
) -> None:
    other = start_on(client, None, "x")
    client.submit(run, task(externalId="x"), task(externalId="y"), task())
    if finish:
        client.finish(run)
    client.remove(f"runs/{run}")
    for method, path in (("GET", ""), ("GET", "/gate"), ("DELETE", ""), ("POST", "/tasks"), ("PATCH", "")):
        body = {"POST": {"tasks": []}, "PATCH": {"status": "failed"}}.get(method)
        assert_problem(client.open(f"{API}/runs/{run}{path}", method=method, json=body), 404, "not_found")
    assert [each["externalId"] for each in client.read("tasks")["tasks"]] == ["x"]
    assert [each["id"] for each in client.read("runs")["runs"]] == [other]
    assert client.read("runs", status="running")["total"] == 1
    assert faults_of(database_of(app).settings.db) == []


def test_what_a_deleted_run_leaves_of_a_task_is_worked_out_again(app: flask.Flask, client: Client) -> None:
    client.register("web")
    branch, run = start_on(client, "a", "x"), start_on(client, None)
    first = client.add(run, externalId="x", title="Taken over")
    ignored, last = start_on(client, "b", "x"), start_on(client, None, "x")
    fields = ("runId", "lastRunId", "timesSeen", "branch")
    for gone, left in (
        (last, (branch, run, 2, None)),
        (run, (branch, branch, 1, "a")),
        (branch, (ignored, ignored, 1, "b")),
    ):
        client.remove(f"runs/{gone}")
        found = client.read(f"tasks/{first}")
        assert tuple(found[name] for name in fields) == left
        assert client.read("tasks", mainLine="true")["total"] == (left[-1] is None)
        assert faults_of(database_of(app).settings.db) == []
    assert client.read("tasks", branch="a")["total"] == 0
    assert {each["runId"] for each in client.history(first)} == {None}


def test_a_deleted_run_whose_report_did_not_count_leaves_a_task_as_it_was(client: Client) -> None:
    client.register("web")
    known = start_on(client, None, "x"), start_on(client, None, "x")
    ignored = start_on(client, "b", "x")
    before = client.read("tasks")["tasks"][0]
    assert (before["runId"], before["lastRunId"], before["timesSeen"]) == (*known, 2)
    client.remove(f"runs/{ignored}")
    assert client.read("tasks")["tasks"] == [before]


def test_a_deletion_finds_other_reporters_for_a_task_whose_first_one_was_pruned(
    app: flask.Flask, client: Client
) -> None:
    client.register("web")
    pruned, second, third = (start_on(client, None, "x") for _ in range(3))
    with database_of(app).transaction() as connection:
        key = findings_service.select_run_key(connection, "default", pruned)
        assert deletion.prune_slice(connection, "default", key) == (0, True)
    assert client.read("tasks")["tasks"][0]["runId"] == pruned
    client.remove(f"runs/{third}")
    found = client.read("tasks")["tasks"][0]
    assert (found["runId"], found["lastRunId"], found["timesSeen"]) == (second, second, 2)


def test_a_report_that_comes_to_count_as_the_first_is_taken_back_like_any(app: flask.Flask, client: Client) -> None:
    client.register("web")
    known = start_on(client, None, "x")
    first, second = start_on(client, "a", "x"), start_on(client, "b", "x")
    client.remove(f"runs/{known}")
    last = start_on(client, None, "x")
    seen = []
    for gone in (None, first, second):
        if gone:
            client.remove(f"runs/{gone}")
        found = client.read("tasks")["tasks"][0]
        seen.append((found["runId"], found["lastRunId"], found["timesSeen"], found["branch"]))
        assert faults_of(database_of(app).settings.db) == []
    assert seen == [(first, last, 2, None), (last, last, 1, None), (last, last, 1, None)]


def test_the_history_of_what_a_deleted_run_resolved_stays_without_its_id(client: Client, run: str) -> None:
    task_id = client.add(run, externalId="x")
    resolving = start_on(client, None)
    client.finish(resolving, resolveMissing=True)
    client.remove(f"runs/{resolving}")
    last = client.history(task_id)[-1]
    assert (last["event"], last["to"], last["runId"], last["by"]) == ("status", "resolved", None, "tests")
    assert client.history(task_id)[0]["runId"] == run


def test_a_project_type_goes_once_no_run_is_of_it(client: Client, run: str) -> None:
    problem = assert_problem(client.delete(f"{API}/project-types/web"), 409, "project_type_in_use")
    assert "There is 1 run of" in problem["detail"]
    client.remove(f"runs/{run}")
    client.remove("project-types/web")
    assert client.read("project-types") == {"projectTypes": []}
    assert_problem(client.delete(f"{API}/project-types/web"), 404, "not_found")


@pytest.mark.parametrize("path", ["tasks/TASK", "runs/RUN", "project-types/web"])
def test_what_is_another_clients_cannot_be_deleted(app: flask.Flask, client: Client, run: str, path: str) -> None:
    path = path.replace("TASK", client.add(run)).replace("RUN", run)
    assert_problem(client_of(app, client="other").delete(f"{API}/{path}"), 404, "not_found")
    assert client.read(path)


def test_no_counter_names_what_is_deleted(app: flask.Flask, client: Client, run: str) -> None:
    start_on(client, "a", "x")
    client.submit(run, task(externalId="x"), task())
    client.triage(client.add(run), "resolved")
    client.finish(run)
    for each in client.read("runs")["runs"]:
        client.remove(f"runs/{each['id']}")
    assert rows_of(app, "SELECT DISTINCT scope FROM counters ORDER BY scope") == [("changes",)]
    assert rows_of(app, "SELECT COUNT(*) FROM branches") == [(0,)]


KEPT = cases(
    task=("runs/RUN/tasks", {"tasks": [task(externalId="x")]}, "tasks/TASK", 409),
    run=("runs", {"projectType": "web"}, "runs/NEW", 409),
    run_of_a_task=("runs/RUN/tasks", {"tasks": [task(externalId="x")]}, "runs/RUN", 404),
    project_type=("project-types", {"name": "new", "label": "secret"}, "project-types/new", 409),
)


@pytest.mark.parametrize(("path", "body", "deleted", "status"), KEPT)
def test_a_kept_answer_goes_with_what_it_holds(
    app: flask.Flask, client: Client, run: str, path: str, body: Any, deleted: str, status: int
) -> None:
    path = path.replace("RUN", run)
    sent = post(client, path, body).json
    other = post(client, f"runs/{run}/tasks", {"tasks": [task(title="Other")]}, "other").data
    for name, value in (("RUN", run), ("NEW", sent.get("id", "")), ("TASK", sent.get("tasks", [{}])[0].get("id", ""))):
        deleted = deleted.replace(name, value)
    client.remove(deleted)
    again = post(client, path, body)
    assert_problem(again, status, "idempotency_conflict" if status == 409 else "not_found")
    if deleted != f"runs/{run}":
        assert post(client, f"runs/{run}/tasks", {"tasks": [task(title="Other")]}, "other").data == other
    kept = rows_of(app, "SELECT body FROM idempotent_answers")
    assert not any("secret" in text or '"x"' in text for (text,) in kept)


@pytest.mark.parametrize("deleted", ["tasks/TASK", "runs/RUN"])
def test_kept_answers_to_decisions_go_with_the_task(app: flask.Flask, client: Client, run: str, deleted: str) -> None:
    gone, kept = client.add(run, title="secret"), client.add(client.start("web"))
    key = {"Idempotency-Key": "k"}
    answers = {}
    for path, body in (
        (f"tasks/{gone}", {"comment": "secret"}),
        (f"tasks/{kept}", {"comment": "Kept."}),
        ("tasks", {"ids": [gone, kept], "comment": "secret"}),
    ):
        answers[path] = client.patch(f"{API}/{path}", json=body, headers=key)
        assert answers[path].status_code == 200
    client.remove(deleted.replace("TASK", gone).replace("RUN", run))
    assert_problem(client.patch(f"{API}/tasks/{gone}", json={"comment": "secret"}, headers=key), 404, "not_found")
    again = client.patch(f"{API}/tasks/{kept}", json={"comment": "Kept."}, headers=key)
    assert again.data == answers[f"tasks/{kept}"].data
    both = client.patch(f"{API}/tasks", json={"ids": [gone, kept], "comment": "secret"}, headers=key)
    assert_problem(both, 409, "idempotency_conflict")
    assert not any(gone in text for (text,) in rows_of(app, "SELECT body FROM idempotent_answers"))


def test_a_kept_answer_about_a_task_that_stays_tells_nothing_of_a_run_that_is_deleted(
    app: flask.Flask, client: Client, run: str
) -> None:
    first, other = client.start("web", branch="secret"), client.start("web", branch="other")
    task_id = client.add(first, externalId="x")
    client.add(other, externalId="x")
    decide = partial(
        client.patch, f"{API}/tasks/{task_id}", json={"comment": "Once."}, headers={"Idempotency-Key": "k"}
    )
    assert decide().json["branch"] == "secret"
    client.remove(f"runs/{first}")
    assert_problem(decide(), 409, "idempotency_conflict")
    assert not any("secret" in text for (text,) in rows_of(app, "SELECT body FROM idempotent_answers"))


def test_a_kept_answer_that_holds_a_replaced_schema_is_dropped(client: Client) -> None:
    definition = {"name": "new", "extensionSchema": {"title": "secret"}}
    post(client, "project-types", definition)
    assert client.put(f"{API}/project-types/new", json={"extensionSchema": {"title": "secret"}}).status_code == 200
    assert post(client, "project-types", definition).status_code == 201
    client.put(f"{API}/project-types/new", json={})
    assert_problem(post(client, "project-types", definition), 409, "idempotency_conflict")


def secret() -> str:
    """Return a word that no other text holds."""
    return f"SECRET{secrets.token_hex(12)}"


def found_in_files(db: str | Path) -> set[str]:
    """Return the secrets that a database still holds: its rows, or its file and what SQLite keeps beside it."""
    return {each.decode() for each in re.findall(rb"SECRET[0-9a-f]{24}", held_in(db))}


def secret_report(dice: random.Random) -> dict[str, Any]:
    """Return a task with a secret in each field, of any size."""
    long = "x" * dice.choice((0, 60, 600, 6000))
    return task(
        title=secret() + long[:300],
        description=secret() + long,
        externalId=secret(),
        evidence=[{"type": secret(), "label": secret(), "url": f"https://{secret()}/", "content": secret() + long}],
        remediation=[{"instruction": secret()}],
        successCriteria=[{"description": secret()}],
        extensions={secret(): secret()},
    )


def secrets_of(value: Any) -> set[str]:
    """Return the secrets in a JSON value."""
    return set(re.findall("SECRET[0-9a-f]{24}", json.dumps(value)))


def test_what_is_deleted_is_nowhere_in_the_files_once_they_are_compact(
    app: flask.Flask, client: Client, run: str
) -> None:
    dice, db, stored = random.Random(6), database_of(app).settings.db, dict[str, set[str]]()
    for _ in range(6):
        reports = [secret_report(dice) for _ in range(60)]
        for item, report in zip(client.submit(run, *reports)["tasks"], reports, strict=True):
            stored[item["id"]] = secrets_of(report)
        for item, report in dice.sample(list(zip(list(stored)[-60:], reports, strict=True)), k=20):
            comment, longer = secret(), report | {"title": secret() + "y" * 300}
            client.submit(run, longer)
            client.triage(item, "dismissed", comment=comment)
            stored[item] |= secrets_of([comment, longer])
        gone = set[str]()
        for task_id in dice.sample(list(stored), k=30):
            client.remove(f"tasks/{task_id}")
            gone |= stored.pop(task_id)
        if not ON_POSTGRES:  # what SQLite copied into the gaps of its pages, when it split one, goes with this alone
            database_of(app).close()  # an application has no turns of its own in which it would truncate the log
            assert invoke("compact", "--db", str(db)).exit_code == 0
        assert found_in_files(db) & gone == set()
        assert faults_of(db) == []


def test_a_deleted_run_and_type_are_nowhere_in_the_files(app: flask.Flask, client: Client) -> None:
    db, name = database_of(app).settings.db, secret()
    definition = {"name": name, "label": secret(), "description": secret(), "extensionSchema": {"title": secret()}}
    assert post(client, "project-types", definition).status_code == 201
    start = {"projectType": name, "targetUrl": f"https://{secret()}/", "branch": secret(), "metadata": {"a": secret()}}
    pull = post(client, "runs", start, "run").json["id"]
    client.submit(pull, *(secret_report(random.Random(1)) for _ in range(40)))
    client.finish(pull, statusReason=secret())
    kept = {name}
    assert client.put(f"{API}/project-types/{name}", json={"label": "new"}).status_code == 200
    assert not found_in_files(db) & secrets_of(definition) - kept
    client.remove(f"runs/{pull}")
    assert found_in_files(db) == kept
    client.remove(f"project-types/{name}")
    assert found_in_files(db) == set()


def erased_after(db: Path, seconds: float) -> bool:
    """Tell whether no secret is in a file any more within some seconds."""
    end = time.monotonic() + seconds
    while found_in_files(db) and time.monotonic() < end:
        time.sleep(0.1)
    return not found_in_files(db)


@pytest.mark.parametrize("workers", ["1", "2"])
def test_what_is_deleted_leaves_the_files_of_a_busy_server_within_five_seconds(
    serve: Callable[..., Server], workers: str
) -> None:
    server = serve("--workers", workers)
    run, done = server.start_run(), threading.Event()

    def load() -> None:
        while not done.is_set():
            server.request("GET", f"{API}/tasks")
            server.request("POST", f"{API}/runs/{run}/tasks", task(description="x" * 2000))

    with ThreadPoolExecutor(2) as pool:
        loads = [pool.submit(load) for _ in range(2)]
        try:
            for _ in range(2):
                batch = {"tasks": [secret_report(random.Random(2)) for _ in range(20)]}
                for item in server.request("POST", f"{API}/runs/{run}/tasks", batch).json["tasks"]:
                    assert server.request("DELETE", f"{API}/tasks/{item['id']}").status_code == 204
                assert erased_after(server.db, 5)
        finally:
            done.set()
    assert all(each.exception() is None for each in loads)
    assert faults_of(server.db) == []


@pytest.mark.sqlite
def test_what_was_deleted_before_a_kill_is_erased_at_the_next_start(serve: Callable[..., Server]) -> None:
    server = serve(until=LISTENING, FINDINGS_API_KEY=SECRET)
    server.request("POST", f"{API}/project-types", {"name": "web"}, key=SECRET)
    run = server.request("POST", f"{API}/runs", {"projectType": "web"}, key=SECRET).json["id"]
    server.request("POST", f"{API}/runs/{run}/tasks", {"tasks": [secret_report(random.Random(3))] * 50}, key=SECRET)
    assert server.request("DELETE", f"{API}/runs/{run}", key=SECRET).status_code == 204
    server.stop(signal.SIGKILL)
    server = serve(until=LISTENING, FINDINGS_API_KEY=SECRET)
    assert found_in_files(server.db) == set()


@pytest.mark.sqlite
@pytest.mark.parametrize("suffix", ["-wal", "-journal"])
def test_no_database_is_made_beside_the_log_of_one_that_was_moved(
    make_app: Callable[..., flask.Flask], tmp_path: Path, suffix: str
) -> None:
    log = tmp_path / f"moved.db{suffix}"
    log.write_bytes(b"acknowledged")
    with pytest.raises(DatabaseUnusable, match="put both together"):
        make_app(db=str(tmp_path / "moved.db"))
    assert (log.read_bytes(), (tmp_path / "moved.db").exists()) == (b"acknowledged", False)


@pytest.mark.sqlite
def test_what_another_process_deletes_leaves_the_log_of_a_service(serve: Callable[..., Server]) -> None:
    server = serve(program=program_with(HOUSEKEEPING=0.2))
    run = server.start_run()
    server.request("POST", f"{API}/runs/{run}/tasks", {"tasks": [secret_report(random.Random(3))]})
    server.request("PATCH", f"{API}/runs/{run}", {"status": "completed"})
    time.sleep(0.01)
    line = [*PROGRAM, "prune", "--finished-before", "0s", "--db", str(server.db)]
    assert subprocess.run(line, env=environment(), timeout=30, check=False).returncode == 0
    assert erased_after(server.db, 5)


def test_a_run_is_deleted_whole_or_not_at_all_however_the_service_ends(serve: Callable[..., Server]) -> None:
    dice = random.Random(8)
    for _ in range(4):
        server = serve(until=LISTENING, FINDINGS_API_KEY=SECRET)
        server.request("POST", f"{API}/project-types", {"name": "web"}, key=SECRET)
        run = server.request("POST", f"{API}/runs", {"projectType": "web"}, key=SECRET).json["id"]
        for _ in range(4):
            batch = {"tasks": [task(description="x" * 3000)] * 1000}
            assert server.request("POST", f"{API}/runs/{run}/tasks", batch, key=SECRET).status_code == 201
        with ThreadPoolExecutor(1) as pool:
            deleted = pool.submit(server.request, "DELETE", f"{API}/runs/{run}", key=SECRET)
            time.sleep(dice.uniform(0.01, 0.4))
            server.stop(signal.SIGKILL)
        answered = deleted.exception() is None
        with look_into(server.db) as connection:
            counts = [
                connection.execute(f"SELECT COUNT(*) FROM {name} WHERE {column} = ?", (run,)).fetchone()[0]
                for name, column in (("runs", "id"), ("tasks", "run_id"))
            ]
        assert counts in ([[0, 0]] if answered else [[0, 0], [1, 4000]])
        assert faults_of(server.db) == []


# ---------------------------------------------------------------------------
# Packaging
# ---------------------------------------------------------------------------


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fresh virtual environment with the built wheel; what it depends on is lent by ours."""
    tmp_path = tmp_path_factory.mktemp("installed")
    source, dist, home = tmp_path / "source", tmp_path / "dist", tmp_path / "venv"
    shutil.copytree(HERE, source, ignore=shutil.ignore_patterns(".*", "__pycache__", "*.db*"))
    quietly = {"check": True, "capture_output": True, "cwd": tmp_path, "env": environment()}
    subprocess.run(
        [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(dist), str(source)], **quietly
    )
    shutil.rmtree(source)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(home)], **quietly)
    python = home / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--no-deps", "--no-index", "--quiet"]
    subprocess.run([*pip, "--disable-pip-version-check", *map(str, dist.glob("*.whl"))], **quietly)
    packages = next((home / "lib").glob("python*/site-packages"))
    (packages / "lent.pth").write_text(f"{sysconfig.get_path('purelib')}\n", "utf-8")
    return home


def test_the_wheel_works_far_from_the_checkout(installed: Path, tmp_path: Path) -> None:
    packages = next((installed / "lib").glob("python*/site-packages"))
    assert (packages / "findings_service_data" / "schema.sql").read_bytes() == (HERE / "schema.sql").read_bytes()
    assert not (packages / "schema.sql").exists()
    assert not list(packages.glob("test_*"))
    line = [str(installed / "bin" / "findings-service"), "serve", "--port", "0", "--db", "here.db"]
    server = start_process(line, tmp_path / "here.db", r"curl .*\n", cwd=tmp_path)
    try:
        run = server.start_run()
        assert server.request("POST", f"{API}/runs/{run}/tasks", task()).status_code == 201
        assert absence_of(tmp_path / "here.db") == ""
        assert b"page/app.js" in server.request("GET", "/").data
        assert server.request("GET", "/page/vendor/preact.mjs").status_code == 200
    finally:
        assert server.stop() == 0


EMBEDDING = """
from flask import Flask
from werkzeug.test import TestResponse

from findings_service import *


def make_host(db: str) -> Flask:
    app = Flask(__name__)
    settings: Settings = Settings.read(db=db)
    try:
        blueprint: FindingsBlueprint = create_blueprint(settings, name="findings")
    except (ConfigurationError, DatabaseUnusable) as error:
        raise SystemExit(f"{__version__}: {error}") from error
    app.register_blueprint(blueprint, url_prefix="/findings")
    reveal_type(blueprint.service.settings.max_body)
    return app


def health(db: str) -> TestResponse:
    return create_app(Settings(db=db), max_body="1").test_client().get("/healthz")


create_blueprint("findings.db")  # type: ignore[arg-type]
Settings(max_body="1")  # type: ignore[arg-type]
"""


def test_a_strict_mypy_is_content_with_the_wheel_and_the_code_of_the_pages(installed: Path, tmp_path: Path) -> None:
    agents = "".join(text for *_, text in blocks_of(HERE / "docs" / "agents.md") if "run.submit(" in text)
    expecting = re.sub('.*"hgh".*', r"\g<0>  # type: ignore[arg-type]", agents)  # no severity, as mypy knows
    files = {"embedding": EMBEDDING, "agents": expecting}
    blocks = [text for _, kind, text in blocks_of(HERE / "docs" / "embedding.md") if kind == "python"]
    for number, text in enumerate(blocks):
        name = re.match(r"# (\w+)\.py\n", text)
        files[name[1] if name else f"block_{number}"] = text
    assert len(files) == 2 + len(blocks)
    for name, text in files.items():
        (tmp_path / f"{name}.py").write_text(text, "utf-8")
    line = [sys.executable, "-m", "mypy", "--strict", "--python-executable", str(installed / "bin" / "python"), "."]
    done = subprocess.run(line, cwd=tmp_path, env=environment(), capture_output=True, text=True, check=False)
    told, verdict = done.stdout.splitlines()
    assert told.endswith('Revealed type is "int"')
    assert (done.returncode, verdict) == (0, f"Success: no issues found in {len(files)} source files")


def test_the_source_distribution_has_what_the_tests_need(tmp_path: Path) -> None:
    listed = subprocess.run(["git", "ls-files"], cwd=HERE, capture_output=True, text=True, check=False)
    if listed.returncode != 0:
        pytest.skip("this is no git checkout")
    line = [sys.executable, "-m", "build", "--sdist", "--no-isolation", "--outdir", str(tmp_path), str(HERE)]
    subprocess.run(line, check=True, capture_output=True)
    with tarfile.open(next(tmp_path.glob("*.tar.gz"))) as archive:
        packed = {name.partition("/")[2] for name in archive.getnames()}
    assert {name for name in listed.stdout.split() if not name.startswith(".ci/")} <= packed


# ---------------------------------------------------------------------------
# The example agent
# ---------------------------------------------------------------------------

BANDIT = """
import json, pathlib, time
if pathlib.Path("slow").exists():
    pathlib.Path("begun").touch()
    time.sleep(30)
if pathlib.Path("broken").exists():
    raise SystemExit("bandit broke")
code = "3 exec(user_input) " + "x" * 300_000 * pathlib.Path("refused").exists()
print(json.dumps({"results": 2 * [{
    "test_id": "B102", "filename": "./a.py", "line_number": 3, "code": code, "issue_text": "Use of exec.",
    "issue_severity": "HIGH", "issue_confidence": "HIGH", "issue_cwe": {"id": 78}, "more_info": "https://example.com/",
}]}))
raise SystemExit(1)
"""


@pytest.fixture
def agent(tmp_path: Path, server: Server) -> Callable[..., subprocess.Popen[str]]:
    """Start the example agent beside a server, with a stand-in for bandit or without, on a folder with such files."""
    (tmp_path / "lib" / "bandit").mkdir(parents=True)
    (tmp_path / "lib" / "bandit" / "__init__.py").touch()  # else one that is installed would come before it
    (tmp_path / "lib" / "bandit" / "__main__.py").write_text(BANDIT, "utf-8")
    (tmp_path / "without").mkdir()
    (tmp_path / "without" / "sitecustomize.py").write_text("import sys; sys.modules['bandit'] = None\n", "utf-8")
    (tmp_path / "code").mkdir()

    def start(*files: str, folder: str = "code", lib: str = "lib", **env: str) -> subprocess.Popen[str]:
        for name in files:
            (tmp_path / "code" / name).touch()
        line = [sys.executable, str(HERE / "examples" / "bandit_agent.py"), str(tmp_path / folder)]
        given = {"FINDINGS_KEY": server.key, "FINDINGS_URL": f"http://127.0.0.1:{server.port}"}
        given["PYTHONPATH"] = f"{tmp_path / lib}{os.pathsep}{HERE}"
        options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        options["preexec_fn"] = heed_signals
        return subprocess.Popen(
            [*line, "--target", "https://example.com/"], env=environment(**(given | env)), **options
        )

    return start


def runs_of(server: Server) -> list[tuple[str, str | None]]:
    """Return how a server's runs stand, newest first."""
    runs = server.request("GET", f"{API}/runs").json["runs"]
    return [(run["status"], run["statusReason"]) for run in runs]


def test_the_example_agent_reports_and_knows_its_findings_again(agent: Any, server: Server) -> None:
    for created, unchanged in ((2, 0), (0, 2)):
        out, errors = (process := agent()).communicate(timeout=20)
        assert (process.returncode, errors) == (0, "")
        assert f"{created} created, 0 updated, 0 reopened, {unchanged} unchanged" in out
    assert runs_of(server) == [("completed", None)] * 2


MISSING = cases(
    key=({"FINDINGS_KEY": ""}, "FINDINGS_KEY is not set"),
    bad_key=({"FINDINGS_KEY": "fts_x"}, "API key"),
    service=({"FINDINGS_URL": "http://127.0.0.1:9"}, "no answer from http://127.0.0.1:9: Connection refused"),
    url=({"FINDINGS_URL": "nowhere"}, "the service's URL: 'nowhere' is no URL"),
    bandit=({"lib": "without"}, "bandit is not installed"),
    folder=({"folder": "none"}, "There is no folder"),
)


@pytest.mark.parametrize(("without", "told"), MISSING)
def test_the_example_agent_says_in_one_line_what_is_missing(
    agent: Any, server: Server, without: dict[str, str], told: str
) -> None:
    out, errors = (process := agent(**without)).communicate(timeout=20)
    assert (process.returncode, out, len(errors.splitlines())) == (1, "", 1), errors
    assert told in errors
    assert runs_of(server) == []


@pytest.mark.parametrize(("file", "reason"), [("broken", "bandit failed: bandit broke"), ("refused", "2 findings ")])
def test_a_run_of_the_example_agent_fails_with_it(agent: Any, server: Server, file: str, reason: str) -> None:
    _, errors = (process := agent(file)).communicate(timeout=20)
    assert (process.returncode, len(errors.strip().splitlines())) == (1, 1), errors
    [(status, told)] = runs_of(server)
    assert (status, told.startswith(reason)) == ("failed", True)


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_run_of_the_example_agent_ends_when_it_is_stopped(
    agent: Any, server: Server, tmp_path: Path, how: Any
) -> None:
    process, deadline = agent("slow"), time.monotonic() + 10
    while not (tmp_path / "code" / "begun").exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    process.send_signal(how)
    assert process.communicate(timeout=20)[1].splitlines() == [f"stopped by {how.name}"]
    assert runs_of(server) == [("failed", f"stopped by {how.name}")]
