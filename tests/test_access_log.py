"""The access log: what its lines say, and what they never do."""

from __future__ import annotations

import json
import re
from collections.abc import Callable

import flask
import pytest

from tests.clients import API, KEY, TIME, client_of, patch_core, task, users_of
from tests.servers import Server, wait_until

LOGGED_FIELDS = ["time", "method", "route", "status", "ms", "bytes", "client", "key", "user", "runId"]


def use_for_a_log(server: Server) -> str:
    """Send a few requests, of which one line each is to be logged, and return the run's id."""
    run = server.start_run()
    secret = task(title="a-secret-title", externalId="a-secret-id")
    server.request("POST", f"{API}/runs/{run}/tasks", secret, **{"Idempotency-Key": "a-secret-retry"})
    server.request("GET", f"{API}/tasks?externalId=a-secret-id")
    server.request("GET", f"{API}/tasks", key="fts_a-secret-key")
    server.request("GET", f"{API}/runs/%0Aforged%0D")
    server.request("GET", "/nowhere%0Aforged")
    server.request("PUT", f"{API}/runs/{run}", b"{}")
    server.request("POST", f"{API}/runs", b" " * 100_000, key="fts_a-secret-key")
    assert server.stop() == 0  # so that all lines are written
    return run


def test_the_access_log_has_a_json_line_for_each_request(serve: Callable[..., Server]) -> None:
    server = serve(FINDINGS_LOG="json")
    run = use_for_a_log(server)
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
def test_all_lines_of_serve_are_json_if_the_log_is(serve: Callable[..., Server]) -> None:
    server = serve("--host", "0.0.0.0", FINDINGS_LOG="json")
    server.db.rename(server.db.with_name("moved.db"))
    assert server.request("GET", f"{API}/tasks").status_code == 503
    wait_until(lambda: "every request is refused" in server.log_text())
    lines = [json.loads(line) for line in server.log_text().splitlines()]
    said = [line["message"] for line in lines if "message" in line]
    assert [message.partition(" ")[0] for message in said] == ["Warning:", "Open", repr(str(server.db))]
    assert [{*KEY.findall(message)} for message in said] == [set(), {server.key}, set()]
    assert all(TIME.fullmatch(line["time"]) for line in lines)


def test_the_access_log_has_a_text_line_for_each_request_and_is_off_by_default(serve: Callable[..., Server]) -> None:
    server = serve(FINDINGS_LOG="text")
    use_for_a_log(server)
    said = server.log_text()
    shape = rf"{TIME.pattern} GET {API}/tasks 200 [\d.]+ \d+ default first - -"
    assert any(re.fullmatch(shape, line) for line in said.splitlines()), said
    assert not any(word in said.replace(server.key, "") for word in ("secret", "forged"))
    quiet = serve(FINDINGS_DB=str(server.db.with_name("quiet.db")))
    use_for_a_log(quiet)
    assert quiet.log_text() == quiet.startup_output


def test_a_text_log_quotes_what_is_no_word_and_stops_nothing_where_nobody_hears(
    make_app: Callable[..., flask.Flask], capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    app = make_app(log="text")
    client = client_of(app, name="a name")
    for each in (*users_of(app, "anna@shop.example", "Jürgen 1"), client):
        each.read("tasks")
    said = [line.partition(" default ")[2] for line in capfd.readouterr().err.splitlines()]
    assert said == ["proxy anna@shop.example -", 'proxy "J\\u00fcrgen 1" -', '"a name" - -']
    patch_core(monkeypatch, "STDERR", -1)  # which is closed
    client.read("tasks")
