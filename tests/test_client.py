"""What programs may count on when they talk to a service: over HTTP, and in their own process over a database file."""

from __future__ import annotations

import http.client
import itertools
import json
import os
import re
import signal
import threading
import time
import unicodedata
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager, nullcontext, suppress
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any
from unittest import mock

import msgspec
import pytest

import findings_client as client_module
import findings_service
from findings_client import Findings, FindingsRefused, Local, Refused, Stopped, Unavailable, fingerprint, stoppable
from tests.clients import cases, task
from tests.engines import busy_error, db_at, integrity_errors_of, name_of
from tests.servers import LISTENING, PATIENCE, PROGRAM, Server, StubHandler, running_stub, start_process

Reply = tuple[int, dict[str, str], bytes]
GAVE_UP = 504  # what a gateway answers though the work may be done


class Fake:
    """A server that answers what it is told, and then like another one or with an empty object."""

    def __init__(self, behind: Server | None = None) -> None:
        self.behind = behind
        self.replies: list[Reply | None] = []
        self.before: dict[str, Callable[[], Any]] = {}  # what is done before a path that ends so is asked for
        self.loses_first = False  # whether the first answer to each request is lost
        self.received: list[tuple[str, str, dict[str, str], bytes]] = []
        fake = self

        class Handler(StubHandler):
            def answer(self) -> None:
                fake.answer(self, self.body())

            do_GET = do_POST = do_PATCH = do_CONNECT = answer

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{server.server_port}"
        self.running = ExitStack()
        self.running.enter_context(running_stub(server))

    def answer(self, handler: StubHandler, body: bytes) -> None:
        """Answer a request, or lose the answer once the work was done."""
        self.received.append((handler.command, handler.path, dict(handler.headers.items()), body))
        for end in self.before:
            if handler.path.endswith(end):
                self.before[end]()
        reply = self.replies.pop(0) if self.replies else self.pass_on(handler, body)
        again = self.received.count(self.received[-1]) > 1
        if reply is None or reply[0] == GAVE_UP:
            self.pass_on(handler, body)
        if reply is None or (self.loses_first and not again):
            handler.close_connection = True
        else:
            handler.reply(reply[0], reply[2], **reply[1])

    def pass_on(self, handler: StubHandler, body: bytes) -> Reply:
        """Return what the server behind this one answers."""
        if self.behind is None:
            return 200, {"Content-Type": "application/json"}, b"{}"
        kept = {name: value for name, value in handler.headers.items() if name not in ("Host", "Accept-Encoding")}
        with closing(http.client.HTTPConnection("127.0.0.1", self.behind.port, timeout=PATIENCE)) as connection:
            connection.request(handler.command, handler.path, body, kept)
            response = connection.getresponse()
            heads = {name: value for name, value in response.getheaders() if name.title() != "Content-Length"}
            return response.status, heads, response.read()

    def stop(self) -> None:
        self.running.close()


@pytest.fixture
def fake() -> Iterator[Callable[..., Fake]]:
    """Start servers that do not always answer as one should."""
    started: list[Fake] = []

    def start(behind: Server | None = None) -> Fake:
        started.append(Fake(behind))
        return started[-1]

    yield start
    for each in started:
        each.stop()


@pytest.fixture
def away(fake: Callable[..., Fake]) -> Fake:
    """Such a server, behind which there is none."""
    return fake()


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The seconds that a client would have waited between two tries; it does not, for a test."""
    waited: list[float] = []
    monkeypatch.setattr(client_module.time, "sleep", waited.append)
    return waited


Tune = Callable[..., None]


@pytest.fixture
def tune(monkeypatch: pytest.MonkeyPatch) -> Tune:
    """Give the client other constants."""

    def change(**constants: float) -> None:
        for name, value in constants.items():
            monkeypatch.setattr(client_module, name, value)

    return change


def service_at(url: str, key: str = "x" * 20) -> client_module.Client:
    return client_module.Client(client_module.Remote(url, key))


# Over HTTP


def test_a_request_has_its_key_and_its_body(server: Server) -> None:
    service = service_at(server.url, server.key)
    assert service.request("POST", "project-types", {"name": "web"}).status == 201
    with pytest.raises(Refused) as caught:
        service.request("POST", "runs", {"projectType": "wbe", "colour": 1})
    assert (caught.value.status, caught.value.code) == (422, "validation_failed")
    assert "/colour" in str(caught.value)
    assert [problem.pointer for problem in caught.value.problems] == ["/colour"]


@pytest.mark.parametrize("status", [429, 502, 503, 504])
def test_what_may_pass_is_tried_again_under_the_same_key_and_not_before_it_is_asked_for(
    away: Fake, waits: list[float], status: int
) -> None:
    away.replies = [(status, {}, b""), (status, {"Retry-After": "7"}, b""), (status, {"Retry-After": "86400"}, b"")]
    service_at(away.url).request("POST", "runs", {"projectType": "web"})
    keys = [each[2]["Idempotency-Key"] for each in away.received]
    assert (len(keys), len(set(keys)), waits) == (4, 1, [7, 30])


def test_what_would_do_something_twice_has_a_key_of_its_own_and_nothing_else(away: Fake) -> None:
    service = service_at(away.url)
    for method, body in (("POST", None), ("POST", None), ("PATCH", {"comment": "x"}), ("PATCH", {}), ("GET", None)):
        service.request(method, "runs", body)
    keys = [each[2].get("Idempotency-Key") for each in away.received]
    assert len(set(keys[:3]) - {None}) == 3
    assert keys[3:] == [None, None]


def test_a_service_that_stays_away_is_told_in_a_line(away: Fake, waits: list[float]) -> None:
    with pytest.raises(Unavailable, match="SSL"):  # a certificate that nobody knows does not get better
        service_at(away.url.replace("http:", "https:")).request("GET", "tasks")
    assert waits == []
    away.stop()
    with pytest.raises(Unavailable, match=f"no answer from {away.url}: .*Connection refused"):
        Findings(away.url, "x" * 20).register("web")
    assert 2 <= sum(waits) <= 5  # nothing has ever answered there


def test_a_service_that_stays_busy_is_told_in_its_own_words(away: Fake, tune: Tune) -> None:
    tune(FIRST_WAIT=100, LONGEST_WAIT=100)  # so that only the second try is in time, which comes at once
    told = {"code": "busy", "detail": "The database is locked; nothing was stored.", "status": 503}
    away.replies = [(503, {}, json.dumps(told).encode())] * 20
    with pytest.raises(Refused, match="The database is locked") as caught:
        service_at(away.url).request("GET", "tasks")
    assert (caught.value.status, len(away.received)) == (503, 2)


def test_a_large_body_has_time_in_proportion(away: Fake, tune: Tune) -> None:
    tune(TIMEOUT=0.1, SLOWEST_UPLOAD=1000, PATIENCE=0.0)
    away.before["/tasks"] = lambda: time.sleep(0.5)
    assert service_at(away.url).request("POST", "tasks", b" " * 5000).status == 200


NO_SERVICE = "and not as a Findings Task Service does"
STRANGERS = cases(
    page=((404, {}, b"<html>"), Refused, f"answers 404 Not Found, {NO_SERVICE}"),
    proxy=((500, {}, b"[]"), Refused, "answers 500 Internal Server Error"),
    moved=((302, {"Location": "https://login.example/"}, b""), Refused, "redirects to https://login.example/"),
    no_json=((200, {}, b"<html>"), Unavailable, "not one of a Findings Task Service"),
)


@pytest.mark.parametrize(("reply", "error", "said"), STRANGERS)
def test_what_is_no_service_is_told_so(away: Fake, reply: Reply, error: type[Exception], said: str) -> None:
    away.replies = [reply]
    with pytest.raises(error, match=said):
        service_at(away.url).request("GET", "tasks").read(dict)
    assert len(away.received) == 1


@pytest.mark.parametrize("prefix", ["", "/", "/findings", "/api", "/a/b/", "/api/v1", "/api/v1/"])
def test_a_service_may_be_below_a_prefix_and_its_url_may_end_with_the_path_of_the_api(away: Fake, prefix: str) -> None:
    service = service_at(f"{away.url}{prefix}")
    prefixed = f"{prefix.rstrip('/').removesuffix('/api/v1')}/api/v1/tasks"
    service.request("GET", "tasks?limit=1")
    service.request("GET", f"{prefixed}?after=x")  # a link of its own
    service.request("GET", "/api/v1/tasks?after=x")  # of one that does not know of the prefix
    assert [each[1] for each in away.received] == [f"{prefixed}?limit=1", *[f"{prefixed}?after=x"] * 2]


def test_a_body_that_is_too_large_is_told_so_before_all_of_it_is_sent(serve: Callable[..., Server]) -> None:
    server = serve(FINDINGS_MAX_BODY="1000")
    with pytest.raises(Refused) as caught:
        service_at(server.url, server.key).request("POST", "project-types", b" " * 30_000_000)
    assert (caught.value.status, caught.value.code) == (413, "body_too_large")


PROXIED = cases(
    http=("http://127.0.0.1:1", "", ("GET", "http://127.0.0.1:1/api/v1/tasks")),
    https=("https://findings.example", "", ("CONNECT", "findings.example:443")),
    none=("http://127.0.0.1:1", "127.0.0.1", None),
)


@pytest.mark.parametrize(("url", "without", "asked"), PROXIED)
def test_the_environments_proxy_is_used_unless_it_says_not_to(
    away: Fake, monkeypatch: pytest.MonkeyPatch, tune: Tune, url: str, without: str, asked: tuple[str, str] | None
) -> None:
    for scheme in ("http", "https"):
        monkeypatch.setenv(f"{scheme}_proxy", away.url.replace("//", "//me:pass%20word@"))
    monkeypatch.setenv("no_proxy", without)
    tune(PATIENCE=0.0)
    with nullcontext() if url.startswith("http:") and asked else pytest.raises(Unavailable):
        service_at(url).request("GET", "tasks")
    assert [each[:2] for each in away.received] == ([asked] if asked else [])
    for _, _, heads, _ in away.received:
        assert {name.lower(): value for name, value in heads.items()}["proxy-authorization"] == "Basic bWU6cGFzcyB3b3Jk"
        assert ("Authorization" in heads) == url.startswith("http:")


def test_a_place_that_cannot_be_one_is_told() -> None:
    for given, said in (
        ({"url": "findings", "key": "k"}, "is not a URL"),
        ({"url": "ftp://findings.example", "key": "k"}, "is not a URL"),
        ({"url": "http://findings.example:port", "key": "k"}, "not a valid host or port"),
        ({"url": "https://me:secret@findings.example", "key": "k"}, "user name"),
        ({"url": "http://findings..example", "key": "k"}, "label empty"),
        ({"url": "http://127.0.0.1:1", "key": "schlüssel"}, "ASCII"),
        ({"url": "http://127.0.0.1:1", "key": "two\nlines"}, "ASCII"),
        ({}, "FINDINGS_KEY is not set"),
        ({"url": "http://127.0.0.1:8000", "db": "findings.db"}, "not both"),
    ):
        with pytest.raises(client_module.ConfigurationError, match=said) as caught:
            Findings(**given)
        assert "secret" not in str(caught.value)


# In this process


def test_the_same_requests_go_to_a_database_file_without_a_key_or_a_servers_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    given = {"BASE_URL": "https://tools.example/findings", "LOG": "text", "API_KEY": "too short"}
    for name, value in given.items():
        monkeypatch.setenv(f"FINDINGS_{name}", value)
    with client_module.Client(Local(db_at(tmp_path / "findings.db"), new=True)) as service:
        service.request("POST", "project-types", {"name": "web"})
        run = service.request("POST", "runs", {"projectType": "web"}).read(dict)
        service.request("POST", f"runs/{run['id']}/tasks", {"tasks": [task(), task()]})
        page = service.request("GET", "tasks?limit=1").read(dict)
        [listed] = service.request("GET", page["next"]).read(dict)["tasks"]
        history = service.request("GET", f"tasks/{listed['id']}/history").read(dict)["history"]
        with pytest.raises(Refused) as caught:
            service.request("GET", "runs/unknown")
    assert (caught.value.status, page["total"], history[0]["by"]) == (404, 2, "scan")
    assert capfd.readouterr().err == ""
    assert not list(tmp_path.glob("*-wal")), "what a cache keeps must be all there is"


def test_a_database_that_cannot_be_written_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    db = tmp_path / "findings.db"
    monkeypatch.setattr(findings_service, "insert_client", mock.Mock(side_effect=busy_error()))
    with pytest.raises(findings_service.DatabaseUnusable, match=f"{re.escape(name_of(db))} cannot be used: .*locked"):
        Local(db_at(db), new=True)


# Agents: runs and what they report


@pytest.fixture(scope="module")
def there(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server for many tests, each of which has a project type of its own."""
    db = tmp_path_factory.mktemp("client") / "served.db"
    server = start_process([*PROGRAM, "serve", "--port", "0", "--db", str(db)], db)
    yield server
    server.stop()


TYPES = (f"type{number}" for number in itertools.count())


class Agent(Findings):
    """An agent with a project type of its own, and what it has stored there."""

    def __init__(self, *where: str, **db: str) -> None:
        super().__init__(*where, **db)
        self.name = next(TYPES)
        self.register(self.name)

    def start(self, **options: Any) -> client_module.RunSession:
        return self.run(self.name, **options)

    @contextmanager
    def failing(
        self, error: type[BaseException], match: str | None = None, **options: Any
    ) -> Iterator[client_module.RunSession]:
        """Start a run whose block must raise such an error, which is in `caught` then."""
        with pytest.raises(error, match=match) as caught, self.start(**options) as run:
            yield run
        self.caught = caught.value

    def runs(self) -> list[tuple[str, str | None]]:
        """Return how the runs stand, newest first."""
        listed = self.request("GET", f"runs?projectType={self.name}").read(findings_service.RunPage).runs
        return [(run.status, run.status_reason) for run in listed]

    def titles(self) -> list[str]:
        """Return the titles of what is stored, oldest first."""
        return [each.title for each in self.tasks(project_type=self.name, sort="createdAt")]


@pytest.fixture
def agent(there: Server) -> Agent:
    return Agent(there.url, there.key)


@pytest.fixture
def between(fake: Callable[..., Fake], there: Server) -> Fake:
    """A server between an agent and the service, on which anything can happen."""
    return fake(there)


@pytest.fixture
def remote(between: Fake, there: Server) -> Agent:
    """An agent that speaks to the service by that server."""
    agent = Agent(between.url, there.key)
    between.received.clear()
    return agent


def batches(between: Fake) -> list[int]:
    """Return how many findings went out in each request."""
    return [len(json.loads(body)["tasks"]) for _, path, _, body in between.received if path.endswith("/tasks")]


def test_a_run_is_completed_with_its_block(agent: Agent) -> None:
    with agent.start(target_url="https://shop.example/", branch="b", metadata={"build": [7]}) as run:
        run.submit("One", "high", external_id="1")
        run.submit("Two", "low", external_id="1")
        run.flush()
        assert run.submitted.created == 1
    assert (run.submitted.created, run.summary.total, run.summary.by_severity.low) == (1, 1, 1)
    stored = agent.request("GET", f"runs/{run.id}").read(findings_service.RunWithSummary)
    assert (stored.status, stored.target_url, stored.branch) == ("completed", "https://shop.example/", "b")
    assert bytes(stored.metadata) == b'{"build":[7]}'


def test_a_finding_is_stored_as_it_was_submitted(agent: Agent) -> None:
    shown = findings_service.Evidence(type="code", label="a.py:3", content="eval(x)")
    with agent.start() as run:
        run.submit("Texts", "High", remediation="Mend it.", success_criteria=["It is mended."], evidence="eval(x)")
        run.submit(
            "Parts",
            "info",
            external_id="it",
            status="in_progress",
            description="All of it.",
            evidence=[shown, {"type": "log", "content": "…"}],
            remediation=["Read.", {"instruction": "Write.", "step": 7}],
            success_criteria=findings_service.SuccessCriterion(description="Good.", automatable=True),
            extensions={"a": {"b": [None, 1.5, "é"]}},
            rule="S307",
            location="a.py:3",
            tags=(tag for tag in ("owasp, a03", "eval")),
        )
        run.submit("A tag", "info", tags="a11y")
    texts, parts, tagged = [agent.task(each.id) for each in agent.tasks(run_id=run.id, sort="createdAt")]
    assert (texts.remediation[0].instruction, texts.evidence[0].content) == ("Mend it.", "eval(x)")
    assert [each.description for each in texts.success_criteria] == ["It is mended."]
    assert (parts.external_id, parts.status, parts.description) == ("it", "in_progress", "All of it.")
    assert (parts.evidence[0], parts.evidence[1].type) == (msgspec.to_builtins(shown), "log")
    assert (parts.rule, parts.location, parts.tags) == ("S307", "a.py:3", ["owasp, a03", "eval"])
    assert (texts.rule, texts.location, texts.tags, tagged.tags) == (None, None, [], ["a11y"])
    assert [(each.step, each.instruction) for each in parts.remediation] == [(1, "Read."), (7, "Write.")]
    assert parts.success_criteria[0].automatable
    assert parts.extensions == {"a": {"b": [None, 1.5, "é"]}}


def test_findings_go_out_in_batches_by_number_by_size_and_by_age(remote: Agent, between: Fake, tune: Tune) -> None:
    tune(BATCH=3, BATCH_BYTES=1000)
    with remote.start() as run:
        for size, sent in ((0, 0), (0, 0), (0, 3), (0, 3), (400, 3), (700, 6), (3000, 7), (0, 7)):
            run.submit("A finding", "low", description="x" * size)
            assert run.submitted.created == sent
        tune(BATCH_AGE=0.0)
        run.submit("A finding", "low")
        assert run.submitted.created == 9
    assert batches(between) == [3, 2, 1, 1, 2]


def test_answers_that_are_lost_double_nothing(remote: Agent, between: Fake, tune: Tune) -> None:
    tune(BATCH=2, FIRST_WAIT=0.01)
    between.loses_first = True
    with remote.start() as run:
        for title in "abc":
            run.submit(title, "low")
    assert (run.submitted.created, remote.titles(), remote.runs()) == (3, ["a", "b", "c"], [("completed", None)])
    assert batches(between) == [2, 2, 1, 1]


def test_a_run_goes_on_when_a_service_that_was_killed_is_back(
    server: Server, serve: Callable[..., Server], tune: Tune
) -> None:
    tune(LONGEST_WAIT=0.1)
    agent = Agent(server.url, server.key)
    with ThreadPoolExecutor(1) as pool, agent.start() as run:
        run.submit("Before", "low")
        run.flush()
        server.stop(signal.SIGKILL)
        run.submit("After", "low")
        back = pool.submit(serve, "--port", str(server.port), until=LISTENING)
        run.flush()
        assert back.result().process.poll() is None
    assert (agent.titles(), agent.runs()) == (["Before", "After"], [("completed", None)])


def test_several_threads_may_submit(agent: Agent, tune: Tune) -> None:
    tune(BATCH=7)
    with agent.start() as run, ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda number: run.submit(str(number), "low"), range(100)))
    assert (sorted(agent.titles(), key=int), run.submitted.created) == ([str(number) for number in range(100)], 100)


def test_what_another_thread_submits_as_the_run_ends_is_told(remote: Agent, between: Fake) -> None:
    told = []

    def submit() -> None:
        with pytest.raises(RuntimeError, match="inside the run's block") as caught:
            run.submit("Too late", "low")
        told.append(caught.value)

    with remote.start() as run:
        between.before[run.id] = submit
    assert (len(told), remote.runs()) == (1, [("completed", None)])


def test_what_a_run_has_only_inside_its_one_block_or_behind_it_is_told(agent: Agent) -> None:
    run = agent.start()
    for early in (lambda: run.id, lambda: run.submit("A finding", "low")):
        with pytest.raises(RuntimeError, match="block"):
            early()
    with run, pytest.raises(RuntimeError, match="when its block has ended"):
        assert run.summary
    with pytest.raises(RuntimeError, match="inside the run's block"):
        run.submit("A finding", "low")
    with pytest.raises(RuntimeError, match="a run has one block"), run:
        pytest.fail("it must not begin")
    with agent.failing(RuntimeError, "a run has one block") as nested, nested:
        pytest.fail("it must not begin")
    assert [status for status, _ in agent.runs()] == ["failed", "completed"]


# Agents: runs that fail


class Odd(Exception):
    def __str__(self) -> str:
        raise ValueError


ENDINGS = cases(
    error=(ValueError("bad page"), "ValueError: bad page"),
    interrupt=(KeyboardInterrupt(), "KeyboardInterrupt"),
    exit=(SystemExit("bandit failed"), "bandit failed"),
    unavailable=(Unavailable("no answer"), "no answer"),
    nul=(OSError("a\0b"), "OSError: a\N{REPLACEMENT CHARACTER}b"),
    surrogate=(OSError("caf\udce9"), "OSError: caf?"),
    odd=(Odd(), "Odd"),
)


@pytest.mark.parametrize(("error", "reason"), ENDINGS)
def test_a_run_whose_block_raises_keeps_its_findings_and_is_failed(
    agent: Agent, error: BaseException, reason: str
) -> None:
    with agent.failing(type(error)) as run:
        run.submit("Gathered", "low")
        raise error
    assert agent.caught is error
    assert not hasattr(error, "__notes__")
    assert (agent.runs(), agent.titles()) == ([("failed", reason)], ["Gathered"])
    assert run.summary.total == 1


def test_the_blocks_own_error_goes_on_though_the_run_cannot_be_ended(
    remote: Agent, between: Fake, tune: Tune, waits: list[float]
) -> None:
    tune(LAST_TRIES=0.0)
    with remote.failing(ValueError, "its own") as run:
        run.submit("A finding", "low")
        between.stop()
        raise ValueError("its own")
    stored, ended = remote.caught.__notes__
    assert stored.startswith("findings of the run were not stored: ")
    assert ended.startswith("the run was not finished as failed: ")
    assert waits == []


def test_the_end_of_a_run_waits_for_no_answer_for_long(remote: Agent, between: Fake, tune: Tune) -> None:
    tune(LAST_TRIES=0.1)
    released = threading.Event()
    with remote.failing(ValueError, "its own") as run:
        between.before[run.id] = lambda: released.wait(30)
        raise ValueError("its own")
    assert not released.is_set()
    released.set()
    assert remote.caught.__notes__[0].endswith("timed out")


def report_one(agent: Agent) -> None:
    with agent.start() as run:
        run.submit("A finding", "low")


def interrupting() -> Callable[[], object]:
    """Return what sends this process a signal, once."""
    left = [signal.SIGTERM]
    return lambda: left and os.kill(os.getpid(), left.pop())


@pytest.mark.signals
@pytest.mark.parametrize("moment", ["/runs", "/tasks"])
def test_what_an_interrupt_breaks_off_is_done_once(remote: Agent, between: Fake, moment: str) -> None:
    between.before[moment] = interrupting()
    with stoppable(), pytest.raises(Stopped, match="stopped by SIGTERM"):
        report_one(remote)
    assert remote.runs() == [("failed", "stopped by SIGTERM")]
    assert remote.titles() == (["A finding"] if moment == "/tasks" else [])
    assert [method for method, *_ in between.received].count("PATCH") == 1


@pytest.mark.signals
@pytest.mark.parametrize("moment", ["/runs", "/tasks"])
def test_what_an_interrupt_finds_under_way_in_a_database_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    perform, interrupt, under_way = Local._perform, interrupting(), list[str]()

    def slow(local: Local, method: str, path: str, *rest: Any) -> Any:
        under_way.append(path)
        if path.endswith(moment):
            interrupt()
            time.sleep(0.3)
        answer = perform(local, method, path, *rest)
        under_way.remove(path)
        return answer

    with Agent(db=db_at(tmp_path / "findings.db")) as agent:
        monkeypatch.setattr(Local, "_perform", slow)
        with stoppable(), pytest.raises(Stopped, match="stopped by SIGTERM"):
            report_one(agent)
        assert agent.runs() == [("failed", "stopped by SIGTERM")]
    assert under_way == []
    assert integrity_errors_of(tmp_path / "findings.db") == []


def test_a_run_that_started_before_a_gateway_gave_up_is_failed(remote: Agent, between: Fake) -> None:
    remote._transport.patience = 0.0
    between.replies = [(GAVE_UP, {}, b"")]
    with pytest.raises(Refused, match="504"):
        report_one(remote)
    assert [status for status, _ in remote.runs()] == ["failed"]


@pytest.mark.signals
def test_signals_that_were_ignored_before_still_are(agent: Agent) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with stoppable(), agent.start():
            os.kill(os.getpid(), signal.SIGHUP)
        assert (agent.runs(), signal.getsignal(signal.SIGHUP)) == ([("completed", None)], signal.SIG_IGN)
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.signals
def test_a_second_signal_does_not_disturb_the_end_of_a_run(remote: Agent, between: Fake) -> None:
    with stoppable(), remote.failing(Stopped) as run:
        between.before[run.id] = lambda: os.kill(os.getpid(), signal.SIGINT)
        run.submit("A finding", "low")
        try:
            os.kill(os.getpid(), signal.SIGTERM)
        finally:
            os.kill(os.getpid(), signal.SIGHUP)
    assert (remote.runs(), remote.titles()) == ([("failed", "stopped by SIGTERM")], ["A finding"])


def test_a_run_in_another_thread_ends_too(agent: Agent) -> None:
    def work() -> None:
        with agent.start():
            raise ValueError("its own")

    with ThreadPoolExecutor(1) as pool, pytest.raises(ValueError, match="its own"):
        pool.submit(work).result()
    assert agent.runs() == [("failed", "ValueError: its own")]


# Agents: findings that are refused


def test_findings_that_are_refused_are_told_and_the_others_stored(agent: Agent) -> None:
    with agent.failing(FindingsRefused) as run:
        run.submit("One", "low")
        run.submit("Two", "hgh", external_id="two")
        run.submit("Three", "low", evidence=[{"colour": 1}])
        run.submit("Four", "low")
    assert str(agent.caught).startswith("2 findings were refused: 'Two' (two): /severity must be one of: critical")
    assert (agent.caught.status, agent.caught.code) == (422, "validation_failed")
    assert [each.finding["title"] for each in agent.caught.findings] == ["Two", "Three"]
    assert {problem.pointer for problem in agent.caught.findings[1].problems} == {"/evidence/0", "/evidence/0/colour"}
    assert agent.titles() == ["One", "Four"]
    assert agent.runs() == [("failed", str(agent.caught)[:1000])]


def test_a_refusal_that_the_block_catches_does_not_fail_the_run_and_resolves_nothing(agent: Agent) -> None:
    with agent.start() as run:
        run.submit("Known", "low", external_id="known")
    with agent.start(resolve_missing=True) as run:
        run.submit("Known", "lo", external_id="known")
        with pytest.raises(FindingsRefused):
            run.flush()
        run.submit("Next", "low")
    assert agent.runs()[0] == ("completed", None)
    stored = [(each.title, each.status) for each in agent.tasks(project_type=agent.name)]
    assert stored == [("Next", "open"), ("Known", "open")]
    with agent.start(resolve_missing=True) as run:
        run.submit("Next", "low")
    assert run.submitted.resolved == 1


UNTOLD = cases(
    nan=({"extensions": {"score": [float("nan")]}}, "float"),
    surrogate=({"description": "caf\udce9"}, "surrogates not allowed"),
    object=({"extensions": {"file": Path("a.py")}}, "PosixPath"),
    bytes=({"evidence": [{"type": "log", "content": b"ok"}]}, "decode"),
    endless=({"extensions": (lambda it: it.update(it=it) or it)({})}, "."),
)


@pytest.mark.parametrize(("given", "said"), UNTOLD)
def test_what_json_cannot_tell_is_not_made_into_something_else(agent: Agent, given: dict[str, Any], said: str) -> None:
    with agent.start() as run:
        run.submit("Known", "low", external_id="it")
    with agent.start(resolve_missing=True) as run:
        with pytest.raises(ValueError, match=f"'Known' cannot be told in JSON: .*{said}"):
            run.submit("Known", "low", external_id="it", **given)
        run.submit("Next", "low")
    assert {each.status for each in agent.tasks(project_type=agent.name)} == {"open"}
    with pytest.raises(ValueError, match="a request cannot be told in JSON"):
        agent.start(metadata=given)


def test_more_findings_are_refused_than_an_answer_tells(agent: Agent) -> None:
    with agent.failing(FindingsRefused, "150 findings were refused") as run:
        for number in range(160):
            run.submit(str(number) if number % 16 == 0 else " ", "low")
    assert len(agent.caught.findings) == 150
    assert agent.titles() == [str(number) for number in range(0, 160, 16)]


TOO_MUCH = cases(number=({"FINDINGS_MAX_BATCH": "2"}, 0), bytes=({"FINDINGS_MAX_BODY": "1000"}, 1))


@pytest.mark.parametrize(("limit", "refused"), TOO_MUCH)
def test_a_batch_that_is_too_much_for_a_service_is_sent_in_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: dict[str, str], refused: int
) -> None:
    for name, value in limit.items():
        monkeypatch.setenv(name, value)
    with Agent(db=db_at(tmp_path / "findings.db")) as agent:
        with suppress(FindingsRefused) if refused else nullcontext(), agent.start() as run:
            for number in range(9):
                run.submit(str(number), "low", description="x" * (2000 if number == 5 else 200))
        assert agent.titles() == [str(number) for number in range(9) if not (refused and number == 5)]
        assert agent.runs()[0][0] == ("failed" if refused else "completed")
        assert next(agent.history(next(agent.tasks()).id)).by == "agent"


def test_a_refusal_that_is_about_no_finding_of_the_batch_halves_it(remote: Agent, between: Fake) -> None:
    for code, pointer in (("validation_failed", "/tasks/2"), ("extension_check_timeout", "/tasks/1/extensions")):
        told = {"code": code, "detail": "Bad.", "errors": [{"pointer": pointer, "detail": "is bad"}]}
        with remote.start() as run:
            run.submit("One", "low")
            run.submit("Two", "low")
            between.replies = [(422, {}, json.dumps(told).encode())]
    assert (batches(between), remote.titles()) == ([2, 1, 1] * 2, ["One", "Two"] * 2)


def test_a_refusal_by_a_stranger_is_not_about_the_findings(remote: Agent, between: Fake) -> None:
    with remote.start() as run:
        run.submit("One", "low")
        run.submit("Two", "low")
        between.replies = [(400, {}, b"<html>")]
        with pytest.raises(Refused, match="answers 400 Bad Request, and not as a Findings Task Service does"):
            run.flush()
    assert (batches(between), remote.titles()) == ([2, 2], ["One", "Two"])


def test_a_run_that_somebody_else_ended_or_that_cannot_begin_is_told(agent: Agent) -> None:
    with agent.failing(Refused) as run:
        agent.request("PATCH", f"runs/{run.id}", {"status": "failed", "statusReason": "timeout"})
        run.submit("A finding", "low")
    assert (agent.caught.code, agent.runs()) == ("run_finished", [("failed", "timeout")])
    assert agent.caught.__notes__[0].startswith("findings of the run were not stored: ")
    with pytest.raises(Refused) as caught, agent.run("wbe"):
        pytest.fail("it must not begin")
    assert (caught.value.code, len(agent.runs())) == ("unknown_project_type", 1)


# Agents: what they read and decide


def test_a_list_is_walked_to_its_end_and_has_the_services_filters(agent: Agent, tune: Tune) -> None:
    tune(LISTED=2)
    with agent.start() as run:
        for number in range(5):
            run.submit(f"{number}, and more", "low" if number % 2 else "high", external_id=f"&{number}")
        run.submit("Marked", "low", rule="S101", tags=["owasp, a03"])
    asked = {"severity": ["high", "info"], "status": "open", "main_line": True, "sort": "createdAt"}
    assert [each.external_id for each in agent.tasks(run_id=run.id, **asked)] == ["&0", "&2", "&4"]
    assert [each.title for each in agent.tasks(external_id="&3", project_type=[agent.name, "x"])] == ["3, and more"]
    marked = {"rule": ["S101", "S102"], "tag": "owasp, a03", "new_in": run.id}
    assert [each.title for each in agent.tasks(project_type=agent.name, **marked)] == ["Marked"]
    theirs = set(findings_service.TaskOrder.__struct_fields__) - {"after"}
    assert set(client_module.TaskFilters.__annotations__) == theirs
    with pytest.raises(Refused, match="sevrity"):
        list(agent.tasks(sevrity="high"))


def test_a_decision_is_in_the_history_and_in_the_brief(agent: Agent, tune: Tune) -> None:
    target = "https://shop.example/"
    with agent.start(target_url=target) as run:
        run.submit("A finding", "high", external_id="it")
    (found,) = agent.tasks(run_id=run.id)
    decided = agent.triage(found.id, status="dismissed", reason="wont_fix", comment="Decoration.", assignee="anna")
    assert (decided.status, decided.reason, decided.assignee) == ("dismissed", "wont_fix", "anna")
    assert agent.triage(found.id, assignee="").assignee is None
    tune(LISTED=1)
    assert [entry.event for entry in agent.history(found.id)] == ["created", "status", "assigned", "assigned"]
    brief = agent.brief(agent.name, target_url=target, limit=1)
    (known,) = brief.tasks
    assert (known.external_id, known.status, known.last_comment) == ("it", "dismissed", "Decoration.")
    assert (brief.summary.total, agent.brief(agent.name).tasks) == (1, [])
    assert "Decoration." in agent.brief_text(agent.name, target_url=target)


def test_the_gate_judges_a_run(agent: Agent) -> None:
    with agent.start() as run:
        run.submit("A finding", "medium", external_id="it")
    assert (run.gate().pass_, run.gate(fail_on="medium").offenders_total) == (True, 1)
    with agent.start() as again:
        again.submit("A finding", "medium", external_id="it")
    assert (again.gate(fail_on="medium").pass_, again.gate(fail_on="low", only="all").pass_) == (True, False)


@pytest.mark.parametrize("id", ["../runs", "TASK/history", "TASK?limit=1", "TASK#", "%2e", "é"])
def test_an_id_is_one_part_of_a_path(agent: Agent, id: str) -> None:
    report_one(agent)
    known = next(agent.tasks(project_type=agent.name)).id
    for ask in (agent.task, lambda given: next(agent.history(given)), lambda given: agent.triage(given, assignee="")):
        with pytest.raises(Refused) as caught:
            ask(id.replace("TASK", known))
        assert caught.value.status == 404


def test_a_definition_is_registered_again_unless_it_differs(agent: Agent) -> None:
    schema = {"required": ["owner"], "type": "object"}
    for _ in range(2):
        kind = agent.register(f"{agent.name}-2", label="Two", description="…", extension_schema=schema)
    assert (kind.label, kind.description, kind.extension_schema) == ("Two", "…", schema)
    with pytest.raises(Refused, match=f"{agent.name}-2") as caught:
        agent.register(f"{agent.name}-2")
    assert caught.value.code == "project_type_exists"


def test_the_environment_says_where_the_service_is(there: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FINDINGS_URL", f"{there.url}/")
    monkeypatch.setenv("FINDINGS_KEY", f" {there.key}\n")
    assert Findings().register("of-the-environment").name == "of-the-environment"
    with pytest.raises(Refused, match="API key"):
        Findings(key="fts_another").register("web")
    monkeypatch.delenv("FINDINGS_URL")
    assert Findings().where == "http://127.0.0.1:8000"


# Agents: what a finding is known by


def test_a_fingerprint_is_the_same_for_ever() -> None:
    """Findings that are stored are known by it: another hash would report all of them anew."""
    secret, label = ("B105", "src/app.py", 'password = "secret"'), ("no label", "/checkout", "<input>")
    assert fingerprint(*secret) == "B105-b7695f930511ecef2811a3dedca47bae"
    assert fingerprint(*label, occurrence=2) == "no-label-60ad8f118d8d53dba22e8fb13619a6c9-2"
    odd = ("Règle", "src\\é/../ü.py", "x =\N{NO-BREAK SPACE}'caf\udce9'\N{LINE SEPARATOR}")
    for form in ("NFC", "NFD"):
        written = (unicodedata.normalize(form, text) for text in odd)
        assert fingerprint(*written) == "R-gle-aa9a453fff12ab19fce9fd65bdfc39f1"


def test_other_findings_have_other_fingerprints_of_an_ids_length() -> None:
    names = ("", "a", "b", "A", "a b", "a-b", "\0", "\udce9", "é", "x" * 300)
    several = [fingerprint(rule, path) for rule in names for path in names]
    several += [fingerprint("a", "a", code, occurrence=number) for code in names[1:] for number in (1, 2, 10**9)]
    several += [fingerprint("a", path) for path in ("/etc/passwd", "etc/passwd", "8")]
    several += [fingerprint("a", f"{root}/../178", root=root) for root in ("/builds/17", "/else/17/", "C:\\builds\\17")]
    assert len(set(several)) == len(several)
    assert all(re.fullmatch(r"[A-Za-z0-9._-]{1,97}(-[0-9]+)?", each) for each in several)


def test_a_fingerprint_survives_other_words_for_the_path_and_other_white_space() -> None:
    known = fingerprint("R", "src/app.py", "if x: y()")
    assert fingerprint("R", "src/app.py", "\tif  x:\n    y()\r\n") == known
    places = ("./src/app.py", "src//lib/../app.py", "src\\app.py", "/home/me/shop/src/app.py", Path("src/app.py"))
    assert {fingerprint("R", place, "if x: y()", root="/home/me/shop/") for place in places} == {known}
    for root in ("", ".", "/", "/else", "/etc/pass"):  # a path outside of the root stays what it is
        assert fingerprint("R", "/etc/passwd", root=root) == fingerprint("R", "/etc/passwd")
    for root in ("/builds/17", "/builds/17/", "C:\\builds\\17", "."):
        assert fingerprint("R", root, root=root) == fingerprint("R")


def test_the_same_line_twice_is_two_findings_in_every_run(agent: Agent) -> None:
    for _ in range(2):
        with agent.start() as run:
            for code in ("assert x", "assert y", "  assert x"):
                run.submit("Assert", "low", external_id=run.fingerprint("B101", "a.py", code))
    assert (run.submitted.unchanged, len(agent.titles())) == (3, 3)
    assert run.fingerprint("B101", "a.py", "assert x").endswith("-3")
