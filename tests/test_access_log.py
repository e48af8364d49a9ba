"""The access log: its lines, and the secrets that it omits."""

from __future__ import annotations

import json
import re
from collections.abc import Callable

import flask
import pytest

from tests.clients import API, KEY, TIME, client_of, patch_core, task, users_of
from tests.servers import Server, wait_until

LOGGED_FIELDS = ["time", "method", "route", "status", "ms", "bytes", "client", "key", "user", "runId"]


def send_logged_requests(server: Server) -> str:
    """Send eight requests with secrets in them, stop the server, and return the run's id."""
    run = server.start_run()
    secret = task(title="a-secret-title", externalId="a-secret-id")
    server.request("POST", f"{API}/runs/{run}/tasks", secret, **{"Idempotency-Key": "a-secret-retry"})
    server.request("GET", f"{API}/tasks?externalId=a-secret-id")
    server.request("GET", f"{API}/tasks", key="fts_a-secret-key")
    server.request("GET", f"{API}/runs/%0Aforged%0D")
    server.request("GET", "/nowhere%0Aforged")
    server.request("PUT", f"{API}/runs/{run}", b"{}")
    server.request("POST", f"{API}/runs", b" " * 100_000, key="fts_a-secret-key")
    assert server.stop() == 0  # flushes the log
    return run


def test_json_access_log_has_a_line_for_each_request(serve: Callable[..., Server]) -> None:
    server = serve(FINDINGS_LOG="json")
    run = send_logged_requests(server)
    lines = [json.loads(line) for line in server.log_text().splitlines()][-8:]
    assert all(list(line) == LOGGED_FIELDS for line in lines)
    named = ("method", "route", "status", "client", "key", "runId")
    assert [tuple(line[name] for name in named) for line in lines] == [
        ("POST", f"{API}/runs", 201, "default", "first", run),
        ("POST", f"{API}/runs/{{run_id}}/tasks", 201, "default", "first", run),
        ("GET", f"{API}/tasks", 200, "default", "first", None),
        ("GET", f"{API}/tasks", 401, None, None, None),
        ("GET", f"{API}/runs/{{run_id}}", 404, "default", "first", None),
        ("GET", "-", 404, None, None, None),
        ("PUT", f"{API}/runs/{{run_id}}", 405, None, None, None),
        ("POST", f"{API}/runs", 401, None, None, None),
    ]
    assert all(TIME.fullmatch(line["time"]) and line["ms"] > 0 and line["bytes"] > 0 for line in lines)
    assert not any(word in str(lines) for word in ("secret", "forged", server.key))


@pytest.mark.sqlite
def test_json_log_setting_makes_every_line_json(serve: Callable[..., Server]) -> None:
    server = serve("--host", "0.0.0.0", FINDINGS_LOG="json")
    server.db.rename(server.db.with_name("moved.db"))
    assert server.request("GET", f"{API}/tasks").status_code == 503
    wait_until(lambda: "every request is refused" in server.log_text())
    lines = [json.loads(line) for line in server.log_text().splitlines()]
    messages = [line["message"] for line in lines if "message" in line]
    assert [message.partition(" ")[0] for message in messages] == ["Warning:", "Open", repr(str(server.db))]
    assert [{*KEY.findall(message)} for message in messages] == [set(), {server.key}, set()]
    assert all(TIME.fullmatch(line["time"]) for line in lines)


def test_text_access_log_has_a_line_for_each_request(serve: Callable[..., Server]) -> None:
    server = serve(FINDINGS_LOG="text")
    send_logged_requests(server)
    log = server.log_text()
    shape = rf"{TIME.pattern} GET {API}/tasks 200 [\d.]+ \d+ default first - -"
    assert any(re.fullmatch(shape, line) for line in log.splitlines()), log
    assert not any(word in log.replace(server.key, "") for word in ("secret", "forged"))
    without_log = serve(FINDINGS_DB=str(server.db.with_name("quiet.db")))
    send_logged_requests(without_log)
    assert without_log.log_text() == without_log.startup_output


def test_text_log_quotes_names_and_ignores_closed_standard_error(
    make_app: Callable[..., flask.Flask], capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    app = make_app(log="text")
    client = client_of(app, name="a name")
    for each in (*users_of(app, "anna@shop.example", "Jürgen 1"), client):
        each.read("tasks")
    lines = [line.partition(" default ")[2] for line in capfd.readouterr().err.splitlines()]
    assert lines == ["proxy anna@shop.example -", 'proxy "J\\u00fcrgen 1" -', '"a name" - -']
    patch_core(monkeypatch, "STDERR", -1)  # a closed descriptor
    client.read("tasks")
