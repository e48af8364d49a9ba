"""Plans lists: which ranges of which index hold the fewest rows that a filter may let through.

Without it a list is as right, and looks at all that a client has: of some half a million tasks it may take too long.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from findings_features.cells import Cell, select_cells, select_named_cells
from findings_service import (
    BRANCHES,
    MAIN_LINE,
    REGISTRY,
    Condition,
    Connection,
    Filter,
    IndexRange,
    ListPlan,
    Source,
    TaskFilter,
    among,
    label_counter,
)

COUNTED = {"types", "target_url", "names", "main_line", "statuses", "ranks"}  # fields that counters tell of


def rows_of(client_id: str, table: str) -> IndexRange:
    """Return the range of all rows of a client in a table."""
    return IndexRange((f"{table}.client_id = ?",), (client_id,), table)


def plan_cells(connection: Connection, client_id: str, table: str, wanted: Filter, order: str) -> ListPlan:
    """Plan the list of what counters count: a range for each cell in which there is something.

    Where no index begins with all of type, target and branch that are asked for, SQLite takes the one that schema.sql
    makes last: by branch, or else by target, of which one has fewer rows than a type.
    """
    cells = select_cells(connection, client_id, table, wanted)
    asked = COUNTED & wanted.conditions(table).keys()
    start, total = rows_of(client_id, table), sum(cells.values())
    ranges = tuple(cell_range(start, cell, "project_type", target_url=wanted.target_url) for cell in cells)
    if not asked and order != "severity":
        ranges = (start,)
    return ListPlan(ranges=ranges, settled=asked, size=total, total=total)


def cell_range(start: IndexRange, cell: Cell, column: str, **fixed: str | None) -> IndexRange:
    """Return the index range of a cell, by the column of its first part, of all else or what is fixed.

    Runs have no severity.
    """
    (value, line, status, severity), table = cell, start.table
    is_main = f"{table}.branch {'=' if line == MAIN_LINE else '<>'} ''"  # as the indexes have it
    found = start.where(f"task_tags.main_line = {int(line == MAIN_LINE)}" if table == "task_tags" else is_main)
    whole = {column: value, **fixed, "branch": line or None, "status": status, "severity": severity or None}
    for name, each in whole.items():
        if each is not None:
            found = found.where(f"{table}.{name} = ?", each)
    return msgspec.structs.replace(found, severity=severity)


def plan_reported(client_id: str, field: str, reporters: Sequence[Source]) -> ListPlan:
    """Plan the list of what runs (or branches) reported, which a field of a filter names, from their sightings."""
    table, column = (reporters[0].sightings, reporters[0].column) if reporters else ("sightings", "run_seq")
    start = rows_of(client_id, table)
    one, seqs = among(f"{table}.{column}", [each.seq for each in reporters])
    size = sum(each.reported for each in reporters)
    alone = len({each.type_and_target for each in reporters}) == len(reporters)  # no two can have reported the same
    return ListPlan(
        ranges=tuple(start.where(f"{table}.{column} = ?", each.seq) for each in reporters),
        settled={field, "types", "target_url"},
        size=size,
        total=size if alone else None,
        tally=start.where(one, *seqs) if len(reporters) > 1 else None,
    )


def plan_marked(connection: Connection, client_id: str, field: str, wanted: TaskFilter) -> ListPlan:
    """Plan the list of what has one of the rules (or tags) that a field of a filter names, from the index of those."""
    table, column = ("tasks", "rule") if field == "rules" else ("task_tags", "tag")
    values = getattr(wanted, field)
    named = {
        f"{label_counter(column, value)}{ending}": (value, line)
        for value in values
        for line, ending in ((MAIN_LINE, ""), (None, BRANCHES))
    }
    cells = select_named_cells(connection, client_id, named, wanted)
    start, size = rows_of(client_id, table), sum(cells.values())
    one, texts = among(f"{table}.{column}", values)
    alone = column == "rule" or len(values) == 1  # else a task may be in several ranges
    return ListPlan(
        ranges=tuple(cell_range(start, cell, column) for cell in cells),
        settled={field, *(("main_line", "statuses", "ranks") if alone else ())},
        size=size,
        total=size if alone else None,
        tally=None if alone else start.where(one, *texts),
    )


INDEXED_LOCATION = 200  # characters of one that its index holds
MOST_LOCATED = 200_000  # tasks at a location that are counted to choose a plan


def plan_located(connection: Connection, client_id: str, location: str) -> ListPlan:
    """Plan the list of what is at a location, or goes on behind it, from the index of what locations begin with."""
    start = f"substr(located.location, 1, {INDEXED_LOCATION})"
    one = "SELECT seq FROM tasks AS located WHERE located.client_id = ? AND located.location IS NOT NULL AND"
    ends = location.endswith(("/", ":"))
    found: list[Condition] = [
        (f"{start} >= ? AND {start} < ?", (text, text[:-1] + chr(ord(text[-1]) + 1)))
        for text in ((location,) if ends else (f"{location}/", f"{location}:"))
        if len(text) <= INDEXED_LOCATION
    ]
    if not (ends and found):
        found.append((f"{start} = ?", (location[:INDEXED_LOCATION],)))
    seqs = " UNION ALL ".join(f"{one} {condition}" for condition, _ in found)
    values = [value for _, texts in found for value in (client_id, *texts)]
    few = f"SELECT COUNT(*) FROM (SELECT seq FROM ({seqs}) AS listed LIMIT ?) AS counted"
    (size,) = connection.execute(few, (*values, MOST_LOCATED)).fetchone()
    rows = rows_of(client_id, "tasks").where(f"tasks.seq {connection.one_of(seqs)}", *values)
    settled = {"location"} if len(location) < INDEXED_LOCATION else set[str]()
    return ListPlan(ranges=(rows,), settled=settled, size=size)


def plans(connection: Connection, client_id: str, table: str, wanted: Filter, order: str) -> Iterator[ListPlan]:
    """Yield plans that each contain all rows that a filter accepts. What is looked up by a name of its own is few."""
    if not isinstance(wanted, TaskFilter):
        yield plan_cells(connection, client_id, table, wanted, order)
        return
    start = rows_of(client_id, table)
    same = "SELECT seq FROM tasks AS same WHERE same.client_id = ? AND same.external_id = ?"  # in no order
    named = {
        "external_id": start.where(f"tasks.seq {connection.one_of(same)}", client_id, wanted.external_id),
        "assignee": start.where("tasks.assignee = ?", wanted.assignee),
        "assigned": start.where("tasks.assignee IS NOT NULL"),
    }
    for field, rows in named.items():
        if getattr(wanted, field):
            yield ListPlan(ranges=(rows,), settled={field}, size=0)
            return
    yield plan_cells(connection, client_id, table, wanted, order)
    for field, reporters in wanted.reporters.items():
        yield plan_reported(client_id, field, reporters)
    for field in ("rules", "tags"):
        if getattr(wanted, field) is not None:
            yield plan_marked(connection, client_id, field, wanted)
    if wanted.location is not None:
        yield plan_located(connection, client_id, wanted.location)
    if wanted.search is not None:
        yield wanted.search.plan(connection, client_id)


def register() -> None:
    """Have lists planned."""
    REGISTRY.plans = plans
