"""Webhooks: what may be one, what it is sent, and that each event arrives, in order."""

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
HOOKS = f"{API}/webhooks"
ALL = [
    *("finding.created", "finding.changed", "finding.reopened", "finding.status", "finding.assigned"),
    *("finding.commented", "run.started", "run.finished"),
]


@dataclass
class Received:
    """A request that a receiver got, and whether it was told that all is well."""

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
    """Notes a request, and answers as its receiver says."""

    wbufsize = 0  # what drips goes out at once
    responses: ClassVar = dict.fromkeys(HTTPStatus, ("Private-Words", ""))  # which nobody is to repeat

    def do_POST(self) -> None:
        headers = {name.lower(): value for name, value in self.headers.items()}
        receiver: Receiver = self.server.receiver  # type: ignore[attr-defined]
        receiver.received.append(Received(self.path, headers, self.body()))
        with suppress(OSError):
            receiver.answer(self, receiver.received[-1])

    def accept(self, request: Received) -> None:
        request.accepted = True
        self.reply(204)


class Receiver:
    """Something on this machine that webhooks are posted to, which can be stopped and started again."""

    def __init__(self) -> None:
        self.received: list[Received] = []
        self.answer: Callable[[Handler, Received], object] = Handler.accept
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
    made = Receiver()
    yield made
    made.stop()


def with_status(status: int, **headers: str) -> Callable[[Handler, Received], None]:
    """Answer with a status, and with a body that nobody is to repeat."""
    return lambda handler, _: handler.reply(status, b"private words", **headers)


def app_with(**settings: str) -> pytest.MarkDecorator:
    """Have a test's application have other settings."""
    return pytest.mark.parametrize("app", [settings], ids=[""], indirect=True)


@pytest.fixture
def app(make_app: Callable[..., flask.Flask], request: pytest.FixtureRequest) -> flask.Flask:
    """An application whose hooks may be on this machine, unless `app_with` says otherwise."""
    return make_app(**{"webhook_private": "1"} | getattr(request, "param", {}))


@pytest.fixture
def client(app: flask.Flask) -> Client:
    """A client with a project type."""
    made = client_of(app)
    made.register("web")
    return made


@pytest.fixture
def hook(client: Client, receiver: Receiver) -> Hook:
    """A hook at the receiver, of all events."""
    return register(client, receiver.url)


@pytest.fixture
def deliverer(app: flask.Flask) -> Iterator[delivery.Deliverer]:
    """What delivers for the application, when it is asked to."""
    made = delivery.Deliverer(app.extensions["findings"])
    yield made
    made.stop()


@pytest.fixture
def deliver(deliverer: delivery.Deliverer, client: Client) -> Deliver:
    """What delivers all that is due, `later` also what is to be tried again, and returns when that is done."""
    return partial(settle, deliverer, client)


def store(client: Client, sql: str, *values: Any) -> None:
    """Change what is stored, behind the service's back."""
    with database_of(client.application).transaction() as connection:
        connection.execute(sql, values)


def settle(deliverer: delivery.Deliverer, client: Client, *, later: bool = False) -> None:
    if later:
        store(client, "UPDATE webhooks SET next_attempt_at = '2026-01-01T00:00:00.000Z'")
    done, others = wait(deliverer.look(), PATIENCE)
    assert not others
    assert [each.result() for each in done] == [None] * len(done)


def register(client: Client, url: str, types: Sequence[str] = ALL, **fields: Any) -> Hook:
    """Make a webhook."""
    answer = client.post(HOOKS, json={"url": url, "types": [*types], **fields})
    assert answer.status_code == 201, answer.text
    return answer.json


def shown(client: Client, hook: Hook) -> dict[str, Any]:
    return client.read(f"webhooks/{hook['id']}")


def fed(client: Client, **query: Any) -> list[str]:
    """Return the ids of all events, oldest first."""
    return [each["id"] for each in client.read("events", limit=1000, **query)["events"]]


# Hooks


def test_a_new_hook_shows_its_secret_this_once_and_is_gone_with_that_answer(client: Client) -> None:
    answer, again = (post(client, "webhooks", {"url": "https://hooks.invalid/a"}) for _ in range(2))
    hook = answer.json
    assert (answer.status_code, answer.headers["Location"]) == (201, f"{HOOKS}/{hook['id']}")
    secret = hook.pop("secret")
    assert secret.startswith("whsec_")
    assert secret not in rows_of(client.application, "SELECT body FROM idempotent_answers")[0][0]
    assert hook["types"] == ["run.finished"]
    assert (hook["state"], hook["format"], hook["lastError"], hook["lastDeliveryAt"]) == ("on", "json", None, None)
    assert (again.status_code, again.json) == (201, hook)
    assert shown(client, hook) == hook
    assert client.read("webhooks") == {"webhooks": [hook]}
    client.remove(f"webhooks/{hook['id']}")
    assert client.get(f"{HOOKS}/{hook['id']}").status_code == 404
    assert_problem(post(client, "webhooks", {"url": "https://hooks.invalid/a"}), 409, "idempotency_conflict")


NO_HOOK: tuple[tuple[dict[str, Any], set[str]], ...] = (
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


def test_what_cannot_be_a_hook_is_refused_with_all_its_problems(client: Client) -> None:
    for fields, pointers in NO_HOOK:
        refused = client.post(HOOKS, json={"url": "https://hooks.invalid/"} | fields)
        problem = assert_problem(refused, 422, "validation_failed")
        assert {each["pointer"] for each in problem["errors"]} == pointers, fields


def test_a_client_has_twenty_hooks_at_most(client: Client) -> None:
    for _ in range(20):
        register(client, "https://hooks.invalid/")
    refused = client.post(HOOKS, json={"url": "https://hooks.invalid/"})
    assert "20; delete one" in assert_problem(refused, 422, "validation_failed", "/url")["errors"][0]["detail"]


def test_a_hook_can_be_switched_on_alone(client: Client) -> None:
    path = f"{HOOKS}/{register(client, 'https://hooks.invalid/')['id']}"
    for body in ({"state": "off"}, {"state": "on", "from": "first"}, {}):
        assert_problem(client.patch(path, json=body), 422, "validation_failed")
    assert client.patch(path, json={"state": "on"}).json["state"] == "on"


# Where a hook may be

PRIVATE = (
    *("127.0.0.1", "10.1.2.3", "172.16.0.1", "192.168.1.1", "169.254.169.254", "100.64.0.1", "0.0.0.0", "224.0.0.1"),
    *("255.255.255.255", "240.0.0.1", "192.0.2.1", "198.18.0.1", "::1", "::", "fe80::1", "fc00::1", "fec0::1"),
    *("ff0e::1", "2001:db8::1", "::ffff:127.0.0.1", "::ffff:10.0.0.1", "::127.0.0.1", "2002:7f00:1::", "2002:a00:1::1"),
    *("192.0.0.192", "192.88.99.1", "168.63.129.16", "3fff::1", "2a00::5efe:7f00:1", "2a00::200:5efe:a00:1"),
    *("64:ff9b::7f00:1", "64:ff9b::a00:1", "64:ff9b:1::808:808", "2001:0:7f00:1::", "2001:0:808:808::f5ff:fffe"),
)
PUBLIC = ("8.8.8.8", "2606:4700::1111", "::ffff:8.8.8.8", "64:ff9b::808:808", "2002:808:808::1")


def test_an_address_is_public_that_all_reach() -> None:
    assert [each for each in (*PRIVATE, *PUBLIC) if sending.is_public(ipaddress.ip_address(each))] == [*PUBLIC]


class Names:
    """Stands for DNS: each look-up of a name gets the next of its answers, and what is an address stays one."""

    def __init__(self, patch: pytest.MonkeyPatch, **answers: list[list[str]]) -> None:
        self.answers, self.asked = answers, list[str]()
        self._own = socket.getaddrinfo
        patch.setattr(socket, "getaddrinfo", self.look_up)

    def look_up(self, host: str, *rest: Any, **more: Any) -> Any:
        if not str(host).endswith(".example"):
            return self._own(host, *rest, **more)
        self.asked.append(host)
        found = self.answers[host.removesuffix(".example")]
        addresses = found.pop(0) if len(found) > 1 else found[0]
        return [each for address in addresses for each in self._own(address, *rest, **more)]


@app_with(webhook_private="0")
def test_a_hook_at_a_private_address_is_refused_and_one_that_leads_there_later_not_connected_to(
    client: Client, monkeypatch: pytest.MonkeyPatch, receiver: Receiver
) -> None:
    Names(monkeypatch, two=[["8.8.8.8", "::ffff:10.0.0.1"]], moved=[["8.8.8.8"], ["127.0.0.1"]])
    for host in (
        *("127.0.0.1", "localhost", "[::1]", "[::ffff:127.0.0.1]", "2130706433", "0x7f.1", "127.1", "169.254.169.254"),
        "two.example",  # of which one address is enough
    ):
        refused = client.post(HOOKS, json={"url": f"http://{host}:9/x"})
        detail = assert_problem(refused, 422, "validation_failed", "/url")["errors"][0]["detail"]
        assert "FINDINGS_WEBHOOK_PRIVATE=1" in detail, host
    assert not findings_service.Settings().webhook_private
    hook = register(client, f"http://moved.example:{receiver.port}/")
    tried = client.post(f"{HOOKS}/{hook['id']}/test").json
    assert tried == {"delivered": False, "status": None, "error": "address not allowed"}
    assert not receiver.received


SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"


def send(url: str) -> sending.DeliveryResult:
    """Post something to a URL, which may be one of this machine."""
    return sending.send(url, SECRET, "e", b"{}", private=True)


def test_what_is_judged_is_what_is_connected_to_the_next_where_one_is_dead(
    monkeypatch: pytest.MonkeyPatch, receiver: Receiver
) -> None:
    names = Names(monkeypatch, once=[["127.0.0.2", "127.0.0.1"], ["8.8.8.8"]])
    assert send(f"http://once.example:{receiver.port}/a?b=c#d") == sending.DeliveryResult(204)
    assert names.asked == ["once.example"]
    (got,) = receiver.received
    assert (got.path, got.headers["host"]) == ("/a?b=c", f"once.example:{receiver.port}")


# One POST


def hang(handler: Handler, _: Received) -> None:
    handler.rfile.read(1)


def drip(handler: Handler, _: Received) -> None:
    handler.wfile.write(b"HTTP/1.1 200 OK\r\n")
    while True:
        handler.wfile.write(b"X")
        time.sleep(0.05)


def never_end(handler: Handler, _: Received) -> None:
    handler.send_response(200)
    handler.end_headers()
    drip(handler, _)


ANSWERS = cases(
    ok=(with_status(200), 200, None),
    no_content=(Handler.accept, 204, None),
    endless_body=(never_end, 200, None),
    error=(with_status(500), 500, "500"),
    gone=(with_status(410), 410, "gone 410"),
    redirect=(with_status(302, Location="http://127.0.0.1:9/"), 302, "redirect 302"),
    not_modified=(with_status(304), 304, "304"),
    nonsense=(lambda handler, _: handler.wfile.write(b"private words\r\n\r\n"), None, "no answer"),
    nothing=(lambda *_: None, None, "no answer"),
    hanging=(hang, None, "timeout"),
    slow_head=(drip, None, "timeout"),
    late=(lambda handler, got: (time.sleep(0.5), handler.accept(got)), 204, None),
)


@pytest.mark.parametrize(("answer", "status", "error"), ANSWERS)
def test_an_attempt_is_told_by_its_status_or_a_kind_of_failure_and_has_its_time_in_all(
    client: Client, receiver: Receiver, monkeypatch: pytest.MonkeyPatch, answer: Any, status: Any, error: Any
) -> None:
    monkeypatch.setattr(sending, "ATTEMPT_TIME", 1.0 if error == "timeout" else PATIENCE)
    receiver.answer, hook = answer, register(client, receiver.url)
    began = time.monotonic()
    with at_most(60):
        tried = client.post(f"{HOOKS}/{hook['id']}/test").json
    assert tried == {"delivered": error is None, "status": status, "error": error}
    assert time.monotonic() > began + 0.9 or error != "timeout"
    assert [each.json["type"] for each in receiver.received] == ["webhook.test"]


def test_what_nobody_answers_at_is_told_by_its_kind_and_no_proxy_is_asked(
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


def test_the_certificate_is_that_of_the_name(
    tmp_path: Path, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    Names(monkeypatch, hooks=[["127.0.0.1"]], other=[["127.0.0.1"]])
    names = ("-subj", "/CN=hooks.example", "-addext", "subjectAltName=DNS:hooks.example")
    files = ("-keyout", tmp_path / "key", "-out", tmp_path / "pem")
    line = [installed_program("openssl"), "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", *names, *files]
    subprocess.run(line, check=True, capture_output=True)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(tmp_path / "pem", tmp_path / "key")
    receiver.server.socket = context.wrap_socket(receiver.server.socket, server_side=True)
    right, wrong = (f"https://{name}.example:{receiver.port}/" for name in ("hooks", "other"))
    assert send(right).error == "TLS"  # nobody trusts it
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "pem"))
    assert (send(right).error, send(wrong).error) == (None, "TLS")


def test_a_retry_after_is_seconds_or_a_date_up_to_a_day() -> None:
    in_an_hour = format_datetime(datetime.now(UTC) + timedelta(hours=1), usegmt=True)
    past, far = "Wed, 21 Oct 2015 07:28:00 GMT", "Wed, 21 Oct 2065 07:28:00 GMT"
    asked = {"": 0, "soon": 0, "120": 120, "999999999999": 86_400, "-1": 0, past: 0, far: 86_400}
    assert {text: sending.seconds_asked(text) for text in asked} == asked
    assert sending.seconds_asked(in_an_hour) == pytest.approx(3600, abs=60)


def test_a_test_moves_nothing_and_is_made_once_for_one_key(
    client: Client, receiver: Receiver, hook: Hook, deliver: Deliver
) -> None:
    receiver.answer = with_status(500)
    for _ in range(2):
        assert post(client, f"webhooks/{hook['id']}/test", None).status_code == 200
    deliver()
    assert len(receiver.received) == 1
    assert shown(client, hook) == {k: v for k, v in hook.items() if k != "secret"}


# What is sent


def test_a_delivery_is_what_the_standards_own_library_and_the_handbooks_receiver_take(
    client: Client, receiver: Receiver, hook: Hook, deliver: Deliver
) -> None:
    client.start("web", metadata={"name": "Zoë"})
    deliver()
    (got,) = receiver.received
    event = client.read("events")["events"][-1]
    told = {"type": "run.started", "timestamp": event["at"], "data": event}
    assert Webhook(hook["secret"]).verify(got.body, got.headers) == told
    assert (got.event, got.headers["content-type"]) == (event["id"], "application/json")
    (text,) = [text for _, kind, text in blocks_of(HERE / "docs" / "api.md") if text.startswith("# receiver.py\n")]
    names: dict[str, Any] = {}
    exec(text, names)
    assert names["is_ours"](hook["secret"], got.headers, got.body)
    assert not names["is_ours"](SECRET, got.headers, got.body)
    assert not names["is_ours"](hook["secret"], got.headers, got.body + b" ")
    assert not names["is_ours"](hook["secret"], got.headers | {"webhook-timestamp": "1614265330"}, got.body)


@app_with(base_url="https://tools.example/findings")
def test_a_finished_run_brings_its_gate_and_the_five_worst_new_findings(
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


def test_a_hook_gets_what_its_filters_leave_and_no_links_without_a_base_url(
    client: Client, receiver: Receiver, deliver: Deliver
) -> None:
    client.register("cli")
    for name, (fields, _) in FILTERED.items():
        register(client, f"{receiver.url}/{name}", **{"types": ALL, **fields})
    run = client.start("web", targetUrl="https://a.example/")
    client.submit(run, task(severity="low"), task(severity="high"))
    client.finish(run)
    other = client.start("cli")
    client.add(other, severity="low")
    client.finish(other)
    deliver()
    names = dict(zip(fed(client), ["s1", "low", "high", "f1", "s2", "other", "f2"], strict=True))
    for name, (_, expected) in FILTERED.items():
        assert [names[each.event] for each in receiver.received if each.path == f"/hook/{name}"] == expected, name
    assert b'"link"' not in b"".join(each.body for each in receiver.received)


def test_severity_is_judged_as_it_stands_at_sending(client: Client, receiver: Receiver, deliver: Deliver) -> None:
    register(client, receiver.url, ["finding.created"], minSeverity="high")
    for severity in ("high", "low"):
        client.add(client.start("web"), externalId="x", severity=severity)
    deliver()
    assert not receiver.received


@app_with(base_url="https://tools.example/f")
def test_slack_gets_a_text_for_each_type_of_event_without_mentions_or_links_of_the_findings_own(
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
    assert {each["type"] for each in client.read("events")["events"]} == {*ALL}
    assert receiver.events == fed(client)
    texts = [each.json["text"] for each in receiver.received]
    escaped = (
        f"<https://tools.example/f/#/findings/{found}|&lt;!channel&gt; &amp; &lt;https://evil.example|us&gt; @here>"
    )
    assert texts[1] == f"New low {escaped} (web of https://a.example/?&lt;!here&gt;)"
    assert texts[-1].splitlines()[1] == f"• low {escaped}"
    assert all("web" in text and "None" not in text and text[0] != " " for text in texts)
    assert all("<!" not in text and "<@" not in text and text.count("<") <= 2 for text in texts)


def test_new_findings_are_those_beside_the_baseline_of_the_runs_verdict(
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
    begun = [each.json["text"].partition(":")[0] for each in receiver.received]
    assert begun == ["A run passed", "A run did not pass", "A run failed"]


def test_hooks_share_the_verdict_on_a_run_and_no_slow_read_waits_for_it(
    client: Client, receiver: Receiver, deliver: Deliver, monkeypatch: pytest.MonkeyPatch
) -> None:
    select, answered = messages.select_verdict, list[bool]()

    def select_during_a_slow_read(*given: Any) -> Any:
        reader = threading.Thread(target=client.read, args=("overview",), daemon=True)
        reader.start()
        reader.join(30)
        answered.append(not reader.is_alive())
        return select(*given)

    monkeypatch.setattr(messages, "select_verdict", select_during_a_slow_read)
    for number in range(20):
        register(client, f"{receiver.url}/{number}", ["run.finished"])
    client.finish(client.start("web"))
    deliver()
    assert len(receiver.accepted) == 20
    assert answered == [True]


# When


def column(client: Client, name: str) -> Any:
    """Return a column of the one hook that there is."""
    return rows_of(client.application, f"SELECT {name} FROM webhooks")[0][0]


def seconds_until_next(client: Client) -> int:
    return round((datetime.fromisoformat(column(client, "next_attempt_at")) - datetime.now(UTC)).total_seconds())


def test_a_hook_begins_behind_its_creation_and_gets_each_event_once_in_order(
    client: Client, receiver: Receiver, deliver: Deliver
) -> None:
    client.finish(client.start("web"))
    before = fed(client)
    hook = register(client, receiver.url)
    for _ in range(3):
        run = client.start("web")
        client.submit(run, *(task() for _ in range(3)))
        client.finish(run)
        deliver()
    deliver()
    client.start("web")
    client.patch(f"{HOOKS}/{hook['id']}", json={"state": "on", "from": "next"})  # leaves out what was refused alone
    deliver()
    assert receiver.events == fed(client)[len(before) :]


def test_a_failure_is_tried_again_after_growing_pauses_and_then_the_hook_is_off(
    client: Client, receiver: Receiver, hook: Hook, deliver: Deliver
) -> None:
    receiver.answer, pauses = with_status(503), []
    client.start("web")
    client.start("web")
    for _ in range(7):
        deliver(later=True)
        deliver()  # not due
        pauses.append(seconds_until_next(client))
    assert pauses == [5, 300, 1800, 7200, 18_000, 36_000, 86_400]
    assert shown(client, hook)["state"] == "on"
    deliver(later=True)
    assert (shown(client, hook)["state"], shown(client, hook)["lastError"]) == ("off", "503")
    deliver(later=True)
    assert receiver.events == [fed(client)[0]] * 8


@pytest.mark.parametrize(("start", "left"), [("held", [1, 2, 3]), (None, [1, 2, 3]), ("next", [2, 3]), ("latest", [])])
def test_a_hook_that_is_off_keeps_its_place_and_goes_on_where_it_is_told(
    client: Client, receiver: Receiver, deliver: Deliver, start: str | None, left: list[int]
) -> None:
    hook = register(client, receiver.url, ["run.started"])
    receiver.answer = with_status(410)
    client.add(client.start("web"))
    for _ in range(2):
        client.start("web")
    deliver()
    assert (shown(client, hook)["state"], shown(client, hook)["lastError"]) == ("off", "gone 410")
    receiver.answer = Handler.accept
    switched = client.patch(f"{HOOKS}/{hook['id']}", json={"state": "on", "from": start}).json
    assert (switched["state"], switched["lastError"]) == ("on", None)
    deliver()
    started = fed(client, type="run.started")
    assert receiver.events[1:] == [started[each - 1] for each in left]
    assert (shown(client, hook)["lastDeliveryAt"] is not None) == bool(left)


@pytest.mark.parametrize(
    ("start", "status", "left"),
    cases(latest=("latest", 204, 1), latest_of_a_failure=("latest", 500, 1), again=("held", 204, 3)),
)
def test_what_somebody_decides_during_a_delivery_stands(
    client: Client, receiver: Receiver, hook: Hook, deliver: Deliver, start: str, status: int, left: int
) -> None:
    other = client_of(client.application, name="other")

    def decide(handler: Handler, got: Received) -> None:
        assert other.patch(f"{HOOKS}/{hook['id']}", json={"state": "on", "from": start}).status_code == 200
        with_status(status)(handler, got)

    for _ in range(3):
        client.start("web")
    if start == "held":  # and goes on with what was refused
        receiver.answer = with_status(500)
        deliver()
    receiver.received, receiver.answer = [], decide
    deliver(later=True)
    deliver()
    assert receiver.events == fed(client)[:left]
    assert shown(client, hook)["lastError"] is None


def test_a_receiver_may_ask_for_a_longer_pause(
    client: Client, receiver: Receiver, hook: Hook, deliver: Deliver
) -> None:
    client.start("web")
    for asked, seconds in (("60", 60), ("1", 300), ("200000", 86_400)):
        receiver.answer = with_status(429, **{"Retry-After": asked})
        deliver(later=True)
        assert seconds_until_next(client) == seconds


def test_an_event_that_cannot_be_told_switches_its_hook_off_in_the_end(
    client: Client, hook: Hook, deliver: Deliver, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.start("web")
    monkeypatch.setattr(delivery.messages, "body_of", lambda *_: 1 / 0)
    for _ in range(8):
        deliver(later=True)
    assert (shown(client, hook)["state"], shown(client, hook)["lastError"]) == ("off", "failed here")


def test_what_filters_leave_out_is_passed_without_a_write(
    client: Client, receiver: Receiver, deliver: Deliver, monkeypatch: pytest.MonkeyPatch
) -> None:
    register(client, receiver.url, ["run.finished"])
    run, place = client.start("web"), column(client, "history_seq")
    client.submit(run, *(task() for _ in range(300)))
    deliver()
    assert column(client, "history_seq") == place
    monkeypatch.setattr(delivery, "SKIPPED", 100)
    client.add(run)
    deliver()
    assert column(client, "history_seq") == place + 302
    client.finish(run)
    deliver()
    assert receiver.events == fed(client)[-1:]


def test_a_hook_goes_on_behind_an_event_that_is_deleted_and_a_success_forgets_what_failed(
    client: Client, receiver: Receiver, hook: Hook, deliver: Deliver
) -> None:
    receiver.answer = with_status(500)
    gone = client.start("web")
    for _ in range(3):
        deliver(later=True)
    client.remove(f"runs/{gone}")
    client.start("web")
    deliver(later=True)
    assert (column(client, "attempts"), shown(client, hook)["lastError"]) == (1, "500")
    receiver.answer = Handler.accept
    deliver(later=True)
    assert receiver.events[-2:] == fed(client) * 2
    left = (column(client, "attempts"), column(client, "next_attempt_at"), shown(client, hook)["lastError"])
    assert left == (0, None, None)


def test_a_hook_whose_only_event_is_deleted_has_nothing_that_failed(
    client: Client, receiver: Receiver, deliver: Deliver
) -> None:
    hook = register(client, receiver.url, ["finding.created"])
    receiver.answer = with_status(500)
    run = client.start("web")
    found = client.add(run)
    deliver()
    client.remove(f"tasks/{found}")
    client.finish(run)
    deliver(later=True)
    assert (shown(client, hook)["lastError"], column(client, "attempts")) == (None, 0)


def test_neither_another_hook_nor_a_request_waits_for_a_delivery_that_hangs(
    client: Client, receiver: Receiver, deliverer: delivery.Deliverer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sending, "ATTEMPT_TIME", PATIENCE)
    monkeypatch.setattr(delivery, "LAST_ATTEMPTS", 0)
    go_on = threading.Event()
    receiver.answer = lambda handler, got: go_on.wait(PATIENCE) if got.path == "/slow" else handler.accept(got)
    for path in ("/slow", "/hook"):  # in this order, in which one thread alone would have them
        register(client, receiver.url.replace("/hook", path))
    for _ in range(3):
        client.start("web")
    under_way = deliverer.look()
    wait_until(lambda: receiver.accepted == fed(client) and len(receiver.received) > 3)
    assert [each.event for each in receiver.received if each.path == "/slow"] == fed(client)[:1]
    client.add(client.start("web"))
    assert len(client.read("tasks")["tasks"]) == 1
    assert not all(each.done() for each in under_way)
    go_on.set()


def test_one_process_delivers_and_another_takes_over_once_its_lease_is_over_or_of_a_time_to_come(
    app: flask.Flask, client: Client, receiver: Receiver, hook: Hook
) -> None:
    with ExitStack() as stack:

        def another() -> delivery.Deliverer:
            client.start("web")
            made = delivery.Deliverer(app.extensions["findings"])
            stack.callback(made.stop)
            settle(made, client)
            return made

        another()
        another()
        assert receiver.events == fed(client)[:1]
        for over in ("2026-01-01T00:00:00.000Z", findings_service.timestamp(ago=-3600)):
            store(client, "UPDATE delivery_lease SET expires_at = ?", over)
            last = another()
            assert receiver.events == fed(client)
        last.stop()  # which gives it back
        another()
        assert receiver.events == fed(client)


def test_an_attempt_that_was_put_off_while_the_clock_was_ahead_is_due(
    client: Client, receiver: Receiver, hook: Hook, deliver: Deliver
) -> None:
    client.start("web")
    for ahead, events in ((23 * 3600, 0), (25 * 3600, 1)):
        store(client, "UPDATE webhooks SET next_attempt_at = ?", findings_service.timestamp(ago=-ahead))
        deliver()
        assert len(receiver.received) == events


def test_who_has_lost_the_lease_delivers_no_more(
    client: Client, receiver: Receiver, hook: Hook, deliver: Deliver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delivery, "LEASE", 0.9)
    client.start("web")
    deliver()
    monkeypatch.setattr(delivery, "LEASE", PATIENCE)
    later = findings_service.timestamp(ago=-PATIENCE)
    store(client, "UPDATE delivery_lease SET holder = 'another', expires_at = ?", later)
    client.start("web")
    time.sleep(0.4)
    deliver()
    assert len(receiver.received) == 1


def test_without_hooks_nothing_is_written_and_an_application_delivers_nothing_by_itself(
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


def test_what_cannot_be_stored_is_stored_later(
    client: Client, receiver: Receiver, hook: Hook, deliver: Deliver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delivery, "STORE_AGAIN", 0.01)
    client.start("web")
    own, refusals = delivery.move_on, iter([findings_service.Busy(), findings_service.StorageFull("full")])

    def update(*given: Any, **columns: Any) -> None:
        for error in refusals:
            raise error
        own(*given, **columns)

    monkeypatch.setattr(delivery, "move_on", update)
    deliver()
    deliver()
    assert receiver.events == fed(client)


@app_with(metrics="1")
def test_a_failing_hook_is_told_of_by_check_metrics_and_a_log_without_its_url(
    client: Client, receiver: Receiver, deliver: Deliver, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    hook = register(client, f"{receiver.url}/private-words")
    receiver.answer = with_status(410)
    client.start("web")
    deliver()
    assert 'findings_webhooks{state="off"} 1.0' in client.get("/metrics").text
    told = invoke("check", "--db", str(tmp_path / "findings.db"))
    assert told.exit_code == 0
    assert f"webhook {hook['id']} of client 'default' has failed once (gone 410) and is off" in told.stderr
    assert f"webhook {hook['id']} of client default is off: gone 410" in caplog.text
    assert not [word for word in ("private", "127.0.0.1", hook["secret"]) if word in caplog.text]


# A night


def failing_often() -> Callable[[Handler, Received], object]:
    """Fail in all the ways that there are, and take some of what comes."""
    dice, ways = random.Random(7), [with_status(500), with_status(302, Location="/elsewhere"), hang, lambda *_: None]

    def answer(handler: Handler, got: Received) -> None:
        way = Handler.accept if dice.random() < 0.6 else dice.choice(ways)
        way(handler, got)

    return answer


def work(server: Server, key: str, runs: int) -> None:
    """Scan: start a run, submit what it found and finish it, some times."""
    for _ in range(runs):
        run = server.request("POST", f"{API}/runs", {"projectType": "web"}, key).json["id"]
        found = [task(externalId=f"{run}-{each}") for each in range(3)]
        assert server.request("POST", f"{API}/runs/{run}/tasks", {"tasks": found}, key).status_code == 201
        assert server.request("PATCH", f"{API}/runs/{run}", {"status": "completed"}, key).status_code == 200


@pytest.mark.signals
def test_a_stop_leaves_what_hangs_for_the_next_start(serve: Callable[..., Server], receiver: Receiver) -> None:
    patient = program_with(LOOK_PAUSE=0.05, ATTEMPT_TIME=PATIENCE)
    start = partial(serve, program=patient, FINDINGS_WEBHOOK_PRIVATE="1")
    server, receiver.answer = start(), hang
    assert server.request("POST", HOOKS, {"url": receiver.url, "types": ALL}).status_code == 201
    server.start_run()
    wait_until(lambda: receiver.received)
    with at_most(60):
        assert server.stop() == 0
    receiver.answer = Handler.accept
    start(until="Findings Task Service .*\n")
    wait_until(lambda: len(receiver.received) == 2)
    assert receiver.events[0] == receiver.events[1]


@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_night_of_failures_and_kills_loses_nothing_and_doubles_only_what_was_under_way(
    serve: Callable[..., Server], receiver: Receiver, workers: str
) -> None:
    second, pauses = 2.0, (0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 2.0)
    times = {"LEASE": second, "ATTEMPT_TIME": second / 2, "LAST_ATTEMPTS": second / 2}
    hasty = program_with(LOOK_PAUSE=0.05, RETRY_PAUSES=pauses, **times)
    start = partial(serve, program=hasty, FINDINGS_WEBHOOK_PRIVATE="1", FINDINGS_WORKERS=workers)
    server = start()
    key = server.key
    server.request("POST", f"{API}/project-types", {"name": "web"}, key)
    assert server.request("POST", HOOKS, {"url": receiver.url, "types": ALL}, key).status_code == 201
    receiver.answer = failing_often()
    ends = (signal.SIGKILL, signal.SIGTERM, signal.SIGKILL)
    for how in ends:
        work(server, key, 4)
        seen = len(receiver.received)
        wait_until(lambda seen=seen: len(receiver.received) > seen + 3)
        receiver.stop()
        time.sleep(0.3)
        receiver.start()
        server.stop(how)
        server = start(until="Findings Task Service .*\n")
    work(server, key, 2)
    expected = [each["id"] for each in server.request("GET", f"{API}/events?limit=1000", key=key).json["events"]]
    wait_until(lambda: receiver.accepted[-1:] == expected[-1:])
    assert len(expected) == 14 * 5
    assert list(dict.fromkeys(receiver.accepted)) == expected
    assert len(receiver.accepted) - len(expected) <= ends.count(signal.SIGKILL)
    places = [expected.index(each) for each in receiver.events]
    assert places == sorted(places)
