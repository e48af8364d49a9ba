"""Groups of a task list: `GET /api/v1/groups` counts tasks by rule or another field.

If the counters (for assignees, an index) cover the request, only they are read. Otherwise every task of the list is
read, within the time limit of a list. Nothing is stored.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Annotated, Literal

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
    Row,
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
Group = tuple[str | None, str, int]  # the value, status and severity rank of tasks


class GroupOfTasks(Model):
    """Counts of the tasks that share a value; `value` is null for tasks without one."""

    value: str | None
    total: int
    by_severity: SeverityCounts
    by_status: StatusCounts


class Groups(Model):
    """The largest groups of a task list. `others` counts tasks of the other groups. A task counts once per tag."""

    by: By
    groups: list[GroupOfTasks]
    others: int


class GroupQuery(TaskFilters, kw_only=True):
    """Query parameters of groups: the filters of a task list, and the field to group by."""

    by: Annotated[By, Meta(description="The field to group by. Locations count without line and column.")]
    limit: Annotated[int, Meta(ge=1, le=200, description="Maximum number of groups.")] = 50


# By field, the names of the counters of its values: a prefix, and a pattern of the value and of the suffix that marks
# a counter of tasks that only branches know.
NAMES = {
    "rule": ('tasks rule:"', r'(.*)"( branches)?'),
    "tag": ('tasks tag:"', r'(.*)"( branches)?'),
    "projectType": ("tasks type:", r"([^ ]+)( branches)?"),
    "targetUrl": ("tasks target:", r"([^ ]*)( branches)?"),
}


def select_values(connection: Connection, client_id: str, by: str) -> Iterator[Row]:
    """Yield (value, is main line, status, severity rank, count) of a field, from counters or the assignee index."""
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
    """Count the tasks of each group from counters. Tasks without a value are all tasks minus those with one."""
    counts: Counter[Group] = Counter()
    for value, is_main, status, rank, n in select_values(connection, client_id, by):
        if accepts(wanted, bool(is_main), status, rank):
            counts[value, status, rank] += n
    with_value = [(status, rank, n) for (_, status, rank), n in counts.items()]
    if by == "tag":  # a task may have several tags
        tagged = {TAGGED: (None, MAIN_LINE), TAGGED + BRANCHES: (None, None)}
        with_value = [(*cell[2:], n) for cell, n in select_named_cells(connection, client_id, tagged, wanted).items()]
    for (*_, status, rank), n in select_cells(connection, client_id, "tasks", wanted).items():
        counts[None, status, rank] += n
    for status, rank, n in with_value:
        counts[None, status, rank] -= n
    return counts


COLUMNS = {"tag": "tags", "projectType": "project_type", "targetUrl": "target_url"}
ADDRESS = regex.compile(r"[A-Za-z][A-Za-z0-9+.-]*://([^/?#@]*@)?(\[[^/?#\]]*\]|[^/?#@:\[\]]*)")  # up to a port


def file_of(location: str) -> str:
    """Return a location without its line and column; the port of an address is kept."""
    for _ in range(2):
        start, _, digits = location.rpartition(":")
        if not (start and digits.isascii() and digits.isdecimal()) or ("://" in start and ADDRESS.fullmatch(start)):
            break
        location = start
    return location


def values_of(by: str, stored: str, n: int) -> Mapping[str, int]:
    """Return the number of tasks by value. :param stored: a value of `n` tasks, or a line with the location of each."""
    if by == "location":
        return Counter(map(file_of, stored.split("\n")))
    return dict.fromkeys(tags_in(stored) or [""], n) if by == "tag" else {stored: n}


def listed_groups(connection: Connection, client_id: str, by: str, wanted: TaskFilter) -> Counter[Group]:
    """Count the tasks of each group by reading all tasks that a filter accepts.

    Few locations are equal, so the engine joins those of a status and severity into one text. 200,000 rows would take
    three times as long.
    """
    plan, counts = plan_tasks(connection, client_id, wanted), Counter[Group]()
    # An expression, because for a column SQLite might read all tasks in the order of an index on it.
    columns = f"COALESCE(tasks.{COLUMNS.get(by, by)}, '') AS value, tasks.status, tasks.severity"
    value, key = ("GROUP_CONCAT(value, '\n')", "2, 3") if by == "location" else ("value", "1, 2, 3")
    for each in (plan.tally,) if plan.tally else plan.ranges:
        listed = each.select(f"{'DISTINCT ' if plan.tally else ''}{each.seq}, {columns}")
        statement = f"SELECT {value}, status, severity, COUNT(*) FROM ({listed}) AS listed GROUP BY {key}"
        for stored, status, rank, n in connection.execute(statement, each.values):
            for name, count in values_of(by, stored, n).items():
                counts[name, status, rank] += count
    return counts


def select_groups(connection: Connection, client_id: str, query: GroupQuery) -> Groups:
    """Return the largest groups of a query's tasks. Tasks without a value come last among equal sizes."""
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
    """Count the tasks of a list by the values of one field."""

    def read(connection: Connection) -> Response:
        with in_list_time(connection):
            return json_response(200, select_groups(connection, request.client_id, request.query))

    return request.read_slowly(read)


def register() -> None:
    """Register the endpoint."""
    REGISTRY.add_operations(get_groups)
