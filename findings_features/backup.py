"""Copies of a database file, and its size: the commands `backup` and `compact`.

SQLite's backup API (https://www.sqlite.org/backup.html) copies a snapshot of the file while it is in use. The copy is
verified before it is moved to its path.
"""

from __future__ import annotations

import os
import secrets
import signal
import sqlite3
import stat
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import NoReturn

import click

import findings_features.audit as audit
from findings_features.streams import progress_bar
from findings_service import (
    APPLICATION_ID,
    CHECKPOINT_LOCK,
    ENGINE_ERRORS,
    SCHEMA_VERSION,
    STOPPING,
    Database,
    DatabaseUnusable,
    SQLiteConnection,
    SQLiteDatabase,
    database_option,
    is_nonempty_file,
    main,
    open_database,
    opened,
    retry_while_busy,
    timestamp,
    user_version,
)

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]


def copy_database(source: SQLiteConnection, path: str) -> list[str]:
    """Copy a snapshot of a database in use into an empty file. Return the faults of the copy.

    A read transaction holds the snapshot until its connection is closed. Without it, every write of another process
    would restart the copy (https://www.sqlite.org/backup.html).
    """
    with (
        closing(sqlite3.connect(path, isolation_level=None, factory=SQLiteConnection)) as copy,
        progress_bar("Copying") as bar,
    ):

        def show(_: int, remaining: int, total: int) -> None:
            bar.length = total
            bar.update(total - remaining - bar.pos)

        source.execute("BEGIN")
        source.execute("SELECT COUNT(*) FROM sqlite_master").fetchone()
        source.backup(copy, pages=1000, progress=show)
        return list(copy.integrity_errors())


BESIDE = ("-wal", "-shm", "-journal")  # SQLite's files beside a database; it would apply old ones to a new database


def files_of(path: str) -> set[str]:
    """Return the paths of a database and of all files that may exist beside it."""
    return {f"{path}{suffix}" for suffix in ("", *BESIDE, CHECKPOINT_LOCK)}


@contextmanager
def new_file(path: str) -> Iterator[str]:
    """Create an empty file beside a path, readable only by its owner, and yield its name.

    The name is random, so that no other file is overwritten. A file that was not moved elsewhere is removed at the end.
    """
    folder = Path(path).absolute().parent
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    name = str(folder / f"{Path(path).name}.{secrets.token_urlsafe(6)}.partial")
    try:  # entered before the file exists, so that no signal can prevent its removal
        os.close(os.open(name, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
        yield name
    finally:
        for suffix in ("", *BESIDE):
            Path(f"{name}{suffix}").unlink(missing_ok=True)


def move_checked(new: str, path: str) -> None:
    """Move a new file durably to a path. :raises DatabaseUnusable: if that would overwrite other data."""
    require_replaceable(path)
    flush(new)
    take_place(new, path)


def take_place(new: str, path: str) -> None:
    """Move a flushed file to a path, atomically and durably. It replaces any file there."""
    Path(new).replace(path)
    flush(str(Path(path).absolute().parent))


def flush(path: str) -> None:
    """Flush a file, or the entries of a folder, to the disk. On macOS, fsync alone stops at the disk's cache."""
    if fcntl is None and Path(path).is_dir():  # Windows cannot open folders
        return
    file = os.open(path, os.O_RDWR if fcntl is None else os.O_RDONLY)
    try:
        if hasattr(fcntl, "F_FULLFSYNC"):
            fcntl.fcntl(file, fcntl.F_FULLFSYNC)
        else:
            os.fsync(file)
    finally:
        os.close(file)


def require_replaceable(path: str) -> None:
    """Check that a path has no file, an empty file, or a database of this service that no process uses.

    :raises DatabaseUnusable: if it has another file, or a database with a WAL or journal, which may be in use.
    """
    for log_path in (f"{path}-wal", f"{path}-journal"):
        if os.path.lexists(log_path):
            raise DatabaseUnusable(
                f"{log_path} exists: {path} is open in another process, or that process crashed; stop it, then run:"
                f" findings-service check --db {path}, which checkpoints that log, or remove the log"
            )
    if not os.path.lexists(path):
        return
    with suppress(sqlite3.Error):
        if stat.S_ISREG(os.lstat(path).st_mode):
            with closing(sqlite3.connect(path)) as old:
                (application_id,) = old.execute("PRAGMA application_id").fetchone()
            if application_id == APPLICATION_ID or not is_nonempty_file(path):
                return
    raise DatabaseUnusable(f"{path} is in use, a link, or of another program, and was not changed; name another file")


def copy_beside(connection: SQLiteConnection, path: str) -> None:
    """Let SQLite write temporary files beside the database at a path. Its default folder may be too small."""
    with suppress(sqlite3.Error):
        quoted = str(Path(path).resolve().parent).replace("'", "''")
        connection.execute(f"PRAGMA temp_store_directory = '{quoted}'")


@contextmanager
def interruptible() -> Iterator[None]:
    """Treat signals that would end the process as Ctrl-C, so that the command cleans up."""
    fatal = [name for name in STOPPING if signal.getsignal(name) is signal.SIG_DFL]

    def interrupt(*_: object) -> NoReturn:
        for name in fatal:
            signal.signal(name, signal.SIG_IGN)  # during the cleanup
        raise KeyboardInterrupt

    for name in fatal:
        signal.signal(name, interrupt)
    try:
        yield
    finally:
        for name in fatal:
            signal.signal(name, signal.SIG_DFL)


def note_backup(database: Database, at: str) -> None:
    """Store the start time of a verified backup for the metrics. A failure only prints a warning."""
    try:
        with database.transaction() as connection:
            connection.execute(
                """INSERT INTO backups (id, made_at) VALUES (1, ?)
                   ON CONFLICT (id) DO UPDATE SET made_at = excluded.made_at""",
                (at,),
            )
    except (*ENGINE_ERRORS, DatabaseUnusable) as error:
        click.echo(f"The metrics do not show the backup: {database.settings.db} cannot be written ({error}).", err=True)


@contextmanager
def opened_file(db: str, command: str, *, new: bool = False) -> Iterator[SQLiteDatabase]:
    """Open the database of a command that needs an SQLite file. :raises click.ClickException: for another engine."""
    with opened(db, new=new) as database:
        if not isinstance(database, SQLiteDatabase):
            advice = database.advice[command].format(name=database.name)
            raise click.ClickException(f"`{command}` works only on SQLite database files; {advice}")
        yield database


@click.command()
@click.argument("file", type=click.Path(dir_okay=False))
@click.option("--replace", is_flag=True, help="Replace FILE once the new backup is verified.")
@database_option
def backup(file: str, replace: bool, db: str) -> None:
    """Copy the database to FILE while it is in use. The copy is a verified snapshot, readable only by you."""
    with interruptible(), opened_file(db, "backup", new=True) as database:  # new: of any schema version
        if os.path.realpath(file) in files_of(database.location):
            raise click.ClickException(f"{file} is {db} or belongs to it; name another file")
        if os.path.lexists(file) and not replace:
            raise click.ClickException(f"{file} already exists; name another file, or use --replace")
        require_replaceable(file)
        if not Path(db).exists():
            raise click.ClickException(f"there is no file {db}")
        begun = timestamp()
        with closing(open_database(database.settings, read_only=True)) as source, new_file(file) as copy:
            if not (version := user_version(source)):
                raise click.ClickException(f"{db} is empty: there is nothing to copy")
            if faults := copy_database(source, copy):
                raise click.ClickException(f"the copy is damaged and was deleted: {faults[0]}")
            move_checked(copy, file)
        click.echo(f"{file}: {Path(file).stat().st_size:,} bytes, verified.", err=True)
        if version == SCHEMA_VERSION:
            note_backup(database, begun)


@click.command()
@database_option
def compact(db: str) -> None:
    """Return the space of deleted data to the disk. Then check the database. Writes of a running service wait."""
    with opened_file(db, "compact") as database, database.maintaining() as connection:
        before = Path(db).stat().st_size
        copy_beside(connection, db)
        retry_while_busy(partial(connection.execute, "VACUUM"), database.settings.busy_timeout)
        database.run_maintenance()  # if a service has the checkpoint lock, it checkpoints in its next turn
        with database.snapshot() as moment:
            audit.audit(moment, db)
            (least,) = moment.execute(
                "SELECT page_count * page_size FROM pragma_page_count, pragma_page_size"
            ).fetchone()
        after = Path(db).stat().st_size
    later = f", and {least:,} once current reads end" if after > least else ""
    click.echo(f"{db}: {before:,} bytes before, {after:,} now{later}. It is sound.", err=True)


def register() -> None:
    """Register the commands."""
    for command in (backup, compact):
        main.add_command(command)
