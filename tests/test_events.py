"""The feed of events: `GET /api/v1/events`."""

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


def told(client: Client, **query: Any) -> list[dict[str, Any]]:
    """Return the events of one page."""
    return list(client.read("events", **query)["events"])


def types_of(client: Client, **query: Any) -> list[str]:
    """Return the types of the events of one page."""
    return [each["type"] for each in told(client, **query)]


def ids_of(page: list[dict[str, Any]]) -> list[str]:
    """Return the ids of events."""
    return [each["id"] for each in page]


def followed(client: Client, **query: Any) -> Iterator[list[dict[str, Any]]]:
    """Give page after page, up to one that is empty."""
    page = client.read("events", **query)
    while page["events"]:
        yield page["events"]
        page = client.read(page["next"])


def test_all_that_happens_is_an_event_in_its_order(app: flask.Flask, client: Client) -> None:
    person = client_of(app, name="Ada")
    client.register("web")
    first = client.start()
    found = client.add(first, externalId="x")
    client.add(first, externalId="x", title="Reworded")
    client.add(first, externalId="x", title="Reworded")
    person.triage(found, "resolved", comment="done", assignee="Ada")
    person.triage(found, "resolved", comment="Really")
    client.add(first, externalId="x", title="Reworded")
    for status in ("dismissed", "open"):  # by its scanner
        client.add(first, externalId="other", status=status)
    client.add(first, externalId="other", status="dismissed")
    client.finish(first)
    second = client.start()
    client.finish(second, resolveMissing=True)
    assert [(each["type"], each["by"]) for each in told(client)] == [
        *(("run.started", "tests"), ("finding.created", "tests"), ("finding.changed", "tests")),
        *(("finding.status", "Ada"), ("finding.assigned", "Ada"), ("finding.commented", "Ada")),
        *(("finding.reopened", "tests"), ("finding.created", "tests"), ("finding.reopened", "tests")),
        *(("finding.status", "tests"), ("run.finished", "tests")),
        *(("run.started", "tests"), ("finding.status", "tests"), ("run.finished", "tests")),
    ]


def test_an_event_says_what_happened_and_has_its_task_or_run_as_it_stands_now(client: Client) -> None:
    client.register("web")
    run = client.start(branch="topic")
    found = client.add(run, externalId="x")
    tag = client.triage(found, "dismissed", reason="wont_fix", comment="not ours")["etag"]
    client.finish(run)
    started, created, decided, finished = told(client)
    (head,) = client.read("tasks")["tasks"]
    assert head["etag"] == tag  # which is no other when the run ends
    common = {"by": "tests", "user": None}
    nothing = {"from": None, "reason": None, "assignee": None, "comment": None, "changed": []}
    told_of = [{key: each[key] for key in each if key not in ("id", "at")} for each in (created, decided)]
    assert told_of == [
        {**common, "type": "finding.created", "branch": "topic", "task": head, **nothing, "runId": run, "to": "open"},
        {**common, "type": "finding.status", "branch": None, "task": head, **nothing, "runId": None}
        | {"from": "open", "to": "dismissed", "reason": "wont_fix", "comment": "not ours"},
    ]
    whole = {key: value for key, value in client.read(f"runs/{run}").items() if key != "summary"}
    assert started["run"] == finished["run"] == whole
    assert (set(finished), finished["branch"]) == ({"id", "type", "at", "by", "user", "branch", "run"}, "topic")


def test_who_follows_the_links_sees_each_event_once_and_what_comes_later(client: Client, run: str) -> None:
    client.submit(run, *(task() for _ in range(9)))
    pages = list(followed(client, limit=4))
    assert [len(page) for page in pages] == [4, 4, 2]
    client.add(run)
    ids = [place for page in pages for place in ids_of(page)]
    (later,) = followed(client, after=ids[-1])
    assert ids_of(told(client)) == [*ids, later[0]["id"]]
    empty = client.read("events", after=later[0]["id"])
    assert (empty["events"], empty["next"].partition("?")[0]) == ([], f"{API}/events")
    assert client.read(empty["next"]) == empty


def test_the_latest_place_is_before_what_comes_and_behind_all_that_was_of_ones_own(
    app: flask.Flask, client: Client, run: str
) -> None:
    begun = client.read("events", after="latest")
    assert begun["events"] == []
    client.add(run)
    assert types_of(client, after="latest", wait=30) == []  # but for our own server, nobody waits
    assert [each["type"] for each in client.read(begun["next"])["events"]] == ["finding.created"]
    other = client_of(app, client="other")
    assert (told(other), told(other, after="latest")) == ([], [])


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


def test_a_filter_looks_at_some_entries_at_a_time_and_the_link_goes_on(
    client: Client, run: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events, "LongPoll", raise_panic)  # nobody waits while there is more to look at
    monkeypatch.setattr(events, "LOOKED_AT", 5)
    client.submit(run, *(task() for _ in range(12)))
    client.finish(run)
    page, seen = client.read("events", type="run.finished", wait=20), 0
    while not page["events"]:
        page, seen = client.read(page["next"]), seen + 1
    assert (seen, page["events"][0]["type"]) == (2, "run.finished")


def test_a_page_that_would_be_too_large_ends_early_and_the_link_goes_on(
    client: Client, run: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.submit(run, *(task() for _ in range(9)))
    whole = told(client)
    monkeypatch.setattr(core, "PAGE_SIZE", 3_000)
    pages = list(followed(client))
    assert (len(pages) > 2, [each for page in pages for each in page]) == (True, whole)


def test_a_bad_question_about_events_is_refused(client: Client) -> None:
    bad = {"after": "x", "limit": "1001", "type": "finding.deleted", "wait": "31", "status": "open"}
    for parameter, value in bad.items():
        answer = client.get(f"{API}/events", query_string={parameter: value})
        assert_problem(answer, 400, "invalid_parameter", parameter)


def test_a_copy_begins_an_epoch_of_its_own_and_tells_the_way_on(
    app: flask.Flask, client: Client, run: str, tmp_path: Path
) -> None:
    client.add(run)
    place = told(client)[0]["id"]
    database_of(app).close()
    copied = db_at(tmp_path / "copy.db")
    done = invoke("copy", "--from", db_at(tmp_path / "findings.db"), "--to", copied)
    assert done.exit_code == 0, done.output
    other = client_of(core.create_app(db=copied), name="another")
    assert types_of(other) == types_of(client)
    problem = assert_problem(other.get(f"{API}/events?after={place}"), 400, "invalid_parameter")
    assert "after=latest" in problem["detail"]


def test_what_is_deleted_leaves_the_feed_and_its_numbers_are_not_used_again(client: Client, run: str) -> None:
    other = client.start()
    found = client.add(other)
    before = ids_of(told(client))
    client.remove(f"tasks/{found}")
    client.remove(f"runs/{other}")
    assert ids_of(told(client)) == before[:1]
    client.add(run)
    assert told(client)[-1]["id"] not in before
    assert types_of(client, after=before[-1]) == ["finding.created"]


def test_a_run_that_the_clock_ends_was_finished_by_nobody(app: flask.Flask, client: Client, run: str) -> None:
    with database_of(app).transaction("default") as connection:
        connection.execute("UPDATE runs SET last_used_at = '2026-01-01T00:00:00.000Z' WHERE client_id = 'default'")
        core.fail_idle_runs(connection, "default", 60)
    last = told(client)[-1]
    assert (last["type"], last["by"], last["run"]["statusReason"]) == ("run.finished", None, "timeout")


@pytest.mark.sqlite
def test_a_page_costs_as_much_behind_any_place(app: flask.Flask, client: Client, run: str) -> None:
    other, work = client_of(app, client="other"), []
    other.register("web")
    theirs = other.start()
    for _ in range(2):
        other.submit(theirs, *(task() for _ in range(500)))
        client.submit(run, *(task() for _ in range(500)))
        with database_of(app).snapshot() as connection:
            last = events.select_latest(connection, "default")
            for behind in (0, last // 2, last - 20):
                read = partial(events.select_events, connection, "default", behind, 20, [])
                work.append(sqlite_steps(connection, lambda read=read: list(read().events)))
    assert max(work) < 1.05 * min(work)


def test_no_event_comes_behind_a_later_one_because_the_writers_of_a_client_wait_for_each_other(
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
    """Follow the feed until it is empty behind a stop, and return the ids of its events."""
    seen, link, ended = list[str](), f"{API}/events?limit=50&wait=1", False
    while not ended:
        stopped = stop.is_set()
        page = server.request("GET", link, key=SECRET).json
        seen += ids_of(page["events"])
        link, ended = page["next"], stopped and not page["events"]
    return seen


def submit_until_gone(server: Server, run: str, name: str, acknowledged: list[str]) -> None:
    """Submit findings until the server is gone, and note those that were answered."""
    with suppress(OSError, http.client.HTTPException):
        for number in range(10_000):
            external_id = f"{name}-{number}"
            found = server.request("POST", f"{API}/runs/{run}/tasks", task(externalId=external_id), key=SECRET)
            if found.status_code == 201:
                acknowledged.append(external_id)


def test_who_follows_through_kills_of_a_process_misses_and_doubles_nothing(serve: Callable[..., Server]) -> None:
    start = partial(serve, until=LISTENING, FINDINGS_API_KEY=SECRET)
    lasting, stop, acknowledged = start(), threading.Event(), list[str]()
    lasting.request("POST", f"{API}/project-types", {"name": "web"}, key=SECRET)
    run = lasting.request("POST", f"{API}/runs", {"projectType": "web"}, key=SECRET).json["id"]
    with ThreadPoolExecutor(6) as pool:
        following = pool.submit(follow, lasting, stop)
        for kill in range(4):
            server, before = start(), len(acknowledged)
            for number in range(3):
                pool.submit(submit_until_gone, server, run, f"{kill}-{number}", acknowledged)
            wait_until(lambda before=before: len(acknowledged) > before + 30)
            assert lasting.request("POST", f"{API}/runs/{run}/tasks", task(), key=SECRET).status_code == 201
            assert server.stop(signal.SIGKILL) == -signal.SIGKILL
        stop.set()
        seen = following.result()
    page, whole = lasting.request("GET", f"{API}/events?limit=1000", key=SECRET).json, []
    while page["events"]:
        whole += page["events"]
        page = lasting.request("GET", page["next"], key=SECRET).json
    assert seen == ids_of(whole)
    assert len({*seen}) == len(seen)
    reported = Counter(each["task"]["externalId"] for each in whole if each["type"] == "finding.created")
    assert {reported[external_id] for external_id in acknowledged} == {1}


# Waiting


def waiting(server: Server, **query: str) -> Any:
    """Wait for what comes, and return the types of the events."""
    page = server.request("GET", f"{API}/events?{urlencode({'after': 'latest', 'wait': 30} | query)}").json
    return [each["type"] for each in page["events"]]


@contextmanager
def held(*ask: Any, **query: str) -> Iterator[Future[Any]]:
    """Let somebody wait for what comes, and give what becomes of it."""
    with ThreadPoolExecutor(1) as pool:
        under_way = pool.submit(*ask, **query)
        time.sleep(1)
        yield under_way


@pytest.mark.signals
def test_who_waits_is_told_of_what_comes_meanwhile_and_a_stop_ends_all_waiting_at_once(server: Server) -> None:
    run = server.start_run()
    with held(waiting, server, type="finding.created") as one, held(waiting, server, type="run.finished") as other:
        server.request("POST", f"{API}/runs/{run}/tasks", task())
        assert one.result() == ["finding.created"]
        server.request("PATCH", f"{API}/runs/{run}", {"status": "completed"})
        assert other.result() == ["run.finished"]
    with ThreadPoolExecutor(20) as pool:
        told = [pool.submit(waiting, server) for _ in range(20)]
        wait_until(lambda: server.request("GET", "/healthz").status_code == 200)
        time.sleep(1)
        assert server.stop() == 0
        assert [each.result() for each in told] == [[]] * 20


def test_more_than_may_wait_are_told_at_once_and_who_is_told_or_goes_away_makes_room(
    serve: Callable[..., Server],
) -> None:
    server = serve(program=program_with(MOST_HELD=1))
    server.start_run()

    def wait_alone() -> None:
        with held(waiting, server) as first:
            assert waiting(server) == []
            assert not first.done()
            server.start_run()
            assert first.result()

    wait_alone()
    wait_alone()
    with socket.create_connection(("127.0.0.1", server.port)) as connection:
        path = f"{API}/events?after=latest&wait=30"
        connection.sendall(f"GET {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {server.key}\r\n\r\n".encode())
        time.sleep(1)
        assert waiting(server) == []
    time.sleep(1)
    wait_alone()


def test_a_key_that_is_revoked_is_told_nothing_any_more(server: Server) -> None:
    run = server.start_run()
    with held(server.request, "GET", f"{API}/events?after=latest&wait=30") as told:
        assert command("keys", "revoke", "first", "--db", db_at(server.db)).returncode == 0
        assert told.result().status_code == 401
    assert server.request("GET", f"{API}/runs/{run}").status_code == 401
