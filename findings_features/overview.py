"""Overview of all tasks and their recent changes: `GET /api/v1/overview`.

It is read with two queries, over all tasks that the main line or a branch knows and over their history. Nothing is
stored for it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from datetime import datetime, timedelta
from functools import partial
from typing import Annotated

from msgspec import Meta, Struct

from findings_service import (
    MAIN_LINE,
    REGISTRY,
    SEVERITIES,
    UNFINISHED,
    ApiRequest,
    Connection,
    Model,
    NonEmpty,
    RequestModel,
    Response,
    Row,
    StatusCounts,
    ThreadJob,
    conditional_response,
    operation,
    response_from_cache,
    timestamp,
)


class StandingOfType(Model):
    """The number of tasks of a project type, and how many of them are open."""

    project_type: str
    total: int
    open: int


class StandingOfTarget(Model):
    """The number of tasks of a target, and how many of them are open."""

    target_url: str | None
    total: int
    open: int


class Day(Model):
    """Task changes on a UTC day. `unfinished` counts open and in-progress tasks at its end (today: now)."""

    date: Annotated[str, Meta(extra_json_schema={"format": "date"})]
    created: int = 0
    reopened: int = 0
    resolved: int = 0
    dismissed: int = 0
    unfinished: int = 0


class StatusesBySeverity(Model):
    """The numbers of tasks by severity and status."""

    critical: StatusCounts
    high: StatusCounts
    medium: StatusCounts
    low: StatusCounts
    info: StatusCounts


class Overview(Model):
    """Counts of the selected tasks and of their changes per day; types and targets with most open tasks first."""

    total: int
    by_severity: StatusesBySeverity
    by_project_type: list[StandingOfType]
    by_target: list[StandingOfTarget]
    days: list[Day]


class OverviewQuery(RequestModel):
    """Query parameters of an overview: filters of its tasks, and the number of days."""

    project_type: Annotated[NonEmpty, Meta(description="Tasks of this project type.")] | None = None
    target_url: Annotated[NonEmpty, Meta(description="Tasks of this target, exactly as stored.")] | None = None
    branch: (
        Annotated[NonEmpty, Meta(description="Tasks that runs of this branch reported. Default: the main line's.")]
        | None
    ) = None
    days: Annotated[int, Meta(ge=1, le=365, description="Number of days, up to today.")] = 30


class Known(Struct, frozen=True):
    """The tasks that the main line (`branch` None) or a branch knows, of one or all project types and targets."""

    client_id: str
    project_type: str | None
    target_url: str | None
    branch: str | None = None

    def select(
        self, connection: Connection, columns: str, rest: str, *values: str | int, joined: str = ""
    ) -> list[Row]:
        """Select columns of these tasks. `rest` follows the conditions and has a placeholder for each value."""
        if self.branch is None:
            place, tables, line = "tasks", "tasks", "tasks.branch = ?"
        else:
            place, line = "branches", "branches.name = ?"
            tables = """branches JOIN branch_sightings
                    ON branch_sightings.client_id = branches.client_id AND branch_sightings.branch_seq = branches.seq
                JOIN tasks ON tasks.client_id = branches.client_id AND tasks.seq = branch_sightings.task_seq"""
        given = [self.client_id, self.branch or MAIN_LINE]
        conditions = f"{place}.client_id = ? AND {line}"
        for column, value in (("project_type", self.project_type), ("target_url", self.target_url)):
            if value is not None:
                conditions += f" AND {place}.{column} = ?"
                given.append(value)
        statement = f"SELECT {columns} FROM {tables} {joined} WHERE {conditions} {rest}"
        return connection.execute(statement, (*given, *values)).fetchall()


def select_overview(connection: Connection, client_id: str, query: OverviewQuery) -> Overview:
    """Return the overview of the tasks that a query selects."""
    known = Known(client_id, query.project_type, query.target_url, query.branch)
    columns = "tasks.severity, tasks.project_type, tasks.target_url, tasks.status, COUNT(*)"
    counted = known.select(connection, columns, "GROUP BY 1, 2, 3, 4")
    severities = {name: Counter[str]() for name in SEVERITIES}
    for rank, _, _, status, n in counted:
        severities[SEVERITIES[-rank]][status] += n
    return Overview(
        total=sum(n for *_, n in counted),
        by_severity=StatusesBySeverity(**{name: StatusCounts(**counts) for name, counts in severities.items()}),
        by_project_type=[StandingOfType(*each) for each in count_by_name((row[1], *row[3:]) for row in counted)],
        by_target=[StandingOfTarget(target or None, *n) for target, *n in count_by_name(row[2:] for row in counted)],
        days=select_days(connection, known, query.days, sum(n for *_, status, n in counted if status in UNFINISHED)),
    )


DAY_EVENTS = ("created", "reopened", "resolved", "dismissed")
EVENT_OF_ENTRY = """CASE WHEN history.event = 'created' THEN 'created'
    WHEN from_status = to_status THEN NULL
    WHEN to_status IN ('resolved', 'dismissed') THEN to_status
    WHEN from_status IN ('resolved', 'dismissed') THEN 'reopened' END"""
UNFINISHED_BY_ENTRY = """CASE WHEN to_status IN ('open', 'in_progress') THEN 1 ELSE 0 END
    - CASE WHEN from_status IN ('open', 'in_progress') THEN 1 ELSE 0 END"""
HISTORY = "JOIN history ON history.client_id = tasks.client_id AND history.task_seq = tasks.seq"


def select_days(connection: Connection, known: Known, days: int, unfinished: int) -> list[Day]:
    """Return a Day for each of the last days, oldest first, with the changes of the tasks that are known now.

    :param unfinished: the number of open and in-progress tasks now; the numbers of earlier days are computed from it.
    """
    today = datetime.fromisoformat(timestamp()).date()
    dates = [str(today - timedelta(days=ago)) for ago in range(days)]
    columns = f"substr(history.at, 1, 10), {EVENT_OF_ENTRY}, COUNT(*), SUM({UNFINISHED_BY_ENTRY})"
    rest = "AND history.at >= ? AND history.to_status IS NOT NULL GROUP BY 1, 2"
    events, moves = Counter[tuple[str, str | None]](), Counter[str]()
    for date, event, n, moved in known.select(connection, columns, rest, dates[-1], joined=HISTORY):
        events[date, event] = n
        moves[date] += moved
    result = []
    for date in dates:
        result.append(Day(date, *(*(events[date, event] for event in DAY_EVENTS), unfinished)))
        unfinished -= moves[date]
    return result[::-1]


def count_by_name(counted: Iterable[tuple[str, str, int]]) -> list[tuple[str, int, int]]:
    """Return (name, total, open) for each name, those with the most open tasks first.

    :param counted: (name of a project type or target, status, number of tasks).
    """
    totals, still_open = Counter[str](), Counter[str]()
    for name, status, n in counted:
        totals[name] += n
        still_open[name] += n if status == "open" else 0
    rows = [(name, total, still_open[name]) for name, total in totals.items()]
    return sorted(rows, key=lambda row: (-row[2], -row[1], row[0]))


@operation("GET", "/api/v1/overview", "read", {200: Overview}, query=OverviewQuery, has_weak_etag=True)
def get_overview(request: ApiRequest) -> Response | ThreadJob:
    """Get the numbers of tasks by severity, type and target, and their changes per day."""
    cached = response_from_cache(request)
    return cached or request.read_slowly(partial(conditional_response, read_overview, request))


def read_overview(request: ApiRequest, connection: Connection) -> Overview:
    """Return the overview that a request asks for."""
    return select_overview(connection, request.client_id, request.query)


def register() -> None:
    """Register the endpoint."""
    REGISTRY.add_operations(get_overview)
