"""The service on PostgreSQL under failures of the database server and the network, as clients see it."""

from __future__ import annotations

import hashlib
import threading
import time
import urllib.parse
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any

import pytest

import findings_service as core
from tests.clients import API
from tests.engines import integrity_errors_of, open_store
from tests.hostile import half_open
from tests.postgres_server import PORT, USER, Databases, MakeServer, db_name, fresh_url, run_in
from tests.servers import IMPORT_CORE, PROGRAM, HttpResponse, Server, at_most, wait_until
from tests.slow_network import SlowNetwork, slow_network

psycopg = pytest.importorskip("psycopg", reason="psycopg is not installed")

StartServer = Callable[..., Server]
LONGEST = 30.0  # seconds for a response, whatever fails
LOCK_TIME = 1.0  # seconds that a write waits for a lock in these tests
SECOND = 1.0
WRITERS = 4  # threads of a load
# With a branch of 255 letters it is too long for the counters' index only, which fails at COMMIT.
LONG_TARGET = f"https://a.example/{''.join(hashlib.sha256(bytes([n])).hexdigest() for n in range(30))}"[:1890]
SHORT_TIMEOUTS = "import findings_adapters.postgres.store as store; store.STATEMENT_TIME = 1.0; store.SILENCE = 0.5"


@dataclass
class Agent:
    """A client with its key and its running run."""

    name: str
    key: str
    run: str

    @property
    def tasks(self) -> str:
        return f"{API}/runs/{self.run}/tasks"


def create_agents(url: str, *names: str) -> list[Agent]:
    """Create clients with keys and runs directly in a database."""
    agents = []
    with open_store(url) as database:
        for name in names:
            with database.transaction() as connection:
                key = core.insert_key(connection, "agent", name, "full")
                core.insert_project_type(connection, name, "web", "web", "", None)
                principal = core.Principal("", name, "agent", "full")
                run = core.insert_run(connection, principal, "web", "https://a.example/", "{}", core.MAIN_LINE)
            agents.append(Agent(name, key, run.id))
    return agents


def url_through(url: str, network: SlowNetwork, options: str = "") -> str:
    """Return the URL of a database for connections through a `SlowNetwork`."""
    return f"postgresql://{USER}@127.0.0.1:{network.port}/{db_name(url)}{options}"


def address_of(url: str) -> Any:
    """Return a server's address: the path of its Unix socket, or its host and port."""
    location = urllib.parse.urlsplit(url).netloc.rpartition("@")[2]
    host, _, port = urllib.parse.unquote(location).rpartition(":")
    return f"{host}/.s.PGSQL.{port or PORT}" if host.startswith("/") else (host, int(port or PORT))


url = pytest.fixture(fresh_url)


@pytest.fixture
def serve_postgres(url: str, serve: StartServer) -> StartServer:
    """A factory of services on a PostgreSQL database."""

    def start(*options: str, db: str = "", program: Sequence[str] = PROGRAM, **env: str) -> Server:
        until = r"http://\S+, data in .*\n"
        env = {"FINDINGS_BUSY_TIMEOUT": str(LOCK_TIME)} | env
        return serve("--db", db or url, *options, program=program, until=until, **env)

    return start


# A load that records the responses


class Load:
    """Agents that write continuously and record the responses.

    `acknowledged` has the titles of tasks, and the comments, whose writes were acknowledged.
    """

    def __init__(self, server: Server, agents: Sequence[Agent]) -> None:
        self.server, self.agents = server, agents
        self.acknowledged: list[str] = []
        self.unavailable: list[list[str]] = [[] for _ in range(WRITERS)]  # details of each writer's 503 responses
        self.wrong: list[Any] = []  # exceptions and undocumented responses
        self.longest = 0.0
        self.last_responses = [0.0] * WRITERS
        self._stopped = threading.Event()
        self._threads = [threading.Thread(target=self._write, args=(number,)) for number in range(WRITERS)]

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        self.await_responses()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        for thread in self._threads:
            thread.join()

    def await_responses(self) -> None:
        """Wait until every writer has received another acknowledgment."""
        began = time.monotonic()
        wait_until(lambda: min(self.last_responses) > began or self.wrong)
        assert not self.wrong, self.wrong[0]

    def await_errors(self, words: str) -> None:
        """Wait until every writer has received a 503 response with these words in its detail."""
        wait_until(lambda: all(any(words in each for each in details) for details in self.unavailable) or self.wrong)
        assert not self.wrong, self.wrong[0]

    def _agent(self, number: int) -> Agent:
        return self.agents[number % len(self.agents)]

    def _write(self, number: int) -> None:
        try:
            for turn in range(100_000):
                if self._stopped.is_set():
                    return
                self._report_and_comment(number, turn)
        except Exception as error:
            self.wrong.append(error)

    def _report_and_comment(self, number: int, turn: int) -> None:
        """Report one task or three with an Idempotency-Key, repeating until acknowledged, then comment on the first."""
        agent = self._agent(number)
        name = f"{agent.name}-{number}-{turn}"
        titles = [name] if turn % 2 else [f"{name}.{index}" for index in range(3)]
        tasks = [{"title": title, "severity": "high"} for title in titles]
        body = tasks[0] if turn % 2 else {"tasks": tasks}
        while not (response := self._send(number, "POST", agent.tasks, body, **{"Idempotency-Key": name})):
            if self._stopped.wait(0.02):
                return
        self.acknowledged += titles
        path, comment = f"{API}/tasks/{response.json['tasks'][0]['id']}", f"comment on {name}"
        if self._send(number, "PATCH", path, {"comment": comment}):
            self.acknowledged.append(comment)

    def _send(self, number: int, method: str, path: str, body: Any, **headers: str) -> HttpResponse | None:
        """Send a writer's request, and return the response, or None if it is a documented 503."""
        began = time.monotonic()
        response = send(self.server, self._agent(number), method, path, body, **headers)
        self.longest = max(self.longest, time.monotonic() - began)
        if response.status_code in (200, 201):
            self.last_responses[number] = time.monotonic()
            return response
        if is_unavailable(response):
            self.unavailable[number].append(response.json["detail"])
        else:
            self.wrong.append((response.status_code, response.data))
        return None

    def check(self, url: str) -> None:
        """Check that nothing is lost or duplicated, and that an audit finds no faults."""
        assert not self.wrong, self.wrong[0]
        stored = Counter(title for (title,) in run_in(url, "SELECT title FROM tasks"))
        stored.update(comment for (comment,) in run_in(url, "SELECT comment FROM history WHERE event = 'comment'"))
        assert [name for name in self.acknowledged if name not in stored] == []
        assert {name: n for name, n in stored.items() if n != 1} == {}
        assert integrity_errors_of(url) == []
        assert self.longest < LONGEST


def is_unavailable(response: HttpResponse) -> bool:
    """Return whether a response is a documented 503 with Retry-After."""
    known = response.status_code == 503 and response.json["code"] in ("busy", "storage_full")
    return known and int(response.headers["Retry-After"]) > 0 and response.content_type == "application/problem+json"


def send(server: Server, agent: Agent, method: str, path: str, body: Any = None, **headers: str) -> HttpResponse:
    return server.request(method, path, body, agent.key, **headers)


def report(agent: Agent) -> tuple[str, str, dict[str, Any]]:
    """Return method, path and body of a request that reports a task."""
    return "POST", agent.tasks, {"title": "A finding", "severity": "high"}


# Query plans that were made for empty tables

READ_ROWS = """SELECT (SELECT SUM(seq_tup_read) FROM pg_stat_user_tables)
    + (SELECT SUM(idx_tup_read) FROM pg_stat_user_indexes)"""


def test_rows_read_per_report_do_not_grow_with_stored_tasks(url: str) -> None:
    """The connection keeps the plans of its first statements, made while the tables were empty."""
    batches = [[{"title": "A", "severity": "low", "externalId": f"{n}-{m}"} for m in range(500)] for n in range(9)]
    (agent,) = create_agents(url, "one")
    run_in(url, "VACUUM ANALYZE")
    app = core.create_app(db=f"{url}?pool_size=1")
    headers = {"Authorization": f"Bearer {agent.key}"}

    def read_rows_for(*batches: list[dict[str, str]]) -> int:
        before = run_in(url, READ_ROWS)[0][0]
        for batch in batches:
            response = app.test_client().post(agent.tasks, json={"tasks": batch}, headers=headers)
            assert response.status_code in (200, 201), response.text
        app.extensions["findings"].database.close()  # flushes the server's statistics
        return int(run_in(url, READ_ROWS)[0][0] - before)

    read_rows_for(batches[0][:1], *batches[:3])
    assert read_rows_for(batches[3][:1], *batches[4:], *batches[4:]) < 20 * 2 * 5 * 500


# Failures


@pytest.mark.parametrize("how", ["fast", "kill"])
def test_database_server_stop_under_load_loses_and_duplicates_nothing(
    own_server: MakeServer, serve_postgres: StartServer, how: str
) -> None:
    server = own_server(fsync="on", synchronous_commit="on", full_page_writes="on")
    service = serve_postgres(db=server.url)
    with Load(service, create_agents(server.url, "one", "two")) as load:
        for pause in (0.0, 2.5):  # the second time longer than requests wait
            server.kill() if how == "kill" else server.stop(how)
            time.sleep(pause)
            server.start()
            load.await_responses()
    load.check(server.url)
    assert any(load.unavailable)


def test_requests_fail_promptly_without_a_database_server(own_server: MakeServer, serve_postgres: StartServer) -> None:
    server = own_server()
    service = serve_postgres(db=server.url, FINDINGS_BUSY_TIMEOUT="600")  # applies to locks only
    agents = create_agents(server.url, "one", "two")
    assert send(service, agents[0], *report(agents[0])).status_code == 201
    server.stop()
    time.sleep(SECOND)
    idempotent = {"Idempotency-Key": "once"}
    sends = [partial(service.request, "GET", "/healthz")]
    for agent in agents:  # the first has been authenticated before, the second has not
        sends += [partial(send, service, agent, "GET", f"{API}/tasks"), partial(send, service, agent, *report(agent))]
    sends.append(partial(send, service, agents[1], *report(agents[1]), **idempotent))
    responses = []
    for each in sends:  # waits for a connection for 1.5 s
        with at_most(30):
            responses.append(each())
    assert all(map(is_unavailable, responses))
    assert {each.json["detail"].partition(",")[0] for each in responses} == {"The database cannot be reached"}
    assert not any("/" in each.json["detail"] for each in responses)  # does not name the server's address
    assert service.request("GET", "/").status_code == 200
    server.start()
    wait_until(lambda: send(service, agents[1], *report(agents[1]), **idempotent).status_code == 201)
    wait_until(lambda: service.request("GET", "/healthz").status_code == 200)


def test_read_only_database_still_serves_reads(postgres: Databases, url: str, serve_postgres: StartServer) -> None:
    service = serve_postgres()
    agents = create_agents(url, "one", "two")
    with Load(service, agents) as load:
        postgres.run(f"ALTER DATABASE {db_name(url)} SET default_transaction_read_only = on")
        postgres.end_connections(url)
        load.await_errors("does not accept writes")  # no request from before is left, whose commit may be in doubt
        for details in load.unavailable:
            details.clear()
        wait_until(lambda: all(len(details) >= 2 for details in load.unavailable))
        assert {detail for detail in chain(*load.unavailable) if "does not accept writes" not in detail} == set()
        assert is_unavailable(send(service, agents[0], *report(agents[0])))
        assert send(service, agents[0], "GET", f"{API}/tasks").status_code == 200
        postgres.run(f"ALTER DATABASE {db_name(url)} RESET default_transaction_read_only")
        load.await_responses()  # on its open connections
    load.check(url)


def test_lock_on_some_clients_does_not_delay_others(url: str, serve_postgres: StartServer) -> None:
    lock_time = 3.0
    service = serve_postgres(FINDINGS_BUSY_TIMEOUT=f"{lock_time}")
    *locked, free = create_agents(url, *(f"locked {number}" for number in range(12)), "free")

    def write(agent: Agent) -> float:
        began = time.monotonic()
        response = send(service, agent, *report(agent))
        assert is_unavailable(response)
        assert response.json["code"] == "busy"
        return time.monotonic() - began

    with ThreadPoolExecutor(len(locked)) as pool, psycopg.connect(url) as session:
        session.execute("SELECT FROM clients WHERE id LIKE 'locked%' FOR UPDATE")
        with Load(service, [free]) as load:
            assert all(lock_time * 0.9 < took < lock_time * 4 for took in pool.map(write, locked))
            assert send(service, locked[0], "GET", f"{API}/tasks").status_code == 200
        assert load.longest < lock_time
        assert not any(load.unavailable)
    assert send(service, locked[0], *report(locked[0])).status_code == 201
    load.check(url)


def test_write_that_fails_at_commit_does_not_fail_its_commit_group(url: str, serve_postgres: StartServer) -> None:
    service = serve_postgres(FINDINGS_BUSY_TIMEOUT="60")
    (agent,) = create_agents(url, "one")
    too_long = {"projectType": "web", "branch": "".join(map(chr, range(0x4E00, 0x4EFF))), "targetUrl": LONG_TARGET}
    good = {"projectType": "web", "targetUrl": "https://a.example/"}

    def write(body: Any) -> int:
        return send(service, agent, "POST", f"{API}/runs", body).status_code

    write(good)  # from here on the service knows the key's client
    with ThreadPoolExecutor(10) as pool, psycopg.connect(url) as session:
        session.execute("SELECT FROM clients WHERE id = 'one' FOR UPDATE")
        statuses = []
        for body in [good, *[good, too_long, good] * 3]:  # the first waits for the lock, the others for the first
            statuses.append(pool.submit(write, body))
            time.sleep(0.05)
        session.rollback()
        assert [each.result() for each in statuses] == [201, *[201, 422, 201] * 3]


@pytest.mark.parametrize("path", ["/x", ""], ids=["reads", "exports"])
def test_one_client_cannot_occupy_all_connections(url: str, serve_postgres: StartServer, path: str) -> None:
    service = serve_postgres(FINDINGS_BUSY_TIMEOUT="60")
    greedy, other = create_agents(url, "greedy", "other")
    for agent in (greedy, other):
        assert send(service, agent, "GET", f"{API}/runs").status_code == 200
    lines = (f"GET {API}/tasks{path} HTTP/1.1", "Host: x", f"Authorization: Bearer {greedy.key}", "Accept: text/csv")
    with psycopg.connect(url) as session:
        session.execute("LOCK TABLE tasks IN ACCESS EXCLUSIVE MODE")
        with half_open(service, 40, "\r\n".join([*lines, "\r\n"]).encode()):
            time.sleep(1)
            for method, resource, body in (("GET", "runs", None), ("POST", "project-types", {"name": "new"})):
                with at_most(30):
                    assert send(service, other, method, f"{API}/{resource}", body).status_code in (200, 201)


def test_cut_connections_lose_and_duplicate_nothing(url: str, serve_postgres: StartServer) -> None:
    with slow_network(address_of(url), 0.001) as network:
        service = serve_postgres(db=url_through(url, network))
        with Load(service, create_agents(url, "one", "two")) as load:
            for _ in range(15):
                network.cut()
                load.await_responses()
            network.go_away()
            load.await_errors("cannot be reached")
            network.come_back()
            load.await_responses()
        load.check(url)


def test_stalled_network_times_out_and_recovers(url: str, serve_postgres: StartServer) -> None:
    program = (PROGRAM[0], "-c", f"{IMPORT_CORE}; {SHORT_TIMEOUTS}; findings_service.main()")
    with slow_network(address_of(url)) as network:
        service = serve_postgres(db=url_through(url, network, "?connect_timeout=2"), program=program)
        agents = create_agents(url, "one", "two")

        def read(_: int) -> float:
            began = time.monotonic()
            assert is_unavailable(send(service, agents[0], "GET", f"{API}/tasks"))
            return time.monotonic() - began

        with Load(service, agents) as load:
            network.stall()
            load.await_errors("")
            with ThreadPoolExecutor(40) as pool:
                assert max(pool.map(read, range(40))) < LONGEST
            network.go_on()
            load.await_responses()
        load.check(url)
