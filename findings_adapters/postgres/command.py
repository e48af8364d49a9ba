"""The command `copy`: a whole database from a file to PostgreSQL, or back, or from one file or server to another."""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import AbstractContextManager as Opened

import click

import findings_features.backup as backup
from findings_adapters.postgres.copying import (
    Source,
    Target,
    copy_tables,
    file_source,
    file_target,
    find_shifts,
    read_tables,
)
from findings_service import Database, SQLiteDatabase, opened, write_table


def ends_at(database: Database) -> tuple[Callable[..., Opened[Source]], Callable[..., Opened[Target]]]:
    """Return the functions that open the source of a copy and its target."""
    if isinstance(database, SQLiteDatabase):
        return file_source, file_target
    from findings_adapters.postgres import bulk  # needs psycopg

    return bulk.server_source, bulk.server_target


def named(_: click.Context, __: click.Parameter, value: str) -> str:
    """Check that a database is named: an unset variable would leave it empty."""
    if not value:
        raise click.BadParameter("this names no database")
    return value


end_option = functools.partial(click.option, required=True, metavar="DATABASE", callback=named)


@click.command(
    epilog="Stop the service before, or what is written meanwhile is not in the copy. Nothing is ever written over, and"
    " of a copy that fails nothing is left."
)
@end_option("--from", "source", help="What is copied: a file, or a postgresql:// URL.")
@end_option("--to", "target", help="Where to: a new file, or a URL of a database without data of the service.")
def copy(source: str, target: str) -> None:
    """Copy a database to another, also to PostgreSQL and back. The copy is of one moment, and verified."""
    tables = read_tables()
    with backup.interruptible(), opened(source) as old, opened(target, new=True) as new:
        of_source = backup.files_of(old.location) if isinstance(old, SQLiteDatabase) else {old.location}
        if new.location in of_source:
            raise click.ClickException(f"{new.name} belongs to what is copied; name another database")
        read, fill = ends_at(old)[0], ends_at(new)[1]
        with read(old) as place, fill(new, tables) as copied:
            shifts = find_shifts(place, tables) if isinstance(new, SQLiteDatabase) else {}
            counts = copy_tables(place, copied, tables, shifts)
    write_table(("TABLE", "        ROWS"), [(name, f"{count:12,}") for name, count in counts.items()], err=True)
    if shifted := [name for name, by_client in shifts.items() if by_client]:
        click.echo(
            f"Clients had the same numbers in {', '.join(shifted)}; some were moved, in the same order.", err=True
        )
    click.echo(f"{new.name}: {sum(counts.values()):,} rows, verified.", err=True)
