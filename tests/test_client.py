"""What programs may count on when they talk to a service: over HTTP, and in their own process over a database file."""

from __future__ import annotations

import email.utils
import http.client
import json
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

import findings_service
from findings_adapters import client as client_module
from findings_adapters.client import Local, Refused, Remote, Service, Unavailable
from test_findings_service import Server, cases, task

Reply = tuple[int, dict[str, str], bytes]


class Fake:
    """A server that answers what it is told, and then like another one or with an empty object."""

    def __init__(self, behind: Server | None = None) -> None:
        self.behind = behind
        self.replies: list[Reply | None] = []
        self.before: dict[str, Callable[[], Any]] = {}  # what is done before a path that ends so is asked for
        self.loses_first = False  # whether the first answer to each request is lost
        self.heard: list[tuple[str, str, dict[str, str], bytes]] = []
        fake = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *_: Any) -> None:
                """Say nothing."""

            def answer(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                fake.heard.append((self.command, self.path, dict(self.headers.items()), body))
                for end in fake.before:
                    if self.path.endswith(end):
                        fake.before[end]()
                reply = fake.replies.pop(0) if fake.replies else fake.pass_on(self, body)
                again = fake.heard.count(fake.heard[-1]) > 1
                if reply is None or (fake.loses_first and not again):  # after the work was done
                    if reply is None:
                        fake.pass_on(self, body)
                    self.close_connection = True
                    return
                self.send_response(reply[0])
                for name, value in reply[1].items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(reply[2])))
                self.end_headers()
                self.wfile.write(reply[2])

            do_GET = do_POST = do_PATCH = do_CONNECT = answer

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.handle_error = lambda *_: None  # it would tell of it on standard error
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.01,))
        self.thread.start()

    def pass_on(self, handler: BaseHTTPRequestHandler, body: bytes) -> Reply:
        """Return what the server behind this one answers."""
        if self.behind is None:
            return 200, {"Content-Type": "application/json"}, b"{}"
        kept = {name: value for name, value in handler.headers.items() if name not in ("Host", "Accept-Encoding")}
        with closing(http.client.HTTPConnection("127.0.0.1", self.behind.port, timeout=20)) as connection:
            connection.request(handler.command, handler.path, body, kept)
            response = connection.getresponse()
            heads = {name: value for name, value in response.getheaders() if name.title() != "Content-Length"}
            return response.status, heads, response.read()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_port}"

    def stop(self) -> None:
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()


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
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The seconds that a client would have waited between two tries; it does not, for a test."""
    waited: list[float] = []
    monkeypatch.setattr(client_module.time, "sleep", waited.append)
    return waited


def busy(**headers: str) -> Reply:
    told = {"code": "busy", "detail": "The database is locked; nothing was stored.", "status": 503}
    heads = {"Content-Type": "application/problem+json"} | {name.replace("_", "-"): v for name, v in headers.items()}
    return 503, heads, json.dumps(told).encode()


def service_at(url: str, key: str = "x" * 20) -> Service:
    return Service(Remote(url, key))


# ---------------------------------------------------------------------------
# Over HTTP
# ---------------------------------------------------------------------------


def test_a_request_has_its_key_and_its_body(server: Server) -> None:
    service = service_at(f"http://127.0.0.1:{server.port}", server.key)
    assert service.request("POST", "project-types", {"name": "web"}).status == 201
    with pytest.raises(Refused) as caught:
        service.request("POST", "runs", {"projectType": "wbe", "colour": 1})
    assert (caught.value.status, caught.value.code) == (422, "validation_failed")
    assert "/colour" in str(caught.value)


@pytest.mark.parametrize("status", [429, 502, 503, 504])
def test_what_may_pass_is_tried_again_under_the_same_key(
    fake: Callable[..., Fake], waits: list[float], status: int
) -> None:
    away = fake()
    away.replies = [(status, {}, b""), (status, {}, b"")]
    service_at(away.url).request("POST", "runs", {"projectType": "web"})
    keys = [heard[2]["Idempotency-Key"] for heard in away.heard]
    assert (len(keys), len(set(keys))) == (3, 1)
    assert 0.25 <= waits[0] <= 0.5 <= waits[1] <= 1


def test_every_post_has_a_key_of_its_own_and_nothing_else_has_one(fake: Callable[..., Fake]) -> None:
    there = fake()
    service = service_at(there.url)
    for method in ("POST", "POST", "GET", "PATCH"):
        service.request(method, "runs")
    keys = [heard[2].get("Idempotency-Key") for heard in there.heard]
    assert keys[0] != keys[1]
    assert keys[2:] == [None, None]


RETRY_AFTER = cases(
    seconds=("7", 7.0),
    zero=("0", 0.5),
    far=("86400", 30.0),
    rubbish=("soon", 0.5),
    digits_of_others=("٣", 0.5),
)


@pytest.mark.parametrize(("asked", "seconds"), RETRY_AFTER)
def test_a_service_says_how_long_to_leave_it_alone(
    fake: Callable[..., Fake], waits: list[float], asked: str, seconds: float
) -> None:
    away = fake()
    away.replies = [busy(Retry_After=asked)]
    service_at(away.url).request("GET", "tasks")
    assert waits == [pytest.approx(seconds, rel=0.5 if seconds == 0.5 else 0.01)]


def test_a_service_may_say_until_when_to_leave_it_alone(fake: Callable[..., Fake], waits: list[float]) -> None:
    away = fake()
    away.replies = [busy(Retry_After=email.utils.formatdate(time.time() + 10, usegmt=True))]
    service_at(away.url).request("GET", "tasks")
    assert 8 < waits[0] <= 10


def test_an_answer_that_was_lost_is_asked_for_again_and_the_work_done_once(
    fake: Callable[..., Fake], server: Server, waits: list[float]
) -> None:
    between = fake(server)
    service = service_at(between.url, server.key)
    service.request("POST", "project-types", {"name": "web"})
    between.replies = [None]
    run = service.request("POST", "runs", {"projectType": "web"}).read(dict)
    between.replies = [None]
    done = service.request("POST", f"runs/{run['id']}/tasks", task()).read(dict)
    between.replies = [None]
    service.request("PATCH", f"runs/{run['id']}", {"status": "completed"})
    assert done["created"] == 1
    assert service.request("GET", "runs").read(dict)["total"] == 1
    assert service.request("GET", "tasks").read(dict)["total"] == 1


def test_a_service_that_stays_away_is_told_in_a_line(
    fake: Callable[..., Fake], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_module, "PATIENCE", 1.0)
    there = fake()
    there.stop()
    began = time.monotonic()
    with pytest.raises(Unavailable, match=f"no answer from {there.url}: Connection refused"):
        service_at(there.url).request("GET", "tasks")
    assert time.monotonic() - began < 3


def test_a_service_that_stays_busy_is_told_in_its_own_words(
    fake: Callable[..., Fake], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_module, "PATIENCE", 0.0)
    away = fake()
    away.replies = [busy()]
    with pytest.raises(Refused, match="The database is locked") as caught:
        service_at(away.url).request("GET", "tasks")
    assert caught.value.status == 503


def test_what_cannot_get_better_is_not_tried_again(waits: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "PATIENCE", 1.0)
    with pytest.raises(Unavailable, match="control characters"):
        service_at("http://127.0.0.1:1").request("GET", "tasks?\n")
    assert waits == []


def test_a_large_body_has_time_in_proportion(fake: Callable[..., Fake], monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("TIMEOUT", 0.1), ("SLOWEST_UPLOAD", 1000), ("PATIENCE", 0.0)):
        monkeypatch.setattr(client_module, name, value)
    there = fake()
    there.before["/tasks"] = lambda: time.sleep(0.5)
    assert service_at(there.url).request("POST", "tasks", b" " * 5000).status == 200


STRANGERS = cases(
    page=((404, {}, b"<html>"), "answers 404 Not Found, and not as a Findings Task Service does"),
    proxy=((500, {}, b"[]"), "answers 500 Internal Server Error"),
    moved=((302, {"Location": "https://login.example/"}, b""), "redirects to https://login.example/"),
)


@pytest.mark.parametrize(("reply", "said"), STRANGERS)
def test_what_is_no_service_is_told_so(fake: Callable[..., Fake], reply: Reply, said: str) -> None:
    there = fake()
    there.replies = [reply]
    with pytest.raises(Refused, match=said):
        service_at(there.url).request("GET", "tasks")
    assert len(there.heard) == 1


def test_an_answer_that_is_no_json_is_no_services(fake: Callable[..., Fake]) -> None:
    there = fake()
    there.replies = [(200, {}, b"<html>")]
    with pytest.raises(Unavailable, match="no Findings Task Service"):
        service_at(there.url).request("GET", "tasks").read(dict)


@pytest.mark.parametrize("prefix", ["", "/findings", "/api", "/a/b/"])
def test_a_service_may_be_below_a_prefix(fake: Callable[..., Fake], prefix: str) -> None:
    there = fake()
    service = service_at(f"{there.url}{prefix}")
    service.request("GET", "tasks?limit=1")
    service.request("GET", f"{prefix.rstrip('/')}/api/v1/tasks?after=x")  # a link of its own
    service.request("GET", "/api/v1/tasks?after=x")  # of one that does not know of the prefix
    prefixed = f"{prefix.rstrip('/')}/api/v1/tasks"
    assert [heard[1] for heard in there.heard] == [f"{prefixed}?limit=1", *[f"{prefixed}?after=x"] * 2]


def test_a_body_that_is_too_large_is_told_so_before_all_of_it_is_sent(serve: Callable[..., Server]) -> None:
    server = serve(FINDINGS_MAX_BODY="1000")
    service = service_at(f"http://127.0.0.1:{server.port}", server.key)
    with pytest.raises(Refused) as caught:
        service.request("POST", "project-types", b" " * 30_000_000)
    assert (caught.value.status, caught.value.code) == (413, "body_too_large")


@pytest.mark.parametrize("proxied", ["http_proxy", "no_proxy"])
def test_the_environments_proxy_is_used_unless_it_says_not_to(
    fake: Callable[..., Fake], monkeypatch: pytest.MonkeyPatch, proxied: str
) -> None:
    there, proxy = fake(), fake()
    monkeypatch.setenv("http_proxy", proxy.url.replace("//", "//me:pass%20word@"))
    monkeypatch.setenv("no_proxy", "127.0.0.1" if proxied == "no_proxy" else "")
    service_at(there.url).request("GET", "tasks")
    if proxied == "no_proxy":
        assert (len(there.heard), len(proxy.heard)) == (1, 0)
    else:
        assert proxy.heard[0][1] == f"{there.url}/api/v1/tasks"
        assert proxy.heard[0][2]["Proxy-Authorization"] == "Basic bWU6cGFzcyB3b3Jk"


def test_a_service_over_https_is_reached_through_a_tunnel(
    fake: Callable[..., Fake], monkeypatch: pytest.MonkeyPatch
) -> None:
    proxy = fake()
    monkeypatch.setattr(client_module, "PATIENCE", 0.0)
    monkeypatch.setenv("https_proxy", proxy.url.replace("//", "//me:pass%20word@"))
    monkeypatch.setenv("no_proxy", "")
    with pytest.raises(Unavailable):
        service_at("https://findings.example").request("GET", "tasks")
    ((command, place, heads, _),) = proxy.heard
    assert (command, place) == ("CONNECT", "findings.example:443")
    assert heads["Proxy-Authorization"] == "Basic bWU6cGFzcyB3b3Jk"
    assert "Authorization" not in heads


URLS = cases(
    none=("findings", "is no URL"),
    scheme=("ftp://findings.example", "is no URL"),
    port=("http://findings.example:port", "Port"),
    user=("https://me:secret@findings.example", "user name"),
)


@pytest.mark.parametrize(("url", "said"), URLS)
def test_a_url_that_cannot_be_one_is_refused(url: str, said: str) -> None:
    with pytest.raises(findings_service.ConfigurationError, match=said) as caught:
        Remote(url, "x" * 20)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("key", ["schlüssel", "two\nlines"])
def test_a_key_that_no_header_can_carry_is_refused(key: str) -> None:
    with pytest.raises(findings_service.ConfigurationError, match="ASCII"):
        Remote("http://127.0.0.1:1", key)


# ---------------------------------------------------------------------------
# In this process
# ---------------------------------------------------------------------------


def test_the_same_requests_go_to_a_database_file_without_a_key(tmp_path: Path) -> None:
    db = tmp_path / "findings.db"
    with Service(Local(str(db), new=True)) as service:
        service.request("POST", "project-types", {"name": "web"})
        run = service.request("POST", "runs", {"projectType": "web"}).read(dict)
        service.request("POST", f"runs/{run['id']}/tasks", task())
        listed = service.request("GET", "tasks?limit=1").read(dict)
        assert (
            service.request("GET", f"tasks/{listed['tasks'][0]['id']}/history").read(dict)["history"][0]["by"] == "scan"
        )
        with pytest.raises(Refused) as caught:
            service.request("GET", "runs/unknown")
    assert (caught.value.status, listed["total"]) == (404, 1)
    assert not list(tmp_path.glob("*-wal")), "what a cache keeps must be all there is"


def test_a_database_file_that_is_not_there_is_made_only_if_wanted(tmp_path: Path) -> None:
    with pytest.raises(findings_service.DatabaseUnusable, match="there is no file"):
        Local(str(tmp_path / "findings.db"))
    assert not list(tmp_path.iterdir())


def test_a_database_that_cannot_be_written_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise sqlite3.OperationalError("attempt to write a readonly database")

    monkeypatch.setattr(findings_service, "insert_client", refuse)
    with pytest.raises(findings_service.DatabaseUnusable, match=r"findings\.db cannot be used: attempt to write"):
        Local(str(tmp_path / "findings.db"), new=True)


def test_settings_of_a_server_do_not_change_the_requests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Any
) -> None:
    monkeypatch.setenv("FINDINGS_BASE_URL", "https://tools.example/findings")
    monkeypatch.setenv("FINDINGS_LOG", "text")
    monkeypatch.setenv("FINDINGS_API_KEY", "too short")
    with Service(Local(str(tmp_path / "findings.db"), new=True)) as service:
        service.request("POST", "project-types", {"name": "web"})
        run = service.request("POST", "runs", {"projectType": "web"}).read(dict)
        service.request("POST", f"runs/{run['id']}/tasks", {"tasks": [task(), task()]})
        page = service.request("GET", "tasks?limit=1").read(dict)
        assert service.request("GET", page["next"]).read(dict)["tasks"]
    assert capfd.readouterr().err == ""
