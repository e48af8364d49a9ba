"""What the tests share: clients, real servers and commands, and the fixtures that make them."""

from __future__ import annotations

import atexit
import http.client
import itertools
import json
import os
import random
import re
import resource
import secrets
import shutil
import signal
import socket
import sqlite3
import statistics
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time
import timeit
import tomllib
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from functools import cache, partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NoReturn

import click
import click.testing
import flask
import flask.json.provider
import jsonschema_rs
import msgspec
import pytest
from flask.testing import FlaskClient
from werkzeug.datastructures import Headers

import findings_service
from findings_adapters.serving import commits, greeting, processes, rsgi
from findings_adapters.webhooks import delivery, sending
from findings_features import brief, exports, openapi
from findings_service import Settings, create_app, create_blueprint
from tests.engines import ON_POSTGRES, db_at, look_into, placed

HERE = Path(__file__).resolve().parent.parent
HOUSE = Path(findings_service.__file__).parent  # of the module: this folder, or one with nothing else
MODULE = HOUSE / "findings_service.py"
# Not the file itself, which Python would compile anew for each of hundreds of processes.
PROGRAM = (sys.executable, "-m", "findings_service")
PROJECT = tomllib.loads((HERE / "pyproject.toml").read_text("utf-8"))["project"]
API = "/api/v1"
findings_service.load_modules()
OPERATIONS = [*findings_service.REGISTRY.operations.values()]
ROUTER = findings_service.Router(OPERATIONS)
UNKNOWN_ID = "01900000-0000-7000-8000-000000000000"
TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")
UUID7 = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")
KEY = re.compile(r"fts_[A-Za-z0-9_-]{43}")
PATIENCE = 300.0  # seconds to wait for what must happen; only what hangs takes so long, on a slow machine too
UNHURRIED = {"schema_timeout": "60s", "busy_timeout": "60s"}  # settings of services, unless a test is about these
LISTENING = r"http://127\.0\.0\.1:\d+"
SECRET = "a-key-of-the-environment"
SEVERITIES = ("critical", "high", "medium", "low", "info")
STATUSES = ("open", "in_progress", "resolved", "dismissed")
KIB = 1024
TITLES = http.client.responses | {413: "Content Too Large", 422: "Unprocessable Content"}  # as RFC 9110 has them
WCAG_SCHEMA = {
    "type": "object",
    "properties": {"wcag": {"type": "string", "pattern": r"^\d\.\d\.\d$"}, "pages": {"items": {"type": "integer"}}},
    "required": ["wcag"],
    "additionalProperties": False,
}
DEFINITION = {"name": "web-a11y", "label": "Web", "description": "Sites.", "extensionSchema": WCAG_SCHEMA}


# Clients in this process


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
    method, found = response.request.method, ROUTER.find(response.request.path.split("/"))
    if found and method in found[1]:
        media_type = (response.content_type or "").partition(";")[0]
        validator = validator_of(method, found[0], response.status_code, media_type)
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

    def ask(self, method: str, path: str, *statuses: int, **how: Any) -> Any:
        """Send a request, which must be answered with one of these statuses, and return the JSON."""
        response = self.open(path if path.startswith("/") else f"{API}/{path}", method=method, **how)
        assert response.status_code in statuses, response.json
        return response.json

    def register(self, name: str, schema: Any = None) -> dict[str, Any]:
        """Register a project type."""
        return self.ask("POST", "project-types", 200, 201, json={"name": name, "extensionSchema": schema})

    def start(self, project_type: str = "web", **fields: Any) -> str:
        """Start a run and return its id."""
        return self.ask("POST", "runs", 201, json={"projectType": project_type, **fields})["id"]

    def finish(self, run_id: str, status: str = "completed", **fields: Any) -> dict[str, Any]:
        """Finish a run."""
        return self.ask("PATCH", f"runs/{run_id}", 200, json={"status": status, **fields})

    def submit(self, run_id: str, *tasks: dict[str, Any]) -> dict[str, Any]:
        """Submit a batch and return what it did."""
        return self.ask("POST", f"runs/{run_id}/tasks", 200, 201, json={"tasks": tasks})

    def add(self, run_id: str, **fields: Any) -> str:
        """Submit one task and return its id."""
        return self.submit(run_id, task(**fields))["tasks"][0]["id"]

    def triage(self, task_id: str, status: str | None = None, **fields: Any) -> dict[str, Any]:
        """Give a task a status, or make another decision about it."""
        return self.ask("PATCH", f"tasks/{task_id}", 200, json={"status": status, **fields})

    def read(self, path: str, **query: Any) -> Any:
        """Get a path, below the API's unless it is a link, and return the JSON."""
        return self.ask("GET", path, 200, query_string=query or None)

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


def make_key(
    app: flask.Flask, name: str = "tests", client: str = "default", level: str = "full", *, for_users: bool = False
) -> str:
    """Make a key, as the command line does."""
    with database_of(app).transaction() as connection:
        return findings_service.insert_key(connection, name, client, level, for_users=for_users)


def client_with(app: flask.Flask, key: str) -> Client:
    """Return a client that sends a key."""
    app.test_client_class = Client
    client = app.test_client()
    assert isinstance(client, Client)
    client.key = key
    return client


def client_of(app: flask.Flask, level: str = "full", client: str = "default", name: str = "tests") -> Client:
    """Return a client with a key of its own."""
    return client_with(app, make_key(app, name, client, level))


def users_of(app: flask.Flask, *users: str, level: str = "full") -> list[Client]:
    """Return a client for each of some users, whom a proxy signs in with a key of its own."""
    key = make_key(app, "proxy", level=level, for_users=True)
    clients = [client_with(app, key) for _ in users]
    for client, user in zip(clients, users, strict=True):
        client.environ_base["HTTP_FINDINGS_USER"] = user.encode().decode("latin-1")
    return clients


def patch_core(patch: pytest.MonkeyPatch, name: str, value: Any) -> None:
    """Replace a name of the core, there and in all modules that have imported it."""
    old = getattr(findings_service, name)
    for module_name, module in [*sys.modules.items()]:
        if module_name.startswith("findings_") and getattr(module, name, None) is old:
            patch.setattr(module, name, value)


@pytest.fixture(autouse=True)
def _no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("FINDINGS_")]:
        monkeypatch.delenv(name)


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
        read = Settings.read(**{**UNHURRIED, **settings, "db": db_at(settings.get("db", db), ready=True)})
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


# Real servers and commands


@dataclass(frozen=True)
class HttpResponse:
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


def connection_to(port: int) -> closing[http.client.HTTPConnection]:
    """Return a client's connection to a server, which `with` closes."""
    return closing(http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE))


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
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def key(self) -> str:
        return KEY.findall(self.said)[0]

    @property
    def access(self) -> dict[str, str]:
        """The variables that tell a program where it is and how to come in."""
        return {"FINDINGS_URL": self.url, "FINDINGS_KEY": self.key}

    def heard(self) -> str:
        """Return all that it has said so far."""
        return self.log.read_text("utf-8")

    def request(self, method: str, path: str, body: Any = None, key: str = "", **headers: str) -> HttpResponse:
        """Send one request, with the first key unless another is given."""
        sent = {"Authorization": f"Bearer {key or self.key}", "Content-Type": "application/json"} | headers
        raw = json.dumps(body) if isinstance(body, dict) else body
        with connection_to(self.port) as connection:
            with suppress(BrokenPipeError, ConnectionResetError):  # a large body may be refused early
                connection.request(method, path, raw, sent, encode_chunked="Transfer-Encoding" in headers)
            response = connection.getresponse()
            return HttpResponse(response.status, response.headers, response.read())

    def start_run(self, schema: Any = None) -> str:
        """Start a run of a project type and return its id."""
        self.request("POST", f"{API}/project-types", {"name": "web", "extensionSchema": schema})
        return self.request("POST", f"{API}/runs", {"projectType": "web"}).json["id"]

    def head_of(self, path: str, length: int, *more: str) -> bytes:
        """Return the head of a POST request, to be written to a socket."""
        lines = (f"POST {path} HTTP/1.1", "Host: localhost", f"Authorization: Bearer {self.key}", *more)
        return "\r\n".join((*lines, "Content-Type: application/json", f"Content-Length: {length}\r\n\r\n")).encode()

    @contextmanager
    def under_way(self, path: str, length: int) -> Iterator[socket.socket]:
        """Open a connection with a POST request whose body the server waits for."""
        with socket.create_connection(("127.0.0.1", self.port), PATIENCE) as connection:
            connection.sendall(self.head_of(path, length, "Expect: 100-continue"))
            assert connection.recv(100) == b"HTTP/1.1 100 Continue\r\n\r\n"
            yield connection

    def stop(self, how: signal.Signals = signal.SIGTERM) -> int:
        """Stop the process and return its exit code."""
        self.process.send_signal(how)
        try:
            return self.process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return self.process.wait(PATIENCE)


def await_(holds: Callable[[], object], seconds: float = PATIENCE) -> None:
    """Wait until something holds."""
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, "it did not come to that"
        time.sleep(0.01)


PORTS = secrets.SystemRandom().sample(range(20_000, 32_000), 12_000)  # below those that outgoing connections get


def free_port() -> int:
    """Return a port that is not in use, another one each time."""
    while True:
        with suppress(OSError), socket.create_server(("127.0.0.1", PORTS.pop())) as free:
            return int(free.getsockname()[1])


class StandIn(BaseHTTPRequestHandler):
    """Answers for a service of others, and says nothing of it on standard error."""

    wbufsize = -1  # an answer goes out in one piece

    def body(self) -> bytes:
        """Return the body of the request."""
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def reply(self, status: int, body: bytes = b"", **headers: str) -> None:
        """Answer the request."""
        self.send_response(status)
        for name, value in (headers | {"Content-Length": str(len(body))}).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@contextmanager
def standing_in(server: ThreadingHTTPServer) -> Iterator[ThreadingHTTPServer]:
    """Have a stand-in answer."""
    server.handle_error = lambda *_: None  # of clients that break off
    with server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield server
        server.shutdown()


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
    settings = {f"FINDINGS_{name.upper()}": value for name, value in (UNHURRIED | {"workers": "1"}).items()}
    return ours | settings | more


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
        cwd=HOUSE,
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

    def wait(self, timeout: float = PATIENCE) -> int:
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
            line, cwd=HOUSE, capture_output=True, text=True, env=environment(**env), timeout=PATIENCE, check=False
        )
    with tempfile.NamedTemporaryFile("r") as out, tempfile.NamedTemporaryFile("r") as err:
        process = Forked(text, line, (out.name, err.name), cwd=str(HOUSE), env=environment(**env))
        try:
            return subprocess.CompletedProcess(line, process.wait(), out.read(), err.read())
        finally:
            process.kill()


def invoke(*arguments: str) -> click.testing.Result:
    """Run a command of the service in this process. An exception that it did not catch fails the test."""
    return click.testing.CliRunner().invoke(findings_service.main, placed(arguments), catch_exceptions=False)


def program_with(**constants: Any) -> tuple[str, ...]:
    """Return the program with other constants of its module, the server or webhooks, for a test to wait for less."""
    modules = (findings_service, commits, greeting, processes, rsgi, delivery, sending)
    owners = {name: next(each.__name__ for each in modules if hasattr(each, name)) for name in constants}
    imports = ", ".join(sorted({*owners.values()} - {"findings_service"}))
    changes = "; ".join(f"{owners[name]}.{name} = {value}" for name, value in constants.items())
    return (sys.executable, "-c", f"{IMPORTING}{', ' * bool(imports)}{imports}; {changes}; findings_service.main()")


STARTED = r"curl .*\n|shown this once: .*\n"  # at a first start


def start_process(line: list[str], db: Path, until: str = STARTED, cwd: Path = HOUSE, **env: str) -> Server:
    """Start a server and return when it has said what `until` matches."""
    line, log = placed(line, cwd), db.with_name(f"{db.name}-{time.monotonic_ns()}.log")
    env |= {"FINDINGS_DB": db_at(env["FINDINGS_DB"])} if "FINDINGS_DB" in env else {}
    with log.open("wb") as sink:
        if program := forkable(line, env):
            process: Any = Forked(program, line, (str(log), str(log)), cwd=str(cwd), env=environment(**env))
        else:
            process = subprocess.Popen(line, stderr=sink, stdout=sink, cwd=cwd, env=environment(**env))
    deadline = time.monotonic() + PATIENCE
    has_ended = False  # before the log was read: a server that ends says why last
    while not re.search(until, said := log.read_text("utf-8")):
        if has_ended or time.monotonic() > deadline:
            process.kill()
            process.wait(PATIENCE)
            pytest.fail(f"the server did not start: {said}")
        time.sleep(0.02)
        has_ended = process.poll() is not None
    return Server(process, db, said, log)


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[..., Server]]:
    """Start servers, on one file unless FINDINGS_DB says otherwise, and stop them in the end."""
    started = []

    def start(*options: str, until: str = STARTED, program: Sequence[str] = PROGRAM, **env: str) -> Server:
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


# Lists

TYPES = ("web", "cli", "docs")
TARGETS = (None, "https://example.com/", "https://example.com/shop?q=a,b")
LINES = (None, None, "a", "b,c")
RULES = ("S101", "a,b", "E9 branches")
PLACES = (
    *("src", "src/app.py", "src/app.py:42", "src/app.py:42:7", "srcs/a", "https://h:80", "https://h:80/a:1"),
    "L" * 300,
)
TAGS = ("wcag2a", "a,b", 'quo"te', "x branches")


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
        """Tell whether a run might have reported a task, and neither it nor a later run of its line did."""
        run = self.run(run_id)
        later = (each for each in self.runs if run and each["id"] >= run_id and each["branch"] == run["branch"])
        return bool(
            run
            and item["externalId"]
            and item["status"] in ("open", "in_progress")
            and same_surface(item, run)
            and not any(item["id"] in self.reported[each["id"]] for each in later)
            and (not item["branch"] or (run["branch"] and self.is_known_to(item, run["branch"])))
        )

    def is_new_in(self, item: dict[str, Any], run_id: str) -> bool:
        """Tell whether a run reported a task, and the main line's last completed run before it did not."""
        runs = [run["id"] for run in self.runs]
        run, known = self.runs[runs.index(run_id)], set[str]()
        for other in self.runs[: runs.index(run_id)]:
            if other["status"] == "completed" and other["branch"] is None:
                known = self.reported[other["id"]] if same_surface(run, other) else known
        return item["id"] in self.reported[run_id] - known

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
        if name == "newIn":
            return self.is_new_in(item, value)
        if name in ("createdSince", "createdBefore"):
            return (item["createdAt"] >= value) is (name == "createdSince")
        if name == "q":
            texts = (item["title"], item["externalId"], item["rule"], item["location"], *item["tags"])
            return all(word in "\n".join(filter(None, texts)).lower() for word in value.lower().split())
        return name == "sort" or matches(item, name, value)

    def expected_tasks(self, query: dict[str, Any]) -> list[str]:
        """Return the ids that a list of tasks must have, in order."""
        found = [item for item in self.tasks if all(self.accepts(item, *pair) for pair in query.items())]
        found.sort(key=lambda item: item["id"], reverse=query.get("sort") != "createdAt")
        if query.get("sort") == "severity":
            found.sort(key=lambda item: SEVERITIES.index(item["severity"]))
        return [item["id"] for item in found]


def same_surface(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Tell whether two runs, or a run and a task, are of the same project type and target."""
    return all(one[name] == other[name] for name in ("projectType", "targetUrl"))


def matches(item: dict[str, Any], name: str, value: Any) -> bool:
    """Tell whether a run or task has one of a filter's values."""
    if name == "without":
        return not item["tags" if value == "tag" else value]
    if name == "location":
        ends = (value,) if value[-1] in "/:" else (f"{value}/", f"{value}:")
        return bool(item["location"]) and (item["location"] == value or item["location"].startswith(ends))
    if name in ("rule", "tag"):
        having = item["tags"] if name == "tag" else [item["rule"]]
        return not {value, *value.split(",")}.isdisjoint(having)
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
    fields["rule"] = dice.choice((None, *RULES))
    fields["location"] = dice.choice((None, *PLACES))
    fields["tags"] = dice.sample(TAGS, dice.randrange(3))
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


TESTER = findings_service.Principal("", "default", "tests", "full")


@pytest.fixture
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no list have any time."""
    monkeypatch.setattr("findings_service.LIST_TIME", -1)
    monkeypatch.setattr("findings_service.CLOCK_STEPS", 1)


# Runs, findings and decisions


def plain(text: str) -> str:
    """Return a text without case and accents."""
    apart = unicodedata.normalize("NFD", text.casefold())
    return "".join(sign for sign in apart if not unicodedata.combining(sign))


def resolved(client: Client) -> set[str]:
    """Return the external ids of what is resolved."""
    return {each["externalId"] for each in client.read("tasks", status="resolved")["tasks"]}


def assert_timed_out(run: dict[str, Any]) -> None:
    """Check that a run was failed because nobody used it."""
    assert (run["status"], run["statusReason"]) == ("failed", "timeout")
    assert TIME.fullmatch(run["finishedAt"])


class Panic(BaseException):
    """What a library written in Rust raises."""


def fail(*_: Any, **__: Any) -> NoReturn:
    raise Panic("assertion failed")


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


def start_on(client: Client, branch: str | None, *names: str) -> str:
    """Start a run of a branch, or of the main line, of the one target, and report findings."""
    run = client.start(targetUrl="https://example.com/", branch=branch)
    client.submit(run, *(task(externalId=name) for name in names))
    return run


def gate(client: Client, run: str, **query: str) -> Any:
    """Return the verdict on a run."""
    return client.read(f"runs/{run}/gate", **query)


def finished(client: Client, branch: str | None, **severities: str) -> str:
    """Report findings, each by its name with a severity, in a run of its own that is completed."""
    run = client.start(targetUrl="https://example.com/", branch=branch)
    client.submit(run, *(task(externalId=name, severity=severity) for name, severity in severities.items()))
    client.finish(run)
    return run


def standing(told: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    """Return where types or targets stand, without the names of the fields."""
    return [tuple(each.values()) for each in told]


def in_a(rule: Any) -> dict[str, Any]:
    """Return a schema with a rule for the member `a`."""
    return {"properties": {"a": rule}}


ENDLESS = {"a": "a" * 60 + "!"}


def post(client: Client, path: str, body: Any, key: str = "k") -> Any:
    """Send a POST with an Idempotency-Key."""
    text = body if isinstance(body, str) else json.dumps(body)
    headers = {"Idempotency-Key": key, "Content-Type": "application/json"}
    return client.post(f"{API}/{path}", data=text, headers=headers)


def totals(client: Client) -> list[int]:
    """Return how many runs, tasks and project types there are."""
    counts = [client.read(path, limit=1)["total"] for path in ("runs", "tasks")]
    return [*counts, len(client.read("project-types")["projectTypes"])]


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


def secret() -> str:
    """Return a word that no other text holds."""
    return f"SECRET{secrets.token_hex(12)}"


# Documents


def add_form(form: exports.ListFormat, patch: pytest.MonkeyPatch) -> None:
    """Have lists go out in a form until the patch is undone."""
    patch.setitem(findings_service.REGISTRY.list_exports, form.media_type, None)
    exports.add(form)


def written_lines(tasks: Iterator[exports.ListedTask]) -> Iterator[bytes]:
    """Write a list of tasks as lines of its titles and comments, the way a part writes one."""
    for listed in tasks:
        yield f"{listed.task.title} {listed.comment or ''}".rstrip().encode() + b"\n"


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch) -> str:
    """The media type of another form of lists, of which a few tasks are read at once."""
    form = exports.ListFormat(media_type="text/lines", write=written_lines)
    add_form(form, monkeypatch)
    monkeypatch.setattr(exports, "EXPORT_LOT", 3)
    patch_core(monkeypatch, "DOCUMENT_PIECE", 1)
    return form.media_type


@pytest.fixture
def document(app: flask.Flask) -> dict[str, Any]:
    """The OpenAPI document, as anybody gets it."""
    response = app.test_client().get(f"{API}/openapi.json")
    assert (response.status_code, response.content_type) == (200, "application/json")
    return response.json


CODES = (
    *("malformed_json", "invalid_parameter", "unauthorized", "forbidden", "not_found", "run_finished"),
    *("project_type_exists", "changed_meanwhile", "body_too_large", "unsupported_media_type", "validation_failed"),
    *("unknown_project_type", "extension_check_timeout", "busy", "storage_full", "internal_error"),
)


FENCED = re.compile(r"^(```+)(\w+)\n(.*?)^\1$", re.DOTALL | re.MULTILINE)


def blocks_of(page: Path) -> Iterator[tuple[int, str, str]]:
    """Give the fenced blocks of a page: line, language and text."""
    text = page.read_text("utf-8")
    for block in FENCED.finditer(text):
        yield text.count("\n", 0, block.start()) + 1, block[2], block[3]


def program(name: str) -> str:
    """Return the path of a program, beside Python or on the PATH, and skip the test where there is none."""
    found = shutil.which(name, path=sysconfig.get_path("scripts")) or shutil.which(name)
    return found or pytest.skip(f"{name} is not installed")


def from_npm(path: str) -> Path:
    """Return a file of a package of npm, and skip the test where it is not installed."""
    found = HERE / "node_modules" / path
    return found if found.exists() else pytest.skip(f"node_modules/{path} is not installed")


def page_named(name: str) -> str:
    """Return the text of a page."""
    return (HERE / name).read_text("utf-8")


def table_rows(name: str) -> list[str]:
    """Return the lines of the tables of a page."""
    return [line for line in page_named(name).splitlines() if line.startswith("|")]


def commands(group: click.Command, prefix: str = "findings-service") -> Iterator[tuple[str, click.Command]]:
    """Give every command of the command line with its name."""
    if not isinstance(group, click.Group):
        yield prefix, group
        return
    for name in group.list_commands(click.Context(group)):
        yield from commands(group.commands[name], f"{prefix} {name}")


COMMANDS = list(commands(findings_service.main))


def settings_variables() -> list[str]:
    """Return the names of all environment variables that the service reads."""
    options = [option for _, each in COMMANDS for option in each.params]
    named = {str(option.envvar) for option in options if getattr(option, "envvar", None)}
    return sorted(named | {f"FINDINGS_{name.upper()}" for name in Settings.__struct_fields__})


# Embedding


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


# Databases


@pytest.fixture
def aged(app: flask.Flask, client: Client, tmp_path: Path) -> Path:
    """A closed database with two runs, two of a branch, four tasks and some history."""
    client.register("web")
    first, second = (client.start("web", targetUrl=f"https://example.com/{name}") for name in "ab")
    tagged = task(externalId="x", tags=["a", "b"])
    ids = [item["id"] for item in client.submit(first, tagged, task(severity="low"))["tasks"]]
    client.add(second, externalId="x", status="dismissed")
    client.triage(ids[1], "resolved", comment="Done")
    client.finish(first)
    client.add(client.start("web", targetUrl="https://example.com/b", branch="topic"), externalId="y")
    client.add(client.start("web", targetUrl="https://example.com/b", branch="topic"), externalId="x")
    database_of(app).close()
    return tmp_path / "findings.db"


def content_of(db: Path) -> list[list[Any]]:
    """Return everything that a database holds, but for its keys, kept answers and health."""
    tables = ("clients", "project_types", "runs", "tasks", "task_details", "task_tags", "sightings", "history")
    with look_into(db) as connection:
        return [sorted(connection.execute(f"SELECT * FROM {table}"), key=repr) for table in (*tables, "counters")]


def work_of(connection: Any, action: Callable[[], object]) -> int:
    """Return how many steps of SQLite's machine an action takes."""
    steps = itertools.count()
    connection.set_progress_handler(lambda: next(steps) < 0, 1)
    try:
        action()
    finally:
        connection.set_progress_handler(None, 0)
    return next(steps)


def damage_index(connection: sqlite3.Connection, name: str) -> None:
    """Change an entry of an index in the file, as a bad disk would."""
    page = connection.execute("SELECT rootpage FROM sqlite_master WHERE name = ?", (name,)).fetchone()[0]
    size = connection.execute("PRAGMA page_size").fetchone()[0]
    path = Path(connection.execute("PRAGMA database_list").fetchone()[2])
    whole = bytearray(path.read_bytes())
    start = (page - 1) * size
    whole[start : start + size] = whole[start : start + size].replace(b"dismissed", b"dismissee")
    path.write_bytes(whole)


def assert_storage_problem(answer: Any, code: str) -> None:
    """Check an answer that says why nothing was stored and when to come back."""
    assert_problem(answer, 503, code)
    assert int(answer.headers["Retry-After"]) > 0


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
    older=(partial(database_of_version, 7), "has schema version 7, "),  # without its part, none is told
)


def files_in(folder: Path) -> dict[str, bytes]:
    """Return what is in the files of a folder."""
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


# Hostile clients

USUAL = 0.006  # seconds that the work of `slowness` takes on a machine with nothing else to do


@pytest.fixture(scope="module")
def besieged(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A real server that hostile clients share with others; bodies must arrive in seconds."""
    db = tmp_path_factory.mktemp("besieged") / "besieged.db"
    line = [*PROGRAM, "serve", "--port", "0", "--db", str(db)]
    server = start_process(line, db, FINDINGS_BODY_TIMEOUT=f"{min(slowness(), 5)}", FINDINGS_SCHEMA_TIMEOUT="2s")
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


def slowness(clock: Callable[[], float] = time.monotonic) -> float:
    """Return how many times as long as usual a known piece of work takes at this moment, at least 1."""
    took = timeit.repeat("for number in range(500_000): pass", timer=clock, number=1)
    return max(1.0, statistics.median(took) / USUAL)


@contextmanager
def at_most(seconds: float, clock: Callable[[], float] = time.monotonic) -> Iterator[None]:
    """Check that the block takes at most so long, or as many times longer as a known piece of work does now."""
    began = clock()
    yield
    took = clock() - began
    assert took < seconds or took < seconds * slowness(clock)


@contextmanager
def another_client(server: Server, bound: float) -> Iterator[None]:
    """Read as another client meanwhile, and check that each response takes at most `bound` seconds."""
    done = threading.Event()

    def read() -> None:
        ended = False
        while not ended:
            with at_most(bound):
                assert server.request("GET", f"{API}/runs").json["total"] >= 1
            ended = done.wait(0.02)

    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(read)
        try:
            yield
        finally:
            done.set()
        reading.result()


def speak(server: Server, text: bytes, *, ends: bool = False) -> bytes:
    """Send bytes and return all that comes back until the server closes; with `ends` it knows that nothing follows."""
    heard = bytearray()
    with socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE) as connection:
        with suppress(BrokenPipeError, ConnectionResetError):
            connection.sendall(text)
        if ends:
            with suppress(OSError):  # closed already
                connection.shutdown(socket.SHUT_WR)
        with suppress(ConnectionResetError):
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


@contextmanager
def half_open(server: Server, count: int, text: bytes) -> Iterator[list[socket.socket]]:
    """Keep connections open that have sent a part of a request."""
    with ExitStack() as stack:
        there = ("127.0.0.1", server.port)
        connections = [stack.enter_context(socket.create_connection(there, timeout=PATIENCE)) for _ in range(count)]
        for connection in connections:
            connection.sendall(text)
        yield connections
