"""The command `copy`, which copies a whole database between files and PostgreSQL servers."""

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


def functions_for(database: Database) -> tuple[Callable[..., Opened[Source]], Callable[..., Opened[Target]]]:
    """Return two functions: to open a database of this one's engine as the source of a copy, and as the target."""
    if isinstance(database, SQLiteDatabase):
        return file_source, file_target
    from findings_adapters.postgres import bulk  # needs psycopg

    return bulk.server_source, bulk.server_target


def require_name(_: click.Context, __: click.Parameter, value: str) -> str:
    """Return the option's value, but reject an empty one, which an unset shell variable would give."""
    if not value:
        raise click.BadParameter("must not be empty; give a file or a URL")
    return value


database_name_option = functools.partial(click.option, required=True, metavar="DATABASE", callback=require_name)


@click.command(
    epilog="Stop the service first: writes during the copy are not in it. Nothing is ever overwritten, and a copy that"
    " fails leaves nothing."
)
@database_name_option("--from", "source", help="The source: a file or a postgresql:// URL.")
@database_name_option("--to", "target", help="The target: a new file, or the URL of a database without findings data.")
def copy(source: str, target: str) -> None:
    """Copy a database to a new file or PostgreSQL database. The copy is a verified snapshot."""
    tables = read_tables()
    with backup.interruptible(), opened(source) as old, opened(target, new=True) as new:
        locations = backup.files_of(old.location) if isinstance(old, SQLiteDatabase) else {old.location}
        if new.location in locations:
            raise click.ClickException(f"{new.name} is the source, or belongs to it; name another target")
        open_source, open_target = functions_for(old)[0], functions_for(new)[1]
        with open_source(old) as opened_source, open_target(new, tables) as opened_target:
            shifts = find_shifts(opened_source, tables) if isinstance(new, SQLiteDatabase) else {}
            counts = copy_tables(opened_source, opened_target, tables, shifts)
    write_table(("TABLE", "        ROWS"), [(name, f"{count:12,}") for name, count in counts.items()], err=True)
    if shifted := [name for name, by_client in shifts.items() if by_client]:
        click.echo(
            f"Clients had the same row numbers in {', '.join(shifted)}; some were shifted, in the same order.", err=True
        )
    click.echo(f"{new.name}: {sum(counts.values()):,} rows, verified.", err=True)
