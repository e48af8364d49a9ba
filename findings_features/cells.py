"""Counts of tasks and runs, by project type, branch, status and severity, from the counters."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from findings_service import MAIN_LINE, Connection, Filter, counter_name, select_counts

# The key of a count: a project type (if the filter names types), rule or tag; a branch ("" is the main line, None all
# branches together); a status; a severity rank.
Cell = tuple[str | None, str | None, str, int]


def accepts(wanted: Filter, main_line: bool, status: str, severity: int) -> bool:
    """Return whether a filter accepts a status, a severity rank, and the main line (or, if false, branches)."""
    return (
        wanted.main_line in (None, main_line)
        and (wanted.statuses is None or status in wanted.statuses)
        and (wanted.ranks is None or severity in wanted.ranks)
    )


def select_cells(connection: Connection, client_id: str, table: str, wanted: Filter) -> dict[Cell, int]:
    """Count the tasks or runs that match a filter, by cell, from counters. Cells without any are left out."""
    named = {
        counter_name(table, project_type, wanted.target_url, line): (project_type, line)
        for project_type in ((None,) if wanted.types is None else wanted.types)
        for line in ((MAIN_LINE, None) if wanted.names is None else wanted.names)
    }
    return select_named_cells(connection, client_id, named, wanted)


def select_named_cells(
    connection: Connection, client_id: str, named: Mapping[str, tuple[str | None, str | None]], wanted: Filter
) -> dict[Cell, int]:
    """Count the tasks or runs that match a filter, by cell, from some counters.

    :param named: for the name of each counter, the first two members of its cells.
    """
    cells = Counter[Cell]()
    for name, status, severity, n in select_counts(connection, client_id, list(named)):
        cells[*named[name], status, severity] += n
    return {cell: n for cell, n in cells.items() if n and accepts(wanted, cell[1] == MAIN_LINE, *cell[2:])}
