"""Services and commands in processes of their own, and HTTP servers that stand for other services."""

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

CORE_FOLDER = Path(findings_service.__file__).parent  # of the module: this folder, or one with nothing else
CORE_FILE = CORE_FOLDER / "findings_service.py"
# Not the file itself, which Python would compile anew for each of hundreds of processes.
PROGRAM = (sys.executable, "-m", "findings_service")
PATIENCE = 300.0  # seconds to wait for what must happen; only what hangs takes so long, on a slow machine too
LISTENING = r"http://127\.0\.0\.1:\d+"
SECRET = "a-key-of-the-environment"


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
        """The variables that tell a program where it is and how to come in."""
        return {"FINDINGS_URL": self.url, "FINDINGS_KEY": self.key}

    def log_text(self) -> str:
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

    def post_head(self, path: str, length: int, *more: str) -> bytes:
        """Return the head of a POST request, to be written to a socket."""
        lines = (f"POST {path} HTTP/1.1", "Host: localhost", f"Authorization: Bearer {self.key}", *more)
        return "\r\n".join((*lines, "Content-Type: application/json", f"Content-Length: {length}\r\n\r\n")).encode()

    @contextmanager
    def begin_post(self, path: str, length: int) -> Iterator[socket.socket]:
        """Open a connection with a POST request whose body the server waits for."""
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


def wait_until(holds: Callable[[], object], seconds: float = PATIENCE) -> None:
    """Wait until something holds."""
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, "it did not come to that"
        time.sleep(0.01)


@contextmanager
def at_most(seconds: float, clock: Callable[[], float] = time.monotonic) -> Iterator[None]:
    """Check that the block takes at most so many seconds."""
    began = clock()
    yield
    assert clock() - began < seconds


PORTS = secrets.SystemRandom().sample(range(20_000, 32_000), 12_000)  # below those that outgoing connections get


def free_port() -> int:
    """Return a port that is not in use, another one each time."""
    while True:
        with suppress(OSError), socket.create_server(("127.0.0.1", PORTS.pop())) as free:
            return int(free.getsockname()[1])


class StubHandler(BaseHTTPRequestHandler):
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
def running_stub(server: ThreadingHTTPServer) -> Iterator[ThreadingHTTPServer]:
    """Have a stand-in answer."""
    server.handle_error = lambda *_: None  # of clients that break off
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
    """Return the environment of a command: ours, without settings of the service but for the given ones.

    What would be printed otherwise elsewhere is left out too: a terminal's width and colours, and the variables by
    which a CI platform tells where a job runs, which these tests may be part of. A service is one process, unless a
    test is about more, so that it knows what the request before left it with.
    """
    ours = {name: value for name, value in os.environ.items() if not CI_AND_TERMINAL.match(name)}
    settings = {f"FINDINGS_{name.upper()}": value for name, value in (LONG_TIMEOUTS | {"workers": "1"}).items()}
    return ours | settings | more


def reset_signals() -> None:
    """Heed the signals that end a process; these tests may run in the background, under nohup."""
    for each in (signal.SIGINT, signal.SIGHUP):
        signal.signal(each, signal.SIG_DFL)


# Starting Python and importing the module takes a third of a second, which hundreds of processes would each spend anew.
# So one process does it, and forks into each command and server: those run all that comes after, to the end of their
# interpreter. What is told to Python itself, and what the pages do, starts from nothing.
FORK_SERVER = """
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
IMPORT_CORE = "import findings_service"
IMPORT_DRIVER = "import findings_adapters.postgres.store\n" if ON_POSTGRES else ""  # which takes as long again
INTERPRETER_VARIABLES = (
    "PYTHON",
    "LD_",
    "LC_",
    "LANG",
    "TZ",
)  # variables that a process reads as it starts, and not again


def program_to_fork(line: Sequence[str], env: dict[str, str]) -> str:
    """Return the program of a line that begins with importing the module, and so may be forked; empty for others."""
    if any(name.startswith(INTERPRETER_VARIABLES) for name in env):
        return ""
    if line[: len(PROGRAM)] == [*PROGRAM]:
        return f"{IMPORT_CORE}; findings_service.main()"
    return line[2] if line[1] == "-c" and line[2].startswith(IMPORT_CORE) else ""


@cache
def fork_server() -> tuple[subprocess.Popen[str], threading.Lock]:
    """Start, once, the process that forks, and return it with the lock of who speaks to it."""
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
    atexit.register(process.communicate)  # which closes its input: that ends it
    return process, threading.Lock()


class ForkedProcess:
    """A process that was forked to run a program, in files; what tests ask of a Popen it has too."""

    def __init__(self, program: str, line: Sequence[str], sinks: Sequence[str], **how: Any) -> None:
        self.returncode: int | None = None
        self.pid = self.ask(program=program, arguments=line[3:], sinks=sinks, **how)

    def ask(self, **order: Any) -> Any:
        """Send an order to the process that forks, and return its answer."""
        process, speaking = fork_server()
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
    """Run a command of the service in this process. An exception that it did not catch fails the test."""
    return click.testing.CliRunner().invoke(findings_service.main, with_databases(arguments), catch_exceptions=False)


def program_with(**constants: Any) -> tuple[str, ...]:
    """Return the program with other constants of its module, the server or webhooks, for a test to wait for less."""
    modules = (findings_service, commits, greeting, processes, rsgi, delivery, sending)
    owners = {name: next(each.__name__ for each in modules if hasattr(each, name)) for name in constants}
    imports = ", ".join(sorted({*owners.values()} - {"findings_service"}))
    changes = "; ".join(f"{owners[name]}.{name} = {value}" for name, value in constants.items())
    return (sys.executable, "-c", f"{IMPORT_CORE}{', ' * bool(imports)}{imports}; {changes}; findings_service.main()")


STARTED = r"curl .*\n|shown this once: .*\n"  # at a first start


def start_process(line: list[str], db: Path, until: str = STARTED, cwd: Path = CORE_FOLDER, **env: str) -> Server:
    """Start a server and return when it has said what `until` matches."""
    line, log = with_databases(line, cwd), db.with_name(f"{db.name}-{time.monotonic_ns()}.log")
    env |= {"FINDINGS_DB": db_at(env["FINDINGS_DB"])} if "FINDINGS_DB" in env else {}
    with log.open("wb") as sink:
        if program := program_to_fork(line, env):
            process: Any = ForkedProcess(program, line, (str(log), str(log)), cwd=str(cwd), env=environment(**env))
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
