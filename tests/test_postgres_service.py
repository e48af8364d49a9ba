"""The service on PostgreSQL as its clients see it: when something goes wrong, and when there are several processes."""

from __future__ import annotations

import hashlib
import http.client
import os
import signal
import subprocess
import threading
import time
import urllib.parse
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest

import findings_service as heart
from tests.engines import faults_of, in_service
from tests.postgres_server import PORT, USER, Databases, MakeServer, fresh_url, name_in, run_in
from tests.slow_network import SlowNetwork, slow_network
from tests.support import API, IMPORTING, PROGRAM, Answer, Server, await_

psycopg = pytest.importorskip("psycopg", reason="psycopg is not installed")

Serving = Callable[..., Server]
SOON = 5.0  # seconds within which everything works again once the database does
LONGEST = 8.0  # seconds that an answer may take, whatever is wrong
LOCK_TIME = 1.0  # seconds that a write waits for a lock in these tests
SECOND = 1.0
# With a branch of 255 letters the counters' index has no room for it, which is told with COMMIT, and the others' have.
LONG_TARGET = f"https://a.example/{''.join(hashlib.sha256(bytes([n])).hexdigest() for n in range(30))}"[:1890]
IMPATIENT = "import findings_adapters.postgres.store as store; store.STATEMENT_TIME = 1.0; store.SILENCE = 0.5"


@dataclass
class Agent:
    """A client: its key, and a run of its own that is running."""

    name: str
    key: str
    run: str

    @property
    def tasks(self) -> str:
        return f"{API}/runs/{self.run}/tasks"


def with_agents(url: str, *names: str) -> list[Agent]:
    """Make clients with keys and runs in a database, beside any service."""
    with in_service(url) as database:
        return [agent_in(database, name) for name in names]


def agent_in(database: heart.Database, name: str) -> Agent:
    with database.transaction(name) as connection:
        key = heart.insert_key(connection, "agent", name, "full")
    with database.transaction(name) as connection:
        heart.insert_project_type(connection, name, "web", "web", "", None)
        who = heart.Principal("", name, "agent", "full")
        run = heart.insert_run(connection, who, "web", "https://a.example/", "{}", heart.MAIN_LINE)
    return Agent(name, key, run.id)


def on_network(url: str, network: SlowNetwork, options: str = "") -> str:
    """Return the URL by which a database is reached across a network."""
    return f"postgresql://{USER}@127.0.0.1:{network.port}/{name_in(url)}{options}"


def address_of(url: str) -> Any:
    """Return where a server listens: the path of its socket, or its host and port."""
    place = urllib.parse.urlsplit(url).netloc.rpartition("@")[2]
    host, _, port = urllib.parse.unquote(place).rpartition(":")
    return f"{host}/.s.PGSQL.{port or PORT}" if host.startswith("/") else (host, int(port or PORT))


url = pytest.fixture(fresh_url)


@pytest.fixture
def serving(url: str, serve: Serving) -> Serving:
    """Start the service on a database of PostgreSQL."""

    def start(*options: str, db: str = "", program: Sequence[str] = PROGRAM, **env: str) -> Server:
        until = r"http://\S+, data in .*\n"
        env = {"FINDINGS_BUSY_TIMEOUT": str(LOCK_TIME)} | env
        return serve("--db", db or url, *options, program=program, until=until, **env)

    return start


# A load that remembers what it was told


class Load:
    """Agents that write all the time, and remember what they were answered. Each has its turn at each of some servers.

    `answered` are the titles of tasks, and the comments, that were said to be stored.
    """

    def __init__(self, servers: Sequence[Server], agents: Sequence[Agent], writers: int = 4) -> None:
        self.servers, self.agents = servers, agents
        self.answered: list[str] = []
        self.refusals: Counter[str] = Counter()  # by their detail
        self.wrong: list[Any] = []  # what the contract does not have
        self.longest = 0.0
        self.last_answers = [0.0] * writers
        self._stopped = threading.Event()
        self._threads = [threading.Thread(target=self._write, args=(number,)) for number in range(writers)]

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        self.await_answers()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        for thread in self._threads:
            thread.join()

    def await_answers(self) -> None:
        """Wait until every writer was answered from now on."""
        began = time.monotonic()
        await_(lambda: min(self.last_answers) > began or self.wrong, SOON)
        assert not self.wrong, self.wrong[0]

    def await_refusals(self, words: str) -> None:
        """Wait until somebody is told why nothing was stored, in these words."""
        await_(lambda: any(words in detail for detail in self.refusals) or self.wrong, SOON)
        assert not self.wrong, self.wrong[0]

    def _write(self, number: int) -> None:
        agent = self.agents[number % len(self.agents)]
        try:
            for turn in range(100_000):
                if self._stopped.is_set():
                    return
                self._report_and_comment(number, turn, agent)
        except Exception as error:
            self.wrong.append(error)

    def _report_and_comment(self, number: int, turn: int, agent: Agent) -> None:
        """Report one finding or three, which only the Idempotency-Key tells from others, until that is answered."""
        name = f"{agent.name}-{number}-{turn}"
        titles = [name] if turn % 2 else [f"{name}.{place}" for place in range(3)]
        tasks = [{"title": title, "severity": "high"} for title in titles]
        body = tasks[0] if turn % 2 else {"tasks": tasks}
        while not (told := self._send(number, turn, agent, "POST", agent.tasks, body, **{"Idempotency-Key": name})):
            if self._stopped.wait(0.02):
                return
        self.answered += titles
        path, comment = f"{API}/tasks/{told.json['tasks'][0]['id']}", f"said of {name}"
        if self._send(number, turn, agent, "PATCH", path, {"comment": comment}):
            self.answered.append(comment)

    def _send(
        self, number: int, turn: int, agent: Agent, method: str, path: str, body: Any, **headers: str
    ) -> Answer | None:
        """Return the answer to a request, None where it is refused in the contract's way."""
        began = time.monotonic()
        answer = self.servers[turn % len(self.servers)].request(method, path, body, agent.key, **headers)
        self.longest = max(self.longest, time.monotonic() - began)
        if answer.status_code in (200, 201):
            self.last_answers[number] = time.monotonic()
            return answer
        if is_unavailable(answer):
            self.refusals[answer.json["detail"]] += 1
        else:
            self.wrong.append((answer.status_code, answer.data))
        return None

    def check(self, url: str) -> None:
        """Check that nothing is lost or doubled, and that the database is sound."""
        assert not self.wrong, self.wrong[0]
        stored = Counter(title for (title,) in run_in(url, "SELECT title FROM tasks"))
        stored.update(comment for (comment,) in run_in(url, "SELECT comment FROM history WHERE event = 'comment'"))
        assert [name for name in self.answered if name not in stored] == []
        assert {name: n for name, n in stored.items() if n != 1} == {}
        assert faults_of(url) == []
        assert self.longest < LONGEST


def is_unavailable(answer: Answer) -> bool:
    """Tell whether a request was refused as the contract says, because of the database."""
    known = answer.status_code == 503 and answer.json["code"] in ("busy", "storage_full")
    return known and int(answer.headers["Retry-After"]) > 0 and answer.content_type == "application/problem+json"


def ask(server: Server, agent: Agent, method: str, path: str, body: Any = None, **headers: str) -> Answer:
    return server.request(method, path, body, agent.key, **headers)


def a_finding(agent: Agent) -> tuple[str, str, dict[str, Any]]:
    """Return what reports a finding."""
    return "POST", agent.tasks, {"title": "A finding", "severity": "high"}


# What a server plans for tables that had no rows yet

READ_ROWS = """SELECT (SELECT SUM(seq_tup_read) FROM pg_stat_user_tables)
    + (SELECT SUM(idx_tup_read) FROM pg_stat_user_indexes)"""


def test_what_a_finding_costs_does_not_grow_with_those_before(url: str) -> None:
    """The connection keeps the plans of its first statements."""
    batches = [[{"title": "A", "severity": "low", "externalId": f"{n}-{m}"} for m in range(500)] for n in range(9)]
    (agent,) = with_agents(url, "one")
    run_in(url, "VACUUM ANALYZE")
    app = heart.create_app(db=f"{url}?pool_size=1")
    headers = {"Authorization": f"Bearer {agent.key}"}

    def read_rows_for(*batches: list[dict[str, str]]) -> int:
        before = run_in(url, READ_ROWS)[0][0]
        for batch in batches:
            answer = app.test_client().post(agent.tasks, json={"tasks": batch}, headers=headers)
            assert answer.status_code in (200, 201), answer.text
        app.extensions["findings"].database.close()  # or the server would count some of it later
        return int(run_in(url, READ_ROWS)[0][0] - before)

    read_rows_for(batches[0][:1], *batches[:3])
    assert read_rows_for(batches[3][:1], *batches[4:], *batches[4:]) < 20 * 2 * 5 * 500


# When something goes wrong


@pytest.mark.parametrize("how", ["fast", "immediate", "kill"])
def test_a_server_that_ends_under_load_loses_and_doubles_nothing(
    own_server: MakeServer, serving: Serving, how: str
) -> None:
    server = own_server(fsync="on", synchronous_commit="on", full_page_writes="on")
    service = serving(db=server.url)
    with Load([service], with_agents(server.url, "one", "two")) as load:
        for pause in (0.0, 2.5):  # the second time for longer than requests wait for it
            server.kill() if how == "kill" else server.stop(how)
            time.sleep(pause)
            server.start()
            load.await_answers()
    load.check(server.url)
    assert load.refusals


def test_backends_that_are_terminated_under_load_lose_and_double_nothing(
    postgres: Databases, url: str, serving: Serving
) -> None:
    with Load([serving()], with_agents(url, "one", "two", "three")) as load:
        for _ in range(10):
            postgres.end_connections(url)
            load.await_answers()
    load.check(url)


def test_while_there_is_no_server_all_is_refused_soon(own_server: MakeServer, serving: Serving) -> None:
    server = own_server()
    service = serving(db=server.url)
    agents = with_agents(server.url, "one", "two")
    assert ask(service, agents[0], *a_finding(agents[0])).status_code == 201
    server.stop()
    time.sleep(SECOND)
    began, once = time.monotonic(), {"Idempotency-Key": "once"}
    refused = [service.request("GET", "/healthz")]
    for who in agents:  # one that was here before, and one that was not
        refused += [ask(service, who, "GET", f"{API}/tasks"), ask(service, who, *a_finding(who))]
        refused.append(ask(service, who, *a_finding(who), **once))
    assert all(map(is_unavailable, refused))
    assert {each.json["detail"].partition(",")[0] for each in refused} == {"The database cannot be reached"}
    assert not any("/" in each.json["detail"] for each in refused)  # no place of the server
    assert service.request("GET", "/").status_code == 200
    assert time.monotonic() < began + LONGEST
    server.start()
    await_(lambda: ask(service, agents[1], *a_finding(agents[1]), **once).status_code == 201, SOON)
    await_(lambda: service.request("GET", "/healthz").status_code == 200)


def test_a_database_that_takes_no_writes_is_read_until_it_does(postgres: Databases, url: str, serving: Serving) -> None:
    service = serving()
    agents = with_agents(url, "one", "two")
    with Load([service], agents) as load:
        postgres.run(f"ALTER DATABASE {name_in(url)} SET default_transaction_read_only = on")
        postgres.end_connections(url)
        load.await_refusals("takes no writes")
        load.refusals.clear()
        await_(lambda: load.refusals.total() >= 8)
        assert [detail for detail in load.refusals if "takes no writes" not in detail] == []
        assert is_unavailable(ask(service, agents[0], *a_finding(agents[0])))
        assert ask(service, agents[0], "GET", f"{API}/tasks").status_code == 200
        postgres.run(f"ALTER DATABASE {name_in(url)} RESET default_transaction_read_only")
        load.await_answers()  # without anybody ending its connections
    load.check(url)


END_SERVICE = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'findings-service'"


def test_while_there_are_too_many_connections_the_service_waits(own_server: MakeServer, serving: Serving) -> None:
    server = own_server(max_connections="12", superuser_reserved_connections="0")
    service = serving(db=server.url)
    agents = with_agents(server.url, "one", "two")
    with Load([service], agents) as load:
        others = [psycopg.connect(server.url, autocommit=True)]
        end = time.monotonic() + SOON
        while not load.refusals and time.monotonic() < end:
            try:
                others.append(psycopg.connect(server.url))
            except psycopg.OperationalError:
                others[0].execute(END_SERVICE)
        assert load.refusals
        for each in others:
            each.close()
        load.await_answers()
    load.check(server.url)


def test_who_holds_some_clients_holds_up_these_alone(url: str, serving: Serving) -> None:
    service = serving()
    *held, free = with_agents(url, *(f"held {number}" for number in range(12)), "free")

    def write(agent: Agent) -> float:
        began = time.monotonic()
        refused = ask(service, agent, *a_finding(agent))
        assert is_unavailable(refused)
        assert refused.json["code"] == "busy"
        return time.monotonic() - began

    with ThreadPoolExecutor(len(held)) as pool, psycopg.connect(url) as somebody:
        somebody.execute("SELECT FROM clients WHERE id LIKE 'held%' FOR UPDATE")
        with Load([service], [free]) as load:
            assert all(LOCK_TIME * 0.9 < took < LOCK_TIME + SECOND for took in pool.map(write, held))
            assert ask(service, held[0], "GET", f"{API}/tasks").status_code == 200
        assert load.longest < LOCK_TIME
        assert not load.refusals
    assert ask(service, held[0], *a_finding(held[0])).status_code == 201
    load.check(url)


def test_what_is_wrong_with_a_write_is_not_said_to_those_that_share_its_transaction(url: str, serving: Serving) -> None:
    service = serving(FINDINGS_BUSY_TIMEOUT="10")
    (agent,) = with_agents(url, "one")
    long = {"projectType": "web", "branch": "".join(map(chr, range(0x4E00, 0x4EFF))), "targetUrl": LONG_TARGET}
    good = {"projectType": "web", "targetUrl": "https://a.example/"}

    def write(body: Any) -> int:
        return ask(service, agent, "POST", f"{API}/runs", body).status_code

    write(good)  # from here on it is known whose writes these are
    with ThreadPoolExecutor(10) as pool, psycopg.connect(url) as somebody:
        somebody.execute("SELECT FROM clients WHERE id = 'one' FOR UPDATE")
        told = []
        for body in [good, *[good, long, good] * 3]:  # the first waits for the lock, and the others for the first
            told.append(pool.submit(write, body))
            time.sleep(0.05)
        somebody.rollback()
        assert [each.result() for each in told] == [201, *[201, 422, 201] * 3]


def test_who_reads_all_the_time_leaves_connections_to_others(url: str, serving: Serving) -> None:
    service = serving()
    greedy, other = with_agents(url, "greedy", "other")
    for agent in (greedy, other):
        assert ask(service, agent, "GET", f"{API}/runs").status_code == 200
    reading = (partial(ask, service, greedy, "GET", f"{API}/tasks/x"),) * 40
    assert_served_beside(url, service, other, reading)


def test_who_exports_all_the_time_leaves_connections_to_others(url: str, serving: Serving) -> None:
    service = serving()
    greedy, other = with_agents(url, "greedy", "other")
    tasks = [{"title": str(number), "severity": "low", "description": "x" * 4000} for number in range(1000)]
    for _ in range(4):
        assert ask(service, greedy, "POST", greedy.tasks, {"tasks": tasks}).status_code == 201
    assert ask(service, other, "GET", f"{API}/runs").status_code == 200
    with ExitStack() as stack:
        exports = [stack.enter_context(exporting(service, greedy)) for _ in range(40)]
        time.sleep(SECOND)  # until each has what goes into pipes and sockets
        assert_served_beside(url, service, other, exports)


@contextmanager
def exporting(service: Server, agent: Agent) -> Iterator[Callable[[], object]]:
    """Begin an export, of which nothing is read until what this gives is called."""
    connection = http.client.HTTPConnection("127.0.0.1", service.port, timeout=30)
    headers = {"Authorization": f"Bearer {agent.key}", "Accept": "text/csv"}
    with closing(connection):
        connection.request("GET", f"{API}/tasks", headers=headers)

        def read() -> None:
            with connection.getresponse() as answer:
                answer.read()

        yield read


def assert_served_beside(url: str, service: Server, other: Agent, reading: Sequence[Callable[[], object]]) -> None:
    """Check that another client is answered soon while all of what reads tasks waits for them."""
    with ThreadPoolExecutor(len(reading)) as readers, psycopg.connect(url) as somebody:
        somebody.execute("LOCK TABLE tasks IN ACCESS EXCLUSIVE MODE")
        for read in reading:
            readers.submit(read)
        time.sleep(0.3)
        began = time.monotonic()
        for method, path, body in (("GET", f"{API}/runs", None), ("POST", f"{API}/project-types", {"name": "new"})):
            assert ask(service, other, method, path, body).status_code in (200, 201)
        assert time.monotonic() - began < 0.4


def test_a_full_disk_is_told_and_nothing_is_lost(own_server: MakeServer, serving: Serving) -> None:
    server = own_server()
    disk = server.folder / "disk"
    disk.mkdir()
    mounted = ["mount", "-t", "tmpfs", "-o", f"size=24m,uid={disk.stat().st_uid}", "none", str(disk)]
    if os.geteuid() or subprocess.run(mounted, check=False, capture_output=True).returncode:
        pytest.skip("only root may mount a small disk")
    try:
        subprocess.run(["chown", USER, disk], check=True)
        run_in(server.url, f"CREATE TABLESPACE small LOCATION '{disk}'")
        run_in(server.url, "CREATE DATABASE small TABLESPACE small")
        url = server.url_of("small")
        service = serving(db=url)
        agents = with_agents(url, "one", "two")
        with Load([service], agents) as load:
            (disk / "ballast").write_bytes(bytes(disk_free(disk) - 400_000))
            full = fill(service, agents[0])
            assert (full.json["code"], "disk is full" in full.json["detail"]) == ("storage_full", True)
            assert ask(service, agents[0], "GET", f"{API}/tasks?limit=1").status_code == 200
            (disk / "ballast").unlink()
            load.await_answers()
        load.check(url)
        service.stop()
    finally:
        server.stop("immediate")
        subprocess.run(["umount", disk], check=True)


def disk_free(disk: Any) -> int:
    figures = os.statvfs(disk)
    return figures.f_bavail * figures.f_frsize


def fill(service: Server, agent: Agent) -> Answer:
    """Report large findings until one is refused."""
    for number in range(200):
        body = {"title": f"Large {number}", "severity": "low", "description": os.urandom(30_000).hex()}
        if (answer := ask(service, agent, "POST", agent.tasks, body)).status_code != 201:
            assert is_unavailable(answer)
            return answer
    raise AssertionError("the disk takes all")


def test_a_network_that_cuts_connections_loses_and_doubles_nothing(url: str, serving: Serving) -> None:
    with slow_network(address_of(url), 0.001) as network:
        service = serving(db=on_network(url, network))
        with Load([service], with_agents(url, "one", "two")) as load:
            for _ in range(15):
                network.cut()
                load.await_answers()
            network.go_away()
            load.await_refusals("cannot be reached")
            network.come_back()
            load.await_answers()
        load.check(url)


def test_a_network_that_stalls_is_given_up_and_found_again(url: str, serving: Serving) -> None:
    program = (PROGRAM[0], "-c", f"{IMPORTING}; {IMPATIENT}; findings_service.main()")
    with slow_network(address_of(url)) as network:
        service = serving(db=on_network(url, network, "?connect_timeout=2"), program=program)
        agents = with_agents(url, "one", "two")

        def read(_: int) -> float:
            began = time.monotonic()
            assert is_unavailable(ask(service, agents[0], "GET", f"{API}/tasks"))
            return time.monotonic() - began

        with Load([service], agents) as load:
            network.stall()
            load.await_refusals("")
            with ThreadPoolExecutor(40) as pool:
                assert max(pool.map(read, range(40))) < LONGEST
            network.go_on()
            load.await_answers()
        load.check(url)


# Several processes


@pytest.fixture
def both(serving: Serving) -> tuple[Server, Server]:
    """Two processes on one database."""
    return serving(), serving()


def at_once(servers: Sequence[Server], *request: Any, **headers: str) -> list[Answer]:
    """Send a request to each of some servers twice, all at the same instant."""
    ready = threading.Barrier(2 * len(servers))

    def send(server: Server) -> Answer:
        ready.wait()
        return ask(server, *request, **headers)

    with ThreadPoolExecutor(2 * len(servers)) as pool:
        return list(pool.map(send, [*servers] * 2))


def test_a_revoked_key_is_refused_everywhere_at_once(url: str, both: tuple[Server, Server]) -> None:
    agent, other = with_agents(url, "one", "two")
    for _ in range(3):
        for server in both:
            for method, path, body in (a_finding(agent), ("GET", f"{API}/tasks", None)):
                assert ask(server, agent, method, path, body).status_code in (200, 201)
    run_in(url, "UPDATE api_keys SET revoked_at = '2026-01-01' WHERE client_id = 'one'")
    time.sleep(heart.KEY_KNOWN)
    for server in both:
        for method, path, body in (a_finding(agent), ("GET", f"{API}/tasks", None), ("POST", f"{API}/runs", {})):
            assert ask(server, agent, method, path, body).status_code == 401
        assert ask(server, agent, *a_finding(agent), **{"Idempotency-Key": "one"}).status_code == 401
        assert ask(server, other, *a_finding(other)).status_code == 201


def test_an_idempotency_key_holds_in_all_processes(url: str, both: tuple[Server, Server]) -> None:
    (agent,) = with_agents(url, "one")
    for number in range(20):
        key = {"Idempotency-Key": f"once {number}"}
        answers = at_once(both, agent, *a_finding(agent), **key)
        assert {(each.status_code, each.data) for each in answers} == {(201, answers[0].data)}
        other = ask(both[number % 2], agent, "POST", agent.tasks, {"title": "Another", "severity": "low"}, **key)
        assert (other.status_code, other.json["code"]) == (409, "idempotency_conflict")
    assert ask(both[0], agent, "GET", f"{API}/tasks").json["total"] == 20
    assert faults_of(url) == []


def test_an_external_id_that_two_processes_get_at_once_is_one_finding(url: str, both: tuple[Server, Server]) -> None:
    (agent,) = with_agents(url, "one")
    for number in range(20):
        body = {"title": "A finding", "severity": "high", "externalId": f"e{number}"}
        answers = at_once(both, agent, "POST", agent.tasks, body)
        results = sorted(each.json["tasks"][0]["result"] for each in answers)
        assert results == ["created", "unchanged", "unchanged", "unchanged"]
        assert len({each.json["tasks"][0]["id"] for each in answers}) == 1
    assert ask(both[1], agent, "GET", f"{API}/tasks").json["total"] == 20
    assert faults_of(url) == []


def test_processes_share_a_load_and_lose_and_double_nothing(url: str, serving: Serving) -> None:
    servers = [serving("--workers", "2"), serving()]
    with Load(servers, with_agents(url, "one", "two"), writers=6) as load:
        time.sleep(2 * SECOND)
        load.servers = servers[:1]
        load.await_answers()
        servers[1].stop(signal.SIGTERM)
        load.await_answers()
    load.check(url)
    assert not load.refusals


def test_a_walk_sees_everything_once_while_two_processes_write(url: str, both: tuple[Server, Server]) -> None:
    (agent,) = with_agents(url, "one")
    for start in range(0, 600, 200):
        tasks = [{"title": f"t{number}", "severity": "low"} for number in range(start, start + 200)]
        assert ask(both[0], agent, "POST", agent.tasks, {"tasks": tasks}).status_code == 201
    before = {task_id for (task_id,) in run_in(url, "SELECT id FROM tasks")}
    with Load(both, [agent], writers=3) as load:
        for sort in ("-createdAt", "createdAt", "severity"):
            seen = Counter(walked(both, agent, f"{API}/tasks?limit=20&sort={sort}", len(before)))
            assert before <= seen.keys()
            assert max(seen.values()) == 1
    load.check(url)
    totals = {ask(server, agent, "GET", f"{API}/tasks").json["total"] for server in both}
    assert {(total,) for total in totals} == {*run_in(url, "SELECT COUNT(*) FROM tasks")}


def walked(servers: Sequence[Server], agent: Agent, link: str | None, at_least: int) -> Iterator[str]:
    """Give the ids that a walk sees, from turn to turn at another server. Its total never falls."""
    turn, total = 0, at_least
    while link:
        page = ask(servers[turn % len(servers)], agent, "GET", link).json
        yield from (task["id"] for task in page["tasks"])
        assert page["total"] >= total
        turn, total, link = turn + 1, page["total"], page["next"]


# Across a network


ROUND_TRIPS = {"a task": 3, "a list": 5, "a comment": 6, "a report": 6, "a batch": 8}


def test_a_request_takes_few_round_trips(url: str, serving: Serving) -> None:
    with slow_network(address_of(url)) as network:
        service = serving(db=on_network(url, network, "?pool_size=1"), FINDINGS_BUSY_TIMEOUT="10")
        (agent,) = with_agents(url, "one")
        task = ask(service, agent, *a_finding(agent)).json["tasks"][0]["id"]

        def trips_of(kind: str, turn: int) -> int:
            named = [{"title": "A finding", "severity": "low", "externalId": f"{turn} {n}"} for n in range(200)]
            requests = {
                "a task": ("GET", f"{API}/tasks/{task}", None),
                "a list": ("GET", f"{API}/tasks?limit=10", None),
                "a comment": ("PATCH", f"{API}/tasks/{task}", {"comment": f"{turn}"}),
                "a report": a_finding(agent),
                "a batch": ("POST", agent.tasks, {"tasks": named}),
            }
            before = network.trips()
            assert ask(service, agent, *requests[kind]).status_code in (200, 201)
            return network.trips() - before

        network.delay(0.02)  # so that what is sent at once is on its way before anything comes back
        found = {kind: min(trips_of(kind, turn) for turn in range(14)) for kind in ROUND_TRIPS}
    assert all(0 < trips <= ROUND_TRIPS[kind] for kind, trips in found.items()), found
