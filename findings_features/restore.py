"""A backup in the place of a database: the command `restore`.

The new file is made and verified beside the old one, which nobody can open meanwhile, and which keeps a name of its
own. Whenever the command is killed, one of the two is at the path, whole.
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
    is_filled,
    main,
    open_database,
    opened,
    require_ours,
    require_version,
    revoke_key,
    timestamp,
    unusable,
    user_version,
    write_table,
)

Revoked = Mapping[str, str]  # when keys were revoked, by their ids
NOT_OURS = "{} is no database of this service, and was left as it is; move it away with its -wal, or name another"
IN_USE = "{} is open in another process; stop the service, and whatever else uses it, and restore again"


@contextmanager
def locked(path: str) -> Iterator[Revoked | None]:
    """Lock a database and checkpoint its WAL. Yield its revoked keys, None if they are unknown.

    :raises DatabaseUnusable: if another process has it open, or the file is not a database of this service.
    """
    right = CheckpointLock(path)
    with closing(sqlite3.connect(path, timeout=0, isolation_level=None, factory=SQLiteConnection)) as old:
        try:
            yield lock(old, path, right)
        finally:
            right.release()


def lock(old: SQLiteConnection, path: str, right: CheckpointLock) -> Revoked | None:
    """Lock a database for as long as its connection is open, fold its log in, and return its revoked keys.

    What SQLite cannot read is locked against services alone, one of which has the right to fold.

    :raises DatabaseUnusable: for what is in use, and for what is no database of this service, be it a damaged one.
    """
    try:
        require_ours(old, path)
        old.execute("PRAGMA journal_mode = DELETE")  # only who is alone there may
        old.execute("BEGIN EXCLUSIVE")
        if old.execute("PRAGMA journal_mode").fetchone() != ("delete",):
            raise DatabaseUnusable(IN_USE.format(path))  # somebody came in between
        return dict(old.execute("SELECT id, revoked_at FROM api_keys WHERE revoked_at IS NOT NULL"))
    except sqlite3.DatabaseError as error:
        if old.in_transaction:
            return None
        if not is_busy(error):
            if not is_damaged(error):
                raise unusable(path, error) from None
            with Path(path).open("rb") as file:
                mark = file.read(72)[68:]  # https://www.sqlite.org/fileformat.html#application_id
            if mark != APPLICATION_ID.to_bytes(4, "big"):
                raise DatabaseUnusable(NOT_OURS.format(path)) from None
            if right.acquire():
                return None
        raise DatabaseUnusable(IN_USE.format(path)) from None


def is_damaged(error: sqlite3.Error) -> bool:
    """Tell whether `error` is SQLite's word for what cannot be read as a database."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


def copy_verified(file: str, settings: Settings, new: str) -> None:
    """Copy a backup into an empty file. :raises click.ClickException: when it is no good one."""
    theirs = msgspec.structs.replace(settings, db=file)
    with closing(open_database(theirs, read_only=True)) as source:
        if not (version := user_version(source)):
            raise click.ClickException(f"{file} is empty: there is nothing to restore")
        require_version(file, version)
        try:
            wrong = backup.copy_database(source, new)
        except sqlite3.DatabaseError as error:
            if not is_damaged(error):
                raise
            wrong = [str(error)]
    if wrong:
        raise click.ClickException(f"{file} is damaged, and nothing was restored: {wrong[0]}")


def settle_keys(connection: Connection, revoked: Revoked, *, revoke_all: bool) -> list[tuple[str, ...]]:
    """Revoke, of the live keys that a backup brings, what was revoked where it is restored, or all of them.

    Return what the command shows of them.
    """
    rows = connection.execute(
        """SELECT id, client_id, name, level, expires_at FROM api_keys
           WHERE revoked_at IS NULL AND (expires_at IS NULL OR expires_at > ?) ORDER BY client_id, id""",
        (timestamp(),),
    ).fetchall()
    for key_id, *_ in rows:
        if revoke_all or key_id in revoked:
            revoke_key(connection, key_id, revoked.get(key_id))
    rest = "revoked" if revoke_all else "live"
    return [(*shown, "stays revoked" if key_id in revoked else rest) for key_id, *shown in rows]


def replace(path: str, new: str, name: str) -> None:
    """Let a new file take the place of a locked one, which gets another name, with a log that could not be folded in.

    That is a second name first, so that there is no moment without a file, of which a service would make a new one.
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
    """Put a verified copy of BACKUP in the place of the database.

    Nobody may have that open. What was there is kept beside it, and the keys that were revoked there stay revoked.
    """
    with backup.interruptible(), backup.opened_file(db, "restore", new=True) as database:
        path = database.location
        if os.path.realpath(file) in backup.files_of(path):
            raise click.ClickException(f"{file} belongs to {db}; name a backup of it")
        kept = f"{path}.replaced-{timestamp().replace(':', '')}" if is_filled(path) else ""
        with locked(path) if kept else nullcontext() as revoked, backup.new_file(path) as new:
            copy_verified(file, database.settings, new)
            with opened(new, new=True) as fresh, fresh.transaction() as connection:  # and is up to date then
                begin_epoch(connection)
                keys = settle_keys(connection, revoked or {}, revoke_all=revoke_keys)
            with suppress(OSError, AttributeError):  # root may restore what is a service's; Windows has no such owners
                owner = (Path(path) if os.path.lexists(path) else Path(path).parent).stat()
                os.chown(new, owner.st_uid, owner.st_gid)
            if kept:
                replace(path, new, kept)
            else:
                backup.put_in_place(new, path)
        click.echo(f"{db}: {Path(path).stat().st_size:,} bytes from {file}, verified.", err=True)
    if kept:
        click.echo(f"What was there is kept as {kept}; remove it when nobody needs it any more.", err=True)
    if keys:
        write_table(("CLIENT", "NAME", "LEVEL", "EXPIRES", "NOW"), keys, err=True)
    if not any(key[-1] == "live" for key in keys):
        click.echo(f"No key is live; make one with: findings-service keys create NAME --db {db}", err=True)
    elif revoked is None:
        click.echo(
            "Which of them were revoked since the backup is not known here; revoke those once more with:"
            f" findings-service keys revoke NAME --client CLIENT --db {db}",
            err=True,
        )


def register() -> None:
    """Add the command."""
    main.add_command(restore)
