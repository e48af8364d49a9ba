"""What the findings of a list have in common: `GET /api/v1/groups`, how many there are of each rule, place or tag.

Where nothing is asked for but what counters tell, they are read; else every task of the list is looked at, within the
time that a list has. Nothing is stored.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterator
from typing import Annotated, Any, Literal

import msgspec
import regex
from msgspec import Meta

from findings_features.cells import accepts, select_cells, select_named_cells
from findings_service import (
    BRANCHES,
    MAIN_LINE,
    REGISTRY,
    TAGGED,
    ApiRequest,
    Connection,
    Model,
    Response,
    SeverityCounts,
    StatusCounts,
    TaskFilter,
    TaskFilters,
    ThreadJob,
    in_list_time,
    json_response,
    operation,
    plan_tasks,
    read_task_filter,
    summary_of,
    tags_in,
)

By = Literal["rule", "location", "tag", "projectType", "targetUrl", "assignee"]
Group = tuple[str | None, str, int]  # what a task is counted under: the value, its status, its severity's rank


class GroupOfTasks(Model):
    """The tasks that share a value; it is null for those without one."""

    value: str | None
    total: int
    by_severity: SeverityCounts
    by_status: StatusCounts


class Groups(Model):
    """The largest groups of a list, and how many tasks all others have together. A task is in one for each tag."""

    by: By
    groups: list[GroupOfTasks]
    others: int


class GroupQuery(TaskFilters, kw_only=True):
    """What the tasks that filters leave are grouped by."""

    by: Annotated[By, Meta(description="What they have in common. A location counts without its line and column.")]
    limit: Annotated[int, Meta(ge=1, le=200, description="Groups that are listed.")] = 50


# The names of the counters that count by one value alone: what they begin with, and the value, and whether it is of
# what is not of the main line.
NAMES = {
    "rule": ('tasks rule:"', r'(.*)"( branches)?'),
    "tag": ('tasks tag:"', r'(.*)"( branches)?'),
    "projectType": ("tasks type:", r"([^ ]+)( branches)?"),
    "targetUrl": ("tasks target:", r"([^ ]*)( branches)?"),
}


def select_values(connection: Connection, client_id: str, by: str) -> Iterator[tuple[Any, ...]]:
    """Give what counters (or the index of assignees) tell of all values: the value, line, status, severity, number."""
    if by == "assignee":
        yield from connection.execute(
            """SELECT assignee, CASE branch WHEN '' THEN 1 ELSE 0 END, status, severity, COUNT(*) FROM tasks
               WHERE client_id = ? AND assignee IS NOT NULL GROUP BY 1, 2, 3, 4""",
            (client_id,),
        )
        return
    start, rest = NAMES[by]
    rows = connection.execute(
        "SELECT scope, status, severity, n FROM counters WHERE client_id = ? AND scope >= ? AND scope < ?",
        (client_id, start, start[:-1] + chr(ord(start[-1]) + 1)),
    )
    for name, *kind in rows:
        if match := regex.fullmatch(rest, name, pos=len(start)):
            yield match[1], not match[2], *kind


def counted_groups(connection: Connection, client_id: str, by: str, wanted: TaskFilter) -> Counter[Group]:
    """Count without looking at each task. Those without a value are what those with one leave of all."""
    counts: Counter[Group] = Counter()
    for value, is_main, status, rank, n in select_values(connection, client_id, by):
        if accepts(wanted, bool(is_main), status, rank):
            counts[value, status, rank] += n
    having = [(status, rank, n) for (_, status, rank), n in counts.items()]
    if by == "tag":  # a task may have several
        tagged = {TAGGED: (None, MAIN_LINE), TAGGED + BRANCHES: (None, None)}
        having = [(*cell[2:], n) for cell, n in select_named_cells(connection, client_id, tagged, wanted).items()]
    for (*_, status, rank), n in select_cells(connection, client_id, "tasks", wanted).items():
        counts[None, status, rank] += n
    for status, rank, n in having:
        counts[None, status, rank] -= n
    return counts


COLUMNS = {"tag": "tags", "projectType": "project_type", "targetUrl": "target_url"}
DIGITS = "0123456789"
ADDRESS = regex.compile(r"[A-Za-z][A-Za-z0-9+.-]*://([^/?#@]*@)?(\[[^/?#\]]*\]|[^/?#@:\[\]]*)")  # what a port follows


def file_of(location: str) -> str:
    """Return a location without its line and column; a port of an address is none."""
    for _ in range(2):
        start = location.rstrip(DIGITS)
        if start == location or len(start) < 2 or start[-1] != ":":
            break
        if "://" in start and ADDRESS.fullmatch(start[:-1]):
            break
        location = start[:-1]
    return location


def values_of(by: str, stored: str | None) -> list[str | None]:
    """Return the values that a task is counted under, None for none."""
    if not stored:
        return [None]
    if by == "location":
        return [file_of(stored)]
    return [*tags_in(stored)] if by == "tag" else [stored]


def listed_groups(connection: Connection, client_id: str, by: str, wanted: TaskFilter) -> Counter[Group]:
    """Count all tasks that a filter leaves."""
    plan, counts = plan_tasks(connection, client_id, wanted), Counter[Group]()
    columns = f"tasks.{COLUMNS.get(by, by)}, tasks.status, tasks.severity"
    for each in (plan.tally,) if plan.tally else plan.ranges:
        counted = f"COUNT(DISTINCT {each.seq})" if plan.tally else "COUNT(*)"
        statement = f"{each.select(f'{columns}, {counted}')} GROUP BY 1, 2, 3"
        if by == "location" and not plan.tally:  # few are the same: the database would sort for nothing
            statement = each.select(f"{columns}, 1")
        for stored, status, rank, n in connection.execute(statement, each.values):
            for value in values_of(by, stored):
                counts[value, status, rank] += n
    return counts


def select_groups(connection: Connection, client_id: str, query: GroupQuery) -> Groups:
    """Return the largest groups of what a query's filters leave; those without a value come last of the same size."""
    wanted = read_task_filter(connection, client_id, query)
    plain = TaskFilter(statuses=wanted.statuses, ranks=wanted.ranks, main_line=wanted.main_line)
    count = counted_groups if query.by != "location" and wanted == plain else listed_groups
    kinds: dict[str | None, list[tuple[str, int, int]]] = {}
    for (value, status, rank), n in count(connection, client_id, query.by, wanted).items():
        if n:
            kinds.setdefault(value or None, []).append((status, rank, n))
    sizes = {value: sum(n for *_, n in counted) for value, counted in kinds.items()}
    largest = heapq.nsmallest(query.limit, sizes, key=lambda value: (-sizes[value], value is None, value or ""))
    groups = [GroupOfTasks(value, *msgspec.structs.astuple(summary_of(kinds[value]))) for value in largest]
    return Groups(query.by, groups, sum(sizes.values()) - sum(group.total for group in groups))


@operation("GET", "/api/v1/groups", "read", {200: Groups}, query=GroupQuery)
def get_groups(request: ApiRequest) -> ThreadJob:
    """Count the tasks of a list by what they have in common."""

    def read(connection: Connection) -> Response:
        with in_list_time(connection):
            return json_response(200, select_groups(connection, request.client_id, request.query))

    return request.read_slowly(read)


def register() -> None:
    """Have groups answered."""
    REGISTRY.add_operations(get_groups)
