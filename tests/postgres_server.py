"""A PostgreSQL server for tests: one of each test process, or the one that the environment names.

`FINDINGS_TEST_POSTGRES` is the URL of a server that is there, whose user may make databases. Without it the programs
of an installed PostgreSQL are looked for, and a server is started on a socket in a folder of its own.
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

GIVEN = "FINDINGS_TEST_POSTGRES"
USER = "postgres"
PORT = 5432
STARTING = 300.0  # seconds
HASTY = {"fsync": "off", "full_page_writes": "off", "synchronous_commit": "off"}  # only a power cut would tell
SETTINGS = {"max_connections": "100", "listen_addresses": "", "log_min_messages": "fatal", "autovacuum_naptime": "10s"}
NUMBERS = itertools.count(1)


def find_programs() -> Path | None:
    """Return the folder with the programs of a server, None where there is none."""
    told = shutil.which("pg_config")
    folders = [Path(subprocess.check_output([told, "--bindir"], text=True).strip())] if told else []
    versions = Path("/usr/lib/postgresql").glob("*/bin")
    folders += sorted(versions, key=lambda path: path.parent.name.zfill(3), reverse=True)
    return next((folder for folder in folders if (folder / "initdb").exists() and (folder / "postgres").exists()), None)


def as_server_user() -> dict[str, Any]:
    """Return how to start a process as somebody whom the server accepts: root may not run it."""
    return {"user": USER, "group": pwd.getpwnam(USER).pw_gid, "extra_groups": []} if os.geteuid() == 0 else {}


class PostgresServer:
    """A server in a folder. `url` is that of its first database, `process` what was started."""

    process: subprocess.Popen[bytes]

    def __init__(self, folder: Path, programs: Path, port: int = PORT) -> None:
        self.folder = folder
        self.programs = programs
        self.port = port  # which names the socket
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
        """Start it, and wait until it takes connections. It is this process's child, so that a killed one is gone."""
        with (self.folder / "log").open("ab") as log:
            line = [str(self.programs / "postgres"), "-D", str(self.data)]
            self.process = subprocess.Popen(
                line, stdout=log, stderr=log, cwd="/", start_new_session=True, **as_server_user()
            )
        end = time.monotonic() + STARTING
        ready = [str(self.programs / "pg_isready"), "-q", "-h", str(self.folder), "-p", str(self.port)]
        while subprocess.run(ready, check=False).returncode:
            assert self.process.poll() is None, (self.folder / "log").read_text()
            assert time.monotonic() < end, "the server does not start"
            time.sleep(0.02)

    def end_with_this_process(self) -> None:
        """Have it stopped and removed when this process is gone, even if it is killed."""
        line = 'cat; [ -e "$2/postmaster.pid" ] && kill -QUIT "$1" && sleep 1; rm -rf "$3"'
        self.keeper = subprocess.Popen(
            ["/bin/sh", "-c", line, "keeper", str(self.process.pid), str(self.data), str(self.folder)],
            stdin=subprocess.PIPE,
            start_new_session=True,
        )

    def stop(self, mode: str = "fast") -> None:
        """Stop it: `fast` ends what is under way, `immediate` is like a crash."""
        self.process.send_signal({"fast": signal.SIGINT, "immediate": signal.SIGQUIT}[mode])
        self.process.wait(STARTING)

    def kill(self) -> None:
        """Kill all of it at once, as a power cut would."""
        children = children_of(self.process.pid)
        self.process.kill()
        for pid in children:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait(STARTING)
        while any(map(is_alive, children)):
            time.sleep(0.01)

    def remove(self) -> None:
        """Stop it, and remove its folder."""
        self.stop("immediate")
        shutil.rmtree(self.folder, ignore_errors=True)
        if self.keeper is not None:
            self.keeper.communicate()


def is_alive(pid: int) -> bool:
    """Tell whether a process is there, and has not ended without anybody asking how."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def children_of(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def started(**settings: str) -> PostgresServer:
    """Start a server with settings of its own, and skip the test where PostgreSQL is not installed."""
    programs = find_programs() or pytest.skip(f"there is no PostgreSQL here, and {GIVEN} names none")
    folder = Path(tempfile.mkdtemp(prefix="findings-postgres-"))
    if os.geteuid() == 0:
        shutil.chown(folder, USER, pwd.getpwnam(USER).pw_gid)
    server = PostgresServer(folder, programs)
    server.run("initdb", "-D", server.data, "-U", USER, "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync")
    lines = [f"{name} = '{value}'" for name, value in {**SETTINGS, **HASTY, **settings}.items()]
    lines += [f"port = {PORT}", f"unix_socket_directories = '{folder}'"]
    with (server.data / "postgresql.conf").open("a") as file:
        file.write("\n".join(lines) + "\n")
    server.start()
    return server


class Databases:
    """Makes databases on a server, and drops them in the end. Their names are of this process alone."""

    def __init__(self, url: str) -> None:
        import psycopg

        self.url = url
        self.made: list[str] = []
        self._prefix = f"findings_{os.getpid()}_{time.time_ns() % 10**9}"
        self._connection = psycopg.connect(url, autocommit=True)

    def new(self, template: str = "template1") -> str:
        """Return the URL of a new database, which is like another one that nobody has open."""
        name = f"{self._prefix}_{next(NUMBERS)}"
        self.run(f"CREATE DATABASE {name} TEMPLATE {template}")
        self.made.append(urlunsplit(urlsplit(self.url)._replace(path=f"/{name}")))
        return self.made[-1]

    def drop(self, url: str) -> None:
        self.made.remove(url)
        self.run(f"DROP DATABASE IF EXISTS {name_in(url)} WITH (FORCE)")

    def run(self, statement: str) -> list[Any]:
        """Run a statement, as somebody else, and return its rows."""
        return rows_of(self._connection.execute(statement))

    def end_connections(self, url: str) -> None:
        """Terminate all connections to a database."""
        self.run(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{name_in(url)}'")

    def close(self) -> None:
        for url in list(self.made):
            self.drop(url)
        self._connection.close()


def rows_of(cursor: Any) -> list[Any]:
    return cursor.fetchall() if cursor.description else []


def run_in(url: str, statement: str) -> list[Any]:
    """Run a statement in a database, as somebody else, and return its rows."""
    import psycopg

    with psycopg.connect(url, autocommit=True) as connection:
        return rows_of(connection.execute(statement))


def name_in(url: str) -> str:
    """Return the name of the database in a URL."""
    return urlsplit(url).path.removeprefix("/")


@pytest.fixture(scope="session")
def postgres() -> Iterator[Databases]:
    """A PostgreSQL server, on which databases can be made: one of this test process, unless one is given."""
    pytest.importorskip("psycopg", reason="psycopg is not installed")
    with contextlib.ExitStack() as behind:
        if not (url := os.environ.get(GIVEN)):
            server = started()
            server.end_with_this_process()
            behind.callback(server.remove)
            url = server.url
        databases = Databases(url)
        behind.callback(databases.close)
        yield databases


def fresh_url(postgres: Databases) -> Iterator[str]:
    """A new database, in which there is nothing: what a fixture `url` is made of."""
    made = postgres.new()
    yield made
    postgres.drop(made)


MakeServer = Callable[..., PostgresServer]


@pytest.fixture
def own_server() -> Iterator[MakeServer]:
    """Make servers for tests that stop them, or have settings of their own."""
    made: list[PostgresServer] = []

    def make(**settings: str) -> PostgresServer:
        made.append(started(**settings))
        return made[-1]

    yield make
    for server in made:
        server.remove()
