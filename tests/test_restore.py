"""Restoring a backup."""

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
    """A backup of the aged database, which has gone on since."""
    assert invoke("backup", str(tmp_path / "copy.db"), "--db", str(filled)).exit_code == 0
    with connect_directly(filled) as connection:
        connection.execute("INSERT INTO clients VALUES ('after', '')")
    return tmp_path / "copy.db"


def kept_of(db: Path) -> list[Path]:
    """Return the files that were replaced, without their logs."""
    return sorted(path for path in db.parent.glob(f"{db.name}.replaced-*") if path.name.endswith("Z"))


def epoch_of(db: Path) -> str:
    """Return the epoch of a database."""
    with connect_directly(db) as connection:
        return str(connection.execute("SELECT epoch FROM epochs").fetchone()[0])


def keys_told(stderr: str) -> dict[str, str]:
    """Return what the keys are by what a restore tells, by their names."""
    lines = re.findall(r"^(?!CLIENT )\S+  +(\S+)  +(?:read|agent|full)  +\S+  +(.+)$", stderr, re.MULTILINE)
    return dict(lines)


def restore(copy: Path, db: Path, *options: str) -> str:
    """Restore a backup, and return what is told of it."""
    done = invoke("restore", str(copy), *options, "--db", str(db))
    assert done.exit_code == 0, done.output
    return done.stderr


def refused(copy: Path, db: Path) -> str:
    """Return the one line that says why nothing is restored."""
    done = invoke("restore", str(copy), "--db", str(db))
    assert (done.exit_code, len(done.stderr.splitlines())) == (1, 1), done.output
    return done.stderr


def restored_behind(program: str, copy: Path, db: Path) -> int:
    """Restore in a process that runs some Python before it, and return its exit code."""
    imports = f"{IMPORT_CORE} as core, os, signal, click; from findings_features import backup, restore"
    line = (sys.executable, "-c", f"{imports}; {program}; core.main()")
    return command("restore", str(copy), "--db", str(db), program=line).returncode


def test_a_backup_is_restored_as_the_handbook_says(serve: Callable[..., Server], tmp_path: Path) -> None:
    server = serve()
    path, copy = f"{API}/runs/{server.start_run()}/tasks", str(tmp_path / "copy.db")
    server.request("POST", path, task(title="Before"))
    assert command("backup", copy, "--db", str(server.db)).returncode == 0
    server.request("POST", path, task(title="After"))
    link = server.request("GET", f"{API}/events").json["next"]
    server.stop(signal.SIGKILL)
    done = command("restore", copy, "--db", str(server.db))
    assert (done.returncode, "verified" in done.stderr, keys_told(done.stderr)) == (0, True, {"first": "live"})
    assert {*server.db.parent.glob(f"{server.db.name}-*m")} == set()  # its log and what tells who reads
    again = serve(until=LISTENING)
    tasks = again.request("GET", f"{API}/tasks", key=server.key).json["tasks"]
    assert [each["title"] for each in tasks] == ["Before"]
    assert again.request("GET", link, key=server.key).status_code == 400
    assert again.request("POST", path, task(), key=server.key).status_code == 201
    (kept,) = kept_of(server.db)
    assert [integrity_errors_of(server.db), integrity_errors_of(kept)] == [[], []]
    with connect_directly(kept) as connection:
        assert connection.execute("SELECT title FROM tasks ORDER BY seq").fetchall() == [("Before",), ("After",)]


def test_a_restore_is_refused_while_a_service_runs(server: Server, copy: Path) -> None:
    run = server.start_run()
    assert f"{server.db} is open in another process; stop the service" in refused(copy, server.db)
    assert server.request("POST", f"{API}/runs/{run}/tasks", task()).status_code == 201
    with closing(sqlite3.connect(server.db)) as connection:
        while connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]:
            pass
    os.truncate(server.db, 20_000)  # also where it is damaged
    assert "is open in another process" in refused(copy, server.db)
    assert kept_of(server.db) == []


@pytest.mark.parametrize("mode", ["WAL", "DELETE"])
def test_a_restore_is_refused_while_anybody_reads(filled: Path, copy: Path, mode: str) -> None:
    before = stored_rows(filled)
    with connect_directly(filled) as reader:
        reader.execute(f"PRAGMA journal_mode = {mode}")
        reader.execute("BEGIN")
        reader.execute("SELECT * FROM runs").fetchone()
        assert "is open in another process" in refused(copy, filled)
    assert stored_rows(filled) == before


def test_a_restored_database_is_the_backup_with_an_epoch_of_its_own_and_a_link_to_it_stays_one(
    filled: Path, copy: Path, tmp_path: Path
) -> None:
    replaced, epoch, link = stored_rows(filled), epoch_of(filled), tmp_path / "link.db"
    link.symlink_to(filled)
    restore(copy, link)
    assert link.is_symlink()
    (kept,) = kept_of(filled)
    assert [stored_rows(filled), stored_rows(kept)] == [stored_rows(copy), replaced]
    assert len({epoch, epoch_of(filled), epoch_of(kept)}) == 2
    assert epoch_of(copy) == epoch
    assert filled.stat().st_mode & 0o777 == 0o600


def test_a_key_that_was_revoked_since_the_backup_stays_revoked(filled: Path, tmp_path: Path) -> None:
    db = ("--db", str(filled))
    for name in ("stolen", "kept"):
        invoke("keys", "create", name, *db)
    invoke("backup", str(tmp_path / "copy.db"), *db)
    invoke("keys", "revoke", "stolen", *db)
    with connect_directly(filled) as connection:
        revoked = connection.execute("SELECT revoked_at FROM api_keys WHERE name = 'stolen'").fetchone()
    told = restore(tmp_path / "copy.db", filled)
    assert keys_told(told) == {"tests": "live", "stolen": "stays revoked", "kept": "live"}
    assert "is not known" not in told
    with connect_directly(filled) as connection:
        assert connection.execute("SELECT revoked_at FROM api_keys WHERE name = 'stolen'").fetchone() == revoked
        assert connection.execute("SELECT COUNT(*) FROM api_keys WHERE revoked_at IS NULL").fetchone() == (2,)


def test_a_restore_that_leaves_no_key_live_says_how_to_make_one(filled: Path, copy: Path) -> None:
    for options, state in ((["--revoke-keys"], "revoked"), ([], "stays revoked")):  # the second, since the first has
        told = restore(copy, filled, *options)
        assert keys_told(told) == {"tests": state}
        assert "findings-service keys create NAME" in told
        with connect_directly(filled) as connection:
            assert connection.execute("SELECT 1 FROM api_keys WHERE revoked_at IS NULL").fetchall() == []


@pytest.mark.parametrize("name", ["new/folder/findings.db", "empty.db"])
def test_a_backup_is_restored_where_nothing_was(copy: Path, tmp_path: Path, name: str) -> None:
    db = tmp_path / name
    (tmp_path / "empty.db").touch()
    told = restore(copy, db)
    assert (keys_told(told), kept_of(db)) == ({"tests": "live"}, [])
    assert "is not known here; revoke those once more" in told
    assert stored_rows(db) == stored_rows(copy)


def cut(db: Path) -> None:
    """Lose the end of a database, and leave a log beside it."""
    os.truncate(db, 20_000)
    db.with_name(f"{db.name}-wal").write_text("Not even a log.")


def spoil(db: Path, table: str) -> None:
    """Lose the first page of a table of a database that is sound otherwise."""
    with closing(sqlite3.connect(db)) as connection:
        connection.execute("PRAGMA journal_mode = DELETE")
        (page,) = connection.execute("SELECT rootpage FROM sqlite_master WHERE name = ?", (table,)).fetchone()
        (size,) = connection.execute("PRAGMA page_size").fetchone()
    with db.open("r+b") as file:
        file.seek((page - 1) * size)
        file.write(b"\xff" * size)


def damaged(path: Path) -> None:
    """Make a backup of which the disk has changed an entry."""
    database_of_version(findings_service.SCHEMA_VERSION, path)
    spoil(path, "runs")


def lose_keys(db: Path) -> None:
    """Lose the table of keys of a database."""
    with connect_directly(db) as connection:
        connection.execute("DROP TABLE api_keys")


@pytest.mark.parametrize("damage", cases(cut=cut, spoilt=partial(spoil, table="api_keys"), lost=lose_keys))
def test_a_damaged_database_is_replaced_and_nothing_of_it_is_lost(
    filled: Path, copy: Path, damage: Callable[[Path], object]
) -> None:
    def logs(name: str) -> list[bytes]:
        return [path.read_bytes() for path in filled.parent.glob(f"{name}-wal")]

    damage(filled)
    lost = logs(filled.name)
    assert "is not known here" in restore(copy, filled)
    assert stored_rows(filled) == stored_rows(copy)
    (kept,) = kept_of(filled)
    assert logs(kept.name) == lost
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
def test_a_restore_replaces_nothing_of_others(copy: Path, tmp_path: Path, make: Any) -> None:
    make(tmp_path / "theirs")
    before = files_in(tmp_path)
    refused(copy, tmp_path / "theirs")
    assert files_in(tmp_path) == before


@pytest.mark.parametrize("suffix", ["", "-wal", "-shm", "-journal", "-checkpointer"])
def test_a_database_is_not_restored_from_what_belongs_to_it(filled: Path, suffix: str) -> None:
    file = filled.with_name(f"{filled.name}{suffix}")
    file.touch()
    assert f"belongs to {filled}; name a backup" in refused(file, filled)


@pytest.mark.parametrize(
    ("make", "told"),
    [
        *(each for each in UNUSABLE if each.id in ("text", "others", "newer", "older")),
        *cases(empty=(Path.touch, "is empty"), damaged=(damaged, "is damaged, and nothing was restored")),
    ],
)
def test_a_backup_that_is_none_replaces_nothing(
    filled: Path, tmp_path: Path, make: Callable[[Path], object], told: str
) -> None:
    before, bad = stored_rows(filled), tmp_path / "bad.db"
    make(bad)
    said = refused(bad, filled)
    assert told in said
    assert str(bad) in said
    assert stored_rows(filled) == before
    assert [*tmp_path.glob("*.partial*"), *kept_of(filled)] == []


def test_what_is_in_the_log_of_a_backup_is_restored(filled: Path, copy: Path) -> None:
    with connect_directly(copy) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("INSERT INTO clients VALUES ('in the log', '')")
        restore(copy, filled)
    assert ("in the log", "") in stored_rows(filled)[0]


def test_an_older_backup_is_brought_up_to_date_where_it_is_restored(
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
def test_a_database_of_another_version_is_replaced(filled: Path, copy: Path, version: int) -> None:
    with connect_directly(filled) as connection:
        connection.execute(f"PRAGMA user_version = {version}")
        connection.execute("UPDATE api_keys SET revoked_at = created_at")
    assert keys_told(restore(copy, filled)) == {"tests": "stays revoked"}
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
def test_a_restore_that_is_killed_leaves_the_old_or_the_new_whole(
    filled: Path, copy: Path, name: str, restored: bool
) -> None:
    right = stored_rows(copy if restored else filled)
    assert restored_behind(f"{name} = {KILL}", copy, filled) == -signal.SIGKILL
    assert stored_rows(filled) == right
    assert integrity_errors_of(filled) == []
    restore(copy, filled)


@pytest.mark.signals
def test_a_restore_that_is_told_to_stop_leaves_nothing(filled: Path, copy: Path, tmp_path: Path) -> None:
    before, there = stored_rows(filled), {*files_in(tmp_path)}
    stop = "core.SQLiteConnection.integrity_errors = lambda _: os.kill(os.getpid(), signal.SIGTERM) or ()"
    assert restored_behind(stop, copy, filled) == 1
    assert (stored_rows(filled), {*files_in(tmp_path)}) == (before, there)


def test_a_restore_is_on_the_disk_before_it_is_told_of(
    filled: Path, copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced = list[str]()
    monkeypatch.setattr(backup, "flush", synced.append)
    restore(copy, filled)
    assert synced[0].endswith(".partial")
    assert synced[1:] == [str(filled.parent)]


def test_a_database_that_a_service_makes_meanwhile_is_not_replaced(
    copy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, begin = tmp_path / "new.db", findings_service.begin_epoch
    opened = list[Any]()

    def make_first(connection: Any) -> None:
        begin(connection)
        if not opened:
            opened.append(None)
            opened[0] = findings_service.open_database(findings_service.Settings(db=str(made)))

    patch_core(monkeypatch, "begin_epoch", make_first)
    assert "is open in another process" in refused(copy, made)
    with closing(opened[0]) as connection:
        assert connection.execute("SELECT COUNT(*) FROM clients").fetchone() == (0,)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_what_root_restores_belongs_to_whom_the_old_one_did(filled: Path, copy: Path, tmp_path: Path) -> None:
    (tmp_path / "theirs").mkdir()
    for owned, db, owner in (
        (filled, filled, (12345, 54321)),
        (tmp_path / "theirs", tmp_path / "theirs" / "new.db", (23456, 65432)),
    ):
        os.chown(owned, *owner)
        restore(copy, db)
        assert (db.stat().st_uid, db.stat().st_gid) == owner


def test_who_waited_for_a_restore_goes_on_with_what_is_there_now(
    filled: Path, copy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    require = findings_service.require_ours

    def require_ours(connection: Any, path: str) -> None:
        if copy.exists():  # as when the lock, for which this one waited, is given back
            filled.rename(tmp_path / "old.db")
            copy.rename(filled)
        require(connection, path)

    monkeypatch.setattr(findings_service, "require_ours", require_ours)
    settings = findings_service.Settings(db=str(filled))
    with closing(findings_service.open_database(settings)) as connection:
        connection.execute("INSERT INTO clients VALUES ('late', '')")
    assert [*tmp_path.glob("*-wal")] == []  # of the old file, which SQLite would take for the new one's
    assert ("late", "") in stored_rows(filled)[0]
    assert ("late", "") not in stored_rows(tmp_path / "old.db")[0]
