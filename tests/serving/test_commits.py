"""Commit groups, which store the writes of several requests in one transaction, and reads during writes."""

from __future__ import annotations

import asyncio
import json
import shutil
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import flask
import pytest

import findings_service
from findings_adapters.serving import commits
from tests import clients
from tests.clients import API, PRINCIPAL, Client, assert_storage_problem, client_of, database_of, rows_of, task
from tests.engines import connect_directly, full_error, integrity_errors_of, locked
from tests.scenarios import assert_timed_out, raise_panic
from tests.servers import PATIENCE, HttpResponse, Server, program_with, wait_until

RESULTS = ("created", "updated", "reopened", "unchanged")


class CommitGroup:
    """Requests whose writes are committed in one transaction, as the commit scheduler does it."""

    def __init__(self, app: flask.Flask, key: str) -> None:
        self.service = app.extensions["findings"]
        self.writes = commits.CommitScheduler(self.service.database, self.service.listeners)
        self._key = key

    def environ(self, method: str, path: str, body: Any = None, **headers: str) -> dict[str, Any]:
        """Return the WSGI environment of a request, as granian passes it."""
        environ = {"REQUEST_METHOD": method, "PATH_INFO": path, "QUERY_STRING": "", "CONTENT_TYPE": "application/json"}
        environ |= {f"HTTP_{name.upper()}": value for name, value in headers.items()}
        text = b"" if body is None else json.dumps(body).encode()
        return environ | {"HTTP_AUTHORIZATION": f"Bearer {self._key}", "body": text}

    def send(self, *environs: dict[str, Any]) -> list[tuple[int, Any]]:
        """Send requests as one commit group, and return the status and JSON of each response."""
        requests = [findings_service.ApiRequest(self.service, environ, environ["PATH_INFO"]) for environ in environs]
        results = [request.begin(findings_service.Body(request.environ["body"])) for request in requests]
        pairs = zip(requests, results, strict=True)
        results = [
            request.finish(each) if isinstance(each, findings_service.ThreadJob) else each for request, each in pairs
        ]
        writes = [commits.Write(each, None) for each in results if isinstance(each, findings_service.PendingWrite)]
        self.writes._waiting.extend(writes)
        self.writes._settle = lambda _: None
        while self.writes._waiting:
            self.writes._commit_group()
        stored = (write.answer for write in writes)
        responses = [each if isinstance(each, findings_service.Response) else next(stored) for each in results]
        return [(each.status, json.loads(each.body) if each.body else None) for each in responses]


def raise_busy() -> NoReturn:
    raise findings_service.Busy("locked")


@pytest.fixture
def group(app: flask.Flask, client: Client, monkeypatch: pytest.MonkeyPatch) -> CommitGroup:
    """A commit group without a time limit, so that a slow machine does not split it."""
    monkeypatch.setattr(commits, "GROUP_TIME", 60)
    return CommitGroup(app, client.key)


@pytest.mark.sqlite
def test_one_group_can_contain_a_triage_and_a_run_completion(client: Client, run: str, group: CommitGroup) -> None:
    client.add(run, externalId="gone", status="open")
    task_id = client.add(run, externalId="kept", status="in_progress")
    second = client.start(targetUrl="https://example.com/")
    client.add(second, externalId="kept", status="in_progress")
    (status, _), (_, ended) = group.send(
        group.environ("PATCH", f"{API}/tasks/{task_id}", {"status": "dismissed"}),
        group.environ("PATCH", f"{API}/runs/{second}", {"status": "completed", "resolveMissing": True}),
    )
    assert (status, ended["submitted"]["resolved"]) == (200, 1)
    assert client.read("tasks", missingFrom=second)["total"] == 0


@pytest.mark.sqlite
def test_write_is_busy_after_busy_timeout_while_another_write_runs(make_app: Callable[..., flask.Flask]) -> None:
    app, started, release = make_app(busy_timeout="0.3"), threading.Event(), threading.Event()
    client = client_of(app)

    async def commit_both(scheduler: commits.CommitScheduler) -> tuple[int, bool, int]:
        slow = SimpleNamespace(
            part=None, apply=lambda _: (started.set(), release.wait(60)) and findings_service.Response(204, {})
        )
        first = asyncio.create_task(scheduler.commit(slow))
        await asyncio.to_thread(started.wait)
        second = await scheduler.commit(SimpleNamespace(part=None, apply=raise_panic))
        health = client.get("/healthz").status_code
        first_is_running = not first.done()
        release.set()
        return second.status, first_is_running, health

    scheduler = commits.CommitScheduler(database_of(app), findings_service.Listeners())
    scheduler.start()
    try:
        assert asyncio.run(commit_both(scheduler)) == (503, True, 200)
    finally:
        scheduler.stop()


def test_idle_run_times_out_under_continuous_writes(serve: Callable[..., Server]) -> None:
    server = serve(program=program_with(MAINTENANCE_PAUSE=0.2))
    idle, busy = server.start_run(), server.start_run()
    with connect_directly(server.db) as connection:
        connection.execute("UPDATE runs SET last_used_at = '2026-01-01T00:00:00.000Z' WHERE id = ?", (idle,))

    def failed() -> bool:
        assert server.request("POST", f"{API}/runs/{busy}/tasks", task()).status_code == 201
        return "failed" in [each["status"] for each in server.request("GET", f"{API}/runs").json["runs"]]

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(wait_until, [failed] * 3))
    assert_timed_out(server.request("GET", f"{API}/runs/{idle}").json)


@pytest.mark.sqlite
def test_wal_is_truncated_after_a_deletion_once_the_last_reader_ends(
    make_app: Callable[..., flask.Flask], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("findings_adapters.serving.commits.MAINTENANCE_PAUSE", 0.1)
    app = make_app(run_timeout="0.1")
    client, database = client_of(app), database_of(app)
    client.register("web")
    client.start()
    with closing(sqlite3.connect(tmp_path / "findings.db", isolation_level=None)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT COUNT(*) FROM runs").fetchone()
        with database.transaction() as connection:
            connection.transaction.erases = True
        writes = commits.CommitScheduler(database, findings_service.Listeners())
        for _ in range(9):
            time.sleep(0.03)
            next(writes._maintenance)
        assert database.wal_size() > 0
        assert rows_of(app, "SELECT status FROM runs") == [("failed",)]
    for _ in range(3):
        next(writes._maintenance)
    assert database.wal_size() == 0


def count_reads_during(server: Server, write: Callable[..., HttpResponse], *arguments: Any) -> int:
    """Return how many reads are answered while a write is in progress."""
    reads = 0
    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(write, *arguments)
        while not writing.done():
            assert server.request("GET", f"{API}/runs").status_code == 200
            reads += not writing.done()
    assert writing.result().status_code in (200, 201)
    return reads


def test_reads_continue_during_large_batches_and_resolve_missing(server: Server) -> None:
    run, second = server.start_run(), server.start_run()
    batches = [json.dumps({"tasks": [task(externalId=f"{batch}.{n}") for n in range(1000)]}) for batch in range(5)]
    reads = [count_reads_during(server, server.request, "POST", f"{API}/runs/{run}/tasks", batch) for batch in batches]
    assert sum(reads) > 40, reads  # about three per batch if reads waited for writes
    completion = {"status": "completed", "resolveMissing": True}
    assert count_reads_during(server, server.request, "PATCH", f"{API}/runs/{second}", completion) > 10
    assert server.request("GET", f"{API}/tasks?status=resolved&limit=1").json["total"] == 5000


def test_acknowledged_write_is_visible_on_every_connection(server: Server) -> None:
    def write_and_read(_: int) -> int:
        path, seen = f"{API}/runs/{server.start_run()}", 0
        for n in range(1, 21):
            submitted = server.request("POST", f"{path}/tasks", {"tasks": [task(), task()]}).json["tasks"]
            listed = server.request("GET", f"{API}/tasks?limit=2&runId={path.rpartition('/')[2]}").json["tasks"]
            assert [item["id"] for item in reversed(listed)] == [item["id"] for item in submitted]
            assert server.request("PATCH", f"{API}/tasks/{listed[0]['id']}", {"status": "dismissed"}).status_code == 200
            assert server.request("GET", f"{API}/tasks/{listed[0]['id']}").json["status"] == "dismissed"
            seen += server.request("GET", path).json["summary"]["total"] == 2 * n
        return seen

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(write_and_read, range(4))) == [20] * 4


SYNC = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

static int sync_file(const char *name, int file) {
    if (access(getenv("SLOW_WHILE"), F_OK) == 0) usleep(atoi(getenv("SLOW_BY")));
    if (access(getenv("BROKEN_WHILE"), F_OK) == 0) { errno = EIO; return -1; }
    return ((int (*)(int)) dlsym(RTLD_NEXT, name))(file);
}

int fsync(int file) { return sync_file("fsync", file); }
int fdatasync(int file) { return sync_file("fdatasync", file); }
"""


@pytest.fixture
def faulty_disk_server(tmp_path: Path, serve: Callable[..., Server]) -> Iterator[Server]:
    """A server whose fsync takes 0.3 s longer while the file `slow` exists, and fails while `broken` exists."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if sys.platform != "linux" or compiler is None:
        pytest.skip("slowing down fsync requires Linux and a C compiler")
    (tmp_path / "sync.c").write_text(SYNC)
    library = str(tmp_path / "sync.so")
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, str(tmp_path / "sync.c"), "-ldl"], check=True)
    slow = {"SLOW_WHILE": str(tmp_path / "slow"), "SLOW_BY": "300000"}  # microseconds
    yield serve(LD_PRELOAD=library, BROKEN_WHILE=str(tmp_path / "broken"), **slow)
    (tmp_path / "slow").unlink(missing_ok=True)


@pytest.mark.sqlite
def test_reads_continue_while_a_slow_disk_commits_a_write(faulty_disk_server: Server, tmp_path: Path) -> None:
    """Writes that arrive meanwhile share the next commit."""
    path = f"{API}/runs/{faulty_disk_server.start_run()}/tasks"
    (tmp_path / "slow").touch()
    began = time.monotonic()
    assert count_reads_during(faulty_disk_server, faulty_disk_server.request, "POST", path, task()) > 10
    one_commit, began = time.monotonic() - began, time.monotonic()
    with ThreadPoolExecutor(10) as pool:
        statuses = list(pool.map(lambda _: faulty_disk_server.request("POST", path, task()).status_code, range(10)))
    assert statuses == [201] * 10
    assert time.monotonic() - began < 5 * one_commit  # fewer than ten commits


@pytest.mark.sqlite
def test_write_is_not_acknowledged_if_fsync_fails(faulty_disk_server: Server, tmp_path: Path) -> None:
    path = f"{API}/runs/{faulty_disk_server.start_run()}/tasks"
    (tmp_path / "broken").touch()
    with ThreadPoolExecutor(4) as pool:
        responses = list(pool.map(lambda _: faulty_disk_server.request("POST", path, task()), range(8)))
    for response in responses:
        assert_storage_problem(response, "storage_full")
    assert faulty_disk_server.request("GET", f"{API}/tasks").json["total"] == 0
    (tmp_path / "broken").unlink()
    assert faulty_disk_server.request("POST", path, task()).status_code == 201
    assert faulty_disk_server.request("GET", f"{API}/tasks").json["total"] == 1
    assert faulty_disk_server.stop() == 0
    assert integrity_errors_of(faulty_disk_server.db) == []


def crash(connection: Any) -> NoReturn:
    findings_service.insert_client(connection, "half")
    raise IndexError("unexpected error of a write")


def test_errors_in_a_write_or_listener_do_not_stop_the_writer(
    app: flask.Flask, caplog: pytest.LogCaptureFixture
) -> None:
    listeners = findings_service.Listeners()
    listeners.committed.append(lambda _: 1 // 0)
    environ = {"REQUEST_METHOD": "POST"}
    request = findings_service.ApiRequest(app.extensions["findings"], environ, "/", PRINCIPAL)

    async def write() -> list[int]:
        writes = commits.CommitScheduler(database_of(app), listeners)
        writes.start()
        try:
            pending = [findings_service.PendingWrite(request, store) for store in (crash, lambda _: None) * 2]
            return [(await asyncio.wait_for(writes.commit(each), PATIENCE)).status for each in pending]
        finally:
            writes.stop()

    assert asyncio.run(write()) == [500, 204] * 2
    assert "unexpected error of a write" in caplog.text
    assert "ZeroDivisionError" in caplog.text
    assert rows_of(app, "SELECT id FROM clients WHERE id = 'half'") == []


@pytest.mark.sqlite
@pytest.mark.parametrize("key", [None, "k"])
def test_run_completed_within_a_group_stores_only_earlier_reports(
    client: Client, run: str, group: CommitGroup, key: str | None
) -> None:
    path, headers = f"{API}/runs/{run}", {"Idempotency_Key": key} if key else {}
    responses = group.send(
        *(group.environ("POST", f"{path}/tasks", task(externalId=name)) for name in "ab"),
        group.environ("POST", f"{path}/tasks", task(externalId="b", title="newer"), **headers),
        group.environ("POST", f"{path}/tasks", task(severity="worst")),
        group.environ("POST", f"{API}/runs/nowhere/tasks", task()),
        group.environ("PATCH", path, {"status": "completed"}),
        group.environ("POST", f"{path}/tasks", task(externalId="c")),
    )
    assert [status for status, _ in responses] == [201, 201, 200, 422, 404, 200, 409]
    stored = {item["externalId"]: (item["title"], item["timesSeen"]) for item in client.read("tasks")["tasks"]}
    assert stored == {"a": (task()["title"], 1), "b": ("newer", 1)}
    assert client.read(f"runs/{run}")["summary"]["total"] == 2


@pytest.mark.sqlite
def test_writes_to_one_task_in_a_group_are_applied_in_order(client: Client, run: str, group: CommitGroup) -> None:
    ids = [client.add(run) for _ in range(2)]
    path = f"{API}/tasks/{ids[0]}"
    responses = group.send(
        group.environ("PATCH", path, {"status": "in_progress"}),
        group.environ("PATCH", f"{API}/tasks", {"ids": ids, "status": "dismissed"}),
        group.environ("PATCH", path, {"comment": "so be it"}),
        group.environ("DELETE", path),
    )
    assert [status for status, _ in responses] == [200, 200, 200, 204]
    assert [responses[0][1]["status"], responses[2][1]["status"]] == ["in_progress", "dismissed"]
    assert [item["id"] for item in client.read("tasks")["tasks"]] == ids[1:]


@pytest.mark.sqlite
def test_single_reports_of_one_sender_and_run_are_stored_together(
    app: flask.Flask, client: Client, group: CommitGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes, submit_reports = list[int](), findings_service.submit_reports

    def counting(*arguments: Any) -> Any:
        sizes.append(len(arguments[3]))
        return submit_reports(*arguments)

    client.register("web")
    target = {"targetUrl": "https://example.com/"}
    first = client.start(**target)
    known, fixed = (client.add(first, externalId=name) for name in ("known", "fixed"))
    client.triage(fixed, "resolved")
    path, other = (f"{API}/runs/{client.start(**target)}/tasks" for _ in range(2))
    reports = [
        (path, {"externalId": "new"}, "created"),
        (path, {"title": "one"}, "created"),
        (path, {"externalId": "known"}, "unchanged"),
        (path, {"title": "two"}, "created"),
        (path, {"externalId": "fixed"}, "reopened"),
        (path, {"externalId": "new", "title": "newer"}, "updated"),  # again, so it begins another submission
        (path, {"externalId": "last"}, "created"),
        (other, {"externalId": "last"}, "unchanged"),
    ]
    monkeypatch.setattr(findings_service, "submit_reports", counting)
    responses = group.send(*(group.environ("POST", address, task(**fields)) for address, fields, _ in reports))
    assert sizes == [5, 2, 1]
    for (status, answer), (_, _, result) in zip(responses, reports, strict=True):
        assert status == (201 if result == "created" else 200)
        assert {name: answer[name] for name in RESULTS} == {name: int(name == result) for name in RESULTS}
        assert [each["result"] for each in answer["tasks"]] == [result]
    new, one, *others, two, reopened, newer, last, again = (answer["tasks"][0]["id"] for _, answer in responses)
    assert (others, reopened, newer, again) == ([known], fixed, new, last)
    titles = {item["id"]: item["title"] for item in client.read("tasks")["tasks"]}
    assert [titles[each] for each in (new, one, two)] == ["newer", "one", "two"]
    assert integrity_errors_of(database_of(app).settings.db) == []


@pytest.mark.sqlite
def test_failed_write_leaves_the_rest_of_its_group_intact(
    client: Client, run: str, group: CommitGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    insert = findings_service.insert_history

    def failing(connection: Any, *arguments: Any) -> None:
        insert(connection, *arguments)
        seqs = [(entry[0],) for entry in arguments[-1]]
        if ("bad",) in [connection.execute("SELECT title FROM tasks WHERE seq = ?", seq).fetchone() for seq in seqs]:
            raise sqlite3.IntegrityError("made up")

    monkeypatch.setattr(findings_service, "insert_history", failing)
    path = f"{API}/runs/{run}/tasks"
    titles = ("one", "two", "bad", "three")
    responses = group.send(*(group.environ("POST", path, task(title=title)) for title in titles))
    assert [status for status, _ in responses] == [201, 201, 500, 201]
    assert {item["title"] for item in client.read("tasks")["tasks"]} == {"one", "two", "three"}
    assert client.read(f"runs/{run}")["submitted"]["created"] == 3


@pytest.mark.sqlite
def test_decisions_of_one_sender_are_stored_together(
    app: flask.Flask, client: Client, run: str, group: CommitGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes, triage_tasks = list[int](), findings_service.triage_tasks

    def counting(*arguments: Any) -> Any:
        sizes.append(len(arguments[2]))
        return triage_tasks(*arguments)

    one, two, three, copy = ids = [client.add(run, externalId=name) for name in ("b", "a", "d", "c")]
    decisions = [
        (one, {"status": "in_progress", "assignee": "ann"}),
        (two, {"status": "dismissed", "reason": "wont_fix", "comment": "so be it"}),
        (three, {"severity": "low"}),
        (one, {"status": "resolved"}),  # again, so it begins another joint write
        (two, {"comment": "again"}),  # with an Idempotency-Key
        (copy, {"status": "dismissed", "reason": "duplicate", "duplicateOf": one}),  # depends on the others
        (three, {"comment": "last"}),
    ]
    monkeypatch.setattr(findings_service, "triage_tasks", counting)
    environs = [group.environ("PATCH", f"{API}/tasks/{each}", update) for each, update in decisions]
    environs[1]["HTTP_IF_MATCH"] = client.get(f"{API}/tasks/{two}").headers["ETag"]
    environs[4]["HTTP_IDEMPOTENCY_KEY"] = "k"
    responses = group.send(*environs)
    assert sizes == [3, 1, 1, 1, 1]
    assert group.send(environs[4]) == [responses[4]]
    for (status, answer), (task_id, update) in zip(responses, decisions, strict=True):
        assert (status, answer["id"]) == (200, task_id)
        assert {name: answer[name] for name in update if name != "comment"}.items() <= update.items()
    for task_id in ids:
        last = max(index for index, (each, _) in enumerate(decisions) if each == task_id)
        assert responses[last][1] == client.read(f"tasks/{task_id}")
    kinds = ("status", "assigned"), ("status",), ("severity",), ("status",), ("commented",), ("status",), ("commented",)
    expected = [(each, f"finding.{kind}") for (each, _), found in zip(decisions, kinds, strict=True) for kind in found]
    events = client.read("events")["events"][-len(expected) :]
    assert [(each["task"]["id"], each["type"]) for each in events] == expected
    assert integrity_errors_of(database_of(app).settings.db) == []


@pytest.mark.sqlite
@pytest.mark.parametrize("is_first", [False, True])
@pytest.mark.parametrize("failing", ["missing", "changed", "refused"])
def test_failed_decision_leaves_the_others_of_its_joint_write_intact(
    client: Client, run: str, group: CommitGroup, failing: str, is_first: bool
) -> None:
    before, one, bad, two = (client.add(run) for _ in range(4))
    path = f"{API}/tasks/"
    status, failed = {
        "missing": (404, group.environ("PATCH", f"{path}missing", {"comment": "so"})),
        "changed": (412, group.environ("PATCH", f"{path}{bad}", {"comment": "so"}, If_Match='"other"')),
        "refused": (422, group.environ("PATCH", f"{path}{bad}", {"reason": "fixed"})),
    }[failing]
    environs = [group.environ("PATCH", f"{path}{each}", {"comment": "so"}) for each in (one, two)]
    environs.insert(1, failed)
    if not is_first:
        environs.insert(0, group.environ("DELETE", f"{path}{before}"))
    responses = group.send(*environs)
    assert [status for status, _ in responses[-3:]] == [200, status, 200]
    comments = [[each["comment"] for each in client.history(task_id)[1:]] for task_id in (one, bad, two)]
    assert comments == [["so"], [], ["so"]]
    assert client.read("tasks")["total"] == (4 if is_first else 3)


@pytest.mark.sqlite
@pytest.mark.parametrize("position", [0, 1])
def test_write_that_fails_after_changing_rows_neither_undoes_nor_repeats_others(
    app: flask.Flask, client: Client, run: str, group: CommitGroup, position: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit_group, groups = group.writes._commit_group, list[None]()
    monkeypatch.setattr(group.writes, "_commit_group", lambda: groups.append(commit_group()))
    path = f"{API}/runs/{run}"
    client.patch(path, json={"metadata": {"a": "x" * 40_000}})
    environs = [group.environ("POST", f"{path}/tasks", task()) for _ in range(2)]
    change = {"status": "completed", "metadata": {"b": "x" * 40_000}}
    environs.insert(position, group.environ("PATCH", path, change))
    statuses = [status for status, _ in group.send(*environs)]
    assert statuses.pop(position) == 422
    assert statuses == [201, 201]
    assert len(groups) == 2 - position
    stored = client.read(f"runs/{run}")
    assert (stored["status"], stored["summary"]["total"], [*stored["metadata"]]) == ("running", 2, ["a"])
    assert integrity_errors_of(database_of(app).settings.db) == []


@pytest.mark.sqlite
def test_failed_joint_write_is_busy_if_the_database_is_then_locked(
    client: Client, run: str, group: CommitGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = [f"{API}/tasks/{each}" for each in (client.add(run), "missing")]
    transactions = iter((group.service.database.transaction, raise_busy))
    monkeypatch.setattr(group.service.database, "transaction", lambda: next(transactions)())
    responses = group.send(*(group.environ("PATCH", path, {"comment": "so"}) for path in paths))
    assert [status for status, _ in responses] == [503, 503]


@pytest.mark.sqlite
def test_writes_of_different_users_are_not_stored_together(app: flask.Flask, client: Client, run: str) -> None:
    group = CommitGroup(app, clients.make_key(app, "proxy", for_users=True))
    path, users = f"{API}/runs/{run}/tasks", ("ann", "bob", "bob")
    environs = (
        group.environ("POST", path, task(externalId=f"{n}"), Findings_User=user) for n, user in enumerate(users)
    )
    ids = [answer["tasks"][0]["id"] for _, answer in group.send(*environs)]
    paths = zip(ids, users[::-1], strict=True)
    group.send(
        *(group.environ("PATCH", f"{API}/tasks/{each}", {"comment": "so"}, Findings_User=user) for each, user in paths)
    )
    found = [[entry["user"] for entry in client.history(each)] for each in ids]
    assert found == [["ann", "bob"], ["bob", "bob"], ["bob", "ann"]]


@pytest.mark.sqlite
def test_group_fails_as_a_whole_if_the_engine_rolls_back_its_transaction(
    app: flask.Flask, client: Client, run: str, group: CommitGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    def roll_back(connection: Any, *_: Any) -> NoReturn:
        connection.execute("ROLLBACK")
        raise full_error()

    monkeypatch.setattr(findings_service, "insert_history", roll_back)
    path = f"{API}/runs/{run}/tasks"
    responses = group.send(*(group.environ("POST", path, task()) for _ in range(3)))
    assert [status for status, _ in responses] == [503] * 3
    assert not clients.writer_of(app).in_transaction
    assert client.read("tasks")["total"] == 0


def test_queued_writes_of_disconnected_clients_are_stored(server: Server) -> None:
    path, body = f"{API}/runs/{server.start_run()}/tasks", json.dumps(task()).encode()
    with locked(server.db):
        for _ in range(5):
            with server.begin_post(path, len(body)) as connection:
                connection.sendall(body)
                time.sleep(0.1)
    assert server.request("POST", path, task()).status_code == 201
    wait_until(lambda: server.request("GET", f"{API}/tasks").json["total"] == 6)  # PostgreSQL stores several at once
    assert "Traceback" not in server.log_text()


def test_maintenance_continues_after_a_base_exception(app: flask.Flask, monkeypatch: pytest.MonkeyPatch) -> None:
    steps, runs = commits.maintenance_steps(database_of(app)), []
    with monkeypatch.context() as patched:
        patched.setattr(database_of(app), "run_maintenance", raise_panic)
        next(steps)
    monkeypatch.setattr(database_of(app), "run_maintenance", lambda: runs.append(1))
    next(steps)
    assert runs == [1]
