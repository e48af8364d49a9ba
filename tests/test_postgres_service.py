"""The service on PostgreSQL as its clients see it: when something goes wrong, and when there are several processes."""

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
from typing import Any

import pytest

import findings_service as core
from tests.clients import API
from tests.engines import integrity_errors_of, open_store
from tests.hostile import half_open
from tests.postgres_server import PORT, USER, Databases, MakeServer, fresh_url, name_in, run_in
from tests.servers import IMPORT_CORE, PROGRAM, HttpResponse, Server, at_most, wait_until
from tests.slow_network import SlowNetwork, slow_network

psycopg = pytest.importorskip("psycopg", reason="psycopg is not installed")

Serving = Callable[..., Server]
LONGEST = 30.0  # seconds that an answer may take, whatever is wrong
LOCK_TIME = 1.0  # seconds that a write waits for a lock in these tests
SECOND = 1.0
WRITERS = 4  # of a load
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
    made = []
    with open_store(url) as database:
        for name in names:
            with database.transaction() as connection:
                key = core.insert_key(connection, "agent", name, "full")
                core.insert_project_type(connection, name, "web", "web", "", None)
                who = core.Principal("", name, "agent", "full")
                run = core.insert_run(connection, who, "web", "https://a.example/", "{}", core.MAIN_LINE)
            made.append(Agent(name, key, run.id))
    return made


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
    """Agents that write all the time, and remember what they were answered.

    `answered` are the titles of tasks, and the comments, that were said to be stored.
    """

    def __init__(self, server: Server, agents: Sequence[Agent]) -> None:
        self.server, self.agents = server, agents
        self.answered: list[str] = []
        self.refusals: Counter[str] = Counter()  # by their detail
        self.wrong: list[Any] = []  # what the contract does not have
        self.longest = 0.0
        self.last_answers = [0.0] * WRITERS
        self._stopped = threading.Event()
        self._threads = [threading.Thread(target=self._write, args=(number,)) for number in range(WRITERS)]

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
        wait_until(lambda: min(self.last_answers) > began or self.wrong)
        assert not self.wrong, self.wrong[0]

    def await_refusals(self, words: str) -> None:
        """Wait until somebody is told why nothing was stored, in these words."""
        wait_until(lambda: any(words in detail for detail in self.refusals) or self.wrong)
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
        """Report one finding or three, which only the Idempotency-Key tells from others, until that is answered."""
        agent = self._agent(number)
        name = f"{agent.name}-{number}-{turn}"
        titles = [name] if turn % 2 else [f"{name}.{place}" for place in range(3)]
        tasks = [{"title": title, "severity": "high"} for title in titles]
        body = tasks[0] if turn % 2 else {"tasks": tasks}
        while not (told := self._send(number, "POST", agent.tasks, body, **{"Idempotency-Key": name})):
            if self._stopped.wait(0.02):
                return
        self.answered += titles
        path, comment = f"{API}/tasks/{told.json['tasks'][0]['id']}", f"said of {name}"
        if self._send(number, "PATCH", path, {"comment": comment}):
            self.answered.append(comment)

    def _send(self, number: int, method: str, path: str, body: Any, **headers: str) -> HttpResponse | None:
        """Return the answer to a writer's request, None where it is refused in the contract's way."""
        began = time.monotonic()
        answer = ask(self.server, self._agent(number), method, path, body, **headers)
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
        assert integrity_errors_of(url) == []
        assert self.longest < LONGEST


def is_unavailable(answer: HttpResponse) -> bool:
    """Tell whether a request was refused as the contract says, because of the database."""
    known = answer.status_code == 503 and answer.json["code"] in ("busy", "storage_full")
    return known and int(answer.headers["Retry-After"]) > 0 and answer.content_type == "application/problem+json"


def ask(server: Server, agent: Agent, method: str, path: str, body: Any = None, **headers: str) -> HttpResponse:
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
    app = core.create_app(db=f"{url}?pool_size=1")
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


@pytest.mark.parametrize("how", ["fast", "kill"])
def test_a_server_that_ends_under_load_loses_and_doubles_nothing(
    own_server: MakeServer, serving: Serving, how: str
) -> None:
    server = own_server(fsync="on", synchronous_commit="on", full_page_writes="on")
    service = serving(db=server.url)
    with Load(service, with_agents(server.url, "one", "two")) as load:
        for pause in (0.0, 2.5):  # the second time for longer than requests wait for it
            server.kill() if how == "kill" else server.stop(how)
            time.sleep(pause)
            server.start()
            load.await_answers()
    load.check(server.url)
    assert load.refusals


def test_while_there_is_no_server_all_is_refused_soon(own_server: MakeServer, serving: Serving) -> None:
    server = own_server()
    service = serving(db=server.url, FINDINGS_BUSY_TIMEOUT="600")  # which is for locks
    agents = with_agents(server.url, "one", "two")
    assert ask(service, agents[0], *a_finding(agents[0])).status_code == 201
    server.stop()
    time.sleep(SECOND)
    once = {"Idempotency-Key": "once"}
    asked = [partial(service.request, "GET", "/healthz")]
    for who in agents:  # one that was here before, and one that was not
        asked += [partial(ask, service, who, "GET", f"{API}/tasks"), partial(ask, service, who, *a_finding(who))]
    asked.append(partial(ask, service, agents[1], *a_finding(agents[1]), **once))
    refused = []
    for each in asked:  # which waits for a connection for 1.5 s
        with at_most(30):
            refused.append(each())
    assert all(map(is_unavailable, refused))
    assert {each.json["detail"].partition(",")[0] for each in refused} == {"The database cannot be reached"}
    assert not any("/" in each.json["detail"] for each in refused)  # no place of the server
    assert service.request("GET", "/").status_code == 200
    server.start()
    wait_until(lambda: ask(service, agents[1], *a_finding(agents[1]), **once).status_code == 201)
    wait_until(lambda: service.request("GET", "/healthz").status_code == 200)


def test_a_database_that_takes_no_writes_is_read_until_it_does(postgres: Databases, url: str, serving: Serving) -> None:
    service = serving()
    agents = with_agents(url, "one", "two")
    with Load(service, agents) as load:
        postgres.run(f"ALTER DATABASE {name_in(url)} SET default_transaction_read_only = on")
        postgres.end_connections(url)
        load.await_refusals("takes no writes")
        load.refusals.clear()
        wait_until(lambda: load.refusals.total() >= 8)
        assert [detail for detail in load.refusals if "takes no writes" not in detail] == []
        assert is_unavailable(ask(service, agents[0], *a_finding(agents[0])))
        assert ask(service, agents[0], "GET", f"{API}/tasks").status_code == 200
        postgres.run(f"ALTER DATABASE {name_in(url)} RESET default_transaction_read_only")
        load.await_answers()  # without anybody ending its connections
    load.check(url)


def test_who_holds_some_clients_holds_up_these_alone(url: str, serving: Serving) -> None:
    lock_time = 3.0
    service = serving(FINDINGS_BUSY_TIMEOUT=f"{lock_time}")
    *held, free = with_agents(url, *(f"held {number}" for number in range(12)), "free")

    def write(agent: Agent) -> float:
        began = time.monotonic()
        refused = ask(service, agent, *a_finding(agent))
        assert is_unavailable(refused)
        assert refused.json["code"] == "busy"
        return time.monotonic() - began

    with ThreadPoolExecutor(len(held)) as pool, psycopg.connect(url) as somebody:
        somebody.execute("SELECT FROM clients WHERE id LIKE 'held%' FOR UPDATE")
        with Load(service, [free]) as load:
            assert all(lock_time * 0.9 < took < lock_time * 4 for took in pool.map(write, held))
            assert ask(service, held[0], "GET", f"{API}/tasks").status_code == 200
        assert load.longest < lock_time
        assert not load.refusals
    assert ask(service, held[0], *a_finding(held[0])).status_code == 201
    load.check(url)


def test_what_is_wrong_with_a_write_is_not_said_to_those_that_share_its_transaction(url: str, serving: Serving) -> None:
    service = serving(FINDINGS_BUSY_TIMEOUT="60")
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


@pytest.mark.parametrize("path", ["/x", ""], ids=["reads", "exports"])
def test_who_asks_all_the_time_leaves_connections_to_others(url: str, serving: Serving, path: str) -> None:
    service = serving(FINDINGS_BUSY_TIMEOUT="60")
    greedy, other = with_agents(url, "greedy", "other")
    for agent in (greedy, other):
        assert ask(service, agent, "GET", f"{API}/runs").status_code == 200
    lines = (f"GET {API}/tasks{path} HTTP/1.1", "Host: x", f"Authorization: Bearer {greedy.key}", "Accept: text/csv")
    with psycopg.connect(url) as somebody:
        somebody.execute("LOCK TABLE tasks IN ACCESS EXCLUSIVE MODE")
        with half_open(service, 40, "\r\n".join([*lines, "\r\n"]).encode()):
            time.sleep(1)
            for method, place, body in (("GET", "runs", None), ("POST", "project-types", {"name": "new"})):
                with at_most(30):
                    assert ask(service, other, method, f"{API}/{place}", body).status_code in (200, 201)


def test_a_network_that_cuts_connections_loses_and_doubles_nothing(url: str, serving: Serving) -> None:
    with slow_network(address_of(url), 0.001) as network:
        service = serving(db=on_network(url, network))
        with Load(service, with_agents(url, "one", "two")) as load:
            for _ in range(15):
                network.cut()
                load.await_answers()
            network.go_away()
            load.await_refusals("cannot be reached")
            network.come_back()
            load.await_answers()
        load.check(url)


def test_a_network_that_stalls_is_given_up_and_found_again(url: str, serving: Serving) -> None:
    program = (PROGRAM[0], "-c", f"{IMPORT_CORE}; {IMPATIENT}; findings_service.main()")
    with slow_network(address_of(url)) as network:
        service = serving(db=on_network(url, network, "?connect_timeout=2"), program=program)
        agents = with_agents(url, "one", "two")

        def read(_: int) -> float:
            began = time.monotonic()
            assert is_unavailable(ask(service, agents[0], "GET", f"{API}/tasks"))
            return time.monotonic() - began

        with Load(service, agents) as load:
            network.stall()
            load.await_refusals("")
            with ThreadPoolExecutor(40) as pool:
                assert max(pool.map(read, range(40))) < LONGEST
            network.go_on()
            load.await_answers()
        load.check(url)
