"""Services and commands in separate processes, and stub HTTP servers."""

from __future__ import annotations

import atexit
import http.client
import json
import os
import re
import resource
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import click
import click.testing
import pytest

import findings_service
from findings_adapters.serving import commits, greeting, processes, rsgi
from findings_adapters.webhooks import delivery, sending
from tests.clients import API, KEY, KIB, LONG_TIMEOUTS
from tests.engines import ON_POSTGRES, db_at, with_databases

CORE_FOLDER = Path(findings_service.__file__).parent  # the checkout, or a folder with the core alone
CORE_FILE = CORE_FOLDER / "findings_service.py"
# Not the file itself, which Python would compile anew for each of hundreds of processes.
PROGRAM = (sys.executable, "-m", "findings_service")
# Seconds: only a hang takes so long, even on a slow machine. While writing tests, a few seconds show failures sooner.
PATIENCE = float(os.environ.get("FINDINGS_TEST_PATIENCE", "300"))
LISTENING = r"http://127\.0\.0\.1:\d+"
SECRET = "a-key-of-the-environment"


@dataclass(frozen=True)
class HttpResponse:
    """A response of a server."""

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
    """Return an HTTP connection to a server, to be closed by `with`."""
    return closing(http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE))


@dataclass
class Server:
    """A running service."""

    process: subprocess.Popen[bytes] | ForkedProcess
    db: Path
    startup_output: str
    log: Path

    @property
    def port(self) -> int:
        found = re.search(r"http://127\.0\.0\.1:(\d+)", self.startup_output)
        assert found
        return int(found[1])

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def key(self) -> str:
        return KEY.findall(self.startup_output)[0]

    @property
    def variables(self) -> dict[str, str]:
        """The environment variables that give a program its URL and key."""
        return {"FINDINGS_URL": self.url, "FINDINGS_KEY": self.key}

    def log_text(self) -> str:
        return self.log.read_text("utf-8")

    def request(self, method: str, path: str, body: Any = None, key: str = "", **headers: str) -> HttpResponse:
        """Send one request, with the first key unless `key` is given."""
        sent = {"Authorization": f"Bearer {key or self.key}", "Content-Type": "application/json"} | headers
        raw = json.dumps(body) if isinstance(body, dict) else body
        with connection_to(self.port) as connection:
            with suppress(BrokenPipeError, ConnectionResetError):  # a large body may be rejected early
                connection.request(method, path, raw, sent, encode_chunked="Transfer-Encoding" in headers)
            response = connection.getresponse()
            return HttpResponse(response.status, response.headers, response.read())

    def start_run(self, schema: Any = None) -> str:
        """Start a run of a project type and return its id."""
        self.request("POST", f"{API}/project-types", {"name": "web", "extensionSchema": schema})
        return self.request("POST", f"{API}/runs", {"projectType": "web"}).json["id"]

    def post_head(self, path: str, length: int, *more: str) -> bytes:
        """Return the head of a POST request as bytes."""
        lines = (f"POST {path} HTTP/1.1", "Host: localhost", f"Authorization: Bearer {self.key}", *more)
        return "\r\n".join((*lines, "Content-Type: application/json", f"Content-Length: {length}\r\n\r\n")).encode()

    @contextmanager
    def begin_post(self, path: str, length: int) -> Iterator[socket.socket]:
        """Open a connection and send the head of a POST request; the server then waits for the body."""
        with socket.create_connection(("127.0.0.1", self.port), PATIENCE) as connection:
            connection.sendall(self.post_head(path, length, "Expect: 100-continue"))
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


def wait_until(condition: Callable[[], object], seconds: float = PATIENCE) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "the condition did not become true in time"
        time.sleep(0.01)


@contextmanager
def at_most(seconds: float, clock: Callable[[], float] = time.monotonic) -> Iterator[None]:
    """Check that the block takes at most this many seconds."""
    began = clock()
    yield
    assert clock() - began < seconds


PORTS = secrets.SystemRandom().sample(range(20_000, 32_000), 12_000)  # below the ephemeral ports


def free_port() -> int:
    """Return an unused port, a different one each time."""
    while True:
        with suppress(OSError), socket.create_server(("127.0.0.1", PORTS.pop())) as free:
            return int(free.getsockname()[1])


class StubHandler(BaseHTTPRequestHandler):
    """A request handler of a stub server, which logs nothing."""

    wbufsize = -1  # send each response in one piece

    def body(self) -> bytes:
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def reply(self, status: int, body: bytes = b"", **headers: str) -> None:
        self.send_response(status)
        for name, value in (headers | {"Content-Length": str(len(body))}).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Log nothing."""


@contextmanager
def running_stub(server: ThreadingHTTPServer) -> Iterator[ThreadingHTTPServer]:
    """Serve from a stub server in a thread."""
    server.handle_error = lambda *_: None  # ignore clients that disconnect
    with server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield server
        server.shutdown()


def resident_memory(server: Server) -> float:
    """Return the resident memory of a server, in MiB."""
    pages = int(Path(f"/proc/{server.process.pid}/statm").read_text().split()[1])
    return pages * resource.getpagesize() / KIB / KIB


CI_AND_TERMINAL = re.compile(r"CI$|CI_|GITHUB_|GITLAB_|FINDINGS_|NO_COLOR|COLUMNS|TERM$")


def environment(**more: str) -> dict[str, str]:
    """Return the environment of a command: that of the tests, without settings of the service except the given ones.

    Variables that change the output are left out too: those of the terminal and of a CI platform that runs the tests.
    By default a service is one process, so that each request sees the caches that the request before has filled.
    """
    ours = {name: value for name, value in os.environ.items() if not CI_AND_TERMINAL.match(name)}
    settings = {f"FINDINGS_{name.upper()}": value for name, value in (LONG_TIMEOUTS | {"workers": "1"}).items()}
    return ours | settings | more


def reset_signals() -> None:
    """Restore the default action of SIGINT and SIGHUP, which a background shell or nohup ignores."""
    for each in (signal.SIGINT, signal.SIGHUP):
        signal.signal(each, signal.SIG_DFL)


# Starting Python and importing the core takes a third of a second. So one process imports it, and forks into each
# command and server. Commands with options or variables for Python itself, and those of the documents, start anew.
FORK_SERVER = """
import gc, json, os, sys
import findings_service

gc.freeze()  # an ending process then skips the imported objects
for line in sys.stdin:
    order = json.loads(line)
    if "pid" in order:
        ended, status = os.waitpid(order["pid"], os.WNOHANG)
        reply = os.waitstatus_to_exitcode(status) if ended else None
    elif not (reply := os.fork()):
        break
    print(json.dumps(reply), flush=True)
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
IMPORT_CORE = "import findings_service"
IMPORT_DRIVER = "import findings_adapters.postgres.store\n" if ON_POSTGRES else ""  # doubles the import time
INTERPRETER_VARIABLES = ("PYTHON", "LD_", "LC_", "LANG", "TZ")  # read only at start


def program_to_fork(line: Sequence[str], env: dict[str, str]) -> str:
    """Return the program of a command line that starts by importing the core, "" for any other."""
    if any(name.startswith(INTERPRETER_VARIABLES) for name in env):
        return ""
    if line[: len(PROGRAM)] == [*PROGRAM]:
        return f"{IMPORT_CORE}; findings_service.main()"
    return line[2] if line[1] == "-c" and line[2].startswith(IMPORT_CORE) else ""


@cache
def fork_server() -> tuple[subprocess.Popen[str], threading.Lock]:
    """Start the fork server once, and return it with the lock of its pipe."""
    line = [sys.executable, "-c", IMPORT_DRIVER + FORK_SERVER]
    process = subprocess.Popen(
        line,
        cwd=CORE_FOLDER,
        env=environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=reset_signals,
    )
    atexit.register(process.communicate)  # closes its input, which ends it
    return process, threading.Lock()


class ForkedProcess:
    """A process of the fork server, with the methods of `Popen` that tests use; its output goes to files."""

    def __init__(self, program: str, line: Sequence[str], sinks: Sequence[str], **how: Any) -> None:
        self.returncode: int | None = None
        self.pid = self.order(program=program, arguments=line[3:], sinks=sinks, **how)

    def order(self, **fields: Any) -> Any:
        """Send an order to the fork server, and return its reply."""
        process, lock = fork_server()
        with lock:
            process.stdin.write(f"{json.dumps(fields)}\n")
            process.stdin.flush()
            return json.loads(process.stdout.readline())

    def poll(self) -> int | None:
        """Return the exit code, None while the process runs."""
        if self.returncode is None:
            self.returncode = self.order(pid=self.pid)
        return self.returncode

    def wait(self, timeout: float = PATIENCE) -> int:
        """Wait for the end of the process and return its exit code."""
        deadline = time.monotonic() + timeout
        while (code := self.poll()) is None:
            if time.monotonic() > deadline:
                raise subprocess.TimeoutExpired("findings-service", timeout)
            time.sleep(0.005)
        return code

    def send_signal(self, how: signal.Signals) -> None:
        if self.poll() is None:
            os.kill(self.pid, how)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def command(*arguments: str, program: Sequence[str] = PROGRAM, **env: str) -> subprocess.CompletedProcess[str]:
    """Run a command of the service in a separate process."""
    line = [*program, *with_databases(arguments)]
    env |= {"FINDINGS_DB": db_at(env["FINDINGS_DB"])} if "FINDINGS_DB" in env else {}
    if not (text := program_to_fork(line, env)):
        return subprocess.run(
            line, cwd=CORE_FOLDER, capture_output=True, text=True, env=environment(**env), timeout=PATIENCE, check=False
        )
    with tempfile.NamedTemporaryFile("r") as out, tempfile.NamedTemporaryFile("r") as err:
        process = ForkedProcess(text, line, (out.name, err.name), cwd=str(CORE_FOLDER), env=environment(**env))
        try:
            return subprocess.CompletedProcess(line, process.wait(), out.read(), err.read())
        finally:
            process.kill()


def invoke(*arguments: str) -> click.testing.Result:
    """Run a command of the service in this process. An uncaught exception fails the test."""
    return click.testing.CliRunner().invoke(findings_service.main, with_databases(arguments), catch_exceptions=False)


def program_with(**constants: Any) -> tuple[str, ...]:
    """Return a command line of the service with other values of constants of the core, server or webhooks."""
    modules = (findings_service, commits, greeting, processes, rsgi, delivery, sending)
    owners = {name: next(each.__name__ for each in modules if hasattr(each, name)) for name in constants}
    imports = ", ".join(sorted({*owners.values()} - {"findings_service"}))
    changes = "; ".join(f"{owners[name]}.{name} = {value}" for name, value in constants.items())
    return (sys.executable, "-c", f"{IMPORT_CORE}{', ' * bool(imports)}{imports}; {changes}; findings_service.main()")


STARTED = r"curl .*\n|shown only once: .*\n"  # printed at the first start


def start_process(line: list[str], db: Path, until: str = STARTED, cwd: Path = CORE_FOLDER, **env: str) -> Server:
    """Start a server, and return it when its output matches `until`."""
    line, log = with_databases(line, cwd), db.with_name(f"{db.name}-{time.monotonic_ns()}.log")
    env |= {"FINDINGS_DB": db_at(env["FINDINGS_DB"])} if "FINDINGS_DB" in env else {}
    with log.open("wb") as sink:
        if program := program_to_fork(line, env):
            process: Any = ForkedProcess(program, line, (str(log), str(log)), cwd=str(cwd), env=environment(**env))
        else:
            process = subprocess.Popen(line, stderr=sink, stdout=sink, cwd=cwd, env=environment(**env))
    deadline = time.monotonic() + PATIENCE
    has_ended = False  # read before the log, as a server prints its error last
    while not re.search(until, output := log.read_text("utf-8")):
        if has_ended or time.monotonic() > deadline:
            process.kill()
            process.wait(PATIENCE)
            pytest.fail(f"the server did not start: {output}")
        time.sleep(0.02)
        has_ended = process.poll() is not None
    return Server(process, db, output, log)


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[..., Server]]:
    """A factory of servers on one file, unless FINDINGS_DB names another; they are stopped after the test."""
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
