"""Deletion: DELETE requests, `prune`, and the removal of old runs by maintenance."""

from __future__ import annotations

import json
import random
import re
import secrets
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import flask
import pytest

import findings_service
from findings_adapters.serving import commits
from findings_features import deletion
from findings_service import DatabaseUnusable
from tests.clients import API, Client, assert_problem, cases, client_of, database_of, patch_core, rows_of, task
from tests.engines import ON_POSTGRES, connect_directly, integrity_errors_of, stored_bytes
from tests.files import files_in, stored_rows
from tests.scenarios import completed_run, count_all, finish_ago, gate, post, prune, secret, sqlite_steps, start_on
from tests.servers import LISTENING, PATIENCE, SECRET, Server, command, invoke, program_with, wait_until


@pytest.fixture
def client(app: flask.Flask, db: Path) -> Iterator[Client]:
    """A client with a project type. After the test the database must pass the audit."""
    made = client_of(app)
    made.register("web")
    yield made
    assert integrity_errors_of(db) == []


@pytest.fixture
def db(tmp_path: Path) -> Path:
    return tmp_path / "findings.db"


def key_of(app: flask.Flask, run: str) -> findings_service.RunKey:
    with database_of(app).reading() as connection:
        return findings_service.select_run_key(connection, "default", run)


def prune_slice(app: flask.Flask, run: findings_service.RunKey, size: int = 1000) -> tuple[int, bool]:
    """Prune at most `size` tasks of a run, and return their number and whether the run is deleted."""
    with database_of(app).transaction() as connection:
        return deletion.prune_slice(connection, "default", run, size)


# Pruning


def test_branch_keeps_a_task_that_another_run_of_it_reports(client: Client) -> None:
    start_on(client, "a", "x")
    client.remove(f"runs/{start_on(client, 'a', 'x')}")
    assert client.read("tasks", branch="a")["total"] == 1


def test_prune_removes_old_runs_and_tasks_that_only_they_report(app: flask.Flask, client: Client, db: Path) -> None:
    other = client_of(app, client="other")
    other.register("web")
    other_run = completed_run(other, None, a="high", e="low")
    old, older, young, running = (client.start(targetUrl="https://example.com/") for _ in range(4))
    for run, names in ((old, "abx"), (older, "bcx"), (young, "cd"), (running, "ad")):
        client.submit(run, *[task(externalId=name) for name in names], task())
    client.triage(client.read("tasks", externalId="x")["tasks"][0]["id"], "dismissed")
    for run in (old, older, young):
        client.finish(run)
    finish_ago(app, 91, old, older, other_run, completed_run(other, None))
    finish_ago(app, 89, young)
    before = stored_rows(db)
    assert prune(db, "--dry-run") == [3, 6]
    assert stored_rows(db) == before
    assert prune(db) == [3, 6]
    left = client.read("tasks")
    assert sorted(each["externalId"] or "" for each in left["tasks"]) == ["", "", "a", "c", "d"]
    assert (left["total"], client.read(f"runs/{young}")["summary"]["total"], count_all(other)) == (5, 3, [1, 0, 1])
    assert {each["id"] for each in client.read("runs")["runs"]} == {young, running}
    assert prune(db) == [0, 0]
    assert client.submit(running, task(externalId="b"))["created"] == 1


def test_branch_is_removed_with_its_last_run_and_task(app: flask.Flask, client: Client, run: str, db: Path) -> None:
    first, second, third = start_on(client, "a", "x", "y"), start_on(client, "a"), start_on(client, "b", "x")
    client.submit(run, task(externalId="x"))
    for old in (first, second, third, run):
        client.finish(old)
        finish_ago(app, 91, old)
        completed_run(client, None)
        prune(db)
        left = [] if old == run else [("a", 1), ("b", 1)]
        assert rows_of(app, "SELECT name, reported FROM branches ORDER BY name") == left
        assert integrity_errors_of(db) == []
    assert client.read("tasks", branch="a")["total"] == 0


def test_run_is_pruned_in_consistent_slices(app: flask.Flask, client: Client, run: str, db: Path) -> None:
    shared = client.start(targetUrl="https://example.com/")
    for run_id, names in ((run, "abcd"), (shared, "bd")):
        client.submit(run_id, *[task(externalId=name) for name in names], task())
    client.finish(run)
    key, removed, finished = key_of(app, run), [], False
    while not finished:
        tasks, finished = prune_slice(app, key, 2)
        removed.append(tasks)
        assert integrity_errors_of(db) == []
        assert client.read("tasks")["total"] == 6 - sum(removed)
    assert removed == [1, 1, 1]
    assert [each["id"] for each in client.read("runs")["runs"]] == [shared]
    assert client.read("tasks", runId=shared)["total"] == 3
    assert prune_slice(app, key) == (0, True)


def test_prune_requires_a_unit_and_yes_for_durations_below_an_hour(client: Client, db: Path) -> None:
    for words, code, message in (
        *(
            ([each, "--yes"], 2, f"'{each}' is not a valid duration with a unit; use, for example, 12h or 90d")
            for each in ("90", "0", "1w")
        ),
        (["59m"], 2, "is less than an hour; use a longer duration, or --yes to remove such runs"),
        (["59m", "--dry-run"], 0, "Would remove"),
        (["59m", "--yes"], 0, "Removed"),
        (["1h"], 0, "Removed"),
    ):
        done = invoke("prune", "--db", str(db), "--finished-before", *words)
        assert (done.exit_code, message in done.output) == (code, True), words


def test_two_prunes_run_concurrently_with_writes(server: Server) -> None:
    runs = [server.start_run() for _ in range(20)]
    for run in runs:
        server.request("POST", f"{API}/runs/{run}/tasks", {"tasks": [task(externalId=run), task(externalId="all")]})
        server.request("PATCH", f"{API}/runs/{run}", {"status": "completed"})
    path = f"{API}/runs/{server.start_run()}/tasks"
    with connect_directly(server.db) as connection:
        connection.execute("UPDATE runs SET finished_at = '2020-01-01T00:00:00.000Z' WHERE status = 'completed'")
    with ThreadPoolExecutor(6) as pool:
        prunes = [pool.submit(command, "prune", "--finished-before", "90d", "--db", str(server.db)) for _ in range(2)]
        writes = [pool.submit(server.request, "POST", path, task(externalId=str(n))) for n in range(100)]
    assert [each.result().returncode for each in prunes] == [0, 0]
    assert {write.result().status_code for write in writes} == {201}
    assert [server.request("GET", f"{API}/{name}").json["total"] for name in ("runs", "tasks")] == [2, 102]
    assert integrity_errors_of(server.db) == []


def test_the_newest_completed_run_of_each_target_is_never_pruned(app: flask.Flask, client: Client, db: Path) -> None:
    client.register("app")
    kept = [
        completed_run(client, None, a="high"),
        client.start("web", targetUrl="https://b.example/"),
        client.start("app"),
    ]
    runs = [*kept, completed_run(client, "topic"), client.start(targetUrl="https://example.com/")]
    for run in kept[1:]:
        client.finish(run)
    client.finish(runs[-1], status="failed")
    finish_ago(app, 91, *runs)
    assert prune(db, "--dry-run") == prune(db) == [2, 0]
    assert {each["id"] for each in client.read("runs")["runs"]} == {*kept}
    assert gate(client, completed_run(client, None, a="high"))["baseline"] == kept[0]
    newest = client.read("runs", limit=1)["runs"][0]["id"]
    partial_runs = [client.start(targetUrl="https://example.com/") for _ in range(2)]
    for run in partial_runs:  # not a baseline
        client.submit(run, task(externalId="n", rule="not-checked"))
        client.finish(run)
    finish_ago(app, 91, newest, *partial_runs)
    assert prune(db, "--yes") == [2, 0]
    assert [each["id"] for each in client.read("runs")["runs"]] == [partial_runs[1], newest, *kept[:0:-1]]


def run_maintenance_steps(database: findings_service.Database, steps: int = 20) -> None:
    """Run some maintenance steps without the pauses between them."""
    maintenance = commits.maintenance_steps(database)
    for _ in range(steps):
        next(maintenance)


@pytest.fixture
def pruned_database(make_app: Callable[..., flask.Flask], monkeypatch: pytest.MonkeyPatch) -> findings_service.Database:
    """A database that keeps runs for 90 days, with maintenance in this process."""
    database = database_of(make_app(keep="90d"))
    monkeypatch.setattr(database, "owns_maintenance", lambda: True)
    return database


def test_maintenance_removes_at_most_half_of_a_clients_runs(
    pruned_database: findings_service.Database,
    client: Client,
    db: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(commits, "PRUNE_INTERVAL", 0)
    app, other = client.application, client_of(client.application, client="other")
    other.register("web")
    finish_ago(app, 91, completed_run(client, None), completed_run(client, None), completed_run(other, None))
    completed_run(client, None)
    completed_run(other, None)
    run_maintenance_steps(pruned_database)
    assert [count_all(each)[0] for each in (client, other)] == [3, 1]
    assert ["'default'" in each and "--yes" in each for each in caplog.messages] == [True]
    monkeypatch.setattr(commits, "WARNING_INTERVAL", 0)
    run_maintenance_steps(pruned_database)
    assert len(caplog.messages) > 2
    assert count_all(client)[0] == 3
    assert prune(db, "--yes") == [2, 0]
    finish_ago(app, 91, completed_run(client, None))
    completed_run(client, None)
    run_maintenance_steps(pruned_database)
    assert count_all(client)[0] == 2


TIMESTAMP, MONOTONIC = findings_service.timestamp, time.monotonic


def test_no_run_is_removed_for_an_hour_after_a_clock_jump(
    pruned_database: findings_service.Database,
    client: Client,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    finish_ago(client.application, 89, completed_run(client, "topic"))
    running = completed_run(client, None), completed_run(client, None), client.start()
    maintenance = commits.maintenance_steps(pruned_database)
    next(maintenance)
    for days, hours, left in ((2, 0, 4), (2, 0.9, 4), (2, 1.1, 3)):
        patch_core(monkeypatch, "timestamp", lambda ago=0.0, by=days: TIMESTAMP(ago - by * 86_400))
        monkeypatch.setattr(findings_service.time, "monotonic", lambda by=hours: MONOTONIC() + by * 3600)
        for _ in range(9):
            next(maintenance)
        assert count_all(client)[0] == left
    assert [each for each in caplog.messages if "jumped" in each] == caplog.messages[:1]
    assert client.read(f"runs/{running[-1]}")["status"] == "failed"


def test_removal_of_old_runs_does_not_delay_requests(serve: Callable[..., Server]) -> None:
    """FINDINGS_KEEP removes runs by age."""
    server = serve()
    young, running, old = (server.start_run() for _ in range(3))  # `old` is removed last
    for run, names in ((old, "ab"), (young, "bc"), (running, "d")):
        server.request("POST", f"{API}/runs/{run}/tasks", {"tasks": [task(externalId=name) for name in names]})
    with connect_directly(server.db) as connection:
        for run, hours in ((old, 3), (young, 1)):
            server.request("PATCH", f"{API}/runs/{run}", {"status": "completed"})
            at = findings_service.timestamp(ago=hours * 3600)
            connection.execute("UPDATE runs SET finished_at = ?, created_at = ? WHERE id = ?", (at, at, run))
        connection.executemany(
            """INSERT INTO runs (client_id, id, project_type, status, created_at, updated_at, last_used_at, finished_at)
               VALUES ('default', ?, 'web', 'completed', '', '', '', ?)""",
            [(str(n), "2020" if n % 50 == 0 else "2099") for n in range(1500)],
        )
        connection.execute("UPDATE counters SET n = n + 1500 WHERE scope LIKE 'runs%' AND status = 'completed'")
    server.stop()
    quick = program_with(MAINTENANCE_PAUSE=0.2)
    send = partial(serve("--workers", "2", until=LISTENING, program=quick, FINDINGS_KEEP="2h").request, key=server.key)

    def is_done() -> bool:
        assert send("GET", "/healthz").status_code == 200  # it has a limit of two seconds
        left = send("GET", f"{API}/runs?limit=1").json["total"]
        return left <= 1472 and send("GET", f"{API}/runs/{old}").status_code == 404

    wait_until(is_done)
    assert sorted(each["externalId"] for each in send("GET", f"{API}/tasks").json["tasks"]) == ["b", "c", "d"]
    assert integrity_errors_of(server.db) == []


def test_removal_of_old_runs_pauses_after_each_run(
    make_app: Callable[..., flask.Flask], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commits, "MAINTENANCE_PAUSE", PATIENCE)
    app = make_app(keep="2h")
    client, database = client_of(app), database_of(app)
    client.register("web")
    runs = [completed_run(client, None, a="low") for _ in range(9)]
    finish_ago(app, 1, *runs[:4])
    database.run_maintenance()
    steps, left = commits.maintenance_steps(database), []
    while not left or left[-1] > 5:
        assert next(steps) == commits.SLICE_PAUSE
        left.append(client.read("runs")["total"])
    assert [*dict.fromkeys(left)][-4:] == [8, 7, 6, 5]


# DELETE requests


def test_if_match_is_rejected_for_resources_without_an_etag(client: Client, run: str) -> None:
    task_id, headers = client.add(run), {"If-Match": "*"}
    responses = [client.patch(f"{API}/{path}", json={}, headers=headers) for path in ("tasks", f"runs/{run}")]
    paths = (f"tasks/{task_id}", f"runs/{run}", "project-types/web")
    responses += [client.delete(f"{API}/{path}", headers=headers) for path in paths]
    for response in responses:
        assert_problem(response, 400, "invalid_parameter", "If-Match")
    assert count_all(client) == [1, 1, 1]


def test_deleted_task_is_absent_from_every_response(client: Client, run: str) -> None:
    branch, later = start_on(client, "a", "x"), start_on(client, None)
    task_id, other = client.add(run, externalId="x"), client.add(run, externalId="y")
    client.finish(run)
    client.remove(f"tasks/{task_id}")
    for path in (f"tasks/{task_id}", f"tasks/{task_id}/history"):
        assert_problem(client.get(f"{API}/{path}"), 404, "not_found")
    for query in ({}, {"runId": run}, {"branch": "a"}, {"missingFrom": later}, {"externalId": "x"}):
        page = client.read("tasks", **query)
        assert page["total"] == len(page["tasks"]) == ("branch" not in query and "externalId" not in query)
        assert task_id not in {each["id"] for each in page["tasks"]}
    whole = client.read(f"runs/{run}")
    assert (whole["summary"]["total"], whole["submitted"]["created"]) == (1, 1)
    assert [gate(client, each)["reported"] for each in (run, branch)] == [1, 0]
    client.remove(f"tasks/{other}")
    assert client.read("overview")["total"] == 0


@pytest.mark.parametrize("finish", [True, False], ids=["finished", "running"])
def test_deleting_a_run_deletes_tasks_that_only_it_reports(client: Client, run: str, finish: bool) -> None:
    other = start_on(client, None, "x")
    client.submit(run, task(externalId="x"), task(externalId="y"), task())
    if finish:
        client.finish(run)
    client.remove(f"runs/{run}")
    for method, path in (("GET", ""), ("GET", "/gate"), ("DELETE", ""), ("POST", "/tasks"), ("PATCH", "")):
        body = {"POST": {"tasks": []}, "PATCH": {"status": "failed"}}.get(method)
        assert_problem(client.open(f"{API}/runs/{run}{path}", method=method, json=body), 404, "not_found")
    assert [each["externalId"] for each in client.read("tasks")["tasks"]] == ["x"]
    assert [each["id"] for each in client.read("runs")["runs"]] == [other]
    assert client.read("runs", status="running")["total"] == 1


def reporters_of_task(client: Client) -> tuple[Any, ...]:
    """Return the fields of the only task that depend on the runs that report it."""
    (found,) = client.read("tasks")["tasks"]
    return tuple(found[name] for name in ("runId", "lastRunId", "timesSeen", "branch"))


def test_deleting_a_run_recomputes_the_tasks_that_others_report(client: Client, db: Path) -> None:
    branch, run = start_on(client, "a", "x"), start_on(client, None)
    task_id = client.add(run, externalId="x", title="Taken over")
    ignored, last = start_on(client, "b", "x"), start_on(client, None, "x")
    before = client.read("tasks")
    client.remove(f"runs/{start_on(client, 'c', 'x')}")  # its report was not counted
    assert client.read("tasks") == before
    for deleted, left in (
        (last, (branch, run, 2, None)),
        (run, (branch, branch, 1, "a")),
        (branch, (ignored, ignored, 1, "b")),
    ):
        client.remove(f"runs/{deleted}")
        assert reporters_of_task(client) == left
        assert client.read("tasks", mainLine="true")["total"] == (left[-1] is None)
        assert integrity_errors_of(db) == []
    assert client.read("tasks", branch="a")["total"] == 0
    assert {each["runId"] for each in client.history(task_id)} == {None}


def test_deleting_a_run_after_its_tasks_first_run_was_pruned(app: flask.Flask, client: Client) -> None:
    pruned, second, third = (start_on(client, None, "x") for _ in range(3))
    assert prune_slice(app, key_of(app, pruned)) == (0, True)
    assert reporters_of_task(client)[0] == pruned
    client.remove(f"runs/{third}")
    assert reporters_of_task(client) == (second, second, 2, None)


def test_deleting_a_run_undoes_a_report_promoted_to_first(client: Client, db: Path) -> None:
    known = start_on(client, None, "x")
    first, second = start_on(client, "a", "x"), start_on(client, "b", "x")
    client.remove(f"runs/{known}")
    last = start_on(client, None, "x")
    assert reporters_of_task(client) == (first, last, 2, None)
    for deleted in (first, second):
        client.remove(f"runs/{deleted}")
        assert reporters_of_task(client) == (last, last, 1, None)
        assert integrity_errors_of(db) == []


def test_history_of_a_deleted_run_remains_without_the_run_id(client: Client, run: str) -> None:
    task_id = client.add(run, externalId="x")
    resolving = start_on(client, None)
    client.finish(resolving, resolveMissing=True)
    client.remove(f"runs/{resolving}")
    last = client.history(task_id)[-1]
    assert (last["event"], last["to"], last["runId"], last["by"]) == ("status", "resolved", None, "tests")
    assert client.history(task_id)[0]["runId"] == run


def test_project_type_can_be_deleted_when_it_has_no_runs(client: Client, run: str) -> None:
    problem = assert_problem(client.delete(f"{API}/project-types/web"), 409, "project_type_in_use")
    assert "There is 1 run of" in problem["detail"]
    client.remove(f"runs/{run}")
    client.remove("project-types/web")
    assert client.read("project-types") == {"projectTypes": []}
    assert_problem(client.delete(f"{API}/project-types/web"), 404, "not_found")


def test_counters_of_deleted_data_are_removed(app: flask.Flask, client: Client, run: str) -> None:
    start_on(client, "a", "x")
    client.submit(run, task(externalId="x"), task())
    client.triage(client.add(run), "resolved")
    client.finish(run)
    for each in client.read("runs")["runs"]:
        client.remove(f"runs/{each['id']}")
    assert rows_of(app, "SELECT DISTINCT scope FROM counters ORDER BY scope") == [("changes",)]
    assert rows_of(app, "SELECT COUNT(*) FROM branches") == [(0,)]


STORED_RESPONSES = cases(
    task=("runs/RUN/tasks", {"tasks": [task(externalId="x")]}, "tasks/TASK", 409),
    run=("runs", {"projectType": "web"}, "runs/NEW", 409),
    run_of_a_task=("runs/RUN/tasks", {"tasks": [task(externalId="x")]}, "runs/RUN", 404),
    project_type=("project-types", {"name": "new", "label": "secret"}, "project-types/new", 409),
)


@pytest.mark.parametrize(("path", "body", "deleted", "status"), STORED_RESPONSES)
def test_stored_response_is_deleted_with_the_resource_in_it(
    app: flask.Flask, client: Client, run: str, path: str, body: Any, deleted: str, status: int
) -> None:
    path = path.replace("RUN", run)
    sent = post(client, path, body).json
    other = post(client, f"runs/{run}/tasks", {"tasks": [task(title="Other")]}, "other").data
    for name, value in (("RUN", run), ("NEW", sent.get("id", "")), ("TASK", sent.get("tasks", [{}])[0].get("id", ""))):
        deleted = deleted.replace(name, value)
    client.remove(deleted)
    repeated = post(client, path, body)
    assert_problem(repeated, status, "idempotency_conflict" if status == 409 else "not_found")
    if deleted != f"runs/{run}":
        assert post(client, f"runs/{run}/tasks", {"tasks": [task(title="Other")]}, "other").data == other
    stored = rows_of(app, "SELECT body FROM idempotent_answers")
    assert not any("secret" in text or '"x"' in text for (text,) in stored)


def triage(client: Client, path: str, **decision: Any) -> Any:
    return client.patch(f"{API}/{path}", json=decision, headers={"Idempotency-Key": "k"})


@pytest.mark.parametrize("deleted", ["tasks/TASK", "runs/RUN"])
def test_stored_triage_responses_are_deleted_with_the_task(
    app: flask.Flask, client: Client, run: str, deleted: str
) -> None:
    deleted_id, kept_id = client.add(run, title="secret"), client.add(client.start("web"))
    triage_deleted = partial(triage, client, f"tasks/{deleted_id}", comment="secret")
    triage_kept = partial(triage, client, f"tasks/{kept_id}", comment="Kept.")
    triage_both = partial(triage, client, "tasks", ids=[deleted_id, kept_id], comment="secret")
    responses = [decision() for decision in (triage_deleted, triage_kept, triage_both)]
    assert [each.status_code for each in responses] == [200, 200, 200]
    client.remove(deleted.replace("TASK", deleted_id).replace("RUN", run))
    assert_problem(triage_deleted(), 404, "not_found")
    assert triage_kept().data == responses[1].data
    assert_problem(triage_both(), 409, "idempotency_conflict")
    assert not any(deleted_id in text for (text,) in rows_of(app, "SELECT body FROM idempotent_answers"))


@pytest.mark.parametrize(("deleted", "statuses"), [("tasks/TASK", [409, 404, 404]), ("runs/RUN", [409, 404, 404])])
def test_stored_responses_of_agents_are_deleted_with_the_task(
    app: flask.Flask, client: Client, run: str, deleted: str, statuses: list[int]
) -> None:
    task_id = client.add(run, title="secret")
    requests = {
        "tasks/claim": {"ids": [task_id, client.add(client.start())]},
        f"tasks/{task_id}/comments": {"comment": "secret"},
        f"tasks/{task_id}/verifications": {"outcome": "fixed", "comment": "secret"},
    }
    assert [post(client, *request).status_code for request in requests.items()] == [200, 201, 201]
    client.remove(deleted.replace("TASK", task_id).replace("RUN", run))
    assert [post(client, *request).status_code for request in requests.items()] == statuses
    assert not any("secret" in text for (text,) in rows_of(app, "SELECT body FROM idempotent_answers"))


@pytest.mark.parametrize(
    ("method", "path", "body"),
    cases(
        triage=("PATCH", "tasks/TASK", {"comment": "Once."}),
        comment=("POST", "tasks/TASK/comments", {"comment": "Once."}),
        claim=("POST", "tasks/claim", {}),
        verification=("POST", "tasks/TASK/verifications", {"outcome": "fixed", "comment": "Once."}),
    ),
)
def test_stored_response_that_names_a_deleted_run_is_deleted(
    app: flask.Flask, client: Client, method: str, path: str, body: dict[str, Any]
) -> None:
    first, other = client.start("web", branch="secret"), client.start("web", branch="other")
    path = f"{API}/{path}".replace("TASK", client.add(first, externalId="x"))
    client.add(other, externalId="x")
    body = body or {"branch": "other"}
    send = partial(client.open, path, method=method, json=body, headers={"Idempotency-Key": "k"})
    assert '"branch":"secret"' in send().text
    client.remove(f"runs/{first}")
    assert_problem(send(), 409, "idempotency_conflict")
    assert not any("secret" in text for (text,) in rows_of(app, "SELECT body FROM idempotent_answers"))


@pytest.mark.parametrize("how", ["task", "run", "prune"])
def test_duplicates_of_a_deleted_task_lose_it_and_open_if_dismissed(
    app: flask.Flask, client: Client, db: Path, how: str
) -> None:
    old, new = start_on(client, None, "original", "together"), start_on(client, None, "dismissed", "resolved")
    found = {each["externalId"]: each["id"] for each in client.read("tasks")["tasks"]}
    for name, status in (("together", "dismissed"), ("dismissed", "dismissed"), ("resolved", "resolved")):
        client.triage(found[name], status, reason="duplicate", duplicateOf=found["original"])
    before = {name: client.read(f"tasks/{found[name]}") for name in ("dismissed", "resolved")}
    for run in (old, new):
        client.finish(run)
    if how == "prune":
        finish_ago(app, 91, old)
        assert prune(db) == [1, 2]
    else:
        client.remove(f"tasks/{found['original']}" if how == "task" else f"runs/{old}")
    after = {name: client.read(f"tasks/{found[name]}") for name in before}
    for name, change in (("dismissed", {"status": "open", "reason": None}), ("resolved", {})):
        moved = {each: after[name][each] for each in ("etag", "updatedAt")}
        assert after[name] == before[name] | {"duplicateOf": None, **change, **moved}
        assert (moved["etag"] != before[name]["etag"], moved["updatedAt"] > before[name]["updatedAt"]) == (True, True)
    entry = client.history(found["dismissed"])[-1]
    assert [entry[name] for name in ("event", "by", "from", "to")] == ["status", None, "dismissed", "open"]
    assert len(client.history(found["resolved"])) == 2


def test_duplicate_that_moves_to_a_branch_with_the_deletion_is_counted_there(client: Client, db: Path) -> None:
    main, branch = start_on(client, None, "original", "copy"), start_on(client, "topic", "copy")
    found = {each["externalId"]: each["id"] for each in client.read("tasks")["tasks"]}
    client.triage(found["copy"], "dismissed", reason="duplicate", duplicateOf=found["original"])
    client.remove(f"runs/{main}")
    (copy,) = client.read("tasks")["tasks"]
    assert (copy["status"], copy["branch"], copy["runId"]) == ("open", "topic", branch)
    assert integrity_errors_of(db) == []


@pytest.mark.sqlite
def test_deletion_cost_is_independent_of_unrelated_stored_responses(app: flask.Flask, client: Client) -> None:
    def deletion_steps() -> int:
        """Return the SQLite steps of deleting a task, a run and a project type."""
        run = post(client, "runs", {"projectType": "web"}, secrets.token_hex()).json["id"]
        client.register("other")
        with database_of(app).maintaining() as connection:
            paths = (f"tasks/{client.add(run)}", f"runs/{run}", "project-types/other")
            return sqlite_steps(connection, lambda: [client.remove(path) for path in paths])

    run = client.start()
    before = deletion_steps()
    for number in range(300):
        decision = {"ids": [client.add(run)], "comment": "x"}
        headers = {"Idempotency-Key": str(number)}
        assert client.patch(f"{API}/tasks", json=decision, headers=headers).status_code == 200
        post(client, "project-types", {"name": "web"}, str(number))
    assert deletion_steps() < 2 * before


def test_stored_response_with_a_replaced_schema_is_deleted(client: Client) -> None:
    definition = {"name": "new", "extensionSchema": {"title": "secret"}}
    post(client, "project-types", definition)
    assert client.put(f"{API}/project-types/new", json={"extensionSchema": {"title": "secret"}}).status_code == 200
    assert post(client, "project-types", definition).status_code == 201
    client.put(f"{API}/project-types/new", json={})
    assert_problem(post(client, "project-types", definition), 409, "idempotency_conflict")


def secrets_in_files(db: str | Path) -> set[str]:
    """Return the secrets that are still stored: in rows on PostgreSQL, else in the file, WAL or journal."""
    return {each.decode() for each in re.findall(rb"SECRET[0-9a-f]{24}", stored_bytes(db))}


def secret_report(rng: random.Random) -> dict[str, Any]:
    """Return a task of random size with a secret in each field."""
    long = "x" * rng.choice((0, 60, 600, 6000))
    return task(
        title=secret() + long[:300],
        description=secret() + long,
        externalId=secret(),
        evidence=[{"type": secret(), "label": secret(), "url": f"https://{secret()}/", "content": secret() + long}],
        remediation=[{"instruction": secret()}],
        successCriteria=[{"description": secret()}],
        extensions={secret(): secret()},
    )


def secrets_of(value: Any) -> set[str]:
    """Return the secrets in a JSON value."""
    return set(re.findall("SECRET[0-9a-f]{24}", json.dumps(value)))


def test_deleted_data_is_absent_from_the_files_after_compact(
    app: flask.Flask, client: Client, run: str, db: Path
) -> None:
    rng, stored = random.Random(6), dict[str, set[str]]()
    for _ in range(6):
        reports = [secret_report(rng) for _ in range(60)]
        for item, report in zip(client.submit(run, *reports)["tasks"], reports, strict=True):
            stored[item["id"]] = secrets_of(report)
        for item, report in rng.sample(list(zip(list(stored)[-60:], reports, strict=True)), k=20):
            comment, longer = secret(), report | {"title": secret() + "y" * 300}
            client.submit(run, longer)
            client.triage(item, "dismissed", comment=comment)
            stored[item] |= secrets_of([comment, longer])
        deleted = set[str]()
        for task_id in rng.sample(list(stored), k=30):
            client.remove(f"tasks/{task_id}")
            deleted |= stored.pop(task_id)
        if not ON_POSTGRES:  # only compact removes what SQLite copied into gaps of pages when it split them
            database_of(app).close()  # an application without a server does not truncate the WAL itself
            assert invoke("compact", "--db", str(db)).exit_code == 0
        assert secrets_in_files(db) & deleted == set()
        assert integrity_errors_of(db) == []


def test_deleted_run_and_project_type_are_absent_from_the_files(client: Client, db: Path) -> None:
    name = secret()
    definition = {"name": name, "label": secret(), "description": secret(), "extensionSchema": {"title": secret()}}
    assert post(client, "project-types", definition).status_code == 201
    start = {"projectType": name, "targetUrl": f"https://{secret()}/", "branch": secret(), "metadata": {"a": secret()}}
    pull = post(client, "runs", start, "run").json["id"]
    client.submit(pull, *(secret_report(random.Random(1)) for _ in range(40)))
    client.finish(pull, statusReason=secret())
    assert client.put(f"{API}/project-types/{name}", json={"label": "new"}).status_code == 200
    assert not secrets_in_files(db) & secrets_of(definition) - {name}
    client.remove(f"runs/{pull}")
    assert secrets_in_files(db) == {name}
    client.remove(f"project-types/{name}")
    assert secrets_in_files(db) == set()


@pytest.mark.parametrize("workers", ["1", "2"])
def test_deleted_data_is_erased_from_the_files_under_load(serve: Callable[..., Server], workers: str) -> None:
    server = serve("--workers", workers)
    run, done = server.start_run(), threading.Event()

    def load() -> None:
        while not done.is_set():
            server.request("GET", f"{API}/tasks")
            server.request("POST", f"{API}/runs/{run}/tasks", task(description="x" * 2000))

    with ThreadPoolExecutor(2) as pool:
        loads = [pool.submit(load) for _ in range(2)]
        try:
            for _ in range(2):
                batch = {"tasks": [secret_report(random.Random(2)) for _ in range(20)]}
                for item in server.request("POST", f"{API}/runs/{run}/tasks", batch).json["tasks"]:
                    assert server.request("DELETE", f"{API}/tasks/{item['id']}").status_code == 204
                wait_until(lambda: not secrets_in_files(server.db), 30)
        finally:
            done.set()
    assert all(each.exception() is None for each in loads)
    assert integrity_errors_of(server.db) == []


@pytest.mark.sqlite
def test_data_deleted_before_a_kill_is_erased_at_the_next_start(serve: Callable[..., Server]) -> None:
    server = serve()
    run = server.start_run()
    server.request("POST", f"{API}/runs/{run}/tasks", {"tasks": [secret_report(random.Random(3))] * 50})
    assert server.request("DELETE", f"{API}/runs/{run}").status_code == 204
    server.stop(signal.SIGKILL)
    assert secrets_in_files(serve(until=LISTENING).db) == set()


@pytest.mark.sqlite
@pytest.mark.parametrize("suffix", ["-wal", "-journal"])
def test_database_is_not_created_next_to_an_orphaned_wal_or_journal(tmp_path: Path, suffix: str) -> None:
    (tmp_path / f"moved.db{suffix}").write_bytes(b"acknowledged")
    with pytest.raises(DatabaseUnusable, match="put the database back, or remove the log"):
        findings_service.create_app(db=str(tmp_path / "moved.db"))
    assert files_in(tmp_path) == {f"moved.db{suffix}": b"acknowledged"}


@pytest.mark.sqlite
def test_service_erases_data_from_the_wal_that_another_process_deletes(serve: Callable[..., Server]) -> None:
    server = serve(program=program_with(MAINTENANCE_PAUSE=0.2))
    run = server.start_run()
    server.request("POST", f"{API}/runs/{run}/tasks", {"tasks": [secret_report(random.Random(3))]})
    server.request("PATCH", f"{API}/runs/{run}", {"status": "failed"})
    time.sleep(0.01)
    assert command("prune", "--finished-before", "0s", "--yes", "--db", str(server.db)).returncode == 0
    wait_until(lambda: not secrets_in_files(server.db), 30)


def test_run_deletion_is_atomic_when_the_service_is_killed(serve: Callable[..., Server]) -> None:
    dice = random.Random(8)
    for _ in range(4):
        server = serve(until=LISTENING, FINDINGS_API_KEY=SECRET)
        server.request("POST", f"{API}/project-types", {"name": "web"}, key=SECRET)
        run = server.request("POST", f"{API}/runs", {"projectType": "web"}, key=SECRET).json["id"]
        for _ in range(4):
            batch = {"tasks": [task(description="x" * 3000)] * 1000}
            assert server.request("POST", f"{API}/runs/{run}/tasks", batch, key=SECRET).status_code == 201
        with ThreadPoolExecutor(1) as pool:
            deletion_request = pool.submit(server.request, "DELETE", f"{API}/runs/{run}", key=SECRET)
            time.sleep(dice.uniform(0.01, 0.4))
            server.stop(signal.SIGKILL)
        with connect_directly(server.db) as connection:
            runs = connection.execute("SELECT COUNT(*) FROM runs WHERE id = ?", (run,)).fetchone()
            tasks = connection.execute("SELECT COUNT(*) FROM tasks WHERE run_id = ?", (run,)).fetchone()
        was_acknowledged = deletion_request.exception() is None
        assert (*runs, *tasks) in ([(0, 0)] if was_acknowledged else [(0, 0), (1, 4000)])
        assert integrity_errors_of(server.db) == []
