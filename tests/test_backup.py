"""The commands `backup` and `compact`, and commands on unusable files."""

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
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import click
import click.testing
import pytest

import findings_service
from findings_features import backup
from tests.clients import API, Client, cases, task
from tests.documents import HERE
from tests.engines import connect_directly, integrity_errors_of, with_databases
from tests.files import UNUSABLE, damage_index, database_of_version, files_in, foreign_database, stored_rows
from tests.servers import IMPORT_CORE, PROGRAM, Server, command, environment, invoke, start_process, wait_until

pytestmark = pytest.mark.sqlite
COMMAND_LINES = ("check", "backup copy.db", "prune --finished-before 1d", "compact", "keys create x", "keys list")


def back_up(db: Path, copy: Path, *options: str) -> str:
    """Create a backup, and return its standard error."""
    done = invoke("backup", str(copy), *options, "--db", str(db))
    assert done.exit_code == 0, done.output
    return done.stderr


def error_line(line: str, db: Path | str, *words: str) -> str:
    """Run a command that fails, and return its error, which is one line."""
    done = invoke(*line.split(), *words, "--db", str(db))
    assert (done.exit_code, done.stdout, len(done.stderr.splitlines())) == (1, "", 1), done.output
    return done.stderr


@pytest.mark.parametrize(
    ("make", "message", "line"),
    [
        (*each.values, line)
        for each in (*UNUSABLE, *cases(empty=(Path.touch, "is empty")))
        for line in COMMAND_LINES
        if not (each.id in ("newer", "older") and line.startswith("backup"))  # backup copies other schema versions
    ],
)
def test_command_on_an_unusable_file_prints_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make: Callable[[Path], object], message: str, line: str
) -> None:
    monkeypatch.chdir(tmp_path)
    make(tmp_path / "bad.db")
    before = files_in(tmp_path)
    line_printed = error_line(line, "bad.db")
    assert "bad.db" in line_printed
    assert message in line_printed or "there is no file" in line_printed
    assert files_in(tmp_path) == before


@contextmanager
def continuous_writes(server: Server, path: str, body: dict[str, Any], writers: int) -> Iterator[list[int]]:
    """Write to a server in threads during the block, and yield the list of the response statuses."""
    statuses, done = list[int](), threading.Event()

    def write() -> None:
        while not done.is_set():
            statuses.append(server.request("POST", path, body).status_code)

    with ThreadPoolExecutor(writers) as pool:
        writes = [pool.submit(write) for _ in range(writers)]
        try:
            yield statuses
        finally:
            done.set()
    assert [each.result() for each in writes] == [None] * writers


def test_backup_during_writes_is_a_consistent_snapshot(server: Server, tmp_path: Path) -> None:
    path, copy = f"{API}/runs/{server.start_run()}/tasks", tmp_path / "copy.db"
    for _ in range(4):
        server.request("POST", path, {"tasks": [task(description="x" * 60_000)] * 25})
    with continuous_writes(server, path, {"tasks": [task()] * 7}, writers=3) as statuses:
        wait_until(lambda: statuses)
        before = server.request("GET", f"{API}/tasks?limit=1").json["total"]
        backed_up = command("backup", str(copy), "--db", str(server.db))
    after = server.request("GET", f"{API}/tasks?limit=1").json["total"]
    assert (backed_up.returncode, "verified" in backed_up.stderr) == (0, True)
    with connect_directly(copy) as connection:
        (copied,) = connection.execute("SELECT COUNT(*) FROM tasks").fetchone()
    assert 100 < before <= copied < after == 100 + 7 * statuses.count(201)
    assert (copied - 100) % 7 == 0
    assert integrity_errors_of(copy) == []
    assert copy.stat().st_mode & 0o777 == 0o600


def test_damaged_database_is_not_backed_up(filled: Path, tmp_path: Path) -> None:
    with connect_directly(filled) as connection:
        damage_index(connection, "tasks_by_status")
    assert "damaged" in error_line("backup", filled, str(tmp_path / "copy.db"))
    assert [path.name for path in tmp_path.glob("copy.db*")] == []


@pytest.mark.parametrize("suffix", ["-shm", "-wal", "-checkpointer", ""])
def test_backup_does_not_replace_the_databases_own_files(filled: Path, suffix: str) -> None:
    assert "belongs to" in error_line("backup --replace", filled, f"{filled}{suffix}")


def test_backup_replaces_an_older_backup_only_with_replace(filled: Path, tmp_path: Path) -> None:
    copy, empty = tmp_path / "new" / "folder" / "copy.db", tmp_path / "empty.db"
    empty.touch(0o644)
    back_up(filled, copy)
    assert stat.S_IMODE(copy.parent.stat().st_mode) == 0o700
    before = copy.stat()
    error_line("backup", filled, str(copy))
    assert copy.stat() == before
    for each in (copy, empty):
        back_up(filled, each, "--replace")
        assert stored_rows(each) == stored_rows(filled)
        assert stat.S_IMODE(each.stat().st_mode) == 0o600
    assert copy.stat().st_ino != before.st_ino


@pytest.mark.parametrize(
    "make",
    cases(
        fifo=os.mkfifo,
        device=lambda path: os.mknod(path, 0o600 | stat.S_IFCHR, os.makedev(1, 3)),
        link=lambda path: path.symlink_to("/dev/null"),
        text=lambda path: path.write_text("Theirs."),
        database=foreign_database,
    ),
)
def test_backup_does_not_replace_foreign_files(filled: Path, tmp_path: Path, make: Any) -> None:
    copy = tmp_path / "theirs"
    try:
        make(copy)
    except PermissionError:
        pytest.skip("only root can create devices")
    before = copy.lstat()
    assert "was not changed" in error_line("backup --replace", filled, str(copy))
    assert (copy.lstat()[:7], copy.lstat().st_mtime_ns) == (before[:7], before.st_mtime_ns)  # not st_atime
    assert list(tmp_path.glob("*.partial")) == []


def test_backup_is_synced_to_disk_before_success_is_reported(
    filled: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced = list[str]()
    monkeypatch.setattr(backup, "flush", synced.append)
    back_up(filled, tmp_path / "copy.db")
    assert synced[0].endswith(".partial")
    assert synced[1:] == [str(tmp_path)]


def test_backup_does_not_replace_a_file_with_an_unprocessed_wal(filled: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy.db"
    back_up(filled, copy)
    (tmp_path / "copy.db-wal").write_bytes(b"acknowledged")
    before = {path: path.read_bytes() for path in tmp_path.glob("copy.db*")}
    assert "findings-service check" in error_line("backup --replace", filled, str(copy))
    assert {path: path.read_bytes() for path in tmp_path.glob("copy.db*")} == before


@pytest.mark.signals
@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGHUP])
def test_interrupted_backup_leaves_no_files(filled: Path, tmp_path: Path, how: signal.Signals) -> None:
    # Many short sleeps, because a signal that arrives just before a long one is handled only at its end.
    slow = "lambda _: [print('begun', flush=True), *(time.sleep(0.05) for _ in range(1200))] and ()"
    program = f"{IMPORT_CORE} as core, time; core.SQLiteConnection.integrity_errors = {slow}; core.main()"
    line = [sys.executable, "-c", program, "backup", str(tmp_path / "copy.db"), "--db", str(filled)]
    process = start_process(line, tmp_path / "slow", "begun")
    assert len(list(tmp_path.glob("copy.db*.partial"))) == 1
    assert process.stop(how) == 1
    assert list(tmp_path.glob("copy.db*")) == []


SECOND_SIGNAL = f"""{IMPORT_CORE}, os, signal, time
from findings_features import backup
with backup.interruptible():
    try:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(9)
    finally:
        for number in (signal.SIGTERM, signal.SIGHUP):
            os.kill(os.getpid(), number)
        print("cleaned up")
"""


@pytest.mark.signals
def test_second_signal_does_not_interrupt_the_cleanup() -> None:
    done = command(program=(sys.executable, "-c", SECOND_SIGNAL))
    assert (done.stdout, done.stderr.splitlines()[-1]) == ("cleaned up\n", "KeyboardInterrupt")


def test_backup_does_not_replace_an_open_database(filled: Path, server: Server) -> None:
    run = server.start_run()
    assert f"{server.db} is open in another process" in error_line("backup --replace", filled, str(server.db))
    assert server.request("POST", f"{API}/runs/{run}/tasks", task()).status_code == 201
    assert not list(filled.parent.glob("*.partial*"))
    server.stop()
    back_up(filled, server.db, "--replace")
    assert stored_rows(server.db) == stored_rows(filled)


def terminal_output(*arguments: str) -> str:
    """Run a command with a terminal as standard error, and return the output there."""
    reading_end, writing_end = pty.openpty()
    output = b""
    line = [*PROGRAM, *with_databases(arguments)]
    with subprocess.Popen(line, cwd=HERE, stdout=subprocess.DEVNULL, stderr=writing_end, env=environment()) as process:
        os.close(writing_end)
        with suppress(OSError):  # raised by Linux when the other end is closed
            while part := os.read(reading_end, 4096):
                output += part
        os.close(reading_end)
    assert process.returncode == 0
    return output.decode()


def test_backup_shows_progress_on_a_terminal_only(client: Client, run: str, tmp_path: Path) -> None:
    for _ in range(5):
        client.submit(run, *[task(description="x" * 60_000)] * 25)
    db = tmp_path / "findings.db"
    output = terminal_output("backup", str(tmp_path / "one.db"), "--db", str(db))
    shown = [int(number) for number in re.findall(r"(\d+)%", output)]
    assert shown == sorted(shown)
    assert len(shown) > 1
    assert shown[-1] == 100
    assert "%" not in back_up(db, tmp_path / "two.db")


@pytest.mark.parametrize("version", [7, 99])
def test_backup_of_another_schema_version_is_an_exact_copy(tmp_path: Path, version: int) -> None:
    database_of_version(version, tmp_path / "x.db")
    before = stored_rows(tmp_path / "x.db")
    output = back_up(tmp_path / "x.db", tmp_path / "copy.db")
    assert len(output.splitlines()) == 1
    assert stored_rows(tmp_path / "copy.db") == stored_rows(tmp_path / "x.db") == before


def test_permission_error_without_a_filename_is_readable() -> None:
    with pytest.raises(click.ClickException, match="Permission denied"), findings_service.readable_errors("x.db"):
        raise PermissionError(errno.EACCES, "Permission denied")


def fill_and_prune(server: Server) -> int:
    """Leave a server's database with over 1 MB of free pages and one run, and return the size of the file."""
    old, kept = server.start_run(), server.start_run()
    server.request("POST", f"{API}/runs/{kept}/tasks", task(title="Kept"))
    for _ in range(5):
        server.request("POST", f"{API}/runs/{old}/tasks", {"tasks": [task(description="x" * 60_000)] * 5})
    server.request("PATCH", f"{API}/runs/{old}", {"status": "failed"})
    with connect_directly(server.db) as connection:
        connection.execute("UPDATE runs SET finished_at = '2020-01-01T00:00:00.000Z' WHERE status = 'failed'")
    assert "compact" in invoke("prune", "--finished-before", "90d", "--db", str(server.db)).stderr
    with closing(sqlite3.connect(server.db)) as connection:
        connection.execute("PRAGMA wal_checkpoint")
    return server.db.stat().st_size


def test_compact_shrinks_the_file_of_a_stopped_service(serve: Callable[..., Server]) -> None:
    server = serve()
    before = fill_and_prune(server)
    server.stop()
    done = invoke("compact", "--db", str(server.db))
    after = server.db.stat().st_size
    assert done.exit_code == 0
    assert f"{before:,} bytes before, {after:,} now. It is sound." in done.stderr
    assert after < 330_000 < 1_000_000 < before
    with connect_directly(server.db) as connection:
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        assert connection.execute("SELECT title FROM tasks").fetchall() == [("Kept",)]


def test_compact_shrinks_the_file_of_a_running_service(server: Server) -> None:
    before = fill_and_prune(server)
    path = f"{API}/runs/{server.start_run()}/tasks"
    with continuous_writes(server, path, task(), writers=2) as statuses:
        compacted = command("compact", "--db", str(server.db))
    assert compacted.returncode == 0, compacted.stderr
    wait_until(lambda: server.db.stat().st_size < before)  # at the server's next maintenance
    assert {*statuses} == {201}
    assert server.request("GET", f"{API}/tasks").json["total"] == 1 + len(statuses)
    assert integrity_errors_of(server.db) == []


def test_compact_audits_the_result(filled: Path) -> None:
    with connect_directly(filled) as connection:
        connection.execute("UPDATE counters SET n = n + 1")
    done = invoke("compact", "--db", str(filled))
    assert (done.exit_code, "counter: " in done.stdout) == (1, True)
