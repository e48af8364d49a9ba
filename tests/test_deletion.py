"""What goes for good: DELETE, `prune`, and what is not kept."""

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
    """A client with a project type, behind which the database must be sound."""
    made = client_of(app)
    made.register("web")
    yield made
    assert integrity_errors_of(db) == []


@pytest.fixture
def db(tmp_path: Path) -> Path:
    return tmp_path / "findings.db"


def key_of(app: flask.Flask, run: str) -> findings_service.RunKey:
    """Return a run as the store knows it."""
    with database_of(app).reading() as connection:
        return findings_service.select_run_key(connection, "default", run)


def prune_slice(app: flask.Flask, run: findings_service.RunKey, size: int = 1000) -> tuple[int, bool]:
    """Prune some tasks of a run, and return how many, and whether the run is gone."""
    with database_of(app).transaction() as connection:
        return deletion.prune_slice(connection, "default", run, size)


# Growing old


def test_a_branch_knows_what_another_run_of_it_reports(client: Client) -> None:
    start_on(client, "a", "x")
    client.remove(f"runs/{start_on(client, 'a', 'x')}")
    assert client.read("tasks", branch="a")["total"] == 1


def test_prune_removes_old_runs_and_what_only_they_report(app: flask.Flask, client: Client, db: Path) -> None:
    stranger = client_of(app, client="other")
    stranger.register("web")
    theirs = completed_run(stranger, None, a="high", e="low")
    old, older, young, running = (client.start(targetUrl="https://example.com/") for _ in range(4))
    for run, names in ((old, "abx"), (older, "bcx"), (young, "cd"), (running, "ad")):
        client.submit(run, *[task(externalId=name) for name in names], task())
    client.triage(client.read("tasks", externalId="x")["tasks"][0]["id"], "dismissed")
    for run in (old, older, young):
        client.finish(run)
    finish_ago(app, 91, old, older, theirs, completed_run(stranger, None))
    finish_ago(app, 89, young)
    before = stored_rows(db)
    assert prune(db, "--dry-run") == [3, 6]
    assert stored_rows(db) == before
    assert prune(db) == [3, 6]
    left = client.read("tasks")
    assert sorted(each["externalId"] or "" for each in left["tasks"]) == ["", "", "a", "c", "d"]
    assert (left["total"], client.read(f"runs/{young}")["summary"]["total"], count_all(stranger)) == (5, 3, [1, 0, 1])
    assert {each["id"] for each in client.read("runs")["runs"]} == {young, running}
    assert prune(db) == [0, 0]
    assert client.submit(running, task(externalId="b"))["created"] == 1


def test_a_branch_goes_with_its_last_run_and_task(app: flask.Flask, client: Client, run: str, db: Path) -> None:
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


def test_a_run_goes_in_slices_between_which_all_is_sound(app: flask.Flask, client: Client, run: str, db: Path) -> None:
    shared = client.start(targetUrl="https://example.com/")
    for run_id, names in ((run, "abcd"), (shared, "bd")):
        client.submit(run_id, *[task(externalId=name) for name in names], task())
    client.finish(run)
    key, removed, gone = key_of(app, run), [], False
    while not gone:
        tasks, gone = prune_slice(app, key, 2)
        removed.append(tasks)
        assert integrity_errors_of(db) == []
        assert client.read("tasks")["total"] == 6 - sum(removed)
    assert removed == [1, 1, 1]
    assert [each["id"] for each in client.read("runs")["runs"]] == [shared]
    assert client.read("tasks", runId=shared)["total"] == 3
    assert prune_slice(app, key) == (0, True)


def test_prune_takes_no_number_without_a_unit_and_nothing_new_unless_told(client: Client, db: Path) -> None:
    for words, code, told in (
        *(
            ([each, "--yes"], 2, f"'{each}' is not a duration: it must have a unit: 12h or 90d")
            for each in ("90", "0", "1w")
        ),
        (["59m"], 2, "is less than an hour; use a longer duration, or --yes to remove such runs"),
        (["59m", "--dry-run"], 0, "Would remove"),
        (["59m", "--yes"], 0, "Removed"),
        (["1h"], 0, "Removed"),
    ):
        done = invoke("prune", "--db", str(db), "--finished-before", *words)
        assert (done.exit_code, told in done.output) == (code, True), words


def test_two_prunes_go_beside_a_server_that_is_writing(server: Server) -> None:
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
    for run in partial_runs:  # which are no baseline
        client.submit(run, task(externalId="n", rule="not-checked"))
        client.finish(run)
    finish_ago(app, 91, newest, *partial_runs)
    assert prune(db, "--yes") == [2, 0]
    assert [each["id"] for each in client.read("runs")["runs"]] == [partial_runs[1], newest, *kept[:0:-1]]


def maintained(database: findings_service.Database, steps: int = 20) -> None:
    """Do some steps of the maintenance, without the pauses between them."""
    maintenance = commits.maintenance_steps(database)
    for _ in range(steps):
        next(maintenance)


@pytest.fixture
def keeping(make_app: Callable[..., flask.Flask], monkeypatch: pytest.MonkeyPatch) -> findings_service.Database:
    """A database that is to keep runs for 90 days, and whose maintenance is this process's."""
    database = database_of(make_app(keep="90d"))
    monkeypatch.setattr(database, "owns_maintenance", lambda: True)
    return database


def test_the_clock_removes_no_more_than_half_of_a_clients_runs(
    keeping: findings_service.Database,
    client: Client,
    db: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(commits, "FORGETTING", 0)
    app, other = client.application, client_of(client.application, client="other")
    other.register("web")
    finish_ago(app, 91, completed_run(client, None), completed_run(client, None), completed_run(other, None))
    completed_run(client, None)
    completed_run(other, None)
    maintained(keeping)
    assert [count_all(each)[0] for each in (client, other)] == [3, 1]
    assert ["'default'" in each and "--yes" in each for each in caplog.messages] == [True]
    monkeypatch.setattr(commits, "WARNED_FOR", 0)
    maintained(keeping)
    assert len(caplog.messages) > 2
    assert count_all(client)[0] == 3
    assert prune(db, "--yes") == [2, 0]
    finish_ago(app, 91, completed_run(client, None))
    completed_run(client, None)
    maintained(keeping)
    assert count_all(client)[0] == 2


TIMESTAMP, MONOTONIC = findings_service.timestamp, time.monotonic


def test_nothing_is_removed_for_an_hour_after_the_clock_jumped_ahead(
    keeping: findings_service.Database,
    client: Client,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    finish_ago(client.application, 89, completed_run(client, "topic"))
    running = completed_run(client, None), completed_run(client, None), client.start()
    maintenance = commits.maintenance_steps(keeping)
    next(maintenance)
    for days, hours, left in ((2, 0, 4), (2, 0.9, 4), (2, 1.1, 3)):
        patch_core(monkeypatch, "timestamp", lambda ago=0.0, by=days: TIMESTAMP(ago - by * 86_400))
        monkeypatch.setattr(findings_service.time, "monotonic", lambda by=hours: MONOTONIC() + by * 3600)
        for _ in range(9):
            next(maintenance)
        assert count_all(client)[0] == left
    assert [each for each in caplog.messages if "jumped" in each] == caplog.messages[:1]
    assert client.read(f"runs/{running[-1]}")["status"] == "failed"


def test_forgetting_holds_nobody_up(serve: Callable[..., Server]) -> None:
    """What a server is not to keep goes by the clock."""
    server = serve()
    young, running, old = (server.start_run() for _ in range(3))  # when the last has gone, so would the others have
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
    ask = partial(serve("--workers", "2", until=LISTENING, program=quick, FINDINGS_KEEP="2h").request, key=server.key)

    def is_done() -> bool:
        assert ask("GET", "/healthz").status_code == 200  # within two seconds
        left = ask("GET", f"{API}/runs?limit=1").json["total"]
        return left <= 1472 and ask("GET", f"{API}/runs/{old}").status_code == 404

    wait_until(is_done)
    assert sorted(each["externalId"] for each in ask("GET", f"{API}/tasks").json["tasks"]) == ["b", "c", "d"]
    assert integrity_errors_of(server.db) == []


def test_forgetting_pauses_after_each_run(
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


# Deleting


def test_what_has_no_etag_cannot_depend_on_one(client: Client, run: str) -> None:
    task_id, given = client.add(run), {"If-Match": "*"}
    answers = [client.patch(f"{API}/{path}", json={}, headers=given) for path in ("tasks", f"runs/{run}")]
    paths = (f"tasks/{task_id}", f"runs/{run}", "project-types/web")
    answers += [client.delete(f"{API}/{path}", headers=given) for path in paths]
    for answer in answers:
        assert_problem(answer, 400, "invalid_parameter", "If-Match")
    assert count_all(client) == [1, 1, 1]


def test_a_deleted_task_is_gone_from_every_answer(client: Client, run: str) -> None:
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
def test_a_deleted_run_takes_along_what_only_it_reports(client: Client, run: str, finish: bool) -> None:
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


def seen_by(client: Client) -> tuple[Any, ...]:
    """Return what the one task tells of the runs that report it."""
    (found,) = client.read("tasks")["tasks"]
    return tuple(found[name] for name in ("runId", "lastRunId", "timesSeen", "branch"))


def test_what_a_deleted_run_leaves_of_a_task_is_worked_out_again(client: Client, db: Path) -> None:
    branch, run = start_on(client, "a", "x"), start_on(client, None)
    found = client.add(run, externalId="x", title="Taken over")
    ignored, last = start_on(client, "b", "x"), start_on(client, None, "x")
    before = client.read("tasks")
    client.remove(f"runs/{start_on(client, 'c', 'x')}")  # whose report did not count
    assert client.read("tasks") == before
    for gone, left in (
        (last, (branch, run, 2, None)),
        (run, (branch, branch, 1, "a")),
        (branch, (ignored, ignored, 1, "b")),
    ):
        client.remove(f"runs/{gone}")
        assert seen_by(client) == left
        assert client.read("tasks", mainLine="true")["total"] == (left[-1] is None)
        assert integrity_errors_of(db) == []
    assert client.read("tasks", branch="a")["total"] == 0
    assert {each["runId"] for each in client.history(found)} == {None}


def test_a_deletion_finds_other_reporters_for_a_task_whose_first_was_pruned(app: flask.Flask, client: Client) -> None:
    pruned, second, third = (start_on(client, None, "x") for _ in range(3))
    assert prune_slice(app, key_of(app, pruned)) == (0, True)
    assert seen_by(client)[0] == pruned
    client.remove(f"runs/{third}")
    assert seen_by(client) == (second, second, 2, None)


def test_a_report_that_comes_to_count_as_the_first_is_taken_back_like_any(client: Client, db: Path) -> None:
    known = start_on(client, None, "x")
    first, second = start_on(client, "a", "x"), start_on(client, "b", "x")
    client.remove(f"runs/{known}")
    last = start_on(client, None, "x")
    assert seen_by(client) == (first, last, 2, None)
    for gone in (first, second):
        client.remove(f"runs/{gone}")
        assert seen_by(client) == (last, last, 1, None)
        assert integrity_errors_of(db) == []


def test_the_history_of_what_a_deleted_run_resolved_stays_without_its_id(client: Client, run: str) -> None:
    task_id = client.add(run, externalId="x")
    resolving = start_on(client, None)
    client.finish(resolving, resolveMissing=True)
    client.remove(f"runs/{resolving}")
    last = client.history(task_id)[-1]
    assert (last["event"], last["to"], last["runId"], last["by"]) == ("status", "resolved", None, "tests")
    assert client.history(task_id)[0]["runId"] == run


def test_a_project_type_goes_once_no_run_is_of_it(client: Client, run: str) -> None:
    problem = assert_problem(client.delete(f"{API}/project-types/web"), 409, "project_type_in_use")
    assert "There is 1 run of" in problem["detail"]
    client.remove(f"runs/{run}")
    client.remove("project-types/web")
    assert client.read("project-types") == {"projectTypes": []}
    assert_problem(client.delete(f"{API}/project-types/web"), 404, "not_found")


def test_no_counter_names_what_is_deleted(app: flask.Flask, client: Client, run: str) -> None:
    start_on(client, "a", "x")
    client.submit(run, task(externalId="x"), task())
    client.triage(client.add(run), "resolved")
    client.finish(run)
    for each in client.read("runs")["runs"]:
        client.remove(f"runs/{each['id']}")
    assert rows_of(app, "SELECT DISTINCT scope FROM counters ORDER BY scope") == [("changes",)]
    assert rows_of(app, "SELECT COUNT(*) FROM branches") == [(0,)]


KEPT = cases(
    task=("runs/RUN/tasks", {"tasks": [task(externalId="x")]}, "tasks/TASK", 409),
    run=("runs", {"projectType": "web"}, "runs/NEW", 409),
    run_of_a_task=("runs/RUN/tasks", {"tasks": [task(externalId="x")]}, "runs/RUN", 404),
    project_type=("project-types", {"name": "new", "label": "secret"}, "project-types/new", 409),
)


@pytest.mark.parametrize(("path", "body", "deleted", "status"), KEPT)
def test_a_kept_answer_goes_with_what_it_holds(
    app: flask.Flask, client: Client, run: str, path: str, body: Any, deleted: str, status: int
) -> None:
    path = path.replace("RUN", run)
    sent = post(client, path, body).json
    other = post(client, f"runs/{run}/tasks", {"tasks": [task(title="Other")]}, "other").data
    for name, value in (("RUN", run), ("NEW", sent.get("id", "")), ("TASK", sent.get("tasks", [{}])[0].get("id", ""))):
        deleted = deleted.replace(name, value)
    client.remove(deleted)
    again = post(client, path, body)
    assert_problem(again, status, "idempotency_conflict" if status == 409 else "not_found")
    if deleted != f"runs/{run}":
        assert post(client, f"runs/{run}/tasks", {"tasks": [task(title="Other")]}, "other").data == other
    kept = rows_of(app, "SELECT body FROM idempotent_answers")
    assert not any("secret" in text or '"x"' in text for (text,) in kept)


def decide(client: Client, path: str, **decision: Any) -> Any:
    """Make a decision with an Idempotency-Key."""
    return client.patch(f"{API}/{path}", json=decision, headers={"Idempotency-Key": "k"})


@pytest.mark.parametrize("deleted", ["tasks/TASK", "runs/RUN"])
def test_kept_answers_to_decisions_go_with_the_task(app: flask.Flask, client: Client, run: str, deleted: str) -> None:
    gone, kept = client.add(run, title="secret"), client.add(client.start("web"))
    of_gone = partial(decide, client, f"tasks/{gone}", comment="secret")
    of_kept = partial(decide, client, f"tasks/{kept}", comment="Kept.")
    of_both = partial(decide, client, "tasks", ids=[gone, kept], comment="secret")
    answers = [decision() for decision in (of_gone, of_kept, of_both)]
    assert [each.status_code for each in answers] == [200, 200, 200]
    client.remove(deleted.replace("TASK", gone).replace("RUN", run))
    assert_problem(of_gone(), 404, "not_found")
    assert of_kept().data == answers[1].data
    assert_problem(of_both(), 409, "idempotency_conflict")
    assert not any(gone in text for (text,) in rows_of(app, "SELECT body FROM idempotent_answers"))


def test_a_kept_answer_about_a_task_that_stays_tells_nothing_of_a_run_that_is_deleted(
    app: flask.Flask, client: Client, run: str
) -> None:
    first, other = client.start("web", branch="secret"), client.start("web", branch="other")
    task_id = client.add(first, externalId="x")
    client.add(other, externalId="x")
    comment = partial(decide, client, f"tasks/{task_id}", comment="Once.")
    assert comment().json["branch"] == "secret"
    client.remove(f"runs/{first}")
    assert_problem(comment(), 409, "idempotency_conflict")
    assert not any("secret" in text for (text,) in rows_of(app, "SELECT body FROM idempotent_answers"))


@pytest.mark.sqlite
def test_a_deletion_takes_no_longer_for_kept_answers_about_other_things(app: flask.Flask, client: Client) -> None:
    def deleted() -> int:
        """Return how many steps it takes to delete a task, a run and a project type."""
        run = post(client, "runs", {"projectType": "web"}, secrets.token_hex()).json["id"]
        client.register("other")
        with database_of(app).maintaining() as connection:
            paths = (f"tasks/{client.add(run)}", f"runs/{run}", "project-types/other")
            return sqlite_steps(connection, lambda: [client.remove(path) for path in paths])

    run = client.start()
    few = deleted()
    for number in range(300):
        decision = {"ids": [client.add(run)], "comment": "x"}
        headers = {"Idempotency-Key": str(number)}
        assert client.patch(f"{API}/tasks", json=decision, headers=headers).status_code == 200
        post(client, "project-types", {"name": "web"}, str(number))
    assert deleted() < 2 * few


def test_a_kept_answer_that_holds_a_replaced_schema_is_dropped(client: Client) -> None:
    definition = {"name": "new", "extensionSchema": {"title": "secret"}}
    post(client, "project-types", definition)
    assert client.put(f"{API}/project-types/new", json={"extensionSchema": {"title": "secret"}}).status_code == 200
    assert post(client, "project-types", definition).status_code == 201
    client.put(f"{API}/project-types/new", json={})
    assert_problem(post(client, "project-types", definition), 409, "idempotency_conflict")


def found_in_files(db: str | Path) -> set[str]:
    """Return the secrets that a database still holds: its rows, or its file and what SQLite keeps beside it."""
    return {each.decode() for each in re.findall(rb"SECRET[0-9a-f]{24}", stored_bytes(db))}


def secret_report(dice: random.Random) -> dict[str, Any]:
    """Return a task with a secret in each field, of any size."""
    long = "x" * dice.choice((0, 60, 600, 6000))
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


def test_what_is_deleted_is_nowhere_in_the_files_once_they_are_compact(
    app: flask.Flask, client: Client, run: str, db: Path
) -> None:
    dice, stored = random.Random(6), dict[str, set[str]]()
    for _ in range(6):
        reports = [secret_report(dice) for _ in range(60)]
        for item, report in zip(client.submit(run, *reports)["tasks"], reports, strict=True):
            stored[item["id"]] = secrets_of(report)
        for item, report in dice.sample(list(zip(list(stored)[-60:], reports, strict=True)), k=20):
            comment, longer = secret(), report | {"title": secret() + "y" * 300}
            client.submit(run, longer)
            client.triage(item, "dismissed", comment=comment)
            stored[item] |= secrets_of([comment, longer])
        gone = set[str]()
        for task_id in dice.sample(list(stored), k=30):
            client.remove(f"tasks/{task_id}")
            gone |= stored.pop(task_id)
        if not ON_POSTGRES:  # what SQLite copied into the gaps of its pages, when it split one, goes with this alone
            database_of(app).close()  # an application has no turns of its own in which it would truncate the log
            assert invoke("compact", "--db", str(db)).exit_code == 0
        assert found_in_files(db) & gone == set()
        assert integrity_errors_of(db) == []


def test_a_deleted_run_and_type_are_nowhere_in_the_files(client: Client, db: Path) -> None:
    name = secret()
    definition = {"name": name, "label": secret(), "description": secret(), "extensionSchema": {"title": secret()}}
    assert post(client, "project-types", definition).status_code == 201
    start = {"projectType": name, "targetUrl": f"https://{secret()}/", "branch": secret(), "metadata": {"a": secret()}}
    pull = post(client, "runs", start, "run").json["id"]
    client.submit(pull, *(secret_report(random.Random(1)) for _ in range(40)))
    client.finish(pull, statusReason=secret())
    assert client.put(f"{API}/project-types/{name}", json={"label": "new"}).status_code == 200
    assert not found_in_files(db) & secrets_of(definition) - {name}
    client.remove(f"runs/{pull}")
    assert found_in_files(db) == {name}
    client.remove(f"project-types/{name}")
    assert found_in_files(db) == set()


@pytest.mark.parametrize("workers", ["1", "2"])
def test_what_is_deleted_leaves_the_files_of_a_busy_server_within_five_seconds(
    serve: Callable[..., Server], workers: str
) -> None:
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
                wait_until(lambda: not found_in_files(server.db), 30)
        finally:
            done.set()
    assert all(each.exception() is None for each in loads)
    assert integrity_errors_of(server.db) == []


@pytest.mark.sqlite
def test_what_was_deleted_before_a_kill_is_erased_at_the_next_start(serve: Callable[..., Server]) -> None:
    server = serve()
    run = server.start_run()
    server.request("POST", f"{API}/runs/{run}/tasks", {"tasks": [secret_report(random.Random(3))] * 50})
    assert server.request("DELETE", f"{API}/runs/{run}").status_code == 204
    server.stop(signal.SIGKILL)
    assert found_in_files(serve(until=LISTENING).db) == set()


@pytest.mark.sqlite
@pytest.mark.parametrize("suffix", ["-wal", "-journal"])
def test_no_database_is_made_beside_the_log_of_one_that_was_moved(tmp_path: Path, suffix: str) -> None:
    (tmp_path / f"moved.db{suffix}").write_bytes(b"acknowledged")
    with pytest.raises(DatabaseUnusable, match="put both together"):
        findings_service.create_app(db=str(tmp_path / "moved.db"))
    assert files_in(tmp_path) == {f"moved.db{suffix}": b"acknowledged"}


@pytest.mark.sqlite
def test_what_another_process_deletes_leaves_the_log_of_a_service(serve: Callable[..., Server]) -> None:
    server = serve(program=program_with(MAINTENANCE_PAUSE=0.2))
    run = server.start_run()
    server.request("POST", f"{API}/runs/{run}/tasks", {"tasks": [secret_report(random.Random(3))]})
    server.request("PATCH", f"{API}/runs/{run}", {"status": "failed"})
    time.sleep(0.01)
    assert command("prune", "--finished-before", "0s", "--yes", "--db", str(server.db)).returncode == 0
    wait_until(lambda: not found_in_files(server.db), 30)


def test_a_run_is_deleted_whole_or_not_at_all_however_the_service_ends(serve: Callable[..., Server]) -> None:
    dice = random.Random(8)
    for _ in range(4):
        server = serve(until=LISTENING, FINDINGS_API_KEY=SECRET)
        server.request("POST", f"{API}/project-types", {"name": "web"}, key=SECRET)
        run = server.request("POST", f"{API}/runs", {"projectType": "web"}, key=SECRET).json["id"]
        for _ in range(4):
            batch = {"tasks": [task(description="x" * 3000)] * 1000}
            assert server.request("POST", f"{API}/runs/{run}/tasks", batch, key=SECRET).status_code == 201
        with ThreadPoolExecutor(1) as pool:
            deleted = pool.submit(server.request, "DELETE", f"{API}/runs/{run}", key=SECRET)
            time.sleep(dice.uniform(0.01, 0.4))
            server.stop(signal.SIGKILL)
        with connect_directly(server.db) as connection:
            runs = connection.execute("SELECT COUNT(*) FROM runs WHERE id = ?", (run,)).fetchone()
            tasks = connection.execute("SELECT COUNT(*) FROM tasks WHERE run_id = ?", (run,)).fetchone()
        was_answered = deleted.exception() is None
        assert (*runs, *tasks) in ([(0, 0)] if was_answered else [(0, 0), (1, 4000)])
        assert integrity_errors_of(server.db) == []
