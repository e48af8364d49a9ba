"""Backups, and the size of files."""

from __future__ import annotations

import errno
import os
import pty
import re
import signal
import sqlite3
import stat
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import click
import click.testing
import pytest

import findings_service
from findings_features import backup
from tests.engines import faults_of, locked, look_into, placed
from tests.support import (
    API,
    HERE,
    IMPORTING,
    LISTENING,
    PROGRAM,
    UNUSABLE,
    Client,
    Server,
    cases,
    command,
    content_of,
    damage_index,
    database_of_version,
    environment,
    files_in,
    heed_signals,
    invoke,
    others_database,
    task,
)

# ---------------------------------------------------------------------------
# Storage that fails
# ---------------------------------------------------------------------------

COMMAND_LINES = ("check", "backup copy.db", "prune --finished-before 1d", "compact", "keys create x", "keys list")


@pytest.mark.sqlite
@pytest.mark.parametrize(
    ("make", "told", "line"),
    [
        (*each.values, line)
        for each in UNUSABLE
        for line in COMMAND_LINES
        if not (each.id in ("newer", "older") and line.startswith("backup"))
    ],
)
def test_a_command_on_a_file_that_cannot_be_used_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make: Callable[[Path], object], told: str, line: str
) -> None:
    monkeypatch.chdir(tmp_path)
    make(tmp_path / "bad.db")
    before = files_in(tmp_path)
    done = invoke(*line.split(), "--db", "bad.db")
    assert (done.exit_code, done.stdout, len(done.stderr.splitlines())) == (1, "", 1), done.output
    assert "bad.db" in done.stderr
    assert told in done.stderr or "there is no file" in done.stderr
    assert files_in(tmp_path) == before


# ---------------------------------------------------------------------------
# Growing old
# ---------------------------------------------------------------------------


@pytest.mark.sqlite
def test_a_backup_is_one_moment_of_a_database_that_is_written(server: Server, tmp_path: Path) -> None:
    path, copy = f"{API}/runs/{server.start_run()}/tasks", tmp_path / "copy.db"
    for _ in range(4):
        server.request("POST", path, {"tasks": [task(description="x" * 60_000)] * 25})
    done = threading.Event()

    def write() -> int:
        batches = 0
        while not done.is_set():
            batches += server.request("POST", path, {"tasks": [task()] * 7}).status_code == 201
        return batches

    with ThreadPoolExecutor(3) as pool:
        writing = [pool.submit(write) for _ in range(3)]
        time.sleep(0.1)
        before = server.request("GET", f"{API}/tasks?limit=1").json["total"]
        backed_up = command("backup", str(copy), "--db", str(server.db))
        done.set()
    after = server.request("GET", f"{API}/tasks?limit=1").json["total"]
    assert (backed_up.returncode, "verified" in backed_up.stderr) == (0, True)
    with closing(sqlite3.connect(copy)) as connection:
        held = connection.execute("SELECT COUNT(*) FROM tasks").fetchone()[0]
    assert 100 < before <= held < after == 100 + 7 * sum(each.result() for each in writing)
    assert (held - 100) % 7 == 0
    assert faults_of(copy) == []
    assert copy.stat().st_mode & 0o777 == 0o600


@pytest.mark.sqlite
def test_a_damaged_database_gives_no_backup(aged: Path, tmp_path: Path) -> None:
    with closing(sqlite3.connect(aged)) as connection:
        damage_index(connection, "tasks_by_status")
    done = invoke("backup", str(tmp_path / "copy.db"), "--db", str(aged))
    assert (done.exit_code, len(done.stderr.splitlines())) == (1, 1)
    assert "damaged" in done.stderr
    assert [path.name for path in tmp_path.glob("copy.db*")] == []


@pytest.mark.sqlite
@pytest.mark.parametrize("name", ["findings.db-shm", "findings.db-wal", "findings.db-checkpointer", "findings.db"])
def test_a_backup_takes_no_place_of_what_belongs_to_the_database(aged: Path, name: str) -> None:
    result = invoke("backup", str(aged.with_name(name)), "--replace", "--db", str(aged))
    assert result.exit_code == 1
    assert "belongs to" in result.output


@pytest.mark.sqlite
def test_a_backup_replaces_an_older_one_only_when_told_to(aged: Path, tmp_path: Path) -> None:
    copy, empty = tmp_path / "new" / "folder" / "copy.db", tmp_path / "empty.db"
    empty.touch(0o644)
    assert invoke("backup", str(copy), "--db", str(aged)).exit_code == 0
    assert stat.S_IMODE(copy.parent.stat().st_mode) == 0o700
    before = copy.stat()
    assert invoke("backup", str(copy), "--db", str(aged)).exit_code == 1
    assert copy.stat() == before
    for each in (copy, empty):
        assert invoke("backup", str(each), "--replace", "--db", str(aged)).exit_code == 0
        assert content_of(each) == content_of(aged)
        assert stat.S_IMODE(each.stat().st_mode) == 0o600
    assert copy.stat().st_ino != before.st_ino


@pytest.mark.sqlite
@pytest.mark.parametrize(
    "make",
    cases(
        fifo=os.mkfifo,
        device=lambda path: os.mknod(path, 0o600 | stat.S_IFCHR, os.makedev(1, 3)),
        link=lambda path: path.symlink_to("/dev/null"),
        text=lambda path: path.write_text("Theirs."),
        database=others_database,
    ),
)
def test_a_backup_replaces_nothing_but_what_a_backup_may_be(aged: Path, tmp_path: Path, make: Any) -> None:
    copy = tmp_path / "theirs"
    try:
        make(copy)
    except PermissionError:
        pytest.skip("only root makes devices")
    before = copy.lstat()
    done = invoke("backup", str(copy), "--replace", "--db", str(aged))
    assert (done.exit_code, len(done.stderr.splitlines()), copy.lstat()) == (1, 1, before)
    assert "was left as it is" in done.stderr
    assert list(tmp_path.glob("*.partial")) == []


@pytest.mark.sqlite
def test_a_backup_is_on_the_disk_before_it_is_told_of(
    aged: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced = list[str]()
    monkeypatch.setattr(backup, "flush", synced.append)
    assert invoke("backup", str(tmp_path / "copy.db"), "--db", str(aged)).exit_code == 0
    assert synced[0].endswith(".partial")
    assert synced[1:] == [str(tmp_path)]


def die_with_a_wal(db: Path) -> None:
    """Write to a database as a process that dies before anything of it is in the file, but all in the WAL."""
    program = (
        "import os, sqlite3, sys; db = sqlite3.connect(sys.argv[1], isolation_level=None);"
        "db.execute('PRAGMA journal_mode = WAL'); db.execute('PRAGMA wal_autocheckpoint = 0');"
        "db.execute('CREATE TABLE waste (a)'); db.execute('INSERT INTO waste VALUES (zeroblob(500000))'); os._exit(0)"
    )
    subprocess.run([sys.executable, "-c", program, str(db)], check=True)
    assert db.with_name(f"{db.name}-wal").stat().st_size > 500_000


@pytest.mark.sqlite
def test_a_backup_takes_no_place_beside_what_a_crash_left(aged: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy.db"
    die_with_a_wal(copy)
    before = {path: path.read_bytes() for path in tmp_path.glob("copy.db*")}
    done = invoke("backup", str(copy), "--replace", "--db", str(aged))
    assert (done.exit_code, len(done.stderr.splitlines())) == (1, 1)
    assert "findings-service check" in done.stderr
    assert {path: path.read_bytes() for path in tmp_path.glob("copy.db*")} == before


@pytest.mark.sqlite
@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP"])
def test_a_backup_that_is_told_to_stop_leaves_nothing(aged: Path, tmp_path: Path, name: str) -> None:
    # Not one long sleep: a signal that arrives just before it would be looked at when it ends.
    slow = (
        "findings_service.SQLiteConnection.integrity_errors = lambda _: [time.sleep(0.05) for _ in range(1200)] and ()"
    )
    program = [sys.executable, "-c", f"import time, findings_service; {slow}; findings_service.main()"]
    line = [*program, "backup", str(tmp_path / "copy.db"), "--db", str(aged)]
    with subprocess.Popen(line, cwd=HERE, env=environment(), preexec_fn=heed_signals) as process:
        deadline = time.monotonic() + 20
        while not list(tmp_path.glob("copy.db*.partial")) and time.monotonic() < deadline:
            time.sleep(0.02)
        assert list(tmp_path.glob("copy.db*.partial"))
        process.send_signal(signal.Signals[name])
        assert process.wait(15) == 1
    assert list(tmp_path.glob("copy.db*")) == []


def test_a_second_signal_does_not_end_what_undoes_what_was_begun() -> None:
    program = f"""if True:
        {IMPORTING}, os, signal, time
        from findings_features import backup
        with backup.interruptible():
            try:
                os.kill(os.getpid(), signal.SIGTERM)
                time.sleep(9)
            finally:
                for number in (signal.SIGTERM, signal.SIGHUP):
                    os.kill(os.getpid(), number)
                print("undone")
    """
    line, options = [sys.executable, "-c", program], {"cwd": HERE, "env": environment(), "preexec_fn": heed_signals}
    done = subprocess.run(line, **options, capture_output=True, text=True, check=False, timeout=30)
    assert (done.stdout, done.stderr.splitlines()[-1]) == ("undone\n", "KeyboardInterrupt")


@pytest.mark.sqlite
def test_a_backup_replaces_no_database_that_another_process_has_open(
    aged: Path, serve: Callable[..., Server], tmp_path: Path
) -> None:
    server = serve()
    run = server.start_run()
    done = invoke("backup", str(server.db), "--replace", "--db", str(aged))
    assert (done.exit_code, len(done.stderr.splitlines())) == (1, 1)
    assert f"{server.db} is open in another process" in done.stderr
    assert server.request("POST", f"{API}/runs/{run}/tasks", task()).status_code == 201
    assert not list(tmp_path.glob("*.partial*"))
    server.stop()
    assert invoke("backup", str(server.db), "--replace", "--db", str(aged)).exit_code == 0
    assert content_of(server.db) == content_of(aged)


def heard_on_a_terminal(*arguments: str) -> str:
    """Run a command whose standard error is a terminal, and return what shows there."""
    ours, theirs = pty.openpty()
    heard = b""
    line = [*PROGRAM, *placed(arguments)]
    with subprocess.Popen(line, cwd=HERE, stdout=subprocess.DEVNULL, stderr=theirs, env=environment()) as process:
        os.close(theirs)
        with suppress(OSError):  # Linux says so when the other end is closed
            while part := os.read(ours, 4096):
                heard += part
        os.close(ours)
    assert process.returncode == 0
    return heard.decode()


@pytest.mark.sqlite
def test_a_backup_shows_its_progress_on_a_terminal_only(client: Client, run: str, tmp_path: Path) -> None:
    for _ in range(5):
        client.submit(run, *[task(description="x" * 60_000)] * 25)
    db = ("--db", str(tmp_path / "findings.db"))
    shown = [
        int(number) for number in re.findall(r"(\d+)%", heard_on_a_terminal("backup", str(tmp_path / "one.db"), *db))
    ]
    assert shown == sorted(shown)
    assert len(shown) > 1
    assert shown[-1] == 100
    assert "%" not in command("backup", str(tmp_path / "two.db"), *db).stderr


@pytest.mark.sqlite
@pytest.mark.parametrize("version", [7, 99])
def test_a_backup_of_another_version_is_a_copy_of_it(tmp_path: Path, version: int) -> None:
    database_of_version(version, tmp_path / "x.db")
    before = content_of(tmp_path / "x.db")
    done = invoke("backup", str(tmp_path / "copy.db"), "--db", str(tmp_path / "x.db"))
    assert (done.exit_code, len(done.stderr.splitlines())) == (0, 1), done.output
    assert content_of(tmp_path / "copy.db") == content_of(tmp_path / "x.db") == before


def test_what_the_system_does_not_allow_is_one_line_also_without_a_file() -> None:
    with pytest.raises(click.ClickException, match="Permission denied"), findings_service.readable_errors("x.db"):
        raise PermissionError(errno.EACCES, "Permission denied")


@pytest.mark.sqlite
def test_a_backup_of_no_file_says_so(tmp_path: Path) -> None:
    done = invoke("backup", str(tmp_path / "copy.db"), "--db", str(tmp_path / "none.db"))
    assert (done.exit_code, done.stderr) == (1, f"Error: there is no file {tmp_path / 'none.db'}\n")
    assert [*tmp_path.iterdir()] == []


@pytest.mark.sqlite
def test_what_makes_no_database_makes_none_of_an_empty_file(tmp_path: Path) -> None:
    (tmp_path / "empty.db").touch()
    for line in COMMAND_LINES:
        done = invoke(*line.split(), "--db", str(tmp_path / "empty.db"))
        assert (done.exit_code, "is empty" in done.stderr) == (1, True), done.output
    assert files_in(tmp_path) == {"empty.db": b""}


def fill_and_prune(server: Server) -> int:
    """Leave a server with a megabyte of nothing in its file, and one run; return the size of the file."""
    old, kept = server.start_run(), server.start_run()
    server.request("POST", f"{API}/runs/{kept}/tasks", task(title="Kept"))
    for _ in range(5):
        server.request("POST", f"{API}/runs/{old}/tasks", {"tasks": [task(description="x" * 60_000)] * 5})
    server.request("PATCH", f"{API}/runs/{old}", {"status": "completed"})
    with look_into(server.db) as connection:
        connection.execute("UPDATE runs SET finished_at = '2020-01-01T00:00:00.000Z' WHERE status = 'completed'")
    assert "compact" in invoke("prune", "--finished-before", "90d", "--db", str(server.db)).stderr
    with closing(sqlite3.connect(server.db)) as connection:
        connection.execute("PRAGMA wal_checkpoint")
    return server.db.stat().st_size


@pytest.mark.sqlite
def test_compact_gives_the_space_back_when_the_server_has_stopped(serve: Callable[..., Server]) -> None:
    server = serve()
    before = fill_and_prune(server)
    server.stop()
    done = invoke("compact", "--db", str(server.db))
    after = server.db.stat().st_size
    assert done.exit_code == 0
    assert f"{before:,} bytes before, {after:,} now. It is sound." in done.stderr
    assert after < 300_000 < 1_000_000 < before
    with closing(sqlite3.connect(server.db)) as connection:
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    again = serve(until=LISTENING)
    assert [each["title"] for each in again.request("GET", f"{API}/tasks", key=server.key).json["tasks"]] == ["Kept"]


@pytest.mark.sqlite
def test_compact_gives_the_space_back_while_a_server_is_writing(server: Server) -> None:
    before = fill_and_prune(server)
    path, done = f"{API}/runs/{server.start_run()}/tasks", threading.Event()

    def write() -> Counter[int]:
        statuses = Counter[int]()
        while not done.is_set():
            statuses[server.request("POST", path, task()).status_code] += 1
        return statuses

    with ThreadPoolExecutor(2) as pool:
        writing = [pool.submit(write) for _ in range(2)]
        compacted = command("compact", "--db", str(server.db))
        done.set()
    assert compacted.returncode == 0, compacted.stderr
    while server.db.stat().st_size >= before:  # until the server's next turn
        time.sleep(0.1)
    assert {status for each in writing for status in each.result()} == {201}
    assert server.request("GET", f"{API}/tasks").json["total"] == 1 + sum(each.result()[201] for each in writing)
    assert faults_of(server.db) == []


@pytest.mark.sqlite
def test_compact_waits_for_a_writer(aged: Path) -> None:
    with ThreadPoolExecutor(1) as pool:
        with locked(aged):
            compacting = pool.submit(invoke, "compact", "--db", str(aged))
            time.sleep(0.5)
            assert not compacting.done()
        assert compacting.result().exit_code == 0


@pytest.mark.sqlite
def test_compact_audits_what_it_made(aged: Path) -> None:
    with closing(sqlite3.connect(aged, isolation_level=None)) as connection:
        connection.execute("UPDATE counters SET n = n + 1")
    done = invoke("compact", "--db", str(aged))
    assert (done.exit_code, "counter: " in done.stdout) == (1, True)


@pytest.mark.parametrize("line", COMMAND_LINES)
def test_a_command_makes_no_database_of_its_own(tmp_path: Path, line: str) -> None:
    done = invoke(*line.split(), "--db", str(tmp_path / "none.db"))
    assert (done.exit_code, done.stderr.count("\n"), list(tmp_path.iterdir())) == (1, 1, [])
