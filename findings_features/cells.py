"""What the counters of a client count, by project type, branch, status and severity."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import findings_service as heart

# What is listed together: project type (where types are named) or rule or tag, line (the main one, a branch that is
# named, or None for all branches), status, severity.
Cell = tuple[str | None, str | None, str, int]


def select_cells(connection: heart.Connection, client_id: str, table: str, wanted: heart.Filter) -> dict[Cell, int]:
    """Count what a filter leaves of a table, in cells none of which is empty."""
    named: dict[str, tuple[str | None, str | None]] = {
        heart.counter_name(table, project_type, wanted.target_url, line): (project_type, line)
        for project_type in ((None,) if wanted.types is None else wanted.types)
        for line in ((heart.MAIN_LINE, None) if wanted.names is None else wanted.names)
    }
    return select_named_cells(connection, client_id, named, wanted)


def select_named_cells(
    connection: heart.Connection,
    client_id: str,
    named: Mapping[str, tuple[str | None, str | None]],
    wanted: heart.Filter,
) -> dict[Cell, int]:
    """Count what a filter lets through of some counters, each with the begin of its cells."""
    cells = Counter[Cell]()
    for name, status, severity, n in heart.select_counts(connection, client_id, list(named)):
        cells[*named[name], status, severity] += n
    return {cell: n for cell, n in cells.items() if n and wanted.accepts(cell[1] == heart.MAIN_LINE, *cell[2:])}
