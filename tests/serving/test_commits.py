"""Writes of many requests in one transaction, and reads beside them."""

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


class Group:
    """Requests that a service answers in one transaction, as the scheduler has it do."""

    def __init__(self, app: flask.Flask, key: str) -> None:
        self.service = app.extensions["findings"]
        self.writes = commits.CommitScheduler(self.service.database, self.service.listeners)
        self._key = key

    def environ(self, method: str, path: str, body: Any = None, **headers: str) -> dict[str, Any]:
        """Return a request as granian gives it."""
        environ = {"REQUEST_METHOD": method, "PATH_INFO": path, "QUERY_STRING": "", "CONTENT_TYPE": "application/json"}
        environ |= {f"HTTP_{name.upper()}": value for name, value in headers.items()}
        text = b"" if body is None else json.dumps(body).encode()
        return environ | {"HTTP_AUTHORIZATION": f"Bearer {self._key}", "body": text}

    def ask(self, *requests: dict[str, Any]) -> list[tuple[int, Any]]:
        """Return status and JSON of each answer."""
        calls = [findings_service.ApiRequest(self.service, environ, environ["PATH_INFO"]) for environ in requests]
        given = [call.begin(findings_service.Body(call.environ["body"])) for call in calls]
        pairs = zip(calls, given, strict=True)
        given = [call.finish(each) if isinstance(each, findings_service.ThreadJob) else each for call, each in pairs]
        writes = [commits.Write(each, None) for each in given if isinstance(each, findings_service.PendingWrite)]
        self.writes._waiting.extend(writes)
        self.writes._settle = lambda _: None
        while self.writes._waiting:
            self.writes._commit_group()
        stored = (write.answer for write in writes)
        answers = [each if isinstance(each, findings_service.Response) else next(stored) for each in given]
        return [(each.status, json.loads(each.body) if each.body else None) for each in answers]


@pytest.fixture
def group(app: flask.Flask, client: Client, monkeypatch: pytest.MonkeyPatch) -> Group:
    """A group that ends with the last write that waits, also on a machine that is busy with something else."""
    monkeypatch.setattr(commits, "GROUP_TIME", 60)
    return Group(app, client.key)


@pytest.mark.sqlite
def test_a_run_may_end_in_one_group_with_the_triage_of_what_it_did_not_report(
    client: Client, run: str, group: Group
) -> None:
    client.add(run, externalId="gone", status="open")
    task_id = client.add(run, externalId="kept", status="in_progress")
    second = client.start(targetUrl="https://example.com/")
    client.add(second, externalId="kept", status="in_progress")
    (status, _), (_, ended) = group.ask(
        group.environ("PATCH", f"{API}/tasks/{task_id}", {"status": "dismissed"}),
        group.environ("PATCH", f"{API}/runs/{second}", {"status": "completed", "resolveMissing": True}),
    )
    assert (status, ended["submitted"]["resolved"]) == (200, 1)
    assert client.read("tasks", missingFrom=second)["total"] == 0


@pytest.mark.sqlite
def test_a_write_that_waits_too_long_behind_another_is_busy_while_that_goes_on(
    make_app: Callable[..., flask.Flask],
) -> None:
    app, begun, ended = make_app(busy_timeout="0.3"), threading.Event(), threading.Event()
    client = client_of(app)
    call = SimpleNamespace(attempt=lambda step, *arguments: step(*arguments))

    async def commit_both(scheduler: commits.CommitScheduler) -> tuple[int, bool, int]:
        slow = SimpleNamespace(
            request=call, apply=lambda _: (begun.set(), ended.wait(60)) and findings_service.Response(204, {})
        )
        first = asyncio.create_task(scheduler.commit(slow))
        await asyncio.to_thread(begun.wait)
        second = await scheduler.commit(SimpleNamespace(request=call, apply=raise_panic))
        health = client.get("/healthz").status_code
        still = not first.done()
        ended.set()
        return second.status, still, health

    scheduler = commits.CommitScheduler(database_of(app), findings_service.Listeners())
    scheduler.start()
    try:
        assert asyncio.run(commit_both(scheduler)) == (503, True, 200)
    finally:
        scheduler.stop()


def test_an_idle_run_fails_by_the_clock_also_while_others_write_without_pause(serve: Callable[..., Server]) -> None:
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
def test_the_log_is_truncated_behind_a_deletion_once_nobody_reads_what_is_in_it(
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


def reads_beside(server: Server, write: Callable[..., HttpResponse], *arguments: Any) -> int:
    """Return how many reads of another client are answered while a write is under way."""
    reads = 0
    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(write, *arguments)
        while not writing.done():
            assert server.request("GET", f"{API}/runs").status_code == 200
            reads += not writing.done()
    assert writing.result().status_code in (200, 201)
    return reads


def test_reads_are_answered_while_batches_are_stored_and_thousands_are_resolved(server: Server) -> None:
    run, second = server.start_run(), server.start_run()
    batches = [json.dumps({"tasks": [task(externalId=f"{batch}.{n}") for n in range(1000)]}) for batch in range(5)]
    beside = [reads_beside(server, server.request, "POST", f"{API}/runs/{run}/tasks", batch) for batch in batches]
    assert sum(beside) > 40, beside  # waiting for writes, it would be three beside each
    end = {"status": "completed", "resolveMissing": True}
    assert reads_beside(server, server.request, "PATCH", f"{API}/runs/{second}", end) > 10
    assert server.request("GET", f"{API}/tasks?status=resolved&limit=1").json["total"] == 5000


def test_who_has_an_answer_reads_what_was_written_over_any_connection(server: Server) -> None:
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
def on_a_disk(tmp_path: Path, serve: Callable[..., Server]) -> Iterator[Server]:
    """A server whose every fsync takes much longer while there is a file `slow`, and fails while one `broken`."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if sys.platform != "linux" or compiler is None:
        pytest.skip("it takes Linux and a C compiler to make fsync slower")
    (tmp_path / "sync.c").write_text(SYNC)
    library = str(tmp_path / "sync.so")
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, str(tmp_path / "sync.c"), "-ldl"], check=True)
    slow = {"SLOW_WHILE": str(tmp_path / "slow"), "SLOW_BY": "300000"}  # microseconds
    yield serve(LD_PRELOAD=library, BROKEN_WHILE=str(tmp_path / "broken"), **slow)
    (tmp_path / "slow").unlink(missing_ok=True)


@pytest.mark.sqlite
def test_reads_are_answered_while_a_slow_disk_stores_a_write(on_a_disk: Server, tmp_path: Path) -> None:
    """Writes that come meanwhile share its next turn."""
    path = f"{API}/runs/{on_a_disk.start_run()}/tasks"
    (tmp_path / "slow").touch()
    began = time.monotonic()
    assert reads_beside(on_a_disk, on_a_disk.request, "POST", path, task()) > 10
    one, began = time.monotonic() - began, time.monotonic()
    with ThreadPoolExecutor(10) as pool:
        answers = list(pool.map(lambda _: on_a_disk.request("POST", path, task()).status_code, range(10)))
    assert answers == [201] * 10
    assert time.monotonic() - began < 5 * one  # not ten turns


@pytest.mark.sqlite
def test_what_the_disk_did_not_take_is_not_acknowledged(on_a_disk: Server, tmp_path: Path) -> None:
    path = f"{API}/runs/{on_a_disk.start_run()}/tasks"
    (tmp_path / "broken").touch()
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda _: on_a_disk.request("POST", path, task()), range(8)))
    for answer in answers:
        assert_storage_problem(answer, "storage_full")
    assert on_a_disk.request("GET", f"{API}/tasks").json["total"] == 0
    (tmp_path / "broken").unlink()
    assert on_a_disk.request("POST", path, task()).status_code == 201
    assert on_a_disk.request("GET", f"{API}/tasks").json["total"] == 1
    assert on_a_disk.stop() == 0
    assert integrity_errors_of(on_a_disk.db) == []


def crash(_: object) -> NoReturn:
    raise ValueError("no route of ours does that")


def test_whatever_goes_wrong_in_or_beside_a_group_it_is_answered_and_others_come(
    app: flask.Flask, caplog: pytest.LogCaptureFixture
) -> None:
    listeners = findings_service.Listeners()
    listeners.committed.append(lambda _: 1 // 0)
    environ = {"REQUEST_METHOD": "POST"}
    call = findings_service.ApiRequest(app.extensions["findings"], environ, "/", PRINCIPAL)

    async def write() -> list[int]:
        writes = commits.CommitScheduler(database_of(app), listeners)
        writes.start()
        try:
            stores = [findings_service.PendingWrite(call, store) for store in (crash, lambda _: None) * 2]
            return [(await asyncio.wait_for(writes.commit(each), PATIENCE)).status for each in stores]
        finally:
            writes.stop()

    assert asyncio.run(write()) == [500, 204] * 2
    assert "no route of ours" in caplog.text
    assert "ZeroDivisionError" in caplog.text


@pytest.mark.sqlite
@pytest.mark.parametrize("key", [None, "k"])
def test_a_run_that_ends_in_the_middle_of_a_group_has_what_came_before_and_the_last_word_of_each(
    client: Client, run: str, group: Group, key: str | None
) -> None:
    path, headers = f"{API}/runs/{run}", {"Idempotency_Key": key} if key else {}
    answers = group.ask(
        *(group.environ("POST", f"{path}/tasks", task(externalId=name)) for name in "ab"),
        group.environ("POST", f"{path}/tasks", task(externalId="b", title="newer"), **headers),
        group.environ("POST", f"{path}/tasks", task(severity="worst")),
        group.environ("POST", f"{API}/runs/nowhere/tasks", task()),
        group.environ("PATCH", path, {"status": "completed"}),
        group.environ("POST", f"{path}/tasks", task(externalId="c")),
    )
    assert [status for status, _ in answers] == [201, 201, 200, 422, 404, 200, 409]
    stored = {item["externalId"]: (item["title"], item["timesSeen"]) for item in client.read("tasks")["tasks"]}
    assert stored == {"a": (task()["title"], 1), "b": ("newer", 1)}
    assert client.read(f"runs/{run}")["summary"]["total"] == 2


@pytest.mark.sqlite
def test_triage_in_a_group_comes_before_what_is_asked_for_behind_it(client: Client, run: str, group: Group) -> None:
    ids = [client.add(run) for _ in range(2)]
    one = f"{API}/tasks/{ids[0]}"
    answers = group.ask(
        group.environ("PATCH", one, {"status": "in_progress"}),
        group.environ("PATCH", f"{API}/tasks", {"ids": ids, "status": "dismissed"}),
        group.environ("PATCH", one, {"comment": "so be it"}),
        group.environ("DELETE", one),
    )
    assert [status for status, _ in answers] == [200, 200, 200, 204]
    assert [answers[0][1]["status"], answers[2][1]["status"]] == ["in_progress", "dismissed"]
    assert [item["id"] for item in client.read("tasks")["tasks"]] == ids[1:]


@pytest.mark.sqlite
def test_one_write_that_fails_leaves_the_others_of_its_group_alone(
    client: Client, run: str, group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    insert = findings_service.insert_history

    def failing(connection: Any, *given: Any) -> None:
        insert(connection, *given)
        (title,) = connection.execute("SELECT title FROM tasks WHERE seq = ?", (given[-1][0][0],)).fetchone()
        if title == "bad":
            raise sqlite3.IntegrityError("made up")

    monkeypatch.setattr(findings_service, "insert_history", failing)
    path = f"{API}/runs/{run}/tasks"
    titles = ("one", "two", "bad", "three")
    answers = group.ask(*(group.environ("POST", path, task(title=title)) for title in titles))
    assert [status for status, _ in answers] == [201, 201, 500, 201]
    assert {item["title"] for item in client.read("tasks")["tasks"]} == {"one", "two", "three"}
    assert client.read(f"runs/{run}")["submitted"]["created"] == 3


@pytest.mark.sqlite
def test_a_transaction_that_the_disk_ended_is_not_begun_again_by_the_next_write_of_its_group(
    app: flask.Flask, client: Client, run: str, group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ending(connection: Any, *_: Any) -> NoReturn:
        connection.execute("ROLLBACK")
        raise full_error()

    monkeypatch.setattr(findings_service, "insert_history", ending)
    path = f"{API}/runs/{run}/tasks"
    answers = group.ask(*(group.environ("POST", path, task()) for _ in range(3)))
    assert [status for status, _ in answers] == [503] * 3
    assert not clients.writer_of(app).in_transaction
    assert client.read("tasks")["total"] == 0


def test_a_client_that_goes_while_its_write_waits_harms_nobody(server: Server) -> None:
    path, body = f"{API}/runs/{server.start_run()}/tasks", json.dumps(task()).encode()
    with locked(server.db):
        for _ in range(5):
            with server.begin_post(path, len(body)) as connection:
                connection.sendall(body)
                time.sleep(0.1)
    assert server.request("POST", path, task()).status_code == 201
    wait_until(lambda: server.request("GET", f"{API}/tasks").json["total"] == 6)  # PostgreSQL stores several at once
    assert "Traceback" not in server.log_text()


def test_the_maintenance_goes_on_behind_what_no_exception_is(app: flask.Flask, monkeypatch: pytest.MonkeyPatch) -> None:
    steps, kept = commits.maintenance_steps(database_of(app)), []
    with monkeypatch.context() as patched:
        patched.setattr(database_of(app), "run_maintenance", raise_panic)
        next(steps)
    monkeypatch.setattr(database_of(app), "run_maintenance", lambda: kept.append(1))
    next(steps)
    assert kept == [1]
