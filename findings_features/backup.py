"""Copies of a database file, and its size: the commands `backup` and `compact`.

A copy is made by SQLite's backup API (https://www.sqlite.org/backup.html) while the file is in use, is of one moment,
and is verified before it takes its place.
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
    is_filled,
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
    """Copy a database that is in use into an empty file as it is at one moment, and return what is wrong with the copy.

    The read transaction keeps that moment, and ends with its connection; without it the copy would start again at
    every write of another process (https://www.sqlite.org/backup.html).
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


BESIDE = ("-wal", "-shm", "-journal")  # what SQLite keeps beside a file, and would take for that of the next one there


def files_of(path: str) -> set[str]:
    """Return the names of a database, and of all that may lie beside it."""
    return {f"{path}{suffix}" for suffix in ("", *BESIDE, CHECKPOINT_LOCK)}


@contextmanager
def new_file(path: str) -> Iterator[str]:
    """Give the name of an empty file beside a path, its owner's alone, of which nothing is left but by `put_in_place`.

    Nobody else has that name, so that nothing of anybody's is written over or removed.
    """
    folder = Path(path).absolute().parent
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    name = str(folder / f"{Path(path).name}.{secrets.token_urlsafe(6)}.partial")
    try:  # known before it is there, so that no signal comes between
        os.close(os.open(name, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
        yield name
    finally:
        for suffix in ("", *BESIDE):
            Path(f"{name}{suffix}").unlink(missing_ok=True)


def put_in_place(new: str, path: str) -> None:
    """Let a new file take a path, where nothing is lost by that, and have it on the disk."""
    require_replaceable(path)
    flush(new)
    take_place(new, path)


def take_place(new: str, path: str) -> None:
    """Let a file that is on the disk take a path, at once and for good."""
    Path(new).replace(path)
    flush(str(Path(path).absolute().parent))


def flush(path: str) -> None:
    """Have a file, or the entries of a folder, on the disk. On macOS an fsync leaves it in the disk's memory."""
    if fcntl is None and Path(path).is_dir():  # Windows opens no folder
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
    """Refuse to replace anything but an empty file, or a database of this service that nobody has open.

    :raises DatabaseUnusable: then.
    """
    for log_path in (f"{path}-wal", f"{path}-journal"):
        if os.path.lexists(log_path):
            raise DatabaseUnusable(
                f"{log_path} lies there: {path} is open in another process, or was when that died; stop what uses it,"
                f" fold that in with: findings-service check --db {path}, or remove it"
            )
    if not os.path.lexists(path):
        return
    with suppress(sqlite3.Error):
        if stat.S_ISREG(os.lstat(path).st_mode):
            with closing(sqlite3.connect(path)) as old:
                (mark,) = old.execute("PRAGMA application_id").fetchone()
            if mark == APPLICATION_ID or not is_filled(path):
                return
    raise DatabaseUnusable(f"{path} is no database of this service, and was left as it is; name another file")


def copy_beside(connection: SQLiteConnection, path: str) -> None:
    """Have SQLite make its copies beside a database, and not where temporary files are, which may be small."""
    with suppress(sqlite3.Error):
        quoted = str(Path(path).resolve().parent).replace("'", "''")
        connection.execute(f"PRAGMA temp_store_directory = '{quoted}'")


@contextmanager
def interruptible() -> Iterator[None]:
    """Have the signals that would end the process end what is under way as Ctrl-C does, so that it is undone."""
    deadly = [name for name in STOPPING if signal.getsignal(name) is signal.SIG_DFL]

    def end(*_: object) -> NoReturn:
        for name in deadly:
            signal.signal(name, signal.SIG_IGN)  # while what was begun is undone
        raise KeyboardInterrupt

    for name in deadly:
        signal.signal(name, end)
    try:
        yield
    finally:
        for name in deadly:
            signal.signal(name, signal.SIG_DFL)


def note_backup(database: Database, at: str) -> None:
    """Note when a good backup was begun, for the metrics. What hinders that takes nothing away from the backup."""
    try:
        with database.transaction() as connection:
            connection.execute(
                """INSERT INTO backups (id, made_at) VALUES (1, ?)
                   ON CONFLICT (id) DO UPDATE SET made_at = excluded.made_at""",
                (at,),
            )
    except (*ENGINE_ERRORS, DatabaseUnusable) as error:
        click.echo(f"The metrics do not know of it: {database.settings.db} could not be written ({error}).", err=True)


@contextmanager
def opened_file(db: str, command: str, *, new: bool = False) -> Iterator[SQLiteDatabase]:
    """Give a command a database file, and say what to do instead where the database is another engine's."""
    with opened(db, new=new) as database:
        if not isinstance(database, SQLiteDatabase):
            advice = database.advice[command].format(name=database.name)
            raise click.ClickException(f"`{command}` is for database files; {advice}")
        yield database


@click.command()
@click.argument("file", type=click.Path(dir_okay=False))
@click.option("--replace", is_flag=True, help="Replace FILE once the new backup is verified.")
@database_option
def backup(file: str, replace: bool, db: str) -> None:
    """Copy the database to FILE while it is in use. The copy is of one moment, verified, and readable by you alone."""
    with interruptible(), opened_file(db, "backup", new=True) as database:  # of any version of ours
        if os.path.realpath(file) in files_of(database.location):
            raise click.ClickException(f"{file} would take the place of what belongs to {db}; name another file")
        if os.path.lexists(file) and not replace:
            raise click.ClickException(f"{file} is there already; name another file, or say --replace")
        require_replaceable(file)
        if not Path(db).exists():
            raise click.ClickException(f"there is no file {db}")
        begun = timestamp()
        with (
            closing(open_database(database.settings, read_only=True)) as source,
            new_file(file) as copy,
        ):
            if not (version := user_version(source)):
                raise click.ClickException(f"{db} is empty: there is nothing to copy")
            if wrong := copy_database(source, copy):
                raise click.ClickException(f"the copy is damaged, and was dropped: {wrong[0]}")
            put_in_place(copy, file)
        click.echo(f"{file}: {Path(file).stat().st_size:,} bytes, verified.", err=True)
        if version == SCHEMA_VERSION:
            note_backup(database, begun)


@click.command()
@database_option
def compact(db: str) -> None:
    """Give the space of what was removed back to the disk. Then the database is audited; a service's writes wait."""
    with opened_file(db, "compact") as database, database.maintaining() as connection:
        before = Path(db).stat().st_size
        copy_beside(connection, db)
        retry_while_busy(partial(connection.execute, "VACUUM"), database.settings.busy_timeout)
        database.run_maintenance()  # or, where that is a running service's, it does so in its next turn
        with database.snapshot() as moment:
            audit.audit(moment, db)
            (least,) = moment.execute(
                "SELECT page_count * page_size FROM pragma_page_count, pragma_page_size"
            ).fetchone()
        after = Path(db).stat().st_size
    rest = f", and {least:,} soon" if after > least else ""  # once nobody reads what was there before
    click.echo(f"{db}: {before:,} bytes before, {after:,} now{rest}. It is sound.", err=True)


def register() -> None:
    """Add the commands."""
    for command in (backup, compact):
        main.add_command(command)
