"""The command `restore`."""

from __future__ import annotations

import os
import re
import signal
import sqlite3
import sys
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import findings_service
from findings_features import backup
from tests.clients import API, cases, patch_core, task
from tests.engines import connect_directly, integrity_errors_of
from tests.files import UNUSABLE, database_of_version, files_in, foreign_database, stored_rows
from tests.servers import IMPORT_CORE, LISTENING, Server, command, invoke

pytestmark = pytest.mark.sqlite


@pytest.fixture
def copy(filled: Path, tmp_path: Path) -> Path:
    """A backup of the database `filled`, which has one more client since."""
    assert invoke("backup", str(tmp_path / "copy.db"), "--db", str(filled)).exit_code == 0
    with connect_directly(filled) as connection:
        connection.execute("INSERT INTO clients VALUES ('after', '')")
    return tmp_path / "copy.db"


def kept_files(db: Path) -> list[Path]:
    """Return the replaced databases that were kept, without their WALs."""
    return sorted(path for path in db.parent.glob(f"{db.name}.replaced-*") if path.name.endswith("Z"))


def epoch_of(db: Path) -> str:
    with connect_directly(db) as connection:
        return str(connection.execute("SELECT epoch FROM epochs").fetchone()[0])


def printed_keys(stderr: str) -> dict[str, str]:
    """Return the states of the keys that a restore prints, by name."""
    lines = re.findall(r"^(?!CLIENT )\S+  +(\S+)  +(?:read|agent|full)  +\S+  +(.+)$", stderr, re.MULTILINE)
    return dict(lines)


def restore(copy: Path, db: Path, *options: str) -> str:
    """Restore a backup, and return the standard error."""
    done = invoke("restore", str(copy), *options, "--db", str(db))
    assert done.exit_code == 0, done.output
    return done.stderr


def error_line(copy: Path, db: Path) -> str:
    """Run a restore that fails, and return its error, which is one line."""
    done = invoke("restore", str(copy), "--db", str(db))
    assert (done.exit_code, len(done.stderr.splitlines())) == (1, 1), done.output
    return done.stderr


def restore_after(statement: str, copy: Path, db: Path) -> int:
    """Restore in a process that runs a Python statement first, and return the exit code."""
    imports = f"{IMPORT_CORE} as core, os, signal, click; from findings_features import backup, restore"
    line = (sys.executable, "-c", f"{imports}; {statement}; core.main()")
    return command("restore", str(copy), "--db", str(db), program=line).returncode


def test_restore_follows_the_documented_procedure(serve: Callable[..., Server], tmp_path: Path) -> None:
    server = serve()
    path, copy = f"{API}/runs/{server.start_run()}/tasks", str(tmp_path / "copy.db")
    server.request("POST", path, task(title="Before"))
    assert command("backup", copy, "--db", str(server.db)).returncode == 0
    server.request("POST", path, task(title="After"))
    link = server.request("GET", f"{API}/events").json["next"]
    server.stop(signal.SIGKILL)
    done = command("restore", copy, "--db", str(server.db))
    assert (done.returncode, "verified" in done.stderr, printed_keys(done.stderr)) == (0, True, {"first": "live"})
    assert {*server.db.parent.glob(f"{server.db.name}-*m")} == set()  # the WAL and the shared memory file
    restarted = serve(until=LISTENING)
    tasks = restarted.request("GET", f"{API}/tasks", key=server.key).json["tasks"]
    assert [each["title"] for each in tasks] == ["Before"]
    assert restarted.request("GET", link, key=server.key).status_code == 400
    assert restarted.request("POST", path, task(), key=server.key).status_code == 201
    (kept,) = kept_files(server.db)
    assert [integrity_errors_of(server.db), integrity_errors_of(kept)] == [[], []]
    with connect_directly(kept) as connection:
        assert connection.execute("SELECT title FROM tasks ORDER BY seq").fetchall() == [("Before",), ("After",)]


def test_restore_is_refused_while_a_service_runs(server: Server, copy: Path) -> None:
    run = server.start_run()
    assert f"{server.db} is open in another process; stop the service" in error_line(copy, server.db)
    assert server.request("POST", f"{API}/runs/{run}/tasks", task()).status_code == 201
    with closing(sqlite3.connect(server.db)) as connection:
        while connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]:
            pass
    os.truncate(server.db, 20_000)  # also refused if it is damaged
    assert "is open in another process" in error_line(copy, server.db)
    assert kept_files(server.db) == []


@pytest.mark.parametrize("mode", ["WAL", "DELETE"])
def test_restore_is_refused_during_a_read(filled: Path, copy: Path, mode: str) -> None:
    before = stored_rows(filled)
    with connect_directly(filled) as reader:
        reader.execute(f"PRAGMA journal_mode = {mode}")
        reader.execute("BEGIN")
        reader.execute("SELECT * FROM runs").fetchone()
        assert "is open in another process" in error_line(copy, filled)
    assert stored_rows(filled) == before


def test_restored_database_has_a_new_epoch_and_symlinks_are_kept(filled: Path, copy: Path, tmp_path: Path) -> None:
    replaced, epoch, link = stored_rows(filled), epoch_of(filled), tmp_path / "link.db"
    link.symlink_to(filled)
    restore(copy, link)
    assert link.is_symlink()
    (kept,) = kept_files(filled)
    assert [stored_rows(filled), stored_rows(kept)] == [stored_rows(copy), replaced]
    assert len({epoch, epoch_of(filled), epoch_of(kept)}) == 2
    assert epoch_of(copy) == epoch
    assert filled.stat().st_mode & 0o777 == 0o600


def test_key_revoked_since_the_backup_stays_revoked(filled: Path, tmp_path: Path) -> None:
    db = ("--db", str(filled))
    for name in ("stolen", "kept"):
        invoke("keys", "create", name, *db)
    invoke("backup", str(tmp_path / "copy.db"), *db)
    invoke("keys", "revoke", "stolen", *db)
    with connect_directly(filled) as connection:
        revoked = connection.execute("SELECT revoked_at FROM api_keys WHERE name = 'stolen'").fetchone()
    output = restore(tmp_path / "copy.db", filled)
    assert printed_keys(output) == {"tests": "live", "stolen": "stays revoked", "kept": "live"}
    assert "is not known" not in output
    with connect_directly(filled) as connection:
        assert connection.execute("SELECT revoked_at FROM api_keys WHERE name = 'stolen'").fetchone() == revoked
        assert connection.execute("SELECT COUNT(*) FROM api_keys WHERE revoked_at IS NULL").fetchone() == (2,)


def test_restore_without_live_keys_prints_how_to_create_one(filled: Path, copy: Path) -> None:
    for options, state in ((["--revoke-keys"], "revoked"), ([], "stays revoked")):  # the first restore has revoked it
        output = restore(copy, filled, *options)
        assert printed_keys(output) == {"tests": state}
        assert "findings-service keys create NAME" in output
        with connect_directly(filled) as connection:
            assert connection.execute("SELECT 1 FROM api_keys WHERE revoked_at IS NULL").fetchall() == []


@pytest.mark.parametrize("name", ["new/folder/findings.db", "empty.db"])
def test_restore_creates_a_missing_or_empty_database(copy: Path, tmp_path: Path, name: str) -> None:
    db = tmp_path / name
    (tmp_path / "empty.db").touch()
    output = restore(copy, db)
    assert (printed_keys(output), kept_files(db)) == ({"tests": "live"}, [])
    assert "It is unknown which of these keys were revoked" in output
    assert stored_rows(db) == stored_rows(copy)


def truncate(db: Path) -> None:
    """Truncate a database, and leave a WAL that is not one."""
    os.truncate(db, 20_000)
    db.with_name(f"{db.name}-wal").write_text("Not a WAL.")


def overwrite_root_page(db: Path, table: str) -> None:
    """Overwrite the root page of a table."""
    with closing(sqlite3.connect(db)) as connection:
        connection.execute("PRAGMA journal_mode = DELETE")
        (page,) = connection.execute("SELECT rootpage FROM sqlite_master WHERE name = ?", (table,)).fetchone()
        (size,) = connection.execute("PRAGMA page_size").fetchone()
    with db.open("r+b") as file:
        file.seek((page - 1) * size)
        file.write(b"\xff" * size)


def damaged_backup(path: Path) -> None:
    database_of_version(findings_service.SCHEMA_VERSION, path)
    overwrite_root_page(path, "runs")


def drop_keys(db: Path) -> None:
    with connect_directly(db) as connection:
        connection.execute("DROP TABLE api_keys")


@pytest.mark.parametrize(
    "damage", cases(cut=truncate, page=partial(overwrite_root_page, table="api_keys"), lost=drop_keys)
)
def test_damaged_database_is_replaced_and_kept(filled: Path, copy: Path, damage: Callable[[Path], object]) -> None:
    def wals(name: str) -> list[bytes]:
        return [path.read_bytes() for path in filled.parent.glob(f"{name}-wal")]

    damage(filled)
    before = wals(filled.name)
    assert "It is unknown which of these keys were revoked" in restore(copy, filled)
    assert stored_rows(filled) == stored_rows(copy)
    (kept,) = kept_files(filled)
    assert wals(kept.name) == before
    assert kept.stat().st_size >= 20_000


@pytest.mark.parametrize(
    "make",
    cases(
        fifo=os.mkfifo,
        folder=Path.mkdir,
        text=lambda path: path.write_text("Theirs." * 100),
        database=foreign_database,
        log=lambda path: path.with_name(f"{path.name}-wal").write_text("Of a database that was moved away."),
    ),
)
def test_restore_does_not_replace_foreign_files(copy: Path, tmp_path: Path, make: Any) -> None:
    make(tmp_path / "theirs")
    before = files_in(tmp_path)
    error_line(copy, tmp_path / "theirs")
    assert files_in(tmp_path) == before


@pytest.mark.parametrize("suffix", ["", "-wal", "-shm", "-journal", "-checkpointer"])
def test_database_is_not_restored_from_its_own_files(filled: Path, suffix: str) -> None:
    file = filled.with_name(f"{filled.name}{suffix}")
    file.touch()
    assert f"is {filled} or belongs to it; name a backup" in error_line(file, filled)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        *(each for each in UNUSABLE if each.id in ("text", "others", "newer", "older")),
        *cases(empty=(Path.touch, "is empty"), damaged=(damaged_backup, "is damaged; nothing was restored")),
    ],
)
def test_unusable_backup_replaces_nothing(
    filled: Path, tmp_path: Path, make: Callable[[Path], object], message: str
) -> None:
    before, bad = stored_rows(filled), tmp_path / "bad.db"
    make(bad)
    line = error_line(bad, filled)
    assert message in line
    assert str(bad) in line
    assert stored_rows(filled) == before
    assert [*tmp_path.glob("*.partial*"), *kept_files(filled)] == []


def test_wal_of_a_backup_is_restored(filled: Path, copy: Path) -> None:
    with connect_directly(copy) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("INSERT INTO clients VALUES ('in the log', '')")
        restore(copy, filled)
    assert ("in the log", "") in stored_rows(filled)[0]


def test_older_backup_is_migrated_during_restore(
    filled: Path, copy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    last, newer = findings_service.SCHEMA_VERSION, tmp_path / "schema.sql"
    script = findings_service.schema_path().read_text("utf-8")
    newer.write_text(script.replace(f"user_version = {last}", f"user_version = {last + 1}"), "utf-8")
    monkeypatch.setattr("findings_service.schema_path", lambda: newer)
    patch_core(monkeypatch, "SCHEMA_VERSION", last + 1)
    step = findings_service.Migration("DELETE FROM project_types WHERE name = 'none';\n")
    monkeypatch.setitem(findings_service.REGISTRY.migrations, last + 1, step)
    restore(copy, filled)
    for path, version in ((filled, last + 1), (copy, last)):
        with connect_directly(path) as connection:
            assert connection.execute("PRAGMA user_version").fetchone() == (version,)
    assert stored_rows(filled)[:-1] == stored_rows(copy)[:-1]  # a migration raises the revisions among the counters


@pytest.mark.parametrize("version", [7, 99])
def test_database_of_another_schema_version_is_replaced(filled: Path, copy: Path, version: int) -> None:
    with connect_directly(filled) as connection:
        connection.execute(f"PRAGMA user_version = {version}")
        connection.execute("UPDATE api_keys SET revoked_at = created_at")
    assert printed_keys(restore(copy, filled)) == {"tests": "stays revoked"}
    assert stored_rows(filled) == stored_rows(copy)


KILL = "lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL)"


@pytest.mark.parametrize(
    ("name", "restored"),
    cases(
        copying=("core.SQLiteConnection.integrity_errors", False),
        made=("restore.begin_epoch", False),
        before=("os.link", False),
        between=("backup.take_place", False),
        after=("click.echo", True),
    ),
)
def test_killed_restore_leaves_the_old_or_the_new_database(filled: Path, copy: Path, name: str, restored: bool) -> None:
    expected = stored_rows(copy if restored else filled)
    assert restore_after(f"{name} = {KILL}", copy, filled) == -signal.SIGKILL
    assert stored_rows(filled) == expected
    assert integrity_errors_of(filled) == []
    restore(copy, filled)


@pytest.mark.signals
def test_interrupted_restore_leaves_no_files(filled: Path, copy: Path, tmp_path: Path) -> None:
    before, files = stored_rows(filled), {*files_in(tmp_path)}
    stop = "core.SQLiteConnection.integrity_errors = lambda _: os.kill(os.getpid(), signal.SIGTERM) or ()"
    assert restore_after(stop, copy, filled) == 1
    assert (stored_rows(filled), {*files_in(tmp_path)}) == (before, files)


def test_restore_is_synced_to_disk_before_success_is_reported(
    filled: Path, copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced = list[str]()
    monkeypatch.setattr(backup, "flush", synced.append)
    restore(copy, filled)
    assert synced[0].endswith(".partial")
    assert synced[1:] == [str(filled.parent)]


def test_database_created_during_the_restore_is_not_replaced(
    copy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    db, begin = tmp_path / "new.db", findings_service.begin_epoch
    opened = list[Any]()

    def make_first(connection: Any) -> None:
        begin(connection)
        if not opened:
            opened.append(None)
            opened[0] = findings_service.open_database(findings_service.Settings(db=str(db)))

    patch_core(monkeypatch, "begin_epoch", make_first)
    assert "is open in another process" in error_line(copy, db)
    with closing(opened[0]) as connection:
        assert connection.execute("SELECT COUNT(*) FROM clients").fetchone() == (0,)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can change the owner of a file")
def test_restore_as_root_preserves_the_owner(filled: Path, copy: Path, tmp_path: Path) -> None:
    (tmp_path / "theirs").mkdir()
    for owned, db, owner in (
        (filled, filled, (12345, 54321)),
        (tmp_path / "theirs", tmp_path / "theirs" / "new.db", (23456, 65432)),
    ):
        os.chown(owned, *owner)
        restore(copy, db)
        assert (db.stat().st_uid, db.stat().st_gid) == owner


def test_open_that_waited_for_a_restore_uses_the_new_file(
    filled: Path, copy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    require = findings_service.require_own_file

    def require_own_file(connection: Any, path: str) -> None:
        if copy.exists():  # simulates a restore that finished while this open waited for the lock
            filled.rename(tmp_path / "old.db")
            copy.rename(filled)
        require(connection, path)

    monkeypatch.setattr(findings_service, "require_own_file", require_own_file)
    settings = findings_service.Settings(db=str(filled))
    with closing(findings_service.open_database(settings)) as connection:
        connection.execute("INSERT INTO clients VALUES ('late', '')")
    assert [*tmp_path.glob("*-wal")] == []  # SQLite would apply the old file's WAL to the new one
    assert ("late", "") in stored_rows(filled)[0]
    assert ("late", "") not in stored_rows(tmp_path / "old.db")[0]
