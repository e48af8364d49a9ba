"""Query planner for lists: finds the index ranges that read the fewest rows for a filter.

Without it a list has the same rows, but all rows of the client are read: half a million tasks may take too long.
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

COUNTED = {"types", "target_url", "names", "main_line", "statuses", "ranks"}  # filter fields that counters cover


def rows_of(client_id: str, table: str) -> IndexRange:
    """Return the range of all rows of a client in a table."""
    return IndexRange((f"{table}.client_id = ?",), (client_id,), table)


def plan_cells(connection: Connection, client_id: str, table: str, wanted: Filter, order: str) -> ListPlan:
    """Plan a list by the fields that counters cover, with an index range for each non-empty cell.

    Without such fields, there is a single range of all rows, unless the order is by severity.
    If no index begins with all of the type, target and branch of the filter, SQLite uses the matching index that
    schema.sql creates last: by branch, else by target. A branch or target has fewer rows than a type.
    """
    cells = select_cells(connection, client_id, table, wanted)
    filtered = COUNTED & wanted.conditions(table).keys()
    start, total = rows_of(client_id, table), sum(cells.values())
    ranges = tuple(cell_range(start, cell, "project_type", target_url=wanted.target_url) for cell in cells)
    if not filtered and order != "severity":
        ranges = (start,)
    return ListPlan(ranges=ranges, settled=filtered, size=total, total=total)


def cell_range(start: IndexRange, cell: Cell, column: str, **fixed: str | None) -> IndexRange:
    """Return the index range of a cell, whose first member is a value of `column`. `fixed` has further values."""
    (value, line, status, severity), table = cell, start.table
    is_main = f"{table}.branch {'=' if line == MAIN_LINE else '<>'} ''"  # as in the partial indexes
    found = start.where(f"task_tags.main_line = {int(line == MAIN_LINE)}" if table == "task_tags" else is_main)
    whole = {column: value, **fixed, "branch": line or None, "status": status, "severity": severity or None}
    for name, each in whole.items():
        if each is not None:  # runs have no severity
            found = found.where(f"{table}.{name} = ?", each)
    return msgspec.structs.replace(found, severity=severity)


def plan_reported(client_id: str, field: str, reporters: Sequence[Source]) -> ListPlan:
    """Plan a list of the tasks that the runs or branches of a filter field reported, from sightings."""
    table, column = (reporters[0].sightings, reporters[0].column) if reporters else ("sightings", "run_seq")
    start = rows_of(client_id, table)
    one, seqs = among(f"{table}.{column}", [each.seq for each in reporters])
    size = sum(each.reported for each in reporters)
    disjoint = len({each.type_and_target for each in reporters}) == len(reporters)  # then no two share a task
    return ListPlan(
        ranges=tuple(start.where(f"{table}.{column} = ?", each.seq) for each in reporters),
        settled={field, "types", "target_url"},
        size=size,
        total=size if disjoint else None,
        tally=start.where(one, *seqs) if len(reporters) > 1 else None,
    )


def plan_labelled(connection: Connection, client_id: str, field: str, wanted: TaskFilter) -> ListPlan:
    """Plan a list of the tasks with any of the rules or tags in a filter field, from the index of rules or tags."""
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
    disjoint = column == "rule" or len(values) == 1  # else a task may be in several ranges
    return ListPlan(
        ranges=tuple(cell_range(start, cell, column) for cell in cells),
        settled={field, *(("main_line", "statuses", "ranks") if disjoint else ())},
        size=size,
        total=size if disjoint else None,
        tally=None if disjoint else start.where(one, *texts),
    )


INDEXED_LOCATION = 200  # characters of a location that its index contains
MOST_LOCATED = 200_000  # at most so many tasks at a location are counted to choose a plan


def plan_located(connection: Connection, client_id: str, location: str) -> ListPlan:
    """Plan a list of the tasks at a location or below it, from the index of location prefixes."""
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
    """Yield plans, each with all rows that a filter accepts: one only, if the filter has an external id or assignee."""
    if not isinstance(wanted, TaskFilter):
        yield plan_cells(connection, client_id, table, wanted, order)
        return
    start = rows_of(client_id, table)
    same = "SELECT seq FROM tasks AS same WHERE same.client_id = ? AND same.external_id = ?"  # in any order
    named = {
        "external_id": start.where(f"tasks.seq {connection.one_of(same)}", client_id, wanted.external_id),
        "assignee": start.where("tasks.assignee = ?", wanted.assignee),
        "assigned": start.where("tasks.assignee IS NOT NULL"),
        "claimed": start.where("tasks.claim_id IS NOT NULL"),
        "proposed": start.where("tasks.proposal IS NOT NULL"),
        "verified": start.where("tasks.verification IS NOT NULL"),
    }
    for field, rows in named.items():
        if (value := getattr(wanted, field)) and (field != "verified" or "none" not in value):
            settled = set() if field == "verified" else {field}
            yield ListPlan(ranges=(rows,), settled=settled, size=0)  # few rows match
            return
    yield plan_cells(connection, client_id, table, wanted, order)
    for field, reporters in wanted.reporters.items():
        yield plan_reported(client_id, field, reporters)
    for field in ("rules", "tags"):
        if getattr(wanted, field) is not None:
            yield plan_labelled(connection, client_id, field, wanted)
    if wanted.location is not None:
        yield plan_located(connection, client_id, wanted.location)
    if wanted.search is not None:
        yield wanted.search.plan(connection, client_id)


def register() -> None:
    """Register the planner."""
    REGISTRY.plans = plans
