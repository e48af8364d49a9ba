"""A PostgreSQL server for tests: one that is started here, or the one that `FINDINGS_TEST_POSTGRES` names.

`FINDINGS_TEST_POSTGRES` is the URL of a running server, whose user may create databases. Without it, the programs of
an installed PostgreSQL start a server on a Unix socket in a temporary folder.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit, urlunsplit

import pytest

SERVER_VARIABLE = "FINDINGS_TEST_POSTGRES"
USER = "postgres"
PORT = 5432
STARTING = 300.0  # seconds
UNSAFE = {"fsync": "off", "full_page_writes": "off", "synchronous_commit": "off"}  # matters only after a power cut
SETTINGS = {"max_connections": "100", "listen_addresses": "", "log_min_messages": "fatal", "autovacuum_naptime": "10s"}
NUMBERS = itertools.count(1)


def find_programs() -> Path | None:
    """Return the folder with PostgreSQL's server programs, or None if they are not installed."""
    pg_config = shutil.which("pg_config")
    folders = [Path(subprocess.check_output([pg_config, "--bindir"], text=True).strip())] if pg_config else []
    versions = Path("/usr/lib/postgresql").glob("*/bin")
    folders += sorted(versions, key=lambda path: path.parent.name.zfill(3), reverse=True)
    return next((folder for folder in folders if (folder / "initdb").exists() and (folder / "postgres").exists()), None)


def as_server_user() -> dict[str, Any]:
    """Return `Popen` arguments that run a process as user postgres if this user is root, which PostgreSQL refuses."""
    return {"user": USER, "group": pwd.getpwnam(USER).pw_gid, "extra_groups": []} if os.geteuid() == 0 else {}


class PostgresServer:
    """A PostgreSQL server in a folder. `url` is the URL of its first database, `process` the server process."""

    process: subprocess.Popen[bytes]

    def __init__(self, folder: Path, programs: Path, port: int = PORT) -> None:
        self.folder = folder
        self.programs = programs
        self.port = port  # part of the socket's name
        self.data = folder / f"data-{port}"
        self.keeper: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"postgresql://{USER}@{quote(str(self.folder), safe='')}:{self.port}/postgres"

    def run(self, program: str, *arguments: object) -> None:
        line = [str(self.programs / program), *map(str, arguments)]
        done = subprocess.run(line, capture_output=True, text=True, check=False, cwd="/", **as_server_user())
        assert done.returncode == 0, done.stdout + done.stderr

    def start(self) -> None:
        """Start the server as a child process, and wait until it accepts connections."""
        with (self.folder / "log").open("ab") as log:
            line = [str(self.programs / "postgres"), "-D", str(self.data)]
            self.process = subprocess.Popen(
                line, stdout=log, stderr=log, cwd="/", start_new_session=True, **as_server_user()
            )
        end = time.monotonic() + STARTING
        ready = [str(self.programs / "pg_isready"), "-q", "-h", str(self.folder), "-p", str(self.port)]
        while subprocess.run(ready, check=False).returncode:
            assert self.process.poll() is None, (self.folder / "log").read_text()
            assert time.monotonic() < end, "the server did not start in time"
            time.sleep(0.02)

    def end_with_this_process(self) -> None:
        """Stop the server and remove its folder when this process ends, even if it is killed."""
        line = 'cat; [ -e "$2/postmaster.pid" ] && kill -QUIT "$1" && sleep 1; rm -rf "$3"'
        self.keeper = subprocess.Popen(
            ["/bin/sh", "-c", line, "keeper", str(self.process.pid), str(self.data), str(self.folder)],
            stdin=subprocess.PIPE,
            start_new_session=True,
        )

    def stop(self, mode: str = "fast") -> None:
        """Stop the server: `fast` aborts running transactions, `immediate` is like a crash."""
        self.process.send_signal({"fast": signal.SIGINT, "immediate": signal.SIGQUIT}[mode])
        self.process.wait(STARTING)

    def kill(self) -> None:
        """Kill all processes of the server at once, like a power cut."""
        children = children_of(self.process.pid)
        self.process.kill()
        for pid in children:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait(STARTING)
        while any(map(is_alive, children)):
            time.sleep(0.01)

    def remove(self) -> None:
        """Stop the server, and remove its folder."""
        self.stop("immediate")
        shutil.rmtree(self.folder, ignore_errors=True)
        if self.keeper is not None:
            self.keeper.communicate()


def is_alive(pid: int) -> bool:
    """Return whether a process exists and is not a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def children_of(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def start_postgres(**settings: str) -> PostgresServer:
    """Start a server with additional settings; skip the test if PostgreSQL is not installed."""
    programs = find_programs() or pytest.skip(f"install PostgreSQL or set {SERVER_VARIABLE}")
    folder = Path(tempfile.mkdtemp(prefix="findings-postgres-"))
    if os.geteuid() == 0:
        shutil.chown(folder, USER, pwd.getpwnam(USER).pw_gid)
    server = PostgresServer(folder, programs)
    server.run("initdb", "-D", server.data, "-U", USER, "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync")
    lines = [f"{name} = '{value}'" for name, value in {**SETTINGS, **UNSAFE, **settings}.items()]
    lines += [f"port = {PORT}", f"unix_socket_directories = '{folder}'"]
    with (server.data / "postgresql.conf").open("a") as file:
        file.write("\n".join(lines) + "\n")
    server.start()
    return server


class Databases:
    """Databases that this process creates on a server, and drops at the end. Their names are unique to the process."""

    def __init__(self, url: str) -> None:
        import psycopg

        self.url = url
        self.made: list[str] = []
        self._prefix = f"findings_{os.getpid()}_{time.time_ns() % 10**9}"
        self._connection = psycopg.connect(url, autocommit=True)

    def new(self, template: str = "template1") -> str:
        """Create a database as a copy of an unused template database, and return its URL."""
        name = f"{self._prefix}_{next(NUMBERS)}"
        self.run(f"CREATE DATABASE {name} TEMPLATE {template}")
        self.made.append(urlunsplit(urlsplit(self.url)._replace(path=f"/{name}")))
        return self.made[-1]

    def drop(self, url: str) -> None:
        self.made.remove(url)
        self.run(f"DROP DATABASE IF EXISTS {db_name(url)} WITH (FORCE)")

    def run(self, statement: str) -> list[Any]:
        """Run a statement on a separate connection and return its rows."""
        return rows_of(self._connection.execute(statement))

    def end_connections(self, url: str) -> None:
        """Terminate all connections to a database, and wait until they are gone."""
        wait = int(STARTING * 1000)  # milliseconds
        self.run(f"SELECT pg_terminate_backend(pid, {wait}) FROM pg_stat_activity WHERE datname = '{db_name(url)}'")

    def close(self) -> None:
        for url in list(self.made):
            self.drop(url)
        self._connection.close()


def rows_of(cursor: Any) -> list[Any]:
    return cursor.fetchall() if cursor.description else []


def run_in(url: str, statement: str) -> list[Any]:
    """Run a statement in a database on a separate connection and return its rows."""
    import psycopg

    with psycopg.connect(url, autocommit=True) as connection:
        return rows_of(connection.execute(statement))


def db_name(url: str) -> str:
    """Return the name of the database in a URL."""
    return urlsplit(url).path.removeprefix("/")


@pytest.fixture(scope="session")
def postgres() -> Iterator[Databases]:
    """A PostgreSQL server to create databases on: started by this test process unless the environment names one."""
    pytest.importorskip("psycopg", reason="psycopg is not installed")
    with contextlib.ExitStack() as cleanup:
        if not (url := os.environ.get(SERVER_VARIABLE)):
            server = start_postgres()
            server.end_with_this_process()
            cleanup.callback(server.remove)
            url = server.url
        databases = Databases(url)
        cleanup.callback(databases.close)
        yield databases


def fresh_url(postgres: Databases) -> Iterator[str]:
    """Yield the URL of a new, empty database. Test files make their fixture `url` of it."""
    made = postgres.new()
    yield made
    postgres.drop(made)


MakeServer = Callable[..., PostgresServer]


@pytest.fixture
def own_server() -> Iterator[MakeServer]:
    """A factory of servers for tests that stop the server or need special settings."""
    made: list[PostgresServer] = []

    def make(**settings: str) -> PostgresServer:
        made.append(start_postgres(**settings))
        return made[-1]

    yield make
    for server in made:
        server.remove()
