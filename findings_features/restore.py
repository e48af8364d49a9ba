"""Replacement of a database by a backup: the command `restore`.

The new file is made and verified beside the old one. Meanwhile no process can open the old file, which is then kept
under another name. Even if the command is killed at any moment, one of the two files is at the path, complete.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, nullcontext, suppress
from pathlib import Path

import click
import msgspec

import findings_features.backup as backup
from findings_service import (
    APPLICATION_ID,
    CheckpointLock,
    Connection,
    DatabaseUnusable,
    Settings,
    SQLiteConnection,
    begin_epoch,
    database_option,
    is_busy,
    is_nonempty_file,
    main,
    open_database,
    opened,
    require_own_file,
    require_version,
    revoke_key,
    timestamp,
    unusable,
    user_version,
    write_table,
)

Revoked = Mapping[str, str]  # times of revocation by key id
NOT_OURS = "{} is not a database of this service and was not changed; move it and its -wal away, or name another file"
IN_USE = "{} is open in another process; stop the service and all other programs that use it, then restore again"


@contextmanager
def locked(path: str) -> Iterator[Revoked | None]:
    """Lock a database and checkpoint its WAL. Yield its revoked keys, or None if they cannot be read.

    :raises DatabaseUnusable: if another process has it open, or the file is not a database of this service.
    """
    checkpoint_lock = CheckpointLock(path)
    with closing(sqlite3.connect(path, timeout=0, isolation_level=None, factory=SQLiteConnection)) as old:
        try:
            yield lock(old, path, checkpoint_lock)
        finally:
            checkpoint_lock.release()


def lock(old: SQLiteConnection, path: str, checkpoint_lock: CheckpointLock) -> Revoked | None:
    """Lock a database until its connection is closed. Checkpoint its WAL and return its revoked keys.

    Return None if the keys cannot be read. The checkpoint lock locks an unreadable file, but only against services.

    :raises DatabaseUnusable: if the file is in use, or is not a database of this service (not even a damaged one).
    """
    try:
        require_own_file(old, path)
        old.execute("PRAGMA journal_mode = DELETE")  # fails if another connection is open
        old.execute("BEGIN EXCLUSIVE")
        if old.execute("PRAGMA journal_mode").fetchone() != ("delete",):
            raise DatabaseUnusable(IN_USE.format(path))  # another process opened it in between
        return dict(old.execute("SELECT id, revoked_at FROM api_keys WHERE revoked_at IS NOT NULL"))
    except sqlite3.DatabaseError as error:
        if old.in_transaction:
            return None
        if not is_busy(error):
            if not is_damaged(error):
                raise unusable(path, error) from None
            with Path(path).open("rb") as file:
                application_id = file.read(72)[68:]  # https://www.sqlite.org/fileformat.html#application_id
            if application_id != APPLICATION_ID.to_bytes(4, "big"):
                raise DatabaseUnusable(NOT_OURS.format(path)) from None
            if checkpoint_lock.acquire():
                return None
        raise DatabaseUnusable(IN_USE.format(path)) from None


def is_damaged(error: sqlite3.Error) -> bool:
    """Return whether an error of SQLite says that the file cannot be read as a database."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


def copy_verified(file: str, settings: Settings, new: str) -> None:
    """Copy a backup into an empty file and check the copy. :raises click.ClickException: if it is empty or damaged."""
    backup_settings = msgspec.structs.replace(settings, db=file)
    with closing(open_database(backup_settings, read_only=True)) as source:
        if not (version := user_version(source)):
            raise click.ClickException(f"{file} is empty: there is nothing to restore")
        require_version(file, version)
        try:
            faults = backup.copy_database(source, new)
        except sqlite3.DatabaseError as error:
            if not is_damaged(error):
                raise
            faults = [str(error)]
    if faults:
        raise click.ClickException(f"{file} is damaged; nothing was restored: {faults[0]}")


def settle_keys(connection: Connection, revoked: Revoked, *, revoke_all: bool) -> list[tuple[str, ...]]:
    """Revoke those live keys of a restored backup that were revoked in the replaced database, or all live keys.

    Return a row for each key that was live in the backup, as the command prints it.
    """
    rows = connection.execute(
        """SELECT id, client_id, name, level, expires_at FROM api_keys
           WHERE revoked_at IS NULL AND (expires_at IS NULL OR expires_at > ?) ORDER BY client_id, id""",
        (timestamp(),),
    ).fetchall()
    for key_id, *_ in rows:
        if revoke_all or key_id in revoked:
            revoke_key(connection, key_id, revoked.get(key_id))
    others = "revoked" if revoke_all else "live"
    return [(*shown, "stays revoked" if key_id in revoked else others) for key_id, *shown in rows]


def replace(path: str, new: str, name: str) -> None:
    """Replace a locked database by the file `new`. The old one is kept as `name`, with any WAL or journal.

    The old file is linked to `name` first, so that the path always has a file: a service would create a missing one.
    """
    backup.flush(new)
    os.link(path, name)
    for suffix in ("-wal", "-journal"):
        with suppress(FileNotFoundError):
            Path(f"{path}{suffix}").rename(f"{name}{suffix}")
    backup.take_place(new, path)


@click.command()
@click.argument("file", metavar="BACKUP", type=click.Path(exists=True, dir_okay=False))
@click.option("--revoke-keys", is_flag=True, help="Revoke all live keys of the backup.")
@database_option
def restore(file: str, revoke_keys: bool, db: str) -> None:
    """Replace the database by a verified copy of BACKUP.

    No process may have the database open. The old file is kept beside it; keys that were revoked in it stay revoked.
    """
    with backup.interruptible(), backup.opened_file(db, "restore", new=True) as database:
        path = database.location
        if os.path.realpath(file) in backup.files_of(path):
            raise click.ClickException(f"{file} is {db} or belongs to it; name a backup")
        kept = f"{path}.replaced-{timestamp().replace(':', '')}" if is_nonempty_file(path) else ""
        with locked(path) if kept else nullcontext() as revoked, backup.new_file(path) as new:
            copy_verified(file, database.settings, new)
            with opened(new, new=True) as fresh, fresh.transaction() as connection:  # migrates it
                begin_epoch(connection)
                keys = settle_keys(connection, revoked or {}, revoke_all=revoke_keys)
            with suppress(OSError, AttributeError):  # root may restore a service's file; Windows has no such owners
                owner = (Path(path) if os.path.lexists(path) else Path(path).parent).stat()
                os.chown(new, owner.st_uid, owner.st_gid)
            if kept:
                replace(path, new, kept)
            else:
                backup.move_checked(new, path)
        click.echo(f"{db}: {Path(path).stat().st_size:,} bytes from {file}, verified.", err=True)
    if kept:
        click.echo(f"The old database is kept as {kept}; remove it when it is no longer needed.", err=True)
    if keys:
        write_table(("CLIENT", "NAME", "LEVEL", "EXPIRES", "NOW"), keys, err=True)
    if not any(key[-1] == "live" for key in keys):
        click.echo(f"No key is live; create one with: findings-service keys create NAME --db {db}", err=True)
    elif revoked is None:
        click.echo(
            "It is unknown which of these keys were revoked after the backup. Revoke such keys again with:"
            f" findings-service keys revoke NAME --client CLIENT --db {db}",
            err=True,
        )


def register() -> None:
    """Register the command."""
    main.add_command(restore)
