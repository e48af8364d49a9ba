"""Kill the primary of a PostgreSQL cluster under load, and count what is lost: `python failover.py [--rounds N]`.

Requires Debian with the packages below, and findings-service with its extra `postgres`. Everything runs on free ports
of the loopback interface, in a folder that is removed: etcd, two PostgreSQL servers with synchronous replication that
Patroni manages, HAProxy in front of them, two processes of the service, and writers of two clients that remember the
acknowledged writes. The exit code is 1 if one of these is lost or duplicated, or a writer waits too long.
"""

import argparse
import http.client
import json
import os
import random
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import count, pairwise
from pathlib import Path
from typing import Any

from findings_client import Client, Remote, Unavailable, stoppable

PACKAGES = "patroni python3-etcd etcd-server haproxy postgresql"
HOST = "127.0.0.1"
API = "/api/v1"
PATH = "/usr/sbin:/usr/bin:/bin"
DATABASE = "findings"
CLIENTS = ("north", "south")
LIMIT = 30.0  # seconds within which writes must succeed again
PATIENCE = 120.0  # seconds to wait for anything else

# Patroni's settings for the cluster. A failed primary is replaced when its lease expires, `ttl` seconds after its last
# renewal. It is renewed every `loop_wait` seconds. Newer versions of Patroni require a `ttl` of at least 20.
AGREED = {"ttl": 20, "loop_wait": 5, "retry_timeout": 5, "synchronous_mode": True}
REPLICATION = {"use_pg_rewind": True, "use_slots": True}
PARAMETERS = {"synchronous_commit": "on", "wal_log_hints": "on", "wal_keep_size": "512MB", "max_connections": 100}

# HAProxy asks Patroni every second whether its node is the primary. If it is not, HAProxy closes the connections to it.
HAPROXY = """
defaults
    mode tcp
    timeout connect 2s
    timeout check 2s
    timeout client 1h
    timeout server 1h
listen postgresql
    bind {host}:{port}
    option httpchk OPTIONS /primary
    default-server check inter 1s fall 2 rise 1 on-marked-down shutdown-sessions
    server a {host}:{a.port} port {a.api_port}
    server b {host}:{b.port} port {b.api_port}
"""


# ---------------------------------------------------------------------------
# Processes
# ---------------------------------------------------------------------------


def free_ports(number: int) -> list[int]:
    """Return `number` ports that no program listens on."""
    with ExitStack() as stack:
        probes = [stack.enter_context(socket.create_server((HOST, 0))) for _ in range(number)]
        return [int(probe.getsockname()[1]) for probe in probes]


@contextmanager
def running(line: Sequence[str], log: Path, **how: Any) -> Iterator[subprocess.Popen[bytes]]:
    """Run a process for a block, in a session of its own (so Ctrl-C does not end it), and log its output."""
    with log.open("ab") as output:
        how |= {"stdin": subprocess.DEVNULL, "stdout": output, "stderr": output, "start_new_session": True}
        process = subprocess.Popen(line, cwd=log.parent, **how)
    try:
        yield process
    finally:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(20)
        process.kill()
        process.wait()


def process_tree(pid: int) -> list[int]:
    """Return the ids of a process and its descendants that are alive."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return []
    return [*([] if state == "Z" else [pid]), *(each for child in children for each in process_tree(int(child)))]


def wait_until(what: str, condition: Callable[[], bool], patience: float = PATIENCE) -> float:
    """Wait for a condition, and return how many seconds it took. :raises SystemExit: after `patience` seconds."""
    began = time.monotonic()
    while not condition():
        if time.monotonic() > began + patience:
            raise SystemExit(f"{what}: not within {patience:g} s")
        time.sleep(0.05)
    return time.monotonic() - began


def is_ok(port: int, path: str) -> bool:
    """Return whether a GET to a local port has the status 200."""
    connection = http.client.HTTPConnection(HOST, port, timeout=5)
    with closing(connection), suppress(OSError, http.client.HTTPException):
        connection.request("GET", path)
        return connection.getresponse().status == 200
    return False


# ---------------------------------------------------------------------------
# The cluster
# ---------------------------------------------------------------------------


@dataclass
class Node:
    """A node of the cluster: a PostgreSQL server, and the Patroni process that manages it."""

    name: str
    folder: Path
    port: int
    api_port: int
    patroni: int = 0  # its process id

    def is_primary(self) -> bool:
        """Return whether the node is the primary, and so accepts writes."""
        return is_ok(self.api_port, "/primary")

    def has_state(self, state: str) -> bool:
        """Return whether Patroni reports a state: `primary`, `synchronous` (COMMITs wait for it) or `health`."""
        return is_ok(self.api_port, f"/{state}")

    def postmaster(self) -> int:
        """Return the process id of PostgreSQL's main process, 0 if it does not run."""
        with suppress(OSError, ValueError):
            return int((self.folder / "postmaster.pid").read_text().partition("\n")[0])
        return 0

    def processes(self) -> list[int]:
        """Return the ids of the node's processes: Patroni's, and PostgreSQL's, which are not Patroni's children."""
        return [*dict.fromkeys([*process_tree(self.patroni), *process_tree(self.postmaster())])]

    def send(self, how: signal.Signals) -> int:
        """Send a signal to all processes of the node, and return their number."""
        processes = self.processes()
        for each in processes:
            with suppress(ProcessLookupError):
                os.kill(each, how)
        return len(processes)

    def end(self) -> None:
        """End Patroni with SIGKILL, and PostgreSQL with SIGQUIT, so that it removes its shared memory."""
        with suppress(ProcessLookupError, SystemExit):
            os.kill(self.patroni, signal.SIGKILL)
            self.send(signal.SIGCONT)
            if process_tree(self.postmaster()):
                os.kill(self.postmaster(), signal.SIGQUIT)
            wait_until("the end of a node", lambda: not self.processes(), 10)
        self.send(signal.SIGKILL)


class Cluster:
    """A cluster of etcd, two nodes and HAProxy in a folder, for the length of a `with` block."""

    def __init__(self, folder: Path, binaries: Path) -> None:
        self._folder, self._binaries, self._stack = folder, binaries, ExitStack()
        self._etcd_port, self._peer_port, self._port, *ports = free_ports(7)
        self._passwords = {name: secrets.token_hex(16) for name in ("postgres", "replicator", "rewinder", DATABASE)}
        named_ports = zip("ab", ports[:2], ports[2:], strict=True)
        self.nodes = [Node(name, folder / name, port, api_port) for name, port, api_port in named_ports]

    def __enter__(self) -> "Cluster":
        with ExitStack() as self._stack:
            self._start_etcd()
            for node in self.nodes:  # the second node is a copy of the first
                self.start(node)
                wait_until(f"node {node.name}", partial(node.has_state, "health"))
            self._make_database()
            a, b = self.nodes
            haproxy_settings = HAPROXY.format(host=HOST, port=self._port, a=a, b=b)
            self._start("haproxy", "-db", "-f", self._write("haproxy.cfg", haproxy_settings))
            wait_until("synchronous replication", partial(b.has_state, "synchronous"))
            self._stack = self._stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def url(self, *, by_name: bool) -> str:
        """Return the database's URL at HAProxy or, if `by_name`, at both nodes, of which libpq finds the primary."""
        ports = [node.port for node in self.nodes] if by_name else [self._port]
        hosts = ",".join(f"{HOST}:{port}" for port in ports)
        return f"postgresql://{DATABASE}:{self._passwords[DATABASE]}@{hosts}/{DATABASE}"

    def node_with_state(self, state: str) -> Node:
        """Return the node that is `primary` or `synchronous` now. :raises StopIteration: if none is."""
        return next(node for node in self.nodes if node.has_state(state))

    def start(self, node: Node) -> None:
        """Start the Patroni process of a node, which starts its PostgreSQL server."""
        settings = self._write(f"{node.name}.yml", json.dumps(self._patroni(node)))
        node.patroni = self._start("patroni", settings, log=node.name)
        self._stack.callback(node.end)

    def log_of(self, node: Node) -> str:
        """Return the output of a node's Patroni and PostgreSQL so far."""
        return (self._folder / f"{node.name}.log").read_text("utf-8", "replace")

    def _start(self, *line: str, log: str = "") -> int:
        how: dict[str, Any] = {"env": {"PATH": PATH, "LANG": "C.UTF-8", "HOME": str(self._folder)}}
        if os.getuid() == 0:  # PostgreSQL refuses to run as root
            how |= {"user": "postgres", "group": "postgres", "extra_groups": []}
        return self._stack.enter_context(running(line, self._folder / f"{log or line[0]}.log", **how)).pid

    def _write(self, name: str, text: str) -> str:
        path = self._folder / name
        path.touch(0o600)
        path.write_text(text, "utf-8")
        if os.getuid() == 0:
            shutil.chown(path, "postgres", "postgres")
        return str(path)

    def _start_etcd(self) -> None:
        # After a long pause, Patroni 3.0.2 of Debian 12 takes the lease back from another node, unless it uses version
        # 2 of etcd's protocol (https://github.com/patroni/patroni/pull/2689).
        client, peer = f"http://{HOST}:{self._etcd_port}", f"http://{HOST}:{self._peer_port}"
        urls = [f"--listen-client-urls={client}", f"--advertise-client-urls={client}", f"--listen-peer-urls={peer}"]
        cluster = [f"--initial-advertise-peer-urls={peer}", f"--initial-cluster=default={peer}", "--data-dir=etcd"]
        self._start("etcd", *urls, *cluster, "--enable-v2")
        wait_until("etcd", lambda: is_ok(self._etcd_port, "/health"))

    def _patroni(self, node: Node) -> dict[str, Any]:
        names = {"superuser": "postgres", "replication": "replicator", "rewind": "rewinder"}
        users = {role: {"username": name, "password": self._passwords[name]} for role, name in names.items()}
        api, here = f"{HOST}:{node.api_port}", f"{HOST}:{node.port}"
        agreed = {**AGREED, "postgresql": {**REPLICATION, "parameters": PARAMETERS}}
        return {
            "scope": "trial",
            "name": node.name,
            "etcd": {"host": f"{HOST}:{self._etcd_port}"},
            "restapi": {"listen": api, "connect_address": api},
            "bootstrap": {"dcs": agreed, "initdb": [{"encoding": "UTF8"}, {"locale": "C.UTF-8"}, "data-checksums"]},
            "postgresql": {
                "listen": here,
                "connect_address": here,
                "data_dir": str(node.folder),
                "bin_dir": str(self._binaries),
                "pgpass": f"{node.folder}.pgpass",
                "parameters": {"unix_socket_directories": str(self._folder)},
                "pg_hba": [f"host {what} all {HOST}/32 scram-sha-256" for what in ("all", "replication")],
                "authentication": users,
            },
        }

    def _make_database(self) -> None:
        server = {"PGHOST": HOST, "PGPORT": f"{self.nodes[0].port}", "PGUSER": "postgres"}
        login = f"CREATE ROLE {DATABASE} LOGIN PASSWORD '{self._passwords[DATABASE]}'"
        for sql in (login, f"CREATE DATABASE {DATABASE} OWNER {DATABASE}"):
            line, password = [str(self._binaries / "psql"), "--command", sql], self._passwords["postgres"]
            subprocess.run(line, env=server | {"PGPASSWORD": password}, check=True, capture_output=True)


# ---------------------------------------------------------------------------
# The load
# ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Attempt:
    """A request: times of sending and response, the status (0 for none), whether it writes."""

    sent: float
    answered: float
    status: int
    writes: bool

    @property
    def is_good(self) -> bool:
        """Whether the request was acknowledged, with a 2xx status."""
        return 200 <= self.status < 300


@dataclass
class Ledger:
    """The state that the service has acknowledged to the writers of a client."""

    tasks: dict[str, str] = field(default_factory=dict)  # ids by title
    deleted: set[str] = field(default_factory=set)  # titles
    statuses: dict[str, str] = field(default_factory=dict)  # by title
    comments: dict[str, dict[str, int]] = field(default_factory=dict)  # how often each text was sent, by title
    runs: set[str] = field(default_factory=set)  # names
    faults: list[str] = field(default_factory=list)  # wrong responses


class Writer(threading.Thread):
    """A thread that sends writes. It repeats each one, alternating the services, until it is acknowledged."""

    def __init__(self, name: str, services: Sequence[Remote], ledger: Ledger) -> None:
        super().__init__(name=name, daemon=True)
        self.attempts: list[Attempt] = []
        self.is_over = threading.Event()
        self._services, self._ledger, self._dice = list(services), ledger, random.Random(name)
        self._known: list[str] = []
        self._run = ""

    def run(self) -> None:
        """Send random writes until `is_over` is set."""
        seldom = (self.begin_a_run, self.report_what_all_do, self.delete)
        work = [*seldom, *3 * [self.report], *4 * [self.create, self.comment]]
        try:
            self.begin_a_run(f"{self.name}/0")
            for number in count(1):
                if self.is_over.wait(self._dice.uniform(0, 0.04)):
                    return
                self._dice.choice(work)(f"{self.name}/{number}")
        except Exception as error:
            self._ledger.faults.append(f"{self.name} gave up: {error}")

    def first_good(self, since: float) -> float:
        """Return the monotonic time at which the first write sent after `since` was acknowledged, 0 if none was."""
        good = (each for each in [*self.attempts] if each.writes and each.is_good and each.sent > since)
        return next((each.answered for each in good), 0.0)

    def longest_gap(self) -> float:
        """Return the longest time in seconds between two acknowledged writes."""
        times = [each.answered for each in self.attempts if each.writes and each.is_good]
        return max((after - before for before, after in pairwise(times)), default=0.0)

    def begin_a_run(self, name: str) -> None:
        """Start a run. Only the Idempotency-Key keeps a retry from starting a second one."""
        run = self._acknowledged("POST", "/runs", {"projectType": "web", "metadata": {"name": name}})
        self._ledger.runs.add(name)
        self._run = run["id"]

    def create(self, title: str) -> None:
        """Submit a task without externalId, which a retry might duplicate, and read it from the other service."""
        self._submit([{"title": title, "severity": "low"}])
        self._services.reverse()
        self._acknowledged("GET", f"/tasks/{self._ledger.tasks[title]}")

    def report(self, name: str) -> None:
        """Submit some tasks with externalIds. All are new, except one of the previous report, if there was one."""
        titles = [*self._known[-1:], *(f"{name}.{number}" for number in range(self._dice.randint(1, 20)))]
        self._submit([{"title": title, "severity": "high", "externalId": title} for title in titles])
        self._known.append(titles[-1])

    def report_what_all_do(self, _: str) -> None:
        """Submit a task with one of 1,000 externalIds, which other writers of the client submit as well."""
        title = f"one of all {self._dice.randrange(1000)}"
        self._submit([{"title": title, "severity": "info", "externalId": title}])

    def comment(self, text: str) -> None:
        """Change a task's status, with a comment, which may be stored up to once for each attempt."""
        if self._known:
            title, status = self._dice.choice(self._known), self._dice.choice(["open", "resolved", "dismissed"])
            before = len(self.attempts)
            self._acknowledged("PATCH", f"/tasks/{self._ledger.tasks[title]}", {"status": status, "comment": text})
            self._ledger.comments.setdefault(title, {})[text] = len(self.attempts) - before
            self._ledger.statuses[title] = status

    def delete(self, title: str) -> None:
        """Submit and delete a task. A retry may find that an earlier attempt has deleted it."""
        self._submit([{"title": title, "severity": "low"}])
        self._acknowledged("DELETE", f"/tasks/{self._ledger.tasks[title]}", retry_status=404)
        self._ledger.deleted.add(title)

    def _submit(self, tasks: list[dict[str, str]]) -> None:
        response = self._acknowledged("POST", f"/runs/{self._run}/tasks", {"tasks": tasks})
        for task, stored in zip(tasks, response["tasks"], strict=True):
            title = task["title"]
            if self._ledger.tasks.setdefault(title, stored["id"]) != stored["id"]:
                self._ledger.faults.append(f"task {title} has two ids")
            if stored["result"] == "reopened":
                self._ledger.statuses[title] = stored["status"]

    def _acknowledged(self, method: str, path: str, body: Any = None, retry_status: int = 0) -> Any:
        """Repeat a request until it is acknowledged; return the response's body. :raises RuntimeError: if it fails.

        :param retry_status: a status that counts as success from the second attempt on.
        """
        headers = {"Content-Type": "application/json", "Idempotency-Key": secrets.token_hex(8)}
        content = json.dumps(body).encode() if body else None
        end = time.monotonic() + PATIENCE
        for turn in count():
            sent, status, text, wait = time.monotonic(), 0, b"", 1.0
            with suppress(Unavailable):
                response = self._services[0].send(method, f"{API}{path}", content, headers)
                status, text, wait = response.status, response.body, float(response.headers.get("retry-after", 1))
            self.attempts.append(Attempt(sent, time.monotonic(), status, method != "GET"))
            if self.attempts[-1].is_good or (turn and status == retry_status):
                return json.loads(text or b"null")
            if status not in (0, 503) or sent > end:
                break
            self._services.reverse()
            time.sleep(wait * self._dice.uniform(1, 1.2))
        raise RuntimeError(f"{method} {path}: {status} {text[:300].decode()}")


# ---------------------------------------------------------------------------
# The audit
# ---------------------------------------------------------------------------


def faults_of(service: Client, ledger: Ledger) -> Iterator[str]:
    """Yield a line for each difference between the stored data and the acknowledged writes."""
    yield from ledger.faults
    tasks = [*listed(service, "tasks?limit=200")]
    found, expected = Counter(task["title"] for task in tasks), {*ledger.tasks} - ledger.deleted
    yield from (f"task {title} is lost" for title in expected - {*found})
    yield from (f"task {title} is back after its deletion" for title in {*found} - expected)
    yield from (f"task {title} exists {n} times" for title, n in found.items() if n > 1)
    for task in tasks:
        if task["id"] != ledger.tasks.get(task["title"]):
            yield f"task {task['title']} has another id"
        status = ledger.statuses.get(task["title"], "open")
        if task["status"] != status:
            yield f"task {task['title']} is {task['status']} instead of {status}"
    for title, sent in ledger.comments.items():
        history = listed(service, f"tasks/{ledger.tasks[title]}/history")
        stored = Counter(entry["comment"] for entry in history if entry["comment"])
        for text in {*stored, *sent}:
            if not min(1, sent.get(text, 0)) <= stored[text] <= sent.get(text, 0):
                yield f"comment {text} was sent {sent.get(text, 0)} times, but is stored {stored[text]} times"
    runs = Counter(run["metadata"]["name"] for run in listed(service, "runs?limit=200"))
    yield from (f"run {name} exists {runs[name]} times" for name in {*runs, *ledger.runs} if runs[name] != 1)


def listed(service: Client, link: str | None) -> Iterator[dict[str, Any]]:
    """Yield the items of all pages of a list."""
    while link:
        page = json.loads(service.request("GET", link).body)
        yield from next(each for each in page.values() if isinstance(each, list))
        link = page["next"]


# ---------------------------------------------------------------------------
# The trial
# ---------------------------------------------------------------------------


class ServicePair:
    """Two processes of the service that use a cluster, and the service's command line."""

    def __init__(self, url: str, folder: Path) -> None:
        others = {name: value for name, value in os.environ.items() if not name.startswith("FINDINGS_")}
        self._environment, self._folder, self.ports = others | {"FINDINGS_DB": url}, folder, free_ports(2)

    def run(self, *arguments: str) -> str:
        """Run a command of `findings-service`, and return its output. :raises SystemExit: if it fails."""
        line = [sys.executable, "-m", "findings_service", *arguments]
        done = subprocess.run(line, env=self._environment, capture_output=True, text=True, check=False)
        if done.returncode:
            sys.exit(f"findings-service {arguments[0]}: {done.stdout}{done.stderr}")
        return (done.stdout or done.stderr).strip()

    @contextmanager
    def serving(self) -> Iterator[None]:
        """Run both processes for the length of a block."""
        with ExitStack() as stack:
            for port in self.ports:
                line = [sys.executable, "-m", "findings_service", "serve", "--host", HOST, "--port", str(port)]
                log = self._folder / f"service-{port}.log"
                stack.enter_context(running(line, log, env=self._environment))
                wait_until("the service", partial(is_ok, port, "/healthz"))
            yield

    def remotes(self, key: str) -> list[Remote]:
        """Return HTTP transports to both processes, which do not retry requests."""
        remotes = [Remote(f"http://{HOST}:{port}", key) for port in self.ports]
        for remote in remotes:
            remote.patience = 0
        return remotes


class Trial:
    """A cluster, the services that use it, and the acknowledged writes of all rounds."""

    def __init__(self, cluster: Cluster, pair: ServicePair, writers: int, victim: str, how: signal.Signals) -> None:
        self._cluster, self._pair, self._writers, self._victim, self._how = cluster, pair, writers, victim, how
        self._keys = {each: pair.run("keys", "create", "trial", "--client", each, "--level=full") for each in CLIENTS}
        self._ledgers = {client: Ledger() for client in CLIENTS}
        for key in self._keys.values():
            Client(pair.remotes(key)[0]).request("POST", "project-types", {"name": "web"})

    def round(self, number: int) -> bool:
        """Kill or freeze a node under load, restore it, print results, and return whether all was correct."""
        names = [(client, f"{client} {number}/{each}") for client in CLIENTS for each in range(self._writers)]
        keys, ledgers = self._keys, self._ledgers
        writers = [Writer(name, self._pair.remotes(keys[client]), ledgers[client]) for client, name in names]
        for writer in writers:
            writer.start()
        try:
            time.sleep(random.uniform(5, 10))
            node = self._cluster.node_with_state(self._victim)
            began, processes, gone = time.monotonic(), node.send(self._how), time.monotonic()
            print(f"round {number}: {self._how.name} to {processes} processes of the {self._victim} node {node.name}")
            wait_until("writes of all", lambda: all(each.first_good(gone) for each in writers if each.is_alive()))
            time.sleep(5)
            back = self._restore(node)
        finally:
            for writer in writers:
                writer.is_over.set()
        for writer in writers:
            writer.join()
        return all([self._report(writers, began, gone, back), self._audit()])

    def _restore(self, node: Node) -> str:
        logged = len(self._cluster.log_of(node))
        if self._how == signal.SIGKILL:
            self._cluster.start(node)
        else:
            node.send(signal.SIGCONT)
        seconds = wait_until(f"node {node.name}", partial(node.has_state, "synchronous"))
        rewound = "running pg_rewind" in self._cluster.log_of(node)[logged:]
        time.sleep(3)
        return f"{seconds:.1f} s{', rewound' if rewound else ''}"

    def _report(self, writers: Sequence[Writer], began: float, gone: float, back: str) -> bool:
        first = min(filter(None, (writer.first_good(gone) for writer in writers)))
        attempts = [attempt for writer in writers for attempt in writer.attempts]
        gaps = sorted(writer.longest_gap() for writer in writers)
        statuses = Counter(each.status or "no response" for each in attempts if began < each.answered < first)
        self._row("first write acknowledged after", f"{first - gone:.1f} s")
        self._row("longest wait of each writer", f"{', '.join(f'{gap:.1f}' for gap in gaps)} s")
        self._row("responses before that", ", ".join(f"{n} × {status}" for status, n in statuses.most_common()))
        self._row("requests sent, acknowledged", f"{len(attempts):,}, {sum(each.is_good for each in attempts):,}")
        self._row("the node replicates again after", back)
        return gaps[-1] <= LIMIT

    def _audit(self) -> bool:
        faults = [
            f"{client}: {fault}"
            for client, ledger in self._ledgers.items()
            for fault in faults_of(Client(Remote(f"http://{HOST}:{self._pair.ports[0]}", self._keys[client])), ledger)
        ]
        ledgers = self._ledgers.values()
        tasks, runs = sum(len(each.tasks) for each in ledgers), sum(len(each.runs) for each in ledgers)
        comments = sum(len(texts) for each in ledgers for texts in each.comments.values())
        deleted = sum(len(each.deleted) for each in ledgers)
        self._row("acknowledged in all", f"{tasks:,} tasks, {deleted:,} deleted; {comments:,} comments; {runs:,} runs")
        self._row("lost, duplicated or wrong", f"{len(faults)}")
        print(*(f"    {fault}" for fault in faults[:20]), sep="\n", end="\n" if faults else "")
        self._row("findings-service check", self._pair.run("check"))
        return not faults

    def _row(self, label: str, value: str) -> None:
        print(f"  {label:33}{value}", flush=True)


def binaries() -> Path:
    """Return the folder of PostgreSQL's programs. :raises SystemExit: if one is missing."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: int(path.parts[4]))
    missing = [name for name in ("patroni", "etcd", "haproxy") if not shutil.which(name, path=PATH)]
    if missing or not found:
        names = ", ".join(missing or ["postgresql"])
        sys.exit(f"Not installed: {names}. Run as root: apt-get install --no-install-recommends {PACKAGES}")
    return found[-1]


def keep_logs(folder: Path, destination: Path) -> None:
    """Copy the logs of all processes to another folder."""
    destination.mkdir(parents=True, exist_ok=True)
    for log in folder.glob("*.log"):
        shutil.copy(log, destination)


def main() -> None:
    """Run the trial with the options of the command line."""
    what = "Kill the primary of a PostgreSQL cluster on this machine under load, and count the lost writes."
    failing = f"The exit code is 1 if a write is lost or duplicated, or a writer waits for more than {LIMIT:g} s."
    parser = argparse.ArgumentParser(description=what, epilog=failing)
    parser.add_argument("--rounds", type=int, default=2, help="number of rounds (default 2)")
    parser.add_argument("--writers", type=int, default=4, help="writers of each of the two clients (default 4)")
    parser.add_argument("--freeze", action="store_true", help="freeze the node until writes succeed; do not kill it")
    parser.add_argument("--standby", action="store_true", help="kill the synchronous standby instead of the primary")
    parser.add_argument("--by-name", action="store_true", help="connect the service to both nodes instead of HAProxy")
    parser.add_argument("--logs", type=Path, metavar="FOLDER", help="a folder for the logs of all processes")
    given = parser.parse_args()
    programs, how = binaries(), signal.SIGSTOP if given.freeze else signal.SIGKILL
    victim = "synchronous" if given.standby else "primary"
    os.environ["no_proxy"] = HOST
    with stoppable(), ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="failover-")))
        if given.logs:
            stack.callback(keep_logs, folder, given.logs)
        if os.getuid() == 0:
            shutil.chown(folder, "postgres", "postgres")
        cluster = stack.enter_context(Cluster(folder, programs))
        pair = ServicePair(cluster.url(by_name=given.by_name), folder)
        stack.enter_context(pair.serving())
        trial = Trial(cluster, pair, given.writers, victim, how)
        good = [trial.round(number) for number in range(1, given.rounds + 1)]
    sys.exit(0 if all(good) else 1)


if __name__ == "__main__":
    main()
