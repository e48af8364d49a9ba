"""Several processes that use one database."""

from __future__ import annotations

import errno
import json
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import pytest

import findings_service
from findings_service import create_app
from tests.clients import API, assert_storage_problem, cases, database_of, task
from tests.documents import HERE
from tests.engines import connect_directly, db_at, integrity_errors_of
from tests.files import assert_storage_unusable, database_files, move_database_away, move_database_back
from tests.postgres_server import children_of, is_alive
from tests.servers import LISTENING, PATIENCE, Server, command, invoke, program_with, wait_until


@pytest.mark.parametrize("workers", [1, 2])
def test_concurrent_requests_with_one_idempotency_key_create_once(serve: Callable[..., Server], workers: int) -> None:
    server = serve("--workers", str(workers))
    run, headers = server.start_run(), {"Idempotency-Key": "k"}
    submit = partial(server.request, "POST", f"{API}/runs/{run}/tasks", {"tasks": [task()] * 20}, **headers)
    with ThreadPoolExecutor(8) as pool:
        responses = list(pool.map(lambda _: submit(), range(24)))
    assert len({(response.status_code, response.data) for response in responses}) == 1
    assert server.request("GET", f"{API}/tasks").json["total"] == 20


@pytest.mark.sqlite
@pytest.mark.parametrize("workers", [1, 2])
def test_moved_database_is_refused_until_restart_and_not_modified(serve: Callable[..., Server], workers: int) -> None:
    server = serve("--workers", str(workers), program=program_with(MAINTENANCE_PAUSE=0.1, HEALTH_KEPT=0))
    path = f"{API}/runs/{server.start_run()}/tasks"
    for _ in range(5):
        assert server.request("POST", path, task()).status_code == 201
    move_database_away(server.db)
    moved = database_files(server.db.parent)
    wait_until(lambda: server.log_text().count("every request is refused") >= workers)  # logged by each process
    for _ in range(4 * workers):  # a write waits for a checkpoint that began before the move
        assert_storage_unusable(server.request)
    before = database_files(server.db.parent)
    assert before == moved or workers > 1  # a process checkpoints after each write of another one
    for _ in range(4 * workers):
        assert_storage_unusable(server.request)
    assert database_files(server.db.parent) == before
    move_database_back(server.db)
    assert_storage_unusable(server.request)
    assert server.stop() == 0
    log = server.log_text()
    assert (log.count("every request is refused until a restart"), "Traceback" in log) == (workers, False)
    restarted = serve(until=LISTENING)
    assert restarted.request("GET", f"{API}/tasks", key=server.key).json["total"] == 5
    assert integrity_errors_of(server.db) == []


@pytest.mark.sqlite
@pytest.mark.parametrize("workers", [1, 2])
def test_new_database_at_the_old_path_is_not_damaged_by_the_old_service(
    serve: Callable[..., Server], workers: int
) -> None:
    first = serve("--workers", str(workers), program=program_with(MAINTENANCE_PAUSE=0.1, HEALTH_KEPT=0))
    first.start_run()
    move_database_away(first.db)
    second = serve()
    path = f"{API}/runs/{second.start_run()}/tasks"
    for _ in range(6):
        assert second.request("POST", path, task()).status_code == 201
        assert_storage_unusable(first.request)
    assert first.stop() == 0
    second.stop(signal.SIGKILL)
    with connect_directly(second.db) as connection:
        assert connection.execute("SELECT COUNT(*) FROM tasks").fetchone() == (6,)
    assert integrity_errors_of(second.db) == []
    assert integrity_errors_of(second.db.with_name("moved.db")) == []


def retry_while_busy(server: Server, path: str, body: Any) -> int:
    """Repeat a request while the response is 503 `busy`, and return the final status."""
    while (response := server.request("POST", path, body)).status_code == 503:
        assert_storage_problem(response, "busy")
    return response.status_code


def test_two_workers_neither_lose_nor_duplicate_concurrent_writes(serve: Callable[..., Server]) -> None:
    server = serve("--workers", "2")
    run, db = server.start_run(), ("--db", str(server.db))
    batches = [{"tasks": [task(externalId=f"{n // 2}.{i}", title=f"{n}") for i in range(5)]} for n in range(200)]
    with ThreadPoolExecutor(12) as pool:
        keys = [pool.submit(command, "keys", "create", f"key {n}", *db) for n in range(4)]
        statuses = list(pool.map(lambda body: retry_while_busy(server, f"{API}/runs/{run}/tasks", body), batches))
    assert (statuses.count(201), statuses.count(200)) == (100, 100)
    assert {server.request("GET", f"{API}/runs", key=key.result().stdout.strip()).status_code for key in keys} == {200}
    with connect_directly(server.db) as connection:
        stored = connection.execute("SELECT external_id FROM tasks ORDER BY external_id").fetchall()
    assert stored == sorted((f"{n}.{i}",) for n in range(100) for i in range(5))
    submitted = server.request("GET", f"{API}/runs/{run}").json["submitted"]
    assert [submitted[name] for name in ("created", "reopened", "resolved")] == [500, 0, 0]
    assert integrity_errors_of(server.db) == []


MAINTENANCE_PROGRAM = """
import sys
from findings_service import Settings, SQLiteDatabase

database = SQLiteDatabase(Settings(db=sys.argv[1]))
for _ in sys.stdin:
    with database.transaction() as connection:
        connection.execute("INSERT OR REPLACE INTO clients VALUES ('x', '')")
    database.run_maintenance()
    with database.reading() as reader, database.maintaining() as writer, database.separate_reader() as slow:
        print([each.execute("PRAGMA wal_autocheckpoint").fetchone()[0] for each in (writer, reader, slow)], flush=True)
"""


@pytest.mark.sqlite
def test_checkpointing_moves_to_another_process_when_one_is_killed(tmp_path: Path) -> None:
    line, pipes = [sys.executable, "-c", MAINTENANCE_PROGRAM, db_at(tmp_path / "x.db")], {"stdin": -1, "stdout": -1}
    first, second = (subprocess.Popen(line, cwd=HERE, bufsize=0, **pipes) for _ in range(2))

    def step(process: subprocess.Popen[bytes]) -> Any:
        process.stdin.write(b"\n")
        return json.loads(process.stdout.readline())

    try:
        for _ in range(3):
            assert step(first) == [findings_service.CHECKPOINT_PAGES, 0, 0]
            assert (tmp_path / "x.db-wal").stat().st_size == 0  # the other process's writes too
            assert step(second) == [0, 0, 0]
            assert (tmp_path / "x.db-wal").stat().st_size > 0
        first.kill()
        first.wait()
        assert step(second) == [findings_service.CHECKPOINT_PAGES, 0, 0]
    finally:
        for each in (first, second):
            each.kill()
            each.communicate()
    assert integrity_errors_of(tmp_path / "x.db") == []


@pytest.mark.sqlite
def test_commands_do_not_checkpoint_while_a_service_runs(serve: Callable[..., Server]) -> None:
    server = serve(program=program_with(MAINTENANCE_PAUSE=60))
    server.start_run()
    wal = server.db.with_name("served.db-wal")
    before, file = wal.stat().st_size, server.db.read_bytes()
    lines = ("keys create one", "keys list", "keys revoke one", "check", "prune --finished-before 1d")
    for line in lines:
        assert invoke(*line.split(), "--db", str(server.db)).exit_code == 0
    assert wal.stat().st_size > before > 0
    assert server.db.read_bytes() == file


@pytest.mark.sqlite
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can change the owner of a file")
def test_lock_file_created_by_root_belongs_to_the_database_owner(filled: Path) -> None:
    filled.with_name("findings.db-checkpointer").unlink()
    os.chown(filled, 65534, 65534)
    database_of(create_app(db=str(filled)))
    lock = filled.with_name("findings.db-checkpointer").stat()
    assert (lock.st_uid, lock.st_gid, stat.S_IMODE(lock.st_mode)) == (65534, 65534, 0o600)


@pytest.mark.sqlite
@pytest.mark.parametrize(
    ("number", "acquired"), cases(no_locks=(errno.ENOLCK, True), taken=(errno.EWOULDBLOCK, False), windows=(None, True))
)
def test_every_process_checkpoints_if_locks_are_unavailable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int | None, acquired: bool
) -> None:
    def refuse(*_: Any) -> NoReturn:
        raise OSError(number, "")

    monkeypatch.setattr("fcntl.flock", refuse)
    if number is None:
        monkeypatch.setattr(findings_service, "fcntl", None)
    checkpointer = findings_service.CheckpointLock(str(tmp_path / "x.db"))
    assert checkpointer.acquire() == acquired
    checkpointer.release()


@pytest.mark.signals
@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="listing child processes requires Linux")
@pytest.mark.parametrize("number", [0, 1, 2])
def test_all_processes_stop_if_one_is_killed(serve: Callable[..., Server], number: int) -> None:
    server = serve("--workers", "2")
    processes = [server.process.pid, *children_of(server.process.pid)]
    assert len(processes) == 3
    os.kill(processes[number], signal.SIGKILL)
    assert server.process.wait(PATIENCE) == (1 if number else -signal.SIGKILL)
    assert not number or "a worker process died, so all were stopped" in server.log_text()
    wait_until(lambda: not any(map(is_alive, processes)))
