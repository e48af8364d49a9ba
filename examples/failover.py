"""Kill the primary of a PostgreSQL cluster under load, and count what is lost: `python failover.py [--rounds N]`.

Needs a Debian with the packages below, and findings-service with its extra `postgres`. All of it runs on free ports of
the loopback interface, in a folder that is removed: etcd, two PostgreSQL servers that Patroni looks after and that
replicate synchronously, HAProxy before them, two processes of the service, and writers of two clients that remember
what was acknowledged. The exit code is 1 when any of that is lost or doubled, or a writer waits too long.
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
LIMIT = 30.0  # seconds in which writes are to go on
PATIENCE = 120.0  # seconds for whatever else is waited for

# What the nodes agree on. A primary that is gone is replaced when its lease runs out, `ttl` seconds after it was last
# renewed, which is done every `loop_wait`; 20 is the least that newer versions of Patroni take.
AGREED = {"ttl": 20, "loop_wait": 5, "retry_timeout": 5, "synchronous_mode": True}
REPLICATION = {"use_pg_rewind": True, "use_slots": True}
PARAMETERS = {"synchronous_commit": "on", "wal_log_hints": "on", "wal_keep_size": "512MB", "max_connections": 100}

# Patroni is asked every second whether its node is the primary; once it is not, whoever is connected there is cut off.
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
    """Return ports that nobody listens on."""
    with ExitStack() as stack:
        probes = [stack.enter_context(socket.create_server((HOST, 0))) for _ in range(number)]
        return [int(probe.getsockname()[1]) for probe in probes]


@contextmanager
def running(line: Sequence[str], log: Path, **how: Any) -> Iterator[subprocess.Popen[bytes]]:
    """Run a process for the length of a block, away from the terminal's Ctrl-C; what it says goes to a file."""
    with log.open("ab") as said:
        how |= {"stdin": subprocess.DEVNULL, "stdout": said, "stderr": said, "start_new_session": True}
        process = subprocess.Popen(line, cwd=log.parent, **how)
    try:
        yield process
    finally:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(20)
        process.kill()
        process.wait()


def below(pid: int) -> list[int]:
    """Return a process and all that it has started, without those that have ended."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return []
    return [*([] if state == "Z" else [pid]), *(each for child in children for each in below(int(child)))]


def wait_until(what: str, is_so: Callable[[], bool], patience: float = PATIENCE) -> float:
    """Wait until something is so, and return for how many seconds. :raises SystemExit: when it takes too long."""
    began = time.monotonic()
    while not is_so():
        if time.monotonic() > began + patience:
            raise SystemExit(f"{what}: not within {patience:g} s")
        time.sleep(0.05)
    return time.monotonic() - began


def says_yes(port: int, path: str) -> bool:
    """Whether a port of this machine answers a question with 200."""
    line = http.client.HTTPConnection(HOST, port, timeout=5)
    with closing(line), suppress(OSError, http.client.HTTPException):
        line.request("GET", path)
        return line.getresponse().status == 200
    return False


# ---------------------------------------------------------------------------
# The cluster
# ---------------------------------------------------------------------------


@dataclass
class Node:
    """A machine of the cluster: a PostgreSQL server, and the Patroni that looks after it."""

    name: str
    folder: Path
    port: int
    api_port: int
    patroni: int = 0  # its process id

    def is_primary(self) -> bool:
        """Whether it takes writes."""
        return says_yes(self.api_port, "/primary")

    def is_now(self, what: str) -> bool:
        """Whether it is the `primary`, `synchronous` (every COMMIT waits for it) or just of good `health`."""
        return says_yes(self.api_port, f"/{what}")

    def postmaster(self) -> int:
        """Return the id of PostgreSQL's first process, 0 for none."""
        with suppress(OSError, ValueError):
            return int((self.folder / "postmaster.pid").read_text().partition("\n")[0])
        return 0

    def processes(self) -> list[int]:
        """Return the ids of all of its processes. PostgreSQL's are not below Patroni, which it is to survive."""
        return [*dict.fromkeys([*below(self.patroni), *below(self.postmaster())])]

    def send(self, how: signal.Signals) -> int:
        """Send a signal to all of its processes at once, and return how many those were."""
        processes = self.processes()
        for each in processes:
            with suppress(ProcessLookupError):
                os.kill(each, how)
        return len(processes)

    def end(self) -> None:
        """End it: PostgreSQL at once, but so that it leaves no shared memory behind."""
        with suppress(ProcessLookupError, SystemExit):
            os.kill(self.patroni, signal.SIGKILL)
            self.send(signal.SIGCONT)
            if below(self.postmaster()):
                os.kill(self.postmaster(), signal.SIGQUIT)
            wait_until("its end", lambda: not self.processes(), 10)
        self.send(signal.SIGKILL)


class Cluster:
    """etcd, two nodes and HAProxy, in a folder, for the length of a `with` block."""

    def __init__(self, folder: Path, binaries: Path) -> None:
        self._folder, self._binaries, self._stack = folder, binaries, ExitStack()
        self._etcd_port, self._peer_port, self._port, *ports = free_ports(7)
        self._passwords = {name: secrets.token_hex(16) for name in ("postgres", "replicator", "rewinder", DATABASE)}
        places = zip("ab", ports[:2], ports[2:], strict=True)
        self.nodes = [Node(name, folder / name, port, api_port) for name, port, api_port in places]

    def __enter__(self) -> "Cluster":
        with ExitStack() as self._stack:
            self._start_etcd()
            for node in self.nodes:  # the second one copies the first
                self.start(node)
                wait_until(f"node {node.name}", partial(node.is_now, "health"))
            self._make_database()
            a, b = self.nodes
            before_them = HAPROXY.format(host=HOST, port=self._port, a=a, b=b)
            self._start("haproxy", "-db", "-f", self._write("haproxy.cfg", before_them))
            wait_until("synchronous replication", partial(b.is_now, "synchronous"))
            self._stack = self._stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def url(self, *, by_name: bool) -> str:
        """Return the URL of the database: at HAProxy, or at either node, of which the service finds the right one."""
        ports = [node.port for node in self.nodes] if by_name else [self._port]
        places = ",".join(f"{HOST}:{port}" for port in ports)
        return f"postgresql://{DATABASE}:{self._passwords[DATABASE]}@{places}/{DATABASE}"

    def node_that_is(self, what: str) -> Node:
        """Return the node that is now the `primary`, or `synchronous`. :raises StopIteration: when none is."""
        return next(node for node in self.nodes if node.is_now(what))

    def start(self, node: Node) -> None:
        """Start the Patroni of a node, which starts its PostgreSQL."""
        settings = self._write(f"{node.name}.yml", json.dumps(self._patroni(node)))
        node.patroni = self._start("patroni", settings, log=node.name)
        self._stack.callback(node.end)

    def said_by(self, node: Node) -> str:
        """Return what the Patroni and the PostgreSQL of a node have said."""
        return (self._folder / f"{node.name}.log").read_text("utf-8", "replace")

    def _start(self, *line: str, log: str = "") -> int:
        how: dict[str, Any] = {"env": {"PATH": PATH, "LANG": "C.UTF-8", "HOME": str(self._folder)}}
        if os.getuid() == 0:  # who may not run PostgreSQL
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
        # Patroni 3.0.2, Debian 12's, takes a lease back from another node when it wakes up from a long sleep, unless it
        # speaks the second version of etcd's protocol (https://github.com/patroni/patroni/pull/2689).
        client, peer = f"http://{HOST}:{self._etcd_port}", f"http://{HOST}:{self._peer_port}"
        places = [f"--listen-client-urls={client}", f"--advertise-client-urls={client}", f"--listen-peer-urls={peer}"]
        cluster = [f"--initial-advertise-peer-urls={peer}", f"--initial-cluster=default={peer}", "--data-dir=etcd"]
        self._start("etcd", *places, *cluster, "--enable-v2")
        wait_until("etcd", lambda: says_yes(self._etcd_port, "/health"))

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
        place = {"PGHOST": HOST, "PGPORT": f"{self.nodes[0].port}", "PGUSER": "postgres"}
        login = f"CREATE ROLE {DATABASE} LOGIN PASSWORD '{self._passwords[DATABASE]}'"
        for sql in (login, f"CREATE DATABASE {DATABASE} OWNER {DATABASE}"):
            line, password = [str(self._binaries / "psql"), "--command", sql], self._passwords["postgres"]
            subprocess.run(line, env=place | {"PGPASSWORD": password}, check=True, capture_output=True)


# ---------------------------------------------------------------------------
# The load
# ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Attempt:
    """A request that was sent: when, when it was answered and how (0 for not at all), and whether it writes."""

    sent: float
    answered: float
    status: int
    writes: bool

    @property
    def is_good(self) -> bool:
        """Whether it is acknowledged."""
        return 200 <= self.status < 300


@dataclass
class Told:
    """What the writers of a client were told that there is."""

    tasks: dict[str, str] = field(default_factory=dict)  # ids by title
    deleted: set[str] = field(default_factory=set)  # titles
    statuses: dict[str, str] = field(default_factory=dict)  # by title
    comments: dict[str, dict[str, int]] = field(default_factory=dict)  # by title: how often each was sent
    runs: set[str] = field(default_factory=set)  # names
    faults: list[str] = field(default_factory=list)  # answers that should not have been


class Writer(threading.Thread):
    """A writer of a client. It sends each request until it is acknowledged, to one service or the other."""

    def __init__(self, name: str, services: Sequence[Remote], told: Told) -> None:
        super().__init__(name=name, daemon=True)
        self.attempts: list[Attempt] = []
        self.is_over = threading.Event()
        self._services, self._told, self._dice = list(services), told, random.Random(name)
        self._known: list[str] = []
        self._run = ""

    def run(self) -> None:
        """Write until it is over."""
        seldom = (self.begin_a_run, self.report_what_all_do, self.delete)
        work = [*seldom, *3 * [self.report], *4 * [self.create, self.comment]]
        try:
            self.begin_a_run(f"{self.name}/0")
            for number in count(1):
                if self.is_over.wait(self._dice.uniform(0, 0.04)):
                    return
                self._dice.choice(work)(f"{self.name}/{number}")
        except Exception as error:
            self._told.faults.append(f"{self.name} gave up: {error}")

    def first_good(self, since: float) -> float:
        """Return when the first write that was sent since a moment was acknowledged, 0 for not yet."""
        good = (each for each in [*self.attempts] if each.writes and each.is_good and each.sent > since)
        return next((each.answered for each in good), 0.0)

    def longest_gap(self) -> float:
        """Return the longest time from one acknowledged write to the next."""
        times = [each.answered for each in self.attempts if each.writes and each.is_good]
        return max((after - before for before, after in pairwise(times)), default=0.0)

    def begin_a_run(self, name: str) -> None:
        """Start a run; only its Idempotency-Key keeps it from being two."""
        run = self._acknowledged("POST", "/runs", {"projectType": "web", "metadata": {"name": name}})
        self._told.runs.add(name)
        self._run = run["id"]

    def create(self, title: str) -> None:
        """Submit a task without an externalId, which too might be two, and read it from the other service."""
        self._submit([{"title": title, "severity": "low"}])
        self._services.reverse()
        self._acknowledged("GET", f"/tasks/{self._told.tasks[title]}")

    def report(self, name: str) -> None:
        """Submit some tasks with externalIds, of which one may be known."""
        titles = [*self._known[-1:], *(f"{name}.{number}" for number in range(self._dice.randint(1, 20)))]
        self._submit([{"title": title, "severity": "high", "externalId": title} for title in titles])
        self._known.append(titles[-1])

    def report_what_all_do(self, _: str) -> None:
        """Submit a task that the other writers of the client submit too."""
        title = f"one of all {self._dice.randrange(1000)}"
        self._submit([{"title": title, "severity": "info", "externalId": title}])

    def comment(self, text: str) -> None:
        """Move a task, with a comment. No Idempotency-Key goes with that: it may be there as often as it was sent."""
        if self._known:
            title, status = self._dice.choice(self._known), self._dice.choice(["open", "resolved", "dismissed"])
            before = len(self.attempts)
            self._acknowledged("PATCH", f"/tasks/{self._told.tasks[title]}", {"status": status, "comment": text})
            self._told.comments.setdefault(title, {})[text] = len(self.attempts) - before
            self._told.statuses[title] = status

    def delete(self, title: str) -> None:
        """Delete a task. Where an attempt failed, the next one may find that it is gone."""
        self._submit([{"title": title, "severity": "low"}])
        self._acknowledged("DELETE", f"/tasks/{self._told.tasks[title]}", then=404)
        self._told.deleted.add(title)

    def _submit(self, tasks: list[dict[str, str]]) -> None:
        answer = self._acknowledged("POST", f"/runs/{self._run}/tasks", {"tasks": tasks})
        for task, told in zip(tasks, answer["tasks"], strict=True):
            title = task["title"]
            if self._told.tasks.setdefault(title, told["id"]) != told["id"]:
                self._told.faults.append(f"task {title} is two")
            if told["result"] == "reopened":
                self._told.statuses[title] = told["status"]

    def _acknowledged(self, method: str, path: str, body: Any = None, then: int = 0) -> Any:
        """Return the answer to a request, which is sent until it is good. :raises RuntimeError: when it is refused.

        :param then: the status that is as good from the second attempt on.
        """
        headers = {"Content-Type": "application/json", "Idempotency-Key": secrets.token_hex(8)}
        sends = json.dumps(body).encode() if body else None
        end = time.monotonic() + PATIENCE
        for turn in count():
            sent, status, text, wait = time.monotonic(), 0, b"", 1.0
            with suppress(Unavailable):
                answer = self._services[0].send(method, f"{API}{path}", sends, headers)
                status, text, wait = answer.status, answer.body, float(answer.headers.get("retry-after", 1))
            self.attempts.append(Attempt(sent, time.monotonic(), status, method != "GET"))
            if self.attempts[-1].is_good or (turn and status == then):
                return json.loads(text or b"null")
            if status not in (0, 503) or sent > end:
                break
            self._services.reverse()
            time.sleep(wait * self._dice.uniform(1, 1.2))
        raise RuntimeError(f"{method} {path}: {status} {text[:300].decode()}")


# ---------------------------------------------------------------------------
# What must be there
# ---------------------------------------------------------------------------


def faults_of(service: Client, told: Told) -> Iterator[str]:
    """Give what a service answers otherwise than its writers were told, a line each."""
    yield from told.faults
    tasks = [*listed(service, "tasks?limit=200")]
    found, expected = Counter(task["title"] for task in tasks), {*told.tasks} - told.deleted
    yield from (f"task {title} is lost" for title in expected - {*found})
    yield from (f"task {title} is back" for title in {*found} - expected)
    yield from (f"task {title} is there {n} times" for title, n in found.items() if n > 1)
    for task in tasks:
        if task["id"] != told.tasks.get(task["title"]):
            yield f"task {task['title']} is another"
        status = told.statuses.get(task["title"], "open")
        if task["status"] != status:
            yield f"task {task['title']} is {task['status']} instead of {status}"
    for title, sent in told.comments.items():
        history = listed(service, f"tasks/{told.tasks[title]}/history")
        there = Counter(entry["comment"] for entry in history if entry["comment"])
        for text in {*there, *sent}:
            if not min(1, sent.get(text, 0)) <= there[text] <= sent.get(text, 0):
                yield f"comment {text} was sent {sent.get(text, 0)} times, and is there {there[text]} times"
    runs = Counter(run["metadata"]["name"] for run in listed(service, "runs?limit=200"))
    yield from (f"run {name} is there {runs[name]} times" for name in {*runs, *told.runs} if runs[name] != 1)


def listed(service: Client, link: str | None) -> Iterator[dict[str, Any]]:
    """Give the items of a list, from page to page."""
    while link:
        answer = json.loads(service.request("GET", link).body)
        yield from next(each for each in answer.values() if isinstance(each, list))
        link = answer["next"]


# ---------------------------------------------------------------------------
# The trial
# ---------------------------------------------------------------------------


class Front:
    """The service before a cluster: its command line, and two processes that serve."""

    def __init__(self, url: str, folder: Path) -> None:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("FINDINGS_")}
        self._environment, self._folder, self.ports = kept | {"FINDINGS_DB": url}, folder, free_ports(2)

    def run(self, *arguments: str) -> str:
        """Run a command to its end, and return what it prints. :raises SystemExit: when it fails."""
        line = [sys.executable, "-m", "findings_service", *arguments]
        done = subprocess.run(line, env=self._environment, capture_output=True, text=True, check=False)
        if done.returncode:
            sys.exit(f"findings-service {arguments[0]}: {done.stdout}{done.stderr}")
        return (done.stdout or done.stderr).strip()

    @contextmanager
    def serving(self) -> Iterator[None]:
        """Serve for the length of a block."""
        with ExitStack() as stack:
            for port in self.ports:
                line = [sys.executable, "-m", "findings_service", "serve", "--host", HOST, "--port", str(port)]
                log = self._folder / f"service-{port}.log"
                stack.enter_context(running(line, log, env=self._environment))
                wait_until("the service", partial(says_yes, port, "/healthz"))
            yield

    def remotes(self, key: str) -> list[Remote]:
        """Return both processes, by which a request is sent once."""
        remotes = [Remote(f"http://{HOST}:{port}", key) for port in self.ports]
        for remote in remotes:
            remote.patience = 0
        return remotes


class Trial:
    """A cluster and the service before it, and what clients were told over all rounds."""

    def __init__(self, cluster: Cluster, front: Front, writers: int, victim: str, how: signal.Signals) -> None:
        self._cluster, self._front, self._writers, self._victim, self._how = cluster, front, writers, victim, how
        self._keys = {each: front.run("keys", "create", "trial", "--client", each, "--level=full") for each in CLIENTS}
        self._told = {client: Told() for client in CLIENTS}
        for key in self._keys.values():
            Client(front.remotes(key)[0]).request("POST", "project-types", {"name": "web"})

    def round(self, number: int) -> bool:
        """Kill a node under load, have it back, print what was seen, and return whether all was good."""
        names = [(client, f"{client} {number}/{each}") for client in CLIENTS for each in range(self._writers)]
        keys, told = self._keys, self._told
        writers = [Writer(name, self._front.remotes(keys[client]), told[client]) for client, name in names]
        for writer in writers:
            writer.start()
        try:
            time.sleep(random.uniform(5, 10))
            node = self._cluster.node_that_is(self._victim)
            began, processes, gone = time.monotonic(), node.send(self._how), time.monotonic()
            print(f"round {number}: {self._how.name} to {processes} processes of the {self._victim} node {node.name}")
            wait_until("writes of all", lambda: all(each.first_good(gone) for each in writers if each.is_alive()))
            time.sleep(5)
            back = self._have_back(node)
        finally:
            for writer in writers:
                writer.is_over.set()
        for writer in writers:
            writer.join()
        return all([self._tell(writers, began, gone, back), self._audit()])

    def _have_back(self, node: Node) -> str:
        said = len(self._cluster.said_by(node))
        if self._how == signal.SIGKILL:
            self._cluster.start(node)
        else:
            node.send(signal.SIGCONT)
        seconds = wait_until(f"node {node.name}", partial(node.is_now, "synchronous"))
        rewound = "running pg_rewind" in self._cluster.said_by(node)[said:]
        time.sleep(3)
        return f"{seconds:.1f} s{', rewound' if rewound else ''}"

    def _tell(self, writers: Sequence[Writer], began: float, gone: float, back: str) -> bool:
        first = min(filter(None, (writer.first_good(gone) for writer in writers)))
        attempts = [attempt for writer in writers for attempt in writer.attempts]
        gaps = sorted(writer.longest_gap() for writer in writers)
        meanwhile = Counter(each.status or "no answer" for each in attempts if began < each.answered < first)
        self._say("first write acknowledged after", f"{first - gone:.1f} s")
        self._say("longest wait of each writer", f"{', '.join(f'{gap:.1f}' for gap in gaps)} s")
        self._say("answered before that", ", ".join(f"{n} × {status}" for status, n in meanwhile.most_common()))
        self._say("requests sent, acknowledged", f"{len(attempts):,}, {sum(each.is_good for each in attempts):,}")
        self._say("the node replicates again after", back)
        return gaps[-1] <= LIMIT

    def _audit(self) -> bool:
        faults = [
            f"{client}: {fault}"
            for client, told in self._told.items()
            for fault in faults_of(Client(Remote(f"http://{HOST}:{self._front.ports[0]}", self._keys[client])), told)
        ]
        told = self._told.values()
        tasks, runs = sum(len(each.tasks) for each in told), sum(len(each.runs) for each in told)
        comments = sum(len(texts) for each in told for texts in each.comments.values())
        deleted = sum(len(each.deleted) for each in told)
        self._say("acknowledged in all", f"{tasks:,} tasks, {deleted:,} deleted; {comments:,} comments; {runs:,} runs")
        self._say("lost, doubled or wrong", f"{len(faults)}")
        print(*(f"    {fault}" for fault in faults[:20]), sep="\n", end="\n" if faults else "")
        self._say("findings-service check", self._front.run("check"))
        return not faults

    def _say(self, what: str, said: str) -> None:
        print(f"  {what:33}{said}", flush=True)


def binaries() -> Path:
    """Return where PostgreSQL's programs are. :raises SystemExit: when something is not installed."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: int(path.parts[4]))
    missing = [name for name in ("patroni", "etcd", "haproxy") if not shutil.which(name, path=PATH)]
    if missing or not found:
        lacks = ", ".join(missing or ["postgresql"])
        sys.exit(f"Not installed: {lacks}. As root: apt-get install --no-install-recommends {PACKAGES}")
    return found[-1]


def keep_logs(folder: Path, where: Path) -> None:
    """Copy what all processes said."""
    where.mkdir(parents=True, exist_ok=True)
    for log in folder.glob("*.log"):
        shutil.copy(log, where)


def main() -> None:
    """Do what the command line asks for."""
    what = "Kill the primary of a PostgreSQL cluster under load, all of it on this machine, and count what is lost."
    failing = f"The exit code is 1 when something is lost or doubled, or a writer waits for more than {LIMIT:g} s."
    parser = argparse.ArgumentParser(description=what, epilog=failing)
    parser.add_argument("--rounds", type=int, default=2, help="how often (default 2)")
    parser.add_argument("--writers", type=int, default=4, help="of each of the two clients (default 4)")
    parser.add_argument("--freeze", action="store_true", help="let the node hang, and wake up when writes go on")
    parser.add_argument("--standby", action="store_true", help="do it to the synchronous standby")
    parser.add_argument("--by-name", action="store_true", help="name both nodes to the service, and no HAProxy")
    parser.add_argument("--logs", type=Path, metavar="FOLDER", help="where to keep what all of them said")
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
        front = Front(cluster.url(by_name=given.by_name), folder)
        stack.enter_context(front.serving())
        trial = Trial(cluster, front, given.writers, victim, how)
        good = [trial.round(number) for number in range(1, given.rounds + 1)]
    sys.exit(0 if all(good) else 1)


if __name__ == "__main__":
    main()
