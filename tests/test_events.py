"""Tests of the event feed, `GET /api/v1/events`."""

from __future__ import annotations

import http.client
import signal
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import flask
import pytest

import findings_features.events as events
import findings_service as core
from tests.clients import API, PRINCIPAL, Client, assert_problem, client_of, database_of, task
from tests.engines import db_at
from tests.scenarios import raise_panic, sqlite_steps
from tests.servers import LISTENING, Server, command, invoke, program_with, wait_until

SECRET = "events-tests-0123456789"


def events_of(client: Client, **query: Any) -> list[dict[str, Any]]:
    return list(client.read("events", **query)["events"])


def types_of(client: Client, **query: Any) -> list[str]:
    """Return the types of the events of one page."""
    return [each["type"] for each in events_of(client, **query)]


def ids_of(page: list[dict[str, Any]]) -> list[str]:
    return [each["id"] for each in page]


def event_pages(client: Client, **query: Any) -> Iterator[list[dict[str, Any]]]:
    """Yield the events of each page, until a page is empty."""
    page = client.read("events", **query)
    while page["events"]:
        yield page["events"]
        page = client.read(page["next"])


def test_every_change_is_an_event_in_order(app: flask.Flask, client: Client) -> None:
    ada = client_of(app, name="Ada")
    client.register("web")
    first = client.start()
    found = client.add(first, externalId="x")
    client.add(first, externalId="x", title="Reworded")
    client.add(first, externalId="x", title="Reworded")
    ada.triage(found, "resolved", comment="done", assignee="Ada")
    ada.triage(found, "resolved", comment="Really")
    client.add(first, externalId="x", title="Reworded")
    for status in ("dismissed", "open"):  # set by a report
        client.add(first, externalId="other", status=status)
    client.add(first, externalId="other", status="dismissed")
    client.finish(first)
    second = client.start()
    client.finish(second, resolveMissing=True)
    assert [(each["type"], each["by"]) for each in events_of(client)] == [
        *(("run.started", "tests"), ("finding.created", "tests"), ("finding.changed", "tests")),
        *(("finding.status", "Ada"), ("finding.assigned", "Ada"), ("finding.commented", "Ada")),
        *(("finding.reopened", "tests"), ("finding.created", "tests"), ("finding.reopened", "tests")),
        *(("finding.status", "tests"), ("run.finished", "tests")),
        *(("run.started", "tests"), ("finding.status", "tests"), ("run.finished", "tests")),
    ]


def test_work_of_agents_is_in_the_feed_as_in_the_history(client: Client, run: str) -> None:
    found, proof = client.add(run), {"outcome": "fixed", "comment": "Ran it again."}
    proposal = {"status": "dismissed", "reason": "wont_fix", "comment": "A test."}
    claim = client.request_json("POST", "tasks/claim", 200, json={})["id"]
    client.remove(f"claims/{claim}")
    claim = client.request_json("POST", "tasks/claim", 200, json={})["id"]
    client.request_json("POST", f"tasks/{found}/verifications", 201, json={**proof, "claim": claim})
    client.request_json("POST", f"tasks/{found}/verifications", 201, json=proof | {"outcome": "still_present"})
    client.request_json("PUT", f"tasks/{found}/proposal", 200, json=proposal)
    client.remove(f"tasks/{found}/proposal")
    client.triage(found, severity="low", links=[{"rel": "commit", "url": "https://code.example/1"}])
    entries, events = client.history(found), events_of(client, after=events_of(client)[0]["id"])
    assert [each["type"].partition(".")[2] for each in events] == [
        *("created", "claimed", "released", "claimed", "verified", "verified"),
        *("proposed", "withdrawn", "severity", "linked"),
    ]
    common = ("at", "by", "user", "runId", "from", "to", "reason", "assignee", "comment", "changed")
    for event, entry in zip(events, entries, strict=True):
        assert (event["type"], *map(event.get, common)) == (f"finding.{entry['event']}", *map(entry.get, common))
        assert event["id"] in ids_of(events_of(client, type=event["type"]))


def test_event_contains_the_change_and_the_current_task_or_run(client: Client) -> None:
    client.register("web")
    run = client.start(branch="topic")
    found = client.add(run, externalId="x")
    tag = client.triage(found, "dismissed", reason="wont_fix", comment="not ours")["etag"]
    client.finish(run)
    started, created, decided, finished = events_of(client)
    (head,) = client.read("tasks")["tasks"]
    assert head["etag"] == tag  # unchanged by the end of the run
    common = {"by": "tests", "user": None}
    unset = {"from": None, "reason": None, "assignee": None, "comment": None, "changed": []}
    received = [{key: each[key] for key in each if key not in ("id", "at")} for each in (created, decided)]
    assert received == [
        {**common, "type": "finding.created", "branch": "topic", "task": head, **unset, "runId": run, "to": "open"},
        {**common, "type": "finding.status", "branch": None, "task": head, **unset, "runId": None}
        | {"from": "open", "to": "dismissed", "reason": "wont_fix", "comment": "not ours"},
    ]
    stored_run = {key: value for key, value in client.read(f"runs/{run}").items() if key != "summary"}
    assert started["run"] == finished["run"] == stored_run
    assert (set(finished), finished["branch"]) == ({"id", "type", "at", "by", "user", "branch", "run"}, "topic")


def test_next_links_return_each_event_once_and_later_events(client: Client, run: str) -> None:
    client.submit(run, *(task() for _ in range(9)))
    pages = list(event_pages(client, limit=4))
    assert [len(page) for page in pages] == [4, 4, 2]
    client.add(run)
    ids = [event_id for page in pages for event_id in ids_of(page)]
    (later,) = event_pages(client, after=ids[-1])
    assert ids_of(events_of(client)) == [*ids, later[0]["id"]]
    empty = client.read("events", after=later[0]["id"])
    assert (empty["events"], empty["next"].partition("?")[0]) == ([], f"{API}/events")
    assert client.read(empty["next"]) == empty


def test_after_latest_returns_only_future_events_of_the_client(app: flask.Flask, client: Client, run: str) -> None:
    latest = client.read("events", after="latest")
    assert latest["events"] == []
    client.add(run)
    assert types_of(client, after="latest", wait=30) == []  # only our own HTTP server supports waiting
    assert [each["type"] for each in client.read(latest["next"])["events"]] == ["finding.created"]
    other = client_of(app, client="other")
    assert (events_of(other), events_of(other, after="latest")) == ([], [])


def test_events_are_filtered(client: Client, run: str) -> None:
    client.add(run)
    client.register("docs")
    other = client.start("docs", targetUrl="https://a.example/", branch="topic")
    client.add(other)
    client.finish(other)
    for name, value in {"projectType": "docs", "targetUrl": "https://a.example/", "branch": "topic"}.items():
        assert types_of(client, **{name: value}) == ["run.started", "finding.created", "run.finished"]
    assert types_of(client, type="run.started,run.finished") == ["run.started", "run.started", "run.finished"]
    assert types_of(client, projectType="other") == []


def test_filtered_page_scans_a_limited_number_of_entries(
    client: Client, run: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events, "LongPoll", raise_panic)  # a page with entries left to scan never waits
    monkeypatch.setattr(events, "EXAMINED_ENTRIES", 5)
    client.submit(run, *(task() for _ in range(12)))
    client.finish(run)
    page, seen = client.read("events", type="run.finished", wait=20), 0
    while not page["events"]:
        page, seen = client.read(page["next"]), seen + 1
    assert (seen, page["events"][0]["type"]) == (2, "run.finished")


def test_page_that_reaches_the_size_limit_ends_early(client: Client, run: str, monkeypatch: pytest.MonkeyPatch) -> None:
    client.submit(run, *(task() for _ in range(9)))
    whole = events_of(client)
    monkeypatch.setattr(core, "PAGE_SIZE", 3_000)
    pages = list(event_pages(client))
    assert (len(pages) > 2, [each for page in pages for each in page]) == (True, whole)


def test_invalid_query_parameters_of_events_return_400(client: Client) -> None:
    bad = {"after": "x", "limit": "1001", "type": "finding.deleted", "wait": "31", "status": "open"}
    for parameter, value in bad.items():
        response = client.get(f"{API}/events", query_string={parameter: value})
        assert_problem(response, 400, "invalid_parameter", parameter)


def test_copied_database_rejects_old_cursors_and_suggests_after_latest(
    app: flask.Flask, client: Client, run: str, tmp_path: Path
) -> None:
    client.add(run)
    cursor = events_of(client)[0]["id"]
    database_of(app).close()
    copied = db_at(tmp_path / "copy.db")
    done = invoke("copy", "--from", db_at(tmp_path / "findings.db"), "--to", copied)
    assert done.exit_code == 0, done.output
    other = client_of(core.create_app(db=copied), name="another")
    assert types_of(other) == types_of(client)
    problem = assert_problem(other.get(f"{API}/events?after={cursor}"), 400, "invalid_parameter")
    assert "after=latest" in problem["detail"]


def test_events_of_deleted_data_disappear_and_event_ids_are_not_reused(client: Client, run: str) -> None:
    other = client.start()
    found = client.add(other)
    before = ids_of(events_of(client))
    client.remove(f"tasks/{found}")
    client.remove(f"runs/{other}")
    assert ids_of(events_of(client)) == before[:1]
    client.add(run)
    assert events_of(client)[-1]["id"] not in before
    assert types_of(client, after=before[-1]) == ["finding.created"]


def test_finished_event_of_a_run_that_timed_out_names_no_key(app: flask.Flask, client: Client, run: str) -> None:
    with database_of(app).transaction("default") as connection:
        connection.execute("UPDATE runs SET last_used_at = '2026-01-01T00:00:00.000Z' WHERE client_id = 'default'")
        core.fail_idle_runs(connection, "default", 60)
    last = events_of(client)[-1]
    assert (last["type"], last["by"], last["run"]["statusReason"]) == ("run.finished", None, "timeout")


@pytest.mark.sqlite
def test_page_costs_the_same_after_any_cursor(app: flask.Flask, client: Client, run: str) -> None:
    other, steps = client_of(app, client="other"), []
    other.register("web")
    theirs = other.start()
    for _ in range(2):
        other.submit(theirs, *(task() for _ in range(500)))
        client.submit(run, *(task() for _ in range(500)))
        with database_of(app).snapshot() as connection:
            last = events.select_latest(connection, "default")
            for after in (0, last // 2, last - 20):
                read = partial(events.select_events, connection, "default", after, 20, [])
                steps.append(sqlite_steps(connection, lambda read=read: list(read().events)))
    assert max(steps) < 1.05 * min(steps)


def test_writes_of_a_client_are_serialized_so_that_events_are_ordered(
    app: flask.Flask, client: Client, run: str
) -> None:
    another = client_of(app, name="another")
    with ThreadPoolExecutor(1) as pool:
        with database_of(app).transaction("default") as connection:
            core.insert_run(connection, PRINCIPAL, "web", "", "{}")
            later = pool.submit(another.finish, run)
            time.sleep(0.3)
            assert (later.done(), types_of(client)) == (False, ["run.started"])
        later.result()
    assert types_of(client) == ["run.started", "run.started", "run.finished"]


def follow(server: Server, stop: threading.Event) -> list[str]:
    """Follow the feed until `stop` is set and a page is empty, and return the ids of the events."""
    seen, link, finished = list[str](), f"{API}/events?limit=50&wait=1", False
    while not finished:
        stopped = stop.is_set()
        page = server.request("GET", link, key=SECRET).json
        seen += ids_of(page["events"])
        link, finished = page["next"], stopped and not page["events"]
    return seen


def submit_until_gone(server: Server, run: str, name: str, acknowledged: list[str]) -> None:
    """Submit findings until the server is killed, and record the external ids of acknowledged ones."""
    with suppress(OSError, http.client.HTTPException):
        for number in range(10_000):
            external_id = f"{name}-{number}"
            found = server.request("POST", f"{API}/runs/{run}/tasks", task(externalId=external_id), key=SECRET)
            if found.status_code == 201:
                acknowledged.append(external_id)


def test_follower_gets_each_event_once_although_processes_are_killed(serve: Callable[..., Server]) -> None:
    start = partial(serve, until=LISTENING, FINDINGS_API_KEY=SECRET)
    survivor, stop, acknowledged = start(), threading.Event(), list[str]()
    survivor.request("POST", f"{API}/project-types", {"name": "web"}, key=SECRET)
    run = survivor.request("POST", f"{API}/runs", {"projectType": "web"}, key=SECRET).json["id"]
    with ThreadPoolExecutor(6) as pool:
        following = pool.submit(follow, survivor, stop)
        for kill in range(4):
            server, before = start(), len(acknowledged)
            for number in range(3):
                pool.submit(submit_until_gone, server, run, f"{kill}-{number}", acknowledged)
            wait_until(lambda before=before: len(acknowledged) > before + 30)
            assert survivor.request("POST", f"{API}/runs/{run}/tasks", task(), key=SECRET).status_code == 201
            assert server.stop(signal.SIGKILL) == -signal.SIGKILL
        stop.set()
        seen = following.result()
    page, expected = survivor.request("GET", f"{API}/events?limit=1000", key=SECRET).json, []
    while page["events"]:
        expected += page["events"]
        page = survivor.request("GET", page["next"], key=SECRET).json
    assert seen == ids_of(expected)
    assert len({*seen}) == len(seen)
    reported = Counter(each["task"]["externalId"] for each in expected if each["type"] == "finding.created")
    assert {reported[external_id] for external_id in acknowledged} == {1}


# Long polls


def long_poll(server: Server, **query: str) -> Any:
    """Send a long poll for new events, and return their types."""
    page = server.request("GET", f"{API}/events?{urlencode({'after': 'latest', 'wait': 30} | query)}").json
    return [each["type"] for each in page["events"]]


@contextmanager
def in_background(*call: Any, **query: str) -> Iterator[Future[Any]]:
    """Call a function in a thread, and yield the future of its result after a second."""
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(*call, **query)
        time.sleep(1)
        yield future


@pytest.mark.signals
def test_long_polls_return_on_new_events_and_when_the_server_stops(server: Server) -> None:
    run = server.start_run()
    with (
        in_background(long_poll, server, type="finding.created") as one,
        in_background(long_poll, server, type="run.finished") as other,
    ):
        server.request("POST", f"{API}/runs/{run}/tasks", task())
        assert one.result() == ["finding.created"]
        server.request("PATCH", f"{API}/runs/{run}", {"status": "completed"})
        assert other.result() == ["run.finished"]
    with ThreadPoolExecutor(20) as pool:
        futures = [pool.submit(long_poll, server) for _ in range(20)]
        wait_until(lambda: server.request("GET", "/healthz").status_code == 200)
        time.sleep(1)
        assert server.stop() == 0
        assert [each.result() for each in futures] == [[]] * 20


def test_long_polls_over_the_limit_return_at_once_until_one_ends(serve: Callable[..., Server]) -> None:
    server = serve(program=program_with(MOST_HELD=1))
    server.start_run()

    def wait_alone() -> None:
        with in_background(long_poll, server) as first:
            assert long_poll(server) == []
            assert not first.done()
            server.start_run()
            assert first.result()

    wait_alone()
    wait_alone()
    with socket.create_connection(("127.0.0.1", server.port)) as connection:
        path = f"{API}/events?after=latest&wait=30"
        connection.sendall(f"GET {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {server.key}\r\n\r\n".encode())
        time.sleep(1)
        assert long_poll(server) == []
    time.sleep(1)
    wait_alone()


def test_waiting_request_with_a_revoked_key_returns_401(server: Server) -> None:
    run = server.start_run()
    with in_background(server.request, "GET", f"{API}/events?after=latest&wait=30") as future:
        assert command("keys", "revoke", "first", "--db", db_at(server.db)).returncode == 0
        assert future.result().status_code == 401
    assert server.request("GET", f"{API}/runs/{run}").status_code == 401
