"""Tests of webhooks: validation, messages, and the delivery of each event, in order."""

from __future__ import annotations

import ipaddress
import json
import random
import signal
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import wait
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from functools import partial
from http import HTTPStatus
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import flask
import pytest
from standardwebhooks import Webhook

import findings_service
from findings_adapters.webhooks import delivery, messages, sending
from tests.clients import API, Client, assert_problem, cases, client_of, database_of, rows_of, task
from tests.documents import HERE, blocks_of, installed_program
from tests.scenarios import post
from tests.servers import PATIENCE, Server, StubHandler, at_most, invoke, program_with, running_stub, wait_until

Hook = dict[str, Any]
Deliver = Callable[..., None]
WEBHOOKS = f"{API}/webhooks"
ALL_TYPES = [
    *("finding.created", "finding.changed", "finding.reopened", "finding.status", "finding.assigned"),
    *("finding.commented", "run.started", "run.finished"),
]


@dataclass
class Received:
    """A request to a receiver; `accepted` is set if the response was 204."""

    path: str
    headers: dict[str, str]
    body: bytes
    accepted: bool = False

    @property
    def event(self) -> str:
        return self.headers["webhook-id"]

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Handler(StubHandler):
    """Handler that records a request, and responds by the function of its receiver."""

    wbufsize = 0  # unbuffered, for `respond_slowly`
    responses: ClassVar = dict.fromkeys(HTTPStatus, ("Private-Words", ""))  # must not be logged

    def do_POST(self) -> None:
        headers = {name.lower(): value for name, value in self.headers.items()}
        receiver: Receiver = self.server.receiver  # type: ignore[attr-defined]
        receiver.received.append(Received(self.path, headers, self.body()))
        with suppress(OSError):
            receiver.respond(self, receiver.received[-1])

    def accept(self, request: Received) -> None:
        request.accepted = True
        self.reply(204)


class Receiver:
    """A local HTTP server that receives webhooks, and can be stopped and started again."""

    def __init__(self) -> None:
        self.received: list[Received] = []
        self.respond: Callable[[Handler, Received], object] = Handler.accept
        self.port = 0
        self._up = ExitStack()
        self.start()

    def start(self) -> None:
        self.server = self._up.enter_context(running_stub(ThreadingHTTPServer(("127.0.0.1", self.port), Handler)))
        self.server.receiver = self  # type: ignore[attr-defined]
        self.port = self.server.server_port

    def stop(self) -> None:
        self._up.close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/hook"

    @property
    def events(self) -> list[str]:
        return [each.event for each in self.received]

    @property
    def accepted(self) -> list[str]:
        return [each.event for each in self.received if each.accepted]


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    receiver = Receiver()
    yield receiver
    receiver.stop()


def respond_with(status: int, **headers: str) -> Callable[[Handler, Received], None]:
    """Return a function that responds with a status, and with a body that must not be logged."""
    return lambda handler, _: handler.reply(status, b"private words", **headers)


def app_with(**settings: str) -> pytest.MarkDecorator:
    """Return a mark that gives a test's application these settings."""
    return pytest.mark.parametrize("app", [settings], ids=[""], indirect=True)


@pytest.fixture
def app(make_app: Callable[..., flask.Flask], request: pytest.FixtureRequest) -> flask.Flask:
    """An application that allows webhooks at private addresses, unless `app_with` forbids it."""
    return make_app(**{"webhook_private": "1"} | getattr(request, "param", {}))


@pytest.fixture
def client(app: flask.Flask) -> Client:
    client = client_of(app)
    client.register("web")
    return client


@pytest.fixture
def hook(client: Client, receiver: Receiver) -> Hook:
    """A webhook for all types of events, at the receiver."""
    return register(client, receiver.url)


@pytest.fixture
def deliverer(app: flask.Flask) -> Iterator[delivery.Deliverer]:
    """The deliverer of the application, which delivers only on request."""
    deliverer = delivery.Deliverer(app.extensions["findings"])
    yield deliverer
    deliverer.stop()


@pytest.fixture
def deliver(deliverer: delivery.Deliverer, client: Client) -> Deliver:
    """A function that delivers all due events and waits for the end; with `later` also events to be retried."""
    return partial(deliver_all, deliverer, client)


def execute(client: Client, sql: str, *values: Any) -> None:
    with database_of(client.application).transaction() as connection:
        connection.execute(sql, values)


def deliver_all(deliverer: delivery.Deliverer, client: Client, *, later: bool = False) -> None:
    if later:
        execute(client, "UPDATE webhooks SET next_attempt_at = '2026-01-01T00:00:00.000Z'")
    done, others = wait(deliverer.look(), PATIENCE)
    assert not others
    assert [each.result() for each in done] == [None] * len(done)


def register(client: Client, url: str, types: Sequence[str] = ALL_TYPES, **fields: Any) -> Hook:
    response = client.post(WEBHOOKS, json={"url": url, "types": [*types], **fields})
    assert response.status_code == 201, response.text
    return response.json


def read_webhook(client: Client, hook: Hook) -> dict[str, Any]:
    return client.read(f"webhooks/{hook['id']}")


def event_ids(client: Client, **query: Any) -> list[str]:
    """Return the ids of all events, oldest first."""
    return [each["id"] for each in client.read("events", limit=1000, **query)["events"]]


# Registration


def test_secret_of_a_webhook_is_returned_only_once(client: Client) -> None:
    response, repeated = (post(client, "webhooks", {"url": "https://hooks.invalid/a"}) for _ in range(2))
    hook = response.json
    assert (response.status_code, response.headers["Location"]) == (201, f"{WEBHOOKS}/{hook['id']}")
    secret = hook.pop("secret")
    assert secret.startswith("whsec_")
    assert secret not in rows_of(client.application, "SELECT body FROM idempotent_answers")[0][0]
    assert hook["types"] == ["run.finished"]
    assert (hook["state"], hook["format"], hook["lastError"], hook["lastDeliveryAt"]) == ("on", "json", None, None)
    assert (repeated.status_code, repeated.json) == (201, hook)
    assert read_webhook(client, hook) == hook
    assert client.read("webhooks") == {"webhooks": [hook]}
    client.remove(f"webhooks/{hook['id']}")
    assert client.get(f"{WEBHOOKS}/{hook['id']}").status_code == 404
    assert_problem(post(client, "webhooks", {"url": "https://hooks.invalid/a"}), 409, "idempotency_conflict")


INVALID_WEBHOOKS: tuple[tuple[dict[str, Any], set[str]], ...] = (
    ({"url": "https://anna:secret@hooks.invalid/"}, {"/url"}),
    ({"url": "ftp://hooks.invalid/"}, {"/url"}),
    ({"url": "https://hooks.invalid:0/"}, {"/url"}),
    ({"url": "https://hooks.invalid:65536/"}, {"/url"}),
    ({"url": f"https://{'a' * 64}.invalid/"}, {"/url"}),
    ({"url": f"https://hooks.invalid/{'a' * 2048}"}, {"/url"}),
    ({"url": None}, {"/url"}),
    ({"types": []}, {"/types"}),
    ({"types": ["run.deleted"]}, {"/types/0"}),
    ({"minSeverity": "hgh"}, {"/minSeverity"}),
    ({"projectType": "a b"}, {"/projectType"}),
    ({"targetUrl": "nowhere"}, {"/targetUrl"}),
    ({"format": "teams"}, {"/format"}),
    ({"secret": "whsec_mine"}, {"/secret"}),
    ({"url": "x", "types": [], "format": 1}, {"/url", "/types", "/format"}),
)


def test_invalid_webhook_is_rejected_with_all_its_errors(client: Client) -> None:
    for fields, pointers in INVALID_WEBHOOKS:
        response = client.post(WEBHOOKS, json={"url": "https://hooks.invalid/"} | fields)
        problem = assert_problem(response, 422, "validation_failed")
        assert {each["pointer"] for each in problem["errors"]} == pointers, fields


def test_client_has_at_most_twenty_webhooks(client: Client) -> None:
    for _ in range(20):
        register(client, "https://hooks.invalid/")
    response = client.post(WEBHOOKS, json={"url": "https://hooks.invalid/"})
    assert "limit of 20" in assert_problem(response, 422, "validation_failed", "/url")["errors"][0]["detail"]


def test_patch_can_only_switch_a_webhook_on(client: Client) -> None:
    path = f"{WEBHOOKS}/{register(client, 'https://hooks.invalid/')['id']}"
    for body in ({"state": "off"}, {"state": "on", "from": "first"}, {}):
        assert_problem(client.patch(path, json=body), 422, "validation_failed")
    assert client.patch(path, json={"state": "on"}).json["state"] == "on"


# Allowed addresses

PRIVATE = (
    *("127.0.0.1", "10.1.2.3", "172.16.0.1", "192.168.1.1", "169.254.169.254", "100.64.0.1", "0.0.0.0", "224.0.0.1"),
    *("255.255.255.255", "240.0.0.1", "192.0.2.1", "198.18.0.1", "::1", "::", "fe80::1", "fc00::1", "fec0::1"),
    *("ff0e::1", "2001:db8::1", "::ffff:127.0.0.1", "::ffff:10.0.0.1", "::127.0.0.1", "2002:7f00:1::", "2002:a00:1::1"),
    *("192.0.0.192", "192.88.99.1", "168.63.129.16", "3fff::1", "2a00::5efe:7f00:1", "2a00::200:5efe:a00:1"),
    *("64:ff9b::7f00:1", "64:ff9b::a00:1", "64:ff9b:1::808:808", "2001:0:7f00:1::", "2001:0:808:808::f5ff:fffe"),
)
PUBLIC = ("8.8.8.8", "2606:4700::1111", "::ffff:8.8.8.8", "64:ff9b::808:808", "2002:808:808::1")


def test_only_globally_reachable_addresses_are_public() -> None:
    assert [each for each in (*PRIVATE, *PUBLIC) if sending.is_public(ipaddress.ip_address(each))] == [*PUBLIC]


class FakeDNS:
    """Stub of DNS: each lookup of a .example name returns its next addresses; other hosts are looked up as usual."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **addresses: list[list[str]]) -> None:
        self.addresses, self.lookups = addresses, list[str]()
        self._own = socket.getaddrinfo
        monkeypatch.setattr(socket, "getaddrinfo", self.look_up)

    def look_up(self, host: str, *args: Any, **options: Any) -> Any:
        if not str(host).endswith(".example"):
            return self._own(host, *args, **options)
        self.lookups.append(host)
        remaining = self.addresses[host.removesuffix(".example")]
        current = remaining.pop(0) if len(remaining) > 1 else remaining[0]
        return [each for address in current for each in self._own(address, *args, **options)]


@app_with(webhook_private="0")
def test_webhooks_with_private_addresses_are_rejected_and_not_connected_to(
    client: Client, monkeypatch: pytest.MonkeyPatch, receiver: Receiver
) -> None:
    FakeDNS(monkeypatch, two=[["8.8.8.8", "::ffff:10.0.0.1"]], moved=[["8.8.8.8"], ["127.0.0.1"]])
    for host in (
        *("127.0.0.1", "localhost", "[::1]", "[::ffff:127.0.0.1]", "2130706433", "0x7f.1", "127.1", "169.254.169.254"),
        "two.example",  # one private address is enough
    ):
        response = client.post(WEBHOOKS, json={"url": f"http://{host}:9/x"})
        detail = assert_problem(response, 422, "validation_failed", "/url")["errors"][0]["detail"]
        assert "FINDINGS_WEBHOOK_PRIVATE=1" in detail, host
    assert not findings_service.Settings().webhook_private
    hook = register(client, f"http://moved.example:{receiver.port}/")
    result = client.post(f"{WEBHOOKS}/{hook['id']}/test").json
    assert result == {"delivered": False, "status": None, "error": "address not allowed"}
    assert not receiver.received


SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"


def send(url: str) -> sending.DeliveryResult:
    """Send a delivery to a URL; private addresses are allowed."""
    return sending.send(url, SECRET, "e", b"{}", private=True)


def test_checked_addresses_are_tried_in_turn_without_another_lookup(
    monkeypatch: pytest.MonkeyPatch, receiver: Receiver
) -> None:
    dns = FakeDNS(monkeypatch, once=[["127.0.0.2", "127.0.0.1"], ["8.8.8.8"]])
    assert send(f"http://once.example:{receiver.port}/a?b=c#d") == sending.DeliveryResult(204)
    assert dns.lookups == ["once.example"]
    (received,) = receiver.received
    assert (received.path, received.headers["host"]) == ("/a?b=c", f"once.example:{receiver.port}")


# One attempt


def hang(handler: Handler, _: Received) -> None:
    handler.rfile.read(1)


def respond_slowly(handler: Handler, _: Received) -> None:
    handler.wfile.write(b"HTTP/1.1 200 OK\r\n")
    while True:
        handler.wfile.write(b"X")
        time.sleep(0.05)


def respond_endlessly(handler: Handler, _: Received) -> None:
    handler.send_response(200)
    handler.end_headers()
    respond_slowly(handler, _)


ATTEMPTS = cases(
    ok=(respond_with(200), 200, None),
    no_content=(Handler.accept, 204, None),
    endless_body=(respond_endlessly, 200, None),
    error=(respond_with(500), 500, "500"),
    gone=(respond_with(410), 410, "gone 410"),
    redirect=(respond_with(302, Location="http://127.0.0.1:9/"), 302, "redirect 302"),
    not_modified=(respond_with(304), 304, "304"),
    nonsense=(lambda handler, _: handler.wfile.write(b"private words\r\n\r\n"), None, "no answer"),
    nothing=(lambda *_: None, None, "no answer"),
    hanging=(hang, None, "timeout"),
    slow_head=(respond_slowly, None, "timeout"),
    late=(lambda handler, request: (time.sleep(0.5), handler.accept(request)), 204, None),
)


@pytest.mark.parametrize(("respond", "status", "error"), ATTEMPTS)
def test_attempt_returns_its_status_or_error_within_the_time_limit(
    client: Client, receiver: Receiver, monkeypatch: pytest.MonkeyPatch, respond: Any, status: Any, error: Any
) -> None:
    monkeypatch.setattr(sending, "ATTEMPT_TIME", 1.0 if error == "timeout" else PATIENCE)
    receiver.respond, hook = respond, register(client, receiver.url)
    began = time.monotonic()
    with at_most(60):
        result = client.post(f"{WEBHOOKS}/{hook['id']}/test").json
    assert result == {"delivered": error is None, "status": status, "error": error}
    assert time.monotonic() > began + 0.9 or error != "timeout"
    assert [each.json["type"] for each in receiver.received] == ["webhook.test"]


def test_connection_errors_are_reported_and_proxies_are_not_used(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    assert send(receiver.url).error is None
    receiver.stop()
    for url, error in ((receiver.url, "connection refused"), ("http://nowhere.invalid/", "name not resolved")):
        assert send(url) == sending.DeliveryResult(error=error)
    monkeypatch.setattr(sending, "LOOKUP_TIME", 0.1)
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: time.sleep(1) or [])
    assert send("http://slow.example/").error == "timeout"


def test_certificate_must_match_the_host_name(
    tmp_path: Path, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    FakeDNS(monkeypatch, hooks=[["127.0.0.1"]], other=[["127.0.0.1"]])
    names = ("-subj", "/CN=hooks.example", "-addext", "subjectAltName=DNS:hooks.example")
    files = ("-keyout", tmp_path / "key", "-out", tmp_path / "pem")
    line = [installed_program("openssl"), "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", *names, *files]
    subprocess.run(line, check=True, capture_output=True)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(tmp_path / "pem", tmp_path / "key")
    receiver.server.socket = context.wrap_socket(receiver.server.socket, server_side=True)
    right, wrong = (f"https://{name}.example:{receiver.port}/" for name in ("hooks", "other"))
    assert send(right).error == "TLS"  # its certificate is not trusted
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "pem"))
    assert (send(right).error, send(wrong).error) == (None, "TLS")


def test_retry_after_is_seconds_or_a_date_up_to_a_day() -> None:
    in_an_hour = format_datetime(datetime.now(UTC) + timedelta(hours=1), usegmt=True)
    past, far = "Wed, 21 Oct 2015 07:28:00 GMT", "Wed, 21 Oct 2065 07:28:00 GMT"
    expected = {"": 0, "soon": 0, "120": 120, "999999999999": 86_400, "-1": 0, past: 0, far: 86_400}
    assert {text: sending.seconds_asked(text) for text in expected} == expected
    assert sending.seconds_asked(in_an_hour) == pytest.approx(3600, abs=60)


def test_a_test_delivery_moves_no_cursor_and_is_sent_once_per_key(
    client: Client, receiver: Receiver, hook: Hook, deliver: Deliver
) -> None:
    receiver.respond = respond_with(500)
    for _ in range(2):
        assert post(client, f"webhooks/{hook['id']}/test", None).status_code == 200
    deliver()
    assert len(receiver.received) == 1
    assert read_webhook(client, hook) == {k: v for k, v in hook.items() if k != "secret"}


# Messages


def test_standardwebhooks_and_the_documented_receiver_verify_deliveries(
    client: Client, receiver: Receiver, hook: Hook, deliver: Deliver
) -> None:
    client.start("web", metadata={"name": "Zoë"})
    deliver()
    (received,) = receiver.received
    event = client.read("events")["events"][-1]
    expected = {"type": "run.started", "timestamp": event["at"], "data": event}
    assert Webhook(hook["secret"]).verify(received.body, received.headers) == expected
    assert (received.event, received.headers["content-type"]) == (event["id"], "application/json")
    (text,) = [text for _, kind, text in blocks_of(HERE / "docs" / "api.md") if text.startswith("# receiver.py\n")]
    names: dict[str, Any] = {}
    exec(text, names)
    assert names["is_ours"](hook["secret"], received.headers, received.body)
    assert not names["is_ours"](SECRET, received.headers, received.body)
    assert not names["is_ours"](hook["secret"], received.headers, received.body + b" ")
    assert not names["is_ours"](hook["secret"], received.headers | {"webhook-timestamp": "1614265330"}, received.body)


@app_with(base_url="https://tools.example/findings")
def test_run_finished_has_the_gate_and_the_five_worst_new_findings(
    client: Client, receiver: Receiver, deliver: Deliver
) -> None:
    known = client.start("web")
    client.add(known, externalId="known", severity="critical")
    client.finish(known)
    register(client, receiver.url, ["run.finished"])
    run = client.start("web")
    client.submit(run, task(externalId="known", severity="critical"), *(task(severity="low") for _ in range(5)))
    worst = client.add(run, severity="high")
    client.finish(run)
    deliver()
    (data,) = [each.json["data"] for each in receiver.received]
    assert data["gate"] == client.read(f"runs/{run}/gate")
    assert [each["severity"] for each in data["newFindings"]] == ["high", "low", "low", "low", "low"]
    assert data["newFindings"][0]["link"] == f"https://tools.example/findings/#/findings/{worst}"
    assert data["link"] == f"https://tools.example/findings/#/runs/{run}"


FILTERED: dict[str, tuple[dict[str, Any], list[str]]] = {
    "types": ({"types": ["finding.created", "run.finished"]}, ["low", "high", "f1", "other", "f2"]),
    "project_type": ({"projectType": "web"}, ["s1", "low", "high", "f1"]),
    "target": ({"targetUrl": "https://a.example/"}, ["s1", "low", "high", "f1"]),
    "nothing": ({"targetUrl": "https://b.example/"}, []),
    "severity": ({"types": ["finding.created"], "minSeverity": "high"}, ["high"]),
    "run_by_severity": ({"types": ["run.finished"], "minSeverity": "high"}, ["f1"]),
    "run_by_lower_severity": ({"types": ["run.finished"], "minSeverity": "low"}, ["f1", "f2"]),
}


def test_filters_select_events_and_links_require_a_base_url(
    client: Client, receiver: Receiver, deliver: Deliver
) -> None:
    client.register("cli")
    for name, (fields, _) in FILTERED.items():
        register(client, f"{receiver.url}/{name}", **{"types": ALL_TYPES, **fields})
    run = client.start("web", targetUrl="https://a.example/")
    client.submit(run, task(severity="low"), task(severity="high"))
    client.finish(run)
    other = client.start("cli")
    client.add(other, severity="low")
    client.finish(other)
    deliver()
    names = dict(zip(event_ids(client), ["s1", "low", "high", "f1", "s2", "other", "f2"], strict=True))
    for name, (_, expected) in FILTERED.items():
        assert [names[each.event] for each in receiver.received if each.path == f"/hook/{name}"] == expected, name
    assert b'"link"' not in b"".join(each.body for each in receiver.received)


def test_min_severity_compares_the_severity_at_delivery(client: Client, receiver: Receiver, deliver: Deliver) -> None:
    register(client, receiver.url, ["finding.created"], minSeverity="high")
    for severity in ("high", "low"):
        client.add(client.start("web"), externalId="x", severity=severity)
    deliver()
    assert not receiver.received


@app_with(base_url="https://tools.example/f")
def test_slack_texts_escape_mentions_and_links_of_findings(
    client: Client, receiver: Receiver, deliver: Deliver
) -> None:
    register(client, receiver.url, format="slack")
    again = partial(task, externalId="x", title="<!channel> & <https://evil.example|us>\n@here")
    first = client.start("web", targetUrl="https://a.example/?<!here>")
    found = client.add(first, **again())
    client.triage(found, "resolved", comment="<@U1>", assignee="<@U2>")
    client.triage(found, comment="<@U1>")
    second = client.start("web", targetUrl="https://a.example/?<!here>")
    client.submit(second, again())
    client.submit(second, again(severity="low"))
    client.finish(second)
    deliver()
    assert {each["type"] for each in client.read("events")["events"]} == {*ALL_TYPES}
    assert receiver.events == event_ids(client)
    texts = [each.json["text"] for each in receiver.received]
    escaped = (
        f"<https://tools.example/f/#/findings/{found}|&lt;!channel&gt; &amp; &lt;https://evil.example|us&gt; @here>"
    )
    assert texts[1] == f"New low {escaped} (web of https://a.example/?&lt;!here&gt;)"
    assert texts[-1].splitlines()[1] == f"• low {escaped}"
    assert all("web" in text and "None" not in text and text[0] != " " for text in texts)
    assert all("<!" not in text and "<@" not in text and text.count("<") <= 2 for text in texts)


def test_new_findings_are_relative_to_the_baseline_of_the_verdict(
    client: Client, receiver: Receiver, deliver: Deliver
) -> None:
    register(client, receiver.url, ["run.finished"])
    first, second, third = (client.start("web") for _ in range(3))
    for run, names in ((first, "a"), (second, "b"), (third, "ab")):
        for name in names:
            client.submit(run, task(externalId=name, title=name, severity="high"))
        options = {"gate": {"baseline": first}} if run == third else {}
        client.finish(run, **options)
    deliver()
    data = receiver.received[-1].json["data"]
    assert [each["title"] for each in data["newFindings"]] == ["b"]
    assert data["gate"]["baseline"] == data["run"]["verdict"]["baseline"] == first


def test_slack_messages_distinguish_failed_runs_from_failed_gates(
    client: Client, receiver: Receiver, deliver: Deliver
) -> None:
    register(client, receiver.url, ["run.finished"], format="slack")
    for severity, status in (("low", "completed"), ("high", "completed"), ("low", "failed")):
        run = client.start("web", targetUrl=f"https://a.example/{severity}/{status}")
        client.add(run, severity=severity)
        client.finish(run, status)
    deliver()
    titles = [each.json["text"].partition(":")[0] for each in receiver.received]
    assert titles == ["A run passed", "A run did not pass", "A run failed"]


def test_deliveries_of_a_run_share_its_verdict_and_block_no_slow_read(
    client: Client, receiver: Receiver, deliver: Deliver, monkeypatch: pytest.MonkeyPatch
) -> None:
    select, finished = messages.select_verdict, list[bool]()

    def select_during_a_slow_read(*given: Any) -> Any:
        reader = threading.Thread(target=client.read, args=("overview",), daemon=True)
        reader.start()
        reader.join(30)
        finished.append(not reader.is_alive())
        return select(*given)

    monkeypatch.setattr(messages, "select_verdict", select_during_a_slow_read)
    for number in range(20):
        register(client, f"{receiver.url}/{number}", ["run.finished"])
    client.finish(client.start("web"))
    deliver()
    assert len(receiver.accepted) == 20
    assert finished == [True]


# Delivery


def read_column(client: Client, name: str) -> Any:
    return rows_of(client.application, f"SELECT {name} FROM webhooks")[0][0]


def seconds_until_next(client: Client) -> int:
    return round((datetime.fromisoformat(read_column(client, "next_attempt_at")) - datetime.now(UTC)).total_seconds())


def test_webhook_gets_each_event_after_its_creation_once_in_order(
    client: Client, receiver: Receiver, deliver: Deliver
) -> None:
    client.finish(client.start("web"))
    before = event_ids(client)
    hook = register(client, receiver.url)
    for _ in range(3):
        run = client.start("web")
        client.submit(run, *(task() for _ in range(3)))
        client.finish(run)
        deliver()
    deliver()
    client.start("web")
    client.patch(f"{WEBHOOKS}/{hook['id']}", json={"state": "on", "from": "next"})  # skips only a rejected event
    deliver()
    assert receiver.events == event_ids(client)[len(before) :]


def test_failures_are_retried_with_backoff_until_the_webhook_is_off(
    client: Client, receiver: Receiver, hook: Hook, deliver: Deliver
) -> None:
    receiver.respond, pauses = respond_with(503), []
    client.start("web")
    client.start("web")
    for _ in range(7):
        deliver(later=True)
        deliver()  # not due
        pauses.append(seconds_until_next(client))
    assert pauses == [5, 300, 1800, 7200, 18_000, 36_000, 86_400]
    assert read_webhook(client, hook)["state"] == "on"
    deliver(later=True)
    assert (read_webhook(client, hook)["state"], read_webhook(client, hook)["lastError"]) == ("off", "503")
    deliver(later=True)
    assert receiver.events == [event_ids(client)[0]] * 8


@pytest.mark.parametrize(("start", "sent"), [("held", [1, 2, 3]), (None, [1, 2, 3]), ("next", [2, 3]), ("latest", [])])
def test_webhook_that_is_switched_on_continues_at_the_chosen_event(
    client: Client, receiver: Receiver, deliver: Deliver, start: str | None, sent: list[int]
) -> None:
    hook = register(client, receiver.url, ["run.started"])
    receiver.respond = respond_with(410)
    client.add(client.start("web"))
    for _ in range(2):
        client.start("web")
    deliver()
    assert (read_webhook(client, hook)["state"], read_webhook(client, hook)["lastError"]) == ("off", "gone 410")
    receiver.respond = Handler.accept
    switched = client.patch(f"{WEBHOOKS}/{hook['id']}", json={"state": "on", "from": start}).json
    assert (switched["state"], switched["lastError"]) == ("on", None)
    deliver()
    started = event_ids(client, type="run.started")
    assert receiver.events[1:] == [started[each - 1] for each in sent]
    assert (read_webhook(client, hook)["lastDeliveryAt"] is not None) == bool(sent)


@pytest.mark.parametrize(
    ("start", "status", "expected"),
    cases(latest=("latest", 204, 1), latest_of_a_failure=("latest", 500, 1), again=("held", 204, 3)),
)
def test_patch_during_a_delivery_is_not_overwritten_by_its_result(
    client: Client, receiver: Receiver, hook: Hook, deliver: Deliver, start: str, status: int, expected: int
) -> None:
    other = client_of(client.application, name="other")

    def patch_and_respond(handler: Handler, request: Received) -> None:
        assert other.patch(f"{WEBHOOKS}/{hook['id']}", json={"state": "on", "from": start}).status_code == 200
        respond_with(status)(handler, request)

    for _ in range(3):
        client.start("web")
    if start == "held":  # continues with the rejected event
        receiver.respond = respond_with(500)
        deliver()
    receiver.received, receiver.respond = [], patch_and_respond
    deliver(later=True)
    deliver()
    assert receiver.events == event_ids(client)[:expected]
    assert read_webhook(client, hook)["lastError"] is None


def test_retry_after_lengthens_the_pause(client: Client, receiver: Receiver, hook: Hook, deliver: Deliver) -> None:
    client.start("web")
    for retry_after, seconds in (("60", 60), ("1", 300), ("200000", 86_400)):
        receiver.respond = respond_with(429, **{"Retry-After": retry_after})
        deliver(later=True)
        assert seconds_until_next(client) == seconds


def test_event_whose_message_fails_switches_its_webhook_off(
    client: Client, hook: Hook, deliver: Deliver, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.start("web")
    monkeypatch.setattr(delivery.messages, "body_of", lambda *_: 1 / 0)
    for _ in range(8):
        deliver(later=True)
    assert (read_webhook(client, hook)["state"], read_webhook(client, hook)["lastError"]) == ("off", "failed here")


def test_skipped_events_move_the_cursor_only_after_many(
    client: Client, receiver: Receiver, deliver: Deliver, monkeypatch: pytest.MonkeyPatch
) -> None:
    register(client, receiver.url, ["run.finished"])
    run, cursor = client.start("web"), read_column(client, "history_seq")
    client.submit(run, *(task() for _ in range(300)))
    deliver()
    assert read_column(client, "history_seq") == cursor
    monkeypatch.setattr(delivery, "SKIPPED", 100)
    client.add(run)
    deliver()
    assert read_column(client, "history_seq") == cursor + 302
    client.finish(run)
    deliver()
    assert receiver.events == event_ids(client)[-1:]


def test_deleted_events_are_skipped_and_a_success_resets_the_attempts(
    client: Client, receiver: Receiver, hook: Hook, deliver: Deliver
) -> None:
    receiver.respond = respond_with(500)
    deleted = client.start("web")
    for _ in range(3):
        deliver(later=True)
    client.remove(f"runs/{deleted}")
    client.start("web")
    deliver(later=True)
    assert (read_column(client, "attempts"), read_webhook(client, hook)["lastError"]) == (1, "500")
    receiver.respond = Handler.accept
    deliver(later=True)
    assert receiver.events[-2:] == event_ids(client) * 2
    state = (
        read_column(client, "attempts"),
        read_column(client, "next_attempt_at"),
        read_webhook(client, hook)["lastError"],
    )
    assert state == (0, None, None)


def test_deleting_the_only_failed_event_clears_the_error(client: Client, receiver: Receiver, deliver: Deliver) -> None:
    hook = register(client, receiver.url, ["finding.created"])
    receiver.respond = respond_with(500)
    run = client.start("web")
    found = client.add(run)
    deliver()
    client.remove(f"tasks/{found}")
    client.finish(run)
    deliver(later=True)
    assert (read_webhook(client, hook)["lastError"], read_column(client, "attempts")) == (None, 0)


def test_hanging_delivery_blocks_no_other_webhook_or_request(
    client: Client, receiver: Receiver, deliverer: delivery.Deliverer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sending, "ATTEMPT_TIME", PATIENCE)
    monkeypatch.setattr(delivery, "LAST_ATTEMPTS", 0)
    go_on = threading.Event()
    receiver.respond = lambda handler, sent: go_on.wait(PATIENCE) if sent.path == "/slow" else handler.accept(sent)
    for path in ("/slow", "/hook"):  # a single thread would deliver them in this order
        register(client, receiver.url.replace("/hook", path))
    for _ in range(3):
        client.start("web")
    futures = deliverer.look()
    wait_until(lambda: receiver.accepted == event_ids(client) and len(receiver.received) > 3)
    assert [each.event for each in receiver.received if each.path == "/slow"] == event_ids(client)[:1]
    client.add(client.start("web"))
    assert len(client.read("tasks")["tasks"]) == 1
    assert not all(each.done() for each in futures)
    go_on.set()


def test_another_process_delivers_after_the_lease_expires_or_is_invalid(
    app: flask.Flask, client: Client, receiver: Receiver, hook: Hook
) -> None:
    with ExitStack() as stack:

        def deliver_with_another() -> delivery.Deliverer:
            client.start("web")
            deliverer = delivery.Deliverer(app.extensions["findings"])
            stack.callback(deliverer.stop)
            deliver_all(deliverer, client)
            return deliverer

        deliver_with_another()
        deliver_with_another()
        assert receiver.events == event_ids(client)[:1]
        for expiry in ("2026-01-01T00:00:00.000Z", findings_service.timestamp(ago=-3600)):
            execute(client, "UPDATE delivery_lease SET expires_at = ?", expiry)
            last = deliver_with_another()
            assert receiver.events == event_ids(client)
        last.stop()  # releases the lease
        deliver_with_another()
        assert receiver.events == event_ids(client)


def test_attempt_scheduled_more_than_a_day_ahead_is_due(
    client: Client, receiver: Receiver, hook: Hook, deliver: Deliver
) -> None:
    client.start("web")
    for ahead, events in ((23 * 3600, 0), (25 * 3600, 1)):
        execute(client, "UPDATE webhooks SET next_attempt_at = ?", findings_service.timestamp(ago=-ahead))
        deliver()
        assert len(receiver.received) == events


def test_process_that_lost_the_lease_stops_delivering(
    client: Client, receiver: Receiver, hook: Hook, deliver: Deliver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delivery, "LEASE", 0.9)
    client.start("web")
    deliver()
    monkeypatch.setattr(delivery, "LEASE", PATIENCE)
    later = findings_service.timestamp(ago=-PATIENCE)
    execute(client, "UPDATE delivery_lease SET holder = 'another', expires_at = ?", later)
    client.start("web")
    time.sleep(0.4)
    deliver()
    assert len(receiver.received) == 1


def test_nothing_is_written_without_webhooks_or_delivered_without_a_server(
    app: flask.Flask, client: Client, deliverer: delivery.Deliverer
) -> None:
    client.start("web")
    version = database_of(app).version
    assert not deliverer.look()
    deliverer.stop()
    assert database_of(app).version == version
    register(client, "https://hooks.invalid/")
    client.start("web")
    assert "findings-webhooks" not in [each.name for each in threading.enumerate()]


def test_result_of_a_delivery_is_stored_again_after_storage_errors(
    client: Client, receiver: Receiver, hook: Hook, deliver: Deliver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delivery, "STORE_AGAIN", 0.01)
    client.start("web")
    advance_cursor, errors = (
        delivery.advance_cursor,
        iter([findings_service.Busy(), findings_service.StorageFull("full")]),
    )

    def update(*given: Any, **columns: Any) -> None:
        for error in errors:
            raise error
        advance_cursor(*given, **columns)

    monkeypatch.setattr(delivery, "advance_cursor", update)
    deliver()
    deliver()
    assert receiver.events == event_ids(client)


@app_with(metrics="1")
def test_check_metrics_and_log_report_a_failing_webhook_without_its_url(
    client: Client, receiver: Receiver, deliver: Deliver, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    hook = register(client, f"{receiver.url}/private-words")
    receiver.respond = respond_with(410)
    client.start("web")
    deliver()
    assert 'findings_webhooks{state="off"} 1.0' in client.get("/metrics").text
    result = invoke("check", "--db", str(tmp_path / "findings.db"))
    assert result.exit_code == 0
    assert f"webhook {hook['id']} of client 'default' has failed once (gone 410) and is off" in result.stderr
    assert f"webhook {hook['id']} of client default is off: gone 410" in caplog.text
    assert not [word for word in ("private", "127.0.0.1", hook["secret"]) if word in caplog.text]


# Failures, kills and restarts


def respond_unreliably() -> Callable[[Handler, Received], object]:
    """Return a function that accepts 60 % of the requests, and fails in various ways otherwise."""
    dice, failures = (
        random.Random(7),
        [respond_with(500), respond_with(302, Location="/elsewhere"), hang, lambda *_: None],
    )

    def respond(handler: Handler, request: Received) -> None:
        responder = Handler.accept if dice.random() < 0.6 else dice.choice(failures)
        responder(handler, request)

    return respond


def report_runs(server: Server, key: str, runs: int) -> None:
    """Start and finish runs, each with three findings."""
    for _ in range(runs):
        run = server.request("POST", f"{API}/runs", {"projectType": "web"}, key).json["id"]
        found = [task(externalId=f"{run}-{each}") for each in range(3)]
        assert server.request("POST", f"{API}/runs/{run}/tasks", {"tasks": found}, key).status_code == 201
        assert server.request("PATCH", f"{API}/runs/{run}", {"status": "completed"}, key).status_code == 200


@pytest.mark.signals
def test_delivery_that_hangs_is_repeated_after_a_restart(serve: Callable[..., Server], receiver: Receiver) -> None:
    program = program_with(LOOK_PAUSE=0.05, ATTEMPT_TIME=PATIENCE)
    start = partial(serve, program=program, FINDINGS_WEBHOOK_PRIVATE="1")
    server, receiver.respond = start(), hang
    assert server.request("POST", WEBHOOKS, {"url": receiver.url, "types": ALL_TYPES}).status_code == 201
    server.start_run()
    wait_until(lambda: receiver.received)
    with at_most(60):
        assert server.stop() == 0
    receiver.respond = Handler.accept
    start(until="Findings Task Service .*\n")
    wait_until(lambda: len(receiver.received) == 2)
    assert receiver.events[0] == receiver.events[1]


@pytest.mark.parametrize("workers", ["1", "2"])
def test_failures_lose_no_event_and_each_kill_repeats_at_most_one(
    serve: Callable[..., Server], receiver: Receiver, workers: str
) -> None:
    second, pauses = 2.0, (0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 2.0)
    times = {"LEASE": second, "ATTEMPT_TIME": second / 2, "LAST_ATTEMPTS": second / 2}
    program = program_with(LOOK_PAUSE=0.05, RETRY_PAUSES=pauses, **times)
    start = partial(serve, program=program, FINDINGS_WEBHOOK_PRIVATE="1", FINDINGS_WORKERS=workers)
    server = start()
    key = server.key
    server.request("POST", f"{API}/project-types", {"name": "web"}, key)
    assert server.request("POST", WEBHOOKS, {"url": receiver.url, "types": ALL_TYPES}, key).status_code == 201
    receiver.respond = respond_unreliably()
    signals = (signal.SIGKILL, signal.SIGTERM, signal.SIGKILL)
    for signal_sent in signals:
        report_runs(server, key, 4)
        count = len(receiver.received)
        wait_until(lambda count=count: len(receiver.received) > count + 3)
        receiver.stop()
        time.sleep(0.3)
        receiver.start()
        server.stop(signal_sent)
        server = start(until="Findings Task Service .*\n")
    report_runs(server, key, 2)
    expected = [each["id"] for each in server.request("GET", f"{API}/events?limit=1000", key=key).json["events"]]
    wait_until(lambda: receiver.accepted[-1:] == expected[-1:])
    assert len(expected) == 14 * 5
    assert list(dict.fromkeys(receiver.accepted)) == expected
    assert len(receiver.accepted) - len(expected) <= signals.count(signal.SIGKILL)
    positions = [expected.index(each) for each in receiver.events]
    assert positions == sorted(positions)
