"""Tests of the Python client, over HTTP and in this process with a database file."""

from __future__ import annotations

import http.client
import itertools
import json
import os
import re
import signal
import sys
import threading
import time
import unicodedata
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager, nullcontext, suppress
from datetime import UTC, datetime
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any
from unittest import mock

import msgspec
import pytest

import findings_client as client_module
import findings_service
from findings_client import Findings, FindingsRefused, Local, Refused, Stopped, Unavailable, fingerprint, stoppable
from findings_features import fixing
from tests.clients import cases, task
from tests.engines import busy_error, db_at, integrity_errors_of, name_of
from tests.servers import (
    LISTENING,
    PATIENCE,
    PROGRAM,
    Server,
    StubHandler,
    command,
    running_stub,
    start_process,
    wait_until,
)

Reply = tuple[int, dict[str, str], bytes]
GAVE_UP = 504  # the status of a gateway that gave up; the request may have been processed


class Fake:
    """A stub server that sends given replies, and then those of an upstream server or an empty object."""

    def __init__(self, behind: Server | None = None) -> None:
        self.behind = behind
        self.replies: list[Reply | None] = []
        self.before: dict[str, Callable[[], Any]] = {}  # suffix of a path -> called before its response
        self.loses_first = False  # whether the first response to each request is lost
        self.received: list[tuple[str, str, dict[str, str], bytes]] = []
        stub = self

        class Handler(StubHandler):
            def answer(self) -> None:
                stub.answer(self, self.body())

            do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = do_CONNECT = answer

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{server.server_port}"
        self.running = ExitStack()
        self.running.enter_context(running_stub(server))

    def answer(self, handler: StubHandler, body: bytes) -> None:
        """Respond to a request, or close the connection after it was processed."""
        self.received.append((handler.command, handler.path, dict(handler.headers.items()), body))
        for suffix in self.before:
            if handler.path.endswith(suffix):
                self.before[suffix]()
        reply = self.replies.pop(0) if self.replies else self.pass_on(handler, body)
        repeated = self.received.count(self.received[-1]) > 1
        if reply is None or reply[0] == GAVE_UP:
            self.pass_on(handler, body)
        if reply is None or (self.loses_first and not repeated):
            handler.close_connection = True
        else:
            handler.reply(reply[0], reply[2], **reply[1])

    def pass_on(self, handler: StubHandler, body: bytes) -> Reply:
        """Forward a request to the upstream server, and return its response."""
        if self.behind is None:
            return 200, {"Content-Type": "application/json"}, b"{}"
        headers = {name: value for name, value in handler.headers.items() if name not in ("Host", "Accept-Encoding")}
        with closing(http.client.HTTPConnection("127.0.0.1", self.behind.port, timeout=PATIENCE)) as connection:
            connection.request(handler.command, handler.path, body, headers)
            response = connection.getresponse()
            fields = {name: value for name, value in response.getheaders() if name.title() != "Content-Length"}
            return response.status, fields, response.read()

    def stop(self) -> None:
        self.running.close()


@pytest.fixture
def fake() -> Iterator[Callable[..., Fake]]:
    """A function that starts stub servers, with or without an upstream server."""
    started: list[Fake] = []

    def start(behind: Server | None = None) -> Fake:
        started.append(Fake(behind))
        return started[-1]

    yield start
    for each in started:
        each.stop()


@pytest.fixture
def away(fake: Callable[..., Fake]) -> Fake:
    """A stub server without an upstream server."""
    return fake()


@pytest.fixture
def sleeps(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The pauses between retries, in seconds, which are recorded instead of slept."""
    sleeps: list[float] = []
    monkeypatch.setattr(client_module.time, "sleep", sleeps.append)
    return sleeps


Tune = Callable[..., None]


@pytest.fixture
def tune(monkeypatch: pytest.MonkeyPatch) -> Tune:
    """A function that changes constants of the client."""

    def change(**constants: float) -> None:
        for name, value in constants.items():
            monkeypatch.setattr(client_module, name, value)

    return change


def service_at(url: str, key: str = "x" * 20) -> client_module.Client:
    return client_module.Client(client_module.Remote(url, key))


# Over HTTP


def test_request_has_its_key_and_its_body(server: Server) -> None:
    service = service_at(server.url, server.key)
    assert service.request("POST", "project-types", {"name": "web"}).status == 201
    with pytest.raises(Refused) as caught:
        service.request("POST", "runs", {"projectType": "wbe", "colour": 1})
    assert (caught.value.status, caught.value.code) == (422, "validation_failed")
    assert "/colour" in str(caught.value)
    assert [problem.pointer for problem in caught.value.problems] == ["/colour"]


@pytest.mark.parametrize("status", [429, 502, 503, 504])
def test_temporary_errors_are_retried_with_the_same_idempotency_key(
    away: Fake, sleeps: list[float], status: int
) -> None:
    away.replies = [(status, {}, b""), (status, {"Retry-After": "7"}, b""), (status, {"Retry-After": "86400"}, b"")]
    service_at(away.url).request("POST", "runs", {"projectType": "web"})
    keys = [each[2]["Idempotency-Key"] for each in away.received]
    assert (len(keys), len(set(keys)), sleeps) == (4, 1, [7, 30])


def test_only_requests_that_are_not_idempotent_have_an_idempotency_key(away: Fake) -> None:
    service = service_at(away.url)
    for method, body in (("POST", None), ("POST", None), ("PATCH", {"comment": "x"}), ("PATCH", {}), ("GET", None)):
        service.request(method, "runs", body)
    keys = [each[2].get("Idempotency-Key") for each in away.received]
    assert len(set(keys[:3]) - {None}) == 3
    assert keys[3:] == [None, None]


def test_unreachable_service_raises_unavailable_after_few_retries(away: Fake, sleeps: list[float]) -> None:
    with pytest.raises(Unavailable, match="SSL"):  # an invalid certificate is not retried
        service_at(away.url.replace("http:", "https:")).request("GET", "tasks")
    assert sleeps == []
    away.stop()
    with pytest.raises(Unavailable, match=f"no response from {away.url}: .*Connection refused"):
        Findings(away.url, "x" * 20).register("web")
    assert 2 <= sum(sleeps) <= 5  # retries are few if the service has never responded


def test_last_error_of_a_busy_service_is_raised(away: Fake, tune: Tune) -> None:
    tune(FIRST_WAIT=100, LONGEST_WAIT=100)  # so that only the first retry, which is immediate, is in time
    problem = {"code": "busy", "detail": "The database is locked; nothing was stored.", "status": 503}
    away.replies = [(503, {}, json.dumps(problem).encode())] * 20
    with pytest.raises(Refused, match="The database is locked") as caught:
        service_at(away.url).request("GET", "tasks")
    assert (caught.value.status, len(away.received)) == (503, 2)


def test_timeout_grows_with_the_size_of_the_body(away: Fake, tune: Tune) -> None:
    tune(TIMEOUT=0.1, SLOWEST_UPLOAD=1000, PATIENCE=0.0)
    away.before["/tasks"] = lambda: time.sleep(0.5)
    assert service_at(away.url).request("POST", "tasks", b" " * 5000).status == 200


NOT_THE_SERVICE = "not in the error format of the service"
FOREIGN_RESPONSES = cases(
    page=((404, {}, b"<html>"), Refused, f"returned 404 Not Found, {NOT_THE_SERVICE}"),
    proxy=((500, {}, b"[]"), Refused, "returned 500 Internal Server Error"),
    moved=((302, {"Location": "https://login.example/"}, b""), Refused, "redirects to https://login.example/"),
    no_json=((200, {}, b"<html>"), Unavailable, "not from a Findings Task Service"),
)


@pytest.mark.parametrize(("reply", "error", "message"), FOREIGN_RESPONSES)
def test_foreign_response_is_an_error(away: Fake, reply: Reply, error: type[Exception], message: str) -> None:
    away.replies = [reply]
    with pytest.raises(error, match=message):
        service_at(away.url).request("GET", "tasks").read(dict)
    assert len(away.received) == 1


@pytest.mark.parametrize("prefix", ["", "/", "/findings", "/api", "/a/b/", "/api/v1", "/api/v1/"])
def test_url_may_have_a_prefix_and_end_with_the_path_of_the_api(away: Fake, prefix: str) -> None:
    service = service_at(f"{away.url}{prefix}")
    prefixed = f"{prefix.rstrip('/').removesuffix('/api/v1')}/api/v1/tasks"
    service.request("GET", "tasks?limit=1")
    service.request("GET", f"{prefixed}?after=x")  # a link of this service
    service.request("GET", "/api/v1/tasks?after=x")  # a link of a service that does not know its prefix
    assert [each[1] for each in away.received] == [f"{prefixed}?limit=1", *[f"{prefixed}?after=x"] * 2]


def test_connections_of_several_threads_are_kept(away: Fake, caplog: pytest.LogCaptureFixture) -> None:
    both = threading.Barrier(2)
    away.before["/tasks"] = lambda: both.wait(PATIENCE)
    service = service_at(away.url)
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda _: service.request("GET", "tasks"), range(2)))
    assert "pool is full" not in caplog.text


def test_413_response_is_read_before_the_whole_body_is_sent(serve: Callable[..., Server]) -> None:
    server = serve(FINDINGS_MAX_BODY="1000")
    with pytest.raises(Refused) as caught:
        service_at(server.url, server.key).request("POST", "project-types", b" " * 30_000_000)
    assert (caught.value.status, caught.value.code) == (413, "body_too_large")


PROXIED = cases(
    http=("http://127.0.0.1:1", "", ("GET", "http://127.0.0.1:1/api/v1/tasks")),
    https=("https://findings.example", "", ("CONNECT", "findings.example:443")),
    none=("http://127.0.0.1:1", "127.0.0.1", None),
)


@pytest.mark.parametrize(("url", "no_proxy", "expected"), PROXIED)
def test_proxies_of_the_environment_are_used_unless_no_proxy_excludes_them(
    away: Fake, monkeypatch: pytest.MonkeyPatch, tune: Tune, url: str, no_proxy: str, expected: tuple[str, str] | None
) -> None:
    for scheme in ("http", "https"):
        monkeypatch.setenv(f"{scheme}_proxy", away.url.replace("//", "//me:pass%20word@"))
    monkeypatch.setenv("no_proxy", no_proxy)
    tune(PATIENCE=0.0)
    with nullcontext() if url.startswith("http:") and expected else pytest.raises(Unavailable):
        service_at(url).request("GET", "tasks")
    assert [each[:2] for each in away.received] == ([expected] if expected else [])
    for _, _, heads, _ in away.received:
        assert {name.lower(): value for name, value in heads.items()}["proxy-authorization"] == "Basic bWU6cGFzcyB3b3Jk"
        assert ("Authorization" in heads) == url.startswith("http:")


def test_invalid_url_or_key_raises_a_configuration_error() -> None:
    for arguments, message in (
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
        with pytest.raises(client_module.ConfigurationError, match=message) as caught:
            Findings(**arguments)
        assert "secret" not in str(caught.value)


# In this process


def test_requests_to_a_database_file_need_no_key_and_ignore_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    settings = {"BASE_URL": "https://tools.example/findings", "LOG": "text", "API_KEY": "too short"}
    for name, value in settings.items():
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
    assert not list(tmp_path.glob("*-wal")), "no WAL may remain: caches keep only the database file"


def test_database_that_cannot_be_written_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    db = tmp_path / "findings.db"
    monkeypatch.setattr(findings_service, "insert_client", mock.Mock(side_effect=busy_error()))
    with pytest.raises(findings_service.DatabaseUnusable, match=f"{re.escape(name_of(db))} cannot be used: .*locked"):
        Local(db_at(db), new=True)


# Agents: runs and reports


@pytest.fixture(scope="module")
def shared_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The server of many tests, each of which has a project type of its own."""
    db = tmp_path_factory.mktemp("client") / "served.db"
    server = start_process([*PROGRAM, "serve", "--port", "0", "--db", str(db)], db)
    yield server
    server.stop()


TYPES = (f"type{number}" for number in itertools.count())


class Agent(Findings):
    """An agent with a project type of its own, and access to the data stored there."""

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
        """Start a run whose block must raise an error, and store the error in `caught`."""
        with pytest.raises(error, match=match) as caught, self.start(**options) as run:
            yield run
        self.caught = caught.value

    def runs(self) -> list[tuple[str, str | None]]:
        """Return the status of each run, with its reason, newest first."""
        listed = self.request("GET", f"runs?projectType={self.name}").read(findings_service.RunPage).runs
        return [(run.status, run.status_reason) for run in listed]

    def titles(self) -> list[str]:
        """Return the titles of the stored findings, oldest first."""
        return [each.title for each in self.tasks(project_type=self.name, sort="createdAt")]


@pytest.fixture
def agent(shared_server: Server) -> Agent:
    return Agent(shared_server.url, shared_server.key)


@pytest.fixture(params=["http", "file"])
def any_agent(request: pytest.FixtureRequest, tmp_path: Path, shared_server: Server) -> Iterator[Agent]:
    """An agent of a server, and one of a database file."""
    http = request.param == "http"
    with Agent(shared_server.url, shared_server.key) if http else Agent(db=db_at(tmp_path / "findings.db")) as agent:
        yield agent


@pytest.fixture
def proxy(fake: Callable[..., Fake], shared_server: Server) -> Fake:
    """A stub server between an agent and the service, which can fail."""
    return fake(shared_server)


@pytest.fixture
def remote(proxy: Fake, shared_server: Server) -> Agent:
    """An agent that sends its requests through `proxy`."""
    agent = Agent(proxy.url, shared_server.key)
    proxy.received.clear()
    return agent


def batch_sizes(proxy: Fake) -> list[int]:
    """Return the number of findings in each request."""
    return [len(json.loads(body)["tasks"]) for _, path, _, body in proxy.received if path.endswith("/tasks")]


def test_run_is_completed_with_its_block(agent: Agent) -> None:
    with agent.start(target_url="https://shop.example/", branch="b", metadata={"build": [7]}) as run:
        run.submit("One", "high", external_id="1")
        run.submit("Two", "low", external_id="1")
        run.flush()
        assert run.submitted.created == 1
    assert (run.submitted.created, run.summary.total, run.summary.by_severity.low) == (1, 1, 1)
    stored = agent.request("GET", f"runs/{run.id}").read(findings_service.RunWithSummary)
    assert (stored.status, stored.target_url, stored.branch) == ("completed", "https://shop.example/", "b")
    assert bytes(stored.metadata) == b'{"build":[7]}'


def test_finding_is_stored_as_it_was_submitted(agent: Agent) -> None:
    evidence = findings_service.Evidence(type="code", label="a.py:3", content="eval(x)")
    with agent.start() as run:
        run.submit("Texts", "High", remediation="Mend it.", success_criteria=["It is mended."], evidence="eval(x)")
        run.submit(
            "Parts",
            "info",
            external_id="it",
            status="in_progress",
            description="All of it.",
            evidence=[evidence, {"type": "log", "content": "…"}],
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
    assert (parts.evidence[0], parts.evidence[1].type) == (msgspec.to_builtins(evidence), "log")
    assert (parts.rule, parts.location, parts.tags) == ("S307", "a.py:3", ["owasp, a03", "eval"])
    assert (texts.rule, texts.location, texts.tags, tagged.tags) == (None, None, [], ["a11y"])
    assert [(each.step, each.instruction) for each in parts.remediation] == [(1, "Read."), (7, "Write.")]
    assert parts.success_criteria[0].automatable
    assert parts.extensions == {"a": {"b": [None, 1.5, "é"]}}


def test_findings_are_sent_in_batches_limited_by_count_size_and_age(remote: Agent, proxy: Fake, tune: Tune) -> None:
    tune(BATCH=3, BATCH_BYTES=1000)
    with remote.start() as run:
        for size, created in ((0, 0), (0, 0), (0, 3), (0, 3), (400, 3), (700, 6), (3000, 7), (0, 7)):
            run.submit("A finding", "low", description="x" * size)
            assert run.submitted.created == created
        tune(BATCH_AGE=0.0)
        run.submit("A finding", "low")
        assert run.submitted.created == 9
    assert batch_sizes(proxy) == [3, 2, 1, 1, 2]


def started(run: client_module.RunSession) -> client_module.RunSession:
    """Return a run whose `submit` sends nothing because of the time, so that only its thread does."""
    run._last_sent = float("inf")
    return run


def threads_of(function: str) -> list[threading.Thread]:
    """Return the running threads that call a function of the client."""
    return [each for each in threading.enumerate() if f"({function})" in each.name]


def test_collected_findings_are_sent_in_time_without_another_submit(any_agent: Agent, tune: Tune) -> None:
    tune(BATCH_AGE=0.05)
    with any_agent.start() as run:
        for title in ("One", "Two"):
            started(run).submit(title, "low")
            wait_until(lambda title=title: title in any_agent.titles())
    assert (any_agent.titles(), run.summary.total) == (["One", "Two"], 2)


def test_rejection_in_the_thread_of_a_run_is_raised_by_the_next_submit(remote: Agent, tune: Tune) -> None:
    tune(BATCH_AGE=0.05)
    with remote.start() as run:
        started(run).submit("One", "hgh")
        wait_until(lambda: run._refused)
        with pytest.raises(FindingsRefused, match="a finding was refused: 'One'"):
            run.submit("Two", "low")
    assert (remote.titles(), remote.runs()) == (["Two"], [("completed", None)])


def test_lasting_failure_in_the_thread_of_a_run_is_raised_later(remote: Agent, proxy: Fake, tune: Tune) -> None:
    tune(BATCH_AGE=0.05)
    with remote.failing(Refused) as run:
        remote.request("PATCH", f"runs/{run.id}", {"status": "failed", "statusReason": "timeout"})
        started(run).submit("One", "low")
        wait_until(lambda: batch_sizes(proxy))
        for send in (lambda: run.submit("Two", "low"), run.flush):
            with pytest.raises(Refused) as caught:
                send()
            assert caught.value.code == "run_finished"
    assert remote.caught.code == "run_finished"


def test_failed_try_of_the_thread_of_a_run_is_repeated(remote: Agent, proxy: Fake, tune: Tune) -> None:
    tune(BATCH_AGE=0.05, LAST_TRIES=0.0)
    with remote.start() as run:
        proxy.replies = [(503, {}, b""), None, (500, {}, b"")]
        started(run).submit("One", "low")
        wait_until(lambda: run.submitted.created)
    assert (remote.titles(), remote.runs()) == (["One"], [("completed", None)])


def test_thread_of_a_run_ends_with_it(agent: Agent) -> None:
    for ending in (nullcontext(), pytest.raises(ValueError, match="its own")):
        before = {*threads_of("_send_regularly")}
        with ending, agent.start():
            (thread,) = {*threads_of("_send_regularly")} - before
            if not isinstance(ending, nullcontext):
                raise ValueError("its own")
        thread.join(PATIENCE)
        assert not thread.is_alive()


def test_thread_of_a_run_that_is_interrupted_at_its_start_ends(agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    start, run = threading.Thread.start, agent.start()

    def start_and_raise(thread: threading.Thread) -> None:
        start(thread)
        raise KeyboardInterrupt

    monkeypatch.setattr(threading.Thread, "start", start_and_raise)
    with pytest.raises(KeyboardInterrupt), run:
        pytest.fail("it must not begin")
    assert agent.runs() == [("failed", "KeyboardInterrupt")]
    wait_until(lambda: not threads_of("_send_regularly"))


def test_thread_of_a_run_sends_nothing_after_its_end(remote: Agent, proxy: Fake, tune: Tune) -> None:
    tune(BATCH_AGE=0.05, LAST_TRIES=0.0)
    with ExitStack() as locked, remote.failing(ValueError) as run:
        locked.enter_context(run._lock)
        run.submit("One", "low")
        proxy.before[f"{run.id}/tasks"] = lambda: proxy.replies.append((503, {}, b""))
        time.sleep(0.2)  # the thread then waits for the lock
        raise ValueError
    wait_until(lambda: not threads_of("_send_regularly"))
    assert batch_sizes(proxy) == [1]


def test_hanging_request_of_the_thread_does_not_delay_the_end_of_a_run(remote: Agent, proxy: Fake, tune: Tune) -> None:
    tune(BATCH_AGE=0.05, LAST_TRIES=0.1)
    hanging, released = threading.Event(), threading.Event()

    def hang_once() -> None:
        if not hanging.is_set():
            hanging.set()
            released.wait(30)

    with remote.failing(ValueError) as run:
        proxy.before[f"{run.id}/tasks"] = hang_once
        started(run).submit("One", "low")
        hanging.wait(PATIENCE)
        raise ValueError
    assert batch_sizes(proxy) == [1, 1]
    released.set()


RESUMED_RUN = """
import os, signal, sys
from findings_client import Findings

where, title, *killed = sys.argv[1:]
with Findings(db=where) if where else Findings() as findings:
    findings.register("web")
    with findings.run("web", idempotency_key="nightly", resolve_missing=True) as run:
        print(run.id, run.submitted.created, flush=True)
        run.submit(title, "low", external_id=title)
        run.flush()
        if killed:
            os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("over", ["http", "file"])
def test_run_with_an_idempotency_key_is_resumed_after_a_kill(tmp_path: Path, server: Server, over: str) -> None:
    where, program = db_at(tmp_path / "agent.db") if over == "file" else "", (sys.executable, "-c", RESUMED_RUN)
    first, second, third = (
        command(where, *arguments, program=program, **server.variables)
        for arguments in (("One", "killed"), ("Two",), ("Three",))
    )
    assert (first.returncode, second.returncode, third.returncode) == (-signal.SIGKILL, 0, 1)
    assert first.stdout == second.stdout == third.stdout
    assert "findings_client.Refused: The run is already completed" in third.stderr
    with Findings(db=where) if where else Findings(server.url, server.key) as findings:
        assert [(each.title, each.status) for each in findings.tasks()] == [("Two", "open"), ("One", "open")]


def test_lost_responses_cause_no_duplicates(remote: Agent, proxy: Fake, tune: Tune) -> None:
    tune(BATCH=2, FIRST_WAIT=0.01)
    proxy.loses_first = True
    with remote.start() as run:
        for title in "abc":
            run.submit(title, "low")
    assert (run.submitted.created, remote.titles(), remote.runs()) == (3, ["a", "b", "c"], [("completed", None)])
    assert batch_sizes(proxy) == [2, 2, 1, 1]


def test_run_continues_after_the_service_was_killed_and_restarted(
    server: Server, serve: Callable[..., Server], tune: Tune
) -> None:
    tune(LONGEST_WAIT=0.1)
    agent = Agent(server.url, server.key)
    with ThreadPoolExecutor(1) as pool, agent.start() as run:
        run.submit("Before", "low")
        run.flush()
        server.stop(signal.SIGKILL)
        run.submit("After", "low")
        restarted = pool.submit(serve, "--port", str(server.port), until=LISTENING)
        run.flush()
        assert restarted.result().process.poll() is None
    assert (agent.titles(), agent.runs()) == (["Before", "After"], [("completed", None)])


def test_several_threads_may_submit(agent: Agent, tune: Tune) -> None:
    tune(BATCH=7)
    with agent.start() as run, ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda number: run.submit(str(number), "low"), range(100)))
    assert (sorted(agent.titles(), key=int), run.submitted.created) == ([str(number) for number in range(100)], 100)


def test_submitting_in_another_thread_while_the_run_ends_is_an_error(remote: Agent, proxy: Fake) -> None:
    errors = []

    def submit() -> None:
        with pytest.raises(RuntimeError, match="inside the run's `with` block") as caught:
            run.submit("Too late", "low")
        errors.append(caught.value)

    with remote.start() as run:
        proxy.before[run.id] = submit
    assert (len(errors), remote.runs()) == (1, [("completed", None)])


def test_run_used_outside_of_its_with_block_raises_runtime_error(agent: Agent) -> None:
    run = agent.start()
    for early in (lambda: run.id, lambda: run.submit("A finding", "low")):
        with pytest.raises(RuntimeError, match="block"):
            early()
    with run, pytest.raises(RuntimeError, match="after the run's `with` block has ended"):
        assert run.summary
    with pytest.raises(RuntimeError, match="inside the run's `with` block"):
        run.submit("A finding", "low")
    with pytest.raises(RuntimeError, match="only one `with` block"), run:
        pytest.fail("it must not begin")
    with agent.failing(RuntimeError, "only one `with` block") as nested, nested:
        pytest.fail("it must not begin")
    assert [status for status, _ in agent.runs()] == ["failed", "completed"]


# Agents: runs that fail


class UnprintableError(Exception):
    def __str__(self) -> str:
        raise ValueError


ENDINGS = cases(
    error=(ValueError("bad page"), "ValueError: bad page"),
    interrupt=(KeyboardInterrupt(), "KeyboardInterrupt"),
    exit=(SystemExit("bandit failed"), "bandit failed"),
    unavailable=(Unavailable("no answer"), "no answer"),
    nul=(OSError("a\0b"), "OSError: a\N{REPLACEMENT CHARACTER}b"),
    surrogate=(OSError("caf\udce9"), "OSError: caf?"),
    odd=(UnprintableError(), "UnprintableError"),
)


@pytest.mark.parametrize(("error", "reason"), ENDINGS)
def test_run_whose_block_raises_keeps_its_findings_and_is_failed(
    agent: Agent, error: BaseException, reason: str
) -> None:
    with agent.failing(type(error)) as run:
        run.submit("Gathered", "low")
        raise error
    assert agent.caught is error
    assert not hasattr(error, "__notes__")
    assert (agent.runs(), agent.titles()) == ([("failed", reason)], ["Gathered"])
    assert run.summary.total == 1


def test_error_of_the_block_is_raised_if_the_run_cannot_be_ended(
    remote: Agent, proxy: Fake, tune: Tune, sleeps: list[float]
) -> None:
    tune(LAST_TRIES=0.0)
    with remote.failing(ValueError, "its own") as run:
        run.submit("A finding", "low")
        proxy.stop()
        raise ValueError("its own")
    stored, ended = remote.caught.__notes__
    assert stored.startswith("findings of the run were not stored: ")
    assert ended.startswith("the run was not set to failed: ")
    assert sleeps == []


def test_end_of_a_failed_run_has_a_short_timeout(remote: Agent, proxy: Fake, tune: Tune) -> None:
    tune(LAST_TRIES=0.1)
    released = threading.Event()
    with remote.failing(ValueError, "its own") as run:
        proxy.before[run.id] = lambda: released.wait(30)
        raise ValueError("its own")
    assert not released.is_set()
    released.set()
    assert remote.caught.__notes__[0].endswith("timed out")


def report_one(agent: Agent) -> None:
    with agent.start() as run:
        run.submit("A finding", "low")


def send_sigterm_once() -> Callable[[], object]:
    """Return a function that sends SIGTERM to this process at its first call."""
    signals = [signal.SIGTERM]
    return lambda: signals and os.kill(os.getpid(), signals.pop())


@pytest.mark.signals
@pytest.mark.parametrize("moment", ["/runs", "/tasks"])
def test_request_interrupted_by_a_signal_takes_effect_at_most_once(remote: Agent, proxy: Fake, moment: str) -> None:
    proxy.before[moment] = send_sigterm_once()
    with stoppable(), pytest.raises(Stopped, match="stopped by SIGTERM"):
        report_one(remote)
    assert remote.runs() == [("failed", "stopped by SIGTERM")]
    assert remote.titles() == (["A finding"] if moment == "/tasks" else [])
    assert [method for method, *_ in proxy.received].count("PATCH") == 1


@pytest.mark.signals
@pytest.mark.parametrize("moment", ["/runs", "/tasks"])
def test_signal_interrupts_no_request_to_a_database_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    perform, send_sigterm, in_progress = Local._perform, send_sigterm_once(), list[str]()

    def perform_slowly(local: Local, method: str, path: str, *arguments: Any) -> Any:
        in_progress.append(path)
        if path.endswith(moment):
            send_sigterm()
            time.sleep(0.3)
        response = perform(local, method, path, *arguments)
        in_progress.remove(path)
        return response

    with Agent(db=db_at(tmp_path / "findings.db")) as agent:
        monkeypatch.setattr(Local, "_perform", perform_slowly)
        with stoppable(), pytest.raises(Stopped, match="stopped by SIGTERM"):
            report_one(agent)
        assert agent.runs() == [("failed", "stopped by SIGTERM")]
    assert in_progress == []
    assert integrity_errors_of(tmp_path / "findings.db") == []


def test_run_whose_start_got_a_gateway_timeout_is_failed(remote: Agent, proxy: Fake) -> None:
    remote._transport.patience = 0.0
    proxy.replies = [(GAVE_UP, {}, b"")]
    with pytest.raises(Refused, match="504"):
        report_one(remote)
    assert [status for status, _ in remote.runs()] == ["failed"]


@pytest.mark.signals
def test_signals_ignored_before_stoppable_stay_ignored(agent: Agent) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with stoppable(), agent.start():
            os.kill(os.getpid(), signal.SIGHUP)
        assert (agent.runs(), signal.getsignal(signal.SIGHUP)) == ([("completed", None)], signal.SIG_IGN)
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.signals
def test_second_signal_does_not_disturb_the_end_of_a_run(remote: Agent, proxy: Fake) -> None:
    with stoppable(), remote.failing(Stopped) as run:
        proxy.before[run.id] = lambda: os.kill(os.getpid(), signal.SIGINT)
        run.submit("A finding", "low")
        try:
            os.kill(os.getpid(), signal.SIGTERM)
        finally:
            os.kill(os.getpid(), signal.SIGHUP)
    assert (remote.runs(), remote.titles()) == ([("failed", "stopped by SIGTERM")], ["A finding"])


def test_run_in_another_thread_is_failed_by_an_exception(agent: Agent) -> None:
    def work() -> None:
        with agent.start():
            raise ValueError("its own")

    with ThreadPoolExecutor(1) as pool, pytest.raises(ValueError, match="its own"):
        pool.submit(work).result()
    assert agent.runs() == [("failed", "ValueError: its own")]


# Agents: rejected findings


def test_rejected_findings_are_reported_and_the_others_stored(agent: Agent) -> None:
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


def test_caught_rejection_keeps_the_run_completed_and_resolves_nothing(agent: Agent) -> None:
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


NOT_JSON = cases(
    nan=({"extensions": {"score": [float("nan")]}}, "float"),
    surrogate=({"description": "caf\udce9"}, "surrogates not allowed"),
    object=({"extensions": {"file": Path("a.py")}}, "PosixPath"),
    bytes=({"evidence": [{"type": "log", "content": b"ok"}]}, "decode"),
    endless=({"extensions": (lambda it: it.update(it=it) or it)({})}, "."),
)


@pytest.mark.parametrize(("fields", "message"), NOT_JSON)
def test_values_without_json_form_raise_value_error(agent: Agent, fields: dict[str, Any], message: str) -> None:
    with agent.start() as run:
        run.submit("Known", "low", external_id="it")
    with agent.start(resolve_missing=True) as run:
        with pytest.raises(ValueError, match=f"'Known' cannot be encoded as JSON: .*{message}"):
            run.submit("Known", "low", external_id="it", **fields)
        run.submit("Next", "low")
    assert {each.status for each in agent.tasks(project_type=agent.name)} == {"open"}
    with pytest.raises(ValueError, match="the request body cannot be encoded as JSON"):
        agent.start(metadata=fields)


def test_more_rejected_findings_than_errors_in_a_response_are_reported(agent: Agent) -> None:
    with agent.failing(FindingsRefused, "150 findings were refused") as run:
        for number in range(160):
            run.submit(str(number) if number % 16 == 0 else " ", "low")
    assert len(agent.caught.findings) == 150
    assert agent.titles() == [str(number) for number in range(0, 160, 16)]


LIMITS = cases(number=({"FINDINGS_MAX_BATCH": "2"}, 0), bytes=({"FINDINGS_MAX_BODY": "1000"}, 1))


@pytest.mark.parametrize(("limit", "rejected"), LIMITS)
def test_batch_over_the_limits_of_the_service_is_split(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: dict[str, str], rejected: int
) -> None:
    for name, value in limit.items():
        monkeypatch.setenv(name, value)
    with Agent(db=db_at(tmp_path / "findings.db")) as agent:
        with suppress(FindingsRefused) if rejected else nullcontext(), agent.start() as run:
            for number in range(9):
                run.submit(str(number), "low", description="x" * (2000 if number == 5 else 200))
        assert agent.titles() == [str(number) for number in range(9) if not (rejected and number == 5)]
        assert agent.runs()[0][0] == ("failed" if rejected else "completed")
        assert next(agent.history(next(agent.tasks()).id)).by == "agent"


def test_batch_is_halved_if_the_error_names_no_finding_of_it(remote: Agent, proxy: Fake) -> None:
    for code, pointer in (("validation_failed", "/tasks/2"), ("extension_check_timeout", "/tasks/1/extensions")):
        problem = {"code": code, "detail": "Bad.", "errors": [{"pointer": pointer, "detail": "is bad"}]}
        with remote.start() as run:
            run.submit("One", "low")
            run.submit("Two", "low")
            proxy.replies = [(422, {}, json.dumps(problem).encode())]
    assert (batch_sizes(proxy), remote.titles()) == ([2, 1, 1] * 2, ["One", "Two"] * 2)


def test_error_of_another_service_keeps_the_findings(remote: Agent, proxy: Fake) -> None:
    with remote.start() as run:
        run.submit("One", "low")
        run.submit("Two", "low")
        proxy.replies = [(400, {}, b"<html>")]
        with pytest.raises(Refused, match="returned 400 Bad Request, not in the error format of the service"):
            run.flush()
    assert (batch_sizes(proxy), remote.titles()) == ([2, 2], ["One", "Two"])


def test_run_that_was_ended_elsewhere_or_cannot_start_raises_refused(agent: Agent) -> None:
    with agent.failing(Refused) as run:
        agent.request("PATCH", f"runs/{run.id}", {"status": "failed", "statusReason": "timeout"})
        run.submit("A finding", "low")
    assert (agent.caught.code, agent.runs()) == ("run_finished", [("failed", "timeout")])
    assert agent.caught.__notes__[0].startswith("findings of the run were not stored: ")
    with pytest.raises(Refused) as caught, agent.run("wbe"):
        pytest.fail("it must not begin")
    assert (caught.value.code, len(agent.runs())) == ("unknown_project_type", 1)


# Agents: reading and triage


def test_tasks_reads_all_pages_and_has_the_filters_of_the_api(agent: Agent, tune: Tune) -> None:
    tune(LISTED=2)
    with agent.start() as run:
        for number in range(5):
            run.submit(f"{number}, and more", "low" if number % 2 else "high", external_id=f"&{number}")
        run.submit("Marked", "low", rule="S101", tags=["owasp, a03"])
    filters = {"severity": ["high", "info"], "status": "open", "main_line": True, "sort": "createdAt"}
    assert [each.external_id for each in agent.tasks(run_id=run.id, **filters)] == ["&0", "&2", "&4"]
    assert [each.title for each in agent.tasks(external_id="&3", project_type=[agent.name, "x"])] == ["3, and more"]
    labels = {"rule": ["S101", "S102"], "tag": "owasp, a03", "new_in": run.id}
    assert [each.title for each in agent.tasks(project_type=agent.name, **labels)] == ["Marked"]
    api_filters = set(findings_service.TaskOrder.__struct_fields__) - {"after"}
    assert set(client_module.TaskFilters.__annotations__) == api_filters
    with pytest.raises(Refused, match="sevrity"):
        list(agent.tasks(sevrity="high"))


def test_decision_is_in_the_history_and_in_the_brief(agent: Agent, tune: Tune) -> None:
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


def fields_of(model: type[msgspec.Struct], *without: str) -> set[str]:
    return set(model.__struct_fields__) - {*without}


def test_decision_may_have_all_fields_of_the_api(agent: Agent) -> None:
    with agent.start() as run:
        run.submit("One", "high")
        run.submit("Two", "high")
    two, one = agent.tasks(run_id=run.id)
    links = [{"rel": "issue", "url": "https://git.example/shop/issues/7"}]
    agent.triage(one.id, severity="low", links=links)
    agent.triage(two.id, status="dismissed", reason="duplicate", duplicate_of=one.id, until="2999-01-01")
    one, two = agent.task(one.id), agent.task(two.id)
    assert (one.severity, one.reported_severity, one.links) == ("low", "high", links)
    assert (two.duplicate_of, two.until) == (one.id, "2999-01-01T00:00:00.000Z")
    assert (agent.triage(one.id, links=[]).links, agent.triage(two.id, until="").until) == ([], None)
    assert set(client_module.Decision.__annotations__) == fields_of(findings_service.TaskUpdate)


def test_gate_of_a_run_depends_on_fail_on_and_only(agent: Agent) -> None:
    with agent.start() as run:
        run.submit("A finding", "medium", external_id="it")
    assert (run.gate().pass_, run.gate(fail_on="medium").offenders_total) == (True, 1)
    with agent.start() as again:
        again.submit("A finding", "medium", external_id="it")
    assert (again.gate(fail_on="medium").pass_, again.gate(fail_on="low", only="all").pass_) == (True, False)


@pytest.mark.parametrize("id", ["../runs", "TASK/history", "TASK?limit=1", "TASK#", "%2e", "é"])
def test_id_is_escaped_as_one_segment_of_the_path(agent: Agent, id: str) -> None:
    report_one(agent)
    known = next(agent.tasks(project_type=agent.name)).id
    for send in (agent.task, lambda id_: next(agent.history(id_)), lambda id_: agent.triage(id_, assignee="")):
        with pytest.raises(Refused) as caught:
            send(id.replace("TASK", known))
        assert caught.value.status == 404


def test_registering_a_type_again_is_allowed_unless_it_differs(agent: Agent) -> None:
    schema = {"required": ["owner"], "type": "object"}
    for _ in range(2):
        project_type = agent.register(f"{agent.name}-2", label="Two", description="…", extension_schema=schema)
    assert (project_type.label, project_type.description, project_type.extension_schema) == ("Two", "…", schema)
    with pytest.raises(Refused, match=f"{agent.name}-2") as caught:
        agent.register(f"{agent.name}-2")
    assert caught.value.code == "project_type_exists"


def test_url_and_key_are_read_from_the_environment(shared_server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FINDINGS_URL", f"{shared_server.url}/")
    monkeypatch.setenv("FINDINGS_KEY", f" {shared_server.key}\n")
    assert Findings().register("of-the-environment").name == "of-the-environment"
    with pytest.raises(Refused, match="API key"):
        Findings(key="fts_another").register("web")
    monkeypatch.delenv("FINDINGS_URL")
    assert Findings().where == "http://127.0.0.1:8000"


# Agents: fixing


def report(agent: Agent, *titles: str, **fields: Any) -> list[str]:
    """Report findings in a run, and return the ids of their tasks."""
    with agent.start() as run:
        for title in titles or ("A finding",):
            run.submit(title, "high", external_id=title, **fields)
    return [each.id for each in agent.tasks(run_id=run.id, sort="createdAt")]


def events_of(agent: Agent, id: str) -> list[str]:
    return [entry.event for entry in agent.history(id)]


def test_claimed_task_is_released_at_the_end_of_the_block(any_agent: Agent) -> None:
    (known,) = report(any_agent, evidence="md5(text)")
    with any_agent.claim(project_type=any_agent.name) as task:
        assert (task.id, task.status, task.evidence[0].content) == (known, "in_progress", "md5(text)")
        assert any_agent.task(known).claim.id == task.claim.id
        with any_agent.claim(project_type=any_agent.name) as nothing:
            assert nothing is None
    assert (any_agent.task(known).status, threads_of("_extend")) == ("open", [])
    assert events_of(any_agent, known) == ["created", "claimed", "released"]


def test_claimed_task_is_released_if_the_block_raises(any_agent: Agent) -> None:
    (known,) = report(any_agent)
    error = KeyboardInterrupt("its own")
    with pytest.raises(KeyboardInterrupt) as caught, any_agent.claim(ids=[known]):
        raise error
    assert (caught.value is error, error.__cause__, error.__context__) == (True, None, None)
    assert (any_agent.task(known).status, threads_of("_extend")) == ("open", [])


def test_error_of_the_block_is_raised_if_the_claim_cannot_be_released(remote: Agent, proxy: Fake, tune: Tune) -> None:
    tune(LAST_TRIES=0.0)
    report(remote)

    def work() -> None:
        with remote.claim(project_type=remote.name):
            proxy.stop()
            raise ValueError("its own")

    with pytest.raises(ValueError, match="its own"):
        work()


def test_claim_whose_task_cannot_be_read_is_released(remote: Agent, proxy: Fake) -> None:
    (known,) = report(remote)
    proxy.before["/claim"] = lambda: proxy.before.setdefault(known, lambda: proxy.replies.append((500, {}, b"")))
    with pytest.raises(Refused, match="returned 500"), remote.claim(ids=[known]):
        pytest.fail("it must not begin")
    del proxy.before[known]
    assert remote.task(known).status == "open"


def test_claim_takes_the_filters_of_the_api(agent: Agent) -> None:
    common = {"location": "a.py:1", "tags": ["crypto"]}
    first, second = report(agent, "First", "Second", rule="S324", **common)
    filters = {"project_type": agent.name, "rule": "S324", "tag": "crypto", "location": "a.py:1", "severity": ["high"]}
    with agent.claim(ids=[second, first], seconds=30, **filters) as task, agent.claim(**filters) as other:
        assert {task.id, other.id} == {first, second}
    with agent.claim(**filters | {"severity": ["low"]}) as nothing:
        assert nothing is None
    assert set(client_module.ClaimFilters.__annotations__) == fields_of(fixing.ClaimRequest, "limit", "seconds")
    with pytest.raises(Refused, match="/sevrity"), agent.claim(sevrity="high"):
        pytest.fail("it must not begin")


def test_heartbeat_extends_a_claim_until_it_ends(any_agent: Agent, tune: Tune) -> None:
    tune(HEARTBEATS=600)
    (known,) = report(any_agent)
    with any_agent.claim(ids=[known], seconds=30):
        for _ in range(2):
            until = any_agent.task(known).claim.until
            wait_until(lambda until=until: any_agent.task(known).claim.until > until)
        left = datetime.fromisoformat(any_agent.task(known).claim.until) - datetime.now(UTC)
        assert 0 < left.total_seconds() <= 30
        any_agent.triage(known, status="open")
        wait_until(lambda: not threads_of("_extend"))
    assert events_of(any_agent, known) == ["created", "claimed", "status"]


def test_block_of_a_claim_waits_for_the_heartbeat_in_progress(remote: Agent, proxy: Fake, tune: Tune) -> None:
    tune(HEARTBEATS=600)
    (known,) = report(remote)
    beating = threading.Event()

    def beat_slowly() -> None:
        if not beating.is_set():
            beating.set()
            time.sleep(0.3)

    with remote.claim(ids=[known], seconds=30) as task:
        proxy.before[task.claim.id] = beat_slowly
        beating.wait(PATIENCE)
    assert threads_of("_extend") == []


def test_failed_heartbeat_is_repeated_sooner(away: Fake, tune: Tune) -> None:
    tune(LAST_TRIES=0.0)
    away.replies = [(200, {}, b"{}"), None, (503, {}, b""), (500, {}, b""), (200, {}, b"{}"), (404, {}, b"")]
    pauses = list[float]()
    over = mock.Mock(wait=pauses.append)
    Findings(away.url, "x" * 20)._extend("claims/a", 30, over)
    assert pauses == [10, 10, 1, 1, 1, 10]


def test_verification_fixed_ends_the_claim_and_leaves_the_task_in_progress(any_agent: Agent) -> None:
    (known,) = report(any_agent, success_criteria="ruff reports nothing.")
    issue, commit = ({"rel": rel, "url": f"https://git.example/{rel}/7"} for rel in ("issue", "commit"))
    with any_agent.claim(ids=[known]) as task:
        assert task.comment("I take this.", links=[issue]).links == [issue]
        proof = {"comment": "Checked.", "evidence": "-md5", "criterion": task.success_criteria[0].description}
        verified = task.verify("fixed", commit="c0ffee", links=[commit], **proof)
        assert (verified.status, verified.claim, verified.links) == ("in_progress", None, [issue, commit])
    stored = any_agent.task(known).verification
    assert (stored.outcome, stored.commit, stored.criterion) == ("fixed", "c0ffee", "ruff reports nothing.")
    *_, entry = any_agent.history(known)
    assert (entry.event, entry.comment, entry.evidence[0].content) == ("verified", "Checked.", "-md5")
    (listed,) = any_agent.tasks(project_type=any_agent.name, status="in_progress", verified="fixed", claimed=False)
    assert listed.id == known
    assert set(client_module.Proof.__annotations__) == fields_of(fixing.VerificationRequest, "outcome")


def test_other_verifications_keep_the_claim_until_the_end(agent: Agent) -> None:
    (known,) = report(agent)
    with agent.claim(ids=[known]) as task:
        assert task.verify("inconclusive", comment="The tests do not run.").claim.id == task.claim.id
    assert agent.task(known).status == "open"
    assert agent.verify(known, "still_present", evidence={"type": "log", "content": "S324"}).claim is None


def test_task_whose_claim_has_ended_does_not_use_the_next_claim(agent: Agent) -> None:
    (known,) = report(agent)
    with ExitStack() as stack:
        with agent.claim(ids=[known]) as first:
            agent.request("DELETE", f"claims/{first.claim.id}")
            second = stack.enter_context(agent.claim(ids=[known]))
            first.comment("Still here.")
            with pytest.raises(Refused, match="no active claim") as caught:
                first.verify("fixed", comment="Checked.")
            assert caught.value.status == 404
        assert (agent.task(known).claim.id, agent.task(known).verification) == (second.claim.id, None)


def test_proposal_waits_for_a_person(agent: Agent) -> None:
    one, two = report(agent, "One", "Two")
    made = agent.propose(two, "dismissed", "duplicate", "The same line.", duplicate_of=one, until="2999-01-01")
    assert (made.status, made.proposal.duplicate_of, made.proposal.until[:4]) == ("open", one, "2999")
    assert (made.proposal.reason, made.proposal.comment) == ("duplicate", "The same line.")
    assert [each.id for each in agent.tasks(project_type=agent.name, proposed=True)] == [two]


def test_similar_tasks_say_what_they_have_in_common(agent: Agent) -> None:
    one, two, _ = report(agent, "Weak hash", "A weak hash", "Slow loop", location="login.py:7")
    (found,) = agent.similar(one, limit=3)
    assert (found.id, found.because, agent.similar(one)) == (two, ["location", "words"], [found])


# Agents: fingerprints


def test_fingerprints_do_not_change_between_versions() -> None:
    """Stored findings have them as external ids; with other hashes, all would be reported as new."""
    secret, label = ("B105", "src/app.py", 'password = "secret"'), ("no label", "/checkout", "<input>")
    assert fingerprint(*secret) == "B105-b7695f930511ecef2811a3dedca47bae"
    assert fingerprint(*label, occurrence=2) == "no-label-60ad8f118d8d53dba22e8fb13619a6c9-2"
    unusual = ("Règle", "src\\é/../ü.py", "x =\N{NO-BREAK SPACE}'caf\udce9'\N{LINE SEPARATOR}")
    for form in ("NFC", "NFD"):
        parts = (unicodedata.normalize(form, text) for text in unusual)
        assert fingerprint(*parts) == "R-gle-aa9a453fff12ab19fce9fd65bdfc39f1"


def test_different_findings_have_different_fingerprints_of_valid_length() -> None:
    names = ("", "a", "b", "A", "a b", "a-b", "\0", "\udce9", "é", "x" * 300)
    values = [fingerprint(rule, path) for rule in names for path in names]
    values += [fingerprint("a", "a", code, occurrence=number) for code in names[1:] for number in (1, 2, 10**9)]
    values += [fingerprint("a", path) for path in ("/etc/passwd", "etc/passwd", "8")]
    values += [fingerprint("a", f"{root}/../178", root=root) for root in ("/builds/17", "/else/17/", "C:\\builds\\17")]
    assert len(set(values)) == len(values)
    assert all(re.fullmatch(r"[A-Za-z0-9._-]{1,97}(-[0-9]+)?", each) for each in values)


def test_fingerprints_ignore_the_notation_of_paths_and_white_space() -> None:
    expected = fingerprint("R", "src/app.py", "if x: y()")
    assert fingerprint("R", "src/app.py", "\tif  x:\n    y()\r\n") == expected
    paths = ("./src/app.py", "src//lib/../app.py", "src\\app.py", "/home/me/shop/src/app.py", Path("src/app.py"))
    assert {fingerprint("R", path, "if x: y()", root="/home/me/shop/") for path in paths} == {expected}
    for root in ("", ".", "/", "/else", "/etc/pass"):  # a path outside of the root is kept
        assert fingerprint("R", "/etc/passwd", root=root) == fingerprint("R", "/etc/passwd")
    for root in ("/builds/17", "/builds/17/", "C:\\builds\\17", "."):
        assert fingerprint("R", root, root=root) == fingerprint("R")


def test_repeated_lines_have_numbered_fingerprints_in_every_run(agent: Agent) -> None:
    for _ in range(2):
        with agent.start() as run:
            for code in ("assert x", "assert y", "  assert x"):
                run.submit("Assert", "low", external_id=run.fingerprint("B101", "a.py", code))
    assert (run.submitted.unchanged, len(agent.titles())) == (3, 3)
    assert run.fingerprint("B101", "a.py", "assert x").endswith("-3")
